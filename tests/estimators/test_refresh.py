"""Refreshes: fits on new people from released knowledge, private over all of them."""

import copy
from itertools import combinations

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

import skdpmf as sk
from skdpmf.data import ParquetRatings, make_ratings
from skdpmf.data.labelled_rows import RatingMatrix
from skdpmf.exceptions import ModelFileError
from skdpmf.privacy.recording import record_releases
from skdpmf.privacy.text import SEEDED, UNDECLARED
from tests.built import built
from tests.core import audit as replay

BUDGET, LARGE = sk.PrivacyBudget(4.0, 1e-5), sk.PrivacyBudget(57.0, 1e-5)
SEED = {"random_state": 0}
RANGE = {"rating_range": (replay.LOW, replay.HIGH)}
MODELS = {
    "means": sk.DPItemMeans(sk.PrivacyBudget(20.0, 1e-5), **SEED, **RANGE),
    "means, Laplace": sk.DPItemMeans(sk.PrivacyBudget(20.0), **SEED, **RANGE),
    "means, replace": sk.DPItemMeans(
        sk.PrivacyBudget(8.0, 1e-5, neighbors="replace"), **SEED, **RANGE
    ),
    "means, ratings": sk.DPItemMeans(sk.PrivacyBudget(20.0, 1e-5, unit="rating"), **SEED, **RANGE),
    "means, ratings, Laplace": sk.DPItemMeans(
        sk.PrivacyBudget(20.0, unit="rating", neighbors="replace"), **SEED, **RANGE
    ),
    "clicks": sk.DPCovarianceRecommender(sk.PrivacyBudget(20.0, 1e-5), feedback="implicit", **SEED),
    "clicks, none": sk.DPCovarianceRecommender(
        sk.PrivacyBudget(0.8, 1e-5, neighbors="replace"), feedback="implicit", **SEED
    ),
    "means, features": built(
        sk.DPItemMeans,
        sk.PrivacyBudget(20.0, 1e-5),
        item_features=np.random.default_rng(6).normal(size=(replay.N_ITEMS, 4)),
        **SEED,
        **RANGE,
    ),
    "als": sk.AdaptiveWeightALS(
        sk.PrivacyBudget(30.0, 1e-5), n_components=3, max_iter=3, **SEED, **RANGE
    ),
    "als, clicks": sk.AdaptiveWeightALS(
        sk.PrivacyBudget(30.0, 1e-5), feedback="implicit", n_components=3, max_iter=3, **SEED
    ),
    "als, clicks, features": sk.AdaptiveWeightALS(
        sk.PrivacyBudget(57.0, 1e-5),
        feedback="implicit",
        item_features=np.random.default_rng(6).normal(size=(replay.N_ITEMS, 4)),
        max_iter=2,
        **SEED,
    ),
    "als, clicks, none": sk.AdaptiveWeightALS(
        sk.PrivacyBudget(0.05, 1e-5, neighbors="replace"), feedback="implicit", max_iter=2, **SEED
    ),
}
every_model = pytest.mark.parametrize("name", MODELS)


def ratings(n_users=4000, n_items=60):
    return make_ratings(n_users, n_items, random_state=0)


def matrix(X, first_user=0, items=None):
    """Rows with ids of users."""
    return RatingMatrix(X, [f"u{first_user + i}" for i in range(X.shape[0])], items)


# -- privacy over all refreshes --------------------------------------------------------------------

MONTHS = 3


def months():
    return [replay.base_ratings(seed) for seed in range(MONTHS)]


def year(model, rows, replays=None):
    """Fit and refresh; each later budget depends on released values. All models, all records."""
    models, records = [], []
    for t, X in enumerate(rows):
        with record_releases(None if replays is None else replays[t]) as made:
            if t == 0:
                models.append(clone(model).fit(X))
            else:
                mean = float(np.mean(models[-1].item_means_))
                epsilon = model.budget.epsilon * (0.5 + 0.1 * mean)
                budget = clone(model.budget).set_params(epsilon=epsilon)
                models.append(models[-1].refresh(X, budget=budget, people="new"))
        records.append(made)
    return models, records


