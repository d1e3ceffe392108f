"""Hashes in Python's integers, and centred rows by the quadratic equation of their length."""

import numpy as np


def hash_of(indices, values, odd):
    """The hash of one row, in Python's integers."""
    total, most = 0, 2**64
    for j, word in zip(indices, np.asarray(values, np.float64).view(np.uint64), strict=True):
        mixed = ((int(word) ^ ((int(j) + int(odd[0])) % most)) * int(odd[1])) % most
        total += (mixed ^ (mixed >> 31)) * int(odd[2])
    return total % most


def centred(x, direction, per_value, step, centres, most):
    """The scaled row and its centre, without a grid; x: the row in the head."""
    if not x.any():
        return x, 0
    d = per_value * x.sum()
    length = np.linalg.norm(x - d * direction)
    length = max(length, np.linalg.norm(x) / most, abs(d) / most)
    w = int(np.clip(d / length / step, 0, len(centres) - 1))
    # |s x - m| = 1
    a, b, c = x @ x, x @ centres[w], centres[w] @ centres[w] - 1.0
    root = np.sqrt(max(b * b - a * c, 0.0))
    return np.clip(1.0 / length, (b - root) / a, (b + root) / a) * x, w
