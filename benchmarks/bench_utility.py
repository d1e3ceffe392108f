"""Test RMSE against epsilon: AdaptiveWeightALS beside DPItemMeans and the published solver.

Ratings come from --data FILE or $SKDPMF_DATA/ml-1m.parquet (without either only the synthetic sets
run). A tenth of the rows is held out by `skdpmf.evaluation.split_table`, users are folded in with
their other ratings, and all settings are the defaults. Prints Markdown tables.

    python benchmarks/bench_utility.py --data ml-1m.parquet --seeds 5
    python benchmarks/bench_utility.py --data synth10m --epsilons 1 4 8 20 inf --seeds 2 --n-jobs 2
"""

from functools import partial

import numpy as np
from harness import data_path, from_to, parser, print_head, print_row
from ratings import ALONE, LARGE, budget_of, fits, print_never_worse, print_set, splits_of

from skdpmf import DPALS, AdaptiveWeightALS, DPItemMeans
from skdpmf.data import make_ratings
from skdpmf.evaluation import split_ratings

FIVE = (1.0, 5.0)
EPSILONS = (0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 20.0, np.inf)
# "pooled" predicts ratings and does nothing else; "with lists" is the default
METHODS = {
    "DPItemMeans": DPItemMeans,
    "pooled": ALONE,
    "dpals": partial(AdaptiveWeightALS, solver=DPALS("adaptive")),
    "uniform": partial(AdaptiveWeightALS, solver=DPALS("uniform")),
    "tail": partial(AdaptiveWeightALS, solver=DPALS("tail")),
    "with lists": AdaptiveWeightALS,
}
SYNTHETIC = {
    "200 x 100, half rated": {"n_users": 200, "n_items": 100, "density": 0.5},
    "2,000 x 300, a fifth rated": {"n_users": 2000, "n_items": 300, "density": 0.2},
    "5,000 x 60, a fifth rated": {"n_users": 5000, "n_items": 60, "density": 0.2},
}
PARSER = parser(
    __doc__,
    data=None,
    epsilons=EPSILONS,
    seeds=5,
    methods=METHODS,
    fresh_splits=[101, 102],
    n_jobs=1,
    no_synthetic=False,
)


def run(name, X, Y, scale, methods, options):
    """Print the table of a set, and where the private model is worse than item means alone."""
    print_set(name, X, Y, options)
    cells = {
        (method, epsilon): fits(
            METHODS[method], budget_of(epsilon), X, Y, options, method, rating_range=scale
        )
        for epsilon in options.epsilons
        for method in methods
    }
    shown = "pooled" if "pooled" in methods else methods[0]
    print_head("epsilon", *methods, "rank", "seconds a fit")
    for epsilon in options.epsilons:
        cell = cells[shown, epsilon]
        row = (cells[method, epsilon] for method in methods)
        print_row(f"{epsilon:g}", *row, from_to(cell.ranks), cell.median_seconds)
    print()
    if {"DPItemMeans", "pooled"} <= set(methods):
        pairs = {e: (cells["pooled", e], cells["DPItemMeans", e]) for e in options.epsilons}
        print_never_worse(pairs, name)


def main(arguments=None):
    options = PARSER.parse_args(arguments)
    three = list(METHODS)[:3]
    if str(options.data) in LARGE:
        make, scale = LARGE[str(options.data)]
        X, Y = split_ratings(make(), random_state=0)
        run(str(options.data), X, Y, scale, three[:2], options)
        return
    for name, X, Y in splits_of(options, ()) if data_path(options) else ():
        run(name, X, Y, FIVE, options.methods if name == "Split 0" else three, options)
    if not options.no_synthetic:
        for label, shape in SYNTHETIC.items():
            X, Y = split_ratings(make_ratings(**shape, random_state=0), random_state=0)
            run(f"Synthetic, {label}", X, Y, FIVE, three, options)


if __name__ == "__main__":
    main()
