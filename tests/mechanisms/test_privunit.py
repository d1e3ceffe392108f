"""PrivUnitG on the grid: its law by enumeration, its guarantee, its errors, what it hides."""

import itertools
import math

import mpmath
import numpy as np
import pytest
from scipy import special, stats

from skdpmf.exceptions import PrivacyParameterError
from skdpmf.kernels.jit_and_threads import MOST_PLAIN_WORK, jit, sized
from skdpmf.mechanisms.device_reports import privunit as _privunit
from skdpmf.mechanisms.device_reports.privunit import (
    GRID_BITS,
    NORM_TOLERANCE,
    PrivUnit,
    add_reports,
    in_half_space,
    privunit_parameters,
    unit_rows,
)
from skdpmf.mechanisms.device_reports.randomizers import DeviceStreams
from skdpmf.privacy.sampler import laws
from skdpmf.privacy.sampler.streams import derived_key

pytestmark = pytest.mark.usefixtures("plain_where_small")


def keys_for(name, n):
    return DeviceStreams(derived_key(21, "privunit tests")).keys(name, 0, n)


def unit(values, dimension, indices=None):
    """The unit vector that a row of values becomes: coordinates and values, dummy last."""
    values = np.asarray(values)
    size = values.shape[0]
    indices = np.arange(size) if indices is None else np.asarray(indices)
    with np.errstate(invalid="ignore"):
        ptr, at, x = unit_rows(np.array([0, size]), indices, values, dimension)
    assert ptr.tolist() == [0, size + 1]
    return at, x


def reports(values, dimension, keys, law, indices=None):
    """One report for each key, all of the same input."""
    at, x = unit(np.asarray(values, np.float64), dimension, indices)
    ptr = np.array([0, at.shape[0]])
    settings = np.uint64(law.coin), law.t * 2.0**law.bits, law.bits, laws.normal_tables()
    out = np.zeros((keys.shape[0], dimension), np.int64)
    with np.errstate(over="ignore"):
        for row in range(keys.shape[0]):
            add_reports(keys[row : row + 1], ptr, at, x, *settings, out[row])
    return out


@pytest.mark.parametrize("epsilon", [0.01, 0.1, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0])
@pytest.mark.parametrize("dimension", [1, 41, 27_000])
def test_parameters_meet_the_premises_of_the_theorem(epsilon, dimension):
    t, p, _, bits, slack, coin = privunit_parameters(epsilon, dimension)
    with mpmath.workdps(40):
        D, root = mpmath.mpf(dimension), mpmath.sqrt(dimension)
        d = root / mpmath.mpf(2) ** (bits + 1) + D * root / mpmath.mpf(2) ** 49
        d += (t + 1) * (NORM_TOLERANCE + D / mpmath.mpf(2) ** 53)
        sampler = D * (laws.SAMPLER_ETA + laws.SAMPLER_TAU)
        low, high = mpmath.ncdf(-t - d) - sampler, mpmath.ncdf(d - t) + sampler
        share = mpmath.mpf(coin) / mpmath.mpf(2) ** 64
        odds = share * (1 - low) / ((1 - share) * low)
        assert odds <= mpmath.exp(epsilon)
        assert odds >= mpmath.exp(epsilon) * (1 - 1e-9)  # nor is anything given away
        assert high <= share
        ideal = mpmath.ncdf(-t)
        assert abs(slack - (epsilon - mpmath.log(share * (1 - ideal) / ((1 - share) * ideal)))) < (
            1e-13 * max(1, 1 / float(1 - share))
        )
    assert p == coin / 2**64
    assert bits == GRID_BITS
    assert 13 * 2**bits < 2**31
    assert slack < 1e-4 * epsilon


def test_a_grid_too_coarse_for_epsilon_is_refused():
    least = next(e for e in np.geomspace(1e-8, 1e-2, 61) if accepted(e, 27_000))
    assert 1e-6 < least < 4e-6
    privunit_parameters(1e-7, 1)
    with pytest.raises(PrivacyParameterError, match="report fewer coordinates"):
        privunit_parameters(1e-6, 27_000)
    with pytest.raises(PrivacyParameterError, match=r"on a grid of 2\*\*-2"):
        privunit_parameters(0.5, 3, bits=2)


