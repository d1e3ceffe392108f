"""Posterior of the item vectors: Bayes' rule on noisy rounds."""

import numpy as np
import pytest

from skdpmf.mechanisms.als.item_update import ItemPosterior
from skdpmf.mechanisms.common import unpack_lower

D, N_ITEMS = 3, 8


def gram_matrices(rng, mass, d=D):
    """One Wishart matrix an item, of about the size that its mass tells."""
    X = rng.normal(size=(len(mass), 40, d))
    return np.einsum("jna,jnb->jab", X, X) / 40 * mass[:, None, None]


def packed(A):
    return np.stack([a[np.tril_indices(len(a))] for a in A])


def make(noise, *, seed=0):
    rng = np.random.default_rng(seed)
    mass, weight = rng.uniform(5, 50, N_ITEMS), rng.uniform(0.1, 0.5, N_ITEMS)
    prior, L = rng.normal(size=(N_ITEMS, D)), np.diag([2.0, 5.0, 5.0])
    posterior = ItemPosterior(prior, L, mass, weight, noise)
    return rng, posterior, gram_matrices(rng, mass)


@pytest.mark.parametrize("d", [1, 2, 7])
def test_packing(d):
    rng = np.random.default_rng(d)
    A = gram_matrices(rng, np.ones(4), d)
    np.testing.assert_array_equal(unpack_lower(packed(A)), A)
    # element (c, e), e <= c, stands at c (c + 1) / 2 + e
    for c in range(d):
        for e in range(c + 1):
            assert packed(A)[0, c * (c + 1) // 2 + e] == A[0, c, e]


def test_one_noisy_round_is_bayes_rule():
    """Prior N(prior, L^-1); h = A theta + N(0, s^2 I + v w A), A a share of the pooled."""
    s = 2.0
    rng, posterior, A = make(s)
    prior, L = posterior.theta.copy(), posterior.prior_precision
    g = rng.normal(size=(N_ITEMS, D))
    posterior.update(packed(A), g)
    used = posterior.mass[:, None, None] * (A.sum(axis=0) / posterior.mass.sum())
    for j in range(N_ITEMS):
        Q = s**2 * np.eye(D) + posterior.weight[j] * used[j]
        gain = used[j] @ np.linalg.inv(Q)
        h = g[j] + used[j] @ prior[j]
        expected = np.linalg.solve(gain @ used[j] + L, gain @ h + L @ prior[j])
        np.testing.assert_allclose(posterior.theta[j], expected, rtol=1e-7)


def test_knowledge_of_one_coordinate():
    _, posterior, _ = make(1.0)
    posterior.observe(0, np.full(N_ITEMS, 1e9), np.linspace(-1, 1, N_ITEMS))
    posterior.update(np.zeros((N_ITEMS, D * (D + 1) // 2)), np.zeros((N_ITEMS, D)))
    np.testing.assert_allclose(posterior.theta[:, 0], np.linspace(-1, 1, N_ITEMS), atol=1e-6)
