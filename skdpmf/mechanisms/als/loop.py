"""The loop of all ALS solvers: releases to start from, rounds of users' and items' halves, a model.

Solvers of ratings are `pooled` and `dpals`, those of clicks, whose loss is that of `clicks`, are
`pooled_clicks` and `dpals`. Items are weighted with sum_j w_ij^2 <= 1 for every user, by popularity
or by sampling.

The first factors are leading eigenvectors of noisy second moments of the most popular items.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from skdpmf.mechanisms import common
from skdpmf.mechanisms.item_means.residual_rounds import CLIP
from skdpmf.privacy import clipped_sums as sums
from skdpmf.privacy.budget import PrivacyBudget
from skdpmf.privacy.curator_release import Curator
from skdpmf.privacy.plan import Release, ReleasePlan
from skdpmf.privacy.sampler.grid import exact_grid
from skdpmf.privacy.users import PerUser, Users

# Tuned: start against rounds. Items whose noisy second moments start the factors
HEAD = 150

# Tuned: bias against noise. Ridges of u_i, times alpha: weaker while training, where |x_i| <= 1
# regularises as well
TRAINING_RIDGE, FOLD_IN_RIDGE = 0.35, 2.0

START = "second moments of the head"


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
        return 2.0**0.5 if self.lead else 1.0


class RatingModel(NamedTuple):
    """Released model in quarter ranges: y_ij ~ b_j + o_i + u_i . v_j."""

    item_means: NDArray[np.float64]  # b
    factors: NDArray[np.float64]  # V (n_items x n_components)
    ridge: float  # of u_i in the fold-in
    log_popularity: NDArray[np.float64]  # (n_items,)


def head_release(
    budget: PrivacyBudget, n_items: int, what: str, name: str = START, **more: Any
) -> Release:
    """Return the planned release of second moments of the head; what: products of what."""
    head = min(HEAD, n_items)
    statistic = f"sum over users of {what}, pairs of the {head} most popular items"
    return common.planned_gram(budget, name, statistic, head, **more)


def plan_of(
    budget: PrivacyBudget, releases: list[Release], shares: dict[str, float], notes: Iterable[str]
) -> ReleasePlan:
    """Return the plan that spends the budget (shares: of mu^2).

    The statistic of the first release may take the place of all others.
    """
    first, *others = releases
    others = [replace(release, alternatives=(first.name,)) for release in others]
    return ReleasePlan.from_shares(budget, [first, *others], shares, notes=notes)


class Weighted(NamedTuple):
    """Users whose entries enter the item step, with weights of these."""

    users: Users
    weight: PerUser  # w_ij
    mass: NDArray[np.float64]  # per item: expected sum of weights
    typical: NDArray[np.float64]  # per item: a typical weight


class AlternatingFit(ABC):
    """One fit: all releases in the plan's order.

    The curator is of the plan that the solver's `make_plan` draws up with the same settings, and of
    ratings in quarter ranges from the middle of the scale or weights in (0, 1] of clicks, one entry
    per user and item.
    """

    def __init__(self, curator: Curator, settings: Any) -> None:
        self.curator, self.settings, self.users = curator, settings, curator.users
        self.n_items, self.n_jobs = curator.users.n_items, curator.n_jobs
        self.private, self.mu = curator.private, curator.plan.mu
        self.release, self.releases = curator.release, curator.releases
        # every truncated factor of a product has magnitude at most 4
        self.grid = exact_grid(curator.n_rows, 4.0) if self.private else 0.0
        tau = settings.max_ratings_per_user if settings.weighting != "tail" else None
        self.kept = self.users.keep(common.subset, tau, curator.slot_priorities("subset"))

    def run(self, rounds: Iterable[int]) -> Any:
        """Return the model; rounds: range(max_iter), possibly wrapped in a progress display."""
        self.begin()
        for t in rounds:
            self.round(t)
        return self.model()

    def weights_by(self, N: NDArray[np.float64], typical_weight: float) -> Weighted:
        """Return weights with sum_j w_ij^2 <= 1 for every user, from noisy popularity alone."""
        s, cap = self.settings, self.settings.max_ratings_per_user
        users, weight = common.bounded_weights(self.users, self.kept, N, s, cap)
        mass, typical = N, np.full(self.n_items, common.INSIDE / np.sqrt(float(cap or 1)))
        if s.weighting == "adaptive":
            mass, typical = common.expected_weights(N, typical_weight, s.weight_exponent)
        return Weighted(users, weight, mass, typical)

    def release_start(
        self, users: Users, terms: PerUser, N: NDArray[np.float64], clip: float
    ) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Release the second moments of the most popular items' terms; return them and the head."""
        head = common.most_popular(N, min(HEAD, self.n_items))
        moments = sums.products(
            users, common.head_vectors, terms, head, clip=clip, grid=self.grid, diagonal=False
        )
        return self.release(START, moments), head

    @abstractmethod
    def begin(self) -> None:
        """Make the releases before the rounds: of popularity and means, and of factors to start."""

    @abstractmethod
    def round(self, t: int) -> None:
        """Make the releases of a round, and learn from them."""

    @abstractmethod
    def model(self) -> Any:
        """Return what is released in the end."""
