"""LocalDPGDDR beyond the common contract: what devices send, what it costs, and limits."""

import contextlib
import math
from fractions import Fraction

import numpy as np
import pytest
from scipy import sparse
from sklearn.base import clone

from skdpmf import LocalDPGDDR, PrivacyBudget
from skdpmf.data import make_ratings
from skdpmf.data.validation import as_rating_matrix
from skdpmf.estimators.contract.public import public_of
from skdpmf.evaluation import split_ratings
from skdpmf.local import LocalAggregator, LocalDevice
from skdpmf.mechanisms.device_reports import gradient as local_gradient
from skdpmf.mechanisms.device_reports.privunit import PrivUnit
from skdpmf.mechanisms.device_reports.protocol import device_key, protocol_name
from skdpmf.mechanisms.device_reports.randomizers import CoordinateSampling, shuffle_note
from skdpmf.mechanisms.item_means import joint_release as im
from skdpmf.privacy import frame
from skdpmf.privacy.sampler import streams
from skdpmf.privacy.text import LOCAL_ASSUMPTIONS, SEEDED_ASSUMPTION
from tests.built import built
from tests.core.audit import fitted_state
from tests.estimators.test_parameters import check_refused
from tests.matrices import csr, dense
from tests.reference import local_gradient as twin

N_USERS, N_ITEMS, Q = 81, 12, 5
RANGE = (1.0, 5.0)
NONPRIVATE = PrivacyBudget.nonprivate()
COORDINATE = {"method": "gradient", "randomizer": "coordinate"}
METHODS = {
    "items": {},
    "items, one round": {"max_iter": 1},
    "items, coordinate": {"randomizer": "coordinate"},
    "gradient": {"method": "gradient"},
    "gradient, coordinate": {**COORDINATE, "max_iter": 3},
    "gradient, projected": {**COORDINATE, "projection_dim": Q},
    "gradient, pinv": {**COORDINATE, "projection_dim": Q, "back_projection": "pinv"},
    "gradient, raw": {**COORDINATE, "center": False},
}
RANDOMISERS = ((PrivUnit, "sum_reports"), (CoordinateSampling, "report"))
EVERY_METHOD = pytest.mark.parametrize("method", METHODS)
ITEMS = [name for name in METHODS if name.startswith("items")]
BY_GRADIENT = [name for name in METHODS if name not in ITEMS]


@pytest.fixture(scope="module")
def small():
    """Every ninth user has no ratings."""
    X = dense(make_ratings(N_USERS, N_ITEMS, density=0.5, random_state=0))
    X[::9] = np.nan
    return csr(X)


def made(method="items", epsilon=4.0, delta=0.0, **params):
    budget = PrivacyBudget(epsilon, delta)
    return built(LocalDPGDDR, budget, **{"random_state": 0, **METHODS[method], **params})


def rounds_of(model):
    by_items = model.method == "items"
    return len(model._fractions(N_ITEMS, N_USERS)) if by_items else model.max_iter or 5


@contextlib.contextmanager
def recorded_reports():
    """Randomiser, keys and inputs of all reports that are made."""
    calls = []
    with pytest.MonkeyPatch.context() as patch:
        for owner, name in RANDOMISERS:
            original = getattr(owner, name)

            def spy(self, keys, *args, original=original, **kwargs):
                calls.append((self, keys.copy(), *args))
                return original(self, keys, *args, **kwargs)

            patch.setattr(owner, name, spy)
        yield calls


def run_devices(model, X):
    """The protocol in the field, with the keys of the simulation."""
    R = as_rating_matrix(X, rating_range=RANGE)
    settings = type(model).__name__, model._settings_of(R.shape[1])
    people = public_of(model, X, R.shape[1])
    rows = None if people is None else people.rows
    with frame.framed(model.budget, model._make_plan(*R.shape[::-1]), 0, public=rows) as charged:
        _, secret = charged.rows(R, model._preparation(), settings, draw="key", public=rows)
    epsilon = float(model.budget.epsilon)
    server = LocalAggregator(
        R.shape[1],
        RANGE,
        epsilon,
        fractions={1: (1.0,), 2: (0.5, 0.5), 3: (0.5, 0.25, 0.25)}[model.n_iter_],
        user_damping=model.user_damping,
        n_devices=R.shape[0],
        protocol=protocol_name(secret),
        public=model.public,
    )
    settings = {"n_items": R.shape[1], "rating_range": RANGE, "epsilon": epsilon}
    devices = [
        LocalDevice(R[[i]].indices, R[[i]].data, key=device_key(secret, i), **settings)
        for i in range(R.shape[0])
    ]
    while server.announcement is not None:
        for device in devices:
            report = device.report(server.announcement)
            assert report is None or server.receive(report.to_bytes())
        server.close_round()
    assert all(device.spent == Fraction(epsilon) for device in devices)
    return devices, server


