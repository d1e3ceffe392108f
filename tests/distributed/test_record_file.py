"""The file of a checkpoint: an independent writer, damage, other formats, and what is in it."""

import hashlib
import io
import json
import random
import re
import struct
from pathlib import Path

import numpy as np
import pytest

from skdpmf.distributed import _record_file
from skdpmf.distributed.checkpoint import ReleaseLog, fit_checkpoint
from skdpmf.exceptions import CheckpointError
from skdpmf.privacy.sampler.noise import derived_key
from tests.books.ledgers import new_ledger
from tests.distributed.checkpoints import PLAN, N, interrupted

pytestmark = pytest.mark.skipif(_record_file.fcntl is None, reason="needs POSIX locks")


def test_values_come_back_as_they_were(path):
    rng = np.random.default_rng(0)
    values = [
        rng.normal(size=(3, 4)),
        rng.normal(size=(4, 3)).T,
        np.array(2.5),
        np.float64(-0.0),
        np.array([np.inf, np.nan]),
        np.zeros((0, 3)),
        rng.integers(0, 9, 5),
        np.array([True, False]),
        rng.normal(size=200_000).astype(np.float32),
        [1.0, 2.0],
    ]
    with fit_checkpoint(path) as checkpoint:
        log = checkpoint.begin("x")
        for n, value in enumerate(values):
            log.append("é", n, 0, value)
    with fit_checkpoint(path) as checkpoint:
        released = checkpoint.begin("x").released
    for n, (value, (name, index, place, back)) in enumerate(zip(values, released, strict=True)):
        assert (name, index, place) == ("é", n, 0)
        assert np.asarray(value).dtype == back.dtype
        assert np.asarray(value).shape == back.shape
        assert np.asarray(value, order="C").tobytes() == back.tobytes()
        assert back.flags.c_contiguous
    assert all(type(part) is int for part in released[0][1:3])


def test_only_numbers_are_released(path):
    with fit_checkpoint(path) as checkpoint:
        log = checkpoint.begin("x")
        for value in (np.array([{}]), np.array(["x"]), np.array([1j]), np.zeros(2, "M8[s]")):
            with pytest.raises(CheckpointError, match="must be numbers"):
                log.append("sums", 0, 0, value)


def digest_of(*parts):
    return hashlib.blake2b(b"".join(parts), digest_size=32).digest()


def header(identity, version=1):
    start = b"SKDPMFCK" + struct.pack("<H", version) + digest_of(identity.encode())
    return start + digest_of(start)


def record(previous, head, array, **settings):
    """The slow twin: bytes of a record after a digest."""
    file = io.BytesIO()
    np.save(file, array, **settings)
    text = json.dumps(head).encode()
    body = struct.pack("<I", len(text)) + text + file.getvalue()
    length = struct.pack("<Q", len(body))
    frame = length + digest_of(previous, length)[:8]
    return frame + body + digest_of(previous, frame, body)


def with_records(path):
    """A file of three records; return its bytes and where the header and the records end."""
    arrays = np.arange(6.0).reshape(2, 3), np.ones(1), np.arange(3)
    data, ends = header("x"), [len(header("x"))]
    for n, array in enumerate(arrays):
        data += record(data[-32:], ["sums", n, 0, array.size], array)
        ends.append(len(data))
    with fit_checkpoint(path) as checkpoint:
        log = checkpoint.begin("x")
        for n, array in enumerate(arrays):
            log.append("sums", n, 0, array)
    assert path.read_bytes() == data
    return data, ends


def n_released(path):
    """How many values the file gives, or None if it is refused; in no case others."""
    try:
        log = ReleaseLog(str(path), "x")
    except CheckpointError:
        return None
    sizes = [values.size for *_, values in log.released]
    log.close()
    assert sizes == [6, 1, 3][: len(sizes)]
    return len(sizes)


def test_a_file_that_ends_early_gives_what_is_there_in_full(path):
    data, ends = with_records(path)
    for size in range(len(data)):
        path.write_bytes(data[:size])
        kept = max((n for n, end in enumerate(ends) if end <= size), default=0)
        assert n_released(path) == kept
        assert path.read_bytes() == data[: ends[kept]]  # and goes on from there


