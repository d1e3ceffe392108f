"""Growing sums: coefficients, law, what one person moves in all refreshes, and what is refused."""

import copy
import math
import pickle
from fractions import Fraction

import numpy as np
import pytest
from scipy import sparse

from skdpmf import PrivacyBudget
from skdpmf.exceptions import PrivacyParameterError
from skdpmf.privacy.curator import Curator
from skdpmf.privacy.plan import Release, ReleasePlan
from skdpmf.privacy.recording import Recorder, RecordingNoise
from skdpmf.privacy.sampler.growing import (
    MOST_REFRESHES,
    GrowingStream,
    StreamSlot,
    coefficients,
    growth,
    part_of_noise,
)
from skdpmf.privacy.sampler.noise import NoiseSource, fresh_key
from skdpmf.privacy.sums import item_scalars

T, N, D, Z = 6, 50, 1.0, 2.0


def release(layout="full", shape=(N,), refreshes=T):
    return Release("sums", "x", shape, D * growth(refreshes), Z, layout=layout, refreshes=refreshes)


def terms(one):
    return {
        "name": one.name,
        "sensitivity": one.sensitivity,
        "noise_multiplier": one.noise_multiplier,
        "bound": 1000.0,
        "layout": one.layout,
    }


def streams(one, n_refreshes=T, n_rows=1000):
    """What a ledger gives to each refresh."""
    keys, slots = [fresh_key() for _ in range(n_refreshes)], {"sums": StreamSlot.of(one, n_rows)}
    sizes = [{"sums": math.prod(one.shape)}] * n_refreshes
    return [GrowingStream(keys[: t + 1], slots, sizes[: t + 1]) for t in range(n_refreshes)]


def released(x, one, carried):
    """Records of all refreshes: the statistic is q_t, the output y_t."""
    recorder = Recorder(None)
    for t, stream in enumerate(streams(one, len(x))):
        source = RecordingNoise(fresh_key(), recorder, stream)
        source.release(x[t], carried=carried[t], **terms(one))
    return recorder.recording


# Coefficients


def test_coefficients_are_those_of_the_square_roots():
    c, b = coefficients(MOST_REFRESHES)
    exact = [Fraction(math.comb(2 * k, k), 4**k) for k in range(MOST_REFRESHES)]
    np.testing.assert_allclose(c, [float(x) for x in exact], rtol=1e-13)
    np.testing.assert_allclose(np.convolve(c, c)[:MOST_REFRESHES], 1.0, rtol=1e-12)
    np.testing.assert_allclose(np.convolve(b, c)[1:MOST_REFRESHES], 0.0, atol=1e-13)
    assert (b[1:] < 0.0).all()  # the proof drops terms


@pytest.mark.parametrize("refreshes", [2, 12, 24, MOST_REFRESHES])
def test_growth_is_rounded_up_and_the_grid_pays_for_all_roundings(refreshes):
    c = [Fraction(math.comb(2 * k, k), 4**k) for k in range(refreshes)]
    square = sum(x**2 for x in c)
    assert square < Fraction(growth(refreshes)) ** 2 < square * (1 + Fraction(1, 10**9))
    assert 1.5 * float(sum(c)) * math.sqrt(refreshes) <= math.sqrt(3.0) * refreshes
    assert growth(1) == part_of_noise(0) == 1.0


# Law


@pytest.mark.parametrize("layout", ["full", "packed"])
def test_the_noise_of_growing_sums_is_that_of_c(layout):
    """Sums over 6 refreshes have less noise than 6 of them, and the covariance of C.

    4,950 values: each of the 36 entries has a relative error of .02 and is off by .1 by chance
    once in a million times.
    """
    one = release(layout, (4950,))
    x = np.zeros((T, 4950))
    records = released(x, one, range(T))
    noise = np.cumsum([record.output for record in records], axis=0)
    if layout == "packed":
        order = 99
        root = np.full((order, order), math.sqrt(2.0))
        np.fill_diagonal(root, 1.0)
        noise *= root[np.tril_indices(order)]
    c, s = coefficients(T)[0], Z * one.sensitivity
    C = np.array([[c[t - k] if k <= t else 0.0 for k in range(T)] for t in range(T)])
    assert np.max(abs(noise @ noise.T / noise.shape[1] / s**2 - C @ C.T)) < 0.1 * growth(T) ** 2
    assert noise[-1].std() < 1.1 * Z * D * growth(T) ** 2 < 0.9 * Z * D * math.sqrt(T)


