"""The audit passes on what is released, and fails on every planted bug.

Among the bugs are the leaks of the published code (Krichene et al. 2023): ratings that nobody
clips, a global mean priced as if a user gave it one rating, head items chosen by exact counts,
a second release of counts that is not accounted, users regularised by an exact global
statistic, the largest rating read off the data, a Gram matrix without noise, repeated pairs, items
that exist only because somebody rated them.
"""

import dataclasses

import numpy as np
import pytest
from scipy import sparse
from skdpmf.solvers._releases import PlannedReleases

from skdpmf import PrivacyBudget
from skdpmf.estimators import _base
from skdpmf.estimators import adaptive_weight_als as estimator
from skdpmf.privacy import noise
from skdpmf.privacy.noise import NoiseSource
from skdpmf.solvers import adaptive_weight_als as solver
from skdpmf.solvers import item_means
from tests.solvers.audit import (
    audit,
    base_ratings,
    fitted_state,
    left_out_seed,
    recorded_fit,
    replace_release,
)

REPLACE = PrivacyBudget(20.0, 1e-5, neighbors="replace")
SETTINGS = {
    "adaptive": {},
    "adaptive, replace": {"budget": REPLACE},
    "adaptive, trimmed": {"max_ratings_per_user": 6},
    "weights of one rating each": {"weight_exponent": 0.0},
    "strong weights": {"weight_exponent": 1.0},
    "without item means": {"item_means": False},
    "without item means, replace": {"item_means": False, "budget": REPLACE},
    "tail": {"weighting": "tail", "max_ratings_per_user": 5},
    "tail, without item means": {
        "weighting": "tail",
        "max_ratings_per_user": 5,
        "item_means": False,
    },
    "uniform": {"weighting": "uniform", "max_ratings_per_user": 5},
    "uniform, replace": {
        "weighting": "uniform",
        "max_ratings_per_user": 5,
        "budget": PrivacyBudget(40.0, 1e-5, neighbors="replace"),
    },
}


@pytest.mark.parametrize("name", SETTINGS)
def test_audit_passes(name):
    audit(**SETTINGS[name])


@pytest.mark.parametrize("neighbors", ["add-remove", "replace"])
@pytest.mark.parametrize(
    ("epsilon", "max_iter", "all_rounds"), [(0.1, 3, True), (8.0, 10, False)], ids=["all", "some"]
)
def test_audit_passes_where_rounds_release_the_means(epsilon, max_iter, all_rounds, neighbors):
    params = {"budget": PrivacyBudget(epsilon, 1e-5, neighbors=neighbors), "max_iter": max_iter}
    seed = left_out_seed(all_rounds=all_rounds, **params)
    audit(random_state=seed, **params)


BUGS = {}


def bug(*, match, **params):
    """Register a planted bug, with the parameters that bring it out and what the audit says."""

    def register(plant):
        BUGS[plant.__name__] = plant, params, match
        return plant

    return register


@pytest.mark.parametrize("name", BUGS)
def test_audit_notices(name, monkeypatch):
    plant, params, match = BUGS[name]
    plant(monkeypatch)
    with pytest.raises(AssertionError, match=match):
        audit(**params)


def replace_fit_data(monkeypatch, change):
    """Solve for `change(R)` in place of the ratings R."""
    real = solver.fit
    monkeypatch.setattr(solver, "fit", lambda R, *args, **kw: real(change(R), *args, **kw))


def with_data(R, data):
    return sparse.csr_array((data, R.indices, R.indptr), shape=R.shape)


# -- noise ---------------------------------------------------------------------------------------


@bug(match="multiplier of")
def fit_divides_the_noise_multiplier_by_root_two(monkeypatch):
    def change(release, statistic, kw):
        return release(statistic, **{**kw, "noise_multiplier": kw["noise_multiplier"] / 2**0.5})

    replace_release(monkeypatch, change)


@bug(match="delta")
def plan_divides_the_noise_multipliers_by_root_two(monkeypatch):
    real = solver.make_plan

    def make_plan(*args):
        plan = real(*args)
        weaker = [
            dataclasses.replace(r, noise_multiplier=r.noise_multiplier / 2**0.5)
            for r in plan.releases
        ]
        return dataclasses.replace(plan, releases=tuple(weaker))

    monkeypatch.setattr(solver, "make_plan", make_plan)


