"""The audit of DPCovarianceRecommender fails on every planted bug.

Among the bugs are those of the paper (McSherry & Mironov 2009): the range of the ratings taken for
that of the centred ones, and Cov and Wgt, which one user moves together, priced one by one.
"""

import dataclasses

import numpy as np
import pytest
from scipy import sparse
from skdpmf.solvers._releases import Releases

from skdpmf.data.bounding import bound_contributions
from skdpmf.estimators import dp_covariance as estimator
from skdpmf.privacy import noise
from skdpmf.privacy.noise import BlockRelease, NoiseSource
from skdpmf.solvers import item_averages, item_means, item_residuals
from skdpmf.solvers import item_covariance as solver
from tests.solvers import test_planted_bugs as planted
from tests.solvers.audit import N_ITEMS
from tests.solvers.covariance_audit import (
    COVARIANCE,
    SHARES,
    audit,
    divided_ratings,
    seed_that_covers,
    settings,
)

USER = settings("user", "gaussian", shares=SHARES)
USER_REPLACE = settings("user", "gaussian", "replace", shares=SHARES)
USER_LAPLACE = settings("user", "laplace", shares=SHARES)
RATING_SHARES = (0.0, 0.4, 0.6)
RATING = settings("rating", "gaussian", shares=RATING_SHARES)
RATING_REPLACE = settings("rating", "gaussian", "replace", shares=RATING_SHARES)
RATING_LAPLACE = settings("rating", "laplace", shares=RATING_SHARES)
SOME_USER, SOME_RATING = settings("user", "gaussian"), settings("rating", "gaussian")
NONE_USER = settings("user", "gaussian", "replace", epsilon=0.5)
# means at both ends of the range: centred ratings have twice the range of the ratings
DIVIDED = {"X": divided_ratings(N_ITEMS - 1), "user_damping": 1e-6}

BUGS = {}


def bug(*, match, covers=None, **params):
    """Register a planted bug, with the parameters that bring it out and what the audit says."""

    def register(plant):
        BUGS[plant.__name__] = plant, params, match, covers
        return plant

    return register


@pytest.mark.parametrize("name", BUGS)
def test_audit_notices(name, monkeypatch):
    plant, params, match, covers = BUGS[name]
    if covers:
        params = {"random_state": seed_that_covers(covers, **params), **params}
    plant(monkeypatch)
    with pytest.raises(AssertionError, match=match):
        audit(**params)


SHARED = (
    "fit_divides_the_noise_multiplier_by_root_two",
    "sampler_draws_less_than_it_declares",
    "one_noise_for_all_releases",
    "unrated_items_get_no_noise",
    "repeated_ratings_are_kept",
    "repeated_ratings_are_summed",
    "ratings_are_not_clipped_to_the_range",
)


@pytest.mark.parametrize("params", [USER, RATING], ids=["user", "rating"])
@pytest.mark.parametrize("name", SHARED)
def test_audit_notices_what_any_solver_may_do(name, params, monkeypatch):
    plant, _, match = planted.BUGS[name]
    plant(monkeypatch)
    with pytest.raises(AssertionError, match=match):
        audit(**params)


def patch(monkeypatch, where, name, change):
    """Plant: `change(real, *args, **kw)` in place of a function."""
    real = getattr(where, name)
    monkeypatch.setattr(where, name, lambda *args, **kw: change(real, *args, **kw))


# -- sensitivity of the covariance -----------------------------------------------------------------


@bug(match="distance .*covariance", **RATING, **DIVIDED)
def ratings_range_for_that_of_the_centred(monkeypatch):
    monkeypatch.setattr(solver, "centred_interval", lambda interval, means: interval)


@bug(match="distance .*covariance", **RATING_LAPLACE, **DIVIDED)
def ratings_range_for_that_of_the_centred_with_laplace_noise(monkeypatch):
    ratings_range_for_that_of_the_centred(monkeypatch)


@bug(match="distance .*covariance", **USER)
def covariance_priced_without_its_weights(monkeypatch):
    patch(
        monkeypatch,
        solver,
        "covariance_sensitivity",
        lambda real, *args, weight_scale, **kw: real(*args, **kw),
    )


