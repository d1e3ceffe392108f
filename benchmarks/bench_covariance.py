"""DPCovarianceRecommender: test RMSE against epsilon and against the number of users, and its cost.

    python benchmarks/bench_covariance.py curve --data ml-1m.parquet
    python benchmarks/bench_covariance.py size
    python benchmarks/bench_covariance.py scale --data ml-1m.parquet --n-jobs 2

- curve: RMSE against epsilon (the paper's Figure 1) beside item means alone, AdaptiveWeightALS and
  the target figures; split and evaluation are those of `bench_utility.py`.
- size: the cost of privacy with 5,000 to 500,000 users at the paper's noise (its Figure 2).
- scale: seconds of the steps and peak memory at the size of MovieLens 20M, and MovieLens 1M.

Without a part all of them run. Ratings come from --data FILE or $SKDPMF_DATA/ml-1m.parquet, else
they are synthetic. Prints Markdown tables.
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from threading import Lock
from unittest.mock import patch

import numpy as np
import scipy.sparse as sp
from bench_utility import (
    MOVIELENS_1M_ROWS,
    Cell,
    data_path,
    measure,
    print_constants,
    print_head,
    print_row,
    ranks,
)
from bench_utility import split as split_file
from memory import peak_gib, shown_size, verdict

from skdpmf import (
    AdaptiveWeightALS,
    DPCovarianceRecommender,
    NoisyCovariance,
    Pooled,
    PrivacyBudget,
)
from skdpmf.data import make_ratings, read_ratings, synthetic
from skdpmf.data.synthetic import RatingTruth
from skdpmf.evaluation import rmse, split_ratings
from skdpmf.mechanisms.gram import covariance as solver
from skdpmf.privacy.accounting import gaussian_epsilon

EPSILONS = (0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, np.inf)
KINDS = [(unit, noise) for unit in ("rating", "user") for noise in ("gaussian", "laplace")]
# Targets of the defaults on MovieLens 1M, split 0, delta 1e-5, Gaussian noise.
TARGETS = {
    "rating": {1.0: 0.925, 4.0: 0.905, np.inf: 0.890},
    "user": {1.0: 0.945, 4.0: 0.925, 8.0: 0.915, np.inf: 0.890},
}
# The paper's theta of global effects, item averages and covariance, parts of the whole theta.
PAPER_PARTS, PAPER_THETA = (0.02, 0.19, 0.79), 0.15
PAPER_MU = PAPER_THETA * float(np.linalg.norm(PAPER_PARTS))
VARIANTS = {
    "knn": {"predictor": "knn"},
    "knn, not cleaned": {"predictor": "knn", "covariance__clean": False},
    "not cleaned": {"covariance__clean": False},
    "paper's split": {"covariance__shares": "paper"},
}
VARIANT_EPSILONS = (0.25, 1.0, 4.0, 16.0, np.inf)

SIZES = (5_000, 20_000, 80_000, 200_000, 500_000)
SIZE_ITEMS, SIZE_RATINGS = 500, 40

# MovieLens 20M: lengths of its users, and popularity near that of its items
USERS, ITEMS, RANK = 138_493, 26_744, 10
LENGTH_MEAN, LENGTH_SD, LENGTH_RANGE = 147.0, 230.0, (20, 9_254)
SCALE_SHARES = (0.0, 0.35, 0.65)  # explicit, so that all items are covered
SCALE_SECONDS, SCALE_GIB, FIT_SECONDS = 300.0, 8.0, 5.0


def note(text):
    print(text, file=sys.stderr, flush=True)


def make_budget(epsilon, unit, noise, delta):
    if not np.isfinite(epsilon):
        return PrivacyBudget.nonprivate()
    return PrivacyBudget(epsilon, delta if noise == "gaussian" else 0.0, unit=unit)


def paper_shares(noise):
    """The paper's parts: of epsilon, or of mu, whose squares add up."""
    parts = [part ** (2 if noise == "gaussian" else 1) for part in PAPER_PARTS]
    return tuple(part / sum(parts) for part in parts)


def means_shares(unit):
    """Item means alone."""
    overall = 0.005 if unit == "user" else 0.0
    return (overall, 1.0 - overall, 0.0)


@dataclass
class Fits(Cell):
    """Fits of one setting at one epsilon, one a seed."""

    covered: list = field(default_factory=list)

    @property
    def standard_error(self):
        n = len(self.errors)
        return statistics.stdev(self.errors) / np.sqrt(n) if n > 1 else 0.0


