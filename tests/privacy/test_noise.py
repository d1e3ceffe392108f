"""NoiseSource: what a release is, and what must never happen to it."""

import copy
import itertools
import multiprocessing
import os
import pickle
import subprocess
import sys

import numpy as np
import pytest
from scipy import stats

from skdpmf.exceptions import PrivacyParameterError
from skdpmf.privacy.recording import record_releases
from skdpmf.privacy.sampler import noise
from skdpmf.privacy.sampler.grid import (
    calibrate_grid,
    exact_grid,
    truncate_to_grid,
)
from skdpmf.privacy.sampler.noise import fresh_key, noise_source, recorded_key
from skdpmf.privacy.sampler.streams import derived_key, slot_priorities
from tests.privacy.grids import noise_parameters

KEY = derived_key(7, "noise tests")
COMMON = {"sensitivity": 2.0, "noise_multiplier": 1.5, "bound": 1000.0}


def recorded_source(key=None):
    """The noise source of a fit that begins now."""
    return noise_source(fresh_key() if key is None else key)


def source(*parts):
    return recorded_source(derived_key(7, "noise tests", *parts))


# --- the law of a release ----------------------------------------------------------------


def check_release_law(release, law="norm"):
    """Raise AssertionError unless ``release(statistic, source, name, index)`` is sound.

    The check that the planted bugs below must fail. Statistical parts: |.| < 4.5 sd or
    p > 1e-5; false alarm below 1e-4 in all, and the keys are fixed.
    """
    n = 60_000
    rng = np.random.RandomState(0)
    exact = truncate_to_grid(rng.uniform(-900, 900, n), 2.0**-10)
    with record_releases() as records:
        first = release(exact, source("a"), "sums", 0)
    kind = {"noise": "laplace"} if law == "laplace" else {}
    scale, units, _ = noise_parameters((n,), **COMMON, **kind)
    declared = COMMON["sensitivity"] * COMMON["noise_multiplier"]
    assert declared <= records[0].noise_scale == scale <= declared * 1.001, "recorded scale"
    z = (first - exact) / declared
    size, spread = (np.abs(z), 1.0) if law == "laplace" else (z**2, 2.0**0.5)
    variance = 2.0 if law == "laplace" else 1.0
    assert abs(z.mean()) * np.sqrt(n / variance) < 4.5, "mean"
    assert abs(size.mean() - 1) * np.sqrt(n) < 4.5 * spread, "scale"
    assert stats.kstest(z, law).pvalue > 1e-5, "shape"
    assert (units[0] * np.rint(first / units[0]) == first).all(), "grid"
    # another round, another name and another source have noise of their own
    same = source("b")
    others = [
        release(exact, same, "sums", 0),
        release(exact, same, "sums", 1),
        release(exact, same, "sums2", 0),
    ]
    for i, a in enumerate([first, *others]):
        for b in others[i:]:
            correlation = np.mean((a - exact) * (b - exact)) / declared**2 / variance
            assert abs(correlation) * np.sqrt(n) < 4.5, "independence"


def good(statistic, from_source, name, index, **kind):
    return from_source.release(statistic, name=name, index=index, **COMMON, **kind)


def laplace(*terms):
    return good(*terms, noise="laplace")


def same_noise_every_round(statistic, *terms):
    good(statistic, *terms)  # for the record
    return good(statistic, source("a"), "sums", 0)


def float_noise(statistic, from_source, name, index):
    good(statistic, from_source, name, index)
    rng = np.random.RandomState([index, len(name)])
    return statistic + 3.0 * rng.standard_normal(statistic.shape)


@pytest.mark.parametrize(("release", "law"), [(good, "norm"), (laplace, "laplace")])
def test_release_has_the_declared_law(release, law):
    check_release_law(release, law)


@pytest.mark.parametrize(
    ("bug", "noticed"),
    [
        (lambda exact, *terms: exact + (good(exact, *terms) - exact) / np.sqrt(2), "scale"),
        (lambda exact, *terms: exact + (good(exact, *terms) - exact) * 0.98, "scale"),
        (same_noise_every_round, "independence"),
        (lambda exact, *terms: exact + good(np.zeros_like(exact), *terms), "grid"),
        (float_noise, "grid"),
        (lambda exact, *terms: good(exact, *terms) + 0.1, "mean"),
    ],
    ids=["over sqrt 2", "2 percent less", "one noise", "not rounded", "float noise", "biased"],
)
def test_planted_bugs_are_noticed(bug, noticed):
    with pytest.raises(AssertionError, match=noticed):
        check_release_law(bug)


