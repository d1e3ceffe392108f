"""Audit of a fit's releases: against its plan, the law of the noise, and neighbouring data.

`audit` raises AssertionError if a fit releases anything that its plan does not cover; the planted
bugs of test_planted_bugs and test_noisy_gradient_bugs show that it does. A fit is that of
AdaptiveWeightALS unless an `estimator` is among the parameters; `levels` are privacy levels of its
users.
"""

from itertools import combinations

import numpy as np
from scipy import sparse, stats
from scipy.special import log_ndtr

from skdpmf import AdaptiveWeightALS, PrivacyBudget
from skdpmf.exceptions import PrivacyParameterError
from skdpmf.privacy._recording import record_releases
from skdpmf.privacy.noise import NoiseSource
from skdpmf.solvers import adaptive_weight_als, clicks, noisy_gradient, pooled_als

N_USERS, N_ITEMS = 160, 16
LOW, HIGH = 1.0, 5.0
SLOT = 7  # row of the user who joins, leaves or is replaced
UNRATED = N_ITEMS - 1  # nobody but an adversary rates it
TIED = 7, 8  # rated by the same users, so that one more rating decides which is more popular
BUDGET = PrivacyBudget(20.0, 1e-5)
# Of solver="pooled": so few users support factors then, whatever the noise.
POOLED_BUDGET = PrivacyBudget(30.0, 1e-5)
ROUNDING = 1.0 + 1e-9
ITEM_STATISTICS, START = adaptive_weight_als.ITEM_STATISTICS, adaptive_weight_als.START
# Where solver="pooled" releases residuals, of items and users, if there are no factors.
NO_FACTORS = pooled_als.RATED, pooled_als.START, pooled_als.GRADIENTS, pooled_als.GRAM
# Releases of one row for each item.
BY_ITEM = adaptive_weight_als.GRAM, adaptive_weight_als.RHS, noisy_gradient.GRADIENTS


def base_ratings(seed=0):
    """Ratings 2, 3, 4 of rank two: the ends of the range are left to adversaries."""
    rng = np.random.default_rng(seed)
    taste = 0.9 * rng.normal(size=(N_USERS, 2)) @ rng.normal(size=(2, N_ITEMS))
    X = np.clip(np.rint(3.0 + 0.5 * rng.normal(size=N_ITEMS) + taste), 2.0, 4.0)
    popularity = np.linspace(1.0, 0.15, N_ITEMS)
    X[rng.random(X.shape) > popularity] = np.nan
    X[:, UNRATED] = np.nan
    X[np.isnan(X[:, TIED[0]]), TIED[1]] = np.nan
    X[np.isnan(X[:, TIED[1]]), TIED[0]] = np.nan
    X[SLOT] = np.nan
    X[SLOT, :4] = 2.0, 4.0, 3.0, 4.0
    return X


def adversaries(model, seed=1):
    """Rows by name; two of them know the released model."""
    rng = np.random.default_rng(seed)
    unknown = np.full(N_ITEMS, np.nan)

    def rated(places, values):
        row = unknown.copy()
        row[places] = values
        return row

    everything = np.arange(N_ITEMS)
    taste = np.sign(model.components_[0] + 1e-300)
    return {
        "all low": rated(everything, LOW),
        "all high": rated(everything, HIGH),
        "alternating": rated(everything, np.where(everything % 2, LOW, HIGH)),
        "one popular item": rated(0, LOW),
        "one unrated item": rated(UNRATED, HIGH),
        "one of two tied items": rated(TIED[1], LOW),
        "a popular and a rare item": rated([0, UNRATED], [LOW, HIGH]),
        "nothing": unknown,
        "spammer": rng.choice([LOW, HIGH], N_ITEMS),
        "random": np.where(rng.random(N_ITEMS) < 0.5, rng.uniform(LOW, HIGH, N_ITEMS), np.nan),
        "follows the first factor": np.clip(model.item_means_ + 0.7 * taste, LOW, HIGH),
        "extreme in the first factor": np.where(taste > 0, HIGH, LOW),
    }


def recorded_fit(X, replay=None, *, estimator=AdaptiveWeightALS, levels=None, **params):
    """Fitted model and its releases; max_iter=None for estimators without it."""
    params = {
        "budget": POOLED_BUDGET if params.get("solver") == "pooled" else BUDGET,
        "n_components": 3,
        "max_iter": 3,
        "rating_range": (LOW, HIGH),
        "random_state": 0,
        **params,
    }
    if estimator is AdaptiveWeightALS:
        params = {"solver": "ssp", **params}
    if params["max_iter"] is None:
        del params["max_iter"]
    model = estimator(**params)
    metadata = {} if levels is None else {"user_epsilon": levels}
    with record_releases(replay) as records:
        try:
            model.fit(X, **metadata)
        except PrivacyParameterError as error:
            # replayed, the number and shapes of releases may not depend on the data
            raise AssertionError(str(error)) from error
    return model, records


