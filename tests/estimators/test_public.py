"""People who said yes: which rows are public, in which columns and units."""

import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.frozen import FrozenEstimator
from sklearn.model_selection import GridSearchCV, cross_validate
from sklearn.pipeline import make_pipeline

from skdpmf import (
    AdaptiveWeightALS,
    CacheSGDFactorizer,
    DPCovarianceRecommender,
    DPItemMeans,
    DPMFSampler,
    LocalDPGDDR,
    PrivacyBudget,
    load_model,
)
from skdpmf.data import ParquetRatings, RatingMatrix, make_ratings
from skdpmf.data.validation import as_rating_matrix
from skdpmf.estimators.contract.public import public_of
from skdpmf.evaluation import PrivateSearchCV
from skdpmf.exceptions import PrivacyParameterError
from skdpmf.preprocessing import DPItemSelector
from skdpmf.privacy.frame import Frame
from skdpmf.privacy.recording import record_releases

BUDGET = PrivacyBudget(4.0, 1e-5)


def rows_of(public, X, estimator=DPItemMeans):
    found = public_of(estimator(BUDGET, public=public), X, X.shape[1])
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
    with pytest.warns(UserWarning, match="a tenth of those in public lie outside"):
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
    for given, what in ((table, "has the columns"), ([[np.inf, 1.0]], "holds infinite"), (3, "=3")):
        with pytest.raises(ValueError, match=f"^public ?{what}"):
            rows_of(given, X)
    for given in ([5, 17], np.array([5, 17]), pd.Series([5, 17]), ("ann", "bob")):
        with pytest.raises(ValueError, match=r"^public=.*ids.*\.rows\("):
            rows_of(given, X)
    with pytest.raises(ValueError, match=r"public=.*None for these options"):
        AdaptiveWeightALS(BUDGET, solver="dpals", public=X).plan(2)
    with pytest.raises(ValueError, match=r"public=.*None for these options"):
        DPMFSampler(PrivacyBudget(4.0), guarantee="posterior", public=X).plan(2)
    with pytest.raises(ValueError, match=r"public=.*None for these options"):
        LocalDPGDDR(PrivacyBudget(4.0), method="gradient", public=X).plan(2)


def test_who_is_in_both_is_public_by_id_alone(tmp_path):
    R = make_ratings(6, 4, random_state=0)
    X = RatingMatrix(R, [f"u{i}" for i in range(6)], list("abcd"))
    public = X.rows(["u4", "u1"])
    np.testing.assert_array_equal(rows_of(public, X)[1], [1, 0, 1, 1, 0, 1])
    stored = ParquetRatings.write(tmp_path / "public", public)
    rows, others = rows_of(stored, X)
    np.testing.assert_array_equal(others, [1, 0, 1, 1, 0, 1])
    np.testing.assert_array_equal(rows, rows_of(public, X)[0])
    assert rows_of(R, X)[1] is None  # rows of an array have no ids


@pytest.mark.parametrize("kind", ["matrix", "frame", "stored"])
@pytest.mark.parametrize("ids", [None, range(10, 16), [7, 0, 9, 3, 1, 2], list("abcdef")], ids=str)
def test_a_choice_of_rows_of_any_kind_is_public(tmp_path, kind, ids):
    whole = RatingMatrix(make_ratings(6, 4, random_state=0), ids, list("abcd"))
    if kind == "frame":
        whole = pd.DataFrame(whole.X.toarray(), whole.users, list("abcd")).replace(0.0, np.nan)
    chosen = whole.iloc[[4, 1]] if kind == "frame" else whole[[4, 1]]
    X = ParquetRatings.write(tmp_path / "X", whole) if kind == "stored" else whole
    np.testing.assert_array_equal(rows_of(chosen, X)[1], [1, 0, 1, 1, 0, 1])


def test_numbers_of_rows_are_no_ids_and_a_warning_says_so():
    frame = pd.DataFrame(np.full((6, 2), 3.0), columns=["a", "b"])
    matrix = RatingMatrix(as_rating_matrix(frame), None, ["a", "b"])
    other = frame.set_axis([5, 1, 17, 8, 3, 99])
    for public, X in ((frame[:2], frame), (matrix, matrix), (other, frame), (frame, other)):
        with pytest.warns(UserWarning, match="whoever is in both counts twice.*ids of people"):
            assert rows_of(public, X)[1] is None
    for public, X in ((frame[:2], frame[2:]), (frame, frame.add_prefix("u", axis=0))):
        assert rows_of(public, X)[1] is None  # and nothing is said


