"""The noisy item covariance: its limit without privacy, scales, order, blocks, and the head."""

import numpy as np
import pytest

from skdpmf import DPCovarianceRecommender, PrivacyBudget
from skdpmf.data import make_ratings
from skdpmf.mechanisms.common import unpack_lower
from skdpmf.mechanisms.gram import covariance as solver
from skdpmf.mechanisms.gram import covariance_factors
from skdpmf.mechanisms.item_means.residual_rounds import RaterCounts
from skdpmf.privacy import pair_sensitivity as covariance_sums
from skdpmf.privacy.recording import record_releases
from tests.blocks import make_small
from tests.built import built
from tests.reference import item_covariance as twin

NONPRIVATE = PrivacyBudget.nonprivate()
# y - b is truncated to multiples of 2^-30; sums of some ten of them, divided by weights near 1
GRID_ERROR = 1e-8
SHAPES = [(60, 9, 0.6), (40, 25, 0.4), (12, 30, 0.3), (150, 7, 0.9), (5, 3, 0.7)]


def dense_ratings(n_users=60, n_items=9, density=0.6, seed=0, step=1.0):
    """Ratings on a scale from 1 to 5; NaN is unknown, and some rows and columns are."""
    rng = np.random.default_rng(seed)
    taste = rng.normal(size=(n_users, 2)) @ rng.normal(size=(2, n_items))
    X = np.clip(step * np.rint((3.4 + 0.7 * taste + rng.normal(size=taste.shape)) / step), 1, 5)
    X[rng.random(X.shape) > density * rng.uniform(0.5, 1.5, n_items)] = np.nan
    X[0] = np.nan
    X[:, -1] = np.nan
    return X


def fitted(X, budget=NONPRIVATE, **params):
    return built(DPCovarianceRecommender, budget, **{"random_state": 0, **params}).fit(X)


def slow(X, model, **params):
    """The twin's fit of ratings on a scale from 1 to 5, whose quarter is 1."""
    release = model._chosen("covariance")
    settings = {name: getattr(release, name) for name in ("item_damping", "clean", "clamp")}
    settings |= {"user_damping": model.user_damping, **params}
    return twin.fit(X - 3.0, model.n_components, **settings)


def full(model):
    """The dense weights of a model."""
    return unpack_lower(model._neighbor_model_.weights)


@pytest.fixture
def small_blocks(monkeypatch):
    make_small(monkeypatch)


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("shape", SHAPES)
def test_without_privacy_it_is_the_published_algorithm(shape, clean, monkeypatch):
    """To the last digits on a fine grid."""
    X = dense_ratings(*shape)
    model = fitted(X, clean=clean, n_components=3)
    near = fitted(X, clean=clean, n_components=3, predictor="knn")
    expected = slow(X, model)
    np.testing.assert_allclose(model.item_means_, 3.0 + expected.means, rtol=0, atol=1e-12)
    np.testing.assert_array_equal(model.covariance_items_, np.arange(shape[1]))
    np.testing.assert_allclose(model.covariance_, expected.covariance, rtol=0, atol=GRID_ERROR)
    np.testing.assert_allclose(full(near), expected.weights, rtol=0, atol=1e-10)
    k = expected.factors.shape[1]
    # where covariances show nothing, rounding may
    np.testing.assert_allclose(model.components_[k:], 0.0, rtol=0, atol=1e-7)
    product, found = expected.factors @ expected.factors.T, model.components_[:k].T
    # eigenvectors turn by the errors of M over the gaps of its eigenvalues
    np.testing.assert_allclose(found @ found.T, product, rtol=0, atol=1e-6)
    # neighbours are those of the factors, or of the published covariance
    among = product if clean else expected.covariance
    np.testing.assert_allclose(near.covariance_, among, rtol=0, atol=1e-6)
    monkeypatch.setattr(covariance_sums, "_CENTRED_GRID", 2.0**-48)
    fine = fitted(X, clean=clean, n_components=3)
    np.testing.assert_allclose(fine.covariance_, expected.covariance, rtol=0, atol=1e-11)
    np.testing.assert_allclose(fine.components_.T @ fine.components_, product, rtol=0, atol=1e-8)


@pytest.mark.parametrize(
    "params",
    [{"clamp": 0.4}, {"user_damping": 3.0, "item_damping": 0.5}, {"item_damping": 100.0}],
    ids=str,
)
def test_every_setting_has_its_place_in_the_twin(params):
    X = dense_ratings(seed=2, step=0.5)
    model = fitted(X, n_components=2, **params)
    expected = slow(X, model)
    np.testing.assert_allclose(model.item_means_, 3.0 + expected.means, rtol=0, atol=1e-12)
    np.testing.assert_allclose(model.covariance_, expected.covariance, rtol=0, atol=GRID_ERROR)


