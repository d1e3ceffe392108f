"""Mistakes planted in solvers: they fail in the fit, or are harmless, whoever runs it.

Each case is one of `tests.core.cases`; a mistake changes what the solver does after its curator was
made, or the plan before. What reaches around the curator altogether, `tests.house` sees.
"""

import dataclasses
from contextlib import suppress

import numpy as np
import pytest
from scipy import sparse

from skdpmf.exceptions import PrivacyParameterError
from skdpmf.mechanisms import common, multi_task_ridge, noisy_gradient
from skdpmf.mechanisms.als import clicks, dpals
from skdpmf.mechanisms.als import pooled as pooled_als
from skdpmf.mechanisms.gram import covariance as item_covariance
from skdpmf.mechanisms.gram import item_item as noisy_gram
from skdpmf.mechanisms.item_means import averages as item_averages
from skdpmf.mechanisms.item_means import residual_rounds as item_residuals
from skdpmf.privacy.curator_release import Curator
from skdpmf.privacy.recording import record_releases
from skdpmf.privacy.users import PerUser, handle_entry, make_handle
from tests.core.cases import CASES, NEIGHBORS
from tests.core.test_replay import audit

# One of each mechanism
ALL = [
    "als pooled",
    "als dpals",
    "clicks pooled",
    "clicks dpals",
    "means of users",
    "means of users, Laplace",
    "means of ratings",
    "covariance of users",
    "covariance of ratings",
    "lists of clicks",
    "sampler",
    "selector of users",
    "selector of ratings, Laplace",
    "tasks",
]
every_mechanism = pytest.mark.parametrize("name", ALL)
# The curator refuses a mistake before it looks at what a mechanism sums: one of each kind of sums
FEW = ["als pooled", "means of users, Laplace", "lists of clicks", "selector of ratings, Laplace"]
few_mechanisms = pytest.mark.parametrize("name", FEW)
pytestmark = pytest.mark.every_case


def refused(name, match, error=PrivacyParameterError, neighbors="add-remove"):
    """Raise unless the fit is refused, by an error with these words."""
    with pytest.raises(error, match=match):
        CASES[name]._replace(neighbors=neighbors).fit()


def before_the_curator(monkeypatch, change):
    """Plant: the solver's plan is changed before its curator is made."""
    real = Curator.__init__

    def init(self, R, plan, *args, **kw):
        real(self, R, change(plan) or plan, *args, **kw)

    monkeypatch.setattr(Curator, "__init__", init)


def weaker(release, factor):
    """Overwrite the noise of a release."""
    if release.kind == "gaussian":
        object.__setattr__(release, "noise_multiplier", factor * release.noise_multiplier)
    else:
        object.__setattr__(release, "epsilon", release.epsilon / factor)


PLANS = {
    "a multiplier of .001": lambda plan: weaker(plan.releases[-1], 0.001),
    "multipliers over root two": lambda plan: [weaker(r, 0.5**0.5) for r in plan.releases] and None,
    "one repetition more": lambda plan: object.__setattr__(
        plan.releases[-1], "count", plan.releases[-1].count + 1
    ),
    "a larger delta": lambda plan: dataclasses.replace(
        plan, budget=plan.budget.__class__(plan.budget.epsilon / 2, plan.budget.delta)
    ),
}


@every_mechanism
@pytest.mark.parametrize("change", PLANS)
def test_a_plan_that_costs_more_than_its_budget(name, change, monkeypatch):
    before_the_curator(monkeypatch, PLANS[change])
    refused(name, "plan costs .* more than its budget")


def after_the_curator(monkeypatch, change):
    """Plant: the solver changes something of its curator."""
    real = Curator.__init__

    def init(self, *args, **kw):
        real(self, *args, **kw)
        change(self)

    monkeypatch.setattr(Curator, "__init__", init)


def overwrite_copies(curator):
    for release in (*curator.plan.releases, *curator.releases.values()):
        weaker(release, 0.001)
        object.__setattr__(release, "sensitivity", 0.001 * release.sensitivity)
        object.__setattr__(release, "count", 100)


@every_mechanism
def test_what_a_curator_shows_of_its_plan_is_a_copy(name, monkeypatch):
    """Overwriting it is harmless: noise is that of the plan."""
    _, records = CASES[name].fit()
    after_the_curator(monkeypatch, overwrite_copies)
    _, again = CASES[name].fit()
    for a, b in zip(records, again, strict=True):
        assert (a.noise_multiplier, a.sensitivity) == (b.noise_multiplier, b.sensitivity)
        np.testing.assert_array_equal(a.output, b.output)


