"""
What everybody knows of a film costs no privacy
===============================================

The genres of a film are known without anybody's ratings, so that a private model may use them as
they are. Here made-up people have tastes for genres, and rate some films each. On the left is the
error of the same private fit with and without `item_features`, at each budget. Then a new film of
every genre comes out, which nobody has rated: `with_items` adds it to the fitted model, without
ratings and without budget. On the right is each person's taste for a genre, and the model's
prediction of the new film of this genre for that person.

::

    python examples/plot_item_features.py

The example takes some seconds on one core. The page *What is public* says which features qualify.
"""

import argparse
import sys

import matplotlib.pyplot as plt
import numpy as np
from scipy import sparse

from skdpmf import AdaptiveWeightALS, PrivacyBudget
from skdpmf.evaluation import rmse

STYLE = {"axes.grid": True, "axes.spines.top": False, "axes.spines.right": False}
LABELS = {"without features": "#666666", "with genres": "#0072B2"}
N_GENRES = 5


def made_up(n_users, n_films, seed=0):
    """Return known and held-out ratings, the films' genres and the people's tastes for them."""
    rng = np.random.default_rng(seed)
    genres = np.eye(N_GENRES)[rng.integers(0, N_GENRES, n_films)]
    tastes = 0.6 * rng.normal(size=(n_users, N_GENRES))
    quality = 0.3 * rng.normal(size=n_films) + genres @ (0.3 * rng.normal(size=N_GENRES))
    noise = 0.7 * rng.normal(size=(n_users, n_films))
    ratings = np.clip(np.rint(3.3 + quality + tastes @ genres.T + noise), 1, 5)
    part = rng.random(ratings.shape)
    known, hidden = (sparse.csr_array(ratings * own) for own in (part < 0.2, part > 0.9))
    return known, hidden, genres, tastes


def main(arguments=None):
    parser = argparse.ArgumentParser(description="What item features are worth.")
    words = "users and films of the made-up ratings (2000 150)"
    parser.add_argument("--shape", nargs=2, type=int, default=(2000, 150), help=words)
    parser.add_argument("--epsilons", nargs="+", type=float, default=[0.5, 1, 2, 4, 8, 16])
    parser.add_argument("--n-components", type=int, default=8, help="factors (8)")
    parser.add_argument("--output", help="write the figure to this file")
    options = parser.parse_args(arguments)
    X, Y, genres, tastes = made_up(*options.shape)

    errors = {label: [] for label in LABELS}
    print("| epsilon | " + " | ".join(LABELS) + " |\n| --- | --- | --- |")
    for epsilon in options.epsilons:
        for label, features in zip(LABELS, (None, genres), strict=True):
            # Seeded, so that the figure can be made again; a real release leaves it alone.
            model = AdaptiveWeightALS(
                PrivacyBudget(epsilon, 1e-5),
                n_components=options.n_components,
                item_features=features,
                random_state=0,
            ).fit(X)
            errors[label].append(rmse(Y, model.predict_entries(X, Y)))
        cells = " | ".join(f"{errors[label][-1]:.3f}" for label in LABELS)
        print(f"| {epsilon:g} | {cells} |")
    print(f"\nIt holds if: {model.privacy_spent_.assumptions[-1]}")

    grown = model.with_items(np.eye(N_GENRES))
    n_users, n_films = X.shape
    wide = sparse.csr_array((X.data, X.indices, X.indptr), shape=(n_users, n_films + N_GENRES))
    predicted = grown.predict(wide)[:, n_films:]
    together = np.corrcoef(tastes.ravel(), predicted.ravel())[0, 1]
    print(f"new films: predictions follow tastes with a correlation of {together:.2f}")

    with plt.rc_context(STYLE):
        figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.8), layout="constrained")
        for label, color in LABELS.items():
            left.plot(options.epsilons, errors[label], "o-", color=color, label=label)
        left.set(xscale="log", xlabel="epsilon, for one person", ylabel="RMSE of held-out ratings")
        left.set_xticks(options.epsilons, [f"{epsilon:g}" for epsilon in options.epsilons])
        left.minorticks_off()
        left.legend()
        right.plot(tastes.ravel(), predicted.ravel(), ".", ms=2, alpha=0.3, color="#0072B2")
        right.set(xlabel="taste for the genre, stars", ylabel="predicted rating of the new film")
        right.set_title("films that nobody has rated", fontsize=10)
    if options.output:
        figure.savefig(options.output, dpi=150)
        print(f"wrote {options.output}", file=sys.stderr)
    else:
        plt.show()


if __name__ == "__main__":
    main()