def test_ids_of_another_type_are_refused():
    numbers = RatingMatrix(make_ratings(4, 2, random_state=0), [17, 4, 9, 23], ["a", "b"])
    texts = RatingMatrix(numbers.X, numbers.users.map(str), ["a", "b"])
    for public, X, kinds in ((texts, numbers, "string.*integer"), (numbers, texts, "integer.*str")):
        with pytest.raises(ValueError, match=f"^public has ids of people of type {kinds}.*convert"):
            rows_of(public, X)
    strangers = RatingMatrix(numbers.X, list("wxyz"), ["a", "b"])
    assert rows_of(strangers, numbers)[1] is None


NONPRIVATE = PrivacyBudget.nonprivate()
EXACT = [
    DPItemMeans(NONPRIVATE),
    AdaptiveWeightALS(NONPRIVATE, random_state=0),
    CacheSGDFactorizer(4, random_state=0),
]


@pytest.mark.parametrize("exact", EXACT, ids=lambda one: type(one).__name__)
@pytest.mark.parametrize("estimator", [DPItemMeans, AdaptiveWeightALS])
def test_a_model_of_public_people_serves_in_the_place_of_their_rows(estimator, exact, tmp_path):
    """As it is, or as its file; it helps as their rows do, and the statement counts them."""
    X = make_ratings(2500, 60, random_state=0)
    rows, held_out, budget = X[1000:2000], X[2000:], PrivacyBudget(0.25, 1e-5)
    model = clone(exact).fit(X[:1000])
    model.save(tmp_path / "model")
    one = fitted(estimator, rows, budget, public=model)
    two = fitted(estimator, rows, budget, public=str(tmp_path / "model"))
    np.testing.assert_array_equal(one.predict(X[:9]), two.predict(X[:9]))
    assert any("1,000 people are public" in text for text in one.privacy_spent_.assumptions)
    assert one.score(held_out) > fitted(estimator, rows, budget).score(held_out)
    as_rows = fitted(estimator, rows, budget, public=X[:1000]).score(held_out)
    factors_too = estimator is DPItemMeans or exact is not EXACT[0]
    assert not factors_too or one.score(held_out) == pytest.approx(as_rows, abs=0.01)
    if estimator is DPItemMeans:
        assert one.plan(60, 1000).expected_rmse["without public people"] > 0.0


def test_a_model_of_more_factors_than_a_plan_has_room_for_lends_the_strongest():
    X = make_ratings(1500, 60, n_ratings=45_000, factor_std=1.0, random_state=0)
    model = fitted(AdaptiveWeightALS, X[:800], NONPRIVATE)
    given = {"public": model}, {"public": X[:800]}
    two = [fitted(AdaptiveWeightALS, X[800:1400], n_components=2, **one) for one in given]
    n_factors = [one.components_.any(axis=1).sum() for one in (model, *two)]
    assert n_factors[0] > 2 == n_factors[1]
    assert two[0].score(X[1400:]) == pytest.approx(two[1].score(X[1400:]), abs=0.02)


def test_a_model_fits_by_names_of_items_more_or_fewer():
    X = make_ratings(900, 12, random_state=0)
    names = [f"film {j}" for j in range(12)]
    people = RatingMatrix(X[:400, ::-1], None, names[::-1])
    model = clone(EXACT[1]).fit(people)
    turned = RatingMatrix(X[400:], None, names)
    found = public_of(DPItemMeans(BUDGET, public=model), turned, 12).model
    plain = public_of(DPItemMeans(BUDGET, public=clone(EXACT[1]).fit(X[:400])), X[400:], 12).model
    np.testing.assert_allclose(found.known.counts, plain.known.counts)
    np.testing.assert_allclose(found.means, plain.means, atol=0.05)
    more = RatingMatrix(as_rating_matrix(np.full((3, 2), 4.0)), None, ["film 3", "new"])
    found = public_of(DPItemMeans(BUDGET, public=model), more, 2).model
    np.testing.assert_array_equal(found.known.counts > 0.0, [True, False])
    assert found.factors.shape[0] == 2


