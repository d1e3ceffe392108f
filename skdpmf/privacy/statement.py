"""The releases of a fit, as a statement to be read: `PrivacyStatement`.

Nothing in it depends on the data: shapes are public by declaration, and noise follows from the
budget.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Self

from skdpmf.exceptions import PrivacyParameterError
from skdpmf.privacy.accounting import Event
from skdpmf.privacy.budget import PrivacyBudget, check_relation
from skdpmf.privacy.curator import Released
from skdpmf.privacy.plan import PureRelease, Release, ReleasePlan, pure_total
from skdpmf.privacy.sampler.grid import as_float
from skdpmf.privacy.text import (
    LOCAL_ASSUMPTIONS,
    NOT_COVERED,
    PERSONAL_ASSUMPTION,
    PURE_ASSUMPTIONS,
    SEEDED,
    SEEDED_ASSUMPTION,
    STANDARD_ASSUMPTIONS,
    UNDECLARED,
    PrintedStatement,
    to_dp_event,
)

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
    >>> statement = PrivacyStatement.from_plan(plan)
    >>> statement == PrivacyStatement.from_json(statement.to_json())
    True
    >>> statement == PrivacyStatement.from_dict(statement.to_dict())
    True
    """

    epsilon: float
    delta: float
    unit: str
    neighbors: str
    releases: tuple[Release | PureRelease, ...]
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
        for name in ("epsilon", "delta"):
            most = math.inf if name == "epsilon" else 1.0
            holds = 0.0 <= as_float(getattr(self, name)) <= most
            self._require(holds, name, f"a number from 0 to {most:g}")
        for name in ("assumptions", "not_covered", "notes", "unmet"):
            texts = getattr(self, name)
            holds = isinstance(texts, tuple) and all(isinstance(text, str) for text in texts)
            self._require(holds, name, "a tuple of texts")
        self._require(isinstance(self.condition, str), "condition", "a text")
        for name in ("seeded", "personal", "local"):
            self._require(isinstance(getattr(self, name), bool), name, "True or False")

    def _require(self, holds: bool, name: str, rule: str) -> None:
        if not holds:
            raise PrivacyParameterError(
                f"{name}={getattr(self, name)!r} of a privacy statement must be {rule}: take the "
                "statement from privacy_spent_, or ask its writer for the original."
            )

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
        first = [SEEDED_ASSUMPTION] if seeded else []
        first += [PERSONAL_ASSUMPTION] if personal else []
        standard: tuple[str, ...] = STANDARD_ASSUMPTIONS
        if plan.local:
            standard = LOCAL_ASSUMPTIONS
        elif plan.releases and not plan.gaussian:
            standard = PURE_ASSUMPTIONS
        return cls(
            epsilon=plan.epsilon,
            delta=plan.delta,
            unit=plan.budget.unit,
            neighbors=plan.budget.neighbors,
            releases=plan.made or plan.releases,
            assumptions=(*first, *standard, *assumptions),
            not_covered=(*NOT_COVERED, *not_covered),
            notes=plan.notes,
            seeded=bool(seeded),
            condition=plan.condition,
            personal=bool(personal),
            local=plan.local,
            unmet=(SEEDED,) if seeded and plan.is_private else (),
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

    @property
    def events(self) -> tuple[Event, ...]:
        """The releases as events, in their order."""
        return tuple(release.event for release in self.releases)

    def with_undeclared(self, names: Iterable[str]) -> PrivacyStatement:
        """Return the statement of a fit for which some things were read off the ratings.

        Parameters
        ----------
        names : iterable of {"users", "items"}
            Names that were not declared, as `RatingMatrix.undeclared` has them.

        Returns
        -------
        PrivacyStatement
            With a sentence for each in ``unmet``, but where nothing depends on it: without privacy,
            and for the users' number where devices report, which is no secret there.

        Examples
        --------
        >>> statement = PrivacyStatement(0.5, 0.0, "user", "add-remove", ())
        >>> statement.with_undeclared(["items"]).unmet[0][:43]
        'The items (columns) were read off the ratin'
        """
        found = [name for name in names if not (self.local and name == "users")]
        new = [UNDECLARED[name] for name in found if self.is_private]
        return replace(self, unmet=tuple(dict.fromkeys((*self.unmet, *new))))

    def epsilon_for(self, level: float) -> float:
        """Return the epsilon of a user who declared this privacy level, at the same delta.

        It depends on the level alone, never on how much the user rated.

        Parameters
        ----------
        level : float
            >= 0; what the fit was given for the user.

        Returns
        -------
        float
            The level, at most `epsilon`; infinite where the fit is not private.

        Raises
        ------
        PrivacyParameterError
            If the fit was given no levels, or the level is not a number >= 0.

        Examples
        --------
        >>> draw = PureRelease("draw", "V", (3,), 2.0, "posterior sample", 1.0, "loss of a user")
        >>> plan = ReleasePlan(PrivacyBudget(2.0), (draw,))
        >>> statement = PrivacyStatement.from_plan(plan, personal=True)
        >>> statement.epsilon_for(0.5), statement.epsilon_for(10.0)
        (0.5, 2.0)
        """
        if not self.personal:
            raise PrivacyParameterError(
                f"personal={self.personal!r} must be True to ask for one user: this fit had no "
                "levels, and its epsilon holds for every user."
            )
        number = as_float(level)
        if not number >= 0.0:
            raise PrivacyParameterError(
                f"level={level!r} must be a number >= 0: pass the epsilon that the user declared."
            )
        return min(number, self.epsilon) if self.is_private else math.inf

    def to_dp_events(self) -> list[Any]:
        """Return the releases as `dp_accounting.DpEvent` objects, one each.

        Returns
        -------
        list of dp_accounting.DpEvent
            In the order of the releases.

        Raises
        ------
        MissingExtraError
            If dp-accounting is not installed.

        Examples
        --------
        >>> PrivacyStatement(0.0, 0.0, "user", "add-remove", ()).to_dp_events()
        []
        """
        return [to_dp_event(event) for event in self.events]

    def to_dict(self) -> dict[str, Any]:
        """Return plain dicts, lists, strings and numbers; an infinite epsilon is "inf".

        Each release says in "kind" whether it is "gaussian" or "pure"; those with Laplace noise
        have a "noise_scale" as well.

        Returns
        -------
        dict
            Fields by name.
        """
        releases = [_release_to_dict(release) for release in self.releases]
        return plain_values({**asdict(self), "releases": releases})

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Self:
        """Return the statement that `to_dict` wrote.

        Parameters
        ----------
        plain : mapping
            From `to_dict`.

        Returns
        -------
        PrivacyStatement

        Raises
        ------
        PrivacyParameterError
            If a field is missing, unknown or invalid.
        """
        if not isinstance(plain, Mapping):
            raise PrivacyParameterError(
                f"plain={plain!r:.99} must be a mapping: pass what to_dict or to_json wrote."
            )
        try:
            fields: dict[str, Any] = {
                k: tuple(v) if isinstance(v, list) else v for k, v in plain.items()
            }
            # infinities are words in JSON
            fields |= {k: float(v) for k, v in fields.items() if k == "epsilon" or v == "inf"}
            fields["releases"] = tuple(_release_from_dict(r) for r in fields["releases"])
            return cls(**fields)
        except PrivacyParameterError:
            raise
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise PrivacyParameterError(
                f"plain={sorted(map(str, plain))!r} must hold the fields of a PrivacyStatement "
                f"({error}): pass what to_dict or to_json wrote."
            ) from error

    def to_json(self) -> str:
        """Return `to_dict` as strict JSON.

        Returns
        -------
        str
            JSON object.
        """
        return json.dumps(self.to_dict(), indent=2, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Return the statement that `to_json` wrote.

        Parameters
        ----------
        text : str
            JSON.

        Returns
        -------
        PrivacyStatement

        Raises
        ------
        PrivacyParameterError
            If a field is missing, unknown or invalid.
        """
        return cls.from_dict(load_json(text))


def plain_values(value: Any) -> Any:
    """Return what strict JSON can hold: tuples as lists, infinity as "inf"."""
    if isinstance(value, dict):
        return {key: plain_values(part) for key, part in value.items()}
    if isinstance(value, tuple | list):
        return [plain_values(part) for part in value]
    return "inf" if value == math.inf else value


def load_json(text: Any) -> Any:
    """Return what a text of JSON holds, or raise an error that names `text`."""
    try:
        return json.loads(text)
    except (TypeError, ValueError) as error:
        raise PrivacyParameterError(
            f"text={text!r:.99} must be JSON ({error}): pass what to_json wrote."
        ) from error


_KINDS: dict[str, type[Release] | type[PureRelease]] = {"gaussian": Release, "pure": PureRelease}


def _release_to_dict(release: Release | PureRelease) -> dict[str, Any]:
    plain: dict[str, Any] = {"kind": release.kind, **asdict(release)}
    if isinstance(release, PureRelease) and release.is_laplace:
        plain["noise_scale"] = release.noise_scale
    return plain


def _release_from_dict(plain: Mapping[str, Any]) -> Release | PureRelease:
    fields: dict[str, Any] = dict(plain)
    fields.pop("noise_scale", None)  # follows from epsilon
    if fields.get("epsilon") == "inf":
        fields["epsilon"] = math.inf
    kind = fields.pop("kind", None)
    if not isinstance(kind, str) or kind not in _KINDS:
        raise PrivacyParameterError(
            f"kind={kind!r} of one of the releases must be in {sorted(_KINDS)}: pass what to_dict "
            "or to_json wrote."
        )
    return _KINDS[kind](**fields)


def as_made(plan: ReleasePlan, record: Iterable[Released]) -> ReleasePlan:
    """Return the plan with what was made of it, which is what a statement says.

    Slots that held another statistic say which, and all have the shapes that were released. A
    release that was planned and not made counts as if it were.
    """
    kinds = {release.name: release for release in plan.releases}
    made: dict[str, dict[str, list[Released]]] = {}
    for one in record:
        made.setdefault(one.slot, {}).setdefault(one.statistic, []).append(one)
    releases: list[Release | PureRelease] = []
    for slot in plan.releases:
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
            if isinstance(slot, Release):
                changes["layout"] = kind.layout
            releases.append(replace(slot, **changes))
            left = 0
        if not own:
            releases.append(replace(slot, alternatives=()))
    return replace(plan, made=tuple(releases))
