"""All central private mechanisms, one line each: what the tests of this folder run over.

A new mechanism joins by a line of `CASES`. Its estimator has ``plan(n_items, n_rows)``, ``fit(X)``
and ``privacy_spent_``; all else that it leaves on itself must follow from the releases.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from sklearn.frozen import FrozenEstimator

import skdpmf as sk
from skdpmf.data.validation import as_rating_matrix
from skdpmf.exceptions import PrivacyParameterError
from skdpmf.mechanisms import multi_task_ridge as tasks_solver
from skdpmf.preprocessing import DPItemSelector
from skdpmf.privacy.recording import record_releases
from tests.built import built
from tests.core.audit import HIGH, LOW, N_ITEMS, N_USERS, SLOT, base_clicks, base_ratings

NEIGHBORS = ("add-remove", "replace")


class Case(NamedTuple):
    """One mechanism with its data, for one neighbouring relation."""

    name: str
    estimator: Callable[..., Any]
    epsilon: float
    params: dict[str, Any]
    neighbors: str = "add-remove"
    unit: str = "user"
    delta: float = 1e-5
    clicks: bool = False
    levels: Any = None  # privacy levels of users

    @property
    def budget(self):
        return sk.PrivacyBudget(self.epsilon, self.delta, unit=self.unit, neighbors=self.neighbors)

    @property
    def ratings(self):
        return base_clicks() if self.clicks else base_ratings()

    def model(self, **params):
        return built(self.estimator, self.budget, **{"random_state": 0, **self.params, **params})

    def fit(self, X=None, replay=None, **params):
        """Return the fitted model and its releases."""
        model, X = self.model(**params), self.ratings if X is None else X
        more = {} if self.levels is None else {"user_epsilon": self.levels}
        with record_releases(replay) as records:
            model.fit(X, **more)
        return model, records

    def replayed(self, X, records, **params):
        """Return the model and the releases of a replayed fit, whose shapes must be the same."""
        try:
            return self.fit(X, records, **params)
        except PrivacyParameterError as error:
            raise AssertionError(str(error)) from error

    def plan(self):
        # Laplace noise has no delta to fit factors into: plans know the number of rows
        return self.model().plan(N_ITEMS, N_USERS)


class Tasks:
    """`private_multi_task_ridge` as an estimator: ratings are targets, features are fixed."""

    def __init__(self, budget, *, random_state=None, **params):
        self._params = {"budget": budget, "random_state": random_state, **params}
        self.coef = None

    def get_params(self, deep=True):
        return {"_params": 0}

    def plan(self, n_items, n_rows):
        given = {"alpha": 1.0, "weighting": "adaptive", "weight_exponent": 0.5}
        given |= {"max_tasks_per_user": None, **self._params}
        del given["random_state"]
        settings = tasks_solver.Settings(max_norm=1.0, max_value=1.0, **_without_budget(given))
        return tasks_solver.make_plan(self._params["budget"], settings, n_items, 2)

    def fit(self, X):
        features = np.random.default_rng(4).normal(size=(N_USERS, N_ITEMS, 2))[:, 0]
        features[SLOT] = 1e6
        bounds = {"max_norm": 1.0, "max_value": 1.0}
        result = sk.private_multi_task_ridge(features, X - 3.0, **bounds, **self._params)
        self.coef, self.privacy_spent_ = result.coef, result.privacy_spent
        return self


def _without_budget(params):
    return {name: value for name, value in params.items() if name != "budget"}


def _levels(own):
    """Users' privacy levels: the given one in the audited slot."""
    values = np.random.default_rng(5).choice([0.0, 5.0, 20.0], N_USERS, p=[0.1, 0.2, 0.7])
    values[SLOT] = own
    return values


_SMALL = {"n_components": 3, "max_iter": 3, "rating_range": (LOW, HIGH)}
_CLICKS = {**_SMALL, "feedback": "implicit"}
_TAIL = {"weighting": "tail", "max_ratings_per_user": 5}
_UNIFORM = {"weighting": "uniform", "max_ratings_per_user": 5}
_RANGE = {"rating_range": (LOW, HIGH)}
_HEAD = {**_RANGE, "n_components": 3, "shares": (0.1, 0.4, 0.5)}
_RATING = {**_RANGE, "n_components": 3, "shares": (0.0, 0.4, 0.6)}
_AUTO = {**_RANGE, "n_components": 3}
_CLICKED = {"public": np.random.default_rng(7).integers(0, 2, (9, N_ITEMS)).astype(float)}
_PUBLIC = {"public": as_rating_matrix(np.delete(base_ratings(), SLOT, axis=0)[:300])}
_EXACT = sk.AdaptiveWeightALS(sk.PrivacyBudget.nonprivate(), random_state=0, **_RANGE)
_MODEL = {"public": FrozenEstimator(_EXACT.fit(_PUBLIC["public"]))}
_OTHERS = {"public": as_rating_matrix(6.0 - base_ratings()[:300])}
_FEATURES = {"item_features": np.random.default_rng(6).normal(size=(N_ITEMS, 4))}

als, clicks = (
    lambda name, epsilon, solver, **more: Case(
        f"als {name}", sk.AdaptiveWeightALS, epsilon, {**_SMALL, "solver": solver, **more}
    ),
    lambda name, epsilon, solver, **more: Case(
        f"clicks {name}",
        sk.AdaptiveWeightALS,
        epsilon,
        {**_CLICKS, "solver": solver, **more},
        clicks=True,
    ),
)
means = partial(Case, estimator=sk.DPItemMeans, params=_RANGE)
covariance = partial(Case, estimator=sk.DPCovarianceRecommender, epsilon=20.0)
lists = partial(
    Case, estimator=sk.DPCovarianceRecommender, params={"feedback": "implicit"}, clicks=True
)
sampler = partial(Case, estimator=sk.DPMFSampler, params=_SMALL)
selector = partial(Case, estimator=DPItemSelector, epsilon=2.0, params={"n_items": 0.4})
tasks = partial(Case, estimator=Tasks, epsilon=20.0)

