"""A fitted recommender as a file: what is released and nothing else, safe to load from anyone.

The file is that of `skdpmf.data.array_file`. Its header has, beside the table of arrays,

``class``, ``params``
    One of the names in `CLASSES`, and its parameters but for those of `_NOT_SAVED`; "inf" is
    infinity, a list a tuple, the budget a dict.
``card``
    The privacy card (`skdpmf.PrivacyCard`), by the name of the class.
``items``
    ids of the columns and their titles, lists or null; whether ids are ``feature_names_in_``. A
    list of genres where they are known, texts such as "Comedy|Drama".
``numbers``
    All else of the fitted state that is not an array.

The arrays are the parts of the `ItemModel`, which all predictions but those by neighbours follow
from. ``components_`` and ``item_means_`` are columns of it and are not written twice. Item features
are there as the columns that were made of them, with the linear map that made them. What a refresh
starts from has the names of `Knowledge`, `PooledKnowledge` or `GramKnowledge` behind "known_".

A class is looked up in `CLASSES`; no name of a file is ever imported. Parameters are not checked by
what they mean: as everywhere, `fit` does that.
"""

import inspect
import math
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

import skdpmf.estimators
from skdpmf.books.card import CARD_SCHEMA, PrivacyCard
from skdpmf.books.search import SearchStatement
from skdpmf.data.array_file import broken, check_text, read_arrays, write_arrays
from skdpmf.data.feature_columns import ItemColumns
from skdpmf.data.labels import Catalogue
from skdpmf.data.validation import check_rating_range
from skdpmf.estimators.contract.neighbors import NeighborModel
from skdpmf.estimators.contract.options import Options
from skdpmf.estimators.contract.parameters import is_finite, is_int
from skdpmf.estimators.contract.recommend import ItemModel, Ranking
from skdpmf.estimators.planners import planner_of
from skdpmf.exceptions import ModelFileError
from skdpmf.mechanisms.als.pooled_update import PooledKnowledge
from skdpmf.mechanisms.gram.item_item import GramKnowledge
from skdpmf.mechanisms.knowledge import Knowledge
from skdpmf.privacy.budget import PrivacyBudget, check_relation
from skdpmf.privacy.plan import ReleasePlan
from skdpmf.privacy.statement import PrivacyStatement

__all__ = [
    "CLASSES",
    "card_of_file",
    "check_catalogue",
    "load_description",
    "load_model",
    "save_model",
]

# A seed voids the guarantee for whoever knows it; columns are made of the features; the others
# belong to one machine.
_NOT_SAVED = {"random_state", "n_jobs", "snapshots", "item_features"}
_BUDGET = ("epsilon", "delta", "unit", "neighbors")
_CARD_FORMAT = CARD_SCHEMA["properties"]["format"]["const"]
_TARGET_KINDS = (None, "matrix", "index", "name")
_LARGEST = 2**53  # of an integer that JavaScript reads exactly

# Values of a class beyond the item model. Numbers: by name, whether they are integers, and the
# least value. Arrays: by name, their dtypes.
_NUMBERS: dict[str, dict[str, tuple[bool, float]]] = {
    "AdaptiveWeightALS": {"n_iter_": (True, 0)},
    "CacheSGDFactorizer": {
        "n_iter_": (True, 0),
        "intercept_": (False, -math.inf),
        "_unit_": (False, 5e-324),
    },
    "DPCovarianceRecommender": {"n_neighbors": (True, 1), "neighbor_ridge": (False, 5e-324)},
    "DPItemMeans": {},
    "DPMFSampler": {"n_iter_": (True, 0)},
    "LocalDPGDDR": {"n_iter_": (True, 0)},
}
_ARRAYS: dict[str, tuple[str, ...]] = {
    "CacheSGDFactorizer": ("item_biases_", "item_counts_", "loss_curve_"),
    "DPCovarianceRecommender": ("covariance", "covariance_items_", "covariance_weights"),
}
CLASSES = tuple(_NUMBERS)  # that have a file format
# where what a refresh starts from is kept
_KNOWLEDGE: dict[str, Any] = {
    "AdaptiveWeightALS": PooledKnowledge,
    "DPCovarianceRecommender": GramKnowledge,
    "DPItemMeans": Knowledge,
}
_FEATURE_PARTS = ("features", "feature_centre", "feature_turn")
_LIST_PARTS = ("offsets", "factors", "encoder")  # of what ranks beside the item model
_DTYPES = {
    "covariance": ("float32", "float64"),
    "covariance_weights": ("float32", "float64"),
    "covariance_items_": ("int64",),
    "known_head": ("int64",),
    "known_packed": ("float32",),
    "item_counts_": ("int64",),
}


