"""Lists from ratings: does `recommend` find held-out users' favourites, and at which cost?

Every estimator with its defaults is fitted on the ratings of the training users; held-out users
hide a fifth of their ratings (`skdpmf.evaluation.split_users`). Recall@20 and NDCG@100 are of the
hidden ratings above 3.5 of 5, the RMSE is of all hidden ratings. Beside them are the most popular
items (exact counts), EASE without privacy on what is rated, and AdaptiveWeightALS without a share
for lists. Ratings come from --data FILE or $SKDPMF_DATA/ml-1m.parquet, or are made up. Prints a
Markdown table for each measure.

With --planted ratings of 1..10 are made up of people who like two of ten genres, which are
`item_features`, and choose by popularity, on "both" by genres too; docs/benchmarks/lists.md tells
the measures. Before them is what lists reach that know popularity and everybody's tastes.

    SKDPMF_DATA=folder python benchmarks/bench_lists.py
    python benchmarks/bench_lists.py --planted --epsilons .5 1 4
"""

import numpy as np
from harness import SGD_SETTINGS, note, parser, print_head, print_row, spread
from ratings import (
    ALONE,
    DELTA,
    KINDS,
    budget_of,
    found_by,
    liked_of,
    part_of,
    public_share,
    ratings_of,
)
from scipy import sparse

from skdpmf import CacheSGDFactorizer
from skdpmf.evaluation import popularity, recall_at_k, split_ratings

MODELS = {"AdaptiveWeightALS, list_share=None": ALONE, **KINDS}
del MODELS["LocalDPGDDR"]
# n_users, n_items, users' mean number of ratings, lift of liked genres, noise, Zipf exponent of the
# popularity, odds of choosing liked genres
PLANTED = {
    "clear": (3000, 500, 60, 4.0, 1.0, 0.8, 1.0),
    "fewer ratings": (3000, 500, 30, 3.0, 1.2, 0.6, 1.0),
    "weak, long-tailed": (2500, 400, 30, 3.0, 1.5, 1.1, 1.0),
    "both": (2500, 400, 60, 2.0, 1.5, 0.8, 4.0),
}
PARSER = parser(
    __doc__,
    data=None,
    epsilons=[1.0, 4.0, 20.0],
    seeds=3,
    split=0,
    users=0,  # only so many training users, at random; 0: all
    items=0,  # only so many items, the most popular ones; 0: all
    public=0.0,  # share of the training users whose rows are public
    methods=MODELS,
    planted=False,
    taste=0.5,  # of lists from planted ratings
)


def fitted(name, budget, seed, X, share):
    """Return a method's model of the training users, of whom a share is public."""
    model, public = MODELS[name](budget, random_state=seed), public_share(X.shape[0], share, seed)
    return model.set_params(public=X[public]).fit(X[~public]) if share else model.fit(X)


def measured(model, known, hidden, liked):
    """Recall@20, NDCG@100 and RMSE of a fitted model."""
    ranked = model.recommend(known, 100)[0]
    return *found_by(ranked, liked), -model.score(known, hidden)


def ease(X, known, penalty=500.0):
    """Lists of EASE (Steck 2019) on what is rated, at the penalty that suits MovieLens 1M."""
    G = (X.astype(bool).astype(float).T @ X.astype(bool).astype(float)).toarray()
    P = np.linalg.inv(G + penalty * np.eye(len(G)))
    B = -P / np.diag(P)
    np.fill_diagonal(B, 0.0)
    scores = np.where(known.toarray() > 0, -np.inf, known.astype(bool).astype(float) @ B)
    return np.argsort(-scores, axis=1, kind="stable")[:, :100]


def cell(values):
    values = [value for value in values if np.isfinite(value)]
    return spread(values) if values else "-"


def planted(n_users, n_items, n_rated, lift, noise, exponent, odds, n_genres=10):
    """Return ratings, genres, and which items are of a genre that each user likes."""
    rng = np.random.default_rng(0)
    genres = np.eye(n_genres)[rng.integers(n_genres, size=n_items)]
    genres = np.maximum(genres, rng.random(genres.shape) < 0.03)
    popularity = (1.0 + rng.permutation(n_items)) ** -exponent
    tastes = np.argsort(rng.random((n_users, n_genres)), axis=1) < 2
    suits = tastes @ genres.T > 0.0
    n = np.clip(rng.lognormal(np.log(n_rated) - 0.32, 0.8, n_users), 8, 0.6 * n_items)
    keys = np.log(popularity * np.where(suits, odds, 1.0)) + rng.gumbel(size=suits.shape)
    chosen = np.argsort(np.argsort(-keys, axis=1), axis=1) < n[:, None]
    ratings = 5.0 + rng.normal(size=n_items) + 0.8 * rng.normal(size=(n_users, 1))
    ratings = ratings + lift * (suits - suits.mean()) + noise * rng.normal(size=suits.shape)
    X = np.where(chosen, np.clip(np.rint(ratings), 1.0, 10.0), 0.0)
    return sparse.csr_array(X), genres, suits


