"""The work of verbs on ratings; `skdpmf.commands.cli` has their words and options."""

import argparse
import inspect
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

import skdpmf.estimators
from skdpmf.commands import without_ratings as shared
from skdpmf.commands.cli import remark
from skdpmf.data import item_features, ratings_to_matrix, read_ratings, validate_ratings
from skdpmf.data.labelled_rows import RatingMatrix
from skdpmf.data.loaders import read_items, read_users
from skdpmf.data.matrix import keep_entries
from skdpmf.estimators.contract.model_file import check_catalogue, load_model
from skdpmf.estimators.contract.recommend import hidden_fifth
from skdpmf.exceptions import counted
from skdpmf.privacy.budget import PrivacyBudget, public_rows

N_RANKED = 20
POPULAR = "most popular items (exact, not private)"
_LEGEND = """(recall: share of these items in the list; NDCG, MAP, MRR: more if near the top;
coverage: share of all items in some list; novelty: how few people know an item, in bits)"""
_DOUBTS = ("n_out_of_range", "all_rated", "large_delta")
_FORMULA = ("=", "+", "-", "@", "\t", "\r")  # what a spreadsheet computes


def fit(options: argparse.Namespace) -> None:
    """Write a fitted model."""
    output, book = shared.output_of(options), None
    if options.ledger is not None:
        if options.seed is not None:
            options.usage("--seed: a ledger takes no fit whose noise can be repeated; leave it out")
        book = shared.ledger_at(options.ledger)
    model = shared.described(options, book, getattr(skdpmf.estimators, options.estimator))
    frame = _table(options.ratings, options)
    undeclared = [name for name in ("users", "items") if getattr(options, name) is None]
    if options.items is None:
        catalogue = frame[["item"]].drop_duplicates().sort_values("item", ignore_index=True)
        remark(
            f"note: the model shows that exactly the {counted(len(catalogue), 'item')} of "
            f"{options.ratings} have ratings. Declare a catalogue beforehand by --items FILE."
        )
    else:
        catalogue = _titles(options.items)
        frame["item"] = _as_known(frame["item"], catalogue["item"])
        _require_declared(frame["item"], catalogue["item"], options, options.items)
    check_catalogue(catalogue, len(catalogue))
    if not options.no_item_features:
        _use_features(catalogue, model)
    X, users = _matrix_of(frame, catalogue["item"], model, options)
    _remark_doubts(X, model)
    if options.public is not None or (book is not None and book.at_most is not None):
        X = RatingMatrix(X, _participants(X, users))
    if options.public is not None:
        model.set_params(public=_public(catalogue, users, model, options))
    what = f"{counted(len(users), 'user')} x {counted(X.shape[1], 'item')}"
    _announce(model, f"fitting {options.estimator} to {what}")
    model.fit(X)
    model._statement = model.privacy_spent_.with_undeclared(undeclared)
    model.save(output, catalogue=catalogue)
    _print_written(output, model, options, estimator=options.estimator, n_items=X.shape[1])


def refresh(options: argparse.Namespace) -> None:
    """Write a model that goes on from another one, with ratings of new people."""
    output, model = shared.output_of(options), load_model(shared.model_path(options))
    model.set_params(n_jobs=options.n_jobs)
    catalogue, options.implicit = model.catalogue_, _is_implicit(model)
    if "budget" not in inspect.signature(type(model)).parameters:
        raise ValueError(f"{options.model} protects nobody: fit it on the ratings of everybody.")
    old = model.budget
    terms = {"unit": old.unit, "neighbors": old.neighbors}
    if options.ledger is not None:
        terms["ledger"] = shared.ledger_at(options.ledger)
    epsilon = old.epsilon if options.epsilon is None else options.epsilon
    delta = old.delta if options.delta is None else options.delta
    with shared.usage(options):
        budget = PrivacyBudget(epsilon, delta, **terms).validate()
    frame = _table(options.ratings, options)
    frame["item"] = _as_known(frame["item"], catalogue["item"])
    is_new = ~frame["item"].isin(catalogue["item"])
    undeclared = ["users"] if options.users is None else []
    new, titles = sorted(set(frame["item"][is_new]), key=str), None
    if options.items is not None:
        declared = _titles(options.items)
        declared["item"] = _as_known(declared["item"], catalogue["item"])
        declared = declared[~declared["item"].isin(catalogue["item"])]
        frame["item"] = _as_known(frame["item"], [*catalogue["item"], *declared["item"]])
        _require_declared(frame["item"][is_new], declared["item"], options, options.items)
        new, titles = declared["item"].tolist(), declared["title"].tolist()
    elif new:
        undeclared.append("items")
        remark(
            f"note: {options.ratings} names {counted(len(new), 'new item')}, and the model shows "
            "that exactly these have ratings. Declare new items beforehand by --items FILE."
        )
    items = [*catalogue["item"].tolist(), *new]
    X, users = _matrix_of(frame, items, model, options)
    if titles is not None:
        known = catalogue["title"] if "title" in catalogue else catalogue["item"].map(str)
        titles = [*known, *titles]
    rows = RatingMatrix(X, _participants(X, users), items, titles)
    what = f"{counted(len(users), 'user')}, {counted(len(new), 'new item')}"
    _announce(model, f"refreshing {options.model} with {what}")
    fresh = model.refresh(rows, budget=budget, rows=options.rows, people=options.people)
    fresh._statement = fresh.privacy_spent_.with_undeclared(undeclared)
    fresh.save(output)
    _print_written(output, fresh, options, n_items=len(items), n_new=len(new))


