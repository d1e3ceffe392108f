"""Random small problems for the kernel tests."""

from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from numba import config

# Without the JIT every vector operation is a NumPy call: fewer examples do.
examples = settings(max_examples=25 if config.DISABLE_JIT else 60, deadline=None, derandomize=True)

float_types = st.sampled_from([np.float32, np.float64])
forms = pytest.mark.parametrize("form", ["plain", "compiled"])
index_types = st.sampled_from([np.int32, np.int64])


class Pattern(NamedTuple):
    indptr: np.ndarray
    indices: np.ndarray
    n_columns: int

    @property
    def n_rows(self):
        return len(self.indptr) - 1


def random_pattern(rng, n_rows, n_columns, index_type=np.int64, density=0.4):
    """A CSR pattern in which some rows are empty and others full."""
    fill = rng.choice([0.0, density, 1.0], size=n_rows, p=[0.2, 0.6, 0.2])
    stored = rng.random((n_rows, n_columns)) < fill[:, None]
    indptr = np.concatenate(([0], np.cumsum(stored.sum(axis=1)))).astype(index_type)
    return Pattern(indptr, np.nonzero(stored)[1].astype(index_type), n_columns)


def part_of(data, n):
    """Draw a range of n places."""
    start = data.draw(st.integers(0, n))
    return start, data.draw(st.integers(start, n))


def types_of(form, index_type, dtype=np.float64):
    """Types of a case: in compiled form the usual ones, as each other one is compiled anew."""
    return (index_type, dtype) if form == "plain" else (np.int64, np.float64)


def read_only(form, *arrays):
    """Copies that cannot be written; in compiled form, where such arrays are other types, can."""
    copies = [array.copy() for array in arrays]
    for array in copies:
        array.flags.writeable = form != "plain"
    return copies
