"""Randomness of single devices: keys that are given out once, words, exact probabilities."""

from __future__ import annotations

import decimal
import math
import operator
import os
import threading
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from skdpmf.exceptions import PrivacyParameterError
from skdpmf.privacy.sampler.grid import as_float
from skdpmf.privacy.sampler.laws import chacha_block, compiled, join_words
from skdpmf.privacy.sampler.noise import fresh_key, require_key, stream_key

__all__ = [
    "COIN",
    "MAX_EPSILON",
    "DeviceStreams",
    "bernoulli_threshold",
    "check_count",
    "check_epsilon",
    "check_integer",
    "check_keys",
    "device_words",
]

MAX_EPSILON = 16.0  # of one draw: beyond that it hides little

# The last position word of a device's blocks. The rounded normals of its stream have 0 and 1
# there, so that no block serves two purposes.
COIN, _WORDS = 2, 3
_MASK32 = np.int64(0xFFFFFFFF)


class DeviceStreams:
    """The keys of simulated devices, each of which is given out once.

    A device in the field draws its own key from its operating system. In a simulation the keys of
    all devices follow from one secret: that of a device is a function of the secret, of the
    report (name, index) and of the device's slot, so that what it draws depends neither on other
    devices nor on blocks or threads. Two reports must not share a stream, so the same
    (name, index, slot) is refused the second time.

    It is neither pickled nor copied, and refuses to work in a process forked from its own.

    Parameters
    ----------
    key : bytes of length 32, optional
        From `fresh_key` or `derived_key`. Default: a fresh key.

    Raises
    ------
    PrivacyParameterError
        If the key is not 32 bytes.

    Examples
    --------
    >>> streams = DeviceStreams()
    >>> streams.keys("gradient", 0, 10).shape
    (10, 8)
    >>> streams
    DeviceStreams(key=<secret>)
    """

    def __init__(self, key: bytes | None = None) -> None:
        self.__key = fresh_key() if key is None else require_key(key)
        self._process = os.getpid()
        self._given: dict[tuple[str, int], list[tuple[int, int]]] = {}
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return "DeviceStreams(key=<secret>)"

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError(
            "DeviceStreams are never pickled or copied: a copy would give the same keys out again. "
            "Make new ones where they are needed."
        )

    def keys(
        self, name: str, index: int, n_devices: int, *, first_slot: int = 0
    ) -> NDArray[np.uint32]:
        """Return the keys of neighbouring slots for one report.

        name: what is reported; index: such as the round; n_devices: number of devices; first_slot:
        slot of the first one. Returns (n_devices, 8) uint32: chaCha20 keys, a row for each device.
        Raises PrivacyParameterError if one of them was given out before, or a parameter is out of
        range; RuntimeError: in a process forked from the one that made the object.
        """
        if os.getpid() != self._process:
            raise RuntimeError(
                "DeviceStreams were used in a process forked from their own: both would give the "
                "same keys out. Make them after the fork."
            )
        if not isinstance(name, str) or not name:
            raise PrivacyParameterError(f"name={name!r} must be a non-empty str: name the report.")
        index, start = operator.index(index), operator.index(first_slot)
        stop = start + operator.index(n_devices)
        if not 0 <= start <= stop:
            raise PrivacyParameterError(
                f"first_slot={first_slot!r} and n_devices={n_devices!r} must be integers >= 0: "
                "pass a range of slots."
            )
        with self._lock:
            given = self._given.setdefault((name, index), [])
            if any(max(start, a) < min(stop, b) for a, b in given):
                raise PrivacyParameterError(
                    f"name={name!r}, index={index!r} was given out before for a slot in "
                    f"[{start}, {stop}): two reports with one key show the data. Use another "
                    "index for another round, and keep the first result otherwise."
                )
            given.append((start, stop))
        out = np.empty((stop - start, 8), np.uint32)
        for row, slot in enumerate(range(start, stop)):
            out[row] = stream_key(self.__key, f"device {index}", name, slot)
        return out


def bernoulli_threshold(epsilon: float, probability: float = 0.5) -> int:
    """Return floor(2^64 e q / (1 - q + e q)), e = exp(epsilon), q = ``probability``.

    A coin that shows 1 iff a 64-bit word is below it has odds of at most e times those of q: the
    rounding is to the private side, in 60 decimal digits.
    """
    with decimal.localcontext(decimal.Context(prec=60)):
        q = decimal.Decimal(probability)
        odds = decimal.Decimal(epsilon).exp() * q / (1 - q)
        # four roundings of 1e-59 each are less than this
        share = odds / (1 + odds) * (1 - decimal.Decimal("1e-57"))
        return min(int(share * 2**64), 2**64 - 1)


@compiled
def _fill_words(keys, out):  # type: ignore[no-untyped-def]
    """Fill ``out`` (uint64, a row for each device's key) with independent uniform words."""
    block = np.empty(16, np.uint32)
    for row in range(out.shape[0]):
        for first in range(0, out.shape[1], 8):
            number = np.int64(first >> 3)
            chacha_block(keys[row], number & _MASK32, number >> 32, 0, _WORDS, block)
            for at in range(first, min(first + 8, out.shape[1])):
                word = 2 * (at - first)
                out[row, at] = join_words(block[word], block[word + 1])


def check_epsilon(epsilon: Any, largest: float = MAX_EPSILON) -> float:
    """Return epsilon as a float; raise if it is not in (0, largest]."""
    number = as_float(epsilon)
    if not 0.0 < number <= largest:
        raise PrivacyParameterError(
            f"epsilon={epsilon!r} must be a number > 0 and <= {largest:g}: pass what a report "
            "may spend."
        )
    return number


def check_integer(name: str, value: Any, largest: int) -> int:
    """Return value as an int; raise if it is no integer in [1, largest]."""
    number = as_float(value)
    if not 1 <= number <= largest or number != math.floor(number):
        raise PrivacyParameterError(
            f"{name}={value!r} must be an integer in [1, {largest}]: pass the public number."
        )
    return int(number)


def check_count(n_devices: Any) -> int:
    """Return a number of devices as an int; raise if it is none."""
    return check_integer("n_devices", n_devices, 2**53)


def check_keys(keys: Any) -> NDArray[np.uint32]:
    """Return keys, uint32 of shape (n, 8); raise if they are not."""
    array = np.asarray(keys)
    if array.dtype != np.uint32 or array.ndim != 2 or array.shape[1] != 8:
        raise PrivacyParameterError(
            f"keys of dtype {array.dtype} and shape {array.shape} must be uint32 of shape "
            "(n_devices, 8): take them from DeviceStreams.keys."
        )
    return np.ascontiguousarray(array)


def device_words(keys: Any, n_words: int) -> NDArray[np.uint64]:
    """Return the first words of the keys' streams, shape (n, n_words)."""
    keys = check_keys(keys)
    out = np.empty((keys.shape[0], n_words), np.uint64)
    with np.errstate(over="ignore"):
        _fill_words(keys, out)
    return out