@bug(match="variance")
def sampler_draws_less_than_it_declares(monkeypatch):
    real = noise.add_grid_noise

    def add_grid_noise(flat, *args):
        real(flat, *args)
        start, stop, out = args[-3:]
        out[start:stop] = flat[start:stop] + (out[start:stop] - flat[start:stop]) / 2**0.5

    monkeypatch.setattr(noise, "add_grid_noise", add_grid_noise)


@bug(match="multiplier of")
def item_counts_are_exact(monkeypatch):
    def change(release, statistic, kw):
        z = 0.0 if kw["name"] == solver.ITEM_STATISTICS else kw["noise_multiplier"]
        return release(statistic, **{**kw, "noise_multiplier": z})

    replace_release(monkeypatch, change)


@bug(match="multiplier of")
def gram_matrices_without_noise_at_no_cost(monkeypatch):
    def change(release, statistic, kw):
        z = 0.0 if kw["name"] == solver.GRAM else kw["noise_multiplier"]
        return release(statistic, **{**kw, "noise_multiplier": z})

    replace_release(monkeypatch, change)


@bug(match="correlation")
def one_noise_for_all_rounds(monkeypatch):
    real = noise.stream_key
    monkeypatch.setattr(
        noise, "stream_key", lambda key, purpose, name, index: real(key, purpose, name, 0)
    )


@bug(match="correlation")
def one_noise_for_all_releases(monkeypatch):
    real = noise.stream_key
    monkeypatch.setattr(
        noise, "stream_key", lambda key, purpose, name, index: real(key, purpose, "", index)
    )


@bug(match="without noise")
def unrated_items_get_no_noise(monkeypatch):
    real = noise.add_grid_noise

    def add_grid_noise(flat, *args):
        real(flat, *args)
        args[-1][flat == 0.0] = 0.0

    monkeypatch.setattr(noise, "add_grid_noise", add_grid_noise)


@bug(match="variance .*right-hand sides")
def right_hand_sides_get_less_noise_than_declared(monkeypatch):
    def change(release, statistic, kw):
        output = release(statistic, **kw)
        if kw["name"] == solver.RHS:
            output = statistic + (output - statistic) / 2.0
            records = noise.active_recorder().recording
            records[-1] = dataclasses.replace(records[-1], output=output)
        return output

    replace_release(monkeypatch, change)


# -- sensitivity ---------------------------------------------------------------------------------


@bug(match="distance", budget=REPLACE)
def replacing_a_user_priced_as_removing_one(monkeypatch):
    for name in ("gram_sensitivity", "sum_sensitivity", "item_mean_sensitivity"):
        real = getattr(solver, name)
        monkeypatch.setattr(
            solver, name, lambda *args, real=real, neighbors, **kw: real(*args, **kw)
        )


@bug(match="distance .*item counts and means")
def a_user_priced_as_one_rating(monkeypatch):
    """Plain counts and sums: every rating counts 1, the noise is for one of them."""

    def statistics(indptr, indices, y, n_items, *, damping, clip, grid, influence):
        n = np.diff(indptr)
        row = np.repeat(np.arange(len(n)), n)
        mean = np.bincount(row, weights=y, minlength=len(n)) / (n + damping)
        out = np.zeros((2, n_items + 1))
        terms = (
            np.full(len(y), item_means.COUNT_WEIGHT),
            np.clip((y - mean[row]) / item_means.CLIP, -1, 1),
        )
        for half, term in zip(out, terms, strict=True):
            half[:-1] = np.bincount(
                indices, weights=item_means.truncate(term, grid), minlength=n_items
            )
            half[-1] = item_means.truncate(item_means.USER_WEIGHT, grid) * np.sum(n > 0)
        return out

    monkeypatch.setattr(item_means, "item_mean_statistics", statistics)


@bug(match="distance .*(Gram|right)")
def weights_of_a_user_are_not_normalised(monkeypatch):
    real = solver._Fit.weigh

    def weigh(self, means):
        weighted = real(self, means)
        raw = (means.mass / means.mass.max()) ** -self.settings.weight_exponent
        return weighted._replace(weight=raw[weighted.R.indices])

    monkeypatch.setattr(solver._Fit, "weigh", weigh)


