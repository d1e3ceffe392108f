r"""All randomness that privacy rests on: keys, noise of releases, per-slot priorities.

**Guarantee.** A release of a statistic S with L2 sensitivity D at noise multiplier z returns
u (rint(S/u) + X) on a public grid of unit u, X having independent entries round(N(0, (sigma/u)^2)).
For an integer vector y

.. math:: y + \mathrm{round}(N) = \mathrm{round}(y + N),

so the release is a post-processing of the ideal Gaussian mechanism on the integers rint(S/u):
exactly (1/z)-GDP, with nothing added for floating point. `calibrate_grid` makes sigma large enough
to pay for the rounding of S. The sampler's law is proved to be within SAMPLER_ETA of the ideal,
relative, on every value outside a set of mass SAMPLER_TAU (``laws.py``), given that
ChaCha20 and BLAKE2b are pseudo-random; `skdpmf.privacy` adds that slack to epsilon and delta.

With ``noise="laplace"`` D is an l1 sensitivity, X has entries round(Laplace(0, scale/u)), and the
release is (1/z)-DP, pure, by the same argument (`calibrate_laplace_grid`). The sampler's law is
within LAPLACE_ETA, relative, of one at least as wide on every integer (``laws.py``): no delta,
and `PureRelease.noise_multiplier` takes 2 LAPLACE_ETA for each value off epsilon.

Not covered: the time that the sampler takes (a rejected attempt, 0.2 % of values, is slower).

**Streams.** A `NoiseSource` holds one 256-bit key. Each (purpose, name, index) has its own
ChaCha20 key, and value i of a stream is a function of that key and i alone, so results do not
depend on blocks or threads.

Sources: J. Dong, A. Roth, W. Su, "Gaussian differential privacy", JRSS B 84 (2022);
I. Mironov, "On significance of the least significant bits for differential privacy", CCS 2012.
"""

from __future__ import annotations

import bisect
import hashlib
import math
import operator
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass
from itertools import pairwise
from numbers import Integral
from typing import Any, NoReturn

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtr

from skdpmf.exceptions import PrivacyParameterError
from skdpmf.privacy.sampler.cipher import LANES, slot_words, states
from skdpmf.privacy.sampler.grid import Layout, Noise, release_grid
from skdpmf.privacy.sampler.laws import (
    CHUNK,
    LAPLACE,
    NORMAL,
    add_grid_noise,
    laplace_tables,
    normal_tables,
    rounded_draws,
    scratch,
)

Floats = NDArray[np.float64]

Integers = NDArray[np.integer[Any]]
KEY_BYTES = 32
_HASHED_AT_ONCE = 1 << 20  # elements converted at a time, to bound memory
_ROWS_AT_ONCE = 4096  # likewise


def require_key(key: Any) -> bytes:
    """Return the key as bytes, or raise without showing it."""
    if not isinstance(key, bytes | bytearray) or len(key) != KEY_BYTES:
        raise PrivacyParameterError(
            f"key of type {type(key).__name__} must be {KEY_BYTES} bytes: make it with fresh_key() "
            "or derived_key(seed, ...)."
        )
    return bytes(key)


def fresh_key() -> bytes:
    """Return a new 256-bit key from the operating system.

    Call it inside ``fit``, after any fork, and never keep the key with the model: who knows it can
    take the noise off.
    """
    return os.urandom(KEY_BYTES)


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
    if isinstance(seed, bool) or not isinstance(seed, Integral):
        raise PrivacyParameterError(
            f"seed={seed!r} must be an integer: pass random_state as an int, or None for a fresh "
            "key."
        )
    digest = hashlib.blake2b(digest_size=KEY_BYTES, person=b"skdpmf key")
    _feed(digest, b"i", str(int(seed)).encode())
    for part in parts:
        if isinstance(part, str):
            _feed(digest, b"s", part.encode())
        elif isinstance(part, bytes):
            _feed(digest, b"b", part)
        elif isinstance(part, np.ndarray) and part.dtype.kind in "biuf":
            _feed_array(digest, part)
        else:
            kind = getattr(part, "dtype", type(part).__name__)
            raise PrivacyParameterError(
                f"parts holds a value of type {kind}: only bytes, str and boolean, integer or "
                "float arrays have one canonical form. Convert it."
            )
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


