"""privacy_spent of estimators, pipelines, searches and lists."""

import math
from fractions import Fraction

import numpy as np
import pytest
from scipy import sparse
from sklearn.compose import ColumnTransformer
from sklearn.model_selection import GridSearchCV, RandomizedSearchCV, ShuffleSplit
from sklearn.pipeline import FeatureUnion, Pipeline, make_pipeline
from sklearn.preprocessing import FunctionTransformer, MaxAbsScaler

import skdpmf as sk
from skdpmf.evaluation import RatingRegressor
from skdpmf.exceptions import PrivacyParameterError
from skdpmf.preprocessing import ContributionBounder, DPItemSelector
from skdpmf.privacy.accounting import gaussian_epsilon
from skdpmf.privacy.recording import record_releases
from skdpmf.privacy.statement import PrivacyStatement
from tests.estimators.common import as_coo, public_estimators, ratings

X = ratings(n_users=60)
WHOLE = sk.PrivacyBudget(1.0, 1e-5)


def headline(budget, shares=(0.1, 0.9)):
    """Bounder, selector and recommender, which share a budget."""
    head, rest = budget.split(list(shares))
    last = sk.AdaptiveWeightALS(rest, n_components=2, max_iter=2)
    return make_pipeline(ContributionBounder(8), DPItemSelector(head, n_items=6), last)


# --- estimators and pipelines -------------------------------------------------------------------


@pytest.mark.parametrize(
    "budget", [WHOLE, sk.PrivacyBudget(6.0, 1e-7, neighbors="replace")], ids=repr
)
@pytest.mark.parametrize("shares", [(0.1, 0.9), (0.5, 0.5), (0.001, 0.999)])
def test_a_pipeline_spends_exactly_the_whole(budget, shares):
    with record_releases() as records:
        model = headline(budget, shares).fit(X)
    spent = sk.privacy_spent(model)
    assert (1.0 - 3e-6) * budget.epsilon < spent.epsilon <= budget.epsilon
    assert (spent.delta, spent.unit, spent.neighbors) == (budget.delta, "user", budget.neighbors)
    # what was drawn, and not what was stated
    mu = math.sqrt(math.fsum(record.noise_multiplier**-2.0 for record in records))
    assert mu == pytest.approx(spent.mu, rel=1e-12)
    assert gaussian_epsilon(mu, budget.delta) <= budget.epsilon
    names = {release.name.partition(": ")[0] for release in spent.releases}
    assert names == {"dpitemselector", "adaptiveweightals"}
    assert any("Columns that a step chose" in note for note in spent.notes)
    assert PrivacyStatement.from_json(spent.to_json()) == spent
    assert "dpitemselector: item counts" in str(spent)


@pytest.mark.parametrize("unit", ["user", "rating"])
def test_a_pure_pipeline_spends_exactly_the_whole(unit):
    for epsilon in (0.3, 1.0, 7.7):
        head, rest = sk.PrivacyBudget(epsilon, unit=unit).split([0.1, 0.9])
        model = make_pipeline(
            ContributionBounder(None), DPItemSelector(head), sk.DPItemMeans(rest)
        ).fit(X)
        spent = sk.privacy_spent(model)
        assert spent.delta == 0.0
        assert (1.0 - 1e-12) * epsilon < spent.epsilon <= epsilon
        assert sum(Fraction(r.epsilon) * r.count for r in spent.releases) <= Fraction(epsilon)


def test_estimators_and_single_steps():
    model = sk.DPItemMeans(WHOLE).fit(X)
    assert sk.privacy_spent(model) is model.privacy_spent_
    alone = make_pipeline(ContributionBounder(), "passthrough", sk.DPItemMeans(WHOLE)).fit(X)
    assert sk.privacy_spent(alone) == alone[-1].privacy_spent_
    assert alone[-1].privacy_spent_ == model.privacy_spent_
    assert not sk.privacy_spent(sk.CacheSGDFactorizer(max_iter=1).fit(X)).is_private


