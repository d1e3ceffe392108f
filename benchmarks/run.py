"""Run the benchmarks of `entries.py` and write their output as JSON.

    python benchmarks/run.py                      all of them, quickly: minutes
    python benchmarks/run.py --full               with the settings of the pages: many hours
    python benchmarks/run.py six-methods roofline
    python benchmarks/run.py --list

Each is a process of its own. Results are in benchmarks/results/NAME.json, and for a full run in
benchmarks/results/full/NAME.json: the Markdown tables that the script printed, with machine,
versions, seeds and commit. An entry that cannot run here, for want of a package, a program or the
ratings ($SKDPMF_DATA, a folder with ml-1m.parquet), is written as "skipped" with the reason. One
that fails does not stop the others, but makes the exit status 1.
"""

import argparse
import datetime
import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from entries import ENTRIES, RATINGS
from render import RESULTS, TABLE, cells_of

CHECKOUT = Path(__file__).resolve().parents[1]
VERSIONS = ("skdpmf", "numpy", "scipy", "scikit-learn", "numba", "pandas", "joblib")
VERSIONS += ("implicit", "cornac", "scikit-surprise", "myfm", "diffprivlib", "dask", "pyarrow")
ABSOLUTE = re.compile(r"(?<![\w.:/])/(?:[\w.@+-]+/)+([\w.@+-]+)")


def machine():
    """Return the facts that times depend on, and nothing that identifies the machine."""
    found = {
        "processor": _read("/proc/cpuinfo", r"model name\s*: (.+)") or platform.processor(),
        "cores": _cores(),
        "caches": _caches(),
        "memory_gib": None,
        "system": f"{platform.system()} {platform.machine()}",
    }
    if total := _read("/proc/meminfo", r"MemTotal:\s+(\d+) kB"):
        found["memory_gib"] = round(int(total) / 2**20)
    return found


def _read(path, pattern):
    try:
        found = re.search(pattern, Path(path).read_text(encoding="utf-8"))
    except OSError:
        return None
    return found and found[1].strip()


def _cores():
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def _caches():
    """Sizes of a core's caches by name, as far as the system knows them."""
    found = {}
    for index in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        level, kind, size = (_read(index / name, r"(.+)") for name in ("level", "type", "size"))
        if level and size and kind != "Instruction":
            found[f"L{level}"] = size
    return found


