"""A ledger by person: who takes part, what it costs whom, and that no participation is lost."""

import itertools
import os
import random
import sqlite3
from fractions import Fraction
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from skdpmf import DPItemMeans, PrivacyBudget, PrivacyLedger
from skdpmf.books import ledger_cohorts, ledger_file
from skdpmf.books.ledger_cohorts import Cohorts, people_of
from skdpmf.books.ledger_rules import Amount, Spending, charge
from skdpmf.data.labelled_rows import RatingMatrix
from skdpmf.data.validation import as_rating_matrix
from skdpmf.estimators.contract import private
from skdpmf.exceptions import BudgetExceededError, LedgerError, PrivacyParameterError
from tests.books.ledgers import calibrated_plan, forks, gaussian_plan, killed, new_ledger
from tests.books.test_ledger_processes import in_forks
from tests.systems import needs_posix

LIMIT = PrivacyBudget(1.0, 1e-5)
SECRET = "ab" * 32
MANY, END = 200, b"<end>"


def by_person(folder, at_most=1, epsilon=1.0, **settings):
    return new_ledger(folder, epsilon, at_most=at_most, **settings)


def names(*numbers):
    return [f"person {n}" for n in numbers]


def whole(ledger):
    """A plan that costs all of the limit."""
    return calibrated_plan(PrivacyBudget(1.0, 1e-5, ledger=ledger))


def included(ledger, plan, users):
    return ledger.reserve(plan, users=users).included.tolist()


# -- its terms


def test_it_is_by_person_for_ever(tmp_path):
    made = by_person(tmp_path, 3)
    for again in (PrivacyLedger(made.path), PrivacyLedger(made.path, LIMIT, at_most=3)):
        assert (again.at_most, again.rule, again) == (3, "gaussian", made)
    for wrong in (made, new_ledger(tmp_path, 1.0, name="other")):
        with pytest.raises(PrivacyParameterError, match=r"at_most=2 must be (3|None), with which"):
            PrivacyLedger(wrong.path, at_most=2)


def test_other_ledgers_have_no_people(tmp_path):
    ledger = new_ledger(tmp_path)
    ledger.reserve(gaussian_plan(0.1))
    assert ledger.at_most is None
    assert "at_most" not in ledger.report().to_dict()
    assert "people" not in ledger.report().entries[0]
    with pytest.raises(PrivacyParameterError, match="users must be None"):
        ledger.reserve(gaussian_plan(0.1), users=["ann"])


BY_PERSON = "has unit 'user' and rule 'gaussian'"


@pytest.mark.parametrize(
    ("limit", "rule", "at_most", "message"),
    [
        *((LIMIT, None, most, "must be None or an integer >= 1") for most in (0, 1.0, True, "1")),
        (LIMIT, "zcdp", 1, BY_PERSON),
        (LIMIT, "basic", 1, BY_PERSON),
        (PrivacyBudget(1.0), None, 1, BY_PERSON),
        (PrivacyBudget(1.0, 1e-5, unit="rating"), None, 1, BY_PERSON),
    ],
)
def test_terms_that_are_not_by_person(tmp_path, limit, rule, at_most, message):
    with pytest.raises(PrivacyParameterError, match=message):
        PrivacyLedger(tmp_path / "x", limit, rule=rule, at_most=at_most)
    assert not os.path.exists(tmp_path / "x")


# -- who takes part


def test_disjoint_cohorts_each_get_the_whole_budget(tmp_path):
    ledger = by_person(tmp_path)
    for month in range(12):
        cohort = names(*range(10 * month, 10 * month + 10))
        assert included(ledger, whole(ledger), cohort) == [True] * 10
    report = ledger.report()
    assert (report.n_people, report.n_spent) == (120, 120)
    assert 0.999 < report.epsilon <= 1.0
    assert ledger.verify() == 12


def test_parts_of_a_whole_all_fit(tmp_path):
    ledger = by_person(tmp_path, 50)
    for part in PrivacyBudget(1.0, 1e-5, ledger=ledger).split([1 / 50] * 50):
        assert included(ledger, calibrated_plan(part), names(1)) == [True]
    assert ledger.verify() == 50