def fits(epsilon, kind, X, Y, options, seeds=None, **parameters):
    """Fit at one epsilon, one model a seed."""
    unit, noise = kind
    name = ", ".join(f"{key} {value}" for key, value in parameters.items()) or "defaults"
    if isinstance(parameters.get("covariance__shares"), str):
        parameters |= {"covariance__shares": paper_shares(noise)}
    cell = Fits([], [], [], [])
    for seed in range((seeds or options.seeds) if np.isfinite(epsilon) else 1):
        # Seeded, so that the table can be made again; a real release leaves random_state alone.
        model = DPCovarianceRecommender(
            make_budget(epsilon, unit, noise, options.delta),
            noise=noise,
            random_state=seed,
            n_jobs=options.n_jobs,
        ).set_params(**parameters)
        begin = time.perf_counter()
        model.fit(X)
        cell.seconds.append(time.perf_counter() - begin)
        cell.errors.append(rmse(Y, model.predict_entries(X, Y)))
        cell.ranks.append(int(np.any(model.components_ != 0, axis=1).sum()))
        cell.covered.append(model.covariance_items_.size)
    note(
        f"{unit}, {noise}, {name}, epsilon {epsilon:g}: {cell}, "
        f"items {cell.covered}, rank {cell.ranks}, {cell.seconds[-1]:.2f} s"
    )
    return cell


def item_range(cell):
    low, high = min(cell.covered), max(cell.covered)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


# curve


def run_curve(options):
    path = data_path(options)
    curves = {}
    for number, (name, X, Y, targets) in enumerate(curve_sets(options, path)):
        print(
            f"{name}: {X.shape[0]:,} users x {X.shape[1]:,} items, {X.nnz:,} training and "
            f"{Y.nnz:,} test ratings, delta {options.delta:g} (Laplace: 0), {options.seeds} noise "
            "seeds\n"
        )
        print_constants(X, Y)
        kinds = KINDS if number == 0 else [kind for kind in KINDS if kind[1] == "gaussian"]
        for kind in kinds:
            cells = main_table(kind, X, Y, options, targets, peer=number == 0)
            if number == 0:
                curves[kind] = cells
        if number == 0:
            variant_tables(X, Y, options, curves)


def curve_sets(options, path):
    """Yield a name, training and test matrices, and whether the targets are for them."""
    if path is None or not path.exists():
        print(f"no ratings file ({path}): --data or $SKDPMF_DATA; synthetic ratings\n")
        X = make_ratings(20_000, 300, random_state=0)
        yield "Synthetic", *split_ratings(X, random_state=0), False
        return
    frame = read_ratings(path)
    for seed in [0, *options.fresh_splits]:
        targets = seed == 0 and len(frame) == MOVIELENS_1M_ROWS
        yield f"Split {seed}", *split_file(frame, seed), targets


def main_table(kind, X, Y, options, targets, *, peer):
    """One unit and noise with the defaults, beside item means alone."""
    unit, noise = kind
    goals = TARGETS[unit] if targets and noise == "gaussian" else {}
    peer = peer and kind == ("user", "gaussian")
    print(f"One {unit}, {noise} noise:\n")
    names = ["item means alone", *(["AdaptiveWeightALS"] if peer else []), "covariance"]
    extras = [*(["theta"] if kind == ("rating", "gaussian") else []), "items covered", "rank"]
    print_head("epsilon", *names, *extras, *(["target", ""] if goals else []))
    means, cells = {}, {}
    for epsilon in options.epsilons:
        means[epsilon] = fits(epsilon, kind, X, Y, options, covariance__shares=means_shares(unit))
        cell = cells[epsilon] = fits(epsilon, kind, X, Y, options)
        row = [means[epsilon], *([measure("adaptive", epsilon, X, Y, options)] if peer else [])]
        row.append(cell)
        if kind == ("rating", "gaussian"):
            row.append(paper_theta(epsilon, options.delta))
        row += [item_range(cell), ranks(cell)]
        if goals:
            goal = goals.get(epsilon)
            verdict = "met" if goal and cell.error <= goal else "MISSED"
            row += [f"{goal:.3f}", verdict] if goal else ["", ""]
        print_row(f"{epsilon:g}", *row)
    print()
    never_worse(f"one {unit}, {noise} noise", means, cells)
    return {"means": means, "covariance": cells}


def paper_theta(epsilon, delta):
    """The paper's theta that has this epsilon by exact accounting of its three joint releases."""
    if not np.isfinite(epsilon):
        return ""
    return f"{PrivacyBudget(epsilon, delta).mu / np.linalg.norm(PAPER_PARTS):.3g}"


