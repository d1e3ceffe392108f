"""Plans and statements: the noise they calibrate, what they say, and that they survive JSON."""

import dataclasses
import json
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy import special

from skdpmf.books.card import PrivacyCard
from skdpmf.books.search import SearchStatement
from skdpmf.exceptions import PrivacyParameterError
from skdpmf.privacy.accounting import gaussian_epsilon, gaussian_mu
from skdpmf.privacy.budget import PrivacyBudget
from skdpmf.privacy.plan import Release, ReleasePlan
from skdpmf.privacy.pure import PureRelease
from skdpmf.privacy.sampler.laws import LAPLACE_ETA, SAMPLER_ETA, SAMPLER_TAU
from skdpmf.privacy.statement import PrivacyStatement
from skdpmf.privacy.text import (
    LOCAL_ASSUMPTIONS,
    NOT_COVERED,
    PERSONAL_ASSUMPTION,
    PURE_ASSUMPTIONS,
    SEEDED,
    SEEDED_ASSUMPTION,
    STANDARD_ASSUMPTIONS,
    UNDECLARED,
)

SHARES = {"means": 0.1, "Gram": 0.2, "sums": 0.7}
RELEASES = (
    Release("means", "item counts and sums, one vector", (50, 2), 1.5),
    Release("Gram", "Gram matrices of user vectors", (50, 6), 0.7, count=3, layout="packed"),
    Release("sums", "weighted residuals", (50, 3), 0.4, count=3),
)
BUDGET = PrivacyBudget(1.0, 1e-5)


DRAW = PureRelease(
    "draw", "item factors", (50, 4), 2.5, "posterior sample", 5000.0, "weighted loss of a user"
)


REPORT = PureRelease(
    "report of a device", "a user's items", (63,), 2.0, "PrivUnitG", 1.0, "l2 length", count=2
)
LOCAL_BUDGETS = [
    PrivacyBudget(4.0, neighbors="replace"),
    PrivacyBudget(4.0, 1e-6, neighbors="replace"),
    PrivacyBudget(4.0, unit="rating"),
]


def make_plan(budget=BUDGET, **kwargs):
    return ReleasePlan.from_shares(budget, RELEASES, SHARES, **kwargs)


def mixed_plan(draw=DRAW, budget=BUDGET):
    gaussian = make_plan(budget)
    return dataclasses.replace(gaussian, releases=(*gaussian.releases, draw))


def local_plan(budget=LOCAL_BUDGETS[0], **params):
    report = dataclasses.replace(REPORT, epsilon=float(budget.epsilon) / 2)
    return ReleasePlan(budget, (report,), local=True, **params)


def said(text):
    return " ".join(str(text).split())


def test_release_arithmetic():
    release = Release("a", "b", (20, 5), 0.5, noise_multiplier=4.0, count=4)
    assert release.noise_scale == 2.0
    assert release.mu == 0.5
    assert release.norm == "l2"
    assert Release("a", "b", (), 0.5).mu == math.inf


@pytest.mark.parametrize(("epsilon", "says"), [(1.0, False), (40.0, False), (1000.0, True)])
def test_a_plan_says_what_it_cannot_spend(epsilon, says):
    budget = PrivacyBudget(epsilon, 1e-5)
    plan = ReleasePlan.from_shares(budget, RELEASES, SHARES)
    assert any("a larger epsilon changes nothing" in note for note in plan.notes) is says
    assert (plan.epsilon < 0.98 * epsilon) is says


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


def test_the_sampler_is_paid_for():
    n_values = 50 * (2 + 3 * 6 + 3 * 3)
    plan = make_plan()
    assert plan.n_values == n_values
    assert plan.epsilon <= 1.0
    assert plan.mu < gaussian_mu(1.0, 1e-5)
    slack = {"n_values": n_values, "eta": SAMPLER_ETA, "tau": SAMPLER_TAU}
    assert plan.mu == pytest.approx(gaussian_mu(1.0, 1e-5, **slack), rel=1e-14)
    assert plan.epsilon == gaussian_epsilon(plan.mu, 1e-5, **slack)
    assert gaussian_epsilon(plan.mu, 1e-5) < plan.epsilon - 2 * n_values * SAMPLER_ETA
    largest = max(1.0 / release.noise_multiplier for release in plan.releases) / plan.mu
    assert plan.slack == slack | {"largest": pytest.approx(largest, rel=1e-14)}
    with pytest.raises(PrivacyParameterError, match="release fewer values"):
        ReleasePlan.from_shares(BUDGET, [Release("sums", "sums", (2**50,), 1.0)], {"sums": 1.0})


