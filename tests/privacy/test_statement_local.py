"""Plans and statements of the local model: against whom, under what, and that they survive JSON."""

import dataclasses
import json
import math

import pytest

from skdpmf.privacy.budget import PrivacyBudget
from skdpmf.privacy.plan import PureRelease, ReleasePlan
from skdpmf.privacy.statement import (
    LOCAL_ASSUMPTIONS,
    NOT_COVERED,
    PERSONAL_ASSUMPTION,
    PURE_ASSUMPTIONS,
    SEEDED_ASSUMPTION,
    STANDARD_ASSUMPTIONS,
    PrivacyStatement,
)
from tests.privacy.test_statement import make_plan

REPORT = PureRelease(
    "report of a device", "a user's items", (63,), 2.0, "PrivUnitG", 1.0, "l2 length", count=2
)
BUDGETS = [
    PrivacyBudget(4.0, neighbors="replace"),
    PrivacyBudget(4.0, 1e-6, neighbors="replace"),
    PrivacyBudget(4.0, unit="rating"),
]


def local_plan(budget=BUDGETS[0], report=REPORT, **params):
    return ReleasePlan(budget, (report,), local=True, **params)


def said(text):
    return " ".join(str(text).split())


@pytest.mark.parametrize("budget", BUDGETS, ids=str)
def test_a_local_statement_tells_what_its_plan_told(budget):
    plan = local_plan(budget, notes=["one note"])
    statement = PrivacyStatement.from_plan(plan, assumptions=["mine"])
    assert statement.local
    assert (statement.epsilon, statement.delta, statement.mu) == (4.0, 0.0, 0.0)
    assert (statement.unit, statement.neighbors) == (budget.unit, budget.neighbors)
    assert statement.releases == plan.releases
    assert statement.notes == ("one note",)
    assert statement.assumptions == (*LOCAL_ASSUMPTIONS, "mine")
    assert statement.not_covered == NOT_COVERED
    table = str(plan).split("\n\n")[2]
    assert "PrivUnitG, sensitivity: l2 length" in table
    assert table in str(statement)


@pytest.mark.parametrize("budget", BUDGETS, ids=str)
def test_a_local_guarantee_is_about_what_a_device_sends(budget):
    plan = local_plan(budget)
    statement = PrivacyStatement.from_plan(plan)
    for text in (said(plan), said(statement)):
        assert "Guarantee: local differential privacy with epsilon = 4 (pure: delta = 0)." in text
        assert "nothing that the device may send becomes more than 54.6 times as likely." in text
        assert "no outcome of the fit" not in text
    text = said(statement)
    assert "Against: anyone who sees all that a user's device sends, the server" in text
    assert "No trusted server is needed." in text
    assert "anyone who sees the fitted model" not in text
    assert max(map(len, str(statement).split("\n"))) <= 88
    for part in (*LOCAL_ASSUMPTIONS, *NOT_COVERED):
        assert part in text
    assert "seed" not in text


def test_central_and_local_statements_are_told_apart():
    """They differ in all that says whom one has to trust, and in nothing else."""
    local, central = local_plan(), dataclasses.replace(local_plan(), local=False)
    assert local != central
    assert repr(local) != repr(central)  # which is in the key of a seeded fit
    one, two = PrivacyStatement.from_plan(local), PrivacyStatement.from_plan(central)
    assert two.assumptions == PURE_ASSUMPTIONS
    changed = {"local": False, "assumptions": PURE_ASSUMPTIONS}
    assert dataclasses.replace(one, **changed) == two
    assert "local differential privacy" not in said(central)
    assert "no outcome of the fit" in said(two)
    assert "anyone who sees the fitted model" in said(two)
    assert "trusted server" not in said(two)
    # neither kind of central assumptions: nobody collects ratings, and no noise is on an item
    for part in {*PURE_ASSUMPTIONS, *STANDARD_ASSUMPTIONS} - {*LOCAL_ASSUMPTIONS}:
        assert part not in said(one)
    assert not PrivacyStatement.from_plan(make_plan()).local


def test_a_local_statement_says_that_a_fit_only_simulates():
    text = said(PrivacyStatement.from_plan(local_plan()))
    for part in (
        "Every device runs this protocol as stated",
        "the holder of the matrix has seen the ratings",
        "a device without ratings reports too",
        "Nothing hides that a user takes part, when, and from where the report comes",
    ):
        assert part in text


def test_first_assumptions_come_before_the_local_ones():
    statement = PrivacyStatement.from_plan(local_plan(), seeded=True, personal=True)
    assert statement.assumptions == (SEEDED_ASSUMPTION, PERSONAL_ASSUMPTION, *LOCAL_ASSUMPTIONS)
    assert "Warning" in str(statement)


def test_a_condition_of_a_local_guarantee():
    text = said(local_plan(condition="luck"))
    assert "Guarantee: CONDITIONAL on luck: local differential privacy" in text


@pytest.mark.parametrize("seeded", [False, True])
@pytest.mark.parametrize("budget", [*BUDGETS, PrivacyBudget.nonprivate(neighbors="replace")])
def test_json_round_trip_of_a_local_statement(budget, seeded):
    report = dataclasses.replace(REPORT, epsilon=float(budget.epsilon) / 2)
    statement = PrivacyStatement.from_plan(local_plan(budget, report, notes=["n"]), seeded=seeded)
    text = statement.to_json()
    plain = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert plain["local"] is True
    again = PrivacyStatement.from_json(text)
    assert again == statement
    assert again.local
    assert str(again) == str(statement)
    # statements of before say nothing: they are central
    del plain["local"]
    assert not PrivacyStatement.from_dict(plain).local


def test_without_privacy_nothing_is_local():
    report = dataclasses.replace(REPORT, epsilon=math.inf)
    statement = PrivacyStatement.from_plan(
        local_plan(PrivacyBudget.nonprivate(neighbors="replace"), report)
    )
    assert not statement.is_private
    text = said(statement)
    assert "no privacy" in text
    for word in ("local differential", "Against", "Protected", "trusted"):
        assert word not in text