def accepted(epsilon, dimension):
    try:
        privunit_parameters(epsilon, dimension)
    except PrivacyParameterError:
        return False
    return True


def grid_law(bits, reach=6.5):
    """Integers and their probabilities under round(2^bits N)."""
    n = np.arange(-int(reach * 2**bits), int(reach * 2**bits) + 1)
    edges = np.arange(n[0], n[-1] + 2) - 0.5
    return n, np.diff(special.ndtr(edges / 2.0**bits))


def enumerated(x, law, reach=6.5):
    """All y, their probabilities and whether the code finds them in the half space of x."""
    n, q = grid_law(law.bits, reach)
    grids = np.meshgrid(*[np.arange(n.size)] * len(x), indexing="ij")
    y = np.stack([n[g.ravel()] for g in grids], axis=1)
    mass = np.prod([q[g.ravel()] for g in grids], axis=0)
    bound = law.t * 2.0**law.bits
    inside = np.array([in_half_space(row, x, bound) for row in y])
    return y, mass, inside


def hard_epsilon(near, dimension, bits, side):
    """An epsilon whose threshold lies just above (side 1) or below (-1) an integer.

    There rounding moves the mass of the half space of a single coordinate the most.
    """
    candidates = np.linspace(near, 1.6 * near, 400)
    place = [privunit_parameters(e, dimension, bits=bits).t * 2.0**bits for e in candidates]
    return float(candidates[np.argmin(side * np.array(place) % 1.0)])


def inputs(dimension):
    rng = np.random.RandomState(5)
    rows = [np.zeros(dimension - 1)]
    if dimension > 1:
        rows += [np.eye(dimension - 1)[0], -np.eye(dimension - 1)[-1]]
        for length in (0.3, 0.7, 1.0, 0.99):
            direction = rng.standard_normal(dimension - 1)
            rows.append(length * direction / np.linalg.norm(direction))
        rows.append(np.full(dimension - 1, 1 / math.sqrt(dimension)))  # the largest |x|_1
        rows.append(-rows[-1])
    return [unit(row, dimension)[1] for row in rows]


@pytest.mark.parametrize("side", [1, -1])
@pytest.mark.parametrize(
    ("dimension", "bits", "near"),
    [(1, 1, 2.0), (1, 7, 0.5), (2, 2, 2.0), (2, 4, 0.5), (2, 4, 4.0), (3, 2, 4.0)],
)
def test_ratios_of_the_enumerated_law(dimension, bits, near, side):
    epsilon = hard_epsilon(near, dimension, bits, side)
    law = privunit_parameters(epsilon, dimension, bits=bits)
    xs = inputs(dimension)
    if dimension == 1:
        xs.append(np.array([-1.0]))
    weights, masses = [], []
    for x in xs:
        _, mass, inside = enumerated(x, law)
        share = mass[inside].sum()
        masses.append(share)
        # Q^D(y) cancels in ratios; what is left are two weights for each input
        weights.append(np.where(inside, law.p / share, (1 - law.p) / (1 - share)))
    weights = np.log(weights)
    worst = (weights.max(axis=0) - weights.min(axis=0)).max()
    assert worst <= epsilon
    # the bounds on the mass hold, and no much smaller ones would
    d = math.sqrt(dimension) * 2.0 ** -(bits + 1)
    low, high = special.ndtr(-(law.t + d)), special.ndtr(-(law.t - d))
    assert low - 1e-9 <= min(masses)
    assert max(masses) <= high + 1e-9
    moved = np.abs(special.ndtri(1 - np.array(masses)) - law.t).max()
    assert moved > 0.95 * d / math.sqrt(dimension)
    if side == 1:  # less than the slack is given away
        assert worst > epsilon - law.slack
        assert worst > epsilon - 0.05 * law.slack or dimension > 1


