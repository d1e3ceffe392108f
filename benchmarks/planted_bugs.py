"""Bugs to plant, one at a time in a copy of the checkout, and what finds each.

    python benchmarks/planted_bugs.py               # all of them: an hour
    python benchmarks/planted_bugs.py noise ledger  # those whose names begin so
    python benchmarks/planted_bugs.py mistake       # of mechanisms and estimators, in the docs

House rules read the file, then some small fits run, then the tests of the bug's area: first the
first tier, then the rest. Prints a Markdown table.
"""

import importlib
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from harness import parser, print_head, print_row

CHECKOUT = Path(__file__).resolve().parents[1]


class Mutant(NamedTuple):
    """A bug: this text of a file becomes that one; where tests of it are; a case that fits with it.

    Files are relative to the package, and cases those of `tests.core.cases`. Another text may
    change too.
    """

    name: str
    file: str
    old: str
    new: str
    tests: str
    case: str = ""
    also: tuple[str, str] = ("", "")


REPLAYS, MAPS = "core/test_replay.py", "core/test_maps.py"
CURATOR = "core/test_curator.py core/test_planted.py"
NOISE = "privacy/test_noise.py privacy/test_noise_keys.py"
COHORTS = "estimators/test_cohorts.py estimators/test_ledger.py"
REFRESH = "core/test_refresh_replay.py estimators/test_refresh.py"
CLICKS, POOLED = "mechanisms/test_item_item.py", "mechanisms/test_pooled.py"
SUMS, PLAN, GRAM = "privacy/clipped_sums.py", "privacy/plan.py", "mechanisms/gram/item_item.py"
RELEASES, PEOPLE = "privacy/curator_release.py", "books/ledger_cohorts.py"

# fmt: off
BUGS = [
    # sensitivities and clips
    ("sums: counts where a user is replaced", SUMS, "if signed else math.sqrt(2.0) * s",
     "if signed else s", f"core/test_sums.py {REPLAYS}"),
    ("sums: terms are not clipped", SUMS, "shrink_to_ball(size * length, radius)",
     "shrink_to_ball(size * length, 2.0 * radius)", f"core/test_sums.py {REPLAYS}"),
    ("sums: products are not clipped", SUMS, "shrink_to_ball(size, radius[start:stop])",
     "shrink_to_ball(size, 1.1 * radius[start:stop])", f"core/test_sums.py {REPLAYS}"),
    # the curator
    ("curator: a release once more", RELEASES, "check(0 <= index < slot.count",
     "check(0 <= index <= slot.count", CURATOR),
    ("curator: the same release twice", RELEASES, "check(not made", "check(True", CURATOR),
    ("curator: any sensitivity", RELEASES,
     "total.sensitivity <= kind.sensitivity * _ROUNDING", "True", CURATOR),
    ("curator: any shape", RELEASES,
     "len(shape) == len(kind.shape) and all(map(operator.le, shape, kind.shape))", "True",
     CURATOR),
    ("curator: a plan above its budget", RELEASES,
     "if plan.epsilon > plan.budget.epsilon or plan.delta > plan.budget.delta:", "if False:",
     CURATOR),
    # noise and its accounting
    ("noise: a grid that is not paid for", "privacy/sampler/grid.py",
     "return bits, sigma / (1.0 - share) * _OUTWARD", "return bits, 0.9 * sigma",
     f"privacy/test_noise.py {REPLAYS}"),
    ("noise: a release may be made twice", "privacy/sampler/noise.py",
     "require_that((name, index) not in self._made", "require_that(True", NOISE),
    ("noise: one stream for all indices", "privacy/sampler/cipher.py",
     "in (purpose, name, str(int(index))):", "in (purpose, name):", NOISE),
    ("accounting: the number of repetitions", PLAN,
     "release.noise_multiplier / math.sqrt(release.count) for release in self.gaussian",
     "release.noise_multiplier for release in self.gaussian", "privacy core/test_curator.py"),
    ("accounting: shares of mu and not of its square", PLAN,
     "math.sqrt(one.count / shares[one.name]) / mu", "math.sqrt(one.count) / shares[one.name] / mu",
     "privacy core/test_curator.py"),
    # ledgers and refreshes
    ("ledger: a person above the limit", PEOPLE,
     "chosen = may & (spent <= WHOLE - self._share(cost.main)) & (cost.second <= values)",
     "chosen = may & (cost.second <= values)", "books/test_ledger_cohorts.py"),
    ("ledger: a person once more", PEOPLE, "may = times < self.at_most",
     "may = times <= self.at_most", "books/test_ledger_cohorts.py"),
    ("ledger: the total is not written", "books/ledger.py",
     "ledger_file.write_total(connection, entry, total.main, total.second)",
     "ledger_file.write_total(connection, entry, spent.main, spent.second)",
     "books/test_ledger.py"),
    ("fit: rows of those who are left out stay", "privacy/frame.py",
     "for rows in (self.__included, None", "for rows in (None, None",
     "estimators/test_cohorts.py estimators/test_refresh.py"),
    # mechanisms
    ("clicks: centred rows without their norm", "kernels/rows.py",
     "np.where(known[rows], scale[rows] * x, 0.0)", "np.where(known[rows], x, 0.0)",
     f"{CLICKS} kernels/test_rows.py"),
    ("clicks: the noise's edge of eigenvalues", GRAM, "edge = EDGE * 2.0 * deviation",
     "edge = EDGE * 0.5 * deviation", CLICKS),
    ("clicks: tastes without the variance of chance", GRAM,
     "deviation / np.sqrt(2.0) + chance)", "deviation / np.sqrt(2.0))", CLICKS),
    ("clicks: a matrix, however little is known of the counts",
     "mechanisms/item_means/popularity.py", "<= DOUBT * mean[top].sum()",
     "<= 100.0 * mean[top].sum()", CLICKS),
    ("means: counts of two slots weighted the wrong way round", "mechanisms/common.py",
     "(a * x + b * y)", "(b * x + a * y)", POOLED),
    ("pooled: factors are not discounted", "mechanisms/als/pooled_update.py", "    P *= kept\n",
     "    P *= 1.0\n", POOLED),
    # statements, data and the contract
    ("statement: the limit for life", "privacy/text.py",
     "each person takes part in at most {at_most}, and all ", "each person takes part, and all ",
     "privacy/test_statement.py estimators/test_cohorts.py"),
    ("columns: names in another order", "estimators/contract/refreshed.py",
     "return X.reindex(columns=grown.items)", "return X", "estimators/test_refresh.py"),
    ("recommend: rated items are recommended again", "kernels/topk.py",
     "seen_indices[seen_indptr[row] : seen_indptr[row + 1]], items, best)",
     "seen_indices[:0], items, best)", "kernels/test_topk.py estimators/test_lists.py"),
    ("metrics: recall of long lists", "evaluation/metrics.py",
     "return float(np.mean(hits.sum(axis=1) / np.minimum(n_targets, k)))",
     "return float(np.mean(hits.sum(axis=1) / n_targets))", "evaluation/test_metrics.py"),
]

