"""Ratings in a Dask cluster, as blocks of users whose rows workers read, and no other process.

A block has whole rows, and each row is in one block. Blocks begin at multiples of `USERS_AT_ONCE`
users, so that a model does not depend on where the ratings were cut.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from itertools import pairwise
from typing import Any

import numpy as np
from scipy import sparse
from sklearn.base import BaseEstimator

from skdpmf.data.labelled_rows import RatingMatrix
from skdpmf.data.parquet_ratings import ParquetRatings
from skdpmf.data.validation import (
    as_rating_matrix,
    check_ratings,
    clipped,
    count_outside,
    is_lazy,
    warn_of_scale,
)
from skdpmf.exceptions import RatingStoreError
from skdpmf.privacy.blocks import Blocks
from skdpmf.privacy.users import USERS_AT_ONCE

# A block works with more than its ratings, for a short time, and that should stay small.
_BLOCK_RATINGS = 1e7


def client_of(X: Any) -> Any:
    """Return the client of the cluster that holds a fit's ratings; None: they are in no cluster.

    X: ratings; those on disk are read by a cluster where a client is active, but not by the fit of
    one of its own tasks.
    """
    is_file, distributed = isinstance(X, ParquetRatings), sys.modules.get("distributed")
    if not is_file and not is_lazy(X):
        return None
    client: Any = None
    if distributed is not None:
        with suppress(ValueError):  # there is none
            client = distributed.default_client()
    if client is None and not is_file:
        raise ValueError(
            f"X={_shown(X)} is in Dask and needs workers that keep its blocks: make a "
            "dask.distributed.Client first, or pass X.compute()."
        )
    if client is not None and is_file:
        with suppress(ValueError):  # this is no task
            distributed.get_worker()  # type: ignore[union-attr]
            return None
    return client


def check_cluster(estimator: Any, X: Any) -> None:
    """Refuse ratings in a cluster where more than sums over users is released."""
    sums = estimator.budget.is_private and estimator._reports is None
    if not sums and client_of(X) is not None:
        read = "X.read_rows()" if isinstance(X, ParquetRatings) else "X.compute()"
        raise ValueError(
            f"X={_shown(X)} must be in memory for {estimator!r}: without noise, or where more than "
            f"sums over users is released, one process needs all ratings. Pass {read}, or close "
            "the client of the cluster."
        )


def blocks_of(X: Any, bounds: Any, warns: bool) -> Blocks:
    """Return the ratings as blocks of canonical rows, clipped to bounds, in the workers.

    warns: whether a warning says that the bounds are not theirs.
    """
    client, n_items = client_of(X), X.shape[1]
    if isinstance(X, ParquetRatings):
        threads = [[address] for address, n in client.nthreads().items() for _ in range(n)] or [[]]
        (rows, at), n_threads = X._bounds, len(threads)
        n_blocks = n_threads * max(1, round(X.nnz / (n_threads * _BLOCK_RATINGS)))
        # a row counts as a rating, and a file in the middle of which a block ends is read twice
        ends = _cut(np.interp(np.linspace(0, at[-1] + rows[-1], n_blocks + 1), at + rows, rows))
        homes = [threads[int(k)] for k in np.linspace(0, n_threads, len(ends))[:-1]]
        made = Blocks(client, ends[:-1], ends, n_items, homes)
        made = made.each(_read, made.like(ends[1:]), X, X.fingerprint, bounds)
    else:
        M = (X.X if isinstance(X, RatingMatrix) else X).rechunk({1: -1})
        sizes = [int(n) for n in M.chunks[0]]
        chunks = client.compute(M.to_delayed().ravel().tolist())
        made = Blocks(client, chunks, np.cumsum([0, *sizes]).tolist(), n_items)
        made = made.each(_checked, made.like(sizes), n_items, bounds)
    n_outside, n_ratings = made[1].total()
    if warns:
        warn_of_scale(n_outside, n_ratings, bounds)
    found, rows, ends = client.who_has(made.parts), made.ends, _cut(made.ends)
    made.homes = [found[part.key] for part in made.parts]
    if ends == rows:
        return made[0]
    own, where, homes = [], [], []
    for start, stop in pairwise(ends):
        meet = [k for k in range(len(rows) - 1) if rows[k] < stop and rows[k + 1] > start]
        own.append([made.parts[k] for k in meet])
        where.append([(max(start - rows[k], 0), stop - rows[k]) for k in meet])
        homes.append(made.homes[meet[0]])
    made = Blocks(client, own, ends, n_items, homes)
    return made.each(_stacked, made.like(where))


def _cut(rows: Any) -> list[int]:
    """Return ends of blocks near these, at multiples of `USERS_AT_ONCE` but for the last one."""
    near = np.rint(np.asarray(rows[:-1]) / USERS_AT_ONCE).astype(int) * USERS_AT_ONCE
    ends: list[int] = np.unique([*near.clip(max=int(rows[-1])), int(rows[-1])]).tolist()
    return ends


def _shown(X: Any) -> str:
    return repr(X) if isinstance(X, ParquetRatings | RatingMatrix) else type(X).__name__


def _with_facts(R: Any, bounds: Any) -> tuple[Any, Any]:
    """Return ratings clipped to bounds, and how many lay outside, of how many."""
    n_outside = 0 if bounds is None else count_outside(R.data, bounds)
    return R if bounds is None else clipped(R, bounds), np.array([n_outside, R.nnz])


def _read(start: int, stop: int, ratings: Any, fingerprint: str, bounds: Any) -> tuple[Any, Any]:
    """Read rows of ratings on disk."""
    if ratings.fingerprint != fingerprint:
        raise RatingStoreError(
            f"path={str(ratings.path)!r} now holds other ratings (fingerprint "
            f"{ratings.fingerprint[:12]}...) than those that were asked for "
            f"({fingerprint[:12]}...). Nothing may replace ratings that are in use: start again "
            "with those that are there now."
        )
    rows = ratings._bounds[0]
    first, last = np.searchsorted(rows, start, "right") - 1, np.searchsorted(rows, stop)
    R = ratings.read_rows(first, last)[start - rows[first] : stop - rows[first]]
    return _with_facts(as_rating_matrix(R), bounds)


def _checked(chunk: Any, n_rows: int, n_items: int, bounds: Any) -> tuple[Any, Any]:
    """Return a block of a matrix as `fit` would take it."""
    R = check_ratings(BaseEstimator(), chunk, reset=True)[0]
    if R.shape != (n_rows, n_items):
        raise ValueError(
            f"X has a block of shape {R.shape}, which must be {(n_rows, n_items)} by its chunks: "
            "noise is for so many rows. Say the shapes of blocks as they are."
        )
    return _with_facts(R, bounds)


def _stacked(parts: list[Any], where: list[tuple[int, int]]) -> Any:
    """Return rows of neighbouring blocks."""
    pieces = [part[0][start:stop] for part, (start, stop) in zip(parts, where, strict=True)]
    return as_rating_matrix(sparse.vstack(pieces, format="csr"))
