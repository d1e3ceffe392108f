"""Peers from PyPI, and a published recipe, beside this package under one protocol.

All have the same ratings, split and metrics (skdpmf.evaluation). A method without privacy is shown
with its default settings and with the best of a small grid, chosen on a held-out tenth of the
training part, and fitted again on all of it. Private fits have their default settings:
choosing by the ratings would cost privacy. The tables:

- ratings: test RMSE on split 0 of bench_utility.py, or another (--split);
- recipe: the settings of published_recipe.py in our solver, and the epsilon of its noise;
- clicks: Recall@20 and NDCG@100 of the held-out users of bench_clicks.py, split 1;
- item-means: diffprivlib's mean of each item, with one rating protected, beside `DPItemMeans`.

Ratings come from --data FILE or $SKDPMF_DATA/ml-1m.parquet; without either, or with --synthetic,
they are made up. A peer that cannot be imported has a row that says why.

    SKDPMF_DATA=folder python benchmarks/bench_peers.py --seeds 3
    python benchmarks/bench_peers.py --data synth10m --tables recipe --seeds 1
"""

import argparse
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from bench_clicks import clicks_of_ratings, with_spread
from bench_utility import LARGE, data_path, print_head, print_row, split
from peer_models import CLICKS, RATINGS, Model, diffprivlib_means, missing
from published_recipe import DELTA, METHODS, RECIPES, accounting_rows
from sklearn.model_selection import ParameterGrid
from threadpoolctl import threadpool_limits

from skdpmf import AdaptiveWeightALS, DPItemMeans, Pooled, PrivacyBudget
from skdpmf.data import make_ratings, ratings_to_matrix, read_ratings
from skdpmf.evaluation import ndcg_at_k, recall_at_k, rmse, split_ratings, split_users

VALIDATION = 0.1  # of the training ratings, or users
ITEM_MEANS_EPSILONS = (0.1, 1.0, 4.0, 20.0)


class Part(NamedTuple):
    """What a model is fitted on, what it is asked for, and what was true."""

    X: Any
    asked: Any
    truth: Any


class Task(NamedTuple):
    """A comparison: where settings are chosen, where they are measured, and by what."""

    choice: Part
    test: Part
    measure: Callable  # (truth, answer) -> figures; the last one chooses
    largest: bool  # whether it is good
    fixed: dict  # settings of all models of this package


def rating_task(X: Any, Y: Any, scale: tuple) -> Task:
    inner, held_out = split_ratings(X, test_size=VALIDATION, random_state=0)

    def measure(truth: Any, predicted: np.ndarray) -> list[float]:
        return [rmse(truth.data, np.clip(predicted, *scale))]

    parts = Part(inner, held_out, held_out), Part(X, Y, Y)
    return Task(*parts, measure, False, {"rating_range": scale})


def click_task(R: Any, seed: int) -> Task:
    X, *held_out = split_users(clicks_of_ratings(R), random_state=seed)
    inner, *validation = split_users(X, test_size=VALIDATION, random_state=0)

    def measure(truth: Any, ranked: np.ndarray) -> list[float]:
        return [recall_at_k(truth, ranked, 20), ndcg_at_k(truth, ranked, min(100, X.shape[1]))]

    return Task(Part(inner, *validation), Part(X, *held_out), measure, True, {})


def figures(task: Task, model: Model, part: Part, **settings: Any) -> np.ndarray:
    if model.package == "skdpmf":
        settings = task.fixed | settings
    found = np.array(task.measure(part.truth, model.run(part.X, part.asked, **settings)))
    print(model.name, settings, np.round(found, 4), file=sys.stderr, flush=True)
    return found


def chosen_settings(task: Task, model: Model) -> dict:
    """The best of the grid on the ratings or users that are held out of the training part."""
    sign = -1.0 if task.largest else 1.0
    tried = [
        (sign * figures(task, model, task.choice, **settings)[-1], number, settings)
        for number, settings in enumerate(ParameterGrid(model.grid))
    ]
    return min(tried)[-1]