@pytest.mark.parametrize("accuracy", [{"eta": 0.0}, {"tau": 0.0}])
def test_nobody_may_leave_the_sampler_unpaid(accuracy):
    with pytest.raises(TypeError, match="unexpected keyword argument"):
        ReleasePlan(BUDGET, RELEASES, **accuracy)
    with pytest.raises(TypeError, match="unexpected keyword argument"):
        make_plan(**accuracy)
    written = PrivacyStatement.from_plan(make_plan()).to_dict() | accuracy
    with pytest.raises(PrivacyParameterError, match="must hold the fields"):
        PrivacyStatement.from_dict(written)


@pytest.mark.parametrize(
    ("budget", "shares", "message"),
    [
        (PrivacyBudget(1.0), SHARES, r"delta=0\.0 must be > 0 for Gaussian noise"),
        (PrivacyBudget(-1.0, 1e-5), SHARES, r"epsilon=-1\.0"),
        (PrivacyBudget(-1.0), SHARES, r"epsilon=-1\.0"),
        (BUDGET, {"means": 1.0}, "must be a share for each of the"),
        (BUDGET, {**SHARES, "other": 0.1}, "must be a share for each of the"),
        (BUDGET, {**SHARES, "sums": 0.6}, "of sum 1"),
        (BUDGET, {"means": 0.0, "Gram": 0.5, "sums": 0.5}, r"share=0\.0"),
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
    nothing = PrivacyBudget.nonprivate(neighbors="replace")
    for plan in (make_plan(nothing), local_plan(nothing)):
        statement = PrivacyStatement.from_plan(plan)
        assert not statement.is_private
        assert "no privacy" in str(statement)
        for word in ("differential privacy", "Against", "Protected", "trusted"):
            assert word not in str(statement)


@pytest.mark.parametrize(
    "plan",
    [make_plan(notes=["one note"]), *(local_plan(b, notes=["one note"]) for b in LOCAL_BUDGETS)],
)
def test_statement_tells_what_the_plan_told(plan):
    statement = PrivacyStatement.from_plan(plan, assumptions=["mine"], not_covered=["theirs"])
    for name in ("releases", "epsilon", "delta", "mu", "notes", "local"):
        assert getattr(statement, name) == getattr(plan, name)
    assert (statement.unit, statement.neighbors) == (plan.budget.unit, plan.budget.neighbors)
    standard = LOCAL_ASSUMPTIONS if plan.local else STANDARD_ASSUMPTIONS
    assert statement.assumptions == (*standard, "mine")
    assert statement.not_covered == (*NOT_COVERED, "theirs")
    table = str(plan).split("\n\n")[2]
    assert table in str(statement)
    if plan.local:
        assert (plan.epsilon, plan.delta, plan.mu) == (4.0, 0.0, 0.0)
        assert "PrivUnitG, sensitivity: l2 length" in table


def test_printed_statement():
    text = said(PrivacyStatement.from_plan(make_plan()))
    assert "epsilon = 1 and delta = 1e-05" in text
    assert "2.72 times" in text
    for part in ("each user's whole row", *STANDARD_ASSUMPTIONS, *NOT_COVERED):
        assert part in text
    assert "seed" not in text


def test_printed_epsilon_is_rounded_up():
    releases = (Release("a", "b", (3,), 1.0, noise_multiplier=1.0),)
    plan = ReleasePlan(PrivacyBudget(9.0, 1e-5), releases)
    assert plan.epsilon == pytest.approx(4.37718, abs=1e-5)
    assert "epsilon = 4.378 " in str(plan)


@pytest.mark.parametrize(
    ("plan", "standard"), [(make_plan(), STANDARD_ASSUMPTIONS), (local_plan(), LOCAL_ASSUMPTIONS)]
)
def test_a_seed_is_said_first_and_loudly(plan, standard):
    statement = PrivacyStatement.from_plan(plan, seeded=True, personal=True)
    assert statement.assumptions == (SEEDED_ASSUMPTION, PERSONAL_ASSUMPTION, *standard)
    assert statement.unmet == (SEEDED,)
    assert f"NOT MET: {SEEDED}" in said(statement)
    assert SEEDED_ASSUMPTION in said(statement)


@pytest.mark.parametrize(("epsilon", "weak"), [(10.0, False), (10.5, True), (1e6, True)])
def test_an_epsilon_above_ten_is_called_weak(epsilon, weak):
    plan = ReleasePlan(PrivacyBudget(epsilon), (dataclasses.replace(DRAW, epsilon=epsilon),))
    assert ("Strength: WEAK, " in PrivacyStatement.from_plan(plan).summary()) == weak


def check_json(statement):
    text = statement.to_json()
    again = PrivacyStatement.from_json(text)
    assert PrivacyStatement.from_dict(statement.to_dict()) == again == statement
    assert str(again) == str(statement)
    return json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))


