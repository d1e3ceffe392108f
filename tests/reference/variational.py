"""Slow twins of the variational item model: one row's posterior, and rounds over dense ratings."""

import numpy as np


def row_posterior(y, F, v, ridge, prior, noise):
    """Mean, marginal variances and expected squared error, with NaN for unknown ratings."""
    own = np.flatnonzero(~np.isnan(y))
    inverse = np.linalg.inv(ridge + sum((np.outer(F[j], F[j]) + np.diag(v[j]) for j in own), 0.0))
    x = inverse @ (ridge @ prior + sum((y[j] * F[j] for j in own), 0.0))
    spread = noise * np.diag(inverse)
    second = np.outer(x, x) + np.diag(spread)
    loss = 0.0
    for j in own:
        moment = np.outer(F[j], F[j]) + np.diag(v[j])
        loss += y[j] ** 2 - 2.0 * y[j] * F[j] @ x + np.sum(moment * second)
    return x, spread, loss


def of_one_shape(v, apart):
    """Variances of rank one, with the sums of rows and columns that these have, but for one."""
    own, v = v[:, apart], np.delete(v, apart, axis=1)
    shaped = np.outer(v.sum(axis=1), v.sum(axis=0)) / max(v.sum(), 1e-300)
    return np.insert(shaped, apart, own, axis=1)


def columns_of(b, V, log_column, N):
    return np.column_stack((np.ones(len(b)), b - N @ b / N.sum(), log_column, V))


def features(y, X):
    F = np.zeros((len(y), X.shape[1] + 1))
    for i, row in enumerate(~np.isnan(y)):
        if row.any():
            F[i] = np.append(np.log(1.0 + row.sum()) - 4.5, X[row].mean(axis=0))
    return F


def one_round(y, state, log_column, N, D):
    """Go on from (theta, variance, noise, omega, slopes, tau, centre)."""
    theta, variance, noise, omega, slopes, tau, centre = state
    known, k = ~np.isnan(y), theta.shape[1] - 1
    X, users = columns_of(theta[:, 0], theta[:, 1:], log_column, N), known.any(axis=1)
    nothing = np.zeros(len(X))
    v = np.column_stack((nothing, variance[:, 0], nothing, variance[:, 1:]))
    v, F = of_one_shape(v, 1), features(y, X)
    ridge, one = noise * np.linalg.inv(omega), np.eye(len(omega))[1]
    found = [
        row_posterior(row - theta[:, 0] + X[:, 1], X, v, ridge, F[i] @ slopes + one, noise)
        for i, row in enumerate(y)
    ]
    Z, spread = (np.array([part[n] for part in found]) for n in (0, 1))
    Z = Z - one
    noise = sum(part[2] for part in found) / known.sum()
    F, z = F[users], Z[users]
    slopes = np.linalg.solve(F.T @ F + np.eye(len(F.T)), F.T @ z)
    rest = z - F @ slopes
    omega = (rest.T @ rest + np.diag(spread[users].sum(axis=0))) / users.sum()
    phi = np.column_stack((1.0 + Z[:, 1], Z[:, 3:]))
    v = of_one_shape(np.column_stack((spread[:, 1], spread[:, 3:])), 0)
    left = y - Z[:, :3] @ X[:, :3].T + np.outer(Z[:, 1], theta[:, 0])
    found = [
        row_posterior(left[:, j], phi, v, np.diag(noise / tau), centre[j], noise)
        for j in range(len(X))
    ]
    theta, variance = (np.array([part[n] for part in found]) for n in (0, 1))
    rated, centre = known.any(axis=0), centre.copy()
    for c in range(k + 1):
        design = np.column_stack((np.ones(len(X)), log_column, D)) if c == 0 else D
        weight = np.diag(rated / (tau[c] + variance[:, c]))
        ridge = np.full(design.shape[1], 1.0 / tau[c])
        ridge[: 2 * (c == 0)] = 0.0
        gram = design.T @ weight @ design + np.diag(ridge)
        centre[:, c] = design @ np.linalg.solve(gram, design.T @ weight @ theta[:, c])
    tau = ((theta - centre) ** 2 + variance)[rated].mean(axis=0)
    state = theta, variance, noise, omega, slopes, tau, centre
    return turned(Z[users], spread[users], rated, state)


def turned(Z, spread, rated, state):
    """The same model in coordinates with users' second moment I and items' a diagonal one."""
    theta, variance, noise, omega, slopes, tau, centre = state
    u, V = Z[:, 3:], theta[:, 1:]
    values, vectors = np.linalg.eigh((u.T @ u + np.diag(spread[:, 3:].sum(axis=0))) / len(u))
    root = vectors @ np.diag(values**0.5) @ vectors.T
    moment = root @ (V.T @ V + np.diag(variance[:, 1:].sum(axis=0))) @ root
    turn = root @ np.linalg.eigh(moment)[1][:, ::-1]
    item, user = np.eye(len(tau)), np.eye(len(omega))
    item[1:, 1:], user[3:, 3:] = turn, np.linalg.inv(turn).T
    feature = np.eye(len(slopes))
    feature[4:, 4:] = turn
    theta, centre, variance = theta @ item, centre @ item, variance @ item**2
    tau = ((theta - centre) ** 2 + variance)[rated].mean(axis=0)
    slopes = np.linalg.inv(feature) @ slopes @ user
    return theta, variance, noise, user.T @ omega @ user, slopes, tau, centre
