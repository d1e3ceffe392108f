"""solver="pooled": its limit, its posterior, its own plan."""

from types import SimpleNamespace

import numpy as np
import pytest
from scipy import sparse, stats

from skdpmf import AdaptiveWeightALS, PrivacyBudget
from skdpmf.data import make_ratings
from skdpmf.estimators.contract.recommend import ItemModel, entry_scores, fold_in, top_items
from skdpmf.mechanisms.als import pooled as pooled_als
from skdpmf.mechanisms.als import pooled_update
from skdpmf.mechanisms.als.pooled_update import (
    RESIDUAL_VARIANCE,
    PooledPosterior,
    UserPrior,
    discount,
    learnt_users,
    noisy_regression,
    own_ratings,
)
from skdpmf.mechanisms.item_means.joint_release import KNOTS, item_prior
from skdpmf.mechanisms.item_means.popularity import estimate_popularity
from skdpmf.mechanisms.knowledge import Knowledge
from skdpmf.privacy.users import Rows
from tests.core.audit import N_ITEMS, base_ratings, recorded_fit
from tests.matrices import csr
from tests.reference import pooled_als as twin


def pooled(X, **params):
    return recorded_fit(X, solver="pooled", **params)


def test_prior_mean_of_the_fold_in_is_the_twin():
    """In blocks, lists and entries alike; the solution minimises the stated objective."""
    rng = np.random.default_rng(0)
    X = np.where(rng.random((30, 9)) < 0.5, rng.normal(size=(30, 9)), np.nan)
    X[4] = np.nan
    factors = np.column_stack((np.ones(9), rng.normal(size=(9, 2))))
    ridge, prior = np.diag([3.0, 1.0, 2.0]), rng.normal(size=(4, 3))
    b, doubt = rng.normal(size=9), rng.random(9)
    known, R = ~np.isnan(X), csr(X)
    model = ItemModel(b, factors, ridge, prior=prior, item_ridge=doubt)
    Z = fold_in(model, R, 2)
    np.testing.assert_allclose(
        Z, twin.users(X, b, factors, ridge, prior, doubt), rtol=0, atol=1e-12
    )
    assert not Z[4].any()
    scores = b + Z @ factors.T
    np.testing.assert_allclose(entry_scores(model, R, R), scores[known], rtol=0, atol=1e-12)
    items, best = top_items(model, R, 1, exclude_seen=False)
    np.testing.assert_array_equal(items[:, 0], scores.argmax(axis=1))
    np.testing.assert_allclose(best[:, 0], scores.max(axis=1), rtol=0, atol=1e-12)


def new_posterior(n_items=5, rank=0, columns=None, known=None, **changes):
    """Nothing known of means that lie around 0."""
    one = np.ones(n_items)
    averages = {
        "weights": np.linspace(1.0, 9.0, n_items),
        "typical": 0.0 * one,
        "mass": one,
        "mass_variance": 0.0 * one,
        "precision": 1e-12 * one,
        "shift": 0.0 * one,
        "sampling": 0.0 * one,
        "design": np.column_stack((one, np.linspace(-1.0, 1.0, n_items))),
        "prior_variance": 0.4 / 1.6,
        **changes,
    }
    columns = np.empty((n_items, 0)) if columns is None else columns
    curator = SimpleNamespace(item_columns=columns, n_jobs=None)
    averages["evidence"] = averages["precision"], averages["shift"]
    return PooledPosterior(SimpleNamespace(curator=curator, **averages), rank, 0.1, known)


def test_it_starts_with_what_is_known_of_the_means():
    """Measurements with noise and sampling, shrunk to the line by the variance around it."""
    rng = np.random.default_rng(1)
    precision, x, sampling = rng.uniform(1.0, 9.0, 6), rng.normal(size=6), rng.uniform(size=6)
    posterior = new_posterior(6, 2, precision=precision, shift=precision * x, sampling=sampling)
    design = np.column_stack((np.ones(6), np.linspace(-1.0, 1.0, 6)))
    variance, line = item_prior(x, 1.0 / precision + sampling, design, 0.25)
    known = 1.0 / (1.0 / precision + sampling)
    expected = (known * x + line / variance) / (known + 1.0 / variance)
    np.testing.assert_allclose(posterior.theta[:, 0], expected, rtol=1e-12)
    assert not posterior.theta[:, 1:].any()
    covariances = [np.diag([1.0 / (p + 1.0 / variance), 0.1, 0.1]) for p in known]
    np.testing.assert_allclose(posterior.covariance, covariances, rtol=1e-12)


