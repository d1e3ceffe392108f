"""What a private search costs a ledger: at one Renyi order, with its sampler."""

import json
import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from scipy import integrate, special

from skdpmf.books import ledger_rules as rules
from skdpmf.books.search import SearchPlan
from skdpmf.exceptions import BudgetExceededError, PrivacyParameterError
from skdpmf.mechanisms import private_search
from skdpmf.privacy import PrivacyBudget
from skdpmf.privacy.sampler.laws import SAMPLER_ETA
from tests.books import ledgers as books
from tests.mechanisms.test_private_search import generating_slope

LAWS = [private_search.RandomTrials(mean) for mean in (10.0, 3.0)]
LIMITS = [(0.1, 1e-6), (1.0, 1e-5), (4.0, 1e-5), (1.0, 1e-9), (20.0, 1e-5)]


def search(epsilon, delta=1e-5, law=LAWS[0], ledger=None):
    budget = PrivacyBudget(epsilon, delta, ledger=ledger)
    return SearchPlan.make(budget, law, bound=2.0)


def spending(run, law, n_values=10**6):
    part = private_search.SearchSpending(run, law.mean, n_values, 4 * SAMPLER_ETA, rules.TAU)
    return rules.Spending((), (), 0, 1e-5, part)


def oracle(events, order):
    """Renyi divergence at one order, by dp-accounting."""
    pytest.importorskip("dp_accounting")
    from dp_accounting.rdp import RdpAccountant

    best = {2.0}
    for event in events:
        if hasattr(event, "mean"):  # of whose bounds by two more orders it takes the best
            inner = getattr(event.event, "event", event.event)
            mu = 1.0 / inner.noise_multiplier
            gamma = private_search.RandomTrials(event.mean).gamma
            best.add(max(1.0 + 1e-12, math.sqrt(-2.0 * math.log(gamma)) / mu))
            best.add(1.0 + math.sqrt(2.0 * math.log(event.mean)) / mu)
    accountant = RdpAccountant([order, *sorted(best)])
    for event in events:
        accountant.compose(event)
    return float(accountant._rdp[0])


@pytest.mark.parametrize(("epsilon", "delta"), LIMITS)
def test_a_limit_holds_by_its_one_order(epsilon, delta):
    """All that the limit promises follows from divergences of this order alone."""
    limit = rules.limit_of("zcdp", epsilon, delta)
    alpha = mpmath.mpf(rules.order_of("zcdp", epsilon, limit))
    with mpmath.workdps(60):
        rho = mpmath.mpf(limit.main) / rules.SCALE
        at = mpmath.exp((alpha - 1) * (alpha * rho - epsilon)) * (1 - 1 / alpha) ** alpha
        at /= alpha - 1
        assert at <= books.zcdp_delta(rho, epsilon) * (
            1 + mpmath.mpf(1e-14)
        )  # and no other is better
        assert at + books.tail_delta(mpmath.sqrt(2 * rho), limit.second, rules.TAU) <= delta


def test_the_order_is_a_function_of_what_the_file_holds(tmp_path):
    """To the bit: entries of another version or machine are charged at the same order."""
    assert private_search.search_order(1.0, Fraction(0.03)) == 18.11318194881408
    assert private_search.search_order(20.0, Fraction(5)) == 2.549789177314506
    ledger = books.new_ledger(tmp_path, 1.0, rule="zcdp")
    assert ledger._order == private_search.search_order(
        1.0, Fraction(ledger.report().allowed.main, rules.SCALE)
    )
    assert rules.order_of("gaussian", 1.0, ledger._allowed) is None