def changes_to(model):
    """Rows that join, by name; at unit "rating" each is one rating."""
    if model.budget.unit == "user":
        return replay.adversaries(model)
    places, values = [0, replay.TIED[1], replay.N_ITEMS - 1], [replay.LOW, 3.3, 1e6]
    return {
        f"{value} at {place}": np.where(np.arange(replay.N_ITEMS) == place, value, np.nan)
        for place in places
        for value in values
    }


def audit_year(model):
    """Raise AssertionError where a person moves any release too far, or in another month at all."""
    empty = [replay.with_row(X, None) for X in months()]
    models, records = year(model, empty)
    states = [replay.fitted_state(one) for one in models]
    without = year(model, empty, records)[1]
    for month in range(MONTHS):
        changed = []
        for name, row in changes_to(models[month]).items():
            rows = [replay.with_row(X, row) if t == month else X for t, X in enumerate(empty)]
            found, made = year(model, rows, records)
            assert [replay.fitted_state(one) for one in found] == states, (
                f"month {month}: the model follows from more than the releases, {name}"
            )
            for t in range(MONTHS):
                if t == month:
                    replay.check_distances(made[t], without[t], name)
                    continue
                for one, two in zip(made[t], without[t], strict=True):
                    assert np.array_equal(one.statistic, two.statistic), f"month {t} of {month}"
            changed.append((name, made[month]))
        if model.budget.neighbors == "replace":
            for (one, a), (two, b) in combinations(changed[:6], 2):
                replay.check_distances(a, b, f"{one} for {two}")


@every_model
def test_a_person_moves_one_month_alone_and_by_its_sensitivity(name):
    audit_year(MODELS[name])


@pytest.mark.parametrize("name", ["means", "als, clicks"])
def test_people_who_come_again_move_either_month_by_its_sensitivity(name):
    """With the same row twice, or with what is new."""
    model, empty = MODELS[name], [replay.with_row(X, None) for X in months()]
    models, records = year(model, empty)
    without = year(model, empty, records)[1]
    for case, row in replay.adversaries(models[0]).items():
        news = np.where(np.arange(replay.N_ITEMS) % 2, row, np.nan)
        for later in (row, news):
            rows = [replay.with_row(empty[0], row), empty[1], replay.with_row(empty[2], later)]
            made = year(model, rows, records)[1]
            replay.check_distances(made[0], without[0], case)
            replay.check_distances(made[2], without[2], case)
            for one, two in zip(made[1], without[1], strict=True):
                assert np.array_equal(one.statistic, two.statistic)


def test_the_statement_says_which_rows_there_are():
    X = ratings(300, 20)
    model = sk.DPItemMeans(BUDGET, **SEED).fit(X[:200])
    new, whole = model.refresh(X[200:]), model.refresh(X[200:], rows="whole")
    assert np.array_equal(new.item_means_, whole.item_means_)
    assert "only what is new" in new.privacy_spent_.notes[-1]
    assert "counts twice" in whole.privacy_spent_.notes[-1]
    with pytest.raises(ValueError, match=r"rows.*'new' or 'whole'"):
        model.refresh(X[200:], rows="all")


