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

Both matrices are symmetric. For Gaussian noise all n_items^2 entries are measured, so that the l2
norm is Frobenius': `NoiseSource.release` with ``layout="packed"`` makes the deviation off the
diagonal smaller by sqrt(2). For Laplace noise the l1 norm measures each pair once, as the noise of
a triangle has one scale. Noise of one kind at the size of the other is too small, or larger than it
need be.

**Lemma (one rating).** A user with c ratings gets another; w = 1/c (l1) or 1/sqrt(c) (l2). Let
n = c + 1, and let x, x' be the rows without and with it. On the c common items
abs(x_i - x'_i) <= delta = min(alpha / (n + beta), 2 B). Proof: y and g lie in an
interval of length alpha, hence so does the first mean; the mean moves by
(y_new - ybar) / (n + beta); clipping shortens differences. Let P = delta max(2 B - delta, B). Then
Cov changes by at most

- l1 of the triangle: U(c) = c P / 2 + (3/2) B^2, below B alpha + (3/2) B^2 for every c;
- l2 of the full matrix: S(c)^2 = c E^2 + B^4 (2 c + 1) / n,

where E = (sqrt(c) P + B^2 / (sqrt(c) + sqrt(n))) / sqrt(n); and by B^2 if c = 0.

*Proof.* Products of common items change by P at most: let d = x - x', s = x + x'; then
abs(s_i) <= 2 B - abs(d_i) and 2 (x_i x_j - x'_i x'_j) = d_i s_j + s_i d_j, so that the change is at
most B (p + q) - p q with p = abs(d_i), q = abs(d_j) in [0, delta]. This is linear in p and in q,
hence largest at a corner: delta (2 B - delta) or B delta. Now let w >= w' be the weights at c and
at n. The entry of two common items changes by
w' (x_i x_j - x'_i x'_j) + (w - w') x_i x_j, at most b = w' P + (w - w') B^2. In the new row and
column 2 c + 1 entries are at most w' B^2. *l1:* on and above the diagonal there are c n / 2 and n
of those entries, and (c n / 2) b + n w' B^2 is U, as c n (w - w') = 1. *l2:* sqrt(c) b = E, as
sqrt(c) (w - w') = 1 / (sqrt(n) (sqrt(c) + sqrt(n))); so the squares sum to
c^2 b^2 + (2 c + 1) w'^2 B^4 = S^2. The limit follows from P <= 2 B delta and n delta <= alpha. QED.

For Wgt take P = 0 and B = 1: x = e does not move. All inequalities are then equalities. Its
values are 3/2 at every c > 0 (l1) and stay below sqrt(2) (l2).

**No trimming.** c is any number below n_items: a row that is cut to tau ratings may swap one for
the added one, which is worth a replacement, twice the values above.

**Lemma (one user).** Let w = 2/(c (c + 1)) for triangles in l1, or 1/c for full matrices in l2.
Then Cov changes by at most B^2 and Wgt by 1 under "add-remove"; "replace" takes twice that in l1
and sqrt(2) times in l2. *Proof.* All c (c + 1)/2 entries of the triangle, or c^2 of the matrix, are
at most w B^2. And <Cov, Cov'> = w w' (x . x')^2 >= 0, likewise for e. Attained by rows of -B and B,
for "replace" on disjoint items. QED.

**Both in one release.** The vector (Cov, t Wgt) changes by the sum of both changes in l1 and
sqrt(S(c)^2 + t^2 S_e(c)^2) in l2 for the *same* c, which is at most, and sometimes less than, what
the two maxima give.

**Rounding.** The values hold for real arithmetic. Truncation to a grid raises no magnitude,
but differences of contributions by up to one unit an entry, so that the rounding has to be paid
for, except where a user comes or goes: see `pair_sensitivity`.

Source: F. McSherry, I. Mironov, "Differentially private recommender systems", KDD 2009, Theorems
4 to 6. Their alpha is hi - lo, without the range of the item means: too small, and exceeded. The
bounds here are tighter at the right alpha, and need no condition on the damping.

**The sums.** `pair_sums` has Cov and t Wgt of a head of items in one release of two packed
triangles, and does everything that their bound rests on: it clips, centres, weights and truncates
to a grid. A triangle of 26,744 items has 3 * 10^8 entries: no more than a piece is held at a time.
"""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from skdpmf.exceptions import PrivacyParameterError
from skdpmf.kernels.covariance import accumulate_pairs, pair_blocks, triangle_starts
from skdpmf.privacy.clipped_sums import PiecedSum, require_terms
from skdpmf.privacy.sampler.grid import check_exact, exact_grid, require_number, truncate_to_grid
from skdpmf.privacy.users import (
    Rows,
    Users,
    each,
    handle_entry,
    make_handle,
    reveal,
    sealed,
    total,
)

_CENTRED_GRID = 2.0**-30  # of y - b, so that users' sums are exact
# Neighbours' entries differ by the grid of the sums and by the float errors of x; if a user comes
# or goes, truncation lowers what there is
_FLOAT_ERROR = 2.0**-44
_BLOCK_ENTRIES = 1 << 21


def pair_grid(n_slots: int, clamp: float) -> float:
    """Return the grid on which sums of all rows' shares of an entry are exact."""
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
    r"""Return the sensitivity of (Cov, t Wgt) in one release, its rounding paid for.

    - unit "rating": :math:`\max_{c < n\_items} \sqrt{S(c)^2 + t^2 S_e(c)^2}` (l2) or
      max (U(c) + t U_e(c)) (l1), of `rating_profile` for x and for e; replace twice that;
    - unit "user": :math:`\sqrt{B^4 + t^2}`, replace sqrt(2) times that (l2); B^2 + t, replace
      twice that (l1).

    Proof: the lemmas of this module. Replace at unit "rating" is two steps of add-remove, by
    the data set without the one cell. Rounding changes an entry of the difference by at most h, and
    there are N of them: a vector of norm at most h sqrt(N) (l2) or h N (l1) more. h is a unit of
    the grid and the float error before it; for "add-remove" of users it is 0, as truncated
    magnitudes never exceed the exact ones. The l2 proof for "replace" of users needs
    <Cov, Cov'> >= 0 of what is summed.

    relation: unit and neighbouring relation; clamp, damping, weight_scale: B, beta and t; noise
    ("gaussian", "laplace"): Gaussian noise is made for full symmetric matrices in l2, Laplace noise
    for triangles in l1; n_items: size of the head, at most; centred_range: alpha; grid: of
    `pair_grid`, or coarser.
    """
    (unit, neighbors), n = relation, n_items
    remedy = "pass the bound to which centred ratings are clipped."
    B = require_number("clamp", clamp, positive=True, remedy=remedy)
    remedy = "pass the length of centred_interval."
    alpha = require_number("centred_range", centred_range, positive=True, remedy=remedy)
    remedy = "pass how many fictitious ratings a user's mean gets."
    beta = require_number("damping", damping, positive=False, remedy=remedy)
    remedy = "pass the factor of the second matrix."
    t = require_number("weight_scale", weight_scale, positive=False, remedy=remedy)
    if not (1e-50 < B < 1e50 and 1e-50 < alpha < 1e50 and beta < 1e50):
        raise PrivacyParameterError(
            f"clamp={clamp!r}, centred_range={centred_range!r} and damping={damping!r} must not be "
            "so extreme that squares leave the range of float64: rescale the ratings to "
            "magnitudes near 1."
        )
    cov, wgt = np.array([B * B]), np.ones(1)
    if unit == "rating":
        c = np.arange(n)
        cov = rating_profile(c, noise, clamp=B, centred_range=alpha, damping=beta)
        wgt = rating_profile(c, noise)
    h = grid + _FLOAT_ERROR * max(B, B * B)
    if relation == ("user", "add-remove"):
        h = 0.0
    if noise == "gaussian":
        one = float(np.hypot(cov, t * wgt).max()) + h * math.sqrt(2 * n * n)
        replaced = math.sqrt(2.0) if unit == "user" else 2.0
    else:
        one, replaced = float((cov + t * wgt).max()) + h * (n * (n + 1)), 2.0
    return one * (replaced if neighbors == "replace" else 1.0)


class PairTerms(NamedTuple):
    """Public terms of `pair_sums`: those of a `Bound`, and how it is released."""

    sensitivity: float
    norm: str
    layout: str
    unit: str
    neighbors: str
    n_slots: int
    private: bool
    shape: tuple[int, int]
    grid: float
    pieces: list[tuple[int, int]]


@sealed
def pair_sums(
    users: Users,
    head: NDArray[np.int64],
    means: NDArray[np.float64],
    *,
    value_range: tuple[float, float],
    clamp: float,
    damping: float,
    weight_scale: float,
    noise: str,
    n_pieces: int,
) -> PiecedSum:
    """Return a handle of both triangles, to be released in pieces by `Curator.release_pieces`.

    users: with ratings in quarter ranges; head (h,): columns, ascending, chosen by released values;
    means (n_items,): released item means; value_range: of ratings and means; others are clipped to
    it; clamp, damping, weight_scale: B, beta and t; noise: as for `pair_sensitivity`; n_pieces:
    their approximate number.

    It has the attributes of `PairTerms`: its shape is (2, h (h + 1) / 2), and ``pieces`` holds the
    first and last row of each piece, which public sizes decide.
    """
    h = len(head)
    require_terms(weight_scale=weight_scale)
    if np.any(np.diff(head) <= 0):
        raise PrivacyParameterError(
            f"head={head!r} must be ascending, without repetitions: an item that is there "
            "twice counts its ratings twice."
        )
    # without privacy those of the published main algorithm
    unit = users.unit if users.private else "rating"
    low, high = value_range
    means = np.clip(means[head], low, high)
    interval, grid = centred_interval(value_range, means), pair_grid(users.n_slots, clamp)
    check_exact(users.n_slots, max(clamp**2, 1.0), grid, degree=1)
    sensitivity = pair_sensitivity(
        (unit, users.neighbors),
        clamp=clamp,
        damping=damping,
        weight_scale=weight_scale,
        noise=noise,
        n_items=h,
        centred_range=interval[1] - interval[0],
        grid=grid,
    )
    how = {"value_range": value_range, "damping": damping, "clamp": clamp}
    given = each(reveal(users), _pair_terms, head, means, noise, unit, how)
    triangles = _Triangles(given, h, grid, weight_scale)
    kind = ("l2", "packed") if noise == "gaussian" else ("l1", "full")
    near = users.unit, users.neighbors, users.n_slots, users.private
    pieces = pair_blocks(triangles.starts, n_pieces, _BLOCK_ENTRIES)
    public = PairTerms(sensitivity, *kind, *near, triangles.shape, grid, pieces)
    return make_handle(PiecedSum, handle_entry(users).fit, public, triangles)


class _Triangles:
    """The exact sums, a piece at a time; given: what the sums of each block are made of."""

    def __init__(self, given: Any, h: int, grid: float, weight_scale: float) -> None:
        self._given, self._grid, self._scales = given, grid, (grid, grid * weight_scale)
        self.starts, self.shape = triangle_starts(h), (2, h * (h + 1) // 2)

    def sums_of(self, start: int, stop: int) -> Iterator[tuple[int, slice, int, Any]]:
        """Sum the rows [start, stop) of both triangles.

        Yields matrix: 0 for Cov, 1 for t Wgt; entries: of the packed triangle; place: of the first
        value in the whole release; values: the sums.
        """
        entries = slice(int(self.starts[start]), int(self.starts[stop]))
        size = entries.stop - entries.start
        sums = total(each(self._given, _piece_sums, self._grid, start, stop, size))
        for matrix in (0, 1):
            place = matrix * self.shape[1] + entries.start
            yield matrix, entries, place, sums[matrix] * self._scales[matrix]


def _pair_terms(
    rows: Rows, head: Any, means: Any, noise: str, unit: str, how: dict[str, Any]
) -> tuple[Any, ...]:
    """Return what `accumulate_pairs` takes of the rows of a block."""
    R = rows.R if len(head) == rows.n_items else rows.R[:, head]
    R.sort_indices()
    bounded = Rows(R, rows.n_jobs)
    x, by_item = centre_rows(bounded, means, **how), bounded.by_item
    columns = R.indices.astype(np.uint16 if len(head) < 2**16 else np.int64)
    items = by_item.indptr, by_item.indices, by_item.data
    return R.indptr, columns, x, covariance_weights(bounded.n_ratings, noise, unit), *items


def _piece_sums(given: Any, grid: float, start: int, stop: int, size: int) -> NDArray[np.int64]:
    sums = np.empty((2, size), np.int64)
    accumulate_pairs(*given, grid, start, stop, sums[0], sums[1])
    return sums


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


def centred_interval(
    rating_range: tuple[float, float], item_means: NDArray[np.float64]
) -> tuple[float, float]:
    r"""Return [lo - max_i mu_i, hi - min_i mu_i], which holds every r_i - mu_i.

    Clamp the global mean of the centred ratings to it, too. The length is alpha of this module; it
    is at most 2 (hi - lo), which is also what holds before item means are known.

    Proof: lo <= r_i <= hi and min mu <= mu_i <= max mu.

    rating_range: (lo, hi), lo < hi, to which all ratings are clipped; item_means (n_items,): the
    released mu_i, clamped to it, of all items, rated or not. The ends are rounded outwards.
    """
    lo, hi = rating_range
    # differences of doubles round by half a step; values computed the same way stay within
    return (
        math.nextafter(lo - float(item_means.max()), -math.inf),
        math.nextafter(hi - float(item_means.min()), math.inf),
    )


def covariance_weights(n_ratings: ArrayLike, noise: str, unit: str) -> NDArray[np.float64]:
    r"""Return the weights w of rows with c ratings, as the lemmas of this module need them.

    ========  ====================  =================
    unit      noise "laplace"       noise "gaussian"
    ========  ====================  =================
    rating    1 / c                 1 / sqrt(c)
    user      2 / (c (c + 1))       1 / c
    ========  ====================  =================

    They are a function of c and as private as the ratings.

    n_ratings (n_users,): c >= 0, of distinct items; without any trimming at unit "rating". Weights
    are rounded down by 2**-50, and 0 for users without ratings.
    """
    c = np.asarray(n_ratings, np.float64)
    share = c  # what the l1 norm of the weighted entries is divided by
    if unit == "user":
        share = c * c if noise == "gaussian" else c * (c + 1.0) / 2.0
    if noise == "gaussian":
        share = np.sqrt(share)
    return np.where(c > 0.0, _DOWN / np.where(c > 0.0, share, 1.0), 0.0)


def rating_profile(
    n_others: ArrayLike,
    noise: str,
    *,
    clamp: float = 1.0,
    centred_range: float = 0.0,
    damping: float = 0.0,
) -> NDArray[np.float64]:
    r"""Return how far Cov moves when a user with c ratings gets another one: S(c) or U(c).

    The lemma for one rating, relation "add-remove". As it stands, for x = e that does not move, it
    is how far Wgt moves, exactly.

    n_others: c >= 0; noise: Gaussian for S, of full matrices in l2, Laplace for U, of triangles in
    l1; clamp, centred_range, damping: B, alpha and beta.
    """
    c, B = np.asarray(n_others, np.float64), clamp
    n = c + 1.0
    shift = np.minimum(centred_range / (n + damping), 2.0 * B)
    product = shift * np.maximum(2.0 * B - shift, B)
    if noise == "laplace":
        return (np.where(c > 0.0, 0.5 * (c * product + B * B), 0.0) + B * B) * _UP
    E = (np.sqrt(c) * product + B * B / (np.sqrt(c) + np.sqrt(n))) / np.sqrt(n)
    return np.sqrt(c * E**2 + B**4 * (2.0 * c + 1.0) / n) * _UP