def check_devices(model, X):
    devices, server = run_devices(model, X)
    released, every_item = server.model(), np.arange(X.shape[1])
    assert sum(released.n_reports) == X.shape[0]
    np.testing.assert_array_equal(model.item_means_, released.item_means)
    assert not model.components_.any()
    predicted, (items, scores) = model.predict(X), model.recommend(X, 4)
    for i in range(0, X.shape[0], 7):
        own = devices[i].predict(released, every_item)
        np.testing.assert_allclose(predicted[i], own, rtol=0, atol=1e-9)
        best, own_scores = devices[i].recommend(released, 4)
        np.testing.assert_array_equal(items[i][: best.size], best)
        np.testing.assert_allclose(scores[i][: best.size], own_scores, rtol=0, atol=1e-9)


@pytest.mark.parametrize("params", [{}, {"user_damping": 3.0, "n_components": 2}], ids=str)
@pytest.mark.parametrize(("epsilon", "max_iter", "n_rounds"), [(1.0, None, 1), (8.0, None, 3)])
def test_a_fit_is_a_run_of_devices(epsilon, max_iter, n_rounds, params, small):
    model = made(epsilon=epsilon, max_iter=max_iter, **params).fit(small)
    assert model.n_iter_ == n_rounds
    check_devices(model, small)


def test_public_people_are_beside_devices_in_the_field_as_in_a_fit(small):
    model = made(epsilon=8.0, public=small[:30]).fit(small)
    assert (model.item_means_ != made(epsilon=8.0).fit(small).item_means_).all()
    check_devices(model, small)


@EVERY_METHOD
@pytest.mark.parametrize("epsilon", [0.1, 2.3, 7.0])
def test_reports_spend_the_budget_and_no_more(method, epsilon, small):
    """As planned, as stated, and by the randomisers that were used: each device once a round."""
    model = made(method, epsilon)
    plan = model.plan(N_ITEMS, N_USERS)
    with recorded_reports() as calls:
        model.fit(small)
    spent = model.privacy_spent_
    assert spent.releases == plan.releases
    assert (spent.epsilon, spent.delta, spent.notes) == (plan.epsilon, 0.0, plan.notes)
    assert spent.epsilon <= epsilon
    assert spent.epsilon == pytest.approx(epsilon, abs=1e-9)
    assert spent.local
    assert (spent.unit, spent.neighbors) == ("user", "replace")
    assert spent.assumptions == (SEEDED_ASSUMPTION, *LOCAL_ASSUMPTIONS)
    assert model.n_iter_ == rounds_of(model)
    # users without ratings report too, and no key serves twice
    n_keys = sum(keys.shape[0] for _, keys, *_ in calls)
    assert len({key.tobytes() for _, keys, *_ in calls for key in keys}) == n_keys
    own = {}  # epsilons of a device's reports, by randomiser
    for randomiser, keys, *_ in calls:
        own.setdefault(type(randomiser), []).append((randomiser.epsilon, keys.shape[0]))
    if method in ITEMS:
        (reports,) = own.values()
        assert n_keys == N_USERS
        assert {epsilon for epsilon, _ in reports} == {r.epsilon for r in plan.releases}
        return
    assert len(own) == len(plan.releases)
    for reports, release in zip(own.values(), plan.releases, strict=True):
        assert reports == [(release.epsilon, N_USERS)] * model.n_iter_
        assert release.count == model.n_iter_
    total = sum(Fraction(e) for reports in own.values() for e, _ in reports)
    assert total <= Fraction(epsilon)


@EVERY_METHOD
def test_no_rating_decides_on_the_number_of_reports(method, small, monkeypatch):
    """Nor on who makes them: with the same keys, data of the same shape give the same calls."""
    monkeypatch.setattr(streams, "row_digest", lambda *_, **__: np.zeros(8, np.uint64))
    full = csr(np.where(np.arange(N_ITEMS) % 2, 1.0, 5.0) * np.ones((N_USERS, 1)))
    found = []
    for X in (small, full, sparse.csr_array(small.shape)):
        with recorded_reports() as calls:
            made(method).fit(X)
        found.append([(type(one), one.epsilon, keys.tobytes()) for one, keys, *_ in calls])
    assert found[0] == found[1] == found[2]


@EVERY_METHOD
def test_without_privacy_nothing_is_reported(method, small):
    model = built(LocalDPGDDR, NONPRIVATE, random_state=0, **METHODS[method])
    with recorded_reports() as calls:
        model.fit(small)
    assert not calls
    assert not model.privacy_spent_.is_private
    assert "no privacy" in str(model.plan(N_ITEMS))