def test_packed_noise_is_goe_for_the_frobenius_sensitivity():
    k, n = 6, 40_000
    p = k * (k + 1) // 2
    out = source().release(
        np.zeros((n, p)), name="gram", layout="packed", sensitivity=1.0, noise_multiplier=2.0,
        bound=10.0,
    )  # fmt: skip
    rows, columns = np.tril_indices(k)
    sd = np.where(rows == columns, 2.0, np.sqrt(2.0))
    # 21 sds to 4.5 sd of theirs: false alarm 2e-4
    assert (np.abs(np.mean((out / sd) ** 2, axis=0) - 1) * np.sqrt(n / 2) < 4.5).all()
    full = np.zeros((n, k, k))
    full[:, rows, columns] = full[:, columns, rows] = out
    # rotation invariance of GOE: v' Z v has sd 2 for every unit vector v
    v = np.arange(1, k + 1) / np.linalg.norm(np.arange(1, k + 1))
    assert abs(np.var(np.einsum("nij,i,j->n", full, v, v)) / 4 - 1) * np.sqrt(n / 2) < 4.5
    # Mahalanobis distance of a neighbour = its Frobenius distance / sigma, at most
    shift = np.arange(p) / 7.0
    frobenius = np.sqrt(np.sum(shift**2 * np.where(rows == columns, 1, 2)))
    scale, units, bits = noise_parameters(
        (n, p), layout="packed", sensitivity=1.0, noise_multiplier=2.0, bound=10.0
    )
    ratio = np.linalg.norm(shift / (units * 2.0**bits)) / (frobenius / scale)
    assert 1 - 1e-12 < ratio <= 1 + 1e-15


def test_packed_scalars_and_empty_shapes():
    assert source().release(3.0, name="n", **COMMON).shape == ()
    assert source().release(np.zeros((4, 0)), name="n", **COMMON).shape == (4, 0)
    assert source().release(np.zeros((4, 1)), name="n", layout="packed", **COMMON).shape == (4, 1)


# --- rounding is paid for ----------------------------------------------------------------


@pytest.mark.parametrize("kind", ["full", "packed", "laplace"])
@pytest.mark.parametrize("bound", [1e3, 1e9, 4e11])
def test_rounded_statistics_stay_within_the_noise(kind, bound):
    # one key, so the difference of two outputs is that of the rounded statistics
    shape, z, order = (20, 15), 3.0, 1 if kind == "laplace" else 2
    setting = {"sensitivity": 1.0, "noise_multiplier": z, "bound": bound}
    setting |= {"noise": kind} if kind == "laplace" else {"layout": kind}
    scale, units, bits = noise_parameters(shape, **setting)
    unit = scale * 2.0**-bits
    weight = np.where(np.isin(np.arange(15), [0, 2, 5, 9, 14]), 1, 1 + (kind == "packed"))
    rng = np.random.RandomState(3)

    def size(change, weight=1.0):
        return np.sum(np.abs(change) ** order * weight) ** (1.0 / order)

    def rounded(statistic):
        return np.rint(source().release(statistic, name="x", **setting) / units)

    surcharge = 2 * unit * 300 ** (1.0 / order)
    assert scale >= z * (1.0 + surcharge)
    # the worst: every entry just crosses the middle between two grid points
    start = np.rint(rng.uniform(-bound, bound, shape) / 200 / units)
    cases = [((start + 0.44) * units, (start + 7 + 0.56) * units)]
    for trial in range(20):
        exact = rng.uniform(-bound / 2, bound / 2, shape)
        exact[:, 0] = bound / 2 if trial % 2 else -bound / 2
        step = rng.standard_normal(shape) * 10.0 ** rng.uniform(-9, 0, shape)
        cases.append((exact, exact + step / size(step, weight)))
    excess = []
    for exact, neighbour in cases:
        moved = size(rounded(neighbour) - rounded(exact)) * unit
        excess.append((moved - size(neighbour - exact, weight)) / surcharge)
    assert max(excess) <= 1
    assert excess[0] > 0.4  # so without the surcharge the claim would be false


