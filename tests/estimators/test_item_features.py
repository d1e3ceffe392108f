"""Public item features: tastes in every fold-in, priors of items, and items that are new.

Seeds are fixed; where a comparison depends on noise, it holds by many times its spread.
"""

import json

import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.base import clone

import skdpmf as sk
from skdpmf.data import make_ratings
from skdpmf.data.matrix import RatingMatrix
from skdpmf.estimators.contract.refreshed import FEATURES_ASSUMPTION
from skdpmf.evaluation import audit, rmse
from skdpmf.kernels.averaging import TASTE_PENALTIES, TASTE_PRIOR, TASTE_VARIANCE
from skdpmf.local import LocalDevice
from skdpmf.mechanisms.item_means.joint_release import FOLD_IN_DAMPING
from skdpmf.privacy.recording import record_releases
from tests.reference.averaging import averaged_row

BUDGET, EXACT = sk.PrivacyBudget(4.0, 1e-5), sk.PrivacyBudget.nonprivate()
ALS = {"n_components": 4, "max_iter": 4}
MODELS = {
    "als": sk.AdaptiveWeightALS(BUDGET, random_state=0, **ALS),
    "als, exact": sk.AdaptiveWeightALS(EXACT, **ALS),
    "dpals": sk.AdaptiveWeightALS(BUDGET, solver="dpals", random_state=0, **ALS),
    "means": sk.DPItemMeans(BUDGET, random_state=0),
    "means, rating": sk.DPItemMeans(sk.PrivacyBudget(4.0, 1e-5, unit="rating"), random_state=0),
    "sampler": sk.DPMFSampler(BUDGET, random_state=0),
    "posterior": sk.DPMFSampler(
        sk.PrivacyBudget(4.0), guarantee="posterior", random_state=0, max_iter=5
    ),
    # at epsilon 4 the error moves by 4 % with the seed
    "covariance": sk.DPCovarianceRecommender(sk.PrivacyBudget(20.0, 1e-5), random_state=0),
    "local": sk.LocalDPGDDR(sk.PrivacyBudget(4.0), random_state=0),
    "sgd": sk.CacheSGDFactorizer(4, max_iter=5, random_state=0),
}
N_USERS, N_ITEMS, N_GENRES = 1500, 120, 4


def tasteful(seed=0, n_users=N_USERS, strength=1.0, n_known=30):
    """Ratings of users with tastes for genres, half of them hidden, and the genres."""
    rng = np.random.default_rng(seed)
    genres = np.eye(N_GENRES)[rng.integers(0, N_GENRES, N_ITEMS)]
    tastes = strength * rng.normal(size=(n_users, N_GENRES))
    quality = genres @ rng.normal(scale=0.6, size=N_GENRES) + 0.2 * rng.normal(size=N_ITEMS)
    ratings = 3.0 + quality + tastes @ genres.T + 0.5 * rng.normal(size=(n_users, N_ITEMS))
    order = np.argsort(rng.random(ratings.shape), axis=1)
    known, hidden = order < n_known, (order >= n_known) & (order < 2 * n_known)
    ratings = np.clip(ratings, 1.0, 5.0)
    X, Y = (sparse.csr_array(np.where(part, ratings, 0.0)) for part in (known, hidden))
    return X, Y, genres


X, Y, GENRES = tasteful()
NOISE = np.random.default_rng(9).normal(size=(N_ITEMS, 20))


def error_of(model, features):
    """At epsilon 4 the error of ALS moves by 7 % with the seed, and so the mean of four counts."""
    found = []
    for seed in range(4 if model is MODELS["als"] else 1):
        fitted = clone(model).set_params(item_features=features, random_state=seed).fit(X)
        found.append(rmse(Y, fitted.predict_entries(X, Y)))
    return np.mean(found)


@pytest.mark.parametrize("name", MODELS)
def test_features_that_tell_help_and_others_do_not_hurt(name):
    without, with_genres = error_of(MODELS[name], None), error_of(MODELS[name], GENRES)
    if name in (
        "als",
        "als, exact",
        "dpals",
        "covariance",
        "sgd",
        "sampler",
    ):  # four factors find genres as well
        assert with_genres < 1.01 * without
    else:
        assert with_genres < 0.95 * without
    assert error_of(MODELS[name], NOISE) < 1.05 * without