def test_a_refresh_says_whose_epsilon_it_states(tmp_path):
    X = ratings(300, 20)
    model = sk.DPItemMeans(BUDGET, **SEED).fit(X[:200])
    both, fresh = model.refresh(X[200:]), model.refresh(X[200:], people="new")
    assert np.array_equal(both.item_means_, fresh.item_means_)
    total = sk.privacy_spent([model, sk.DPItemMeans(BUDGET, **SEED).fit(X[200:])])
    assert both.privacy_spent_.epsilon == pytest.approx(total.epsilon, rel=1e-3)
    assert fresh.privacy_spent_.epsilon == pytest.approx(4.0, rel=1e-3)
    assert "in all fits that it started from" in both.privacy_spent_.notes[0]
    assert "people of this refresh, whom" in fresh.privacy_spent_.notes[-1]
    for one, other in (("only what is new", "nobody in it"), ("nobody in it", "only what is new")):
        text = str((both if other == "nobody in it" else fresh).privacy_spent_)
        assert one in " ".join(text.split())
        assert other not in " ".join(text.split())
    third = both.refresh(X[:100]).privacy_spent_
    assert third.epsilon > both.privacy_spent_.epsilon
    both.save(tmp_path / "both")
    again = sk.load_model(tmp_path / "both").refresh(X[:100])
    assert again.privacy_spent_.epsilon == pytest.approx(third.epsilon)
    fresh.save(tmp_path / "fresh")
    for known in (fresh, sk.load_model(tmp_path / "fresh")):
        with pytest.raises(ValueError, match="people='any' must be 'new' for a model whose"):
            known.refresh(X[:100])
        known.refresh(X[:100], people="new")
    other = sk.PrivacyBudget(4.0, 1e-5, neighbors="replace")
    with pytest.raises(ValueError, match="neighbors='replace' of the budget must be 'add-remove'"):
        model.refresh(X[200:], budget=other)
    with pytest.raises(ValueError, match="people='old' must be 'any' or 'new'"):
        model.refresh(X[200:], people="old")


# -- what is known ---------------------------------------------------------------------------------


def error(model, exact, X):
    counts = np.bincount(X.indices, minlength=X.shape[1])
    return np.sqrt(np.average((model.item_means_ - exact.item_means_) ** 2, weights=counts))


@pytest.mark.parametrize(("budget", "most"), [(LARGE, 0.4), (sk.PrivacyBudget(4.0), 0.6)])
def test_cohorts_add_up(budget, most):
    """Four times the people halve the error, and the parts of a cohort's error that are chance.

    Mean errors of 20 seeds: one seed fails in a tenth of all cases, and noise differs between
    machines, by the last bits of the plan. Of 80 such means, of other seeds, none fails.
    """
    X, errors = ratings(), np.zeros(2)
    exact = sk.DPItemMeans(sk.PrivacyBudget.nonprivate()).fit(X)
    for seed in range(20):
        model = first = sk.DPItemMeans(budget, random_state=seed).fit(X[:1000])
        for start in range(1000, 4000, 1000):
            model = model.refresh(X[start : start + 1000])
        last = sk.DPItemMeans(budget, random_state=seed).fit(X[3000:])
        errors += error(model, exact, X), error(first, exact, X) + error(last, exact, X)
    assert errors[0] < most * errors[1]
    if budget is LARGE:  # noise is next to nothing
        whole = sk.DPItemMeans(budget, random_state=0).fit(X)
        assert error(model, exact, X) < error(whole, exact, X) + 0.01
        assert model._knowledge_.exposure == pytest.approx(4000.0, rel=0.02)
        assert model._knowledge_.counts == pytest.approx(whole._knowledge_.counts, rel=0.05, abs=2)


def test_the_old_model_stays_as_it_was():
    X = ratings(400, 20)
    model = sk.DPItemMeans(BUDGET, **SEED).fit(X[:200])
    before = replay.fitted_state(model)
    new = model.refresh(X[200:], budget=sk.PrivacyBudget(1.0, 1e-5), people="new")
    assert replay.fitted_state(model) == before
    assert model.budget.epsilon == 4.0
    assert new.budget.epsilon == 1.0
    assert new.privacy_spent_.epsilon == pytest.approx(1.0, rel=1e-3)
    assert "nobody in it was in one of them" in new.privacy_spent_.assumptions[-1]
    assert replay.fitted_state(new.fit(X)) == replay.fitted_state(
        sk.DPItemMeans(sk.PrivacyBudget(1.0, 1e-5), **SEED).fit(X)
    )


