"""Fits on blocks of users in one process: bit for bit those on all users."""

import threading
import time

import numpy as np
import pytest
from sklearn.base import clone

from skdpmf import AdaptiveWeightALS, DPItemMeans, DPMFSampler, PrivacyBudget, PrivacyLedger
from skdpmf.data import ParquetRatings
from skdpmf.data.parquet_ratings import row_blocks
from skdpmf.data.validation import as_rating_matrix
from skdpmf.distributed import exchange, pool
from skdpmf.estimators.contract import private as fitting
from skdpmf.privacy.sampler.noise import fresh_key

from .common import FITS, LITTLE, MUCH, assert_same, ratings, record_traffic


@pytest.fixture
def blocks(monkeypatch):
    """Fit on so many blocks, all in this process."""

    def use(n):
        monkeypatch.setattr(fitting, "row_blocks", lambda R, _: row_blocks(R, n))
        monkeypatch.setattr(fitting, "_n_tasks", lambda *_: 1)

    return use


@pytest.mark.parametrize("name", FITS)
def test_blocks_give_the_model_of_all_users(name, blocks):
    model, X = FITS[name], ratings()
    if getattr(model, "feedback", "") == "implicit":
        X = (X > 3.5).astype(float)
    whole = clone(model).fit(X)
    blocks(4)
    with record_traffic() as steps:
        assert_same(clone(model).fit(X), whole)
    assert len(steps) >= 2


def test_personal_levels_go_with_their_rows(blocks):
    X, model = ratings(), DPMFSampler(MUCH, n_components=3, max_iter=3, random_state=0)
    levels = np.linspace(0.0, 8.0, X.shape[0])
    whole = clone(model).fit(X, user_epsilon=levels)
    blocks(3)
    assert_same(clone(model).fit(X, user_epsilon=levels), whole)
    other = clone(model).fit(X, user_epsilon=levels[::-1])
    assert not np.array_equal(other.item_means_, whole.item_means_)


def test_ratings_by_reference(tmp_path, blocks):
    pytest.importorskip("pyarrow")
    X, model = ratings(), FITS["pooled"]
    whole = clone(model).fit(X)
    stored = ParquetRatings.write(tmp_path / "ratings", X)
    with pytest.raises(TypeError, match=r"which fit reads; here pass rows"):
        whole.predict(stored)
    assert_same(clone(model).fit(stored), whole)
    blocks(3)
    assert_same(clone(model).fit(stored), whole)


def test_noise_is_drawn_once(blocks, monkeypatch):
    """As many noised values as the plan has, whatever the number of blocks; none in a worker."""
    drawn = []
    original = exchange.NoiseSource.release

    def count(self, statistic, **terms):
        drawn.append(np.size(statistic))
        return original(self, statistic, **terms)

    monkeypatch.setattr(exchange.NoiseSource, "release", count)
    for n in (1, 5):
        blocks(n)
        drawn.clear()
        clone(FITS["dpals"]).fit(ratings())
        expected = sum(np.prod(r.shape) * r.count for r in FITS["dpals"].plan(40).releases)
        assert sum(drawn) == expected


def test_workers_learn_neither_key_nor_exact_sums():
    """What the coordinator tells: released values, starts, and the key of single rows."""
    told = []

    def collect(key, history):
        told[:] = history
        return np.zeros((8,) if key[0] == "digest of the rows" else 3)

    coordinator = exchange.Coordinator(collect, 10)
    empty = as_rating_matrix(np.full((1, 3), np.nan))[:0]
    noise = coordinator.noise(False, fresh_key, empty)
    terms = {"sensitivity": 1.0, "noise_multiplier": 3.0, "bound": 10.0}
    first = noise.release(np.zeros(3), name="sums", **terms)
    noise.release(np.zeros(3), name="more", **terms)
    assert [answer.key[0] for answer in told] == ["key of the rows", "sums"]
    assert told[0].value == noise._source.row_key()
    assert told[0].value != noise._source._NoiseSource__key
    np.testing.assert_array_equal(told[1].value, first)
    with noise.blocks(name="large", shape=(3,), **terms) as stream:
        assert stream.release(0, np.zeros(3)) is not None
    assert coordinator.history[-1].value is None  # nobody needs it
    coordinator = exchange.Coordinator(collect, 10)
    coordinator.noise(True, lambda *data: bytes(32), empty)
    assert coordinator.history[0] == (("digest of the rows", 0, 0), None)


def test_traffic_does_not_depend_on_the_number_of_ratings(blocks):
    blocks(2)
    seen = []
    for n_users in (400, 800):
        with record_traffic() as steps:
            DPItemMeans(MUCH, random_state=0).fit(ratings(n_users))
        seen.append(steps)
    assert seen[0] == seen[1]
    assert all(down <= 8 * 8 * 42 and up <= 8 * 2 * 42 for _, down, up in seen[0])


def test_workers_get_no_ledger(tmp_path, monkeypatch):
    """They may be on machines where the file is not."""
    seen = []

    def note(_, here, runs, n_items):
        seen.extend(run.estimator.budget.ledger for run, _ in runs.values())
        return pool.fit_on_blocks(pool.Pool(0), here, runs, n_items)

    monkeypatch.setattr(fitting, "_n_tasks", lambda *_: 1)
    monkeypatch.setattr(fitting, "fit_on_blocks", note)
    ledger = PrivacyLedger(tmp_path / "ledger", PrivacyBudget(9.0, 1e-5))
    DPItemMeans(PrivacyBudget(1.0, 1e-5, ledger=ledger)).fit(ratings(50))
    assert seen == [None]


