"""The audit: how long it takes for each private estimator, and how often it blames an honest one.

    python benchmarks/bench_audit.py times --data ml-1m.parquet
    python benchmarks/bench_audit.py alarms --audits 400
    python benchmarks/bench_audit.py power

- times: seconds of an audit with default settings, attack 2 and canaries, of estimators with their
  defaults, on 2,000 synthetic users x 300 items and on the ratings of --data; and its findings.
- alarms: false alarms of small audits, each with its own data and seed, and their 95 % upper limit.
- power: 95 % lower limits of epsilon by 100 repetitions, and by 200 canaries in one run: guesses
  from the model, and from the noisy sums with either limit; as medians of 3 audits, with seconds of
  processor time, on 200 synthetic users x 200 items. Twice the mu is half of the noise.

Without a part all run. Ratings come from --data FILE or $SKDPMF_DATA/ml-1m.parquet. Prints
Markdown tables.
"""

import argparse
import time
from pathlib import Path

import numpy as np
from bench_utility import data_path, print_head, print_row, split
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
from skdpmf.evaluation._audit_run import AuditRun, Sums, guess_members
from skdpmf.evaluation.audit_estimates import canary_epsilon
from skdpmf.evaluation.audit_one_run import gaussian_canary_epsilon, guess_from_releases
from skdpmf.privacy.accounting import gaussian_epsilon, gaussian_mu

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
    "LocalDPGDDR, randomised response": (LocalDPGDDR, LOCAL, {"method": "randomized-response"}),
}
SETTINGS = {"n_neighbors": 24, "n_runs": 60, "n_canaries": 40}
# Small, so that there can be many of them; the checks are the same.
SMALL = {"n_neighbors": 8, "n_runs": 10, "n_canaries": 20}
SMALL_ROUNDS = {"AdaptiveWeightALS": 2, "DPMFSampler": 3, "DPMFSampler, posterior": 8}


def made(name, **changes):
    kind, budget, settings = ESTIMATORS[name]
    return kind(budget).set_params(**{**settings, **changes})


def shown(number):
    return "" if number != number else f"{number:.3g}"


def times(X, title, names):
    print(f"\n{title}\n")
    head = ["estimator", "s", "verdict", "claimed", "neighbours reach", "repetition", "canaries"]
    print_head(*head)
    for name in names:
        start = time.perf_counter()
        report = audit(made(name), X, **SETTINGS)
        seconds = time.perf_counter() - start
        verdict = "nothing found" if report.passed else "FAILED"
        found = report.epsilon, report.epsilon_attained, report.epsilon_lower
        print_row(name, f"{seconds:.0f}", verdict, *map(shown, (*found, report.epsilon_canaries)))


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


def power(n_audits=3, n_runs=100, n_canaries=200, sure=0.95):
    X, delta = make_ratings(200, 200, density=0.1, random_state=0), BUDGET.delta
    head = ["estimator", "epsilon", "repetition", "Steinke, model", "Steinke, sums", "f-DP, sums"]
    print_head(*head, "s: repetition", "model", "sums")
    for kind in (DPItemMeans, DPCovarianceRecommender):
        for mu in (
            factor * gaussian_mu(epsilon, delta) for epsilon in (1.0, 8.0) for factor in (1, 2)
        ):
            epsilon, found = gaussian_epsilon(mu, delta), []
            for seed in range(n_audits):
                run = AuditRun(kind(PrivacyBudget(epsilon, delta)), X, seed)
                part = Sums(run)
                run.replay([part], 8)
                times = [time.process_time()]
                _, repeated = part.repeated(n_runs, sure)
                times.append(time.process_time())
                _, model = guess_members(run, n_canaries, sure)
                times.append(time.process_time())
                guesses = *guess_from_releases(run, n_canaries), n_canaries, delta, sure
                times.append(time.process_time())
                limits = (
                    repeated,
                    model,
                    canary_epsilon(*guesses),
                    gaussian_canary_epsilon(*guesses),
                )
                found.append([*limits, *np.diff(times)])
            *limits, one, two, three = np.median(found, axis=0)
            seconds = (f"{value:.1f}" for value in (one, two, three))
            print_row(kind.__name__, f"{epsilon:.3g}", *map(shown, limits), *seconds)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", nargs="?", choices=("times", "alarms", "power"))
    parser.add_argument("--data", type=Path, help="default: $SKDPMF_DATA/ml-1m.parquet")
    parser.add_argument("--audits", type=int, default=400)
    parser.add_argument("--only", nargs="*", choices=list(ESTIMATORS), default=list(ESTIMATORS))
    options = parser.parse_args()
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
    if options.part in (None, "power"):
        print("\nPower\n")
        power()


if __name__ == "__main__":
    main()
