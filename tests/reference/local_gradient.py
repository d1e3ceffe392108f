"""Slow twin of the kernels and the mechanism of gradients from devices: dense, with loops.

Ratings are a matrix with NaN where unknown. Reports come in as a function, so that noise is drawn
outside.
"""

import numpy as np


def residuals(y, u, V):
    """r_j - u . v_j of one user, 0 where unknown."""
    return np.array([0.0 if np.isnan(r) else r - u @ v for r, v in zip(y, V, strict=True)])


def gradient(y, u, V):
    """X_i (m x d) of one user."""
    return np.array([-2.0 * e * u for e in residuals(y, u, V)])


def mean_gradient(Y, U, V):
    """Mean of X_i over all users, also those without ratings."""
    return sum(gradient(y, u, V) for y, u in zip(Y, U, strict=True)) / len(Y)


def stepped_user(y, u, V, step, penalty):
    """One step on (1 / n_i) sum_j e_ij^2 + penalty |u|^2."""
    e, n = residuals(y, u, V), max(1, np.count_nonzero(~np.isnan(y)))
    slope = sum(-2.0 * e[j] * V[j] for j in range(len(V))) / n
    return u - step * (slope + 2.0 * penalty * u)


def fit(Y, U, V, settings, estimate=None):
    """U and V after all rounds; `estimate(t, U, V)` stands for the mean gradient."""
    for t in range(settings.max_iter):
        fall = 1.0 / (t + 1) ** settings.step_decay
        g = mean_gradient(Y, U, V) if estimate is None else estimate(t, U, V)
        V = V - fall * settings.step_size * (g + 2.0 * settings.item_penalty * V)
        step, penalty = fall * settings.user_step, settings.user_penalty
        U = np.array([stepped_user(y, u, V, step, penalty) for y, u in zip(Y, U, strict=True)])
    return U, V
