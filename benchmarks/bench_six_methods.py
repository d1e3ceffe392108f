"""The six methods of Krichene et al. (2023) from one estimator: RMSE overall and by popularity.

It compares two solvers of the item step, sufficient statistics (DPALS) and noisy gradient descent
(DPSGD), with three weightings each: uniform and tail sampling of 100 ratings a user, and adaptive
weights; and the default solver. Ratings come from --data FILE or $SKDPMF_DATA/ml-1m.parquet. A
tenth of the rows is held out by `skdpmf.evaluation.split_table` (split 0), all other settings are
defaults. Prints Markdown tables.

    SKDPMF_DATA=folder python benchmarks/bench_six_methods.py

The synthetic ratings of bench_utility.py have names:

    python benchmarks/bench_six_methods.py --data synth10m --seeds 1
"""

import argparse
import statistics
import sys
from pathlib import Path

import numpy as np
from bench_utility import LARGE, data_path

from skdpmf import DPALS, DPSGD, AdaptiveWeightALS, Pooled, PrivacyBudget
from skdpmf.data import ratings_to_matrix, read_ratings
from skdpmf.evaluation import by_popularity, rmse, split_ratings, split_table
from skdpmf.evaluation.metrics import popularity_buckets

NAMES = {
    ("dpals", "uniform"): "DPALS, uniform",
    ("dpals", "tail"): "DPALS, tail",
    ("dpals", "adaptive"): "AdaDPALS",
    ("dpsgd", "uniform"): "DPSGD, uniform",
    ("dpsgd", "tail"): "DPSGD, tail",
    ("dpsgd", "adaptive"): "AdaDPSGD",
    ("pooled", "adaptive"): "pooled (default)",
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


def measure(X, Y, budget, n_seeds, **params):
    """Overall RMSE and the two kinds of buckets, a row for each seed."""
    if not budget.is_private:
        n_seeds = 1
        if isinstance(params["solver"], DPSGD):
            params["solver"].set_params(n_inner_steps=MANY_STEPS)
    buckets = buckets_of_ratings(np.bincount(X.indices, minlength=X.shape[1]))[Y.indices]
    rows = []
    for seed in range(n_seeds):
        # Seeded, so that the table can be made again; a real release leaves random_state alone.
        model = AdaptiveWeightALS(budget, random_state=seed, **params).fit(X)
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


def print_buckets(cells, epsilons, head, columns):
    """RMSE by bucket, and whether adaptive weights beat tail sampling on the rarer four."""
    rows = [["epsilon", "method", *head]]
    for epsilon in epsilons:
        for key, name in NAMES.items():
            means = cells[(*key, epsilon)][:, columns].mean(axis=0)
            rows.append([f"{epsilon:g}", name, *(f"{value:.4f}" for value in means)])
    print_table(*rows)
    rows = [["epsilon", "gain, % (± standard error)", *head[:-1], "on every one"]]
    for epsilon in epsilons:
        for solver in ("dpals", "dpsgd"):
            tail, own = (
                cells[solver, weighting, epsilon][:, columns][:, :-1]
                for weighting in ("tail", "adaptive")
            )
            gain = 100.0 * (1.0 - own.mean(axis=0) / tail.mean(axis=0))
            parts = [f"{g:+.1f}" for g in gain]
            if len(own) > 1:  # the two methods' noise is unrelated
                error = np.sqrt((own.var(axis=0, ddof=1) + tail.var(axis=0, ddof=1)) / len(own))
                error *= 100.0 / tail.mean(axis=0)
                parts = [f"{part} ± {e:.1f}" for part, e in zip(parts, error, strict=True)]
            name = f"{NAMES[solver, 'adaptive']} over {NAMES[solver, 'tail']}"
            rows.append([f"{epsilon:g}", name, *parts, "yes" if np.all(gain > 0.0) else "NO"])
    print_table(*rows)


def head_of(buckets, counts, Y):
    """Training ratings an item in each bucket, and how many test ratings it has."""
    sizes = np.bincount(buckets[Y.indices], minlength=N_BUCKETS)
    parts = [counts[buckets == b] for b in range(N_BUCKETS)]
    pairs = zip(parts, sizes, strict=True)
    return [f"{part.min()} to {part.max()} ({n:,} tests)" for part, n in pairs]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--data", type=Path, help=f"or {', '.join(LARGE)}; default: $SKDPMF_DATA/ml-1m.parquet"
    )
    parser.add_argument("--epsilons", type=float, nargs="+", default=[1.0, 5.0, 20.0, np.inf])
    parser.add_argument("--delta", type=float, default=1e-5)
    parser.add_argument("--seeds", type=int, default=3, help="noise seeds")
    parser.add_argument("--split", type=int, default=0)
    parser.add_argument("--n-jobs", type=int, default=1)
    options = parser.parse_args()
    path = data_path(options)
    rating_range = (1.0, 5.0)
    if str(path) in LARGE:
        make, rating_range = LARGE[str(path)]
        X, Y = split_ratings(make(), random_state=options.split)
    elif path is None or not path.exists():
        parser.exit(0, f"no ratings file ({path}): --data or $SKDPMF_DATA\n")
    else:
        X, Y = matrices(path, options.split)

    cells = {}
    for epsilon in options.epsilons:
        finite = np.isfinite(epsilon)
        budget = PrivacyBudget(epsilon, options.delta) if finite else PrivacyBudget.nonprivate()
        for solver, weighting in NAMES:
            cells[solver, weighting, epsilon] = measure(
                X,
                Y,
                budget,
                options.seeds,
                solver={"dpals": DPALS, "dpsgd": DPSGD, "pooled": Pooled}[solver](
                    **({"list_share": None} if solver == "pooled" else {"weighting": weighting})
                ),
                rating_range=rating_range,
                n_jobs=options.n_jobs,
            )

    users, items = X.shape
    print(
        f"Split {options.split}: {users:,} users x {items:,} items, {X.nnz:,} training and "
        f"{Y.nnz:,} test ratings, delta {options.delta:g}, {options.seeds} noise seeds\n"
    )
    rows = [["epsilon", *NAMES.values()]]
    for epsilon in options.epsilons:
        own = [with_spread(cells[(*key, epsilon)][:, 0]) for key in NAMES]
        rows.append([f"{epsilon:g}", *own])
    print_table(*rows)
    counts = np.bincount(X.indices, minlength=items)
    for unit, buckets, columns in (
        ("training ratings", buckets_of_ratings(counts), slice(1, 1 + N_BUCKETS)),
        ("items", popularity_buckets(counts, N_BUCKETS), slice(1 + N_BUCKETS, None)),
    ):
        print(f"Equally many {unit} a bucket, by training ratings an item, rarest first\n")
        private = [epsilon for epsilon in options.epsilons if np.isfinite(epsilon)]
        print_buckets(cells, private, head_of(buckets, counts, Y), columns)


if __name__ == "__main__":
    main()