@bug(match="distance", weighting="uniform", max_ratings_per_user=5)
def sampled_ratings_have_weight_one(monkeypatch):
    real = solver._Fit.weigh

    def weigh(self, means):
        weighted = real(self, means)
        return weighted._replace(weight=np.ones_like(weighted.weight))

    monkeypatch.setattr(solver._Fit, "weigh", weigh)


@bug(match="distance", weighting="tail", max_ratings_per_user=5)
def more_ratings_a_user_than_the_cap(monkeypatch):
    real = solver.bound_contributions
    monkeypatch.setattr(
        solver, "bound_contributions", lambda R, tau, priorities: real(R, 2 * tau, priorities)
    )


CLIPS = {
    item_means.CLIP: "item counts and means",
    solver.CLIP: "second moments",
    1.0: "Gram matrices",
    solver.CLIP * np.hypot(1.0, solver.OFFSET): "right-hand sides",
}


@pytest.mark.parametrize("radius", CLIPS, ids=CLIPS.values())
def test_audit_notices_that_clipping_is_removed(radius, monkeypatch):
    real, calls = item_means.shrink_to_ball, []

    def shrink_to_ball(norm, r):
        calls.append(r)
        return np.ones_like(norm) if np.isclose(r, radius) else real(norm, r)

    monkeypatch.setattr(item_means, "shrink_to_ball", shrink_to_ball)
    with pytest.raises(AssertionError, match=f"distance .*{CLIPS[radius]}"):
        audit()
    assert np.isclose(calls, radius).any()


@bug(match="repeated ratings|distance")
def repeated_ratings_are_kept(monkeypatch):
    def keep(X, rating_range=None):
        X = sparse.coo_array(X) if sparse.issparse(X) else _coo(X)
        order = np.lexsort((X.col, X.row))
        indptr = np.concatenate(([0], np.cumsum(np.bincount(X.row, minlength=X.shape[0]))))
        data = np.clip(X.data[order], *rating_range)
        return sparse.csr_array((data, X.col[order], indptr), shape=X.shape)

    monkeypatch.setattr(_base, "as_rating_matrix", keep)


@bug(match="repeated ratings")
def repeated_ratings_are_summed(monkeypatch):
    real = _base.as_rating_matrix

    def summed(X, **kw):
        return real(X.tocsr() if sparse.issparse(X) else X, **kw)

    monkeypatch.setattr(_base, "as_rating_matrix", summed)


def _coo(X):
    rows, columns = np.nonzero(~np.isnan(X))
    return sparse.coo_array((X[rows, columns], (rows, columns)), shape=X.shape)


# -- what is read off the data -------------------------------------------------------------------


@bug(match="ratings outside of the range")
def ratings_are_not_clipped_to_the_range(monkeypatch):
    real = _base.as_rating_matrix
    monkeypatch.setattr(_base, "as_rating_matrix", lambda X, rating_range=None: real(X))


@bug(match="others move|distance")
def ratings_are_centred_by_their_exact_global_mean(monkeypatch):
    replace_fit_data(monkeypatch, lambda R: with_data(R, R.data - (R.data.mean() if R.nnz else 0)))


@bug(match="others move|distance")
def largest_rating_is_the_scale(monkeypatch):
    def scaled(R):
        return with_data(R, R.data / np.abs(R.data).max(initial=1e-9))

    replace_fit_data(monkeypatch, scaled)


def exact_mass(self):
    """Exact item popularity."""
    return np.maximum(self.planned.statistic[0, :-1] / item_means.COUNT_WEIGHT, 0.5)


@bug(match="others move|distance|replay holds")
def weights_from_exact_counts(monkeypatch):
    real = solver._Fit.weigh
    monkeypatch.setattr(
        solver._Fit,
        "weigh",
        lambda self, means: real(self, dataclasses.replace(means, mass=exact_mass(self))),
    )


@bug(match="others move|distance|replay holds", weighting="tail", max_ratings_per_user=3)
def tail_items_from_exact_counts(monkeypatch):
    real = solver._Fit._subset

    def subset(self, priorities=None):
        return real(self, None if priorities is None else exact_mass(self)[self.R.indices])

    monkeypatch.setattr(solver._Fit, "_subset", subset)


@bug(match="others move|distance|replay holds")
def head_items_from_exact_counts(monkeypatch):
    """The published `exact_split`."""
    monkeypatch.setattr(solver, "HEAD", 8)
    real = solver._Fit.start_factors

    def start_factors(self, means, weighted, rank):
        return real(self, means, weighted._replace(mass=exact_mass(self)), rank)

    monkeypatch.setattr(solver._Fit, "start_factors", start_factors)


