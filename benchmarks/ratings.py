"""Ratings, clicks and fits that the scripts have in common.

Real ratings are those of `harness.data_path`. A tenth of the rows is held out by
`skdpmf.evaluation.split_table`; catalogue and user slots, all of the file's, are public.
"""

import statistics
import time
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from harness import data_path, note, spread

from skdpmf import (
    AdaptiveWeightALS,
    DPCovarianceRecommender,
    DPItemMeans,
    DPMFSampler,
    LocalDPGDDR,
    Pooled,
    PrivacyBudget,
)
from skdpmf.commands.with_ratings import mean_predictions
from skdpmf.data import make_ratings, ratings_to_matrix, read_ratings
from skdpmf.data.matrix import keep_entries
from skdpmf.evaluation import (
    by_popularity,
    ndcg_at_k,
    recall_at_k,
    rmse,
    split_ratings,
    split_table,
    split_users,
)
from skdpmf.kernels.rows import predict_entries
from skdpmf.mechanisms.common import most_popular

DELTA = 1e-5
N_BUCKETS = 5
LEAST_CLICKS = 5  # a user
KINDS = AdaptiveWeightALS, DPCovarianceRecommender, DPMFSampler, DPItemMeans, LocalDPGDDR
KINDS = {kind.__name__: kind for kind in KINDS}
ALONE = partial(AdaptiveWeightALS, solver=Pooled(list_share=None))  # predicts ratings alone


def with_factors(*shape, scale, variance, steps=1.0, spread=0.0, **given):
    """Return made-up ratings with a factor of each variance, in so many steps a unit.

    `spread` is the standard deviation of the logarithm of a user's share in the factors.
    """
    wide = {"n_components": 0, "rating_range": (-1000.0, 1000.0), "step": None}
    R, rng = make_ratings(*shape, random_state=0, **wide, **given), np.random.default_rng(1)
    U, V = (variance**0.25 * rng.normal(size=(n, variance.size)) for n in shape)
    U *= np.exp(spread * rng.normal(size=(len(U), 1)) - spread**2 / 2.0)
    products = np.empty(R.nnz)
    predict_entries(R.indptr, R.indices, U, V, 0, len(U), products)
    R.data = np.clip(np.rint(steps * (R.data + products)) / steps, *scale)
    return R


def synth10m():
    """Return ratings of MovieLens 10M's shape and half stars, of rank 10.

    Parameters are such that a tenth held out gives about the RMSE .957 for users' means, .869 with
    items' as well, and .81 for a factorisation without noise.
    """
    variance = 0.6 ** np.arange(10.0)
    return with_factors(
        *(70_000, 10_700),
        scale=(0.5, 5.0),
        variance=variance * (0.175 / variance.sum()),
        steps=2.0,
        n_ratings=9_300_000,
        min_ratings_per_user=20,
        mean=3.46,
        user_bias_std=0.43,
        item_bias_std=0.43,
        noise_std=0.815,
        item_exponent=0.87,
    )


LARGE = {"synth10m": (synth10m, (0.5, 5.0))}


def split(frame, seed):
    """Return training and test matrices of a table."""
    users, items = np.unique(frame["user"]), np.unique(frame["item"])
    train, test = split_table(frame, test_size=0.1, random_state=seed)
    X, Y = (ratings_to_matrix(part, users=users, items=items).X for part in (train, test))
    return X, Y


def splits_of(options, made_up):
    """Yield a name and training and test matrices: split 0 and --fresh-splits, or made-up ones.

    made_up : parameters of `make_ratings` where there is no file.
    """
    path = data_path(options)
    if path is None:
        print("no ratings file: --data or $SKDPMF_DATA; synthetic ratings\n")
        yield "Synthetic", *split_ratings(make_ratings(*made_up, random_state=0), random_state=0)
        return
    frame = read_ratings(path)
    for seed in [0, *getattr(options, "fresh_splits", ())]:
        yield f"Split {seed}", *split(frame, seed)


def ratings_of(options, *shape, **made_up):
    """Return all ratings of the file or, without one, made-up ones."""
    path = data_path(options)
    if path is None:
        return make_ratings(*shape, random_state=0, **made_up)
    return ratings_to_matrix(read_ratings(path)).X


def training_of(options):
    """Training ratings of a file or, without one, made-up ones of --shape."""
    return split_ratings(ratings_of(options, *options.shape), random_state=0)[0]


