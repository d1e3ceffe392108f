"""The users of a fit, as a solver sees them: it maps over their rows and sums, and reads nothing.

`Users.map` calls a function with the rows and returns handles of what it gives, which only
`skdpmf.privacy.sums` and other maps accept. So whatever a solver computes from ratings reaches a
release through a sum that clips every user's whole contribution. A map must be *per user*: row i
of its result depends on row i, on values released before and on public ones. No code can see this
from the function. A private fit therefore calls each map once more, in its 1st, 4th, 16th ... call,
with a few rows alone, which a public hash chooses, and first with none: the few must get the values
that they have among all, up to the rounding of a matrix product, and the result's number and widths
must be those of no rows. This finds what depends on all rows, such as their mean. Tests find
more: they change one row of every map.

**Handles hold nothing.** Values stand in a table of this module, under handles without attributes:
`vars`, pickle, copy and the garbage collector's referents of a handle show none. Values are freed
with their handle. What fails in a private fit ends it, and its error has no frames that hold rows:
the curator refuses all later releases, so that no solver learns from an error.

Python forbids nobody to reach around this. `reveal`, the one way to the values, is imported by
the core alone, and a test reads the imports.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import cached_property, wraps
from typing import Any, NamedTuple, NoReturn, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from skdpmf.exceptions import PrivacyParameterError
from skdpmf.kernels.jit_and_threads import run_blocks

# relative: BLAS may round a row by how many others it has, and a solve of a bad condition makes
# more of it; a mistake moves values by far more
_ROUNDING = 2.0**-20


def set_once(self: Any, name: str, value: Any) -> None:
    """Set an attribute that is not there yet, as what a bound rests on does not change later."""
    if name in vars(self):
        raise AttributeError(f"{name} of {self!r} is fixed: a fit changes nothing of it.")
    object.__setattr__(self, name, value)


class Handle:
    """Stands for private values, holds nothing, and shows their public terms."""

    __slots__ = ("__weakref__",)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(<private>)"

    def __getattr__(self, name: str) -> Any:
        held = _HANDLES.get(self)
        if held is None or name not in getattr(held.public, "_fields", ()):
            raise AttributeError(f"{self!r} has no attribute {name!r}")
        return getattr(held.public, name)

    def _opaque(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise TypeError(
            f"a {type(self).__name__} stands for private values, which nobody reads, copies or "
            "pickles: pass it to Users.map, or sum it by skdpmf.privacy.sums and release the sum."
        )

    __array__ = __iter__ = __getitem__ = __len__ = __bool__ = __float__ = _opaque
    __reduce_ex__ = _opaque


class Terms(NamedTuple):
    """Public terms of users: what the bounds of their sums rest on."""

    n_slots: int
    n_items: int
    unit: str
    neighbors: str
    private: bool
    n_jobs: int | None


class Fit:
    """What the handles of one fit have in common: whether it has failed, and its maps' calls."""

    def __init__(self) -> None:
        self.ended = False
        self._calls: dict[Any, tuple[int, Any]] = {}

    def looks_at(self, function: Any, form: Any, n_users: int) -> list[NDArray[np.intp]]:
        """Return slots that a map is called with alone: none in call 1, a few in 1, 4, 16 ...

        A result of another form than before counts as a first one.
        """
        number, before = self._calls.get(function, (0, form))
        number = number if form == before else 0
        self._calls[function] = number + 1, form
        few = number & (number + 1) == 0 and number.bit_length() % 2 == 0
        return [few_of(n_users)] * few + [np.arange(0)] * (number == 0)


class Entry(NamedTuple):
    """What a handle stands for.

    place: the rows whose ratings values belong to, one to each rating; None for other values.
    """

    fit: Fit
    public: Any
    values: Any
    place: Any = None


_HANDLES: WeakKeyDictionary[Handle, Entry] = WeakKeyDictionary()
H = TypeVar("H", bound=Handle)


