"""LocalDPGDDR: test RMSE against epsilon without a trusted server, and time of a simulation.

    python benchmarks/bench_local.py curve --data ml-1m.parquet
    python benchmarks/bench_local.py scale --n-jobs 2
    python benchmarks/bench_local.py forgers

- curve: RMSE against epsilon on 100,000 synthetic users x 1,000 items and on the ratings of --data,
  beside each user's own mean, the same without privacy, and the baselines.
- scale: seconds of an exact simulation at the size of MovieLens 20M.
- forgers: how far devices that forge their reports move an item's mean, and devices that lie.

Without a part all run. Ratings come from --data FILE or $SKDPMF_DATA/ml-1m.parquet. Prints
Markdown tables. `bench_local_figure9.py` has the published figure.
"""

import argparse
import sys
import time
from pathlib import Path

import numpy as np
from bench_covariance import Cell, draw_scale_ratings
from bench_utility import data_path, print_head, print_row
from bench_utility import split as split_file
from scipy import sparse

from skdpmf import LocalDPGDDR, PrivacyBudget
from skdpmf.data import make_ratings, read_ratings
from skdpmf.data.scale import in_quarter_ranges
from skdpmf.data.validation import as_rating_matrix
from skdpmf.evaluation import rmse, split_ratings
from skdpmf.mechanisms.device_reports import item_means as solver
from skdpmf.mechanisms.device_reports.privunit import GRID_BITS, PrivUnit
from skdpmf.mechanisms.device_reports.protocol import (
    N_PARTS,
    Protocol,
    Settings,
    protocol_name,
    simulate,
)
from skdpmf.mechanisms.device_reports.randomizers import DeviceStreams
from skdpmf.privacy.sampler.noise import derived_key

RANGE = (1.0, 5.0)
FORGED_EPSILON = 4.0
N_FORGERS = (10, 50, 1000)
# Standard deviations of their largest values; None: as many as the server takes. 0: they only lie.
OTHERS = {
    "lie: they like this item, and rate no other": 0.0,
    "forge, as far as the server takes it": None,
    "forge, if nobody looks: 13 standard deviations": 13.0,
}
# Round in which the reports are sent, and signs of the values for count and overall mean.
ATTACKS = ((0, 0, 0), (0, 0, 1), (0, 1, 1), (0, -1, 0), (1, 0, 0))
EPSILONS = (0.1, 0.5, 1.0, 2.0, 4.0, 8.0)
# Targets of the defaults on the synthetic set.
TARGETS = {0.1: 0.976, 0.5: 0.962, 1.0: 0.947, 2.0: 0.931, 4.0: 0.915, 8.0: 0.897}
MOST_LOST = 0.002  # against each user's own mean
# Standard deviations as in the method's description: the user's mean is at .97, items at .88
SYNTHETIC = {
    "n_users": 100_000,
    "n_items": 1000,
    "n_ratings": 7_000_000,
    "noise_std": 0.79,
    "user_bias_std": 0.42,
    "item_bias_std": 0.45,
    "factor_std": 0.42,
    "n_components": 8,
    "item_exponent": 0.8,
    "user_exponent": 0.5,
    "mean": 3.7,
    "random_state": 0,
}
BASELINES = {
    "items, sampled sign": {"randomizer": "coordinate"},
    "Algorithm 1, centred": {"method": "gradient", "randomizer": "coordinate"},
    "Algorithm 1": {
        "method": "gradient",
        "randomizer": "coordinate",
        "method__center": False,
        "method__step_size": 1e-5,
    },
    "gradient, PrivUnitG": {"method": "gradient"},
}
BASELINE_EPSILONS = (1.0, 8.0)
# Their noise costs hours to draw on more.
MOST_RESPONSES = 30_000_000  # values that randomised response and PrivUnitG gradients send


def note(text):
    print(text, file=sys.stderr, flush=True)


def own_mean(X, Y):
    """Predict each user's plain mean, the mean of all for users without ratings."""
    n = np.diff(X.indptr)
    sums = np.bincount(np.repeat(np.arange(n.size), n), weights=X.data, minlength=n.size)
    mean = np.where(n > 0, sums / np.maximum(n, 1), X.data.mean())
    predicted = np.repeat(mean, np.diff(Y.indptr))
    return float(np.sqrt(np.mean((predicted - Y.data) ** 2)))


