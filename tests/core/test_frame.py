"""One charge gives one curator; its key and its statement are made in the same place."""

import copy
import pickle

import numpy as np
import pytest
from scipy import sparse

from skdpmf import DPItemMeans, DPMFSampler, PrivacyBudget
from skdpmf.exceptions import PrivacyParameterError
from skdpmf.privacy.clipped_sums import item_scalars
from skdpmf.privacy.frame import framed
from skdpmf.privacy.plan import Planned, Release, ReleasePlan
from skdpmf.privacy.recording import record_releases
from skdpmf.privacy.sampler.grid import exact_grid
from skdpmf.privacy.text import SEEDED_ASSUMPTION
from tests.books.ledgers import new_ledger
from tests.core.audit import base_ratings

pytestmark = pytest.mark.every_case
BUDGET = PrivacyBudget(1.0, 1e-5)
R = sparse.csr_array(np.arange(1.0, 13.0).reshape(4, 3))


def as_they_are(R):
    return R


def doubled(R, factor):
    return R * factor


def a_plan(budget=BUDGET):
    counts = Release("counts", "counts", (3,), 1.0)
    return ReleasePlan.from_shares(budget, [counts], {"counts": 1.0})


def counted(curator):
    terms = curator.users.map(data_of)
    grid = exact_grid(curator.n_rows, 1.0)
    return curator.release("counts", item_scalars(curator.users, terms, clip=1.0, grid=grid))


def data_of(rows):
    return rows.data


def fit(seed=None, *, budget=BUDGET, prepare=(as_they_are,), settings="", rows=R, **more):
    """Release, statement, and what was recorded."""
    with record_releases() as records, framed(budget, a_plan(budget), seed) as frame:
        counted(frame.curator(rows, prepare, settings, **more))
        return frame.statement(), records


@pytest.mark.parametrize("first", ["curator", "rows"])
@pytest.mark.parametrize("second", ["curator", "rows"])
def test_one_charge_gives_one_curator(first, second):
    with framed(BUDGET, a_plan(), None) as frame:
        getattr(frame, first)(R, (as_they_are,), None)
        with pytest.raises(PrivacyParameterError, match="a second curator for one charge"):
            getattr(frame, second)(R, (as_they_are,), None)


def test_no_curator_comes_after_the_fit():
    with framed(BUDGET, a_plan(), None) as frame:
        pass
    with pytest.raises(PrivacyParameterError, match="a second curator for one charge"):
        frame.curator(R, (as_they_are,), None)


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, pickle.dumps])
def test_nobody_copies_a_frame(again):
    with framed(BUDGET, a_plan(), None) as frame, pytest.raises(TypeError, match="never pickled"):
        again(frame)


def test_nothing_of_a_frame_changes():
    with framed(BUDGET, a_plan(), 0) as frame:
        for name, value in (("plan", None), ("seeded", False)):
            with pytest.raises(AttributeError, match=r"is fixed|has no setter"):
                setattr(frame, name, value)


def test_what_a_frame_shows_of_its_plan_is_a_copy():
    """Neither the curator's noise nor the statement follows it."""
    with framed(BUDGET, a_plan(), None) as frame:
        object.__setattr__(frame.plan.releases[0], "noise_multiplier", 99.0)
        assert frame.curator(R, (as_they_are,), None).plan == a_plan()
        assert frame.statement().epsilon == a_plan().epsilon


def test_a_release_of_a_kind_of_its_own_is_counted():
    class Free(Release):
        kind = "free"

    class Loud(Planned):
        kind, name, shape, count, alternatives = "gaussian", "a", (3,), 1, ()
        noise_multiplier = 1e-6

    for release, error in (
        (Loud(), PrivacyParameterError),
        (Free("a", "x", (3,), 1.0, 9.0), AttributeError),
    ):
        plan = ReleasePlan(BUDGET, (release,))
        with framed(BUDGET, plan, None) as frame, pytest.raises(error):
            frame.curator(R, (as_they_are,), None)


def test_the_plan_is_for_the_budget_that_pays():
    plan = a_plan(PrivacyBudget(2.0, 1e-5))
    with pytest.raises(PrivacyParameterError, match="must be for"), framed(BUDGET, plan, None):
        pass


