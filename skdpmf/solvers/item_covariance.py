r"""Noisy item averages and a noisy item covariance, released once, and the factors they give.

Ratings y are in quarter ranges from the middle of the scale. The steps are

1. global effects and item averages b_j: `item_averages`;
2. head: the items popular enough for their covariance to be seen through the noise;
3. `centre_rows`: on the head's items, x_ij = clip(y_ij - b_j - o_i, -B, B), with the user's damped
   mean o_i = sum_j (y_ij - b_j) / (n_i + user_damping). It stays with the user;
4. one release of both Cov = sum_i w_i x_i x_i' and Wgt = sum_i w_i e_i e_i', e_ij = 1 for known
   ratings, w_i of `skdpmf.privacy.covariance`;
5. cleaning and factors L: `covariance_factors`.

Steps 1 and 4 are the only ones that see ratings other than through released values. If step 2
finds no head, step 4 measures item averages once more instead.

F. McSherry, I. Mironov, "Differentially private recommender systems", KDD 2009, for the steps; the
sensitivities, the head, the averages at unit "user" and the cleaning by popularity are not theirs.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from joblib import Parallel, delayed
from numpy.typing import NDArray

from skdpmf.kernels.covariance import (
    accumulate_pairs,
    item_major,
    pair_blocks,
    pair_work,
    triangle_starts,
)
from skdpmf.privacy.budget import PrivacyBudget, public_rows
from skdpmf.privacy.covariance import (
    centred_interval,
    covariance_sensitivity,
    covariance_weights,
)
from skdpmf.privacy.noise import NoiseSource, exact_grid, truncate_to_grid
from skdpmf.privacy.plan import PureRelease, Release, ReleasePlan
from skdpmf.solvers import covariance_factors as factors
from skdpmf.solvers._releases import Releases, rows_of
from skdpmf.solvers.item_averages import (
    FIRST,
    GLOBAL,
    STATISTICS,
    average_releases,
    averages_for,
    global_share,
    noise_strength,
    plain_averages,
    recentred,
    released_global_mean,
    uncalibrated,
)
from skdpmf.solvers.item_residuals import RESIDUALS, Popularity, n_average_rounds, residual_shares

__all__ = [
    "COVARIANCE",
    "N_ROUNDS",
    "RIDGE",
    "Model",
    "Settings",
    "centre_rows",
    "fit",
    "make_plan",
]

COVARIANCE = "item covariance"
N_ROUNDS = 10  # parts in which the covariance is summed and released, for progress bars
WEIGHT_SCALE = 0.25  # t of the release (Cov, t Wgt): most of it is for Cov
RIDGE = 0.5  # variance of a rating around its prediction, in squared quarter ranges

# "auto": the averages' share is m / (m + mu), or m / (m + epsilon) for Laplace noise, with this m
# for as many rows as MovieLens 1M has: more rows need less for the same item means
_HALF_SHARE = {
    ("user", "gaussian"): 1.1,
    ("rating", "gaussian"): 0.25,
    ("user", "laplace"): 50.0,
    ("rating", "laplace"): 2.0,
}
_ROWS, _MOST_ROWS_RATIO = 6040, 4.0
# smaller epsilons of Laplace noise are all for the averages: two releases know less than one
_LEAST_LAPLACE = {"user": 40.0, "rating": 4.0}
_LEAST_SIGNAL, _LEAST_SHARE = 30.0, 0.3  # see head_items
_MEMORY = 4 * 2**30  # bytes of the two triangles
_DOUBLE_MEMORY = 2**30  # up to which they are float64
_RANGE = (-2.0, 2.0)  # of ratings, in quarter ranges
_CENTRED_GRID = 2.0**-30  # of y - b, so that users' sums are exact
# Neighbours' entries differ by the grid of the sums and by the float errors of x; if a user comes
# or goes, truncation lowers what there is
_COARSEST_GRID, _FLOAT_ERROR = 2.0**-32, 2.0**-44
_BLOCK_ENTRIES = 1 << 21


@dataclass(frozen=True)
class Settings:
    """Public settings of a fit; `skdpmf.DPCovarianceRecommender` explains them."""

    noise: str
    n_components: int
    item_damping: float
    user_damping: float
    clamp: float
    clean: bool
    shares: tuple[float, float, float] | None  # None: "auto"

    @property
    def norm(self) -> str:
        """Norm of the sensitivities."""
        return "l2" if self.noise == "gaussian" else "l1"

    @property
    def entries(self) -> str:
        """Entries of symmetric matrices that the noise is made for."""
        return "full" if self.noise == "gaussian" else "upper"


class Model(NamedTuple):
    """Released model in quarter ranges: y_ij ~ b_j + o_i + z_i . L_j, z_i standard normal."""

    item_means: NDArray[np.float64]
    factors: NDArray[np.float64]  # L (n_items x n_components)
    head: NDArray[np.int64]  # items of the covariance, ascending
    covariance: factors.PackedCovariance | None


def make_plan(
    budget: PrivacyBudget, settings: Settings, n_items: int, n_rows: int | None = None
) -> ReleasePlan:
    """Plan the releases of a fit, from public values alone.

    Parameters
    ----------
    budget : PrivacyBudget
        With delta > 0 for Gaussian noise, unless it is not private.
    settings : Settings
        Public settings.
    n_items : int
        Size of the catalogue.
    n_rows : int, default=None
        Rows of X, of which `public_rows` counts. "auto" shares depend on it; more than two million
        rows need a coarser grid for exact sums. None: as many as MovieLens 1M has, 6,040.

    Returns
    -------
    ReleasePlan
        Global effects, item averages and the covariance, with noise that spends the whole budget.

    Raises
    ------
    PrivacyParameterError
        If the budget cannot be planned for.
    """
    unit = _unit(budget)
    most, n_rows = max_head(n_items), public_rows(n_rows or _ROWS)
    grid = max(_COARSEST_GRID, _sum_grid(settings, n_rows))
    planned = average_releases(unit, budget.neighbors, settings.norm, n_items)
    planned += [
        (
            COVARIANCE,
            "sums over users of w x x' and w e e', x the clamped centred ratings and e the "
            "pattern; triangles",
            (2, most * (most + 1) // 2),
            _sensitivity(budget, settings, most, 2.0 * (_RANGE[1] - _RANGE[0]), grid),
        )
    ]
    shares = _shares(budget, settings, unit == "user", n_rows)
    planned = [release for release in planned if shares.get(release[0], 0.0) > 0.0]
    rounds = n_average_rounds(settings.noise, noise_strength(budget, settings.noise))
    releases = [
        _release(settings, *release, count=rounds if release[0] == RESIDUALS else 1)
        for release in planned
    ]
    return ReleasePlan.from_shares(
        budget,
        releases,
        {release.name: shares[release.name] for release in releases},
        notes=_notes(budget, settings, n_items, covers=shares[COVARIANCE] > 0.0),
    )


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
    R : csr_array of shape (n_users, n_items)
        Ratings in quarter ranges from the middle of the scale, one entry per user and item,
        columns ascending.
    settings : Settings
        Public settings.
    plan : ReleasePlan
        From `make_plan` with the same settings.
    noise : NoiseSource
        Draws all noise.
    rounds : iterable of int
        range(N_ROUNDS), possibly wrapped in a progress display.
    n_jobs : int or None
        Threads; does not change the result.

    Returns
    -------
    Model
    """
    return _Fit(R, settings, plan, noise, n_jobs).model(rounds)


