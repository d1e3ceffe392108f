r"""Bounded sums: the one way from values of users to a release.

Every function here takes per-user values, clips each user's *whole* contribution x_i to a bound by
itself, truncates it towards zero to a public grid and returns S = sum over users i of x_i as a
`BoundedSum`, with the largest distance of S on neighbouring data. Whatever the values are, and
whoever computed them, the bound holds: `_own` takes values that were made for these users alone, as
many as there are, and `_bounded_values` clips each to 1e50 (NaN to 0) before any is multiplied, so
that products of three of them and their squares are finite, and 0 times one is 0.

**Why.** x_i depends on user i's row, on what was released before and on public values only
(`skdpmf.privacy.users`). So neighbours at unit "user" differ in one x_i:

- add-remove: x_i becomes 0, as an empty row contributes nothing: sup |x|;
- replace: x_i becomes any other x': sup |x - x'|, at most 2 sup |x|. It is sqrt(2) sup |x| in l2
  where <x, x'> >= 0 always, since \|x - x'\|^2 = \|x\|^2 + \|x'\|^2 - 2 <x, x'>.

Clipping multiplies x_i by c_i = min(1, C / \|x_i\|), a hair (2^-40) inside, so that the rounding of
norms and products does not leave the ball. Truncation towards zero raises no magnitude, hence no
norm. Sums of values on the grid are exact in float64, in any order and on any blocks of users
(`check_exact`), so that nobody else's part of S changes by a bit.

**Three kinds.** A linear sum (`item_scalars`, `item_vectors`, `user_scalars`, and for the unit of
one rating `rating_sums`) adds vectors. A sum of rank one (`gram`, `products`, `centred_products`)
adds x x', and <x x', y y'> = (x . y)^2 >= 0. The regression of each item (`item_grams`) adds one of
each kind. Every kind has the bounds above.

``influence`` holds public factors f_i, clipped to [0, 1]: the contribution of user i is clipped to
f_i C, so that what user i changes is f_i times the bound (personal levels).

In a fit without privacy (``users.private`` False) nothing is clipped or truncated.

Each sum has two parts: a function of the rows and values of a block of users, which runs where they
are, and the bound, which rests on public terms alone.
"""

import math
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from skdpmf.exceptions import PrivacyParameterError
from skdpmf.kernels.jit_and_threads import balanced_blocks, run_blocks
from skdpmf.kernels.sums import accumulate_items, accumulate_rhs, pair_products, row_norms
from skdpmf.privacy import users as core
from skdpmf.privacy.sampler.grid import check_exact, require_number, truncate_to_grid
from skdpmf.privacy.users import (
    USERS_AT_ONCE,
    Handle,
    PerUser,
    Rows,
    Users,
    cut,
    each,
    reveal,
    sealed,
    total,
)

_HAIR, _MOST = 2.0**-40, 1e50
_RATINGS_AT_ONCE = 2**21


class Bound(NamedTuple):
    """Public terms of a `BoundedSum`: what one unit of privacy changes, in which norm and layout.

    `sensitivity` is the largest distance on neighbouring data (`unit`, `neighbors`) in `norm`, "l2"
    or "l1"; of the full symmetric matrices for `layout` "packed". A value has at most `n_slots`
    contributions, which were clipped unless `private` is False: a fit without privacy.
    """

    sensitivity: float
    norm: str
    layout: str
    unit: str
    neighbors: str
    n_slots: int
    private: bool


class BoundedSum(Handle):
    """Handle of a sum over users, with the attributes of `Bound`; its shape is not among them.

    Only the functions of this module make one.
    """

    __slots__ = ()

    def without_privacy(self) -> NDArray[np.float64]:
        """Return the exact sum, in a fit without privacy."""
        if self.private:
            raise PrivacyParameterError(
                "the exact values of a BoundedSum are private: release it by the curator."
            )
        values: NDArray[np.float64] = reveal(self)
        return values


class PiecedSum(Handle):
    """Handle of a sum that is too large to hold, with a bound of its own: see `pair_sums`."""

    __slots__ = ()


