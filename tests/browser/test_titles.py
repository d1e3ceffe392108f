"""Titles as the page shows them, and its search, which forgives."""

import json
import subprocess

import pytest

from tests.browser.common import FOLDER, NODE, needs_node

pytestmark = needs_node

_DRIVER = """
const { readTitle, TitleIndex } = require(process.argv[1]);
const { titles, queries } = JSON.parse(require("node:fs").readFileSync(0, "utf8"));
const index = new TitleIndex(titles);
const found = queries.map((query) => index.find(query, 5).map((j) => titles[j]));
process.stdout.write(JSON.stringify({ found, read: titles.map(readTitle) }));
"""
TITLES = [
    "Shawshank Redemption, The (1994)",
    "Matrix, The (1999)",
    "Spider-Man (2002)",
    "Amélie (2001)",
    "Schindler's List (1993)",
    "Star Wars: Episode IV - A New Hope (1977)",
    "Good, the Bad and the Ugly, The (1966)",
    "City of Lost Children, The (Cité des enfants perdus, La) (1995)",
    "Thelma & Louise (1991)",
    "Straße, Die",
    "Ødegård",
    "Godfather, The (1972)",
    "Godfather: Part II, The (1974)",
    "2001: A Space Odyssey (1968)",
    "Avventura, L' (1960)",
    "???",
    "בננות",
    "1984 (1984)",
    "(1999)",
    "Ran",
    "Red Dust",
]


def search(queries, titles=TITLES):
    done = subprocess.run(
        [NODE, "-e", _DRIVER, str(FOLDER / "titles.js")],
        input=json.dumps({"titles": titles, "queries": queries}).encode(),
        capture_output=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr.decode()
    return json.loads(done.stdout)


FIRST = {
    "shawshenk redemtion": 0,
    "the shawshank redemption film": 0,
    "matrx": 1,
    "spiderman": 2,
    "ameile": 3,
    "shindler's list": 4,
    "star wras": 5,
    "cite des enfants": 7,
    "thelma and luise": 8,
    "strasse": 9,
    "godfather": 11,
    "godfather 2 part ii": 12,
    "??": 15,
    "בננות": 16,
    "1984": 17,
}


def test_mistyped_titles_are_found():
    found = search(list(FIRST))["found"]
    firsts = {query: titles[:1] for query, titles in zip(FIRST, found, strict=True)}
    assert firsts == {query: [TITLES[place]] for query, place in FIRST.items()}


def test_what_is_not_there_is_not_found():
    found = search(["", "  ", "xyzzy", "qqq", "zz top", "!", "rxq"])["found"]
    assert found == [[]] * 7


def test_right_words_find_no_others():
    """Forgiveness begins where nothing fits."""
    assert search(["red"])["found"] == [["Red Dust", "Shawshank Redemption, The (1994)"]]
    assert search(["ran"])["found"] == [["Ran"]]


def test_names_and_years():
    names = {
        "Shawshank Redemption, The (1994)": ("The Shawshank Redemption", "1994"),
        "Avventura, L' (1960)": ("L'Avventura", "1960"),
        "City of Lost Children, The (Cité des enfants perdus, La) (1995)": (
            "The City of Lost Children",
            "1995",
        ),
        "Good, the Bad and the Ugly, The (1966)": ("The Good, the Bad and the Ugly", "1966"),
        "1984 (1984)": ("1984", "1984"),
        "(1999)": ("(1999)", "1999"),
        "???": ("???", ""),
        "2001: A Space Odyssey (1968)": ("2001: A Space Odyssey", "1968"),
    }
    read = dict(zip(TITLES, search([])["read"], strict=True))
    assert {title: (read[title]["name"], read[title]["year"]) for title in names} == names


@pytest.mark.parametrize(
    "title", ["x" * 100_000, "( " * 50_000, " " * 100_000 + "x", "a, The" * 9999]
)
def test_a_hostile_title_costs_little(title):
    """A regular expression that goes back and forth would take minutes."""
    said = search(["x" * 100_000, "the shawshenk"], [*TITLES, title])
    assert len(said["read"][-1]["name"]) <= 300