@bug(match="sensitivity of .*covariance", **RATING)
def covariance_of_one_rating_priced_without_its_weights(monkeypatch):
    """No rating that the search knows moves it that far: seen by the declared sensitivity alone."""
    covariance_priced_without_its_weights(monkeypatch)


@bug(match="distance .*covariance", **USER)
def weights_of_the_triangle_with_packed_noise(monkeypatch):
    monkeypatch.setattr(solver.Settings, "entries", "upper")


@bug(match="distance .*covariance", **RATING)
def sensitivity_of_the_triangle_with_packed_noise(monkeypatch):
    monkeypatch.setattr(solver.Settings, "entries", "upper")


@bug(match="distance .*covariance", **USER)
def a_users_weights_are_those_of_a_rating(monkeypatch):
    patch(
        monkeypatch,
        solver,
        "covariance_weights",
        lambda real, c, **kw: real(c, **(kw | {"unit": "rating"})),
    )


@bug(match="distance .*covariance", **RATING)
def every_user_has_weight_one(monkeypatch):
    monkeypatch.setattr(
        solver, "covariance_weights", lambda c, **kw: (np.asarray(c) > 0).astype(float)
    )


@bug(match="distance .*covariance", **RATING)
def clamp_is_forgotten(monkeypatch):
    patch(
        monkeypatch,
        solver,
        "centre_rows",
        lambda real, *args, clamp, **kw: real(*args, clamp=np.inf, **kw),
    )


@bug(match="distance .*covariance", **USER)
def clamp_of_a_user_is_forgotten(monkeypatch):
    clamp_is_forgotten(monkeypatch)


@bug(match="distance .*covariance", **RATING, **DIVIDED)
def means_of_users_are_priced_as_fixed(monkeypatch):
    """Only the new row and column are priced, as if the common ratings stayed where they are."""
    patch(
        monkeypatch,
        solver,
        "covariance_sensitivity",
        lambda real, *args, damping, **kw: real(*args, damping=1e9, **kw),
    )


@bug(match="distance .*covariance", **RATING)
def sensitivity_of_a_single_item(monkeypatch):
    patch(
        monkeypatch,
        solver,
        "covariance_sensitivity",
        lambda real, *args, n_items, **kw: real(*args, n_items=1, **kw),
    )


@bug(match="distance .*covariance", **USER_REPLACE)
def replacing_a_user_priced_as_removing_one(monkeypatch):
    patch(
        monkeypatch,
        solver,
        "covariance_sensitivity",
        lambda real, *args, neighbors, **kw: real(*args, **kw),
    )


@bug(match="distance .*covariance", **RATING_REPLACE)
def replacing_a_rating_priced_as_removing_one(monkeypatch):
    replacing_a_user_priced_as_removing_one(monkeypatch)


@bug(match="distance", **RATING_LAPLACE)
def laplace_noise_for_l2_sensitivities(monkeypatch):
    monkeypatch.setattr(solver.Settings, "norm", "l2")


@bug(match="distance", **USER_LAPLACE)
def laplace_noise_for_l2_sensitivities_of_a_user(monkeypatch):
    monkeypatch.setattr(solver.Settings, "norm", "l2")


@bug(match="distance .*covariance", **USER_LAPLACE)
def only_the_covariance_is_priced_in_l2(monkeypatch):
    patch(
        monkeypatch,
        solver,
        "covariance_sensitivity",
        lambda real, *args, norm, **kw: real(*args, norm="l2", **kw),
    )


def with_trimmed_rows(monkeypatch, cap):
    def trimmed(real, self, *args):
        rest = self.R
        self.R = bound_contributions(rest, cap, rest.indices.astype(np.uint64))
        found = real(self, *args)
        self.R = rest
        return found

    patch(monkeypatch, solver._Fit, "released_covariance", trimmed)


@bug(match="distance .*covariance", **RATING)
def rows_are_trimmed(monkeypatch):
    with_trimmed_rows(monkeypatch, 8)