MEANS, BASELINE = (f"mechanisms/item_means/{name}.py" for name in ("residual_rounds", "baseline"))
LOOP, DPALS, ROUNDS = (f"mechanisms/als/{name}.py" for name in ("loop", "dpals", "pooled"))
ESTIMATOR, CONTRACT = "estimators/dp_item_means.py", "estimators/contract/charged.py"
PAIRS, COMMON = "mechanisms/gram/covariance.py", "mechanisms/common.py"
TRIMMED = {"case": "als dpals, trimmed"}
OF_POOLED = {"case": "als pooled"}
# Texts that mistakes replace
COUNTED = "        measured = self.curator.release(name, total, statistic=COUNTS)\n"
SUMMED = "        total = self.sums_of(self.residuals(), clip=CLIP, signed=True)\n"
WEIGHTS = "        weights = self.users.map(count_weights, self.norm)\n"
MAP = "    rows.run(lambda start, stop: centred_residuals(*given, start, stop, out))\n"
FILLED = MAP + "    return out"
PLANNED = "    return ReleasePlan.from_shares(budget, releases, shares, notes=notes)\n"
TURNS = "    for t in rounds:\n        if later is not None and t < later.count:\n"
PUBLISHED = "    def _publish(self, released: Any) -> None:\n"
FITTED = "    def _fit(self, R, y, fit=None):\n        super()._fit(R, y, fit)\n"
FRAMED = "with framed(budget, plan, estimator.random_state, users=users"
KNOWN = "    curator = frame.curator(*given, **beside, **own, **public)\n"
GRADS = "        gradients = self.release(GRADIENTS, G, t).copy()\n"
WIDE = "\n\ndef _wide(rows, start, stop):\n    k = 1 + int(rows.n_ratings.max())\n"
WIDE += "    return np.ones((stop - start, k))\n"
SUBSET = "bound_contributions(rows.R, tau, priorities(rows))"
SOLVED = "        return solver.fit(curator, settings, rounds=self._rounds(), **more)\n"


def planned(change):
    return PLANNED.replace("return", "plan =") + change


