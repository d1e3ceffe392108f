"""The command line: fit, refresh, recommend, explain, evaluate, plan, show, serve, ledger.

    skdpmf fit ratings.csv --epsilon 1 --items titles.csv -o model.skdpmf
    skdpmf recommend model.skdpmf ratings.csv --user 17 --why
    skdpmf show model.skdpmf -o card.html
    python -m skdpmf --help

Results go to the standard output (docs/getting-started.md has their JSON), remarks and errors to
the error output. Exit codes: 0 done, 1 an error, 2 wrong usage or a wrong value, 3 the ledger has
not enough left, 130 interrupted.

Only `fit` and `refresh` spend privacy. What the others print of ratings is exact, and is for these
users or for the curator of the ratings.
"""

import argparse
import json
import math
import os
import re
import sys
import warnings
from functools import partial
from typing import Any

import skdpmf
from skdpmf.exceptions import BudgetExceededError, LedgerError

_ERRORS = (ArithmeticError, ImportError, LedgerError, MemoryError, OSError, ValueError)
# said here, as what knows them takes seconds to import: --help needs none of it
_ESTIMATORS = (
    *("AdaptiveWeightALS", "CacheSGDFactorizer", "DPCovarianceRecommender"),
    *("DPItemMeans", "DPMFSampler", "LocalDPGDDR"),
)
_FOR_CLICKS = "DPCovarianceRecommender"
_UNITS = ("user", "rating")
_NEIGHBORS = ("add-remove", "replace")


def remark(text: str) -> None:
    """Write to the error output."""
    print(f"skdpmf: {text}", file=sys.stderr)


def main(arguments: list[str] | None = None) -> int:
    """Run the command line.

    arguments: words after the program's name; None: the process's own. Result: exit code: 0 done, 1
    an error, 3 the ledger has not enough left, 130 interrupted. Raises SystemExit: with code 2 for
    wrong usage and wrong values, 0 for --help and --version.
    """
    options = _parser().parse_args(arguments)
    if getattr(options, "estimator", "") is None:
        options.estimator = _FOR_CLICKS if options.implicit else _ESTIMATORS[0]
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_: remark(f"warning: {message}")
        try:
            _work_of(options.verb)(options)
            sys.stdout.flush()
        except KeyboardInterrupt:
            remark("interrupted")
            return 130
        except BrokenPipeError:  # the reader, such as head, has seen enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 1
        except _ERRORS as error:
            remark(f"error: {_text_of(error)}")
            return 3 if isinstance(error, BudgetExceededError) else 1
    return 0


def _work_of(verb: str) -> Any:
    if verb in ("fit", "refresh", "recommend", "explain", "evaluate"):
        from skdpmf.commands import with_ratings

        return getattr(with_ratings, verb)
    from skdpmf.commands import without_ratings

    return getattr(without_ratings, verb)


def _text_of(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.filename}: {error.strerror}"
    return in_options(str(error) or type(error).__name__)


# Errors name parameters of Python: their words on the command line.
_IN_OPTIONS = {
    r"columns=\{'(\w+)': \.\.\.\}": r"--columns \1=NAME",
    r"PrivacyBudget\.nonprivate\(\)": "inf",
    r"PrivacyBudget\(epsilon, delta\) with for example delta=": "for example --delta ",
    r"rating_range=\((\S+), (\S+)\)": r"--rating-range \1 \2",
    r"feedback='implicit'": "--implicit",
    r"\b(columns|sep|users|items|epsilon|delta|unit|neighbors|rule)=": r"--\1 ",
    r"--(unit|neighbors|rule) '(\w+)'": r"--\1 \2",
    r"^(\w+)=(?=\S+ must be)": r"--set \1=",
}


def in_options(text: str) -> str:
    """Return an error's text with the options of the command line for parameters of Python."""
    for pattern, words in _IN_OPTIONS.items():
        text = re.sub(pattern, words, text)
    return text


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


def _count(text: str, least: int = 1, most: float = math.inf) -> int:
    if not text.isascii() or not text.isdigit() or not least <= int(text) <= most:
        above = "" if math.isinf(most) else f" up to {most}"
        raise argparse.ArgumentTypeError(f"{text!r} must be a whole number from {least}{above}")
    return int(text)


def _threads(text: str) -> int:
    return -_count(text[1:]) if text.startswith("-") else _count(text)


def _users(text: str) -> int | str:
    """A number of users, or else a file of them."""
    return _count(text) if text.isdigit() else text


