"""The rounds of CacheSGDFactorizer: batches, threads, snapshots, and what a fit leaves behind."""

import signal
import threading
import time

import numpy as np
import pytest
from threadpoolctl import threadpool_info

from skdpmf import CacheSGDFactorizer, Snapshots
from skdpmf.data import make_ratings
from skdpmf.data.validation import as_rating_matrix
from skdpmf.kernels.sgd import factor_width
from skdpmf.mechanisms.sgd import cache_sgd as solver
from skdpmf.mechanisms.sgd.cache_sgd import Settings, Snapshot, batch_rows, starting_factors
from skdpmf.mechanisms.sgd.rating_batches import MatrixBatches, Workers

from .threads import affinity

SETTINGS = Settings(6, 5, 0.07, 0.8, 0.04, True)
BOUNDS = (1.0, 5.0)
ROWS = 40


@pytest.fixture(scope="module", name="R")
def ratings():
    return as_rating_matrix(make_ratings(200, 30, density=0.4, random_state=0))


def run(R, settings=SETTINGS, n_threads=1, rows=ROWS, start=None, rounds=None, **options):
    with Workers(n_threads) as workers:
        batches = MatrixBatches(R, BOUNDS, rows, workers)

        def random_start():
            return starting_factors(R.shape, settings.n_components, n_threads, 0)

        descent = solver.Descent(batches, settings, start or random_start, workers, **options)
        return descent.run(range(settings.max_iter) if rounds is None else rounds)


def assert_same(one, two, rtol=0.0):
    np.testing.assert_allclose(one.losses, two.losses, rtol=rtol, atol=0.0)
    assert one.learning_rate == two.learning_rate
    for name, array in one.factors.arrays().items():
        np.testing.assert_array_equal(array, two.factors.arrays()[name], err_msg=name)


# -- batches and start -----------------------------------------------------------------------------


@pytest.mark.parametrize("k", [1, 16, 17, 128, 2048, 10**6])
def test_a_batch_of_users_fills_the_caches(k):
    """Their factors one cache, for a small k their biases another; for a large k one user."""
    rows = batch_rows(10**9, k, 1)
    size = 4 * factor_width(k)
    assert 1 <= rows <= solver.MOST_USERS
    assert rows * size <= solver.CACHE_BYTES or rows == 1
    assert rows == solver.MOST_USERS or (rows + 1) * size > solver.CACHE_BYTES


