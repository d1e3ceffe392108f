"""Blocked rank-n updates of one small Gram matrix at a time.

A Gram matrix is kept as the upper triangle of an array whose rows are padded to whole vectors;
below the diagonal blocks nothing is defined. A panel holds the rows of a rank-n update in slabs
one vector wide, PANEL_ROWS vectors one after the other, so that a slab is read as one stream; it
is stored flat and its padded columns are zero.

Loops over rows stand inside these functions, not around calls to them: every array passed to a
function that is not inlined costs an atomic count of references, shared by all threads.
"""

from typing import Any

import numpy as np

from skdpmf.kernels._jit import jit
from skdpmf.kernels._simd import VECTOR_BYTES, vfma, vload, vstore, vzero

__all__ = [
    "PANEL_ROWS",
    "TILE",
    "add_panel",
    "add_rhs",
    "add_tile",
    "lanes_of",
    "load_panel",
    "new_gram",
    "new_panel",
    "pack_lower",
    "scratch",
]

# Rows of one register tile: 4 x 64 bytes of sums are 4 AVX-512, 8 AVX2 or 16 NEON registers.
TILE = 4
# Rows of a panel: two slabs (8 KiB each) stay in the first-level cache.
PANEL_ROWS = 128


@jit
def lanes_of(array: Any) -> Any:
    """Return the elements of one vector."""
    return VECTOR_BYTES // array.itemsize


@jit
def _slabs(k: Any, like: Any) -> Any:
    lanes = lanes_of(like)
    return (k + lanes - 1) // lanes


@jit
def scratch(size: Any, like: Any) -> Any:
    """Return zeros of the dtype of `like` on a vector boundary: vectors split no cache line."""
    flat = np.zeros(size + lanes_of(like), like.dtype)
    skip = (-flat.ctypes.data % VECTOR_BYTES) // like.itemsize
    return flat[skip : skip + size]


@jit
def new_panel(k: Any, like: Any) -> Any:
    """Return a zero panel for rows of length k."""
    return scratch(_slabs(k, like) * PANEL_ROWS * lanes_of(like), like)


@jit
def new_gram(k: Any, like: Any) -> Any:
    """Return a zero Gram matrix, rows padded to tiles and columns to vectors."""
    n_rows = (k + TILE - 1) // TILE * TILE
    width = _slabs(k, like) * lanes_of(like)
    return scratch(n_rows * width, like).reshape((n_rows, width))


@jit
def load_panel(factors: Any, rows: Any, roots: Any, n: Any, panel: Any) -> None:
    """Row p of the panel = roots[p] * factors[rows[p]], p < n."""
    k = factors.shape[1]
    lanes = lanes_of(panel)
    whole = k // lanes * lanes
    for p in range(n):
        at = p * lanes
        source = rows[p] * k
        for c in range(0, whole, lanes):
            vstore(panel, at, vfma(roots[p], vload(factors, source + c), vzero(panel)))
            at += PANEL_ROWS * lanes
        for c in range(k - whole):
            panel[at + c] = roots[p] * factors[rows[p], whole + c]


@jit
def add_tile(
    flat: Any, n: Any, stride: Any, at_i: Any, at_j: Any, scale: Any, gram: Any, at: Any
) -> None:
    """Add scale * sum_p x_p y_p^T, p < n, to the 4 x lanes tile at flat position `at` of gram.

    x_p are 4 elements from at_i + p * stride and y_p one vector from at_j + p * stride of `flat`.
    """
    a0 = vzero(flat)
    a1 = vzero(flat)
    a2 = vzero(flat)
    a3 = vzero(flat)
    for p in range(n):
        y = vload(flat, at_j + p * stride)
        x = at_i + p * stride
        a0 = vfma(flat[x], y, a0)
        a1 = vfma(flat[x + 1], y, a1)
        a2 = vfma(flat[x + 2], y, a2)
        a3 = vfma(flat[x + 3], y, a3)
    width = gram.shape[1]
    vstore(gram, at, vfma(scale, a0, vload(gram, at)))
    at += width
    vstore(gram, at, vfma(scale, a1, vload(gram, at)))
    at += width
    vstore(gram, at, vfma(scale, a2, vload(gram, at)))
    at += width
    vstore(gram, at, vfma(scale, a3, vload(gram, at)))


@jit
def add_panel(panel: Any, n: Any, gram: Any) -> None:
    """Add the upper triangle of P^T P to gram, P the first n rows of the panel."""
    n_rows, width = gram.shape
    lanes = lanes_of(panel)
    slab = PANEL_ROWS * lanes
    one = panel.dtype.type(1)
    for s in range(width // lanes):
        for i in range(0, min((s + 1) * lanes, n_rows), TILE):
            at_i = i // lanes * slab + i % lanes
            add_tile(panel, n, lanes, at_i, s * slab, one, gram, i * width + s * lanes)


@jit
def add_rhs(panel: Any, targets: Any, n: Any, rhs: Any) -> None:
    """Add P^T targets to rhs, P the first n rows of the panel."""
    lanes = lanes_of(panel)
    one = panel.dtype.type(1)
    for s in range(rhs.shape[0] // lanes):
        a0 = vzero(panel)
        a1 = vzero(panel)
        a2 = vzero(panel)
        a3 = vzero(panel)
        # Four chains hide the latency of the addition.
        for p in range(0, n - 3, 4):
            at = (s * PANEL_ROWS + p) * lanes
            a0 = vfma(targets[p], vload(panel, at), a0)
            a1 = vfma(targets[p + 1], vload(panel, at + lanes), a1)
            a2 = vfma(targets[p + 2], vload(panel, at + 2 * lanes), a2)
            a3 = vfma(targets[p + 3], vload(panel, at + 3 * lanes), a3)
        for p in range(n // 4 * 4, n):
            a0 = vfma(targets[p], vload(panel, (s * PANEL_ROWS + p) * lanes), a0)
        a0 = vfma(one, a0, vfma(one, a1, vload(rhs, s * lanes)))
        vstore(rhs, s * lanes, vfma(one, a2, vfma(one, a3, a0)))


@jit
def pack_lower(gram: Any, k: Any, out: Any) -> None:
    """Write the lower triangle row by row: out[c (c + 1) / 2 + d] = gram_cd, d <= c."""
    q = 0
    for c in range(k):
        for d in range(c + 1):
            out[q] = gram[d, c]
            q += 1
