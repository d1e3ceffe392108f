"""Cholesky factors and triangular solves of one small system at a time; layouts: `_panel`."""

from typing import Any

import numpy as np

from skdpmf.kernels._vectors import (
    TILE,
    lanes_of,
    sum_tile,
    tile_axpy,
    tile_load,
    tile_solve,
    tile_store,
    vfma,
    vload,
    vstore,
    vsum,
    vzero,
)
from skdpmf.kernels.jit_and_threads import jit

__all__ = [
    "cholesky",
    "solve_factored",
    "substitute_backward",
    "substitute_forward",
]


@jit
def _factor_block(gram: Any, b: Any, end: Any, j: Any, floor: Any, inverse: Any) -> Any:
    """Factor rows [b, end) within the columns of one vector at j; False if not definite."""
    width = gram.shape[1]
    for r in range(b, end):
        pivot = gram[r, r]
        if not pivot > floor[r]:
            return False
        inverse[r] = gram.dtype.type(1) / np.sqrt(pivot)
        at = r * width + j
        row = vfma(inverse[r], vload(gram, at), vzero(gram))
        vstore(gram, at, row)
        for below in range(r + 1, end):
            at += width
            vstore(gram, at, vfma(-gram[r, below], row, vload(gram, at)))
    return True


@jit
def cholesky(gram: Any, k: Any, floor: Any, inverse: Any) -> Any:
    """Overwrite the upper triangle of gram with the factor U of gram = U^T U.

    Left-looking by blocks of TILE rows: the factored rows are a panel like any other. `inverse`
    gets 1 / U_rr, and has as many elements as gram has rows. False if a pivot is not above its
    `floor`; gram is then spoilt.
    """
    width = gram.shape[1]
    lanes = lanes_of(gram)
    flat = gram.reshape(-1)
    minus_one = gram.dtype.type(-1)
    for b in range(0, k, TILE):
        first = b // lanes * lanes
        for j in range(first, width, lanes):
            at = b * width + j
            sums = sum_tile(flat, b, width, b, j)
            tile = tile_axpy(minus_one, sums, tile_load(gram, at, width, sums))
            if j > first:
                tile = tile_solve(tile, gram, b * width + b, width, inverse, b)
            tile_store(gram, at, width, tile)
            if j == first and not _factor_block(gram, b, min(b + TILE, k), j, floor, inverse):
                return False
    return True


@jit
def substitute_forward(gram: Any, k: Any, inverse: Any, rhs: Any, out: Any) -> None:
    """Put the solution of U^T y = rhs into out; rhs is spoilt."""
    width = gram.shape[1]
    lanes = lanes_of(gram)
    for r in range(k):
        y = rhs[r] * inverse[r]
        out[r] = y
        for j in range(r // lanes * lanes, width, lanes):
            vstore(rhs, j, vfma(-y, vload(gram, r * width + j), vload(rhs, j)))


@jit
def substitute_backward(gram: Any, k: Any, inverse: Any, x: Any) -> None:
    """Overwrite y in x (padded, zero beyond k) with the solution of U x = y."""
    width = gram.shape[1]
    lanes = lanes_of(gram)
    for b in range((k - 1) // lanes * lanes, -1, -lanes):
        end = min(b + lanes, k)
        # Contributions of the later blocks; the rows of a block do not wait for one another.
        for r in range(b, end):
            total = vzero(gram)
            for j in range(b + lanes, width, lanes):
                total = vfma(vload(gram, r * width + j), vload(x, j), total)
            x[r] -= vsum(total)
        for r in range(end - 1, b - 1, -1):
            x[r] *= inverse[r]
            for above in range(b, r):
                x[above] -= gram[above, r] * x[r]


@jit
def solve_factored(gram: Any, k: Any, inverse: Any, rhs: Any, x: Any) -> None:
    """Put the solution of U^T U x = rhs into x (padded, zero beyond k); rhs is spoilt."""
    substitute_forward(gram, k, inverse, rhs, x)
    substitute_backward(gram, k, inverse, x)
