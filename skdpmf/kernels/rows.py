"""Small passes over the ratings of every user: weights, residuals, hashes, rows less a centre."""

import numpy as np

from skdpmf.kernels.jit_and_threads import Array, jit


def rows_of(indptr: Array, start: int, stop: int) -> tuple[slice, Array]:
    """Return the positions of the rows [start, stop), and the row of each, counted from start.

    `numpy.bincount` adds each row's values in their order: other rows change no bit of a sum.
    """
    rows = np.repeat(np.arange(stop - start), np.diff(indptr[start : stop + 1]))
    return slice(int(indptr[start]), int(indptr[stop])), rows


def _hash_rows_plain(indptr, indices, words, odd, start, stop, out):
    own = slice(indptr[start], indptr[stop])
    mixed = (words[own] ^ (indices[own].astype(np.uint64) + odd[0])) * odd[1]
    mixed = (mixed ^ (mixed >> np.uint64(31))) * odd[2]
    sums = np.append(np.uint64(0), np.cumsum(mixed))  # modulo 2^64, as are their differences
    out[:] = np.diff(sums[indptr[start : stop + 1] - indptr[start]])


@jit(plain=_hash_rows_plain, same_bits=True)
def hash_rows(indptr, indices, words, odd, start, stop, out):
    """Sum a hash of every rating, modulo 2^64: whatever order they have.

    indptr (n_rows + 1,) integer: row i owns the positions indptr[i] to indptr[i + 1]; indices
    (n_stored,) integer: item of each position; words (n_stored,) uint64: the bits of its rating;
    odd (3,) uint64: odd numbers; start, stop: the rows; out (stop - start,) uint64: overwritten.
    """
    for i in range(start, stop):
        total = np.uint64(0)
        for p in range(indptr[i], indptr[i + 1]):
            word = (words[p] ^ (np.uint64(indices[p]) + odd[0])) * odd[1]
            total += (word ^ (word >> np.uint64(31))) * odd[2]
        out[i - start] = total


def _weigh_by_item_plain(indptr, indices, logs, l1, start, stop, out):
    own, rows = rows_of(indptr, start, stop)
    raw, largest = logs[indices[own]], np.full(stop - start, -np.inf)
    np.maximum.at(largest, rows, raw)
    raw = np.exp(raw - largest[rows])
    size = np.bincount(rows, raw if l1 else raw * raw, stop - start)
    # a hair inside: rounding must not exceed the bound
    scale = (1.0 - 2.0**-40) / np.maximum(size if l1 else np.sqrt(size), 1.0)
    out[own] = raw * scale[rows]


@jit(plain=_weigh_by_item_plain)
def weigh_by_item(indptr, indices, logs, l1, start, stop, out):
    """Put weights w_ij ~ exp(logs_j) of norm 1 at most into out, the largest one 1 or less.

    indptr, indices: the rows, as in `hash_rows`; logs (n_items,) float64; l1: norm: sum of the
    weights rather than root of the sum of squares; start, stop: the rows; out (n_stored,) float64.
    """
    for i in range(start, stop):
        largest, size = -np.inf, 0.0
        for p in range(indptr[i], indptr[i + 1]):
            largest = max(largest, logs[indices[p]])
        for p in range(indptr[i], indptr[i + 1]):
            out[p] = np.exp(logs[indices[p]] - largest)
            size += out[p] if l1 else out[p] * out[p]
        size = size if l1 else np.sqrt(size)
        # a hair inside: rounding must not exceed the bound
        scale = (1.0 - 2.0**-40) / max(size, 1.0)
        for p in range(indptr[i], indptr[i + 1]):
            out[p] *= scale


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
