"""Fits in a Dask cluster: to the bit the models of fits in memory."""

import os
import pickle
import signal
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.base import clone

from skdpmf import (
    DPALS,
    AdaptiveWeightALS,
    CacheSGDFactorizer,
    Clicks,
    DPCovarianceRecommender,
    DPItemMeans,
    DPMFSampler,
    LocalDPGDDR,
    PrivacyBudget,
    PrivacyLedger,
)
from skdpmf.data import ParquetRatings, RatingMatrix, make_ratings, ratings_to_matrix
from skdpmf.exceptions import PrivacyParameterError
from skdpmf.preprocessing import DPItemSelector
from skdpmf.privacy import blocks, frame
from skdpmf.privacy import clipped_sums as sums
from skdpmf.privacy.blocks import Blocks
from skdpmf.privacy.sampler.noise import NoiseSource
from skdpmf.privacy.users import Users
from tests.matrices import dense
from tests.systems import needs_posix

from .test_base import Recorder, needs_callbacks

config = pytest.importorskip("dask.config")
da = pytest.importorskip("dask.array")
distributed = pytest.importorskip("distributed")
pytest.importorskip("pyarrow")

MUCH, WEAK = PrivacyBudget(8.0, 1e-5), PrivacyBudget(50.0, 1e-5)
RATING, PURE = PrivacyBudget(4.0, 1e-5, unit="rating"), PrivacyBudget(4.0, unit="rating")
SEED = {"random_state": 0}
ALS = {"n_components": 3, "max_iter": 3, **SEED}
CLICKS = {"feedback": "implicit", "n_components": 3, "max_iter": 2, **SEED}
FITS = {
    "item means": DPItemMeans(MUCH, **SEED),
    "item means, Laplace": DPItemMeans(PURE, **SEED),
    "selector": DPItemSelector(MUCH, **SEED),
    "pooled, features": AdaptiveWeightALS(
        MUCH, item_features=np.random.default_rng(2).normal(size=(40, 3)), **ALS
    ),
    "pooled, subset": AdaptiveWeightALS(MUCH, max_ratings_per_user=4, **ALS),
    "dpals": AdaptiveWeightALS(MUCH, solver="dpals", **ALS),
    "dpals, tail": AdaptiveWeightALS(
        MUCH, solver=DPALS(weighting="tail"), max_ratings_per_user=4, **ALS
    ),
    "clicks": AdaptiveWeightALS(WEAK, **CLICKS),
    "clicks, dpals": AdaptiveWeightALS(WEAK, solver="dpals", **CLICKS),
    "clicks, item-item": DPCovarianceRecommender(WEAK, feedback=Clicks(weighting="log"), **SEED),
    "every step": DPMFSampler(MUCH, n_components=3, max_iter=4, **SEED),
    "covariance by user": DPCovarianceRecommender(MUCH, n_components=3, **SEED),
    "covariance by rating": DPCovarianceRecommender(
        RATING, n_components=3, predictor="knn", **SEED
    ),
    "covariance, Laplace": DPCovarianceRecommender(PURE, noise="laplace", n_components=3, **SEED),
}
N_USERS = 7 * 1024 + 100
CUTS = {1: [], 3: [2500, 5000], 7: [1000, 2048, 3100, 4000, 5000, 6200]}


@pytest.fixture(scope="module")
def workers():
    idle = {"worker.profile.enabled": False, "admin.tick.interval": "1s"}  # costs of waiting
    with (
        config.set({f"distributed.{name}": value for name, value in idle.items()}),
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None
        ) as cluster,
    ):
        yield cluster


@pytest.fixture
def client(workers):
    with distributed.Client(workers, timeout=120) as own:
        yield own


def ratings(n_users=N_USERS):
    """Ratings with empty rows and a rating outside of the range among them."""
    X = sparse.csr_array(make_ratings(n_users, 40, n_ratings=8 * n_users, random_state=1))
    row = np.repeat(np.arange(n_users), np.diff(X.indptr))
    keep = row % 50 != 7
    X.data[3] = 9.0
    return sparse.csr_array((X.data[keep], (row[keep], X.indices[keep])), shape=X.shape)


