"""Public grids: of the values that are summed exactly, and of the noise of a release."""

import math
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from skdpmf.exceptions import require_that

Layout = Literal["full", "packed"]
Noise = Literal["gaussian", "laplace"]

_MAX_BITS, _MIN_BITS = 40, 10
_MAX_SHARE = 0.5
# covers the float roundings of the few operations that make the scale and the units, and the scale
# of the Laplace sampler, which is within 2^-61 of 1
_OUTWARD = 1.0 + 2.0**-40
# just below sqrt(2), so that scaling off-diagonal entries never exceeds the Frobenius isometry
_SQRT2_DOWN = math.nextafter(math.sqrt(2.0), 0.0)


def as_float(value: Any) -> float:
    """Return ``value`` as a float, NaN where it is no number, or none that a float can say.

    A number that would become infinite, or 0, is not that number.
    """
    if isinstance(value, str | bytes | bool | np.bool_) or getattr(value, "ndim", None):
        return math.nan
    try:
        number = float(value)
        lost = number in (0.0, math.inf, -math.inf) and number != value
    except (TypeError, ValueError, ArithmeticError):
        return math.nan
    return math.nan if lost else number


def require_number(name: str, value: Any, *, positive: bool, remedy: str) -> float:
    """Return ``value`` as a finite float that is > 0 (or >= 0), or raise."""
    number = as_float(value)
    holds = math.isfinite(number) and (number > 0.0 or (number == 0.0 and not positive))
    require_that(holds, name, value, f"a finite number {'>' if positive else '>='} 0: {remedy}")
    return number


def _require_grid(grid: float) -> float:
    grid = require_number("grid", grid, positive=True, remedy="pass a power of two like 2**-17.")
    rule = "a power of two, so that sums of its multiples are exact: pass "
    require_that(math.frexp(grid)[0] == 0.5, "grid", grid, rule + "2.0 ** round(math.log2(grid)).")
    return grid


def truncate_to_grid(x: ArrayLike, grid: float) -> NDArray[np.float64]:
    """Round values towards zero to multiples of a public power of two.

    Truncation, unlike rounding to nearest or downwards, raises no magnitude, hence no norm and no
    sensitivity. Sums of multiples of the grid (and of products of two of them) are exact in
    float64, in any order and by any method of summation, as long as `check_exact` passes. The
    result is ``trunc(x / grid) * grid``, without rounding error, for finite x.
    """
    grid = _require_grid(grid)
    scaled = np.asarray(x, dtype=np.float64) / grid
    return np.trunc(scaled) * grid + 0.0  # + 0.0: no negative zeros


def check_exact(n_slots: int, bound: float, grid: float, *, degree: int = 2) -> None:
    """Raise unless sums over all slots of values on a grid are exact in float64.

    Values of magnitude <= ``bound`` on a grid g are multiples of g; products of ``degree`` of them
    are multiples of g^degree of magnitude <= bound^degree. Every partial sum of at most n of those
    is a multiple of g^degree no larger than n bound^degree: a float64 without rounding, provided
    ``n_slots * bound**degree < 2**53 * grid**degree``. The sum then does not depend
    on order, blocks or threads, and a neighbouring data set changes it by exactly one
    slot's part. n_slots is the public number of rows; degree is 2 for sums of products z_a z_b
    (Gram matrices), 1 for plain sums.
    """
    grid = _require_grid(grid)
    finest = exact_grid(n_slots, bound, degree=degree)
    rule = f"{finest!r} or coarser for n_slots={n_slots} and bound={bound!r}: exact sums of degree "
    rule += f"{degree} need n_slots * bound**{degree} < 2**53 * grid**{degree}."
    require_that(grid >= finest, "grid", grid, rule)


