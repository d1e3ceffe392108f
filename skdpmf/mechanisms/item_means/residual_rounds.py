r"""Item averages at unit "user": item counts are released first, then residuals in rounds.

Ratings y are in quarter ranges from the middle of the scale. Statistics are sums over users i, of

- counts: ( w_i e_ij )_j and q [n_i > 0], with e_ij = 1 for a known rating, w_i = 1 / sqrt(n_i) for
  Gaussian noise and 1 / n_i for Laplace noise;
- residuals, with the averages b_j so far: ( c_i w_ij r_ij / C )_j and q c_i [n_i > 0], with
  r_ij = y_ij - b_j - o_i, o_i the user's damped mean of y - b, c_i = min(1, C / |w_i r_i|), and
  popularity weights w_ij ~ N_j^-1/4 of norm |w_i| <= 1.

Sensitivities. A user's vector has parts of norm at most 1 and q (l2 for Gaussian noise, l1 for
Laplace noise), so that adding or removing a user moves either statistic by at most
sqrt(1 + q^2), or 1 + q in l1. If a user is replaced, counts, which are >= 0, move by at most
sqrt(2) (2 in l1) while both have ratings, as q cancels, and less if one has none; residuals by at
most 2 and their last entries by at most q, together sqrt(4 + q^2) or 2 + q. b and N are functions
of what was released before, and terms are truncated towards zero. All else is post-processing:

- N_j, log N_j and the variance V_j of N_j: `popularity`; counts that are released more than once,
  each in a slot of its own, are averaged by precision first;
- a round's sums are slope_j (b*_j - b_j) + noise, slope = c M / C, M_j the sum of weights that is
  expected of N_j and c the mean clip factor, as released so far. An error of N_j changes the slope:
  the variance of the sums is that of the noise and (slope_j / N_j)^2 V_j var(b*_j), the latter
  by the posterior so far (left out for Laplace noise, whose rounds are few). Information adds up
  over the rounds;
- the averages b_j are posterior means under b*_j ~ N(line_j, t), line_j linear in E log N_j and
  in public item columns D_j, where there are some (`joint_release.item_prior`).
  Sampling adds its variance once, not in every round.

A refresh (`skdpmf.mechanisms.knowledge`) starts from the counts of earlier cohorts and from what
their residuals show of b*_j. Counts of all cohorts add up, and so do the variances of their noise.
An item that E_j users could rate so far, n of them in this cohort, has the popularity N_j n / E_j
here: weights, slopes and the head are this cohort's. Sampling has the weights of all cohorts.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from skdpmf.kernels.rows import centred_residuals
from skdpmf.mechanisms.common import (
    SHARE,
    count_weights,
    expected_weights,
    mean_by_precision,
    popularity_weights,
)
from skdpmf.mechanisms.item_means import joint_release as im
from skdpmf.mechanisms.item_means.popularity import estimate_popularity
from skdpmf.mechanisms.knowledge import Knowledge
from skdpmf.privacy.clipped_sums import BoundedSum, item_scalars, scalars_bound
from skdpmf.privacy.curator_release import Curator
from skdpmf.privacy.users import PerUser, Rows, Users

COUNTS, RESIDUALS = "item counts", "item residuals"
ITEM_DAMPING = im.RATING_VARIANCE / im.PRIOR_VARIANCE  # ratings; a guess, which releases correct

# Guard: precision of what is not known at all, and variance of what is known without noise
NOTHING = 1e-12

# Tuned: bias against noise. Rounds among which the budget is divided: Laplace noise grows with
# their number, Gaussian noise with its root
ROUNDS = {"gaussian": 10, "laplace": 2}

# Tuned: bias against noise of means. C, in quarter ranges, below a typical user's root mean squared
# residual: most are clipped
CLIP = 0.6

# Tuned: weights against bias. Exponent of the popularity, in its weights
EXPONENT = 0.25


def expected_clip_factor(clip: float) -> float:
    """Return the mean clip factor of typical residuals, as it is thought to be at first."""
    return min(clip / float(np.sqrt(im.RATING_VARIANCE)), 1.0)


# Fixed: mean and deviation of what is anywhere between its least value and 1, as a mean clip factor
# is thought to be before anything is released; also the deviation of the share of devices with
# ratings
CLIP_FACTOR = 0.5 * (im.LEAST_CLIP_FACTOR + 1.0)
CLIP_DEVIATION = (1.0 - im.LEAST_CLIP_FACTOR) / float(np.sqrt(12.0))

# Tuned: trust in public people. Public ratings of an item by which it is known well
KNOWN_WELL = 40.0


def residual_releases(
    neighbors: str, norm: str, n_items: int
) -> list[tuple[str, str, tuple[int, ...], float]]:
    """Return name, statistic, shape and sensitivity of `COUNTS` and `RESIDUALS`."""
    near: Any = {"norm": norm, "neighbors": neighbors}
    counts, residuals = (
        scalars_bound(1.0, im.USER_WEIGHT, signed=one, **near) for one in (False, True)
    )
    shape = (n_items + 1,)
    return [
        (COUNTS, "weighted numbers of each item's ratings, number of users", shape, counts),
        (RESIDUALS, "weighted, clipped sums of each item's residuals", shape, residuals),
    ]


def residual_shares(noise: str, share: float) -> dict[str, float]:
    """Divide a share of the budget between counts and residuals; `noise` is its kind.

    Shares of an epsilon are roots of those of mu^2.
    """
    counts = (SHARE if noise == "gaussian" else float(np.sqrt(SHARE))) * share
    return {COUNTS: counts, RESIDUALS: share - counts}


class RaterCounts(NamedTuple):
    """Released popularity of items."""

    mass: NDArray[np.float64]  # N_j > 0, in the units of the release
    n_ratings: NDArray[np.float64]  # ratings of each item, estimated
    n_users: float  # rows with ratings, or all rows


class PublicAverages(NamedTuple):
    """What exact rows of public people show, before anything private is known."""

    n_users: float
    counts: NDArray[np.float64]  # (n_items,) sums of the weights of counts
    variance: NDArray[np.float64]  # of them, by sampling
    mean: NDArray[np.float64]  # (n_items,) b_j by least squares
    precision: NDArray[np.float64]  # of it, by sampling: 0 for items that nobody rated
    level: float  # mean of users' means

    def knowledge(self) -> Knowledge:
        """Return it as an exact model keeps it."""
        exposure, scale = np.full(len(self.counts), self.n_users), np.array([0.0, 1.0, self.level])
        shift = self.precision * self.mean
        return Knowledge(self.counts, exposure, self.precision, shift, self.n_users * scale)

    def counted(
        self, mass: Any, variance: Any, measured: Any, deviation: float, n_users: float
    ) -> tuple[Any, Any]:
        """Return popularities of so many users, by precision with these of private people.

        mass, variance: posterior; measured, deviation: what was released, and its noise.
        """
        scale, guess = n_users / self.n_users, mass**2
        other, doubt = scale * self.counts, scale**2 * self.variance
        doubt = doubt + guess * learnt_shift(measured - other, deviation**2 + doubt, guess)
        trust = variance / (variance + doubt)
        return mass + trust * (other - mass), (1.0 - trust) * variance

    def averaged(
        self, x: Any, variance: Any, measured: Any, guess: float
    ) -> tuple[Any, Any, Any, float]:
        """Return b, by precision with x ~ N(b, variance) of private people, and its variance.

        Then the precision that public people's means have beside the shift, and its variance in
        units of `guess`, that of items. measured (n_items,): where x says anything.
        """
        own, y, shifted = self.precision, self.mean, 0.0
        both = (own > 0.0) & measured
        if both.any():
            total = variance[both] + 1.0 / own[both]
            shifted = learnt_shift((x - y)[both], total, guess)
        own = own / (1.0 + shifted * guess * own)
        total = 1.0 / variance + own
        return (x / variance + own * y) / total, 1.0 / total, own, shifted


def averages_of_model(known: Knowledge) -> PublicAverages:
    """Return what a model's parts of `Knowledge` show."""
    n_users, total = float(known.exposure.max()), max(float(known.counts.sum()), 1e-9)
    weight = min(n_users / total, 1.0)  # of a rating, typically
    spread = weight * known.counts + 0.5 * weight**2
    mean = known.shift / np.maximum(known.precision, NOTHING)
    level = float(known.scalars[2] / known.scalars[1])
    return PublicAverages(n_users, known.counts, spread, mean, known.precision, level)