@pytest.mark.parametrize("law", LAWS, ids=str)
@pytest.mark.parametrize(("epsilon", "delta"), [(0.5, 1e-6), (4.0, 1e-5)])
def test_a_search_costs_its_divergence_at_that_order(law, epsilon, delta):
    order = rules.order_of("zcdp", epsilon, rules.limit_of("zcdp", epsilon, delta))
    for run in (0.01, 0.1, 0.7):
        cost = rules.charge("zcdp", spending(run, law), order)
        pytest.importorskip("dp_accounting")
        from dp_accounting import dp_event

        one = dp_event.GaussianDpEvent(1.0 / run)
        events = [dp_event.RepeatAndSelectDpEvent(one, law.mean, 1.0)]
        assert order * cost.number == pytest.approx(oracle(events, order), rel=1e-6, abs=1e-9)


def exact_divergence(slope, mu, angle, order):
    """Renyi divergence of searches among Gaussian runs, which the score orders, but for K = 0.

    As in test_selection: a run's output is (score, rest), x' shifts them by mu (cos, sin) angle.
    """
    a, b = mu * math.cos(angle), mu * abs(math.sin(angle))
    y = np.linspace(-12.0, 12.0, 40001) + order * a * 0.5
    ours, theirs = slope(special.ndtr(-y)), slope(special.ndtr(a - y))
    log = -(y**2) / 2 - (order - 1.0) * (a * y - a * a / 2)  # p^order q^(1 - order)
    log += order * np.log(ours) + (1.0 - order) * np.log(theirs)
    total = integrate.simpson(np.exp(log), x=y) / math.sqrt(2.0 * math.pi)
    return math.log(total) / (order - 1.0) + order * b * b / 2.0


@pytest.mark.parametrize("law", LAWS, ids=str)
@pytest.mark.parametrize("mu", [0.05, 0.3, 1.0])
def test_the_charge_bounds_exact_searches_in_both_directions(law, mu):
    for order in (1.5, 4.6, 17.8):
        if order * mu > 6.0:
            continue  # beyond the grid
        bound = order * rules.charge("zcdp", spending(mu, law), order).number
        angles = np.linspace(0.0, math.pi, 13)  # beyond pi / 2: x and x' change places
        exact = [exact_divergence(generating_slope(law), mu, angle, order) for angle in angles]
        assert 0.0 < max(exact) <= bound
        assert exact[0] != pytest.approx(exact[-1], rel=1e-3)  # the directions do differ
        single = generating_slope(private_search.RandomTrials(1.0))
        assert exact_divergence(single, mu, 0.3, order) == pytest.approx(order * mu**2 / 2)


def test_the_price_of_one_trial_breaks_it():
    """Planted: charged as the fit of one trial."""
    law, mu, order = LAWS[0], 0.3, 4.6
    exact = exact_divergence(generating_slope(law), mu, math.pi, order)
    assert exact > 1.2 * order * mu**2 / 2


@pytest.mark.parametrize("law", LAWS, ids=str)
def test_the_sampler_is_part_of_the_charge(law):
    """Near the ideal noise's from above, more for more values, and counted with all its tails."""
    few, many = (spending(0.1, law, n_values=n) for n in (1, 10**9))
    for order in (2.0, 20.0):
        costs = [rules.charge("zcdp", part, order) for part in (few, many)]
        assert costs[0].main < costs[1].main < costs[0].main * (1 + 1e-6)
        shift = 2 * float(books.pure_mu(few.search.eta + 2 * rules.TAU)) * math.sqrt(10**9)
        moved = rules.charge("zcdp", spending(0.1 + shift, law, n_values=1), order)
        assert costs[1].main > moved.main * (1 - 1e-15)
    for mu, n in ((0.1, 10**6), (1.0, 10**4), (3.0, 1)):
        counted = rules.charge("zcdp", spending(mu, law, n), 2.0).second
        assert 2 * rules.TAU * counted >= law.mean * books.tail_delta(mu, n, rules.TAU)
        assert (
            2 * rules.TAU * (counted - 1) <= law.mean * books.tail_delta(mu, n, rules.TAU) * 1.001
        )


