"""Ids and titles from end to end: what a labelled fit is asked and answers."""

import pickle

import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.pipeline import make_pipeline

import skdpmf as sk
from skdpmf.data import ParquetRatings, make_ratings
from skdpmf.data.labelled_rows import RatingMatrix
from skdpmf.preprocessing import ContributionBounder, DPItemSelector
from skdpmf.privacy.text import SEEDED
from tests.matrices import matrix_to_ratings

BUDGET = sk.PrivacyBudget(50.0, 1e-5)
X = make_ratings(120, 20, density=0.4, random_state=0)
ITEMS = [f"m{j}" for j in range(20)]
TITLES = [f"Film {j % 15}" for j in range(20)]  # titles may repeat
USERS = [f"u{i}" for i in range(120)]
M = RatingMatrix(X, USERS, ITEMS, TITLES)
NUMBERS = RatingMatrix(X, None, np.arange(300, 320), TITLES)  # ids that look like columns

MODELS = {
    "ALS": sk.AdaptiveWeightALS(BUDGET, n_components=3, random_state=0),
    "clicks": sk.AdaptiveWeightALS(BUDGET, feedback="implicit", n_components=3, random_state=0),
    "SGD": sk.CacheSGDFactorizer(3, random_state=0),
    "SVD": sk.DPCovarianceRecommender(BUDGET, random_state=0),
    "KNN": sk.DPCovarianceRecommender(BUDGET, predictor=sk.NearestItems(5), random_state=0),
    "sampler": sk.DPMFSampler(BUDGET, n_components=3, random_state=0),
    "means": sk.DPItemMeans(BUDGET, random_state=0),
    "local": sk.LocalDPGDDR(sk.PrivacyBudget(8.0), n_components=3, random_state=0),
}


@pytest.fixture(scope="module")
def fitted():
    return {name: clone(model).fit(M) for name, model in MODELS.items()}


@pytest.fixture
def means():
    return sk.DPItemMeans(BUDGET, random_state=0)


def as_dict(row, ids=ITEMS):
    """Return a row of X as a dict."""
    part = sparse.csr_array(X[[row]])
    return {ids[j]: r for j, r in zip(part.indices, part.data, strict=True)}


@pytest.mark.parametrize("name", MODELS)
def test_labels_change_no_number(name, fitted):
    plain, labelled = clone(MODELS[name]).fit(X), fitted[name]
    np.testing.assert_array_equal(plain.components_, labelled.components_)
    rows = M.rows(["u7", "u3"])
    dicts = [as_dict(7), as_dict(3)]
    for part, again, expected in zip(
        labelled.recommend(rows, 4),
        labelled.recommend(dicts, 4),
        plain.recommend(X[[7, 3]], 4),
        strict=True,
    ):
        np.testing.assert_array_equal(part, expected)
        np.testing.assert_array_equal(again, expected)
    np.testing.assert_array_equal(labelled.transform(dicts), plain.transform(X[[7, 3]]))
    np.testing.assert_array_equal(labelled.predict(rows), plain.predict(X[[7, 3]]))
    np.testing.assert_array_equal(
        labelled.explain(dicts, "m2").toarray(), plain.explain(X[[7, 3]], 2).toarray()
    )
    for part, expected in zip(labelled.similar_items("m2"), plain.similar_items(2), strict=True):
        np.testing.assert_array_equal(part, expected)