def save_model(model: Any, path: Any, catalogue: Any = None) -> None:
    """Write a fitted recommender; `BaseRecommender.save` says what and how."""
    from sklearn.utils.validation import check_is_fitted

    check_is_fitted(model, "_item_model_")
    name = type(model).__name__
    if name not in CLASSES or getattr(skdpmf.estimators, name) is not type(model):
        raise broken(path, f"a {name} has no file format", f"Save one of {', '.join(CLASSES)}")
    item_model = model._item_model_
    k = len(model.components_)
    columns = item_model.factors[:, item_model.factors.shape[1] - k :]
    means = getattr(model, "item_means_", item_model.offsets)
    if not (np.array_equal(columns.T, model.components_) and np.array_equal(means, item_model[0])):
        trouble = "components_ or item_means_ is not what fit released"
        raise broken(path, trouble, "Save a fitted model as it is")
    numbers = {
        "implicit": bool(item_model.implicit),
        "n_components": k,
        "order": "C" if model.components_.flags.c_contiguous else "F",
        "rating_ridge": float(item_model.rating_ridge),
        "target_kind": model._target_kind,
    }
    arrays = {part: getattr(item_model, part) for part in ("offsets", "factors", "ridge")}
    for part in ("prior", "encoder", "item_ridge"):
        if getattr(item_model, part) is not None:
            arrays[part] = getattr(item_model, part)
    if model._features_ is not None:
        arrays |= dict(zip(_FEATURE_PARTS, model._features_, strict=True))
    if item_model.features is not None:
        numbers["variance"] = float(item_model.variance)
    if model._ranking_ is not None:
        numbers["rating_weight"] = float(model._ranking_.rating_weight)
        arrays |= {f"list_{part}": getattr(model._ranking_.lists, part) for part in _LIST_PARTS}
    knowledge = getattr(model, "_knowledge_", None)
    if knowledge is not None:
        arrays |= dict(zip(_known_parts(name), knowledge, strict=True))
    state = vars(model)
    if name == "DPCovarianceRecommender":
        numbers["predictor"] = model._predictor_
        neighbors = model._neighbor_model_
        state = {
            "covariance": neighbors.covariance,
            "covariance_items_": model.covariance_items_,
            "covariance_weights": neighbors.weights,
            "n_neighbors": neighbors.n_neighbors,
            "neighbor_ridge": neighbors.ridge,
        }
    for key, (whole, _) in _NUMBERS[name].items():
        numbers[key] = int(state[key]) if whole else float(state[key])
    arrays |= {key: state[key] for key in _ARRAYS.get(name, ())}
    header = {
        "class": name,
        "params": _plain_params(model),
        "card": PrivacyCard.of(model, model=name).to_dict(),
        "items": _plain_items(model, catalogue),
        "numbers": numbers,
    }
    write_arrays(path, header, arrays)


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
        ``snapshots`` have their defaults, the budget has no ledger. A `CacheSGDFactorizer`
        has no users: ``partial_fit`` and ``warm_start`` go on from its items.

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
    model, items = _loaded(path, partial(getattr, skdpmf.estimators))
    if not (items["ids"] is items["titles"] is items.get("genres") is None):
        ids = range(model.n_features_in_) if items["ids"] is None else items["ids"]
        model._catalogue_ = Catalogue(ids, items["titles"], genres=items.get("genres"))
    return model


