"""Private alternating least squares from weighted, noised sufficient statistics.

Krichene, Jain, Song, Sundararajan, Thakurta, Zhang, "Multi-Task Differential Privacy Under
Distribution Skew" (ICML 2023), Algorithms 1 and 3; Chien et al., "Private Alternating Least
Squares" (ICML 2021) for the uniform and tail baselines.

Ratings are y = (r - middle) / quarter range, modelled as y_ij ~ o_i + phi_i . theta_j with

    phi_i = (a, x_i),  x_i = u_i min(1, 1/|u_i|),     b_j = a theta_j0,  v_j = theta_j,1..k

so that |phi_i|^2 <= 1 + a^2. A round repeats, as in the paper:

- users' half, local and exact: (o_i, u_i) minimises sum_j (y_ij - b_j - o_i - u_i . v_j)^2
  + damping o_i^2 + u_i' L u_i on all of the user's ratings;
- items' half, from two releases with weights sum_j w_ij^2 <= 1 for every user,

      A_j = sum_i c_i w_ij phi_i phi_i',        sensitivity 1 + a^2 (Frobenius, all items stacked),
      g_j = sum_i c_i w_ij e_ij phi_i,          sensitivity C sqrt(1 + a^2),

  where e_ij = y_ij - o_i - phi_i . theta_j and ONE factor c_i <= 1 a user clips the user's whole
  contribution: |w_i e_i| |phi_i| c_i <= C sqrt(1 + a^2). In exact arithmetic and without clipping
  g_j is the paper's right-hand side less A_j theta_j, so theta_j + A_j^-1 g_j is the solution of
  its Algorithm 1; the residual form needs less noise, as residuals are smaller than ratings.

What is done with the released values is post-processing: small A_j are shrunk towards the pooled
sum_j A_j (whose noise averages out), and all rounds' releases are combined by least squares with
forgetting. Without noise each round is one exact weighted ALS sweep.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from skdpmf.data.bounding import bound_contributions
from skdpmf.kernels._parallel import run_blocks
from skdpmf.kernels.als import accumulate_items, solve_rows
from skdpmf.kernels.entries import predict_entries
from skdpmf.privacy.budget import PrivacyBudget
from skdpmf.privacy.noise import SAMPLER_ETA, SAMPLER_TAU, NoiseSource
from skdpmf.privacy.plan import Release, ReleasePlan
from skdpmf.privacy.sensitivity import gram_sensitivity, item_mean_sensitivity, sum_sensitivity
from skdpmf.solvers import item_means as im
from skdpmf.solvers._releases import (
    PlannedReleases,
    by_item,
    choose_rank,
    expected_weights,
    head_factors,
    popularity_weights,
    random_subset,
    rows_of,
)
from skdpmf.solvers.item_posterior import ItemPosterior

__all__ = ["Model", "Settings", "first_releases", "fit", "make_plan"]

OFFSET = 1.0  # a, the constant coordinate of phi
CLIP = 0.6  # C, below a typical user's root mean squared residual: most contributions are clipped
HEAD = 150  # items whose noisy second moments start the factors
# Ridge of u_i, times alpha: weaker while training, where |x_i| <= 1 regularises as well.
TRAINING_RIDGE, FOLD_IN_RIDGE = 0.35, 2.0
FACTOR_PRECISION = 7.0  # of v_j in the prior, times alpha

ITEM_STATISTICS, START, GRAM, RHS = (
    "item counts and means",
    "second moments of the head",
    "Gram matrices",
    "right-hand sides",
)
# Shares of the budget (of mu^2), all rounds together.
SHARES = {ITEM_STATISTICS: 0.08, START: 0.08, GRAM: 0.05, RHS: 0.79}
NOTES = (
    "Sums are in quarters of the rating range. The rank in use is chosen from the released item "
    "statistics, up to n_components: shapes are those of the full rank.",
    "Where they are weak, the first rounds, or all and the second moments, release the item "
    "statistics once more instead, at the planned noise multiplier.",
)


@dataclass(frozen=True)
class Settings:
    """Public settings of a fit; `skdpmf.AdaptiveWeightALS` explains them."""

    n_components: int
    weighting: str
    weight_exponent: float
    max_ratings_per_user: int | None
    max_iter: int
    alpha: float
    user_damping: float
    item_means: bool

    @property
    def phi_bound(self) -> float:
        """Bound on |phi_i|."""
        return float(np.hypot(1.0, OFFSET)) if self.item_means else 1.0


class Model(NamedTuple):
    """Released model in quarter ranges: y_ij ~ b_j + o_i + u_i . v_j."""

    item_means: NDArray[np.float64]  # b
    factors: NDArray[np.float64]  # V (n_items x n_components)
    ridge: float  # of u_i in the fold-in


def make_plan(budget: PrivacyBudget, settings: Settings, n_items: int) -> ReleasePlan:
    """Plan the releases of a fit, from public values alone.

    Parameters
    ----------
    budget : PrivacyBudget
        Of unit "user", with delta > 0 unless it is not private.
    settings : Settings
        Public settings.
    n_items : int
        Size of the catalogue.

    Returns
    -------
    ReleasePlan
        One entry per statistic, rounds counted, with noise that spends the whole budget.

    Raises
    ------
    PrivacyParameterError
        If the budget's unit is not "user", or its delta is 0.
    """
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
        ),
        Release(
            RHS,
            "sum over users of w e phi for each item, every round",
            (n_items, d),
            sum_sensitivity(1.0, CLIP * settings.phi_bound, **near),
            count=rounds,
        ),
    ]
    # Means in place of factors may noise a few more values than planned, never twice as many.
    slack = {"eta": 2.0 * SAMPLER_ETA, "tau": 2.0 * SAMPLER_TAU}
    return ReleasePlan.from_shares(budget, releases, SHARES, notes=NOTES, **slack)


def first_releases(budget: PrivacyBudget, n_items: int) -> list[Release]:
    """Item statistics and start, without noise yet: what every solver of these models begins with.

    Parameters
    ----------
    budget : PrivacyBudget
        Of unit "user".
    n_items : int
        Size of the catalogue.

    Returns
    -------
    list of Release
    """
    near: dict[str, Any] = {"neighbors": budget.neighbors, "unit": budget.unit}
    head = min(HEAD, n_items)
    means = item_mean_sensitivity(im.COUNT_WEIGHT, **near)
    return [
        Release(
            ITEM_STATISTICS,
            "sums over users of their damped item counts and clipped, centred ratings, and of the "
            "users themselves",
            (2, n_items + 1),
            float(np.hypot(means, np.sqrt(2.0) * im.USER_WEIGHT)),
        ),
        Release(
            START,
            f"sum over users of residual products, pairs of the {head} most popular items",
            (head * (head + 1) // 2,),
            gram_sensitivity(1.0, CLIP, **near),
            layout="packed",
        ),
    ]


def fit(
    R: Any,
    settings: Settings,
    plan: ReleasePlan,
    noise: NoiseSource,
    *,
    rounds: Iterable[int],
    n_jobs: int | None,
) -> Model:
    """Make the plan's releases in their order and return the model they give.

    Parameters
    ----------
    R : CSR of shape (n_users, n_items)
        Ratings in quarter ranges from the middle of the scale, one entry per user and item.
    settings : Settings
        Public settings.
    plan : ReleasePlan
        From `make_plan` with the same settings.
    noise : NoiseSource
        Draws all noise, and the users' random subsets.
    rounds : iterable of int
        range(max_iter), possibly wrapped in a progress display.
    n_jobs : int or None
        Threads; does not change the result.

    Returns
    -------
    Model
    """
    return _Fit(R, settings, plan, noise, n_jobs).run(rounds)


class _Weighted(NamedTuple):
    """Ratings of the items' half with their weights, by user and by item."""

    R: Any  # CSR
    row: NDArray[np.int64]  # user of each entry
    weight: NDArray[np.float64]  # w_ij, aligned with R.data
    mass: NDArray[np.float64]  # per item: expected sum of weights
    typical: NDArray[np.float64]  # per item: a typical weight