def fits(epsilon, X, Y, options, seeds=None, **parameters):
    """Fit at one epsilon, one model a seed."""
    budget = PrivacyBudget(epsilon) if np.isfinite(epsilon) else PrivacyBudget.nonprivate()
    cell = Cell([], [], [], [])
    for seed in range((seeds or options.seeds) if np.isfinite(epsilon) else 1):
        # Seeded, so that the table can be made again; a real release leaves random_state alone.
        model = LocalDPGDDR(budget, random_state=seed, n_jobs=options.n_jobs)
        model.set_params(**parameters)
        begin = time.perf_counter()
        model.fit(X)
        cell.seconds.append(time.perf_counter() - begin)
        cell.errors.append(rmse(Y, model.predict_entries(X, Y)))
        cell.ranks.append(int(np.any(model.components_ != 0, axis=1).sum()))
        cell.buckets.append(float(np.ptp(model.item_means_)))
    note(f"epsilon {epsilon:g}, {parameters}: {cell}, rank {cell.ranks}, {cell.seconds[-1]:.1f} s")
    return cell


def curve_sets(options):
    """Yield a name, training and test ratings, and the targets."""
    if not options.no_synthetic:
        X = make_ratings(**SYNTHETIC)
        yield "Synthetic", *split_ratings(X, test_size=0.1, random_state=0), TARGETS
    path = data_path(options)
    if path is None or not path.exists():
        print(f"no ratings file ({path}): --data or $SKDPMF_DATA\n")
        return
    yield path.stem, *split_file(read_ratings(path), 0), {}


def run_curve(options):
    for name, X, Y, targets in curve_sets(options):
        own = own_mean(X, Y)
        exact = fits(np.inf, X, Y, options)
        print(
            f"{name}: {X.shape[0]:,} users x {X.shape[1]:,} items, {X.nnz:,} training and "
            f"{Y.nnz:,} test ratings, {options.seeds} seeds. Each user's own mean {own:.4f}, "
            f"items without privacy {exact}.\n"
        )
        print_head("epsilon", "LocalDPGDDR", "against own mean", "released", "rank", "target", "s")
        for epsilon in options.epsilons:
            cell = fits(epsilon, X, Y, options)
            goal = targets.get(epsilon)
            met = "" if goal is None else f"{goal} {'met' if cell.error <= goal else 'missed'}"
            lost = cell.error - own
            print_row(
                *(f"{epsilon:g}", cell, f"{lost:+.4f}{'' if lost <= MOST_LOST else ' (too much)'}"),
                f"{sum(spread > 0 for spread in cell.buckets)} of {len(cell.errors)}",
                *("/".join(map(str, sorted(set(cell.ranks)))), met, f"{cell.seconds[-1]:.1f}"),
            )
        print()
        baseline_table(X, Y, options)


def baseline_table(X, Y, options):
    print_head("baseline", *(f"epsilon {epsilon:g}" for epsilon in BASELINE_EPSILONS))
    for name, parameters in BASELINES.items():
        if name == "gradient, PrivUnitG" and np.prod(X.shape) > MOST_RESPONSES:
            continue
        row = (fits(epsilon, X, Y, options, 1, **parameters) for epsilon in BASELINE_EPSILONS)
        print_row(name, *row)
    print()


def run_scale(options):
    X = as_rating_matrix(draw_scale_ratings())
    print(
        f"{X.shape[0]:,} devices x {X.shape[1]:,} items, {X.nnz:,} ratings, {options.n_jobs} "
        "threads\n"
    )
    LocalDPGDDR(PrivacyBudget(1.0)).fit(X[:200])  # compiles
    print_head("step", "seconds")
    for epsilon in (1.0, 4.0):
        begin = time.perf_counter()
        LocalDPGDDR(PrivacyBudget(epsilon), n_jobs=options.n_jobs).fit(X)
        print_row(f"fit, every report drawn, epsilon {epsilon:g}", f"{clock(begin):.1f}")
    rows = solver.residual_rows(X, np.zeros(X.shape[1]), np.ones(X.shape[1]), 10.0)
    dimension = solver.residual_dimension(X.shape[1]) + 1
    for epsilon in (1.0, 4.0):
        randomiser = PrivUnit(epsilon, dimension)
        keys = DeviceStreams().keys("bench", 0, X.shape[0])
        begin = time.perf_counter()
        randomiser.sum_reports(keys, *rows, n_jobs=options.n_jobs)
        print_row(f"sum_reports, {dimension:,} values, epsilon {epsilon:g}", f"{clock(begin):.1f}")
    print()


