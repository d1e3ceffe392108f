"""A spammer and a whale: how far one user, or a hundred, can steer a model.

docs/attacks.md tells of both, and bounds the rise. How far do the predictions of a poor new film
rise on average, for real users who do not know it?

    python benchmarks/bench_spammer.py
    python benchmarks/bench_spammer.py --data ml-1m.parquet

It takes about half a minute with made-up ratings.
"""

import math

import numpy as np
import scipy.sparse as sp
from harness import note, parser, print_head, print_row
from ratings import budget_of, training_of
from scipy.stats import norm

from skdpmf import AdaptiveWeightALS, DPCovarianceRecommender, DPItemMeans

LOWEST, HIGHEST = 1.0, 5.0
N_WATCHED = 200  # real users whose predictions count
PARSER = parser(
    __doc__,
    data=None,
    shape=(1000, 200),
    n_components=8,
    n_jobs=1,
    ratings=5,  # real ones of the film
    users=[1, 10, 100],  # of the spammer
    epsilons=[1.0, 4.0, 20.0],
    seeds=8,
)


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


def compared(before, after, n_users, budget):
    """Cells of a row: the rise, what is allowed, the spread without an attack, and the ranks."""
    (old, rank), (new, new_rank) = before.mean(axis=0), after.mean(axis=0)
    rise, ranks = f"{new - old:+.3f}", f"{rank:.0f} -> {new_rank:.0f}"
    if not budget.is_private:  # a single fit, without noise
        return rise, "", "", ranks
    spreads = [x[:, 0].std(ddof=1) for x in (before, after)]
    error = math.hypot(
        *(s / math.sqrt(len(x)) for s, x in zip(spreads, (before, after), strict=True))
    )
    limit = allowed(spreads[0], n_users * budget.mu)
    return f"{rise} ± {error:.3f}", f"{limit:.2f}", f"{spreads[0]:.2f}", ranks


def allowed(spread, mu):
    """Return by how much the mean prediction may move on average."""
    by_range = (HIGHEST - LOWEST) * (2.0 * norm.cdf(mu / 2.0) - 1.0)
    if mu > 20.0:  # exp would overflow; the range is far less
        return by_range
    return min(spread * math.sqrt(math.expm1(mu**2)), by_range)


def main(arguments=None):
    """Attack and print."""
    options = PARSER.parse_args(arguments)
    attacks = Attacks(training_of(options), options.ratings, options.users)

    print_head("model", "epsilon", "attack", "rise, stars", "allowed", "spread", "rank")
    for estimator in (DPItemMeans, AdaptiveWeightALS, DPCovarianceRecommender):
        settings = {"n_jobs": options.n_jobs}
        if estimator is not DPItemMeans:
            settings["n_components"] = options.n_components
        for epsilon in (math.inf, *sorted(options.epsilons, reverse=True)):
            budget = budget_of(epsilon)
            n_seeds = options.seeds if budget.is_private else 1

            def make(seed, estimator=estimator, budget=budget, settings=settings):
                return estimator(budget, random_state=seed, **settings)

            # more fits than after an attack: their spread is in the bound
            before = attacks.outcomes(make, attacks.before, 2 * n_seeds if budget.is_private else 1)
            note(f"{estimator.__name__}, epsilon {epsilon:g}")
            for attack, n_users in attacks.n_users.items():
                after = attacks.outcomes(make, attacks.ratings[attack], n_seeds)
                shown = f"{epsilon:g}" if budget.is_private else "none"
                cells = compared(before, after, n_users, budget)
                print_row(estimator.__name__, shown, attack, *cells)


if __name__ == "__main__":
    main()
