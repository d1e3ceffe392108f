r"""Bounded sums: the one way from values of users to a release.

Every function here takes per-user values, clips each user's *whole* contribution x_i to a bound by
itself, truncates it towards zero to a public grid and returns S = sum over users i of x_i as a
`BoundedSum`, with the largest distance of S on neighbouring data. Whatever the values are, and
whoever computed them, the bound holds: `own_values` takes values that were made for these users
alone, as many as there are, and `bounded_values` clips each to 1e50 (NaN to 0) before any is
multiplied, so that products of three of them and their squares are finite, and 0 times one is 0.

**Why.** x_i depends on user i's row, on what was released before and on public values only
(`skdpmf.privacy.users`). So neighbours at unit "user" differ in one x_i:

- add-remove: x_i becomes 0, as an empty row contributes nothing: sup |x|;
- replace: x_i becomes any other x': sup |x - x'|.

**Three kinds** of x_i have one proof each:

- *linear* (`item_scalars`, `item_vectors`): a vector, \|x\| <= C. Add-remove C; replace 2 C, by
  the triangle inequality, or sqrt(2) C in l2 where no entry is negative, since then <x, x'> >= 0
  and \|x - x'\|^2 = \|x\|^2 + \|x'\|^2 - 2 <x, x'>;
- *rank one* (`gram`, `products`, `centred_products`): z z', \|z\| <= C, in the norm of Frobenius.
  Add-remove C^2; replace sqrt(2) C^2, since <z z', y y'> = (z . y)^2 >= 0. Leaving out the diagonal
  is a projection and lengthens nothing;
- *regression of an item* (`skdpmf.privacy.other_sums.item_grams`): one of each, with one factor.

Clipping multiplies x_i by c_i = min(1, C / \|x_i\|), a hair (2^-40) inside, so that the rounding of
norms and products does not leave the ball. Truncation towards zero raises no magnitude, hence no
norm. Sums of values on the grid are exact in float64, in any order and on any blocks of users
(`check_exact`), so that nobody else's part of S changes by a bit.

Clips and scales are from 1e-100 to 1e100: the square of what a grid keeps, which is at least 2^-53
of the clip, does not underflow, so that no norm misses it.

``influence`` holds public factors f_i, clipped to [0, 1]: the bound on user i's contribution, hence
what user i changes, is f_i times as large (personal levels).

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

from skdpmf.exceptions import require_that
from skdpmf.kernels.covariance import pair_products
from skdpmf.kernels.jit_and_threads import balanced_blocks, run_blocks
from skdpmf.kernels.sums import accumulate_rhs, row_norms
from skdpmf.privacy import users as core
from skdpmf.privacy.sampler.grid import as_float, check_exact, truncate_to_grid
from skdpmf.privacy.users import Handle, PerUser, Rows, Users, each, reveal, sealed, total

HAIR, _MOST = 2.0**-40, 1e50
_RATINGS_AT_ONCE = 2**21
_LEAST, _LARGEST = 1e-100, 1e100  # their squares, and those of what they clip, are no 0 or inf


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
        rule = "False for its exact values: release it by the curator."
        require_that(not core.handle_entry(self).public.private, "private", True, rule)
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
        factor = radius * (1.0 - HAIR) / norm
    factor = np.where(norm <= radius * (1.0 - HAIR / 16.0), 1.0, factor)
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
    - replace: 2 s and q \|c - c'\| <= q, so sqrt(4 s^2 + q^2), in l1 2 s + q. A user whose terms
      are clipped to almost nothing still has s, of any sign, and hardly any q;
    - replace for t >= 0 (``signed=False``, enforced): q cancels where both users have ratings:
      max(sqrt(2) s, sqrt(s^2 + q^2)), in l1 max(2 s, s + q).

    terms: t_ij, aligned with the ratings; clip: C, in the norm; grid: power of two; scale,
    presence: s > 0 and q >= 0; signed: whether terms may be negative; norm: "l2" or "l1";
    influence (n_users,): f_i, times all of x_i. Result: of shape (n_items,), or (n_items + 1,) with
    a presence.
    """
    require_terms(norm, clip=clip, scale=scale, presence=presence)
    s, q = float(scale), float(presence)
    if users.private:
        check_exact(users.n_slots, max(s, q), grid, degree=1)
    given = own_values(users, terms), _influence(users, influence), clip, grid, s, q, signed, norm
    values = total(each(reveal(users), _item_scalars, users.private, *given))
    bound = scalars_bound(s, q, signed=signed, norm=norm, **near(users))
    return bounded(users, values, bound, norm=norm)


