"""Item averages for the item covariance: steps 1 and 2, released for one rating or for one user.

Ratings y are in quarter ranges from the middle of the scale. What is released depends on the unit
of privacy and on the norm of the noise's sensitivity (l2 for Gaussian noise, l1 for Laplace noise):

- unit "rating": N_j = sum_i e_ij and S_j = sum_i y_ij, e_ij = 1 for a known rating. No user's
  average is involved, since one more rating would move it;
- unit "user": the global mean, then the counts and residuals of `residual_rounds`, weighted and
  clipped by user, which show far more at the same noise.

At unit "rating" the averages are the posterior means

    b_j = line_j + (x_j - line_j) t / (t + var_j),  t around RATING_VARIANCE / item_damping,

with x_j the measured mean, var_j its variance by noise and by sampling, and line_j linear in the
logarithm of the popularity (`joint_release.item_prior`). Without noise it is the published
(sum_i y_ij + item_damping G) / (N_j + item_damping), G the mean of all ratings.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skdpmf.mechanisms.item_means import joint_release as im
from skdpmf.mechanisms.item_means import residual_rounds as ir
from skdpmf.mechanisms.item_means.popularity import estimate_popularity
from skdpmf.mechanisms.knowledge import Knowledge
from skdpmf.privacy.curator_release import Curator
from skdpmf.privacy.other_sums import rating_sums, ratings_bound, user_scalars, users_bound
from skdpmf.privacy.plan import Release
from skdpmf.privacy.pure import PureRelease
from skdpmf.privacy.sampler.grid import exact_grid
from skdpmf.privacy.users import Rows, Users

N_ROUNDS = max(ir.ROUNDS.values())  # the most of all kinds
GLOBAL, STATISTICS = "global effects", "item counts and sums"
FIRST = {"rating": STATISTICS, "user": ir.COUNTS}  # release of averages, by unit

# Fixed: s, of counts beside sums of halved ratings. Noise of length (1 + s^2)^1/2 gives a mean m
# the variance 4 (1 + s^2) (1 + (m / (2 s))^2), but for a factor, which is least at s^2 = |m| / 2;
# m^2 is expected to be the variance of the level and that of items, each `PRIOR_VARIANCE`
COUNT_WEIGHT = float(np.sqrt(np.sqrt(2.0 * im.PRIOR_VARIANCE) / 2.0))


def average_releases(
    unit: str, neighbors: str, norm: str, n_items: int
) -> list[tuple[str, str, tuple[int, ...], float]]:
    """Return name, statistic, shape and sensitivity of all that may be released of averages.

    norm ("l2", "l1"): of the sensitivities. Result: `GLOBAL` and `STATISTICS`, or at unit "user"
    `GLOBAL`, `COUNTS` and `RESIDUALS`.
    """
    near: dict[str, Any] = {"norm": norm, "neighbors": neighbors, "unit": unit}
    if unit == "rating":
        single = ratings_bound(COUNT_WEIGHT, **near)
        return [
            (GLOBAL, "number and sum of ratings", (2,), single),
            (STATISTICS, "numbers and sums of each item's ratings", (2, n_items), single),
        ]
    single = users_bound(1.0, COUNT_WEIGHT, **near)
    number = (GLOBAL, "number and mean ratings of users", (2,), single)
    return [number, *ir.residual_releases(neighbors, norm, n_items)]


def uncalibrated(
    noise: str,
    name: str,
    statistic: str,
    shape: tuple[int, ...],
    sensitivity: float,
    count: int = 1,
) -> Release | PureRelease:
    """Return a planned release; `ReleasePlan.from_shares` calibrates it.

    noise ("gaussian", "laplace"): kind of noise; name, statistic, shape, sensitivity: as of
    `average_releases`; count: times it is released.
    """
    if noise == "laplace":
        return PureRelease(name, statistic, shape, np.inf, "laplace", sensitivity, "l1", count)
    return Release(name, statistic, shape, sensitivity, count=count)


def global_share(n_items: int) -> float:
    """Share of the global mean in that of averages, at unit "user": one number beside many."""
    return 1.0 / (1.0 + float(np.sqrt(n_items)))


def plain_averages(rows: Rows, item_damping: float) -> tuple[NDArray[np.float64], ir.RaterCounts]:
    """Return the averages without noise, and the exact counts.

    rows: ratings in quarter ranges from the middle of the scale; item_damping: fictitious ratings
    at the mean of all. Returns averages (n_items,); popularity.
    """
    n_ratings = np.bincount(rows.indices, minlength=rows.n_items).astype(np.float64)
    total = np.bincount(rows.indices, weights=rows.data, minlength=rows.n_items)
    mean = total.sum() / max(n_ratings.sum(), 1.0)
    averages = (total + item_damping * mean) / (n_ratings + item_damping)
    return averages, ir.RaterCounts(
        np.maximum(n_ratings, 1.0), n_ratings, float(max(rows.n_users, 1))
    )


def least_squares(
    R: Rows, damping: float, rounds: Iterable[int] = range(N_ROUNDS)
) -> NDArray[np.float64]:
    """Return item means without noise, as of `baseline`.

    R: ratings in quarter ranges from the middle of the scale; damping: of users' offsets. The
    items' penalty is s^2 / t^2, from the analysis of variance of y_ij - o_i: s^2 is its variance
    within items and t^2, at least 0, what that between them exceeds s^2 by.
    """
    row, (n_users, n_items) = R.user, R.shape
    N = np.bincount(R.indices, minlength=n_items).astype(np.float64)
    by_user, by_item = np.maximum(R.n_ratings + damping, 1e-300), np.maximum(N, 1.0)
    G, n_rated, n = (float(R.data.mean()) if R.nnz else 0.0), np.count_nonzero(N), max(R.nnz, 1)
    freedom = max(n - n_rated - float(np.sum(R.n_ratings / by_user)), 1.0)
    b = np.full(n_items, G)
    for _ in rounds:
        offset = np.bincount(row, R.data - b[R.indices], minlength=n_users) / by_user
        x = R.data - offset[row] - G
        left = np.bincount(R.indices, x, minlength=n_items)
        between = float(left @ (left / by_item))
        within = max(float(x @ x) - between, 0.0) / freedom
        spread = between - left.sum() ** 2 / n - (n_rated - 1.0) * within
        spread = max(spread / max(n - float(N @ N) / n, 1e-300), 0.0)
        b = G + left * spread / np.maximum(N * spread + within, 1e-300)
    return b


def measured_global_mean(curator: Curator, unit: str, norm: str) -> tuple[float, float, float]:
    """Release the global mean; return it, the variance of its noise, and the number of addends.

    curator: makes the release `GLOBAL`: the number of ratings and their sum; at unit "user" the
    number of users with ratings and the sum of their means; norm ("l2", "l1"): of the sensitivity.
    """
    s, users, slots = COUNT_WEIGHT, curator.users, curator.n_rows
    least = im.LEAST_LEVEL * slots
    if unit == "rating":
        slots, least = slots * users.n_items, 1.0
        grid = exact_grid(slots, 1.0, degree=1)
        total = rating_sums(users, scale=s, grid=grid, largest=2.0, by_item=False, norm=norm)
    else:
        grid, means = exact_grid(slots, 1.0, degree=1), users.map(_half_means)
        total = user_scalars(users, means, clip=1.0, grid=grid, presence=s, norm=norm)
    released = curator.release(GLOBAL, total)
    number = float(np.clip(released[0] / s, least, slots))
    mean = float(np.clip(2.0 * released[1] / number, -2.0, 2.0))
    terms = curator.releases[GLOBAL]
    deviation = 2.0 * float(terms.noise_multiplier) * terms.sensitivity / number
    # the released number is as noisy as the sum
    error = deviation**2 * (1.0 + (mean / (2.0 * s)) ** 2)
    return mean, error, number


def pooled_level(
    measured: tuple[float, float, float],
    known: Knowledge | None,
    public: ir.PublicAverages | None = None,
) -> tuple[float, tuple[float, float]]:
    """Return G of all cohorts, and precision and shift of it for the next one.

    measured: of this cohort, from `measured_global_mean`; known: of earlier cohorts, by users,
    whose means differ; public: of public people. Without either G is shrunk for noise alone.
    """
    mean, error, number = measured
    own = 1.0 / (error + im.PRIOR_VARIANCE / number)
    if public is not None:
        theirs = im.PRIOR_VARIANCE / public.n_users
        shift = max((mean - public.level) ** 2 - 1.0 / own - theirs, 0.0)
        more = 1.0 / (theirs + shift)
        both = own + more, own * mean + more * public.level
        return both[1] / (both[0] + 1.0 / im.PRIOR_VARIANCE), both
    if known is None:
        return mean / (1.0 + error / im.PRIOR_VARIANCE), (own, own * mean)
    precision, shift = known.scalars[1:] + own * np.array([1.0, mean])
    return float(shift / (precision + 1.0 / im.PRIOR_VARIANCE)), (float(precision), float(shift))


def _half_means(rows: Rows) -> NDArray[np.float64]:
    """Half the mean of each user's ratings, which are at most 2."""
    sums = np.bincount(rows.user, weights=rows.data, minlength=rows.n_users)
    return np.asarray(sums / np.maximum(2.0 * rows.n_ratings, 1.0))


