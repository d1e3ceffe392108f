"""Figure 9 of Shin, Kim, Shin and Xiao (2018) at the size of MovieLens 20M, on synthetic ratings.

    python benchmarks/bench_local_figure9.py figure
    python benchmarks/bench_local_figure9.py steps
    python benchmarks/bench_local_figure9.py time

- figure: test RMSE after k rounds of the published Algorithm 2 (d = 15, q = 2700, epsilon = .1 over
  all k rounds) beside the same rounds without any report, without privacy, beside constant
  predictors, each user's own mean, and `LocalDPGDDR` with its defaults.
- steps: the same for larger item steps, at which the reports matter.
- time: seconds of a round once everything is set up.

Without a part all of them run. Prints Markdown tables. It takes 2 GiB and an hour on two busy
cores; for a small one: --users 14000 --items 2700 --ratings 2000000 --rows 270
"""

import argparse
import statistics
import sys
import time
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from bench_utility import print_head, print_row

from skdpmf import LocalDPGDDR, PrivacyBudget
from skdpmf.data import make_ratings
from skdpmf.evaluation import rmse, split_ratings
from skdpmf.kernels.entries import predict_entries
from skdpmf.mechanisms.device_reports import gradient as solver
from skdpmf.mechanisms.device_reports.randomizers import CoordinateSampling, DeviceStreams
from skdpmf.privacy.sampler.noise import derived_key

# The paper's figure, private and not, and the ratings it was measured on.
PUBLISHED = {"private": (2.960, 1.697, 1.500, 1.409, 1.381, 1.372), "non-private": (1.269, 1.145)}
MOVIELENS_MEAN, MOVIELENS_SD = 3.5255, 1.052

RATING_RANGE, EPSILON, DAMPING = (0.5, 5.0), 0.1, 10.0
START_STD, WAYS_BACK = 0.3, ("unbiased", "pinv")
SETTINGS = solver.Settings(
    n_components=15,
    max_iter=1,
    step_size=1e-5,
    user_step=0.03,
    item_penalty=0.0,
    user_penalty=0.0,
)
EXACT_STEP = 0.1  # the curve without privacy; "steps" has others
STEPS, EXACT_STEPS = (1e-4, 1e-3), (0.01, 0.1, 1.0)
TIMED_ROUNDS, ROUND_SECONDS = 8, 10.0


class Case(NamedTuple):
    """Ratings, where all fits start, and Phi for both ways back."""

    X: object
    Y: object
    initial: tuple
    projections: dict


class Point(NamedTuple):
    """A fit, its test RMSE, its mean prediction there, and how a user's differ between items."""

    model: solver.Model
    error: float
    mean: float
    spread: float


def note(text):
    print(text, file=sys.stderr, flush=True)


def make_case(options):
    begin = time.perf_counter()
    n, m = options.users, options.items
    ratings = make_ratings(
        n,
        m,
        n_ratings=options.ratings,
        min_ratings_per_user=20,
        rating_range=RATING_RANGE,
        step=0.5,
        mean=3.6,  # 3.53 once ratings are clipped to the scale
        item_bias_std=0.55,
        factor_std=0.5,
        noise_std=0.77,
        random_state=0,
    )
    X, Y = split_ratings(ratings, random_state=0)
    key, d = derived_key(options.seed, "figure 9, public"), SETTINGS.n_components
    initial = tuple(map(np.abs, solver.initial_factors(key, n, m, d, START_STD)))
    projections = {
        way: solver.Projection(key, options.rows, m, way, options.n_jobs) for way in WAYS_BACK
    }
    note(f"set up in {time.perf_counter() - begin:.0f} s")
    print(
        f"{n:,} users x {m:,} items, {X.nnz:,} training and {Y.nnz:,} test ratings of mean "
        f"{Y.data.mean():.4f} and standard deviation {Y.data.std():.4f}; d = {d}, q = "
        f"{options.rows:,}, epsilon = {EPSILON:g}\n"
    )
    return Case(X, Y, initial, projections)


def point(model, Y):
    """Predict with the users' own trained factors, as in the paper; nothing is clipped."""
    out = np.empty(Y.nnz)
    U, V = model.user_factors, model.factors
    predict_entries(Y.indptr, Y.indices, U, V, 0, Y.shape[0], out)
    typical = np.repeat(U @ V.mean(axis=0), np.diff(Y.indptr))
    spread = np.sqrt(np.mean((out - typical) ** 2))
    return Point(model, rmse(Y.data, out), out.mean(), spread)