@bug(match="are not the plan's", weighting="tail", max_ratings_per_user=5)
def counts_released_twice_and_accounted_once(monkeypatch):
    real = solver._Fit.weigh

    def weigh(self, means):
        weighted = real(self, means)
        again = self.release(solver.ITEM_STATISTICS, self.planned.statistic, 1)
        return weighted._replace(mass=np.maximum(again[0, :-1], 0.5))

    monkeypatch.setattr(solver._Fit, "weigh", weigh)


@bug(match="others move|distance|replay holds")
def exact_number_of_users_normalises_the_means(monkeypatch):
    real = PlannedReleases.release_item_means

    def release_item_means(self, *names, index=0):
        n_users = self.statistic[0, -1] / item_means.USER_WEIGHT
        rows, self.n_rows = self.n_rows, max(round(n_users), 1)
        means = real(self, *names, index=index)
        self.n_rows = rows
        # the published code divides by the count itself
        return dataclasses.replace(means, mean=means.mean * means.mass.sum() / self.n_rows)

    monkeypatch.setattr(PlannedReleases, "release_item_means", release_item_means)


@bug(match="others move|distance|replay holds")
def users_regularised_by_the_exact_mean_activity(monkeypatch):
    real = solver._Fit.user_half

    def user_half(self, theta, ridge):
        return real(self, theta, ridge * (1.0 + self.R.nnz / self.n_rows))

    monkeypatch.setattr(solver._Fit, "user_half", user_half)


@bug(match="others move|distance|replay holds", max_ratings_per_user=4)
def users_share_one_random_stream(monkeypatch):
    """Each user's subset moves when another user has more ratings."""

    def priorities(self, purpose, indptr, indices, **_):
        return np.random.default_rng(0).permutation(len(indices)).astype(np.uint64)

    monkeypatch.setattr(NoiseSource, "slot_priorities", priorities)


@bug(match="are not the plan's|releases with")
def rounds_stop_when_the_training_error_does(monkeypatch):
    real = solver.fit

    def fit(R, *args, rounds, **kw):
        few = R.nnz and np.mean(R.data**2) > 0.1
        return real(R, *args, rounds=range(2) if few else rounds, **kw)

    monkeypatch.setattr(solver, "fit", fit)


def leave(monkeypatch, name, value):
    """Let fit leave `value(R)` on the model."""
    real = estimator.AdaptiveWeightALS._fit

    def fit(self, R, y):
        real(self, R, y)
        setattr(self, name, value(self, R))

    monkeypatch.setattr(estimator.AdaptiveWeightALS, "_fit", fit)


@bug(match="model with")
def model_keeps_the_embeddings_of_its_users(monkeypatch):
    leave(monkeypatch, "user_factors_", lambda self, R: R @ self.components_.T)


@bug(match="model with")
def model_keeps_the_training_error(monkeypatch):
    leave(monkeypatch, "training_error_", lambda self, R: float(np.sum(R.data**2)))


@bug(match="model with")
def model_keeps_the_number_of_ratings(monkeypatch):
    leave(monkeypatch, "n_ratings_", lambda self, R: R.nnz)


@bug(match="model with")
def catalogue_is_what_somebody_rated(monkeypatch):
    leave(monkeypatch, "items_", lambda self, R: np.unique(R.indices))


@bug(match="model with")
def catalogue_mask_on_the_released_factors(monkeypatch):
    real = estimator.AdaptiveWeightALS._fit

    def fit(self, R, y):
        real(self, R, y)
        self.components_[:, np.bincount(R.indices, minlength=R.shape[1]) == 0] = 0.0

    monkeypatch.setattr(estimator.AdaptiveWeightALS, "_fit", fit)


def test_model_is_a_function_of_the_releases_alone():
    """Replayed releases give the same model bit by bit, whatever the data are."""
    X = base_ratings()
    model, records = recorded_fit(X)
    other, _ = recorded_fit(np.where(np.isnan(X), 1.0, np.nan), records)
    assert fitted_state(other) == fitted_state(model)
    fresh, _ = recorded_fit(X, random_state=1)
    assert fitted_state(fresh) != fitted_state(model)
