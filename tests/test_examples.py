"""The examples run on tiny made-up ratings, print their table and write a figure."""

import importlib
from pathlib import Path

import pytest

pytest.importorskip("matplotlib")

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
TINY = ["--shape", "80", "25", "--n-components", "2"]
# Arguments, and words of the table: its columns and its last row.
RUNS = {
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
}


def test_all_examples_are_run():
    assert {path.stem for path in EXAMPLES.glob("plot_*.py")} == set(RUNS)


# an older matplotlib with a newer pyparsing warns of itself when it is imported
@pytest.mark.filterwarnings("ignore::DeprecationWarning:(matplotlib|pyparsing)")
@pytest.mark.parametrize("name", RUNS)
def test_example_runs(name, tmp_path, capsys, monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLES)
    monkeypatch.setenv("MPLCONFIGDIR", str(tmp_path))
    arguments, words = RUNS[name]
    output = tmp_path / "figure.png"
    importlib.import_module(name).main([*TINY, *arguments, "--output", str(output)])
    printed = capsys.readouterr()
    assert all(word in printed.out for word in words)
    assert "nan" not in printed.out
    assert output.read_bytes().startswith(b"\x89PNG")
