"""DPItemSelector: what it keeps, its bounds on all neighbours, scikit-learn's contract."""

from itertools import product

import numpy as np
import pytest
from scipy import sparse
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import check_estimator

from skdpmf import DPItemMeans, PrivacyBudget, privacy_spent
from skdpmf.data import make_ratings
from skdpmf.exceptions import PrivacyParameterError
from skdpmf.preprocessing import DPItemSelector
from skdpmf.preprocessing.item_selector import item_count_weights
from skdpmf.privacy.plan import ReleasePlan
from skdpmf.privacy.recording import record_releases
from tests.estimators.common import as_coo, ratings

BUDGET = PrivacyBudget(4.0, 1e-5)
NONPRIVATE = PrivacyBudget.nonprivate()


# --- its bound ------------------------------------------------------------------------------------


def neighbours(unit, relation):
    """Yield pairs of rows of a catalogue of four items: of all users, or of one rating's."""
    rows = [np.where(rated, 3.0, np.nan) for rated in product([False, True], repeat=4)]
    for one, two in product(rows, rows):
        cells = int(np.sum(np.isnan(one) != np.isnan(two)))
        same = np.isnan(one).sum() == np.isnan(two).sum()
        if unit == "user" and (relation == "replace" or one is rows[0]):
            yield one, two
        if unit == "rating" and (cells == 1 if relation == "add-remove" else cells == 2 and same):
            yield one, two


@pytest.mark.parametrize("delta", [0.0, 1e-5])
@pytest.mark.parametrize("unit", ["user", "rating"])
@pytest.mark.parametrize("relation", ["add-remove", "replace"])
def test_the_bound_is_the_largest_distance_of_all_neighbours(unit, relation, delta):
    budget = PrivacyBudget(2.0, delta, unit=unit, neighbors=relation)
    found = {}
    for rows in neighbours(unit, relation):
        made = []
        for row in rows:
            with record_releases() as records:
                DPItemSelector(budget, random_state=0).fit(row[None])
            made += records
        found[rows[0].tobytes(), rows[1].tobytes()] = made[0].distance(made[1])
    assert max(found.values()) == pytest.approx(made[0].sensitivity, rel=1e-9)


# --- what it keeps ------------------------------------------------------------------------------


def test_without_noise_the_most_popular_stay():
    X = ratings(n_users=80)
    X[:, 4] = np.nan
    for unit, weigh in (("rating", np.ones_like), ("user", lambda n: 1 / np.sqrt(n))):
        n = (~np.isnan(X)).sum(axis=1).astype(float)
        counts = (~np.isnan(X) * weigh(n)[:, None]).sum(axis=0)
        fitted = DPItemSelector(PrivacyBudget.nonprivate(unit=unit), n_items=5).fit(X)
        np.testing.assert_allclose(fitted.counts_, counts)
        assert set(fitted.get_support(indices=True)) == set(np.argsort(-counts)[:5])
        every = DPItemSelector(PrivacyBudget.nonprivate(unit=unit), n_items=1.0, min_signal=0.0)
        np.testing.assert_array_equal(every.fit(X).support_, np.arange(12) != 4)
    ties = DPItemSelector(NONPRIVATE, n_items=2).fit(np.full((4, 5), 3.0))
    assert ties.get_support(indices=True).tolist() == [0, 1]
    for n_items, kept in ((3, 3), (12, 12), (0.25, 3), (0.26, 4), (1e-9, 1)):
        empty = DPItemSelector(BUDGET, n_items=n_items).fit(np.full((40, 12), np.nan))
        assert empty.transform(X).shape[1] == kept
    assert not privacy_spent(fitted).is_private


def test_a_threshold_leaves_out_what_noise_hides():
    X = make_ratings(400, 60, density=0.3, random_state=0)
    loud, quiet = (
        DPItemSelector(
            PrivacyBudget(epsilon, 1e-5), n_items=1.0, min_signal=3.0, random_state=0
        ).fit(X)
        for epsilon in (0.3, 30.0)
    )
    assert 1 <= loud.support_.sum() < quiet.support_.sum()
    scale = loud.plan(60).releases[0].noise_scale
    np.testing.assert_array_equal(loud.support_, loud.counts_ > 3.0 * scale)
    none = DPItemSelector(BUDGET, n_items=1.0, min_signal=1e6, random_state=0).fit(X)
    assert none.get_support(indices=True).tolist() == [int(none.counts_.argmax())]


# --- scikit-learn -------------------------------------------------------------------------------


@pytest.mark.parametrize("budget", [BUDGET, PrivacyBudget(1.0, unit="rating"), NONPRIVATE])
def test_sklearn_checks(budget):
    results = check_estimator(DPItemSelector(budget), on_skip=None)
    assert sum(r["status"] == "passed" for r in results) >= 45


