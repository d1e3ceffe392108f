"""solver="pooled": its limit, its posterior, audits on neighbours, planted bugs, its own plan."""

import dataclasses
import math
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import sparse, stats

from skdpmf import AdaptiveWeightALS, PrivacyBudget
from skdpmf.estimators._recommend import ItemModel, entry_scores, fold_in, top_items
from skdpmf.solvers import co_ratings, item_means, item_residuals, pooled_als
from skdpmf.solvers.item_residuals import ResidualAverages, item_prior
from skdpmf.solvers.pooled_posterior import PooledPosterior, noisy_regression
from tests.reference import pooled_als as twin
from tests.core.audit import (
    N_ITEMS,
    ROUNDING,
    audit,
    base_ratings,
    recorded_fit,
    replace_release,
)
from tests.core.audit import NO_FACTORS as NO_FACTORS_SLOTS
from tests.solvers.test_sensitivity import Replay

REPLACE = PrivacyBudget(50.0, 1e-5, neighbors="replace")
NONPRIVATE = PrivacyBudget.nonprivate()
NAMES = [
    pooled_als.COUNTS,
    pooled_als.MEANS,
    pooled_als.RATED,
    pooled_als.START,
    pooled_als.GRADIENTS,
    pooled_als.GRAM,
    pooled_als.MOMENTS,
]
NO_FACTORS = PrivacyBudget(0.1, 1e-5)


def pooled(X, **params):
    return recorded_fit(X, solver="pooled", **params)


# -- the limit -----------------------------------------------------------------------------------


@pytest.mark.parametrize("k", [1, 3])
def test_without_privacy_it_is_the_twin(k):
    X = base_ratings()
    X[3] = np.nan  # a user without ratings; an item without raters is among the columns
    params = {"budget": NONPRIVATE, "n_components": k, "alpha": 0.05, "user_damping": 4.0}
    start, _ = pooled(X, max_iter=1, **params)
    model, records = pooled(X, max_iter=4, **params)
    y, b, V = X - 3.0, start.item_means_ - 3.0, start.components_.T
    b, columns, ridge, prior = twin.fit(y, V, b, rounds=3, alpha=0.05, damping=4.0)
    np.testing.assert_allclose(model.item_means_, b + 3.0, rtol=0, atol=1e-7)
    np.testing.assert_allclose(model.components_.T, columns[:, 3:], rtol=0, atol=1e-7)
    assert abs(model.components_).max() > 0.1
    Z = twin.users(y, b, columns, ridge, prior)
    expected = 3.0 + b + Z @ columns.T
    np.testing.assert_allclose(model.decision_function(X), expected, rtol=0, atol=1e-6)
    assert abs(prior).max() > 0.01
    for record in records:
        np.testing.assert_array_equal(record.output, record.statistic)


def test_prior_mean_of_the_fold_in_is_the_twin():
    """In blocks, lists and entries alike; the solution minimises the stated objective."""
    rng = np.random.default_rng(0)
    X = np.where(rng.random((30, 9)) < 0.5, rng.normal(size=(30, 9)), np.nan)
    X[4] = np.nan
    factors = np.column_stack((np.ones(9), rng.normal(size=(9, 2))))
    ridge, prior = np.diag([3.0, 1.0, 2.0]), rng.normal(size=(4, 3))
    b = rng.normal(size=9)
    known = ~np.isnan(X)
    R = sparse.csr_array(
        (X[known], np.nonzero(known)[1], np.append(0, known.sum(axis=1).cumsum())), shape=X.shape
    )
    model = ItemModel(b, factors, ridge, prior=prior)
    Z = fold_in(model, R, 2)
    np.testing.assert_allclose(Z, twin.users(X, b, factors, ridge, prior), rtol=0, atol=1e-12)
    assert not Z[4].any()
    scores = b + Z @ factors.T
    np.testing.assert_allclose(entry_scores(model, Z, R), scores[known], rtol=0, atol=1e-12)
    items, best = top_items(model, R, 1, exclude_seen=False)
    np.testing.assert_array_equal(items[:, 0], scores.argmax(axis=1))
    np.testing.assert_allclose(best[:, 0], scores.max(axis=1), rtol=0, atol=1e-12)


