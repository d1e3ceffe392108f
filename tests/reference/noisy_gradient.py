"""Slow twin of skdpmf.mechanisms.noisy_gradient: loops over users and items.

Without privacy it is the whole fit. With privacy the item means and all points are functions of the
releases, and `user_sums` is what every step's releases hold before their noise.
"""

from typing import NamedTuple

import numpy as np
from scipy.linalg import sqrtm

from skdpmf.mechanisms import noisy_gradient as constants
from skdpmf.mechanisms.item_means import joint_release as item_means
from tests.reference.weighted_als import exact_item_means, lifted, rated


class Means(NamedTuple):
    """What a step needs of the item statistics."""

    mass: np.ndarray
    mean: np.ndarray
    variance: np.ndarray  # of the released mean around the true one, before the prior
    prior_variance: float
    typical_weight: float
    n_users: float


def exact_means(y, damping):
    """Without privacy."""
    m = exact_item_means(y, damping)
    variance = item_means.RATING_VARIANCE * m.typical_weight / m.mass
    n_users = np.count_nonzero((~np.isnan(y)).any(axis=1))
    return Means(m.mass, m.mean, variance, m.prior_variance, m.typical_weight, n_users)


def user_weights(y, mass):
    """w_ij ~ mass_j^-exponent with sum_j w_ij^2 = 1 for every user with ratings."""
    w = np.zeros(y.shape)
    for i in range(len(y)):
        own = rated(y, i)
        raw = mass[own] ** -constants.WEIGHT_EXPONENT
        w[i, own] = raw / np.linalg.norm(raw)
    return w


def user(y, b, V, M, *, alpha, damping):
    """Offset and factors of one user by a ridge regression on the own ratings."""
    own, k = np.flatnonzero(~np.isnan(y)), V.shape[1]
    F = np.column_stack((np.ones(len(own)), V[own]))
    spread = M[1:, 1:] / np.trace(M[1:, 1:])
    penalty = np.diag([float(damping)] + [0.0] * k)
    penalty[1:, 1:] = np.linalg.inv(0.3 * np.eye(k) / k + 0.7 * spread)
    penalty[1:, 1:] *= alpha * constants.TRAINING_RIDGE
    z = np.linalg.solve(F.T @ F + penalty, F.T @ (y[own] - b[own]))
    return z[0], z[1:]


def user_sums(y, w, b, V, M, *, alpha, damping, influence=None):
    """Sums over users of w e phi for each item and of phi phi'; with influences all is clipped."""
    k = V.shape[1]
    G, moments = np.zeros((len(V), k + 1)), np.zeros((k + 1, k + 1))
    for i in range(len(y)):
        own = rated(y, i)
        if not len(own):
            continue
        o, u = user(y[i], b, V, M, alpha=alpha, damping=damping)
        share, f = 1.0, 1.0
        if influence is not None:
            f = influence[i]
            u = u / max(1.0, np.linalg.norm(u))
        phi = np.append(constants.OFFSET, u)
        g = np.outer(w[i, own] * (y[i, own] - b[own] - o - V[own] @ u), phi)
        if influence is not None:
            share = min(1.0, f * constants.CLIP / np.linalg.norm(g))
        G[own] += share * g
        moments += min(f, share) * np.outer(phi, phi)
    return G, moments


def chain(sums, means, V, n_steps, *, alpha, noise=0.0):
    """Item means and factors; `sums(t, b, V, M)` gives the releases of a step."""
    n_items, k = V.shape
    raw = means.mass**-constants.WEIGHT_EXPONENT
    level = np.sqrt(np.average(raw**2, weights=means.mass))
    mass, typical = means.mass * raw / level, np.minimum(means.typical_weight * raw / level, 1.0)
    variance = 1.0 / (1.0 / means.prior_variance + 1.0 / means.variance)
    a2 = constants.OFFSET**2
    M = np.eye(k + 1) * constants.FIRST_SQUARE / k
    M[0, 0] = constants.FIRST_CLIP * a2
    b, points = means.mean.copy(), []
    for t in range(n_steps):
        G, latest = sums(t, b, V, M)
        latest = latest / means.n_users
        new = np.zeros_like(M)
        new[0, 0] = min(max(latest[0, 0], 0.1 * a2), a2)
        new[1:, 1:] = lifted(latest[1:, 1:])
        M = constants.MEMORY * M + (1.0 - constants.MEMORY) * new
        before, b, V = b, b.copy(), V.copy()
        for j in range(n_items):
            K = mass[j] * M[0, 0] / constants.OFFSET
            L = noise**2 / K / variance[j]
            L += (
                item_means.RATING_VARIANCE
                * M[0, 0]
                / constants.OFFSET
                * typical[j]
                / (means.prior_variance)
            )
            b[j] += constants.STEP / (K + L) * (G[j, 0] - L * (before[j] - means.mean[j]))
            K = mass[j] * M[1:, 1:]
            L = constants.NOISE_PRECISION * noise**2 * np.linalg.inv(K)
            L = alpha * (L + constants.RATING_PRECISION * typical[j] * np.eye(k))
            V[j] += constants.STEP * np.linalg.solve(K + L, G[j, 1:] - L @ V[j])
        points.append((b, V))
    half = points[n_steps // 2 :]
    root = sqrtm(M[1:, 1:] / np.trace(M[1:, 1:])).real
    return np.mean([p[0] for p in half], axis=0), np.mean([p[1] for p in half], axis=0) @ root


def fit(y, V, *, rounds, alpha, damping):
    """Item means, factors and the ridge of a fold-in without privacy, from the start V.

    y is dense, in quarter ranges around the middle of the scale, with NaN for unknown.
    """
    means = exact_means(y, damping)
    w = user_weights(y, means.mass)

    def exact(_, *point):
        return user_sums(y, w, *point, alpha=alpha, damping=damping)

    b, V = chain(exact, means, V, rounds, alpha=alpha)
    return b, V, alpha * constants.FOLD_IN_RIDGE
