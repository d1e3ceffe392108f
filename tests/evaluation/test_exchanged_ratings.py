"""Unit "rating": no release moves farther than it declares, wherever a rating goes.

Neighbours are those of `PrivacyBudget`: one rating added or removed, and for "replace" one removal
and one addition in any cells and rows. A fit is recorded, and replayed on its neighbours. A new
case joins by a line in `CASES`.
"""

import inspect
import itertools
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from scipy import sparse

from skdpmf import DPCovarianceRecommender, DPItemMeans, PrivacyBudget
from skdpmf.evaluation import PrivateSearchCV
from skdpmf.exceptions import PrivacyParameterError
from skdpmf.preprocessing import DPItemSelector
from skdpmf.privacy import PrivacyStatement
from skdpmf.privacy.recording import record_releases
from skdpmf.privacy.text import NEIGHBOR_WORDS
from tests.built import built
from tests.estimators.common import public_estimators

N_USERS, N_ITEMS = 5, 4
LOW, HIGH = -2.0, 2.0  # of both signs, so that clipped gradients are
ROUNDING = 1.0 + 1e-9
N_BEST, N_RANDOM = 4, 6  # halves of exchanges, and exchanges
RELATIONS = ("add-remove", "replace")
RANGE = {"rating_range": (LOW, HIGH)}
GAUSSIAN, PURE, LOCAL = (1e3, 1e-5), (1e3, 0.0), (16.0, 0.0)  # epsilon and delta


def searched(budget, **seed):
    """One trial, scored on half of the ratings, which users' own means decide."""
    means = DPItemMeans(budget, user_damping=1e-6, **RANGE)
    return PrivateSearchCV(means, {}, budget, n_trials=1, test_size=0.5, score_share=0.5, **seed)


def covariance(budget, **params):
    return built(DPCovarianceRecommender, budget, n_components=1, clamp=2.0, **RANGE, **params)


CASES = {
    "item means": (GAUSSIAN, lambda b, **seed: DPItemMeans(b, **RANGE, **seed)),
    "item means, Laplace": (PURE, lambda b, **seed: DPItemMeans(b, **RANGE, **seed)),
    "covariance": (GAUSSIAN, covariance),
    "covariance, all releases": (
        GAUSSIAN,
        lambda b, **seed: covariance(b, shares=(0.2, 0.3, 0.5), **seed),
    ),
    "covariance, Laplace": (
        PURE,
        lambda b, **seed: covariance(b, noise="laplace", shares=(0.2, 0.3, 0.5), **seed),
    ),
    "selector": (GAUSSIAN, DPItemSelector),
    "selector, Laplace": (PURE, DPItemSelector),
    "private search": (GAUSSIAN, searched),
    "private search, Laplace": (PURE, searched),
}
# Least distance over sensitivity that must be found: the search would see that much less noise.
REACHED = {"item covariance": 0.5, "global effects": 0.6, "score": 0.7}


def bases(rng):
    """Ratings at the ends: users with every item, one of two kinds, two and none; random ones."""
    ends = np.where(np.arange(N_ITEMS) == 2, LOW, HIGH)
    rows = np.full((N_USERS, N_ITEMS), np.nan)
    rows[0], rows[1], rows[2, 1], rows[3, :2] = HIGH, ends, LOW, ends[1:3]
    yield rows
    X = rng.choice([LOW, 0.0, HIGH], (N_USERS, N_ITEMS))
    X[rng.random(X.shape) < 0.5] = np.nan
    yield X


def singles(X):
    """Cells with another value: every rating removed, and one of either end in each other cell."""
    cells = list(itertools.product(*map(range, X.shape)))
    removals = [(cell, np.nan) for cell in cells if not np.isnan(X[cell])]
    empty = [cell for cell in cells if np.isnan(X[cell])]
    return removals, list(itertools.product(empty, (LOW, HIGH)))


def exchanged(X, *changes):
    other = X.copy()
    for cell, value in changes:
        other[cell] = value
    return other


def recorded(model, X, replay=None):
    with record_releases(replay) as records:
        model.fit(X)
    return records


