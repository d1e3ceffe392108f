"""A fit that survives its process: kills at every step, power failures, copies, damaged files."""

import os
import random
import shutil
import signal
import threading
import time

import numpy as np
import pytest

from skdpmf.distributed import _record_file
from skdpmf.distributed.checkpoint import (
    CHECKPOINT_ASSUMPTION,
    active_checkpoint,
    fit_checkpoint,
)
from skdpmf.exceptions import BudgetExceededError, CheckpointError, LedgerError
from tests.books.ledgers import forks, gaussian_plan, new_ledger
from tests.distributed.checkpoints import (
    PLACES,
    PLAN,
    ROUNDS,
    LostClusterError,
    N,
    Outside,
    crash_after,
    ends_well,
    forked,
    interrupted,
    killed_fit,
    power_failure,
    states,
    toy_fit,
)

pytestmark = pytest.mark.skipif(_record_file.fcntl is None, reason="needs POSIX locks")


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
                time.sleep(20)

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
                    if log._file.records:
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

    def work(log):
        with pytest.raises(CheckpointError, match="this is a forked process"):
            log.append("sums", 0, 0, np.zeros(2))

    def hold():
        with fit_checkpoint(path) as checkpoint:
            log = checkpoint.begin("a toy fit")
            assert ends_well(forked(lambda: work(log)))
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


# Its purpose


def refused_in_a_fork(checkpoint):
    with pytest.raises(CheckpointError, match="or another process: give every private fit"):
        checkpoint.begin("x")


@forks
def test_it_is_for_one_fit(tmp_path, path):
    with fit_checkpoint(path) as checkpoint:
        assert active_checkpoint() is checkpoint
        with fit_checkpoint(tmp_path / "inner") as inner:
            assert active_checkpoint() is inner
            inner.begin("y")
        assert ends_well(forked(lambda: refused_in_a_fork(checkpoint)))
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
        for use in (lambda: log.released, log.finish, log.assert_current):  # not charged yet
            with pytest.raises(CheckpointError, match="must be the ledger that the fit was"):
                use()
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