def shrink_to_ball(norm: Any, radius: Any) -> NDArray[np.float64]:
    """Return factors that bring vectors of these norms into a ball; 0 for one that is not finite.

    Vectors that are inside by a sixteenth of a hair stay as they are; others end a hair inside.
    """
    norm, radius = np.asarray(norm, np.float64), np.asarray(radius, np.float64)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        factor = radius * (1.0 - _HAIR) / norm
    factor = np.where(norm <= radius * (1.0 - _HAIR / 16.0), 1.0, factor)
    return np.where(np.isfinite(norm), factor, 0.0)


@sealed
def item_scalars(
    users: Users,
    terms: PerUser,
    *,
    clip: float,
    grid: float,
    scale: float = 1.0,
    presence: float = 0.0,
    signed: bool = True,
    norm: str = "l2",
    influence: NDArray[np.float64] | None = None,
) -> BoundedSum:
    r"""Sum a number for each rating by item, and count the users.

    With c_i the factor that brings t_i = (t_ij)_j into the ball of radius C,
    x_i = (s c_i t_i / C, q p_i): a number for each item, of norm s at most, and where q > 0 one
    more. p_i is c_i for signed terms, whose mean clip factor is of interest, else 1; without
    ratings it is 0.

    - add-remove: sqrt(s^2 + q^2), in l1 s + q;
    - replace: \|x - x'\|^2 <= (2 s)^2 + q^2 (c - c')^2: sqrt(4 s^2 + q^2), in l1 2 s + q. A user
      whose terms are clipped to almost nothing still has s, of any sign, and hardly any q;
    - replace for t >= 0 (``signed=False``, enforced): q cancels where both users have ratings, and
      <t, t'> >= 0: max(sqrt(2) s, sqrt(s^2 + q^2)), in l1 max(2 s, s + q).

    terms: t_ij, aligned with the ratings; clip: C, in the norm; grid: power of two; scale,
    presence: s > 0 and q >= 0; signed: whether terms may be negative; norm: "l2" or "l1";
    influence (n_users,): f_i, times all of x_i. Result: of shape (n_items,), or (n_items + 1,) with
    a presence.
    """
    _require(norm, clip=clip, scale=scale, presence=presence)
    s, q = float(scale), float(presence)
    if users.private:
        check_exact(users.n_slots, max(s, q), grid, degree=1)
    given = _own(users, terms), _influence(users, influence), clip, grid, s, q, signed, norm
    values = total(each(reveal(users), _item_scalars, users.private, *given))
    if norm == "l1":
        whole, both = s + q, 2.0 * s + (q if signed else 0.0)
    else:
        whole, both = math.hypot(s, q), math.hypot(2.0 * s, q) if signed else math.sqrt(2.0) * s
    return _bounded(users, values, whole, max(both, whole), norm=norm)


def _item_scalars(rows: Rows, private: bool, t: Any, share: Any, *how: Any) -> Any:
    clip, grid, s, q, signed, norm = how
    t = _floats(rows, t)
    t = t if signed else np.maximum(t, 0.0)
    factor: Any = np.ones(rows.n_users)
    if private:
        t, size = _bounded_values(t, lambda t: _norms(rows, t, norm))
        factor = shrink_to_ball(size, clip)
    presences = (factor if signed else 1.0) * share * (rows.n_ratings > 0)
    scale, U = factor * share * (s / clip), np.ones((rows.n_users, 1))
    values = _by_item(rows, private, t, scale, U, grid)[:, 0]
    if q > 0.0:
        presences = q * presences
        presences = truncate_to_grid(presences, grid) if private else presences
        values = np.append(values, presences.sum())
    return values


