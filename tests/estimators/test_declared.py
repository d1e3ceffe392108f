"""Users and items that were read off the ratings: the statement says that a condition fails."""

import warnings

import pytest

import skdpmf as sk
from skdpmf.data import ParquetRatings, make_ratings, ratings_to_matrix
from skdpmf.evaluation import RatingRegressor
from skdpmf.preprocessing import DPItemSelector
from skdpmf.privacy.composition import compose_statements
from skdpmf.privacy.text import SEEDED, UNDECLARED
from tests.matrices import matrix_to_ratings

X = make_ratings(30, 8, density=0.5, random_state=0)
TABLE = matrix_to_ratings(X)
BUDGET = sk.PrivacyBudget(4.0, 1e-5)
DECLARED = [
    ({}, ("users", "items")),
    ({"items": range(8)}, ("users",)),
    ({"users": range(30)}, ("items",)),
    ({"users": range(30), "items": range(8)}, ()),
]


def matrix_of(folder, **declared):
    return ratings_to_matrix(TABLE, **declared)


def parquet_of(folder, **declared):
    pytest.importorskip("pyarrow")
    return ParquetRatings.write(folder / "parts", TABLE, **declared)


def parquet_of_parquet(folder, **declared):
    pytest.importorskip("pyarrow")
    return ParquetRatings.write(folder / "again", parquet_of(folder, **declared))


@pytest.mark.parametrize("source", [matrix_of, parquet_of, parquet_of_parquet])
@pytest.mark.parametrize(("declared", "undeclared"), DECLARED)
def test_what_was_read_off_is_a_condition_that_is_not_met(tmp_path, source, declared, undeclared):
    ratings = source(tmp_path, **declared)
    assert ratings.undeclared == undeclared
    model = sk.DPItemMeans(BUDGET).fit(ratings)
    unmet = tuple(UNDECLARED[name] for name in undeclared)
    model.save(tmp_path / "model")
    for statement in model.privacy_spent_, sk.load_model(tmp_path / "model").privacy_spent_:
        assert statement.unmet == unmet
        text = " ".join(str(statement).split())
        for sentence in unmet:
            assert text.index(f"NOT MET: {sentence}") < text.index("Guarantee:")
    assert sk.privacy_spent(model).unmet == unmet
    fits = {"one": sk.DPItemMeans(BUDGET).fit(X).privacy_spent_, "other": model.privacy_spent_}
    assert compose_statements(fits).unmet == unmet
    card = sk.PrivacyCard.of(model)
    assert card.to_dict()["statement"]["unmet"] == list(unmet)
    assert card.to_markdown().count("NOT MET") == len(unmet)
    assert sk.PrivacyCard.from_json(card.to_json()) == card


@pytest.mark.parametrize(("declared", "undeclared"), DECLARED)
def test_regressor_passes_it_on(declared, undeclared):
    model = RatingRegressor(sk.DPItemMeans(BUDGET), **declared)
    model.fit(TABLE[["user", "item"]], TABLE["rating"])
    unmet = tuple(UNDECLARED[name] for name in undeclared)
    assert model.estimator_.privacy_spent_.unmet == unmet
    RatingRegressor(sk.CacheSGDFactorizer(2, max_iter=1), **declared).fit(
        TABLE[["user", "item"]], TABLE["rating"]
    )


def test_a_matrix_is_declared_by_whoever_passes_it(tmp_path):
    pytest.importorskip("pyarrow")
    store = ParquetRatings.write(tmp_path / "store", X)
    assert store.undeclared == ()
    for ratings in (X, X.toarray(), store):
        assert sk.DPItemMeans(BUDGET).fit(ratings).privacy_spent_.unmet == ()


@pytest.mark.parametrize("make", [sk.DPItemMeans, DPItemSelector, sk.AdaptiveWeightALS])
def test_a_seed_is_unmet_and_a_weak_epsilon_is_warned_of_once(make):
    matrix = ratings_to_matrix(TABLE, users=range(30), items=range(8))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        seeded = make(sk.PrivacyBudget(10.0, 1e-5), random_state=0).fit(matrix)
        assert said == []
        weak = make(sk.PrivacyBudget(11.0, 1e-5)).fit(matrix)
    assert seeded.privacy_spent_.unmet == (SEEDED,)
    assert weak.privacy_spent_.unmet == ()
    assert [str(one.message)[:24] for one in said] == ["epsilon=11 is weak, like"]
    assert "WEAK" in weak.privacy_spent_.summary()


def test_without_a_guarantee_nothing_fails():
    matrix = ratings_to_matrix(TABLE)
    nonprivate = sk.DPItemMeans(sk.PrivacyBudget.nonprivate()).fit(matrix)
    assert nonprivate.privacy_spent_.unmet == ()
    # devices that report are counted by whoever reads the reports
    local = sk.LocalDPGDDR(sk.PrivacyBudget(4.0)).fit(matrix)
    assert local.privacy_spent_.unmet == (UNDECLARED["items"],)


ROWS = [(1999, 2000), (1025, 1500), (4097, 6000), (11, 12)]


@pytest.mark.parametrize(
    ("cls", "unit"),
    [
        (sk.DPCovarianceRecommender, "user"),
        (sk.DPCovarianceRecommender, "rating"),
        (sk.DPItemMeans, "user"),
    ],
)
def test_plans_follow_a_rounded_number_of_rows(cls, unit):
    estimator = cls(sk.PrivacyBudget(1.0, 1e-5, unit=unit))
    for one, other in ROWS:
        assert estimator.plan(40, one) == estimator.plan(40, other)
