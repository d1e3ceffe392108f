"""The chain's law: grids, joint tests and limits; its kernel has tests of its own.

Statistical tests have fixed seeds. Each is one or more tests at level ALPHA on independent draws,
so that a correct chain fails one of them with probability ALPHA for a random seed.
"""

import dataclasses

import numpy as np
import pytest
import scipy.sparse as sp
from scipy import stats

from skdpmf.mechanisms.posterior_draw.gibbs import GAMMA_SHAPE, GibbsChain, Target
from skdpmf.privacy.sampler.noise import NoiseSource
from skdpmf.privacy.sampler.streams import derived_key

ALPHA = 1e-4


def make_target(R, **changes):
    settings = {
        "weights": np.ones(R.shape[0]),
        "inverse_temperature": 1.0,
        "bound": 1.0,
        "n_components": 2,
        "user_std": 1.0,
        "item_std": 0.5,
        "bias_std": 0.5,
    }
    return Target(sp.csr_array(R), **(settings | changes))


def random_ratings(seed, n_users, n_items, density=0.6):
    rng = np.random.default_rng(seed)
    stored = rng.random((n_users, n_items)) < density
    return sp.csr_array((rng.uniform(-2, 2, stored.sum()), np.nonzero(stored)), stored.shape)


def run(target, n_sweeps, *, seed=0, **settings):
    chain = GibbsChain(target, NoiseSource(derived_key(seed)), **settings)
    for t in range(n_sweeps):
        chain.sweep(t)
    return chain


def arrays(chain):
    state = chain.state
    return [getattr(state, field.name) for field in dataclasses.fields(state)]


def assert_same(a, b):
    for x, y in zip(a, b, strict=True):
        np.testing.assert_array_equal(x, y)


def assert_normal(z):
    assert stats.kstest(np.ravel(z), "norm").pvalue > ALPHA


@pytest.mark.parametrize("n_sweeps", [0, 2])
@pytest.mark.parametrize("bound", [0.1, np.inf])
def test_without_data_it_draws_the_prior(n_sweeps, bound):
    R = random_ratings(0, 300, 200, density=0.05)
    target = make_target(R, inverse_temperature=0.0, bound=bound, user_std=3.0, bias_std=0.2)
    state = run(target, n_sweeps).state
    assert_normal(state.U / 3.0)
    assert_normal(state.V / 0.5)
    assert_normal(state.item_bias / 0.2)
    np.testing.assert_allclose(state.user_precision, 1 / 9.0)
    np.testing.assert_allclose(state.item_precision, 4.0)


def test_a_user_without_weight_influences_nobody():
    """Bit for bit, whatever he rated; his own factors are a draw from the prior."""
    rng = np.random.default_rng(2)
    R = random_ratings(2, 300, 6).toarray()
    chains = []
    for record in (np.zeros(6), rng.uniform(-2, 2, 6), np.array([0, 0, 1e300, 0, 0, 5.0])):
        R[7] = record
        weights = np.full(300, 0.02)
        weights[7] = 0.0
        chains.append(run(make_target(R, weights=weights, sample_precisions=True), 5))
    for other in chains[1:]:
        assert_same(arrays(chains[0]), arrays(other))
        assert chains[0].n_accepted == other.n_accepted
    assert chains[0].n_accepted < chains[0].n_proposed


@pytest.mark.parametrize("sample_precisions", [False, True])
def test_threads_change_no_bit(sample_precisions):
    target = make_target(random_ratings(3, 70, 30), sample_precisions=sample_precisions)
    one, many = run(target, 4), run(target, 4, n_jobs=3)
    assert_same(arrays(one), arrays(many))
    assert one.n_accepted == many.n_accepted < one.n_proposed


def test_every_purpose_has_a_stream_of_its_own():
    class Spy(NoiseSource):
        def __init__(self):
            super().__init__(derived_key(0))
            self.used = []

        def normals(self, shape, name, index):
            self.used.append((name, index))
            return super().normals(shape, name, index)

    spy = Spy()
    chains = [
        GibbsChain(make_target(np.ones((3, 3)), sample_precisions=True), spy, name=name)
        for name in ("a", "b")
    ]
    for t in range(3):
        for chain in chains:
            chain.sweep(t)
    # starts of users, items and biases; factors, directions, choices, precisions of both sides
    assert len(spy.used) == 2 * (3 + 3 * 8)
    assert len(set(spy.used)) == len(spy.used)


