"""Test RMSE against epsilon on ratings of many shapes: more budget must not hurt.

All settings are the defaults. A seed stands for a new set, a new split and new noise, and what is
compared has the same seed. `LocalDPGDDR` gets epsilon 10 at most: a report of 16, the most that one
takes, is a hundred times slower to draw. Beside the estimators stand `CacheSGDFactorizer`, users'
own means, and the best of a grid of plain ALS fits, chosen on the test ratings themselves. Below
them are errors that plans expect when they assume how ratings vary as fits without privacy show it,
and which part is taste as made-up sets have it. The last table has, in quarters of the rating
range, the worst of each rule, and which of all differences break one by more than two standard
errors and .001:

- the error falls with epsilon;
- with a trusted curator nothing is worse than `DPItemMeans` at the same epsilon;
- nothing is worse than users' own means;
- without privacy `AdaptiveWeightALS` is no worse than the others, or than the best of the grid by
  more than .3 %.

    python benchmarks/bench_shapes.py --seeds 4 --sets eight
"""

from functools import partial
from itertools import combinations, product

import numpy as np
from harness import SGD_SETTINGS, data_path, parser, print_head, print_row
from ratings import KINDS, budget_of, own_mean_error, split, synth10m

from skdpmf import CacheSGDFactorizer, DPItemMeans
from skdpmf.data import make_ratings, read_ratings
from skdpmf.data.validation import as_rating_matrix
from skdpmf.evaluation import rmse, split_ratings
from skdpmf.kernels.als import solve_rows
from skdpmf.kernels.rows import predict_entries

EPSILONS = (0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 10.0, 20.0, np.inf)
GRID_RIDGES, GRID_RANKS, GRID_ROUNDS = (3.0, 10.0, 30.0), (4, 12), 10
LOW, FIVE, TEN, HUNDRED = (-10.0, 10.0), (1.0, 5.0), (1.0, 10.0), (0.0, 100.0)


def heavy_tailed(n=25_000, m=100, random_state=0):
    """Return ratings on -10..10: users differ in level, spread and noise."""
    rng, k = np.random.default_rng(random_state), 12
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


def small(shape, n_ratings, scale, stds, item_exponent=0.7, **more):
    """Return a set of few people; stds of users, items, factors and noise, in quarter ranges."""
    names = "user_bias_std", "item_bias_std", "factor_std", "noise_std"
    parameters = {
        name: std * (scale[1] - scale[0]) / 4.0 for name, std in zip(names, stds, strict=True)
    }
    parameters |= {"n_ratings": n_ratings, "rating_range": scale, "item_exponent": item_exponent}
    return made(*shape, **{"min_ratings_per_user": 3, **parameters, **more})


SETS = {
    "dense 25,000 x 100, -10..10": (heavy_tailed, LOW),
    "500 x 200": made(500, 200),
    "5,000 x 60": made(5000, 60),
    "943 x 1,682, 100,000 ratings": made(943, 1682, n_ratings=100_000, min_ratings_per_user=20),
    "exactly of rank 3": made(3000, 200, n_components=3, noise_std=0.0, step=None),
    "no factors": made(3000, 200, n_components=0),
    "heavy noise": made(3000, 200, noise_std=2.0),
    "eight: long tail": small((1500, 200), 10_000, TEN, (0.5, 0.5, 0.6, 0.7), 1.1),
    "eight: few people": small((300, 100), 4500, FIVE, (0.45, 0.6, 0.55, 0.8)),
    "eight: dense": small((1000, 40), 20_000, FIVE, (0.45, 0.6, 0.55, 0.8), 0.3),
    "eight: items hardly differ": small((800, 100), 10_000, FIVE, (0.8, 0.1, 0.1, 0.8)),
    "eight: noise only": small((800, 100), 10_000, FIVE, (0.0, 0.0, 0.0, 1.0)),
    "eight: strong factors": small((1000, 80), 20_000, FIVE, (0.3, 0.3, 0.8, 0.3), n_components=3),
    "eight: few ratings a person": small(
        (2000, 60), 8000, FIVE, (0.45, 0.5, 0.5, 0.8), min_ratings_per_user=2
    ),
    "eight: dense, -10..10": (partial(heavy_tailed, 1000, 50), LOW),
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
    "10M ratings": (lambda random_state=0: synth10m(), (0.5, 5.0)),
}
OTHERS = "users' own means", "CacheSGDFactorizer", "best of a grid"
CELL = "{:+.4f} ± {:.4f}"
PARSER = parser(__doc__, data=None, seeds=3, first=0, epsilons=EPSILONS, methods=KINDS, n_jobs=1)
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


def drawn(make, seed):
    return split_ratings(make(random_state=seed), random_state=seed)


