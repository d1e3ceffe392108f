"""Private alternating least squares from weighted, noised sufficient statistics.

Krichene, Jain, Song, Sundararajan, Thakurta, Zhang, "Multi-Task Differential Privacy Under
Distribution Skew" (ICML 2023), Algorithms 1 and 3; Chien et al., "Private Alternating Least
Squares" (ICML 2021) for the uniform and tail baselines.

Model, weights, first releases and user step are those of `skdpmf.mechanisms.als.ratings`. A round
is, as in the paper, the user step and

- item step, from two releases with weights sum_j w_ij^2 <= 1 for every user,

      A_j = sum_i c_i w_ij phi_i phi_i',        sensitivity 1 + a^2 (Frobenius, all items stacked),
      g_j = sum_i c_i w_ij e_ij phi_i,          sensitivity C sqrt(1 + a^2),

  where e_ij = y_ij - o_i - phi_i . theta_j and ONE factor c_i <= 1 a user clips the user's whole
  contribution: |w_i e_i| |phi_i| c_i <= C sqrt(1 + a^2). In exact arithmetic and without clipping
  g_j is the paper's right-hand side less A_j theta_j, so theta_j + A_j^-1 g_j is the solution of
  its Algorithm 1; the residual form needs less noise, as residuals are smaller than ratings.

All use of the released values is post-processing: small A_j are shrunk towards the pooled
sum_j A_j (whose noise averages out), and all rounds' releases are combined by least squares with
forgetting. Without noise each round is one exact weighted ALS sweep.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skdpmf.mechanisms.als.item_update import ItemPosterior
from skdpmf.mechanisms.als.ratings import (
    CLIP,
    FACTOR_PRECISION,
    ITEM_STATISTICS,
    NOTES,
    OFFSET,
    START,
    TRAINING_RIDGE,
    RatingFit,
    RatingModel,
    Settings,
    first_releases,
    residuals_of,
)
from skdpmf.mechanisms.item_means import joint_release as im
from skdpmf.privacy import sums
from skdpmf.privacy.budget import PrivacyBudget
from skdpmf.privacy.curator import Curator
from skdpmf.privacy.plan import Release, ReleasePlan
from skdpmf.privacy.sensitivity import gram_sensitivity, sum_sensitivity

__all__ = ["fit", "make_plan"]

GRAM, RHS = "Gram matrices", "right-hand sides"
# Shares of the budget (of mu^2), all rounds together.
SHARES = {ITEM_STATISTICS: 0.08, START: 0.08, GRAM: 0.05, RHS: 0.79}


def make_plan(budget: PrivacyBudget, settings: Settings, n_items: int) -> ReleasePlan:
    """Plan the releases of a fit, which spend the whole budget, from public values alone."""
    near: dict[str, Any] = {"neighbors": budget.neighbors, "unit": budget.unit}
    d, rounds = settings.n_components + int(settings.item_means), settings.max_iter
    releases = [
        *first_releases(budget, n_items),
        Release(
            GRAM,
            "sum over users of w phi phi' for each item, every round",
            (n_items, d * (d + 1) // 2),
            gram_sensitivity(1.0, settings.phi_bound, **near),
            count=rounds,
            layout="packed",
            alternatives=(ITEM_STATISTICS,),
        ),
        Release(
            RHS,
            "sum over users of w e phi for each item, every round",
            (n_items, d),
            sum_sensitivity(1.0, CLIP * settings.phi_bound, **near),
            count=rounds,
            alternatives=(ITEM_STATISTICS,),
        ),
    ]
    return ReleasePlan.from_shares(budget, releases, SHARES, notes=NOTES)


def fit(curator: Curator, settings: Settings, *, rounds: Iterable[int]) -> RatingModel:
    """Make the plan's releases in their order and return the model they give."""
    return _Fit(curator, settings).run(rounds)


class _Fit(RatingFit):
    def spend_round_on_means(self, t: int) -> im.ItemMeans:
        return self.release_item_means(GRAM, RHS, index=t)

    def start(self, V: NDArray[np.float64]) -> None:
        self.lead = int(self.settings.item_means)  # coordinates of phi before x
        self.posterior = self._prior(V)
        self.spread = np.eye(self.rank) / self.rank  # second moment of x, of trace 1

    def item_half(self, t: int) -> None:
        rank, users, posterior, lead = self.rank, self.weighted.users, self.posterior, self.lead
        level = 0.3 * np.eye(rank) / rank + 0.7 * self.spread
        ridge = self.settings.alpha * TRAINING_RIDGE * np.linalg.inv(level)
        offset, phi = self.user_half(posterior.theta, ridge)
        residual = users.map(residuals_of, posterior.theta, offset, phi)
        bound = self.settings.phi_bound
        gram, rhs = sums.item_grams(
            *(users, self.weighted.weight, residual, phi),
            gram_clip=bound * bound,
            clip=CLIP * bound,
            grid=self.grid,
        )
        posterior.update(self.release(GRAM, gram, t), self.release(RHS, rhs, t), self.n_jobs)
        latest = posterior.pooled[lead:, lead:] / np.trace(posterior.pooled[lead:, lead:])
        self.spread = 0.7 * self.spread + 0.3 * latest if self.private else latest

    def learnt(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        values, vectors = np.linalg.eigh(self.spread)
        root = (vectors * np.sqrt(values)) @ vectors.T
        theta = self.posterior.theta
        b = OFFSET * theta[:, 0] if self.lead else np.zeros(self.n_items)
        return b, theta[:, self.lead :] @ root

    def _prior(self, V: NDArray[np.float64]) -> ItemPosterior:
        means, rank, lead = self.item_means, self.rank, self.lead
        precision = np.full(rank + lead, FACTOR_PRECISION * self.settings.alpha)
        prior = np.zeros((self.n_items, rank + lead))
        if lead:
            precision[0] = OFFSET**2 / means.prior_variance
            prior[:, 0] = means.prior_mean / OFFSET
        posterior = ItemPosterior(
            prior,
            np.diag(precision),
            self.weighted.mass,
            self.weighted.typical,
            (self.releases[GRAM].noise_scale, self.releases[RHS].noise_scale),
        )
        posterior.theta[:, lead:] = V
        if lead:
            posterior.theta[:, 0] = means.mean / OFFSET
            if self.private:
                posterior.observe(0, OFFSET**2 / means.variance, means.raw_mean / OFFSET)
        return posterior