class _Columns(argparse.Action):
    """Collects NAME=HEADER pairs into a dict, or the names of all columns into a list."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: Any = None) -> None:
        try:
            found = dict(map(_pair, values)) if any("=" in value for value in values) else values
        except argparse.ArgumentTypeError as error:
            raise argparse.ArgumentError(self, str(error)) from error
        setattr(namespace, self.dest, found)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="skdpmf",
        description="Recommenders with differential privacy: what they publish reveals little "
        "about any single person.",
        epilog="Begin with: skdpmf fit ratings.csv --epsilon 1 -o model.skdpmf, then skdpmf "
        "recommend model.skdpmf ratings.csv. The exit code is 0 when all went well, 1 after an "
        "error, 2 for wrong options and 3 where the ledger has not enough left.",
    )
    parser.add_argument("--version", action="version", version=f"skdpmf {skdpmf.__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    def command(name: str, words: str, *files: str, formats: Any = ("text", "json")) -> Any:
        added = commands.add_parser(name, help=words, description=f"{words[0].upper()}{words[1:]}.")
        added.set_defaults(verb=name, usage=added.error, n_jobs=None)
        for file in files:
            added.add_argument(file, metavar=file.upper(), help=_FILES[file])
        if formats:
            words = f"the format of the output (default: {formats[0]})"
            added.add_argument("--format", choices=formats, default=formats[0], help=words)
        return added

    words = "learn from ratings, and write the publishable model to a file"
    fit = command("fit", words, "ratings")
    words = "the catalogue, a file of item ids and titles, is public and holds all items of "
    words += "RATINGS. Without it they are read off RATINGS, and the statement says that a "
    words += "condition is not met. Genres and years in it are used as public features"
    _writing(fit, "MODEL", words)
    fit.add_argument("--no-item-features", action="store_true", help="use no genres or years")
    words = "ratings of people who agreed that theirs are public, in the same formats: they are "
    words += "used without noise. Whoever is in RATINGS as well is public"
    fit.add_argument("--public", metavar="FILE", help=words)
    words = "repeat the noise, for tests and papers: anybody who guesses N can subtract it"
    fit.add_argument("--seed", type=partial(_count, least=0), metavar="N", help=words)
    _reading(fit)
    _describing(fit)

    words = "learn from ratings of new users, starting from a model, and write a new model"
    refresh = command("refresh", words, "model", "ratings")
    words = "a file of ids and titles of new items, which are public: all that RATINGS may add"
    _writing(refresh, "NEW", words)
    words = "of this refresh (default: as in MODEL's fit)"
    refresh.add_argument("--epsilon", type=float, metavar="E", help=words)
    refresh.add_argument("--delta", type=float, metavar="D", help=words)
    words = "what RATINGS holds of people who come again: new ratings (default), or all of theirs"
    refresh.add_argument("--rows", choices=("new", "whole"), default="new", help=words)
    words = "who is in RATINGS: anybody (default; epsilon adds up), or nobody of an earlier fit"
    refresh.add_argument("--people", choices=("any", "new"), default="any", help=words)
    _reading(refresh)

    words = "recommend items to users, from their own ratings; a higher score is better"
    recommend = command("recommend", words, "model", "ratings", formats=("csv", "json"))
    words = "say in words why each item is listed"
    recommend.add_argument("--why", action="store_true", help=words)
    words = "say why an item is listed: what each of a user's own ratings adds to its score"
    explain = command("explain", words, "model", "ratings", formats=("csv", "json"))
    explain.add_argument("--item", required=True, metavar="ID", help="the item to explain")
    for asked in (recommend, explain):
        words = "which users of RATINGS (default: all of them)"
        asked.add_argument("--user", nargs="+", action="extend", metavar="ID", help=words)
        _reading(asked)
    words = "how many items a list has (default: 10)"
    recommend.add_argument("-n", type=_count, default=10, metavar="N", help=words)

    words = "measure a model on known ratings of users, beside simple baselines"
    evaluate = command("evaluate", words, "model", "ratings")
    words = "ratings of the same users to predict; without it a fifth of RATINGS is hidden"
    evaluate.add_argument("--held-out", metavar="FILE", help=words)
    _reading(evaluate)

    plan = command("plan", "show what a fit would publish, with which noise; reads no data")
    plan.add_argument("--items", type=_count, required=True, metavar="N", help="how many items")
    plan.add_argument("--users", type=_count, metavar="N", help="how many users")
    _describing(plan)

    words = "show what a model file is, and what its privacy statement says"
    show = command("show", words, "model")
    words = "write the privacy card to this file instead: .html (to print and sign), .md or .json"
    show.add_argument("-o", "--output", metavar="CARD", help=words)
    show.add_argument("--overwrite", action="store_true", help="replace CARD if it exists")

    words = "open a page in the browser that recommends from a model file"
    serve = command("serve", words, "model", formats=())
    words = "the port on this machine, or 0 for any that is free (default: 8000)"
    port = partial(_count, least=0, most=65535)
    serve.add_argument("--port", type=port, default=8000, metavar="N", help=words)
    serve.add_argument("--no-open", action="store_true", help="only print the address")
    words = "write the page with the model to a folder, for any web server, and serve nothing"
    serve.add_argument("--write", metavar="FOLDER", help=words)
    serve.add_argument("--overwrite", action="store_true", help="replace files in FOLDER")

    ledger = command("ledger", "keep the privacy that fits spend within one limit")
    ledger.add_argument("file", metavar="FILE", help="the ledger's file; a data set has one")
    words = "report what is spent and left (default), verify the file, or create it"
    actions = ("report", "verify", "create")
    ledger.add_argument("action", nargs="?", choices=actions, default="report", help=words)
    limit = ledger.add_argument_group("for create: the limit, which can never be changed")
    _privacy(limit)
    words = "what one change is (default: add-remove)"
    limit.add_argument("--neighbors", choices=_NEIGHBORS, default="add-remove", help=words)
    words = "give each person this limit: a fit charges only its own users, each in K fits at most"
    limit.add_argument("--at-most", type=_count, metavar="K", help=words)
    words = "how costs add up (default: gaussian, or basic with --delta 0)"
    limit.add_argument("--rule", choices=("gaussian", "zcdp", "basic"), help=words)
    return parser


_FILES = {
    "model": "a file that fit or refresh wrote; it is safe to read from anyone",
    "ratings": "ratings, one a row: CSV, TSV, .dat or Parquet (also zipped, or a MovieLens folder; "
    "- is the standard input) with columns for user, item and rating",
}


def _writing(parser: argparse.ArgumentParser, name: str, titles: str) -> None:
    """Add the options of verbs that fit and write a model."""
    parser.add_argument("-o", "--output", required=True, metavar=name, help="the file to write")
    parser.add_argument("--overwrite", action="store_true", help=f"replace {name} if it exists")
    parser.add_argument("--items", metavar="TITLES", help=titles)
    words = "how many users there may be, or a file of their ids: public. Without it they are "
    words += "counted in RATINGS, and the statement says that a condition is not met"
    parser.add_argument("--users", type=_users, metavar="N|FILE", help=words)
    words = "charge the fit to this ledger first, which refuses it (exit code 3) if too little is "
    words += "left. A ledger with --at-most leaves out people who have nothing left"
    parser.add_argument("--ledger", metavar="FILE", help=words)


def _privacy(group: Any) -> None:
    words = "how much may be revealed: with or without one person no outcome becomes more than "
    words += "exp(E) times as likely. Smaller is more private, and inf is no privacy"
    group.add_argument("--epsilon", type=float, metavar="E", help=words)
    words = "the chance to reveal more, far below 1 / number of users (default: 1e-5)"
    group.add_argument("--delta", type=float, metavar="D", help=words)
    words = "what is protected: all ratings of a user (default), or each single rating"
    group.add_argument("--unit", choices=_UNITS, default="user", help=words)


def _reading(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("reading ratings")
    words = "which columns hold user, item, rating where their headers do not say so, such as "
    words += "user=person item=film; or, without a header, the names of all columns in order"
    group.add_argument("--columns", nargs="+", action=_Columns, metavar="NAME=HEADER", help=words)
    group.add_argument("--sep", help="text between the fields (default: from the first line)")
    words = "how many threads to use (default: -1, all cores)"
    group.add_argument("--n-jobs", type=_threads, default=-1, metavar="N", help=words)


def _describing(parser: argparse.ArgumentParser) -> None:
    _privacy(parser.add_argument_group("privacy"))
    group = parser.add_argument_group("the recommender")
    words = f"the method (default: {_ESTIMATORS[0]}; with --implicit {_FOR_CLICKS}). "
    words += "CacheSGDFactorizer protects nobody"
    group.add_argument("--estimator", choices=_ESTIMATORS, help=words)
    words = "the scale of the ratings (default: 1 5). You declare it, as one read off the ratings "
    words += "would leak, and ratings outside are clipped to it"
    numbers: Any = {"nargs": 2, "type": float, "default": (1.0, 5.0), "metavar": ("LOW", "HIGH")}
    group.add_argument("--rating-range", **numbers, help=words)
    words = "rows are clicks, plays or purchases, and none is weak evidence against an item. "
    words += "Values above 1 count as 1, or by their logarithm with --set feedback__weighting=log"
    group.add_argument("--implicit", action="store_true", help=words)
    words = "other parameters of the method, such as n_components=32 solver=dpals"
    pairs: Any = {"nargs": "+", "action": "extend", "default": [], "metavar": "NAME=VALUE"}
    group.add_argument("--set", type=_setting, **pairs, help=words)
