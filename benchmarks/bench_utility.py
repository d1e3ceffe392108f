"""Test RMSE against epsilon: AdaptiveWeightALS beside DPItemMeans and the published solver.

Ratings come from --data FILE or $SKDPMF_DATA/ml-1m.parquet (without either only the synthetic sets
run). A tenth of the rows is held out by `skdpmf.evaluation.split_table`, users are folded in with
their other ratings, and all settings are the defaults. Prints Markdown tables.

    python benchmarks/bench_utility.py --data ml-1m.parquet --seeds 5

Large synthetic ratings have names:

    python benchmarks/bench_utility.py --data synth10m --epsilons 1 4 8 20 inf --seeds 2 --n-jobs 2

The table of one method alone, on split 0:

    python benchmarks/bench_utility.py --methods DPItemMeans --fresh-splits --no-synthetic
"""

import argparse
import os
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from skdpmf import DPALS, AdaptiveWeightALS, DPItemMeans, Pooled, PrivacyBudget
from skdpmf.data import make_ratings, ratings_to_matrix, read_ratings
from skdpmf.evaluation import by_popularity, rmse, split_ratings, split_table
from skdpmf.kernels.entries import predict_entries
from skdpmf.mechanisms.common import most_popular

EPSILONS = (0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 20.0, np.inf)
METHODS = ("DPItemMeans", "pooled", "dpals", "uniform", "tail", "with lists")
WEIGHTINGS = {"dpals": "adaptive", "uniform": "uniform", "tail": "tail"}  # of solver="dpals"
# Targets of the defaults on MovieLens 1M, split 0, delta 1e-5.
TARGETS = {0.5: 0.945, 1.0: 0.918, 4.0: 0.876, 8.0: 0.862, 20.0: 0.851, np.inf: 0.842}
MOVIELENS_1M_ROWS = 1_000_209
BUCKET_EPSILONS = (1.0, 4.0, 20.0)
N_BUCKETS = 5
SYNTHETIC = {
    "200 x 100, half rated": {"n_users": 200, "n_items": 100, "density": 0.5},
    "2,000 x 300, a fifth rated": {"n_users": 2000, "n_items": 300, "density": 0.2},
    "5,000 x 60, a fifth rated": {"n_users": 5000, "n_items": 60, "density": 0.2},
}


def synth10m():
    """Return ratings of MovieLens 10M's shape and half stars, of rank 10.

    Parameters are such that a tenth held out gives about the RMSE .957 for users' means, .869 with
    items' as well, and .81 for a factorisation without noise.
    """
    R = make_ratings(
        70_000,
        10_700,
        n_ratings=9_300_000,
        min_ratings_per_user=20,
        n_components=0,
        rating_range=(-99.0, 99.0),
        step=None,
        mean=3.46,
        user_bias_std=0.43,
        item_bias_std=0.43,
        noise_std=0.815,
        item_exponent=0.87,
        random_state=0,
    )
    rng = np.random.default_rng(1)
    variance = 0.6 ** np.arange(10.0)
    variance *= 0.175 / variance.sum()
    U, V = (variance**0.25 * rng.normal(size=(n, 10)) for n in R.shape)
    products = np.empty(R.nnz)
    predict_entries(R.indptr, R.indices, U, V, 0, R.shape[0], products)
    R.data = np.clip(np.rint(2.0 * (R.data + products)) / 2.0, 0.5, 5.0)
    return R


def jokes():
    """Return ratings of a few jokes, of which every user has rated half on average."""
    return make_ratings(
        20_000,
        100,
        density=0.5,
        rating_range=(-10.0, 10.0),
        step=None,
        mean=0.7,
        user_bias_std=2.2,
        item_bias_std=1.5,
        factor_std=2.5,
        noise_std=3.8,
        item_exponent=0.3,
        random_state=0,
    )


LARGE = {"synth10m": (synth10m, (0.5, 5.0)), "jokes": (jokes, (-10.0, 10.0))}


@dataclass
class Cell:
    """Fits of one method at one epsilon, one a seed."""

    errors: list
    ranks: list
    seconds: list
    buckets: list

    @property
    def error(self):
        return statistics.mean(self.errors)

    def __str__(self):
        spread = f" ± {statistics.stdev(self.errors):.4f}" if len(self.errors) > 1 else ""
        return f"{self.error:.4f}{spread}"


