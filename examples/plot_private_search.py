"""
A search for settings that does not leak
========================================

Which penalty, which number of factors? scikit-learn's answer is ``GridSearchCV``: fit every
candidate on several folds, score, take the best. On private ratings this costs twice. Every one of
its fits spends. And the choice is made by exact scores: the winner may depend on a single person,
and no amount of noise in the models hides this.

`PrivateSearchCV` releases the winner alone. A secret random number of trials is run, each with a
candidate drawn by chance; each is scored with noise; the best one is released, and all else is
forgotten. The price is not far from the price of one fit, however long the list of candidates is::

    python examples/plot_private_search.py --data ml-1m.parquet

The left panel has the errors of all candidates, which only made-up ratings may show. One curve is
for the whole budget, which somebody can use who knows the best candidate from elsewhere, and the
other for the budget of a trial. The searches differ only by chance. They have chosen well if they
are near the bottom of the second curve, or a little above it, because their scores take a tenth of
the ratings. The step from the lower curve to the searches is the cost of searching. So tune on
public or made-up ratings if you can, and search privately if you must.

The right panel has the spending of trials like those of the search, and of a stock search that
gives each of its fits the whole budget. ``plot_release.py`` has a search, a fit and their card
within one limit. The example takes ten seconds on one core, and half a minute with MovieLens 1M.
"""

import argparse
import sys
from pathlib import Path

import matplotlib.pyplot as plt
from sklearn.base import clone

from skdpmf import AdaptiveWeightALS, PrivacyBudget, privacy_spent
from skdpmf.data import make_ratings, ratings_to_matrix, read_ratings
from skdpmf.evaluation import PrivateSearchCV, rmse, split_ratings

BLUE, ORANGE, GREY = "#0072B2", "#D55E00", "#666666"
STYLE = {"axes.grid": True, "axes.spines.top": False, "axes.spines.right": False}
BUDGET = PrivacyBudget(4.0, 1e-5)
ALPHAS = [0.1, 0.3, 1.0, 3.0, 10.0]  # strengths of the penalty
N_FOLDS = 5  # of a stock search


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
    parser = argparse.ArgumentParser(description=__doc__.strip().partition("\n")[0])
    parser.add_argument("--data", type=Path, help="ratings file; without one, made-up ratings")
    parser.add_argument("--output", type=Path, default=Path("private_search.png"))
    parser.add_argument("--shape", type=int, nargs=2, default=(2000, 300), help="users, items")
    parser.add_argument("--n-jobs", type=int, help="threads")
    parser.add_argument("--n-components", type=int, default=16, help="largest rank")
    parser.add_argument("--trials", type=float, default=5.0, help="of a search, on average")
    parser.add_argument("--searches", type=int, default=3, help="to compare; one is the rule")
    options = parser.parse_args(arguments)
    X, Y = load(options)
    # a number as random_state to repeat the figure; a real release leaves it alone
    template = AdaptiveWeightALS(
        BUDGET, n_components=options.n_components, random_state=0, n_jobs=options.n_jobs
    )

    def fit(alpha, budget):
        """Return a fitted model and its test error."""
        model = clone(template).set_params(alpha=alpha, budget=budget).fit(X)
        return model, rmse(Y, model.predict_entries(X, Y))

    searches = [
        PrivateSearchCV(
            template, {"alpha": ALPHAS}, BUDGET, n_trials=options.trials, random_state=seed
        )
        for seed in range(options.searches)
    ]
    plan = searches[0].plan(n_items=X.shape[1], n_rows=X.shape[0])
    print(f"{plan}\n")

    found = []
    for search in searches:
        print("private search ...", file=sys.stderr)
        search.fit(X)
        found.append((search.best_params_["alpha"], rmse(Y, search.predict_entries(X, Y))))
    print("all candidates ...", file=sys.stderr)
    fits = [[fit(alpha, budget) for alpha in ALPHAS] for budget in (BUDGET, plan.fit_budget)]
    whole, trial = ([error for _, error in row] for row in fits)

    n_stock = len(ALPHAS) * N_FOLDS + 1
    stock = privacy_spent([fits[0][0][0]] * n_stock)
    prices = [
        ("one trial alone", plan.one_trial),
        ("private search", searches[0].privacy_spent_.epsilon),
        (f"{options.trials:g} trials, all released", plan.plain),
        (f"GridSearchCV, {n_stock} fits", stock.epsilon),
    ]
    print_table(
        ["", f"epsilon at delta {BUDGET.delta:g}"],
        [(name, f"{epsilon:.2f}") for name, epsilon in prices],
    )
    print("GridSearchCV's choice by exact scores is not in this number, and has none.\n")

    rows = [
        (f"candidate {alpha:g}", f"{alpha:g}", *errors)
        for alpha, *errors in zip(ALPHAS, whole, trial, strict=True)
    ]
    rows += [(f"search {n}", f"{alpha:g}", "", error) for n, (alpha, error) in enumerate(found, 1)]
    print_table(["", "alpha", "RMSE, whole budget", "RMSE, a trial's"], rows)

    plt.style.use(STYLE)
    figure, (left, right) = plt.subplots(1, 2, figsize=(11.0, 4.2), layout="constrained")
    left.plot(ALPHAS, trial, "s-", color=BLUE, label=f"fits with ε = {plan.fit_budget.epsilon:.1f}")
    left.plot(ALPHAS, whole, "o--", color=GREY, label=f"fits with the whole ε = {BUDGET.epsilon:g}")
    left.plot(*zip(*found, strict=True), "D", color=ORANGE, mfc="none", ms=9, label="searches")
    left.set_xscale("log")
    left.set_xticks(ALPHAS, [f"{alpha:g}" for alpha in ALPHAS])
    left.minorticks_off()
    left.set(xlabel="alpha, the strength of the penalty", ylabel="test RMSE (rating units)")
    left.set_title(f"What is chosen ({data_name(options)})", loc="left")
    left.legend(loc="upper center", bbox_to_anchor=(0.5, -0.13), ncols=3, columnspacing=1.2)

    names, epsilons = zip(*prices, strict=True)
    bars = right.barh(range(len(names)), epsilons, color=[BLUE, ORANGE, GREY, GREY])
    right.bar_label(bars, [f"{epsilon:.1f}" for epsilon in epsilons], padding=3)
    right.set_yticks(range(len(names)), names)
    right.invert_yaxis()
    right.margins(x=0.12)
    right.grid(visible=False, axis="y")
    right.set_xlabel(f"ε that is spent, at δ = {BUDGET.delta:g} (one user, add or remove)")
    right.set_title("What it costs", loc="left")
    figure.savefig(options.output, bbox_inches="tight")


if __name__ == "__main__":
    main()
