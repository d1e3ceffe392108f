from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numba import config

from skdpmf.kernels import _lanes, sgd
from skdpmf.kernels.sgd import empty_factors, factor_width, update_batch
from tests.kernels._problems import examples
from tests.reference import sgd as twin

# Without the compiler there is only one path.
PATHS = ["loops"] if config.DISABLE_JIT else ["lanes", "loops"]
SIZES = [2, 4, 8]
N_COMPONENTS = [1, 5, 16, 17, 32, 130, 600, 1100]
TAIL = 16
# Users before and behind the batch's own, and spare rows.
BEFORE, BEHIND, N_SPARE = 3, 2, 2
RATES = {"step": 0.05, "bias_step": 0.04, "penalty": 0.3, "clip": 100.0}


@pytest.fixture(params=PATHS)
def path(request, monkeypatch):
    monkeypatch.setattr(_lanes, "USE_VECTORS", request.param == "lanes")
    return request.param


class Batch(NamedTuple):
    n_users: int
    items: np.ndarray
    indptr: np.ndarray
    users: np.ndarray
    ratings: np.ndarray


class Model(NamedTuple):
    U: np.ndarray
    b: np.ndarray
    V: np.ndarray
    c: np.ndarray

    def copy(self, dtype=np.float32):
        b = None if self.b is None else self.b.astype(dtype)
        copies = Model(*(np.empty(0),) * 4)._replace(b=b, c=self.c.astype(dtype))
        if dtype == np.float64:
            return copies._replace(U=self.U.astype(dtype), V=self.V.astype(dtype))
        return copies._replace(U=aligned_copy(self.U), V=aligned_copy(self.V))


def aligned_copy(factors):
    flat = np.empty(factors.size + 16, np.float32)
    skip = -flat.ctypes.data % 64 // 4
    copy = flat[skip : skip + factors.size].reshape(factors.shape)
    copy[:] = factors
    return copy


def batch_of(runs, n_users, seed=0):
    """A batch from (item, users) pairs; what stands behind the last rating is poisoned."""
    rng = np.random.default_rng(seed)
    lengths = [len(users) for _, users in runs]
    users = np.full(sum(lengths) + TAIL, 65535, np.uint16)
    users[: sum(lengths)] = np.concatenate([np.empty(0, np.uint16), *(u for _, u in runs)])
    ratings = rng.standard_normal(len(users)).astype(np.float32)
    ratings[sum(lengths) :] = np.nan
    return Batch(
        n_users,
        np.array([item for item, _ in runs], np.int32),
        np.concatenate(([0], np.cumsum(lengths))).astype(np.int64),
        users,
        ratings,
    )