def compare(task: Task, models: Any, options: Any, epsilons: Any) -> list[tuple]:
    """Model, why it did not run, the settings chosen, and figures by column."""
    rows = []
    for model in models:
        cells: dict = {}
        if reason := missing(model.needs):
            rows.append((model, reason, {}, cells))
            continue
        settings = chosen_settings(task, model) if model.grid else {}
        cells["defaults"] = [figures(task, model, task.test)]
        cells["tuned"] = [figures(task, model, task.test, **settings)] if settings else []
        for epsilon in epsilons if model.private else ():
            budget = PrivacyBudget(epsilon, DELTA)
            # Seeded, so that the table can be made again; a real release leaves random_state alone.
            cells[epsilon] = [
                figures(task, model, task.test, budget=budget, random_state=seed)
                for seed in range(options.seeds)
            ]
        rows.append((model, "", settings, cells))
    return rows


def print_comparison(rows: Any, column: int, epsilons: Any) -> None:
    print_head(
        "model",
        "from",
        "not private, defaults",
        "not private, tuned",
        *(f"epsilon {epsilon:g}" for epsilon in epsilons),
        "settings chosen",
    )
    for model, reason, settings, cells in rows:
        if reason:
            dashes = ["-"] * (2 + len(epsilons))
            print_row(model.name, model.package, *dashes, f"not run: {reason}")
            continue
        shown = [
            with_spread([found[column] for found in cells[key]]) if cells.get(key) else "-"
            for key in ("defaults", "tuned", *epsilons)
        ]
        if not model.private:
            shown[2:] = ["not private"] * len(epsilons)
        words = ", ".join(f"{name} {value}" for name, value in settings.items())
        words += f" ({model.note})" * bool(model.note)
        print_row(model.name, model.package, *shown, words)
    print()


def print_ratings(task: Task, options: Any) -> None:
    X, Y = task.test.X, task.test.asked
    print(
        f"## Ratings: test RMSE\n\n{X.shape[0]:,} users x {X.shape[1]:,} items, {X.nnz:,} training "
        f"and {Y.nnz:,} test ratings; delta {DELTA:g}, {options.seeds} noise seeds. Settings are "
        f"chosen on {task.choice.asked.nnz:,} of the training ratings.\n"
    )
    print_comparison(compare(task, RATINGS, options, options.epsilons), 0, options.epsilons)


def print_clicks(task: Task, options: Any) -> None:
    X, known, targets = task.test
    epsilons = options.click_epsilons
    rows = compare(task, CLICKS, options, epsilons)
    print(
        f"## Clicks\n\n{X.shape[0]:,} training users x {X.shape[1]:,} items, {X.nnz:,} clicks; "
        f"{known.shape[0]:,} held-out users, {targets.nnz:,} targets; delta {DELTA:g}, "
        f"{options.seeds} noise seeds. Settings are chosen by NDCG@100 on {VALIDATION:.0%} of the "
        "training users.\n"
    )
    for column, metric in enumerate(("Recall@20", "NDCG@100")):
        print(f"### {metric}\n")
        print_comparison(rows, column, epsilons)


def print_recipe(task: Task, options: Any) -> None:
    print("## What the recipe's noise is worth\n")
    print_head(
        "epsilon, as published",
        "its noise s",
        "exact epsilon of s",
        "with ratings as large as they are",
        "and with the mean's sensitivity",
        "s by exact accounting",
    )
    for row in accounting_rows():
        print_row(*row)
    print(f"\n## The recipe in our solver: test RMSE, {options.seeds} noise seeds\n")
    rows = {
        f"recipe, {name}{words}": lambda recipe, name=name, more=more: recipe.params(name) | more
        for words, more in (("", {}), (", item means", {"solver__item_means": True}))
        for name in METHODS
    }
    rows['solver="dpals", defaults'] = lambda recipe: {"solver": "dpals"}
    rows["defaults"] = lambda recipe: {"solver": Pooled(list_share=None)}
    print_head("method", *(f"epsilon {epsilon:g}" for epsilon in RECIPES))
    for name, params in rows.items():
        cells = []
        for epsilon, recipe in RECIPES.items():
            budget, found = PrivacyBudget(epsilon, DELTA), []
            for seed in range(options.seeds):
                model = AdaptiveWeightALS(budget, random_state=seed, **task.fixed)
                model.set_params(**params(recipe)).fit(task.test.X)
                predicted = model.predict_entries(task.test.X, task.test.asked)
                found.append(rmse(task.test.truth, predicted))
            cells.append(with_spread(found))
            print(name, epsilon, cells[-1], file=sys.stderr, flush=True)
        print_row(name, *cells)
    print()


