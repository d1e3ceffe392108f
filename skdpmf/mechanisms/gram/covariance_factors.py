r"""Factors of a released item covariance: cleaning and the projection to its rank.

Cov and Wgt are packed lower triangles of h x h matrices, as released. All is post-processing.

**Cleaning.** With N_j the released popularity, Wgt is shrunk to its rank-one expectation
E_ij = q N_i N_j, as far as noise hides the difference, and the average covariance of two items to
the average a of all pairs,

.. math:: A_{ij} = \frac{\mathrm{Cov}_{ij} + b a}{\mathrm{Wgt}_{ij} + b}, \quad
    b = \frac{\omega v^2}{2 t^2}, \quad
    t^2 = \frac{\sum (\mathrm{Cov} - a E)^2 - \omega v^2 \sum E - P s^2}{\sum E^2}.

The quotient Cov_ij / Wgt_ij has the sampling variance omega v^2 / Wgt_ij, where v is the average
variance of an item's ratings and omega the weight of a typical user. t^2 estimates the variance of
the true covariances over the P pairs: the spread of the sums less that of sampling and that of the
noise, whose deviation is s. It is at most v^2. Few pairs have most of t^2, for which the factor 1/2
is a correction, found by trial. The diagonal is shrunk to its own average, by an average weight.
Without cleaning A_ij = Cov_ij / Wgt_ij, with Wgt_ij floored at a deviation of its noise.

**Factors.** M_ij = A_ij (N_i N_j)^p equalises noise: that of sampling at p = 1/2, that of privacy
at p = 1. Where there is both, cleaning takes p = 3/4. The k largest eigenvalues l and eigenvectors
U give L_i = U_i sqrt(l) / N_i^p, so that L L^T is about A. With cleaning, the diagonal of M, which
holds the variance of single ratings, is replaced by that of the rank-k matrix itself (principal
axis factoring, from 0, `_ROUNDS` times), eigenvalues up to the edge e of the noise's bulk are left
out, and the others shrunk to sqrt(l^2 - e^2). Noise is symmetric, so that e is the size of
the most negative eigenvalue. As users' rows are centred, the direction of constants, N^(1 - p), has
a negative one without any noise: it is taken off before. So the rank falls to none where the sums
show nothing but noise, of privacy or of sampling. Where a > 0 users' levels make it so, which the
damped means o leave in the rows: cleaning factors A - a, as eigenvectors estimate a constant with
noise, and predictions have an offset.

**Noise level.** psi, the average of A_jj - a - (L L^T)_jj, is the variance of a rating around its
prediction, and the ridge of the users' fold-in. With n ratings of a typical user and the damping d
of o, levels of variance tau^2 make

.. math:: a = \frac{d^2 \tau^2 - (n + 2 d) \psi}{(n + d)^2},

from which tau^2 follows, and the ridge psi / tau^2 of users' offsets.

The shrinkage is that of the spiked model in M. Gavish and D. Donoho, "Optimal shrinkage of singular
values", IEEE Transactions on Information Theory 63 (2017), for the Frobenius norm.
"""

from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse.linalg import ArpackError, ArpackNoConvergence, LinearOperator, eigsh

from skdpmf.kernels.covariance import (
    clean_pairs,
    packed_product,
    packed_rows,
    pair_sums,
    triangle_starts,
)
from skdpmf.kernels.jit_and_threads import balanced_blocks, in_threads
from skdpmf.mechanisms.gram.item_item import LEAST_OWN

Floats = NDArray[np.float64]

# Tuned: noise against bias of covariances, as relative weights
_SHRINKAGE = 0.5  # of omega v^2 / t^2
NOISE_SHRINKAGE = 10.0  # of the noise's deviation
_POWER = 0.75  # p
# Variance of a rating around its prediction from few items, in squared quarter ranges.
_NEIGHBOR_RIDGE = 1.0

