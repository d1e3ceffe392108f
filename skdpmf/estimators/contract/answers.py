"""Items by their ids in what a fitted model is asked, and tables of ids and titles in its answers.

Arrays hold columns of X, tables hold ids. In arguments a text is an id; an integer is a column,
and an id only where nothing else could be meant: beside rows ``{item: rating}``, or where answers
are tables (`set_output`).
"""

from functools import partial
from typing import Any

import numpy as np
from scipy import sparse

from skdpmf.data.feature_columns import aligned_features
from skdpmf.data.labelled_rows import Catalogue, RatingMatrix, labelled_rows, labels_of, names_items
from skdpmf.data.validation import as_rating_matrix, refuse_table
from skdpmf.estimators.contract import filled
from skdpmf.estimators.contract.parameters import check_count, check_items, require
from skdpmf.estimators.contract.recommend import contributions, rated_rows

_OUTPUTS = ("default", "pandas", "polars")
_COSINES = 1 << 22  # at once, of users with users
_WORTH = 0.2  # a part of a score is named from here on, in deviations of the log popularity


def columns_of(
    items: Any, catalogue: Catalogue | None, n_items: int, parameter: str, *, ids: bool
) -> np.ndarray:
    """Return the columns of items: ids, or columns already.

    items: one or several; ids: whether integers are ids, where the catalogue has integers. Returns
    (n,) int64. Raises ValueError for what is in no catalogue.
    """
    if isinstance(items, np.ndarray) or hasattr(items, "to_numpy"):
        items = np.asarray(items).tolist()
    is_parts = isinstance(items, tuple) and catalogue and isinstance(catalogue.items[0], tuple)
    if is_parts and not _are_tuples(items):  # one id
        items = [items]
    if isinstance(items, str) or not hasattr(items, "__iter__"):
        items = [items]
    listed = list(items)
    columns = all(isinstance(j, int | np.integer) and not isinstance(j, bool) for j in listed)
    # integers among the ids could be taken for columns
    mixed = catalogue and catalogue.items.inferred_type in ("integer", "mixed-integer")
    if catalogue is None or (columns and not (ids and mixed)):
        return check_items(listed, n_items, parameter)
    require(len(listed) > 0, parameter, items, "one item at least", "name items by their ids")
    return catalogue.columns(listed, parameter)


def excluded(
    exclude: Any, catalogue: Catalogue | None, shape: tuple[int, int], *, ids: bool
) -> tuple[np.ndarray | None, Any]:
    """Return the columns that no row gets, and a pattern of what each row does not get.

    exclude: items, or ratings of as many rows as ``shape`` has. One of the two is None, or both.
    """
    if exclude is None:
        return None, None
    is_pattern = isinstance(exclude, RatingMatrix) or sparse.issparse(exclude)
    if is_pattern or names_items(exclude) or _is_table(exclude):
        pattern = as_rating_matrix(in_order(exclude, catalogue, shape[1], "exclude"))
        if pattern.shape != shape:
            raise ValueError(
                f"exclude has shape {pattern.shape} and must have that of X, {shape}, if it is a "
                "matrix: pass the items that each row is not to get, or one list of items."
            )
        return None, pattern
    if catalogue is not None and catalogue.dropped and not isinstance(exclude, str):
        exclude = [item for item in exclude if item not in catalogue.dropped]
    if hasattr(exclude, "__len__") and len(exclude) == 0:
        return np.empty(0, np.int64), None
    return columns_of(exclude, catalogue, shape[1], "exclude", ids=ids), None


def _are_tuples(items: Any) -> bool:
    """Whether these are ids of several parts, which numpy takes for rows."""
    return isinstance(items, list | tuple) and all(isinstance(item, tuple) for item in items)


def _is_table(exclude: Any) -> bool:
    """Whether these are rows of numbers, and no ids."""
    try:
        array = np.empty(0) if _are_tuples(exclude) else np.asarray(exclude)
    except ValueError:  # lists of several lengths
        return False
    return array.ndim == 2 and array.dtype.kind in "biufO"


def in_order(Y: Any, catalogue: Catalogue | None, n_items: int, parameter: str) -> Any:
    """Return what stands beside X, as ratings or positions, with columns as the catalogue has them.

    Y: a matrix, of which tables and a RatingMatrix are put in order by id, or dicts. Raises
    ValueError for an unknown id in a dict or RatingMatrix.
    """
    if hasattr(Y, "columns") and catalogue is not None and set(Y.columns) == set(catalogue.items):
        Y = Y[catalogue.items.tolist()]
    return labelled_rows(Y, catalogue, n_items, parameter)[0]