def exact_grid(n_slots: int, bound: float, *, degree: int = 2) -> float:
    """Return the finest power-of-two grid on which `check_exact` passes."""
    rule = "1 or 2: 1 for sums of values, 2 for sums of products."
    require_that(degree in (1, 2), "degree", degree, rule)
    rule = "an integer >= 1: pass the number of rows of X."
    require_that(n_slots >= 1 and n_slots % 1 == 0, "n_slots", n_slots, rule)
    bound = require_number("bound", bound, positive=True, remedy="pass the clipping bound.")
    mantissa, exponent = math.frexp(bound)
    # n b^d = m 2^e exactly in integers; wanted: the least g with m 2^e < 2^(53 + d log2 g)
    scaled = int(n_slots) * int(mantissa * 2**53) ** degree
    log_ceiling = scaled.bit_length() + degree * (exponent - 53) - 53  # product < 2^(53 + this)
    log_grid = -(-log_ceiling // degree)
    rule = "inside the range in which float64 sums can be exact: rescale to magnitudes near 1."
    require_that(abs(log_grid * degree) <= 1000, "bound", bound, rule)
    return 2.0**log_grid


def calibrate_grid(
    size: int,
    *,
    sensitivity: float,
    noise_multiplier: float,
    bound: float,
    noise: str = "gaussian",
) -> tuple[int, float]:
    r"""Return the grid and the scale of a release, from public values only.

    Nominally sigma = z D for the noise multiplier z and the L2 sensitivity D. The statistic S is
    rounded to the grid of unit u = sigma' 2^-b before the noise: each of two neighbours moves by
    at most half a unit by rounding to nearest and half a unit by the float division (magnitudes
    stay below 2^51 units), per entry, so the rounded statistics differ by at most
    D + 2 u sqrt(size). The noise pays for it: sigma' is the solution of

    .. math:: \sigma' = z (D + 2 \sigma' 2^{-b} \sqrt{size}),

    so that the release is exactly (1/z)-GDP with respect to the *declared* sensitivity D.
    b is the largest that keeps |S| below 2^51 units, and at most 40 (then sigma' / sigma - 1 is
    2^-39 z sqrt(size): 1e-7 for 64 million values and z = 7).

    For Laplace noise D is the l1 sensitivity, in which the rounded statistics of neighbours differ
    by at most D + 2 u size, so that size stands in the place of its root, and the release is
    exactly (1/z)-DP, pure, but for the slack of the sampler (``laws.py``).

    size: number of released values; bound: public bound on the statistic's magnitudes, such as
    n_rows * sensitivity; noise: "gaussian" or "laplace". Returns b and sigma', a standard deviation
    or a scale. A grid too coarse for the noise is refused.
    """
    ones = math.sqrt(size) if noise == "gaussian" else float(size)
    remedy = "state its bound, L2 for Gaussian noise and l1 for Laplace noise."
    D = require_number("sensitivity", sensitivity, positive=True, remedy=remedy)
    remedy = "0 means no noise and no grid."
    z = require_number("noise_multiplier", noise_multiplier, positive=True, remedy=remedy)
    B = require_number("bound", bound, positive=True, remedy="pass n_rows * sensitivity.")
    sigma = z * D
    holds = 2.0**-900 < sigma < 2.0**900 and 2.0**-900 < B / sigma < 2.0**900
    rule = f"such that with noise_multiplier={z!r} and bound={B!r} nothing leaves the range of "
    require_that(holds, "sensitivity", D, rule + "float64: rescale it to magnitudes near 1.")
    bits = min(_MAX_BITS, 51 - math.frexp(B / sigma)[1])
    share = 2.0 * z * ones * 2.0**-bits
    rule = f"smaller for noise of scale {sigma:.3g} on {size} values, as the grid would be finer "
    rule += f"than float64 has (a scale of 2**{bits} units; needed: at least 2**{_MIN_BITS} and "
    rule += f"more than {4.0 * z * ones:.3g}). Give a smaller bound, release fewer values at a "
    rule += "time, or spend less budget on this release."
    require_that(bits >= _MIN_BITS and share <= _MAX_SHARE, "bound", B, rule)
    return bits, sigma / (1.0 - share) * _OUTWARD


class ReleaseGrid(NamedTuple):
    """The draw of a release: integers of scale 2**bits, in units of the grid.

    The units are those on and off the diagonal of triangles of this order; a layout "full" has
    order 1, every value being a diagonal.
    """

    scale: float
    units: tuple[float, float]
    order: int
    bits: int


def release_grid(
    shape: tuple[int, ...],
    *,
    sensitivity: float,
    noise_multiplier: float,
    bound: float,
    layout: str = "full",
    noise: str = "gaussian",
) -> ReleaseGrid:
    """Check the parameters of a release and return its grid; scale 0 without noise."""
    rule = "'gaussian' or 'laplace': the former for an L2 sensitivity, the latter for an l1 one."
    require_that(noise in ("gaussian", "laplace"), "noise", noise, rule)
    rule = "'full' or 'packed', 'full' for noise='laplace': 'packed' is for lower triangles of "
    rule += "symmetric matrices on the last axis, and Laplace noise for entries stored once."
    holds = layout == "full" or (layout == "packed" and noise == "gaussian")
    require_that(holds, "layout", layout, rule)
    length, order = shape[-1] if shape else 1, 1
    if layout == "packed":
        order = max(1, (math.isqrt(8 * length + 1) - 1) // 2)
        rule = "of k * (k + 1) / 2 entries on the last axis for layout='packed': pack the lower "
        rule += "triangle row by row, or use layout='full'."
        holds = math.isqrt(8 * length + 1) ** 2 == 8 * length + 1
        require_that(holds, "statistic of shape", shape, rule)
    remedy = "state its bound, L2 for Gaussian noise and l1 for Laplace noise."
    require_number("sensitivity", sensitivity, positive=False, remedy=remedy)
    remedy = "use the plan's value."
    z = require_number("noise_multiplier", noise_multiplier, positive=False, remedy=remedy)
    if z == 0.0:
        return ReleaseGrid(0.0, (1.0, 1.0), order, 0)
    reach = require_number("bound", bound, positive=True, remedy="pass n_rows * sensitivity.")
    reach *= _SQRT2_DOWN if layout == "packed" else 1.0
    terms: dict[str, Any] = {"sensitivity": sensitivity, "noise_multiplier": z, "noise": noise}
    bits, scale = calibrate_grid(math.prod(shape), bound=reach, **terms)
    unit = scale * 2.0**-bits
    return ReleaseGrid(scale, (unit, unit / _SQRT2_DOWN), order, bits)
