"""Shared parts of private solvers for ratings: settings, first releases, weights and the user step.

Ratings are y = (r - middle) / quarter range, modelled as y_ij ~ o_i + phi_i . theta_j with

    phi_i = (a, x_i),  x_i = u_i min(1, 1/|u_i|),     b_j = a theta_j0,  v_j = theta_j,1..k

so that |phi_i|^2 <= 1 + a^2. The user step is local and exact: (o_i, u_i) minimises
sum_j (y_ij - b_j - o_i - u_i . v_j)^2 + damping o_i^2 + u_i' L u_i on all of the user's ratings.
Items are weighted with sum_j w_ij^2 <= 1 for every user, by popularity or by sampling.

**What is released first**: the item statistics of `joint_release`, and a start of the factors, the
sum of x_i x_i' without its diagonal, x_i = w_i e_i on the most popular items, |x_i| <= C:
sensitivity C^2 (Frobenius). Items' halves are those of `dpals` and `dpsgd`; `pooled`, the default,
has a richer model and shares the settings alone.
"""

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from skdpmf.kernels.als import solve_rows
from skdpmf.mechanisms.als.loop import START, AlternatingFit, head_release
from skdpmf.mechanisms.common import head_directions, predictions
from skdpmf.mechanisms.item_means import joint_release as im
from skdpmf.mechanisms.item_means.residual_rounds import CLIP, ITEM_DAMPING
from skdpmf.privacy.budget import PrivacyBudget
from skdpmf.privacy.clipped_sums import scalars_bound, shrink_to_ball
from skdpmf.privacy.curator_release import Curator
from skdpmf.privacy.plan import Release
from skdpmf.privacy.users import PerUser, Rows

# Fixed: a, the constant coordinate of phi, by the paper
OFFSET = 1.0

# Tuned: bias against noise. Ridges of u_i, times alpha: weaker while training, where |x_i| <= 1
# regularises as well
TRAINING_RIDGE, FOLD_IN_RIDGE = 0.35, 2.0
MEAN_SQUARE = 0.25  # of x_i, as it is guessed

