"""Slow twin of skdpmf.mechanisms.noisy_gradient: loops over users and items.

All points are functions of the releases, and `user_sums` is what every step's releases hold before
their noise.
"""

import numpy as np
from scipy.linalg import sqrtm

from skdpmf.mechanisms import noisy_gradient as constants
from skdpmf.mechanisms.item_means import joint_release as item_means
from tests.reference.variational import row_posterior
from tests.reference.weighted_als import rated

A = constants.CONSTANT


def user_weights(y, mass):
    """w_ij ~ mass_j^-1/4 with sum_j w_ij^2 = 1 for every user with ratings."""
    w = np.zeros(y.shape)
    for i in range(len(y)):
        own = rated(y, i)
        raw = mass[own] ** -0.25
        w[i, own] = raw / np.linalg.norm(raw) if len(own) else raw
    return w


def user_sums(y, w, point, settings, *, clip, influence):
    """Sums over users of w e phi for each item and of t t', clipped."""
    b, V, noise, scale = point
    k, width = V.shape[1], 2 * settings.n_components + 2
    F = np.column_stack((np.ones(len(V)), V))
    ridge = np.diag([settings.user_damping] + [settings.alpha * noise] * k)
    G, H = np.zeros((len(V), k + 1)), np.zeros((width, width))
    for i in range(len(y)):
        own = rated(y, i)
        if not len(own):
            continue
        z, spread, loss = row_posterior(y[i] - b, F, np.zeros(F.shape), ridge, 0.0 * F[0], noise)
        x, f = z[1:] / scale, influence[i]
        x = x / max(1.0, np.linalg.norm(x))
        phi = np.append(A, x)
        g = np.outer(w[i, own] * (y[i, own] - b[own] - F[own] @ z), phi)
        t = np.zeros(width)
        t[: k + 1] = phi
        t[width // 2 : width // 2 + k] = np.sqrt(spread[1:] / k)
        t[-1] = constants.SCALE * np.sqrt(loss / len(own))
        share = min(1.0, f * clip / np.linalg.norm(g))
        G[own] += share * g
        share = min(share, f, f * (A**2 + 1.0) / (t @ t))
        H += share * np.outer(t, t)
    return G, H


class Pool:
    """Mean of measurements, older ones discounted, and of a guess."""

    def __init__(self):
        self.shown = []

    def add(self, value, deviation, guess, sure):
        kept = 1.0 - 1.0 / (len(self.shown) + 1)
        self.shown = [(v, kept * p) for v, p in self.shown]
        self.shown.append((value, max(deviation, 1e-9) ** -2.0))
        total = sum(p * v for v, p in self.shown) + guess / sure**2
        return total / (sum(p for _, p in self.shown) + sure**-2.0)

    def change(self, function):
        self.shown = [(function(v), p) for v, p in self.shown]


def expected(V, share, n, ridge):
    """M and S of a typical user."""
    k = V.shape[1]
    gram = n * sum(share[j] * np.outer(V[j], V[j]) for j in range(len(V)))
    doubt = ridge * np.linalg.inv(gram + ridge * np.eye(k))
    return np.eye(k) - doubt, np.diag(doubt)


def filtered(x, p, measured, noise):
    r = noise**2 + 1e-12
    return (r * x + p * measured) / (p + r), 1.0 / (1.0 / p + 1.0 / r)


def chain(sums, means, V, settings, *, noise, deviation, clip):
    """Item means, factors and s2; `sums(t, b, V, s2, scale)` gives the releases of a step.

    means: of `ResidualAverages` after its releases, as the fit had them before the first step.
    """
    n_items, k = V.shape
    b, share, n = means["mean"].copy(), means["mass"] / means["mass"].sum(), means["typical"]
    weights, alpha, half = means["weights"], settings.alpha, settings.n_components + 1
    s2, tau, variance = constants.NOISE, np.full(k, constants.VARIANCE), means["prior_variance"]
    V = V * np.sqrt(constants.STARTING * s2 / n)
    X, P = np.zeros(V.shape), np.full(V.shape, 1e12)
    mean_X, mean_P = means["X"].copy(), means["P"].copy()
    c = min(1.0, clip / np.hypot(A, 1.0) / constants.NOISE**0.5)
    seen, M_seen, S_seen, s2_seen = Pool(), Pool(), Pool(), Pool()
    first_c, sure = c, constants.SURE
    for t in range(settings.max_iter):
        M0, S0 = expected(V, share, n, alpha * s2)
        scale = max(np.sqrt(np.trace(M0)), constants.LEAST_LENGTH) / constants.MEAN_SQUARE**0.5
        G, H = sums(t, b, V, s2, scale)
        H, own = H / means["n_users"], deviation / means["n_users"]
        # what is learnt of users
        c = min(max(seen.add(H[0, 0] / A**2, own / A**2, first_c, sure), 0.1), 1.0)
        inner = scale**2 * H[1 : k + 1, 1 : k + 1]
        M = M_seen.add(inner, scale**2 * own, c * M0, c * sure) / c
        h = 1.0 / k
        S = S_seen.add(np.diag(H)[half : half + k] / h, own / h, c * S0, c * sure) / c
        S = np.clip(S, 0.0, 2.0)
        g = constants.SCALE**2
        s2 = s2_seen.add(H[-1, -1] / g, own / g, c * constants.NOISE, c * sure)
        s2 = min(max(s2 / c, 1e-3 * constants.NOISE), 10.0 * constants.NOISE)
        doubt = s2 * means["typical_weights"] / weights
        # means
        for j in range(n_items):
            slope = A * c * weights[j]
            measured = b[j] + G[j, 0] / slope
            mean_X[j], mean_P[j] = filtered(mean_X[j], mean_P[j], measured, noise / slope)
        variance, line = item_means.item_prior(
            mean_X, mean_P + doubt, means["design"], means["prior_variance"]
        )
        b = b.copy()
        for j in range(n_items):
            d = mean_P[j] + doubt[j]
            b[j] = (d * line[j] + variance * mean_X[j]) / (d + variance)
        # factors
        starting = t < int(constants.STARTING * settings.max_iter)
        for j in range(n_items):
            K = c * weights[j]
            for d in range(k):
                measured = V[j, d] + scale * G[j, 1 + d] / K - S[d] * V[j, d]
                p = P[j, d] * (1.0 + constants.STARTING * starting)
                X[j, d], P[j, d] = filtered(X[j, d], p, measured, scale * noise / K)
        if not starting:
            tau = np.array([prior_variance(X[:, d], P[:, d] + doubt) for d in range(k)])
        V = np.array([X[j] * tau / (tau + alpha * (P[j] + doubt[j])) for j in range(n_items)])
        if starting:
            for d in range(k):
                grow = np.sqrt(s2 / n / (share @ V[:, d] ** 2))
                V[:, d], X[:, d], P[:, d] = grow * V[:, d], grow * X[:, d], grow**2 * P[:, d]
        # coordinates of u
        values, vectors = np.linalg.eigh(M + np.diag(S))
        omega = (vectors * np.clip(values, 0.5, 2.0)) @ vectors.T
        root = sqrtm(omega).real
        W = V @ root
        turn = root @ np.linalg.eigh((W * share[:, None]).T @ W)[1][:, ::-1]
        back = np.linalg.inv(turn)
        V, X, P, tau = V @ turn, X @ turn, P @ turn**2, tau @ turn**2
        M_seen.change(lambda v, back=back: back @ v @ back.T)
        S_seen.change(lambda v, back=back: back**2 @ v)
    return b, V, s2


def prior_variance(x, variance):
    """Most probable variance of x, among those that are tried."""

    def density(t):
        guess = np.log(t / constants.VARIANCE) ** 2
        return -0.5 * (np.sum(x**2 / (t + variance) + np.log(t + variance)) + guess)

    return max(constants.VARIANCE * constants.KNOTS, key=density)
