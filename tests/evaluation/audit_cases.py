"""Private estimators of every kind that the audit knows, and ratings to audit them on."""

import numpy as np

from skdpmf import (
    AdaptiveWeightALS,
    DPCovarianceRecommender,
    DPItemMeans,
    DPMFSampler,
    GradientReports,
    LocalDPGDDR,
    PrivacyBudget,
)
from skdpmf.data import make_ratings
from tests.built import built

N_ITEMS = 14
BUDGET = PrivacyBudget(6.0, 1e-5)
RATING = PrivacyBudget(6.0, 1e-5, unit="rating")
REPLACE = PrivacyBudget(6.0, 1e-5, neighbors="replace")
LOCAL, PURE = PrivacyBudget(2.0), PrivacyBudget(6.0)
SMALL = {"n_components": 2, "max_iter": 2}
POSTERIOR = {"guarantee": "posterior", "n_components": 2, "max_iter": 10}
SUMS = {
    "ALS": built(AdaptiveWeightALS, BUDGET, **SMALL),
    "ALS, replace": built(AdaptiveWeightALS, REPLACE, **SMALL),
    "sampler": DPMFSampler(BUDGET, n_components=2, max_iter=3),
    "covariance, user": DPCovarianceRecommender(BUDGET, n_components=2),
    "covariance, rating": DPCovarianceRecommender(RATING, n_components=2),
    "item means": DPItemMeans(BUDGET),
    "item means, features": DPItemMeans(
        BUDGET, item_features=np.random.default_rng(2).normal(size=(N_ITEMS, 3))
    ),
    "covariance, Laplace": DPCovarianceRecommender(
        PrivacyBudget(60.0, unit="rating"), n_components=2, noise="laplace"
    ),
}
REPORTS = {
    "items": LocalDPGDDR(LOCAL),
    "items, sign": LocalDPGDDR(LOCAL, randomizer="coordinate"),
    "gradient": built(LocalDPGDDR, LOCAL, method="gradient", **SMALL),
    "Algorithm 1": built(LocalDPGDDR, LOCAL, method="gradient", randomizer="coordinate", **SMALL),
    "Algorithm 2": LocalDPGDDR(
        LOCAL, method=GradientReports(projection_dim=5), randomizer="coordinate", **SMALL
    ),
}
DRAWS = {
    "posterior": built(DPMFSampler, PURE, **POSTERIOR),
    "posterior, replace": built(DPMFSampler, PrivacyBudget(6.0, neighbors="replace"), **POSTERIOR),
    "posterior, biases": built(
        DPMFSampler, PURE, item_bias=True, sample_precisions=True, **POSTERIOR
    ),
    "posterior, paper": built(DPMFSampler, PURE, calibration="paper", kappa=1.0, **POSTERIOR),
    # the bound of equal weights is reached by users of so many ratings alone
    "posterior, SGLD": built(
        DPMFSampler, PURE, sampler="sgld", max_ratings_per_user=N_ITEMS, **POSTERIOR
    ),
}
# of one coordinate that each device draws: it takes more neighbours until one of them shows in it
SAMPLED = {"items, sign", "Algorithm 1", "Algorithm 2"}
ESTIMATORS = {**SUMS, **REPORTS, **DRAWS}


def ratings():
    return make_ratings(60, N_ITEMS, density=0.5, random_state=1)


def failed(report):
    return {check.name for check in report.checks if not check.passed}