# Guard: time of an eigendecomposition, and the accuracy at which it stops
_ROUNDS = 4  # of the factoring
_DENSE = 300  # up to so many items a full decomposition is faster
# Entries of a block of a product, large against the cost of a thread; and most blocks but one
_BLOCK_ENTRIES, _BLOCKS = 1 << 24, 15
_TOLERANCE, _ROUGHLY = 1e-6, 1e-2  # of eigenvalues, relative
_RESTARTS = 10  # of Lanczos; those that stand out of the noise take two or three


class PackedCovariance(NamedTuple):
    """Item covariance and weights of h items, packed; A and W after cleaning."""

    covariance: NDArray[Any]
    weights: NDArray[Any]
    mean: float  # average off the diagonal, a
    shrinkage: float = 0.0  # weight b of the average

    @property
    def level(self) -> float:
        """What users' levels add to the covariance of two items."""
        return max(self.mean, 0.0)


def divide_covariance(cov: NDArray[Any], wgt: NDArray[Any], *, noise: Any) -> PackedCovariance:
    """Return Cov / Wgt, in place of `cov`.

    cov, wgt (h (h + 1) / 2,) float: as released; `cov` is overwritten; noise: standard deviations
    of an entry off the diagonal of Cov and of Wgt.
    """
    floor = max(noise[1], float(np.finfo(wgt.dtype).tiny))
    total = weight = 0.0
    for row in _rows(cov):
        total, weight = total + float(cov[row][:-1].sum()), weight + float(wgt[row][:-1].sum())
        cov[row] = np.where(wgt[row] > 0.0, cov[row] / np.maximum(wgt[row], floor), 0.0)
    return PackedCovariance(cov, wgt, total / weight if weight > 0.0 else 0.0)


def clean_covariance(
    cov: Any,
    wgt: Any,
    mass: Floats,
    *,
    noise: Any,
    typical: float,
    shrinkage: float | None = None,
    n_jobs: int | None = None,
) -> PackedCovariance:
    """Return the module's A and the cleaned Wgt, in place of `cov` and `wgt`.

    cov, wgt (h (h + 1) / 2,) float: as released; overwritten; mass (h,): popularity N_j > 0; noise:
    standard deviations of an entry off the diagonal of Cov and of Wgt; 0 without privacy; typical:
    weight omega of a typical user; shrinkage: b; None: by moments.
    """
    h = len(mass)
    blocks = _blocks(h)
    sums = np.zeros((len(blocks), 6))

    def add(start: int, stop: int, out: Floats) -> None:
        pair_sums(cov, wgt, mass, start, stop, out)

    in_threads(add, [(*ends, out) for ends, out in zip(blocks, sums, strict=True)], n_jobs)
    cov_sum, wgt_sum, cross, squares, cov_cross, cov_squares = sums.sum(axis=0)
    pairs = max(h * (h - 1) / 2, 1)
    products = max((np.sum(mass) ** 2 - np.sum(mass**2)) / 2.0, 1e-300)
    product_squares = max((np.sum(mass**2) ** 2 - np.sum(mass**4)) / 2.0, 1e-300)
    q = max(cross, 0.0) / product_squares
    # relative variance of the true weights around their expectation, by moments
    excess = squares - cross**2 / product_squares - pairs * noise[1] ** 2
    relative = max(excess, 0.0) / (q**2 * product_squares) if q > 0.0 else 0.0
    a = float(cov_sum / wgt_sum) if wgt_sum > 0.0 else 0.0
    diagonal = triangle_starts(h)[1:] - 1
    own, v = _clean_diagonal(cov[diagonal], wgt[diagonal], noise)
    spread = cov_squares - 2.0 * a * q * cov_cross + (a * q) ** 2 * product_squares
    spread -= typical * v**2 * q * products + pairs * noise[0] ** 2
    squared = q**2 * product_squares
    part = spread / (v**2 * squared) if squared > 1e-100 else 0.0
    b = float(_SHRINKAGE * typical / np.clip(part, 1e-100, 1.0))
    if shrinkage is not None:
        b = shrinkage

    def clean(start: int, stop: int) -> None:
        model = q, relative, noise[1], b, a
        clean_pairs(cov, wgt, mass, *model, start, stop)

    in_threads(clean, blocks, n_jobs)
    cov[diagonal] = own
    return PackedCovariance(cov, wgt, a, b)


