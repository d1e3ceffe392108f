"""The Langevin chain against laws that are known, most of them on many independent copies.

A matrix of n users with items of their own has n independent copies of one small posterior, so that
one state after the burn-in is n independent draws. All seeds are fixed; tests that compare drawn
moments allow 4 standard errors or more (false alarms 1e-4 each), other tests say what they allow.
"""

import numpy as np
import pytest
import scipy.sparse as sp
from scipy import stats

from skdpmf.mechanisms.posterior_draw import langevin
from skdpmf.mechanisms.posterior_draw.gibbs import Target
from skdpmf.mechanisms.posterior_draw.langevin import LangevinChain
from skdpmf.privacy.sampler.noise import NoiseSource
from skdpmf.privacy.sampler.streams import derived_key
from tests.reference.langevin import Grid

TABLES = [None, 2**16]


def chain_of(target, seed=0, **options):
    limits = {"max_weight": 1.0, "max_user_weight": 20.0}
    return LangevinChain(target, NoiseSource(derived_key(seed)), **(limits | options))


def run(chain, n_rounds, first=0):
    for t in range(first, first + n_rounds):
        chain.sweep(t)
    return chain.state


def copies(n, e):
    """n users, each with items of his own, with targets e."""
    m = len(e)
    places = np.arange(n * m), np.arange(n + 1) * m
    return sp.csr_array((np.tile(np.asarray(e, float), n), *places), shape=(n, n * m))


def random_target(seed=0, n_users=40, n_items=25, k=3, a=0.4, bound=2.0, **options):
    rng = np.random.default_rng(seed)
    rated = rng.random((n_users, n_items)) < 0.4
    R = sp.csr_array(np.where(rated, rng.uniform(-2, 2, rated.shape), 0.0))
    weights = options.pop("weights", rng.uniform(0.2, 1.0, n_users))
    stds = {"user_std": 1.0, "item_std": 0.5, "bias_std": 0.5} | options
    return Target(R, weights, a, bound, k, **stds)


@pytest.mark.parametrize("table_size", TABLES)
@pytest.mark.parametrize("step_size", [0.3, 500.0])
def test_without_temperature_the_prior_is_returned(table_size, step_size):
    """At any step. Kolmogorov-Smirnov, p > 1e-4 for three laws: false alarms 3e-4 a case."""
    target = random_target(1, 3000, 2500, 2, a=0.0, user_std=1.3, item_std=0.2, bias_std=0.6)
    chain = chain_of(target, step_size=step_size, table_size=table_size)
    before = chain.state
    state = run(chain, 12)
    for name, std in [("U", 1.3), ("V", 0.2), ("item_bias", 0.6)]:
        drawn = getattr(state, name)
        assert stats.kstest(drawn.ravel() / std, "norm").pvalue > 1e-4, name
        assert (drawn != getattr(before, name)).all()
        memory = np.corrcoef(drawn.ravel(), getattr(before, name).ravel())[0, 1]
        assert memory > 0.1 if step_size < 1 else abs(memory) < 0.1
    np.testing.assert_array_equal(state.user_precision, np.full(2, 1.3**-2))
    np.testing.assert_array_equal(state.item_precision, np.full(2, 0.2**-2))


def bias_only(e, weights, a, n_items, std, k=1):
    """Every user rates every item with his e: n_items copies of the posterior of one bias."""
    R = sp.csr_array(np.tile(np.asarray(e, float)[:, np.newaxis], n_items))
    return Target(R, np.asarray(weights, float), a, np.inf, k, 1e-4, 1e-4, std)


@pytest.mark.parametrize("table_size", TABLES)
@pytest.mark.parametrize("x", [0.05, 0.4, 1.0])
def test_stationary_variance_of_the_published_example(x, table_size):
    """F = 1.7 c^2 at a = .3: .980 as the step goes to 0, and neither .147, .490 nor .069.

    A round is c -> (1 - x)(c + noise of x) + noise of x, x = h a 1.7, whose variance is known.
    """
    n = 40_000
    chain = chain_of(bias_only([1.0], [1.7], 0.3, n, 100.0), 2, table_size=table_size)
    chain.bias_step = x / (0.3 * 1.7)
    state = run(chain, round(9 / x))
    expected = (1 - x + x**2 / 2) / (1 - x / 2) / (2 * 0.3 * 1.7)
    assert state.item_bias.var() == pytest.approx(expected, rel=4 * np.sqrt(2 / n) + 1e-3)
    assert state.item_bias.mean() == pytest.approx(1.0, abs=4 * np.sqrt(expected / n))
    if x == 0.05:
        assert abs(expected - 0.980) < 0.03


def grid_chain(n, e, bound, step_size, a=0.6, w=1.3, user_std=1.0, item_std=0.7, **options):
    """Copies of one user and the items that he alone rates, and their law."""
    target = Target(copies(n, e), np.full(n, w), a, bound, 1, user_std, item_std, 0.0)
    # one rating an item, of n users that could
    limits = {"max_weight": w / n, "max_user_weight": w * len(e)}
    chain = chain_of(target, 5, **limits, step_size=step_size, **options)
    return chain, Grid(e, a, w, bound, user_std, item_std)


