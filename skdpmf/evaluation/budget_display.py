"""A picture of where a budget goes: the releases of a plan, or the entries of a ledger."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from skdpmf.books.ledger import PrivacyLedger
from skdpmf.evaluation._plotting import BLUE, axes_or_new, guarantee_words
from skdpmf.evaluation.spending import privacy_spent
from skdpmf.exceptions import PrivacyParameterError
from skdpmf.privacy.plan import Release, ReleasePlan, pure_total
from skdpmf.privacy.statement import PrivacyStatement
from skdpmf.privacy.text import outward, release_shares

__all__ = ["BudgetDisplay"]

_NUMBERS = {"gaussian": "mu^2", "zcdp": "rho", "basic": "epsilon"}  # of a ledger's rules
_SHOWN = 20  # entries of a ledger


class BudgetDisplay:
    """Picture of the shares of a budget, a bar each; what is left has a hatched one.

    Parameters
    ----------
    names : sequence of str
        Names of the parts of the budget, from above.
    shares : array-like of shape (n_names,)
        Shares of the whole, from 0 to 1.
    left : float, default=None
        Share that is left. None: no bar for it.
    share_name : str, default="share of what is spent"
        Name of the whole.
    title : str, default=""
        Above the picture.

    Attributes
    ----------
    ax_ : matplotlib axes
        After `plot`.
    figure_ : matplotlib figure
        After `plot`.
    bars_ : matplotlib BarContainer
        After `plot`; the last one is what is left, if that was given.

    Raises
    ------
    ValueError
        If there is not one share >= 0 for each name.

    Examples
    --------
    >>> from skdpmf import AdaptiveWeightALS, DPItemMeans, PrivacyBudget, PrivacyLedger
    >>> from skdpmf.data import make_ratings
    >>> from skdpmf.evaluation import BudgetDisplay
    >>> plan = AdaptiveWeightALS(PrivacyBudget(1.0, 1e-5)).plan(n_items=40)
    >>> display = BudgetDisplay.from_plan(plan)  # doctest: +SKIP
    >>> model = DPItemMeans(PrivacyBudget(1.0, 1e-5)).fit(make_ratings(60, 10, random_state=0))
    >>> BudgetDisplay.from_estimator(model)  # doctest: +SKIP
    >>> ledger = PrivacyLedger("a.ledger", PrivacyBudget(4.0, 1e-5))  # doctest: +SKIP
    >>> BudgetDisplay.from_ledger(ledger)  # doctest: +SKIP
    >>> BudgetDisplay(["counts", "factors"], [0.1, 0.6], left=0.3).plot()  # doctest: +SKIP
    """

    def __init__(
        self,
        names: Sequence[str],
        shares: Any,
        *,
        left: float | None = None,
        share_name: str = "share of what is spent",
        title: str = "",
    ) -> None:
        self.names = list(names)
        self.shares = np.asarray(shares, dtype=np.float64)
        self.left = left
        self.share_name = share_name
        self.title = title
        if self.shares.shape != (len(self.names),) or not (self.shares >= 0).all():
            raise ValueError(
                f"shares={self.shares.tolist()!r} must hold one number >= 0 for each of the "
                f"{len(self.names)} names: pass parts of 1."
            )

    @classmethod
    def from_estimator(cls, estimator: Any, *, ax: Any = None, **bars: Any) -> BudgetDisplay:
        """Plot what a fitted object has released. Touches no data.

        Parameters
        ----------
        estimator : object
            Anything that `privacy_spent` knows: estimators, pipelines, searches, lists of them.
        ax : matplotlib axes, default=None
            Where to. None: a new figure.
        **bars
            As for ``ax.barh``.

        Returns
        -------
        BudgetDisplay
            With its plot.

        Raises
        ------
        MissingExtraError
            If matplotlib is not installed.
        PrivacyParameterError
            As `privacy_spent` and `from_plan`.
        """
        return cls.from_plan(privacy_spent(estimator), ax=ax, **bars)

    @classmethod
    def from_plan(
        cls, plan: ReleasePlan | PrivacyStatement, *, ax: Any = None, **bars: Any
    ) -> BudgetDisplay:
        """Plot the releases of a plan or a statement, as `ReleasePlan.share` has their shares.

        Parameters
        ----------
        plan : ReleasePlan or PrivacyStatement
            From ``estimator.plan(...)``, or ``estimator.privacy_spent_``.
        ax : matplotlib axes, default=None
            Where to. None: a new figure.
        **bars
            As for ``ax.barh``.

        Returns
        -------
        BudgetDisplay
            With its plot.

        Raises
        ------
        MissingExtraError
            If matplotlib is not installed.
        PrivacyParameterError
            If it is neither of the two, has no privacy, or is the statement of a private search,
            whose releases do not make up what it spends.
        """
        if not isinstance(plan, ReleasePlan | PrivacyStatement):
            raise PrivacyParameterError(
                f"plan of type {type(plan).__name__} must be a ReleasePlan or a PrivacyStatement: "
                "pass estimator.plan(n_items) or estimator.privacy_spent_."
            )
        explained = isinstance(plan, ReleasePlan) or plan.follows_from_releases
        if not (plan.is_private and plan.epsilon > 0.0 and explained):
            raise PrivacyParameterError(
                f"plan with epsilon={plan.epsilon!r} must have an epsilon that is finite, > 0 and "
                "made up of its releases: without privacy, and in a private search, which keeps "
                "its losers secret, there are no shares. Plot the plan of a single private fit."
            )
        gaussian = [isinstance(release, Release) for release in plan.releases]
        number = "mu^2" if all(gaussian) else "epsilon"
        return cls(
            [
                release.name if release.count == 1 else f"{release.name}, {release.count} times"
                for release in plan.releases
            ],
            release_shares(plan.releases, plan.epsilon, plan.mu, pure_total(plan.releases)),
            share_name=f"share of {number} that is spent",
            title=f"epsilon = {outward(plan.epsilon)}\n{guarantee_words(plan)}",
        ).plot(ax, **bars)

    @classmethod
    def from_ledger(cls, ledger: PrivacyLedger, *, ax: Any = None, **bars: Any) -> BudgetDisplay:
        """Plot what the fits on a data set were charged, and what is left of its limit.

        Failed fits are charged too. Of more than 20 entries the first ones share a bar.

        Parameters
        ----------
        ledger : PrivacyLedger
            The ledger.
        ax : matplotlib axes, default=None
            Where to. None: a new figure.
        **bars
            As for ``ax.barh``.

        Returns
        -------
        BudgetDisplay
            With its plot. Shares are of the rule's number: mu^2, rho, or epsilon (the delta that
            "basic" adds up besides is not shown).

        Raises
        ------
        LedgerError
            If the file cannot be read.
        MissingExtraError
            If matplotlib is not installed.
        """
        report = ledger.report()
        whole = report.allowed.number
        entries = [
            (_entry_name(entry), entry["charge"] / whole if whole else 0.0)
            for entry in report.entries
        ]
        early, late = entries[:-_SHOWN], entries[-_SHOWN:]
        if early:
            late.insert(0, (f"{len(early)} entries before", sum(share for _, share in early)))
        limit = f"epsilon = {report.limit.epsilon:g}"
        limit += f", delta = {report.limit.delta:g}" if report.limit.delta else ""
        limit = f"limit: {limit}, one {report.limit.unit}, {report.limit.neighbors}"
        if not all(entry["private"] for entry in report.entries):
            limit = "no limit holds: fits without privacy are among them"
        return cls(
            [name for name, _ in late],
            [share for _, share in late],
            left=report.left / whole if whole else 0.0,
            share_name=f"share of the limit's {_NUMBERS[report.rule]}",
            title=f"epsilon = {outward(report.epsilon)} spent by {len(entries)} entries\n{limit}",
        ).plot(ax, **bars)

    def plot(self, ax: Any = None, **bars: Any) -> BudgetDisplay:
        """Draw the picture.

        Parameters
        ----------
        ax : matplotlib axes, default=None
            Where to. None: a new figure, higher for more bars.
        **bars
            As for ``ax.barh``.

        Returns
        -------
        BudgetDisplay
            Self.

        Raises
        ------
        MissingExtraError
            If matplotlib is not installed.
        """
        names = [*self.names, *([] if self.left is None else ["left"])]
        shares = [*self.shares, *([] if self.left is None else [self.left])]
        self.ax_ = ax = axes_or_new(ax, height=1.4 + 0.32 * len(names))
        self.figure_ = ax.figure
        from matplotlib.ticker import PercentFormatter

        self.bars_ = ax.barh(range(len(names)), shares, **{"color": BLUE, **bars})
        if self.left is not None:
            self.bars_[-1].set(facecolor="white", edgecolor="black", hatch="///")
        ax.bar_label(self.bars_, [f"{100.0 * share:.3g} %" for share in shares], padding=3)
        ax.set_yticks(range(len(names)), labels=names)
        ax.invert_yaxis()
        ax.set_xlim(0.0, 1.19 * max(shares, default=0.0) or 1.0)  # with room for the numbers
        ax.xaxis.set_major_formatter(PercentFormatter(1.0))
        ax.set_xlabel(self.share_name)
        ax.set_title(self.title, loc="left", fontsize="medium")
        return self


def _entry_name(entry: dict[str, Any]) -> str:
    words = [f"{entry['id']} {entry['estimator'] or '-'}"]
    words += [] if entry["status"] == "done" else [entry["status"]]
    words += [] if entry["private"] else ["no privacy"]
    return ", ".join(words)
