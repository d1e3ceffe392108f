"""Slow twin of skdpmf.kernels.sgd: one group of ratings after the other, in float64."""

import numpy as np


def group_size(width):
    """Ratings that share the item's row from before their update."""
    return 8 if width < 256 else 4


def update_batch(
    U,
    b,
    V,
    c,
    start,
    items,
    indptr,
    users,
    ratings,
    step,
    bias_step,
    penalty,
    clip,
    size,
    weights=None,
    bound=None,
):
    """Update float64 copies of the factors and biases in place; return the squared errors."""
    loss = 0.0
    fixed, b = b is None, np.zeros(len(U)) if b is None else b
    weights = np.ones(len(U)) if weights is None else weights
    of_users, of_items = (penalty, penalty) if np.ndim(penalty) == 0 else penalty
    of_biases = penalty if np.ndim(penalty) == 0 else 0.0
    for run, j in enumerate(items):
        run_positions = range(indptr[run], indptr[run + 1])
        for first in range(0, len(run_positions), size):
            group = run_positions[first : first + size]
            v_change, c_change = np.zeros_like(V[j]), 0.0
            for p in group:
                i = start + int(users[p])
                prediction = U[i] @ V[j] + b[i] + c[j]
                error = float(ratings[p]) - prediction
                if bound is not None and abs(prediction) >= bound:
                    error = 0.0
                loss += error**2
                error = weights[i] * min(max(error, -clip), clip)
                v_change += error * U[i] - of_items * V[j]
                c_change += error - of_biases * c[j]
                U[i] += step * (error * V[j] - of_users * U[i])
                b[i] += 0.0 if fixed else bias_step * (error - of_biases * b[i])
            V[j] += step * v_change
            c[j] += bias_step * c_change
    return loss