def test_nobody_left_is_refused_and_told_what_would_fit(tmp_path):
    ledger = by_person(tmp_path, 2)
    half = calibrated_plan(PrivacyBudget(1.0, 1e-5, ledger=ledger).split([0.6, 0.4])[0])
    ledger.reserve(half, users=names(1, 2))
    before = ledger.report()
    with pytest.raises(BudgetExceededError, match="for somebody in the rows") as caught:
        ledger.reserve(half, users=names(1, 2))
    assert ledger.report() == before
    fits = calibrated_plan(PrivacyBudget(caught.value.largest, 1e-5, ledger=ledger))
    assert included(ledger, fits, names(1)) == [True]
    with pytest.raises(BudgetExceededError, match="no such request fits") as caught:
        ledger.reserve(gaussian_plan(1e-4), users=names(1))
    assert caught.value.largest == 0.0
    with pytest.raises(BudgetExceededError, match="at most 2 fits"):
        ledger.reserve(gaussian_plan(9.0), users=names(7))  # for nobody whatever
    with pytest.raises(BudgetExceededError):
        ledger.reserve(half, users=[None, None])
    assert ledger.verify() == 2


def test_a_fit_may_noise_its_share_of_the_values(tmp_path):
    """Sampler: n in all for a person, who is in two fits at most."""
    ledger = by_person(tmp_path, 2)
    most = ledger.report().allowed.second // 2
    with pytest.raises(BudgetExceededError, match=f"; mu.2=.* and {most} noised values are left"):
        ledger.reserve(gaussian_plan(1e-3, most + 1), users=names(1))
    ledger.reserve(gaussian_plan(1e-3, most), users=names(1))


@pytest.mark.parametrize("seed", range(3))
def test_accounts_are_those_of_a_slow_twin(tmp_path, seed):
    rng = random.Random(seed)
    ledger, accounts, spent = by_person(tmp_path, 4, 2.0), {}, Amount(0, 0)
    allowed = Fraction(ledger.report().allowed.main)
    for _ in range(40):
        cohort = rng.sample(range(60), rng.randint(1, 30))
        plan = gaussian_plan(10.0 ** rng.uniform(-2.0, -0.4))
        cost = charge("gaussian", Spending.of(plan))
        expected = []
        for person in cohort:
            paid = accounts.get(person, [])
            expected.append(len(paid) < 4 and sum(paid) + cost.main <= allowed)
        if not any(expected):
            with pytest.raises(BudgetExceededError):
                ledger.reserve(plan, users=names(*cohort))
            continue
        assert included(ledger, plan, names(*cohort)) == expected
        spent += cost
        for person, takes_part in zip(cohort, expected, strict=True):
            if takes_part:
                accounts.setdefault(person, []).append(cost.main)
    report = ledger.report()
    assert report.n_people == len(accounts)
    most = max(map(sum, accounts.values()))
    assert most <= report.amount.main <= most + 4 * allowed / ledger_cohorts.WHOLE + 1
    assert sum(e["people"] for e in report.entries) == sum(map(len, accounts.values()))
    assert ledger.verify() == len(report.entries)


# -- ids


def test_ids_that_print_alike_are_other_people():
    keys = people_of(["1", 1, "i1", "s1"], SECRET).keys
    assert len(set(map(tuple, keys.T.tolist()))) == 4
    assert people_of(["1", 1], SECRET).kinds == "int and str"


def test_one_person_has_one_hash_in_any_container():
    expected = people_of([7, 5], SECRET)
    index = pd.Index([7, 5])
    for ids in (np.array([7, 5], np.uint8), index, index.astype("Int64"), [np.int16(7), 5]):
        found = people_of(ids, SECRET)
        assert (found.keys == expected.keys).all()
        assert (found.rows == expected.rows).all()
    expected = people_of(["ann", "bob", None], SECRET)
    for ids in (np.array(["ann", "bob", None], object), pd.Index(["ann", "bob", None])):
        assert (people_of(ids, SECRET).keys == expected.keys).all()
    assert (expected.n_rows, sorted(expected.rows)) == (3, [0, 1])
    assert (people_of(["ann", "bob"], "cd" * 32).keys != expected.keys).all()
    assert people_of(["\ud800", 10**30, -1], SECRET).keys.shape == (2, 3)


STRANGE = (1.0, True, ("a", 1), b"a", np.bool_(True), pd.NA)


