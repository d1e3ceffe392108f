"""The whole page in headless Chromium: it loads, rates, recommends, and asks nobody."""

import json
import re
import shutil

import numpy as np
import pytest

from skdpmf import AdaptiveWeightALS, DPItemMeans, PrivacyBudget
from skdpmf.data import make_ratings
from tests.browser.common import FOLDER, Browser, Server, needs_chromium

X = make_ratings(400, 60, random_state=0)
# Titles are strangers' text: some try to be markup.
ATTACKS = [
    "<img src=x onerror='document.title=1'>",
    "<script>document.title=2</script>",
    '"><svg onload=alert(1)>',
    "&lt;b&gt;",
]
TITLES = [f"Film {j}" for j in range(52)] + ["Amélie", "Das Boot", "בננות", "x" * 300, *ATTACKS]
CATALOGUE = {"item": range(60), "title": TITLES}
READY = "!document.querySelector('#visitor').hidden"


@pytest.fixture(scope="module")
def model():
    budget = PrivacyBudget.nonprivate()  # whose factors matter for so few users
    return AdaptiveWeightALS(budget, n_components=4, max_iter=3, n_jobs=1).fit(X)


@pytest.fixture(scope="module")
def site(tmp_path_factory, model):
    folder = tmp_path_factory.mktemp("site") / "page"
    shutil.copytree(FOLDER, folder)
    model.save(folder / "model.skdpmf", catalogue=CATALOGUE)
    clicks = AdaptiveWeightALS(PrivacyBudget.nonprivate(), feedback="implicit", max_iter=1)
    clicks.fit(X).save(folder / "clicks.skdpmf")
    DPItemMeans(PrivacyBudget(1.0, 1e-5)).fit(X).save(folder / "means.skdpmf")
    whole = (folder / "means.skdpmf").read_bytes()
    (folder / "damaged.skdpmf").write_bytes(whole[:-40] + b"\0" * 40)
    with Server(folder) as server:
        server.folder = folder
        yield server


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    try:
        browser = Browser(tmp_path_factory.mktemp("profile"))
    except OSError as error:
        pytest.skip(str(error))
    with browser:
        yield browser


def requests(browser):
    sent = [event["request"]["url"] for event in browser.named("Network.requestWillBeSent")]
    return [url for url in sent if not url.startswith("data:")]


def search(browser, words):
    """Type into the search field, as a keyboard does."""
    browser.run("document.querySelector('#search').value = ''")
    browser.run("document.querySelector('#search').focus()")
    browser.call("Input.insertText", text=words)
    return browser.run("[...document.querySelectorAll('#found bdi')].map((e) => e.textContent)")


def rate(browser, section, item, value):
    place = json.dumps(f"#{section} select[data-item='{item}']")
    browser.run(
        f"(() => {{ const s = document.querySelector({place}); s.focus(); s.value = "
        f"{json.dumps(value)}; s.dispatchEvent(new Event('change', {{bubbles: true}})); }})()"
    )


def items(browser, section):
    selects = f"[...document.querySelectorAll('#{section} select')]"
    return browser.run(f"{selects}.map((s) => Number(s.dataset.item))")


def expected(model, ratings):
    row = np.full((1, 60), np.nan)
    row[0, list(ratings)] = list(ratings.values())
    recommended, scores = model.recommend(row, 10)
    return recommended[0].tolist(), scores[0]


@needs_chromium
def test_a_visit(browser, site, model):
    """Load, search, rate, change, forget: what Python recommends, and nobody is asked."""
    site.asked.clear()
    browser.open(site.url)
    browser.wait(READY)
    assert sorted(set(site.asked) - {"/"}) == [
        "/model.js",
        "/model.skdpmf",
        "/page.js",
        "/style.css",
    ]
    loaded, asked = requests(browser), len(site.asked)
    assert len(loaded) == 5
    assert "No privacy" in browser.text("#privacy")
    assert items(browser, "best") == expected(model, {})[0]

    assert search(browser, "FILM 1") == ["Film 1", *(f"Film {j}" for j in range(10, 20)),
                                         "Film 21", "Film 31", "Film 41", "Film 51"]  # fmt: skip
    assert search(browser, "amelie") == ["Amélie"]
    assert search(browser, "boot das") == ["Das Boot"]
    ratings = {}
    for item, value in ((17, "5"), (3, "1"), (44, "4"), (17, "2")):
        search(browser, f"film {item}")
        rate(browser, "found", item, value)
        ratings[item] = float(value)
        best, scores = expected(model, ratings)
        assert items(browser, "best") == best
        shown = browser.run(
            "[...document.querySelectorAll('#best .score')].map(e => e.textContent)"
        )
        assert np.abs(np.array(shown, float) - np.clip(scores, 1, 5)).max() <= 0.0500001
    assert items(browser, "rated") == [44, 3, 17]
    # a recommended item is rated where it stands: the keyboard follows it
    rate(browser, "best", best[0], "3")
    ratings[best[0]] = 3.0
    assert items(browser, "best") == expected(model, ratings)[0]
    assert browser.run("document.activeElement.closest('ul').id") == "rated"
    assert browser.run("document.activeElement.dataset.item") == str(best[0])
    rate(browser, "rated", 3, "")
    del ratings[3]
    assert items(browser, "best") == expected(model, ratings)[0]
    browser.run("document.querySelector('#forget').click()")
    assert items(browser, "rated") == []
    assert items(browser, "best") == expected(model, {})[0]

    assert requests(browser) == loaded
    assert len(site.asked) == asked
    assert browser.run("localStorage.length + sessionStorage.length + document.cookie.length") == 0
    assert browser.named("Runtime.exceptionThrown") == []