def recommend(options: argparse.Namespace) -> None:
    """Print lists of items."""
    model, matrix = _asked(options)
    lists = model.recommend(matrix, n=options.n)
    if options.why:
        rows = matrix.rows(lists["user"].tolist())
        each = model.explain(rows, lists["item"].tolist())
        lists["why"] = each.drop_duplicates(["user", "for"])["why"].to_numpy()
    _print_table(lists, options)


def explain(options: argparse.Namespace) -> None:
    """Print which ratings of users argue for an item."""
    model, matrix = _asked(options)
    _print_table(model.explain(matrix, _as_asked([options.item], matrix.items)), options)


def evaluate(options: argparse.Namespace) -> None:
    """Print the errors of ratings and the measures of lists."""
    from skdpmf.evaluation import rmse

    model, catalogue = _loaded(options)
    frame = _known_ratings(options.ratings, catalogue, model, options)
    X, users, items = ratings_to_matrix(frame, items=catalogue["item"])
    if _is_implicit(model):
        X = keep_entries(X, X.data > 0.0)
    if options.held_out is None:
        hidden = hidden_fifth(X)
        known, held_out = keep_entries(X, ~hidden), keep_entries(X, hidden)
        what = "a fifth of each user's ratings, hidden from the fold-in"
        remark(
            "note: if the model was fitted to these ratings, the errors below are too small. Keep "
            "some ratings out of the fit, and pass them by --held-out."
        )
    else:
        other = _known_ratings(options.held_out, catalogue, model, options)
        other["user"] = _as_known(other["user"], users)
        in_both = other["user"].isin(users)
        _remark_left_out(int((~in_both).sum()), options.held_out, f"of users in {options.ratings}")
        known = X
        held_out = ratings_to_matrix(other[in_both], users=users, items=items).X
        if _is_implicit(model):
            held_out = keep_entries(held_out, held_out.data > 0.0)
        what = Path(options.held_out).name
    if held_out.nnz == 0 or known.nnz == 0:
        raise ValueError(
            f"{options.held_out or options.ratings} leaves nothing to evaluate: pass more ratings "
            "of the model's items."
        )
    name = f"{type(model).__name__}, epsilon {model.privacy_spent_.epsilon:.4g}"
    lists = _lists(model, name, known, held_out)
    if _is_implicit(model):
        if not lists:
            raise ValueError(
                f"{options.ratings} leaves nothing to evaluate, as its users have clicked on every "
                "item: pass some who have not."
            )
        metric = f"recall@{N_RANKED}"
        scored = {label: measures[metric] for label, measures in lists.items()}
    else:
        metric = "rmse"
        means = mean_predictions(known, held_out)
        scored = {label: rmse(held_out.data, mean) for label, mean in means.items()}
        scored[name] = -model.score(known, held_out)
        bound = f"{least_liked(model.rating_range):g}"
        if not lists:
            remark(
                f"note: lists of items are not measured, as no held-out rating is above {bound} "
                "or the users have rated every item."
            )
    if options.format == "json":
        values = [{"of": label, "value": float(value)} for label, value in scored.items()]
        lower = {of: {key.lower(): x for key, x in own.items()} for of, own in lists.items()}
        plain = [{"of": label} | measures for label, measures in lower.items()]
        facts = {"metric": metric, "n_held_out": held_out.nnz, "held_out": what}
        shared.print_json(**facts, values=values, lists=plain)
    elif _is_implicit(model):
        _print_lists(lists, f"against {counted(held_out.nnz, 'click')}: {what}")
    else:
        print(f"RMSE (lower is better) of {counted(held_out.nnz, 'rating')}: {what}")
        for label, value in scored.items():
            print(f"  {value:.4f}  {label}")
        if lists:
            print()
            _print_lists(lists, f"against the held-out ratings above {bound}")


