"""Parameters and ratings of any size give finite models; the error of defaults on MovieLens."""

import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import skdpmf as sk
from skdpmf.data import make_ratings, ratings_to_matrix, read_ratings
from skdpmf.evaluation import split_table
from tests.built import built

WITH_COVARIANCE = {"shares": (0.1, 0.3, 0.6)}  # whatever the noise
POSTERIOR = {"guarantee": "posterior", "max_iter": 2, "n_components": 3}
KINDS = {
    "pooled": (sk.AdaptiveWeightALS, {"max_iter": 2}),
    "dpals": (sk.AdaptiveWeightALS, {"max_iter": 2, "solver": "dpals"}),
    "svd": (sk.DPCovarianceRecommender, WITH_COVARIANCE),
    "svd of ratings": (sk.DPCovarianceRecommender, {"unit": "rating", **WITH_COVARIANCE}),
    "knn": (sk.DPCovarianceRecommender, {"predictor": "knn", **WITH_COVARIANCE}),
    "Laplace": (sk.DPCovarianceRecommender, {"noise": "laplace", **WITH_COVARIANCE}),
    "every-step": (sk.DPMFSampler, {"max_iter": 4, "n_components": 3}),
    "gibbs": (sk.DPMFSampler, POSTERIOR),
    "sgld": (sk.DPMFSampler, {**POSTERIOR, "sampler": "sgld", "weight_cap": 1.0}),
}
EVERY = [
    *({"user_damping": value} for value in (1e-6, 1e6)),
    *({"rating_range": ends} for ends in ((-1e6, 1e6), (2.0, 2.0 + 1e-9))),
    *({"n_components": k} for k in (1, 20)),
]
OWN = {
    sk.AdaptiveWeightALS: [
        *({"alpha": value} for value in (1e-12, 1e12)),
        *({"weight_exponent": value} for value in (10.0, 1e4)),
        *({"list_share": share} for share in (1e-6, 0.999)),
        {"max_ratings_per_user": 1, "weighting": "tail"},
        *({"item_means": False}, {"n_components": 20, "alpha": 1e-12}),
    ],
    sk.DPCovarianceRecommender: [
        *({name: value} for name in ("clamp", "item_damping") for value in (1e-6, 1e6))
    ],
    sk.DPMFSampler: [
        *({"alpha": value} for value in (1e-12, 1e12)),
        *({"max_ratings_per_user": 1}, {"max_iter": 1}, {"rating_std": 1e-3}),
        {"user_std": 1e-6, "item_std": 1e-6, "bias_std": 1e-6},
        *({"kappa": 1e6}, {"weight_cap": 1e-9}),
        {"sample_precisions": True, "item_bias": True},
    ],
}
CASES = [(kind, params) for kind, (own, _) in KINDS.items() for params in [*EVERY, *OWN[own]]]


def fitted(kind, X, epsilon, **params):
    estimator, settings = KINDS[kind]
    params = {"random_state": 0, **settings, **params}
    unit = params.pop("unit", "user")
    budget = sk.PrivacyBudget(epsilon, 1e-5 if math.isfinite(epsilon) else 0.0, unit=unit)
    return built(estimator, budget, **params).fit(X)


@pytest.mark.parametrize(("kind", "params"), CASES, ids=str)
def test_extreme_parameters_give_finite_models(kind, params):
    X = make_ratings(60, 12, density=0.5, random_state=0)
    for epsilon in (0.05, 1000.0, math.inf):
        model = fitted(kind, X, epsilon, **params)
        assert np.isfinite(model.components_).all()
        assert np.isfinite(model.item_means_).all()
        low, high = model.rating_range
        predicted = model.predict(X)
        assert np.all((low <= predicted) & (predicted <= high))


@given(
    X=arrays(
        np.float64,
        st.tuples(st.integers(1, 12), st.integers(1, 6)),
        elements=st.one_of(st.just(np.nan), st.floats(0.0, 6.0), st.floats(-1e300, 1e300)),
    ),
    epsilon=st.sampled_from([0.1, 5.0, 50.0]),
    kind=st.sampled_from(list(KINDS)),
)
@hypothesis_settings(max_examples=60)
def test_rows_of_any_content_give_finite_models(X, epsilon, kind):
    model = fitted(kind, X, epsilon, n_components=2)
    assert np.isfinite(model.components_).all()
    assert model.components_.shape == (2, X.shape[1])
    assert np.isfinite(model.predict(X)).all()


# The RMSE that defaults must reach on MovieLens 1M at delta 1e-5
MOVIELENS = [
    *((sk.AdaptiveWeightALS, "user", *best) for best in ((4, 0.935), (math.inf, 0.865))),
    *((sk.DPCovarianceRecommender, *best) for best in (("rating", 4, 0.905), ("user", 4, 0.925))),
    (sk.DPMFSampler, "user", 4, 0.915),
    *((sk.DPItemMeans, "user", *best) for best in ((0.5, 0.957), (4, 0.915))),
]


@pytest.fixture(scope="module")
def movielens(ml1m_path):
    pytest.importorskip("pyarrow")
    train, test = split_table(read_ratings(ml1m_path), test_size=0.1, random_state=0)
    frame = pd.concat([train, test])
    ids = {"users": np.unique(frame["user"]), "items": np.unique(frame["item"])}
    return [ratings_to_matrix(part, **ids).X for part in (train, test)]


@pytest.mark.slow
@pytest.mark.parametrize(("estimator", "unit", "epsilon", "most"), MOVIELENS)
def test_movielens(estimator, unit, epsilon, most, movielens):
    budget = sk.PrivacyBudget(epsilon, 1e-5 if math.isfinite(epsilon) else 0.0, unit=unit)
    model = estimator(budget, random_state=0, n_jobs=2).fit(movielens[0])
    assert -model.score(*movielens) <= most
