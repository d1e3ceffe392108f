"""Refreshes of the Gram model whose ledger has growing sums."""

import sqlite3
from contextlib import closing

import numpy as np
import pytest
from sklearn.base import clone

from skdpmf import AdaptiveWeightALS, DPCovarianceRecommender, PrivacyBudget, PrivacyLedger
from skdpmf import load_model as load
from skdpmf.data import make_ratings
from skdpmf.data.bounding import without_rows
from skdpmf.data.labels import RatingMatrix
from skdpmf.data.row_blocks import row_blocks
from skdpmf.estimators.contract import private as fitting
from skdpmf.exceptions import PrivacyParameterError
from skdpmf.privacy.recording import record_releases
from skdpmf.privacy.sampler.growing import growth
from skdpmf.privacy.sampler.noise import NoiseSource

T, MONTH, N_ITEMS = 4, 600, 40
LIMIT = PrivacyBudget(8.0, 1e-5)


@pytest.fixture(scope="module")
def clicks():
    return (make_ratings(T * MONTH + MONTH, N_ITEMS, random_state=0) > 3.5).astype(float)


def book(folder, refreshes=T, name="year"):
    return PrivacyLedger(folder / name, LIMIT, at_most=1, refreshes=refreshes)


def model_of(ledger, epsilon=8.0):
    budget = PrivacyBudget(epsilon, 1e-5, ledger=ledger)
    return DPCovarianceRecommender(budget, feedback="implicit")


def rows(X, month, size=MONTH):
    start = month * MONTH
    return RatingMatrix(X[start : start + size], [f"u{start + i}" for i in range(size)])


def refreshed(X, ledger, months):
    model = model_of(ledger).fit(rows(X, 0))
    for month in range(1, months):
        model = model.refresh(rows(X, month))
    return model


def exact_counts(X, n_rows):
    roots = np.sqrt(np.maximum(X[:n_rows].sum(axis=1), 1.0))
    return (X[:n_rows] / roots[:, None]).sum(axis=0)


def test_sums_have_the_noise_that_they_say(tmp_path, clicks):
    """Mean squares of 40 normals: beyond a factor of 2 by chance less than once in 2,000 times."""
    model = refreshed(clicks, book(tmp_path), T)
    known = model._knowledge_
    sd = model.privacy_spent_.releases[0].noise_scale * growth(T)
    assert np.sqrt(known.variance[0]) == pytest.approx(sd)
    error = known.counts - exact_counts(clicks, T * MONTH)
    assert 0.5 < np.mean(error**2) / sd**2 < 2.0
    independent = refreshed(clicks, book(tmp_path, None, "other"), T)._knowledge_
    assert known.variance[0] < 0.75 * independent.variance[0]
    assert known.facts[0] < 0.75 * independent.facts[0]
    assert known.stream[2:].tolist() == [T, T]
    assert not independent.stream.any()


def test_blocks_of_users_grow_alike(tmp_path, clicks, monkeypatch):
    """As above, by several processes' sums: one noise, the coordinator's."""
    monkeypatch.setattr(fitting, "row_blocks", lambda R, _: row_blocks(R, 3))
    monkeypatch.setattr(fitting, "_alone", lambda n_tasks, checkpoint: False)
    known = refreshed(clicks, book(tmp_path), T)._knowledge_
    error = known.counts - exact_counts(clicks, T * MONTH)
    assert 0.5 < np.mean(error**2) / known.variance[0] < 2.0
    assert known.stream[2:].tolist() == [T, T]


def positions(ledger):
    """Which refresh of its stream each entry is."""
    return [len(entry["stream"]["nonces"]) for entry in ledger.report().entries]


def test_a_stream_ends_after_its_refreshes(tmp_path, clicks):
    ledger = book(tmp_path)
    model = refreshed(clicks, ledger, T + 1)
    assert positions(ledger) == [1, 2, 3, 4, 1]
    assert model._knowledge_.stream[2:].tolist() == [1, 1]
    assert ledger.verify() == T + 1


