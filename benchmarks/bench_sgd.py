"""CacheSGDFactorizer against the SGD factorisers of cornac and scikit-surprise, and exact steps.

`throughput`: million ratings/s of the training loop on prepared data, medians of interleaved runs.
Preparing the ratings for a peer (its data set object) is never on its clock. `accuracy`: test RMSE
by default settings on a tenth held out, beside `AdaptiveWeightALS` without privacy, the same model
by exact steps, and processor seconds of both fits with one thread. Prints Markdown tables.

    python benchmarks/bench_sgd.py throughput --shapes S --sizes 16,128 --threads 1
    python benchmarks/bench_sgd.py accuracy --sets 1M tail "10M ratings"
"""

import itertools
import statistics
import time

import numpy as np
from bench_shapes import FIVE, LOW
from bench_shapes import SETS as SHAPES
from harness import integers, parser, print_head, print_row, seconds_of
from ratings import budget_of, own_mean_error, with_factors
from sgd_solvers import SOLVERS, made, missing
from threadpoolctl import threadpool_limits

from skdpmf import AdaptiveWeightALS, CacheSGDFactorizer, DPItemMeans
from skdpmf.data import make_ratings
from skdpmf.evaluation import rmse, split_ratings

SAMPLE_SECONDS = 0.4  # Short epochs are timed together.
PARSER = parser(__doc__, repeats=5, budget_seconds=10.0)  # for a solver in one row
PARSER.add_argument("command", nargs="?", choices=["throughput", "accuracy"])
PARSER.add_argument("--shapes", type=lambda text: text.split(","), default=["S", "M"])
PARSER.add_argument("--sizes", type=integers, default=[16, 32, 128, 512, 1024, 2048])
PARSER.add_argument("--threads", type=integers, default=[1, 2])


def timed_rates(solvers, nnz, repeats, budget):
    """Median million ratings/s of each solver, and how many epochs that rests on."""
    paces, rates, epochs, spent = {}, {}, {}, {}
    for name, solver in solvers.items():
        first = solver.epochs(1)  # Compiles and warms the caches.
        pace = solver.epochs(1) if first < budget / 2 else first
        paces[name], spent[name] = pace, first
        rates[name], epochs[name] = [], 0
    for _, name in itertools.product(range(repeats), solvers):
        n = min(100, max(1, round(SAMPLE_SECONDS / paces[name])))
        if spent[name] + n * paces[name] > budget:
            continue
        seconds = solvers[name].epochs(n)
        spent[name] += seconds
        epochs[name] += n
        rates[name].append(n * nnz / seconds / 1e6)
    for name, pace in paces.items():
        if not rates[name]:  # The warm-up alone took the budget.
            rates[name], epochs[name] = [nnz / pace / 1e6], 1
    return {name: (statistics.median(rates[name]), epochs[name]) for name in solvers}


def long_tail(n_users=6000, n_items=3700, n_ratings=1_000_000):
    """Return ratings on -10..10 with 60 factors, each with .93 of the one before, mostly noise."""
    variance = 0.93 ** np.arange(60)
    return with_factors(
        *(n_users, n_items),
        scale=LOW,
        variance=variance * (6.25 / variance.sum()),
        spread=0.3,
        n_ratings=n_ratings,
        min_ratings_per_user=10,
        mean=3.0,
        user_bias_std=1.75,
        item_bias_std=1.75,
        noise_std=3.0,
        item_exponent=0.9,
    )


SETS = SHAPES | {
    "1M": (lambda: made("S").astype(float), FIVE),
    "tail": (long_tail, LOW),
    "tail, 17M": (lambda: long_tail(49_670, 8_773, 19_200_000), LOW),
    "20M": (lambda: make_ratings(138_493, 26_744, n_ratings=22_200_000, random_state=0), FIVE),
}
PARSER.add_argument("--sets", nargs="+", choices=list(SETS), default=list(SETS)[:-2])


def accuracy(options):
    """Print errors and processor seconds of both fits on each set."""
    small = make_ratings(200, 100, random_state=0)
    kinds = {"SGD": CacheSGDFactorizer, "exact": AdaptiveWeightALS, "item means": DPItemMeans}
    print_head("set", "ratings", "own means", *kinds, "SGD, s", "exact, s", "ratio")
    for name in [None, *options.sets]:  # the first one compiles
        make, scale = SETS.get(name, (lambda: small, FIVE))
        X, Y = split_ratings(make(), random_state=0)
        errors, seconds = [own_mean_error(X, Y)], []
        for kind in kinds.values():
            given = () if kind is CacheSGDFactorizer else (budget_of(np.inf),)
            model = kind(*given, rating_range=scale, random_state=0, n_jobs=1)
            with threadpool_limits(1, "blas"):
                seconds.append(seconds_of(model.fit, X, clock=time.process_time))
            errors.append(rmse(Y, model.predict_entries(X, Y)))
        if name is not None:
            cells = *(f"{e:.4f}" for e in errors), *(f"{s:.1f}" for s in seconds[:2])
            print_row(name, f"{X.nnz:,}", *cells, f"{seconds[1] / seconds[0]:.0f}")


def main(arguments=None):
    options = PARSER.parse_args(arguments)
    if options.command == "accuracy":
        accuracy(options)
        return
    names = [name for name in SOLVERS if not missing(SOLVERS[name].needs)]
    peers = [name for name in names if name != "ours"]
    print("Million ratings/s of the training loop (* one epoch or two only: the time budget)\n")
    print_head("data", "k", "threads", *names, *(f"ours / {name}" for name in peers))
    for shape in options.shapes:
        train = made(shape)
        prepared = {name: SOLVERS[name](train) for name in names}
        last = {}  # (name, threads): k, seconds of an epoch
        for k, n_threads in itertools.product(options.sizes, options.threads):
            running = {}
            for name, solver in prepared.items():
                before, pace = last.get((name, n_threads), (k, 0.0))
                # One epoch may overrun the budget, but not tenfold.
                affordable = pace * k / before < 10 * options.budget_seconds
                if n_threads <= solver.most_threads and affordable:
                    solver.start(k, n_threads)
                    running[name] = solver
            with threadpool_limits(1, "blas"):
                found = timed_rates(running, train.nnz, options.repeats, options.budget_seconds)
            for name, (speed, _) in found.items():
                last[name, n_threads] = k, train.nnz / speed / 1e6
            cells = [
                f"{found[name][0]:.3g}" + "*" * (found[name][1] <= 2) if name in found else "-"
                for name in names
            ]
            ours = found.get("ours")
            ratios = [
                f"{ours[0] / found[name][0]:.1f}" if ours and name in found else "-"
                for name in peers
            ]
            print_row(shape, k, n_threads, *cells, *ratios)


if __name__ == "__main__":
    main()
