"""Small passes over the ratings of every user: predictions, weights, residuals, hashes, centres."""

from collections.abc import Iterator

import numpy as np

from skdpmf.kernels.jit_and_threads import Array, balanced_blocks, jit, jit_fast

_AT_A_TIME = 1 << 12  # entries whose factors are gathered
_ENTRIES_AT_ONCE = 1 << 17  # bounds the memory of numpy's forms


def rows_of(indptr: Array, start: int, stop: int) -> tuple[slice, Array]:
    """Return the positions of the rows [start, stop), and the row of each, counted from start.

    `numpy.bincount` adds each row's values in their order: other rows change no bit of a sum.
    """
    rows = np.repeat(np.arange(stop - start), np.diff(indptr[start : stop + 1]))
    return slice(int(indptr[start]), int(indptr[stop])), rows


def row_blocks(indptr: Array, start: int, stop: int) -> Iterator[tuple[slice, slice, Array]]:
    """Yield blocks of the rows [start, stop): which, and what `rows_of` returns."""
    n_blocks = 1 + int(indptr[stop] - indptr[start]) // _ENTRIES_AT_ONCE
    for first, last in balanced_blocks(indptr[start : stop + 1], n_blocks):
        yield slice(start + first, start + last), *rows_of(indptr, start + first, start + last)


# Passes that a fit makes once: numpy takes no longer than loading what was compiled.
def hash_rows(indptr, indices, words, odd, start, stop, out):
    """Sum a hash of every rating, modulo 2^64: whatever order they have.

    indptr (n_rows + 1,) integer: row i owns the positions indptr[i] to indptr[i + 1]; indices
    (n_stored,) integer: item of each position; words (n_stored,) uint64: the bits of its rating;
    odd (3,) uint64: odd numbers; start, stop: the rows; out (stop - start,) uint64: overwritten.
    """
    own = slice(indptr[start], indptr[stop])
    mixed = (words[own] ^ (indices[own].astype(np.uint64) + odd[0])) * odd[1]
    mixed = (mixed ^ (mixed >> np.uint64(31))) * odd[2]
    sums = np.append(np.uint64(0), np.cumsum(mixed))  # modulo 2^64, as are their differences
    out[:] = np.diff(sums[indptr[start : stop + 1] - indptr[start]])


def weigh_by_item(indptr, indices, logs, l1, start, stop, out):
    """Put weights w_ij ~ exp(logs_j) of norm 1 at most into out, the largest one 1 or less.

    indptr, indices: the rows, as in `hash_rows`; logs (n_items,) float64; l1: norm: sum of the
    weights rather than root of the sum of squares; start, stop: the rows; out (n_stored,) float64.
    """
    for block, own, rows in row_blocks(indptr, start, stop):
        n = block.stop - block.start
        raw, largest = logs[indices[own]], np.full(n, -np.inf)
        np.maximum.at(largest, rows, raw)
        raw = np.exp(raw - largest[rows])
        size = np.bincount(rows, raw if l1 else raw * raw, n)
        # a hair inside: rounding must not exceed the bound
        scale = (1.0 - 2.0**-40) / np.maximum(size if l1 else np.sqrt(size), 1.0)
        out[own] = raw * scale[rows]


def centre_rows(
    indptr, indices, values, place, e, per_value, step, m, grid, most, start, stop, out, number
):
    r"""Choose s_i and w_i such that \|s_i x_i - m_w\| is 1 and m_w near s_i d_i e, for every row.

    x_i is the row in a head of items, d_i = `per_value` times the sum of x_i, e the direction, and
    m_w a centre near w times `step` times e. s_i is 1 / \|x_i - d_i e\|, but s_i \|x_i\| and
    s_i d_i are at most `most`; w_i is rounded down, and then s_i changed so that the length is 1 at
    most, less what truncation of s_i x_i to the grid may add.

    indptr, indices, values (float64): the rows, of all items; place (n_items,) integer: column of
    each item in the head; -1: none; e (h,) float64: of norm 1; m (c, h) float64: the centres;
    start, stop: the rows; out (n_stored,) float64: s_i x_i, 0 outside of the head; number (n_rows,)
    int64: w_i, 0 for a row without values in the head.
    """
    squares = np.einsum("ch,ch->c", m, m)
    for block, own, rows in row_blocks(indptr, start, stop):
        c, n_rows = place[indices[own]], block.stop - block.start
        inside = c >= 0
        rows, c, x = rows[inside], c[inside], values[own][inside]
        with np.errstate(all="ignore"):
            terms = x * x, x * e[c], x, None
            square, along, total, n = (np.bincount(rows, of, n_rows) for of in terms)
            d = per_value * total
            known = (square > 0.0) & (square < np.inf)
            length = square - 2.0 * d * along + d * d
            length = np.sqrt(np.maximum(length, np.maximum(square, d * d) / most**2))
            w = np.where(known, np.clip(d / length / step, 0.0, len(m) - 1.0), 0.0)
            w = w.astype(np.int64)
            along = np.bincount(rows, x * m[w[rows], c], n_rows)
            size, reach = squares[w], 1.0 - 2.0**-30 - grid * np.sqrt(n)
            root = np.sqrt(np.maximum(along * along - square * (size - reach * reach), 0.0))
            scale = np.maximum(1.0 / length, (along - root) / square)
            scale = np.minimum(scale, (along + root) / square)
            number[block], out[own] = w, 0.0
            out[own][inside] = np.where(known[rows], scale[rows] * x, 0.0)


