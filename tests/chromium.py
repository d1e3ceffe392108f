"""Pages in headless Chromium at the width of a phone and of a desk, and what must hold on each."""

import contextlib
import shutil

import pytest

PHONE, DESK = 390, 1400  # CSS pixels
_NAMES = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM = next(filter(None, map(shutil.which, _NAMES)), None)
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
# Without these Chromium asks its maker's servers at every start.
_QUIET = "no-first-run disable-background-networking disable-component-update disable-sync"
_FLAGS = ["no-sandbox", "disable-gpu", "disable-quic", "disable-dev-shm-usage", *_QUIET.split()]


@contextlib.contextmanager
def browser():
    """A browser of its own, with Playwright's interface."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        flags = [f"--{flag}" for flag in _FLAGS]
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=flags)
        try:
            yield chromium
        finally:
            chromium.close()


@contextlib.contextmanager
def page(chromium, width=DESK, **context):
    """An empty page, which lists in ``said`` its console's messages and its scripts' errors.

    ``asked`` are the addresses of all its requests. Nothing moves: a colour on its way from one to
    another has the contrast of neither.
    """
    context = {"viewport": {"width": width, "height": 900}, "reduced_motion": "reduce", **context}
    with contextlib.closing(chromium.new_context(**context)) as session:
        opened = session.new_page()
        opened.said, opened.asked = [], []
        opened.on("console", lambda message: opened.said.append(message.text))
        opened.on("pageerror", lambda error: opened.said.append(str(error)))
        opened.on("request", lambda request: opened.asked.append(request.url))
        yield opened


def assert_sound(opened, origin):
    """No sideways scroll, no message, no request to elsewhere, and nothing that axe-core finds."""
    from axe_playwright_python.sync_playwright import Axe

    assert opened.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    assert opened.said == []
    strangers = [url for url in opened.asked if not url.startswith((origin, "data:", "blob:"))]
    assert strangers == []
    found = Axe().run(opened)
    assert found.violations_count == 0, found.generate_report()
