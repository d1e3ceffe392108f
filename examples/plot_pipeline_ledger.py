"""
A month of releases against one limit
=====================================

A shop publishes a new recommender every week, from all the ratings so far. Each release reveals a
little about each customer, and the releases add up. So before the month begins the shop sets a
limit for all of its releases together, and writes this limit into a *ledger*: a file to which every
fit is charged before it reads a rating.

Each week's release is a scikit-learn pipeline with three steps. ``ContributionBounder`` keeps at
most so many ratings of each customer, and costs nothing. ``DPItemSelector`` keeps the items that
are popular by noisy counts, and ``AdaptiveWeightALS`` learns from these items; these two spend.
``split`` divides the limit into five parts, four weeks and a reserve, and each week's part between
the two steps. The parts make up the whole exactly, and each has far more than a fifth of its
epsilon.

Then somebody asks for one more fit, with more than the reserve. The ledger refuses it before it
sees a rating, with an error that names the largest budget that fits. A fit with that budget is
granted, and the ledger is full::

    python examples/plot_pipeline_ledger.py --data ml-1m.parquet

The left panel has the ledger after four weeks, with the reserve hatched; the right panel has the
use of one week's part by its model. Both are drawn without a look at the ratings. The example takes
five seconds on one core, and ten with MovieLens 1M. ``plot_release.py`` shows how to choose
settings, attack a claim and file a release.
"""

import argparse
import sys
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from scipy import sparse
from sklearn.pipeline import make_pipeline

from skdpmf import AdaptiveWeightALS, PrivacyBudget, PrivacyLedger, privacy_spent
from skdpmf.data import make_ratings, ratings_to_matrix, read_ratings
from skdpmf.evaluation import BudgetDisplay, rmse, split_ratings
from skdpmf.exceptions import BudgetExceededError
from skdpmf.preprocessing import ContributionBounder, DPItemSelector

STYLE = {"axes.grid": True, "axes.spines.top": False, "axes.spines.right": False}
LIMIT = PrivacyBudget(4.0, 1e-5)  # of the month, for each customer
WEEKS = ["week 1", "week 2", "week 3", "week 4"]
SHARES = {**dict.fromkeys(WEEKS, 0.22), "reserve": 0.12}


def by_week(X, seed=0):
    """Return the ratings so far, week by week; which came when is made up."""
    arrived = np.random.default_rng(seed).integers(len(WEEKS), size=X.nnz)
    rows = np.repeat(np.arange(X.shape[0]), np.diff(X.indptr))
    for week in range(len(WEEKS)):
        seen = arrived <= week
        yield sparse.csr_array((X.data[seen], (rows[seen], X.indices[seen])), shape=X.shape)


def load(options):
    """Return training and test ratings, of the file or made up: a tenth is held out."""
    if options.data is None:
        ratings = make_ratings(*options.shape, random_state=0)
    else:
        ratings = ratings_to_matrix(read_ratings(options.data)).X
    return split_ratings(ratings, random_state=0)


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
    parser.add_argument("--output", type=Path, default=Path("pipeline_ledger.png"))
    parser.add_argument("--shape", type=int, nargs=2, default=(2000, 300), help="users, items")
    parser.add_argument("--n-jobs", type=int, help="threads")
    parser.add_argument("--n-components", type=int, default=16, help="largest rank")
    options = parser.parse_args(arguments)
    X, Y = load(options)
    settings = {"n_components": options.n_components, "n_jobs": options.n_jobs}

    with tempfile.TemporaryDirectory() as folder:
        ledger = PrivacyLedger(Path(folder) / "shop.ledger", limit=LIMIT)
        granted = PrivacyBudget(LIMIT.epsilon, LIMIT.delta, ledger=ledger)
        parts, rows = granted.split(SHARES), []
        for week, ratings in zip(WEEKS, by_week(X), strict=True):
            print(f"{week} ...", file=sys.stderr)
            counts, rest = parts[week].split([0.1, 0.9])
            model = make_pipeline(
                ContributionBounder(max_ratings_per_user=300),
                DPItemSelector(counts, n_items=0.8),
                AdaptiveWeightALS(rest, **settings),
            ).fit(ratings)
            report, (first, kept) = ledger.report(), (model[:-1], model[1].support_)
            predicted = model[-1].predict_entries(first.transform(ratings), Y[:, kept])
            rows.append(
                (
                    week,
                    ratings.nnz,
                    rmse(Y[:, kept], predicted),
                    f"{privacy_spent(model).epsilon:.2f}",
                    f"{report.epsilon:.2f}",
                    f"{report.left / report.allowed.number:.0%}",
                )
            )
        print_table(["", "ratings", "test RMSE", "epsilon", "epsilon so far", "left"], rows)

        plt.style.use(STYLE)
        figure, axes = plt.subplots(1, 2, figsize=(12.5, 4.4), layout="constrained")
        BudgetDisplay.from_ledger(ledger, ax=axes[0])
        BudgetDisplay.from_plan(model[-1].plan(n_items=int(kept.sum())), ax=axes[1])
        for ax, title in zip(axes, ("The ledger after four weeks", "A model's part"), strict=True):
            ax.set_title(f"{title}: {ax.get_title('left')}", loc="left", fontsize="medium")

        hasty = PrivacyBudget(2.0, LIMIT.delta, ledger=ledger)
        try:
            AdaptiveWeightALS(hasty, **settings).fit(X)
        except BudgetExceededError as error:
            print(f"\nOne more is refused. {type(error).__name__}: {error}")
            largest = PrivacyBudget(error.largest, LIMIT.delta, ledger=ledger)
        AdaptiveWeightALS(largest, **settings).fit(X)
        print(f"The largest, epsilon {largest.epsilon:.2f}, is granted.\n\n{ledger.report()}")
    figure.savefig(options.output, bbox_inches="tight")


if __name__ == "__main__":
    main()
