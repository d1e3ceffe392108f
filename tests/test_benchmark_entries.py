"""The benchmarks: every script has an entry, every entry a page, and results say how they came."""

import inspect
import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from . import house

CHECKOUT = Path(__file__).resolve().parents[1]
BENCHMARKS = CHECKOUT / "benchmarks"
PAGES = CHECKOUT / "docs" / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))  # scripts, not a package

import run  # noqa: E402
from bench_utility import split_parser  # noqa: E402
from entries import ENTRIES, RATINGS, Entry  # noqa: E402
from planted_bugs import MUTANTS  # noqa: E402
from render import RESULTS, result_lines  # noqa: E402

NAMES = [entry.name for entry in ENTRIES]
# Scripts that measure nothing by themselves.
TOOLS = {"entries", "figures", "planted_bugs", "plot_results", "plot_tables", "render", "run"}
TOOLS |= {"memory", "peer_models", "private_frank_wolfe", "published_recipe", "sgd_data"}
TOOLS |= {"sgd_solvers"}

ONE_FIT = {"covariance-scale", "local-scale"}  # parts without seeds, of scripts that have some

# Entries


def entry_violations(entry, checkout=CHECKOUT):
    """What is wrong with an entry: its script, its options, its page."""
    found, script = [], checkout / entry.script
    if not script.is_file():
        return [f"{entry.name}: no {entry.script}"]
    if not (PAGES / entry.page).is_file():
        found.append(f"{entry.name}: no page {entry.page}")
    text = script.read_text(encoding="utf-8")
    if "split_parser(" in text:
        text += inspect.getsource(split_parser)
    for full in (False, True):
        arguments = entry.arguments(full) or []
        for option in arguments:
            if option.startswith("--") and f'"{option}"' not in text:
                found.append(f"{entry.name}: {entry.script} has no {option}")
        named = entry.name in ONE_FIT or {"--seeds", "--size-seeds"} & set(arguments)
        if arguments and '"--seeds"' in text and not named:
            found.append(f"{entry.name}: names no seeds")
    return found


def without_entry(scripts, entries):
    """Scripts that no entry runs."""
    return sorted(
        {name for name in scripts if name not in TOOLS} - {Path(e.script).stem for e in entries}
    )


def test_entries_are_sound():
    assert len(set(NAMES)) == len(NAMES)
    assert [found for entry in ENTRIES for found in entry_violations(entry)] == []
    scripts = [path.stem for path in BENCHMARKS.glob("*.py")]
    assert len(scripts) > 20
    assert without_entry(scripts, ENTRIES) == []


def test_planted_mistakes_in_entries_are_noticed():
    entry = next(entry for entry in ENTRIES if entry.name == "ablation")
    assert entry_violations(replace(entry, script="benchmarks/bench_nothing.py"))
    assert entry_violations(replace(entry, page="nothing.md"))
    assert entry_violations(replace(entry, full=f"{entry.full} --nothing 1"))
    assert entry_violations(replace(entry, quick=f"--data {RATINGS}"))
    assert without_entry(["bench_ablation", "bench_new", "run"], ENTRIES) == ["bench_new"]


def test_bugs_can_be_planted():
    """Whoever changes the line of a bug changes the bug."""
    assert len(MUTANTS) > 30
    texts = [(CHECKOUT / bug.file).read_text(encoding="utf-8").count(bug.old) for bug in MUTANTS]
    assert [bug.name for bug, n in zip(MUTANTS, texts, strict=True) if n != 1] == []
    assert [
        bug.name
        for bug in MUTANTS
        if not all(map(Path.exists, map(CHECKOUT.joinpath, bug.tests.split())))
    ] == []


# Results

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
    told = {
        "entry": entry.name,
        "run": "full" if full else "quick",
        "command": entry.command(full),
        "seeds": entry.seeds(full),
    }
    found += [f"{name} is not the entry's" for name in told if result[name] != told[name]]
    if not re.fullmatch("[0-9a-f]{40}", result["commit"] or ""):
        found.append("no commit")
    if not {"python", "numpy", "scipy", "scikit-learn", "numba", "skdpmf"} <= set(
        result["versions"]
    ):
        found.append("no versions")
    # no more, so that nothing tells whose machine it is
    if set(result["machine"]) != {"processor", "cores", "caches", "memory_gib", "system"}:
        found.append("machine")
    if set(result["busy"]) != {"load", "cores"}:
        found.append("busy")
    if result["state"] == "done":
        if not result["tables"] or not all(table["rows"] for table in result["tables"]):
            found.append("no table, or one without rows")
        cells = [row for t in result["tables"] for row in (t["columns"], *t["rows"])]
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
    missing = [name for name in NAMES if not (RESULTS / f"{name}.json").exists()]
    assert missing == []  # what cannot run is there as well, as skipped


