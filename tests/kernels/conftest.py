"""Kernels in both of their forms: ``pytestmark = pytest.mark.usefixtures("form")``."""

from contextlib import nullcontext

import pytest

from skdpmf.kernels.jit_and_threads import sized


@pytest.fixture(params=["plain", "compiled"], scope="module")
def form(request, plain_where_small):
    with sized(1) if request.param == "plain" else nullcontext():
        yield request.param
