"""The total spending of several mechanisms on the same data, and the parts of one budget."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Any

from skdpmf.exceptions import require_that
from skdpmf.privacy.accounting import gaussian_epsilon, gaussian_mu, sum_up
from skdpmf.privacy.budget import PrivacyBudget, check_shares
from skdpmf.privacy.plan import Planned, Release, ReleasePlan, pure_total
from skdpmf.privacy.pure import PureRelease
from skdpmf.privacy.sampler.laws import SAMPLER_ETA, SAMPLER_TAU
from skdpmf.privacy.statement import PrivacyStatement

_MOST_SLACK = 4.0  # of the sampler's bounds, that a plan of this package counts with
_RULE = (
    "Composed of {names}, all from the same data: Gaussian releases by mu^2, pure ones by the sum "
    "of their epsilons, and the two parts by basic composition."
)
_BASIC = (
    "Composed of {names}, all from the same data, by basic composition: not every part says how it "
    "came to its epsilon."
)
_DELTAS = "The Gaussian parts state different deltas: they are accounted at the sum of these."
_NO_LEVELS = "{name}: personal levels hold for this part alone; epsilon holds for everybody."


def compose_statements(statements: Mapping[str, PrivacyStatement]) -> PrivacyStatement:
    r"""Return the statement of everything that several statements show, from the same data.

    Each mechanism may depend on what the others released: a step that works on the columns that
    an earlier one chose, say. Gaussian releases, of all statements together, compose exactly,
    :math:`\mu^2 = \sum_i \mu_i^2`, and are accounted once, with the sampler's slack over all their
    values: at delta, where all that have Gaussian releases state the same one, else at the sum of
    their deltas, where it is never more than the sum of their epsilons. Pure epsilons are added.

    statements: at least one, by a name that says which part it is, of one unit and neighbouring
    relation, as epsilons of different neighbours do not add up. A single one is returned as it is.
    Else releases and notes have the parts' names in front, and assumptions, conditions and what is
    not covered are those of all parts.
    """
    statements = dict(statements)
    require_that(statements, "statements", {}, "a PrivacyStatement: pass what was spent, by name.")
    _require_one_relation(statements)
    if len(statements) == 1:
        return next(iter(statements.values()))
    parts = statements.values()
    named: list[tuple[str, Any]] = [(n, r) for n, part in statements.items() for r in part.releases]
    releases = tuple(replace(r, name=f"{n}: {r.name}", alternatives=()) for n, r in named)
    deltas = {name: part.delta for name, part in statements.items() if part.delta > 0.0}
    basic = not all(part.follows_from_releases for part in parts)
    one_delta = not basic and len(set(deltas.values())) <= 1
    unit, neighbors = next(iter(parts)).unit, next(iter(parts)).neighbors
    plan = ReleasePlan(
        # only its delta, unit and relation count here: epsilon is what the releases spend
        PrivacyBudget(math.inf, _delta(deltas, one=one_delta), unit=unit, neighbors=neighbors),
        releases,
    )
    rule = _BASIC if basic else _RULE
    notes = [rule.format(names=", ".join(statements))]
    notes += [] if basic or one_delta else [_DELTAS]
    notes += [_NO_LEVELS.format(name=name) for name, part in statements.items() if part.personal]
    notes += [f"{name}: {note}" for name, part in statements.items() for note in part.notes]
    return PrivacyStatement(
        epsilon=sum_up((part.epsilon, 1) for part in parts) if basic else plan.epsilon,
        delta=float(plan.budget.delta),
        unit=unit,
        neighbors=neighbors,
        releases=releases,
        assumptions=_union(part.assumptions for part in parts),
        not_covered=_union(part.not_covered for part in parts),
        notes=tuple(notes),
        seeded=any(part.seeded for part in parts),
        condition="; and ".join(_union((part.condition,) for part in parts if part.condition)),
        local=all(part.local for part in parts),
        unmet=_union(part.unmet for part in parts),
    )


def state_fits(plan: ReleasePlan, n_fits: int, *, seeded: bool = False) -> PrivacyStatement:
    """Return what so many fits spend that were not kept, each by a plan for at most as many items.

    Their noise may differ from the plan's a little, as it follows the number of rows and of items.
    So a fit of Gaussian releases is charged with all of its budget, whose mu no calibration
    exceeds, and with the sampler's slack of the plan's values. Any other is charged as planned. The
    statement has one release for the Gaussian part of all fits and one for the pure part.
    """
    releases: list[Planned] = []
    pure = pure_total(plan.releases)
    if plan.gaussian:
        mu = plan.budget.mu if len(plan.gaussian) == len(plan.releases) else plan.mu
        what = ("Gaussian releases", "everything with Gaussian noise that one fit releases")
        shape = (plan.n_values,)
        releases.append(Release(*what, shape, 1.0, 1.0 / mu if mu > 0.0 else 0.0, count=n_fits))
    if len(plan.gaussian) < len(plan.releases):
        what = ("pure releases", "everything else that one fit releases")
        releases.append(PureRelease(*what, (), pure, "all of a fit", 1.0, "see plan", n_fits))
    fits = replace(plan, releases=tuple(releases), notes=())
    return PrivacyStatement.from_plan(fits, seeded=seeded)


def _require_one_relation(statements: Mapping[str, PrivacyStatement]) -> None:
    first_name, first = next(iter(statements.items()))
    for name, part in statements.items():
        for field in ("unit", "neighbors"):
            own, other = getattr(part, field), getattr(first, field)
            rule = f"{other!r} in {name!r} too, as it is in {first_name!r}: guarantees against "
            rule += "different changes do not add up. Give all steps parts of one budget "
            rule += "(PrivacyBudget.split)."
            require_that(own == other, field, own, rule)


def _delta(deltas: Mapping[str, float], *, one: bool) -> float:
    """Return the one delta of all, or the sum of them."""
    parts = [(delta, 1) for delta in deltas.values()]
    total = max(deltas.values(), default=0.0) if one else sum_up(parts)
    rule = "such that they add up to less than 1: state the parts one by one."
    require_that(total < 1.0, "delta", dict(deltas), rule)
    return total


def _union(texts: Iterable[Iterable[Any]]) -> tuple[Any, ...]:
    """Return all texts, each once, in their order."""
    return tuple(dict.fromkeys(text for group in texts for text in group))


def split_budget(budget: PrivacyBudget, shares: list[float]) -> list[PrivacyBudget]:
    """Return the parts of `PrivacyBudget.split`, which has the rules and why they hold."""
    budget.validate()
    checked, delta = check_shares(shares), float(budget.delta)
    rule = None if budget.ledger is None else budget.ledger.rule
    deltas = [delta] * len(checked)
    if math.isinf(budget.epsilon):
        epsilons = [math.inf] * len(checked)
    elif delta == 0.0 or rule == "basic":
        epsilons = _split_sum(float(budget.epsilon), checked)
        deltas = _split_sum(delta, checked)
    else:
        mu = (
            budget.mu
            if budget.ledger is None
            else budget.ledger._mu_of_parts(budget.epsilon, delta)
        )
        if len(checked) > 1:
            n_values = int(min(budget.epsilon * 2.0**25, 2.0**26, delta * 2.0**60))
            slack = {"eta": _MOST_SLACK * SAMPLER_ETA, "tau": _MOST_SLACK * SAMPLER_TAU}
            mu = min(mu, gaussian_mu(budget.epsilon, delta, n_values=n_values, **slack))
        worth = gaussian_epsilon if budget.ledger is None else budget.ledger._epsilon_of
        epsilons = [worth(mu * math.sqrt(share), delta) for share in checked]
        for share, epsilon in zip(shares, epsilons, strict=True):
            rule = f"worth an epsilon > 0 at delta={delta!r}: raise the share, or lower delta."
            require_that(epsilon > 0.0, "share", share, rule)
    pairs = zip(epsilons, deltas, strict=True)
    return [replace(budget, epsilon=epsilon, delta=delta) for epsilon, delta in pairs]


def _split_sum(whole: float, shares: list[float]) -> list[float]:
    """Return share * whole, the largest lowered until the exact sum is not above the whole."""
    parts = [whole * share for share in shares]
    largest = parts.index(max(parts))
    while (excess := sum(map(Fraction, parts), Fraction(0)) - Fraction(whole)) > 0:
        parts[largest] = math.nextafter(parts[largest] - float(excess), 0.0)
    return parts
