"""`make demo`: a private recommender trained, measured, explained and used, in one screen.

    python -m skdpmf.demo [--data RATINGS] [--items TITLES] [--rating-range 1 5] [--epsilon 4]

Without --data it makes ratings. The notes on the ratings and the accuracies are computed from
private ratings: they are the curator's to see, not part of what the guarantee covers.
"""

import argparse
import time
from typing import Any

import numpy as np

from skdpmf import AdaptiveWeightALS, PrivacyBudget
from skdpmf._terminal import (
    N_RANKED,
    POPULAR,
    Progress,
    doubts,
    found_features,
    least_liked,
    liked_entries,
    mean_predictions,
    most_popular,
    used_features,
)
from skdpmf.data import make_ratings, ratings_to_matrix, read_ratings
from skdpmf.data.loaders import read_items
from skdpmf.evaluation import recall_at_k, rmse, split_table

__all__ = ["main"]


def main(arguments: list[str] | None = None) -> None:
    """Run the demonstration.

    arguments: command line; None: the process's own.
    """
    parser = argparse.ArgumentParser(prog="skdpmf.demo", description=__doc__.splitlines()[0])
    parser.add_argument("--data", help="ratings: CSV, TSV, .dat, Parquet, MovieLens folder or zip")
    parser.add_argument("--items", help="the catalogue: ids and titles, in the same formats")
    words = "the scale of the ratings (1 5)"
    parser.add_argument("--rating-range", nargs=2, type=float, default=(1.0, 5.0), help=words)
    parser.add_argument("--epsilon", type=float, default=4.0)
    parser.add_argument("--delta", type=float, default=1e-5)
    options = parser.parse_args(arguments)

    rating_range = tuple(options.rating_range)
    frame, declared = _load(options.data)
    if options.items is not None:
        declared["items"] = read_items(options.items)
    features = found_features(declared["items"]) if "items" in declared else None
    if features is not None:
        print(used_features(features))
    train, test = split_table(frame, test_size=0.1, random_state=0)
    # undeclared or not, items that are held out altogether have a column
    matrix = ratings_to_matrix(train, **{"items": sorted(frame["item"].unique()), **declared})
    matrix.undeclared = tuple(name for name in ("users", "items") if name not in declared)
    X = matrix.X
    test = test[test["user"].isin(matrix.users)]
    Y = ratings_to_matrix(test, users=matrix.users, items=matrix.items).X
    print(
        f"{X.shape[0]:,} users x {X.shape[1]:,} items, {X.nnz:,} ratings to train on, {Y.nnz:,} "
        f"held out, scale {rating_range[0]:g} to {rating_range[1]:g}\n"
    )

    budget = PrivacyBudget(options.epsilon, options.delta)
    common: dict[str, Any] = {"rating_range": rating_range, "item_features": features, "n_jobs": -1}
    private = AdaptiveWeightALS(budget, **common)
    try:
        for doubt in doubts(X, private):
            print(f"note: {doubt}")
    except ValueError as error:
        parser.error(str(error))
    _train("private", private, matrix)
    exact = _train("non-private", AdaptiveWeightALS(PrivacyBudget.nonprivate(), **common), matrix)
    _print_errors(X, Y, private, exact, budget)
    print(f"\n{private.privacy_spent_}\n")
    _print_use(private.set_output(recommend="pandas"), matrix)


def _load(path: str | None) -> tuple[Any, dict[str, Any]]:
    """Return a table of ratings, and what is known of its users and items without it."""
    if path is None:
        print("synthetic ratings (pass DATA=file for yours)")
        data = make_ratings(4000, 400, density=0.15, random_state=0, as_frame=True)
        return data.ratings, {"users": data.matrix.users, "items": data.catalogue}
    print(f"reading {path}")
    return read_ratings(path), {}


def _train(label: str, model: AdaptiveWeightALS, X: Any) -> AdaptiveWeightALS:
    print(f"training AdaptiveWeightALS, {label} ({model._n_rounds()} rounds)")
    model.set_callbacks(Progress(model._n_rounds()))
    start = time.perf_counter()
    model.fit(X)
    print(f"  {time.perf_counter() - start:.1f} s, compilation included where it was the first")
    return model


def _print_errors(X: Any, Y: Any, private: Any, exact: Any, budget: PrivacyBudget) -> None:
    models = {
        f"AdaptiveWeightALS, epsilon {budget.epsilon:g}": private,
        "AdaptiveWeightALS, not private": exact,
    }
    errors = {name: rmse(Y.data, mean) for name, mean in mean_predictions(X, Y).items()}
    liked = liked_entries(Y, private.rating_range)
    lists = {POPULAR: most_popular(X)}
    for name, model in models.items():
        errors[name] = rmse(Y.data, model.predict_entries(X, Y).data)
        lists[name] = model.recommend(X, N_RANKED)[0]
    recalls = {}
    if liked.nnz:
        recalls = {name: recall_at_k(liked, best, best.shape[1]) for name, best in lists.items()}
    print("\nOn the held-out ratings (curator's eyes only)")
    print(f"    RMSE  recall@{N_RANKED}")
    for name in [*(name for name in errors if name not in models), POPULAR, *models]:
        cells = [f"{found[name]:.4f}" if name in found else "-" for found in (errors, recalls)]
        print(f"  {cells[0]:>6}  {cells[1]:>9}  {name}")
    print(
        f"recall@{N_RANKED} is the share of a user's held-out ratings above "
        f"{least_liked(private.rating_range):g} whose items are in a list of {N_RANKED}.\nMeans "
        "make no lists. The models rank items by how often people choose to rate them, and by\n"
        "this user's predicted rating."
    )


def _print_use(model: Any, matrix: Any) -> None:
    def print_list(table: Any) -> None:
        for _, entry in table.iterrows():
            print(f"  {entry['score']:.2f}  {entry.get('title', entry['item'])}")

    names = matrix.items if matrix.titles is None else matrix.titles
    ratings = np.diff(matrix.X.indptr)
    row = matrix[[int(np.argsort(-ratings, kind="stable")[ratings.size // 2])]]
    liked = row.X.indices[np.argsort(-row.X.data, kind="stable")[:5]]
    print(f"a typical user rated highest: {', '.join(str(names[j]) for j in liked)}")
    print("recommended from the released model and this user's own row:")
    print_list(model.recommend(row, n=5))
    popular = int(liked[0])
    if model.n_components_ == 0:
        print(f"similar to {names[popular]}: none, as this budget supports no factors")
        return
    print(f"similar to {names[popular]}, from the released factors:")
    print_list(model.similar_items([matrix.items[popular]], n=5))


if __name__ == "__main__":
    main()
