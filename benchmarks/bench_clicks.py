"""Top-n recommendations from clicks, private and not: Recall@20 and NDCG@100 of held-out users.

It compares the item-item model (DPCovarianceRecommender), the default solver of AdaptiveWeightALS
("pooled"), its published solvers with uniform and tail sampling and adaptive weights, and the most
popular items (noisy counts from the whole budget). Clicks are ratings above 3.5 of users with at
least 5 of them, or a synthetic set. A tenth of the users is held out, with a fifth of each one's
clicks as targets; all other settings are defaults. Prints a Markdown table for each metric.

    SKDPMF_DATA=folder python benchmarks/bench_clicks.py --split 1
    python benchmarks/bench_clicks.py --synthetic plays --log --methods item-item pooled
"""

from functools import partial

import numpy as np
from harness import data_path, note, parser, print_head, print_row, spread
from ratings import (
    DELTA,
    LEAST_CLICKS,
    budget_of,
    clicks_of_ratings,
    found_by,
    part_of,
    public_share,
)
from scipy import sparse

from skdpmf import DPALS, AdaptiveWeightALS, Clicks, DPCovarianceRecommender
from skdpmf.data import make_ratings, ratings_to_matrix, read_ratings

METHODS = {
    "item-item": {"model": DPCovarianceRecommender},
    "pooled": {},
    "DPALS, uniform": {"solver": DPALS("uniform")},
    "DPALS, tail": {"solver": DPALS("tail")},
    "AdaDPALS, exponent 1/4": {"solver": DPALS(weight_exponent=0.25)},
    "AdaDPALS, exponent 0": {"solver": "dpals"},
}
LOG = ", log"  # of methods with ``Clicks(weighting="log")``
POPULAR = "most popular"
MOST_CLICKS = 400  # a user of the synthetic sets


def synthetic_clicks(
    seed, n_users=8000, n_items=1500, tastes=(0.8,) * 6, zipf=1.0, clicks=(3.6, 0.8)
):
    """Clicks drawn without replacement, by popularity (Zipf) and tastes.

    `tastes` are standard deviations, one a factor, `clicks` mean and deviation of the logarithm of
    a user's number of clicks. Blocks of users bound the memory and leave the draws alone.
    """
    rng = np.random.default_rng(seed)
    U, V = (rng.normal(size=(n, len(tastes))) for n in (n_users, n_items))
    V *= tastes
    popularity = -zipf * np.log(np.arange(1, n_items + 1))
    best = np.empty((n_users, MOST_CLICKS), np.int16)
    for begin in range(0, n_users, 4000):
        own = U[begin : begin + 4000]
        appeal = own @ V.T + popularity + rng.gumbel(size=(len(own), n_items))
        best[begin : begin + 4000] = np.argsort(-appeal, axis=1)[:, :MOST_CLICKS]
    n = np.clip(rng.lognormal(*clicks, n_users).astype(int), LEAST_CLICKS, MOST_CLICKS)
    chosen = best[np.arange(MOST_CLICKS) < n[:, None]]
    columns = rng.permutation(n_items)[chosen]
    rows = np.repeat(np.arange(n_users), n)
    return sparse.csr_array((np.ones(rows.size), (rows, columns)), shape=(n_users, n_items))


def synthetic_20m(seed):
    """Clicks of about the shape of MovieLens 20M, whose popularity and tastes are guesses."""
    variance = 0.7 ** np.arange(10.0)
    variance *= 4.0 / variance.sum()
    return synthetic_clicks(seed, 136_677, 2010, np.sqrt(variance), zipf=0.8, clicks=(3.7, 1.1))


