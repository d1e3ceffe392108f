"""The file of a ledger: its terms, its entries, its copies, and what is said where it fails."""

import copy
import json
import math
import os
import pickle
import re
import sqlite3
import tempfile
from pathlib import Path

import joblib
import numpy as np
import pandas as pd
import pytest
from sklearn.base import BaseEstimator, clone

from skdpmf import PrivacyLedger
from skdpmf.books import ledger_file
from skdpmf.exceptions import LedgerError, PrivacyParameterError
from skdpmf.privacy import PrivacyBudget, ReleasePlan
from tests.books.ledgers import (
    calibrated_plan,
    forks,
    gaussian_plan,
    new_ledger,
    pure_plan,
    reserve_all,
)
from tests.books.test_ledger_processes import in_forks


def entry_of(ledger, number=-1):
    return ledger.report().entries[number]


def test_limit_and_rule_are_fixed_when_it_is_made(tmp_path):
    kind = {"unit": "rating", "neighbors": "replace"}
    made = new_ledger(tmp_path, 2.0, 1e-6, **kind, rule="zcdp")
    made.reserve(gaussian_plan(0.01, budget=PrivacyBudget(1, 1e-6, **kind)))
    for again in (
        PrivacyLedger(made.path),
        PrivacyLedger(Path(made.path), made.limit, rule="zcdp"),
    ):
        assert again.limit == PrivacyBudget(2.0, 1e-6, **kind)
        assert (again.unit, again.neighbors, again.rule) == ("rating", "replace", "zcdp")
        assert (again, hash(again)) == (made, hash(made))
        assert len(again.report().entries) == 1
    other = PrivacyBudget(2.0, 1e-5, **kind)
    both = f"limit={other!r} must be {made.limit!r}, with which {made.path!r} was made"
    with pytest.raises(PrivacyParameterError, match=re.escape(both)):
        PrivacyLedger(made.path, other)
    for limit in (None, made.limit):
        with pytest.raises(PrivacyParameterError, match="rule='gaussian' must be 'zcdp', with"):
            PrivacyLedger(made.path, limit, rule="gaussian")
    with pytest.raises(PrivacyParameterError, match="no ledger of its own"):
        PrivacyLedger(tmp_path / "y", PrivacyBudget(1.0, 1e-5, ledger=made, **kind))


@pytest.mark.parametrize(
    ("limit", "rule", "message"),
    [
        (None, None, "limit=None must be a PrivacyBudget to make a new ledger"),
        (1.0, None, r"limit=1\.0 must be a PrivacyBudget"),
        (PrivacyBudget.nonprivate(), None, "with a finite epsilon and no ledger"),
        (PrivacyBudget(0.0), None, "epsilon=0.0 must be a number > 0"),
        (PrivacyBudget(1.0), "gaussian", "rule='gaussian' must be 'basic' for a limit with delta"),
        (PrivacyBudget(1.0), "zcdp", "rule='zcdp' must be 'basic'"),
        (PrivacyBudget(1.0, 1e-5), "pld", r"rule='pld' must be one of \('gaussian', 'zcdp'"),
    ],
)
def test_bad_terms_make_no_file(tmp_path, limit, rule, message):
    with pytest.raises(PrivacyParameterError, match=message):
        PrivacyLedger(tmp_path / "x", limit, rule=rule)
    assert list(tmp_path.iterdir()) == []


def test_an_entry_is_reserved_then_done_or_failed_and_always_spent(tmp_path):
    ledger = new_ledger(tmp_path)
    spent = []

    def look():
        report = ledger.report()
        spent.append(report.amount.main)
        return [entry["status"] for entry in report.entries]

    reservation = ledger.reserve(gaussian_plan(0.1))
    assert look() == ["reserved"]
    with reservation as entered:
        assert entered is reservation
        assert (entered.id, entered.ledger, entered.plan.mu) == (1, ledger, pytest.approx(0.1))
        assert look() == ["reserved"]
    assert look() == ["done"]
    for error in (ValueError, KeyboardInterrupt):
        with pytest.raises(error), ledger.reserve(gaussian_plan(0.1)):
            raise error
    assert look() == ["done", "failed", "failed"]
    assert spent == [spent[0]] * 3 + [3 * spent[0]]
    with reservation:  # a status is set once
        pass
    with pytest.raises(ValueError, match="late"), reservation:
        raise ValueError("late")
    assert look() == ["done", "failed", "failed"]


