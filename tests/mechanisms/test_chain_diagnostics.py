"""Chain diagnostics: ArviZ's figures, known effective sizes, and what no rotation may change."""

import dataclasses

import numpy as np
import pytest
from numpy import inf, nan
from scipy import sparse, stats

from skdpmf.mechanisms.posterior_draw import chain_diagnostics as cd
from skdpmf.mechanisms.posterior_draw.chain_diagnostics import (
    Diagnostics,
    bulk_ess,
    chain_quantities,
    public_pairs,
    split_rhat,
    summarise,
    tail_ess,
)
from skdpmf.mechanisms.posterior_draw.target import State, Target
from tests.reference.chain_diagnostics import autoregressive, log_density, oracle_cases

STATISTICS = (split_rhat, bulk_ess, tail_ess)
CASES = oracle_cases()

# R-hat, bulk ESS and tail ESS by ArviZ 0.23.4 (numpy 2.4.6, scipy 1.17.1):
# python tests/reference/chain_diagnostics.py
ARVIZ = {
    "independent": (1.0017129534076605, 979.2726961566772, 999.3546843069255),
    "slow": (1.036776185779669, 46.551406073062964, 145.4426046534701),
    "antithetic": (1.0006565933407991, 2873.430693546596, 1078.9770917471556),
    "odd number of draws": (1.0037057886958798, 134.22709553169304, 238.76617844789544),
    "shifted": (1.533126327364253, 7.465007875446507, 49.526524411037975),
    "scaled": (1.1464042684761615, 714.5104376831436, 659.7679760982363),
    "trend": (1.1404614301644984, 19.380281328605342, 140.1421449394356),
    "heavy tails": (1.0070467930742648, 293.76410246351327, 417.0174920486025),
    "ties": (1.0924778577159509, 42.09178918600924, 223.10294633837043),
    "two values": (0.9975508665253366, 566.7554420743671, 566.7554420743676),
    "rare value": (0.9974839711076608, 643.3848696263602, 643.3848696263602),
    "one chain": (nan, 46.19422460121795, 67.00194206678917),
    "quantile on a draw": (1.003451511775367, 361.28527682686286, 466.00542437641377),
    "4 draws": (1.6014812977648658, 7.224719895935548, 7.224719895935548),
    "5 draws": (1.3832224996909843, 7.224719895935548, 7.224719895935548),
    "6 draws": (1.3422733605048458, 12.9501749525715, 12.9501749525715),
    "7 draws": (1.0878149926235632, 12.9501749525715, 12.9501749525715),
    "8 draws": (0.9301221294130705, 19.265919722494797, 19.265919722494797),
    "9 draws": (1.0232989303255826, 19.265919722494797, 16.0),
    "10 draws": (1.0637728187318725, 20.038111937770957, 21.73913043478261),
    "11 draws": (0.938499164412427, 26.020599913279625, 26.020599913279625),
    "12 draws": (1.005335796709879, 33.12506980107854, 29.142857142857153),
    "8 draws, antithetic": (2.278373397038787, 19.265919722494797, 19.265919722494797),
    "12 draws, antithetic": (1.8921745481668957, 33.12506980107854, 17.419354838709676),
    "negative last term": (1.047047098198845, 28.39081696162501, 33.12506980107854),
    "two balanced values": (0.9928868122980201, 287.07093100532046, 240.0),
}


# Against ArviZ


def test_every_case_has_its_figures():
    assert list(CASES) == list(ARVIZ)


@pytest.mark.parametrize("name", CASES)
def test_agrees_with_arviz(name):
    found = [statistic(CASES[name]) for statistic in STATISTICS]
    np.testing.assert_allclose(found, ARVIZ[name], rtol=1e-11)


@pytest.mark.parametrize("statistic", STATISTICS)
def test_quantities_are_judged_one_by_one(statistic):
    rng = np.random.default_rng(0)
    draws = np.stack([autoregressive(rng, (3, 41), phi) for phi in (-0.9, 0.0, 0.5, 0.95)], axis=2)
    draws[1, 5, 1] = nan
    together = statistic(draws)
    assert together.shape == (4,)
    alone = [statistic(draws[:, :, q]) for q in range(4)]
    assert all(isinstance(value, float) for value in alone)
    np.testing.assert_array_equal(together, alone)
    assert np.isnan(together).tolist() == [False, True, False, False]


