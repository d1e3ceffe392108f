"""Test RMSE against epsilon on ratings of many shapes: more budget must not hurt.

All settings are the defaults. Beside the estimators stand `CacheSGDFactorizer`, users' own means,
and the best of a grid of plain ALS fits, chosen on the test ratings themselves. `--expected` adds
the errors that plans expect when they assume how ratings vary as fits without privacy show it, and
which part is taste as made-up sets have it. Prints Markdown tables, and violations of rules:

- the error falls with epsilon, within two standard errors (all noise seeds, one split);
- no private estimator is worse than `DPItemMeans` at the same epsilon, or than users' own means;
- without privacy `AdaptiveWeightALS` is no worse than at any epsilon, than the others, or than the
  best of the grid by more than .3 %.

    python benchmarks/bench_shapes.py --data ml-1m.parquet --seeds 3
"""

from functools import partial
from itertools import pairwise, product

import numpy as np
from harness import SGD_SETTINGS, data_path, parser, print_head, print_row
from ratings import budget_of, fits, own_mean_error, split, synth10m

from skdpmf import (
    AdaptiveWeightALS,
    CacheSGDFactorizer,
    DPCovarianceRecommender,
    DPItemMeans,
    DPMFSampler,
    LocalDPGDDR,
)
from skdpmf.data import make_ratings, read_ratings
from skdpmf.data.validation import as_rating_matrix
from skdpmf.evaluation import rmse, split_ratings
from skdpmf.kernels.als import solve_rows
from skdpmf.kernels.rows import predict_entries

EPSILONS = (0.1, 0.5, 1.0, 4.0, 8.0, 20.0, 57.0, np.inf)
KINDS = AdaptiveWeightALS, DPCovarianceRecommender, DPMFSampler, DPItemMeans, LocalDPGDDR
KINDS = {kind.__name__: kind for kind in KINDS}
GRID_RIDGES, GRID_RANKS, GRID_ROUNDS = (3.0, 10.0, 30.0), (4, 12), 10
LOW, FIVE, TEN, HUNDRED = (-10.0, 10.0), (1.0, 5.0), (1.0, 10.0), (0.0, 100.0)


def heavy_tailed():
    """Return ratings of 100 items on -10..10: users differ in level, spread and noise."""
    rng, n, m, k = np.random.default_rng(0), 25_000, 100, 12
    variance = 0.75 ** np.arange(k)
    U, V = rng.normal(size=(n, k)), rng.normal(size=(m, k)) * np.sqrt(variance / variance.sum())
    scale, noise = np.exp(0.5 * rng.normal(size=n) - 0.12), np.exp(0.4 * rng.normal(size=n) - 0.08)
    values = 0.7 + 1.3 * rng.normal(size=m) + 1.4 * rng.standard_t(4, size=n)[:, None]
    values = values + 2.6 * scale[:, None] * (U @ V.T)
    values += 3.5 * noise[:, None] * rng.normal(size=(n, m))
    known = rng.random((n, m)) < np.maximum(rng.beta(2.0, 0.8, size=n), 0.1)[:, None]
    return as_rating_matrix(np.where(known, np.clip(values, *LOW), np.nan))


def made(*shape, rating_range=FIVE, **parameters):
    parameters |= {"rating_range": rating_range, "random_state": 0}
    return partial(make_ratings, *shape, **parameters), rating_range


def small(shape, n_ratings, scale, stds, item_exponent=0.7):
    """Return a set of few people; stds of users, items, factors and noise, in quarter ranges."""
    names = "user_bias_std", "item_bias_std", "factor_std", "noise_std"
    parameters = {
        name: std * (scale[1] - scale[0]) / 4.0 for name, std in zip(names, stds, strict=True)
    }
    parameters |= {"n_ratings": n_ratings, "rating_range": scale, "item_exponent": item_exponent}
    return made(*shape, **parameters, min_ratings_per_user=3)


