"""Is the Gram matrix of choices worth more than better counts? The study behind `choose_head`.

Cuts of MovieLens 1M have so many users and so many items, at random or the most popular ones; of
"few" cuts users keep a geometric number of ratings. Every fit is made twice, with the matrix and
with counts in its place, whatever the rule says. "Worth" is what the rule asks for: clicks of an
item of the head, over their least number. Prints for each cut the mean difference of NDCG@100 in
bins of it, matrix less counts, and then what all fits gain by the better choice of each, by the
rule, and by the matrix alone. --explicit: lists of AdaptiveWeightALS from ratings, of which those
above 3.5 are relevant, in the place of DPCovarianceRecommender from clicks. --items: with genres
and years of this catalogue, and then with those of other films.

    SKDPMF_DATA=folder python benchmarks/bench_head.py
    SKDPMF_DATA=folder python benchmarks/bench_head.py --explicit
    python benchmarks/bench_head.py --data ml-1m.parquet --items ml-1m-items.parquet
"""

import argparse
import itertools
from pathlib import Path
from unittest import mock

import numpy as np
from bench_lists import liked_of
from bench_utility import data_path
from scipy import sparse

from skdpmf import AdaptiveWeightALS, DPCovarianceRecommender, PrivacyBudget
from skdpmf.data import item_features, ratings_to_matrix, read_ratings
from skdpmf.data.loaders import read_items
from skdpmf.evaluation import ndcg_at_k, split_users
from skdpmf.mechanisms.gram import item_item

ALL = 10**6
# users, items (below 0: the most popular ones), ratings that a user keeps on average
CUTS = (
    *((ALL, ALL, None), (2500, ALL, None), (1000, 1700, None), (250, 1000, None)),
    *((ALL, 1000, None), (600, -600, None), (3000, -300, None), (400, -300, None)),
    *((ALL, -150, None), (1500, -100, None), (600, -60, None), (3000, -40, None)),
    *((2500, ALL, 35), (ALL, ALL, 20), (3000, -1000, 20), (ALL, ALL, 10)),
    *((ALL, -500, 10), (ALL, -500, 5)),
)
EPSILONS = 0.15 * np.sqrt(2.0) ** np.arange(16)
BINS = (0.25, 0.5, 0.8, 1.25, 2.0, 4.0)


def cut_of(X, features, cut, seed=0):
    """Some users and items, with some of their ratings; users with at least 5."""
    n_users, n_items, kept = cut
    rng = np.random.default_rng(seed)
    X = X[np.sort(rng.choice(X.shape[0], min(n_users, X.shape[0]), replace=False))]
    order = rng.permutation(X.shape[1])
    if n_items < 0:
        order = np.argsort(-np.bincount(X.indices, minlength=X.shape[1]))
    items = np.sort(order[: abs(n_items)])
    X, features = sparse.csr_array(X[:, items]), features[items]
    if kept is not None:
        number = rng.geometric(1.0 / kept, X.shape[0]) + 4
        rows = np.repeat(np.arange(X.shape[0]), np.diff(X.indptr))
        order = np.lexsort((rng.random(X.nnz), rows))
        order = order[np.arange(X.nnz) - X.indptr[rows] < number[rows]]
        X = sparse.csr_array((X.data[order], (rows[order], X.indices[order])), shape=X.shape)
    return sparse.csr_array(X[np.diff(X.indptr) >= 5]), features


def fitted(X, features, epsilon, seed, with_matrix, explicit):
    """A model with the matrix or with counts, and what the matrix was worth."""
    seen = []

    def choose(popularity, n_users, deviation, **_):
        size, clicks, least = item_item.head_and_clicks(popularity, n_users, deviation)
        seen.append(clicks / least if size else 0.0)
        return size if with_matrix else 0

    budget, terms = PrivacyBudget(epsilon, 1e-5), {"item_features": features, "random_state": seed}
    if explicit:
        model = AdaptiveWeightALS(budget, **terms)
    else:
        model = DPCovarianceRecommender(budget, feedback="implicit", **terms)
    with mock.patch.object(item_item, "choose_head", choose):
        model.fit(X)
    return model, seen[0]


def study(X, features, explicit, seeds):
    """(worth, NDCG@100 of the matrix less that of counts) of all epsilons near the limit."""
    found = []
    for split in range(2):
        rows, known, hidden = split_users(X, random_state=split)
        k = min(100, X.shape[1])
        liked = liked_of(hidden) if explicit else hidden
        for epsilon in EPSILONS:
            for seed in range(seeds):
                scores = []
                for with_matrix in (True, False):
                    model, worth = fitted(rows, features, epsilon, seed, with_matrix, explicit)
                    if not BINS[0] <= worth < BINS[-1]:
                        break
                    scores.append(ndcg_at_k(liked, model.recommend(known, k)[0], k))
                if len(scores) == 2:
                    found.append((worth, scores[0] - scores[1]))
    return np.array(found).reshape(-1, 2)


def print_study(X, features, options, *, featured):
    """Print the table of all cuts, and the gains."""
    limit = item_item.FEATURED if featured else 1.0
    bins = [f"{a:g} to {b:g}" for a, b in itertools.pairwise(BINS)]
    print("| users x items | " + " | ".join(bins) + " |\n" + "| --- " * (len(bins) + 1) + "|")
    gains = []
    for cut in CUTS[: options.cuts]:
        one, columns = cut_of(X, features, cut)
        worth, gain = study(one, columns if featured else None, options.explicit, options.seeds).T
        cells = []
        for a, b in itertools.pairwise(BINS):
            here = gain[(worth >= a) & (worth < b)]
            cells.append(f"{here.mean():+.3f} ({here.size})" if here.size else "")
        what = f"{one.shape[0]:,} x {one.shape[1]:,}" + (", popular" if cut[1] < 0 else "")
        what += "" if cut[2] is None else f", {one.nnz / one.shape[0]:.0f} a user"
        print(f"| {what} | " + " | ".join(cells) + " |", flush=True)
        if gain.size:
            ruled = np.where(worth >= limit, gain, 0.0).mean()
            gains.append((np.maximum(gain, 0.0).mean(), ruled, gain.mean()))
    best, rule, matrix = np.mean(gains, axis=0)
    print(
        f"\nGain over counts alone, mean over the cuts: {best:.4f} by the better of both each "
        f"time, {rule:.4f} by the rule, {matrix:.4f} by the matrix alone.\n"
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--explicit", action="store_true", help="lists from ratings")
    parser.add_argument("--data", type=Path, help="default: $SKDPMF_DATA/ml-1m.parquet")
    parser.add_argument("--items", type=Path, help="the catalogue: with genres and years")
    parser.add_argument("--cuts", type=int, help="the first cuts; default: all")
    parser.add_argument("--seeds", type=int, default=2, help="noise seeds")
    options = parser.parse_args()
    matrix = ratings_to_matrix(read_ratings(data_path(options)))
    features = np.empty((len(matrix.items), 0))
    if options.items is not None:
        table = item_features(read_items(options.items))
        table.index = table.index.astype(str)
        features = table.reindex(matrix.items.astype(str)).fillna(0.0).to_numpy(float)
    X = sparse.csr_array(matrix.X)
    if not options.explicit:
        X.data = (X.data > 3.5).astype(float)
        X.eliminate_zeros()
    print_study(X, features, options, featured=options.items is not None)
    if options.items is not None:
        print("Features of other films:\n")
        others = features[np.random.default_rng(0).permutation(len(features))]
        print_study(X, others, options, featured=True)


if __name__ == "__main__":
    main()
