"""Shared parts of private solvers for clicks: settings, plan, counts, weights and the user step.

A click of user i on item j has a weight 0 < c_ij <= 1. Factors are fitted to

    sum over clicks of c_ij (1 - b_j - u_i . v_j)^2 + a0 sum over all i, j of (u_i . v_j)^2

plus ridges, a0 the `unobserved_weight`; b_j, a small share of the item's popularity, ranks items
for users without clicks, and wherever the factors say nothing. The user step,

    (sum_j c_ij v_j v_j' + a0 V'V + L) u_i = sum_j c_ij (1 - b_j) v_j,    x_i = u_i / |u_i|,

is local, exact, and on all of the user's clicks (x_i = 0 without any). A user's taste, not its
strength, is what the norm of x_i is spent on; without privacy x_i = u_i. The item step weighs
users as for ratings, w_ij with sum_j w_ij^2 <= 1, by popularity or by sampling. An item's problem
is then, in expectation, s_j times the unweighted one, s_j the typical weight of its clicks:

    (A_j + a0 s_j K) v_j = sum_i w_ij c_ij (1 - b_j) x_i,
    A_j = sum over clickers of w_ij c_ij x_i x_i',    K = sum over ALL users of x_i x_i'.

**What is released**, all sums over users of functions of one row, its slot, public constants and
earlier releases; an empty row contributes 0 to each:

- counts: sum_i (1/sqrt(n_i) [j clicked by i], q [n_i > 0]), n_i the user's (kept) clicks. Squared
  norm of a user's part: 1 + q^2, the square of the L2 sensitivity.
- start: sum_i y_i y_i', without its diagonal, y_i = (w_ij c_ij)_j on the most popular items:
  |y_i| <= 1 by the weights and c_ij <= 1, so that the Frobenius sensitivity is 1.
- K, every round: |x_i x_i'|_F = |x_i|^2 <= 1. What unobserved pairs weigh comes to every item
  through K, which holds all users; it is used as released, and only so.
- the items' gradients, residuals 1 - b_j - x_i . v_j in the place of targets, as in `dpals`.

In a refresh counts of earlier fits add up to these. An item's popularity is per user who could
click it, times the users of this cohort, and the signals of cohorts, for ranks, add up in squares.

All bounds are for adding or removing a user, by the sums' proofs also for replacing
one. All else is post-processing of released values.

The loss is that of Y. Hu, Y. Koren, C. Volinsky, "Collaborative filtering for implicit feedback
datasets", ICDM 2008, its private form Algorithm 3 of W. Krichene et al., "Multi-Task Differential
Privacy Under Distribution Skew", ICML 2023.
"""

from abc import abstractmethod
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from skdpmf.kernels.als import solve_rows_weighted
from skdpmf.mechanisms.als import loop
from skdpmf.mechanisms.als.item_update import lift
from skdpmf.mechanisms.als.loop import FOLD_IN_RIDGE, START, AlternatingFit, head_release
from skdpmf.mechanisms.als.pooled_update import PooledKnowledge
from skdpmf.mechanisms.common import (
    count_weights,
    head_directions,
    planned_gram,
    predictions,
    unpack_lower,
)
from skdpmf.mechanisms.gram.item_item import TIE
from skdpmf.mechanisms.item_means.joint_release import USER_WEIGHT, reliability, users_of
from skdpmf.mechanisms.item_means.popularity import Popularity, estimate_popularity, is_known
from skdpmf.privacy import clipped_sums as sums
from skdpmf.privacy.budget import PrivacyBudget
from skdpmf.privacy.clipped_sums import shrink_to_ball
from skdpmf.privacy.curator_release import Curator
from skdpmf.privacy.plan import Release
from skdpmf.privacy.users import PerUser, Rows

# Guard: norm of u_i that is stretched to 1
_SMALLEST = 1e-12

# Tuned: bias against noise; "pooled" has its own. C, a typical user's root mean squared residual
CLIP = 0.7
# ridge of u_i, times alpha, while training
TRAINING_RIDGE = 0.1

COUNTS, EVERYBODY = "item counts", "Gram matrix of all users"
NOTES = (
    "The rank in use is chosen from the released item counts, up to n_components: planned shapes "
    "are those of the full rank.",
)


@dataclass(frozen=True)
class Settings(loop.Settings):
    """Public settings of a fit; `skdpmf.AdaptiveWeightALS` explains them."""

    unobserved_weight: float
    # by the clicks, up to n_components; without privacy, so that no seeded noise depends on it
    chooses_rank: bool = field(default=False, repr=False)
    clip: ClassVar[float] = CLIP
    vector: ClassVar[str] = "x"
    lead: ClassVar[int] = 0


