"""Randomness that hides nothing: priorities of ratings, starting values, draws of a chain; seeds.

It comes from streams that no release draws from, so that whoever knows it knows nothing of noise.
A key that is derived from a seed hides nothing either from somebody who can guess the seed, and the
statement of a seeded fit says so.
"""

from __future__ import annotations

import hashlib
import math
from abc import abstractmethod
from dataclasses import dataclass, field
from itertools import pairwise
from numbers import Integral
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from skdpmf.exceptions import require_that
from skdpmf.kernels.jit_and_threads import jit
from skdpmf.privacy.sampler.cipher import (
    KEY_BYTES,
    LANES,
    MOST_LANES,
    blocks,
    chacha,
    feed,
    join_words,
    require_key,
    set_position,
    states,
    stream_key,
)
from skdpmf.privacy.sampler.laws import NORMAL, normal_tables, rounded_draws, scratch

Floats = NDArray[np.float64]
Integers = NDArray[np.integer[Any]]
_HASHED_AT_ONCE = 1 << 20  # elements converted at a time, to bound memory
_ROWS_AT_ONCE = 4096  # likewise
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


def derived_key(seed: int | Integral, *parts: bytes | str | NDArray[Any]) -> bytes:
    """Return a 256-bit key that repeats for the same seed, plan and data, and only for these.

    BLAKE2b over the seed and the parts, each preceded by its kind and length, so that no
    two different lists of parts give the same input. A plain shared seed would give two fits the
    same noise and so their statistics away; hashing everything the fit reads makes
    that as unlikely as a collision. It does *not* protect against somebody who guesses the seed:
    he can test candidates for the data. Published models use `fresh_key`.

    Arrays enter as their shape and their values in row-major order, as little-endian int64
    (booleans, integers) or float64 (floats; all NaN are one, -0.0 is 0.0), so that the key
    depends neither on dtype nor on memory layout. The caller passes the data *as used*: clipped,
    bounded, rows without influence empty. *parts: usually the plan's text and the bounded matrix's
    ``indptr``, ``indices`` and ``data``.
    """
    holds = isinstance(seed, Integral) and not isinstance(seed, bool)
    rule = "an integer: pass random_state as an int, or None for a fresh key."
    require_that(holds, "seed", seed, rule)
    digest = hashlib.blake2b(digest_size=KEY_BYTES, person=b"skdpmf key")
    feed(digest, b"i", str(int(seed)).encode())
    for part in parts:
        if isinstance(part, str):
            feed(digest, b"s", part.encode())
        elif isinstance(part, bytes):
            feed(digest, b"b", part)
        else:
            kind = str(getattr(part, "dtype", type(part).__name__))
            rule = "a type with one canonical form: bytes, str, boolean, integer or float arrays."
            holds = isinstance(part, np.ndarray) and part.dtype.kind in "biuf"
            require_that(holds, "type of a part", kind, rule)
            _feed_array(digest, part)
    return digest.digest()


def row_digest(
    indptr: NDArray[Any], indices: NDArray[Any], data: NDArray[Any], *, first_row: int = 0
) -> NDArray[np.uint64]:
    """Return a digest of the rows of a CSR matrix that is the sum of those of any blocks of it.

    BLAKE2b of each row's number, columns and values, 512 bits as eight words, summed modulo 2^64
    over the rows; rows without entries count nothing. For `derived_key`, where data are in several
    places. Sums have more collisions than hashes for whoever writes thousands of the rows; what
    such a collision shows concerns only these rows, which he wrote.

    indptr, indices, data: CSR structure, each row's columns ascending, and values; first_row:
    number of the first row, when the rows are a block of a larger matrix. Returns (8,) uint64.
    """
    total = np.zeros(8, np.uint64)
    for start in range(0, len(indptr) - 1, _ROWS_AT_ONCE):
        bounds = np.asarray(indptr[start : start + _ROWS_AT_ONCE + 1], np.int64)
        entries = slice(bounds[0], bounds[-1])
        values = np.asarray(data[entries], "<f8") + 0.0
        values[np.isnan(values)] = np.nan
        places, content = np.asarray(indices[entries], "<i8").tobytes(), values.tobytes()
        for row, (a, b) in enumerate(pairwise((8 * (bounds - bounds[0])).tolist()), start):
            if a < b:
                number = (first_row + row).to_bytes(8, "little")
                digest = hashlib.blake2b(number + places[a:b], person=b"skdpmf row")
                digest.update(content[a:b])
                total += np.frombuffer(digest.digest(), "<u8")
    return total


def _feed_array(digest: Any, array: NDArray[Any]) -> None:
    """Hash shape and values, converted a piece at a time."""
    is_float = array.dtype.kind == "f"
    shape = ",".join(map(str, array.shape)).encode()
    feed(digest, b"F" if is_float else b"I", shape)
    flat = array.reshape(-1)
    for start in range(0, flat.size, _HASHED_AT_ONCE):
        piece = flat[start : start + _HASHED_AT_ONCE]
        if is_float:
            values = piece.astype("<f8") + 0.0
            values[np.isnan(values)] = np.nan
            digest.update(values)
        else:
            digest.update(np.ascontiguousarray(piece, dtype="<i8"))


def data_digest(R: Any, first_row: int = 0, *aligned: Any) -> NDArray[np.uint64]:
    """Digest of rows, and of numbers aligned with them: one adds up over blocks."""
    columns = [(np.arange(len(own) + 1), np.zeros(len(own), np.int64), own) for own in aligned]
    rows = [(R.indptr, R.indices, R.data), *columns]
    return np.stack([row_digest(*own, first_row=first_row) for own in rows])
