"""Slow twin of `diffusion`, and densities on a grid for the sampler's tests."""

import math

import numpy as np


def diffusion(precision, time):
    """1 - exp(-precision time / 2) and the standard deviation, by their series where short."""
    decay, scale = [], []
    for one in precision:
        t = one * time
        if t < 1e-4:
            decay.append(t / 2 - t**2 / 8 + t**3 / 48)
            scale.append(math.sqrt((t - t**2 / 2 + t**3 / 6) / one))
        else:
            decay.append(1 - math.exp(-t / 2))
            scale.append(math.sqrt((1 - math.exp(-t)) / one))
    return np.array(decay), np.array(scale)


class Grid:
    """The law of one user's u and J items' v_j, k = 1, for the clipped loss: a product given u."""

    def __init__(self, e, a, w, bound, user_std, item_std, n=801):
        self.u = np.linspace(-6 * user_std, 6 * user_std, n)
        self.v = np.linspace(-6 * item_std, 6 * item_std, n)
        self.p = np.outer(self.u, self.v)
        losses = [(x - np.clip(self.p, -bound, bound)) ** 2 for x in e]
        items = [np.exp(-a * w * loss - (self.v / item_std) ** 2 / 2) for loss in losses]
        totals = [item.sum(axis=1) for item in items]
        user = np.exp(-((self.u / user_std) ** 2) / 2) * np.prod(totals, axis=0)
        user /= user.sum()
        #: probabilities of (u, v_j), for each j
        self.pairs = [
            user[:, np.newaxis] * item / total[:, np.newaxis]
            for item, total in zip(items, totals, strict=True)
        ]

    def mean(self, values, j=0):
        """Mean of a function of (u, v_j), given on the grid."""
        return float((self.pairs[j] * values).sum())