def synthetic_communities(seed, n_users, n_items, n_communities, zipf, sizes, own, mixed, clicks):
    """Few clicks on a large catalogue, in communities of taste.

    Every item belongs to a community, whose users are as many as the rank of its size to the power
    -`sizes`. A user is of `mixed` of them, in random shares of a share `own` of the clicks; the
    others go by popularity, which is the order within communities as well (Zipf, exponent `zipf`).
    """
    rng = np.random.default_rng(seed)
    community = rng.integers(n_communities, size=n_items)
    size = rng.permutation(np.arange(1.0, n_communities + 1) ** -sizes)
    popularity = np.arange(1.0, n_items + 1) ** -zipf
    inside = popularity / np.bincount(community, popularity, n_communities)[community]
    order = np.argsort(community, kind="stable")
    ends = np.concatenate(([0.0], np.cumsum(inside[order])))
    ends, start = ends[1:], ends[np.searchsorted(community[order], np.arange(n_communities + 1))]
    overall = np.cumsum(size[community] * inside)
    n = np.clip(rng.lognormal(*clicks, n_users).astype(int), LEAST_CLICKS, MOST_CLICKS)
    theirs = rng.choice(n_communities, (n_users, mixed), p=size / size.sum())
    share = np.cumsum(rng.dirichlet(np.ones(mixed), n_users), axis=1)
    user = np.repeat(np.arange(n_users), 3 * n)  # the first n that differ are chosen
    which = theirs[user, np.sum(rng.random((user.size, 1)) > share[user, :-1], axis=1)]
    place = start[which] + rng.random(user.size) * (start[which + 1] - start[which])
    item = order[np.minimum(np.searchsorted(ends, place), n_items - 1)]
    other = np.searchsorted(overall, rng.random(user.size) * overall[-1])
    item = np.where(rng.random(user.size) < own, item, other)
    first = np.sort(np.unique(user * n_items + item, return_index=True)[1])
    user, item = user[first], item[first]
    chosen = np.arange(user.size) - np.searchsorted(user, user) < n[user]
    columns = rng.permutation(n_items)[item[chosen]]
    cells = np.ones(columns.size), (user[chosen], columns)
    return sparse.csr_array(cells, shape=(n_users, n_items))