@every_model
def test_saved_models_are_refreshed_alike(name, tmp_path):
    model = copy.deepcopy(MODELS[name]).fit(replay.base_ratings(1))
    model.save(tmp_path / "model")
    loaded = sk.load_model(tmp_path / "model").set_params(random_state=0)
    assert_alike(loaded._knowledge_, model._knowledge_)
    one, two = (each.refresh(replay.base_ratings(2)) for each in (loaded, model))
    assert_alike(one._item_model_, two._item_model_)
    assert_alike(one._knowledge_, two._knowledge_)


def assert_alike(one, two):
    for mine, other in zip(one, two, strict=True):
        assert np.array_equal(mine, other)


@pytest.mark.parametrize("name", ["means", "als", "als, clicks"])
def test_files_keep_knowledge_of_their_items_or_none(name, tmp_path):
    model = copy.deepcopy(MODELS[name]).fit(replay.base_ratings(1))
    known = model._knowledge_
    for wrong in (known.with_items(1), known._replace(exposure=-known.exposure)):
        model._knowledge_ = wrong
        model.save(tmp_path / "model")
        with pytest.raises(ModelFileError, match="knowledge must be that of the items"):
            sk.load_model(tmp_path / "model")
    model._knowledge_ = None
    model.save(tmp_path / "model")
    loaded = sk.load_model(tmp_path / "model")
    with pytest.raises(ValueError, match="cannot be refreshed, as it keeps nothing"):
        loaded.refresh(replay.base_ratings(2))


# -- columns ---------------------------------------------------------------------------------------


NEWCOMERS = {
    "als": sk.AdaptiveWeightALS(LARGE, **SEED, max_iter=3),
    "als, clicks": sk.AdaptiveWeightALS(LARGE, feedback="implicit", **SEED, max_iter=3),
    "gram": sk.DPCovarianceRecommender(LARGE, feedback="implicit", **SEED),
}


@pytest.mark.parametrize("has_features", [False, True])
@pytest.mark.parametrize("name", NEWCOMERS)
def test_popular_new_items_enter_lists_in_their_month(name, has_features):
    X = ratings(3000, 40)
    X = X if name == "als" else X.multiply(X > 3.5).tocsr()
    best = int(np.argmax(np.bincount(X.indices, minlength=40)))
    names = np.array([f"m{j}" for j in range(40)])
    old = np.flatnonzero(np.arange(40) != best)
    model = clone(NEWCOMERS[name])
    features = pd.DataFrame(np.random.default_rng(0).normal(size=(40, 2)), index=names)
    if has_features:
        model.set_params(item_features=features.iloc[old])
    model.fit(matrix(X[:1500][:, old], 0, names[old]))
    if has_features:
        model = model.with_items(features.iloc[[best]])
    new = model.refresh(matrix(X[1500:], 1500, names))
    rows = X[1500:1700][:, [*old, best]]
    lists = new.recommend(rows, 5)[0]
    unseen = rows[:, [39]].toarray().ravel() == 0
    assert np.mean((lists[unseen] == 39).any(axis=1)) > 0.7  # of lists of 5 of 40 items
    known = new._knowledge_
    assert known.exposure[0] > 1.8 * known.exposure[-1] > 2000.0


def test_columns_have_any_order_and_container():
    X, names = ratings(600, 20), [f"m{j}" for j in range(20)]
    frame = pd.DataFrame(np.where(X.toarray() > 0, X.toarray(), np.nan), columns=names)
    model = sk.DPItemMeans(BUDGET, **SEED).fit(frame[:300])
    whole = model.refresh(frame[300:])
    turned = frame[300:][names[::-1]]
    for rows in (turned, matrix(X[300:][:, ::-1], 300, names[::-1]), X[300:]):
        new = model.refresh(rows)
        assert np.array_equal(new.item_means_, whole.item_means_)
        assert new.feature_names_in_.tolist() == names
        assert new.catalogue_["item"].tolist() == names
    wider = pd.concat((frame, frame[["m3"]].rename(columns={"m3": "new"})), axis=1)
    assert model.refresh(wider[300:]).feature_names_in_[-1] == "new"


