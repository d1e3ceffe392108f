"""Plans and statements: the noise they calibrate, what they say, and that they survive JSON."""

import dataclasses
import json
import math

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy import special

from skdpmf.exceptions import PrivacyParameterError
from skdpmf.privacy.accounting import gaussian_epsilon, gaussian_mu
from skdpmf.privacy.budget import PrivacyBudget
from skdpmf.privacy.events import from_dp_event
from skdpmf.privacy.noise import SAMPLER_ETA, SAMPLER_TAU
from skdpmf.privacy.plan import Release, ReleasePlan
from skdpmf.privacy.statement import (
    NOT_COVERED,
    SEEDED_ASSUMPTION,
    STANDARD_ASSUMPTIONS,
    PrivacyStatement,
)

SHARES = {"means": 0.1, "Gram": 0.2, "sums": 0.7}
RELEASES = (
    Release("means", "item counts and sums, one vector", (50, 2), 1.5),
    Release("Gram", "Gram matrices of user vectors", (50, 6), 0.7, count=3, layout="packed"),
    Release("sums", "weighted residuals", (50, 3), 0.4, count=3),
)
BUDGET = PrivacyBudget(1.0, 1e-5)


def make_plan(budget=BUDGET, **kwargs):
    return ReleasePlan.from_shares(budget, RELEASES, SHARES, **kwargs)


def test_release_arithmetic():
    release = Release("a", "b", (20, 5), 0.5, noise_multiplier=4.0, count=4)
    assert release.noise_scale == 2.0
    assert release.mu == 0.5
    assert release.n_values == 400
    assert release.norm == "l2"
    assert Release("a", "b", (), 0.5).n_values == 1
    assert Release("a", "b", (), 0.5).mu == math.inf


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sensitivity": 0.0}, r"sensitivity=0\.0 of release 'a'"),
        ({"sensitivity": math.inf}, "sensitivity=inf"),
        ({"sensitivity": math.nan}, "sensitivity=nan"),
        ({"noise_multiplier": -1.0}, r"noise_multiplier=-1\.0"),
        ({"noise_multiplier": math.inf}, "noise_multiplier=inf"),
        ({"count": 0}, "count=0"),
        ({"count": 1.5}, r"count=1\.5"),
        ({"count": True}, "count=True"),
        ({"layout": "upper"}, "layout='upper'"),
    ],
)
def test_bad_release(change, message):
    with pytest.raises(PrivacyParameterError, match=message):
        Release(**{"name": "a", "statistic": "b", "shape": (3,), "sensitivity": 1.0, **change})


@given(
    st.floats(min_value=0.05, max_value=40.0),
    st.floats(min_value=-10.0, max_value=-2.0).map(lambda x: 10.0**x),
    st.lists(st.floats(min_value=0.01, max_value=1.0), min_size=3, max_size=3),
)
# here the sampler's slack takes nearly all of delta, and rounding mu by an ulp once overspent
@example(33.60154087002487, 1e-10, [0.01, 0.01, 0.25])
def test_the_plan_spends_the_budget_and_never_more(epsilon, delta, raw):
    shares = dict(zip(SHARES, (x / math.fsum(raw) for x in raw), strict=True))
    plan = ReleasePlan.from_shares(PrivacyBudget(epsilon, delta), RELEASES, shares)
    assert plan.epsilon <= epsilon
    # beyond, the rare values for which the sampler is not proved accurate take up delta, not noise
    if 10 * special.ndtr(special.ndtri(SAMPLER_TAU) + gaussian_mu(epsilon, delta)) < delta:
        assert plan.epsilon > 0.999 * epsilon
    assert plan.delta == delta
    assert sum(map(plan.share, plan.releases)) == pytest.approx(1.0)
    for release in plan.releases:
        assert plan.share(release) == pytest.approx(shares[release.name])


def test_half_the_noise_shows():
    """A planted bug: noise divided by sqrt(2) must not pass as the same epsilon."""
    plan = make_plan()
    weaker = dataclasses.replace(
        plan,
        releases=tuple(
            dataclasses.replace(r, noise_multiplier=r.noise_multiplier / math.sqrt(2))
            for r in plan.releases
        ),
    )
    assert plan.epsilon <= 1.0 < 1.4 < weaker.epsilon


