"""
Accuracy against epsilon: a noisy item covariance, for one rating and for one user
==================================================================================

The shape of figure 1 of McSherry and Mironov (2009): test RMSE against epsilon. The unit of privacy
decides how much of the item covariance can be seen:

- "one rating": neighbours differ by a single known rating. Little noise, and the covariance soon
  pays;
- "one user": neighbours differ by a whole history, and there is far more noise.

The dotted lines are item means alone at the same budget, which no other line should exceed: if the
noise hides the covariance, the fit measures the item means a second time instead, and the lines
meet. A user's predictions also use the user's own ratings, which are published nowhere::

    python examples/plot_covariance_curve.py --data ml-1m.parquet

The example takes less than a minute on two cores, with or without data.
"""

import argparse
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from skdpmf import DPCovarianceRecommender, NoisyCovariance, PrivacyBudget
from skdpmf.data import make_ratings, ratings_to_matrix, read_ratings
from skdpmf.evaluation import rmse, split_ratings

BLUE, ORANGE, GREY = "#0072B2", "#D55E00", "#666666"
STYLE = {"axes.grid": True, "axes.spines.top": False, "axes.spines.right": False}
DELTA = 1e-5
COLORS = {"rating": BLUE, "user": ORANGE}
# Shares of global effects, item means and covariance. User ratings are centred by the first.
MEANS_ALONE = {"rating": (0.0, 1.0, 0.0), "user": (0.005, 0.995, 0.0)}


def fit(X, Y, options, budget, shares="auto"):
    """Return the test RMSE and the number of items that the covariance covers."""
    model = DPCovarianceRecommender(
        budget,
        n_components=options.n_components,
        random_state=0,
        n_jobs=options.n_jobs,
        covariance=NoisyCovariance(shares=shares),
    ).fit(X)
    error, covered = rmse(Y, model.predict_entries(X, Y)), model.covariance_items_.size
    print(
        f"{budget.unit}, epsilon {budget.epsilon:.4g}, {covered} items: {error:.4f}",
        file=sys.stderr,
    )
    return error, covered


def draw(rows, limits, options):
    """Plot the errors of both units between the two limits without privacy."""
    figure, axes = plt.subplots(figsize=(8.0, 4.3))
    for unit, color in COLORS.items():
        _, epsilons, alone, errors, _ = zip(*(row for row in rows if row[0] == unit), strict=True)
        axes.plot(epsilons, errors, "o-", color=color, label=f"one {unit}")
        axes.plot(epsilons, alone, ":", color=color, label=f"one {unit}, item means alone")
    names, shifts = ("item means, no privacy", "no privacy"), (-12, 4)
    for level, text, shift in zip(limits, names, shifts, strict=True):
        axes.axhline(level, color=GREY, linewidth=1.2, linestyle="--", zorder=0)
        axes.annotate(
            text,
            (0.0, level),
            xycoords=("axes fraction", "data"),
            xytext=(4, shift),
            textcoords="offset points",
            color=GREY,
        )
    axes.set_xscale("log")
    axes.set_xticks(options.epsilons, [f"{epsilon:g}" for epsilon in options.epsilons])
    axes.minorticks_off()
    axes.margins(y=0.08)
    axes.set_xlabel(f"ε (δ = {DELTA:g})")
    axes.set_ylabel("test RMSE (rating units)")
    axes.set_title(data_name(options), loc="left")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.13), ncols=4)
    return figure


def load(options):
    """Return training and test ratings, of the file or made up: a tenth is held out."""
    if options.data is None:
        ratings = make_ratings(*options.shape, random_state=0)
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
    parser.add_argument("--output", type=Path, default=Path("covariance_curve.png"))
    parser.add_argument("--shape", type=int, nargs=2, default=(20_000, 300), help="users, items")
    parser.add_argument("--n-jobs", type=int, help="threads")
    parser.add_argument("--n-components", type=int, default=20)
    parser.add_argument(
        "--epsilons", type=float, nargs="+", default=[0.1, 0.25, 0.5, 1, 2, 4, 8, 16]
    )
    options = parser.parse_args(arguments)
    X, Y = load(options)

    plain = PrivacyBudget.nonprivate()
    limits = [fit(X, Y, options, plain, shares)[0] for shares in (MEANS_ALONE["rating"], "auto")]
    rows = []
    for unit, shares in MEANS_ALONE.items():
        for epsilon in options.epsilons:
            budget = PrivacyBudget(epsilon, DELTA, unit=unit)
            alone, _ = fit(X, Y, options, budget, shares)
            rows.append((unit, float(epsilon), alone, *fit(X, Y, options, budget)))
    none = ("no privacy", np.inf, *limits, X.shape[1])
    print_table(("unit", "epsilon", "means alone", "covariance", "items covered"), [*rows, none])
    with plt.rc_context(STYLE):
        draw(rows, limits, options).savefig(options.output, bbox_inches="tight")


if __name__ == "__main__":
    main()