PLANS = [
    dataclasses.replace(plan, releases=(*plan.releases, *pure))
    for plan in (make_plan(notes=["n"]), make_plan(PrivacyBudget.nonprivate(neighbors="replace")))
    for pure in ((), (DRAW,), (dataclasses.replace(DRAW, epsilon=math.inf),))
]
PLANS += map(local_plan, (*LOCAL_BUDGETS, PrivacyBudget.nonprivate(neighbors="replace")))


@pytest.mark.parametrize("options", [{}, {"seeded": True}, {"personal": True}])
@pytest.mark.parametrize("plan", PLANS)
def test_json_round_trip(plan, options):
    assert check_json(PrivacyStatement.from_plan(plan, **options))["local"] is plan.local


def test_json_of_numpy_numbers():
    release = Release("a", "b", (np.int64(3),), np.float64(1.0), np.float32(2.0), np.int32(2))
    plan = ReleasePlan(PrivacyBudget(np.float64(50.0), np.float64(1e-5)), (release,))
    check_json(PrivacyStatement.from_plan(plan))


def test_json_names_the_kind():
    plain = PrivacyStatement.from_plan(mixed_plan()).to_dict()
    assert [release["kind"] for release in plain["releases"]] == ["gaussian"] * 3 + ["pure"]
    del plain["releases"][0]["kind"]
    with pytest.raises(PrivacyParameterError, match="kind=None"):
        PrivacyStatement.from_dict(plain)


# --- pure releases -----------------------------------------------------------------------


@pytest.mark.parametrize("delta", [0.0, 1e-5])
def test_a_pure_plan_spends_no_delta(delta):
    draw = dataclasses.replace(DRAW, count=2)
    noise = PureRelease("sums", "item sums", (50,), 0.25, "laplace", 1.0, "l1")
    plan = ReleasePlan(PrivacyBudget(5.25, delta), (draw, noise))
    assert (plan.epsilon, plan.delta, plan.mu, plan.n_values) == (5.25, 0.0, 0.0, 0)
    assert plan.is_private
    assert plan.share(draw) == pytest.approx(5.0 / 5.25)
    assert plan.share(noise) == pytest.approx(0.25 / 5.25)
    statement = PrivacyStatement.from_plan(plan)
    assert (statement.epsilon, statement.delta, statement.mu) == (5.25, 0.0, 0.0)
    assert statement.assumptions == PURE_ASSUMPTIONS
    text = said(statement)
    assert "epsilon = 5.25 (pure: delta = 0)." in text
    assert "191 times as likely. " in text
    for gaussian_only in ("up to a probability", "Gaussian", "noise mult", "and delta =", "mu ="):
        assert gaussian_only not in text


