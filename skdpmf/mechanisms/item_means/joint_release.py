"""Private item popularity and item means from one joint release.

For user i with n_i ratings y_ij (in quarter ranges from the middle of the scale) and own damped
mean o_i, the released statistic is the sum over users of the stacked vector

    ( s w_i [j rated by i],  q [n_i > 0] ),   ( c_i w_i (y_ij - o_i) / C,  q c_i [n_i > 0] ),
    w_i = 1 / sqrt(n_i),   c_i = min(1, C / |w_i (y_i - o_i)|_2),

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
from skdpmf.privacy.curator import Curator
from skdpmf.privacy.sums import item_scalars, stack
from skdpmf.privacy.users import Rows, Users

__all__ = [
    "COUNT_WEIGHT",
    "RATING_VARIANCE",
    "USER_WEIGHT",
    "ItemMeanReleases",
    "ItemMeans",
    "choose_rank",
    "estimate_item_means",
    "shrink_to_line",
]

COUNT_WEIGHT = 0.3  # s
USER_WEIGHT = 0.1  # q
CLIP = 0.8  # C, just below a typical user's root mean squared deviation in quarter ranges

# Variance of one rating around its item's and user's means, in squared quarter ranges: a prior
# guess that only sets how much an item's own mean is trusted when noise is small.
RATING_VARIANCE = 0.7
_SMALLEST_PRIOR_VARIANCE = 1e-3
_COLUMN = 0.3  # deviation of slopes on item columns
# Rank: see choose_rank.
_SIGNAL_PER_FACTOR, _LEAST_SURE_SIGNAL = 3.0, 2.0
_HALF_RELIABLE = 20.0  # ratings of a user that determine half of his factors' variance


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

    mass: NDArray[np.float64]
    mean: NDArray[np.float64]
    prior_mean: NDArray[np.float64]
    prior_variance: float
    raw_mean: NDArray[np.float64]
    variance: NDArray[np.float64]
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
        self,
        curator: Curator,
        users: Users,
        name: str,
        *,
        damping: float,
        grid: float,
    ) -> None:
        self.curator, self.name = curator, name
        common: dict[str, Any] = {"grid": grid, "presence": USER_WEIGHT}
        weights = users.map(count_weights)
        counts = item_scalars(users, weights, clip=1.0, scale=COUNT_WEIGHT, signed=False, **common)
        deviations = users.map(_deviations, damping)
        self.statistic = stack(counts, item_scalars(users, deviations, clip=CLIP, **common))
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


def _deviations(rows: Rows, damping: float) -> NDArray[np.float64]:
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
    scale = mu * (n / (n + _HALF_RELIABLE)) ** 2
    signal = scale * means.popularity
    rank = int(np.clip(round(np.sqrt(signal / _SIGNAL_PER_FACTOR)), 1, most))
    if max_iter is None:
        return rank, 0
    if scale * means.sure_popularity < _LEAST_SURE_SIGNAL:
        return 0, max_iter
    return rank, int(max_iter / signal)


def estimate_item_means(
    statistic: NDArray[np.float64],
    noise_scale: float,
    n_rows: int,
    *,
    columns: NDArray[np.float64] | None = None,
    count_weight: float = COUNT_WEIGHT,
) -> ItemMeans:
    """Item means by empirical Bayes from the released (noisy) statistic.

    x_j = S_j / (c N_j), c the mean clip factor, has error variance (C sd / (c N_j))^2 + v w / N_j
    (noise and sampling). The prior mean is linear in log N_j and in the item columns, fitted by
    weighted least squares with a ridge on the latter; the prior variance is found by moments (both
    iterated a few times); b_j is the posterior mean.

    statistic (2, n_items + 1): as released; noise_scale: standard deviation of its noise; n_rows:
    public number of rows; columns (n_items, d): public columns of the items; count_weight: s.
    """
    count_noise = noise_scale / count_weight
    N = statistic[0, :-1] / count_weight
    S = statistic[1, :-1] * CLIP
    n_users = np.clip(statistic[0, -1] / USER_WEIGHT, 0.1 * n_rows, n_rows)
    clip_factor = np.clip(statistic[1, -1] / USER_WEIGHT / n_users, 0.3, 1.0)
    # sum_j w_i = sqrt(n_i) lies between 1 and sqrt(n_items) for every user
    total = np.clip(N.sum(), n_users, n_users * np.sqrt(N.size))
    typical_weight = n_users / total
    own_square, error = count_noise**2 * np.array([N.size, np.sqrt(2.0 * N.size)])
    popularity, sure_popularity = (
        max(float(np.sum(N**2) - own_square - errors * error), 0.0) / total for errors in (1.0, 3.0)
    )
    # an item seems never rarer than the noise can show
    N = np.maximum(N, 0.5 * max(count_noise, 1.0))
    x = S / (clip_factor * N)
    variance = (CLIP * noise_scale / (clip_factor * N)) ** 2 + RATING_VARIANCE * typical_weight / N
    prior_variance = 0.1
    for _ in range(10):
        precision = 1.0 / (variance + prior_variance)
        prior_mean = _line(N, x, precision, columns)
        spread = np.sum(precision**2 * ((x - prior_mean) ** 2 - variance))
        prior_variance = max(spread / np.sum(precision**2), _SMALLEST_PRIOR_VARIANCE)
    return ItemMeans(
        N,
        _between(prior_mean, x, variance, prior_variance),
        prior_mean,
        prior_variance,
        x,
        variance,
        float(n_users),
        float(typical_weight),
        popularity,
        sure_popularity,
    )


def shrink_to_line(
    N: Any, x: Any, variance: Any, prior_variance: float, columns: Any = None
) -> NDArray[np.float64]:
    """Posterior means of items whose prior mean is a line, of a given variance around it.

    The line is linear in log N and in public item columns.

    N, x, variance (n_items,): popularity (> 0), measured means and the variance of their errors;
    prior_variance: of the true means around the line; columns (n_items, d): public columns of the
    items. Returns (n_items,).
    """
    line = _line(N, x, 1.0 / (variance + prior_variance), columns)
    return _between(line, x, variance, prior_variance)


def _line(N: Any, x: Any, precision: Any, columns: Any) -> NDArray[np.float64]:
    """Weighted least squares of x on log N and, with a ridge, on the columns, at every item."""
    design, root = np.column_stack((np.ones_like(N), np.log(N))), np.sqrt(precision)
    ridge = np.empty((0, 2))
    if columns is not None and columns.shape[1]:
        design, d = np.column_stack((design, columns)), columns.shape[1]
        ridge = np.column_stack((np.zeros((d, 2)), np.eye(d) / _COLUMN))
    rows = np.concatenate((design * root[:, None], ridge))
    beta = np.linalg.lstsq(rows, np.append(x * root, np.zeros(len(ridge))), rcond=1e-9)[0]
    return np.asarray(design @ beta)


def _between(prior_mean: Any, x: Any, variance: Any, prior_variance: float) -> NDArray[np.float64]:
    """Posterior mean of a normal measurement."""
    trust = prior_variance / (prior_variance + variance)
    return np.asarray(prior_mean + trust * (x - prior_mean))
