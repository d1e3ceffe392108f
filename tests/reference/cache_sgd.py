"""Slow twin of a whole CacheSGDFactorizer fit with one thread: loops over ratings, in float64."""

from typing import NamedTuple

import numpy as np


class Model(NamedTuple):
    """As the fitted attributes: all but U in rating units."""

    mean: float
    b: np.ndarray
    c: np.ndarray
    U: np.ndarray
    V: np.ndarray
    losses: list
    penalty: object  # of the fold-in

    def ratings(self):
        return self.mean + self.b[:, None] + self.c + self.U @ self.V.T


def fit(X, V, *, rate, decay, rounds, alpha, fit_bias, bounds, rows, group, clip=10.0):
    """Descend from zero users and the items V; users come in batches of `rows`.

    Within a batch the ratings go by item, in groups: a group's errors are all taken before its
    update. Without an alpha the penalties are learned: they are 0 at first, whole after two fifths
    of the rounds, of 30 at least.
    """
    learned, field = alpha is None, MeanField(~np.isnan(X), V.shape[1], fit_bias)
    X = np.clip(X, *bounds)
    known = ~np.isnan(X)
    mean, std = X[known].mean(), X[known].std()
    Z = (X - mean) / std
    n_users, n_items = X.shape
    U, V = np.zeros((n_users, V.shape[1])), V.astype(np.float64)
    b, c = np.zeros(n_users), np.zeros(n_items)
    losses, opening = [], 0.4 * max(30, rounds)
    for t in range(rounds):
        step = rate * decay**t
        bias_step = step if fit_bias else 0.0
        squares = 0.0
        share = min(1.0, t / opening) * learned
        of_users, of_items, ridges = (
            field.penalties() if learned else (alpha, alpha, np.zeros((2, 1)))
        )
        of_biases, kept = 0.0 if learned else alpha, 1.0 + step * share * ridges
        if learned:
            of_users, of_items = share * of_users, share * of_items
        for start in range(0, n_users, rows):
            for j in range(n_items):
                raters = start + np.flatnonzero(known[start : start + rows, j])
                for first in range(0, len(raters), group):
                    some = raters[first : first + group]
                    errors = [Z[i, j] - b[i] - c[j] - U[i] @ V[j] for i in some]
                    squares += sum(e**2 for e in errors)
                    before_v, before_c = V[j].copy(), c[j]
                    for i, e in zip(some, np.clip(errors, -clip, clip), strict=True):
                        V[j] += step * (e * U[i] - of_items * before_v)
                        c[j] += bias_step * (e - of_biases * before_c)
                        U[i] += step * (e * before_v - of_users * U[i])
                        b[i] += bias_step * (e - of_biases * b[i])
            if learned:
                U[start : start + rows] /= kept[0, 1:]
                b[start : start + rows] /= kept[0, 0] if fit_bias else 1.0
        losses.append(std * np.sqrt(squares / known.sum()))
        if learned:
            V /= kept[1, 1:]
            c /= kept[1, 0] if fit_bias else 1.0
            U, V = field.learn(U, V, b, c, squares / known.sum(), t + 1, t + 1 >= opening)
    return Model(mean, std * b, std * c, U, std * V, losses, field.fold_in() if learned else alpha)