def test_what_is_recorded(tmp_path):
    """Of arrays and other objects the type alone: nothing of the ratings."""
    ledger = new_ledger(tmp_path, allow_seeded=True, user="Ada")
    plan = calibrated_plan(PrivacyBudget(1.0, 1e-5, ledger=ledger))
    plain = {"epsilon": 1.0, "delta": 1e-5, "unit": "user", "neighbors": "add-remove"}
    recorded = {
        "budget": (PrivacyBudget(1.0, 1e-5, ledger=ledger), plain),
        "k": (np.int64(3), 3),
        "rate": (np.float32(0.5), 0.5),
        "flag": (np.bool_(True), True),
        "range": ((1.0, [2, None]), [1.0, [2, None]]),
        "cap": (math.inf, "inf"),
        "ratings": (np.full(5, 4.25), "<ndarray>"),
        "long": ([0.5] * 17, "<list of length 17>"),
        "text": ("r" * 201, "<str of length 201>"),
        "frame": (pd.DataFrame({"rating": [4.0]}), "<DataFrame>"),
    }
    params = {name: value for name, (value, _) in recorded.items()}
    shape = np.int64(5), 7
    ledger.reserve(plan, estimator="ALS", params=params, shape=shape, seeded=True, note="a trial")
    entry = entry_of(ledger)
    assert entry["params"] == {name: expected for name, (_, expected) in recorded.items()}
    assert b"4.25" not in Path(ledger.path).read_bytes()
    assert (entry["estimator"], entry["shape"], entry["note"]) == ("ALS", [5, 7], "a trial")
    assert (entry["process"], entry["user"], entry["seeded"]) == (os.getpid(), "Ada", True)
    assert (entry["epsilon"], entry["delta"], entry["mu"]) == (plan.epsilon, 1e-5, plan.mu)
    assert (entry["local"], entry["condition"]) == (False, "")
    age = pd.Timestamp.now(tz="UTC") - pd.Timestamp(entry["time"])
    assert pd.Timedelta(0) <= age < pd.Timedelta(minutes=10)
    PrivacyLedger(ledger.path).reserve(ReleasePlan(plan.budget, plan.releases, condition="luck"))
    assert (entry_of(ledger)["user"], entry_of(ledger)["condition"]) == (None, "luck")


def test_plans_without_noise(tmp_path):
    ledger = new_ledger(tmp_path)
    nothing = PrivacyBudget.nonprivate()
    some = (*gaussian_plan(1.0).releases, *pure_plan(math.inf, budget=nothing).releases)
    exact = [calibrated_plan(nothing), ReleasePlan(PrivacyBudget(1.0, 1e-5), some)]
    for plan in exact:
        with pytest.raises(PrivacyParameterError, match="epsilon=inf must be finite for a data"):
            ledger.reserve(plan)
    with pytest.raises(PrivacyParameterError, match="nonprivate=True must be False for a data"):
        ledger.reserve(gaussian_plan(0.1), nonprivate=True)
    assert ledger.report().entries == ()


def test_seeded_plans(tmp_path):
    ledger = new_ledger(tmp_path)
    with pytest.raises(PrivacyParameterError, match=r"seeded=True must be False.*random_state=int"):
        ledger.reserve(gaussian_plan(0.1), seeded=True)
    PrivacyLedger(ledger.path, allow_seeded=True).reserve(gaussian_plan(0.1), seeded=True)
    assert entry_of(ledger)["seeded"] is True
    assert "1 of the fits had noise from a seed, which hides nothing" in " ".join(
        str(ledger.report()).split()
    )


class Model(BaseEstimator):
    def __init__(self, budget=None):
        self.budget = budget


def test_copies_share_the_file(tmp_path, monkeypatch):
    ledger = new_ledger(tmp_path, allow_seeded=True, user="Ada")
    budget = PrivacyBudget(1.0, 1e-5, ledger=ledger)
    for same in (copy.copy(ledger), copy.deepcopy(ledger), clone(ledger, safe=False)):
        assert same is ledger
    for holder in (copy.deepcopy(budget), clone(budget), clone(Model(budget)).budget):
        assert holder.ledger is ledger
        assert holder is not budget
    monkeypatch.chdir("/")
    for reopened in (pickle.loads(pickle.dumps(budget)).ledger, eval(repr(ledger))):
        assert reopened == ledger
        assert reopened is not ledger
        assert hash(reopened) == hash(ledger)
        reopened.reserve(gaussian_plan(0.1), seeded=True)
        assert entry_of(ledger)["user"] == "Ada"
    assert joblib.hash(budget)
    assert ledger != PrivacyLedger(ledger.path)  # it admits no seeds
    assert ledger != 1
    assert "ledger=PrivacyLedger(" in repr(Model(budget))