@pytest.mark.parametrize("scale", [1.0, 2.5])
def test_the_range_is_a_unit(scale):
    """A range twice as wide gives a model twice as wide, its prior means included."""
    X = base_ratings()
    params = {"budget": NONPRIVATE, "n_components": 2}
    one, _ = pooled(X, **params)
    other, _ = pooled(10.0 + scale * X, rating_range=(10 + scale, 10 + 5 * scale), **params)
    np.testing.assert_allclose(
        other.decision_function(10.0 + scale * X),
        10.0 + scale * one.decision_function(X),
        rtol=1e-8,
    )


# -- the posterior -------------------------------------------------------------------------------


def new_posterior(n_items=5, rank=0, **changes):
    """Nothing known of means that lie around 0, with a variance of 0.4."""
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
    return PooledPosterior(SimpleNamespace(**averages), rank, 0.1)


def test_it_starts_with_what_is_known_of_the_means():
    """Measurements of known variance, shrunk to the line by 1.6 of the variance around it."""
    rng = np.random.default_rng(1)
    precision, x, sampling = rng.uniform(1.0, 9.0, 6), rng.normal(size=6), rng.uniform(size=6)
    posterior = new_posterior(6, 2, precision=precision, shift=precision * x, sampling=sampling)
    design = np.column_stack((np.ones(6), np.linspace(-1.0, 1.0, 6)))
    variance, line = item_prior(x, 1.0 / precision + sampling, design, 0.25)
    t = 1.6 * variance
    expected = (precision * x + line / t) / (precision + 1.0 / t)
    np.testing.assert_allclose(posterior.theta[:, 0], expected, rtol=1e-12)
    assert not posterior.theta[:, 1:].any()
    covariances = [np.diag([1.0 / (p + 1.0 / t), 0.1, 0.1]) for p in precision]
    np.testing.assert_allclose(posterior.covariance, covariances, rtol=1e-12)


def test_the_gram_matrix_is_a_weighted_mean_of_all_rounds_and_a_guess():
    """Without noise the weighted mean of the rounds; with much of it the guess."""
    rng = np.random.default_rng(4)
    rounds = [np.diag(rng.uniform(0.5, 1.0, 3)) for _ in range(3)]
    posterior = new_posterior(rank=2)
    for H in rounds:
        found = posterior.pooled_gram(H, 1e-6, 0.8)
    weights = 0.7 ** np.array([2, 1, 0])
    np.testing.assert_allclose(found, np.average(rounds, axis=0, weights=weights), rtol=1e-6)
    posterior = new_posterior(rank=2)
    found = posterior.pooled_gram(100.0 * rng.normal(size=(3, 3)), 1e6, 0.8)
    np.testing.assert_allclose(found, np.diag([0.6 * 0.64, 0.3, 0.3]), atol=1e-6)


def test_rounds_of_gradients_are_a_regression(monkeypatch):
    """Without discount: Gaussian measurements M F theta of two rounds, solved item by item."""
    monkeypatch.setattr("skdpmf.solvers.pooled_posterior._KEPT", 1.0 - 1e-12)
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
    prior = np.diag([1 / 0.4, 10.0, 10.0])
    for j in range(n):
        A, t = np.vstack(rows[j]), np.concatenate(targets[j])
        expected = np.linalg.solve(A.T @ A + prior, A.T @ t)
        np.testing.assert_allclose(posterior.theta[j], expected, rtol=1e-6)
        covariance = np.linalg.inv(A.T @ A + prior)
        np.testing.assert_allclose(posterior.covariance[j], covariance, rtol=1e-6)


