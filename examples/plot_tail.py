"""
Who pays for privacy? Popular items, rare items
===============================================

Noise is as large for a film that thousands have rated as for one with a hundred ratings, and one
figure for all items hides the effect on rare items. This example splits test errors by the
popularity of the item, as `PopularityDisplay.from_estimator` does it for one fitted estimator, and
shows means over several fits.

**The price of noise** (upper half of the figure): the curves are factors at two epsilons and
without privacy, and item means, which say less and need less. The distance from a curve to the
dashed one of the same model is the cost of noise: little for popular items, much for rare ones.
With made-up ratings at epsilon = 1 factors pay off for the popular items alone, and item means
predict the rare ones better.

**Who gets the influence** (lower half): a user has one unit of influence, however many items the
user has rated. The division of this unit decides which items pay. The figure shows the published
ways, all with ``solver="dpals"``, by their error above the error of the first one, at equal
epsilon:

- *uniform sampling*: every user keeps 40 random ratings (`--kept`; a good number for both kinds of
  sampling here), the others are dropped;
- *tail sampling*: as many ratings are kept, those of the user's rarest items;
- *adaptive weights*: all are kept, with weights N^-mu for an item with N ratings. mu = 0 is the
  same weight for all; the larger mu is, the more goes to the rare items at the cost of popular
  ones. Where N is needed to decide, it is a noisy count that was released within the budget.

The last curve is that of the default, with another solver and mu = 1/4. Which exponent is right
depends on whose recommendations matter to you. Picked by these errors on private ratings it would
have to be paid for (`PrivateSearchCV`). The same with ten seeds on MovieLens 1M, where the gains on
rare items are smaller than in the paper: :doc:`benchmarks </benchmarks/multi-task>`.

::

    python examples/plot_tail.py
    python examples/plot_tail.py --data ml-1m.parquet --kept 100 --seeds 2

The example takes ten to twenty seconds, and a minute with MovieLens 1M.

Source of the weights: Krichene et al., "Multi-Task Differential Privacy Under Distribution Skew",
ICML 2023.
"""

import argparse
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from skdpmf import DPALS, AdaptiveWeightALS, DPItemMeans, PrivacyBudget
from skdpmf.data import make_ratings, ratings_to_matrix, read_ratings
from skdpmf.evaluation import PopularityDisplay, by_popularity, rmse, split_ratings

BLUE, ORANGE, GREEN = "#0072B2", "#D55E00", "#009E73"
STYLE = {"axes.grid": True, "axes.spines.top": False, "axes.spines.right": False}
DELTA = 1e-5
# Looks of the upper half's curves, in their order: dashed without privacy.
LOOKS = (
    {"color": BLUE, "linestyle": "--"},
    {"color": BLUE},
    {"color": GREEN},
    {"color": ORANGE},
    {"color": ORANGE, "linestyle": "--"},
)


def candidates(options):
    """Return the estimators of the two panels, by what they are called."""
    low, high = (PrivacyBudget(epsilon, DELTA) for epsilon in options.epsilons)
    plain = PrivacyBudget.nonprivate()
    settings = {"n_components": options.n_components, "n_jobs": options.n_jobs}
    price = {
        "factors, no privacy": AdaptiveWeightALS(plain, **settings),
        f"factors, ε = {high.epsilon:g}": AdaptiveWeightALS(high, **settings),
        f"factors, ε = {low.epsilon:g}": AdaptiveWeightALS(low, **settings),
        f"item means, ε = {low.epsilon:g}": DPItemMeans(low, n_jobs=options.n_jobs),
        "item means, no privacy": DPItemMeans(plain, n_jobs=options.n_jobs),
    }
    ways = {
        f"{name} sampling": {"solver": DPALS(name), "max_ratings_per_user": options.kept}
        for name in ("uniform", "tail")
    }
    ways |= {
        f"weights, μ = {mu:g}": {"solver": DPALS(weight_exponent=mu)} for mu in (0.0, 0.25, 0.5)
    }
    influence = {name: AdaptiveWeightALS(high, **settings, **way) for name, way in ways.items()}
    name = f"factors, ε = {high.epsilon:g}"
    return price, {**influence, name: price[name]}


