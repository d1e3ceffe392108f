"""Fits that are resumed in a ledger: charged once, and one run at a time releases."""

import hashlib
import os
import random
import sqlite3

import pytest

from skdpmf import PrivacyLedger
from skdpmf.books.ledger import ResumableFit
from skdpmf.exceptions import LedgerError, PrivacyParameterError
from tests.books.ledgers import forks, gaussian_plan, mixed_plan, new_ledger, pure_plan
from tests.books.test_ledger_damage import change
from tests.books.test_ledger_processes import in_forks, quick  # noqa: F401 (a fixture)

PLAN = gaussian_plan(0.1)


def history_of(values):
    """Digests of the first 0, 1, ... values."""
    digests = [hashlib.sha256(b"start").hexdigest()]
    for value in values:
        digests.append(hashlib.sha256(f"{digests[-1]} {value}".encode()).hexdigest())
    return tuple(digests)


TOKEN = ResumableFit.new_token()


def fit_with(*values, token=TOKEN):
    return ResumableFit(token, history_of(values))


def note(reservation, *values):
    """Note the last of the values."""
    reservation.note(*history_of(values)[-2:])


def entry_of(ledger):
    (entry,) = ledger.report().entries
    return entry


def test_a_resumed_fit_is_one_entry(tmp_path):
    ledger = new_ledger(tmp_path)
    first = ledger.reserve(PLAN, resumable=fit_with())
    spent = ledger.report().amount
    note(first, "a")
    second = PrivacyLedger(ledger.path).reserve(PLAN, resumable=fit_with("a"))
    note(second, "a", "b")
    with ledger.reserve(PLAN, resumable=fit_with("a", "b")) as third:
        note(third, "a", "b", "c")
    assert [reservation.id for reservation in (first, second, third)] == [1, 1, 1]
    assert [reservation.run for reservation in (first, second, third)] == [1, 2, 3]
    assert ledger.report().amount == spent
    entry = entry_of(ledger)
    assert entry["status"] == "done"
    assert len(entry["resumed"]) == 2
    assert entry["time"] <= entry["resumed"][0] <= entry["resumed"][1]
    assert str(ledger.report()).endswith("resumed 2 x")
    assert ledger.report().to_frame()["resumed"].tolist() == [entry["resumed"]]
    assert ledger.verify() == 1


def test_other_fits_are_other_entries(tmp_path):
    """Also in a file that was made before fits could be resumed."""
    ledger = new_ledger(tmp_path)
    with ledger.reserve(PLAN) as plain:
        pass
    assert (plain.run, ledger.report().entries[0]["resumed"]) == (None, [])
    connection = sqlite3.connect(ledger.path)
    assert not connection.execute("SELECT * FROM sqlite_master WHERE name='run'").fetchall()
    connection.close()
    tokens = [ResumableFit.new_token() for _ in range(2)]
    for token in tokens:
        ledger.reserve(PLAN, resumable=fit_with(token=token))
    ledger.reserve(PLAN)
    assert ledger.reserve(PLAN, resumable=fit_with(token=tokens[1])).id == 3
    assert [len(entry["resumed"]) for entry in ledger.report().entries] == [0, 0, 1, 0]
    assert ledger.verify() == 4


def test_a_run_that_raises_may_be_resumed(tmp_path):
    ledger = new_ledger(tmp_path)
    for error in (ValueError, KeyboardInterrupt):
        with pytest.raises(error), ledger.reserve(PLAN, resumable=fit_with()):
            raise error
        assert entry_of(ledger)["status"] == "reserved"
    with ledger.reserve(PLAN, resumable=fit_with()):
        pass
    assert entry_of(ledger)["status"] == "done"


def test_only_the_last_run_releases(tmp_path):
    ledger = new_ledger(tmp_path)
    first = ledger.reserve(PLAN, resumable=fit_with())
    first.assert_current()
    second = ledger.reserve(PLAN, resumable=fit_with())
    for use in (first.assert_current, lambda: note(first, "a")):
        with pytest.raises(LedgerError, match=r"run=1 of entry 1 .* resumed by another process"):
            use()
    with pytest.warns(UserWarning, match="entry 1 stays 'reserved': run=1"), first:
        pass
    second.assert_current()
    note(second, "a")
    for values in ("b", "a", "abc", "xb"):  # its first release again, or out of order
        with pytest.raises(
            LedgerError, match=r"previous='\w+' must be the last digest that entry 1"
        ):
            note(second, *values)
    with second:
        pass
    for use in (second.assert_current, lambda: note(second, "a", "b")):
        with pytest.raises(LedgerError, match="the fit is complete: this run is to be given up"):
            use()
    assert entry_of(ledger)["status"] == "done"


