"""Time of a change on the page of `browser/`, in headless Chromium.

A model of made-up ratings, 20,000 items with titles and 32 factors (and a bias), is loaded by http
from this machine. Then a visitor rates items, one after the other, and types into the search field.
A change is everything from the event to the new layout: fold-in, all scores, the best ten, the
lists. Prints a Markdown table of medians.

    python benchmarks/bench_browser.py --items 20000 --factors 32
"""

import argparse
import shutil
import statistics
import sys
import tempfile
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(CHECKOUT))  # for tests.browser: hence the late imports

from skdpmf import CacheSGDFactorizer  # noqa: E402
from skdpmf.data import make_ratings  # noqa: E402
from tests.browser.common import Browser, Server  # noqa: E402

# Each returns milliseconds. A rating is chosen in the list of what is found.
CHANGES = """((count) => Array.from({ length: count }, (_, i) => {
  const search = document.querySelector("#search");
  search.value = `title ${7 * i + 1}`;
  search.dispatchEvent(new Event("input"));
  const select = document.querySelector("#found select");
  select.value = String(1 + (i % 5));
  const start = performance.now();
  select.dispatchEvent(new Event("change", { bubbles: true }));
  document.body.getBoundingClientRect();
  return performance.now() - start;
}))"""
SEARCHES = """["t", "ti", "title 1", "title 19999", "nothing"].map((query) => {
  const search = document.querySelector("#search");
  search.value = query;
  const start = performance.now();
  search.dispatchEvent(new Event("input"));
  document.body.getBoundingClientRect();
  return performance.now() - start;
})"""
LOADED = "!document.querySelector('#visitor').hidden"
TIME_TO_LOAD = f"""new Promise((resolve) => {{
  const start = performance.now();
  const seen = () => {LOADED} ? resolve(performance.now() - start) : setTimeout(seen, 1);
  show("again", window.content.slice());
  seen();
}})"""


def site(folder, n_items, n_factors):
    """Write the page and a model."""
    shutil.copytree(CHECKOUT / "browser", folder)
    X = make_ratings(300, n_items, density=0.02, random_state=0)
    model = CacheSGDFactorizer(n_factors, max_iter=1, random_state=0, n_jobs=1).fit(X)
    titles = [f"A title {j} of usual length (1999)" for j in range(n_items)]
    model.save(folder / "model.skdpmf", catalogue={"item": range(n_items), "title": titles})


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--items", type=int, default=20_000)
    parser.add_argument("--factors", type=int, default=32)
    parser.add_argument("--ratings", type=int, default=100)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder, "page")
        site(page, args.items, args.factors)
        size = (page / "model.skdpmf").stat().st_size
        with Server(page) as server, Browser(Path(folder, "profile")) as browser:
            browser.open(server.url)
            browser.wait(LOADED)
            changes = browser.run(f"{CHANGES}({args.ratings})")
            searches = browser.run(SEARCHES)
            # the bytes for reading again come before the page forbids requests
            browser.call("Page.addScriptToEvaluateOnNewDocument", source=(
                "window.content = fetch('model.skdpmf').then((r) => r.arrayBuffer());"
            ))  # fmt: skip
            browser.open(server.url)
            browser.wait(LOADED)
            browser.run("window.content.then((c) => { window.content = c; return 1; })")
            loads = [browser.run(TIME_TO_LOAD) for _ in range(7)]
            version = browser.call("Browser.getVersion")["product"]
    print(f"{version}, {args.items} items, {args.factors} factors, {size / 1e6:.1f} MB\n")
    print("| | median, ms | largest |\n| --- | --- | --- |")
    last = changes[-20:]
    for name, times in (
        (f"a rating, of {args.ratings} one after the other", changes),
        (f"of these the last {len(last)}", last),
        ("a letter in the search field", searches),
        ("read and check the file, until the page stands", loads),
    ):
        print(f"| {name} | {statistics.median(times):.1f} | {max(times):.1f} |")


if __name__ == "__main__":
    main()