def recentred(
    b: NDArray[np.float64], weights: NDArray[np.float64], G: float
) -> NDArray[np.float64]:
    """Averages moved so that their weighted mean is G: the centred ratings have mean 0."""
    total = max(float(weights.sum()), 1e-12)
    return b + (G - float(weights @ b) / total)


def averages_for(unit: str, curator: Curator, users: Users, **terms: Any) -> Any:
    """Return what releases and combines averages: `ItemAverages`, or `ResidualAverages` by user."""
    kind: Any = ItemAverages if unit == "rating" else ir.ResidualAverages
    return kind(curator, users, **terms)


class ItemAverages:
    """Releases and combines what is known about item averages, at unit "rating".

    users: whose ratings count, in quarter ranges from the middle of the scale; damping: fictitious
    ratings of items, and of users, which do not matter here; grid: power of two to which values
    that are summed are truncated; known: sums of earlier fits, which add up to these.
    """

    def __init__(
        self,
        curator: Curator,
        users: Users,
        *,
        norm: str,
        damping: tuple[float, float],
        grid: float,
        known: Knowledge | None = None,
    ) -> None:
        self.curator, self.users, self.norm, self.grid = curator, users, norm, grid
        self.prior_variance = im.RATING_VARIANCE / damping[0]
        self._total, self._weight = np.zeros((2, users.n_items)), 0.0
        self._known, self._known_deviation = np.zeros_like(self._total), 0.0
        self._exposure = np.full(users.n_items, float(curator.n_rows))
        if known is not None:
            self._known = np.stack((known.counts, known.shift))
            self._known_deviation = float(np.sqrt(known.count_variance))
            self._exposure += known.exposure

    def release(self, name: str, index: int = 0) -> None:
        """Release counts and sums in the slot `name` of the plan."""
        total = rating_sums(
            self.users, scale=COUNT_WEIGHT, grid=self.grid, largest=2.0, norm=self.norm
        )
        releases = self.curator.releases
        weight = float(releases[name].noise_multiplier) ** -2.0
        self._total += weight * self.curator.release(name, total, index, statistic=STATISTICS)
        self._weight += weight
        sensitivity = releases[STATISTICS].sensitivity
        self._noise_scale = float(sensitivity * self._weight**-0.5)
        if self.norm == "l1":
            self._noise_scale *= np.sqrt(2.0)
        self._noise_scale = float(np.hypot(self._noise_scale, self._known_deviation))
        counts, sums = self._sums = self._total / self._weight + self._known
        self.counts = counts / COUNT_WEIGHT  # noisy
        N = self.popularity.mass
        self.precision = 1.0 / ((2.0 * self._noise_scale / N) ** 2 + im.RATING_VARIANCE / N)
        self.shift = self.precision * 2.0 * sums / N

    @property
    def mean(self) -> NDArray[np.float64]:
        """Averages b_j."""
        variance = 1.0 / self.precision
        exposed = self._exposure.max() / self._exposure  # new items were there for fewer people
        mass = self.popularity.mass * exposed
        design = im.design_of(mass, np.log(mass), self.curator.item_columns)
        return im.posterior(self.shift * variance, variance, design, self.prior_variance)[0]

    def knowledge(self, level: tuple[float, float] = (0.0, 0.0)) -> Knowledge:
        """Return what a refresh starts from: noisy counts and sums as released; level: unused."""
        counts, sums = (part.copy() for part in self._sums)
        scalars = np.array([self._noise_scale**2, *level])
        return Knowledge(counts, self._exposure.copy(), np.zeros_like(counts), sums, scalars)

    @property
    def overall_mean(self) -> float:
        """Mean of all ratings."""
        counts, sums = self._total.sum(axis=1) / self._weight + self._known.sum(axis=1)
        mean = 2.0 * sums * COUNT_WEIGHT / max(counts, COUNT_WEIGHT)
        return float(np.clip(mean, -2.0, 2.0))

    @property
    def log_popularity(self) -> NDArray[np.float64]:
        """E log N_j, N_j per user who could rate the item, but for a constant."""
        law = "laplace" if self.norm == "l1" else "gaussian"
        scale = self._noise_scale / COUNT_WEIGHT
        found = estimate_popularity(self.counts, scale, law).log_mean
        return np.asarray(found - np.log(self._exposure))

    @property
    def popularity(self) -> ir.RaterCounts:
        """Popularity of the items."""
        scale = self._noise_scale / COUNT_WEIGHT
        # an item seems never rarer than the noise can show
        N = np.maximum(self.counts, max(scale, 1.0))
        return ir.RaterCounts(N, N, float(self.curator.n_rows))
