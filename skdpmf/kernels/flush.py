"""Flushing denormal numbers to zero, in the calling thread.

A denormal is a float below the smallest normal one, 1.2e-38 in float32. Factors that a penalty
shrinks get there, and the arithmetic on them takes a CPU a hundred cycles or more. With the flush
bits of its floating-point control register set, a thread reads and writes 0 instead.

The register belongs to a thread, and a new thread inherits it: other threads that exist do not
see a change, and kernels that run in this one are compiled as ever. Without the JIT, and on CPUs
other than x86-64 and 64-bit ARM, all of this does nothing. On ARM only the machine code is
checked, not its effect.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from llvmlite import binding, ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils, config
from numba.extending import intrinsic

from skdpmf.kernels._vectors import _call
from skdpmf.kernels.jit_and_threads import jit

_INT32, _INT64 = ir.IntType(32), ir.IntType(64)
# x86: MXCSR, results (0x8000, FTZ) and operands (0x0040, DAZ). ARM: FPCR, both at once (FZ).
_FLUSH_BITS = {"x86_64": 0x8040, "aarch64": 1 << 24, "arm64": 1 << 24}
# Architecture that the process runs as; the machine's may differ, as an emulator may be between.
_ARCHITECTURE = binding.get_process_triple().split("-")[0]
_BITS = _FLUSH_BITS.get(_ARCHITECTURE, 0)

CAN_FLUSH = _BITS != 0 and not config.DISABLE_JIT


@intrinsic
def _read_control(typingctx: Any) -> Any:
    """Return the floating-point control register, as int64."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        if _ARCHITECTURE != "x86_64":
            return _call(builder, "llvm.aarch64.get.fpcr", _INT64)
        word = cgutils.alloca_once(builder, _INT32)
        address = builder.bitcast(word, ir.IntType(8).as_pointer())
        _call(builder, "llvm.x86.sse.stmxcsr", ir.VoidType(), address)
        return builder.zext(builder.load(word), _INT64)

    return types.int64(), codegen


@intrinsic
def _write_control(typingctx: Any, control: Any) -> Any:
    """Set the floating-point control register."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
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
