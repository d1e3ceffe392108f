"""A spammer and a whale: how far one user, or a hundred, can steer a model.

Somebody wants a poor new film, which five people have rated so far, to be recommended:

- the *whale*, one user, rates it highest and all other films lowest;
- the *spammer* has k users. Each copies the ratings of a random real user, so that they look like
  real ones, and rates the film highest.

How far do the predictions for real users who do not know the film rise, on average?

A fit with Gaussian noise is mu-GDP for one user, `budget.mu`, and k mu-GDP for k. Let s be the
standard deviation of that average over fits without an attack. Whatever the k users rate, it moves
in expectation, within 1 and 5 stars, by no more than::

    min(s sqrt(exp((k mu)^2) - 1), 4 (2 Phi(k mu / 2) - 1)).

The first is the inequality of Hammersley, Chapman and Robbins for the chi-squared divergence of
N(k mu, 1) from N(0, 1), the second the range times the total variation of these two: the laws of a
mu-GDP fit are processed from them (J. Dong, A. Roth, W. J. Su, "Gaussian differential privacy",
J. R. Stat. Soc. B, 2022). So at a small epsilon one user is lost in the noise, which itself moves
the prediction by s from fit to fit; and k users soon may do anything:

    python benchmarks/bench_spammer.py
    python benchmarks/bench_spammer.py --data ml-1m.parquet

It takes about half a minute with made-up ratings.
"""

import math
import sys
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp
from bench_utility import print_head, print_row, split_of, split_parser
from scipy.stats import norm

from skdpmf import AdaptiveWeightALS, DPCovarianceRecommender, DPItemMeans, PrivacyBudget

DELTA = 1e-5
LOWEST, HIGHEST = 1.0, 5.0
N_WATCHED = 200  # real users whose predictions count


def new_film(X, n_ratings):
    """Return ratings and the worst rated film of all, which only its first few raters know."""
    counts = np.bincount(X.indices, minlength=X.shape[1])
    means = np.bincount(X.indices, X.data, X.shape[1]) / np.maximum(counts, 1)
    target = int(np.argmin(np.where(counts >= n_ratings, means, np.inf)))
    entries = X.tocoo()
    kept = entries.col != target
    kept[np.flatnonzero(~kept)[:n_ratings]] = True
    places = entries.row[kept], entries.col[kept]
    return sp.csr_array((entries.data[kept], places), shape=X.shape), target


def with_target(rows, target):
    """Return rows that rate the target highest besides."""
    rows = rows.tolil()
    rows[:, [target]] = HIGHEST
    return rows.tocsr()


class Attacks:
    """The ratings under each attack, in the same number of rows, and whose predictions count."""

    def __init__(self, X, n_ratings, sizes):
        rng = np.random.default_rng(0)
        X, self.target = new_film(X, n_ratings)
        n_slots = max(sizes)
        whale = sp.csr_array(np.full((1, X.shape[1]), LOWEST))
        copies = X[rng.choice(X.shape[0], n_slots)]
        rows = {
            "whale": with_target(whale, self.target),
            **{
                "1 user" if k == 1 else f"{k} users": with_target(copies[:k], self.target)
                for k in sizes
            },
        }
        self.n_users = dict(zip(rows, (1, *sizes), strict=True))
        self.before = sp.vstack((X, sp.csr_array((n_slots, X.shape[1]))), format="csr")
        self.ratings = {
            name: sp.vstack(
                (X, added, sp.csr_array((n_slots - added.shape[0], X.shape[1]))), format="csr"
            )
            for name, added in rows.items()
        }
        rated = np.zeros(X.shape[0], bool)
        rated[X.tocsc()[:, [self.target]].indices] = True
        users = np.flatnonzero(~rated)
        self.watched = X[rng.choice(users, min(N_WATCHED, users.size), replace=False)]

    def outcomes(self, make, ratings, n_seeds):
        """Return the mean prediction and the rank of the target, a row for each seed."""
        found = []
        for seed in range(n_seeds):
            means = make(seed).fit(ratings).predict(self.watched).mean(axis=0)
            found.append((means[self.target], 1 + np.sum(means > means[self.target])))
        return np.array(found)


