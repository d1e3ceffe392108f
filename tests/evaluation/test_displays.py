"""Displays: what stands at the pixels of the picture, and whether it can be read."""

import contextlib
import math
import sys

import numpy as np
import pytest
from scipy import sparse
from sklearn.base import BaseEstimator
from sklearn.pipeline import make_pipeline

from skdpmf import AdaptiveWeightALS, PrivacyBudget, PrivacyLedger, evaluation
from skdpmf.evaluation.displays import COLOURS
from skdpmf.exceptions import MissingExtraError
from skdpmf.privacy import PrivacyStatement, ReleasePlan
from skdpmf.privacy.plan import Release
from skdpmf.privacy.pure import PureRelease

pytest.importorskip("matplotlib")


@pytest.fixture(autouse=True)
def pyplot():
    import matplotlib.pyplot as plt

    plt.switch_backend("Agg")
    with plt.rc_context():  # whatever style another test has left
        plt.rcdefaults()
        yield plt
        plt.close("all")


@pytest.fixture
def pictures(pyplot):
    from . import pictures

    return pictures


class Toy(BaseEstimator):
    """Spends its budget on one release; its score is -(mean of the rows) - 1 / epsilon."""

    fits = 0

    def __init__(self, budget):
        self.budget = budget

    def fit(self, X, y=None):
        type(self).fits += 1
        sums = Release("sums", "item sums", (X.shape[1],), 1.0)
        plan = ReleasePlan.from_shares(self.budget, [sums], {"sums": 1.0})
        self.privacy_spent_ = PrivacyStatement.from_plan(plan)
        return self

    def score(self, X, y=None):
        return -X.mean() - 1.0 / self.budget.epsilon


ROWS = np.arange(24.0).reshape(12, 2) / 24.0


def utility():
    epsilons = (0.5, 1.0, 4.0, math.inf)
    return evaluation.PrivacyUtilityDisplay.from_estimator(
        Toy(PrivacyBudget(1.0, 1e-5)), ROWS, cv=3, epsilons=epsilons, negate_score=True
    )


def releases():
    return evaluation.BudgetDisplay.from_plan(
        AdaptiveWeightALS(PrivacyBudget(1.0, 1e-5)).plan(n_items=40)
    )


def long_budget():
    return evaluation.BudgetDisplay(
        [f"{i} AdaptiveWeightALS, failed" for i in range(21)], [0.04] * 21, left=0.16
    ).plot()


def wide_utility():
    return evaluation.PrivacyUtilityDisplay([0.001, 1.0, 1000.0], [1.0, 0.9, 0.8], name="a").plot()


DISPLAYS = [utility, wide_utility, releases, long_budget]


@pytest.mark.parametrize("make", DISPLAYS)
def test_all_that_is_written_can_be_read(make, pictures):
    display = make()
    assert display.figure_ is display.ax_.figure
    assert pictures.faults(display.figure_) == []
    assert display.ax_.get_xlabel()
    frame = display.ax_.get_window_extent()
    assert all(text.get_window_extent().x1 < frame.x1 - 4 for text in display.ax_.texts)
    assert len(pictures.boxes(display.figure_)) > 5


@pytest.mark.parametrize(
    "make",
    [
        lambda: Toy.fits and utility(),
        lambda: evaluation.BudgetDisplay(["a"], [1.0]).plot(),
    ],
)
def test_nothing_is_fitted_without_matplotlib(make, monkeypatch):
    monkeypatch.setattr(Toy, "fits", 1)
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(MissingExtraError, match=r"skdpmf\[plot\]"):
        make()
    assert Toy.fits == 1


def test_scores_stand_over_their_epsilons():
    scores = np.array([[0.9, 0.71, 0.7], [1.5, 1.3, 1.46], [1.1, 1.2, 1.15], [0.5, 0.5, 0.5]])
    display = evaluation.PrivacyUtilityDisplay([4.0, 0.5, 1.0, math.inf], scores, name="a").plot()
    points, _, (bars,) = display.errorbar_.lines
    order = [1, 2, 0]
    np.testing.assert_allclose(
        points.get_xydata(),
        [(e, scores[i].mean()) for e, i in zip([0.5, 1, 4], order, strict=True)],
    )
    ends = [(scores[i].min(), scores[i].max()) for i in order]
    np.testing.assert_allclose([bar[:, 1] for bar in bars.get_segments()], ends)
    assert display.ax_.get_xscale() == "log"
    assert display.reference_.get_ydata() == [0.5, 0.5]
    assert (display.reference_.get_linestyle(), display.reference_.get_color()) == (
        "--",
        COLOURS[0],
    )


