r"""One flat file: a JSON header and arrays of numbers. Nothing in it is ever executed.

All numbers are little-endian:

====== ======================================================================
bytes  content
====== ======================================================================
0-7    ``\x89skdpmf\n``
8-11   version of the format, uint32
12-15  length H of the header, uint32, a multiple of 8
H      header: a JSON object in UTF-8, blanks at its end
...    arrays, row by row, in the order of the header's table ``"arrays"``, each
       filled up with zeros to a multiple of 8 bytes
32     SHA-256 of all bytes before it
====== ======================================================================

An entry of the table has a name, a dtype, a shape, and the order in memory, "C" or "F", that an
array gets back. Arrays have no offsets: they follow one another, so that none can overlap, and
their lengths must add up to the file's. That is checked before anything of their size is made: a
file costs three times its own length in memory, and what its header, 64 MiB at most, says.

The checksum finds accidents. Whoever writes a file can write its checksum too: a file of a stranger
is safe to read, but what it says is the stranger's word.
"""

import hashlib
import json
import math
import os
import re
import stat
from pathlib import Path
from typing import Any

import numpy as np

from ..exceptions import ModelFileError
from .files import replaced_file

__all__ = ["broken", "check_text", "read_arrays", "write_arrays"]

MAGIC = b"\x89skdpmf\n"
VERSION = 1
DTYPES = {"float32": "<f4", "float64": "<f8", "int64": "<i8"}
_PREFIX, _DIGEST = 16, 32
_LONGEST_HEADER = 1 << 26  # the names and titles of a million items
_DEEPEST = 12
_LARGEST_INT = 2**63 - 1
# Control characters, marks that turn the direction of writing, and halves of characters: what is
# shown on a terminal must be what is meant.
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def broken(path: Any, trouble: str, remedy: str = "") -> ModelFileError:
    """Return the error for a file that is not as it should be."""
    remedy = remedy or "Pass what save wrote, or get the file again from where it came"
    return ModelFileError(f"{os.fspath(path)}: {trouble}. {remedy}.")


def check_text(text: Any, what: str) -> str:
    """Return a string without control characters, else raise a ModelFileError."""
    if not isinstance(text, str):
        raise ModelFileError(f"{what} is {text!r:.99} and must be a string.")
    if _UNPRINTABLE.search(text):
        raise ModelFileError(
            f"{what} is {text!a:.99} and must be printable text: take control characters, "
            "such as line breaks, out of it."
        )
    return text