@pytest.mark.parametrize("dimension", [1, 2, 3])
def test_a_coin_calibrated_at_the_ideal_mass_exceeds_epsilon(dimension):
    # what the slack is for
    bits = 2
    epsilon = hard_epsilon(3.0, dimension, bits, 1)
    law = privunit_parameters(epsilon, dimension, bits=bits)
    ideal, exact = special.ndtr(-law.t), []
    for sign in (1.0, -1.0):
        x = np.zeros(dimension)
        x[0] = sign
        _, mass, inside = enumerated(x, law)
        exact.append((mass[inside].sum(), inside))
    (share, up), (_, down) = exact
    assert (up & ~down).any()
    wrong = math.exp(epsilon) * ideal / (1 - ideal + math.exp(epsilon) * ideal)
    for p, holds in ((law.p, True), (wrong, False)):
        ratio = math.log(p / share) - math.log((1 - p) / (1 - share))
        assert bool(ratio <= epsilon) is holds


def chi_squared(y, cells, expected):
    """P-value of the counts of the rows ``y`` in cells of the given means; small ones joined."""
    index = {tuple(cell): i for i, cell in enumerate(cells)}
    counts = np.bincount([index[tuple(row)] for row in y], minlength=len(cells))
    big = expected > 20
    counts = np.append(counts[big], counts[~big].sum())
    return stats.chisquare(counts, np.append(expected[big], expected[~big].sum())).pvalue


# Statistical tests: fixed keys, so they cannot flicker; each would raise a false alarm with the
# stated odds under a new key.