@pytest.mark.parametrize("k", [16, 512])
@pytest.mark.parametrize("n_threads", [2, 3])
def test_no_thread_has_a_batch_more_than_another(n_threads, k):
    """Neither a short last batch nor an odd number: threads would wait for one."""
    for n_users in (6040, 69_878, 480_189):
        rows = batch_rows(n_users, k, n_threads)
        n_batches = -(-n_users // rows)
        assert n_batches % n_threads == 0
        assert n_batches * rows - n_users < rows / 2


# -- rounds ----------------------------------------------------------------------------------------


def test_workers_start_at_different_items_and_miss_none(R, monkeypatch):
    """Each batch is done once, whoever does it: the runs from its own first item on, then the rest.

    Each thread writes to a spare row of its own.
    """
    calls = {}
    update = solver.update_batch

    def recorded(*args, **rates):
        start, spare, n_runs, runs = args[4], args[5], len(args[7]), args[11:13]
        calls.setdefault(start, []).append((spare, n_runs, *runs))
        time.sleep(0.001)  # both workers have a turn
        return update(*args, **rates)

    monkeypatch.setattr(solver, "update_batch", recorded)
    run(R, Settings(6, 1, 0.05, 0.8, 0.04, True), n_threads=2, rows=5)
    assert sorted(calls) == list(range(0, 200, 5))
    spares = set()
    for (spare, n_runs, first, end), (spare_too, _, begin, stop) in calls.values():
        assert spare == spare_too
        spares.add(spare)
        assert (end, begin, stop) == (n_runs, 0, first)
        assert first == (0 if spare == 200 else n_runs // 2)
    assert spares == {200, 201}


def test_divergence_starts_all_over_at_half_the_rate(R):
    """The same as a fit with the rate that it ends with."""
    starts = []

    def start():
        starts.append(None)
        return starting_factors(R.shape, 6, 1, 0)

    trained = run(R, Settings(6, 5, 5.0, 0.8, 0.04, True), start=start)
    halvings = np.log2(5.0 / trained.learning_rate)
    assert halvings == len(starts) - 1 > 1
    assert_same(trained, run(R, Settings(6, 5, trained.learning_rate, 0.8, 0.04, True)))
    # no rate was given up without need
    twice = run(R, Settings(6, 5, 2 * trained.learning_rate, 0.8, 0.04, True))
    assert twice.learning_rate == trained.learning_rate


@pytest.mark.parametrize(("value", "rated"), [(np.nan, True), (1e30, True), (np.inf, False)])
def test_a_model_that_has_blown_up_is_noticed(value, rated, R):
    """By its errors, or, at an item that no rating of the round meets again, by itself."""
    X = R.toarray()
    X[X == 0] = np.nan
    if not rated:
        X[:, 3] = np.nan
    broken = [value]

    def start():
        factors = starting_factors(R.shape, 6, 1, 0)
        if broken:
            factors.V[3, 2] = broken.pop()
        return factors

    trained = run(as_rating_matrix(X), start=start)
    assert trained.learning_rate == SETTINGS.learning_rate / 2
    assert np.isfinite(trained.factors.V).all()


# -- snapshots -------------------------------------------------------------------------------------


class CrashError(Exception):
    pass


class Recording(Snapshot):
    """Crashes after a number of saves."""

    left = -1

    def save(self, progress, arrays):
        super().save(progress, arrays)
        self.left -= 1
        if self.left == 0:
            raise CrashError


@pytest.mark.parametrize(("n", "rate"), [(1, 0.07), (2, 0.07), (3, 5.0), (None, 5.0)])
def test_a_crash_anywhere_is_resumed_bit_for_bit(n, rate, R, tmp_path):
    """Crashes one save later each time, until the fit is through."""
    settings = Settings(6, 3, rate, 0.8, 0.04, True)
    expected = run(R, settings, snapshot=Snapshot(tmp_path / "t", "p"), snapshot_every=n)
    for crash in range(1, 60):
        snapshot = Recording(tmp_path / "s", "p")
        snapshot.left = crash
        try:
            trained = run(R, settings, snapshot=snapshot, snapshot_every=n)
        except CrashError:
            assert not own_threads()
            snapshot = Recording(tmp_path / "s", "p")
            trained = run(R, settings, snapshot=snapshot, snapshot_every=n)
            assert_same(trained, expected)
            assert list(tmp_path.iterdir()) == []
        else:
            break
    assert crash > (8 if rate > 1 else 3)
    assert_same(trained, expected)


# -- what a fit leaves behind ----------------------------------------------------------------------


def own_threads():
    return [t.name for t in threading.enumerate() if t.name.startswith("skdpmf")]


def keeps_denormals():
    """Whether this thread computes with numbers below the normal ones."""
    tiny = np.full(64, 1e-310)
    small = np.full(64, 1e-40, np.float32)
    return bool(((tiny * 0.5) > 0).all() and ((small * np.float32(0.5)) > 0).all())


def after_in_round(n, action, monkeypatch):
    """Do something instead of the n-th update, in the worker that would have made it."""
    count = iter(range(10**9))
    update = solver.update_batch

    def patched(*args, **rates):
        if next(count) == n:
            action()
        return update(*args, **rates)

    monkeypatch.setattr(solver, "update_batch", patched)


def fail():
    raise CrashError("in a round")


def interrupt():
    """Ctrl-C: the signal's handler runs in the main thread."""
    signal.raise_signal(signal.SIGINT)


@pytest.mark.usefixtures("ctrl_c")
@pytest.mark.parametrize("n_jobs", [1, 2, 4])
@pytest.mark.parametrize("action", [None, fail, interrupt])
def test_a_fit_leaves_nothing_behind(n_jobs, action, R, tmp_path, monkeypatch):
    """After success, an error in a worker and Ctrl-C: no threads, pins, modes or half a model."""
    before = affinity(), own_threads(), threading.active_count()
    assert before[1] == []
    pools = [(pool["filepath"], pool["num_threads"]) for pool in threadpool_info()]
    model = CacheSGDFactorizer(
        4, max_iter=50, n_jobs=n_jobs, snapshots=Snapshots(path=tmp_path / "s")
    )
    with monkeypatch.context() as patch:
        if action is not None:
            after_in_round(40, action, patch)
            with pytest.raises(CrashError if action is fail else KeyboardInterrupt):
                model.fit(R)
            assert not hasattr(model, "components_")
        else:
            model.fit(R)
    assert (affinity(), own_threads(), threading.active_count()) == before
    assert keeps_denormals()
    assert pools == [(pool["filepath"], pool["num_threads"]) for pool in threadpool_info()]
    model.fit(R)  # as if nothing had been: from the snapshot, if there is one
    assert model.loss_curve_.shape == (50,)
    assert list(tmp_path.iterdir()) == []


def test_a_failing_warm_fit_keeps_the_last_model(R, monkeypatch):
    model = CacheSGDFactorizer(4, random_state=0).fit(R)
    before = model.components_.copy(), model.decision_function(R)
    after_in_round(3, fail, monkeypatch)
    for method in (model.fit, model.partial_fit):
        after_in_round(3, fail, monkeypatch)
        with pytest.raises(CrashError):
            method(R)
        np.testing.assert_array_equal(model.components_, before[0])
        np.testing.assert_array_equal(model.decision_function(R), before[1])
        assert model.user_factors_.shape == (200, 4)