@pytest.mark.parametrize("method", ["items", "items, one round", *BY_GRADIENT[:2]])
def test_a_delta_is_for_a_note_on_shuffling_only(method, small):
    """Of the smallest round, with the epsilon of a report; nothing else of a statement changes."""
    model = made(method, 5.0, 1e-6)
    plain = made(method, 5.0).fit(small).privacy_spent_
    with recorded_reports() as calls:
        spent = model.fit(small).privacy_spent_
    if method in ITEMS:
        sizes = {}  # of a round, whose devices are simulated in parts
        for randomiser, keys, *_ in calls:
            sizes[id(randomiser)] = sizes.get(id(randomiser), 0) + keys.shape[0]
        assert len(sizes) == model.n_iter_
        note = shuffle_note(5.0, min(sizes.values()), 1e-6)
    else:
        each = calls[0][0].epsilon
        note = shuffle_note(each, N_USERS, 1e-6, model.n_iter_)
    assert spent.notes == (note,)
    assert plain.notes == ()
    assert (spent.epsilon, spent.delta) == (plain.epsilon, 0.0)
    assert spent.releases == plain.releases
    nothing = built(LocalDPGDDR, PrivacyBudget(math.inf, 1e-6), random_state=0, **METHODS[method])
    assert nothing.fit(small).privacy_spent_.notes == ()


@pytest.mark.parametrize("method", METHODS)
def test_a_report_has_at_most_epsilon_16(method):
    k = 1 if method in ITEMS else rounds_of(made(method))
    plan = made(method, 16.0 * k).plan(N_ITEMS)
    assert plan.epsilon == pytest.approx(16.0 * k)
    check_refused(made(method, 16.0 * k * (1 + 1e-9)), "epsilon=", "must be at most 16")


def test_only_single_coordinates_are_projected():
    check_refused(made("gradient", projection_dim=3), "projection_dim=3 must be None but for")


def exact_items(Y, damping):
    """Item means without noise, by the solver's formulas; ratings in quarter ranges."""
    known = ~np.isnan(Y)
    n = known.sum(axis=1)
    users, w = np.sum(n > 0), known / np.sqrt(np.maximum(n, 1))[:, None]

    def deviations(E, weights, radius):
        """Sums of the clipped weighted deviations from own means, and the mean clip factor."""
        own = np.nansum(E, axis=1) / (n + damping)
        terms = weights * np.nan_to_num(E - own[:, None])
        c = radius / np.maximum(np.linalg.norm(terms, axis=1), radius)
        return c @ terms, c[n > 0].mean()

    S, c = deviations(Y, w, 0.6)
    typical, N = users / w.sum(), np.maximum(w.sum(axis=0), 0.5)
    x, variance, design = S / (c * N), 0.7 * typical / N, im.design_of(N, np.log(N))
    b = im.posterior(x, variance, design, im.PRIOR_VARIANCE)[0]
    raw = N**-0.25
    v = known * raw
    v /= np.maximum(np.linalg.norm(v, axis=1, keepdims=True), 1e-300)
    S, c = deviations(Y - b, v, 0.6)
    level = raw / np.sqrt(np.average(raw**2, weights=N))
    error = 0.7 * np.minimum(typical * level, 1.0) / (N * level)
    total = 1.0 / variance + 1.0 / error
    x = (x / variance + (b + S / (c * N * level)) / error) / total
    b = im.posterior(x, 1.0 / total, design, im.PRIOR_VARIANCE)[0]
    overall = np.mean([row[k].mean() for row, k in zip(Y, known, strict=True) if k.any()])
    return b + overall - N @ b / N.sum()


@pytest.mark.parametrize("randomizer", ["privunit", "coordinate"])
@pytest.mark.parametrize("damping", [2.0, 10.0])
def test_items_without_privacy_are_the_twins(damping, randomizer, small):
    model = LocalDPGDDR(NONPRIVATE, user_damping=damping, randomizer=randomizer).fit(small)
    expected = 3.0 + exact_items(dense(small) - 3.0, damping)
    np.testing.assert_allclose(model.item_means_, expected, rtol=0, atol=1e-8)
    assert np.ptp(expected) > 0.5
    assert not model.components_.any()
    offsets = np.nansum(dense(small) - expected, axis=1) / (np.diff(small.indptr) + 1.0)
    predicted = model.decision_function(small)
    np.testing.assert_allclose(predicted, expected + offsets[:, None], rtol=0, atol=1e-8)