@pytest.mark.parametrize(
    ("users", "message"),
    [
        (None, "users=None must be ids of the rows"),
        (range(5), "holds 0 to 4, the rows' numbers"),
        ([None, 1, 2, None], "holds 1 to 2, the rows' numbers"),
        (["ann", "bob", "ann"], "holds 'ann' in two rows"),
        ([3, np.int32(3)], "holds 3 in two rows"),
        *((["ann", strange], "must be an integer or a string") for strange in STRANGE),
    ],
)
def test_what_are_no_ids(tmp_path, users, message):
    ledger = by_person(tmp_path)
    with pytest.raises(PrivacyParameterError, match=message):
        ledger.reserve(gaussian_plan(0.1), users=users)
    assert ledger.verify() == 0


def test_ids_keep_their_type_and_number(tmp_path):
    """Else a person would be another one in the next month."""
    ledger = by_person(tmp_path)
    ledger.reserve(gaussian_plan(0.1), users=[7, 8])
    with pytest.raises(PrivacyParameterError, match="ids of type str, and must hold int"):
        ledger.reserve(gaussian_plan(0.1), users=["7", "9"])
    with pytest.raises(PrivacyParameterError, match="users has 2 ids, and must have 3"):
        ledger.reserve(gaussian_plan(0.1), users=[9, 10], shape=(3, 5))
    assert ledger.verify() == 1


@needs_posix
def test_the_file_holds_no_id(tmp_path):
    ledger = by_person(tmp_path)
    ledger.reserve(gaussian_plan(0.1), users=["rosalind"], estimator="means", shape=(1, 3))
    assert b"rosalind" not in Path(ledger.path).read_bytes()
    assert os.stat(ledger.path).st_mode & 0o777 == 0o600


def test_equal_first_halves_are_told_apart():
    keys = np.array([[1, 5, 5, 5, 9], [7, 1, 2, 3, 0]], np.uint64)
    known = np.array([[0, 5, 5, 9, 9, 11], [0, 2, 4, 0, 1, 0]], np.uint64)
    assert ledger_cohorts._places(keys, known).tolist() == [2, 4]


# -- the file


def test_the_report_is_the_curators(tmp_path):
    ledger = by_person(tmp_path, 2)
    ledger.reserve(gaussian_plan(0.1), users=names(1, 2))
    ledger.reserve(gaussian_plan(0.1), users=names(2, 3))
    ledger.reserve(gaussian_plan(0.1), users=names(1, 2))
    report = ledger.report()
    assert (report.at_most, report.n_people, report.n_spent) == (2, 3, 2)
    assert report.amount.main == pytest.approx(2 * int(report.entries[0]["charge"] * 2**160))
    assert "3 took part, each in at most 2 fits; 2 have" in str(report)
    assert "1 person, 1 left out" in str(report)
    assert "by whoever spent most" in report._in_short()
    assert [entry["left_out"] for entry in report.entries] == [0, 0, 1]
    assert report.to_dict()["n_people"] == 3


def test_cohorts_are_never_changed(tmp_path):
    ledger = by_person(tmp_path)
    ledger.reserve(gaussian_plan(0.1), users=names(1))
    connection = sqlite3.connect(ledger.path)
    for statement in ("DELETE FROM cohort", "UPDATE cohort SET part=0"):
        with pytest.raises(sqlite3.IntegrityError, match="cohorts are never"):
            connection.execute(statement)
    connection.close()


DAMAGE = {
    "a participation is gone": "DELETE FROM cohort WHERE rowid=1",
    "another person's hash": "UPDATE cohort SET hashes=zeroblob(16) WHERE rowid=1",
    "another entry": "UPDATE cohort SET entry=9 WHERE rowid=1",
    "another number": "UPDATE ledger SET value='7' WHERE name='at_most'",
    "another secret": "UPDATE ledger SET value=value || 'ab' WHERE name='secret'",
    "not by person": "PRAGMA user_version=2",
}