def test_the_ledger_is_charged_before_and_says_who_takes_part(tmp_path):
    ledger = new_ledger(tmp_path, 20.0, at_most=1, allow_seeded=True)
    budget, people = PrivacyBudget(1.0, 1e-5, ledger=ledger), np.array(list("abcd"), object)
    found = []
    for rows in (R[:2], R):  # a and b take part once
        ids = people[: rows.shape[0]]
        with framed(budget, a_plan(budget), 0, users=ids, shape=rows.shape) as frame:
            assert len(ledger.report().entries) == len(found) + 1
            found.append(frame.rows(rows, (as_they_are,), None)[0].toarray())
    assert np.array_equal(found[0], R[:2].toarray())
    assert np.array_equal(found[1], np.vstack((np.zeros((2, 3)), R[2:].toarray())))


def centred(R):
    return sparse.csr_array((R.data - R.data.mean(), R.indices, R.indptr), shape=R.shape)


def all_the_largest(R):
    """In place: a few rows of what it leaves are as they were."""
    R.data[:] = R.data.max()
    return R


def first_rows(R):
    return R[:50]


def test_rows_are_prepared_one_by_one():
    rows = sparse.csr_array(np.random.default_rng(0).normal(size=(60, 3)))
    with pytest.raises(PrivacyParameterError, match=r"centred.* than among a few"):
        fit(prepare=(centred,), rows=rows)
    with pytest.raises(PrivacyParameterError, match=r"all_the_largest.* than among a few"):
        fit(prepare=(all_the_largest,), rows=rows)
    with pytest.raises(PrivacyParameterError, match=r"first_rows.* must keep the shape"):
        fit(prepare=(first_rows,), rows=rows)


@pytest.mark.parametrize("seed", [None, 0, 1])
def test_the_statement_says_whether_there_was_a_seed(seed):
    statement, _ = fit(seed)
    assert statement.seeded is (seed is not None)
    assert (SEEDED_ASSUMPTION in statement.assumptions) is statement.seeded
    assert (statement.epsilon, statement.delta) == (a_plan().epsilon, 1e-5)


@pytest.mark.parametrize("seed", [None, 0])
def test_a_fit_has_the_seed_that_it_was_given(seed):
    model = DPItemMeans(PrivacyBudget(4.0, 1e-5), random_state=seed).fit(base_ratings())
    assert model.privacy_spent_.seeded is (seed is not None)
    with pytest.raises(AttributeError, match="has no setter"):
        model.privacy_spent_ = None


def key_of(seed=0, **more):
    return fit(seed, **more)[1]._keys[0]


def test_a_seeded_key_follows_from_all_that_the_fit_reads():
    """From the prepared rows, and all that is public; a row of level 0 is no row."""
    levels, columns = np.array([1.0, 1.0, 0.5, 0.0]), np.ones((3, 1))
    changes = [
        {},
        {"seed": 1},
        {"budget": PrivacyBudget(1.5, 1e-5)},
        {"settings": "alpha=2"},
        {"prepare": (doubled, 2.0)},
        {"rows": R[::-1]},
        {"levels": levels},
        {"levels": levels[::-1]},
        {"known": (np.ones(3),)},
        {"known": (np.ones(3), np.ones(2))},
        {"item_columns": columns},
        {"item_columns": 2.0 * columns},
        {"features": np.ones((4, 1))},
    ]
    keys = [key_of(**change) for change in changes]
    assert len(set(keys)) == len(keys)
    assert keys == [key_of(**change) for change in changes]
    assert key_of(prepare=(doubled, 2.0)) == key_of(rows=2.0 * R)
    other = R.copy()
    other.data[-1] = 99.0
    assert key_of(levels=levels, rows=other) == key_of(levels=levels)
    assert key_of(rows=other) != key_of()
    assert key_of(None) != key_of(None)


def test_personal_levels_are_stated():
    X = base_ratings()
    model = DPMFSampler(PrivacyBudget(20.0, 1e-5), n_components=2, max_iter=2)
    assert not model.fit(X).privacy_spent_.personal
    assert model.fit(X, user_epsilon=np.full(len(X), 2.0)).privacy_spent_.personal


def test_a_mechanism_gets_no_row(monkeypatch):
    seen = []
    real = DPItemMeans._release

    def release(self, *args, **more):
        seen.extend([*args, *more.values()])
        return real(self, *args, **more)

    monkeypatch.setattr(DPItemMeans, "_release", release)
    DPItemMeans(PrivacyBudget(4.0, 1e-5)).fit(base_ratings())
    assert [type(one).__name__ for one in seen] == ["Curator", "float"]
    assert not any(sparse.issparse(one) or isinstance(one, np.ndarray) for one in seen)
