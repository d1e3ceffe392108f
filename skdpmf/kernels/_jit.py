"""The one place that chooses compiler flags for the kernels, and what they call an array."""

from typing import Any

from numba import njit
from numpy.typing import NDArray

__all__ = ["Array", "jit", "jit_fast"]

Array = NDArray[Any]

# IEEE order of operations: for everything whose result must be exact or bit-reproducible.
jit = njit(cache=True, nogil=True, error_model="numpy")

# Sums may be reassociated and contracted (no NaN or infinity assumptions): for solvers in
# floating point whose results are compared to a tolerance.
jit_fast = njit(
    cache=True, nogil=True, error_model="numpy", fastmath={"reassoc", "contract", "nsz", "arcp"}
)
