"""CacheSGDFactorizer against the SGD factorisers of cornac and scikit-surprise.

Three questions, each a subcommand; without one, all three, after the roofline of the machine:

- throughput: million ratings/s of the training loop on prepared data, medians of interleaved runs;
- time-to-rmse: seconds of a whole fit to a common held-out RMSE. Each peer searches its learning
  rate, penalty and number of epochs; the goal is the least RMSE that any of them finds, plus 0.001
  (its best, which takes slow steps) and plus 0.004 (near it, where it may take long ones);
- memory: peak resident memory of a short fit, each in a process of its own.

Preparing the ratings for a peer (its data set object) is never on its clock. `implicit` solves
another problem (ALS for implicit feedback): one iteration of it, three conjugate gradient steps a
row, over its ratings is a mark of speed and nothing else.

    python benchmarks/bench_sgd.py throughput --shapes S --sizes 16,128 --threads 1
"""

import argparse
import importlib.util
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from memory import peak_gib, shown_size
from sgd_solvers import SOLVERS

# NumPy and what needs it is imported where it is used: `memory` starts processes, and Linux counts
# a parent's size as the child's peak memory.

SAMPLE_SECONDS = 0.4  # Short epochs are timed together.
PATIENCE = 3  # evaluations in a row without a new best end a curve
USUAL_BUDGET = {"throughput": 10.0, "time-to-rmse": 120.0, "memory": 600.0}


def installed(names):
    """The solvers that can be imported; the others are named on the error stream."""
    found = [name for name in names if importlib.util.find_spec(SOLVERS[name].needs)]
    for name in sorted(set(names) - set(found)):
        print(f"{name}: not installed, left out", file=sys.stderr)
    return found


def row(*cells):
    print("| " + " | ".join(map(str, cells)) + " |", flush=True)


def head(*cells):
    row(*cells)
    row(*["---"] * len(cells))


# Throughput


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


def throughput(options):
    import sgd_data
    from threadpoolctl import threadpool_limits

    names = installed(options.solvers)
    print("\nMillion ratings/s of the training loop (* one epoch or two only: the time budget)\n")
    head("data", "k", "threads", *names, *[f"ours / {name}" for name in names if name != "ours"])
    for shape in options.shapes:
        train, _ = sgd_data.load(shape, options.cache)
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
            with threadpool_limits(1, "blas"):  # implicit asks for it
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
                for name in names
                if name != "ours"
            ]
            row(shape, k, n_threads, *cells, *ratios)


# Time to a common RMSE


class Found(NamedTuple):
    curves: list  # of (settings, [(epochs, RMSE), ...])
    complete: bool

    def best(self):
        return min((value for _, curve in self.curves for _, value in curve), default=float("inf"))

    def quickest(self, goal):
        """Fewest epochs to the goal and their settings, or None: an epoch costs all the same."""
        reached = [
            (n, number, settings)
            for number, (settings, curve) in enumerate(self.curves)
            for n, value in curve
            if value <= goal
        ]
        return min(reached)[::2] if reached else None


def search(solver, held_out, most_epochs, budget):
    """Held-out RMSE over the epochs, for all settings of a solver or until its time is over."""
    from sgd_data import rmse

    deadline = time.perf_counter() + budget
    curves = []
    for settings in solver.grid:
        curve = []
        curves.append((settings, curve))
        for n, model in solver.curve(settings, most_epochs):
            value = rmse(model, held_out)
            if not value < 10:  # NaN: diverged
                break
            curve.append((n, value))
            if time.perf_counter() > deadline:
                return Found(curves, False)
            best = min(range(len(curve)), key=lambda at: curve[at][1])
            if len(curve) - 1 - best >= PATIENCE:
                break
    return Found(curves, True)


def time_fits(solvers, plans, held_out, repeats, budget):
    """Median seconds of the fits of each plan, interleaved, and the last one's RMSE."""
    from sgd_data import rmse

    taken = {key: [] for key in plans}
    values = {}
    for _, (key, (n, settings)) in itertools.product(range(repeats), plans.items()):
        name, k, n_threads = key
        if sum(taken[key]) * (1 + 1 / max(1, len(taken[key]))) > budget:
            continue
        solvers[name].start(k, n_threads)
        taken[key].append(solvers[name].fit(settings, n))
        model = solvers[name].model()
        if model.U.shape[1] != k:
            raise AssertionError(f"{name} was to fit {k} factors, and has {model.U.shape[1]}")
        values[key] = rmse(model, held_out)
    return {key: (statistics.median(taken[key]), values[key]) for key in plans}


