"""What the examples share: ratings, the command line, the table and the look of a figure."""

import argparse
import sys
from pathlib import Path

import matplotlib
import numpy as np

from skdpmf.data import make_ratings, ratings_to_matrix, read_ratings
from skdpmf.evaluation import split_ratings, split_table

matplotlib.use("Agg")  # figures go to files

# Of Okabe and Ito: told apart by colour-blind readers, and by their lightness in grey.
BLUE, ORANGE, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "#666666"
STYLE = {
    "figure.dpi": 100,
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.7,
    "legend.frameon": False,
    "lines.linewidth": 1.8,
    "lines.markersize": 5,
}


def make_parser(doc, output):
    """Return a parser with the options of all examples."""
    parser = argparse.ArgumentParser(description=doc.partition("\n")[0])
    parser.add_argument("--data", type=Path, help="ratings file; without one, made-up ratings")
    parser.add_argument("--output", type=Path, default=Path(output), help="PNG or SVG to write")
    parser.add_argument(
        "--shape",
        type=int,
        nargs=2,
        default=(2000, 300),
        metavar=("USERS", "ITEMS"),
        help="of the made-up ratings",
    )
    parser.add_argument("--n-jobs", type=int, default=None, help="threads")
    return parser


def load(options, **made_up):
    """Return training and test matrices: a tenth of the ratings is held out.

    Further arguments are those of `make_ratings`, for ratings that are made up.
    """
    if options.data is None:
        return split_ratings(
            make_ratings(*options.shape, random_state=0, **made_up), random_state=0
        )
    frame = read_ratings(options.data)
    users, items = np.unique(frame["user"]), np.unique(frame["item"])
    parts = split_table(frame, test_size=0.1, random_state=0)
    return tuple(ratings_to_matrix(part, users=users, items=items).X for part in parts)


def own_means(X, Y):
    """Predict the entries of Y by each user's own mean of X, which needs no release."""
    counts = np.diff(X.indptr)
    means = X.sum(axis=1) / np.maximum(counts, 1)
    means[counts == 0] = X.data.mean()
    return np.repeat(means, np.diff(Y.indptr))


def data_name(options):
    """Return what a title says of the ratings."""
    return "made-up ratings" if options.data is None else options.data.stem


def note(text):
    """Tell of progress."""
    print(text, file=sys.stderr, flush=True)


def print_table(names, rows):
    """Print aligned columns, as Markdown."""
    cells = [names, *([f"{x:.4g}" if isinstance(x, float) else str(x) for x in r] for r in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    cells.insert(1, ["-" * width for width in widths])
    for row in cells:
        aligned = (cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        print("| " + " | ".join(aligned) + " |")


def save(figure, path):
    """Write a figure, small enough for a repository."""
    figure.savefig(path, bbox_inches="tight")
    note(f"wrote {path}")
