"""Item means from local reports: what a device sends, and what the server makes of it.

Ratings y are in quarter ranges from the middle of the scale; m items. Every device sends one
report, in one of the rounds, with its whole epsilon:

- round "statistics": with the user's damped mean o_i, w_i = 1 / sqrt(n_i),
  c_i = min(1, C / |w_i (y_i - o_i)|) and a_ij = max(1 + (s - 1) (y_ij - o_i), 1/10), the vector

      ( s a_i / |a_i|,  q,  c_i w_i (y_i - o_i) / C,  q c_i,  q mean(y_i) / 2 ) / L,
      L^2 = s^2 + 1 + 3 q^2,

  of the items with known ratings; all zero for a user without ratings;
- later rounds, "residuals", of other devices: with the released means b so far and popularity
  weights w_ij, sum_j w_ij^2 = 1, e_ij = y_ij - b_j - o_i and o_i the damped mean of y - b,

      ( c_i w_i e_i / C,  q c_i ) / sqrt(1 + q^2).

All have length at most 1. The server estimates their mean over the devices from randomised
reports, of variance v / n for each value, and combines the rounds by precision
(`skdpmf.mechanisms.item_means.joint_release`).

**Counts.** The first values count choices. Over n devices the noise of a mean of unit vectors has
the length r = sqrt(m / n) / c, c as for `PrivUnit`; the mean itself has a length of .3 to .5 where
people choose by popularity, whatever m is. So the public r decides: from 1/4 on all devices report
in one round, because a part of them would say too little of the counts, and s = 3 r within
[1, 3/2], because larger weights take more from the means than they give to the counts. With an s
above 1 favourites count more: they are other people's favourites as well, and stand out first.
This takes a bit of the spread from the means, far less than noise does then.

Unless released values make it more likely that items differ than that they do not
(`joint_release.item_prior`), their means are all the same but for a hair, and a user's own mean
predicts.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from skdpmf.mechanisms.common import (
    INSIDE,
    expected_weights,
    mean_by_precision,
    popularity_weights,
    row_norms,
    rows_of,
)
from skdpmf.mechanisms.device_reports.privunit import privunit_parameters
from skdpmf.mechanisms.device_reports.randomizers import CoordinateSampling, DeviceStreams
from skdpmf.mechanisms.item_means import joint_release as im
from skdpmf.mechanisms.item_means import residual_rounds as ir
from skdpmf.mechanisms.item_means.popularity import estimate_popularity
from skdpmf.privacy.budget import PrivacyBudget
from skdpmf.privacy.clipped_sums import shrink_to_ball
from skdpmf.privacy.plan import ReleasePlan
from skdpmf.privacy.pure import PureRelease

Floats = NDArray[np.float64]

# Guard: a length above 0
_LEAST_LIKING = 0.1  # a_ij

# Tuned: parts of a device's one report, and of the devices, against each other
_MOST_COUNT_WEIGHT, _WEIGHT_OF_NOISE = 1.5, 3.0  # s
_ONE_ROUND = 0.25  # more noise leaves too little of the counts of a part of the devices
ROUNDS = 3

SAMPLED = "sampled statistics"


class Rows(NamedTuple):
    """Inputs of devices, in CSR form; each row has length at most 1."""

    indptr: NDArray[np.int64]
    indices: NDArray[np.int64]
    values: Floats


class Model(NamedTuple):
    """Released model in quarter ranges: y_ij ~ b_j + o_i."""

    item_means: Floats
    user_damping: float  # fictitious ratings 0 of y - b in a user's offset
    significant: bool  # whether item means differ by more than their errors
    popularity: Floats  # > 0, in the unit of a device that chose nothing else


def mean_noise(epsilon: float, n_items: int, n_devices: int) -> float:
    """Return r, the length of the noise of a mean of unit vectors; 0 if n_devices, 0, is unknown.

    epsilon: of a report.
    """
    if not n_devices:
        return 0.0
    c = privunit_parameters(epsilon, statistics_dimension(n_items) + 1).c
    return float(np.sqrt(n_items / n_devices)) / c


def count_weight(epsilon: float, n_items: int, n_devices: int) -> float:
    """Return s, from public numbers, as for `mean_noise`."""
    r = mean_noise(epsilon, n_items, n_devices)
    return float(np.clip(_WEIGHT_OF_NOISE * r, 1.0, _MOST_COUNT_WEIGHT))


def fractions_of(noise: float, n_rounds: int | None = None) -> tuple[float, ...]:
    """Return the share of the devices that report in each round.

    noise: r; n_rounds: None: 1 for an r of 1/4 and more, else 3. Result: positive, of sum 1.
    """
    rounds = n_rounds or (1 if noise >= _ONE_ROUND else ROUNDS)
    if rounds == 1:
        return (1.0,)
    return (0.5, *[0.5 / (rounds - 1)] * (rounds - 1))


def make_plan(
    budget: PrivacyBudget, n_items: int, n_rounds: int, randomizer: str = "privunit"
) -> ReleasePlan:
    """Plan what a device sends: one report in all, whatever the number of rounds.

    budget: of a user, with neighbors="replace"; n_rounds: rounds among which the devices are
    divided; randomizer ({"privunit", "coordinate"}): what makes the report.
    """
    mechanism, norm = "PrivUnitG", "l2 length of the user's vector"
    if randomizer == "coordinate":
        mechanism, norm = "sampled sign", "magnitude of the coordinate"
    statistic = "a user's items, and their deviations from the user's mean"
    if n_rounds > 1:
        statistic += f", in one of {n_rounds} rounds"
    what = "report of a device", statistic, (statistics_dimension(n_items),)
    report = PureRelease(*what, float(budget.epsilon), mechanism, 1.0, norm)
    return ReleasePlan(budget, (report,), local=True)


def exact_model(R: Any, user_damping: float) -> Model:
    """Return the model without privacy: every vector is known as it is, in two rounds of all.

    R (csr_array of shape (n_devices, n_items)): as for `statistics_rows`.
    """
    n, n_items = R.shape
    known = LocalItemMeans(n_items, user_damping)
    rows = statistics_rows(R, user_damping)
    known.add_statistics(_mean(rows, n, statistics_dimension(n_items)), n, 0.0)
    rows = residual_rows(R, known.item_means, known.mass, user_damping)
    known.add_residuals(_mean(rows, n, residual_dimension(n_items)), n, 0.0)
    return known.model()


def sampled_model(
    R: Any, user_damping: float, epsilon: float, streams: DeviceStreams, public: Any = None
) -> Model:
    """Return the model from one sampled sign of each device, in one round: a baseline.

    A device sends one coordinate of L times its vector, all of which are in [-1, 1]. The error of
    each value grows with their number, unlike that of `PrivUnit`.

    R (csr_array of shape (n_devices, n_items)): as for `statistics_rows`; epsilon: of the report;
    public: as for `LocalItemMeans`.
    """
    n, dimension = R.shape[0], statistics_dimension(R.shape[1])
    randomiser, length = CoordinateSampling(epsilon, dimension), statistics_length()
    keys = streams.keys(SAMPLED, 0, n)
    chosen = randomiser.coordinates(keys)
    rows = statistics_rows(R, user_damping)
    own = np.flatnonzero(rows.indices == np.repeat(chosen, np.diff(rows.indptr)))
    x = np.zeros(n)
    x[np.searchsorted(rows.indptr, own, side="right") - 1] = rows.values[own] * length
    total = np.bincount(chosen, weights=randomiser.report(keys, x), minlength=dimension)
    known = LocalItemMeans(R.shape[1], user_damping, public=public)
    known.add_statistics(randomiser.estimate(total, n) / length, n, randomiser.variance / length**2)
    return known.model()


def statistics_dimension(n_items: int) -> int:
    """Coordinates of a vector of round "statistics"."""
    return 2 * n_items + 3


def residual_dimension(n_items: int) -> int:
    """Coordinates of a vector of a later round."""
    return n_items + 1


def statistics_rows(R: Any, user_damping: float, count_weight: float = 1.0) -> Rows:
    """Return the vectors of round "statistics".

    R (csr_array of shape (n_devices, n_items)): ratings in quarter ranges from the middle of the
    scale, columns ascending; count_weight: s. Result: vectors of `statistics_dimension`
    coordinates.
    """
    n_devices, m = R.shape
    n, row = np.diff(R.indptr), rows_of(R)
    sums = np.bincount(row, weights=R.data, minlength=n_devices)
    own = R.data - (sums / (n + user_damping))[row]
    deviation = 1.0 / np.sqrt(np.maximum(n, 1))[row] * own
    liking = np.maximum(1.0 + (count_weight - 1.0) * own, _LEAST_LIKING)
    liking /= row_norms(row, liking, n_devices)[row]
    clip = shrink_to_ball(row_norms(row, deviation, n_devices), ir.CLIP)
    rated = n > 0
    users = np.flatnonzero(rated)
    parts = [
        (row, R.indices, count_weight * liking),
        (users, np.full(users.size, m), np.full(users.size, im.USER_WEIGHT)),
        (row, m + 1 + R.indices, clip[row] * deviation / ir.CLIP),
        (users, np.full(users.size, 2 * m + 1), im.USER_WEIGHT * clip[rated]),
        (users, np.full(users.size, 2 * m + 2), 0.5 * im.USER_WEIGHT * (sums[rated] / n[rated])),
    ]
    return _rows(parts, n_devices, statistics_length(count_weight))


def residual_rows(R: Any, item_means: Floats, mass: Floats, user_damping: float) -> Rows:
    """Return the vectors of a later round.

    R (csr_array of shape (n_devices, n_items)): as for `statistics_rows`; item_means, mass
    (n_items,): released b and popularity N > 0. Result: vectors of `residual_dimension`
    coordinates.
    """
    n_devices, m = R.shape
    n, row = np.diff(R.indptr), rows_of(R)
    terms = popularity_weights(R, mass, ir.EXPONENT) * deviations(R, item_means, user_damping)
    clip = shrink_to_ball(row_norms(row, terms, n_devices), ir.CLIP)
    users = np.flatnonzero(n > 0)
    parts = [
        (row, R.indices, clip[row] * terms / ir.CLIP),
        (users, np.full(users.size, m), im.USER_WEIGHT * clip[users]),
    ]
    return _rows(parts, n_devices, float(np.hypot(1.0, im.USER_WEIGHT)))


def deviations(R: Any, item_means: Floats, user_damping: float) -> Floats:
    """Return what item means and the user's own leave of each rating: y_ij - b_j - o_i.

    R (csr_array of shape (n_devices, n_items)): ratings y in quarter ranges; item_means (n_items,):
    b; user_damping: fictitious ratings 0 of y - b in a user's mean o_i of them. Returns
    (n_ratings,): one for each entry of R.
    """
    n, row = np.diff(R.indptr), rows_of(R)
    e = R.data - item_means[R.indices]
    offset = np.bincount(row, weights=e, minlength=R.shape[0]) / (n + user_damping)
    return np.asarray(e - offset[row])


class LocalItemMeans:
    """The server's knowledge of items; ``user_damping`` as for `deviations`, ``count_weight`` s.

    ``public`` (`PublicAverages` of `residual_rounds`) is what it knows of public people at first.
    It combines counts and means with it by precision, and later devices start from both. How many
    devices have ratings, and how far they are clipped, is then guessed where noise hides it, and
    means have the error of the counts as well.
    """

    def __init__(
        self, n_items: int, user_damping: float, count_weight: float = 1.0, public: Any = None
    ) -> None:
        self.public: ir.PublicAverages | None = public
        self.n_items, self.user_damping, self.count_weight = n_items, user_damping, count_weight
        self.popularity = np.ones(n_items)
        self.means: Any = None  # im.ItemMeans, once round "statistics" has ended
        self.n_devices = 0  # of round "statistics", with or without ratings
        self.overall, self.overall_variance = 0.0, im.PRIOR_VARIANCE
        self.precision = self.shift = np.zeros(n_items)

    def add_statistics(self, mean: Floats, n_devices: int, variance: float) -> None:
        """Take in round "statistics".

        mean (statistics_dimension,): estimated mean of the devices' vectors; n_devices: devices
        that reported; variance: n_devices times the variance of each value of `mean`.
        """
        m, s, length = self.n_items, self.count_weight, statistics_length(self.count_weight)
        total = np.asarray(mean) * (n_devices * length)
        noise = length * float(np.sqrt(n_devices * variance))
        statistic = np.stack((total[: m + 1], total[m + 1 : 2 * m + 2]))
        counted, public, mass, doubted = (total[:m] / s, noise / s), self.public, None, 0.0
        found = estimate_popularity(*counted)
        self.popularity, level = np.exp(found.log_mean), 0.0
        if public is not None:
            level, q = public.level, im.USER_WEIGHT
            everybody = n_devices, ir.CLIP_DEVIATION * n_devices
            n_users = mean_by_precision((total[m] / q, noise / q), everybody)[0]
            n_users = im.users_of(q * n_users, n_devices)
            clip = self._clip_factor(statistic[1, -1], noise, n_users)
            statistic[:, -1] = q * n_users, q * n_users * clip
            mass, doubt = public.counted(found.mean, found.variance, *counted, n_users)
            self.popularity *= mass / found.mean
            doubted = doubt * (public.mean / mass) ** 2
        given: Any = {"count_weight": s, "clip": ir.CLIP, "mass": mass}
        self.means = im.estimate_item_means(statistic, noise, n_devices, **given)
        self.n_devices = n_devices
        self.precision = 1.0 / (self.means.variance + doubted)
        self.shift = self.precision * self.means.raw_mean
        scale = 2.0 / (im.USER_WEIGHT * self.means.n_users)
        error = (scale * noise) ** 2
        trust = im.PRIOR_VARIANCE / (im.PRIOR_VARIANCE + error)
        self.overall = float(np.clip(level + trust * (scale * total[-1] - level), -2.0, 2.0))
        self.overall_variance = trust * error

    def add_residuals(self, mean: Floats, n_devices: int, variance: float) -> None:
        """Take in a later round, whose devices were sent `item_means` and `mass`.

        mean (residual_dimension,): estimated mean of the devices' vectors; n_devices: devices that
        reported; variance: n_devices times the variance of each value of `mean`.
        """
        means = self.means
        b, length = self.item_means, float(np.hypot(1.0, im.USER_WEIGHT))
        total = np.asarray(mean) * (n_devices * length)
        noise = length * float(np.sqrt(n_devices * variance))
        # of this round's devices, as many have ratings as of those that made `means`
        users = means.n_users * n_devices / self.n_devices
        clip = self._clip_factor(float(total[-1]), noise, users)
        mass, typical = expected_weights(means.mass, means.typical_weight, ir.EXPONENT)
        mass = mass * (n_devices / self.n_devices)
        slope = clip * mass / ir.CLIP
        error = (noise / slope) ** 2 + im.RATING_VARIANCE * typical / mass
        self.precision = self.precision + 1.0 / error
        self.shift = self.shift + (b + total[:-1] / slope) / error

    def _clip_factor(self, total: float, noise: float, n_users: float) -> float:
        """Return the mean clip factor of so many users, given its released sum."""
        scale = im.USER_WEIGHT * n_users
        factor = total / scale
        if self.public is not None:
            guess = ir.CLIP_FACTOR, ir.CLIP_DEVIATION
            factor = mean_by_precision((factor, noise / scale), guess)[0]
        return float(np.clip(factor, im.LEAST_CLIP_FACTOR, 1.0))

    @property
    def mass(self) -> Floats:
        """Released popularity of the items."""
        return self.means.mass

    @property
    def item_means(self) -> Floats:
        """Released means b, relative to the users' own."""
        return self._posterior()[0]

    def _posterior(self) -> tuple[Floats, Floats]:
        """Return means b and their variances."""
        variance, mass = 1.0 / self.precision, self.mass
        x = self.shift * variance
        if self.public is not None:
            own = self.public.precision
            # own means that devices subtract hold most of the level of public people's
            trust = own / (1.0 + own * variance)
            level = trust @ (x - self.public.mean) / (trust.sum() + 1.0 / im.PRIOR_VARIANCE)
            shown = self.public._replace(mean=self.public.mean + level)
            everywhere = np.full(self.n_items, True)
            x, variance, *_ = shown.averaged(x, variance, everywhere, im.PRIOR_VARIANCE)
            mass = np.maximum(mass, mass[own > 0.0].min())  # lines go no further than is known
        design = im.design_of(mass, np.log(mass))
        return im.posterior(x, variance, design, im.PRIOR_VARIANCE, decide=True)

    def model(self) -> Model:
        """Return what is released at the end."""
        (b, variance), N = self._posterior(), self.mass
        significant = bool(np.var(b) > np.mean(variance))
        b = b + (self.overall - float(N @ b) / float(N.sum()))
        # an offset varies around the overall mean, which is not quite known
        spread = im.RATING_VARIANCE / min(self.user_damping, im.FOLD_IN_DAMPING)
        damping = float(im.RATING_VARIANCE / (spread + self.overall_variance))
        return Model(np.clip(b, -2.0, 2.0), damping, significant, self.popularity)


def _mean(rows: Rows, n_devices: int, dimension: int) -> Floats:
    total = np.bincount(rows.indices, weights=rows.values, minlength=dimension)
    return np.asarray(total / n_devices)


def statistics_length(count_weight: float = 1.0) -> float:
    """Return L."""
    return float(np.sqrt(count_weight**2 + 1.0 + 3.0 * im.USER_WEIGHT**2))


def _rows(parts: list[Any], n_devices: int, length: float) -> Rows:
    """Sort (device, coordinate, value) by device, and scale to a length of at most 1."""
    device, index, value = (np.concatenate([np.asarray(p[i]) for p in parts]) for i in range(3))
    order = np.lexsort((index, device))
    counts = np.bincount(device, minlength=n_devices)
    indptr = np.concatenate((np.zeros(1, np.int64), np.cumsum(counts)))
    return Rows(indptr, index[order].astype(np.int64), value[order] * (INSIDE / length))