def part_of(X, options, test_size=0.1):
    """Return training users, and known and hidden entries of others, with --items and --users.

    The items are the most popular ones, of users who have enough of them; the users random ones.
    """
    if options.items:
        X = X[:, most_popular(np.bincount(X.indices, minlength=X.shape[1]), options.items)]
        X = X[np.diff(X.indptr) >= LEAST_CLICKS]
    X, *held_out = split_users(X, test_size=test_size, random_state=options.split)
    if options.users:
        X = X[np.random.default_rng(0).permutation(X.shape[0])[: options.users]]
    return X, *held_out


def found_by(ranked, targets):
    """Return Recall@20 and NDCG@100 of lists."""
    return recall_at_k(targets, ranked, 20), ndcg_at_k(targets, ranked, 100)


def public_share(n_users, share, seed):
    """Return who is public where a random share of the users is."""
    return np.random.default_rng(1000 + seed).random(n_users) < share


def liked_of(hidden):
    """Return which hidden ratings are above 3.5."""
    liked = keep_entries(hidden, hidden.data > 3.5)
    liked.data[:] = 1.0
    return liked


def clicks_of_ratings(R):
    """Ratings above 3.5 as clicks, of users with enough of them; the catalogue is that of R."""
    liked = liked_of(R)
    return liked[np.diff(liked.indptr) >= LEAST_CLICKS]


def budget_of(epsilon, delta=DELTA, **kind):
    """Return a budget of this epsilon; inf: without privacy."""
    if not np.isfinite(epsilon):
        return PrivacyBudget.nonprivate()
    return PrivacyBudget(epsilon, delta, **kind)


@dataclass
class Cell:
    """Fits of one method at one epsilon, one a seed; the last model as well."""

    errors: list = field(default_factory=list)
    ranks: list = field(default_factory=list)
    seconds: list = field(default_factory=list)
    buckets: list = field(default_factory=list)
    model: object = None

    @property
    def error(self):
        return statistics.mean(self.errors)

    @property
    def standard_error(self):
        n = len(self.errors)
        return statistics.stdev(self.errors) / np.sqrt(n) if n > 1 else 0.0

    @property
    def median_seconds(self):
        return f"{statistics.median(self.seconds):.2f}"

    def __str__(self):
        return spread(self.errors)


def fits(make, budget, X, Y, options, label, seeds=None, **params):
    """Fit make(budget, random_state=seed) with these parameters for each seed, one if not private.

    Seeded, so that a table can be made again; a real release leaves random_state alone.
    """
    cell = Cell()
    for seed in range((seeds or options.seeds) if budget.is_private else 1):
        model = make(budget, random_state=seed, n_jobs=options.n_jobs).set_params(**params)
        cell.model = model
        begin = time.perf_counter()
        model.fit(X)
        cell.seconds.append(time.perf_counter() - begin)
        predicted = model.predict_entries(X, Y)
        cell.errors.append(rmse(Y, predicted))
        cell.ranks.append(int(np.any(model.components_ != 0, axis=1).sum()))
        cell.buckets.append(by_popularity(X, Y, predicted, n_buckets=N_BUCKETS)["rmse"])
    note(
        f"{label}, epsilon {budget.epsilon:g}: {cell}, rank {cell.ranks}, {cell.seconds[-1]:.2f} s"
    )
    return cell


def own_mean_error(X, Y):
    """Return the test RMSE of each user's own mean."""
    _, own = mean_predictions(X, Y).values()
    return rmse(Y.data, own)


def print_set(name, X, Y, options):
    """Print the size of a set, and the errors that cost no release."""
    print(
        f"{name}: {X.shape[0]:,} users x {X.shape[1]:,} items, {X.nnz:,} training and {Y.nnz:,} "
        f"test ratings, delta {DELTA:g}, {options.seeds} noise seeds\n\n"
        f"global mean {rmse(Y.data, np.full(Y.nnz, X.data.mean())):.4f}, "
        f"each user's own mean {own_mean_error(X, Y):.4f} (neither costs a release here: the "
        "first is exact, the second stays with the user)\n"
    )


def print_never_worse(pairs, label):
    """Say where a model is worse than item means alone; pairs: of their cells, by epsilon."""
    worse = []
    for epsilon, (cell, means) in pairs.items():
        if (loss := cell.error - means.error) > 0.0:
            error = np.hypot(cell.standard_error, means.standard_error)
            worse.append(f"{epsilon:g} (by {loss:.4f} ± {error:.4f})")
    verdict = f"MISSED at epsilon {', '.join(worse)} (± standard error)" if worse else "met"
    print(f"Never worse than item means alone, {label}: {verdict}\n", flush=True)