def stream_key(key: bytes, purpose: str, name: str, index: int) -> NDArray[np.uint32]:
    """Return the ChaCha20 key of one stream: streams share neither key nor any block."""
    digest = hashlib.blake2b(key=key, digest_size=KEY_BYTES, person=b"skdpmf stream")
    for part in (purpose, name, str(int(index))):
        _feed(digest, b"s", part.encode())
    return np.frombuffer(digest.digest(), dtype="<u4").astype(np.uint32)


def _feed(digest: Any, kind: bytes, content: bytes) -> None:
    digest.update(kind + len(content).to_bytes(8, "little"))
    digest.update(content)


def _feed_array(digest: Any, array: NDArray[Any]) -> None:
    """Hash shape and values, converted a piece at a time."""
    is_float = array.dtype.kind == "f"
    shape = ",".join(map(str, array.shape)).encode()
    _feed(digest, b"F" if is_float else b"I", shape)
    flat = array.reshape(-1)
    for start in range(0, flat.size, _HASHED_AT_ONCE):
        piece = flat[start : start + _HASHED_AT_ONCE]
        if is_float:
            values = piece.astype("<f8") + 0.0
            values[np.isnan(values)] = np.nan
            digest.update(values)
        else:
            digest.update(np.ascontiguousarray(piece, dtype="<i8"))


# draws the noise of values that begin at a place of the release: (values, start, n_threads)
Draw = Callable[[Floats, int, int], Floats]