def _centred_residuals_plain(indptr, indices, values, weights, mean, damping, start, stop, out):
    own, rows = rows_of(indptr, start, stop)
    residuals = values[own] - mean[indices[own]]
    n = np.diff(indptr[start : stop + 1])
    offsets = np.bincount(rows, residuals, stop - start) / np.maximum(n + damping, 1e-300)
    out[own] = (residuals - offsets[rows]) * weights[own]


@jit(plain=_centred_residuals_plain)
def centred_residuals(indptr, indices, values, weights, mean, damping, start, stop, out):
    """Put w_ij (y_ij - b_j - o_i) into out, o_i the sum of y_ij - b_j over n_i + damping.

    indptr, indices, values (float64): the rows, as in `hash_rows`; weights (n_stored,) float64:
    w_ij; mean (n_items,) float64: b_j; damping: at least 0; start, stop: the rows; out (n_stored,)
    float64.
    """
    for i in range(start, stop):
        total = 0.0
        for p in range(indptr[i], indptr[i + 1]):
            out[p] = values[p] - mean[indices[p]]
            total += out[p]
        offset = total / max(indptr[i + 1] - indptr[i] + damping, 1e-300)
        for p in range(indptr[i], indptr[i + 1]):
            out[p] = (out[p] - offset) * weights[p]


def _predict_entries_plain(indptr, indices, user_factors, item_factors, start, stop, out):
    own, rows = rows_of(indptr, start, stop)
    for first in range(0, rows.size, _AT_A_TIME):
        some = slice(own.start + first, min(own.start + first + _AT_A_TIME, own.stop))
        # `take` gives C order whatever it is given: the order of sums depends on no entry's place
        u = np.take(user_factors, start + rows[first : first + _AT_A_TIME], axis=0)
        np.einsum("pk,pk->p", u, np.take(item_factors, indices[some], axis=0), out=out[some])


@jit_fast(plain=_predict_entries_plain)
def predict_entries(indptr, indices, user_factors, item_factors, start, stop, out):
    """Dot products u_i . v_j at the stored positions of rows [start, stop) of a CSR pattern.

    indptr (n_rows + 1,) integer: row i owns the positions indptr[i] to indptr[i + 1]; indices
    (n_stored,) integer: item j of each position; user_factors (n_rows, k) float: U, one row per row
    of the pattern; item_factors (n_items, k) float: V, of the same dtype as `user_factors`; fastest
    if both are C-contiguous; out (n_stored,) float: overwritten from indptr[start] to indptr[stop];
    other positions are left alone.
    """
    k = user_factors.shape[1]
    for i in range(start, stop):
        for p in range(indptr[i], indptr[i + 1]):
            j = indices[p]
            total = user_factors.dtype.type(0)
            for c in range(k):
                total += user_factors[i, c] * item_factors[j, c]
            out[p] = total


def _weigh_residuals_plain(indptr, indices, values, weights, U, V, bound, start, stop, out, norms):
    own, rows = rows_of(indptr, start, stop)
    _predict_entries_plain(indptr, indices, U, V, start, stop, out)
    out[own] = weights[own] * np.clip(values[own] - out[own], -bound, bound)
    norms[start:stop] = np.sqrt(np.bincount(rows, out[own] ** 2, stop - start))


@jit_fast(plain=_weigh_residuals_plain)
def weigh_residuals(indptr, indices, values, weights, U, V, bound, start, stop, out, norms):
    """Weighted residuals w_ij e_ij of the rows [start, stop) of a CSR matrix, and their norms.

    e_ij = y_ij - u_i . v_j, clipped to [-bound, bound].

    indptr (n_rows + 1,) integer: row i owns the positions indptr[i] to indptr[i + 1]; indices
    (n_stored,) integer: item j of each position; values, weights (n_stored,) float64: y_ij and
    w_ij; U (n_rows, k) float64: one row per row of the matrix; V (n_items, k) float64; fastest if
    both are C-contiguous; bound: at least 0; infinity for none; out (n_stored,) float64:
    overwritten from indptr[start] to indptr[stop]; other positions are left alone; norms (n_rows,)
    float64: rows [start, stop) are overwritten with sqrt(sum_j (w_ij e_ij)^2): 0 for an empty row.
    """
    k = U.shape[1]
    for i in range(start, stop):
        squares = 0.0
        for p in range(indptr[i], indptr[i + 1]):
            j = indices[p]
            predicted = 0.0
            for c in range(k):
                predicted += U[i, c] * V[j, c]
            out[p] = weights[p] * min(max(values[p] - predicted, -bound), bound)
            squares += out[p] * out[p]
        norms[i] = np.sqrt(squares)
