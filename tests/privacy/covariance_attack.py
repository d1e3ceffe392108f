"""Adversaries for the covariance: users whose one rating moves it as far as they can find.

`contribution` is the algorithm itself, written out: ratings in, weighted matrices out. The
searches run on users whose items fall into a few groups of equal centred ratings, which is a
thousand times faster; `realise` turns what they find into ratings for `contribution`.
"""

from typing import NamedTuple

import numpy as np
import pytest

from skdpmf.privacy import pair_sensitivity as cov

LO, HI = 1.0, 5.0
# range of the centred ratings, damping of the users' means, clamp
SETTINGS = [(4.0, 20.0, 1.0), (8.0, 20.0, 1.0), (4.0, 4.0, 1.0), (4.0, 5.0, 2.0)]
# norm and entries that each noise is made for
KINDS = [("l1", "upper"), ("l2", "full")]
KINDS_IDS = [" ".join(kind) for kind in KINDS]
NOISE = {"l1": "laplace", "l2": "gaussian"}


def rows(setting):
    alpha, beta, B = setting
    return {"clamp": B, "centred_range": alpha, "damping": beta}


# The algorithm, in full


def centre(ratings, means, g, beta, B):
    """Clipped centred ratings and the pattern of a row; NaN where there is no rating."""
    e = np.isfinite(ratings)
    if not e.any():
        return np.zeros(len(ratings)), e.astype(float)
    y = np.where(e, np.clip(ratings, LO, HI) - means, 0.0)
    mean = (y.sum() + beta * g) / (e.sum() + beta)
    return np.where(e, np.clip(y - mean, -B, B), 0.0), e.astype(float)


def weight(c, norm, unit="rating", entries="full"):
    if c == 0:
        return 0.0
    size = c if unit == "rating" else c * c if entries == "full" else c * (c + 1) / 2
    return 1 / size if norm == "l1" else size**-0.5


def contribution(ratings, means, g, beta, B, norm, unit="rating", entries="full"):
    """What a row adds to Cov and to Wgt."""
    x, e = centre(ratings, means, g, beta, B)
    w = weight(int(e.sum()), norm, unit, entries)
    return w * np.outer(x, x), w * np.outer(e, e)


def size_of(difference, norm, entries):
    values = difference[np.triu_indices(len(difference))] if entries == "upper" else difference
    return np.abs(values).sum() if norm == "l1" else np.sqrt((values**2).sum())


# Users with few different ratings, many at a time. All y and g are in [0, alpha].


class Users(NamedTuple):
    """P users with the same c, in K groups of items; m (P, K), y (P, K), g (P,), new (P,)."""

    m: np.ndarray
    y: np.ndarray
    g: np.ndarray
    new: np.ndarray


GROUPS = 4


def decode(free, c, alpha):
    """Users from numbers in [0, 1]."""
    cuts = np.sort(np.rint(c * free[:, : GROUPS - 1]), axis=1)
    edges = np.hstack([np.zeros((len(free), 1)), cuts, np.full((len(free), 1), c)])
    rest = alpha * free[:, GROUPS - 1 :]
    return Users(np.diff(edges, axis=1), rest[:, 2:], rest[:, 0], rest[:, 1])


N_FREE = GROUPS - 1 + 2 + GROUPS


def changes(users, c, beta, B, norm):
    """Entries of Cov' - Cov: of pairs of groups (P, K, K), of the new column (P, K) and corner."""
    total = (users.m * users.y).sum(axis=1) + beta * users.g
    before = total / (c + beta) if c + beta > 0 else total
    after = (total + users.new) / (c + 1 + beta)
    x = np.clip(users.y - before[:, None], -B, B)
    moved = np.clip(users.y - after[:, None], -B, B)
    new = np.clip(users.new - after, -B, B)
    w, v = weight(c, norm), weight(c + 1, norm)
    block = v * moved[:, :, None] * moved[:, None, :] - w * x[:, :, None] * x[:, None, :]
    return block, v * moved * new[:, None], v * new**2


def grouped_size(m, block, column, corner, norm, entries):
    power = abs if norm == "l1" else np.square
    pairs = np.einsum("pk,pl,pkl->p", m, m, power(block))
    cross, diagonal = (m * power(column)).sum(axis=1), power(corner)
    total = pairs + 2 * cross + diagonal
    if entries == "upper":
        own = np.einsum("pk,pkk->p", m, power(block)) + diagonal
        total = (total + own) / 2
    return total if norm == "l1" else np.sqrt(total)


def distances(free, c, setting, norm, entries):
    alpha, beta, B = setting
    users = decode(free, c, alpha)
    return grouped_size(users.m, *changes(users, c, beta, B, norm), norm, entries)


def evolve(value, n_free, seed, rounds, population=64):
    """Maximise over [0, 1]^n_free by differential evolution; the best value and its place."""
    rng = np.random.default_rng(seed)
    place = rng.random((population, n_free))
    place = np.where(rng.random(place.shape) < 0.3, np.rint(place), place)
    values = value(place)
    for _ in range(rounds):
        a, b, other = (place[rng.permutation(population)] for _ in range(3))
        towards = np.where(rng.random((population, 1)) < 0.5, place[values.argmax()], other)
        step = rng.uniform(0.3, 0.9, size=(population, 1))
        trial = np.clip(towards + step * (a - b), 0.0, 1.0)
        trial = np.where(rng.random(place.shape) < 0.8, trial, place)
        found = value(trial)
        better = found > values
        place[better], values[better] = trial[better], found[better]
    return values.max(), place[values.argmax()]


def attack(c, setting, norm, entries, rounds=150, restarts=2):
    found = [
        evolve(lambda free: distances(free, c, setting, norm, entries), N_FREE, seed, rounds)
        for seed in range(restarts)
    ]
    return max(found, key=lambda pair: pair[0])


def realise(users, index, alpha):
    """A found user as two rows of ratings, without and with the last one, item means and g."""
    low_mean = (LO + HI - alpha + HI - LO) / 2
    high_mean = low_mean + alpha - (HI - LO)
    low = LO - high_mean
    y = low + np.append(np.repeat(users.y[index], users.m[index].astype(int)), users.new[index])
    means = np.append(np.where(y >= LO - low_mean, low_mean, high_mean), [low_mean, high_mean])
    after = np.append(np.clip(y + means[:-2], LO, HI), [np.nan, np.nan])
    before = after.copy()
    before[len(y) - 1] = np.nan
    interval = cov.centred_interval((LO, HI), means)
    assert interval[1] - interval[0] == pytest.approx(alpha, rel=1e-12)
    return before, after, means, np.clip(users.g[index] + low, *interval)


def check_realised(free, value, c, setting, norm, entries):
    """The searched user is a user: it has such ratings, and they move Cov that far."""
    alpha, beta, B = setting
    before, after, means, g = realise(decode(free[None], c, alpha), 0, alpha)
    rest = (means, g, beta, B, norm)
    moved = contribution(after, *rest)[0] - contribution(before, *rest)[0]
    assert size_of(moved, norm, entries) == pytest.approx(value, rel=1e-9)
