"""PrivateSearchCV: what it releases, what it keeps secret, and planted leaks."""

import warnings

import numpy as np
import pytest
from scipy import sparse, stats
from sklearn.base import clone
from sklearn.utils.estimator_checks import check_estimator

from skdpmf import (
    AdaptiveWeightALS,
    DPCovarianceRecommender,
    DPMFSampler,
    LocalDPGDDR,
    PrivacyBudget,
    load_model,
)
from skdpmf.books.search import SearchPlan
from skdpmf.data import make_ratings
from skdpmf.evaluation import PrivateSearchCV, private_search
from skdpmf.evaluation.private_search import user_points
from skdpmf.mechanisms.private_search import RandomTrials
from skdpmf.privacy.sampler.noise import NoiseSource
from skdpmf.privacy.users import Rows, reveal
from tests.built import built
from tests.evaluation import search_toy as toy

ALARM = 1e-6
TOY = {"level": [2.0, 3.0, 4.0]}


def toy_search(budget=toy.BUDGET, space=TOY, **params):
    return PrivateSearchCV(toy.ConstantRecommender(budget), space, budget, **params)


def als_search(**params):
    estimator = AdaptiveWeightALS(toy.BUDGET, max_iter=2, n_components=2)
    return PrivateSearchCV(estimator, {"alpha": [0.5, 2.0]}, toy.BUDGET, **params)


def covariance_search(**params):
    budget = params.pop("budget", toy.BUDGET)
    estimator = DPCovarianceRecommender(budget, n_components=2)
    return PrivateSearchCV(estimator, {"covariance__clamp": [0.5, 1.0]}, budget, **params)


@pytest.fixture(scope="module", name="X")
def _ratings():
    return make_ratings(300, 20, random_state=0)


# The interface


@pytest.mark.parametrize("make", [als_search, covariance_search])
def test_search_over_real_estimators(make, X, tmp_path):
    search = make(random_state=3, n_trials=3).fit(X)
    assert search.privacy_spent_.epsilon <= toy.BUDGET.epsilon
    assert search.privacy_spent_.delta == toy.BUDGET.delta
    best = search.best_estimator_
    assert best.privacy_spent_ == search.privacy_spent_
    assert best.random_state is None
    assert search.best_params_.items() <= best.get_params().items()
    for ask in ("predict", "transform", "decision_function", "score"):
        np.testing.assert_array_equal(getattr(search, ask)(X), getattr(best, ask)(X))
    assert search.recommend(X, 3, exclude_seen=False)[0].shape == (300, 3)
    assert search.predict_entries(X, X).nnz == X.nnz
    assert search.similar_items(0, n=3)[0].shape == (3,)
    assert search.similar_users(X[:2], X, n=3)[0].shape == (2, 3)
    search.save(tmp_path / "best.skdpmf", catalogue={"item": list(range(20))})
    loaded = load_model(tmp_path / "best.skdpmf")
    np.testing.assert_array_equal(loaded.predict(X), search.predict(X))
    assert loaded.privacy_spent_ == search.privacy_spent_


def test_nothing_else_is_kept(X):
    before = set(vars(als_search()))
    search = als_search(n_trials=4, random_state=0).fit(X)
    assert set(vars(search)) - before == {
        "_catalogue_",
        "best_estimator_",
        "best_params_",
        "best_score_",
        "n_features_in_",
        "_statement",
    }
    alone = clone(search.best_estimator_).fit(X)
    assert set(vars(search.best_estimator_)) == set(vars(alone))
    assert not hasattr(search, "cv_results_")


@pytest.mark.parametrize("asks", ["template", "candidates"])
def test_exact_diagnostics_are_refused_before_data_are_touched(asks):
    """The winner would carry them, its warning silenced."""
    budget, diagnosed = PrivacyBudget(8.0), {"guarantee__nonprivate_diagnostics": [True]}
    how = {"guarantee": "posterior", "n_components": 2, "max_iter": 5}
    sampler = built(DPMFSampler, budget, nonprivate_diagnostics=asks == "template", **how)
    search = PrivateSearchCV(
        sampler, {"alpha": [1.0]} if asks == "template" else diagnosed, budget, n_trials=1
    )
    for call in (lambda: search.fit(object()), lambda: search.plan(20)):
        with pytest.raises(ValueError, match=r"nonprivate_diagnostics.* private as a whole"):
            call()


