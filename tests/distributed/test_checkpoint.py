"""A fit that survives its process: kills at every step, power failures, copies, damaged files."""

import hashlib
import io
import json
import os
import random
import re
import shutil
import signal
import struct
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from skdpmf.distributed import _record_file
from skdpmf.distributed.checkpoint import (
    CHECKPOINT_ASSUMPTION,
    ReleaseLog,
    active_checkpoint,
    fit_checkpoint,
)
from skdpmf.exceptions import BudgetExceededError, CheckpointError, LedgerError
from skdpmf.privacy import _ledger_file
from skdpmf.privacy.noise import derived_key
from tests.distributed.checkpoints import (
    PLACES,
    PLAN,
    ROUNDS,
    N,
    Outside,
    ends_well,
    forked,
    killed_fit,
    power_failure,
    toy_fit,
)
from tests.privacy.ledgers import forks, gaussian_plan, new_ledger

pytestmark = pytest.mark.skipif(_record_file.fcntl is None, reason="needs POSIX locks")


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """A kill loses nothing that was written, whether or not it is on the disk."""
    monkeypatch.setattr(_ledger_file, "_SYNCHRONOUS", "OFF")
    monkeypatch.setattr(os, "fsync", lambda file: None)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "fit.ckpt"


class LostClusterError(Exception):
    pass


def crash_after(n):
    """A `use` that raises when it is told of the n-th value."""
    told = []

    def use(t, place, value):
        told.append(value)
        if len(told) == n:
            raise LostClusterError

    return use


def interrupted(path, ledger=None, n=3, seed=None):
    with pytest.raises(LostClusterError):
        toy_fit(path, ledger, crash_after(n), seed)


def states(ledger):
    return [entry["status"] for entry in ledger.report().entries]


# Crashes


def check_seen(outside, model):
    """Every release was seen with one value, and the model is made of those."""
    seen = outside.values()
    assert set(seen) == {(t, place) for t in range(ROUNDS) for place in PLACES}
    assert {len(values) for values in seen.values()} == {1}
    total = np.zeros(4)
    for (_, place), (value,) in seen.items():
        total[place : place + 2] += [float.fromhex(x) for x in value]
    assert np.array_equal(model, total)


@forks
@pytest.mark.parametrize("charged", [False, True])
def test_killed_at_every_step(tmp_path, charged):
    """No release is ever seen with two values, and it is paid once."""
    done, k, resumed = False, 0, 0
    while not done:
        k += 1
        path, outside = tmp_path / f"{k}.ckpt", Outside(tmp_path / f"{k}.seen")
        ledger = new_ledger(tmp_path, name=f"{k}.ledger") if charged else None
        done = killed_fit(path, ledger, outside, k)
        removed = len(outside.values()) == N and not path.exists()
        if not removed:
            check_seen(outside, toy_fit(path, ledger, outside))
        assert not path.exists()
        if charged:
            assert states(ledger) in (["done"], *([["reserved"]] if removed else []))
            resumed += len(ledger.report().entries[0]["resumed"])
            assert ledger.verify() == 1
    assert k > 60
    assert not charged or resumed > 50  # nearly all kills come after the entry


@forks
@pytest.mark.parametrize("seed", range(4))
def test_killed_again_and_again(tmp_path, path, seed):
    """The same model under the same seed, as if nothing had happened."""
    rng, ledger = random.Random(seed), new_ledger(tmp_path, allow_seeded=True)
    outside, kills = Outside(tmp_path / "seen"), 0
    while not killed_fit(path, ledger, outside, rng.randint(1, 40), seed=7) and path.exists():
        kills += 1
    assert kills >= 2
    check_seen(outside, toy_fit(tmp_path / "other.ckpt", seed=7))
    assert len(states(ledger)) == 1
    times = ledger.report().entries[0]["resumed"]
    assert 0 < len(times) <= kills
    assert times == sorted(times)
    assert f"resumed {len(times)} x" in str(ledger.report())


@forks
@pytest.mark.parametrize("resumed", [False, True])
def test_a_power_failure_takes_back_what_was_not_synced(tmp_path, resumed):
    """After a kill, or after a second one: no value is seen twice."""
    rng, lost = random.Random(0), 0
    for k in range(8, 36):  # every step of two releases
        path, outside = tmp_path / f"{k}.ckpt", Outside(tmp_path / f"{k}.seen")
        assert not killed_fit(path, None, outside, k)
        if resumed:  # and mostly killed after what the first one wrote was handed out
            assert not killed_fit(path, None, outside, rng.randint(4, 14))
        size = path.stat().st_size
        power_failure(path)
        lost += not path.exists() or path.stat().st_size < size
        check_seen(outside, toy_fit(path, None, outside))
    assert lost > 3


