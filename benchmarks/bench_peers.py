"""Peers from PyPI beside this package under one protocol: test RMSE of predicted ratings.

A method without privacy is shown with its default settings and with the best of a small grid,
chosen on a held-out tenth of the training part. Private fits have their default settings: choosing
by the ratings would cost privacy. Ratings come from --data FILE or $SKDPMF_DATA/ml-1m.parquet, or
are made up. A library that is not installed has a row that says so.

    SKDPMF_DATA=folder python benchmarks/bench_peers.py --seeds 3
"""

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from harness import SGD_SETTINGS, note, parser, print_head, print_row, spread
from ratings import ALONE, KINDS, budget_of, print_set, splits_of
from sgd_solvers import Cornac, Surprise, at_entries, missing, rows_of
from sklearn.model_selection import ParameterGrid
from threadpoolctl import threadpool_limits

from skdpmf import CacheSGDFactorizer
from skdpmf.evaluation import rmse, split_ratings

VALIDATION = 0.1  # of the training ratings
SCALE = (1.0, 5.0)
PARSER = parser(
    __doc__,
    data=None,
    shape=[2000, 300],  # of made-up ratings
    epsilons=[1.0, 4.0, 20.0],
    seeds=3,
)


class Model(NamedTuple):
    """A row of the table: what is called, and the grid of its settings without privacy.

    predict(X, Y, **settings) is fitted on X, and gives predictions at the stored entries of Y, same
    users, in their order. Settings have the names of the library that is called.
    """

    name: str
    package: str
    predict: Callable
    grid: dict[str, list]
    private: bool = False  # predict takes a `budget` and a `random_state`


def surprise_svd(X, Y, *, n_factors=100, n_epochs=20, **settings):
    solver = Surprise(X)
    solver.start(n_factors, 1)
    solver.fit(settings, n_epochs)
    return at_entries(Y, solver.model())


def surprise_baseline(X, Y, *, reg_u=15, reg_i=10):
    from surprise import BaselineOnly

    trainset, by_item = Surprise(X).trainset, X.tocsc()
    trainset.ir = {  # which SVD has no need of
        item: list(zip(by_item.indices[a:b].tolist(), by_item.data[a:b].tolist(), strict=True))
        for item, (a, b) in enumerate(pairwise(by_item.indptr))
    }
    fitted = BaselineOnly({"method": "als", "reg_u": reg_u, "reg_i": reg_i}, verbose=False)
    fitted.fit(trainset)
    return trainset.global_mean + fitted.bu[rows_of(Y)] + fitted.bi[Y.indices]


def cornac_mf(X, Y, *, k=10, max_iter=20, **settings):
    solver = Cornac(X)
    solver.start(k, 1)
    solver.fit(settings, max_iter)
    return at_entries(Y, solver.model())


def sgd(X, Y, **settings):
    settings = {"random_state": 0, **SGD_SETTINGS, **settings}
    return CacheSGDFactorizer(**settings).fit(X).predict_entries(X, Y).data


def private(name, X, Y, *, budget=None, **settings):
    """One of our private estimators, without privacy unless a budget is given."""
    kind = ALONE if name == "AdaptiveWeightALS" else KINDS[name]
    return kind(budget or budget_of(np.inf), **settings).fit(X).predict_entries(X, Y).data


RANKS = [16, 64]
ALPHAS = {"n_components": RANKS, "alpha": [0.5, 1.0, 2.0]}
DAMPED = {"n_components": RANKS, "user_damping": [10.0, 20.0, 40.0]}
OURS = {
    "AdaptiveWeightALS": ALPHAS,
    "DPMFSampler": ALPHAS,
    "DPCovarianceRecommender": DAMPED,
    "DPItemMeans": {"user_damping": [5.0, 10.0, 20.0]},
}
MODELS = (
    Model(
        "BaselineOnly",
        "scikit-surprise",
        surprise_baseline,
        {"reg_u": [5, 10, 20], "reg_i": [2, 5, 10]},
    ),
    Model(
        "SVD",
        "scikit-surprise",
        surprise_svd,
        {"n_factors": RANKS, "reg_all": [0.02, 0.05, 0.1], "n_epochs": [20, 60]},
    ),
    Model(
        "MF, with biases",
        "cornac",
        cornac_mf,
        {"k": RANKS, "lambda_reg": [0.02, 0.05, 0.1], "max_iter": [20, 60]},
    ),
    Model(
        "CacheSGDFactorizer", "skdpmf", sgd, {"n_components": RANKS, "alpha": [0.02, 0.04, 0.08]}
    ),
    *(
        Model(name, "skdpmf", partial(private, name), grid, private=True)
        for name, grid in OURS.items()
    ),
)


def error(model: Model, X, Y, **settings) -> float:
    if model.package == "skdpmf":
        settings["rating_range"] = SCALE
    found = rmse(Y.data, np.clip(model.predict(X, Y, **settings), *SCALE))
    note(model.name, settings, round(found, 4))
    return found


def chosen_settings(model: Model, X, Y) -> dict:
    """The best settings of the grid for these training and validation ratings."""
    tried = [
        (error(model, X, Y, **settings), number, settings)
        for number, settings in enumerate(ParameterGrid(model.grid))
    ]
    return min(tried)[-1]


def main(arguments: list[str] | None = None) -> None:
    options = PARSER.parse_args(arguments)
    name, X, Y = next(splits_of(options, options.shape))
    inner, held_out = split_ratings(X, test_size=VALIDATION, random_state=0)
    print_set(name, X, Y, options)
    print(f"Settings are chosen on {held_out.nnz:,} of the training ratings.\n")
    heads = "not private, defaults", "not private, tuned"
    columns = [f"epsilon {epsilon:g}" for epsilon in options.epsilons]
    print_head("model", "from", *heads, *columns, "settings chosen")
    for model in MODELS:
        if reason := missing(model.package.removeprefix("scikit-")):
            dashes = ["-"] * (2 + len(columns))
            print_row(model.name, model.package, *dashes, f"not run: {reason}")
            continue
        with threadpool_limits(1, "blas"):
            settings = chosen_settings(model, inner, held_out)
            shown = [spread([error(model, X, Y, **given)]) for given in ({}, settings)]
            for epsilon in options.epsilons:
                if not model.private:
                    shown.append("not private")
                    continue
                budget = budget_of(epsilon)
                # Seeded, so that the table can be made again; a real release leaves it alone.
                given = [{"budget": budget, "random_state": s} for s in range(options.seeds)]
                shown.append(spread([error(model, X, Y, **one) for one in given]))
        words = ", ".join(f"{name} {value}" for name, value in settings.items())
        print_row(model.name, model.package, *shown, words)


if __name__ == "__main__":
    main()