def test_clones_are_fitted_at_each_epsilon():
    estimator = make_pipeline(Toy(PrivacyBudget(3.0, 1e-5)))
    before, Toy.fits = repr(estimator), 0
    display = evaluation.PrivacyUtilityDisplay.from_estimator(
        estimator, ROWS, cv=3, epsilons=(1.0, math.inf), param_name="toy__budget__epsilon"
    )
    assert Toy.fits == 6
    assert repr(estimator) == before
    assert not hasattr(estimator[0], "privacy_spent_")
    assert display.epsilons == pytest.approx([1.0, math.inf], rel=1e-6)
    assert display.epsilons[0] <= 1.0
    folds = -ROWS.reshape(3, -1).mean(axis=1)
    np.testing.assert_allclose(display.scores, [folds - 1.0, folds])
    assert display.guarantee == "one user, add-remove, delta = 1e-05"
    assert display.ax_.get_ylabel() == "score (higher is better)"
    assert utility().ax_.get_ylabel() == "minus score (lower is better)"
    np.testing.assert_allclose(utility().scores[-1], -folds)
    y, toy = sparse.csr_array(ROWS), Toy(PrivacyBudget(3.0, 1e-5))
    again = evaluation.PrivacyUtilityDisplay.from_estimator(
        toy, ROWS, y, cv=3, epsilons=(1.0, math.inf)
    )
    np.testing.assert_allclose(again.scores, display.scores)


def test_releases_of_a_plan_make_up_the_whole():
    plan = AdaptiveWeightALS(PrivacyBudget(1.0, 1e-5)).plan(n_items=40)
    display = evaluation.BudgetDisplay.from_plan(plan)
    assert display.shares == pytest.approx([plan.share(release) for release in plan.releases])
    assert [bar.get_width() for bar in display.bars_] == list(display.shares)
    assert sum(display.shares) == pytest.approx(1.0)
    assert display.ax_.get_xlabel() == "share of mu^2 that is spent"
    title = display.ax_.get_title(loc="left")
    assert title == "epsilon = 1\none user, add-remove, delta = 1e-05"
    stated = evaluation.BudgetDisplay.from_plan(PrivacyStatement.from_plan(plan))
    assert stated.names == display.names
    assert stated.title == title
    fitted = Toy(PrivacyBudget(1.0, 1e-5)).fit(ROWS)
    assert evaluation.BudgetDisplay.from_estimator(fitted).shares == pytest.approx([1.0])


def reserve(ledger, epsilon, name=""):
    draw = PureRelease("draw", "V", (3,), epsilon, "posterior sample", 1.0, "loss of a user")
    return ledger.reserve(ReleasePlan(PrivacyBudget(epsilon), (draw,)), estimator=name)


def test_a_ledger_shows_what_is_left(tmp_path):
    ledger = PrivacyLedger(tmp_path / "a.ledger", PrivacyBudget(2.0))
    assert evaluation.BudgetDisplay.from_ledger(ledger).left == 1.0
    with reserve(ledger, 0.5, "DPMFSampler"):
        pass
    with contextlib.suppress(KeyError), reserve(ledger, 0.25, "Other"):
        raise KeyError
    display = evaluation.BudgetDisplay.from_ledger(ledger)
    assert display.names == ["1 DPMFSampler", "2 Other, failed"]
    assert [bar.get_width() for bar in display.bars_] == pytest.approx([0.25, 0.125, 0.625])
    assert display.ax_.get_xlabel() == "share of the limit's epsilon"
    spent, limit = display.title.split("\n")
    assert 0.75 <= float(spent.split()[2]) <= 0.7502
    assert limit == "limit: epsilon = 2, delta = 0, one user, add-remove"
    reserve(ledger, 0.25)
    assert evaluation.BudgetDisplay.from_ledger(ledger).names[-1] == "3 -, reserved"
