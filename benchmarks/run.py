"""Run benchmarks and write their output as JSON.

    python benchmarks/run.py                      all of them, quickly: minutes
    python benchmarks/run.py --full               with the settings of the pages: many hours
    python benchmarks/run.py utility lists
    python benchmarks/run.py --list

Each entry is a command in a process of its own, for one published figure or table, or for one of
our questions: docs/benchmarks/results.md says which, and what came out. Published figures are made
again on MovieLens 1M where the source has a larger or closed set, or on made-up ratings.

Results are in benchmarks/results/NAME.json, those of a full run in benchmarks/results/full:
the Markdown tables that the script printed, with machine, versions, seeds and commit. An entry that
cannot run here, for want of a package or the ratings ($SKDPMF_DATA, a folder with ml-1m.parquet),
is written as "skipped" with the reason. One that fails does not stop the others, but makes the exit
status 1.
"""

import argparse
import datetime
import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import shlex
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from render import RESULTS, TABLE, cells_of

CHECKOUT = Path(__file__).resolve().parents[1]
OVERVIEW = CHECKOUT / "docs" / "benchmarks" / "results.md"
RATINGS = "ml-1m.parquet"  # stands for the file in $SKDPMF_DATA
VERSIONS = ("skdpmf", "numpy", "scipy", "scikit-learn", "numba", "pandas", "joblib")
VERSIONS += ("implicit", "cornac", "scikit-surprise", "myfm", "diffprivlib", "dask", "pyarrow")
ABSOLUTE = re.compile(r"(?<![\w.:/])/(?:[\w.@+-]+/)+([\w.@+-]+)")


