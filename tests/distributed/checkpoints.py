"""A small fit with a checkpoint, processes that are killed at any of its steps, and their disk."""

import contextlib
import os
import shutil
import signal
import traceback
from pathlib import Path

import numpy as np
import pytest

from skdpmf.distributed.checkpoint import fit_checkpoint
from skdpmf.privacy import PrivacyBudget as Budget
from skdpmf.privacy import ReleasePlan
from skdpmf.privacy.plan import Release
from skdpmf.privacy.sampler.noise import NoiseSource, derived_key

ROUNDS, PLACES = 2, (0, 2)
N = ROUNDS * len(PLACES)  # releases
PLAN = ReleasePlan(Budget(1.0, 1e-5), (Release("sums", "sums", (4,), 1.0, 20.0, ROUNDS),))
TERMS = {"sensitivity": 1.0, "noise_multiplier": 20.0, "bound": 100.0}


def toy_fit(path, ledger=None, use=None, seed=None, step=lambda: None):
    """Release sums of pieces that follow from the ones before; `use` is told of every value."""
    source = NoiseSource(None if seed is None else derived_key(seed))
    with fit_checkpoint(path) as checkpoint:
        log = checkpoint.begin("a toy fit")
        charged = contextlib.nullcontext() if ledger is None else log.charge(ledger, PLAN)
        released = iter(log.released)
        with charged:
            model = np.zeros(4)
            for t in range(ROUNDS):
                pieces = source.blocks(name="sums", index=t, shape=(4,), **TERMS)
                for place in PLACES:
                    known = next(released, None)
                    if known is None:
                        log.assert_current()
                        step()
                        # exact: a function of what was released before
                        exact = np.round(0.5 * model[place : place + 2]) + [t, place]
                        value = pieces.release(place, exact)
                        step()
                        log.append("sums", t, place, value)
                    else:
                        assert known[:3] == ("sums", t, place)
                        value = known[3]
                    step()
                    if use is not None:
                        use(t, place, value)
                    model[place : place + 2] += value
            log.finish()
        step()
    return model


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


class Outside:
    """A file of what the world has seen, one line a value, which no crash takes back."""

    def __init__(self, path):
        self.path = Path(path)
        self.path.touch()

    def __call__(self, t, place, value):
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(f"{t} {place} {' '.join(map(float.hex, value))}\n")

    def values(self):
        """The distinct values seen of each release."""
        seen = {}
        for line in self.path.read_text().splitlines():
            t, place, *value = line.split()
            seen.setdefault((int(t), int(place)), set()).add(tuple(value))
        return seen


class Clock:
    """Kills this process at its k-th step; writes, syncs and commits are steps themselves.

    The file as it was last synced is kept beside it: what a power failure leaves.
    """

    def __init__(self, path, k):
        self.path, self.k, self.n = str(path), k, 0

    def __call__(self):
        self.n += 1
        if self.n == self.k:
            os.kill(os.getpid(), signal.SIGKILL)

    def install(self):
        """Patch this (forked) process."""
        from skdpmf.books import ledger

        pwrite, fsync, unlink, transaction = os.pwrite, os.fsync, os.unlink, ledger.transaction

        def writing(file, data, at):
            self()
            if self.n + 1 == self.k:
                pwrite(file, memoryview(data)[: len(data) // 2], at)
            self()
            n = pwrite(file, data, at)
            self()
            return n

        def syncing(file):
            self()
            fsync(file)
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(file), os.stat(self.path)):  # not its folder
                    shutil.copy(self.path, f"{self.path}.synced")
            self()

        def unlinking(path):
            self()
            unlink(path)
            self()

        @contextlib.contextmanager
        def committing(path, **settings):
            if settings.get("write"):
                self()
            with transaction(path, **settings) as connection:
                yield connection
                if settings.get("write"):
                    self()
            if settings.get("write"):
                self()

        os.pwrite, os.fsync, os.unlink, ledger.transaction = writing, syncing, unlinking, committing


def power_failure(path):
    """Leave of the file what was synced."""
    synced = Path(f"{path}.synced")
    if synced.exists():
        shutil.copy(synced, path)
    else:
        Path(path).unlink(missing_ok=True)


def forked(task):
    """Run a task in a forked process; return the process."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            task()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    return child


def ends_well(child):
    """Wait for a process; return False if it was killed, and raise if it failed."""
    status = os.waitpid(child, 0)[1]
    assert not os.WIFEXITED(status) or os.WEXITSTATUS(status) == 0
    return os.WIFEXITED(status)


def killed_fit(path, ledger, outside, k, seed=None):
    """Fit in a process that is killed at its k-th step; return whether it ended before."""

    def task():
        clock = Clock(path, k)
        clock.install()
        toy_fit(path, ledger, outside, seed, clock)

    return ends_well(forked(task))
