"""Gain of adaptive weights for rare tasks: the exponent mu, and slices by popularity.

After Figures 3 and 4 of Krichene et al. (ICML 2023): `private_multi_task_ridge` on made-up tasks
whose popularity is a power law. The error of a task is the root mean square of
<x, theta_hat - theta> over users, its square averaged over tasks. Prints a Markdown table.

    python benchmarks/bench_multi_task.py
"""

import numpy as np
from harness import parser, print_head, print_row
from ratings import N_BUCKETS, budget_of
from scipy import sparse

from skdpmf import private_multi_task_ridge
from skdpmf.evaluation.metrics import popularity_buckets

EXPONENTS = (0.0, 0.25, 0.5, 1.0)
CAPS = (10, 30)  # tasks a user of the synthetic baselines; users have 20 on average
NOISE = 0.3
USERS, TASKS, FEATURES, TASKS_PER_USER, SKEW = 20_000, 500, 8, 20, 1.0
WEIGHTINGS = {f"mu = {mu:g}": {"weight_exponent": mu} for mu in EXPONENTS} | {
    f"{name}, k = {cap}": {"weighting": name, "max_tasks_per_user": cap}
    for name in ("tail", "uniform")
    for cap in CAPS
}
PARSER = parser(__doc__, epsilons_synthetic=[1.0, 5.0, 20.0], seeds=10)


def make_tasks(seed):
    """Users' features on the unit sphere, targets of a power law of tasks, and the truth."""
    rng = np.random.default_rng(seed)
    chance = np.arange(1.0, TASKS + 1.0) ** -SKEW
    length = np.minimum(rng.geometric(1.0 / TASKS_PER_USER, USERS), TASKS)
    # the smallest of Exp(1) / chance are a weighted sample without replacement
    order = np.argsort(rng.exponential(size=(USERS, TASKS)) / chance, axis=1)
    kept = np.arange(TASKS) < length[:, None]
    user, task = np.repeat(np.arange(USERS), length), order[kept]
    X = rng.normal(size=(USERS, FEATURES))
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    theta = rng.normal(size=(TASKS, FEATURES))
    y = np.einsum("ij,ij->i", X[user], theta[task]) + NOISE * rng.normal(size=user.size)
    return X, sparse.csr_array((y, (user, task)), shape=(USERS, TASKS)), theta


def errors_of(params, epsilon, tasks):
    """Errors by bucket of tasks, rarest first, and of all tasks."""
    squares = []
    for seed, (X, Y, theta) in enumerate(tasks):
        settings = {"max_norm": 1.0, "max_value": 2.0, "alpha": 0.1, **params}
        fit = private_multi_task_ridge(X, Y, budget_of(epsilon), random_state=seed, **settings)
        error = np.sum((fit.coef - theta) ** 2, axis=1) / FEATURES
        bucket = popularity_buckets(Y, N_BUCKETS)
        squares.append([*(error[bucket == b].mean() for b in range(N_BUCKETS)), error.mean()])
    return np.sqrt(np.mean(squares, axis=0))


def main(arguments=None):
    options = PARSER.parse_args(arguments)
    tasks = [make_tasks(seed) for seed in range(options.seeds)]
    Y = tasks[0][1]
    parts = np.array_split(np.sort(np.bincount(Y.indices, minlength=TASKS)), N_BUCKETS)
    print(
        f"Synthetic: {USERS:,} users, {TASKS} tasks, {Y.nnz:,} observations, {FEATURES} features, "
        f"{options.seeds} data sets; predicting 0 has error 1\n"
    )
    print_head("epsilon", "weights", *(f"{p[0]:,} to {p[-1]:,}" for p in parts), "all tasks")
    for epsilon in (*options.epsilons_synthetic, np.inf):
        for name, params in WEIGHTINGS.items():
            errors = errors_of(params, epsilon, tasks)
            print_row(f"{epsilon:g}", name, *(f"{error:.3f}" for error in errors))
    print()


if __name__ == "__main__":
    main()