SETS = {
    "dense 25,000 x 100, -10..10": (heavy_tailed, LOW),
    "500 x 200": made(500, 200),
    "5,000 x 60": made(5000, 60),
    "943 x 1,682, 100,000 ratings": made(943, 1682, n_ratings=100_000, min_ratings_per_user=20),
    "exactly of rank 3": made(3000, 200, n_components=3, noise_std=0.0, step=None),
    "no factors": made(3000, 200, n_components=0),
    "heavy noise": made(3000, 200, noise_std=2.0),
    "small, flat, 200 x 50": small((200, 50), 1200, FIVE, (0.45, 0.0, 0.0, 0.8)),
    "small, flat, 1,000 x 1,000": small((1000, 1000), 9000, FIVE, (0.8, 0.1, 0.1, 0.8)),
    "small, 1,000 x 1,700": small((1000, 1700), 30_000, FIVE, (0.8, 0.2, 0.2, 0.7)),
    "small, flat, long tail, 3,000 x 500": small(
        (3000, 500), 30_000, FIVE, (0.8, 0.0, 0.2, 0.8), 1.1
    ),
    "small, users differ, 1..10, 800 x 400": small((800, 400), 20_000, TEN, (1.2, 0.1, 0.1, 0.5)),
    "small, users alike, 2,000 x 2,000": small((2000, 2000), 30_000, FIVE, (0.1, 0.4, 0.3, 0.8)),
    "small, 0..100, 500 x 200": small((500, 200), 6000, HUNDRED, (1.0, 0.15, 0.3, 0.8)),
    "small, items differ, 1,000 x 300": small((1000, 300), 6000, FIVE, (0.45, 0.8, 0.55, 0.8)),
    "10M ratings": (synth10m, (0.5, 5.0)),
}
PARSER = parser(
    __doc__, data=None, seeds=3, epsilons=EPSILONS, methods=KINDS, n_jobs=1, expected=False
)
PARSER.add_argument("--sets", nargs="+", help="parts of the sets' names; default: all")


def best_of_grid(X, Y, scale):
    """Return the least error of plain ALS over ranks and ridges, chosen on the test ratings."""
    unit, mean, by_item = (scale[1] - scale[0]) / 4.0, X.data.mean(), X.T.tocsr()
    errors = []
    for rank, ridge in product(GRID_RANKS, GRID_RIDGES):
        V = 0.1 * np.random.default_rng(0).normal(size=(X.shape[1], rank + 1))
        for _ in range(GRID_ROUNDS):
            U = with_bias(X, (X.data - mean) / unit, V, ridge)
            V = with_bias(by_item, (by_item.data - mean) / unit, U, ridge)
        U, found = with_bias(X, (X.data - mean) / unit, V, ridge), np.empty(Y.nnz)
        left, right = np.insert(U, 1, 1.0, axis=1), np.insert(V, 0, 1.0, axis=1)
        predict_entries(Y.indptr, Y.indices, left, right, 0, Y.shape[0], found)
        errors.append(rmse(Y.data, np.clip(mean + unit * found, *scale)))
    return min(errors)


def with_bias(R, values, other, ridge):
    """Return a bias and factors of each row, given those of the columns: half a round of ALS."""
    factors, out = other.copy(), np.empty((R.shape[0], other.shape[1]))
    factors[:, 0] = 1.0
    given = R.indptr, R.indices, values - other[R.indices, 0], factors
    solve_rows(*given, ridge * np.eye(other.shape[1]), 0, R.shape[0], out)
    return out


def variation_of(X, make, scale):
    """Return how ratings vary: deviations as shares of their range."""
    given, width = getattr(make, "keywords", {"factor_std": 2.6, "noise_std": 3.5}), np.ptp(scale)
    rank = given.get("n_components", 5)
    taste = given.get("factor_std", 0.55) ** 2 * (rank > 0)
    taste /= max(taste + given.get("noise_std", 0.8) ** 2, 1e-12)
    model = DPItemMeans(budget_of(np.inf), rating_range=scale).fit(X)
    item, within = np.var(model.item_means_[X.indices]), own_mean_error(X, X) ** 2
    within /= 1.0 - X.shape[0] / X.nnz
    parts = {"factors": taste * (within - item), "residual": (1.0 - taste) * (within - item)}
    parts |= {"item": item, "user": np.var(X.data) - within}
    shares = {name: max(part, 0.0) ** 0.5 / width for name, part in parts.items()}
    return shares | {"decay": 1.0 - 1.0 / max(rank, 1)}


