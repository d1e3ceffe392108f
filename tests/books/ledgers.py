"""Plans, ledgers and oracles for the tests of ledgers."""

import os
import signal
import time

import mpmath
import pytest

from skdpmf import PrivacyLedger
from skdpmf.privacy import PrivacyBudget, ReleasePlan
from skdpmf.privacy.plan import Release
from skdpmf.privacy.pure import PureRelease


def forks(test):
    """A test that forks; Python warns of it beside threads, which is what is tested."""
    test = pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")(test)
    return pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")(test)


def killed(child_does, rng):
    """Kill a process soon after it first writes into a pipe; return all that it wrote."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            child_does(write)
        finally:
            os._exit(1)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        first = pipe.read(1)
        time.sleep(rng.uniform(0.0, 0.05))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        return first + pipe.read()


def gaussian_plan(mu, n_values=10, budget=None, **settings):
    """A plan of one release of n_values with Gaussian parameter mu."""
    budget = budget or PrivacyBudget(1.0, 1e-5)
    return ReleasePlan(budget, (Release("sums", "sums", (n_values,), 1.0, 1.0 / mu),), **settings)


def calibrated_plan(budget, n_values=10):
    """A plan that spends the whole of a budget with delta > 0."""
    release = Release("sums", "sums", (n_values,), 1.0)
    return ReleasePlan.from_shares(budget, [release], {"sums": 1.0})


def pure_plan(epsilon, count=1, budget=None):
    """A plan of pure releases."""
    draw = PureRelease("draw", "V", (3,), epsilon, "posterior sample", 1.0, "loss", count)
    return ReleasePlan(budget or PrivacyBudget(max(epsilon * count, 1e-300)), (draw,))


def mixed_plan(mu, epsilon, budget=None):
    budget = budget or PrivacyBudget(1.0, 1e-5)
    releases = (*gaussian_plan(mu).releases, *pure_plan(epsilon).releases)
    return ReleasePlan(budget, releases)


def new_ledger(folder, epsilon=4.0, delta=1e-5, name="ratings.ledger", **settings):
    relation = {k: settings.pop(k) for k in ("unit", "neighbors") if k in settings}
    return PrivacyLedger(folder / name, PrivacyBudget(epsilon, delta, **relation), **settings)


def reserve_all(ledger, plans):
    """Reserve the plans that fit and return them."""
    from skdpmf.exceptions import BudgetExceededError

    admitted = []
    for plan in plans:
        try:
            ledger.reserve(plan)
            admitted.append(plan)
        except BudgetExceededError:
            pass
    return admitted


def gdp_delta(mu, epsilon):
    """Delta of mu-GDP at epsilon."""
    with mpmath.workdps(60):
        mu, epsilon = mpmath.mpf(mu), mpmath.mpf(epsilon)
        first = mpmath.ncdf(mu / 2 - epsilon / mu)
        return first - mpmath.exp(epsilon) * mpmath.ncdf(-mu / 2 - epsilon / mu)


def zcdp_delta(rho, epsilon):
    """Delta of rho-zCDP at epsilon: Canonne, Kamath and Steinke, Proposition 12, minimised."""
    with mpmath.workdps(60):
        rho, epsilon = mpmath.mpf(rho), mpmath.mpf(epsilon)

        def log_delta(a):  # alpha = 1 + a
            alpha = 1 + a
            return a * (alpha * rho - epsilon) - mpmath.log(a) + alpha * mpmath.log(a / alpha)

        low, high = mpmath.mpf("1e-6"), mpmath.mpf("1e6")  # convex in a
        for _ in range(300):
            one, two = (2 * low + high) / 3, (low + 2 * high) / 3
            low, high = (low, two) if log_delta(one) < log_delta(two) else (one, high)
        return mpmath.exp(log_delta(low))


def tail_delta(mu, n, tau):
    """What the tails of n values of a sampler add: 2 n tau + phi(z) mu sqrt(n) + Phi(z + mu)."""
    with mpmath.workdps(60):
        mu = mpmath.mpf(mu)
        z = mpmath.findroot(lambda x: mpmath.log(mpmath.ncdf(x)) - mpmath.log(tau), -9.6)
        return 2 * n * mpmath.mpf(tau) + mpmath.npdf(z) * mu * mpmath.sqrt(n) + mpmath.ncdf(z + mu)


def pure_mu(epsilon):
    """2 Phi^-1(e^eps / (1 + e^eps))."""
    with mpmath.workdps(60 + int(epsilon)):  # 1 - p must not vanish
        p = 1 / (1 + mpmath.exp(-mpmath.mpf(epsilon)))
        return 2 * mpmath.sqrt(2) * mpmath.erfinv(2 * p - 1)