def with_private_sums(
    cov: Any, wgt: Any, private: Any, expected: Floats, c: float, noise: Any
) -> tuple[tuple[Any, float], Floats, float]:
    """Add noisy sums to exact ones of other people, by precision, in place of `cov` and `wgt`.

    cov, wgt: exact; private: noisy Cov and Wgt, the latter near the products of `expected`; c:
    omega v^2; noise: deviations of entries of `private`.

    An entry of Cov has the variance c Wgt by sampling. Noisy ones of deviation s count c Wgt /
    (c Wgt + s^2): what they add to Wgt is then worth as much as exact sums of this Wgt. Returns Wgt
    of all with one weight for all noisy entries, and this weight; popularity by the new Wgt; and
    the part of the new sums' variance that is by sampling.
    """
    own, own_wgt = private
    entry = c * float(expected @ expected / expected.sum()) ** 2
    share = entry / (entry + noise[0] ** 2)
    both, others = wgt + share * own_wgt, [slice(row.start, row.stop - 1) for row in _rows(own)]
    products = [expected[j] * expected[:j] for j in range(len(expected))]
    squares = max(sum(float(E @ E) for E in products), 1e-300)
    cross = sum(float(own_wgt[row] @ E) for row, E in zip(others, products, strict=True))
    q = max(cross / squares, LEAST_OWN)
    left = sum(
        float(np.sum((own_wgt[row] - q * E) ** 2 - noise[1] ** 2))
        for row, E in zip(others, products, strict=True)
    )
    relative = max(left, 0.0) / (q**2 * squares)
    mass, sampled = np.zeros(len(expected)), 0.0
    for j, (row, E) in enumerate(zip(_rows(own), products, strict=True)):
        W = own_wgt[row]
        gain = relative * (q * E) ** 2 / (relative * (q * E) ** 2 + noise[1] ** 2)
        W[:-1] = np.maximum(q * E + gain * (W[:-1] - q * E), LEAST_OWN * q * E)
        W = np.maximum(W, 0.0)
        counts = c * W / (c * W + noise[0] ** 2)
        sampled += float(np.sum((wgt[row] + counts**2 * W)[:-1]))
        cov[row] += counts * own[row]
        wgt[row] += counts * W
        mass[j] += wgt[row][:-1].sum()
        mass[:j] += wgt[row][:-1]
    mass = np.maximum(mass, 1e-100)  # of an item that is alone
    return (both, share), mass / np.sqrt(mass.sum()), 2.0 * sampled / mass.sum()


def likely_shrinkage(cov: Any, wgt: Any, c: float, typical: float) -> float:
    """Return b for exact sums, where c = typical v^2: t^2 by moments, and by a guess.

    Both count by their precision: few people's moments show next to nothing.
    """
    rows = [slice(row.start, row.stop - 1) for row in _rows(cov)]
    sums = np.array([(cov[row].sum(), wgt[row].sum(), np.sum(wgt[row] ** 2)) for row in rows])
    total, weight, squares = np.maximum(sums.sum(axis=0), 1e-300)
    spread = sum(float(np.sum((cov[row] - total / weight * wgt[row]) ** 2)) for row in rows)
    scale = typical / max(squares * c, 1e-100)
    part, error = (spread - c * weight) * scale, np.sqrt(2.0 * squares) * c * scale
    return float(_SHRINKAGE * typical / np.clip(part - error, 1e-100, 1.0))


