"""The loop of all ALS solvers: releases to start from, rounds of users' and items' halves, a model.

Ratings and clicks are two losses, with a user step each; "pooled", "dpals" and "dpsgd" are three
item steps for either::

                  ratings                  clicks
    loss          `ratings`, in `pooled`   `clicks`
    item step     `pooled`                 `pooled_clicks`
                  `dpals`                  `dpals_clicks`
                  `dpsgd`                  `dpsgd_clicks`
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any

from skdpmf.mechanisms.common import subset
from skdpmf.privacy.curator import Curator
from skdpmf.privacy.sampler.noise import exact_grid

__all__ = ["AlternatingFit"]


class AlternatingFit(ABC):
    """One fit: all releases in the plan's order.

    curator: of the plan that the solver's `make_plan` draws up, and of ratings in quarter ranges
    from the middle of the scale or weights in (0, 1] of clicks, one entry per user and item.
    """

    def __init__(self, curator: Curator, settings: Any) -> None:
        self.curator, self.settings, self.users = curator, settings, curator.users
        self.n_items, self.n_jobs = curator.users.n_items, curator.n_jobs
        self.private, self.mu = curator.private, curator.plan.mu
        self.release, self.releases = curator.release, curator.releases
        # every truncated factor of a product has magnitude at most 4
        self.grid = exact_grid(curator.n_rows, 4.0) if self.private else 0.0
        tau = settings.max_ratings_per_user if settings.weighting != "tail" else None
        self.kept = self.users.keep(subset, tau, curator.slot_priorities("subset"))

    def run(self, rounds: Iterable[int]) -> Any:
        """Return the model; rounds: range(max_iter), possibly wrapped in a progress display."""
        self.begin()
        for t in rounds:
            self.round(t)
        return self.model()

    @abstractmethod
    def begin(self) -> None:
        """Make the releases before the rounds: of popularity and means, and of factors to start."""

    @abstractmethod
    def round(self, t: int) -> None:
        """Make the releases of a round, and learn from them."""

    @abstractmethod
    def model(self) -> Any:
        """Return what is released in the end."""