def handle_entry(handle: Any) -> Entry:
    """Return what a handle of the core stands for."""
    found = _HANDLES.get(handle) if isinstance(handle, Handle) else None
    if found is None:
        raise PrivacyParameterError(
            f"a {type(handle).__name__} was made by hand: a BoundedSum is made by the functions of "
            "skdpmf.privacy.sums alone, which clip what they sum, and a PerUser by Users.map."
        )
    return found


def make_handle(kind: type[H], *terms: Any) -> H:
    """Return a handle of this kind of `Entry` values."""
    handle = kind.__new__(kind)
    _HANDLES[handle] = Entry(*terms)
    return handle


def reveal(handle: Any) -> Any:
    """Return the rows of users, or the values of another handle. For the core alone."""
    return handle_entry(handle).values


def sealed(function: Callable[..., Any]) -> Callable[..., Any]:
    """End a private fit where a function of a handle fails, and raise without its frames."""

    @wraps(function)
    def call(handle: Any, *args: Any, **kwargs: Any) -> Any:
        fit, public = handle_entry(handle)[:2]  # an error shows names of this frame, and no rows
        if fit.ended:
            raise PrivacyParameterError(
                "this fit has ended, as something failed in it before: an error may say something "
                "of the rows, so that nothing is released after one."
            )
        if not public.private:
            return function(handle, *args, **kwargs)
        failure: BaseException
        try:
            with np.errstate(all="ignore"):  # a warning would say something of a row
                return function(handle, *args, **kwargs)
        except Exception as error:
            failure = error.with_traceback(None)
            failure.__context__ = failure.__cause__ = None
        except BaseException:
            failure = KeyboardInterrupt()
        fit.ended = True
        raise failure

    return call


class PerUser(Handle):
    """Values of users, an entry or a row for each user or for each rating: nobody reads them."""

    __slots__ = ()


class Rows:
    """Rows of users, one entry per user and item, for the functions that `Users.map` calls."""

    slots: Any = None  # numbers of these users among all, where they are a few

    def __init__(self, R: Any, n_jobs: int | None) -> None:
        self.R, self.n_jobs = R, n_jobs
        self.indptr, self.indices, self.data = R.indptr, R.indices, R.data
        self.shape, self.nnz = R.shape, R.nnz
        self.n_users, self.n_items = R.shape

    @cached_property
    def n_ratings(self) -> NDArray[Any]:
        """Number of each user's ratings."""
        return np.diff(self.indptr)

    @property
    def user(self) -> NDArray[np.int64]:
        """User of each rating; made anew, as it is as large as the ratings."""
        return np.repeat(np.arange(self.n_users), self.n_ratings)

    @cached_property
    def by_item(self) -> Any:
        """CSC pattern of the ratings, whose data are their positions in the rows."""
        at = np.arange(self.nnz, dtype=np.int32 if self.nnz < 2**31 else np.int64)
        places = at, self.indices, self.indptr
        return sparse.csr_matrix(places, shape=self.shape).tocsc()

    def run(self, kernel: Callable[[int, int], Any]) -> None:
        """Call ``kernel(start, stop)`` on blocks of users, in threads."""
        run_blocks(kernel, self.indptr, self.n_jobs)

    def part(self, values: Any, slots: Any, of_users: bool) -> Any:
        """Return the part of a few users in values of users, or of ratings."""
        if of_users:
            return values[slots]
        ends = zip(self.indptr[slots], self.indptr[slots + 1], strict=True)
        return np.concatenate([values[:0], *(values[a:b] for a, b in ends)])


