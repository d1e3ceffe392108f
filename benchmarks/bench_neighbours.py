"""Nearest items and recommendations of private models: are they those of the model without privacy?

As in the qualitative figures of Krichene et al. (2023): for head and tail items, the nearest items
by the cosine of released factors, and how many of the 10 nearest and of each user's 20
recommendations are also those of the fit without privacy. Beside the overlaps:

- the ceiling: the fit without privacy with another seed, and on users drawn with replacement
  instead of all once, which is how much of the lists is due to who happens to be in the data;
- the floor: the overlap with the list of another item of the same popularity, or of another user,
  and what random lists would have.

Factors are of `AdaptiveWeightALS` with defaults but for `weight_exponent`, on clicks or, with
--feedback explicit, on ratings. Training and held-out users are those of bench_clicks.py, split 1.
Ratings come from --data FILE or $SKDPMF_DATA/ml-1m.parquet, or are made up. With --items the
examples have titles, and neighbours are also compared by genre. Prints Markdown tables.

    python benchmarks/bench_neighbours.py --data ml-1m.parquet --items movies.dat --seeds 3
"""

import argparse
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from bench_clicks import clicks_of_ratings, most_popular, with_spread
from bench_utility import data_path, print_head, print_row
from scipy import sparse
from threadpoolctl import threadpool_limits

from skdpmf import AdaptiveWeightALS, DPItemMeans, Pooled, PrivacyBudget
from skdpmf.data import make_ratings, ratings_to_matrix, read_ratings
from skdpmf.data.loaders import read_items
from skdpmf.evaluation import split_users
from skdpmf.evaluation.metrics import popularity_buckets

DELTA = 1e-5
N_NEAREST, N_RECOMMENDED = 10, 20
N_BUCKETS = 5
QUANTILES = (1.0, 0.9, 0.7, 0.5, 0.3, 0.1)  # of popularity, for the examples
ROWS_AT_ONCE = 512
SIMILARITIES = ("cosine", "Tanimoto")