def mapped(line):
    return f"    {line}\n" + MAP


def with_method(text):
    return text + "\n" + PUBLISHED


# name, file, old and new text, then its tests and more where they are not the usual ones
MISTAKES = [
    ("a multiplier overwritten in the plan", BASELINE, PLANNED, planned(
        "    own = [(r.name, r.statistic, r.shape, r.sensitivity, 0.1) for r in plan.releases]\n"
        "    made = zip(plan.releases, own, strict=True)\n"
        "    return ReleasePlan(budget, tuple(type(r)(*a, r.count) for r, a in made))\n")),
    ("a multiplier overwritten during the fit", MEANS, COUNTED,
     "        for one in self.curator.releases.values():\n"
     "            object.__setattr__(one, 'noise_multiplier', 1e-3)\n" + COUNTED),
    ("counts twice", MEANS, COUNTED, COUNTED + COUNTED),
    ("a round more", BASELINE, TURNS,
     "    for t in range(11):\n        if later is not None:\n"),
    ("an unplanned release", MEANS, COUNTED, COUNTED.replace("name, total", "'more', total")),
    ("exact sums by attribute", MEANS, COUNTED, "        measured = total.private_values\n"),
    ("exact sums by astuple", MEANS, COUNTED,
     "        from dataclasses import astuple\n\n        measured = astuple(total)[0]\n"),
    ("exact sums by vars", MEANS, COUNTED,
     "        measured = next(iter(vars(total).values()))\n"),
    ("the number of ratings by vars of the users", MEANS, WEIGHTS,
     WEIGHTS + "        self.extra = next(iter(vars(self.users).values())).nnz\n"),
    ("a map that stores ratings in a global", MEANS, MAP,
     mapped("globals()['_CLIP'] = 0.5 + 0.01 * float(np.tanh(rows.data.mean()))")),
    ("a map that subtracts the mean of all", MEANS, FILLED, FILLED + " - out.mean()"),
    ("a map that scales by the maximum", MEANS, FILLED, FILLED + " / np.abs(out).max()"),
    ("rounds stopped by an exception", MEANS, SUMMED,
     "        try:\n            self.users.map(np.linalg.cholesky)\n"
     "        except Exception:\n            return\n" + SUMMED),
    ("a count by the shape of a sum that is not released", MEANS, WEIGHTS,
     WEIGHTS + "        wide = products(self.users, _wide, clip=1.0, grid=2.0**-20)\n"
     "        self.exponent = 1e-3 * wide.shape[0]\n", {"also": (
         "item_scalars, scalars_bound\n",
         "item_scalars, products, scalars_bound\n" + WIDE)}),
    ("the length of a PerUser", MEANS, WEIGHTS, WEIGHTS + "        len(weights)\n"),
    ("an estimator that adds the mean of R", ESTIMATOR, PUBLISHED,
     with_method(FITTED + "        self.item_means_ += 1e-9 * R.data.mean()\n")),
    ("an estimator that keeps the number of ratings", ESTIMATOR, PUBLISHED,
     with_method(FITTED + "        self.n_ratings_ = R.nnz\n")),
    ("two curators averaged", CONTRACT, KNOWN, KNOWN + KNOWN),
    ("a constant key", CONTRACT, KNOWN,
     "    from skdpmf.privacy.sampler import noise\n\n"
     "    noise.fresh_key = lambda: bytes(32)\n" + KNOWN),
    ("seed 0 for None", CONTRACT, FRAMED, FRAMED.replace("random_state", "random_state or 0"),
     {"tests": "core/test_frame.py"}),
    ("the key of a refresh without its knowledge", CONTRACT, KNOWN,
     KNOWN.replace("**public", "levels=levels"), {"tests": REFRESH}),
    ("knowledge with exact counts", MEANS,
     "        return Knowledge(counts, ",
     "        total = self.sums_of(self.entry_weights, clip=1.0, signed=False)\n"
     "        return Knowledge(total.private_values[:-1], "),
    ("people who are left out are fitted", CONTRACT, FRAMED,
     FRAMED.replace("(budget", "(budget.without_ledger()"), {"tests": COHORTS}),
    ("random ids are charged", CONTRACT,
     "        users = labels_of(X)[0]\n",
     "        users = [f'somebody {id(plan)} {i}' for i in range(R.shape[0])]\n",
     {"tests": COHORTS}),
    ("features made of ratings", ESTIMATOR, PUBLISHED, with_method(
        "    def _columns_of(self, X, R):\n        from skdpmf.data import feature_columns\n\n"
        "        return feature_columns.item_columns(R.sum(axis=0)[:, None])\n")),
    ("half the epsilon in the statement", ESTIMATOR, PUBLISHED,
     PUBLISHED + "        self.privacy_spent_ = None\n"),
    ("a larger presence", MEANS, "presence=im.USER_WEIGHT", "presence=1.0"),
    ("signed terms as unsigned (harmless)", MEANS, SUMMED, SUMMED.replace("True", "False"),
     {"tests": "mechanisms/test_residual_rounds.py"}),
    ("a warning in a map", MEANS, MAP,
     mapped("__import__('warnings').warn(str(rows.data.mean()), stacklevel=1)")),
    ("a map that writes a file", MEANS, MAP, mapped("rows.data.tofile('/dev/null')")),
    ("a negative weight scale", PAIRS,
     "            weight_scale=WEIGHT_SCALE,\n            noise=s.noise,\n            n_pieces",
     "            weight_scale=-0.9,\n            noise=s.noise,\n            n_pieces",
     {"case": "covariance of users, Laplace"}),
    ("terms of all ratings over those kept", LOOP,
     "        users, weight = common.bounded_weights(self.users, self.kept, N, s, cap)\n",
     "        users = self.kept\n"
     "        _, weight = common.bounded_weights(self.users, self.users, N, s, cap)\n", TRIMMED),
    ("a sum scaled afterwards", MEANS, SUMMED,
     SUMMED + "        total.private_values[...] *= 3.0\n"),
    ("add-remove sums for a replace budget", MEANS,
     '{"norm": norm, "neighbors": neighbors}', '{"norm": norm, "neighbors": "add-remove"}'),
    ("a plan for half of the rounds", DPALS, "settings.clip * bound, count=rounds",
     "settings.clip * bound, count=rounds // 2", {"case": "als dpals"}),
    ("a subset by the largest values of all", COMMON, SUBSET,
     "bound_contributions(rows.R, tau, 1.0 * (rows.data < np.median(rows.data)))", TRIMMED),
    ("the slack of the sampler left out", BASELINE, PLANNED,
     PLANNED.replace("notes=notes", "notes=notes, eta=0.0, tau=0.0")),
    # our own
    ("a user's values beside the next user's", MEANS, FILLED, FILLED + " + np.roll(out, 1)"),
    ("a running total over users", MEANS, FILLED, FILLED + " + 1e-3 * np.cumsum(out)"),
    ("an assertion about ratings in a map", MEANS, MAP,
     mapped("assert rows.data.max(initial=0.0) < 9.0")),
    ("ratings kept on the function of a map", MEANS, MAP,
     mapped("weighted_residuals.seen = rows.data")),
    ("ratings saved by a map", MEANS, MAP, mapped("np.savez('/dev/null', rows.data)")),
    ("a map made on the spot", MEANS, "self.users.map(count_weights, self.norm)",
     "self.users.map(lambda rows, norm: count_weights(rows, norm), self.norm)"),
    ("noise of a mechanism's own", MEANS, COUNTED,
     COUNTED + "        measured = measured + np.random.default_rng().normal(size=1)\n"),
    ("the exact sum of a fit without privacy", MEANS, COUNTED,
     "        measured = total.without_privacy()\n"),
    ("the rows of a fit without privacy", MEANS, WEIGHTS,
     WEIGHTS + "        self.extra = self.users.without_privacy().nnz\n"),
    ("influence made of ratings", MEANS, '"influence": self.influence}',
     '"influence": self.users.map(count_weights, self.norm)}'),
    ("Gram matrices in the slot of gradients", ROUNDS, GRADS,
     "        gradients = self.release(GRADIENTS, H, t).copy()\n", OF_POOLED),
    ("clip factors that are not of the sum", ROUNDS, GRADS + "        gradients[:, 1:] -= OWN",
     GRADS + "        gradients[:, 1:] -= float(clipped) * OWN", OF_POOLED),
    ("vectors of twice the planned norm", ROUNDS, "clip=clip * radius, grid",
     "clip=2.0 * clip * radius, grid", OF_POOLED),
    ("the first round's gradients again", ROUNDS, GRADS, GRADS.replace("G, t)", "G, 0)"),
     OF_POOLED),
    ("a catalogue of half the items in the plan", ROUNDS, "*(n_items, k + 1),",
     "*(n_items // 2, k + 1),", OF_POOLED),
    ("a plan of a larger budget", BASELINE, PLANNED,
     "    budget = PrivacyBudget(2.0 * budget.epsilon, budget.delta, unit=budget.unit, "
     "neighbors=budget.neighbors)\n" + PLANNED),
    ("a central fit that says it is local", BASELINE, PLANNED, planned(
        "    from dataclasses import replace\n\n    return replace(plan, local=True)\n")),
    ("an estimator that keeps its curator", ESTIMATOR, SOLVED,
     "        self.curator_ = curator\n" + SOLVED, {"tests": "estimators/test_base.py"}),
    ("a fit that counts before it is framed", ESTIMATOR, PUBLISHED, with_method(
        "    def _framed(self, X, R, start, metadata):\n        self.n_ratings_ = R.nnz\n"
        "        return super()._framed(X, R, start, metadata)\n")),
    ("a release within a trial that is undone", MEANS, COUNTED,
     "        import copy\n\n        measured = copy.copy(self.curator).release(name, total, "
     "statistic=COUNTS)\n" + COUNTED),
    ("a map that raises ratings to the largest in place", MEANS, MAP,
     mapped("np.maximum(rows.data, rows.data.max(initial=0.0), out=rows.data)")),
    ("a map that shortens the longest rows in place", MEANS, MAP,
     mapped("n = rows.n_ratings\n    np.minimum(n, 3, out=n)")),
    ("a map that writes to a released array", MEANS, MAP,
     mapped("np.minimum(mean, 1e3 - rows.data.sum(), out=mean)")),
]
# fmt: on