def never_worse(label, means, cells):
    """Differences of the means of the seeds; the two plans draw unrelated noise."""
    worse = []
    for epsilon, cell in cells.items():
        loss = cell.error - means[epsilon].error
        if loss > 0:
            error = np.hypot(cell.standard_error, means[epsilon].standard_error)
            worse.append(f"{epsilon:g} (by {loss:.5f} ± {error:.5f})")
    verdict = f"worse at epsilon {', '.join(worse)} (± standard error)" if worse else "met"
    print(f"Never worse than item means alone, {label}: {verdict}\n", flush=True)


def variant_tables(X, Y, options, curves):
    for unit, noise in (kind for kind in KINDS if kind[1] == "gaussian"):
        print(f"One {unit}, {noise} noise, {options.minor_seeds} noise seeds for the variants:\n")
        print_head("epsilon", "defaults", *VARIANTS)
        found = {name: {} for name in VARIANTS}
        for epsilon in (e for e in options.epsilons if e in VARIANT_EPSILONS):
            for name, parameters in VARIANTS.items():
                found[name][epsilon] = fits(
                    *(epsilon, (unit, noise), X, Y, options), options.minor_seeds, **parameters
                )
            row = [found[name][epsilon] for name in VARIANTS]
            print_row(f"{epsilon:g}", curves[unit, noise]["covariance"][epsilon], *row)
        print()
        never_worse(f"one {unit}, knn", curves[unit, noise]["means"], found["knn"])
    epsilon = gaussian_epsilon(PAPER_MU, options.delta)
    print(
        f"The paper's theta = {PAPER_THETA:g} is mu {PAPER_MU:.5f}, epsilon {epsilon:.4f} at "
        f"delta {options.delta:g}, if each of its three releases is one joint vector\n"
    )


# size


def run_size(options):
    epsilon = gaussian_epsilon(PAPER_MU, options.delta)
    kind = ("rating", "gaussian")
    n_users = max(options.sizes)
    print(
        f"Fixed noise: mu {PAPER_MU:.5f}, epsilon {epsilon:.4f}, delta {options.delta:g}, for "
        f"one rating; {SIZE_ITEMS} items, {SIZE_RATINGS} ratings a user, a tenth held out; "
        f"{options.size_seeds} noise seeds\n"
    )
    # the first rows of one draw: the same items in all sizes
    whole = make_ratings(n_users, SIZE_ITEMS, n_ratings=SIZE_RATINGS * n_users, random_state=0)
    variants = {
        "item means alone": {"covariance__shares": means_shares("rating")},
        "paper's split": {"covariance__shares": "paper"},
        "defaults": {},
    }
    names = [f"{name}, loss" for name in variants]
    print_head("users", "ratings", "RMSE without privacy", *names, "items covered", "seconds a fit")
    for n in sorted(options.sizes):
        X, Y = split_ratings(whole[:n], random_state=0)
        plain, cells = fits(np.inf, kind, X, Y, options), {}
        for name, parameters in variants.items():
            cells[name] = fits(epsilon, kind, X, Y, options, options.size_seeds, **parameters)
            cells[name].errors = [error - plain.error for error in cells[name].errors]
        row = (item_range(cells["defaults"]), f"{statistics.median(cells['defaults'].seconds):.2f}")
        print_row(f"{n:,}", f"{X.nnz:,}", f"{plain.error:.4f}", *cells.values(), *row)
    print()


# scale