@sealed
def user_scalars(
    users: Users,
    values: PerUser,
    *,
    clip: float,
    grid: float,
    presence: float = 0.0,
    norm: str = "l2",
) -> BoundedSum:
    r"""Sum one number for each user, and count the users.

    x_i = (q [n_i > 0], v_i), abs(v_i) <= C, for users with ratings.

    - unit "user", add-remove: sqrt(q^2 + C^2), in l1 q + C;
    - unit "user", replace: q cancels where both have ratings: max(2 C, sqrt(q^2 + C^2)), in l1
      max(2 C, q + C);
    - unit "rating", for q = 0: a rating that comes or goes changes the value of its user, between
      any two values: 2 C. One that is exchanged for any other changes those of two users: 4 C.

    values: v_i; clip: C; grid: power of two; presence: q >= 0; norm: "l2" or "l1". Result: of shape
    (2,), or (1,) without a presence.
    """
    _require(norm, clip=clip, presence=presence)
    q, C = float(presence), float(clip)
    if users.private:
        check_exact(users.n_slots, max(q, C), grid, degree=1)
    given = _own(users, values, of_users=True), C, grid, q
    result = total(each(reveal(users), _user_scalars, users.private, *given))
    if users.unit == "rating" and q == 0.0:
        return _bounded(users, result, 2.0 * C, 4.0 * C, norm=norm, unit="rating")
    whole = q + C if norm == "l1" else math.hypot(q, C)
    return _bounded(users, result, whole, max(2.0 * C, whole), norm=norm)


def _user_scalars(
    rows: Rows, private: bool, values: Any, clip: float, grid: float, q: float
) -> Any:
    some = rows.n_ratings > 0
    own, count = _floats(rows, values, of_users=True)[some], float(np.count_nonzero(some))
    if private:
        own = truncate_to_grid(np.clip(_bounded_values(own)[0], -clip, clip), grid)
        q = float(truncate_to_grid(q, grid))
    return np.array([count * q, own.sum()] if q > 0.0 else [own.sum()])


@sealed
def rating_sums(
    users: Users,
    *,
    scale: float,
    grid: float,
    largest: float | None = None,
    by_item: bool = True,
    norm: str = "l2",
) -> BoundedSum:
    r"""Count the ratings of each item and sum their values: the unit is one rating.

    A known cell contributes s to its item's count and v = y / Y, clipped to [-1, 1], to its sum.
    Nothing else in the row matters. So a cell that comes or goes changes S by (s, v), and one that
    is exchanged for any other cell, of any user, by (s, v) and (s, v') at two places, or by v - v'
    at one. Add-remove: sqrt(s^2 + 1), in l1 s + 1; replace: max(2, sqrt(2 (s^2 + 1))), in l1
    2 (s + 1). Counts alone: s, replace sqrt(2) s, in l1 2 s. Where all ratings are summed at one
    place (``by_item`` False) these bounds hold too, as adding up places shortens no l1 distance and
    the counts cancel there.

    users: of unit "rating"; scale: s > 0; grid: power of two; largest: Y; None: counts alone; norm:
    "l2" or "l1". Result: of shape (2, n_items), (2,), or (n_items,) for counts alone.
    """
    _require(norm, scale=scale, largest=1.0 if largest is None else largest)
    s, n_slots = float(scale), users.n_slots * (1 if by_item else users.n_items)
    if users.private:
        for largest_value in (s, 1.0):
            check_exact(n_slots, largest_value, grid, degree=1)
        s = float(truncate_to_grid(s, grid))
    given = s, grid, largest, by_item
    values = total(each(reveal(users), _rating_sums, users.private, *given))
    one, l1 = float(scale), norm == "l1"
    whole, both = one, (2.0 if l1 else math.sqrt(2.0)) * one
    if largest is not None:
        whole = one + 1.0 if l1 else math.hypot(one, 1.0)
        both = 2.0 * whole if l1 else max(2.0, math.sqrt(2.0) * whole)
    return _bounded(users, values, whole, both, norm=norm, unit="rating", n_slots=n_slots)


def _rating_sums(rows: Rows, private: bool, s: float, *how: Any) -> Any:
    grid, largest, by_item = how
    places = rows.indices if by_item else np.zeros(rows.nnz, np.intp)
    n_places = rows.n_items if by_item else 1
    values = s * np.bincount(places, minlength=n_places)
    if largest is not None:
        v = rows.data / largest
        if private:
            v = truncate_to_grid(np.clip(_bounded_values(v)[0], -1.0, 1.0), grid)
        values = np.stack((values, np.bincount(places, weights=v, minlength=n_places)))
    return values if by_item else values[..., 0]


