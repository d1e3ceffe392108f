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

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from skdpmf.privacy.frame import Alone, data_digest
from skdpmf.privacy.sampler.noise import NoiseSource, noise_source
from skdpmf.privacy.sampler.streams import slot_priorities

Key = tuple[str, int, int]
_DIGEST, _ROW_KEY, _START = "digest of the rows", "key of the rows", "start of "


class _Shared:
    """An exchange of several processes, which agree on requests.

    `request` hands in a block's sum and returns what is released of all blocks' sums; `publish`
    returns what everybody may know, and the coordinator makes.
    """

    first_row = n_rows = 0
    request: Callable[..., Any]

    def total(self, name: str, index: int, values: NDArray[Any]) -> NDArray[Any]:
        """Return the sum over all blocks."""
        return np.asarray(self.request((name, index, 0), values, lambda total: total))


class Worker(_Shared):
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
        self._ask, self.first_row, self.n_rows = ask, first_row, n_rows

    def key(self, seeded: bool, make: Callable[..., bytes], R: Any, *aligned: Any) -> bytes:
        """Return the key of what is random about single rows."""
        if seeded:
            self._ask((_DIGEST, 0, 0), data_digest(R, aligned, self.first_row))
        return bytes(self._ask((_ROW_KEY, 0, 0), None))

    def noise(self, *terms: Any) -> SharedNoise:
        """Return what stands for the noise source."""
        return SharedNoise(self, self.key(*terms))

    def publish(self, key: Key, make: Callable[[], Any]) -> Any:
        """Return what the coordinator has made."""
        return self._ask(key, None)

    def request(self, key: Key, own: Any, release: Callable[[Any], Any], told: bool = True) -> Any:
        """Hand in the block's sum, and return what is released of all."""
        return self._ask(key, own)


class Answer(NamedTuple):
    """What all runs were told at one request."""

    key: Key
    value: Any  # None: nothing


class Coordinator(_Shared):
    """No users, and all the noise.

    Parameters
    ----------
    collect : callable
        ``collect(key, history)`` returns the sum of all blocks for the request that follows the
        answers of the history.
    n_rows : int
        Rows of the whole matrix.
    """

    def __init__(self, collect: Callable[[Key, list[Answer]], Any], n_rows: int) -> None:
        self._collect, self.n_rows = collect, n_rows
        self.history: list[Answer] = []

    def key(self, *terms: Any) -> bytes:
        """Return the key that is made; the workers get it, too."""
        key = self._secret(*terms)
        self.tell((_ROW_KEY, 0, 0), key)
        return key

    def noise(self, *terms: Any) -> SharedNoise:
        """Return the source of all noise."""
        source = noise_source(self._secret(*terms))
        row_key = source.row_key()
        self.tell((_ROW_KEY, 0, 0), row_key)
        return SharedNoise(self, row_key, source)

    def _secret(self, seeded: bool, make: Callable[..., bytes], R: Any, *aligned: Any) -> bytes:
        if not seeded:
            return make()
        key = _DIGEST, 0, 0
        digest = self._collect(key, self.history)
        # neither released nor of use to anybody
        self.tell(key, None)
        return make(np.array((self.n_rows, R.shape[1])), digest)

    def tell(self, key: Key, value: Any) -> None:
        """Answer a request at which nothing is summed."""
        self.history.append(Answer(key, value))

    def publish(self, key: Key, make: Callable[[], Any], *, told: bool = True) -> Any:
        """Make what may be told; ``told``: whether the workers need it."""
        value = make()
        self.tell(key, value if told else None)
        return value

    def request(self, key: Key, own: Any, release: Callable[[Any], Any], told: bool = True) -> Any:
        """Add up all blocks and release the sum.

        key: of the request; own: the sum over no users, which is 0 and shows the shape; release:
        from the sum to what may be told; told: as for `publish`.
        """
        return self.publish(key, lambda: release(own + self._collect(key, self.history)), told=told)


class SharedNoise:
    """Stands for a `NoiseSource`: adds up all blocks before the one noise, the coordinator's.

    A worker has no source: it hands in sums, and gets released values.
    """

    shared = True

    def __init__(
        self, exchange: Worker | Coordinator, row_key: bytes, source: NoiseSource | None = None
    ) -> None:
        self._exchange, self._row_key, self._source = exchange, row_key, source

    def total_rows(self, n_rows: int) -> int:
        """Return the rows of the whole matrix."""
        return self._exchange.n_rows

    def release(self, statistic: Any, *, name: str, index: int = 0, **terms: Any) -> Any:
        """Return what is released of the sum of all blocks."""
        source: Any = self._source
        return self._exchange.request(
            (name, index, 0),
            np.asarray(statistic, np.float64),
            lambda total: source.release(total, name=name, index=index, **terms),
        )

    @contextmanager
    def blocks(self, *, name: str, index: int = 0, **terms: Any) -> Iterator[_Blocks]:
        """Begin a release in pieces."""
        source, terms = self._source, {"name": name, "index": index, **terms}
        with nullcontext() if source is None else source.blocks(**terms) as stream:
            yield _Blocks(self._exchange, stream, name, index)

    def slot_priorities(self, purpose: str, indptr: Any, indices: Any) -> NDArray[np.uint64]:
        """Return the priorities of the block's entries."""
        first = self._exchange.first_row
        return slot_priorities(self._row_key, purpose, indptr, indices, first_slot=first)

    def initial_normals(self, shape: tuple[int, ...], name: str = "factors") -> NDArray[np.float64]:
        """Return the coordinator's starting values, which all runs share."""
        source: Any = self._source
        key = _START + name, 0, 0
        return np.asarray(self._exchange.publish(key, lambda: source.initial_normals(shape, name)))


@dataclass(frozen=True)
class _Blocks:
    """A release in pieces, of the sums of all blocks; what is released is the coordinator's."""

    exchange: Worker | Coordinator
    stream: Any  # None in a worker
    name: str
    index: int

    def release(self, start: int, values: NDArray[np.float64]) -> Any:
        """Hand in, and in the coordinator release, a piece."""
        key, stream = (self.name, self.index, start), self.stream
        return self.exchange.request(key, values, lambda total: stream.release(start, total), False)


#: what a fit is to the other processes that take part in it
Exchange = Alone | Worker | Coordinator
