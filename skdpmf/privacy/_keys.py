"""Keys: from the operating system, from a seed and the data, and for single streams."""

from __future__ import annotations

import hashlib
import os
from itertools import pairwise
from numbers import Integral
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skdpmf.exceptions import PrivacyParameterError

__all__ = ["KEY_BYTES", "derived_key", "fresh_key", "require_key", "row_digest", "stream_key"]

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

    Returns
    -------
    bytes of length 32
        The key.

    Examples
    --------
    >>> len(fresh_key())
    32
    """
    return os.urandom(KEY_BYTES)


def derived_key(seed: int, *parts: bytes | str | NDArray[Any]) -> bytes:
    """Return a 256-bit key that repeats for the same seed, plan and data, and only for these.

    BLAKE2b over the seed and the parts, each preceded by its kind and length, so that no
    two different lists of parts give the same input. A plain shared seed would give two fits the
    same noise and so their statistics away; hashing everything the fit reads makes
    that as unlikely as a collision. It does *not* protect against somebody who guesses the seed:
    he can test candidates for the data. Published models use `fresh_key`.

    Arrays enter as their shape and their values in row-major order, as little-endian int64
    (booleans, integers) or float64 (floats; all NaN are one, -0.0 is 0.0), so that the key
    depends neither on dtype nor on memory layout. The caller passes the data *as used*: clipped,
    bounded, rows without influence empty.

    Parameters
    ----------
    seed : int
        The user's seed.
    *parts : bytes, str or ndarray
        Usually the plan's text and the bounded matrix's ``indptr``, ``indices`` and ``data``.

    Returns
    -------
    bytes of length 32
        The key.

    Raises
    ------
    PrivacyParameterError
        If the seed is no integer, or a part is of another type or dtype.

    Examples
    --------
    >>> derived_key(0, "plan", np.arange(3)) == derived_key(0, "plan", np.arange(3, dtype="i2"))
    True
    >>> derived_key(0, "plan", np.arange(3)) == derived_key(0, "plan", np.arange(4))
    False
    """
    return _derive(seed, parts)


def row_digest(
    indptr: NDArray[Any], indices: NDArray[Any], data: NDArray[Any], *, first_row: int = 0
) -> NDArray[np.uint64]:
    """Return a digest of the rows of a CSR matrix that is the sum of those of any blocks of it.

    BLAKE2b of each row's number, columns and values, 512 bits as eight words, summed modulo 2^64
    over the rows; rows without entries count nothing. For `derived_key`, where data are in several
    places. Sums have more collisions than hashes for whoever writes thousands of the rows; what
    such a collision tells is only about these rows, which he wrote.

    Parameters
    ----------
    indptr, indices, data : ndarray
        CSR structure, each row's columns ascending, and values.
    first_row : int, default=0
        Number of the first row, when the rows are a block of a larger matrix.

    Returns
    -------
    ndarray of uint64, shape (8,)
        Digest.

    Examples
    --------
    >>> places, values = np.array([4, 7, 4]), np.array([1.0, 5.0, 3.0])
    >>> whole = row_digest(np.array([0, 2, 3]), places, values)
    >>> first = row_digest(np.array([0, 2]), places[:2], values[:2])
    >>> second = row_digest(np.array([0, 1]), places[2:], values[2:], first_row=1)
    >>> bool((whole == first + second).all())
    True
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


def _derive(seed: Any, parts: tuple[Any, ...]) -> bytes:
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
