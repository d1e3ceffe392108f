"""The six methods of Krichene et al. (2023) from one estimator: RMSE overall and by popularity.

Two solvers of the items' half, sufficient statistics (DPALS) and noisy gradient descent (DPSGD),
with three weightings: uniform and tail sampling of 100 ratings a user, and adaptive weights.
Ratings come from --data FILE or $SKDPMF_DATA/ml-1m.parquet. A tenth of the rows is held out by
`skdpmf.evaluation.split_table` (split 0), all other settings are defaults. Prints Markdown tables.

    SKDPMF_DATA=folder python benchmarks/bench_six_methods.py
"""

import argparse
import os
import statistics
import sys
from pathlib import Path

import numpy as np
from sklearn.model_selection import ParameterGrid

from skdpmf import AdaptiveWeightALS, PrivacyBudget
from skdpmf.data import ratings_to_matrix, read_ratings
from skdpmf.evaluation import by_popularity, rmse, split_table

GRID = {"solver": ["ssp", "dpsgd"], "weighting": ["uniform", "tail", "adaptive"]}
NAMES = {
    ("ssp", "uniform"): "DPALS, uniform",
    ("ssp", "tail"): "DPALS, tail",
    ("ssp", "adaptive"): "AdaDPALS",
    ("dpsgd", "uniform"): "DPSGD, uniform",
    ("dpsgd", "tail"): "DPSGD, tail",
    ("dpsgd", "adaptive"): "AdaDPSGD",
}
N_BUCKETS = 5
MANY_STEPS = 40  # inner steps a round of the non-private limit of gradient descent


def matrices(path, seed):
    """Training and test matrices. Catalogue and user slots, all of the file's, are public."""
    frame = read_ratings(path)
    users, items = np.unique(frame["user"]), np.unique(frame["item"])
    parts = split_table(frame, test_size=0.1, random_state=seed)
    return (ratings_to_matrix(part, users=users, items=items).X for part in parts)


def buckets_of_ratings(counts):
    """Bucket of each item: rarest first, equally many training ratings a bucket."""
    order = np.argsort(counts, kind="stable")
    before = np.cumsum(counts[order]) - counts[order]
    buckets = np.empty(counts.size, int)
    buckets[order] = np.minimum(N_BUCKETS * before // counts.sum(), N_BUCKETS - 1)
    return buckets


def measure(X, Y, budget, n_seeds, n_jobs, **params):
    """Overall RMSE and the two kinds of buckets, a row for each seed."""
    buckets = buckets_of_ratings(np.bincount(X.indices, minlength=X.shape[1]))[Y.indices]
    rows = []
    for seed in range(n_seeds):
        # Seeded, so that the table can be made again; a real release leaves random_state alone.
        model = AdaptiveWeightALS(budget, random_state=seed, n_jobs=n_jobs, **params).fit(X)
        predicted = model.predict_entries(X, Y)
        P = predicted.data
        by_ratings = [rmse(Y.data[buckets == b], P[buckets == b]) for b in range(N_BUCKETS)]
        by_items = by_popularity(X, Y, predicted, n_buckets=N_BUCKETS)["rmse"]
        rows.append([rmse(Y, predicted), *by_ratings, *by_items])
    print(params, budget.epsilon, np.round(np.mean(rows, axis=0), 4), file=sys.stderr, flush=True)
    return np.array(rows)


def with_spread(values):
    spread = f" ± {statistics.stdev(values):.4f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.4f}{spread}"


def print_table(*rows):
    head, *body = rows
    for row in (head, ["---"] * len(head), *body):
        print("| " + " | ".join(map(str, row)) + " |")
    print(flush=True)


def print_buckets(cells, epsilons, edges, columns):
    """RMSE by bucket, and whether adaptive weights beat tail sampling on the rarer four."""
    rows = [["epsilon", "method", *edges]]
    for epsilon in epsilons:
        for key, name in NAMES.items():
            means = cells[(*key, epsilon)][:, columns].mean(axis=0)
            rows.append([f"{epsilon:g}", name, *(f"{value:.4f}" for value in means)])
    print_table(*rows)
    for epsilon in epsilons:
        for solver in GRID["solver"]:
            tail, adaptive = (
                cells[solver, weighting, epsilon][:, columns] for weighting in ("tail", "adaptive")
            )
            gains = 100.0 * (1.0 - adaptive.mean(axis=0) / tail.mean(axis=0))[: N_BUCKETS - 1]
            verdict = "on every one" if np.all(gains > 0.0) else "NOT on every one"
            print(
                f"{NAMES[solver, 'adaptive']} better than {NAMES[solver, 'tail']} at epsilon "
                f"{epsilon:g} {verdict} of the four rarer buckets: "
                + ", ".join(f"{gain:+.1f} %" for gain in gains)
            )
    print(flush=True)


def edges_of(parts):
    return [f"{part.min()} to {part.max()}" for part in parts]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="default: $SKDPMF_DATA/ml-1m.parquet")
    parser.add_argument("--epsilons", type=float, nargs="+", default=[1.0, 5.0, 20.0])
    parser.add_argument("--delta", type=float, default=1e-5)
    parser.add_argument("--seeds", type=int, default=3, help="noise seeds")
    parser.add_argument("--split", type=int, default=0)
    parser.add_argument("--n-jobs", type=int, default=1)
    options = parser.parse_args()
    path = options.data
    if path is None and "SKDPMF_DATA" in os.environ:
        path = Path(os.environ["SKDPMF_DATA"]) / "ml-1m.parquet"
    if path is None or not path.exists():
        parser.exit(0, f"no ratings file ({path}): --data or $SKDPMF_DATA\n")

    X, Y = matrices(path, options.split)
    cells = {}
    for epsilon in options.epsilons:
        budget = PrivacyBudget(epsilon, options.delta)
        for params in ParameterGrid(GRID):
            key = params["solver"], params["weighting"], epsilon
            cells[key] = measure(X, Y, budget, options.seeds, options.n_jobs, **params)
    for params in ParameterGrid(GRID):
        steps = {"n_inner_steps": MANY_STEPS} if params["solver"] == "dpsgd" else {}
        key = params["solver"], params["weighting"], np.inf
        cells[key] = measure(X, Y, PrivacyBudget.nonprivate(), 1, options.n_jobs, **params, **steps)

    users, items = X.shape
    print(
        f"Split {options.split}: {users:,} users x {items:,} items, {X.nnz:,} training and "
        f"{Y.nnz:,} test ratings, delta {options.delta:g}, {options.seeds} noise seeds\n"
    )
    rows = [["epsilon", *NAMES.values()]]
    for epsilon in (*options.epsilons, np.inf):
        own = [with_spread(cells[(*key, epsilon)][:, 0]) for key in NAMES]
        rows.append([f"{epsilon:g}", *own])
    print_table(*rows)
    counts = np.bincount(X.indices, minlength=items)
    buckets = buckets_of_ratings(counts)
    print("By popularity, equally many training ratings a bucket, rarest items first\n")
    edges = edges_of([counts[buckets == b] for b in range(N_BUCKETS)])
    print_buckets(cells, options.epsilons, edges, slice(1, 1 + N_BUCKETS))
    print("By popularity, equally many items a bucket, rarest items first\n")
    edges = edges_of(np.array_split(np.sort(counts), N_BUCKETS))
    print_buckets(cells, options.epsilons, edges, slice(1 + N_BUCKETS, None))


if __name__ == "__main__":
    main()
