"""Bugs to plant, one at a time in a copy of the checkout, and the tier of tests that finds each.

    python benchmarks/planted_bugs.py               # all of them: half an hour
    python benchmarks/planted_bugs.py noise ledger  # those whose names begin so

The tests of the bug's area are run, first the first tier, then the rest. Prints a Markdown table.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

CHECKOUT = Path(__file__).resolve().parents[1]


class Mutant(NamedTuple):
    """A bug: this text of a file becomes that one; where tests of it are."""

    name: str
    file: str
    old: str
    new: str
    tests: str


MUTANTS = [
    # sensitivities and clips
    Mutant(
        "sensitivity: counts where a user is replaced",
        "skdpmf/privacy/sensitivity.py",
        "    return math.sqrt(beta * _factor(neighbors, 2.0))",
        "    return math.sqrt(beta)",
        "tests/privacy/test_sensitivity.py tests/core/test_replay.py",
    ),
    Mutant(
        "sums: terms are not clipped",
        "skdpmf/privacy/sums.py",
        "factor = shrink_to_ball(_norms(rows, t, norm), clip)",
        "factor = shrink_to_ball(_norms(rows, t, norm), 2.0 * clip)",
        "tests/core/test_sums.py tests/core/test_replay.py",
    ),
    Mutant(
        "sums: products are not clipped",
        "skdpmf/privacy/sums.py",
        "factor *= shrink_to_ball(np.linalg.norm(x, axis=1), radius[start:stop])",
        "factor *= shrink_to_ball(np.linalg.norm(x, axis=1), 1.1 * radius[start:stop])",
        "tests/core/test_sums.py tests/core/test_replay.py",
    ),
    # the curator
    Mutant(
        "curator: a release once more",
        "skdpmf/privacy/curator.py",
        "if not 0 <= index < slot.count:",
        "if not 0 <= index <= slot.count:",
        "tests/core/test_curator.py tests/core/test_planted.py",
    ),
    Mutant(
        "curator: the same release twice",
        "skdpmf/privacy/curator.py",
        "if any((made.slot, made.index) == (name, index) for made in self.__record):",
        "if False:",
        "tests/core/test_curator.py tests/core/test_planted.py",
    ),
    Mutant(
        "curator: any sensitivity",
        "skdpmf/privacy/curator.py",
        "if private and total.sensitivity > kind.sensitivity * _ROUNDING:",
        "if False:",
        "tests/core/test_curator.py tests/core/test_planted.py",
    ),
    Mutant(
        "curator: any shape",
        "skdpmf/privacy/curator.py",
        "if len(shape) != len(kind.shape) or longer:",
        "if False:",
        "tests/core/test_curator.py tests/core/test_planted.py",
    ),
    Mutant(
        "curator: a plan above its budget",
        "skdpmf/privacy/curator.py",
        "if plan.epsilon > plan.budget.epsilon or plan.delta > plan.budget.delta:",
        "if False:",
        "tests/core/test_curator.py tests/core/test_planted.py",
    ),
    # noise and its accounting
    Mutant(
        "noise: a grid that is not paid for",
        "skdpmf/privacy/sampler/grid.py",
        "return bits, sigma / (1.0 - share) * _OUTWARD",
        "return bits, 0.9 * sigma",
        "tests/privacy/test_noise.py tests/core/test_replay.py",
    ),
    Mutant(
        "noise: a release may be made twice",
        "skdpmf/privacy/sampler/noise.py",
        "            if (name, index) in self._made:",
        "            if False:",
        "tests/privacy/test_noise.py",
    ),
    Mutant(
        "noise: one stream for all indices",
        "skdpmf/privacy/sampler/noise.py",
        "for part in (purpose, name, str(int(index))):",
        "for part in (purpose, name):",
        "tests/privacy/test_noise.py tests/privacy/test_noise_keys.py",
    ),
    Mutant(
        "accounting: the number of repetitions",
        "skdpmf/privacy/plan.py",
        "release.noise_multiplier / math.sqrt(release.count) for release in self.gaussian",
        "release.noise_multiplier for release in self.gaussian",
        "tests/privacy tests/core/test_curator.py",
    ),
    Mutant(
        "accounting: shares of mu and not of its square",
        "skdpmf/privacy/plan.py",
        "math.sqrt(release.count / by_name[release.name]) / mu",
        "math.sqrt(release.count) / by_name[release.name] / mu",
        "tests/privacy tests/core/test_curator.py",
    ),
    # ledgers and refreshes
    Mutant(
        "ledger: a person above the limit",
        "skdpmf/books/ledger_cohorts.py",
        "chosen = may & (spent <= WHOLE - self._share(cost.main)) & (cost.second <= values)",
        "chosen = may & (cost.second <= values)",
        "tests/books/test_ledger_cohorts.py",
    ),
    Mutant(
        "ledger: a person once more",
        "skdpmf/books/ledger_cohorts.py",
        "may = times < self.at_most",
        "may = times <= self.at_most",
        "tests/books/test_ledger_cohorts.py",
    ),
    Mutant(
        "ledger: the total is not written",
        "skdpmf/books/ledger.py",
        "ledger_file.write_total(connection, entry, total.main, total.second)",
        "ledger_file.write_total(connection, entry, spent.main, spent.second)",
        "tests/books/test_ledger.py",
    ),
    Mutant(
        "refresh: noise without the knowledge",
        "skdpmf/estimators/contract/private.py",
        '            text += f" {digest_of(fit.start.known)}"',
        "            pass",
        "tests/estimators/test_refresh.py tests/core/test_refresh_replay.py",
    ),
    Mutant(
        "fit: rows of those who are left out stay",
        "skdpmf/estimators/contract/private.py",
        "R, fit = without_rows(R, ~fit.included), fit._replace(included=None)",
        "fit = fit._replace(included=None)",
        "tests/estimators/test_cohorts.py tests/estimators/test_refresh.py",
    ),
    # mechanisms
    Mutant(
        "clicks: centred rows without their norm",
        "skdpmf/kernels/rows.py",
        "np.where(known[rows], scale[rows] * x, 0.0)",
        "np.where(known[rows], x, 0.0)",
        "tests/mechanisms/test_item_item.py tests/kernels/test_rows.py",
    ),
    Mutant(
        "clicks: the noise's edge of eigenvalues",
        "skdpmf/mechanisms/gram/item_item.py",
        "edge = EDGE * 2.0 * deviation",
        "edge = EDGE * 0.5 * deviation",
        "tests/mechanisms/test_item_item.py",
    ),
    Mutant(
        "clicks: tastes without the variance of chance",
        "skdpmf/mechanisms/gram/item_item.py",
        "deviation / np.sqrt(2.0) + chance)",
        "deviation / np.sqrt(2.0))",
        "tests/mechanisms/test_item_item.py",
    ),
    Mutant(
        "clicks: a matrix, however little is known of the counts",
        "skdpmf/mechanisms/item_means/popularity.py",
        "<= DOUBT * mean[top].sum()",
        "<= 100.0 * mean[top].sum()",
        "tests/mechanisms/test_item_item.py",
    ),
    Mutant(
        "means: counts of two slots weighted the wrong way round",
        "skdpmf/mechanisms/common.py",
        "(a * x + b * y)",
        "(b * x + a * y)",
        "tests/mechanisms/test_pooled.py",
    ),
    Mutant(
        "pooled: factors are not discounted",
        "skdpmf/mechanisms/als/pooled_update.py",
        "    P *= kept\n",
        "    P *= 1.0\n",
        "tests/mechanisms/test_pooled.py",
    ),
    # statements, data and the contract
    Mutant(
        "statement: the limit for life",
        "skdpmf/privacy/statement.py",
        "each person takes part in at most {at_most}, and all ",
        "each person takes part, and all ",
        "tests/privacy/test_statement.py tests/estimators/test_cohorts.py",
    ),
    Mutant(
        "data: rows that are left out",
        "skdpmf/estimators/contract/private.py",
        "R = R if included is None else without_rows(R, ~included)",
        "pass",
        "tests/estimators/test_cohorts.py",
    ),
    Mutant(
        "columns: names in another order",
        "skdpmf/estimators/contract/refreshed.py",
        "return X.reindex(columns=grown.items)",
        "return X",
        "tests/estimators/test_refresh.py",
    ),
    Mutant(
        "recommend: rated items are recommended again",
        "skdpmf/kernels/topk.py",
        "seen_indices[seen_indptr[row] : seen_indptr[row + 1]], items, best)",
        "seen_indices[:0], items, best)",
        "tests/kernels/test_topk.py tests/estimators/test_lists.py",
    ),
    Mutant(
        "metrics: recall of long lists",
        "skdpmf/evaluation/metrics.py",
        "return float(np.mean(hits.sum(axis=1) / np.minimum(n_targets, k)))",
        "return float(np.mean(hits.sum(axis=1) / n_targets))",
        "tests/evaluation/test_metrics.py",
    ),
]


def copy_of(folder):
    """Copy what git tracks."""
    names = subprocess.run(["git", "ls-files", "-z"], cwd=CHECKOUT, capture_output=True, check=True)
    for name in filter(None, names.stdout.decode().split("\0")):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        if (CHECKOUT / name).is_file():
            (folder / name).write_bytes((CHECKOUT / name).read_bytes())


def is_found(folder, mutant, tier):
    """Whether tests of the area fail; a collection without tests finds nothing."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "--tier", tier, *mutant.tests.split()]
    environment = {**os.environ, "PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1"}
    run = subprocess.run(command, cwd=folder, env=environment, capture_output=True)
    if run.returncode not in (0, 1, 5):
        raise RuntimeError(run.stdout.decode()[-2000:] + run.stderr.decode()[-2000:])
    return run.returncode == 1


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="beginnings of names")
    options = parser.parse_args()
    chosen = [m for m in MUTANTS if not options.names or m.name.startswith(tuple(options.names))]
    print("| bug | found by | seconds |\n| --- | --- | --- |")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        copy_of(folder)
        for mutant in chosen:
            file, start = folder / mutant.file, time.perf_counter()
            before = file.read_text(encoding="utf-8")
            assert before.count(mutant.old) == 1, f"{mutant.name}: {mutant.file} has changed"
            file.write_text(before.replace(mutant.old, mutant.new), encoding="utf-8")
            found = next((t for t in ("first", "rest") if is_found(folder, mutant, t)), "nothing")
            file.write_text(before, encoding="utf-8")
            seconds = time.perf_counter() - start
            print(f"| {mutant.name} | {found} | {seconds:.0f} |", flush=True)


if __name__ == "__main__":
    main()
