"""Slow twin of `skdpmf.kernels.sgd`."""

import numpy as np


def order_by_item(indptr, indices, values, start, stop, mean, std):
    """Sort (item, row, rating) triples: items, counts, users and standardised ratings."""
    triples = sorted(
        (int(indices[p]), i - start, (float(values[p]) - mean) / std)
        for i in range(start, stop)
        for p in range(indptr[i], indptr[i + 1])
    )
    users = np.array([row for _, row, _ in triples], np.uint16)
    ratings = np.array([rating for _, _, rating in triples], np.float32)
    return [item for item, _, _ in triples], users, ratings