def kind_of(y: Any, shape: tuple[int, int], catalogue: Catalogue | None) -> str | None:
    """Return None, "matrix", "index" or "name", from the shape and type of y alone."""
    if y is None:
        return None
    refuse_table(y, "y")
    if not hasattr(y, "ndim"):  # a list, or a table of polars
        y = np.asarray(y)
    if y.ndim == 2 and tuple(y.shape) == shape:
        return "matrix"
    if y.ndim != 1:
        raise ValueError(
            f"y has shape {tuple(y.shape)}, and must be None, 1-D (each user's held-out item) "
            f"or a matrix of the shape of X, {shape} (held-out ratings)."
        )
    if y.shape[0] != shape[0]:
        raise ValueError(
            f"y has {y.shape[0]} entries for {shape[0]} rows of X, inconsistent numbers of "
            "samples: it must hold one held-out item for each user."
        )
    if getattr(y.dtype, "kind", "O") in "buif":
        return "index"
    if catalogue is None or not catalogue.has_strings:
        raise ValueError(
            f"Unknown label type: y of dtype {y.dtype} must be numbers, column indices, as X "
            "has no item names. Pass X as a RatingMatrix or DataFrame with item names, or y as "
            "indices."
        )
    return "name"


def row_labels(X: Any, n_rows: int) -> Any:
    """Return what the rows of X are called."""
    users = labels_of(X)[0]
    return np.arange(n_rows) if users is None else users


def list_table(
    kind: str,
    lead: Any,
    columns: np.ndarray,
    values: dict[str, np.ndarray],
    catalogue: Any,
    *,
    each_row: bool = False,
) -> Any:
    """Return lists (n_rows, n) of columns, -1 where there is none, as a table with a row for each.

    lead: by name, what stands before: a label for each list; values: by name, (n_rows, n);
    catalogue: of the items, or a function of columns that gives names of what else they are;
    each_row: whether an empty list has a line, without an item.
    """
    there, (n_rows, n) = columns >= 0, columns.shape
    there[:, :1] |= each_row & ~there.any(axis=1, keepdims=True)
    row = np.repeat(np.arange(n_rows), n).reshape(columns.shape)[there]
    rank = np.broadcast_to(np.arange(1, n + 1), columns.shape)[there]
    table = {name: _taken(labels, row) for name, labels in lead.items()}
    name = catalogue if callable(catalogue) else partial(named, catalogue=catalogue)
    names = name(columns[there])
    if (columns[there] < 0).any():
        for key, part in names.items():
            names[key] = np.array(part, dtype=object)
            names[key][columns[there] < 0] = None
    table |= {"rank": rank, **names}
    return as_frame(kind, table | {name: part[there] for name, part in values.items()})


