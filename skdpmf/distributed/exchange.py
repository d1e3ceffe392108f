"""One fit on blocks of users, bit for bit that on all of them at once.

All that a private solver takes from its users is sums over them, each released with noise; all else
that it does follows from a user's own row and from what was released before. So the same solver
runs on every block of users, in whatever process holds it, and once more without any users, in the
coordinator. Where it asks for a release, the sums of all blocks are added up and the coordinator
draws noise, once, where the key is. Every run then goes on with the released value. Sums are exact
(on a public grid), so that the model depends neither on the number of blocks nor on their order.

A request has a key, (name, index, place), and requests come in the same order everywhere: they
depend on released values only. The state of a block is a function of its rows and of the answers
so far. So a lost one is made again from these, wherever its rows can be read (`_worker`, `_pool`).

Upwards travels one sum for each request and process; downwards travel the answers: released values,
public starting values, and the key of what is random about single rows (which ratings of a user
are kept), which says nothing about the noise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from skdpmf.privacy.recording import noise_source, recorded_key
from skdpmf.privacy.sampler.noise import (
    BlockRelease,
    NoiseSource,
    derived_key,
    fresh_key,
    row_digest,
    slot_priorities,
)

__all__ = ["Alone", "Coordinator", "Exchange", "Key", "Worker", "data_digest"]

Key = tuple[str, int, int]
_DIGEST, _ROW_KEY, _START = "digest of the rows", "key of the rows", "start of "


class Exchange(Protocol):
    """What a fit is to the other processes that take part in it."""

    def key(self, random_state: int | None, text: str, R: Any, *aligned: Any) -> bytes:
        """Return a fresh key, or that of the seed, the parameters (text) and the data.

        ``aligned`` holds arrays with a number for each row, which are data too.
        In a worker it is that of what is random about single rows, and no other.
        """

    def noise(self, random_state: int | None, text: str, R: Any, *aligned: Any) -> Any:
        """Return a `NoiseSource`, or what stands for it, with a key as of `key`."""

    def total(self, name: str, index: int, values: NDArray[Any]) -> NDArray[Any]:
        """Return the sum over all blocks of what may be told: randomised reports."""

    @property
    def first_row(self) -> int:
        """Number of the first row at hand."""


class Alone:
    """All users are here."""

    first_row = 0

    def key(self, random_state: int | None, text: str, R: Any, *aligned: Any) -> bytes:
        """Return a fresh key, or that of the seed."""
        if random_state is None:
            return recorded_key(fresh_key)
        shape, digest = np.array(R.shape), data_digest(R, aligned)
        return recorded_key(lambda: derived_key(int(random_state), text, shape, digest))

    def noise(self, random_state: int | None, text: str, R: Any, *aligned: Any) -> NoiseSource:
        """Return the source of all noise."""
        return noise_source(self.key(random_state, text, R, *aligned))

    def total(self, name: str, index: int, values: NDArray[Any]) -> NDArray[Any]:
        """Return the values."""
        return values


class Worker:
    """One block of users, in the process that holds it.

    Parameters
    ----------
    ask : callable
        ``ask(key, sum)`` hands in the block's sum, or None where nothing is summed, and returns the
        coordinator's answer.
    first_row : int
        Number of the block's first row.
    n_rows : int
        Rows of the whole matrix.
    """

    def __init__(self, ask: Callable[[Key, Any], Any], first_row: int, n_rows: int) -> None:
        self._ask, self.first_row, self._n_rows = ask, first_row, n_rows

    def key(self, random_state: int | None, text: str, R: Any, *aligned: Any) -> bytes:
        """Return the key of what is random about single rows."""
        if random_state is not None:
            self._ask((_DIGEST, 0, 0), data_digest(R, aligned, self.first_row))
        return bytes(self._ask((_ROW_KEY, 0, 0), None))

    def noise(self, random_state: int | None, text: str, R: Any, *aligned: Any) -> WorkerNoise:
        """Return what stands for the noise source."""
        row_key = self.key(random_state, text, R, *aligned)
        return WorkerNoise(self._ask, row_key, self.first_row, self._n_rows)

    def total(self, name: str, index: int, values: NDArray[Any]) -> NDArray[Any]:
        """Return the sum over all blocks."""
        return np.asarray(self._ask((name, index, 0), values))


def data_digest(R: Any, aligned: Iterable[Any], first_row: int = 0) -> NDArray[np.uint64]:
    """Digest of rows, and of numbers aligned with them: one adds up over blocks."""
    rows = [(R.indptr, R.indices, R.data), *map(_as_column, aligned)]
    return np.stack([row_digest(*own, first_row=first_row) for own in rows])


def _as_column(numbers: Any) -> tuple[Any, Any, Any]:
    return np.arange(len(numbers) + 1), np.zeros(len(numbers), np.int64), numbers


class WorkerNoise:
    """Stands for a `NoiseSource` on one block: hands in sums, gets released values."""

    shared = True

    def __init__(
        self, ask: Callable[[Key, Any], Any], row_key: bytes, first_row: int, n_rows: int
    ) -> None:
        self._ask, self._row_key, self._first_row, self._n_rows = ask, row_key, first_row, n_rows

    def total_rows(self, n_rows: int) -> int:
        """Return the rows of the whole matrix."""
        return self._n_rows

    def release(self, statistic: Any, *, name: str, index: int = 0, **terms: Any) -> Any:
        """Return what is released of all blocks' sums."""
        return self._ask((name, index, 0), np.asarray(statistic, np.float64))

    def blocks(self, *, name: str, index: int = 0, **terms: Any) -> _WorkerBlocks:
        """Begin a release in pieces."""
        return _WorkerBlocks(self._ask, name, index)

    def slot_priorities(self, purpose: str, indptr: Any, indices: Any) -> NDArray[np.uint64]:
        """Return the priorities of the block's entries."""
        return slot_priorities(self._row_key, purpose, indptr, indices, first_slot=self._first_row)

    def initial_normals(self, shape: tuple[int, ...], name: str = "factors") -> NDArray[np.float64]:
        """Return the coordinator's starting values."""
        return np.asarray(self._ask((_START + name, 0, 0), None))


