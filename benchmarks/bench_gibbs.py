"""One sweep of the Gibbs sampler behind DPMFSampler, beside an iteration of `myfm`.

myfm (pip install myfm) samples a factorization machine of the same rank over one-hot users and
items: every factor and bias from its Gaussian conditional, one coordinate at a time, and precisions
and means of the priors. So our sampler samples precisions here as well. myfm clips nothing, as ours
without a bound. An iteration of myfm is the difference of two fits, divided by the difference
of their iterations.

Ratings come from --data FILE or $SKDPMF_DATA/ml-1m.parquet; without either, synthetic ones of that
shape. Prints a Markdown table: medians over interleaved rounds after a warm-up, in one process.
--cpu-time counts the process's time on all cores instead, for a machine that others use too.

    python benchmarks/bench_gibbs.py --threads 1,2
"""

import argparse
import statistics
import time
from pathlib import Path

import numpy as np
import scipy.sparse as sp
from bench_utility import data_path

from skdpmf.mechanisms.posterior_draw.gibbs import GibbsChain
from skdpmf.mechanisms.posterior_draw.target import Target
from skdpmf.privacy.sampler.noise import NoiseSource, derived_key

SHAPE = 6040, 3706, 1_000_000
HALF_RANGE = 2.0
BOUNDS = {"no bound": np.inf, "bound 3": 3.0, "bound 2": 2.0}
PEER = "myfm"
PEER_ITERATIONS = 2, 6


def load(path):
    """Residuals from the middle of the scale, CSR."""
    if path is None:
        from skdpmf.data import make_ratings

        n_users, n_items, n_ratings = SHAPE
        R = sp.csr_array(make_ratings(n_users, n_items, n_ratings=n_ratings, random_state=0))
    else:
        import pandas as pd

        table = pd.read_parquet(path)
        users, items = (np.unique(table[c], return_inverse=True)[1] for c in ("user", "item"))
        R = sp.csr_array((table["rating"].to_numpy(np.float64), (users, items)))
    R.sort_indices()
    R.data = np.clip(R.data.astype(np.float64) - R.data.mean(), -HALF_RANGE, HALF_RANGE)
    return R


def our_sweep(R, k, bound, n_threads, options):
    """Return a function that times one sweep, in seconds."""
    target = Target(
        R,
        weights=np.ones(R.shape[0]),
        inverse_temperature=options.inverse_temperature,
        bound=bound,
        n_components=k,
        user_std=1.0,
        item_std=0.25,
        bias_std=0.5,
        sample_precisions=True,
    )
    chain = GibbsChain(target, NoiseSource(derived_key(0)), n_jobs=n_threads)
    sweeps = iter(range(10**9))

    def run():
        begin = options.clock()
        for _ in range(options.sweeps):
            chain.sweep(next(sweeps))
        return (options.clock() - begin) / options.sweeps

    run.chain = chain
    return run


def peer_iteration(R, k, clock):
    """Return a function that times one iteration of myfm, in seconds."""
    from myfm import MyFMGibbsRegressor

    n_users, n_items = R.shape
    users = np.repeat(np.arange(n_users), np.diff(R.indptr))
    columns = np.column_stack([users, n_users + R.indices]).ravel()
    X = sp.csr_matrix(
        (np.ones(2 * R.nnz), columns, 2 * np.arange(R.nnz + 1)), shape=(R.nnz, n_users + n_items)
    )

    def fit(n_iter):
        model = MyFMGibbsRegressor(rank=k, random_seed=0)
        begin = clock()
        model.fit(X, R.data, n_iter=n_iter, n_kept_samples=1, group_shapes=[n_users, n_items])
        return clock() - begin

    def run():
        few, many = PEER_ITERATIONS
        return (fit(many) - fit(few)) / (many - few)

    return run


def interleaved_medians(runs, n_repeats):
    times = {name: [] for name in runs}
    for repeat in range(n_repeats + 1):
        for name, run in runs.items():
            seconds = run()
            if repeat > 0:  # the first round compiles, warms the caches and leaves the start
                times[name].append(1e3 * seconds)
    return {name: statistics.median(taken) for name, taken in times.items()}


def integers(text):
    return [int(part) for part in text.split(",")]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="default: $SKDPMF_DATA/ml-1m.parquet")
    parser.add_argument("--threads", type=integers, default=[1, 2])
    parser.add_argument("--sizes", type=integers, default=[16], help="values of k")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--sweeps", type=int, default=8, help="of ours, in each round")
    parser.add_argument("--inverse-temperature", type=float, default=0.08)
    parser.add_argument("--no-peer", action="store_true")
    parser.add_argument("--cpu-time", action="store_true")
    options = parser.parse_args()
    options.clock = time.process_time if options.cpu_time else time.perf_counter
    path = data_path(options)
    R = load(path)
    clock = "CPU" if options.cpu_time else "wall"
    print(
        f"{path.name if path else 'synthetic'}: {R.shape[0]:,} x {R.shape[1]:,}, {R.nnz:,} ratings;"
        f" {clock} ms a sweep, and how many times myfm's speed that is (myfm has one thread)\n"
    )
    names = list(BOUNDS)
    print("| k | threads |", *(f"{name} |" for name in names), f"accepted | {PEER} | ratios |")
    print("| --- " * (len(names) + 5) + "|")
    for k in options.sizes:
        runs = {
            (name, n): our_sweep(R, k, bound, n, options)
            for n in options.threads
            for name, bound in BOUNDS.items()
        }
        everything = (
            dict(runs) if options.no_peer else {**runs, PEER: peer_iteration(R, k, options.clock)}
        )
        found = interleaved_medians(everything, options.repeats)
        for n in options.threads:
            ours = [found[name, n] for name in names]
            chains = [runs[name, n].chain for name in names]
            shares = ", ".join(f"{c.n_accepted / c.n_proposed:.2f}" for c in chains)
            peer = found.get(PEER)
            ratios = ", ".join(f"{peer / mine:.1f}" for mine in ours) if peer else "-"
            cells = [f"{mine:.0f} |" for mine in ours]
            print(
                f"| {k} | {n} |",
                *cells,
                f"{shares} | {f'{peer:.0f}' if peer else '-'} | {ratios} |",
            )


if __name__ == "__main__":
    main()
