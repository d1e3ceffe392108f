"""Columns of item features: a linear map, whatever their units; errors name item and feature."""

import numpy as np
import pandas as pd
import pytest
from scipy import sparse

from skdpmf.data.feature_columns import (
    MOST_COLUMNS,
    aligned_features,
    check_item_features,
    item_columns,
)

F = np.random.default_rng(0).normal(size=(30, 4))


def test_columns_are_centred_and_of_norm_one():
    columns = item_columns(F)
    np.testing.assert_allclose(columns.values.mean(axis=0), 0.0, atol=1e-12)
    assert np.mean(np.sum(columns.values**2, axis=1)) == pytest.approx(1.0)
    np.testing.assert_allclose(columns.of(F), columns.values, atol=1e-12)


def test_what_is_the_same_for_all_items_has_no_part():
    same = np.column_stack((F, np.full(30, 7.0)))
    np.testing.assert_allclose(item_columns(same).values, item_columns(F).values)
    nothing = item_columns(np.ones((5, 2)))
    assert nothing.values.shape == (5, 0)
    assert nothing.of(np.zeros((2, 2))).shape == (2, 0)


def test_many_features_become_their_leading_directions():
    rng = np.random.default_rng(1)
    wide = rng.normal(size=(200, 3)) @ rng.normal(size=(3, 300))
    columns = item_columns(wide)
    assert columns.values.shape == (200, MOST_COLUMNS)
    # three of them hold all that 300 features of rank three tell
    energy = np.sort(np.sum(columns.values**2, axis=0))[::-1]
    assert energy[:3].sum() == pytest.approx(energy.sum(), rel=1e-6)
    np.testing.assert_allclose(columns.of(wide), columns.values, atol=1e-9)


def test_alignment_by_name():
    frame = pd.DataFrame(F, index=[f"i{j}" for j in range(30)])
    names = ["i7", "i0", "i29"]
    np.testing.assert_array_equal(aligned_features(frame, 3, names), F[[7, 0, 29]])
    np.testing.assert_array_equal(aligned_features(pd.DataFrame(F), 30, None), F)
    np.testing.assert_array_equal(aligned_features(sparse.csr_array(F), 30, names * 10), F)


@pytest.mark.parametrize(
    ("features", "names", "words"),
    [
        (pd.DataFrame(F[:2], index=["a", "b"]), ["a", "c"], "no row for the item 'c'"),
        (pd.DataFrame(F[:3], index=["a", "b", "a"]), ["a", "b"], "several rows for the item 'a'"),
        (pd.DataFrame(F[:2], index=["a", "b"]), None, "items such as 'a', and X has no names"),
        (F[:3], ["a", "b"], "3 rows for the 2 columns"),
        (pd.DataFrame(F[:3]), None, "3 rows for the 2 columns"),
    ],
)
def test_rows_must_be_those_of_the_catalogue(features, names, words):
    with pytest.raises(ValueError, match=words):
        aligned_features(features, 2, names)


@pytest.mark.parametrize(
    ("features", "words"),
    [
        (np.ones(3), r"of shape \(3,\) must be None, or an array"),
        ("genres", "of type str must be None"),
        (np.empty((0, 3)), "one row of features for each item"),
        (np.ones((2, 2001)), "2001 columns and must have 2000 at most"),
        (np.array([["drama"]]), "must hold numbers"),
        (np.array([[1.0], [np.nan]]), "nan for the item 1 in the feature 0"),
        (
            pd.DataFrame({"year": [1995.0, np.inf]}, index=["Heat", "Ran"]),
            "inf for the item 'Ran' in the feature 'year'",
        ),
    ],
)
def test_what_is_no_table_of_features_is_refused(features, words):
    with pytest.raises(ValueError, match=words):
        check_item_features(features)