@pytest.mark.parametrize(("epsilon", "row"), [(1.0, [0.6]), (4.0, [-0.8]), (4.0, [])])
def test_law_of_the_kernel_is_the_enumerated_one(epsilon, row):
    # coordinate 1 of 3 is rated, 0 is not, 2 is the dummy
    n, bits = 15_000, 3
    law = privunit_parameters(epsilon, 3, bits=bits)
    y = reports(row, 3, keys_for(f"law {epsilon} {row}", n), law, indices=[1][: len(row)])
    support = [1, 2] if row else [2]
    cells, mass, inside = enumerated(unit(row, 3)[1], law)
    share = mass[inside].sum()
    expected = mass * np.where(inside, law.p / share, (1 - law.p) / (1 - share))
    assert chi_squared(y[:, support], cells, expected * n) > 1e-4  # false alarm 1e-4
    # the test sees p and 1 - p exchanged, and a coin of the ideal without a grid
    turned = mass * np.where(inside, (1 - law.p) / share, law.p / (1 - share))
    assert chi_squared(y[:, support], cells, turned * n) < 1e-9
    # the others are plain rounded normals, and independent of the rest
    integers, q = grid_law(bits)
    assert chi_squared(y[:, :1], integers[:, None], q * n) > 1e-4
    for other in support:
        assert abs(np.corrcoef(y[:, 0], y[:, other])[0, 1]) * math.sqrt(n) < 4.5
        assert abs(np.corrcoef(y[:, 0] ** 2, y[:, other])[0, 1]) * math.sqrt(n) < 4.5


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 2.0, 4.0, 8.0])
def test_estimates_are_unbiased_with_the_stated_error(epsilon):
    n, dimension, indices = 1500, 40, np.arange(3, 33, 4)
    randomiser = PrivUnit(epsilon, dimension)
    law = randomiser.parameters
    row = 0.3 * np.cos(np.arange(indices.size))
    at, x = unit(row, dimension, indices)
    truth = np.zeros(dimension)
    truth[at] = x
    keys = keys_for(f"errors {epsilon}", n)
    y = reports(row, dimension, keys, law, indices)
    for i in range(0, n, n // 20):
        np.testing.assert_array_equal(randomiser.report(keys[i], indices, row), y[i])
    estimates = np.array([randomiser.estimate(one, 1) for one in y])
    squared = ((estimates - truth) ** 2).sum(axis=1).mean()
    # relative sd sqrt(2 / (n D)) = 0.6 %
    assert squared == pytest.approx(dimension / law.c**2, rel=0.03)
    assert randomiser.variance == law.c**-2
    errors = (randomiser.estimate(y.sum(axis=0), n) - truth) / math.sqrt(randomiser.variance / n)
    assert stats.chi2.sf((errors**2).sum(), dimension) > 1e-4  # false alarm 1e-4
    # in the direction of the input, where an error of the coin or of c would be: 7e-6
    along = estimates @ truth
    assert abs(along.mean() - 1) < 4.5 * along.std() / math.sqrt(n)


@pytest.mark.parametrize(("bits", "near"), [(5, 1.5), (5, 2.0), (6, 4.0)])
def test_bias_of_the_grid_is_below_its_bound(bits, near):
    dimension, epsilon = 2, hard_epsilon(near, 2, bits, 1)
    law = privunit_parameters(epsilon, dimension, bits=bits)
    d = math.sqrt(dimension) * 2.0 ** -(bits + 1)
    limit = 1.01 * (law.slack * (1 + stats.norm.pdf(law.t) / law.c) + (2 * law.t + 4) * d)
    worst = 0.0
    for x in inputs(dimension):
        y, mass, inside = enumerated(x, law, reach=5.0)
        share = mass[inside].sum()
        w = mass * np.where(inside, law.p / share, (1 - law.p) / (1 - share))
        worst = max(worst, np.linalg.norm(w @ y * 2.0**-bits / law.c - x))
    assert worst <= limit + 1e-4  # beyond 5 the enumeration ends
    assert worst > 0.02 * limit


def test_rows_become_unit_vectors_whatever_they_hold():
    rng = np.random.RandomState(1)
    rows = [rng.standard_normal(size) * scale for size in (1, 7, 300) for scale in SCALES]
    rows += [np.array([1.0]), np.array([0.6, 0.8]), np.array([-1e308] * 5), np.array([5e-324])]
    rows += [np.array([1.0 - 2.0**-53]), np.array([1e200, 1e-200]), np.zeros(4), np.zeros(0)]
    for row in rows:
        _, x = unit(row, 400)
        assert abs(math.sqrt(math.fsum(x * x)) - 1) < 1e-12
        with np.errstate(over="ignore"):
            length = math.hypot(*row) if np.isfinite(row).all() else 0.0
        if length <= 1:
            np.testing.assert_allclose(x[:-1], row, rtol=0, atol=1e-15)
            assert x[-1] == pytest.approx(math.sqrt(max(0, 1 - length**2)), abs=2e-8)
        else:
            peak = np.abs(row).max()
            np.testing.assert_allclose(x[:-1], row / peak / math.hypot(*(row / peak)), atol=1e-15)
            assert x[-1] < 2e-8


SCALES = (1e-300, 1e-8, 0.01, 0.1, 1.0, 30.0, 1e150, 1e306)


def test_low_bits_do_not_tell_the_support():
    n, dimension, rated = 3000, 40, np.arange(0, 38, 2)
    law = privunit_parameters(4.0, dimension)
    row = 0.2 * np.cos(rated)
    y = reports(row, dimension, keys_for("bits", n), law, rated)
    inside = np.isin(np.arange(dimension - 1), rated)
    for shift in (0, 4, 8):
        low = (y[:, :-1] >> shift) & 15
        for mask in (inside, ~inside):  # 57,000 and 60,000 values each: false alarm 1e-4
            counts = np.bincount(low[:, mask].ravel(), minlength=16)
            assert stats.chisquare(counts).pvalue > 1e-4
    # magnitudes near 0, where samplers in floating point give themselves away
    small = np.abs(y[:, :-1]) < 2 ** (GRID_BITS - 4)
    table = [[small[:, mask].sum(), (~small[:, mask]).sum()] for mask in (inside, ~inside)]
    assert stats.chi2_contingency(table).pvalue > 1e-4


def test_draws_outside_of_the_support_do_not_know_the_input():
    dimension = 700
    randomiser = PrivUnit(4.0, dimension)
    key = keys_for("outside", 1)[0]
    empty = randomiser.report(key, [], [])
    draws = np.empty(dimension, np.int64)
    with np.errstate(over="ignore"):
        laws.rounded_draws(
            *laws.scratch(key), GRID_BITS, *laws.normal_tables(), laws.NORMAL, 0, dimension, draws
        )
    np.testing.assert_array_equal(empty[:-1], draws[:-1])
    rated = np.array([0, 255, 256, 511, 600, 698])
    sent = randomiser.report(key, rated, np.full(6, 0.3))
    others = np.setdiff1d(np.arange(dimension - 1), rated)
    np.testing.assert_array_equal(sent[others], empty[others])
    # the support is drawn apart from what stood there, dummy and all
    assert (sent[rated] != empty[rated]).all()
    assert sent[-1] not in (empty[-1], draws[-1])
    assert sent.dtype == np.int32


@pytest.mark.parametrize("epsilon", [1.0, 8.0])
def test_a_device_does_the_same_work_whatever_it_has_rated(epsilon, monkeypatch):
    # as plain Python, so that chunks drawn and values compared can be counted
    for name in ("add_reports", "_draw_support", "set_key", "set_position", "join_words"):
        monkeypatch.setattr(_privunit, name, getattr(_privunit, name).function)
    compared, drawn = [], []
    inside, fill = _privunit.in_half_space, jit(_privunit.fill_chunk.function)
    monkeypatch.setattr(
        _privunit, "in_half_space", lambda *a: compared.append(a[0].size) or inside(*a)
    )
    monkeypatch.setattr(_privunit, "fill_chunk", lambda *a: drawn.append(a[0]) or fill(*a))
    dimension, chunk = 600, _privunit.CHUNK
    randomiser = PrivUnit(epsilon, dimension)
    for rated in (0, 1, 30, 599):
        row = np.full(rated, 0.03)
        for key in keys_for(f"work {epsilon}", 3):
            compared.clear()
            drawn.clear()
            with np.errstate(over="ignore"):
                randomiser.report(key, np.arange(rated), row)
            assert set(compared) == {dimension}
            # every try draws as many values as there are; parts of two chunks are rounded
            redrawn = [number for number in drawn if number >= _privunit._FIRST_REDRAW]
            assert abs(len(redrawn) - dimension * len(compared) / chunk) < 2


@pytest.mark.parametrize("epsilon", [1.0, 4.0])
def test_a_device_of_numpy_does_the_same_work_whatever_it_has_rated(epsilon, monkeypatch):
    chunks, compared = [], []
    draw, inside = _privunit.plain_chunks, in_half_space.plain
    monkeypatch.setattr(_privunit, "plain_chunks", lambda *a: chunks.append(a[1].shape) or draw(*a))
    monkeypatch.setattr(
        in_half_space, "plain", lambda *a: compared.append(a[0].shape) or inside(*a)
    )
    randomiser = PrivUnit(epsilon, 600)
    with sized(1):
        for rated, key in zip((0, 30, 599), keys_for(f"work {epsilon}", 3), strict=True):
            randomiser.report(key, np.arange(rated), np.full(rated, 0.03))
    assert set(compared) == {(1, 1, 600)}
    assert set(chunks[:-1]) == {(4,), (3,)}  # of a try, and of the coordinates
    assert len(chunks) == len(compared) + 3


@pytest.mark.parametrize(("dimension", "epsilon"), [(12, 6.0), (40, 0.5), (300, 6.0), (700, 0.5)])
def test_forms_make_the_same_reports(dimension, epsilon):
    n, randomiser = 90, PrivUnit(epsilon, dimension)
    ptr, indices, values = many_rows(n, dimension)
    values[::9], values[4::70], values[5::80] = values[::9] * 1e3, np.nan, np.inf
    keys, sums = keys_for(f"forms {dimension}", n), []
    for cells in (1, MOST_PLAIN_WORK + 1):
        with sized(cells):
            for padded in (0, randomiser.padded, 3):
                sums.append(randomiser.sum_reports(keys, ptr, indices, values, padded=padded))
            one = randomiser.report(keys[3], indices[: ptr[1]], values[: ptr[1]])
            sums.append(sums[-1] + one)
    for plain, compiled in zip(sums[:4], sums[4:], strict=True):
        np.testing.assert_array_equal(plain, compiled)
    np.testing.assert_array_equal(sums[0], sums[1])


def test_the_support_is_redrawn_as_a_whole():
    # given the half space, a coordinate orthogonal to the input stays normal and independent
    n, law = 6000, privunit_parameters(8.0, 4)
    y = reports([0.6, 0.6], 4, keys_for("whole", n), law, [0, 1]) / 2.0**law.bits
    across = (y[:, 0] - y[:, 1]) / math.sqrt(2)
    along = (y[:, 0] + y[:, 1]) * 0.6 + y[:, 3] * math.sqrt(0.28)
    assert stats.kstest(across, "norm").pvalue > 1e-4
    assert abs(np.corrcoef(across, along)[0, 1]) * math.sqrt(n) < 4.5
    assert abs(np.corrcoef(across**2, along)[0, 1]) * math.sqrt(n) < 4.5
    upper = (along >= law.t).sum()
    assert stats.binomtest(int(upper), n, law.p).pvalue > 1e-4
    # and along it is a normal cut at t, on either side
    cut = along[along >= law.t]
    assert stats.kstest(cut, lambda s: 1 - stats.norm.sf(s) / stats.norm.sf(law.t)).pvalue > 1e-4


def many_rows(n, dimension, extra=()):
    rng = np.random.RandomState(3)
    lengths = rng.randint(0, 9, n)
    lengths[::7] = 0
    popular = rng.permutation(np.geomspace(1, 100, dimension - 1))
    popular /= popular.sum()
    rows = [
        np.union1d(rng.choice(dimension - 1, size, False, popular), extra).astype(int)
        for size in lengths
    ]
    ptr = np.concatenate([[0], np.cumsum([row.size for row in rows])])
    return ptr, np.concatenate(rows), rng.standard_normal(ptr[-1]) * 0.5


def test_a_sum_is_that_of_the_single_reports(monkeypatch):
    n, dimension = 23, 600
    randomiser = PrivUnit(2.0, dimension)
    ptr, indices, values = many_rows(n, dimension)
    values[5] = np.nan
    keys = keys_for("sums", n)
    singles = [
        randomiser.report(keys[i], indices[ptr[i] : ptr[i + 1]], values[ptr[i] : ptr[i + 1]])
        for i in range(n)
    ]
    expected = np.sum(singles, axis=0, dtype=np.int64)
    for devices, n_jobs in ((512, 1), (5, 1), (5, 3), (1, -1), (23, None)):
        monkeypatch.setattr(_privunit, "DEVICES", devices)
        got = randomiser.sum_reports(keys, ptr, indices, values, n_jobs=n_jobs)
        np.testing.assert_array_equal(got, expected)
    assert got.dtype == np.int64
    # no two devices share their noise, and a slot keeps its key when others come and go
    for a, b in itertools.combinations(singles[:8], 2):
        assert abs(np.corrcoef(a, b)[0, 1]) * math.sqrt(dimension) < 4.5
    later = DeviceStreams(derived_key(21, "privunit tests")).keys("sums", 0, 4, first_slot=3)
    np.testing.assert_array_equal(later, keys[3:7])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"epsilon": 0.0}, "epsilon=0.0 must be a number > 0 and <= 16"),
        ({"dimension": 0}, r"dimension=0 must be an integer in \[1, 16777216\]"),
    ],
)
def test_parameters_out_of_range(change, message):
    with pytest.raises(PrivacyParameterError, match=message):
        PrivUnit(**{"epsilon": 1.0, "dimension": 5, **change})


def test_keys_of_another_kind():
    for keys in (np.zeros((1, 8)), np.zeros(8, np.uint32), np.zeros((1, 4), np.uint32)):
        with pytest.raises(PrivacyParameterError, match=r"take them from DeviceStreams\.keys"):
            PrivUnit(1.0, 5).sum_reports(keys, [0, 0], [], [])