def test_repetitions_count():
    """A planted bug: three rounds accounted as one."""
    plan = make_plan()
    once = tuple(dataclasses.replace(r, count=1) for r in plan.releases)
    assert dataclasses.replace(plan, releases=once).epsilon < 0.7 * plan.epsilon


def test_the_sampler_is_paid_for():
    n_values = 50 * (2 + 3 * 6 + 3 * 3)
    plan = make_plan(eta=1e-8, tau=1e-12)
    assert plan.n_values == n_values
    assert plan.epsilon <= 1.0
    assert plan.mu < gaussian_mu(1.0, 1e-5)
    slack = {"n_values": n_values, "eta": 1e-8, "tau": 1e-12}
    assert plan.mu == pytest.approx(gaussian_mu(1.0, 1e-5, **slack), rel=1e-14)
    assert plan.epsilon == gaussian_epsilon(plan.mu, 1e-5, **slack)
    assert gaussian_epsilon(plan.mu, 1e-5) < plan.epsilon - 2e-5
    assert (make_plan().eta, make_plan().tau) == (SAMPLER_ETA, SAMPLER_TAU)
    with pytest.raises(PrivacyParameterError, match="release fewer values"):
        make_plan(eta=1e-3)


@pytest.mark.parametrize(
    ("budget", "shares", "message"),
    [
        (PrivacyBudget(1.0), SHARES, r"delta=0\.0 must be > 0 for Gaussian noise"),
        (PrivacyBudget(-1.0, 1e-5), SHARES, r"epsilon=-1\.0"),
        (PrivacyBudget(-1.0), SHARES, r"epsilon=-1\.0"),
        (BUDGET, {"means": 1.0}, "must name each of the releases"),
        (BUDGET, {**SHARES, "other": 0.1}, "must name each of the releases"),
        (BUDGET, {**SHARES, "sums": 0.6}, "must sum to 1"),
        (BUDGET, {"means": 0.0, "Gram": 0.5, "sums": 0.5}, r"hold 0\.0"),
    ],
)
def test_bad_plans(budget, shares, message):
    with pytest.raises(PrivacyParameterError, match=message):
        ReleasePlan.from_shares(budget, RELEASES, shares)


def test_names_are_unique():
    with pytest.raises(PrivacyParameterError, match="unique names"):
        ReleasePlan(BUDGET, (RELEASES[0], RELEASES[0]))


def test_a_plan_does_not_follow_its_budget():
    budget = PrivacyBudget(1.0, 1e-5)
    plan = make_plan(budget)
    budget.set_params(delta=0.1)
    assert plan.delta == 1e-5


def test_repr_tells_plans_apart_that_print_alike():
    """Seeded noise is keyed by the plan: the key needs repr, str has four digits."""
    close = PrivacyBudget(1.0 + 1e-12, 1e-5)
    assert str(make_plan()) == str(make_plan(close))
    assert repr(make_plan()) != repr(make_plan(close))


def test_an_empty_plan_spends_nothing():
    plan = ReleasePlan(BUDGET, ())
    assert (plan.epsilon, plan.delta, plan.mu) == (0.0, 0.0, 0.0)
    assert "Nothing is released." in str(PrivacyStatement.from_plan(plan))
    assert "epsilon = 0" in str(plan)


def test_without_privacy():
    for delta in (0.0, 1e-5):
        plan = make_plan(PrivacyBudget(math.inf, delta))
        assert not plan.is_private
        assert all(release.noise_multiplier == 0.0 for release in plan.releases)
        assert math.isnan(plan.share(plan.releases[0]))
    statement = PrivacyStatement.from_plan(make_plan(PrivacyBudget.nonprivate()))
    text = str(statement)
    assert "no privacy" in text
    assert "differential privacy" not in text
    assert "Protected" not in text
    assert not statement.is_private


def test_statement_tells_what_the_plan_told():
    plan = make_plan(notes=["one note"])
    statement = PrivacyStatement.from_plan(plan, assumptions=["mine"], not_covered=["theirs"])
    assert statement.releases == plan.releases
    assert statement.epsilon == plan.epsilon
    assert statement.delta == plan.delta
    assert statement.mu == plan.mu
    assert statement.notes == ("one note",)
    assert statement.assumptions == (*STANDARD_ASSUMPTIONS, "mine")
    assert statement.not_covered == (*NOT_COVERED, "theirs")
    table = str(plan).split("\n\n")[2]
    assert table in str(statement)


