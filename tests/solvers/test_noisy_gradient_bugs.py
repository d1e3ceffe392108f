"""The audit passes on every step of DPMFSampler, and fails on every planted bug.

A search for the worst user shows besides how much of the declared sensitivity is reached.
"""

import dataclasses

import numpy as np
import pytest
from skdpmf.solvers._releases import PlannedReleases

from skdpmf import DPMFSampler, PrivacyBudget
from skdpmf.estimators import dpmf_sampler as estimator
from skdpmf.privacy import noise
from skdpmf.privacy.accounting import gaussian_mu
from skdpmf.solvers import item_means
from skdpmf.solvers import noisy_gradient as solver
from tests.solvers import test_planted_bugs as planted
from tests.solvers.audit import (
    BUDGET,
    ITEM_STATISTICS,
    N_ITEMS,
    N_USERS,
    ROUNDING,
    SLOT,
    alone,
    audit,
    base_ratings,
    fitted_state,
    is_means,
    left_out_seed,
    recorded_fit,
    replace_release,
)
from tests.solvers.test_sensitivity import Replay

EPSILON = BUDGET.epsilon
REPLACE = PrivacyBudget(EPSILON, 1e-5, neighbors="replace")


def levels(own, budget=BUDGET):
    """Levels with the given one in the audited slot, and the share that it grants."""
    values = np.random.default_rng(5).choice([0.0, 5.0, EPSILON], N_USERS, p=[0.1, 0.2, 0.7])
    values[SLOT] = own
    plan = DPMFSampler(budget, n_components=3, max_iter=3).plan(N_ITEMS)
    slack = {"n_values": plan.n_values, "eta": plan.eta, "tau": plan.tau}
    share = 0.0
    if own > 1e-9:  # below, the slack of the sampler alone is more
        share = gaussian_mu(own, 1e-5, **slack) / gaussian_mu(EPSILON, 1e-5, **slack)
    return {"levels": values, "share": share, "budget": budget}


SETTINGS = {
    "add-remove": {},
    "replace": {"budget": REPLACE},
    "trimmed": {"max_ratings_per_user": 6},
    "trimmed, replace": {"max_ratings_per_user": 3, "budget": REPLACE},
    "weak ridge": {"alpha": 1e-6, "user_damping": 1e-3},
    "more factors": {"n_components": 8, "budget": PrivacyBudget(40.0, 1e-5)},
    "levels": levels(EPSILON),
    "level 5": levels(5.0),
    "level 5, replace": levels(5.0, REPLACE),
    "level 0.1": levels(0.1),
    "level 0": levels(0.0),
    "level 0, replace": levels(0.0, REPLACE),
    "level of no influence": levels(1e-12),
}


def audit_steps(**params):
    audit(estimator=DPMFSampler, **params)


@pytest.mark.parametrize("name", SETTINGS)
def test_audit_passes(name):
    audit_steps(**SETTINGS[name])


@pytest.mark.parametrize("neighbors", ["add-remove", "replace"])
@pytest.mark.parametrize(
    ("epsilon", "max_iter", "all_rounds"), [(0.1, 3, True), (6.0, 12, False)], ids=["all", "some"]
)
def test_audit_passes_where_steps_release_the_means(epsilon, max_iter, all_rounds, neighbors):
    params = {"budget": PrivacyBudget(epsilon, 1e-5, neighbors=neighbors), "max_iter": max_iter}
    seed = left_out_seed(estimator=DPMFSampler, all_rounds=all_rounds, **params)
    audit_steps(random_state=seed, **params)


def test_settings_do_what_they_are_for():
    """The usual audit is of gradients; without a cap users have more ratings than with one."""
    _, records = recorded_fit(base_ratings(), estimator=DPMFSampler)
    assert [is_means(record) for record in records] == [True] + 6 * [False]
    assert np.sum(~np.isnan(base_ratings()), axis=1).max() > 6


# -- how much of the sensitivity is used -----------------------------------------------------------


class StepReplay(Replay):
    """Contributions of a single user to all releases of one recorded fit."""

    def __init__(self, **params):
        self.params = {"estimator": DPMFSampler, **params}
        self.model, self.records = recorded_fit(base_ratings(), **self.params)

    def __call__(self, row):
        return recorded_fit(alone(row), self.records, **self.params)[1]