def synthetic_plays(
    seed, slope=1.0, dispersion=0.5, spread=0.7, n_users=3000, n_items=500, zipf=0.8
):
    """Plays: whom a user chooses as in `synthetic_clicks`, and negative-binomial counts.

    The logarithm of a count's mean is the user's own level (standard deviation `spread`) plus
    `slope` times the affinity in standard deviations; `dispersion` is the shape of the law, whose
    tail is the longer the smaller it is.
    """
    rng = np.random.default_rng(seed)
    affinity = rng.normal(size=(n_users, 6)) @ rng.normal(scale=0.8, size=(6, n_items))
    appeal = affinity - zipf * np.log(np.arange(1, n_items + 1)) + rng.gumbel(size=affinity.shape)
    n = np.clip(rng.lognormal(3.4, 0.8, n_users).astype(int), LEAST_CLICKS, n_items // 2)
    order = np.argsort(-appeal, axis=1)
    rows = np.repeat(np.arange(n_users), n)
    chosen = order[np.arange(n_items) < n[:, None]]
    known = affinity[rows, chosen]
    known = (known - known.mean()) / known.std()
    mean = np.exp(1.0 + slope * known + spread * rng.normal(size=n_users)[rows])
    counts = 1.0 + rng.poisson(rng.gamma(dispersion, mean / dispersion))
    columns = rng.permutation(n_items)[chosen]
    return sparse.csr_array((counts, (rows, columns)), shape=(n_users, n_items))


def synthetic_popular(seed):
    """Clicks by popularity alone: nobody has tastes, so that no list beats the most popular."""
    X = make_ratings(6000, 1000, density=0.05, min_ratings_per_user=LEAST_CLICKS, random_state=seed)
    X.data[:] = 1.0
    return X


# On all but the first popularity and the Gram matrix find about as much as on public sets of these
# shapes: readers of papers, listeners of artists, and buyers of two shops
_BUYERS = {"n_communities": 60, "zipf": 0.55, "sizes": 0.5, "own": 0.7, "mixed": 1}
_SHAPES = {
    "sparse": {"n_users": 5000, "n_items": 17_000, "n_communities": 250, "zipf": 0.8, "sizes": 0.0}
    | {"own": 0.8, "mixed": 3, "clicks": (3.3, 0.75)},
    "papers": {"n_users": 5551, "n_items": 16_980, "n_communities": 150, "zipf": 0.5, "sizes": 0.5}
    | {"own": 0.75, "mixed": 2, "clicks": (3.3, 0.8)},
    "artists": {"n_users": 1892, "n_items": 17_632, "n_communities": 10, "zipf": 0.95, "sizes": 0.3}
    | {"own": 0.9, "mixed": 1, "clicks": (3.9, 0.05)},
    "shop": {"n_users": 22_363, "n_items": 12_101, "clicks": (2.0, 0.6)} | _BUYERS,
    "large shop": {"n_users": 33_932, "n_items": 24_400, "clicks": (1.95, 0.6)} | _BUYERS,
}
SYNTHETIC = {
    "small": synthetic_clicks,
    "20m": synthetic_20m,
    "popular": synthetic_popular,
    "plays": synthetic_plays,
    "plays, weak": partial(synthetic_plays, slope=0.3),
    "plays, chance": partial(synthetic_plays, slope=0.0),
    "plays, heavy": partial(synthetic_plays, dispersion=0.2, spread=1.2),
    "plays, long": partial(synthetic_plays, n_items=3000, zipf=1.1),
    **{name: partial(synthetic_communities, **shape) for name, shape in _SHAPES.items()},
}
PARSER = parser(
    __doc__,
    data=None,
    epsilons=[0.5, 1.0, 5.0, 20.0],
    seeds=5,
    split=1,  # 0 is that of the defaults' choice
    held_out=0,  # users; 0: a tenth of them
    public=0.0,  # share of the training users whose rows are public, but for published solvers
    users=0,  # only so many training users, at random; 0: all
    items=0,  # only so many items, the most popular ones; 0: all
    methods=METHODS,
    log=False,  # also with counts that weigh by their logarithm
    n_jobs=1,
)
PARSER.add_argument("--synthetic", nargs="?", const="small", choices=list(SYNTHETIC))


def most_popular(X, known, budget, seed):
    """Rank by noisy sums of 1/sqrt(n_i), as the methods count, from the whole budget."""
    n = np.diff(X.indptr)
    weight = np.repeat(1.0 / np.sqrt(np.maximum(n, 1)), n)
    counts = np.bincount(X.indices, minlength=X.shape[1], weights=weight)
    if budget.is_private:  # a baseline to compare with, not a release: plain floating-point noise
        counts = counts + np.random.default_rng(seed).normal(size=counts.size) / budget.mu
    scores = np.where(known.toarray() > 0, -np.inf, counts)
    return np.argsort(-scores, axis=1, kind="stable")[:, :100]


def measure(name, X, known, targets, budget, options):
    """Both metrics, a row for each noise seed, which draws the public people too."""
    found, everybody = [], X
    params = METHODS.get(name.removesuffix(LOG), {})
    for seed in range(options.seeds if budget.is_private else 1):
        if name == POPULAR:
            ranked = most_popular(X, known, budget, seed)
        else:
            # Seeded, so that the table can be made again; a real release leaves random_state alone.
            make = params.get("model", AdaptiveWeightALS)
            own = {key: value for key, value in params.items() if key != "model"}
            if options.public:
                public = public_share(everybody.shape[0], options.public, seed)
                X = everybody[~public]
                own |= {} if "solver" in own else {"public": everybody[public]}
            feedback = Clicks(weighting="log" if name.endswith(LOG) else None)
            own |= {"feedback": feedback, "n_jobs": options.n_jobs}
            model = make(budget, random_state=seed, **own)
            ranked = model.fit(X).recommend(known, 100)[0]
        found.append(found_by(ranked, targets))
    note(name, budget.epsilon, np.round(np.mean(found, axis=0), 4))
    return np.array(found)


def main(arguments=None):
    options = PARSER.parse_args(arguments)
    path, make = data_path(options), SYNTHETIC.get(options.synthetic)
    if not make and path is None:
        PARSER.exit(0, "no ratings file: --data, $SKDPMF_DATA or --synthetic\n")
    X = make(options.split) if make else clicks_of_ratings(ratings_to_matrix(read_ratings(path)).X)
    X, known, targets = part_of(X, options, options.held_out or 0.1)
    budgets = [budget_of(epsilon) for epsilon in (*options.epsilons, np.inf)]
    names = [POPULAR, *options.methods]
    names += [name + LOG for name in options.methods if options.log]
    cells = {
        (name, budget.epsilon): measure(name, X, known, targets, budget, options)
        for budget in budgets
        for name in names
    }
    n_users, n_items = X.shape
    print(
        f"Split {options.split}: {n_users:,} training users x {n_items:,} items, {X.nnz:,} clicks; "
        f"{known.shape[0]:,} held-out users, {targets.nnz:,} targets; delta {DELTA:g}, "
        f"{options.seeds} noise seeds\n"
    )
    for column, metric in enumerate(("Recall@20", "NDCG@100")):
        print_head(metric, *(f"epsilon {b.epsilon:g}" for b in budgets))
        for name in names:
            print_row(name, *(spread(cells[name, b.epsilon][:, column]) for b in budgets))
        print(flush=True)


if __name__ == "__main__":
    main()
