"""CacheSGDFactorizer from disk, and killed and resumed: the same model as in memory, in one go."""

import os
import signal
import subprocess
import sys

import numpy as np
import pytest

from skdpmf.data import ParquetRatings, make_ratings, parquet_ratings
from skdpmf.exceptions import RatingStoreError
from skdpmf.mechanisms.sgd import cache_sgd as solver
from tests.estimators.test_cache_sgd import cut_at, fingerprint, fitted
from tests.mechanisms.sgd.test_cache_sgd import CrashError, after_in_round, fail, own_threads

pytest.importorskip("pyarrow")
NAN = float("nan")


@pytest.fixture(scope="module", name="X")
def ratings():
    return make_ratings(300, 40, density=0.3, random_state=0)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ratings"


# -- from disk -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("part_rows", "group_rows"), [(60, 4096), (128, 64), (1000, 300)])
def test_files_give_the_bits_of_the_matrix(part_rows, group_rows, path, monkeypatch):
    """Where batches are row groups, and mean and spread (of 1 and 5) have no rounding."""
    rng = np.random.default_rng(0)
    known = np.sort(rng.permutation(300 * 40)[:3000])
    X = np.full(300 * 40, NAN)
    X[known] = rng.permutation(np.repeat([1.0, 5.0], 1500))
    X = X.reshape(300, 40)
    cut_at(min(part_rows, group_rows), 8, monkeypatch)
    monkeypatch.setattr(parquet_ratings, "_GROUP_ROWS", group_rows)
    one = fitted(X)
    two = fitted(ParquetRatings.write(path, X, rows_per_part=part_rows))
    assert fingerprint(one) == fingerprint(two)
    np.testing.assert_array_equal(one.loss_curve_, two.loss_curve_)
    np.testing.assert_array_equal(one.item_counts_, two.item_counts_)
    assert one.intercept_ == two.intercept_ == 3.0
    np.testing.assert_array_equal(one.predict(X), two.predict(X))


def test_predictions_take_rows_not_stores(X, path):
    store = ParquetRatings.write(path, X)
    model = fitted(store)
    np.testing.assert_allclose(model.transform(store.read_rows()), model.transform(X), rtol=1e-12)
    for method in (model.transform, model.predict, model.score, model.recommend):
        with pytest.raises(TypeError, match="ParquetRatings, which only fit reads") as error:
            method(store)
        assert "X.read_rows(0, 1)" in str(error.value)


def damage(file):
    """Alter a byte among the ratings of a part."""
    content = bytearray(file.read_bytes())
    content[40] ^= 0x40
    file.write_bytes(bytes(content))


@pytest.mark.parametrize("change", ["altered", "cut", "gone", "replaced"])
def test_a_file_that_changes_between_rounds_ends_the_fit(change, X, path, monkeypatch):
    """The process stays, whatever is in the file's place: nothing of it is mapped."""
    store = ParquetRatings.write(path, X, rows_per_part=60)
    file = path / "rows-000000000240.parquet"

    def alter():
        if change == "altered":
            damage(file)
        elif change == "cut":
            os.truncate(file, 100)
        else:
            file.unlink()
            if change == "replaced":
                file.write_bytes((path / "rows-000000000000.parquet").read_bytes())

    after_in_round(30, alter, monkeypatch)  # in the fourth round
    with pytest.raises(RatingStoreError, match=file.name):
        fitted(store)
    assert own_threads() == []


KILLED = """
import sys, time
import numpy as np
from skdpmf.mechanisms.sgd import cache_sgd as solver
from skdpmf.mechanisms.sgd.cache_sgd import Snapshot
from tests.estimators.test_cache_sgd_disk import fit_with_snapshots
store, snapshot, saves, half = sys.argv[1:]
left = int(saves)

def stop():
    print("kill me", flush=True)
    time.sleep(600)

def save(self, *content, original=Snapshot.save):
    global left
    left -= 1
    if left == 0 and half == "half":
        np.savez = lambda file, **_: (file.write(b"PK half"), file.flush(), stop())
    original(self, *content)
    if left == 0:
        stop()

Snapshot.save = save
fit_with_snapshots(store, snapshot)
"""


