"""
Local privacy: nobody is trusted
================================

A company that promises not to look may be hacked, sold or ordered to look. Under *local* privacy
there is nothing to look at: a program on each user's device turns all of the user's ratings into
one randomised report, and that is all that ever leaves it. This example follows the report.

1. *The report.* Ann and Bob have opposite tastes, and an attacker who knows this catches
   one report and asks: was it Ann or Bob? The attacker learns what their reports look like by
   running devices of his own with their ratings, as anybody can. Two opposite histories are the
   hardest to hide, and epsilon bounds how often he is right, whatever he does. He also asks for a
   detail: did Ann rate her first film? A coin guesses that nearly as well.
2. *The server* learns no more than the attacker about each device. In the sum of all reports much
   of the noise cancels, and the sum shows how well each item is liked.
3. *The user.* The server publishes the items' means. The device adds its owner's own ratings and
   recommends; no answer goes back.

The picture on the right shows the cost. *Each user's own mean* predicts without any report, so
reports that predict worse are not worth sending. *Exact item means* would be collected without
privacy. The line with a trusted server has the same epsilon: there the sum gets its noise once,
instead of once on each device::

    python examples/plot_local_privacy.py --data ml-1m.parquet

The example takes 15 seconds on one core, and half a minute with MovieLens 1M, whose 6,040 users are
too few for local privacy below an epsilon of 8: nothing rises above the noise there, all items look
alike, and own means predict. ``local_devices.py`` in the same folder has a thousand devices report
to a real server, one that crashes.
"""

import argparse
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from skdpmf import AdaptiveWeightALS, LocalDPGDDR, PrivacyBudget
from skdpmf.data import make_ratings, ratings_to_matrix, read_ratings
from skdpmf.evaluation import PrivacyUtilityDisplay, rmse, split_ratings
from skdpmf.local import LocalAggregator, LocalDevice

BLUE, ORANGE, GREY = "#0072B2", "#D55E00", "#666666"
STYLE = {"axes.grid": True, "axes.spines.top": False, "axes.spines.right": False}
EPSILON = 4.0  # of the first two pictures
DELTA = 1e-5  # of the trusted server alone; the devices need none
N_FILMS = 20  # of Ann and Bob
ANN = range(10), [5, 4, 5, 4, 5, 1, 2, 1, 1, 2]
BOB = range(10, 20), [1, 2, 1, 1, 2, 5, 4, 5, 4, 5]


def reports(person, announcement, n):
    """Return what n devices with the same person's ratings send, a row each."""
    items, ratings = person
    known = {"n_items": N_FILMS, "rating_range": (1.0, 5.0), "epsilon": EPSILON}
    return np.array(
        [LocalDevice(items, ratings, **known).report(announcement).payload for _ in range(n)],
        dtype=float,
    )


def attack(n):
    """Guess who sent a report; return Ann's and Bob's scores, and the share of right guesses.

    The second share is of guesses whether the first film is rated.
    """
    announcement = LocalAggregator(N_FILMS, (1.0, 5.0), EPSILON).announcement
    ann, bob = (reports(person, announcement, n) for person in (ANN, BOB))  # to learn from
    direction, middle = ann.mean(axis=0) - bob.mean(axis=0), (ann + bob).mean(axis=0) / 2.0
    ann, bob = (reports(person, announcement, n) for person in (ANN, BOB))  # to guess
    scores = [(sent - middle) @ direction / np.linalg.norm(direction) for sent in (ann, bob)]
    who = ((scores[0] > 0.0).mean() + (scores[1] < 0.0).mean()) / 2.0
    film = ((ann[:, 0] > 0.0).mean() + (bob[:, 0] < 0.0).mean()) / 2.0
    return scores, who, film


