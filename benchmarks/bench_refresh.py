"""A year of a private model: cohorts of new people every month, and ways to go on.

The training users come in cohorts of equal size, in a random order; held-out users hide a fifth of
their ratings. Everybody has one budget for life, and docs/benchmarks/refresh.md tells the ways by
month. Last comes one fit on everybody with the whole budget. Ratings come from --data FILE or
$SKDPMF_DATA/ml-1m.parquet, or are made up. DPCovarianceRecommender and AdaptiveWeightALS-clicks get
clicks in their place, as benchmarks/bench_clicks.py makes them. Prints a Markdown table for each
measure.

    SKDPMF_DATA=folder python benchmarks/bench_refresh.py
    SKDPMF_DATA=folder python benchmarks/bench_refresh.py --model AdaptiveWeightALS-clicks
"""

from functools import partial

import numpy as np
from harness import note, parser, print_head, print_row
from ratings import DELTA, budget_of, clicks_of_ratings, liked_of, ratings_of

from skdpmf import AdaptiveWeightALS, DPCovarianceRecommender, DPItemMeans
from skdpmf.evaluation import recall_at_k, split_users

KINDS = {
    "AdaptiveWeightALS": AdaptiveWeightALS,
    "AdaptiveWeightALS-clicks": partial(AdaptiveWeightALS, feedback="implicit"),
    "DPItemMeans": DPItemMeans,
    "DPCovarianceRecommender": partial(DPCovarianceRecommender, feedback="implicit"),
}
CLICKS = ("AdaptiveWeightALS-clicks", "DPCovarianceRecommender")
PARSER = parser(
    __doc__,
    data=None,
    epsilon=4.0,
    months=12,
    share=0.25,  # of mu^2, in a scheduled refresh
    seeds=1,  # of noise and of cohorts
    split=0,
    model="AdaptiveWeightALS",
)


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


def main(arguments=None):
    options = PARSER.parse_args(arguments)
    X, clicks = ratings_of(options, 2400, 100), options.model in CLICKS
    if clicks:
        X = clicks_of_ratings(X)
    budget = budget_of(options.epsilon)
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
                note(name, month + 1, values)
        whole = measured(make(budget, seed).fit(X), *given)
        found.setdefault("whole", []).append(whole)
        note("one fit", whole)
    print(
        f"{options.model}, split {options.split}: {X.shape[0]:,} training users x {X.shape[1]:,} "
        f"items, {X.nnz:,} entries; {known.shape[0]:,} held-out users; epsilon "
        f"{options.epsilon:g} at delta {DELTA:g} for life, {options.seeds} seeds\n"
    )
    for measure in whole:
        means = {
            key: f"{np.mean([values[measure] for values in runs]):.4f}"
            for key, runs in found.items()
        }
        print_head(f"{measure}, month", *ways, "nothing")
        for month in range(options.months):
            cells = (means[name, month] for name in ways)
            print_row(month + 1, *cells, means["refresh", 0])
        print(f"\nOne fit on everybody: {means['whole']}\n", flush=True)


if __name__ == "__main__":
    main()
