"""The flat file of a header and arrays: whatever its bytes, it is read exactly or refused."""

import hashlib
import json
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skdpmf.data import array_file
from skdpmf.data.array_file import read_arrays, write_arrays
from skdpmf.exceptions import ModelFileError
from tests.systems import needs_posix

ARRAYS = {
    "a": np.array([1.5, -2.0, 3.0]),
    "b": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    "c": np.arange(3, dtype=np.float32),  # 12 bytes: needs filling up
    "d": np.array([[2**62]]),
    "e": np.empty((3, 0)),
}
HEADER = {"text": "Amélie ★", "number": 0.1, "list": [1, None, True]}


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "file"
    write_arrays(path, HEADER, ARRAYS)
    return path


def forge(path, header, content=b"", *, version=1):
    """Write a file whose checksum is right, whatever the header (a dict, str or bytes) says."""
    text = json.dumps(header) if isinstance(header, dict) else header
    text = text.encode() if isinstance(text, str) else text
    text += b" " * (-len(text) % 8)
    start = array_file.MAGIC + version.to_bytes(4, "little") + len(text).to_bytes(4, "little")
    signed = start + text + content
    path.write_bytes(signed + hashlib.sha256(signed).digest())
    return path


def entry(**changes):
    return {"name": "a", "dtype": "float64", "shape": [1], "order": "C", **changes}


def test_what_is_written_is_read(path):
    header, arrays = read_arrays(path)
    assert header == HEADER
    assert list(arrays) == list(ARRAYS)
    for name, array in arrays.items():
        expected = ARRAYS[name]
        assert (array.dtype, array.shape) == (expected.dtype, expected.shape)
        assert array.tobytes() == expected.tobytes()
        assert array.flags.c_contiguous == expected.flags.c_contiguous
        assert array.flags.writeable
        assert array.flags.owndata


def test_layout_is_the_documented_one(path):
    content = path.read_bytes()
    length = int.from_bytes(content[12:16], "little")
    assert content[:12] == b"\x89skdpmf\n\x01\x00\x00\x00"
    assert (16 + length) % 8 == 0
    assert [entry["name"] for entry in json.loads(content[16 : 16 + length])["arrays"]] == [
        *"abcde"
    ]
    at = 16 + length
    assert content[at : at + 24] == np.array([1.5, -2.0, 3.0], "<f8").tobytes()
    assert content[at + 24 : at + 72] == np.arange(6, dtype="<f8").tobytes()  # row by row
    assert content[at + 72 : at + 88] == np.arange(3, dtype="<f4").tobytes() + bytes(4)
    assert content[at + 88 : at + 96] == (2**62).to_bytes(8, "little")
    assert content[at + 96 :] == hashlib.sha256(content[:-32]).digest()


def test_every_flipped_byte_is_noticed(path):
    content = path.read_bytes()
    for place in range(len(content)):
        damaged = bytearray(content)
        damaged[place] ^= 1 << place % 8
        path.write_bytes(damaged)
        with pytest.raises(ModelFileError, match="file: "):
            read_arrays(path)


def test_every_truncation_and_every_addition_is_noticed(path):
    content = path.read_bytes()
    for n in range(len(content)):
        path.write_bytes(content[:n])
        with pytest.raises(ModelFileError):
            read_arrays(path)
    for more in (b"\0", bytes(8), content):
        path.write_bytes(content + more)
        with pytest.raises(ModelFileError, match="checksum"):
            read_arrays(path)


@given(st.binary(max_size=200), st.booleans())
def test_any_bytes_are_refused(tmp_path_factory, content, begin):
    path = tmp_path_factory.mktemp("any") / "file"
    path.write_bytes(array_file.MAGIC * begin + content)
    with pytest.raises(ModelFileError):
        read_arrays(path)


@given(st.binary(max_size=200))
def test_any_signed_header_is_read_or_refused(tmp_path_factory, text):
    path = forge(tmp_path_factory.mktemp("any") / "file", text)
    with pytest.raises(ModelFileError):  # no such bytes are an object with a table
        read_arrays(path)


TABLES = {
    "terabytes": [entry(shape=[2**40])],
    "terabytes in two dimensions": [entry(shape=[2**31, 2**31])],
    "a length of 70 bits": [entry(shape=[2**62, 2**62])],
    "no memory at all, and a huge shape": [entry(), entry(name="b", shape=[0, 2**62])],
    "negative": [entry(shape=[-1])],
    "two negatives": [entry(shape=[-1, -1])],
    "a truth as a length": [entry(shape=[True])],
    "a fraction": [entry(shape=[1.0])],
    "a text as a length": [entry(shape=["1"])],
    "three dimensions": [entry(shape=[1, 1, 1])],
    "no dimension": [entry(shape=[])],
    "no shape": [entry(shape=None)],
    "objects": [entry(dtype="object")],
    "a dtype of its own": [entry(dtype=[["x", "<f8"]])],
    "a dtype's code": [entry(dtype="|O8")],
    "an offset": [entry(offset=0)],
    "a name twice": [entry(shape=[0]), entry()],
    "a number as a name": [entry(name=1)],
    "another order": [entry(order="A")],
    "an array too few": [],
    "an array too many": [entry(), entry(name="b")],
    "no list": {"a": entry()},
    "nothing": None,
    "no entry": [1],
}


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_hostile_table_is_refused(tmp_path, table):
    path = forge(tmp_path / "file", {"arrays": table}, bytes(8))
    with pytest.raises(ModelFileError, match=r"table of arrays|its header says"):
        read_arrays(path)