def test_no_other_model_is_taken(tmp_path):
    X = make_ratings(200, 9, random_state=0)

    def refused(match, public, estimator=DPItemMeans, budget=BUDGET):
        with pytest.raises(ValueError, match=match):
            fitted(estimator, X, budget, public=public)

    exact = clone(EXACT[0]).fit(X)
    refused("no public one", fitted(DPItemMeans, X))
    refused(r"fitted.*FrozenEstimator", clone(exact))
    refused("how many people", fitted(DPCovarianceRecommender, X, NONPRIVATE))
    refused(r"rating_range \(1\.0, 5\.0\)", DPItemMeans(NONPRIVATE, rating_range=(0, 9)).fit(X))
    refused("AdaptiveWeightALS and DPItemMeans of ratings", exact, DPCovarianceRecommender)
    refused("in a private fit", exact, budget=NONPRIVATE)
    refused("public has 8 columns", clone(EXACT[0]).fit(X[:, :8]))
    for path in (tmp_path / "missing.skdpmf", __file__, str(tmp_path)):
        refused(r"^public='.*' must be the path of a model file.*read_ratings\(path\)", path)
    search = GridSearchCV(DPItemMeans(BUDGET), {"public": [FrozenEstimator(exact)]}, cv=2).fit(X)
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()  # clones leave it fitted


SOLVERS = [DPItemMeans, AdaptiveWeightALS, DPCovarianceRecommender, LocalDPGDDR, DPMFSampler]


def fitted(estimator, X, budget=BUDGET, **params):
    return estimator(budget, **{"random_state": 0, **params}).fit(X)


@pytest.mark.parametrize("estimator", SOLVERS)
def test_nobody_changes_nothing_to_the_bit(estimator):
    X = make_ratings(300, 20, random_state=0)
    nobody, none = fitted(estimator, X, public=X[:0]), fitted(estimator, X)
    np.testing.assert_array_equal(nobody.predict(X[:9]), none.predict(X[:9]))
    assert nobody.privacy_spent_ == none.privacy_spent_


CLICKS = {"feedback": "implicit", "max_iter": 3, "n_components": 6}


def with_tastes(n_users, n_items=60, seed=0):
    """Clicks of users who like one third of the items three times as much as the others."""
    rng = np.random.default_rng(seed)
    like = rng.integers(3, size=n_users)[:, None] == np.arange(n_items) % 3
    chance = rng.uniform(0.05, 0.25, n_items) * np.where(like, 1.5, 0.5)
    return as_rating_matrix((rng.random((n_users, n_items)) < chance) * 1.0)


@pytest.mark.parametrize("epsilon", [1.0, 20.0])
@pytest.mark.parametrize("tastes", [False, True])
@pytest.mark.parametrize("n_public", [20, 900])
def test_clicks_beside_public_ones_are_no_worse_than_either(epsilon, tastes, n_public):
    """Whether or not there are tastes to learn, or people enough to show them."""
    made = (make_ratings(3300, 60, random_state=0).toarray() > 3.5) * 1.0
    X = with_tastes(3300, 200) if tastes else as_rating_matrix(made)
    budget, public, rows, later = PrivacyBudget(epsilon, 1e-5), X[:n_public], X[900:1800], X[1800:]
    parts = (rows, budget, {}), (public, NONPRIVATE, {}), (rows, budget, {"public": public})
    scores = [fitted(AdaptiveWeightALS, *p[:2], **CLICKS, **p[2]).score(later) for p in parts]
    assert scores[2] >= max(scores[:2]) - 0.01, scores