@pytest.mark.parametrize(
    ("values", "accepted"),
    [
        ((), False),
        (("a",), False),
        (("a", "b"), True),
        (("a", "x"), False),
        (("a", "b", "c"), True),  # written, and not noted before a crash
        (("a", "x", "c"), False),
        (("a", "b", "c", "d"), False),
    ],
)
def test_only_the_history_goes_on(tmp_path, values, accepted):
    ledger = new_ledger(tmp_path)
    run = ledger.reserve(PLAN, resumable=fit_with())
    note(run, "a")
    note(run, "a", "b")
    if not accepted:
        match = rf"history of {len(values)} releases must continue the 2 that entry 1 .* anew"
        with pytest.raises(LedgerError, match=match):
            ledger.reserve(PLAN, resumable=fit_with(*values))
        run.assert_current()  # it was not disturbed
        return
    resumed = ledger.reserve(PLAN, resumable=fit_with(*values))
    note(resumed, *values, "next")
    with pytest.raises(LedgerError, match="must continue"):
        ledger.reserve(PLAN, resumable=fit_with("a", "b"))


def test_an_unknown_token_pays(tmp_path):
    ledger = new_ledger(tmp_path)
    note(ledger.reserve(PLAN, resumable=fit_with()), "a")
    match = r"must be the ledger that this fit was reserved in, and does not know it after 1"
    with pytest.raises(LedgerError, match=match):
        ledger.reserve(PLAN, resumable=fit_with("a", token=ResumableFit.new_token()))
    assert len(ledger.report().entries) == ledger.verify() == 1
    spent = ledger.report().amount
    ledger.reserve(PLAN, resumable=fit_with(token=ResumableFit.new_token()))
    report = ledger.report()
    assert report.amount == spent + spent
    assert len(report.entries) == ledger.verify() == 2


@pytest.mark.parametrize(
    ("plan", "settings", "named"),
    [
        (gaussian_plan(0.2), {}, "releases="),
        (gaussian_plan(0.1, n_values=11), {}, "releases="),
        (mixed_plan(0.1, 0.1), {}, "releases="),
        (gaussian_plan(0.1, condition="luck"), {}, "condition='luck' must be ''"),
        (PLAN, {"shape": (5, 8)}, r"shape=\[5, 8\] must be \[5, 7\]"),
        (PLAN, {"estimator": "Sampler"}, "estimator='Sampler' must be 'ALS'"),
        (PLAN, {"seeded": True}, "seeded=True must be False"),
        (PLAN, {"nonprivate": True}, "private=False must be True"),
    ],
)
def test_another_fit_is_refused(tmp_path, plan, settings, named):
    ledger = new_ledger(tmp_path, allow_seeded=True, allow_nonprivate=True)
    same = {"shape": (5, 7), "estimator": "ALS", "params": {"n_jobs": 1}}
    run = ledger.reserve(PLAN, **same, resumable=fit_with())
    with pytest.raises(LedgerError, match=f"^{named}.*with which entry 1 of .* was reserved"):
        ledger.reserve(plan, **{**same, **settings}, resumable=fit_with())
    run.assert_current()
    assert entry_of(ledger)["resumed"] == []
    same["params"] = {"n_jobs": 2}
    ledger.reserve(PLAN, **same, note="again", resumable=fit_with())


def test_what_is_not_admitted_is_not_resumed(tmp_path):
    ledger = new_ledger(tmp_path, allow_seeded=True)
    ledger.reserve(PLAN, seeded=True, resumable=fit_with())
    with pytest.raises(PrivacyParameterError, match="seeded=True must be False"):
        PrivacyLedger(ledger.path).reserve(PLAN, seeded=True, resumable=fit_with())


def test_a_limit_that_is_reached_does_not_stop_a_resumed_fit(tmp_path):
    ledger = new_ledger(tmp_path, 0.5, 0.0)
    plan = pure_plan(0.5)
    ledger.reserve(plan, resumable=fit_with())
    assert ledger.reserve(plan, resumable=fit_with()).run == 2


def test_another_ledger_in_its_place_is_noticed(tmp_path):
    ledger = new_ledger(tmp_path)
    run = ledger.reserve(PLAN, resumable=fit_with())
    os.remove(ledger.path)
    new_ledger(tmp_path).reserve(PLAN, resumable=fit_with())
    for use in (run.assert_current, lambda: note(run, "a")):
        with pytest.raises(LedgerError, match="another ledger was put in its place"):
            use()


