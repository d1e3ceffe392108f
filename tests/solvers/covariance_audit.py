"""Audit of DPCovarianceRecommender's releases: neighbouring data, the plan, the law of the noise.

`audit` raises AssertionError if a fit releases anything that its plan does not cover, at either
unit of privacy and with either noise; test_item_covariance_bugs shows that it does.

An `Edit` is a row without and with what one unit holds: all its ratings at unit "user", one of
them at unit "rating". Contributions of rows add up exactly, so that two edits with one `before`, or
in two rows, are a replacement: the difference of their changes is what it moves.
"""

from functools import cache
from itertools import combinations, product
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse, stats

from skdpmf import DPCovarianceRecommender, PrivacyBudget
from skdpmf.privacy._recording import ReleaseRecord
from skdpmf.privacy.covariance import centred_interval, covariance_sensitivity
from skdpmf.privacy.noise import LAPLACE_ETA
from skdpmf.solvers import item_averages, item_covariance, item_residuals
from tests.privacy import covariance_attack as attack
from tests.solvers import audit as common
from tests.solvers.audit import HIGH, LOW, N_ITEMS, N_USERS, ROUNDING, SLOT, UNRATED, with_row

UNITS, NOISES, RELATIONS = ("user", "rating"), ("gaussian", "laplace"), ("add-remove", "replace")
KINDS = list(product(UNITS, NOISES, RELATIONS))
MIDDLE = (LOW + HIGH) / 2
QUARTER = (HIGH - LOW) / 4
SHARES = (0.1, 0.4, 0.5)
GLOBAL, STATISTICS = item_averages.GLOBAL, item_averages.STATISTICS
COUNTS, RESIDUALS = item_residuals.COUNTS, item_residuals.RESIDUALS
COVARIANCE = item_covariance.COVARIANCE
WEIGHT_SCALE = item_covariance.WEIGHT_SCALE


class Edit(NamedTuple):
    """A row without and with what one unit of privacy holds."""

    before: Any
    after: Any


def settings(unit, noise, neighbors="add-remove", epsilon=20.0, shares="auto", **params):
    """Parameters of a fit."""
    delta = 1e-5 if noise == "gaussian" else 0.0
    budget = PrivacyBudget(epsilon, delta, unit=unit, neighbors=neighbors)
    return {"budget": budget, "noise": noise, "shares": shares, **params}


def recorded_fit(X, replay=None, **params):
    """Fitted model and its releases."""
    params = {"estimator": DPCovarianceRecommender, "max_iter": None, **params}
    return common.recorded_fit(X, replay, **params)


