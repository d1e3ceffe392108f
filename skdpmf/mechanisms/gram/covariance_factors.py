r"""Factors of a released item covariance: cleaning and the projection to rank k.

Cov and Wgt are packed lower triangles of h x h matrices, as released. All is post-processing.

**Cleaning.** With N_j the released popularity, Wgt is shrunk to its rank-one expectation
q N_i N_j, as far as noise hides the difference, and the average covariance of two items to the
average a of all pairs,

.. math:: A_{ij} = \frac{\mathrm{Cov}_{ij} + b a}{\mathrm{Wgt}_{ij} + b}, \quad
    b = 2\,\mathrm{mean}(\mathrm{Wgt}) + 10\, \mathrm{sd}(\mathrm{noise\ of\ Cov}_{ij}),

and the diagonal likewise, to its own average. Without cleaning A_ij = Cov_ij / Wgt_ij, with Wgt_ij
floored at one standard deviation of its noise.

**Factors.** M_ij = A_ij sqrt(N_i N_j) equalises sampling noise. Its k largest eigenvalues l and
eigenvectors U give L_i = U_i sqrt(l / N_i), so that L L^T is about A. With cleaning, the diagonal
of M, which holds the variance of single ratings, is first replaced by that of the rank-k matrix
itself (principal axis factoring, from a N_i), and eigenvalues that do not exceed the size of the
most negative one are left out. It shows the edge of the noise's bulk, which is symmetric, to within
a few percent: of noise alone, one factor gets through about half of the time.
"""

from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from joblib import Parallel, delayed, effective_n_jobs
from numpy.typing import NDArray
from scipy.sparse.linalg import ArpackError, ArpackNoConvergence, LinearOperator, eigsh

from skdpmf.kernels.covariance import clean_pairs, packed_product, packed_rows, pair_sums
from skdpmf.kernels.sums import triangle_starts
from skdpmf.kernels.threads import balanced_blocks

__all__ = [
    "NOISE_SHRINKAGE",
    "PackedCovariance",
    "clean_covariance",
    "divide_covariance",
    "leading_factors",
    "neighbor_ridge",
]

_WEIGHT_SHRINKAGE, NOISE_SHRINKAGE = 2.0, 10.0
# Variance of a rating around its prediction from few items, in squared quarter ranges.
_NEIGHBOR_RIDGE = 1.0
_LEAST_WEIGHT = 0.2  # of a cleaned weight, relative to its expectation
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


def divide_covariance(
    cov: NDArray[Any], wgt: NDArray[Any], *, noise: tuple[float, float]
) -> PackedCovariance:
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
    cov: NDArray[Any],
    wgt: NDArray[Any],
    mass: NDArray[np.float64],
    *,
    noise: tuple[float, float],
    n_jobs: int | None = None,
) -> PackedCovariance:
    """Return the module's A and the cleaned Wgt, in place of `cov` and `wgt`.

    cov, wgt (h (h + 1) / 2,) float: as released; overwritten; mass (h,): popularity N_j > 0; noise:
    standard deviations of an entry off the diagonal of Cov and of Wgt; 0 without privacy.
    """
    h = len(mass)
    blocks = _blocks(h)
    sums = np.zeros((len(blocks), 4))

    def add(block: int) -> None:
        pair_sums(cov, wgt, mass, *blocks[block], sums[block])

    _in_threads(add, range(len(blocks)), n_jobs)
    cov_sum, wgt_sum, cross, squares = sums.sum(axis=0)
    pairs = max(h * (h - 1) / 2, 1)
    expected_squares = max((np.sum(mass**2) ** 2 - np.sum(mass**4)) / 2.0, 1e-300)
    q = max(cross, 0.0) / expected_squares
    # relative variance of the true weights around their expectation, by moments
    excess = squares - cross**2 / expected_squares - pairs * noise[1] ** 2
    relative = max(excess, 0.0) / (q**2 * expected_squares) if q > 0.0 else 0.0
    a = float(cov_sum / wgt_sum) if wgt_sum > 0.0 else 0.0
    b = _WEIGHT_SHRINKAGE * max(wgt_sum, 0.0) / pairs + NOISE_SHRINKAGE * noise[0]
    diagonal = triangle_starts(h)[1:] - 1
    own = _clean_diagonal(cov[diagonal], wgt[diagonal], noise)

    def clean(block: int) -> None:
        model = q, relative, noise[1], _LEAST_WEIGHT, b, a
        clean_pairs(cov, wgt, mass, *model, *blocks[block])

    _in_threads(clean, range(len(blocks)), n_jobs)
    cov[diagonal] = own
    return PackedCovariance(cov, wgt, a)


def leading_factors(
    clean: PackedCovariance,
    mass: NDArray[np.float64],
    n_components: int,
    *,
    communalities: bool,
    above_noise: bool,
    n_jobs: int | None,
) -> NDArray[np.float64]:
    """Return L of the module's docstring.

    clean: from `clean_covariance` or `divide_covariance`; mass (h,): popularity N_j > 0;
    n_components: largest rank; communalities: whether the diagonal is replaced; above_noise:
    whether eigenvalues within the noise's bulk are left out; negative ones always are. Returns (h,
    k): k <= n_components, the strongest factor first.
    """
    root = np.sqrt(mass)
    # eigenvalues within the bulk lie so close that they would take most of the time
    ends = _spectrum(clean.covariance, root, n_jobs, _RESTARTS if above_noise else None)
    own = clean.covariance[triangle_starts(len(mass))[1:] - 1] * mass
    diagonal = clean.mean * mass if communalities else own
    k = min(n_components, len(mass))
    for _ in range(2 if communalities else 1):
        edge = -np.min(ends(diagonal - own, -1)[0], initial=0.0) if above_noise else 0.0
        values, vectors = ends(diagonal - own, k)
        keep = values > edge
        values, vectors = values[keep], vectors[:, keep]
        diagonal = (vectors**2) @ values
    return np.asarray(vectors * np.sqrt(values) / root[:, None])


