"""Gain of adaptive weights for rare tasks: the exponent mu, and slices by popularity.

It has two parts, after Figures 3 and 4 of Krichene et al. (ICML 2023). The synthetic part fits
`private_multi_task_ridge` on tasks whose popularity is a power law; the error of a task is the root
mean square of <x, theta_hat - theta> over users, its square averaged over tasks. The other part is
the test RMSE of `AdaptiveWeightALS` on MovieLens 1M (--data FILE or $SKDPMF_DATA/ml-1m.parquet,
split 0 of bench_utility.py) with all settings but the weighting the defaults. Prints Markdown
tables.

    python benchmarks/bench_multi_task.py --data ml-1m.parquet
"""

import argparse
import sys
from pathlib import Path

import numpy as np
from bench_utility import data_path, print_head, print_row, split
from scipy import sparse

from skdpmf import DPALS, AdaptiveWeightALS, PrivacyBudget, private_multi_task_ridge
from skdpmf.data import read_ratings
from skdpmf.evaluation import by_popularity, rmse
from skdpmf.evaluation.metrics import popularity_buckets

N_BUCKETS = 5
EXPONENTS = (0.0, 0.25, 0.5, 1.0)
CAPS = (10, 30)  # tasks a user of the synthetic baselines; users have 20 on average
NOISE = 0.3
USERS, TASKS, FEATURES, TASKS_PER_USER, SKEW = 20_000, 500, 8, 20, 1.0


def weightings(caps=(None,)):
    """Parameters by name: adaptive ones by mu, and the two samplings, None for the default cap."""
    found = {f"mu = {mu:g}": {"weight_exponent": mu} for mu in EXPONENTS}
    for name in ("tail", "uniform"):
        for cap in caps:
            if cap is None:
                found[name] = {"weighting": name}
            else:
                found[f"{name}, k = {cap}"] = {"weighting": name, "max_tasks_per_user": cap}
    return found


def make_tasks(seed):
    """Users' features on the unit sphere, targets of a power law of tasks, and the truth."""
    rng = np.random.default_rng(seed)
    chance = np.arange(1.0, TASKS + 1.0) ** -SKEW
    length = np.minimum(rng.geometric(1.0 / TASKS_PER_USER, USERS), TASKS)
    # the smallest of Exp(1) / chance are a weighted sample without replacement
    order = np.argsort(rng.exponential(size=(USERS, TASKS)) / chance, axis=1)
    kept = np.arange(TASKS) < length[:, None]
    user, task = np.repeat(np.arange(USERS), length), order[kept]
    X = rng.normal(size=(USERS, FEATURES))
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    theta = rng.normal(size=(TASKS, FEATURES))
    y = np.einsum("ij,ij->i", X[user], theta[task]) + NOISE * rng.normal(size=user.size)
    return X, sparse.csr_array((y, (user, task)), shape=(USERS, TASKS)), theta


def synthetic_errors(params, epsilon, options):
    """Errors by bucket of tasks, rarest first, and of all tasks."""
    squares = []
    for seed in range(options.seeds):
        X, Y, theta = options.tasks[seed]
        budget = PrivacyBudget(epsilon, options.delta)
        if np.isinf(epsilon):
            budget = PrivacyBudget.nonprivate()
        settings = {"max_norm": 1.0, "max_value": 2.0, "alpha": 0.1, **params}
        fit = private_multi_task_ridge(X, Y, budget, random_state=seed, **settings)
        error = np.sum((fit.coef - theta) ** 2, axis=1) / FEATURES
        bucket = popularity_buckets(Y, N_BUCKETS)
        squares.append([*(error[bucket == b].mean() for b in range(N_BUCKETS)), error.mean()])
    return np.sqrt(np.mean(squares, axis=0))


def run_synthetic(options):
    options.tasks = [make_tasks(seed) for seed in range(options.seeds)]
    Y = options.tasks[0][1]
    parts = np.array_split(np.sort(np.bincount(Y.indices, minlength=TASKS)), N_BUCKETS)
    print(
        f"Synthetic: {USERS:,} users, {TASKS} tasks, {Y.nnz:,} observations, {FEATURES} features, "
        f"{options.seeds} data sets; predicting 0 has error 1\n"
    )
    print_head("epsilon", "weights", *(f"{p[0]:,} to {p[-1]:,}" for p in parts), "all tasks")
    for epsilon in (*options.epsilons_synthetic, np.inf):
        for name, params in weightings(CAPS).items():
            errors = synthetic_errors(params, epsilon, options)
            print_row(f"{epsilon:g}", name, *(f"{error:.3f}" for error in errors))
    print()