# Known laws, of 4 chains of 1000 draws, simulated with 40 other seeds or more. Each limit is 4
# standard deviations or more from the mean found there: false alarms below 1e-4 each.


@pytest.mark.parametrize("phi", [-0.5, 0.0, 0.5, 0.9])
def test_bulk_ess_of_an_autoregression(phi):
    x = autoregressive(np.random.default_rng(1), (4, 1000, 50), phi)
    # the mean over 50 quantities, over this: 1.055, 0.985, 1.000, 1.008 (deviations 0.015 to 0.023)
    assert bulk_ess(x).mean() == pytest.approx(4000 * (1 - phi) / (1 + phi), rel=0.12)


def test_independent_draws_pass():
    x = np.random.default_rng(2).normal(size=(4, 1000, 50))
    # the largest: 1.0017 (deviation 0.0004); none can be below sqrt(1 - 1 / draws of half a chain)
    assert split_rhat(x).min() > np.sqrt(1.0 - 1.0 / 500.0)
    assert split_rhat(x).max() < 1.006
    # 0.961 (deviation 0.006)
    assert tail_ess(x).mean() == pytest.approx(0.96 * 4000, rel=0.05)


def test_chains_in_different_places_fail():
    rng = np.random.default_rng(3)
    assert split_rhat(rng.normal(size=(4, 500)) + 3.0 * np.arange(4.0)[:, None]) > 2.0


def test_chains_of_different_widths_fail_by_folding_only():
    x = np.random.default_rng(4).normal(size=(4, 1000)) * np.array([[1.0], [1.0], [1.0], [3.0]])
    # 1.0000 (deviation 0.0007) and 1.145 (0.009)
    assert cd._plain_rhat(cd._rank_normalise(cd._split(x[:, :, None]))) < 1.005
    assert split_rhat(x) > 1.1


def test_a_common_trend_fails_by_splitting_only():
    x = np.random.default_rng(5).normal(size=(4, 1000)) + np.linspace(0.0, 2.0, 1000)
    # 0.9999 (deviation 0.0003) and 1.125 (0.007)
    assert cd._plain_rhat(cd._rank_normalise(x[:, :, None])) < 1.005
    assert split_rhat(x) > 1.09


def test_infinite_mean_is_no_obstacle():
    """R-hat of the raw draws is blind for shifted Cauchy chains; ranks see the shift."""
    x = np.random.default_rng(6).standard_cauchy(size=(4, 1000)) + 2.0 * np.arange(4.0)[:, None]
    # 1.0007 (deviation 0.0010) and 1.247 (0.014)
    assert cd._plain_rhat(cd._split(x[:, :, None])) < 1.006
    assert split_rhat(x) > 1.18


# Invariances


@pytest.mark.parametrize("transform", [np.exp, np.arctan, lambda x: x**3, lambda x: 7.0 * x - 2.0])
def test_ess_depends_on_ranks_only(transform):
    x = autoregressive(np.random.default_rng(7), (3, 200, 4), 0.6)
    for ess in (bulk_ess, tail_ess):
        np.testing.assert_array_equal(ess(transform(x)), ess(x))
    bulk = [cd._plain_rhat(cd._rank_normalise(cd._split(y))) for y in (x, transform(x))]
    np.testing.assert_array_equal(*bulk)


@pytest.mark.parametrize("statistic", STATISTICS)
def test_order_of_chains_and_unit_do_not_matter(statistic):
    x = autoregressive(np.random.default_rng(8), (4, 200, 4), 0.6)
    np.testing.assert_allclose(statistic(x[::-1] * 1e9), statistic(x), rtol=1e-12)


# Edges


def test_one_value_only():
    x = np.full((4, 50), 0.1)
    assert np.isnan(split_rhat(x))
    assert bulk_ess(x) == tail_ess(x) == 200.0


def test_chains_that_stand_still_in_different_places():
    x = np.repeat([[0.1], [0.2], [0.3], [0.4]], 50, axis=1)
    assert split_rhat(x) > 1e3
    assert bulk_ess(x) < 10


@pytest.mark.parametrize("value", [nan, inf, -inf])
@pytest.mark.parametrize("statistic", STATISTICS)
def test_values_that_are_not_finite(statistic, value):
    x = np.random.default_rng(9).normal(size=(4, 50))
    x[2, 7] = value
    assert np.isnan(statistic(x))