def print_item_means(task: Task, options: Any) -> None:
    """Test RMSE of item means and users' own offsets, the means protecting one rating."""
    part, rows = task.test, {}

    def theirs(epsilon: float, seed: int) -> np.ndarray:
        settings = {"epsilon": epsilon, "random_state": seed, **task.fixed}
        return diffprivlib_means(part.X, part.asked, **settings)

    def ours(epsilon: float, seed: int, **kind: Any) -> np.ndarray:
        budget = PrivacyBudget(epsilon, unit="rating", **kind)
        model = DPItemMeans(budget, random_state=seed, **task.fixed).fit(part.X)
        return model.predict_entries(part.X, part.asked).data

    rows["diffprivlib, tools.mean", "replace a value; who rated what is public"] = theirs
    for neighbors in ("replace", "add-remove"):
        for delta, noise in ((0.0, "Laplace noise"), (DELTA, f"Gaussian noise, delta {DELTA:g}")):
            name = f"DPItemMeans, {noise}", f"{neighbors} a rating"
            rows[name] = partial(ours, delta=delta, neighbors=neighbors)
    rows["DPItemMeans", "not private"] = lambda epsilon, seed: ours(np.inf, 0)
    print(f"## Item means, one rating protected: test RMSE, {options.seeds} noise seeds\n")
    print_head("means", "neighbours", *(f"epsilon {e:g}" for e in ITEM_MEANS_EPSILONS))
    reason = missing(("diffprivlib.tools",))
    for name, predict in rows.items():
        if predict is theirs and reason:
            print_row(*name, f"not run: {reason}", *["-"] * (len(ITEM_MEANS_EPSILONS) - 1))
            continue
        cells = [
            [task.measure(part.truth, predict(epsilon, seed))[0] for seed in range(options.seeds)]
            for epsilon in ITEM_MEANS_EPSILONS
        ]
        print_row(*name, *map(with_spread, cells))
    print()


def rating_matrices(options: Any) -> tuple[Any, Any, Any, tuple]:
    """All ratings, training and test part, and the scale."""
    path = data_path(options)
    scale = tuple(options.rating_range)
    if str(path) in LARGE:
        make, scale = LARGE[str(path)]
        R = make()
    elif options.synthetic or path is None or not path.exists():
        why = "" if options.synthetic else f"no ratings file ({path}): --data or $SKDPMF_DATA; "
        print(f"{why}made-up ratings, {options.shape[0]:,} x {options.shape[1]:,}\n")
        R = make_ratings(*options.shape, density=0.2, random_state=0)
    else:
        frame = read_ratings(path)
        return ratings_to_matrix(frame).X, *split(frame, options.split), scale
    return R, *split_ratings(R, random_state=options.split), scale


TABLES = {
    "ratings": print_ratings,
    "recipe": print_recipe,
    "clicks": print_clicks,
    "item-means": print_item_means,
}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--data", type=Path, help=f"or {', '.join(LARGE)}; default: $SKDPMF_DATA/ml-1m.parquet"
    )
    parser.add_argument("--synthetic", action="store_true", help="made-up ratings")
    parser.add_argument("--shape", type=int, nargs=2, default=[2000, 300], help="of those")
    parser.add_argument("--rating-range", type=float, nargs=2, default=[1.0, 5.0])
    parser.add_argument("--epsilons", type=float, nargs="+", default=[1.0, 4.0, 20.0])
    parser.add_argument("--click-epsilons", type=float, nargs="+", default=[1.0, 5.0, 20.0])
    parser.add_argument("--seeds", type=int, default=3, help="noise seeds")
    parser.add_argument("--split", type=int, default=0, help="of the ratings")
    parser.add_argument("--tables", nargs="+", choices=TABLES, default=list(TABLES))
    options = parser.parse_args(arguments)
    R, X, Y, scale = rating_matrices(options)
    ratings = rating_task(X, Y, scale)
    with threadpool_limits(1, "blas"):
        for name in options.tables:
            TABLES[name](click_task(R, 1) if name == "clicks" else ratings, options)


if __name__ == "__main__":
    main()
