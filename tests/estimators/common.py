"""Estimators for the tests of the contract: a small non-private one, and the public ones."""

import inspect
import itertools

import numpy as np
from scipy import sparse

import skdpmf.estimators
from skdpmf.estimators.contract.base import BaseRecommender, ItemModel
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
    for name in dir(skdpmf.estimators):
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
    if fitted._ranking_ is None or taste == 1.0:
        return fitted.decision_function(X)
    model, (lists, unit) = fitted._item_model_, fitted._ranking_
    N, columns = lists.offsets, model.columns
    share, scores = N / N.sum(), np.empty(X.shape)
    for i, (row, z) in enumerate(zip(X, fold_in(model, csr(X)), strict=True)):
        chosen = np.flatnonzero(~np.isnan(row))
        x = lists.factors @ lists.encoder[chosen].sum(axis=0)
        p = z @ columns.T / unit
        p, rated = p - share @ p, p - share @ p
        if getattr(fitted, "_predictor_", "svd") == "knn":  # without the user's offset z[0]
            rated = (fitted.decision_function(X[[i]])[0] - model.offsets - z[0]) / unit
        spread = np.sqrt(share @ p**2)
        x_off, N_off = x - share @ x, N - share @ N
        both = (share @ x_off**2) * (share @ N_off**2)
        alike = (share @ (x_off * N_off)) ** 2 / both if both > 0.0 else 1.0
        b = 0.5 * alike**1.5 / np.hypot(spread, 0.2)
        says = 0.5 * model.offsets / unit + b * rated
        if model.features is not None:
            says += stated_by_features(model, row, chosen, N, unit)
        for j in range(X.shape[1]):
            of_others = lists.encoder[chosen[chosen != j]].sum(axis=0) @ lists.factors[j]
            scores[i, j] = np.log(N[j] + max(of_others, 0.0)) + taste / (1.0 - taste) * says[j]
    return scores


def stated_by_features(model, row, chosen, N, unit):
    """What one row of ratings says of items by their features, in loops over pairs of items."""
    share, n = N / N.sum(), chosen.size
    E = model.features - share @ model.features
    variances = share @ E**2
    E /= np.sqrt(variances + 0.1 * variances.mean())
    e = (row[chosen] - model.offsets[chosen]) / unit
    e -= e.sum() / (n + 4.0)
    products = weights = 0.0
    for a, b in itertools.permutations(range(n), 2):
        products += e[a] * e[b] * (E[chosen[a]] @ E[chosen[b]])
        weights += abs(e[a] * e[b]) * np.linalg.norm(E[chosen[a]]) * np.linalg.norm(E[chosen[b]])
    if weights == 0.0:
        return np.zeros(len(N))
    alike = np.linalg.eigvalsh((E * share[:, None]).T @ E)
    by_chance = np.sqrt(2.0 / (alike.sum() ** 2 / (alike @ alike) * n * (n - 1)))
    g = E @ (e @ E[chosen])
    size = np.sqrt(share @ (g - share @ g) ** 2)
    log_N = np.log(N) - share @ np.log(N)
    return 1.5 * max(products / weights - by_chance, 0.0) * np.sqrt(share @ log_N**2) * g / size


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