def test_steps_side_by_side_are_refused_and_their_list_is_not():
    union = FeatureUnion([("a", sk.DPItemMeans(WHOLE)), ("b", sk.DPItemMeans(WHOLE))])
    columns = ColumnTransformer([("a", sk.DPItemMeans(WHOLE), slice(0, 3))])
    search = GridSearchCV(union, {"a__user_damping": [5.0]}, cv=2, scoring=lambda *_: 0.0)
    for value in (union.fit(X), columns.fit(X), Pipeline([("u", union)]), search.fit(X)):
        with pytest.raises(PrivacyParameterError, match=r"side by side pass a list of"):
            sk.privacy_spent(value)
    parts = [part for _, part in union.transformer_list]
    one = parts[0].privacy_spent_.mu
    assert sk.privacy_spent(parts).mu == pytest.approx(math.sqrt(2.0) * one)


def test_a_conditional_step_stays_conditional():
    model = make_pipeline(
        DPItemSelector(sk.PrivacyBudget(0.5)), sk.DPItemMeans(sk.PrivacyBudget(0.5))
    )
    model.fit(X)
    chain = sk.DPMFSampler(sk.PrivacyBudget(1.0), guarantee="posterior")
    # as after a fit of the chain, which takes its time
    model[-1]._statement = PrivacyStatement.from_plan(chain.plan(6, 60))
    spent = sk.privacy_spent(model)
    assert spent.condition
    assert "CONDITIONAL" in str(spent)


def test_what_says_nothing_is_refused():
    private = sk.DPItemMeans(WHOLE)
    for step in (MaxAbsScaler(), FunctionTransformer(), DPItemSelector(WHOLE)):
        model = make_pipeline(step, sk.DPItemMeans(WHOLE))
        if not isinstance(step, DPItemSelector):
            model.fit(np.nan_to_num(X))
        with pytest.raises(PrivacyParameterError, match=rf"<{type(step).__name__}> must be fitted"):
            sk.privacy_spent(model)
    regressor = RatingRegressor(private)
    for thing in (private, regressor, X, None, []):
        with pytest.raises(
            PrivacyParameterError, match=r"must be fitted and have a privacy_spent_"
        ):
            sk.privacy_spent(thing)
    with pytest.raises(PrivacyParameterError, match="it has released nothing"):
        sk.privacy_spent(make_pipeline(ContributionBounder()).fit(X))


def test_a_cap_is_not_free_for_single_ratings():
    """One more rating in a full row is two changes behind the cap: counted, not only claimed."""
    budget = sk.PrivacyBudget(1.0, 1e-5, unit="rating")
    full = np.full((9, 6), np.nan)
    full[2, :3] = 3.0
    more = full.copy()
    changes = []
    for column in (3, 4, 5):
        more[2, column] = 3.0
        statistics = []
        for Z in (full, more):
            model = make_pipeline(
                ContributionBounder(3, random_state=1), DPItemSelector(budget, random_state=0)
            )
            with record_releases() as records:
                model.fit(Z)
            statistics.append(records[0].statistic)
        changes.append(float(np.abs(statistics[1] - statistics[0]).sum()))
        full = more.copy()
        full[2] = np.where(np.arange(6) < column + 1, 3.0, np.nan)
    assert max(changes) == 2.0
    with pytest.raises(PrivacyParameterError, match=r"'contributionbounder' must be None"):
        sk.privacy_spent(model)
    clipped = make_pipeline(ContributionBounder(None), DPItemSelector(budget)).fit(X)
    assert sk.privacy_spent(clipped).epsilon <= 1.0


# --- lists and searches -------------------------------------------------------------------------


@pytest.mark.parametrize("refit", [True, False])
@pytest.mark.parametrize("n_jobs", [None, 2])
def test_a_search_counts_all_fits(refit, n_jobs):
    epsilons = [0.5, 1.0]
    grid = {"budget__epsilon": epsilons, "user_damping": [5.0, 10.0]}
    search = GridSearchCV(sk.DPItemMeans(WHOLE), grid, cv=3, refit=refit, n_jobs=n_jobs).fit(X)
    spent = sk.privacy_spent(search, n_items=None if refit else X.shape[1])
    squares = [6.0 * sk.PrivacyBudget(epsilon, 1e-5).mu ** 2 for epsilon in epsilons]
    if refit:
        squares.append(sk.PrivacyBudget(search.best_params_["budget__epsilon"], 1e-5).mu ** 2)
    assert spent.mu == pytest.approx(math.sqrt(sum(squares)), rel=1e-12)
    assert spent.epsilon == pytest.approx(gaussian_epsilon(spent.mu, 1e-5), rel=1e-9)
    assert spent.delta == 1e-5
    assert sum(release.count for release in spent.releases) == 12 + refit
    assert f"{12 + refit} fits" in spent.notes[0]
    assert "exact functions of private ratings" in spent.not_covered[0]


