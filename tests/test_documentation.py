"""The documentation: its code runs and prints what it says, its links lead somewhere."""

import contextlib
import doctest
import io
import re
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[1]
DOCS = CHECKOUT / "docs"
MADE = {"_build", "auto_examples", "generated"}  # by Sphinx
SOURCES = {
    path.relative_to(CHECKOUT).as_posix(): path
    for path in sorted([*CHECKOUT.glob("*.md"), *DOCS.rglob("*.md"), *DOCS.rglob("*.rst")])
    if not MADE & set(path.parts) and "_templates" not in path.parts
}
FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
EXPECTED = re.compile(r"\n\n```text\n(.*?)^```$", re.MULTILINE | re.DOTALL)
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def code_blocks(text):
    """Yield the Python of a page, the line where it begins, and the output that follows it."""
    for block in FENCE.finditer(text):
        if block[1] == "python":
            expected = EXPECTED.match(text, block.end())
            line = text.count("\n", 0, block.start(2))
            yield block[2], line, expected and expected[1]


def run_page(text, name):
    """Execute the blocks of a page one after another, in one namespace."""
    namespace = {}
    for code, line, expected in code_blocks(text):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile("\n" * line + code, name, "exec"), namespace)
        if expected is not None:
            found = printed.getvalue()
            assert doctest.OutputChecker().check_output(expected, found, OPTIONS), (
                f"{name}:{line}: prints\n{found}and the page says\n{expected}"
            )


PAGES = [
    name
    for name, path in SOURCES.items()
    if path.suffix == ".md" and any(code_blocks(path.read_text(encoding="utf-8")))
]


@pytest.mark.parametrize("name", PAGES)
def test_code_runs(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # pages write ledgers and stores
    run_page(SOURCES[name].read_text(encoding="utf-8"), name)


def test_pages_with_code_are_found():
    assert {"README.md", "docs/getting-started.md", "docs/guide/local.md"} <= set(PAGES)
    # what is not in Markdown is not run
    rst = [path for path in SOURCES.values() if path.suffix == ".rst"]
    assert rst
    assert not [path for path in rst if "code-block:: python" in path.read_text(encoding="utf-8")]


def anchors(text):
    """Return the anchors of a page's headings, as they are made on GitHub and by MyST."""
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def links(text):
    """Yield the targets of a page's links and pictures within the project."""
    plain = re.sub(r"`[^`\n]*`", "", FENCE.sub("", text))
    yield from re.findall(r"\]\(<?(?!https?:|mailto:)([^)\s>]+)", plain)
    yield from re.findall(r'\bsrc(?:set)?="(?!https?:)([^"\s]+)"', plain)
    yield from (f"/{name}" for name in re.findall(r":doc:`(?:[^`<]*<)?/?([\w\-/]+)>?`", text))


def target_of(link, page):
    """Return the file that a link of a page leads to, or None."""
    path = (DOCS / link.lstrip("/") if link.startswith("/") else page.parent / link).resolve()
    if path.parent.name == "auto_examples":
        script = CHECKOUT / "examples" / f"{path.name}.py"
        return script if script.exists() or path.name == "index" else None
    candidates = [path, path.with_suffix(".md"), path.with_suffix(".rst")]
    return next((one for one in candidates if one.exists()), None)


def broken_links(text, page):
    """Return the links of a page that lead nowhere."""
    broken = []
    for link in links(text):
        name, _, anchor = link.partition("#")
        target = target_of(name, page) if name else page
        if target is None:
            broken.append(link)
        elif anchor:
            there = text if target == page else target.read_text(encoding="utf-8")
            if anchor not in anchors(there):
                broken.append(link)
    return broken


def test_links_lead_somewhere():
    found = {
        name: broken
        for name, path in SOURCES.items()
        if (broken := broken_links(path.read_text(encoding="utf-8"), path))
    }
    assert not found


@pytest.mark.parametrize(
    "text",
    [
        "[a](nowhere.md)",
        "![a](images/nowhere.png)",
        '<source srcset="images/nowhere.png"><img src="images/hero.png">',
        "[a](api.rst#nowhere)",
        "# Here\n[a](#there)",
        "[a](auto_examples/nowhere)",
        "see :doc:`nowhere` and :doc:`the proofs <proofs>`",
    ],
)
def test_planted_broken_link_is_noticed(text):
    assert len(broken_links(text, DOCS / "page.md")) == 1


def unmeasured_in(text, page):
    """Return the numbers of three digits of a text that a benchmark's page does not have."""
    numbers = re.findall(r"(?<![\d,])[01]?\.\d{4}\b", (DOCS / page).read_text(encoding="utf-8"))
    measured = [float(number) for number in numbers]
    return [
        (page, number)
        for number in re.findall(r"(?<!\d)[01]?\.\d{3}\b", text)
        if not any(abs(float(number) - one) < 0.00051 for one in measured)
    ]


def cells(page, *first):
    """Return the cells behind the given ones in the first such row of a benchmark."""
    text = re.sub(r"[*`\[\] %]|\(.*?\)", "", (DOCS / "benchmarks" / page).read_text("utf-8"))
    rows = (line.strip("|").split("|") for line in text.splitlines())
    return next(row[len(first) :] for row in rows if row[: len(first)] == [*first])


@pytest.mark.parametrize("name", ["AdaptiveWeightALS", "DPMFSampler", "DPItemMeans", "LocalDPGDDR"])
def test_numbers_of_the_choice_were_measured(name):
    errors, recalls = cells("item-features.md", name, "none"), cells("lists.md", name)
    shares = [(1.039 - float(errors[n])) / (1.039 - 0.8295) for n in (1, 2, 5)]
    measured = [f"{abs(100 * x):.0f}" for x in (*shares, *(float(recalls[n]) for n in (0, 1, 3)))]
    assert cells("../choosing.md", name)[:6] == measured


def test_numbers_of_the_readme_were_measured():
    text = SOURCES["README.md"].read_text(encoding="utf-8")
    rows = re.findall(r"^\| .*\|$", text, re.MULTILINE)
    beside = [row for row in rows if "public-people" in row]
    table = "\n".join(row for row in rows if row not in beside)
    assert unmeasured_in("\n".join(beside), "benchmarks/public.md") == []
    page = "benchmarks/item-features.md"
    assert f"(docs/{page})" in text
    assert len(re.findall(r"\.\d{3}\b", table)) > 15
    assert unmeasured_in(table, page) == []
    assert unmeasured_in(table.replace(".923", ".723"), page) == [(page, ".723")]
