"""What the tests of the core share: small data, adversaries, recorded fits, and checks of records.

A fit is recorded, and replayed on data in which one row is another one: everything before a release
is then fixed, and its distance is that of neighbouring data (method: "Re:cord-play",
arXiv 2602.17454).
"""

from itertools import combinations

import numpy as np
from scipy import stats

from skdpmf import AdaptiveWeightALS, PrivacyBudget
from skdpmf.exceptions import PrivacyParameterError
from skdpmf.privacy.curator_release import Curator
from skdpmf.privacy.recording import Recorder, RecordingNoise, record_releases
from skdpmf.privacy.sampler.streams import derived_key
from skdpmf.privacy.users import Users
from tests.built import built

N_USERS, N_ITEMS = 160, 16
LOW, HIGH = 1.0, 5.0
SLOT = 7  # row of the user who joins, leaves or is replaced
UNRATED = N_ITEMS - 1  # nobody but an adversary rates it
TIED = 7, 8  # rated by the same users, so that one more rating decides which is more popular
# So few users support factors at these budgets alone
BUDGET = PrivacyBudget(20.0, 1e-5)
POOLED_BUDGET = PrivacyBudget(30.0, 1e-5)
CLICKS_BUDGET = PrivacyBudget(50.0, 1e-5)
CLICKS = {"feedback": "implicit", "budget": CLICKS_BUDGET}
ROUNDING = 1.0 + 1e-9


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


def base_clicks(seed=0):
    """Clicks of rank two, a tenth of them of half weight; nobody but an adversary on UNRATED."""
    rng = np.random.default_rng(seed)
    taste = rng.normal(size=(N_USERS, 2)) @ rng.normal(size=(2, N_ITEMS))
    X = np.where(taste + np.linspace(1.0, -2.0, N_ITEMS) > 0.0, 1.0, np.nan)
    X[rng.random(X.shape) < 0.1] *= 0.5
    X[:, UNRATED] = np.nan
    X[:, TIED[1]] = X[:, TIED[0]]
    X[SLOT] = np.nan
    X[SLOT, :4] = 1.0
    return X


def adversaries(model=None, seed=1):
    """Rows by name; some of them know the released model."""
    rng = np.random.default_rng(seed)
    unknown = np.full(N_ITEMS, np.nan)

    def rated(places, values):
        row = unknown.copy()
        row[places] = values
        return row

    everything = np.arange(N_ITEMS)
    rows = {
        "nothing": unknown,
        "all low": rated(everything, LOW),
        "all high": rated(everything, HIGH),
        "alternating": rated(everything, np.where(everything % 2, LOW, HIGH)),
        "one popular item": rated(0, LOW),
        "one unrated item": rated(UNRATED, HIGH),
        "one of two tied items": rated(TIED[1], LOW),
        "a popular and a rare item": rated([0, UNRATED], [LOW, HIGH]),
        "spammer": rng.choice([LOW, HIGH], N_ITEMS),
        "random": np.where(rng.random(N_ITEMS) < 0.5, rng.uniform(LOW, HIGH, N_ITEMS), np.nan),
        "beyond the range": rng.choice([-1e6, 1e6], N_ITEMS),
        "hardly": rated(everything, 1e-3),
    }
    components = getattr(model, "components_", None)
    if components is not None and len(components):
        taste = np.sign(components[0] + 1e-300)
        means = getattr(model, "item_means_", np.full(N_ITEMS, 3.0))
        rows["follows the first factor"] = np.clip(means + 0.7 * taste, LOW, HIGH)
        rows["extreme in the first factor"] = np.where(taste > 0, HIGH, LOW)
        rows["half of the items, by the first factor"] = np.where(taste > 0, 1.0, np.nan)
    if getattr(model, "item_means_", None) is not None:
        rows["far from the means"] = np.where(model.item_means_ < 3.0, HIGH, LOW)
    return rows


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
        params = {"solver": "dpals", **params}
    if params["max_iter"] is None:
        del params["max_iter"]
    model = built(estimator, **params)
    metadata = {} if levels is None else {"user_epsilon": levels}
    with record_releases(replay) as records:
        try:
            model.fit(X, **metadata)
        except PrivacyParameterError as error:
            # replayed, the number and shapes of releases may not depend on the data
            raise AssertionError(str(error)) from error
    return model, records


def with_row(X, row):
    X = X.copy()
    X[SLOT] = np.nan if row is None else row
    return X


def alone(row):
    """The row in its slot, all other slots empty."""
    return with_row(np.full((N_USERS, N_ITEMS), np.nan), row)


def fitted_state(model):
    """Everything that fit has left on the model, flat and bit by bit."""
    params = model.get_params(deep=False) if hasattr(model, "get_params") else {}
    return {name: _bits(value) for name, value in vars(model).items() if name not in params}


def _bits(value):
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.tobytes()
    if isinstance(value, (tuple, list)):
        return [_bits(part) for part in value]
    if isinstance(value, dict):
        return {name: _bits(part) for name, part in value.items()}
    return repr(value)


