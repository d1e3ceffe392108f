"""Rounds of Algorithm 2 of Shin, Kim, Shin and Xiao (2018), with their settings of figure 9.

`reproduce.py shin` shows test RMSE after k rounds (d = 15, q = 2700, epsilon = .1 over all rounds)
beside the same rounds without any report, on made-up ratings of the size of MovieLens 20M. It takes
2 GiB and an hour on two busy cores.
"""

import time
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from harness import note

from skdpmf.data import make_ratings
from skdpmf.evaluation import rmse, split_ratings
from skdpmf.kernels.rows import predict_entries
from skdpmf.mechanisms.device_reports import gradient as solver
from skdpmf.mechanisms.device_reports.randomizers import DeviceStreams
from skdpmf.privacy.sampler.streams import derived_key

# The paper's figure, private and not, and the ratings it was measured on.
PUBLISHED = {"private": (2.960, 1.697, 1.500, 1.409, 1.381, 1.372), "non-private": (1.269, 1.145)}
MOVIELENS_SD = 1.052

RATING_RANGE, EPSILON, START_STD = (0.5, 5.0), 0.1, 0.3
SETTINGS = solver.Settings(
    n_components=15, max_iter=1, step_size=1e-5, user_step=0.03, item_penalty=0.0, user_penalty=0.0
)
EXACT_STEP = 0.1  # the curve without privacy


class Case(NamedTuple):
    """Ratings, where all fits start, and Phi, which goes back by its pseudo-inverse."""

    X: object
    Y: object
    initial: tuple
    projection: object


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
    projection = solver.Projection(key, options.rows, m, "pinv", options.n_jobs)
    note(f"set up in {time.perf_counter() - begin:.0f} s")
    print(
        f"{n:,} users x {m:,} items, {X.nnz:,} training and {Y.nnz:,} test ratings of mean "
        f"{Y.data.mean():.4f} and standard deviation {Y.data.std():.4f}; d = {d}, q = "
        f"{options.rows:,}, epsilon = {EPSILON:g}\n"
    )
    return Case(X, Y, initial, projection)


def error_of(model, Y):
    """Predict with the users' own trained factors, as in the paper; nothing is clipped."""
    out = np.empty(Y.nnz)
    predict_entries(Y.indptr, Y.indices, model.user_factors, model.factors, 0, Y.shape[0], out)
    return rmse(Y.data, out)


def curve(case, options, epsilon, step, *, reports=True):
    """Return {k: test RMSE}; each k is a fit of its own."""
    settings = replace(
        SETTINGS,
        step_size=step,
        projection_dim=options.rows if reports else None,
        back_projection="pinv" if reports else "unbiased",
    )
    found, done, initial = {}, 0, case.initial
    for k in options.rounds:
        model = solver.fit(
            case.X,
            replace(settings, max_iter=k - done),
            epsilon,
            DeviceStreams(derived_key(options.seed, f"figure 9, {k} rounds")),
            initial=initial,
            projection=case.projection if reports else None,
            rounds=range(k - done),
            n_jobs=options.n_jobs,
        )
        found[k] = error_of(model, case.Y)
        note(f"epsilon {epsilon:g}, step {step:g}, k = {k}: {found[k]:.4g}")
        if np.isinf(epsilon):  # neither noise nor falling steps: the next k may go on from here
            done, initial = k, (model.user_factors, model.factors)
    return found
