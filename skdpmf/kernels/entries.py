"""Predictions at stored positions only: no dense users x items matrix is formed."""

from typing import Any

from numpy.typing import NDArray

from skdpmf.kernels._jit import jit_fast

__all__ = ["predict_entries"]

Array = NDArray[Any]


@jit_fast
def predict_entries(
    indptr: Array,
    indices: Array,
    user_factors: Array,
    item_factors: Array,
    start: int,
    stop: int,
    out: Array,
) -> None:
    """Dot products u_i . v_j at the stored positions of rows [start, stop) of a CSR pattern.

    indptr (n_rows + 1,) integer: row i owns the positions indptr[i] to indptr[i + 1]; indices
    (n_stored,) integer: item j of each position; user_factors (n_rows, k) float: U, one row per row
    of the pattern; item_factors (n_items, k) float: V, of the same dtype as `user_factors`; fastest
    if both are C-contiguous; out (n_stored,) float: overwritten from indptr[start] to indptr[stop];
    other positions are left alone.

    Examples
    --------
    >>> import numpy as np
    >>> from skdpmf.kernels.entries import predict_entries
    >>> U, V = np.array([[1.0, 2.0]]), np.array([[3.0, 4.0], [5.0, 6.0]])
    >>> out = np.empty(1)
    >>> predict_entries(np.array([0, 1]), np.array([1]), U, V, 0, 1, out)
    >>> out
    array([17.])
    """
    k = user_factors.shape[1]
    for i in range(start, stop):
        for p in range(indptr[i], indptr[i + 1]):
            j = indices[p]
            total = user_factors.dtype.type(0)
            for c in range(k):
                total += user_factors[i, c] * item_factors[j, c]
            out[p] = total