@pytest.mark.parametrize(
    ("noise", "power", "cases"),
    [
        ("gaussian", 0.5, [(1, 0.3, 1.0), (10**6, 50.0, 1e8), (4 * 10**7, 5.0, 1e6)]),
        ("laplace", 1.0, [(1, 0.3, 1.0), (10**5, 50.0, 1e7), (7 * 10**8, 5.0, 1e3)]),
    ],
)
def test_surcharge_solves_its_equation(noise, power, cases):
    for size, z, bound in cases:
        terms = {"sensitivity": 2.0, "noise_multiplier": z, "bound": bound, "noise": noise}
        bits, scale = calibrate_grid(size, **terms)
        unit = scale * 2.0**-bits
        needed = z * (2.0 + 2 * unit * size**power)
        assert needed <= scale <= needed * (1 + 1e-11)
        assert bound / unit <= 2.0**51
        assert scale > z * 2.0 * (1 + 2.0**-41)  # more than the sampler's own scale may be off
    assert calibrate_grid(43 * 10**6, sensitivity=1, noise_multiplier=7, bound=7e4)[1] < 7.00001
    with pytest.raises(PrivacyParameterError, match="release fewer values at a time"):
        calibrate_grid(10**9, sensitivity=1, noise_multiplier=1e3, bound=1.0, noise="laplace")


def test_out_of_range_entries_are_clamped_silently():
    exact = np.array([np.nan, np.inf, -np.inf, 1e300, -1e300, 4.0])
    out = source().release(exact, name="x", **COMMON)
    twin = source().release([0.0, 0.0, 0.0, 1000.0, -1000.0, 4.0], name="x", **COMMON)
    np.testing.assert_array_equal(out, twin)


@pytest.mark.parametrize("kind", ["gaussian", "laplace"])
def test_no_noise_returns_the_statistic_itself(kind):
    exact, terms = np.array([0.1, -3.0]), {"sensitivity": 1.0, "noise_multiplier": 0.0}
    out = source().release(exact, name="x", bound=1.0, noise=kind, **terms)
    np.testing.assert_array_equal(out, exact)
    assert out is not exact


def test_strided_and_float32_and_read_only_statistics():
    base = np.arange(24, dtype=np.float32).reshape(4, 6)
    base.flags.writeable = False
    out = source().release(base[::2, ::-1], name="x", **COMMON)
    plain = source().release(np.array(base[::2, ::-1], float), name="x", **COMMON)
    np.testing.assert_array_equal(out, plain)


# --- streams are never shared ------------------------------------------------------------


def test_threads_do_not_change_a_release():
    n = 3 * noise._BLOCK + 1000
    exact = np.linspace(-1, 1, n)
    one, many = (
        source().release(exact, name="x", n_jobs=jobs, **COMMON) for jobs in (1, 3)
    )  # fmt: skip
    np.testing.assert_array_equal(one, many)
    assert np.unique(one - exact).size > 0.9999 * n  # blocks do not repeat


# --- a sampler's own randomness ----------------------------------------------------------