@pytest.mark.parametrize("epsilon", [0.05, 20.0])
def test_a_model_beside_public_clicks_survives(epsilon, tmp_path):
    X, budget = with_tastes(900), PrivacyBudget(epsilon, 1e-5)
    nobody, none = (
        fitted(AdaptiveWeightALS, X[:500], budget, **CLICKS, **own)
        for own in ({"public": X[:0]}, {})
    )
    np.testing.assert_array_equal(nobody.predict(X[:9]), none.predict(X[:9]))
    model = fitted(AdaptiveWeightALS, X[:500], budget, **CLICKS, public=X[500:])
    assert any("400 people are public" in text for text in model.privacy_spent_.assumptions)
    model.save(tmp_path / "model")
    loaded = load_model(tmp_path / "model")
    np.testing.assert_array_equal(loaded.predict(X[:9]), model.predict(X[:9]))
    fresh = model.refresh(X[:300])
    assert any("400 people are public" in text for text in fresh.privacy_spent_.assumptions)
    with pytest.raises(ValueError, match=r"public=None must be the clicks .* set_params\(public="):
        loaded.refresh(X[:300])  # lists without them would be far worse, and nobody would know why
    again = loaded.set_params(public=X[500:], random_state=0).refresh(X[:300])
    np.testing.assert_array_equal(again.predict(X[:9]), fresh.predict(X[:9]))
    assert loaded.set_params(public=X[:0]).refresh(X[:300]).n_features_in_ == 60


@pytest.mark.parametrize("epsilon", [1.0, 20.0])
def test_a_refresh_beside_public_people_keeps_a_head_that_is_popular_no_more(epsilon):
    """New people choose what few chose before: the head of the old counts is not among the top."""
    rng, chance = np.random.default_rng(0), np.geomspace(0.5, 0.005, 200)
    draws = (rng.random((n, 200)) for n in (2000, 200, 1000))
    X, public, later = (
        as_rating_matrix((draw < p) * 1.0)
        for draw, p in zip(draws, (chance, chance, chance[::-1]), strict=True)
    )
    budget, own = PrivacyBudget(epsilon, 1e-5), {"public": public, "feedback": "implicit"}
    model = fitted(DPCovarianceRecommender, X, budget, **own).refresh(later, people="new")
    assert np.isfinite(model.predict(later[:9])).all()


def test_items_that_no_public_person_chose_have_factors_too():
    X = with_tastes(3000)
    public = X[:500].toarray()
    public[:, ::2] = 0.0
    both, none = (
        fitted(AdaptiveWeightALS, X[500:1500], **CLICKS, **own)
        for own in ({"public": as_rating_matrix(public)}, {})
    )
    assert both.score(X[1500:]) >= none.score(X[1500:]) - 0.003


@pytest.mark.parametrize("estimator", SOLVERS[:4])  # the last one starts by chance
def test_without_privacy_public_rows_are_rows(estimator):
    X = make_ratings(300, 20, random_state=0)
    both = fitted(estimator, X[:200], NONPRIVATE, public=X[200:])
    whole = fitted(estimator, X, NONPRIVATE)
    np.testing.assert_array_equal(both.predict(X[:9]), whole.predict(X[:9]))


@pytest.mark.parametrize("estimator", SOLVERS)
def test_the_private_row_of_a_public_person_is_left_out(estimator):
    R = make_ratings(300, 20, random_state=0)
    X = RatingMatrix(R, [f"u{i}" for i in range(300)], list(range(20)))
    public, other = X.rows([f"u{i}" for i in range(9)]), R.copy()
    other.data[: other.indptr[9]] = 1.0
    one = fitted(estimator, X, public=public)
    two = fitted(estimator, X.with_ratings(other), public=public)
    np.testing.assert_array_equal(one.predict(R[:9]), two.predict(R[:9]))
    assert any("9 people are public" in text for text in one.privacy_spent_.assumptions)


@pytest.mark.parametrize("estimator", SOLVERS)
def test_the_model_survives_and_no_row_is_with_it(estimator, tmp_path):
    X = make_ratings(600, 20, random_state=0)
    model = fitted(estimator, X[:400], public=X[400:])
    assert str(X[400:].shape) in repr(clone(model).set_params(user_damping=5.0))
    model.save(tmp_path / "model")
    loaded = load_model(tmp_path / "model")
    assert loaded.public is None
    np.testing.assert_array_equal(loaded.predict(X[:9]), model.predict(X[:9]))
    if estimator not in (AdaptiveWeightALS, DPItemMeans):
        return  # of ratings they have no refresh
    # a refresh needs no rows of theirs: released values know them already
    assert loaded.refresh(X[:50], people="new").privacy_spent_.epsilon <= BUDGET.epsilon
    one, two = (fresh.set_params(random_state=0).refresh(X[:50]) for fresh in (loaded, model))
    np.testing.assert_array_equal(one.item_means_, two.item_means_)