def test_the_gram_matrix_is_a_weighted_mean_of_all_rounds_and_a_guess():
    """Without noise the mean of the rounds, weighted by their number; with much of it the guess."""
    rng = np.random.default_rng(4)
    rounds = [np.diag(rng.uniform(0.5, 1.0, 3)) for _ in range(3)]
    posterior = new_posterior(rank=2)
    for H in rounds:
        found = posterior.pooled_gram(H, 1e-6, 0.8)
        posterior.n_rounds += 1
    np.testing.assert_allclose(found, np.average(rounds, axis=0, weights=[1, 2, 3]), rtol=1e-6)
    posterior = new_posterior(rank=2)
    found = posterior.pooled_gram(100.0 * rng.normal(size=(3, 3)), 1e6, 0.8)
    factor = (0.3 + 1.0) / 2.0  # between a clip factor's ends
    np.testing.assert_allclose(found, factor * np.diag([0.64, 0.5, 0.5]), atol=1e-6)


def test_items_lean_on_their_columns():
    """What rounds measure of half of the items tells of the others, whose columns are alike."""
    rng = np.random.default_rng(3)
    D = rng.normal(size=(400, 3)) / np.sqrt(3.0)
    theta = np.column_stack((np.zeros(400), D @ rng.normal(scale=0.3, size=(3, 2))))
    mass = np.where(np.arange(400) < 200, 500.0, 1e-9)
    others = {}
    for columns in (None, D):
        posterior = new_posterior(400, 2, mass=mass, weights=mass, columns=columns)
        F = np.eye(3)
        for _ in range(5):
            gap = theta - posterior.theta
            posterior.add_gradients(mass[:, None] * gap, F, 1.0, 1.0)
        others[columns is None] = np.abs(posterior.theta - theta)[200:, 1:].mean()
    assert others[False] < 0.1 * others[True]


def test_rounds_of_gradients_are_a_regression(monkeypatch):
    """Without discount: Gaussian measurements M F theta of two rounds, solved item by item."""
    monkeypatch.setattr(pooled_update, "kept_by", lambda n: 1.0)
    rng = np.random.default_rng(2)
    n, a, noise = 4, 0.8, 0.5
    posterior = new_posterior(n, 2)
    rows, targets = [[] for _ in range(n)], [[] for _ in range(n)]
    for _ in range(2):
        root = rng.normal(size=(3, 3))
        H, G = root @ root.T + np.eye(3), rng.normal(size=(n, 3))
        F = H / np.array([a, 1.0, 1.0])
        for j in range(n):
            A = posterior.mass[j] * F
            rows[j].append(A / noise)
            targets[j].append((G[j] + A @ posterior.theta[j]) / noise)
        posterior.add_gradients(G, H, a, noise)
    prior = np.diag(posterior.prior[0])
    np.testing.assert_array_equal(prior[1:], [[0.0, 10.0, 0.0], [0.0, 0.0, 10.0]])
    for j in range(n):
        A, t = np.vstack(rows[j]), np.concatenate(targets[j])
        expected = np.linalg.solve(A.T @ A + prior, A.T @ t)
        np.testing.assert_allclose(posterior.theta[j], expected, rtol=1e-6)
        covariance = np.linalg.inv(A.T @ A + prior)
        np.testing.assert_allclose(posterior.covariance[j], covariance, rtol=1e-6)


def after_rounds(n_items=6):
    """Posterior of two factors after three rounds, and what a refresh starts from."""
    rng, posterior = np.random.default_rng(2), new_posterior(n_items, 2)
    for _ in range(3):
        root = rng.normal(size=(3, 3))
        posterior.add_gradients(rng.normal(size=(n_items, 3)), root @ root.T + np.eye(3), 0.8, 0.5)
    nothing = Knowledge(*np.zeros((4, n_items)), np.zeros(3))
    return posterior, posterior.knowledge(nothing, 7.0)


def precision_of(known):
    P = known.factor_weights[:, 0, None, None] * known.factor_gram
    P[:, 0, 0] += known.factor_weights[:, 1]
    return P


