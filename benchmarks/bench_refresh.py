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
    SKDPMF_DATA=folder python benchmarks/bench_refresh.py --new-items 0.3
    python benchmarks/bench_refresh.py --data ml-1m.parquet --new-items 0.3 --items items.parquet

With --new-items this share of the items, chosen at random, comes in equal parts in months 2 to the
last, and nobody has rated them before; --items gives all items features. A line for each month says
for how much of the top 20 of held-out users its new items make up, how much of the liked items
among all that are there, and which part of the liked new items is in the top 20, beside that of
the same items if all are there from month 1, and that of older ones.
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
from skdpmf.data import item_features, make_ratings, ratings_to_matrix, read_ratings
from skdpmf.data.labels import RatingMatrix
from skdpmf.data.loaders import read_items
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


def newcomers(make, X, months, budget, seed, given, share, features=None):
    """Yield month, and shares of lists, of likes, and of likes found: see the module's docstring.

    features : DataFrame, one row for each column of X; None: there are none.
    """
    known, _, liked = given
    rng = np.random.default_rng(seed)
    cohorts = np.array_split(rng.permutation(X.shape[0]), months)
    arrives = np.zeros(X.shape[1], np.int64)
    late = rng.permutation(X.shape[1])[: round(share * X.shape[1])]
    for month, items in enumerate(np.array_split(late, months - 1), 1):
        arrives[items] = month
    names = np.array([f"m{j}" for j in range(X.shape[1])])
    if features is not None:
        features = features.set_axis(names)
    models = {}
    for month, rows in enumerate(cohorts):
        for way, there in (("late", arrives <= month), ("at once", arrives >= 0)):
            new = RatingMatrix(X[rows][:, there], None, names[there])
            model = models.get(way)
            if model is None:
                own = {} if features is None else {"item_features": features[there]}
                models[way] = make(budget, seed).set_params(**own).fit(new)
                continue
            if features is not None and way == "late":
                model = model.with_items(features[arrives == month])
            models[way] = model.refresh(new)
        if month == 0:
            continue
        there, new, lists = arrives <= month, arrives == month, {}
        for way, model in models.items():
            columns = np.array([int(name[1:]) for name in model.catalogue_["item"]])
            candidates = np.flatnonzero(there[columns])
            top = model.recommend(known[:, columns], 20, candidates=candidates)[0]
            found = np.zeros(known.shape, bool)
            user, place = np.nonzero(top >= 0)
            found[user, columns[top[user, place]]] = True
            lists[way] = found
        likes = liked.toarray() > 0
        likes[:, ~there] = False
        total = max(likes[:, new].sum(), 1)
        yield (
            month + 1,
            lists["late"][:, new].sum() / lists["late"].sum(),
            likes[:, new].sum() / likes.sum(),
            (lists["late"] & likes)[:, new].sum() / total,
            (lists["at once"] & likes)[:, new].sum() / total,
            (lists["late"] & likes)[:, ~new].sum() / likes[:, ~new].sum(),
        )


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
    parser.add_argument("--new-items", type=float, help="share of items that come later")
    parser.add_argument("--items", type=Path, help="the catalogue, for features of items")
    options = parser.parse_args()
    path = data_path(options)
    if path is None or not path.exists():
        X = make_ratings(2400, 100, random_state=0)
        features = None
    else:
        rows = ratings_to_matrix(read_ratings(path))
        X, features = rows.X, options.items
        if features is not None:
            features = item_features(read_items(features)).loc[rows.items]
    budget = PrivacyBudget(options.epsilon, options.delta)
    clicks = options.model in CLICKS
    if clicks:
        X = clicks_of_ratings(X)
    X, known, hidden = split_users(X, random_state=options.split)
    given = known, hidden, hidden if clicks else liked_of(hidden)

    def make(own, seed):
        return KINDS[options.model](own, random_state=seed)

    if options.new_items is not None:
        print(f"{options.model}, {options.new_items:g} of the items come in months 2 to the last\n")
        print("| month | of lists | of likes | new found | if there before | older found |")
        print("| --- | --- | --- | --- | --- | --- |")
        terms = make, X, options.months, budget, 0, given, options.new_items, features
        lines = []
        for month, *values in newcomers(*terms):
            lines.append(values)
            print(f"| {month} | " + " | ".join(f"{c:.4f}" for c in values) + " |", flush=True)
        print("| mean | " + " | ".join(f"{c:.4f}" for c in np.mean(lines, axis=0)) + " |")
        return
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

        heads = f"{measure}, month", *ways, "nothing"
        print("| " + " | ".join(heads) + " |")
        print("| " + " | ".join("---" for _ in heads) + " |")
        nothing = mean(("refresh", 0))
        for month in range(options.months):
            cells = [mean((name, month)) for name in ways]
            print(f"| {month + 1} | " + " | ".join(f"{c:.4f}" for c in (*cells, nothing)) + " |")
        print(f"\nOne fit on everybody: {mean('whole'):.4f}\n", flush=True)


if __name__ == "__main__":
    main()