@pytest.mark.parametrize("law", LAWS, ids=str)
def test_the_ratio_of_laws_enters_in_both_directions(law):
    """With a sampler so bad that it shows: R from the proof, alpha + (alpha - 1) times."""
    order, tau, n = 4.6, 1e-9, 1000
    good = private_search.SearchSpending(0.1, law.mean, n, 0.0, 0.0)
    bad = good._replace(tau=tau)
    sampler = 2 * float(books.pure_mu(2 * tau)) * math.sqrt(n)
    moved = good._replace(run=0.1 + sampler)
    differ = n * tau  # a trial's law under either sampler, in total variation
    ratio = 2.0 * differ * (law.mean - 1.0)
    least = (order + order - 1.0) / (order - 1.0) * (ratio + differ) / order
    added = bad.rho(order) - moved.rho(order)
    assert least <= added * (1 + 1e-6) <= 4 * least


def test_one_trial_without_choice_costs_what_a_fit_costs():
    once = private_search.RandomTrials(1.0)
    for mu in (0.05, 1.0):
        fit = rules.charge("zcdp", rules.Spending.of(books.gaussian_plan(mu, 10**6)))
        one = rules.charge("zcdp", spending(mu, once), 5.0)
        assert fit.main <= one.main <= fit.main * (1 + 1e-6)


@pytest.mark.parametrize("law", LAWS, ids=str)
def test_pure_searches_are_one_pure_release(law):
    plan = search(0.5, 0.0, law)
    for rule in ("gaussian", "zcdp", "basic"):
        assert rules.charge(rule, plan.spending) == rules.charge(
            rule, rules.Spending.of(books.pure_plan(plan.epsilon))
        )
    assert 0.49 < plan.spending.epsilon <= 0.5


def test_basic_charges_the_searchs_own_epsilon_and_delta():
    plan = search(1.0, 1e-6)
    cost = rules.charge("basic", plan.spending)
    assert cost.number == plan.epsilon <= 1.0
    assert Fraction(cost.second, rules.SCALE) == Fraction(1e-6)


@pytest.mark.parametrize(("law", "delta"), [(LAWS[0], 1e-5), (LAWS[1], 1e-9)])
def test_sixty_four_searches_do_not_run_out_of_values(tmp_path, law, delta):
    ledger = books.new_ledger(tmp_path, 4.0, delta, rule="zcdp")
    part = search(0.1, delta, law, ledger=ledger)
    counted = rules.charge("zcdp", part.spending, 5.0).second
    assert 0.9 < 64 * counted / ledger.report().allowed.second <= 1.01 or (
        part.n_values == private_search.MOST_VALUES
    )
    assert part.n_values == rules.values_of_a_trial(delta, law.mean)
    plan = books.calibrated_plan(part.fit_budget, part.n_values)
    with pytest.raises(PrivacyParameterError, match=f"more than the {part.n_values} that"):
        part.check_fit(plan)
    assert search(0.1, delta, law).n_values == private_search.MOST_VALUES


def test_gaussian_refuses_a_search_and_names_the_remedy(tmp_path):
    ledger = books.new_ledger(tmp_path)
    with pytest.raises(PrivacyParameterError, match=r"rule='gaussian' .*rule='zcdp'.*without_le"):
        ledger.reserve(search(0.5, ledger=ledger))
    assert ledger.report().entries == ()
    ledger.reserve(search(0.5, 0.0, ledger=ledger))  # a pure one is a pure release


