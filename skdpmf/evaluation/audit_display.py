"""A picture of an audit: how much of each sensitivity neighbours reach, and which epsilons."""

from __future__ import annotations

import math
from typing import Any

from skdpmf.evaluation._plotting import BLUE, VERMILION, pyplot
from skdpmf.evaluation.audit import AuditReport, audit

__all__ = ["AuditDisplay"]

_ROUNDING = 1.0 + 1e-9


class AuditDisplay:
    """Picture of an `AuditReport`, as scikit-learn's displays.

    Left, for each release, the largest move of its statistic over its declared sensitivity (for
    other mechanisms see `AuditReport.ratios`): beyond 1 the claim is broken. Right, the epsilons
    that were found against the claimed one. The title is the verdict. Bars beyond the line have
    another colour; they end at three times of what is claimed.

    Parameters
    ----------
    report : AuditReport
        From `audit`.

    Attributes
    ----------
    report : AuditReport
        As given.
    axes_ : ndarray of matplotlib axes, shape (2,)
        After `plot`.
    figure_ : matplotlib figure
        After `plot`.

    Examples
    --------
    >>> from skdpmf import AdaptiveWeightALS, PrivacyBudget
    >>> from skdpmf.data import make_ratings
    >>> X = make_ratings(60, 10, random_state=0)
    >>> estimator = AdaptiveWeightALS(PrivacyBudget(4.0, 1e-5), max_iter=2)
    >>> display = AuditDisplay.from_estimator(estimator, X, n_neighbors=8)  # doctest: +SKIP
    >>> display.plot()  # again, in a figure of its own  # doctest: +SKIP
    """

    def __init__(self, report: AuditReport) -> None:
        self.report = report

    @classmethod
    def from_estimator(cls, estimator: Any, X: Any, **parameters: Any) -> AuditDisplay:
        """Audit an estimator, and plot what was found.

        Parameters
        ----------
        estimator : estimator
            As for `audit`.
        X : {array-like, DataFrame, sparse matrix} of shape (n_users, n_items)
            As for `audit`.
        **parameters
            Parameters of `audit`.

        Returns
        -------
        AuditDisplay
            With its plot.

        Raises
        ------
        MissingExtraError
            If matplotlib is not installed.
        """
        return cls(audit(estimator, X, **parameters)).plot()

    def plot(self, axes: Any = None) -> AuditDisplay:
        """Draw the picture.

        Parameters
        ----------
        axes : sequence of two matplotlib axes, default=None
            Where to. None: a new figure.

        Returns
        -------
        AuditDisplay
            Self.

        Raises
        ------
        MissingExtraError
            If matplotlib is not installed.
        """
        if axes is None:
            _, axes = pyplot().subplots(1, 2, figsize=(9.0, 3.2), layout="constrained")
        self.axes_, self.figure_ = axes, axes[0].figure
        report, (left, right) = self.report, axes
        _bars(left, report.ratios, 1.0, "%.3f")
        left.set(xlabel="reached by neighbours / declared")
        sure = f"at least, {100 * report.confidence:g} % sure"
        found = {
            "claimed": report.epsilon,
            "reached by neighbours": report.epsilon_attained,
            f"by repetition,\n{sure}": report.epsilon_lower,
            f"by canaries,\n{sure}": report.epsilon_canaries,
        }
        found = {name: value for name, value in found.items() if not math.isnan(value)}
        _bars(right, found, report.epsilon, "%.3g")
        right.set(xlabel=f"epsilon at delta = {report.delta:g}")
        failed = ", ".join(check.name for check in report.checks if not check.passed)
        verdict = f"the claim does not hold: {failed}" if failed else "nothing found"
        left.set_title(f"Privacy audit: {verdict}", loc="left")
        return self


def _bars(axes: Any, values: dict[str, float], claimed: float, label: str) -> None:
    """Draw bars, of another colour beyond what is claimed, and at most three times as long."""
    beyond = [value > claimed * _ROUNDING for value in values.values()]
    colours = [VERMILION if far else BLUE for far in beyond]
    lengths = [min(value, 3.0 * claimed) for value in values.values()]
    bars = axes.barh(list(values), lengths, color=colours)
    axes.bar_label(bars, [label % value for value in values.values()], padding=3)
    axes.axvline(claimed, color="black", linewidth=1.2)
    axes.set_xlim(0.0, 1.3 * max(claimed, *lengths, 0.0))
    axes.invert_yaxis()
