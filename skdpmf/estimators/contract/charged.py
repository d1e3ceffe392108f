"""A private fit between its ledger and its statement: what is charged, given and said.

Nothing is computed from ratings before the ledger is charged. A mechanism gets the curator of the
rows, and public settings; two kinds whose guarantees are their own get rows of the frame. What it
releases the estimator publishes, and the statement is the frame's.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from skdpmf.data.feature_columns import ItemColumns
from skdpmf.data.labelled_rows import RatingMatrix, labels_of
from skdpmf.data.parquet_ratings import ParquetRatings
from skdpmf.data.validation import as_rating_matrix
from skdpmf.estimators.contract import refreshed
from skdpmf.estimators.contract.cluster import blocks_of, check_cluster, client_of
from skdpmf.estimators.contract.model_file import check_savable
from skdpmf.estimators.contract.parameters import ledger_record, warn_of_budget
from skdpmf.estimators.contract.progress import work_of
from skdpmf.estimators.contract.public import Public
from skdpmf.kernels.jit_and_threads import sized
from skdpmf.privacy.frame import framed
from skdpmf.privacy.recording import active_recorder


class Fit(NamedTuple):
    """All that a private fit hands on, but for the ratings."""

    features: ItemColumns | None = None
    start: refreshed.Start | None = None
    public: Public | None = None
    frame: Any = None  # `skdpmf.privacy.frame.Frame`; None: not yet
    blocks: Any = None  # of a matrix in a cluster, whose form was checked


@contextmanager
def charged(estimator: Any, X: Any, R: Any, fit: Fit) -> Iterator[Fit]:
    """Frame a private fit: check what can be known before it costs anything, then charge for it.

    It warns of a delta that is too large for so many rows.

    estimator: whose parameters were checked; X: ratings; R: the same, whose form was checked, and
    from which nothing is computed before the ledger is charged. Yields the fit with its frame.
    """
    check_savable(estimator._catalogue_)
    check_cluster(estimator, R)
    is_stored = isinstance(X, ParquetRatings)
    if is_stored:
        R.check()
    elif client_of(R) is not None:
        fit = fit._replace(blocks=blocks_of(R, *_clipping(estimator)))
    budget, users = estimator.budget, None
    warn_of_budget(budget, R.shape[0])
    plan = estimator._make_plan(R.shape[1], R.shape[0])
    if refreshed.is_by_person(budget):
        users = labels_of(X)[0]
    record = ledger_record(estimator, R.shape, fit.features)
    if fit.public is not None:
        record |= {"public": fit.public.rows, "others": fit.public.others}
        if users is not None and fit.public.others is not None:
            users = np.where(fit.public.others, users, None)
    with framed(budget, plan, estimator.random_state, users=users, **record) as frame:
        yield fit._replace(frame=frame)
    undeclared = X.undeclared if is_stored or isinstance(X, RatingMatrix) else ()
    estimator._statement = estimator.privacy_spent_.with_undeclared(undeclared)


def fit_framed(estimator: Any, R: Any, fit: Fit, levels: np.ndarray | None = None) -> None:
    """Publish what an estimator's mechanism releases, and state it.

    estimator: whose parameters were checked; R: canonical ratings, or ratings on disk or in a
    cluster; fit: as `charged` yields it, with a frame; levels (n_rows,): privacy levels, or None.
    """
    work = work_of(estimator, R.shape)
    if fit.blocks is not None:
        R = fit.blocks
    elif client_of(R) is not None:
        R = blocks_of(R, *_clipping(estimator))
    elif isinstance(R, ParquetRatings):
        R = as_rating_matrix(R.read_rows(), rating_range=_clipping(estimator)[0])
    with sized(work):
        released = _released(estimator, R, fit, levels)
    estimator._publish(released)
    words = refreshed.words_of(estimator, fit, estimator._terms(released))
    estimator._statement = fit.frame.statement(**words)


def _released(estimator: Any, R: Any, fit: Fit, levels: np.ndarray | None) -> Any:
    settings = estimator._settings_of(R.shape[1])
    public: dict[str, Any] = {"levels": levels, "known": fit.start and fit.start.known}
    public = {name: value for name, value in public.items() if value is not None}
    given = R, estimator._preparation(), (type(estimator).__name__, settings)
    frame: Any = fit.frame
    if estimator._reports is not None:  # not by sums
        people = fit.public and fit.public.rows
        R, source = frame.rows(*given, draw=estimator._reports, public=people, **public)
        if people is not None and estimator.budget.is_private:
            return estimator._release_rows(R, source, settings, levels, people)
        return estimator._release_rows(R, source, settings, levels)
    columns = None if fit.features is None else fit.features.values
    own = {"n_jobs": estimator.n_jobs, "item_columns": columns}
    beside: Any = {} if fit.public is None else fit.public.framed
    curator = frame.curator(*given, **beside, **own, **public)
    if fit.public is not None and curator.private:
        public["public"] = fit.public.people
    return estimator._release(curator, settings, **public)


def _clipping(estimator: Any) -> tuple[Any, bool]:
    """Return the range to which ratings are clipped, and whether a warning says that it is wrong.

    Clicks are not clipped: their values may be counts.
    """
    bounds = None if getattr(estimator, "_implicit", False) else estimator._value_range
    warns = bounds is not None and active_recorder() is None
    return bounds, warns