def write_arrays(path: Any, header: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
    """Write a file; a crash at any moment leaves what was there or the whole new file.

    path (str or path-like): the file. What is there is replaced, and its mode kept. header: plain
    JSON, without the key "arrays"; arrays: float32, float64 or int64, finite, in one or two
    dimensions, by name. Raises OSError if the file cannot be written, or what is there is no
    regular file; ModelFileError if the file could not be read again.
    """
    path = Path(path).expanduser()
    for name, array in arrays.items():
        if not np.isfinite(array).all():
            raise broken(path, f"array {name!r} holds a number that is not finite", "Fit anew")
    table = [
        {
            "name": name,
            "dtype": array.dtype.name,
            "shape": list(array.shape),
            "order": "F" if array.flags.f_contiguous and not array.flags.c_contiguous else "C",
        }
        for name, array in arrays.items()
    ]
    text = _serialised({**header, "arrays": table})
    _parsed(path, text)  # what is written can be read
    if len(text) > _LONGEST_HEADER:
        raise ModelFileError(
            f"{path}: names and titles take {len(text)} bytes and must take {_LONGEST_HEADER} at "
            "most. Save without titles."
        )
    parts = [MAGIC + VERSION.to_bytes(4, "little") + len(text).to_bytes(4, "little") + text]
    for array in arrays.values():
        parts.append(array.astype(DTYPES[array.dtype.name]).tobytes("C"))
        parts.append(bytes(-array.nbytes % 8))
    digest = hashlib.sha256()
    with replaced_file(path) as file:
        for piece in parts:
            digest.update(piece)
            file.write(piece)
        file.write(digest.digest())


def read_arrays(path: Any) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Read a file that may come from anyone.

    path (str or path-like): the file. Returns header: plain JSON: finite numbers, integers of 64
    bits, printable strings; arrays: new arrays of finite numbers, by name. Raises OSError if the
    file cannot be opened; ModelFileError if it is anything else than what `write_arrays` writes.
    """
    path = Path(path).expanduser()
    if not stat.S_ISREG(path.stat().st_mode):  # a pipe or a device would never end
        raise broken(path, "it is no regular file")
    content = path.read_bytes()
    if content[: len(MAGIC)] != MAGIC:
        raise broken(path, f"it begins with {content[:8]!r} and no model file of skdpmf does")
    version, length = np.frombuffer(content[8:_PREFIX].ljust(8, b"\0"), "<u4").tolist()
    if version > VERSION:
        raise broken(
            path,
            f"it has version {version} of the format, and this skdpmf reads {VERSION}",
            "Update skdpmf, or have the model saved by an older one",
        )
    end = len(content) - _DIGEST
    whole = version == VERSION and length % 8 == 0 and _PREFIX + length <= end
    if not whole or hashlib.sha256(content[:end]).digest() != content[end:]:
        raise broken(path, "its content does not match its checksum: it is damaged or incomplete")
    if length > _LONGEST_HEADER:
        raise broken(path, f"its header has {length} bytes; {_LONGEST_HEADER} are allowed")
    header = _parsed(path, content[_PREFIX : _PREFIX + length])
    table = _checked_table(path, header.pop("arrays", None), end - _PREFIX - length)
    arrays, at = {}, _PREFIX + length
    for name, dtype, shape, order in table:
        flat = np.frombuffer(content, DTYPES[dtype], math.prod(shape), at)
        at += _padded(flat.nbytes)
        if not np.isfinite(flat).all():
            raise broken(path, f"array {name!r} holds a number that is not finite")
        arrays[name] = np.array(flat.reshape(shape), dtype, order=order)
    return header, arrays


def _serialised(header: dict[str, Any]) -> bytes:
    text = json.dumps(header, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()
    return text + b" " * (-len(text) % 8)


def _padded(n_bytes: int) -> int:
    return (n_bytes + 7) // 8 * 8


def _parsed(path: Path, text: bytes) -> dict[str, Any]:
    """Return the header: strict JSON, no key twice, nothing that surprises its reader."""
    try:
        header = json.loads(
            text.decode(), object_pairs_hook=_no_key_twice, parse_constant=_no_constant
        )
        _check_plain(header, 0)
        if not isinstance(header, dict):
            raise ValueError("it is no object")
    except (ValueError, RecursionError) as error:
        trouble = str(error) or type(error).__name__
        raise broken(path, f"its header is not the JSON that it must be ({trouble:.200})") from None
    return header


def _no_key_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("an object has a key twice")
    return found


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no number")


def _check_plain(value: Any, depth: int) -> None:
    if depth > _DEEPEST:
        raise ValueError("it is nested too deeply")
    if isinstance(value, str):
        check_text(value, "a text")
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError("a number is not finite")
    elif isinstance(value, int):
        if abs(value) > _LARGEST_INT:
            raise ValueError("an integer has more than 64 bits")
    elif isinstance(value, list):
        for part in value:
            _check_plain(part, depth + 1)
    elif isinstance(value, dict):
        for key, part in value.items():
            check_text(key, "a key")
            _check_plain(part, depth + 1)


def _checked_table(path: Path, table: Any, n_bytes: int) -> list[tuple[str, str, Any, Any]]:
    """Return the arrays' names, dtypes, shapes and orders, which need n_bytes in all."""
    checked, names, total = [], set(), 0
    for entry in table if isinstance(table, list) else [None]:
        if not isinstance(entry, dict) or entry.keys() != {"name", "dtype", "shape", "order"}:
            raise broken(path, f"an entry of its table of arrays is {entry!r:.99}")
        name, dtype, shape, order = (entry[key] for key in ("name", "dtype", "shape", "order"))
        holds = (
            isinstance(name, str)
            and name not in names
            and isinstance(dtype, str)
            and dtype in DTYPES
            and order in ("C", "F")
            and isinstance(shape, list)
            and 1 <= len(shape) <= 2
            and all(type(n) is int and 0 <= n <= n_bytes for n in shape)
        )
        if not holds:
            raise broken(path, f"an entry of its table of arrays is {entry!r:.199}")
        names.add(name)
        total += _padded(math.prod(shape) * np.dtype(DTYPES[dtype]).itemsize)
        checked.append((name, dtype, tuple(shape), order))
    if total != n_bytes:
        raise broken(path, f"its arrays take {n_bytes} bytes, and its header says {total}")
    return checked