def print_attainable(X, suits):
    """Share of liked genres and recall where popularity and everybody's tastes are known."""
    known, hidden = split_ratings(X, random_state=0)
    popularity = np.log(np.bincount(X.indices, minlength=X.shape[1]) + 1.0)
    score, found = np.where(known.toarray() > 0.0, -np.inf, popularity), []
    print_head("log popularity + a x liked: a", "liked genres", "Recall@20", "Recall@10")
    for a in (0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0):
        listed = np.argsort(-score - a * suits, axis=1)[:, :20]
        found.append([recall_at_k(hidden, listed[:, :n], n) for n in (20, 10)])
        share = np.take_along_axis(suits, listed[:, :10], axis=1).mean()
        print_row(f"{a:g}", *(f"{x:.3f}" for x in (share, *np.divide(found[-1], found[0]))))
    print()


def of_tastes(model, genres, popular, known, hidden, suits, taste):
    """The measures of --planted."""
    listed, chosen = (model.recommend(known, 20, taste=t)[0] for t in (taste, 0.0))
    share = np.take_along_axis(suits, listed[:, :10], axis=1).mean()
    four = [
        genres[model.recommend(dict.fromkeys(own[:4].tolist(), 10.0), taste=taste)[0][0], g].mean()
        for g in range(genres.shape[1])
        for own in [popular[genres[popular, g] > 0.0]]
    ]
    liked = [sparse.csr_array(hidden.multiply(hidden >= least)) for least in (6.0, 1.0)]
    ratios = (recall_at_k(Y, listed, 20) / recall_at_k(Y, chosen, 20) for Y in liked)
    return share, *ratios, np.mean(four)


def print_planted(options, budgets):
    measures = ("share of liked genres", "Recall@20 / taste 0", "of all choices", "four of a genre")
    for name, given in PLANTED.items():
        X, genres, suits = planted(*given)
        train, (known, hidden) = X[300:], split_ratings(X[:300], random_state=options.split)
        popular = np.argsort(-np.bincount(train.indices, minlength=len(genres)), kind="stable")
        print(f"{name}: chance has a share of {suits[:300].mean():.3f}\n")
        print_attainable(X, suits)
        print_head("", "", *(f"epsilon {b.epsilon:g}" for b in budgets))
        for method in options.methods:
            found = []
            for budget in budgets:
                runs = []
                for seed in range(options.seeds if budget.is_private else 1):
                    model = MODELS[method](budget, random_state=seed)
                    model.set_params(item_features=genres, rating_range=(1.0, 10.0)).fit(train)
                    rows = known, hidden, suits[:300], options.taste
                    runs.append(of_tastes(model, genres, popular, *rows))
                found.append(np.transpose(runs))
            for at, measure in enumerate(measures):
                print_row(method, measure, *(spread(list(values[at]), 3) for values in found))
        print()


def main(arguments=None):
    options = PARSER.parse_args(arguments)
    budgets = [budget_of(epsilon) for epsilon in (*options.epsilons, np.inf)]
    if options.planted:
        print_planted(options, budgets)
        return
    X = ratings_of(options, 1500, 200)
    X, known, hidden = part_of(X, options)
    liked = liked_of(hidden)
    unprivate = {
        "most popular, exact counts": (*found_by(popularity(X, known, 100)[0], liked), np.nan),
        "EASE, not private": (*found_by(ease(X, known), liked), np.nan),
    }
    sgd = CacheSGDFactorizer(random_state=0, **SGD_SETTINGS).fit(X)
    unprivate["CacheSGDFactorizer, not private"] = measured(sgd, known, hidden, liked)
    found = {}
    for budget in budgets:
        for name in options.methods:
            seeds = range(options.seeds if budget.is_private else 1)
            models = (fitted(name, budget, seed, X, options.public) for seed in seeds)
            runs = [measured(model, known, hidden, liked) for model in models]
            found[name, budget.epsilon] = np.array(runs)
            note(name, budget.epsilon, np.mean(runs, axis=0).round(4))
    print(
        f"Split {options.split}: {X.shape[0]:,} training users x {X.shape[1]:,} items, {X.nnz:,} "
        f"ratings; {known.shape[0]:,} held-out users; delta {DELTA:g}, {options.seeds} "
        "noise seeds\n"
    )
    for column, measure in enumerate(("Recall@20", "NDCG@100", "RMSE")):
        print_head(measure, *(f"epsilon {b.epsilon:g}" for b in budgets))
        for name in options.methods:
            print_row(name, *(cell(found[name, b.epsilon][:, column]) for b in budgets))
        for name, values in unprivate.items():
            print_row(name, *[""] * len(options.epsilons), cell([values[column]]))
        print(flush=True)


if __name__ == "__main__":
    main()
