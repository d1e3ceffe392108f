"""The price of a private search: laws of the number of trials, bounds, calibration, statements.

Chi-square tests have fixed keys and alarm falsely once in a million.
"""

import math
from fractions import Fraction
from functools import partial

import numpy as np
import pytest
from scipy import integrate, special, stats

from skdpmf.books.search import SCORE, SearchPlan, SearchStatement, score_sensitivity
from skdpmf.exceptions import PrivacyParameterError
from skdpmf.mechanisms.private_search import (
    MOST_VALUES,
    RandomTrials,
    calibrated,
    profile_epsilon,
    search_epsilon,
    slack_ratio,
)
from skdpmf.privacy import PrivacyBudget, ReleasePlan
from skdpmf.privacy.accounting import SamplerSlack, gaussian_epsilon, gaussian_mu
from skdpmf.privacy.plan import Release
from skdpmf.privacy.pure import PureRelease
from skdpmf.privacy.sampler.laws import SAMPLER_ETA, SAMPLER_TAU
from skdpmf.privacy.sampler.streams import derived_key

ALARM = 1e-6
LAWS = [RandomTrials(mean) for mean in (1.25, 2.0, 10.0)]
IDEAL, PRICED = SamplerSlack(0, 0.0, 0.0), SamplerSlack(MOST_VALUES, SAMPLER_ETA, SAMPLER_TAU)
ideal_price = partial(search_epsilon, slack=IDEAL)


def test_draws_follow_the_law():
    law, n, ks = RandomTrials(4.0), 1200, np.arange(1, 12)
    drawn = np.bincount([law.draw(derived_key(i, "draws")) for i in range(n)], minlength=13)
    expected = n * stats.geom.pmf(ks, law.gamma)
    observed = np.append(drawn[ks], drawn[12:].sum())
    assert drawn[0] == 0
    assert stats.chisquare(observed, np.append(expected, n - expected.sum())).pvalue > ALARM
    assert law.mean <= law.mean_bound <= law.mean * (1.0 + 1e-9)


@pytest.mark.parametrize("mean", [1.25, 3.0, 10.0, 1e6])
def test_draws_stop_with_the_probability_gamma_exactly(mean, monkeypatch):
    """Two neighbours among the numbers that decide, of which one of 2^256 gamma stops."""
    law, words = RandomTrials(mean), []
    limit = Fraction(law.gamma) * 2**256
    assert limit.denominator == 1
    monkeypatch.setattr(
        "skdpmf.mechanisms.private_search.stream_integer", lambda key, name, i: words[i - 1]
    )
    words[:] = [limit, limit + 5, limit - 1]
    assert law.draw(b"") == 3
    words[:] = [0]
    assert law.draw(b"") == 1


@pytest.mark.parametrize(("mu", "mean"), [(0.1, 3.0), (0.5, 20.0)])
def test_price_is_its_formula(mu, mean):
    a = np.linspace(0.0, 5.0, 200001)
    worst = np.maximum(a, np.log1p(gaussian_curve(mu, a) * (mean - 1.0)))
    price = 2.0 * worst.min() + gaussian_epsilon(mu, 1e-6 / mean)
    assert profile_epsilon(mu, 1e-6, RandomTrials(mean)) == pytest.approx(price, rel=1e-4)


def gaussian_curve(mu, epsilon):
    """delta of two unit normals mu apart; epsilon may be negative, mu 0."""
    epsilon = np.asarray(epsilon)
    if mu == 0.0:
        return np.maximum(0.0, -np.expm1(epsilon))
    a, b = mu / 2 - epsilon / mu, -mu / 2 - epsilon / mu
    return special.ndtr(a) - np.exp(epsilon + special.log_ndtr(b))


def generating_slope(law, number=None):
    """f'(1 - r) as a function of r; for a known number of trials instead of the law's."""
    if number is not None:
        return lambda r: number * np.maximum((1.0 - r) ** (number - 1), 1e-300)
    return lambda r: law.gamma * (law.gamma + (1.0 - law.gamma) * r) ** -2.0