def test_a_refresh_starts_where_the_fit_ended():
    """At the same posterior means; precisions are nearly those of one matrix, scaled."""
    posterior, known = after_rounds()
    again = new_posterior(6, 2, known=known)
    np.testing.assert_allclose(again.theta, posterior.theta, rtol=1e-6)
    P = posterior.precision
    error = np.linalg.norm(precision_of(known) - P, axis=(1, 2)) / np.linalg.norm(P, axis=(1, 2))
    assert error.max() < 0.2
    wider = new_posterior(6, 3, known=known)
    np.testing.assert_allclose(wider.theta[:, :3], posterior.theta, rtol=1e-6)
    assert not wider.theta[:, 3].any()
    unknown = new_posterior(8, 2, known=known.with_items(2))
    assert not unknown.theta[6:, 1:].any()


def test_new_factors_start_beside_known_ones():
    rng = np.random.default_rng(0)
    V, D, mass = rng.normal(size=(9, 2)), rng.normal(size=(9, 4)), rng.uniform(1.0, 3.0, 9)
    D[:, 1] = V[:, 0] + 0.01 * D[:, 0]
    new = pooled_als.without_known(D, V, mass)
    np.testing.assert_allclose(V.T @ (mass[:, None] * new), 0.0, atol=1e-9)
    np.testing.assert_allclose(np.sort(mass @ new**2), np.sort(mass @ D**2))
    assert mass @ new[:, 3] ** 2 == pytest.approx(mass @ D[:, 1] ** 2)  # it comes last


def test_a_users_vector_has_learnt_from_each_of_the_own_ratings():
    """E e_ij x_i is Stein's formula, e_ij the noise of y_ij; the errors of the mean are 7 %."""
    rng, n, m, k, noise = np.random.default_rng(0), 20_000, 50, 3, 1.5
    V, share = rng.normal(size=(m, k)) * [0.5, 0.3, 0.1], rng.dirichlet(np.full(m, 5.0))
    known = rng.random((n, m)) < np.minimum(20.0 * share, 1.0)
    e, taste = np.sqrt(noise) * rng.normal(size=(n, m)) * known, rng.normal(size=(n, k))
    y = e + (taste / np.linalg.norm(taste, axis=1)[:, None] @ V.T) * known
    ridge = np.diag([1.0, 2.0, 4.0])
    A = np.einsum("ij,ja,jb->iab", known, V, V) + ridge
    u = np.linalg.solve(A, (y @ V)[:, :, None])[:, :, 0]
    x = u / np.linalg.norm(u, axis=1)[:, None]
    found = (e.T @ x) / known.sum(axis=0)[:, None]
    sphere = np.eye(k) - x[:, :, None] * x[:, None, :]
    length = np.linalg.norm(u, axis=1)
    slope = noise * sphere @ np.linalg.inv(A) / length[:, None, None]
    exact = np.einsum("ij,iab,jb->ja", known, slope, V) / known.sum(axis=0)[:, None]
    assert np.linalg.norm(found - exact) < 0.1 * np.linalg.norm(exact)
    # a typical user: the mean of 1 / |u_i| is larger, the more so the fewer the factors
    said = own_ratings(V, share, 20.0, noise, ridge)
    scale = np.sum(found * said) / np.sum(said**2)
    assert 0.9 < scale < 1.8
    assert np.linalg.norm(found - scale * said) < 0.25 * np.linalg.norm(found)


def test_a_discount_forgets_factors_and_not_means():
    rng = np.random.default_rng(3)
    posterior = new_posterior(3, 2)
    root = rng.normal(size=(3, 4, 3))
    P, x = np.einsum("jab,jac->jbc", root, root), rng.normal(size=(3, 3))
    posterior.precision, posterior.shift = P.copy(), np.einsum("jab,jb->ja", P, x)
    discount(posterior.precision, posterior.shift, 0.9)
    after = posterior.precision
    for j in range(3):
        # the best guess stays, what is known of v given b is less, of b alone the same
        np.testing.assert_allclose(np.linalg.solve(after[j], posterior.shift[j]), x[j], rtol=1e-6)
        np.testing.assert_allclose(after[j, 1:, 1:], 0.9 * P[j, 1:, 1:], rtol=1e-6)
        alone = [1.0 / np.linalg.inv(Q)[0, 0] for Q in (P[j], after[j])]
        np.testing.assert_allclose(alone[0], alone[1], rtol=1e-6)


def moments_of(n, slopes, covariance, noise, seed=0):
    """Sums of products of features, coefficients and residuals of n users, and their scales."""
    rng, (p, q) = np.random.default_rng(seed), slopes.shape
    F = rng.normal(size=(n, p))
    F[:, 1] = 1.0
    Z = F @ slopes + rng.multivariate_normal(np.zeros(q), covariance, n)
    scales = np.concatenate(([0.3, 0.5], np.full(p - 2, 2.0), np.full(q, 0.5), [0.35]))
    T = np.column_stack((F, Z, np.full(n, noise**0.5))) * scales
    return T.T @ T, scales