def ratios(records, others):
    """Yield name and distance over sensitivity of all that leaves."""
    for a, b in zip(records, others, strict=True):
        assert (a.name, a.index, a.sensitivity) == (b.name, b.index, b.sensitivity)
        yield a.name, a.distance(b) / a.sensitivity


def found(X, make, relation, rng):
    """Yield name and ratio of each release for each neighbour that is tried.

    Half of an exchange is one for "replace" as well: a training part, or a later step, may see no
    more of it. Exchanges are those of the halves that move the last release most, in any rows,
    random ones, and other values of a cell.
    """
    records = recorded(make(), X)
    assert records or records.reports

    def moved(*changes):
        return list(ratios(records, recorded(make(), exchanged(X, *changes), records)))

    halves = []
    for half in singles(X):
        tried = [(moved(change), change) for change in half]
        yield from itertools.chain(*(one for one, _ in tried))
        tried.sort(key=lambda one: -one[0][-1][1])
        halves.append([change for _, change in tried])
    if relation == "replace":
        pairs = list(itertools.product(*(half[:N_BEST] for half in halves)))
        for _ in range(N_RANDOM):
            pairs.append(tuple(half[rng.integers(len(half))] for half in halves))
        for cell, _ in halves[0]:
            pairs += [((cell, LOW),), ((cell, HIGH),)]
        for pair in pairs:
            yield from moved(*pair)


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("case", CASES)
def test_no_release_moves_farther_than_it_declares(case, relation):
    level, estimator = CASES[case]
    budget = PrivacyBudget(*level, unit="rating", neighbors=relation)
    rng, worst = np.random.default_rng(0), {}
    for seed, X in enumerate(bases(rng)):
        make = partial(estimator, budget, random_state=seed)
        for name, ratio in found(X, make, relation, rng):
            worst[name] = max(worst.get(name, 0.0), ratio)
    assert max(worst.values()) <= ROUNDING, worst
    # the search is one that finds what there is
    assert all(ratio >= REACHED.get(name, 0.99) for name, ratio in worst.items()), worst


def test_every_estimator_of_single_ratings_is_a_case():
    """All others refuse the unit."""
    budget = PrivacyBudget(1.0, 1e-5, unit="rating")
    tried = {type(make(budget)) for _, make in CASES.values()}
    others = [one for one in public_estimators() if "budget" in one.get_params(deep=False)]
    assert len(others) >= 5
    for estimator in others:
        if type(estimator) not in tried:
            with pytest.raises(PrivacyParameterError, match="unit='rating' must be 'user'"):
                estimator.set_params(budget=budget).plan(N_ITEMS)


def test_an_exchange_between_two_users_moves_a_score_by_what_is_declared():
    """Both were predicted well. One loses the rating that told their taste, the other gets one."""
    budget = PrivacyBudget(1e3, 1e-5, unit="rating", neighbors="replace")
    X = np.zeros((60, 2))
    held_out = searched(budget, random_state=0)._split(sparse.csr_array(X + 1.0))[1].toarray() > 0
    one, two = np.flatnonzero(held_out.sum(axis=1) == 1)[:2]
    X[one] = HIGH
    X[two, ~held_out[two]] = np.nan
    other = X.copy()
    other[one, ~held_out[one]], other[two, ~held_out[two]] = np.nan, HIGH
    records = recorded(searched(budget, random_state=0), X)
    replayed = recorded(searched(budget, random_state=0), other, records)
    (score,) = [ratio for name, ratio in ratios(records, replayed) if name == "score"]
    assert 0.96 < score <= ROUNDING


@pytest.mark.parametrize(("unit", "relation"), NEIGHBOR_WORDS)
def test_what_neighbours_are_is_said_in_the_same_words(unit, relation):
    words = NEIGHBOR_WORDS[unit, relation]
    page = Path(__file__).parents[2].joinpath("docs", "protection.md").read_text()
    assert f'| `"{unit}"` | `"{relation}"` | {words} |' in page
    assert f'"{relation}": {words}' in " ".join(inspect.getdoc(PrivacyBudget).split())
    statement = str(PrivacyStatement(1.0, 0.0, unit, relation, ()))
    assert f"(neighbours: {words})" in " ".join(statement.split())