def equal_ratings(X):
    """Bucket of each item: runs of items, rarest first, of equal numbers of training ratings."""
    counts = np.bincount(X.indices, minlength=X.shape[1])
    order = np.argsort(counts, kind="stable")
    before = np.cumsum(counts[order]) - counts[order]
    bucket = np.empty(counts.size, np.int64)
    bucket[order] = N_BUCKETS * before // counts.sum()
    return bucket


def ratings_errors(params, epsilon, X, Y, options):
    """RMSE of each seed: all, buckets of equally many items, buckets of equally many ratings."""
    bucket, rows = equal_ratings(X), []
    for seed in range(options.seeds):
        budget = PrivacyBudget(epsilon, options.delta)
        model = AdaptiveWeightALS(budget, solver=DPALS(**params), random_state=seed).fit(X)
        predicted = model.predict_entries(X, Y)
        by_item = by_popularity(X, Y, predicted, n_buckets=N_BUCKETS)["rmse"]
        slices = [bucket[Y.indices] == b for b in range(N_BUCKETS)]
        by_rating = [rmse(Y.data[part], predicted.data[part]) for part in slices]
        rows.append([rmse(Y, predicted), *by_item, *by_rating])
        print(f"{params}, epsilon {epsilon:g}: {rows[-1][0]:.4f}", file=sys.stderr, flush=True)
    return np.array(rows)


def run_ratings(path, options):
    X, Y = split(read_ratings(path), 0)
    found = {
        (epsilon, name): ratings_errors(params, epsilon, X, Y, options)
        for epsilon in options.epsilons_ratings
        for name, params in weightings().items()
    }
    counts = np.bincount(X.indices, minlength=X.shape[1])
    cuts = {"items": popularity_buckets(X, N_BUCKETS), "training ratings": equal_ratings(X)}
    for (kind, bucket), first in zip(cuts.items(), (1, 1 + N_BUCKETS), strict=True):
        parts = [counts[bucket == b] for b in range(N_BUCKETS)]
        tested = np.bincount(bucket[Y.indices], minlength=N_BUCKETS)
        heads = (f"{p.min():,} to {p.max():,} ({n:,})" for p, n in zip(parts, tested, strict=True))
        print(
            f"MovieLens 1M, {options.seeds} noise seeds, buckets of equally many {kind}: least "
            "and most training ratings of an item (test ratings of the bucket)\n"
        )
        print_head("epsilon", "weights", *heads, *["all ± sd"] * (first == 1))
        for (epsilon, name), rows in found.items():
            mean = rows.mean(axis=0)
            spread = f" ± {rows[:, 0].std(ddof=1):.4f}" if len(rows) > 1 else ""
            slices = (f"{value:.4f}" for value in mean[first : first + N_BUCKETS])
            print_row(f"{epsilon:g}", name, *slices, *[f"{mean[0]:.4f}{spread}"] * (first == 1))
        print()
        print_verdicts(found, first, options)


def print_verdicts(found, first, options):
    """Gains over tail sampling in the rarer buckets, and at how many seeds it is one."""
    rarer = slice(first, first + N_BUCKETS - 1)
    print(f"How far below tail sampling, and at how many of {options.seeds} seeds\n")
    print_head("epsilon", "weights", "rarest", "2nd", "3rd", "4th")
    for epsilon in options.epsilons_ratings:
        tail = found[epsilon, "tail"][:, rarer]
        for mu in EXPONENTS:
            gain = tail - found[epsilon, f"mu = {mu:g}"][:, rarer]
            share = 100.0 * gain.mean(axis=0) / tail.mean(axis=0)
            seeds = np.sum(gain > 0, axis=0)
            cells = (f"{value:.1f} % ({n})" for value, n in zip(share, seeds, strict=True))
            print_row(f"{epsilon:g}", f"mu = {mu:g}", *cells)
    print()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="default: $SKDPMF_DATA/ml-1m.parquet")
    parser.add_argument("--epsilons-synthetic", type=float, nargs="+", default=[1.0, 5.0, 20.0])
    parser.add_argument("--epsilons-ratings", type=float, nargs="+", default=[1.0, 5.0])
    parser.add_argument("--delta", type=float, default=1e-5)
    parser.add_argument("--seeds", type=int, default=10, help="data sets, noise seeds")
    parser.add_argument("--no-synthetic", action="store_true")
    options = parser.parse_args()
    if not options.no_synthetic:
        run_synthetic(options)
    path = data_path(options)
    if path is None or not path.exists():
        print(f"no ratings file ({path}): --data or $SKDPMF_DATA; synthetic tasks only\n")
    else:
        run_ratings(path, options)


if __name__ == "__main__":
    main()
