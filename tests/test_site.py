"""The built site as its visitors see it, in headless Chromium: `make docs` builds it."""

import contextlib
import re
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.chromium import DESK, PHONE, assert_sound, browser, needs_chromium, page
from tests.systems import served

SITE = Path(__file__).resolve().parents[1] / "docs" / "_build" / "html"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (SITE / "search.html").is_file(), reason="needs the built site: make docs"
    ),
]

PAGES = [
    "index.html",
    "getting-started.html",
    "auto_examples/index.html",
    "auto_examples/plot_first_model.html",
    "choosing.html",
    "budgets.html",  # with formulas
    "benchmarks/utility.html",
    "api.html",
    "search.html?q=ledger",
]
DARK = ["index.html", "budgets.html"]


class _Handler(SimpleHTTPRequestHandler):
    def log_message(self, form, *args):
        pass

    def copyfile(self, source, outputfile):
        with contextlib.suppress(ConnectionError):  # a page that is left hangs up
            super().copyfile(source, outputfile)


@pytest.fixture(scope="module")
def origin():
    """The address of the site on this machine."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Handler, directory=str(SITE)))
    with served(server) as url:
        yield url


@pytest.fixture(scope="module")
def chromium():
    with browser() as opened:
        yield opened


@needs_chromium
@pytest.mark.parametrize("width", [PHONE, DESK])
@pytest.mark.parametrize(
    ("name", "scheme"), [*((name, "light") for name in PAGES), *((name, "dark") for name in DARK)]
)
def test_page_is_sound(chromium, origin, name, scheme, width):
    with page(chromium, width, color_scheme=scheme) as opened:
        opened.goto(origin + name)
        if name.startswith("search"):
            opened.get_by_text("Search finished").wait_for()
        assert opened.evaluate("document.documentElement.dataset.theme") == scheme
        assert_sound(opened, origin)


@needs_chromium
@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("how to save a model", "publish"),
        ("choose epsilon", "budgets"),
        ("ledger", "budgets"),
        ("load ratings", "load"),
        ("install", "getting-started"),
        ("which estimator", "choosing"),
        ("what is protected", "protection"),
        ("GridSearchCV", "evaluation"),
        ("web service", "serve"),
        ("new items", "refresh"),
        ("genres", "what-is-public"),
        ("clicks", "item-item"),
        ("command line", "getting-started"),
        ("benchmarks", "benchmarks/index"),
    ],
)
def test_search_finds_the_page_for_a_job_first(chromium, origin, question, answer):
    with page(chromium) as opened:
        opened.goto(f"{origin}search.html?q={question.replace(' ', '+')}")
        opened.get_by_text("Search finished").wait_for()
        first = opened.locator("ul.search > li > a").first.get_attribute("href")
        assert re.split(r"\.html", first)[0] == answer


ELSEWHERE = re.compile(
    r"""<(?:script|link|img|iframe|source|video|audio|object|embed)\b[^>]*\s
    (?:src|srcset|href|data)=["'](?:https?:)?//|(?:url\(|@import)\s*["']?(?:https?:)?//""",
    re.VERBOSE,
)


def test_nothing_is_loaded_from_elsewhere():
    files = [path for end in ("html", "css") for path in SITE.rglob(f"*.{end}")]
    assert len(files) > 100
    found = {
        path.relative_to(SITE).as_posix(): ELSEWHERE.findall(path.read_text("utf-8"))
        for path in files
    }
    assert {name: bad for name, bad in found.items() if bad} == {}
