"""The examples: each runs alone, small and as it is, and finds what it says."""

import ast
import contextlib
import importlib
import io
import json
import math
import os
import re
import shutil
import socket
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import norm

from skdpmf import DPItemMeans, PrivacyBudget
from skdpmf.data import make_ratings

pyplot = pytest.importorskip("matplotlib.pyplot")

CHECKOUT = Path(__file__).resolve().parents[1]
EXAMPLES = {path.stem: path for path in sorted((CHECKOUT / "examples").glob("*.py"))}
# Not yet narratives.
for name in (
    "first_hour",
    "plot_choose_epsilon",
    "plot_item_features",
    "plot_local_privacy",
    "plot_personal_levels",
    "plot_pipeline_ledger",
    "plot_private_search",
    "plot_release",
    "plot_tail",
    "serve_model",
):
    del EXAMPLES[name]
for name in (
    "dask_cluster",
    "local_devices",
    "plot_covariance_curve",
    "plot_langevin_and_sgd",
    "plot_linkage",
    "plot_local_figure9",
    "plot_noise_table",
    "plot_privacy_accuracy",
    "plot_spammer",
):
    del EXAMPLES[name]

# What a test makes smaller: settings that stand as literals at the top level of an example.
SMALL = {
    "plot_first_model": {"N_USERS": 400, "N_ITEMS": 60},
}
# Whatever an example may import; programs that are more than a narrative say what else they need.
LIBRARIES = {"skdpmf", "matplotlib", "numpy", "pandas", "pathlib", "scipy", "sklearn"}
PROGRAMS = {}


def program(source, small):
    """Return the tree of an example with smaller settings, whose bare expressions are shown."""
    tree, left, body = ast.parse(source), dict(small), []
    for node in tree.body:
        body.append(node)
        if isinstance(node, ast.Assign):
            for name in {one.id for one in ast.walk(node) if isinstance(one, ast.Name)} & set(left):
                body += ast.parse(f"{name} = {left.pop(name)!r}").body
        elif isinstance(node, ast.Expr) and node is not tree.body[0]:
            # as a notebook shows the last one of a cell
            node.value = ast.Call(ast.Name("_show", ast.Load()), [node.value], [])
    assert not left, f"no such settings: {', '.join(left)}"
    return ast.fix_missing_locations(ast.Module(body, []))


class Found:
    """What an example leaves: its names as attributes, its output and its figures."""

    def __init__(self, names, shown, figures, folder):
        self.__dict__.update(names)
        self._shown, self._figures, self._folder = shown, figures, folder


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """A function that runs an example once, alone in an empty folder, and returns what it left."""
    done = {}

    def run(name):
        if name not in done:
            folder = tmp_path_factory.mktemp(name)
            path = Path(shutil.copy(EXAMPLES[name], folder))  # as it is downloaded
            with pytest.MonkeyPatch.context() as patch:
                patch.chdir(folder)
                patch.setattr(socket.socket, "connect", only_here(socket.socket.connect))
                patch.setattr(pyplot, "show", lambda: None)
                done[name] = execute(path, SMALL.get(name))
        return done[name]

    return run


def execute(path, small=None):
    """Run a file as a program and return what it left; its figures are drawn, not shown."""
    names = {"__name__": "__main__", "_show": sys.displayhook}
    tree = program(path.read_text(encoding="utf-8"), small or {})
    printed = io.StringIO()
    pyplot.close("all")
    with contextlib.redirect_stdout(printed), pyplot.rc_context():
        exec(compile(tree, path, "exec"), names)
        figures = list(map(pyplot.figure, pyplot.get_fignums()))
        for figure in figures:
            figure.canvas.draw()
        pyplot.close("all")
    return Found(names, printed.getvalue(), figures, path.parent)


def only_here(connect):
    """Return a `connect` for sockets that reaches this machine alone."""

    def checked(self, address):
        here = isinstance(address, str | bytes) or address[0] in ("127.0.0.1", "::1", "localhost")
        assert here, f"an example asks {address}"
        return connect(self, address)

    return checked


@pytest.mark.parametrize("name", EXAMPLES)
def test_runs_and_shows_something(name, ran):
    found = ran(name)
    assert found._shown
    assert not re.search(r"\bnan\b|NaN", found._shown)
    assert str(found._folder) not in found._shown
    assert found._figures or not name.startswith("plot_")