@pytest.mark.parametrize("name", MODELS)
def test_tables_hold_what_arrays_hold(name, fitted):
    model = pickle.loads(pickle.dumps(fitted[name]))
    items, scores = model.recommend(M[:5], 3)
    similar = model.similar_items(["m1", "m4"], 3)
    parts = model.explain(M[:5], "m3")
    model.set_output(recommend="pandas")
    table = model.recommend(M[:5], 3)
    assert list(table) == ["user", "rank", "item", "title", "score"]
    assert table["user"].tolist() == list(np.repeat(USERS[:5], 3))
    assert table["rank"].tolist() == [1, 2, 3] * 5
    assert table["item"].tolist() == [ITEMS[j] for j in items.ravel()]
    assert table["title"].tolist() == [TITLES[j] for j in items.ravel()]
    np.testing.assert_array_equal(table["score"], scores.ravel())
    table = model.similar_items(["m1", "m4"], 3)
    near = model.similar_users(M[:2], M[3:9], 2)
    assert list(near) == ["user", "rank", "neighbor", "score"]
    assert set(near["user"]) <= set(USERS[:2])
    assert set(near["neighbor"]) <= set(USERS[3:9])
    there = similar[0] >= 0
    assert table["to"].tolist() == list(np.repeat(["m1", "m4"], there.sum(axis=1)))
    assert table["item"].tolist() == [ITEMS[j] for j in similar[0][there]]
    table = model.explain(M[:5], "m3")
    assert set(table["for"]) == {"m3"}
    assert len(table) == parts.nnz
    first = table[table["user"] == "u1"]
    own = parts[[1]].toarray().ravel()
    np.testing.assert_array_equal(
        first["contribution"], own[[ITEMS.index(i) for i in first["item"]]]
    )
    assert (np.diff(first["contribution"].abs()) <= 0).all()


@pytest.mark.parametrize("name", MODELS)
def test_candidates_and_excluded_items(name, fitted):
    model = fitted[name]
    rows, seen = M[:9], X[:9].toarray() != 0
    some = ["m4", "m9", "m1", "m17"]
    found = model.recommend(rows, 4, candidates=some)[0]
    for i in range(9):
        expected = {ITEMS.index(item) for item in some if not seen[i, ITEMS.index(item)]}
        assert set(found[i]) - {-1} == expected
    np.testing.assert_array_equal(found, model.recommend(rows, 4, candidates=[1, 4, 9, 17])[0])
    np.testing.assert_array_equal(found, model.recommend(rows, 4, True, [1, 4, 9, 17])[0])
    kept = [item for item in ITEMS if item not in some]
    for one, other in zip(
        model.recommend(rows, 4, exclude=some),
        model.recommend(rows, 4, candidates=kept),
        strict=True,
    ):
        np.testing.assert_array_equal(one, other)
    # a matrix excludes other items from each row
    hidden = sparse.lil_array((9, 20))
    best = model.recommend(rows, 20, exclude_seen=False)[0]
    for i in range(9):
        hidden[i, best[i, :3]] = 1.0
    for seen in (False, True):
        without = model.recommend(rows, 20, seen, exclude=sparse.csr_array(hidden))
        everything = model.recommend(rows, 20, seen)
        for i in range(9):
            stay = ~np.isin(everything[0][i], best[i, :3]) & (everything[0][i] >= 0)
            np.testing.assert_array_equal(without[0][i, : stay.sum()], everything[0][i, stay])
            np.testing.assert_array_equal(without[1][i, : stay.sum()], everything[1][i, stay])
            assert (without[0][i, stay.sum() :] == -1).all()
    with pytest.raises(ValueError, match="exclude names the item 'm77'"):
        model.recommend(rows[:1], exclude={"m77": 1.0})
    nothing, scores = model.recommend(rows, 4, candidates=some, exclude=some)
    assert (nothing == -1).all()
    assert np.isneginf(scores).all()
    np.testing.assert_array_equal(
        model.recommend(rows, 4, exclude=[])[0], model.recommend(rows, 4)[0]
    )