def own_mean_error(X, Y):
    """Test RMSE of each user's own mean, which needs nothing but the user's own ratings."""
    counts = np.diff(X.indptr)
    sums = np.asarray(X.sum(axis=1)).ravel()
    means = np.where(counts > 0, sums / np.maximum(counts, 1), X.data.mean())
    return rmse(Y.data, np.repeat(means, np.diff(Y.indptr)))


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
    parser.add_argument("--output", type=Path, default=Path("local_privacy.png"))
    parser.add_argument("--shape", type=int, nargs=2, default=(20_000, 60), help="users, items")
    parser.add_argument("--n-jobs", type=int, help="threads")
    parser.add_argument("--n-components", type=int, default=8, help="largest rank")
    parser.add_argument("--epsilons", type=float, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--guesses", type=int, default=500, help="of each, Ann and Bob")
    options = parser.parse_args(arguments)
    X, Y = load(options)
    # random_state=0 to repeat the figure; a real release leaves it alone
    settings = {
        "n_components": options.n_components,
        "random_state": 0,
        "n_jobs": options.n_jobs,
    }
    plt.style.use(STYLE)
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(13.0, 4.2), layout="constrained")

    print("attack ...", file=sys.stderr)
    scores, who, film = attack(options.guesses)
    bound = np.exp(EPSILON) / (1.0 + np.exp(EPSILON))
    print_table(
        [f"one report, epsilon {EPSILON:g}", "guesses right"],
        [
            ("tossing a coin", "50.0 %"),
            ("did Ann rate her first film?", f"{film:.1%}"),
            ("Ann or Bob?", f"{who:.1%}"),
            ("no attacker is better than", f"{bound:.1%}"),
        ],
    )
    bins = np.linspace(*np.quantile(scores, [0.0, 1.0]), 41)
    left.hist(scores[0], bins, color=BLUE, alpha=0.6, label="Ann's device")
    left.hist(scores[1], bins, color=ORANGE, alpha=0.6, label="Bob's device")
    left.axvline(0.0, color=GREY, linestyle="--", linewidth=1.2)
    left.set(xlabel="how much a report looks like Ann's", ylabel="reports", xticks=[])
    left.set_title(f"What a device sends\n(ε = {EPSILON:g}: {who:.0%} guessed right)", loc="left")
    left.margins(y=0.25)
    left.legend(loc="upper center", ncols=2)

    print("one fit ...", file=sys.stderr)
    model = LocalDPGDDR(PrivacyBudget(EPSILON), **settings)
    print(f"\n{model.plan(n_items=X.shape[1])}\n")
    model.fit(X)
    exact = LocalDPGDDR(PrivacyBudget.nonprivate(), **settings).fit(X)
    # how high ratings are in general is left to each user's own mean
    true, learnt = (fit.item_means_ - fit.item_means_.mean() for fit in (exact, model))
    middle.plot(true, learnt, "o", color=BLUE, alpha=0.6)
    span = 1.1 * max(np.abs(true).max(), np.abs(learnt).max())
    middle.axline((0.0, 0.0), slope=1.0, color=GREY, linestyle="--", linewidth=1.2)
    middle.set(xlim=(-span, span), ylim=(-span, span))
    middle.set(xlabel="how much an item is liked, exactly", ylabel="as the server learns it")
    middle.set_title(f"What the server learns\n(of {X.shape[0]:,} devices)", loc="left")

    items, predicted = model.recommend(X[:1], n=5)
    listed = zip(items[0], predicted[0], exact.item_means_[items[0]], strict=True)
    print("What one user sees, computed on the device:")
    print_table(
        ["item", "predicted", "exact item mean"],
        [(int(item), float(score), float(mean)) for item, score, mean in listed],
    )

    print("error against epsilon ...", file=sys.stderr)
    errors = {"nobody is trusted": [], "a server is trusted": []}
    for epsilon in options.epsilons:
        alone = LocalDPGDDR(PrivacyBudget(epsilon), **settings)
        # the same promise as the devices': for any two histories of a user
        trusted = PrivacyBudget(epsilon, DELTA, neighbors="replace")
        together = AdaptiveWeightALS(trusted, **settings)
        for fits, estimator in zip(errors.values(), (alone, together), strict=True):
            fits.append(rmse(Y, estimator.fit(X).predict_entries(X, Y)))
    for name, fits in errors.items():
        display = PrivacyUtilityDisplay(
            options.epsilons, fits, name=name, score_name="test RMSE (rating units)"
        )
        display.plot(right)
    own_mean, item_means = own_mean_error(X, Y), rmse(Y, exact.predict_entries(X, Y))
    lines = (own_mean, "each user's own mean", 3), (item_means, "exact item means", -11)
    for level, text, above in lines:
        right.axhline(level, color=GREY, linewidth=1.2, linestyle="--", zorder=0)
        right.annotate(
            text,
            (0.0, level),
            xycoords=("axes fraction", "data"),
            xytext=(4, above),
            textcoords="offset points",
            color=GREY,
        )
    right.set_xlabel("ε (one user's whole history, replaced)")
    right.set_title(f"What it costs\n({data_name(options)})", loc="left")
    right.margins(y=0.1)
    right.set_xticks(options.epsilons, [f"{epsilon:g}" for epsilon in options.epsilons])
    right.legend()

    print()
    rows = [("own mean", "0", own_mean)]
    rows += [
        (name, f"{epsilon:g}", error)
        for name, fits in errors.items()
        for epsilon, error in zip(options.epsilons, fits, strict=True)
    ]
    rows += [("exact item means", "inf", item_means)]
    print_table(["", "epsilon", "test RMSE"], rows)
    figure.savefig(options.output, bbox_inches="tight")


if __name__ == "__main__":
    main()
