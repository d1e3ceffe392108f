"""The noisy Gram matrix of clicks: its bounds under attack, and what cleaning recovers."""

import numpy as np
import pytest
from scipy import sparse

from skdpmf import PrivacyBudget
from skdpmf.privacy._recording import Recorder, RecordingNoise
from skdpmf.privacy.curator import Curator
from skdpmf.privacy.noise import derived_key
from skdpmf.solvers import noisy_gram as solver

N_USERS, N_ITEMS, SLOT = 120, 30, 5
SETTINGS = solver.Settings(n_head=12)
MIDDLING = PrivacyBudget(8.0, 1e-5)


def clicks(seed=0, n_users=N_USERS, n_items=N_ITEMS):
    """Clicks of popular items and of users' own half of the catalogue; user SLOT has none."""
    rng = np.random.default_rng(seed)
    popularity = 0.6 / np.sqrt(1.0 + np.arange(n_items))
    taste = np.where(rng.random((n_users, 1)) < 0.5, [1.5, 0.5] * (n_items // 2), 1.0)
    X = (rng.random((n_users, n_items)) < popularity * taste).astype(float)
    X[SLOT] = 0.0
    return X


def run(X, budget, settings=SETTINGS, replay=None, n_jobs=1, seed=0):
    """Return the model of one fit, and the records of its releases."""
    recorder = Recorder(replay)
    noise = RecordingNoise(derived_key(seed, "test"), recorder)
    plan = solver.make_plan(budget, settings, X.shape[1])
    model = solver.fit(Curator(sparse.csr_array(X), plan, noise, n_jobs), settings)
    return model, recorder.recording


def with_row(X, row):
    out = X.copy()
    out[SLOT] = row
    return out


def hostile_rows(model):
    """Rows by name, of somebody who knows the released model."""
    head = np.zeros(N_ITEMS)
    head[model.head] = 1.0
    liked = np.zeros(N_ITEMS)
    liked[model.head] = model.loadings[:, -1] > 0.0
    one, rarest = np.zeros(N_ITEMS), np.zeros(N_ITEMS)
    one[model.head[0]] = rarest[model.head[np.argmin(model.popularity)]] = 1.0
    return {
        "nothing": np.zeros(N_ITEMS),
        "everything": np.ones(N_ITEMS),
        "the head": head,
        "all but the head": 1.0 - head,
        "one item": one,
        "the head's rarest": rarest,
        "along an eigenvector": liked,
        "against it": head - liked,
        "other values": 1e300 * head,
    }


def moves(X, neighbor, budget, replay):
    """Distance over planned sensitivity of each release."""
    pairs = zip(
        run(X, budget, replay=replay)[1], run(neighbor, budget, replay=replay)[1], strict=True
    )
    return [a.distance(b) / a.sensitivity for a, b in pairs]


@pytest.mark.parametrize("neighbors", ["add-remove", "replace"])
def test_no_row_moves_a_release_by_more_than_planned(neighbors):
    budget = PrivacyBudget(8.0, 1e-5, neighbors=neighbors)
    X = clicks()
    model, records = run(X, budget)
    rows = list(hostile_rows(model).values())
    firsts = rows if neighbors == "replace" else [np.zeros(N_ITEMS)]
    found = np.array(
        [
            moves(with_row(X, first), with_row(X, second), budget, records)
            for first in firsts
            for second in rows
        ]
    )
    assert found.max() <= 1.0
    assert (found.max(axis=0) > 0.98).all()  # the bounds are tight


@pytest.mark.parametrize("neighbors", ["add-remove", "replace"])
def test_random_search_finds_no_larger_move(neighbors):
    budget = PrivacyBudget(8.0, 1e-5, neighbors=neighbors)
    X, rng = clicks(), np.random.default_rng(1)
    records = run(X, budget)[1]
    best, largest = (np.zeros(N_ITEMS), np.zeros(N_ITEMS)), np.zeros(2)
    for _ in range(60):  # from the worst pair on, or from anywhere
        start = best if rng.random() < 0.7 else rng.integers(0, 2, (2, N_ITEMS))
        flips = rng.random((2, N_ITEMS)) < rng.choice([0.05, 0.5])
        pair = tuple(np.abs(np.asarray(start, float) - flips))
        if neighbors == "add-remove":
            pair = np.zeros(N_ITEMS), pair[1]
        found = moves(with_row(X, pair[0]), with_row(X, pair[1]), budget, records)
        best = pair if found[1] > largest[1] else best
        largest = np.maximum(largest, found)
    assert (largest <= 1.0).all()
    assert (largest > 0.9).all()


@pytest.mark.parametrize("clip", [False, True])
def test_every_row_has_norm_one_before_it_is_clipped(clip, monkeypatch):
    """The clip of the sum changes nothing that the maps give, and mends maps that are wrong."""
    X = clicks()
    X[6] = 1.0
    X[7], X[7, 0] = 0.0, 1.0
    if clip:
        right = solver._centred
        monkeypatch.setattr(solver, "_centred", lambda *a: 9.0 * right(*a))
    records = run(X, MIDDLING)[1]
    trace = records[1].statistic[np.cumsum(np.arange(1, SETTINGS.n_head + 1)) - 1].sum()
    n_choosers = np.count_nonzero(X.sum(axis=1))
    assert 0.99 * n_choosers < trace <= n_choosers  # some choose nothing of the head


def test_without_privacy_the_gram_matrix_is_exact():
    X = clicks()
    model, _ = run(X, PrivacyBudget.nonprivate())
    counts = (X / np.sqrt(np.maximum(X.sum(axis=1, keepdims=True), 1.0))).sum(axis=0)
    head = np.sort(np.argsort(-counts, kind="stable")[: SETTINGS.n_head])
    q = counts[head] / counts[head].sum()
    G = np.zeros((head.size, head.size))
    for row in X[:, head]:  # a naive twin
        y = row - row.sum() * q
        if row.any():
            G += np.outer(y, y) / (y @ y)
    np.testing.assert_array_equal(model.head, head)
    np.testing.assert_allclose(model.popularity, q)
    np.testing.assert_allclose(model.loadings @ model.loadings.T, G, atol=1e-9)
    assert not model.own.any()


def test_plan_spends_the_budget_on_both_releases():
    plan = solver.make_plan(MIDDLING, SETTINGS, N_ITEMS)
    assert [round(plan.share(release), 9) for release in plan.releases] == [0.06, 0.94]
    assert [release.sensitivity for release in plan.releases] == [1.0, 1.0]
    assert plan.releases[1].shape == (78,)
    assert 7.99 < plan.epsilon <= 8.0
    replace = solver.make_plan(PrivacyBudget(8.0, 1e-5, neighbors="replace"), SETTINGS, N_ITEMS)
    assert [release.sensitivity for release in replace.releases] == [np.sqrt(2.0)] * 2


def test_threads_agree():
    one, many = (run(clicks(), MIDDLING, n_jobs=n_jobs)[0] for n_jobs in (1, 3))
    for a, b in zip(one, many, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("n_head", [1, 2, 500])
def test_heads_of_any_size(n_head):
    model, _ = run(clicks(), MIDDLING, solver.Settings(n_head=n_head))
    m = min(n_head, N_ITEMS)
    assert model.loadings.shape[0] == model.own.size == model.head.size == m
    assert all(np.isfinite(part).all() for part in model)
    assert model.popularity.sum() == pytest.approx(1.0)


# Cleaning


def noisy_low_rank(deviation, m=60, rank=3, seed=0):
    """A low-rank Gram matrix with an own part of each item, and it with noise as it is released."""
    rng = np.random.default_rng(seed)
    L = rng.normal(size=(m, rank)) * np.linspace(9.0, 5.0, rank)
    noise = np.tril(rng.normal(size=(m, m)), -1) / np.sqrt(2.0)
    noise += noise.T + np.diag(rng.normal(size=m))
    exact = L @ L.T + np.diag(rng.uniform(20.0, 60.0, m))
    return exact, L @ L.T, exact + deviation * noise


def cleaned(deviation, **params):
    exact, shared, released = noisy_low_rank(deviation, **params)
    L, own = solver.clean_gram(released, deviation, range(solver.N_ROUNDS))
    error = np.linalg.norm(L @ L.T - shared) / np.linalg.norm(shared)
    whole = np.linalg.norm(L @ L.T + np.diag(own) - exact) / np.linalg.norm(exact)
    return L.shape[1], error, whole, np.linalg.norm(released - exact) / np.linalg.norm(exact)


def test_cleaning_recovers_a_low_rank_gram_as_noise_falls():
    deviations = (100.0, 30.0, 10.0, 3.0, 1.0, 0.1)
    ranks, errors, wholes, raw = zip(*map(cleaned, deviations), strict=True)
    assert min(ranks[1:]) >= 3
    assert list(errors) == sorted(errors, reverse=True)
    assert errors[-1] < 0.01
    assert wholes[-1] < 0.01
    # three of 60 eigenvectors hold a small part of the noise
    assert all(after < 0.7 * before for after, before in zip(wholes[:3], raw[:3], strict=True))


def test_rank_falls_with_noise():
    ranks = [cleaned(deviation, rank=8)[0] for deviation in (3.0, 30.0, 120.0, 400.0, 4000.0)]
    assert ranks == sorted(ranks, reverse=True)
    assert ranks[0] >= 8
    assert ranks[-1] <= 3  # a part of the semicircle is outside of e


def test_own_part_is_positive_whatever_the_noise():
    for deviation in (0.1, 100.0, 4000.0):
        _, _, released = noisy_low_rank(deviation)
        assert (solver.clean_gram(released, deviation, range(6))[1] >= 0.0).all()


def test_a_round_shrinks_eigenvalues_beyond_the_edge():
    _, _, released = noisy_low_rank(100.0)
    L, _ = solver.clean_gram(released, 100.0, [0])
    values = np.linalg.eigvalsh(released - np.diag(np.diag(released)))
    edge = 0.85 * 2.0 * 100.0 * np.sqrt(60 / 2)
    expected = np.sqrt(values[values > edge] ** 2 - edge**2)
    np.testing.assert_allclose(np.linalg.eigvalsh(L.T @ L), expected)