def public_averages(rows: Rows, damping: float, norm: str = "l2") -> PublicAverages:
    """Return what public rows show; an item that nobody rated may have half a rating."""
    weights, item = count_weights(rows, norm), rows.indices
    counts: Any = np.bincount(item, weights, rows.n_items)
    squares = np.bincount(item, weights**2, rows.n_items)
    n = np.bincount(item, minlength=rows.n_items)
    b = np.zeros(rows.n_items)
    for _ in range(ROUNDS["gaussian"]):
        own = np.bincount(rows.user, rows.data - b[item], rows.n_users)
        offset = own / (rows.n_ratings + damping)
        left = rows.data - offset[rows.user]
        b = np.bincount(item, left, rows.n_items) / np.maximum(n, 1)
    means = np.bincount(rows.user, rows.data, rows.n_users) / np.maximum(rows.n_ratings, 1)
    spread = squares + 0.5 * squares.sum() / rows.nnz
    users = float(np.count_nonzero(rows.n_ratings))
    variance = max(float(np.mean((left - b[item]) ** 2)), im.RATING_VARIANCE)
    return PublicAverages(users, counts, spread, b, n / variance, float(means.sum() / users))


def learnt_shift(difference: Any, variance: Any, guess: Any) -> float:
    """Return the most probable e >= 0, where differences ~ N(0, variance + e guess).

    0 unless a likelihood ratio of e^3 says otherwise.
    """
    tried = np.append(0.0, im.KNOTS)
    total = [variance + e * guess for e in tried]
    log = [-0.5 * float(np.sum(difference**2 / t + np.log(t))) for t in total]
    log[0] += 3.0
    return float(tried[np.argmax(log)])


