"""A picture of an audit: how much of each sensitivity neighbours reach, and which epsilons."""

from __future__ import annotations

import math
from typing import Any

from skdpmf.evaluation.audit import AuditReport, audit
from skdpmf.exceptions import MissingExtraError

__all__ = ["AuditDisplay"]


class AuditDisplay:
    """Picture of an `AuditReport`, as scikit-learn's displays.

    Left, for each release, the largest move of its statistic over its declared sensitivity: beyond
    1 the claim is broken. Right, the epsilons that were found against the claimed one.

    Parameters
    ----------
    report : AuditReport
        From `audit`.

    Attributes
    ----------
    report : AuditReport
        As given.
    axes_ : ndarray of two matplotlib axes
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
            Of `audit`.

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
        try:
            import matplotlib.pyplot as plt
        except ImportError as error:
            raise MissingExtraError(
                "plots need matplotlib, which is not installed: pip install 'skdpmf[plot]'."
            ) from error
        if axes is None:
            _, axes = plt.subplots(1, 2, figsize=(9.0, 3.2), layout="constrained")
        self.axes_, self.figure_ = axes, axes[0].figure
        report, (left, right) = self.report, axes
        bars = left.barh(list(report.ratios), list(report.ratios.values()), color="#0072B2")
        left.bar_label(bars, fmt="%.3f", padding=3)
        left.axvline(1.0, color="#D55E00", linewidth=1.2)
        left.set(xlabel="largest move / declared sensitivity", xlim=(0.0, 1.25))
        left.invert_yaxis()
        found = {
            "claimed": report.epsilon,
            "reached by neighbours": report.epsilon_attained,
            "at least, in repeated fits": report.epsilon_lower,
            "at least, by canaries": report.epsilon_canaries,
        }
        found = {name: value for name, value in found.items() if math.isfinite(value)}
        bars = right.barh(list(found), list(found.values()), color="#009E73")
        right.bar_label(bars, fmt="%.3g", padding=3)
        right.axvline(report.epsilon, color="#D55E00", linewidth=1.2)
        right.set(xlabel=f"epsilon at delta = {report.delta:g}")
        right.margins(x=0.2)
        right.invert_yaxis()
        return self
