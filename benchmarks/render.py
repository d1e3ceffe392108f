"""The results of `run.py` as Markdown, for the documentation (docs/extension.py), and back."""

import json
import re
from pathlib import Path

RESULTS = Path(__file__).resolve().parent / "results"
TABLE = re.compile(r"(?:^\|.*\n)+", re.MULTILINE)


def result_files(name, folder=RESULTS):
    """The files of an entry's last runs, quick and full, that there are."""
    files = folder / f"{name}.json", folder / "full" / f"{name}.json"
    return [path for path in files if path.exists()]


def plain(text):
    """Escape what Markdown would read as more than text."""
    return re.sub(r"([\\`*_{}\[\]<>#$|~])", r"\\\1", str(text))


def cells_of(block):
    """Cells of one Markdown table, head first and without the line below it."""
    rows = [[cell.strip() for cell in line[1:-1].split("|")] for line in block.splitlines()]
    return [row for row in rows if not set("".join(row)) <= set("-: ")]


def row(cells):
    return "| " + " | ".join(cells) + " |"


def result_lines(path):
    """What a file says: the command, when, where and how it ran, and its tables."""
    result = json.loads(path.read_text(encoding="utf-8"))
    if result["state"] == "skipped":
        return [f"**{result['run'].capitalize()} run**: skipped, {plain(result['reason'])}.", ""]
    seeds, commit = ", ".join(map(str, result["seeds"])), (result["commit"] or "unknown")[:10]
    busy, changes = result["busy"], "" if result["clean"] else " with changes"
    lines = [
        f"**{result['run'].capitalize()} run**, `{result['command']}`",
        "",
        f"{result['date']}, {result['seconds']:.0f} s, seeds {seeds}; load {busy['load']} on "
        f"{busy['cores']} cores at the start; commit {commit}{changes}.",
        "",
    ]
    if result["state"] == "failed":
        lines += [f"**Failed**: {plain(result['reason'])}.", ""]
    for table in result["tables"]:
        columns, *rows = (map(plain, cells) for cells in (table["columns"], *table["rows"]))
        rule = ["---"] * len(table["columns"])
        lines += [plain(table["caption"]), "", *map(row, (columns, rule, *rows)), ""]
    return [*lines, plain(result["closing"]), "", plain(where(result)), ""]


def where(result):
    """The machine and the versions in a line."""
    machine = result["machine"]
    caches = [f"{name} {size}" for name, size in machine["caches"].items()]
    parts = [machine["processor"], f"{machine['cores']} cores", *caches]
    parts += [f"{machine['memory_gib']} GiB", machine["system"]]
    parts += [f"{name} {version}" for name, version in result["versions"].items()]
    return ", ".join(parts) + "."
