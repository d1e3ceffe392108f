"""Chain diagnostics: ArviZ's figures, known effective sizes, and what no rotation may change."""

import numpy as np
import pytest
from numpy import inf, nan
from scipy import sparse

from skdpmf.mechanisms.posterior_draw.draw import chain_quantities, diagnose
from skdpmf.mechanisms.posterior_draw.gibbs import State, Target
from tests.reference.chain_diagnostics import oracle_cases

CASES = oracle_cases()

# R-hat and bulk ESS by ArviZ 0.23.4 (numpy 2.4.6, scipy 1.17.1):
# python tests/reference/chain_diagnostics.py
ARVIZ = {
    "independent": (1.0017129534076605, 979.2726961566772),
    "slow": (1.036776185779669, 46.551406073062964),
    "antithetic": (1.0006565933407991, 2873.430693546596),
    "odd number of draws": (1.0037057886958798, 134.22709553169304),
    "shifted": (1.533126327364253, 7.465007875446507),
    "scaled": (1.1464042684761615, 714.5104376831436),
    "trend": (1.1404614301644984, 19.380281328605342),
    "heavy tails": (1.0070467930742648, 293.76410246351327),
    "ties": (1.0924778577159509, 42.09178918600924),
    "two values": (0.9975508665253366, 566.7554420743671),
    "rare value": (0.9974839711076608, 643.3848696263602),
}


@pytest.mark.parametrize("name", CASES)
def test_agrees_with_arviz(name):
    found = diagnose(["x"], CASES[name][:, :, np.newaxis])
    rhat, ess = ARVIZ[name]
    assert found.rhat[0] == pytest.approx(rhat, rel=1e-11)
    # ArviZ keeps one term of the pair that ends its sum, which lowers the variance a little
    assert found.ess[0] == pytest.approx(ess, rel=0.06)


def test_what_cannot_be_judged_does_not_pass():
    x = np.random.default_rng(9).normal(size=(4, 500, 5))
    x[2, 7, :3] = nan, inf, -inf
    x[:, :, 3] = 0.1
    # two values as often fold into one, whose R-hat is none: that of the draws is left
    x[:, :, 4] = np.sign(x[:, :, 4] - np.median(x[:, :, 4]))
    found = diagnose("abcde", x)
    assert np.isnan(found.rhat).tolist() == [True, True, True, True, False]
    assert not found.converged
    assert diagnose("e", x[:, :, 4:]).converged
    assert np.isnan(diagnose("e", x[:, :3, 4:]).rhat).all()
    assert not diagnose("a", x[:, :, :1]).converged


def problem(*, seed=0, n_users=9, n_items=7, k=3, bound=1.0):
    """A target with an unrated user, an unrated item and a user of weight 0, and a state."""
    rng = np.random.default_rng(seed)
    mask = rng.random((n_users, n_items)) < 0.4
    mask[0] = mask[:, 0] = False
    R = sparse.csr_array(np.where(mask, rng.uniform(0.5, 2.0, mask.shape), 0.0))
    weights = rng.uniform(0.5, 2.0, n_users)
    weights[-1] = 0.0
    target = Target(R, weights, 0.3, bound, k, 1.0, 0.25, 0.5, sample_precisions=False)
    U, V = rng.normal(size=(n_users, k)), rng.normal(size=(n_items, k))
    return target, State(U, V, rng.normal(size=n_items), np.full(k, 1.0), np.full(k, 16.0))


def values(target, state):
    return np.array(list(chain_quantities(target, state).values()))


@pytest.mark.parametrize("bound", [0.3, inf])
def test_quantities_by_their_definitions(bound):
    target, state = problem(bound=bound)
    found = chain_quantities(target, state)
    R, P = target.R.toarray(), state.U @ state.V.T + state.item_bias
    losses = target.weights * ((R > 0) * (R - np.clip(P, -bound, bound)) ** 2).sum(axis=1)
    squares = np.linalg.svd(state.V, compute_uv=False) ** 2
    expected = [losses.sum(), np.linalg.norm(state.U) ** 2, squares.sum(), (squares**2).sum()]
    head, *pairs = found.items()
    names = [name for name, _ in (head, *pairs)]
    assert names[:4] == ["loss", "|U|^2", "|V|^2", "|V'V|^2"]
    assert len(names) > 40  # of 63 cells
    cells = [tuple(map(int, name.split()[1].split(","))) for name in names[4:]]
    np.testing.assert_allclose(list(found.values()), expected + [P[cell] for cell in cells])