def is_means(record):
    """Whether item counts and means were released, under whatever name."""
    return record.statistic.shape == (2, N_ITEMS + 1)


def left_out_seed(*, all_rounds, **params):
    """First seed whose fit spends all rounds on the means, or some and not all.

    The choice follows the noise, so that no seed is right for good.
    """
    for seed in range(100):
        _, records = recorded_fit(base_ratings(), random_state=seed, **params)
        n_means = sum(map(is_means, records))
        if n_means == len(records) if all_rounds else 1 < n_means < len(records):
            return seed
    raise LookupError(f"no seed for {params}")


def with_row(X, row):
    X = X.copy()
    X[SLOT] = np.nan if row is None else row
    return X


def alone(row):
    """The row in its slot, all other slots empty."""
    return with_row(np.full((N_USERS, N_ITEMS), np.nan), row)


def fitted_state(model):
    """Everything that fit has left on the model, flat and bit by bit."""
    params = model.get_params(deep=False)
    return {name: _bits(value) for name, value in vars(model).items() if name not in params}


def _bits(value):
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.tobytes()
    if isinstance(value, (tuple, list)):
        return [_bits(part) for part in value]
    if isinstance(value, dict):
        return {name: _bits(part) for name, part in value.items()}
    return repr(value)


def audit(*, share=1.0, **params):
    """Raise AssertionError unless the fit keeps to its plan, whatever one user does.

    The user of `SLOT` may have the given share of the sensitivities, by the own privacy level.
    """
    X = base_ratings()
    model, records = recorded_fit(X, **params)
    check_plan(model, records)
    check_noise_law(records)
    rows = adversaries(model)
    contributions = check_neighbours(X, rows, model, records, share, **params)
    if model.budget.neighbors == "replace":
        for one, two in combinations(rows, 2):
            check_distances(contributions[one], contributions[two], f"{one} for {two}", share)
    check_ratings_are_bounded(X, records, **params)
    if params.get("max_ratings_per_user") and model.max_ratings_per_user < N_ITEMS:
        check_trimming(contributions["spammer"], model.max_ratings_per_user)


def check_plan(model, records):
    """The recorded releases are those of the plan, and the plan spends the budget."""
    plan, budget = model.plan(N_ITEMS), model.budget
    planned = {release.name: release for release in plan.releases}
    counts_clicks = getattr(model, "feedback", "explicit") == "implicit"
    expected = [(release.name, t) for release in plan.releases for t in range(release.count)]
    made = sorted((r.name, r.index) for r in records)
    assert made == sorted(expected), f"releases {made} are not the plan's {sorted(expected)}"
    assert model.privacy_spent_.releases == plan.releases, "plan and statement differ"
    assert model.privacy_spent_.epsilon == plan.epsilon, "plan and statement differ"
    for record in records:
        release = planned[record.name]
        z = record.noise_multiplier
        assert z == release.noise_multiplier > 0.0, f"multiplier of {record}"
        declared = z * record.sensitivity
        assert declared <= record.noise_scale <= declared * (1.0 + 1e-6), f"scale of {record}"
        if is_means(record):  # once more, in the place of a factors' release
            release = planned[ITEM_STATISTICS]
        elif counts_clicks and record.statistic.shape == (N_ITEMS + 1,):
            release = planned[clicks.COUNTS]
        elif record.statistic.shape == (N_ITEMS + 1,) and record.name in NO_FACTORS:
            release = planned[pooled_als.MEANS]
        assert record.sensitivity == release.sensitivity, f"sensitivity of {record}"
        assert record.layout == release.layout, f"layout of {record}"
        if release.name in BY_ITEM:
            assert record.statistic.shape[0] == N_ITEMS, f"items of {record}"
    mu = np.sqrt(sum(record.noise_multiplier**-2.0 for record in records))
    # B. Balle, Y.-X. Wang, ICML 2018, Theorem 8: the closed form, not the package's accountant
    eps = budget.epsilon
    delta = np.exp(log_ndtr(mu / 2 - eps / mu)) - np.exp(eps + log_ndtr(-mu / 2 - eps / mu))
    assert delta <= budget.delta * ROUNDING, f"delta {delta} > {budget.delta}"
    assert 0.999 * eps < plan.epsilon <= eps, f"epsilon {plan.epsilon} of {eps}"


def noise_of(record):
    """Standardised noise of a release: iid standard normal by the claim.

    Laplace noise is taken through its distribution function to a normal one.
    """
    noise = (record.output - record.statistic) / record.noise_scale
    if record.noise == "laplace":
        noise = np.sign(noise) * stats.norm.isf(0.5 * np.exp(-np.abs(noise)))
    if record.layout == "packed":
        d = int(np.sqrt(2 * noise.shape[-1]))
        rows, columns = np.tril_indices(d)
        noise = np.where(rows == columns, noise, np.sqrt(2.0) * noise)
    return noise.ravel()