# Scripts with their arguments. A quick run takes a minute or two, and its numbers are rougher: one
# seed, few settings, small sets. Entries without one are too large for it. `needs` are packages.
COMMANDS = """
reproduce-krichene
    quick: reproduce krichene --data ml-1m.parquet --epsilons 1 --seeds 1
    full: reproduce krichene --data ml-1m.parquet --large --seeds 3
reproduce-chien
    quick: reproduce chien --data ml-1m.parquet --epsilons 10 --seeds 1
    full: reproduce chien --data ml-1m.parquet --large --seeds 3
reproduce-liu
    quick: reproduce liu --data ml-1m.parquet --seeds 1
    full: reproduce liu --data ml-1m.parquet --seeds 3
reproduce-mcsherry
    quick: reproduce mcsherry --data ml-1m.parquet --epsilons 4 --seeds 1
    full: reproduce mcsherry --data ml-1m.parquet --seeds 3
reproduce-shin
    quick: reproduce shin --shape 14000 2700 --ratings 2000000 --rows 270 --seeds 1
    full: reproduce shin --seeds 1
multi-task-synthetic
    quick: bench_multi_task --epsilons-synthetic 1 --seeds 1
    full: bench_multi_task --seeds 10
clicks-movielens
    quick: bench_clicks --data ml-1m.parquet --epsilons 5 --seeds 1
    full: bench_clicks --data ml-1m.parquet --seeds 5
clicks-synthetic
    quick: bench_clicks --synthetic --epsilons 5 --seeds 1
    full: bench_clicks --synthetic --seeds 5
lists
    quick: bench_lists --data ml-1m.parquet --epsilons 4 --seeds 1
    full: bench_lists --data ml-1m.parquet --seeds 3
refresh
    quick: bench_refresh --data ml-1m.parquet --months 4 --model DPItemMeans --seeds 1
    full: bench_refresh --data ml-1m.parquet --seeds 1
item-features
    quick: bench_item_features --data ml-1m.parquet --parts cold --seeds 1
    full: bench_item_features --data ml-1m.parquet --seeds 3
public
    quick: bench_public --data ml-1m.parquet --shares 0.1 --epsilons 1 --seeds 1
    full: bench_public --data ml-1m.parquet --seeds 3
clicks-20m
    full: bench_clicks --synthetic 20m --epsilons 1 5 20 --seeds 1 --held-out 2000
qualitative
    quick: bench_neighbours --data ml-1m.parquet --seeds 1
    full: bench_neighbours --data ml-1m.parquet --seeds 5
utility
    quick: bench_utility --data ml-1m.parquet --no-synthetic --fresh-splits --epsilons 0.5 1 4 8 \
        20 inf --methods DPItemMeans pooled --seeds 1
    full: bench_utility --data ml-1m.parquet --no-synthetic --seeds 5
covariance-figure-1
    quick: bench_covariance curve --data ml-1m.parquet --fresh-splits --epsilons 1 4 --seeds 1 \
        --minor-seeds 1 --n-jobs 1
    full: bench_covariance curve --data ml-1m.parquet --seeds 5
covariance-figure-2
    quick: bench_covariance size --sizes 5000 20000 80000 --size-seeds 1 --n-jobs 1
    full: bench_covariance size --size-seeds 3
sgd-throughput
    quick: bench_sgd throughput --shapes S --sizes 16,128,1024 --threads 1 --repeats 2 \
        --budget-seconds 4
    full: bench_sgd throughput
    needs: cornac surprise implicit
sgd-accuracy
    quick: bench_sgd accuracy --sets 1M tail
    full: bench_sgd accuracy
peers
    quick: bench_peers --data ml-1m.parquet --seeds 1
    full: bench_peers --data ml-1m.parquet --seeds 5
utility-synthetic
    quick: bench_utility --epsilons 0.1 1 8 --seeds 1
    full: bench_utility --seeds 8
shapes
    quick: bench_shapes --sets 500 factors --epsilons 1 20 inf --seeds 1
    full: bench_shapes --data ml-1m.parquet --seeds 2
ablation
    quick: bench_ablation --models covariance clicks --module gram --changes half double \
        --epsilons 1 4 --seeds 2 --shapes '943 x 1,682' 'long tail, 8,000'
    full: bench_ablation --seeds 3
utility-10m
    full: bench_utility --data synth10m --epsilons 1 4 8 20 inf --seeds 2 --n-jobs 2
sampler-every-step
    quick: bench_sampler --data ml-1m.parquet --parts every-step --fresh-splits --epsilons 1 4 \
        16 --seeds 1 --n-jobs 1
    full: bench_sampler --data ml-1m.parquet --parts every-step speed --seeds 5
sampler-posterior
    quick: bench_sampler --data ml-1m.parquet --parts posterior --fresh-splits \
        --posterior-epsilons 256 --seeds 1 --n-jobs 1
    full: bench_sampler --data ml-1m.parquet --parts posterior --fresh-splits --seeds 5
local-curve
    quick: bench_local curve --data ml-1m.parquet --no-synthetic --epsilons 1 4 --seeds 1 \
        --n-jobs 1
    full: bench_local curve --data ml-1m.parquet --seeds 3
linkage
    quick: bench_linkage --games 10 --epsilons 1 20 --n-jobs 1
    full: bench_linkage --games 200
spammer
    quick: bench_spammer --seeds 4 --n-jobs 1
    full: bench_spammer --seeds 40
sgd-disk
    quick: bench_sgd_disk --shape S --rounds 6 --repeats 1
    full: bench_sgd_disk --rounds 5
fit
    quick: bench_fit --users 20000 --items 3000 --ratings 2000000 --rank 16 --rounds 0 --n-jobs 1
    full: bench_fit --rank 16 --rounds 0
    needs: implicit
first-minute
    quick: bench_first_minute --repeats 1
    full: bench_first_minute
labels
    quick: bench_labels
    full: bench_labels
audit-times
    quick: bench_audit times --only DPItemMeans 'LocalDPGDDR, sampled sign' 'LocalDPGDDR, \
        Algorithm 2'
    full: bench_audit times --data ml-1m.parquet
audit-alarms
    quick: bench_audit alarms --audits 12
    full: bench_audit alarms --audits 480
"""


