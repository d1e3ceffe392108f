"""Pictures: the price of privacy, budgets, refreshes by month, audits, chains that converge."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np
from joblib import Parallel, delayed
from sklearn.base import clone
from sklearn.metrics import check_scoring
from sklearn.model_selection import check_cv
from sklearn.utils import _safe_indexing, indexable

from skdpmf.books.ledger import PrivacyLedger
from skdpmf.data.validation import as_rating_matrix
from skdpmf.estimators.contract.private import is_by_person
from skdpmf.evaluation.audit import ROUNDING, AuditReport, audit
from skdpmf.evaluation.metrics import by_popularity, rmse
from skdpmf.evaluation.spending import privacy_spent
from skdpmf.exceptions import MissingExtraError, PrivacyParameterError
from skdpmf.privacy.plan import Release, ReleasePlan, pure_total
from skdpmf.privacy.statement import PrivacyStatement
from skdpmf.privacy.text import outward, release_shares

__all__ = [
    "AuditDisplay",
    "BudgetDisplay",
    "ConvergenceDisplay",
    "PopularityDisplay",
    "PrivacyUtilityDisplay",
    "RefreshDisplay",
]

# Okabe and Ito (2008), "Color universal design": seen apart with any kind of colour vision. Their
# yellow is too light for lines on white, and black is for limits.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")
BLUE, VERMILION = COLOURS[:2]
MARKERS = "osD^vP"  # beside the colours
_NUMBERS = {"gaussian": "mu^2", "zcdp": "rho", "basic": "epsilon"}  # of a ledger's rules
_SHOWN = 20  # entries of a ledger
_NAMED = 3  # of the quantities that fail, in the legend
_RANGE = 1e-4, 1e2  # of R-hat - 1, as shown


@dataclass(eq=False, repr=False)
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

    epsilons: Any
    scores: Any
    _: KW_ONLY
    score_name: str = "score (higher is better)"
    name: str | None = None
    guarantee: str = ""

    def __post_init__(self) -> None:
        self.epsilons = np.asarray(self.epsilons, dtype=np.float64)
        self.scores = np.asarray(self.scores, dtype=np.float64)
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


@dataclass(eq=False, repr=False)
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

    scores: Any
    min_counts: Any
    max_counts: Any
    n_ratings: Any
    _: KW_ONLY
    score_name: str = "score"
    name: str | None = None

    def __post_init__(self) -> None:
        self.scores = np.asarray(self.scores, dtype=np.float64)
        for argument in ("min_counts", "max_counts", "n_ratings"):
            values = np.asarray(getattr(self, argument))
            setattr(self, argument, values)
            shape = values.shape
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
        name: str | None = None,
        **options: Any,
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
        name : str, default=None
            In the legend. None: the estimator's type.
        **options
            ``n_buckets``, ``metric``, ``score_name``, ``ax`` and more, as for `from_predictions`.

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
            name=type(estimator).__name__ if name is None else name,
            **options,
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


@dataclass(eq=False, repr=False)
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

    names: Sequence[str]
    shares: Any
    _: KW_ONLY
    left: float | None = None
    share_name: str = "share of what is spent"
    title: str = ""

    def __post_init__(self) -> None:
        self.names = list(self.names)
        self.shares = np.asarray(self.shares, dtype=np.float64)
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
        if report.at_most is not None:
            limit = limit.replace("limit:", "limit of each person (left: of whoever spent most):")
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


@dataclass(eq=False, repr=False)
class ConvergenceDisplay:
    """Picture of R-hat against effective sample size, a point for each quantity of the chains.

    Quantities that pass are circles, below and right of the limits; those that fail are crosses.
    The legend names the worst. Like the diagnostics, it reads the ratings and must not be
    published; and it proves nothing, as no diagnostic bounds the distance to the posterior.

    Parameters
    ----------
    names : sequence of str
        Names of the quantities.
    rhat, ess : array-like of shape (n_names,)
        Split R-hat, and effective sample size, the smaller one of bulk and tails. What is not
        finite fails; NaN has no point, R-hat - 1 is shown from 1e-4 to 100.
    max_rhat, min_ess : float, default=1.01, 400.0
        Limits, of Vehtari et al. (2021).

    Attributes
    ----------
    fails : ndarray of bool, shape (n_names,)
        Which quantities do not have R-hat below and an effective sample size above the limit.
    ax_ : matplotlib axes
        After `plot`.
    figure_ : matplotlib figure
        After `plot`.
    passing_, failing_ : matplotlib Line2D
        The points, after `plot`.

    Raises
    ------
    ValueError
        If there are not as many of each as names.

    References
    ----------
    Vehtari, Gelman, Simpson, Carpenter, Buerkner (2021). Rank-normalization, folding, and
    localization: an improved R-hat for assessing convergence of MCMC. Bayesian Analysis 16(2).

    Examples
    --------
    >>> from skdpmf.evaluation.displays import ConvergenceDisplay
    >>> display = ConvergenceDisplay(["loss", "|V|^2"], [1.002, 1.3], [900.0, 12.0])
    >>> display.fails
    array([False,  True])
    >>> display.plot()  # doctest: +SKIP
    >>> from skdpmf import DPMFSampler, PosteriorDraw, PrivacyBudget
    >>> from skdpmf.data import make_ratings
    >>> draw = PosteriorDraw(nonprivate_diagnostics=True)
    >>> sampler = DPMFSampler(PrivacyBudget(16.0), guarantee=draw, max_iter=60)
    >>> sampler = sampler.fit(make_ratings(60, 10, random_state=0))
    >>> ConvergenceDisplay.from_estimator(sampler)  # doctest: +SKIP
    """

    names: Sequence[str]
    rhat: Any
    ess: Any
    _: KW_ONLY
    max_rhat: float = 1.01
    min_ess: float = 400.0

    def __post_init__(self) -> None:
        self.names = list(self.names)
        self.rhat = np.asarray(self.rhat, dtype=np.float64)
        self.ess = np.asarray(self.ess, dtype=np.float64)
        for argument, values in (("rhat", self.rhat), ("ess", self.ess)):
            if values.shape != (len(self.names),):
                raise ValueError(
                    f"{argument} of shape {values.shape} must have one value for each of the "
                    f"{len(self.names)} names: pass those of the same diagnostics."
                )
        self.fails = ~((self.rhat < self.max_rhat) & (self.ess > self.min_ess))

    @classmethod
    def from_estimator(cls, estimator: Any, *, ax: Any = None, **points: Any) -> ConvergenceDisplay:
        """Plot the diagnostics of a fitted `DPMFSampler`.

        Parameters
        ----------
        estimator : DPMFSampler
            Fitted with ``guarantee=PosteriorDraw(nonprivate_diagnostics=True)``.
        ax : matplotlib axes, default=None
            Where to. None: a new figure.
        **points
            As for ``ax.plot``.

        Returns
        -------
        ConvergenceDisplay
            With its plot.

        Raises
        ------
        MissingExtraError
            If matplotlib is not installed.
        ValueError
            If the estimator has no diagnostics.
        """
        found = getattr(estimator, "nonprivate_diagnostics_", None)
        if found is None:
            raise ValueError(
                f"estimator of type {type(estimator).__name__} must have nonprivate_diagnostics_: "
                "fit a DPMFSampler(budget, guarantee=PosteriorDraw(nonprivate_diagnostics=True))."
            )
        ess = np.minimum(found.ess_bulk, found.ess_tail)
        return cls(found.names, found.rhat, ess).plot(ax, **points)

    def plot(self, ax: Any = None, **points: Any) -> ConvergenceDisplay:
        """Draw the picture.

        Parameters
        ----------
        ax : matplotlib axes, default=None
            Where to. None: a new figure.
        **points
            For both kinds of points, as for ``ax.plot``.

        Returns
        -------
        ConvergenceDisplay
            Self.

        Raises
        ------
        MissingExtraError
            If matplotlib is not installed.
        """
        self.ax_ = ax = axes_or_new(ax)
        self.figure_ = ax.figure
        above, fails = np.clip(self.rhat - 1.0, *_RANGE), self.fails
        with np.errstate(divide="ignore"):
            badness = np.fmax((self.rhat - 1.0) / (self.max_rhat - 1.0), self.min_ess / self.ess)
        badness[np.isnan(self.rhat) | np.isnan(self.ess)] = np.inf
        worst = [self.names[q] for q in np.argsort(-badness, kind="stable") if fails[q]]
        named = ", ".join(worst[:_NAMED]) + (", ..." if len(worst) > _NAMED else "")
        (self.passing_,) = ax.plot(
            self.ess[~fails],
            above[~fails],
            **{"marker": "o", "linestyle": "", "color": BLUE, **points},
            label=f"{(~fails).sum()} pass",
        )
        (self.failing_,) = ax.plot(
            self.ess[fails],
            above[fails],
            **{"marker": "x", "linestyle": "", "color": VERMILION, **points},
            label=f"{fails.sum()} fail: {named}" if worst else "0 fail",
        )
        asked = f"asked: R-hat < {self.max_rhat:g}, ESS > {self.min_ess:g}"
        ax.axhline(self.max_rhat - 1.0, color="black", linestyle="--", linewidth=1.0, label=asked)
        ax.axvline(self.min_ess, color="black", linestyle="--", linewidth=1.0)
        ax.set(yscale="log", xlabel="effective sample size (draws)", ylabel="R-hat - 1")
        make_logarithmic(ax)
        low, high = 0.5 * _RANGE[0], np.nanmax([*above, self.max_rhat - 1.0])
        ax.set_ylim(low, high * (high / low) ** 0.4)  # with room for the legend above the points
        ax.set_title(
            f"Convergence: {fails.sum()} of {fails.size} quantities fail\n"
            "reads the ratings: not to be published",
            loc="left",
            fontsize="medium",
        )
        ax.legend(loc="upper left")
        return self


@dataclass(eq=False, repr=False)
class RefreshDisplay:
    """Picture of a refreshed model: how good it was each month, and what the month's people paid.

    Above are the scores of the models, a curve for each way of going on; below the epsilon of each
    fit's people, beside the limit that each person has for life, if a ledger by person counts it.

    Parameters
    ----------
    scores : mapping of str to array-like of shape (n_months,)
        A score of each month's model by name of the curve, at most six. They are the caller's own,
        such as test errors, and are no part of any guarantee.
    epsilons : array-like of shape (n_months,)
        Epsilon of the fit or refresh of each month.
    limit : float, default=None
        Epsilon of a person's lifetime limit. None: nobody counts, or there is none.
    score_name : str, default="score"
        Name of the scores.

    Attributes
    ----------
    axes_ : ndarray of matplotlib axes, shape (2,)
        After `plot`.
    figure_ : matplotlib figure
        After `plot`.
    lines_ : list of matplotlib Line2D
        The curves, after `plot`.
    bars_ : matplotlib BarContainer
        The epsilons, after `plot`.

    Raises
    ------
    ValueError
        If there is no curve, or more than six, or a month has no score or no epsilon >= 0.

    Examples
    --------
    >>> from skdpmf import DPItemMeans, PrivacyBudget
    >>> from skdpmf.data import make_ratings
    >>> from skdpmf.evaluation.displays import RefreshDisplay
    >>> X = make_ratings(900, 40, random_state=0)
    >>> models = [DPItemMeans(PrivacyBudget(1.0, 1e-5), random_state=0).fit(X[:300])]
    >>> models.append(models[0].refresh(X[300:600]))
    >>> errors = [-model.score(X[600:]) for model in models]
    >>> RefreshDisplay.from_estimators(models, errors, score_name="RMSE")  # doctest: +SKIP
    >>> RefreshDisplay({"refresh": errors}, [1.0, 1.0]).limit is None
    True
    """

    scores: Any
    epsilons: Any
    _: KW_ONLY
    limit: float | None = None
    score_name: str = "score"

    def __post_init__(self) -> None:
        self.epsilons = np.asarray(self.epsilons, dtype=np.float64)
        n = self.epsilons.size
        self.scores = {str(k): np.asarray(v, np.float64) for k, v in dict(self.scores).items()}
        whole = all(score.shape == (n,) for score in self.scores.values())
        if not (whole and 1 <= len(self.scores) <= len(COLOURS) and (self.epsilons >= 0.0).all()):
            shapes = {name: score.shape for name, score in self.scores.items()}
            raise ValueError(
                f"scores of shapes {shapes} must be one to {len(COLOURS)} curves with a score for "
                f"each of the {n} months, whose epsilons must be >= 0: pass one of each a model."
            )

    @classmethod
    def from_estimators(
        cls, models: Sequence[Any], scores: Any, *, score_name: str = "score", **line: Any
    ) -> RefreshDisplay:
        """Plot a fitted model and its refreshes. Touches no data.

        Parameters
        ----------
        models : sequence of estimators
            The fitted model, its refresh, the refresh of that one, and so on.
        scores : array-like of shape (n_models,), or mapping of such by name
            Score of each, such as an error on test ratings; more curves for other ways.
        score_name : str, default="score"
            Name of the scores.
        **line
            As for `plot`.

        Returns
        -------
        RefreshDisplay
            With its plot. The limit is that of the last model's ledger by person, if it has one.

        Raises
        ------
        MissingExtraError
            If matplotlib is not installed.
        ValueError
            As for the class.
        """
        if not isinstance(scores, Mapping):
            scores = {"refresh": scores}
        budget = models[-1].budget
        return cls(
            scores,
            [model.privacy_spent_.epsilon for model in models],
            limit=float(budget.ledger.limit.epsilon) if is_by_person(budget) else None,
            score_name=score_name,
        ).plot(**line)

    def plot(self, axes: Any = None, **line: Any) -> RefreshDisplay:
        """Draw the picture.

        Parameters
        ----------
        axes : sequence of two matplotlib axes, default=None
            Where to. None: a new figure.
        **line
            As for ``ax.plot``, for all curves.

        Returns
        -------
        RefreshDisplay
            Self.

        Raises
        ------
        MissingExtraError
            If matplotlib is not installed.
        """
        if axes is None:
            shape: Any = {"sharex": True, "figsize": (6.4, 5.0), "layout": "constrained"}
            _, axes = pyplot().subplots(2, 1, height_ratios=(2, 1), **shape)
        self.axes_, self.figure_ = axes, axes[0].figure
        (above, below), months = axes, np.arange(1, self.epsilons.size + 1)
        self.lines_ = []
        for (name, score), colour, marker in zip(
            self.scores.items(), COLOURS, MARKERS, strict=False
        ):
            style = {"marker": marker, "color": colour, **line}
            self.lines_ += above.plot(months, score, label=name, **style)
        above.set(ylabel=self.score_name)
        if len(self.scores) > 1:
            above.legend()
        self.bars_ = below.bar(months, self.epsilons, color=BLUE)
        below.set(xlabel="month", ylabel="epsilon of\nthe month's people", xticks=months)
        most = float(self.epsilons.max(initial=0.0))
        if self.limit is not None:
            below.axhline(self.limit, color="black", linewidth=1.2)
            below.annotate(
                f"each person's limit for life: {self.limit:g}",
                (0.0, self.limit),
                (3.0, 3.0),
                xycoords=("axes fraction", "data"),
                textcoords="offset points",
            )
            most = max(most, self.limit)
        below.set_ylim(0.0, 1.4 * most if most else 1.0)
        above.set_title(f"A model and {months.size - 1} refreshes", loc="left")
        return self


@dataclass(eq=False, repr=False)
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

    report: AuditReport

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
    beyond = [value > claimed * ROUNDING for value in values.values()]
    colours = [VERMILION if far else BLUE for far in beyond]
    lengths = [min(value, 3.0 * claimed) for value in values.values()]
    bars = axes.barh(list(values), lengths, color=colours)
    axes.bar_label(bars, [label % value for value in values.values()], padding=3)
    axes.axvline(claimed, color="black", linewidth=1.2)
    axes.set_xlim(0.0, 1.3 * max(claimed, *lengths, 0.0))
    axes.invert_yaxis()


def pyplot() -> Any:
    """Return `matplotlib.pyplot`, or raise a `MissingExtraError`."""
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise MissingExtraError(
            "plots need matplotlib, which is not installed: pip install 'skdpmf[plot]'."
        ) from error
    return plt


def axes_or_new(ax: Any, width: float = 6.4, height: float = 4.0) -> Any:
    """Return the axes, or those of a new figure of this size (inches)."""
    if ax is None:
        _, ax = pyplot().subplots(figsize=(width, height), layout="constrained")
    return ax


def draw_curve(ax: Any, x: Any, y: Any, spread: Any, label: Any, line: dict[str, Any]) -> Any:
    """Draw points with error bars, in the next colour and marker of the axes, or as told."""
    from matplotlib.cbook import normalize_kwargs
    from matplotlib.lines import Line2D

    n = len(ax.containers)  # curves before this one
    style = {
        "color": COLOURS[n % len(COLOURS)],
        "marker": MARKERS[n % len(MARKERS)],
        "capsize": 4.0,
        "label": label,
    }
    return ax.errorbar(x, y, yerr=spread, **{**style, **normalize_kwargs(line, Line2D)})


def make_logarithmic(ax: Any) -> None:
    """Give the axes a logarithmic x-axis with plain numbers, at 1, 2 and 5 where they have room."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    ax.set_xscale("log")
    low, high = ax.get_xlim()
    ax.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if high < 1e3 * low else (1.0,)))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ax.xaxis.set_minor_locator(NullLocator())


def guarantee_words(spent: ReleasePlan | PrivacyStatement) -> str:
    """Return what an epsilon is about, such as "one user, add-remove, delta = 1e-05"."""
    about = spent.budget if isinstance(spent, ReleasePlan) else spent
    words = [f"one {about.unit}", about.neighbors]
    words += [f"delta = {spent.delta:.4g}"] if spent.delta else []
    words += ["local"] if spent.local else []
    words += ["conditional"] if spent.condition else []
    return ", ".join(words)
