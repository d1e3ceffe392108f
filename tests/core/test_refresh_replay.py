"""Replays on neighbouring data see each bug of a refresh.

Honest refreshes go through `audit_year` in `tests.estimators.test_refresh`.
"""

from dataclasses import replace
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from scipy import sparse
from sklearn.base import clone

from skdpmf import PrivacyLedger
from skdpmf.data.labelled_rows import RatingMatrix
from skdpmf.estimators.contract.private import PrivateRecommender
from skdpmf.privacy import frame
from skdpmf.privacy.recording import record_releases
from tests.core.audit import N_ITEMS, N_USERS, SLOT, check_noise_law, check_plan, with_row
from tests.estimators.test_refresh import MODELS, audit_year, months, year

pytestmark = pytest.mark.parametrize("name", ["means", "clicks", "als", "als, clicks"])


def check_plans(model):
    """Each month makes its plan's releases, with their noise."""
    for X, fitted, made in zip(months(), *year(model, months()), strict=True):
        stated = fitted.privacy_spent_
        check_plan(replace(fitted.plan(*X.shape[::-1]), notes=stated.notes), stated, made)
        check_noise_law(made)


def check_noise_is_apart(model):
    """Seeded months on the same rows have keys of their own, and so independent noise."""
    fitted, records = clone(model), []
    for X in [months()[0]] * 3:
        with record_releases() as made:
            fitted = fitted.refresh(X) if records else fitted.fit(X)
        records.append(made)
    assert len({key for made in records for key in made._keys}) == 3, "months share a key"
    check_noise_law([*records[0], *records[1], *records[2]])


def check_spent(model):
    """A person who has taken part as often as a ledger allows moves no refresh."""
    made, ids = [], [[f"{t}, {i}" if i != SLOT else "u" for i in range(N_USERS)] for t in range(3)]
    for row in (np.full(N_ITEMS, 5.0), None):
        rows = [with_row(X, row) if t else X for t, X in enumerate(months())]
        with TemporaryDirectory() as folder:
            ledger = PrivacyLedger(f"{folder}/year", limit=model.budget, at_most=1)
            budget = clone(model.budget).set_params(ledger=ledger)
            people = clone(model).set_params(budget=budget, random_state=None)
            made.append(year(people, list(map(RatingMatrix, rows, ids)), *made)[1])
    for month in zip(*made, strict=True):
        for one, two in zip(*month, strict=True):
            assert np.array_equal(one.statistic, two.statistic), f"who is spent moves {one}"


def little_noise(patch):
    real = frame.Frame.rows

    def quiet(self, *args, known=(), **more):
        R, noise = real(self, *args, known=known, **more)
        if known:
            made = noise.blocks
            noise.blocks = lambda **terms: made(**{**terms, "noise_multiplier": 0.01})
        return R, noise

    patch.setattr(frame.Frame, "rows", quiet)


def without_knowledge(patch):
    real = frame.Frame.rows
    patch.setattr(
        frame.Frame, "rows", lambda self, *args, known=(), **more: real(self, *args, **more)
    )


def with_everybody(patch):
    patch.setattr(frame, "with_rows", lambda R, rows: R)


def refreshed_by(change):
    """Fit each refresh on what is made of its rows, those of the month before, and its `Fit`."""

    def plant(patch):
        real, seen = PrivateRecommender._fit, []

        def fit(self, R, y, fit):
            seen.append(R)
            R, fit = (R, fit) if fit.start is None else change(R, seen[-2], fit)
            real(self, R, y, fit=fit)

        patch.setattr(PrivateRecommender, "_fit", fit)

    return plant


def with_private_start(R, before, fit):
    known = fit.start.known._replace(counts=1.0 * np.bincount(before.indices, minlength=R.shape[1]))
    return R, fit._replace(start=fit.start._replace(known=known))


def with_rows_before(R, before, fit):
    return sparse.vstack((before, R), format="csr"), fit


BUGS = {
    "little noise": (little_noise, check_plans, "multiplier of"),
    "private start": (refreshed_by(with_private_start), audit_year, "from more than the"),
    "rows that stay": (refreshed_by(with_rows_before), audit_year, "month 1 of 0"),
    "shared noise": (without_knowledge, check_noise_is_apart, "share a key"),
    "whoever is spent": (with_everybody, check_spent, "who is spent"),
}


@pytest.mark.parametrize("check", [check_plans, check_noise_is_apart, check_spent])
def test_an_honest_refresh_passes(check, name):
    check(MODELS[name])


@pytest.mark.parametrize("bug", BUGS)
def test_a_bug_of_a_refresh_is_seen(bug, name, monkeypatch):
    plant, check, found = BUGS[bug]
    plant(monkeypatch)
    with pytest.raises(AssertionError, match=found):
        check(MODELS[name])
