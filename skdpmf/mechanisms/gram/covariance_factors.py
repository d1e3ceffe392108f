r"""Factors of a released item covariance: cleaning and the projection to its rank.

Cov and Wgt are h x h matrices, as released. All is post-processing.

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
is a correction, found by trial. The diagonal is shrunk to v, by an average weight.
Without cleaning A_ij = Cov_ij / Wgt_ij, with Wgt_ij floored at a deviation of its noise.

**Factors.** Entries of Cov have the variance s^2 + c^2 N_i N_j, c^2 = omega v^2 q, which is at
most (s + c N_i) (s + c N_j). So M_ij = A_ij r_i r_j, r_i = N_i / sqrt(s + c N_i), equalises noise.
Without cleaning r_i = sqrt(N_i). The k largest eigenvalues l and eigenvectors
U give L_i = U_i sqrt(l) / r_i, so that L L^T is about A. With cleaning, the diagonal of M, which
holds the variance of single ratings, is replaced by that of the rank-k matrix itself (principal
axis factoring, from 0, `N_ROUNDS` times), eigenvalues up to the edge e of the noise's bulk are left
out, and the others shrunk to sqrt(l^2 - e^2). Noise is symmetric, so that e is the size of
the most negative eigenvalue. As users' rows are centred, the direction of constants, N / r, has
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

from typing import Any, NamedTuple

import numpy as np
import scipy.linalg
from numpy.typing import NDArray
from scipy.linalg.blas import dsymv
from scipy.sparse.linalg import ArpackError, ArpackNoConvergence, LinearOperator, eigsh

Floats = NDArray[np.float64]

# Tuned: noise against bias of covariances, as a relative weight of omega v^2 / t^2
_SHRINKAGE = 0.5

# Guard: an item's own part above 0, of the mean diagonal
LEAST_OWN = 0.06

# Guard: time of eigendecompositions, and the accuracy at which they stop
N_ROUNDS = 4  # of cleaning, and of factoring
_DENSE = 30  # with at most so many items a vector a full decomposition is faster
_TOLERANCE, _ROUGHLY = 1e-6, 1e-2  # of eigenvalues, relative
_RESTARTS = 10  # of Lanczos; those that stand out of the noise take two or three


class ItemCovariance(NamedTuple):
    """Item covariance and weights of h items, (h, h); A and W after cleaning."""

    covariance: Floats
    weights: Floats
    mean: float  # average off the diagonal, a
    noise: tuple[float, float] = (0.0, 1.0)  # s and c

    @property
    def level(self) -> float:
        """What users' levels add to the covariance of two items."""
        return max(self.mean, 0.0)


def divide_covariance(cov: Floats, wgt: Floats, *, noise: Any) -> ItemCovariance:
    """Return Cov / Wgt of released matrices.

    noise: standard deviations of an entry off the diagonal of Cov and of Wgt.
    """
    total, weight = (float(part.sum() - part.trace()) for part in (cov, wgt))
    A = np.where(wgt > 0.0, cov / np.maximum(wgt, max(noise[1], 1e-300)), 0.0)
    return ItemCovariance(A, wgt, total / weight if weight > 0.0 else 0.0)