@pytest.mark.parametrize("unit", ["user", "rating"])
@pytest.mark.parametrize(("noise", "power"), [("gaussian", 0.5), ("laplace", 1.0)])
def test_weights_without_privacy_are_those_of_a_rating(unit, noise, power):
    """1 / sqrt(c), or 1 / c for Laplace noise."""
    X = dense_ratings(seed=3)
    model = fitted(X, PrivacyBudget.nonprivate(unit=unit), noise=noise, predictor="knn")
    expected = slow(X, model, power=power)
    np.testing.assert_allclose(full(model), expected.weights, rtol=0, atol=1e-10)
    found = model.set_params(predictor="svd").fit(X).covariance_
    np.testing.assert_allclose(found, expected.covariance, rtol=0, atol=GRID_ERROR)


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("rating_range", [(1.0, 5.0), (0.0, 10.0)])
def test_predictions_are_the_twins(rating_range, clean):
    low, high = rating_range
    middle, quarter = (low + high) / 2, (high - low) / 4
    X = (dense_ratings(seed=4) - 3.0) * quarter + middle
    other = (dense_ratings(20, 9, 0.4, seed=5) - 3.0) * quarter + middle
    params = {"clean": clean, "rating_range": rating_range, "n_components": 3, "n_neighbors": 3}
    model = fitted(X, predictor="knn", **params)
    released = model.item_means_, model.components_.T
    damping, ridge = np.diag(model._item_model_.ridge)[:2]
    ridges = slow((X - middle) / quarter + 3.0, model).ridges
    expected = ridges or (solver.RIDGE, model.user_damping)
    np.testing.assert_allclose((ridge / quarter**2, damping), expected, rtol=1e-6)
    by_factors = twin.svd_scores(other, *released, damping, ridge)
    np.testing.assert_allclose(
        fitted(X, **params).decision_function(other), by_factors, rtol=0, atol=1e-10
    )
    Z = twin.ridge_users(other, *released, damping, ridge)
    np.testing.assert_allclose(model.transform(other), Z[:, 1:], rtol=0, atol=1e-10)
    systems = model.covariance_, full(model), 3, ridge
    by_neighbors = twin.knn_scores(other, model.item_means_, Z[:, 0], *systems)
    np.testing.assert_allclose(model.decision_function(other), by_neighbors, rtol=0, atol=1e-10)


@pytest.mark.parametrize("tau", [0.0, 0.3, 1.2])
@pytest.mark.parametrize(("n", "d"), [(8, 40.0), (30, 10.0)])
def test_the_variance_of_users_levels_is_learnt_from_the_average_covariance(tau, n, d):
    """Rows centred by damped means: the level that is left, less what centring takes."""
    rng = np.random.default_rng(0)
    y = tau * rng.normal(size=(40_000, 1)) + 0.7 * rng.normal(size=(40_000, n))
    x = y - y.sum(axis=1, keepdims=True) / (n + d)
    cov = x.T @ x / len(x)
    a = cov[~np.eye(n, dtype=bool)].mean()
    A = np.full((n, n), a) + np.diag(np.full(n, np.trace(cov) / n - a))
    clean = covariance_factors.ItemCovariance(A, np.ones(A.shape), a)
    psi, ridge = covariance_factors.noise_level(clean, np.zeros((n, 0)), np.ones(n), n, d)
    assert psi == pytest.approx(0.49, rel=0.2)
    assert psi / ridge == pytest.approx(max(tau**2, 0.1 * psi), abs=0.03 * (1.0 + tau))


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.usefixtures("small_blocks")
def test_many_blocks_and_iterative_eigenvectors_are_the_twin_too(clean):
    X = dense_ratings(90, 31, 0.5, seed=9)
    model = fitted(X, clean=clean, n_components=3)
    expected = slow(X, model)
    np.testing.assert_allclose(model.covariance_, expected.covariance, rtol=0, atol=GRID_ERROR)
    # eigenvalues have a relative tolerance of 1e-6, eigenvectors its root
    product = model.components_.T @ model.components_
    np.testing.assert_allclose(product, expected.factors @ expected.factors.T, atol=2e-3)


