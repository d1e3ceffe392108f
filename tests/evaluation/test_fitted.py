"""recommender_of: labels and what was spent, out of pipelines and searches of scikit-learn."""

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline

import skdpmf as sk
from skdpmf.data import make_ratings, ratings_to_matrix
from skdpmf.evaluation import PrivateSearchCV
from skdpmf.preprocessing import ContributionBounder, DPItemSelector
from tests.matrices import matrix_to_ratings

ITEMS = [f"m{j}" for j in range(30)]
HEAD, REST = sk.PrivacyBudget(4.0, 1e-5).split([0.1, 0.9])


@pytest.fixture(scope="module")
def matrix():
    X = make_ratings(200, 30, random_state=0)
    books = pd.DataFrame({"item": ITEMS, "title": [f"Title {j}" for j in range(30)]})
    users = [f"u{i}" for i in range(200)]
    return ratings_to_matrix(matrix_to_ratings(X, users, ITEMS), users=users, items=books)


def steps(model=None):
    model = sk.AdaptiveWeightALS(REST) if model is None else model
    return make_pipeline(ContributionBounder(100), DPItemSelector(HEAD, n_items=12), model)


def searches():
    grid = {"adaptiveweightals__n_components": [1, 3]}
    yield "pipeline", steps()
    yield "grid of pipelines", GridSearchCV(steps(), grid, cv=2)
    grid = {"n_components": [1, 3]}
    yield "pipeline of a grid", steps(GridSearchCV(sk.AdaptiveWeightALS(REST), grid, cv=2))
    budget = sk.PrivacyBudget(20.0, 1e-5)
    yield "private search", PrivateSearchCV(sk.AdaptiveWeightALS(budget), grid, budget)
    yield "nothing around it", sk.AdaptiveWeightALS(REST)


@pytest.mark.parametrize("fitted", [pytest.param(s, id=name) for name, s in searches()])
def test_the_whole_answers_and_is_saved(fitted, matrix, tmp_path):
    fitted = clone(fitted).fit(matrix)
    model = sk.recommender_of(fitted).set_output(recommend="pandas")
    assert model.privacy_spent_ == sk.privacy_spent(fitted)
    lists = model.recommend(matrix.rows(["u3", "u7"]), n=4, exclude_seen=False)
    assert lists["user"].tolist() == ["u3"] * 4 + ["u7"] * 4
    known = model.catalogue_["item"].tolist()
    assert set(lists["item"]) <= set(known)
    assert (lists["title"] == lists["item"].str.replace("m", "Title ")).all()
    assert set(model.similar_items(known[0], n=3)["item"]) < set(known)
    path = tmp_path / "model.skdpmf"
    model.save(path)
    again = sk.load_model(path)
    assert again.privacy_spent_.epsilon == sk.privacy_spent(fitted).epsilon
    assert again.catalogue_.equals(model.catalogue_)


def test_dropped_items_count_for_nothing(matrix):
    fitted = steps(sk.DPItemMeans(REST)).fit(matrix)
    model, last = sk.recommender_of(fitted), fitted[-1]
    kept = model.catalogue_["item"].tolist()
    dropped = sorted(set(ITEMS) - set(kept))
    assert len(kept) == 12
    assert len(dropped) == 18
    row = dict.fromkeys((*kept[:3], *dropped[:5]), 4.0)
    own = dict.fromkeys(kept[:3], 4.0)
    np.testing.assert_array_equal(model.predict(row), last.predict(own))
    np.testing.assert_array_equal(model.recommend(row, 5), last.recommend(own, 5))
    np.testing.assert_array_equal(
        model.recommend(own, 5, exclude=[*dropped, kept[5]])[0],
        last.recommend(own, 5, exclude=[kept[5]])[0],
    )
    np.testing.assert_array_equal(
        model.explain(row, kept[5]).toarray(), last.explain(own, kept[5]).toarray()
    )
    rows = matrix.rows(["u3", "u4"])
    np.testing.assert_array_equal(
        model.predict(rows), last.predict(rows[:, [ITEMS.index(item) for item in kept]])
    )
    # what nobody knows is still an error, of the step as well
    for answering, strange in ((model, "m99"), (last, dropped[0])):
        with pytest.raises(ValueError, match=f"the item '{strange}', which the model does not"):
            answering.predict({strange: 4.0})
    for asked in (model.similar_items, lambda item: model.recommend(own, candidates=[item])):
        with pytest.raises(ValueError, match="which the model does not know"):
            asked(dropped[0])
