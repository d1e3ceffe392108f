"""How operations run: plain or compiled, with which compiler flags, in which threads.

An operation has a compiled form, for large work, and most have a plain one beside it, which numpy
does at once: compiling takes seconds, once per machine, and then loading what was compiled some
tenths of a second in each process. `sized` is the one rule that chooses. It knows public sizes
alone, so that what a fit releases does not depend on anybody's number of ratings.

Compiled forms release the GIL, so threads need no copies. numba is imported when one is needed.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from contextvars import ContextVar, copy_context
from functools import partial, update_wrapper
from importlib import import_module
from itertools import pairwise
from threading import RLock
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

# Rows times columns times rounds up to which a fit, or an answer, takes plain forms.
MOST_PLAIN_WORK = 1 << 26
# A row of an answer counts for so much: its work does not grow with the catalogue as a fit's.
ANSWER_WORK = 1 << 14

_SMALL: ContextVar[bool | None] = ContextVar("small", default=None)


@contextmanager
def sized(work: int) -> Iterator[None]:
    """Choose the forms of all operations inside, in threads of `in_threads` too.

    The outermost one decides: a fit's blocks and the answers inside of it follow the fit.

    work: its public size: rows times columns times rounds for a fit, rows times `ANSWER_WORK` for
    an answer. Never a number of ratings: the two forms differ by rounding.
    """
    if _SMALL.get() is not None:
        yield
        return
    token = _SMALL.set(work <= MOST_PLAIN_WORK)
    try:
        yield
    finally:
        _SMALL.reset(token)


def is_small() -> bool:
    """Return whether operations take their plain forms here; outside of `sized` they do not."""
    return bool(_SMALL.get())


class Kernel:
    """An operation: its compiled form, made when it is first needed, and its plain form if any.

    Compiled forms call one another; a call from Python takes the plain form where `is_small`, but
    for forms with the same bits where the process has the compiled one already.

    Parameters
    ----------
    function : callable
        The loops to compile.
    plain : callable or None
        The same by numpy, with the same arguments.
    same_bits : bool, default=False
        Whether both forms give the same bits, whatever the arguments.
    **options : dict
        Options of `numba.njit`.
    """

    __name__: str

    def __init__(self, function: Any, plain: Any, same_bits: bool = False, **options: Any) -> None:
        update_wrapper(self, function)
        self.function, self.plain, self._options = function, plain, options
        self.same_bits = same_bits
        self._compiled: Any = None

    def __call__(self, *args: Any) -> Any:
        if self.plain is not None and _SMALL.get() and not self._is_at_hand():
            with np.errstate(all="ignore"):  # compiled forms do not warn either
                return self.plain(*args)
        return self.compiled(*map(_writable, args))

    def _is_at_hand(self) -> bool:
        return self.same_bits and bool(getattr(self._compiled, "signatures", ()))

    def __reduce__(self) -> str:
        return self.__name__

    @property
    def compiled(self) -> Any:
        """The compiled form; with the JIT off the function itself."""
        if self._compiled is None:
            with _LOCK:
                if self._compiled is None:
                    self._compiled = _njit(self.function, self._options)
        return self._compiled

    @property
    def _numba_type_(self) -> Any:  # numba asks for it where compiled code names this object
        return self.compiled._numba_type_


def _writable(value: Any) -> Any:
    """Return a view that may be written to: numba compiles anew for arrays that may not."""
    if isinstance(value, np.ndarray) and not value.flags.writeable:
        value = value.view()
        with suppress(ValueError):  # read-only memory
            value.flags.writeable = True
    return value


class _Part(Kernel):
    """What compiled forms alone call: without an entry from Python or a copy on disk.

    These take a quarter of the time that a kernel of many parts needs to compile.
    """

    def __call__(self, *args: Any) -> Any:
        if self.compiled is self.function:  # the JIT is off
            return self.function(*args)
        raise TypeError(f"{self.__name__} is part of a kernel: call it from kernels only.")


_LOCK = RLock()


def _decorator(doc: str, kind: type[Kernel], **options: Any) -> Any:
    def decorate(function: Any = None, *, plain: Any = None, same_bits: bool = False) -> Any:
        if function is None:
            return partial(decorate, plain=plain, same_bits=same_bits)
        return kind(function, plain, same_bits, nogil=True, error_model="numpy", **options)

    decorate.__doc__ = doc
    return decorate


_FAST = {"reassoc", "contract", "nsz", "arcp"}
_WITHIN = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
_IEEE = "IEEE order of operations: for all whose result must be exact or repeat bit for bit."
_REORDERED = "Sums may be reassociated and contracted; NaN and infinity keep their meaning."

jit = _decorator(_IEEE, Kernel, cache=True)
jit_fast = _decorator(_REORDERED, Kernel, cache=True, fastmath=_FAST)
part = _decorator(f"A part of kernels. {_IEEE}", _Part, **_WITHIN)
part_fast = _decorator(f"A part of kernels. {_REORDERED}", _Part, fastmath=_FAST, **_WITHIN)


def _njit(function: Callable[..., Any], options: dict[str, Any]) -> Any:
    """Return numba's dispatcher, which compiles or loads when it is called."""
    from numba import njit

    # before any compiles: old versions of numba see no intrinsic that comes while one does
    import_module("skdpmf.kernels._vectors")
    words = import_module("skdpmf.kernels.compiling")
    words.announce()
    try:
        return njit(**options)(function)
    except RuntimeError:  # numba has no folder to write to
        words.warn_of_folder()
        return njit(**{**options, "cache": False})(function)