class _Fit:
    """One fit; that of `dpsgd_items` is the same but for the items' half."""

    def __init__(
        self, R: Any, settings: Settings, plan: ReleasePlan, noise: NoiseSource, n_jobs: int | None
    ) -> None:
        self.R, self.settings, self.noise, self.n_jobs = R, settings, noise, n_jobs
        self.n_rows, self.n_items = R.shape
        self.private = plan.is_private
        self.subset = self._subset() if settings.weighting != "tail" else R
        self.planned = PlannedReleases(
            self.subset,
            plan,
            noise,
            ITEM_STATISTICS,
            damping=settings.user_damping,
            n_jobs=n_jobs,
        )
        self.releases, self.grid = self.planned.releases, self.planned.grid
        self.release = self.planned.release
        self.release_item_means = self.planned.release_item_means

    def run(self, rounds: Iterable[int]) -> Model:
        """All releases in the plan's order, and the model they give."""
        means = self.release_item_means(ITEM_STATISTICS)
        rank, n_mean_rounds = self.choose_rank(means)
        rounds = iter(rounds)
        if rank == 0:
            means = self.release_item_means(START)
        for t in islice(rounds, n_mean_rounds):
            means = self.spend_round_on_means(t)
        if rank == 0:
            return Model(means.mean, np.zeros((self.n_items, self.settings.n_components)), 1.0)
        weighted = self.weigh(means)
        return self.alternate(means, weighted, self.start_factors(means, weighted, rank), rounds)

    def spend_round_on_means(self, t: int) -> im.ItemMeans:
        """The item statistics in place of all that round t would release."""
        return self.release_item_means(GRAM, RHS, index=t)

    def _subset(self, priorities: Any = None) -> Any:
        """At most tau ratings of each user: those of least priority, at random by default."""
        tau = self.settings.max_ratings_per_user
        if tau is None or priorities is None:
            return random_subset(self.R, tau, self.noise)
        return bound_contributions(self.R, tau, priorities)

    def choose_rank(self, means: im.ItemMeans) -> tuple[int, int]:
        """Rank, and number of rounds to spend on the means first."""
        most = min(self.settings.n_components, self.n_items)
        if not self.private:
            return most, 0
        rounds = self.settings.max_iter if self.settings.item_means else None
        return choose_rank(means, self.planned.mu, most, rounds)

    def weigh(self, means: im.ItemMeans) -> _Weighted:
        """Weights w_ij with sum_j w_ij^2 <= 1 for every user, from noisy popularity alone."""
        N, exponent = means.mass, self.settings.weight_exponent
        if self.settings.weighting != "adaptive":
            R = self.subset
            if self.settings.weighting == "tail":
                R = self._subset(N[self.R.indices])
            cap = float(self.settings.max_ratings_per_user or 1)
            constant = (1.0 - 2.0**-40) / np.sqrt(cap)  # rounding must not exceed the bound
            weight = np.full(R.nnz, constant)
            return _Weighted(R, rows_of(R), weight, N, np.full(self.n_items, constant))
        R = self.subset
        weight = popularity_weights(R, N, exponent)
        return _Weighted(
            R, rows_of(R), weight, *expected_weights(N, means.typical_weight, exponent)
        )

    def start_factors(
        self, means: im.ItemMeans, weighted: _Weighted, rank: int
    ) -> NDArray[np.float64]:
        """Leading eigenvectors of the head items' noisy second moments of residuals."""
        b = means.mean if self.settings.item_means else np.zeros(self.n_items)
        R, offset = weighted.R, self._own_means(b)
        return head_factors(
            lambda moments: self.release(START, moments),
            R,
            lambda: weighted.weight * (R.data - b[R.indices] - offset[weighted.row]),
            means.mass,
            weighted.mass,
            rank,
            n_head=min(HEAD, self.n_items),
            clip=CLIP if self.private else None,
            grid=self.grid,
            deviation=self.releases[START].noise_scale,
        )

    def _own_means(self, b: NDArray[np.float64]) -> NDArray[np.float64]:
        """Damped mean of each user's deviations from the item means; 0 without item means."""
        if not self.settings.item_means:
            return np.zeros(self.n_rows)
        deviation = self.R.data - b[self.R.indices]
        n = np.diff(self.R.indptr)
        total = np.bincount(rows_of(self.R), weights=deviation, minlength=self.n_rows)
        return np.asarray(total / (n + self.settings.user_damping))

    def alternate(
        self,
        means: im.ItemMeans,
        weighted: _Weighted,
        V: NDArray[np.float64],
        rounds: Iterable[int],
    ) -> Model:
        """Rounds of users' and items' halves."""
        s, rank = self.settings, V.shape[1]
        lead = int(s.item_means)  # coordinates of phi before x
        posterior = self._prior(means, weighted, V)
        pattern = by_item(weighted.R)
        spread = np.eye(rank) / rank  # second moment of x, of trace 1
        for t in rounds:
            ridge = (
                s.alpha * TRAINING_RIDGE * np.linalg.inv(0.3 * np.eye(rank) / rank + 0.7 * spread)
            )
            offset, phi = self.user_half(posterior.theta, ridge)
            gram, rhs = self.item_statistics(weighted, pattern, posterior.theta, offset, phi)
            posterior.update(
                self.release(GRAM, gram, t), self.release(RHS, rhs, t), n_jobs=self.n_jobs
            )
            latest = posterior.pooled[lead:, lead:] / np.trace(posterior.pooled[lead:, lead:])
            spread = 0.7 * spread + 0.3 * latest if self.private else latest
        # in the frame where the users' second moment is the identity the ridge is a number
        values, vectors = np.linalg.eigh(spread)
        root = (vectors * np.sqrt(values)) @ vectors.T
        factors = np.zeros((self.n_items, s.n_components))
        factors[:, :rank] = posterior.theta[:, lead:] @ root
        b = OFFSET * posterior.theta[:, 0] if lead else np.zeros(self.n_items)
        return Model(b, factors, s.alpha * FOLD_IN_RIDGE)

    def _prior(
        self, means: im.ItemMeans, weighted: _Weighted, V: NDArray[np.float64]
    ) -> ItemPosterior:
        rank, lead = V.shape[1], int(self.settings.item_means)
        precision = np.full(rank + lead, FACTOR_PRECISION * self.settings.alpha)
        prior = np.zeros((self.n_items, rank + lead))
        if lead:
            precision[0] = OFFSET**2 / means.prior_variance
            prior[:, 0] = means.prior_mean / OFFSET
        posterior = ItemPosterior(
            prior,
            np.diag(precision),
            weighted.mass,
            weighted.typical,
            (self.releases[GRAM].noise_scale, self.releases[RHS].noise_scale),
        )
        posterior.theta[:, lead:] = V
        if lead:
            posterior.theta[:, 0] = means.mean / OFFSET
            if self.private:
                posterior.observe(0, OFFSET**2 / means.variance, means.raw_mean / OFFSET)
        return posterior

    def user_half(
        self, theta: NDArray[np.float64], ridge: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Exact local solves on all of a user's ratings: offsets o and clipped phi."""
        y, factors = self.R.data, theta
        if self.settings.item_means:
            y = y - OFFSET * theta[self.R.indices, 0]
            factors = theta.copy()
            factors[:, 0] = 1.0
            damped = np.zeros((len(ridge) + 1, len(ridge) + 1))
            damped[0, 0], damped[1:, 1:] = self.settings.user_damping, ridge
            ridge = damped
        Z = np.empty((self.n_rows, factors.shape[1]))
        indptr, indices = self.R.indptr, self.R.indices
        run_blocks(
            lambda start, stop: solve_rows(indptr, indices, y, factors, ridge, start, stop, Z),
            indptr,
            self.n_jobs,
        )
        offset = np.zeros(self.n_rows)
        u = Z
        if self.settings.item_means:
            offset, u = Z[:, 0].copy(), Z[:, 1:]
        if self.private:
            u *= im.shrink_to_ball(np.linalg.norm(u, axis=1), 1.0)[:, None]
        if self.settings.item_means:
            Z[:, 0] = OFFSET
        return offset, Z

    def item_statistics(
        self,
        weighted: _Weighted,
        pattern: Any,
        theta: NDArray[np.float64],
        offset: NDArray[np.float64],
        phi: NDArray[np.float64],
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """A_j (packed) and g_j of the module's docstring, exact sums over users."""
        d = phi.shape[1]
        weight, residual = self.clipped(weighted, theta, offset, phi)
        weight, residual = weight[pattern.data], residual[pattern.data]
        gram, rhs = np.empty((self.n_items, d * (d + 1) // 2)), np.empty((self.n_items, d))
        run_blocks(
            lambda start, stop: accumulate_items(
                pattern.indptr,
                pattern.indices,
                weight,
                residual,
                phi,
                self.grid,
                start,
                stop,
                gram,
                rhs,
            ),
            pattern.indptr,
            self.n_jobs,
        )
        return gram, rhs

    def clipped(
        self,
        weighted: _Weighted,
        theta: NDArray[np.float64],
        offset: NDArray[np.float64],
        phi: NDArray[np.float64],
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """c_i w_ij and e_ij, aligned with the ratings: one factor c_i clips a user's whole row."""
        R, row = weighted.R, weighted.row
        indptr, indices, weight = R.indptr, R.indices, weighted.weight
        residual = np.empty(R.nnz)
        run_blocks(
            lambda start, stop: predict_entries(indptr, indices, phi, theta, start, stop, residual),
            indptr,
            self.n_jobs,
        )
        np.subtract(R.data - offset[row], residual, out=residual)
        if self.private:
            squares = np.bincount(row, weights=(weight * residual) ** 2, minlength=self.n_rows)
            norm = np.sqrt(squares) * np.linalg.norm(phi, axis=1)
            clip = im.shrink_to_ball(norm, CLIP * self.settings.phi_bound)
            weight = weight * clip[row]
        return weight, residual
