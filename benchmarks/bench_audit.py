"""The audit: how long it takes for each private estimator, and how often it blames an honest one.

    python benchmarks/bench_audit.py times --data ml-1m.parquet
    python benchmarks/bench_audit.py alarms --audits 400

- times: seconds of an audit with default settings, attack by repetition, of estimators with their
  defaults, on 2,000 synthetic users x 300 items and on the ratings of --data; and its findings.
- alarms: false alarms of small audits, each with its own data and seed, and their 95 % upper limit.

Without a part both run. Ratings come from --data FILE or $SKDPMF_DATA/ml-1m.parquet. Prints
Markdown tables.
"""

import time

from harness import data_path, parser, print_head, print_row
from ratings import split
from scipy import stats

from skdpmf import (
    AdaptiveWeightALS,
    DPCovarianceRecommender,
    DPItemMeans,
    DPMFSampler,
    LocalDPGDDR,
    PrivacyBudget,
)
from skdpmf.data import make_ratings, read_ratings
from skdpmf.evaluation import audit

BUDGET, PURE, LOCAL = PrivacyBudget(4.0, 1e-5), PrivacyBudget(4.0), PrivacyBudget(2.0)
RATING = PrivacyBudget(4.0, 1e-5, unit="rating")
ESTIMATORS = {
    "AdaptiveWeightALS": (AdaptiveWeightALS, BUDGET, {}),
    "DPCovarianceRecommender, user": (DPCovarianceRecommender, BUDGET, {}),
    "DPCovarianceRecommender, rating": (DPCovarianceRecommender, RATING, {}),
    "DPItemMeans": (DPItemMeans, BUDGET, {}),
    "DPMFSampler": (DPMFSampler, BUDGET, {}),
    "DPMFSampler, posterior": (DPMFSampler, PURE, {"guarantee": "posterior"}),
    "DPMFSampler, posterior by SGLD": (
        DPMFSampler,
        PURE,
        {"guarantee": "posterior", "guarantee__sampler": "sgld"},
    ),
    "LocalDPGDDR": (LocalDPGDDR, LOCAL, {}),
    "LocalDPGDDR, sampled sign": (LocalDPGDDR, LOCAL, {"randomizer": "coordinate"}),
    "LocalDPGDDR, gradient": (LocalDPGDDR, LOCAL, {"method": "gradient"}),
    "LocalDPGDDR, Algorithm 2": (
        LocalDPGDDR,
        LOCAL,
        {"method": "gradient", "randomizer": "coordinate", "method__projection_dim": 10},
    ),
}
PARSER = parser(__doc__, data=None, audits=400, only=ESTIMATORS)
PARSER.add_argument("part", nargs="?", choices=("times", "alarms"))
SETTINGS = {"n_neighbors": 24, "n_runs": 60}
# Small, so that there can be many of them; the checks are the same.
SMALL = {"n_neighbors": 8, "n_runs": 10}
SMALL_ROUNDS = {"AdaptiveWeightALS": 2, "DPMFSampler": 3, "DPMFSampler, posterior": 8}


def made(name, **changes):
    kind, budget, settings = ESTIMATORS[name]
    return kind(budget).set_params(**{**settings, **changes})


def shown(number):
    return "" if number != number else f"{number:.3g}"


def times(X, title, names):
    print(f"\n{title}\n")
    head = ["estimator", "s", "verdict", "claimed", "neighbours reach", "repetition"]
    print_head(*head)
    for name in names:
        start = time.perf_counter()
        report = audit(made(name), X, **SETTINGS)
        seconds = time.perf_counter() - start
        verdict = "nothing found" if report.passed else "FAILED"
        found = report.epsilon, report.epsilon_attained, report.epsilon_lower
        print_row(name, f"{seconds:.0f}", verdict, *map(shown, found))


def alarms(n_audits, names):
    print_head("estimator", "audits", "false alarms", "s of one")
    total = found = 0
    for name in names:
        changes = {"n_components": 2} if "DPItemMeans" not in name else {}
        if name in SMALL_ROUNDS or "SGLD" in name:
            changes["max_iter"] = SMALL_ROUNDS.get(name, 8)
        n, blamed = max(n_audits // len(names), 1), 0
        start = time.perf_counter()
        for seed in range(n):
            X = make_ratings(50, 12, density=0.4, random_state=seed)
            report = audit(made(name, **changes), X, random_state=seed, **SMALL)
            if not report.passed:
                blamed += 1
                print(report, flush=True)
        print_row(name, n, blamed, f"{(time.perf_counter() - start) / n:.2f}")
        total, found = total + n, found + blamed
    limit = float(stats.beta.ppf(0.95, found + 1, total - found))
    print(f"\n{found} false alarms in {total} audits: below {100 * limit:.2f} %, 95 % sure.")


def main(arguments=None):
    options = PARSER.parse_args(arguments)
    if options.part in (None, "times"):
        X = make_ratings(2000, 300, density=0.1, random_state=0)
        times(X, "Synthetic: 2,000 users x 300 items.", options.only)
        path = data_path(options)
        if path is not None:
            R, _ = split(read_ratings(path), 0)
            times(R, f"{path.stem}: {R.shape[0]:,} users x {R.shape[1]:,} items.", options.only)
    if options.part in (None, "alarms"):
        print("\nFalse alarms\n")
        alarms(options.audits, options.only)


if __name__ == "__main__":
    main()