def test_a_seeded_fit_with_other_public_rows_has_other_noise():
    X = make_ratings(600, 20, random_state=0)
    with record_releases() as one:
        fitted(DPItemMeans, X[:400], public=X[400:])
    with record_releases() as two:
        fitted(DPItemMeans, X[:400], public=X[401:])
    assert one[0].output[0] - one[0].statistic[0] != two[0].output[0] - two[0].statistic[0]


@pytest.mark.parametrize("estimator", SOLVERS)
def test_a_private_row_among_the_public_ones_is_found(estimator, monkeypatch):
    """Planted: what the mechanism is given as public is read off the private rows."""
    X = make_ratings(300, 20, random_state=0)
    real = Frame.rows

    def rows(self, R, prepare, settings, *, public=None, **more):
        return real(self, R, prepare, settings, public=prepare[0](R, *prepare[1:]), **more)

    monkeypatch.setattr(Frame, "rows", rows)
    with pytest.raises(PrivacyParameterError, match="public rows of a fit must be those"):
        fitted(estimator, X[:200], public=X[200:])


def test_public_rows_do_not_depend_on_a_private_row():
    X = make_ratings(300, 20, random_state=0)
    model, other = AdaptiveWeightALS(BUDGET, public=X[200:]), X[:200].toarray()
    other[7] = 5.0
    one, two = (public_of(model, rows, 20).rows for rows in (X[:200], other))
    np.testing.assert_array_equal(one.toarray(), two.toarray())


def test_where_noise_hides_all_others_the_public_model_is_the_model():
    X = make_ratings(1200, 30, random_state=0)
    alone = fitted(AdaptiveWeightALS, X[:500], PrivacyBudget.nonprivate())
    both = fitted(AdaptiveWeightALS, X[500:1000], PrivacyBudget(0.05, 1e-5), public=X[:500])
    assert both.score(X[1000:]) == pytest.approx(alone.score(X[1000:]), abs=0.005)


def test_lists_know_what_public_people_choose():
    """Everybody rates items of one half alone; at this budget private rows do not show it."""
    rng = np.random.default_rng(0)
    half = rng.integers(2, size=900)
    R = np.where(rng.random((900, 40)) < 0.3, rng.integers(1, 6, (900, 40)), np.nan)
    R[(np.arange(40) % 2) != half[:, None]] = np.nan

    def share(**params):
        model = fitted(AdaptiveWeightALS, R[300:800], PrivacyBudget(0.25, 1e-5), **params)
        return np.mean(model.recommend(R[800:], 5)[0] % 2 == half[800:, None])

    assert share(public=R[:300]) > 0.9
    assert share() < 0.7


@pytest.mark.parametrize("estimator", SOLVERS)
def test_they_help(estimator):
    X = make_ratings(2500, 60, random_state=0)
    budget, rows, held_out = PrivacyBudget(0.25, 1e-5), X[1000:2000], X[2000:]
    alone = fitted(estimator, rows, budget).score(held_out)
    both = fitted(estimator, rows, budget, public=X[:1000]).score(held_out)
    assert both > alone


def half_on_another_scale(R):
    """People who know every second item alone, and rate it within half of the range."""
    R = R.tocoo()
    even = R.col % 2 == 0
    entries = 0.5 * R.data[even] + 1.5, (R.row[even], R.col[even])
    return sparse.csr_array(entries, R.shape)


@pytest.mark.parametrize("epsilon", [0.1, 4.0])
@pytest.mark.parametrize("randomizer", ["privunit", "coordinate"])
def test_devices_start_from_public_people(randomizer, epsilon):
    """No worse than either part; than devices alone, where public people are of another kind."""
    X = make_ratings(6000, 60, random_state=0)

    def score(**params):
        own = {"randomizer": randomizer, **params}
        models = (LocalDPGDDR(PrivacyBudget(epsilon), random_state=s, **own) for s in range(8))
        return np.mean([model.fit(X[1000:5000]).score(X[5000:]) for model in models])

    alone, exact = score(), fitted(LocalDPGDDR, X[:300], NONPRIVATE).score(X[5000:])
    assert score(public=X[:300]) > max(alone, exact) - 0.002
    assert score(public=half_on_another_scale(X[:300])) > alone - 0.003