def exact_search_delta(slope, mu, angle, epsilon):
    """Hockey-stick divergence of searches among Gaussian runs, which the score orders.

    A run's output is (score, rest), two unit normals; x' shifts them by mu (cos, sin) angle.
    """
    a, b = mu * math.cos(angle), mu * abs(math.sin(angle))
    y = np.linspace(-9.0, 9.0, 20001)
    ours, theirs = slope(special.ndtr(-y)), slope(special.ndtr(a - y))
    density = np.exp(-(y**2) / 2) / math.sqrt(2 * math.pi)
    ratio = a * y - a * a / 2  # ln of the scores' densities, x' over x
    level = epsilon + np.log(theirs) - np.log(ours) + ratio
    return integrate.simpson(ours * density * gaussian_curve(b, level), x=y)


@pytest.mark.parametrize("law", LAWS, ids=str)
@pytest.mark.parametrize("mu", [0.1, 0.3, 1.0])
def test_price_bounds_exact_searches(law, mu):
    delta = 1e-4
    epsilon = ideal_price(mu, delta, law)
    worst = max(
        exact_search_delta(generating_slope(law), mu, angle, epsilon)
        for angle in np.linspace(0.0, math.pi, 13)
    )
    assert 0.0 < worst <= delta


def test_known_number_of_trials_breaks_the_price():
    """Planted: the best of exactly the mean number of trials."""
    law, mu, delta = RandomTrials(100.0), 0.3, 1e-4
    epsilon = ideal_price(mu, delta, law)
    one, known = (
        max(
            exact_search_delta(generating_slope(law, number), mu, angle, epsilon)
            for angle in (0.0, math.pi)
        )
        for number in (1, 100)
    )
    assert one <= delta
    assert known > 50.0 * delta


def test_one_trial_costs_what_it_costs_alone_and_many_cost_little_more():
    prices = [ideal_price(0.2, 1e-6, RandomTrials(mean)) for mean in (1.0, 100.0)]
    assert prices[0] == pytest.approx(gaussian_epsilon(0.2, 1e-6), rel=1e-9)
    assert prices[0] < prices[1] < 3.0 * prices[0] < gaussian_epsilon(2.0, 1e-6)
    assert math.isinf(ideal_price(math.inf, 1e-6, LAWS[0]))
    law = RandomTrials(10.0)  # what a sampler spends is part of every price
    slack = search_epsilon(0.2, 1e-9, law) - ideal_price(0.2, 1e-9, law)
    assert 0.0 < slack < 1e-2
    hopeless = SamplerSlack(2**20, SAMPLER_ETA, 2.0**-40)
    with pytest.raises(PrivacyParameterError, match="must be more than the slack"):
        calibrated(1.0, 1e-9, LAWS[0], slack=hopeless)


@pytest.mark.parametrize(
    ("epsilon", "delta", "mean"),
    [(0.1, 1e-9, 10.0), (1.0, 1e-5, 30.0), (10.0, 1e-6, 1.0), (20.0, 1e-5, 100.0)],
)
@pytest.mark.parametrize("slack", [IDEAL, PRICED], ids=["ideal", "priced"])
def test_calibration_is_tight_and_never_above(epsilon, delta, mean, slack):
    law = RandomTrials(mean)
    run = calibrated(epsilon, delta, law, slack)
    assert search_epsilon(run, delta, law, slack) <= epsilon
    assert search_epsilon((1.0 + 1e-5) * run, delta, law, slack) > epsilon
    assert run <= gaussian_mu(epsilon, delta)


def random_pair(rng, epsilon, size=6):
    """Two laws on ordered outputs, each within e^epsilon of the other."""
    p = rng.dirichlet(np.full(size, 0.5)) + 1e-9
    for _ in range(60):  # until normalised, the ratio is in its bounds
        q = p * np.exp(rng.choice([-1.0, 1.0], size) * epsilon * rng.random() ** 0.2)
        q /= q.sum()
        if np.abs(np.log(q / (p / p.sum()))).max() <= epsilon:
            return p / p.sum(), q
    return p / p.sum(), p / p.sum()


def best_of(law, p):
    """Law of the best of K outputs."""
    below = np.concatenate(([0.0], np.cumsum(p)))
    below[-1] = 1.0
    return np.diff(law.gamma * below / (1.0 - (1.0 - law.gamma) * below))