def check_noise_law(records):
    """Every value has noise of the declared law, independent between releases.

    Each test alarms falsely once in 1e6 fits, about 30 tests an audit; seeds are fixed.
    """
    noises = [(record, noise_of(record)) for record in records]
    for record, z in noises:
        assert np.all(z != 0.0), f"values without noise: {record}"
    by_name = {record.name: [] for record in records}
    for record, z in noises:
        by_name[record.name].append(z)
    everything = np.concatenate([z for _, z in noises])
    for name, z in {
        **{name: np.concatenate(parts) for name, parts in by_name.items()},
        "all releases": everything,
    }.items():
        chance = stats.chi2.cdf(z @ z, z.size)
        assert 5e-7 < chance < 1.0 - 5e-7, f"variance {z @ z / z.size:.3g}: {name}"
    assert stats.kstest(everything, "norm").pvalue > 1e-6, "noise is not normal"
    for (one, z), (two, other) in combinations(noises, 2):
        n = min(z.size, other.size)
        if n < 3:  # fewer values have no correlation
            continue
        r = z[:n] @ other[:n] / np.sqrt((z[:n] @ z[:n]) * (other[:n] @ other[:n]))
        p = stats.beta.sf(r**2, 0.5, (n - 1) / 2)
        assert p > 1e-6, f"correlation {r:.3g}: {one}, {two}"


def check_neighbours(X, rows, model, records, share, **params):
    """Rows against the empty one: bounded, of that row alone, and nothing else leaves.

    Returns each row's own contributions.
    """
    contributions = {}
    without_user, absent = recorded_fit(with_row(X, None), records, **params)
    _, nobody = recorded_fit(alone(None), records, **params)
    for record in nobody:
        assert not record.statistic.any(), f"an empty row contributes to {record}"
    for name, row in rows.items():
        with_user, present = recorded_fit(with_row(X, row), records, **params)
        _, own = recorded_fit(alone(row), records, **params)
        assert len(present) == len(absent) == len(own) == len(records), f"releases with {name}"
        check_distances(present, absent, name, share)
        for a, b, c in zip(present, absent, own, strict=True):
            # the others' contributions are bit-identical
            np.testing.assert_array_equal(
                a.statistic - b.statistic, c.statistic, err_msg=f"others move with {name}: {a}"
            )
        assert fitted_state(with_user) == fitted_state(without_user), f"model with {name}"
        assert fitted_state(with_user) == fitted_state(model), f"model with {name}"
        contributions[name] = own
    return contributions


def check_distances(records, others, name, share=1.0):
    """No release is farther from its neighbour than the share of its sensitivity."""
    for a, b in zip(records, others, strict=True):
        most = share * a.sensitivity
        assert a.distance(b) <= most * ROUNDING, (
            f"{name}: distance {a.distance(b):.6g} > {most:.6g}: {a}"
        )


def check_ratings_are_bounded(X, records, **params):
    """Ratings outside of the range count as its ends, and repeated ones as their mean."""
    signs = np.where(np.arange(N_ITEMS) % 3, 1.0, -1.0)
    _, bounded = recorded_fit(with_row(X, np.where(signs > 0, HIGH, LOW)), records, **params)
    _, wild = recorded_fit(with_row(X, 1e6 * signs), records, **params)
    _assert_same(wild, bounded, "ratings outside of the range")
    _, merged = recorded_fit(with_row(X, 3.0), records, **params)
    rows, columns = np.nonzero(~np.isnan(with_row(X, None)))
    own = np.tile(np.arange(N_ITEMS), 3)
    repeated = sparse.coo_array(
        (
            np.concatenate((X[rows, columns], np.repeat([1.0, 3.0, 5.0], N_ITEMS))),
            (np.concatenate((rows, np.full(own.size, SLOT))), np.concatenate((columns, own))),
        ),
        shape=X.shape,
    )
    _, three = recorded_fit(repeated, records, **params)
    _assert_same(three, merged, "repeated ratings")


def _assert_same(records, others, name):
    for a, b in zip(records, others, strict=True):
        np.testing.assert_array_equal(a.statistic, b.statistic, err_msg=f"{name}: {a}")


def check_trimming(records, cap):
    """One user's contributions hold no more items than the cap."""
    for record in records:
        if record.name in BY_ITEM and not is_means(record):
            items = record.statistic[:N_ITEMS]  # residuals have the users behind them
            held = np.count_nonzero(items.reshape(N_ITEMS, -1).any(axis=1))
            assert held <= cap, f"{held} items of a user, of at most {cap}: {record}"


def replace_release(monkeypatch, change):
    """Plant: every release passes through `change(release, statistic, keywords)`."""
    real = NoiseSource.release

    def release(self, statistic, **keywords):
        return change(lambda s, **kw: real(self, s, **kw), statistic, keywords)

    monkeypatch.setattr(NoiseSource, "release", release)