def clean_covariance(
    cov: Floats,
    wgt: Floats,
    mass: Floats,
    *,
    noise: Any,
    typical: float,
    shrinkage: float | None = None,
) -> ItemCovariance:
    """Return the module's A and the cleaned Wgt, in place of `cov` and `wgt`.

    cov, wgt (h, h): as released; overwritten; mass (h,): popularity N_j > 0; noise: standard
    deviations of an entry off the diagonal of Cov and of Wgt; 0 without privacy; typical: weight
    omega of a typical user; shrinkage: b; None: by moments.
    """
    own, counts = cov.diagonal().copy(), wgt.diagonal().copy()
    np.fill_diagonal(cov, 0.0)
    np.fill_diagonal(wgt, 0.0)
    pairs = max(len(mass) * (len(mass) - 1.0), 1.0)
    products, product_squares = (
        max(np.sum(N) ** 2 - np.sum(N**2), 1e-300) for N in (mass, mass**2)
    )
    cross, cov_cross = float(mass @ wgt @ mass), float(mass @ cov @ mass)
    q = max(cross, 0.0) / product_squares
    # relative variance of the true weights around their expectation, by moments
    excess = np.vdot(wgt, wgt) - cross**2 / product_squares - pairs * noise[1] ** 2
    relative = max(excess, 0.0) / (q**2 * product_squares) if q > 0.0 else 0.0
    a = float(cov.sum() / wgt.sum()) if wgt.sum() > 0.0 else 0.0
    count = max(float(counts.mean()), 0.0)
    v = max(float(own.mean()) / count, 1e-6) if count > 0.0 else 1e-6
    weight = np.maximum(counts, 0.0) + count
    own = np.divide(own + count * v, weight, out=np.full_like(own, v), where=weight > 0.0)
    own = np.maximum(own, LEAST_OWN * v)
    spread = np.vdot(cov, cov) - 2.0 * a * q * cov_cross + (a * q) ** 2 * product_squares
    spread -= typical * v**2 * q * products + pairs * noise[0] ** 2
    squared = q**2 * product_squares
    part = spread / (v**2 * squared) if squared > 1e-100 else 0.0
    if shrinkage is None:
        shrinkage = float(_SHRINKAGE * typical / np.clip(part, 1e-100, 1.0))
    for C, W, N in zip(cov, wgt, mass, strict=True):  # without more matrices of this size
        if noise[1] > 0.0:
            E = q * N * mass
            signal = relative * E**2
            W[:] = np.maximum(E + (W - E) * (signal / (signal + noise[1] ** 2)), 0.0)
        C[:] = (C + shrinkage * a) / np.maximum(W + shrinkage, 1e-300)
    np.fill_diagonal(cov, own)
    np.fill_diagonal(wgt, counts)
    return ItemCovariance(cov, wgt, a, (noise[0], v * np.sqrt(typical * max(q, 1e-300))))


def with_private_sums(
    cov: Floats, wgt: Floats, private: Any, expected: Floats, c: float, noise: Any
) -> tuple[tuple[Any, float], Floats, float]:
    """Add noisy sums to exact ones of other people, by precision, in place of `cov` and `wgt`.

    cov, wgt: exact; private: noisy Cov and Wgt, the latter near the products of `expected`; c:
    omega v^2; noise: deviations of entries of `private`.

    An entry of Cov has the variance c Wgt by sampling. Noisy ones of deviation s count c Wgt /
    (c Wgt + s^2): what they add to Wgt is then worth as much as exact sums of this Wgt. Returns Wgt
    of all with one weight for all noisy entries, and this weight; popularity by the new Wgt; and
    the part of the new sums' variance that is by sampling.
    """
    (own, own_wgt), square = private, noise[1] ** 2
    entry = c * float(expected @ expected / expected.sum()) ** 2
    share = entry / (entry + noise[0] ** 2)
    both, N = wgt + share * own_wgt, expected
    squares = max(np.sum(N**2) ** 2 - np.sum(N**4), 1e-300)
    alone = np.maximum(own_wgt.diagonal(), 0.0)
    np.fill_diagonal(own_wgt, 0.0)
    cross = float(N @ own_wgt @ N)
    q = max(cross / squares, LEAST_OWN)
    left = np.vdot(own_wgt, own_wgt) - 2.0 * q * cross + q**2 * squares
    relative = max(left - N.size * (N.size - 1) * square, 0.0) / (q**2 * squares)
    mass, sampled = np.zeros(N.size), 0.0
    for j, W in enumerate(own_wgt):  # without more matrices of this size
        E = q * N[j] * N
        signal = relative * E**2
        W = E + signal / np.maximum(signal + square, 1e-300) * (W - E)
        W = np.maximum(W, LEAST_OWN * E)
        W[j] = alone[j]
        counts = c * W / np.maximum(c * W + noise[0] ** 2, 1e-300)
        sampled += float(np.sum(np.delete(wgt[j] + counts**2 * W, j)))
        cov[j] += counts * own[j]
        wgt[j] += counts * W
        mass[j] = max(wgt[j].sum() - wgt[j, j], 1e-100)  # of an item that is alone
    return (both, share), mass / np.sqrt(mass.sum()), sampled / mass.sum()


def likely_shrinkage(cov: Floats, wgt: Floats, c: float, typical: float) -> float:
    """Return b for exact sums, where c = typical v^2: t^2 by moments, and by a guess.

    Both count by their precision: few people's moments show next to nothing.
    """
    own = [part.diagonal().copy() for part in (cov, wgt)]
    for part in (cov, wgt):  # differences would leave rounding where nobody rated two items
        np.fill_diagonal(part, 0.0)
    weight, squares = (max(part, 1e-300) for part in (wgt.sum(), np.vdot(wgt, wgt)))
    mean = cov.sum() / weight
    spread = np.vdot(cov, cov) - 2.0 * mean * np.vdot(cov, wgt) + mean**2 * squares
    for part, diagonal in zip((cov, wgt), own, strict=True):
        np.fill_diagonal(part, diagonal)
    scale = typical / max(squares * c, 1e-100)
    # every pair stands twice
    part, error = (spread - c * weight) * scale, 2.0 * np.sqrt(squares) * c * scale
    return float(_SHRINKAGE * typical / np.clip(part - error, 1e-100, 1.0))


