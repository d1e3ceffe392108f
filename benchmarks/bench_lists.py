"""Lists from ratings: does `recommend` find held-out users' favourites, and at which cost?

Every estimator with its defaults is fitted on the ratings of the training users; held-out users
hide a fifth of their ratings (`skdpmf.evaluation.split_users`). Recall@20 and NDCG@100 are of the
hidden ratings above 3.5 of 5, the RMSE is of all hidden ratings. Beside them are the most popular
items (exact counts), EASE without privacy on what is rated, and AdaptiveWeightALS without a share
for lists. Ratings come from --data FILE or $SKDPMF_DATA/ml-1m.parquet, or are made up. Prints a
Markdown table for each measure; with --titles FILE also the neighbours of a film and the list of a
made-up person at each epsilon.

    SKDPMF_DATA=folder python benchmarks/bench_lists.py
    python benchmarks/bench_lists.py --titles items.parquet --epsilons 1 4 20
    python benchmarks/bench_lists.py --users 1000 --methods AdaptiveWeightALS --epsilons .5 1 2
"""

import argparse
import statistics
import sys
from pathlib import Path

import numpy as np
from bench_utility import data_path, popular_part, some_users
from scipy import sparse

from skdpmf import (
    AdaptiveWeightALS,
    CacheSGDFactorizer,
    DPCovarianceRecommender,
    DPItemMeans,
    DPMFSampler,
    Pooled,
    PrivacyBudget,
)
from skdpmf.data import make_ratings, ratings_to_matrix, read_ratings
from skdpmf.data.loaders import read_items
from skdpmf.evaluation import ndcg_at_k, recall_at_k, split_users

LIKED = 0.625  # of the range: above 3.5 of 1 to 5
MODELS = {
    "AdaptiveWeightALS": lambda budget, seed: AdaptiveWeightALS(budget, random_state=seed),
    "AdaptiveWeightALS, list_share=None": lambda budget, seed: AdaptiveWeightALS(
        budget, random_state=seed, solver=Pooled(list_share=None)
    ),
    "DPMFSampler": lambda budget, seed: DPMFSampler(budget, random_state=seed),
    "DPCovarianceRecommender": lambda budget, seed: DPCovarianceRecommender(
        budget, random_state=seed
    ),
    "DPItemMeans": lambda budget, seed: DPItemMeans(budget, random_state=seed),
}
PERSON = (
    "Star Wars: Episode IV",
    "Star Wars: Episode V",
    "Alien (1979)",
    "Terminator, The",
    "Matrix",
)
QUERY = "Toy Story (1995)"


def liked_of(hidden):
    """Hidden ratings that count as relevant."""
    liked = sparse.csr_array(hidden, copy=True)
    liked.data = (liked.data > 1.0 + LIKED * 4.0).astype(float)
    liked.eliminate_zeros()
    return liked


def measured(model, known, hidden, liked):
    """Recall@20, NDCG@100 and RMSE of a fitted model."""
    ranked = model.recommend(known, 100)[0]
    return (
        recall_at_k(liked, ranked, 20),
        ndcg_at_k(liked, ranked, 100),
        -model.score(known, hidden),
    )


def of_scores(scores, known, liked):
    """Recall@20 and NDCG@100 of given scores; such lists predict no rating."""
    scores = np.where(known.toarray() > 0, -np.inf, scores)
    ranked = np.argsort(-scores, axis=1, kind="stable")[:, :100]
    return recall_at_k(liked, ranked, 20), ndcg_at_k(liked, ranked, 100), np.nan


def ease(X, known, penalty=500.0):
    """EASE (Steck 2019) on what is rated, at the penalty that suits MovieLens 1M."""
    G = (X.astype(bool).astype(float).T @ X.astype(bool).astype(float)).toarray()
    P = np.linalg.inv(G + penalty * np.eye(len(G)))
    B = -P / np.diag(P)
    np.fill_diagonal(B, 0.0)
    return known.astype(bool).astype(float) @ B


def cell(values, digits=4):
    values = [value for value in values if np.isfinite(value)]
    if not values:
        return "-"
    spread = f" ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.{digits}f}{spread}"


