"""Test RMSE against epsilon on ratings of many shapes: more budget must not hurt.

All settings are the defaults. A seed stands for a new set, a new split and new noise, so that a
standard error has all three. `LocalDPGDDR` gets epsilon 16 at most, as a report takes no more.
Below them are errors that plans expect when they assume how ratings vary as fits without privacy
show it, and which part is taste as made-up sets have it. The floor is the better of `DPItemMeans`
and users' own means, and what is above it is in quarters of the rating range, as are violations of
rules by more than two standard errors and .001:

- the error falls with epsilon;
- no private estimator is worse than `DPItemMeans` at the same epsilon, or than users' own means;
- without privacy `AdaptiveWeightALS` is no worse than `CacheSGDFactorizer`.

    python benchmarks/bench_shapes.py --seeds 4 --sets eight
"""

from functools import partial
from itertools import combinations, product

import numpy as np
from harness import SGD_SETTINGS, data_path, parser, print_head, print_row
from ratings import budget_of, own_mean_error, split, synth10m

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

EPSILONS = (0.1, 0.3, 1.0, 2.0, 4.0, 8.0, 20.0, np.inf)
KINDS = AdaptiveWeightALS, DPCovarianceRecommender, DPMFSampler, DPItemMeans, LocalDPGDDR
KINDS = {kind.__name__: kind for kind in KINDS}
LOW, FIVE, TEN = (-10.0, 10.0), (1.0, 5.0), (1.0, 10.0)


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
    "eight: small": small((300, 100), 4500, FIVE, (0.45, 0.6, 0.55, 0.8)),
    "eight: dense": small((1000, 40), 20_000, FIVE, (0.45, 0.6, 0.55, 0.8), 0.3),
    "eight: items hardly differ": small((800, 100), 10_000, FIVE, (0.8, 0.1, 0.1, 0.8)),
    "eight: noise only": small((800, 100), 10_000, FIVE, (0.0, 0.0, 0.0, 1.0)),
    "eight: strong factors": small((1000, 80), 20_000, FIVE, (0.3, 0.3, 0.8, 0.3), n_components=3),
    "eight: few ratings a person": small(
        (2000, 60), 8000, FIVE, (0.45, 0.5, 0.5, 0.8), min_ratings_per_user=2
    ),
    "eight: dense, -10..10": (partial(heavy_tailed, 1000, 50), LOW),
    "10M ratings": (lambda random_state=0: synth10m(), (0.5, 5.0)),
}
CELL = "{:+.4f} ± {:.4f}"
PARSER = parser(__doc__, data=None, seeds=3, epsilons=EPSILONS, methods=KINDS, n_jobs=1)
PARSER.add_argument("--sets", nargs="+", help="parts of the sets' names; default: all")


def drawn(make, seed):
    return split_ratings(make(random_state=seed), random_state=seed)


def variation_of(X, make, scale):
    """Return how ratings vary: deviations as shares of their range."""
    given, width = {"factor_std": 2.6, "noise_std": 3.5}, np.ptp(scale)
    given |= getattr(make, "keywords", {})
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
    """Yield what a method should not lose: words, and the loss of each seed."""
    errors = found[name]
    for low, high in combinations(range(len(epsilons)), 2):
        words = f"from epsilon {epsilons[low]:g} to {epsilons[high]:g}"
        yield words, errors[high] - errors[low]
    for place, epsilon in enumerate(epsilons):
        at = f"at epsilon {epsilon:g}"
        yield f"against users' own means {at}", errors[place] - others["users' own means"]
        if "DPItemMeans" in found:
            yield f"against DPItemMeans {at}", errors[place] - found["DPItemMeans"][place]
    if name == "AdaptiveWeightALS" and np.isinf(epsilons[-1]):
        yield "without privacy against SGD", errors[-1] - others["CacheSGDFactorizer"]


def run(label, draw, scale, options, make=None):
    """Measure one set; draw: known and hidden ratings of a seed."""
    unit, seeds, epsilons = (scale[1] - scale[0]) / 4.0, options.seeds, options.epsilons
    names = *options.methods, *(f"{name}, expected" for name in options.methods)
    found = {name: np.zeros((len(epsilons), seeds)) for name in names}
    others = {name: np.zeros(seeds) for name in ("users' own means", "CacheSGDFactorizer")}
    for seed in range(seeds):
        X, Y = draw(seed)
        sgd = CacheSGDFactorizer(rating_range=scale, random_state=seed, **SGD_SETTINGS).fit(X)
        others["users' own means"][seed] = own_mean_error(X, Y) / unit
        others["CacheSGDFactorizer"][seed] = rmse(Y, sgd.predict_entries(X, Y)) / unit
        given = {"n_ratings": X.nnz, "assumed": make and variation_of(X, make, scale)}
        for name, (place, epsilon) in product(options.methods, enumerate(epsilons)):
            most = 16.0 if name == "LocalDPGDDR" and np.isfinite(epsilon) else np.inf
            model = KINDS[name](budget_of(min(epsilon, most)), rating_range=scale)
            expected = model.plan(*X.shape[::-1], **given).expected_rmse["this plan"]
            found[f"{name}, expected"][place, seed] = expected / unit
            model.set_params(random_state=seed, n_jobs=options.n_jobs).fit(X)
            found[name][place, seed] = rmse(Y, model.predict_entries(X, Y)) / unit
    print(f"{label}: {X.shape[0]:,} users x {X.shape[1]:,} items, {X.nnz:,} training ratings\n")
    print_head("", *map("{:g}".format, epsilons), "largest rise")
    for name, errors in found.items():
        rises = [mean_and_error(b - a) for a, b in combinations(errors, 2)]
        print_row(name, *(f"{unit * e.mean():.4f}" for e in errors), CELL.format(*max(rises)))
    print()
    print_head("above the floor", *map("{:g}".format, epsilons))
    for name in options.methods if "DPItemMeans" in found else ():
        above = found[name] - np.minimum(found["DPItemMeans"], others["users' own means"])
        print_row(name, *(CELL.format(*mean_and_error(cell)) for cell in above))
    print("\n" + ", ".join(f"{name} {unit * x.mean():.4f}" for name, x in others.items()) + "\n")
    losses = []
    for name in options.methods:
        for words, loss in losses_of(name, found, others, epsilons):
            losses.append((*mean_and_error(loss), name, words))
    for loss, error, name, words in sorted(losses, reverse=True):
        if loss > max(2.0 * error, 0.001):
            print(f"- {name}: {CELL.format(loss, error)} {words}")
    print(flush=True)


def main(arguments=None):
    options = PARSER.parse_args(arguments)
    wanted = options.sets or [""]
    for label, (make, scale) in SETS.items():
        if any(part in label for part in wanted):
            run(label, partial(drawn, make), scale, options, make)
    path = data_path(options)
    if path is not None and any(part in "MovieLens 1M" for part in wanted):
        run("MovieLens 1M", partial(split, read_ratings(path)), FIVE, options)


if __name__ == "__main__":
    main()
