"""
How much epsilon? What it protects, and what it costs
=====================================================

Nobody can choose epsilon for you, but both sides of the choice can be seen beforehand.

**What it protects** (upper half of the figure) follows from epsilon and delta alone, whatever the
ratings. Eve sees the model and everybody's ratings but Alice's, and wants to know whether Alice's
are in it. Before she looks, her chance to guess right is 50 %; how far does the model raise it? If
(epsilon, delta) is all that is known, to (e^epsilon + delta) / (1 + e^epsilon) at most. For the
noise of these estimators more is known: Eve has to distinguish a normal variable of mean 0 from one
of mean mu = `budget.mu`, so even the best attack is right with a chance of Phi(mu / 2) only, where
Phi is the normal distribution function. mu answers other questions too: if Eve may be wrong about
1 % of the people who are not in the data, she finds at most Phi(Phi^-1(0.01) + mu) of those who are
("found" in the table).

**What it costs** (lower half) depends on the ratings, above all on how many users there are. Points
are the error on users whom no fit has seen, for two estimators, and bars reach over three splits of
the users, which differ in the same way for all fits; dashed lines are without privacy. Look where
the curve becomes flat, and where the factors of `AdaptiveWeightALS` begin to beat the item means of
`DPItemMeans`.

**Do not draw the lower half from the ratings that you are going to protect.** Every fit in it
spends, the fits without privacy without limit, and a choice of epsilon by these exact errors leaks
as well. The last printed line has the total of the private fits alone. `PrivateSearchCV` does not
help here: it chooses other parameters *at* a given epsilon. Instead,

- draw it from made-up ratings, as here, with as many users and items as yours (`--shape`), or from
  public ones like them (`--data`);
- or settle the upper half first, with the people who are to be protected, and accept the accuracy
  that follows. `plan` states the noise in advance, without data.

::

    python examples/plot_choose_epsilon.py
    python examples/plot_choose_epsilon.py --shape 6000 1000

The example takes ten to twenty seconds, and a minute with MovieLens 1M.
"""

import argparse
import math
import sys
from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.ticker import PercentFormatter
from scipy.optimize import brentq
from scipy.stats import norm
from sklearn.model_selection import ShuffleSplit

from skdpmf import AdaptiveWeightALS, DPItemMeans, PrivacyBudget
from skdpmf.data import make_ratings, ratings_to_matrix, read_ratings
from skdpmf.evaluation import PrivacyUtilityDisplay, split_ratings

BLUE, ORANGE, GREY = "#0072B2", "#D55E00", "#666666"
STYLE = {"axes.grid": True, "axes.spines.top": False, "axes.spines.right": False}
DELTA = 1e-5
FALSE_ALARMS = 0.01


def by_any_noise(epsilon):
    """Return the chance to guess right that epsilon and delta alone leave to a prior of 1/2."""
    return (math.exp(epsilon) + DELTA) / (1.0 + math.exp(epsilon))


def by_this_noise(epsilon):
    """Return the same for Gaussian noise."""
    return norm.cdf(PrivacyBudget(epsilon, DELTA).mu / 2.0)


def found(epsilon):
    """Return the chance to find who is in it, at the given share of false alarms."""
    return norm.cdf(norm.ppf(FALSE_ALARMS) + PrivacyBudget(epsilon, DELTA).mu)


def draw_protection(axes, epsilons):
    """Plot how often Eve guesses right, at most."""
    looks = {"color": ORANGE, "marker": "s", "linestyle": ":"}
    any_noise, this_noise = map(by_any_noise, epsilons), map(by_this_noise, epsilons)
    axes.plot(epsilons, list(any_noise), **looks, label="all that (ε, δ) alone allows")
    axes.plot(epsilons, list(this_noise), "o-", color=BLUE, label="best attack on this noise")
    axes.axhline(0.5, color=GREY, linestyle="--", label="a coin")
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.set(ylabel="Eve guesses right", ylim=(0.47, 1.03))
    axes.set_title(f"What it protects (one user, δ = {DELTA:g})", loc="left", fontsize=10)


def draw_cost(axes, X, options):
    """Fit, score and plot; return the mean errors of each estimator, the last without privacy."""
    budget = PrivacyBudget(1.0, DELTA)  # epsilon is set below
    settings = {"random_state": 0, "n_jobs": options.n_jobs}  # to repeat the figure
    factors = AdaptiveWeightALS(budget, n_components=options.n_components, **settings)
    errors = []
    for estimator in (factors, DPItemMeans(budget, **settings)):
        print(f"{type(estimator).__name__} ...", file=sys.stderr)
        display = PrivacyUtilityDisplay.from_estimator(
            estimator,
            X,
            epsilons=(*options.epsilons, math.inf),
            cv=ShuffleSplit(options.splits, test_size=0.2, random_state=0),
            negate_score=True,  # the score is minus the RMSE
            score_name="RMSE (stars)",
            ax=axes,
        )
        errors.append(display.scores.mean(axis=1))
    axes.set_title(f"What it costs ({data_name(options)})", loc="left", fontsize=10)
    return errors


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
    parser.add_argument("--output", type=Path, default=Path("choose_epsilon.png"))
    parser.add_argument("--shape", type=int, nargs=2, default=(2000, 300), help="users, items")
    parser.add_argument("--n-jobs", type=int, help="threads")
    parser.add_argument("--n-components", type=int, default=8)
    parser.add_argument("--epsilons", type=float, nargs="+", default=[0.5, 1, 2, 4, 8, 16])
    parser.add_argument("--splits", type=int, default=3, help="of the users, 4 to 1")
    options = parser.parse_args(arguments)
    options.epsilons.sort()
    X, _ = load(options)

    with plt.rc_context(STYLE):
        figure, (above, below) = plt.subplots(
            2, figsize=(7.6, 6.6), sharex=True, layout="constrained"
        )
        draw_protection(above, options.epsilons)
        errors = draw_cost(below, X, options)
        above.legend(loc="upper left")
        below.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=2)
        below.set_xticks(options.epsilons, [f"{epsilon:g}" for epsilon in options.epsilons])
        figure.savefig(options.output, bbox_inches="tight")

    columns = ("epsilon", "mu", "any noise, %", "this noise, %", "found, %", "factors", "means")
    rows = [
        (
            f"{epsilon:g}",
            f"{PrivacyBudget(epsilon, DELTA).mu:.2f}",
            *(f"{100 * f(epsilon):.1f}" for f in (by_any_noise, by_this_noise, found)),
            *map(float, pair),
        )
        for epsilon, *pair in zip(options.epsilons, *(e[:-1] for e in errors), strict=True)
    ]
    rows.append(("none", "", *3 * ("100.0",), *(float(e[-1]) for e in errors)))
    print_table(columns, rows)

    squares = sum(PrivacyBudget(epsilon, DELTA).mu ** 2 for epsilon in options.epsilons)
    fits = len(errors) * options.splits
    mu = math.sqrt(fits * squares)
    together = brentq(lambda epsilon: PrivacyBudget(epsilon, DELTA).mu - mu, 0.01, 1e4)
    print(f"\nThe {fits * len(options.epsilons)} private fits together: epsilon {together:.1f}.")


if __name__ == "__main__":
    main()