@pytest.mark.parametrize("center", [True, False])
@pytest.mark.parametrize("method", ["gradient", *BY_GRADIENT[1:4]])
def test_gradients_without_privacy_are_the_twins(method, center, small):
    steps = {"step_size": 0.3, "user_step": 0.02, "alpha": 0.05, "max_iter": 6, "n_components": 3}
    params = {**METHODS[method], **steps, "center": center}
    model = built(LocalDPGDDR, NONPRIVATE, random_state=0, user_damping=4.0, **params).fit(small)
    Y, public = dense(small), model._public_key()
    if center:
        Y = (Y - 3.0) - np.nansum(Y - 3.0, axis=1, keepdims=True) / (
            np.diff(small.indptr)[:, None] + 4.0
        )
    std = 0.1 if center else 0.3
    start = local_gradient.initial_factors(public, N_USERS, N_ITEMS, 3, std)
    U, V = start if center else map(abs, start)
    way = np.eye(N_ITEMS)
    if getattr(model._chosen("method"), "projection_dim", None):
        rows = [local_gradient.projection_row(public, s, Q, N_ITEMS) for s in range(Q)]
        Phi = np.array(rows, np.float64)
        way = (np.linalg.pinv(Phi) if "pinv" in method else Phi.T) @ Phi
    _, V_twin = twin.fit(
        *(Y, U, V, model._gradient_settings()), lambda _, U, V: way @ twin.mean_gradient(Y, U, V)
    )
    np.testing.assert_allclose(model.components_.T, V_twin, rtol=0, atol=1e-9)
    assert abs(V_twin - V).max() > 0.03
    np.testing.assert_array_equal(model.item_means_, 3.0 if center else 0.0)


@pytest.fixture(scope="module")
def data():
    X = make_ratings(1000, 20, density=0.5, noise_std=0.6, random_state=0)
    return split_ratings(X, test_size=0.15, random_state=1)


def errors_beside_own_means(data, epsilon, seeds, **params):
    """RMSE less that of each user's own damped mean, from the middle of the scale."""
    train, test = data
    n, rows = np.diff(train.indptr), test.nonzero()[0]
    own = np.asarray((train - 3.0 * (train != 0)).sum(axis=1)).ravel() / (n + 10.0)
    assert train.data.min() > 0
    base = np.sqrt(np.mean((test.data - 3.0 - own[rows]) ** 2))
    scores = [
        made(epsilon=epsilon, random_state=s, **params).fit(train).score(*data) for s in seeds
    ]
    return -np.array(scores) - base


def test_noise_falls_with_epsilon(data):
    """Means of 3 seeds. Where nothing is told apart, own means predict, in each of them."""
    none, some, much = (errors_beside_own_means(data, e, range(3)) for e in (0.1, 4.0, 8.0))
    assert np.all(none < 0.002)
    assert some.mean() < none.mean() - 0.07
    assert much.mean() < some.mean()
    assert errors_beside_own_means(data, math.inf, [0])[0] < much.mean() + 0.005


@EVERY_METHOD
def test_seeded_fits_repeat_whatever_the_threads(method, small):
    model = made(method, 7.0, n_jobs=1).fit(small)
    state = fitted_state(model)
    assert fitted_state(made(method, 7.0, n_jobs=3).fit(small)) == state
    assert fitted_state(clone(model).fit(small)) == state


def keys_of(model, X):
    with recorded_reports() as calls:
        model.fit(X)
    return {key.tobytes() for _, keys, *_ in calls for key in keys}


@EVERY_METHOD
def test_other_seeds_data_and_parameters_share_no_noise(method, small):
    found = [keys_of(made(method), small)]
    other = small.copy()
    other.data[0] = 1.0 + (small.data[0] == 1.0)
    found.append(keys_of(made(method), other))
    found.append(keys_of(made(method, random_state=1), small))
    found.append(keys_of(made(method, user_damping=11.0), small))
    found.append(keys_of(made(method, 4.0 + 1e-12), small))
    found += [keys_of(made(method, random_state=None), small) for _ in range(2)]
    assert len(set.union(*found)) == sum(map(len, found))


@pytest.mark.parametrize(
    ("epsilon", "n_rounds", "least"), [(2.0, 1, 0.6), (8.0, 3, 0.85), (math.inf, 1, 0.99)]
)
def test_lists_are_of_what_people_choose(epsilon, n_rounds, least):
    """Without a taste: five items have that share of the choices of the best five of 40."""
    rng = np.random.default_rng(70)
    chance = 0.9 * (1.0 + np.arange(40)) ** -0.8
    X = np.where(rng.random((900, 40)) < chance, rng.integers(1, 6, (900, 40)), np.nan)
    budget = PrivacyBudget(epsilon) if np.isfinite(epsilon) else PrivacyBudget.nonprivate()
    model = LocalDPGDDR(budget, random_state=0).fit(X)
    assert model.n_iter_ == n_rounds
    found, _ = model.recommend(np.full((1, 40), np.nan), 5, taste=0.0)
    assert chance[found[0]].sum() > least * chance[:5].sum()
