"""The rules of a ledger: what is charged, what a limit allows, and that it holds."""

import math
import re
from decimal import Decimal
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skdpmf import PrivacyLedger
from skdpmf.books import ledger_rules as rules
from skdpmf.books.ledger_rules import (
    SCALE,
    TAU,
    Amount,
    Spending,
    charge,
    limit_of,
    mu_beside_a_ledger,
    spent_epsilon,
)
from skdpmf.exceptions import BudgetExceededError, PrivacyParameterError
from skdpmf.privacy import PrivacyBudget
from skdpmf.privacy.accounting import gaussian_delta, gaussian_mu
from skdpmf.privacy.pure import PureRelease, mu_to_pure_epsilon
from skdpmf.privacy.sampler.laws import SAMPLER_ETA, SAMPLER_TAU
from tests.books.ledgers import (
    calibrated_plan,
    gaussian_plan,
    gdp_delta,
    mixed_plan,
    new_ledger,
    pure_mu,
    pure_plan,
    reserve_all,
    tail_delta,
    zcdp_delta,
)

epsilons = st.floats(min_value=0.01, max_value=20.0)
deltas = st.floats(min_value=-10.0, max_value=-2.0).map(lambda x: 10.0**x)
LIMITS = [(0.1, 1e-6), (1.0, 1e-5), (4.0, 1e-5), (1.0, 1e-9), (20.0, 1e-5)]


def cost(rule, plan):
    return charge(rule, Spending.of(plan))


@pytest.mark.parametrize("mu", [1e-4, 0.01, 0.3, 2.0, 5.0])
@pytest.mark.parametrize("n_values", [1, 10**4, 10**9])
@pytest.mark.parametrize(("rule", "half"), [("gaussian", 1), ("zcdp", 2)])
def test_a_gaussian_plan_costs_its_mu_and_the_samplers(rule, half, mu, n_values):
    plan = gaussian_plan(mu, n_values)
    z = plan.releases[0].noise_multiplier
    sampler = pure_mu(SAMPLER_ETA + 2 * SAMPLER_TAU)
    with mpmath.workdps(60):
        exact = (1 / mpmath.mpf(z) + 2 * sampler * mpmath.sqrt(n_values)) ** 2 / half
        charged = mpmath.mpf(cost(rule, plan).main) / SCALE
        assert exact <= charged <= exact * (1 + mpmath.mpf(1e-12) + 3e-9 * sampler / mu)
    assert cost(rule, plan).second == n_values


@pytest.mark.parametrize("epsilon", [1e-6, 0.01, 0.5, 1.0, 3.0, 30.0, 500.0])
def test_a_pure_plan_costs_what_every_such_mechanism_is_worth(epsilon):
    plan = pure_plan(epsilon, count=3)
    exact = 3 * pure_mu(epsilon) ** 2
    charged = mpmath.mpf(cost("gaussian", plan).main) / SCALE
    assert exact <= charged <= exact * (1 + mpmath.mpf(1e-11))
    unit = Fraction(3) * Fraction(epsilon)
    assert Fraction(cost("basic", plan).main, SCALE) == unit
    assert cost("basic", plan).second == cost("zcdp", plan).second == 0
    assert 0 <= Fraction(cost("zcdp", plan).main, SCALE) - unit * Fraction(epsilon) / 2 < 2**-150


def test_a_plan_is_charged_for_all_its_releases():
    mixed, parts = mixed_plan(0.1, 0.2), (gaussian_plan(0.1), pure_plan(0.2))
    for rule in ("gaussian", "zcdp", "basic"):
        whole, summed = cost(rule, mixed), [cost(rule, part) for part in parts]
        assert whole.second == summed[0].second + summed[1].second
        assert abs(whole.main - summed[0].main - summed[1].main) <= 1


