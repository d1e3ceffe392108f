"""
Accuracy against epsilon: one private draw, and private steps
=============================================================

This is the shape of figure 7 of Liu, Wang and Smola (2015): test RMSE against epsilon at 16
factors.

- "One posterior draw" is the paper's mechanism: one draw from a posterior as hot as epsilon
  demands. Its guarantee holds if the chain has converged, which nobody can prove. Every draw is
  shown twice: at its epsilon by the bound that this package proves, and at its epsilon by the
  paper's theorem. The latter is 8 times as large: the proof gains a factor of 4, and another 2
  because only items' factors are released. The last draw is at the temperature of the ratings' own
  noise; a larger epsilon makes no colder draw.
- "Private at every step" is this package's default: the steps themselves are noisy, and
  (epsilon, delta) holds whether or not anything has converged.

Epsilon protects one user's whole history (add or remove one user)::

    python examples/plot_privacy_accuracy.py --data ml-1m.parquet

The example takes about two minutes on two cores with MovieLens 1M, and one without data.
"""

import argparse
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from skdpmf import DPMFSampler, PrivacyBudget
from skdpmf.data import make_ratings, ratings_to_matrix, read_ratings
from skdpmf.evaluation import rmse, split_ratings
from skdpmf.mechanisms.posterior_draw.guarantee import item_loss_bound, loss_bound

BLUE, ORANGE, GREY = "#0072B2", "#D55E00", "#666666"
STYLE = {"axes.grid": True, "axes.spines.top": False, "axes.spines.right": False}
DELTA = 1e-5  # of "every step"; the posterior draw needs none
# The paper's theorem says 4 a B of a draw that spends a B_V: 200 ratings a user, errors up to 4.
PAPER_FACTOR = 4.0 * loss_bound(200, 2.0, 0.0) / item_loss_bound(200, 2.0, 0.0)


def fit(X, Y, options, budget, **parameters):
    """Return the test RMSE and the epsilon that was spent."""
    model = DPMFSampler(
        budget,
        n_components=options.n_components,
        random_state=0,  # to repeat the figure; a real release leaves it alone
        n_jobs=options.n_jobs,
        **parameters,
    ).fit(X)
    error, spent = rmse(Y, model.predict_entries(X, Y)), model.privacy_spent_.epsilon
    print(
        f"{parameters.get('guarantee', 'every-step')}, epsilon {spent:.4g}: {error:.4f}",
        file=sys.stderr,
    )
    return error, spent


def draw(steps, draws, limit, own_mean, options):
    """Plot (epsilon, error) pairs of both guarantees between the two limits."""
    figure, axes = plt.subplots(figsize=(8.0, 4.3))
    axes.plot(*np.transpose(steps), "o-", color=BLUE, label=f"private at every step, δ = {DELTA:g}")
    epsilons, errors = np.transpose(draws)
    axes.plot(epsilons, errors, "s-", color=ORANGE, label="one posterior draw, proved bound")
    label = "same draws, paper's accounting"
    axes.plot(PAPER_FACTOR * epsilons, errors, "s:", color=ORANGE, mfc="white", label=label)
    for level, text in ((limit, "no privacy"), (own_mean, "each user's own mean")):
        axes.axhline(level, color=GREY, linewidth=1.2, linestyle="--", zorder=0)
        axes.annotate(
            text,
            (0.0, level),
            xycoords=("axes fraction", "data"),
            xytext=(4, 3),
            textcoords="offset points",
            color=GREY,
        )
    axes.set_xscale("log")
    axes.margins(y=0.08)
    axes.set_xlabel("ε (one user's whole history, add or remove)")
    axes.set_ylabel("test RMSE (rating units)")
    axes.set_title(f"{data_name(options)}, {options.n_components} factors", loc="left")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.13), ncols=3)
    return figure


def load(options):
    """Return training and test ratings, of the file or made up: a tenth is held out."""
    if options.data is None:
        ratings = make_ratings(*options.shape, random_state=0)
    else:
        ratings = ratings_to_matrix(read_ratings(options.data)).X
    return split_ratings(ratings, random_state=0)


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
    """Fit, print and plot."""
    parser = argparse.ArgumentParser(description=__doc__.strip().partition("\n")[0])
    parser.add_argument("--data", type=Path, help="ratings file; without one, made-up ratings")
    parser.add_argument("--output", type=Path, default=Path("privacy_accuracy.png"))
    parser.add_argument("--shape", type=int, nargs=2, default=(2000, 300), help="users, items")
    parser.add_argument("--n-jobs", type=int, help="threads")
    parser.add_argument("--n-components", type=int, default=16)
    parser.add_argument(
        "--epsilons", type=float, nargs="+", default=[0.25, 0.5, 1, 2, 4, 8, 16, 32]
    )
    parser.add_argument(
        "--draw-epsilons", type=float, nargs="+", default=[4, 16, 64, 128, 256, 512, 1250]
    )
    parser.add_argument("--sweeps", type=int, default=None, help="of the posterior's chain")
    options = parser.parse_args(arguments)
    X, Y = load(options)
    posterior = {"guarantee": "posterior", "max_iter": options.sweeps}

    own_mean = rmse(Y.data, own_means(X, Y))
    steps = [fit(X, Y, options, PrivacyBudget(e, DELTA))[::-1] for e in options.epsilons]
    draws = [fit(X, Y, options, PrivacyBudget(e), **posterior)[::-1] for e in options.draw_epsilons]
    limit, _ = fit(X, Y, options, PrivacyBudget.nonprivate())  # the steps without noise

    rows = [("every step", float(epsilon), "", float(error)) for epsilon, error in steps]
    rows += [("draw", float(e), f"{PAPER_FACTOR * e:.4g}", float(error)) for e, error in draws]
    rows += [("no privacy", np.inf, "", limit), ("own mean", 0.0, "", own_mean)]
    print_table(("mechanism", "epsilon", "paper's epsilon", "test RMSE"), rows)
    with plt.rc_context(STYLE):
        draw(steps, draws, limit, own_mean, options).savefig(options.output, bbox_inches="tight")


if __name__ == "__main__":
    main()
