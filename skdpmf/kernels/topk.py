"""The best unseen items of each row of a block of scores."""

import numpy as np

from skdpmf.kernels.jit_and_threads import jit, part

# Scores are compared with the running threshold in strips of this many, which vectorises.
_STRIP = 128


@part
def _precedes(score_a, item_a, score_b, item_b):
    """Whether a ranks ahead of b: higher score first, then smaller item index."""
    return score_a > score_b or (score_a == score_b and item_a < item_b)


@part
def _sift_down(items, scores, size):
    """Restore the heap whose root is its last-ranked element."""
    item, score = items[0], scores[0]
    hole = 0
    while 2 * hole + 1 < size:
        child = 2 * hole + 1
        right = child + 1
        if right < size and _precedes(scores[child], items[child], scores[right], items[right]):
            child = right
        if _precedes(scores[child], items[child], score, item):
            break
        items[hole], scores[hole] = items[child], scores[child]
        hole = child
    items[hole], scores[hole] = item, score


@part
def _scan(row, seen, items, scores):
    """Put the heap of the best unseen items of one row of scores into items, scores."""
    n_items = row.shape[0]
    next_seen = 0
    for begin in range(0, n_items, _STRIP):
        end = min(begin + _STRIP, n_items)
        threshold = scores[0]
        hits = 0
        for j in range(begin, end):
            hits += row[j] > threshold
        if hits == 0:
            continue
        for j in range(begin, end):
            # Strictly greater: of equal scores the earlier, smaller index stays.
            if row[j] > scores[0]:
                while next_seen < seen.shape[0] and seen[next_seen] < j:
                    next_seen += 1
                if next_seen == seen.shape[0] or seen[next_seen] != j:
                    items[0], scores[0] = j, row[j]
                    _sift_down(items, scores, items.shape[0])


def _top_k_rows_plain(scores, seen_indptr, seen_indices, row_offset, n, out_items, out_scores):
    out_items[:], out_scores[:] = -1, -np.inf
    for r in range(scores.shape[0] if n else 0):
        row = np.where(scores[r] > -np.inf, scores[r], -np.inf)
        own = slice(seen_indptr[row_offset + r], seen_indptr[row_offset + r + 1])
        row[seen_indices[own]] = -np.inf
        beyond = row.shape[0] - n
        least = np.partition(row, beyond)[beyond] if beyond > 0 else -np.inf
        items = np.flatnonzero((row >= least) & (row > -np.inf))
        items = items[np.argsort(-row[items], kind="stable")[:n]]
        out_items[r, : len(items)], out_scores[r, : len(items)] = items, row[items]


@jit(plain=_top_k_rows_plain, same_bits=True)
def top_k_rows(scores, seen_indptr, seen_indices, row_offset, n, out_items, out_scores):
    """Rank the best unseen items of each row of a block of scores.

    Higher scores come first; of equal scores the smaller item index comes first. Scores that are
    NaN or -inf are never recommended. Where fewer than `n` items are left, the
    rest of the row is item -1 with score -inf.

    scores (n_block_rows, n_items) float: scores of a block of users; left unchanged; seen_indptr
    (at least row_offset + n_block_rows + 1,) integer: row pointers of the CSR matrix of seen items;
    all zeros excludes nothing; seen_indices (n_seen,) integer: seen items, ascending within each
    row; row_offset: row of the CSR matrix that belongs to row 0 of `scores`; n:
    items wanted for each row; out_items (n_block_rows, n) integer: overwritten with
    item indices; out_scores (n_block_rows, n) float: overwritten with their scores.
    """
    if n == 0:
        return
    for r in range(scores.shape[0]):
        items, best = out_items[r], out_scores[r]
        for c in range(n):  # loops compile sooner than slices
            items[c], best[c] = -1, -np.inf
        row = row_offset + r
        _scan(scores[r], seen_indices[seen_indptr[row] : seen_indptr[row + 1]], items, best)
        # Heap sort in place: the last-ranked root goes to the end of the shrinking heap.
        for size in range(n - 1, 0, -1):
            items[0], items[size] = items[size], items[0]
            best[0], best[size] = best[size], best[0]
            _sift_down(items, best, size)
