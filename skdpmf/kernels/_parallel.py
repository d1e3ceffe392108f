"""Row blocks in threads: the kernels release the GIL, so threads need no copies."""

from collections.abc import Callable
from typing import Any

from joblib import Parallel, delayed, effective_n_jobs

from skdpmf.kernels._blocks import balanced_blocks

__all__ = ["run_blocks"]

# A few blocks a thread, so that one slow block does not keep the others waiting.
_BLOCKS_PER_THREAD = 4


def run_blocks(kernel: Callable[[int, int], Any], indptr: Any, n_jobs: int | None) -> None:
    """Call ``kernel(start, stop)`` on consecutive row blocks of about equal work, in threads.

    Parameters
    ----------
    kernel : callable
        Works on rows [start, stop) and writes to arrays of its own closure.
    indptr : integer array of shape (n_rows + 1,)
        Row pointers: the work of a row is what it stores.
    n_jobs : int or None
        Threads, as in joblib.
    """
    threads = effective_n_jobs(n_jobs)
    if threads == 1:
        kernel(0, len(indptr) - 1)
        return
    blocks = balanced_blocks(indptr, _BLOCKS_PER_THREAD * threads)
    Parallel(n_jobs=threads, prefer="threads", require="sharedmem")(
        delayed(kernel)(start, stop) for start, stop in blocks
    )