class Users(Handle):
    """Opaque handle of the users of one fit, and of some or all of their ratings.

    R (n_users, n_items): one entry per user and item; n_slots: public number of rows of the whole
    matrix, of which these may be a block; unit, neighbors: what the bounds of sums are about;
    private: whether sums are clipped. False is the limit without privacy.
    """

    __slots__ = ()

    def __init__(
        self, R: Any, *, n_slots: int, unit: str, neighbors: str, private: bool, n_jobs: int | None
    ) -> None:
        if R.shape[0] > n_slots:
            raise PrivacyParameterError(
                f"n_slots={n_slots!r} must be at least the {R.shape[0]} rows: sums over all slots "
                "must be exact."
            )
        terms = Terms(n_slots, R.shape[1], unit, neighbors, private, n_jobs)
        _HANDLES[self] = Entry(Fit(), terms, _rows(R, n_jobs))

    @sealed
    def map(self, function: Callable[..., Any], *args: Any, **public: Any) -> Any:
        """Apply a function to every user's row.

        function: ``function(rows, *args, **public)`` with `Rows`; a `PerUser` among ``args`` comes
        as its array. It returns an array, or a tuple of arrays, with an entry or a row for each
        user or for each rating, and must be per user: see the module. ``*args``: `PerUser`,
        released values and public ones; ``**public``: released values and public ones.
        """
        rows, fit = reveal(self), handle_entry(self).fit
        made = call_map(self, function, args, public, None)
        arrays = [np.asarray(one) for one in (made if isinstance(made, tuple) else (made,))]
        of_users = [len(one) == rows.n_users for one in arrays]
        form = isinstance(made, tuple), [one.shape[1:] for one in arrays]
        if any(len(one) not in (rows.n_users, rows.nnz) for one in arrays):
            raise PrivacyParameterError(
                f"function={function!r} must give an entry or a row for each user, or for each "
                "rating."
            )
        alone, is_open = [], rows.nnz == rows.n_users  # whether values are of users or of ratings
        if self.private:
            alone = fit.looks_at(function, (form, of_users), rows.n_users)
            alone = alone or [few_of(rows.n_users)] * is_open
        for slots in alone:
            again = call_map(self, function, args, public, slots)
            again = again if isinstance(again, tuple) else (again,)
            refuse_unless_alike(function, np.arange(len(arrays)), np.arange(len(again)))
            for place, (whole, few) in enumerate(zip(arrays, again, strict=True)):
                part = rows.part(whole, slots, of_users[place])
                if is_open and of_users[place] and not alike(part, few):
                    of_users[place] = False
                    part = rows.part(whole, slots, False)
                refuse_unless_alike(function, part, few)
        results = tuple(per_user(self, *one) for one in zip(arrays, of_users, strict=True))
        return results if form[0] else results[0]

    @sealed
    def keep(self, function: Callable[..., Any], *args: Any, **public: Any) -> Users:
        """Return the users with some of their ratings, or other values of them.

        The function is as for `map`, and returns a CSR array with as many rows.
        """
        own, rows = handle_entry(self), reveal(self)
        R = call_map(self, function, args, public, None)
        if R.shape != rows.shape:
            raise PrivacyParameterError(
                f"function={function!r} gave ratings of shape {R.shape} and must keep the shape "
                f"{rows.shape}: leave out ratings, not rows or columns."
            )
        kept = _rows(R, rows.n_jobs)
        if self.private:
            slots = few_of(rows.n_users)
            few = _rows(call_map(self, function, args, public, slots), 1).R
            for name in ("indptr", "indices", "data"):
                refuse_unless_alike(function, getattr(kept.R[slots], name), getattr(few, name))
        return make_handle(Users, own.fit, own.public, kept)

    @sealed
    def taken(self, values: PerUser) -> PerUser:
        """Return values of these ratings, given those of more ratings of the same users."""
        more, rows = handle_entry(values).place, reveal(self)
        keys = [one.user * one.n_items + one.indices for one in (more, rows)]
        place = np.minimum(np.searchsorted(*keys), more.nnz - 1)
        if np.any(keys[0][place] != keys[1]):
            raise PrivacyParameterError("values are not those of these ratings and of others.")
        return per_user(self, handle_entry(values).values[place], False)

    def without_privacy(self) -> Rows:
        """Return the rows, in a fit without privacy alone: exact solvers need them."""
        if self.private:
            raise PrivacyParameterError(
                "users are of a private fit, and their rows must not be read: map over them and "
                "release sums."
            )
        rows: Rows = reveal(self)
        return rows


