"""Gain of public item features: RMSE and lists with them, with useless ones, without any.

    SKDPMF_DATA=folder python benchmarks/bench_item_features.py --seeds 5
    python benchmarks/bench_item_features.py --data ml-1m.parquet --items items.parquet

Features are genres and five periods of years, as `skdpmf.data.item_features` makes them. "noise" is
20 columns of normal numbers, one draw for all fits. Splits are those of bench_utility (ratings),
bench_clicks (clicks) and bench_lists (lists); for "cold" a tenth of the items is hidden wholly from
the fit. Prints Markdown tables.
"""

import time
from functools import partial
from pathlib import Path

import numpy as np
from bench_lists import cell, measured
from harness import SGD_SETTINGS, data_path, parser, print_head, print_row
from ratings import (
    ALONE,
    KINDS,
    budget_of,
    clicks_of_ratings,
    found_by,
    liked_of,
    own_mean_error,
    split,
)
from scipy import sparse

from skdpmf import (
    AdaptiveWeightALS,
    CacheSGDFactorizer,
    DPCovarianceRecommender,
    LocalDPGDDR,
)
from skdpmf.data import item_features, ratings_to_matrix, read_ratings
from skdpmf.data.loaders import read_items
from skdpmf.evaluation import popularity, recall_at_k, rmse, split_users

EPSILONS = (0.5, 1.0, 4.0, 8.0, 20.0, np.inf)
CLICK_EPSILONS = (0.5, 1.0, 5.0, 20.0)
LIST_EPSILONS = (0.5, 1.0, 2.0, 4.0, 8.0, 20.0, np.inf)
MOST_LOCAL = 16.0  # epsilon of a device's report
SGD = partial(CacheSGDFactorizer, **SGD_SETTINGS)
ESTIMATORS = {"AdaptiveWeightALS, list_share=None": ALONE, **KINDS, "CacheSGDFactorizer": SGD}
CLICKS = DPCovarianceRecommender, AdaptiveWeightALS


def model_of(kind, epsilon, seed, features, **settings):
    settings |= {"item_features": features, "random_state": seed}
    if kind is SGD:
        return kind(**settings)
    return kind(budget_of(epsilon, 0.0 if kind is LocalDPGDDR else 1e-5), **settings)


def fits(kind, epsilon, seeds, features, X, **settings):
    for seed in range(seeds if np.isfinite(epsilon) else 1):
        yield model_of(kind, epsilon, seed, features, **settings).fit(X)


def print_errors(X, Y, variants, seeds):
    print_head("RMSE", "features", *[f"epsilon {epsilon:g}" for epsilon in EPSILONS], "seconds")
    for name, kind in ESTIMATORS.items():
        for label, features in variants.items():
            cells, seconds = [], []
            for epsilon in EPSILONS:
                alone = kind is SGD and np.isfinite(epsilon)
                if alone or (kind is LocalDPGDDR and MOST_LOCAL < epsilon < np.inf):
                    cells.append("")
                    continue
                models = fits(kind, epsilon, seeds, features, X)
                begin = time.perf_counter()
                errors = [rmse(Y, model.predict_entries(X, Y)) for model in models]
                seconds.append((time.perf_counter() - begin) / len(errors))
                cells.append(f"{np.mean(errors):.4f}")
            print_row(name, label, *cells, f"{np.median(seconds):.2f}")


def print_clicks(X, variants, seeds):
    train, known, hidden = split_users(X, test_size=0.1, random_state=1)
    heads = [f"epsilon {epsilon:g}" for epsilon in CLICK_EPSILONS]
    print_head("Recall@20 / NDCG@100 of clicks", "features", *heads)
    for kind in CLICKS:
        for label, features in variants.items():
            cells = []
            for epsilon in CLICK_EPSILONS:
                found = []
                for model in fits(kind, epsilon, seeds, features, train, feedback="implicit"):
                    found.append(found_by(model.recommend(known, 100)[0], hidden))
                cells.append(" / ".join(f"{value:.4f}" for value in np.mean(found, axis=0)))
            print_row(kind.__name__, label, *cells)