def test_an_exception_is_a_crash_too(tmp_path, path):
    ledger = new_ledger(tmp_path)
    interrupted(path, ledger, 2)
    assert states(ledger) == ["reserved"]
    interrupted(path, ledger, 3)
    values = []
    toy_fit(path, ledger, lambda *value: values.append(value))
    assert len(values) == N
    assert states(ledger) == ["done"]
    assert len(ledger.report().entries[0]["resumed"]) == 2


def test_a_full_disk(path):
    """What cannot be written is not used, and nothing of it stays."""

    def task():
        import resource

        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        with fit_checkpoint(path) as checkpoint:
            log = checkpoint.begin("x")
            log.append("sums", 0, 0, np.arange(10.0))
            size = path.stat().st_size
            resource.setrlimit(resource.RLIMIT_FSIZE, (size + 50, size + 50))
            with pytest.raises(CheckpointError, match="make room") as caught:
                log.append("sums", 1, 0, np.arange(10.0))
            assert "Nothing is released that is not on it" in str(caught.value)
            assert path.stat().st_size == size
            with pytest.raises(CheckpointError, match="a release failed"):
                log.append("sums", 2, 0, np.arange(10.0))

    assert ends_well(forked(task))
    with fit_checkpoint(path) as checkpoint:
        assert [values.size for *_, values in checkpoint.begin("x").released] == [10]


# Copies


def test_an_older_copy_is_refused(tmp_path, path):
    ledger = new_ledger(tmp_path)
    interrupted(path, ledger, 2)
    shutil.copy(path, tmp_path / "older")
    interrupted(path, ledger, 3)
    match = r"history of 2 releases must continue the 3 that entry 1 .* older copy"
    with pytest.raises(LedgerError, match=match):
        toy_fit(tmp_path / "older", ledger)
    toy_fit(path, ledger)
    match = r"entry 1 .* must be 'reserved' to be resumed, and is 'done'"
    with pytest.raises(LedgerError, match=match):
        toy_fit(tmp_path / "older", ledger)
    assert states(ledger) == ["done"]


def test_a_copy_stops_the_one_that_runs(tmp_path, path):
    """Two from the same point: the last that resumed goes on, the other stops before it draws."""
    ledger, seen = new_ledger(tmp_path), []
    interrupted(path, ledger, 2)
    shutil.copy(path, tmp_path / "copy")

    def use(t, place, value):
        seen.append((t, place))
        if len(seen) == 3:  # by now this one has noted a third value, which the copy lacks
            with pytest.raises(LedgerError, match="must continue the 3"):
                toy_fit(tmp_path / "copy", ledger)
            shutil.copy(path, tmp_path / "newer")
            toy_fit(tmp_path / "newer", ledger)

    with pytest.raises(LedgerError, match=r"run=2 of entry 1 .* and the fit is complete"):
        toy_fit(path, ledger, use)
    assert len(seen) == 3
    assert states(ledger) == ["done"]


def test_a_zombie_that_has_drawn_hands_nothing_out(tmp_path, path):
    """It is stopped after the draw, too: between the check and the note others may resume."""
    ledger, seen, steps = new_ledger(tmp_path), [], []

    def step():
        steps.append(None)
        if len(steps) == 2:  # the first value is drawn
            shutil.copy(path, tmp_path / "copy")
            toy_fit(tmp_path / "copy", ledger)

    with pytest.raises(LedgerError, match="the fit is complete: this run is to be given up"):
        toy_fit(path, ledger, lambda *value: seen.append(value), step=step)
    assert seen == []
    with pytest.raises(LedgerError, match="is 'done'"):
        toy_fit(path, ledger)


def test_a_zombie_does_not_end_the_entry(tmp_path, path):
    ledger = new_ledger(tmp_path)
    interrupted(path, ledger, N)
    shutil.copy(path, tmp_path / "copy")

    def use(t, place, value):
        if (t, place) == (1, 2):
            interrupted(tmp_path / "copy", ledger, N)

    with pytest.warns(UserWarning, match=r"stays 'reserved': run=2 .* resumed by another"):
        toy_fit(path, ledger, use)
    assert states(ledger) == ["reserved"]
    toy_fit(tmp_path / "copy", ledger)
    assert states(ledger) == ["done"]


def test_without_a_ledger_copies_are_an_assumption(tmp_path, path):
    interrupted(path, n=2)
    shutil.copy(path, tmp_path / "copy")
    models = [toy_fit(file) for file in (path, tmp_path / "copy")]
    assert not np.array_equal(*models)  # two noises on one sum
    assert "no copy of the checkpoint was resumed" in CHECKPOINT_ASSUMPTION


# Processes


