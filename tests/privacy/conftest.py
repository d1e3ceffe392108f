"""What tests of the exact sampler share."""

import numpy as np
import pytest

from skdpmf.kernels.jit_and_threads import MOST_PLAIN_WORK, sized


@pytest.fixture(params=["plain", "compiled"])
def form(request, plain_where_small):
    """Take one form of every operation in a test; words wrap, which numpy notes for scalars."""
    cells = {"plain": 1, "compiled": MOST_PLAIN_WORK + 1}[request.param]
    with sized(cells), np.errstate(over="ignore"):
        yield request.param