def neighbor_ridge(n_neighbors: int, *, private: bool) -> float:
    """Ridge of systems of so many neighbours, in squared quarter ranges.

    Noise of deviation d in the entries of A has spectral norm 2 d sqrt(n_neighbors), and cleaning
    keeps d below 1 / `NOISE_SHRINKAGE`.
    """
    noise = 2.0 * np.sqrt(n_neighbors) / NOISE_SHRINKAGE if private else 0.0
    return float(_NEIGHBOR_RIDGE + noise)


def _clean_diagonal(
    cov: NDArray[Any], wgt: NDArray[Any], noise: tuple[float, float]
) -> NDArray[np.float64]:
    """Diagonal of A; a variance is between a twentieth and twenty times the average one."""
    total, weight = float(cov.sum(dtype=np.float64)), float(wgt.sum(dtype=np.float64))
    average = max(total / weight, 1e-6) if weight > 0.0 else 1e-6
    b = _WEIGHT_SHRINKAGE * max(weight, 0.0) / len(wgt) + NOISE_SHRINKAGE * noise[0]
    own = (cov + b * average) / np.maximum(np.maximum(wgt, 0.0) + b, 1e-300)
    return np.asarray(np.clip(own, 0.05 * average, 20.0 * average))


def _spectrum(
    packed: NDArray[Any], root: NDArray[np.float64], n_jobs: int | None, restarts: int | None
) -> Callable[[NDArray[np.float64], int], tuple[Any, Any]]:
    """Return a function of what is added to M's diagonal and of k: eigenvalues and eigenvectors.

    The k largest, in descending order; for k = -1 the smallest one, roughly. After so many
    `restarts` (None: any number) those that are still missing are given up.
    """
    h = len(root)
    if h <= _DENSE:
        full = np.empty((h, h), packed.dtype)
        packed_rows(packed, np.arange(h), np.arange(h), full)
        dense = full.astype(np.float64) * np.outer(root, root)

        def all_of_them(added: NDArray[np.float64], k: int) -> tuple[Any, Any]:
            values, vectors = np.linalg.eigh(dense + np.diag(added))
            wanted = slice(None, -k - 1, -1) if k > 0 else slice(1)
            return values[wanted], vectors[:, wanted]

        return all_of_them
    product = _product(packed, root, n_jobs)

    def ends(added: NDArray[np.float64], k: int) -> tuple[Any, Any]:
        operator = LinearOperator(
            (h, h), matvec=lambda x: product(x.ravel()) + added * x.ravel(), dtype=np.float64
        )
        if k < 0:
            return _lanczos(operator, 1, "SA", root, _ROUGHLY)
        values, vectors = _lanczos(operator, min(k, h - 1), "LA", root, _TOLERANCE, restarts)
        order = np.argsort(values)[::-1]
        return values[order], vectors[:, order]

    return ends


def _lanczos(
    operator: LinearOperator,
    k: int,
    which: str,
    start: NDArray[np.float64],
    tolerance: float,
    restarts: int | None = None,
) -> tuple[Any, Any]:
    """Eigenvalues and eigenvectors at one end; those that were found, if not all are."""
    try:
        return eigsh(operator, k, which=which, v0=start, tol=tolerance, maxiter=restarts)
    except ArpackNoConvergence as error:
        return error.eigenvalues, error.eigenvectors
    except ArpackError:  # the matrix is zero
        return np.zeros(0), np.zeros((len(start), 0))


def _product(
    packed: NDArray[Any], root: NDArray[np.float64], n_jobs: int | None
) -> Callable[[NDArray[np.float64]], NDArray[np.float64]]:
    """Return x -> D A D x, D = diag(root)."""
    h = len(root)
    blocks = _blocks(h)

    def product(x: NDArray[np.float64]) -> NDArray[np.float64]:
        column = np.ascontiguousarray(x[:, None], dtype=np.float64)
        parts = np.zeros((len(blocks), h, 1))

        def part(block: int) -> None:
            packed_product(packed, root, column, *blocks[block], parts[block])

        _in_threads(part, range(len(blocks)), n_jobs)
        return np.asarray(parts.sum(axis=0)[:, 0])

    return product


def _blocks(h: int) -> list[tuple[int, int]]:
    """Row blocks, cut without looking at the number of threads: the order of sums is fixed."""
    starts = triangle_starts(h)
    return balanced_blocks(starts, 1 + min(int(starts[-1]) // _BLOCK_ENTRIES, _BLOCKS))


def _in_threads(work: Callable[[int], None], blocks: range, n_jobs: int | None) -> None:
    """Call ``work`` on each block; one block needs no threads."""
    if len(blocks) == 1 or effective_n_jobs(n_jobs) == 1:
        for block in blocks:
            work(block)
        return
    Parallel(n_jobs=n_jobs, prefer="threads", require="sharedmem")(
        delayed(work)(block) for block in blocks
    )


def _rows(packed: NDArray[Any]) -> list[slice]:
    """Rows of a packed triangle."""
    h = (int(np.sqrt(8 * packed.size + 1)) - 1) // 2
    starts = triangle_starts(h)
    return [slice(int(a), int(b)) for a, b in pairwise(starts)]