def run_forgers(options):
    R = in_quarter_ranges(as_rating_matrix(make_ratings(20_000, 200, random_state=0)), RANGE)
    n_rated = np.bincount(R.indices, minlength=R.shape[1])
    target = int(np.argsort(n_rated)[int(0.9 * R.shape[1])])
    print(
        f"{R.shape[0]:,} honest devices, {R.shape[1]} items, epsilon {FORGED_EPSILON:g}, "
        f"{options.seeds} seeds. Stars by which others raise the mean of an item that "
        f"{n_rated[target]:,} have rated.\n"
    )
    print_head("the others", *(f"{n:,} of them" for n in N_FORGERS))
    for name, largest in OTHERS.items():
        print_row(name, *rises(R, target, largest, options))
    print()


def rises(R, target, largest, options):
    """Return the rise of the item's mean for each number of others, by the best of the attacks."""
    for n in N_FORGERS:
        shifts = np.zeros((options.seeds, len(ATTACKS)))
        for seed in range(options.seeds):
            secret = derived_key(seed, "forgers")
            honest = attacked(R, target, secret, options)
            if largest == 0.0:
                likes = np.full(n, 2.0), np.full(n, target), np.arange(n + 1)
                liars = sparse.csr_array(likes, shape=(n, R.shape[1]))
                both = sparse.csr_array(sparse.vstack((R, liars)))
                shifts[seed] = attacked(both, target, secret, options) - honest
                continue
            for at, attack in enumerate(ATTACKS):
                forge = n, largest, *attack
                shifts[seed, at] = attacked(R, target, secret, options, forge) - honest
        yield f"{shifts.mean(axis=0).max():+.2f}"


def attacked(R, target, secret, options, forge=None):
    """Return the item's released mean."""
    fractions = solver.fractions_of(FORGED_EPSILON)
    public = protocol_name(secret), FORGED_EPSILON, R.shape[1], RANGE, 10.0, fractions
    server = Protocol(Settings(*public), 8)

    def join(name, number, sums):
        if forge is not None and number == forge[2]:  # who chooses the id, chooses the round
            send_forged(server, target, *forge)
        return sums

    steps = range(N_PARTS * len(fractions))
    model = simulate(server, R, secret, steps=steps, n_jobs=options.n_jobs, total_of=join)
    return float(model.item_means[target])


def send_forged(server, target, n, largest, number, count, overall):
    """Send n reports of one round; they look like any, but for the values of the item."""
    randomiser, m, rng = server.randomiser, server.settings.n_items, np.random.default_rng(0)
    unit = 2**GRID_BITS
    peak = randomiser.limits.largest if largest is None else round(largest * unit)
    for at in range(n):
        if at % 2 == 0:  # every other has the same noise with the other sign
            noise = 0.8 * rng.standard_normal(randomiser.dimension)
        report = np.rint((-1) ** at * unit * noise).astype(np.int32)
        if server.round.kind == "statistics":
            report[m + 1 + target] = peak
            report[target], report[2 * m + 2] = count * peak, overall * peak
        else:
            report[target] = peak
        assert largest is not None or not randomiser.objection(report)
        server.add(report, 1)


def clock(begin):
    return time.perf_counter() - begin


PARTS = {"curve": run_curve, "scale": run_scale, "forgers": run_forgers}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", nargs="?", choices=list(PARTS))
    parser.add_argument(
        "--data", type=Path, help="ratings: CSV, TSV, .dat, Parquet, MovieLens folder or zip"
    )
    parser.add_argument("--no-synthetic", action="store_true", help="of `curve`")
    parser.add_argument("--epsilons", type=float, nargs="+", default=EPSILONS)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--n-jobs", type=int, default=2)
    options = parser.parse_args()
    for part, run in PARTS.items():
        if options.part in (None, part):
            run(options)


if __name__ == "__main__":
    main()