@given(
    st.floats(min_value=0.0, max_value=100.0),
    st.floats(min_value=0.05, max_value=20.0),
    st.integers(1, 5),
)
def test_a_mixture_adds_epsilons_and_never_squares(pure, epsilon, count):
    gaussian = make_plan(PrivacyBudget(epsilon, 1e-5))
    draw = dataclasses.replace(DRAW, epsilon=pure, count=count)
    plan = dataclasses.replace(gaussian, releases=(*gaussian.releases, draw))
    assert plan.mu == gaussian.mu
    assert plan.n_values == gaussian.n_values
    assert plan.delta == 1e-5
    assert Fraction(plan.epsilon) >= Fraction(gaussian.epsilon) + count * Fraction(pure)
    assert plan.epsilon == pytest.approx(gaussian.epsilon + count * pure, rel=1e-14)
    shares = [plan.share(release) for release in plan.releases]
    assert math.fsum(shares) == pytest.approx(1.0)
    assert shares[-1] == pytest.approx(count * pure / plan.epsilon)
    assert shares[2] == pytest.approx(0.7 * gaussian.epsilon / plan.epsilon)


def test_no_privacy_in_either_part_is_none_at_all():
    endless = dataclasses.replace(DRAW, epsilon=math.inf)
    for plan in (
        mixed_plan(endless),
        mixed_plan(budget=PrivacyBudget.nonprivate()),
        ReleasePlan(BUDGET, (endless,)),
    ):
        assert plan.epsilon == math.inf
        assert not plan.is_private
        assert all(math.isnan(plan.share(release)) for release in plan.releases)
        assert "no privacy" in str(plan)
    nothing = ReleasePlan(BUDGET, (dataclasses.replace(DRAW, epsilon=0.0),))
    assert nothing.epsilon == 0.0
    assert math.isnan(nothing.share(nothing.releases[0]))
    assert "epsilon = 0 (pure" in str(nothing)


def test_a_plan_of_both_kinds_prints_both():
    plan = mixed_plan()
    text = str(plan)
    gaussian, pure = text.split("\n\n")[2:4]
    assert gaussian.split("\n")[0].split()[-2:] == ["sd", "share"]
    assert "noise mult.: noise sd / L2 sens." in " ".join(text.split())
    head, rule, row, words, *legend = pure.split("\n")
    assert "sensitivity: what one change does at most" in " ".join(legend)
    assert head.split() == ["release", "values", "times", "sensitivity", "epsilon", "share"]
    assert len(head) == len(rule) == len(row)
    assert row.split() == ["draw", "50", "x", "4", "1", "5000", "2.5", "71.4", "%"]
    for part in (DRAW.statistic, DRAW.mechanism, DRAW.norm):
        assert part in words
    said = " ".join(text.split())
    assert "epsilon = 3.5 and delta = 1e-05" in said
    assert "pure part epsilon = 2.5" in said
    assert "up to a probability of 1e-05" in said
    statement = PrivacyStatement.from_plan(plan)
    assert gaussian in str(statement)
    assert pure in str(statement)
    assert max(map(len, str(statement).split("\n"))) <= 88


# --- Laplace noise -----------------------------------------------------------------------

LAPLACE = (
    PureRelease("means", "item counts and sums", (50, 2), 0.0, "laplace", 1.5, "l1"),
    PureRelease("Gram", "upper triangles", (2, 5050), 0.0, "laplace", 0.7, "l1", count=3),
    PureRelease("sums", "weighted residuals", (50, 3), 0.0, "laplace", 0.4, "l1", count=2),
)


def laplace_plan(budget, shares=SHARES, releases=LAPLACE):
    return ReleasePlan.from_shares(budget, releases, shares)


@given(
    st.floats(min_value=1e-6, max_value=1e3),
    st.sampled_from([0.0, 1e-5]),
    st.lists(st.floats(min_value=0.01, max_value=1.0), min_size=3, max_size=3),
)
@example(2.0, 0.0, [0.3, 0.76, 0.14])  # the shares' exact sum is above 1, fsum's is not
def test_a_laplace_plan_spends_epsilon_by_shares_and_never_more(epsilon, delta, raw):
    shares = dict(zip(SHARES, (x / math.fsum(raw) for x in raw), strict=True))
    plan = laplace_plan(PrivacyBudget(epsilon, delta), shares)
    exact = sum(Fraction(release.epsilon) * release.count for release in plan.releases)
    assert exact <= Fraction(epsilon)
    assert 0.999 * epsilon < plan.epsilon <= epsilon
    assert (plan.delta, plan.mu) == (0.0, 0.0)
    for release in plan.releases:
        assert plan.share(release) == pytest.approx(shares[release.name])
        # epsilon pays for the noise and, in full, for the sampler's slack over every value
        slack = 2 * Fraction(LAPLACE_ETA) * math.prod(release.shape)
        left = Fraction(release.epsilon) - slack
        assert Fraction(release.noise_multiplier) * left >= 1
        assert Fraction(math.nextafter(release.noise_multiplier, 0.0)) * left < 1