def mistake(name, file, old, new, more=None):
    """Return a mistake in a mechanism or an estimator."""
    usual = {"tests": f"{REPLAYS} {MAPS}", "case": "means of users"}
    return Mutant(f"mistake: {name}", file, old, new, **{**usual, **(more or {})})


MUTANTS = [*(Mutant(*bug) for bug in BUGS), *(mistake(*bug) for bug in MISTAKES)]


def copy_of(folder):
    """Copy what git tracks."""
    names = subprocess.run(["git", "ls-files", "-z"], cwd=CHECKOUT, capture_output=True, check=True)
    for name in filter(None, names.stdout.decode().split("\0")):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        if (CHECKOUT / name).is_file():
            (folder / name).write_bytes((CHECKOUT / name).read_bytes())


def breaks_a_rule(folder, mutant):
    """Whether a house rule sees the changed file."""
    house = importlib.import_module("tests.house")
    source = (folder / "skdpmf" / mutant.file).read_text(encoding="utf-8")
    rules = "import", "reach", "map", "noise", "frame", "around"
    return any(getattr(house, f"{name}_violations")(mutant.file, source) for name in rules)


FIT = """
import sys
from tests.core.cases import CASES, NEIGHBORS
for neighbors in NEIGHBORS:
    CASES[sys.argv[1]]._replace(neighbors=neighbors).fit()
"""