def random_batch(seed, n_users=23, n_items=9):
    """Runs from empty to all users, of some of the items."""
    rng = np.random.default_rng(seed)
    items = np.flatnonzero(rng.random(n_items) < 0.8)
    lengths = rng.choice([0, 1, n_users // 2, n_users], len(items), p=[0.2, 0.2, 0.4, 0.2])
    lengths = np.minimum(lengths + rng.integers(0, 3, len(items)), n_users)
    runs = [(j, np.sort(rng.permutation(n_users)[:n])) for j, n in zip(items, lengths, strict=True)]
    return batch_of(runs, n_users, seed)


def random_model(seed, n_users, n_items, k):
    """Factors such that dot products are about 1; rows of nobody in the batch are NaN."""
    rng = np.random.default_rng(seed)
    U, V = empty_factors(BEFORE + n_users + BEHIND + N_SPARE, k), empty_factors(n_items, k)
    b = np.full(len(U), np.nan, np.float32)
    own = slice(BEFORE, BEFORE + n_users)
    U[:] = np.nan
    U[own] = 0
    U[own, :k] = rng.standard_normal((n_users, k)) / k**0.25
    V[:, :k] = rng.standard_normal((n_items, k)) / k**0.25
    b[own] = rng.standard_normal(n_users)
    U[spare_of(U)], b[spare_of(U)] = 0, 0
    return Model(U, b, V, rng.standard_normal(n_items).astype(np.float32))


def spare_of(U):
    return len(U) - 1


def update(model, batch, k, runs=None, start=BEFORE, spare=None, **rates):
    """Run the kernel on the model itself."""
    begin, end = runs or (0, len(batch.items))
    rates = RATES | rates
    return update_batch(
        model.U,
        model.b,
        model.V,
        model.c,
        start,
        spare_of(model.U) if spare is None else spare,
        factor_width(k),
        *batch[1:],
        begin,
        end,
        rates["step"],
        rates["bias_step"],
        rates["penalty"],
        rates["clip"],
        rates.get("weights"),
        rates.get("bound"),
    )


def assert_like_twin(seed, k, size=None, batch=None, tolerance=2e-5, user_bias=True, **rates):
    """Compare kernel and twin on a random problem; returns (before, after)."""
    batch = random_batch(seed) if batch is None else batch
    before = random_model(seed + 1, batch.n_users, 9, k)
    if not user_bias:
        before = before._replace(b=None)
    after, expected = before.copy(), before.copy(np.float64)
    loss = update(after, batch, k, **rates)
    expected_loss = twin.update_batch(
        *expected, BEFORE, *batch[1:], **(RATES | rates), size=size or twin.group_size(k)
    )
    for name, got, wanted in zip(Model._fields, after, expected, strict=True):
        if got is not None:
            np.testing.assert_allclose(got, wanted, rtol=tolerance, atol=tolerance, err_msg=name)
    assert type(loss) is float
    assert loss == pytest.approx(expected_loss, rel=tolerance, abs=tolerance)
    assert (after.U[spare_of(after.U)] == 0).all()
    assert not user_bias or after.b[spare_of(after.U)] == 0
    assert (after.U[BEFORE : BEFORE + batch.n_users, k:] == 0).all()
    assert (after.V[:, k:] == 0).all()
    return before, after


@pytest.mark.parametrize("k", N_COMPONENTS)
def test_any_number_of_components(path, k):
    """With one penalty, and with one for each column of users and of items."""
    assert_like_twin(k, k)
    penalty = np.random.default_rng(0).random((2, factor_width(k)))
    assert_like_twin(k, k, penalty=penalty)


@examples
@given(seed=st.integers(0, 2**16), k=st.integers(1, 40), clip=st.sampled_from([0.5, 100.0]))
def test_any_runs(seed, k, clip):
    choice = _lanes.USE_VECTORS
    try:
        for path in PATHS:
            _lanes.USE_VECTORS = path == "lanes"
            assert_like_twin(seed, k, clip=clip)
    finally:
        _lanes.USE_VECTORS = choice


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("k", [16, 35])
def test_any_group_size(path, size, k, monkeypatch):
    monkeypatch.setattr(sgd, "_group_size", lambda width: size)
    assert_like_twin(7, k, size)
    lengths = range(2 * size + 2)
    runs = [(j % 9, np.arange(n)) for j, n in enumerate(lengths)]
    assert_like_twin(8, k, size, batch_of(runs, 2 * size + 1), clip=1.0)


def random_weights(model, seed=0):
    """Weights of all rows; those of nobody in the batch are NaN, and of spare rows 1."""
    rng = np.random.default_rng(seed)
    weights = rng.choice([0.0, 0.3, 1.0, 2.5], len(model.U)).astype(np.float32)
    weights[np.isnan(model.U[:, 0])] = np.nan
    weights[spare_of(model.U)] = 1
    return weights


@pytest.mark.parametrize("user_bias", [True, False])
@pytest.mark.parametrize("bound", [None, 0.8, np.inf])
@pytest.mark.parametrize("weighted", [True, False])
def test_weights_bound_and_no_user_biases(path, user_bias, bound, weighted):
    """With and without each, in whole and partial groups of all sizes."""
    for seed, k in enumerate([3, 16, 33, 300, 1050] if weighted and bound else [7, 20]):
        weights = random_weights(random_model(seed + 1, 23, 9, k)) if weighted else None
        options = {"user_bias": user_bias, "bound": bound, "weights": weights}
        assert_like_twin(seed, k, **options, clip=1.5)


def test_no_influence_without_weight_bit_for_bit(path):
    """What users of weight 0 rated changes no item and nobody else."""
    batch, k = random_batch(8), 20
    model = random_model(9, batch.n_users, 9, k)
    weights = random_weights(model, 1)
    other = batch._replace(ratings=batch.ratings.copy())
    silent = weights[BEFORE + batch.users[:-TAIL].astype(int)] == 0
    assert 0 < silent.sum() < len(silent)
    other.ratings[:-TAIL][silent] += 7
    one, two = model.copy(), model.copy()
    losses = [update(m, b, k, weights=weights) for m, b in ((one, batch), (two, other))]
    assert losses[0] != losses[1]
    for got, wanted in zip(one, two, strict=True):
        np.testing.assert_array_equal(got, wanted)


def test_a_prediction_that_overflows_moves_nothing(path):
    batch, k = batch_of([(1, np.arange(3))], 3), 4
    before = random_model(5, 3, 9, k)
    before.U[BEFORE + 1, 0], before.V[1, 0] = 1e30, 1e30
    after = before.copy()
    with np.errstate(over="ignore"):
        update(after, batch, k, penalty=0.0, bound=np.inf, weights=np.ones(len(before.U), "f"))
    np.testing.assert_array_equal(after.U[BEFORE + 1], before.U[BEFORE + 1])
    assert np.isfinite(after.V).all()


def test_step_zero_gives_the_loss_and_changes_no_bit(path):
    batch = random_batch(9)
    model = random_model(10, batch.n_users, 9, 20)
    after = model.copy()
    loss = update(after, batch, 20, step=0.0, bias_step=0.0, clip=0.01)
    for got, wanted in zip(after, model, strict=True):
        np.testing.assert_array_equal(got, wanted)
    expected = 0.0
    for run, j in enumerate(batch.items):
        own = slice(batch.indptr[run], batch.indptr[run + 1])
        rows = BEFORE + batch.users[own].astype(int)
        predicted = model.U[rows].astype(float) @ model.V[j] + model.b[rows] + model.c[j]
        expected += ((batch.ratings[own] - predicted) ** 2).sum()
    assert loss == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("k", [16, 20])
def test_ranges_of_runs_compose(path, k):
    batch = random_batch(21)
    model = random_model(22, batch.n_users, 9, k)
    n_runs = len(batch.items)
    whole = model.copy()
    loss = update(whole, batch, k)
    for cut in range(n_runs + 1):
        parts = model.copy()
        losses = [update(parts, batch, k, runs) for runs in ((0, cut), (cut, n_runs))]
        assert sum(losses) == pytest.approx(loss, rel=1e-12)
        for got, wanted in zip(parts, whole, strict=True):
            np.testing.assert_array_equal(got, wanted)


def test_threads_without_common_users_and_items_change_no_bit(path):
    n, k = 12, 20
    model = random_model(7, 2 * n, 9, k)
    last = spare_of(model.U)
    model.U[last - 1], model.b[last - 1] = 0, 0
    left = batch_of([(j, np.arange(n)) for j in (0, 2, 4)], n, seed=1)
    right = batch_of([(j, np.arange(j, n)) for j in (1, 3, 5, 7)], n, seed=2)
    places = [(left, BEFORE, last), (right, BEFORE + n, last - 1)]
    together, apart = model.copy(), model.copy()
    losses = [update(apart, batch, k, None, *place) for batch, *place in places]
    with ThreadPoolExecutor(2) as pool:
        jobs = [pool.submit(update, together, batch, k, None, *place) for batch, *place in places]
    assert [job.result() for job in jobs] == losses
    for got, wanted in zip(together, apart, strict=True):
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize(
    ("k", "width", "stride"),
    [
        (1, 16, 16),
        (16, 16, 16),
        (17, 32, 32),
        (240, 240, 240),
        (241, 256, 272),
        (257, 272, 272),
        (496, 496, 496),
        (1024, 1024, 1040),
    ],
)
def test_empty_factors(k, width, stride):
    assert factor_width(k) == width
    for n_rows in (0, 1, 7):
        factors = empty_factors(n_rows, k)
        assert factors.shape == (n_rows, stride)
        assert factors.dtype == np.float32
        assert factors.flags.c_contiguous
        assert factors.ctypes.data % 64 == 0 or n_rows == 0
        assert not factors.any()
