"""A fitted recommender as a file: what is released and nothing else, safe to load from anyone.

The file is one of safetensors. The metadata of its header have one entry, "skdpmf", a JSON object:

``version``
    Number of this format.
``class``, ``params``
    One of the names in `CLASSES`, and its parameters but for those of `_NOT_SAVED`; "inf" is
    infinity, a list a tuple, an object the budget or options, by the name of their class.
``card``
    The privacy card (`skdpmf.PrivacyCard`), by the name of the class.
``items``
    ids of the columns, their titles and their genres (texts such as "Comedy|Drama"), lists or null;
    whether ids are ``feature_names_in_``. An id is a text, a number, or an object of one entry, the
    name of its type in `_TEXT_OF_ID` and its text: so an integer that JavaScript would round.
``numbers``
    All else of the fitted state that is not an array.
``fortran``
    Names of the arrays that are stored row by row and held column by column: BLAS rounds otherwise.

Arrays and numbers have the names of fitted attributes and their fields, without outer underscores.
Fields with their defaults are left out. ``components_`` and ``item_means_`` are columns of the
`ItemModel`, which all predictions but those by neighbours follow from, and are not written. Item
features are there as the columns that were made of them, with the map that made them.

The array "sha256", the only one of bytes and so the last, is the SHA-256 of all bytes before it. It
finds accidents. Whoever writes a file can write its checksum too: a file of a stranger is safe to
read, but what it says is the stranger's word.

A class is looked up in `CLASSES`; no name of a file is ever imported. Options are checked, as
predictions may follow from them; what other parameters mean is, as everywhere, checked by `fit`.
"""

import hashlib
import inspect
import json
import math
import os
import re
import stat
from collections.abc import Callable
from dataclasses import replace
from datetime import date, datetime
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote_from_bytes, unquote_to_bytes
from uuid import UUID

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

import skdpmf.estimators
from skdpmf.books.card import PrivacyCard
from skdpmf.books.search import SearchStatement
from skdpmf.data.feature_columns import ItemColumns
from skdpmf.data.files import replaced_file
from skdpmf.data.labelled_rows import Catalogue
from skdpmf.data.validation import check_rating_range
from skdpmf.estimators.contract.neighbors import NeighborModel
from skdpmf.estimators.contract.parameters import Options, is_finite, is_int
from skdpmf.estimators.contract.recommend import ItemModel, Ranking
from skdpmf.estimators.planners import planner_of
from skdpmf.exceptions import ModelFileError
from skdpmf.mechanisms.als.pooled_update import PooledKnowledge
from skdpmf.mechanisms.gram.item_item import GramKnowledge
from skdpmf.mechanisms.knowledge import Knowledge
from skdpmf.privacy.budget import PrivacyBudget
from skdpmf.privacy.plan import ReleasePlan

_VERSION = 2
_BEGINNING = b'{"__metadata__":{"skdpmf":'  # behind the length of the header
_KEYS = {"version", "class", "params", "card", "items", "numbers", "fortran"}
_DIGEST = 32
# Control characters, marks that turn the direction of writing, and halves of characters: what is
# shown on a terminal must be what is meant.
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_ESCAPE = re.compile(r'\\[^"]')  # of JSON, but for quotes and backslashes: nothing is hidden
# A seed voids the guarantee for whoever knows it; columns are made of the features; public rows are
# people's; the others belong to one machine.
_NOT_SAVED = {"random_state", "n_jobs", "snapshots", "item_features", "public"}
_BUDGET = ("epsilon", "delta", "unit", "neighbors")
_LARGEST = 2**53  # of an integer that JavaScript reads exactly

