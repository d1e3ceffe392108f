"""Every private fit is charged to its ledger before anything is computed from a rating."""

import copy
import os
import pickle
import warnings
from pathlib import Path

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.experimental import enable_halving_search_cv  # noqa: F401
from sklearn.model_selection import GridSearchCV, cross_validate
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import FunctionTransformer

import skdpmf as sk
from skdpmf.books import ledger_file
from skdpmf.books.ledger_rules import Amount, Spending, charge
from skdpmf.evaluation import RatingRegressor
from skdpmf.exceptions import BudgetExceededError, LedgerError, PrivacyParameterError
from skdpmf.preprocessing import ContributionBounder, DPItemSelector
from tests.books.ledgers import gaussian_plan, new_ledger
from tests.built import built
from tests.core.audit import cost_of
from tests.estimators.common import ratings

X = ratings(n_users=40, n_items=6)
SMALL = {
    sk.AdaptiveWeightALS: {"n_components": 2, "max_iter": 2},
    sk.DPMFSampler: {"n_components": 2, "max_iter": 3},
    sk.DPCovarianceRecommender: {"n_components": 2},
    sk.DPItemMeans: {"user_damping": 5.0},
    sk.LocalDPGDDR: {"n_components": 2, "method": "gradient", "max_iter": 2},
}
CENTRAL = [sk.AdaptiveWeightALS, sk.DPMFSampler, sk.DPCovarianceRecommender]

every_class = pytest.mark.parametrize("kind", list(SMALL), ids=lambda kind: kind.__name__)


def make(kind, ledger, epsilon=0.5, **params):
    relation = {"unit": ledger.unit, "neighbors": ledger.neighbors}
    budget = sk.PrivacyBudget(epsilon, 1e-5, ledger=ledger, **relation)
    return built(kind, budget, **{**SMALL[kind], **params})


def ledger_for(kind, folder, epsilon=4.0, **settings):
    if kind is sk.LocalDPGDDR:
        settings = {"neighbors": "replace", **settings}
    return new_ledger(folder, epsilon, 1e-5, **settings)


class Watched:
    """Ratings that write down, in a file of all processes, when their values are looked at.

    A line is the number of rows and the number of entries that the ledger had.
    """

    def __init__(self, values, log, ledger):
        self.values, self.log, self.ledger = values, str(log), ledger

    @property
    def shape(self):
        return self.values.shape

    @property
    def ndim(self):
        return 2

    def __len__(self):
        return len(self.values)

    def __getitem__(self, key):  # a search that splits rows is not yet a fit
        return Watched(self.values[key], self.log, self.ledger)

    def __array__(self, dtype=None, copy=None):
        entries = len(self.ledger.report().entries)
        with open(self.log, "a", encoding="utf-8") as log:
            log.write(f"{len(self.values)} {entries}\n")
        return np.array(self.values, dtype=dtype)

    @property
    def touched(self):
        path = Path(self.log)
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        return [tuple(map(int, line.split())) for line in lines]


def total_of(ledger, plans):
    """What the plans cost by the accountant."""
    return sum((charge(ledger.rule, Spending.of(plan)) for plan in plans), start=Amount(0, 0))


SETTINGS = [
    (sk.AdaptiveWeightALS, {}, {}),
    (sk.AdaptiveWeightALS, {"solver": "dpals"}, {"neighbors": "replace"}),
    (sk.DPMFSampler, {}, {}),
    (sk.DPMFSampler, {"guarantee": "posterior"}, {"rule": "zcdp"}),
    (sk.DPCovarianceRecommender, {}, {}),
    (sk.DPCovarianceRecommender, {"noise": "laplace"}, {"rule": "basic", "unit": "rating"}),
    (sk.DPCovarianceRecommender, {"predictor": "knn"}, {"unit": "rating", "neighbors": "replace"}),
    (sk.DPItemMeans, {}, {}),
    (sk.DPItemMeans, {}, {"rule": "basic", "unit": "rating"}),
    (sk.LocalDPGDDR, {}, {}),
    (sk.LocalDPGDDR, {"method": "items"}, {}),
    (sk.LocalDPGDDR, {"method": "gradient"}, {"rule": "basic"}),
]


