import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skdpmf.kernels.topk import top_k_rows
from tests.kernels import _problems as problems
from tests.reference import topk as twin


def ranked(form, scores, pattern, row_offset, n_recommendations):
    items = np.full((len(scores), n_recommendations), -9)
    best = np.full((len(scores), n_recommendations), -9, scores.dtype)
    seen = pattern.indptr, pattern.indices
    getattr(top_k_rows, form)(scores, *seen, row_offset, n_recommendations, items, best)
    return items, best


def assert_ranked(form, scores, pattern, row_offset, n_recommendations):
    items, best = ranked(form, scores, pattern, row_offset, n_recommendations)
    for r in range(len(scores)):
        own = slice(pattern.indptr[row_offset + r], pattern.indptr[row_offset + r + 1])
        seen = set(pattern.indices[own].tolist())
        wanted = twin.top_k_row(scores[r], seen, n_recommendations)
        assert (items[r].tolist(), best[r].tolist()) == wanted


@problems.forms
@problems.examples
@given(
    seed=st.integers(0, 2**16),
    n_rows=st.integers(0, 4),
    row_offset=st.integers(0, 3),
    n_items=st.integers(1, 300),
    n_recommendations=st.integers(0, 40),
    levels=st.sampled_from([1, 3, 20, 10**6]),
    dtype=problems.float_types,
    index_type=problems.index_types,
)
def test_rows_are_ranked_like_a_full_sort(
    form, seed, n_rows, row_offset, n_items, n_recommendations, levels, dtype, index_type
):
    rng, (index_type, dtype) = (
        np.random.default_rng(seed),
        problems.types_of(form, index_type, dtype),
    )
    pattern = problems.random_pattern(rng, n_rows + row_offset, n_items, index_type)
    scores = rng.integers(-levels, levels, (n_rows, n_items)).astype(dtype)  # few levels: ties
    odd = rng.random(scores.shape)
    scores[odd < 0.05], scores[odd > 0.95], scores[abs(odd - 0.5) < 0.01] = np.nan, -np.inf, np.inf
    assert_ranked(form, scores, pattern, row_offset, n_recommendations)


@problems.forms
@pytest.mark.parametrize("order", ["rising", "falling", "equal"])
def test_sorted_and_equal_scores(form, order):
    # Rising scores make every item a candidate, falling ones none after the first few.
    scores = {"rising": np.arange(700.0), "falling": -np.arange(700.0), "equal": np.zeros(700)}
    pattern = problems.random_pattern(np.random.default_rng(0), 4, 700)
    assert_ranked(form, np.tile(scores[order], (4, 1)), pattern, 0, 25)
