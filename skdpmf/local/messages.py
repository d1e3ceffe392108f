"""What devices and the aggregator say to each other, as frozen values with two encodings each.

A message is checked when it is made, hence also when it is read: whoever holds one knows that its
numbers are finite, in range and as many as they must be. `MessageError` names what was wrong.
Encodings have plain values and one-dimensional arrays, no code, no pickles.

Bytes, little-endian throughout:

    magic "SKDPMF" | uint16 version | uint32 length of the header | header | arrays

The header is a JSON object in UTF-8 with "type", the message's plain values, and for each array
{"dtype", "length"}; the arrays follow without gaps, in the alphabetical order of their names. JSON
messages have "version" too, and {"dtype", "length", "base64"} for an array.

A message is at most `MAX_BYTES` long. Every length is compared with the bytes that are there
before anything is made of them, so reading never takes more memory than a small multiple of what
came in, whatever the header claims.
"""

from __future__ import annotations

import base64
import bisect
import hashlib
import json
import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from fractions import Fraction
from functools import lru_cache
from itertools import accumulate
from numbers import Integral, Real
from typing import Any, ClassVar, NoReturn, TypeVar

import numpy as np
from numpy.typing import NDArray

from skdpmf.data.validation import check_rating_range
from skdpmf.mechanisms.device_reports.factors import MAX_HEAD, covariance_dimension
from skdpmf.mechanisms.device_reports.item_means import residual_dimension, statistics_dimension
from skdpmf.mechanisms.device_reports.randomizers import MAX_EPSILON

__all__ = [
    "MAX_ITEMS",
    "MAX_ROUNDS",
    "Announcement",
    "MessageError",
    "ReleasedModel",
    "Report",
    "VersionError",
    "parse_bytes",
    "to_bytes",
]

VERSION = 1
MAX_BYTES = 2**28  # of a message: more than the largest catalogue needs
MAX_HEADER = 2**16
_MAX_MARKS = 2**12  # commas and brackets of a JSON message; base64 has none
_MAGIC = b"SKDPMF"
_FRAME = struct.Struct("<6sHI")
MAX_ITEMS = 2**23 - 2  # so that a report has at most 2^24 values
MAX_ROUNDS = 1000
_MAX_LENGTH = 2**24
_MEANS = (-1e6, 1e6)  # quarter ranges
_MASS = (1e-100, 1e100)
_MAX_FACTOR = 100.0  # quarter ranges
_DAMPING = (1e-6, 1e6)
_MODEL_DAMPING = (1e-9, 1e9)  # some more: it has been combined with what was measured
_FACTOR_DAMPING = (1e-3, 1e6)  # squared quarter ranges; with the least, ridges are still solvable
_ID = re.compile(r"[0-9a-f]{32}")
_M = TypeVar("_M", bound="_Message")

Plain = dict[str, Any]
Arrays = dict[str, NDArray[Any]]


class MessageError(ValueError):
    """A message is malformed, or not of this version: the text names what was wrong."""


class VersionError(MessageError):
    """A message of an unknown version."""