@forks
def test_a_file_is_one_fits_at_a_time(tmp_path, path):
    """While one runs all others are refused; when it is killed one goes on."""
    ledger, (read, write) = new_ledger(tmp_path), os.pipe()

    def hold():
        told = crash_after(2)

        def use(*value):
            try:
                told(*value)
            except LostClusterError:
                os.write(write, b".")
                time.sleep(60)

        toy_fit(path, ledger, use)

    holder = forked(hold)
    os.close(write)
    assert os.read(read, 1) == b"."

    def refused():
        with pytest.raises(CheckpointError, match="one that is running has it: wait"):
            toy_fit(path, ledger)

    refused()
    assert ends_well(forked(refused))
    os.kill(holder, signal.SIGKILL)
    os.waitpid(holder, 0)
    toy_fit(path, ledger)
    assert states(ledger) == ["done"]


@forks
def test_a_race_for_one_file(tmp_path, path):
    """Of processes that resume at once each goes on with the file or is refused."""
    ledger = new_ledger(tmp_path, 50.0)
    interrupted(path, ledger, 2)
    outside = Outside(tmp_path / "seen")

    def race():
        while path.exists():  # whoever comes after the end would begin anew
            try:
                with fit_checkpoint(path) as checkpoint:
                    log = checkpoint.begin("a toy fit")
                    if log.released:
                        with log.charge(ledger, PLAN):
                            n = len(log.released)
                            if n == N:
                                log.finish()
                            else:
                                value = np.random.default_rng().normal(size=2)
                                log.append("sums", n // 2, 2 * (n % 2), value)
                                outside(n // 2, 2 * (n % 2), value)
                                raise LostClusterError
                    else:
                        path.unlink()
            except (CheckpointError, LostClusterError):
                continue

    children = [forked(race) for _ in range(4)]
    assert all(map(ends_well, children))
    seen = outside.values()
    assert sorted(seen) == [(1, 0), (1, 2)]
    assert {len(values) for values in seen.values()} == {1}
    assert states(ledger) == ["done"]


@forks
def test_a_worker_that_survives_its_parent_does_not_hold_the_file(path):
    (read, write), (alive, end) = os.pipe(), os.pipe()

    def work(log, checkpoint):
        with pytest.raises(CheckpointError, match="this is a forked process"):
            log.append("sums", 0, 0, np.zeros(2))
        with pytest.raises(CheckpointError, match="or another process: give every"):
            checkpoint.begin("a toy fit")

    def hold():
        with fit_checkpoint(path) as checkpoint:
            log = checkpoint.begin("a toy fit")
            assert ends_well(forked(lambda: work(log, checkpoint)))
            if os.fork():
                os.write(write, b".")
            else:  # a worker that goes on until the test ends
                os.close(end)
            os.read(alive, 1)
            os._exit(0)

    holder = forked(hold)
    os.close(write)
    assert os.read(read, 1) == b"."
    os.close(alive)
    with pytest.raises(CheckpointError, match="one that is running"):
        toy_fit(path)  # a fork that ended took nothing of the lock with it
    os.kill(holder, signal.SIGKILL)
    os.waitpid(holder, 0)
    toy_fit(path)
    os.close(end)


def test_a_file_that_was_removed_while_it_was_opened(path, monkeypatch):
    """The lock of a removed file is worth nothing: the one in its place counts."""
    flock, calls = _record_file.fcntl.flock, []

    def late(file, how):
        calls.append(file)
        if len(calls) == 1:
            path.unlink()
        flock(file, how)

    monkeypatch.setattr(_record_file.fcntl, "flock", late)
    with fit_checkpoint(path) as checkpoint:
        checkpoint.begin("x")
        assert len(calls) == 2
        assert path.exists()


def test_a_file_that_is_moved_stops_the_fit(tmp_path, path):
    with fit_checkpoint(path) as checkpoint:
        log = checkpoint.begin("x")
        path.rename(tmp_path / "elsewhere")
        for use in (log.assert_current, lambda: log.append("sums", 0, 0, np.zeros(2))):
            with pytest.raises(CheckpointError, match="was moved or deleted"):
                use()
        path.touch()
        with pytest.raises(CheckpointError, match="was moved or deleted"):
            log.assert_current()


# What it is for


def test_it_is_for_one_fit(tmp_path, path):
    with fit_checkpoint(path) as checkpoint:
        assert active_checkpoint() is checkpoint
        with fit_checkpoint(tmp_path / "inner") as inner:
            assert active_checkpoint() is inner
            inner.begin("y")
        checkpoint.begin("x").finish()
        with pytest.raises(CheckpointError, match="must be the checkpoint of one fit, and this is"):
            checkpoint.begin("x")
    assert active_checkpoint() is None
    assert not path.exists()


def test_a_block_without_a_fit_warns(path):
    seen = []

    def block():
        with fit_checkpoint(path):
            thread = threading.Thread(target=lambda: seen.append(active_checkpoint()))
            thread.start()
            thread.join()

    with pytest.warns(UserWarning, match="must be used by one private fit in its block"):
        block()
    assert seen == [None]
    with pytest.raises(LostClusterError), fit_checkpoint(path):
        raise LostClusterError
    assert not path.exists()


def test_another_fit_is_refused(path):
    interrupted(path)
    before = path.read_bytes()
    with fit_checkpoint(path) as checkpoint:
        with pytest.raises(CheckpointError, match="must be that of the fit, and the file is of"):
            checkpoint.begin("another fit")
        assert len(checkpoint.begin("a toy fit").released) == 3
    assert path.read_bytes() == before


def test_a_ledger_stays_the_same(tmp_path, path):
    ledger, other = new_ledger(tmp_path), new_ledger(tmp_path, name="other")
    interrupted(path, ledger)
    with pytest.raises(CheckpointError, match="ledger=None must be the ledger that the fit was"):
        toy_fit(path)
    with pytest.raises(LedgerError, match="does not know it after 3 releases"):
        toy_fit(path, other)
    assert states(other) == []
    path.unlink()
    interrupted(path)
    with pytest.raises(CheckpointError, match="must be None for a fit that was begun without"):
        toy_fit(path, ledger)
    assert states(ledger) == ["reserved"]


def test_a_refused_charge_leaves_nothing_behind(tmp_path, path):
    ledger = new_ledger(tmp_path, 0.05)
    for _ in range(2):
        with pytest.raises(BudgetExceededError):
            toy_fit(path, ledger)
    assert states(ledger) == []
    toy_fit(path, new_ledger(tmp_path, name="larger"))


def test_another_plan_is_refused(tmp_path, path):
    ledger = new_ledger(tmp_path)
    interrupted(path, ledger)
    with fit_checkpoint(path) as checkpoint:
        log = checkpoint.begin("a toy fit")
        with pytest.raises(LedgerError, match=r"releases=.* must be .*, with which entry 1"):
            log.charge(ledger, gaussian_plan(0.1))


def test_a_place_is_released_once(path):
    for _ in range(2):
        with fit_checkpoint(path) as checkpoint:
            log = checkpoint.begin("x")
            if not log.released:
                log.append("sums", 0, 4, np.zeros((2, 3)))
            for place, size in ((4, 6), (0, 5), (9, 1), (6, 2), (0, 20)):
                with pytest.raises(CheckpointError, match="each place has one noise"):
                    log.append("sums", 0, place, np.zeros(size))
    with fit_checkpoint(path) as checkpoint:
        log = checkpoint.begin("x")
        for name, index, place in (("sums", 0, 0), ("sums", 0, 10), ("sums", 1, 4), ("x", 0, 4)):
            log.append(name, index, place, np.zeros(4))
        assert [key[:3] for key in log.released][1:] == [
            ("sums", 0, 0),
            ("sums", 0, 10),
            ("sums", 1, 4),
            ("x", 0, 4),
        ]


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


# The file


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
    interrupted(path, new_ledger(tmp_path, allow_seeded=True), N, seed=11)
    data = path.read_bytes()
    assert not any(secret in data for secret in (key, key.hex().encode(), exact.tobytes()))
    assert path.stat().st_mode & 0o777 == 0o600
    with fit_checkpoint(path) as checkpoint:
        released = checkpoint.begin("a toy fit").released
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


def test_threads_share_a_log(path):
    with fit_checkpoint(path) as checkpoint:
        log = checkpoint.begin("x")
        tasks = [
            threading.Thread(
                target=lambda t=t: [
                    log.append("sums", 0, 20 * t + i, [t + i / 10]) for i in range(20)
                ]
            )
            for t in range(4)
        ]
        for task in tasks:
            task.start()
        for task in tasks:
            task.join()
    with fit_checkpoint(path) as checkpoint:
        released = checkpoint.begin("x").released
    assert sorted(place for _, _, place, _ in released) == list(range(80))


def test_a_file_that_cannot_be_removed_costs_no_model(path, monkeypatch):
    def refuse(path):
        raise PermissionError(13, "Permission denied")

    with fit_checkpoint(path) as checkpoint:
        log = checkpoint.begin("x")
        monkeypatch.setattr(os, "unlink", refuse)
        with pytest.warns(UserWarning, match="the fit is complete, delete its file"):
            log.finish()
        monkeypatch.undo()
        with pytest.raises(CheckpointError, match="must be open to be used"):
            log.append("sums", 0, 0, [1.0])