LEAKS = """(async () => {
  const refused = [];
  document.addEventListener("securitypolicyviolation", (e) => refused.push(e.effectiveDirective));
  await fetch("leak-fetch").catch(() => 0);
  navigator.sendBeacon("leak-beacon", "x");
  new Image().src = "leak-image";
  const style = document.createElement("link");
  Object.assign(style, { rel: "stylesheet", href: "leak-style" });
  document.head.append(style);
  try { new WebSocket("ws://" + location.host + "/leak-socket"); } catch {}
  await new Promise((resolve) => setTimeout(resolve, 200));
  return refused;
})()"""


@needs_chromium
def test_browser_refuses_every_request_after_the_load(browser, site):
    """Even a page whose scripts wanted to could not tell the ratings to anybody."""
    browser.open(site.url)
    browser.wait(READY)
    site.asked.clear()
    assert {"connect-src", "img-src", "style-src-elem"} <= set(browser.run(LEAKS))
    assert site.asked == []


@needs_chromium
def test_planted_leak_is_noticed(browser, site):
    """Without the second policy the same attempts reach the server."""
    (site.folder / "open").mkdir()
    shutil.copy(site.folder / "model.skdpmf", site.folder / "open")
    for file in FOLDER.iterdir():
        text = file.read_text(encoding="utf-8").replace("document.head.append", "void")
        (site.folder / "open" / file.name).write_text(text, encoding="utf-8")
    browser.open(site.url + "open/")
    browser.wait(READY)
    site.asked.clear()
    browser.run(LEAKS)
    assert {"/open/leak-fetch", "/open/leak-beacon", "/open/leak-style"} <= set(site.asked)


@needs_chromium
def test_titles_are_text(browser, site):
    browser.open(site.url)
    browser.wait(READY)
    for item, title in enumerate(ATTACKS, 56):
        assert title in search(browser, title)
        rate(browser, "found", item, "5")
    shown = browser.run("[...document.querySelectorAll('#rated bdi')].map((e) => e.textContent)")
    assert shown == ATTACKS[::-1]
    assert browser.run("document.querySelectorAll('img, svg, b, main script').length") == 0
    assert browser.run("document.title") == "Recommendations on your device"
    # the policy forbids markup from texts altogether
    script = "(() => { try { document.body.innerHTML = '<b>'; } catch (e) { return e.name; } })()"
    assert browser.run(script) == "TypeError"


@needs_chromium
@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("?model=damaged.skdpmf", "damaged.skdpmf was refused: it is damaged or incomplete"),
        ("?model=page.js", "page.js was refused: it is no model file"),
        ("?model=none.skdpmf", "There is no file none.skdpmf beside this page"),
        ("?model=..%2Fmodel.skdpmf", "must be the name of a file in this page's folder"),
        ("?model=https:%2F%2Fexample.org%2Fm", "must be the name of a file in this page's folder"),
        ("?model=", "must be the name of a file in this page's folder"),
    ],
)
def test_what_is_no_model_is_refused(browser, site, query, words):
    browser.open(site.url + query)
    browser.wait("document.querySelector('#status').className === 'trouble'")
    assert words in browser.text("#status")
    assert browser.run("document.querySelector('#visitor').hidden")