# Attributes of all classes and of each that are saved.
_ATTRIBUTES = ("_features_", "_item_model_", "_ranking_", "_target_kind")
_OWN_ATTRIBUTES = {
    "AdaptiveWeightALS": ("_knowledge_", "n_iter_"),
    "CacheSGDFactorizer": (
        *("_knowledge_", "n_iter_", "intercept_", "_unit_"),
        *("item_biases_", "item_counts_", "loss_curve_"),
    ),
    "DPCovarianceRecommender": ("_knowledge_", "_neighbor_model_", "_predictor_"),
    "DPItemMeans": ("_knowledge_",),
    "DPMFSampler": ("n_iter_",),
    "LocalDPGDDR": ("n_iter_",),
}
CLASSES = tuple(_OWN_ATTRIBUTES)  # that have a file format
# Named tuples by their place in the file.
_TUPLES: dict[str, Any] = {
    "features": ItemColumns,
    "item_model": ItemModel,
    "neighbor_model": NeighborModel,
    "ranking": Ranking,
    "ranking.lists": ItemModel,
}
_KNOWLEDGE: dict[str, Any] = {  # what a refresh starts from, or a fit beside the model's people
    "AdaptiveWeightALS": PooledKnowledge,
    "CacheSGDFactorizer": Knowledge,
    "DPCovarianceRecommender": GramKnowledge,
    "DPItemMeans": Knowledge,
}
# Types and least values of numbers.
_NUMBERS: dict[str, tuple[type, float]] = {
    "n_components": (int, 0),
    "n_iter": (int, 0),
    "intercept": (float, -math.inf),
    "unit": (float, 5e-324),
    "item_model.rating_ridge": (float, 0.0),
    "item_model.variance": (float, 5e-324),
    "ranking.unit": (float, 5e-324),
    "neighbor_model.n_neighbors": (int, 1),
    "neighbor_model.ridge": (float, 5e-324),
}
_CHOICES: dict[str, tuple[Any, ...]] = {
    "item_model.implicit": (True, False),
    "has_tastes": (True, False),
    "order": ("C", "F"),
    "predictor": ("svd", "knn"),
    "target_kind": (None, "matrix", "index", "name"),
}
# Lengths of arrays; those of equal names are equal.
_SHAPES = {
    "item_model.offsets": "n",
    "item_model.factors": "n d",
    "item_model.ridge": "r r",
    "item_model.prior": "d+1 d",
    "item_model.encoder": "n d",
    "item_model.item_ridge": "n",
    "features.values": "n p",
    "features.centre": "q",
    "features.turn": "q p",
    "ranking.lists.offsets": "n",
    "ranking.lists.factors": "n e",
    "ranking.lists.ridge": "0 0",
    "ranking.lists.encoder": "n e",
    "neighbor_model.covariance": "hh",
    "neighbor_model.weights": "w",
    "neighbor_model.head": "h",
    "item_biases": "n",
    "item_counts": "n",
    "loss_curve": "l",
}
_DTYPES = {  # where it is not float64
    "neighbor_model.covariance": ("float32", "float64"),
    "neighbor_model.weights": ("float32", "float64"),
    "neighbor_model.head": ("int64",),
    "knowledge.head": ("int64",),
    "knowledge.packed": ("float32",),
    "ranking.lists.encoder": ("float32",),
    "ranking.lists.factors": ("float32",),
    "item_counts": ("int64",),
}


def save_model(model: Any, path: Any, catalogue: Any = None) -> None:
    """Write a fitted recommender; `BaseRecommender.save` says what and how."""
    from sklearn.utils.validation import check_is_fitted

    check_is_fitted(model, "_item_model_")
    model._check_options()  # which may have been set since
    name = type(model).__name__
    if name not in CLASSES or getattr(skdpmf.estimators, name) is not type(model):
        raise _broken(path, f"a {name} has no file format", f"Save one of {', '.join(CLASSES)}")
    item_model, k = model._item_model_, len(model.components_)
    columns = item_model.factors[:, item_model.factors.shape[1] - k :]
    means = getattr(model, "item_means_", item_model.offsets)
    if not (np.array_equal(columns.T, model.components_) and np.array_equal(means, item_model[0])):
        trouble = "components_ or item_means_ is not what fit released"
        raise _broken(path, trouble, "Save a fitted model as it is")
    order = "C" if model.components_.flags.c_contiguous else "F"
    values = {"n_components": k, "order": order, "has_tastes": item_model.features is not None}
    for attribute in (*_ATTRIBUTES, *_OWN_ATTRIBUTES[name]):
        values |= _flat(attribute.strip("_"), getattr(model, attribute, None))
    values.pop("item_model.features", None)  # those of "features.values"
    arrays = {key: value for key, value in values.items() if isinstance(value, np.ndarray)}
    description = {
        "version": _VERSION,
        "class": name,
        "params": _plain_params(model.get_params(deep=False)),
        "card": PrivacyCard.of(model, model=name).to_dict(),
        "items": _plain_items(model, catalogue),
        "numbers": {key: _plain(values[key], key) for key in values.keys() - arrays.keys()},
    }
    path = Path(path).expanduser()
    content = _packed(path, description, arrays)
    with replaced_file(path) as file:
        file.write(content)