def test_normals_and_uniforms_have_their_laws():
    """The key is fixed; a false alarm has probability below 1e-4 over all of these."""
    n, s = 100_000, source("law")
    z, u = s.normals((n // 2, 2), "z", 0), s.uniforms((n // 2, 2), "z", 0)
    assert z.dtype == u.dtype == np.float64
    np.testing.assert_allclose(u, stats.norm.cdf(z), rtol=1e-12)  # the ranks of the normals
    assert ((u > 0.0) & (u < 1.0)).all()
    z = z.ravel()
    assert stats.kstest(z, "norm").pvalue > 1e-5
    for moment, mean, sd in ((z, 0, 1), (z**2, 1, 2**0.5), (z**3, 0, 15**0.5), (z**4, 3, 96**0.5)):
        assert abs(moment.mean() - mean) < 4.5 * sd / n**0.5
    assert abs(np.corrcoef(z[:-1], z[1:])[0, 1]) < 4.5 / n**0.5
    np.testing.assert_array_equal(z, np.rint(z * 2.0**40) * 2.0**-40)


def test_a_samplers_streams_are_independent():
    n, s = 20_000, source("streams")
    noise_of_release = s.release(np.zeros(n), name="a", index=0, **COMMON) / 3.0
    streams = [
        s.normals((n,), "a", 0),
        s.normals((n,), "a", 1),
        s.normals((n,), "b", 0),
        s.initial_normals((n,), "a"),
        noise_of_release,
        laplace(np.zeros(n), source("streams"), "a", 0) / 3.0,
        source("other").normals((n,), "a", 0),
    ]
    # 21 pairs of 20,000, twice: a false alarm has probability 3e-4
    correlations = np.corrcoef(streams) - np.eye(len(streams))
    assert np.abs(correlations).max() < 4.5 / n**0.5
    ranks = np.corrcoef([np.abs(x) for x in streams]) - np.eye(len(streams))
    assert np.abs(ranks).max() < 4.5 / n**0.5
    assert all(len(np.intersect1d(x, y)) < 5 for x, y in itertools.combinations(streams, 2))


def test_a_samplers_stream_repeats_and_claims_nothing():
    s = source()
    first = s.normals((9,), "a", 0)
    np.testing.assert_array_equal(first, s.normals((9,), "a", 0))
    np.testing.assert_array_equal(first, source().normals((3, 3), "a", 0).ravel())
    np.testing.assert_array_equal(first[:4], s.normals((4,), "a", 0))
    assert s.uniforms((0, 3), "a", 0).shape == (0, 3)
    s.release(np.zeros(3), name="a", index=0, **COMMON)  # the sampler's use did not claim it
    with record_releases() as records:
        s.normals((9,), "a", 5)
    assert len(records) == 0


def _forked(queue, old):
    try:
        old.release(np.zeros(3), name="after", **COMMON)
        refused = False
    except RuntimeError as error:
        refused = "fork" in str(error)
    queue.put((refused, recorded_source().release(np.zeros(50), name="x", **COMMON).tolist()))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_forks_refuse_the_parents_source_and_draw_their_own():
    context = multiprocessing.get_context("fork")
    queue, old = context.Queue(), recorded_source()
    workers = [context.Process(target=_forked, args=(queue, old)) for _ in range(2)]
    for worker in workers:
        worker.start()
    answers = [queue.get(timeout=60) for _ in workers]
    for worker in workers:
        worker.join(60)
    here = recorded_source().release(np.zeros(50), name="x", **COMMON).tolist()
    assert all(refused for refused, _ in answers)
    assert len({v for values in (here, *(v for _, v in answers)) for v in values}) == 150


def test_fork_is_noticed_for_every_use(monkeypatch):
    old = recorded_source()
    monkeypatch.setattr(os, "getpid", lambda: -1)
    indptr = indices = np.zeros(1, int)
    for use in (
        lambda: old.release(np.zeros(3), name="x", **COMMON),
        lambda: old.blocks(shape=(3,), name="x", **COMMON),
        lambda: old.slot_priorities("x", indptr, indices),
        lambda: old.initial_normals((2,)),
        lambda: old.normals((2,), "x", 0),
        lambda: old.uniforms((2,), "x", 0),
    ):
        with pytest.raises(RuntimeError, match="fork"):
            use()


def test_each_release_is_made_once():
    """Also by the other kind of noise, by none, and where a release in blocks has only begun."""
    s = source()
    s.release(np.zeros(2), name="x", **COMMON)
    s.release(np.zeros(2), name="x", index=1, **COMMON)
    s.blocks(shape=(2,), name="x", index=2, **COMMON)
    with pytest.raises(PrivacyParameterError, match="name='x' must be with another index than 1"):
        s.release(np.zeros(2), name="x", index=np.int64(1), **COMMON)
    with pytest.raises(PrivacyParameterError, match="index than 1"):
        s.blocks(shape=(2,), name="x", index=1, **COMMON)
    with pytest.raises(PrivacyParameterError, match="index than 2"):
        s.release(np.zeros(2), name="x", index=2, **COMMON)
    for change in ({"noise_multiplier": 0.0}, {"noise": "laplace"}):
        with pytest.raises(PrivacyParameterError, match="released before"):
            s.release(np.zeros(2), name="x", **(COMMON | change))


def test_the_key_never_leaves():
    s = recorded_source(KEY)
    for leave in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="never pickled"):
            leave(s)
    assert KEY.hex() not in repr(s)
    assert repr(KEY) not in repr(s) + str(s)
    with pytest.raises(PrivacyParameterError) as caught:
        recorded_source(KEY[:-1])
    assert repr(KEY[:-1]) not in str(caught.value)
    with record_releases() as records:
        recorded_source().release(np.zeros(2), name="x", **COMMON)
        made = recorded_key(fresh_key)
    assert records._keys[-1] == made
    stored = pickle.loads(pickle.dumps(records))
    assert stored._keys == copy.copy(records)._keys == []
    assert made not in pickle.dumps(records)
    assert [r.name for r in stored] == ["x"]


# --- errors name parameter, value, rule and remedy ---------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sensitivity": 0.0}, "sensitivity=0.0 must be a finite number > 0"),
        ({"sensitivity": np.inf}, "sensitivity=inf must be a finite"),
        ({"sensitivity": "1"}, "sensitivity='1' must be a finite number"),
        ({"sensitivity": None}, "sensitivity=None must be a finite"),
        ({"noise_multiplier": -1.0}, "noise_multiplier=-1.0 must be a finite number >= 0"),
        ({"noise_multiplier": np.nan}, "noise_multiplier=nan must be"),
        ({"bound": 0.0}, "bound=0.0 must be a finite number > 0"),
        ({"bound": np.nan}, "bound=nan must be"),
        ({"bound": 1e14}, "Give a smaller bound"),
        ({"noise_multiplier": 1e12}, "release fewer values at a time"),
        ({"sensitivity": 1e-300}, "leaves the range of float64"),
        ({"noise_multiplier": np.inf, "noise": "laplace"}, "noise_multiplier=inf"),
        ({"sensitivity": -1.0, "noise": "laplace"}, "l1 for Laplace noise"),
        ({"layout": "packed", "noise": "laplace"}, "layout='packed' must be .* 'full' for noise="),
        ({"noise": "Laplace"}, "noise='Laplace' must be 'gaussian' or 'laplace'"),
        ({"noise": None}, "noise=None must be"),
        ({"layout": "upper"}, "layout='upper' must be 'full' or 'packed'"),
        ({"layout": "packed"}, r"statistic of shape=\(5,\) must be of k \* \(k \+ 1\) / 2"),
        ({"name": ""}, "name='' must be a non-empty str"),
        ({"name": 3}, "name=3 must be a non-empty str"),
    ],
)
def test_release_errors(change, message):
    arguments = {"name": "x", **COMMON, **change}
    s = source()
    with pytest.raises(PrivacyParameterError, match=message):
        s.release(np.zeros(5), **arguments)
    # a refused call has drawn nothing and used up no name
    s.release(np.zeros(5), name="x", **COMMON)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: derived_key(0.5), "seed=0.5 must be an integer"),
        (lambda: derived_key(True), "seed=True must be an integer"),
        (lambda: derived_key(0, 3), "type of a part='int'"),
        (lambda: derived_key(0, np.array(["a"])), "type of a part='<U1'"),
        (lambda: derived_key(0, np.array([1j])), "type of a part='complex128'"),
        (lambda: recorded_source("secret"), "type of key='str' must be bytes, 32"),
        (lambda: slot_priorities(b"", "x", np.zeros(1), np.zeros(0)), "must be bytes, 32"),
        (lambda: source().blocks(shape=(3, -1), name="x", **COMMON), r"\(3, -1\) must be lengths"),
        (lambda: truncate_to_grid([1.0], 0.3), "grid=0.3 must be a power of two"),
        (lambda: truncate_to_grid([1.0], -2.0), "grid=-2.0 must be a finite number > 0"),
        (lambda: exact_grid(0, 1.0), "n_slots=0 must be an integer >= 1"),
        (lambda: exact_grid(10, 1.0, degree=3), "degree=3 must be 1 or 2"),
        (lambda: exact_grid(10, 1e200), "inside the range"),
    ],
)
def test_other_errors(call, message):
    with pytest.raises(PrivacyParameterError, match=message):
        call()


