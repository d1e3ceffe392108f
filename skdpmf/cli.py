"""The command line: fit, recommend, evaluate, plan, show, ledger.

    skdpmf fit ratings.csv --epsilon 1 --items titles.csv -o model.skdpmf
    skdpmf recommend model.skdpmf ratings.csv --user 17
    python -m skdpmf --help

Results go to the standard output, remarks and errors to the error output. Exit codes: 0 done, 1 an
error, 2 wrong usage, 3 the ledger has not enough left, 130 interrupted.

Only `fit` spends privacy. What the others print of ratings is exact, and is for these users or for
the curator of the ratings.
"""

import argparse
import csv
import inspect
import json
import math
import os
import sys
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import skdpmf
from skdpmf._terminal import Progress, mean_predictions
from skdpmf.data import ratings_to_matrix, read_items, read_ratings
from skdpmf.data.bounding import keep_entries
from skdpmf.estimators._model_file import CLASSES, check_catalogue, load_catalogue, load_model
from skdpmf.estimators._recommend import ItemModel, hidden_fifth, recall, top_items
from skdpmf.evaluation import rmse
from skdpmf.exceptions import BudgetExceededError, LedgerError
from skdpmf.privacy import PrivacyBudget, PrivacyLedger
from skdpmf.privacy.budget import NEIGHBORS, UNITS

__all__ = ["main"]

_ERRORS = (ArithmeticError, ImportError, LedgerError, MemoryError, OSError, ValueError)
_TAKEN = {  # parameters that have options of their own
    "budget": "--epsilon and --delta",
    "feedback": "--implicit",
    "n_jobs": "--n-jobs",
    "random_state": "--seed",
    "rating_range": "--rating-range",
}
_N_RANKED = 20
CATALOGUE_ASSUMPTION = (
    "That just these items have ratings is public: the catalogue was taken from the ratings file."
)


def main(arguments: list[str] | None = None) -> int:
    """Run the command line.

    Parameters
    ----------
    arguments : list of str, default=None
        Words after the program's name; None: the process's own.

    Returns
    -------
    int
        Exit code: 0 done, 1 an error, 3 the ledger has not enough left, 130 interrupted.

    Raises
    ------
    SystemExit
        With code 2 for wrong usage, 0 for --help and --version.
    """
    options = _parser().parse_args(arguments)
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_: _remark(f"warning: {message}")
        try:
            options.run(options)
            sys.stdout.flush()
        except KeyboardInterrupt:
            _remark("interrupted")
            return 130
        except BrokenPipeError:  # the reader, such as head, has seen enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 1
        except _ERRORS as error:
            _remark(f"error: {_text_of(error)}")
            return 3 if isinstance(error, BudgetExceededError) else 1
    return 0


def _remark(text: str) -> None:
    print(f"skdpmf: {text}", file=sys.stderr)


def _text_of(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.filename}: {error.strerror}"
    return str(error) or type(error).__name__


# Commands


def _fit(options: argparse.Namespace) -> None:
    output, ledger = Path(options.output).expanduser(), None
    # all that can be wrong is found before the budget is spent
    if not output.parent.is_dir():
        raise ValueError(f"{output}: there is no folder {output.parent}; make it first.")
    if output.exists() and not options.overwrite:
        raise ValueError(f"{output} exists already: choose another name, or pass --overwrite.")
    if options.ledger is not None:
        if options.seed is not None:
            options.usage("--seed: a ledger takes no fit whose noise can be repeated; leave it out")
        ledger = _ledger_at(options.ledger)
    model = _estimator(options, ledger)
    model.plan(1)
    frame = read_ratings(options.ratings, columns=options.columns, sep=options.sep)
    declared = options.items is not None
    if declared:
        catalogue = read_items(options.items).astype({"title": str})
        unknown = frame["item"][~frame["item"].isin(catalogue["item"])]
        if len(unknown):
            raise ValueError(
                f"{options.ratings} has {len(unknown)} ratings of items that {options.items} does "
                f"not have, such as {unknown.head(3).tolist()}: the catalogue must hold them all."
            )
    else:
        catalogue = _items_of(frame, options.ratings)
    check_catalogue(catalogue, len(catalogue))
    X, users, items = ratings_to_matrix(
        frame, rating=_rating_column(frame, options), items=catalogue["item"]
    )
    if not options.implicit:
        low, high = options.rating_range
        outside = int(((X.data < low) | (X.data > high)).sum())
        if outside:
            _remark(
                f"note: {outside} of {X.nnz} ratings lie outside of {low:g} to {high:g} and are "
                "clipped; --rating-range tells the scale."
            )
    _remark(f"fitting {options.estimator} to {len(users)} users x {len(items)} items")
    if sys.stderr.isatty():
        model.set_callbacks(Progress(model._n_rounds()))
    model.fit(X)
    statement = model.privacy_spent_
    if statement.is_private and not declared:
        assumptions = (CATALOGUE_ASSUMPTION, *statement.assumptions)
        model.privacy_spent_ = replace(statement, assumptions=assumptions)
    model.save(output, catalogue=catalogue)
    print(f"{model.privacy_spent_}\n\nwrote {output}")


