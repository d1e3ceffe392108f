"""The benchmarks: every command parses, every entry has a page, and results say how they came."""

import importlib
import json
import re
import shlex
import sys
from pathlib import Path

import pytest

from . import house

CHECKOUT = Path(__file__).resolve().parents[1]
BENCHMARKS, PAGES = CHECKOUT / "benchmarks", CHECKOUT / "docs" / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))  # scripts, not a package

import run  # noqa: E402
from planted_bugs import MUTANTS  # noqa: E402
from render import RESULTS, result_lines  # noqa: E402

ENTRIES = run.entries()
NAMES = [entry.name for entry in ENTRIES]
# Modules that measure nothing by themselves.
TOOLS = {"figures", "harness", "memory", "planted_bugs", "plots", "published_recipe"}
TOOLS |= {"ratings", "render", "run", "sgd_solvers", "shin_rounds"}
TOOLS |= {"bench_index", "bench_sweeps"}  # only pages have their results


@pytest.fixture
def script(monkeypatch):
    """Import a script, as if no peer were installed and no ratings were at hand."""
    monkeypatch.delenv("SKDPMF_DATA", raising=False)
    for name in ("surprise", "cornac", "implicit"):
        monkeypatch.setitem(sys.modules, name, None)
    return importlib.import_module


def problem(words):
    """Why a script does not take these words, None if it does."""
    name, *arguments = words
    if not (BENCHMARKS / f"{name}.py").is_file():
        return f"no script {name}"
    options = getattr(importlib.import_module(name), "PARSER", None)
    if options is None:  # one that has a parser of its own
        return None if name == "run" else f"{name} has no PARSER"
    try:
        options.parse_args(arguments)
    except SystemExit as error:
        return f"{' '.join(words)}: {error}"
    return None


def commands_of_pages():
    """The commands in indented lines of all pages, without what is before `python`."""
    pages = [*(CHECKOUT / "docs").rglob("*.md"), CHECKOUT / "README.md"]
    for path in pages:
        text = path.read_text(encoding="utf-8").replace("\\\n", " ")
        for line in re.findall(r"python benchmarks/([^`\n]+)", text):
            name, _, rest = line.partition(".py")
            yield [name, *shlex.split(rest.split("[")[0].split("#")[0])]


def test_every_command_of_an_entry_and_of_a_page_parses(capsys):
    commands = [e.arguments(full) for e in ENTRIES for full in (False, True)]
    commands = [words for words in commands if words is not None]
    scripts = {words[0] for words in commands}
    assert {p.stem for p in BENCHMARKS.glob("*.py")} - TOOLS == scripts
    pages = list(commands_of_pages())
    assert len(pages) > 20
    assert [found for words in (*commands, *pages) if (found := problem(words))] == []
    for wrong in (["bench_nothing"], ["bench_utility", "--nothing", "1"], ["harness"]):
        assert problem(wrong)
    assert "unrecognized" in capsys.readouterr().err


def test_bugs_can_be_planted():
    """Whoever changes the line of a bug changes the bug."""
    assert len(MUTANTS) > 25
    files = [CHECKOUT / "skdpmf" / bug.file for bug in MUTANTS]
    texts = [
        f.read_text(encoding="utf-8").count(b.old) for f, b in zip(files, MUTANTS, strict=True)
    ]
    assert [bug.name for bug, n in zip(MUTANTS, texts, strict=True) if n != 1] == []
    places = {place for bug in MUTANTS for place in bug.tests.split()}
    assert [place for place in places if not (CHECKOUT / "tests" / place).exists()] == []


FIELDS = {
    "entry", "source", "page", "run", "command", "state", "reason", "exit_status", "seconds",
    "seeds", "date", "commit", "clean", "busy", "machine", "versions", "tables", "closing",
}  # fmt: skip


def result_violations(text, entry, full):
    """What is wrong with the text of a file of results."""
    result, found = json.loads(text), house.path_violations("", text)
    found += [f"path {name}" for name in re.findall(r"(?<![\w.])/(?:tmp|usr|Users)/", text)]
    if set(result) != FIELDS:
        return [*found, f"fields {sorted(FIELDS ^ set(result))}"]
    # the arguments are those of its day
    told, command = [result["entry"], result["run"]], entry.command(full) or "none"
    if told != [entry.name, "full" if full else "quick"]:
        found.append("not the entry's")
    if (result["command"] or "none").split()[:2] != command.split()[:2]:
        found.append("not the entry's script")
    if not re.fullmatch("[0-9a-f]{40}", result["commit"] or ""):
        found.append("no commit")
    if not {"python", "numpy", "scipy", "numba", "skdpmf"} <= set(result["versions"]):
        found.append("no versions")
    # no more, so that nothing tells whose machine it is
    if set(result["machine"]) != {"processor", "cores", "caches", "memory_gib", "system"}:
        found.append("machine")
    if result["state"] == "done":
        cells = [row for t in result["tables"] for row in (t["columns"], *t["rows"])]
        if not result["tables"] or not all(table["rows"] for table in result["tables"]):
            found.append("no table, or one without rows")
        if not all(isinstance(cell, str) for row in cells for cell in row):
            found.append("cells are not text")
    elif result["state"] not in ("skipped", "failed") or not result["reason"]:
        found.append("no reason")
    return found


def test_results_say_how_they_came():
    known = {entry.name: entry for entry in ENTRIES}
    for path in RESULTS.rglob("*.json"):
        full, text = path.parent.name == "full", path.read_text(encoding="utf-8")
        assert result_violations(text, known[path.stem], full) == [], path
    # what cannot run is there as well, as skipped
    assert {path.stem for path in RESULTS.glob("*.json")} == set(NAMES)