def test_fold_in_is_the_slow_twin():
    model = clone(MODELS["means"]).set_params(item_features=GENRES, rating_range=(0, 10)).fit(X)
    D, unit = model._features_.values, 2.5
    C = np.column_stack((np.ones(N_ITEMS), D))
    scores = model.decision_function(X[:5])
    for i in range(5):
        row = X[[i]]
        z, _ = averaged_row(
            C[row.indices],
            row.data - model.item_means_[row.indices],
            np.array([[FOLD_IN_DAMPING]]),
            TASTE_PENALTIES,
            TASTE_PRIOR,
            TASTE_VARIANCE * unit**2,
        )
        np.testing.assert_allclose(scores[i], model.item_means_ + C @ z, atol=1e-9)


@pytest.mark.parametrize("name", MODELS)
def test_all_answers_agree(name):
    model = clone(MODELS[name]).set_params(item_features=GENRES, n_jobs=2).fit(X)
    rows = X[:40]
    scores = model.decision_function(rows)
    entries = model.predict_entries(rows, Y[:40])
    np.testing.assert_allclose(
        entries.data, np.clip(scores, 1, 5)[Y[:40].nonzero()], rtol=0, atol=1e-10
    )
    assert model.transform(rows).shape == (40, len(model.components_))
    assert model.recommend(rows, 3)[0].shape == (40, 3)
    if model._ranking_ is None:
        items, best = model.recommend(rows, 3, exclude_seen=False)
        np.testing.assert_allclose(best, -np.sort(-scores, axis=1)[:, :3], atol=1e-10)
        # contributions are linear in what a row says beyond its prior mean
        chosen = items[:, 0]
        parts = model.explain(rows, chosen).sum(axis=1)
        expected = model._item_model_.offsets[chosen]
        if model._item_model_.prior is None:
            picked = scores[np.arange(40), chosen]
            np.testing.assert_allclose(parts, picked - expected, atol=1e-8)


def test_alignment_by_name():
    names = [f"film {j}" for j in range(N_ITEMS)]
    dense = np.where(X[:200].toarray() > 0, X[:200].toarray(), np.nan)
    frame = pd.DataFrame(dense, columns=names)
    shuffled = pd.DataFrame(GENRES, index=names).sample(frac=1.0, random_state=0)
    more = pd.concat((shuffled, pd.DataFrame(GENRES[:2], index=["another", "one"])))
    model = sk.DPItemMeans(BUDGET, random_state=0)
    expected = clone(model).set_params(item_features=GENRES).fit(frame).predict(frame)
    for features in (shuffled, more):
        named = clone(model).set_params(item_features=features).fit(frame)
        np.testing.assert_array_equal(named.predict(frame), expected)
    matrix = RatingMatrix(X[:200], pd.RangeIndex(200), pd.Index(names))
    by_matrix = clone(model).set_params(item_features=shuffled).fit(matrix)
    np.testing.assert_array_equal(by_matrix.predict(X[:200]), expected)


def test_wrong_features_cost_nothing(tmp_path):
    ledger = sk.PrivacyLedger(tmp_path / "ratings.ledger", limit=sk.PrivacyBudget(8.0, 1e-5))
    budget = sk.PrivacyBudget(1.0, 1e-5, ledger=ledger)
    with pytest.raises(ValueError, match="119 rows for the 120 columns"):
        sk.DPItemMeans(budget, item_features=GENRES[1:]).fit(X)
    broken = np.where(np.arange(N_ITEMS) == 3, np.nan, 1.0)[:, None]
    with pytest.raises(ValueError, match="nan for the item 3"):
        sk.DPItemMeans(budget, item_features=broken).fit(X)
    assert len(ledger.report().entries) == 0
    fitted = sk.DPItemMeans(budget, item_features=GENRES).fit(X)
    (entry,) = ledger.report().entries
    assert fitted._features_.digest in json.dumps(entry, default=str)


@pytest.mark.parametrize("name", [name for name in MODELS if name != "sgd"])
def test_the_statement_names_the_assumption(name):
    model = clone(MODELS[name]).set_params(item_features=GENRES)
    assert FEATURES_ASSUMPTION in model.fit(X).privacy_spent_.assumptions
    assert FEATURES_ASSUMPTION not in clone(MODELS[name]).fit(X).privacy_spent_.assumptions
    planned = clone(MODELS[name]).plan(N_ITEMS, N_USERS)
    assert model.plan(N_ITEMS, N_USERS).releases == planned.releases


def test_seeded_noise_depends_on_the_features():
    """Statistics differ by a public function otherwise, and noise would cancel."""
    released = []
    for features in (GENRES, NOISE):
        with record_releases() as records:
            clone(MODELS["means"]).set_params(item_features=features).fit(X)
        released.append(records[0].output - records[0].statistic)
    assert not np.any(released[0] == released[1])


