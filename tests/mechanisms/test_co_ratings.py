"""Directions of co-ratings: the statistic's slow twin, what is found, and where nothing is."""

import numpy as np
import pytest
from scipy import sparse

from skdpmf.mechanisms.common import (
    co_rating_directions,
    co_rating_vectors,
    shows_tastes,
    unpack_lower,
)
from skdpmf.privacy.clipped_sums import products
from skdpmf.privacy.sampler.grid import exact_grid
from skdpmf.privacy.users import reveal
from tests.core.audit import users_of


def ratings(kinds, n_users=1200, n_items=60, seed=0):
    """Users of so many kinds rate items of their kind four times as often as others."""
    rng = np.random.default_rng(seed)
    chance = np.linspace(0.3, 0.06, n_items)[None] * np.ones((n_users, 1))
    same = rng.integers(kinds, size=(n_users, 1)) == np.arange(n_items) % kinds
    chance *= np.where(same, 1.0, 0.25)
    X = sparse.csr_array((rng.random(chance.shape) < chance).astype(float))
    return X, 0.625 * n_users * np.linspace(0.3, 0.06, n_items)


def moments_of(X, head, N, grid):
    """What is released of these users, packed."""
    total = products(users_of(X), co_rating_vectors, head, N, clip=1.0, grid=grid)
    return reveal(total)


def factors(X, N, *, deviation=0.0, most=6, n_head=40):
    noise = deviation * np.random.default_rng(1).normal(size=n_head * (n_head + 1) // 2)
    rows, columns = np.tril_indices(n_head)
    noise[rows != columns] /= np.sqrt(2.0)
    head = np.arange(n_head)
    moments = moments_of(X, head, N[head], exact_grid(X.shape[0], 4.0))
    return co_rating_directions(
        moments + noise, head, N, N, most, n_users=X.shape[0], deviation=deviation
    )


def test_moments_are_the_twin():
    X, N = ratings(2, n_users=40, n_items=9)
    head = np.array([0, 1, 3, 4, 6, 8])
    scale = N[head] ** -0.5
    powers = np.column_stack((N, np.sqrt(N), np.ones(9)))[head]
    B = np.linalg.qr(scale[:, None] * powers)[0]
    expected = np.zeros((6, 6))
    for row in X.toarray()[:, head]:
        z = scale * row - B @ (B.T @ (scale * row))
        if np.linalg.norm(z) > 1e-8:
            expected += np.outer(z, z) / (z @ z)
    found = unpack_lower(moments_of(X, head, N[head], exact_grid(40, 1.0)))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("kinds", [2, 3])
def test_it_finds_the_kinds_of_users(kinds):
    """The first directions tell the kinds apart, constant within a kind but for the noise."""
    X, N = ratings(kinds)
    V = factors(X, N, deviation=2.0, most=kinds - 1)
    assert V.shape == (60, kinds - 1)
    assert not V[40:].any()
    assert np.sqrt(np.mean(V[:40] ** 2)) == pytest.approx(0.3)
    kind = np.arange(40) % kinds
    means = np.array([V[:40][kind == k].mean(axis=0) for k in range(kinds)])[kind]
    assert np.sum((V[:40] - means) ** 2) < 0.3 * np.sum(V[:40] ** 2)


def test_nobody_and_everything():
    """Users without ratings, and those who rated all of the head, contribute nothing."""
    X = sparse.csr_array(np.vstack((np.zeros((4, 5)), np.ones((3, 5)))))
    assert not moments_of(X, np.arange(5), np.arange(1.0, 6.0), 2.0**-20).any()


@pytest.mark.parametrize(("odds", "expected"), [(1.0, False), (3.0, True)])
def test_chance_shows_no_tastes(odds, expected):
    """Rare items of a long tail agree by chance more than the law of others allows."""
    rng = np.random.default_rng(0)
    for _ in range(6):
        same = rng.integers(2, size=(1200, 1)) == np.arange(300) % 2
        keys = np.log(np.where(same, odds, 1.0)) - 1.1 * np.log(np.arange(1.0, 301.0))
        rank = np.argsort(np.argsort(-keys - rng.gumbel(size=same.shape), axis=1), axis=1)
        chosen = rank < np.clip(rng.lognormal(3.0, 0.8, (1200, 1)), 8.0, 180.0)
        assert shows_tastes(sparse.csr_array(chosen.astype(float))) == expected
