"""Vectors of 64 bytes (16 float32 or 8 float64) for the register-blocked inner loops.

The loop vectoriser keeps no block of accumulators in registers over a loop. These intrinsics say
so directly, in LLVM's portable vector types: LLVM splits a vector to fit the registers of the
machine that it compiles for. With NUMBA_DISABLE_JIT=1 the same names are plain NumPy.

Blocked rank-n updates of one small Gram matrix at a time.

A Gram matrix is kept as the upper triangle of an array whose rows are padded to whole vectors;
below the diagonal blocks nothing is defined. A panel holds the rows of a rank-n update in slabs
one vector wide, PANEL_ROWS vectors one after the other, so that a slab is read as one stream; it
is stored flat and its padded columns are zero.

Loops over rows stand inside these functions, not around calls to them: every array passed to a
function that is not inlined costs an atomic count of references, shared by all threads.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from llvmlite import binding, ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils, config
from numba.core.codegen import get_host_cpu_features
from numba.core.errors import TypingError
from numba.extending import intrinsic, models, register_model
from numba.np.arrayobj import populate_array

from skdpmf.kernels.jit_and_threads import jit, part

_FEATURES = get_host_cpu_features() if config.CPU_FEATURES is None else config.CPU_FEATURES
# Whether there are 32 registers of 64 bytes.
WIDE = "+avx512f" in _FEATURES
# Rows of one register tile, of 64 bytes each: 8 sums hide the latency of two units of that width;
# where vectors are shorter, 4 rows fill half of the registers or a little more.
TILE = 8 if WIDE else 4
# Rows of a panel: two slabs (8 KiB each) stay in the first-level cache.
PANEL_ROWS = 128


@part
def lanes_of(array):
    """Return the elements of one vector."""
    return VECTOR_BYTES // array.itemsize


@part
def _slabs(k, like):
    return (k + lanes_of(like) - 1) // lanes_of(like)


@part
def slab_of(panel):
    """Return the elements from one slab of a panel to the next.

    A vector more than the rows need: columns of one row stand in different sets of the caches.
    """
    return (PANEL_ROWS + 1) * lanes_of(panel)


@part
def new_panel(k, like):
    """Return a zero panel for rows of length k."""
    return scratch(_slabs(k, like) * slab_of(like), like)


@part
def new_gram(k, like):
    """Return a zero Gram matrix, rows padded to tiles and columns to vectors."""
    n_rows = (k + TILE - 1) // TILE * TILE
    return scratch((n_rows, _slabs(k, like) * lanes_of(like)), like)


@part
def load_panel(factors, rows, roots, n, panel):
    """Row p of the panel = roots[p] * factors[rows[p]], p < n."""
    k = factors.shape[1]
    lanes = lanes_of(panel)
    whole = k // lanes * lanes
    for p in range(n):
        at = p * lanes
        source = rows[p] * k
        for c in range(0, whole, lanes):
            vstore(panel, at, vfma(roots[p], vload(factors, source + c), vzero(panel)))
            at += slab_of(panel)
        for c in range(k - whole):
            panel[at + c] = roots[p] * factors[rows[p], whole + c]


@part
def sum_tile(flat, n, stride, at_i, at_j):
    """Return the tile sum_p x_p y_p^T, p < n.

    x_p are TILE elements from at_i + p * stride and y_p one vector from at_j + p * stride of
    `flat`.
    """
    tile = tile_zero(vzero(flat))
    for p in range(n):
        tile = tile_fma(tile, flat, at_i + p * stride, vload(flat, at_j + p * stride))
    return tile


@part
def _add_to(gram, at, tile):
    """Add a tile to the gram's at flat position `at`."""
    width, one = gram.shape[1], gram.dtype.type(1)
    tile_store(gram, at, width, tile_axpy(one, tile, tile_load(gram, at, width, tile)))