@dataclass(frozen=True)
class ReleaseTerms:
    """The facts about a release that are known before its statistic."""

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
    statement, or close it: that ends the release. Threads may share it. ``draw`` adds the noise.
    """

    def __init__(self, draw: Draw, terms: ReleaseTerms) -> None:
        self._draw = draw
        self._terms = terms
        self._size = math.prod(terms.shape)
        self._made: list[tuple[int, int]] = []  # sorted ranges
        self._lock = threading.Lock()
        self._closed = False

    def __repr__(self) -> str:
        return f"BlockRelease(name={self._terms.name!r}, index={self._terms.index})"

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError(
            "a BlockRelease is never pickled or copied: a copy would draw the same noise again. "
            "Share it among threads, not processes."
        )

    def __enter__(self) -> BlockRelease:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def release(self, start: int, values: ArrayLike) -> Floats:
        """Release the statistic's exact values (n,) at the places [start, start + n).

        The result is what `NoiseSource.release` would give there for the whole statistic, bit for
        bit. A place that was released before or does not exist is refused.
        """
        exact = np.asarray(values, dtype=np.float64, order="C")
        if exact.ndim != 1:
            raise PrivacyParameterError(
                f"values of shape {exact.shape} must be one-dimensional: pass a range of the "
                "flat statistic, reshape(-1)."
            )
        return self._release(operator.index(start), exact, 1)

    def _release(self, start: int, exact: Floats, n_threads: int) -> Floats:
        """Return `release` of flat float64 values, drawn by several threads."""
        self._claim(start, start + exact.size)
        return self._draw(exact, start, n_threads)

    def close(self) -> None:
        """End the release: what was not released stays unpublished."""
        with self._lock:
            self._closed = True

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
            made.insert(at, (start, stop))


_INITIAL_BITS = 40
_BLOCK = 512 * CHUNK  # values a thread draws at a time
# purpose of the stream, cell tables and law of each kind of noise
_KINDS = {
    "gaussian": ("release", normal_tables, NORMAL),
    "laplace": ("laplace", laplace_tables, LAPLACE),
}


class NoiseSource:
    """The noise of one fit: a secret key, and releases each of which may be made once.

    Make it inside ``fit``, from a `fresh_key` (the default) or a `derived_key`, and let it go with
    it. It is neither pickled nor copied, and refuses to work in a process forked from its own: both
    would draw the same noise twice. The proof is the module's.
    """

    #: whether several runs, on blocks of the users, make the same releases together
    def __init__(self, key: bytes | None = None) -> None:
        self.__key = fresh_key() if key is None else require_key(key)
        self._process = os.getpid()
        self._made: set[tuple[str, int]] = set()
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return "NoiseSource(key=<secret>)"

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError(
            "a NoiseSource is never pickled or copied: a copy would draw the same noise again. "
            "Make a new one where it is needed."
        )

    def release(self, statistic: ArrayLike, *, n_jobs: int | None = 1, **terms: Any) -> Floats:
        """Release a statistic with exact rounded noise, Gaussian or Laplace, as the module says.

        `calibrate_grid` and `calibrate_laplace_grid` have the noise's scale and the unit.

        Layout "packed" is for symmetric matrices: the last axis holds the lower triangle row by
        row, k (k + 1) / 2 entries, and ``sensitivity`` is of the full matrices in Frobenius norm.
        Off-diagonal entries count twice there, so they are scaled by sqrt(2) before and unscaled
        after the noise: standard deviation noise_scale on the diagonal, noise_scale / sqrt(2) off
        it (the law of (Z + Z^T) / 2 off the diagonal, Z iid). For a stack of matrices, it is
        the norm of the stack.

        statistic: exact, of any shape: an order-independent sum (`truncate_to_grid`,
        `check_exact`). Entries beyond ``bound`` are clamped to it and non-finite ones count as 0,
        silently: what rows hold must not raise. **terms: of `blocks`. The release has the
        statistic's shape.
        """
        exact = np.asarray(statistic, dtype=np.float64, order="C")
        n_threads = n_threads_of(n_jobs)
        with self.blocks(shape=exact.shape, **terms) as whole:
            return whole._release(0, exact.reshape(-1), n_threads).reshape(exact.shape)

    def blocks(
        self,
        *,
        name: str,
        index: int = 0,
        shape: tuple[int, ...],
        sensitivity: float,
        noise_multiplier: float,
        bound: float,
        layout: Layout = "full",
        noise: Noise = "gaussian",
    ) -> BlockRelease:
        """Begin a release whose statistic is too large to hold, to be made block by block.

        Every value is the one that `release` gives for the whole statistic. It counts as a whole:
        (name, index) is taken at once, and places that are never released are not published.

        name: what is released, as in the plan; index: number of the release among those of this
        name, such as the round; shape: of the whole statistic; sensitivity: L2 distance of the
        statistics of neighbouring data sets at most; l1 for Laplace noise; noise_multiplier:
        standard deviation, or scale of Laplace noise, over sensitivity; 0 returns the statistic
        itself, without any privacy; bound: public bound on the magnitude of entries, such as
        n_rows * sensitivity; layout: "full" or "packed"; "full" for Laplace noise, also of
        triangles stored once; noise: "gaussian" or "laplace", which have streams of their own.
        """
        index = operator.index(index)
        shape = tuple(operator.index(length) for length in shape)
        if min(shape, default=0) < 0:
            raise PrivacyParameterError(
                f"shape={shape} must hold lengths >= 0: pass that of the whole statistic."
            )
        grid = release_grid(
            shape,
            sensitivity=sensitivity,
            noise_multiplier=noise_multiplier,
            bound=bound,
            layout=layout,
            noise=noise,
        )
        self._claim(name, index)
        purpose, make_tables, law = _KINDS[noise]
        key, tables = stream_key(self.__key, purpose, name, index), make_tables()

        def draw(exact: Floats, first: int, n_threads: int) -> Floats:
            self._check_process()
            if grid.scale == 0.0:
                return exact.copy()
            out = np.empty_like(exact)

            def work(start: int, stop: int) -> None:
                scale = grid.units, grid.order, float(bound)
                settings = *scale, *scratch(key), grid.bits, *tables, law, first
                with np.errstate(over="ignore"):  # words wrap; only seen with the JIT off
                    add_grid_noise(exact, *settings, start, stop, out)

            _for_blocks(work, exact.size, n_threads)
            return out

        terms = ReleaseTerms(
            name=name,
            index=index,
            shape=shape,
            sensitivity=float(sensitivity),
            noise_multiplier=float(noise_multiplier),
            noise_scale=grid.scale,
            layout=layout,
            noise=noise,
        )
        return BlockRelease(draw, terms)

    def slot_priorities(
        self, purpose: str, indptr: Integers, indices: Integers
    ) -> NDArray[np.uint64]:
        """Return `slot_priorities` of all rows under this source's `row_key`."""
        return slot_priorities(self.row_key(), purpose, indptr, indices)

    def row_key(self) -> bytes:
        """Return the key of what is random about single rows, for processes that hold them.

        It says nothing about the noise of releases.
        """
        self._check_process()
        return stream_key(self.__key, "rows", "", 0).astype("<u4").tobytes()

    def initial_normals(self, shape: tuple[int, ...], name: str = "factors") -> Floats:
        """Return `initial_normals` under this source's key."""
        self._check_process()
        return initial_normals(self.__key, shape, name)

    def normals(self, shape: tuple[int, ...], name: str, index: int) -> Floats:
        """Return standard normals of a sampler's own randomness, such as a Markov chain's.

        Not for releases, which `release` makes and accounts for. They are multiples of 2**-40, from
        a ChaCha20 stream of their own: the same (name, index) gives the same values, different ones
        are independent.
        """
        self._check_process()
        return _stream_normals(stream_key(self.__key, "sampler", name, index), shape)

    def uniforms(self, shape: tuple[int, ...], name: str, index: int) -> Floats:
        """Return uniform values in (0, 1): the distribution function of the same `normals`."""
        return np.asarray(ndtr(self.normals(shape, name, index)))

    def _claim(self, name: str, index: int) -> None:
        """Note that (name, index) is released now, and refuse it the second time."""
        self._check_process()
        if not isinstance(name, str) or not name:
            raise PrivacyParameterError(f"name={name!r} must be a non-empty str: name the release.")
        with self._lock:
            if (name, index) in self._made:
                raise PrivacyParameterError(
                    f"name={name!r}, index={index!r} was released before by this source: a second "
                    "draw would spend budget that no plan counts. Use another index for "
                    "another round, and keep the first result otherwise."
                )
            self._made.add((name, index))

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise RuntimeError(
                "a NoiseSource was used in a process forked from its own: both would draw the same "
                "noise. Make the source after the fork."
            )


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