def leading_factors(
    clean: ItemCovariance, mass: Floats, n_components: int, *, cleaning: bool
) -> Floats:
    """Return L of the module's docstring.

    clean: from `clean_covariance`, or from `divide_covariance` without `cleaning`; mass (h,):
    popularity N_j > 0; n_components: largest rank. Returns (h, k): k <= n_components, the strongest
    factor first. Negative eigenvalues are always left out.
    """
    root = mass / np.sqrt(clean.noise[0] + clean.noise[1] * mass)
    level, edge = clean.level if cleaning else 0.0, 0.0
    M = np.outer(root, root)
    M *= clean.covariance - level
    if cleaning:
        np.fill_diagonal(M, (clean.mean - level) * root**2)
    for _ in range(N_ROUNDS if cleaning else 1):
        if cleaning:
            edge = _edge(M, mass / root)
        # eigenvalues within the bulk lie so close that they would take most of the time
        values, vectors = largest(M, min(n_components, len(M)), _RESTARTS if cleaning else None)
        keep = values > edge
        values, vectors = np.sqrt((values[keep] - edge) * (values[keep] + edge)), vectors[:, keep]
        np.fill_diagonal(M, (vectors**2) @ values)
    return np.asarray(vectors * np.sqrt(values) / root[:, None])


def noise_level(
    clean: ItemCovariance, L: Floats, mass: Floats, number: float, damping: float
) -> tuple[float, float]:
    """Return psi and psi / tau^2: the ridges of factors and of the users' offsets.

    clean: from `clean_covariance`; L (h, k): from `leading_factors`; mass (h,): popularity; number:
    n; damping: d.
    """
    own = clean.covariance.diagonal()
    left = np.maximum(own - clean.level - np.sum(L**2, axis=1), LEAST_OWN * own)
    psi = float(np.average(left, weights=mass))
    whole = clean.mean * (number + damping) ** 2 + psi * (number + 2.0 * damping)
    return psi, psi / max(whole / damping**2, LEAST_OWN * psi)


def largest(M: Floats, k: int, restarts: int | None = None) -> tuple[Any, Any]:
    """Return the k largest eigenvalues, descending, and their vectors.

    After so many restarts (None: any number) those that are still missing are given up.
    """
    if len(M) <= _DENSE * k:
        values, vectors = scipy.linalg.eigh(M, subset_by_index=(max(len(M) - k, 0), len(M) - 1))
    else:
        values, vectors = _lanczos(_products(M), k, "LA", _TOLERANCE, restarts)
    order = np.argsort(-values)
    return values[order], vectors[:, order]


def _edge(M: Floats, constant: Floats) -> float:
    """Return the size of the most negative eigenvalue but for the direction of `constant`."""
    constant = constant / np.linalg.norm(constant)

    def without(x: Floats) -> Floats:
        return x - np.multiply.outer(constant, constant @ x)

    if len(M) <= _DENSE:
        values = np.linalg.eigvalsh(without(without(M).T))
    else:
        M = _products(M)
        operator = LinearOperator(M.shape, lambda x: without(M @ without(x)), dtype=M.dtype)
        values = _lanczos(operator, 1, "SA", _ROUGHLY)[0]
    return float(-np.min(values, initial=0.0))


def _products(M: Floats) -> Any:
    """Return the products of M with vectors, which read the half of it that symmetry leaves."""
    return LinearOperator(M.shape, lambda x: dsymv(1.0, M.T, np.ravel(x)), dtype=M.dtype)


def _lanczos(
    operator: Any, k: int, which: str, tolerance: float, restarts: Any = None
) -> tuple[Any, Any]:
    """Eigenvalues and eigenvectors at one end; those that were found, if not all are."""
    h = operator.shape[0]
    try:
        k, start = min(k, h - 1), np.cos(np.arange(h))  # near no constant
        return eigsh(operator, k, which=which, v0=start, tol=tolerance, maxiter=restarts)
    except ArpackNoConvergence as error:
        return error.eigenvalues, error.eigenvectors
    except ArpackError:  # the matrix is zero
        return np.zeros(0), np.zeros((h, 0))