def test_a_search_is_never_charged_less_than_its_fits_spent():
    """Against what was drawn in the search, one thread, fold by fold; for each kind of noise."""
    pipeline = headline(WHOLE).set_params(dpitemselector__min_signal=1.0)
    for estimator, name in (
        (pipeline, "dpitemselector__budget__epsilon"),
        (sk.DPCovarianceRecommender(WHOLE, n_components=1), "budget__epsilon"),
        (sk.DPItemMeans(sk.PrivacyBudget(1.0)), "budget__epsilon"),
    ):
        search = GridSearchCV(
            estimator, {name: [0.3, 0.9]}, cv=2, scoring=lambda *_: 0.0, error_score="raise"
        )
        with record_releases() as records:
            search.fit(X)
        spent = sk.privacy_spent(search)
        drawn = [record.noise_multiplier for record in records]
        if records[0].noise == "laplace":
            total = sum(1.0 / z for z in drawn)
            assert total <= spent.epsilon <= total * (1.0 + 1e-6)
        else:
            total = math.sqrt(sum(z**-2.0 for z in drawn))
            assert total <= spent.mu <= total * (1.0 + 1e-6)


def test_any_search():
    cv = ShuffleSplit(2, random_state=0)
    search = RandomizedSearchCV(
        sk.DPItemMeans(WHOLE), {"user_damping": [1.0, 5.0, 10.0]}, n_iter=2, cv=cv, random_state=0
    ).fit(X)
    assert sum(release.count for release in sk.privacy_spent(search).releases) == 5
    steps = [sk.DPItemMeans(WHOLE), sk.DPItemMeans(sk.PrivacyBudget(2.0, 1e-5))]
    model = Pipeline([("bound", ContributionBounder()), ("model", sk.DPItemMeans(WHOLE))])
    search = GridSearchCV(model, {"model": steps}, cv=2).fit(X)
    assert [r.count for r in sk.privacy_spent(search).releases] in ([3, 2], [2, 3])
    exact = GridSearchCV(sk.CacheSGDFactorizer(max_iter=1), {"alpha": [0.1, 0.2]}, cv=2).fit(X)
    assert not sk.privacy_spent(exact).is_private
    nested = make_pipeline(ContributionBounder(), search).fit(X)
    assert sum(release.count for release in sk.privacy_spent(nested).releases) == 5


@pytest.mark.parametrize(
    "estimator", [e for e in public_estimators() if hasattr(e, "budget")], ids=repr
)
def test_fits_of_every_estimator_can_be_charged(estimator):
    unfitted = GridSearchCV(estimator, {"random_state": [0]}, cv=2)
    unfitted.cv_results_, unfitted.n_splits_ = {"params": [{"random_state": 0}]}, 2
    unfitted.refit = False
    spent = sk.privacy_spent(unfitted, n_items=30)
    assert spent.seeded
    assert estimator.budget.epsilon * 0.9 < spent.epsilon < 2.0 * estimator.budget.epsilon + 1e-6


def test_searches_that_cannot_be_charged():
    search = GridSearchCV(sk.DPItemMeans(WHOLE), {"user_damping": [5.0]}, cv=2, refit=False).fit(X)
    with pytest.raises(PrivacyParameterError, match="n_items=None must be given"):
        sk.privacy_spent(search)
    with pytest.raises(PrivacyParameterError, match="<GridSearchCV> must be fitted"):
        sk.privacy_spent(GridSearchCV(sk.DPItemMeans(WHOLE), {}))
    model = make_pipeline(MaxAbsScaler(), sk.DPItemMeans(WHOLE))
    grid = {"dpitemmeans__user_damping": [5.0]}
    search = GridSearchCV(model, grid, cv=2).fit(sparse.csr_array(as_coo(X)))
    with pytest.raises(PrivacyParameterError, match="<MaxAbsScaler> must have a plan"):
        sk.privacy_spent(search)
    budget = sk.PrivacyBudget(1.0, 1e-5, unit="rating")
    model = make_pipeline(ContributionBounder(3), sk.DPItemMeans(budget))
    search = GridSearchCV(model, grid, cv=2).fit(X)
    with pytest.raises(PrivacyParameterError, match="must be None for the unit 'rating'"):
        sk.privacy_spent(search)