def test_a_discount_forgets_factors_and_not_means():
    rng = np.random.default_rng(3)
    posterior = new_posterior(3, 2)
    root = rng.normal(size=(3, 4, 3))
    P, x = np.einsum("jab,jac->jbc", root, root), rng.normal(size=(3, 3))
    posterior.precision, posterior.shift = P.copy(), np.einsum("jab,jb->ja", P, x)
    posterior._discount()
    after = posterior.precision
    for j in range(3):
        # the best guess stays, what is known of v given b is less, of b alone the same
        np.testing.assert_allclose(np.linalg.solve(after[j], posterior.shift[j]), x[j], rtol=1e-6)
        np.testing.assert_allclose(after[j, 1:, 1:], 0.92 * P[j, 1:, 1:], rtol=1e-6)
        alone = [1.0 / np.linalg.inv(Q)[0, 0] for Q in (P[j], after[j])]
        np.testing.assert_allclose(alone[0], alone[1], rtol=1e-6)


def test_what_is_not_known_of_a_popularity_weighs_less():
    sure, unsure = new_posterior(), new_posterior(mass_variance=np.full(5, 25.0))
    for posterior in (sure, unsure):
        posterior.add_gradients(np.ones((5, 1)), np.ones((1, 1)), 1.0, 0.5)
    assert np.all(unsure.precision < sure.precision)


@pytest.mark.parametrize(("truth", "noise"), [(0.0, 1.0), (0.05, 1.0), (0.2, 0.01)])
def test_a_noisy_regression_forgets_what_drowns_in_noise(truth, noise):
    """Over 40 runs it is as good as the plain regression, and as nothing at all."""
    rng = np.random.default_rng(5)
    root = rng.normal(size=(6, 6))
    gram = root @ root.T + 0.1 * np.eye(6)
    errors = np.zeros(3)
    for _ in range(40):
        slopes = truth * rng.normal(size=(6, 8))
        cross = gram @ slopes + noise * rng.normal(size=(6, 8))
        found = noisy_regression(gram, cross, noise)
        plain = np.linalg.solve(gram, cross)
        errors += [np.sum((x - slopes) ** 2) for x in (found, plain, 0.0 * plain)]
    assert errors[0] <= min(1.01 * errors[1], 1.01 * errors[2] + 1.0)


def test_a_noisy_regression_is_the_most_probable_ridge():
    """The posterior mean at the variance of slopes with the largest density, found by a search."""
    rng = np.random.default_rng(6)
    values = np.array([3.0, 8.0, 40.0])
    cross = 0.5 * values[:, None] * rng.normal(size=(3, 5)) + rng.normal(size=(3, 5))

    def density(t):
        law = stats.norm(scale=np.sqrt(t * values[:, None] ** 2 + 1.0))
        return law.logpdf(cross).sum() + stats.norm.logpdf(np.log(t), np.log(0.01), 2.0)

    t = max(0.01 * np.geomspace(1e-4, 100.0, 25), key=density)
    assert 0.1 < t < 1.0
    expected = np.linalg.solve(np.diag(values**2 + 1.0 / t), values[:, None] * cross)
    found = noisy_regression(np.diag(values), cross, 1.0)
    np.testing.assert_allclose(found, expected, rtol=1e-9)


# -- privacy -------------------------------------------------------------------------------------

SETTINGS = {
    "default": {},
    "replace": {"budget": REPLACE},
    "trimmed": {"max_ratings_per_user": 10, "budget": PrivacyBudget(50.0, 1e-5)},
    "equal weights": {"weight_exponent": 0.0},
    "strong weights": {"weight_exponent": 1.0},
    "no factors": {"budget": NO_FACTORS},
    "no factors, replace": {"budget": PrivacyBudget(0.1, 1e-5, neighbors="replace")},
}


@pytest.mark.parametrize("name", SETTINGS)
def test_audit_passes(name):
    audit(solver="pooled", **SETTINGS[name])


