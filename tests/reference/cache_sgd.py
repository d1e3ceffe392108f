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

    def ratings(self):
        return self.mean + self.b[:, None] + self.c + self.U @ self.V.T


def fit(X, V, *, rate, decay, rounds, alpha, fit_bias, bounds, rows, group, clip=10.0):
    """Descend from zero users and the items V; users come in batches of `rows`.

    Within a batch the ratings go by item, in groups: a group's errors are all taken before its
    update. Without an alpha the penalty is learned: from the error of the round before.
    """
    learned, known_alpha = alpha is None, alpha
    X = np.clip(X, *bounds)
    known = ~np.isnan(X)
    mean, std = X[known].mean(), X[known].std()
    Z = (X - mean) / std
    n_users, n_items = X.shape
    U, V = np.zeros((n_users, V.shape[1])), V.astype(np.float64)
    b, c = np.zeros(n_users), np.zeros(n_items)
    losses = []
    for t in range(rounds):
        step = rate * decay**t
        bias_step = step if fit_bias else 0.0
        squares = 0.0
        parts = known_alpha, 0.0, 0.0
        if learned:
            parts = learned_penalty(X, losses[-1] if losses else std)
        alpha, kept, kept_bias = parts[0], 1 + step * parts[1], 1 + bias_step * parts[2]
        for start in range(0, n_users, rows):
            for j in range(n_items):
                raters = start + np.flatnonzero(known[start : start + rows, j])
                for first in range(0, len(raters), group):
                    some = raters[first : first + group]
                    errors = [Z[i, j] - b[i] - c[j] - U[i] @ V[j] for i in some]
                    squares += sum(e**2 for e in errors)
                    before_v, before_c = V[j].copy(), c[j]
                    for i, e in zip(some, np.clip(errors, -clip, clip), strict=True):
                        V[j] += step * (e * U[i] - alpha * before_v)
                        c[j] += bias_step * (e - alpha * before_c)
                        U[i] += step * (e * before_v - alpha * U[i])
                        b[i] += bias_step * (e - alpha * b[i])
            U[start : start + rows] /= kept
            b[start : start + rows] /= kept_bias
        V[known.any(axis=0)] /= kept
        c[known.any(axis=0)] /= kept_bias
        losses.append(std * np.sqrt(squares / known.sum()))
    return Model(mean, std * b, std * c, U, std * V, losses)


def learned_penalty(X, loss):
    """Penalty per rating, per row of U or V and per bias, by the error of a round.

    The penalties of a rank-one component's user and item, for each rating, have a geometric mean of
    three quarters of the noise's singular value.
    """
    known = ~np.isnan(X)
    variance = np.clip(loss**2 / np.var(X[known]), 0.01, 1.0)
    users = np.count_nonzero(known.any(axis=1)) / known.sum()
    items = np.count_nonzero(known.any(axis=0)) / known.sum()
    least = 0.75 * (np.sqrt(users) + np.sqrt(items))
    ridge = min(3.0, least / np.sqrt(users * items))
    roots = np.roots([1.0, ridge * (users + items), ridge**2 * users * items - least**2])
    return variance * max(0.0, roots.max()), variance * ridge, variance * 5.0


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

    alpha: the penalty of each rating, or all parts of a penalty.
    """
    alpha, ridge, bias_ridge = alpha if isinstance(alpha, tuple) else (alpha, 0.0, 0.0)
    out = np.tile(mean + c, (len(X), 1))
    for i, row in enumerate(X):
        rated = np.flatnonzero(~np.isnan(row))
        if not len(rated):
            continue
        residual = (row - mean - c)[rated] / s
        A = V[rated] / s
        if fit_bias:  # unknowns b / s and u
            A = np.column_stack((np.ones(len(rated)), A))
        penalty = np.full(A.shape[1], len(rated) * alpha + ridge)
        if fit_bias:
            penalty[0] += bias_ridge - ridge
        z = np.linalg.solve(A.T @ A + np.diag(penalty), A.T @ residual)
        everywhere = np.column_stack((np.ones(len(V)), V / s)) if fit_bias else V / s
        out[i] += s * everywhere @ z
    return out