def few_of(n: int) -> NDArray[np.intp]:
    """Return at most eight numbers below n, by a public hash of it."""
    digest = hashlib.sha256(str(n).encode()).digest()
    found = np.frombuffer(digest, np.uint32) % np.uint32(max(n, 1))
    return np.unique(found)[:n].astype(np.intp)


def _rows(R: Any, n_jobs: int | None) -> Rows:
    """Return rows with one entry per item: norms are those of whole rows, not of their parts."""
    if not R.has_canonical_format:
        R = R.copy()
        R.sum_duplicates()
    return Rows(R, n_jobs)


def handle_values(users: Users, values: Any) -> Any:
    """Return the array of a `PerUser` that was made for these users, any other value as it is."""
    if not isinstance(values, PerUser):
        return values
    found = handle_entry(values)
    if found.fit is not handle_entry(users).fit or found.place not in (None, reveal(users)):
        raise PrivacyParameterError(
            "a PerUser was made for other users or ratings than those that it is used with: map "
            "over the users that are summed."
        )
    return found.values


def per_user(users: Users, values: NDArray[Any], of_users: bool) -> PerUser:
    """Return a handle of values of these users, or of their ratings."""
    place = None if of_users else reveal(users)
    return make_handle(PerUser, handle_entry(users).fit, None, values, place)


def call_map(users: Users, function: Any, args: Any, public: Any, slots: Any, *block: int) -> Any:
    """Call a map with all rows, or those of a few slots; errors are shown by their kind alone.

    Their messages may hold ratings. block: first and last user, for functions that take them.
    """
    rows, own = reveal(users), [handle_values(users, argument) for argument in args]
    if slots is not None:
        given = zip(args, own, strict=True)
        own = [
            rows.part(value, slots, handle_entry(argument).place is None)
            if isinstance(argument, PerUser)
            else value
            for argument, value in given
        ]
        few = Rows(rows.R[slots], rows.n_jobs)
        few.indptr, few.indices = (  # scipy chooses the type by size, and kernels compile by type
            one.astype(like.dtype, copy=False)
            for one, like in ((few.indptr, rows.indptr), (few.indices, rows.indices))
        )
        few.slots, rows = slots, few
    if not users.private:
        return function(rows, *block, *own, **public)
    try:
        with np.errstate(all="ignore"):  # in threads too
            return function(rows, *block, *own, **public)
    except Exception as error:
        kind = type(error).__name__
    raise PrivacyParameterError(
        f"function={function!r} raised {kind}: a map of a private fit must give a result whatever "
        "rows hold, also if there are none. Call it without privacy to see where it fails."
    )


def alike(whole: Any, few: Any) -> bool:
    """Return whether values are the same, up to rounding."""
    whole, few = np.asarray(whole), np.asarray(few)
    if whole.shape != few.shape or np.array_equal(whole, few, equal_nan=True):
        return whole.shape == few.shape
    if whole.dtype.kind != "f":
        return False
    most = _ROUNDING * np.abs(whole[np.isfinite(whole)]).max(initial=0.0)
    return np.allclose(whole, few, rtol=0.0, atol=most, equal_nan=True)


def refuse_unless_alike(function: Any, whole: Any, few: Any) -> None:
    """Raise unless users have the values among all that they have in a few rows alone."""
    if alike(whole, few):
        return
    raise PrivacyParameterError(
        f"function={function!r} gives users other values among all rows than in a few rows alone: "
        "each must depend on its user's row, and on released and public values, alone."
    )
