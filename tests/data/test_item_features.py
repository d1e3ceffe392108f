"""Features from a table of items: every item has a row, and nothing of ratings gets in unseen."""

import numpy as np
import pandas as pd
import pytest

from skdpmf.data import item_features

FILMS = pd.DataFrame(
    {
        "item": [3, 1, 2, 9],
        "title": ["Heat (1995)", "Ran (1985)", "Untitled", "Up (2009)"],
        "genres": ["Crime|Drama", "Drama|War", None, "Comedy|Drama"],
        "price": [4.0, np.nan, 8.0, np.inf],
        "mean_rating": [4.2, 4.1, 2.0, 3.9],
    }
)


def test_labels_and_periods_by_default():
    made = item_features(FILMS)
    assert made.index.tolist() == [3, 1, 2, 9]
    assert made.columns[0] == "genres=Drama"  # one film alone has each of the others
    assert made["genres=Drama"].tolist() == [1.0, 1.0, 0.0, 1.0]
    periods = made.filter(like="year")
    assert periods.sum(axis=1).tolist() == [1.0, 1.0, 0.0, 1.0]
    assert made.dtypes.eq(np.float64).all()


def test_periods_hold_about_as_many_items_and_miss_none():
    years = pd.DataFrame({"year": np.random.default_rng(0).integers(1920, 2020, 1000)})
    counts = item_features(years).sum()
    assert len(counts) == 5
    assert counts.sum() == 1000
    assert counts.between(170, 230).all()


def test_the_year_column_goes_before_the_title():
    made = item_features(FILMS.assign(year=[1, 2, 3, 4]))
    for name in ("release_year", "Release Year", "publicationYear", "Year"):
        other = item_features(FILMS.assign(**{name: [1, 2, 3, 4]}))
        pd.testing.assert_frame_equal(other, made)
    periods = made.filter(like="year").columns.tolist()
    assert periods == ["year<2", "2<=year<3", "3<=year<4", "year>=4"]


@pytest.mark.parametrize(
    ("items", "given", "words"),
    [
        ([1, 2], {}, "items='list' must be a DataFrame"),
        (FILMS.assign(item=[1, 1, 2, 3]), {}, "several rows for the item 1"),
        (FILMS.assign(item=[1.0, 2.0, np.nan, 3.0]), {}, "a row without an id"),
        (FILMS, {"labels": ["makers"]}, "items has no column 'makers'"),
        (FILMS, {"labels": ["mean_rating"]}, "seems to be made of ratings or counts"),
        (FILMS[["item", "price"]], {}, r"\['price'\], none of which is known"),
    ],
)
def test_errors_name_what_is_wrong(items, given, words):
    with pytest.raises(ValueError, match=words):
        item_features(items, **given)