def scalars_bound(
    s: float, q: float = 0.0, *, signed: bool, norm: str = "l2", **relation: Any
) -> float:
    """Return the bound of `item_scalars`."""
    if norm == "l1":
        whole, both = s + q, 2.0 * s + (q if signed else 0.0)
    else:
        whole, both = math.hypot(s, q), math.hypot(2.0 * s, q) if signed else math.sqrt(2.0) * s
    return one_of(whole, max(both, whole), **relation)


def _item_scalars(rows: Rows, private: bool, t: Any, share: Any, *how: Any) -> Any:
    clip, grid, s, q, signed, norm = how
    given = t if signed else np.maximum(t, 0.0), np.ones((rows.n_users, 1)), clip, norm, grid
    values, factor = _by_item(rows, private, *given, share, s / clip)
    presences = q * ((factor if signed else rows.n_ratings > 0) * share)
    presences = truncate_to_grid(presences, grid) if private else presences
    return np.append(values, presences.sum() if q > 0.0 else [])


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

    Linear: x_i = (c_i t_ij u_i)_j, all items stacked, has norm c_i \|t_i\| \|u_i\| <= C.

    terms: t_ij, aligned with the ratings; factors (n_users, k): u_i; clip: C; grid: power of two,
    for products; influence (n_users,): f_i. Returns sums: of shape (n_items, k); clipped: c_i, at
    most f_i, 0 for users without ratings: weights for the `gram` that belongs to it.
    """
    require_terms(clip=clip)
    if users.private:
        check_exact(users.n_slots, math.sqrt(clip), grid)
    own = own_values(users, terms), own_values(users, factors, of_users=True)
    given = *own, _influence(users, influence), clip, grid
    made = each(reveal(users), _item_vectors, users.private, *given)
    clipped = core.per_user(users, made[1], True, np.zeros(1))
    return bounded(users, total(made[0]), vectors_bound(clip, **near(users))), clipped


def _item_vectors(rows: Rows, private: bool, t: Any, U: Any, share: Any, *how: Any) -> Any:
    clip, grid = how
    values, factor = _by_item(rows, private, t, U, clip * share, "l2", grid)
    return values, np.minimum(factor, share)


def _by_item(rows: Rows, private: bool, t: Any, U: Any, radius: Any, *how: Any) -> tuple[Any, Any]:
    r"""Return the sums by item of c_i t_ij u_i, times all gains, and c_i.

    c_i brings \|t_i\| \|u_i\| below the radius; it is 0 for users without ratings.
    """
    norm, grid, *gains = how
    t, U, factor = floats(rows, t), floats(rows, U, of_users=True), np.ones(rows.n_users)
    if private:
        t, size = bounded_values(t, lambda t: norms_of(rows, t, norm))
        U, length = bounded_values(U, lengths_of)
        factor = shrink_to_ball(size * length, radius)
    factor[rows.n_ratings == 0] = 0.0
    given = rows.indptr, rows.indices, t, math.prod((factor, *gains)), U, grid if private else 0.0

    def part(start: int, stop: int) -> NDArray[np.float64]:
        out = np.zeros((rows.n_items, U.shape[1]))
        accumulate_rhs(*given, start, stop, out)
        return out

    return summed(rows, private and grid, part), factor


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

    Rank one: z_i = sqrt(w_i) u_i clipped to C, 0 <= w_i <= 1 (enforced). Users without ratings
    count nothing.

    factors (n_users, k): u_i; clip: C; grid: power of two, for products; weights: w_i; None: 1;
    influence (n_users,): f_i: the bound is f_i C^2. Result: the packed lower triangle.
    """
    own = None if weights is None else own_values(users, weights, of_users=True)
    given = own_values(users, factors, of_users=True), own
    # more at once: threads would wait for each other between the short steps of few vectors
    return _products(users, _gram_vectors, given, clip, grid, influence=influence, step=2**13)


