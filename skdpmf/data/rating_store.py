"""Ratings on disk, in blocks of users: written once, then read block by block.

A store is a folder. Four files hold the fields of all `RatingBlock` one after another, without
headers, little-endian; up to three hold the labels of rows and columns; ``manifest.json`` holds the
rest: the shape, the table of the blocks (runs, ratings and a CRC-32 of each field), and a SHA-256
of the manifest itself. The checksums find accidents, not a forger; what a forger writes is held
against ranges and order, so that no file whatever leads compiled code outside of its arrays.
"""

import math
import operator
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from ._store_chunks import is_integer, parquet_chunks, sorted_table
from ._store_files import (
    FIELDS,
    MANIFEST,
    MOST_ROWS,
    Labels,
    OpenFile,
    StoredRatings,
    Writer,
    absolute,
    checked_facts,
    checked_table,
    damaged,
    new_store,
    read_manifest,
    undeclared,
    wrong_field,
)
from .labels import labels_of
from .validation import _container, as_rating_matrix

__all__ = ["RatingBlock", "RatingStore"]


class RatingBlock(NamedTuple):
    """Ratings of consecutive users, in item order.

    Attributes
    ----------
    start, stop : int
        First user (row) of the block, and one past the last.
    items : ndarray of shape (n_runs,), int32
        Items (columns) that a user of the block has rated, ascending.
    indptr : ndarray of shape (n_runs + 1,), int64
        Ratings ``indptr[r]:indptr[r + 1]`` belong to ``items[r]``.
    users : ndarray of shape (n_ratings,), uint16
        User of each rating, counted from `start`; ascending within a run.
    ratings : ndarray of shape (n_ratings,), float32
        The ratings.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     store = RatingStore.from_matrix(pathlib.Path(folder) / "ratings", [[5.0], [1.0]])
    ...     block = store.read_block(0)
    >>> block.start, block.stop, block.items.tolist(), block.users.tolist(), block.ratings.tolist()
    (0, 2, [0], [0, 1], [5.0, 1.0])
    """

    start: int
    stop: int
    items: Any
    indptr: Any
    users: Any
    ratings: Any