class _Message:
    """Encodings of a dataclass: ``_KIND`` names it, ``_DTYPES`` has its arrays."""

    _KIND: ClassVar[str]
    _DTYPES: ClassVar[dict[str, str]] = {}

    def to_bytes(self) -> bytes:
        """Return the message in its compact form.

        Returns
        -------
        bytes
            Frame, header and raw little-endian arrays.

        Examples
        --------
        >>> report = Report("0" * 32, 0, "f" * 32, np.array([5, -7], np.int32))
        >>> Report.from_bytes(report.to_bytes()) == report
        True
        """
        return to_bytes(self._KIND, *self._parts())

    def to_json(self) -> str:
        """Return the message as JSON.

        Returns
        -------
        str
            An object; arrays are base64 of their little-endian values.

        Examples
        --------
        >>> report = Report("0" * 32, 0, "f" * 32, np.array([5, -7], np.int32))
        >>> Report.from_json(report.to_json()) == report
        True
        """
        return _to_json(self._KIND, *self._parts())

    @classmethod
    def from_bytes(cls: type[_M], data: bytes) -> _M:
        """Return the message that `to_bytes` wrote.

        Parameters
        ----------
        data : bytes
            All of it, and nothing else.

        Returns
        -------
        message
            Equal to the one written.

        Raises
        ------
        MessageError
            If anything is wrong with it, whatever the bytes are.

        Examples
        --------
        >>> report = Report("0" * 32, 0, "f" * 32, np.array([5, -7], np.int32))
        >>> Report.from_bytes(report.to_bytes()).payload
        array([ 5, -7], dtype=int32)
        """
        return cls._made(*_from_bytes(cls._KIND, data, cls._DTYPES))

    @classmethod
    def from_json(cls: type[_M], text: str) -> _M:
        """Return the message that `to_json` wrote.

        Parameters
        ----------
        text : str
            JSON.

        Returns
        -------
        message
            Equal to the one written.

        Raises
        ------
        MessageError
            If anything is wrong with it, whatever the text is.

        Examples
        --------
        >>> report = Report("0" * 32, 0, "f" * 32, np.array([5, -7], np.int32))
        >>> Report.from_json(report.to_json()).payload
        array([ 5, -7], dtype=int32)
        """
        return cls._made(*_from_json(cls._KIND, text, cls._DTYPES))

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return self.to_bytes() == other.to_bytes()

    def __hash__(self) -> int:
        return hash(self.to_bytes())

    def _parts(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        names = self._names()
        arrays = {name: getattr(self, name) for name in names if name in self._DTYPES}
        arrays = {name: array for name, array in arrays.items() if array is not None}
        return {name: getattr(self, name) for name in names if name not in self._DTYPES}, arrays

    @classmethod
    def _made(cls: type[_M], plain: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> _M:
        expected = {name for name in cls._names() if name not in cls._DTYPES}
        if set(plain) != expected:
            raise MessageError(
                f"fields missing: {sorted(expected - set(plain))}; unknown: "
                f"{sorted(set(plain) - expected)[:5]}."
            )
        missing = {name: None for name in cls._DTYPES if name not in arrays}
        return cls(**plain, **arrays, **missing)

    @classmethod
    def _names(cls) -> list[str]:
        """Fields of the message but its version, which stands where it is found first."""
        return [f.name for f in fields(cls) if f.name != "version"]  # type: ignore[arg-type]

    def _set(self, **values: Any) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)


@dataclass(frozen=True, eq=False)
class Announcement(_Message):
    """The public parameters of a round, from the aggregator to all devices.

    Parameters
    ----------
    protocol : str
        Identity of the protocol run: 32 hexadecimal digits, random.
    round : int
        Number of the round, from 0.
    kind : {"statistics", "residuals", "covariance"}
        Subject of this round's reports: ratings, what `item_means` leave of them, or this and
        products of two such rests; the last is for the last of several rounds.
    epsilon : float
        Epsilon of one report, in (0, 16].
    n_items : int
        Size of the catalogue.
    rating_range : (float, float)
        Smallest and largest rating.
    user_damping : float
        Fictitious ratings in a user's own mean, in [1e-6, 1e6].
    fractions : tuple of float
        Share of the devices that report in each round: > 0, of sum 1 but for rounding.
    item_means, mass : ndarray of float64, shape (n_items,), or None
        Releases before a round "residuals" or "covariance": item means, in quarter ranges
        from the middle of the scale, and popularity > 0.
    head : ndarray of int64, shape (h,), or None
        Columns of the items of a round "covariance", ascending, 2 <= h <= 400.
    version : int, default=1
        Version of the messages.

    Raises
    ------
    MessageError
        If a field has another type, length or range.

    Examples
    --------
    >>> announcement = Announcement("0" * 32, 0, "statistics", 4.0, 3, (1, 5), 10.0, (0.5, 0.5))
    >>> announcement.dimension
    10
    >>> announcement == Announcement.from_json(announcement.to_json())
    True
    """

    _KIND = "announcement"
    _DTYPES: ClassVar[dict[str, str]] = {"item_means": "<f8", "mass": "<f8", "head": "<i8"}

    protocol: str
    round: int
    kind: str
    epsilon: float
    n_items: int
    rating_range: tuple[float, float]
    user_damping: float
    fractions: tuple[float, ...]
    item_means: NDArray[np.float64] | None = field(default=None, repr=False)
    mass: NDArray[np.float64] | None = field(default=None, repr=False)
    head: NDArray[np.int64] | None = field(default=None, repr=False)
    version: int = VERSION

    def __post_init__(self) -> None:
        _check_version(self.version)
        _check_id("protocol", self.protocol)
        n_items = _integer("n_items", self.n_items, 1, MAX_ITEMS)
        shares = _fractions(self.fractions)
        self._set(
            n_items=n_items,
            fractions=shares,
            round=_integer("round", self.round, 0, len(shares) - 1),
            epsilon=_report_epsilon(self.epsilon),
            rating_range=_range(self.rating_range),
            user_damping=_number("user_damping", self.user_damping, *_DAMPING),
        )
        if self.kind not in ("statistics", "residuals", "covariance"):
            raise MessageError(
                f"kind={_short(self.kind)} must be 'statistics', 'residuals' or 'covariance'."
            )
        if self.kind != "statistics":
            self._set(
                item_means=_array("item_means", self.item_means, np.float64, n_items, _MEANS),
                mass=_array("mass", self.mass, np.float64, n_items, _MASS),
            )
        elif self.item_means is not None or self.mass is not None:
            raise MessageError("item_means and mass belong to later rounds than 'statistics'.")
        if self.kind == "covariance":
            if not 0 < self.round == len(shares) - 1:
                raise MessageError(
                    f"round={self.round} of kind 'covariance' must be the last of several."
                )
            self._set(head=_columns("head", self.head, n_items))
        elif self.head is not None:
            raise MessageError("head belongs to a round 'covariance' only.")

    @property
    def dimension(self) -> int:
        """Number of values of a report of this round."""
        if self.head is not None:
            return covariance_dimension(self.n_items, self.head.shape[0]) + 1
        of = statistics_dimension if self.kind == "statistics" else residual_dimension
        return of(self.n_items) + 1

    def group_of(self, report_id: str) -> int:
        """Return the round in which the device with this report id reports.

        A public hash decides: the first 8 bytes, little-endian, of BLAKE2b with person
        "skdpmf group" of the bytes of protocol and report id, over 2^64, against the cumulated
        fractions.

        Parameters
        ----------
        report_id : str
            32 hexadecimal digits.

        Returns
        -------
        int
            A round of the protocol; the last one takes what rounding leaves.

        Raises
        ------
        MessageError
            If it is no report id.

        Examples
        --------
        >>> announcement = Announcement("0" * 32, 0, "statistics", 4.0, 3, (1, 5), 10.0, (1.0,))
        >>> announcement.group_of("f" * 32)
        0
        """
        _check_id("report_id", report_id)
        text = bytes.fromhex(self.protocol + report_id)
        digest = hashlib.blake2b(text, digest_size=8, person=b"skdpmf group").digest()
        return bisect.bisect_right(_limits(self.fractions), int.from_bytes(digest, "little"))


@dataclass(frozen=True, eq=False)
class Report(_Message):
    """What a device sends: one randomised vector, on the integers.

    Parameters
    ----------
    protocol : str
        Protocol of the announcement that it answers.
    round : int
        Round of that announcement.
    report_id : str
        32 hexadecimal digits, drawn by the device for this protocol.
    payload : ndarray of int32, shape (dimension,)
        The vector, from `skdpmf.mechanisms.device_reports.randomizers.PrivUnit`.
    version : int, default=1
        Version of the messages.

    Raises
    ------
    MessageError
        If a field has another type, length or range.

    Examples
    --------
    >>> report = Report("0" * 32, 0, "f" * 32, np.array([5, -7], np.int32))
    >>> Report.from_bytes(report.to_bytes()).payload
    array([ 5, -7], dtype=int32)
    """

    _KIND = "report"
    _DTYPES: ClassVar[dict[str, str]] = {"payload": "<i4"}

    protocol: str
    round: int
    report_id: str
    payload: NDArray[np.int32] = field(repr=False)
    version: int = VERSION

    def __post_init__(self) -> None:
        _check_version(self.version)
        _check_id("protocol", self.protocol)
        _check_id("report_id", self.report_id)
        self._set(
            round=_integer("round", self.round, 0, MAX_ROUNDS - 1),
            payload=_array("payload", self.payload, np.int32),
        )


@dataclass(frozen=True, eq=False)
class ReleasedModel(_Message):
    """What is published at the end: a user's rating of item j is about m_j + o + z . L_j.

    o and z are the user's own; few items or none have factors L_j.

    Parameters
    ----------
    protocol : str
        Which run of the protocol it comes from.
    item_means : ndarray of float64, shape (n_items,)
        m, in rating units.
    user_damping : float
        d, in [1e-9, 1e9]: o and z minimise sum (r_j - m_j - o - z . L_j)^2 + d o^2 + the
        `factor_damping` times ``|z|^2``, over the user's ratings.
    rating_range : (float, float)
        Smallest and largest rating.
    epsilon : float
        Epsilon of one report, in the local model.
    n_reports : tuple of int
        Reports of each round.
    significant : bool
        Whether the reports told items apart; if not, all m_j are the same.
    factor_items : ndarray of int64, shape (h,), or None
        Columns of the items with factors, ascending, 2 <= h <= 400. None: there are no factors.
    factors : ndarray of float64, shape (h * k,), or None
        Their factors L_j row by row, in rating units, k >= 1.
    factor_damping : float, default=0.0
        Ridge on a user's z, in squared rating units: > 0 with factors, 0 without.
    version : int, default=1
        Version of the messages.

    Raises
    ------
    MessageError
        If a field has another type, length or range.

    Examples
    --------
    >>> model = ReleasedModel("0" * 32, np.array([3.5, 4.0]), 10.0, (1, 5), 4.0, (900, 100), True)
    >>> model == ReleasedModel.from_bytes(model.to_bytes())
    True
    """

    _KIND = "model"
    _DTYPES: ClassVar[dict[str, str]] = {
        "item_means": "<f8",
        "factor_items": "<i8",
        "factors": "<f8",
    }

    protocol: str
    item_means: NDArray[np.float64] = field(repr=False)
    user_damping: float
    rating_range: tuple[float, float]
    epsilon: float
    n_reports: tuple[int, ...]
    significant: bool
    factor_items: NDArray[np.int64] | None = field(default=None, repr=False)
    factors: NDArray[np.float64] | None = field(default=None, repr=False)
    factor_damping: float = 0.0
    version: int = VERSION

    def __post_init__(self) -> None:
        _check_version(self.version)
        _check_id("protocol", self.protocol)
        means = _array("item_means", self.item_means, np.float64)
        _integer("number of item_means", means.shape[0], 1, MAX_ITEMS)
        counts = _sequence("n_reports", self.n_reports)
        if type(self.significant) is not bool:
            raise MessageError(f"significant={self.significant!r} must be True or False.")
        self._set(
            item_means=means,
            user_damping=_number("user_damping", self.user_damping, *_MODEL_DAMPING),
            rating_range=_range(self.rating_range),
            epsilon=_report_epsilon(self.epsilon),
            n_reports=tuple(_integer("n_reports", n, 0, 2**63 - 1) for n in counts),
        )
        self._check_factors((self.rating_range[1] - self.rating_range[0]) / 4.0)

    def _check_factors(self, unit: float) -> None:
        if self.factor_items is None:
            if self.factors is not None or _number("factor_damping", self.factor_damping, 0.0, 0.0):
                raise MessageError("factors and factor_damping belong to factor_items.")
            self._set(factor_damping=0.0)
            return
        items = _columns("factor_items", self.factor_items, self.n_items)
        largest = _MAX_FACTOR * unit
        factors = _array("factors", self.factors, np.float64, limits=(-largest, largest))
        if factors.shape[0] % items.shape[0]:
            raise MessageError(
                f"factors has {factors.shape[0]} values and must have as many for each of the "
                f"{items.shape[0]} factor_items."
            )
        limits = (limit * unit**2 for limit in _FACTOR_DAMPING)
        damping = _number("factor_damping", self.factor_damping, *limits)
        self._set(factor_items=items, factors=factors, factor_damping=damping)

    @property
    def n_items(self) -> int:
        """Size of the catalogue."""
        return int(self.item_means.shape[0])

    @property
    def factor_matrix(self) -> NDArray[np.float64]:
        """Factors of all items, shape (n_items, k), zero where an item has none."""
        if self.factor_items is None or self.factors is None:
            return np.zeros((self.n_items, 0))
        rows = self.factors.reshape(self.factor_items.shape[0], -1)
        dense = np.zeros((self.n_items, rows.shape[1]))
        dense[self.factor_items] = rows
        return dense


@lru_cache
def _limits(fractions: tuple[float, ...]) -> list[int]:
    """Return floor(2^64 F_k) of the cumulated fractions F_k without the last, which is 1."""
    cumulated = list(accumulate(map(Fraction, fractions)))
    return [int(2**64 * part / cumulated[-1]) for part in cumulated[:-1]]


def _check_id(name: str, value: Any) -> None:
    if not isinstance(value, str) or not _ID.fullmatch(value):
        raise MessageError(f"{name}={_short(value)} must be 32 lower-case hexadecimal digits.")


def _integer(name: str, value: Any, least: int, most: int) -> int:
    integral = isinstance(value, Integral) and not isinstance(value, bool)
    if not integral or not least <= value <= most:
        raise MessageError(f"{name}={_short(value)} must be an integer in [{least}, {most}].")
    return int(value)


def _number(name: str, value: Any, least: float, most: float) -> float:
    real = isinstance(value, Real) and not isinstance(value, bool)
    if not real or not least <= value <= most:  # NaN fails, and so does an integer beyond floats
        raise MessageError(f"{name}={_short(value)} must be a number in [{least:g}, {most:g}].")
    return float(value)


def _report_epsilon(value: Any) -> float:
    number = _number("epsilon", value, 0.0, MAX_EPSILON)
    if number == 0.0:
        raise MessageError("epsilon=0 must be > 0: a report without any budget says nothing.")
    return number


def _range(value: Any) -> tuple[float, float]:
    try:
        return check_rating_range(tuple(_sequence("rating_range", value)))
    except MessageError:
        raise
    except (ValueError, OverflowError):
        raise MessageError(
            f"rating_range={_short(value)} must be two finite numbers (low, high), low < high, "
            "neither huge nor too close."
        ) from None


def _sequence(name: str, value: Any) -> Sequence[Any]:
    if not isinstance(value, list | tuple) or not 1 <= len(value) <= MAX_ROUNDS:
        raise MessageError(f"{name}={_short(value)} must be a list of 1 to {MAX_ROUNDS} numbers.")
    return value


def _fractions(value: Any) -> tuple[float, ...]:
    shares = tuple(_number("fractions", share, 0.0, 1.0) for share in _sequence("fractions", value))
    if min(shares) <= 0.0 or abs(sum(shares) - 1.0) > 1e-9:
        raise MessageError(f"fractions={_short(value)} must be > 0 and add up to 1.")
    return shares


def _array(
    name: str, value: Any, dtype: Any, length: int | None = None, limits: Any = None
) -> NDArray[Any]:
    """Return a read-only copy of a checked array, of numbers within limits."""
    array = value
    if not isinstance(array, np.ndarray):
        raise MessageError(f"{name} of type {type(value).__name__} must be an array.")
    if array.dtype != dtype or array.ndim != 1 or not 1 <= array.shape[0] <= _MAX_LENGTH:
        raise MessageError(
            f"{name} of dtype {array.dtype} and shape {array.shape} must have dtype "
            f"{np.dtype(dtype)} and one dimension of 1 to {_MAX_LENGTH} values."
        )
    if length is not None and array.shape[0] != length:
        raise MessageError(f"{name} has {array.shape[0]} values and must have {length}.")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise MessageError(f"{name} has a value that is not finite.")
    if limits is not None and not limits[0] <= array.min() <= array.max() <= limits[1]:
        raise MessageError(f"{name} must have values in [{limits[0]:g}, {limits[1]:g}].")
    array = array.astype(dtype)
    array.flags.writeable = False
    return array


def _columns(name: str, value: Any, n_items: int) -> NDArray[np.int64]:
    array, most = _array(name, value, np.int64), min(n_items, MAX_HEAD)
    if not 2 <= array.shape[0] <= most:
        raise MessageError(f"{name} has {array.shape[0]} values and must have 2 to {most}.")
    if array[0] < 0 or array[-1] >= n_items or (array[1:] <= array[:-1]).any():
        raise MessageError(f"{name} must have ascending columns in [0, {n_items}).")
    return array


def _short(value: Any) -> str:
    """Return what a value looks like, in a few characters, also if it is a huge integer."""
    try:
        text = repr(value)
    except ValueError:  # an integer of more digits than Python writes
        return "(huge)"
    return text if len(text) <= 60 else f"{text[:57]}..."


# -- encodings ------------------------------------------------------------------------------------


def _check_version(version: Any) -> None:
    if type(version) is not int or version != VERSION:
        raise VersionError(
            f"version={version!r} must be {VERSION}, the only one known here: update this program, "
            "or ask the sender for that version."
        )


def to_bytes(kind: str, plain: Plain, arrays: Arrays) -> bytes:
    """Return the compact form."""
    parts = {name: _described(arrays[name]) for name in sorted(arrays)}
    heads = {name: head for name, (head, _) in parts.items()}
    header = _dump({"type": kind, **plain, **heads}).encode()
    raw = (data for _, data in parts.values())
    return b"".join((_FRAME.pack(_MAGIC, VERSION, len(header)), header, *raw))


def _described(array: NDArray[Any]) -> tuple[Plain, bytes]:
    """Return what a header says of an array, and its little-endian bytes."""
    dtype = array.dtype.newbyteorder("<").str
    return {"dtype": dtype, "length": int(array.shape[0])}, array.astype(dtype).tobytes()


def _from_bytes(kind: str, data: Any, dtypes: dict[str, str]) -> tuple[Plain, Arrays]:
    """Return the plain values and the arrays of a message; ``dtypes`` has those of all arrays.

    An array may be missing; what values are allowed is the message's own affair.
    """
    if not isinstance(data, bytes | bytearray):
        raise MessageError(f"data of type {type(data).__name__} must be bytes.")
    if len(data) > MAX_BYTES:
        raise MessageError(f"{len(data)} bytes are too many: a message has {MAX_BYTES} at most.")
    return parse_bytes(kind, bytes(data), dtypes)


def parse_bytes(kind: str, data: bytes, dtypes: dict[str, str]) -> tuple[Plain, Arrays]:
    """As `_from_bytes`, of any length: for the own files."""
    if len(data) < _FRAME.size:
        raise MessageError(f"{len(data)} bytes are too few: the frame alone has {_FRAME.size}.")
    magic, version, length = _FRAME.unpack_from(data)
    if magic != _MAGIC:
        raise MessageError(f"the first bytes {magic!r} must be {_MAGIC!r}.")
    _check_version(version)
    if length > min(MAX_HEADER, len(data) - _FRAME.size):
        raise MessageError(
            f"a header of {length} bytes must be at most {MAX_HEADER} and not longer than the "
            f"{len(data) - _FRAME.size} bytes that follow the frame."
        )
    at = _FRAME.size + length
    plain = _load(data[_FRAME.size : at], kind)
    heads = _take_arrays(plain, dtypes, {"dtype", "length"})
    expected = sum(np.dtype(dtypes[name]).itemsize * n["length"] for name, n in heads.items())
    if len(data) - at != expected:
        raise MessageError(
            f"{len(data) - at} bytes of arrays must be {expected}, as the header says."
        )
    arrays = {}
    for name in sorted(heads):
        arrays[name] = np.frombuffer(data, dtypes[name], heads[name]["length"], at)
        at += arrays[name].nbytes
    return plain, _native(arrays)


def _to_json(kind: str, plain: Plain, arrays: Arrays) -> str:
    """Return the readable form."""
    coded = {}
    for name, array in arrays.items():
        head, raw = _described(array)
        coded[name] = {**head, "base64": base64.b64encode(raw).decode()}
    return _dump({"type": kind, "version": VERSION, **plain, **coded})


def _from_json(kind: str, text: Any, dtypes: dict[str, str]) -> tuple[Plain, Arrays]:
    """Return the plain values and the arrays of a message, as `_from_bytes` does."""
    if not isinstance(text, str):
        raise MessageError(f"text of type {type(text).__name__} must be a str.")
    if len(text) > MAX_BYTES:
        raise MessageError(f"{len(text)} characters are too many: {MAX_BYTES} at most.")
    if sum(map(text.count, ",[{")) > _MAX_MARKS:
        raise MessageError(f"more than {_MAX_MARKS} commas and brackets: no message has so many.")
    plain = _load(text, kind)
    if "version" not in plain:
        raise MessageError("the field 'version' is missing.")
    _check_version(plain.pop("version"))
    arrays = {}
    for name, head in _take_arrays(plain, dtypes, {"dtype", "length", "base64"}).items():
        n_bytes = np.dtype(dtypes[name]).itemsize * head["length"]
        coded = head["base64"]
        if not isinstance(coded, str) or len(coded) != 4 * ((n_bytes + 2) // 3):
            raise MessageError(f"{name}: the base64 text must stand for {n_bytes} bytes.")
        try:
            raw = base64.b64decode(coded, validate=True)
        except ValueError as error:
            raise MessageError(f"{name}: broken base64 ({error}).") from None
        if len(raw) != n_bytes:
            raise MessageError(f"{name}: {len(raw)} bytes must be {n_bytes}, as 'length' says.")
        arrays[name] = np.frombuffer(raw, dtypes[name])
    return plain, _native(arrays)


def _dump(plain: Plain) -> str:
    return json.dumps(plain, allow_nan=False, sort_keys=True, separators=(",", ":"))


def _load(text: bytes | str, kind: str) -> Plain:
    """Return the fields of a JSON object of the right type."""
    try:
        if isinstance(text, bytes):  # json would guess the encoding
            text = text.decode()
        found = json.loads(text, parse_constant=_no_constant, object_pairs_hook=_no_repeats)
    except MessageError:
        raise
    except (ValueError, RecursionError) as error:
        raise MessageError(f"no JSON that can be read ({error}).") from None
    if not isinstance(found, dict):
        raise MessageError(f"a JSON {type(found).__name__} must be an object.")
    if found.pop("type", None) != kind:
        raise MessageError(f"the field 'type' must be {kind!r}: this is another message.")
    return found


def _no_constant(name: str) -> NoReturn:
    raise MessageError(f"the number {name} must be finite.")


def _no_repeats(pairs: list[tuple[str, Any]]) -> Plain:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise MessageError("a field stands twice in an object.")
    return found


def _take_arrays(plain: Plain, dtypes: dict[str, str], keys: set[str]) -> dict[str, Plain]:
    """Take the descriptions of the arrays out of ``plain``, and check them."""
    heads = {name: plain.pop(name) for name in dtypes if name in plain}
    for name, head in heads.items():
        if not isinstance(head, dict) or set(head) != keys:
            raise MessageError(f"{name} must be an object with {sorted(keys)}.")
        if head["dtype"] != dtypes[name]:
            raise MessageError(f"{name}: the dtype must be {dtypes[name]!r}.")
        if type(head["length"]) is not int or head["length"] < 0:
            raise MessageError(f"{name}: the length must be an integer >= 0.")
    return heads


def _native(arrays: Arrays) -> Arrays:
    return {name: array.astype(array.dtype.newbyteorder("=")) for name, array in arrays.items()}
