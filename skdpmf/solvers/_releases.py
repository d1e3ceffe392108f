"""A plan's releases, made one after the other, and what several solvers do with the first ones."""

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from skdpmf.data.bounding import bound_contributions
from skdpmf.kernels._parallel import run_blocks
from skdpmf.kernels.gradients import accumulate_rhs
from skdpmf.privacy.noise import NoiseSource, exact_grid
from skdpmf.privacy.plan import Release, ReleasePlan
from skdpmf.solvers import item_means as im
from skdpmf.solvers.item_posterior import unpack_lower

__all__ = [
    "PlannedReleases",
    "Releases",
    "by_item",
    "choose_rank",
    "expected_weights",
    "head_factors",
    "most_popular",
    "popularity_weights",
    "random_subset",
    "rows_of",
    "spread_over_head",
    "sum_products",
]

# Rank: see choose_rank.
_SIGNAL_PER_FACTOR, _LEAST_SURE_SIGNAL = 3.0, 2.0
_HALF_RELIABLE = 20.0  # ratings of a user that determine half of his factors' variance


class Releases:
    """Makes the releases of a plan, at their noise multipliers.

    Parameters
    ----------
    plan : ReleasePlan
        Of Gaussian releases, or of Laplace ones.
    noise : NoiseSource
        Draws the noise.
    n_rows : int
        Rows at hand; the noise source knows the public number of all.
    n_jobs : int or None
        Threads that draw noise.
    """

    def __init__(
        self, plan: ReleasePlan, noise: NoiseSource, n_rows: int, n_jobs: int | None
    ) -> None:
        self.releases: dict[str, Any] = {release.name: release for release in plan.releases}
        self.noise, self.n_jobs, self.private = noise, n_jobs, plan.is_private
        self.n_rows = max(noise.total_rows(n_rows), 1)

    def terms(self, name: str, sensitivity: float, n_slots: int | None = None) -> dict[str, Any]:
        """Noise of a planned release for a statistic of this sensitivity, a bound on its values.

        `n_slots` is how many contributions a value can have, by default the rows.
        """
        planned = self.releases[name]
        return {
            "name": name,
            "sensitivity": sensitivity,
            "noise_multiplier": planned.noise_multiplier,
            "bound": (n_slots or self.n_rows) * sensitivity,
            "noise": "gaussian" if isinstance(planned, Release) else "laplace",
        }

    def release(
        self,
        name: str,
        statistic: Any,
        index: int = 0,
        *,
        like: str = "",
        n_slots: int | None = None,
    ) -> Any:
        """Release a statistic by the plan; `like` names the one whose sensitivity it has."""
        bound = self.releases[like or name]
        return self.noise.release(
            statistic,
            index=index,
            layout=getattr(bound, "layout", "full"),
            n_jobs=self.n_jobs,
            **self.terms(name, bound.sensitivity, n_slots),
        )


class PlannedReleases(Releases):
    """Makes releases among which are those of the item means of `item_means`.

    Item means may be released several times, also in the slots of other statistics; all their
    releases are combined by their precision.

    Parameters
    ----------
    R : csr_array of shape (n_users, n_items)
        The ratings that enter the item means, in quarter ranges from the middle of the scale.
    plan : ReleasePlan
        Its release named `item_statistics` is that of `item_means.item_mean_statistics`.
    noise : NoiseSource
        Draws the noise.
    item_statistics : str
        Name of that release.
    damping : float
        Fictitious ratings 0 in a user's own mean.
    n_jobs : int or None
        Threads that draw noise.
    influence : ndarray of shape (n_users,), default=None
        Factor in [0, 1] on each user's contribution.
    """

    def __init__(
        self,
        R: Any,
        plan: ReleasePlan,
        noise: NoiseSource,
        item_statistics: str,
        *,
        damping: float,
        n_jobs: int | None,
        influence: NDArray[np.float64] | None = None,
    ) -> None:
        super().__init__(plan, noise, R.shape[0], n_jobs)
        # every truncated factor of a product has magnitude at most 4
        self.grid = exact_grid(self.n_rows, 4.0) if self.private else 0.0
        self.item_statistics = item_statistics
        self.statistic = im.item_mean_statistics(
            R.indptr,
            R.indices,
            R.data,
            R.shape[1],
            damping=damping,
            clip=self.private,
            grid=self.grid,
            influence=influence,
        )
        self.total, self.precision = np.zeros_like(self.statistic), 0.0

    @property
    def mu(self) -> float:
        """Gaussian DP parameter of all releases."""
        return float(np.sqrt(sum(release.mu**2 for release in self.releases.values())))

    def release_item_means(self, *names: str, index: int = 0) -> im.ItemMeans:
        """Release popularity and means under the planned `names`; combine with earlier releases."""
        for name in names:
            precision = self.releases[name].noise_multiplier ** -2.0 if self.private else 1.0
            self.total += precision * self.release(
                name, self.statistic, index, like=self.item_statistics
            )
            self.precision += precision
        sensitivity = self.releases[self.item_statistics].sensitivity
        scale = sensitivity / np.sqrt(self.precision) if self.private else 0.0
        return im.estimate_item_means(self.total / self.precision, scale, self.n_rows)


