"""Ratings shaped like MovieLens 1M, MovieLens 10M and Netflix, in chunks of users.

The rating of user i for item j is a low-rank model with noise, on the grid 1, 2, ..., 5:

    r_ij = round(clip(3.6 + b_i + c_j + <u_i, v_j> + noise, 1, 5))

so that a held-out RMSE means something: biases alone reach 0.94, and the true model 0.78. Activity
follows (rank of i)^-0.6 and popularity (rank of j + n_items / 50)^-1.2, with the medians of
MovieLens 1M (about 100 ratings a user, 125 an item). A user's items are drawn without replacement.

A chunk depends on the shape, the seed and its number alone. Between chunks only the counts of the
users and the model of the items are kept, so that the largest shape streams in little memory.
"""

import os
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp

CHUNK_USERS = 4096
HELD_OUT = 0.05  # of the entries
N_FACTORS, FACTOR_STD, NOISE_STD = 12, 0.6, 0.8
USER_BIAS_STD, ITEM_BIAS_STD, MEAN = 0.4, 0.5, 3.6


class Shape(NamedTuple):
    n_users: int
    n_items: int
    n_ratings: int


SHAPES = {
    "S": Shape(6_040, 3_706, 1_000_000),
    "M": Shape(69_878, 10_677, 10_000_000),
    "L": Shape(480_189, 17_770, 60_000_000),
}


class Chunk(NamedTuple):
    """Entries of consecutive users, by user and item; `held_out` marks those to test on."""

    users: np.ndarray
    items: np.ndarray
    ratings: np.ndarray
    held_out: np.ndarray


class Catalogue(NamedTuple):
    """What all chunks share."""

    n_rated: np.ndarray  # by user
    popularity: np.ndarray
    biases: np.ndarray
    factors: np.ndarray


def counts(n_total, weights, most):
    """Whole numbers near proportional to `weights`, each at most `most`, with the given sum."""
    low, high = 0.0, most / weights.min()
    for _ in range(100):
        middle = (low + high) / 2
        if np.minimum(weights * middle, most).sum() < n_total:
            low = middle
        else:
            high = middle
    total = np.floor(np.cumsum(np.minimum(weights * high, most)) + 0.5).astype(np.int64)
    total[-1] = n_total  # The bisection ends within rounding of it.
    return np.diff(total, prepend=0)


def factor_spread():
    """Standard deviations of the factors, falling; the product of two rows has FACTOR_STD."""
    variance = 1.0 / np.arange(1, N_FACTORS + 1)
    return np.sqrt(variance * FACTOR_STD / np.linalg.norm(variance))


def make_catalogue(shape, seed):
    rng = np.random.default_rng([seed, 0])
    activity = rng.permutation(np.arange(1.0, shape.n_users + 1) ** -0.6)
    ranks = rng.permutation(np.arange(1.0, shape.n_items + 1))
    popularity = (ranks + shape.n_items / 50) ** -1.2
    return Catalogue(
        counts(shape.n_ratings, activity, shape.n_items),
        popularity / popularity.sum(),
        rng.normal(0, ITEM_BIAS_STD, shape.n_items),
        rng.normal(0, factor_spread(), (shape.n_items, N_FACTORS)).astype(np.float32),
    )