def load_model(path: Any) -> Any:
    """Load a fitted recommender from a file that ``save`` wrote, also one of a stranger.

    The file holds numbers and texts. Nothing in it is executed, and everything is checked: what
    loads predicts without error, whoever wrote it. It need not be a good model, and its privacy
    statement is the writer's word.

    Parameters
    ----------
    path : str or path-like
        The file.

    Returns
    -------
    estimator
        Fitted estimator of the saved class, with its parameters and ``privacy_spent_``; every
        prediction is the saved model's, bit for bit, and ``catalogue_`` has the saved ids and
        titles, by which it answers. ``random_state``, ``n_jobs`` and
        ``snapshots`` have their defaults, the budget has no ledger, and answers are arrays until
        ``set_output`` is called again. A `CacheSGDFactorizer` has no users: ``partial_fit`` and
        ``warm_start`` go on from its items.

    Raises
    ------
    OSError
        If the file cannot be opened.
    ModelFileError
        If it is no model file, damaged, of a newer version, or does not fit together. The message
        names the file, what is wrong with it, and the remedy.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> from skdpmf import AdaptiveWeightALS, PrivacyBudget, load_model
    >>> from skdpmf.data import make_ratings
    >>> X = make_ratings(500, 40, random_state=0)
    >>> model = AdaptiveWeightALS(PrivacyBudget(4.0, 1e-5), random_state=0).fit(X)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     titles = {"item": range(40), "title": [f"Film {n}" for n in range(40)]}
    ...     model.save(pathlib.Path(folder, "films.skdpmf"), catalogue=titles)
    ...     loaded = load_model(pathlib.Path(folder, "films.skdpmf"))
    >>> bool((loaded.predict(X[:3]) == model.predict(X[:3])).all())
    True
    >>> round(loaded.privacy_spent_.epsilon, 2), loaded.catalogue_["title"][7]
    (4.0, 'Film 7')
    """
    model, catalogue, _ = _loaded(path, partial(getattr, skdpmf.estimators))
    if catalogue is not None:
        ids, titles, genres = catalogue
        if any(type(item) is datetime for item in ids):  # else they become timestamps
            ids = np.array(ids, dtype=object)
        model._catalogue_ = Catalogue(ids, titles, genres=genres)
    return model


def load_description(path: Any) -> Any:
    """Return the planner of a model file's estimator, with the fitted state but for the catalogue.

    All checks of `load_model` are made; neither scikit-learn nor pandas is imported.
    """
    return _loaded(path, planner_of)[0]


def card_of_file(path: Any, model: str) -> PrivacyCard:
    """Return the card in a model file, with its versions, under another name of the model."""
    return replace(_loaded(path, planner_of)[2], model=model)


def check_catalogue(catalogue: Any, n_items: int) -> tuple[list[Any], Any, Any]:
    """Return ids, titles, genres (None: none) of a catalogue as lists, or raise an error."""
    try:
        ids = [_python_id(item) for item in catalogue["item"]]
        titles, genres = (catalogue.get(what) for what in ("title", "genres"))
        titles, genres = (None if each is None else list(each) for each in (titles, genres))
    except (TypeError, KeyError) as error:
        raise ModelFileError(
            f"catalogue={type(catalogue).__name__} must be a DataFrame or dict with 'item' and, if "
            f"there are titles, 'title': pass one of each for each column of X ({error!r})."
        ) from None
    if genres is not None and not all(isinstance(labels, str) for labels in genres):
        import pandas as pd

        missing = pd.Series(genres, dtype=object).isna()
        genres = ["" if m else labels for labels, m in zip(genres, missing, strict=True)]
    for what, values in (("item", ids), ("title", titles), ("genres", genres)):
        if values is not None and len(values) != n_items:
            raise ModelFileError(
                f"catalogue has {len(values)} values in {what!r} and must have {n_items}: one for "
                "each column of X, in their order."
            )
        if set(map(type, values or ())) <= {str} and "".join(values or ()).isprintable():
            continue  # and nothing needs a closer look
        for one in values or ():
            if not (isinstance(one, str) or (what == "item" and _is_id(one))):
                rule = "a text: write genres as 'A|B'"
                if what == "item":
                    rule = f"a text, a number or one of {', '.join(_TEXT_OF_ID)}: write it as text"
                raise ModelFileError(f"catalogue[{what!r}] has {one!r:.99}, which must be {rule}.")
            if isinstance(one, str) and _UNPRINTABLE.search(one):
                raise ModelFileError(
                    f"catalogue[{what!r}] has {one!a:.99}, which must be printable text: take "
                    "control characters, such as line breaks, out of it."
                )
    return ids, titles, genres


