"""One small system at a time: sums by pairs of register tiles, Cholesky factors, triangular solves.

Layouts of Gram matrices and panels, and sums that fit any registers: `_vectors`, on which private
sums stand. What solvers alone need is here.
"""

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils, config
from numba.extending import intrinsic

from skdpmf.kernels import _vectors as vec
from skdpmf.kernels._vectors import PANEL_ROWS, TILE, WIDE, Vector
from skdpmf.kernels.jit_and_threads import part

# Rows of factors up to this length are read where they stand, so many bytes at a time that they
# stay in the first-level cache. Longer ones stand in few of its sets: a panel is as fast.
_LONGEST, _AT_A_TIME = 512, 24 << 10


@intrinsic
def keep_small(typingctx):
    """Have the function around compiled for size, in three quarters of the time.

    For loops that have their vectors already: it gets no more of them, nor unrolled loops.
    """

    def codegen(context, builder, signature, args):
        builder.function.attributes.add("optsize")
        return context.get_dummy_value()

    return types.void(), codegen


@intrinsic
def vzero8(typingctx, array):
    """Return a zero vector of eight elements of the array's dtype."""
    vector_type = Vector(array.dtype, 8)

    def codegen(context, builder, signature, args):
        return ir.Constant(context.get_value_type(vector_type), None)

    return vector_type(array), codegen