def max_head(n_items: int) -> int:
    """Most items of a covariance that fit into memory, both triangles as float32."""
    return min(n_items, int((np.sqrt(_MEMORY + 1.0) - 1.0) / 2.0))


def centre_rows(
    R: Any, item_means: NDArray[np.float64], *, damping: float, clamp: float
) -> NDArray[np.float64]:
    """Return x of step 3, aligned with R.data.

    Parameters
    ----------
    R : csr_array of shape (n_users, h)
        Ratings, within two quarter ranges of 0.
    item_means : ndarray of shape (h,)
        Released averages, likewise.
    damping : float
        Fictitious ratings at the item means.
    clamp : float
        B > 0.

    Returns
    -------
    ndarray of shape (R.nnz,)
        Values in [-B, B]. Ratings less means are truncated to a grid, so that x does not depend on
        the order of sums.
    """
    n = np.diff(R.indptr)
    y = truncate_to_grid(R.data - item_means[R.indices], _CENTRED_GRID)
    row = rows_of(R)
    offset = np.bincount(row, weights=y, minlength=R.shape[0]) / np.maximum(n + damping, 1e-300)
    return np.clip(y - offset[row], -clamp, clamp)


def head_items(
    popularity: Popularity,
    weights: Any,
    deviation: float,
    most: int,
) -> NDArray[np.int64]:
    """Choose the items whose covariance can be seen through the noise, from released values.

    With c items of the head in a typical row, the entries of Wgt are about
    E_ij = n_users w(c + 1) c^2 N_i N_j / (sum_j N_j)^2. The head is the largest set of most popular
    items in which the norm of the least popular one's row of E is `_LEAST_SIGNAL` times the
    deviation.

    Parameters
    ----------
    popularity : Popularity
        Released.
    weights : callable
        w of numbers of ratings.
    deviation : float
        Standard deviation of the noise of an entry off the diagonal of Cov.
    most : int
        Most items.

    Returns
    -------
    ndarray of int64
        Columns, ascending; none if they hold less than `_LEAST_SHARE` of all ratings: then
        predictions gain less from their covariance than from better averages.
    """
    order = np.argsort(-popularity.mass, kind="stable")[:most]
    N = popularity.mass[order]
    c = np.cumsum(popularity.n_ratings[order]) / popularity.n_users
    total = popularity.n_users * weights(np.maximum(np.rint(c + 1.0), 1.0)) * c**2
    norms = total * N * np.sqrt(np.cumsum(N**2)) / np.cumsum(N) ** 2
    seen = np.flatnonzero(norms >= _LEAST_SIGNAL * deviation)
    size = int(seen[-1]) + 1 if seen.size else 0
    if np.sum(N[:size]) < _LEAST_SHARE * np.sum(popularity.mass):
        size = 0
    return np.sort(order[:size])