@pytest.mark.parametrize("epsilon", [0.3, 4.0])
@pytest.mark.parametrize(
    ("estimator", "size", "public", "std"),
    [
        (DPCovarianceRecommender, (4000, 100), 400, 0.55),
        (DPMFSampler, (4000, 100), 400, 0.55),
        (AdaptiveWeightALS, (1300, 40), 150, 0.55),  # who show no factor
        (AdaptiveWeightALS, (2500, 60), 300, 0.25),  # one, or none
    ],
)
def test_beside_public_people_it_is_no_worse_than_either(estimator, size, public, std, epsilon):
    X = make_ratings(*size, random_state=1, factor_std=std)
    end = size[0] - 1000
    budget, rows, later = PrivacyBudget(epsilon, 1e-5), X[public:end], X[end:]
    parts = (rows, budget), (X[:public], PrivacyBudget.nonprivate())
    lost = []
    for seed in range(3):
        better = max(fitted(estimator, *part, random_state=seed).score(later) for part in parts)
        both = fitted(estimator, rows, budget, public=X[:public], random_state=seed).score(later)
        lost.append(better - both)
    assert np.mean(lost) < 0.002


@pytest.mark.filterwarnings("ignore:DataFrame._data:DeprecationWarning")  # of old numpy.ma
@pytest.mark.parametrize("estimator", [DPCovarianceRecommender, AdaptiveWeightALS])
def test_stock_tools_of_scikit_learn_carry_public_people(estimator):
    """A grid over them, inside a pipeline whose selector drops columns of X: names align them."""
    X = pd.DataFrame(make_ratings(500, 20, random_state=0).toarray()).replace(0.0, np.nan)
    X.columns = [f"film {j}" for j in X]
    steps = DPItemSelector(PrivacyBudget(1.0, 1e-5), n_items=0.5), estimator(BUDGET, random_state=0)
    search = GridSearchCV(
        make_pipeline(*steps), {f"{estimator.__name__.lower()}__public": [None, X[:200]]}, cv=2
    )
    search.fit(X[200:])
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()
    public = clone(search.estimator).set_params(**search.cv_results_["params"][1]).fit(X[200:])
    assert any("200 people" in text for text in public[-1].privacy_spent_.assumptions)
    assert np.isfinite(cross_validate(public[-1], X[200:], cv=2)["test_score"]).all()


@pytest.mark.parametrize("estimator", [DPItemMeans, AdaptiveWeightALS])
def test_a_private_search_has_them_beside_all_candidates(estimator):
    """They cost nothing, and who is in both is public."""
    R = make_ratings(300, 20, random_state=0)
    X = RatingMatrix(R, [f"u{i}" for i in range(300)], list("abcdefghijklmnopqrst"))
    people, other = X[:30], R.copy()
    other.data[: other.indptr[30]] = 1.0

    def searched(public, X=X):
        given = estimator(BUDGET, public=public)
        space = {"n_components": [2]} if estimator is AdaptiveWeightALS else {"user_damping": [5.0]}
        return PrivateSearchCV(given, space, BUDGET, n_trials=1, random_state=0).fit(X)

    one, two = searched(people), searched(people, X.with_ratings(other))
    np.testing.assert_array_equal(one.predict(R[:9]), two.predict(R[:9]))
    numbered = RatingMatrix(R, range(1, 301), X.items)  # and not those of the rows of a trial
    three = searched(numbered[:30], numbered)
    np.testing.assert_array_equal(one.predict(R[:9]), three.predict(R[:9]))
    assert one.best_score_ == two.best_score_ == three.best_score_
    assert "ratings of 30 people are public" in " ".join(str(one.privacy_spent_).split())
    none, nobody = searched(None), searched(X.rows([]))
    assert (none.best_score_, none.privacy_spent_) == (nobody.best_score_, nobody.privacy_spent_)
    assert none.privacy_spent_.epsilon == one.privacy_spent_.epsilon


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_people_who_rate_nearly_all_items_may_be_public(seed):
    """Noise may leave a matrix of choices without a diagonal, which is nobody's fault."""
    X = np.random.default_rng(seed).integers(1, 6, (400, 7)).astype(float)
    for epsilon in (1.0, 10.0):
        model = fitted(AdaptiveWeightALS, X, PrivacyBudget(epsilon, 1e-6), public=X[::-1][:21])
        assert np.isfinite(model.decision_function(X[:2])).all()
