"""The price of a private search: laws of the number of trials, bounds, calibration, statements.

Chi-square tests have fixed keys and alarm falsely once in a million.
"""

import itertools
import math
from functools import partial

import mpmath
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
    pure_epsilon,
    renyi_epsilon,
    search_loss,
    slack_ratio,
    stream_integer,
)
from skdpmf.privacy import PrivacyBudget, ReleasePlan
from skdpmf.privacy.accounting import SamplerSlack, gaussian_delta, gaussian_epsilon, gaussian_mu
from skdpmf.privacy.plan import PureRelease, Release
from skdpmf.privacy.sampler.noise import SAMPLER_ETA, SAMPLER_TAU, derived_key

ALARM = 1e-6
SHAPES = (-0.5, 0.0, 0.5, 1.0, 4.0, math.inf)
LAWS = [RandomTrials(shape, mean) for shape in SHAPES for mean in (2.0, 10.0)]
IDEAL, PRICED = SamplerSlack(0, 0.0, 0.0), SamplerSlack(MOST_VALUES, SAMPLER_ETA, SAMPLER_TAU)
ideal_loss = partial(search_loss, slack=IDEAL)
THREE = (0.0, 1.0, math.inf)


def by_definition(law, k):
    """P[K = k], in many digits, as the papers write it."""
    if law.is_poisson:
        mean = mpmath.mpf(law.mean)
        return mpmath.exp(-mean) * mean**k / mpmath.factorial(k)
    g, eta = mpmath.mpf(law.gamma), mpmath.mpf(law.shape)
    if k < 1:
        return mpmath.mpf(0)
    if law.shape == 0.0:
        return (1 - g) ** k / (k * mpmath.log(1 / g))
    product = mpmath.fprod((el + eta) / (el + 1) for el in range(k))
    return (1 - g) ** k / (g**-eta - 1) * product


def pmf(law, ks):
    """P[K = k], as doubles."""
    with mpmath.workdps(40):
        return np.array([float(by_definition(law, int(k))) for k in ks])


@pytest.mark.parametrize("law", [law for law in LAWS if law.mean == 2.0], ids=str)
def test_law_has_its_mean(law):
    ks = np.arange(200)
    assert pmf(law, ks).sum() == pytest.approx(1.0, abs=1e-9)
    assert pmf(law, ks) @ ks == pytest.approx(law.mean, rel=1e-6)
    assert law.mean <= law.mean_bound <= law.mean * (1.0 + 1e-9)


@pytest.mark.parametrize("shape", [0.0, 0.5, 1.0, math.inf])
def test_draws_follow_the_law(shape):
    law, n = RandomTrials(shape, 4.0), 1200
    drawn = np.bincount([law.draw(derived_key(i, "draws")) for i in range(n)], minlength=12)
    expected = n * pmf(law, np.arange(11))
    observed = np.append(drawn[:11], drawn[11:].sum())
    expected = np.append(expected, n - expected.sum())
    possible = expected > 0.0
    assert not observed[~possible].any()
    assert stats.chisquare(observed[possible], expected[possible]).pvalue > ALARM


@pytest.mark.parametrize("law", LAWS, ids=str)
def test_inversion_is_exact(law):
    """Two units of 2^-256 beside each step of the distribution function."""
    with mpmath.workdps(120):
        total = mpmath.mpf(0)
        for k in range(13):
            total += by_definition(law, k)
            step = int(mpmath.floor(total * mpmath.mpf(2) ** 256))
            if step == 0:
                continue
            assert law._inverse(step - 2, 256) == k
            assert law._inverse(step + 2, 256) == k + 1
            assert law._inverse(step, 256) in (None, k, k + 1)


def test_draw_needs_a_key_and_repeats():
    law, key = RandomTrials(1.0, 50.0), derived_key(1)
    assert law.draw(key) == law.draw(key)
    assert RandomTrials(1.0, 1.0).draw(key) == 1
    draws = {stream_integer(key, name, i) for name in ("trials", "seeds") for i in range(3)}
    assert len(draws) == 6
    with pytest.raises(PrivacyParameterError, match="key of type str"):
        law.draw("secret")