class ResidualAverages:
    """Releases and combines what is known about item averages, relative to those of the users.

    users: whose ratings count, in quarter ranges from the middle of the scale; damping: fictitious
    ratings of items (a guess of the variance between equally popular items, that of a rating
    divided by it) and of users; grid: power of two to which values that are summed are truncated;
    exponent: of the popularity, in the weights w_ij; influence: f_i in [0, 1], by which all of user
    i's terms are multiplied; known: of earlier cohorts.

    ``precision`` and ``shift`` are the evidence of the noisy sums on b*_j: sums of 1 / variance
    and of mean / variance; ``sampling`` is the variance of a mean of ratings beside the noise's.
    ``weights`` are the expected sums M_j of the ``entry_weights`` w_ij; ``design`` has ones,
    E log N_j less its mean over ratings, and item columns.
    """

    def __init__(
        self,
        curator: Curator,
        users: Users,
        *,
        norm: str,
        damping: tuple[float, float],
        grid: float,
        exponent: float = EXPONENT,
        influence: NDArray[np.float64] | None = None,
        known: Knowledge | None = None,
        public: PublicAverages | None = None,
    ) -> None:
        self.curator, self.users, self.grid, self.exponent = curator, users, grid, exponent
        self.public = public
        self.influence, self.known = influence, known
        item_damping, self.damping = damping
        self.norm, self.prior_variance = norm, im.RATING_VARIANCE / item_damping
        self._counted: tuple[Any, float] | None = None
        self.shifted = 0.0  # variance of public people's shift, over that of items

    def release(self, name: str, index: int = 0) -> None:
        """Release the counts, then residuals in the slot `name` of the plan, and use them."""
        if name == COUNTS:
            self.release_counts(COUNTS)
        else:
            self._release_residuals(name, index)

    @property
    def public_lead(self) -> bool:
        """Whether public people are so much like private ones that more than means is used.

        Their shift is smaller than the error of a mean of so many ratings that an item is known
        well, both over the variance of items.
        """
        return KNOWN_WELL * self.shifted < ITEM_DAMPING

    @property
    def counts(self) -> NDArray[np.float64]:
        """Popularity N_j."""
        return self.mass

    @property
    def evidence(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Precision and shift of b*_j, also of what public people show."""
        if self.public is None:
            return self.precision, self.shift
        return self.precision + self.trusted, self.shift + self.trusted * self.public.mean

    @property
    def log_popularity(self) -> NDArray[np.float64]:
        """E log N_j, but for a constant."""
        return self.design[:, 1]

    @property
    def popularity(self) -> RaterCounts:
        """Popularity of the items."""
        return RaterCounts(self.mass, self.mass / self.typical_weight, self.n_users)

    def release_counts(self, name: str) -> None:
        """Release counts in a slot of the plan; with those of earlier slots they have less noise.

        Residuals must not be released before: they have the weights of the counts so far.
        """
        weights = self.users.map(count_weights, self.norm)
        total = self.sums_of(weights, clip=1.0, signed=False)
        measured = self.curator.release(name, total, statistic=COUNTS)
        counted: tuple[Any, float] = measured, self.curator.deviation(name, COUNTS)
        if self._counted is not None:
            counted = mean_by_precision(self._counted, counted)
        released, deviation = self._counted = counted
        n_rows, n_items = self.curator.n_rows, self.users.n_items
        self.n_users = im.users_of(released[-1], n_rows)
        l1 = self.norm == "l1"
        law = "laplace" if l1 and self.known is None else "gaussian"
        counts = released[:-1]
        self._exposure: Any = self.n_users
        if self.known is not None:
            counts = counts + self.known.counts
            deviation = float(np.hypot(deviation, np.sqrt(self.known.count_variance)))
            self._exposure = self.n_users + self.known.exposure
        self.private_counts, self.count_variance = counts, deviation**2
        found, share = estimate_popularity(counts, deviation, law), self.n_users / self._exposure
        self.mass, self.mass_variance = found.mean * share, found.variance * share**2
        log_mass = found.log_mean + np.log(share)
        if self.public is not None:
            given = self.mass, self.mass_variance, counts, deviation, self.n_users
            both = self.public.counted(*given)
            log_mass = log_mass + np.log(both[0] / self.mass)
            self.mass, self.mass_variance = both
        # a user's weights have a sum between 1 and sqrt(n_items)
        total = np.clip(self.mass.sum(), self.n_users, self.n_users * np.sqrt(n_items))
        self.typical_weight = 1.0 / im.HALF_RELIABLE if l1 else float(self.n_users / total)
        self.entry_weights = self.users.map(popularity_weights, self.mass, self.exponent, self.norm)
        terms = self.mass, self.typical_weight, self.exponent, self.norm
        self.weights, self.typical = expected_weights(*terms)
        self.sampling = im.RATING_VARIANCE * self.typical / self.weights * share
        self.design = im.design_of(self.mass, log_mass, self.curator.item_columns)
        self.mean, self._variance = np.zeros(n_items), np.full(n_items, self.prior_variance)
        # sums of 1 / variance and of mean / variance, by noise alone
        self.precision, self.shift = np.full(n_items, NOTHING), np.zeros(n_items)
        if self.known is not None:
            self.precision += self.known.precision
            self.shift += self.known.shift
        if self.known is not None or self.public is not None:
            self._update()
        self._clip_precision = CLIP_DEVIATION**-2.0
        self._clip_shift = CLIP_FACTOR * self._clip_precision

    def _release_residuals(self, name: str, index: int) -> None:
        b = self.mean
        total = self.sums_of(self.residuals(), clip=CLIP, signed=True)
        released = self.curator.release(name, total, index, statistic=RESIDUALS)
        deviation = max(self.curator.deviation(name, RESIDUALS), 1e-9)
        slope = self._clip_factor(released[-1], deviation) * self.weights / CLIP
        doubt = (slope / self.mass) ** 2 * self.mass_variance * self._variance
        if self.norm == "l1":
            doubt *= 0.0  # what it takes from two rounds is more than it protects from
        precision = slope**2 / (deviation**2 + doubt)
        self.precision += precision
        self.shift += precision * (b + released[:-1] / slope)
        self._update()

    @property
    def measured(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Measured b*_j, and their variance by noise and by sampling."""
        return self.shift / self.precision, 1.0 / self.precision + self.sampling

    def choose_rank(self, most: int) -> int:
        """Factors that the released counts support at this budget: 0 to `most`."""
        N, trust = self.mass, im.reliability(self.typical_weight**-2.0)
        signal = self.curator.plan.mu * (N @ N) / N.sum() * trust
        if signal < im.LEAST_SIGNAL:
            return 0
        return min(max(round(np.sqrt(signal / im.SIGNAL_PER_FACTOR)), 1), most)

    def _update(self) -> None:
        """Averages, by all that is known of them."""
        x, variance = self.measured
        if self.public is not None:
            measured = self.precision > NOTHING
            found = self.public.averaged(x, variance, measured, self.prior_variance)
            x, variance, self.trusted, self.shifted = found
        self.mean, self._variance = im.posterior(x, variance, self.design, self.prior_variance)

    def knowledge(self, level: tuple[float, float] = (0.0, 0.0)) -> Knowledge:
        """Return what a refresh starts from; level: precision and shift of the global mean.

        Public people are in it, as a cohort whose sums have no noise.
        """
        counts, exposure, precision, shift = (
            np.array(np.broadcast_to(one, self.private_counts.shape))
            for one in (self.private_counts, self._exposure, *self.evidence)
        )
        if self.public is not None:
            counts += self.public.counts
            exposure += self.public.n_users
        scalars = np.array([self.count_variance, *level])
        return Knowledge(counts, exposure, precision, shift, scalars)

    def residuals(self) -> PerUser:
        """Weighted residuals w_ij r_ij of the averages so far."""
        weights: PerUser = self.entry_weights
        residuals: PerUser = self.users.map(weighted_residuals, weights, self.mean, self.damping)
        return residuals

    def sums_of(self, terms: PerUser, *, clip: float, signed: bool) -> BoundedSum:
        """Sums of the terms by item and of the users' entries."""
        how: Any = {"grid": self.grid, "norm": self.norm, "influence": self.influence}
        how |= {"clip": clip, "signed": signed}
        return item_scalars(self.users, terms, presence=im.USER_WEIGHT, **how)

    def _clip_factor(self, released: float, deviation: float) -> float:
        """Posterior mean of the users' mean clip factor, within [0.3, 1]."""
        scale = im.USER_WEIGHT * self.n_users
        precision = (scale / deviation) ** 2
        self._clip_precision += precision
        self._clip_shift += precision * released / scale
        return float(np.clip(self._clip_shift / self._clip_precision, im.LEAST_CLIP_FACTOR, 1.0))


def weighted_residuals(
    rows: Rows, weights: NDArray[np.float64], mean: NDArray[np.float64], damping: float
) -> NDArray[np.float64]:
    """Weighted ratings less the items' means and the users' own, damped, means of the rest."""
    out = np.empty(rows.nnz)
    given = rows.indptr, rows.indices, rows.data, weights, mean, float(damping)
    rows.run(lambda start, stop: centred_residuals(*given, start, stop, out))
    return out
