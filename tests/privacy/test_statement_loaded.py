"""Statements and cards that are loaded: what cannot be is refused."""

import math

import pytest

from skdpmf.books.card import PrivacyCard
from skdpmf.books.search import SearchStatement
from skdpmf.exceptions import PrivacyParameterError
from skdpmf.privacy.plan import Release
from skdpmf.privacy.statement import PrivacyStatement

IMPOSSIBLE = {
    **{key: [-1, math.nan, "x", None] for key in ("epsilon", "delta", "eta", "tau")},
    **{key: [None, 3] for key in ("unit", "neighbors", "condition")},
    **{key: ["x", None, [1]] for key in ("assumptions", "not_covered", "notes")},
    **{key: ["x", None, 2] for key in ("seeded", "personal", "local")},
    "releases": [None, 3, "x", [3], [{}]],
    "more": [1],
}
IMPOSSIBLE_RELEASE = {
    "kind": [None, "x", [1]],
    "shape": [None, 3, "x", [-1], [1.5], [math.nan]],
    "count": [None, 0, 1.5, "x", math.inf],
    **{key: [None, 3, ""] for key in ("name", "statistic")},
    **{key: [None, -1, "x", math.nan, math.inf] for key in ("sensitivity", "noise_multiplier")},
}


@pytest.mark.parametrize(
    ("name", "value", "of_release"),
    [
        *((name, value, False) for name, values in IMPOSSIBLE.items() for value in values),
        *((name, value, True) for name, values in IMPOSSIBLE_RELEASE.items() for value in values),
    ],
)
def test_loaded_statements_of_impossible_values_are_refused(name, value, of_release):
    counts = Release("counts", "ratings per item", (9,), 1.0, noise_multiplier=2.0)
    statement = PrivacyStatement(4.0, 1e-5, "user", "replace", (counts,))
    plain = statement.to_dict()
    assert PrivacyStatement.from_dict(plain) == statement
    (plain["releases"][0] if of_release else plain)[name] = value
    with pytest.raises(PrivacyParameterError) as caught:
        PrivacyStatement.from_dict(plain)
    assert name in str(caught.value)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "3", None, b"\xff"])
@pytest.mark.parametrize("kind", [PrivacyStatement, SearchStatement, PrivacyCard])
def test_texts_that_are_no_statement_are_refused(kind, text):
    with pytest.raises(PrivacyParameterError, match=r"to_json wrote"):
        kind.from_json(text)


@pytest.mark.parametrize(
    ("name", "value"),
    [("shape", -2.0), ("shape", "x"), ("mean", math.nan), ("n_refit", 2), ("n_refit", "x")],
)
def test_loaded_searches_of_impossible_values_are_refused(name, value):
    counts = Release("counts", "ratings per item", (9,), 1.0, noise_multiplier=2.0)
    statement = SearchStatement(4.0, 1e-5, "user", "replace", (counts,))
    with pytest.raises(PrivacyParameterError, match=name):
        SearchStatement.from_dict({**statement.to_dict(), name: value})