class MeanField:
    """Variances of the priors of biases and factors, and of the noise; means are over ratings."""

    def __init__(self, known, k, fit_bias):
        self.known, self.fit_bias, self.noise = known, fit_bias, 1.0
        self.user = self.item = np.append(1.0, np.full(k, k**-0.5))

    def doubts(self):
        """Posterior variances of users and items: (2, 1 + k)."""
        found = []
        for own, other, axis in ((self.user, self.item, 1), (self.item, self.user, 0)):
            seen = self.known.sum(axis=axis)
            rows = [own / (1.0 + own * n * np.append(1.0, other[1:]) / self.noise) for n in seen]
            found.append(np.average(rows, axis=0, weights=seen))
        return np.array(found)

    def fold_in(self):
        """Penalties of each item's ratings, of factors of variance 1, and of biases."""
        size, n = self.user[1:] * self.item[1:], self.known.sum(axis=0)[:, None]
        doubts = size / (1.0 + n * size / self.noise)
        weights = size if size.any() else None
        items = np.average(doubts, axis=1, weights=weights)
        return items, self.noise, self.noise / self.user[0] if self.fit_bias else 0.0

    def penalties(self):
        users, items = self.doubts()
        return items[1:], users[1:], self.noise / np.maximum([self.user, self.item], 2.0**-23)

    def learn(self, U, V, b, c, loss, rounds, whole):
        """Return the factors in new coordinates, where they change; without the lost ones."""
        n, m, N = self.known.sum(axis=1), self.known.sum(axis=0), self.known.sum()
        every = -(-V.shape[1] * (len(n) + len(m)) // N)
        if rounds % every == 1 % every:
            left, s, right = np.linalg.svd(np.sqrt(n)[:, None] * U @ V.T * np.sqrt(m))
            k = U.shape[1]
            U = left[:, :k] * np.sqrt(s[:k] / n[:, None])
            V = right[:k].T * np.sqrt(s[:k] / m[:, None])
        doubts = self.doubts()
        doubts[:, 0] *= self.fit_bias
        squares = [np.append(n @ b**2, n @ U**2) / N, np.append(m @ c**2, m @ V**2) / N]
        self.user, self.item = np.array(squares) + doubts
        product = self.user[1:] * self.item[1:]
        self.noise = min(
            1.0, loss + doubts[:, 0].sum() + sum(product - np.prod(squares, axis=0)[1:])
        )
        if whole:
            kept = product >= self.noise * np.sqrt(len(n) * len(m)) / N
            U, V = U * kept, V * kept
            self.user, self.item = (np.append(x[0], x[1:] * kept) for x in (self.user, self.item))
        return U, V


def gradient(X, model, alpha):
    """Half of the objective's gradient with respect to b / s, c / s, U and V / s, stacked.

    And the same with each term's absolute value: what the terms would add up to if none cancelled.
    """
    known = ~np.isnan(X)
    s = X[known].std()
    b, c, U, V = model.b / s, model.c / s, model.U, model.V / s
    parts = [np.zeros_like(array, dtype=float) for array in (b, c, U, V)]
    sizes = [np.zeros_like(array, dtype=float) for array in (b, c, U, V)]
    for i, j in np.argwhere(known):
        error = (X[i, j] - model.mean) / s - b[i] - c[j] - U[i] @ V[j]
        terms = [-error, -error, -error * V[j], -error * U[i]]
        penalties = [alpha * b[i], alpha * c[j], alpha * U[i], alpha * V[j]]
        for which, at, pull, penalty in zip(range(4), (i, j, i, j), terms, penalties, strict=True):
            parts[which][at] += pull + penalty
            sizes[which][at] += np.abs(pull) + np.abs(penalty)
    return tuple(np.concatenate([part.ravel() for part in group]) for group in (parts, sizes))


def fold_in(X, mean, c, V, alpha, fit_bias, s):
    """Ratings that each row's own b and u predict, by the normal equations of its objective.

    alpha: the penalty of each rating; or those of each item's ratings, each user, and his bias.
    """
    alpha, ridge, bias_ridge = alpha if isinstance(alpha, tuple) else (alpha, 0.0, 0.0)
    alpha = np.broadcast_to(alpha, len(V))
    out = np.tile(mean + c, (len(X), 1))
    for i, row in enumerate(X):
        rated = np.flatnonzero(~np.isnan(row))
        if not len(rated):
            continue
        residual = (row - mean - c)[rated] / s
        A = V[rated] / s
        if fit_bias:  # unknowns b / s and u
            A = np.column_stack((np.ones(len(rated)), A))
        penalty = np.full(A.shape[1], alpha[rated].sum() + ridge)
        if fit_bias:
            penalty[0] += bias_ridge - ridge
        z = np.linalg.solve(A.T @ A + np.diag(penalty), A.T @ residual)
        everywhere = np.column_stack((np.ones(len(V)), V / s)) if fit_bias else V / s
        out[i] += s * everywhere @ z
    return out
