"""
How large a table of normals Langevin dynamics needs
====================================================

This is the shape of figure 4 of Liu, Wang and Smola (2015). Their sampler draws a table of normals
once and reads each row's noise from a random place in it. The table is fast, and gives no privacy:
given the table, there are finitely many outputs, so the package refuses it with a private budget.
Here, without privacy, tables of growing size are compared with exact noise.

The error hardly depends on the table, which therefore proves little. The law of the draws does: the
normals that lie side by side in a small table are the noise of the same components again and again,
whose factors become correlated. On the right, the chain runs without any ratings. It should then
return its prior, in which all components are independent::

    python examples/plot_noise_table.py --data ml-1m.parquet

The example takes two minutes with MovieLens 1M.
"""

import argparse
import statistics
import sys
import time
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import scipy.sparse as sp

from skdpmf import DPMFSampler, PosteriorDraw, PrivacyBudget
from skdpmf.data import make_ratings, ratings_to_matrix, read_ratings
from skdpmf.evaluation import rmse, split_ratings
from skdpmf.mechanisms.posterior_draw.langevin import LangevinChain
from skdpmf.mechanisms.posterior_draw.target import Target
from skdpmf.privacy.sampler.noise import NoiseSource, derived_key

BLUE, ORANGE, GREEN = "#0072B2", "#D55E00", "#009E73"
STYLE = {"axes.grid": True, "axes.spines.top": False, "axes.spines.right": False}
STEP_SIZE = 4.0  # coarse: the default, .5, needs eight times the rounds
N_PRIOR_USERS = 4000


def fits(X, Y, options, n_draws, **noise):
    """Return the test RMSE and the seconds of a fit, one of each a seed."""
    errors, seconds = [], []
    for seed in range(options.seeds):
        model = DPMFSampler(
            PrivacyBudget.nonprivate(),
            guarantee=PosteriorDraw(
                sampler="sgld",
                weight_cap=1.0,
                item_bias=True,
                step_size=STEP_SIZE,
                n_draws=n_draws,
                **noise,
            ),
            n_components=options.n_components,
            max_iter=options.rounds,
            random_state=seed,
            n_jobs=options.n_jobs,
        )
        begin = time.perf_counter()
        model.fit(X)
        seconds.append(time.perf_counter() - begin)
        errors.append(rmse(Y, model.predict_entries(X, Y)))
    print(
        f"{noise or 'exact'}, {n_draws} draws: {statistics.mean(errors):.4f}, {seconds[-1]:.1f} s",
        file=sys.stderr,
    )
    return errors, seconds


def largest_correlations(options, table_size):
    """Largest correlation of two components over the users of a chain without ratings, by seed."""
    n_users, k = N_PRIOR_USERS, options.n_components
    target = Target(
        sp.csr_array((n_users, 1), dtype=np.float64),
        weights=np.zeros(n_users),
        inverse_temperature=0.0,
        bound=np.inf,
        n_components=k,
        user_std=1.0,
        item_std=1.0,
        bias_std=0.0,
    )
    found = []
    for seed in range(options.seeds):
        chain = LangevinChain(
            target,
            NoiseSource(derived_key(seed)),
            max_weight=1.0,
            max_user_weight=1.0,
            table_size=table_size,
        )
        for t in range(options.rounds):
            chain.sweep(t)
        found.append(float(np.abs(np.corrcoef(chain.state.U.T) - np.eye(k)).max()))
    return found


def draw(sizes, measured, labels, options):
    """Plot what was measured against table size, and exact noise as a line."""
    figure, panels = plt.subplots(1, 2, figsize=(9.2, 3.9), layout="constrained")
    looks = ((panels[0], ORANGE, "s"), (panels[0], BLUE, "o"), (panels[1], GREEN, "^"))
    for (axes, color, marker), label, values in zip(looks, labels, measured, strict=True):
        means = [statistics.mean(values[size]) for size in sizes]
        for size in sizes:
            axes.plot([size] * len(values[size]), values[size], marker, color=color, alpha=0.35)
        axes.plot(sizes, means, "-", color=color, label=f"{label}, table")
        level = statistics.mean(values[None])
        axes.axhline(level, color=color, linestyle="--", linewidth=1.2, label=f"{label}, exact")
    for axes in panels:
        axes.set_xscale("log", base=2)
        axes.set_xlabel("normals in the table")
        axes.legend(loc="best", fontsize=9)
    panels[0].set_ylabel("test RMSE (rating units)")
    panels[1].set_ylabel("|correlation| of two components")
    panels[1].set_ylim(bottom=0.0)
    panels[0].set_title(data_name(options), loc="left", fontsize=10)
    panels[1].set_title("a chain without ratings: its prior", loc="left", fontsize=10)
    title = f"{options.n_components} factors, no privacy; {options.seeds} seeds and their mean"
    figure.suptitle(title, x=0.01, ha="left", fontsize=11)
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
    parser.add_argument("--output", type=Path, default=Path("noise_table.png"))
    parser.add_argument("--shape", type=int, nargs=2, default=(2000, 300), help="users, items")
    parser.add_argument("--n-jobs", type=int, help="threads")
    parser.add_argument("--n-components", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--n-draws", type=int, default=150, help="of the average: last rounds")
    parser.add_argument("--powers", type=int, nargs="+", default=[4, 6, 8, 10, 12, 14, 16, 18, 20])
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args(arguments)
    X, Y = load(options)
    sizes = [2**power for power in options.powers]

    seconds, single, average, correlation = {}, {}, {}, {}
    for size in [*sizes, None]:  # None: exact noise
        noise = {} if size is None else {"noise": "table", "table_size": size}
        single[size], seconds[size] = fits(X, Y, options, 1, **noise)
        average[size], _ = fits(X, Y, options, options.n_draws, **noise)
        correlation[size] = largest_correlations(options, size)
    measured = single, average, correlation
    rows = []
    for label, size in [
        *zip([f"2^{p}" for p in options.powers], sizes, strict=True),
        ("exact", None),
    ]:
        cells = [f"{f(values[size]):.4f}" for values in measured for f in (np.mean, np.std)]
        rows.append((label, *cells, f"{statistics.median(seconds[size]):.2f}"))
    names = ("one draw", "sd", "average", "sd", "correlation", "sd")
    print_table(("table", *names, "seconds a fit"), rows)
    labels = ("one draw", f"average of {options.n_draws}", "largest of all pairs")
    with plt.rc_context(STYLE):
        draw(sizes, measured, labels, options).savefig(options.output, bbox_inches="tight")


if __name__ == "__main__":
    main()