def test_basic_charges_the_plans_own_epsilon_and_delta():
    plan = calibrated_plan(PrivacyBudget(0.7, 1e-6), n_values=1000)
    assert float(Fraction(cost("basic", plan).main, SCALE)) == plan.epsilon
    assert Fraction(cost("basic", plan).second, SCALE) == Fraction(1e-6)
    mixed = mixed_plan(0.1, 0.25)
    assert float(Fraction(cost("basic", mixed).main, SCALE)) == pytest.approx(mixed.epsilon, 1e-15)
    with pytest.raises(PrivacyParameterError, match=r"delta=0.0 of the plan must be > 0"):
        cost("basic", gaussian_plan(0.1, budget=PrivacyBudget(1.0)))


@pytest.mark.parametrize(("epsilon", "delta"), LIMITS)
def test_limits_leave_room_for_the_sampler_and_are_nearly_tight(epsilon, delta):
    exact = {"gaussian": gdp_delta, "zcdp": lambda rho, eps: zcdp_delta(rho, eps)}
    for rule, formula in exact.items():
        limit = limit_of(rule, epsilon, delta)
        number = limit.number
        mu = math.sqrt(number if rule == "gaussian" else 2.0 * number)
        main = formula(mu if rule == "gaussian" else number, epsilon)
        tails = tail_delta(mu, limit.second, TAU)
        assert main + tails <= delta * (1 + 1e-15)
        assert main + tails >= delta * (1 - 2e-6)
        assert 2 * limit.second * TAU <= 1e-3 * delta


def test_what_no_amount_can_hold_is_rounded_to_the_private_side():
    unit = Fraction(1, SCALE)
    for x in (1e-40, 3e-45, 1e-300):  # have bits below 2^-160
        exact, limit = Fraction(x), limit_of("basic", x, x)
        charged = Fraction(cost("basic", pure_plan(x)).main, SCALE)
        assert exact < charged < exact + 2 * unit
        for part in (limit.main, limit.second):
            assert exact - unit < Fraction(part, SCALE) < exact
    assert Fraction(cost("zcdp", pure_plan(1e-30)).main, SCALE) > Fraction(1e-30) ** 2 / 2