@pytest.mark.parametrize("shape", [(4, 0), (4, 3), (0, 9), (0, 0)])
@pytest.mark.parametrize("statistic", STATISTICS)
def test_too_few_draws(statistic, shape):
    assert np.isnan(statistic(np.ones(shape)))


def test_one_chain_has_no_rhat_but_an_ess():
    x = np.random.default_rng(10).normal(size=(1, 50))
    assert np.isnan(split_rhat(x))
    assert bulk_ess(x) > 10


@pytest.mark.parametrize("statistic", STATISTICS)
def test_no_quantities(statistic):
    assert statistic(np.ones((4, 50, 0))).shape == (0,)


@pytest.mark.parametrize("shape", [(), (5,), (2, 5, 3, 1)])
@pytest.mark.parametrize("statistic", STATISTICS)
def test_dimensions_are_checked(statistic, shape):
    with pytest.raises(ValueError, match=r"draws of shape .* must have .* Pass"):
        statistic(np.ones(shape))


# Public pairs


@pytest.mark.parametrize(
    "shape",
    [(1, 1), (1, 7), (7, 1), (3, 2), (14, 14), (20, 11), (12, 18), (6040, 3706), (5, 10**6)],
)
def test_pairs_are_different_cells(shape):
    pairs = public_pairs(*shape)
    assert pairs.shape == (min(200, shape[0] * shape[1]), 2)
    assert pairs.min() >= 0
    assert (pairs < shape).all()
    assert len(np.unique(pairs, axis=0)) == len(pairs)
    np.testing.assert_array_equal(pairs, public_pairs(*shape))


@pytest.mark.parametrize("shape", [(6040, 3706), (1000, 1000), (50, 30)])
def test_pairs_are_spread(shape):
    pairs = public_pairs(*shape)
    quarter = pairs * 4 // np.array(shape)
    counts = np.zeros((4, 4))
    np.add.at(counts, tuple(quarter.T), 1)
    # 12.5 in each of 16 parts of the matrix; random pairs miss it by 6.5 or more half of the time
    assert np.abs(counts - 12.5).max() < 5


@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (0, 0)])
def test_no_pairs(shape):
    assert public_pairs(*shape).shape == (0, 2)


# Quantities of a state


def problem(*, seed=0, n_users=9, n_items=7, k=3, bound=1.0, density=0.4, **settings):
    """A target with an unrated user, an unrated item and a user of weight 0, and a state."""
    rng = np.random.default_rng(seed)
    mask = rng.random((n_users, n_items)) < density
    mask[0] = mask[:, 0] = False
    R = sparse.csr_array(np.where(mask, rng.uniform(0.5, 2.0, mask.shape), 0.0))
    weights = rng.uniform(0.5, 2.0, n_users)
    weights[-1] = 0.0
    settings = {"bias_std": 0.5, "sample_precisions": False} | settings
    target = Target(R, weights, 0.3, bound, k, 1.0, 0.25, **settings)
    precision = np.full(k, 1.0), np.full(k, 16.0)
    if target.sample_precisions:
        precision = rng.gamma(1.0, size=k), 16.0 * rng.gamma(1.0, size=k)
    bias = target.bias_std * rng.normal(size=n_items)
    U, V = rng.normal(size=(n_users, k)), rng.normal(size=(n_items, k))
    return target, State(U, V, bias, *precision)


def values(target, state, pairs):
    return np.array(list(chain_quantities(target, state, pairs).values()))


