"""The whole page in headless Chromium: it loads, rates, recommends, and asks nobody."""

import contextlib
import shutil
from types import SimpleNamespace

import numpy as np
import pytest

from skdpmf import AdaptiveWeightALS, DPItemMeans, PrivacyBudget
from skdpmf.data import make_ratings
from tests.browser.common import FOLDER, served_folder
from tests.chromium import DESK, PHONE, assert_sound, browser, needs_chromium, page

pytestmark = [needs_chromium, pytest.mark.slow]

X = make_ratings(400, 60, random_state=0)
# Titles are strangers' text: some try to be markup.
ATTACKS = [
    "<img src=x onerror='document.title=1'>",
    "<script>document.title=2</script>",
    '"><svg onload=alert(1)>',
    "&lt;b&gt;",
]
TITLES = [f"Film {j}" for j in range(52)]
TITLES += ["Amélie (2001)", "Boot, Das", "בננות", "x" * 300, *ATTACKS]
GENRES = [["Comedy|Drama", "Drama", "Horror", ""][j % 4] for j in range(60)]
CATALOGUE = {"item": range(60), "title": TITLES, "genres": GENRES}
LIST, ROW = 12, 10  # of page.js
FILES = ["/model.js", "/model.skdpmf", "/page.js", "/style.css", "/titles.js"]


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
    with served_folder(folder) as (url, asked):
        yield SimpleNamespace(url=url, asked=asked, folder=folder)


@pytest.fixture(scope="module")
def chromium():
    with browser() as chromium:
        yield chromium


@pytest.fixture
def visit(chromium, site):
    """Open the page with a model: a function that returns it when the model has been read."""
    with contextlib.ExitStack() as stack:

        def visit(query="", width=DESK, wait="#visitor", **context):
            opened = stack.enter_context(page(chromium, width, **context))
            opened.set_default_timeout(20_000)
            opened.goto(site.url + query)
            opened.wait_for_selector(wait)
            return opened

        yield visit


def items(opened, section):
    script = "(all) => all.map((li) => Number(li.dataset.item))"
    return opened.eval_on_selector_all(f"#{section} .card", script)


def search(opened, words):
    opened.fill("#search", words)
    return opened.locator("#found .name").all_text_contents()


def rate(opened, section, item, value):
    opened.check(f"#{section} [data-item='{item}'] input[value='{value}']")


def give(opened, ratings):
    """Rate items that are searched for by their numbers."""
    for item, value in ratings.items():
        search(opened, f"film {item}")
        rate(opened, "found", item, value)
    opened.fill("#search", "")


def row_of(ratings):
    row = np.full((1, 60), np.nan)
    row[0, list(ratings)] = list(ratings.values())
    return row


def expected(model, ratings):
    return model.recommend(row_of(ratings), LIST)[0][0].tolist()


def focused(opened, what):
    return opened.evaluate(f"document.activeElement.{what}")


def test_a_visit(visit, site, model):
    """Load, search, rate, change, forget: what Python recommends, and nobody is asked."""
    site.asked.clear()
    opened = visit()
    assert sorted(set(site.asked) - {"/"}) == FILES
    loaded, asked = list(opened.asked), len(site.asked)
    assert "Rate 3 titles, and your own list appears here" in opened.inner_text("#best-hint")
    assert len(items(opened, "best")) == LIST
    first = items(opened, "best")

    assert search(opened, "FILM 1") == ["Film 1", *(f"Film {j}" for j in range(10, 20))]
    assert search(opened, "flim 23") == ["Film 23"]
    assert search(opened, "amelei") == ["Amélie"]
    assert search(opened, "das boot") == ["Das Boot"]
    assert search(opened, "nothing of the kind") == []
    assert opened.is_visible("#nothing")
    give(opened, {17: 5, 3: 1})
    assert "Rate 1 more" in opened.inner_text("#best-hint")
    assert items(opened, "best") == first
    assert opened.inner_text("#tray") == "Rate 1 more for your list"
    ratings = {17: 5.0, 3: 1.0}
    for item, value in ((44, 4), (17, 2), (17, 5)):  # from three ratings on
        give(opened, {item: value})
        ratings[item] = float(value)
        assert opened.inner_text("#best-heading") == "For you"
        best = items(opened, "best")
        assert best == expected(model, ratings)
        shown = opened.locator("#best .expected").all_inner_texts()
        shown = np.array([text.split()[-1] for text in shown], float)
        gaps = shown - model.predict(row_of(ratings))[0, best]
        assert np.abs(gaps).max() <= 0.0500001
    assert items(opened, "rated") == [44, 3, 17]
    # one of the list is rated where it stands, and stays there until the next change
    rate(opened, "best", best[4], 3)
    ratings[best[4]] = 3.0
    now = items(opened, "best")
    assert now[4] == best[4]
    assert now[:4] + now[5:] == expected(model, ratings)[: LIST - 1]
    assert focused(opened, "value") == "3"
    opened.click("#rated [data-item='3'] .clear")
    del ratings[3]
    assert items(opened, "best") == expected(model, ratings)
    assert focused(opened, "className") == "clear"  # that of the next one
    opened.click("#forget")
    assert items(opened, "best") == first
    assert not opened.is_visible("#mine")
    assert focused(opened, "id") == "best-heading"

    assert opened.asked == loaded
    assert len(site.asked) == asked
    kept = "localStorage.length + sessionStorage.length + document.cookie.length"
    assert opened.evaluate(kept) == 0
    assert opened.said == []


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