@bug(match="enters .*covariance", covers="some", **SOME_RATING)
def users_means_of_all_items_with_the_heads_lemma(monkeypatch):
    place = {}

    def released_covariance(real, self, means, popularity, head, rounds):
        place.update(R=self.R, means=means, head=head)
        return real(self, means, popularity, head, rounds)

    def centre_rows(real, R, means, **kw):
        everything = real(place["R"], place["means"], **kw)
        return everything[np.isin(place["R"].indices, place["head"])]

    patch(monkeypatch, solver._Fit, "released_covariance", released_covariance)
    patch(monkeypatch, solver, "centre_rows", centre_rows)


@bug(match="enters .*covariance", covers="some", **SOME_RATING)
def weights_from_all_ratings_of_a_user(monkeypatch):
    def weights(real, self, n_ratings):
        own = np.diff(self.R.indptr)
        return real(self, own if len(own) == len(n_ratings) else n_ratings)

    patch(monkeypatch, solver._Fit, "weights", weights)


@bug(match="clamp released means", **RATING, **DIVIDED)
def item_means_are_not_clamped(monkeypatch):
    numpy = type("", (), {name: getattr(np, name) for name in dir(np) if name[0] != "_"})

    def clip(x, low, high):
        return x if (low, high) == solver._RANGE else np.clip(x, low, high)

    numpy.clip = staticmethod(clip)
    monkeypatch.setattr(solver, "np", numpy)


# -- sensitivity of the averages -------------------------------------------------------------------


@bug(match="distance .*global effects", **USER)
def sums_of_a_user_priced_as_his_mean(monkeypatch):
    def global_mean(real, self):
        unit, self.unit = self.unit, "rating"
        found = real(self)
        self.unit = unit
        return found

    patch(monkeypatch, solver._Fit, "global_mean", global_mean)


@bug(match="distance .*item counts", **USER)
def a_user_priced_as_one_rating(monkeypatch):
    """Counts of ratings, each of weight 1."""
    patch(
        monkeypatch,
        item_residuals.ResidualAverages,
        "_sums",
        lambda real, self, terms, users: real(self, np.where(terms > 0, 1.0, terms), users),
    )


def without_clip(monkeypatch, radius):
    patch(
        monkeypatch,
        item_means,
        "shrink_to_ball",
        lambda real, norm, r: np.ones_like(norm) if r == radius else real(norm, r),
    )


@bug(match="distance .*item residuals", **USER)
def residuals_are_not_clipped(monkeypatch):
    without_clip(monkeypatch, item_residuals._CLIP)


@bug(match="distance .*item counts", **USER_LAPLACE)
def counts_are_weighted_in_l2_for_laplace_noise(monkeypatch):
    def release_counts(real, self):
        self.norm = "l2"
        real(self)
        self.norm = "l1"

    patch(monkeypatch, item_residuals.ResidualAverages, "_release_counts", release_counts)


@bug(match="distance .*item residuals", **USER_LAPLACE)
def clipped_in_l2_for_laplace_noise(monkeypatch):
    patch(
        monkeypatch,
        item_means,
        "row_norms",
        lambda real, row, values, n_rows, norm="l2": real(row, values, n_rows),
    )


@bug(match="distance .*item residuals", **USER_REPLACE)
def replaced_residuals_priced_as_removed(monkeypatch):
    patch(
        monkeypatch,
        item_residuals,
        "sum_sensitivity",
        lambda real, *args, neighbors, **kw: real(*args, **kw),
    )


@bug(match="distance .*item counts", **RATING_REPLACE)
def replaced_counts_priced_as_removed(monkeypatch):
    patch(
        monkeypatch,
        item_averages,
        "item_statistics_sensitivity",
        lambda real, *args, neighbors, **kw: real(*args, **kw),
    )


@bug(match="distance .*item covariance", covers="none", **NONE_USER)
def averages_in_the_covariances_slot_have_its_sensitivity(monkeypatch):
    def release(self, name, statistic, index=0, *, like="", n_slots=None):
        terms = self.terms(name, self.releases[name].sensitivity, n_slots)
        return self.noise.release(statistic, index=index, **terms)

    monkeypatch.setattr(Releases, "release", release)


