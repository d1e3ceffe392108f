"""The examples run on tiny made-up ratings, print their table and write a figure."""

import ast
import importlib
import math
import re
import shutil
import sys
from pathlib import Path

import pandas as pd
import pytest
from scipy.stats import norm

from skdpmf import DPItemMeans, PrivacyBudget
from skdpmf.data import make_ratings

pyplot = pytest.importorskip("matplotlib.pyplot")

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
TINY = ["--shape", "80", "25", "--n-components", "2"]
# Arguments, and words of the table: its columns and its last row.
RUNS = {
    "plot_first_model": (
        [],
        ["each user's own mean", "recommends the same: yes", "Guarantee"],
    ),
    "plot_choose_epsilon": (
        ["--epsilons", "1", "4", "--splits", "2"],
        ["this noise, %", "private fits together"],
    ),
    "plot_tail": (
        ["--epsilons", "4", "16", "--kept", "4", "--buckets", "2", "--seeds", "1"],
        ["factors, no privacy", "weights, μ = 0.5"],
    ),
    "plot_personal_levels": (
        ["--strict", "2", "--loose", "8", "--seeds", "1"],
        ["guessed right, %", "100%"],
    ),
    "plot_privacy_accuracy": (
        ["--epsilons", "1", "4", "--draw-epsilons", "4", "64", "--sweeps", "4"],
        ["paper's epsilon", "own mean"],
    ),
    "plot_langevin_and_sgd": (
        ["--rounds", "5", "--burn-in", "2"],
        ["SGD train", "average test"],
    ),
    "plot_covariance_curve": (
        ["--epsilons", "1", "64"],
        ["items covered", "no privacy"],
    ),
    "plot_noise_table": (
        ["--powers", "4", "6", "--rounds", "4", "--n-draws", "2", "--seeds", "2"],
        ["2^6", "exact"],
    ),
    "plot_release": (
        [],
        ["One fit more is refused", "items kept", "nothing found"],
    ),
    "plot_linkage": (
        ["--choices", "5", "--known", "3", "--games", "3", "--epsilons", "4"],
        ["which film", "CacheSGDFactorizer", "guessing"],
    ),
    "plot_spammer": (
        ["--users", "1", "3", "--seeds", "2", "--epsilons", "4"],
        ["allowed", "whale", "3 users"],
    ),
    "plot_local_figure9": (
        ["--rounds", "1", "3"],
        ["no reports", "LocalDPGDDR"],
    ),
    "plot_local_privacy": (
        ["--epsilons", "1", "8", "--guesses", "20"],
        ["Ann or Bob?", "report of a device", "server is trusted", "exact item means"],
    ),
    "plot_private_search": (
        ["--trials", "2", "--searches", "1"],
        ["Planned search", "GridSearchCV, 26 fits", "search 1"],
    ),
    "plot_item_features": (
        ["--epsilons", "1", "8"],
        ["with genres", "It holds if: The item features are public", "new films: predictions"],
    ),
    "plot_pipeline_ledger": (
        [],
        ["week 4", "One more is refused. BudgetExceededError", "9 done"],
    ),
}


def test_all_examples_are_run():
    assert {path.stem for path in EXAMPLES.glob("plot_*.py")} == set(RUNS)


def test_each_example_needs_no_other():
    """A downloaded example lies alone in its folder; `test_example_runs` runs it so."""
    names = {path.stem for path in EXAMPLES.glob("*.py")}
    imports = re.compile(r"^ *(?:import|from) +(\w+)", re.MULTILINE)
    used = {name: {*imports.findall((EXAMPLES / f"{name}.py").read_text())} for name in names}
    assert {name: found & names for name, found in used.items() if found & names} == {}


@pytest.mark.parametrize("name", RUNS)
def test_example_runs(name, tmp_path, capsys, monkeypatch):
    shutil.copy(EXAMPLES / f"{name}.py", tmp_path)  # as it is downloaded: nothing beside it
    monkeypatch.syspath_prepend(tmp_path)
    sys.modules.pop(name, None)
    arguments, words = RUNS[name]
    output = tmp_path / "figure.png"
    importlib.import_module(name).main([*TINY, *arguments, "--output", str(output)])
    pyplot.close("all")
    printed = capsys.readouterr()
    assert all(word in printed.out for word in words)
    assert "nan" not in printed.out
    assert output.read_bytes().startswith(b"\x89PNG")


def test_the_first_example_needs_thirty_lines_and_no_index(tmp_path, capsys, monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLES)
    example = importlib.import_module("first_hour")
    tree = ast.parse(Path(example.__file__).read_text())
    steps = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    steps += next(node for node in tree.body if getattr(node, "name", "") == "main").body[1:]
    assert sum(node.end_lineno - node.lineno + 1 for node in steps) <= 30
    indices = (
        node.slice for node in ast.walk(ast.Module(steps, [])) if isinstance(node, ast.Subscript)
    )
    assert not any(type(getattr(index, "value", None)) is int for index in indices)

    example.make_tables(tmp_path)
    served = example.main(tmp_path)
    films = pd.read_csv(tmp_path / "films.csv").set_index("item")["title"]
    visitor = {"m7": 5.0, "m9": 1.0}
    table = served.recommend(visitor, n=8)
    assert table["title"].tolist() == films[table["item"]].tolist()
    assert not set(table["item"]) & set(visitor)
    printed = capsys.readouterr().out
    shown = [line for line in printed.splitlines() if any(title in line for title in films)]
    assert len(shown) == 5
    assert "10800 ratings of 1000 users for 60 items" in printed
    assert 0.5 < float(re.search(r"RMSE ([0-9.]+)", printed)[1]) < 1.2
    card = (tmp_path / "card.md").read_text()
    assert "epsilon = 4 and delta = 1e-05" in card
    assert not served.privacy_spent_.unmet


def test_linkage_works_without_noise_and_keeps_its_bound(monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLES)
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
    monkeypatch.syspath_prepend(EXAMPLES)
    allowed = importlib.import_module("plot_spammer").allowed
    shares = []
    for threshold in (-1.0, 0.0, mu / 2, 1.0, 2.0 + mu):
        # predictions 1 or 5, as N(0, 1) or N(mu, 1) is above
        before, after = norm.sf(threshold), norm.sf(threshold - mu)
        spread = 4.0 * math.sqrt(before * (1.0 - before))
        shares.append(4.0 * (after - before) / allowed(spread, mu))
    assert max(shares) < 1.0 + 1e-12
    assert max(shares) > 0.75  # there is little to gain