def lazy(X, n_blocks=3):
    """The matrix in Dask."""
    dask, n = pytest.importorskip("dask"), X.shape[0]
    ends = [0, *(end * n // N_USERS for end in CUTS[n_blocks]), n]
    meta = sparse.csr_array((0, X.shape[1]))
    return da.concatenate(
        [
            da.from_delayed(dask.delayed(X[a:b]), (b - a, X.shape[1]), meta=meta)
            for a, b in pairwise(ends)
        ]
    )


def values_for(name):
    X = ratings()
    return (X > 3.5).astype(float) if name.startswith("clicks") else X


def assert_same(model, other):
    """The same released values and statement."""
    names = "item_means_", "components_", "counts_", "support_", "covariance_", "covariance_items_"
    found = [name for name in names if hasattr(other, name)]
    assert found == [name for name in names if hasattr(model, name)] != []
    for name in found:
        np.testing.assert_array_equal(getattr(model, name), getattr(other, name), err_msg=name)
    assert str(model.privacy_spent_) == str(other.privacy_spent_)


@pytest.mark.parametrize("name", FITS)
def test_a_cluster_gives_the_model_of_one_process(name, client):
    X, n_blocks = values_for(name), 3 if name == "clicks" else 7  # which has both below
    assert_same(clone(FITS[name]).fit(lazy(X, n_blocks)), clone(FITS[name]).fit(X))


@pytest.mark.slow
@pytest.mark.parametrize("n_workers", [1, 2, 3])
def test_neither_workers_nor_blocks_change_a_bit(n_workers, workers, client):
    workers.scale(n_workers)
    client.wait_for_workers(n_workers, timeout=300)
    for name in ("dpals, tail", "clicks", "covariance, Laplace"):
        X = values_for(name)
        whole = clone(FITS[name]).fit(X)
        for n_blocks in CUTS:
            assert_same(clone(FITS[name]).fit(lazy(X, n_blocks)), whole)
    workers.scale(2)


@needs_posix
def test_a_worker_that_is_killed_in_round_3(client, tmp_path, monkeypatch):
    """Same model, one entry in the ledger."""
    ledgers = [
        PrivacyLedger(tmp_path / name, PrivacyBudget(9.0, 1e-5), allow_seeded=True) for name in "ab"
    ]
    one, other = (clone(FITS["pooled, subset"]).set_params(budget__ledger=own) for own in ledgers)
    stored = ParquetRatings.write(tmp_path / "ratings", ratings(3000), rows_per_part=700)
    one.fit(ratings(3000))
    pids, real = client.run(os.getpid), Users.map

    def killing(self, function, *args, **public):
        rounds.append(function.__name__ == "weighted_residuals")
        if rounds[-1] and sum(rounds) == 3:
            os.kill(min(pids.values()), signal.SIGKILL)
        return real(self, function, *args, **public)

    rounds = []
    monkeypatch.setattr(Users, "map", killing)
    assert_same(other.fit(stored), one)
    assert sum(rounds) >= 3
    client.wait_for_workers(2, timeout=300)
    assert set(client.run(os.getpid).values()) != set(pids.values())
    assert [entry["status"] for entry in ledgers[1].report().entries] == ["done"]


@pytest.mark.parametrize("kind", ["sparse", "dense", "on disk", "labelled", "table"])
def test_what_goes_in(kind, client, tmp_path, monkeypatch):
    """Matrices and tables of Dask, and ratings on disk, which the client never reads."""
    X, model = ratings(3000), FITS["item means"]
    names = [f"film {j}" for j in range(40)]
    people = [f"person {i}" for i in range(3000)]
    labels = (people, names) if kind in ("labelled", "table") else ()
    whole = clone(model).fit(known := RatingMatrix(X, *labels) if labels else X)
    if kind == "dense":
        matrix = da.from_array(dense(X), chunks=(1100, 15))
    elif kind == "on disk":
        matrix = ParquetRatings.write(tmp_path / "ratings", X, rows_per_part=700)
    elif kind == "table":
        dd, (row, column) = pytest.importorskip("dask.dataframe"), X.nonzero()
        given = {"user": np.array(people)[row], "item": np.array(names)[column], "rating": X.data}
        table = dd.from_pandas(pd.DataFrame(given).sample(frac=1.0, random_state=0), npartitions=4)
        with pytest.raises(ValueError, match="users=None must be ids for a table of Dask"):
            ratings_to_matrix(table)
        matrix = ratings_to_matrix(table, users=people, items=names)
    else:
        matrix = RatingMatrix(lazy(X), *labels) if labels else lazy(X)
    with monkeypatch.context() as patch:
        patch.setattr(ParquetRatings, "_matrix", None)
        patch.setattr(ParquetRatings, "_first_ratings", None)
        found = clone(model).fit(matrix)
    assert_same(found, whole)
    assert found.recommend({names[0] if labels else 0: 5.0}, n=3)[0].shape == (1, 3)
    if labels:
        assert list(found.catalogue_["item"]) == names
        assert_same(*(whole.refresh(rows, people="new") for rows in (matrix, known)))


@pytest.mark.slow
def test_personal_levels_go_with_their_rows(client):
    X, model = ratings(3000), DPMFSampler(MUCH, n_components=3, max_iter=1, **SEED)
    levels = np.linspace(0.0, 8.0, 3000)
    whole = clone(model).fit(X, user_epsilon=levels)
    assert_same(clone(model).fit(lazy(X), user_epsilon=levels), whole)


def test_people_left_out_go_with_their_rows(client, tmp_path):
    X, people, found = ratings(3000), [f"person {i}" for i in range(3000)], []
    for where, matrix in (("memory", X), ("cluster", lazy(X))):
        ledger = PrivacyLedger(
            tmp_path / where, PrivacyBudget(20.0, 1e-4), at_most=1, allow_seeded=True
        )
        budget = PrivacyBudget(1.0, 1e-5, ledger=ledger)
        DPItemMeans(budget, **SEED).fit(RatingMatrix(X[:900], people[:900]))
        found.append(DPItemMeans(budget, **SEED).fit(RatingMatrix(matrix, people)))
    assert_same(*found)


def test_workers_get_neither_key_nor_plan_nor_ledger(client, monkeypatch, tmp_path):
    """Down goes what is public or released, and the key of single rows; up come sums."""
    down, up, keys = [], [], []
    real_each, real_total, real_key = Blocks.each, Blocks.total, frame.fresh_key

    def each(self, function, *args):
        down.append(pickle.dumps([one for one in args if not isinstance(one, Blocks)]))
        return real_each(self, function, *args)

    def total(self):
        made = real_total(self)
        up.append(made.nbytes)
        return made

    def key():
        keys.append(real_key())
        return keys[-1]

    monkeypatch.setattr(Blocks, "each", each)
    monkeypatch.setattr(Blocks, "total", total)
    monkeypatch.setattr(frame, "fresh_key", key)
    ledger = PrivacyLedger(tmp_path / "ledger", PrivacyBudget(9.0, 1e-5))
    model = clone(FITS["pooled, subset"]).set_params(budget__ledger=ledger)
    traffic, few = [], {"random_state": None, "max_iter": 1}
    for n_users in (2000, 4000):
        del down[:], up[:]
        model.set_params(budget__epsilon=2.0, **few).fit(lazy(ratings(n_users)))
        secret, row_key = keys[-1], NoiseSource(keys[-1]).row_key()
        assert any(row_key in given for given in down)
        for given in down:
            assert secret not in given
            for word in (b"ReleasePlan", b"PrivacyLedger", b"NoiseSource"):
                assert word not in given
        traffic.append((len(down), sum(up)))
    assert traffic[0] == traffic[1], "traffic does not depend on the number of ratings"


@pytest.mark.parametrize("message", ["raised ValueError: a map", "other values among"])
def test_a_map_that_fails_in_a_worker_ends_the_fit(message, client, monkeypatch):
    """By the error of one process, and no log of a worker holds a rating."""

    def function(rows):
        if rows.nnz and message.startswith("raised"):
            raise ValueError(f"rating {rows.data[0]}")
        return rows.data - rows.data.sum()

    def release(self, curator, *_, **__):
        terms = curator.users.map(function)
        total = sums.item_scalars(curator.users, terms, clip=1.0, grid=2.0**-30)
        return curator.release("item counts", total)

    monkeypatch.setattr(DPItemMeans, "_release", release)
    for X in (ratings(3000), lazy(ratings(3000))):
        with pytest.raises(PrivacyParameterError, match=message) as caught:
            DPItemMeans(MUCH).fit(X)
        assert caught.value.__cause__ is caught.value.__context__ is None
    assert "Compute Failed" not in str(client.get_worker_logs())


def test_ctrl_c_ends_the_fit_and_frees_its_blocks(client, monkeypatch, tmp_path):
    ledger = PrivacyLedger(tmp_path / "ledger", PrivacyBudget(9.0, 1e-5))
    real, calls = Blocks.total, []

    def interrupted(self):
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return real(self)

    monkeypatch.setattr(Blocks, "total", interrupted)
    with pytest.raises(KeyboardInterrupt):
        AdaptiveWeightALS(PrivacyBudget(1.0, 1e-5, ledger=ledger)).fit(lazy(ratings(3000)))
    assert [entry["status"] for entry in ledger.report().entries] == ["failed"]


@needs_callbacks
def test_callbacks_hear_of_each_round_once(client):
    recorder = Recorder()
    clone(FITS["dpals"]).set_callbacks(recorder).fit(lazy(ratings(3000)))
    ended = [event[1:] for event in recorder.events if event[0] == "end"]
    assert ended == [("round", 0), ("round", 1), ("round", 2), ("fit", 0)]


def with_infinity():
    X = ratings(3000)
    X.data[-1] = np.inf
    return X


def test_bad_matrices_and_other_code_cost_nothing(client, tmp_path, monkeypatch):
    ledger = PrivacyLedger(tmp_path / "ledger", PrivacyBudget(9.0, 1e-5))
    budget = PrivacyBudget(1.0, 1e-5, ledger=ledger)
    unknown = da.from_array(np.ones((40, 5)), chunks=(20, 5))
    unknown = unknown[unknown[:, 0] > 0.0]
    lying = lazy(ratings(50), 1).map_blocks(lambda chunk: chunk, chunks=((40,), (40,)))
    for X, message in (
        (lazy(with_infinity()), "contains infinity"),
        (unknown, "must be a dask.array of users x items"),
        (lying, r"has a block of shape \(50, 40\), which must be \(40, 40\)"),
    ):
        with pytest.raises(ValueError, match=message):
            DPItemMeans(budget).fit(X)
    with monkeypatch.context() as patch:
        patch.setattr(blocks, "code_version", lambda: "another")
        with pytest.raises(RuntimeError, match="a worker runs skdpmf"):
            DPItemMeans(budget).fit(lazy(ratings(3000)))
    assert ledger.report().entries == ()
    with pytest.warns(UserWarning, match="rating_range=.* must be the scale"):
        DPItemMeans(budget, rating_range=(6.0, 10.0)).fit(lazy(ratings(3000)))


def test_other_ratings_at_the_path_are_refused(client, tmp_path):
    X = ratings(200)
    stored = ParquetRatings.write(tmp_path / "ratings", X)
    X.data[-1] = 6.0 - X.data[-1]  # the files have the same sizes
    ParquetRatings.write(tmp_path / "ratings", X, overwrite=True)
    with pytest.raises(ValueError, match="now holds other"):
        DPItemMeans(MUCH).fit(stored)


def test_who_needs_all_ratings_says_so(client, tmp_path):
    X = ratings(200)
    stored = ParquetRatings.write(tmp_path / "ratings", X)
    for model in (
        AdaptiveWeightALS(PrivacyBudget.nonprivate(), n_components=2, max_iter=2),
        DPMFSampler(MUCH, guarantee="posterior", max_iter=1),
        LocalDPGDDR(PrivacyBudget(4.0)),
    ):
        for matrix, remedy in ((lazy(X, 1), r"X\.compute\(\)"), (stored, r"X\.read_rows\(\)")):
            with pytest.raises(ValueError, match=f"(?s)must be in memory for .* Pass {remedy}"):
                clone(model).fit(matrix)
    with pytest.raises(ValueError, match="for an estimator with a budget"):
        CacheSGDFactorizer(2).fit(lazy(X, 1))


@pytest.mark.slow
def test_the_example_runs():
    example = Path(__file__).parents[2] / "examples" / "dask_cluster.py"
    told = subprocess.run(
        [sys.executable, example], check=True, timeout=600, capture_output=True, text=True
    )
    assert "Strength: epsilon 4, delta 1e-05" in told.stdout


def test_without_a_client():
    X = ratings(200)
    with pytest.raises(ValueError, match=r"make a dask\.distributed\.Client first, or pass"):
        DPItemMeans(MUCH).fit(lazy(X, 1))
    assert_same(
        clone(FITS["item means"]).fit(X), clone(FITS["item means"]).fit(lazy(X, 1).compute())
    )
