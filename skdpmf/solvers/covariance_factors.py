r"""Factors of a released item covariance: steps 5 and the paper's rank-k projection.

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
most negative one, the edge of the noise's bulk, are left out.
"""

from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from joblib import Parallel, delayed, effective_n_jobs
from numpy.typing import NDArray
from scipy.sparse.linalg import LinearOperator, eigsh

from skdpmf.kernels._blocks import balanced_blocks
from skdpmf.kernels.covariance import packed_product, packed_rows, triangle_starts

__all__ = [
    "NOISE_SHRINKAGE",
    "PackedCovariance",
    "clean_covariance",
    "divide_covariance",
    "leading_factors",
]

_WEIGHT_SHRINKAGE, NOISE_SHRINKAGE = 2.0, 10.0
_LEAST_WEIGHT = 0.2  # of a cleaned weight, relative to its expectation
_DENSE = 300  # up to so many items a full decomposition is faster
# Entries of a block of a product, large against the cost of a thread; and most blocks but one
_BLOCK_ENTRIES, _BLOCKS = 1 << 22, 15
_TOLERANCE = 1e-6  # of eigenvalues, relative


class PackedCovariance(NamedTuple):
    """Item covariance and weights of h items, packed; A and W after cleaning."""

    covariance: NDArray[Any]
    weights: NDArray[Any]
    mean: float  # average off the diagonal, a


def divide_covariance(
    cov: NDArray[Any], wgt: NDArray[Any], *, noise: tuple[float, float]
) -> PackedCovariance:
    """Return Cov / Wgt, in place of `cov`.

    Parameters
    ----------
    cov, wgt : float arrays of shape (h (h + 1) / 2,)
        As released; `cov` is overwritten.
    noise : tuple of float
        Standard deviations of an entry off the diagonal of Cov and of Wgt.

    Returns
    -------
    PackedCovariance
    """
    floor = noise[1] if noise[1] > 0.0 else np.finfo(np.float64).tiny
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
) -> PackedCovariance:
    """Return the module's A and the cleaned Wgt, in place of `cov` and `wgt`.

    Parameters
    ----------
    cov, wgt : float arrays of shape (h (h + 1) / 2,)
        As released; overwritten.
    mass : ndarray of shape (h,)
        Popularity N_j > 0.
    noise : tuple of float
        Standard deviations of an entry off the diagonal of Cov and of Wgt; 0 without privacy.

    Returns
    -------
    PackedCovariance
    """
    h = len(mass)
    pairs = max(h * (h - 1) / 2, 1)
    cov_sum = wgt_sum = cross = squares = 0.0
    for i, row in enumerate(_rows(cov)):
        weights = np.asarray(wgt[row][:-1], dtype=np.float64)
        cov_sum += float(cov[row][:-1].sum(dtype=np.float64))
        wgt_sum += float(weights.sum())
        cross += float(mass[i] * (weights @ mass[:i]))
        squares += float(weights @ weights)
    expected_squares = max((np.sum(mass**2) ** 2 - np.sum(mass**4)) / 2.0, 1e-300)
    q = max(cross, 0.0) / expected_squares
    # relative variance of the true weights around their expectation, by moments
    excess = squares - cross**2 / expected_squares - pairs * noise[1] ** 2
    relative = max(excess, 0.0) / max(q**2 * expected_squares, 1e-300)
    diagonal = triangle_starts(h)[1:] - 1
    a = cov_sum / wgt_sum if wgt_sum > 0.0 else 0.0
    b = _WEIGHT_SHRINKAGE * max(wgt_sum, 0.0) / pairs + NOISE_SHRINKAGE * noise[0]
    own = _clean_diagonal(cov[diagonal], wgt[diagonal], noise)
    for i, row in enumerate(_rows(cov)):
        expected = q * mass[i] * mass[: i + 1]
        signal = relative * expected**2
        trust = signal / np.maximum(signal + noise[1] ** 2, 1e-300) if noise[1] > 0.0 else 1.0
        weights = np.maximum(expected + trust * (wgt[row] - expected), _LEAST_WEIGHT * expected)
        if noise[1] == 0.0:
            weights = np.asarray(wgt[row], dtype=np.float64)
        wgt[row] = weights
        cov[row] = (cov[row] + b * a) / np.maximum(weights + b, 1e-300)
    cov[diagonal] = own
    return PackedCovariance(cov, wgt, float(a))


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

    Parameters
    ----------
    clean : PackedCovariance
        From `clean_covariance` or `divide_covariance`.
    mass : ndarray of shape (h,)
        Popularity N_j > 0.
    n_components : int
        Largest rank.
    communalities : bool
        Whether the diagonal is replaced.
    above_noise : bool
        Whether eigenvalues within the noise's bulk are left out; negative ones always are.
    n_jobs : int or None
        Threads; does not change the result.

    Returns
    -------
    ndarray of shape (h, k)
        k <= n_components, the strongest factor first.
    """
    root = np.sqrt(mass)
    largest = _spectrum(clean.covariance, root, min(n_components, len(mass)), n_jobs)
    own = clean.covariance[triangle_starts(len(mass))[1:] - 1] * mass
    diagonal = clean.mean * mass if communalities else own
    edge = 0.0
    for _ in range(2 if communalities else 1):
        values, vectors, smallest = largest(diagonal - own)
        edge = max(-smallest, 0.0) if above_noise else 0.0
        keep = values > edge
        values, vectors = values[keep], vectors[:, keep]
        diagonal = (vectors**2) @ values
    return np.asarray(vectors * np.sqrt(values) / root[:, None])


def _clean_diagonal(
    cov: NDArray[Any], wgt: NDArray[Any], noise: tuple[float, float]
) -> NDArray[np.float64]:
    """Diagonal of A; a variance is at least a twentieth of the average one."""
    total, weight = float(cov.sum(dtype=np.float64)), float(wgt.sum(dtype=np.float64))
    average = max(total / weight, 1e-6) if weight > 0.0 else 1e-6
    b = _WEIGHT_SHRINKAGE * max(weight, 0.0) / len(wgt) + NOISE_SHRINKAGE * noise[0]
    own = (cov + b * average) / np.maximum(np.maximum(wgt, 0.0) + b, 1e-300)
    return np.asarray(np.clip(own, 0.05 * average, 20.0 * average))


def _spectrum(
    packed: NDArray[Any], root: NDArray[np.float64], k: int, n_jobs: int | None
) -> Callable[[NDArray[np.float64]], tuple[Any, Any, float]]:
    """Return a function of what is added to M's diagonal: its k largest pairs and its smallest."""
    h = len(root)
    if h <= max(_DENSE, k + 1):
        full = np.empty((h, h), packed.dtype)
        packed_rows(packed, np.arange(h), np.arange(h), full)
        dense = full.astype(np.float64) * np.outer(root, root)

        def all_values(added: NDArray[np.float64]) -> tuple[Any, Any, float]:
            values, vectors = np.linalg.eigh(dense + np.diag(added))
            return values[: -k - 1 : -1], vectors[:, : -k - 1 : -1], float(values[0])

        return all_values
    product = _product(packed, root, n_jobs)

    def ends(added: NDArray[np.float64]) -> tuple[Any, Any, float]:
        operator = LinearOperator(
            (h, h), matvec=lambda x: product(x.ravel()) + added * x.ravel(), dtype=np.float64
        )
        start = root / np.linalg.norm(root)
        values, vectors = eigsh(operator, k, which="LA", v0=start, tol=_TOLERANCE)
        smallest = eigsh(operator, 1, which="SA", v0=start, tol=1e-2, return_eigenvectors=False)
        order = np.argsort(values)[::-1]
        return values[order], vectors[:, order], float(smallest[0])

    return ends