def test_every_changed_byte_is_noticed(path):
    """Also where the file ends early, so that a changed length cannot pass for a crash."""
    data, ends = with_records(path)
    rng = random.Random(0)
    for at in range(len(data)):
        size = rng.choice([len(data), rng.randint(at + 1, len(data))])
        changed = bytearray(data[:size])
        changed[at] ^= 1 << rng.randrange(8)
        path.write_bytes(changed)
        kept = max((n for n, end in enumerate(ends) if end <= size), default=0)
        found = n_released(path)
        # refused; or the change is in what the crash left of the last record, or the header
        dropped = ends[kept] if size >= ends[0] else 0
        assert found is None or (found == kept and at >= dropped)
        assert found is not None or path.read_bytes() == changed


@pytest.mark.parametrize("tail", [bytes(100), b"\xff" * 100, b"SKDPMFCK" * 20])
def test_what_follows_the_last_record_is_no_crash(path, tail):
    data, _ = with_records(path)
    path.write_bytes(data + tail)
    with pytest.raises(CheckpointError, match="must be as it was written, and the record at byte"):
        toy_fit_named_x(path)


def toy_fit_named_x(path):
    with fit_checkpoint(path) as checkpoint:
        checkpoint.begin("x")


def test_swapped_records_are_refused(path):
    data, ends = with_records(path)
    parts = [data[a:b] for a, b in zip([0, *ends], ends, strict=False)]
    for order in ((0, 2, 1, 3), (0, 1, 3), (0, 1, 2, 2, 3), (0, 2)):
        path.write_bytes(b"".join(parts[n] for n in order))
        with pytest.raises(CheckpointError, match="and the record at byte"):
            toy_fit_named_x(path)


def test_other_formats_and_other_files_are_refused_and_kept(tmp_path, path):
    newer = header("x", version=2)
    for data, message in (
        (newer, "has the checkpoint format 2, and this version of skdpmf reads 1"),
        (newer + b"something else", "has the checkpoint format 2"),
        (b"SQLite format 3\0" + bytes(500), "must be a checkpoint, and is another file"),
        (b"hello", "must be a checkpoint, and is another file"),
        (header("x")[:-1] + b"x", "must be as it was written, and its header is not"),
    ):
        path.write_bytes(data)
        with pytest.raises(CheckpointError, match=re.escape(message)):
            toy_fit_named_x(path)
        assert path.read_bytes() == data
    for other, message in ((tmp_path, "Is a directory"), (tmp_path / "no" / "x", "No such file")):
        with pytest.raises(CheckpointError, match=message):
            toy_fit_named_x(other)


def test_no_system_without_locks(path, monkeypatch):
    monkeypatch.setattr(_record_file, "fcntl", None)
    with pytest.raises(CheckpointError, match="must be on a system with POSIX file locks"):
        toy_fit_named_x(path)
    assert not path.exists()


class Evil:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def test_no_pickle_is_executed(tmp_path, path):
    planted = np.array([Evil(tmp_path / "executed")], dtype=object)
    start = header("x")
    path.write_bytes(start + record(start[-32:], ["sums", 0, 0, 1], planted, allow_pickle=True))
    with fit_checkpoint(path) as checkpoint:
        log = checkpoint.begin("x")
        with pytest.raises(ValueError, match="allow_pickle=False"):
            _ = log.released
    assert not (tmp_path / "executed").exists()


def test_what_is_in_the_file(tmp_path, path):
    """Released values, and neither key nor exact sums; nobody else may read it."""
    key, exact = derived_key(11), np.array([0.0, 2.0])  # the second sums of a first round
    ledger = new_ledger(tmp_path)
    interrupted(path, ledger, N, seed=11)
    data = path.read_bytes()
    assert not any(secret in data for secret in (key, key.hex().encode(), exact.tobytes()))
    assert path.stat().st_mode & 0o777 == 0o600
    with fit_checkpoint(path) as checkpoint:
        log = checkpoint.begin("a toy fit")
        log.charge(ledger, PLAN)
        released = log.released
    for *_, values in released:
        assert values.tobytes() in data
    sizes = sum(values.nbytes for *_, values in released)
    assert len(data) < sizes + 400 * (len(released) + 1)


def test_the_length_of_a_record_is_public(tmp_path):
    """It does not depend on the values: that the disk is full at a release tells nothing of it."""
    sizes = set()
    for n, value in enumerate((np.zeros(50), np.full(50, np.pi), np.full(50, -np.inf))):
        with fit_checkpoint(tmp_path / str(n)) as checkpoint:
            checkpoint.begin("x").append("sums", 0, 0, value)
        sizes.add((tmp_path / str(n)).stat().st_size)
    assert len(sizes) == 1
