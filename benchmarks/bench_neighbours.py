"""Nearest items and recommendations of private models: are they those of the model without privacy?

As in the qualitative figures of Krichene et al. (2023): how many of the 10 nearest items, and of
each user's 20 recommendations, are also those of the fit without privacy. The ceiling is that fit
with another seed, and on users drawn with replacement; the floor is the list of another item of the
same popularity, or of another user, and what random lists would have.

Factors are of `AdaptiveWeightALS` with defaults but for `weight_exponent`, on clicks or, with
--feedback explicit, on ratings. Training and held-out users are those of bench_clicks.py, split 1.
Ratings come from --data FILE or $SKDPMF_DATA/ml-1m.parquet, or are made up. Prints Markdown tables.

    python benchmarks/bench_neighbours.py --data ml-1m.parquet --seeds 3
"""

from functools import partial
from typing import Any, NamedTuple

import numpy as np
from bench_clicks import most_popular
from harness import from_to, note, parser, print_head, print_row, spread
from ratings import N_BUCKETS, budget_of, clicks_of_ratings, ratings_of
from scipy import sparse
from threadpoolctl import threadpool_limits

from skdpmf import AdaptiveWeightALS, DPItemMeans, Pooled, PrivacyBudget
from skdpmf.evaluation import split_users
from skdpmf.evaluation.metrics import popularity_buckets

N_NEAREST, N_RECOMMENDED = 10, 20
PARSER = parser(
    __doc__,
    data=None,
    shape=[2000, 300],  # of made-up ratings
    feedback="implicit",
    epsilons=[1.0, 4.0, 20.0],
    exponents=[0.0, 0.25, 0.5],
    seeds=3,
)


def overlap(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Share of each row of `second` that is in the same row of `first`; -1 is no item."""
    same = (first[:, :, None] == second[:, None, :]) & (second >= 0)[:, None, :]
    return same.any(axis=1).mean(axis=1)


def others(groups: np.ndarray, seed: int = 0) -> np.ndarray:
    """Another member of each one's group, at random; itself where it is alone."""
    rng, partner = np.random.default_rng(seed), np.empty(len(groups), int)
    for group in np.unique(groups):
        members = rng.permutation(np.flatnonzero(groups == group))
        partner[members] = np.roll(members, 1)
    return partner


class Lists(NamedTuple):
    """What a model says: nearest items, -1 where it has none, recommendations, and its rank."""

    nearest: np.ndarray
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
    rank, n_items = model.n_components_, X.shape[1]
    nearest = np.full((n_items, N_NEAREST), -1)
    if rank:
        nearest = model.similar_items(np.arange(n_items), N_NEAREST)[0]
    note(budget, params, "rank", rank)
    return Lists(nearest, model.recommend(problem.known, N_RECOMMENDED)[0], rank)


def popular_lists(problem: Problem, budget: PrivacyBudget, seed: int) -> np.ndarray:
    """Recommendations that do not know the user."""
    if problem.params["feedback"] == "implicit":
        return most_popular(problem.X, problem.known, budget, seed)[:, :N_RECOMMENDED]
    model = DPItemMeans(budget, random_state=seed).fit(problem.X)
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
            fit = partial(lists_of, problem, budget_of(epsilon), weight_exponent=exponent)
            lists = [fit(random_state=seed) for seed in range(options.seeds)]
            found[f"epsilon {epsilon:g}, exponent {exponent:g}"] = lists
    return found


def print_neighbours(found: dict, counts: np.ndarray, items: np.ndarray) -> None:
    """Overlap of the nearest items with those of the first model, by popularity."""
    buckets = popularity_buckets(counts[items], N_BUCKETS)
    partner = items[others(buckets)]
    reference = found["not private"][0].nearest
    print(
        f"## The {N_NEAREST} nearest items\n\nShare that is among those of the fit "
        "without privacy, mean over the seeds that have factors; in brackets, of another item of "
        "the bucket. By training clicks or ratings an item, rarest first, "
        f"{items.size:,} items. Random lists would have {N_NEAREST / (counts.size - 1):.4f}. "
        "\\* not above the bracket by two standard errors.\n"
    )
    parts = [counts[items[buckets == b]] for b in range(N_BUCKETS)]
    print_head("factors of", "rank", *(f"{p.min()} to {p.max()}" for p in parts), "all")
    for name, fits in list(found.items())[1:]:
        lists = [one for one in fits if one.rank]  # the others know of no neighbours
        if not lists:
            print_row(name, "0", *["no factors"] * (N_BUCKETS + 1))
            continue
        own = [overlap(reference[items], one.nearest[items]) for one in lists]
        floor = [overlap(reference[partner], one.nearest[items]) for one in lists]
        own, floor = np.mean(own, axis=0), np.mean(floor, axis=0)
        cells = []
        for inside in [*(buckets == b for b in range(N_BUCKETS)), buckets >= 0]:
            gain = (own - floor)[inside]
            error = gain.std(ddof=1) / np.sqrt(gain.size)
            mark = "" if gain.mean() > 2.0 * error else " \\*"
            cells.append(f"{own[inside].mean():.3f} ({floor[inside].mean():.3f}){mark}")
        print_row(name, from_to([one.rank for one in fits]), *cells)
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
        name: (from_to([one.rank for one in lists]), [one.recommended for one in lists])
        for name, lists in list(found.items())[1:]
    }
    impersonal = [popular_lists(problem, PrivacyBudget.nonprivate(), 0)]
    rows["the same for all, not private"] = "", impersonal
    for epsilon in options.epsilons:
        own = [popular_lists(problem, budget_of(epsilon), seed) for seed in range(options.seeds)]
        rows[f"the same for all, epsilon {epsilon:g}"] = "", own
    for name, (rank, lists) in rows.items():
        shares = [
            [overlap(one, own).mean() for own in lists] for one in (reference, reference[somebody])
        ]
        print_row(name, rank, *(spread([float(s) for s in row]) for row in shares))
    print()


def main(arguments: list[str] | None = None) -> None:
    options = PARSER.parse_args(arguments)
    R = ratings_of(options, *options.shape, density=0.2)
    liked = clicks_of_ratings(R) if options.feedback == "implicit" else sparse.csr_array(R)
    X, known, _ = split_users(liked, random_state=1)
    problem = Problem(X, known, {"feedback": options.feedback})
    with threadpool_limits(1, "blas"):
        found = all_lists(problem, options)
    counts = np.bincount(X.indices, minlength=X.shape[1])
    items = np.flatnonzero(found["not private"][0].nearest[:, 0] >= 0)
    print(f"{X.shape[0]:,} training users, {X.nnz:,} {options.feedback}, seeds {options.seeds}\n")
    print_neighbours(found, counts, items)
    print_recommendations(found, problem, options)


if __name__ == "__main__":
    main()