@pytest.mark.parametrize(("epsilon", "delta"), LIMITS)
def test_what_is_spent_at_the_limit_is_worth_the_limit(epsilon, delta):
    for rule in ("gaussian", "zcdp", "basic"):
        limit = limit_of(rule, epsilon, delta)
        assert epsilon <= spent_epsilon(rule, limit, delta) <= epsilon * (1 + 1e-6)
        half = Amount(limit.main // 2, 0)
        assert 0.0 < spent_epsilon(rule, half, delta) < epsilon
        assert spent_epsilon(rule, Amount(0, 0), delta) == 0.0


@given(epsilons, deltas, st.integers(min_value=1, max_value=10**10))
def test_a_plan_for_the_whole_limit_fits_whatever_it_noises(epsilon, delta, n_values):
    ledgered = mu_beside_a_ledger(epsilon, delta)
    mu = min(ledgered, gaussian_mu(epsilon, delta, n_values=n_values, eta=SAMPLER_ETA, tau=TAU))
    plan = gaussian_plan(mu, n_values, budget=PrivacyBudget(epsilon, delta))
    limit = limit_of("gaussian", epsilon, delta)
    assert cost("gaussian", plan).main <= limit.main
    # and it loses next to nothing by the ledger
    assert ledgered >= gaussian_mu(epsilon, delta) * (1 - (1e-3 if epsilon < 10 else 1e-2))


def fill(rule, limit, plans):
    """Return how many of the plans fit one after the other."""
    spent, costs = Amount(0, 0), {}
    for n, plan in enumerate(plans):
        if id(plan) not in costs:
            costs[id(plan)] = cost(rule, plan)
        spent = spent + costs[id(plan)]
        if not spent.within(limit):
            return n
    return None


@pytest.mark.parametrize("rule", ["gaussian", "zcdp", "basic"])
@pytest.mark.parametrize(("epsilon", "delta"), LIMITS)
def test_a_thousand_parts_fit_and_not_one_more(tmp_path, rule, epsilon, delta):
    whole = PrivacyBudget(epsilon, delta, ledger=new_ledger(tmp_path, epsilon, delta, rule=rule))
    if rule == "basic":
        parts = whole.split([0.001] * 1000)
        assert sum(Fraction(part.delta) for part in parts) <= Fraction(delta)
    else:
        parts = whole.split([0.001, 0.999])[:1] * 1000
    limit, pure_of = limit_of(rule, epsilon, delta), {"gaussian": mu_to_pure_epsilon}
    noisy = {part: calibrated_plan(part, n_values=10**5) for part in set(parts)}
    pure = {
        part: pure_plan(part.epsilon if rule == "basic" else pure_of.get(rule, float)(part.mu))
        for part in noisy
    }
    for plans_of in (noisy, pure):
        plans = [plans_of[part] for part in parts]
        assert fill(rule, limit, [*plans, plans[0]]) == 1000
    uneven = whole.split({"a": 0.1, "b": 0.7, "c": 0.2})
    assert fill(rule, limit, [calibrated_plan(part) for part in uneven.values()]) is None


@pytest.mark.parametrize(("epsilon", "delta"), LIMITS)
def test_parts_that_get_their_ledger_later_fit_and_not_one_more(tmp_path, epsilon, delta):
    ledger = new_ledger(tmp_path, epsilon, delta)
    part, other = PrivacyBudget(epsilon, delta).split([0.001, 0.999])
    own = calibrated_plan(part)
    later = [calibrated_plan(one.set_params(ledger=ledger)) for one in (part, other)]
    limit = limit_of("gaussian", epsilon, delta)
    assert fill("gaussian", limit, later) is None
    assert fill("gaussian", limit, [later[0]] * 1002) == 1000
    # a plan that was made before knows nothing of what the ledger sets aside
    assert fill("gaussian", limit, [own] * 1002) == 999


plans = st.one_of(
    st.floats(min_value=0.001, max_value=1.0).map(gaussian_plan),
    st.floats(min_value=0.001, max_value=1.0).map(pure_plan),
    st.tuples(st.floats(0.01, 0.5), st.floats(0.01, 0.5)).map(lambda pair: mixed_plan(*pair)),
)


@settings(max_examples=10)
@given(st.lists(plans, min_size=1, max_size=12), st.sampled_from(["gaussian", "zcdp", "basic"]))
def test_totals_are_exact_and_only_what_does_not_fit_is_refused(tmp_path_factory, requests, rule):
    ledger = new_ledger(tmp_path_factory.mktemp("ledger"), 1.0, 1e-4, rule=rule)
    limit, total, n = limit_of(rule, 1.0, 1e-4), Amount(0, 0), 0
    for plan in requests:
        after = total + cost(rule, plan)
        if after.within(limit):
            ledger.reserve(plan)
            total, n = after, n + 1
        else:
            with pytest.raises(BudgetExceededError):
                ledger.reserve(plan)
        assert ledger.report().amount == total
    assert ledger.verify() == n


@pytest.mark.parametrize("rule", ["gaussian", "zcdp", "basic"])
def test_what_was_admitted_is_private_by_an_independent_accountant(tmp_path, rule):
    pld = pytest.importorskip("dp_accounting.pld.privacy_loss_distribution")
    common = pytest.importorskip("dp_accounting.pld.common")
    ledger, rng = new_ledger(tmp_path, 2.0, 1e-5, rule=rule), np.random.default_rng(3)
    levels = 10.0 ** rng.uniform(-2, 0, size=60)
    requests = [(gaussian_plan if i % 2 else pure_plan)(x) for i, x in enumerate(levels)]
    admitted = reserve_all(ledger, requests)
    assert 3 <= len(admitted) < 60
    events = [plan.releases[0] for plan in admitted]
    mu2 = sum(1 / e.noise_multiplier**2 for e in events if e.kind == "gaussian")
    loss = pld.from_gaussian_mechanism(
        1 / math.sqrt(mu2), value_discretization_interval=1e-3, pessimistic_estimate=True
    )
    for event in events:
        if isinstance(event, PureRelease):
            step = common.DifferentialPrivacyParameters(event.epsilon, 0.0)
            loss = loss.compose(
                pld.from_privacy_parameters(step, value_discretization_interval=1e-3)
            )
    assert loss.get_delta_for_epsilon(2.0) <= 1e-5


def test_two_futures_that_each_fit_do_not_both_count():
    """Choosing between them by the first outcome gives delta 1.949e-5; the rule refuses one."""
    first, gaussian, pure = gaussian_plan(0.5), gaussian_plan(0.778), pure_plan(2.022)
    pld = pytest.importorskip("dp_accounting.pld.privacy_loss_distribution")
    common = pytest.importorskip("dp_accounting.pld.common")
    step = pld.from_privacy_parameters(common.DifferentialPrivacyParameters(2.022, 0.0))
    either = pld.from_gaussian_mechanism(1 / 0.5).compose(step).get_delta_for_epsilon(4.0)
    assert either == pytest.approx(1e-5, rel=0.01)
    assert gaussian_delta(math.hypot(0.5, 0.778), 4.0) == pytest.approx(1e-5, rel=0.01)
    limit, costs = limit_of("gaussian", 4.0, 1e-5), [cost("gaussian", p) for p in (gaussian, pure)]
    spent = cost("gaussian", first)
    assert (spent + costs[0]).main == pytest.approx(limit.main, rel=1e-3)
    assert not (spent + costs[1]).within(limit)


def test_the_number_of_noised_values_is_limited(tmp_path):
    ledger = new_ledger(tmp_path)
    n = limit_of("gaussian", 4.0, 1e-5).second
    ledger.reserve(gaussian_plan(1e-3, n - 10))
    with pytest.raises(
        BudgetExceededError, match=r"11 noised values; .* 10 noised values are left"
    ):
        ledger.reserve(gaussian_plan(1e-3, 11))
    ledger.reserve(gaussian_plan(1e-3, 10))
    ledger.reserve(pure_plan(0.1))  # noises nothing with Gaussian noise


@pytest.mark.parametrize("rule", ["gaussian", "zcdp", "basic"])
@pytest.mark.parametrize("kind", ["calibrated", "pure", "mixed"])
def test_the_error_says_what_fits_and_it_does(tmp_path, rule, kind):
    ledger = new_ledger(tmp_path, 2.0, 1e-4, rule=rule)
    ledger.reserve(calibrated_plan(PrivacyBudget(0.8, 1e-5, ledger=ledger)))

    def request(epsilon):
        budget = PrivacyBudget(epsilon, 1e-5, ledger=ledger)
        if kind == "calibrated":
            return calibrated_plan(budget)
        return pure_plan(epsilon, budget=budget) if kind == "pure" else mixed_plan(epsilon, 1.0)

    asked = request(3.0)
    with pytest.raises(BudgetExceededError) as caught:
        ledger.reserve(asked)
    largest, text = caught.value.largest, str(caught.value)
    at = " at delta=1e-05" if kind != "pure" else ""
    assert text.startswith(f"epsilon={asked.epsilon:.3g}{at} must fit into what the ledger")
    left = re.search(r"has left\. Its limit is 2, of which (\S+) is left for such a request", text)
    assert 0.0 <= largest - float(left[1]) < 0.01
    assert f"the largest such request that fits is epsilon={largest!r}{at}" in text
    assert "Nothing was charged" in text
    assert 0.1 < largest < 2.5
    assert len(ledger.report().entries) == 1
    if kind != "mixed":
        with pytest.raises(BudgetExceededError):
            ledger.reserve(request(largest * 1.001))
        ledger.reserve(request(largest))
        assert ledger.report().left <= 0.01 * ledger.report().allowed.number


@pytest.mark.parametrize(
    ("limit", "part", "times"),
    [
        ((0.3, 0.0), (0.1, 0.0), 3),
        ((1.0, 0.0), (0.1, 0.0), 10),
        ((Decimal("0.7"), 0.0), (np.float64(0.1), 0.0), 7),
        ((1, 0.0), (Fraction(1, 49), 0.0), 49),
        ((0.3, 3e-6), (0.1, 1e-6), 3),
        ((7.0, 1e-6), (1.0, 1e-6 / 7), 7),
    ],
)
def test_parts_that_add_up_to_a_limit_fit_and_nothing_more(tmp_path, limit, part, times):
    ledger = new_ledger(tmp_path, *limit, rule="basic")
    part = PrivacyBudget(*part)
    plan = calibrated_plan(part) if part.delta else pure_plan(part.epsilon)
    for _ in range(times):
        ledger.reserve(plan)
    ledger.verify()
    report = ledger.report()
    assert report.left <= 1e-4 * float(limit[0])
    assert report.epsilon <= float(limit[0])
    assert "to 15 digits" in str(report)
    for name, whole in zip(("main", "second"), limit, strict=True):
        used, allowed = getattr(report.amount, name), getattr(report.allowed, name)
        assert used <= allowed <= Fraction(whole) * SCALE * (1 + Fraction(1, 10**15))
    with pytest.raises(BudgetExceededError, match="of which 0 is left"):
        ledger.reserve(pure_plan(1e-3 * part.epsilon) if not part.delta else plan)


def test_counts_in_an_error_are_rounded_unless_they_are_the_lack():
    few, more = (rules.Amount(main, 274_877_889_365) for main in (1, 2**159))
    assert few.text("zcdp", 6)[1] == "2.7e+11 noised values"
    assert rules.Amount(1, 4711).text("zcdp", 6)[1] == "4711 noised values"
    parts = [lambda n, of=of: of.text("zcdp", n)[1] for of in (few, more + rules.Amount(0, 1))]
    assert rules.apart(*parts, 6, 60)[1] == "2.7487788937e+11 noised values"
    assert rules.apart(parts[0], parts[0], 6, 60) == ("2.7e+11 noised values",) * 2


def test_a_budget_with_a_ledger(tmp_path):
    ledger = new_ledger(tmp_path)
    plain, kept = PrivacyBudget(1.0, 1e-5), PrivacyBudget(1.0, 1e-5, ledger=ledger)
    assert kept.validate() is kept
    assert plain.mu * (1 - 1e-5) < kept.mu < plain.mu
    assert PrivacyBudget(1.0, ledger=ledger).mu == 0.0
    assert PrivacyBudget.nonprivate().set_params(ledger=ledger).mu == math.inf
    assert kept != plain == kept.without_ledger()
    again = PrivacyBudget(1.0, 1e-5, ledger=PrivacyLedger(ledger.path))
    assert (kept, hash(kept)) == (again, hash(again))
    assert eval(repr(kept)) == kept
    parts = kept.split([0.3, 0.7])
    assert all(part.ledger is ledger for part in (*parts, *kept.split({"a": 1.0}).values()))
    assert kept.mu**2 * (1 - 1e-8) <= sum(part.mu**2 for part in parts) <= kept.mu**2
    plan = calibrated_plan(kept)
    assert plan.budget == plain  # where it is charged is no part of a plan
    assert plan.mu == pytest.approx(kept.mu, rel=1e-12)
    assert calibrated_plan(plain).mu > plan.mu


@pytest.mark.parametrize(
    ("own", "kept", "name", "values"),
    [
        ({}, {"unit": "rating"}, "unit", ("user", "rating")),
        ({"neighbors": "replace"}, {}, "neighbors", ("replace", "add-remove")),
        ({"unit": "rating"}, {"neighbors": "replace"}, "unit", ("rating", "user")),
    ],
)
def test_relations_must_agree(tmp_path, own, kept, name, values):
    ledger = new_ledger(tmp_path, **kept)
    match = f"{name}='{values[0]}'( of the plan)? must be '{values[1]}'"
    budget = PrivacyBudget(1.0, 1e-5, ledger=ledger, **own)
    plan = gaussian_plan(0.1, budget=PrivacyBudget(1.0, 1e-5, **own))
    for use in (
        budget.validate,
        lambda: budget.mu,
        lambda: budget.split([1.0]),
        lambda: ledger.reserve(plan),
    ):
        with pytest.raises(PrivacyParameterError, match=match):
            use()
    assert ledger.report().entries == ()