class Result(NamedTuple):
    """What an attack on a model came to, on average over the noise."""

    model: str
    epsilon: float
    attack: str
    spread: float  # standard deviation of the mean prediction without an attack
    shift: float  # of the mean prediction, and its standard error
    error: float
    allowed: float
    rank: float  # of the target before and after
    new_rank: float

    def cells(self):
        """Return a row of the table."""
        noisy = self.epsilon < math.inf
        return (
            self.model,
            f"{self.epsilon:g}" if noisy else "none",
            self.attack,
            f"{self.shift:+.3f} ± {self.error:.3f}" if noisy else f"{self.shift:+.3f}",
            f"{self.allowed:.2f}" if noisy else "",
            f"{self.spread:.2f}" if noisy else "",
            f"{self.rank:.0f} -> {self.new_rank:.0f}",
        )


def compare(before, after, n_users, mu):
    """Return all numbers of a `Result` but epsilon."""
    # a single fit is one without noise
    spreads = [x[:, 0].std(ddof=1) if len(x) > 1 else 0.0 for x in (before, after)]
    error = math.hypot(
        *(s / math.sqrt(len(x)) for s, x in zip(spreads, (before, after), strict=True))
    )
    (old, rank), (new, new_rank) = before.mean(axis=0), after.mean(axis=0)
    return spreads[0], new - old, error, allowed(spreads[0], n_users * mu), rank, new_rank


def allowed(spread, mu):
    """Return by how much the mean prediction may move on average."""
    by_range = (HIGHEST - LOWEST) * (2.0 * norm.cdf(mu / 2.0) - 1.0)
    if mu > 20.0:  # exp would overflow; the range is far less
        return by_range
    return min(spread * math.sqrt(math.expm1(mu**2)), by_range)


def main(arguments=None):
    """Attack and print."""
    parser = split_parser(__doc__, shape=(1000, 200), n_components=8)
    parser.add_argument("--ratings", type=int, default=5, help="real ones of the film")
    parser.add_argument("--users", type=int, nargs="+", default=[1, 10, 100], help="of the spammer")
    parser.add_argument("--epsilons", type=float, nargs="+", default=[1, 4, 20])
    parser.add_argument("--seeds", type=int, default=8, help="fits of each kind")
    options = parser.parse_args(arguments)
    attacks = Attacks(split_of(options)[0], options.ratings, options.users)

    results = []
    for estimator in (DPItemMeans, AdaptiveWeightALS, DPCovarianceRecommender):
        settings = {"n_jobs": options.n_jobs}
        if estimator is not DPItemMeans:
            settings["n_components"] = options.n_components
        for epsilon in (math.inf, *sorted(options.epsilons, reverse=True)):
            is_private = epsilon < math.inf
            budget = PrivacyBudget(epsilon, DELTA) if is_private else PrivacyBudget.nonprivate()
            n_seeds = options.seeds if is_private else 1

            def make(seed, estimator=estimator, budget=budget, settings=settings):
                return estimator(budget, random_state=seed, **settings)

            # more fits than after an attack: their spread is in the bound
            before = attacks.outcomes(make, attacks.before, 2 * n_seeds if is_private else 1)
            print(f"{estimator.__name__}, epsilon {epsilon:g}", file=sys.stderr)
            for attack, n_users in attacks.n_users.items():
                after = attacks.outcomes(make, attacks.ratings[attack], n_seeds)
                found = compare(before, after, n_users, budget.mu)
                results.append(Result(estimator.__name__, epsilon, attack, *found))
    print_head("model", "epsilon", "attack", "rise, stars", "allowed", "spread", "rank")
    for row in results:
        print_row(*row.cells())


if __name__ == "__main__":
    main()