def run_scale(options):
    X, Y = scale_ratings(options)
    n = np.diff(X.indptr)
    counts = np.bincount(X.indices, minlength=X.shape[1])
    print(
        f"Synthetic: {X.shape[0]:,} users x {X.shape[1]:,} items, {X.nnz:,} training ratings; of a "
        f"user mean {n.mean():.0f}, sd {n.std():.0f}, most {n.max():,}; of an item median "
        f"{np.median(counts):g}, most {counts.max():,}. One rating, epsilon 4, delta "
        f"{options.delta:g}, Gaussian, shares {SCALE_SHARES}, {options.n_jobs} threads\n"
    )
    budget = PrivacyBudget(4.0, options.delta, unit="rating")
    warm = make_ratings(500, 400, random_state=0)
    model = DPCovarianceRecommender(
        budget,
        random_state=0,
        n_jobs=options.n_jobs,
        covariance=NoisyCovariance(shares=SCALE_SHARES),
    ).fit(warm)
    loaded = peak_gib()
    begin = time.perf_counter()
    with timed_steps() as steps:
        model.fit(X)
    seconds = time.perf_counter() - begin
    peak = peak_gib()
    print_head("step", "seconds")
    for name, value in steps.items():
        print_row(name, f"{value:.1f}")
    print_row("whole fit", f"{seconds:.1f}")
    print()
    outcome = verdict(seconds, SCALE_SECONDS, peak, SCALE_GIB)
    rank = int(np.any(model.components_ != 0, axis=1).sum())
    print(
        f"{seconds:.0f} s (target {SCALE_SECONDS:g} s), "
        f"peak of the process {shown_size(peak, unit=' GiB')}, "
        f"{shown_size(loaded)} before the fit (target {SCALE_GIB:g} GiB): {outcome}; "
        f"{model.covariance_items_.size:,} items covered, rank {rank}, "
        f"test RMSE {rmse(Y, model.predict_entries(X, Y)):.4f}\n",
        flush=True,
    )
    del model
    peer = AdaptiveWeightALS(PrivacyBudget.nonprivate(), n_jobs=options.n_jobs).fit(warm)
    alone = DPCovarianceRecommender(
        budget,
        random_state=0,
        n_jobs=options.n_jobs,
        covariance=NoisyCovariance(shares=means_shares("rating")),
    )
    print_head("beside it", "seconds", "test RMSE")
    for name, other in (("item means alone", alone), ("AdaptiveWeightALS, not private", peer)):
        begin = time.perf_counter()
        other.fit(X)
        seconds = time.perf_counter() - begin
        print_row(name, f"{seconds:.1f}", f"{rmse(Y, other.predict_entries(X, Y)):.4f}")
    print()


def scale_ratings(options):
    """Training ratings of the scale of MovieLens 20M and a hundredth more for a test."""
    path = options.cache / f"covariance-{USERS}x{ITEMS}.npz"
    if not path.exists():
        options.cache.mkdir(parents=True, exist_ok=True)
        begin = time.perf_counter()
        partial = path.with_name("partial-" + path.name)
        sp.save_npz(partial, draw_scale_ratings(), compressed=False)
        partial.rename(path)
        note(f"made {path} in {time.perf_counter() - begin:.0f} s")
    return split_ratings(sp.load_npz(path), test_size=0.01, random_state=0)


def draw_scale_ratings():
    """Log-normal users, Zipf-Mandelbrot items, and the rank-10 model of `make_ratings`."""
    rng = np.random.default_rng(0)
    spread = np.log1p((LENGTH_SD / LENGTH_MEAN) ** 2)
    drawn = rng.lognormal(np.log(LENGTH_MEAN) - spread / 2.0, np.sqrt(spread), USERS)
    lengths = np.clip(np.rint(drawn), *LENGTH_RANGE).astype(np.int64)
    popularity = rng.permutation((np.arange(1.0, ITEMS + 1) + 200.0) ** -1.8)
    entry_sd = np.sqrt(0.55 / np.sqrt(RANK))
    truth = RatingTruth(
        mean=3.6,
        user_bias=rng.normal(0.0, 0.45, USERS),
        item_bias=rng.normal(0.0, 0.6, ITEMS),
        user_factors=rng.normal(0.0, entry_sd, (USERS, RANK)),
        item_factors=rng.normal(0.0, entry_sd, (ITEMS, RANK)),
        rating_range=(1.0, 5.0),
    )
    indptr = np.concatenate(([0], np.cumsum(lengths)))
    indices = np.empty(indptr[-1], np.int32)
    synthetic._choose_items(rng, popularity, indptr, indices)
    data = synthetic._draw_ratings(rng, truth, indptr, indices, 0.8, 1.0)
    return sp.csr_array((data, indices, indptr.astype(np.int32)), shape=(USERS, ITEMS))


@contextmanager
def timed_steps():
    """Collect the seconds of the solver's steps; those in brackets add up over the threads."""
    steps, lock = defaultdict(float), Lock()

    def timed(name, function):
        @wraps(function)
        def run(*arguments, **options):
            begin = time.perf_counter()
            try:
                return function(*arguments, **options)
            finally:
                with lock:
                    steps[name] += time.perf_counter() - begin

        return run

    watched = (
        (solver._Fit, "private_averages", "item averages"),
        (solver, "centre_rows", "centring"),
        (solver._Fit, "noisy_sums", "sums and noise"),
        (solver, "accumulate_pairs", "(its sums, seconds of all threads)"),
        (solver.factors, "clean_covariance", "cleaning"),
        (solver.factors, "leading_factors", "eigenvectors"),
    )
    with ExitStack() as stack:
        for owner, attribute, name in watched:
            function = timed(name, getattr(owner, attribute))
            stack.enter_context(patch.object(owner, attribute, function))
        yield steps