def _recommend(options: argparse.Namespace) -> None:
    model, catalogue = _loaded(options)
    frame = _known_ratings(options.ratings, catalogue, model, options)
    X, users, items = ratings_to_matrix(frame, items=catalogue["item"])
    if options.user:
        place = {str(user): row for row, user in enumerate(users)}
        unknown = [user for user in options.user if user not in place]
        if unknown:
            raise ValueError(
                f"--user {unknown[0]} has no rating in {options.ratings} of an item that the model "
                "knows: name users of that file."
            )
        rows = [place[user] for user in options.user]
        X, users = X[rows], users[rows]
    best, scores = model.recommend(X, n_recommendations=options.n)
    titles = catalogue["title"].tolist() if "title" in catalogue else None
    lists = []
    for user, columns, values in zip(users.tolist(), best, scores, strict=True):
        found = []
        for j, score in zip(columns[columns >= 0], values, strict=False):
            title = {} if titles is None else {"title": titles[j]}
            found.append({"item": items[j], **title, "score": float(score)})
        lists.append((user, found))
    if options.format == "json":
        plain = [{"user": user, "items": found} for user, found in lists]
        print(json.dumps(plain, indent=1, default=lambda value: value.item()))
        return
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(["user", "rank", "item", *(["title"] if titles is not None else []), "score"])
    for user, found in lists:
        for rank, entry in enumerate(found, start=1):
            *named, score = entry.values()
            writer.writerow([user, rank, *named, f"{score:.4f}"])


def _evaluate(options: argparse.Namespace) -> None:
    model, catalogue = _loaded(options)
    frame = _known_ratings(options.ratings, catalogue, model, options)
    X, users, items = ratings_to_matrix(frame, items=catalogue["item"])
    if _is_implicit(model):
        X = keep_entries(X, X.data > 0.0)
    if options.held_out is None:
        hidden = hidden_fifth(X)
        known, held_out = keep_entries(X, ~hidden), keep_entries(X, hidden)
        what = "a fifth of each user's ratings, hidden from the fold-in"
        _remark(
            "note: if these ratings have trained the model, the errors are too small. Keep some "
            "ratings out of the fit, and pass them by --held-out."
        )
    else:
        other = _known_ratings(options.held_out, catalogue, model, options)
        in_both = other["user"].isin(users)
        _remark_left_out(int((~in_both).sum()), options.held_out, f"of users in {options.ratings}")
        known = X
        held_out = ratings_to_matrix(other[in_both], users=users, items=items).X
        if _is_implicit(model):
            held_out = keep_entries(held_out, held_out.data > 0.0)
        what = options.held_out
    if held_out.nnz == 0 or known.nnz == 0:
        raise ValueError(
            f"{options.held_out or options.ratings} leaves nothing to evaluate: more ratings of "
            "the model's items are needed."
        )
    name = f"{type(model).__name__}, epsilon {model.privacy_spent_.epsilon:g}"
    if _is_implicit(model):
        popularity = np.bincount(known.indices, minlength=known.shape[1]).astype(np.float64)
        popular = ItemModel(popularity, np.empty((popularity.size, 0)), np.empty((0, 0)))
        scored = {
            "most popular items (exact, not private)": recall(
                held_out, top_items(popular, known, _N_RANKED)[0]
            ),
            name: model.score(known, held_out),
        }
        print(f"Recall@{_N_RANKED} of {held_out.nnz} clicks: {what}")
    else:
        scored = {
            label: rmse(held_out.data, predicted)
            for label, predicted in mean_predictions(known, held_out).items()
        }
        scored[name] = -model.score(known, held_out)
        print(f"RMSE of {held_out.nnz} ratings: {what}")
    for label, value in scored.items():
        print(f"  {value:.4f}  {label}")