def _gram_vectors(rows: Rows, U: Any, weights: Any) -> Any:
    U, root = floats(rows, U, of_users=True), np.ones((rows.n_users, 1))
    if weights is not None:
        own = bounded_values(floats(rows, weights, of_users=True))[0]
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

    As `gram`, of vectors z_i that are computed for some thousand users at a time.

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
    x = np.asarray(x.toarray() if sparse.issparse(x) else x, np.float64)
    rule = "one that returns a vector for each of the users [start, stop), and no other."
    require_that(len(x) == stop - start, "function", mapped.function, rule)
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
    require_terms(clip=clip)
    m = np.vstack((np.rint(centres / grid) * grid, np.zeros(len(head))))
    largest = math.sqrt(np.sum(m * m, axis=1).max())
    check_exact(users.n_slots, 2.0 * (clip + largest), grid)
    own = own_values(users, terms), own_values(users, at, of_users=True)
    found = total(each(reveal(users), _centred_products, users.private, *own, head, m, clip, grid))
    pairs, V, N = np.split(found, [-m.size - len(m), -len(m)])
    used = N > 0.0
    m, V, N = m[used], V.reshape(m.shape)[used], N[used, None]
    # multiples of grid^2 / 2, of which there are enough: `check_exact` counts four times the terms
    half = (0.5 * N * m - V).T @ m
    return triangle(users, pairs + (half + half.T)[np.tri(len(head), dtype=bool)], clip)


