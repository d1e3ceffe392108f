"""Private estimators of every kind that the audit knows, and ratings to audit them on."""

import numpy as np

import skdpmf as sk
from skdpmf.data import make_ratings
from tests.built import built

N_ITEMS = 14
BUDGET = sk.PrivacyBudget(6.0, 1e-5)
RATING = sk.PrivacyBudget(6.0, 1e-5, unit="rating")
REPLACE = sk.PrivacyBudget(6.0, 1e-5, neighbors="replace")
LOCAL, PURE = sk.PrivacyBudget(2.0), sk.PrivacyBudget(6.0)
SMALL = {"n_components": 2, "max_iter": 2}
POSTERIOR = {"guarantee": "posterior", "n_components": 2, "max_iter": 10}
SUMS = {
    "ALS": built(sk.AdaptiveWeightALS, BUDGET, **SMALL),
    "ALS, replace": built(sk.AdaptiveWeightALS, REPLACE, **SMALL),
    "sampler": sk.DPMFSampler(BUDGET, n_components=2, max_iter=3),
    "covariance, user": sk.DPCovarianceRecommender(BUDGET, n_components=2),
    "covariance, rating": sk.DPCovarianceRecommender(RATING, n_components=2),
    "item means": sk.DPItemMeans(BUDGET),
    "item means, features": sk.DPItemMeans(
        BUDGET, item_features=np.random.default_rng(2).normal(size=(N_ITEMS, 3))
    ),
    "covariance, Laplace": sk.DPCovarianceRecommender(
        sk.PrivacyBudget(60.0, unit="rating"), n_components=2, noise="laplace"
    ),
}
REPORTS = {
    "items": sk.LocalDPGDDR(LOCAL),
    "items, sign": sk.LocalDPGDDR(LOCAL, randomizer="coordinate"),
    "gradient": built(sk.LocalDPGDDR, LOCAL, method="gradient", **SMALL),
    "Algorithm 1": built(
        sk.LocalDPGDDR, LOCAL, method="gradient", randomizer="coordinate", **SMALL
    ),
    "Algorithm 2": sk.LocalDPGDDR(
        LOCAL, method=sk.GradientReports(projection_dim=5), randomizer="coordinate", **SMALL
    ),
}
DRAWS = {
    "posterior": built(sk.DPMFSampler, PURE, **POSTERIOR),
    "posterior, replace": built(
        sk.DPMFSampler, sk.PrivacyBudget(6.0, neighbors="replace"), **POSTERIOR
    ),
    "posterior, biases": built(
        sk.DPMFSampler, PURE, item_bias=True, sample_precisions=True, **POSTERIOR
    ),
    "posterior, paper": built(sk.DPMFSampler, PURE, calibration="paper", kappa=1.0, **POSTERIOR),
    # the bound of equal weights is reached by users of so many ratings alone
    "posterior, SGLD": built(
        sk.DPMFSampler, PURE, sampler="sgld", max_ratings_per_user=N_ITEMS, **POSTERIOR
    ),
}
# of one coordinate that each device draws: it takes more neighbours until one of them shows in it
SAMPLED = {"items, sign", "Algorithm 1", "Algorithm 2"}
ESTIMATORS = {**SUMS, **REPORTS, **DRAWS}


def ratings():
    return make_ratings(60, N_ITEMS, density=0.5, random_state=1)


def failed(report):
    return {check.name for check in report.checks if not check.passed}
