"""Kills of processes that refresh a model: no participation is lost, and a loss would be seen.

A forked process refreshes a small model with one cohort of new people after another, on one ledger
by person with at_most=1, until SIGKILL ends it at a random moment. It says which cohort it is at
just before the cohort's first draw of noise. After each kill the ledger is opened and verified
anew. A cohort is lost if noise may have been drawn for it and any of its people may take part.
"""

import os
import random
import signal
import time

from skdpmf import DPItemMeans, PrivacyBudget, PrivacyLedger
from skdpmf.data import make_ratings
from skdpmf.data.labels import RatingMatrix
from skdpmf.exceptions import BudgetExceededError
from skdpmf.privacy.plan import Release, ReleasePlan
from skdpmf.privacy.sampler.noise import NoiseSource
from tests.books.ledgers import forks

LIMIT = PrivacyBudget(4.0, 1e-5)
PEOPLE = 20


def cohort(kill, month):
    """Ids of the people of one refresh; nobody is in two."""
    return [f"{kill}-{month}-{person}" for person in range(PEOPLE)]


def refresh_until_killed(model, X, kill, pipe):
    """Refresh without end; write a byte for every cohort, before its first draw of noise."""
    release, told = NoiseSource.release, set()

    def telling(source, *terms, **more):
        if month not in told:
            told.add(month)
            os.write(pipe, b".")
        return release(source, *terms, **more)

    NoiseSource.release = telling
    month = 0
    while True:
        model = model.refresh(RatingMatrix(X, cohort(kill, month)))
        month += 1


def kill_once(model, X, kill, seconds):
    """Return for how many cohorts noise may have been drawn before the kill."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            refresh_until_killed(model, X, kill, write)
        finally:
            os._exit(1)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        time.sleep(seconds)
        os.kill(child, signal.SIGKILL)
        status = os.waitpid(child, 0)[1]
        if status != signal.SIGKILL:
            raise RuntimeError(f"the refreshes of kill {kill} ended by themselves: {status}")
        return len(pipe.read())


def n_lost(ledger, kill, n_drawn):
    """Return how many of the cohorts that were drawn still have people who may take part."""
    releases = (Release("probe", "sums", (1,), 1.0, 1e3),)  # next to nothing: only at_most refuses
    lost = 0
    for month in range(n_drawn):
        try:
            ledger.reserve(ReleasePlan(LIMIT, releases), users=cohort(kill, month))
            lost += 1
        except BudgetExceededError:  # nobody is left
            pass
    return lost


def run(path, n_kills, longest, seed):
    """Return cohorts drawn, cohorts on record without a draw, and cohorts lost."""
    rng, X = random.Random(seed), make_ratings(PEOPLE, 8, random_state=0)
    ledger = PrivacyLedger(path, limit=LIMIT, at_most=1)
    budget = PrivacyBudget(LIMIT.epsilon, LIMIT.delta, ledger=ledger)
    model = DPItemMeans(budget).fit(RatingMatrix(X, cohort("first", 0)))
    drawn = idle = lost = 0
    for kill in range(n_kills):
        before = len(ledger.report().entries)
        n_drawn = kill_once(model, X, kill, rng.uniform(0.0, longest))
        after = PrivacyLedger(path)
        n_new = after.verify() - before
        if not n_drawn <= n_new <= n_drawn + 1:
            raise RuntimeError(f"kill {kill}: {n_drawn} cohorts drawn, {n_new} on record")
        drawn, idle = drawn + n_drawn, idle + n_new - n_drawn
        lost += n_lost(after, kill, n_drawn)
    return drawn, idle, lost


@forks
def test_six_kills_lose_no_participation(tmp_path):
    drawn, _, lost = run(tmp_path / "people.ledger", 6, 0.3, seed=0)
    assert drawn > 0
    assert lost == 0


def test_a_cohort_that_nobody_charged_is_seen(tmp_path):
    ledger = PrivacyLedger(tmp_path / "people.ledger", limit=LIMIT, at_most=1)
    assert n_lost(ledger, 0, 2) == 2
    assert n_lost(ledger, 0, 2) == 0  # the probe has charged them