@pytest.mark.parametrize(("second", "number"), [(0, 1), (2**256 - 1, 2)])
def test_ambiguous_bits_are_continued(monkeypatch, second, number):
    law = RandomTrials(0.0, 4.0)
    with mpmath.workdps(120):
        step = int(mpmath.floor(by_definition(law, 1) * mpmath.mpf(2) ** 256))
    words = [step, second]
    monkeypatch.setattr(
        "skdpmf.mechanisms.private_search.stream_integer",
        lambda key, name, i: words[i],
    )
    assert law._inverse(step, 256) is None
    assert law.draw(b"") == number


def oracle(mu, delta, law, extra=0.0):
    """Epsilon and the best order by dp-accounting, with the best lambda-hat among the orders."""
    dp_event = pytest.importorskip("dp_accounting").dp_event
    from dp_accounting.rdp import RdpAccountant

    one, rest = dp_event.GaussianDpEvent(1.0 / mu), np.exp(np.linspace(-4.5, 12.0, 200))
    best = [] if law.is_poisson else [math.sqrt(-2.0 * math.log(law.gamma)) / mu]
    for _ in range(2):  # around the best order of a coarse grid
        accountant = RdpAccountant(np.append(1.0 + rest, best))
        accountant.compose(dp_event.RepeatAndSelectDpEvent(one, law.mean, law.shape))
        if extra:
            accountant.compose(dp_event.GaussianDpEvent(1.0 / extra))
        price, order = accountant.get_epsilon_and_optimal_order(delta)
        rest = (order - 1.0) * np.exp(np.linspace(-0.1, 0.1, 200))
    return price


@pytest.mark.parametrize("shape", [0.0, 1.0, 4.0])
@pytest.mark.parametrize(("mu", "mean"), [(0.1, 3.0), (0.25, 100.0), (1.5, 10.0)])
def test_renyi_price_is_the_oracles(shape, mu, mean):
    law = RandomTrials(shape, mean)
    for delta, extra in ((1e-6, 0.0), (1e-9, 0.5 * mu)):
        price = renyi_epsilon(mu, delta, law, extra=extra)
        assert price == pytest.approx(oracle(mu, delta, law, extra), abs=1e-6)


@pytest.mark.parametrize(("mu", "mean"), [(0.1, 3.0), (0.5, 50.0)])
def test_poisson_price_is_its_formula(mu, mean):
    """The oracle takes delta_Q from Renyi divergences; ours is exact, and has ln(m + e^-m)."""
    law = RandomTrials(math.inf, mean)
    price = renyi_epsilon(mu, 1e-6, law)
    assert price < oracle(mu, 1e-6, law)
    lambdas = 1.0 + np.exp(np.linspace(-2.0, 9.0, 5000))
    rest = lambdas - 1.0
    spent = lambdas * mu**2 / 2 + np.log(mean + math.exp(-mean)) / rest
    spent += mean * np.array([gaussian_delta(mu, a) for a in np.log1p(1.0 / rest)])
    spent += np.log1p(-1.0 / lambdas) - (math.log(1e-6) + np.log(lambdas)) / rest
    assert price == pytest.approx(spent.min(), abs=1e-5)


@pytest.mark.parametrize("shape", [-0.5, 0.0, 1.0, 4.0, math.inf])
@pytest.mark.parametrize(("mu", "mean", "extra"), [(0.1, 3.0, 0.0), (0.5, 20.0, 0.3)])
def test_profile_price_is_its_formula(shape, mu, mean, extra):
    law = RandomTrials(shape, mean)
    if law.is_poisson:
        shift = mean * gaussian_curve(mu, 0.0)
    else:
        a = np.linspace(0.0, 5.0, 200001)
        worst = np.maximum(a, np.log1p(gaussian_curve(mu, a) * (1.0 / law.gamma - 1.0)))
        shift = (1.0 + shape) * worst.min()
    price = shift + gaussian_epsilon(math.hypot(mu, extra), 1e-6 / mean)
    found = profile_epsilon(mu, 1e-6, law, extra=extra)
    assert found == pytest.approx(price, rel=1e-4)


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
    if law.is_poisson:
        return lambda r: law.mean * np.exp(-law.mean * r)
    g, eta = law.gamma, law.shape
    return lambda r: law.mean * (g + (1.0 - g) * r) ** (-1.0 - eta) * g ** (1.0 + eta)


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


