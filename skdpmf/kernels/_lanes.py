"""Work on G rows of a factor matrix at once, for the kernel of stochastic gradient descent.

A *group* is G ratings of one item. Everything that there is once for each of its ratings stands in
one *lane*: its row number in a tuple of G integers, its error in a `Vector` of G numbers, and what
runs along the row, a chunk of 16 columns at a time, in a tuple of G `Vector`s. G is a type here,
the length of the tuples, so that all loops over lanes are unrolled and all lanes live in registers.

Why intrinsics: the loop vectoriser keeps no G accumulators in registers over a loop, and reduces
G dot products one by one. All is said in LLVM's portable vector types, as in `_vectors`. Tuples of
rows must not name a row twice, except a spare one in lanes without a rating: lanes read all rows
before they write any.
"""

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils, config
from numba.extending import intrinsic

from skdpmf.kernels import _vectors as vec
from skdpmf.kernels._vectors import Vector, _address, _fill, _fma, prefetch, vload, vstore, vsum
from skdpmf.kernels.jit_and_threads import jit_fast
from skdpmf.kernels.sgd import CHUNK

_VECTOR = Vector(types.float32)
# Whether numba compiles for a CPU with vectors that were measured. With groups of 8 the inner loop
# works on some 27 vectors of 64 bytes at once, which fit the 32 registers of AVX-512. Compiled for
# AVX2 it was still faster than plain loops, by a fifth and more. Other CPUs get the loops.
USE_VECTORS = not config.DISABLE_JIT and "+avx2" in vec._FEATURES.split(",")


def _vectors(count):
    return types.UniTuple(_VECTOR, count)


def _data(context, builder, signature, args, n):
    """Pointer to the first element of argument n, an array."""
    return context.make_array(signature.args[n])(context, builder, args[n]).data


def _unpack(builder, values):
    return list(cgutils.unpack_tuple(builder, values))


def _fold(builder, vectors, width):
    """Add the two halves of every piece of `width` elements; two vectors become one.

    Each vector holds pieces, of one lane each, side by side; an odd last one is folded alone.
    """
    a, b = vectors[0], vectors[-1]
    n, half = a.type.count, width // 2
    starts = range(0, n * len(vectors), width)
    lower = [start + place for start in starts for place in range(half)]
    upper = [place + half for place in lower]
    return builder.fadd(vec._pick(builder, a, b, lower), vec._pick(builder, a, b, upper))


@intrinsic
def group_rows(typingctx, users, p, stop, start, spare, group):
    """Return rows start + users[p], start + users[p + 1], ..., and `spare` from `stop` on.

    Users are read beyond `stop` too, up to the lanes of `group` (a tuple of integers, which gives
    the number of lanes only).
    """

    def codegen(context, builder, signature, args):
        data = _data(context, builder, signature, args, 0)
        _, first, end, base, absent, _ = args
        rows = []
        for lane in range(group.count):
            place = builder.add(first, ir.Constant(vec._INT64, lane))
            user = builder.zext(builder.load(builder.gep(data, [place])), vec._INT64)
            rated = builder.icmp_signed("<", place, end)
            rows.append(builder.select(rated, builder.add(base, user), absent))
        return context.make_tuple(builder, group, rows)

    return group(users, *[types.int64] * 4, group), codegen


@intrinsic
def group_offsets(typingctx, rows, stride):
    """Return the flat offsets of rows that are `stride` elements apart."""

    def codegen(context, builder, signature, args):
        offsets = [builder.mul(row, args[1]) for row in _unpack(builder, args[0])]
        return context.make_tuple(builder, rows, offsets)

    return rows(rows, types.int64), codegen


@intrinsic
def zero_products(typingctx, group):
    """Return a zero vector for each lane."""

    def codegen(context, builder, signature, args):
        zero = ir.Constant(context.get_value_type(_VECTOR), None)
        return context.make_tuple(builder, _vectors(group.count), [zero] * group.count)

    return _vectors(group.count)(group), codegen


@intrinsic
def add_products(typingctx, products, U, offsets, c, v):
    """Return products + u v, by lane and column; u = the chunk at column c of each row."""

    def codegen(context, builder, signature, args):
        sums = []
        for total, offset in zip(*(_unpack(builder, args[n]) for n in (0, 2)), strict=True):
            place = builder.add(offset, args[3])
            u = builder.load(_address(context, builder, U, args[1], place), align=4)
            sums.append(_fma(builder, u, args[4], total))
        return context.make_tuple(builder, products, sums)

    return products(products, U, offsets, types.int64, v), codegen