def check_savable(catalogue: Catalogue | None) -> None:
    """Raise ModelFileError, before a fit costs anything, for a catalogue that no file can hold."""
    if catalogue is not None:
        parts = {"item": catalogue.items, "title": catalogue.titles, "genres": catalogue.genres}
        check_catalogue(parts, len(catalogue.items))


def _timestamp(text: str) -> Any:
    import pandas as pd

    return pd.Timestamp(text)


# Ids that JSON has not, by the names of their types: to text, and back.
_TEXT_OF_ID: dict[str, tuple[Callable[[Any], str], Callable[[str], Any]]] = {
    "int": (str, int),
    "UUID": (str, UUID),
    "Timestamp": (lambda time: str(time.isoformat()), _timestamp),
    "datetime": (datetime.isoformat, datetime.fromisoformat),
    "date": (date.isoformat, date.fromisoformat),
    "Decimal": (str, Decimal),
    "bytes": (quote_from_bytes, unquote_to_bytes),
    "tuple": (
        lambda ids: json.dumps([_plain_id(_python_id(one)) for one in ids], ensure_ascii=False),
        lambda text: tuple(map(_read_id, json.loads(text))),
    ),
}


def _python_id(item: Any) -> Any:
    if isinstance(item, np.datetime64):
        return _timestamp(str(item))
    return item.item() if isinstance(item, np.generic) else item


def _is_id(value: Any) -> bool:
    if type(value) is int:
        return True
    try:
        read = _read_id(_plain_id(value))
        return type(read) is type(value) and bool(read == value)
    except (ValueError, TypeError, ArithmeticError, LookupError):
        return False


def _plain_id(value: Any) -> Any:
    """Return an id as plain JSON."""
    is_short = type(value) is int and abs(value) <= _LARGEST
    if isinstance(value, str) or is_short or (type(value) is float and math.isfinite(value)):
        return value
    name = type(value).__name__
    return {name: _TEXT_OF_ID[name][0](value)}


def _read_id(plain: Any) -> Any:
    """Return the id that `_plain_id` wrote."""
    if not isinstance(plain, dict):
        return plain
    ((name, text),) = plain.items()
    value = _TEXT_OF_ID[name][1](text)
    _require(_plain_id(value) == plain, f"{text!r:.99} must be the text of one {name}")
    return value


# Bytes of a file


def _broken(path: Any, trouble: str, remedy: str = "") -> ModelFileError:
    remedy = remedy or "Pass what save wrote, or get the file again from where it came"
    return ModelFileError(f"{os.fspath(path)}: {trouble}. {remedy}.")


