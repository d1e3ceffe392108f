"""The recommenders that `bench_peers.py` compares, each as a function of ratings and settings.

A rating model is ``predict(X, Y, **settings)``: fitted on X, it gives predictions at the stored
entries of Y, same users, in their order. A click model is ``rank(X, known, **settings)``: fitted on
X, it ranks 100 items for each row of `known`, clicked ones left out. Settings have the names of the
library that is called. Peers are imported where they are used.
"""

from collections.abc import Callable
from importlib import import_module
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse
from sgd_solvers import Cornac, Surprise

from skdpmf import (
    AdaptiveWeightALS,
    CacheSGDFactorizer,
    DPCovarianceRecommender,
    DPItemMeans,
    DPMFSampler,
    Pooled,
    PrivacyBudget,
)

N_RANKED = 100
NOT_PRIVATE = PrivacyBudget.nonprivate()


class Model(NamedTuple):
    """A row of the tables: what is called, and the grid of its settings without privacy."""

    name: str
    package: str
    run: Callable
    grid: dict[str, list]
    needs: tuple[str, ...] = ()  # modules
    private: bool = False  # run takes a `budget` and a `random_state`
    note: str = ""


def missing(modules: tuple[str, ...]) -> str:
    """Why what needs these modules cannot run here; "" if it can."""
    for name in modules:
        try:
            import_module(name)
        except ImportError as error:  # also of what is installed and does not fit the others
            return f"{type(error).__name__}: {str(error).partition(' (/')[0]}"
    return ""


# Ratings


def rows_of(R: Any) -> np.ndarray:
    return np.repeat(np.arange(R.shape[0]), np.diff(R.indptr))


def at_entries(Y: Any, factors: Any) -> np.ndarray:
    """Predictions mean + b_i + c_j + <u_i, v_j> at the entries of Y."""
    row, item = rows_of(Y), Y.indices
    products = np.einsum("nk,nk->n", factors.U[row], factors.V[item], dtype=float)
    return factors.mean + factors.user_bias[row] + factors.item_bias[item] + products


def surprise_svd(X, Y, *, n_factors=100, n_epochs=20, **settings):
    solver = Surprise(X)
    solver.start(n_factors, 1)
    solver.fit(settings, n_epochs)
    return at_entries(Y, solver.model())


def surprise_baseline(X, Y, *, reg_u=15, reg_i=10):
    from surprise import BaselineOnly

    trainset, by_item = Surprise(X).trainset, X.tocsc()
    trainset.ir = {  # which SVD has no need of
        item: list(zip(by_item.indices[a:b].tolist(), by_item.data[a:b].tolist(), strict=True))
        for item, (a, b) in enumerate(pairwise(by_item.indptr))
    }
    fitted = BaselineOnly({"method": "als", "reg_u": reg_u, "reg_i": reg_i}, verbose=False)
    fitted.fit(trainset)
    return trainset.global_mean + fitted.bu[rows_of(Y)] + fitted.bi[Y.indices]


def cornac_mf(X, Y, *, k=10, max_iter=20, **settings):
    solver = Cornac(X)
    solver.start(k, 1)
    solver.fit(settings, max_iter)
    return at_entries(Y, solver.model())


def cornac_pmf(X, Y, **settings):
    """Its products go through a sigmoid onto the range of the ratings."""
    from cornac.models import PMF

    fitted = PMF(seed=0, **settings).fit(Cornac(X).dataset)
    products = np.einsum("nk,nk->n", fitted.U[rows_of(Y)], fitted.V[Y.indices], dtype=float)
    low, high = X.data.min(), X.data.max()
    return low + (high - low) / (1.0 + np.exp(-products))


def ours(kind: Any, **fixed: Any) -> Callable:
    """One of our estimators; users are folded in with their rows of X."""

    def predict(X, Y, **settings):
        return kind(**fixed, **settings).fit(X).predict_entries(X, Y).data

    return predict