def joint_draw(number, bound, bias_std, sample_precisions):
    """Draw parameters from the prior, ratings given them, then sweep: still the joint law."""
    rng = np.random.default_rng([number, 5])
    (n_users, n_items), k, a, std = (5, 4), 2, 0.8, (1.3, 0.6)
    stored = rng.random((n_users, n_items)) < 0.7
    weights = rng.choice([0.0, 0.5, 2.0], n_users, p=[0.1, 0.5, 0.4])
    target = make_target(
        stored.astype(float),
        bound=bound,
        weights=weights,
        inverse_temperature=a,
        user_std=std[0],
        item_std=std[1],
        bias_std=bias_std,
        sample_precisions=sample_precisions,
    )
    chain = GibbsChain(target, NoiseSource(derived_key(number)))
    state = chain.state
    if sample_precisions:
        for precision, s in zip((state.user_precision, state.item_precision), std, strict=True):
            precision[:] = rng.gamma(GAMMA_SHAPE, 1.0 / (GAMMA_SHAPE * s**2), k)
    state.U[:] = rng.normal(size=(n_users, k)) / np.sqrt(state.user_precision)
    state.V[:] = rng.normal(size=(n_items, k)) / np.sqrt(state.item_precision)
    state.item_bias[:] = bias_std * rng.normal(size=n_items)

    users, items = np.nonzero(stored)
    weight = weights[users]

    def predictions():
        p = np.einsum("nk,nk->n", state.U[users], state.V[items]) + state.item_bias[items]
        return np.clip(p, -bound, bound)

    # what has no weight is arbitrary
    noise = rng.normal(size=len(users)) / np.sqrt(np.where(weight > 0, 2 * a * weight, 1.0))
    R = sp.csr_array((predictions() + noise, (users, items)), shape=stored.shape)
    before = chain.state
    chain = GibbsChain(dataclasses.replace(target, R=R), NoiseSource(derived_key(number)))
    for field in dataclasses.fields(before):
        setattr(chain.state, field.name, getattr(before, field.name))
    for t in range(3):
        chain.sweep(t)
    state = chain.state
    chi2 = 2 * a * np.sum(weight * (R.data - predictions()) ** 2)
    found = {
        "user": stats.norm.cdf(state.U[0, 0] * np.sqrt(state.user_precision[0])),
        "item": stats.norm.cdf(state.V[0, 1] * np.sqrt(state.item_precision[1])),
        "all users": stats.chi2.cdf(np.sum(state.user_precision * state.U**2), state.U.size),
        "all items": stats.chi2.cdf(np.sum(state.item_precision * state.V**2), state.V.size),
        "product": state.U[1, 0] * state.V[1, 0] > 0,
        "fit": stats.chi2.cdf(chi2, np.count_nonzero(weight)) if weight.any() else rng.random(),
    }
    if bias_std:
        found["bias"] = stats.norm.cdf(state.item_bias[0] / bias_std)
    if sample_precisions:
        for side, s in zip(("user", "item"), std, strict=True):
            precision = getattr(state, f"{side}_precision")[1]
            found[f"{side} precision"] = stats.gamma.cdf(precision, GAMMA_SHAPE, scale=s**-2.0)
    moved = chain.n_accepted < chain.n_proposed
    return found, moved


@pytest.mark.parametrize("bound", [0.6, np.inf])
@pytest.mark.parametrize(
    ("bias_std", "sample_precisions"), [(0.0, False), (0.7, False), (0.7, True)]
)
def test_joint_law_of_parameters_and_ratings_is_kept(bound, bias_std, sample_precisions):
    """If ratings are drawn given prior draws, the sweeps leave the parameters' prior invariant.

    The law of the ratings is N(clip(p_ij), 1 / (2 a w_i)), so that the clipped loss's density is a
    posterior too. J. Geweke, "Getting it right", JASA 99 (2004), with independent replicates.
    """
    draws, rejected = zip(
        *[joint_draw(i, bound, bias_std, sample_precisions) for i in range(300)], strict=True
    )
    assert np.mean(rejected) > 0.5 if bound < np.inf else not any(rejected)
    for name in draws[0]:
        values = np.array([draw[name] for draw in draws], float)
        if name == "product":
            p = stats.binomtest(int(values.sum()), len(values)).pvalue
        else:
            p = stats.kstest(values, "uniform").pvalue
        assert p > ALPHA, name