def _plan(options: argparse.Namespace) -> None:
    print(_estimator(options, None).plan(options.items, options.users))


def _show(options: argparse.Namespace) -> None:
    model, catalogue = _loaded(options)
    print(f"{model!r}\n{len(catalogue)} items\n\n{model.privacy_spent_}")


def _ledger(options: argparse.Namespace) -> None:
    if options.action == "create":
        if options.epsilon is None:
            options.usage("create needs --epsilon, the most that may ever be spent")
        if Path(options.file).exists():
            raise ValueError(f"{options.file} exists already: choose another name.")
        delta = 1e-5 if options.delta is None else options.delta
        terms = {"unit": options.unit, "neighbors": options.neighbors}
        limit = PrivacyBudget(options.epsilon, delta, **terms)
        print(PrivacyLedger(options.file, limit, rule=options.rule).report())
    elif options.action == "verify":
        n = _ledger_at(options.file).verify()
        print(f"{options.file}: {n} entries, each charged what its plan costs; the total is right")
    else:
        print(_ledger_at(options.file).report())


# What they share


def _ledger_at(path: str) -> PrivacyLedger:
    if not Path(path).expanduser().exists():
        raise ValueError(
            f"{path}: there is no such ledger. Make one: skdpmf ledger {path} create --epsilon E"
        )
    return PrivacyLedger(Path(path).expanduser())


def _estimator(options: argparse.Namespace, ledger: PrivacyLedger | None) -> Any:
    """The unfitted estimator that the options describe."""
    cls = CLASSES[options.estimator]
    known = inspect.signature(cls).parameters
    params = {"n_jobs": options.n_jobs, "rating_range": tuple(options.rating_range)}
    for name, value in options.set:
        if name in _TAKEN:
            options.usage(f"--set {name}: use {_TAKEN[name]}")
        if name not in known:
            names = ", ".join(sorted(known.keys() - _TAKEN.keys()))
            options.usage(f"--set {name}: {options.estimator} has the parameters {names}")
        params[name] = value
    if options.implicit:
        if "feedback" not in known:
            options.usage(f"--implicit: {options.estimator} takes ratings, not clicks")
        params["feedback"] = "implicit"
    params["random_state"] = getattr(options, "seed", None)
    if "budget" not in known:
        if options.epsilon is not None or ledger is not None:
            options.usage(f"--epsilon: {options.estimator} protects nobody; leave it out")
        return cls(**params)
    if options.epsilon is None:
        options.usage("--epsilon is needed: how much the model may reveal, such as 1 (inf: all)")
    delta = options.delta
    if delta is None:
        pure = options.estimator == "LocalDPGDDR" or math.isinf(options.epsilon)
        delta = 0.0 if pure else 1e-5
    budget = PrivacyBudget(options.epsilon, delta, unit=options.unit, ledger=ledger)
    return cls(budget, **params)


def _items_of(frame: Any, path: str) -> Any:
    items = frame[["item"]].drop_duplicates().sort_values("item", ignore_index=True)
    _remark(
        f"note: the catalogue is the {len(items)} items of {path}, so that the model tells that "
        "just these have ratings. --items FILE declares it beforehand."
    )
    return items


def _rating_column(frame: Any, options: argparse.Namespace) -> str | None:
    if "rating" in frame:
        return "rating"
    if not options.implicit:
        raise ValueError(
            f"{options.ratings} has no column of ratings: pass --implicit if its rows are clicks, "
            "or name the column by --columns rating=NAME."
        )
    return None


def _loaded(options: argparse.Namespace) -> tuple[Any, Any]:
    model, catalogue = load_model(options.model), load_catalogue(options.model)
    # columns are put into the catalogue's order here, and have no names
    vars(model).pop("feature_names_in_", None)
    return model.set_params(n_jobs=options.n_jobs), catalogue


