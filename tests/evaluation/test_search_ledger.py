"""A private search with a ledger: one entry, before all but the form of X, whatever is drawn."""

import inspect
import math

import pytest
from sklearn.base import clone

from skdpmf import AdaptiveWeightALS, PrivacyBudget, PrivacyLedger
from skdpmf.evaluation import PrivateSearchCV
from skdpmf.exceptions import BudgetExceededError
from skdpmf.mechanisms.private_search import RandomTrials
from tests.books.ledgers import new_ledger
from tests.built import built
from tests.evaluation.search_toy import N_ITEMS, N_USERS, ConstantRecommender, ratings

X = ratings()


@pytest.fixture(name="ledger")
def _ledger(tmp_path):
    return new_ledger(tmp_path, 6.0, 1e-5, rule="zcdp", allow_seeded=True)


def toy_search(ledger, epsilon=1.0, delta=1e-5, template=None, **params):
    budget = PrivacyBudget(epsilon, delta, ledger=ledger)
    template = template or ConstantRecommender(budget)
    params = {"n_trials": 3, **params}
    return PrivateSearchCV(template, {"level": [2.0, 3.0, 4.0]}, budget, **params)


class Spied(ConstantRecommender):
    """Keeps the budgets of all fits, and fails where it is told to."""

    budgets: tuple = ()
    fails_at = None

    def fit(self, X, y=None):
        Spied.budgets = (*Spied.budgets, self.budget)
        if len(Spied.budgets) == Spied.fails_at:
            raise RuntimeError("planted")
        return super().fit(X, y)


@pytest.fixture
def spied(monkeypatch):
    monkeypatch.setattr(Spied, "budgets", ())
    monkeypatch.setattr(Spied, "fails_at", None)
    return Spied


def entry_of(ledger):
    (entry,) = ledger.report().entries
    return entry


def test_a_search_is_reserved_before_the_number_of_trials_and_their_fits(ledger, monkeypatch):
    drawn, draw = [], RandomTrials.draw

    def watched_draw(self, key):
        drawn.append(len(ledger.report().entries))
        return draw(self, key)

    monkeypatch.setattr(RandomTrials, "draw", watched_draw)
    search = toy_search(ledger).fit(X)
    assert drawn == [1]
    entry = entry_of(ledger)
    assert (entry["status"], entry["shape"]) == ("done", [N_USERS, N_ITEMS])
    assert entry["estimator"] == "PrivateSearchCV(ConstantRecommender)"
    assert (entry["epsilon"], entry["delta"]) == (search.privacy_spent_.epsilon, 1e-5)
    assert entry["params"]["estimator__level"] == 3.0
    assert ledger.verify() == 1


@pytest.mark.parametrize("rule", ["zcdp", "basic"])
def test_what_is_refused_fits_nothing(tmp_path, rule, monkeypatch):
    ledger = new_ledger(tmp_path, 1.0, 1e-5, rule=rule)
    monkeypatch.setattr(RandomTrials, "draw", None)
    fits = ConstantRecommender.n_fits
    with pytest.raises(BudgetExceededError) as caught:
        toy_search(ledger, 1.5).fit(X)
    assert ConstantRecommender.n_fits == fits
    assert ledger.report().entries == ()
    monkeypatch.undo()
    with pytest.raises(BudgetExceededError):
        toy_search(ledger, caught.value.largest * 1.0001).fit(X)
    toy_search(ledger, caught.value.largest).fit(X)
    assert ledger.verify() == 1


