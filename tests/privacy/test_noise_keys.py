"""Keys and streams; recording and replay of releases; exact sums on a grid."""

import pickle
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from skdpmf.exceptions import PrivacyParameterError
from skdpmf.privacy.recording import record_releases
from skdpmf.privacy.sampler.grid import check_exact, exact_grid, truncate_to_grid
from skdpmf.privacy.sampler.noise import NoiseSource, fresh_key, noise_source, recorded_key
from skdpmf.privacy.sampler.streams import derived_key, initial_normals
from tests.privacy.test_noise import COMMON, KEY, source

# --- keys --------------------------------------------------------------------------------


def test_derived_keys_differ_with_seed_plan_and_data():
    indptr, indices = np.array([0, 1, 3]), np.array([2, 0, 1])
    data = np.array([1.0, 2.0, 3.0])
    base = ("plan", indptr, indices, data)
    keys = [
        derived_key(0, *base),
        derived_key(1, *base),
        derived_key(-1, *base),
        derived_key(2**70, *base),
        derived_key(0, "plan2", indptr, indices, data),
        derived_key(0, "plan", np.array([0, 2, 3]), indices, data),
        derived_key(0, "plan", indptr, indices[::-1], data),
        derived_key(0, "plan", indptr, indices, np.array([1.0, 2.0, np.nextafter(3.0, 4)])),
        derived_key(0, "plan", indptr, indices),
        derived_key(0, "plan", indices, indptr, data),
        derived_key(0, "plan", indptr, indices, data.reshape(1, 3)),
        derived_key(0, "plan", indptr, indices, data.astype(int)),
        derived_key(0, b"plan", indptr, indices, data),
        derived_key(0, "pl", "an", indptr, indices, data),
        derived_key(0),
        derived_key(0, ""),
        derived_key(0, "", ""),
        derived_key(0, np.zeros(0)),
    ]
    assert len(set(keys)) == len(keys)
    assert all(len(key) == 32 for key in keys)


def test_derived_keys_are_canonical():
    values = np.array([[0.0, 1.5], [2.0, np.nan]])
    key = derived_key(np.int64(5), values)
    assert key == derived_key(5, np.asfortranarray(values))
    assert key == derived_key(5, values.astype(np.float32))
    assert key == derived_key(5, values.astype(">f8"))
    negative = values.copy()
    negative[0, 0], negative[1, 1] = -0.0, -np.nan
    assert key == derived_key(5, negative)
    ints = np.arange(6)
    assert derived_key(5, ints) == derived_key(5, ints.astype(np.uint8), *())
    assert derived_key(5, ints[::2]) == derived_key(5, ints[::2].copy())
    long = np.arange(2**20 + 5)  # more than one piece
    assert derived_key(5, long) == derived_key(5, long.astype(np.int32))
    assert derived_key(5, long) != derived_key(5, np.append(long[:-1], 0))


def test_initial_normals_are_a_stream_for_each_name():
    start = initial_normals(KEY, (100,))
    assert not np.isin(start, initial_normals(KEY, (100,), "other")).any()
    np.testing.assert_array_equal(start.reshape(20, 5), NoiseSource(KEY).initial_normals((20, 5)))
    np.testing.assert_array_equal(start[:60], initial_normals(KEY, (60,)))
    # 40,000 starting values: KS, false alarm 1e-4
    assert stats.kstest(initial_normals(KEY, (40_000,)), "norm").pvalue > 1e-4


# --- recording and replay ----------------------------------------------------------------


def two_round_fit(X, first_sensitivity=1.0):
    """A toy fit: noisy column counts, then sums weighted by them; each row of norm <= 1."""
    s = noise_source(recorded_key(fresh_key))
    keep = s.slot_priorities("subset", np.arange(0, X.size + 1, X.shape[1]), _items(X))
    X = np.where(keep.reshape(X.shape) < 7 * 2**61, X, 0.0)  # of 8 items one stays: 1 - 6e-8
    counts = s.release(
        X.sum(axis=0), name="counts", sensitivity=first_sensitivity, noise_multiplier=1.0,
        bound=100.0,
    )  # fmt: skip
    weights = 1.0 / (1.0 + np.abs(counts))
    s.release(
        X.T @ X * np.outer(weights, weights), name="gram", index=3, sensitivity=1.0,
        noise_multiplier=2.0, bound=100.0,
    )  # fmt: skip
    return weights


def _items(X):
    return np.tile(np.arange(X.shape[1]), X.shape[0])