def print_lists(X, variants, seeds):
    """Lists and errors for users whom the model never saw, beside what needs no model."""
    train, known, hidden = split_users(X, random_state=0)
    liked = liked_of(hidden)
    popular = found_by(popularity(train, known, 100)[0], liked)[0]
    found = {
        (name, label): [
            np.array([measured(model, known, hidden, liked) for model in models])
            for epsilon in LIST_EPSILONS
            for models in [fits(ESTIMATORS[name], epsilon, seeds, features, train)]
        ]
        for name in ("DPItemMeans", "AdaptiveWeightALS")
        for label, features in variants.items()
    }
    heads = [f"epsilon {epsilon:g}" for epsilon in LIST_EPSILONS]
    levels = (
        ("Recall@20", 0, "most popular", popular),
        ("RMSE", 2, "each user's own mean", own_mean_error(known, hidden)),
    )
    for measure, column, level, value in levels:
        print_head(measure, "features", *heads)
        print_row(level, "", *[""] * (len(heads) - 1), f"{value:.4f}")
        for names, runs in found.items():
            print_row(*names, *(cell(values[:, column]) for values in runs))
        print()


def print_cold(X, Y, features, seeds):
    """Hide a tenth of the items: as columns without ratings, and as items added after the fit."""
    n_items = X.shape[1]
    cold = np.sort(np.random.default_rng(0).choice(n_items, n_items // 10, replace=False))
    order = np.concatenate((np.setdiff1d(np.arange(n_items), cold), cold))
    both, n_warm = sparse.csr_array((X + Y)[:, order]), n_items - cold.size
    known = sparse.csr_array(sparse.csr_array(X)[:, order][:, :n_warm])
    wide = sparse.csr_array((known.data, known.indices, known.indptr), shape=X.shape)
    places = np.arange(n_warm, n_items)
    hidden = sparse.csr_array(both[:, places])
    hidden = sparse.csr_array((hidden.data, hidden.indices + n_warm, hidden.indptr), shape=X.shape)
    liked, F = liked_of(hidden), features[order]
    print(f"each user's own mean: {own_mean_error(known, hidden):.4f}\n")
    print_head(
        *("epsilon", "cold items", "RMSE", "Recall@20 among them", "Recall@20 among all items")
    )
    for epsilon in (1.0, 4.0, np.inf):
        for label, given, added in (
            ("unrated, no features", None, False),
            ("unrated, features", F, False),
            ("with_items", F[:n_warm], True),
        ):
            X_fit, found = known if added else wide, []
            for model in fits(AdaptiveWeightALS, epsilon, seeds, given, X_fit):
                grown = model.with_items(F[n_warm:]) if added else model
                lists = [grown.recommend(wide, 20, candidates=among)[0] for among in (places, None)]
                recalls = [recall_at_k(liked, best, 20) for best in lists]
                found.append((rmse(hidden, grown.predict_entries(wide, hidden)), *recalls))
            print_row(f"{epsilon:g}", label, *(f"{value:.4f}" for value in np.mean(found, axis=0)))


PARSER = parser(
    __doc__,
    data=None,
    items=None,  # the catalogue; without: ml-1m-items.parquet beside the ratings
    seeds=3,
    parts=["ratings", "clicks", "lists", "cold"],
)


def main(arguments=None):
    options = PARSER.parse_args(arguments)
    path = data_path(options)
    if path is None:
        PARSER.exit(0, "no ratings file: --data or $SKDPMF_DATA\n")
    frame = read_ratings(path)
    X, Y = split(frame, 0)
    ids = np.unique(frame["item"])
    catalogue = options.items or Path(path).with_name("ml-1m-items.parquet")
    features = item_features(read_items(catalogue)).loc[ids].to_numpy()
    noise = np.random.default_rng(5).normal(size=(len(ids), 20))
    variants = {"none": None, "genres, years": features, "noise": noise}
    if "ratings" in options.parts:
        constant = np.ones((len(ids), 1))
        print_errors(X, Y, {**variants, "constant": constant}, options.seeds)
        print()
    ratings = ratings_to_matrix(frame, items=ids).X
    if "clicks" in options.parts:
        print_clicks(clicks_of_ratings(ratings), variants, options.seeds)
        print()
    if "lists" in options.parts:
        chosen = {label: variants[label] for label in ("none", "genres, years")}
        print_lists(ratings, chosen, options.seeds)
    if "cold" in options.parts:
        print_cold(X, Y, features, options.seeds)


if __name__ == "__main__":
    main()