class RatingStore(StoredRatings):
    """A users x items rating matrix on disk, read in blocks of consecutive users.

    Made by `from_matrix`, `from_chunks` or `from_parquet`; opened by its path. It never changes:
    to change ratings, write the store anew. Neither writing a table nor reading blocks holds more
    in memory than one block of users, some buffers and the labels. Several threads and processes
    may read one store. It pickles as its path.

    Parameters
    ----------
    path : str or path-like
        Folder of the store.

    Attributes
    ----------
    path : pathlib.Path
        Folder of the store, absolute.
    shape : (int, int)
        Users and items.
    nnz : int
        Ratings, those of one (user, item) pair counted once.
    block_rows : int
        Users of a block; the last block may have fewer.
    n_blocks : int
        Blocks.
    undeclared : tuple of {"users", "items"}
        Values read off a table, as they were not declared, as in `RatingMatrix`: a private ``fit``
        says so in ``privacy_spent_``.
    mean, std : float
        Mean and population standard deviation of the stored ratings, in rating units; NaN without
        any.
    fingerprint : str
        SHA-256 of the manifest, which holds the checksums of everything else: stores of the same
        ratings, labels, `undeclared` and `block_rows` have the same, others another.

    Raises
    ------
    FileNotFoundError
        If there is nothing at `path`.
    RatingStoreError
        If a file is missing or has the wrong size, or the manifest was altered, is of another
        format or of a newer version, or does not fit together. Altered bytes of the ratings are
        found when a block is read first, those of labels when they are read, and all of them by
        `verify`.

    See Also
    --------
    ratings_to_matrix : A table in memory to a matrix in memory.

    Notes
    -----
    Ratings are stored as float32; those too large for it become its largest number. NaN means
    unknown and is left out.

    Examples
    --------
    >>> import tempfile, pathlib
    >>> folder = tempfile.TemporaryDirectory()
    >>> nan = float("nan")
    >>> store = RatingStore.from_matrix(
    ...     pathlib.Path(folder.name) / "ratings",
    ...     [[5.0, nan], [1.0, 2.0], [nan, 4.0]],
    ...     block_rows=2,
    ... )
    >>> store.shape, store.nnz, store.n_blocks, store.mean
    ((3, 2), 4, 2, 3.0)
    >>> store.read_block(0).items, store.read_block(0).ratings
    (array([0, 1], dtype=int32), array([5., 1., 2.], dtype=float32))
    >>> folder.cleanup()
    """

    _part = "block"

    def __init__(self, path: Any) -> None:
        self.path = absolute(path)
        manifest = read_manifest(self.path, "RatingStore")
        shape, nnz, block_rows, mean, std, blocks, dtypes = checked_facts(
            self.path, manifest, "nnz", "block_rows", "mean", "std", "blocks", "dtypes"
        )
        table = checked_table(self.path, shape, nnz, block_rows, blocks)
        self.shape: tuple[int, int] = shape
        self.nnz: int = nnz
        self.block_rows: int = block_rows
        self.fingerprint: str = manifest["fingerprint"]
        self.undeclared = undeclared(self.path, manifest)
        moments = (mean, std) if nnz else (0.0, 0.0)
        if dtypes != FIELDS or not all(type(x) is float and math.isfinite(x) for x in moments):
            trouble = f"its dtypes, mean and std are {dtypes!r:.99}, {mean!r:.30}, {std!r:.30}"
            raise damaged(self.path / MANIFEST, trouble)
        self.mean, self.std = (float(mean), float(std)) if nnz else (math.nan, math.nan)
        self.n_blocks = len(table)
        n_runs, n_ratings = table[:, 0], table[:, 1]
        lengths = {"items": n_runs, "indptr": n_runs + 1, "users": n_ratings, "ratings": n_ratings}
        self._bounds = {name: np.append(0, np.cumsum(lengths[name])) for name in FIELDS}
        self._checksums = table[:, 2:]
        self._verified = np.zeros(self.n_blocks, bool)
        self._labels = Labels(self.path, manifest)
        # Open for as long as this object lives: a store that is replaced meanwhile stays readable.
        self._files: dict[str, OpenFile] = {}
        for name, dtype in FIELDS.items():
            size = int(self._bounds[name][-1]) * np.dtype(dtype).itemsize
            self._files[name] = OpenFile(self.path / f"{name}.bin", size)

    @classmethod
    def open(cls, path: Any) -> "RatingStore":
        """Open a store; the same as ``RatingStore(path)``.

        Parameters
        ----------
        path : str or path-like
            Folder of the store.

        Returns
        -------
        store : RatingStore
            The store.

        Raises
        ------
        FileNotFoundError, RatingStoreError
            As the class says.

        Examples
        --------
        >>> import pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     store = RatingStore.from_matrix(pathlib.Path(folder) / "ratings", [[5.0], [1.0]])
        ...     RatingStore.open(store.path).fingerprint == store.fingerprint
        True
        """
        return cls(path)

    @classmethod
    def from_matrix(
        cls, path: Any, X: Any, *, block_rows: int = 4096, overwrite: bool = False
    ) -> "RatingStore":
        """Write a matrix to a new store.

        Parameters
        ----------
        path : str or path-like
            Folder to make, which only its owner may read; the one above it exists. It appears
            when everything is on disk: an interrupted write leaves nothing at `path`.
        X : {array-like, DataFrame, sparse matrix, RatingMatrix} of shape (n_users, n_items)
            Ratings, as `as_rating_matrix` takes them; it needs room for a second copy of `X`
            unless that is a CSR container in float64 without duplicates. The index and columns of
            a DataFrame become `user_ids` and `item_ids`; so do the labels of a RatingMatrix, with
            `titles`. Not modified.
        block_rows : int, default=4096
            Users of a block, 1 to 65536.
        overwrite : bool, default=False
            Replace the store that is at `path`, whole or broken, once the new one is complete.

        Returns
        -------
        store : RatingStore
            The new store, open.

        Raises
        ------
        FileExistsError
            If there is something at `path`, unless `overwrite`; with it, if that is not a store.
        ValueError
            If `X` is no rating matrix or holds infinite ratings, labels are neither integers nor
            strings, or `block_rows` is outside its range.

        See Also
        --------
        from_chunks : From a table of ratings that does not fit into memory.
        """
        block_rows = _checked_block_rows(block_rows)
        R = as_rating_matrix(X)
        _refuse_infinite(X)
        with new_store(path, overwrite) as work, Writer(work, R.shape, block_rows) as writer:
            for start in range(0, R.shape[0], block_rows):
                writer.add(as_rating_matrix(R[start : start + block_rows], dtype=np.float32))
            writer.finish(*labels_of(X))
        return cls(path)

    @classmethod
    def from_chunks(
        cls,
        path: Any,
        chunks: Any,
        *,
        users: Any = None,
        items: Any = None,
        n_items: int | None = None,
        block_rows: int = 4096,
        overwrite: bool = False,
    ) -> "RatingStore":
        """Write a table of ratings, given in chunks, to a new store, in one pass.

        The chunks are sorted into files of some thousand users each beside the store (16 bytes a
        rating, removed at the end), which then become blocks.

        Parameters
        ----------
        path : str or path-like
            Folder to make, as for `from_matrix`.
        chunks : iterable of DataFrame or of (user, item, rating) tuples of arrays
            Tables with the columns user, item and rating, one rating a row, in any order. Ids are
            integers or strings. NaN = unknown: the rating is left out, its user and item stay.
            Several ratings of one (user, item) pair become their mean. Read once.
        users : sequence of ids, default=None
            Rows of the matrix, in this order; those without ratings stay, empty. None: the ids that
            occur, in the order of their first appearance.
        items : sequence of ids, or DataFrame, default=None
            Columns of the matrix, in this order; those without ratings stay, empty. A table of
            items has their ids in the column item and, where there is one, `titles` in the column
            title. None: the ids that occur, sorted (integers before strings).
        n_items : int, default=None
            The same as ``items=range(n_items)``, without labels: item ids are columns.
        block_rows : int, default=4096
            Users of a block, 1 to 65536.
        overwrite : bool, default=False
            As for `from_matrix`.

        Returns
        -------
        store : RatingStore
            The new store, open. Rows that are not declared are the users **in the order of their
            first appearance** (see `user_ids`): one pass cannot know a better one.

        Raises
        ------
        FileExistsError
            As `from_matrix`.
        ValueError
            If a chunk is no such table, an id is missing, neither integer nor string, or not
            declared, ratings are infinite or not numbers, or a parameter is outside its range.

        Examples
        --------
        >>> import pathlib, tempfile
        >>> chunks = [(["ann", "bob"], ["Heat", "Alien"], [4.0, 3.0]), (["ann"], ["Alien"], [5.0])]
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     store = RatingStore.from_chunks(pathlib.Path(folder) / "ratings", chunks)
        ...     list(store.user_ids), list(store.item_ids), store.to_matrix().toarray()
        (['ann', 'bob'], ['Alien', 'Heat'], array([[5., 4.], [3., 0.]]))
        """
        block_rows = _checked_block_rows(block_rows)
        with new_store(path, overwrite) as work:
            table = sorted_table(work / "buckets", chunks, (users, items, n_items), block_rows)
            with Writer(work, table.shape, block_rows) as writer:
                for R in table.matrices:
                    for start in range(0, R.shape[0], block_rows):
                        writer.add(R[start : start + block_rows])
                writer.finish(*table[2:])
        return cls(path)

    @classmethod
    def from_parquet(
        cls,
        path: Any,
        file: Any,
        *,
        columns: dict[str, str] | None = None,
        users: Any = None,
        items: Any = None,
        n_items: int | None = None,
        block_rows: int = 4096,
        overwrite: bool = False,
    ) -> "RatingStore":
        """Write a Parquet file of ratings to a new store; never holds the whole file.

        Parameters
        ----------
        path : str or path-like
            Folder to make, as for `from_matrix`.
        file : str or path-like
            Parquet file with columns for user, item and rating.
        columns : dict, default=None
            Maps ``"user"``, ``"item"``, ``"rating"`` to the names that the file uses, where they
            are not among those that `read_ratings` knows.
        users, items : sequence of ids, or DataFrame of items, default=None
            As for `from_chunks`.
        n_items : int, default=None
            As for `from_chunks`.
        block_rows : int, default=4096
            Users of a block, 1 to 65536.
        overwrite : bool, default=False
            As for `from_matrix`.

        Returns
        -------
        store : RatingStore
            The new store, open.

        Raises
        ------
        MissingExtraError
            If pyarrow is not installed.
        FileNotFoundError
            If there is no `file`.
        FileExistsError, ValueError
            As `from_chunks`; ValueError also if `file` is no Parquet file or lacks a column.

        Examples
        --------
        >>> import pandas as pd, pathlib, tempfile
        >>> table = pd.DataFrame({"user": [7, 7, 9], "item": [0, 1, 1], "rating": [5.0, 1.0, 4.0]})
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path, file = pathlib.Path(folder) / "store", pathlib.Path(folder) / "table.parquet"
        ...     table.to_parquet(file)
        ...     store = RatingStore.from_parquet(path, file, n_items=3)
        >>> store.shape
        (2, 3)
        """
        chunks = parquet_chunks(Path(file).expanduser(), columns)
        return cls.from_chunks(
            *(path, chunks),
            users=users,
            items=items,
            n_items=n_items,
            block_rows=block_rows,
            overwrite=overwrite,
        )

    def read_block(self, index: int, spare: int = 0) -> RatingBlock:
        """Read a block into new arrays.

        Parameters
        ----------
        index : int
            Number of the block, from 0: users ``index * block_rows`` and following.
        spare : int, default=0
            Zeros that `users` and `ratings` get behind the last rating, for kernels that read
            whole vectors.

        Returns
        -------
        block : RatingBlock
            The block, in arrays that belong to the caller and may be written to.

        Raises
        ------
        IndexError
            If there is no such block.
        RatingStoreError
            If the bytes are not those that were written, or are no block (items, users or runs
            out of range or order), which is checked the first time that this object reads the
            block; or if the file has become too short.
        """
        index = operator.index(index)
        if not 0 <= index < self.n_blocks:
            raise IndexError(f"index={index} must be a block's number, 0 to {self.n_blocks - 1}.")
        start = index * self.block_rows
        stop = min(start + self.block_rows, self.shape[0])
        arrays, stored = [], []
        for name, dtype in FIELDS.items():
            begin, end = self._bounds[name][index : index + 2].tolist()
            behind = spare if name in ("users", "ratings") else 0
            arrays.append(self._files[name].read(dtype, begin, end, behind))
            stored.append(arrays[-1][: end - begin])
        if not self._verified[index]:
            for name, array, expected in zip(FIELDS, stored, self._checksums[index], strict=True):
                if zlib.crc32(array.data) != expected:
                    trouble = f"its bytes for block {index} do not match their checksum"
                    raise damaged(self._files[name].path, trouble)
            wrong = wrong_field(stored, stop - start, self.shape[1])
            if wrong:
                trouble = f"its numbers for block {index} are not those of a block"
                raise damaged(self._files[wrong].path, trouble)
            self._verified[index] = True
        native = (array.astype(array.dtype.newbyteorder("="), copy=False) for array in arrays)
        return RatingBlock(start, stop, *native)

    def blocks(self) -> Iterator[RatingBlock]:
        """Read all blocks, one after another.

        Yields
        ------
        block : RatingBlock
            As `read_block` returns it.

        Raises
        ------
        RatingStoreError
            As `read_block`.

        Examples
        --------
        >>> import pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     store = RatingStore.from_matrix(pathlib.Path(folder) / "ratings", [[5.0], [1.0]])
        ...     [block.stop - block.start for block in store.blocks()]
        [2]
        """
        for index in range(self.n_blocks):
            yield self.read_block(index)

    def verify(self) -> None:
        """Read everything and compare it with its checksums.

        Raises
        ------
        RatingStoreError
            If a byte of the ratings or labels is not the one that was written.

        Examples
        --------
        >>> import pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     store = RatingStore.from_matrix(pathlib.Path(folder) / "ratings", [[5.0], [1.0]])
        ...     store.verify()  # says nothing if all is well
        """
        self._verified[:] = False
        for _ in self.blocks():
            pass
        self._labels.verify()

    def to_matrix(self) -> sparse.csr_array:
        """Read all ratings into a matrix in memory.

        Returns
        -------
        R : scipy.sparse.csr_array of shape (n_users, n_items)
            The ratings in float64, stored = rated, columns ascending in every row.

        Raises
        ------
        RatingStoreError
            As `read_block`.

        Examples
        --------
        >>> import pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     store = RatingStore.from_matrix(pathlib.Path(folder) / "ratings", [[5.0], [1.0]])
        ...     store.to_matrix().toarray()
        array([[5.], [1.]])
        """
        return self._stacked(0, self.n_blocks)

    def read_rows(self, first: int, stop: int) -> sparse.csr_array:
        """Read the ratings of consecutive blocks into a matrix in memory.

        Parameters
        ----------
        first, stop : int
            Number of the first block, and one past that of the last.

        Returns
        -------
        R : scipy.sparse.csr_array of shape (n_rows, n_items)
            The users of these blocks; as `to_matrix`. On the way it needs one block more.

        Raises
        ------
        IndexError, RatingStoreError
            As `read_block`.

        Examples
        --------
        >>> import pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     store = RatingStore.from_matrix(pathlib.Path(folder) / "ratings", [[5.0], [1.0]])
        ...     store.read_rows(0, 1).shape
        (2, 1)
        """
        return self._stacked(*self._range(first, stop))

    def _matrix(self, number: int) -> sparse.csr_array:
        block = self.read_block(number)
        n_users = block.stop - block.start
        fields = (block.ratings, block.users, block.indptr)
        R = sparse.csc_array(fields, shape=(n_users, block.items.size)).tocsr()
        fields = (R.data, block.items[R.indices], R.indptr)
        return sparse.csr_array(fields, shape=(n_users, self.shape[1]))

    def _part_bounds(self) -> tuple[Any, Any]:
        rows = np.minimum(np.arange(self.n_blocks + 1) * self.block_rows, self.shape[0])
        return rows, self._bounds["ratings"]


def _checked_block_rows(block_rows: Any) -> int:
    if not is_integer(block_rows, 1, MOST_ROWS):
        raise ValueError(
            f"block_rows={block_rows!r} must be an integer from 1 to 65536: the users of a block."
        )
    return int(block_rows)


def _refuse_infinite(X: Any) -> None:
    """Refuse infinite ratings, which `as_rating_matrix` would drop without a word."""
    X = _container(X)
    if sparse.issparse(X):
        X = X.data[: X.indptr[-1]] if X.format in ("csr", "csc") else X.tocoo().data
    if np.isinf(X).any():
        raise ValueError("X holds infinite ratings; they must be finite, or unknown.")