_ALL = [
    als("pooled", 50.0, "pooled"),
    als("pooled, rank 0", 0.1, "pooled"),
    als("pooled, rank 0 with lists", 8.0, "pooled"),
    als("pooled, without lists", 50.0, "pooled", list_share=None),
    als("pooled, without lists, rank 0 later", 50.0, "pooled", list_share=None, n_components=1),
    als("pooled, trimmed", 50.0, "pooled", max_ratings_per_user=9),
    als("pooled, features", 50.0, "pooled", **_FEATURES),
    als("pooled, other public people", 50.0, "pooled", **_OTHERS),
    als("pooled, led by public people", 20.0, "pooled", **_PUBLIC),
    als("pooled, led by a public model", 20.0, "pooled", **_MODEL),
    als("dpals", 20.0, "dpals"),
    als("dpals, rank 0", 0.1, "dpals"),
    als("dpals, trimmed", 20.0, "dpals", max_ratings_per_user=6),
    als("dpals, strong weights", 20.0, "dpals", weight_exponent=1.0),
    als("dpals, tail", 40.0, "dpals", **_TAIL),
    als("dpals, uniform", 40.0, "dpals", **_UNIFORM),
    als("dpals, without item means", 20.0, "dpals", item_means=False),
    clicks("pooled", 50.0, "pooled"),
    clicks("pooled, rank 0", 0.1, "pooled"),
    clicks("pooled, features", 50.0, "pooled", **_FEATURES),
    clicks("pooled, public people", 50.0, "pooled", **_CLICKED),
    clicks("pooled, rank 0, public people", 0.1, "pooled", **_CLICKED),
    clicks("dpals", 50.0, "dpals"),
    clicks("dpals, rank 0", 0.1, "dpals"),
    clicks("dpals, tail", 50.0, "dpals", **_TAIL),
    clicks("dpals, uniform, trimmed", 50.0, "dpals", **_UNIFORM),
    means("means of users", epsilon=4.0),
    means("means of users, features", epsilon=4.0, params={**_RANGE, **_FEATURES}),
    means("means of users, public people", epsilon=4.0, params={**_RANGE, **_PUBLIC}),
    means("means of users, Laplace", epsilon=4.0, delta=0.0),
    means("means of ratings", epsilon=4.0, unit="rating"),
    means("means of ratings, features", epsilon=4.0, unit="rating", params={**_RANGE, **_FEATURES}),
    means("means of ratings, Laplace", epsilon=4.0, unit="rating", delta=0.0),
    covariance("covariance of users", params=_HEAD),
    covariance("covariance of users, Laplace", params={**_HEAD, "noise": "laplace"}, delta=0.0),
    covariance("covariance of users, auto", params={**_AUTO, "random_state": 1}),
    covariance("covariance of users, neighbours", params={**_HEAD, "predictor": "knn"}),
    covariance("covariance of users, none", epsilon=0.5, params=_AUTO),
    covariance("covariance of users, public people", params={**_HEAD, **_PUBLIC}),
    covariance("covariance of users, none but public", epsilon=0.5, params={**_AUTO, **_PUBLIC}),
    covariance("covariance of ratings", params=_RATING, unit="rating"),
    covariance(
        "covariance of ratings, Laplace",
        params={**_RATING, "noise": "laplace"},
        unit="rating",
        delta=0.0,
    ),
    covariance("covariance of ratings, none", epsilon=0.1, params=_AUTO, unit="rating"),
    lists("lists of clicks", epsilon=20.0),
    lists("lists of clicks, features", epsilon=20.0, params={"feedback": "implicit", **_FEATURES}),
    lists("lists of clicks, none", epsilon=0.5),
    lists("lists of clicks, public", epsilon=20.0, params={"feedback": "implicit", **_CLICKED}),
    sampler("sampler", epsilon=20.0),
    sampler("sampler, rank 0", epsilon=0.1),
    sampler("sampler, features", epsilon=20.0, params={**_SMALL, **_FEATURES}),
    sampler("sampler, public people", epsilon=20.0, params={**_SMALL, **_PUBLIC}),
    sampler("sampler, other public people", epsilon=40.0, params={**_SMALL, **_OTHERS}),
    sampler("sampler, trimmed", epsilon=20.0, params={**_SMALL, "max_ratings_per_user": 6}),
    sampler(
        "sampler, levels",
        epsilon=20.0,
        params={**_SMALL, "random_state": 1},
        levels=_levels(5.0),
    ),
    sampler(
        "sampler, level 0", epsilon=20.0, params={**_SMALL, "random_state": 1}, levels=_levels(0.0)
    ),
    selector("selector of users"),
    selector("selector of users, Laplace", delta=0.0),
    selector("selector of ratings", unit="rating"),
    selector("selector of ratings, Laplace", unit="rating", delta=0.0),
    tasks("tasks", params={}),
    tasks("tasks, trimmed", params={"max_tasks_per_user": 4}),
    tasks("tasks, tail", params={"weighting": "tail", "max_tasks_per_user": 4}),
    tasks("tasks, uniform", params={"weighting": "uniform", "max_tasks_per_user": 4}),
]
CASES = {one.name: one for one in _ALL}
assert len(CASES) == len(_ALL)