CASES = {
    "add-remove": {},
    "trimmed": {"max_ratings_per_user": 6},
    "level 5": {"levels": levels(5.0)["levels"]},
}


@pytest.mark.parametrize("case", CASES)
def test_search_reaches_the_sensitivity_of_a_step_and_not_more(case):
    ratio = StepReplay(**CASES[case]).search(solver.GRADIENTS, n_steps=20)
    share = levels(5.0)["share"] if case == "level 5" else 1.0
    assert 0.95 * share <= ratio <= share * ROUNDING, ratio


def test_search_reaches_half_of_the_moments_sensitivity():
    """A user whose gradient is not clipped has small residuals, and hardly the longest factors."""
    ratio = StepReplay().search(solver.MOMENTS)
    assert 0.3 <= ratio <= ROUNDING, ratio


def test_search_over_pairs_of_users():
    """Residuals outside of the span of V are free: the same u, the opposite e."""
    replay = StepReplay(budget=REPLACE)
    ratio = replay.search(solver.GRADIENTS, pairs=True, n_steps=150)
    assert 0.9 <= ratio <= ROUNDING, ratio


# -- bugs that any solver may have -----------------------------------------------------------------

SHARED = (
    "fit_divides_the_noise_multiplier_by_root_two",
    "sampler_draws_less_than_it_declares",
    "item_counts_are_exact",
    "one_noise_for_all_rounds",
    "unrated_items_get_no_noise",
    "a_user_priced_as_one_rating",
    "repeated_ratings_are_kept",
    "repeated_ratings_are_summed",
    "ratings_are_not_clipped_to_the_range",
    "users_share_one_random_stream",
    "exact_number_of_users_normalises_the_means",
)


@pytest.mark.parametrize("name", SHARED)
def test_audit_notices_what_any_solver_may_do(name, monkeypatch):
    plant, params, match = planted.BUGS[name]
    if name == "sampler_draws_less_than_it_declares":
        params = {"max_iter": 8}  # values enough for the law of the noise
    plant(monkeypatch)
    with pytest.raises(AssertionError, match=match):
        audit_steps(**params)


# -- bugs of this solver ---------------------------------------------------------------------------

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
        audit_steps(**params)


def replace_gradient_clip(monkeypatch, change):
    """Users' matrices, of `norm`, are multiplied by `change(fit, norm, radius)`."""
    shrink, user_sums, running = item_means.shrink_to_ball, solver._Fit.user_sums, []

    def shrink_to_ball(norm, radius):
        return change(running[-1], norm, radius) if np.ndim(radius) else shrink(norm, radius)

    def noted(self, *args):
        running.append(self)
        return user_sums(self, *args)

    monkeypatch.setattr(item_means, "shrink_to_ball", shrink_to_ball)
    monkeypatch.setattr(solver._Fit, "user_sums", noted)


@bug(match="distance .*gradients")
def gradients_are_not_clipped(monkeypatch):
    replace_gradient_clip(monkeypatch, lambda fit, norm, radius: np.ones_like(norm))


@bug(match="distance .*gradients")
def every_rating_is_clipped_and_no_user(monkeypatch):
    shrink = item_means.shrink_to_ball

    def change(fit, norm, radius):
        # all ratings of a user with the same share: each of norm C, sqrt(n) C together
        return shrink(norm, radius * np.sqrt(np.maximum(np.diff(fit.R.indptr), 1)))

    replace_gradient_clip(monkeypatch, change)


@bug(match="distance .*gradients", **levels(5.0))
def gradients_forget_the_level(monkeypatch):
    shrink = item_means.shrink_to_ball
    replace_gradient_clip(
        monkeypatch, lambda fit, norm, radius: shrink(norm, np.full_like(radius, solver.CLIP))
    )


@bug(match="distance .*item counts and means", **levels(5.0))
def item_statistics_forget_the_level(monkeypatch):
    real = item_means.item_mean_statistics
    monkeypatch.setattr(
        item_means, "item_mean_statistics", lambda *args, influence, **kw: real(*args, **kw)
    )


@bug(match="distance", **levels(5.0))
def influence_is_the_share_of_epsilon(monkeypatch):
    """mu(e) is not proportional to e: small levels would get more privacy, large ones less."""

    def personal_influence(values, plan, n_rows):
        return np.sqrt(np.minimum(values / plan.budget.epsilon, 1.0))

    monkeypatch.setattr(solver, "personal_influence", personal_influence)


