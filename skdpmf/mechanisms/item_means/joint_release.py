"""Priors of items before ratings are seen, and what one joint release shows of them.

The joint release is that of devices, which report once: for user i with n_i ratings y_ij (in
quarter ranges from the middle of the scale) and own damped mean o_i, the statistic is, but for what
`skdpmf.mechanisms.device_reports.item_means` adds, the sum over users of the stacked vector

    ( s w_i [j rated by i],  q [n_i > 0] ),   ( c_i w_i (y_ij - o_i) / C,  q c_i [n_i > 0] ),
    w_i = 1 / sqrt(n_i),   c_i = min(1, C / |w_i (y_i - o_i)|_2),

over all items j of the catalogue, with one more column for the number of users and the mean clip
factor. Elsewhere `residual_rounds` has the means: it needs several releases, and knows more. All
here is post-processing of released sums.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

# Guard: values tried for a variance, times its guess
KNOTS = np.geomspace(1e-3, 10.0, 13)
# share of rows that are not empty, and mean clip factor of gradients, at least; that of means
LEAST_LEVEL, LEAST_CLIP_FACTOR = 0.1, 0.3

# Tuned: what a release shows of one thing against another. q, of users
USER_WEIGHT = 0.1

# Tuned: what is thought of ratings before they are seen, in squared quarter ranges. Variance of one
# around its item's and user's means, which sets how much an item's own mean is trusted when noise
# is small; of items around their line, of factors, of the level of that line, of the mean
# rating, and of users' means
RATING_VARIANCE, PRIOR_VARIANCE = 0.7, 0.1

# Tuned: fictitious ratings in a user's offset: predictions believe users more than a fit does.
# With d of them they are never worse than users' own means while the variance of offsets is at
# most 2 / d of a rating's, and offsets that vary little lose little.
FIT_DAMPING, FOLD_IN_DAMPING = 10.0, 1.0

# Tuned: noise against bias of factors: see `ResidualAverages.choose_rank`. Signal below which there
# is none, and for each squared one; ratings of a user that determine half of the factors' variance
LEAST_SIGNAL, SIGNAL_PER_FACTOR, HALF_RELIABLE = 5.0, 3.0, 20.0


class ItemMeans(NamedTuple):
    """Released item popularity and means, in quarter ranges from the middle of the scale.

    ``mass`` are noisy sums of the raters' weights 1/sqrt(n_i), floored above zero; ``raw_mean`` are
    x_j, of error ``variance``. ``n_users`` rows have ratings, a tenth at least, whose
    ``typical_weight`` is 1 / sqrt(n) for users with n each.
    """

    mass: Floats
    raw_mean: Floats
    variance: Floats
    n_users: float
    typical_weight: float


def estimate_item_means(
    statistic: Floats,
    noise_scale: float,
    n_rows: int,
    *,
    count_weight: float,
    clip: float,
    mass: Floats | None = None,
) -> ItemMeans:
    """Item means from the released (noisy) statistic.

    x_j = C S_j / (c N_j), c the mean clip factor, has error variance (C sd / (c N_j))^2 + v w / N_j
    (noise and sampling).

    statistic (2, n_items + 1): as released; noise_scale: standard deviation of its noise; n_rows:
    public number of rows; count_weight: s; clip: C; mass (n_items,): N, where more is known of it
    than the statistic says.
    """
    count_noise = noise_scale / count_weight
    N = statistic[0, :-1] / count_weight
    n_users = users_of(statistic[0, -1], n_rows)
    clip_factor = np.clip(statistic[1, -1] / USER_WEIGHT / n_users, LEAST_CLIP_FACTOR, 1.0)
    # sum_j w_i = sqrt(n_i) lies between 1 and sqrt(n_items) for every user
    typical_weight = n_users / np.clip(N.sum(), n_users, n_users * np.sqrt(N.size))
    # an item seems never rarer than the noise can show
    N = np.maximum(N, 0.5 * max(count_noise, 1.0)) if mass is None else mass
    x = clip * statistic[1, :-1] / (clip_factor * N)
    variance = (clip * noise_scale / (clip_factor * N)) ** 2 + RATING_VARIANCE * typical_weight / N
    return ItemMeans(N, x, variance, n_users, float(typical_weight))


def reliability(n_ratings: float) -> float:
    """Return that of factors of a user with so many ratings, in training and again in predictions.

    Times mu and the typical rating's popularity, it is the signal that factors have.
    """
    return (n_ratings / (n_ratings + HALF_RELIABLE)) ** 2


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


def posterior(
    x: Floats, variance: Floats, design: Floats, guess: float, *, decide: bool = False
) -> tuple[Floats, Floats]:
    """Means and variances of b* given x ~ N(b*, variance), with the prior of `item_prior`."""
    t, line = item_prior(x, variance, design, guess, decide=decide)
    trust = t / (t + variance)
    return line + trust * (x - line), trust * variance


def item_prior(
    x: Floats, variance: Floats, design: Floats, guess: float, *, decide: bool = False
) -> tuple[float, Floats]:
    """Find t and line of b* ~ N(line, t), line = design @ beta, given x ~ N(b*, variance).

    Items differ, in the mean of a rating, or they do not: either is as likely beforehand. If they
    do not, line is one level ~ N(0, PRIOR_VARIANCE) and t = 0. If they do, log(t / guess) ~ N(0, 1)
    and all other entries of beta are N(0, t): what is explained varies as what is left. t and line
    are those of both cases, by their probabilities given x: where noise hides all differences, or
    there are none, the prediction is nearly the user's own mean.

    x, variance (n_items,): measurements and the variance of their errors; design (n_items, 2 + d):
    of `design_of`; guess: of t; decide: items do not differ at all where that is more likely.
    Returns t > 0: its posterior geometric mean, of `KNOTS` times the guess, times the probability
    that items differ; line (n_items,).
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

    # items know log t up to a deviation of sqrt(2 / n_items) at best, four steps of `logs`
    tried = np.log(guess * KNOTS)
    logs = np.linspace(tried[0], tried[-1], int(2 * tried.size * x.size**0.5))
    prior = -0.5 * (logs - np.log(guess)) ** 2
    density = prior + CubicSpline(tried, [fitted(t, design)[0] for t in np.exp(tried)])(logs)
    t, top = geometric_mean(np.exp(logs), density), float(density.max())
    alike, level = fitted(0.0, design[:, :1])
    odds = top - alike + np.log(np.exp(density - top).sum() / np.exp(prior).sum())
    differ = 0.0 if decide and odds <= 0.0 else float(expit(odds))
    return max(differ * t, guess * KNOTS[0]), level + differ * (fitted(t, design)[1] - level)


def geometric_mean(values: Floats, log_density: Any) -> float:
    """Return the geometric mean of values > 0 that are so probable."""
    chance = np.exp(log_density - np.max(log_density))
    return float(np.exp(chance @ np.log(values) / chance.sum()))
