r"""Attacks on a private estimator's claim: what leaves it, with which noise, and who shows.

The curator's tool: it reads exact statistics. Three attacks, none of which trusts the estimator:

1. **Record and replay.** All that leaves a fit is recorded; then the fit is repeated on
   neighbouring data with every earlier outcome held fixed. No sum may move farther than its
   declared sensitivity, no input of a device's report and no loss of a sampled posterior may go
   beyond what epsilon was calibrated to, nothing but the user's own part may change, and what
   leaves must be the plan's. (Re:cord-play, arXiv 2602.17454.) A rank or a subset of the items is
   often chosen by what is released, and few users support none. Sums are therefore also replayed
   from releases that are exact and 50 or 1,000 times too large, and with ten times the epsilon;
   personal levels of epsilon, where `fit` takes them, from a fit with some.
2. **Repetition.** *Sums*: with v the vector of all statistics' moves over their declared noise, |v|
   is the mu that this pair of neighbours attains, and the noise's projection on v is standard
   normal in every fit. Its sample variance over ``n_runs`` fits gives an upper confidence limit of
   the noise there is, hence a lower one of mu and of epsilon. *Reports* are drawn for the two
   inputs that are farthest apart, and *draws* for a user and for none: how often an event is seen
   on the one and on the other gives a lower limit of epsilon (Clopper and Pearson).
3. **Canaries.** Made-up users are in the data of one fit, each with probability 1/2. Whoever sees
   the model guesses which. With r guesses, v of them right, epsilon-DP allows at most
   P[Binomial(r, e^eps / (1 + e^eps)) >= v], up to delta. (Steinke, Nasr, Jagielski, NeurIPS 2023.)
   It needs no access to the inside, and certifies far less. A second guess has access: to the
   noisy sums, where all noise is Gaussian and users are the unit. Its limit is that of mu.
   (Mahloujifar, Melis, Chaudhuri, ICML 2025.)

Verdicts are apart from the limits that are reported: an honest estimator fails with a probability
of less than 0.1 %, whatever ``confidence`` is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from skdpmf.estimators.contract.private import PrivateRecommender
from skdpmf.evaluation._audit_run import (
    AuditCheck,
    AuditRun,
    Draws,
    Reports,
    Sums,
    failure,
    guess_members,
)
from skdpmf.evaluation._audit_year import MonthRun, OtherMonths, merged, months_of, whole_year
from skdpmf.evaluation.audit_one_run import canaries_in_sums
from skdpmf.privacy import PrivacyBudget

__all__ = ["AuditCheck", "AuditReport", "audit"]

_NOT_TESTED = (
    "neighbours that were not tried, rows beyond the first 400 that are used, the source of random "
    "bits, timing, predictions for private rows"
)


@dataclass(frozen=True)
class AuditReport:
    """What an audit found. For the curator: it was made from exact statistics.

    Parameters
    ----------
    estimator : str
        Class and parameters of the estimator.
    checks : tuple of AuditCheck
        In their order.
    epsilon, delta : float
        As claimed, for the unit and the neighbours of the estimator's budget.
    epsilon_attained : float
        Epsilon at this delta that the worst neighbours found attain, by what is declared.
    epsilon_lower : float
        Lower confidence limit of it by what was seen in attack 2; NaN if not run, or if nothing can
        be said.
    epsilon_canaries : float
        Lower confidence limit by attack 3; NaN if not run.
    confidence : float
        Level of each limit. One above the claim is seen that rarely if the claim holds, and is no
        verdict by itself.
    ratios : dict
        Largest move over sensitivity of each release, by name; for a kind of report the largest
        input over what is covered, for a draw the epsilon that the losses need over the claimed.
    not_tested : str
        Limits of the audit, in words.
    epsilon_canary_sums : float
        Lower confidence limit by attack 3 on the noisy sums; NaN if not run, or if the unit is not
        the user or a release has other noise than Gaussian.

    Examples
    --------
    >>> from skdpmf import DPItemMeans, PrivacyBudget
    >>> from skdpmf.data import make_ratings
    >>> X = make_ratings(60, 10, random_state=0)
    >>> report = audit(DPItemMeans(PrivacyBudget(4.0, 1e-5)), X, n_neighbors=8)
    >>> report.passed, sorted(report.ratios)
    (True, ['global effects', 'item counts', 'item residuals'])
    >>> print(report)
    Privacy audit: nothing found
    ...
    >>> report.to_dict()["delta"]
    1e-05
    """

    estimator: str
    checks: tuple[AuditCheck, ...]
    epsilon: float
    delta: float
    epsilon_attained: float
    epsilon_lower: float
    epsilon_canaries: float
    confidence: float
    ratios: dict[str, float] = field(default_factory=dict)
    not_tested: str = _NOT_TESTED
    epsilon_canary_sums: float = math.nan

    @property
    def passed(self) -> bool:
        """Whether no check found anything."""
        return all(check.passed for check in self.checks)

    def to_dict(self) -> dict[str, Any]:
        """Return plain dicts, lists, strings and numbers.

        Result: fields by name, and "passed".
        """
        return {"passed": self.passed, **asdict(self)}

    def __str__(self) -> str:
        verdict = "nothing found" if self.passed else "THE CLAIM DOES NOT HOLD"
        lines = [f"Privacy audit: {verdict}", "", self.estimator, ""]
        sure = f"{100 * self.confidence:g} % sure"
        for name, value, how in (
            ("claimed", self.epsilon, f"delta {self.delta:.4g}"),
            ("neighbours reach", self.epsilon_attained, "by what is declared"),
            ("at least", self.epsilon_lower, f"by repetition, {sure}"),
            ("at least", self.epsilon_canaries, f"by canaries, {sure}"),
            ("at least", self.epsilon_canary_sums, f"by canaries in the sums, {sure}"),
        ):
            known = f"epsilon {value:<8.4g}" if not math.isnan(value) else "no bound found  "
            lines.append(f"{name:<16} {known} {how}")
        lines.append("")
        for check in self.checks:
            lines.append(f"[{'ok' if check.passed else 'FAILED'}] {check.name}: {check.finding}")
        return "\n".join([*lines, "", f"Not tested: {self.not_tested}."])


def audit(
    estimator: PrivateRecommender,
    X: Any,
    *,
    refreshes: Sequence[Any] = (),
    n_neighbors: int = 24,
    n_runs: int = 0,
    n_canaries: int = 0,
    confidence: float = 0.99,
    random_state: int = 0,
) -> AuditReport:
    """Attack a private estimator's claim on given ratings.

    Parameters
    ----------
    estimator : estimator
        With a finite budget; not fitted, and not changed. No ledger is charged.
    X : {array-like, DataFrame, sparse matrix} of shape (n_users, n_items)
        Ratings. At most 400 rows of them are used for attacks 1 and 2.
    refreshes : sequence of such X, default=()
        Rows of further people, with X's columns, in the order in which the model is refreshed. All
        months are then attacked, with a person in any of them, and replayed for each neighbour;
        beside this what the months must not share is checked. A ledger by person is tried in a
        file of its own.
    n_neighbors : int, default=24
        Neighbours tried in attack 1, at least 8, in each month. Each takes a fit. For sums with
        noise 6 of them are those of the three unusual fits, for personal levels 3; 8 others are
        tried at least.
    n_runs : int, default=0
        Fits of attack 2, each with a repetition; 100 find noise that is too small by sqrt(2). Of
        each kind of report 100 times as many are drawn on either side. 0 leaves it out.
    n_canaries : int, default=0
        Canaries of attack 3, each a replayed fit of one row where the sums are read; 0 leaves it
        out. It must be 0 with refreshes.
    confidence : float, default=0.99
        Confidence of the lower limits, not of the verdict.
    random_state : int, default=0
        Which neighbours and canaries; never the noise, which is fresh.

    Returns
    -------
    AuditReport
        ``print`` it. It passes if nothing was found, which proves nothing.

    Raises
    ------
    ValueError
        If the estimator is not private, a parameter is out of range, or refreshes have other
        columns or are of a model that cannot be refreshed.

    References
    ----------
    T. Steinke, M. Nasr, M. Jagielski, "Privacy auditing with one (1) training run", NeurIPS 2023,
    Theorem 5.2 (the canaries).

    S. Mahloujifar, L. Melis, K. Chaudhuri, "Auditing f-differential privacy in one run", ICML 2025
    (the canaries in the sums).

    "Re:cord-play", arXiv 2602.17454 (the replay).

    Examples
    --------
    >>> from skdpmf import AdaptiveWeightALS, PrivacyBudget
    >>> from skdpmf.data import make_ratings
    >>> X = make_ratings(60, 10, random_state=0)
    >>> report = audit(AdaptiveWeightALS(PrivacyBudget(4.0, 1e-5), max_iter=2), X, n_neighbors=8)
    >>> report.passed, report.epsilon_attained <= report.epsilon
    (True, True)
    """
    _check(estimator, n_neighbors, n_runs, n_canaries, confidence)
    if not len(refreshes):
        run = AuditRun(estimator, X, random_state)
        report = _audited(run, (), n_neighbors, n_runs, n_canaries, confidence)
        return replace(report, estimator=repr(estimator))
    if n_canaries:
        raise ValueError(
            f"n_canaries={n_canaries!r} must be 0 with refreshes: audit one fit with canaries."
        )
    cohorts = [X, *refreshes]
    months = months_of(estimator, cohorts)
    runs = [MonthRun(estimator, months, month, random_state) for month in range(len(months))]
    sure = 1.0 - (1.0 - confidence) / len(runs)
    reports = [_audited(run, (OtherMonths,), n_neighbors, n_runs, 0, sure) for run in runs]
    return AuditReport(
        estimator=repr(estimator),
        checks=(*merged([one.checks for one in reports]), *whole_year(runs[0], estimator, cohorts)),
        epsilon=max(one.epsilon for one in reports),
        delta=reports[0].delta,
        epsilon_attained=max(one.epsilon_attained for one in reports),
        epsilon_lower=float(np.fmax.reduce([one.epsilon_lower for one in reports])),
        epsilon_canaries=math.nan,
        confidence=float(confidence),
        ratios={
            name: max(one.ratios.get(name, 0.0) for one in reports)
            for report in reports
            for name in report.ratios
        },
        not_tested=f"{reports[0].not_tested}; new items in refreshes, budgets that change",
    )


def _audited(
    run: AuditRun,
    more: tuple[Any, ...],
    n_neighbors: int,
    n_runs: int,
    n_canaries: int,
    confidence: float,
) -> AuditReport:
    """Return the report of one fit; more: parts beside those of what leaves it."""
    spent = run.spent
    made = {Sums: run.records, Reports: run.records.reports, Draws: run.records.draws}
    parts: list[Any] = [
        part(run) for part in made if made[part] or any(map(part.plans, spent.releases))
    ]
    parts += [part(run) for part in more]
    known = all(any(part.plans(release) for part in parts) for release in spent.releases)
    checks = [run.statement(), *(check for part in parts for check in part.first())]
    if parts:
        checks += run.replay(parts, n_neighbors)
    lower = canaries = in_sums = math.nan
    if n_runs and parts:
        try:
            repeated = [part.repeated(n_runs, confidence) for part in parts]
        except Exception as error:
            repeated = [([AuditCheck("repeated fits", False, failure(error))], math.nan)]
        checks += [check for some, _ in repeated for check in some]
        lower = max(limit for _, limit in repeated)
    if n_canaries:
        check, canaries = guess_members(run, n_canaries, confidence)
        seen, in_sums = canaries_in_sums(run, n_canaries, confidence)
        checks += [check, *seen]
    untested = [_NOT_TESTED]
    if spent.condition:
        untested.append(f"the condition that the claim has, {spent.condition}")
    if not known:
        untested.append("releases that are no sums with noise, reports or draws from a posterior")
    return AuditReport(
        estimator=repr(run.estimator),
        checks=tuple(checks),
        epsilon=spent.epsilon,
        delta=spent.delta,
        epsilon_attained=max((part.attained for part in parts), default=math.nan),
        epsilon_lower=lower,
        epsilon_canaries=canaries,
        confidence=float(confidence),
        ratios=run.ratios,
        not_tested="; ".join(untested),
        epsilon_canary_sums=in_sums,
    )


def _check(estimator: Any, n_neighbors: Any, n_runs: Any, n_canaries: Any, sure: Any) -> None:
    budget = getattr(estimator, "budget", None)
    if not isinstance(budget, PrivacyBudget) or not budget.is_private:
        raise ValueError(
            f"estimator={estimator!r} must have a budget with a finite epsilon: there is no claim "
            "to attack. Pass a private estimator."
        )
    for name, value, least in (
        ("n_neighbors", n_neighbors, 8),
        ("n_runs", n_runs, 0),
        ("n_canaries", n_canaries, 0),
    ):
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ValueError(f"{name}={value!r} must be an integer >= {least}: use the default.")
    if not 0.5 <= sure < 1.0:
        raise ValueError(f"confidence={sure!r} must be in [0.5, 1): use 0.99.")