@pytest.mark.parametrize(("kind", "params", "settings"), SETTINGS)
def test_a_fit_is_charged_what_it_spends(tmp_path, kind, params, settings):
    ledger = ledger_for(kind, tmp_path, **settings)
    model = make(kind, ledger, **params)
    plan = model.plan(6, 40)
    watched = Watched(X, tmp_path / "log", ledger)
    model.fit(watched)
    assert watched.touched == [(40, 0)]  # once: their form is checked before they cost anything
    (entry,) = ledger.report().entries
    spent = model.privacy_spent_
    assert cost_of(spent.releases) == cost_of(plan.releases)
    assert (entry["epsilon"], entry["delta"]) == (spent.epsilon, spent.delta)
    assert (entry["status"], entry["estimator"]) == ("done", kind.__name__)
    assert entry["shape"] == [40, 6]
    assert {**SMALL[kind], **params}.items() <= entry["params"].items()
    assert (entry["condition"], entry["local"]) == (spent.condition, spent.local)
    assert ledger.report().amount == total_of(ledger, [plan])
    assert ledger.verify() == 1


@every_class
def test_what_is_refused_computes_nothing(tmp_path, kind, monkeypatch):
    ledger = ledger_for(kind, tmp_path)
    monkeypatch.setattr(kind, "_fit", None)
    exact = {"nonprivate_diagnostics": True, "guarantee": "posterior"}
    for error, message, params in (
        (BudgetExceededError, r"epsilon=.* must fit into what the ledger", {"epsilon": 8.0}),
        (PrivacyParameterError, "epsilon=inf must be finite", {"epsilon": np.inf}),
        (PrivacyParameterError, "seeded=True must be False", {"random_state": 0}),
        (ValueError, "n_jobs=0 must be", {"n_jobs": 0}),
        *([(ValueError, "nonprivate=True must be False", exact)] if kind is sk.DPMFSampler else ()),
    ):
        with pytest.raises(error, match=message):
            make(kind, ledger, **params).fit(X)
    with monkeypatch.context() as patch:
        patch.setattr(ledger_file, "_BUSY_SECONDS", 0.01)
        with ledger_file.sqlite3.connect(ledger.path, isolation_level=None) as holder:
            holder.execute("BEGIN IMMEDIATE")
            with pytest.raises(LedgerError, match="Nothing is released"):
                make(kind, ledger).fit(X)
        holder.close()
    os.rename(ledger.path, tmp_path / "elsewhere")
    with pytest.raises(LedgerError, match="Nothing is released"):
        make(kind, ledger).fit(X)
    os.rename(tmp_path / "elsewhere", ledger.path)
    assert ledger.report().entries == ()
    monkeypatch.undo()
    make(kind, ledger).fit(X)  # and all is well again
    assert ledger.verify() == 1


@every_class
def test_seeded_fits_are_recorded_where_they_are_allowed(tmp_path, kind):
    path = ledger_for(kind, tmp_path).path
    ledger = sk.PrivacyLedger(path, allow_seeded=True)
    one = make(kind, ledger, random_state=3).fit(X)
    assert [entry["seeded"] for entry in ledger.report().entries] == [True]
    (tmp_path / "other").mkdir()
    other = sk.PrivacyLedger(ledger_for(kind, tmp_path / "other").path, allow_seeded=True)
    moved = make(kind, other, random_state=3).fit(X)  # where it is charged does not matter
    np.testing.assert_array_equal(one.components_, moved.components_)


@every_class
def test_a_fit_that_fails_is_spent(tmp_path, kind, monkeypatch):
    def fails(self, *args, **more):
        raise MemoryError

    ledger = ledger_for(kind, tmp_path)
    monkeypatch.setattr(kind, "_publish", fails)
    for _ in range(2):
        with pytest.raises(MemoryError):
            make(kind, ledger).fit(X)
    report = ledger.report()
    assert [entry["status"] for entry in report.entries] == ["failed", "failed"]
    assert report.amount == total_of(ledger, [make(kind, ledger).plan(6, 40)] * 2)


def test_a_fit_is_charged_by_the_shape_that_it_has(tmp_path):
    ledger = new_ledger(tmp_path)
    model = make(sk.AdaptiveWeightALS, ledger)
    model.fit(X.tolist())
    assert ledger.report().entries[-1]["shape"] == [40, 6]

    class Liar(Watched):
        shape = (40, 3)

    model.fit(Liar(X, tmp_path / "log", ledger))
    assert ledger.report().entries[-1]["shape"] == [40, 6]


