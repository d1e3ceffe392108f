"""Pictures of accuracy against epsilon, and of a spent budget."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np
from scipy import sparse
from sklearn.base import clone
from sklearn.model_selection import check_cv, cross_validate

from skdpmf.books.ledger import PrivacyLedger
from skdpmf.books.ledger_rules import RULES
from skdpmf.data.labelled_rows import RatingMatrix, catalogue_of
from skdpmf.estimators.contract.parameters import require
from skdpmf.evaluation.spending import privacy_spent
from skdpmf.exceptions import MissingExtraError, PrivacyParameterError
from skdpmf.privacy.plan import Release, ReleasePlan, pure_total
from skdpmf.privacy.statement import PrivacyStatement
from skdpmf.privacy.text import outward, release_shares

# Okabe and Ito (2008), "Color universal design": seen apart with any kind of colour vision. Their
# yellow is too light for lines on white, and black is for limits.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")
MARKERS = "osD^vP"  # beside the colours


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
    ax_, figure_ : matplotlib axes and figure
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
        self.epsilons, self.scores = x, y = _floats(self.epsilons), _floats(self.scores)
        good = x.ndim == 1 and (x > 0).all() and np.isfinite(x).any()
        rule = "a list of numbers > 0 with a finite one, such as [0.5, 1, 2, 4]"
        require(bool(good), "epsilons", x.tolist(), rule, "pass the epsilons of the scores")
        rule = f"of shape ({x.size},), a score each, or of 2-D with a column for each split"
        require(y.shape[:1] == x.shape and y.ndim <= 2, "scores", y.shape, rule, "pass so many")

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
        name: str | None = None,
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
        name : str, default=None
            In the legend. None: the estimator's type.
        **line
            ``ax`` and more, as for `plot`.

        Returns
        -------
        PrivacyUtilityDisplay
            With its plot. Its ``epsilons`` are those that `privacy_spent` shows of each fit.

        Raises
        ------
        MissingExtraError
            If matplotlib is not installed.
        """
        pyplot()  # which may raise, before anything is spent
        if sparse.issparse(y):  # which `cross_validate` takes as a RatingMatrix alone
            y = RatingMatrix(y, None, getattr(catalogue_of(X), "items", None))
        how = {"cv": list(check_cv(cv).split(X, y)), "scoring": scoring, "error_score": "raise"}
        scores, spent, sign = [], [], -1.0 if negate_score else 1.0
        for value in epsilons:
            fit = clone(estimator).set_params(**{param_name: value})
            found = cross_validate(fit, X, y, return_estimator=True, **how)
            scores.append(sign * found["test_score"])
            spent.append(max(map(privacy_spent, found["estimator"]), key=lambda one: one.epsilon))
        better = "minus score (lower is better)" if negate_score else "score (higher is better)"
        words = {"score_name": score_name or better, "name": name or type(estimator).__name__}
        words["guarantee"] = next((guarantee_words(s) for s in spent[::-1] if s.is_private), "")
        return cls([most.epsilon for most in spent], scores, **words).plot(**line)

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
        ax = axes_or_new(self, ax)
        from matplotlib.ticker import LogLocator, NullLocator

        order = np.argsort(self.epsilons, kind="stable")
        x, table = self.epsilons[order], self.scores.reshape(len(order), -1)[order]
        mean, private = table.mean(axis=1), np.isfinite(x)
        spread = np.abs([table.min(axis=1) - mean, table.max(axis=1) - mean])[:, private]
        bars = spread if table.shape[1] > 1 else None
        label = f"{self.name} ({self.guarantee})" if self.name and self.guarantee else self.name
        self.errorbar_ = draw_curve(ax, x[private], mean[private], bars, label, line)
        look = {"color": self.errorbar_.lines[0].get_color(), "linestyle": "--"}
        look["label"], exact = self.name and f"{self.name}, no privacy", mean[~private]
        self.reference_ = ax.axhline(exact.mean(), **look) if exact.size else None
        ax.set_xscale("log")
        low, high = ax.get_xlim()
        # plain numbers, at 1, 2 and 5 where they have room
        ax.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if high < 1e3 * low else (1.0,)))
        ax.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        ax.xaxis.set_minor_locator(NullLocator())
        ax.set(xlabel="epsilon", ylabel=self.score_name)
        if label is not None:
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
    ax_, figure_ : matplotlib axes and figure
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
        self.names, self.shares = list(self.names), _floats(self.shares)
        holds = self.shares.shape == (len(self.names),) and (self.shares >= 0).all()
        rule = f"one number >= 0 for each of the {len(self.names)} names"
        require(holds, "shares", self.shares.tolist(), rule, "pass parts of 1")

    @classmethod
    def from_estimator(cls, estimator: Any, **bars: Any) -> BudgetDisplay:
        """Plot what a fitted object has released. Touches no data.

        Parameters
        ----------
        estimator : object
            Anything that `privacy_spent` knows: estimators, pipelines, searches, lists of them.
        **bars
            ``ax`` and more, as for `plot`.

        Returns
        -------
        BudgetDisplay
            With its plot.

        Raises
        ------
        PrivacyParameterError
            As `privacy_spent` and `from_plan`.
        """
        return cls.from_plan(privacy_spent(estimator), **bars)

    @classmethod
    def from_plan(cls, plan: ReleasePlan | PrivacyStatement, **bars: Any) -> BudgetDisplay:
        """Plot the releases of a plan or a statement, as `ReleasePlan.share` has their shares.

        Parameters
        ----------
        plan : ReleasePlan or PrivacyStatement
            From ``estimator.plan(...)``, or ``estimator.privacy_spent_``.
        **bars
            ``ax`` and more, as for `plot`.

        Returns
        -------
        BudgetDisplay
            With its plot.

        Raises
        ------
        PrivacyParameterError
            If it is neither of the two, has no privacy, or is the statement of a private search,
            whose releases do not make up what it spends.
        """
        explained = isinstance(plan, ReleasePlan) or getattr(plan, "follows_from_releases", False)
        if not (explained and plan.is_private and plan.epsilon > 0.0):
            raise PrivacyParameterError(
                f"plan of type {type(plan).__name__} must be a plan or statement whose epsilon is "
                "finite, > 0 and made up of its releases (a private search keeps its losers "
                "secret): plot the plan of one private fit, as without privacy nothing has shares."
            )
        releases = plan.releases
        whole = "mu^2" if all(isinstance(release, Release) for release in releases) else "epsilon"
        names = [r.name + (f", {r.count} times" if r.count > 1 else "") for r in releases]
        shares = release_shares(releases, plan.epsilon, plan.mu, pure_total(releases))
        title = f"epsilon = {outward(plan.epsilon)}\n{guarantee_words(plan)}"
        words: Any = {"share_name": f"share of {whole} that is spent", "title": title}
        return cls(names, shares, **words).plot(**bars)

    @classmethod
    def from_ledger(cls, ledger: PrivacyLedger, **bars: Any) -> BudgetDisplay:
        """Plot what the fits on a data set were charged, and what is left of its limit.

        Failed fits are charged too.

        Parameters
        ----------
        ledger : PrivacyLedger
            The ledger.
        **bars
            ``ax`` and more, as for `plot`.

        Returns
        -------
        BudgetDisplay
            With its plot. Shares are of the rule's number: mu^2, rho, or epsilon (the delta that
            "basic" adds up besides is not shown).

        Raises
        ------
        LedgerError
            If the file cannot be read.
        """
        report = ledger.report()
        whole, limit, entries = report.allowed.number or math.inf, report.limit, report.entries
        names, shares = [*map(_entry_name, entries)], [e["charge"] / whole for e in entries]
        whose = "" if report.at_most is None else " of each person (left: of whoever spent most)"
        about = f"limit{whose}: epsilon = {limit.epsilon:g}, delta = {limit.delta:g}, "
        about += f"one {limit.unit}, {limit.neighbors}"
        title = f"epsilon = {outward(report.epsilon)} spent by {len(entries)} entries\n{about}"
        words: Any = {"share_name": f"share of the limit's {RULES[report.rule]}", "title": title}
        return cls(names, shares, **words, left=report.left / whole).plot(**bars)

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
        ax = axes_or_new(self, ax, height=1.8 + 0.32 * len(self.names))
        rest = {} if self.left is None else {"left": self.left}
        names, shares = [*self.names, *rest], [*self.shares, *rest.values()]
        self.bars_ = ax.barh(range(len(names)), shares, **{"color": COLOURS[0], **bars})
        if rest:
            self.bars_[-1].set(facecolor="white", edgecolor="black", hatch="///")
        ax.bar_label(self.bars_, [f"{100.0 * share:.3g} %" for share in shares], padding=3)
        ax.set_yticks(range(len(names)), labels=names)
        ax.invert_yaxis()
        ax.set_xlim(0.0, 1.19 * max(shares, default=0.0) or 1.0)  # with room for the numbers
        ax.xaxis.set_major_formatter(lambda share, _: f"{100.0 * share:.3g} %")
        ax.set_xlabel(self.share_name)
        ax.set_title(self.title, loc="left", fontsize="medium")
        return self