@intrinsic
def lane_totals(typingctx, products):
    """Return the sum over the columns, in each lane.

    A transposing tree: G vectors take G - 1 additions until one is left, and log2(16 / G) more.
    """

    def codegen(context, builder, signature, args):
        vectors, width = _unpack(builder, args[0]), CHUNK
        while width > 1:
            pairs = [vectors[n : n + 2] for n in range(0, len(vectors), 2)]
            vectors = [_fold(builder, pair, width) for pair in pairs]
            width //= 2
        return vectors[0]

    return Vector(types.float32, products.count)(products), codegen


@intrinsic
def group_errors(typingctx, ratings, p, stop, dots, user_bias, rows, item_bias, bound):
    """Return rating - dot product - bias of the user - bias of the item; 0 from `stop` on.

    `user_bias` may be None: there are none. With a `bound`, which may be None, the result is 0
    also where the prediction is not within (-bound, bound).
    """

    def codegen(context, builder, signature, args):
        kind, count = args[3].type, dots.count
        given = builder.gep(_data(context, builder, signature, args, 0), [args[1]])
        error = rating = builder.load(builder.bitcast(given, kind.as_pointer()), align=4)
        # The dot products come last: only they must wait for the update before.
        parts = [_fill(builder, kind, args[6]), args[3]]
        if user_bias is not types.none:
            parts.insert(0, _gather(context, builder, signature, args, 4))
        for part in parts:
            error = builder.fsub(error, part)
        numbers = ir.VectorType(vec._INT64, count)
        left = _fill(builder, numbers, builder.sub(args[2], args[1]))
        moves = builder.icmp_signed("<", ir.Constant(numbers, list(range(count))), left)
        if bound is not types.none:
            high = _fill(builder, kind, args[7])
            moves = builder.and_(moves, _within(builder, builder.fsub(rating, error), high))
        return builder.select(moves, error, ir.Constant(kind, None))

    kinds = ratings, types.int64, types.int64, dots, user_bias, rows, types.float32, bound
    return dots(*kinds), codegen


def _within(builder, value, high):
    """Whether -high < value < high, by lane; not for NaN."""
    low = builder.fsub(ir.Constant(high.type, [-0.0] * high.type.count), high)
    above = builder.fcmp_ordered(">", value, low)
    return builder.and_(above, builder.fcmp_ordered("<", value, high))


def _gather(context, builder, signature, args, n):
    """Elements of argument n, an array, at the rows of argument n + 1."""
    data, rows = _data(context, builder, signature, args, n), _unpack(builder, args[n + 1])
    found = ir.Constant(ir.VectorType(ir.FloatType(), len(rows)), ir.Undefined)
    for lane, row in enumerate(rows):
        element = builder.load(builder.gep(data, [row]))
        found = builder.insert_element(found, element, ir.Constant(vec._INT32, lane))
    return found


@intrinsic
def no_squares(typingctx, group):
    """Return a float64 zero for each lane."""
    lanes = Vector(types.float64, group.count)

    def codegen(context, builder, signature, args):
        return ir.Constant(context.get_value_type(lanes), None)

    return lanes(group), codegen


@intrinsic
def add_squares(typingctx, total, lanes):
    """Return total + lanes^2, in float64."""

    def codegen(context, builder, signature, args):
        wide = builder.fpext(args[1], args[0].type)
        return _fma(builder, wide, wide, args[0])

    return total(total, lanes), codegen


@intrinsic
def clip_lanes(typingctx, lanes, bound):
    """Return the lanes clipped to [-bound, bound]; NaN stays NaN.

    Errors are rarely outside: a branch, foreseen, does not make the update wait for the clipping.
    """

    def codegen(context, builder, signature, args):
        lane, high = args[0], _fill(builder, args[0].type, args[1])
        low = _fill(builder, high.type, builder.fsub(ir.Constant(args[1].type, -0.0), args[1]))
        ends = (">", high), ("<", low)
        above, below = (builder.fcmp_ordered(sign, lane, end) for sign, end in ends)
        outside = builder.bitcast(builder.or_(above, below), ir.IntType(lanes.count))
        result = cgutils.alloca_once_value(builder, lane)
        with builder.if_then(cgutils.is_not_null(builder, outside), likely=False):
            clipped = builder.select(below, low, builder.select(above, high, lane))
            builder.store(clipped, result)
        return builder.load(result)

    return lanes(lanes, types.float32), codegen


@intrinsic
def weigh(typingctx, lanes, weights, rows):
    """Return lanes * the weight of each row; `weights` may be None: all 1."""

    def codegen(context, builder, signature, args):
        if weights is types.none:
            return args[0]
        return builder.fmul(args[0], _gather(context, builder, signature, args, 1))

    return lanes(lanes, weights, rows), codegen


@intrinsic
def broadcast(typingctx, lanes, scale):
    """Return for each lane a vector with scale * lane everywhere."""

    def codegen(context, builder, signature, args):
        scaled = builder.fmul(args[0], _fill(builder, args[0].type, args[1]))
        filled = [vec._pick(builder, scaled, scaled, [lane] * CHUNK) for lane in range(lanes.count)]
        return context.make_tuple(builder, _vectors(lanes.count), filled)

    return _vectors(lanes.count)(lanes, types.float32), codegen