def choose_rank(means: im.ItemMeans, mu: float, most: int, max_iter: int | None) -> tuple[int, int]:
    """Rank, and number of rounds to spend on the means first, from released values only.

    The signal is mu times the typical rating's popularity, times the reliability of a typical
    user's factors when training and again when predicting. The rank grows with its root. The
    weaker it is, the more of the max_iter rounds go to the means: all, at rank 0, unless it stands
    clear of its noise. None: no round can, so the rank is 1 at least.
    """
    n = means.typical_weight**-2.0
    scale = mu * (n / (n + _HALF_RELIABLE)) ** 2
    signal = scale * means.popularity
    rank = int(np.clip(round(np.sqrt(signal / _SIGNAL_PER_FACTOR)), 1, most))
    if max_iter is None:
        return rank, 0
    if scale * means.sure_popularity < _LEAST_SURE_SIGNAL:
        return 0, max_iter
    return rank, int(max_iter / signal)


def popularity_weights(
    R: Any, mass: NDArray[np.float64], exponent: float, norm: str = "l2"
) -> NDArray[np.float64]:
    """Weights w_ij ~ mass_j^-exponent, of norm <= 1 for every user, aligned with R.data."""
    row, log_raw = rows_of(R), -exponent * np.log(mass)
    # less the user's largest, so that no power of the popularity leaves the doubles
    largest = np.full(R.shape[0], -np.inf)
    rated = np.diff(R.indptr) > 0
    largest[rated] = np.maximum.reduceat(log_raw[R.indices], R.indptr[:-1][rated])
    weight = np.exp(log_raw[R.indices] - largest[row])
    size = im.row_norms(row, weight, R.shape[0], norm)
    # a hair inside: rounding must not exceed the bound
    weight *= ((1.0 - 2.0**-40) / np.maximum(size, 1.0))[row]
    return np.asarray(weight)