class _Fit:
    def __init__(
        self,
        R: Any,
        settings: Settings,
        plan: ReleasePlan,
        noise: NoiseSource,
        n_jobs: int | None,
    ) -> None:
        self.R, self.settings, self.budget, self.n_jobs = R, settings, plan.budget, n_jobs
        self.noise, self.private = noise, plan.is_private
        self.planned = Releases(plan, noise, R.shape[0], n_jobs)
        self.most = max_head(R.shape[1])
        self.unit = _unit(plan.budget)

    def model(self, rounds: Iterable[int]) -> Model:
        if self.private:
            means, popularity, head = self.private_averages()
        else:
            b, popularity = plain_averages(self.R, self.settings.item_damping)
            G = float(self.R.data.mean()) if self.R.nnz else 0.0
            means, head = recentred(b, popularity.n_ratings, G), self.largest(popularity)
            means = np.clip(means, *_RANGE)
        n_items = self.R.shape[1]
        L = np.zeros((n_items, self.settings.n_components))
        if head.size == 0 or COVARIANCE not in self.planned.releases:
            return Model(means, L, np.empty(0, np.int64), None)
        clean, mass = self.released_covariance(means, popularity, head, rounds)
        k = self.settings.n_components
        found = factors.leading_factors(
            clean,
            mass,
            k,
            communalities=self.settings.clean,
            above_noise=self.settings.clean and self.private,
            n_jobs=self.n_jobs,
        )
        L[head, : found.shape[1]] = found
        return Model(means, L, head, clean)

    def private_averages(self) -> tuple[NDArray[np.float64], Popularity, NDArray[np.int64]]:
        """Item means, popularity and head."""
        s, releases = self.settings, self.planned.releases
        averages = averages_for(
            self.unit,
            self.R,
            self.planned,
            norm=s.norm,
            damping=(s.item_damping, s.user_damping),
            grid=exact_grid(self.planned.n_rows, 1.0, degree=1),
        )
        G = self.global_mean()
        averages.release(FIRST[self.unit])
        head = self.head(averages.popularity)
        for t in range(releases[RESIDUALS].count if RESIDUALS in releases else 0):
            averages.release(RESIDUALS, t)
        if head.size == 0 and COVARIANCE in releases:
            averages.release(COVARIANCE)
        if G is None and self.unit == "rating":
            G = averages.overall_mean
        means = averages.mean if G is None else recentred(averages.mean, averages.counts, G)
        return np.clip(means, *_RANGE), averages.popularity, head

    def global_mean(self) -> float | None:
        """G of step 1, if it is released on its own."""
        if GLOBAL not in self.planned.releases:
            return None
        return released_global_mean(self.R, self.planned, self.unit)

    def largest(self, popularity: Popularity) -> NDArray[np.int64]:
        """As many of the most popular items as fit into memory."""
        order = np.argsort(-popularity.mass, kind="stable")
        return np.sort(order[: self.most])

    def head(self, popularity: Popularity) -> NDArray[np.int64]:
        """Items of step 2."""
        if COVARIANCE not in self.planned.releases:
            return np.empty(0, np.int64)
        if self.settings.shares is not None:
            return self.largest(popularity)
        deviation = self.deviation(self.planned.releases[COVARIANCE].sensitivity)
        return head_items(popularity, self.weights, deviation, self.most)

    def weights(self, n_ratings: NDArray[Any]) -> NDArray[np.float64]:
        """Weights w of step 4."""
        s = self.settings
        return covariance_weights(n_ratings, norm=s.norm, entries=s.entries, unit=self.unit)

    def deviation(self, sensitivity: float) -> float:
        """Standard deviation of the noise off the diagonal of Cov."""
        if not self.private:
            return 0.0
        scale = self.planned.releases[COVARIANCE].noise_multiplier * sensitivity
        return float(scale * (np.sqrt(0.5) if self.settings.noise == "gaussian" else np.sqrt(2.0)))

    def released_covariance(
        self,
        means: NDArray[np.float64],
        popularity: Popularity,
        head: NDArray[np.int64],
        rounds: Iterable[int],
    ) -> tuple[factors.PackedCovariance, NDArray[np.float64]]:
        """Steps 3 to 5, and the popularity of the head's items."""
        R = self.R if head.size == self.R.shape[1] else self.R[:, head]
        R.sort_indices()
        low, high = centred_interval(_RANGE, means[head])
        grid, s = _sum_grid(self.settings, self.planned.n_rows), self.settings
        sensitivity = min(
            _sensitivity(self.budget, s, head.size, high - low, grid),
            self.planned.releases[COVARIANCE].sensitivity,
        )
        x = centre_rows(R, means[head], damping=s.user_damping, clamp=s.clamp)
        cov, wgt = self.noisy_sums(R, x, grid, sensitivity, rounds)
        deviation = self.deviation(sensitivity)
        noise, mass = (deviation, deviation / WEIGHT_SCALE), popularity.mass[head]
        if s.clean:
            clean = factors.clean_covariance(cov, wgt, mass, noise=noise, n_jobs=self.n_jobs)
            return clean, mass
        return factors.divide_covariance(cov, wgt, noise=noise), mass

    def noisy_sums(
        self,
        R: Any,
        x: NDArray[np.float64],
        grid: float,
        sensitivity: float,
        rounds: Iterable[int],
    ) -> tuple[NDArray[Any], NDArray[Any]]:
        """Cov and Wgt of step 4 as released, packed: no second copy is ever made."""
        h = R.shape[1]
        starts, size = triangle_starts(h), h * (h + 1) // 2
        kind = np.float64 if 16 * size <= _DOUBLE_MEMORY else np.float32
        released = np.empty((2, size), kind)
        items = item_major(R.indptr, R.indices, h)
        work, n_jobs = np.empty(h + 1, np.int64), self.n_jobs
        if self.noise.shared:  # the same pieces in the same order for all blocks of users
            work, n_jobs = starts, 1
        else:
            pair_work(R.indptr, *items, work)
        weight = self.weights(np.diff(R.indptr))
        columns = R.indices.astype(np.uint16 if h < 2**16 else np.int64)
        scales = np.array([grid, grid * WEIGHT_SCALE])
        with self.noise.blocks(
            shape=(2, size),
            layout="packed" if self.settings.noise == "gaussian" else "full",
            **self.planned.terms(COVARIANCE, sensitivity),
        ) as stream:

            def block(start: int, stop: int) -> None:
                rows = slice(starts[start], starts[stop])
                sums = np.empty((2, rows.stop - rows.start), np.int64)
                accumulate_pairs(
                    R.indptr, columns, x, weight, *items, grid, start, stop, sums[0], sums[1]
                )
                for matrix in (0, 1):
                    place = matrix * size + int(rows.start)
                    values = stream.release(place, sums[matrix] * scales[matrix])
                    if values is not None:  # a block of users does not learn them
                        released[matrix, rows] = values / (WEIGHT_SCALE if matrix else 1.0)

            blocks = pair_blocks(work, 4 * N_ROUNDS, _BLOCK_ENTRIES)
            # all rounds take place, whatever the number of blocks
            cuts = np.linspace(0, len(blocks), N_ROUNDS + 1).astype(int)
            for t in rounds:
                Parallel(n_jobs=n_jobs, prefer="threads", require="sharedmem")(
                    delayed(block)(*ends) for ends in blocks[cuts[t] : cuts[t + 1]]
                )
        return released[0], released[1]


