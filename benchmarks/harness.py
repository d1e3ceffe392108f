"""What the scripts have in common and what needs no numpy: options, times and Markdown tables.

A script that measures memory starts processes, and Linux counts a parent's size as the child's peak
memory: such a script imports this module and `memory`, and numpy where it is used.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

CACHE = Path(tempfile.gettempdir()) / "skdpmf-bench"
# Of CacheSGDFactorizer in the published tables, which are older than its learned penalties.
SGD_SETTINGS = {"alpha": 0.04, "max_iter": 15, "learning_rate_decay": 0.8}
DATA = "ratings file; default: $SKDPMF_DATA/ml-1m.parquet"


def parser(doc, **defaults):
    """Return a parser that has an option for each default: its type, and its number of values.

    A default that is False is a switch, and None a text that is not given. A list of texts is all
    that may be chosen. `data` is the file of ratings, which `data_path` finds.
    """
    found = argparse.ArgumentParser(description=doc.strip().partition("\n")[0])
    for name, value in defaults.items():
        flag = "--" + name.replace("_", "-")
        if name == "data":
            found.add_argument(flag, type=Path, help=DATA)
        elif value is False:
            found.add_argument(flag, action="store_true")
        elif isinstance(value, (list, tuple, dict)):
            value = list(value)
            kind = type(value[0])
            allowed = value if kind is str else None  # by default all of them
            found.add_argument(flag, nargs="*", type=kind, default=value, choices=allowed)
        else:
            found.add_argument(flag, type=str if value is None else type(value), default=value)
    return found


def integers(text):
    """Return the numbers of a text such as "16,32"."""
    return [int(part) for part in text.split(",")]


def data_path(options):
    """Return --data or the ratings of $SKDPMF_DATA; None: neither is there."""
    path = options.data
    if path is None and "SKDPMF_DATA" in os.environ:
        path = Path(os.environ["SKDPMF_DATA"]) / "ml-1m.parquet"
    return path if path is not None and path.exists() else None


def note(*words):
    """Say on the error stream how far it is."""
    print(*words, file=sys.stderr, flush=True)


def print_row(*cells):
    """Print a row of a Markdown table."""
    print("| " + " | ".join(str(cell) for cell in cells) + " |", flush=True)


def print_head(*names):
    """Print the head of a Markdown table."""
    print_row(*names)
    print_row(*["---"] * len(names))


def spread(values, digits=4):
    """Return the mean of the values, and their standard deviation where there are several."""
    found = f"{statistics.mean(values):.{digits}f}"
    return found if len(values) == 1 else f"{found} ± {statistics.stdev(values):.{digits}f}"


def from_to(values):
    """Return the least and the largest of whole numbers, one of them where they are equal."""
    low, high = min(values), max(values)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def seconds_of(work, *arguments, clock=time.perf_counter, **settings):
    """Return the seconds of a call."""
    begin = clock()
    work(*arguments, **settings)
    return clock() - begin


def in_child(script, *arguments, timeout=None, **environment):
    """Run a script in a fresh process; return what it printed last, JSON, or None if it failed."""
    try:
        done = subprocess.run(
            [sys.executable, script, *map(str, arguments)],
            env={**os.environ, **environment},
            stdout=subprocess.PIPE,
            text=True,
            check=False,
            timeout=timeout,
        )
    except subprocess.TimeoutExpired:
        return None
    return json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else None