def test_pure_price_bounds_exact_searches():
    rng, law, epsilon = np.random.default_rng(0), RandomTrials(5.0), 0.5
    pairs = [random_pair(rng, epsilon) for _ in range(60)]
    # the rarest outcome, twice as likely, where all others are below: f' at 0 and at 1
    pairs += [(np.array([1e-7, 1.0]) / (1 + 1e-7), np.array([1e-7 * math.exp(0.5), 1.0]))]
    pairs[-1] = pairs[-1][0], pairs[-1][1] / pairs[-1][1].sum()
    worst = max(np.abs(np.log(best_of(law, p) / best_of(law, q))).max() for p, q in pairs)
    assert 0.7 < worst <= search_epsilon(epsilon, 0.0, law) * (1.0 + 1e-9)


def test_pure_prices():
    law = RandomTrials(10.0)
    assert search_epsilon(0.25, 0.0, law) == 0.75  # Liu and Talwar's 3 epsilon
    assert search_epsilon(0.25, 0.0, RandomTrials(1.0)) == 0.25
    assert math.isinf(search_epsilon(math.inf, 0.0, law))
    assert 1.0 - 1e-12 < search_epsilon(calibrated(1.0, 0.0, law), 0.0, law) <= 1.0


def test_slack_bounds_the_search_of_a_sampler():
    """A run's law perturbed as the sampler may: by e^x on G, anyhow on a set of mass t."""
    rng, law = np.random.default_rng(1), RandomTrials(5.0)
    x, t = 1e-3, 1e-3
    slack = SamplerSlack(1, eta=x, tau=t)
    for _ in range(40):
        ideal = rng.dirichlet(np.ones(8))
        ideal *= (1.0 - t / 2) / ideal.sum()
        code = ideal * np.exp(rng.uniform(-x, x, 8))
        code *= (1.0 - t * rng.random()) / code.sum()
        good = np.abs(np.log(code / ideal)) <= x
        order = rng.permutation(9)
        p = np.append(ideal, 1.0 - ideal.sum())[order]
        q = np.append(code, 1.0 - code.sum())[order]
        bad = ~np.append(good, False)[order]
        if p[bad].sum() > t or q[bad].sum() > t:
            continue
        a, b = best_of(law, p), best_of(law, q)
        assert np.abs(np.log(b / a))[~bad].max() <= slack_ratio(slack, law)
        assert max(a[bad].sum(), b[bad].sum()) <= law.mean_bound * t


def test_slack_is_ratio_and_mass():
    """2 rho of epsilon; of delta at least t and t' of each of m runs."""
    law, runs, delta = RandomTrials(20.0), 20.0, 1e-6
    price = partial(search_epsilon, 0.2, trials=law)
    ratio, mass = SamplerSlack(100, 1e-5, 0.0), SamplerSlack(100, 0.0, 1e-12)
    added = price(delta, slack=ratio) - price(delta, slack=IDEAL)
    expected = 6e-3
    assert expected <= added <= 1.05 * expected + 1e-4
    found = price(delta, slack=mass)
    assert found >= price(delta - 2e-10 * runs, slack=IDEAL)
    # t' is a normal's tail, moved by mu: a few times t here
    assert found <= price(delta - 2e-9 * runs, slack=IDEAL) + 1e-4


def fit_plan(budget, **changes):
    sums = Release("sums", "item sums", (9,), 1.0)
    return ReleasePlan.from_shares(budget, [sums], {"sums": 1.0}, **changes)


@pytest.mark.parametrize("delta", [0.0, 1e-5])
def test_plan_spends_the_budget_and_no_more(delta):
    law = RandomTrials(5.0)
    budget = PrivacyBudget(2.0, delta, neighbors="replace")
    plan = SearchPlan.make(budget, law, bound=2.0, score_share=0.2)
    assert 2.0 * (1.0 - 1e-6) < plan.epsilon <= 2.0
    assert plan.one_trial < plan.epsilon
    assert plan.score.sensitivity == 4.0
    assert plan.fit_budget.neighbors == "replace"
    if delta == 0.0:
        share = plan.score.epsilon / (plan.score.epsilon + plan.fit_budget.epsilon)
    else:
        share = plan.score.mu**2 / (plan.score.mu**2 + plan.fit_budget.mu**2)
    assert share == pytest.approx(0.2, rel=1e-6)
    for words in ("Trials:", "Price:", "one trial alone", f"{plan.score.sensitivity:.4g}"):
        assert words in " ".join(str(plan).split())


