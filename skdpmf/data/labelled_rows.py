"""Names of users and items: matrices and rows {item: rating} that know them, and a catalogue."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import sparse

from ..exceptions import counted

if TYPE_CHECKING:
    import pandas as pd


class Catalogue:
    """Ids, titles and genres of items, in the order of the columns of X.

    items (array-like of hashables, distinct): the ids; titles, genres (sequences of str): one for
    each, or None; dropped (ids): what an earlier step left out, so that rows may name it, to no
    effect.
    """

    def __init__(
        self, items: Any, titles: Any = None, dropped: Iterable[Any] = (), genres: Any = None
    ) -> None:
        self.items, self.titles, self.genres = as_index(items), _titles(titles), _titles(genres)
        self.dropped = frozenset(dropped)
        self._place: dict[Any, int] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_place": None}

    @property
    def place(self) -> dict[Any, int]:
        """Column of each id."""
        if self._place is None:
            self._place = {item: j for j, item in enumerate(self.items.tolist())}
        return self._place

    @property
    def is_plain(self) -> bool:
        """Whether ids are the numbers of the columns, and nothing else is known."""
        import pandas as pd

        return self.titles is None and self.items.equals(pd.RangeIndex(len(self.items)))

    @property
    def has_strings(self) -> bool:
        """Whether all ids are strings."""
        return self.items.inferred_type in ("string", "empty")

    def frame(self) -> "pd.DataFrame":
        """Return ids, titles and genres as a table."""
        import pandas as pd

        parts = {"item": self.items, "title": self.titles, "genres": self.genres}
        return pd.DataFrame({name: part for name, part in parts.items() if part is not None})

    def columns(self, ids: Any, parameter: str) -> np.ndarray:
        """Return the columns of ids; ValueError names the first unknown one."""
        place, ids = self.place, list(ids)
        many = [item for item in ids if isinstance(item, list | dict | set | np.ndarray)]
        if many:
            raise ValueError(f"{parameter} holds {many[0]!r:.60} and must hold ids: pass one list.")
        found = np.array([place.get(item, -1) for item in ids], dtype=np.int64)
        lost = [ids[at] for at in np.flatnonzero(found < 0)]
        if lost:
            raise ValueError(self.unknown_ids(lost, parameter))
        return found

    def unknown_ids(self, ids: Sequence[Any], parameter: str) -> str:
        """Return the text of the error that these ids are in no catalogue."""
        known = ", ".join(map(repr, self.items[:3].tolist()))
        more = f", and {counted(len(ids) - 1, 'more item')}" if len(ids) > 1 else ""
        first = ids[0].item() if isinstance(ids[0], np.generic) else ids[0]
        ignored = " (recommend does so with unknown='ignore')" if parameter == "X" else ""
        return (
            f"{parameter} names the item {first!r}{more}, which the model does not know; its "
            f"catalogue begins with {known}. Leave unknown items out{ignored}, and write ids as in "
            "fit, of the same type."
        )


class RatingMatrix:
    """Ratings as a matrix that knows its users, its items and their titles.

    Every estimator, selector, search and split of this package takes it where it takes a matrix,
    and so do those of scikit-learn that cut rows. A fitted model then answers by ids and titles.
    ``X, users, items = matrix`` unpacks it.

    Parameters
    ----------
    X : scipy.sparse.csr_array of shape (n_users, n_items)
        Ratings in float64, stored = rated.
    users, items : array-like of hashables, shapes (n_users,) and (n_items,), default=None
        Ids of the rows and columns. None: 0, 1, ...
    titles : sequence of str of length n_items, default=None
        A title for each item; titles may repeat.
    undeclared : tuple of {"users", "items"}, default=()
        Ids that were read off the ratings, undeclared. A private ``fit`` says so in
        ``privacy_spent_``; X alone cannot show it.

    Attributes
    ----------
    X, titles, undeclared
        As given.
    users, items : pandas.Index
        Ids of the rows and columns.

    Raises
    ------
    ValueError
        If there are not as many labels as rows or columns.

    Examples
    --------
    >>> import pandas as pd
    >>> from skdpmf.data import ratings_to_matrix
    >>> table = pd.DataFrame({"user": ["ann", "bob"], "item": "Heat", "rating": [4.0, 2.0]})
    >>> matrix = ratings_to_matrix(table, items=["Alien", "Heat"])
    >>> matrix
    RatingMatrix of 2 users x 2 items, 2 ratings
    >>> matrix.rows(["bob"]).X.toarray(), matrix.undeclared
    (array([[0., 2.]]), ('users',))
    >>> matrix.with_ratings(2 * matrix.X).X.toarray()
    array([[0., 8.],
           [0., 4.]])
    """

    def __init__(
        self,
        X: Any,
        users: Any = None,
        items: Any = None,
        titles: Sequence[str] | None = None,
        undeclared: tuple[str, ...] = (),
    ) -> None:
        self.X = X
        sides = zip((users, items), X.shape, strict=True)
        self.users, self.items = (as_index(range(n) if ids is None else ids) for ids, n in sides)
        self.titles = _titles(titles)
        self.undeclared = undeclared
        for name, n in (("users", X.shape[0]), ("items", X.shape[1]), ("titles", X.shape[1])):
            labels = getattr(self, name)
            if labels is not None and len(labels) != n:
                raise ValueError(
                    f"{name} has {len(labels)} values and must have {n} for X of shape {X.shape}: "
                    "pass one for each."
                )

    @property
    def shape(self) -> tuple[int, int]:
        """(n_users, n_items)."""
        return self.X.shape[0], self.X.shape[1]

    ndim = 2

    @property
    def catalogue(self) -> "pd.DataFrame":
        """The items as a table: ``item`` is the id, ``title`` stands beside it where known."""
        return Catalogue(self.items, self.titles).frame()

    @property
    def nnz(self) -> int:
        """Number of ratings."""
        return int(self.X.nnz)

    def rows(self, users: Any) -> "RatingMatrix":
        """Return the rows of some users.

        Parameters
        ----------
        users : hashable, or array-like of them, shape (n_rows,)
            Ids.

        Returns
        -------
        RatingMatrix
            With as many rows, in this order.

        Raises
        ------
        ValueError
            If an id is none of ``users``.
        """
        is_one = isinstance(users, str | bytes | tuple) or not hasattr(users, "__iter__")
        wanted = [users] if is_one else list(users)
        places = self.users.get_indexer(as_index(wanted))
        if (places < 0).any():
            missing = wanted[int(np.flatnonzero(places < 0)[0])]
            raise ValueError(
                f"users names {missing!r}, which has no row in this matrix of {self.shape[0]:,} "
                f"users: pass ids of its rows, which begin with {self.users[:3].tolist()}."
            )
        return self[places]

    def __getitem__(self, key: Any) -> "RatingMatrix":
        rows, columns = key if isinstance(key, tuple) else (key, slice(None))
        rows, columns = (_as_indexer(part) for part in (rows, columns))
        X, titles = sparse.csr_array(self.X), self.titles
        if not _is_all(rows):
            X = X[rows]
        if not _is_all(columns):
            X = X[:, columns]
            if titles is not None:
                titles = [titles[j] for j in np.arange(len(titles))[columns]]
        return RatingMatrix(X, self.users[rows], self.items[columns], titles, self.undeclared)

    def with_ratings(self, X: Any) -> "RatingMatrix":
        """Return other ratings of the same users and items.

        Parameters
        ----------
        X : scipy.sparse.csr_array of shape (n_users, n_items)
            Ratings, as for the class.

        Returns
        -------
        RatingMatrix
            With the same labels.
        """
        return RatingMatrix(X, self.users, self.items, self.titles, self.undeclared)

    def __iter__(self) -> Iterator[Any]:
        return iter((self.X, self.users, self.items))

    def __repr__(self) -> str:
        users, items = map(counted, self.shape, ("user", "item"))
        number = counted(self.nnz, "rating") if hasattr(self.X, "nnz") else "of Dask"
        return f"RatingMatrix of {users} x {items}, {number}"


def _titles(titles: Any) -> list[str] | None:
    return titles if titles is None or isinstance(titles, list) else list(titles)


def _as_indexer(part: Any) -> Any:
    if part is Ellipsis:
        return slice(None)
    if isinstance(part, slice):
        return part
    places = np.atleast_1d(np.asarray(part))
    return places if places.size else places.astype(np.intp)


def _is_all(part: Any) -> bool:
    return isinstance(part, slice) and part == slice(None)


def as_index(ids: Any, name: Any = None) -> "pd.Index":
    """Return ids as an index under a name; a tuple is one id."""
    import pandas as pd

    if isinstance(ids, pd.Index):
        return ids if name is None else ids.rename(name)
    return pd.Index(ids, name=name, tupleize_cols=False)


def as_frame(table: Any) -> Any:
    """Return a lazy table collected, one of Arrow as one of pandas, and others as they are."""
    if hasattr(table, "collect_schema") and hasattr(table, "collect"):
        return table.collect()
    if hasattr(table, "read_all"):  # batches of Arrow
        table = table.read_all()
    return table.to_pandas() if hasattr(table, "column_names") else table


def as_pandas(frame: Any, columns: Sequence[str]) -> "pd.DataFrame":
    """Return a table of pandas as it is; of another library, such as polars, these columns."""
    import pandas as pd

    frame = as_frame(frame)
    if isinstance(frame, pd.DataFrame):
        return frame
    return pd.DataFrame({name: np.asarray(frame[name]) for name in columns})


def require_columns(table: Any, columns: Iterable[Any], name: str, remedy: str) -> None:
    """Raise ValueError for columns that a table of this name lacks."""
    names = list(getattr(table, "columns", ()))
    missing = ", ".join(repr(column) for column in columns if column not in names)
    if missing:
        raise ValueError(f"{name} has no column {missing}; its columns are {names}. {remedy}.")


def ids_and_titles(items: Any, item: str = "item") -> tuple[Any, list[str] | None]:
    """Return declared ids, and the titles that a table of items has.

    The ids are the column `item`, else "item".
    """
    items = as_frame(items)
    if not hasattr(items, "columns"):
        return items, None
    names = list(items.columns)
    column = next((name for name in (item, "item") if name in names), item)
    require_columns(items, [column], "items", "Rename that of the ids, or pass the ids alone")
    if "title" not in names:
        return np.asarray(items[column]), None
    titles = as_pandas(items, ["title"])["title"]
    texts = ["" if gone else str(title) for title, gone in zip(titles, titles.isna(), strict=True)]
    return np.asarray(items[column]), texts


def labels_of(X: Any) -> tuple[Any, Any, tuple[str, ...], list[str] | None]:
    """Return ids of the rows and columns of a matrix, what of them is undeclared, and titles."""
    if isinstance(X, RatingMatrix):
        return X.users, X.items, X.undeclared, X.titles
    if hasattr(type(X), "user_ids"):  # on disk
        return X.user_ids, X.item_ids, X.undeclared, X.titles
    return X.index if hasattr(X, "iloc") else None, getattr(X, "columns", None), (), None


def catalogue_of(X: Any) -> Catalogue | None:
    """Return the names of the columns that X brings along, if any."""
    for name in ("items", "item_ids", "columns"):  # RatingMatrix, ratings on disk, DataFrame
        found = getattr(X, name, None)
        if found is not None and not callable(found):
            return Catalogue(found, None if name == "columns" else getattr(X, "titles", None))
    return None


def names_items(X: Any) -> bool:
    """Return whether X is a dict {item: rating} or a list of such."""
    if isinstance(X, list | tuple):
        return len(X) > 0 and all(isinstance(row, Mapping) for row in X)
    return isinstance(X, Mapping) and not hasattr(X, "shape")  # some sparse matrices are dicts


def labelled_rows(
    X: Any, catalogue: Catalogue | None, n_items: int, name: str = "X", *, unknown: str = "error"
) -> tuple[Any, int]:
    """Return X with columns in the order of the catalogue, and the number of ratings left out.

    A dict {item: rating} of one user, a list of such, or a RatingMatrix with other columns than the
    catalogue become a RatingMatrix of `n_items` columns; what else it is stays as it is. `name` is
    the argument that errors name. Unknown items are an error, or ignored.
    """
    if names_items(X):
        return _of_dicts([X] if isinstance(X, Mapping) else X, catalogue, n_items, name, unknown)
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
                    f"{name} gives the item {item!r} the rating {rating!r}, which must be a finite "
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
