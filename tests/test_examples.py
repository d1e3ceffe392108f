"""The examples: each runs alone, small and as it is, and finds what it says."""

import ast
import contextlib
import io
import json
import math
import os
import re
import shutil
import socket
import sys
from bisect import bisect
from pathlib import Path

import numpy as np
import pytest

pyplot = pytest.importorskip("matplotlib.pyplot")

CHECKOUT = Path(__file__).resolve().parents[1]
EXAMPLES = {path.stem: path for path in sorted((CHECKOUT / "examples").glob("*.py"))}

# What a test makes smaller: settings that stand as literals at the top level of an example.
SMALL = {
    "plot_choose_epsilon": {"N_USERS": 800, "N_ITEMS": 80, "EPSILONS": [1, 4]},
    "plot_first_model": {"N_USERS": 400, "N_ITEMS": 60},
    "plot_item_features": {"N_USERS": 300, "N_ITEMS": 40, "EPSILONS": [1, 8]},
    "plot_local_privacy": {"N_USERS": 3000, "N_ITEMS": 20, "N_GUESSES": 20, "EPSILONS": [1, 8]},
    "plot_personal_levels": {
        "N_USERS": 200,
        "N_ITEMS": 30,
        "SEEDS": range(1),
        "SHARES": [0.0, 0.5],
    },
    "plot_pipeline_ledger": {"N_USERS": 200, "N_ITEMS": 30},
    "plot_private_search": {"N_USERS": 200, "N_ITEMS": 30, "ALPHAS": [0.1, 10.0]},
    "plot_release": {"N_USERS": 120, "N_ITEMS": 20},
    "plot_tail": {"N_USERS": 1500, "N_ITEMS": 80, "N_BUCKETS": 2, "SEEDS": range(1)},
    "plot_covariance_curve": {"SHAPE": (2000, 60), "EPSILONS": [1.0, 16.0]},
    "plot_langevin_and_sgd": {"ROUNDS": [1, 8, 64]},
    "plot_linkage": {"N_GAMES": 8, "EPSILONS": [1.0, 4.0]},
    "plot_local_figure9": {"N_USERS": 400, "N_ITEMS": 50, "ROUNDS": [1, 20]},
    "plot_noise_table": {"N_ROUNDS": 20, "SIZES": [16, 4096]},
    "plot_privacy_accuracy": {"N_USERS": 400, "N_ITEMS": 60, "EPSILONS": [1.0, 4.0, 16.0, 64.0]},
    "plot_spammer": {"EPSILONS": [4.0, 1.0], "N_FITS": 3},
}
# Whatever an example may import; programs that are more than a narrative say what else they need.
LIBRARIES = {"skdpmf", "matplotlib", "numpy", "pandas", "pathlib", "scipy", "sklearn"}
PROGRAMS = {
    "dask_cluster": {"dask", "joblib", "tempfile"},
    "local_devices": {"http", "json", "threading"},
    "serve_model": {"io", "json", "socketserver", "urllib", "wsgiref"},
}
ELSEWHERE = {"dask_cluster"}  # tests/distributed/test_processes.py runs it, as a program


def program(source, small):
    """Return the tree of an example with smaller settings, which shows what a notebook shows:
    the expression at the end of a cell.
    """
    tree, left, body = ast.parse(source), dict(small), []
    cells = [number for number, line in enumerate(source.splitlines(), 1) if line == "# %%"]
    ends = [bisect(cells, node.lineno) for node in tree.body[1:]] + [math.inf]
    for node, end in zip(tree.body, ends, strict=True):
        body.append(node)
        if isinstance(node, ast.Assign):
            for name in {one.id for one in ast.walk(node) if isinstance(one, ast.Name)} & set(left):
                body += ast.parse(f"{name} = {left.pop(name)!r}").body
        elif (
            isinstance(node, ast.Expr)
            and node is not tree.body[0]
            and bisect(cells, node.lineno) < end
        ):
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


@pytest.mark.parametrize("name", sorted(EXAMPLES.keys() - ELSEWHERE))
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
    source = '"""T"""\nA, B = 9, 9\nC = [9]\nA - B\nA + B\n# %%\nprint(C)\n'
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