def laplace_plan(budget, epsilon):
    release = PureRelease("sums", "sums", (9,), epsilon, "laplace", 1.0, "l1")
    return ReleasePlan(budget, (release,))


def test_candidates_that_spend_too_much_are_refused():
    law = RandomTrials(5.0)
    plan = SearchPlan.make(PrivacyBudget(1.0, 1e-5), law, bound=2.0)
    pure = SearchPlan.make(PrivacyBudget(1.0), law, bound=2.0)
    own = plan.fit_budget
    assert plan.check_fit(fit_plan(own)).mu <= own.mu
    assert pure.check_fit(laplace_plan(pure.fit_budget, 0.01)).epsilon == 0.01
    more = PrivacyBudget(own.epsilon * (1.0 + 1e-6), 1e-5)
    large = Release("sums", "item sums", (2**16, 2**16), 1.0, noise_multiplier=99.0)
    local = ReleasePlan(own, fit_plan(own).releases, local=True)
    for search, fit, message in (
        (plan, fit_plan(more), "would spend mu="),
        (plan, laplace_plan(PrivacyBudget(0.01), 0.01), "1 of its releases are not with Gauss"),
        (plan, ReleasePlan(own, (large,)), "priced for"),
        (plan, local, "local model"),
        (pure, fit_plan(PrivacyBudget(0.1, 1e-5)), "1 of its releases are not with a pure"),
        (pure, laplace_plan(PrivacyBudget(9.0), 9.0), "would spend pure epsilon=9"),
    ):
        with pytest.raises(PrivacyParameterError, match=message):
            search.check_fit(fit)


def statement(epsilon=1.0, **options):
    plan = SearchPlan.make(PrivacyBudget(epsilon, 1e-5), RandomTrials(5.0), bound=2.0)
    return SearchStatement.of_search(plan, fit_plan(plan.fit_budget), **options)


def test_statement_travels_through_json():
    said = statement(seeded=True)
    assert SearchStatement.from_json(said.to_json()) == said
    assert said.mean == 5.0
    with pytest.raises(PrivacyParameterError, match=r"n_trials=0\.0"):
        SearchStatement.from_dict({**said.to_dict(), "mean": 0.0})
    for words in ("secret random number", "noise came from a seed", SCORE, "running time"):
        assert words in str(said)


def test_statement_is_no_composition():
    assert math.isinf(statement().mu)  # what adds up squares must not take a search for one fit


@pytest.mark.parametrize(
    ("unit", "neighbors", "factor"),
    # two users' points for an exchanged rating
    [("user", "add-remove", 1), ("user", "replace", 2), ("rating", "add-remove", 2)]
    + [("rating", "replace", 4)],
)
def test_score_sensitivities(unit, neighbors, factor):
    assert score_sensitivity(2.0, unit=unit, neighbors=neighbors) == 2.0 * factor


def test_dp_accounting_agrees_with_the_statement():
    pytest.importorskip("dp_accounting")
    from dp_accounting.rdp import RdpAccountant

    said = statement()
    (event,) = said.to_dp_events()
    accountant = RdpAccountant(1.0 + np.exp(np.linspace(-4.5, 12.0, 200)))
    accountant.compose(event)
    assert said.epsilon < accountant.get_epsilon(1e-5) < 1.6 * said.epsilon


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: RandomTrials("ten"), "n_trials='ten'"),
        (lambda: RandomTrials(0.5), "n_trials=0.5"),
        (lambda: RandomTrials(1e9), "n_trials=1000000000.0"),
        (lambda: score_sensitivity(1.0, unit="item"), "unit='item'"),
        (
            lambda: SearchPlan.make(PrivacyBudget(1.0), LAWS[0], bound=1.0, score_share=0.0),
            "score_share=0.0",
        ),
    ],
)
def test_errors(call, message):
    with pytest.raises(PrivacyParameterError, match=message):
        call()