def test_a_relative_path_is_meant_where_it_was_given(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ledger = PrivacyLedger("a b#?%.ledger", PrivacyBudget(1.0))
    assert ledger.path == str((tmp_path / "a b#?%.ledger").resolve())
    assert (tmp_path / "a b#?%.ledger").is_file()
    pickled = pickle.dumps(ledger)
    monkeypatch.chdir("/")
    assert pickle.loads(pickled) == ledger
    ledger.reserve(pure_plan(0.1))
    assert os.listdir("/").count("a b#?%.ledger") == 0


def test_a_file_put_in_its_place_is_noticed(tmp_path):
    ledger = new_ledger(tmp_path)
    ledger.reserve(gaussian_plan(0.5))
    pickled = pickle.dumps(ledger)
    os.remove(ledger.path)
    for use in (ledger.report, ledger.verify, lambda: ledger.reserve(gaussian_plan(0.1))):
        with pytest.raises(LedgerError, match="it cannot be opened"):
            use()
    assert not os.path.exists(ledger.path)
    Path(ledger.path).touch()
    with pytest.raises(LedgerError, match="it is empty"):
        ledger.reserve(gaussian_plan(0.1))
    os.remove(ledger.path)
    new_ledger(tmp_path)
    for held in (ledger, pickle.loads(pickled)):
        for use in (held.report, lambda held=held: held.reserve(gaussian_plan(0.1))):
            with pytest.raises(LedgerError, match="another ledger was put in its place"):
                use()


def test_a_locked_file(tmp_path, monkeypatch):
    monkeypatch.setattr(ledger_file, "_BUSY_SECONDS", 0.05)
    ledger = new_ledger(tmp_path)
    holder = sqlite3.connect(ledger.path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    with pytest.raises(LedgerError, match="another process has held it for too long"):
        ledger.reserve(gaussian_plan(0.1))
    holder.close()
    reservation = ledger.reserve(gaussian_plan(0.1))
    holder = sqlite3.connect(ledger.path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    with pytest.warns(UserWarning, match="entry 1 stays 'reserved'"), reservation:
        pass  # the fit is done: its result is not lost for a status
    holder.close()
    assert entry_of(ledger)["status"] == "reserved"


def test_a_full_disk(tmp_path, monkeypatch):
    ledger, connect = new_ledger(tmp_path), sqlite3.connect

    def full(*args, **kwargs):
        connection = connect(*args, **kwargs)
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count={pages}")
        return connection

    monkeypatch.setattr(sqlite3, "connect", full)
    with pytest.raises(LedgerError, match=r"the disk is full: make room.*Nothing is released"):
        reserve_all(ledger, [gaussian_plan(1e-3)] * 100)
    monkeypatch.undo()
    entries = ledger.verify()
    ledger.reserve(gaussian_plan(1e-3))
    assert ledger.verify() == entries + 1


@forks
def test_a_read_only_file():
    with tempfile.TemporaryDirectory() as folder:
        ledger = new_ledger(Path(folder))
        ledger.reserve(gaussian_plan(0.1))
        os.chmod(ledger.path, 0o444)
        os.chmod(folder, 0o555)

        def refused():
            if os.getuid() == 0:
                os.setuid(65534)  # nothing is read-only to root
            assert len(ledger.report().entries) == 1
            assert PrivacyLedger(ledger.path, ledger.limit) == ledger
            try:
                ledger.reserve(gaussian_plan(0.1))
            except LedgerError as error:
                return str(error)

        assert "it is read-only: make the file and its folder" in in_forks([refused])[0]
        os.chmod(folder, 0o755)
        assert ledger.verify() == 1


def test_report_as_text_and_json(tmp_path):
    ledger = new_ledger(tmp_path, 1.0, 1e-5)
    budget = PrivacyBudget(1.0, 1e-5, ledger=ledger)
    assert str(ledger.report()).endswith("Entries:   none.")
    for part, name in zip(budget.split([0.25, 0.5, 0.25]), ("ALS", "Sampler", ""), strict=True):
        with ledger.reserve(calibrated_plan(part), estimator=name, shape=(3, 2)):
            pass
    report = ledger.report()
    text = str(report)
    assert "Limit:     epsilon = 1, delta = 1e-05, unit user, neighbours add-remove" in text
    assert "(100.0 %), or epsilon = 1 at delta = 1e-05" in text
    assert "Entries:   3 done." in text
    rows = [line.split() for line in text.splitlines()[-3:]]
    assert [row[3:5] for row in rows] == [["done", "ALS"], ["done", "Sampler"], ["done", "-"]]
    assert [row[-2] for row in rows] == ["25.0", "50.0", "25.0"]
    plain = json.loads(report.to_json())
    assert plain == report.to_dict()
    assert PrivacyBudget(**plain["limit"]) == report.limit
    assert [entry["id"] for entry in plain["entries"]] == [1, 2, 3]
    assert sum(entry["charge"] for entry in report.entries) == pytest.approx(report.spent)
    for _ in range(20):
        ledger.reserve(ReleasePlan(PrivacyBudget(1.0), ()))
    assert "The last 20:" in str(ledger.report())
    assert "Entries:   3 done, 20 reserved." in str(ledger.report())