def strongest(parts: Any) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Return the entries of a CSR array as lists, -1 at their ends, of the largest first."""
    n_rows, n = parts.shape[0], np.diff(parts.indptr)
    columns = np.full((n_rows, int(n.max(initial=1))), -1, dtype=np.int64)
    values = np.zeros(columns.shape)
    for i in range(n_rows):
        own = slice(parts.indptr[i], parts.indptr[i + 1])
        order = np.argsort(-np.abs(parts.data[own]), kind="stable")
        columns[i, : n[i]], values[i, : n[i]] = parts.indices[own][order], parts.data[own][order]
    return columns, {"contribution": values}


def reasons(model: Any, R: Any, items: np.ndarray, each: np.ndarray) -> list[str]:
    """Say in words why one item of each row is listed, the strongest reason first.

    model: fitted; each (R.nnz,): what the entries of rows R add to the scores of their items.
    """
    row, ranking = np.repeat(np.arange(items.size), np.diff(R.indptr)), model._ranking_
    item_model, tastes = model._item_model_, np.zeros(items.size)
    rated: Any = np.bincount(row, each, minlength=items.size)
    counts, best = item_model.offsets, [""] * items.size
    if ranking is None:
        choices, least = (rated if item_model.implicit else tastes), 0.0
        rated = rated - choices
    else:
        counts = ranking.lists.offsets
        share, logs = counts / counts.sum(), np.log(counts)
        least = _WORTH * np.sqrt(share @ (logs - share @ logs) ** 2)
        added = np.bincount(row, contributions(ranking.lists, R, items), minlength=items.size)
        choices = np.log1p(np.maximum(added, 0.0) / counts[items])
        if item_model.features is not None:
            table, k = model._score_table(), item_model.factors.shape[1]
            T = rated_rows(ranking, item_model, R, 0, items.size, table)[0][:, k:]
            D = item_model.features - table.centre
            tastes = np.einsum("id,id->i", T, D[items])
            best = _best_labels(model, T, D, counts, R, items)
        rated = rated - choices - tastes
    popular = counts[items] >= np.median(counts)
    said = []
    for i, name in enumerate(best):
        parts = {
            "chosen by people with your taste": choices[i],
            f"you rated {name} high" if name else "its features suit your ratings": tastes[i],
            "people who rate as you do rate it high": rated[i],
        }
        words = sorted((text for text in parts if parts[text] > least), key=lambda t: -parts[t])
        rest = "popular with everybody" if popular[i] else "your ratings say nothing about it"
        said.append("; ".join(words) or rest)
    return said


def _best_labels(
    model: Any, T: np.ndarray, D: np.ndarray, counts: np.ndarray, R: Any, items: np.ndarray
) -> list[str]:
    """Return the label of each item that the row's tastes T for D raise most, or "".

    The row R has rated items with it above their averages.
    """
    catalogue, features = model._catalogue_, model.item_features
    if catalogue is not None and catalogue.genres is not None:
        texts = [[t.strip() for t in text.split("|") if t.strip()] for text in catalogue.genres]
        names = sorted({name for own in texts for name in own})
        has = np.array([[name in own for name in names] for own in texts], dtype=bool)
    elif hasattr(features, "columns"):
        F = aligned_features(features, len(D), None if catalogue is None else catalogue.items)
        marks = np.flatnonzero(np.isin(F, (0.0, 1.0)).all(axis=0))
        names = [str(features.columns[c]).rpartition("=")[2] for c in marks]
        has = F[:, marks] > 0.0
    else:
        return [""] * items.size
    if not names:
        return [""] * items.size
    means = T @ ((counts[:, None] * D).T @ has) / np.maximum(counts @ has, np.finfo(float).tiny)
    above = R.data - model._item_model_.offsets[R.indices]
    rated_high = sparse.csr_array((above, R.indices, R.indptr), shape=R.shape) @ has > 0.0
    means[~(has[items] & rated_high)] = -np.inf
    found = means.argmax(axis=1)
    return [names[g] if row[g] > 0.0 else "" for g, row in zip(found, means, strict=True)]


def named(columns: np.ndarray, catalogue: Catalogue | None) -> dict[str, Any]:
    """Return ids and, where they are known, titles of columns."""
    if catalogue is None:
        return {"item": columns}
    table: dict[str, Any] = {"item": catalogue.items[columns]}
    if catalogue.titles is not None:
        table["title"] = [catalogue.titles[j] for j in columns]
    return table


def as_frame(kind: str, columns: dict[str, Any]) -> Any:
    """Return a DataFrame of pandas or polars."""
    if kind == "polars":
        import polars

        lists = {name: np.asarray(values).tolist() for name, values in columns.items()}
        return polars.DataFrame(lists, strict=False)  # ids of several types become texts
    import pandas as pd

    return pd.DataFrame({name: np.asarray(values) for name, values in columns.items()})


def _taken(labels: Any, rows: np.ndarray) -> Any:
    return labels[rows] if hasattr(labels, "take") else np.asarray(labels, dtype=object)[rows]


def hit_rate(best: np.ndarray, y: Any, n_items: int) -> float:
    """Return the share of users whose held-out item y is their best; y and best: columns or ids."""
    y = np.asarray(y)
    if best.dtype != object:
        if np.any(y >= n_items):
            raise ValueError(
                f"y names item {np.nanmax(y)} and X has {n_items} columns: a held-out item "
                "must be a column index of X, or negative for none. Behind a selection of items "
                "pass item names, as indices count the items that stayed."
            )
        counted = y >= 0
    else:
        counted = np.array([isinstance(name, str) and name != "" for name in y])
    if not counted.any():
        raise ValueError("y names no held-out item, so there is nothing to score on: pass some.")
    return float((best == y)[counted].mean())


@filled
class TableOutput:
    """A base before scikit-learn's of estimators whose answers may be tables."""

    def set_output(self, *, transform: Any = None, recommend: Any = None) -> Any:
        """Choose what methods return: arrays, or tables with ids and titles.

        Parameters
        ----------
        transform : {"default", "pandas", "polars"} or None, default=None
            For `transform` and `fit_transform`, as in scikit-learn. None changes nothing.
        recommend : {"default", "pandas", "polars"} or None, default=None
            For `recommend`, `similar_items` and `explain`: "default" are arrays of columns, the
            others DataFrames, in which and beside which items are named by ids. None changes
            nothing. A clone keeps the choice, a file does not.

        Returns
        -------
        self : estimator
            The estimator.

        Raises
        ------
        ValueError
            If a value is none of these.

        Examples
        --------
        {model}
        >>> model.set_output(recommend="pandas").recommend(X, n=1)[["user", "rank", "item"]]
           user  rank  item
        0     0     1     2
        1     1     1     1
        """
        if recommend is not None:
            rule = f"one of {', '.join(map(repr, _OUTPUTS))}"
            remedy = "'default' gives arrays, and the others give tables"
            require(recommend in _OUTPUTS, "recommend", recommend, rule, remedy)
            # where clone looks for it
            config = getattr(self, "_sklearn_output_config", {})
            self._sklearn_output_config = {**config, "recommend": recommend}
        if transform is not None:
            super().set_output(transform=transform)  # type: ignore[misc]
        return self

    def similar_users(self, X: Any, Y: Any, n: int = 10) -> Any:
        """Find the rows of Y that are nearest to each row of X, by the cosine of `transform`.

        A model keeps nobody of its `fit`: both sides are rows that you pass. It costs no budget,
        and the answers belong to whoever may see these rows.

        Parameters
        ----------
        X : {array-like, DataFrame, sparse matrix, RatingMatrix} of shape (n_queries, n_items)
            Known ratings of the users to start from.
        Y : {array-like, DataFrame, sparse matrix, RatingMatrix} of shape (n_users, n_items)
            Known ratings of the users to choose from. Whoever is in both is the nearest to himself.
        n : int, default=10
            Neighbours for each, at least 1; more than Y has rows means all of them.

        Returns
        -------
        users : int64 ndarray of shape (n_queries, min(n, n_users))
            Rows of Y, the nearest first, of equal ones the smaller. -1 where none is left: nobody
            is near a row whose embedding is 0, as without ratings or factors.
        scores : float64 ndarray of the same shape
            Cosines, -inf where `users` is -1. Where answers are tables both come as one, with the
            columns user (of X), rank, neighbor (of Y) and score.

        Raises
        ------
        {errors}
            Or if `n` is no integer >= 1.

        Examples
        --------
        >>> import numpy as np
        >>> from skdpmf import CacheSGDFactorizer
        >>> X = np.array([[5.0, 1.0, np.nan], [4.0, np.nan, 3.0], [1.0, 5.0, np.nan]])
        >>> CacheSGDFactorizer(1, alpha=0.05).fit(X).similar_users(X[:1], X, n=1)[0]
        array([[0]])
        """
        check_count(n, "n")
        ours, theirs = (self._directions(rows) for rows in (X, Y))
        n, nobody = min(int(n), len(theirs)), ~np.any(theirs, axis=1)
        users = np.empty((len(ours), n), np.int64)
        scores = np.empty(users.shape)
        step = 1 + _COSINES // max(len(theirs), 1)
        for start in range(0, len(ours), step):
            here = slice(start, start + step)
            near = ours[here] @ theirs.T
            near[~np.any(ours[here], axis=1)], near[:, nobody] = -np.inf, -np.inf
            users[here] = np.argsort(-near, axis=1, kind="stable")[:, :n]
            scores[here] = np.take_along_axis(near, users[here], axis=1)
        users[np.isinf(scores)] = -1
        if not self._answers_by_table:
            return users, scores
        lead, labels = {"user": row_labels(X, len(ours))}, row_labels(Y, len(theirs))

        def named_users(rows: np.ndarray) -> dict[str, Any]:
            return {"neighbor": _taken(labels, rows)}

        return list_table(self._output, lead, users, {"score": scores}, named_users)

    def _directions(self, X: Any) -> np.ndarray:
        """Embeddings of rows, of length 1 or 0."""
        Z = np.asarray(self.transform(X), dtype=np.float64)  # type: ignore[attr-defined]
        length = np.linalg.norm(Z, axis=1, keepdims=True)
        return np.divide(Z, length, out=np.zeros_like(Z), where=length > 0)

    @property
    def _output(self) -> str:
        return str(getattr(self, "_sklearn_output_config", {}).get("recommend", "default"))

    @property
    def _answers_by_table(self) -> bool:
        return self._output != "default"