def variation_of(X, make, scale):
    """Return how ratings vary: deviations as shares of their range."""
    given = getattr(make, "keywords", {}) or {"factor_std": 2.6, "noise_std": 3.5}
    width = np.ptp(scale)
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


def mean_and_error(values):
    """Return the mean over seeds, and its standard error."""
    n = values.shape[-1]
    return values.mean(axis=-1), values.std(axis=-1, ddof=min(1, n - 1)) / n**0.5


def losses_of(name, found, others, epsilons):
    """Yield rules, words, and the loss of each seed where it should be none."""
    errors = found[name]
    for low, high in combinations(range(len(epsilons)), 2):
        words = f"from epsilon {epsilons[low]:g} to {epsilons[high]:g}"
        yield "rise with epsilon", words, errors[high] - errors[low]
    for place, epsilon in enumerate(epsilons):
        limits = {"users' own means": others["users' own means"]}
        if name not in ("DPItemMeans", "LocalDPGDDR") and "DPItemMeans" in found:
            limits["DPItemMeans"] = found["DPItemMeans"][place]
        if name == "AdaptiveWeightALS" and np.isinf(epsilon):
            limits |= {other: 1.003 * others[other] for other in list(others)[1:]}
        for other, limit in limits.items():
            yield f"above {other}", f"at epsilon {epsilon:g}", errors[place] - limit


def run(label, draw, scale, options, make=None):
    """Measure one set; draw: known and hidden ratings of a seed. Return the worst of each rule."""
    unit, epsilons = (scale[1] - scale[0]) / 4.0, options.epsilons
    shape = len(epsilons), options.seeds
    found = {name: np.empty(shape) for name in options.methods}
    found |= {f"{name}, expected": np.empty(shape) for name in options.methods}
    others = {name: np.empty(options.seeds) for name in OTHERS}
    for i, seed in enumerate(range(options.first, options.first + options.seeds)):
        X, Y = draw(seed)
        sgd = CacheSGDFactorizer(rating_range=scale, random_state=seed, **SGD_SETTINGS).fit(X)
        errors = own_mean_error(X, Y), rmse(Y, sgd.predict_entries(X, Y)), best_of_grid(X, Y, scale)
        for name, error in zip(OTHERS, errors, strict=True):
            others[name][i] = error / unit
        given = {"n_ratings": X.nnz, "assumed": make and variation_of(X, make, scale)}
        for name, (place, epsilon) in product(options.methods, enumerate(epsilons)):
            most = 10.0 if name == "LocalDPGDDR" and np.isfinite(epsilon) else np.inf
            model = KINDS[name](budget_of(min(epsilon, most)), rating_range=scale)
            expected = model.plan(*X.shape[::-1], **given).expected_rmse["this plan"]
            found[f"{name}, expected"][place, i] = expected / unit
            model.set_params(random_state=seed, n_jobs=options.n_jobs).fit(X)
            found[name][place, i] = rmse(Y, model.predict_entries(X, Y)) / unit
    print(f"{label}: {X.shape[0]:,} users x {X.shape[1]:,} items, {X.nnz:,} training ratings\n")
    print_head("", *map("{:g}".format, epsilons), "standard error")
    for name, errors in found.items():
        largest = unit * mean_and_error(errors)[1].max()
        print_row(name, *(f"{unit * e.mean():.4f}" for e in errors), f"{largest:.4f}")
    print("\n" + ", ".join(f"{name} {unit * x.mean():.4f}" for name, x in others.items()) + "\n")
    worst = {}
    for name in options.methods:
        for rule, words, loss in losses_of(name, found, others, epsilons):
            cell = *mean_and_error(loss), words
            worst[name, rule] = max(worst.get((name, rule), cell), cell)
            if cell[0] > max(2.0 * cell[1], 0.001):
                print(f"- {name}: {CELL.format(*cell[:2])} {rule}, {words}")
    print(flush=True)
    return worst


def main(arguments=None):
    options = PARSER.parse_args(arguments)
    wanted = options.sets or [""]
    cases = [(label, partial(drawn, make), scale, make) for label, (make, scale) in SETS.items()]
    path = data_path(options)
    if path is not None:
        cases.append(("MovieLens 1M", partial(split, read_ratings(path)), FIVE, None))
    chosen = [case for case in cases if any(part in case[0] for part in wanted)]
    worst = {label: run(label, draw, scale, options, make) for label, draw, scale, make in chosen}
    rules = "rise with epsilon", "above DPItemMeans", "above users' own means"
    print_head("set", "estimator", *rules)
    for (label, found), name in product(worst.items(), options.methods):
        cells = (found.get((name, rule)) for rule in rules)
        words = ("" if cell is None else f"{CELL.format(*cell[:2])} {cell[2]}" for cell in cells)
        print_row(label, name, *words)


if __name__ == "__main__":
    main()