def test_what_does_not_go_on_begins_anew(tmp_path, clicks, monkeypatch):
    """Another model, a state once more, another budget, many more people, a fit that failed."""
    ledger = book(tmp_path)
    first = model_of(ledger).fit(rows(clicks, 0))
    second = first.refresh(rows(clicks, 1, 200))
    first.refresh(RatingMatrix(clicks[900:1000], [f"v{i}" for i in range(100)]))  # once more
    second.refresh(RatingMatrix(clicks[900:1000], [f"w{i}" for i in range(100)]))  # not the last
    assert positions(ledger) == [1, 2, 1, 1]
    model_of(ledger).fit(RatingMatrix(clicks[:50], [f"x{i}" for i in range(50)]))
    budget = PrivacyBudget(4.0, 1e-5, ledger=ledger)
    small = model_of(ledger).fit(rows(clicks, 2, 100))
    smaller = small.refresh(rows(clicks, 3, 100), budget=budget)
    assert positions(ledger)[4:] == [1, 1, 1]
    many = RatingMatrix(clicks[:500], [f"y{i}" for i in range(500)])  # above four times as many
    last = smaller.refresh(many, budget=budget)
    assert positions(ledger)[-1] == 1
    larger = PrivacyBudget(8.0, 1e-5, ledger=ledger)
    more = last.refresh(RatingMatrix(clicks[:500], [f"z{i}" for i in range(500)]), budget=larger)
    assert positions(ledger)[-1] == 1  # a larger budget has less noise

    def fails(*args, **kwargs):
        raise RuntimeError("died")

    with monkeypatch.context() as patch:
        patch.setattr(DPCovarianceRecommender, "_publish", fails)
        with pytest.raises(RuntimeError, match="died"):
            more.refresh(RatingMatrix(clicks[:50], [f"q{i}" for i in range(50)]))
    assert positions(ledger)[-1] == 2
    more.refresh(RatingMatrix(clicks[:50], [f"r{i}" for i in range(50)]))
    assert positions(ledger)[-1] == 1
    assert ledger.verify() == len(ledger.report().entries)


def test_an_old_copy_of_the_file_draws_other_noise(tmp_path, clicks):
    """A copy forgets what was spent; at least the noise of two refreshes is not the same."""
    ledger = book(tmp_path)
    model = model_of(ledger).fit(rows(clicks, 0))
    kept, noises = (tmp_path / "year").read_bytes(), []
    for _ in range(2):
        (tmp_path / "year").write_bytes(kept)
        with record_releases() as made:
            model.refresh(rows(clicks, 1))
        noises.append(np.concatenate([r.output - r.statistic for r in made]))
    assert abs(np.corrcoef(*noises)[0, 1]) < 0.3


def test_models_and_files_hold_no_secret(tmp_path, clicks):
    ledger = book(tmp_path)
    model = refreshed(clicks, ledger, 2)
    model.save(tmp_path / "model")
    content = (tmp_path / "model").read_bytes()
    with closing(sqlite3.connect(tmp_path / "year")) as file:
        (secret,) = file.execute("SELECT value FROM ledger WHERE name='secret'").fetchone()
        assert secret.encode() in (tmp_path / "year").read_bytes()
    assert secret.encode() not in content
    assert bytes.fromhex(secret) not in content
    assert not [name for name in vars(model) if "growing" in name]
    new = load(tmp_path / "model").set_params(budget=model.budget).refresh(rows(clicks, 2))
    assert positions(ledger) == [1, 2, 3]
    assert new._knowledge_.stream[2:].tolist() == [3, 3]


def test_a_person_moves_one_month_alone(tmp_path, clicks, monkeypatch):
    """The sums themselves, without what is carried: the theorem has what that makes of them."""
    monkeypatch.setattr(NoiseSource, "_carried", lambda self, shape, *rest, **more: np.zeros(shape))

    def year(name, changed, replays=(None,) * 3):
        ledger, records, model = book(tmp_path, T, name), [], None
        for month in range(3):
            X = clicks if changed is None else without_rows(clicks, np.arange(3000) == changed)
            with record_releases(replays[month]) as made:
                here = rows(X, month)
                model = model_of(ledger).fit(here) if model is None else model.refresh(here)
            records.append(made)
        return model, records

    model, records = year("a", None)
    for month in range(3):
        other, made = year(f"b{month}", month * MONTH + 7, records)
        assert np.array_equal(other.components_, model.components_)
        for t in range(3):
            for one, two in zip(made[t], records[t], strict=True):
                distance = one.distance(two)
                assert distance * growth(T) <= one.sensitivity * (1.0 + 1e-9)
                assert (distance > 0.1) == (t == month)


def test_ledgers_keep_their_number_of_refreshes(tmp_path):
    assert book(tmp_path).refreshes == T
    assert PrivacyLedger(tmp_path / "year").refreshes == T
    with pytest.raises(PrivacyParameterError, match=r"refreshes=5 must be 4"):
        PrivacyLedger(tmp_path / "year", refreshes=5)
    for wrong in (1, 121, 2.0, True):
        with pytest.raises(PrivacyParameterError, match="from 2 to 120"):
            book(tmp_path, wrong, "new")
    for at_most in (None, 2):
        with pytest.raises(PrivacyParameterError, match="Pass at_most=1"):
            PrivacyLedger(tmp_path / "new", LIMIT, at_most=at_most, refreshes=3)


def test_other_models_have_independent_noise(tmp_path):
    X, ledger = make_ratings(300, 20, random_state=0), book(tmp_path)
    budget = PrivacyBudget(8.0, 1e-5, ledger=ledger)
    model = AdaptiveWeightALS(budget, n_components=2, max_iter=2)
    plan = model.plan(20)
    assert plan.refreshes == 1
    clone(model).fit(RatingMatrix(X, [f"u{i}" for i in range(300)]))
    assert "stream" not in ledger.report().entries[0]