@pytest.mark.parametrize("law", [RandomTrials(s, 10.0) for s in (0.0, 1.0, 4.0, math.inf)], ids=str)
@pytest.mark.parametrize("mu", [0.1, 0.3, 1.0])
def test_price_bounds_exact_searches(law, mu):
    delta = 1e-4
    epsilon = ideal_loss(mu, delta, law).epsilon
    worst = max(
        exact_search_delta(generating_slope(law), mu, angle, epsilon)
        for angle in np.linspace(0.0, math.pi, 13)
    )
    assert 0.0 < worst <= delta


def test_known_number_of_trials_breaks_the_price():
    """Planted: the best of exactly the mean number of trials."""
    law, mu, delta = RandomTrials(1.0, 100.0), 0.3, 1e-4
    epsilon = ideal_loss(mu, delta, law).epsilon
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
    prices = [ideal_loss(0.2, 1e-6, RandomTrials(1.0, mean)).epsilon for mean in (1.0, 100.0)]
    assert prices[0] == pytest.approx(gaussian_epsilon(0.2, 1e-6), rel=1e-9)
    assert prices[0] < prices[1] < 3.0 * prices[0] < gaussian_epsilon(2.0, 1e-6)
    assert math.isinf(ideal_loss(math.inf, 1e-6, LAWS[0]).epsilon)
    law = RandomTrials(1.0, 10.0)  # what a sampler spends is part of every price
    slack = search_loss(0.2, 1e-9, law).epsilon - ideal_loss(0.2, 1e-9, law).epsilon
    assert 0.0 < slack < 1e-2
    hopeless = SamplerSlack(2**20, SAMPLER_ETA, 2.0**-40)
    with pytest.raises(PrivacyParameterError, match="must exceed the slack"):
        calibrated(1.0, 1e-9, LAWS[0], slack=hopeless)


@pytest.mark.parametrize(
    ("epsilon", "delta", "law", "share"),
    [
        (0.1, 1e-9, RandomTrials(1.0, 10.0), 0.0),
        (1.0, 1e-5, RandomTrials(0.0, 30.0), 0.3),
        (4.0, 1e-5, RandomTrials(math.inf, 5.0), 0.0),
        (10.0, 1e-6, RandomTrials(1.0, 1.0), 0.5),
        (20.0, 1e-5, RandomTrials(2.0, 100.0), 0.0),
    ],
)
@pytest.mark.parametrize("slack", [IDEAL, PRICED], ids=["ideal", "priced"])
def test_calibration_is_tight_and_never_above(epsilon, delta, law, share, slack):
    run, extra = calibrated(epsilon, delta, law, share, slack)

    def price(factor):
        return search_loss(factor * run, delta, law, factor * extra, slack).epsilon

    assert price(1.0) <= epsilon < price(1.0 + 1e-5)
    mu = math.hypot(run, extra)
    assert extra == pytest.approx(math.sqrt(share) * mu)
    assert mu <= gaussian_mu(epsilon, delta)


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
    """Law of the best of K outputs; the last place is K = 0."""
    below = np.concatenate(([0.0], np.cumsum(p)))
    below[-1] = 1.0
    if law.is_poisson:
        f = np.exp(law.mean * (below - 1.0))
        return np.append(np.diff(f), f[0])
    if law.shape == 0.0:
        f = np.log1p(-(1.0 - law.gamma) * below) / math.log(law.gamma)
    else:
        f = (1.0 - (1.0 - law.gamma) * below) ** -law.shape - 1.0
        f /= law.gamma**-law.shape - 1.0
    return np.diff(f)


@pytest.mark.parametrize("law", [RandomTrials(s, 5.0) for s in (0.0, 1.0, 2.0, math.inf)], ids=str)
def test_pure_price_bounds_exact_searches(law):
    rng = np.random.default_rng(0)
    worst = 0.0
    for _ in range(60):
        epsilon = 0.5
        p, q = random_pair(rng, epsilon)
        ratios = np.log(best_of(law, p) / best_of(law, q))
        worst = max(worst, np.abs(ratios).max())
    assert worst <= pure_epsilon(0.5, law) * (1.0 + 1e-9)
    # the rarest outcome, twice as likely, where all others are below: f' at 0 and at 1
    p, q = np.array([1e-7, 1.0]), np.array([1e-7 * math.exp(0.5), 1.0])
    p, q = p / p.sum(), q / q.sum()
    assert abs(np.log(best_of(law, p)[0] / best_of(law, q)[0])) < pure_epsilon(0.5, law)


