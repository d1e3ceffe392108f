"""What several solvers begin with: random subsets, and factors from a head of items."""

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from skdpmf.data.bounding import bound_contributions
from skdpmf.mechanisms.als.item_update import unpack_lower
from skdpmf.privacy.users import Rows

__all__ = [
    "click_directions",
    "head_directions",
    "head_vectors",
    "most_popular",
    "share_of_features",
    "spread_over_head",
    "subset",
]

_SPARE, _SWEEPS = 10, 2  # vectors beyond the rank, and steps, of the block iteration


def subset(rows: Rows, tau: int | None, priorities: Callable[[Rows], Any]) -> Any:
    """Return at most tau ratings of each user, those of least priority; None: all of them."""
    return rows.R if tau is None else bound_contributions(rows.R, tau, priorities(rows))


def head_vectors(
    rows: Rows, start: int, stop: int, terms: NDArray[np.float64], head: NDArray[np.int64]
) -> Any:
    """Return the users' terms in the head as a sparse array of shape (stop - start, h)."""
    place = np.full(rows.n_items, -1)
    place[head] = np.arange(head.size)
    own = slice(rows.indptr[start], rows.indptr[stop])
    columns = place[rows.indices[own]]
    known = columns >= 0
    row = np.repeat(np.arange(stop - start), rows.n_ratings[start:stop])[known]
    return sp.csr_array((terms[own][known], (row, columns[known])), shape=(stop - start, head.size))


def head_directions(
    released: NDArray[np.float64],
    head: NDArray[np.int64],
    mass: NDArray[np.float64],
    rank: int,
    deviation: float,
) -> NDArray[np.float64]:
    """Return leading eigenvectors of the head items' noisy second moments.

    Parameters
    ----------
    released : ndarray of shape (h (h + 1) / 2,)
        Noisy sum of x_i x_i', packed; the diagonal is left out.
    head : ndarray of shape (h,)
        Its items.
    mass : ndarray of shape (n_items,)
        Expected sum of weights.
    rank : int
        Number of factors, at least 1.
    deviation : float
        Standard deviation of the noise.

    Returns
    -------
    ndarray of shape (n_items, rank)
        Factors of root mean square 0.3 in the head, 0 elsewhere.
    """
    noisy = unpack_lower(released)
    np.fill_diagonal(noisy, 0.0)
    values, vectors = np.linalg.eigh(noisy)
    top = np.argsort(-values, kind="stable")[:rank]
    loading = vectors[:, top] * np.sqrt(np.maximum(values[top], max(deviation, 1e-12)))
    return spread_over_head(loading, head, mass)


def click_directions(clicks: Any, rank: int) -> NDArray[np.float64]:
    """Return leading singular vectors of all clicks, for fits without privacy.

    They are those of c_ij / sqrt(n_i N_j), n_i the clicks of user i and N_j those on item j, by
    block iteration from the most popular items on: the same clicks always give the same vectors.

    Parameters
    ----------
    clicks : csr_array of shape (n_users, n_items)
        Weights c_ij > 0.
    rank : int
        Number of factors, from 1 to n_items.

    Returns
    -------
    ndarray of shape (n_items, rank)
        Singular vectors times their singular values, of root mean square norm 1.

    Examples
    --------
    >>> import numpy as np
    >>> import scipy.sparse as sp
    >>> from skdpmf.mechanisms.start import click_directions
    >>> V = click_directions(sp.csr_array([[1.0, 1.0, 0.0, 0.0], [0.0, 0.0, 1.0, 1.0]]), 2)
    >>> np.abs((V @ V.T).round(9))
    array([[1., 1., 0., 0.],
           [1., 1., 0., 0.],
           [0., 0., 1., 1.],
           [0., 0., 1., 1.]])
    """
    n = np.diff(clicks.indptr)
    N = np.bincount(clicks.indices, minlength=clicks.shape[1]).astype(np.float64)
    weight = np.repeat(np.maximum(n, 1) ** -0.5, n) * np.maximum(N, 1)[clicks.indices] ** -0.5
    scaled = sp.csr_array((clicks.data * weight, clicks.indices, clicks.indptr), clicks.shape)
    turned = sp.csr_array(scaled.T)
    size = min(rank + _SPARE, clicks.shape[1])
    basis = np.zeros((clicks.shape[1], size))
    basis[most_popular(N, size), np.arange(size)] = 1.0
    for _ in range(_SWEEPS):
        basis = np.linalg.qr(turned @ (scaled @ basis))[0]
    image = scaled @ basis
    squares, turn = np.linalg.eigh(image.T @ image)
    V = basis @ (turn * np.sqrt(np.maximum(squares, 0.0)))[:, ::-1][:, :rank]
    return np.asarray(V / max(np.sqrt(np.mean(np.sum(V**2, axis=1))), 1e-300))


def share_of_features(
    noisy: NDArray[np.float64], loadings: NDArray[np.float64], deviation: float
) -> tuple[float, float]:
    """Return f of G ~ f A A' + rest, by regression off the diagonal, and its error by noise.

    Parameters
    ----------
    noisy : ndarray of shape (h, h)
        Released G; its diagonal is not looked at.
    loadings : ndarray of shape (h, d)
        A.
    deviation : float
        Of the noise on the diagonal, sqrt(2) times that off it.

    Returns
    -------
    share, error : float
        Share >= 0, 0 where A A' is; standard deviation of the share.
    """
    K = loadings @ loadings.T
    np.fill_diagonal(K, 0.0)
    squares = float(np.sum(K**2))
    if squares == 0.0:
        return 0.0, 0.0
    return max(float(np.sum(noisy * K)) / squares, 0.0), deviation / float(np.sqrt(squares))


def most_popular(popularity: NDArray[np.float64], n_head: int) -> NDArray[np.int64]:
    """Return the places of the `n_head` most popular items, in their order."""
    return np.sort(np.argsort(-popularity, kind="stable")[:n_head])


def spread_over_head(loading: Any, head: Any, mass: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return item factors from loadings in the head: of root mean square 0.3 there."""
    own = mass[head]
    loading = loading * (own / (own**2 + 0.3 * np.median(own) ** 2))[:, None]
    V = np.zeros((len(mass), loading.shape[1]))
    if loading.size:
        V[head] = 0.3 * loading / max(np.sqrt(np.mean(loading**2)), 1e-300)
    return V