def test_laplace_noise_without_privacy_and_without_epsilon():
    plan = laplace_plan(PrivacyBudget.nonprivate())
    assert not plan.is_private
    assert [(r.noise_multiplier, r.noise_scale) for r in plan.releases] == [(0.0, 0.0)] * 3
    assert LAPLACE[0].noise_multiplier == math.inf
    slack = 2 * LAPLACE_ETA * 100
    for epsilon in (slack, 1e-300):
        release = dataclasses.replace(LAPLACE[0], epsilon=epsilon)
        assert release.noise_multiplier == math.inf
    release = dataclasses.replace(LAPLACE[0], epsilon=2 * slack)
    assert release.noise_multiplier == 1 / slack
    with pytest.raises(PrivacyParameterError, match="slack of the sampler for its 10100 values"):
        laplace_plan(PrivacyBudget(1e-12))


def test_only_laplace_noise_has_a_multiplier():
    for release in (DRAW, dataclasses.replace(DRAW, mechanism="laplace")):
        assert not release.is_laplace
        with pytest.raises(PrivacyParameterError, match="to have a noise multiplier"):
            _ = release.noise_multiplier


@pytest.mark.parametrize(
    "releases",
    [
        (RELEASES[0], *LAPLACE[1:]),
        (*LAPLACE[:2], RELEASES[2]),
        (dataclasses.replace(DRAW, name="means"), *LAPLACE[1:]),
        (dataclasses.replace(LAPLACE[0], norm="l2"), *LAPLACE[1:]),
        tuple(dataclasses.replace(DRAW, name=name) for name in SHARES),
    ],
)
def test_kinds_do_not_mix_in_shares(releases):
    with pytest.raises(PrivacyParameterError, match="must all be Release, or all PureRelease"):
        laplace_plan(BUDGET, releases=releases)


@pytest.mark.parametrize("budget", [PrivacyBudget(1.0), PrivacyBudget.nonprivate()])
def test_a_laplace_statement_tells_the_scale(budget):
    plan = laplace_plan(budget)
    statement = PrivacyStatement.from_plan(plan)
    told = check_json(statement)
    assert [r["noise_scale"] for r in told["releases"]] == [r.noise_scale for r in plan.releases]
    lines = str(statement).split("\n")
    start = next(i for i, line in enumerate(lines) if line.startswith("release"))
    head, rule, *rows = lines[start : start + 8]
    assert head.split()[3:] == ["sensitivity", "epsilon", "noise", "scale", "share"]
    assert len(head) == len(rule) == len(rows[0]) == len(rows[2]) == len(rows[4])
    for row, release in zip(rows[::2], plan.releases, strict=True):
        assert row.split()[-3 if budget.is_private else -2] == f"{release.noise_scale:.4g}"
    assert "laplace, sensitivity: l1" in rows[1]
    # beside another pure mechanism, which has no scale
    both = ReleasePlan(PrivacyBudget(9.0), (*plan.releases, DRAW))
    assert " 2.5            -" in str(both)
    found = json.loads(PrivacyStatement.from_plan(both).to_json())["releases"][3]
    # the layout belongs to the class
    assert found.keys() == {"kind", *DRAW.__dataclass_fields__} - {"layout"}


# --- conditions and personal levels ------------------------------------------------------


