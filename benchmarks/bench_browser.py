"""Time of a change on the page of `skdpmf/browser/`, in headless Chromium.

A model of made-up films, 20,000 items with titles and genres and 32 factors (and a bias), is loaded
by http from this machine. Then a visitor gives three ratings, which make the first list, forgets
them and begins again; rates 100 items of the list, one after the other; and types into the search
field. A change is everything from the event to the new layout: fold-in, all scores, the best
twelve, three rows of similar items, the posters. Prints a Markdown table of medians.

    python benchmarks/bench_browser.py --items 20000 --factors 32
"""

import argparse
import statistics
import sys
import tempfile
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(CHECKOUT))  # for tests.browser: hence the late imports

from skdpmf import CacheSGDFactorizer  # noqa: E402
from skdpmf._page import page_files, write_page  # noqa: E402
from skdpmf.data import make_ratings  # noqa: E402
from tests.browser.common import Server  # noqa: E402
from tests.chromium import browser, page  # noqa: E402

# Each returns milliseconds.
RATE = """const rated = (value) => {
  const star = document.querySelector(`#best .card:not(.is-rated) input[value="${value}"]`);
  star.checked = true;
  const start = performance.now();
  star.dispatchEvent(new Event("change", { bubbles: true }));
  document.body.getBoundingClientRect();
  return performance.now() - start;
};"""
FIRST_LISTS = f"""(count) => {{
  {RATE}
  return Array.from({{ length: count }}, () => {{
    document.querySelector("#forget").click();
    document.body.getBoundingClientRect();
    return [5, 4, 5].map(rated)[2];
  }});
}}"""
CHANGES = f"""(count) => {{
  {RATE}
  return Array.from({{ length: count }}, (_, i) => rated(1 + (i % 5)));
}}"""
SEARCHES = """(queries) => queries.map((query) => {
  const search = document.querySelector("#search");
  search.value = query;
  const start = performance.now();
  search.dispatchEvent(new Event("input"));
  document.body.getBoundingClientRect();
  return performance.now() - start;
})"""
RIGHT = ["t", "th", "the", "the g", "the golden", "the golden isl", "island 1999"]
WRONG = ["the goldn", "the goldne ilsand", "shawshenk redemtion", "paintd", "qwertyuiop"]
READY = "!document.querySelector('#visitor').hidden"
TIME_TO_LOAD = f"""new Promise((resolve) => {{
  const start = performance.now();
  const seen = () => {READY} ? resolve(performance.now() - start) : setTimeout(seen, 1);
  show("again", window.content.slice());
  seen();
}})"""


def site(folder, n_items, n_factors):
    """Write the page and a model."""
    data = make_ratings(300, n_items, density=0.02, random_state=0, as_frame=True)
    model = CacheSGDFactorizer(n_factors, max_iter=1, random_state=0, n_jobs=1).fit(data.matrix)
    model.save(folder / "made", catalogue=data.catalogue)
    write_page(page_files((folder / "made").read_bytes()), folder, overwrite=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--items", type=int, default=20_000)
    parser.add_argument("--factors", type=int, default=32)
    parser.add_argument("--ratings", type=int, default=100)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        site(folder, args.items, args.factors)
        size = (folder / "model.skdpmf").stat().st_size
        with Server(folder) as server, browser() as chromium, page(chromium) as opened:
            # the bytes for reading again come before the page forbids requests
            opened.add_init_script(
                "window.content = fetch('model.skdpmf').then((r) => r.arrayBuffer());"
            )
            opened.goto(server.url)
            opened.wait_for_selector("#visitor")
            firsts = opened.evaluate(FIRST_LISTS, 15)
            changes = opened.evaluate(CHANGES, args.ratings)
            right, wrong = (opened.evaluate(SEARCHES, queries) for queries in (RIGHT, WRONG))
            opened.evaluate("window.content.then((c) => { window.content = c; })")
            loads = [opened.evaluate(TIME_TO_LOAD) for _ in range(7)]
            version = chromium.version
    print(f"Chromium {version}, {args.items} items, {args.factors} factors, {size / 1e6:.1f} MB\n")
    print("| | median, ms | largest |\n| --- | --- | --- |")
    last = changes[-20:]
    for name, times in (
        ("the first list, from the last of three stars", firsts),
        (f"a rating, of {args.ratings} one after the other", changes),
        (f"of these the last {len(last)}", last),
        ("a letter in the search field", right),
        ("a word with mistakes in it", wrong),
        ("read and check the file, until the page stands", loads),
    ):
        print(f"| {name} | {statistics.median(times):.1f} | {max(times):.1f} |")


if __name__ == "__main__":
    main()
