"""
Learning item factors from one noisy bit a round: the curve of a paper, made again
==================================================================================

This is the shape of figure 9 of Shin, Kim, Shin and Xiao (2018): test RMSE against the number of
rounds k of their Algorithm 2. In every round each device reports one sign, of one random value of
its randomly projected gradient, with epsilon / k; the server moves the item factors V by the
estimated mean; the devices move their own user factors, which nobody else sees.

The error falls with k, but not because of the reports: with an item step of 0, where V stays
random, the curve is the same. From positive random factors the predictions start far
below the ratings, and each device makes up for that with its own ratings alone. In the end they are
worse than one constant for everybody.

`LocalDPGDDR` is the other line: one report of each device with its whole epsilon, on item means,
which it leaves alone where noise hides them; a user's own mean never leaves the device::

    python examples/plot_local_figure9.py --data ml-1m.parquet

The example takes six seconds with made-up ratings, and half a minute with MovieLens 1M.
benchmarks/bench_local_figure9.py takes ratings of the paper's size, and
docs/benchmarks/local-figure9.md has its results.
"""

import argparse
import sys
from dataclasses import replace
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from skdpmf import LocalDPGDDR, PrivacyBudget
from skdpmf.data import make_ratings, ratings_to_matrix, read_ratings
from skdpmf.evaluation import rmse, split_ratings
from skdpmf.mechanisms.device_reports import gradient as solver
from skdpmf.mechanisms.device_reports.randomizers import DeviceStreams
from skdpmf.privacy.sampler.noise import derived_key

BLUE, ORANGE, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "#666666"
STYLE = {"axes.grid": True, "axes.spines.top": False, "axes.spines.right": False}
RATING_RANGE = (1.0, 5.0)
PUBLIC = derived_key(0, "figure 9, public")  # starting factors and projection: known to everybody
STEP, EXACT_STEP = 1e-5, 0.01  # of the items; with larger ones the noise of the reports takes over
DAMPING = 10.0


def curve(X, Y, options, epsilon, step, back_projection="unbiased"):
    """Return the test RMSE after a fit of k rounds, for each k."""
    (n_users, n_items), d = X.shape, options.n_components
    settings = solver.Settings(
        n_components=d,
        max_iter=1,
        step_size=step,
        user_step=0.03,
        item_penalty=0.0,
        user_penalty=0.0,
        projection_dim=max(1, n_items // 10),  # as in the paper
        back_projection=back_projection,
    )
    initial = [np.abs(part) for part in solver.initial_factors(PUBLIC, n_users, n_items, d, 0.3)]
    projection = solver.Projection(PUBLIC, settings.projection_dim, n_items, back_projection)
    row = np.repeat(np.arange(n_users), np.diff(Y.indptr))
    errors = []
    for k in options.rounds:
        model = solver.fit(
            X,
            replace(settings, max_iter=k),
            epsilon,
            # to repeat the figure; real devices draw keys of their own
            DeviceStreams(derived_key(0, f"figure 9, {k} rounds")),
            initial=initial,
            projection=projection,
            rounds=range(k),
            n_jobs=options.n_jobs,
        )
        predicted = np.einsum("nd,nd->n", model.user_factors[row], model.factors[Y.indices])
        errors.append(rmse(Y.data, predicted))
    print(
        f"epsilon {epsilon:g}, step {step:g}, {back_projection}: {errors[-1]:.4f}", file=sys.stderr
    )
    return errors


def levels_of(X, Y, options):
    """Return the test RMSE of what does without rounds."""
    middle = sum(RATING_RANGE) / 2
    row = np.repeat(np.arange(X.shape[0]), np.diff(X.indptr))
    sums = np.bincount(row, weights=X.data - middle, minlength=X.shape[0])
    own = middle + sums / (np.diff(X.indptr) + DAMPING)
    model = LocalDPGDDR(
        PrivacyBudget(options.epsilon),
        rating_range=RATING_RANGE,
        random_state=0,  # to repeat the figure; a real fit leaves it alone
        n_jobs=options.n_jobs,
    ).fit(X)
    return {
        "constant, the exact mean": rmse(Y.data, np.full(Y.nnz, X.data.mean())),
        "own damped mean": rmse(Y.data, np.repeat(own, np.diff(Y.indptr))),
        "LocalDPGDDR": rmse(Y, model.predict_entries(X, Y)),
    }


def draw(curves, levels, options):
    """Plot the curves over k and the rest as lines."""
    looks = (
        (GREY, "o", 10, "-"),
        (ORANGE, "s", 6, "-"),
        (ORANGE, "^", 4, "--"),
        (BLUE, "v", 5, ":"),
    )
    figure, axes = plt.subplots(figsize=(8.0, 4.3))
    for (name, errors), (color, marker, size, line) in zip(curves.items(), looks, strict=True):
        axes.plot(
            options.rounds, errors, line, marker=marker, markersize=size, color=color, label=name
        )
    styles = (("--", GREY, 1.4), ("-.", GREY, 1.4), ("-", GREEN, 2.4))
    for (name, error), (line, color, width) in zip(levels.items(), styles, strict=True):
        order = 1 if color == GREEN else 1.5  # the own mean lies on it where noise hides all
        axes.axhline(error, linestyle=line, color=color, lw=width, zorder=order, label=name)
    axes.margins(y=0.1)
    axes.set_xscale("log")
    axes.set_xticks(options.rounds, [str(k) for k in options.rounds])
    axes.minorticks_off()
    axes.set_xlabel(f"rounds k (ε = {options.epsilon:g} over all of them)")
    axes.set_ylabel("test RMSE (rating units)")
    axes.set_title(data_name(options), loc="left")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.13), ncols=3, fontsize=9)
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
    parser.add_argument("--output", type=Path, default=Path("local_figure9.png"))
    parser.add_argument("--shape", type=int, nargs=2, default=(2000, 300), help="users, items")
    parser.add_argument("--n-jobs", type=int, help="threads")
    parser.add_argument("--n-components", type=int, default=15)
    parser.add_argument("--rounds", type=int, nargs="+", default=[1, 2, 5, 10, 20, 50])
    parser.add_argument("--epsilon", type=float, default=0.1)
    options = parser.parse_args(arguments)
    X, Y = load(options)

    curves = {
        "no reports": curve(X, Y, options, np.inf, 0.0),
        "private, unbiased": curve(X, Y, options, options.epsilon, STEP),
        "private, pinv": curve(X, Y, options, options.epsilon, STEP, "pinv"),
        f"not private, step {EXACT_STEP:g}": curve(X, Y, options, np.inf, EXACT_STEP),
    }
    levels = levels_of(X, Y, options)
    rounds = [str(k) for k in options.rounds]
    print_table(("k", *curves), list(zip(rounds, *curves.values(), strict=True)))
    print_table(("without rounds", "test RMSE"), list(levels.items()))
    with plt.rc_context(STYLE):
        draw(curves, levels, options).savefig(options.output, bbox_inches="tight")


if __name__ == "__main__":
    main()