def measure(method, epsilon, X, Y, options, rating_range=(1.0, 5.0)):
    budget = PrivacyBudget.nonprivate()
    seeds = range(1)
    if np.isfinite(epsilon):
        budget, seeds = PrivacyBudget(epsilon, options.delta), range(options.seeds)
    # "pooled" predicts ratings and does nothing else; "with lists" is the default
    kind, settings = (
        AdaptiveWeightALS,
        {} if method == "with lists" else {"solver": Pooled(list_share=None)},
    )
    if method in WEIGHTINGS:
        settings = {"solver": DPALS(WEIGHTINGS[method])}
    elif method == "DPItemMeans":
        kind, settings = DPItemMeans, {}
    cell = Cell([], [], [], [])
    for seed in seeds:
        # Seeded, so that the table can be made again; a real release leaves random_state alone.
        model = kind(
            budget,
            rating_range=rating_range,
            random_state=seed,
            n_jobs=options.n_jobs,
            **settings,
        )
        begin = time.perf_counter()
        model.fit(X)
        cell.seconds.append(time.perf_counter() - begin)
        predicted = model.predict_entries(X, Y)
        cell.errors.append(rmse(Y, predicted))
        cell.ranks.append(int(np.any(model.components_ != 0, axis=1).sum()))
        cell.buckets.append(by_popularity(X, Y, predicted, n_buckets=N_BUCKETS)["rmse"])
    note = f"{method}, epsilon {epsilon:g}: {cell}, rank {cell.ranks}, {cell.seconds[-1]:.2f} s"
    print(note, file=sys.stderr, flush=True)
    return cell


def sweep(methods, X, Y, options, rating_range):
    return {
        (method, epsilon): measure(method, epsilon, X, Y, options, rating_range)
        for epsilon in options.epsilons
        for method in methods
    }


def split(frame, seed):
    """Training and test matrices. Catalogue and user slots, all of the file's, are public."""
    users, items = np.unique(frame["user"]), np.unique(frame["item"])
    train, test = split_table(frame, test_size=0.1, random_state=seed)
    X, Y = (ratings_to_matrix(part, users=users, items=items).X for part in (train, test))
    return X, Y


def data_path(options):
    """Return --data or, without one, the ratings of $SKDPMF_DATA; None: neither is given."""
    if options.data is None and "SKDPMF_DATA" in os.environ:
        return Path(os.environ["SKDPMF_DATA"]) / "ml-1m.parquet"
    return options.data


def popular_part(X, n_items, least=5):
    """Return the most popular items of users who have so many of them."""
    X = X[:, most_popular(np.bincount(X.indices, minlength=X.shape[1]), n_items)]
    return X[np.diff(X.indptr) >= least]


def some_users(X, n_users):
    """Return so many rows, at random."""
    return X[np.random.default_rng(0).permutation(X.shape[0])[:n_users]]


def split_parser(doc, *, shape, n_components):
    """Return a parser with what `split_of` reads, threads and factors; doc: of the script."""
    parser = argparse.ArgumentParser(description=doc.strip().partition("\n")[0])
    parser.add_argument("--data", type=Path, help="ratings file; without one, made-up ratings")
    parser.add_argument("--shape", type=int, nargs=2, default=shape, help="users, items")
    parser.add_argument("--n-jobs", type=int, help="threads")
    parser.add_argument("--n-components", type=int, default=n_components)
    return parser


def split_of(options):
    """Training and test ratings of --data or, without one, made-up ones of --shape."""
    if options.data is None:
        ratings = make_ratings(*options.shape, random_state=0)
    else:
        ratings = ratings_to_matrix(read_ratings(options.data)).X
    return split_ratings(ratings, random_state=0)


def print_row(*cells):
    print("| " + " | ".join(str(cell) for cell in cells) + " |", flush=True)


def print_head(*names):
    print_row(*names)
    print_row(*["---"] * len(names))


def ranks(cell):
    low, high = min(cell.ranks), max(cell.ranks)
    return str(low) if low == high else f"{low} to {high}"


def own_mean_error(X, Y):
    """Return the test RMSE of each user's own mean."""
    n = np.diff(X.indptr)
    total = np.bincount(np.repeat(np.arange(X.shape[0]), n), X.data, minlength=X.shape[0])
    own = np.where(n > 0, total / np.maximum(n, 1), X.data.mean())
    return rmse(Y.data, own[np.repeat(np.arange(X.shape[0]), np.diff(Y.indptr))])


def print_constants(X, Y):
    print(
        f"global mean {rmse(Y.data, np.full(Y.nnz, X.data.mean())):.4f}, "
        f"each user's own mean {own_mean_error(X, Y):.4f} (neither costs a release here: the "
        "first is exact, the second stays with the user)\n"
    )


def print_table(cells, methods, options):
    with_factors = "pooled" in methods
    print_head("epsilon", *methods, *["rank"] * with_factors, "seconds a fit")
    for epsilon in options.epsilons:
        row = [cells[method, epsilon] for method in methods]
        cell = cells["pooled" if with_factors else methods[0], epsilon]
        seconds = f"{statistics.median(cell.seconds):.2f}"
        print_row(f"{epsilon:g}", *row, *[ranks(cell)] * with_factors, seconds)
    print()


