"""Messages as JSON and as bytes: plain values and one-dimensional arrays, no code, no pickles.

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
import json
import struct
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "MAX_BYTES",
    "MAX_HEADER",
    "VERSION",
    "MessageError",
    "VersionError",
    "from_bytes",
    "from_json",
    "to_bytes",
    "to_json",
]

VERSION = 1
MAX_BYTES = 2**28  # of a message: more than the largest catalogue needs
MAX_HEADER = 2**16
_MAX_MARKS = 2**12  # commas and brackets of a JSON message; base64 has none
_MAGIC = b"SKDPMF"
_FRAME = struct.Struct("<6sHI")

Plain = dict[str, Any]
Arrays = dict[str, NDArray[Any]]


class MessageError(ValueError):
    """A message is malformed, or not of this version: the text names what was wrong."""


class VersionError(MessageError):
    """A message of an unknown version."""


def check_version(version: Any) -> None:
    if type(version) is not int or version != VERSION:
        raise VersionError(
            f"version={version!r} must be {VERSION}, the only one known here: update this program, "
            "or ask the sender for that version."
        )


def to_bytes(kind: str, plain: Plain, arrays: Arrays) -> bytes:
    """Return the compact form."""
    heads: dict[str, Plain] = {
        name: {"dtype": array.dtype.newbyteorder("<").str, "length": int(array.shape[0])}
        for name, array in arrays.items()
    }
    header = _dump({"type": kind, **plain, **heads}).encode()
    raw = [arrays[name].astype(heads[name]["dtype"]).tobytes() for name in sorted(arrays)]
    return b"".join((_FRAME.pack(_MAGIC, VERSION, len(header)), header, *raw))


def from_bytes(kind: str, data: Any, dtypes: dict[str, str]) -> tuple[Plain, Arrays]:
    """Return the plain values and the arrays of a message; ``dtypes`` has those of all arrays.

    An array may be missing; what values are allowed is the message's own affair.
    """
    if not isinstance(data, bytes | bytearray):
        raise MessageError(f"data of type {type(data).__name__} must be bytes.")
    if len(data) > MAX_BYTES:
        raise MessageError(f"{len(data)} bytes are too many: a message has {MAX_BYTES} at most.")
    return parse_bytes(kind, bytes(data), dtypes)


def parse_bytes(kind: str, data: bytes, dtypes: dict[str, str]) -> tuple[Plain, Arrays]:
    """As `from_bytes`, of any length: for the own files."""
    if len(data) < _FRAME.size:
        raise MessageError(f"{len(data)} bytes are too few: the frame alone has {_FRAME.size}.")
    magic, version, length = _FRAME.unpack_from(data)
    if magic != _MAGIC:
        raise MessageError(f"the first bytes {magic!r} must be {_MAGIC!r}.")
    check_version(version)
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


def to_json(kind: str, plain: Plain, arrays: Arrays) -> str:
    """Return the readable form."""
    coded = {}
    for name, array in arrays.items():
        dtype = array.dtype.newbyteorder("<").str
        text = base64.b64encode(array.astype(dtype).tobytes()).decode()
        coded[name] = {"dtype": dtype, "length": int(array.shape[0]), "base64": text}
    return _dump({"type": kind, "version": VERSION, **plain, **coded})


def from_json(kind: str, text: Any, dtypes: dict[str, str]) -> tuple[Plain, Arrays]:
    """Return the plain values and the arrays of a message, as `from_bytes` does."""
    if not isinstance(text, str):
        raise MessageError(f"text of type {type(text).__name__} must be a str.")
    if len(text) > MAX_BYTES:
        raise MessageError(f"{len(text)} characters are too many: {MAX_BYTES} at most.")
    if sum(map(text.count, ",[{")) > _MAX_MARKS:
        raise MessageError(f"more than {_MAX_MARKS} commas and brackets: no message has so many.")
    plain = _load(text, kind)
    if "version" not in plain:
        raise MessageError("the field 'version' is missing.")
    check_version(plain.pop("version"))
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
