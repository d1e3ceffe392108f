import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from skdpmf.data import item_features, make_ratings, ratings_to_matrix, validate_ratings
from skdpmf.evaluation import split_table


@settings(max_examples=150, deadline=None)
@given(
    n_users=st.integers(1, 12),
    n_items=st.integers(1, 12),
    least=st.integers(0, 3),
    share=st.floats(0, 1),
    exponents=st.tuples(st.floats(0, 4), st.floats(0, 4)),
    step=st.sampled_from([None, 0.5, 1.0]),
    seed=st.integers(0, 99),
)
def test_exactly_n_ratings_on_the_grid(n_users, n_items, least, share, exponents, step, seed):
    least = min(least, n_items)
    n_ratings = round(least * n_users + share * (n_items - least) * n_users)
    X = make_ratings(
        n_users,
        n_items,
        n_ratings=n_ratings,
        min_ratings_per_user=least,
        user_exponent=exponents[0],
        item_exponent=exponents[1],
        step=step,
        random_state=seed,
    )
    assert X.shape == (n_users, n_items)
    assert X.nnz == n_ratings
    report = validate_ratings(X, rating_range=(1, 5))
    assert set(report.problems) <= {"n_empty_users", "n_empty_items", "n_ratings"}
    assert np.diff(X.indptr).min() >= least
    assert X.has_canonical_format
    if step is not None:
        assert ((X.data - 1.0) % step == 0).all()


def test_without_noise_ratings_are_the_truth():
    X, truth = make_ratings(
        60, 40, noise_std=0, step=None, rating_range=(-2, 7), random_state=0, return_truth=True
    )
    users = np.repeat(np.arange(60), np.diff(X.indptr))
    by_hand = [
        truth.mean
        + truth.user_bias[u]
        + truth.item_bias[i]
        + sum(truth.user_factors[u] * truth.item_factors[i])
        for u, i in zip(users, X.indices, strict=True)
    ]
    np.testing.assert_allclose(X.data, np.clip(by_hand, -2, 7), rtol=1e-12)
    np.testing.assert_allclose(truth.expected(users, X.indices), X.data, rtol=1e-12)
    grid = truth.expected(np.arange(60)[:, None], np.arange(40))
    np.testing.assert_allclose(grid[users, X.indices], X.data, rtol=1e-12)


def test_items_are_chosen_in_proportion_to_their_popularity():
    # One rating a user, so chances are the weights rank^-1. Chi-squared with 19 degrees of
    # freedom: above 43.8 in 1 of 1000 seeds; this one is fixed.
    n = 20_000
    X = make_ratings(n, 20, n_ratings=n, item_exponent=1.0, random_state=0)
    counts = np.sort(np.bincount(X.indices, minlength=20))[::-1]
    weights = 1 / np.arange(1.0, 21)
    expected = n * weights / weights.sum()
    assert ((counts - expected) ** 2 / expected).sum() < 43.8


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"n_users": 0}, r"n_users=0 must be an integer >= 1"),
        ({"n_items": 2.5}, r"n_items=2\.5 must be"),
        ({"n_components": -1}, r"n_components=-1 must be an integer >= 0"),
        ({"n_ratings": 51}, r"n_ratings=51 .*10 users x 5 items.*10 to n_users \* n_items = 50"),
        ({"min_ratings_per_user": 6, "n_ratings": 50}, r"min_ratings_per_user=6 must fit"),
        ({"density": 0}, r"density=0 must be a number in \(0, 1\]"),
        ({"rating_range": (5, 1)}, r"rating_range=\(5, 1\)"),
        ({"step": 0.3}, r"step=0\.3 must be a divisor of the width"),
        ({"noise_std": -0.1}, r"noise_std=-0\.1 must be a finite number >= 0"),
        ({"mean": np.nan}, r"mean=nan must be"),
    ],
)
def test_bad_parameters_are_refused(kwargs, message):
    with pytest.raises(ValueError, match=message):
        make_ratings(**({"n_users": 10, "n_items": 5, "random_state": 0} | kwargs))


def test_tables_hold_the_same_ratings():
    X = make_ratings(80, 30, random_state=3)
    data = make_ratings(80, 30, random_state=3, as_frame=True)
    assert (data.matrix.X != X).nnz == 0
    assert data.truth.rating_range == data.rating_range == (1.0, 5.0)
    again = ratings_to_matrix(data.ratings, users=data.matrix.users, items=data.catalogue)
    assert (again.X != X).nnz == 0
    assert again.titles == data.matrix.titles == data.catalogue["title"].tolist()
    assert data.matrix.undeclared == ()
    assert data.catalogue["genres"].str.len().min() > 0
    assert data.catalogue["title"].str.fullmatch(r".+ \(\d{4}\)").all()
    assert item_features(data.catalogue).shape[0] == 30
    assert data.ratings["time"].is_unique or len(data.ratings) > 100
    train, test = split_table(data.ratings, by="time")
    assert train["time"].max() <= test["time"].min()


def test_genres_and_years_tell_of_items():
    """Without privacy regressions of the true biases on them explain something, as of films."""
    data = make_ratings(200, 2000, density=0.01, random_state=1, as_frame=True)
    F = item_features(data.catalogue).to_numpy()
    F = np.column_stack((F, np.ones(len(F))))
    explained = []
    for target in (data.truth.item_bias, *data.truth.item_factors.T):
        left = target - F @ np.linalg.lstsq(F, target, rcond=None)[0]
        explained.append(1.0 - left.var() / target.var())
    assert min(explained) > 0.05
    assert max(explained) < 0.9
