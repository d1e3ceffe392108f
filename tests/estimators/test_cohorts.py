"""Fits whose ledger is by person: replay of a year, planted mistakes, and all ways to bring ids."""

import pickle
from contextlib import suppress

import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline

from skdpmf import (
    AdaptiveWeightALS,
    DPCovarianceRecommender,
    DPItemMeans,
    DPMFSampler,
    LocalDPGDDR,
    PrivacyBudget,
    private_multi_task_ridge,
)
from skdpmf.books.ledger_cohorts import Cohorts
from skdpmf.data import ParquetRatings
from skdpmf.data.labelled_rows import RatingMatrix
from skdpmf.data.validation import as_rating_matrix
from skdpmf.evaluation import PrivateSearchCV, RatingRegressor
from skdpmf.exceptions import BudgetExceededError, PrivacyParameterError
from skdpmf.preprocessing import ContributionBounder, DPItemSelector
from skdpmf.privacy import frame
from skdpmf.privacy.recording import record_releases
from tests.books.ledgers import gaussian_plan, new_ledger
from tests.built import built
from tests.core.audit import ROUNDING, fitted_state
from tests.estimators.common import ratings

N_USERS, N_ITEMS = 40, 6
X = ratings(n_users=N_USERS, n_items=N_ITEMS)
NAMES = np.array([f"person {n}" for n in range(N_USERS)], object)
KINDS = {
    AdaptiveWeightALS: {"n_components": 2, "max_iter": 2},
    DPMFSampler: {"n_components": 2, "max_iter": 3},
    DPCovarianceRecommender: {"n_components": 2},
    DPItemMeans: {},
    LocalDPGDDR: {"n_components": 2, "method": "gradient", "max_iter": 2},
    DPItemSelector: {},
}
every_class = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)


def book(folder, at_most=1, epsilon=20.0, name="people", **settings):
    return new_ledger(folder, epsilon, at_most=at_most, name=name, allow_seeded=True, **settings)


def make(kind, ledger, epsilon=1.0, **params):
    relation = {"neighbors": ledger.neighbors}
    budget = PrivacyBudget(epsilon, 1e-5, ledger=ledger, **relation)
    return built(kind, budget, **{"random_state": 0, **KINDS[kind], **params})


def labelled(rows=slice(None), values=X, users=NAMES):
    return RatingMatrix(as_rating_matrix(values[rows]), users[rows])


# -- a left-out row counts as empty

SPENT = np.arange(N_USERS) % 3 == 0


def matrix_of(folder, values, users):
    return RatingMatrix(as_rating_matrix(values), users)


def frame_of(folder, values, users):
    return pd.DataFrame(values, index=users)


def parts_of(folder, values, users):
    pytest.importorskip("pyarrow")
    return ParquetRatings.write(folder / "parts", frame_of(folder, values, users), rows_per_part=7)


def fit_beside(folder, kind, source=matrix_of, **params):
    """A fit with a third of the people spent, and the same fit with their rows empty."""
    relation = {"neighbors": "replace"} if kind is LocalDPGDDR else {}
    ledger, other = (book(folder, name=name, **relation) for name in "ab")
    spend = gaussian_plan(0.1, budget=PrivacyBudget(1.0, 1e-5, **relation))
    ledger.reserve(spend, users=NAMES[SPENT])
    model = make(kind, ledger, **params).fit(source(folder, X, NAMES))
    emptied = X.copy()
    emptied[SPENT] = np.nan
    twin = make(kind, other, **params).fit(matrix_of(folder, emptied, NAMES))
    assert ledger.report().entries[-1]["left_out"] == SPENT.sum()
    assert ledger.verify() == 2
    return model, twin


def assert_same(model, twin):
    names = ("components_", "item_means_", "counts_", "_statement", "_item_model_")
    states = [fitted_state(one) for one in (model, twin)]
    for name in names:
        assert states[0].get(name) == states[1].get(name), f"{name} shows who was left out"


@every_class
def test_a_left_out_row_counts_as_empty(tmp_path, kind):
    """In all sums, and in the noise key of a seeded fit."""
    model, twin = fit_beside(tmp_path, kind)
    assert_same(model, twin)
    assert "left out" not in str(model.privacy_spent_)
    assert b"person 3" not in pickle.dumps(model)


