"""Slow twin of skdpmf.kernels.gibbs: dense densities and the textbook forms of both steps."""

import numpy as np


class _Conditional:
    """Of one row: `F` has a column of ones if the row has a bias, the last of its values."""

    def __init__(self, F, e, q, c, std, bound):
        self.F, self.e, self.q, self.c, self.std, self.bound = F, e, q, c, std, bound
        self.A = np.diag(std**-2.0) + F.T @ (q[:, None] * F)
        self.mean = np.linalg.solve(self.A, F.T @ (q * (e - c)))

    def log_likelihood(self, y):
        p = np.clip(self.F @ y + self.c, -self.bound, self.bound)
        return -0.5 * np.sum(self.q * (self.e - p) ** 2)

    def log_density(self, y):
        return self.log_likelihood(y) - 0.5 * np.sum((y / self.std) ** 2)

    def log_proposal(self, y):
        return -0.5 * (y - self.mean) @ self.A @ (y - self.mean)

    def propose(self, z):
        return self.mean + np.linalg.solve(np.linalg.cholesky(self.A).T, z)

    def chance(self, old, new):
        """Metropolis-Hastings, for a proposal that does not depend on the old value."""
        ratio = self.log_density(new) - self.log_density(old)
        ratio += self.log_proposal(old) - self.log_proposal(new)
        return np.exp(min(ratio, 0.0))

    def turned(self, y, ray, uniforms):
        """Elliptical slice sampling, figure 2 of the paper, with a limit on its loop."""
        level = self.log_likelihood(y) + np.log(uniforms[0])
        angle = 2 * np.pi * uniforms[1]
        low, high = angle - 2 * np.pi, angle
        for u in uniforms[2:]:
            found = y * np.cos(angle) + ray * np.sin(angle)
            if self.log_likelihood(found) > level:
                return found
            low, high = (angle, high) if angle < 0 else (low, angle)
            angle = low + u * (high - low)
        return y


def sample_rows(
    indptr,
    indices,
    values,
    column_bias,
    row_roots,
    column_roots,
    factors,
    prior_std,
    bound,
    normals,
    directions,
    uniforms,
    x,
    bias,
):
    """Return the new x and bias, and with which probability each row's proposal is accepted."""
    own_bias = len(bias) > 0
    state = np.column_stack([x, bias]) if own_bias else x.copy()
    chance = np.ones(len(x))
    c_all = column_bias if len(column_bias) else np.zeros(len(factors))
    for i in range(len(x)):
        own = slice(indptr[i], indptr[i + 1])
        j = indices[own]
        F = np.column_stack([factors[j], np.ones(len(j))]) if own_bias else factors[j]
        q = (row_roots[i] * column_roots[j]) ** 2
        row = _Conditional(F, values[own], q, c_all[j], prior_std, bound)
        proposal = row.propose(normals[i])
        if bound == np.inf:
            state[i] = proposal
            continue
        chance[i] = row.chance(state[i], proposal)
        if uniforms[i, 0] < chance[i]:
            state[i] = proposal
        state[i] = row.turned(state[i], directions[i] * prior_std, uniforms[i, 1:])
    k = x.shape[1]
    return state[:, :k], state[:, k] if own_bias else bias, chance