def test_the_users_prior_is_learnt():
    """Variances, and no covariances."""
    root = np.array([[0.5, 0.0, 0.0], [0.1, 0.4, 0.0], [0.0, 0.2, 0.3]])
    slopes, covariance = 0.2 * np.random.default_rng(1).normal(size=(4, 3)), root @ root.T
    released, scales = moments_of(400_000, slopes, covariance, 1.4)
    first = UserPrior(np.zeros((4, 3)), np.diag([10.0, 3.0, 2.0]), RESIDUAL_VARIANCE)
    found = learnt_users(released, 1e-6, scales, first, 400_000)
    np.testing.assert_allclose(found.slopes, slopes, atol=0.005)
    assert found.noise == pytest.approx(1.4)
    variances = found.noise * np.linalg.inv(found.ridge)
    np.testing.assert_allclose(variances, np.diag(np.diag(covariance)), atol=0.003)


@pytest.mark.parametrize("noise", [RESIDUAL_VARIANCE, 0.4])
def test_noise_leaves_the_guess_of_the_users_prior(noise):
    """Also far from any moments, and then symmetric and positive definite in between."""
    released, scales = moments_of(500, 0.1 * np.ones((4, 3)), 0.1 * np.eye(3), 1.0)
    guess, rng = np.diag([10.0, 3.0, 2.0]), np.random.default_rng(2)
    first = UserPrior(np.zeros((4, 3)), guess, noise)
    for deviation in (1.0, 30.0, 1e3, 1e6):
        error = rng.normal(size=released.shape)
        noisy = released + deviation * (error + error.T)
        found = learnt_users(noisy, deviation, scales, first, 500)
        np.testing.assert_array_equal(found.ridge, found.ridge.T)
        assert np.linalg.eigvalsh(found.ridge)[0] > 0.0
    np.testing.assert_allclose(found.ridge, guess, rtol=0.3, atol=0.5)
    np.testing.assert_allclose(found.slopes, 0.0, atol=0.1)
    assert found.noise == pytest.approx(noise, rel=0.3)


def test_moments_are_those_of_the_posterior():
    """Signs give many users of nearly one row its posterior second moment; none of no ratings."""
    rng, n, q = np.random.default_rng(3), 20_000, 4
    own, values = np.array([0, 2, 5]), np.array([1.0, -0.5, 0.7])
    indptr = np.append(0, np.cumsum(np.where(np.arange(n) == 7, 0, 3)))
    data = np.tile(values, n - 1) + 1e-9 * rng.normal(size=3 * (n - 1))
    R = sparse.csr_array((data, np.tile(own, n - 1), indptr), shape=(n, 6))
    columns, b = rng.normal(size=(6, q)), rng.normal(size=6)
    users = UserPrior(np.zeros((q + 1, q)), np.diag([3.0, 1.0, 2.0, 0.5]), 0.8)
    rows = Rows(R, 1)
    features = pooled_als.features_of(rows, columns)
    given = features, users, b, columns
    T = pooled_als.moment_vectors(rows, 0, n, *given)
    np.testing.assert_array_equal(T[5:9], pooled_als.moment_vectors(rows, 5, 9, *given))
    assert not T[7].any()
    T = np.delete(T, 7, axis=0) / pooled_als.moment_scales(q)
    C = columns[own]
    inverse = np.linalg.inv(C.T @ C + users.ridge)
    z, spread = inverse @ C.T @ (values - b[own]), 0.8 * np.diag(inverse)
    found = T[:, q + 1 : -1].T @ T[:, q + 1 : -1] / len(T)
    np.testing.assert_allclose(found, np.outer(z, z) + np.diag(spread), atol=0.03)
    np.testing.assert_allclose(T[:, : q + 1], features[:1].repeat(len(T), axis=0))
    assert np.ptp(T[:, -1]) < 1e-6
    assert T[0, -1] ** 2 > np.mean((values - b[own] - C @ z) ** 2)