def without_noise(clean: PackedCovariance, deviation: float) -> PackedCovariance:
    """Return A shrunk further, for uses that no eigenvalue protects from noise; in place.

    clean: from `clean_covariance`; deviation: of the noise off the diagonal of Cov. Entries off the
    diagonal get another `NOISE_SHRINKAGE` deviations of weight at their average.
    """
    A, W, more = clean.covariance, clean.weights, NOISE_SHRINKAGE * deviation
    for row in _rows(A):
        others = slice(row.start, row.stop - 1)
        known = W[others] + clean.shrinkage
        A[others] = (A[others] * known + more * clean.mean) / np.maximum(known + more, 1e-300)
    return clean._replace(shrinkage=clean.shrinkage + more)


def leading_factors(
    clean: PackedCovariance,
    mass: Floats,
    n_components: int,
    *,
    cleaning: bool,
    noisy: bool = False,
    n_jobs: int | None = None,
) -> Floats:
    """Return L of the module's docstring.

    clean: from `clean_covariance`, or from `divide_covariance` without `cleaning`; mass (h,):
    popularity N_j > 0; n_components: largest rank; noisy: whether there is noise of privacy, as far
    as cleaning is concerned. Returns (h, k): k <= n_components, the strongest
    factor first. Negative eigenvalues are always left out.
    """
    root = mass ** (_POWER if cleaning and noisy else 0.5)
    # eigenvalues within the bulk lie so close that they would take most of the time
    level, restarts = (clean.level, _RESTARTS) if cleaning else (0.0, None)
    ends = _spectrum(clean.covariance, root, mass / root, n_jobs, restarts, level)
    own = (clean.covariance[triangle_starts(len(mass))[1:] - 1] - level) * root**2
    diagonal = (clean.mean - level) * root**2 if cleaning else own
    k = min(n_components, len(mass))
    for _ in range(_ROUNDS if cleaning else 1):
        edge = -np.min(ends(diagonal - own, -1)[0], initial=0.0) if cleaning else 0.0
        values, vectors = ends(diagonal - own, k)
        keep = values > edge
        values, vectors = np.sqrt(values[keep] ** 2 - edge**2), vectors[:, keep]
        diagonal = (vectors**2) @ values
    return np.asarray(vectors * np.sqrt(values) / root[:, None])


def noise_level(
    clean: PackedCovariance, L: Floats, mass: Floats, number: float, damping: float
) -> tuple[float, float]:
    """Return psi and psi / tau^2: the ridges of factors and of the users' offsets.

    clean: from `clean_covariance`; L (h, k): from `leading_factors`; mass (h,): popularity; number:
    n; damping: d.
    """
    own = clean.covariance[triangle_starts(len(mass))[1:] - 1].astype(np.float64)
    left = np.maximum(own - clean.level - np.sum(L**2, axis=1), LEAST_OWN * own)
    psi = float(np.average(left, weights=mass))
    whole = clean.mean * (number + damping) ** 2 + psi * (number + 2.0 * damping)
    return psi, psi / max(whole / damping**2, LEAST_OWN * psi)


def neighbor_ridge(n_neighbors: int, *, private: bool) -> float:
    """Ridge of systems of so many neighbours, in squared quarter ranges.

    Noise of deviation d in the entries of A has spectral norm 2 d sqrt(n_neighbors), and cleaning
    keeps d below 1 / `NOISE_SHRINKAGE`.
    """
    noise = 2.0 * np.sqrt(n_neighbors) / NOISE_SHRINKAGE if private else 0.0
    return float(_NEIGHBOR_RIDGE + noise)


def _clean_diagonal(cov: NDArray[Any], wgt: NDArray[Any], noise: Any) -> tuple[Floats, float]:
    """Diagonal of A, between a twentieth and twenty times its average, and the average v."""
    total, weight = float(cov.sum(dtype=np.float64)), float(wgt.sum(dtype=np.float64))
    average = max(total / weight, 1e-6) if weight > 0.0 else 1e-6
    b = max(weight, 0.0) / len(wgt) + NOISE_SHRINKAGE * noise[0]
    own = (cov + b * average) / np.maximum(np.maximum(wgt, 0.0) + b, 1e-300)
    return np.asarray(np.clip(own, 0.05 * average, 20.0 * average)), average


