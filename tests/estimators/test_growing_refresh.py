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
from skdpmf.privacy.sampler.growing import coefficients, growth
from skdpmf.privacy.sampler.noise import NoiseSource
from tests.core.audit import adversaries, base_ratings, with_row

T, MONTH, N_ITEMS = 4, 600, 40
LIMIT = PrivacyBudget(16.0, 1e-5)


@pytest.fixture(scope="module")
def clicks():
    return (make_ratings(T * MONTH + MONTH, N_ITEMS, random_state=0) > 3.5).astype(float)


def book(folder, refreshes=T, name="year"):
    return PrivacyLedger(folder / name, LIMIT, at_most=1, refreshes=refreshes)


def model_of(ledger, epsilon=16.0):
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
    assert known.stream[2:4].tolist() == [T, T]
    assert not independent.stream.any()


def test_blocks_of_users_grow_alike(tmp_path, clicks, monkeypatch):
    """As above, by several processes' sums: one noise, the coordinator's."""
    monkeypatch.setattr(fitting, "row_blocks", lambda R, _: row_blocks(R, 3))
    monkeypatch.setattr(fitting, "_alone", lambda n_tasks: False)
    known = refreshed(clicks, book(tmp_path), T)._knowledge_
    error = known.counts - exact_counts(clicks, T * MONTH)
    assert 0.5 < np.mean(error**2) / known.variance[0] < 2.0
    assert known.stream[2:4].tolist() == [T, T]


def positions(ledger):
    """Which refresh of its stream each entry is."""
    return [len(entry["stream"]["nonces"]) for entry in ledger.report().entries]


def test_a_stream_ends_after_its_refreshes(tmp_path, clicks):
    ledger = book(tmp_path)
    model = refreshed(clicks, ledger, T + 1)
    assert positions(ledger) == [1, 2, 3, 4, 1]
    assert model._knowledge_.stream[2:4].tolist() == [1, 1]
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
    stream = more._knowledge_.stream.copy()
    stream[2] = 2  # as if it were the model of the fit that failed
    more._knowledge_ = more._knowledge_._replace(stream=stream)
    more.refresh(RatingMatrix(clicks[:50], [f"r{i}" for i in range(50)]))
    assert positions(ledger)[-1] == 1
    assert ledger.verify() == len(ledger.report().entries)


def test_an_old_copy_of_the_file_draws_other_noise(tmp_path, clicks):
    """A copy forgets what was spent; at least the noise of two refreshes is not the same.

    The correlation of 820 pairs of normals is beyond 0.3 by chance less than once in 1e15 times.
    """
    ledger = book(tmp_path)
    model = model_of(ledger).fit(rows(clicks, 0))
    kept, noises = (tmp_path / "year").read_bytes(), []
    for _ in range(2):
        (tmp_path / "year").write_bytes(kept)
        with record_releases() as made:
            model.refresh(rows(clicks, 1))
        noises.append(made[-1].output - made[-1].statistic)
    assert noises[0].size == 820
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
    assert new._knowledge_.stream[2:4].tolist() == [3, 3]


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


def carried_on(past):
    """What stands for carried noise: z = y - R, of replayed y and of this year's own R."""

    def carried(self, shape, n, n_jobs, *, name, **terms):
        total, b = np.zeros(shape), coefficients(T)[1]
        for lag in range(1, n + 1):
            made = [one for one in past if one.name == name][-lag]
            z = made.output - made.statistic
            total[..., : z.shape[-1]] += b[lag] * z
        return total

    return carried


def replayed_year(folder, name, months, limit, monkeypatch, replays=None):
    """Models of a year, and the records of each month, in which the statistic is q."""
    ledger, past, records, models = (
        PrivacyLedger(folder / name, limit, at_most=1, refreshes=T),
        [],
        [],
        [],
    )
    budget = PrivacyBudget(limit.epsilon, limit.delta, neighbors=limit.neighbors, ledger=ledger)
    monkeypatch.setattr(NoiseSource, "_carried", carried_on(past))
    for t, X in enumerate(months):
        users = [f"month {t} row {i}" for i in range(X.shape[0])]
        with record_releases(None if replays is None else replays[t]) as made:
            model = DPCovarianceRecommender(budget, feedback="implicit")
            here = RatingMatrix(X, users)
            models.append(models[-1].refresh(here) if models else model.fit(here))
        records.append(list(made))
        past += made
    return models, records