@pytest.mark.parametrize("what", DAMAGE)
def test_damage_lets_nobody_through(tmp_path, what):
    ledger = by_person(tmp_path)
    ledger.reserve(gaussian_plan(0.1), users=names(1, 2, 3))
    with sqlite3.connect(ledger.path) as connection:
        for trigger in ("cohort_kept", "cohort_fixed"):
            connection.execute(f"DROP TRIGGER {trigger}")
        connection.execute(DAMAGE[what])
    connection.close()
    for use in (ledger.verify, lambda: ledger.reserve(gaussian_plan(0.1), users=names(1, 2, 3, 4))):
        with pytest.raises(LedgerError):
            use()


def in_one_part(self, entry, keys):
    hashes = keys.tobytes()
    row = (entry, 3, ledger_cohorts._digest(hashes), hashes)
    self.connection.execute("INSERT INTO cohort VALUES (?, ?, ?, ?)", row)


def all_but_one(self, entry, keys, add=Cohorts.add):
    add(self, entry, keys[:, 1:])


def nobody_took_part(self, keys):
    return np.zeros((2, keys.shape[1]), np.int64)


@pytest.mark.parametrize(
    ("name", "planted", "message"),
    [
        ("add", all_but_one, "has not as many people"),
        ("add", lambda self, entry, keys: None, "has not as many people"),
        ("add", in_one_part, "out of order"),
        ("taken_part", nobody_took_part, "took part more often"),
    ],
)
def test_verify_finds_whom_nobody_charged(tmp_path, monkeypatch, name, planted, message):
    ledger = by_person(tmp_path)
    monkeypatch.setattr(Cohorts, name, planted)
    for _ in range(2 if name == "taken_part" else 1):
        ledger.reserve(gaussian_plan(0.1), users=names(1, 2, 3))
    with pytest.raises(LedgerError, match=message):
        ledger.verify()


# -- many hands, and kills


@forks
def test_two_processes_cannot_both_have_somebody(tmp_path):
    ledger = by_person(tmp_path)
    people = names(*range(50))

    def take():
        try:
            return sum(included(ledger, gaussian_plan(0.1), people))
        except BudgetExceededError:
            return 0

    assert sorted(in_forks([take] * 4)) == [0, 0, 0, 50]
    assert ledger.verify() == 1


def killed_fits(ledger, rng):
    """Kill a process that fits and refreshes.

    Returns the people of every fit that began to look at ratings.
    """

    def fits(pipe):
        own, here = np.random.default_rng(rng.randrange(2**32)), {}
        release = private.fit_framed

        def told(estimator, R, fit, levels):
            included = fit.frame._Frame__included
            os.write(pipe, here["people"][included].astype("<i8").tobytes() + END)
            return release(estimator, R, fit, levels)

        private.fit_framed = told
        model = DPItemMeans(PrivacyBudget(0.01, 1e-5, ledger=ledger))
        for number in itertools.count():
            here["people"] = people = 1000 + own.choice(MANY, 20, replace=False)
            X = RatingMatrix(as_rating_matrix(own.integers(1, 6, (20, 4))), people)
            model = model.refresh(X) if number else model.fit(X)

    return [np.frombuffer(people, "<i8") for people in killed(fits, rng).split(END)[:-1]]


@forks
def test_everybody_who_was_in_a_fit_that_was_killed_is_charged(tmp_path):
    n_kills, rng = 15, random.Random(0)
    ledger = by_person(tmp_path, 10**6, 50.0)
    DPItemMeans(PrivacyBudget(0.01, 1e-5)).fit(np.ones((20, 4)))  # compiles before the forks
    told, n_fits = np.zeros(MANY, np.int64), 0
    for _ in range(n_kills):
        for people in killed_fits(ledger, rng):
            told[people - 1000] += 1
            n_fits += 1
        PrivacyLedger(ledger.path)
    n_entries = PrivacyLedger(ledger.path).verify()
    assert n_kills <= n_fits <= n_entries <= n_fits + n_kills  # a kill may come before the release
    with ledger_file.transaction(ledger.path) as connection:
        secret = connection.execute("SELECT value FROM ledger WHERE name='secret'").fetchone()[0]
        people = people_of(np.arange(1000, 1000 + MANY), secret)
        cohorts = Cohorts(connection, ledger.report().allowed, ledger.at_most)
        times, _ = cohorts.taken_part(people.keys)
    charged = np.empty(MANY, np.int64)
    charged[people.rows] = times
    assert (charged >= told).all()
    assert charged.sum() == 20 * n_entries