def test_browser_refuses_every_request_after_the_load(visit, site):
    """Even a page whose scripts wanted to could not tell the ratings to anybody."""
    opened = visit()
    site.asked.clear()
    assert {"connect-src", "img-src", "style-src-elem"} <= set(opened.evaluate(LEAKS))
    assert site.asked == []


def test_planted_leak_is_noticed(visit, site):
    """Without the second policy the same attempts reach the server."""
    (site.folder / "open").mkdir()
    shutil.copy(site.folder / "model.skdpmf", site.folder / "open")
    for file in FOLDER.iterdir():
        text = file.read_text(encoding="utf-8").replace("document.head.append", "void")
        (site.folder / "open" / file.name).write_text(text, encoding="utf-8")
    opened = visit("open/")
    site.asked.clear()
    opened.evaluate(LEAKS)
    assert {"/open/leak-fetch", "/open/leak-beacon", "/open/leak-style"} <= set(site.asked)


def test_titles_are_text(visit):
    opened = visit()
    for item, title in enumerate(ATTACKS, 56):
        assert title in search(opened, title)
        rate(opened, "found", item, 5)
    opened.fill("#search", "")
    assert opened.locator("#rated .name").all_text_contents() == ATTACKS[::-1]
    assert opened.locator("img, b, [onload], main script").count() == 0
    assert opened.title() == "What next? Recommendations on your device"
    # the policy forbids markup from texts altogether
    script = "(() => { try { document.body.innerHTML = '<b>'; } catch (e) { return e.name; } })()"
    assert opened.evaluate(script) == "TypeError"


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("?model=damaged.skdpmf", "damaged.skdpmf was refused: it is damaged or incomplete"),
        ("?model=page.js", "page.js was refused: it is no model file"),
        ("?model=none.skdpmf", "There is no file none.skdpmf beside this page"),
        ("?model=..%2Fmodel.skdpmf", "must be the name of a file in this page's folder"),
        ("?model=https:%2F%2Fexample.org%2Fm", "must be the name of a file in this page's folder"),
    ],
)
def test_what_is_no_model_is_refused(visit, query, words):
    opened = visit(query, wait="#status.trouble")
    assert words in opened.inner_text("#status")
    assert opened.is_visible("#chooser")
    assert not opened.is_visible("#visitor")


