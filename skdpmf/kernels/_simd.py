"""Vectors of 64 bytes (16 float32 or 8 float64) for the register-blocked inner loops.

The loop vectoriser keeps no block of accumulators in registers over a loop. These intrinsics say
so directly, in LLVM's portable vector types: LLVM splits a vector to fit the registers of the
machine that it compiles for. With NUMBA_DISABLE_JIT=1 the same names are plain NumPy.
"""

from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils, config
from numba.core.errors import TypingError
from numba.extending import intrinsic, models, register_model

__all__ = ["VECTOR_BYTES", "prefetch", "vfma", "vload", "vstore", "vsum", "vzero"]

VECTOR_BYTES = 64


class Vector(types.Type):
    """Numba type of one vector of `dtype`; lives in registers only."""

    def __init__(self, dtype: Any) -> None:
        self.dtype = dtype
        super().__init__(name=f"Vector({dtype})")


@register_model(Vector)
class _VectorModel(models.PrimitiveModel):
    def __init__(self, manager: Any, vector: Any) -> None:
        lanes = VECTOR_BYTES // (vector.dtype.bitwidth // 8)
        scalar = manager[vector.dtype].get_value_type()
        super().__init__(manager, vector, ir.VectorType(scalar, lanes))


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


def _fma(builder: Any, a: Any, b: Any, c: Any) -> Any:
    """Product a * b + c of vectors, fused where the machine can."""
    bits = 64 if isinstance(a.type.element, ir.DoubleType) else 32
    kind = ir.FunctionType(a.type, [a.type] * 3)
    name = f"llvm.fmuladd.v{a.type.count}f{bits}"
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), [a, b, c])


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
        kind = ir.FunctionType(ir.VoidType(), [pointer, *[ir.IntType(32)] * 3])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
        place = builder.bitcast(_address(context, builder, array, args[0], args[1]), pointer)
        # to be read; keep it in the second level and below; data
        how = [ir.Constant(ir.IntType(32), n) for n in (0, 2, 1)]
        builder.call(function, [place, *how])
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