def test_other_refusals_fit_nothing_either(tmp_path):
    gaussian = new_ledger(tmp_path, 4.0, name="gaussian")
    strict = new_ledger(tmp_path, 4.0, name="strict", rule="zcdp")
    few = new_ledger(tmp_path, 4.0, 1e-16, name="few", rule="zcdp")

    class Exact(ConstantRecommender):
        def __init__(
            self, budget, *, level=3.0, rating_range=(1.0, 5.0), random_state=None,
            nonprivate_trace=False,
        ):  # fmt: skip
            super().__init__(
                budget, level=level, rating_range=rating_range, random_state=random_state
            )
            self.nonprivate_trace = nonprivate_trace

    budget = PrivacyBudget(1.0, 1e-5, ledger=strict)
    exact = Exact(budget, nonprivate_trace=True)
    asked = PrivateSearchCV(Exact(budget), {"nonprivate_trace": [False, True]}, budget)
    fits = ConstantRecommender.n_fits
    for search, match in (
        (toy_search(gaussian), r"rule='gaussian' must be 'zcdp' or 'basic'"),
        (toy_search(strict, random_state=0), r"seeded=True must be False"),
        (toy_search(strict, math.inf, 0.0), r"epsilon=inf must be finite"),
        (toy_search(strict, template=exact), r"nonprivate_trace=True must be False"),
        (asked, r"param_distributions names 'nonprivate_trace', which must be left out"),
        (toy_search(few), r"more than the 0 that a search is priced for"),
    ):
        with pytest.raises(ValueError, match=match):
            search.fit(X)
    with pytest.raises(ValueError, match="Expected 2D array, got scalar"):
        toy_search(strict).fit(3.0)
    assert ConstantRecommender.n_fits == fits
    for ledger in (gaussian, strict, few):
        assert ledger.report().entries == ()
    opened = PrivacyLedger(strict.path, allow_seeded=True)
    toy_search(opened, random_state=0).fit(X)
    assert [entry["seeded"] for entry in opened.report().entries] == [True]


def test_entries_do_not_tell_how_many_trials_there_were(tmp_path, spied):
    """Seeds with other numbers of trials, candidates and winners leave the same entry."""
    seen, numbers = set(), set()
    for seed in range(12):
        ledger = new_ledger(tmp_path, 6.0, name=str(seed), rule="zcdp", allow_seeded=True)
        spied.budgets = ()
        template = Spied(PrivacyBudget(1.0, 1e-5))
        search = toy_search(ledger, template=template, random_state=seed).fit(X)
        numbers.add(len(spied.budgets))
        assert all(budget.ledger is None for budget in spied.budgets)
        entry = entry_of(ledger)
        assert entry.pop("params").pop("random_state") == seed
        del entry["time"]
        seen.add(repr(entry))
        assert search.privacy_spent_.epsilon == pytest.approx(1.0, rel=1e-6)
    assert len(numbers) > 3
    assert len(seen) == 1


@pytest.mark.parametrize("fails_at", [1, 2])
def test_a_crash_in_a_trial_leaves_it_as_spent(ledger, spied, fails_at, monkeypatch):
    monkeypatch.setattr(RandomTrials, "draw", lambda self, key: 3)
    spied.fails_at = fails_at
    search = toy_search(ledger, template=Spied(PrivacyBudget(1.0, 1e-5)))
    with pytest.raises(RuntimeError, match="planted"):
        search.fit(X)
    assert entry_of(ledger)["status"] == "failed"
    assert ledger.report().spent == entry_of(ledger)["charge"] > 0.0
    assert ledger.verify() == 1


def test_the_best_estimator_is_charged_when_it_is_fitted_again(ledger):
    search = toy_search(ledger).fit(X)
    best = search.best_estimator_
    plan = search.plan(N_ITEMS, N_USERS)
    assert best.budget.ledger == ledger
    assert best.budget.without_ledger() == plan.fit_budget
    assert best.privacy_spent_ is search.privacy_spent_
    settings = {"n_components": 2, "max_iter": 2}
    budget = PrivacyBudget(1.0, 1e-5, ledger=ledger)
    model = PrivateSearchCV(
        built(AdaptiveWeightALS, budget, **settings), {"alpha": [1.0]}, budget
    ).fit(X)
    model.predict(X), model.recommend(X)
    assert len(ledger.report().entries) == 2
    clone(model.best_estimator_).fit(X)
    assert len(ledger.report().entries) == 3
    assert ledger.report().entries[2]["estimator"] == "AdaptiveWeightALS"
    plain = toy_search(None).fit(X).best_estimator_
    assert plain.budget.ledger is None


def test_a_conditional_candidate_marks_the_entry(ledger):
    class Conditional(ConstantRecommender):
        def plan(self, n_items, n_rows=None):
            plan = super().plan(n_items, n_rows)
            terms = {name: getattr(plan, name) for name in inspect.signature(type(plan)).parameters}
            return type(plan)(**{**terms, "condition": "high levels" * (self.level > 3.0)})

    template = Conditional(PrivacyBudget(1.0, 1e-5))
    toy_search(ledger, template=template).fit(X)
    assert entry_of(ledger)["condition"] == "high levels"
    assert "CONDITIONAL" in str(toy_search(ledger, template=template).plan(N_ITEMS, N_USERS))
