"""The bias baseline y_ij ~ b_j + o_i: item means from several releases, offsets of users.

Ratings y are in quarter ranges from the middle of the scale. With noise, the releases are those of
`averages` and `residual_rounds`, and nothing else is released: at unit "user" the global mean,
item counts once and residuals in each round, at unit "rating" the items' counts and sums. Without
noise each round is one sweep of least squares,

    sum_ij (y_ij - b_j - o_i)^2 + damping sum_i o_i^2 + lambda sum_j (b_j - G)^2,

over all o_i, then over all b_j, G being the mean of all ratings and lambda learnt from what they
leave (`averages.least_squares`).

At unit "user" a fit may go on from `Knowledge` of earlier fits, on other people: the global mean,
counts and residuals of all cohorts add up, each by its own noise.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from skdpmf.mechanisms.item_means import averages as item_averages
from skdpmf.mechanisms.item_means.popularity import estimate_popularity
from skdpmf.mechanisms.item_means.residual_rounds import (
    ITEM_DAMPING,
    RESIDUALS,
    ROUNDS,
    PublicAverages,
    averages_of_model,
    public_averages,
    residual_shares,
)
from skdpmf.mechanisms.knowledge import Knowledge, PublicModel
from skdpmf.privacy.budget import PrivacyBudget
from skdpmf.privacy.curator_release import Curator
from skdpmf.privacy.frame import curator_of_public
from skdpmf.privacy.plan import ReleasePlan
from skdpmf.privacy.sampler.grid import exact_grid

N_ROUNDS = item_averages.N_ROUNDS
_NORMS = {"gaussian": "l2", "laplace": "l1"}  # of the sensitivities


def make_plan(budget: PrivacyBudget, n_items: int) -> ReleasePlan:
    """Plan the releases of a fit, from public values alone.

    budget: with delta > 0 for Gaussian noise, 0 for Laplace noise. Result: with noise that spends
    the whole budget. Raises PrivacyParameterError if the budget cannot be planned for.
    """
    noise = _noise(budget)
    planned = item_averages.average_releases(budget.unit, budget.neighbors, _NORMS[noise], n_items)
    shares = {item_averages.STATISTICS: 1.0}
    if budget.unit == "user":
        overall = item_averages.global_share(n_items)
        shares = {item_averages.GLOBAL: overall, **residual_shares(noise, 1.0 - overall)}
    releases = [
        item_averages.uncalibrated(
            noise, *release, count=ROUNDS[noise] if release[0] == RESIDUALS else 1
        )
        for release in planned
        if release[0] in shares
    ]
    notes = ("Sums are in quarters of the rating range.",)
    return ReleasePlan.from_shares(budget, releases, shares, notes=notes)


class MeansModel(NamedTuple):
    """Released item means in quarter ranges, and what a refresh starts from."""

    item_means: NDArray[np.float64]  # b
    log_popularity: NDArray[np.float64]  # but for a constant
    knowledge: Knowledge | None  # without privacy a fit that takes the model as public


def fit(
    curator: Curator,
    damping: float,
    *,
    rounds: Iterable[int],
    known: Knowledge | None = None,
    public: Any = None,
) -> MeansModel:
    """Make the plan's releases in their order and return the item means b.

    curator: of ratings in quarter ranges from the middle of the scale, and a plan of `make_plan`;
    damping: fictitious ratings in a user's own offset, at the item means; rounds: range(N_ROUNDS),
    possibly wrapped in a progress display; known: what earlier fits have released; public: rows of
    public people, or their model, at unit "user".
    """
    if not curator.private:
        R = curator.users.without_privacy()
        counts = np.bincount(R.indices, minlength=R.n_items).astype(np.float64)
        popularity = estimate_popularity(counts, 0.0).log_mean
        own = public_averages(R, damping).knowledge() if R.nnz else None
        return MeansModel(item_averages.least_squares(R, damping, rounds), popularity, own)
    budget, planned = curator.plan.budget, curator.releases
    unit, norm = budget.unit, _NORMS[_noise(budget)]
    by_user, level = unit == "user", (0.0, 0.0)
    shown = None
    if isinstance(public, PublicModel):
        shown = averages_of_model(public.known)
    elif public is not None:
        shown = averages_of_rows(public, damping, curator.n_jobs, norm)
    more: dict[str, Any] = {"public": shown} if by_user else {}
    averages = item_averages.averages_for(
        unit,
        curator,
        curator.users,
        norm=norm,
        damping=(ITEM_DAMPING, damping),
        grid=exact_grid(curator.n_rows, 1.0, degree=1),
        known=known,
        **more,
    )
    if by_user:
        G, level = item_averages.pooled_level(
            item_averages.measured_global_mean(curator, unit, norm), known, shown
        )
    averages.release(item_averages.FIRST[unit])
    later = planned.get(RESIDUALS)
    for t in rounds:
        if later is not None and t < later.count:
            averages.release(RESIDUALS, t)
    if not by_user:
        G = averages.overall_mean
    means = np.clip(item_averages.recentred(averages.mean, averages.counts, G), -2.0, 2.0)
    return MeansModel(means, averages.log_popularity, averages.knowledge(level))


def averages_of_rows(
    rows: Any, damping: float, n_jobs: int | None, norm: str = "l2"
) -> PublicAverages:
    """Return what prepared rows of public people show."""
    plan = make_plan(PrivacyBudget.nonprivate(), rows.shape[1])
    beside = curator_of_public(rows, plan, n_jobs, np.zeros((rows.shape[1], 0)))
    return public_averages(beside.users.without_privacy(), damping, norm)


def _noise(budget: PrivacyBudget) -> str:
    """Kind of noise: Laplace's, which a budget without delta needs, or Gaussian."""
    return "laplace" if budget.is_private and budget.delta == 0.0 else "gaussian"