def divided_ratings(n_high=N_ITEMS // 2):
    """Some items are rated high by everybody, the others low: means far from each other."""
    X = np.where(np.arange(N_ITEMS) < n_high, HIGH, LOW) + np.zeros((N_USERS, 1))
    X[SLOT] = np.nan
    return X


def covers(records):
    """Kind of the last release: "all", "some" or "none" of the items have a covariance."""
    statistic = records[-1].statistic
    if records[-1].name != COVARIANCE or statistic.shape != (2, statistic.shape[-1]):
        return "none"
    if statistic.shape[1] == N_ITEMS and records[-2].statistic.shape == statistic.shape:
        return "none"
    return "all" if statistic.shape[1] == N_ITEMS * (N_ITEMS + 1) // 2 else "some"


def seed_that_covers(kind, X=None, **params):
    """First seed whose covariance is of "some" items, or "none"; it follows the noise."""
    for seed in range(50):
        _, records = recorded_fit(
            common.base_ratings() if X is None else X, random_state=seed, **params
        )
        if covers(records) == kind:
            return seed
    raise LookupError(f"no seed covers {kind} with {params}")


# -- adversaries -----------------------------------------------------------------------------------


def edits_of(model, rounds=80, restarts=2):
    """Edits by name, by somebody who knows the released model and searches for a while."""
    edits = user_edits(model) if model.budget.unit == "user" else rating_edits(model)
    return edits | worst_edits(model, rounds, restarts)


def user_edits(model):
    unknown = np.full(N_ITEMS, np.nan)
    rows = common.adversaries(model)
    # as far from the means as the clamp reaches, on disjoint items
    for name, half in (("first", slice(0, N_ITEMS // 2)), ("second", slice(N_ITEMS // 2, None))):
        rows[f"{name} half"] = unknown.copy()
        rows[f"{name} half"][half] = extremes(model)[half]
    rows["extreme"] = extremes(model)
    return {name: Edit(unknown, row) for name, row in rows.items()}


def extremes(model):
    """High where the mean is low, else alternating: centred ratings beyond the clamp."""
    means = model.item_means_
    far = np.abs(means - MIDDLE) > QUARTER
    high = np.where(far, means < MIDDLE, np.arange(N_ITEMS) % 2)
    return np.where(high, HIGH, LOW)


def rating_edits(model):
    """Users with none, one, two, many and all ratings get one more, of popular and rare items."""
    rng = np.random.default_rng(2)
    means, everything = model.item_means_, np.arange(N_ITEMS)
    outside = np.setdiff1d(everything, model.covariance_items_)
    lonely = int(outside[0]) if outside.size else UNRATED
    befores = {
        "nothing": np.full(N_ITEMS, np.nan),
        "one rating": np.where(everything == 1, HIGH, np.nan),
        "two ratings": np.where(everything == 1, HIGH, np.where(everything == 2, LOW, np.nan)),
        "many ratings": np.where(
            rng.random(N_ITEMS) < 0.6, rng.uniform(LOW, HIGH, N_ITEMS), np.nan
        ),
        "all high": np.full(N_ITEMS, HIGH),
        "all low": np.full(N_ITEMS, LOW),
        "all extreme": extremes(model),
        "all the means": means.copy(),
        "all at the clamp": np.clip(means + np.where(everything % 2, 0.95, -0.95), LOW, HIGH),
    }
    edits = {}
    for name, before in befores.items():
        for item, value in product({0, UNRATED, lonely}, (LOW, HIGH)):
            without = before.copy()
            without[item] = np.nan
            after = without.copy()
            after[item] = value
            edits[f"{name}, item {item} at {value:g}"] = Edit(without, after)
    return edits


def worst_edits(model, rounds, restarts):
    """Edits that a search finds: they move Cov and Wgt as far as it knows, given the means.

    With another one after each for a replacement: as far as possible from the first.
    """
    head, edits = model.covariance_items_, {}
    if model.budget.unit == "user" or head.size == 0:
        return edits
    means = (model.item_means_[head] - MIDDLE) / QUARTER

    def moved(free):
        return changes_of(free, means, model.user_damping, model.clamp, model.noise)

    for seed in range(restarts):
        first = np.zeros(())
        for name in ("worst", "partner") if model.budget.neighbors == "replace" else ("worst",):

            def value(free, first=first):
                return norm_of(moved(free) - first, model.noise)

            _, free = attack.evolve(value, 2 * head.size + 1, seed=seed, rounds=rounds)
            first = moved(free[None])
            edits[f"{name} of {seed}"] = found_edit(free, head)
    return edits | grouped_edits(model, means, rounds)


def grouped_edits(model, means, rounds):
    """Edits of users with few different centred ratings, as tests.privacy searches them."""
    head, edits = model.covariance_items_, {}
    low, high = centred_interval((-2.0, 2.0), means)
    setting = high - low, model.user_damping, model.clamp
    kind = ("l2", "full") if model.noise == "gaussian" else ("l1", "upper")
    for c in {head.size // 2, head.size - 1} - {0}:

        def value(free, c=c):
            free[:, attack.GROUPS - 1] = -low / (high - low)  # damped towards 0
            return attack.distances(free, c, setting, *kind)

        _, place = attack.evolve(value, attack.N_FREE, seed=c, rounds=rounds)
        users = attack.decode(place[None], c, high - low)
        y = low + np.append(np.repeat(users.y[0], users.m[0].astype(int)), users.new[0])
        # high centred ratings are of items with low means
        places = np.empty(c + 1, int)
        places[np.argsort(y)] = np.argsort(means)[c::-1]
        rows = np.full((2, N_ITEMS), np.nan)
        rows[:, head[places]] = MIDDLE + QUARTER * np.clip(y + means[places], -2.0, 2.0)
        rows[0, head[places[-1]]] = np.nan
        edits[f"{c} ratings in groups"] = Edit(*rows)
    return edits


def found_edit(free, head):
    ratings, known, new = decoded(free[None])
    rows = np.full((2, N_ITEMS), np.nan)
    rows[:, head] = np.where(known, MIDDLE + QUARTER * ratings, np.nan)
    rows[0, head[new]] = np.nan
    return Edit(*rows)


def decoded(free):
    """Users from numbers in [0, 1]: ratings in quarter ranges, which are known, and the new one."""
    h = free.shape[1] // 2
    known = free[:, h:-1] > 0.3
    new = np.minimum((free[:, -1] * h).astype(int), h - 1)
    known[np.arange(len(free)), new] = True
    return 4.0 * free[:, :h] - 2.0, known, new


def changes_of(free, means, damping, clamp, noise):
    """What the new rating does to (Cov, t Wgt), by the algorithm written out.

    Entries off the diagonal are scaled so that the triangle has the norm of the release.
    """
    ratings, known, new = decoded(free)
    before = known.copy()
    before[np.arange(len(free)), new] = False
    rows, columns = np.tril_indices(len(means))
    scale = np.where((rows == columns) | (noise == "laplace"), 1.0, np.sqrt(2.0))
    after, rest = (weighted(ratings - means, e, damping, clamp, noise) for e in (known, before))
    cov, wgt = (scale * (a - b)[:, rows, columns] for a, b in zip(after, rest, strict=True))
    return np.hstack((cov, WEIGHT_SCALE * wgt))


def norm_of(changes, noise):
    if noise == "laplace":
        return np.abs(changes).sum(axis=1)
    return np.sqrt((changes**2).sum(axis=1))


def weighted(y, e, damping, clamp, noise):
    """w x x' and w e e' of many users."""
    c = e.sum(axis=1, keepdims=True)
    x = np.clip(y - (y * e).sum(axis=1, keepdims=True) / (c + damping), -clamp, clamp) * e
    w = (1.0 / np.maximum(c, 1) ** (1.0 if noise == "laplace" else 0.5))[:, :, None]
    e = e.astype(float)
    return w * x[:, :, None] * x[:, None], w * e[:, :, None] * e[:, None]


# -- audit -----------------------------------------------------------------------------------------


def audit(*, X=None, replay=None, **params):
    """Raise AssertionError unless the fit keeps to its plan, whatever one unit of privacy does."""
    X = common.base_ratings() if X is None else X
    model, records = recorded_fit(X, replay, **params)
    check_neighbours(X, model, records, **params)
    check_plan(model, records)
    if replay is None:
        common.check_noise_law(records)
        check_noise_of_triangles(records)
    check_ratings_are_bounded(X, records, **params)


def check_neighbours(X, model, records, **params):
    """Edits: bounded, of that row alone, and nothing else leaves."""
    check_nobody(records, **params)
    changes, edits = {}, edits_of(model)

    @cache
    def replayed(row):
        fitted, made = recorded_fit(with_row(X, np.frombuffer(row)), records, **params)
        _, own = recorded_fit(common.alone(np.frombuffer(row)), records, **params)
        same = common.fitted_state(fitted) == common.fitted_state(model)
        return made, own, same and fitted.privacy_spent_ == model.privacy_spent_

    for name, edit in edits.items():
        (before, own_before, unmoved), (after, own_after, same) = (
            replayed(row.tobytes()) for row in edit
        )
        assert {len(part) for part in (before, own_before, after, own_after)} == {len(records)}, (
            f"releases with {name}"
        )
        common.check_distances(after, before, name)
        changes[name] = [
            a.statistic - b.statistic for a, b in zip(own_after, own_before, strict=True)
        ]
        for a, b, change in zip(after, before, changes[name], strict=True):
            # sums on a grid are exact; the number of users is multiplied after
            np.testing.assert_allclose(
                *(a.statistic - b.statistic, change),
                rtol=0,
                atol=1e-12 if a.name == GLOBAL else 0,
                err_msg=f"others move with {name}: {a}",
            )
        assert unmoved, f"model with {name}"
        assert same, f"model with {name}"
    check_head(model, edits, changes, records)
    if model.budget.neighbors == "replace":
        for one, two in combinations(changes, 2):
            check_changes(records, changes[one], changes[two], f"{one} for {two}")


def check_nobody(records, **params):
    for record in recorded_fit(common.alone(None), records, **params)[1]:
        assert not record.statistic.any(), f"an empty row contributes to {record}"


def check_changes(records, changes, others, name):
    """No replacement moves a release by more than its sensitivity."""
    for record, change, other in zip(records, changes, others, strict=True):
        found = size_of(record, change - other)
        assert found <= record.sensitivity * ROUNDING, (
            f"{name}: distance {found:.6g} > {record.sensitivity:.6g}: {record}"
        )


def size_of(record, change):
    """Size of a change of a release's statistic, in its norm."""
    parts = vars(record) | {"statistic": change}
    return ReleaseRecord(**parts).distance(ReleaseRecord(**(parts | {"statistic": 0.0 * change})))


def check_head(model, edits, changes, records):
    """A rating of an item that the covariance does not cover does not enter it."""
    head = model.covariance_items_
    for name, edit in edits.items():
        changed = np.flatnonzero(np.isnan(edit.before) != np.isnan(edit.after))
        if head.size and not np.isin(changed, head).any():
            assert not changes[name][-1].any(), f"{name}, outside of the head, enters {records[-1]}"


def check_plan(model, records):
    """The recorded releases are those of the plan, and the plan spends the budget."""
    plan, budget = model.plan(N_ITEMS, N_USERS), model.budget
    made = [(r.name, r.index) for r in records]
    expected = [(r.name, t) for r in plan.releases for t in range(r.count)]
    assert made == expected, f"releases {made} are not the plan's {expected}"
    statement = model.privacy_spent_
    assert statement.releases == plan.releases, "plan and statement differ"
    assert (statement.epsilon, statement.delta) == (plan.epsilon, plan.delta), "they differ"
    planned = {release.name: release for release in plan.releases}
    for record in records:
        release = planned[record.name]
        z = record.noise_multiplier
        assert z == release.noise_multiplier > 0.0, f"multiplier of {record}"
        declared = z * record.sensitivity
        assert declared <= record.noise_scale <= declared * (1.0 + 1e-6), f"scale of {record}"
        assert record.noise == model.noise, f"kind of {record}"
        assert record.statistic.size <= np.prod(release.shape), f"shape of {record}"
        check_sensitivity(model, record, planned)
    check_budget(plan, budget, [record.noise_multiplier for record in records])


def check_sensitivity(model, record, planned):
    """Sensitivities are the plan's; the covariance's is that of the released means and items."""
    release, head = planned[record.name], model.covariance_items_
    if record.name == COVARIANCE and head.size == 0:
        # averages once more, in the place of the covariance
        release = planned[RESIDUALS if model.budget.unit == "user" else STATISTICS]
    layout = getattr(release, "layout", "full")
    assert record.layout == layout, f"layout of {record}"
    if release.name != COVARIANCE:
        assert record.statistic.shape == release.shape, f"shape of {record}"
        assert record.sensitivity == release.sensitivity, f"sensitivity of {record}"
        return
    assert record.statistic.shape == (2, head.size * (head.size + 1) // 2), f"shape of {record}"
    low, high = centred_interval((LOW, HIGH), model.item_means_[head])
    expected = covariance_sensitivity(
        model.clamp,
        centred_range=(high - low) / QUARTER,
        damping=model.user_damping,
        n_items=head.size,
        weight_scale=WEIGHT_SCALE,
        norm=release.norm,
        entries="full" if layout == "packed" else "upper",
        neighbors=model.budget.neighbors,
        unit=model.budget.unit,
    )
    # the rounding that it pays for besides is small
    assert expected * (1 - 1e-12) <= record.sensitivity <= expected * (1 + 1e-6), (
        f"sensitivity of {record}"
    )
    assert record.sensitivity <= release.sensitivity, f"planned sensitivity of {record}"


def check_budget(plan, budget, multipliers):
    """The noise multipliers spend the budget, by formulas of their own."""
    eps = budget.epsilon
    assert 0.999 * eps < plan.epsilon <= eps, f"epsilon {plan.epsilon} of {eps}"
    if plan.gaussian:
        assert plan.delta == budget.delta
        mu = np.sqrt(sum(z**-2.0 for z in multipliers))
        # B. Balle, Y.-X. Wang, ICML 2018, Theorem 8
        upper, lower = (stats.norm.logcdf(sign * mu / 2 - eps / mu) for sign in (1.0, -1.0))
        delta = np.exp(upper) - np.exp(eps + lower)
        assert delta <= budget.delta * ROUNDING, f"delta {delta} > {budget.delta}"
        return
    assert plan.delta == 0.0, "pure noise spends no delta"
    n_values = sum(int(np.prod(release.shape)) for release in plan.releases)
    spent = sum(1.0 / z for z in multipliers) + 2 * LAPLACE_ETA * n_values
    assert spent <= eps * (1 + 1e-12), f"epsilon {spent} > {eps}"


def check_noise_of_triangles(records):
    """The diagonal and the rest of a packed release have each their own deviation.

    The noise of two rows of a release is independent. Each test alarms falsely once in 1e6 fits;
    seeds are fixed.
    """
    for record in records:
        if record.statistic.ndim == 2:
            one, two = common.noise_of(record).reshape(record.statistic.shape)
            r = one @ two / np.sqrt((one @ one) * (two @ two))
            p = stats.beta.sf(r**2, 0.5, (one.size - 1) / 2)
            assert p > 1e-6, f"correlation {r:.3g} within {record}"
        if record.layout == "packed":
            h = int(np.sqrt(2 * record.statistic.shape[-1]))
            rows, columns = np.tril_indices(h)
            z = common.noise_of(record).reshape(record.statistic.shape)
            for place in (rows == columns, rows != columns):
                chance = stats.chi2.cdf(np.sum(z[:, place] ** 2), z[:, place].size)
                assert 5e-7 < chance < 1.0 - 5e-7, f"variance in the triangles: {record}"


def check_ratings_are_bounded(X, records, **params):
    """Ratings outside of the range count as its ends, and repeated ones as their mean."""
    signs = np.where(np.arange(N_ITEMS) % 3, 1.0, -1.0)
    bounded, wild, merged = (
        recorded_fit(with_row(X, row), records, **params)[1]
        for row in (np.where(signs > 0, HIGH, LOW), 1e6 * signs, np.full(N_ITEMS, 3.0))
    )
    assert_same(wild, bounded, "ratings outside of the range")
    rows, columns = np.nonzero(~np.isnan(with_row(X, None)))
    own = np.tile(np.arange(N_ITEMS), 3)
    repeated = sparse.coo_array(
        (
            np.concatenate((X[rows, columns], np.repeat([1.0, 3.0, 5.0], N_ITEMS))),
            (np.append(rows, np.full(own.size, SLOT)), np.append(columns, own)),
        ),
        shape=X.shape,
    )
    assert_same(recorded_fit(repeated, records, **params)[1], merged, "repeated ratings")


def assert_same(records, others, name):
    for a, b in zip(records, others, strict=True):
        np.testing.assert_array_equal(a.statistic, b.statistic, err_msg=f"{name}: {a}")


def reached(X=None, *, rounds=300, restarts=4, **params):
    """Largest distance over sensitivity by release, over all edits and replacements."""
    X = common.base_ratings() if X is None else X
    model, records = recorded_fit(X, **params)
    changes = []
    for edit in edits_of(model, rounds, restarts).values():
        before, after = (recorded_fit(common.alone(row), records, **params)[1] for row in edit)
        changes.append([a.statistic - b.statistic for a, b in zip(after, before, strict=True)])
    pairs = [(change, [0.0 * part for part in change]) for change in changes]
    if model.budget.neighbors == "replace":
        pairs += combinations(changes, 2)
    return {
        record.name: max(size_of(record, a[i] - b[i]) for a, b in pairs) / record.sensitivity
        for i, record in enumerate(records)
    }
