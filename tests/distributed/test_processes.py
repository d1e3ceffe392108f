"""Blocks of users in processes: of loky and of a dask cluster."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import joblib
import numpy as np
import pytest
from sklearn.base import clone

from skdpmf import DPItemMeans, PrivacyBudget, PrivacyLedger
from skdpmf.data import ParquetRatings
from skdpmf.distributed import pool
from tests.systems import needs_posix

from ..estimators.test_base import Recorder, needs_callbacks
from .common import FITS, MUCH, assert_same, ratings, record_traffic

# those whose code is not that of another one in this list
MODELS = ("selector", "pooled, subset", "dpsgd", "clicks", "every step", "local")
MODELS += ("covariance by user",)


@pytest.fixture(scope="module")
def whole():
    """Fits on all users, made when they are asked for."""
    made = {}

    def fitted(name):
        if name not in made:
            made[name] = clone(FITS[name]).fit(values_for(name))
        return made[name]

    return fitted


@pytest.fixture(scope="module")
def dask_client():
    """A cluster of two processes."""
    distributed = pytest.importorskip("distributed")
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        yield client


@pytest.fixture
def dask_config(dask_client):
    with joblib.parallel_config(backend="dask"):
        yield dask_client


@pytest.fixture
def loky_config():
    with joblib.parallel_config(backend="loky", n_jobs=2):
        yield


def values_for(name):
    X = ratings()
    return (X > 3.5).astype(float) if name.startswith("clicks") else X


def kill_once(monkeypatch, pids, at):
    """Kill one worker process in the middle of the request of this number; return the requests."""
    seen, original = [], pool.Pool._map

    def killing(self, tasks):
        seen.append(len(tasks))
        if len(seen) == at:
            victim = sorted(pids())[0]
            threading.Timer(0.02, os.kill, (victim, signal.SIGKILL)).start()
        return original(self, tasks)

    monkeypatch.setattr(pool.Pool, "_map", killing)
    return seen


def children():
    """Worker processes of loky, but for the one that tracks its resources."""
    psutil = pytest.importorskip("psutil")
    return [p.pid for p in psutil.Process().children() if "popen_loky" in " ".join(p.cmdline())]


@pytest.mark.parametrize("name", MODELS)
def test_dask(name, whole, dask_config):
    with record_traffic() as steps:
        assert_same(clone(FITS[name]).fit(values_for(name)), whole(name))
    assert steps


def test_both_workers_hold_blocks(dask_config):
    seen = []
    original = pool.Pool._end_runs

    def note(self):
        seen.append(set(self._owners.values()))
        original(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pool.Pool, "_end_runs", note)
        clone(FITS["item means"]).fit(ratings())
    assert len(seen[-1]) == 2
    held = dask_config.run(lambda: len(pool._RUNS))
    assert set(held.values()) == {0}, "runs are ended with their fit"


@pytest.mark.slow
@needs_posix
def test_a_dask_worker_that_is_killed_in_a_round(whole, dask_config, tmp_path, monkeypatch):
    """Same model, one entry in the ledger."""
    stored = ParquetRatings.write(tmp_path / "ratings", ratings(), rows_per_part=100)
    ledger, other = (
        PrivacyLedger(tmp_path / name, PrivacyBudget(9.0, 1e-5), allow_seeded=True)
        for name in ("ledger", "other")
    )
    pids = dask_config.run(os.getpid)
    seen = kill_once(monkeypatch, pids.values, at=6)
    model = clone(FITS["pooled"]).set_params(budget__ledger=ledger).fit(stored)
    assert len(seen) > 6
    assert set(dask_config.run(os.getpid).values()) != set(pids.values())
    with joblib.parallel_config(backend="threading"):
        alone = clone(FITS["pooled"]).set_params(budget__ledger=other).fit(ratings())
    assert_same(model, alone)
    (entry,) = ledger.report().entries
    assert entry["status"] == "done"


@pytest.mark.parametrize("name", ["pooled", "local"])
def test_loky(name, whole, loky_config):
    assert_same(clone(FITS[name]).fit(values_for(name)), whole(name))


@needs_posix
def test_a_loky_worker_that_is_killed_in_a_round(whole, loky_config, monkeypatch):
    seen = kill_once(monkeypatch, children, at=5)
    assert_same(clone(FITS["pooled"]).fit(ratings()), whole("pooled"))
    assert len(seen) > 5


def test_a_worker_with_other_code_is_refused_before_anything_is_spent(
    tmp_path, loky_config, monkeypatch
):
    ledger = PrivacyLedger(tmp_path / "ledger", PrivacyBudget(9.0, 1e-5))
    monkeypatch.setattr(pool, "code_version", lambda: "skdpmf another with NumPy 1.0")
    with pytest.raises(RuntimeError, match=r"a worker runs skdpmf [0-9a-f]+ with NumPy"):
        DPItemMeans(PrivacyBudget(1.0, 1e-5, ledger=ledger)).fit(ratings())
    assert ledger.report().entries == ()


@needs_callbacks
def test_callbacks_hear_of_each_round_once(loky_config):
    """They stay in the process that calls fit, and need no pickle."""
    recorder = Recorder()
    recorder.lock = threading.Lock()
    clone(FITS["pooled"]).set_callbacks(recorder).fit(ratings())
    assert [event[1:] for event in recorder.events if event[0] == "end"] == [
        ("round", 0),
        ("round", 1),
        ("round", 2),
        ("fit", 0),
    ]


@pytest.mark.slow
def test_the_example_with_dask_runs():
    pytest.importorskip("distributed")
    example = Path(__file__).parents[2] / "examples" / "dask_cluster.py"
    told = subprocess.run(
        [sys.executable, example], check=True, timeout=240, capture_output=True, text=True
    )
    assert "Strength: epsilon 4, delta 1e-05" in told.stdout


def test_an_error_in_a_process_is_the_fits(tmp_path, loky_config):
    stored = ParquetRatings.write(tmp_path / "ratings", ratings(), rows_per_part=400)
    ledger = PrivacyLedger(tmp_path / "ledger", PrivacyBudget(9.0, 1e-5))
    part = max((tmp_path / "ratings").glob("*.parquet"))
    content = bytearray(part.read_bytes())
    content[len(content) // 3] ^= 1
    part.write_bytes(content)
    with pytest.raises(ValueError, match=part.name):
        DPItemMeans(PrivacyBudget(1.0, 1e-5, ledger=ledger)).fit(stored)
    (entry,) = ledger.report().entries
    assert entry["status"] == "failed"


def test_which_configurations_spread(loky_config):
    assert pool.n_processes() == 2
    with joblib.parallel_config(backend="threading", n_jobs=2):
        assert pool.n_processes() == 0
    with joblib.parallel_config(backend="loky", n_jobs=1):
        assert pool.n_processes() == 0
    inside = joblib.Parallel(n_jobs=2)(joblib.delayed(pool.n_processes)() for _ in range(2))
    assert inside == [0, 0]


def test_without_configuration_nothing_is_spread():
    assert pool.n_processes() == 0


def test_noise_of_two_fits_differs(loky_config):
    first, second = (DPItemMeans(MUCH).fit(ratings()).item_means_ for _ in range(2))
    assert not np.array_equal(first, second)
