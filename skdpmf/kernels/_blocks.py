"""Cutting rows into blocks of about equal work, for callers that run kernels in threads."""

from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["balanced_blocks"]


def balanced_blocks(indptr: NDArray[Any], n_blocks: int) -> list[tuple[int, int]]:
    """Cut the rows of a CSR pattern into consecutive blocks of about equal work.

    The work of a row is taken as its stored entries plus one, so that runs of empty rows are
    shared out too. Blocks are never empty: there are at most ``n_blocks`` of them.

    Parameters
    ----------
    indptr : integer array of shape (n_rows + 1,)
        Row pointers.
    n_blocks : int
        Number of blocks wished for, at least 1.

    Returns
    -------
    list of (start, stop)
        Half-open row ranges that cover all rows in order.

    Raises
    ------
    ValueError
        If `n_blocks` is smaller than 1.

    Examples
    --------
    >>> import numpy as np
    >>> from skdpmf.kernels._blocks import balanced_blocks
    >>> balanced_blocks(np.array([0, 10, 11, 12, 20]), 2)
    [(0, 1), (1, 4)]
    """
    if n_blocks < 1:
        raise ValueError(f"n_blocks={n_blocks!r} must be at least 1; pass the number of blocks.")
    n_rows = len(indptr) - 1
    work = np.asarray(indptr, dtype=np.int64) - indptr[0] + np.arange(n_rows + 1)
    goals = work[-1] * np.arange(1, n_blocks) / n_blocks
    after = np.searchsorted(work, goals)
    # Of the two cuts around a goal, the nearer one.
    before = np.maximum(after - 1, 0)
    nearer = np.where(goals - work[before] <= work[after] - goals, before, after)
    cuts = np.unique(np.concatenate(([0], nearer, [n_rows])))
    return [(int(a), int(b)) for a, b in pairwise(cuts)]