def test_containers():
    X = ratings()
    expected = DPItemSelector(BUDGET, random_state=0).fit(X)
    kept = expected.transform(X)
    np.testing.assert_array_equal(kept, X[:, expected.support_])
    coo = as_coo(X)
    doubled = (
        np.concatenate((coo.data - 1, coo.data + 1)),
        (np.tile(coo.row, 2), np.tile(coo.col, 2)),
    )
    twice = sparse.coo_array(doubled, shape=X.shape)
    order = np.argsort(twice.row, kind="stable")
    indptr = np.searchsorted(twice.row[order], np.arange(len(X) + 1))
    unmerged = sparse.csr_array((twice.data[order], twice.col[order], indptr), shape=X.shape)
    assert unmerged.nnz == 2 * coo.nnz
    for container in (coo, coo.tocsr(), sparse.csc_matrix(coo), coo.tolil(), twice, unmerged):
        fitted = DPItemSelector(BUDGET, random_state=0).fit(container)
        np.testing.assert_array_equal(fitted.counts_, expected.counts_)
        got = fitted.transform(container)
        assert got.format == "csr"
        np.testing.assert_allclose(got.toarray(), np.nan_to_num(kept))
    narrow = expected.transform(X.astype(np.float32))
    assert narrow.dtype == expected.transform(coo.astype(np.float32)).dtype == np.float32


def test_dropped_items_come_back_unknown():
    X = ratings()
    fitted = DPItemSelector(BUDGET, n_items=5, random_state=0).fit(X)
    back = fitted.inverse_transform(fitted.transform(X))
    np.testing.assert_array_equal(back, np.where(fitted.support_, X, np.nan))
    R = as_coo(X).tocsr()
    back = fitted.inverse_transform(fitted.transform(R))
    np.testing.assert_array_equal(back.toarray(), R.toarray() * fitted.support_)
    assert fitted.inverse_transform(np.ones((2, 5), int)).dtype.kind == "f"
    with pytest.raises(ValueError, match="has 12 columns and must have 5"):
        fitted.inverse_transform(X)


def test_indices_in_y_do_not_pass_through_a_selection():
    """They name the columns of X: a score by them is refused, and not computed for other items."""
    X = ratings()
    y = np.arange(len(X)) % 12
    model = make_pipeline(
        DPItemSelector(BUDGET, n_items=5, random_state=0), DPItemMeans(BUDGET, random_state=0)
    ).fit(X, y)
    with pytest.raises(ValueError, match=r"y names item 11 and X has 5 columns.*pass item names"):
        model.score(X, y)
    with pytest.raises(ValueError, match="pass item names"):
        cross_val_score(model, X, y, cv=2, error_score="raise")
    kept = model[0].get_support(indices=True)
    stayed = np.isin(y, kept)
    rate = model[-1].score(model[0].transform(X), np.where(stayed, np.searchsorted(kept, y), -1))
    assert rate == np.mean(kept[model.predict(X)[stayed]] == y[stayed])
    # a matrix goes the way of X, and is refused where it does not
    with pytest.raises(ValueError, match=r"y has shape \(40, 12\)"):
        model.score(X, X)
    score = model[-1].score(model[:-1].transform(X), model[:-1].transform(X))
    assert score == model.score(X, model[0].transform(X))


def test_plan():
    plan = DPItemSelector(PrivacyBudget(1.0)).plan(30, 500)
    assert isinstance(plan, ReleasePlan)
    assert (plan.epsilon, plan.delta, plan.releases[0].shape) == (1.0, 0.0, (30,))
    with pytest.raises(ValueError, match="n_items=50 must be at most the 30 columns"):
        DPItemSelector(BUDGET, n_items=50).plan(30)
    with pytest.raises(ValueError, match="n_items=50 must be at most the 12 columns"):
        DPItemSelector(BUDGET, n_items=50).fit(ratings())


@pytest.mark.parametrize(
    ("params", "error", "message"),
    [
        ({"n_items": 0}, ValueError, "n_items=0 must be"),
        ({"n_items": 1.5}, ValueError, r"n_items=1\.5 must be"),
        ({"n_items": True}, ValueError, "n_items=True must be"),
        ({"min_signal": -1.0}, ValueError, r"min_signal=-1\.0 must be"),
        ({"random_state": 0.5}, ValueError, r"random_state=0\.5 must be"),
        ({"budget": 1.0}, TypeError, r"budget=1\.0 must be"),
        ({"budget": PrivacyBudget(1e-20, 1e-200)}, PrivacyParameterError, "must exceed the slack"),
    ],
)
def test_bad_parameters(params, error, message):
    class Untouchable:
        def __getattribute__(self, name):
            raise AssertionError(f"X.{name} was read")

    selector = DPItemSelector(BUDGET).set_params(**params)
    for use in (lambda: selector.fit(Untouchable()), lambda: selector.plan(12)):
        with pytest.raises(error, match=message):
            use()


@pytest.mark.parametrize("norm", ["l1", "l2"])
def test_rounding_of_weights_stays_inside_the_bound(norm):
    n = np.arange(200_001)
    weights = item_count_weights(n, norm=norm)
    assert weights[0] == 0.0
    size = n * weights if norm == "l1" else n * weights * weights
    assert size.max() <= 1.0
    assert size[1:].min() > 1.0 - 1e-11
