"""Estimators for the tests of the contract: a small non-private one, and the public ones."""

import inspect

import numpy as np
from scipy import sparse

import skdpmf.estimators
from skdpmf.estimators.contract.base import BaseRecommender, ItemModel
from skdpmf.estimators.contract.recommend import _CLEAR as CLEAR
from skdpmf.estimators.contract.recommend import _FEW as FEW
from skdpmf.estimators.contract.recommend import _LEAST_SPREAD as LEAST_SPREAD
from skdpmf.estimators.contract.recommend import _MEANS as MEANS
from skdpmf.estimators.contract.recommend import _POWER as POWER
from skdpmf.estimators.contract.recommend import _STATED as STATED
from skdpmf.estimators.contract.recommend import _TASTES as TASTES
from skdpmf.estimators.contract.recommend import fold_in
from tests.matrices import csr


class MeansSVD(BaseRecommender):
    """Item means plus an SVD of the filled residuals; the fold-in has a user offset as well."""

    def __init__(
        self, n_components=2, *, rating_range=(1.0, 5.0), max_iter=2, random_state=None, n_jobs=None
    ):
        self.n_components = n_components
        self.rating_range = rating_range
        self.max_iter = max_iter
        self.random_state = random_state
        self.n_jobs = n_jobs

    def plan(self, n_items, n_rows=None):
        return {}

    def _fit(self, R, y):
        n_items = R.shape[1]
        centre = sum(self.rating_range) / 2
        counts = np.bincount(R.indices, minlength=n_items)
        sums = np.bincount(R.indices, weights=R.data - centre, minlength=n_items)
        means = centre + sums / (counts + 1.0)
        residuals = sparse.csr_array((R.data - means[R.indices], R.indices, R.indptr), R.shape)
        filled = residuals.toarray()
        for _ in self._rounds():
            _, s, vt = np.linalg.svd(filled, full_matrices=False)
            # an SVD leaves the signs open; a fit must repeat in any layout of X
            signs = np.sign(np.take_along_axis(vt, np.abs(vt).argmax(axis=1)[:, None], 1)[:, 0])
        self.n_iter_ = self.max_iter
        factors = np.zeros((self.n_components, n_items))
        k = min(self.n_components, s.size)
        factors[:k] = (signs * np.sqrt(s))[:k, None] * vt[:k]
        self.components_ = factors
        self._item_model_ = ItemModel(
            means, np.column_stack([np.ones(n_items), factors.T]), np.eye(self.n_components + 1)
        )


def public_estimators():
    """One instance of each public estimator, with a budget where it asks for one."""
    found = []
    for name in getattr(skdpmf.estimators, "__all__", ()):
        estimator = getattr(skdpmf.estimators, name)
        if inspect.isclass(estimator) and not inspect.isabstract(estimator):
            found.append(_instance(estimator))
    return found


def _instance(estimator):
    if "budget" not in inspect.signature(estimator).parameters:
        return estimator()
    from skdpmf.privacy import PrivacyBudget

    return estimator(PrivacyBudget(1.0, 1e-5))


def is_private(fitted):
    """Whether a fitted estimator must keep nothing of its users: all but those that say no."""
    statement = getattr(fitted, "privacy_spent_", None)
    return statement is None or statement.is_private


def ranking_scores(fitted, X, taste=0.5):
    """What `recommend` ranks a dense X by, in loops over users and items."""
    ranking, model = fitted._ranking_, fitted._item_model_
    if ranking is None or taste == 1.0:
        return fitted.decision_function(X)
    odds, lists, Z = taste / (1.0 - taste), ranking.lists, fold_in(model, csr(X))
    N, share, d = lists.offsets, lists.offsets / lists.offsets.sum(), model.factors.shape[1]
    columns = model.columns - share @ model.columns
    C = np.column_stack((N, lists.factors))
    C = (C - share @ C) * np.sqrt(share)[:, None]
    scores = np.empty(X.shape)
    for i, row in enumerate(X):
        chosen = np.flatnonzero(~np.isnan(row))
        p, t = (columns[:, a:] @ Z[i, a:] / ranking.unit for a in (0, d))
        spread, clear = (np.sqrt(share @ part**2) for part in (p, t))
        by_count, by_choice = C[:, 0], C[:, 1:] @ lists.encoder[chosen].sum(axis=0)
        moved = by_choice @ by_choice * (by_count @ by_count)
        known = (by_count @ by_choice) ** 2 / moved if moved > 1e-300 else 1.0
        b = TASTES * known**POWER / np.hypot(spread, LEAST_SPREAD)
        few = STATED * max(1.0 / max(chosen.size, 1) - 1.0 / FEW, 0.0) * min(clear / CLEAR, 1.0)
        for j in range(X.shape[1]):
            z = lists.encoder[chosen[chosen != j]].sum(axis=0)
            by_rating = MEANS * model.offsets[j] / ranking.unit + b * p[j] + few * t[j]
            scores[i, j] = np.log(N[j] + max(z @ lists.factors[j], 0.0)) + odds * by_rating
    return scores


def ratings(n_users=40, n_items=12, density=0.4, seed=0):
    """A dense matrix of ratings 1..5 of rank one with NaN for unknown; no row is all unknown."""
    rng = np.random.default_rng(seed)
    mean = 3 + rng.normal(size=(n_users, 1)) * rng.normal(size=n_items)
    X = np.clip(np.rint(mean + 0.5 * rng.normal(size=(n_users, n_items))), 1, 5)
    unknown = rng.random(X.shape) > density
    unknown[np.arange(n_users), rng.integers(n_items, size=n_users)] = False
    X[unknown] = np.nan
    return X


def as_coo(X):
    """The known entries of a dense matrix, in reverse, so that nothing leans on their order."""
    rows, columns = np.nonzero(~np.isnan(X))
    return sparse.coo_array((X[rows, columns][::-1], (rows[::-1], columns[::-1])), shape=X.shape)