def test_planted_mistakes_in_results_are_noticed():
    entry = next(entry for entry in ENTRIES if entry.name == "search-price")
    text = (RESULTS / "search-price.json").read_text(encoding="utf-8")
    assert result_violations(text, entry, False) == []
    for name, wrong in {
        "commit": "unknown",
        "versions": {},
        "machine": {**json.loads(text)["machine"], "host": "name"},
        "seeds": [3],
        "command": "python benchmarks/bench_search_price.py --trials 3",
        "tables": [{"caption": "", "columns": ["a"], "rows": []}],
        "closing": "wrote /tmp/x.png",
    }.items():
        assert result_violations(json.dumps(json.loads(text) | {name: wrong}), entry, False), name
    skipped = json.loads(text) | {"state": "skipped", "reason": None}
    assert result_violations(json.dumps(skipped), entry, False) == ["no reason"]


# Pages


def overview_violations(text):
    """Rows that the overview lacks or has too much, and numbers that are not on the page."""
    rows = {
        cells[-1].removeprefix("[").split("]")[0]: cells
        for line in text.splitlines()
        if line.startswith("| ") and "](tables.md#" in line
        for cells in [[cell.strip() for cell in line[1:-1].split("|")]]
    }
    found = [f"no row {name}" for name in NAMES if name not in rows]
    found += [f"row {name}" for name in rows if name not in NAMES]
    for entry in ENTRIES:
        if entry.name not in rows:
            continue
        source, finding, page, _ = rows[entry.name]
        if source != entry.source or page != f"[{Path(entry.page).stem}]({entry.page})":
            found.append(f"{entry.name}: not the entry's source and page")
        measured = (PAGES / entry.page).read_text(encoding="utf-8")
        found += [
            f"{entry.name}: {number}"
            for number in re.findall(r"\d*\.\d{2,}", finding)
            if number not in measured
        ]
    return found


def test_overview_has_all_entries_and_measured_numbers():
    text = (PAGES / "results.md").read_text(encoding="utf-8")
    assert overview_violations(text) == []
    assert overview_violations(text.replace(".8768", ".1234")) == ["utility: .1234"]
    assert overview_violations(
        text.replace("#ablation)", "#x)").replace("[ablation](tables", "[x](tables")
    )
    assert overview_violations(text.replace("| How fast is exact noise?", "| How fast?"))


def test_page_of_tables_shows_all_entries():
    text = (PAGES / "tables.md").read_text(encoding="utf-8")
    assert re.findall(r"^## (\S+)$", text, re.MULTILINE) == NAMES
    assert re.findall(r"^```\{benchmark-results\} (\S+)\n```$", text, re.MULTILINE) == NAMES
    assert re.findall(r"\[JSON\]\(../../benchmarks/results/(\S+)\.json\)", text) == NAMES


# The runner

SCRIPT = """
import os, sys
from pathlib import Path
print("first", os.environ.get("SKDPMF_DATA"))
print()
path = Path(sys.argv[1]).resolve()
print("ratings", path, path.is_file())
print()
print("| k | seconds |")
print("| ---: | --- |")
print("| 16 | 1.5* |")
print("| 32 | \\\\* |")
print("the end")
sys.exit(int(sys.argv[2]) if len(sys.argv) > 2 else 0)
"""


@pytest.fixture
def entry(tmp_path, monkeypatch):
    (tmp_path / "bench_tiny.py").write_text(SCRIPT, encoding="utf-8")
    (tmp_path / RATINGS).write_text("ratings", encoding="utf-8")
    monkeypatch.setenv("SKDPMF_DATA", str(tmp_path))
    script = str(tmp_path / "bench_tiny.py")
    return Entry("tiny", "", "Is it?", "page.md", script, RATINGS, f"{RATINGS} 0 --seeds 3")


