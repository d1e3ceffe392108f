"""What can be known is known before a ledger is charged; edges of what models are asked."""

import datetime
import decimal
import uuid
import warnings

import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.pipeline import make_pipeline

import skdpmf as sk
from skdpmf.data import ParquetRatings
from skdpmf.data.labelled_rows import RatingMatrix
from skdpmf.evaluation import PrivateSearchCV
from skdpmf.preprocessing import ContributionBounder, DPItemSelector
from tests.estimators.common import ratings

pytestmark = pytest.mark.filterwarnings("error:rating_range=")

OFF = sk.PrivacyBudget.nonprivate()
X = ratings(n_users=60, n_items=6)


@pytest.fixture
def ledger(tmp_path):
    return sk.PrivacyLedger(tmp_path / "ledger", limit=sk.PrivacyBudget(4.0, 1e-5))


@pytest.fixture
def budget(ledger):
    return sk.PrivacyBudget(1.0, 1e-5, ledger=ledger)


# -- the form of X and of y ------------------------------------------------------------------------


def with_cell(value, dtype=None):
    Y = X.astype(object)
    Y[0, 0] = value
    return Y if dtype is None else Y.astype(dtype)


FORMS = {
    "infinite": (with_cell(np.inf, float), "infinity.*by NaN"),
    "complex": (with_cell(1j, complex), "[Cc]omplex"),
    "text": (with_cell("five"), "finite real numbers.*convert X"),
    "texts and NA, frame": (pd.DataFrame({"a": ["3", None] * 30}, dtype="string"), "to_numeric"),
    "no rows": (np.zeros((0, 6)), "0 sample"),
    "no columns": (np.zeros((60, 0)), "0 feature"),
    "one dimension": (np.zeros(6), "1D array"),
    "dicts": ({"a": [1]}, "X holds dicts"),
    "columns of one name": (
        pd.DataFrame(X, columns=list("aabcde")),
        "several columns named.*rename",
    ),
}


@pytest.mark.parametrize("name", FORMS)
def test_the_form_of_ratings_costs_nothing(name, ledger, budget):
    bad, message = FORMS[name]
    search = PrivateSearchCV(sk.DPItemMeans(OFF), {"user_damping": [1.0, 5.0]}, budget, n_trials=2)
    for fit in (sk.DPItemMeans(budget), DPItemSelector(budget, n_items=2), search):
        with pytest.raises((ValueError, TypeError), match=message):
            fit.fit(bad)
    assert ledger.report().entries == ()


@pytest.mark.parametrize("y", [np.zeros(3), np.zeros((60, 5)), np.array(["Heat"] * 60)])
def test_the_form_of_targets_costs_nothing(y, ledger, budget):
    search = PrivateSearchCV(sk.DPItemMeans(OFF), {"user_damping": [1.0, 5.0]}, budget, n_trials=2)
    for fit in (sk.DPItemMeans(budget), search):
        with pytest.raises(ValueError, match="y "):
            fit.fit(X, y)
    assert ledger.report().entries == ()


# -- ids that a file keeps -------------------------------------------------------------------------

DAYS = range(1, 7)
IDS = {
    "64 bits": [1_700_000_000_000_000_000 + i for i in DAYS],
    "decimals": np.linspace(0.5, 1e300, 6),
    "UUID": [uuid.UUID(int=i) for i in DAYS],
    "bytes": [b"", b"a", b"\xff\x00", b"%41", b"a b", b"\n"],
    "tuples": [("shop", i, uuid.UUID(int=i)) for i in DAYS],
    "nanoseconds": pd.to_datetime([1_700_000_000_000_000_001 + i for i in DAYS]),
    "summer time": pd.date_range("2024-03-29", periods=6, tz="Europe/Zurich"),
    "date": [datetime.date(2024, 1, i) for i in DAYS],
    "Decimal": [decimal.Decimal(i) / 4 for i in DAYS],
    "many types": ["a", 2, 2**60, uuid.UUID(int=1), 0.5, datetime.date(2024, 1, 1)],
}


def named(ids):
    return RatingMatrix(sparse.csr_array(np.full((60, 6), 3.0)), None, ids)


@pytest.mark.parametrize("kind", IDS)
def test_files_keep_ids(kind, tmp_path):
    model = sk.DPItemMeans(OFF).fit(named(IDS[kind]))
    model.save(tmp_path / "model")
    sk.load_model(tmp_path / "model").save(tmp_path / "again")
    loaded = sk.load_model(tmp_path / "again").set_output(recommend="pandas")
    ids, known = (list(one.catalogue_["item"]) for one in (model, loaded))
    assert ids == known
    assert list(map(type, ids)) == list(map(type, known))
    answer = loaded.recommend({ids[0]: 3.0}, n=5)["item"]
    assert len(answer) == 5
    assert all(any(item == one for one in ids[1:]) for item in answer)
    rest = loaded.recommend({ids[0]: 3.0}, n=5, exclude=ids[1:3])["item"]
    assert len(rest) == 3
    assert not any(item == one for one in ids[1:3] for item in rest)