def test_scikit_learns_checks():
    budget = PrivacyBudget(8.0, 1e-5)
    estimator = AdaptiveWeightALS(budget, n_components=2, max_iter=1, rating_range=(-10, 10))
    search = PrivateSearchCV(estimator, {"alpha": [1.0, 2.0]}, budget, n_trials=2, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        done = check_estimator(search, on_fail=None, on_skip=None)
    assert len(done) > 40
    assert [r["check_name"] for r in done if r["status"] not in ("passed", "skipped")] == []


def test_kind_of_y_decides_what_is_predicted(X):
    held_out = np.arange(300) % 20
    search = als_search(n_trials=2, random_state=0).fit(X, held_out)
    assert search.predict(X).shape == (300,)
    other = als_search(n_trials=2, random_state=0).fit(X, held_out[::-1])
    assert other.best_score_ == search.best_score_  # its content is not used


def test_seeded_search_repeats_and_is_new_on_other_data():
    X = toy.ratings()
    search = toy_search(n_trials=4, random_state=5)
    first, again = clone(search).fit(X), clone(search).fit(sparse.csr_array(np.nan_to_num(X)))
    assert first.best_score_ == again.best_score_
    assert first.best_estimator_.n_users_ == again.best_estimator_.n_users_
    assert first.best_params_ == again.best_params_
    others = [
        clone(search).set_params(random_state=6).fit(X),
        clone(search).fit(toy.with_row(X, None)),
        toy_search(n_trials=4, random_state=5, space={"level": [2.0, 3.0, 4.0, 4.5]}).fit(X),
    ]
    assert len({first.best_score_, *(other.best_score_ for other in others)}) == 4


def test_pure_budgets(X):
    estimator = DPCovarianceRecommender(PrivacyBudget(1.0), noise="laplace", n_components=2)
    budget = PrivacyBudget(60.0)
    search = PrivateSearchCV(estimator, {"covariance__clamp": [0.5, 1.0]}, budget, n_trials=2)
    search.fit(X)
    assert 59.9 < search.privacy_spent_.epsilon <= 60.0
    assert search.privacy_spent_.delta == 0.0
    assert {release.kind for release in search.privacy_spent_.releases} == {"pure"}


# The law of the number of trials, as the search runs it


def law_p_value(n):
    """P value of the geometric law of mean 3, from the numbers of fits of n searches."""
    X, counts = sparse.csr_array((2, toy.N_ITEMS)), []
    for seed in range(n):
        before = toy.ConstantRecommender.n_fits
        toy_search(random_state=seed, test_size=0.5, n_trials=3).fit(X)
        counts.append(toy.ConstantRecommender.n_fits - before)
    observed = np.bincount(np.minimum(counts, 7), minlength=8)[1:]
    expected = n * np.append(2.0 ** np.arange(6) / 3.0 ** np.arange(1, 7), (2 / 3) ** 6)
    return stats.chisquare(observed, expected).pvalue


def test_number_of_trials_follows_the_law(monkeypatch):
    assert law_p_value(80) > ALARM
    monkeypatch.setattr(RandomTrials, "draw", lambda self, key: 3)  # planted
    assert law_p_value(40) < ALARM


def test_candidates_are_drawn_uniformly_with_replacement():
    space = [{"level": [2.0, 4.0]}, {"level": stats.uniform(2.0, 1.0)}]
    search = toy_search(space=space, random_state=0)
    drawn = [search._draw(b"k" * 32, t)["level"] for t in range(400)]
    listed = np.isin(drawn, [2.0, 4.0])
    assert stats.binomtest(int(listed.sum()), 400, 0.5).pvalue > ALARM
    assert len(set(np.array(drawn)[~listed])) == np.count_nonzero(~listed)
    one = toy_search(space={"level": [2.0, 3.0, 4.0]})
    counts = np.unique([one._draw(b"k" * 32, t)["level"] for t in range(300)], return_counts=True)
    assert stats.chisquare(counts[1]).pvalue > ALARM


# Releases, replayed on neighbouring data


NEAR = [toy.BUDGET, PrivacyBudget(2.0, 1e-5, neighbors="replace")]


@pytest.mark.parametrize("budget", NEAR, ids=str)
def test_audit_of_a_toy(budget):
    toy.audit_search(toy.one_trial(budget=budget), toy.ratings(), toy.adversaries())


@pytest.mark.parametrize("make", [als_search, covariance_search])
def test_audit_of_real_estimators(make):
    search = make(n_trials=1, test_size=0.4)
    rows = toy.adversaries()
    toy.audit_search(
        search, toy.ratings(), {name: rows[name] for name in ("all high", "wild", "one")}
    )


@pytest.mark.parametrize("budget", NEAR, ids=str)
def test_sensitivity_of_the_score_is_attained(budget):
    """One user is right in everything, or wrong: B / 2 and - B / 2, the empty row between."""
    X, rows = toy.ratings(), toy.adversaries()
    search = toy.one_trial(budget=budget, space={"level": [toy.HIGH]}, test_size=0.7)
    search, records = toy.recorded(search, X)
    high, low, empty = (
        toy.recorded(search, toy.with_row(X, rows[name]), records)[1][-1]
        for name in ("all high", "all low", "nothing")
    )
    assert high.distance(empty) == low.distance(empty) == 2.0
    assert high.distance(low) == 4.0
    assert high.sensitivity == (4.0 if budget.neighbors == "replace" else 2.0)


def test_sensitivity_for_one_rating():
    """Add one cell of one user, known or held out."""
    budget = PrivacyBudget(2.0, 1e-5, unit="rating")
    X = toy.ratings()
    # seeded: without a key of its own, one split in some fifty holds out none of the cells
    model = covariance_search(budget=budget, n_trials=1, test_size=0.4, random_state=0)
    search, records = toy.recorded(model, X)
    worst = 0.0
    for item in range(toy.N_ITEMS):
        present = []
        for value in (np.nan, toy.LOW, toy.HIGH):
            row = X[toy.SLOT].copy()
            row[item] = value
            present.append(toy.recorded(search, toy.with_row(X, row), records)[1])
        for other in present[1:]:
            for a, b in zip(other, present[0], strict=True):
                assert a.distance(b) <= a.sensitivity * (1.0 + 1e-9), a
            worst = max(worst, other[-1].distance(present[0][-1]) / other[-1].sensitivity)
    assert 0.0 < worst <= 1.0


def test_split_is_a_function_of_slot_and_item():
    search = toy_search(random_state=0, test_size=0.3)
    dense = np.full((200, toy.N_ITEMS), 3.0)
    train, test = search._split(sparse.csr_array(dense))
    assert train.nnz + test.nnz == dense.size
    assert stats.binomtest(test.nnz, dense.size, 0.3).pvalue > ALARM
    fewer = dense.copy()
    fewer[toy.SLOT] = 0.0
    fewer[:, 2] = 0.0
    held_out = search._split(sparse.csr_array(fewer))[1].toarray() > 0
    np.testing.assert_array_equal(held_out, (test.toarray() > 0) & (fewer > 0))


def test_points_of_users():
    held_out = sparse.csr_array(np.array([[5.0, 1.0, 0.0], [0.0, 0.0, 0.0], [3.0, 3.0, 3.0]]))
    predicted = np.array([4.0, 3.0, 3.5, np.nan, -1e300])
    points = user_points(Rows(held_out, None), predicted, 2.0, 2.0**-30)
    np.testing.assert_allclose(points, [2.0 - 2.5, 0.0, 2.0 - (0.25 + 4.0 + 4.0) / 3], atol=1e-9)
    assert np.abs(points).max() <= 2.0


# Planted leaks


def test_planted_score_without_noise_is_noticed(monkeypatch):
    real = NoiseSource.release

    def quiet(self, statistic, *, name, noise_multiplier, **terms):
        multiplier = 0.0 if name == "score" else noise_multiplier
        return real(self, statistic, name=name, noise_multiplier=multiplier, **terms)

    monkeypatch.setattr(NoiseSource, "release", quiet)
    with pytest.raises(AssertionError, match="without noise"):
        toy.audit_search(toy.one_trial(), toy.ratings(), toy.adversaries())


def test_planted_unpaid_score_is_noticed(monkeypatch):
    real = SearchPlan.make.__func__

    def unpaid(cls, *terms):
        plan = real(cls, *terms)
        object.__setattr__(plan, "fit_budget", plan.budget)
        return plan

    monkeypatch.setattr(SearchPlan, "make", classmethod(unpaid))
    with pytest.raises(AssertionError, match="spent of"):
        toy.audit_search(toy.one_trial(), toy.ratings(), toy.adversaries())


def test_unbounded_points_are_clipped(monkeypatch):
    def unbounded(rows, predicted, half, grid):
        losses = np.square(predicted - rows.data)
        return half - np.bincount(rows.user, weights=losses, minlength=rows.n_users)

    monkeypatch.setattr(private_search, "user_points", unbounded)
    toy.audit_search(
        toy.one_trial(), toy.ratings(), toy.adversaries()
    )  # the sum bounds what it is given


def test_planted_split_by_position_is_noticed(monkeypatch):
    """Held out by the entry's place in the file: one user moves all later users' ratings."""

    def shared(self, R):
        held_out = np.random.default_rng(0).random(R.nnz) < 0.4
        train, test = R.copy(), R.copy()
        keep = private_search.keep_entries
        return keep(train, ~held_out), keep(test, held_out)

    monkeypatch.setattr(PrivateSearchCV, "_split", shared)
    with pytest.raises(AssertionError):
        toy.audit_search(toy.one_trial(), toy.ratings(), toy.adversaries())


def attack(n=60):
    """Lower bound on epsilon from whether the released score is positive, for one user or none."""
    budget = PrivacyBudget(0.1, 1e-5)
    space, hits = {"level": [toy.LOW, toy.HIGH]}, []
    for user in (np.full(toy.N_ITEMS, toy.HIGH), None):
        X = toy.with_row(np.full((5, toy.N_ITEMS), np.nan), user)
        searches = (
            toy_search(budget, space, n_trials=3, test_size=0.9, random_state=seed)
            for seed in range(n)
        )
        hits.append(sum(search.fit(X).best_score_ > 0.0 for search in searches))
    return toy.lower_epsilon(*hits, n, budget.delta)


def test_black_box_finds_a_score_without_noise_and_clears_the_search(monkeypatch):
    assert attack() <= 0.1
    monkeypatch.setattr(
        "skdpmf.evaluation.private_search.release_score",
        lambda noise, slot, total, *rest: float(reveal(total)[0]),
    )
    assert attack() > 0.1


# Errors, and what must not tell the number of trials


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"estimator": 3}, "estimator=3 must be a private recommender"),
        ({"param_distributions": {"budget__epsilon": [1.0]}}, "budget__epsilon"),
        ({"param_distributions": {"rating_range": [(0, 1)]}}, "one scale only"),
        ({"param_distributions": {"nothing": [1]}}, "must be a parameter of the estimator"),
        ({"param_distributions": {"level": 3}}, "param_distributions="),
        ({"param_distributions": 5}, "param_distributions=5"),
        ({"n_trials": 0}, "n_trials=0"),
        ({"score_share": 1.0}, "score_share=1.0"),
        ({"test_size": 0.0}, "test_size=0.0"),
        ({"budget": PrivacyBudget(-1.0)}, "epsilon=-1.0"),
        ({"budget": PrivacyBudget(1.0)}, "pure guarantee|delta"),
    ],
    ids=str,
)
def test_errors(params, message):
    search = toy_search().set_params(**params)
    with pytest.raises(ValueError, match=message):
        search.plan(toy.N_ITEMS, toy.N_USERS)
    with pytest.raises(ValueError, match=message):
        search.fit(toy.ratings())


def test_more_errors():
    budget = PrivacyBudget(4.0)
    called_back = toy_search()
    called_back.estimator._skl_callbacks = [object()]
    for search, error, message in (
        (toy_search(budget=None), TypeError, "must be a PrivacyBudget"),
        (called_back, ValueError, "without callbacks"),
        (PrivateSearchCV(LocalDPGDDR(budget), {"max_iter": [1]}, budget), ValueError, "local mod"),
        (als_search().set_params(param_distributions={"n_components": [2, 0]}), ValueError, "=0"),
    ):
        with pytest.raises(error, match=message):
            search.plan(toy.N_ITEMS, toy.N_USERS)
    with pytest.raises(ValueError, match="n_items=0"):
        toy_search().plan(0)
    assert not hasattr(toy_search(), "recommend")
    with pytest.raises(AttributeError):
        toy_search().predict(toy.ratings())
