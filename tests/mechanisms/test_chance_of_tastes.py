"""Tastes that choices show, beside those that chance shows."""

import numpy as np
import pytest
from scipy import sparse

from skdpmf.mechanisms.common import shows_tastes


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
