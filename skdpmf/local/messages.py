"""What devices and the aggregator say to each other: frozen messages, as JSON or as bytes.

A message is checked when it is made, hence also when it is read: whoever holds one knows that its
numbers are finite, in range and as many as they must be. `MessageError` names what was wrong. Types
and limits of single fields are those of `msgspec`, which reads and writes; what fields have to do
with each other is checked here.

A message is one object of named fields, each of which stands there once, with "type" and "version".
In bytes it is a map of MessagePack, of at most 15 fields, and arrays are binary: their values one
after the other, little-endian. In JSON this is base64. A message is at most `MAX_BYTES` long, and
reading it never takes more memory than a small multiple of what came in, whatever it claims.
"""

from base64 import b64decode
from functools import lru_cache
from typing import Annotated, Any, Literal, TypeVar, get_args

import numpy as np
from numpy.typing import NDArray

from skdpmf.data.validation import check_rating_range
from skdpmf.exceptions import MissingExtraError
from skdpmf.mechanisms.device_reports import protocol as of_run
from skdpmf.mechanisms.device_reports.randomizers import MAX_EPSILON
from skdpmf.mechanisms.item_means.residual_rounds import PublicAverages

try:
    import msgspec
    from msgspec import Meta, Struct, structs
except ImportError as error:
    raise MissingExtraError(
        "messages of devices need msgspec, which is not installed: "
        'pip install "skdpmf[local]". LocalDPGDDR simulates devices without it.'
    ) from error

VERSION = 3
MAX_BYTES = 2**28  # of a message: more than the largest catalogue needs
MAX_ITEMS = 2**23 - 2  # so that a report has at most 2^24 values
_MAX_LENGTH = 2**24
_MAX_ROUNDS = 1000
_MEANS = (-1e6, 1e6)  # quarter ranges
_MASS = (1e-100, 1e100)
_M = TypeVar("_M", bound="_Message")
_fields = lru_cache(structs.fields)

Id = Annotated[str, Meta(pattern=r"^[0-9a-f]{32}\Z")]
Epsilon = Annotated[float, Meta(gt=0, le=MAX_EPSILON)]
Share = Annotated[float, Meta(gt=0, le=1)]
Count = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Damping = Annotated[float, Meta(ge=1e-6, le=1e6)]
ModelDamping = Annotated[float, Meta(ge=1e-9, le=1e9)]  # combined with what was measured
Rounds = Meta(min_length=1, max_length=_MAX_ROUNDS)


class MessageError(ValueError):
    """A message is malformed, or not of this version: the text names what was wrong."""


class VersionError(MessageError):
    """A message of an unknown version."""


class _Message(Struct, frozen=True, eq=False, forbid_unknown_fields=True):
    """Checks and encodings of messages; `_check` sees what fields have to do with each other.

    Raises
    ------
    MessageError
        If a field has another type, length or range.
    """

    def __post_init__(self) -> None:
        for field in _fields(type(self)):
            value = converted(field.name, getattr(self, field.name), field.type)
            structs.force_setattr(self, field.name, value)
        self._check()

    def _check(self) -> None:
        """Raise a MessageError if fields do not agree."""

    def to_bytes(self) -> bytes:
        """Return the message in its compact form.

        Returns
        -------
        bytes
            MessagePack, arrays as raw little-endian values.

        Examples
        --------
        >>> report = Report("0" * 32, 0, "f" * 32, np.array([5, -7], np.int32))
        >>> Report.from_bytes(report.to_bytes()) == report
        True
        """
        return msgspec.msgpack.encode(self, enc_hook=_little_endian)

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
        return msgspec.json.encode(self, enc_hook=_little_endian).decode()

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
        if not isinstance(data, bytes | bytearray):
            raise MessageError(f"data of type {type(data).__name__} must be bytes.")
        # the first byte of a short map has its length
        return _read(cls, data, msgspec.msgpack, int.from_bytes(data[:1], "big") - 0x80)

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
        if not isinstance(text, str):
            raise MessageError(f"text of type {type(text).__name__} must be a str.")
        return _read(cls, text, msgspec.json, text.count(":"))  # no value has a colon

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return self.to_bytes() == other.to_bytes()

    def __hash__(self) -> int:
        return hash(self.to_bytes())

    def __repr__(self) -> str:
        values = ((name, getattr(self, name)) for name in self.__struct_fields__)
        shown = (f"{name}={v!r}" for name, v in values if not isinstance(v, np.ndarray))
        return f"{type(self).__name__}({', '.join(shown)})"