# Shared parts


def _asked(options: argparse.Namespace) -> tuple[Any, Any]:
    """Return the model, which answers by tables, and the ratings of the users asked for."""
    model, catalogue = _loaded(options)
    frame = _known_ratings(options.ratings, catalogue, model, options)
    matrix = ratings_to_matrix(frame, items=catalogue["item"])
    if options.user:
        matrix = matrix.rows(_as_asked(options.user, matrix.users))
    return model.set_output(recommend="pandas"), matrix


def _as_asked(texts: list[str], known: Any) -> list[Any]:
    """Return the ids that are written so."""
    ids = {str(label): label for label in known}
    return [ids.get(text, text) for text in dict.fromkeys(texts)]


def _print_table(table: Any, options: argparse.Namespace) -> None:
    """Print lists with what they belong to, their first column."""
    if options.format == "json":
        first = table.columns[0]
        of_each = table.drop(columns="rank").set_index(first).groupby(level=0, sort=False)
        plain = [{first: label, "items": own.to_dict("records")} for label, own in of_each]
        print(json.dumps(plain, indent=1, default=lambda value: value.item()))
        return
    numbers = {"score", "contribution"} & {*table}
    digits = {name: table[name].map("{:.4f}".format) for name in numbers}
    table.map(_cell).assign(**digits).to_csv(sys.stdout, index=False, lineterminator="\n")


def _lists(model: Any, name: str, known: Any, held_out: Any) -> dict[str, dict[str, float]]:
    """Return the measures of lists by their maker, or none where no list can hold what is liked."""
    from skdpmf.evaluation import popularity  # heavy

    relevant = held_out
    if not _is_implicit(model):
        relevant = keep_entries(held_out, held_out.data > least_liked(model.rating_range))
    if relevant.nnz == 0 or known.nnz == known.shape[0] * known.shape[1]:
        return {}
    return {
        POPULAR: list_measures(known, relevant, popularity(known, known, N_RANKED)[0]),
        name: list_measures(known, relevant, model.recommend(known, N_RANKED)[0]),
    }


def _print_lists(lists: dict[str, dict[str, float]], against: str) -> None:
    print(f"Lists of {N_RANKED} unseen items, {against}")
    print("".join(f"  {head:>9}" for head in next(iter(lists.values()))))
    for label, measures in lists.items():
        print("".join(f"  {value:9.4f}" for value in measures.values()) + f"  {label}")
    print(_LEGEND)


def _print_written(output: Path, model: Any, options: argparse.Namespace, **facts: Any) -> None:
    if options.format == "json":
        shared.print_json(wrote=str(output), **facts, privacy=model.privacy_spent_.to_dict())
    else:
        print(f"{model.privacy_spent_}\n\nwrote {output}")


def _cell(value: Any) -> Any:
    """A cell that a spreadsheet shows and does not compute."""
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value


def _table(path: str, options: argparse.Namespace) -> Any:
    """Return a table of ratings."""
    return read_ratings(path, columns=options.columns, sep=options.sep)


def _titles(path: str) -> Any:
    return read_items(path).astype({"title": str})


def _as_known(ids: Any, known: Any) -> Any:
    """Return ids as the known ones are: integers of one file may be text beside others in a second.

    An integer is written as it was in its file, so that equal texts are equal ids.
    """
    by_text = {str(label): label for label in known}
    same = {label: by_text.get(str(label), label) for label in ids.drop_duplicates()}
    return ids if all(label == other for label, other in same.items()) else ids.map(same)


def _declared_users(path: str, rated: Any) -> Any:
    """Return the users of a file of ids, and say what its first line was taken for."""
    users = read_users(path)
    header = users.name
    if header in set(rated) - set(users):  # a person who has the name of a column
        users, header = type(users)([header, *users], dtype=object), None
    first = f"listed below its header {header!r}"
    if header is None:
        first = f"of whom its first line, {str(users.iloc[0])!r}, is one: a header must be left out"
    remark(f"{path} declares {counted(len(users), 'user')}, {first}")
    return users