@sealed
def item_vectors(
    users: Users,
    terms: PerUser,
    factors: PerUser,
    *,
    clip: float,
    grid: float,
    influence: NDArray[np.float64] | None = None,
) -> tuple[BoundedSum, PerUser]:
    r"""Sum a number for each rating times the user's vector, by item.

    x_i = (c_i t_ij u_i)_j, all items stacked, has norm c_i \|t_i\| \|u_i\| <= C: add-remove C,
    replace 2 C.

    terms: t_ij, aligned with the ratings; factors (n_users, k): u_i; clip: C; grid: power of two,
    for products; influence (n_users,): f_i. Returns sums: of shape (n_items, k); clipped: c_i, at
    most f_i, 0 for users without ratings: weights for the `gram` that belongs to it.
    """
    _require(clip=clip)
    if users.private:
        check_exact(users.n_slots, math.sqrt(clip), grid)
    given = _own(users, terms), _own(users, factors, of_users=True), _influence(users, influence)
    made = each(reveal(users), _item_vectors, users.private, *given, clip, grid)
    clipped = core.per_user(users, made[1], True, np.zeros(1))
    return _bounded(users, total(made[0]), float(clip), 2.0 * clip), clipped


def _item_vectors(rows: Rows, private: bool, t: Any, U: Any, share: Any, *how: Any) -> Any:
    (clip, grid), factor = how, np.ones(rows.n_users)
    t, U = _floats(rows, t), _floats(rows, U, of_users=True)
    if private:
        t, size = _bounded_values(t, lambda t: _norms(rows, t, "l2"))
        U, length = _bounded_values(U, _lengths)
        factor = shrink_to_ball(size * length, clip * share)
    factor[rows.n_ratings == 0] = 0.0
    return _by_item(rows, private, t, factor, U, grid), np.minimum(factor, share)


@sealed
def item_grams(
    users: Users,
    weights: PerUser,
    residuals: PerUser,
    factors: PerUser,
    *,
    gram_clip: float,
    clip: float,
    grid: float,
    of_ratings: bool = False,
) -> tuple[BoundedSum, BoundedSum]:
    r"""Sum what every item's regression on its users needs, by item.

    x_i = (c_i w_ij u_i u_i')_j and (c_i w_ij e_ij u_i)_j, all items stacked, w >= 0 (enforced),
    with one factor for both: c_i \|w_i\| \|u_i\|^2 <= B and c_i \|w_i e_i\| \|u_i\| <= C.
    Add-remove: B (Frobenius) and C; replace: sqrt(2) B, as
    <w u u', v y y'> = w v (u . y)^2 >= 0, and 2 C.

    weights, residuals: w_ij and e_ij, aligned with the ratings; factors (n_users, k): u_i, or with
    `of_ratings` (n_ratings, k): u_ij in its place: the norms are then
    sqrt(sum_j w_ij^2 \|u_ij\|^4) and sqrt(sum_j w_ij^2 e_ij^2 \|u_ij\|^2), and each item's term is
    bounded as before; gram_clip, clip: B and C; grid: power of two, for products. Result: of shapes
    (n_items, k (k + 1) / 2), packed lower triangles, and (n_items, k).
    """
    _require(gram_clip=gram_clip, clip=clip)
    if users.private:
        check_exact(users.n_slots, math.sqrt(max(gram_clip, clip)), grid)
    own = _own(users, weights), _own(users, residuals)
    given = *own, _own(users, factors, of_users=not of_ratings), gram_clip, clip, grid, of_ratings
    grams, vectors = total(each(reveal(users), _item_grams, users.private, *given))
    B, C = float(gram_clip), float(clip)
    packed = _bounded(users, grams, B, math.sqrt(2.0) * B, layout="packed")
    return packed, _bounded(users, vectors, C, 2.0 * C)


