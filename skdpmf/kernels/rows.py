"""Small passes over the ratings of every user: weights, residuals and hashes."""

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