def audit_year(folder, limit, monkeypatch):
    """Squares of all distances that a person makes in a year are within that of the sensitivity."""
    empty = [with_row(base_ratings(seed), None) for seed in range(T)]
    models, records = replayed_year(folder, "first", empty, limit, monkeypatch)
    largest = 0.0
    for month in range(T):
        for number, row in enumerate(adversaries(models[month]).values()):
            months = [with_row(X, row) if t == month else X for t, X in enumerate(empty)]
            name = f"{month} {number}"
            found, made = replayed_year(folder, name, months, limit, monkeypatch, records)
            for one, other in zip(found, models, strict=True):
                assert np.array_equal(one.components_, other.components_)
            squares = {}
            for t in range(T):
                for a, b in zip(made[t], records[t], strict=True):
                    share = a.distance(b) / a.sensitivity
                    assert t >= month or share == 0.0
                    squares[a.name] = squares.get(a.name, 0.0) + share**2
            assert max(squares.values()) <= 1.0 + 1e-9, f"too far in a year: {squares}"
            largest = max(largest, *squares.values())
    return largest


@pytest.mark.parametrize(("epsilon", "neighbors"), [(20.0, "add-remove"), (1.0, "replace")])
def test_a_person_moves_a_year_by_the_sensitivity(tmp_path, monkeypatch, epsilon, neighbors):
    """With a Gram matrix in all months, or from some month on; the bound is nearly attained."""
    limit = PrivacyBudget(epsilon, 1e-5, neighbors=neighbors)
    share = 1.0 if neighbors == "add-remove" else 0.5  # one of the two rows is empty
    assert audit_year(tmp_path, limit, monkeypatch) > 0.9 * share


def test_a_year_without_the_planned_norm_is_seen(tmp_path, monkeypatch):
    for module in ("privacy.curator", "mechanisms.gram.item_item"):
        monkeypatch.setattr(f"skdpmf.{module}.growth", lambda refreshes: 1.0)
    with pytest.raises(AssertionError, match="too far in a year"):
        audit_year(tmp_path, PrivacyBudget(20.0, 1e-5), monkeypatch)


def test_noise_that_comes_back_too_strongly_is_seen(tmp_path, monkeypatch):
    """Planted: coefficients that are larger than the proof's."""
    here = "tests.estimators.test_growing_refresh.coefficients"
    c, b = coefficients(T)
    monkeypatch.setattr(here, lambda n: (c, 2.0 * b))
    with pytest.raises(AssertionError, match="too far in a year"):
        audit_year(tmp_path, PrivacyBudget(20.0, 1e-5), monkeypatch)


def test_a_head_that_comes_later_begins_its_sum_then(tmp_path):
    """The first month chooses no head for a year: its counts are those of few people."""
    X = (make_ratings(1800, 25, random_state=0) > 3.5).astype(float)
    ledger = PrivacyLedger(tmp_path / "year", PrivacyBudget(3.0, 1e-5), at_most=1, refreshes=8)
    budget = PrivacyBudget(3.0, 1e-5, ledger=ledger)
    model, found = DPCovarianceRecommender(budget, feedback="implicit"), []
    for t in range(8):
        here = RatingMatrix(X[200 * t : 200 * t + 200], [f"{t} {i}" for i in range(200)])
        model = model.refresh(here) if found else model.fit(here)
        found.append(model._knowledge_)
    assert not found[0].head.size
    assert found[-1].head.size
    counted, summed = found[-1].stream[2:4].tolist()
    assert counted == 8
    assert 0 < summed < 8
    scale = model.privacy_spent_.releases[1].noise_scale
    c, _ = coefficients(summed)
    assert found[-1].sums.deviation == pytest.approx(scale * np.linalg.norm(c), rel=1e-6)


def test_new_items_and_other_cohorts_keep_the_stream_and_its_plan(tmp_path, clicks):
    ledger = book(tmp_path)

    def month(t, n_rows, n_items):
        users = [f"{t} {i}" for i in range(n_rows)]
        return RatingMatrix(clicks[:n_rows, :n_items], users, [f"i{j}" for j in range(n_items)])

    model = model_of(ledger).fit(month(0, 600, 30))
    plans = []
    for t, (n_rows, n_items) in enumerate([(200, 35), (900, 40), (600, 40)], 1):
        model = model.refresh(month(t, n_rows, n_items))
        plans.append([one.noise_scale for one in model.privacy_spent_.releases])
    assert positions(ledger) == [1, 2, 3, 4]
    assert plans[0] == plans[1] == plans[2]
    assert model.n_features_in_ == 40


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
