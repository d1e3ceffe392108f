r"""Sums beside those of `clipped_sums`, by its rules: a clip, a bound, a proof for each.

Linear sums (`user_scalars`, and for the unit of one rating `rating_sums`), and the regression of
each item (`item_grams`), which adds one of each kind.
`stack` and `padded` change the form of a sum, and `release_score` releases one of a private search.
"""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skdpmf.exceptions import PrivacyParameterError
from skdpmf.kernels.als import accumulate_items
from skdpmf.kernels.jit_and_threads import run_blocks
from skdpmf.privacy import users as core
from skdpmf.privacy.clipped_sums import (
    BoundedSum,
    bounded,
    bounded_values,
    floats,
    lengths_of,
    near,
    norms_of,
    one_of,
    own_values,
    products_bound,
    require_terms,
    shrink_to_ball,
    vectors_bound,
)
from skdpmf.privacy.curator_release import drawn, release_terms
from skdpmf.privacy.sampler.grid import check_exact, truncate_to_grid
from skdpmf.privacy.users import PerUser, Rows, Users, each, reveal, sealed, total


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
    require_terms(norm, clip=clip, presence=presence)
    q, C = float(presence), float(clip)
    if users.private:
        check_exact(users.n_slots, max(q, C), grid, degree=1)
    given = own_values(users, values, of_users=True), C, grid, q
    result = total(each(reveal(users), _user_scalars, users.private, *given))
    return bounded(users, result, users_bound(C, q, norm=norm, **near(users)), norm=norm)


def users_bound(C: float, q: float = 0.0, *, norm: str = "l2", **relation: Any) -> float:
    """Return the bound of `user_scalars`."""
    if relation["unit"] == "rating" and q == 0.0:
        return one_of(2.0 * C, 4.0 * C, wanted="rating", **relation)
    whole = q + C if norm == "l1" else math.hypot(q, C)
    return one_of(whole, max(2.0 * C, whole), **relation)


def _user_scalars(
    rows: Rows, private: bool, values: Any, clip: float, grid: float, q: float
) -> NDArray[Any]:
    some = rows.n_ratings > 0
    own, count = floats(rows, values, of_users=True)[some], float(np.count_nonzero(some))
    if private:
        own = truncate_to_grid(np.clip(bounded_values(own)[0], -clip, clip), grid)
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
    require_terms(norm, scale=scale, largest=1.0 if largest is None else largest)
    s, n_slots = float(scale), users.n_slots * (1 if by_item else users.n_items)
    if users.private:
        for largest_value in (s, 1.0):
            check_exact(n_slots, largest_value, grid, degree=1)
        s = float(truncate_to_grid(s, grid))
    given = s, grid, largest, by_item
    values = total(each(reveal(users), _rating_sums, users.private, *given))
    bound = ratings_bound(float(scale), 0.0 if largest is None else 1.0, norm=norm, **near(users))
    return bounded(users, values, bound, norm=norm, n_slots=n_slots)


def ratings_bound(s: float, v: float = 1.0, *, norm: str = "l2", **relation: Any) -> float:
    """Return the bound of `rating_sums`; v: 1, or 0 for counts alone."""
    whole = s + v if norm == "l1" else math.hypot(s, v)
    both = 2.0 * whole if norm == "l1" else max(2.0 * v, math.sqrt(2.0) * whole)
    return one_of(whole, both, wanted="rating", **relation)


def _rating_sums(
    rows: Rows, private: bool, s: float, grid: float, largest: float | None, by_item: bool
) -> Any:
    places = rows.indices if by_item else np.zeros(rows.nnz, np.intp)
    n_places = rows.n_items if by_item else 1
    values = s * np.bincount(places, minlength=n_places)
    if largest is not None:
        v = rows.data / largest
        if private:
            v = truncate_to_grid(np.clip(bounded_values(v)[0], -1.0, 1.0), grid)
        values = np.stack((values, np.bincount(places, weights=v, minlength=n_places)))
    return values if by_item else values[..., 0]


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
) -> tuple[BoundedSum, BoundedSum]:
    r"""Sum what every item's regression on its users needs, by item.

    x_i = (c_i w_ij u_i u_i')_j and (c_i w_ij e_ij u_i)_j, all items stacked, w >= 0 (enforced),
    with one factor for both: c_i \|w_i\| \|u_i\|^2 <= B and c_i \|w_i e_i\| \|u_i\| <= C. The
    bounds are those of rank one for B, as <w u u', v y y'> = w v (u . y)^2 >= 0, and linear for C.

    weights, residuals: w_ij and e_ij, aligned with the ratings; factors (n_users, k): u_i;
    gram_clip, clip: B and C; grid: power of two, for products. Result: of shapes
    (n_items, k (k + 1) / 2), packed lower triangles, and (n_items, k).
    """
    require_terms(gram_clip=gram_clip, clip=clip)
    if users.private:
        check_exact(users.n_slots, math.sqrt(max(gram_clip, clip)), grid)
    own: Any = own_values(users, weights), own_values(users, residuals)
    given = *own, own_values(users, factors, of_users=True), gram_clip, clip, grid
    grams, vectors = total(each(reveal(users), _item_grams, users.private, *given))
    packed = bounded(users, grams, products_bound(gram_clip, **near(users)), layout="packed")
    return packed, bounded(users, vectors, vectors_bound(clip, **near(users)))


def _item_grams(
    rows: Rows, private: bool, weight: Any, residual: Any, U: Any, *how: Any
) -> tuple[Any, Any]:
    gram_clip, clip, grid = how
    U = np.ascontiguousarray(floats(rows, U, of_users=True))
    weight, residual = np.maximum(floats(rows, weight), 0.0), floats(rows, residual)
    if private:
        weight, residual = bounded_values(weight)[0], bounded_values(residual)[0]
        U, length = bounded_values(U, lengths_of)
        size = norms_of(rows, weight, "l2") * length**2
        other = norms_of(rows, weight * residual, "l2") * length
        factor = np.minimum(shrink_to_ball(size, gram_clip), shrink_to_ball(other, clip))
        weight = weight * np.repeat(factor, rows.n_ratings)
    by_item = rows.by_item
    weight, residual = weight[by_item.data], residual[by_item.data]
    k, pattern = U.shape[1], (by_item.indptr, by_item.indices)
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


def release_score(
    noise: Any, slot: Any, total: BoundedSum, index: int, relation: tuple[str, str]
) -> float:
    """Release one number of a private search, whose trials no plan counts: they are secret.

    noise: refuses an index the second time; slot: the planned score; total: of shape (1,); index:
    number of the trial; relation: unit and neighbouring relation of the search.
    """
    terms = release_terms(slot, slot, total, index, relation, getattr(total, "private", True))
    return float(drawn(total, noise, **terms)[0])
