"""A picture of what privacy costs: scores against epsilon."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from joblib import Parallel, delayed
from sklearn.base import clone
from sklearn.metrics import check_scoring
from sklearn.model_selection import check_cv
from sklearn.utils import _safe_indexing, indexable

from skdpmf.evaluation._plotting import (
    axes_or_new,
    draw_curve,
    guarantee_words,
    make_logarithmic,
)
from skdpmf.evaluation.spending import privacy_spent

__all__ = ["PrivacyUtilityDisplay"]


class PrivacyUtilityDisplay:
    """Picture of scores against epsilon, on a logarithmic axis.

    Points are means over splits, bars reach from the smallest to the largest score. Epsilon
    infinite is a dashed line. `plot` into the axes of another display adds a curve, with a colour
    and a marker of its own.

    Parameters
    ----------
    epsilons : array-like of shape (n_epsilons,)
        Positive, at least one of them finite.
    scores : array-like of shape (n_epsilons,) or (n_epsilons, n_splits)
        Score of each.
    score_name : str, default="score (higher is better)"
        Label of the scores, with their unit.
    name : str, default=None
        The curve's in the legend. None: no legend.
    guarantee : str, default=""
        Meaning of epsilon, for the legend, such as "one user, add-remove, delta = 1e-05".

    Attributes
    ----------
    ax_ : matplotlib axes
        After `plot`.
    figure_ : matplotlib figure
        After `plot`.
    errorbar_ : matplotlib ErrorbarContainer
        The points with their bars, after `plot`.
    reference_ : matplotlib Line2D or None
        The line without privacy, after `plot`.

    Raises
    ------
    ValueError
        If shapes do not match, or the epsilons are not as above.

    Examples
    --------
    >>> import math
    >>> from skdpmf.evaluation import PrivacyUtilityDisplay
    >>> errors = [[0.98, 0.97], [0.93, 0.95], [0.85, 0.86]]
    >>> display = PrivacyUtilityDisplay([1.0, 4.0, math.inf], errors, score_name="RMSE (stars)")
    >>> display.plot()  # doctest: +SKIP
    >>> from skdpmf import DPItemMeans, PrivacyBudget
    >>> from skdpmf.data import make_ratings
    >>> estimator, X = DPItemMeans(PrivacyBudget(1.0, 1e-5)), make_ratings(60, 10, random_state=0)
    >>> how = {"epsilons": (1, 4, math.inf), "cv": 3, "negate_score": True}
    >>> PrivacyUtilityDisplay.from_estimator(estimator, X, **how)  # doctest: +SKIP
    """

    def __init__(
        self,
        epsilons: Any,
        scores: Any,
        *,
        score_name: str = "score (higher is better)",
        name: str | None = None,
        guarantee: str = "",
    ) -> None:
        self.epsilons = np.asarray(epsilons, dtype=np.float64)
        self.scores = np.asarray(scores, dtype=np.float64)
        self.score_name = score_name
        self.name = name
        self.guarantee = guarantee
        if self.epsilons.ndim != 1 or not (np.isfinite(self.epsilons) & (self.epsilons > 0)).any():
            raise ValueError(
                f"epsilons of shape {self.epsilons.shape} must be a list with a finite number > 0: "
                "pass for example [0.5, 1, 2, 4, 8]."
            )
        if not (self.epsilons > 0).all():
            raise ValueError(
                f"epsilons={self.epsilons.tolist()!r} must all be > 0: drop the others."
            )
        if self.scores.ndim not in (1, 2) or len(self.scores) != len(self.epsilons):
            raise ValueError(
                f"scores of shape {self.scores.shape} must have {len(self.epsilons)} rows, one for "
                "each of epsilons, and at most one column for each split."
            )

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        X: Any,
        y: Any = None,
        *,
        epsilons: Sequence[float] = (0.5, 1.0, 2.0, 4.0, 8.0, math.inf),
        param_name: str = "budget__epsilon",
        cv: Any = None,
        scoring: str | Callable[..., float] | None = None,
        negate_score: bool = False,
        score_name: str | None = None,
        n_jobs: int | None = None,
        name: str | None = None,
        ax: Any = None,
        **line: Any,
    ) -> PrivacyUtilityDisplay:
        """Fit clones at several epsilons, score each on users whom it never saw, and plot.

        The scores are exact functions of the ratings, and all clones together spend what their
        epsilons add up to: the picture is the curator's, and whoever publishes it, or chooses an
        epsilon by it, leaks besides. Draw it from public, made-up or past ratings. With a ledger
        every fit is charged, and infinity refused.

        Parameters
        ----------
        estimator : estimator object
            With a budget; a pipeline too. It is not changed.
        X : {array-like, DataFrame, sparse matrix} of shape (n_users, n_items)
            Known ratings.
        y : array-like of shape (n_users,) or (n_users, n_items), default=None
            Held-out items, or ratings (sparse, or dense with NaN), as for ``estimator.score``.
        epsilons : sequence of float, default=(0.5, 1, 2, 4, 8, inf)
            Values of the clones' parameter; infinity is no privacy.
        param_name : str, default="budget__epsilon"
            That parameter.
        cv : int, cross-validation generator or iterable, default=None
            How users are split, as in `sklearn.model_selection.cross_validate`; the same splits
            for every epsilon. None: five folds.
        scoring : str or callable, default=None
            As in scikit-learn. None: ``estimator.score``.
        negate_score : bool, default=False
            Whether to plot minus the score, for errors.
        score_name : str, default=None
            Label of the scores, with their unit. None: "score (higher is better)", or "minus score
            (lower is better)".
        n_jobs : int, default=None
            Fits at once, as in joblib.
        name : str, default=None
            In the legend. None: the estimator's type.
        ax : matplotlib axes, default=None
            Where to. None: a new figure.
        **line
            For the points and their line, as for ``ax.errorbar``.

        Returns
        -------
        PrivacyUtilityDisplay
            With its plot. Its ``epsilons`` are those that `privacy_spent` shows of each fit.

        Raises
        ------
        MissingExtraError
            If matplotlib is not installed.
        """
        ax = axes_or_new(ax)  # which may raise, before anything is spent
        data = [part for part in indexable(X, y) if part is not None]
        splits = list(check_cv(cv).split(X, y))
        spent, scores, guarantee = [], [], ""
        for value in epsilons:
            template = clone(estimator).set_params(**{param_name: value})
            found = Parallel(n_jobs=n_jobs)(
                delayed(_fit_and_score)(clone(template), scoring, data, *split) for split in splits
            )
            points, statements = zip(*found, strict=True)
            spent.append(max(statement.epsilon for statement in statements))
            scores.append(-np.array(points) if negate_score else np.array(points))
            if statements[0].is_private:
                guarantee = guarantee_words(statements[0])
        if score_name is None:
            score_name = "score (higher is better)"
            if negate_score:
                score_name = "minus score (lower is better)"
        return cls(
            spent,
            scores,
            score_name=score_name,
            name=type(estimator).__name__ if name is None else name,
            guarantee=guarantee,
        ).plot(ax, **line)

    def plot(self, ax: Any = None, **line: Any) -> PrivacyUtilityDisplay:
        """Draw the picture.

        Parameters
        ----------
        ax : matplotlib axes, default=None
            Where to. None: a new figure.
        **line
            For the points and their line, as for ``ax.errorbar``.

        Returns
        -------
        PrivacyUtilityDisplay
            Self.

        Raises
        ------
        MissingExtraError
            If matplotlib is not installed.
        """
        self.ax_ = ax = axes_or_new(ax)
        self.figure_ = ax.figure
        label = self.name
        if label is not None and self.guarantee:
            label += f" ({self.guarantee})"
        table = self.scores.reshape(len(self.epsilons), -1)
        table = table[np.argsort(self.epsilons, kind="stable")]
        x = np.sort(self.epsilons)
        mean, private = table.mean(axis=1), np.isfinite(x)
        spread = np.stack([mean - table.min(axis=1), table.max(axis=1) - mean])[:, private]
        self.errorbar_ = draw_curve(
            ax, x[private], mean[private], spread if table.shape[1] > 1 else None, label, line
        )
        self.reference_ = None
        if not private.all():
            self.reference_ = ax.axhline(
                mean[~private].mean(),
                color=self.errorbar_.lines[0].get_color(),
                linestyle="--",
                label=None if self.name is None else f"{self.name}, no privacy",
            )
        ax.set(xlabel="epsilon", ylabel=self.score_name)
        make_logarithmic(ax)
        if label is not None:
            ax.legend()
        return self


def _fit_and_score(
    estimator: Any, scoring: Any, data: list[Any], train: Any, test: Any
) -> tuple[float, Any]:
    """Fit on some rows and score on others; scikit-learn's `cross_validate` takes no sparse y."""
    estimator.fit(*(_safe_indexing(part, train) for part in data))
    held_out = (_safe_indexing(part, test) for part in data)
    return check_scoring(estimator, scoring)(estimator, *held_out), privacy_spent(estimator)