def test_integers_are_columns_until_ids_are_meant(means):
    model = means.fit(NUMBERS)
    rows = NUMBERS[:3]
    np.testing.assert_array_equal(
        model.recommend(rows, 2, candidates=[1, 2, 3], exclude_seen=False)[0],
        model.recommend(rows.X, 2, candidates=[1, 2, 3], exclude_seen=False)[0],
    )
    row = as_dict(0, range(300, 320))
    one = model.recommend(row, 2, candidates=[301, 302, 303], exclude_seen=False)[0]
    np.testing.assert_array_equal(
        one, model.recommend(rows[:1], 2, candidates=[1, 2, 3], exclude_seen=False)[0]
    )
    with pytest.raises(ValueError, match=r"candidates names the item 1, which the model does not"):
        model.recommend(row, 2, candidates=[1])
    with pytest.raises(ValueError, match=r"items holds 301 and must hold indices from 0 to 19"):
        model.similar_items(301)
    model.set_output(recommend="pandas")
    assert model.explain(rows, 301)["for"].unique().tolist() == [301]
    assert set(model.recommend(rows, 3, candidates=[301, 302, 303])["item"]) <= {301, 302, 303}


def test_columns_are_put_in_order_by_their_ids(fitted):
    model, order = fitted["ALS"], np.random.default_rng(0).permutation(20)
    turned = M[:9][:, order]
    assert list(turned.items) == [ITEMS[j] for j in order]
    expected = model.predict(M[:9])
    np.testing.assert_array_equal(model.predict(turned), expected)
    np.testing.assert_array_equal(
        model.predict(turned[:, :10]),
        model.predict(sparse.csr_array(X[:9].toarray() * np.isin(np.arange(20), order[:10]))),
    )
    where = model.predict_entries(M[:9], turned)
    rated = np.where(X[:9].toarray() != 0, expected, 0.0)
    np.testing.assert_allclose(where.toarray(), rated, rtol=1e-14, atol=0)
    assert model.score(M[:9], turned) == model.score(M[:9], M[:9])
    frame = pd.DataFrame(
        np.where(turned.X.toarray() == 0, np.nan, turned.X.toarray()), columns=turned.items
    )
    np.testing.assert_array_equal(model.predict(frame), expected)
    for beside in (frame, pytest.importorskip("polars").DataFrame(frame.to_dict("list"))):
        where = model.predict_entries(M[:9], beside)
        np.testing.assert_array_equal(where.indices, M[:9].X.indices)
        assert model.score(M[:9], beside) == model.score(M[:9], M[:9])
        for part, other in zip(
            model.recommend(M[:9], 5, False, exclude=beside), model.recommend(M[:9], 5), strict=True
        ):
            np.testing.assert_array_equal(part, other)


def test_unknown_items(fitted):
    model, row = fitted["ALS"], as_dict(0)
    for bad in ({**row, "m77": 3.0}, [row, {"m77": 3.0, "m78": 1.0}]):
        with pytest.raises(ValueError, match=r"X names the item 'm77'.*begins with 'm0', 'm1'"):
            model.recommend(bad)
    with pytest.warns(UserWarning, match=r"whose items the model does not know are left out \(2\)"):
        found = model.recommend([row, {"m77": 3.0, "m78": 1.0}], unknown="ignore")
    np.testing.assert_array_equal(found[0], model.recommend([row, {}])[0])
    more = RatingMatrix(
        sparse.csr_array(np.column_stack((X[:2].toarray(), [[4.0], [0.0]]))), None, [*ITEMS, "m77"]
    )
    with pytest.raises(ValueError, match="X names the item 'm77'"):
        model.predict(more)
    np.testing.assert_array_equal(model.predict(more[1:]), model.predict(X[1:2]))
    with pytest.warns(UserWarning, match=r"left out \(1\)"):
        found = model.recommend(more, unknown="ignore")
    np.testing.assert_array_equal(found[0], model.recommend(M[:2])[0])
    with pytest.raises(ValueError, match="unknown='skip' must be 'error' or 'ignore'"):
        model.recommend(row, unknown="skip")
    for call in (lambda: model.similar_items("m77"), lambda: model.explain(row, "m77")):
        with pytest.raises(ValueError, match="items names the item 'm77'"):
            call()
    for rating in ("five", None, np.nan, np.inf):
        with pytest.raises(
            ValueError, match=r"gives the item 'm0' the rating .* must be a finite number"
        ):
            model.recommend({"m0": rating})