def test_first_hour(ran):
    found = ran("first_hour")
    assert (
        found.answer["title"].tolist()
        == found.served.catalogue_.set_index("item").loc[found.answer["item"], "title"].tolist()
    )
    assert not set(found.answer["item"]) & set(found.visitor)
    assert "10800 ratings of 1000 users for 60 items" in found._shown
    assert 0.5 < float(re.search(r"RMSE ([0-9.]+)", found._shown)[1]) < 1.2
    card = (found._folder / "card.md").read_text(encoding="utf-8")
    assert "epsilon = 4 and delta = 1e-05" in card
    assert not found.served.privacy_spent_.unmet


def test_first_hour_needs_thirty_lines_and_no_index():
    source = EXAMPLES["first_hour"].read_text(encoding="utf-8")
    steps = source[source.index("# Load and check") : source.index("# The same as a picture")]
    code = [line for line in steps.splitlines() if line and not line.startswith("#")]
    assert 10 < len(code) <= 30
    indices = (node.slice for node in ast.walk(ast.parse(steps)) if isinstance(node, ast.Subscript))
    assert not any(type(getattr(index, "value", None)) is int for index in indices)


def test_first_model(ran):
    found = ran("plot_first_model")
    private, exact = found.errors.loc["factors"]
    assert exact < min(private, found.errors.loc["film means", "no privacy"])
    assert set(found.model.recommend([found.ann])["title"]) < set(found.films["title"])
    assert np.array_equal(found.loaded.predict([found.ann]), found.model.predict([found.ann]))
    assert "Strength: epsilon 4, delta 1e-05" in found._shown


def test_choose_epsilon(ran):
    found = ran("plot_choose_epsilon")
    epsilons = np.array(found.EPSILONS)
    any_noise = (np.exp(epsilons) + found.DELTA) / (1.0 + np.exp(epsilons))
    assert np.all(found.protection["guesses right"].between(0.5, any_noise))
    assert np.all(found.protection.diff().dropna() > 0.0)
    assert found.cost.loc["none", "factors"] < found.cost["factors"][found.EPSILONS].min()
    assert found.privacy_spent(found.private).epsilon > max(epsilons)
    assert re.search("4 private fits together: epsilon [0-9.]+$", found._shown)


def test_tail(ran):
    found = ran("plot_tail")
    assert len(found.found) == 2
    assert np.all(found.found["no privacy"] < found.found["ε = 1"])
    assert np.all(found.influence["mu = 0"] == 0.0)
    assert np.all(found.influence["mu = 0.5"] != 0.0)


def test_personal_levels(ran):
    found = ran("plot_personal_levels")
    assert found.promises["epsilon"].tolist() == pytest.approx([4.0, 1.0, 0.0], rel=1e-3)
    assert found.promises["guessed right"].round(2).tolist() == [0.68, 0.55, 0.5]
    assert found.costs["their own level"][0.0] == found.costs["left out"][0.0]
    assert found.costs["their own level"][0.0] < found.everybody


def test_local_privacy(ran):
    found = ran("plot_local_privacy")
    assert found.right["Ann or Bob?"] > 0.5
    assert found.right["no attacker is better than"] == pytest.approx(np.exp(4) / (1 + np.exp(4)))
    assert np.corrcoef(found.exact.item_means_, found.model.item_means_)[0, 1] > 0.2
    server, nobody = found.errors["a server is trusted"], found.errors["nobody is trusted"]
    assert server[1] < nobody[1]
    assert 0.5 < found.baseline < 1.5


def test_private_search(ran):
    found = ran("plot_private_search")
    assert "Planned search" in found._shown
    assert found.search.best_params_["alpha"] in found.ALPHAS
    trial, search, released, stock = found.prices
    assert trial < search <= found.budget.epsilon < released < stock
    assert found.prices.index[-1] == "GridSearchCV, 11 fits"
    assert 0.5 < found.found < 1.5


def test_pipeline_ledger(ran):
    found = ran("plot_pipeline_ledger")
    spent = [week["spent so far"] for week in found.weeks]
    assert len(spent) == 4
    assert 1.0 < spent[0] < spent[1] < spent[2] < spent[3] < found.LIMIT.epsilon
    assert f"Refused; the largest that fits is epsilon {found.largest.epsilon:.2f}" in found._shown
    assert [entry["status"] for entry in found.report.entries] == ["done"] * 9
    assert 0.0 <= found.report.left < 1e-3 * found.report.allowed.number