@pytest.mark.parametrize("table_size", TABLES)
def test_one_user_and_one_item_against_the_grid_posterior(table_size):
    """The clip binds for a third. Chi-square of u, v jointly, 36 cells, p > 1e-4."""
    n = 12_000
    chain, grid = grid_chain(n, [1.5], 0.6, 0.1, table_size=table_size)
    state = run(chain, 800)
    probability = grid.pairs[0]
    clipped = probability[np.abs(grid.p) > 0.6].sum()
    assert 0.25 < clipped < 0.75
    cuts = []
    for values, axis in ((grid.u, 1), (grid.v, 0)):
        cumulative = np.cumsum(probability.sum(axis=axis))
        cuts.append(values[np.searchsorted(cumulative, np.arange(1, 6) / 6)])
    edges = [np.concatenate(([-np.inf], cut + 1e-9, [np.inf])) for cut in cuts]
    observed = np.histogram2d(state.U[:, 0], state.V[:, 0], edges)[0]
    where = np.meshgrid(grid.u, grid.v, indexing="ij")
    expected = np.histogram2d(*(x.ravel() for x in where), edges, weights=probability.ravel())[0]
    assert expected.min() > 1e-3
    assert stats.chisquare(observed.ravel(), n * expected.ravel()).pvalue > 1e-4
    # the law of the loss that is not clipped is far away
    other = Grid([1.5], 0.6, 1.3, np.inf, 1.0, 0.7).pairs[0]
    wrong = np.histogram2d(*(x.ravel() for x in where), edges, weights=other.ravel())[0]
    assert stats.chisquare(observed.ravel(), n * wrong.ravel()).pvalue < 1e-30


def test_every_row_has_noise_after_its_last_likelihood_step():
    """A step of x = 1 moves each bias exactly to its target: the state must not show that."""
    n = 4000
    target = bias_only([1.5], [1.0], 0.5, n, 100.0)
    chain = chain_of(target)
    chain.bias_step = 1.0 / 0.5
    chain.sweep(0)
    np.testing.assert_allclose(chain._item_bias, 1.5, rtol=1e-5)
    state = chain.state
    assert (state.item_bias - 1.5).var() == pytest.approx(1.0, abs=4 * np.sqrt(2 / n))


@pytest.mark.parametrize("table_size", TABLES)
def test_a_state_right_after_a_round_has_all_rows_at_the_present(table_size):
    """Items that nobody rated and users who rated nothing: anew, and at the prior's variance."""
    n = 3000
    R = sp.csr_array((np.ones(40), (np.arange(40) % 5, np.arange(40) // 5)), shape=(n, n))
    target = Target(R, np.ones(n), 0.5, 2.0, 4, 1.0, 0.3, 0.5)
    chain = chain_of(target, 6, table_size=table_size)
    parts = [chain._U[:-1, :4], chain._V[:, :4], chain._item_bias]
    for t in range(3):
        chain.sweep(t)
        before = [part.copy() for part in parts]
        state = chain.state
        for part, old in zip(parts, before, strict=True):
            assert (part != old).mean() > 0.99
        for values, std in [(state.U[5:], 1.0), (state.V[8:], 0.3), (state.item_bias[8:], 0.5)]:
            slack = 4 * np.sqrt(2 / values.size)
            assert values.var() / std**2 == pytest.approx(1, abs=slack)


def test_a_user_without_weight_has_no_influence_bit_for_bit():
    """Neither his ratings nor how many there are, compared with an empty record."""
    weights = np.array([1.0, 0.0, 0.5, 0.0, *np.ones(36)])
    target = random_target(2, weights=weights)
    rows = np.repeat(np.arange(40), np.diff(target.R.indptr))
    silent = weights[rows] == 0
    louder = target.R.copy()
    louder.data[silent] *= -5
    emptied = target.R.copy()
    emptied.data[silent] = 0.0
    emptied.eliminate_zeros()
    states = []
    for R in (target.R, louder, emptied):
        changed = Target(R, weights, 0.4, 2.0, 3, 1.0, 0.5, 0.5, True)
        states.append(run(chain_of(changed, fixed_rounds=0), 6))
    for other in states[1:]:
        for name, array in vars(states[0]).items():
            np.testing.assert_array_equal(getattr(other, name), array)
    heard = target.R.copy()
    heard.data[~silent] += 0.5
    changed = Target(heard, weights, 0.4, 2.0, 3, 1.0, 0.5, 0.5, True)
    assert (run(chain_of(changed, fixed_rounds=0), 6).V != states[0].V).all()


def test_steps_come_from_public_numbers_alone():
    one, two = random_target(1), random_target(2)
    assert one.R.nnz != two.R.nnz
    chains = [chain_of(target) for target in (one, two)]
    assert len({(chain.step, chain.bias_step, chain._scale) for chain in chains}) == 1
    assert chain_of(one, step_size=1.0).step == 2 * chains[0].step


def test_blocks_of_noise_are_not_the_same(monkeypatch):
    """However many rows are drawn at a time, no two of them get the same noise."""
    monkeypatch.setattr(langevin, "batch_rows", lambda *_: 21)
    target = random_target(n_users=200, a=0.0)
    for table_size in TABLES:
        state = run(chain_of(target, table_size=table_size), 3)
        for x in (state.U, state.V):
            assert len(np.unique(x)) == x.size