# --- without the compiler ----------------------------------------------------------------

_SCRIPT = """
import numpy as np
from skdpmf.privacy.sampler.noise import NoiseSource
from skdpmf.privacy.sampler.streams import derived_key
s = NoiseSource(derived_key(7, "no jit"))
out = s.release(np.arange(276.0), name="x", sensitivity=1.0, noise_multiplier=2.0, bound=500.0,
                layout="packed")
pure = s.release(np.arange(276.0), name="y", sensitivity=1.0, noise_multiplier=2.0, bound=500.0,
                 noise="laplace")
with s.blocks(name="x", index=1, shape=(2, 276), sensitivity=1.0, noise_multiplier=2.0,
              bound=500.0, layout="packed") as blocks:
    part = blocks.release(250, np.arange(100.0))
rows = s.slot_priorities("trim", np.array([0, 2, 2, 5]), np.array([1, 4, 0, 1, 4]))
import sys
sys.stdout.write(" ".join(x.tobytes().hex() for x in (out, pure, part, rows)))
"""


def test_the_same_bits_without_the_compiler():
    outputs = [
        subprocess.run(
            [sys.executable, "-W", "error", "-c", _SCRIPT],
            env={**os.environ, "NUMBA_DISABLE_JIT": off},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for off in ("0", "1")
    ]
    assert len(outputs[0]) == 2 * 8 * (276 + 276 + 100 + 5) + 3
    assert outputs[0] == outputs[1]