def test_pure_prices():
    geometric, poisson = RandomTrials(1.0, 10.0), RandomTrials(math.inf, 10.0)
    assert pure_epsilon(0.25, geometric) == 0.75  # Liu and Talwar's 3 epsilon
    assert pure_epsilon(0.25, RandomTrials(0.0, 10.0)) == 0.5
    assert pure_epsilon(0.25, RandomTrials(1.0, 1.0), extra=1.0) == 1.25
    assert pure_epsilon(0.25, poisson) == pytest.approx(0.25 + 10 * math.tanh(0.125))
    assert math.isinf(pure_epsilon(math.inf, poisson))
    for law, share in itertools.product((geometric, poisson, RandomTrials(0.3, 7.0)), (0.0, 0.4)):
        run, extra = calibrated(1.0, 0.0, law, share)
        spent = search_loss(run, 0.0, law, extra).epsilon
        assert spent == pure_epsilon(run, law, extra)
        assert 1.0 - 1e-12 < spent <= 1.0


@pytest.mark.parametrize("law", [RandomTrials(s, 5.0) for s in (0.0, 1.0, math.inf)], ids=str)
def test_slack_bounds_the_search_of_a_sampler(law):
    """A run's law perturbed as the sampler may: by e^x on G, anyhow on a set of mass t."""
    rng = np.random.default_rng(1)
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
        a, b = best_of(law, p)[:9], best_of(law, q)[:9]
        assert np.abs(np.log(b / a))[~bad].max() <= slack_ratio(slack, law, 0.0)
        assert max(a[bad].sum(), b[bad].sum()) <= law.mean_bound * t


@pytest.mark.parametrize("law", [RandomTrials(s, 20.0) for s in (0.0, 1.0, math.inf)], ids=str)
@pytest.mark.parametrize("extra", [0.0, 0.1])
def test_slack_is_ratio_and_mass(law, extra):
    """2 rho of epsilon; of delta at least t and t' of each of m runs, and of one that follows."""
    runs, delta = 20.0 + (extra > 0.0), 1e-6
    ratio = SamplerSlack(100, 1e-5, 0.0)
    added = ideal_loss(0.2, delta, law, extra=extra, slack=ratio).epsilon
    added -= ideal_loss(0.2, delta, law, extra=extra).epsilon
    each = 20.0 if law.is_poisson else 1.0 + law.shape
    expected = 2e-3 * (1.0 + each + (extra > 0.0))
    assert expected <= added <= 1.05 * expected + 1e-4
    mass = SamplerSlack(100, 0.0, 1e-12)
    found = ideal_loss(0.2, delta, law, extra=extra, slack=mass).epsilon
    assert found >= ideal_loss(0.2, delta - 2e-10 * runs, law, extra=extra).epsilon
    # t' is a normal's tail, moved by mu: a few times t here
    assert found <= ideal_loss(0.2, delta - 2e-9 * runs, law, extra=extra).epsilon + 1e-4


def fit_plan(budget, **changes):
    sums = Release("sums", "item sums", (9,), 1.0)
    return ReleasePlan.from_shares(budget, [sums], {"sums": 1.0}, **changes)


@pytest.mark.parametrize("law", [RandomTrials(s, 5.0) for s in (0.0, 1.0, math.inf)], ids=str)
@pytest.mark.parametrize("refit", [0.0, 0.3])
@pytest.mark.parametrize("delta", [0.0, 1e-5])
def test_plan_spends_the_budget_and_no_more(law, refit, delta):
    budget = PrivacyBudget(2.0, delta, neighbors="replace")
    plan = SearchPlan.make(budget, law, bound=2.0, score_share=0.2, refit_share=refit)
    assert 2.0 * (1.0 - 1e-6) < plan.epsilon <= 2.0
    assert plan.one_trial < plan.epsilon
    assert plan.plain > plan.one_trial
    assert plan.score.sensitivity == 4.0
    assert plan.fit_budget.neighbors == "replace"
    assert (plan.refit_budget is None) == (refit == 0.0)
    if delta == 0.0:
        share = plan.score.epsilon / (plan.score.epsilon + plan.fit_budget.epsilon)
    else:
        share = plan.score.mu**2 / (plan.score.mu**2 + plan.fit_budget.mu**2)
    assert share == pytest.approx(0.2, rel=1e-6)
    if law.shape == 1.0:
        assert plan.epsilon < plan.plain
    for words in ("Trials:", "Price:", "plain composition", f"{plan.score.sensitivity:.4g}"):
        assert words in str(plan)