def deviations(one):
    """Of the noise of all sums of a stream, over that of one release alone."""
    records = released(np.zeros((12, 4950)), one, range(12))
    sums = np.cumsum([record.output for record in records], axis=0)
    return sums.std(axis=1) / (Z * D)


def check_a_year():
    """Each of twelve within 5 deviations of an estimate: wrong once in 100,000 times."""
    c, _ = coefficients(12)
    wanted = growth(12) * np.sqrt(np.cumsum(c**2))
    assert np.abs(deviations(release(shape=(4950,), refreshes=12)) / wanted - 1.0).max() < 0.05
    assert wanted[-1] < 1.86


def test_twelve_refreshes_have_the_noise_of_less_than_two():
    check_a_year()


def test_noise_that_is_not_carried_on_is_seen(monkeypatch):
    monkeypatch.setattr(NoiseSource, "_carried", lambda self, shape, *rest, **more: np.zeros(shape))
    with pytest.raises(AssertionError):
        check_a_year()


def test_a_refresh_without_fresh_noise_is_seen(monkeypatch):
    real = NoiseSource.release

    def planted(self, statistic, *, carried=0, **terms):
        y = real(self, statistic, carried=carried, **terms)
        return y if not carried else np.asarray(statistic)

    monkeypatch.setattr(RecordingNoise, "release", planted)
    one, kept = release(shape=(4950,), refreshes=12), []
    for t, stream in enumerate(streams(one, 12)):
        source = RecordingNoise(fresh_key(), Recorder(None), stream)
        kept.append(source.release(np.zeros(4950), carried=t, **terms(one)))
    assert kept[1].std() == 0.0
    sums = np.cumsum(kept, axis=0).std(axis=1) / (Z * D)
    assert sums[-1] < 0.8 * growth(12) * np.linalg.norm(coefficients(12)[0])


def test_two_refreshes_with_one_key_are_seen():
    """Planted: noise that two months share; the sum then has the noise of twice one refresh."""
    one = release(shape=(4950,))
    (first, *_) = streams(one)
    again = copy.copy(vars(first))
    twin = GrowingStream((), {}, ())
    vars(twin).update(again)
    y = [NoiseSource(stream=s).release(np.zeros(4950), **terms(one)) for s in (first, twin)]
    assert (y[0] == y[1]).all()
    a, b = streams(one)[:2]
    y = [NoiseSource(stream=s).release(np.zeros(4950), **terms(one)) for s in (a, b)]
    assert abs(np.corrcoef(*y)[0, 1]) < 0.1


def test_items_that_come_later_begin_with_no_noise():
    one = release(shape=(10,))
    stream = streams(one)[1]
    carried = NoiseSource(stream=stream)._carried((14,), 1, 1, **terms(one))
    assert (carried[:10] != 0.0).all()
    assert (carried[10:] == 0.0).all()


# What one person moves


def moved(x, other, records, one, carried):
    """Norm of what all refreshes show of a change, with the same released values: the proof's R."""
    grid, _ = streams(one)[0].grid("sums", one.shape, one.layout, one.sensitivity, Z)
    unit, b = grid.units[0], coefficients(len(x))[1]

    def run(data):
        R = []
        for t, own in enumerate(data):
            z = [records[k].output - R[k] for k in range(t)]
            q = own + sum((b[t - k] * z[k] for k in range(max(t - carried[t], 0), t)), np.zeros(N))
            R.append(np.rint(q / unit) * unit)
        return np.array(R)

    first = run(x)
    for t, record in enumerate(records):  # what the code released is what the proof is about
        np.testing.assert_allclose(record.statistic, first[t], atol=4.0 * unit)
    return float(np.linalg.norm(first - run(other))), unit