FIXED = {
    "curator.plan": lambda curator: setattr(curator, "plan", None),
    "curator.record": lambda curator: setattr(curator, "record", []),
    "curator.private": lambda curator: setattr(curator, "private", False),
    "curator.users": lambda curator: setattr(curator, "users", None),
    "curator.n_rows": lambda curator: setattr(curator, "n_rows", None),
    "curator.features": lambda curator: setattr(curator, "features", None),
    "users.private": lambda curator: setattr(curator.users, "private", False),
    "users.neighbors": lambda curator: setattr(curator.users, "neighbors", "add-remove"),
    "users.unit": lambda curator: setattr(curator.users, "unit", "rating"),
    "users.n_items": lambda curator: setattr(curator.users, "n_items", 1),
    "users.n_slots": lambda curator: setattr(curator.users, "n_slots", 1),
    "the record": lambda curator: curator.record.clear(),
}


@pytest.mark.parametrize("what", FIXED)
@pytest.mark.parametrize("name", ["als pooled", "covariance of ratings"])
def test_what_bounds_rest_on_is_fixed(name, what, monkeypatch):
    after_the_curator(monkeypatch, FIXED[what])
    refused(name, "is fixed|has no setter|has no attribute", AttributeError)


def releases(monkeypatch, change):
    """Plant: ``change(release, name, total, index, **kw)`` for every release of a solver."""
    real, pieces = Curator.release, Curator.release_pieces

    def release(self, name, total, index=0, **kw):
        def made(name, total, index=0, **kw):
            return real(self, name, total, index, **kw)

        return change(made, name, total, index, **kw)

    def release_pieces(self, name, total, index=0):
        def made(name, total, index=0, **kw):
            return pieces(self, name, total, index)

        return change(made, name, total, index)

    monkeypatch.setattr(Curator, "release", release)
    monkeypatch.setattr(Curator, "release_pieces", release_pieces)


def twice(release, name, total, index, **kw):
    release(name, total, index, **kw)
    return release(name, total, index, **kw)


def after_the_last(release, name, total, index, **kw):
    release(name, total, index, **kw)
    return release(name, total, index + 1000, **kw)


def by_hand(total):
    """A sum that was not clipped."""
    return type(total)()


