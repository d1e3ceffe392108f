"""Releases in blocks: which places of a release were made, and its record."""

from __future__ import annotations

import bisect
import math
import operator
import threading
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, NoReturn

import numpy as np
from numpy.typing import ArrayLike, NDArray

from skdpmf.exceptions import PrivacyParameterError
from skdpmf.privacy._recording import Recorder, ReleaseRecord

__all__ = ["BlockRelease", "ReleaseTerms"]

# draws the noise of values that begin at a place of the release: (values, start, n_threads)
Draw = Callable[[NDArray[np.float64], int, int], NDArray[np.float64]]


@dataclass(frozen=True)
class ReleaseTerms:
    """What is known of a release before its statistic."""

    name: str
    index: int
    shape: tuple[int, ...]
    sensitivity: float
    noise_multiplier: float
    noise_scale: float
    layout: str
    noise: str


class BlockRelease:
    """A release that is made block by block; `NoiseSource.blocks` returns it.

    A place is one entry of the statistic, counted row by row (C order). Use it in a ``with``
    statement, or close it: that ends the release and gives it to an active recorder. Threads may
    share it.

    Parameters
    ----------
    draw : callable
        Adds the noise.
    terms : ReleaseTerms
        The release.
    recorder : Recorder or None
        Of the thread that begins the release: others, which may make it, do not see it.
    """

    def __init__(self, draw: Draw, terms: ReleaseTerms, recorder: Recorder | None) -> None:
        self._draw = draw
        self._terms = terms
        self._size = math.prod(terms.shape)
        self._made: list[tuple[int, int]] = []  # sorted ranges, none of which touch
        self._lock = threading.Lock()
        self._closed = False
        self._recorder = recorder
        self._replayed: NDArray[np.float64] | None = None
        if recorder is not None:
            replayed = recorder.replayed(terms.name, terms.index, terms.shape)
            self._replayed = None if replayed is None else replayed.reshape(-1)
            self._statistic, self._output = np.zeros(self._size), np.zeros(self._size)

    def __repr__(self) -> str:
        return f"BlockRelease(name={self._terms.name!r}, index={self._terms.index})"

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError(
            "a BlockRelease is never pickled or copied: a copy would draw the same noise again. "
            "Share it among threads, not processes."
        )

    def __enter__(self) -> BlockRelease:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def release(self, start: int, values: ArrayLike) -> NDArray[np.float64]:
        """Release the statistic's values at the places [start, start + len(values)).

        They are those that `NoiseSource.release` would give for the whole statistic, bit for bit.

        Parameters
        ----------
        start : int
            First place.
        values : array-like of float, shape (n,)
            The exact statistic there.

        Returns
        -------
        ndarray of float64, shape (n,)
            The release there.

        Raises
        ------
        PrivacyParameterError
            If a place was released before or does not exist, or the release is closed.
        RuntimeError
            In a process forked from the one that made the source.
        """
        exact = np.asarray(values, dtype=np.float64, order="C")
        if exact.ndim != 1:
            raise PrivacyParameterError(
                f"values of shape {exact.shape} must be one-dimensional: pass a range of the "
                "flat statistic, reshape(-1)."
            )
        return self._release(operator.index(start), exact, 1)

    def _release(
        self, start: int, exact: NDArray[np.float64], n_threads: int
    ) -> NDArray[np.float64]:
        """Return `release` of flat float64 values, drawn by several threads."""
        stop = start + exact.size
        self._claim(start, stop)
        if self._replayed is None:
            output = self._draw(exact, start, n_threads)
            if self._recorder is not None:
                output = self._recorder.recording.alter(exact, output)
        else:
            output = self._replayed[start:stop].copy()
        if self._recorder is not None:
            self._statistic[start:stop], self._output[start:stop] = exact, output
        return output

    def close(self) -> None:
        """End the release: what was not released stays unpublished, and is 0 in the record."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        if self._recorder is not None:
            terms = vars(self._terms).copy()
            shape = terms.pop("shape")
            self._recorder.recording.append(
                ReleaseRecord(
                    **terms,
                    statistic=self._statistic.reshape(shape),
                    output=self._output.reshape(shape),
                )
            )

    def _claim(self, start: int, stop: int) -> None:
        """Note that the places [start, stop) are released now, and refuse them the second time."""
        name = f"release {self._terms.name!r}, index {self._terms.index}"
        with self._lock:
            if self._closed:
                raise PrivacyParameterError(
                    f"{name} is closed: release its blocks inside the with statement."
                )
            if not 0 <= start <= stop <= self._size:
                raise PrivacyParameterError(
                    f"start={start} with {stop - start} values must lie within the {self._size} "
                    f"values of {name}: pass the place of the first value in the flat statistic."
                )
            if start == stop:
                return
            made = self._made
            at = bisect.bisect_left(made, (start, start))
            before = at > 0 and made[at - 1][1] > start
            if before or (at < len(made) and made[at][0] < stop):
                raise PrivacyParameterError(
                    f"start={start} with {stop - start} values meets values that {name} gave "
                    "before: each place has one noise, and may be released once. Keep the first "
                    "result."
                )
            # ranges that touch become one, so that blocks in order need no memory
            first, last = at, at
            if at > 0 and made[at - 1][1] == start:
                first, start = at - 1, made[at - 1][0]
            if at < len(made) and made[at][0] == stop:
                last, stop = at + 1, made[at][1]
            made[first:last] = [(start, stop)]
