"""Randomness that hides nothing: priorities of ratings, starting values, a chain's own draws.

It comes from streams that no release draws from, so that whoever knows it knows nothing of noise.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from skdpmf.kernels.jit_and_threads import jit
from skdpmf.privacy.sampler.cipher import (
    LANES,
    MOST_LANES,
    blocks,
    chacha,
    join_words,
    require_key,
    set_position,
    states,
    stream_key,
)
from skdpmf.privacy.sampler.laws import NORMAL, normal_tables, rounded_draws, scratch

Floats = NDArray[np.float64]
Integers = NDArray[np.integer[Any]]
_BITS = 40


class Streams:
    """What a noise source has beside noise."""

    @abstractmethod
    def stream(self, purpose: str, name: str = "", index: int = 0) -> NDArray[np.uint32]:
        """Return the key of a stream."""

    def slot_priorities(
        self, purpose: str, indptr: Integers, indices: Integers
    ) -> NDArray[np.uint64]:
        """Return `slot_priorities` of all rows under this source's `row_key`."""
        return slot_priorities(self.row_key(), purpose, indptr, indices)

    def row_key(self) -> bytes:
        """Return the key of what is random about single rows, for processes that hold them."""
        return self.stream("rows").astype("<u4").tobytes()

    def initial_normals(self, shape: tuple[int, ...], name: str = "factors") -> Floats:
        """Return `initial_normals` under this source's key."""
        return _normals(self.stream("initial", name), shape)

    def normals(self, shape: tuple[int, ...], name: str, index: int) -> Floats:
        """Return standard normals of a sampler's own randomness, such as a Markov chain's.

        Not for releases, which are accounted for. They are multiples of 2**-40: the same
        (name, index) gives the same values, different ones are independent.
        """
        return _normals(self.stream("sampler", name, index), shape)

    def uniforms(self, shape: tuple[int, ...], name: str, index: int) -> Floats:
        """Return uniform values in (0, 1): the distribution function of the same `normals`."""
        return np.asarray(ndtr(self.normals(shape, name, index)))


def slot_priorities(
    key: bytes, purpose: str, indptr: Integers, indices: Integers, *, first_slot: int = 0
) -> NDArray[np.uint64]:
    """Return a random priority for each stored entry, a function of its slot and item alone.

    The tau entries of a row with the smallest priorities are a uniformly random subset of it, and
    one user's choice says and changes nothing about another's, however long rows are (one stream
    shared by all users would shift with a new user's length).

    key: the fit's key; purpose: what the priorities are for; different purposes are independent;
    indptr, indices: the CSR structure; the order of a row's entries does not matter; first_slot:
    slot of row 0, when the rows are a block of a larger matrix. Returns uint64, aligned with
    ``indices``.
    """
    words = stream_key(require_key(key), "slots", purpose, 0)
    indptr, indices = np.asarray(indptr), np.asarray(indices)
    out = np.empty(indices.shape[0], np.uint64)
    with np.errstate(over="ignore"):
        where = int(first_slot), 0, indptr.shape[0] - 1
        slot_words(states(words, LANES), indptr, indices, *where, out)
    return out


@dataclass(frozen=True)
class Priorities:
    """Priorities of ratings, wherever their rows are."""

    key: bytes = field(repr=False)
    purpose: str

    def __call__(self, rows: Any) -> NDArray[np.uint64]:
        ends = rows.indptr
        if rows.slots is not None:  # a few rows, in the places that they have
            number = np.zeros(rows.slots.max(initial=-1) + 2, ends.dtype)
            number[rows.slots + 1] = rows.n_ratings
            ends = np.cumsum(number, dtype=ends.dtype)
        where = ends, rows.indices
        return slot_priorities(self.key, self.purpose, *where, first_slot=rows.first)


def initial_normals(key: bytes, shape: tuple[int, ...], name: str = "factors") -> Floats:
    """Return standard normal starting values: public randomness, not noise.

    From a stream of their own for each name, so that publishing them says nothing about any noise.
    They are multiples of 2**-40.
    """
    return _normals(stream_key(require_key(key), "initial", name, 0), shape)


def _normals(words: NDArray[np.uint32], shape: tuple[int, ...]) -> Floats:
    size = math.prod(shape)
    draws = np.empty(size, np.int64)
    with np.errstate(over="ignore"):
        rounded_draws(*scratch(words), _BITS, *normal_tables(), NORMAL, 0, size, draws)
    normals: Floats = np.multiply(draws, 2.0**-_BITS, dtype=np.float64)
    return normals.reshape(shape)


def _slot_words_plain(words, indptr, indices, first_slot, start, stop, out):
    key, begin, end = words[20 * LANES : 28 * LANES : LANES], int(indptr[start]), int(indptr[stop])
    slots = np.repeat(first_slot + np.arange(start, stop), np.diff(indptr[start : stop + 1]))
    for first in range(begin, end, MOST_LANES):
        items = np.asarray(indices[first : min(first + MOST_LANES, end)], np.int64)
        at = slots[first - begin : first - begin + items.shape[0]]
        block = blocks(key, items, at, chacha.plain)
        out[first : first + items.shape[0]] = join_words.function(block[0], block[1])


@jit(plain=_slot_words_plain, same_bits=True)
def slot_words(words, indptr, indices, first_slot, start, stop, out):
    """Give each stored entry of rows [start, stop) the first 64 bits of its own block.

    The block of an entry stands at (item, slot) and nowhere else, so a value depends on the
    key, the slot and the item alone (``first_slot`` is the slot of row 0).

    words: ``states(key, LANES)``.
    """
    row = start
    end = indptr[stop]
    entry = indptr[start]
    while entry < end:
        count = min(LANES, end - entry)
        for lane in range(count):
            while entry + lane >= indptr[row + 1]:
                row += 1
            item, slot = np.int64(indices[entry + lane]), np.int64(first_slot + row)
            set_position(words, LANES, lane, item, slot)
        chacha(words, LANES)
        for lane in range(count):
            out[entry + lane] = join_words(words[lane], words[LANES + lane])
        entry += count
