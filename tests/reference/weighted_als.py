"""Slow twin of skdpmf.mechanisms.als.dpals without privacy: loops over users and items.

Every round is written as the two ridge regressions that it is, not as the residual right-hand
sides and posteriors of the solver.
"""

from typing import NamedTuple

import numpy as np

from skdpmf.mechanisms.als import item_update as item_posterior
from skdpmf.mechanisms.als import loop
from skdpmf.mechanisms.als.pooled import MEAN_ROUNDS
from skdpmf.mechanisms.item_means import joint_release as item_means
from skdpmf.mechanisms.item_means import residual_rounds
from skdpmf.mechanisms.item_means.residual_rounds import ITEM_DAMPING


class Means(NamedTuple):
    """Counts, and item means after a few rounds, in the solver's units."""

    mass: np.ndarray
    mean: np.ndarray
    prior_mean: np.ndarray
    prior_variance: float
    typical_weight: float


def rated(y, i):
    return np.flatnonzero(~np.isnan(y[i]))


def exact_item_means(y, damping):
    """Weighted counts N_j, and means by the rounds of residuals that a fit begins with."""
    n_users, n_items = y.shape
    N, users = np.zeros(n_items), 0
    for i in range(n_users):
        own = rated(y, i)
        users += len(own) > 0
        N[own] += max(len(own), 1) ** -0.5
    N = np.maximum(N, 1e-6 * N.max())
    typical = users / min(max(N.sum(), users), users * n_items**0.5)
    raw = N**-residual_rounds.EXPONENT
    level = np.sqrt(np.average(raw**2, weights=N))
    weights = N * raw / level
    sampling = item_means.RATING_VARIANCE * np.minimum(typical * raw / level, 1.0) / weights
    place = [np.log(n) - N @ np.log(N) / N.sum() for n in N]
    design = np.stack([np.ones(n_items), place], axis=1)
    guess = item_means.RATING_VARIANCE / ITEM_DAMPING
    b, measured = np.zeros(n_items), []
    for _ in range(MEAN_ROUNDS):
        total = np.zeros(n_items)
        for i in range(n_users):
            own = rated(y, i)
            if len(own):
                e = y[i, own] - b[own]
                e = e - e.sum() / (len(own) + damping)
                total[own] += raw[own] / np.linalg.norm(raw[own]) * e
        measured.append(b + total / weights)
        x = np.mean(measured, axis=0)
        tau, prior = item_means.item_prior(x, sampling, design, guess)
        b = (tau * x + sampling * prior) / (tau + sampling)
    return Means(N, b, prior, tau, typical)


def fit(y, k, *, exponent, rounds, alpha, damping, with_means):
    """Item means b, factors V and the ridge of a fold-in.

    y is dense, in quarter ranges around the middle of the scale, with NaN for unknown.
    """
    n_users, n_items = y.shape
    means = exact_item_means(y, damping)
    N = means.mass
    raw = N**-exponent
    w = np.zeros((n_users, n_items))
    for i in range(n_users):
        own = rated(y, i)
        if len(own):
            w[i, own] = raw[own] / np.linalg.norm(raw[own])
    level = np.sqrt(np.average(raw**2, weights=N))
    mass, typical = N * raw / level, np.minimum(means.typical_weight * raw / level, 1.0)

    b = means.mean if with_means else np.zeros(n_items)
    V = start(y, w, b, mass, k, damping, with_means)
    L = np.eye(k) * ITEM_DAMPING * alpha
    for _ in range(rounds):
        ridge = alpha * loop.TRAINING_RIDGE * k * np.eye(k)
        o, U = user_half(y, b, V, ridge, damping, with_means)
        pooled = np.zeros((k + with_means, k + with_means))
        for j in range(n_items):
            users = np.flatnonzero(w[:, j] > 0)
            strength = typical[j]
            A, h = np.zeros_like(pooled), np.zeros(k + with_means)
            for i in users:
                phi = np.concatenate(([1.0] * with_means, U[i]))
                A += w[i, j] * np.outer(phi, phi)
                h += w[i, j] * (y[i, j] - o[i]) * phi
            pooled += A
            prior, penalty = np.zeros(k + with_means), np.zeros_like(A)
            penalty[with_means:, with_means:] = L
            if with_means:
                prior[0] = means.prior_mean[j]
                penalty[0, 0] = 1.0 / means.prior_variance
            theta = np.linalg.solve(A + strength * penalty, h + strength * penalty @ prior)
            V[j] = theta[with_means:]
            if with_means:
                b[j] = theta[0]
        spread = lifted(pooled)[with_means:, with_means:]
        spread /= np.trace(spread)
    values, vectors = np.linalg.eigh(spread)
    root = vectors @ np.diag(np.sqrt(values)) @ vectors.T
    return b, V @ root, alpha * loop.FOLD_IN_RIDGE


def start(y, w, b, mass, k, damping, with_means):
    """Leading eigenvectors of the head items' second moments of weighted residuals."""
    n_users, n_items = y.shape
    head = sorted(sorted(range(n_items), key=lambda j: -mass[j])[: loop.HEAD])
    M = np.zeros((len(head), len(head)))
    for i in range(n_users):
        own = rated(y, i)
        o = np.sum(y[i, own] - b[own]) / (len(own) + damping) if with_means else 0.0
        x = np.nan_to_num(w[i] * (y[i] - b - o))[head]
        M += np.outer(x, x) - np.diag(x**2)
    return leading(M, head, mass, k)


def leading(M, head, mass, k):
    """The start of factors from moments of the head, whose masses count against noise."""
    values, vectors = np.linalg.eigh(M)
    V, m = np.zeros((len(mass), k)), mass[head]
    for c in range(k):
        V[head, c] = vectors[:, -1 - c] * np.sqrt(max(values[-1 - c], 1e-12))
    V[head] *= (m / (m**2 + 0.3 * np.median(m) ** 2))[:, None]
    return 0.3 * V / np.sqrt(np.mean(V[head] ** 2))


def user_half(y, b, V, ridge, damping, with_means):
    """Ridge regressions of users on all of their ratings; 0 for a user without any."""
    n_users, k = y.shape[0], V.shape[1]
    o, U = np.zeros(n_users), np.zeros((n_users, k))
    penalty = np.zeros((k + with_means, k + with_means))
    penalty[with_means:, with_means:] = ridge
    if with_means:
        penalty[0, 0] = damping
    for i in range(n_users):
        own = rated(y, i)
        F = np.column_stack((np.ones((len(own), int(with_means))), V[own]))
        z = np.linalg.solve(F.T @ F + penalty, F.T @ (y[i, own] - b[own]))
        U[i] = z[with_means:]
        o[i] = z[0] if with_means else 0.0
    return o, U


def lifted(pooled):
    """The pooled Gram matrix with eigenvalues of at least a small share of its trace."""
    values, vectors = np.linalg.eigh(pooled)
    least = item_posterior._LEAST_EIGENVALUE * values.sum()
    return vectors @ np.diag(np.maximum(values, least)) @ vectors.T