@dataclass(frozen=True)
class Entry:
    """One command, quick and full, and what it is for."""

    name: str
    quick: str | None
    full: str
    needs: tuple[str, ...] = ()
    source: str = ""  # the published figure, or our question
    page: str = ""  # of docs/benchmarks, that discusses it

    def text(self, full):
        """Return the script and its arguments, "" where there is no such run."""
        return (self.full if full else self.quick) or ""

    def arguments(self, full):
        """Return the script and its arguments one by one, None where there is no such run."""
        return shlex.split(self.text(full)) or None

    def command(self, full):
        """Return the line that a reader types, None where there is no such run."""
        script, _, rest = self.text(full).partition(" ")
        return f"python benchmarks/{script}.py {rest}".strip() if script else None

    def seeds(self, full):
        """Return the seeds of noise or, where only times come out, of made-up ratings."""
        found = re.search(r"--(?:size-)?seeds (\d+)", self.text(full))
        return list(range(int(found[1]) if found else 1))


def overview():
    """Return {name: cells} of the overview's rows: source, finding, page and tables."""
    found = {}
    for line in OVERVIEW.read_text(encoding="utf-8").splitlines():
        if line.startswith("| ") and "](tables.md#" in line:
            cells = [cell.strip() for cell in line[1:-1].split("|")]
            found[cells[-1].removeprefix("[").split("]")[0]] = cells
    return found


def entries():
    """Return all entries, in the order of their commands."""
    known, found = overview(), []
    for block in re.split(r"\n(?=\S)", COMMANDS.strip()):
        name, *lines = block.splitlines()
        told = dict(re.sub(r"\s+", " ", line).strip().split(": ", 1) for line in lines)
        source, _, page, _ = known.get(name, [""] * 4)
        page = page.partition("](")[2].removesuffix(")")
        needs = tuple(told.get("needs", "").split())
        found.append(Entry(name, told.get("quick"), told["full"], needs, source, page))
    return found


def machine():
    """Return the facts that times depend on, and nothing that identifies the machine."""
    total = _read("/proc/meminfo", r"MemTotal:\s+(\d+) kB")
    return {
        "processor": _read("/proc/cpuinfo", r"model name\s*: (.+)") or platform.processor(),
        "cores": _cores(),
        "caches": _caches(),
        "memory_gib": round(int(total) / 2**20) if total else None,
        "system": f"{platform.system()} {platform.machine()}",
    }


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
    missing = [name for name in entry.needs if importlib.util.find_spec(name) is None]
    return f"not installed: {', '.join(missing)}" if missing else None


def execute(entry, full, ratings, scripts):
    """Run an entry and show what it prints; its exit status and its text."""
    script, *rest = [str(ratings) if a == RATINGS else a for a in entry.arguments(full)]
    command = [sys.executable, str(scripts / f"{script}.py"), *rest]
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


def result_of(entry, full, ratings, scripts):
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
        status, text = execute(entry, full, ratings, scripts)
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
    path = folder / ("full" if result["run"] == "full" else "") / result["entry"]
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(result, indent=1, ensure_ascii=False)
    path.with_suffix(".json").write_text(text + "\n", encoding="utf-8")


def main(arguments=None, known=None, folder=RESULTS, scripts=CHECKOUT / "benchmarks"):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    known = entries() if known is None else known
    names = [entry.name for entry in known]
    parser.add_argument("names", nargs="*", metavar="NAME", help="default: all")
    parser.add_argument("--full", action="store_true", help="the settings of the pages: hours")
    parser.add_argument("--list", action="store_true", help="what there is")
    options = parser.parse_args(arguments)
    if unknown := sorted(set(options.names) - set(names)):
        parser.error(f"no entry is named {', '.join(unknown)}: --list shows all names")
    chosen = [entry for entry in known if entry.name in (options.names or names)]
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
        result = result_of(entry, options.full, ratings, scripts)
        write(result, folder)
        ends[result["state"]].append(entry.name)
        print(f"{result['state']}: {result['reason'] or format(result['seconds'], '.0f') + ' s'}")
    for state, found in ends.items():
        print(f"\n{state}: {len(found)}", *(found if state != "done" else ()), sep="  ")
    return 1 if ends["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
