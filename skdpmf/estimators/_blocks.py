"""Ratings by reference, and fits whose blocks of users are in several processes."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse
from sklearn.base import clone

from skdpmf.data.rating_store import RatingStore
from skdpmf.data.row_blocks import row_blocks
from skdpmf.data.validation import as_rating_matrix
from skdpmf.distributed.exchange import Alone, Exchange
from skdpmf.distributed.pool import Pool, fit_on_blocks, n_processes

__all__ = ["check_stored", "is_stored", "note_items", "release_on_blocks"]

_STORED = (RatingStore,)


def is_stored(X: Any) -> bool:
    """Return whether X is ratings on disk, by reference."""
    return isinstance(X, _STORED)


def check_stored(X: Any) -> None:
    """Raise where ratings on disk are not as they were written, as far as no rating tells."""
    if is_stored(X):
        for block in row_blocks(X, 1):
            block.check()


def note_items(estimator: Any, X: Any) -> None:
    """Note number and names of the items of ratings on disk, as `fit` does for a matrix."""
    estimator.n_features_in_ = X.shape[1]
    names = X.item_ids
    if names is not None and names.dtype.kind in "OU":
        estimator.feature_names_in_ = np.asarray(names, dtype=object)
    elif hasattr(estimator, "feature_names_in_"):
        del estimator.feature_names_in_


@dataclass(frozen=True)
class _BlockFit:
    """The fit of one block of users."""

    estimator: Any
    metadata: Mapping[str, Any]

    def __call__(self, R: Any, exchange: Exchange) -> Any:
        R = as_rating_matrix(R, rating_range=self.estimator._value_range)
        return self.estimator._release(self.estimator._used(R), exchange, **self.metadata)


def release_on_blocks(estimator: Any, R: Any, metadata: Mapping[str, Any]) -> Any:
    """Run an estimator's `_release`: on all users here, or on blocks of them.

    Parameters
    ----------
    estimator : PrivateRecommender
        Whose parameters were checked.
    R : csr_array, RatingStore or ParquetRatings
        Canonical ratings, or ratings on disk.
    metadata : mapping
        Arrays with an entry for every row, or None.

    Returns
    -------
    object
        What ``_release`` returns.
    """
    n_tasks = n_processes()
    if not (estimator.budget.is_private and estimator._only_sums):
        if n_tasks and is_stored(R):
            raise ValueError(
                f"X={R!r} cannot be fitted block by block with {estimator!r}: without noise, or "
                "with a draw from a posterior, all ratings must be in one process. Leave joblib's "
                "parallel_config, or fit on a matrix."
            )
        n_tasks = 0
    if not n_tasks:
        if is_stored(R):
            loaded = [block.load() for block in row_blocks(R, 1)]
            R = sparse.vstack(loaded, format="csr") if len(loaded) > 1 else loaded[0]
            return _BlockFit(estimator, metadata)(R, Alone())
        return estimator._release(R, Alone(), **metadata)
    twin = clone(estimator).set_params(budget=estimator.budget.without_ledger())
    runs = {}
    for number, block in enumerate(row_blocks(R, n_tasks)):
        rows = slice(block.first_row, block.first_row + block.n_rows)
        own = {name: None if all_ is None else all_[rows] for name, all_ in metadata.items()}
        runs[number] = _BlockFit(twin, own), block

    def here(nobody: Any, exchange: Exchange) -> Any:
        none = {name: None if all_ is None else all_[:0] for name, all_ in metadata.items()}
        return estimator._release(nobody, exchange, **none)

    return fit_on_blocks(Pool(n_tasks), here, runs, R.shape[1], None)
