"""Test RMSE of DPMFSampler against epsilon, under both of its guarantees.

"every-step" stands beside AdaptiveWeightALS and item means alone with the same budget; "posterior",
one Gibbs draw, beside its epsilon by the published theorem. All settings are the defaults unless a
column says otherwise. Ratings come from --data FILE or $SKDPMF_DATA/ml-1m.parquet, else they are
synthetic. Prints Markdown tables.

    python benchmarks/bench_sampler.py --data ml-1m.parquet --n-jobs 2
"""

import numpy as np
from harness import from_to, parser, print_head, print_row
from ratings import ALONE, budget_of, fits, print_set, splits_of

from skdpmf import DPItemMeans, DPMFSampler
from skdpmf.mechanisms.posterior_draw.guarantee import item_loss_bound, loss_bound

PEERS = {"DPItemMeans": DPItemMeans, "AdaptiveWeightALS": ALONE}
VARIANTS = {
    "Without item biases, as by default with a private budget": False,
    "With item biases": True,
}
# Bounds on a user's loss at the defaults: 200 ratings, targets up to two quarter ranges, kappa 0.
BOUND_INPUTS = (200, 2.0, 0.0)
PARSER = parser(
    __doc__,
    data=None,
    parts=["every-step", "posterior", "speed"],
    epsilons=[0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, np.inf],
    posterior_epsilons=[4.0, 16.0, 64.0, 256.0, 1024.0, 2500.0, np.inf],
    seeds=5,
    fresh_splits=[101, 102],
    n_jobs=2,
)


def run_every_step(X, Y, options):
    print_head("epsilon", *PEERS, "every-step", "rank", "seconds a fit")
    for epsilon in options.epsilons:
        budget = budget_of(epsilon)
        peers = [fits(kind, budget, X, Y, options, name) for name, kind in PEERS.items()]
        cell = fits(DPMFSampler, budget, X, Y, options, "every-step")
        print_row(f"{epsilon:g}", *peers, cell, from_to(cell.ranks), cell.median_seconds)
    print()


def run_posterior(X, Y, options):
    print("One draw of the posterior, Gibbs; delta 0; epsilon holds if the chain has converged\n")
    for variant, item_bias in VARIANTS.items():
        print(f"{variant}:\n")
        print_head("epsilon", "spent", "published accounting", "test RMSE", "seconds a fit")
        settings = {"guarantee": "posterior", "guarantee__item_bias": item_bias}
        # the paper says 4 a B of a draw that spends a B, or a B_V without item biases
        bound = loss_bound if item_bias else item_loss_bound
        factor = 4.0 * loss_bound(*BOUND_INPUTS) / bound(*BOUND_INPUTS)
        for epsilon in options.posterior_epsilons:
            given = DPMFSampler, budget_of(epsilon, 0.0), X, Y, options
            cell = fits(*given, variant.lower(), **settings)
            spent = cell.model.privacy_spent_.epsilon
            cells = f"{spent:.4g}", f"{factor * spent:.4g}", cell, cell.median_seconds
            print_row(f"{epsilon:g}", *cells)
        print()


def run_speed(X, Y, options):
    given = DPMFSampler, budget_of(4.0), X, Y, options
    cell = fits(*given, "speed", n_components=4, max_iter=50)
    words = f"{options.n_jobs} threads: median {cell.median_seconds} s a fit, test RMSE {cell}"
    print(f"every-step at k = 4, 50 steps, epsilon 4, {words}\n", flush=True)


def main(arguments=None):
    options = PARSER.parse_args(arguments)
    for number, (name, X, Y) in enumerate(splits_of(options, (2000, 300))):
        if number > 0 and "every-step" not in options.parts:
            break
        print_set(name, X, Y, options)
        if "every-step" in options.parts:
            run_every_step(X, Y, options)
        if number == 0 and "posterior" in options.parts:
            run_posterior(X, Y, options)
        if number == 0 and "speed" in options.parts:
            run_speed(X, Y, options)


if __name__ == "__main__":
    main()
