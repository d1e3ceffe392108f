"""A picture of who pays for privacy: quality by popularity of the item."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from skdpmf.data.validation import as_rating_matrix
from skdpmf.evaluation._plotting import axes_or_new, draw_curve
from skdpmf.evaluation.metrics import by_popularity, rmse

__all__ = ["PopularityDisplay"]


class PopularityDisplay:
    """Picture of a rating metric on buckets of items, from the rarest to the most popular.

    Under each bucket stand the training ratings of its items, from the fewest to the most, and in
    brackets the number of test ratings. `plot` into the axes of another display adds a curve, with
    a colour and a marker of its own.

    Parameters
    ----------
    scores : array-like of shape (n_buckets,)
        The metric on each bucket; NaN for none.
    min_counts, max_counts : array-like of int, shape (n_buckets,)
        Fewest and most training ratings of an item in it.
    n_ratings : array-like of int, shape (n_buckets,)
        Test ratings in it.
    score_name : str, default="score"
        Label of the metric, with its unit.
    name : str, default=None
        The curve's in the legend. None: no legend.

    Attributes
    ----------
    ax_ : matplotlib axes
        After `plot`.
    figure_ : matplotlib figure
        After `plot`.
    errorbar_ : matplotlib ErrorbarContainer
        The points and their line, after `plot`.

    Raises
    ------
    ValueError
        If the arrays have not the same length.

    Examples
    --------
    >>> from skdpmf.evaluation import PopularityDisplay
    >>> display = PopularityDisplay([1.1, 0.9], [2, 10], [9, 80], [30, 200], score_name="RMSE")
    >>> display.plot()  # doctest: +SKIP
    >>> from skdpmf import DPItemMeans, PrivacyBudget
    >>> from skdpmf.data import make_ratings
    >>> from skdpmf.evaluation import split_ratings
    >>> known, hidden = split_ratings(make_ratings(60, 10, random_state=0), random_state=0)
    >>> model = DPItemMeans(PrivacyBudget(4.0, 1e-5)).fit(known)
    >>> PopularityDisplay.from_estimator(model, known, hidden)  # doctest: +SKIP
    >>> predicted = model.predict_entries(known, hidden)
    >>> PopularityDisplay.from_predictions(known, hidden, predicted)  # doctest: +SKIP
    """

    def __init__(
        self,
        scores: Any,
        min_counts: Any,
        max_counts: Any,
        n_ratings: Any,
        *,
        score_name: str = "score",
        name: str | None = None,
    ) -> None:
        self.scores = np.asarray(scores, dtype=np.float64)
        self.min_counts = np.asarray(min_counts)
        self.max_counts = np.asarray(max_counts)
        self.n_ratings = np.asarray(n_ratings)
        self.score_name = score_name
        self.name = name
        for argument in ("min_counts", "max_counts", "n_ratings"):
            shape = getattr(self, argument).shape
            if shape != self.scores.shape or len(shape) != 1:
                raise ValueError(
                    f"{argument} of shape {shape} must be 1-D like scores of shape "
                    f"{self.scores.shape}: pass one value for each bucket."
                )

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        X: Any,
        y: Any,
        *,
        item_counts: Any = None,
        n_buckets: int = 5,
        metric: Callable[[np.ndarray, np.ndarray], float] = rmse,
        score_name: str | None = None,
        name: str | None = None,
        ax: Any = None,
        **line: Any,
    ) -> PopularityDisplay:
        """Predict held-out ratings by a fitted estimator, and plot. It reads exact ratings.

        Parameters
        ----------
        estimator : estimator object
            Fitted, with ``predict_entries``.
        X : {array-like, DataFrame, sparse matrix} of shape (n_users, n_items)
            Known ratings of the users, folded in.
        y : {array-like, DataFrame, sparse matrix} of shape (n_users, n_items)
            Their held-out ratings.
        item_counts : array-like of shape (n_items,) or matrix, default=None
            Training ratings of each item, as for `by_popularity`. None: those of X.
        n_buckets : int, default=5
            Number of buckets.
        metric : callable, default=rmse
            ``metric(true, predicted) -> float`` on 1-D arrays.
        score_name : str, default=None
            Label of the metric, with its unit. None: the metric's own name.
        name : str, default=None
            In the legend. None: the estimator's type.
        ax : matplotlib axes, default=None
            Where to. None: a new figure.
        **line
            As for ``ax.errorbar``.

        Returns
        -------
        PopularityDisplay
            With its plot.

        Raises
        ------
        MissingExtraError
            If matplotlib is not installed.
        ValueError
            As `by_popularity` and `plot`.
        """
        held_out = as_rating_matrix(y)
        return cls.from_predictions(
            X if item_counts is None else item_counts,
            held_out,
            estimator.predict_entries(X, held_out),
            n_buckets=n_buckets,
            metric=metric,
            score_name=score_name,
            name=type(estimator).__name__ if name is None else name,
            ax=ax,
            **line,
        )

    @classmethod
    def from_predictions(
        cls,
        item_counts: Any,
        y_true: Any,
        y_pred: Any,
        *,
        n_buckets: int = 5,
        metric: Callable[[np.ndarray, np.ndarray], float] = rmse,
        score_name: str | None = None,
        name: str | None = None,
        ax: Any = None,
        **line: Any,
    ) -> PopularityDisplay:
        """Plot predicted ratings. It reads exact ratings.

        Parameters
        ----------
        item_counts : array-like of shape (n_items,) or (n_users, n_items)
            Training ratings of each item, or the training matrix.
        y_true, y_pred : sparse matrix or array-like of shape (n_users, n_items)
            Held-out ratings and their predictions, as for `by_popularity`.
        n_buckets : int, default=5
            Number of buckets.
        metric : callable, default=rmse
            ``metric(true, predicted) -> float`` on 1-D arrays.
        score_name : str, default=None
            Label of the metric, with its unit. None: the metric's own name.
        name : str, default=None
            In the legend. None: no legend.
        ax : matplotlib axes, default=None
            Where to. None: a new figure.
        **line
            As for ``ax.errorbar``.

        Returns
        -------
        PopularityDisplay
            With its plot.

        Raises
        ------
        MissingExtraError
            If matplotlib is not installed.
        ValueError
            As `by_popularity` and `plot`.
        """
        table = by_popularity(item_counts, y_true, y_pred, n_buckets=n_buckets, metric=metric)
        *_, own_name = table.columns
        return cls(
            table[own_name],
            table["min_count"],
            table["max_count"],
            table["n_ratings"],
            score_name=own_name if score_name is None else score_name,
            name=name,
        ).plot(ax, **line)

    def plot(self, ax: Any = None, **line: Any) -> PopularityDisplay:
        """Draw the picture.

        Parameters
        ----------
        ax : matplotlib axes, default=None
            Where to. None: a new figure.
        **line
            For the points and their line, as for ``ax.errorbar``.

        Returns
        -------
        PopularityDisplay
            Self.

        Raises
        ------
        MissingExtraError
            If matplotlib is not installed.
        ValueError
            If the axes show other buckets or other test ratings.
        """
        ticks = [
            (f"{low} to {high}" if high > low else f"{low}") + f"\n({n})"
            for low, high, n in zip(self.min_counts, self.max_counts, self.n_ratings, strict=True)
        ]
        ax = axes_or_new(ax)
        # get_xticklabels leaves out those that shared axes hide
        labels = [tick.label1.get_text() for tick in ax.xaxis.get_major_ticks()]
        shown = labels if ax.containers else ticks
        if shown != ticks:
            raise ValueError(
                f"ax shows the buckets {shown!r} and they must be {ticks!r} for another curve: "
                "compare on the same items and test ratings, or draw on other axes."
            )
        self.ax_, self.figure_ = ax, ax.figure
        x = np.arange(len(ticks))
        self.errorbar_ = draw_curve(ax, x, self.scores, None, self.name, line)
        ax.set_xticks(x, labels=ticks)
        ax.set(
            xlabel="training ratings of an item (test ratings), rarest items first",
            ylabel=self.score_name,
        )
        if self.name is not None:
            ax.legend()
        return self
