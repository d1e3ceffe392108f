r"""Item factors from local reports: which items, what a device sends, what the server makes of it.

Ratings y are in quarter ranges from the middle of the scale. In a round "covariance", the last one
of a protocol, devices get released item means b, popularity N and h head items. A device sends

    ( sqrt(1 - beta) x_i,  sqrt(beta) p_i ),   beta = 1/5,

x_i being its vector of a round "residuals" and p_i its pairs, both of length at most 1. A longer
report has the same noise in each value. So item means are as accurate as from 4/5 of the devices
sending x_i alone, and factors as accurate as from 1/5 of them sending p_i alone.

**Pairs.** A device has the deviations e_ij = y_ij - b_j - o_i, with o_i the damped mean of y - b
over all its ratings, and weights w_ij ~ N_j^(-1/4) on its head items, of which it takes the
`MOST_OWN_ITEMS` most popular ones at most, with sum_j w_ij^2 = 1. With

.. math:: c_i = \min(1, C / |w_i e_i|), \quad z_i = c_i w_i e_i / C,

a_i = 2 sum_(l<j) w_ij w_il and K = `MOST_OWN_ITEMS`, it has, for all pairs l < j of the head,

    p_i = ( sqrt(2) z_ij z_il,  q c_i^2 a_i / (K - 1) ) / L,   L^2 = 1 - 1 / K + q^2,

or zero if it has fewer than two head items.

**Length.** That of p_i is at most 1: |z_i| <= 1, and

.. math:: \sum_{l<j} 2 z_{ij}^2 z_{il}^2 = |z_i|^4 - \sum_j z_{ij}^4
    \le |z_i|^4 (1 - 1 / K) \le 1 - 1 / K,

as at most K of the z_ij are not 0. a_i = (sum_j w_ij)^2 - 1 is at most K - 1 by Cauchy-Schwarz, and
c_i at most 1. It is 1 for K head items with the same |z_ij| and c_i = 1. Rounding: |w_i| and |z_i|
are each a hair, 2^-40, below their bounds, and so is the result, which is more than all relative
errors of 2^-53 in sums of at most 780 products.

**Server.** x_i is used as in a round "residuals". The first h (h - 1) / 2 values of p_i estimate
Cov_jl = sum_i z_ij z_il, with noise of deviation sd; the last one shows sum_(l<j) W_jl, of the
weights W_jl = sum_i c_i^2 w_ij w_il / C^2. As expected from popularity alone, they are
W_jl = u_j u_l, u_j = sqrt(kappa) N_j^(3/4): kappa is that of the last value, as far as its noise is
less than what popularity leaves open. Factors L make Cov about D L L^T D, D = diag(u), and noise of
one deviation sd everywhere leaves of an eigenvalue theta of this, and of its eigenvector,

.. math:: \lambda = \theta + h\, sd^2 / \theta, \qquad \cos^2 = 1 - h\, sd^2 / \theta^2.

Those lambda count that are above the edge, 2 sd sqrt(h) + 0.98 sd h^(-1/6), which the largest
eigenvalue of noise alone exceeds in one of 20 cases at most. With their theta and eigenvectors v,

.. math:: L_j = (v_j \sqrt{\theta \cos^2} / u_j)_{\mathrm{factors}}.

The diagonal of Cov, which holds the variance of single ratings, is not sent: that of the factors
themselves takes its place (principal axis factoring).

**Head.** A round is "covariance" rather than "residuals" where this is expected to predict better,
popularity-weighted mean squared errors being compared: by what the item means lose, and by what a
first factor gains, if it has the variance f = 0.05 in all items. With s the head's share of the
ratings, theta = f sum_j u_j^2 and n_h the head ratings of a typical user, this is

.. math:: s f \cos^2 \frac{n_h f}{n_h f + 0.7},

or nothing if its lambda is below the edge. Everything in it is released before, or public.

Sources: C. A. Tracy, H. Widom, "On orthogonal and symplectic matrix ensembles", Commun. Math. Phys.
177, 1996 (the edge); F. Benaych-Georges, R. R. Nadakuditi, "The eigenvalues and eigenvectors of
finite, low rank perturbations of large random matrices", Adv. Math. 227, 2011 (lambda and cos^2).
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from skdpmf.mechanisms.common import popularity_weights, row_norms, rows_of
from skdpmf.mechanisms.device_reports.item_means import (
    LocalItemMeans,
    Rows,
    deviations,
    residual_dimension,
    residual_rows,
)
from skdpmf.mechanisms.item_means import joint_release as im
from skdpmf.privacy.sums import shrink_to_ball

__all__ = [
    "MAX_HEAD",
    "MOST_OWN_ITEMS",
    "add_covariance",
    "choose_head",
    "covariance_dimension",
    "covariance_rows",
]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

MAX_HEAD = 400
MOST_OWN_ITEMS = 40  # K: a device's time grows with the pairs of its head items
_LEAST_HEAD = 25
_CLIP = 0.6  # C
_EXPONENT = 0.25  # of the popularity in the weights
_INSIDE = 1.0 - 2.0**-40  # rounding must not exceed a length
_SHARE = 0.2  # beta
# f, in squared quarter ranges: a bet, as the item means can only lose a little. MovieLens 1M's
# first factor has 0.02.
_FACTOR_VARIANCE = 0.05
_CLIP_SQUARE = 0.5  # c_i^2 of a typical user, where nothing has told it yet
_SCALE_ERROR = 0.5  # relative standard error of kappa as popularity shows it
_LEAST_SCALE = 0.2  # of kappa, relative to that
_BEYOND_EDGE = 0.98  # 95 % quantile of the Tracy-Widom law of real symmetric matrices
_LARGEST = 2.0  # factor, in quarter ranges; more comes of noise, or of dishonest reports
_SWEEPS = 4  # of principal axis factoring
# Gain of another round for the means, relative to the fall of their error variances: measured
# twice to four times as much, as it takes away a bias of the first one as well.
_MEANS_GAIN = 2.5


def covariance_dimension(n_items: int, n_head: int) -> int:
    """Coordinates of a vector of round "covariance"."""
    return residual_dimension(n_items) + _n_pairs(n_head) + 1


def covariance_rows(
    R: sparse.csr_array, item_means: Floats, mass: Floats, head: Ints, user_damping: float
) -> Rows:
    """Return the vectors of round "covariance".

    R (csr_array of shape (n_devices, n_items)): ratings in quarter ranges from the middle of the
    scale, columns ascending; item_means, mass (n_items,): released b and popularity N > 0; head
    (h,): columns of the head items, ascending. Result: vectors of `covariance_dimension`
    coordinates.
    """
    x = residual_rows(R, item_means, mass, user_damping)
    on_head = _on_head(R, deviations(R, item_means, user_damping), mass, head)
    pairs = _pair_rows(on_head, mass[head])
    parts = (
        (1.0 - _SHARE, x, residual_dimension(R.shape[1])),
        (_SHARE, pairs, _n_pairs(len(head)) + 1),
    )
    weighted = [
        sparse.csr_array((np.sqrt(w) * p.values, p.indices, p.indptr), shape=(R.shape[0], size))
        for w, p, size in parts
    ]
    both = sparse.hstack(weighted, format="csr")
    return Rows(both.indptr.astype(np.int64), both.indices.astype(np.int64), both.data)


def add_covariance(
    known: LocalItemMeans,
    head: Ints,
    mean: Floats,
    n_devices: int,
    variance: float,
    n_components: int,
) -> Floats:
    """Take in round "covariance": improve the item means, and return factors of the head items.

    known: what the devices were sent is its; it takes in the round; head (h,): columns of the head
    items; mean (covariance_dimension,): estimated mean of the devices' vectors; n_devices: devices
    that reported; variance: n_devices times the variance of each value of `mean`; n_components:
    largest rank. Returns (h, k): L, k <= n_components, possibly 0; in quarter ranges.
    """
    x, pairs = np.split(np.asarray(mean), [residual_dimension(known.n_items)])
    rest = 1.0 - _SHARE
    known.add_residuals(x / np.sqrt(rest), n_devices, variance / rest)
    told = pairs / np.sqrt(_SHARE), n_devices, variance / _SHARE
    return _estimate_factors(known, head, *told, n_components)


def choose_head(known: LocalItemMeans, n_devices: float, variance: float) -> Ints:
    """Choose what the last round is for, from released values and public numbers only.

    known: released so far; n_devices: expected to report in the round; variance: as for
    `add_covariance`; that of an earlier round is the same but for the grid. Result: columns of the
    head items, ascending; none for a round "residuals".
    """
    order = np.argsort(-known.mass, kind="stable")
    gains = (known.residual_gain(n_devices, v) for v in (variance, variance / (1.0 - _SHARE)))
    best, chosen = _MEANS_GAIN * (next(gains) - next(gains)), 0
    largest = min(MAX_HEAD, known.n_items)
    sizes = [_LEAST_HEAD * 2**k for k in range(10) if _LEAST_HEAD * 2**k < largest]
    for h in [*sizes, largest] if known.significant and largest > 1 else []:
        gain = _factor_gain(known, order[:h], n_devices, variance / _SHARE)
        if gain > best:
            best, chosen = gain, h
    return np.sort(order[:chosen]).astype(np.int64)


def _pair_rows(E: sparse.csr_array, mass: Floats) -> Rows:
    """Return the p_i, from the deviations on head items of this popularity."""
    (n_devices, h), n, row = E.shape, np.diff(E.indptr), rows_of(E)
    weight = popularity_weights(E, mass, _EXPONENT)
    terms = weight * E.data
    clip = shrink_to_ball(row_norms(row, terms, n_devices), _CLIP)
    z = clip[row] * terms / _CLIP
    # every entry with all those before it in its row
    rank = np.arange(E.nnz) - E.indptr[row]
    left = np.repeat(np.arange(E.nnz), rank)
    first = np.concatenate((np.zeros(1, np.int64), np.cumsum(rank)))
    right = E.indptr[row[left]] + np.arange(left.size) - first[left]
    j = E.indices[left].astype(np.int64)
    pairs = np.bincount(row[left], weights=weight[left] * weight[right], minlength=n_devices)
    users, ends = np.flatnonzero(n > 1), first[E.indptr[1:]]
    scale = im.USER_WEIGHT * clip**2 * 2.0 * pairs / (MOST_OWN_ITEMS - 1)
    values = np.insert(np.sqrt(2.0) * z[left] * z[right], ends[users], scale[users])
    indices = np.insert(_n_pairs(j) + E.indices[right], ends[users], _n_pairs(h))
    indptr = np.concatenate((np.zeros(1, np.int64), ends + np.cumsum(n > 1)))
    return Rows(indptr, indices, values * (_INSIDE / _length()))


def _estimate_factors(
    known: LocalItemMeans,
    head: Ints,
    mean: Floats,
    n_devices: int,
    variance: float,
    n_components: int,
) -> Floats:
    """Return L, from the mean of the p_i."""
    N = known.mass[head]
    total = np.asarray(mean) * (n_devices * _length())
    noise = _length() * float(np.sqrt(n_devices * variance))
    u, expected = N ** (1.0 - _EXPONENT), _expected_scale(known, N, n_devices)
    to_scale = (MOST_OWN_ITEMS - 1) / (im.USER_WEIGHT * _CLIP**2 * (u.sum() ** 2 - u @ u))
    spread, error = (_SCALE_ERROR * expected) ** 2, to_scale * noise
    kappa = expected + spread / (spread + error**2) * (to_scale * total[-1] - expected)
    u *= np.sqrt(max(kappa, _LEAST_SCALE * expected))
    cov = np.zeros((len(head), len(head)))
    cov[np.tril_indices(len(head), -1)] = total[:-1] / np.sqrt(2.0)
    scaled = _factors_above_noise(cov + cov.T, noise / np.sqrt(2.0), n_components)
    return np.clip(scaled / u[:, None], -_LARGEST, _LARGEST)


def _factor_gain(known: LocalItemMeans, head: Ints, n_devices: float, variance: float) -> float:
    """Return the gain of the module's docstring."""
    h, N, f = len(head), known.mass[head], _FACTOR_VARIANCE
    share = float(N.sum() / known.mass.sum())
    sd = _length() * float(np.sqrt(n_devices * variance / 2.0))
    scale = _expected_scale(known, N, n_devices)
    theta = f * scale * float(np.sum(N ** (2.0 - 2.0 * _EXPONENT)))
    bulk = h * sd**2
    if theta**2 <= bulk or theta + bulk / theta <= _edge(h, sd):
        return 0.0
    seen = f * known.typical_ratings * share
    return share * f * (1.0 - bulk / theta**2) * seen / (seen + im.RATING_VARIANCE)