def load_description(path: Any) -> Any:
    """Return the planner of a model file's estimator, with the fitted state but for the catalogue.

    All checks of `load_model` are made; neither scikit-learn nor pandas is imported.
    """
    return _loaded(path, planner_of)[0]


def _loaded(path: Any, class_of: Callable[[str], Any]) -> tuple[Any, dict[str, Any]]:
    header, arrays = _read(path)
    try:
        return _model_of(header, arrays, class_of)
    except (ValueError, TypeError, ArithmeticError, LookupError, AttributeError) as error:
        raise broken(path, f"its content does not fit together: {error}") from error


def card_of_file(path: Any, model: str) -> PrivacyCard:
    """Return the card in a model file, with its versions, under another name of the model."""
    header, _ = _read(path)
    try:
        statement, versions = _checked_statement(header["card"]), header["card"]["versions"]
        holds = isinstance(versions, dict) and all(type(text) is str for text in versions.values())
        _require(holds, "the card's versions must be texts by name")
    except (ValueError, TypeError, ArithmeticError, LookupError) as error:
        raise broken(path, f"its card does not hold: {error}") from error
    return PrivacyCard(model, statement, versions)


def check_catalogue(
    catalogue: Any, n_items: int
) -> tuple[list[int | float | str], list[str] | None, list[str] | None]:
    """Return ids, titles, genres (None: none) of a catalogue as plain lists, or raise an error."""
    try:
        ids = [item.item() if isinstance(item, np.generic) else item for item in catalogue["item"]]
        titles = list(catalogue["title"]) if "title" in catalogue else None
        genres = list(catalogue["genres"]) if "genres" in catalogue else None
    except (TypeError, KeyError) as error:
        raise ModelFileError(
            f"catalogue={type(catalogue).__name__} must be a DataFrame or dict with 'item' and, if "
            f"there are titles, 'title', one each for each column of X ({error!r})."
        ) from None
    for what, values in (("item", ids), ("title", titles), ("genres", genres)):
        if values is not None and len(values) != n_items:
            raise ModelFileError(
                f"catalogue has {len(values)} values in {what!r} and must have {n_items}: one for "
                "each column of X, in their order."
            )
    for item in ids:
        is_float = isinstance(item, float) and math.isfinite(item)
        if is_int(item) and abs(item) > _LARGEST:
            raise ModelFileError(
                f"an item of the catalogue is {item} and must lie within -2**53 and 2**53, as "
                "browsers round larger integers: write such ids as texts."
            )
        if not (is_float or is_int(item)):
            check_text(item, "an item of the catalogue")
    for title in titles or ():
        check_text(title, "a title of the catalogue")
    if genres is not None:
        import pandas as pd

        missing = pd.Series(genres, dtype=object).isna()
        genres = ["" if m else labels for labels, m in zip(genres, missing, strict=True)]
        for labels in genres:
            check_text(labels, "the genres of an item, such as 'Comedy|Drama',")
    return ids, titles, genres


def _plain_params(model: Any) -> dict[str, Any]:
    params = model.get_params(deep=False)
    if "budget" in params:
        budget = model.budget
        params["budget"] = {name: _plain(getattr(budget, name), name) for name in _BUDGET}
    return {
        name: value if name == "budget" else _plain(value, name)
        for name, value in params.items()
        if name not in _NOT_SAVED
    }


