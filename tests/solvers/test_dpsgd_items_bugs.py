"""The audit passes on noisy gradient descent, and fails on every planted bug."""

import dataclasses

import numpy as np
import pytest

from skdpmf import PrivacyBudget
from skdpmf.privacy import noise
from skdpmf.solvers import adaptive_weight_als as ssp
from skdpmf.solvers import dpsgd_items as solver
from skdpmf.solvers import item_means
from tests.solvers import test_planted_bugs as planted
from tests.solvers.audit import (
    ROUNDING,
    alone,
    audit,
    base_ratings,
    is_means,
    left_out_seed,
    recorded_fit,
    replace_release,
)
from tests.solvers.test_sensitivity import Replay

REPLACE = PrivacyBudget(20.0, 1e-5, neighbors="replace")
DPSGD = {"solver": "dpsgd", "n_inner_steps": 2}
TAIL = {"weighting": "tail", "max_ratings_per_user": 5}
UNIFORM = {"weighting": "uniform", "max_ratings_per_user": 5}
SETTINGS = {
    "adaptive": {},
    "adaptive, replace": {"budget": REPLACE},
    "adaptive, trimmed": {"max_ratings_per_user": 6},
    "strong weights": {"weight_exponent": 1.0},
    "without item means": {"item_means": False},
    "one step a round": {"n_inner_steps": 1},
    "tail": TAIL,
    "tail, replace": {**TAIL, "budget": PrivacyBudget(40.0, 1e-5, neighbors="replace")},
    "uniform": UNIFORM,
}


def audit_steps(**params):
    audit(**{**DPSGD, **params})


@pytest.mark.parametrize("name", SETTINGS)
def test_audit_passes(name):
    audit_steps(**SETTINGS[name])


@pytest.mark.parametrize(
    ("epsilon", "max_iter", "all_rounds"), [(0.1, 3, True), (8.0, 10, False)], ids=["all", "some"]
)
def test_audit_passes_where_rounds_release_the_means(epsilon, max_iter, all_rounds):
    params = {"budget": PrivacyBudget(epsilon, 1e-5), "max_iter": max_iter, **DPSGD}
    audit_steps(random_state=left_out_seed(all_rounds=all_rounds, **params), **params)


def test_the_usual_audit_is_of_gradients():
    _, records = recorded_fit(base_ratings(), **DPSGD)
    assert [is_means(record) for record in records] == [True] + 7 * [False]


def test_the_clip_alone_bounds_a_user(monkeypatch):
    """The sensitivities do not rest on the weights, as the proof says."""
    real = ssp._Fit.weigh

    def weigh(self, means):
        weighted = real(self, means)
        return weighted._replace(weight=10.0 * np.ones_like(weighted.weight))

    monkeypatch.setattr(ssp._Fit, "weigh", weigh)
    audit_steps()


# -- how much of the sensitivity is used -----------------------------------------------------------


class StepReplay(Replay):
    """Contributions of a single user to all releases of one recorded fit."""

    def __init__(self, **params):
        self.params = {**DPSGD, **params}
        self.model, self.records = recorded_fit(base_ratings(), **self.params)

    def __call__(self, row):
        return recorded_fit(alone(row), self.records, **self.params)[1]


@pytest.mark.parametrize("name", ["adaptive", "adaptive, trimmed", "without item means", "tail"])
def test_search_reaches_the_sensitivity_of_a_step_and_not_more(name):
    ratio = StepReplay(**SETTINGS[name]).search(solver.GRADIENTS, n_steps=20)
    assert 0.9 <= ratio <= ROUNDING, ratio


def test_search_over_pairs_of_users():
    ratio = StepReplay(budget=REPLACE).search(solver.GRADIENTS, pairs=True, n_steps=100)
    assert 0.9 <= ratio <= ROUNDING, ratio


# -- bugs that any solver may have -----------------------------------------------------------------

