"""
To each their own epsilon: personal privacy levels
==================================================

Some people want more protection than the rest. Everybody could be given the smallest epsilon that
anybody asks for, at the price of a worse model for all; or the careful ones could be left out.
`DPMFSampler` does better: ``fit(X, user_epsilon=levels)`` takes one epsilon for each user, and
keeps a promise to each.

The noise is made for the budget's epsilon, the largest level. A user of a smaller level gets less
influence on every release: a share of mu(level) / mu(budget), where mu is the strength of an
epsilon for Gaussian noise (`PrivacyBudget.mu`). The same noise hides a smaller influence better. A
user of level 0 has no influence at all, as if the user were not there.

The first printed table has the promise of each level: `epsilon_for` of the statement, and how often
an attacker who knows everything else guesses right whether the user is in the data. This is at most
Phi(mu / 2), where a coin is right in 50 % of the cases.

The figure has the costs, as means over several fits. On the left, the share of careful users grows:
the error goes from that of the largest level for all to that of the smallest, and stays below the
error of a fit without the careful users. On the right a quarter are careful, and each group has its
own error: how much larger is it than with the largest level for all? Careful users lose about as
much as the others, or a little more, because the model has learnt less from them: a level limits
the influence of a user's ratings on the shared model, while recommendations are made from this
model and all of the user's own ratings.

Levels are public, and must not depend on the ratings: "more protection for those who have rated
this film" would reveal who has. Here they are drawn at random::

    python examples/plot_personal_levels.py
    python examples/plot_personal_levels.py --data ml-1m.parquet

The example takes ten to twenty seconds, and two minutes with MovieLens 1M.

Source of the idea: Z. Liu, Y.-X. Wang, A. Smola, "Fast Differentially Private Matrix
Factorization", RecSys 2015. The guarantee at every step is this package's.
"""

import argparse
import itertools
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from scipy.stats import norm

from skdpmf import DPMFSampler, PrivacyBudget
from skdpmf.data import make_ratings, ratings_to_matrix, read_ratings
from skdpmf.evaluation import rmse, split_ratings

BLUE, ORANGE, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "#666666"
STYLE = {"axes.grid": True, "axes.spines.top": False, "axes.spines.right": False}
DELTA = 1e-5
SHARES = (0.0, 0.1, 0.25, 0.5, 0.75, 1.0)  # of careful users
CAREFUL = 0.25  # that of the panel by groups


def fit(X, levels, options, seed):
    """Fit with a level for each user."""
    return DPMFSampler(
        PrivacyBudget(options.loose, DELTA),
        n_components=options.n_components,
        random_state=seed,  # to repeat the figure; a real release leaves it alone
        n_jobs=options.n_jobs,
    ).fit(X, user_epsilon=levels)


def mean_errors(X, Y, levels, groups, options):
    """Return the test error of each group of users, as means over fits."""
    found = []
    for seed in range(options.seeds):
        predicted = fit(X, levels, options, seed).predict_entries(X, Y)
        found.append([rmse(Y[group], predicted[group]) for group in groups])
    return np.mean(found, axis=0)


def print_promises(statement, levels):
    """Print what a user of each level is promised."""
    largest = PrivacyBudget(statement.epsilon, DELTA).mu
    rows = []
    for level in levels:
        mu = PrivacyBudget(level, DELTA).mu if level else 0.0
        share, right = f"{mu / largest:.2f}", f"{100 * norm.cdf(mu / 2):.1f}"
        rows.append((f"{level:g}", f"{statement.epsilon_for(level):.4g}", share, right))
    print_table(("level", "epsilon", "influence", "guessed right, %"), rows)


def draw(errors, options):
    """Plot the error of all against the share of careful users, and what each group loses."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(10.0, 3.8), layout="constrained")
    for level, name, look in (
        (options.strict, f"they get ε = {options.strict:g}", "o-"),
        (0.0, "they are left out", "s--"),
    ):
        shares = [share for share, of in errors if of == level]
        all_users = [errors[share, level][0] for share in shares]
        left.plot([100 * share for share in shares], all_users, look, color=BLUE, label=name)
    left.set(xlabel="careful users, %", ylabel="test RMSE of all users (stars)")
    left.set_title(data_name(options), loc="left", fontsize=10)
    left.legend(loc="upper left")
    policies = {
        "to each their own": (CAREFUL, options.strict),
        "careful ones left out": (CAREFUL, 0.0),
        f"ε = {options.strict:g} for all": (1.0, options.strict),
    }
    lost = [errors[policy] - errors[0.0, options.strict] for policy in policies.values()]
    rows = range(len(policies))
    right.axvline(0.0, color=GREY, linewidth=1.2)
    right.plot([e[1] for e in lost], rows, "o", color=ORANGE, label=f"the careful {CAREFUL:.0%}")
    right.plot([e[2] for e in lost], rows, "D", color=GREEN, mfc="none", ms=8, label="the others")
    right.set_yticks(rows, list(policies))
    right.set(xlabel=f"test RMSE more than with ε = {options.loose:g} for all")
    right.set_ylim(len(policies) - 0.5, -0.5)
    right.legend(loc="upper right")
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
    parser.add_argument("--output", type=Path, default=Path("personal_levels.png"))
    parser.add_argument("--shape", type=int, nargs=2, default=(2000, 300), help="users, items")
    parser.add_argument("--n-jobs", type=int, help="threads")
    parser.add_argument("--n-components", type=int, default=8)
    parser.add_argument("--strict", type=float, default=1.0, help="epsilon of careful users")
    parser.add_argument("--loose", type=float, default=4.0, help="epsilon of the others")
    parser.add_argument("--seeds", type=int, default=4)
    options = parser.parse_args(arguments)
    X, Y = load(options)
    n_users = X.shape[0]
    # who becomes careful first; levels must not depend on ratings
    places = np.random.default_rng(0).permutation(n_users) / n_users
    groups = places < 1.0, places < CAREFUL, places >= CAREFUL

    levels = np.where(places < CAREFUL, options.strict, options.loose)
    statement = fit(X, levels, options, seed=0).privacy_spent_
    print_promises(statement, (options.loose, options.strict, 0.0))

    errors = {}
    for share, level in itertools.product(SHARES, (options.strict, 0.0)):
        if (share, level) != (1.0, 0.0):  # which leaves nobody
            print(f"level {level:g} for {share:.0%} of the users ...", file=sys.stderr)
            levels = np.where(places < share, level, options.loose)
            errors[share, level] = mean_errors(X, Y, levels, groups, options)
    columns = ("careful users", "their level", "test RMSE", "of the first quarter", "of the others")
    rows = [
        (f"{share:.0%}", f"{level:g}", *map(float, found))
        for (share, level), found in errors.items()
    ]
    print()
    print_table(columns, rows)
    with plt.rc_context(STYLE):
        draw(errors, options).savefig(options.output, bbox_inches="tight")


if __name__ == "__main__":
    main()