def test_a_condition_is_part_of_the_guarantee():
    condition = "the chain having converged"
    plain = PrivacyStatement.from_plan(mixed_plan())
    plan = dataclasses.replace(mixed_plan(), condition=condition)
    statement = PrivacyStatement.from_plan(plan)
    assert statement.condition == condition
    for told in (plan, statement):
        text = said(told)
        assert f"Guarantee: CONDITIONAL on {condition}: differential privacy" in text
        assert "if the condition fails, nothing is promised" in text
    assert "condition" not in str(plain).lower()
    endless = ReleasePlan(
        PrivacyBudget.nonprivate(),
        (dataclasses.replace(DRAW, epsilon=math.inf),),
        condition=condition,
    )
    assert "CONDITIONAL" not in str(PrivacyStatement.from_plan(endless))
    local = said(local_plan(condition="luck"))
    assert "Guarantee: CONDITIONAL on luck: local differential privacy" in local


def test_personal_levels():
    statement = PrivacyStatement.from_plan(mixed_plan(), personal=True)
    assert PERSONAL_ASSUMPTION in statement.assumptions
    assert statement.epsilon_for(0.0) == 0.0
    assert statement.epsilon_for(np.float32(0.5)) == 0.5
    for level in (statement.epsilon, 10.0, math.inf):
        assert statement.epsilon_for(level) == statement.epsilon
    text = said(statement)
    assert "level e <= epsilon is protected with epsilon e (same delta)" in text
    assert "level 0 has no influence" in text
    pure = PrivacyStatement.from_plan(ReleasePlan(PrivacyBudget(2.5), (DRAW,)), personal=True)
    assert "epsilon e, whatever" in said(pure)
    assert "same delta" not in str(pure)


@pytest.mark.parametrize("level", [-1.0, math.nan, "1", None, True])
def test_bad_levels(level):
    statement = PrivacyStatement.from_plan(mixed_plan(), personal=True)
    with pytest.raises(PrivacyParameterError, match="level="):
        statement.epsilon_for(level)


def test_levels_promise_nothing_where_there_are_none():
    statement = PrivacyStatement.from_plan(mixed_plan())
    assert PERSONAL_ASSUMPTION not in statement.assumptions
    assert "Personal" not in str(statement)
    with pytest.raises(PrivacyParameterError, match="personal=False"):
        statement.epsilon_for(1.0)
    free = mixed_plan(budget=PrivacyBudget.nonprivate())
    statement = PrivacyStatement.from_plan(free, personal=True)
    assert statement.epsilon_for(1.0) == math.inf
    assert "Personal" not in str(statement)


def test_the_short_form_is_five_lines_that_agree_with_the_long_one():
    statement = PrivacyStatement.from_plan(make_plan())
    lines = statement.summary().splitlines()
    assert len(lines) == 5
    assert "epsilon 1, delta 1e-05" in lines[1]
    assert f"the {len(statement.assumptions)} assumptions in" in lines[2]
    seeded = PrivacyStatement.from_plan(make_plan(), seeded=True)
    undeclared = seeded.with_undeclared(("users",))
    assert undeclared.unmet == (SEEDED, UNDECLARED["users"])
    assert f"NOT MET: {' '.join(undeclared.unmet)}" in undeclared.summary()
    plan = ReleasePlan.from_shares(PrivacyBudget.nonprivate(), RELEASES, SHARES)
    assert PrivacyStatement.from_plan(plan).summary().startswith("Protected: nobody.")
    conditional = PrivacyStatement.from_plan(dataclasses.replace(make_plan(), condition="luck"))
    assert "luck; without it nothing is promised" in conditional.summary()


# --- the local model ---------------------------------------------------------------------


@pytest.mark.parametrize("budget", LOCAL_BUDGETS, ids=str)
def test_a_local_guarantee_is_about_what_a_device_sends(budget):
    plan = local_plan(budget)
    statement = PrivacyStatement.from_plan(plan)
    for text in (said(plan), said(statement)):
        assert "Guarantee: local differential privacy with epsilon = 4 (pure: delta = 0)." in text
        assert "nothing that the device may send becomes more than 54.6 times as likely." in text
        assert "no outcome of the fit" not in text
    text = said(statement)
    assert "Against: anyone who sees all that a user's device sends, the server" in text
    assert "No trusted server is needed." in text
    assert "anyone who sees the fitted model" not in text
    assert max(map(len, str(statement).split("\n"))) <= 88
    for part in (*LOCAL_ASSUMPTIONS, *NOT_COVERED):
        assert part in text
    assert "seed" not in text


