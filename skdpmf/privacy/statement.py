"""The releases of a fit, as a statement to be read: `PrivacyStatement`.

Nothing in it depends on the data: shapes are public by declaration, and noise follows from the
budget.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from skdpmf.privacy.budget import PrivacyBudget, check_relation
from skdpmf.privacy.curator_release import Released
from skdpmf.privacy.plan import Planned, Release, ReleasePlan, pure_total
from skdpmf.privacy.sampler.grid import as_float
from skdpmf.privacy.text import NOT_COVERED, STANDARD_ASSUMPTIONS, PrintedStatement, assumed

_ROUNDING = 1e-4  # an epsilon computed twice, for other numbers of noised values


@dataclass(frozen=True)
class PrivacyStatement(PrintedStatement):
    """The releases of a fit, the promise to its users, and the assumptions of that promise.

    Parameters
    ----------
    epsilon, delta : float
        Budget that was spent.
    unit, neighbors : str
        As for `PrivacyBudget`.
    releases : tuple of Release or PureRelease
        In their order.
    assumptions : tuple of str
        All must hold for the guarantee.
    not_covered : tuple of str
        Limits of the guarantee: what it does not speak of.
    notes : tuple of str, default=()
        Public remarks of the plan.
    seeded : bool, default=False
        Whether the noise came from a seed.
    condition : str, default=""
        Conditions of the guarantee that no code checks, in words that follow "CONDITIONAL
        on"; empty for an unconditional one.
    personal : bool, default=False
        Whether the fit was given a privacy level for each user; see `epsilon_for`.
    local : bool, default=False
        Whether the guarantee is about what each user's own device sends, so that no server is
        trusted.
    unmet : tuple of str, default=()
        Assumptions that are known to fail: the guarantee does not hold as far as they matter.

    Raises
    ------
    PrivacyParameterError
        If a field cannot be what it says.

    Examples
    --------
    >>> counts = Release("counts", "ratings per item", (100,), 10.0)
    >>> plan = ReleasePlan.from_shares(PrivacyBudget(1.0, 1e-5), [counts], {"counts": 1.0})
    >>> PrivacyStatement.from_plan(plan).epsilon <= 1.0
    True
    """

    epsilon: float
    delta: float
    unit: str
    neighbors: str
    releases: tuple[Planned, ...]
    assumptions: tuple[str, ...] = STANDARD_ASSUMPTIONS
    not_covered: tuple[str, ...] = NOT_COVERED
    notes: tuple[str, ...] = ()
    seeded: bool = False
    condition: str = ""
    personal: bool = False
    local: bool = False
    unmet: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_relation(self.unit, self.neighbors)
        for name, most in (("epsilon", math.inf), ("delta", 1.0)):
            holds = 0.0 <= as_float(getattr(self, name)) <= most
            self._require(holds, name, f"a number from 0 to {most:g}")
        self._check_fields()

    @classmethod
    def from_plan(
        cls,
        plan: ReleasePlan,
        *,
        seeded: bool = False,
        assumptions: Iterable[str] = (),
        not_covered: Iterable[str] = (),
        personal: bool = False,
    ) -> PrivacyStatement:
        """Return the statement of a fit that made exactly the plan's releases.

        Parameters
        ----------
        plan : ReleasePlan
            The plan.
        seeded : bool, default=False
            Whether the noise came from a seed; an assumption then says what that voids.
        assumptions, not_covered : iterable of str
            In addition to the standard ones.
        personal : bool, default=False
            As for the class; an assumption then says where the levels must come from.

        Returns
        -------
        PrivacyStatement
        """
        standard, unmet = assumed(plan, seeded, personal)
        return cls(
            epsilon=plan.epsilon,
            delta=plan.delta,
            unit=plan.budget.unit,
            neighbors=plan.budget.neighbors,
            releases=plan.made or plan.releases,
            assumptions=(*standard, *assumptions),
            not_covered=(*NOT_COVERED, *not_covered),
            notes=plan.notes,
            seeded=bool(seeded),
            condition=plan.condition,
            personal=bool(personal),
            local=plan.local,
            unmet=unmet,
        )

    @property
    def is_private(self) -> bool:
        """Whether epsilon is finite."""
        return math.isfinite(self.epsilon)

    @property
    def mu(self) -> float:
        """Gaussian DP parameter of the Gaussian releases; 0 if there are none.

        It covers all that was spent only if `follows_from_releases`.
        """
        return ReleasePlan(PrivacyBudget.nonprivate(), self.releases).mu

    @property
    def pure(self) -> float:
        """Sum of the pure releases' epsilons, rounded up."""
        return pure_total(self.releases)

    @property
    def follows_from_releases(self) -> bool:
        """Whether epsilon and delta are those of the releases named here, and no more.

        It is more where fits are not named one by one, such as the losing trials of a private
        search: then the releases say nothing about other values of delta.
        """
        budget = PrivacyBudget(math.inf, self.delta)
        plan = ReleasePlan(budget, self.releases)
        return plan.delta >= self.delta and plan.epsilon >= self.epsilon * (1.0 - _ROUNDING)


def as_made(plan: ReleasePlan, record: Iterable[Released]) -> ReleasePlan:
    """Return the plan with what was made of it, which is what a statement says.

    Slots that held another statistic say which, and all have the shapes that were released. A
    release that was planned and not made counts as if it were.
    """
    kinds: dict[str, Any] = {release.name: release for release in plan.releases}
    made: dict[str, dict[str, list[Released]]] = {}
    for one in record:
        made.setdefault(one.slot, {}).setdefault(one.statistic, []).append(one)
    releases: list[Planned] = []
    for slot in kinds.values():
        own = made.get(slot.name, {})
        left = slot.count - sum(map(len, own.values()))
        for statistic, drawn in own.items():
            kind = kinds[statistic]
            changes: dict[str, Any] = {
                "name": slot.name if statistic == slot.name else f"{slot.name}: {statistic}",
                "statistic": kind.statistic,
                "shape": drawn[0].shape,
                "sensitivity": drawn[0].sensitivity,
                "count": len(drawn) + left,
                "alternatives": (),
            }
            if slot.kind == Release.kind:
                changes["layout"] = kind.layout
            releases.append(replace(slot, **changes))
            left = 0
        if not own:
            releases.append(replace(slot, alternatives=()))
    return replace(plan, made=tuple(releases))