@pytest.mark.parametrize("source", [frame_of, parts_of])
@pytest.mark.parametrize("kind", [DPItemMeans, DPItemSelector], ids=lambda kind: kind.__name__)
def test_ids_come_in_any_container(tmp_path, kind, source):
    model, twin = fit_beside(tmp_path, kind, source)
    assert_same(model, twin)


def unmasked_key(monkeypatch):
    kept, masked, digest = {}, frame.with_rows, frame.data_digest

    def keep(R, rows):
        kept["R"] = R
        return masked(R, rows)

    monkeypatch.setattr(frame, "with_rows", keep)
    monkeypatch.setattr(frame, "data_digest", lambda R, *more: digest(kept["R"], *more))


def unmasked_rows(monkeypatch):
    monkeypatch.setattr(frame, "with_rows", lambda R, rows: R)


@pytest.mark.parametrize("plant", [unmasked_key, unmasked_rows])
def test_planted_a_left_out_row_is_seen(tmp_path, monkeypatch, plant):
    plant(monkeypatch)
    model, twin = fit_beside(tmp_path, DPItemMeans)
    with pytest.raises(AssertionError, match="shows who was left out"):
        assert_same(model, twin)


# -- a year on neighbours

MONTHS, AT_MOST, SLOT = 5, 2, 4
COHORTS = [slice(0, 24), slice(4, 30), slice(8, 36), slice(2, 40), slice(0, 40)]
ATTENDS = (0, 1, 3, 4)  # the months in which the person of the slot brings a row
ROW = np.where(np.arange(N_ITEMS) % 2, 5.0, 1.0)


def year(folder, kind, *, present, replay=(None,) * MONTHS):
    """Releases of all months, and who of the others takes part."""
    ledger, months = book(folder, AT_MOST, 3.0), []
    level = 1.0
    for month, cohort in enumerate(COHORTS):
        values, users = X.copy(), NAMES.copy()
        values[SLOT], users[SLOT] = np.nan, None
        if present and month in ATTENDS:
            values[SLOT], users[SLOT] = ROW, NAMES[SLOT]
        masks, reserve = [], ledger.reserve

        def kept(*plan, reserve=reserve, masks=masks, **record):
            reservation = reserve(*plan, **record)
            masks.append(reservation.included)
            return reservation

        ledger.reserve = kept
        with record_releases(replay[month]) as records, suppress(BudgetExceededError):
            make(kind, ledger, level, random_state=None).fit(labelled(cohort, values, users))
        ledger.reserve = reserve
        others = masks[0] if masks else np.zeros(cohort.stop - cohort.start, bool)
        months.append(
            (records, np.delete(others, SLOT - cohort.start) if cohort.start <= SLOT else others)
        )
        if records and records[0].output.flat[0] > 0.0:
            level = 0.8  # a plan that earlier results choose
    return ledger, months


def audit(folder, kind):
    """Raise AssertionError where one person moves more, or anybody else, in all of the year."""
    for name in ("here", "gone"):
        (folder / name).mkdir()
    ledger, here = year(folder / "here", kind, present=True)
    replay = [records for records, _ in here]
    _, gone = year(folder / "gone", kind, present=False, replay=replay)
    cost, moved = 0.0, []
    for month, ((with_, others), (without, same)) in enumerate(zip(here, gone, strict=True)):
        assert others.tolist() == same.tolist(), f"month {month}: others' inclusion changes"
        far = 0.0
        for one, two in zip(with_, without, strict=True):
            distance = one.distance(two)
            assert distance <= one.sensitivity * ROUNDING, f"month {month}: {one}"
            far += (distance / (one.sensitivity * one.noise_multiplier)) ** 2
        if far:
            moved.append(month)
        cost += far
    assert moved == [0, 1], f"the person takes part in months {moved}"
    assert cost <= ledger.report().allowed.number * ROUNDING
    return cost


CENTRAL = [kind for kind in KINDS if kind is not LocalDPGDDR]


@pytest.mark.parametrize("kind", CENTRAL, ids=lambda kind: kind.__name__)
def test_a_person_moves_no_more_in_a_year_than_the_limit_allows(tmp_path, kind):
    assert audit(tmp_path, kind) > 0.0


def charged_to_nobody(self, entry, keys, add=Cohorts.add):
    add(self, entry, keys[:, :0])


def by_others(self, keys, taken_part=Cohorts.taken_part):
    times, spent = taken_part(self, keys)
    return times + times.sum() % 2, spent