@pytest.mark.parametrize("budget", [NONPRIVATE, PrivacyBudget(1e4, 1e-5, unit="rating")])
def test_memory_limits_the_head_to_the_most_popular_items(budget, monkeypatch):
    X = dense_ratings(80, 12, 0.6, seed=12)
    monkeypatch.setattr(solver, "EXACT_HEAD", 5)
    model = fitted(X, budget, shares=(0.0, 0.5, 0.5), predictor="knn")
    plan = model.plan(12)
    assert plan.releases[-1].shape == (2, 15)
    assert [note for note in plan.notes if "Memory" in note and " 5 items" in note]
    counts = (~np.isnan(X)).sum(axis=0)
    largest = np.sort(np.argsort(-counts, kind="stable")[:5])
    if not budget.is_private:
        np.testing.assert_array_equal(model.covariance_items_, largest)
    assert counts[model.covariance_items_].sum() >= counts[largest].sum() - 2
    others = np.setdiff1d(np.arange(12), model.covariance_items_)
    assert not model.components_[:, others].any()
    # the others have their means and the user's offset
    moved = model.decision_function(X)[:, others] - model.item_means_[others]
    np.testing.assert_allclose(moved, moved[:, :1] * np.ones(others.size), rtol=0, atol=1e-12)
    assert not [note for note in model.plan(4).notes if "Memory" in note]


@pytest.mark.parametrize(
    ("noise", "unit"), [("gaussian", "user"), ("gaussian", "rating"), ("laplace", "rating")]
)
def test_the_noise_is_known_to_the_head_and_to_the_cleaning(noise, unit, monkeypatch):
    """The deviation off the diagonal; that of 780 draws within 5 standard errors of it."""
    told = {}

    def spied(module, name, told_noise):
        function = getattr(module, name)

        def spy(*args, **params):
            told[name] = told_noise(args, params)
            return function(*args, **params)

        monkeypatch.setattr(module, name, spy)

    spied(solver, "head_items", lambda args, params: args[2])
    spied(covariance_factors, "clean_covariance", lambda args, params: params["noise"])
    X = make_ratings(3000, 40, density=0.6, random_state=0)
    budget = PrivacyBudget(20.0, 1e-5, unit=unit)
    with record_releases() as records:
        model = fitted(X, budget, noise=noise)
    (planned,) = (r for r in model.plan(40, 3000).releases if r.name == solver.COVARIANCE)
    (record,) = (r for r in records if r.name == solver.COVARIANCE)
    assert model.covariance_items_.size == 40
    off_diagonal = np.ones(820, dtype=bool)
    off_diagonal[np.cumsum(np.arange(1, 41)) - 1] = False
    errors = (record.output - record.statistic)[:, off_diagonal]
    errors[1] /= solver.WEIGHT_SCALE
    # the fourth moment is 3 or, for Laplace, 6 squared variances
    spread = np.sqrt((5.0 if noise == "laplace" else 2.0) / 780) / 2.0
    deviations = np.sqrt(np.mean(errors**2, axis=1))
    np.testing.assert_allclose(deviations, told["clean_covariance"], rtol=5.0 * spread)
    ratio = planned.sensitivity / record.sensitivity
    assert told["head_items"] == pytest.approx(ratio * told["clean_covariance"][0], rel=1e-9)


def popularity_of(N, n_users=100.0, scale=1.0):
    N = np.asarray(N, dtype=np.float64)
    return RaterCounts(N, N * scale, n_users)


def weights(n):
    return 1.0 / np.sqrt(n)


def slow_head(popularity, deviation, most):
    """The docstring in loops: candidates by size, the largest that is seen."""
    order = sorted(range(len(popularity.mass)), key=lambda j: (-popularity.mass[j], j))[:most]
    best = []
    for size in range(1, len(order) + 1):
        head = order[:size]
        N = popularity.mass[head]
        c = popularity.n_ratings[head].sum() / popularity.n_users
        pairs = popularity.n_users * weights(max(round(c + 1), 1)) * c**2
        row = [pairs * N[-1] * N_j / N.sum() ** 2 for N_j in N]
        if np.sqrt(np.sum(np.square(row))) >= solver._LEAST_SIGNAL * deviation:
            best = head
    enough = popularity.mass[best].sum() >= solver._LEAST_SHARE * popularity.mass.sum()
    return sorted(best) if enough else []


@pytest.mark.parametrize("deviation", [0.0, 0.01, 0.1, 0.3, 1.0, 10.0])
def test_the_head_is_the_formula(deviation):
    rng = np.random.default_rng(0)
    for n_items, most_popular in ((1, 90), (2, 90), (25, 90), (25, 90), (25, 6), (25, 2)):
        N = rng.integers(1, most_popular, n_items)
        popularity = popularity_of(N, scale=rng.uniform(0.5, 3))
        for most in (25, 10, 1):
            head = solver.head_items(popularity, weights, deviation, most)
            assert head.tolist() == slow_head(popularity, deviation, most)