def initial_normals(key: bytes, shape: tuple[int, ...], name: str = "factors") -> Floats:
    """Return standard normal starting values: public randomness, not noise.

    From a stream of their own for each name, so that publishing them says nothing about any noise.
    They are multiples of 2**-40.
    """
    return _stream_normals(stream_key(require_key(key), "initial", name, 0), shape)


def _stream_normals(words: NDArray[np.uint32], shape: tuple[int, ...]) -> Floats:
    size = math.prod(shape)
    draws = np.empty(size, np.int64)
    with np.errstate(over="ignore"):
        rounded_draws(*scratch(words), _INITIAL_BITS, *normal_tables(), NORMAL, 0, size, draws)
    normals: Floats = np.multiply(draws, 2.0**-_INITIAL_BITS, dtype=np.float64)
    return normals.reshape(shape)


def n_threads_of(n_jobs: int | None) -> int:
    """Return the number of threads that ``n_jobs`` names."""
    if n_jobs is None:
        return 1
    if int(n_jobs) != n_jobs or n_jobs == 0:
        raise PrivacyParameterError(
            f"n_jobs={n_jobs!r} must be a non-zero integer or None: 1 for one thread, -1 for all."
        )
    return int(n_jobs) if n_jobs > 0 else max(1, (os.cpu_count() or 1) + 1 + int(n_jobs))


def _for_blocks(work: Callable[[int, int], None], size: int, n_threads: int) -> None:
    """Run ``work(start, stop)`` over ranges that make up [0, size)."""
    starts = range(0, size, _BLOCK)
    if n_threads == 1 or len(starts) <= 1:
        work(0, size)
        return
    with ThreadPoolExecutor(max_workers=min(n_threads, len(starts))) as pool:
        # threads begin without the choice of `sized`
        runs = [pool.submit(copy_context().run, work, s, min(s + _BLOCK, size)) for s in starts]
        for done in runs:
            done.result()
