"""A private search over settings: what it will release.

The search is priced by `skdpmf.mechanisms.private_search`. One trial is a fit and the noisy score
of the fitted model on held-out ratings: a base mechanism whose parts compose as the releases of any
fit.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, ClassVar

from skdpmf.books.ledger_rules import TAU, Spending, values_of_a_trial
from skdpmf.exceptions import PrivacyParameterError
from skdpmf.mechanisms import private_search as price
from skdpmf.mechanisms.private_search import RandomTrials
from skdpmf.privacy.accounting import gaussian_epsilon, gaussian_mu, sum_up
from skdpmf.privacy.budget import PrivacyBudget, check_relation
from skdpmf.privacy.plan import Release, ReleasePlan
from skdpmf.privacy.pure import PureRelease, to_dp_event
from skdpmf.privacy.sampler.grid import as_float
from skdpmf.privacy.sampler.laws import SAMPLER_ETA, SAMPLER_TAU
from skdpmf.privacy.statement import PrivacyStatement
from skdpmf.privacy.text import Printed, field_lines, guarantee_lines, outward

SCORE = "score"
_POINTS = "sum over users of bounded points of the predictions of their held-out ratings"
SEARCH_ASSUMPTIONS = (
    "The candidates and their law, the number of trials' law, the split's law and the bound of the "
    "score were chosen without looking at these ratings.",
    "The number of trials, the losing candidates and their scores stay secret: the fit kept none "
    "of them, and nobody learns the number by watching the run.",
    "A fitted model's prediction for a row depends on the model and on that row alone.",
)
SEARCH_NOT_COVERED = ("The running time of the search: it shows about how many trials there were.",)
_gaussian_mu = lru_cache(maxsize=64)(gaussian_mu)
_WORST = TAU / SAMPLER_TAU  # to spare


def score_sensitivity(bound: float, *, unit: str = "user", neighbors: str = "add-remove") -> float:
    r"""Sum over users of points in [-bound, bound], 0 for a user without held-out ratings.

    The points of a user depend on the user's row, on the model that was released before and on
    public constants. Which ratings are held out depends on slot and item alone.

    - unit "user", add-remove: an empty row has 0 points, a row at most ``bound``: ``bound``.
    - unit "user", replace: two rows of opposite points: 2 ``bound``.
    - unit "rating", add-remove: one rating changes the points of its user, between any two values
      (a known one by the prediction, a held-out one by what is scored; the first held-out one from
      0): 2 ``bound``. It moves no other rating to the other side.
    - unit "rating", replace: a removal and an addition, in the rows of two users: 4 ``bound``,
      attained where the points of both fall from ``bound`` to -``bound``.

    Other users' points are the same, so that it is both the L2 and the l1 sensitivity of the sum.

    bound: > 0. Result: in points.

    Examples
    --------
    >>> score_sensitivity(2.0), score_sensitivity(2.0, neighbors="replace")
    (2.0, 4.0)
    """
    check_relation(unit, neighbors)
    one = 2.0 if unit == "rating" else 1.0
    return float(bound) * one * (2.0 if neighbors == "replace" else 1.0)


@dataclass(frozen=True)
class SearchPlan(Printed):
    """What a private search releases, the best of a secret number of trials, and what it costs.

    Every trial is a fit within `fit_budget` and one noisy score, all calibrated by `make` to the
    budget; `n_values` is how many values a fit may noise, its score's among them.
    """

    budget: PrivacyBudget
    trials: RandomTrials
    fit_budget: PrivacyBudget
    score: Release | PureRelease
    # seeded noise does not depend on what the text leaves out
    n_values: int = field(default=price.MOST_VALUES, repr=False)
    condition: str = field(default="", repr=False)
    mu: ClassVar[float] = math.inf  # no Gaussian DP is claimed for a search
    local: ClassVar[bool] = False  # the local model cannot choose in secret

    @classmethod
    def make(
        cls, budget: PrivacyBudget, trials: RandomTrials, bound: float, score_share: float = 0.1
    ) -> SearchPlan:
        """Calibrate a search to its budget.

        With delta > 0 the noise is Gaussian and shares are of mu^2; with delta = 0 all is pure and
        shares are of epsilon. The budget's ledger is no part of the plan, but may leave fewer
        `n_values`. ``bound`` is as for `score_sensitivity`, ``score_share`` that of a trial's
        budget for its score; the fit has the rest.
        """
        ledger, budget = budget.validate().ledger, budget.without_ledger()
        if not 0.0 < as_float(score_share) < 1.0:
            raise PrivacyParameterError(f"score_share={score_share!r} must be in (0, 1): pass 0.1.")
        sensitivity = score_sensitivity(bound, unit=budget.unit, neighbors=budget.neighbors)
        exact = Release(SCORE, _POINTS, (1,), sensitivity)
        if not budget.is_private:
            return cls(budget, trials, budget, exact)
        score: Release | PureRelease
        run = price.calibrated(budget.epsilon, budget.delta, trials)
        if budget.delta == 0.0:
            part = score_share * run
            left = math.nextafter(run - part, 0.0)  # what the score leaves, rounded down
            score = PureRelease(SCORE, _POINTS, (1,), part, "laplace", sensitivity, "l1")
        else:
            score = replace(exact, noise_multiplier=1.0 / (math.sqrt(score_share) * run))
            left = gaussian_epsilon(math.sqrt(1.0 - score_share) * run, budget.delta)
        n_values = price.MOST_VALUES
        if ledger is not None and ledger.rule == "zcdp":
            n_values = values_of_a_trial(ledger.limit.delta, trials.mean)
        return cls(budget, trials, replace(budget, epsilon=left).validate(), score, n_values)

    @property
    def epsilon(self) -> float:
        """Epsilon that the whole search spends, the sampler's slack included, rounded up."""
        return price.search_epsilon(self.level, self.delta, self.trials)

    @property
    def delta(self) -> float:
        """Delta that the whole search spends: the budget's."""
        return float(self.budget.delta)

    @property
    def one_trial(self) -> float:
        """Epsilon of a single trial with this noise at the same delta, were there no choice."""
        return price.search_epsilon(self.level, self.delta, RandomTrials(1.0))

    @property
    def level(self) -> float:
        """Mu, with delta = 0 pure epsilon, of one trial."""
        fit = _level(self.fit_budget)
        if isinstance(self.score, PureRelease):
            return sum_up([(self.score.epsilon, self.score.count), (fit, 1)])
        return math.hypot(fit, self.score.mu) * (1.0 + 1e-12)

    @property
    def spending(self) -> Spending:
        """What of it matters for the account of a ledger; it does not depend on what is drawn."""
        accuracy = _WORST * SAMPLER_ETA, TAU
        if not self.budget.is_private or self.delta == 0.0:
            return Spending((), ((self.epsilon, 1),), 0, self.delta)
        search = price.SearchSpending(self.level, self.trials.mean, self.n_values, *accuracy)
        return Spending((), (), 0, self.delta, search)

    def check_fit(self, plan: ReleasePlan) -> ReleasePlan:
        """Return a candidate's plan, or raise if it spends too much.

        That is more than its budget, releases that the budget's kind does not cover, more values
        than the sampler's slack was made for, and any release of the local model.
        """
        if plan.local:
            raise PrivacyParameterError(
                "estimator is of the local model: the server sees the reports of all trials, so a "
                "secret choice saves nothing. Search on public data."
            )
        if not self.budget.is_private:
            return plan
        pure = self.delta == 0.0
        most = _level(self.fit_budget)
        spent, unit = (plan.epsilon, "pure epsilon") if pure else (plan.mu, "mu")
        others = [r for r in plan.releases if isinstance(r, PureRelease) != pure]
        if others or spent > most:
            noise = "with a pure guarantee" if pure else "with Gaussian noise"
            raise PrivacyParameterError(
                f"estimator would spend {unit}={spent!r} in one fit, of {most!r} for a trial, and "
                f"{len(others)} of its releases are not {noise}: use cheaper candidates {noise}, "
                f"or a budget with delta {'> 0' if pure else '= 0'}."
            )
        if not pure and plan.n_values + 1 > self.n_values:
            raise PrivacyParameterError(
                f"estimator would noise {plan.n_values} values in one fit, more than the "
                f"{self.n_values} that a search is priced for: use fewer components or items, or "
                "for a ledger fewer trials."
            )
        return plan

    def _in_short(self) -> str:
        return f"A planned search, {self.budget!r}"

    def __str__(self) -> str:
        lines = ["Planned search", ""]
        lines += guarantee_lines(self.epsilon, self.delta, 0.0, 0.0, self.condition)
        lines += field_lines("Trials", _trials_words(self.trials.mean))
        if not self.budget.is_private:
            return "\n".join(lines)
        pure, score = self.delta == 0.0, self.score
        each = f"a fit with epsilon = {outward(self.fit_budget.epsilon)}"
        each += "" if pure else f" and delta = {self.delta:.4g}"
        each += f", and its score with noise of {'scale' if pure else 'sd'} {score.noise_scale:.4g}"
        each += f" on the sum, which one change moves by at most {score.sensitivity:.4g}."
        whole = self.epsilon if pure else gaussian_mu(self.epsilon, self.delta)
        price = (
            f"one trial alone would cost epsilon = {outward(self.one_trial)}; choosing the best of "
            f"{self.trials.mean:g} on average raises that to {outward(self.epsilon)}. The noise is "
            f"{whole / self.level:.3g} times that of one trial that had the whole budget."
        )
        return "\n".join([*lines, *field_lines("Each", each), *field_lines("Price", price)])