@pytest.mark.parametrize("name", EXAMPLES)
def test_is_a_narrative(name):
    source = EXAMPLES[name].read_text(encoding="utf-8")
    tree = ast.parse(source)
    title, line, *_ = ast.get_docstring(tree).splitlines()
    assert line == "=" * len(title)
    assert len(re.findall(r"^# %%$", source, re.MULTILINE)) >= 3
    modules = {
        module.partition(".")[0]
        for node in ast.walk(tree)
        for module in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    allowed = LIBRARIES | PROGRAMS.get(name, set())
    assert modules <= allowed
    assert not modules & set(EXAMPLES)  # a downloaded example lies alone in its folder
    assert name in PROGRAMS or len(source.splitlines()) <= 120


def test_planted_faults_are_noticed(tmp_path, monkeypatch):
    source = '"""T"""\nA, B = 9, 9\nC = [9]\n# %%\nA + B\nprint(C)\n'
    path = tmp_path / "planted.py"
    path.write_text(source)
    assert execute(path)._shown == "18\n[9]\n"
    found = execute(path, {"B": 1, "C": [2]})
    assert (found._shown, found.A) == ("10\n[2]\n", 9)
    with pytest.raises(AssertionError, match="no such settings: D"):
        execute(path, {"D": 1})
    path.write_text('"""T"""\nimport warnings\nwarnings.warn("old")')
    with pytest.raises(UserWarning, match="old"):
        execute(path)
    monkeypatch.setattr(socket.socket, "connect", only_here(socket.socket.connect))
    with socket.socket() as asking, pytest.raises(AssertionError, match="an example asks"):
        asking.connect(("192.0.2.1", 80))


# The notebooks that sphinx-gallery has made of the examples

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


def test_planted_notebooks_are_noticed():
    def notebook(*cells):
        return json.dumps({"cells": [{"cell_type": "code", "source": [code]} for code in cells]})

    source = '"""T"""\nx = 1\n# %%\n# Text.\nprint(x)'
    assert same_program(notebook("x = 1", "print(x)"), source)
    assert not same_program(notebook("x = 1"), source)
    with pytest.raises(SyntaxError):
        same_program(notebook("%matplotlib inline\nx = 1", "print(x)"), source)


# What each example must find, small as it is


def test_first_model(ran):
    found = ran("plot_first_model")
    assert np.all(found.errors["epsilon = 4"] > found.errors["no privacy"])
    assert found.errors.loc["factors", "no privacy"] < found.errors.loc["film means", "no privacy"]
    assert set(found.model.recommend([found.ann])["title"]) < set(found.films["title"])
    assert np.array_equal(found.loaded.predict([found.ann]), found.model.predict([found.ann]))
    assert "Strength: epsilon 4, delta 1e-05" in found._shown


def test_linkage_works_without_noise_and_keeps_its_bound(monkeypatch):
    monkeypatch.syspath_prepend(CHECKOUT / "examples")
    linkage = importlib.import_module("plot_linkage")
    game = linkage.Game(make_ratings(200, 60, random_state=0), n_choices=8, n_known=5, n_games=40)
    exact = game.play(lambda seed: DPItemMeans(PrivacyBudget.nonprivate()), is_private=False)
    assert exact[0].mean(axis=1)[1:].min() > 0.95  # by items: all known, and the film
    budget = PrivacyBudget(4.0, linkage.DELTA)
    right = game.play(lambda seed: DPItemMeans(budget, random_state=seed), is_private=True)
    limit = linkage.bound(4.0, 8)
    # seeded, so without false alarms; with other seeds 2 in 1e4 at most, by 6 shares
    assert right.mean(axis=2).max() < limit + 4.0 * math.sqrt(limit * (1.0 - limit) / 40)


@pytest.mark.parametrize("mu", [0.1, 0.5, 1.0, 3.0])
def test_no_threshold_of_a_gaussian_moves_further_than_allowed(mu, monkeypatch):
    monkeypatch.syspath_prepend(CHECKOUT / "examples")
    allowed = importlib.import_module("plot_spammer").allowed
    shares = []
    for threshold in (-1.0, 0.0, mu / 2, 1.0, 2.0 + mu):
        # predictions 1 or 5, as N(0, 1) or N(mu, 1) is above
        before, after = norm.sf(threshold), norm.sf(threshold - mu)
        spread = 4.0 * math.sqrt(before * (1.0 - before))
        shares.append(4.0 * (after - before) / allowed(spread, mu))
    assert max(shares) < 1.0 + 1e-12
    assert max(shares) > 0.75  # there is little to gain