def _floats(values: Any) -> np.ndarray:
    return np.asarray(values, dtype=np.float64)


def _entry_name(entry: dict[str, Any]) -> str:
    words = [f"{entry['id']} {entry['estimator'] or '-'}"]
    return ", ".join(words if entry["status"] == "done" else [*words, entry["status"]])


def pyplot() -> Any:
    """Return `matplotlib.pyplot`, or raise a `MissingExtraError`."""
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        words = "plots need matplotlib, which is not installed: pip install 'skdpmf[plot]'."
        raise MissingExtraError(words) from error
    return plt


def axes_or_new(display: Any, ax: Any, height: float = 4.0) -> Any:
    """Note and return the axes, or those of a new figure of this height (inches)."""
    if ax is None:
        _, ax = pyplot().subplots(figsize=(6.4, height), layout="constrained")
    display.ax_, display.figure_ = ax, ax.figure
    return ax


def draw_curve(ax: Any, x: Any, y: Any, spread: Any, label: Any, line: dict[str, Any]) -> Any:
    """Draw points with error bars, in the next colour and marker of the axes, or as told."""
    from matplotlib.cbook import normalize_kwargs
    from matplotlib.lines import Line2D

    n = len(ax.containers) % len(MARKERS)  # curves before this one
    style = {"color": COLOURS[n], "marker": MARKERS[n], "capsize": 4.0, "label": label}
    return ax.errorbar(x, y, yerr=spread, **{**style, **normalize_kwargs(line, Line2D)})


def guarantee_words(spent: ReleasePlan | PrivacyStatement) -> str:
    """Return what an epsilon is about, such as "one user, add-remove, delta = 1e-05"."""
    about = spent.budget if isinstance(spent, ReleasePlan) else spent
    words = [f"one {about.unit}", about.neighbors]
    words += [f"delta = {spent.delta:.4g}"] if spent.delta else []
    words += ["local"] if spent.local else []
    words += ["conditional"] if spent.condition else []
    return ", ".join(words)
