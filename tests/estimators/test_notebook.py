"""What a notebook shows: the short form first, the long one folded, texts as texts."""

import html
import io
import re
from types import SimpleNamespace

import numpy as np
import pytest
from sklearn import config_context

import skdpmf as sk
from skdpmf.data import make_ratings
from skdpmf.evaluation import PrivateSearchCV
from skdpmf.preprocessing import DPItemSelector

BUDGET = sk.PrivacyBudget(4.0, 1e-5)
X = make_ratings(60, 9, random_state=0)
FITTED = sk.DPItemMeans(BUDGET).fit(X)
SEARCH = PrivateSearchCV(FITTED, {"user_damping": [5.0, 9.0]}, BUDGET)


def shown(value):
    """The short and the long text of what a notebook gets."""
    found = re.fullmatch(
        r"<pre[^>]*>([^<]*)</pre><details><summary>In full</summary><pre[^>]*>([^<]*)</pre>"
        r"</details>",
        value._repr_html_(),
    )
    return tuple(map(html.unescape, found.groups()))


def in_console(value):
    """The text that IPython shows."""
    written = io.StringIO()
    value._repr_pretty_(SimpleNamespace(text=written.write), False)
    return written.getvalue()


def test_the_short_form_stands_before_the_long_one(tmp_path):
    ledger = sk.PrivacyLedger(tmp_path / "a.ledger", sk.PrivacyBudget(8.0, 1e-5))
    sk.DPItemMeans(sk.PrivacyBudget(4.0, 1e-5, ledger=ledger)).fit(X)
    statement, report = FITTED.privacy_spent_, ledger.report()
    card = sk.PrivacyCard.of(FITTED, model="<b>books</b> & more")
    plan, search = FITTED.plan(9, 60), SEARCH.plan(9, 60)
    searched = SEARCH.fit(X).privacy_spent_
    for value, short, long in (
        (BUDGET, repr(BUDGET), "54.6 times as likely"),
        (plan, f"3 planned releases, {BUDGET!r}", str(plan)),
        (search, f"A planned search, {BUDGET!r}", str(search)),
        (statement, statement.summary(), str(statement)),
        (searched, searched.summary(), str(searched)),
        (card, f"<b>books</b> & more\n{statement.summary()}", card.to_markdown()),
        (report, "30.8% of epsilon 8, delta 1e-05 is spent; entries: 1", str(report)),
        (ledger, "30.8% of epsilon 8, delta 1e-05 is spent; entries: 1", str(report)),
    ):
        first, full = shown(value)
        assert first == short
        assert full.endswith(long) or long in " ".join(full.split())
        assert len(first) < len(full)
        if value is not BUDGET:  # whose repr is as short
            assert in_console(value) == f"{short}\nPrint it to see all of it."
    assert str(card) == card.to_markdown()


@pytest.mark.parametrize(
    "estimator",
    [sk.AdaptiveWeightALS(BUDGET), DPItemSelector(BUDGET), SEARCH, sk.CacheSGDFactorizer(2)],
    ids=lambda estimator: type(estimator).__name__,
)
def test_a_fitted_estimator_shows_what_it_has_spent(estimator):
    fitted = type(estimator)(**estimator.get_params(deep=False))
    before = fitted._repr_mimebundle_()["text/html"]
    assert "In full" not in before
    fitted.fit(X)
    spent = fitted.privacy_spent_._repr_html_()
    for page in (fitted._repr_html_(), fitted._repr_mimebundle_()["text/html"]):
        assert page.startswith(spent)
        assert type(fitted).__name__ in page[len(spent) :]
    epsilon = "epsilon 4," if fitted.privacy_spent_.is_private else "Epsilon is infinite"
    assert epsilon in spent
    with config_context(display="text"):
        assert fitted._repr_mimebundle_().keys() == {"text/plain"}


def test_nothing_is_shown_of_the_ratings():
    """Of neighbours whose releases are the same to the plan, the texts are the same."""
    other = sk.DPItemMeans(BUDGET).fit(X * np.float64(0.5))
    assert shown(other.privacy_spent_) == shown(FITTED.privacy_spent_)