def check_plan(plan, statement, records):
    """The recorded releases are those of the plan, and statement and plan spend the budget."""
    budget = plan.budget
    planned = {release.name: release for release in plan.releases}
    expected = sorted((r.name, t) for r in plan.releases for t in range(r.count))
    made = sorted((r.name, r.index) for r in records)
    assert made == expected, f"releases {made} are not the plan's {expected}"
    assert (statement.epsilon, statement.delta) == (plan.epsilon, plan.delta), "they differ"
    assert statement.is_private
    assert statement.notes == plan.notes
    assert (statement.unit, statement.neighbors) == (budget.unit, budget.neighbors)
    for record in records:
        slot = planned[record.name]
        kinds = [planned[name] for name in (slot.name, *slot.alternatives)]
        z = record.noise_multiplier
        assert z == slot.noise_multiplier > 0.0, f"multiplier of {record}"
        declared = z * record.sensitivity
        assert declared <= record.noise_scale <= declared * (1.0 + 1e-6), f"scale of {record}"
        assert record.noise == ("gaussian" if slot.kind == "gaussian" else "laplace")
        assert any(
            record.sensitivity <= kind.sensitivity
            and record.layout == getattr(kind, "layout", "full")
            and len(kind.shape) == record.statistic.ndim
            and all(np.less_equal(record.statistic.shape, kind.shape))
            for kind in kinds
        ), f"{record} is none of {kinds}"
    check_budget(budget, [(r.noise, r.noise_multiplier) for r in records])
    assert 0.999 * budget.epsilon < plan.epsilon <= budget.epsilon, f"epsilon {plan.epsilon}"
    shapes = sorted(r.statistic.shape for r in records)
    stated = sorted(r.shape for r in statement.releases for _ in range(r.count))
    assert shapes == stated, f"shapes {stated} are stated, and {shapes} were released"


def cost_of(releases):
    """What each repetition costs, in order of size: whatever statistic it held."""
    return sorted(
        release.noise_multiplier if release.kind == "gaussian" else release.epsilon
        for release in releases
        for _ in range(release.count)
    )


def check_budget(budget, drawn):
    """Noise multipliers spend no more than the budget, by closed forms of other hands."""
    pure = sum(1.0 / z for noise, z in drawn if noise == "laplace")
    assert pure <= budget.epsilon * ROUNDING, f"epsilon {pure}"
    mu = np.sqrt(sum(z**-2.0 for noise, z in drawn if noise == "gaussian"))
    if mu > 0.0:
        # B. Balle, Y.-X. Wang, ICML 2018, Theorem 8: the closed form, not the package's accountant
        eps, log_ndtr = budget.epsilon, stats.norm.logcdf
        delta = np.exp(log_ndtr(mu / 2 - eps / mu)) - np.exp(eps + log_ndtr(-mu / 2 - eps / mu))
        assert delta <= budget.delta * ROUNDING, f"delta {delta} > {budget.delta}"


def noise_of(record):
    """Standardised noise of a release: iid standard normal by the claim.

    Laplace noise is taken through its distribution function to a normal one.
    """
    noise = (record.output - record.statistic) / record.noise_scale
    if record.noise == "laplace":
        noise = np.sign(noise) * stats.norm.isf(0.5 * np.exp(-np.abs(noise)))
    if record.layout == "packed":
        noise = np.where(_diagonal(record), noise, np.sqrt(2.0) * noise)
    return noise.ravel()


def _diagonal(record):
    """Which entries of packed triangles are diagonal."""
    rows, columns = np.tril_indices(int(np.sqrt(2 * record.statistic.shape[-1])))
    return np.broadcast_to(rows == columns, record.statistic.shape)


def check_noise_law(records):
    """Every value has noise of the declared law, independent within and between releases.

    Each test alarms falsely once in 1e6 fits, about 30 tests an audit; seeds are fixed.
    """
    noises = [(record, noise_of(record)) for record in records]
    groups = {"all releases": [z for _, z in noises]}
    for record, z in noises:
        assert np.all(z != 0.0), f"values without noise: {record}"
        groups.setdefault(record.name, []).append(z)
        if record.layout == "packed":
            diagonal = _diagonal(record).ravel()
            groups.setdefault(f"diagonal of {record.name}", []).append(z[diagonal])
            groups.setdefault(f"off the diagonal of {record.name}", []).append(z[~diagonal])
    for name, parts in groups.items():
        z = np.concatenate(parts)
        chance = stats.chi2.cdf(z @ z, z.size)
        assert 5e-7 < chance < 1.0 - 5e-7, f"variance {z @ z / z.size:.3g}: {name}"
    assert stats.kstest(np.concatenate(groups["all releases"]), "norm").pvalue > 1e-6, (
        "noise is not normal"
    )
    pairs = list(combinations(noises, 2))
    # two statistics may be one release
    halves = [(r, z.reshape(2, -1)) for r, z in noises if len(r.output) == 2]
    pairs += [((r, one), (r, two)) for r, (one, two) in halves]
    for (one, z), (two, other) in pairs:
        n = min(z.size, other.size)
        if n < 3:  # fewer values have no correlation
            continue
        r = z[:n] @ other[:n] / np.sqrt((z[:n] @ z[:n]) * (other[:n] @ other[:n]))
        p = stats.beta.sf(r**2, 0.5, (n - 1) / 2)
        assert p > 1e-6, f"correlation {r:.3g}: {one}, {two}"


def check_distances(records, others, name, share=1.0):
    """No release is farther from its neighbour than the share of its sensitivity."""
    assert len(records) == len(others), f"releases with {name}"
    for a, b in zip(records, others, strict=True):
        most = share * a.sensitivity
        assert a.distance(b) <= most * ROUNDING, (
            f"{name}: distance {a.distance(b):.6g} > {most:.6g}: {a}"
        )


def recorded_curator(R, plan, *, seed=0, n_jobs=1, features=None):
    """Curator of these ratings, and the list that its releases are noted in."""
    recorder = Recorder(None)
    noise = RecordingNoise(derived_key(seed, "test"), recorder)
    return Curator(R, plan, noise, n_jobs, features), recorder.recording


def users_of(R, *, private=True, n_slots=None, neighbors="add-remove", unit="user"):
    """Users of these ratings, for sums that nobody releases."""
    slots = max(R.shape[0], 1) if n_slots is None else n_slots
    return Users(R, n_slots=slots, unit=unit, neighbors=neighbors, private=private, n_jobs=1)