@pytest.mark.parametrize(
    ("rule", "law", "delta"),
    [
        ("basic", LAWS[1], 1e-6),
        ("zcdp", LAWS[0], 1e-5),
        ("zcdp", LAWS[1], 1e-5),
        ("zcdp", LAWS[0], 0.0),
    ],
)
def test_the_error_says_what_fits_and_it_does(tmp_path, rule, law, delta):
    ledger = books.new_ledger(tmp_path, 2.0, 2e-5, rule=rule)
    ledger.reserve(books.calibrated_plan(PrivacyBudget(0.6, 1e-6, ledger=ledger)))

    def request(epsilon):
        return search(epsilon, delta, law, ledger)

    with pytest.raises(BudgetExceededError) as caught:
        ledger.reserve(request(3.0))
    assert 0.3 < caught.value.largest < 2.5
    assert f"fits is epsilon={caught.value.largest!r}" in str(caught.value)
    with pytest.raises(BudgetExceededError):
        ledger.reserve(request(caught.value.largest * 1.0001))
    ledger.reserve(request(caught.value.largest))
    assert ledger.verify() == 2
    report = ledger.report()
    assert report.left <= 1e-3 * report.allowed.number


def test_a_search_and_fits_total_what_the_oracle_says(tmp_path):
    ledger = books.new_ledger(tmp_path, 4.0, rule="zcdp")
    plans = [search(1.0, ledger=ledger), search(0.5, 1e-6, LAWS[1], ledger=ledger)]
    fits = [books.gaussian_plan(0.2), books.pure_plan(0.1), books.mixed_plan(0.1, 0.05)]
    for plan in (*plans, *fits):
        ledger.reserve(plan)
    events = pytest.importorskip("dp_accounting").dp_event
    order, total = ledger._order, 0.0
    for plan in plans:
        one = events.GaussianDpEvent(1.0 / plan.level)
        parts = [events.RepeatAndSelectDpEvent(one, plan.trials.mean, 1.0)]
        total += oracle(parts, order) / order
    total += oracle([events.GaussianDpEvent(1.0 / mu) for mu in (0.2, 0.1)], order) / order
    total += (0.1**2 + 0.05**2) / 2  # pure, at every order
    report = ledger.report()
    assert report.spent == pytest.approx(total, abs=1e-6)
    assert ledger.verify() == 5
    at_order = order * total + math.log1p(-1 / order) - math.log(1e-5 * order) / (order - 1)
    assert 0.5 * at_order < report.epsilon <= at_order * (1 + 1e-4)  # other orders may be better
    assert report.epsilon >= private_search.search_epsilon(plans[0].level, 1e-5, plans[0].trials)


def test_epsilon_of_a_report_is_valid_at_every_order(tmp_path):
    """A search's charge is for one order; at the others it costs more or less."""
    ledger = books.new_ledger(tmp_path, 4.0, rule="zcdp")
    small = search(0.1, ledger=ledger)
    ledger.reserve(small)
    events = pytest.importorskip("dp_accounting").dp_event
    one = events.GaussianDpEvent(1.0 / small.level)
    selection = events.RepeatAndSelectDpEvent(one, small.trials.mean, 1.0)
    best = min(
        oracle([selection], order) + math.log1p(-1 / order) - math.log(1e-5 * order) / (order - 1)
        for order in np.geomspace(1.5, 1e3, 60)
    )
    assert best * (1 - 1e-2) <= ledger.report().epsilon <= best * (1 + 1e-2)


def test_entries_of_searches_read_back_and_old_ones_too(tmp_path):
    for plan in (search(1.0, law=LAWS[1]), search(1.0, 0.0)):
        kept = json.loads(json.dumps(plan.spending.to_dict(), allow_nan=False))
        assert rules.Spending.from_dict(kept) == plan.spending
    kept = rules.Spending.of(books.gaussian_plan(0.1)).to_dict()
    assert "search" not in kept  # as before there were any
    assert rules.Spending.from_dict(kept).search is None
    ledger = books.new_ledger(tmp_path, 4.0, rule="zcdp")
    ledger.reserve(search(1.0, law=LAWS[1], ledger=ledger), estimator="PrivateSearchCV")
    (entry,) = ledger.report().entries
    assert entry["mu"] == "inf"
    assert "PrivateSearchCV  1        1e-05  -  " in str(ledger.report())
    json.loads(ledger.report().to_json())
