"""The privacy card as a page: all of the card is on it, as texts, and it prints whole."""

import hashlib
import re
from html.parser import HTMLParser

import numpy as np
import pytest

from skdpmf import AdaptiveWeightALS, DPMFSampler, PrivacyBudget, PrivacyCard
from skdpmf.evaluation import PrivateSearchCV
from skdpmf.privacy import PrivacyStatement
from skdpmf.privacy.plan import Release
from skdpmf.privacy.pure import PureRelease

from .test_card import CASES, X

HOSTILE = "</title></style><script>alert(1)</script> <img src=//example.org> \"'&amp; $model ${x}"
TAGS = {
    *("html", "head", "meta", "title", "style", "body", "header", "main", "footer", "section"),
    *("div", "h1", "h2", "p", "dl", "dt", "dd", "ul", "li", "table", "caption", "thead", "tbody"),
    *("tr", "th", "td", "pre", "span", "code"),
}
MARKDOWN_ALONE = {"text", "statement", "search", "The", "guarantee", "holds", "only", "if"}


def hostile_card(text):
    releases = (
        Release(text, text, (3, 2), 1.0, 2.0),
        PureRelease(f"b{text}", text, (), 1.0, text, 1.0, text),
    )
    texts = dict.fromkeys(("assumptions", "not_covered", "notes", "unmet"), (text,))
    statement = PrivacyStatement(9.0, 1e-5, "user", "add-remove", releases, condition=text, **texts)
    return PrivacyCard(text, statement, {"Python": text})


@pytest.fixture(scope="module")
def cards():
    """Cards of all kinds by name."""
    found = {name: PrivacyCard.of(estimator.fit(X)) for name, estimator in CASES.items()}
    small = {"n_components": 2, "max_iter": 2}
    budget = PrivacyBudget(4.0, 1e-5)
    search = PrivateSearchCV(AdaptiveWeightALS(budget, **small), {"alpha": [1.0]}, budget)
    found["search"] = PrivacyCard.of(search.fit(X))
    sampler = DPMFSampler(budget, **small)
    found["personal"] = PrivacyCard.of(sampler.fit(X, user_epsilon=np.full(X.shape[0], 1.0)))
    statement = found["Gaussian"].statement.with_undeclared(["users", "items"])
    found["not met"] = PrivacyCard.of(statement, model="the model")
    return found


class Parsed(HTMLParser):
    """Texts of a page that a reader sees, its tags, and its attributes."""

    def __init__(self, text):
        super().__init__()
        self.texts, self.tags, self.attributes = [], set(), set()
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_data(self, data):
        if self.lasttag not in ("title", "style"):
            self.texts.append(" ".join(data.split()))


def words(text):
    return {word.rstrip(".") for word in re.findall(r"[\w.]+", text)} - {""}


NAMES = (*CASES, "search", "personal", "not met")


@pytest.mark.parametrize("name", NAMES)
def test_all_of_the_card_is_on_the_page(cards, name):
    card = cards[name]
    statement, parsed = card.statement, Parsed(card.to_html())
    markdown = card.to_markdown()
    assert parsed.tags <= TAGS
    on_page = words(" ".join(parsed.texts))
    assert words(markdown) - on_page <= MARKDOWN_ALONE
    checksum = hashlib.sha256(card.to_json().encode()).hexdigest()
    beside = words(f"{statement.summary()} {checksum} SHA 256 0 h1")
    numbers = {word for word in on_page if any(map(str.isdigit, word))}
    assert numbers <= words(markdown) | beside
    if statement.is_private:
        for text in (*statement.assumptions, *statement.not_covered):
            assert parsed.texts.count(text) == 1
    for text in (*statement.unmet, *statement.notes):
        assert text in parsed.texts
    for pair in card.curve():
        assert any(float(text) == pair["delta"] for text in parsed.texts if text[:1].isdigit())
    for release in statement.releases:
        assert any(release.name in text for text in parsed.texts)
    assert checksum in parsed.texts
    assert PrivacyCard.from_json(card.to_json()).to_html() == card.to_html()


@pytest.mark.parametrize("name", NAMES)
def test_the_short_form_stands_first_and_alarms(cards, name):
    text = cards[name].to_html()
    texts = Parsed(text).texts
    short = [line.partition(": ")[2] for line in cards[name].statement.summary().splitlines()]
    first = texts.index("In short")
    assert set(short) <= set(texts[first : texts.index("Guarantee")])
    assert ('class="alarm"' in text) is (name in ("seeded", "no privacy", "not met"))
    assert ('class="checks"' in text) is (name != "no privacy")


def test_texts_of_strangers_are_texts():
    parsed = Parsed(hostile_card(HOSTILE).to_html())
    assert parsed.tags <= TAGS
    assert not parsed.attributes & {"src", "href", "onerror"}
    assert sum(HOSTILE in text for text in parsed.texts) >= 8
    text = hostile_card(HOSTILE).to_html()
    assert "url(" not in text
    assert "@import" not in text


def test_a_delta_is_printed_as_it_is():
    """One digit would promise 1e-06 where 1.2e-06 holds."""
    release = Release("counts", "ratings per item", (9,), 1.0, 4.0)
    statement = PrivacyStatement(1.0, 1.2e-6, "user", "add-remove", (release,))
    card = PrivacyCard.of(statement, model="counts")
    assert "| 1.2e-06 | 1 |" in card.to_markdown()
    assert "<td>1.2e-06</td>" in card.to_html()