def expected_weights(
    N: NDArray[np.float64], typical_weight: float, exponent: float, norm: str = "l2"
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Each item's expected sum of `popularity_weights` and typical weight, from popularity alone.

    norm_i ~ sqrt(n_i) * root mean square of raw over ratings; N_j ~ sum_i 1 / sqrt(n_i). In l1,
    n_i * the mean of raw, and sum_i 1 / n_i.
    """
    log_raw = -exponent * np.log(N)
    raw = np.exp(log_raw - log_raw.max())
    power = 1.0 if norm == "l1" else 2.0
    level = (np.sum(N * raw**power) / np.sum(N)) ** (1.0 / power)
    total = N * raw / level
    typical = np.clip(typical_weight * raw / level, 1e-12, 1.0)
    return np.maximum(total, 1e-12 * total.max()), typical


def random_subset(R: Any, tau: int | None, noise: NoiseSource) -> Any:
    """At most tau random ratings of each user, by keys of the user's slot; None: all of them."""
    if tau is None:
        return R
    return bound_contributions(R, tau, noise.slot_priorities("subset", R.indptr, R.indices))


def head_factors(
    release: Callable[[NDArray[np.float64]], NDArray[np.float64]],
    R: Any,
    x: Callable[[], NDArray[np.float64]],
    popularity: NDArray[np.float64],
    mass: NDArray[np.float64],
    rank: int,
    *,
    n_head: int,
    clip: float | None,
    grid: float,
    deviation: float,
) -> NDArray[np.float64]:
    """Leading eigenvectors of the head items' noisy second moments of weighted residuals.

    Parameters
    ----------
    release : callable
        Adds the noise to the packed moments sum_i x_i x_i', whose sensitivity is that of
        |x_i| <= clip.
    R : CSR of shape (n_users, n_items)
        Ratings; only their places matter.
    x : callable
        Returns weighted residuals, aligned with R.data; they are not kept.
    popularity, mass : ndarray of shape (n_items,)
        What the head is chosen by, and the expected sum of weights.
    rank : int
        Number of factors, at least 1.
    n_head : int
        Items of the head.
    clip : float or None
        Bound on |x_i|; None without privacy.
    grid : float
        Power of two to which x is truncated; 0 for none.
    deviation : float
        Standard deviation of the noise.

    Returns
    -------
    ndarray of shape (n_items, rank)
        Factors of root mean square 0.3 in the head, 0 elsewhere. The diagonal is left out.
    """
    head = most_popular(popularity, n_head)
    moments = _head_moments(R, x(), head, clip, grid)
    noisy = unpack_lower(release(moments[np.tril_indices(n_head)]))
    np.fill_diagonal(noisy, 0.0)
    values, vectors = np.linalg.eigh(noisy)
    top = np.argsort(-values, kind="stable")[:rank]
    loading = vectors[:, top] * np.sqrt(np.maximum(values[top], max(deviation, 1e-12)))
    return spread_over_head(loading, head, mass)


def _head_moments(
    R: Any, x: NDArray[np.float64], head: NDArray[np.int64], clip: float | None, grid: float
) -> NDArray[np.float64]:
    """Sum over users of x_i x_i' in the head, |x_i| <= clip, without its diagonal."""
    place = np.full(R.shape[1], -1)
    place[head] = np.arange(head.size)
    known = place[R.indices] >= 0
    x, row, n_users = x[known], rows_of(R)[known], R.shape[0]
    if clip is not None:
        x = im.truncate(x * im.shrink_to_ball(im.row_norms(row, x, n_users), clip)[row], grid)
    X = sp.csr_matrix((x, (row, place[R.indices[known]])), shape=(n_users, head.size))
    moments = (X.T @ X).toarray()
    np.fill_diagonal(moments, 0.0)
    return np.asarray(moments)


def most_popular(popularity: NDArray[np.float64], n_head: int) -> NDArray[np.int64]:
    """Return the places of the `n_head` most popular items, in their order."""
    return np.sort(np.argsort(-popularity, kind="stable")[:n_head])


def spread_over_head(loading: Any, head: Any, mass: NDArray[np.float64]) -> NDArray[np.float64]:
    """Item factors from loadings of weighted residuals: of root mean square 0.3 in the head."""
    own = mass[head]
    loading = loading * (own / (own**2 + 0.3 * np.median(own) ** 2))[:, None]
    V = np.zeros((len(mass), loading.shape[1]))
    if loading.size:
        V[head] = 0.3 * loading / max(np.sqrt(np.mean(loading**2)), 1e-300)
    return V


def by_item(R: Any) -> Any:
    """CSC pattern whose data are the entries' positions in R."""
    return sp.csr_matrix((np.arange(R.nnz), R.indices, R.indptr), shape=R.shape).tocsc()


def rows_of(R: Any) -> NDArray[np.int64]:
    """User of each stored entry."""
    return np.repeat(np.arange(R.shape[0]), np.diff(R.indptr))


def sum_products(
    R: Any,
    terms: NDArray[np.float64],
    scale: NDArray[np.float64],
    factors: NDArray[np.float64],
    grid: float,
    n_jobs: int | None,
) -> NDArray[np.float64]:
    """Sum over users i of scale_i terms_ij factors_i for every item j, exact on the grid.

    As `accumulate_rhs`, whose sensitivity it has. Sums that are not exact have an order: without a
    grid one thread does all.
    """
    spare: list[NDArray[np.float64]] = []

    def add(start: int, stop: int) -> None:
        try:
            out = spare.pop()
        except IndexError:  # first block of this thread
            out = np.zeros((R.shape[1], factors.shape[1]))
        accumulate_rhs(R.indptr, R.indices, terms, scale, factors, grid, start, stop, out)
        spare.append(out)

    run_blocks(add, R.indptr, n_jobs if grid else 1)
    return np.asarray(sum(spare))