def test_the_audited_fits_have_factors_and_none():
    ranks = [
        np.count_nonzero(pooled(base_ratings(), **SETTINGS[name])[0].components_.any(axis=1))
        for name in ("default", "replace", "trimmed", "no factors")
    ]
    assert min(ranks[:3]) >= 1, ranks
    assert ranks[3] == 0, ranks


class PooledReplay(Replay):
    solver = pooled_als

    def __init__(self, **params):
        super().__init__(solver="pooled", **params)


@pytest.mark.parametrize("name", NAMES)
def test_search_reaches_the_declared_sensitivity_and_not_more(name):
    ratio = PooledReplay().search(name, n_random=10, n_steps=25)
    assert 0.85 <= ratio <= ROUNDING, ratio


@pytest.mark.parametrize("name", NAMES)
def test_search_over_pairs_of_users(name):
    ratio = PooledReplay(budget=REPLACE).search(name, pairs=True, n_random=10, n_steps=25)
    assert 0.7 <= ratio <= ROUNDING, ratio


@pytest.mark.parametrize("name", NO_FACTORS_SLOTS)
def test_search_where_there_are_no_factors(name):
    """Residuals in the place of another release have their own sensitivity."""
    replay = PooledReplay(budget=NO_FACTORS)
    assert 0.6 <= replay.search(name, n_random=5, n_steps=15) <= ROUNDING


BUGS = {}


def bug(*, match, **params):
    def register(plant):
        BUGS[plant.__name__] = plant, params, match
        return plant

    return register


@pytest.mark.parametrize("name", BUGS)
def test_audit_notices(name, monkeypatch):
    plant, params, match = BUGS[name]
    plant(monkeypatch)
    with pytest.raises(AssertionError, match=match):
        audit(solver="pooled", **params)


def clip_nothing_in(monkeypatch, method, kind=pooled_als._Fit):
    """Within one method no contribution is clipped."""
    real, shrink = getattr(kind, method), item_means.shrink_to_ball

    def wrapped(self, *args, **kwargs):
        with monkeypatch.context() as patch:
            patch.setattr(item_means, "shrink_to_ball", lambda norm, _: np.ones_like(norm))
            out = real(self, *args, **kwargs)
        assert item_means.shrink_to_ball is shrink
        return out

    monkeypatch.setattr(kind, method, wrapped)


@bug(match="distance .*residuals")
def no_clip_of_residuals(monkeypatch):
    clip_nothing_in(monkeypatch, "_release_residuals", ResidualAverages)


for _method, _released in {
    "start": "second moments",
    "gradient_round": "gradients|Gram",
    "_release_prior": "moments",
}.items():

    def _plant(monkeypatch, method=_method):
        clip_nothing_in(monkeypatch, method)

    _plant.__name__ = f"no_clip_in{_method}"
    bug(match=f"distance .*({_released})")(_plant)


@bug(match="distance .*co-ratings")
def co_ratings_of_any_length(monkeypatch):
    real = co_ratings.im.truncate

    def truncate(x, grid):
        return real(x / np.maximum(np.max(abs(x), axis=1), 1e-9)[:, None], grid)

    monkeypatch.setattr(co_ratings, "im", SimpleNamespace(truncate=truncate))


@bug(match="others move|model with|distance")
def the_head_is_the_most_rated_one(monkeypatch):
    real = co_ratings._moments

    def moments(R, head, popularity, grid):
        exact = np.bincount(R.indices, minlength=R.shape[1])[head] + 1.0
        return real(R, head, exact, grid)

    monkeypatch.setattr(co_ratings, "_moments", moments)


@bug(match="distance .*gradients")
def clip_each_item_alone(monkeypatch):
    real = pooled_als._Fit._residuals

    def residuals(self, *args):
        terms, norms = real(self, *args)
        return terms, norms / np.sqrt(N_ITEMS)

    monkeypatch.setattr(pooled_als._Fit, "_residuals", residuals)