@needs_chromium
def test_files_are_chosen_from_the_device(browser, site, model):
    """The page as a file, without a server, and a picker: a refused file leaves nothing to see."""
    page = (site.folder / "index.html").as_uri()
    browser.open(page)
    assert browser.text("#status") == "Choose a model file."
    browser.choose_file(site.folder / "model.skdpmf")
    browser.wait(READY)
    rate(browser, "best", expected(model, {})[0][0], "4.5")
    assert items(browser, "best") == expected(model, {})[0]  # no such choice: nothing is rated
    search(browser, "film 9")
    rate(browser, "found", 9, "5")
    assert items(browser, "best") == expected(model, {9: 5.0})[0]
    browser.choose_file(site.folder / "damaged.skdpmf")
    browser.wait("document.querySelector('#status').className === 'trouble'")
    assert not browser.run(READY)
    browser.choose_file(site.folder / "means.skdpmf")
    browser.wait(READY)
    assert "epsilon = 1 and delta = 0.00001" in browser.text("#privacy")
    assert items(browser, "rated") == []


@needs_chromium
def test_clicks_are_liked_or_not(browser, site):
    browser.open(site.url + "?model=clicks.skdpmf")
    browser.wait(READY)
    assert "item 7" in search(browser, "item 7")
    options = "[...document.querySelector('#found select').options].map((o) => o.textContent)"
    assert browser.run(options) == ["not rated", "liked"]
    rate(browser, "found", 7, "1")
    assert 7 not in items(browser, "best")
    assert items(browser, "rated") == [7]


def press(browser, key, code):
    text = {"text": key} if len(key) == 1 else {}
    for kind in ("keyDown", "keyUp"):
        browser.call(
            "Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code, **text
        )


@needs_chromium
def test_keyboard_alone(browser, site, model):
    """From the search field by Tab to the rating, by digit to the value; the place is kept."""
    browser.open(site.url)
    browser.wait(READY)
    search(browser, "film 23")
    press(browser, "Tab", 9)
    press(browser, "4", 0x34)
    assert items(browser, "best") == expected(model, {23: 4.0})[0]
    press(browser, "Tab", 9)  # to the list of ratings
    assert browser.run("document.activeElement.closest('ul').id") == "rated"
    press(browser, "n", 0x4E)  # "not rated": its line goes, the place does not
    assert items(browser, "best") == expected(model, {})[0]
    assert browser.run("document.activeElement.id") == "rated-heading"


@needs_chromium
def test_controls_have_names_and_fit_a_phone(browser, site):
    browser.call("Emulation.setDeviceMetricsOverride", width=360, height=640,
                 deviceScaleFactor=1, mobile=True)  # fmt: skip
    try:
        browser.open(site.url)
        browser.wait(READY)
        search(browser, "xx")  # a long word
        rate(browser, "found", 55, "5")
        assert browser.run("document.scrollingElement.scrollWidth") <= 360
        small = (
            "[...document.querySelectorAll('input, select, button')].filter((e) => e.offsetParent "
            "&& e.getBoundingClientRect().height < 44).length"
        )
        assert browser.run(small) == 0
        nodes = browser.call("Accessibility.getFullAXTree")["nodes"]
        roles = {"searchbox", "combobox", "button", "heading"}
        named = [n for n in nodes if n.get("role", {}).get("value") in roles]
        assert len([n for n in named if n["role"]["value"] == "combobox"]) == 12
        assert all(n["name"]["value"] for n in named)
    finally:
        browser.call("Emulation.clearDeviceMetricsOverride")


def luminance(colour):
    """Relative luminance of sRGB (WCAG 2.2)."""
    digits = colour[1:] if len(colour) == 7 else "".join(2 * d for d in colour[1:])
    parts = [int(digits[i : i + 2], 16) / 255 for i in (0, 2, 4)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_contrast():
    """Text 4.5, borders of controls 3, light and dark (WCAG 2.2 AA)."""
    css = (FOLDER / "style.css").read_text(encoding="utf-8")
    themes = [dict(re.findall(r"--(\w+): (#\w+)", line)) for line in css.splitlines()]
    themes = [theme for theme in themes if theme]
    assert len(themes) == 2
    for theme in themes:
        for front, least in (("text", 4.5), ("hint", 4.5), ("alarm", 4.5), ("line", 3.0)):
            for back in ("back", "soft"):
                dark, light = sorted((luminance(theme[front]), luminance(theme[back])))
                assert (light + 0.05) / (dark + 0.05) >= least, (theme, front, back)


def test_page_names_no_other_address():
    for file in FOLDER.iterdir():
        assert not re.search(r"https?://|//\w+\.\w", file.read_text(encoding="utf-8")), file.name