class ClickModel(NamedTuple):
    """Released model: the score of user z for item j is offsets_j + z . columns_j."""

    offsets: NDArray[np.float64]  # b
    columns: NDArray[np.float64]  # (n_items, d), the last n_components being the factors
    ridge: NDArray[np.float64]  # (d, d), of z, with what unobserved items weigh
    prior: NDArray[np.float64] | None = None  # (d + 1, d): mean of z = user_features @ prior
    rating_ridge: float = 0.0  # of z, for each click
    n_lead: int = 0  # columns before the factors
    knowledge: PooledKnowledge | None = None  # what a refresh starts from


def first_releases(
    budget: PrivacyBudget, settings: Settings, n_items: int, *, head_clip: float = 1.0
) -> list[Release]:
    """Counts, start and Gram matrices of all users, without noise yet."""
    statistic = "sums over users of their damped item counts, and of the users themselves"
    near: dict[str, Any] = {"neighbors": budget.neighbors, "unit": budget.unit}
    counts = sums.scalars_bound(1.0, USER_WEIGHT, signed=False, **near)
    everybody, rounds = "sum over all users of x x', every round", settings.max_iter
    return [
        Release(COUNTS, statistic, (n_items + 1,), counts),
        head_release(budget, n_items, "products of click weights", bound=head_clip),
        planned_gram(budget, EVERYBODY, everybody, settings.n_components, count=rounds),
    ]