def laplace_plan(budget, epsilon):
    release = PureRelease("sums", "sums", (9,), epsilon, "laplace", 1.0, "l1")
    return ReleasePlan(budget, (release,))


def test_candidates_that_spend_too_much_are_refused():
    law = RandomTrials(1.0, 5.0)
    plan = SearchPlan.make(PrivacyBudget(1.0, 1e-5), law, bound=2.0, refit_share=0.2)
    pure = SearchPlan.make(PrivacyBudget(1.0), law, bound=2.0)
    own = plan.fit_budget
    assert plan.check_fit(fit_plan(own)).mu <= own.mu
    assert pure.check_fit(laplace_plan(pure.fit_budget, 0.01)).epsilon == 0.01
    plan.check_fit(fit_plan(plan.refit_budget), refit=True)
    more = PrivacyBudget(own.epsilon * (1.0 + 1e-6), 1e-5)
    large = Release("sums", "item sums", (2**16, 2**16), 1.0, noise_multiplier=99.0)
    local = ReleasePlan(own, fit_plan(own).releases, local=True)
    for search, fit, refit, message in (
        (plan, fit_plan(own), True, "would spend mu="),
        (plan, fit_plan(more), False, "would spend mu="),
        (plan, laplace_plan(PrivacyBudget(0.01), 0.01), False, "1 of its releases not with Gauss"),
        (plan, ReleasePlan(own, (large,)), False, "priced for"),
        (plan, local, False, "local model"),
        (pure, fit_plan(PrivacyBudget(0.1, 1e-5)), False, "1 of its releases not with a pure"),
        (pure, laplace_plan(PrivacyBudget(9.0), 9.0), False, "would spend pure epsilon=9"),
    ):
        with pytest.raises(PrivacyParameterError, match=message):
            search.check_fit(fit, refit=refit)


def statement(refit=0.3, epsilon=1.0, shape=1.0, **options):
    plan = SearchPlan.make(
        PrivacyBudget(epsilon, 1e-5), RandomTrials(shape, 5.0), bound=2.0, refit_share=refit
    )
    after = fit_plan(plan.refit_budget) if refit else None
    return SearchStatement.of_search(plan, fit_plan(plan.fit_budget), after, **options)


@pytest.mark.parametrize("shape", [0.0, 1.0, math.inf])
def test_statement_travels_through_json(shape):
    said = statement(shape=shape, seeded=True)
    assert SearchStatement.from_json(said.to_json()) == said
    assert said.trials == RandomTrials(shape, 5.0)
    for words in (
        "secret random number",
        "noise came from a seed",
        SCORE,
        "running time",
    ):
        assert words in str(said)


def test_statement_is_no_composition():
    assert math.isinf(statement().mu)  # what adds up squares must not take a search for one fit
    with pytest.raises(PrivacyParameterError, match="must not be composed"):
        _ = statement().events


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

    for refit in (0.0, 0.3):
        said = statement(refit)
        events = said.to_dp_events()
        assert len(events) == (2 if refit else 1)
        accountant = RdpAccountant(1.0 + np.exp(np.linspace(-4.5, 12.0, 200)))
        for event in events:
            accountant.compose(event)
        assert said.epsilon < accountant.get_epsilon(1e-5) < 1.6 * said.epsilon


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: RandomTrials(-1.0, 5.0), "trials=-1.0"),
        (lambda: RandomTrials("geometric", 5.0), "trials='geometric'"),
        (lambda: RandomTrials(1.0, 0.5), "mean=0.5"),
        (lambda: RandomTrials(math.inf, 0.0), "mean=0.0"),
        (lambda: RandomTrials(1.0, 1e9), "mean=1000000000.0"),
        (lambda: RandomTrials(-0.999, 1e6), "too heavy"),
        (lambda: RandomTrials.named("fixed", 10), "trials='fixed'"),
        (lambda: score_sensitivity(0.0), "bound=0.0"),
        (lambda: score_sensitivity(1.0, unit="item"), "unit='item'"),
        (lambda: statement(refit=1.0), "refit=1.0"),
        (
            lambda: SearchPlan.make(PrivacyBudget(1.0), LAWS[0], bound=1.0, score_share=0.0),
            "score_share=0.0",
        ),
    ],
)
def test_errors(call, message):
    with pytest.raises(PrivacyParameterError, match=message):
        call()