# Many runs


@pytest.mark.parametrize("seed", range(3))
def test_runs_of_copied_histories_in_any_order(tmp_path, quick, seed):  # noqa: F811
    """Whoever notes or resumes, of every n-th value only one is ever handed out."""
    rng, ledger = random.Random(seed), new_ledger(tmp_path)
    files, handed, refused, started = [[]], {}, 0, 0  # files: copies of what was written
    runs = []  # of a reservation and the file that it writes

    def hand_out(values):
        for n, value in enumerate(values):
            assert handed.setdefault(n, value) == value

    for step in range(150):
        act = rng.random()
        if act < 0.15:
            newest = [handed[n] for n in range(len(handed))]
            files += [newest, list(rng.choice(files))]
        elif act < 0.35 or not runs:
            file = rng.choice(files[-6:])
            try:
                runs.append((ledger.reserve(PLAN, resumable=fit_with(*file)), file))
                hand_out(file)
                started += 1
            except LedgerError:
                refused += 1
        else:
            run = reservation, file = rng.choice(runs[-3:])
            file.append(step)
            if rng.random() < 0.2:  # a crash before it is noted
                runs.remove(run)
                continue
            try:
                note(reservation, *file)
                hand_out(file)
            except LedgerError:
                refused += 1
                runs.remove(run)
    assert min(len(handed), started) > 3
    assert refused > 20
    assert ledger.verify() == 1


@forks
def test_processes_that_resume_at_once(tmp_path, quick):  # noqa: F811
    """Eight processes resume the same history again and again: each value is noted by one."""
    ledger = new_ledger(tmp_path)
    ledger.reserve(PLAN, resumable=fit_with())

    def work():
        noted = []
        for n in range(6):
            values = tuple(range(n))
            try:
                run = ledger.reserve(PLAN, resumable=fit_with(*values))
                note(run, *values, n)
                noted.append(n)
            except LedgerError:
                pass
        return noted

    results = in_forks([work] * 8)
    noted = [n for result in results for n in result]
    assert sorted(noted) == sorted(set(noted))
    assert noted
    assert ledger.verify() == 1


# The file


def test_the_file_itself_keeps_runs(tmp_path):
    ledger = new_ledger(tmp_path)
    run = ledger.reserve(PLAN, resumable=fit_with())
    note(run, "a")
    ledger.reserve(PLAN, resumable=fit_with("a"))
    for statement, message in (
        ("DELETE FROM run", "never deleted"),
        ("UPDATE run SET noted=0", "only goes on"),
        ("UPDATE run SET noted=3", "only goes on"),
        ("UPDATE run SET head='0'", "only goes on"),
        ("UPDATE run SET token='0'", "only goes on"),
        ("UPDATE run SET entry=7", "only goes on"),
        ("UPDATE run SET starts='[]'", "only goes on"),
    ):
        with pytest.raises(sqlite3.IntegrityError, match=message):
            change(ledger, statement)
    assert ledger.verify() == 1


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("UPDATE run SET entry=7", "entry 7, which has runs, is missing"),
        ("UPDATE run SET starts='[]'", "the runs of entry 1 were changed"),
        ("UPDATE run SET starts='[1]'", "the runs of entry 1 were changed"),
        ("UPDATE run SET starts='x'", "the runs of entry 1 were changed"),
        ("UPDATE run SET noted=-1", "the runs of entry 1 were changed"),
        ("UPDATE run SET head=''", "the runs of entry 1 were changed"),
        ("UPDATE run SET token=''", "the runs of entry 1 were changed"),
    ],
)
def test_verify_finds_what_was_changed(tmp_path, statement, message):
    ledger = new_ledger(tmp_path)
    ledger.reserve(PLAN, resumable=fit_with())
    change(ledger, "DROP TRIGGER run_goes_on", statement)
    with pytest.raises(LedgerError, match=f"must be the ledger as it was written.*{message}"):
        ledger.verify()


def test_the_token_is_not_in_the_file(tmp_path):
    ledger = new_ledger(tmp_path)
    fit = fit_with()
    ledger.reserve(PLAN, resumable=fit)
    with open(ledger.path, "rb") as file:
        data = file.read()
    assert fit.digest.encode() in data
    assert fit.token.encode() not in data
    assert fit.token not in repr(fit)
    assert len({ResumableFit.new_token() for _ in range(100)}) == 100