@bug(match="distance|empty row", **levels(0.0))
def users_of_level_0_take_part(monkeypatch):
    monkeypatch.setattr(estimator, "without_rows", lambda R, rows: R)

    def personal_influence(values, plan, n_rows):
        return np.maximum(values / plan.budget.epsilon, 1e-6)

    monkeypatch.setattr(solver, "personal_influence", personal_influence)


@bug(match="of a user, of at most", max_ratings_per_user=6)
def trimmed_ratings_enter(monkeypatch):
    monkeypatch.setattr(solver, "random_subset", lambda R, cap, noise: R)


@bug(match="distance .*gradients", budget=REPLACE)
def replacing_a_user_priced_as_removing_one(monkeypatch):
    real = solver.sum_sensitivity
    monkeypatch.setattr(
        solver, "sum_sensitivity", lambda *args, neighbors, unit: real(*args, unit=unit)
    )


@bug(match="distance .*item counts and means", budget=REPLACE)
def replacing_a_users_item_statistics_priced_as_removing_them(monkeypatch):
    real = solver.item_mean_sensitivity
    monkeypatch.setattr(
        solver, "item_mean_sensitivity", lambda *args, neighbors, unit: real(*args, unit=unit)
    )


def one_step_plan(monkeypatch, change):
    real = solver.make_plan

    def make_plan(budget, settings, n_items):
        plan = real(budget, dataclasses.replace(settings, max_iter=1), n_items)
        return change(plan, settings.max_iter)

    monkeypatch.setattr(solver, "make_plan", make_plan)


@bug(match="are not the plan's")
def all_steps_planned_as_one(monkeypatch):
    one_step_plan(monkeypatch, lambda plan, n: plan)


@bug(match="delta")
def all_steps_priced_as_one(monkeypatch):
    def change(plan, n):
        means, *steps = plan.releases
        releases = means, *(dataclasses.replace(release, count=n) for release in steps)
        return dataclasses.replace(plan, releases=releases)

    one_step_plan(monkeypatch, change)


@bug(match="without noise|are not the plan's")
def noise_on_rated_items_only(monkeypatch):
    def change(release, statistic, kw):
        output = release(statistic, **kw)
        if kw["name"] == solver.GRADIENTS:
            output = np.where(statistic.any(axis=1, keepdims=True), output, statistic)
            records = noise.active_recorder().recording
            records[-1] = dataclasses.replace(records[-1], output=output)
        return output

    replace_release(monkeypatch, change)


@bug(match="multiplier of")
def gradients_without_noise(monkeypatch):
    def change(release, statistic, kw):
        z = 0.0 if kw["name"] == solver.GRADIENTS else kw["noise_multiplier"]
        return release(statistic, **{**kw, "noise_multiplier": z})

    replace_release(monkeypatch, change)


@bug(match="scale of|sensitivity of")
def gradients_noised_for_half_the_clip(monkeypatch):
    def change(release, statistic, kw):
        half = 0.5 if kw["name"] == solver.GRADIENTS else 1.0
        return release(statistic, **{**kw, "sensitivity": half * kw["sensitivity"]})

    replace_release(monkeypatch, change)


@bug(match="others move|distance")
def weights_from_exact_counts(monkeypatch):
    real = solver.popularity_weights

    def popularity_weights(R, mass, exponent):
        return real(R, np.maximum(np.bincount(R.indices, minlength=R.shape[1]), 1.0), exponent)

    monkeypatch.setattr(solver, "popularity_weights", popularity_weights)


def exact_means(self):
    return item_means.estimate_item_means(self.statistic, 0.0, self.n_rows)


@bug(match="others move|distance|replay holds|model with")
def item_means_are_exact(monkeypatch):
    real = PlannedReleases.release_item_means

    def release_item_means(self, *names, index=0):
        means = real(self, *names, index=index)
        return dataclasses.replace(means, mean=exact_means(self).mean)

    monkeypatch.setattr(PlannedReleases, "release_item_means", release_item_means)