def _item_grams(
    rows: Rows, private: bool, weight: Any, residual: Any, U: Any, *how: Any
) -> tuple[Any, Any]:
    gram_clip, clip, grid, of_ratings = how
    U = np.ascontiguousarray(_floats(rows, U, of_users=not of_ratings))
    weight, residual = np.maximum(_floats(rows, weight), 0.0), _floats(rows, residual)
    if private:
        weight, residual = _bounded_values(weight)[0], _bounded_values(residual)[0]
        U, length = _bounded_values(U, _lengths)
        one, whole = (length, 1.0) if of_ratings else (1.0, length)
        size = _norms(rows, weight * one**2, "l2") * whole**2
        other = _norms(rows, weight * residual * one, "l2") * whole
        factor = np.minimum(shrink_to_ball(size, gram_clip), shrink_to_ball(other, clip))
        weight = weight * np.repeat(factor, rows.n_ratings)
    by_item = rows.by_item
    weight, residual = weight[by_item.data], residual[by_item.data]
    place = by_item.data.astype(by_item.indptr.dtype) if of_ratings else by_item.indices
    k, pattern = U.shape[1], (by_item.indptr, place)
    grams, vectors = np.empty((rows.n_items, k * (k + 1) // 2)), np.empty((rows.n_items, k))
    given = *pattern, weight, residual, U, grid
    run_blocks(
        lambda start, stop: accumulate_items(*given, start, stop, grams, vectors),
        by_item.indptr,
        rows.n_jobs,
    )
    if private:  # the kernel's sums are exact, whatever it does, or they are none
        for j in core.few_of(rows.n_items):
            own = np.empty((1, grams.shape[1])), np.empty((1, k))
            accumulate_items.plain(pattern[0][j : j + 2], *given[1:], 0, 1, *own)
            if any(map(np.any, (own[0] != grams[j], own[1] != vectors[j]))):
                raise PrivacyParameterError("accumulate_items gave other sums than its plain form.")
    return grams, vectors


@sealed
def gram(
    users: Users,
    factors: PerUser,
    *,
    clip: float,
    grid: float,
    weights: PerUser | None = None,
    influence: NDArray[np.float64] | None = None,
) -> BoundedSum:
    r"""Sum the products of each user's vector with itself.

    x_i = c_i w_i u_i u_i', 0 <= w_i <= 1 (enforced), c_i w_i \|u_i\|^2 <= C^2. Frobenius norm C^2;
    replace sqrt(2) C^2, as <u u', y y'> = (u . y)^2 >= 0. Users without ratings count nothing.

    factors (n_users, k): u_i; clip: C; grid: power of two, for products; weights: w_i; None: 1;
    influence (n_users,): f_i: the bound is f_i C^2. Result: the packed lower triangle.
    """
    own = None if weights is None else _own(users, weights, of_users=True)
    given = _own(users, factors, of_users=True), own
    # more at once: threads would wait for each other between the short steps of few vectors
    return _products(users, _gram_vectors, given, clip, grid, influence=influence, step=2**13)


def _gram_vectors(rows: Rows, U: Any, weights: Any) -> Any:
    U, root = _floats(rows, U, of_users=True), np.ones((rows.n_users, 1))
    if weights is not None:
        own = _bounded_values(_floats(rows, weights, of_users=True))[0]
        root = np.sqrt(np.clip(own, 0.0, 1.0))[:, None]
    return lambda start, stop: root[start:stop] * U[start:stop]


@sealed
def products(
    users: Users,
    function: Callable[..., Any],
    *args: Any,
    clip: float,
    grid: float,
    diagonal: bool = True,
) -> BoundedSum:
    r"""Sum the products of each user's vector with itself, for vectors too many to hold.

    As `gram`, of vectors x_i that are computed for some thousand users at a time: add-remove C^2,
    replace sqrt(2) C^2, also without the diagonal, as leaving it out is a projection. Users without
    ratings count nothing.

    function: ``function(rows, start, stop, *args)`` returns the vectors of the users [start, stop),
    an array or sparse array with a row for each of them, and must be per user as for `Users.map`;
    ``*args``: `PerUser`, released values and public ones; clip: C; grid: power of two, for
    products; diagonal: whether the diagonal is summed, or 0. Result: the packed lower triangle.
    """
    mapped, own, alone = core.as_map(users, function, args, {})
    width = _vectors_of(mapped, *alone).shape[1:]
    looks = users.private and core.handle_entry(users).fit.looks_at(function, width)
    given = mapped, width, looks, *own
    return _products(users, _map_vectors, given, clip, grid, diagonal=diagonal)


def _map_vectors(rows: Rows, mapped: Any, width: Any, looks: bool, *own: Any) -> Any:
    def vectors(start: int, stop: int) -> Any:
        x = _vectors_of(mapped, rows, own, start, stop)
        core.refuse_unless_alike(mapped.function, x[:0], np.empty((0, *width), x.dtype))
        if looks and start == 0:
            slots = core.few_of(stop)
            few = _vectors_of(mapped, rows, own, 0, len(slots), slots=slots)
            core.refuse_unless_alike(mapped.function, x[slots], few)
        return x

    return vectors


def _vectors_of(
    mapped: Any, rows: Rows, own: Any, start: int = 0, stop: int = 1, slots: Any = None
) -> Any:
    """Return the vectors of users [start, stop)."""
    x = mapped(rows, own, start, stop, slots=slots)
    x = x.toarray() if sparse.issparse(x) else x
    if len(x) != stop - start:
        raise PrivacyParameterError(
            f"function={mapped.function!r} gave {len(x)} vectors for {stop - start} users and "
            "must give one for each: return those of the users [start, stop) alone."
        )
    return x


@sealed
def centred_products(
    users: Users, terms: PerUser, at: PerUser, head: Any, centres: Any, *, clip: float, grid: float
) -> BoundedSum:
    r"""Sum the products of each user's vector of items with itself, less one of a few centres.

    x_i = (t_ij - m_j)_j over a head of items, m the centre of number w_i, the terms truncated
    towards zero and the centres rounded to the grid; x_i = 0 where \|x_i\| > C, and for a user
    without ratings of the head. The bounds are those of `gram`. With V and N the sums of t_i and
    the numbers of the users of each centre,

        S = sum_i t_i t_i' - V' m - m' V + m' diag(N) m,

    and the work is that of pairs of a user's ratings, not of pairs of items. All sums are exact, as
    \|t_i\| is at most \|m\| + C.

    terms: t_ij, aligned with the ratings; at (n_users,): w_i; head (h,): items; centres (c, h):
    public, or released; clip: C; grid: power of two, for products. Result: the packed lower
    triangle. It is clipped without privacy, too.
    """
    _require(clip=clip)
    m = np.vstack((np.rint(centres / grid) * grid, np.zeros(len(head))))
    largest = math.sqrt(np.sum(m * m, axis=1).max())
    check_exact(users.n_slots, 2.0 * (clip + largest), grid)
    own = _own(users, terms), _own(users, at, of_users=True)
    found = total(each(reveal(users), _centred_products, users.private, *own, head, m, clip, grid))
    lower = np.tril_indices(len(head))
    pairs, V, N = np.split(found, [len(lower[0]), len(lower[0]) + m.size])
    cross = V.reshape(m.shape).T @ m
    rest = (m * N[:, None]).T @ m - cross - cross.T
    return _triangle(users, pairs + rest[lower], clip)


def _centred_products(
    rows: Rows, private: bool, given: Any, at: Any, head: Any, m: Any, clip: float, grid: float
) -> Any:
    n, squares = len(m) - 1, np.sum(m * m, axis=1)
    given, w = _floats(rows, given), _bounded_values(_floats(rows, at, of_users=True))[0]
    w = np.clip(w, 0, n - 1).astype(np.int64)

    def sums_of(start: int, stop: int) -> Any:
        part, of = slice(rows.indptr[start], rows.indptr[stop]), w[start:stop]
        pattern = rows.indices[part], rows.indptr[start : stop + 1] - rows.indptr[start]
        R = sparse.csr_array((given[part], *pattern), (stop - start, rows.n_items))[:, head]
        R.sort_indices()
        own, user = Rows(R, 1), np.repeat(np.arange(len(of)), np.diff(R.indptr))
        with np.errstate(over="ignore", invalid="ignore"):
            x = truncate_to_grid(R.data, grid)
            change = x * (x - 2.0 * m[of[user], R.indices])
            size = np.bincount(user, weights=change, minlength=len(of)) + squares[of]
            outside = ~(size <= clip**2 * (1.0 - _HAIR)) | (own.n_ratings == 0)
        x[outside[user]], of[outside] = 0.0, n  # whose centre is 0
        C = own.by_item
        pairs = pair_products(R.indptr, R.indices, x, (C.indptr, C.indices, C.data), grid * grid)
        V = np.bincount(of[user] * len(head) + R.indices, weights=x, minlength=m.size)
        return np.concatenate((pairs * (grid * grid), V, np.bincount(of, minlength=n + 1)))

    def part_of(first: int, last: int) -> Any:
        indptr, found = rows.indptr[first : last + 1], 0.0
        n_blocks = 1 + (indptr[-1] - indptr[0]) // _RATINGS_AT_ONCE
        for start, stop in balanced_blocks(indptr, n_blocks):
            found = found + sums_of(first + start, first + stop)
        return found

    return _summed(rows, private and grid, part_of)


@sealed
def stack(first: BoundedSum, second: BoundedSum) -> BoundedSum:
    """Return two sums of one shape as one release, first and second row.

    Its distance on neighbours is that of the pair: sqrt(a^2 + b^2), in l1 a + b.
    """
    one, two = core.handle_entry(first).public, core.handle_entry(second).public
    values, fit = (reveal(first), reveal(second)), core.handle_entry(first).fit
    if fit is not core.handle_entry(second).fit:
        raise PrivacyParameterError("first and second are sums of two fits: release them apart.")
    if one[1:] != two[1:] or values[0].shape != values[1].shape:
        raise PrivacyParameterError(
            f"first and second are of the kinds {one[1:]} and {two[1:]}, which must be equal, and "
            "their shapes too: release them apart."
        )
    a, b = one.sensitivity, two.sensitivity
    both = one._replace(sensitivity=a + b if one.norm == "l1" else math.hypot(a, b))
    return core.make_handle(BoundedSum, fit, both, np.stack(values))


@sealed
def padded(total: BoundedSum, shape: tuple[int, ...]) -> BoundedSum:
    """Return a sum with zeros at the end of each axis, which nobody contributes to."""
    values, own = np.zeros(shape), core.handle_entry(total)
    values[tuple(map(slice, own.values.shape))] = own.values
    return core.make_handle(BoundedSum, own.fit, own.public, values)


def _products(
    users: Users, vectors: Any, given: Any, clip: float, grid: float, **how: Any
) -> BoundedSum:
    """Clip the vectors of users [start, stop), which a function of rows gives; sum their products.

    how: diagonal, influence, and step: so many users are taken at once.
    """
    _require(clip=clip)
    if users.private:
        check_exact(users.n_slots, clip, grid, degree=2)
    share, step = _influence(users, how.get("influence")), how.get("step", USERS_AT_ONCE)
    terms = share, clip, grid, step, vectors, *given
    values = total(each(reveal(users), _product_sums, users.private, *terms))
    if not how.get("diagonal", True):
        np.fill_diagonal(values, 0.0)
    return _triangle(users, values[np.tril_indices(len(values))], clip)


def _product_sums(rows: Rows, private: bool, share: Any, *given: Any) -> Any:
    clip, grid, step, vectors, *own = given
    radius, of = np.broadcast_to(clip * np.sqrt(share), rows.n_users), vectors(rows, *own)

    def part(first: int, last: int) -> Any:
        found: Any = 0.0
        # one empty block where there are no users, for the shape
        for start in range(first, max(last, first + 1), step):
            stop = min(start + step, last)
            x = of(start, stop)
            factor: Any = rows.n_ratings[start:stop] > 0
            if private:
                x, size = _bounded_values(x, lambda x: np.linalg.norm(x, axis=1))
                factor = factor * shrink_to_ball(size, radius[start:stop])
            x = x * factor[:, None]
            x = truncate_to_grid(x, grid) if private else x
            found = found + x.T @ x
        return found

    return _summed(rows, private and grid, part)


def _by_item(rows: Rows, private: bool, t: Any, scale: Any, U: Any, grid: float) -> Any:
    """Return the sums of `accumulate_rhs` over all users, of shape (n_items, k)."""
    unit = grid if private else 0.0

    def part(start: int, stop: int) -> NDArray[np.float64]:
        out = np.zeros((rows.n_items, U.shape[1]))
        accumulate_rhs(rows.indptr, rows.indices, t, scale, U, unit, start, stop, out)
        return out

    return _summed(rows, private and grid, part)


def _summed(rows: Rows, is_exact: Any, part: Callable[[int, int], Any]) -> Any:
    """Sum ``part(start, stop)`` over blocks of users, in threads where sums are exact."""
    lock = threading.Lock()
    found: list[Any] = []

    def add(first: int, last: int) -> None:
        own = part(first * USERS_AT_ONCE, min(last * USERS_AT_ONCE, rows.n_users))
        with lock:
            found[:] = [found[0] + own if found else own]

    # by the number of users alone: a function of some thousand rows may round by where they are cut
    blocks = np.arange(max(-(-rows.n_users // USERS_AT_ONCE), 1) + 1)
    run_blocks(add, blocks, rows.n_jobs if is_exact else 1)
    return found[0]


def _triangle(users: Users, values: NDArray[np.float64], clip: float) -> BoundedSum:
    """Return a packed sum of products of vectors of norm C at most."""
    return _bounded(users, values, clip**2, math.sqrt(2.0) * clip**2, layout="packed")


def _bounded(
    users: Users,
    values: NDArray[Any],
    add_remove: float,
    replace: float,
    *,
    norm: str = "l2",
    layout: str = "full",
    unit: str = "user",
    n_slots: int | None = None,
) -> BoundedSum:
    """Return the sum with the bound of the users' neighbouring relation."""
    if users.private and users.unit != unit:
        raise PrivacyParameterError(
            f"unit={users.unit!r} must be {unit!r} for this sum, whose bound is proved for one "
            f"{unit}: plan another statistic, or a budget of unit={unit!r}."
        )
    sensitivity = float(replace if users.neighbors == "replace" else add_remove)
    near, n = (users.unit, users.neighbors), n_slots or users.n_slots
    bound = Bound(sensitivity, norm, layout, *near, n, users.private)
    return core.make_handle(BoundedSum, core.handle_entry(users).fit, bound, values)


def _own(users: Users, values: PerUser, *, of_users: bool = False) -> Any:
    """Return values that were made for these users, one for each rating or for each user."""
    own = core.handle_values(users, values)
    if (core.handle_entry(values).place is None) != of_users:
        raise _of_others(of_users)
    return own


def _floats(rows: Rows, values: Any, *, of_users: bool = False) -> NDArray[np.float64]:
    """Return the values of a block in float64, one for each of its ratings or of its users."""
    if len(values) != (rows.n_users if of_users else rows.nnz):
        raise _of_others(of_users)
    return np.asarray(values, np.float64)


def _of_others(of_users: bool) -> PrivacyParameterError:
    return PrivacyParameterError(
        f"a sum needs a value for each {'user' if of_users else 'rating'} of its users, and was "
        "given others."
    )


def _bounded_values(values: Any, norms_of: Any = np.abs) -> tuple[Any, NDArray[np.float64]]:
    """Return values of magnitude 1e50 at most, NaN as 0, and their norms.

    The norms say whether any value is larger.
    """
    with np.errstate(all="ignore"):  # in threads too
        norms = norms_of(values)
        if not norms.max(initial=0.0) <= _MOST:
            values = np.clip(np.where(np.isnan(values), 0.0, values), -_MOST, _MOST)
            norms = norms_of(values)
    return values, norms


def _lengths(U: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return users' lengths; numpy's norm would copy the squares of all vectors."""
    return np.asarray(np.sqrt(np.einsum("ik,ik->i", U, U)))


def _require(norm: str = "l2", **numbers: float) -> None:
    """Raise unless the parameters of a sum are what its bound is proved for."""
    for name, value in numbers.items():
        remedy = "pass a public number."
        require_number(name, value, positive=name != "presence", remedy=remedy)
    if norm not in ("l1", "l2"):
        raise PrivacyParameterError(f"norm={norm!r} must be 'l1' or 'l2': pass one of them.")


def _norms(rows: Rows, terms: NDArray[np.float64], norm: str) -> NDArray[np.float64]:
    """Norm of each user's values, by compensated sums: right to some units in the last place."""
    out = np.empty(rows.n_users)
    rows.run(lambda start, stop: row_norms(rows.indptr, terms, norm == "l1", start, stop, out))
    return out


def _influence(users: Users, influence: NDArray[np.float64] | None) -> Any:
    """Return factors f_i in [0, 1]: 1 without any."""
    if influence is None or not users.private:
        return 1.0
    return cut(reveal(users), np.clip(np.where(np.isnan(influence), 0.0, influence), 0.0, 1.0))
