"""The settings of a published notebook for private ALS, in the terms of `AdaptiveWeightALS`.

Krichene et al. (2023) publish the settings of their ratings experiment (MovieLens 10M, delta 1e-5)
in the notebook movielens/dpam.ipynb of google-research, dp_alternating_minimization. At most 100
ratings of each user enter, or all with weights of the same sum of squares, 100. Rounds release,
with noise s max_norm^2 and s max_norm, the items' Gram matrices and right-hand sides; before them
are item counts and a mean of all ratings. Only the settings come from there.
"""

from typing import NamedTuple

import numpy as np
from scipy.optimize import brentq

from skdpmf import DPALS
from skdpmf.mechanisms.als.loop import TRAINING_RIDGE
from skdpmf.privacy.accounting import gaussian_epsilon, gaussian_mu

CAP = 100  # ratings a user
DELTA = 1e-5
LARGEST = 3.01  # of a rating of MovieLens 10M less the mean of all; the published noise is for 1
# Orders of the published accountant.
ORDERS = np.concatenate((np.arange(11, 110) / 10, np.arange(11, 64)))
METHODS = {
    "uniform sampling": {"weighting": "uniform"},
    "tail sampling": {"weighting": "tail"},
    "weights, exponent 1/4": {"weight_exponent": 1 / 4},
}


class Recipe(NamedTuple):
    """Published settings at one epsilon."""

    n_components: int
    max_iter: int
    count_std: float  # noise of the item counts
    max_norm: float  # of a user's factors
    weights_penalty: float
    sampling_penalty: float

    def params(self, method: str) -> dict:
        """Parameters of `AdaptiveWeightALS` for one of `METHODS`.

        Scaling users' factors to the unit ball, as ours are, turns their penalty into penalty *
        max_norm^2. Ours is alpha * TRAINING_RIDGE * rank where users are spread evenly.
        """
        own, cap = METHODS[method], CAP if "weighting" in METHODS[method] else None
        penalty = self.sampling_penalty if "weighting" in own else self.weights_penalty
        return {
            "solver": DPALS(item_means=False, **own),
            "n_components": self.n_components,
            "max_iter": self.max_iter,
            "alpha": penalty * self.max_norm**2 / (TRAINING_RIDGE * self.n_components),
            "max_ratings_per_user": cap,
        }

    def squared_mu(self, noise: float, *, centre: bool = True, clipped: bool = True) -> float:
        """Sum of squared inverse noise multipliers of all that is released.

        As published where both are true. Otherwise the multipliers that hold: without `clipped` the
        right-hand sides' are for ratings as large as they are; without `centre` the mean's are for
        a user with CAP ratings, not one: a sum with noise 5 * 10 * count_std, a number of ratings
        with noise count_std.
        """
        counts = CAP / self.count_std**2
        mean = 2.0 if centre else CAP + float(CAP) ** 2
        largest = 1.0 if clipped else LARGEST
        rounds = self.max_iter * CAP * (1.0 + largest**2) / noise**2
        return counts + mean / self.count_std**2 + rounds

    def noise(self, mu: float) -> float:
        """The s that spends `mu`, by the published sensitivities."""
        left = mu**2 - self.squared_mu(np.inf)
        return float(np.sqrt(2.0 * CAP * self.max_iter / left))

    def epsilon(self, noise: float, **which: bool) -> float:
        """Exact epsilon of that noise at DELTA."""
        return gaussian_epsilon(np.sqrt(self.squared_mu(noise, **which)), DELTA)


RECIPES = {
    1.0: Recipe(8, 2, 200.0, 0.2, 40.0, 60.0),
    5.0: Recipe(32, 3, 40.0, 0.5, 60.0, 40.0),
    20.0: Recipe(32, 4, 10.0, 0.5, 40.0, 40.0),
}


def published_epsilon(mu: float) -> float:
    """Epsilon of mu-GDP at DELTA by Renyi orders, as in the published code."""
    renyi = ORDERS * mu**2 / 2.0
    found = renyi + np.log1p(-1.0 / ORDERS) - np.log(ORDERS * DELTA) / (ORDERS - 1.0)
    return float(found.min())


def published_mu(epsilon: float) -> float:
    """The mu that `published_epsilon` allows."""
    return float(brentq(lambda mu: published_epsilon(mu) - epsilon, 1e-3, 100.0))


def accounting_rows() -> list[list]:
    """A row for each epsilon: the published noise, and what it is worth."""
    rows = []
    for epsilon, recipe in RECIPES.items():
        noise = recipe.noise(published_mu(epsilon))
        exact = recipe.noise(gaussian_mu(epsilon, DELTA))
        worth = [
            recipe.epsilon(noise, **which)
            for which in ({}, {"clipped": False}, {"clipped": False, "centre": False})
        ]
        rows.append([f"{epsilon:g}", f"{noise:.2f}", *(f"{e:.3g}" for e in worth), f"{exact:.2f}"])
    return rows