def search_all(k, solvers, held_out, options):
    """What each solver finds on one thread."""
    found = {}
    for name, solver in solvers.items():
        solver.start(k, 1)
        found[name] = search(solver, held_out, options.most_epochs, options.budget_seconds)
        for settings, curve in found[name].curves if options.verbose else []:
            value, n = min(((value, n) for n, value in curve), default=(float("nan"), 0))
            print(f"{name} {settings}: {value:.4f} at {n} of {len(curve)}", file=sys.stderr)
    return found


def compare(shape, k, goal, solvers, found, held_out, options):
    """Print the rows of one shape, one k and one goal."""
    quickest = {name: found[name].quickest(goal) for name in solvers}
    plans = {
        (name, k, n_threads): quickest[name]
        for name, n_threads in itertools.product(solvers, options.threads)
        if quickest[name] and n_threads <= solvers[name].most_threads
    }
    timed = time_fits(solvers, plans, held_out, options.repeats, options.budget_seconds)
    for (name, _, n_threads), (n, settings) in plans.items():
        seconds, value = timed[name, k, n_threads]
        allowed = [
            other for (peer, _, t), (other, _) in timed.items() if peer != "ours" and t <= n_threads
        ]
        ratio = f"{min(allowed) / seconds:.2f}" if allowed else "-"
        mark = "" if found[name].complete else "*"
        text = ", ".join(f"{key} {value:g}" for key, value in settings.items()) or "defaults"
        cells = f"{goal:.4f}", name + mark, n_threads, n, f"{seconds:.3g}", f"{value:.4f}"
        row(shape, k, *cells, ratio, text)
    for name in solvers:
        if quickest[name] is None:
            cut = "" if found[name].complete else " within the time budget"
            why = f"goal not reached{cut}, best {found[name].best():.4f}"
            row(shape, k, f"{goal:.4f}", name, *["-"] * 5, why)


def time_to_rmse(options):
    import sgd_data

    names = [name for name in installed(options.solvers) if SOLVERS[name].rates_ratings]
    print(
        "\nSeconds of the whole fit to a common held-out RMSE; epochs and settings are searched on "
        "one thread\n(* the search of this solver was cut at the time budget)\n"
    )
    head(
        *("data", "k", "goal", "solver", "threads", "epochs", "seconds", "RMSE"),
        *("best peer / this", "settings"),
    )
    for shape in options.shapes:
        train, held_out = sgd_data.load(shape, options.cache)
        solvers = {name: SOLVERS[name](train) for name in names}
        last = {}
        for k in options.sizes:
            running = dict(solvers)
            for name, solver in solvers.items():
                before, pace = last.get(name, (k, 0.0))
                # The search needs ten epochs at the least to say anything.
                if 10 * pace * k / before < options.budget_seconds:
                    solver.start(k, 1)
                    solver.epochs(1)  # Compiles.
                    last[name] = k, solver.epochs(1)
                if 10 * last[name][1] * k / last[name][0] > options.budget_seconds:
                    row(shape, k, "-", name, *["-"] * 5, "over the time budget, not run")
                    del running[name]
            found = search_all(k, running, held_out, options)
            peers = [name for name in found if name != "ours"]
            least = min((found[name].best() for name in peers or found), default=None)
            for slack in options.slacks if running else []:
                compare(shape, k, least + slack, running, found, held_out, options)


# Memory


