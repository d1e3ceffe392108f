"""Ratings by reference, fits on blocks of users in several processes, and what goes before."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse
from sklearn.base import clone

from skdpmf.data.parquet_ratings import ParquetRatings
from skdpmf.data.rating_store import RatingStore
from skdpmf.data.row_blocks import row_blocks
from skdpmf.data.validation import as_rating_matrix
from skdpmf.distributed.checkpoint import CHECKPOINT_ASSUMPTION, active_checkpoint
from skdpmf.distributed.exchange import Alone, Exchange, data_digest
from skdpmf.distributed.pool import Pool, fit_on_blocks, n_processes
from skdpmf.distributed.worker import code_version
from skdpmf.estimators.contract.parameters import shape_of, warn_of_delta
from skdpmf.privacy.plan import ReleasePlan
from skdpmf.privacy.statement import PrivacyStatement

__all__ = ["BLOCK_RATINGS", "charged", "is_stored", "note_items", "release_on_blocks", "state_of"]

FEATURES_ASSUMPTION = (
    "The item features are public: they were chosen without a look at these ratings, and are not "
    "made of ratings, tags, reviews or counts of these people."
)

# of a block: what it works with beside its ratings is short-lived, and should stay small
BLOCK_RATINGS = 1e7


def is_stored(X: Any) -> bool:
    """Return whether X is ratings on disk, by reference."""
    return isinstance(X, RatingStore | ParquetRatings)


def note_items(estimator: Any, X: Any, *, reset: bool) -> None:
    """Note number and names of the items of ratings on disk, as `fit` does for a matrix.

    Other methods (`reset` is False) do not take them.
    """
    if not reset:
        raise TypeError(
            f"X={X!r} is a {type(X).__name__}, which fit reads; here pass rows of ratings, such as "
            "X.read_rows(0, 1), those of its first part."
        )
    estimator.n_features_in_ = X.shape[1]
    names = X.item_ids
    if names is not None and names.dtype.kind in "OU":
        estimator.feature_names_in_ = np.asarray(names, dtype=object)
    elif hasattr(estimator, "feature_names_in_"):
        del estimator.feature_names_in_


@contextmanager
def charged(estimator: Any, X: Any, **aligned: Any) -> Iterator[tuple[int, int] | None]:
    """Frame a private fit: check what can be known before it costs anything, then charge for it.

    It warns of a delta that is too large for so many rows.

    Parameters
    ----------
    estimator : estimator
        Whose parameters were checked.
    X : object
        Ratings, of which nothing but the shape is looked at before the ledger is charged; with a
        checkpoint, which must know them again, all.
    **aligned : array-like
        What belongs to the rows, and is public.

    Yields
    ------
    tuple of int or None
        The shape that was charged for; None without ledger.
    """
    ledger, checkpoint = estimator.budget.ledger, active_checkpoint()
    n_tasks = _n_tasks(estimator, X)
    if is_stored(X):
        for block in row_blocks(X, 1):
            block.check()
    if n_tasks:
        with Pool(n_tasks) as pool:
            pool.check()
    warn_of_delta(estimator.budget, X)
    if ledger is None and checkpoint is None:
        yield None
        return
    shape, params = shape_of(X), estimator.get_params(deep=False)
    features = getattr(estimator, "_features_", None)
    if features is not None:
        params["item_features"] = features.digest
    plan = estimator._make_plan(shape[1], shape[0])
    log = None
    if checkpoint is not None:
        _require_resumable(estimator)
        settings = {name: value for name, value in params.items() if name != "n_jobs"}
        settings["budget"] = estimator.budget.without_ledger()
        ratings = _identity_of(estimator, X, aligned)
        log = checkpoint.begin(
            f"{code_version()} {type(estimator).__name__} {settings!r} {plan!r} {shape} {ratings}"
        )
    record = {
        "estimator": type(estimator).__name__,
        "params": params,
        "shape": shape,
        "seeded": estimator.random_state is not None,
        "nonprivate": any(
            value
            for name, value in estimator.get_params().items()
            if name.rpartition("__")[2].startswith("nonprivate_")
        ),
    }
    charge: Any = nullcontext()
    if ledger is not None:
        charge = log.charge(ledger, plan, **record) if log else ledger.reserve(plan, **record)
    with charge:
        yield None if ledger is None else shape
        if log is not None:
            log.finish()


def state_of(
    estimator: Any, plan: ReleasePlan, *, assumptions: tuple[str, ...] = (), **more: Any
) -> PrivacyStatement:
    """Return the statement of a fit of this plan."""
    if active_checkpoint() is not None and estimator.budget.ledger is None:
        assumptions = (*assumptions, CHECKPOINT_ASSUMPTION)
    if getattr(estimator, "_features_", None) is not None:
        assumptions = (*assumptions, FEATURES_ASSUMPTION)
    seeded = estimator.random_state is not None
    return PrivacyStatement.from_plan(plan, seeded=seeded, assumptions=assumptions, **more)


@dataclass(frozen=True)
class _BlockFit:
    """The fit of one block of users, by the coordinator's plan."""

    estimator: Any
    plan: ReleasePlan
    metadata: Mapping[str, Any]

    def __call__(self, block: Any, exchange: Exchange) -> Any:
        R = as_rating_matrix(block.load(), rating_range=self.estimator._value_range)
        R = self.estimator._prepared(self.estimator._used(R))
        return self.estimator._release(R, self.plan, exchange, **self.metadata)


