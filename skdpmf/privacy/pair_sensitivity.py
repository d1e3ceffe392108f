r"""Sensitivities of noisy item means and of the item covariance, for one rating or for one user.

**Neighbours** are those of `PrivacyBudget`. Unit "rating": a cell (user, item); duplicates are
merged before. "replace" empties a cell and fills one, in any rows and columns, so that it takes at
most twice what "add-remove" does.

**The statistics.** Item means mu_i were released, and clamped to the range [lo, hi] of the
ratings; ratings r_i are clipped to it. A user with c items has

.. math:: y_i = r_i - \mu_i, \quad \bar y = \frac{\sum_i y_i + \beta g}{c + \beta}, \quad
    x_i = \mathrm{clip}(y_i - \bar y, -B, B),

with the damping beta, the clamp B, and a released g clamped to `centred_interval`, whose length is
alpha. With e_i = 1 for the user's items, x_i = e_i = 0 for others and a weight w (a function of
c, 0 for an empty row), one release holds

.. math:: \mathrm{Cov} = \sum_{users} w\, x x^T, \qquad \mathrm{Wgt} = \sum_{users} w\, e e^T.

Both matrices are symmetric. ``entries="full"`` measures all n_items^2 entries, so that the l2
norm is Frobenius': for noise of `NoiseSource.release` with ``layout="packed"``, whose deviation
off the diagonal is smaller by sqrt(2). ``entries="upper"`` measures each pair once: for noise of
one scale on a triangle (``layout="full"`` on its entries), and for Laplace noise. Noise of one
kind at the size of the other is too small, or larger than it need be.

**Lemma (one rating).** A user with c ratings gets another; w = 1/c ("l1") or 1/sqrt(c) ("l2"). Let
n = c + 1, and let x, x' be the rows without and with it. On the c common items
abs(x_i - x'_i) <= delta = min(alpha / (n + beta), 2 B). Proof: y and g lie in an
interval of length alpha, hence so does the first mean; the mean moves by
(y_new - ybar) / (n + beta); clipping shortens differences. Let P = delta max(2 B - delta, B). Then
Cov changes by at most

- l1, full: S1(c) = (c^2 P + B^2 (3 c + 1)) / n, below 2 B alpha + 3 B^2 for every c;
- l1, upper: U1(c) = c P / 2 + (3/2) B^2, below B alpha + (3/2) B^2; it is more than S1 / 2;
- l2, full: S2(c)^2 = c E^2 + B^4 (2 c + 1) / n;
- l2, upper: U2(c)^2 = (n / 2) E^2 + B^4,

where E = (sqrt(c) P + B^2 / (sqrt(c) + sqrt(n))) / sqrt(n); and by B^2 if c = 0.

*Proof.* Products of common items change by P at most: let d = x - x', s = x + x'; then
abs(s_i) <= 2 B - abs(d_i) and 2 (x_i x_j - x'_i x'_j) = d_i s_j + s_i d_j, so that the change is at
most B (p + q) - p q with p = abs(d_i), q = abs(d_j) in [0, delta]. This is linear in p and in q,
hence largest at a corner: delta (2 B - delta) or B delta. Now let w >= w' be the weights at c and
at n. The entry of two common items changes by
w' (x_i x_j - x'_i x'_j) + (w - w') x_i x_j, at most b = w' P + (w - w') B^2. In the new row and
column 2 c + 1 entries are at most w' B^2. *l1:* c^2 b + (2 c + 1) w' B^2 is S1, as
c^2 (w - w') = c / n; on and above the diagonal there are c n / 2 and n of those entries, which
gives U1. *l2:* sqrt(c) b = E, as sqrt(c) (w - w') = 1 / (sqrt(n) (sqrt(c) + sqrt(n))); so the
squares sum to c^2 b^2 + (2 c + 1) w'^2 B^4 = S2^2, and above to
(c n / 2) b^2 + n w'^2 B^4 = U2^2. The limits follow from P <= 2 B delta and n delta <= alpha. QED.

For Wgt take P = 0 and B = 1: x = e does not move. All inequalities are then equalities. Its
values stay below 3 (l1, full), 3/2 (at every c > 0; l1, upper) and sqrt(2) (l2, full), and are at
most 1.04201 at c = 1 (l2, upper).

**No trimming.** c is any number below n_items: a row that is cut to tau ratings may swap one for
the added one, which is worth a replacement, twice the values above.

**Lemma (one user).** Let w = 1/c^2 ("l1") or 1/c ("l2") for full matrices; for upper triangles
also 2/(c (c + 1)) or 1/sqrt(c (c + 1)/2) are allowed. Then Cov changes by at most B^2 and Wgt
by 1 under "add-remove"; "replace" takes twice that in l1 and sqrt(2) times in l2. *Proof.* All
c^2 entries of Cov (or c (c + 1)/2 in the triangle) are at most w B^2. And
<Cov, Cov'> = w w' (x . x')^2 >= 0, in the triangle w w' ((x . x')^2 + sum_i x_i^2 x'_i^2) / 2 >= 0,
likewise for e. Attained by rows of -B and B, for "replace" on disjoint items. QED.
The upper triangle's larger weights with ``layout="packed"`` noise would need up to sqrt(2) more.

**Both in one release.** The vector (Cov, t Wgt) changes by S(c) + t W(c) in l1 and
sqrt(S(c)^2 + t^2 W(c)^2) in l2 for the *same* c, which is at most, and sometimes less than, what
the two maxima give.

**Rounding.** The values hold for real arithmetic. Truncation to a grid raises no magnitude,
but differences of contributions by up to one unit an entry, so that the rounding has to be paid
for, except where a user comes or goes: see ``rounding`` of `covariance_sensitivity`.

Source: F. McSherry, I. Mironov, "Differentially private recommender systems", KDD 2009, Theorems
4 to 6. Their alpha is hi - lo, without the range of the item means: too small, and exceeded. The
bounds here are tighter at the right alpha, and need no condition on the damping.

The item covariance of a head of items as a bounded sum, made piece by piece.

Both matrices of `skdpmf.privacy.pair_sensitivity`, Cov = sum w x x' and t Wgt = t sum w e e', in
one release of two packed triangles. Everything that their bound rests on is done here: ratings are
clipped to their range, centred by released item means and the user's own damped mean, clipped to
[-B, B], weighted by the numbers of ratings and truncated to a grid. Proofs: there.

A triangle of 26,744 items has 3 * 10^8 entries: no more than a piece of it is held at a time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from skdpmf.exceptions import PrivacyParameterError
from skdpmf.kernels.sums import (
    accumulate_pairs,
    item_major,
    pair_blocks,
    pair_work,
    triangle_starts,
)
from skdpmf.privacy.budget import check_relation
from skdpmf.privacy.sampler.grid import check_exact, exact_grid, require_number, truncate_to_grid
from skdpmf.privacy.users import Rows, Users, reveal, set_once

__all__ = [
    "PairSums",
    "centre_rows",
    "centred_interval",
    "covariance_profile",
    "covariance_sensitivity",
    "covariance_weights",
    "pair_grid",
    "pair_sensitivity",
    "weight_profile",
    "weight_sensitivity",
]

_CENTRED_GRID = 2.0**-30  # of y - b, so that users' sums are exact
# Neighbours' entries differ by the grid of the sums and by the float errors of x; if a user comes
# or goes, truncation lowers what there is
_FLOAT_ERROR = 2.0**-44
_BLOCK_ENTRIES = 1 << 21


def pair_grid(n_slots: int, clamp: float) -> float:
    """Return the grid on which sums of all rows' shares of an entry are exact.

    Examples
    --------
    >>> pair_grid(6040, 1.0) == 2.0**-40
    True
    """
    return exact_grid(max(n_slots, 1), max(clamp**2, 1.0), degree=1)


def pair_sensitivity(
    relation: tuple[str, str],
    *,
    clamp: float,
    damping: float,
    weight_scale: float,
    noise: str,
    n_items: int,
    centred_range: float,
    grid: float,
) -> float:
    """Return the sensitivity of (Cov, t Wgt), its rounding paid for.

    relation: unit and neighbouring relation; clamp, damping, weight_scale: B, beta and t; noise
    ("gaussian", "laplace"): Gaussian noise is made for full symmetric matrices in l2, Laplace noise
    for triangles in l1; n_items: size of the head, at most; centred_range: alpha; grid: of
    `pair_grid`, or coarser.
    """
    unit, neighbors = relation
    gaussian = noise == "gaussian"
    rounding = grid + _FLOAT_ERROR * max(clamp, clamp * clamp)
    if relation == ("user", "add-remove"):
        rounding = 0.0
    return covariance_sensitivity(
        clamp,
        centred_range=centred_range,
        damping=damping,
        n_items=n_items,
        weight_scale=weight_scale,
        rounding=rounding,
        norm="l2" if gaussian else "l1",
        entries="full" if gaussian else "upper",
        neighbors=neighbors,
        unit=unit,
    )


class PairSums:
    """Both triangles, to be released in pieces by `Curator.release_pieces`.

    Parameters
    ----------
    users : Users
        Ratings in quarter ranges.
    head : ndarray of shape (h,)
        Columns, ascending, chosen by released values.
    means : ndarray of shape (n_items,)
        Released item means, within `value_range`.
    value_range : tuple of float
        Range of ratings; others are clipped to it.
    clamp, damping, weight_scale : float
        B, beta and t.
    noise : {"gaussian", "laplace"}
        As for `pair_sensitivity`.
    shared : bool
        Whether other blocks of users are summed elsewhere: pieces are then cut by public sizes.
    n_pieces : int
        Approximate number of pieces.

    Attributes
    ----------
    sensitivity, norm, layout, unit, neighbors, n_slots, private
        Meaning as in `BoundedSum`.
    shape : tuple of int
        (2, h (h + 1) / 2).
    pieces : list of tuple of int
        First and last row of each piece.
    """

    def __init__(
        self,
        users: Users,
        head: NDArray[np.int64],
        means: NDArray[np.float64],
        *,
        value_range: tuple[float, float],
        clamp: float,
        damping: float,
        weight_scale: float,
        noise: str,
        shared: bool,
        n_pieces: int,
    ) -> None:
        rows, h = reveal(users), len(head)
        if np.any(np.diff(head) <= 0):
            raise PrivacyParameterError(
                f"head={head!r} must be ascending, without repetitions: an item that is there "
                "twice counts its ratings twice."
            )
        # without privacy those of the published main algorithm
        unit = users.unit if users.private else "rating"
        R = rows.R if h == rows.n_items else rows.R[:, head]
        R.sort_indices()
        low, high = value_range
        means = np.clip(means[head], low, high)
        interval = centred_interval(value_range, means)
        self.grid = pair_grid(users.n_slots, clamp)
        check_exact(users.n_slots, max(clamp**2, 1.0), self.grid, degree=1)
        self.norm = "l2" if noise == "gaussian" else "l1"
        self.layout = "packed" if noise == "gaussian" else "full"
        self.unit, self.neighbors, self.n_slots = users.unit, users.neighbors, users.n_slots
        self.private = users.private
        self.sensitivity = pair_sensitivity(
            (unit, users.neighbors),
            clamp=clamp,
            damping=damping,
            weight_scale=weight_scale,
            noise=noise,
            n_items=h,
            centred_range=interval[1] - interval[0],
            grid=self.grid,
        )
        self._rows, self._scales = R, (self.grid, self.grid * weight_scale)
        bounded = Rows(R, rows.n_jobs)
        self._x = centre_rows(bounded, means, value_range=value_range, damping=damping, clamp=clamp)
        entries = "full" if noise == "gaussian" else "upper"
        self._weights = covariance_weights(
            bounded.n_ratings, norm=self.norm, entries=entries, unit=unit
        )
        self._columns = R.indices.astype(np.uint16 if h < 2**16 else np.int64)
        self._items = item_major(R.indptr, R.indices, h)
        self._starts, self._size = triangle_starts(h), h * (h + 1) // 2
        self.shape = 2, self._size
        work = np.empty(h + 1, np.int64)
        if shared:  # the same pieces in the same order for all blocks of users
            work = self._starts
        else:
            pair_work(R.indptr, *self._items, work)
        self.pieces = pair_blocks(work, n_pieces, _BLOCK_ENTRIES)

    __setattr__ = set_once

    def sums_of(self, start: int, stop: int) -> Iterator[tuple[int, slice, int, Any]]:
        """Sum the rows [start, stop) of both triangles.

        Yields matrix: 0 for Cov, 1 for t Wgt; entries: of the packed triangle; place: of the first
        value in the whole release; values: the sums.
        """
        entries = slice(int(self._starts[start]), int(self._starts[stop]))
        sums = np.empty((2, entries.stop - entries.start), np.int64)
        rows, given = self._rows, (self._columns, self._x, self._weights, *self._items, self.grid)
        accumulate_pairs(rows.indptr, *given, start, stop, sums[0], sums[1])
        for matrix in (0, 1):
            place = matrix * self._size + entries.start
            yield matrix, entries, place, sums[matrix] * self._scales[matrix]


def centre_rows(
    rows: Rows,
    item_means: NDArray[np.float64],
    *,
    value_range: tuple[float, float],
    damping: float,
    clamp: float,
) -> NDArray[np.float64]:
    """Return x = clip(y - b - o, -B, B), aligned with the ratings.

    Ratings less means are truncated to a grid, so that x does not depend on the order of sums. o is
    the user's mean of them, with `damping` fictitious zeros.
    """
    ratings = np.clip(np.where(np.isfinite(rows.data), rows.data, 0.0), *value_range)
    y = truncate_to_grid(ratings - item_means[rows.indices], _CENTRED_GRID)
    user, n = rows.user, rows.n_ratings
    offset = np.bincount(user, weights=y, minlength=rows.n_users) / np.maximum(n + damping, 1e-300)
    return np.asarray(np.clip(y - offset[user], -clamp, clamp))


# above the float roundings of the formulas and of the weights
_UP, _DOWN = 1.0 + 2.0**-40, 1.0 - 2.0**-50
_NORMS, _ENTRIES = ("l1", "l2"), ("full", "upper")


def centred_interval(
    rating_range: tuple[float, float], item_means: ArrayLike | None = None
) -> tuple[float, float]:
    r"""Return [lo - max_i mu_i, hi - min_i mu_i], which holds every r_i - mu_i.

    Clamp the global mean of the centred ratings to it, too. The length is alpha of this module; it
    is at most 2 (hi - lo), which is also what holds before item means are known.

    Proof: lo <= r_i <= hi and min mu <= mu_i <= max mu.

    rating_range: (lo, hi), lo < hi, to which all ratings are clipped; item_means (array-like of
    float, shape (n_items,)): the released mu_i of the whole catalogue, rated or not. Default: any
    in [lo, hi]. Result: low, high: in units of ratings, rounded outwards. Raises
    PrivacyParameterError if the range is not one, or a mean lies outside of it: alpha would have no
    public bound.

    Examples
    --------
    >>> low, high = centred_interval((1, 5), [2.0, 3.5, 4.5])
    >>> round(low, 9), round(high, 9)
    (-3.5, 3.0)
    >>> centred_interval((1, 5))
    (-4.0, 4.0)
    """
    try:
        lo, hi = (float(end) for end in rating_range)
    except (TypeError, ValueError):
        lo = hi = math.nan
    if not (math.isfinite(lo) and math.isfinite(hi) and lo < hi):
        raise PrivacyParameterError(
            f"rating_range={rating_range!r} must be two finite numbers, the lower first: pass the "
            "public range to which ratings are clipped."
        )
    if item_means is None:
        return lo - hi, hi - lo
    means = np.asarray(item_means, dtype=np.float64)
    if means.ndim != 1 or means.size == 0:
        raise PrivacyParameterError(
            f"item_means of shape {means.shape} must be one-dimensional and not empty: pass one "
            "released mean for each item of the catalogue."
        )
    outside = np.flatnonzero(~((means >= lo) & (means <= hi)))
    if outside.size:
        raise PrivacyParameterError(
            f"item_means hold {float(means[outside[0]])!r} for item {outside[0]}, outside of "
            f"rating_range=({lo!r}, {hi!r}): clamp released means to that range."
        )
    # differences of doubles round by half a step; values computed the same way stay within
    return (
        math.nextafter(lo - float(means.max()), -math.inf),
        math.nextafter(hi - float(means.min()), math.inf),
    )


def covariance_weights(
    n_ratings: ArrayLike, *, norm: str = "l2", entries: str = "full", unit: str = "user"
) -> NDArray[np.float64]:
    r"""Return the weights w of rows with c ratings, as the lemmas of this module need them.

    ========  =======  =======================  ==========================
    unit      entries  norm "l1"                norm "l2"
    ========  =======  =======================  ==========================
    rating    any      1 / c                    1 / sqrt(c)
    user      full     1 / c^2                  1 / c
    user      upper    2 / (c (c + 1))          1 / sqrt(c (c + 1) / 2)
    ========  =======  =======================  ==========================

    They are a function of c and as private as the ratings.

    n_ratings (array-like of int, shape (n_users,)): c >= 0, of distinct items; without any trimming
    at unit "rating"; norm ("l1", "l2"): norm of the sensitivity; entries ("full", "upper"): whether
    the noise is made for full matrices or for the triangle. Returns (n_users,) float64: rounded
    down by 2**-50; 0 for users without ratings.

    Examples
    --------
    >>> covariance_weights([0, 1, 4], unit="rating").round(9).tolist()
    [0.0, 1.0, 0.5]
    >>> covariance_weights([1, 3], norm="l1", entries="upper").round(9).tolist()
    [1.0, 0.166666667]
    """
    _check_choices(norm, entries)
    check_relation(unit, "add-remove")
    c = _counts("n_ratings", n_ratings)
    share = c  # what the l1 norm of the weighted entries is divided by
    if unit == "user":
        share = c * (c + 1.0) / 2.0 if entries == "upper" else c * c
    if norm == "l2":
        share = np.sqrt(share)
    return np.where(c > 0.0, _DOWN / np.where(c > 0.0, share, 1.0), 0.0)


def covariance_profile(
    n_others: ArrayLike,
    *,
    clamp: float,
    centred_range: float,
    damping: float,
    norm: str = "l2",
    entries: str = "full",
) -> NDArray[np.float64]:
    r"""Return how far Cov moves when a user with c ratings gets another one: S(c) or U(c).

    The lemma for one rating, relation "add-remove".

    n_others: c >= 0, number of the user's other ratings; clamp: B > 0, to which centred ratings are
    clipped; centred_range: alpha > 0, length of `centred_interval`; damping: beta >= 0, of the
    users' means; norm ("l1", "l2"): norm of the change, which also shows the weights; entries
    ("full", "upper"): all entries, or each pair once. Returns (ndarray of float64, of the shape of
    ``n_others``): S1 or S2 ("full"), U1 or U2 ("upper").

    Examples
    --------
    >>> covariance_profile([0, 20, 400], clamp=1.0, centred_range=4.0, damping=20.0).round(4)
    array([1.    , 1.6718, 1.4696])
    """
    _check_choices(norm, entries)
    B, alpha, beta = _check_rows(clamp, centred_range, damping)
    c = _counts("n_others", n_others)
    shift = np.minimum(alpha / (c + 1.0 + beta), 2.0 * B)
    return _one_rating(c, shift, B, norm, entries)


def weight_profile(
    n_others: ArrayLike, *, norm: str = "l2", entries: str = "full"
) -> NDArray[np.float64]:
    r"""Return how far Wgt moves when a user with c ratings gets another one, exactly.

    n_others: c >= 0, number of the user's other ratings; norm ("l1", "l2"): norm of the change,
    which also shows the weights; entries ("full", "upper"): all entries, or each pair once. Returns
    (ndarray of float64, of the shape of ``n_others``): W(c), relation "add-remove".

    Examples
    --------
    >>> weight_profile([0, 1, 10, 200], norm="l1").round(5).tolist()
    [1.0, 2.0, 2.81818, 2.99005]
    """
    _check_choices(norm, entries)
    c = _counts("n_others", n_others)
    return _one_rating(c, np.zeros_like(c), 1.0, norm, entries)


def covariance_sensitivity(
    clamp: float,
    *,
    centred_range: float,
    damping: float,
    n_items: int,
    weight_scale: float = 0.0,
    rounding: float = 0.0,
    norm: str = "l2",
    entries: str = "full",
    neighbors: str = "add-remove",
    unit: str = "user",
) -> float:
    r"""Item covariance and its weights in one release, (Cov, t Wgt); Cov alone for t = 0.

    - unit "rating": :math:`\max_{c < n\_items} \sqrt{S_2(c)^2 + t^2 W_2(c)^2}` (l2) or
      max (S1(c) + t W1(c)) (l1), with U for S on the upper triangle; replace twice that;
    - unit "user": :math:`\sqrt{B^4 + t^2}`, replace sqrt(2) times that (l2); B^2 + t, replace
      twice that (l1).

    Proof: the lemmas of this module. Replace at unit "rating" is two steps of add-remove, by
    the data set without the one cell. Rounding changes an entry of the difference by at most h, and
    there are N of them: a vector of norm at most h sqrt(N) (l2) or h N (l1) more.

    clamp: B > 0, to which centred ratings are clipped; centred_range: alpha > 0, length of
    `centred_interval`; without influence at unit "user"; damping: beta >= 0, of the users' means;
    without influence at unit "user"; n_items: columns of the catalogue; n_items - 1 is the most
    other ratings a user can have; weight_scale: t >= 0; the noise of Wgt itself is that of the
    joint vector over t; rounding: h >= 0: how far an entry of (Cov, t Wgt) may differ between
    neighbours beyond exact arithmetic. At unit "rating" one unit of the grid to which users'
    contributions are truncated, and twice the float error before that; at unit "user" the same for
    "replace", whose l2 proof needs <Cov, Cov'> >= 0 of what is summed. For "add-remove" of users 0
    is right where truncated magnitudes never exceed the exact ones. norm ("l1", "l2"): "l1" for
    Laplace noise, "l2" for Gaussian noise. It also shows the weights, see `covariance_weights`.
    entries ("full", "upper"): "full" for ``layout="packed"``, "upper" for noise of one scale on the
    triangle. Result: sensitivity of the stacked vector.

    Examples
    --------
    >>> rows = {"centred_range": 4.0, "damping": 20.0, "n_items": 3706}
    >>> round(covariance_sensitivity(1.0, **rows, unit="rating"), 4)
    1.6725
    >>> round(covariance_sensitivity(1.0, **rows, weight_scale=1.0, unit="rating"), 4)
    2.1831
    >>> round(covariance_sensitivity(1.0, **rows, weight_scale=1.0, neighbors="replace"), 4)
    2.0
    """
    _check_choices(norm, entries)
    check_relation(unit, neighbors)
    B, alpha, beta = _check_rows(clamp, centred_range, damping)
    t = _require("weight_scale", weight_scale, "0 leaves Wgt out of the release.")
    n = _check_items(n_items)
    cov, wgt = np.array([B * B]), np.ones(1)
    if unit == "rating":
        c = np.arange(n)
        rows: dict[str, Any] = {"clamp": B, "centred_range": alpha, "damping": beta}
        cov = covariance_profile(c, **rows, norm=norm, entries=entries)
        wgt = weight_profile(c, norm=norm, entries=entries)
    joint = np.hypot(cov, t * wgt) if norm == "l2" else cov + t * wgt
    n_matrices = 2 if t > 0.0 else 1
    one = float(joint.max()) + _rounding_share(rounding, n_matrices, n, norm, entries)
    return one * _replace_factor(neighbors, unit, norm)


def weight_sensitivity(
    n_items: int,
    *,
    rounding: float = 0.0,
    norm: str = "l2",
    entries: str = "full",
    neighbors: str = "add-remove",
    unit: str = "user",
) -> float:
    r"""Weights alone, Wgt = sum w e e^T: max of W(c) over c < n_items, or 1 at unit "user".

    Replace: twice that, at unit "user" sqrt(2) times in l2. Proof: the lemmas of this module.

    rounding: h >= 0, as for `covariance_sensitivity`, of the entries of Wgt; norm ("l1", "l2"): as
    for `covariance_sensitivity`; entries ("full", "upper"): as for `covariance_sensitivity`.

    Examples
    --------
    >>> round(weight_sensitivity(100, entries="upper", unit="rating"), 5)
    1.04201
    """
    _check_choices(norm, entries)
    check_relation(unit, neighbors)
    n = _check_items(n_items)
    one = 1.0
    if unit == "rating":
        one = float(weight_profile(np.arange(n), norm=norm, entries=entries).max())
    one += _rounding_share(rounding, 1, n, norm, entries)
    return one * _replace_factor(neighbors, unit, norm)


def _one_rating(
    c: NDArray[np.float64], shift: NDArray[np.float64], B: float, norm: str, entries: str
) -> NDArray[np.float64]:
    """S1, U1, S2 or U2 of the lemma, for common entries that move by ``shift`` at most."""
    n = c + 1.0
    some = c > 0.0
    product = shift * np.maximum(2.0 * B - shift, B)
    if norm == "l1":
        if entries == "full":
            return (c * c * product + B * B * (3.0 * c + 1.0)) / n * _UP
        return (np.where(some, 0.5 * (c * product + B * B), 0.0) + B * B) * _UP
    E = (np.sqrt(c) * product + B * B / (np.sqrt(c) + np.sqrt(n))) / np.sqrt(n)
    if entries == "full":
        square = c * E**2 + B**4 * (2.0 * c + 1.0) / n
    else:
        square = np.where(some, 0.5 * n * E**2, 0.0) + B**4
    return np.sqrt(square) * _UP


def _rounding_share(rounding: Any, n_matrices: int, n: int, norm: str, entries: str) -> float:
    h = _require("rounding", rounding, "pass the unit of the grid of the sums, or 0.")
    n_values = n_matrices * (n * n if entries == "full" else n * (n + 1) // 2)
    return h * (math.sqrt(n_values) if norm == "l2" else n_values)


def _replace_factor(neighbors: str, unit: str, norm: str) -> float:
    if neighbors == "add-remove":
        return 1.0
    return math.sqrt(2.0) if unit == "user" and norm == "l2" else 2.0


def _check_rows(clamp: Any, centred_range: Any, damping: Any) -> tuple[float, float, float]:
    B = _positive("clamp", clamp, "pass the bound to which centred ratings are clipped.")
    alpha = _positive("centred_range", centred_range, "pass the length of centred_interval.")
    beta = _require("damping", damping, "pass how many fictitious ratings a user's mean gets.")
    if not (1e-50 < B < 1e50 and 1e-50 < alpha < 1e50 and beta < 1e50):
        raise PrivacyParameterError(
            f"clamp={clamp!r}, centred_range={centred_range!r} and damping={damping!r} must not be "
            "so extreme that squares leave the range of float64: rescale the ratings to "
            "magnitudes near 1."
        )
    return B, alpha, beta


def _check_items(n_items: Any) -> int:
    n = _positive("n_items", n_items, "pass the number of columns.")
    if n != math.floor(n):
        raise PrivacyParameterError(
            f"n_items={n_items!r} must be an integer >= 1: pass the number of columns."
        )
    return int(n)


def _check_choices(norm: object, entries: object) -> None:
    for name, value, choices, remedy in (
        ("norm", norm, _NORMS, "'l1' for Laplace noise, 'l2' for Gaussian noise"),
        ("entries", entries, _ENTRIES, "'full' for layout='packed', 'upper' for one noise scale"),
    ):
        if not isinstance(value, str) or value not in choices:
            raise PrivacyParameterError(f"{name}={value!r} must be one of {choices}: {remedy}.")


def _counts(name: str, values: ArrayLike) -> NDArray[np.float64]:
    counts = np.asarray(values, dtype=np.float64)
    bad = counts[~((counts >= 0.0) & (counts == np.floor(counts)) & np.isfinite(counts))]
    if bad.size:
        raise PrivacyParameterError(
            f"{name} hold {float(bad[0])!r}, which must be an integer >= 0: pass numbers of "
            "ratings."
        )
    return counts


def _positive(name: str, value: Any, remedy: str) -> float:
    return require_number(name, value, positive=True, remedy=remedy)


def _require(name: str, value: Any, remedy: str) -> float:
    return require_number(name, value, positive=False, remedy=remedy)