@bug(match="distance .*item counts")
def count_every_rating_fully(monkeypatch):
    real = pooled_als.Releases.release

    def release(self, name, statistic, *args, **kw):
        if name == pooled_als.COUNTS:
            fitted = sys._getframe(1).f_locals["self"]
            counts = np.bincount(fitted.R.indices, minlength=N_ITEMS)
            statistic = np.append(counts, statistic[-1])
        return real(self, name, statistic, *args, **kw)

    monkeypatch.setattr(pooled_als.Releases, "release", release)


@bug(match="distance .*residuals|distance .*gradients")
def weights_twice_as_large(monkeypatch):
    real = item_residuals.popularity_weights
    monkeypatch.setattr(item_residuals, "popularity_weights", lambda *a: 2.0 * real(*a))
    monkeypatch.setattr(
        item_means, "shrink_to_ball", lambda norm, r: np.minimum(1, 2 * r / (norm + 1e-9))
    )


@bug(match="others move|model with|must make the recorded")
def popularity_of_the_exact_counts(monkeypatch):
    real = pooled_als.Releases.release

    def release(self, name, statistic, *args, **kw):
        out = real(self, name, statistic, *args, **kw)
        return statistic if name == pooled_als.COUNTS else out

    monkeypatch.setattr(pooled_als.Releases, "release", release)


@bug(match="others move|model with|distance")
def the_number_of_users_is_exact(monkeypatch):
    real = ResidualAverages._release_counts

    def count(self):
        real(self)
        self.n_users = float(max(np.count_nonzero(self.n_ratings), 1))

    monkeypatch.setattr(ResidualAverages, "_release_counts", count)


@bug(match="others move|model with|distance")
def the_means_column_is_centred_by_ratings(monkeypatch):
    def centred(self, x):
        return x - np.sum(x[self.R.indices]) / max(self.R.nnz, 1)

    monkeypatch.setattr(pooled_als._Fit, "_centred", centred)


@bug(match="sensitivity of", budget=NO_FACTORS)
def residuals_have_the_noise_of_gradients(monkeypatch):
    real = pooled_als.Releases.release

    def release(self, name, statistic, *args, like="", **kw):
        like = like if name != pooled_als.GRADIENTS else name
        return real(self, name, statistic, *args, like=like, **kw)

    monkeypatch.setattr(pooled_als.Releases, "release", release)


@bug(match="multiplier of")
def rounds_are_noised_as_if_there_were_one(monkeypatch):
    def change(release, statistic, kw):
        if kw["name"] == pooled_als.GRADIENTS:
            kw = {**kw, "noise_multiplier": kw["noise_multiplier"] / 3**0.5}
        return release(statistic, **kw)

    replace_release(monkeypatch, change)


@bug(match="are not the plan's")
def one_round_more(monkeypatch):
    monkeypatch.setattr(pooled_als, "MOMENT_ROUNDS", 2)
    real = pooled_als.make_plan

    def make_plan(*args):
        plan = real(*args)
        fewer = [
            dataclasses.replace(r, count=1) if r.name == pooled_als.MOMENTS else r
            for r in plan.releases
        ]
        return dataclasses.replace(plan, releases=tuple(fewer))

    monkeypatch.setattr(pooled_als, "make_plan", make_plan)


# -- the plan and the rules ----------------------------------------------------------------------


