"""`make demo`: a private recommender trained, used, measured and explained, in a screen or two.

    python -m skdpmf.commands.demo [--data RATINGS] [--items TITLES] [--rating-range 1 5]

Without --data it makes ratings. The notes on the ratings and the accuracies are computed from
private ratings: they are the curator's to see, not part of what the guarantee covers.
"""

import argparse
import textwrap
import time
from typing import Any

import numpy as np

from skdpmf import AdaptiveWeightALS, PrivacyBudget
from skdpmf.commands.terminal import (
    N_RANKED,
    POPULAR,
    Progress,
    doubts,
    found_features,
    least_liked,
    liked_entries,
    mean_predictions,
    used_features,
)
from skdpmf.data import make_ratings, ratings_to_matrix, read_ratings
from skdpmf.data.loaders import read_items
from skdpmf.evaluation import popularity, recall_at_k, rmse, split_table

__all__ = ["main"]


def main(arguments: list[str] | None = None) -> None:
    """Run the demonstration.

    arguments: command line; None: the process's own.
    """
    parser = argparse.ArgumentParser(prog="make demo", description=__doc__.splitlines()[0])
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
    _train(f"AdaptiveWeightALS with epsilon {budget.epsilon:g}", private, matrix)
    exact = AdaptiveWeightALS(PrivacyBudget.nonprivate(), **common)
    _train("the same without privacy", exact, matrix)
    _print_use(private.set_output(recommend="pandas"), matrix)
    private.set_output(recommend="default")
    _print_errors(X, Y, private, exact, budget)
    if options.data is None:
        print(
            "Made-up people choose items by popularity and not by taste, so no list finds many\n"
            "more than the most popular items do. Real people choose by taste: try DATA=file."
        )
    print("\nPrivacy of the first model")
    for line in private.privacy_spent_.summary().splitlines():
        print(textwrap.fill(line, 96, subsequent_indent="  "))
    print("print(model.privacy_spent_) has the full statement, with each release and its noise.")


def _load(path: str | None) -> tuple[Any, dict[str, Any]]:
    """Return a table of ratings, and what is known of its users and items without it."""
    if path is None:
        print("made-up ratings of made-up films (DATA=file takes yours)")
        data = make_ratings(4000, 400, density=0.15, random_state=0, as_frame=True)
        return data.ratings, {"users": data.matrix.users, "items": data.catalogue}
    print(f"reading {path}")
    return read_ratings(path), {}


def _train(label: str, model: AdaptiveWeightALS, X: Any) -> None:
    print(f"training {label}", flush=True)
    model.set_callbacks(Progress(model._n_rounds()))
    start = time.perf_counter()
    model.fit(X)
    print(f"  {time.perf_counter() - start:.1f} s")


def _print_errors(X: Any, Y: Any, private: Any, exact: Any, budget: PrivacyBudget) -> None:
    models = {
        f"AdaptiveWeightALS, epsilon {budget.epsilon:g}": private,
        "AdaptiveWeightALS, not private": exact,
    }
    errors = {name: rmse(Y.data, mean) for name, mean in mean_predictions(X, Y).items()}
    liked = liked_entries(Y, private.rating_range)
    lists = {POPULAR: popularity(X, X, N_RANKED)[0]}
    for name, model in models.items():
        errors[name] = rmse(Y.data, model.predict_entries(X, Y).data)
        lists[name] = model.recommend(X, N_RANKED)[0]
    recalls = {}
    if liked.nnz:
        recalls = {name: recall_at_k(liked, best, best.shape[1]) for name, best in lists.items()}
    print("\nOn the held-out ratings (for the curator's eyes only)")
    print(f"    RMSE  recall@{N_RANKED}")
    for name in [*(name for name in errors if name not in models), POPULAR, *models]:
        cells = [f"{found[name]:.4f}" if name in found else "-" for found in (errors, recalls)]
        print(f"  {cells[0]:>6}  {cells[1]:>9}  {name}")
    print(
        "RMSE is the error of predicted ratings: lower is better. "
        f"recall@{N_RANKED} is the share of a user's\nheld-out ratings above "
        f"{least_liked(private.rating_range):g} whose items are in a list of {N_RANKED}: higher is "
        "better."
    )


def _print_use(model: Any, matrix: Any) -> None:
    def print_list(table: Any) -> None:
        for _, entry in table.iterrows():
            print(f"  {entry['rank']}  {entry.get('title', entry['item'])}")

    names = matrix.items if matrix.titles is None else matrix.titles
    ratings = np.diff(matrix.X.indptr)
    row = matrix[[int(np.argsort(-ratings, kind="stable")[ratings.size // 2])]]
    best = np.argsort(-row.X.data, kind="stable")[:3]
    print("\nA typical user rated highest")
    for rating, item in zip(row.X.data[best], row.X.indices[best], strict=True):
        print(f"  {rating:g}  {names[item]}")
    print("and the private model recommends, from all ratings of this user,")
    print_list(model.recommend(row, n=5))
    liked = int(row.X.indices[best[0]])
    if model.n_components_ == 0:
        print(f"Similar to {names[liked]}: none, as this budget supports no factors.")
        return
    print(f"Similar to {names[liked]}, by the private model, are")
    print_list(model.similar_items([matrix.items[liked]], n=3))


if __name__ == "__main__":
    main()