MISTAKES = {
    "the same twice": (twice, "was made before"),
    "one more": (after_the_last, "is one too many"),
    "another index below 0": (lambda r, n, t, i, **k: r(n, t, -1, **k), "is one too many"),
    "another name": (lambda r, n, t, i, **k: r("extra counts", t, i, **k), "is not planned"),
    "an array": (lambda r, n, t, i, **k: r(n, np.zeros(3), i, **k), "was given a ndarray"),
    "nothing": (lambda r, n, t, i, **k: r(n, None, i, **k), "was given a NoneType"),
    "values of users": (lambda r, n, t, i, **k: r(n, PerUser(), i, **k), "was given a PerUser"),
    "a statistic that is none": (
        lambda r, n, t, i, **k: r(n, t, i, statistic="exact counts"),
        "holds 'exact counts'",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
@few_mechanisms
def test_releases_that_are_not_planned(name, mistake, monkeypatch):
    change, match = MISTAKES[mistake]
    releases(monkeypatch, change)
    planned = {release.name for release in CASES[name].plan().releases} | {"extra counts"}
    words = "|".join(f"release {own!r}, index" for own in planned)
    refused(name, f"({words}).* {match}")


OF_SUMS = [name for name in ALL if "covariance" not in name]


@pytest.mark.parametrize("name", OF_SUMS)
def test_a_sum_made_by_hand(name, monkeypatch):
    releases(monkeypatch, lambda r, n, t, i, **k: r(n, by_hand(t), i, **k))
    refused(name, "is made by the functions of privacy.clipped_sums alone")


@pytest.mark.parametrize("term", ["sensitivity", "neighbors", "private"])
@few_mechanisms
def test_terms_of_a_sum_are_not_changed(name, term, monkeypatch):
    releases(monkeypatch, lambda r, n, t, i, **k: r(n, object.__setattr__(t, term, 0), i, **k))
    refused(name, f"has no attribute {term!r}", AttributeError)


def forged(values=lambda values: values, **changes):
    """A sum with other values or public terms, by one who reaches around the core."""

    def change(total):
        own = handle_entry(total)
        public = own.public._replace(**changes)
        return make_handle(type(total), own.fit, public, values(own.values))

    return change


def doubled(total):
    """Twice what one user does."""
    return forged(lambda values: 2.0 * values, sensitivity=2.0 * total.sensitivity)(total)


KINDS = {
    "twice the bound": (doubled, r"changes by up to .* planned is"),
    "another norm": (forged(norm="linf"), "is a sum of norm"),
    "another layout": (forged(layout="lower"), "is a sum of norm, layout"),
    "another unit": (forged(unit="household"), "is a sum of norm"),
    "another relation": (forged(neighbors="zero-out"), "is a sum of norm"),
    "no privacy": (forged(private=False), "has private=False"),
    "more values": (forged(lambda x: np.zeros([n + 9999 for n in x.shape])), "has the shape"),
    "another axis": (forged(lambda values: values[..., None]), "has the shape"),
}


@pytest.mark.parametrize("kind", KINDS)
@few_mechanisms
def test_sums_of_another_kind_than_planned(name, kind, monkeypatch):
    change, match = KINDS[kind]
    releases(monkeypatch, lambda r, n, t, i, **k: r(n, change(t), i, **k))
    planned = "|".join(f"release {own.name!r}, index 0" for own in CASES[name].plan().releases)
    refused(name, f"({planned}).* {match}")


def in_another_slot(one, other):
    """The statistic of one planned release in the slot of another one."""

    def change(release, name, total, index, **kw):
        return release(other if name == one else name, total, index, **kw)

    return change


SLOTS = [
    ("als pooled, without lists", pooled_als.RATED, pooled_als.MOMENTS),
    ("als pooled", pooled_als.LISTS, pooled_als.GRADIENTS),
    ("lists of clicks", noisy_gram.COUNTS, noisy_gram.GRAM),
    ("als pooled", pooled_als.GRAM, pooled_als.GRADIENTS),
    ("als dpals", dpals.START, dpals.RHS),
    ("clicks dpals", clicks.START, clicks.EVERYBODY),
    ("means of users", item_averages.GLOBAL, item_residuals.COUNTS),
    ("sampler", noisy_gradient.GRADIENTS, noisy_gradient.MOMENTS),
    ("tasks", multi_task_ridge.COUNTS, multi_task_ridge.GRAM),
]


@pytest.mark.parametrize(("name", "one", "other"), SLOTS)
def test_a_statistic_in_the_slot_of_another_one(name, one, other, monkeypatch):
    releases(monkeypatch, in_another_slot(one, other))
    refused(name, f"release {other!r}, index 0, (is a sum of|has the shape|changes by)")


@pytest.mark.parametrize(
    ("name", "slot", "statistic"),
    [
        ("als pooled, rank 0", pooled_als.MOMENTS, pooled_als.MEANS),
        ("als pooled, rank 0", pooled_als.LISTS, pooled_als.MEANS),
        ("als dpals, rank 0", dpals.START, dpals.RHS),
        ("lists of clicks, none", noisy_gram.COUNTS, noisy_gram.GRAM),
        ("clicks dpals, rank 0", clicks.COUNTS, clicks.EVERYBODY),
    ],
)
def test_a_statistic_that_is_no_alternative_of_the_slot(name, slot, statistic, monkeypatch):
    def change(release, name, total, index, **kw):
        kw["statistic"] = statistic if name == slot else kw.get("statistic")
        return release(name, total, index, **kw)

    releases(monkeypatch, change)
    refused(name, f"release {slot!r}, index 0, holds {statistic!r}")


def in_the_fit(monkeypatch, solver, **constants):
    """Plant: constants of a solver change between its plan and its fit."""
    for fit in ("fit", "model"):
        with suppress(AttributeError):
            real = getattr(solver, fit)

            def changed(*args, real=real, **kw):
                for name, value in constants.items():
                    monkeypatch.setattr(f"{solver.__name__}.{name}", value)
                return real(*args, **kw)

            monkeypatch.setattr(solver, fit, changed)
            return


CONSTANTS = [
    ("als pooled", pooled_als, {"CLIP": 1.0}, pooled_als.START),
    ("als dpals", dpals, {"Settings.clip": 1.2}, dpals.RHS),
    ("sampler", noisy_gradient, {"CLIP": 2.0 * noisy_gradient.CLIP}, noisy_gradient.GRADIENTS),
    ("sampler", noisy_gradient, {"moment_bound": lambda: 4.0}, noisy_gradient.MOMENTS),
]


@pytest.mark.parametrize(("name", "solver", "constants", "slot"), CONSTANTS)
def test_a_clip_that_grows_after_the_plan(name, solver, constants, slot, monkeypatch):
    in_the_fit(monkeypatch, solver, **constants)
    refused(name, f"release {slot!r}, index 0, changes by up to")


@pytest.mark.parametrize("change", [{"clamp": 3.0}, {"weight_scale": 4.0}, {"damping": 1e-6}])
@pytest.mark.parametrize("name", ["covariance of users", "covariance of ratings"])
def test_a_covariance_of_other_terms_than_planned(name, change, monkeypatch):
    real = item_covariance.pair_sums
    monkeypatch.setattr(
        item_covariance, "pair_sums", lambda *args, **kw: real(*args, **(kw | change))
    )
    if name == "covariance of users" and "damping" in change:
        audit(CASES[name])  # one user's bound holds for any offset
    else:
        refused(name, "changes by up to")


@pytest.mark.parametrize(
    "name", ["als pooled", "als dpals", "means of users", "covariance of users"]
)
def test_ratings_are_not_read_in_a_private_fit(name, monkeypatch):
    after_the_curator(monkeypatch, lambda curator: curator.users.without_privacy())
    refused(name, "users are of a private fit")


@pytest.mark.parametrize("name", OF_SUMS)
def test_exact_sums_are_not_read_in_a_private_fit(name, monkeypatch):
    releases(monkeypatch, lambda r, n, t, i, **k: t.without_privacy())
    refused(name, "must be False for its exact values")


@every_mechanism
def test_a_recording_opened_in_a_solver_changes_nothing(name, monkeypatch):
    """Neither does a replay of exact values: the noise source was chosen before."""
    case = CASES[name]
    _, records = case.fit()
    exact = [dataclasses.replace(record, output=record.statistic) for record in records]
    real = Curator.release

    def release(self, *args, **kw):
        with record_releases(exact):
            return real(self, *args, **kw)

    monkeypatch.setattr(Curator, "release", release)
    _, again = case.fit()
    for a, b in zip(records, again, strict=True):
        np.testing.assert_array_equal(a.output, b.output)


HARMLESS = [
    ("als pooled", pooled_als, "weighted_residuals"),
    ("als pooled", pooled_als, "moment_vectors"),
    ("als pooled", pooled_als, "with_unit_factors"),
    ("als pooled", noisy_gram, "centred_rows"),
    ("lists of clicks", noisy_gram, "centred_rows"),
    ("lists of clicks", noisy_gram, "_clicks"),
    ("lists of clicks, none", noisy_gram, "count_weights"),
    ("als pooled", item_residuals, "weighted_residuals"),
    ("als dpals", dpals, "residuals_of"),
    ("als dpals", common, "popularity_weights"),
    ("clicks dpals", clicks, "solve_users"),
    ("clicks dpals", common, "popularity_weights"),
    ("means of users", item_residuals, "count_weights"),
    ("sampler", noisy_gradient, "_solve_users"),
    ("tasks", common, "popularity_weights"),
    ("tasks", multi_task_ridge, "_targets"),
]


@pytest.mark.parametrize(
    ("name", "solver", "function", "neighbors"),
    [(*one, NEIGHBORS[place % 2]) for place, one in enumerate(HARMLESS)],
)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_values_that_a_solver_does_not_clip_are_harmless(
    name, solver, function, neighbors, monkeypatch
):
    """Sums clip them: distances stay within the sensitivities."""
    real = getattr(solver, function)

    def planted(rows, *args, **public):
        with np.errstate(all="ignore"):
            return _gigantic(real(rows, *args, **public))

    monkeypatch.setattr(solver, function, planted)
    audit(CASES[name]._replace(neighbors=neighbors))


def _gigantic(result):
    """Values a thousand times as large, and what is in the middle of the range infinite or NaN."""
    if isinstance(result, tuple):
        return tuple(map(_gigantic, result))
    out = 1e3 * result
    out = np.where(np.abs(out) > 5e3, 1e300 * np.sign(out), out)
    out = np.where((np.abs(out) > 1.0) & (np.abs(out) < 30.0), np.inf, out)
    return np.where((np.abs(out) > 100.0) & (np.abs(out) < 130.0), np.nan, out)


def ratings_times_a_thousand(rows, *args):
    return sparse.csr_array((1e3 * rows.data, rows.indices, rows.indptr), shape=rows.shape)


@pytest.mark.parametrize("name", ["als pooled", "als dpals"])
def test_ratings_that_a_solver_does_not_clip_are_harmless(name, monkeypatch):
    monkeypatch.setattr(common, "subset", ratings_times_a_thousand)
    audit(CASES[name])


def test_the_module_is_what_it_says():
    """At least 25 mistakes are refused in the fit, over all estimators."""
    kinds = PLANS, FIXED, MISTAKES, KINDS, SLOTS, CONSTANTS
    assert sum(map(len, kinds)) >= 25
    assert {type(CASES[name].model()) for name in ALL} == {
        type(case.model()) for case in CASES.values()
    }