@pytest.mark.parametrize(
    ("name", "planted", "message"),
    [
        ("add", charged_to_nobody, "takes part in months"),
        ("taken_part", by_others, "others' inclusion changes"),
    ],
)
def test_planted_accounts(tmp_path, monkeypatch, name, planted, message):
    monkeypatch.setattr(Cohorts, name, planted)
    with pytest.raises(AssertionError, match=message):
        audit(tmp_path, DPItemMeans)


def test_planted_a_left_out_row_moves_a_release(tmp_path, monkeypatch):
    unmasked_rows(monkeypatch)
    with pytest.raises(AssertionError, match=r"takes part in months \[0, 1, 3, 4\]"):
        audit(tmp_path, DPItemMeans)


# -- what it says, and what it refuses


def test_the_statement_has_the_lifetime_and_the_rule(tmp_path):
    model = make(DPItemMeans, book(tmp_path, 3)).fit(labelled())
    text = " ".join(str(model.privacy_spent_).split())
    assert "each person takes part in at most 3, and all of them together have epsilon 20" in text
    assert "That depends on this person's own fits alone." in text
    plain = DPItemMeans(PrivacyBudget(1.0, 1e-5)).fit(X).privacy_spent_
    assert "each person takes part" not in str(plain)


@pytest.mark.parametrize(
    "without", [X, sparse.csr_array(np.nan_to_num(X)), pd.DataFrame(X), RatingMatrix(X)]
)
def test_rows_without_ids_are_refused(tmp_path, without):
    ledger = book(tmp_path)
    with pytest.raises(PrivacyParameterError, match="pass a RatingMatrix of ratings_to_matrix"):
        make(DPItemMeans, ledger).fit(without)
    assert ledger.verify() == 0


def test_what_cannot_be_by_person_is_refused(tmp_path):
    ledger = book(tmp_path)
    budget = PrivacyBudget(1.0, 1e-5, ledger=ledger)
    search = PrivateSearchCV(
        DPItemMeans(PrivacyBudget(1.0, 1e-5)), {"user_damping": [1.0, 5.0]}, budget=budget
    )
    with pytest.raises(PrivacyParameterError, match="must be None for a private search"):
        search.fit(labelled())
    with pytest.raises(PrivacyParameterError, match=r"users=None .* budget.without_ledger"):
        private_multi_task_ridge(X, X, budget, max_norm=1.0, max_value=1.0)
    table = pd.DataFrame({"user": ["a", "b", "a"], "item": [1, 1, 2]})
    with pytest.raises(PrivacyParameterError, match="users=None must be ids"):
        RatingRegressor(DPItemMeans(budget)).fit(table, [1.0, 2.0, 3.0])
    assert ledger.verify() == 0


# -- pipelines and searches


def pipeline(ledger):
    first, second = PrivacyBudget(2.0, 1e-5, ledger=ledger).split([0.3, 0.7])
    return make_pipeline(
        ContributionBounder(max_ratings_per_user=4), DPItemSelector(first), DPItemMeans(second)
    )


@pytest.mark.parametrize("source", [matrix_of, frame_of])
def test_steps_of_a_pipeline_are_fits_of_their_own(tmp_path, source):
    ledger = book(tmp_path, 2)
    pipeline(ledger).fit(source(tmp_path, X, NAMES))
    assert [entry["people"] for entry in ledger.report().entries] == [N_USERS] * 2
    with pytest.raises(BudgetExceededError):
        pipeline(ledger).fit(source(tmp_path, X, NAMES))
    once = book(tmp_path, 1, name="once")
    with pytest.raises(BudgetExceededError, match="a private step of a pipeline"):
        pipeline(once).fit(source(tmp_path, X, NAMES))
    assert once.verify() == 1


@pytest.mark.parametrize("source", [matrix_of, frame_of])
def test_a_stock_search_charges_the_people_of_each_fold(tmp_path, source):
    ledger = book(tmp_path, 4)
    estimator = make(DPItemMeans, ledger, random_state=None)
    search = GridSearchCV(estimator, {"user_damping": [5.0]}, cv=2, error_score="raise")
    search.fit(source(tmp_path, X, NAMES))
    report = ledger.report()
    assert [entry["people"] for entry in report.entries] == [20, 20, 40]
    assert (report.n_people, report.n_spent) == (N_USERS, 0)
    search.fit(source(tmp_path, X, NAMES))
    with pytest.raises(BudgetExceededError):
        search.fit(source(tmp_path, X, NAMES))