def _spectrum(
    packed: NDArray[Any],
    root: Floats,
    constant: Floats,
    n_jobs: int | None,
    restarts: int | None,
    level: float,
) -> Callable[[Floats, int], tuple[Any, Any]]:
    """Return a function of what is added to M's diagonal and of k: eigenvalues and eigenvectors.

    `level` is subtracted from all of A. The k largest, in descending order; for k = -1 the smallest
    one, roughly, of what is left of the matrix without the direction of `constant`. After so many
    `restarts` (None: any number) those that are still missing are given up.
    """
    h, constant = len(root), constant / np.linalg.norm(constant)
    if h <= _DENSE:
        full = np.empty((h, h), packed.dtype)
        packed_rows(packed, np.arange(h), np.arange(h), full)
        dense = (full.astype(np.float64) - level) * np.outer(root, root)

        def all_of_them(added: Floats, k: int) -> tuple[Any, Any]:
            M = dense + np.diag(added)
            if k < 0:
                M -= np.outer(constant, constant @ M)
                M -= np.outer(M @ constant, constant)
            values, vectors = np.linalg.eigh(M)
            wanted = slice(None, -k - 1, -1) if k > 0 else slice(1)
            return values[wanted], vectors[:, wanted]

        return all_of_them
    blocks = _blocks(h)

    def product(x: Floats) -> Floats:
        column = np.ascontiguousarray(x[:, None], dtype=np.float64)
        parts = np.zeros((len(blocks), h, 1))

        def part(start: int, stop: int, out: Floats) -> None:
            packed_product(packed, root, column, start, stop, out)

        in_threads(part, [(*ends, out) for ends, out in zip(blocks, parts, strict=True)], n_jobs)
        return np.asarray(parts.sum(axis=0)[:, 0])

    def ends(added: Floats, k: int) -> tuple[Any, Any]:
        def times(x: Floats) -> Floats:
            x = x.ravel()
            if k < 0:
                x = x - constant * (constant @ x)
            y = product(x) - level * root * (root @ x) + added * x
            return y - constant * (constant @ y) if k < 0 else y

        operator = LinearOperator((h, h), matvec=times, dtype=np.float64)
        if k < 0:
            return _lanczos(operator, 1, "SA", root, _ROUGHLY)
        values, vectors = _lanczos(operator, min(k, h - 1), "LA", root, _TOLERANCE, restarts)
        order = np.argsort(values)[::-1]
        return values[order], vectors[:, order]

    return ends


def _lanczos(
    operator: Any, k: int, which: str, start: Floats, tolerance: float, restarts: Any = None
) -> tuple[Any, Any]:
    """Eigenvalues and eigenvectors at one end; those that were found, if not all are."""
    try:
        return eigsh(operator, k, which=which, v0=start, tol=tolerance, maxiter=restarts)
    except ArpackNoConvergence as error:
        return error.eigenvalues, error.eigenvectors
    except ArpackError:  # the matrix is zero
        return np.zeros(0), np.zeros((len(start), 0))


def _blocks(h: int) -> list[tuple[int, int]]:
    """Row blocks, cut without looking at the number of threads: the order of sums is fixed."""
    starts = triangle_starts(h)
    return balanced_blocks(starts, 1 + min(int(starts[-1]) // _BLOCK_ENTRIES, _BLOCKS))


def _rows(packed: NDArray[Any]) -> list[slice]:
    """Rows of a packed triangle."""
    h = (int(np.sqrt(8 * packed.size + 1)) - 1) // 2
    starts = triangle_starts(h)
    return [slice(int(a), int(b)) for a, b in pairwise(starts)]
