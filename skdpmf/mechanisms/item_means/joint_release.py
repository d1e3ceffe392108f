"""Private item popularity and item means from one joint release.

For user i with n_i ratings y_ij (in quarter ranges from the middle of the scale) and own damped
mean o_i, the released statistic is the sum over users of the stacked vector

    ( s w_i [j rated by i],  q [n_i > 0] ),   ( c_i w_i (y_ij - o_i),  q c_i [n_i > 0] ),
    w_i = 1 / sqrt(n_i),   c_i = min(1, 1 / |w_i (y_i - o_i)|_2),

over all items j of the catalogue, with one more column for the number of users and the mean clip
factor. Squared norms are at most s^2 + 1 + 2 q^2: the square of the L2 sensitivity to adding
or removing one user. For Laplace noise w_i = 1 / n_i, the clip is of the l1 norm, and l1 norms are
at most s + 1 + 2 q. All that follows is post-processing of the released sums.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skdpmf.mechanisms.common import count_weights
from skdpmf.privacy.clipped_sums import item_scalars
from skdpmf.privacy.curator_release import Curator
from skdpmf.privacy.other_sums import stack
from skdpmf.privacy.users import Rows, Users

Floats = NDArray[np.float64]

# Guard: values tried for a variance, times its guess, and steps between two of them
KNOTS, _BETWEEN = np.geomspace(1e-3, 10.0, 13), 20
# rows that are not empty, and a mean clip factor, at least
LEAST_LEVEL, LEAST_CLIP_FACTOR = 0.1, 0.3

# Tuned: what a release shows of one thing against another. s, of counts, and q, of users
COUNT_WEIGHT, USER_WEIGHT = 0.3, 0.1

# Tuned: what is thought of ratings before they are seen, in squared quarter ranges. Variance of one
# around its item's and user's means, which sets how much an item's own mean is trusted when noise
# is small; of items around their line, of factors, of the level of that line, of the mean
# rating, and of users' means
RATING_VARIANCE, PRIOR_VARIANCE = 0.7, 0.1

# Tuned: fictitious ratings in a user's offset: predictions believe users more than a fit does.
# With d of them they are never worse than users' own means while the variance of offsets is at
# most 2 / d of a rating's, and offsets that vary little lose little.
FIT_DAMPING, FOLD_IN_DAMPING = 10.0, 1.0

# Tuned: noise against bias of factors: see `choose_rank`. Signal for each squared factor; ratings
# of a user that determine half of the factors' variance
SIGNAL_PER_FACTOR, HALF_RELIABLE = 3.0, 20.0


@dataclass(frozen=True)
class ItemMeans:
    """Released item popularity and means, in quarter ranges from the middle of the scale.

    ``mass`` are noisy sums of the raters' weights 1/sqrt(n_i), floored above zero; ``mean`` are
    b_j, shrunk from ``raw_mean``, of error ``variance``, towards ``prior_mean``, linear in
    log(mass), around which true means have the ``prior_variance``, by moments. ``n_users`` rows
    have ratings, a tenth at least, whose ``typical_weight`` is 1 / sqrt(n) for users with n each.
    ``popularity`` is sum_j N_j^2 / sum_j N_j, that of the typical rating's item, with the noise's
    own square and one standard error of it taken off (``sure_popularity``: three): 0 where counts
    drown in noise.
    """

    mass: Floats
    mean: Floats
    prior_mean: Floats
    prior_variance: float
    raw_mean: Floats
    variance: Floats
    n_users: float
    typical_weight: float
    popularity: float
    sure_popularity: float


class ItemMeanReleases:
    """Releases item means, also in the slots of other statistics, and combines them by precision.

    users: whose ratings count, in quarter ranges from the middle of the scale; name: of the planned
    release; damping: fictitious ratings 0 in a user's own mean o_i; grid: power of two to which
    values that are summed are truncated.
    """

    def __init__(
        self, curator: Curator, users: Users, name: str, *, damping: float, grid: float
    ) -> None:
        self.curator, self.name = curator, name
        common: dict[str, Any] = {"grid": grid, "presence": USER_WEIGHT}
        weights = users.map(count_weights)
        counts = item_scalars(users, weights, clip=1.0, scale=COUNT_WEIGHT, signed=False, **common)
        deviations = users.map(_deviations, damping)
        self.statistic = stack(counts, item_scalars(users, deviations, clip=1.0, **common))
        self.total, self.precision = np.zeros((2, users.n_items + 1)), 0.0

    def release(self, *names: str, index: int = 0) -> ItemMeans:
        """Release popularity and means under the planned `names`; combine with earlier releases."""
        curator, planned = self.curator, self.curator.releases
        for name in names:
            precision = float(planned[name].noise_multiplier) ** -2.0 if curator.private else 1.0
            released = curator.release(name, self.statistic, index, statistic=self.name)
            self.total += precision * released
            self.precision += precision
        sensitivity = planned[self.name].sensitivity
        scale = sensitivity / np.sqrt(self.precision) if curator.private else 0.0
        statistic, columns = self.total / self.precision, curator.item_columns
        return estimate_item_means(statistic, float(scale), curator.n_rows, columns=columns)


def _deviations(rows: Rows, damping: float) -> Floats:
    """Weighted ratings less the user's own damped mean."""
    user, n = rows.user, rows.n_ratings
    own_mean = np.bincount(user, weights=rows.data, minlength=rows.n_users) / (n + damping)
    return np.asarray(count_weights(rows) * (rows.data - own_mean[user]))


