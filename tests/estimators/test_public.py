"""People who said yes: which rows are public, in which columns and units."""

import numpy as np
import pandas as pd
import pytest

from skdpmf import AdaptiveWeightALS, DPItemMeans, DPMFSampler, PrivacyBudget
from skdpmf.data import ParquetRatings, RatingMatrix, make_ratings
from skdpmf.data.validation import as_rating_matrix
from skdpmf.estimators.contract.public import public_rows_of

BUDGET = PrivacyBudget(4.0, 1e-5)


def rows_of(public, X, estimator=DPItemMeans):
    found = public_rows_of(estimator(BUDGET, public=public), X, X.shape[1])
    return None if found is None else (found.rows.toarray(), found.others)


def test_columns_fit_by_names_of_items():
    X = RatingMatrix(as_rating_matrix([[5.0, 1.0, np.nan]]), ["ann"], ["a", "b", "c"])
    public = pd.DataFrame({"d": [5.0], "c": [4.0], "a": [2.0]}, index=["bob"])
    rows, others = rows_of(public, X)
    np.testing.assert_array_equal(rows, [[-1.0, 0.0, 1.0]])  # in quarters from the middle
    assert others is None
    named = RatingMatrix(as_rating_matrix(public), ["bob"], list(public))
    np.testing.assert_array_equal(rows_of(named, X)[0], rows)


def test_ratings_are_clipped_and_rows_prepared_as_private_ones():
    rows, _ = rows_of([[9.0, -3.0]], np.array([[5.0, 1.0]]))
    np.testing.assert_array_equal(rows, [[2.0, -2.0]])


@pytest.mark.parametrize("given", [None, np.empty((0, 2)), np.full((3, 2), np.nan)])
def test_public_rows_without_ratings_are_none(given):
    assert rows_of(given, np.array([[5.0, 1.0]])) is None


def test_what_does_not_fit_is_refused_with_a_remedy():
    X = np.array([[5.0, 1.0]])
    with pytest.raises(ValueError, match=r"public has 3 columns and must have the 2 of X.*names"):
        rows_of(np.ones((1, 3)), X)
    named = RatingMatrix(as_rating_matrix(X), None, ["a", "b"])
    with pytest.raises(ValueError, match="must name some of X, such as 'a'"):
        rows_of(RatingMatrix(as_rating_matrix(X), None, [1, 2]), named)
    table = pd.DataFrame({"user": [1], "item": [2], "rating": [3.0]})
    with pytest.raises(ValueError, match="public has the columns"):
        rows_of(table, X)
    with pytest.raises(ValueError, match=r"public=.*None for these options"):
        AdaptiveWeightALS(BUDGET, solver="dpals", public=X).plan(2)
    with pytest.raises(TypeError, match="public"):
        DPMFSampler(PrivacyBudget(4.0), public=X)


def test_who_is_in_both_is_public_by_id_alone(tmp_path):
    R = make_ratings(6, 4, random_state=0)
    X = RatingMatrix(R, [f"u{i}" for i in range(6)], list("abcd"))
    public = X.rows(["u4", "u1"])
    np.testing.assert_array_equal(rows_of(public, X)[1], [1, 0, 1, 1, 0, 1])
    stored = ParquetRatings.write(tmp_path / "public", public)
    rows, others = rows_of(stored, X)
    np.testing.assert_array_equal(others, [1, 0, 1, 1, 0, 1])
    np.testing.assert_array_equal(rows, rows_of(public, X)[0])
    assert rows_of(RatingMatrix(R), RatingMatrix(R))[1] is None  # numbers of rows are no ids
