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

from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils, config
from numba.core.errors import TypingError
from numba.extending import intrinsic, models, register_model

from skdpmf.kernels.jit_and_threads import jit

__all__ = [
    "PANEL_ROWS",
    "TILE",
    "VECTOR_BYTES",
    "add_panel",
    "add_rhs",
    "add_tile",
    "lanes_of",
    "load_panel",
    "new_gram",
    "new_panel",
    "pack_lower",
    "prefetch",
    "scratch",
    "vfma",
    "vload",
    "vstore",
    "vsum",
    "vzero",
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


VECTOR_BYTES = 64


class Vector(types.Type):
    """Numba type of a vector of 64 bytes, or so many elements; lives in registers only."""

    def __init__(self, dtype: Any, count: int = 0) -> None:
        self.dtype, self.count = dtype, count or VECTOR_BYTES // (dtype.bitwidth // 8)
        super().__init__(name=f"Vector({dtype}, {self.count})")


@register_model(Vector)
class _VectorModel(models.PrimitiveModel):
    def __init__(self, manager: Any, vector: Any) -> None:
        scalar = manager[vector.dtype].get_value_type()
        super().__init__(manager, vector, ir.VectorType(scalar, vector.count))


def _address(context: Any, builder: Any, array_type: Any, array: Any, offset: Any) -> Any:
    """Pointer to the vector that starts at element `offset` of a contiguous array."""
    if array_type.layout != "C":
        raise TypingError("kernels need C-contiguous arrays; pass numpy.ascontiguousarray(array).")
    data = context.make_array(array_type)(context, builder, array).data
    vector = context.get_value_type(Vector(array_type.dtype))
    return builder.bitcast(builder.gep(data, [offset]), vector.as_pointer())


def _fill(builder: Any, kind: Any, scalar: Any) -> Any:
    """Vector of the LLVM type `kind` with `scalar` everywhere."""
    nothing = ir.Constant(kind, ir.Undefined)
    first = builder.insert_element(nothing, scalar, ir.Constant(ir.IntType(32), 0))
    everywhere = ir.Constant(ir.VectorType(ir.IntType(32), kind.count), None)
    return builder.shuffle_vector(first, nothing, everywhere)


def _call(builder: Any, name: str, result: Any, *args: Any) -> Any:
    """Call an LLVM intrinsic function."""
    kind = ir.FunctionType(result, [arg.type for arg in args])
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), args)


def _fma(builder: Any, a: Any, b: Any, c: Any) -> Any:
    """Product a * b + c of vectors, fused where the machine can."""
    bits = 64 if isinstance(a.type.element, ir.DoubleType) else 32
    return _call(builder, f"llvm.fmuladd.v{a.type.count}f{bits}", a.type, a, b, c)


@intrinsic
def vzero(typingctx: Any, array: Any) -> Any:
    """Return the zero vector of the array's dtype."""
    vector_type = Vector(array.dtype)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return ir.Constant(context.get_value_type(vector_type), None)

    return vector_type(array), codegen


@intrinsic
def vload(typingctx: Any, array: Any, offset: Any) -> Any:
    """Return the vector at flat `offset` of a C-contiguous array."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        address = _address(context, builder, signature.args[0], args[0], args[1])
        return builder.load(address, align=array.dtype.bitwidth // 8)

    return Vector(array.dtype)(array, types.intp), codegen


@intrinsic
def vfma(typingctx: Any, a: Any, b: Any, c: Any) -> Any:
    """Return a * b + c, fused where the machine can; `a` may be a scalar."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        first = args[0] if isinstance(a, Vector) else _fill(builder, args[1].type, args[0])
        return _fma(builder, first, args[1], args[2])

    return c(a if isinstance(a, Vector) else c.dtype, b, c), codegen


@intrinsic
def vsum(typingctx: Any, vector: Any) -> Any:
    """Return the sum of a vector's elements, as a balanced tree."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        half = args[0]
        while half.type.count > 1:
            n = half.type.count // 2
            parts = [
                builder.shuffle_vector(
                    half,
                    ir.Constant(half.type, ir.Undefined),
                    ir.Constant(ir.VectorType(ir.IntType(32), n), list(range(at, at + n))),
                )
                for at in (0, n)
            ]
            half = builder.fadd(*parts)
        return builder.extract_element(half, ir.Constant(ir.IntType(32), 0))

    return vector.dtype(vector), codegen


@intrinsic
def vstore(typingctx: Any, array: Any, offset: Any, vector: Any) -> Any:
    """Write the vector to flat `offset` of a C-contiguous array."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        address = _address(context, builder, signature.args[0], args[0], args[1])
        builder.store(args[2], address, align=array.dtype.bitwidth // 8)
        return context.get_dummy_value()

    return types.void(array, types.intp, vector), codegen


@intrinsic
def prefetch(typingctx: Any, array: Any, offset: Any) -> Any:
    """Ask for the cache line at a flat offset, for the second-level cache."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = ir.IntType(8).as_pointer()
        place = builder.bitcast(_address(context, builder, array, args[0], args[1]), pointer)
        # to be read; keep it in the second level and below; data
        how = [ir.Constant(ir.IntType(32), n) for n in (0, 2, 1)]
        _call(builder, "llvm.prefetch.p0i8", ir.VoidType(), place, *how)
        return context.get_dummy_value()

    return types.void(array, types.int64), codegen


if config.DISABLE_JIT:

    def prefetch(array: Any, offset: int) -> None:
        """Do nothing."""

    def _lanes(array: Any) -> int:
        return VECTOR_BYTES // array.itemsize

    def vzero(array: Any) -> Any:
        return np.zeros(_lanes(array), array.dtype)

    def vload(array: Any, offset: int) -> Any:
        return array.reshape(-1)[offset : offset + _lanes(array)].copy()

    def vfma(a: Any, b: Any, c: Any) -> Any:
        return a * b + c

    def vsum(vector: Any) -> Any:
        return vector.sum()

    def vstore(array: Any, offset: int, vector: Any) -> None:
        array.reshape(-1)[offset : offset + _lanes(array)] = vector
