"""Rating matrices: made of tables of (user, item, rating) rows, and with entries taken out."""

from itertools import pairwise
from os import PathLike
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import sparse

from ..exceptions import counted
from . import labelled_rows as labels
from .labelled_rows import RatingMatrix
from .validation import as_rating_matrix, is_integer, require

if TYPE_CHECKING:
    import pandas as pd

_BLOCK_ROWS = 1024  # blocks of users have whole multiples of it


def ratings_to_matrix(
    frame: Any,
    user: str = "user",
    item: str = "item",
    rating: str | None = "rating",
    *,
    users: Any = None,
    items: Any = None,
) -> RatingMatrix:
    """Pivot a table with one rating a row into a users x items matrix that knows its labels.

    **For a private model declare users and items**: with ``items=None`` the columns are the items
    that occur in `frame`, so that the model's shape reveals which items somebody rated, and with
    ``users=None`` the rows are the users who occur. The guarantee of the estimators holds for a
    catalogue and a number of rows that are known without the ratings. Where they are not, pass the
    result itself to ``fit``, which then states that this condition is not met.

    Parameters
    ----------
    frame : DataFrame of pandas, polars or Dask, also a lazy one, or pyarrow.Table
        One rating a row. Not modified. A table of Dask, whose users and items must be declared,
        gives a matrix of Dask: it is shuffled by user, and a ``fit`` reads it in the workers.
    user, item : str, default="user", "item"
        Columns with the ids: integers, strings or other hashables.
    rating : str or None, default="rating"
        Column with the ratings. NaN = unknown: the row is left out, its user and item stay.
        None: every row is a rating of 1.0 (plays, clicks).
    users : array-like of ids, shape (n_users,), default=None
        Rows of the matrix, in this order; those without ratings stay, empty. None: the ids that
        occur in `frame`, sorted.
    items : array-like of ids, shape (n_items,), or DataFrame, default=None
        Columns of the matrix, likewise. A table of items, such as `read_items` gives, has
        their ids in the column `item`, else in ``"item"``, and, where there is one, titles in the
        column ``title``: models then answer by titles.

    Returns
    -------
    matrix : RatingMatrix
        ``X, users, items = matrix`` unpacks it. Several ratings of one (user, item) pair become
        their mean.

    Raises
    ------
    ValueError
        If a column is missing or there twice, an id is missing or not declared, a declared id
        occurs twice, users or items are no ids, or ratings are not finite numbers. For the
        curator's eyes: these errors name rows.

    Examples
    --------
    >>> import pandas as pd
    >>> frame = pd.DataFrame({"user": [7, 7, 3], "item": ["b", "a", "b"], "rating": [4, 2, 5]})
    >>> X, users, items = ratings_to_matrix(frame, items=["a", "b", "c"])
    >>> X.toarray()
    array([[0., 5., 0.],
           [2., 4., 0.]])
    >>> list(users), list(items)
    ([3, 7], ['a', 'b', 'c'])
    """
    items, titles = labels.ids_and_titles(items, item)
    frame = labels.as_frame(frame)
    columns = [name for name in (user, item, rating) if name is not None]
    remedy = "pass pandas.DataFrame(frame) with named columns"
    remedy = "pass read_ratings(path)" if isinstance(frame, str | PathLike) else remedy
    rule, what = "a DataFrame with one rating a row", type(frame).__name__
    require(hasattr(frame, "columns"), "frame", what, rule, remedy)
    names = list(frame.columns)
    repeated = [name for name in columns if names.count(name) > 1]
    if repeated:
        raise ValueError(
            f"frame has several columns named {', '.join(map(repr, repeated))} among {names}, and "
            "must have one: rename or drop the others."
        )
    remedy = "Name yours by user=, item=, rating= (rating=None: every row counts as 1.0)"
    labels.require_columns(frame, columns, "frame", remedy)
    declared = {"users": users, "items": items}
    undeclared = tuple(name for name, ids in declared.items() if ids is None)
    if hasattr(frame, "__dask_graph__"):
        rule = "ids for a table of Dask, whose rows are not here"
        require(not undeclared, "".join(undeclared[:1]), None, rule, "declare users and items")
        users, items = (_declared(ids, name, None) for name, ids in declared.items())
        X = _shuffled(frame[columns], users, items)
        return RatingMatrix(X, users, items, titles)
    triples, user_index, item_index = _coded(labels.as_pandas(frame, columns), users, items)
    X = sparse.coo_array(triples, shape=(len(user_index), len(item_index)))
    return RatingMatrix(as_rating_matrix(X), user_index, item_index, titles, undeclared)