def test_ids_of_several_parts_are_ids_alone_and_in_lists():
    ids = pd.Index([("a", j) for j in range(20)], tupleize_cols=False)
    model = sk.DPItemMeans(BUDGET).fit(RatingMatrix(X, None, ids)).set_output(recommend="pandas")
    row = {("a", 3): 5.0}
    for exclude in (("a", 7), [("a", 7)], (("a", 7),), {("a", 7)}, ids[[7]]):
        table = model.recommend(row, 20, exclude=exclude)
        assert {*table["item"]} == {*ids} - {("a", 3), ("a", 7)}
        assert model.recommend(row, candidates=exclude)["item"].tolist() == [("a", 7)]
        assert model.explain(row, exclude)["for"].tolist() == [("a", 7)]
    for name in ("exclude", "candidates"):
        with pytest.raises(ValueError, match=rf"{name} holds \['a'.* and must hold ids"):
            model.recommend(row, **{name: [["a", 7], ["b"]]})


def test_a_row_without_ratings_is_explained_by_popularity(fitted):
    model = clone(MODELS["ALS"]).fit(M).set_output(recommend="pandas")
    table = model.explain([{}, {"m1": 5.0}, {}], "m4")
    assert table["user"].tolist() == [0, 1, 2]
    assert table["contribution"].tolist()[::2] == [0.0, 0.0]
    assert table["item"].isna().tolist() == [True, False, True]
    assert table["why"][0] in ("popular with everybody", "your ratings say nothing about it")
    assert len(model.set_output(recommend="polars").explain({}, "m4")) == 1
    assert not len(model.explain(np.empty((0, 20)), "m4"))


def test_names_survive_pipelines():
    halves = BUDGET.split([0.5, 0.5])
    steps = ContributionBounder(8), DPItemSelector(halves[0], n_items=12), clone(MODELS["means"])
    model = make_pipeline(*steps).fit(M)
    kept = [ITEMS[j] for j in model[1].get_support(indices=True)]
    assert model[-1].catalogue_["item"].tolist() == kept
    assert model[-1].catalogue_["title"].tolist() == [TITLES[ITEMS.index(i)] for i in kept]
    np.testing.assert_array_equal(model.predict(M[:4][:, ::-1]), model.predict(M[:4]))
    assert model.predict(as_dict(0)).shape == (1, 12)


@pytest.mark.parametrize("kind", ["pandas", "polars"])
def test_names_of_ratings_on_disk(kind, tmp_path, means):
    frame, items = matrix_to_ratings(X, USERS, ITEMS), pd.DataFrame({"item": ITEMS})
    films = items.assign(title=TITLES)
    if kind == "polars":
        polars = pytest.importorskip("polars")
        frame, films = (polars.DataFrame(table.to_dict("list")) for table in (frame, films))
    made = (
        ParquetRatings.write(tmp_path / "c", M),
        ParquetRatings.write(tmp_path / "d", frame, users=USERS, items=films),
        ParquetRatings.write(tmp_path / "e", ParquetRatings.write(tmp_path / "b", M)),
    )
    for ratings in made:
        assert list(ratings.user_ids) == USERS
        model = means.fit(ratings)
        assert model.catalogue_["item"].tolist() == ITEMS
        assert model.catalogue_["title"].tolist() == TITLES
        table = model.set_output(recommend="pandas").recommend({"m1": 4.0}, 1)
        assert table["item"].isin(ITEMS).all()
        assert model.privacy_spent_.unmet == (SEEDED,)
    untitled = ParquetRatings.write(tmp_path / "f", [frame], users=USERS, items=ITEMS)
    assert untitled.titles is None
    found = RatingMatrix(X, USERS, ITEMS, undeclared=("users",))
    assert len(means.fit(ParquetRatings.write(tmp_path / "g", found)).privacy_spent_.unmet) == 2