def versions():
    """Versions of Python and of the packages that are installed."""
    found = {"python": platform.python_version()}
    for name in VERSIONS:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def commit():
    """The commit, and whether the files beside the results are those of it."""

    def git(*arguments):
        done = subprocess.run(
            ["git", "-C", CHECKOUT, *arguments], capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    try:
        changed = git("status", "--porcelain", "--", ".", f":!{RESULTS.relative_to(CHECKOUT)}")
        return {"commit": git("rev-parse", "HEAD"), "clean": not changed}
    except (OSError, subprocess.CalledProcessError):  # not a checkout, or no git
        return {"commit": None, "clean": None}


def busy():
    """How busy the machine is: times are to be believed where the load is far below the cores."""
    return {"load": round(os.getloadavg()[0], 1), "cores": _cores()}


def parse(text):
    """Tables of a text, each with the text before it; and the text after the last one."""
    text = ABSOLUTE.sub(r"\1", text + "\n")  # no paths of one machine
    text = text.replace("\\*", "*")  # text, no Markdown
    between = [part.strip() for part in TABLE.split(text)]
    tables = []
    for caption, block in zip(between, TABLE.findall(text), strict=False):
        columns, *rows = cells_of(block)
        tables.append({"caption": caption, "columns": columns, "rows": rows})
    return tables, between[-1]


def obstacle(entry, full, ratings):
    """Why an entry cannot run here, or None."""
    if entry.arguments(full) is None:
        return "too large for a quick run: --full"
    if RATINGS in entry.arguments(full) and not (ratings and ratings.is_file()):
        return f"no {RATINGS}: SKDPMF_DATA names no folder with it"
    missing = [name for name in entry.packages if importlib.util.find_spec(name) is None]
    if missing:
        return f"not installed: {', '.join(missing)}"
    if entry.program and not any(map(shutil.which, entry.program)):
        return f"not installed: {entry.program[0]}"
    return None


def execute(entry, full, ratings):
    """Run an entry and show what it prints; its exit status and its text."""
    arguments = [str(ratings) if a == RATINGS else a for a in entry.arguments(full)]
    command = [sys.executable, str(CHECKOUT / entry.script), *arguments]
    # what the arguments do not name is not used
    environment = {k: v for k, v in os.environ.items() if k != "SKDPMF_DATA"}
    lines = []
    with (
        tempfile.TemporaryDirectory() as folder,  # for pictures that nobody asked for
        subprocess.Popen(
            command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True
        ) as process,
    ):
        for line in process.stdout:
            print(line, end="", flush=True)
            lines.append(line)
    return process.returncode, "".join(lines)


def result_of(entry, full, ratings):
    """Run an entry, and return what its file says."""
    result = {
        "entry": entry.name,
        "source": entry.source,
        "page": entry.page,
        "run": "full" if full else "quick",
        "command": entry.command(full),
        "state": "skipped",
        "reason": obstacle(entry, full, ratings),
        "exit_status": None,
        "seconds": None,
        "seeds": entry.seeds(full),
        "date": datetime.date.today().isoformat(),
        **commit(),
        "busy": busy(),
        "machine": machine(),
        "versions": versions(),
        "tables": [],
        "closing": "",
    }
    if result["reason"] is None:
        begin = time.perf_counter()
        status, text = execute(entry, full, ratings)
        tables, closing = parse(text)
        reason = f"exit status {status}" if status else None if tables else "it printed no table"
        result |= {
            "state": "failed" if reason else "done",
            "reason": reason,
            "exit_status": status,
            "seconds": round(time.perf_counter() - begin, 1),
            "tables": tables,
            "closing": closing,
        }
    return result


def write(result, folder):
    """Write a result to its file."""
    path = (
        folder / "full" / result["entry"] if result["run"] == "full" else folder / result["entry"]
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(result, indent=1, ensure_ascii=False)
    path.with_suffix(".json").write_text(text + "\n", encoding="utf-8")


def main(arguments=None, entries=ENTRIES, folder=RESULTS):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    names = [entry.name for entry in entries]
    parser.add_argument("names", nargs="*", metavar="NAME", help="default: all")
    parser.add_argument("--full", action="store_true", help="the settings of the pages: hours")
    parser.add_argument("--list", action="store_true", help="what there is")
    options = parser.parse_args(arguments)
    if unknown := sorted(set(options.names) - set(names)):
        parser.error(f"no entry is named {', '.join(unknown)}: --list shows all names")
    chosen = [entry for entry in entries if entry.name in (options.names or names)]
    if options.list:
        for entry in chosen:
            command = entry.command(options.full) or f"only --full: {entry.command(True)}"
            print(f"{entry.name:<24} {entry.source}\n{'':<24} {command}")
        return 0
    ratings = os.environ.get("SKDPMF_DATA") and Path(os.environ["SKDPMF_DATA"], RATINGS).resolve()
    ends = {"done": [], "skipped": [], "failed": []}
    for number, entry in enumerate(chosen, 1):
        command = entry.command(options.full) or ""
        print(f"\n[{number}/{len(chosen)}] {entry.name}: {command}", flush=True)
        result = result_of(entry, options.full, ratings)
        write(result, folder)
        ends[result["state"]].append(entry.name)
        print(f"{result['state']}: {result['reason'] or format(result['seconds'], '.0f') + ' s'}")
    for state, found in ends.items():
        print(f"\n{state}: {len(found)}", *(found if state != "done" else ()), sep="  ")
    return 1 if ends["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