def _is_implicit(model: Any) -> bool:
    return bool(getattr(model, "feedback", "") == "implicit")


def _known_ratings(path: str, catalogue: Any, model: Any, options: argparse.Namespace) -> Any:
    """Ratings of items that the model knows, as a table."""
    frame = read_ratings(path, columns=options.columns, sep=options.sep)
    if "rating" not in frame:
        if not _is_implicit(model):
            raise ValueError(
                f"{path} has no column of ratings, and the model is one of ratings: name the "
                "column by --columns rating=NAME."
            )
        frame = frame.assign(rating=1.0)
    known = frame["item"].isin(catalogue["item"])
    if not known.any():
        raise ValueError(
            f"{path} has no item that the model knows (it begins with "
            f"{frame['item'].head(2).tolist()}, the model with "
            f"{catalogue['item'].head(2).tolist()}): ids must be those of the fit."
        )
    _remark_left_out(int((~known).sum()), path, "of items that the model knows")
    return frame[known]


def _remark_left_out(n: int, path: str, which: str) -> None:
    if n:
        _remark(f"note: {n} rows of {path} are left out, as they are not {which}.")


# Words and options


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals and value):
        raise argparse.ArgumentTypeError(f"{text!r} must be NAME=VALUE")
    return name, value


def _setting(text: str) -> tuple[str, Any]:
    """A parameter's name and its value: JSON, else the text itself."""
    name, value = _pair(text)
    try:
        plain = json.loads(value)
    except ValueError:
        plain = {"None": None, "True": True, "False": False, "inf": math.inf}.get(value, value)
    return name, tuple(plain) if isinstance(plain, list) else plain


def _count(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} must be a whole number from 1")
    return int(text)