@pytest.mark.parametrize("seed", range(12))
def test_one_person_moves_all_refreshes_by_no_more_than_planned(seed):
    """A search over who it is, what the person brings, and which noise is carried on."""
    rng, one = np.random.default_rng(seed), release()
    carried = list(range(T)) if seed % 2 else rng.integers(0, T, T).tolist()
    x = rng.normal(size=(T, N)).round(3)
    records, other = released(x, one, carried), x.copy()
    r, change = 0 if seed < 4 else int(rng.integers(T)), rng.normal(size=N)
    other[r] += D * change / np.linalg.norm(change)
    distance, unit = moved(x, other, records, one, carried)
    slack = 2.0 * unit * math.sqrt(3.0 * N * T**2)
    assert distance <= one.sensitivity + slack
    if seed in (1, 3):  # the bound is attained
        assert distance > one.sensitivity - slack


def test_a_person_in_two_refreshes_moves_more_than_planned():
    """Planted: what the ledger's at_most=1 is for."""
    one, x = release(), np.zeros((T, N))
    records, other = released(x, one, range(T)), x.copy()
    other[0, 0] = other[1, 0] = D
    assert moved(x, other, records, one, range(T))[0] > 1.2 * one.sensitivity


# What is refused


def test_a_plan_without_the_growth_is_refused():
    """Planted: C without the planned T."""
    R = sparse.csr_array((np.random.default_rng(0).random((30, 12)) < 0.3).astype(float))

    def curator(sensitivity):
        budget = PrivacyBudget(4.0, 1e-5)
        one = Release("sums", "x", (R.shape[1],), sensitivity, refreshes=T)
        plan = ReleasePlan.from_shares(budget, [one], {"sums": 1.0})
        return Curator(R, plan, NoiseSource(), 1)

    for sensitivity, is_covered in ((growth(T), True), (1.0, False)):
        made = curator(sensitivity)
        values = made.users.map(lambda rows: rows.data)
        total = item_scalars(made.users, values, clip=1.0, grid=2.0**-20, signed=False)
        if is_covered:
            made.release("sums", total)
            continue
        with pytest.raises(PrivacyParameterError, match=r"changes by up to 1\.2"):
            made.release("sums", total)


def test_the_sampler_pays_for_the_values_of_all_refreshes():
    assert release().n_values == N * T
    plan = ReleasePlan(PrivacyBudget(4.0, 1e-5), (release(),))
    assert plan.n_values == N * T
    assert plan.refreshes == T


def test_a_stream_is_for_one_source_of_planned_noise():
    one = release()
    stream = streams(one)[0]
    NoiseSource(stream=stream)
    with pytest.raises(PrivacyParameterError, match="used before"):
        NoiseSource(stream=stream)
    for wrong in ({"noise_multiplier": 1.0}, {"sensitivity": 1.0}):
        with pytest.raises(PrivacyParameterError, match="one noise"):
            NoiseSource(stream=streams(one)[0]).release(np.zeros(N), **{**terms(one), **wrong})
    with pytest.raises(PrivacyParameterError, match="at most 100 values"):
        NoiseSource(stream=streams(one)[0]).release(np.zeros(101), **terms(one))
    with pytest.raises(TypeError, match="never pickled"):
        pickle.dumps(stream)
    assert "secret" in repr(stream)


@pytest.mark.parametrize("refreshes", [0, 1.5, -1, "2"])
def test_bad_numbers_of_refreshes(refreshes):
    with pytest.raises(PrivacyParameterError, match="of refreshes of release 'x'"):
        Release("x", "y", (3,), 1.0, refreshes=refreshes)