# -- noise -----------------------------------------------------------------------------------------


def replace_terms(monkeypatch, change):
    """Plant: releases begin with changed terms."""
    patch(
        monkeypatch, NoiseSource, "blocks", lambda real, self, **kw: real(self, **(kw | change(kw)))
    )


@bug(match="multiplier of .*covariance", **RATING)
def covariance_with_half_its_noise(monkeypatch):
    def change(kw):
        half = 0.5 if kw["name"] == COVARIANCE else 1.0
        return {"noise_multiplier": half * kw["noise_multiplier"]}

    replace_terms(monkeypatch, change)


@bug(match="sensitivity of .*covariance|distance", **RATING_LAPLACE)
def covariance_with_half_its_sensitivity(monkeypatch):
    def change(kw):
        half = 0.5 if kw["name"] == COVARIANCE else 1.0
        return {"sensitivity": half * kw["sensitivity"]}

    replace_terms(monkeypatch, change)


@bug(match="layout of", **USER)
def triangle_with_noise_of_one_scale(monkeypatch):
    """Harmless, since it is more noise than needed, but not what the plan says."""
    replace_terms(monkeypatch, lambda kw: {"layout": "full"})


def change_units(monkeypatch, on, off):
    def release_grid(real, *args, **kw):
        grid = real(*args, **kw)
        if kw["layout"] == "full":
            return grid
        return grid._replace(units=(on * grid.units[0], off * grid.units[1]))

    patch(monkeypatch, noise, "release_grid", release_grid)


@bug(match="variance", **USER)
def too_little_noise_off_the_diagonal(monkeypatch):
    change_units(monkeypatch, 1.0, 0.5**0.5)


@bug(match="variance in the triangles", **USER)
def too_little_noise_on_the_diagonal(monkeypatch):
    change_units(monkeypatch, 0.25, 1.0)


def one_noise_for_both_matrices(monkeypatch):
    def init(real, self, draw, terms, recorder):
        size = terms.shape[-1]
        two = terms.name == COVARIANCE
        real(
            self,
            lambda exact, start, n: draw(exact, start % size if two else start, n),
            terms,
            recorder,
        )

    patch(monkeypatch, BlockRelease, "__init__", init)


bug(match="correlation .*within", **USER)(one_noise_for_both_matrices)


@bug(match="correlation .*within", **RATING_LAPLACE)
def one_laplace_noise_for_both_matrices(monkeypatch):
    one_noise_for_both_matrices(monkeypatch)


def weaker_plan(monkeypatch, change):
    def make_plan(real, *args):
        plan = real(*args)
        return dataclasses.replace(plan, releases=tuple(map(change, plan.releases)))

    patch(monkeypatch, solver, "make_plan", make_plan)


@bug(match="^delta|^epsilon", **RATING)
def plan_divides_the_noise_multipliers_by_root_two(monkeypatch):
    weaker_plan(
        monkeypatch, lambda r: dataclasses.replace(r, noise_multiplier=r.noise_multiplier / 2**0.5)
    )


@bug(match="^epsilon", **RATING_LAPLACE)
def every_release_spends_all_of_epsilon(monkeypatch):
    weaker_plan(monkeypatch, lambda r: dataclasses.replace(r, epsilon=20.0))


@bug(match="are not the plan's", **RATING)
def weights_are_released_once_more(monkeypatch):
    def noisy_sums(real, self, R, *args):
        self.noise.release(np.diff(R.indptr), **self.planned.terms("weights", 1.0))
        return real(self, R, *args)

    def terms(real, self, name, *args):
        found = real(self, COVARIANCE if name == "weights" else name, *args)
        return found | {"name": name}

    patch(monkeypatch, Releases, "terms", terms)
    patch(monkeypatch, solver._Fit, "noisy_sums", noisy_sums)


# -- what is read off the data ---------------------------------------------------------------------


def exact_means(R):
    counts = np.maximum(np.bincount(R.indices, minlength=R.shape[1]), 1)
    return np.bincount(R.indices, weights=R.data, minlength=R.shape[1]) / counts