def _packed(path: Path, description: dict[str, Any], arrays: dict[str, np.ndarray]) -> bytes:
    """Return the bytes of a file, which `_unpacked` can read."""
    description["fortran"] = sorted(name for name, array in arrays.items() if array.flags.fnc)
    stored = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    stored["sha256"] = np.zeros(_DIGEST, np.uint8)
    text = json.dumps(description, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    try:
        content = save(stored, {"skdpmf": text})[:-_DIGEST]
        content += hashlib.sha256(content).digest()
        _unpacked(content)
    except ValueError as error:
        remedy = "Fit anew, or save with other titles or fewer"
        raise _broken(path, f"the model cannot be saved: {error}", remedy) from None
    return content


def _unpacked(content: bytes) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return the description and new arrays of finite numbers, or raise ValueError."""
    length = int.from_bytes(content[:8], "little")
    try:
        arrays = load(content)
        text = json.loads(content[8 : 8 + length])["__metadata__"]["skdpmf"]
        holds = not (_UNPRINTABLE.search(text) or _ESCAPE.search(text.replace(r"\\", "")))
        _require(holds, "a text of its header must be printable")
        description = json.loads(text)
        digest, fortran = arrays.pop("sha256"), description["fortran"]
        _require(digest.tobytes() == content[-_DIGEST:], "its checksum is not its last array")
        for name, array in arrays.items():
            _require(np.isfinite(array).all(), f"array {name!r} holds a number that is not finite")
            arrays[name] = np.array(array, order="F" if name in fortran else "C")
    except (SafetensorError, ArithmeticError, LookupError, TypeError, RecursionError) as error:
        raise ValueError(f"its header does not hold ({error!r:.200})") from None
    return description, arrays


def _read(path: Any) -> bytes:
    path = Path(path).expanduser()
    if not stat.S_ISREG(path.stat().st_mode):  # a pipe or a device would never end
        raise _broken(path, "it is no regular file")
    content = path.read_bytes()
    if content[8 : 8 + len(_BEGINNING)] != _BEGINNING:
        raise _broken(path, f"it begins with {content[:16]!r}, as no model file of skdpmf does")
    if hashlib.sha256(content[:-_DIGEST]).digest() != content[-_DIGEST:]:
        raise _broken(path, "its content does not match its checksum: it is damaged or incomplete")
    return content


# Plain JSON of what is saved


def _flat(name: str, value: Any) -> dict[str, Any]:
    """Return an attribute, or the fields of named tuples that are not their defaults, by place."""
    if name not in _TUPLES and name != "knowledge":
        return {name: value}
    parts: dict[str, Any] = {}
    if value is not None:
        for field, part in value._asdict().items():
            if isinstance(part, np.ndarray | tuple) or part != value._field_defaults.get(field):
                parts |= _flat(f"{name}.{field}", part)
    return parts


def _plain_params(params: dict[str, Any]) -> dict[str, Any]:
    return {key: _plain(value, key) for key, value in params.items() if key not in _NOT_SAVED}


def _plain(value: Any, name: str) -> Any:
    """Return a parameter as plain JSON."""
    if isinstance(value, PrivacyBudget):
        return {"PrivacyBudget": _plain_params({term: getattr(value, term) for term in _BUDGET})}
    if isinstance(value, Options):
        return {type(value).__name__: _plain_params(value.get_params())}
    if isinstance(value, np.generic | np.ndarray):
        value = value.tolist()
    if isinstance(value, tuple | list):
        return [_plain(part, name) for part in value]
    if isinstance(value, float) and math.isinf(value) and value > 0:
        return "inf"
    if value is None or isinstance(value, bool | int | str) or is_finite(value):
        return value
    raise ModelFileError(f"{name}={value!r} must be numbers or texts to be saved: change it.")


def _plain_items(model: Any, catalogue: Any) -> dict[str, Any]:
    names = getattr(model, "feature_names_in_", None)
    ids = titles = genres = None
    if catalogue is None and model._catalogue_ is not None:
        catalogue = model.catalogue_
    if catalogue is not None:
        ids, titles, genres = check_catalogue(catalogue, len(model._item_model_.offsets))
        if names is not None and ids != list(names):
            raise ModelFileError(
                "catalogue must name the items as feature_names_in_ of the model does, in its "
                "order: take its ids from the columns of X."
            )
    plain = None if ids is None else [_plain_id(item) for item in ids]
    return {"ids": plain, "titles": titles, "genres": genres, "are_names": names is not None}


# Checks of what is loaded


def _loaded(path: Any, class_of: Callable[[str], Any]) -> tuple[Any, Any, PrivacyCard]:
    """Return a fitted model, ids, titles and genres of its items or None, and its card."""
    content = _read(path)
    try:
        description, arrays = _unpacked(content)
        if description.get("version") == _VERSION:
            return _model_of(description, arrays, class_of)
    except (ValueError, TypeError, ArithmeticError, LookupError, AttributeError) as error:
        raise _broken(path, f"its content does not fit together: {error}") from error
    trouble = f"it has version {description.get('version')!r:.99} of the format, and this skdpmf "
    remedy = "Update skdpmf, or have the model saved by an older one"
    raise _broken(path, f"{trouble}reads {_VERSION}", remedy)


def _model_of(
    description: dict[str, Any], arrays: dict[str, np.ndarray], class_of: Callable[[str], Any]
) -> tuple[Any, Any, PrivacyCard]:
    _require(description.keys() == _KEYS, f"its keys must be {sorted(_KEYS)}")
    name, numbers = description["class"], description["numbers"]
    _require(isinstance(name, str) and name in CLASSES, f"class {name!r:.99} is none of skdpmf's")
    model = _with_params(class_of(name), description["params"])
    check_rating_range(model.rating_range)  # predictions are clipped to it
    _check_values(name, numbers, arrays)
    for attribute in (*_ATTRIBUTES, *_OWN_ATTRIBUTES[name]):
        setattr(model, attribute, _made(attribute.strip("_"), numbers | arrays, name))
    if numbers["has_tastes"]:
        model._item_model_ = model._item_model_._replace(features=model._features_.values)
    offsets, factors = model._item_model_[:2]
    n_items, k = len(offsets), numbers["n_components"]
    model.components_ = np.array(factors[:, factors.shape[1] - k :].T, order=numbers["order"])
    if getattr(model, "_knowledge_", None) is not None:
        _require(model._knowledge_.fits(n_items), "knowledge must be that of the items")
    if name == "DPCovarianceRecommender":
        model.covariance_items_ = model._neighbor_model_.head
    if name == "DPMFSampler":
        model.nonprivate_diagnostics_ = None
    if name == "CacheSGDFactorizer":
        model.user_biases_, model.user_factors_ = np.empty(0), np.empty((0, k), np.float32)
    else:
        model.item_means_ = offsets
    model.n_features_in_, model._catalogue_, model._table_ = n_items, None, []
    card = _checked_card(description["card"])
    model._statement = card.statement
    parts = ("ids", "titles", "genres", "are_names")
    ids, titles, genres, are_names = (description["items"][part] for part in parts)
    has_catalogue = not (ids is titles is genres is None)
    ids = range(n_items) if ids is None else [_read_id(item) for item in ids]
    catalogue = check_catalogue({"item": ids, "title": titles, "genres": genres}, n_items)
    if are_names:
        _require(all(isinstance(item, str) for item in ids), "names must be texts")
        model.feature_names_in_ = np.array(ids, dtype=object)
    _require(are_names or model._target_kind != "name", "it predicts names and has none of them")
    return model, catalogue if has_catalogue else None, card


def _require(holds: Any, rule: str) -> None:
    if not holds:
        raise ValueError(rule)


def _with_params(of: Any, params: dict[str, Any]) -> Any:
    """Return a new estimator or planner of checked parameters."""
    known = inspect.signature(of).parameters.keys() - _NOT_SAVED
    unknown = sorted(params.keys() - known)
    rule = f"{of.__name__} of this skdpmf has no parameter {unknown!r:.99}; update skdpmf"
    _require(not unknown, rule)
    budgets = {"budget": {"PrivacyBudget": PrivacyBudget}} if "budget" in known else {}
    _require(budgets.keys() <= params.keys(), "it has no budget")
    kinds: dict[str, Any] = {**of._options, **budgets}
    model = of(**{key: _parameter(value, kinds.get(key, {})) for key, value in params.items()})
    if budgets:
        _require(isinstance(model.budget, PrivacyBudget), "its budget is none")
        model.budget.validate()
    model._check_options()
    return model


def _parameter(value: Any, kinds: dict[str, Any]) -> Any:
    """Return a parameter; an object of a file has the name of one of these classes."""
    if isinstance(value, dict):
        ((name, params),) = value.items()
        known = {kind.__name__: kind for kind in kinds.values() if kind}
        _require(name in known, f"this skdpmf has no {name!r:.99}")
        _require("ledger" not in params, "a budget of a file has no ledger")
        return known[name](**{key: _parameter(own, {}) for key, own in params.items()})
    if isinstance(value, list):
        _require(all(is_finite(part) for part in value), f"{value!r:.99} is no parameter")
        return tuple(value)
    return math.inf if value == "inf" else value


def _made(name: str, values: dict[str, Any], kind: str) -> Any:
    """Return what is at a place of the file of an estimator; a named tuple may be absent."""
    cls = _KNOWLEDGE[kind] if name == "knowledge" else _TUPLES.get(name)
    if cls is None:
        return values[name]
    places = {field: f"{name}.{field}" for field in cls._fields}
    known = {field: at for field, at in places.items() if at in values or at in _TUPLES}
    is_there = any(key.startswith(f"{name}.") for key in values)
    return cls(**{f: _made(at, values, kind) for f, at in known.items()}) if is_there else None


def _check_values(name: str, numbers: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
    """Require values that the class has, each of its type and shape, which fit together."""
    own = {attribute.strip("_") for attribute in (*_ATTRIBUTES, *_OWN_ATTRIBUTES[name])}
    own |= {"n_components", "order", "has_tastes"}
    knowledge = {f"knowledge.{part}" for part in getattr(_KNOWLEDGE.get(name), "_fields", ())}
    unknown = numbers.keys() - _NUMBERS.keys() - _CHOICES.keys()
    unknown |= arrays.keys() - _SHAPES.keys() - knowledge
    unknown |= {key for key in (*numbers, *arrays) if key.partition(".")[0] not in own}
    _require(not unknown, f"a {name} has no {sorted(unknown)!r:.199}")
    for key, value in numbers.items():
        if key in _CHOICES:
            holds = any(type(value) is type(each) and value == each for each in _CHOICES[key])
            _require(holds, f"{key} must be one of {_CHOICES[key]}")
        else:
            kind, least = _NUMBERS[key]
            holds = is_finite(value) and least <= value
            holds = holds and (kind is float or (is_int(value) and value <= _LARGEST))
            _require(holds, f"{key}={value!r:.99} must be a {kind.__name__}")
    sizes = {"0": 0}
    for key, array in arrays.items():
        dtypes = _DTYPES.get(key, ("float64",))
        _require(array.dtype.name in dtypes, f"{key} must be {' or '.join(dtypes)}")
        if key in _SHAPES:  # `fits` checks the others
            lengths = zip(_SHAPES[key].split(), array.shape, strict=True)
            holds = all(sizes.setdefault(dim, length) == length for dim, length in lengths)
            _require(holds, f"{key} must have the shape {_SHAPES[key]}, {sizes}")
    n, d, is_encoded = sizes["n"], sizes["d"], "item_model.encoder" in arrays
    is_implicit, is_knn = numbers.get("item_model.implicit"), numbers.get("predictor") == "knn"
    _require(n > 0 and numbers["n_components"] <= d, "it has no items, or no such components")
    _require(sizes["r"] == (0 if is_encoded else d), "ridge must be that of the factors")
    _require(sizes.get("d+1", d + 1) == d + 1, "prior must have a row for each factor, and one")
    holds = not is_encoded or not {"item_model.prior", "item_model.item_ridge"} & arrays.keys()
    _require(holds, "an encoder has no prior and no ridge")
    holds = not is_knn or (d > 0 and not is_encoded)
    _require(holds, "neighbours need a user's offset")
    holds = "features.values" in arrays and not (is_encoded or is_knn or is_implicit)
    _require(not numbers["has_tastes"] or holds, "tastes are for features of ratings")
    holds = "ranking.lists.encoder" in arrays and not is_implicit
    _require("ranking.unit" not in numbers or holds, "lists are for ratings")
    positive = (arrays.get("ranking.lists.offsets", np.ones(1)) > 0.0).all()
    _require(positive, "popularity must be above 0")
    for key in ("item_model.item_ridge", "item_counts"):
        _require(key not in arrays or (arrays[key] >= 0).all(), f"{key} must be numbers >= 0")
    if "h" in sizes:
        head, packed = arrays["neighbor_model.head"], sizes["h"] * (sizes["h"] + 1) // 2
        _require((np.diff(head) > 0).all(), "the covariance must be of ascending columns")
        _require(not head.size or 0 <= head[0] <= head[-1] < n, "the covariance must be of columns")
        holds = sizes["hh"] == packed and sizes["w"] in ((packed,) if is_knn else (packed, 0))
        _require(holds, "covariance and weights must be those of the items that it covers")


def _checked_card(plain: Any) -> PrivacyCard:
    """Return the card; its curve is for readers of the file."""
    card = PrivacyCard._from_dict(plain)
    if not isinstance(card.statement, SearchStatement):  # which lists those of all its fits
        # it refuses releases that make no plan
        ReleasePlan(PrivacyBudget.nonprivate(), card.statement.releases)
    _require(card.versions == plain["versions"], "the card's versions must be texts by name")
    return card