def test_files_are_chosen_from_the_device(chromium, site, model):
    """The page as a file, without a server, and a picker: a refused file leaves nothing to see."""
    with page(chromium) as opened:
        opened.goto((site.folder / "index.html").as_uri())
        opened.wait_for_selector("#chooser")
        assert opened.inner_text("#status") == ""
        opened.set_input_files("#file", site.folder / "model.skdpmf")
        opened.wait_for_selector("#visitor")
        give(opened, {9: 5, 17: 2, 3: 4})
        assert items(opened, "best") == expected(model, {9: 5.0, 17: 2.0, 3: 4.0})
        # with a model the chooser is out of the way
        assert not opened.is_visible("#chooser")
        # lists that come into sight take their heights, which moves what is below them
        other = opened.get_by_role("button", name="Open another model")
        other.scroll_into_view_if_needed()
        with opened.expect_file_chooser() as picker:
            other.click()
        picker.value.set_files(site.folder / "damaged.skdpmf")
        opened.wait_for_selector("#status.trouble")
        assert opened.is_visible("#chooser")
        assert not opened.is_visible("#visitor")
        assert not opened.is_visible("#about")
        opened.set_input_files("#file", site.folder / "means.skdpmf")
        opened.wait_for_selector("#visitor")
        assert not opened.is_visible("#genres")
        assert not opened.is_visible("#mine")
        opened.click("#badge")
        assert "epsilon = 1 and delta = 0.00001" in opened.inner_text("#short")
        assert opened.said == []


def tab_to(opened, selector):
    for _ in range(60):
        opened.keyboard.press("Tab")
        if opened.evaluate(f"document.activeElement.matches({selector!r})"):
            return
    raise AssertionError(f"Tab does not reach {selector}")


def test_keyboard_alone(visit, model):
    """From the search field by Tab to the stars, by arrows to a value; the place is kept."""
    opened = visit()
    ratings = {}
    for item, value in ((23, 4), (17, 2), (3, 5)):
        tab_to(opened, "#search")
        opened.keyboard.press("Control+a")
        opened.keyboard.type(f"film {item}")
        tab_to(opened, f"#found [data-item='{item}'] input")
        for _ in range(value - 1):  # from the first star on
            opened.keyboard.press("ArrowRight")
        ratings[item] = float(value)
        assert opened.evaluate(f"visitor.ratings.get({item})") == value
        assert f"Film {item}: {value} of 5." in opened.inner_text("#news")
    assert "Your list: " in opened.inner_text("#news")
    tab_to(opened, "#see")
    opened.keyboard.press("Enter")
    assert focused(opened, "id") == "best-heading"
    best = items(opened, "best")
    assert best == expected(model, ratings)
    # in the list itself: its card stays while the arrows go on
    tab_to(opened, "#best .card:nth-child(2) input")
    opened.keyboard.press("Space")
    assert opened.evaluate(f"visitor.ratings.get({best[1]})") == 1
    for value in (2, 3, 4):
        opened.keyboard.press("ArrowRight")
        assert items(opened, "best")[1] == best[1]
        assert (focused(opened, "value"), opened.evaluate(f"visitor.ratings.get({best[1]})")) == (
            str(value),
            value,
        )
    tab_to(opened, ".clear")
    opened.keyboard.press("Enter")
    assert opened.evaluate("visitor.ratings.size") == 3
    assert focused(opened, "type") == "radio"
    opened.focus("#badge")
    opened.keyboard.press("Enter")
    assert opened.is_visible("#privacy")
    assert "Your ratings stay on this device" in opened.inner_text("#privacy")
    opened.keyboard.press("Escape")
    assert not opened.is_visible("#privacy")
    assert focused(opened, "id") == "badge"


@pytest.mark.parametrize(("width", "scheme"), [(PHONE, "dark"), (DESK, "light")])
def test_pages_are_sound(visit, site, width, scheme):
    opened = visit(width=width, color_scheme=scheme)
    give(opened, {17: 5, 44: 4})
    search(opened, "xx")  # a long word
    rate(opened, "found", 55, 5)
    opened.wait_for_timeout(50)
    assert_sound(opened, site.url)
    opened.click("#see")
    assert opened.locator("#because section").count() >= 2
    assert_sound(opened, site.url)
    motion = "getComputedStyle(document.documentElement).scrollBehavior"
    assert opened.evaluate(motion) == "auto"
    # a finger finds what it wants
    small = """[...document.querySelectorAll("button, input, .star")].filter((e) => e.offsetParent
      && !e.closest(".unseen")).map((e) => [e.className, e.getBoundingClientRect()])
      .filter(([, box]) => box.height < 35 || box.width < 24).map(([name]) => name)"""
    assert opened.evaluate(small) == []
    opened.click("#badge")
    opened.click("summary")
    assert_sound(opened, site.url)
