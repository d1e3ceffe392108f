"""CacheSGDFactorizer against the SGD factorisers of cornac and scikit-surprise.

Million ratings/s of the training loop on prepared data, medians of interleaved runs. Preparing the
ratings for a peer (its data set object) is never on its clock. Prints a Markdown table.

    python benchmarks/bench_sgd.py throughput --shapes S --sizes 16,128 --threads 1
"""

import itertools
import statistics

from harness import integers, parser, print_head, print_row
from sgd_solvers import SOLVERS, made, missing
from threadpoolctl import threadpool_limits

SAMPLE_SECONDS = 0.4  # Short epochs are timed together.
PARSER = parser(
    __doc__,
    repeats=5,
    budget_seconds=10.0,  # for a solver in one row
)
PARSER.add_argument("command", nargs="?", choices=["throughput"])
PARSER.add_argument("--shapes", type=lambda text: text.split(","), default=["S", "M"])
PARSER.add_argument("--sizes", type=integers, default=[16, 32, 128, 512, 1024, 2048])
PARSER.add_argument("--threads", type=integers, default=[1, 2])
PARSER.add_argument("--solvers", type=lambda text: text.split(","), default=list(SOLVERS))


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


def main(arguments=None):
    options = PARSER.parse_args(arguments)
    names = [name for name in options.solvers if not missing(SOLVERS[name].needs)]
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