@intrinsic
def vload8(typingctx, array, offset, count):
    """Return eight elements from flat `offset` on: the first `count` of an array, then zeros."""
    vector_type = Vector(array.dtype, 8)

    def codegen(context, builder, signature, args):
        address = vec._address(context, builder, signature.args[0], args[0], args[1], 8)
        kind = context.get_value_type(vector_type)
        lanes = ir.VectorType(ir.IntType(64), 8)
        numbers = ir.Constant(lanes, list(range(8)))
        mask = builder.icmp_signed("<", numbers, vec._fill(builder, lanes, args[2]))
        align = ir.Constant(ir.IntType(32), array.dtype.bitwidth // 8)
        name = f"llvm.masked.load.v8f{array.dtype.bitwidth}.p0v8f{array.dtype.bitwidth}"
        return vec._call(builder, name, kind, address, align, mask, ir.Constant(kind, None))

    return vector_type(array, types.int64, types.int64), codegen


@intrinsic
def tile_solve(typingctx, tile, upper, at, width, inverse, row):
    """Return U^-T tile; U is the upper triangle at flat position `at` of an array.

    width: distance of U's rows; inverse[row + r] = 1 / U_rr.
    """

    def codegen(context, builder, signature, args):
        rows = list(cgutils.unpack_tuple(builder, args[0]))
        kind = rows[0].type
        u, ones = (
            context.make_array(signature.args[n])(context, builder, args[n]).data for n in (1, 4)
        )

        def scalar(data, place):
            return vec._fill(builder, kind, builder.load(builder.gep(data, [place])))

        for r in range(len(rows)):
            step = ir.Constant(args[3].type, r)
            rows[r] = builder.fmul(rows[r], scalar(ones, builder.add(args[5], step)))
            start = builder.add(args[2], builder.mul(args[3], step))
            minus = builder.fneg(rows[r])
            for below in range(r + 1, len(rows)):
                place = builder.add(start, ir.Constant(args[3].type, below))
                rows[below] = vec._fma(builder, scalar(u, place), minus, rows[below])
        return context.make_tuple(builder, tile, rows)

    return tile(tile, upper, types.intp, types.intp, inverse, types.intp), codegen


@part
def copy_gram(source, gram):
    """Overwrite the upper blocks of gram with another one of its shape."""
    n_rows, width = gram.shape
    lanes = vec.lanes_of(gram)
    for r in range(n_rows):
        for c in range(r // lanes * lanes, width, lanes):
            vec.vstore(gram, r * width + c, vec.vload(source, r * width + c))


@part
def _add_sixteen(factors, indices, values, weights, begin, end, room, gram, rhs):
    """Add sum w v v^T and sum w r v over the positions [begin, end), for 8 < k <= 16.

    One pass without a panel: all sums stay in registers. room: 32 elements of scratch.
    """
    k = factors.shape[1]
    weighted = weights.shape[0] > 0
    one = factors.dtype.type(1)
    none = vzero8(factors)
    aa = vec.tile_zero(none)
    ab = vec.tile_zero(none)
    bb = vec.tile_zero(none)
    ra = none
    rb = none
    for p in range(begin, end):
        at = indices[p] * k
        a = vload8(factors, at, 8)
        b = vload8(factors, at + 8, k - 8)
        # The columns 8 to 15 with zeros from k on; four places, so that stores do not queue.
        tail = (p & 3) * 8
        vec.vstore(room, tail, b)
        if weighted:
            a = vec.vfma(weights[p], a, none)
            b = vec.vfma(weights[p], b, none)
        aa = vec.tile_fma(aa, factors, at, a)
        ab = vec.tile_fma(ab, factors, at, b)
        bb = vec.tile_fma(bb, room, tail, b)
        ra = vec.vfma(values[p], a, ra)
        rb = vec.vfma(values[p], b, rb)
    vec._add_to(gram, 0, aa)
    vec._add_to(gram, 8, ab)
    vec._add_to(gram, 136, bb)
    vec.vstore(rhs, 0, vec.vfma(one, ra, vload8(rhs, 0, 8)))
    vec.vstore(rhs, 8, vec.vfma(one, rb, vload8(rhs, 8, 8)))


@part
def _add_tiles(rows, starts, targets, n, x, y, step, gram, at, total):
    """Add the tile of the elements x on and the vectors at y, and the next one unless step is None.

    Return total + P_y^T targets; without targets, total as it is.
    """
    a = vec.tile_zero(total)
    b = vec.tile_zero(total)
    for p in range(n):
        v = vec.vload(rows, starts[p] + y)
        a = vec.tile_fma(a, rows, starts[p] + x, v)
        if step is not None:  # decided when this is compiled, as the next one
            b = vec.tile_fma(b, rows, starts[p] + x, vec.vload(rows, starts[p] + y + step))
        if targets is not None:
            total = vec.vfma(targets[p], v, total)
    vec._add_to(gram, at, a)
    if step is not None:
        vec._add_to(gram, at + vec.lanes_of(gram), b)
    return total


@part
def _add_rows(rows, starts, targets, n, step, gram, rhs):
    """Add the upper triangle of P^T P to gram and P^T targets to rhs; for wide registers.

    Row p of P, p < n: vectors from flat position starts[p] of `rows` on, `step` elements apart.
    Two tiles beside each other share the elements that are spread over vectors: a load less for
    every other product.
    """
    keep_small()
    n_rows, width = gram.shape
    lanes = vec.lanes_of(gram)
    for i in range(0, n_rows, TILE):
        first = i // lanes * lanes
        y = i // lanes * step
        x = y + i % lanes
        at = i * width + first
        total, done = vec.vload(rhs, first), first + (width - first) // lanes % 2 * lanes
        if done > first:
            total = _add_tiles(rows, starts, targets, n, x, y, None, gram, at, total)
        else:
            total = _add_tiles(rows, starts, targets, n, x, y, step, gram, at, total)
            done = first + 2 * lanes
        if i == first:  # of two tiles above each other, one adds to rhs
            vec.vstore(rhs, first, total)
        for j in range(done, width, 2 * lanes):
            right = j // lanes * step
            _add_tiles(rows, starts, None, n, x, right, step, gram, i * width + j, total)


@part
def add_rhs(panel, targets, n, rhs):
    """Add P^T targets to rhs, P the first n rows of the panel."""
    lanes = vec.lanes_of(panel)
    one = panel.dtype.type(1)
    for s in range(rhs.shape[0] // lanes):
        a0 = vec.vzero(panel)
        a1 = vec.vzero(panel)
        a2 = vec.vzero(panel)
        a3 = vec.vzero(panel)
        # Four chains hide the latency of the addition.
        for p in range(0, n - 3, 4):
            at = s * vec.slab_of(panel) + p * lanes
            a0 = vec.vfma(targets[p], vec.vload(panel, at), a0)
            a1 = vec.vfma(targets[p + 1], vec.vload(panel, at + lanes), a1)
            a2 = vec.vfma(targets[p + 2], vec.vload(panel, at + 2 * lanes), a2)
            a3 = vec.vfma(targets[p + 3], vec.vload(panel, at + 3 * lanes), a3)
        for p in range(n // 4 * 4, n):
            a0 = vec.vfma(targets[p], vec.vload(panel, s * vec.slab_of(panel) + p * lanes), a0)
        a0 = vec.vfma(one, a0, vec.vfma(one, a1, vec.vload(rhs, s * lanes)))
        vec.vstore(rhs, s * lanes, vec.vfma(one, a2, vec.vfma(one, a3, a0)))


@part
def panel_of_ratings(k, like):
    """Return a panel with its roots, its targets and where its rows start."""
    n = PANEL_ROWS
    roots, targets = vec.scratch(n, like), vec.scratch(n, like)
    for p in range(n):
        roots[p] = 1
    return vec.new_panel(k, like), roots, targets, vec.scratch(n, np.int64)


@part
def new_system(k, like):
    """Return scratch of a row's system: a panel and its like; gram, rhs, x, inverse, floor."""
    panel, gram = panel_of_ratings(k, like), vec.new_gram(k, like)
    rhs, x = vec.scratch(gram.shape[1], like), vec.scratch(gram.shape[1], like)
    return panel, gram, rhs, x, vec.scratch(gram.shape[0], like), vec.scratch(k, like)


@part
def add_ratings(ratings, factors, begin, end, panel, gram, rhs):
    """Add sum w v v^T and sum w r v over positions [begin, end) to gram and rhs.

    ratings: indices, values and weights, empty for ones; panel: with its roots, its targets and
    where its rows start.
    """
    keep_small()
    (indices, values, weights), (rows, roots, targets, starts) = ratings, panel
    k, lanes = factors.shape[1], vec.lanes_of(factors)
    if WIDE and 8 < k <= 16:
        _add_sixteen(factors, indices, values, weights, begin, end, rows, gram, rhs)
        return
    weighted = weights.shape[0] > 0
    size = k * factors.itemsize
    in_place = WIDE and not weighted and k % lanes == 0 and 0 < size <= _LONGEST
    most = min(_AT_A_TIME // size, PANEL_ROWS) if in_place else PANEL_ROWS
    source = factors if in_place else rows.reshape((1, rows.shape[0]))
    step = lanes if in_place else vec.slab_of(rows)
    for first in range(begin, end, most):
        n = min(most, end - first)
        for p in range(n):
            if weighted:
                roots[p] = np.sqrt(weights[first + p])
            targets[p] = roots[p] * values[first + p]
            starts[p] = indices[first + p] * k if in_place else p * lanes
        if not in_place:
            vec.load_panel(factors, indices[first : first + n], roots, n, rows)
        if WIDE:
            _add_rows(source, starts, targets, n, step, gram, rhs)
        else:
            vec.add_panel(rows, targets, n, gram, rhs)


@part
def start_gram(ridge, extra, width, gram):
    """Overwrite the upper blocks of gram with ridge + extra I, and zeros for further columns."""
    keep_small()
    k, lanes = ridge.shape[0], vec.lanes_of(gram)
    for r in range(width):
        for c in range(r // lanes * lanes, width):
            gram[r, c] = ridge[r, c] if r < k and c < k else 0.0
        if r < k:
            gram[r, r] += extra


@part
def rounding_of(k, like):
    """Return what rounding can leave of a pivot of 1: k eps, in the precision of `like`."""
    return like.dtype.type(k * (2.0**-23 if like.itemsize == 4 else 2.0**-52))


@part
def largest_and_floor(gram, k, rounding, floor):
    """Return the largest diagonal element; floor = what rounding alone can leave of a pivot."""
    largest = gram[0, 0]
    for c in range(k):
        floor[c] = rounding * gram[c, c]
        largest = max(largest, gram[c, c])
    return largest


@part
def _factor_blocks(gram, b, end, j, floor, inverse, rhs, y, n):
    """Factor rows [b, end) of n systems within the columns of one vector at j, as `cholesky`.

    A pivot waits for the one before, so that the systems take turns.
    """
    keep_small()
    n_rows, width = gram.shape[0] // n, gram.shape[1]
    one, none, definite = gram.dtype.type(1), gram.dtype.type(np.nan), True
    for r in range(b, end):
        for s in range(n):
            own = s * n_rows + r
            at = own * width + j
            pivot = gram[own, r]
            sound = pivot > floor[own]
            definite &= sound
            root = one / np.sqrt(pivot) if sound else none
            inverse[own] = root
            row = vec.vfma(root, vec.vload(gram, at), vec.vzero(gram))
            vec.vstore(gram, at, row)
            if rhs is not None:  # decided when this is compiled
                value, of = rhs[s * width + r] * root, s * width + j
                y[s * width + r] = value
                vec.vstore(rhs, of, vec.vfma(-value, row, vec.vload(rhs, of)))
            for below in range(r + 1, end):
                at += width
                vec.vstore(gram, at, vec.vfma(-gram[own, below], row, vec.vload(gram, at)))
    return definite


@part
def _finish_tile(gram, top, b, j, sums, inverse):
    """Overwrite a tile right of the diagonal with the factor's; sums: of the rows from top on."""
    width, own = gram.shape[1], top + b
    at = own * width + j
    tile = vec.tile_axpy(gram.dtype.type(-1), sums, vec.tile_load(gram, at, width, sums))
    tile = tile_solve(tile, gram, own * width + b, width, inverse, own)
    vec.tile_store(gram, at, width, tile)


@part
def rows_of(k):
    """Return the rows of a system of k unknowns: whole tiles."""
    return (k + TILE - 1) // TILE * TILE


@part
def cholesky(gram, k, floor, inverse, rhs, y):
    """Overwrite the upper triangle of gram with the factor U of gram = U^T U.

    Left-looking by blocks of TILE rows: the factored rows are a panel like any other. `inverse`
    gets 1 / U_rr, and has as many elements as gram has rows; y gets the solution of U^T y = rhs,
    which is spoilt, unless both are None. False if a pivot is not above its `floor`: that 1 / U_rr
    is NaN, and so are solutions with the factor. There may be several systems, one below the other
    in `gram`, and one after the other in vectors.
    """
    keep_small()
    width, n_rows, definite = gram.shape[1], rows_of(k), True
    n = gram.shape[0] // max(n_rows, 1)
    lanes = vec.lanes_of(gram)
    for b in range(0, k, TILE):
        first = b // lanes * lanes
        for s in range(n):
            start = s * n_rows * width
            at = start + b * width + first
            sums = vec.sum_tile(gram, b, width, start + b, start + first)
            tile = vec.tile_axpy(gram.dtype.type(-1), sums, vec.tile_load(gram, at, width, sums))
            vec.tile_store(gram, at, width, tile)
            if rhs is not None and b == first:
                total = vec.vload(rhs, s * width + b)
                for p in range(b):
                    above = vec.vload(gram, start + p * width + b)
                    total = vec.vfma(-y[s * width + p], above, total)
                vec.vstore(rhs, s * width + b, total)
        end = min(b + TILE, k)
        definite &= _factor_blocks(gram, b, end, first, floor, inverse, rhs, y, n)
        for s in range(n):
            top = s * n_rows
            at = top * width
            for j in range(first + lanes, width, lanes):
                sums = vec.sum_tile(gram, b, width, at + b, at + j)
                _finish_tile(gram, top, b, j, sums, inverse)
    return definite


@part
def substitute_forward(gram, k, inverse, rhs, out):
    """Put the solution of U^T y = rhs into out; rhs is spoilt."""
    width = gram.shape[1]
    lanes = vec.lanes_of(gram)
    for r in range(k):
        y = rhs[r] * inverse[r]
        out[r] = y
        for j in range(r // lanes * lanes, width, lanes):
            vec.vstore(rhs, j, vec.vfma(-y, vec.vload(gram, r * width + j), vec.vload(rhs, j)))


@part
def substitute_backward(gram, k, inverse, x):
    """Overwrite y in x (padded, zero beyond k) with the solution of U x = y, of all systems."""
    keep_small()
    width, n_rows = gram.shape[1], rows_of(k)
    n = gram.shape[0] // max(n_rows, 1)
    lanes = vec.lanes_of(gram)
    for b in range((k - 1) // lanes * lanes, -1, -lanes):
        end = min(b + lanes, k)
        # Contributions of the later blocks; the rows of a block do not wait for one another.
        for s in range(n):
            at = s * width
            for r in range(b, end):
                total, row = vec.vzero(gram), (s * n_rows + r) * width
                for j in range(b + lanes, width, lanes):
                    total = vec.vfma(vec.vload(gram, row + j), vec.vload(x, at + j), total)
                x[at + r] -= vec.vsum(total)
        for r in range(end - 1, b - 1, -1):
            for s in range(n):
                top, at = s * n_rows, s * width
                x[at + r] *= inverse[top + r]
                for above in range(b, r):
                    x[at + above] -= gram[top + above, r] * x[at + r]


@part
def solve_factored(gram, k, inverse, rhs, x):
    """Put the solution of U^T U x = rhs into x (padded, zero beyond k); rhs is spoilt.

    There is one system here, of more than k unknowns perhaps: the first k are solved alone.
    """
    substitute_forward(gram, k, inverse, rhs, x)
    substitute_backward(gram[: rows_of(k)], k, inverse, x)


if config.DISABLE_JIT:

    def keep_small():
        """Do nothing."""

    def vzero8(array):
        return np.zeros(8, array.dtype)

    def vload8(array, offset, count):
        found = np.zeros(8, array.dtype)
        there = array.reshape(-1)[offset : offset + min(count, 8)]
        found[: len(there)] = there
        return found

    def tile_solve(tile, upper, at, width, inverse, row):
        flat, rows = upper.reshape(-1), tile.copy()
        for r in range(len(rows)):
            rows[r] *= inverse[row + r]
            for below in range(r + 1, len(rows)):
                rows[below] -= flat[at + r * width + below] * rows[r]
        return rows