def test_no_run_is_left(blocks):
    blocks(3)
    clone(FITS["pooled"]).fit(ratings(100))
    assert not pool._RUNS
    assert_no_block_waits()


def assert_no_block_waits():
    """Threads of runs end, and with them what they hold."""
    for _ in range(100):
        if not any(thread.name == "skdpmf-block" for thread in threading.enumerate()):
            return
        time.sleep(0.05)
    raise AssertionError("threads of blocks are left")


def test_a_reply_that_comes_twice_counts_once(blocks, monkeypatch):
    blocks(3)
    whole, original = clone(FITS["item means"]).fit(ratings()), pool.Pool._map
    monkeypatch.setattr(pool.Pool, "_map", lambda self, tasks: 2 * original(self, tasks))
    assert_same(clone(FITS["item means"]).fit(ratings()), whole)


def test_an_error_of_a_block_is_the_fits(tmp_path, blocks):
    stored = ParquetRatings.write(tmp_path / "ratings", ratings())
    ledger = PrivacyLedger(tmp_path / "ledger", PrivacyBudget(9.0, 1e-5))
    part = next((tmp_path / "ratings").glob("*.parquet"))
    part.write_bytes(part.read_bytes()[:-100])
    budget = PrivacyBudget(1.0, 1e-5, ledger=ledger)
    with pytest.raises(ValueError, match=part.name):
        DPItemMeans(budget).fit(stored)
    assert ledger.report().spent == 0.0  # known before anything was spent


def test_without_noise_all_ratings_stay_together(tmp_path, blocks, monkeypatch):
    pytest.importorskip("pyarrow")
    X = ratings()
    store = ParquetRatings.write(tmp_path / "ratings", X)
    exact = AdaptiveWeightALS(PrivacyBudget.nonprivate(), n_components=2, max_iter=2)
    whole = clone(exact).fit(X)
    np.testing.assert_array_equal(clone(exact).fit(store).item_means_, whole.item_means_)
    monkeypatch.setattr(fitting, "n_processes", lambda: 2)
    np.testing.assert_array_equal(clone(exact).fit(X).item_means_, whole.item_means_)
    for model in (exact, DPMFSampler(LITTLE, guarantee="posterior", max_iter=1)):
        with pytest.raises(ValueError, match="must be a matrix for"):
            clone(model).fit(store)


def test_a_coordinator_and_a_block_that_diverge_say_so():
    run = pool._Run(lambda R, exchange: exchange.total("one", 0, np.zeros(1)), _Rows(), 3, ())
    with pytest.raises(RuntimeError, match=r"a block is at \('one', 0, 0\)"):
        run.sum_at(("other", 0, 0), 0, ())
    run.stop()


def test_two_tasks_of_a_dispatch_do_not_hand_in_a_block_twice():
    """As in a worker with two threads, and after a task that a scheduler ran again."""

    def program(block, own):
        return own.total("one", 0, np.ones(2))

    stop = pool.Stop("fit", 1, ("one", 0, 0), 0, ())
    first = pool.start(stop, {0: (program, _Rows()), 1: (program, _Rows())}, 3)
    assert first.blocks == (0, 1)
    np.testing.assert_array_equal(first.total, [2.0, 2.0])
    owners = {first.process: [0, 1]}
    assert pool.advance(stop, owners, {0, 1}, 0.0).blocks == ()
    later = pool.Stop("fit", 2, ("one", 0, 0), 0, ())
    assert pool.advance(later, owners, {1}, 0.0).blocks == (1,)
    assert pool.advance(later, owners, {0, 1}, 0.0).blocks == (0,)
    assert pool.advance(later, {"another": [0], first.process: [1]}, {0, 1}, 0.0).blocks == ()
    assert set(pool._RUNS) == {("fit", 1)}, "what is another's is let go"
    pool.start(stop, {1: (program, _Rows())}, 3)
    pool.drop("fit", 0.0)
    assert not pool._RUNS
    assert_no_block_waits()


class _Rows:
    first_row = 0


def test_lost_blocks_are_started_again_and_counted_once(monkeypatch):
    model, X = clone(FITS["pooled"]), ratings()
    whole = clone(model).fit(X)
    monkeypatch.setattr(fitting, "_n_tasks", lambda *_: 1)
    monkeypatch.setattr(fitting, "row_blocks", lambda R, _: row_blocks(R, 3))
    original, calls = pool.Pool.collect, []

    def losing(self, key, history):
        calls.append(key)
        if len(calls) % 3 == 0:
            lost = pool._RUNS.pop((self._fit, len(calls) % 2), None)
            if lost is not None:
                lost.stop()
        return original(self, key, history)

    monkeypatch.setattr(pool.Pool, "collect", losing)
    assert_same(model.fit(X), whole)
    assert len(calls) > 6


def test_blocks_that_are_lost_again_and_again_end_the_fit(monkeypatch, blocks):
    blocks(2)
    monkeypatch.setattr(pool, "_WAITS", (0.0, 0.0, 0.0))
    monkeypatch.setattr(pool._Run, "sum_at", lambda *_: None)
    with pytest.raises(RuntimeError, match="2 of 2 blocks of users were lost again and again"):
        DPItemMeans(MUCH).fit(ratings(50))


def test_idle_runs_give_their_rows_back(monkeypatch):
    monkeypatch.setattr(pool, "_IDLE_SECONDS", 0.05)
    run = pool._Run(lambda R, exchange: exchange.total("one", 0, np.zeros(1)), _Rows(), 3, ())
    assert run.sum_at(("one", 0, 0), 0, ()) is not None
    answer = exchange.Answer(("one", 0, 0), np.zeros(1))
    time.sleep(0.3)
    assert run.sum_at(("two", 0, 0), 1, (answer,)) is None