def _product(
    packed: NDArray[Any], root: NDArray[np.float64], n_jobs: int | None
) -> Callable[[NDArray[np.float64]], NDArray[np.float64]]:
    """Return x -> D A D x, D = diag(root)."""
    h = len(root)
    # cut without looking at the number of threads: the order of sums is fixed
    blocks = balanced_blocks(triangle_starts(h), 1 + min(packed.size // _BLOCK_ENTRIES, _BLOCKS))

    def part(x: NDArray[np.float64], start: int, stop: int) -> NDArray[np.float64]:
        out = np.zeros((h, 1))
        packed_product(packed, root, x, start, stop, out)
        return out[:, 0]

    def product(x: NDArray[np.float64]) -> NDArray[np.float64]:
        column = np.ascontiguousarray(x[:, None], dtype=np.float64)
        if len(blocks) == 1 or effective_n_jobs(n_jobs) == 1:
            return np.asarray(sum(part(column, *ends) for ends in blocks))
        made = Parallel(n_jobs=n_jobs, prefer="threads", require="sharedmem")(
            delayed(part)(column, *ends) for ends in blocks
        )
        return np.asarray(sum(made))

    return product


def _rows(packed: NDArray[Any]) -> list[slice]:
    """Rows of a packed triangle."""
    h = (int(np.sqrt(8 * packed.size + 1)) - 1) // 2
    starts = triangle_starts(h)
    return [slice(int(a), int(b)) for a, b in pairwise(starts)]