def test_levels_of_users_are_checked_before_they_cost(tmp_path):
    ledger = new_ledger(tmp_path)
    model = make(sk.DPMFSampler, ledger)
    for levels in (np.full(40, 0.6), np.full(39, 0.1)):
        with pytest.raises(ValueError, match="user_epsilon"):
            model.fit(X, user_epsilon=levels)
    assert ledger.report().entries == ()
    model.fit(X, user_epsilon=np.full(40, 0.25))
    assert ledger.report().entries[0]["epsilon"] == model.privacy_spent_.epsilon


def test_what_wraps_an_estimator_is_charged(tmp_path):
    ledger = new_ledger(tmp_path)
    model = make(sk.DPItemMeans, ledger, 0.2)
    make_pipeline(FunctionTransformer(), model).fit(X)
    rows, columns = np.nonzero(~np.isnan(X))
    RatingRegressor(model).fit(np.column_stack((rows, columns)), X[rows, columns])
    cross_validate(model, X, cv=3, error_score="raise")
    copies = [clone(model), copy.deepcopy(model), pickle.loads(pickle.dumps(model))]
    for twin in copies:
        assert twin.fit(X).budget.ledger == ledger
    rows = sorted(entry["shape"][0] for entry in ledger.report().entries)
    assert rows == [26, 27, 27, 40, 40, 40, 40, 40]
    assert ledger.verify() == 8


def search(ledger, watched, **settings):
    """Three estimators x two budgets x five folds, and the refit: 31 fits."""
    models = [make(kind, ledger) for kind in CENTRAL]
    grid = {"model": models, "model__budget__epsilon": [0.2, 0.4]}
    pipeline = Pipeline([("model", models[0])])
    return GridSearchCV(pipeline, grid, cv=5, n_jobs=2, **settings).fit(watched)


def test_a_search_is_charged_for_all_its_fits(tmp_path):
    ledger = new_ledger(tmp_path, 20.0)
    watched = Watched(X, tmp_path / "log", ledger)
    done = search(ledger, watched, error_score="raise")
    report = ledger.report()
    assert ledger.verify() == len(report.entries) == 31
    assert {entry["status"] for entry in report.entries} == {"done"}
    assert os.getpid() not in {entry["process"] for entry in report.entries[:-1]}
    # two accounts of the same fits: what the ledger sets aside is all that they differ by
    assert report.epsilon == pytest.approx(sk.privacy_spent(done).epsilon, rel=1e-4)
    tried = [make(kind, ledger, epsilon) for kind in CENTRAL for epsilon in (0.2, 0.4)]
    plans = [done.best_estimator_[-1].plan(6, 40), *(5 * [model.plan(6, 32) for model in tried])]
    assert report.amount == total_of(ledger, plans)
    assert [rows for rows, _ in watched.touched if rows in (32, 40)] == [32] * 30 + [40]
    assert done.best_estimator_[-1].budget.ledger == ledger


@pytest.mark.parametrize("error_score", [np.nan, "raise"])
def test_a_search_that_runs_out_stops(tmp_path, error_score):
    ledger = new_ledger(tmp_path, 1.0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with pytest.raises(BudgetExceededError):  # with nan from the refit, which hides nothing
            search(ledger, X, error_score=error_score)
    assert any("fits failed" in str(w.message) for w in caught) == (error_score != "raise")
    report = ledger.report()
    n = len(report.entries)
    assert 5 <= n < 31
    assert ledger.verify() == n
    assert report.amount.within(report.allowed)
    with pytest.raises(BudgetExceededError):
        ledger.reserve(gaussian_plan(1.0))


def pipeline_of(ledger, epsilon):
    """Three steps, two of which share a budget."""
    head, rest = sk.PrivacyBudget(epsilon, 1e-5, ledger=ledger).split([0.1, 0.9])
    return make_pipeline(
        ContributionBounder(5), DPItemSelector(head, n_items=4), sk.DPItemMeans(rest)
    )


@pytest.mark.parametrize("rule", ["gaussian", "zcdp", "basic"])
def test_every_step_of_a_pipeline_is_charged_and_may_have_the_limit(tmp_path, rule):
    ledger = new_ledger(tmp_path, 1.0, rule=rule)
    model = pipeline_of(ledger, 1.0).fit(X)
    report = ledger.report()
    assert [entry["estimator"] for entry in report.entries] == ["DPItemSelector", "DPItemMeans"]
    assert [entry["shape"] for entry in report.entries] == [[40, 6], [40, 4]]
    assert 0.0 <= report.left < 1e-4 * report.spent
    stated = sk.privacy_spent(model).epsilon
    assert 0.7 < stated <= 1.0
    if rule == "gaussian":
        assert report.epsilon == pytest.approx(stated, rel=1e-4)
