r"""The item covariance of a head of items as a bounded sum, made piece by piece.

Both matrices of `skdpmf.privacy.covariance`, Cov = sum w x x' and t Wgt = t sum w e e', in one
release of two packed triangles. Everything that their bound rests on is done here: ratings are
clipped to their range, centred by released item means and the user's own damped mean, clipped to
[-B, B], weighted by the numbers of ratings and truncated to a grid. Proofs: there.

A triangle of 26,744 items has 3 * 10^8 entries: no more than a piece of it is held at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skdpmf.exceptions import PrivacyParameterError
from skdpmf.kernels.covariance import (
    accumulate_pairs,
    item_major,
    pair_blocks,
    pair_work,
    triangle_starts,
)
from skdpmf.privacy._grid import check_exact, exact_grid, truncate_to_grid
from skdpmf.privacy.covariance import (
    centred_interval,
    covariance_sensitivity,
    covariance_weights,
)
from skdpmf.privacy.users import Rows, Users, reveal, set_once

__all__ = ["PairSums", "centre_rows", "pair_grid", "pair_sensitivity"]

_CENTRED_GRID = 2.0**-30  # of y - b, so that users' sums are exact
# Neighbours' entries differ by the grid of the sums and by the float errors of x; if a user comes
# or goes, truncation lowers what there is
_FLOAT_ERROR = 2.0**-44
_BLOCK_ENTRIES = 1 << 21


def pair_grid(n_slots: int, clamp: float) -> float:
    """Return the grid on which sums of all rows' shares of an entry are exact.

    Examples
    --------
    >>> pair_grid(6040, 1.0) == 2.0**-40
    True
    """
    return exact_grid(max(n_slots, 1), max(clamp**2, 1.0), degree=1)


def pair_sensitivity(
    relation: tuple[str, str],
    *,
    clamp: float,
    damping: float,
    weight_scale: float,
    noise: str,
    n_items: int,
    centred_range: float,
    grid: float,
) -> float:
    """Return the sensitivity of (Cov, t Wgt), its rounding paid for.

    Parameters
    ----------
    relation : tuple of str
        Unit and neighbouring relation.
    clamp, damping, weight_scale : float
        B, beta and t.
    noise : {"gaussian", "laplace"}
        Gaussian noise is made for full symmetric matrices in l2, Laplace noise for triangles in l1.
    n_items : int
        Size of the head, at most.
    centred_range : float
        alpha.
    grid : float
        Of `pair_grid`, or coarser.

    Returns
    -------
    float
    """
    unit, neighbors = relation
    gaussian = noise == "gaussian"
    rounding = grid + _FLOAT_ERROR * max(clamp, clamp * clamp)
    if relation == ("user", "add-remove"):
        rounding = 0.0
    return covariance_sensitivity(
        clamp,
        centred_range=centred_range,
        damping=damping,
        n_items=n_items,
        weight_scale=weight_scale,
        rounding=rounding,
        norm="l2" if gaussian else "l1",
        entries="full" if gaussian else "upper",
        neighbors=neighbors,
        unit=unit,
    )


class PairSums:
    """Both triangles, to be released in pieces by `Curator.release_pieces`.

    Parameters
    ----------
    users : Users
        Ratings in quarter ranges.
    head : ndarray of shape (h,)
        Columns, ascending, chosen by released values.
    means : ndarray of shape (n_items,)
        Released item means, within `value_range`.
    value_range : tuple of float
        Of ratings; others are clipped to it.
    clamp, damping, weight_scale : float
        B, beta and t.
    noise : {"gaussian", "laplace"}
        As for `pair_sensitivity`.
    shared : bool
        Whether other blocks of users are summed elsewhere: pieces are then cut by public sizes.
    n_pieces : int
        Of about so many.

    Attributes
    ----------
    sensitivity, norm, layout, unit, neighbors, n_slots, private
        As of `BoundedSum`.
    shape : tuple of int
        (2, h (h + 1) / 2).
    pieces : list of tuple of int
        First and last row of each piece.
    """

    def __init__(
        self,
        users: Users,
        head: NDArray[np.int64],
        means: NDArray[np.float64],
        *,
        value_range: tuple[float, float],
        clamp: float,
        damping: float,
        weight_scale: float,
        noise: str,
        shared: bool,
        n_pieces: int,
    ) -> None:
        rows, h = reveal(users), len(head)
        if np.any(np.diff(head) <= 0):
            raise PrivacyParameterError(
                f"head={head!r} must be ascending, without repetitions: an item that is there "
                "twice counts its ratings twice."
            )
        # without privacy those of the published main algorithm
        unit = users.unit if users.private else "rating"
        R = rows.R if h == rows.n_items else rows.R[:, head]
        R.sort_indices()
        low, high = value_range
        means = np.clip(means[head], low, high)
        interval = centred_interval(value_range, means)
        self.grid = pair_grid(users.n_slots, clamp)
        check_exact(users.n_slots, max(clamp**2, 1.0), self.grid, degree=1)
        self.norm = "l2" if noise == "gaussian" else "l1"
        self.layout = "packed" if noise == "gaussian" else "full"
        self.unit, self.neighbors, self.n_slots = users.unit, users.neighbors, users.n_slots
        self.private = users.private
        self.sensitivity = pair_sensitivity(
            (unit, users.neighbors),
            clamp=clamp,
            damping=damping,
            weight_scale=weight_scale,
            noise=noise,
            n_items=h,
            centred_range=interval[1] - interval[0],
            grid=self.grid,
        )
        self._rows, self._scales = R, (self.grid, self.grid * weight_scale)
        bounded = Rows(R, rows.n_jobs)
        self._x = centre_rows(bounded, means, value_range=value_range, damping=damping, clamp=clamp)
        entries = "full" if noise == "gaussian" else "upper"
        self._weights = covariance_weights(
            bounded.n_ratings, norm=self.norm, entries=entries, unit=unit
        )
        self._columns = R.indices.astype(np.uint16 if h < 2**16 else np.int64)
        self._items = item_major(R.indptr, R.indices, h)
        self._starts, self._size = triangle_starts(h), h * (h + 1) // 2
        self.shape = 2, self._size
        work = np.empty(h + 1, np.int64)
        if shared:  # the same pieces in the same order for all blocks of users
            work = self._starts
        else:
            pair_work(R.indptr, *self._items, work)
        self.pieces = pair_blocks(work, n_pieces, _BLOCK_ENTRIES)

    __setattr__ = set_once

    def sums_of(self, start: int, stop: int) -> Iterator[tuple[int, slice, int, Any]]:
        """Sum the rows [start, stop) of both triangles.

        Yields
        ------
        matrix : int
            0 for Cov, 1 for t Wgt.
        entries : slice
            Of the packed triangle.
        place : int
            Of the first value in the whole release.
        values : ndarray
            The sums.
        """
        entries = slice(int(self._starts[start]), int(self._starts[stop]))
        sums = np.empty((2, entries.stop - entries.start), np.int64)
        rows, given = self._rows, (self._columns, self._x, self._weights, *self._items, self.grid)
        accumulate_pairs(rows.indptr, *given, start, stop, sums[0], sums[1])
        for matrix in (0, 1):
            place = matrix * self._size + entries.start
            yield matrix, entries, place, sums[matrix] * self._scales[matrix]


def centre_rows(
    rows: Rows,
    item_means: NDArray[np.float64],
    *,
    value_range: tuple[float, float],
    damping: float,
    clamp: float,
) -> NDArray[np.float64]:
    """Return x = clip(y - b - o, -B, B), aligned with the ratings.

    Ratings less means are truncated to a grid, so that x does not depend on the order of sums. o is
    the user's mean of them, with `damping` fictitious zeros.
    """
    ratings = np.clip(np.where(np.isfinite(rows.data), rows.data, 0.0), *value_range)
    y = truncate_to_grid(ratings - item_means[rows.indices], _CENTRED_GRID)
    user, n = rows.user, rows.n_ratings
    offset = np.bincount(user, weights=y, minlength=rows.n_users) / np.maximum(n + damping, 1e-300)
    return np.asarray(np.clip(y - offset[user], -clamp, clamp))