@pytest.mark.parametrize("bound", [0.3, inf])
def test_quantities_by_their_definitions(bound):
    target, state = problem(bound=bound)
    pairs = public_pairs(9, 7, n=5)
    found = chain_quantities(target, state, pairs)
    R = target.R.toarray()
    P = state.U @ state.V.T + state.item_bias
    losses = target.weights * ((R > 0) * (R - np.clip(P, -bound, bound)) ** 2).sum(axis=1)
    counted = losses[(R > 0).any(axis=1) & (target.weights > 0)]
    assert 2 <= len(counted) < len(losses) - 1
    eigenvalues = np.linalg.eigvalsh(state.V.T @ state.V)[::-1]
    expected = {
        "loss": losses.sum(),
        **{
            f"loss quantile {q}": np.quantile(counted, float(q))
            for q in ("0.05", "0.25", "0.5", "0.75", "0.95")
        },
        "|U|^2": np.linalg.norm(state.U) ** 2,
        "|V|^2": np.linalg.norm(state.V) ** 2,
        **{f"singular value {d + 1}": s for d, s in enumerate(np.sqrt(eigenvalues))},
        "log density": found["log density"],  # it has its own test
        **{f"prediction {i},{j}": P[i, j] for i, j in pairs},
    }
    assert list(found) == list(expected)
    assert all(type(value) is float for value in found.values())
    np.testing.assert_allclose(list(found.values()), list(expected.values()), rtol=1e-12)


@pytest.mark.parametrize("bias_std", [0.0, 0.5])
@pytest.mark.parametrize("sample_precisions", [False, True])
def test_log_density_up_to_a_constant(sample_precisions, bias_std):
    settings = {"sample_precisions": sample_precisions, "bias_std": bias_std}
    target, first = problem(bound=0.8, **settings)
    shift = []
    for seed in (1, 2, 3):
        _, other = problem(seed=seed, **settings)
        found, expected = (
            [density(target, state) for state in (first, other)]
            for density in (
                lambda t, s: chain_quantities(t, s, [])["log density"],
                log_density,
            )
        )
        assert found[1] - found[0] == pytest.approx(expected[1] - expected[0], rel=1e-10)
        shift.append(found[1] - found[0])
    assert np.ptp(shift) > 1.0


@pytest.mark.parametrize("seed", range(3))
def test_rotations_change_nothing(seed):
    target, state = problem(seed=seed, bound=0.8)
    pairs = public_pairs(9, 7)
    Q = stats.ortho_group.rvs(3, random_state=seed)
    turned = dataclasses.replace(state, U=state.U @ Q, V=state.V @ Q)
    before, after = values(target, state, pairs), values(target, turned, pairs)
    np.testing.assert_allclose(after, before, rtol=1e-9, atol=1e-12)
    # and the rotation is no trifle
    assert np.abs(turned.V - state.V).max() > 0.1


def test_permutations_and_signs_change_nothing_when_precisions_are_sampled():
    target, state = problem(sample_precisions=True)
    pairs = public_pairs(9, 7)
    order, sign = [2, 0, 1], np.array([1.0, -1.0, -1.0])
    turned = State(
        state.U[:, order] * sign,
        state.V[:, order] * sign,
        state.item_bias,
        state.user_precision[order],
        state.item_precision[order],
    )
    np.testing.assert_allclose(
        values(target, turned, pairs), values(target, state, pairs), rtol=1e-9, atol=1e-12
    )
    found = chain_quantities(target, state, pairs)
    assert found["log det user precision"] == pytest.approx(np.log(state.user_precision.prod()))
    assert found["log det item precision"] == pytest.approx(np.log(state.item_precision.prod()))


@pytest.mark.parametrize(
    "change",
    [
        lambda s: dataclasses.replace(s, U=1.01 * s.U, V=s.V / 1.01),
        lambda s: dataclasses.replace(s, U=s.U[::-1].copy()),
        lambda s: dataclasses.replace(s, item_bias=s.item_bias + 0.01),
    ],
)
def test_other_changes_show(change):
    target, state = problem(bound=inf)
    pairs = public_pairs(9, 7)
    assert np.abs(values(target, change(state), pairs) - values(target, state, pairs)).max() > 1e-3


def test_layout_and_type_of_the_state_do_not_matter():
    target, state = problem()
    other = dataclasses.replace(state, U=np.asfortranarray(state.U), V=state.V[::-1].copy()[::-1])
    pairs = public_pairs(9, 7)
    np.testing.assert_allclose(
        values(target, other, pairs), values(target, state, pairs), rtol=1e-12
    )


def test_without_ratings_that_count_there_is_no_loss():
    for density, weight in ((0.0, 1.0), (0.5, 0.0)):
        target, state = problem(density=density)
        target = dataclasses.replace(target, weights=np.full(9, weight))
        found = chain_quantities(target, state, [])
        assert list(found) == [
            "|U|^2",
            "|V|^2",
            *[f"singular value {d}" for d in (1, 2, 3)],
            "log density",
        ]
        assert np.isfinite(list(found.values())).all()