def test_honest_table_passes(tmp_path):
    header, arrays = read_arrays(forge(tmp_path / "file", {"arrays": [entry()]}, bytes(8)))
    assert header == {}
    assert arrays["a"].tolist() == [0.0]


HEADERS = {
    "deep lists": "[" * 100_000 + "]" * 100_000,
    "deep objects": '{"a":' * 100_000 + "1" + "}" * 100_000,
    "too deep": json.dumps({"a": [[[[[[[[[[[[[1]]]]]]]]]]]]]}),
    "a key twice": '{"arrays": [], "arrays": []}',
    "a key twice, inside": '{"arrays": [], "a": {"b": 1, "b": 1}}',
    "NaN": '{"arrays": [], "a": NaN}',
    "Infinity": '{"arrays": [], "a": -Infinity}',
    "infinity by its exponent": '{"arrays": [], "a": 1e999}',
    "an integer of 65 bits": '{"arrays": [], "a": 18446744073709551616}',
    "an integer of 10,000 digits": '{"arrays": [], "a": ' + "9" * 10_000 + "}",
    "a control character": '{"arrays": [], "a": "\\u001b[2J"}',
    "a control character in a key": '{"arrays": [], "\\u0000": 1}',
    "a reversed text": '{"arrays": [], "a": "\\u202etxt.exe"}',
    "half a character": '{"arrays": [], "a": "\\ud800"}',
    "no UTF-8": b'{"arrays": [], "a": "\xff"}',
    "UTF-16": '{"arrays": []}'.encode("utf-16"),
    "no object": "[]",
    "an unfinished object": '{"arrays": []',
    "two objects": '{"arrays": []} {}',
    "nothing": "",
}


@pytest.mark.parametrize("header", HEADERS.values(), ids=HEADERS)
def test_hostile_header_is_refused(tmp_path, header):
    with pytest.raises(ModelFileError, match="its header is not the JSON"):
        read_arrays(forge(tmp_path / "file", header))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_numbers_are_finite(tmp_path, value):
    path = forge(tmp_path / "file", {"arrays": [entry()]}, np.array([value]).tobytes())
    with pytest.raises(ModelFileError, match="not finite"):
        read_arrays(path)
    with pytest.raises(ModelFileError, match="not finite"):
        write_arrays(tmp_path / "new", {}, {"a": np.array([value])})
    assert os.listdir(tmp_path) == ["file"]


def test_newer_version_says_what_to_do(tmp_path):
    for version in (2, 2**32 - 1):
        path = forge(tmp_path / "file", {"arrays": []}, version=version)
        with pytest.raises(ModelFileError, match=rf"version {version} .* reads 1\. Update skdpmf"):
            read_arrays(path)
    with pytest.raises(ModelFileError, match="damaged"):
        read_arrays(forge(tmp_path / "file", {"arrays": []}, version=0))


@needs_posix
def test_other_files_are_named_as_such(tmp_path, monkeypatch):
    path = tmp_path / "other"
    for content in (b"", b"PK\x03\x04", b"\x80\x04\x95 a pickle"):
        path.write_bytes(content)
        with pytest.raises(ModelFileError, match="it begins with"):
            read_arrays(path)
    with pytest.raises(FileNotFoundError):
        read_arrays(tmp_path / "none")
    with pytest.raises(ModelFileError, match="no regular file"):
        read_arrays(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    monkeypatch.setattr(Path, "read_bytes", lambda _: pytest.fail("would be read for ever"))
    with pytest.raises(ModelFileError, match="no regular file"):
        read_arrays(tmp_path / "pipe")


def test_too_long_header_is_refused(tmp_path, monkeypatch):
    path = forge(tmp_path / "file", {"arrays": [], "a": "x" * 100})
    monkeypatch.setattr(array_file, "_LONGEST_HEADER", 64)
    with pytest.raises(ModelFileError, match="64 are allowed"):
        read_arrays(path)
    with pytest.raises(ModelFileError, match="64 at most"):
        write_arrays(tmp_path / "new", {"a": "x" * 100}, {})


def test_what_could_not_be_read_is_not_written(tmp_path):
    for header in ({"a": "\x1b[2J"}, {"a": 2**64}, {"a": [[[[[[[[[[[[[1]]]]]]]]]]]]]}):
        with pytest.raises(ModelFileError, match="not the JSON"):
            write_arrays(tmp_path / "new", header, {})
    assert os.listdir(tmp_path) == []


def test_a_failed_write_leaves_the_old_file(path, monkeypatch):
    before = path.read_bytes()

    def full(_):
        raise OSError("no space left")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="no space"):
        write_arrays(path, {}, {})
    assert path.read_bytes() == before
    assert os.listdir(path.parent) == ["file"]