def _notes(budget: PrivacyBudget, settings: Settings, n_items: int, *, covers: bool) -> list[str]:
    """Public remarks of the plan."""
    notes, most = ["Sums are in quarters of the rating range."], max_head(n_items)
    if covers and _unit(budget) == "rating" and budget.is_private:
        notes.append(
            "The covariance's sensitivity holds for any item means; a fit uses the smaller one of "
            "its released means and items, with noise in proportion."
        )
    if covers and most < n_items:
        notes.append(
            f"Memory: the covariance covers at most the {most} items of the largest released "
            "counts; the others have their item means only."
        )
    if covers and settings.shares is None and budget.is_private:
        notes.append(
            "The covariance covers the items whose released counts can be seen through the noise; "
            f"if they hold less than {_LEAST_SHARE:.0%} of the ratings, its slot releases item "
            "averages once more instead, at the planned noise multiplier."
        )
    return notes


def _unit(budget: PrivacyBudget) -> str:
    """Unit whose statistics are used: without privacy those of the published main algorithm."""
    return budget.unit if budget.is_private else "rating"


def _shares(
    budget: PrivacyBudget, settings: Settings, by_user: bool, n_rows: int
) -> dict[str, float]:
    """Share of the budget by release."""
    overall, averages, covariance = settings.shares or (0.0, 0.0, 0.0)
    if settings.shares is None:
        unit, strength = _unit(budget), noise_strength(budget, settings.noise)
        ratio = min(_ROWS / n_rows, _MOST_ROWS_RATIO)
        half = _HALF_SHARE[unit, settings.noise] * ratio
        overall = global_share(budget, settings.noise, n_rows) if by_user else 0.0
        averages = (1.0 - overall) * half / (half + strength)
        if settings.noise == "laplace" and strength < _LEAST_LAPLACE[unit]:
            averages = 1.0 - overall
        covariance = max(1.0 - overall - averages, 0.0)
    by_kind = {STATISTICS: averages}
    if by_user:
        by_kind = residual_shares(settings.noise, averages)
    return {GLOBAL: overall, **by_kind, COVARIANCE: covariance}