def curve(case, options, epsilon, step, way=None):
    """Return {k: Point}; each k is a fit of its own. Without a way back: no reports."""
    projection = case.projections.get(way)
    settings = replace(
        SETTINGS,
        step_size=step,
        projection_dim=None if way is None else options.rows,
        back_projection=way or "unbiased",
    )
    found, done, initial = {}, 0, case.initial
    for k in options.rounds:
        model = solver.fit(
            case.X,
            replace(settings, max_iter=k - done),
            epsilon,
            DeviceStreams(derived_key(options.seed, f"figure 9, {k} rounds")),
            initial=initial,
            projection=projection,
            rounds=range(k - done),
            n_jobs=options.n_jobs,
        )
        found[k] = point(model, case.Y)
        note(f"epsilon {epsilon:g}, step {step:g}, {way}, k = {k}: {found[k].error:.4g}")
        if np.isinf(epsilon):  # neither noise nor falling steps: the next k may go on from here
            done, initial = k, (model.user_factors, model.factors)
    return found


def text(error):
    return f"{error:.4f}" if error < 10 else "diverges"


def errors_of(found):
    return [text(fit.error) for fit in found.values()]


def constant_of(error, mean, sd):
    """Return the constant prediction below the mean that has this RMSE."""
    return f"{mean - np.sqrt(error**2 - sd**2):.2f}" if error >= sd else ""


# figure


def run_figure(case, options):
    print_published()
    print_levels(case, options)
    curves = {"no reports": curve(case, options, np.inf, 0.0)}
    for epsilon, step in ((EPSILON, SETTINGS.step_size), (np.inf, SETTINGS.step_size)):
        for way in WAYS_BACK:
            curves[name_of(epsilon, way)] = curve(case, options, epsilon, step, way)
    for way in WAYS_BACK:
        name = f"{name_of(np.inf, way)}, step {EXACT_STEP:g}"
        curves[name] = curve(case, options, np.inf, EXACT_STEP, way)
    print_curves(case, options, curves)
    print_reports(case, options, curves)


def name_of(epsilon, way):
    return f"{'non-private' if np.isinf(epsilon) else 'private'}, {way}"


def print_published():
    print("Published, MovieLens 20M, and the constant prediction with the same RMSE there:\n")
    print_head("curve", "test RMSE", "constant")
    for name, errors in PUBLISHED.items():
        for error in errors:
            print_row(name, f"{error:.3f}", constant_of(error, MOVIELENS_MEAN, MOVIELENS_SD))
    print()


def print_levels(case, options):
    """Print and return the errors that do not depend on k."""
    X, Y = case.X, case.Y
    row = np.repeat(np.arange(X.shape[0]), np.diff(X.indptr))
    middle = sum(RATING_RANGE) / 2
    sums = np.bincount(row, weights=X.data - middle, minlength=X.shape[0])
    own = middle + sums / (np.diff(X.indptr) + DAMPING)
    model = LocalDPGDDR(
        PrivacyBudget(EPSILON),
        rating_range=RATING_RANGE,
        random_state=options.seed,  # to repeat the table; a real fit leaves it alone
        n_jobs=options.n_jobs,
    )
    begin = time.perf_counter()
    model.fit(X)
    note(f"{model}: {time.perf_counter() - begin:.1f} s")
    levels = {
        "constant 0": rmse(Y.data, np.zeros(Y.nnz)),
        f"constant {middle:g}, the middle of the scale": rmse(Y.data, np.full(Y.nnz, middle)),
        "constant, the exact global mean": rmse(Y.data, np.full(Y.nnz, X.data.mean())),
        "each user's own damped mean": rmse(Y.data, np.repeat(own, np.diff(Y.indptr))),
        f"LocalDPGDDR, defaults, epsilon {EPSILON:g}": rmse(Y, model.predict_entries(X, Y)),
    }
    print_head("predictor", "test RMSE")
    for name, error in levels.items():
        print_row(name, f"{error:.4f}")
    print()


def print_curves(case, options, curves):
    steps = SETTINGS.step_size
    print(f"Test RMSE after k rounds, items' step {steps:g} unless a column says otherwise:\n")
    print_head("k", *curves, "constant like private, unbiased", "mean prediction, no reports")
    mean, sd = case.Y.data.mean(), case.Y.data.std()
    for k in options.rounds:
        like = constant_of(curves["private, unbiased"][k].error, mean, sd)
        predicted = f"{curves['no reports'][k].mean:.2f}"
        print_row(k, *(text(found[k].error) for found in curves.values()), like, predicted)
    spread = curves["no reports"][options.rounds[-1]].spread
    print(f"\nNo reports, last k: spread of a user's predictions between items {spread:.2f}.\n")