class _WorkerBlocks:
    """A release in pieces, seen from a block: what is released is the coordinator's alone."""

    def __init__(self, ask: Callable[[Key, Any], Any], name: str, index: int) -> None:
        self._ask, self._name, self._index = ask, name, index

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    def release(self, start: int, values: NDArray[np.float64]) -> None:
        """Hand in a piece of the sums."""
        self._ask((self._name, self._index, start), values)


class Answer(NamedTuple):
    """What all runs were told at one request."""

    key: Key
    value: Any  # None: nothing


class Coordinator:
    """No users, and all the noise.

    Parameters
    ----------
    collect : callable
        ``collect(key, history)`` returns the sum of all blocks for the request that follows the
        answers of the history.
    n_rows : int
        Rows of the whole matrix.
    log : object, default=None
        A `ReleaseLog`: values that it has are not released again, others are in it before anybody
        learns them.
    """

    first_row = 0

    def __init__(
        self, collect: Callable[[Key, list[Answer]], Any], n_rows: int, log: Any = None
    ) -> None:
        self._collect, self._n_rows, self._log = collect, n_rows, log
        self.history: list[Answer] = []
        self._replayed = iter(() if log is None else list(log.released))

    def key(self, random_state: int | None, text: str, R: Any, *aligned: Any) -> bytes:
        """Return a fresh key, or that of the seed; the workers get that of the rows."""
        key = self._secret(random_state, text, R, *aligned)
        self.tell((_ROW_KEY, 0, 0), key)
        return key

    def noise(self, random_state: int | None, text: str, R: Any, *aligned: Any) -> CoordinatorNoise:
        """Return the source of all noise."""
        source = noise_source(self._secret(random_state, text, R, *aligned))
        self.tell((_ROW_KEY, 0, 0), source.row_key())
        return CoordinatorNoise(self, source, self._n_rows)

    def _secret(self, random_state: int | None, text: str, R: Any, *aligned: Any) -> bytes:
        if random_state is None:
            return recorded_key(fresh_key)
        key = _DIGEST, 0, 0
        digest = self._collect(key, self.history)
        # neither released nor of use to anybody
        self.tell(key, None)
        shape = np.array((self._n_rows, R.shape[1]))
        return recorded_key(lambda: derived_key(int(random_state), text, shape, digest))

    def total(self, name: str, index: int, values: NDArray[Any]) -> NDArray[Any]:
        """Return the sum over all blocks."""
        return np.asarray(self.request((name, index, 0), values, lambda total: total))

    def tell(self, key: Key, value: Any) -> None:
        """Answer a request at which nothing is summed."""
        self.history.append(Answer(key, value))

    def publish(self, key: Key, make: Callable[[], Any]) -> Any:
        """Tell what everybody may know, or what the log says was told."""
        known = next(self._replayed, None)
        value = make() if known is None else self._checked(known, key)
        if known is None and self._log is not None:
            self._log.append(*key, value)
        self.tell(key, value)
        return value

    def request(
        self, key: Key, own: Any, release: Callable[[Any], Any], *, told: bool = True
    ) -> Any:
        """Add up all blocks and release the sum, or take the value of the log.

        key: of the request; own: the sum over no users, which is 0 and shows the shape; release:
        from the sum to what may be told; told: whether the workers need it.
        """
        known = next(self._replayed, None)
        if known is None:
            if self._log is not None:
                self._log.assert_current()
            value = release(own + self._collect(key, self.history))
            if self._log is not None:
                self._log.append(*key, value)
        else:
            value = self._checked(known, key)
        self.history.append(Answer(key, value if told else None))
        return value

    @staticmethod
    def _checked(known: tuple[str, int, int, Any], key: Key) -> Any:
        if tuple(known[:3]) != key:
            raise RuntimeError(
                f"the checkpoint holds {tuple(known[:3])!r} where {key!r} comes: it is of another "
                "fit. Delete it, and pay for the fit again."
            )
        return known[3]