def test_more_components_than_items():
    target, state = problem(n_items=2, k=4)
    assert [n for n in chain_quantities(target, state, []) if n.startswith("singular")] == [
        "singular value 1",
        "singular value 2",
    ]


@pytest.mark.parametrize("value", [nan, inf, -inf, 1e200])
@pytest.mark.parametrize("field", ["U", "V", "item_bias"])
def test_a_chain_that_ran_away_is_told_by_its_values(field, value):
    """Neither raises nor warns, and does not pass for a chain that converged."""
    target, state = problem(bound=1.0)
    getattr(state, field)[3] = value
    pairs = public_pairs(9, 7)
    bad = values(target, state, pairs)
    good = [values(target, problem(seed=s)[1], pairs) for s in range(1, 8)]
    names = list(chain_quantities(target, state, pairs))
    found = summarise(names, np.array([good, good[:3] + [bad] + good[4:]]))
    assert np.isnan(found.rhat[names.index("log density")])
    assert not found.converged


# Summary


def diagnostics(rhat, bulk, tail):
    names = tuple(f"q{i}" for i in range(len(rhat)))
    return Diagnostics(names, np.array(rhat), np.array(bulk), np.array(tail), 4, 500)


@pytest.mark.parametrize(
    ("rhat", "bulk", "tail", "converged"),
    [
        (1.0099, 400.1, 400.1, True),
        (1.01, 1e3, 1e3, False),
        (1.0, 400.0, 1e3, False),
        (1.0, 1e3, 400.0, False),
        (nan, 1e3, 1e3, False),
        (1.0, nan, 1e3, False),
        (1.0, 1e3, nan, False),
        (0.99, 1e3, 1e3, True),
    ],
)
def test_converged(rhat, bulk, tail, converged):
    assert diagnostics([1.0, rhat], [1e3, bulk], [1e3, tail]).converged is converged
    assert ("all 2 pass" in str(diagnostics([1.0, rhat], [1e3, bulk], [1e3, tail]))) is converged


def test_summary_of_mixed_and_unmixed_chains():
    x = np.random.default_rng(11).normal(size=(4, 500, 3))
    good = summarise(["a", "b", "c"], x)
    assert good.converged
    for statistic, field in zip(STATISTICS, ("rhat", "ess_bulk", "ess_tail"), strict=True):
        np.testing.assert_array_equal(getattr(good, field), statistic(x))
    assert (good.names, good.n_chains, good.n_draws) == (("a", "b", "c"), 4, 500)
    x[0, :, 1] += 1.0
    bad = summarise(["a", "b", "c"], x)
    assert not bad.converged
    assert bad._fails().tolist() == [False, True, False]


def test_table_shows_the_worst_first():
    text = str(diagnostics([1.001, 1.5, 1.0, nan], [900, 800, 20, 700], [900, 700, 950, 600]))
    lines = text.splitlines()
    rows = [line.split() for line in lines if line.startswith("q")]
    assert [row[0] for row in rows] == ["quantity", "q3", "q1", "q2", "q0"]
    assert rows[2][1:] == ["1.5000", "800", "700"]
    table = lines[lines.index("") + 1 :][:6]
    assert len({len(line) for line in table}) == 1
    assert "3 of 4 fail" in text
    assert "must not be published" in lines[-1]


def test_long_table_is_cut():
    n = 25
    found = diagnostics([1.0] * n, np.arange(n) + 1.0, [1e3] * n)
    rows = [line.split()[0] for line in str(found).splitlines() if line.startswith("q")][1:]
    assert rows == [f"q{i}" for i in range(10)]
    assert "... and 15 more" in str(found)
    assert "more" not in str(diagnostics([1.0], [1e3], [1e3]))


def test_diagnostics_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        diagnostics([1.0], [1e3], [1e3]).n_chains = 5


@pytest.mark.parametrize(
    ("names", "shape"),
    [(["a"], (4, 50)), (["a"], (4, 50, 2)), (["a", "b"], (4, 50, 1)), ([], (4, 50, 0))],
)
def test_names_and_draws_must_fit(names, shape):
    with pytest.raises(ValueError, match=r"draws of shape .* must have .* Stack"):
        summarise(names, np.ones(shape))