def test_central_and_local_statements_are_told_apart():
    """They differ in all that says whom one has to trust, and in nothing else."""
    local, central = local_plan(), dataclasses.replace(local_plan(), local=False)
    assert local != central
    assert repr(local) != repr(central)  # which is in the key of a seeded fit
    one, two = PrivacyStatement.from_plan(local), PrivacyStatement.from_plan(central)
    changed = {"local": False, "assumptions": PURE_ASSUMPTIONS}
    assert dataclasses.replace(one, **changed) == two
    assert "no outcome of the fit" in said(two)
    assert "anyone who sees the fitted model" in said(two)
    for part in ("local differential privacy", "trusted server"):
        assert part not in said(two)
    # neither kind of central assumptions: nobody collects ratings, and no noise is on an item
    for part in {*PURE_ASSUMPTIONS, *STANDARD_ASSUMPTIONS} - {*LOCAL_ASSUMPTIONS}:
        assert part not in said(one)
    assert not PrivacyStatement.from_plan(make_plan()).local


# --- loaded statements and cards: what cannot be is refused --------------------------------

IMPOSSIBLE = {
    **{key: [-1, math.nan, "x", None] for key in ("epsilon", "delta")},
    **{key: [None, 3] for key in ("unit", "neighbors", "condition")},
    **{key: ["x", None, [1]] for key in ("assumptions", "not_covered", "notes")},
    **{key: ["x", None, 2] for key in ("seeded", "personal", "local")},
    "releases": [None, 3, "x", [3], [{}]],
    "more": [1],
}
IMPOSSIBLE_RELEASE = {
    "kind": [None, "x", [1]],
    "shape": [None, 3, "x", [-1], [1.5], [math.nan]],
    "count": [None, 0, 1.5, "x", math.inf, True],
    **{key: [None, 3, ""] for key in ("name", "statistic")},
    "sensitivity": [None, -1, "x", math.nan, math.inf, 0.0],
}
IMPOSSIBLE_GAUSSIAN = {
    **IMPOSSIBLE_RELEASE,
    "noise_multiplier": [None, -1, "x", math.nan, math.inf],
    "layout": [None, "upper"],
}
IMPOSSIBLE_PURE = {
    **IMPOSSIBLE_RELEASE,
    "epsilon": [None, -0.1, "2", math.nan, True],
    **{key: [None, 3, ""] for key in ("mechanism", "norm")},
}


@pytest.mark.parametrize(
    ("name", "value", "place"),
    [
        (name, value, place)
        for place, table in enumerate((IMPOSSIBLE_GAUSSIAN, IMPOSSIBLE_PURE, IMPOSSIBLE))
        for name, values in table.items()
        for value in values
    ],
)
def test_loaded_statements_of_impossible_values_are_refused(name, value, place):
    counts = Release("counts", "ratings per item", (9,), 1.0, noise_multiplier=2.0)
    statement = PrivacyStatement(4.0, 1e-5, "user", "replace", (counts, DRAW))
    plain = statement.to_dict()
    assert PrivacyStatement.from_dict(plain) == statement
    (*plain["releases"], plain)[place][name] = value
    with pytest.raises(PrivacyParameterError) as caught:
        PrivacyStatement.from_dict(plain)
    assert name in str(caught.value)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "3", None, b"\xff"])
@pytest.mark.parametrize("kind", [PrivacyStatement, SearchStatement, PrivacyCard])
def test_texts_that_are_no_statement_are_refused(kind, text):
    with pytest.raises(PrivacyParameterError, match=r"to_json wrote"):
        kind.from_json(text)


@pytest.mark.parametrize(
    ("name", "value"),
    [("shape", -2.0), ("shape", "x"), ("mean", math.nan), ("n_refit", 2), ("n_refit", "x")],
)
def test_loaded_searches_of_impossible_values_are_refused(name, value):
    counts = Release("counts", "ratings per item", (9,), 1.0, noise_multiplier=2.0)
    statement = SearchStatement(4.0, 1e-5, "user", "replace", (counts,))
    with pytest.raises(PrivacyParameterError, match=name):
        SearchStatement.from_dict({**statement.to_dict(), name: value})