def _plain(value: Any, name: str) -> Any:
    """Return a parameter as plain JSON."""
    if isinstance(value, Options):
        return {type(value).__name__: _plain_params(value)}
    if isinstance(value, np.generic | np.ndarray):
        value = value.tolist()
    if isinstance(value, tuple | list):
        return [_plain(part, name) for part in value]
    if isinstance(value, float) and math.isinf(value) and value > 0:
        return "inf"
    if value is None or isinstance(value, bool | int | str) or is_finite(value):
        return value
    raise ModelFileError(
        f"{name}={value!r} must be a number, a text or some of them to be saved: set it so."
    )


def _plain_items(model: Any, catalogue: Any) -> dict[str, Any]:
    n_items = len(model._item_model_.offsets)
    names = getattr(model, "feature_names_in_", None)
    ids = titles = genres = None
    if catalogue is None and model._catalogue_ is not None:
        catalogue = model.catalogue_
    if catalogue is not None:
        ids, titles, genres = check_catalogue(catalogue, n_items)
        if names is not None and ids != list(names):
            raise ModelFileError(
                "catalogue must name the items as feature_names_in_ of the model does, in its "
                "order: take its ids from the columns of X."
            )
    plain = {"ids": ids, "titles": titles, "are_names": names is not None}
    return plain if genres is None else {**plain, "genres": genres}


def _read(path: Any) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    header, arrays = read_arrays(path)
    if header.keys() != {"class", "params", "card", "items", "numbers"}:
        raise broken(path, f"its header has the keys {sorted(header)!r:.199}")
    if "offsets" not in arrays or arrays["offsets"].ndim != 1 or not arrays["offsets"].size:
        raise broken(path, "it has no array 'offsets' with a number for each item")
    return header, arrays


def _model_of(
    header: dict[str, Any], arrays: dict[str, np.ndarray], class_of: Callable[[str], Any]
) -> tuple[Any, dict[str, Any]]:
    name = header["class"]
    _require(isinstance(name, str) and name in CLASSES, f"class {name!r:.99} is none of skdpmf's")
    kind = class_of(name)
    params = _checked_params(kind, header["params"])
    with warnings.catch_warnings():  # a file of before has parameters that options have now
        warnings.simplefilter("ignore", FutureWarning)
        model = kind(**params)
    check_rating_range(model.rating_range)  # predictions are clipped to it
    items = _checked_items(header, arrays["offsets"].size)
    numbers = _checked_numbers(name, header["numbers"])
    item_model = _checked_item_model(name, numbers, arrays)
    k, n_items = numbers["n_components"], arrays["offsets"].size
    columns = item_model.factors[:, item_model.factors.shape[1] - k :]
    model._item_model_ = item_model
    model._features_ = _checked_features(arrays)
    ranking = _checked_ranking(numbers, arrays)
    if name == "AdaptiveWeightALS":
        model._ranking_ = ranking
    _require(ranking is None or name == "AdaptiveWeightALS", f"a {name} has no lists of its own")
    if name in _KNOWLEDGE:
        model._knowledge_ = _checked_knowledge(name, arrays)
    model.components_ = np.array(columns.T, order=numbers["order"])
    model._target_kind = numbers["target_kind"]
    model.n_features_in_ = n_items
    if items["are_names"]:
        model.feature_names_in_ = np.array(items["ids"], dtype=object)
    _require(
        items["are_names"] or model._target_kind != "name", "it predicts names and has none of them"
    )
    model._catalogue_, model._table_ = None, []
    model.privacy_spent_ = _checked_statement(header["card"])
    if "n_iter_" in numbers:
        model.n_iter_ = numbers["n_iter_"]
    if name != "CacheSGDFactorizer":
        model.item_means_ = item_model.offsets
    if name == "DPMFSampler":
        model.nonprivate_diagnostics_ = None
    if name == "DPCovarianceRecommender":
        _set_neighbors(model, numbers, arrays)
    if name == "CacheSGDFactorizer":
        _set_sgd(model, numbers, arrays)
    return model, items