def test_features_of_ratings_are_found_by_the_audit():
    """Whoever makes features of the ratings inside of a fit leaks them, and is found."""

    class Popularity(sk.DPItemMeans):
        def _columns_of(self, given, R):
            counts = np.bincount(sparse.csr_array(given).indices, minlength=given.shape[1])
            self.item_features = counts[:, None].astype(float)
            return super()._columns_of(given, R)

    rows = make_ratings(60, 14, density=0.5, random_state=1)
    assert not audit(Popularity(BUDGET), rows, n_neighbors=10, n_runs=5).passed
    counted = np.bincount(rows.indices, minlength=14)[:, None].astype(float)
    honest = sk.DPItemMeans(BUDGET, item_features=counted)
    # made once and passed, they are the same on all neighbours: nothing that runs can tell
    assert audit(honest, rows, n_neighbors=10, n_runs=5).passed


@pytest.mark.parametrize("name", MODELS)
def test_new_items_are_like_others_of_their_genre(name, tmp_path):
    model = clone(MODELS[name]).set_params(item_features=GENRES).fit(X)
    before = model.decision_function(X[:30])
    grown = model.with_items(np.eye(N_GENRES))
    assert grown.n_features_in_ == N_ITEMS + N_GENRES
    assert model.n_features_in_ == N_ITEMS
    wide = sparse.csr_array((X[:30].data, X[:30].indices, X[:30].indptr), shape=(30, N_ITEMS + 4))
    scores = grown.decision_function(wide)
    np.testing.assert_allclose(scores[:, :N_ITEMS], before, atol=1e-10)
    for genre in range(N_GENRES):
        others = before[:, GENRES[:, genre] == 1.0].mean(axis=1)
        assert np.corrcoef(scores[:, N_ITEMS + genre], others)[0, 1] > 0.9
    assert grown.privacy_spent_ is not None
    assert grown.recommend(wide, 2)[0].shape == (30, 2)
    grown.save(tmp_path / "grown.skdpmf")
    loaded = sk.load_model(tmp_path / "grown.skdpmf")
    np.testing.assert_array_equal(loaded.decision_function(wide), scores)
    again = sk.load_model(tmp_path / "grown.skdpmf").with_items(GENRES[:1])
    assert again.n_features_in_ == N_ITEMS + N_GENRES + 1


def test_new_items_need_features_and_names():
    plain = clone(MODELS["means"]).fit(X)
    with pytest.raises(ValueError, match=r"item_features=None .* fit it with item_features"):
        plain.with_items(GENRES)
    model = clone(MODELS["means"]).set_params(item_features=GENRES).fit(X)
    with pytest.raises(ValueError, match="3 columns and must have those of fit, 4"):
        model.with_items(GENRES[:, :3])
    names = [f"film {j}" for j in range(N_ITEMS)]
    frame = pd.DataFrame(X[:50].toarray(), columns=names)
    named = clone(MODELS["means"]).set_params(item_features=GENRES).fit(frame)
    with pytest.raises(ValueError, match="index holds the names"):
        named.with_items(GENRES[:1])
    with pytest.raises(ValueError, match="'film 3', which the model knows already"):
        named.with_items(pd.DataFrame(GENRES[:1], index=["film 3"]))
    grown = named.with_items(pd.DataFrame(GENRES[:1], index=["a new film"]))
    assert grown.feature_names_in_[-1] == "a new film"


def test_a_device_folds_in_as_the_estimator_does():
    model = clone(MODELS["local"]).set_params(item_features=GENRES)
    fitted = model.fit(X)
    from skdpmf.local.messages import ReleasedModel

    damping = float(fitted.user_damping)
    popularity = np.exp(fitted._ranking_.lists.offsets)
    known = fitted.item_means_, damping, (1, 5), 4.0, (900, 100), True, popularity
    released = ReleasedModel("0" * 32, *known)
    without_factors = fitted._item_model_._replace(
        factors=np.ones((N_ITEMS, 1)), ridge=np.array([[damping]])
    )
    fitted._item_model_ = without_factors
    row = X[[3]]
    device = LocalDevice(row.indices, row.data, n_items=N_ITEMS, rating_range=(1, 5), epsilon=4.0)
    said = device.predict(released, np.arange(N_ITEMS), item_features=GENRES)
    np.testing.assert_allclose(said, fitted.predict(row)[0], atol=1e-9)
    best, _ = device.recommend(released, 5, item_features=GENRES)
    np.testing.assert_array_equal(best, fitted.recommend(row, 5)[0][0])
