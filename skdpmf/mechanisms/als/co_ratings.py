"""Directions in which users choose what they rate: a start for factors, from one release.

Which items are rated by the same users is far less noisy than how: tastes show in it long before
they show in residuals. For user i let e_i be the indicator of the rated items among the head, the
most popular ones by released counts N, D = diag(N) on the head, and B an orthonormal basis of
D^-1/2 (N, sqrt N, 1), which hold what popularity and activity explain. Released is

    sum_i z_i z_i',   z_i = x_i / |x_i|,   x_i = (I - B B') D^-1/2 e_i,   |z_i| <= 1,

of sensitivity 1 (Frobenius) to adding or removing a user, as |z z'| = |z|^2; z_i is 0 without
ratings in the head, and entries are truncated towards zero. All else is post-processing: of the
eigenvectors, without the diagonal, those are used whose eigenvalues exceed what noise and chance
give. If users rated items independently of each other, entries of z_i would be uncorrelated, of
equal variance 1 / h, h the head's size (which D is for; as in correspondence analysis, but for the
diagonal). So noise and chance are symmetric matrices of independent entries, with eigenvalues up to

    sqrt(2 h) sd   and   2 sqrt(n_users / h)   (Wigner's semicircle).

Where nothing stands out, there are no directions.
"""

import numpy as np
from numpy.typing import NDArray

from skdpmf.mechanisms.als.item_update import unpack_lower
from skdpmf.mechanisms.common import head_vectors, rows_of, spread_over_head
from skdpmf.privacy.users import Rows

_STANDS_OUT = 1.1  # eigenvalues, in those of noise and chance


def co_rating_vectors(
    rows: Rows, start: int, stop: int, head: NDArray[np.int64], popularity: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return z_i of the users [start, stop), of shape (stop - start, h).

    `popularity` holds N_j > 0 of the head's items.
    """
    n_head, n_users = len(head), stop - start
    rated = head_vectors(rows, start, stop, np.broadcast_to(1.0, rows.nnz), head)
    row, columns = rows_of(rated), rated.indices
    unit = popularity**-0.5
    powers = np.column_stack((popularity, np.sqrt(popularity), np.ones(n_head)))
    z = np.zeros((n_users, n_head))
    z[row, columns] = unit[columns]
    for b in np.linalg.qr(powers * unit[:, None])[0].T:
        # by user and not by matrix products, whose rounding could depend on other users
        along = np.bincount(row, weights=(b * unit)[columns], minlength=n_users)
        z -= along[:, None] * b
    size = np.sqrt(np.sum(z**2, axis=1))
    # nothing but rounding is left of a user who rated all of the head
    least = 1e-6 * unit.max()
    scale = np.where(size > least, (1.0 - 2.0**-40) / np.maximum(size, least), 0.0)
    return np.asarray(z * scale[:, None])


def co_rating_directions(
    released: NDArray[np.float64],
    head: NDArray[np.int64],
    popularity: NDArray[np.float64],
    mass: NDArray[np.float64],
    most: int,
    n_users: float,
    deviation: float,
) -> NDArray[np.float64]:
    """Item factors along the directions that stand out.

    ``released`` is the noisy sum of z_i z_i', packed. Returns (n_items, at most `most`), of root
    mean square 0.3 in the head, 0 elsewhere.
    """
    noisy, n_head = unpack_lower(released), len(head)
    np.fill_diagonal(noisy, 0.0)
    values, vectors = np.linalg.eigh(noisy)
    chance = np.sqrt(2.0 * n_head * deviation**2 + 4.0 * n_users / n_head)
    top = np.argsort(-values, kind="stable")[:most]
    top = top[values[top] > _STANDS_OUT * chance]
    loading = vectors[:, top] * np.sqrt(popularity[head, None] * values[top])
    return spread_over_head(loading, head, mass)