def _centred_products(
    rows: Rows, private: bool, given: Any, at: Any, head: Any, m: Any, clip: float, grid: float
) -> Any:
    n, squares = len(m) - 1, np.sum(m * m, axis=1)
    given, w = floats(rows, given), bounded_values(floats(rows, at, of_users=True))[0]
    w = np.clip(w, 0, n - 1).astype(np.int64)

    def sums_of(start: int, stop: int) -> Any:
        part, of = slice(rows.indptr[start], rows.indptr[stop]), w[start:stop]
        pattern = rows.indices[part], rows.indptr[start : stop + 1] - rows.indptr[start]
        R = sparse.csr_array((given[part], *pattern), (stop - start, rows.n_items))[:, head]
        R.sort_indices()
        user = np.repeat(np.arange(len(of)), np.diff(R.indptr))
        place = of[user] * len(head) + R.indices
        with np.errstate(over="ignore", invalid="ignore"):
            x = truncate_to_grid(R.data, grid)
            change = x * (x - 2.0 * m.take(place))
            size = np.bincount(user, weights=change, minlength=len(of)) + squares[of]
            outside = ~(size <= clip**2 * (1.0 - HAIR)) | (np.diff(R.indptr) == 0)
        x[outside[user]], of[outside] = 0.0, n  # whose centre is 0
        pairs = pair_products(R, x, grid * grid)
        few, A = core.few_of(len(head)), sparse.csr_array((x / grid, R.indices, R.indptr), R.shape)
        # the kernel's sums are exact, whatever it does, or they are none
        for j, plain in zip(few, (A[:, few].T.tocsr() @ A).toarray(), strict=True):
            holds = np.array_equal(pairs[j * (j + 1) // 2 :][: j + 1], plain[: j + 1])
            require_that(holds, "pair_products of item", int(j), "those of the plain form.")
        V = np.bincount(place, weights=x, minlength=m.size)
        return np.concatenate((pairs * (grid * grid), V, np.bincount(of, minlength=n + 1)))

    def part_of(first: int, last: int) -> Any:
        indptr, found = rows.indptr[first : last + 1], 0.0
        n_blocks = 1 + (indptr[-1] - indptr[0]) // _RATINGS_AT_ONCE
        for start, stop in balanced_blocks(indptr, n_blocks):
            found = found + sums_of(first + start, first + stop)
        return found

    return summed(rows, private and grid, part_of)


def _products(
    users: Users, vectors: Any, given: Any, clip: float, grid: float, **how: Any
) -> BoundedSum:
    """Clip the vectors of users [start, stop), which a function of rows gives; sum their products.

    how: diagonal, influence, and step: so many users are taken at once.
    """
    require_terms(clip=clip)
    if users.private:
        check_exact(users.n_slots, clip, grid, degree=2)
    share, step = _influence(users, how.get("influence")), how.get("step", core.USERS_AT_ONCE)
    terms = share, clip, grid, step, vectors, *given
    values = total(each(reveal(users), _product_sums, users.private, *terms))
    if not how.get("diagonal", True):
        np.fill_diagonal(values, 0.0)
    return triangle(users, values[np.tril_indices(len(values))], clip)


def _product_sums(rows: Rows, private: bool, share: Any, *terms: Any) -> Any:
    clip, grid, step, vectors, *given = terms
    radius, of = np.broadcast_to(clip * np.sqrt(share), rows.n_users), vectors(rows, *given)

    def part(first: int, last: int) -> Any:
        found: Any = 0.0
        # one empty block where there are no users, for the shape
        for start in range(first, max(last, first + 1), step):
            stop = min(start + step, last)
            x = np.ascontiguousarray(of(start, stop))  # numpy's norm adds such rows up pairwise
            factor: Any = rows.n_ratings[start:stop] > 0
            if private:
                x, size = bounded_values(x, lambda x: np.linalg.norm(x, axis=1))
                factor = factor * shrink_to_ball(size, radius[start:stop])
            x = x * factor[:, None]
            x = truncate_to_grid(x, grid) if private else x
            found = found + x.T @ x
        return found

    return summed(rows, private and grid, part)


def summed(rows: Rows, is_exact: Any, part: Callable[[int, int], Any]) -> Any:
    """Sum ``part(start, stop)`` over blocks of users, in threads where sums are exact."""
    lock = threading.Lock()
    found: list[Any] = []

    def add(first: int, last: int) -> None:
        own = part(first * core.USERS_AT_ONCE, min(last * core.USERS_AT_ONCE, rows.n_users))
        with lock:
            found[:] = [found[0] + own if found else own]

    # by the number of users alone: a function of some thousand rows may round by where they are cut
    blocks = np.arange(max(-(-rows.n_users // core.USERS_AT_ONCE), 1) + 1)
    run_blocks(add, blocks, rows.n_jobs if is_exact else 1)
    return found[0]


def triangle(users: Users, values: NDArray[np.float64], clip: float) -> BoundedSum:
    """Return a packed sum of products of vectors of norm C at most."""
    return bounded(users, values, products_bound(clip * clip, **near(users)), layout="packed")


def vectors_bound(C: float, **relation: Any) -> float:
    """Return the bound of a linear sum."""
    return one_of(C, 2.0 * C, **relation)


def products_bound(C2: float, **relation: Any) -> float:
    """Return the bound of a sum of rank one, of vectors of squared norm C2 at most."""
    return one_of(C2, math.sqrt(2.0) * C2, **relation)


def one_of(
    add_remove: float, replace: float, *, neighbors: str, unit: Any = "user", wanted: str = "user"
) -> float:
    """Return the bound for a neighbouring relation; refuse a unit that it is not proved for."""
    rule = f"{wanted!r} for this sum, whose bound is proved for one {wanted}: plan another "
    rule += f"statistic, or a budget of unit={wanted!r}."
    require_that(unit in (wanted, None), "unit", unit, rule)
    return float(replace if neighbors == "replace" else add_remove)


def near(users: Users) -> dict[str, Any]:
    """Return unit and neighbouring relation; without privacy any unit will do."""
    return {"unit": users.unit if users.private else None, "neighbors": users.neighbors}


def bounded(
    users: Users,
    values: NDArray[Any],
    sensitivity: float,
    *,
    norm: str = "l2",
    layout: str = "full",
    n_slots: int | None = None,
) -> BoundedSum:
    """Return the sum with its bound."""
    relation, n = (users.unit, users.neighbors), n_slots or users.n_slots
    bound = Bound(sensitivity, norm, layout, *relation, n, users.private)
    return core.make_handle(BoundedSum, core.handle_entry(users).fit, bound, values)


def own_values(users: Users, values: PerUser, *, of_users: bool = False) -> Any:
    """Return values that were made for these users, one for each rating or for each user."""
    own, what = core.handle_values(users, values), core.handle_entry(values)
    _require_own((what.place is None) == of_users, of_users)
    return own


def floats(rows: Rows, values: Any, *, of_users: bool = False) -> NDArray[np.float64]:
    """Return the values of a block in float64, one for each of its ratings or of its users."""
    _require_own(len(values) == (rows.n_users if of_users else rows.nnz), of_users)
    return np.asarray(values, np.float64)


def _require_own(holds: bool, of_users: bool) -> None:
    what, rule = "user" if of_users else "rating", "made for the users that are summed."
    require_that(holds, f"a value for each {what}", "of others", rule)


def bounded_values(values: Any, size_of: Any = np.abs) -> tuple[Any, NDArray[np.float64]]:
    """Return values of magnitude 1e50 at most, NaN as 0, and their norms.

    The norms say whether any value is larger.
    """
    with np.errstate(all="ignore"):  # in threads too
        norms = size_of(values)
        if not norms.max(initial=0.0) <= _MOST:
            values = np.clip(np.where(np.isnan(values), 0.0, values), -_MOST, _MOST)
            norms = size_of(values)
    return values, norms


def lengths_of(U: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return users' lengths; numpy's norm would copy squares.

    512 squares are added up at a time, so that lengths are right to 2^-44 for 2^18 components.
    """
    parts = (U[:, a : a + 512] for a in range(0, U.shape[1], 512))
    rule = "at most 2^18 for this sum, whose norms are right for so many: pass shorter vectors."
    require_that(U.shape[1] <= 2**18, "number of components", U.shape[1], rule)
    return np.sqrt(sum((np.einsum("ik,ik->i", x, x) for x in parts), np.zeros(len(U))))


def require_terms(norm: str = "l2", **numbers: float) -> None:
    """Raise unless the parameters of a sum are what its bound is proved for."""
    for name, value in numbers.items():
        holds = _LEAST <= as_float(value) <= _LARGEST or (name == "presence" and value == 0.0)
        require_that(holds, name, value, f"from {_LEAST:g} to {_LARGEST:g}: pass a public number.")
    require_that(norm in ("l1", "l2"), "norm", norm, "'l1' or 'l2': pass one of them.")


def norms_of(rows: Rows, terms: NDArray[np.float64], norm: str) -> NDArray[np.float64]:
    """Norm of each user's values, by compensated sums: right to some units in the last place."""
    out = np.empty(rows.n_users)
    rows.run(lambda start, stop: row_norms(rows.indptr, terms, norm == "l1", start, stop, out))
    return out


def _influence(users: Users, influence: NDArray[np.float64] | None) -> Any:
    """Return factors f_i in [0, 1]: 1 without any."""
    if influence is None or not users.private:
        return 1.0
    return core.cut(reveal(users), np.clip(np.where(np.isnan(influence), 0.0, influence), 0.0, 1.0))