SHARED = (
    "fit_divides_the_noise_multiplier_by_root_two",
    "sampler_draws_less_than_it_declares",
    "item_counts_are_exact",
    "unrated_items_get_no_noise",
    "a_user_priced_as_one_rating",
    "repeated_ratings_are_kept",
    "repeated_ratings_are_summed",
    "ratings_are_not_clipped_to_the_range",
    "weights_from_exact_counts",
    "tail_items_from_exact_counts",
    "head_items_from_exact_counts",
    "counts_released_twice_and_accounted_once",
    "exact_number_of_users_normalises_the_means",
    "users_regularised_by_the_exact_mean_activity",
    "users_share_one_random_stream",
    "model_keeps_the_embeddings_of_its_users",
)


@pytest.mark.parametrize("name", SHARED)
def test_audit_notices_what_any_solver_may_do(name, monkeypatch):
    plant, params, match = planted.BUGS[name]
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


def replace_clip(monkeypatch, weights):
    """`weights(fit, weighted, residual, phi)` in place of the weights times the clip factors."""
    real = ssp._Fit.clipped

    def clipped(self, weighted, theta, offset, phi):
        _, residual = real(self, weighted, theta, offset, phi)
        return weights(self, weighted, residual, phi), residual

    monkeypatch.setattr(solver._Fit, "clipped", clipped)


@bug(match="distance .*gradients")
def gradients_are_not_clipped(monkeypatch):
    replace_clip(monkeypatch, lambda fit, weighted, residual, phi: weighted.weight)


@bug(match="distance .*gradients")
def items_are_clipped_one_by_one(monkeypatch):
    """Every item's part of a user to C, as if a user rated one: sqrt(n) C together."""

    def weights(fit, weighted, residual, phi):
        norm = weighted.weight * abs(residual) * np.linalg.norm(phi, axis=1)[weighted.row]
        shrink = item_means.shrink_to_ball(norm, solver.CLIP * fit.settings.phi_bound)
        return weighted.weight * shrink

    replace_clip(monkeypatch, weights)


@bug(match="distance .*gradients")
def weights_are_not_normalised(monkeypatch):
    """Every rating clipped to C, as in the paper: then the bound rests on the weights."""

    def weights(fit, weighted, residual, phi):
        norm = abs(residual) * np.linalg.norm(phi, axis=1)[weighted.row]
        raw = weighted.mass[weighted.R.indices] / weighted.mass.max()
        shrink = item_means.shrink_to_ball(norm, solver.CLIP * fit.settings.phi_bound)
        return shrink * raw**-fit.settings.weight_exponent

    replace_clip(monkeypatch, weights)


@bug(match="distance .*gradients")
def clip_forgets_the_length_of_phi(monkeypatch):
    def weights(fit, weighted, residual, phi):
        norm = item_means.row_norms(weighted.row, weighted.weight * residual, fit.n_rows)
        shrink = item_means.shrink_to_ball(norm, solver.CLIP * fit.settings.phi_bound)
        return weighted.weight * shrink[weighted.row]

    replace_clip(monkeypatch, weights)


@bug(match="distance .*gradients")
def users_own_offsets_enter_unclipped(monkeypatch):
    real = solver._Fit.gradient

    def gradient(self, weighted, theta, offset, phi):
        G = real(self, weighted, theta, offset, phi)
        own = np.bincount(weighted.R.indices, weights=offset[weighted.row], minlength=len(G))
        G[:, 0] += own
        return G

    monkeypatch.setattr(solver._Fit, "gradient", gradient)


@bug(match="distance .*gradients", budget=REPLACE)
def replacing_a_user_priced_as_removing_one(monkeypatch):
    real = solver.sum_sensitivity
    monkeypatch.setattr(
        solver, "sum_sensitivity", lambda *args, neighbors, unit: real(*args, unit=unit)
    )


def plan_of_other_settings(monkeypatch, change, **other):
    real = solver.make_plan

    def make_plan(budget, settings, n_items):
        return change(real(budget, dataclasses.replace(settings, **other), n_items), settings)

    monkeypatch.setattr(solver, "make_plan", make_plan)