# -- killed and resumed ----------------------------------------------------------------------------


def fit_with_snapshots(store, snapshot, **params):
    """15 parts in batches of one, a snapshot every 4, that is, also across rounds."""
    X = ParquetRatings(store)
    options = {"max_iter": 5, "snapshot_path": snapshot, "snapshot_every": 4}
    return fitted(X if params.pop("from_disk", True) else X.read_rows(), **(options | params))


def kill_a_fit(store, snapshot, saves, half=False):
    """Run a fit in a process of its own, and end it by SIGKILL at a snapshot, or within one."""
    command = [sys.executable, "-c", KILLED, *map(str, (store, snapshot, saves))]
    with subprocess.Popen(
        [*command, "half" if half else "whole"], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout.readline() == "kill me\n"
        finally:
            process.kill()
        assert process.wait(60) == -signal.SIGKILL


@pytest.mark.skipif(os.name != "posix", reason="signals as on POSIX")
@pytest.mark.parametrize(("saves", "half"), [(6, False), (10, True)])
def test_a_killed_fit_goes_on_to_the_same_bits(saves, half, X, path, tmp_path):
    """Once after a snapshot inside of a round, once in the middle of writing one."""
    ParquetRatings.write(path, X, rows_per_part=20)
    expected = fit_with_snapshots(path, tmp_path / "other")
    snapshot = tmp_path / "fit.npz"
    kill_a_fit(path, snapshot, saves, half)
    assert snapshot.is_file()
    updates = count_updates(lambda: fit_with_snapshots(path, snapshot))
    resumed = updates.pop()
    assert fingerprint(resumed) == fingerprint(expected)
    np.testing.assert_array_equal(resumed.loss_curve_, expected.loss_curve_)
    assert not snapshot.exists()
    # Four saves a round, after batches 4, 8, 12 and 15; the unfinished one does not count.
    rounds, rest = divmod(saves - half, 4)
    assert updates == [75 - 15 * rounds - 4 * rest]


def count_updates(fit):
    """Batches that a fit with one thread updates, and its result."""
    starts = []
    with pytest.MonkeyPatch.context() as patch:
        update = solver.update_batch
        patch.setattr(
            solver, "update_batch", lambda *a, **k: (starts.append(a[4]), update(*a, **k))[1]
        )
        result = fit()
    return [len(starts) // 2, result]


@pytest.fixture
def left_over(X, path, tmp_path, monkeypatch):
    """The snapshot of a fit that failed in its second round."""
    ParquetRatings.write(path, X, rows_per_part=20)
    snapshot = tmp_path / "fit.npz"
    with monkeypatch.context() as patch:
        after_in_round(50, fail, patch)
        with pytest.raises(CrashError):
            fit_with_snapshots(path, snapshot)
    assert snapshot.is_file()
    return snapshot


@pytest.mark.parametrize(
    "change",
    [
        {"n_components": 9},
        {"max_iter": 6},
        {"learning_rate": 0.06},
        {"learning_rate_decay": 0.9},
        {"alpha": 0.05},
        {"fit_bias": False},
        {"random_state": 1},
        {"rating_range": (1.0, 4.0)},
        {"from_disk": False},
    ],
    ids=str,
)
def test_a_snapshot_of_other_settings_is_refused(change, left_over, path):
    content = left_over.read_bytes()
    with pytest.raises(ValueError, match="a snapshot of another fit") as error:
        fit_with_snapshots(path, left_over, **change)
    assert str(left_over) in str(error.value)
    assert "delete the file to start anew, or pass another" in str(error.value)
    assert left_over.read_bytes() == content
    assert own_threads() == []


def test_a_snapshot_of_other_ratings_is_refused(left_over, X, path):
    other = X.copy()
    other.data[17] = 6.0 - other.data[17] + (other.data[17] == 3.0)
    ParquetRatings.write(path, other, rows_per_part=20, overwrite=True)
    with pytest.raises(ValueError, match="a snapshot of another fit"):
        fit_with_snapshots(path, left_over)