def test_titles_and_undeclared_ids_come_along():
    X = ratings(600, 20)
    terms = [f"m{j}" for j in range(20)], [f"Film {j}" for j in range(20)]
    rows = RatingMatrix(X, None, *terms, undeclared=("users",))
    model = sk.DPItemMeans(BUDGET, **SEED).fit(rows[:300, :18])
    new = model.refresh(rows[300:, ::-1])
    assert new.catalogue_["title"].tolist() == [*terms[1][:18], "Film 19", "Film 18"]
    assert new.privacy_spent_.unmet == (SEEDED, UNDECLARED["users"])


# -- errors ----------------------------------------------------------------------------------------


def test_what_cannot_be_refreshed_says_so():
    X = ratings(200, 20)
    with pytest.raises(NotFittedError):
        sk.DPItemMeans(BUDGET).refresh(X)
    none = sk.PrivacyBudget.nonprivate()
    with pytest.raises(ValueError, match=r"must be private.*rows of everybody"):
        sk.DPItemMeans(none).fit(X).refresh(X)
    model = sk.DPItemMeans(BUDGET, **SEED).fit(X)
    with pytest.raises(ValueError, match=r"must be private.*rows of everybody"):
        model.refresh(X, budget=none)
    with pytest.raises(ValueError, match=r"must have unit 'user' and delta > 0"):
        model.refresh(X, budget=sk.PrivacyBudget(4.0))
    with pytest.raises(ValueError, match=r"must have unit 'user' and delta > 0"):
        model.refresh(X, budget=sk.PrivacyBudget(4.0, 1e-5, unit="rating"))
    with pytest.raises(TypeError, match="must be a PrivacyBudget"):
        model.refresh(X, budget=4.0)
    for other in (
        sk.DPMFSampler(BUDGET, max_iter=2),
        sk.DPCovarianceRecommender(BUDGET),
        sk.AdaptiveWeightALS(BUDGET, solver="dpals", max_iter=2),
    ):
        with pytest.raises(ValueError, match="cannot be refreshed, as it keeps nothing"):
            other.fit(X).refresh(X)


def test_other_columns_are_refused(tmp_path):
    X, names = ratings(200, 20), [f"m{j}" for j in range(20)]
    plain, named = sk.DPItemMeans(BUDGET, **SEED).fit(X), sk.DPItemMeans(BUDGET, **SEED)
    named.fit(matrix(X, 0, names))
    with pytest.raises(ValueError, match="has 18 columns and must have the 20 of the model"):
        plain.refresh(X[:, :18])
    with pytest.raises(ValueError, match=r"names the item 'm0'.*which knows no names"):
        plain.refresh(matrix(X, 0, names))
    with pytest.raises(ValueError, match=r"names the item 0 and others.*such as 'm0'"):
        named.refresh(RatingMatrix(X))
    with pytest.raises(ValueError, match="several columns named 'm0'"):
        named.refresh(matrix(X, 0, [*names[:19], "m0"]))
    table = pd.DataFrame({"user": ["a"], "item": ["m0"], "rating": [3.0]})
    with pytest.raises(ValueError, match="ratings_to_matrix"):
        named.refresh(table)
    frame = pd.DataFrame(np.where(X.toarray() > 0, X.toarray(), np.nan), columns=names)
    model = sk.DPItemMeans(BUDGET, **SEED).fit(frame)
    with pytest.raises(ValueError, match="names the item 7 and must name all items by strings"):
        model.refresh(matrix(X, 0, [*names[:19], 7]))
    pytest.importorskip("pyarrow")
    store = ParquetRatings.write(tmp_path / "store", RatingMatrix(X, None, range(19, -1, -1)))
    with pytest.raises(ValueError, match="must have the model's items as its columns"):
        plain.refresh(store)