def _factors_above_noise(cov: Floats, sd: float, n_components: int) -> Floats:
    """Return D L of the module's docstring, for Cov with a diagonal of zeros."""
    h = len(cov)
    communalities = np.zeros(h)
    for _ in range(_SWEEPS):
        values, vectors = np.linalg.eigh(cov + np.diag(communalities))
        values, vectors = values[::-1][:n_components], vectors[:, ::-1][:, :n_components]
        above = values > _edge(h, sd)
        values, vectors = values[above], vectors[:, above]
        theta = (values + np.sqrt(values**2 - 4.0 * h * sd**2)) / 2.0
        strength = theta - h * sd**2 / theta
        communalities = vectors**2 @ strength
    return np.asarray(vectors * np.sqrt(strength))


def _edge(h: int, sd: float) -> float:
    return sd * (2.0 * float(np.sqrt(h)) + _BEYOND_EDGE * h ** (-1.0 / 6.0))


def _expected_scale(known: LocalItemMeans, N: Floats, n_devices: float) -> float:
    """Return kappa as popularity shows it.

    A user of n ratings has n N_j / sum(N) of item j, independent of other items, and so many of all
    head items that n sum_head(N_j^(1/2)) / sum(N) is the sum of their N_j^(-1/2).
    """
    users = n_devices / known.n_devices * _CLIP_SQUARE / _CLIP**2
    return float(users * np.sqrt(known.typical_ratings) / np.sum(N ** (1.0 - 2.0 * _EXPONENT)))