def _coded(frame: Any, users: Any, items: Any) -> tuple[Any, Any, Any]:
    """Return ratings and their rows and columns; the users and items that these refer to."""
    user, item, *rating = frame.columns
    rows, user_index = _encode(frame[user], users, "users")
    cols, item_index = _encode(frame[item], items, "items")
    values = np.ones(len(frame))
    if rating:
        remedy = ", or pass rating=None to count every row as 1.0"
        values = rating_values(frame[rating[0]], f"column {rating[0]!r}", remedy)
    return (values, (rows, cols)), user_index, item_index


def _shuffled(frame: Any, users: Any, items: Any) -> Any:
    """Return a table of Dask as a matrix of Dask, in blocks of users with all their ratings."""
    import dask.array as da
    import pandas as pd
    from dask import delayed

    shape, meta = (len(users), len(items)), sparse.csr_array((0, len(items)))
    step = -(-max(shape[0] // frame.npartitions, 1) // _BLOCK_ROWS) * _BLOCK_ROWS
    ends = [*range(0, shape[0], step), shape[0]]
    like = pd.DataFrame({"row": np.arange(0), "item": np.arange(0), "rating": np.empty(0)})
    table = frame.map_partitions(_numbered, delayed(users), delayed(items), meta=like)
    parts = table.set_index("row", divisions=ends).to_delayed()
    blocks = [
        da.from_delayed(
            delayed(_block)(part, first, stop, shape[1]), (stop - first, shape[1]), meta=meta
        )
        for part, (first, stop) in zip(parts, pairwise(ends), strict=True)
    ]
    return da.concatenate(blocks)


def _numbered(frame: Any, users: Any, items: Any) -> Any:
    """Return a part of a table with places in the place of ids."""
    import pandas as pd

    (ratings, (rows, columns)), *_ = _coded(frame, users, items)
    return pd.DataFrame({"row": rows, "item": columns, "rating": ratings})


def _block(part: Any, first: int, stop: int, n_items: int) -> Any:
    """Return a block of users as a matrix."""
    at = part.index.to_numpy() - first, part["item"].to_numpy()
    triples = part["rating"].to_numpy(), at
    return as_rating_matrix(sparse.coo_array(triples, shape=(stop - first, n_items)))


def _encode(ids: "pd.Series", declared: Any, parameter: str) -> "tuple[Any, pd.Index]":
    """Return the position of each id, and the index that the positions refer to."""
    import pandas as pd

    name = ids.name
    ids = present_ids(ids, f"column {name!r}")
    if declared is None:
        codes, found = pd.factorize(ids, sort=True)
        return codes, labels.as_index(found, name)
    index = _declared(declared, parameter, name)
    if index.has_duplicates:
        two = index[index.duplicated()]
        raise ValueError(f"{parameter} holds {_some(two)} more than once: pass each id once.")
    codes = index.get_indexer(labels.as_index(ids))
    unknown = np.flatnonzero(codes < 0)
    if unknown.size:
        raise ValueError(
            f"column {name!r} has {counted(unknown.size, 'row')} whose id is not in {parameter}= "
            f"({_some(ids.iloc[unknown].unique())}). Declare these ids or drop the rows; ids must "
            f"be of one type (column: {ids.dtype}, {parameter}: {index.dtype})."
        )
    return codes, index


def _declared(ids: Any, parameter: str, name: Any) -> "pd.Index":
    """Return declared ids as an index."""
    ids = labels.as_frame(ids)
    if hasattr(ids, "columns"):
        raise ValueError(
            f"{parameter} is a table with the columns {list(ids.columns)!r} and must be ids alone: "
            f"pass the column that holds them, such as {parameter}=table[{name!r}]."
        )
    try:
        if hasattr(ids, "to_numpy") and not hasattr(ids, "isna"):  # of polars or Arrow
            ids = np.asarray(ids)
        index = labels.as_index(ids, name)
        hash(tuple(index[:1]))  # ids are hashables, and in an order
        if not isinstance(ids, set | frozenset):
            return index
        raise TypeError
    except (TypeError, ValueError):
        shown = " ".join(repr(ids).split())
        raise ValueError(
            f"{parameter}={shown:.60} must be an array of ids in one dimension, in the order of "
            f"the matrix: pass such as {parameter}=range(300), or None for those that occur."
        ) from None


def _some(ids: Any, limit: int = 5) -> str:
    shown = ", ".join(repr(x) for x in np.asarray(ids[:limit]).tolist())
    return shown + (", ..." if len(ids) > limit else "")


def present_ids(ids: "pd.Series", where: str) -> "pd.Series":
    """Return ids, none of them missing, in the type of their categories."""
    import pandas as pd

    absent = np.flatnonzero(ids.isna())
    if absent.size:
        raise ValueError(
            f"{where} lacks an id in {counted(absent.size, 'row')}, the first of them row "
            f"{absent[0]}: drop these rows, or give them an id."
        )
    is_categorical = isinstance(ids.dtype, pd.CategoricalDtype)
    return ids.astype(ids.cat.categories.dtype) if is_categorical else ids


def rating_values(column: "pd.Series", where: str, remedy: str = "") -> Any:
    """Return ratings as float64, NaN where unknown."""
    import pandas as pd

    if len(column) and (not pd.api.types.is_numeric_dtype(column) or column.dtype.kind == "c"):
        bad = column[pd.to_numeric(column, errors="coerce").isna() & column.notna()]
        value = f" (such as {bad.iloc[0]!r} in row {bad.index[0]!r})" if len(bad) else ""
        raise ValueError(
            f"{where} has dtype {column.dtype}{value}, and ratings must be numbers: convert it "
            f"with pandas.to_numeric{remedy}."
        )
    values = column.to_numpy(dtype=np.float64, na_value=np.nan)
    infinite = np.flatnonzero(np.isinf(values))
    if infinite.size:
        raise ValueError(
            f"{where} is infinite in {counted(infinite.size, 'row')}, the first of them row "
            f"{infinite[0]}: ratings must be finite, so write NaN where they are unknown."
        )
    return values


def bound_contributions(X: Any, max_ratings_per_user: Any, priorities: Any) -> Any:
    """Keep in every row the entries with the smallest priorities.

    The entries of row i that stay are a function of row i and its priorities alone, so that a
    user who joins or leaves changes one row of the result and nothing else. A bound that looked
    at other rows (a quantile of the activity, a draw shared by all) would not have this.

    `X` is canonical CSR, `max_ratings_per_user` is public, never read off the data, and
    `priorities` (n_ratings,) are one integer or float for each entry of ``X.data``: ties go to the
    smaller column, and NaN counts as the largest. The result shares memory with `X` if all entries
    are kept.
    """
    tau = max_ratings_per_user
    remedy = "pass the number of ratings that each user may contribute"
    require(is_integer(tau, 1), "max_ratings_per_user", tau, "an integer >= 1", remedy)
    X = sparse.csr_array((X.data, X.indices, X.indptr), shape=X.shape)
    if not X.has_canonical_format:
        raise ValueError(
            "X must have the columns of a row in order and once, so that a user's ratings can be "
            "counted: call as_rating_matrix(X) first."
        )
    n_rated = np.diff(X.indptr)
    long_rows = n_rated > tau
    if not long_rows.any():
        return X
    entries = np.flatnonzero(np.repeat(long_rows, n_rated))
    row = np.repeat(np.arange(long_rows.sum()), n_rated[long_rows])
    keep = np.ones(X.nnz, bool)
    keep[entries] = rank_in_groups(priorities[entries], row) < tau
    return keep_entries(X, keep)


def rank_in_groups(values: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """Places from 0 by value among the entries of the same group; of equal ones the first leads."""
    counts = np.bincount(groups)
    rank = np.empty(groups.size, dtype=np.intp)
    order = np.lexsort((values, groups))  # a stable sort
    rank[order] = np.arange(groups.size) - np.repeat(np.cumsum(counts) - counts, counts)
    return rank


def keep_entries(R: sparse.csr_array, keep: np.ndarray) -> sparse.csr_array:
    """Return the CSR array of the stored entries that a mask, aligned with ``R.data``, keeps."""
    indptr = np.concatenate(([0], np.cumsum(keep)))[R.indptr].astype(R.indptr.dtype)
    return sparse.csr_array((R.data[keep], R.indices[keep], indptr), shape=R.shape)