def test_overview_has_all_entries_and_measured_numbers():
    rows = run.overview()
    assert sorted(rows) == sorted(NAMES)
    wrong = []
    for entry in ENTRIES:
        page, finding = PAGES / entry.page, rows[entry.name][1]
        measured = page.read_text(encoding="utf-8")
        numbers = re.findall(r"\d*\.\d{2,}", finding)
        wrong += [(entry.name, number) for number in numbers if number not in measured]
    assert wrong == []
    text = (PAGES / "tables.md").read_text(encoding="utf-8")
    for pattern in (
        r"^## (\S+)$",
        r"^```\{benchmark-results\} (\S+)\n```$",
        r"\[JSON\]\(../../benchmarks/results/(\S+)\.json\)",
    ):
        assert re.findall(pattern, text, re.MULTILINE) == NAMES


SCRIPT = r"""
import os, sys
from pathlib import Path
print("first", os.environ.get("SKDPMF_DATA"))
print()
path = Path(sys.argv[1]).resolve()
print("ratings", path, path.is_file())
print()
print("| k | seconds |\n| ---: | --- |\n| 16 | 1.5* |\n| 32 | \\* |")
print("the end")
sys.exit(int(sys.argv[2]) if len(sys.argv) > 2 else 0)
"""


@pytest.fixture
def runner(tmp_path, monkeypatch):
    """Run entries of a tiny script; return the exit status and the results by name."""
    (tmp_path / "tiny.py").write_text(SCRIPT, encoding="utf-8")
    (tmp_path / "quiet.py").write_text("print('no ratings')", encoding="utf-8")
    (tmp_path / run.RATINGS).write_text("ratings", encoding="utf-8")
    monkeypatch.setenv("SKDPMF_DATA", str(tmp_path))

    def call(*known, full=False):
        folder = tmp_path / "results"
        status = run.main(["--full"] * full, known, folder, tmp_path)
        files = folder.rglob("*.json")
        return status, {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in files}

    call.results = tmp_path / "results"
    return call


def entry(name="tiny", quick=f"tiny {run.RATINGS}", needs=()):
    return run.Entry(name, quick, f"tiny {run.RATINGS} 0 --seeds 3", needs, "Is it?", "page.md")


def test_runner_writes_what_a_script_prints(runner, capfd):
    status, results = runner(entry())
    result = results["tiny"]
    assert (status, result["state"], result["seeds"]) == (0, "done", [0])
    assert result_violations(json.dumps(result | {"commit": "0" * 40}), entry(), False) == []
    # the variable is not handed on, and no path remains
    caption = f"first None\n\nratings {run.RATINGS} True"
    rows = [["16", "1.5*"], ["32", "*"]]
    assert result["tables"] == [{"caption": caption, "columns": ["k", "seconds"], "rows": rows}]
    assert result["closing"] == "the end"
    assert "1.5*" in capfd.readouterr().out  # and shows it
    text = "\n".join(result_lines(runner.results / "tiny.json"))
    assert "| k | seconds |\n| --- | --- |\n| 16 | 1.5\\* |\n| 32 | \\* |" in text
    status, results = runner(entry(), full=True)
    assert (status, results["tiny"]["run"], results["tiny"]["seeds"]) == (0, "full", [0, 1, 2])


NEAR = ["--shape", "200", "40", "--seeds", "1", "--epsilons", "50", "--exponents", "0"]
SHIN = ["--shape", "300", "60", "--ratings", "7000", "--rows", "6", "--rounds", "1", "3"]
PAPER = ["--shape", "80", "25", "--seeds", "1"]
# Arguments, and words that the tables must have: of a reproduction a figure of the paper, and a row
# whose verdict follows from proofs alone.
PROGRAMS = {
    "bench_neighbours": (NEAR, ["| not private, another seed |", "1.000", "the same for all"]),
    "reproduce krichene": (PAPER, ["21.6, 23.7, 22.8, 8.4", "| 1 | 0.915 if"]),
    "reproduce chien": ([*PAPER, "--epsilons", "1"], ["0.7772", "| about 6 %"]),
    "reproduce liu": ([*PAPER, "--sweeps", "4", "--rate-factors", "16"], ["| 250 | 360"]),
    "reproduce mcsherry": ([*PAPER, "--epsilons", "1"], ["0.9525", "| at most 1.2 | 1.762"]),
    "reproduce shin": ([*SHIN, "--seeds", "1"], ["1.372", "| 0.1 | 0.2"]),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_program_prints_its_table(name, script, capsys):
    if name == "reproduce liu":
        pytest.importorskip("sklearn.callback", reason="the rate is timed by a callback")
    arguments, words = PROGRAMS[name]
    module, *paper = name.split()
    script(module).main([*paper, *arguments])
    printed = capsys.readouterr().out
    assert [word for word in words if word not in printed] == []
    assert "nan" not in printed
    if paper:
        reproduce = script("reproduce")
        verdicts = {reproduce.HOLDS, reproduce.PART, reproduce.FAILS, reproduce.SCALE}
        lines = [line for line in printed.splitlines() if line.startswith("| ")]
        rows = [line[2:-2].split(" | ") for line in lines[2:]]
        assert len(rows) > 2
        assert all(len(row) == 4 and row[3] in verdicts for row in rows)
        if name != "reproduce chien":
            (proved,) = [line for line in lines if words[-1] in line][:1]
            assert "does not hold" in proved