def release_on_blocks(
    estimator: Any, R: Any, plan: ReleasePlan, metadata: Mapping[str, Any]
) -> Any:
    """Run an estimator's `_release`: on all users here, or on blocks of them.

    Parameters
    ----------
    estimator : estimator
        Whose parameters were checked.
    R : csr_array, RatingStore or ParquetRatings
        Canonical ratings, or ratings on disk.
    plan : ReleasePlan
        Of all of them.
    metadata : mapping
        Arrays with an entry for every row, or None.

    Returns
    -------
    object
        What ``_release`` returns.
    """
    checkpoint, n_tasks = active_checkpoint(), _n_tasks(estimator, R)
    if _alone(n_tasks, checkpoint):
        if not is_stored(R):
            return estimator._release(estimator._prepared(R), plan, Alone(), **metadata)
        (whole,) = row_blocks(R, 1)
        return _BlockFit(estimator, plan, metadata)(whole, Alone())
    # the plan of a budget with a ledger may differ a little: workers get it, and no ledger
    twin = clone(estimator).set_params(budget=estimator.budget.without_ledger())
    vars(twin).pop("_skl_callbacks", None)  # rounds are announced here
    twin._features_ = getattr(estimator, "_features_", None)
    runs = {}
    n_blocks = max(n_tasks, 1)
    n_blocks *= max(1, round(R.nnz / (n_blocks * BLOCK_RATINGS)))
    for number, block in enumerate(row_blocks(R, n_blocks)):
        rows = slice(block.first_row, block.first_row + block.n_rows)
        runs[number] = _BlockFit(twin, plan, _of_rows(metadata, rows)), block

    def here(nobody: Any, exchange: Exchange) -> Any:
        return estimator._release(nobody, plan, exchange, **_of_rows(metadata, slice(0)))

    log = None if checkpoint is None else checkpoint.log
    return fit_on_blocks(Pool(n_tasks), here, runs, R.shape[1], log)


def _alone(n_tasks: int, checkpoint: Any) -> bool:
    """Whether a fit needs no exchange."""
    return n_tasks == 0 and checkpoint is None


def _n_tasks(estimator: Any, X: Any) -> int:
    """Processes that blocks of users are spread over; 0: all stay here."""
    n_tasks = n_processes()
    if estimator.budget.is_private and estimator._only_sums:
        return n_tasks
    if n_tasks and is_stored(X):
        raise ValueError(
            f"X={X!r} must be a matrix for {estimator!r} in several processes: without noise, or "
            "where more than sums over users is released, all ratings must be in one. Pass a "
            "matrix, or fit without joblib's parallel_config."
        )
    return 0


def _of_rows(metadata: Mapping[str, Any], rows: slice) -> dict[str, Any]:
    return {name: None if whole is None else whole[rows] for name, whole in metadata.items()}


def _identity_of(estimator: Any, X: Any, aligned: Mapping[str, Any]) -> str:
    """Digest of the ratings, and of what belongs to their rows."""
    numbers = [np.asarray(own, np.float64) for own in aligned.values() if own is not None]
    if is_stored(X):  # as files know it: no rating comes here
        nobody = sparse.csr_array((0, X.shape[1]))
        return f"{X.fingerprint} {data_digest(nobody, numbers)}"
    return str(data_digest(as_rating_matrix(X, rating_range=estimator._value_range), numbers))


def _require_resumable(estimator: Any) -> None:
    """Raise where a fit cannot go on from its released values alone."""
    if not (estimator.budget.is_private and estimator._only_sums):
        raise ValueError(
            f"{estimator!r} must release nothing but noisy sums over users to have a checkpoint: "
            "fit it outside of the fit_checkpoint block."
        )
    if estimator._make_plan(1).local and estimator.random_state is None:
        raise ValueError(
            f"random_state={estimator.random_state!r} must be an integer for simulated devices "
            "with a checkpoint: others would be drawn after a crash, which may have reported "
            "before. Pass a seed, or fit outside of the fit_checkpoint block."
        )