@dataclass(frozen=True)
class SearchStatement(PrivacyStatement):
    """What a private search has released: the best of a secret number of trials.

    ``releases`` are those of the best trial; those of the others were not published. They do not
    compose to epsilon and delta, which are the search's.

    Parameters
    ----------
    epsilon, delta : float
        Budget that the whole search spent.
    unit, neighbors : str
        As for `PrivacyBudget`.
    releases : tuple of Release or PureRelease
        See above.
    assumptions, not_covered, notes : tuple of str
        As for `PrivacyStatement`, like the following.
    seeded : bool, default=False
        Whether all randomness came from a seed.
    condition : str, default=""
        Conditions of the guarantee.
    personal, local : bool, default=False
        Always False.
    unmet : tuple of str, default=()
        As for `PrivacyStatement`.
    mean : float
        Mean of the number of trials, whose law is geometric.
    """

    mean: float = 1.0
    _title: ClassVar[str] = "Privacy statement of a search"
    _heading: ClassVar[tuple[str, ...]] = ("The best trial:",)

    def __post_init__(self) -> None:
        super().__post_init__()
        RandomTrials(self.mean)  # refuses what is no law

    @classmethod
    def of_search(cls, plan: SearchPlan, fit: ReleasePlan, seeded: bool = False) -> SearchStatement:
        """Return the statement of a search, of its best trial's fit.

        Examples
        --------
        >>> from skdpmf.privacy import PrivacyBudget
        >>> from skdpmf.privacy.plan import Release
        >>> plan = SearchPlan.make(PrivacyBudget(1.0, 1e-5), RandomTrials(5.0), bound=2.0)
        >>> sums = Release("sums", "item sums", (9,), 1.0)
        >>> fit = ReleasePlan.from_shares(plan.fit_budget, [sums], {"sums": 1.0})
        >>> statement = SearchStatement.of_search(plan, fit)
        >>> 0.999 < statement.epsilon <= 1.0
        True
        >>> SearchStatement.from_json(statement.to_json()) == statement
        True
        """
        best = replace(fit, releases=(*fit.releases, plan.score))
        words: Any = {"assumptions": SEARCH_ASSUMPTIONS, "not_covered": SEARCH_NOT_COVERED}
        said = PrivacyStatement.from_plan(best, seeded=seeded, **words)
        own = {"epsilon": plan.epsilon, "delta": plan.delta, "mean": plan.trials.mean}
        return cls(**{**vars(said), **own})

    @property
    def mu(self) -> float:
        """Infinite: a search is (epsilon, delta)-DP, and no Gaussian DP is claimed for it."""
        return math.inf

    @property
    def follows_from_releases(self) -> bool:
        """False: the losing trials cost too."""
        return False

    def to_dp_events(self) -> list[Any]:
        """Return a ``RepeatAndSelectDpEvent`` of the best trial's events.

        Result: for the accountants of dp-accounting, whose bound is the Renyi one. Raises
        MissingExtraError if dp-accounting is not installed.
        """
        one = to_dp_event(*self.releases)
        from dp_accounting import dp_event

        return [dp_event.RepeatAndSelectDpEvent(one, self.mean, 1.0)]

    def _fields(self) -> list[tuple[str, str]]:
        return [*super()._fields(), ("Trials", _trials_words(self.mean))]


def _trials_words(mean: float) -> str:
    """Return what is said of the number of trials."""
    if mean == 1.0:
        return "one."
    text = f"a secret random number, geometric of mean {mean:g}, each with a candidate drawn "
    return text + "independently of the ratings. Only the best one is released."


def _level(budget: PrivacyBudget) -> float:
    """Mu, with delta = 0 pure epsilon, that bounds what a fit calibrated to the budget spends."""
    if budget.delta == 0.0:
        return budget.epsilon
    return _gaussian_mu(budget.epsilon, budget.delta) * (1.0 + 1e-11)
