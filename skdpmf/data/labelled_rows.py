"""Rows that name their items: dicts {item: rating}, and matrices with columns of their own."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from scipy import sparse

from .labels import Catalogue, RatingMatrix, names_items

__all__ = ["labelled_rows"]


def labelled_rows(
    X: Any, catalogue: Catalogue | None, n_items: int, name: str = "X", *, unknown: str = "error"
) -> tuple[Any, int]:
    """Return X with columns in the order of the catalogue, and the number of ratings left out.

    X (anything): a dict {item: rating} of one user, a list of such, or a RatingMatrix with other
    columns than the catalogue become a RatingMatrix; what else it is stays as it is.
    n_items: columns that it must have; name: the argument that errors name; unknown ("error" or
    "ignore"): what is done with ratings of items that are not in the catalogue. Raises ValueError
    for such an item, or a rating that is no finite number.
    """
    if names_items(X):
        dicts = [X] if isinstance(X, Mapping) else X
        return _of_dicts(dicts, catalogue, n_items, name, unknown)
    if not isinstance(X, RatingMatrix) or catalogue is None or X.items.equals(catalogue.items):
        return X, 0
    place, names, rows = catalogue.place, X.items.tolist(), sparse.coo_array(X.X)
    columns = np.array([place.get(item, -1) for item in names], dtype=np.int64)[rows.col]
    dropped = np.array([item in catalogue.dropped for item in names], dtype=bool)[rows.col]
    known, strange = columns >= 0, (columns < 0) & ~dropped
    if unknown == "error" and strange.any():
        unheard = X.items[np.unique(rows.col[strange])]
        raise ValueError(catalogue.unknown_ids(unheard.tolist(), name))
    entries = rows.data[known], (rows.row[known], columns[known])
    Y = sparse.coo_array(entries, shape=(X.shape[0], n_items))  # sums no repeated entries
    return RatingMatrix(Y, X.users, catalogue.items, catalogue.titles), int(strange.sum())


def _of_dicts(
    dicts: Any, catalogue: Catalogue | None, n_items: int, name: str, unknown: str
) -> tuple[RatingMatrix, int]:
    place, dropped = (None, ()) if catalogue is None else (catalogue.place, catalogue.dropped)
    rows, unheard = [], []
    for ratings in dicts:
        row = {}
        for item, rating in ratings.items():
            column = _column(item, n_items) if place is None else place.get(item, -1)
            if column < 0:
                if item not in dropped:
                    unheard.append(item)
                continue
            try:
                row[column] = float(rating)
            except (TypeError, ValueError):
                row[column] = np.nan
            if not np.isfinite(row[column]):
                raise ValueError(
                    f"{name} has the rating {rating!r} of the item {item!r} and must have a finite "
                    "number: leave out what was not rated."
                )
        rows.append(row)
    if unheard and unknown == "error":
        if catalogue is None:
            raise ValueError(
                f"{name} names the item {unheard[0]!r}, and the model knows no names, only the "
                f"columns 0 to {n_items - 1}: fit it with a RatingMatrix or DataFrame, or pass "
                "columns."
            )
        raise ValueError(catalogue.unknown_ids(unheard, name))
    indptr = np.concatenate(([0], np.cumsum([len(row) for row in rows])))
    indices = np.array([j for row in rows for j in sorted(row)], dtype=np.int32)
    data = np.array([row[j] for row in rows for j in sorted(row)], dtype=np.float64)
    X = sparse.csr_array((data, indices, indptr.astype(np.int32)), shape=(len(rows), n_items))
    names = () if catalogue is None else (catalogue.items, catalogue.titles)
    return RatingMatrix(X, None, *names), len(unheard)


def _column(item: Any, n_items: int) -> int:
    is_int = isinstance(item, int | np.integer) and not isinstance(item, bool)
    return int(item) if is_int and 0 <= item < n_items else -1