def run_speed(options):
    """Fits and recommendations on MovieLens 1M beside the peers, interleaved."""
    path = data_path(options)
    name = "MovieLens 1M" if path is not None and path.exists() else "Synthetic"
    X, _, targets = next(iter(curve_sets(options, path)))[1:]
    methods = {}
    for label, budget in (
        ("one rating, epsilon 4", PrivacyBudget(4.0, options.delta, unit="rating")),
        ("one user, epsilon 4", PrivacyBudget(4.0, options.delta)),
        ("not private", PrivacyBudget.nonprivate()),
    ):
        for predictor in ("svd", "knn"):
            methods[f"{label}, {predictor}"] = DPCovarianceRecommender(
                budget, predictor=predictor, n_jobs=options.n_jobs
            )
        if budget.unit == "user":
            peer = AdaptiveWeightALS(budget, n_jobs=options.n_jobs, solver=Pooled(list_share=None))
            methods[f"AdaptiveWeightALS, {label}"] = peer
    times = {label: ([], []) for label in methods}
    sums, plain = [], []
    for repeat in range(options.repeats + 1):  # the first one compiles
        for label, model in methods.items():
            with timed_steps() as steps:
                begin = time.perf_counter()
                model.fit(X)
                middle = time.perf_counter()
                model.recommend(X[:500])
                end = time.perf_counter()
            if repeat:
                times[label][0].append(middle - begin)
                times[label][1].append(end - middle)
                if label == "not private, svd":
                    sums.append(steps["sums and noise"])
        begin = time.perf_counter()
        scipy_sums(X)
        if repeat:
            plain.append(time.perf_counter() - begin)
    print(f"{name}, {options.n_jobs} threads, median of {options.repeats} interleaved rounds\n")
    print_head("", "fit, s", "recommend to 500 users, s", f"fit < {FIT_SECONDS:g} s")
    for label, (fit, recommend) in times.items():
        seconds = statistics.median(fit)
        ours = targets and not label.startswith("Adaptive")
        verdict = ("met" if seconds < FIT_SECONDS else "MISSED") if ours else ""
        print_row(label, f"{seconds:.2f}", f"{statistics.median(recommend):.2f}", verdict)
    ours, theirs = statistics.median(sums), statistics.median(plain)
    print(
        f"\nCov and Wgt of all items without noise: {ours:.2f} s; the same two products by scipy's "
        f"sparse matrices, one thread: {theirs:.2f} s, {theirs / ours:.1f} times as long\n"
    )


def scipy_sums(X):
    """Cov and Wgt as sparse products; centring by one number is as good for the time."""
    n = np.diff(X.indptr)
    weighted = sp.diags_array(1.0 / np.sqrt(np.maximum(n, 1)))
    x = sp.csr_array((X.data - 3.55, X.indices, X.indptr), shape=X.shape)
    e = sp.csr_array((np.ones(X.nnz), X.indices, X.indptr), shape=X.shape)
    return x.T @ (weighted @ x), e.T @ (weighted @ e)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parts = ("all", "curve", "size", "scale")
    parser.add_argument("part", nargs="?", choices=parts, default="all")
    parser.add_argument("--data", type=Path, help="default: $SKDPMF_DATA/ml-1m.parquet")
    parser.add_argument("--epsilons", type=float, nargs="+", default=list(EPSILONS))
    parser.add_argument("--delta", type=float, default=1e-5)
    parser.add_argument("--seeds", type=int, default=5, help="noise seeds")
    parser.add_argument("--minor-seeds", type=int, default=3, help="noise seeds of the variants")
    parser.add_argument(
        "--fresh-splits", type=int, nargs="*", default=[101, 102], help="seeds beside split 0"
    )
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES), help="users")
    parser.add_argument("--size-seeds", type=int, default=3, help="noise seeds of size")
    parser.add_argument("--repeats", type=int, default=5, help="timed rounds of scale")
    parser.add_argument("--cache", type=Path, default=Path(tempfile.gettempdir()) / "skdpmf-bench")
    parser.add_argument("--n-jobs", type=int, default=2)
    options = parser.parse_args()

    # scale comes first: the peak memory is the process's
    if options.part in ("all", "scale"):
        run_scale(options)
        run_speed(options)
    if options.part in ("all", "curve"):
        run_curve(options)
    if options.part in ("all", "size"):
        run_size(options)


if __name__ == "__main__":
    main()