@part
def add_panel(panel, targets, n, gram, rhs):
    """Add the upper triangle of P^T P to gram and P^T targets to rhs, P the first n panel rows."""
    n_rows, width = gram.shape
    lanes, one = lanes_of(panel), panel.dtype.type(1)
    for j in range(0, width, lanes):
        y = j // lanes * slab_of(panel)
        # The first tile on the diagonal has the right-hand side as one more row.
        tile = tile_zero(vzero(panel))
        total = vzero(panel)
        for p in range(0, n * lanes, lanes):
            v = vload(panel, y + p)
            tile = tile_fma(tile, panel, y + p, v)
            total = vfma(targets[p // lanes], v, total)
        vstore(rhs, j, vfma(one, total, vload(rhs, j)))
        _add_to(gram, j * width + j, tile)
        for i in range(0, min(j + lanes, n_rows), TILE):
            if i != j:
                x = i // lanes * slab_of(panel) + i % lanes
                _add_to(gram, i * width + j, sum_tile(panel, n, lanes, x, y))


@part
def pack_lower(gram, k, out):
    """Write the lower triangle row by row: out[c (c + 1) / 2 + d] = gram_cd, d <= c."""
    for c in range(k):
        for d in range(c + 1):
            out[c * (c + 1) // 2 + d] = gram[d, c]


VECTOR_BYTES = 64


class Vector(types.Type):
    """Numba type of a vector of 64 bytes, or so many elements; lives in registers only."""

    def __init__(self, dtype, count=0):
        self.dtype, self.count = dtype, count or VECTOR_BYTES // (dtype.bitwidth // 8)
        super().__init__(name=f"Vector({dtype}, {self.count})")


@register_model(Vector)
class _VectorModel(models.PrimitiveModel):
    def __init__(self, manager, vector):
        scalar = manager[vector.dtype].get_value_type()
        super().__init__(manager, vector, ir.VectorType(scalar, vector.count))


def _address(context, builder, array_type, array, offset, count=0):
    """Pointer to the vector that starts at element `offset` of a contiguous array."""
    if array_type.layout != "C":
        raise TypingError("kernels need C-contiguous arrays; pass numpy.ascontiguousarray(array).")
    data = context.make_array(array_type)(context, builder, array).data
    vector = context.get_value_type(Vector(array_type.dtype, count))
    return builder.bitcast(builder.gep(data, [offset]), vector.as_pointer())


def _fill(builder, kind, scalar):
    """Vector of the LLVM type `kind` with `scalar` everywhere."""
    nothing = ir.Constant(kind, ir.Undefined)
    first = builder.insert_element(nothing, scalar, ir.Constant(ir.IntType(32), 0))
    everywhere = ir.Constant(ir.VectorType(ir.IntType(32), kind.count), None)
    return builder.shuffle_vector(first, nothing, everywhere)


def _pick(builder, a, b, places):
    """Vector of the elements of `a` and `b`, one after the other, at `places`."""
    mask = ir.Constant(ir.VectorType(ir.IntType(32), len(places)), list(places))
    return builder.shuffle_vector(a, b, mask)


def _call(builder, name, result, *args):
    """Call an LLVM intrinsic function."""
    kind = ir.FunctionType(result, [arg.type for arg in args])
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), args)


def _fma(builder, a, b, c):
    """Product a * b + c of vectors, fused where the machine can."""
    bits = 64 if isinstance(a.type.element, ir.DoubleType) else 32
    return _call(builder, f"llvm.fmuladd.v{a.type.count}f{bits}", a.type, a, b, c)


@intrinsic
def scratch(typingctx, shape, like):
    """Return zeros of the dtype of `like` on a vector boundary: vectors split no cache line.

    It compiles sooner than numpy's own functions.
    """
    plain = isinstance(shape, types.Integer)
    array_type = types.Array(like.dtype, 1 if plain else len(shape), "C")

    def codegen(context, builder, signature, args):
        sizes = [args[0]] if plain else cgutils.unpack_tuple(builder, args[0])
        itemsize = context.get_constant(types.intp, like.dtype.bitwidth // 8)
        strides: list[Any] = []
        n_bytes = itemsize
        for size in reversed(sizes):
            strides.insert(0, n_bytes)
            n_bytes = builder.mul(n_bytes, size)
        align = ir.Constant(ir.IntType(32), VECTOR_BYTES)
        owner = context.nrt.meminfo_alloc_aligned(builder, n_bytes, align)
        data = context.nrt.meminfo_data(builder, owner)
        cgutils.memset(builder, data, n_bytes, 0)
        array = context.make_array(array_type)(context, builder)
        data = builder.bitcast(data, array.data.type)
        terms = {"shape": sizes, "strides": strides, "itemsize": itemsize, "meminfo": owner}
        populate_array(array, data=data, **terms)
        return array._getvalue()

    sizes_type = types.intp if plain else types.UniTuple(types.intp, len(shape))
    return array_type(sizes_type, like), codegen


@intrinsic
def vzero(typingctx, array):
    """Return the zero vector of the array's dtype."""
    vector_type = Vector(array.dtype)

    def codegen(context, builder, signature, args):
        return ir.Constant(context.get_value_type(vector_type), None)

    return vector_type(array), codegen


@intrinsic
def vload(typingctx, array, offset):
    """Return the vector at flat `offset` of a C-contiguous array."""

    def codegen(context, builder, signature, args):
        address = _address(context, builder, signature.args[0], args[0], args[1])
        return builder.load(address, align=array.dtype.bitwidth // 8)

    return Vector(array.dtype)(array, types.intp), codegen


@intrinsic
def vfma(typingctx, a, b, c):
    """Return a * b + c, fused where the machine can; `a` may be a scalar."""

    def codegen(context, builder, signature, args):
        first = args[0] if isinstance(a, Vector) else _fill(builder, args[1].type, args[0])
        return _fma(builder, first, args[1], args[2])

    return c(a if isinstance(a, Vector) else c.dtype, b, c), codegen


@intrinsic
def vsum(typingctx, vector):
    """Return the sum of a vector's elements, as a balanced tree."""

    def codegen(context, builder, signature, args):
        half = args[0]
        while half.type.count > 1:
            n = half.type.count // 2
            half = builder.fadd(*(_pick(builder, half, half, range(at, at + n)) for at in (0, n)))
        return builder.extract_element(half, ir.Constant(ir.IntType(32), 0))

    return vector.dtype(vector), codegen


@intrinsic
def vstore(typingctx, array, offset, vector):
    """Write the vector to flat `offset` of a C-contiguous array."""

    def codegen(context, builder, signature, args):
        address = _address(context, builder, signature.args[0], args[0], args[1], vector.count)
        builder.store(args[2], address, align=array.dtype.bitwidth // 8)
        return context.get_dummy_value()

    return types.void(array, types.intp, vector), codegen


def _tile_rows(context, builder, array_type, args, tile):
    """Pointers to the rows of a tile: args are an array, a position and the distance of rows."""
    (array, at, width), n = args, tile.dtype.count
    rows = (builder.mul(width, ir.Constant(width.type, r)) for r in range(tile.count))
    starts = [builder.add(at, row) for row in rows]
    return [_address(context, builder, array_type, array, start, n) for start in starts]


@intrinsic
def tile_zero(typingctx, like):
    """Return a tile: TILE zero vectors of the type of `like`."""
    tile = types.UniTuple(like, TILE)

    def codegen(context, builder, signature, args):
        zero = ir.Constant(context.get_value_type(like), None)
        return context.make_tuple(builder, tile, [zero] * tile.count)

    return tile(like), codegen


@intrinsic
def tile_fma(typingctx, tile, array, x, y):
    """Return tile + x y^T; x = the elements of `array` from flat position `x` on."""

    def codegen(context, builder, signature, args):
        data = context.make_array(array)(context, builder, args[1]).data
        sums = []
        for r, total in enumerate(cgutils.unpack_tuple(builder, args[0])):
            place = builder.add(args[2], ir.Constant(args[2].type, r))
            scalar = builder.load(builder.gep(data, [place]))
            sums.append(_fma(builder, _fill(builder, total.type, scalar), args[3], total))
        return context.make_tuple(builder, tile, sums)

    return tile(tile, array, types.intp, y), codegen


@intrinsic
def tile_axpy(typingctx, scale, a, b):
    """Return scale * a + b."""

    def codegen(context, builder, signature, args):
        rows = [list(cgutils.unpack_tuple(builder, args[n])) for n in (1, 2)]
        factor = _fill(builder, rows[0][0].type, args[0])
        sums = [_fma(builder, factor, *pair) for pair in zip(*rows, strict=True)]
        return context.make_tuple(builder, a, sums)

    return a(a.dtype.dtype, a, b), codegen


@intrinsic
def tile_load(typingctx, array, at, width, tile):
    """Return a tile of the shape of `tile`: vectors `width` elements apart from `at` on."""

    def codegen(context, builder, signature, args):
        align = array.dtype.bitwidth // 8
        rows = _tile_rows(context, builder, array, args[:3], tile)
        loaded = [builder.load(row, align=align) for row in rows]
        return context.make_tuple(builder, tile, loaded)

    return tile(array, types.intp, types.intp, tile), codegen


@intrinsic
def tile_store(typingctx, array, at, width, tile):
    """Write the vectors of a tile, `width` elements apart from `at` on."""

    def codegen(context, builder, signature, args):
        align = array.dtype.bitwidth // 8
        values = cgutils.unpack_tuple(builder, args[3])
        rows = _tile_rows(context, builder, array, args[:3], tile)
        for row, value in zip(rows, values, strict=True):
            builder.store(value, row, align=align)
        return context.get_dummy_value()

    return types.void(array, types.intp, types.intp, tile), codegen


@intrinsic
def prefetch(typingctx, array, offset):
    """Ask for the cache line at a flat offset, for the second-level cache."""

    def codegen(context, builder, signature, args):
        pointer = ir.IntType(8).as_pointer()
        place = builder.bitcast(_address(context, builder, array, args[0], args[1]), pointer)
        # to be read; keep it in the second level and below; data
        how = [ir.Constant(ir.IntType(32), n) for n in (0, 2, 1)]
        _call(builder, "llvm.prefetch.p0i8", ir.VoidType(), place, *how)
        return context.get_dummy_value()

    return types.void(array, types.int64), codegen


if config.DISABLE_JIT:

    def scratch(shape, like):
        return np.zeros(shape, like.dtype if isinstance(like, np.ndarray) else like)

    def prefetch(array, offset):
        """Do nothing."""

    def vzero(array):
        return np.zeros(lanes_of(array), array.dtype)

    def vload(array, offset):
        return array.reshape(-1)[offset : offset + lanes_of(array)].copy()

    def vfma(a, b, c):
        return a * b + c

    def vsum(vector):
        return vector.sum()

    def vstore(array, offset, vector):
        array.reshape(-1)[offset : offset + len(vector)] = vector

    def tile_zero(like):
        return np.zeros((TILE, len(like)), like.dtype)

    def tile_fma(tile, array, x, y):
        return tile + np.outer(array.reshape(-1)[x : x + len(tile)], y)

    def tile_axpy(scale, a, b):
        return scale * a + b

    def _tile_view(array, at, width, tile):
        places = at + width * np.arange(tile.shape[0])[:, None] + np.arange(tile.shape[1])
        return array.reshape(-1), places

    def tile_load(array, at, width, tile):
        flat, places = _tile_view(array, at, width, tile)
        return flat[places]

    def tile_store(array, at, width, tile):
        flat, places = _tile_view(array, at, width, tile)
        flat[places] = tile


# Flushing denormal numbers to zero, in the calling thread
#
# A denormal is a float below the smallest normal one, 1.2e-38 in float32. Factors that a penalty
# shrinks get there, and the arithmetic on them takes a CPU a hundred cycles or more. With the flush
# bits of its floating-point control register set, a thread reads and writes 0 instead.
#
# The register belongs to a thread, and a new thread inherits it: other threads that exist do not
# see a change, and kernels that run in this one are compiled as ever. Without the JIT, and on CPUs
# other than x86-64 and 64-bit ARM, all of this does nothing. On ARM only the machine code is
# checked, not its effect.

_INT32, _INT64 = ir.IntType(32), ir.IntType(64)
# x86: MXCSR, results (0x8000, FTZ) and operands (0x0040, DAZ). ARM: FPCR, both at once (FZ).
_FLUSH_BITS = {"x86_64": 0x8040, "aarch64": 1 << 24, "arm64": 1 << 24}
# Architecture that the process runs as; the machine's may differ, as an emulator may be between.
_ARCHITECTURE = binding.get_process_triple().split("-")[0]
_BITS = _FLUSH_BITS.get(_ARCHITECTURE, 0)

CAN_FLUSH = _BITS != 0 and not config.DISABLE_JIT


@intrinsic
def _read_control(typingctx):
    """Return the floating-point control register, as int64."""

    def codegen(context, builder, signature, args):
        if _ARCHITECTURE != "x86_64":
            return _call(builder, "llvm.aarch64.get.fpcr", _INT64)
        word = cgutils.alloca_once(builder, _INT32)
        address = builder.bitcast(word, ir.IntType(8).as_pointer())
        _call(builder, "llvm.x86.sse.stmxcsr", ir.VoidType(), address)
        return builder.zext(builder.load(word), _INT64)

    return types.int64(), codegen


@intrinsic
def _write_control(typingctx, control):
    """Set the floating-point control register."""

    def codegen(context, builder, signature, args):
        if _ARCHITECTURE != "x86_64":
            _call(builder, "llvm.aarch64.set.fpcr", ir.VoidType(), args[0])
            return context.get_dummy_value()
        word = cgutils.alloca_once_value(builder, builder.trunc(args[0], _INT32))
        address = builder.bitcast(word, ir.IntType(8).as_pointer())
        _call(builder, "llvm.x86.sse.ldmxcsr", ir.VoidType(), address)
        return context.get_dummy_value()

    return types.void(types.int64), codegen


@jit
def _swap_bits(bits: int) -> int:
    """Set exactly these of the flush bits, leave all other bits, return the flush bits before."""
    control = _read_control()
    _write_control((control & ~_BITS) | (bits & _BITS))
    return control & _BITS


def set_flush_to_zero(on: bool | int) -> int:
    """Choose whether the calling thread takes denormal numbers for zero.

    To be called from Python only: a compiler may move arithmetic across a call from compiled code.

    on: True to flush both operands and results, False to flush neither, or a state that an earlier
    call returned, to go back to it exactly. Result: the state before: 0 if nothing was flushed;
    always 0 where `CAN_FLUSH` is False.
    """
    # 1 is no state of either register, so that it can stand for True.
    return int(_swap_bits(_BITS if on == 1 else int(on))) if CAN_FLUSH else 0


@contextmanager
def flushed_denormals() -> Iterator[None]:
    """Flush denormals to zero in the calling thread, and go back to the state found at the end."""
    before = set_flush_to_zero(True)
    try:
        yield
    finally:
        set_flush_to_zero(before)
