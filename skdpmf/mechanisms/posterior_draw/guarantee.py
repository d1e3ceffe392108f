r"""Privacy of one draw from a posterior with a clipped loss: proven bounds, calibration, weights.

**The draw.** User i has m_i <= tau ratings; the targets e_ij, clipped to [-h, h], depend on user
i's ratings and on released values alone. With the weight w_i >= 0 and predictions p_ij, functions
of the parameters alone, clipped to [-(h+kappa), h+kappa], the user's loss is

.. math:: f_i(u_i, V) = w_i \sum_j (e_{ij} - \mathrm{clip}(p_{ij}))^2, \qquad f_i = 0
   \text{ if } m_i = 0.

No factor exceeds L = 2h + kappa in magnitude, so for *every* (u_i, V) and every record

.. math:: 0 \le f_i \le m_i w_i L^2 \le B_i \le B = \tau L^2

with the weights of `user_weights`. One draw from the density proportional to exp(-a sum_i f_i) p0,
p0 a proper prior, is released. Everything but the ratings is public and fixed beforehand: h,
kappa, tau, B, the prior, a, the levels. The number of user slots is fixed; an empty one keeps its
u_i, drawn from the prior.

**Theorem 1.** One draw of (U, V), or of anything computed from it, is epsilon-DP with
epsilon = a B for ``neighbors="add-remove"`` and 2 a B for "replace"; for user i it is a B_i, and
2 a B_i. Both are attained.

*Proof.* Let f, f' be the losses of user i's two records, pi, pi' the densities and Z, Z' the
integrals of their numerators. Then pi / pi' = e^{-a(f - f')} / q with
q = Z / Z' = E_{pi'}[e^{-a(f - f')}]. *Add-remove*, f' = 0 (else exchange the two): as
0 <= f <= B_i, numerator and q both lie in [e^{-aB_i}, 1], so their ratio lies in
[e^{-aB_i}, e^{aB_i}]: because the loss has one sign, the constant costs nothing. *Replace*: f - f'
lies in [-B_i, B_i], numerator and q in [e^{-aB_i}, e^{aB_i}], their ratio in
[e^{-2aB_i}, e^{2aB_i}]. QED. Without the clip f has no bound, and no epsilon is finite.

**Theorem 2.** Let V alone (and the precisions of the prior) leave; given the precisions, let
the prior have u_i independent of V and of the other users, and -u_i as likely as u_i; and let
p_ij = u_i . v_j, without an item bias. Then Theorem 1 holds with

.. math:: B_V = B \, \frac{h^2 + (h+\kappa)^2}{(2h+\kappa)^2}

in the place of B, and likewise for B_i. *Proof.* The marginal density of V is proportional to
p0(V) exp(-a sum_i g_i(V)), g_i = -(1/a) ln E[e^{-a f_i(u_i, V)}] over the prior of u_i. As
f_i >= 0, also g_i >= 0. By Jensen's inequality g_i <= E[f_i]. The clipped p_ij is an odd function
of u_i, so its mean is 0 and E(e - p)^2 = e^2 + E[p^2] <= h^2 + (h + kappa)^2, that is
g_i <= m_i w_i (h^2 + (h+kappa)^2). Go on as for Theorem 1, with g for f. QED. An item bias in
p_ij breaks the symmetry, and the bound is B again. So it is if anything else leaves that follows
from the drawn U: U itself, the loss, the density, a diagnostic.

**Conditions.** M draws cost M times as much, and so does their mean. What is bounded is the ratio
of the densities: the draw must be exact. A Markov chain after a fixed number of steps comes near
it, at a distance that no diagnostic proves; the statement must then say that it is conditional on
convergence, and a number of steps chosen by a diagnostic voids even that. B_i belongs to the
user's slot: it is public, fixed without the ratings, and the other record of "replace" is held to
it.

**One rating** of a user with m ratings moves less than the whole record. With
w = B / (m L^2): replacing one costs at most 2 a B / m, since f - f' spans 2 w L^2 at most; adding
one to m >= 1 costs at most 2 a B / (m + 1), since f' - f is in [-B / (m+1), B / (m+1)]; adding the
first costs a B. m is not public, so the worst case, a B, is all that may be published.

Source of the mechanism: Z. Liu, Y.-X. Wang, A. Smola, "Fast differentially private matrix
factorization", RecSys 2015, whose Theorem 1 says 4 a B for both relations: correct and loose.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from skdpmf.exceptions import require_that
from skdpmf.privacy.accounting import SamplerSlack, gaussian_mu
from skdpmf.privacy.budget import check_relation
from skdpmf.privacy.plan import Release
from skdpmf.privacy.sampler.grid import as_float, release_grid, require_number

CALIBRATIONS = ("tight", "paper")

# Guard: all float roundings of bounds, weights and levels together (each 2**-53, some ten of them),
# subnormal numbers, and time
_ROUNDED = 1.0 + 2.0**-48
_NEGLIGIBLE = 1e-100  # levels below this part of epsilon count as 0: no subnormal numbers
_PER_OCTAVE = 256  # solved levels between epsilon and its half: others get the next one below


def loss_bound(max_ratings: int, half_range: float, margin: float) -> float:
    r"""Return B = tau (2h + kappa)^2, the bound on a user's loss; a constant of public values.

    max_ratings: tau >= 1, number of ratings that a user keeps at most; half_range: h > 0; residual
    targets are clipped to [-h, h]; margin: kappa >= 0; predictions are clipped to [-(h + kappa), h
    + kappa]. Result: in units of squared ratings.

    Examples
    --------
    >>> loss_bound(200, 2.0, 1.0)
    5000.0
    """
    tau, h, kappa = _check_range(max_ratings, half_range, margin)
    return tau * (2.0 * h + kappa) ** 2


def item_loss_bound(max_ratings: int, half_range: float, margin: float) -> float:
    r"""Return B_V = tau (h^2 + (h + kappa)^2), the bound if item factors alone are released.

    Only under the conditions of Theorem 2 of this module: no item bias in the prediction, a
    symmetric, proper prior of u_i that is independent of V, independent users, and nothing else
    that follows from the drawn U is released or used.

    max_ratings: tau, as for `loss_bound`; half_range: h, as for `loss_bound`; margin: kappa, as for
    `loss_bound`. Result: in units of squared ratings.

    Examples
    --------
    >>> item_loss_bound(200, 2.0, 1.0)
    2600.0
    """
    tau, h, kappa = _check_range(max_ratings, half_range, margin)
    return tau * (h * h + (h + kappa) ** 2)


def user_weights(
    n_ratings: ArrayLike,
    max_ratings: int,
    half_range: float,
    margin: float,
    *,
    max_weight: float = math.inf,
    levels: ArrayLike | None = None,
    epsilon: float | None = None,
) -> NDArray[np.float64]:
    r"""Return w_i = min(rho, B_i / (m_i L^2)) with B_i = B min(level_i, epsilon) / epsilon.

    With an inverse temperature from `inverse_temperature` at ``epsilon``, user i is protected with
    min(level_i, epsilon), whatever m_i is. The weights depend on m_i and are as private as the
    ratings.

    n_ratings (array-like of int, shape (n_users,)): m_i >= 0, after trimming; the weight of a user
    without ratings is 0; max_ratings: tau, as for `loss_bound`; half_range: h, as for `loss_bound`;
    margin: kappa, as for `loss_bound`; max_weight: rho > 0, public; levels (array-like of float,
    shape (n_users,)): public epsilon of each user >= 0; 0 for no influence. Default: epsilon for
    all. epsilon: of the whole release, > 0 and finite; needed with levels. Returns (n_users,)
    float64: rounded down until ``n_ratings * w * L**2 <= B_i`` in floating point.

    Examples
    --------
    >>> user_weights([200, 20, 0], 200, 2.0, 1.0).tolist()
    [1.0, 10.0, 0.0]
    >>> user_weights([20, 20], 200, 2.0, 1.0, levels=[0.5, 8.0], epsilon=1.0).tolist()
    [5.0, 10.0]
    """
    bound = loss_bound(max_ratings, half_range, margin)
    square = (2.0 * float(half_range) + float(margin)) ** 2
    rho = _require("max_weight", max_weight, "> 0; inf for no cap", infinite=True)
    m = np.asarray(n_ratings, dtype=np.float64)
    share = np.ones(m.shape)
    if levels is not None:
        total = _require("epsilon", epsilon, "finite and > 0, the whole release's")
        share = _check_levels(levels, total) / total
        rule = f"{m.shape}, one entry for each user: pass them in the order of the rows."
        require_that(share.shape == m.shape, "levels.shape", share.shape, rule)
    bounds = bound * share
    rated = m > 0.0
    m1 = np.where(rated, m, 1.0)
    w = np.minimum(bounds / (m1 * square), rho)
    for _ in range(8):  # four roundings, each worth one or two steps
        w = np.where(m1 * w * square > bounds, np.nextafter(w, 0.0), w)
    return np.where(rated, w, 0.0)


def inverse_temperature(
    epsilon: float, bound: float, *, neighbors: str = "add-remove", calibration: str = "tight"
) -> float:
    r"""Return the inverse temperature a at which one draw spends epsilon, rounded down.

    "tight" is epsilon / B for add-remove and epsilon / (2B) for replace, which are attained.
    "paper" is epsilon / (4B) for both, as published; such a draw is in truth epsilon / 4
    (replace: epsilon / 2) private, see `posterior_epsilon`.

    epsilon: finite and > 0; bound: B of `loss_bound`, or B_V of `item_loss_bound`; calibration
    ("tight", "paper"): see above. Result: a, in units of 1 / bound.

    Examples
    --------
    >>> round(inverse_temperature(4.0, 5000.0), 12)
    0.0008
    >>> round(inverse_temperature(4.0, 5000.0, calibration="paper"), 12)
    0.0002
    """
    rule = "finite and > 0; without privacy choose the inverse temperature yourself"
    total = _require("epsilon", epsilon, rule)
    loss = _require("bound", bound, "finite and > 0, from loss_bound or item_loss_bound")
    check_relation("user", neighbors)
    rule = f"one of {CALIBRATIONS}: 'tight' for the proven bound, 'paper' for the published one."
    require_that(calibration in CALIBRATIONS, "calibration", calibration, rule)
    factor = 4.0 if calibration == "paper" else _factor(neighbors)
    return total / (factor * loss) / _ROUNDED**2


def posterior_epsilon(
    inverse_temperature: float, bound: float, *, neighbors: str = "add-remove"
) -> float:
    r"""Return what one draw spends: a B for add-remove, 2 a B for replace, rounded up.

    inverse_temperature: a >= 0; bound: B of `loss_bound`, B_V of `item_loss_bound`; B_i for one
    user. Result: pure epsilon. Of `inverse_temperature` at some epsilon, never more than that
    epsilon.

    Examples
    --------
    >>> round(posterior_epsilon(0.0008, 5000.0, neighbors="replace"), 9)
    8.0
    """
    remedy = "pass that of the draw."
    a = require_number("inverse_temperature", inverse_temperature, positive=False, remedy=remedy)
    loss = _require("bound", bound, "finite and > 0, from loss_bound or item_loss_bound")
    check_relation("user", neighbors)
    return _factor(neighbors) * a * loss * _ROUNDED


def rounding_share(release: Release, bound: float) -> float:
    r"""Return how much of a release's sensitivity `NoiseSource.release` pays for its own rounding.

    The statistic is rounded to the noise's grid, and `calibrate_grid` raises the noise from z D
    to z D / (1 - s) for it, with s = 2 z sqrt(size) 2^-bits. In units of D / (1 - s), neighbours'
    rounded statistics differ by (1 - s) for the statistic and by s for the rounding. The latter
    is due in full, however little a user contributes.

    release: of the plan, with its noise multiplier; bound: as given to `NoiseSource.release`.
    Result: in [0, 1/2], rounded up; 0 without noise. Raises PrivacyParameterError if the grid would
    be too coarse for the noise.

    Examples
    --------
    >>> release = Release("sums", "sums", (100,), 1.0, noise_multiplier=2.0)
    >>> rounding_share(release, 1000.0) == 40 * 2.0**-40 * (1 + 2.0**-48)
    True
    """
    if release.noise_multiplier == 0.0:
        return 0.0
    layout: Any = release.layout
    bits = release_grid(
        release.shape,
        sensitivity=release.sensitivity,
        noise_multiplier=release.noise_multiplier,
        bound=bound,
        layout=layout,
    ).bits
    root = math.sqrt(math.prod(release.shape))
    return 2.0 * release.noise_multiplier * root * 2.0**-bits * _ROUNDED


def personal_scales(
    levels: ArrayLike, epsilon: float, delta: float, *, rounding: float, **sampler: Any
) -> NDArray[np.float64]:
    r"""Return factors f_i by which users' contributions to Gaussian releases are multiplied.

    In a plan calibrated to (epsilon, delta) with mu = mu(epsilon), user i with f_i is
    (min(level_i, epsilon), delta)-DP, the slack of the sampler included:
    f_i = (mu(level_i) / mu(epsilon) - s) / (1 - s), at least 0, with mu(.) of `gaussian_mu` at the
    plan's delta and sampler's slack, and s = ``rounding``.

    *Proof.* Scaled by f, user i changes a release of sensitivity D by f D at most (replace: the
    other record has the same slot, hence the same f), and the rounded statistic by
    f (1 - s_r) + s_r in the units of `rounding_share`, in which the noise is z: for this user the
    release is ((f + (1 - f) s_r) / z)-GDP. Releases compose to at most (f + (1 - f) s) mu, which
    is mu(level), and the largest of them is ``largest`` mu(level)-GDP at most, as the slack at
    mu(level) supposes. A user with f = 0 contributes nothing, and changes nothing. QED.

    levels (array-like of float, shape (n_users,)): public epsilon of each user, >= 0; epsilon: the
    budget's, finite and > 0; delta: the budget's, > 0; rounding: in [0, 1), the largest
    `rounding_share` of the releases, or a public bound above it such as 2**-10; sampler:
    ``ReleasePlan.slack`` of the plan. Returns (n_users,) float64: in [0, 1], rounded down, a
    function of the user's own level and the plan: exactly 1 for levels >= epsilon, 0 for level 0
    and where the slack alone exceeds the level. Levels are rounded down, by .3 % at most, so that
    few have to be solved. Raises PrivacyParameterError if a parameter is outside its range, or the
    sampler's slack alone exceeds the budget.

    Examples
    --------
    >>> personal_scales([0.0, 0.1, 1.0, 9.0], 1.0, 1e-5, rounding=0.0).round(4).tolist()
    [0.0, 0.1211, 1.0, 1.0]
    """
    total = _require("epsilon", epsilon, "finite and > 0: without privacy there are no levels")
    delta = _require("delta", delta, "> 0 and < 1: Gaussian noise needs it")
    share = as_float(rounding)
    rule = "in [0, 1): pass the largest rounding_share of the plan."
    require_that(0.0 <= share < 1.0, "rounding", rounding, rule)
    whole = gaussian_mu(total, delta, **sampler)
    given = _check_levels(levels, total)
    with np.errstate(divide="ignore"):
        place = np.ceil(_PER_OCTAVE * np.log2(total / given))
    given = np.minimum(given, total * 2.0 ** (-place / _PER_OCTAVE))
    distinct, inverse = np.unique(given, return_inverse=True)
    least = SamplerSlack.checked(**sampler).epsilon
    mus = [gaussian_mu(e, delta, **sampler) if e > least else 0.0 for e in distinct.tolist()]
    scales = np.maximum((np.array(mus) / whole / _ROUNDED - share) / (1.0 - share) / _ROUNDED, 0.0)
    return np.where(distinct >= total, 1.0, np.minimum(scales, 1.0))[inverse.reshape(-1)]


def _factor(neighbors: str) -> float:
    return 2.0 if neighbors == "replace" else 1.0


def _check_range(max_ratings: Any, half_range: Any, margin: Any) -> tuple[float, float, float]:
    tau = _require("max_ratings", max_ratings, "an integer >= 1")
    rule = "an integer >= 1: pass the cap of trimming."
    require_that(tau == math.floor(tau), "max_ratings", max_ratings, rule)
    h = _require("half_range", half_range, "finite and > 0, the clip of residual targets")
    remedy = "pass how far predictions may leave the range of the targets."
    kappa = require_number("margin", margin, positive=False, remedy=remedy)
    rule = "within (1e-50, 1e50), where squares are numbers: rescale ratings to magnitudes near 1."
    holds = _NEGLIGIBLE < (2.0 * h + kappa) ** 2 < 1.0 / _NEGLIGIBLE
    require_that(holds, "2 half_range + margin", 2.0 * h + kappa, rule)
    return tau, h, kappa


def _check_levels(levels: ArrayLike, epsilon: float) -> NDArray[np.float64]:
    """Return min(level, epsilon), or 0 where it is too small for relative rounding errors."""
    values = np.asarray(levels, dtype=np.float64)
    rule = "of one dimension: pass one epsilon a user."
    require_that(values.ndim == 1, "levels.shape", values.shape, rule)
    rule = "a number >= 0: pass 0 for a user without influence, inf for the budget's epsilon."
    for user in np.flatnonzero(~(values >= 0.0)):
        require_that(False, f"levels[{user}]", float(values[user]), rule)
    return np.where(values < _NEGLIGIBLE * epsilon, 0.0, np.minimum(values, epsilon))


def _require(name: str, value: Any, rule: str, *, infinite: bool = False) -> float:
    number = as_float(value)
    holds = number > 0.0 and (infinite or not math.isinf(number))
    require_that(holds, name, value, f"a number, {rule}.")
    return number