def test_replay_fixes_everything_before_a_release():
    rng = np.random.RandomState(5)
    X = rng.standard_normal((30, 8))
    X *= 0.999 / np.linalg.norm(X, axis=1, keepdims=True)
    neighbour = X.copy()
    neighbour[11] = 0.0
    with record_releases() as records:
        weights = two_round_fit(X)
    assert [(r.name, r.index, r.noise_multiplier) for r in records] == [
        ("counts", 0, 1.0),
        ("gram", 3, 2.0),
    ]
    with record_releases(replay=records) as replayed:
        np.testing.assert_array_equal(two_round_fit(neighbour), weights)
    for a, b in zip(records, replayed, strict=True):
        np.testing.assert_array_equal(a.output, b.output)
        assert 0 < a.distance(b) <= a.sensitivity
    # without the replay neither subsets nor weights stand still
    with record_releases() as fresh:
        two_round_fit(neighbour)
    assert records[1].distance(fresh[1]) > 1.5 * records[1].distance(replayed[1])
    # a recording that went through a file replays outputs, not keys
    with record_releases(replay=pickle.loads(pickle.dumps(records))) as again:
        np.testing.assert_array_equal(two_round_fit(X), weights)
    np.testing.assert_array_equal(again[1].output, records[1].output)


def test_records_are_copies_and_distances_have_the_norm_of_the_noise():
    exact = np.arange(6.0)
    with record_releases() as records:
        out = source().release(exact, name="g", layout="packed", **COMMON)
        source().release(np.zeros(6), name="g", layout="packed", **COMMON)
    exact[:] = out[:] = 0.0
    assert records[0].statistic.tolist() == [0, 1, 2, 3, 4, 5]
    assert records[0].output.any()
    full = np.array([[0.0, 1, 3], [1, 2, 4], [3, 4, 5]])
    assert records[0].distance(records[1]) == pytest.approx(np.linalg.norm(full))
    with record_releases() as pure:
        for exact in ([3.0, -4.0, 0.0], np.zeros(3)):
            source().release(exact, name="a", noise="laplace", **COMMON)
    assert pure[0].distance(pure[1]) == 7.0  # l1
    assert "statistic" not in repr(records[0])


def test_nothing_is_recorded_outside_and_the_innermost_records():
    before = source()
    with record_releases() as outer:
        source().release(np.zeros(2), name="a", **COMMON)
        with record_releases() as inner:
            source().release(np.zeros(2), name="b", **COMMON)
        before.release(np.zeros(2), name="began outside", **COMMON)
    source().release(np.zeros(2), name="c", **COMMON)
    assert ([r.name for r in outer], [r.name for r in inner]) == (["a"], ["b"])


def test_replay_of_another_run_is_refused():
    with record_releases() as records:
        source().release(np.zeros(2), name="a", **COMMON)
    with record_releases(replay=records):
        with pytest.raises(PrivacyParameterError, match="replay holds nothing for release 'b'"):
            source().release(np.zeros(2), name="b", **COMMON)
        with pytest.raises(PrivacyParameterError, match=r"output of shape \(2,\)"):
            source().release(np.zeros(3), name="a", **COMMON)


# --- exact sums --------------------------------------------------------------------------


def test_truncation_is_towards_zero_and_never_raises_a_norm():
    x = np.random.RandomState(6).standard_normal((200, 16))
    z = truncate_to_grid(x, 2.0**-6)
    assert (np.abs(z) <= np.abs(x)).all()
    assert (np.abs(x - z) < 2.0**-6).all()
    assert (z * 2**6 == np.rint(z * 2**6)).all()
    assert not np.signbit(truncate_to_grid([-0.001], 0.5)).any()


def test_sums_on_the_grid_are_exact_in_any_order_up_to_the_limit():
    rng = np.random.RandomState(7)
    n, bound = 3000, 3.0
    grid = exact_grid(n, bound)
    check_exact(n, bound, grid)
    z = truncate_to_grid(rng.uniform(-bound, bound, (n, 4)), grid)
    z[:, 0] = bound  # the largest sum possible
    ints = np.rint(z / grid).astype(np.int64).astype(object)
    exact = (ints.T @ ints).astype(float) * grid**2
    order = rng.permutation(n)
    for gram in (z.T @ z, z[order].T @ z[order], np.einsum("ni,nj->ij", z, z), z[::-1].T @ z[::-1]):
        np.testing.assert_array_equal(gram, exact)
    # the rule is tight: two grids finer, the exact sum is no float64 any more
    assert n * bound**2 < 2.0**53 * grid**2
    assert n * bound**2 >= 2.0**53 * (grid / 2) ** 2
    with pytest.raises(PrivacyParameterError, match=r"grid=.* or coarser for"):
        check_exact(n, bound, grid / 2)


@pytest.mark.parametrize("degree", [1, 2])
@pytest.mark.parametrize("n", [1, 2**18 - 1, 2**18, 2**18 + 1, 10**9])
@pytest.mark.parametrize("bound", [1.0, 1 + 2.0**-52, 5.0, 1e-8, 1e12])
def test_exact_grid_is_the_finest(degree, n, bound):
    grid = exact_grid(n, bound, degree=degree)
    total = n * Fraction(bound) ** degree
    assert total < 2**53 * Fraction(grid) ** degree
    assert total >= 2**53 * Fraction(grid / 2) ** degree
    check_exact(n, bound, grid, degree=degree)
    with pytest.raises(PrivacyParameterError, match="or coarser for"):
        check_exact(n, bound, grid / 2, degree=degree)