def _require_declared(ids: Any, declared: Any, options: argparse.Namespace, path: str) -> None:
    unknown = ids[~ids.isin(declared)]
    if len(unknown):
        raise ValueError(
            f"{options.ratings} has {counted(len(unknown), 'rating')} of {ids.name}s that {path} "
            f"does not have, such as {unknown.head(3).tolist()}: it must declare them all."
        )


def _matrix_of(frame: Any, items: Any, model: Any, options: argparse.Namespace) -> Any:
    """Return the ratings with a row for each declared user, over these items; and the users."""
    users = None
    if isinstance(options.users, str):
        users = _declared_users(options.users, frame["user"])
        frame["user"] = _as_known(frame["user"], users)
        _require_declared(frame["user"], users, options, options.users)
    frame = _rated(frame, options.ratings, options.implicit)
    X, users, _ = ratings_to_matrix(frame, users=users, items=items)
    X.resize((_n_slots(len(users), options, model.plan(1)), len(items)))
    return X, users


def _n_slots(n_users: int, options: argparse.Namespace, planned: Any) -> int:
    """Return how many rows there are for all that a fit computes: a public number, if declared."""
    # nothing hides how many there are in a local fit, or in one without privacy
    hides = planned.is_private and not planned.local
    if isinstance(options.users, str) or (options.users is None and not hides):
        return n_users
    if options.users is None:
        n_slots = public_rows(n_users)
        remark(
            f"note: the number of users was read off {options.ratings}, and rounded up to "
            f"{n_slots:,}. Declare it beforehand by --users N or --users FILE."
        )
        return n_slots
    if n_users > options.users:
        enough = f"{n_users} at least, the number of users in {options.ratings}"
        raise ValueError(f"--users {options.users} must be {enough}.")
    return int(options.users)


def _public(catalogue: Any, users: Any, model: Any, options: argparse.Namespace) -> RatingMatrix:
    """Return the rows of public people, over these items; ids are written as those of the users."""
    path = options.public
    try:
        frame = _known_ratings(path, catalogue, model, options)
    except (OSError, ValueError) as error:
        rule = "ratings of the people who agreed, in columns as those of RATINGS"
        raise ValueError(f"--public {path} must hold {rule}: {error}") from error
    frame = frame.assign(user=_as_known(frame["user"], users))
    X, people, _ = ratings_to_matrix(frame, items=catalogue["item"])
    n_known = int(people.isin(users).sum())
    remark(
        f"{counted(len(people), 'person', 'people')} of {path} are public, {n_known:,} of them in "
        f"{options.ratings} too: they get no protection"
    )
    return RatingMatrix(X, people)


def _participants(X: Any, users: Any) -> Any:
    """Return the id of each row; None where it is empty, as nobody is to be charged for that."""
    ids = np.full(X.shape[0], None, object)
    ids[: len(users)] = users.tolist()
    ids[np.diff(X.indptr) == 0] = None
    return ids


def _rated(frame: Any, path: str, implicit: bool) -> Any:
    """Return a table with a column of ratings, 1 where rows are clicks."""
    if "rating" in frame or implicit:
        return frame if "rating" in frame else frame.assign(rating=1.0)
    raise ValueError(
        f"{path} has no column of ratings: name it by --columns rating=NAME, or fit a model with "
        "--implicit if its rows are clicks."
    )


def _is_implicit(model: Any) -> bool:
    return bool(getattr(model, "_implicit", False))


def _known_ratings(path: str, catalogue: Any, model: Any, options: argparse.Namespace) -> Any:
    """Ratings of items that the model knows, as a table."""
    frame = _rated(_table(path, options), path, _is_implicit(model))
    frame["item"] = _as_known(frame["item"], catalogue["item"])
    known = frame["item"].isin(catalogue["item"])
    if not known.any():
        raise ValueError(
            f"{path} has no item that the model knows: it begins with "
            f"{frame['item'].head(2).tolist()}, and the model's catalogue with "
            f"{catalogue['item'].head(2).tolist()}. Write ids as they were in the fit."
        )
    _remark_left_out(int((~known).sum()), path, "of items that the model knows")
    return frame[known]


def _remark_left_out(n: int, path: str, which: str) -> None:
    if n:
        words = "is left out, as it is" if n == 1 else "are left out, as they are"
        remark(f"note: {counted(n, 'row')} of {path} {words} not {which}.")