def broken_rules(found, others, options):
    """Say which rules do not hold."""
    losses = []  # of what, against what, how much, and its standard error
    for name, (low, high) in product(options.methods, pairwise(options.epsilons)):
        one, other = found[name, high], found[name, low]
        spread = np.hypot(one.standard_error, other.standard_error)
        losses.append((name, f"from epsilon {low:g} to {high:g}", one.error - other.error, spread))
    for (name, epsilon), cell in found.items():
        limits = {"users' own means": others["users' own means"]}
        if "DPItemMeans" in options.methods:
            limits["DPItemMeans"] = found["DPItemMeans", epsilon].error
        for other, limit in limits.items():
            words = f"against {other} at epsilon {epsilon:g}"
            losses.append((name, words, cell.error - limit, cell.standard_error))
    exact = found.get(("AdaptiveWeightALS", np.inf))
    for other in ("CacheSGDFactorizer", "best of a grid") if exact else ():
        if exact.error > 1.003 * others[other]:
            loss = exact.error - others[other]
            losses.append(("AdaptiveWeightALS", f"without privacy against {other}", loss, 0.0))
    return [
        f"{name}: {loss:+.4f} {words}" for name, words, loss, e in losses if loss > 2.0 * e + 5e-5
    ]


def run(label, X, Y, scale, options, make=None):
    print(f"{label}: {X.shape[0]:,} users x {X.shape[1]:,} items, {X.nnz:,} training ratings\n")
    sgd = CacheSGDFactorizer(rating_range=scale, random_state=0, **SGD_SETTINGS)
    others = {
        "users' own means": own_mean_error(X, Y),
        "CacheSGDFactorizer": rmse(Y, sgd.fit(X).predict_entries(X, Y)),
        "best of a grid": best_of_grid(X, Y, scale),
    }
    common = {"rating_range": scale, "n_jobs": options.n_jobs}
    found = {
        (name, epsilon): fits(KINDS[name], budget_of(epsilon), X, Y, options.seeds, name, **common)
        for name, epsilon in product(options.methods, options.epsilons)
    }
    own = others["users' own means"]
    print_head("", *(f"{epsilon:g}" for epsilon in options.epsilons), "worst less own mean")
    for name in options.methods:
        means = [found[name, epsilon].error for epsilon in options.epsilons]
        print_row(name, *(f"{mean:.4f}" for mean in means), f"{max(means) - own:+.4f}")
    for name in options.methods if options.expected else ():
        models = (KINDS[name](budget_of(e), rating_range=scale) for e in options.epsilons)
        given = {"n_ratings": X.nnz, "assumed": make and variation_of(X, make, scale)}
        plans = (model.plan(*X.shape[::-1], **given).expected_rmse for model in models)
        print_row(f"{name}, expected", *(f"{plan['this plan']:.4f}" for plan in plans), "")
    print("\n" + ", ".join(f"{name} {value:.4f}" for name, value in others.items()) + "\n")
    for line in broken_rules(found, others, options) or ["all rules hold"]:
        print(f"- {line}")
    print(flush=True)


def main(arguments=None):
    options = PARSER.parse_args(arguments)
    wanted = options.sets or [""]
    for label, (make, scale) in SETS.items():
        if any(part in label for part in wanted):
            X, Y = split_ratings(make(), random_state=0)
            run(label, X, Y, scale, options, make)
    path = data_path(options)
    if path is not None and any(part in "MovieLens 1M" for part in wanted):
        run("MovieLens 1M", *split(read_ratings(path), 0), FIVE, options)


if __name__ == "__main__":
    main()