def _release(
    settings: Settings,
    name: str,
    statistic: str,
    shape: tuple[int, ...],
    sensitivity: float,
    count: int,
) -> Release | PureRelease:
    """One planned release; `ReleasePlan.from_shares` calibrates it."""
    if name == COVARIANCE and settings.noise == "gaussian":
        return Release(name, statistic, shape, sensitivity, layout="packed")
    return uncalibrated(settings.noise, name, statistic, shape, sensitivity, count)


def _sum_grid(settings: Settings, n_rows: int) -> float:
    """Grid on which sums of all rows' shares of an entry are exact."""
    return exact_grid(max(n_rows, 1), max(settings.clamp**2, 1.0), degree=1)


def _sensitivity(
    budget: PrivacyBudget, settings: Settings, n_items: int, centred_range: float, grid: float
) -> float:
    """Sensitivity of (Cov, t Wgt)."""
    B = settings.clamp
    rounding = grid + _FLOAT_ERROR * max(B, B * B)
    if _unit(budget) == "user" and budget.neighbors == "add-remove":
        rounding = 0.0
    return covariance_sensitivity(
        B,
        centred_range=centred_range,
        damping=settings.user_damping,
        n_items=n_items,
        weight_scale=WEIGHT_SCALE,
        rounding=rounding,
        norm=settings.norm,
        entries=settings.entries,
        neighbors=budget.neighbors,
        unit=_unit(budget),
    )