def choose_rank(means: ItemMeans, mu: float, most: int, max_iter: int | None) -> tuple[int, int]:
    """Rank, and number of rounds to spend on the means first, from released values only.

    The signal is mu times the typical rating's popularity, times the reliability of a typical
    user's factors when training and again when predicting. The rank grows with its root. The
    weaker it is, the more of the max_iter rounds go to the means: all, at rank 0, unless it stands
    clear of its noise. None: no round can, so the rank is 1 at least.
    """
    n = means.typical_weight**-2.0
    scale = mu * (n / (n + HALF_RELIABLE)) ** 2
    signal = scale * means.popularity
    rank = int(np.clip(round(np.sqrt(signal / SIGNAL_PER_FACTOR)), 1, most))
    if max_iter is None:
        return rank, 0
    if scale * means.sure_popularity < SIGNAL_PER_FACTOR:
        return 0, max_iter
    return rank, int(max_iter / signal)


def estimate_item_means(
    statistic: Floats,
    noise_scale: float,
    n_rows: int,
    *,
    columns: Floats | None = None,
    count_weight: float = COUNT_WEIGHT,
    clip: float = 1.0,
    mass: Floats | None = None,
) -> ItemMeans:
    """Item means by empirical Bayes from the released (noisy) statistic.

    x_j = C S_j / (c N_j), c the mean clip factor, has error variance (C sd / (c N_j))^2 + v w / N_j
    (noise and sampling). b_j is the posterior mean with the prior of `item_prior`.

    statistic (2, n_items + 1): as released; noise_scale: standard deviation of its noise; n_rows:
    public number of rows; columns (n_items, d): public columns of the items; count_weight: s;
    clip: C; mass (n_items,): N, where more is known of it than the statistic says.
    """
    count_noise = noise_scale / count_weight
    N = statistic[0, :-1] / count_weight
    n_users = users_of(statistic[0, -1], n_rows)
    clip_factor = np.clip(statistic[1, -1] / USER_WEIGHT / n_users, LEAST_CLIP_FACTOR, 1.0)
    # sum_j w_i = sqrt(n_i) lies between 1 and sqrt(n_items) for every user
    total = np.clip(N.sum(), n_users, n_users * np.sqrt(N.size))
    typical_weight = n_users / total
    own_square, error = count_noise**2 * np.array([N.size, np.sqrt(2.0 * N.size)])
    popularity, sure_popularity = (
        max(float(np.sum(N**2) - own_square - errors * error), 0.0) / total for errors in (1.0, 3.0)
    )
    # an item seems never rarer than the noise can show
    N = np.maximum(N, 0.5 * max(count_noise, 1.0)) if mass is None else mass
    x = clip * statistic[1, :-1] / (clip_factor * N)
    variance = (clip * noise_scale / (clip_factor * N)) ** 2 + RATING_VARIANCE * typical_weight / N
    design = design_of(N, np.log(N), columns)
    prior_variance, prior_mean = item_prior(x, variance, design, PRIOR_VARIANCE)
    return ItemMeans(
        N,
        prior_mean + prior_variance / (prior_variance + variance) * (x - prior_mean),
        prior_mean,
        prior_variance,
        x,
        variance,
        n_users,
        float(typical_weight),
        popularity,
        sure_popularity,
    )