def distinct_draws(rng, popularity, n_rated):
    """Cells (user * n_items + item): the first n_rated[u] distinct items of endless draws."""
    n_items = popularity.size
    edges = np.cumsum(popularity)
    drawn = np.empty(0, np.int64)
    short, excess = n_rated.copy(), 1
    while short.any():
        # More than needed, as popular items come up again; who is still short draws more.
        users = np.repeat(np.arange(n_rated.size), excess * short + short // 2)
        excess *= 4
        items = np.minimum(np.searchsorted(edges, rng.random(users.size)), n_items - 1)
        drawn = np.concatenate([drawn, users * n_items + items])
        _, first = np.unique(drawn, return_index=True)
        drawn = drawn[np.sort(first)]
        short = np.maximum(n_rated - np.bincount(drawn // n_items, minlength=n_rated.size), 0)
    drawn = drawn[np.argsort(drawn // n_items, kind="stable")]
    users = drawn // n_items
    n_drawn = np.bincount(users, minlength=n_rated.size)
    turn = np.arange(drawn.size) - np.repeat(np.cumsum(n_drawn) - n_drawn, n_drawn)
    return drawn[turn < n_rated[users]]


def keyed_draws(rng, popularity, n_rated):
    """Cells of the same law for users who rate much: the smallest of Exp(1) / popularity."""
    cells = [np.empty(0, np.int64)]
    for user in np.flatnonzero(n_rated):
        keys = rng.standard_exponential(popularity.size) / popularity
        n = n_rated[user]
        chosen = np.argpartition(keys, n - 1)[:n]
        cells.append(user * popularity.size + chosen)
    return np.concatenate(cells)


def make_chunk(shape, catalogue, number, seed):
    rng = np.random.default_rng([seed, 1, number])
    start = number * CHUNK_USERS
    n_rated = catalogue.n_rated[start : start + CHUNK_USERS]
    much = n_rated > shape.n_items // 4
    cells = np.concatenate(
        [
            distinct_draws(rng, catalogue.popularity, np.where(much, 0, n_rated)),
            keyed_draws(rng, catalogue.popularity, np.where(much, n_rated, 0)),
        ]
    )
    users, items = np.divmod(np.sort(cells), shape.n_items)
    biases = rng.normal(0, USER_BIAS_STD, n_rated.size)
    factors = rng.normal(0, factor_spread(), (n_rated.size, N_FACTORS)).astype(np.float32)
    ratings = MEAN + biases[users] + catalogue.biases[items]
    ratings += np.einsum("nf,nf->n", factors[users], catalogue.factors[items])
    ratings += rng.normal(0, NOISE_STD, users.size)
    ratings = np.rint(np.clip(ratings, 1, 5)).astype(np.float32)
    held_out = rng.random(users.size) < HELD_OUT
    return Chunk((users + start).astype(np.int32), items.astype(np.int32), ratings, held_out)


def chunks(shape, seed=0):
    """Yield the ratings chunk by chunk, users ascending."""
    catalogue = make_catalogue(shape, seed)
    for number in range(-(-shape.n_users // CHUNK_USERS)):
        yield make_chunk(shape, catalogue, number, seed)


def tables(shape, seed=0, held_out=False):
    """Yield (users, items, ratings) of the training entries, or of the held-out ones."""
    for chunk in chunks(shape, seed):
        keep = chunk.held_out == held_out
        yield chunk.users[keep], chunk.items[keep], chunk.ratings[keep]


def matrices(shape, seed=0):
    """Training and held-out entries, float32 csr_array of the whole shape each."""
    parts = ([], [])
    for chunk in chunks(shape, seed):
        for held_out, part in enumerate(parts):
            keep = chunk.held_out == held_out
            n_rated = np.bincount(chunk.users[keep] % CHUNK_USERS, minlength=CHUNK_USERS)
            part.append((n_rated, chunk.items[keep], chunk.ratings[keep]))

    def join(part):
        n_rated, items, ratings = map(np.concatenate, zip(*part, strict=True))
        # Index arrays of one type, as scipy would otherwise copy them.
        indptr = np.concatenate([[0], np.cumsum(n_rated[: shape.n_users])]).astype(np.int32)
        return sp.csr_array((ratings, items, indptr), shape=shape[:2])

    return tuple(map(join, parts))


def load(name, cache, seed=0):
    """Training and held-out entries of a shape, made once and kept as .npz in the cache folder."""
    paths = [cache / f"sgd-{name}-{seed}-v1-{part}.npz" for part in ("train", "held-out")]
    if all(path.exists() for path in paths):
        return tuple(map(sp.load_npz, paths))
    cache.mkdir(parents=True, exist_ok=True)
    made = matrices(SHAPES[name], seed)
    for path, matrix in zip(paths, made, strict=True):
        partial = path.with_name(f"partial-{os.getpid()}-{path.name}")
        sp.save_npz(partial, matrix, compressed=False)
        partial.rename(path)
    return made


def rmse(model, held_out):
    """Root mean squared error of a model's predictions, clipped to 1..5 for every solver.

    The model has U, V, user_bias, item_bias and mean, which add up to a prediction.
    """
    users = np.repeat(np.arange(held_out.shape[0]), np.diff(held_out.indptr))
    items, total = held_out.indices, 0.0
    block = max(1, 10_000_000 // model.U.shape[1])
    for start in range(0, held_out.nnz, block):
        u, i = users[start : start + block], items[start : start + block]
        predicted = model.mean + model.user_bias[u] + model.item_bias[i]
        predicted = predicted + np.einsum("nk,nk->n", model.U[u], model.V[i])
        errors = np.clip(predicted, 1, 5) - held_out.data[start : start + block]
        total += float(np.square(errors, dtype=np.float64).sum())
    return (total / held_out.nnz) ** 0.5