def measure_memory(options):
    """In a process of its own: fit one solver for two epochs."""
    import sgd_data

    import skdpmf.data

    (shape,), (k,), (n_threads,) = options.shapes, options.sizes, options.threads
    if options.task == "make":
        train, _ = sgd_data.load(shape, options.cache)
        return {"ratings": (train.data.nbytes + train.indices.nbytes) / 2**20}
    small = SOLVERS[options.task](skdpmf.data.make_ratings(200, 100, random_state=0))
    small.start(k, n_threads)
    small.fit({}, 1)  # Libraries and compiled code are there before.
    train, _ = sgd_data.load(shape, options.cache)
    loaded = peak_gib()
    solver = SOLVERS[options.task](train)
    solver.start(k, n_threads)
    solver.fit({}, 2)
    return {"loaded": loaded, "peak": peak_gib(), "factors": sum(train.shape) * k / 2**28}


def in_child(task, shape, k, n_threads, options):
    """Run `measure_memory` in a fresh process; what it found, or None."""
    command = [sys.executable, __file__, "memory", "--task", task, "--cache", str(options.cache)]
    command += ["--shapes", shape, "--sizes", str(k), "--threads", str(n_threads)]
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    how = {"stdout": subprocess.PIPE, "text": True, "timeout": options.budget_seconds}
    try:
        done = subprocess.run(command, env=environment, check=False, **how)
    except subprocess.TimeoutExpired:
        return None
    return json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else None


def memory(options):
    print("\nPeak resident memory of two epochs, MiB; growth: over the loaded ratings\n")
    head("data", "k", "threads", "solver", "factors", "before", "peak", "growth")
    names = installed(options.solvers)
    for shape in options.shapes:
        in_child("make", shape, 1, 1, options)
        for k, n_threads, name in itertools.product(options.sizes, options.threads, names):
            if n_threads > SOLVERS[name].most_threads:
                continue
            found = in_child(name, shape, k, n_threads, options)
            if found is None:
                row(shape, k, n_threads, name, "-", "-", "-", "failed or over the time budget")
                continue
            factors, before, peak = (found[key] for key in ("factors", "loaded", "peak"))
            sizes = (factors, before, peak, peak - before)
            cells = (shown_size(value * 2**10, 0) for value in sizes)
            row(shape, k, n_threads, name, *cells)


COMMANDS = {"throughput": throughput, "time-to-rmse": time_to_rmse, "memory": memory}


def listed(kind):
    return lambda text: [kind(part) for part in text.split(",")]


def one_of(known):
    def parse(text):
        names = text.split(",")
        if unknown := set(names) - set(known):
            raise argparse.ArgumentTypeError(f"{sorted(unknown)} are not among {list(known)}")
        return names

    return parse


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("command", nargs="?", choices=[*COMMANDS, "all"], default="all")
    parser.add_argument("--shapes", type=one_of("SML"), default=["S", "M"])
    sizes = {"type": listed(int), "default": [16, 32, 128, 512, 1024, 2048]}
    parser.add_argument("--sizes", **sizes, help="values of k")
    parser.add_argument("--threads", type=listed(int), default=[1, 2])
    parser.add_argument("--solvers", type=one_of(SOLVERS), default=list(SOLVERS))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--most-epochs", type=int, default=60, help="of time-to-rmse")
    slacks = {"type": listed(float), "default": [0.001, 0.004]}
    parser.add_argument("--slacks", **slacks, help="of the goals over the peers' least RMSE")
    parser.add_argument(
        "--budget-seconds", type=float, help=f"for a solver in one row; default {USUAL_BUDGET}"
    )
    parser.add_argument("--cache", type=Path, default=Path(tempfile.gettempdir()) / "skdpmf-bench")
    parser.add_argument("--verbose", action="store_true", help="all searched settings")
    parser.add_argument("--task", help=argparse.SUPPRESS)
    options = parser.parse_args()

    if options.task:
        print(json.dumps(measure_memory(options)))
        return
    # Memory first, while this process is small.
    commands = ["memory", *COMMANDS] if options.command == "all" else [options.command]
    budget = options.budget_seconds
    for command in dict.fromkeys(commands):
        options.budget_seconds = budget or USUAL_BUDGET[command]
        if command == "throughput":
            import roofline

            print("\nThe machine's bounds, million ratings/s\n")
            measured = {n: roofline.measure(n) for n in options.threads}
            print("\n".join(roofline.table(measured, options.sizes)))
        COMMANDS[command](options)


if __name__ == "__main__":
    main()