ITEM_STATISTICS = "item counts and means"
NOTES = (
    "Sums are in quarters of the rating range.",
    "The rank in use is chosen from the released item statistics, up to n_components: planned "
    "shapes are those of the full rank.",
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
    clip: ClassVar[float] = CLIP  # of a user's part of gradients, over the bound on |phi_i|
    vector: ClassVar[str] = "phi"  # in statistics

    @property
    def lead(self) -> int:
        """Coordinates of phi before x."""
        return int(self.item_means)

    @property
    def phi_bound(self) -> float:
        """Bound on |phi_i|."""
        return float(np.hypot(1.0, OFFSET)) if self.lead else 1.0


class RatingModel(NamedTuple):
    """Released model in quarter ranges: y_ij ~ b_j + o_i + u_i . v_j."""

    item_means: NDArray[np.float64]  # b
    factors: NDArray[np.float64]  # V (n_items x n_components)
    ridge: float  # of u_i in the fold-in
    log_popularity: NDArray[np.float64]  # (n_items,)


def first_releases(budget: PrivacyBudget, settings: Settings, n_items: int) -> list[Release]:
    """Item statistics and start, without noise yet: "dpals" and "dpsgd" begin with them."""
    near: Any = {"neighbors": budget.neighbors, "unit": budget.unit}
    counts = scalars_bound(im.COUNT_WEIGHT, im.USER_WEIGHT, signed=False, **near)
    deviations = scalars_bound(1.0, im.USER_WEIGHT, signed=True, **near)
    statistic = (
        "sums over users of their damped item counts and clipped, centred ratings, and of the "
        "users themselves"
    )
    sensitivity = float(np.hypot(counts, deviations))
    return [
        Release(ITEM_STATISTICS, statistic, (2, n_items + 1), sensitivity),
        head_release(budget, n_items, "residual products", bound=CLIP),
    ]


class RatingFit(AlternatingFit):
    """One fit, but for the item step, which moves ``theta``, of shape (n_items, lead + rank)."""

    theta: NDArray[np.float64]

    def __init__(self, curator: Curator, settings: Settings) -> None:
        super().__init__(curator, settings)
        self.lead, self.has_factors = settings.lead, False
        self.release_item_means = im.ItemMeanReleases(
            curator, self.kept, ITEM_STATISTICS, damping=settings.user_damping, grid=self.grid
        ).release

    def begin(self) -> None:
        """Release the item means, and choose the rank."""
        means = self.release_item_means(ITEM_STATISTICS)
        self.rank, self.n_mean_rounds = self.choose_rank(means)
        self.item_means = means if self.rank else self.release_item_means(START)

    def round(self, t: int) -> None:
        """Spend a round on the means, or on the item step."""
        if t >= self.n_mean_rounds:
            self.start_once()
            self.item_half(t)
            return
        for name, release in self.releases.items():
            if name not in (ITEM_STATISTICS, START):
                n = release.count // self.settings.max_iter
                for index in range(t * n, (t + 1) * n):
                    self.item_means = self.release_item_means(name, index=index)

    def start_once(self) -> None:
        """Start the factors, when no more rounds are spent on the means."""
        if not self.has_factors:
            means = self.item_means
            self.weighted = self.weights_by(means.mass, means.typical_weight)
            self.start(self.start_factors())
            self.has_factors = True

    def model(self) -> RatingModel:
        """Return the means alone at rank 0, or what was learnt."""
        factors = np.zeros((self.n_items, self.settings.n_components))
        popularity = np.log(self.item_means.mass)
        if self.rank == 0:
            return RatingModel(self.item_means.mean, factors, 1.0, popularity)
        self.start_once()
        factors[:, : self.rank] = self.factors()
        b = OFFSET * self.theta[:, 0] if self.lead else np.zeros(self.n_items)
        return RatingModel(b, factors, self.settings.alpha * FOLD_IN_RIDGE, popularity)

    @abstractmethod
    def start(self, V: NDArray[np.float64]) -> None:
        """Take in the factors to start from, of shape (n_items, rank)."""

    @abstractmethod
    def item_half(self, t: int) -> None:
        """Release round t's statistics, and learn from them."""

    @abstractmethod
    def factors(self) -> NDArray[np.float64]:
        """Return the factors in a frame where the users' second moment is the identity."""

    def choose_rank(self, means: im.ItemMeans) -> tuple[int, int]:
        """Rank, and number of rounds to spend on the means first."""
        most = min(self.settings.n_components, self.n_items)
        if not self.private:
            return most, 0
        return im.choose_rank(means, self.mu, most, self.settings.max_iter if self.lead else None)

    def start_factors(self) -> NDArray[np.float64]:
        """Leading eigenvectors of the head items' noisy second moments of residuals."""
        means, (users, weight, mass, _) = self.item_means, self.weighted
        b = means.mean if self.lead else np.zeros(self.n_items)
        damping = self.settings.user_damping if self.lead else np.inf  # else there are no offsets
        offset = self.users.map(_offsets, b, damping)
        terms = users.map(_centred, weight, b, offset)
        released, head = self.release_start(users, terms, means.mass, CLIP)
        deviation = self.curator.deviation(START)
        return head_directions(released, head, mass, self.rank, deviation)

    def priors(self, V: NDArray[np.float64]) -> tuple[Any, Any, Any]:
        """Return theta to start from, its prior mean, and the prior's precision by coordinate."""
        means, lead = self.item_means, self.lead
        theta, prior = np.zeros((2, self.n_items, lead + self.rank))
        precision = np.full(lead + self.rank, ITEM_DAMPING * self.settings.alpha)
        theta[:, lead:] = V
        if lead:
            theta[:, 0], prior[:, 0] = means.mean / OFFSET, means.prior_mean / OFFSET
            precision[0] = OFFSET**2 / means.prior_variance
        return theta, prior, precision

    def user_half(self, ridge: Any) -> tuple[PerUser, PerUser]:
        """Exact local solves on all of a user's ratings: offsets o and clipped phi."""
        damping = self.settings.user_damping if self.lead else None
        offset, phi = self.users.map(_solve_users, self.theta, ridge, damping, self.private)
        return offset, phi


# Maps of `Users`: values of each user alone


def _offsets(rows: Rows, b: Any, damping: float) -> NDArray[np.float64]:
    """Damped mean of each user's deviations from the items' means."""
    total = np.bincount(rows.user, weights=rows.data - b[rows.indices], minlength=rows.n_users)
    return np.asarray(total / (rows.n_ratings + damping))


def _centred(rows: Rows, weight: Any, b: Any, offset: Any) -> NDArray[np.float64]:
    """Weighted ratings less the items' means and the users' offsets."""
    return np.asarray(weight * (rows.data - b[rows.indices] - offset[rows.user]))


def _solve_users(
    rows: Rows, theta: Any, ridge: Any, damping: float | None, private: bool
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Offsets, 0 without a damping, and phi."""
    y, factors = rows.data, theta
    if damping is not None:
        y = y - OFFSET * theta[rows.indices, 0]
        factors = theta.copy()
        factors[:, 0] = 1.0
        damped = np.zeros((len(ridge) + 1, len(ridge) + 1))
        damped[0, 0], damped[1:, 1:] = damping, ridge
        ridge = damped
    Z = np.empty((rows.n_users, factors.shape[1]))
    given = rows.indptr, rows.indices, y, factors, ridge
    rows.run(lambda start, stop: solve_rows(*given, start, stop, Z))
    offset, u = np.zeros(rows.n_users), Z
    if damping is not None:
        offset, u = Z[:, 0].copy(), Z[:, 1:]
    if private:
        u *= shrink_to_ball(np.linalg.norm(u, axis=1), 1.0)[:, None]
    if damping is not None:
        Z[:, 0] = OFFSET
    return offset, Z


def residuals_of(rows: Rows, theta: Any, offset: Any, phi: Any) -> NDArray[np.float64]:
    """Ratings less their predictions."""
    residual = predictions(rows, phi, theta)
    np.subtract(rows.data - offset[rows.user], residual, out=residual)
    return residual