def overlap(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Share of each row of `second` that is in the same row of `first`; -1 is no item."""
    same = (first[:, :, None] == second[:, None, :]) & (second >= 0)[:, None, :]
    return same.any(axis=1).mean(axis=1)


def cosine_nearest(components: np.ndarray, n: int) -> np.ndarray:
    """The n items of largest cosine to each, itself left out, as -1 where it has no factors."""
    lengths = np.linalg.norm(components, axis=0)
    known = lengths > 0
    V = (components / np.where(known, lengths, 1.0)).T
    nearest = np.full((len(V), n), -1)
    for begin in range(0, len(V), ROWS_AT_ONCE):
        rows = np.arange(begin, min(begin + ROWS_AT_ONCE, len(V)))
        products = np.where(known, V[rows] @ V.T, -np.inf)
        products[rows - begin, rows] = -np.inf
        best = np.argsort(-products, axis=1, kind="stable")[:, :n]
        found = np.take_along_axis(products, best, axis=1) > -np.inf
        nearest[rows] = np.where(found & known[rows, None], best, -1)
    return nearest


def others(groups: np.ndarray, seed: int = 0) -> np.ndarray:
    """Another member of each one's group, at random; itself where it is alone."""
    rng, partner = np.random.default_rng(seed), np.empty(len(groups), int)
    for group in np.unique(groups):
        members = rng.permutation(np.flatnonzero(groups == group))
        partner[members] = np.roll(members, 1)
    return partner


class Lists(NamedTuple):
    """What a model says: nearest items by similarity, recommendations, and its rank."""

    nearest: dict[str, np.ndarray]
    recommended: np.ndarray
    rank: int


class Problem(NamedTuple):
    """Training users, known rows of held-out users, and what every fit has in common."""

    X: Any
    known: Any
    params: dict


def lists_of(
    problem: Problem,
    budget: PrivacyBudget,
    X: Any = None,
    weight_exponent: float | None = None,
    **params: Any,
) -> Lists:
    X = problem.X if X is None else X
    solver = Pooled(list_share=None, weight_exponent=weight_exponent)
    model = AdaptiveWeightALS(budget, **problem.params, **params, solver=solver).fit(X)
    rank = model.n_components_
    n_items = X.shape[1]
    nearest = np.full((n_items, N_NEAREST), -1)
    tanimoto = model.similar_items(np.arange(n_items), N_NEAREST)[0] if rank else nearest
    print(budget, params, "rank", rank, file=sys.stderr, flush=True)
    recommended = model.recommend(problem.known, N_RECOMMENDED)[0]
    nearest = {"cosine": cosine_nearest(model.components_, N_NEAREST), "Tanimoto": tanimoto}
    return Lists(nearest, recommended, rank)


def popular_lists(problem: Problem, budget: PrivacyBudget, seed: int) -> np.ndarray:
    """Recommendations that do not know the user."""
    if problem.params["feedback"] == "implicit":
        return most_popular(problem.X, problem.known, budget, seed)[:, :N_RECOMMENDED]
    scale = problem.params["rating_range"]
    model = DPItemMeans(budget, rating_range=scale, random_state=seed).fit(problem.X)
    return model.recommend(problem.known, N_RECOMMENDED)[0]


def all_lists(problem: Problem, options: Any) -> dict[str, list[Lists]]:
    """Lists by row of the tables, a seed each; the others are held against the first row."""
    exact, n_users = PrivacyBudget.nonprivate(), problem.X.shape[0]
    drawn = np.sort(np.random.default_rng(0).integers(n_users, size=n_users))
    found = {
        "not private": [lists_of(problem, exact, random_state=0)],
        "not private, another seed": [lists_of(problem, exact, random_state=1)],
        "not private, users drawn again": [lists_of(problem, exact, problem.X[drawn])],
    }
    for epsilon in options.epsilons:
        for exponent in options.exponents:
            # Seeded, so that the table can be made again; a real release leaves random_state alone.
            found[f"epsilon {epsilon:g}, exponent {exponent:g}"] = [
                lists_of(
                    problem,
                    PrivacyBudget(epsilon, DELTA),
                    weight_exponent=exponent,
                    random_state=seed,
                )
                for seed in range(options.seeds)
            ]
    return found


def ranks(lists: list[Lists]) -> str:
    low, high = min(one.rank for one in lists), max(one.rank for one in lists)
    return str(low) if low == high else f"{low} to {high}"


def with_factors(lists: list[Lists]) -> list[Lists]:
    """The fits whose budget supported a factor: the others know of no neighbours."""
    return [one for one in lists if one.rank]


def print_neighbours(found: dict, similarity: str, counts: np.ndarray, items: np.ndarray) -> None:
    """Overlap of the nearest items with those of the first model, by popularity."""
    buckets = popularity_buckets(counts[items], N_BUCKETS)
    partner = items[others(buckets)]
    reference = found["not private"][0].nearest[similarity]
    print(
        f"## The {N_NEAREST} nearest items by {similarity}\n\nShare that is among those of the fit "
        "without privacy, mean over the seeds that have factors; in brackets, of another item of "
        "the bucket. By training clicks or ratings an item, rarest first, "
        f"{items.size:,} items. Random lists would have {N_NEAREST / (counts.size - 1):.4f}. "
        "\\* not above the bracket by two standard errors.\n"
    )
    parts = [counts[items[buckets == b]] for b in range(N_BUCKETS)]
    print_head("factors of", "rank", *(f"{p.min()} to {p.max()}" for p in parts), "all")
    for name, fits in list(found.items())[1:]:
        lists = with_factors(fits)
        if not lists:
            print_row(name, "0", *["no factors"] * (N_BUCKETS + 1))
            continue
        own = [overlap(reference[items], one.nearest[similarity][items]) for one in lists]
        floor = [overlap(reference[partner], one.nearest[similarity][items]) for one in lists]
        own, floor = np.mean(own, axis=0), np.mean(floor, axis=0)
        cells = []
        for inside in [*(buckets == b for b in range(N_BUCKETS)), buckets >= 0]:
            gain = (own - floor)[inside]
            error = gain.std(ddof=1) / np.sqrt(gain.size)
            mark = "" if gain.mean() > 2.0 * error else " \\*"
            cells.append(f"{own[inside].mean():.3f} ({floor[inside].mean():.3f}){mark}")
        print_row(name, ranks(fits), *cells)
    print()


def print_genres(found: dict, counts: np.ndarray, items: np.ndarray, genres: Any) -> None:
    """Genres in common, as a measure that does not take one model's word for it."""
    buckets = popularity_buckets(counts[items], N_BUCKETS)
    sizes = np.asarray(genres.sum(axis=1)).ravel()

    def alike(first: np.ndarray, second: np.ndarray) -> np.ndarray:
        both = np.asarray(genres[first].multiply(genres[second]).sum(axis=1)).ravel()
        either = sizes[first] + sizes[second] - both
        return np.where((either > 0) & (second >= 0), both / np.maximum(either, 1), 0.0)

    print(
        "## Genres in common\n\nGenres that an item and a neighbour by cosine share, over those "
        f"that one of them has; the mean over the {N_NEAREST} nearest.\n"
    )
    parts = [counts[items[buckets == b]] for b in range(N_BUCKETS)]
    print_head("factors of", *(f"{p.min()} to {p.max()}" for p in parts), "all")
    rng = np.random.default_rng(0)
    shape = (items.size, N_NEAREST)
    chance = {"random items": [items[rng.integers(items.size, size=shape)]]}
    rows = {
        name: [one.nearest["cosine"][items] for one in lists]
        for name, fits in found.items()
        if (lists := with_factors(fits))
    }
    for name, lists in (chance | rows).items():
        mean = np.mean(
            [
                alike(np.repeat(items, N_NEAREST), one.ravel()).reshape(shape).mean(axis=1)
                for one in lists
            ],
            axis=0,
        )
        by_bucket = [mean[buckets == b].mean() for b in range(N_BUCKETS)]
        print_row(name, *(f"{value:.3f}" for value in (*by_bucket, mean.mean())))
    print()


def print_recommendations(found: dict, problem: Problem, options: Any) -> None:
    reference = found["not private"][0].recommended
    somebody = np.roll(np.random.default_rng(0).permutation(len(reference)), 1)
    chance = np.mean(N_RECOMMENDED / (problem.X.shape[1] - np.diff(problem.known.indptr)))
    print(
        f"## The {N_RECOMMENDED} recommendations of each held-out user\n\nShare that is among those"
        f" of the fit without privacy, mean over {len(reference):,} users; random lists would have "
        f"{chance:.4f}.\n"
    )
    print_head("lists of", "rank", "overlap", "with another user's list")
    rows = {
        name: (ranks(lists), [one.recommended for one in lists])
        for name, lists in list(found.items())[1:]
    }
    impersonal = [popular_lists(problem, PrivacyBudget.nonprivate(), 0)]
    rows["the same for all, not private"] = "", impersonal
    for epsilon in options.epsilons:
        budget = PrivacyBudget(epsilon, DELTA)
        own = [popular_lists(problem, budget, seed) for seed in range(options.seeds)]
        rows[f"the same for all, epsilon {epsilon:g}"] = "", own
    for name, (rank, lists) in rows.items():
        shares = [
            [overlap(one, own).mean() for own in lists] for one in (reference, reference[somebody])
        ]
        print_row(name, rank, *(with_spread([float(s) for s in row]) for row in shares))
    print()


def print_examples(
    found: dict, counts: np.ndarray, items: np.ndarray, titles: Any, options: Any
) -> None:
    """Nearest items of a few, by titles or by ranks of popularity, for the first exponent."""
    order = items[np.argsort(-counts[items], kind="stable")]
    place = np.full(counts.size, -1)
    place[order] = np.arange(1, order.size + 1)
    names = [str(rank) if rank > 0 else "one without any" for rank in place]
    names = names if titles is None else titles
    print(f"## Examples: the five nearest by cosine, of {order.size:,} items\n")
    if titles is None:
        print("Items go by their popularity, 1 being the most popular.\n")
    chosen = [order[round((1.0 - q) * (order.size - 1))] for q in QUANTILES]
    shown = {
        name: lists[0]
        for name, lists in found.items()
        if lists[0].rank
        and name.endswith(("private", "again", f"exponent {options.exponents[0]:g}"))
    }
    print_head("item", "training clicks or ratings", "factors of", "nearest")
    for item in chosen:
        for name, lists in shown.items():
            nearest = [names[j] for j in lists.nearest["cosine"][item][:5] if j >= 0]
            print_row(names[item], counts[item], name, "; ".join(nearest))
    print()


def read(options: Any) -> tuple[Any, Any]:
    """All ratings, and the names of the items; made-up ones have none."""
    path = data_path(options)
    if path is None or not path.exists():
        print(
            f"no ratings file ({path}): --data or $SKDPMF_DATA; made-up ratings, "
            f"{options.shape[0]:,} x {options.shape[1]:,}\n"
        )
        return make_ratings(*options.shape, density=0.2, random_state=0), None
    matrix = ratings_to_matrix(read_ratings(path))
    return matrix.X, matrix.items


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="default: $SKDPMF_DATA/ml-1m.parquet")
    parser.add_argument("--items", help="titles and genres, as skdpmf.data.read_items reads them")
    parser.add_argument("--shape", type=int, nargs=2, default=[2000, 300], help="of made-up ones")
    parser.add_argument("--feedback", choices=["implicit", "explicit"], default="implicit")
    parser.add_argument("--rating-range", type=float, nargs=2, default=[1.0, 5.0])
    parser.add_argument("--epsilons", type=float, nargs="+", default=[1.0, 4.0, 20.0])
    parser.add_argument("--exponents", type=float, nargs="+", default=[0.0, 0.25, 0.5])
    parser.add_argument("--seeds", type=int, default=3, help="noise seeds")
    options = parser.parse_args(arguments)

    R, ids = read(options)
    liked = clicks_of_ratings(R) if options.feedback == "implicit" else sparse.csr_array(R)
    X, known, _ = split_users(liked, random_state=1)
    params = {"feedback": options.feedback, "rating_range": tuple(options.rating_range)}
    problem = Problem(X, known, params)
    with threadpool_limits(1, "blas"):
        found = all_lists(problem, options)
        counts = np.bincount(X.indices, minlength=X.shape[1])
        items = np.flatnonzero(found["not private"][0].nearest["cosine"][:, 0] >= 0)
        print(f"{X.shape[0]:,} training users, {X.nnz:,} {options.feedback}, seeds {options.seeds}")
        print()
        for similarity in SIMILARITIES:
            print_neighbours(found, similarity, counts, items)
        print_recommendations(found, problem, options)
        titles = None
        if options.items and ids is not None:
            table = read_items(options.items).set_index("item").reindex(ids)
            titles = table["title"].fillna("?").to_list()
            if "genres" in table:
                words = table["genres"].fillna("").str.get_dummies("|").to_numpy(dtype=float)
                print_genres(found, counts, items, sparse.csr_array(words))
        print_examples(found, counts, items, titles, options)


if __name__ == "__main__":
    main()