@bug(match="replay holds|others move|distance|are not the plan's|model with")
def rank_from_the_exact_counts(monkeypatch):
    real = solver._Fit.choose_rank

    def choose_rank(self, means):
        real(self, means)
        return (1, 0) if self.R.nnz % 2 else (2, 0)

    monkeypatch.setattr(solver._Fit, "choose_rank", choose_rank)


@bug(match="others move|distance|model with")
def steps_are_preconditioned_by_exact_counts(monkeypatch):
    real = solver._Fit.descend

    def descend(self, means, *args):
        mass = np.maximum(exact_means(self.planned).mass, 0.5)
        return real(self, dataclasses.replace(means, mass=mass), *args)

    monkeypatch.setattr(solver._Fit, "descend", descend)


@bug(match="others move|distance|model with")
def steps_are_preconditioned_by_exact_moments(monkeypatch):
    release = PlannedReleases.release

    def exact(self, name, statistic, *args, **kw):
        output = release(self, name, statistic, *args, **kw)
        return statistic if name == solver.MOMENTS and not kw else output

    monkeypatch.setattr(PlannedReleases, "release", exact)


@bug(match="distance .*second moments", **levels(5.0))
def moments_forget_the_level(monkeypatch):
    real = solver.accumulate_outer

    def accumulate_outer(phi, influence, *args):
        real(phi, (influence > 0.0).astype(float), *args)

    monkeypatch.setattr(solver, "accumulate_outer", accumulate_outer)


@bug(match="second moments", alpha=1e-6, user_damping=1e-3)
def factors_of_users_are_not_clipped(monkeypatch):
    real = item_means.shrink_to_ball

    def shrink_to_ball(norm, radius):
        unit = np.ndim(radius) == 0 and radius == 1.0
        return np.ones_like(norm) if unit else real(norm, radius)

    monkeypatch.setattr(item_means, "shrink_to_ball", shrink_to_ball)


@bug(match="distance .*second moments")
def the_constant_coordinate_is_not_priced(monkeypatch):
    real = solver.gram_sensitivity
    monkeypatch.setattr(
        solver, "gram_sensitivity", lambda weight, norm, **kw: real(weight, norm / 2.0, **kw)
    )


@bug(match="model with")
def the_average_is_scaled_to_the_training_error(monkeypatch):
    real = solver._Fit.descend

    def descend(self, *args):
        b, V = real(self, *args)
        return b, V / (1.0 + np.sum(self.R.data**2))

    monkeypatch.setattr(solver._Fit, "descend", descend)


@bug(match="are not the plan's|releases with")
def steps_stop_when_the_data_say_so(monkeypatch):
    real = solver.fit

    def fit(R, *args, rounds, **kw):
        few = R.nnz and np.mean(R.data**2) > 0.1
        return real(R, *args, rounds=range(2) if few else rounds, **kw)

    monkeypatch.setattr(solver, "fit", fit)


@bug(match="model with")
def the_model_keeps_its_users(monkeypatch):
    real = estimator.DPMFSampler._fit

    def fit(self, R, y, user_epsilon=None):
        real(self, R, y, user_epsilon=user_epsilon)
        self.users_ = R @ self.components_.T

    monkeypatch.setattr(estimator.DPMFSampler, "_fit", fit)


@bug(match="multiplier of .*gradients")
def means_in_place_of_gradients_have_half_their_noise(monkeypatch):
    """Steps that release the means keep the steps' noise multiplier."""

    def change(release, statistic, kw):
        if kw["name"] == solver.GRADIENTS and statistic.shape == (2, N_ITEMS + 1):
            kw["noise_multiplier"] /= 2.0
        return release(statistic, **kw)

    replace_release(monkeypatch, change)
    monkeypatch.setattr(solver._Fit, "choose_rank", lambda self, means: (1, 2))


def test_the_model_is_a_function_of_the_releases_alone():
    """Replayed releases give the same model bit by bit, whatever the data are."""
    X = base_ratings()
    model, records = recorded_fit(X, estimator=DPMFSampler)
    other, _ = recorded_fit(np.where(np.isnan(X), 1.0, np.nan), records, estimator=DPMFSampler)
    assert fitted_state(other) == fitted_state(model)
    fresh, _ = recorded_fit(X, estimator=DPMFSampler, random_state=1)
    assert fitted_state(fresh) != fitted_state(model)
    assert ITEM_STATISTICS == solver.ITEM_STATISTICS