def _on_head(R: Any, e: Floats, mass: Floats, head: Ints) -> sparse.csr_array:
    """Return each device's e on its head items, as a csr_array of shape (n_devices, h)."""
    row = rows_of(R)
    place = np.minimum(np.searchsorted(head, R.indices), len(head) - 1)
    kept = np.flatnonzero(head[place] == R.indices)
    # the most popular ones: their factors are seen best, the first eigenvalue is larger
    ordered = kept[np.lexsort((-mass[head[place[kept]]], row[kept]))]
    first = np.searchsorted(row[ordered], row[ordered])
    kept = np.sort(ordered[np.arange(kept.size) - first < MOST_OWN_ITEMS])
    counts = np.bincount(row[kept], minlength=R.shape[0])
    indptr = np.concatenate((np.zeros(1, np.int64), np.cumsum(counts)))
    arrays = e[kept], place[kept].astype(np.int64), indptr
    return sparse.csr_array(arrays, shape=(R.shape[0], len(head)))


def _n_pairs(n: Any) -> Any:
    """Return how many pairs of n items there are: also where those with item n begin."""
    return n * (n - 1) // 2


def _length() -> float:
    """Return L."""
    return float(np.sqrt(1.0 - 1.0 / MOST_OWN_ITEMS + im.USER_WEIGHT**2))