class _Columns(argparse.Action):
    """Collects NAME=HEADER pairs into a dict."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: Any = None) -> None:
        setattr(namespace, self.dest, dict(values))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="skdpmf",
        description="Recommenders with differential privacy: what they publish reveals little "
        "about any single person.",
        epilog="Begin with: skdpmf fit ratings.csv --epsilon 1 -o model.skdpmf, then skdpmf "
        "recommend model.skdpmf ratings.csv. Exit codes: 0 done, 1 an error, 2 wrong usage, 3 the "
        "ledger has not enough left.",
    )
    parser.add_argument("--version", action="version", version=f"skdpmf {skdpmf.__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    def command(name: str, run: Callable, words: str) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=words, description=f"{words[0].upper()}{words[1:]}.")
        added.set_defaults(run=run, usage=added.error)
        return added

    fit = command("fit", _fit, "learn from ratings, and write what may be published to a file")
    fit.add_argument("ratings", metavar="RATINGS", help=_RATINGS)
    fit.add_argument("-o", "--output", required=True, metavar="MODEL", help="the file to write")
    fit.add_argument("--overwrite", action="store_true", help="replace MODEL if it exists")
    fit.add_argument(
        "--items",
        metavar="TITLES",
        help="the catalogue: a file of item ids and titles, in the same formats. It is public, and "
        "all items of RATINGS must be in it. Without it the items of RATINGS are the catalogue, "
        "and the model tells that just these have ratings",
    )
    fit.add_argument(
        "--ledger",
        metavar="FILE",
        help="charge the fit to this ledger first; refused (exit code 3) if too little is left",
    )
    fit.add_argument(
        "--seed",
        type=int,
        metavar="N",
        help="repeatable noise, for tests and papers: whoever guesses N sees through it",
    )
    _reading(fit)
    _describing(fit)

    recommend = command("recommend", _recommend, "recommend items to users, from their own ratings")
    recommend.add_argument("model", metavar="MODEL", help="a file that fit wrote, from anyone")
    recommend.add_argument("ratings", metavar="RATINGS", help=_RATINGS)
    recommend.add_argument(
        "--user",
        nargs="+",
        action="extend",
        metavar="ID",
        help="users of RATINGS to recommend to (all of them)",
    )
    recommend.add_argument(
        "-n", type=_count, default=10, metavar="N", help="items for each user (10)"
    )
    recommend.add_argument(
        "--format", choices=("csv", "json"), default="csv", help="of the output (csv)"
    )
    _reading(recommend)

    evaluate = command("evaluate", _evaluate, "measure a model on ratings, beside simple baselines")
    evaluate.add_argument("model", metavar="MODEL", help="a file that fit wrote, from anyone")
    evaluate.add_argument("ratings", metavar="RATINGS", help=f"what is known of users. {_RATINGS}")
    evaluate.add_argument(
        "--held-out",
        metavar="FILE",
        help="ratings of the same users to predict; without it a fifth of RATINGS is hidden",
    )
    _reading(evaluate)

    plan = command("plan", _plan, "tell what a fit would publish, with which noise; reads no data")
    plan.add_argument("--items", type=_count, required=True, metavar="N", help="items of the data")
    plan.add_argument("--users", type=_count, metavar="N", help="users of the data")
    plan.set_defaults(n_jobs=None)
    _describing(plan)

    show = command("show", _show, "tell what a model file is, and what its privacy statement says")
    show.add_argument("model", metavar="MODEL", help="a file that fit wrote, from anyone")
    show.set_defaults(n_jobs=None)

    ledger = command("ledger", _ledger, "keep the privacy that fits spend within one limit")
    ledger.add_argument("file", metavar="FILE", help="the ledger's file, one for a data set")
    ledger.add_argument(
        "action",
        nargs="?",
        choices=("report", "verify", "create"),
        default="report",
        help="report: what is spent and left (default); verify: check the file; create: make it",
    )
    limit = ledger.add_argument_group("for create: the limit, which is fixed for ever")
    _privacy(limit)
    limit.add_argument("--neighbors", choices=NEIGHBORS, default="add-remove", help="(add-remove)")
    limit.add_argument("--rule", choices=("gaussian", "zcdp", "basic"), help="how costs add up")
    return parser


_RATINGS = (
    "ratings, one a row: CSV, TSV, .dat or Parquet (also zipped, or a MovieLens folder) with "
    "columns for user, item and rating"
)


def _privacy(group: Any) -> None:
    group.add_argument(
        "--epsilon",
        type=float,
        metavar="E",
        help="how much may be revealed: with or without one person no outcome gets more than "
        "exp(E) times as likely. Smaller is more private; inf is no privacy",
    )
    group.add_argument(
        "--delta",
        type=float,
        metavar="D",
        help="chance to reveal more, far below 1 / number of users (1e-5)",
    )
    group.add_argument(
        "--unit",
        choices=UNITS,
        default="user",
        help="what is protected: all of a user's ratings, or each single one (user)",
    )


def _reading(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("reading ratings")
    group.add_argument(
        "--columns",
        nargs="+",
        type=_pair,
        action=_Columns,
        metavar="NAME=HEADER",
        help="which columns hold user, item, rating where their headers do not say so, such as "
        "user=person item=film",
    )
    group.add_argument("--sep", help="text between the fields (found from the first line)")
    group.add_argument("--n-jobs", type=int, default=-1, metavar="N", help="threads (all cores)")


def _describing(parser: argparse.ArgumentParser) -> None:
    _privacy(parser.add_argument_group("privacy"))
    group = parser.add_argument_group("the recommender")
    group.add_argument(
        "--estimator",
        choices=list(CLASSES),
        default="AdaptiveWeightALS",
        help="the method (AdaptiveWeightALS). CacheSGDFactorizer protects nobody",
    )
    group.add_argument(
        "--rating-range",
        nargs=2,
        type=float,
        default=(1.0, 5.0),
        metavar=("LOW", "HIGH"),
        help="the scale of the ratings (1 5): told, as reading it off the ratings would leak. "
        "Ratings outside are clipped to it",
    )
    group.add_argument(
        "--implicit",
        action="store_true",
        help="rows are clicks, plays or purchases: values up to 1 are their weights, and items "
        "without one count as weak evidence against",
    )
    group.add_argument(
        "--set",
        nargs="+",
        action="extend",
        type=_setting,
        default=[],
        metavar="NAME=VALUE",
        help="other parameters of the method, such as n_components=32 solver=ssp",
    )