class ClickFit(AlternatingFit):
    """One fit, but for the item step; its plan begins with `first_releases`."""

    def __init__(
        self, curator: Curator, settings: Settings, known: PooledKnowledge | None = None
    ) -> None:
        super().__init__(curator, settings)
        self.known, self.n_known = known, 0 if known is None else known.rank
        self.signal = 0.0  # of all cohorts so far: see `choose_rank`
        self.statistic = sums.item_scalars(
            self.kept,
            self.kept.map(count_weights),
            clip=1.0,
            grid=self.grid,
            presence=USER_WEIGHT,
            signed=False,
        )
        self.total, self.precision = np.zeros(self.n_items + 1), 0.0

    def begin(self) -> None:
        """Release the popularity, choose the rank, and start the factors."""
        self.count(COUNTS)
        self.rank = self.choose_rank()
        if self.rank == 0:
            for name, release in self.releases.items():
                for index in range(release.count if name != COUNTS else 0):
                    self.count(name, index)
        self.offset = TIE * self.popularity.mean / self.popularity.mean.max()
        if self.rank:
            self.weigh()
            self.start()

    def round(self, t: int) -> None:
        """Make the item step; at rank 0, nothing, as all is counted before."""
        if self.rank:
            self.item_half(t)

    def model(self) -> ClickModel:
        """Return the popularity alone at rank 0, or what was learnt."""
        V = np.zeros((self.n_items, self.settings.n_components))
        if self.rank == 0:
            return ClickModel(self.offset, V, np.eye(V.shape[1]))
        return self.with_factors(V)

    def with_factors(self, V: NDArray[np.float64]) -> ClickModel:
        """Return the model; V: zeros, of shape (n_items, n_components), to be filled."""
        V[:, : self.rank] = self.factors
        return ClickModel(self.offset, V, self.ridge(V, FOLD_IN_RIDGE))

    def start(self) -> None:
        """Start from leading eigenvectors of the head items' noisy second moments of clicks."""
        N, deviation = self.popularity.mean, self.curator.deviation(START)
        released, head = self.release_start(self.weighted, self.weight, N, 1.0)
        self.factors = head_directions(released, head, self.mass, self.rank, deviation)

    @abstractmethod
    def item_half(self, t: int) -> None:
        """Release round t's statistics, and learn from them."""

    def count(self, name: str, index: int = 0) -> None:
        """Release the counts under a planned name; all their releases are combined."""
        releases = self.releases
        precision = releases[name].noise_multiplier ** -2.0 if self.private else 1.0
        self.total += precision * self.release(name, self.statistic, index, statistic=COUNTS)
        self.precision += precision
        scale = releases[COUNTS].sensitivity / np.sqrt(self.precision) if self.private else 0.0
        noisy = self.total / self.precision
        counts = noisy[:-1]
        n_rows = self.curator.n_rows
        self.n_users = users_of(noisy[-1], n_rows)
        exposure = np.full(self.n_items, self.n_users)
        if self.known is not None:
            counts, exposure = counts + self.known.counts, exposure + self.known.exposure
            scale = np.hypot(scale, np.sqrt(self.known.averages.count_variance))
        self.counts, self.exposure, self.count_variance = counts, exposure, float(scale) ** 2
        found, share = estimate_popularity(counts, float(scale)), self.n_users / exposure
        # clicks of so many users like those of this cohort
        own = Popularity(
            found.mean * share, found.log_mean + np.log(share), found.variance * share**2
        )
        self.popularity = self.by_all(own, counts * share, scale * share)
        N = self.popularity.mean
        # sum_j w_ij lies between 1 and sqrt(n_items) for every user
        total = float(np.clip(N.sum(), self.n_users, self.n_users * np.sqrt(self.n_items)))
        self.typical_weight = self.n_users / total
        noise = scale**2 * (np.sum(share**2) + np.sqrt(2.0 * np.sum(share**4)))
        # the typical click's item popularity, one standard error of the noise's squares off
        self.typical_popularity = max(float(np.sum((counts * share) ** 2) - noise), 0.0) / total

    def by_all(self, own: Popularity, counts: Any, errors: Any) -> Popularity:
        """Return what released counts, with errors by noise, and all else say of popularity."""
        return own

    def choose_rank(self) -> int:
        """Factors that the released counts support at this budget; 0: more counts serve better."""
        most = min(self.settings.n_components, self.n_items)
        if not self.private:
            return most
        self.signal = self.mu * self.typical_popularity * reliability(self.typical_weight**-2.0)
        if self.known is not None:
            self.signal = float(np.hypot(self.signal, self.known.signal[0]))
        # variance of what the rest of the budget would change in the counts
        gain = self.popularity.variance * max(1.0 - self.precision / self.mu**2, 0.0)
        if not is_known(self.popularity.mean, np.sqrt(gain)):
            return self.n_known
        rank = int(np.clip(round(self.signal**0.63), 1, most))
        return max(rank, self.n_known)

    def weigh(self) -> None:
        """Weights w_ij c_ij with a square sum of at most 1 a user, from noisy popularity alone."""
        N = self.popularity.mean
        users, weight, mass, self.click_weight = self.weights_by(N, self.typical_weight)
        if self.settings.weighting != "adaptive":
            mass = N * min(self.click_weight[0] / self.typical_weight, 1.0)
        self.mass, self.weighted, self.weight = mass, users, users.map(_of_clicks, weight)

    def ridge(self, V: NDArray[np.float64], strength: float) -> NDArray[np.float64]:
        """Return the weight of unobserved items and the penalty, for u_i."""
        a0 = self.settings.unobserved_weight
        strength = strength if self.private else FOLD_IN_RIDGE
        penalty = np.eye(V.shape[1]) * self.settings.alpha * strength
        return np.asarray(a0 * (V.T @ V) + penalty)

    def user_half(self, V: NDArray[np.float64]) -> PerUser:
        """Exact local solves on all of a user's clicks: x_i, in the unit ball."""
        ridge = self.ridge(V, TRAINING_RIDGE)
        X: PerUser = self.users.map(
            solve_users, self.offset, np.ascontiguousarray(V), ridge, self.private
        )
        return X

    def everybody(self, X: PerUser, t: int) -> NDArray[np.float64]:
        """K of round t as released."""
        total = sums.gram(self.users, X, clip=1.0, grid=self.grid)
        K = unpack_lower(self.release(EVERYBODY, total, t))
        return lift(K) if self.private else K

    def residuals(self, V: NDArray[np.float64], X: PerUser) -> PerUser:
        """Residuals e_ij of the kept clicks."""
        e: PerUser = self.weighted.map(_residuals, self.offset, np.ascontiguousarray(V), X)
        return e


# Maps of `Users`: values of each user alone


def _of_clicks(rows: Rows, weight: Any) -> NDArray[np.float64]:
    """Weights times those of the clicks."""
    return np.asarray(weight * rows.data)


def solve_users(rows: Rows, offset: Any, V: Any, ridge: Any, private: bool) -> Any:
    """Ridge regressions of 1 - offset on all of a user's clicks; in the unit ball if private."""
    X, none = np.empty((rows.n_users, V.shape[1])), np.empty(0)
    given = rows.indptr, rows.indices, 1.0 - offset[rows.indices], rows.data, V, ridge, none
    rows.run(lambda start, stop: solve_rows_weighted(*given, start, stop, X))
    if private:
        X /= np.maximum(np.linalg.norm(X, axis=1), _SMALLEST)[:, None]
        X *= shrink_to_ball(np.linalg.norm(X, axis=1), 1.0)[:, None]
    return X


def _residuals(rows: Rows, offset: Any, V: Any, X: Any) -> NDArray[np.float64]:
    """1 less the scores of clicks; 0 where it is not finite."""
    residual = 1.0 - offset[rows.indices] - predictions(rows, X, V)
    residual[~np.isfinite(residual)] = 0.0
    return np.asarray(residual)
