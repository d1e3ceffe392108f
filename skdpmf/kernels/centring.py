"""Rows, less one of a few centres, of length 1."""

import numpy as np

from skdpmf.kernels.jit_and_threads import Array, jit
from skdpmf.kernels.rows import rows_of


def _centre_rows_plain(
    indptr,
    indices,
    values,
    place,
    direction,
    per_value,
    step,
    centres,
    grid,
    most,
    start,
    stop,
    out,
    number,
):
    own, rows = rows_of(indptr, start, stop)
    c = place[indices[own]]
    inside = c >= 0
    rows, c, x = rows[inside], c[inside], values[own][inside]

    def total(of: Array) -> Array:
        return np.bincount(rows, of, stop - start)

    square, along, d = total(x * x), total(x * direction[c]), per_value * total(x)
    known = (square > 0.0) & (square < np.inf)
    length = np.maximum(square - 2.0 * d * along + d * d, np.maximum(square, d * d) / most**2)
    length = np.sqrt(length)
    w = np.where(known, np.clip(d / length / step, 0.0, len(centres) - 1.0), 0.0).astype(np.int64)
    along, size = total(x * centres[w[rows], c]), (centres**2).sum(axis=1)[w]
    reach = 1.0 - 2.0**-30 - grid * np.sqrt(np.bincount(rows, minlength=stop - start))
    root = np.sqrt(np.maximum(along * along - square * (size - reach * reach), 0.0))
    scale = np.minimum(np.maximum(1.0 / length, (along - root) / square), (along + root) / square)
    number[start:stop], out[own] = w, 0.0
    out[own][inside] = np.where(known[rows], scale[rows] * x, 0.0)


@jit(plain=_centre_rows_plain)
def centre_rows(
    indptr,
    indices,
    values,
    place,
    direction,
    per_value,
    step,
    centres,
    grid,
    most,
    start,
    stop,
    out,
    number,
):
    r"""Choose s_i and w_i such that \|s_i x_i - m_w\| is 1 and m_w near s_i d_i e, for every row.

    x_i is the row in a head of items, d_i = `per_value` times the sum of x_i, e the direction, and
    m_w a centre near w times `step` times e. s_i is 1 / \|x_i - d_i e\|, but s_i \|x_i\| and
    s_i d_i are at most `most`; w_i is rounded down, and then s_i changed so that the length is 1 at
    most, less what truncation of s_i x_i to the grid may add.

    indptr, indices, values (float64): the rows, of all items; place (n_items,) integer: column of
    each item in the head; -1: none; direction (h,) float64: e, of norm 1; centres (c, h) float64:
    m; start, stop: the rows; out (n_stored,) float64: s_i x_i, 0 outside of the head; number
    (n_rows,) int64: w_i, 0 for a row without values in the head.
    """
    for i in range(start, stop):
        number[i], n = 0, 0
        total, square, along = 0.0, 0.0, 0.0
        for p in range(indptr[i], indptr[i + 1]):
            out[p], c = 0.0, place[indices[p]]
            if c >= 0:
                n += 1
                total += values[p]
                square += values[p] * values[p]
                along += values[p] * direction[c]
        if not 0.0 < square < np.inf:
            continue
        d = per_value * total
        length = np.sqrt(max(square - 2.0 * d * along + d * d, max(square, d * d) / most**2))
        w = int(min(max(d / length / step, 0.0), centres.shape[0] - 1.0))
        along, size = 0.0, 0.0
        for p in range(indptr[i], indptr[i + 1]):
            c = place[indices[p]]
            if c >= 0:
                along += values[p] * centres[w, c]
        for c in range(centres.shape[1]):
            size += centres[w, c] * centres[w, c]
        reach = 1.0 - 2.0**-30 - grid * np.sqrt(np.float64(n))
        root = np.sqrt(max(along * along - square * (size - reach * reach), 0.0))
        scale = min(max(1.0 / length, (along - root) / square), (along + root) / square)
        number[i] = w
        for p in range(indptr[i], indptr[i + 1]):
            if place[indices[p]] >= 0:
                out[p] = scale * values[p]