def print_reports(case, options, curves):
    """Print noise beside signal, and what the reports made of V."""
    d = SETTINGS.n_components
    one = solver.fit(
        case.X,
        replace(SETTINGS, step_size=1.0),
        np.inf,
        DeviceStreams(),
        initial=case.initial,
        rounds=range(1),
        n_jobs=options.n_jobs,
    )
    gradient = case.initial[1] - one.factors
    signal = case.projections["unbiased"].project(gradient)
    print(
        "Estimated mean of the projected gradients, which devices clip to [-1, 1]. Before that, at "
        f"the start, the root mean square of the exact mean is {np.sqrt(np.mean(signal**2)):.2g}, "
        f"and its largest value {np.abs(signal).max():.2g}.\n"
    )
    print_head("k", "epsilon of a report", "sd of the noise")
    for k in options.rounds:
        each = solver.report_epsilon(EPSILON, replace(SETTINGS, max_iter=k))
        variance = CoordinateSampling(each, options.rows * d).variance
        print_row(k, f"{each:.4g}", f"{np.sqrt(variance / options.users):.3g}")
    last = options.rounds[-1]
    print(f"\nV after {last} rounds less V at the start, root mean square of its values:\n")
    print_head("way back", "private", "non-private", "cosine of the two")
    for way in WAYS_BACK:
        moved = [
            curves[name_of(epsilon, way)][last].model.factors - case.initial[1]
            for epsilon in (EPSILON, np.inf)
        ]
        sizes = [np.sqrt(np.mean(change**2)) for change in moved]
        cosine = np.mean(moved[0] * moved[1]) / np.prod(sizes)
        print_row(way, *(f"{size:.2g}" for size in sizes), f"{cosine:.4f}")
    print()


# steps


def run_steps(case, options):
    print("Test RMSE after k rounds for larger steps of the items:\n")
    print_head("curve", "items' step", *(f"k = {k}" for k in options.rounds))
    print_row("no reports", 0, *errors_of(curve(case, options, np.inf, 0.0)))
    for epsilon, steps in ((EPSILON, STEPS), (np.inf, EXACT_STEPS)):
        for way in WAYS_BACK:
            for step in steps:
                errors = errors_of(curve(case, options, epsilon, step, way))
                print_row(name_of(epsilon, way), f"{step:g}", *errors)
    print()


# time


def run_time(case, options):
    print(
        f"Seconds of a round, {options.n_jobs} threads, median of {TIMED_ROUNDS - 2} after one "
        "that warms up:\n"
    )
    print_head("way back", "median", "least", "most", f"target < {ROUND_SECONDS:g}")
    for way in WAYS_BACK:
        begins = []

        def rounds(begins=begins):
            for t in range(TIMED_ROUNDS):
                begins.append(time.perf_counter())
                yield t

        solver.fit(
            case.X,
            replace(
                SETTINGS,
                max_iter=TIMED_ROUNDS,
                projection_dim=options.rows,
                back_projection=way,
            ),
            EPSILON,
            DeviceStreams(derived_key(options.seed, "figure 9, timed")),
            initial=case.initial,
            projection=case.projections[way],
            rounds=rounds(),
            n_jobs=options.n_jobs,
        )
        seconds = np.diff(begins)[1:]  # the last round has no end here
        middle = statistics.median(seconds)
        verdict = "met" if middle < ROUND_SECONDS else "MISSED"
        print_row(way, *(f"{s:.2f}" for s in (middle, min(seconds), max(seconds))), verdict)
    print()


PARTS = {"figure": run_figure, "steps": run_steps, "time": run_time}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", nargs="?", choices=PARTS, help="default: all")
    parser.add_argument("--users", type=int, default=138_493)
    parser.add_argument("--items", type=int, default=26_744)
    parser.add_argument("--ratings", type=int, default=20_000_263)
    parser.add_argument("--rows", type=int, default=2_700, help="q, rows of the projection")
    parser.add_argument("--rounds", type=int, nargs="+", default=[1, 2, 5, 10, 20, 50], help="k")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--n-jobs", type=int, default=2)
    options = parser.parse_args()
    options.rounds = sorted(set(options.rounds))
    case = make_case(options)
    for name in PARTS if options.part is None else [options.part]:
        PARTS[name](case, options)


if __name__ == "__main__":
    main()