def private(kind: Any, **fixed: Any) -> Callable:
    """As `ours`, without privacy unless a budget is given."""

    def predict(X, Y, *, budget=NOT_PRIVATE, **settings):
        return ours(kind, **fixed)(X, Y, budget=budget, **settings)

    return predict


RANKS = [16, 64]
RATINGS = (
    Model(
        "BaselineOnly",
        "scikit-surprise",
        surprise_baseline,
        {"reg_u": [5, 10, 20], "reg_i": [2, 5, 10]},
        ("surprise",),
    ),
    Model(
        "SVD",
        "scikit-surprise",
        surprise_svd,
        {"n_factors": RANKS, "reg_all": [0.02, 0.05, 0.1], "n_epochs": [20, 60]},
        ("surprise",),
    ),
    Model(
        "MF, with biases",
        "cornac",
        cornac_mf,
        {"k": RANKS, "lambda_reg": [0.02, 0.05, 0.1], "max_iter": [20, 60]},
        ("cornac",),
    ),
    Model(
        "PMF",
        "cornac",
        cornac_pmf,
        {"k": RANKS[:1], "lambda_reg": [0.0005, 0.001, 0.002], "max_iter": [50]},
        ("cornac",),
        note="one rank and 50 epochs, as it is slow",
    ),
    Model(
        "CacheSGDFactorizer",
        "skdpmf",
        ours(CacheSGDFactorizer, random_state=0),
        {"n_components": RANKS, "alpha": [0.02, 0.04, 0.08]},
    ),
    Model(
        "AdaptiveWeightALS",
        "skdpmf",
        private(AdaptiveWeightALS, solver=Pooled(list_share=None)),  # ratings alone
        {"n_components": RANKS, "alpha": [0.5, 1.0, 2.0]},
        private=True,
    ),
    Model(
        "DPMFSampler",
        "skdpmf",
        private(DPMFSampler),
        {"n_components": RANKS, "alpha": [0.5, 1.0, 2.0]},
        private=True,
    ),
    Model(
        "DPCovarianceRecommender",
        "skdpmf",
        private(DPCovarianceRecommender),
        {"n_components": RANKS, "user_damping": [10.0, 20.0, 40.0]},
        private=True,
    ),
    Model(
        "DPItemMeans",
        "skdpmf",
        private(DPItemMeans),
        {"user_damping": [5.0, 10.0, 20.0]},
        private=True,
    ),
)


# Clicks


def best_unseen(scores: np.ndarray, known: Any) -> np.ndarray:
    """The items of highest score in each row, the clicked ones last."""
    scores = np.array(scores, dtype=float)
    scores[rows_of(known), known.indices] = -np.inf
    return np.argsort(-scores, axis=1, kind="stable")[:, :N_RANKED]


def implicit_als(X, known, **settings):
    """Held-out users are folded in."""
    from implicit.cpu.als import AlternatingLeastSquares

    fitted = AlternatingLeastSquares(random_state=0, num_threads=1, **settings)
    fitted.fit(sparse.csr_matrix(X), show_progress=False)
    rows = sparse.csr_matrix(known)
    users = fitted.recalculate_user(np.arange(rows.shape[0]), rows)
    return best_unseen(users @ fitted.item_factors.T, known)


def with_known(X: Any, known: Any) -> Any:
    """Training rows, then the known clicks of held-out users, for what cannot fold users in."""
    return sparse.csr_matrix(sparse.vstack((X, known)))


def implicit_bpr(X, known, **settings):
    from implicit.cpu.bpr import BayesianPersonalizedRanking

    fitted = BayesianPersonalizedRanking(random_state=0, num_threads=1, **settings)
    fitted.fit(with_known(X, known), show_progress=False)
    return best_unseen(fitted.user_factors[X.shape[0] :] @ fitted.item_factors.T, known)