@bug(match="are not the plan's")
def inner_steps_are_not_planned(monkeypatch):
    plan_of_other_settings(monkeypatch, lambda plan, settings: plan, n_inner_steps=1)


@bug(match="delta")
def noise_is_for_one_step_a_round(monkeypatch):
    def change(plan, settings):
        *first, gradients = plan.releases
        every = dataclasses.replace(gradients, count=settings.max_iter * settings.n_inner_steps)
        return dataclasses.replace(plan, releases=(*first, every))

    plan_of_other_settings(monkeypatch, change, n_inner_steps=1)


@bug(match="multiplier of")
def later_steps_of_a_round_without_noise(monkeypatch):
    def change(release, statistic, kw):
        later = kw["name"] == solver.GRADIENTS and kw["index"] % 2
        z = 0.0 if later else kw["noise_multiplier"]
        return release(statistic, **{**kw, "noise_multiplier": z})

    replace_release(monkeypatch, change)


@bug(match="correlation")
def steps_of_a_round_share_their_noise(monkeypatch):
    real = noise.stream_key

    def stream_key(key, purpose, name, index):
        return real(key, purpose, name, index // 2 if name == solver.GRADIENTS else index)

    monkeypatch.setattr(noise, "stream_key", stream_key)


@bug(match="scale of|sensitivity of")
def gradients_noised_for_half_the_clip(monkeypatch):
    def change(release, statistic, kw):
        half = 0.5 if kw["name"] == solver.GRADIENTS else 1.0
        return release(statistic, **{**kw, "sensitivity": half * kw["sensitivity"]})

    replace_release(monkeypatch, change)


@bug(match="releases with|are not the plan's")
def steps_stop_when_the_gradient_is_small(monkeypatch):
    real = solver._Fit.steps_of

    def steps_of(self, t):
        return real(self, t)[: 1 + int(self.R.nnz % 2)]

    monkeypatch.setattr(solver._Fit, "steps_of", steps_of)


@bug(match="others move|distance|replay holds")
def step_lengths_from_exact_counts(monkeypatch):
    real = solver._Fit._items

    def items(self, means, weighted, V):
        return real(self, means, weighted._replace(mass=planted.exact_mass(self)), V)

    monkeypatch.setattr(solver._Fit, "_items", items)


@bug(match="others move|distance|replay holds")
def exact_curvature_in_a_private_fit(monkeypatch):
    real = solver._Items.step
    counts = []

    def gradient(self, weighted, *args):
        counts.append(np.bincount(weighted.R.indices, minlength=self.n_items))
        return original(self, weighted, *args)

    def step(self, G):
        self.curvature = 1.0 + counts[-1][:, None]
        real(self, G)

    original = solver._Fit.gradient
    monkeypatch.setattr(solver._Fit, "gradient", gradient)
    monkeypatch.setattr(solver._Items, "step", step)


@bug(match="others move|distance|replay holds")
def gradients_are_means_over_raters(monkeypatch):
    real = solver._Fit.gradient

    def gradient(self, weighted, *args):
        n = np.bincount(weighted.R.indices, minlength=self.n_items)
        return real(self, weighted, *args) / np.maximum(n, 1)[:, None]

    monkeypatch.setattr(solver._Fit, "gradient", gradient)


@bug(match="others move|distance|replay holds")
def a_batch_drawn_from_one_stream(monkeypatch):
    """A random half of the users that have ratings: who is in it moves with every other user."""
    real = solver._Fit.gradient

    def gradient(self, weighted, theta, offset, phi):
        active = np.flatnonzero(np.diff(weighted.R.indptr))
        batch = np.random.default_rng(0).permutation(active)[: len(active) // 2]
        kept = np.isin(weighted.row, batch)
        batched = weighted._replace(weight=np.where(kept, weighted.weight, 0.0))
        return real(self, batched, theta, offset, phi)

    monkeypatch.setattr(solver._Fit, "gradient", gradient)