def _set_neighbors(model: Any, numbers: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
    head = arrays["covariance_items_"]
    h, packed = head.size, arrays["covariance"]
    n_packed = h * (h + 1) // 2
    weights, sizes = arrays["covariance_weights"], [n_packed]
    if numbers["predictor"] == "svd":
        sizes += [0]  # which needs none
    holds = head.ndim == 1 and bool((np.diff(head) > 0).all())
    holds = holds and (h == 0 or (head[0] >= 0 and head[-1] < arrays["offsets"].size))
    _require(holds, "covariance_items_ must be columns, ascending")
    holds = packed.shape == (n_packed,) and weights.ndim == 1 and weights.size in sizes
    _require(holds, "covariance and weights must be those of the items that it covers")
    model._predictor_ = numbers["predictor"]
    model.covariance_items_ = head
    model._neighbor_model_ = NeighborModel(
        packed, weights, head, numbers["n_neighbors"], numbers["neighbor_ridge"]
    )


def _set_sgd(model: Any, numbers: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
    model.intercept_, model._unit_ = numbers["intercept_"], numbers["_unit_"]
    for key in _ARRAYS["CacheSGDFactorizer"]:
        setattr(model, key, arrays[key])
    n_items, counts = arrays["offsets"].size, model.item_counts_
    holds = model.item_biases_.shape == counts.shape == (n_items,) and (counts >= 0).all()
    _require(holds and model.loss_curve_.ndim == 1, "biases and counts must be those of the items")
    model.user_biases_ = np.empty(0)
    model.user_factors_ = np.empty((0, numbers["n_components"]), np.float32)


def _require(holds: Any, rule: str) -> None:
    if not holds:
        raise ValueError(rule)


def _checked_params(of: Any, params: Any) -> dict[str, Any]:
    name, known = of.__name__, inspect.signature(of).parameters.keys() - _NOT_SAVED
    _require(isinstance(params, dict), "params is no object")
    unknown = sorted(params.keys() - known)
    unknown = [key for key in unknown if not of._home_of(key)]
    _require(not unknown, f"{name} of this skdpmf has no parameter {unknown!r:.99}; update skdpmf")
    checked = {
        key: _options(of, key, value) if isinstance(value, dict) else _parameter(value)
        for key, value in params.items()
        if key != "budget"
    }
    if "budget" in known:
        budget = params.get("budget")
        _require(isinstance(budget, dict) and budget.keys() == set(_BUDGET), "budget is none")
        terms = {key: _parameter(value) for key, value in budget.items()}
        checked["budget"] = PrivacyBudget(**terms).validate()
    return checked


def _options(of: Any, parameter: str, value: dict[str, Any]) -> Any:
    """Return the options that a file has for a parameter."""
    kinds = of._options.get(parameter, {}).values()
    known = {kind.__name__: kind for kind in kinds if kind}
    _require(len(value) == 1 and value.keys() <= known.keys(), f"{value!r:.99} is no {parameter}")
    ((kind, params),) = value.items()
    _require(isinstance(params, dict), "options are no object")
    _require(params.keys() <= {*known[kind]().get_params()}, f"{params!r:.99} is no {kind}")
    return known[kind](**{key: _parameter(own) for key, own in params.items()})


def _parameter(value: Any) -> Any:
    if value == "inf":
        return math.inf
    if isinstance(value, list):
        _require(all(is_finite(part) for part in value), f"{value!r:.99} is no parameter")
        return tuple(value)
    _require(not isinstance(value, dict), f"{value!r:.99} is no parameter")
    return value


def _checked_items(header: dict[str, Any], n_items: int) -> dict[str, Any]:
    items = header["items"]
    known = {"ids", "titles", "are_names"}
    _require(isinstance(items, dict) and items.keys() - {"genres"} == known, "no items")
    ids = items["ids"]
    for what, kinds in (("ids", {int, float, str}), ("titles", {str}), ("genres", {str})):
        values = items.get(what)
        if values is not None:
            holds = isinstance(values, list) and len(values) == n_items
            _require(holds, f"{what} must be {n_items}, one for each item")
            _require({type(value) for value in values} <= kinds, f"{what} must be texts")
    named = items["are_names"]
    _require(isinstance(named, bool), "are_names must be true or false")
    _require(not named or (ids is not None and all(type(i) is str for i in ids)), "no names")
    return items


def _checked_numbers(name: str, numbers: Any) -> dict[str, Any]:
    own = _NUMBERS[name]
    known = {"implicit", "n_components", "order", "rating_ridge", "target_kind", *own}
    if isinstance(numbers, dict) and "rating_weight" in numbers:  # there are lists
        own = {**own, "rating_weight": (False, 0.0)}
        known |= {"rating_weight"}
    if isinstance(numbers, dict) and "variance" in numbers:  # there are tastes
        own = {**own, "variance": (False, 5e-324)}
        known |= {"variance"}
    if name == "DPCovarianceRecommender":
        known |= {"predictor"}
    holds = isinstance(numbers, dict) and numbers.keys() == known
    _require(holds, f"numbers must be {sorted(known)}")
    _require(numbers.get("predictor", "svd") in ("svd", "knn"), "predictor must be 'svd' or 'knn'")
    _require(type(numbers["implicit"]) is bool, "implicit must be true or false")
    _require(numbers["order"] in ("C", "F"), "order must be 'C' or 'F'")
    _require(numbers["target_kind"] in _TARGET_KINDS, f"target_kind is none of {_TARGET_KINDS}")
    for key, (whole, least) in {
        "n_components": (True, 0),
        "rating_ridge": (False, 0.0),
        **own,
    }.items():
        value = numbers[key]
        holds = type(value) is (int if whole else float) and least <= value <= (
            _LARGEST if whole else math.inf
        )
        _require(holds, f"{key}={value!r:.99} must be {'an integer' if whole else 'a number'}")
    return numbers


def _checked_item_model(
    name: str, numbers: dict[str, Any], arrays: dict[str, np.ndarray]
) -> ItemModel:
    known = {"offsets", "factors", "ridge", *_ARRAYS.get(name, ())}
    if "rating_weight" in numbers:
        known |= {f"list_{part}" for part in _LIST_PARTS}
    if "features" in arrays:
        known |= set(_FEATURE_PARTS)
    if "known_counts" in arrays:
        known |= set(_known_parts(name))
    allowed = known | {"prior", "encoder", "item_ridge"}
    _require(known <= arrays.keys() <= allowed, f"arrays must be {sorted(known)}")
    for key, array in arrays.items():
        dtypes = _DTYPES.get(key, ("float64",))
        _require(array.dtype.name in dtypes, f"{key} must be {' or '.join(dtypes)}")
    n_items, factors, ridge = arrays["offsets"].size, arrays["factors"], arrays["ridge"]
    prior, encoder = arrays.get("prior"), arrays.get("encoder")
    d = factors.shape[-1]
    _require(factors.shape == (n_items, d), f"factors must have {n_items} rows")
    if encoder is not None:
        _require(encoder.shape == (n_items, d), f"encoder must be {n_items} x {d}")
        _require(ridge.size == 0 and prior is None, "an encoder has neither ridge nor prior")
    else:
        _require(ridge.shape == (d, d), f"ridge must be {d} x {d}")
    _require(prior is None or prior.shape == (d + 1, d), f"prior must be {d + 1} x {d}")
    item_ridge = arrays.get("item_ridge")
    holds = item_ridge is None or (
        item_ridge.shape == (n_items,) and encoder is None and np.all(item_ridge >= 0.0)
    )
    _require(holds, f"item_ridge must be {n_items} numbers >= 0")
    neighbours = numbers.get("predictor") == "knn"  # their first factor is the user's offset
    _require(not neighbours or (d > 0 and encoder is None), "neighbours need a user's offset")
    _require(numbers["n_components"] <= d, f"n_components must be {d} at most")
    tastes = "variance" in numbers
    holds = "features" in arrays and encoder is None and not numbers["implicit"]
    _require(not tastes or (holds and not neighbours), "tastes are for features of ratings")
    return ItemModel(
        arrays["offsets"],
        factors,
        ridge,
        numbers["rating_ridge"],
        prior,
        numbers["implicit"],
        encoder,
        arrays["features"] if tastes else None,
        numbers["variance"] if tastes else 1.0,
        item_ridge,
    )


def _checked_features(arrays: dict[str, np.ndarray]) -> ItemColumns | None:
    """Return the columns that were made of item features, and the map that made them."""
    if "features" not in arrays:
        return None
    values, centre, turn = (arrays[part] for part in _FEATURE_PARTS)
    holds = values.ndim == 2 and len(values) == arrays["offsets"].size and centre.ndim == 1
    holds = holds and turn.shape == (centre.size, values.shape[1])
    _require(holds, "features must be those of the items")
    return ItemColumns(values, centre, turn)


def _known_parts(name: str) -> tuple[str, ...]:
    """Names of the arrays that a refresh of this class starts from."""
    return tuple(f"known_{part}" for part in getattr(_KNOWLEDGE.get(name), "_fields", ()))


def _checked_knowledge(name: str, arrays: dict[str, np.ndarray]) -> Any:
    """Return what a refresh starts from, if the file has it."""
    if "known_counts" not in arrays:
        return None
    known = _KNOWLEDGE[name](*(arrays[part] for part in _known_parts(name)))
    _require(known.fits(arrays["offsets"].size), "knowledge must be that of the items")
    return known


def _checked_ranking(numbers: dict[str, Any], arrays: dict[str, np.ndarray]) -> Ranking | None:
    """Return what ranks beside the item model; of ratings alone."""
    if "rating_weight" not in numbers:
        return None
    _require(not numbers["implicit"], "clicks have one model")
    offsets, factors, encoder = (arrays[f"list_{part}"] for part in _LIST_PARTS)
    n_items = arrays["offsets"].size
    holds = offsets.shape == (n_items,) and factors.shape == encoder.shape
    holds = holds and factors.ndim == 2 and len(factors) == n_items
    _require(holds, f"lists must be those of {n_items} items")
    lists = ItemModel(offsets, factors, np.empty((0, 0)), encoder=encoder)
    return Ranking(lists, numbers["rating_weight"])


def _checked_statement(card: Any) -> PrivacyStatement:
    """Return the card's statement; the rest of the card is for its readers."""
    holds = isinstance(card, dict) and card.get("format") == _CARD_FORMAT
    _require(holds, f"the card must have the format {_CARD_FORMAT!r}")
    plain = card["statement"]
    _require(isinstance(plain, dict), "the card has no statement")
    kind = SearchStatement if "n_refit" in plain else PrivacyStatement
    statement = kind.from_dict(plain)
    check_relation(statement.unit, statement.neighbors)
    fields = vars(statement)
    texts = [fields["condition"]]
    for key in ("assumptions", "not_covered", "notes", "unmet"):
        texts += fields[key]
    for release in statement.releases:
        texts += [release.name, release.statistic]
    _require(all(isinstance(text, str) for text in texts), "the statement's texts must be texts")
    flags = [fields[key] for key in ("seeded", "personal", "local")]
    _require(all(isinstance(flag, bool) for flag in flags), "the statement's flags must be flags")
    amounts = [fields[key] for key in ("delta", "eta", "tau", "mean", "n_refit") if key in fields]
    holds = all(is_finite(amount) and amount >= 0 for amount in amounts)
    _require(holds and statement.epsilon >= 0, "the statement's numbers must be numbers >= 0")
    if kind is PrivacyStatement:  # a search lists those of all its fits
        # it refuses releases that make no plan
        ReleasePlan(PrivacyBudget.nonprivate(), statement.releases)
    return statement
