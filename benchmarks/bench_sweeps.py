"""Exact sweeps of alternating least squares over clicks: their seconds, and recall after each.

`seconds`: processor seconds of one sweep (all users, then all items) of one thread by the code of
`AdaptiveWeightALS(feedback="implicit")` without privacy and by `implicit`, in single precision, on
made-up clicks of MovieLens 20M's shape. `recall`: of a fifth of clicks drawn by 64 known factors.

    python benchmarks/bench_sweeps.py seconds --sizes 64,128,256
    python benchmarks/bench_sweeps.py recall --sizes 16,64,256
"""

import time
from types import SimpleNamespace

import numpy as np
from bench_clicks import synthetic_clicks
from harness import integers, parser, print_head, print_row, seconds_of
from ratings import found_by
from scipy import sparse

from skdpmf.data import make_ratings
from skdpmf.evaluation import split_ratings
from skdpmf.mechanisms import common
from skdpmf.mechanisms.als import pooled_clicks

SETTINGS = SimpleNamespace(settings=SimpleNamespace(unobserved_weight=0.1, alpha=1.0), n_jobs=1)
PARSER = parser(__doc__, users=136_677, items=20_108, ratings=10_000_000, sweeps=8)
PARSER.add_argument("command", choices=["seconds", "recall"])
PARSER.add_argument("--sizes", type=integers, default=[64, 128, 256])


def exact(R, factors, out):
    """Overwrite rows' factors with their regressions."""
    ones = np.ones(R.nnz, np.float32)
    out[:] = pooled_clicks._Fit.half(SETTINGS, R.indptr, R.indices, ones, ones, factors)


def solvers():
    from implicit.cpu import _als

    yield "exact", exact
    peers = {"implicit, CG": _als.least_squares_cg, "implicit, Cholesky": _als.least_squares}
    for name, solve in peers.items():
        yield name, lambda R, V, out, solve=solve: solve(R, out, V, 0.06, num_threads=1)


def print_seconds(options):
    X = make_ratings(options.users, options.items, n_ratings=options.ratings, random_state=0)
    R = sparse.csr_matrix(X).astype(np.float32)
    R.data[:] = 1.0
    T, rng = sparse.csr_matrix(R.T), np.random.default_rng(0)
    print_head("k", "solver", "users", "items", "sweep")
    for k in options.sizes:
        U, V = (0.1 * rng.standard_normal((n, k), np.float32) for n in R.shape)
        for name, solve in solvers():
            solve(R[:200], V, U[:200].copy())  # compiles
            given = (R, V, U.copy()), (T, U, V.copy())
            took = [seconds_of(solve, *each, clock=time.process_time) for each in given]
            print_row(k, name, *(f"{s:.2f}" for s in (*took, sum(took))))


def print_recall(options):
    X = synthetic_clicks(0, 20_000, 5_000, 0.5 * 0.95 ** np.arange(64.0), 0.8, (4.2, 0.6))
    R, held_out = split_ratings(X, test_size=0.2, random_state=0)
    T = sparse.csr_array(R.T)
    print_head("k", *(f"sweep {n + 1}" for n in range(options.sweeps)))
    for k in options.sizes:
        U, V = np.empty((len(R.indptr) - 1, k)), common.click_directions(R, k)
        found = []
        for _ in range(options.sweeps):
            exact(R, V, U)
            exact(T, U, V)
            scores = np.where(R[:4000].toarray() > 0, -np.inf, U[:4000] @ V.T)
            ranked = np.argsort(-scores, axis=1)[:, :100]
            found.append(f"{found_by(ranked, held_out[:4000])[0]:.4f}")
        print_row(k, *found)


def main(arguments=None):
    options = PARSER.parse_args(arguments)
    {"seconds": print_seconds, "recall": print_recall}[options.command](options)


if __name__ == "__main__":
    main()
