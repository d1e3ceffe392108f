"""A year of a private model: cohorts of new people every month, and four ways to go on.

The training users come in cohorts of equal size, in a random order; held-out users hide a fifth of
their ratings (`skdpmf.evaluation.split_users`). Everybody has one budget for life. By month:

- refresh: every cohort spends the whole budget in a refresh of the model;
- schedule: a cohort spends a share of the budget in a refresh, and everybody the rest in one fit on
  all rows in the last month (a ledger by person with at_most=2);
- refits: every month a fit on everybody so far, each with 1 / months of the budget (of mu^2);
- nothing: the model of the first month.

Last comes one fit on everybody with the whole budget. Ratings come from --data FILE or
$SKDPMF_DATA/ml-1m.parquet, or are made up. DPCovarianceRecommender and AdaptiveWeightALS-clicks get
clicks in their place, as benchmarks/bench_clicks.py makes them. Prints a Markdown table for each
measure.

    SKDPMF_DATA=folder python benchmarks/bench_refresh.py
    SKDPMF_DATA=folder python benchmarks/bench_refresh.py --model DPCovarianceRecommender
    SKDPMF_DATA=folder python benchmarks/bench_refresh.py --model AdaptiveWeightALS-clicks
"""

import argparse
import sys
from functools import partial
from pathlib import Path

import numpy as np
from bench_clicks import clicks_of_ratings
from bench_lists import liked_of
from bench_utility import data_path

from skdpmf import AdaptiveWeightALS, DPCovarianceRecommender, DPItemMeans, PrivacyBudget
from skdpmf.data import make_ratings, ratings_to_matrix, read_ratings
from skdpmf.evaluation import recall_at_k, split_users

KINDS = {
    "AdaptiveWeightALS": AdaptiveWeightALS,
    "AdaptiveWeightALS-clicks": partial(AdaptiveWeightALS, feedback="implicit"),
    "DPItemMeans": DPItemMeans,
    "DPCovarianceRecommender": partial(DPCovarianceRecommender, feedback="implicit"),
}
CLICKS = ("AdaptiveWeightALS-clicks", "DPCovarianceRecommender")


def measured(model, known, hidden, liked):
    """Recall@20 of a fitted model, and the RMSE of one of ratings."""
    found = {"Recall@20": recall_at_k(liked, model.recommend(known, 20)[0], 20)}
    if getattr(model, "feedback", "explicit") == "explicit":
        found["RMSE"] = -model.score(known, hidden)
    return found


def refreshed(make, cohorts, budget, seed):
    """Yield the model of every month."""
    model = None
    for rows in cohorts:
        model = make(budget, seed).fit(rows) if model is None else model.refresh(rows)
        yield model


def scheduled(make, X, cohorts, budget, share, seed):
    """Yield the model of every month; the last one is a fit on everybody."""
    small, rest = budget.split([share, 1.0 - share])
    *first, _ = refreshed(make, cohorts, small, seed)
    yield from first
    yield make(rest, seed).fit(X)


def refitted(make, X, order, cohorts, budget, seed):
    """Yield the model of every month, a fit on everybody so far."""
    part, n_rows = budget.split([1.0 / len(cohorts)] * len(cohorts))[0], 0
    for rows in cohorts:
        n_rows += rows.shape[0]
        yield make(part, seed).fit(X[order[:n_rows]])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="default: $SKDPMF_DATA/ml-1m.parquet")
    parser.add_argument("--epsilon", type=float, default=4.0)
    parser.add_argument("--delta", type=float, default=1e-5)
    parser.add_argument("--months", type=int, default=12)
    parser.add_argument("--share", type=float, default=0.25, help="of mu^2, in a scheduled refresh")
    parser.add_argument("--seeds", type=int, default=1, help="seeds of noise and of cohorts")
    parser.add_argument("--split", type=int, default=0)
    parser.add_argument("--model", choices=KINDS, default="AdaptiveWeightALS")
    options = parser.parse_args()
    path = data_path(options)
    if path is None or not path.exists():
        X = make_ratings(2400, 100, random_state=0)
    else:
        X = ratings_to_matrix(read_ratings(path)).X
    budget = PrivacyBudget(options.epsilon, options.delta)
    clicks = options.model in CLICKS
    if clicks:
        X = clicks_of_ratings(X)
    X, known, hidden = split_users(X, random_state=options.split)
    given = known, hidden, hidden if clicks else liked_of(hidden)

    def make(own, seed):
        return KINDS[options.model](own, random_state=seed)

    found = {}
    for seed in range(options.seeds):
        order = np.random.default_rng(seed).permutation(X.shape[0])
        cohorts = [X[rows] for rows in np.array_split(order, options.months)]
        ways = {
            "refresh": refreshed(make, cohorts, budget, seed),
            "schedule": scheduled(make, X, cohorts, budget, options.share, seed),
            "refits": refitted(make, X, order, cohorts, budget, seed),
        }
        for name, models in ways.items():
            for month, model in enumerate(models):
                values = measured(model, *given)
                found.setdefault((name, month), []).append(values)
                print(name, month + 1, values, file=sys.stderr, flush=True)
        whole = measured(make(budget, seed).fit(X), *given)
        found.setdefault("whole", []).append(whole)
        print("one fit", whole, file=sys.stderr, flush=True)
    print(
        f"{options.model}, split {options.split}: {X.shape[0]:,} training users x {X.shape[1]:,} "
        f"items, {X.nnz:,} entries; {known.shape[0]:,} held-out users; epsilon "
        f"{options.epsilon:g} at delta {options.delta:g} for life, {options.seeds} seeds\n"
    )
    for measure in whole:

        def mean(key, measure=measure):
            return np.mean([values[measure] for values in found[key]])

        print(f"| {measure}, month | refresh | schedule | refits | nothing |")
        print("| --- | --- | --- | --- | --- |")
        nothing = mean(("refresh", 0))
        for month in range(options.months):
            cells = [mean((name, month)) for name in ways]
            print(f"| {month + 1} | " + " | ".join(f"{c:.4f}" for c in (*cells, nothing)) + " |")
        print(f"\nOne fit on everybody: {mean('whole'):.4f}\n", flush=True)


if __name__ == "__main__":
    main()
