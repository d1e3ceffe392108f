"""A private search over settings: what it has released."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from skdpmf.books.search_plan import SearchPlan, _trials_words
from skdpmf.exceptions import PrivacyParameterError
from skdpmf.mechanisms.private_search.number_of_trials import RandomTrials
from skdpmf.privacy.accounting import Event
from skdpmf.privacy.events import to_dp_event
from skdpmf.privacy.plan import PureRelease, ReleasePlan
from skdpmf.privacy.statement import (
    _AGAINST_READERS,
    _PROTECTED,
    NOT_COVERED,
    PURE_ASSUMPTIONS,
    SEEDED_ASSUMPTION,
    STANDARD_ASSUMPTIONS,
    PrivacyStatement,
)
from skdpmf.privacy.text import field_lines, guarantee_lines, list_lines, table_lines

__all__ = ["SearchStatement"]

SEARCH_ASSUMPTIONS = (
    "The candidates and their law, the number of trials' law, the split's law and the bound of the "
    "score were chosen without looking at these ratings.",
    "The number of trials, the losing candidates and their scores stay secret: the fit kept none "
    "of them, and nobody learns the number by watching the run.",
    "A fitted model's prediction for a row depends on the model and on that row alone.",
)
SEARCH_NOT_COVERED = ("The running time of the search: it shows about how many trials there were.",)


@dataclass(frozen=True)
class SearchStatement(PrivacyStatement):
    """What a private search has released: the best of a secret number of trials.

    ``releases`` are those of the best trial, and of the second fit if there was one; those of the
    others were not published. They do not compose to epsilon and delta, which are the search's.

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
    eta, tau : float
        As for `PrivacyStatement`.
    unmet : tuple of str, default=()
        As for `PrivacyStatement`.
    shape, mean : float
        Law of the number of trials, as for `RandomTrials`.
    n_refit : int
        How many of the releases, the last ones, are those of the second fit.
    """

    shape: float = 1.0
    mean: float = 1.0
    n_refit: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        RandomTrials(self.shape, self.mean)  # refuses what is no law
        holds = type(self.n_refit) is int and 0 <= self.n_refit <= len(self.releases)
        self._require(holds, "n_refit", "a number of the releases")

    @classmethod
    def of_search(
        cls,
        plan: SearchPlan,
        fit: ReleasePlan,
        refit: ReleasePlan | None = None,
        *,
        seeded: bool = False,
        notes: Iterable[str] = (),
    ) -> SearchStatement:
        """Return the statement of a search.

        plan: the search's plan; fit: of the best trial's fit; refit: of the second fit; seeded:
        whether the randomness came from a seed; notes: public remarks.

        Examples
        --------
        >>> from skdpmf.privacy import PrivacyBudget
        >>> from skdpmf.privacy.plan import Release
        >>> plan = SearchPlan.make(PrivacyBudget(1.0, 1e-5), RandomTrials(1.0, 5.0), bound=2.0)
        >>> sums = Release("sums", "item sums", (9,), 1.0)
        >>> fit = ReleasePlan.from_shares(plan.fit_budget, [sums], {"sums": 1.0})
        >>> statement = SearchStatement.of_search(plan, fit)
        >>> 0.999 < statement.epsilon <= 1.0
        True
        >>> SearchStatement.from_json(statement.to_json()) == statement
        True
        """
        after = () if refit is None else refit.releases
        releases = (*fit.releases, plan.score, *after)
        pure = all(isinstance(release, PureRelease) for release in releases)
        conditions = {fit.condition, refit.condition if refit else ""} - {""}
        return cls(
            epsilon=plan.epsilon,
            delta=plan.delta,
            unit=plan.budget.unit,
            neighbors=plan.budget.neighbors,
            releases=releases,
            assumptions=(
                *((SEEDED_ASSUMPTION,) if seeded else ()),
                *(PURE_ASSUMPTIONS if pure else STANDARD_ASSUMPTIONS),
                *SEARCH_ASSUMPTIONS,
            ),
            not_covered=(*NOT_COVERED, *SEARCH_NOT_COVERED),
            notes=(*fit.notes, *notes),
            seeded=bool(seeded),
            condition="; ".join(sorted(conditions)),
            shape=plan.trials.shape,
            mean=plan.trials.mean,
            n_refit=len(after),
        )

    @property
    def trials(self) -> RandomTrials:
        """The law of the number of trials."""
        return RandomTrials(self.shape, self.mean)

    @property
    def mu(self) -> float:
        """Infinite: a search is (epsilon, delta)-DP, and no Gaussian DP is claimed for it."""
        return math.inf

    @property
    def follows_from_releases(self) -> bool:
        """False: the losing trials cost too, and the second fit names its releases as the best."""
        return False

    @property
    def events(self) -> tuple[Event, ...]:
        """A search is no composition of events: a `PrivacyParameterError`."""
        raise PrivacyParameterError(
            "events of a private search must not be composed: the best of many trials costs more "
            "than its own releases. Add up its epsilon and delta, or use to_dp_events."
        )

    def to_dp_events(self) -> list[Any]:
        """Return a ``RepeatAndSelectDpEvent``, and the second fit's events after it.

        Result: for the accountants of dp-accounting, whose bound is the Renyi one. Raises
        MissingExtraError if dp-accounting is not installed.
        """
        events = [release.event for release in self.releases]
        first = len(events) - self.n_refit
        one = to_dp_event(events[:first])
        from dp_accounting import dp_event

        selection = dp_event.RepeatAndSelectDpEvent(one, self.mean, self.shape)
        return [selection, *(to_dp_event(event) for event in events[first:])]

    def to_dict(self) -> dict[str, Any]:
        """Return plain dicts, lists, strings and numbers; infinities are "inf"."""
        plain = super().to_dict()
        return {**plain, "shape": "inf" if math.isinf(self.shape) else self.shape}

    @classmethod
    def from_dict(cls, plain: Any) -> SearchStatement:
        """Return the statement that `to_dict` wrote.

        plain (mapping): from `to_dict`. Raises PrivacyParameterError if a field is missing, unknown
        or invalid.
        """
        if isinstance(plain, Mapping) and plain.get("shape") == "inf":
            plain = {**plain, "shape": math.inf}
        return super().from_dict(plain)  # type: ignore[return-value]

    def __str__(self) -> str:
        lines = ["Privacy statement of a search", ""]
        if self.is_private:
            lines += field_lines("Protected", _PROTECTED[self.unit, self.neighbors])
            lines += field_lines("Against", _AGAINST_READERS)
        lines += self._warnings()
        lines += guarantee_lines(self.epsilon, self.delta, 0.0, 0.0, self.condition)
        lines += field_lines("Trials", _trials_words(self.trials))
        lines += ["", "The best trial (and the second fit, if any):"]
        lines += table_lines(self.releases, [math.nan] * len(self.releases))
        lines += list_lines("Notes", self.notes)
        if self.is_private:
            lines += list_lines("The guarantee holds only if", self.assumptions)
            lines += list_lines("Not covered", self.not_covered)
        return "\n".join(lines)