def cornac_wmf(X, known, **settings):
    from cornac.models import WMF

    fitted = WMF(seed=0, verbose=False, **settings).fit(Cornac(with_known(X, known)).dataset)
    return best_unseen(fitted.U[X.shape[0] :] @ fitted.V.T, known)


def cornac_ease(X, known, **settings):
    """Linear in a user's clicks, so that held-out users need no fit."""
    from cornac.models import EASE

    fitted = EASE(verbose=False, **settings).fit(Cornac(X).dataset)
    return best_unseen(known @ fitted.B, known)


def our_clicks(X, known, *, budget=NOT_PRIVATE, **settings):
    model = AdaptiveWeightALS(budget, feedback="implicit").set_params(**settings)
    return model.fit(X).recommend(known, N_RANKED)[0]


def our_item_items(X, known, *, budget=NOT_PRIVATE, **settings):
    model = DPCovarianceRecommender(budget, feedback="implicit").set_params(**settings)
    return model.fit(X).recommend(known, N_RANKED)[0]


def most_popular(X, known, *, budget=NOT_PRIVATE, random_state=0):
    from bench_clicks import most_popular as ranked

    return ranked(X, known, budget, random_state)


IN_TRAINING = "no fold-in: trained with the known clicks of the held-out users as well"
CLICKS = (
    Model(
        "AlternatingLeastSquares",
        "implicit",
        implicit_als,
        {"factors": RANKS, "regularization": [1.0, 10.0, 30.0], "alpha": [2.0, 8.0]},
        ("implicit",),
    ),
    Model(
        "BayesianPersonalizedRanking",
        "implicit",
        implicit_bpr,
        {"factors": RANKS, "learning_rate": [0.01, 0.03, 0.1]},
        ("implicit",),
        note=IN_TRAINING,
    ),
    Model(
        "WMF",
        "cornac",
        cornac_wmf,
        {"k": RANKS, "lambda_u": [0.003, 0.01, 0.03], "b": [0.01, 0.1]},
        ("cornac", "tensorflow"),
        note=IN_TRAINING,
    ),
    Model(
        "EASE",
        "cornac",
        cornac_ease,
        {"lamb": [100, 200, 500, 1000], "posB": [True, False]},
        ("cornac",),
    ),
    Model(
        "AdaptiveWeightALS",
        "skdpmf",
        our_clicks,
        {
            "n_components": [64, 128],
            "alpha": [0.5, 1.0, 2.0, 8.0],
            "max_iter": [5, 20],
            "feedback__unobserved_weight": [0.1, 0.4],
        },
        private=True,
    ),
    Model(
        "DPCovarianceRecommender",
        "skdpmf",
        our_item_items,
        {},
        private=True,
    ),
    Model("most popular", "bench_clicks.py", most_popular, {}, private=True),
)


# Item means with one rating protected


def with_means(means: np.ndarray, X: Any, Y: Any, damping: float = 10.0) -> np.ndarray:
    """Predictions from item means and users' damped offsets, as `DPItemMeans` makes them."""
    row, n = rows_of(X), np.diff(X.indptr)
    total = np.bincount(row, X.data - means[X.indices], minlength=X.shape[0])
    return means[Y.indices] + (total / (n + damping))[rows_of(Y)]


def diffprivlib_means(X, Y, *, epsilon, rating_range, random_state):
    """One `tools.mean` an item: a rating has one item, so that each mean has the whole epsilon.

    The mean's sensitivity, range / n, takes n as public: only the value of a rating is protected,
    and not who rated what. An item without ratings has the middle of the range.
    """
    from diffprivlib.tools import mean

    rng = np.random.RandomState(random_state)
    by_item = sparse.csc_array(X)
    means = np.full(X.shape[1], np.mean(rating_range))
    for item in np.flatnonzero(np.diff(by_item.indptr)):
        own = by_item.data[by_item.indptr[item] : by_item.indptr[item + 1]]
        means[item] = mean(own, epsilon=epsilon, bounds=rating_range, random_state=rng)
    return with_means(means, X, Y)