@pytest.mark.parametrize(
    "ids",
    [
        [frozenset({i}) for i in DAYS],
        [None, *"abcde"],
        [np.nan, 1, 2, 3, 4, 5],
        pd.period_range("2024-01", periods=6, freq="M"),
        [("a", i, True) for i in DAYS],
        ["a\nb", *"cdefg"],
    ],
    ids=str,
)
def test_ids_that_no_file_keeps_cost_nothing(ids, ledger, budget):
    for fit in (sk.DPItemMeans(budget), DPItemSelector(budget, n_items=2)):
        with pytest.raises(ValueError, match=r"catalogue\['item'\] has .* must be"):
            fit.fit(named(ids))
    assert ledger.report().entries == ()


# -- the scale -------------------------------------------------------------------------------------

LARGE = RatingMatrix(sparse.csr_array(np.nan_to_num(2 * X)))
WORDS = "more than a tenth"


@pytest.mark.parametrize(
    "estimator",
    [
        sk.DPItemMeans(OFF),
        sk.DPItemMeans(sk.PrivacyBudget(1.0)),
        sk.AdaptiveWeightALS(sk.PrivacyBudget(1.0, 1e-5), n_components=1, max_iter=1),
        sk.LocalDPGDDR(sk.PrivacyBudget(1.0)),
        ContributionBounder(rating_range=(1.0, 5.0)),
        PrivateSearchCV(
            sk.DPItemMeans(OFF), {"user_damping": [1.0]}, sk.PrivacyBudget(1.0), n_trials=2
        ),
    ],
    ids=lambda estimator: type(estimator).__name__,
)
def test_another_scale_is_warned_of(estimator):
    for Y in (2 * X, LARGE, pd.DataFrame(2 * X), sparse.coo_array(LARGE.X)):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            estimator.fit(Y)
        (text,) = (str(one.message) for one in caught if WORDS in str(one.message))
        assert "rating_range=(1, 5)" in text
    estimator.fit(X)  # warnings are errors


def test_the_warning_comes_before_the_charge(ledger, budget):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match=WORDS):
            sk.DPItemMeans(budget).fit(2 * X)
    assert ledger.report().entries == ()


def test_a_tenth_is_no_other_scale():
    Y = np.full((10, 10), 3.0)
    Y[0] = 9.0
    sk.DPItemMeans(OFF).fit(Y)
    Y[1, 0] = -9.0
    with pytest.warns(UserWarning, match=WORDS):
        sk.DPItemMeans(OFF).fit(Y)


def test_another_scale_on_disk_is_warned_of(tmp_path):
    pytest.importorskip("pyarrow")
    stored = ParquetRatings.write(tmp_path / "large", LARGE, rows_per_part=20)
    with pytest.warns(UserWarning, match=WORDS):
        sk.DPItemMeans(OFF).fit(stored)
    sk.DPItemMeans(OFF).fit(ParquetRatings.write(tmp_path / "right", X))
    empty = ParquetRatings.write(tmp_path / "empty", np.full((5, 6), np.nan))
    sk.DPItemMeans(sk.PrivacyBudget(1.0)).fit(empty)


# -- nobody asks -----------------------------------------------------------------------------------

EMPTY = {
    "list": [],
    "array": X[:0],
    "frame": pd.DataFrame(X[:0]),
    "csr": sparse.csr_array((0, 6)),
    "matrix": named(range(6))[:0],
}
KINDS = [
    sk.DPItemMeans(OFF),
    sk.DPItemMeans(OFF, item_features=np.eye(6)[:, :2]),
    sk.AdaptiveWeightALS(OFF, n_components=2, max_iter=1),
    sk.AdaptiveWeightALS(OFF, feedback="implicit", n_components=2, max_iter=1),
    sk.DPCovarianceRecommender(OFF, predictor="knn"),
    sk.CacheSGDFactorizer(2, max_iter=1),
]


@pytest.fixture(scope="module", params=KINDS, ids=lambda one: type(one).__name__)
def fitted(request):
    return request.param.fit(X)


@pytest.mark.parametrize("empty", EMPTY)
def test_empty_batches_have_empty_answers(fitted, empty):
    nobody = EMPTY[empty]
    assert fitted.transform(nobody).shape == (0, len(fitted.components_))
    assert fitted.predict(nobody).shape == fitted.decision_function(nobody).shape == (0, 6)
    assert fitted.predict_entries(nobody, X[:0]).shape == (0, 6)
    for options in ({}, {"exclude_seen": False}, {"candidates": [1, 2]}, {"exclude": [0]}):
        items, scores = fitted.recommend(nobody, n=3, **options)
        assert items.shape == scores.shape == (0, 3)
    assert fitted.explain(nobody, 3).shape == (0, 6)
    for y in (None, X[:0], []):
        with pytest.raises(ValueError, match="nothing to score on"):
            fitted.score(nobody, y)
    tables = clone(fitted).fit(X).set_output(recommend="pandas")
    assert tables.recommend(nobody).empty
    assert tables.explain(nobody, 3).empty


def test_long_tables_are_shown_by_their_size():
    table = pd.DataFrame(np.full((60, 20), 0.123456), columns=list(range(20)))
    model = sk.DPItemMeans(
        sk.PrivacyBudget(1.0), item_features=table, user_damping=3.0, random_state=3
    )
    shown = "item_features=<DataFrame (60, 20)>"
    for one in (model, make_pipeline(model)):
        assert shown in repr(one)
        html = one._repr_html_()
        assert "DataFrame (60, 20)" in html
        assert "0.123456" not in html
    assert model.item_features is table
    assert max(map(len, repr(make_pipeline(model)).splitlines())) <= 80