def test_printed_table():
    lines = str(make_plan()).split("\n")
    start = next(i for i, line in enumerate(lines) if line.startswith("release"))
    head, rule, *rows = lines[start : start + 8]
    assert set(rule) == {"-"}
    assert len(head) == len(rule) == len(rows[0]) == len(rows[2]) == len(rows[4])
    assert rows[0].split()[:5] == ["means", "50", "x", "2", "1"]
    assert rows[0].endswith("10.0 %")
    assert rows[1].strip() == RELEASES[0].statistic


def test_printed_statement():
    statement = PrivacyStatement.from_plan(make_plan())
    text = " ".join(str(statement).split())
    assert "epsilon = 1 and delta = 1e-05" in text
    assert "2.72 times" in text
    for part in ("each user's whole row", *STANDARD_ASSUMPTIONS, *NOT_COVERED):
        assert part in text
    assert "seed" not in text
    assert max(map(len, str(statement).split("\n"))) <= 88


def test_printed_epsilon_is_rounded_up():
    releases = (Release("a", "b", (3,), 1.0, noise_multiplier=1.0),)
    plan = ReleasePlan(PrivacyBudget(9.0, 1e-5), releases)
    assert plan.epsilon == pytest.approx(4.37718, abs=1e-5)
    assert "epsilon = 4.378 " in str(plan)


@pytest.mark.parametrize("unit", ["user", "rating"])
@pytest.mark.parametrize("neighbors", ["add-remove", "replace"])
def test_every_relation_is_described(unit, neighbors):
    budget = PrivacyBudget(1.0, 1e-5, unit=unit, neighbors=neighbors)
    statement = PrivacyStatement.from_plan(make_plan(budget))
    assert (statement.unit, statement.neighbors) == (unit, neighbors)
    text = " ".join(str(statement).split())
    assert ("each user's whole row" in text) == (unit == "user")
    assert ("exchanged" in text) == (neighbors == "replace")


def test_a_seed_is_said_first_and_loudly():
    statement = PrivacyStatement.from_plan(make_plan(), seeded=True)
    assert statement.assumptions[0] == SEEDED_ASSUMPTION
    assert "Warning" in str(statement)
    assert SEEDED_ASSUMPTION in " ".join(str(statement).split())


@pytest.mark.parametrize("seeded", [False, True])
@pytest.mark.parametrize("budget", [BUDGET, PrivacyBudget.nonprivate(neighbors="replace")])
def test_json_round_trip(budget, seeded):
    statement = PrivacyStatement.from_plan(make_plan(budget, notes=["n"]), seeded=seeded)
    text = statement.to_json()
    assert PrivacyStatement.from_json(text) == statement
    assert PrivacyStatement.from_dict(statement.to_dict()) == statement
    json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert str(PrivacyStatement.from_json(text)) == str(statement)


def test_json_of_numpy_numbers():
    release = Release("a", "b", (np.int64(3),), np.float64(1.0), np.float32(2.0), np.int32(2))
    plan = ReleasePlan(PrivacyBudget(np.float64(50.0), np.float64(1e-5)), (release,))
    statement = PrivacyStatement.from_plan(plan)
    assert PrivacyStatement.from_json(statement.to_json()) == statement


@pytest.mark.parametrize("text", ['{"delta": 0}', '{"epsilon": 1, "releases": [], "x": 1}', "{}"])
def test_foreign_json(text):
    with pytest.raises(PrivacyParameterError, match="fields of a PrivacyStatement"):
        PrivacyStatement.from_json(text)


def test_dp_events():
    dp_accounting = pytest.importorskip("dp_accounting")
    from dp_accounting.pld.pld_privacy_accountant import PLDAccountant

    statement = PrivacyStatement.from_plan(make_plan())
    events = statement.to_dp_events()
    assert from_dp_event(dp_accounting.ComposedDpEvent(events)) == statement.events
    accountant = PLDAccountant()
    accountant.compose(dp_accounting.ComposedDpEvent(events))
    assert accountant.get_epsilon(1e-5) == pytest.approx(statement.epsilon, rel=1e-3)