def users_of(released: float, n_rows: float) -> float:
    """Return the number of users with ratings, of so many rows, from what was released of it."""
    return float(np.clip(released / USER_WEIGHT, LEAST_LEVEL * n_rows, n_rows))


def design_of(mass: Any, log_mass: Any, columns: Any = None) -> Floats:
    """Return what prior means are linear in: 1, log N less its mean over ratings, and columns.

    mass, log_mass (n_items,): popularity and its logarithm; columns (n_items, d): public columns
    of the items.
    """
    place = log_mass - np.average(log_mass, weights=mass)
    design = np.ones_like(mass), place, np.empty((mass.size, 0)) if columns is None else columns
    return np.column_stack(design)


def posterior(x: Floats, variance: Floats, design: Floats, guess: float) -> tuple[Floats, Floats]:
    """Means and variances of b* given x ~ N(b*, variance), with the prior of `item_prior`."""
    t, line = item_prior(x, variance, design, guess)
    trust = t / (t + variance)
    return line + trust * (x - line), trust * variance


def item_prior(x: Floats, variance: Floats, design: Floats, guess: float) -> tuple[float, Floats]:
    """Find t and line of b* ~ N(line, t), line = design @ beta, given x ~ N(b*, variance).

    Items differ, in the mean of a rating, or they do not: either is as likely beforehand. If they
    do not, line is one level ~ N(0, PRIOR_VARIANCE) and t = 0. If they do, log(t / guess) ~ N(0, 1)
    and all other entries of beta are N(0, t): what is explained varies as what is left. t and line
    are those of both cases, by their probabilities given x: where noise hides all differences, or
    there are none, the prediction is nearly the user's own mean.

    x, variance (n_items,): measurements and the variance of their errors; design (n_items, 2 + d):
    of `design_of`; guess: of t. Returns t > 0: its posterior geometric mean, of `KNOTS` times the
    guess, times the probability that items differ; line (n_items,).
    """

    def fitted(t: float, design: Floats) -> tuple[float, Floats]:
        """Log density of x, but for a constant, and the posterior mean of the line."""
        total, slopes = variance + t, np.full(design.shape[1] - 1, t)
        prior = np.append(PRIOR_VARIANCE, slopes)
        weighted = design / total[:, None]
        gram, right = weighted.T @ design + np.diag(1.0 / prior), weighted.T @ x
        beta = np.linalg.solve(gram, right)
        square = np.sum(x**2 / total + np.log(total)) - right @ beta
        size = np.linalg.slogdet(gram)[1] + np.log(prior).sum()
        return -0.5 * float(square + size), design @ beta

    from scipy.interpolate import CubicSpline  # heavy
    from scipy.special import expit

    # many items know t better than the distance of two values tried
    tried = np.log(guess * KNOTS)
    logs = np.linspace(tried[0], tried[-1], _BETWEEN * (tried.size - 1) + 1)
    prior = -0.5 * (logs - np.log(guess)) ** 2
    density = prior + CubicSpline(tried, [fitted(t, design)[0] for t in np.exp(tried)])(logs)
    t, top = geometric_mean(np.exp(logs), density), float(density.max())
    alike, level = fitted(0.0, design[:, :1])
    odds = top - alike + np.log(np.exp(density - top).sum() / np.exp(prior).sum())
    differ = float(expit(odds))
    return max(differ * t, guess * KNOTS[0]), level + differ * (fitted(t, design)[1] - level)


def geometric_mean(values: Floats, log_density: Any) -> float:
    """Return the geometric mean of values > 0 that are so probable."""
    chance = np.exp(log_density - np.max(log_density))
    return float(np.exp(chance @ np.log(values) / chance.sum()))