class _Later(ModuleType):
    """A module that is imported when something of it is needed, also by compiled code."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(import_module(self.__name__), name)


def later(name: str) -> Any:
    """Return a module of `skdpmf.kernels` that imports numba, imported at first use."""
    return _Later(f"skdpmf.kernels.{name}")


# A few blocks a thread, so that one slow block does not keep the others waiting; and entries of
# a block: arrays of so many take memory that is there already, and stay in a cache.
_BLOCKS_PER_THREAD, _ENTRIES_AT_ONCE = 8, 1 << 18


def run_blocks(kernel: Callable[[int, int], Any], indptr: Any, n_jobs: int | None) -> None:
    """Call ``kernel(start, stop)`` on consecutive row blocks of about equal work, in threads.

    kernel: works on rows [start, stop) and writes to arrays of its own closure; indptr (n_rows +
    1,) integer: row pointers: the work of a row is what it stores.
    """
    threads, n_blocks = n_threads(n_jobs), 1 + int(indptr[-1] - indptr[0]) // _ENTRIES_AT_ONCE
    n_blocks = max(n_blocks, _BLOCKS_PER_THREAD * threads if threads > 1 else 1)
    in_threads(kernel, balanced_blocks(indptr, n_blocks), n_jobs)


def in_threads(function: Callable[..., Any], tasks: Any, n_jobs: int | None) -> list[Any]:
    """Return ``function(*task)`` of every task, in their order; the first error is raised.

    tasks (sequence of tuples): arguments, all of one length; n_jobs: threads of this process, as
    many as joblib's `effective_n_jobs` says.
    """
    threads = min(n_threads(n_jobs), len(tasks))
    if threads <= 1:
        return [function(*task) for task in tasks]
    context = copy_context()  # threads begin without the choice of `sized`
    # not joblib's own pool, which looks for results only every 10 ms
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(lambda task: context.copy().run(function, *task), tasks))


def n_threads(n_jobs: int | None) -> int:
    """Return joblib's `effective_n_jobs`."""
    from joblib import effective_n_jobs  # takes long

    return int(effective_n_jobs(n_jobs))


def balanced_blocks(indptr: NDArray[Any], n_blocks: int) -> list[tuple[int, int]]:
    """Cut the rows of a CSR pattern into consecutive blocks of about equal work.

    The work of a row is taken as its stored entries plus one, so that runs of empty rows are
    shared out too. Blocks are never empty: there are at most ``n_blocks`` of them.

    indptr (n_rows + 1,) integer: row pointers; n_blocks: number of blocks wished for, at least 1.
    Result: half-open row ranges that cover all rows in order.
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