def test_release(ran):
    found = ran("plot_release")
    assert "Refused; the largest that fits is epsilon" in found._shown
    assert [entry["status"] for entry in found.ledger.report().entries] == ["done"] * 3
    assert 1 < found.pipeline[1].support_.sum() < 30
    assert found.spent.epsilon < 6.0
    assert found.report.checks
    assert "Privacy audit: nothing found" in found._shown
    assert found.reached["by repetition"] <= found.report.epsilon * 1.0001
    card = (found._folder / "card.md").read_text(encoding="utf-8")
    stated = float(re.search(r"\| 1e-05 \| ([0-9.]+) \|", card)[1])
    assert stated == pytest.approx(found.spent.epsilon, abs=1e-3)
    assert json.loads((found._folder / "card.json").read_text())


def test_item_features(ran):
    found = ran("plot_item_features")
    assert found.errors.loc[1, "with genres"] < found.errors.loc[1, "without"]
    assert found.together > 0.3
    assert "The guarantee holds if: The item features are public" in found._shown


def test_serve_model(ran):
    found = ran("serve_model")
    assert len(found.answer["items"]) == 3
    assert found.answer["unknown"] == 1
    titles = found.films.catalogue.set_index("item")["title"]
    assert all(entry["title"] == titles[entry["item"]] for entry in found.answer["items"])
    assert len(found.near) == 5
    assert "Strength: epsilon 4" in found._shown


def test_linkage(ran):
    found = ran("plot_linkage")
    assert "Eve says: suspect 17 joined, and hides Endless Shadow (1994)." in found._shown
    assert np.all(found.shares.loc["no privacy"] == 100.0)
    private = found.shares.drop("no privacy")
    guesses, limits = private[["who joined", "which film"]], private["limit of any attack"]
    # seeded, so without false alarms; with other seeds 3 in 1e2 at most, of 8 games
    assert np.all(guesses.sub(limits, axis=0) < 26.0)
    assert limits.round(1).tolist() == [3.7, 12.9]


def test_spammer(ran):
    found = ran("plot_spammer")
    places = found.found["place"].mean().unstack()
    assert np.all(places.loc["100 copies"] < 10.0)
    assert np.all(places.loc["nobody"] > places.loc["100 copies"] + 50.0)
    assert np.all(found.rise.loc["100 copies"] > 0.5)
    alone = found.one[["whale", "1 copy"]].loc["ε = 1"]
    assert alone.abs().max() < found.one.loc["ε = 1", "limit"] + 3.0 * found.spread["ε = 1"]


def test_local_figure9(ran):
    errors = ran("plot_local_figure9").errors
    with_bits, without = errors["with the bits"], errors["without any bit"]
    assert np.allclose(with_bits, without, atol=0.01)
    assert without.iloc[1] < without.iloc[0] - 0.5
    assert ran("plot_local_figure9").report < without.min()


def test_noise_table(ran):
    results = ran("plot_noise_table").results
    assert np.ptp(results["test error"]) < 0.03
    small, large, exact = results["largest correlation"]
    assert small > 0.2 > 0.12 > max(large, exact)


def test_langevin_and_sgd(ran):
    hidden, training = (ran("plot_langevin_and_sgd").table[part] for part in ("hidden", "training"))
    descent, average = hidden["gradient descent"], hidden["Langevin, average"]
    assert descent[64] > descent[1] > average[64]
    assert training["gradient descent"][64] < training["Langevin, average"][64]
    assert average[64] < hidden["Langevin, one draw"][64]


def test_covariance_curve(ran):
    found = ran("plot_covariance_curve")
    assert np.all(found.errors["one rating"] < found.errors["one person"])
    assert found.limits["no privacy"] < found.errors.min(axis=None)
    assert np.all(found.covered["one rating"] >= found.covered["one person"])


def test_privacy_accuracy(ran):
    found = ran("plot_privacy_accuracy")
    assert np.all(found.curves["private steps"] < found.curves["one draw"])
    assert found.levels["no privacy"] < found.curves.min(axis=None)
    assert "The chain has converged" in found._shown
    assert "of epsilon 16, spent: 2\n" in found._shown


def test_local_devices(ran):
    found = ran("local_devices")
    assert sum(found.aggregator.n_reports) == found.n_reports == 400
    assert (found.n_repeated, dict(found.aggregator.refused)) == (2, {"duplicate": 20})
    assert "must be at most 0" in found._shown