def print_buckets(cells, X, options):
    counts = np.sort(np.bincount(X.indices, minlength=X.shape[1]))
    parts = np.array_split(counts, N_BUCKETS)
    print(f"RMSE by popularity, {N_BUCKETS} buckets of items by training ratings, rarest first\n")
    print_head("epsilon", "method", *(f"{p[0]} to {p[-1]}" for p in parts))
    for epsilon in (e for e in BUCKET_EPSILONS if e in options.epsilons):
        for method in METHODS[1:]:
            mean = np.mean(cells[method, epsilon].buckets, axis=0)
            print_row(f"{epsilon:g}", method, *(f"{value:.4f}" for value in mean))
    print()


def print_targets(cells, options):
    print_head("epsilon", "target", "reached", "")
    for epsilon in (e for e in options.epsilons if e in TARGETS):
        reached = cells["pooled", epsilon].error
        verdict = "met" if reached <= TARGETS[epsilon] else "MISSED"
        print_row(f"{epsilon:g}", f"{TARGETS[epsilon]:.3f}", f"{reached:.4f}", verdict)
    print()


def print_never_worse(cells, options, label):
    """Compare with `DPItemMeans`, which has the whole budget for the item means."""
    worse = []
    for epsilon in (e for e in options.epsilons if np.isfinite(e)):
        losses = np.subtract(*(cells[method, epsilon].errors for method in METHODS[1::-1]))
        if losses.mean() > 0:
            spread = f" ± {losses.std(ddof=1) / np.sqrt(losses.size):.4f}" * (losses.size > 1)
            worse.append(f"{epsilon:g} (by {losses.mean():.4f}{spread})")
    verdict = f"MISSED at epsilon {', '.join(worse)} (± standard error)" if worse else "met"
    print(f"Never worse than item means alone, {label}: {verdict}\n", flush=True)


def run_file(path, options):
    frame = read_ratings(path)
    scale = tuple(options.rating_range)
    for seed in [0, *options.fresh_splits]:
        X, Y = split(frame, seed)
        users, items = X.shape
        print(
            f"Split {seed}: {users:,} users x {items:,} items, {X.nnz:,} training and {Y.nnz:,} "
            f"test ratings, delta {options.delta:g}, {options.seeds} noise seeds\n"
        )
        print_constants(X, Y)
        methods = options.methods if seed == 0 else METHODS[:3]
        cells = sweep(methods, X, Y, options, scale)
        print_table(cells, methods, options)
        if set(METHODS) <= set(methods):
            print_buckets(cells, X, options)
            if len(frame) == MOVIELENS_1M_ROWS:
                print_targets(cells, options)
        if set(METHODS[:2]) <= set(methods):
            print_never_worse(cells, options, f"split {seed}")


def run_synthetic(label, ratings, scale, methods, options):
    X, Y = split_ratings(ratings, random_state=0)
    print(f"Synthetic, {label}: {X.nnz:,} training and {Y.nnz:,} test ratings\n")
    print_constants(X, Y)
    cells = sweep(methods, X, Y, options, scale)
    print_table(cells, methods, options)
    print_never_worse(cells, options, label)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--data", type=Path, help=f"or {', '.join(LARGE)}; default: $SKDPMF_DATA/ml-1m.parquet"
    )
    parser.add_argument("--rating-range", type=float, nargs=2, default=[1.0, 5.0])
    parser.add_argument("--epsilons", type=float, nargs="+", default=list(EPSILONS))
    parser.add_argument("--delta", type=float, default=1e-5)
    parser.add_argument("--seeds", type=int, default=5, help="noise seeds")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=METHODS, help="split 0's")
    parser.add_argument(
        "--fresh-splits", type=int, nargs="*", default=[101, 102], help="seeds beside split 0"
    )
    parser.add_argument("--n-jobs", type=int, default=1)
    parser.add_argument("--no-synthetic", action="store_true")
    options = parser.parse_args()

    path = data_path(options)
    if str(path) in LARGE:
        make, scale = LARGE[str(path)]
        run_synthetic(str(path), make(), scale, METHODS[:2], options)
        return
    if path is None or not path.exists():
        print(f"no ratings file ({path}): --data or $SKDPMF_DATA; synthetic sets only\n")
    else:
        run_file(path, options)
    if not options.no_synthetic:
        for label, shape in SYNTHETIC.items():
            ratings = make_ratings(**shape, random_state=0)
            run_synthetic(label, ratings, (1.0, 5.0), METHODS[:3], options)


if __name__ == "__main__":
    main()