def results_of(entries, folder, *arguments):
    """Exit status of the runner and what it wrote, by name."""
    status = run.main(arguments, entries, folder)
    files = folder.rglob("*.json")
    return status, {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in files}


def test_runner_writes_what_a_script_prints(entry, tmp_path, capfd):
    status, results = results_of([entry], tmp_path / "results")
    assert status == 0
    result = results["tiny"]
    text = json.dumps(result | {"commit": "0" * 40, "command": ""})
    assert result_violations(text, replace(entry, script=""), False) == [
        "command is not the entry's"
    ]
    assert (result["state"], result["exit_status"], result["seeds"]) == ("done", 0, [0])
    assert result["tables"] == [
        {
            # the variable is not handed on, and no path remains
            "caption": f"first None\n\nratings {RATINGS} True",
            "columns": ["k", "seconds"],
            "rows": [["16", "1.5*"], ["32", "*"]],
        }
    ]
    assert result["closing"] == "the end"
    assert "1.5*" in capfd.readouterr().out  # and shows it
    status, results = results_of([entry], tmp_path / "full", "--full", "tiny")
    assert (status, results["tiny"]["run"], results["tiny"]["seeds"]) == (0, "full", [0, 1, 2])
    assert (tmp_path / "full" / "full" / "tiny.json").exists()


def test_runner_goes_on_after_a_failure_and_fails_at_the_end(entry, tmp_path):
    bad = replace(entry, name="bad", quick=f"{RATINGS} 3")
    quiet = replace(entry, name="quiet", script=str(tmp_path / "quiet.py"))
    (tmp_path / "quiet.py").write_text("print('no ratings')", encoding="utf-8")
    status, results = results_of([bad, quiet, entry], tmp_path / "results")
    assert status == 1
    assert (results["bad"]["state"], results["bad"]["reason"]) == ("failed", "exit status 3")
    assert len(results["bad"]["tables"]) == 1  # as far as it came
    assert (results["quiet"]["state"], results["quiet"]["reason"]) == (
        "failed",
        "it printed no table",
    )
    assert results["tiny"]["state"] == "done"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"packages": ("sys", "no_such_peer")}, "not installed: no_such_peer"),
        ({"program": ("no-such-tool", "nor-this")}, "not installed: no-such-tool"),
        ({"quick": None}, "too large for a quick run: --full"),
    ],
)
def test_runner_tells_what_it_skips(entry, tmp_path, changes, reason):
    status, results = results_of([replace(entry, **changes)], tmp_path / "results")
    assert status == 0
    assert (results["tiny"]["state"], results["tiny"]["reason"]) == ("skipped", reason)
    assert results["tiny"]["tables"] == []


def test_runner_skips_for_want_of_ratings(entry, tmp_path, monkeypatch):
    (tmp_path / RATINGS).unlink()
    status, results = results_of([entry], tmp_path / "results")
    assert (status, results["tiny"]["state"]) == (0, "skipped")
    monkeypatch.delenv("SKDPMF_DATA")
    assert results_of([entry], tmp_path / "results")[1]["tiny"]["reason"].startswith(
        f"no {RATINGS}"
    )


def test_runner_knows_its_names(entry, tmp_path, capsys):
    with pytest.raises(SystemExit):
        run.main(["no-such-entry"], [entry], tmp_path)
    assert "--list" in capsys.readouterr().err
    assert run.main(["--list"], ENTRIES, tmp_path) == 0
    listed = capsys.readouterr().out
    assert all(entry.source in listed for entry in ENTRIES)
    assert not list(tmp_path.glob("*.json"))


def test_result_is_rendered_as_plain_text(entry, tmp_path):
    results_of([entry], tmp_path / "results")
    path = tmp_path / "results" / "tiny.json"
    text = "\n".join(result_lines(path))
    assert "| k | seconds |\n| --- | --- |\n| 16 | 1.5\\* |\n| 32 | \\* |" in text
    assert "**Quick run**" in text
    assert "seeds 0" in text
    changed = json.loads(path.read_text(encoding="utf-8")) | {"state": "failed", "reason": "<why>"}
    path.write_text(json.dumps(changed), encoding="utf-8")
    assert "**Failed**: \\<why\\>." in "\n".join(result_lines(path))
    results_of([replace(entry, quick=None)], tmp_path / "results")
    assert "skipped, too large" in "\n".join(result_lines(path))