@bug(match="others move|distance", **RATING)
def covariance_around_the_exact_means(monkeypatch):
    patch(
        monkeypatch, solver, "centre_rows", lambda real, R, b, **kw: real(R, exact_means(R), **kw)
    )


@bug(match="others move|distance|model with", **USER)
def means_are_recentred_at_the_exact_mean(monkeypatch):
    def global_mean(real, self):
        real(self)
        return float(self.R.data.mean()) if self.R.nnz else 0.0

    patch(monkeypatch, solver._Fit, "global_mean", global_mean)


@bug(match="others move|distance|model with", **USER)
def means_are_moved_by_exact_counts(monkeypatch):
    def private_averages(real, self):
        means, *rest = real(self)
        exact = np.bincount(self.R.indices, minlength=len(means))
        return np.clip(item_averages.recentred(means, exact, 0.0), *solver._RANGE), *rest

    patch(monkeypatch, solver._Fit, "private_averages", private_averages)


@bug(match="replay holds", **RATING)
def head_from_exact_counts(monkeypatch):
    def head(self, popularity):
        counts = np.bincount(self.R.indices, minlength=self.R.shape[1])
        return np.flatnonzero(counts > 0)

    monkeypatch.setattr(solver._Fit, "head", head)


@bug(match="others move|distance|model with", **USER)
def head_of_the_most_rated_items(monkeypatch):
    def head(self, popularity):
        counts = np.bincount(self.R.indices, minlength=self.R.shape[1])
        return np.sort(np.argsort(-counts, kind="stable")[:8])

    monkeypatch.setattr(solver._Fit, "head", head)


@bug(match="others move|distance|model with", **USER)
def residuals_against_exact_means(monkeypatch):
    def release_residuals(real, self, name, index):
        R = self.R
        b = exact_means(R)
        self.R = sparse.csr_array((R.data - b[R.indices], R.indices, R.indptr), shape=R.shape)
        real(self, name, index)
        self.R = R

    patch(monkeypatch, item_residuals.ResidualAverages, "_release_residuals", release_residuals)


@bug(match="model with", **RATING)
def popularity_of_the_factors_is_exact(monkeypatch):
    def private_averages(real, self):
        means, popularity, head = real(self)
        mass = np.bincount(self.R.indices, minlength=len(means)) + 1.0
        return means, popularity._replace(mass=mass), head

    patch(monkeypatch, solver._Fit, "private_averages", private_averages)


@bug(match="model with", **RATING)
def covariance_is_divided_by_the_exact_weights(monkeypatch):
    def noisy_sums(real, self, R, *args):
        cov, wgt = real(self, R, *args)
        return cov, wgt + 1e-9 * R.nnz

    patch(monkeypatch, solver._Fit, "noisy_sums", noisy_sums)


@bug(match="others move", **RATING)
def sums_on_a_grid_that_is_too_fine(monkeypatch):
    """They round, and so depend on one another."""
    patch(monkeypatch, solver, "_sum_grid", lambda real, s, n_rows: real(s, 1))


def leave(monkeypatch, name, value):
    """Let fit leave `value(R)` on the model."""

    def fit(real, self, R, y):
        real(self, R, y)
        setattr(self, name, value(self, R))

    patch_method(monkeypatch, fit)


def patch_method(monkeypatch, fit):
    real = estimator.DPCovarianceRecommender._fit
    monkeypatch.setattr(
        estimator.DPCovarianceRecommender, "_fit", lambda self, R, y: fit(real, self, R, y)
    )


@bug(match="model with", **RATING)
def model_keeps_the_coordinates_of_its_users(monkeypatch):
    leave(monkeypatch, "users_", lambda self, R: R @ self.components_.T)


@bug(match="model with", **USER)
def model_keeps_the_number_of_ratings(monkeypatch):
    leave(monkeypatch, "n_ratings_", lambda self, R: R.nnz)


@bug(match="model with", **USER)
def unrated_items_have_no_factors(monkeypatch):
    def fit(real, self, R, y):
        real(self, R, y)
        self.item_means_[np.bincount(R.indices, minlength=R.shape[1]) == 0] = 3.0

    patch_method(monkeypatch, fit)