class Announcement(_Message, frozen=True, eq=False, tag="announcement"):
    """The public parameters of a round, from the aggregator to all devices.

    Parameters
    ----------
    protocol : str
        Identity of the protocol run: 32 hexadecimal digits, random.
    round : int
        Number of the round, from 0.
    kind : {"statistics", "residuals"}
        Subject of this round's reports: ratings, or what `item_means` leave of them.
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
        Releases before a round "residuals": item means, in quarter ranges from the middle of the
        scale, and popularity > 0.
    n_devices : int, default=0
        Devices that are expected, on which the weight of item counts in a report depends: the fewer
        they are, the more. 0: not known, taken as many.
    version : int, default=3
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

    protocol: Id
    round: Annotated[int, Meta(ge=0, lt=_MAX_ROUNDS)]
    kind: Literal["statistics", "residuals"]
    epsilon: Epsilon
    n_items: Annotated[int, Meta(ge=1, le=MAX_ITEMS)]
    rating_range: tuple[float, float]
    user_damping: Damping
    fractions: Annotated[tuple[Share, ...], Rounds]
    item_means: NDArray[np.float64] | None = None
    mass: NDArray[np.float64] | None = None
    n_devices: Count = 0
    version: Literal[3] = 3

    def _check(self) -> None:
        _check_range(self)
        if abs(sum(self.fractions) - 1.0) > 1e-9:
            raise MessageError(f"fractions={_short(self.fractions)} must add up to 1.")
        if self.round >= (n := len(self.fractions)):
            raise MessageError(f"round={self.round} must be below {n}, as fractions say.")
        for name, limits in (("item_means", _MEANS), ("mass", _MASS)):
            values = getattr(self, name)
            if (values is None) != (self.kind == "statistics"):
                raise MessageError(f"{name} belongs to rounds 'residuals' only: leave it out.")
            if values is not None:
                _check_values(name, values, limits, self.n_items)

    @property
    def dimension(self) -> int:
        """Number of values of a report of this round."""
        return of_run.report_dimension(self.kind, self.n_items)

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
        return of_run.group_of(self.protocol, self.fractions, converted("report_id", report_id, Id))


class Report(_Message, frozen=True, eq=False, tag="report"):
    """What a device sends: one randomised vector of `PrivUnit`, with its random id for the run."""

    protocol: Id
    round: Annotated[int, Meta(ge=0, lt=_MAX_ROUNDS)]
    report_id: Id
    payload: NDArray[np.int32]
    version: Literal[3] = 3


class ReleasedModel(_Message, frozen=True, eq=False, tag="model"):
    """What is published at the end: a user's rating of item j is about m_j + o, o the user's own.

    Parameters
    ----------
    protocol : str
        Which run of the protocol it comes from.
    item_means : ndarray of float64, shape (n_items,)
        m, in rating units.
    user_damping : float
        d, in [1e-9, 1e9]: o minimises sum (r_j - m_j - o)^2 + d o^2 over the user's ratings.
    rating_range : (float, float)
        Smallest and largest rating.
    epsilon : float
        Epsilon of one report, in the local model.
    n_reports : tuple of int
        Reports of each round.
    significant : bool
        Whether the m_j differ by more than their errors.
    popularity : ndarray of float64, shape (n_items,)
        Estimated number of people who choose an item, > 0: those with many items count less, and
        those who like it more.
    version : int, default=3
        Version of the messages.

    Raises
    ------
    MessageError
        If a field has another type, length or range.

    Examples
    --------
    >>> means, popularity = np.array([3.5, 4.0]), np.array([20.0, 9.0])
    >>> model = ReleasedModel("0" * 32, means, 10.0, (1, 5), 4.0, (900, 100), True, popularity)
    >>> model == ReleasedModel.from_bytes(model.to_bytes())
    True
    """

    protocol: Id
    item_means: NDArray[np.float64]
    user_damping: ModelDamping
    rating_range: tuple[float, float]
    epsilon: Epsilon
    n_reports: Annotated[tuple[Count, ...], Rounds]
    significant: bool
    popularity: NDArray[np.float64]
    version: Literal[3] = 3

    def _check(self) -> None:
        _check_range(self)
        if self.n_items > MAX_ITEMS:
            raise MessageError(f"item_means has {self.n_items} values, and may have {MAX_ITEMS}.")
        _check_values("popularity", self.popularity, _MASS, self.n_items)

    @property
    def n_items(self) -> int:
        """Size of the catalogue."""
        return int(self.item_means.shape[0])


class Snapshot(Struct, forbid_unknown_fields=True, tag="snapshot"):
    """The state of an aggregator: its settings, what it counted, and the round that is open."""

    first: bytes  # announcement: it has all settings but the next one
    n_reports: tuple[int, ...]
    refused: dict[str, int]
    sums: list[NDArray[np.int64]]  # of the rounds so far
    ids: list[Annotated[bytes, Meta(min_length=16, max_length=16)]]
    announcement: bytes | None
    public: PublicAverages | None = None  # what rows of public people show

    def to_bytes(self) -> bytes:
        """Return it as MessagePack."""
        return msgspec.msgpack.encode(self, enc_hook=_little_endian)

    @classmethod
    def from_bytes(cls, data: bytes) -> "Snapshot":
        """Return what `to_bytes` wrote, or raise a MessageError."""
        try:
            return msgspec.msgpack.decode(data, type=cls, dec_hook=_array)
        except (msgspec.MsgspecError, ValueError) as error:
            raise MessageError(f"data must be a snapshot of this version ({error}).") from None


def _read(kind: type[_M], data: Any, coder: Any, n_fields: int) -> _M:
    """Return the message; ``n_fields`` is how many fields are written."""
    if len(data) > MAX_BYTES:
        raise MessageError(f"a message has {len(data)} bytes, and may have {MAX_BYTES} at most.")
    try:
        found = coder.decode(data, type=dict[str, msgspec.Raw])
        if not found.keys() >= {"type", "version"}:
            raise MessageError("a message must have the fields 'type' and 'version'.")
        version = coder.decode(found["version"], type=int)
        if version != VERSION:
            raise VersionError(
                f"version={_short(version)} must be {VERSION}, the only one known here: update "
                "this program, or ask the sender for that version."
            )
        if len(found) != n_fields:
            raise MessageError("a field stands twice in the message, or has fields of its own.")
        message: _M = coder.decode(data, type=kind, dec_hook=_array)
    except MessageError:
        raise
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise MessageError(f"no message of type {kind.__name__} ({error}).") from None
    return message


def _little_endian(array: NDArray[Any]) -> bytes:
    return array.astype(array.dtype.newbyteorder("<")).tobytes()


def _array(kind: Any, value: Any) -> NDArray[Any]:
    """Return a read-only array of an annotated type, from an array, bytes or base64."""
    dtype = np.dtype(get_args(get_args(kind)[1])[0])
    if isinstance(value, str):
        value = b64decode(value, validate=True)
    if isinstance(value, bytes):
        value = np.frombuffer(value, dtype.newbyteorder("<")).astype(dtype)
    if not isinstance(value, np.ndarray):
        raise ValueError(f"{type(value).__name__} must be an array")
    if value.dtype != dtype or value.ndim != 1 or not 1 <= value.size <= _MAX_LENGTH:
        raise ValueError(
            f"dtype {value.dtype} and shape {value.shape} must be {dtype} and one dimension of 1 "
            f"to {_MAX_LENGTH} values"
        )
    if dtype.kind == "f" and not np.isfinite(value).all():
        raise ValueError("a value is not finite")
    value = value.copy()
    value.flags.writeable = False
    return value


def _check_values(name: str, array: NDArray[Any], limits: Any, length: int | None = None) -> None:
    if length is not None and array.shape[0] != length:
        raise MessageError(f"{name} has {array.shape[0]} values and must have {length}.")
    if not limits[0] <= array.min() <= array.max() <= limits[1]:
        raise MessageError(f"{name} must have values in [{limits[0]:g}, {limits[1]:g}].")


def _check_range(message: Any) -> None:
    try:
        checked = check_rating_range(message.rating_range)
    except ValueError:
        raise MessageError(
            f"rating_range={message.rating_range} must be two finite numbers (low, high) with "
            "low < high, neither huge nor too close."
        ) from None
    structs.force_setattr(message, "rating_range", checked)


def converted(name: str, value: Any, kind: Any) -> Any:
    """Return a value of this type, or raise a MessageError."""
    try:
        return msgspec.convert(_plain(value), kind, dec_hook=_array)
    except (msgspec.ValidationError, SystemError) as error:  # the latter: huge, msgspec < 0.22
        raise MessageError(f"{name}={_short(value)} is refused: {error}.") from None


def _plain(value: Any) -> Any:
    """Return a value with Python's numbers in the place of NumPy's."""
    if isinstance(value, list | tuple):
        return tuple(map(_plain, value))
    return value.item() if isinstance(value, np.generic) else value


def _short(value: Any) -> str:
    """Return what a value looks like, in a few characters, also if it is a huge integer."""
    try:
        text = repr(value)
    except ValueError:  # an integer of more digits than Python writes
        return "(huge)"
    return text if len(text) <= 60 else f"{text[:57]}..."
