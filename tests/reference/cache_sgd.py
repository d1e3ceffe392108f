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
    update.
    """
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
        losses.append(std * np.sqrt(squares / known.sum()))
    return Model(mean, std * b, std * c, U, std * V, losses)


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
    """Ratings that each row's own b and u predict, by the normal equations of its objective."""
    out = np.tile(mean + c, (len(X), 1))
    for i, row in enumerate(X):
        rated = np.flatnonzero(~np.isnan(row))
        if not len(rated):
            continue
        residual = (row - mean - c)[rated] / s
        A = V[rated] / s
        if fit_bias:  # unknowns b / s and u
            A = np.column_stack((np.ones(len(rated)), A))
        z = np.linalg.solve(A.T @ A + len(rated) * alpha * np.eye(A.shape[1]), A.T @ residual)
        everywhere = np.column_stack((np.ones(len(V)), V / s)) if fit_bias else V / s
        out[i] += s * everywhere @ z
    return out
