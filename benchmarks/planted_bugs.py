"""Bugs to plant, one at a time in a copy of the checkout, and what finds each.

    python benchmarks/planted_bugs.py               # all of them: an hour
    python benchmarks/planted_bugs.py noise ledger  # those whose names begin so
    python benchmarks/planted_bugs.py mistake       # of mechanisms and estimators, in the docs

House rules read the file, then some small fits run, then the tests of the bug's area: first the
first tier, then the rest. Prints a Markdown table.
"""

import argparse
import importlib
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

CHECKOUT = Path(__file__).resolve().parents[1]


class Mutant(NamedTuple):
    """A bug: this text of a file becomes that one; where tests of it are; cases that fit with it.

    Another text may change too. Cases are those of `tests.core.cases`.
    """

    name: str
    file: str
    old: str
    new: str
    tests: str
    cases: tuple[str, ...] = ()
    also: tuple[str, str] = ("", "")


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
        "        factor = shrink_to_ball(size, clip)\n",
        "        factor = shrink_to_ball(size, 2.0 * clip)\n",
        "tests/core/test_sums.py tests/core/test_replay.py",
    ),
    Mutant(
        "sums: products are not clipped",
        "skdpmf/privacy/sums.py",
        "shrink_to_ball(size, radius[start:stop])",
        "shrink_to_ball(size, 1.1 * radius[start:stop])",
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
        "fit: rows of those who are left out stay",
        "skdpmf/privacy/frame.py",
        "            R = _with_rows(R, self.__included)",
        "            pass",
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
        "skdpmf/privacy/text.py",
        "each person takes part in at most {at_most}, and all ",
        "each person takes part, and all ",
        "tests/privacy/test_statement.py tests/estimators/test_cohorts.py",
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


MEANS = "skdpmf/mechanisms/item_means/residual_rounds.py"
BASELINE = "skdpmf/mechanisms/item_means/baseline.py"
ESTIMATOR = "skdpmf/estimators/dp_item_means.py"
CONTRACT = "skdpmf/estimators/contract/private.py"
LOOP, DPALS = "skdpmf/mechanisms/als/loop.py", "skdpmf/mechanisms/als/dpals.py"
REPLAYS = "tests/core/test_replay.py tests/core/test_maps.py"
COHORTS = "tests/estimators/test_cohorts.py tests/estimators/test_ledger.py"
# Texts that mistakes replace
COUNTED = "        measured = self.curator.release(name, total, statistic=COUNTS)\n"
SUMMED = "        total = self._sums(self.residuals(), clip=_CLIP, signed=True)\n"
WEIGHTS = "        weights = self.users.map(count_weights, self.norm)\n"
MAP = "    rows.run(lambda start, stop: centred_residuals(*given, start, stop, out))\n"
FILLED = MAP + "    return out"
PLANNED = "    return ReleasePlan.from_shares(budget, releases, shares, notes=notes)\n"
ROUNDS = "    for t in rounds:\n        if later is not None and t < later.count:\n"
PUBLISHED = "    def _publish(self, released: Any) -> None:\n"
FITTED = "    def _fit(self, R, y, fit=None):\n        super()._fit(R, y, fit)\n"
FRAMED = "with framed(estimator.budget, plan, estimator.random_state, users=users"
KNOWN = "    curator = frame.curator(*given, exchange=exchange, **own, **public)\n"
WIDE = "\n\ndef _wide(rows, start, stop):\n    k = 1 + int(rows.n_ratings.max())\n"
WIDE += "    return np.ones((stop - start, k))\n"
SUBSET = "bound_contributions(rows.R, tau, priorities(rows))"


def mistake(
    name: str,
    file: str,
    old: str,
    new: str,
    tests: str = REPLAYS,
    case: str = "means of users",
    also: tuple[str, str] = ("", ""),
) -> Mutant:
    """Return a mistake in a mechanism or an estimator."""
    return Mutant(f"mistake: {name}", file, old, new, tests, (case,), also)


MUTANTS += [
    mistake(
        "a multiplier overwritten in the plan", BASELINE, PLANNED,
        PLANNED.replace("return", "plan =")
        + "    own = [(r.name, r.statistic, r.shape, r.sensitivity, 0.1) for r in plan.releases]\n"
        "    made = zip(plan.releases, own, strict=True)\n"
        "    return ReleasePlan(budget, tuple(type(r)(*a, r.count) for r, a in made))\n",
    ),
    mistake(
        "a multiplier overwritten during the fit", MEANS, COUNTED,
        "        for one in self.curator.releases.values():\n"
        "            object.__setattr__(one, 'noise_multiplier', 1e-3)\n" + COUNTED,
    ),
    mistake("counts twice", MEANS, COUNTED, COUNTED + COUNTED),
    mistake(
        "a round more", BASELINE, ROUNDS, "    for t in range(11):\n        if later is not None:\n"
    ),
    mistake(
        "an unplanned release", MEANS, COUNTED, COUNTED.replace("name, total", "'more', total")
    ),
    mistake("exact sums by attribute", MEANS, COUNTED, "        measured = total.private_values\n"),
    mistake(
        "exact sums by astuple", MEANS, COUNTED,
        "        from dataclasses import astuple\n\n        measured = astuple(total)[0]\n",
    ),
    mistake(
        "exact sums by vars", MEANS, COUNTED,
        "        measured = next(iter(vars(total).values()))\n",
    ),
    mistake(
        "the number of ratings by vars of the users", MEANS, WEIGHTS,
        WEIGHTS + "        self.extra = next(iter(vars(self.users).values())).nnz\n",
    ),
    mistake(
        "a map that stores ratings in a global", MEANS, MAP,
        "    globals()['_CLIP'] = 0.5 + 0.01 * float(np.tanh(rows.data.mean()))\n" + MAP,
    ),
    mistake("a map that subtracts the mean of all", MEANS, FILLED, FILLED + " - out.mean()"),
    mistake("a map that scales by the maximum", MEANS, FILLED, FILLED + " / np.abs(out).max()"),
    mistake(
        "rounds stopped by an exception", MEANS, SUMMED,
        "        try:\n            self.users.map(np.linalg.cholesky)\n"
        "        except Exception:\n            return\n" + SUMMED,
    ),
    mistake(
        "a count by the shape of a sum that is not released", MEANS, WEIGHTS,
        WEIGHTS + "        wide = products(self.users, _wide, clip=1.0, grid=2.0**-20)\n"
        "        self.exponent = 1e-3 * wide.shape[0]\n",
        also=(
            "from skdpmf.privacy.sums import BoundedSum, item_scalars\n",
            "from skdpmf.privacy.sums import BoundedSum, item_scalars, products\n" + WIDE,
        ),
    ),
    mistake("the length of a PerUser", MEANS, WEIGHTS, WEIGHTS + "        len(weights)\n"),
    mistake(
        "an estimator that adds the mean of R", ESTIMATOR, PUBLISHED,
        FITTED + "        self.item_means_ += 1e-9 * R.data.mean()\n\n" + PUBLISHED,
    ),
    mistake(
        "an estimator that keeps the number of ratings", ESTIMATOR, PUBLISHED,
        FITTED + "        self.n_ratings_ = R.nnz\n\n" + PUBLISHED,
    ),
    mistake("two curators averaged", CONTRACT, KNOWN, KNOWN + KNOWN),
    mistake(
        "a constant key", CONTRACT, KNOWN,
        "    from skdpmf.privacy.sampler.noise import NoiseSource\n\n"
        "    exchange.noise = lambda *terms: NoiseSource(bytes(32))\n" + KNOWN,
    ),
    mistake(
        "seed 0 for None", CONTRACT, FRAMED, FRAMED.replace("random_state", "random_state or 0"),
        "tests/core/test_frame.py",
    ),
    mistake(
        "the key of a refresh without its knowledge", CONTRACT, KNOWN,
        KNOWN.replace("**public", "levels=levels"),
        "tests/core/test_refresh_replay.py tests/estimators/test_refresh.py",
    ),
    mistake(
        "knowledge with exact counts", MEANS,
        "        return Knowledge(\n            counts=self._counts.copy(),\n",
        "        total = self._sums(self.entry_weights, clip=1.0, signed=False)\n"
        "        return Knowledge(\n            counts=total.private_values[:-1],\n",
    ),
    mistake(
        "people who are left out are fitted", CONTRACT, FRAMED,
        FRAMED.replace(".budget", ".budget.without_ledger()"), COHORTS,
    ),
    mistake(
        "random ids are charged", CONTRACT,
        "        users = X.user_ids if is_stored(X) else labels_of(X)[0]\n",
        "        users = [f'somebody {id(plan)} {i}' for i in range(R.shape[0])]\n", COHORTS,
    ),
    mistake(
        "features made of ratings", ESTIMATOR, PUBLISHED,
        "    def _columns_of(self, X, R):\n        from skdpmf.data import feature_columns\n\n"
        "        return feature_columns.item_columns(R.sum(axis=0)[:, None])\n\n" + PUBLISHED,
    ),
    mistake(
        "half the epsilon in the statement", ESTIMATOR, PUBLISHED,
        PUBLISHED + "        self.privacy_spent_ = None\n",
    ),
    mistake("a larger presence", MEANS, "presence=im.USER_WEIGHT", "presence=1.0"),
    mistake(
        "signed terms as unsigned (harmless)", MEANS, SUMMED, SUMMED.replace("True", "False"),
        "tests/mechanisms/test_residual_rounds.py",
    ),
    mistake(
        "a warning in a map", MEANS, MAP,
        "    __import__('warnings').warn(str(rows.data.mean()), stacklevel=1)\n" + MAP,
    ),
    mistake(
        "a map that writes a file", MEANS, MAP, "    rows.data.tofile('/dev/null')\n" + MAP
    ),
    mistake(
        "a negative weight scale", "skdpmf/mechanisms/gram/covariance.py",
        "            weight_scale=WEIGHT_SCALE,\n            noise=s.noise,\n            n_pieces",
        "            weight_scale=-0.9,\n            noise=s.noise,\n            n_pieces",
        REPLAYS, "covariance of users, Laplace",
    ),
    mistake(
        "terms of all ratings over those kept", LOOP,
        "        users, weight = common.bounded_weights(self.users, self.kept, N, s, cap)\n",
        "        users = self.kept\n"
        "        _, weight = common.bounded_weights(self.users, self.users, N, s, cap)\n",
        case="als dpals, trimmed",
    ),
    mistake(
        "a sum scaled afterwards", MEANS, SUMMED,
        SUMMED + "        total.private_values[...] *= 3.0\n",
    ),
    mistake(
        "add-remove sums for a replace budget", MEANS,
        '    q, replace = im.USER_WEIGHT, neighbors == "replace"\n',
        '    neighbors = "add-remove"\n    q, replace = im.USER_WEIGHT, False\n',
    ),
    mistake(
        "a plan for half of the rounds", DPALS, "count=rounds),\n        planned_vectors(",
        "count=rounds // 2),\n        planned_vectors(", case="als dpals",
    ),
    mistake(
        "a subset by the largest values of all", "skdpmf/mechanisms/common.py", SUBSET,
        "bound_contributions(rows.R, tau, 1.0 * (rows.data < np.median(rows.data)))",
        case="als dpals, trimmed",
    ),
    mistake(
        "the slack of the sampler left out", BASELINE, PLANNED,
        PLANNED.replace("notes=notes", "notes=notes, eta=0.0, tau=0.0"),
    ),
]  # fmt: skip


def copy_of(folder):
    """Copy what git tracks."""
    names = subprocess.run(["git", "ls-files", "-z"], cwd=CHECKOUT, capture_output=True, check=True)
    for name in filter(None, names.stdout.decode().split("\0")):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        if (CHECKOUT / name).is_file():
            (folder / name).write_bytes((CHECKOUT / name).read_bytes())


def breaks_a_rule(folder, mutant):
    """Whether a house rule sees the changed file."""
    house, path = importlib.import_module("tests.house"), mutant.file.removeprefix("skdpmf/")
    source = (folder / mutant.file).read_text(encoding="utf-8")
    rules = house.import_violations, house.reach_violations, house.map_violations
    rules = *rules, house.noise_violations, house.frame_violations, house.around_violations
    return any(rule(path, source) for rule in rules)


FIT = """
import sys
from tests.core.cases import CASES, NEIGHBORS
for neighbors in NEIGHBORS:
    CASES[sys.argv[1]]._replace(neighbors=neighbors).fit()
"""


def is_refused(folder, mutant):
    """Whether a fit with the bug is refused."""
    environment = {**os.environ, "PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1"}
    runs = [
        subprocess.run([sys.executable, "-c", FIT, case], cwd=folder, env=environment)
        for case in mutant.cases
    ]
    return any(run.returncode for run in runs)


def is_found(folder, mutant, tier):
    """Whether tests of the area fail; a collection without tests finds nothing."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "--tier", tier, *mutant.tests.split()]
    environment = {**os.environ, "PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1"}
    run = subprocess.run(command, cwd=folder, env=environment, capture_output=True)
    if run.returncode not in (0, 1, 5):
        raise RuntimeError(run.stdout.decode()[-2000:] + run.stderr.decode()[-2000:])
    return run.returncode == 1


def finder(folder, mutant):
    """Return what finds a bug."""
    if breaks_a_rule(folder, mutant):
        return "a house rule"
    if is_refused(folder, mutant):
        return "the fit"
    tiers = {"first": "the first tier", "rest": "the rest of the tests"}
    return next((tiers[tier] for tier in tiers if is_found(folder, mutant, tier)), "nothing")


PARSER = argparse.ArgumentParser(description=__doc__.splitlines()[0])
PARSER.add_argument("names", nargs="*", help="beginnings of names")


def main():
    options = PARSER.parse_args()
    sys.path.insert(0, str(CHECKOUT))
    chosen = [m for m in MUTANTS if not options.names or m.name.startswith(tuple(options.names))]
    print("| bug | found by | seconds |\n| --- | --- | --- |")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        copy_of(folder)
        for mutant in chosen:
            file, start = folder / mutant.file, time.perf_counter()
            before = file.read_text(encoding="utf-8")
            assert before.count(mutant.old) == 1, f"{mutant.name}: {mutant.file} has changed"
            changed = before.replace(mutant.old, mutant.new)
            file.write_text(changed.replace(*mutant.also, 1), encoding="utf-8")
            found = finder(folder, mutant)
            file.write_text(before, encoding="utf-8")
            seconds = time.perf_counter() - start
            print(f"| {mutant.name} | {found} | {seconds:.0f} |", flush=True)


if __name__ == "__main__":
    main()
