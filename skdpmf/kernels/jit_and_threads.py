"""How kernels run: the one place that chooses compiler flags, and blocks of rows in threads.

The kernels release the GIL, so threads need no copies.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import numpy as np
from joblib import effective_n_jobs
from numba import njit
from numpy.typing import NDArray

__all__ = ["Array", "balanced_blocks", "in_threads", "jit", "jit_fast", "part", "run_blocks"]

Array = NDArray[Any]

# IEEE order of operations: for everything whose result must be exact or bit-reproducible.
jit = njit(cache=True, nogil=True, error_model="numpy")


def part(function: Callable[..., Any]) -> Any:
    """Compile what kernels alone call: without an entry from Python or a copy on disk.

    These take a quarter of the time that a kernel of many parts needs to compile.
    """
    options = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    compiled = njit(nogil=True, error_model="numpy", **options)(function)

    def refuse(*args: Any, **kwargs: Any) -> None:
        raise TypeError(f"{function.__name__} is part of a kernel: call it from kernels only.")

    # Python's calls find no compiled version, and ask for one: the process would end without.
    compiled._insert, compiled._compile_for_args = (lambda *args, **kwargs: None), refuse
    return compiled


# Sums may be reassociated and contracted (no NaN or infinity assumptions): for solvers in
# floating point whose results are compared to a tolerance.
jit_fast = njit(
    cache=True, nogil=True, error_model="numpy", fastmath={"reassoc", "contract", "nsz", "arcp"}
)

# A few blocks a thread, so that one slow block does not keep the others waiting.
_BLOCKS_PER_THREAD = 8


def run_blocks(kernel: Callable[[int, int], Any], indptr: Any, n_jobs: int | None) -> None:
    """Call ``kernel(start, stop)`` on consecutive row blocks of about equal work, in threads.

    kernel: works on rows [start, stop) and writes to arrays of its own closure; indptr (n_rows +
    1,) integer: row pointers: the work of a row is what it stores.
    """
    threads, whole = effective_n_jobs(n_jobs), [(0, len(indptr) - 1)]
    blocks = balanced_blocks(indptr, _BLOCKS_PER_THREAD * threads) if threads > 1 else whole
    in_threads(kernel, blocks, n_jobs)


def in_threads(function: Callable[..., Any], tasks: Any, n_jobs: int | None) -> list[Any]:
    """Return ``function(*task)`` of every task, in their order; the first error is raised.

    tasks (sequence of tuples): arguments, all of one length; n_jobs: threads of this process, as
    many as joblib's `effective_n_jobs` says.

    Examples
    --------
    >>> from skdpmf.kernels.jit_and_threads import in_threads
    >>> in_threads(pow, [(2, 3), (3, 2)], n_jobs=2)
    [8, 9]
    """
    threads = min(effective_n_jobs(n_jobs), len(tasks))
    if threads <= 1:
        return [function(*task) for task in tasks]
    # not joblib's own pool, which looks for results only every 10 ms
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(function, *zip(*tasks, strict=True)))


def balanced_blocks(indptr: NDArray[Any], n_blocks: int) -> list[tuple[int, int]]:
    """Cut the rows of a CSR pattern into consecutive blocks of about equal work.

    The work of a row is taken as its stored entries plus one, so that runs of empty rows are
    shared out too. Blocks are never empty: there are at most ``n_blocks`` of them.

    indptr (n_rows + 1,) integer: row pointers; n_blocks: number of blocks wished for, at least 1.
    Result: half-open row ranges that cover all rows in order.

    Examples
    --------
    >>> import numpy as np
    >>> from skdpmf.kernels.jit_and_threads import balanced_blocks
    >>> balanced_blocks(np.array([0, 10, 11, 12, 20]), 2)
    [(0, 1), (1, 4)]
    """
    if n_blocks < 1:
        raise ValueError(f"n_blocks={n_blocks!r} must be at least 1; pass the number of blocks.")
    n_rows = len(indptr) - 1
    work = np.asarray(indptr, dtype=np.int64) - indptr[0] + np.arange(n_rows + 1)
    goals = work[-1] * np.arange(1, n_blocks) / n_blocks
    after = np.searchsorted(work, goals)
    # The nearer one of the two cuts around a goal.
    before = np.maximum(after - 1, 0)
    nearer = np.where(goals - work[before] <= work[after] - goals, before, after)
    cuts = np.unique(np.concatenate(([0], nearer, [n_rows])))
    return [(int(a), int(b)) for a, b in pairwise(cuts)]