@pytest.mark.parametrize("epsilon", [0.05, 1.0, 4.0, 50.0])
@pytest.mark.parametrize("neighbors", ["add-remove", "replace"])
def test_plan_is_the_formulas(epsilon, neighbors):
    budget = PrivacyBudget(epsilon, 1e-5, neighbors=neighbors)
    k, m, rounds = 4, 200, 7
    model = AdaptiveWeightALS(budget, solver="pooled", n_components=k, max_iter=rounds)
    plan = model.plan(m)
    a, C, q = pooled_als.constant_weight(budget), pooled_als.CLIP, 0.1
    # replace: sqrt(2) where products of contributions are >= 0, else 2
    same, other = (math.sqrt(2.0), 2.0) if neighbors == "replace" else (1.0, 1.0)
    expected = {
        # replaced, a user with ratings counts as one: q cancels
        pooled_als.COUNTS: ((m + 1,), same if same > 1.0 else math.hypot(1.0, q), 1),
        pooled_als.MEANS: ((m + 1,), math.hypot(other, q), 3),
        pooled_als.RATED: ((150 * 151 // 2,), same, 1),
        pooled_als.START: ((150 * 151 // 2,), same * C**2, 1),
        pooled_als.GRADIENTS: ((m, k + 1), other * C * math.hypot(1, a), rounds),
        pooled_als.GRAM: ((15,), same * (1 + a**2), rounds),
        pooled_als.MOMENTS: ((15 * 16 // 2,), same, 2),
    }
    found = {r.name: (r.shape, r.sensitivity, r.count) for r in plan.releases}
    assert found.keys() == expected.keys()
    for name, (shape, sensitivity, count) in expected.items():
        assert found[name][0] == shape
        assert found[name][1] == pytest.approx(sensitivity, rel=1e-12)
        assert found[name][2] == count
    assert 0.999 * epsilon < plan.epsilon <= epsilon
    shares = pooled_als.shares_of(budget)
    assert sum(shares.values()) == pytest.approx(1.0)
    assert min(shares.values()) > 0.0
    for release in plan.releases:
        assert plan.share(release) == pytest.approx(shares[release.name], rel=1e-9)


def test_the_less_is_known_the_more_goes_to_the_means():
    budgets = [PrivacyBudget(epsilon, 1e-5) for epsilon in (0.1, 1.0, 5.0, 20.0)]
    constants = [pooled_als.constant_weight(budget) for budget in budgets]
    assert constants == sorted(constants, reverse=True)
    means = [pooled_als.shares_of(budget)[pooled_als.MEANS] for budget in budgets]
    assert means == sorted(means, reverse=True)


def test_rank_grows_with_the_signal():
    ranks = [pooled_als.rank_of(signal, 16) for signal in (0.0, 1.0, 20.0, 100.0, 1e4)]
    assert ranks[0] == ranks[1] == 0
    assert 0 < ranks[2] < ranks[3] < ranks[4] == 16


# -- what a fit does not depend on ---------------------------------------------------------------


@pytest.mark.parametrize("budget", [PrivacyBudget(20.0, 1e-5), NONPRIVATE])
def test_threads_do_not_change_a_bit(budget):
    one, _ = pooled(base_ratings(), budget=budget, n_jobs=1)
    two, _ = pooled(base_ratings(), budget=budget, n_jobs=3)
    np.testing.assert_array_equal(one.item_means_, two.item_means_)
    np.testing.assert_array_equal(one.components_, two.components_)
    np.testing.assert_array_equal(one._item_model_.prior, two._item_model_.prior)


def test_order_of_users_does_not_change_a_bit():
    X = base_ratings()
    model, records = pooled(X)
    _, other = recorded_fit(X[::-1], records, solver="pooled")
    for a, b in zip(records, other, strict=True):
        np.testing.assert_array_equal(a.statistic, b.statistic, err_msg=f"{a}")
    assert model.components_.any()


@pytest.mark.parametrize("epsilon", [0.05, 2.0, 1000.0])
@pytest.mark.parametrize(
    "X", [np.full((3, 2), np.nan), np.full((1, 1), 4.0), np.full((6, 5), 5.0)], ids=str
)
def test_almost_no_data(X, epsilon):
    model, _ = pooled(X, budget=PrivacyBudget(epsilon, 1e-5))
    assert np.isfinite(model.predict(X)).all()
    assert np.isfinite(model.components_).all()


def test_a_user_without_ratings_gets_the_item_means():
    model, _ = pooled(base_ratings())
    empty = np.full((1, N_ITEMS), np.nan)
    np.testing.assert_array_equal(model.decision_function(empty)[0], model.item_means_)
    assert not model.transform(empty).any()