def mean_errors(estimator, X, Y, options):
    """Return the errors by popularity, then that of all items, as means over fits."""
    found = []
    for seed in range(options.seeds if estimator.budget.is_private else 1):
        # to repeat the figure; a real release leaves random_state alone
        model = estimator.set_params(random_state=seed).fit(X)
        predicted = model.predict_entries(X, Y)
        table = by_popularity(X, Y, predicted, n_buckets=options.buckets)
        found.append([*table["rmse"], rmse(Y, predicted)])
    return np.mean(found, axis=0)


def draw(panels, errors, places, options):
    """Plot errors, and how far they are from those of uniform sampling, by popularity."""
    base = errors["uniform sampling"]
    figure, (above, below) = plt.subplots(2, figsize=(9.0, 6.6), sharex=True, layout="constrained")
    for name, look in zip(panels[0], LOOKS, strict=True):
        rmses = errors[name][:-1]
        display = PopularityDisplay(rmses, *places, score_name="test RMSE (stars)", name=name)
        display.plot(above, **look)
    score = "RMSE less that of uniform sampling"
    for name in panels[1]:
        more = (errors[name] - base)[:-1]
        PopularityDisplay(more, *places, score_name=score, name=name).plot(below)
    above.set_title(f"The price of noise ({data_name(options)})", loc="left", fontsize=10)
    below.set_title(
        f"Who gets the influence (ε = {options.epsilons[1]:g})", loc="left", fontsize=10
    )
    above.set_xlabel("")
    for axes in (above, below):
        axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


def load(options):
    """Return training and test ratings, of the file or made up: a tenth is held out."""
    if options.data is None:
        ratings = make_ratings(*options.shape, density=0.1, item_exponent=1.0, random_state=0)
    else:
        ratings = ratings_to_matrix(read_ratings(options.data)).X
    return split_ratings(ratings, random_state=0)


def data_name(options):
    """Return the words of a title for the ratings."""
    return "made-up ratings" if options.data is None else options.data.stem


def print_table(names, rows):
    """Print aligned columns, as Markdown."""
    cells = [names, *([f"{x:.4g}" if isinstance(x, float) else str(x) for x in r] for r in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    cells.insert(1, ["-" * width for width in widths])
    for row in cells:
        aligned = (cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        print("| " + " | ".join(aligned) + " |")


def main(arguments=None):
    """Fit, print and plot."""
    parser = argparse.ArgumentParser(description=__doc__.strip().partition("\n")[0])
    parser.add_argument("--data", type=Path, help="ratings file; without one, made-up ratings")
    parser.add_argument("--output", type=Path, default=Path("tail.png"))
    parser.add_argument("--shape", type=int, nargs=2, default=(3000, 400), help="users, items")
    parser.add_argument("--n-jobs", type=int, help="threads")
    parser.add_argument("--n-components", type=int, default=8)
    parser.add_argument("--epsilons", type=float, nargs=2, default=(1, 4), metavar=("LOW", "HIGH"))
    parser.add_argument("--kept", type=int, default=40, help="ratings a user, by sampling")
    parser.add_argument("--buckets", type=int, default=5)
    parser.add_argument("--seeds", type=int, default=4)
    options = parser.parse_args(arguments)
    X, Y = load(options)
    buckets = by_popularity(X, Y, Y, n_buckets=options.buckets)
    places = buckets["min_count"], buckets["max_count"], buckets["n_ratings"]

    panels = candidates(options)
    errors = {}
    for name, estimator in {**panels[0], **panels[1]}.items():
        print(f"{name} ...", file=sys.stderr)
        errors[name] = mean_errors(estimator, X, Y, options)
    heads = [f"{low} to {high}" for low, high, _ in zip(*places, strict=True)]
    rows = [(name, *(f"{error:.3f}" for error in found)) for name, found in errors.items()]
    print_table(("test RMSE by an item's ratings", *heads, "all"), rows)

    with plt.rc_context(STYLE):
        draw(panels, errors, places, options).savefig(options.output, bbox_inches="tight")


if __name__ == "__main__":
    main()