def run(folder, *command):
    environment = {**os.environ, "PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, *command], cwd=folder, env=environment, capture_output=True
    )


def is_found(folder, mutant, tier):
    """Whether tests of the area fail; a collection without tests finds nothing."""
    tests = [f"tests/{name}" for name in mutant.tests.split()]
    made = run(folder, "-m", "pytest", "-x", "-q", "--tier", tier, *tests)
    if made.returncode not in (0, 1, 5):
        raise RuntimeError(made.stdout.decode()[-2000:] + made.stderr.decode()[-2000:])
    return made.returncode == 1


def finder(folder, mutant):
    """Return what finds a bug."""
    if breaks_a_rule(folder, mutant):
        return "a house rule"
    if mutant.case and run(folder, "-c", FIT, mutant.case).returncode:
        return "the fit"
    tiers = {"first": "the first tier", "rest": "the rest of the tests"}
    return next((tiers[tier] for tier in tiers if is_found(folder, mutant, tier)), "nothing")


PARSER = parser(__doc__)
PARSER.add_argument("names", nargs="*", help="beginnings of names")


def main():
    options = PARSER.parse_args()
    sys.path.insert(0, str(CHECKOUT))
    chosen = [m for m in MUTANTS if not options.names or m.name.startswith(tuple(options.names))]
    print_head("bug", "found by", "seconds")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        copy_of(folder)
        for mutant in chosen:
            file, start = folder / "skdpmf" / mutant.file, time.perf_counter()
            before = file.read_text(encoding="utf-8")
            assert before.count(mutant.old) == 1, f"{mutant.name}: {mutant.file} has changed"
            changed = before.replace(mutant.old, mutant.new)
            file.write_text(changed.replace(*mutant.also, 1), encoding="utf-8")
            found = finder(folder, mutant)
            file.write_text(before, encoding="utf-8")
            print_row(mutant.name, found, f"{time.perf_counter() - start:.0f}")


if __name__ == "__main__":
    main()