@intrinsic
def update_biases(typingctx, bias, rows, errors, decay, step):
    """Write decay * b + step * error to the element b of each row, if `bias` is not None."""

    def codegen(context, builder, signature, args):
        if bias is types.none:
            return context.get_dummy_value()
        old, kind = _gather(context, builder, signature, args, 0), args[2].type
        kept = builder.fmul(old, _fill(builder, kind, args[3]))
        new = _fma(builder, args[2], _fill(builder, kind, args[4]), kept)
        data = _data(context, builder, signature, args, 0)
        for lane, row in enumerate(_unpack(builder, args[1])):
            element = builder.extract_element(new, ir.Constant(vec._INT32, lane))
            builder.store(element, builder.gep(data, [row]))
        return context.get_dummy_value()

    return types.void(bias, rows, errors, types.float32, types.float32), codegen


@intrinsic
def update_rows(typingctx, U, offsets, c, v, weights, shrink, item_shrink, n):
    """Write (1 - shrink) * u + weight * v to the chunk u at column c of each row.

    Returns (1 - n item_shrink) * v + sum over lanes of weight * u, with u as it was before.
    """

    def codegen(context, builder, signature, args):
        item, lane_weights = args[3], _unpack(builder, args[4])
        one = ir.Constant(item.type, [1.0] * CHUNK)
        user_decay = builder.fsub(one, args[5])
        kept = builder.fsub(one, builder.fmul(_fill(builder, item.type, args[7]), args[6]))
        places = [
            _address(context, builder, U, args[0], builder.add(offset, args[2]))
            for offset in _unpack(builder, args[1])
        ]
        old = [builder.load(place, align=4) for place in places]
        new_item = builder.fmul(kept, item)
        for weight, u in zip(lane_weights, old, strict=True):
            new_item = _fma(builder, weight, u, new_item)
        for weight, u, place in zip(lane_weights, old, places, strict=True):
            new = _fma(builder, weight, item, builder.fmul(user_decay, u))
            builder.store(new, place, align=4)
        return new_item

    return v(U, offsets, types.int64, v, weights, v, v, types.float32), codegen


@jit_fast
def update_lanes(model, user_bias, batch, numbers, shrinks, user_weights, bound, group):
    """`update_batch` with one rating in each lane; `group` is a tuple of G integers.

    The update of a group and the dot products of the next one are one pass over the columns: a
    row comes from L2 once, and the loads of the next rows overlap the arithmetic of these. The row
    of the item after the next is asked for meanwhile, as it comes from further away.
    """
    U, V, item_bias, start, spare, width = model
    items, indptr, users, ratings, run_start, run_stop = batch
    step, bias_step, bias_shrink, clip = numbers
    stride = V.shape[1]
    one, squares = np.float32(1), no_squares(group)
    # The pass starts with an empty group before the first run.
    run, item, p = run_start - 1, items[run_start], indptr[run_start]
    stop, bias = p, item_bias[item]
    rows = group_rows(users, p, stop, start, spare, group)
    offsets = group_offsets(rows, stride)
    products = zero_products(group)
    while run < run_stop:
        next_run, next_item, next_p, next_stop = run, item, p + len(group), stop
        if next_p >= stop:
            next_run, next_p = run + 1, stop
            if next_run < run_stop:
                next_item, next_stop = items[next_run], indptr[next_run + 1]
        next_rows = group_rows(users, next_p, next_stop, start, spare, group)
        next_offsets = group_offsets(next_rows, stride)
        errors = group_errors(ratings, p, stop, lane_totals(products), user_bias, rows, bias, bound)
        squares = add_squares(squares, errors)
        errors = weigh(clip_lanes(errors, clip), user_weights, rows)
        update_biases(user_bias, rows, errors, one - bias_shrink, bias_step)
        n = np.float32(min(len(group), stop - p))
        bias = (one - n * bias_shrink) * bias + bias_step * vsum(errors)
        weights = broadcast(errors, step)
        products, ahead = zero_products(group), items[min(next_run + 1, run_stop - 1)] * stride
        for c in range(0, width, CHUNK):
            prefetch(V, ahead + c)
            v = vload(V, item * stride + c)
            shrink, item_shrink = vload(shrinks, c), vload(shrinks, width + c)
            v = update_rows(U, offsets, c, v, weights, shrink, item_shrink, n)
            vstore(V, item * stride + c, v)
            products = add_products(products, U, next_offsets, c, vload(V, next_item * stride + c))
        if next_run > run:
            item_bias[item] = bias
            bias = item_bias[next_item]
        run, item, p, stop = next_run, next_item, next_p, next_stop
        rows, offsets = next_rows, next_offsets
    return vsum(squares)