def _loaded(options: argparse.Namespace) -> tuple[Any, Any]:
    model = load_model(shared.model_path(options))
    # columns are put into the catalogue's order here, and have no names
    vars(model).pop("feature_names_in_", None)
    return model.set_params(n_jobs=options.n_jobs), model.catalogue_


def _announce(model: Any, words: str) -> None:
    """Say what is fitted, and have a terminal count its rounds."""
    remark(words)
    if sys.stderr.isatty():
        model.set_callbacks(_Progress(model._n_rounds()))


class _Progress:
    """Callback of scikit-learn that counts rounds, so many in all, on the terminal."""

    def __init__(self, total: int) -> None:
        self.total, self.done = total, 0

    def setup(self, estimator: Any, context: Any) -> None:
        self.done = 0

    def teardown(self, estimator: Any, context: Any) -> None:
        print(file=sys.stderr)

    def on_fit_task_begin(self, estimator: Any, context: Any, **_: Any) -> None:
        """Show nothing: a round has only begun."""

    def on_fit_task_end(self, estimator: Any, context: Any, **_: Any) -> None:
        if self.done < self.total:
            self.done += 1
            bar = "#" * (30 * self.done // self.total)
            print(f"\r  [{bar:<30}] round {self.done}/{self.total}", end="", file=sys.stderr)


def _use_features(catalogue: Any, model: Any) -> None:
    """Give a model the features of a table of items, if it has some, and say which."""
    try:
        features: Any = item_features(catalogue)
    except ValueError:
        return
    kinds = sorted({"years" if "year" in name else name.split("=")[0] for name in features})
    remark(
        f"using {counted(features.shape[1], 'public feature')} of the items ({', '.join(kinds)}), "
        "which must be known without these ratings"
    )
    model.set_params(item_features=features.to_numpy())


def _remark_doubts(X: Any, model: Any) -> None:
    """Say what seems wrong with the ratings for a fit, before a budget is spent on it.

    More than half of them outside of the scale is no doubt but an error. All is for the curator.
    """
    report = validate_ratings(X, model)
    if 2 * report.n_out_of_range > report.n_ratings:
        zeros = f", {report.n_zeros} of them 0" if report.n_zeros else ""
        low, high = model.rating_range
        raise ValueError(
            f"rating_range=({low:g}, {high:g}) must be the scale of the ratings, but "
            f"{report.n_out_of_range:,} of {report.n_ratings:,} lie outside{zeros}: pass the scale "
            "by --rating-range, and leave unknown ratings out. Nothing was spent."
        )
    for name in filter(report.problems.__contains__, _DOUBTS):
        remark(f"note: {report.problems[name]}")


def mean_predictions(X: Any, Y: Any) -> dict[str, np.ndarray]:
    """Predict Y's entries by means of the known ratings X, by name of the prediction."""
    n, total = np.diff(X.indptr), np.asarray(X.sum(axis=1)).ravel()
    mean = X.data.mean()
    own = np.where(n > 0, total / np.maximum(n, 1), mean)
    return {
        "global mean (exact, not private)": np.full(Y.nnz, mean),
        "each user's own mean (local, costs nothing)": np.repeat(own, np.diff(Y.indptr)),
    }


def least_liked(rating_range: tuple[float, float]) -> float:
    """Return the rating above which an item is relevant to its user: 3.5 on a scale of 1 to 5."""
    low, high = rating_range
    return float(low + 0.625 * (high - low))


def list_measures(X: Any, relevant: Any, ranked: np.ndarray) -> dict[str, float]:
    """Measure lists of N_RANKED items, by name of the measure.

    A catalogue of fewer items makes shorter lists, whose measures are those of N_RANKED places.
    """
    from skdpmf.evaluation import metrics  # heavy

    k = ranked.shape[1]
    of_lists = {
        f"recall@{N_RANKED}": metrics.recall_at_k(relevant, ranked, k),
        f"NDCG@{N_RANKED}": metrics.ndcg_at_k(relevant, ranked, k),
        f"MAP@{N_RANKED}": metrics.average_precision_at_k(relevant, ranked, k),
        f"MRR@{N_RANKED}": metrics.reciprocal_rank_at_k(relevant, ranked, k),
    }
    coverage = metrics.catalogue_coverage_at_k(X.shape[1], ranked, k)
    return {**of_lists, "coverage": coverage, "novelty": metrics.novelty_at_k(X, ranked, k)}
