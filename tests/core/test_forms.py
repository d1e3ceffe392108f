"""Every fit by plain and by compiled operations: the same noise, and the same releases to 1e-9."""

import numpy as np
import pytest

from skdpmf.kernels import jit_and_threads
from tests.core.cases import CASES

pytestmark = pytest.mark.usefixtures("plain_where_small")


@pytest.mark.every_case
@pytest.mark.parametrize("name", CASES)
def test_releases_do_not_depend_on_the_form(name, monkeypatch):
    case = CASES[name]
    model, plain = case.fit()
    monkeypatch.setattr(jit_and_threads, "MOST_PLAIN_WORK", -1)
    other, compiled = case.fit()
    assert plain._keys == compiled._keys
    for a, b in zip(plain, compiled, strict=True):
        np.testing.assert_allclose(a.statistic, b.statistic, rtol=1e-9, atol=1e-9)
        noise = a.output - a.statistic, b.output - b.statistic
        np.testing.assert_allclose(*noise, rtol=1e-9, atol=1e-9)
    for name, value in vars(model).items():
        if isinstance(value, np.ndarray) and value.dtype.kind == "f":
            np.testing.assert_allclose(value, vars(other)[name], rtol=1e-9, atol=1e-9)
