"""The examples: each is a narrative, and those without a picture run and find what they say.

`make docs` runs all of them as they are, and an error or a warning of one ends it.
"""

import ast
import contextlib
import io
import json
import os
import re
import runpy
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

CHECKOUT = Path(__file__).resolve().parents[1]
EXAMPLES = {path.stem: path for path in sorted((CHECKOUT / "examples").glob("*.py"))}
# Whatever an example may import; programs that are more than a narrative say what else they need.
LIBRARIES = {"skdpmf", "matplotlib", "numpy", "pandas", "pathlib", "scipy", "sklearn"}
PROGRAMS = {
    "dask_cluster": {"dask", "tempfile"},
    "local_devices": {"http", "json", "threading"},
    "serve_model": {"io", "json", "socketserver", "urllib", "wsgiref"},
}


@pytest.fixture
def ran(tmp_path, monkeypatch):
    """A function that runs an example alone in an empty folder; its names, and what it printed."""
    pytest.importorskip("matplotlib").use("agg")
    monkeypatch.chdir(tmp_path)

    def run(name):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            names = runpy.run_path(shutil.copy(EXAMPLES[name], tmp_path), run_name="__main__")
        return SimpleNamespace(**names), printed.getvalue()

    return run


@pytest.mark.parametrize("name", EXAMPLES)
def test_is_a_narrative(name):
    source = EXAMPLES[name].read_text(encoding="utf-8")
    tree = ast.parse(source)
    title, line, *_ = ast.get_docstring(tree).splitlines()
    assert line == "=" * len(title)
    assert len(re.findall(r"^# %%$", source, re.MULTILINE)) >= 3
    modules = set()
    for node in ast.walk(tree):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module] if isinstance(node, ast.ImportFrom) else []
        modules |= {module.partition(".")[0] for module in names}
    assert modules <= LIBRARIES | PROGRAMS.get(name, set())
    assert not modules & set(EXAMPLES)  # a downloaded example lies alone in its folder
    assert name in PROGRAMS or len(source.splitlines()) <= 120


DOWNLOADS = CHECKOUT / "docs" / "_build" / "html" / "_downloads"


def same_program(notebook, source):
    """Say whether the code cells of a notebook are the program without its docstring."""
    cells = json.loads(notebook)["cells"]
    code = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    tree = ast.parse(source)
    del tree.body[0]
    return ast.dump(ast.parse(code)) == ast.dump(tree)


@pytest.mark.skipif(not DOWNLOADS.is_dir(), reason="needs docs/_build (make docs)")
def test_notebooks_are_the_same_programs():
    notebooks = {path.stem: path for path in DOWNLOADS.glob("*/*.ipynb")}
    scripts = {path.stem: path for path in DOWNLOADS.glob("*/*.py")}
    if os.environ.get("CI"):  # elsewhere the pages may be older than the examples
        assert {name: path.read_text() for name, path in scripts.items()} == {
            name: path.read_text() for name, path in EXAMPLES.items()
        }
    assert notebooks.keys() == scripts.keys()
    for name, path in notebooks.items():
        assert same_program(path.read_text(), scripts[name].read_text()), name


def test_first_hour(ran, tmp_path):
    found, printed = ran("first_hour")
    titles = found.served.catalogue_.set_index("item")["title"]
    assert found.answer["title"].tolist() == titles.loc[found.answer["item"]].tolist()
    assert not set(found.answer["item"]) & set(found.visitor)
    assert "10,800 ratings of 1,000 users for 60 items" in printed
    assert 0.5 < float(re.search(r"RMSE ([0-9.]+)", printed)[1]) < 1.2
    assert "epsilon = 4 and delta = 1e-05" in (tmp_path / "card.md").read_text(encoding="utf-8")
    assert not found.served.privacy_spent_.unmet


def test_first_hour_needs_thirty_lines_and_no_index():
    source = EXAMPLES["first_hour"].read_text(encoding="utf-8")
    steps = source[source.index("# Load and check") : source.index("# You can draw")]
    code = [line for line in steps.splitlines() if line and not line.startswith("#")]
    assert 10 < len(code) <= 30
    indices = (node.slice for node in ast.walk(ast.parse(steps)) if isinstance(node, ast.Subscript))
    assert not any(type(getattr(index, "value", None)) is int for index in indices)


def test_local_devices(ran):
    found, printed = ran("local_devices")
    assert sum(found.aggregator.n_reports) == found.n_reports == 400
    assert (found.n_repeated, dict(found.aggregator.refused)) == (2, {"duplicate": 20})
    assert "must be at most 0" in printed
