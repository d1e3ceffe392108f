"""
A first private model, from ratings to recommendations
======================================================

This page is the first hour with the package: fit a model, recommend, measure the cost of privacy,
read the statement, save the model and load it again.

The ratings are a table of users, items and stars; `ratings_to_matrix` makes a matrix of it that
knows their names, and so does the model from then on. A private fit adds noise, so that the same
model is nearly as likely to come out with or without any one person's ratings. The budget says how
nearly: epsilon = 4 here, and smaller is safer. :doc:`What is protected? </protection>` explains
what this promise covers and what it leaves open.

- *A user of the fit and a new visitor are the same to the model.* It remembers nobody, and answers
  anybody from the ratings that come with the question. Nothing is fitted again.
- *The error* (RMSE, in stars) is measured on a tenth of the ratings that no fit has seen. The
  figure has each method with and without privacy: the line between the two is the price. Two rows
  are for comparison: one mean for everybody, and each user's own mean, for which nothing about
  others is needed.
- *The spending* is in `privacy_spent_`, which prints as a statement for somebody who has to sign.

Noise is fresh in every run, and that is the protection: your figures will differ a little::

    python examples/plot_first_model.py
    python examples/plot_first_model.py --data ratings.csv --items films.csv

The example takes ten seconds, and twenty with MovieLens 1M; the very first run compiles for another
minute.
"""

import argparse
import math
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from skdpmf import AdaptiveWeightALS, DPItemMeans, PrivacyBudget, load_model, privacy_spent
from skdpmf.data import make_ratings, ratings_to_matrix, read_ratings
from skdpmf.evaluation import rmse, split_ratings

BLUE, ORANGE, GREY = "#0072B2", "#D55E00", "#666666"
STYLE = {"axes.grid": True, "axes.spines.top": False, "axes.spines.right": False}
BUDGET = PrivacyBudget(epsilon=4.0, delta=1e-5)  # delta: well below 1 / number of users


def print_recommendations(model, matrix):
    """Recommend to a user of the fit and to visitors, and name similar items."""
    user, items = matrix.users[0], matrix.items
    rows = matrix.rows(user)
    print(f"{user} has rated {rows.nnz} items. Of the others the model recommends")
    print(model.recommend(rows, n=3).drop(columns="user").to_string(index=False))

    one = dict.fromkeys(items[:3], 5.0) | dict.fromkeys(items[3:6], 1.0)
    other = dict.fromkeys(items[:3], 1.0) | dict.fromkeys(items[3:6], 5.0)
    # made-up users choose at random what they rate: here lists by choice would be all alike
    expected = pd.DataFrame(model.predict([one, other]).T, index=matrix.titles or items)
    print("\nTwo visitors come, whom no fit has seen, and rate six items. Rated highest by the one")
    for visitor, liked in ((0, items[:3]), (1, items[3:6])):
        best = expected[visitor].iloc[6:].nlargest(3).round(2)
        print(f"  who likes {', '.join(map(str, liked))}, and not the other three:")
        print("  " + best.to_string().replace("\n", "\n  "))

    if model.n_components_ == 0:
        print("\nNo items are similar: at this budget the ratings support no factors.\n")
        return
    print(f"\nMost similar to {items[0]}, by the released factors:")
    print(model.similar_items(items[0], n=3).drop(columns="to").to_string(index=False) + "\n")


def draw(rows, options):
    """Plot each method's error with privacy (rings) and without (squares)."""
    names, private, exact = zip(*rows, strict=True)
    places = range(len(rows))
    figure, axes = plt.subplots(figsize=(7.6, 3.0))
    axes.hlines(places, exact, private, color=GREY, linewidth=1.2, zorder=1)
    label = f"private, ε = {BUDGET.epsilon:g}"
    axes.plot(private, places, "o", color=BLUE, mfc="white", markersize=9, label=label)
    axes.plot(exact, places, "s", color=ORANGE, label="no privacy")
    axes.set_yticks(places, names)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlabel("test RMSE (stars); the line is the price of privacy")
    axes.set_title(data_name(options), loc="left")
    axes.legend(loc="lower right")
    return figure


def load(options):
    """Return training and test ratings, of the files or made up: a tenth is held out."""
    if options.data is None:
        matrix = make_ratings(*options.shape, random_state=0, as_frame=True).matrix
    else:
        items = None if options.items is None else pd.read_csv(options.items)
        matrix = ratings_to_matrix(read_ratings(options.data), items=items)
    return split_ratings(matrix, random_state=0)


def own_means(X, Y):
    """Predict the entries of Y by each user's own mean of X, which needs no release."""
    counts = np.diff(X.indptr)
    means = X.sum(axis=1) / np.maximum(counts, 1)
    means[counts == 0] = X.data.mean()
    return np.repeat(means, np.diff(Y.indptr))


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
    """Fit, recommend, measure, save."""
    parser = argparse.ArgumentParser(description=__doc__.strip().partition("\n")[0])
    parser.add_argument("--data", type=Path, help="ratings file; without one, made-up ratings")
    parser.add_argument("--items", type=Path, help="CSV file with the columns item and title")
    parser.add_argument("--output", type=Path, default=Path("first_model.png"))
    parser.add_argument("--shape", type=int, nargs=2, default=(2000, 300), help="users, items")
    parser.add_argument("--n-jobs", type=int, help="threads")
    parser.add_argument("--n-components", type=int, default=8, help="largest number of factors")
    options = parser.parse_args(arguments)
    X, Y = load(options)
    print(f"{X.shape[0]:,} users x {X.shape[1]:,} items: {X.nnz:,} ratings, {Y.nnz:,} held out.\n")

    settings = {"n_components": options.n_components, "n_jobs": options.n_jobs}
    model = AdaptiveWeightALS(BUDGET, **settings).set_output(recommend="pandas").fit(X)
    print_recommendations(model, X)

    def error(fitted):
        return rmse(Y, fitted.predict_entries(X, Y))

    plain = PrivacyBudget.nonprivate()
    own = rmse(Y.X.data, own_means(X.X, Y.X))
    means = DPItemMeans(BUDGET).fit(X)
    rows = [
        ("one mean for everybody", math.nan, rmse(Y.X.data, np.full(Y.nnz, X.X.data.mean()))),
        ("each user's own mean", own, own),
        ("DPItemMeans", error(means), error(DPItemMeans(plain).fit(X))),
        ("AdaptiveWeightALS", error(model), error(AdaptiveWeightALS(plain, **settings).fit(X))),
    ]
    columns = ("test RMSE of", f"epsilon {BUDGET.epsilon:g}", "no privacy")
    print_table(columns, [(name, "-" if math.isnan(a) else a, b) for name, a, b in rows])

    both = privacy_spent([means, model]).epsilon
    print(f"\nThe two private fits have spent epsilon {both:.2f} together.")
    print("The fits without privacy protect nobody: they are for this comparison.\n")

    path = options.output.with_suffix(".skdpmf")
    model.save(path)
    loaded = load_model(path).set_output(recommend="pandas")
    same = loaded.recommend(X[:9]).equals(model.recommend(X[:9]))
    print(f"Saved as {path.name}, {path.stat().st_size / 1024:.0f} KiB, and loaded again.")
    print(f"It recommends the same: {'yes' if same else 'no'}. Its statement:\n")
    print(loaded.privacy_spent_)

    with plt.rc_context(STYLE):
        draw(rows, options).savefig(options.output, bbox_inches="tight")


if __name__ == "__main__":
    main()
