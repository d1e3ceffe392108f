"""The privacy card: complete, readable back, and honest about its curve."""

import json
import math

import pytest

import skdpmf as sk
from skdpmf.data import make_ratings
from skdpmf.evaluation import PrivateSearchCV
from skdpmf.exceptions import PrivacyParameterError
from skdpmf.privacy import PrivacyStatement
from skdpmf.privacy.accounting import gaussian_epsilon

X = make_ratings(60, 12, random_state=0)
CASES = {
    "Gaussian": sk.AdaptiveWeightALS(sk.PrivacyBudget(2.0, 1e-6), n_components=2, max_iter=2),
    "Laplace": sk.DPCovarianceRecommender(sk.PrivacyBudget(20.0, unit="rating"), noise="laplace"),
    "local": sk.LocalDPGDDR(sk.PrivacyBudget(2.0), randomizer="coordinate"),
    "no privacy": sk.AdaptiveWeightALS(sk.PrivacyBudget.nonprivate(), n_components=2, max_iter=2),
    "seeded": sk.AdaptiveWeightALS(sk.PrivacyBudget(2.0, 1e-6), n_components=2, random_state=0),
}
every_case = pytest.mark.parametrize("name", CASES)


@every_case
def test_cards_read_back(name):
    model = CASES[name].fit(X)
    card = sk.PrivacyCard.of(model)
    again = sk.PrivacyCard.from_json(card.to_json())
    assert again == card
    assert again.statement == model.privacy_spent_
    assert {"Python", "skdpmf", "numpy"} <= set(card.versions)
    text = card.to_markdown()
    assert str(model.privacy_spent_) in text
    assert type(model).__name__ in text


def test_curve_is_that_of_the_releases():
    statement = CASES["Gaussian"].fit(X).privacy_spent_
    card = sk.PrivacyCard.of(statement, model="the model")
    pairs = {pair["delta"]: pair["epsilon"] for pair in card.curve()}
    assert pairs[statement.delta] == statement.epsilon
    assert list(pairs) == sorted(pairs, reverse=True)
    assert list(pairs.values()) == sorted(pairs.values())
    for delta, epsilon in pairs.items():
        ideal = gaussian_epsilon(statement.mu, delta)
        assert ideal <= epsilon <= ideal * 1.01 + 1e-6
    assert card.curve([1e-3])[0]["delta"] == 1e-3
    assert card.model == "the model"


def test_pure_statements_have_one_pair():
    for name in ("Laplace", "local"):
        statement = CASES[name].fit(X).privacy_spent_
        pair = {"delta": 0.0, "epsilon": statement.epsilon}
        assert sk.PrivacyCard.of(statement).curve() == [pair]


def test_no_privacy_is_infinite():
    card = sk.PrivacyCard.of(CASES["no privacy"].fit(X))
    assert {pair["epsilon"] for pair in card.curve()} == {math.inf}
    assert json.loads(card.to_json())["curve"][0]["epsilon"] == "inf"
    assert "| inf |" in card.to_markdown()


def test_texts_of_a_card_stay_what_they_are():
    notes = ("```", "![](https://example.org/x)", "```` <b>")
    statement = PrivacyStatement(1.0, 0.0, "user", "add-remove", (), notes=notes)
    card = sk.PrivacyCard("a `b` ``c`` <i>", statement, {"Python": "3 [x](y) <script>*z*|"})
    lines = card.to_markdown().splitlines()
    assert lines[2] == "``` a `b` ``c`` <i> ```"
    fence = lines.index("`````text")
    assert lines[fence + 1] == "Privacy statement"
    assert "\n".join(lines[fence + 1 : lines.index("`````")]) == str(statement)
    assert lines[-1] == r"Made with Python 3 \[x\](y) \<script\>\*z\*\|."


def test_printed_epsilons_are_rounded_up():
    card = sk.PrivacyCard.of(CASES["Gaussian"].fit(X))
    lines = card.to_markdown().splitlines()
    rows = [row.split("|")[1:3] for row in lines if row.startswith(("| 0", "| 1"))]
    assert len(rows) == len(card.curve())
    for (_, printed), pair in zip(rows, card.curve(), strict=True):
        assert 0.0 <= float(printed) - pair["epsilon"] + 1e-8 < 1e-3 + 1e-8


def test_altered_cards_are_refused():
    card = sk.PrivacyCard.of(CASES["Gaussian"].fit(X))
    plain = json.loads(card.to_json())
    lower = [{**pair, "epsilon": pair["epsilon"] / 2} for pair in plain["curve"]]
    for change, said in (
        ({"curve": lower}, "curve must be"),
        ({"format": "other"}, "format"),
        ({"versions": None}, "all parts"),
        ({"statement": {}}, "statement|fields"),
    ):
        with pytest.raises(PrivacyParameterError, match=said):
            sk.PrivacyCard.from_json(json.dumps({**plain, **change}))
    with pytest.raises(PrivacyParameterError, match="format"):
        sk.PrivacyCard.from_json("[]")


def test_something_without_a_statement():
    with pytest.raises(PrivacyParameterError, match="privacy_spent_"):
        sk.PrivacyCard.of(CASES["Gaussian"].__class__(sk.PrivacyBudget(1.0, 1e-5)))
    assert isinstance(sk.PrivacyCard.of(CASES["Laplace"].fit(X)).statement, PrivacyStatement)


def test_a_search_has_one_pair_and_reads_back():
    """Its releases are the winner's alone, and do not compose to what the search costs."""
    grid = {"alpha": [0.5, 1.0]}
    search = PrivateSearchCV(
        sk.AdaptiveWeightALS(sk.PrivacyBudget(4.0, 1e-5), n_components=2, max_iter=2),
        grid,
        sk.PrivacyBudget(4.0, 1e-5),
        n_trials=2,
    ).fit(X)
    card = sk.PrivacyCard.of(search)
    spent = search.privacy_spent_
    assert card.curve() == [{"delta": spent.delta, "epsilon": spent.epsilon}]
    assert sk.PrivacyCard.from_json(card.to_json()) == card
    both = sk.privacy_spent([search, CASES["Gaussian"].fit(X)])
    assert not both.follows_from_releases
    assert CASES["Gaussian"].privacy_spent_.follows_from_releases
    assert sk.PrivacyCard.of(both).curve() == [{"delta": both.delta, "epsilon": both.epsilon}]
    assert both.epsilon == pytest.approx(6.0, rel=1e-3)
    guarantee = str(both).partition("In words")[0]
    assert "mu =" not in guarantee  # of the winner alone