def look(X, budgets, titles):
    """Print neighbours of a film and the list of a made-up person, by title."""
    place = {title: j for j, title in enumerate(titles)}
    query = place[QUERY]
    person = [j for title, j in place.items() if title.startswith(PERSON)]
    row = sparse.csr_array(
        (np.full(len(person), 5.0), ([0] * len(person), person)), (1, len(titles))
    )
    print("Five stars for: " + "; ".join(titles[j] for j in person) + "\n")
    for budget in budgets:
        for name in ("AdaptiveWeightALS", "AdaptiveWeightALS, list_share=None"):
            model = MODELS[name](budget, 0).fit(X)
            near = model.similar_items(query, 5)[0]
            best = model.recommend(row, 8)[0][0]
            print(f"- epsilon {budget.epsilon:g}, {name}")
            print("  - near Toy Story: " + "; ".join(titles[j] for j in near if j >= 0))
            print("  - list: " + "; ".join(titles[j] for j in best))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="default: $SKDPMF_DATA/ml-1m.parquet")
    parser.add_argument("--epsilons", type=float, nargs="+", default=[1.0, 4.0, 20.0])
    parser.add_argument("--delta", type=float, default=1e-5)
    parser.add_argument("--seeds", type=int, default=3, help="noise seeds")
    parser.add_argument("--split", type=int, default=0)
    parser.add_argument("--users", type=int, help="only so many training users, at random")
    parser.add_argument("--items", type=int, help="only so many items, the most popular ones")
    parser.add_argument("--methods", nargs="+", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--titles", type=Path, help="items with titles: print lists to look at")
    options = parser.parse_args()
    path = data_path(options)
    budgets = [PrivacyBudget(epsilon, options.delta) for epsilon in options.epsilons]
    budgets.append(PrivacyBudget.nonprivate())
    if path is None or not path.exists():
        matrix, X = None, make_ratings(1500, 200, random_state=0)
    else:
        matrix = ratings_to_matrix(read_ratings(path))
        X = matrix.X
    if options.titles and matrix is not None:
        items = read_items(options.titles)
        title_of = dict(zip(items["item"].astype(str), items["title"], strict=True))
        look(X, budgets, [title_of.get(str(item), str(item)) for item in matrix.items])
        return
    if options.items:
        X = popular_part(X, options.items)
    X, known, hidden = split_users(X, random_state=options.split)
    if options.users:
        X = some_users(X, options.users)
    liked = liked_of(hidden)
    found = {}
    counts = np.bincount(X.indices, minlength=X.shape[1])
    unprivate = {
        "most popular, exact counts": of_scores(counts, known, liked),
        "EASE, not private": of_scores(ease(X, known), known, liked),
    }
    sgd = measured(CacheSGDFactorizer(random_state=0).fit(X), known, hidden, liked)
    unprivate["CacheSGDFactorizer, not private"] = sgd
    for budget in budgets:
        for name in options.methods:
            make = MODELS[name]
            seeds = range(options.seeds if budget.is_private else 1)
            runs = [measured(make(budget, seed).fit(X), known, hidden, liked) for seed in seeds]
            found[name, budget.epsilon] = np.array(runs)
            print(name, budget.epsilon, np.mean(runs, axis=0).round(4), file=sys.stderr, flush=True)
    print(
        f"Split {options.split}: {X.shape[0]:,} training users x {X.shape[1]:,} items, {X.nnz:,} "
        f"ratings; {known.shape[0]:,} held-out users; delta {options.delta:g}, {options.seeds} "
        "noise seeds\n"
    )
    for column, measure in enumerate(("Recall@20", "NDCG@100", "RMSE")):
        print("| " + " | ".join((measure, *(f"epsilon {b.epsilon:g}" for b in budgets))) + " |")
        print("| --- " * (1 + len(budgets)) + "|")
        for name in options.methods:
            row = [cell(found[name, b.epsilon][:, column]) for b in budgets]
            print("| " + " | ".join((name, *row)) + " |")
        for name, values in unprivate.items():
            row = [""] * len(options.epsilons) + [cell([values[column]])]
            print("| " + " | ".join((name, *row)) + " |")
        print(flush=True)


if __name__ == "__main__":
    main()