class CoordinatorNoise:
    """Stands for a `NoiseSource`: adds up all blocks before the one noise."""

    shared = True

    def __init__(self, coordinator: Coordinator, source: NoiseSource, n_rows: int) -> None:
        self._coordinator, self._source, self._n_rows = coordinator, source, n_rows

    def total_rows(self, n_rows: int) -> int:
        """Return the rows of the whole matrix."""
        return self._n_rows

    def release(self, statistic: Any, *, name: str, index: int = 0, **terms: Any) -> Any:
        """Release the sum of all blocks."""
        return self._coordinator.request(
            (name, index, 0),
            np.asarray(statistic, np.float64),
            lambda total: self._source.release(total, name=name, index=index, **terms),
        )

    def blocks(self, *, name: str, index: int = 0, **terms: Any) -> _CoordinatorBlocks:
        """Begin a release in pieces."""
        stream = self._source.blocks(name=name, index=index, **terms)
        return _CoordinatorBlocks(self._coordinator, stream, name, index)

    def slot_priorities(self, purpose: str, indptr: Any, indices: Any) -> NDArray[np.uint64]:
        """Return the priorities of entries, of which there are none here."""
        return self._source.slot_priorities(purpose, indptr, indices)

    def initial_normals(self, shape: tuple[int, ...], name: str = "factors") -> NDArray[np.float64]:
        """Return starting values, which all runs share."""
        key = _START + name, 0, 0
        return np.asarray(
            self._coordinator.publish(key, lambda: self._source.initial_normals(shape, name))
        )


class _CoordinatorBlocks:
    """A release in pieces, of the sums of all blocks."""

    def __init__(
        self, coordinator: Coordinator, stream: BlockRelease, name: str, index: int
    ) -> None:
        self._coordinator, self._stream = coordinator, stream
        self._name, self._index = name, index

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._stream.close()

    def release(self, start: int, values: NDArray[np.float64]) -> Any:
        """Release a piece."""
        return self._coordinator.request(
            (self._name, self._index, start),
            values,
            lambda total: self._stream.release(start, total),
            told=False,
        )
