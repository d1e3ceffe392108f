"""Public grids: of the values that are summed exactly, and of the noise of a release."""

import math
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from skdpmf.exceptions import PrivacyParameterError

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
    if not math.isfinite(number) or number < 0 or (positive and number == 0):
        rule = "a finite number > 0" if positive else "a finite number >= 0"
        raise PrivacyParameterError(f"{name}={value!r} must be {rule}: {remedy}")
    return number


def _require_grid(grid: float) -> float:
    grid = require_number("grid", grid, positive=True, remedy="pass a power of two like 2**-17.")
    if math.frexp(grid)[0] != 0.5:
        raise PrivacyParameterError(
            f"grid={grid!r} must be a power of two, so that sums of its multiples are exact: pass "
            "2.0 ** round(math.log2(grid))."
        )
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
    if grid < finest:
        raise PrivacyParameterError(
            f"grid={grid!r} is too fine for n_slots={n_slots} and bound={bound!r}: exact sums of "
            f"degree {degree} need n_slots * bound**{degree} < 2**53 * grid**{degree}. Use a grid "
            f"of {finest!r} or coarser."
        )


def exact_grid(n_slots: int, bound: float, *, degree: int = 2) -> float:
    """Return the finest power-of-two grid on which `check_exact` passes."""
    if degree not in (1, 2):
        raise PrivacyParameterError(
            f"degree={degree!r} must be 1 or 2: 1 for sums of values, 2 for sums of products."
        )
    if n_slots != int(n_slots) or n_slots < 1:
        raise PrivacyParameterError(
            f"n_slots={n_slots!r} must be an integer >= 1: pass the number of rows of X."
        )
    bound = require_number("bound", bound, positive=True, remedy="pass the clipping bound.")
    mantissa, exponent = math.frexp(bound)
    # n b^d = m 2^e exactly in integers; wanted: the least g with m 2^e < 2^(53 + d log2 g)
    scaled = int(n_slots) * int(mantissa * 2**53) ** degree
    log_ceiling = scaled.bit_length() + degree * (exponent - 53) - 53  # product < 2^(53 + this)
    log_grid = -(-log_ceiling // degree)
    if log_grid * degree > 1000 or log_grid * degree < -1000:
        raise PrivacyParameterError(
            f"bound={bound!r} is outside the range in which float64 sums can be exact: rescale "
            "the values to magnitudes near 1."
        )
    return 2.0**log_grid


def calibrate_grid(
    size: int, *, sensitivity: float, noise_multiplier: float, bound: float
) -> tuple[int, float]:
    r"""Return the grid and the standard deviation of a release, from public values only.

    Nominally sigma = z D for the noise multiplier z and the L2 sensitivity D. The statistic S is
    rounded to the grid of unit u = sigma' 2^-b before the noise: each of two neighbours moves by
    at most half a unit by rounding to nearest and half a unit by the float division (magnitudes
    stay below 2^51 units), per entry, so the rounded statistics differ by at most
    D + 2 u sqrt(size). The noise pays for it: sigma' is the solution of

    .. math:: \sigma' = z (D + 2 \sigma' 2^{-b} \sqrt{size}),

    so that the release is exactly (1/z)-GDP with respect to the *declared* sensitivity D.
    b is the largest that keeps |S| below 2^51 units, and at most 40 (then sigma' / sigma - 1 is
    2^-39 z sqrt(size): 1e-7 for 64 million values and z = 7).

    size: number of released values; bound: public bound on the statistic's magnitudes, such as
    n_rows * sensitivity. Returns b and sigma'. A grid too coarse for the noise is refused.
    """
    return _calibrate(size, math.sqrt(size), "L2", sensitivity, noise_multiplier, bound)


def calibrate_laplace_grid(
    size: int, *, sensitivity: float, noise_multiplier: float, bound: float
) -> tuple[int, float]:
    r"""Return the grid and the scale of a release with Laplace noise, from public values only.

    As `calibrate_grid`, for the l1 sensitivity D: the rounded statistics of neighbours differ by at
    most D + 2 u size in l1, so the scale lambda' is the solution of

    .. math:: \lambda' = z (D + 2 \lambda' 2^{-b} size),

    and the release is exactly (1/z)-DP, pure, with respect to the *declared* D, but for the
    slack of the sampler (``laws.py``). Returns b and lambda'.
    """
    return _calibrate(size, float(size), "l1", sensitivity, noise_multiplier, bound)


def _calibrate(
    size: int, ones: float, norm: str, sensitivity: float, noise_multiplier: float, bound: float
) -> tuple[int, float]:
    """Return bits and scale, where ``size`` ones have the norm ``ones``."""
    D = require_number("sensitivity", sensitivity, positive=True, remedy=f"state its {norm} bound.")
    z = require_number(
        "noise_multiplier", noise_multiplier, positive=True, remedy="0 means no noise and no grid."
    )
    B = require_number("bound", bound, positive=True, remedy="pass n_rows * sensitivity.")
    sigma = z * D
    if not 2.0**-900 < sigma < 2.0**900 or not 2.0**-900 < B / sigma < 2.0**900:
        raise PrivacyParameterError(
            f"sensitivity={D!r} with noise_multiplier={z!r} and bound={B!r} leaves the range of "
            "float64: rescale the statistic to magnitudes near 1."
        )
    bits = min(_MAX_BITS, 51 - math.frexp(B / sigma)[1])
    share = 2.0 * z * ones * 2.0**-bits
    if bits < _MIN_BITS or share > _MAX_SHARE:
        raise PrivacyParameterError(
            f"noise of scale {sigma:.3g} on {size} values of magnitude up to bound={B:.3g} would "
            f"need a grid finer than float64 has (noise scale = 2**{bits} units; needed: at least "
            f"2**{_MIN_BITS} and more than 4 * noise_multiplier * {ones:.3g} = "
            f"{4.0 * z * ones:.3g}). Give a smaller bound, release fewer values at a "
            "time, or spend less budget on this release."
        )
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
    if noise not in ("gaussian", "laplace"):
        raise PrivacyParameterError(
            f"noise={noise!r} must be 'gaussian' or 'laplace': 'gaussian' for an L2 sensitivity, "
            "'laplace' for an l1 sensitivity and a pure epsilon."
        )
    if layout not in ("full", "packed"):
        raise PrivacyParameterError(
            f"layout={layout!r} must be 'full' or 'packed': 'packed' for lower triangles of "
            "symmetric matrices on the last axis."
        )
    if noise == "laplace" and layout == "packed":
        raise PrivacyParameterError(
            "layout='packed' must be 'full' for noise='laplace': Laplace noise is made for "
            "triangles stored once. State the l1 sensitivity of the stored entries."
        )
    length = shape[-1] if shape else 1
    if layout == "packed" and math.isqrt(8 * length + 1) ** 2 != 8 * length + 1:
        raise PrivacyParameterError(
            f"statistic of shape {shape} must have k * (k + 1) / 2 entries on its last axis for "
            "layout='packed': pack the lower triangle row by row, or use layout='full'."
        )
    norm = "L2" if noise == "gaussian" else "l1"
    require_number("sensitivity", sensitivity, positive=False, remedy=f"state its {norm} bound.")
    z = require_number(
        "noise_multiplier", noise_multiplier, positive=False, remedy="use the plan's value."
    )
    if z == 0.0:
        return grid_of(0.0, 0, shape, layout)
    reach = require_number("bound", bound, positive=True, remedy="pass n_rows * sensitivity.")
    if layout == "packed":
        reach *= _SQRT2_DOWN
    calibrate = calibrate_grid if noise == "gaussian" else calibrate_laplace_grid
    bits, scale = calibrate(
        math.prod(shape), sensitivity=sensitivity, noise_multiplier=z, bound=reach
    )
    return grid_of(scale, bits, shape, layout)


def grid_of(scale: float, bits: int, shape: tuple[int, ...], layout: str) -> ReleaseGrid:
    """Return the grid of a scale that is 2**bits units, for values of a shape; 0: no noise."""
    length = shape[-1] if shape else 1
    order = max(1, (math.isqrt(8 * length + 1) - 1) // 2) if layout == "packed" else 1
    unit = scale * 2.0**-bits if scale else 1.0
    return ReleaseGrid(scale, (unit, unit / _SQRT2_DOWN if scale else 1.0), order, bits)


def noise_parameters(shape: tuple[int, ...], **terms: Any) -> tuple[float, Any, int]:
    """Return what `NoiseSource.release` will draw, from public values only.

    shape: of the statistic; **terms: of `release_grid`. Returns noise_scale: standard deviation (of
    diagonal entries for layout "packed"), or scale of Laplace noise; 0 without noise; units (1,):
    the grid's unit, for layout "packed" (shape[-1],), one for each place; bits: noise_scale is
    2**bits units.
    """
    scale, (unit, off_diagonal), _, bits = release_grid(shape, **terms)
    if terms.get("layout", "full") == "full" or scale == 0.0:
        return scale, np.array([unit]), bits
    return scale, np.where(diagonal_of_packed(shape[-1]), unit, off_diagonal), bits


def diagonal_of_packed(length: int) -> NDArray[np.bool_]:
    """Return which places of a packed lower triangle (row-major) are on the diagonal."""
    order = (int(np.sqrt(8 * length + 1)) - 1) // 2
    diagonal = np.zeros(length, np.bool_)
    diagonal[np.cumsum(np.arange(1, order + 1)) - 1] = True
    return diagonal