def test_signs_are_fair_and_depend_on_the_row_alone():
    """Of 4,000 rows all means and products' means are within 5 deviations: 1 seed in 10^4 fails."""
    rng = np.random.default_rng(0)
    X = np.where(rng.random((4000, 12)) < 0.6, rng.integers(1, 6, (4000, 12)), 0)
    R = sparse.csr_array(X.astype(float))
    signs = pooled_als.row_signs(Rows(R, 1), 19, 0, 4000)
    assert np.unique(X, axis=0).shape[0] > 3900
    assert np.abs(signs).min() == 1.0
    assert np.abs(signs.T @ signs / 4000 - np.eye(19)).max() < 5.0 / np.sqrt(3900)
    assert np.abs(signs.mean(axis=0)).max() < 5.0 / np.sqrt(3900)
    part = pooled_als.row_signs(Rows(R, 1), 19, 1000, 1500)
    np.testing.assert_array_equal(part, signs[1000:1500])
    part = pooled_als.row_signs(Rows(sparse.csr_array(R[1000:1500]), 1), 19, 0, 500)
    np.testing.assert_array_equal(part, signs[1000:1500])


def test_a_noisy_regression_is_the_most_probable_ridge():
    """The posterior mean at the variance of slopes with the largest density, found by a search."""
    rng = np.random.default_rng(6)
    values = np.array([3.0, 8.0, 40.0])
    cross = 0.5 * values[:, None] * rng.normal(size=(3, 5)) + rng.normal(size=(3, 5))

    def density(t):
        law = stats.norm(scale=np.sqrt(t * values[:, None] ** 2 + 1.0))
        return law.logpdf(cross).sum()

    t = max(KNOTS, key=density)
    assert 0.1 < t < 1.0
    expected = np.linalg.solve(np.diag(values**2 + 1.0 / t), values[:, None] * cross)
    found = noisy_regression(np.diag(values), cross, 1.0)
    np.testing.assert_allclose(found, expected, rtol=1e-9)
    assert not noisy_regression(np.diag(values), 0.01 * cross, 1.0).any()


def test_counts_of_both_slots_rank_where_choices_promise_nothing():
    """Counts take the matrix' slot: lists and a refresh have their mean by precision."""
    model, records = pooled(base_ratings(), budget=PrivacyBudget(0.3, 1e-5), max_iter=2)
    one, two = (
        {r.name: r for r in records}[name] for name in (pooled_als.COUNTS, pooled_als.LISTS)
    )
    np.testing.assert_array_equal(one.statistic, two.statistic)
    a, b = one.noise_scale**-2.0, two.noise_scale**-2.0
    assert b > 5.0 * a  # the second release is the better one
    counts = ((a * one.output + b * two.output) / (a + b))[:-1]
    N = np.exp(estimate_popularity(counts, (a + b) ** -0.5).log_mean)
    lists = model._ranking_.lists
    assert lists.encoder.shape == (N_ITEMS, 0)
    np.testing.assert_allclose(lists.offsets / lists.offsets.sum(), N / N.sum(), rtol=1e-6)
    known = model._knowledge_.averages
    np.testing.assert_allclose(known.counts, counts, rtol=0.0, atol=1e-7)
    assert known.count_variance == pytest.approx(1.0 / (a + b), rel=1e-9)


def test_factors_stay_where_rounds_show_more_than_chance():
    """Users' own columns, or what ratings show of themselves, are no factor."""
    rng, n, k = np.random.default_rng(0), 120, 3
    posterior, known = new_posterior(n, k), rng.normal(size=(n, 2))
    root = rng.normal(size=(k, k))
    P = rng.uniform(1.0, 9.0, n)[:, None, None] * (root @ root.T)
    posterior.precision[:, 1:, 1:], none = P, np.zeros((n, k))

    def shows(V, own=none):
        noise = np.einsum("jab,jb->ja", np.linalg.cholesky(P), rng.normal(size=(n, k)))
        posterior.shift[:, 1:] = np.einsum("jab,jb->ja", P, V) + noise
        return posterior.shows_factors(own, known)

    assert not any(shows(none) for _ in range(20))
    assert not shows(known @ rng.normal(size=(2, k)))
    V = rng.normal(size=(n, k))
    assert shows(V)
    assert not shows(V, own=V)


@pytest.mark.parametrize("strength", [0.0, 0.8])
def test_factors_that_are_not_there_are_given_up(strength):
    X = make_ratings(800, 100, n_ratings=10_000, factor_std=strength, random_state=0)
    model = AdaptiveWeightALS(PrivacyBudget(20.0, 1e-5), rating_range=(1, 5), random_state=0)
    assert bool(model.fit(X).components_.any()) == (strength > 0.0)
