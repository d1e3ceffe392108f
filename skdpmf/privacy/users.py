"""The users of a fit, as a solver sees them: it maps over their rows and sums, and reads nothing.

`Users.map` calls a function with the rows and returns handles of what it gives, which only
`skdpmf.privacy.clipped_sums` and other maps accept. So whatever a solver computes from ratings
reaches a release through a sum that clips every user's whole contribution. A map must be *per
user*: row i of its result depends on row i, on values released before and on public ones. No code
can see this from the function. A map is therefore called with a row without ratings first, which
shows the number and widths of its results, and in its 1st, 4th, 16th ... call of a private fit
once more, with a few rows alone, which a public hash chooses: they must get the values that they
have among all, up to the rounding of a matrix product. This finds what depends on all rows, such
as their mean. Tests find more: they change one row of every map.

**Rows can be elsewhere.** Values are those of all users here, or `skdpmf.privacy.blocks.Blocks` of
them in the workers of a cluster. Whatever needs them is a function of the rows and values of a
block, which `each` calls where they are; a map takes and gives the same in every block.

**A map writes nothing.** It gets read-only arrays, of the rows and among its arguments, and `Rows`
whose attributes are fixed: other maps and sums read the same arrays.

**Handles hold nothing.** Values stand in a table of this module, under handles without attributes:
`vars`, pickle, copy and the garbage collector's referents of a handle show none. Values are freed
with their handle. What fails in a private fit ends it, and its error has no frames that hold rows:
the curator refuses all later releases, so that no solver learns from an error.

Python forbids nobody to reach around this. `reveal`, the one way to the values, is imported by
the core alone, and a test reads the imports.
"""

from __future__ import annotations

import copy
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

# Blocks begin at multiples of it: functions of some thousand rows may round by where they are cut.
USERS_AT_ONCE = 1024
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
        public = getattr(_HANDLES.get(self, _NOTHING)[1], "public", None)
        if name not in getattr(public, "_fields", ()):
            raise AttributeError(f"{self!r} has no attribute {name!r}")
        return getattr(public, name)

    def _opaque(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise TypeError(
            f"a {type(self).__name__} stands for private values, which nobody reads, copies or "
            "pickles: pass it to Users.map, or sum it by privacy.clipped_sums and release the sum."
        )

    __array__ = __iter__ = __getitem__ = __len__ = __bool__ = __float__ = _opaque
    __reduce_ex__ = _opaque


def each(values: Any, function: Callable[..., Any], *args: Any) -> Any:
    """Return what a function gives with values, or in each block of them with the block's."""
    if hasattr(values, "each"):
        return values.each(function, *args)
    return function(values, *args)


def view_of(values: Any) -> Any:
    """Return an array as a map gets it, not to be written to; anything else as it is."""
    if isinstance(values, np.ndarray):
        values = values.view()
        values.flags.writeable = False
    return values


def _locked(R: Any) -> Any:
    """Return a sparse matrix whose arrays are not written to."""
    R.data, R.indices, R.indptr = map(view_of, (R.data, R.indices, R.indptr))
    return R


def total(values: Any) -> Any:
    """Return the sum over all blocks of what `each` gave."""
    return values.total() if hasattr(values, "total") else values


def cut(values: Any, of_users: Any) -> Any:
    """Return public values of all users as those that go with values, or with their blocks."""
    return values.cut(of_users) if hasattr(values, "cut") else of_users


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

    def looks_at(self, function: Any, form: Any) -> bool:
        """Return whether a map is called with a few rows alone: in call 1, 4, 16 ...

        A result of another form than before counts as a first one.
        """
        number, before = self._calls.get(function, (0, form))
        number = number if form == before else 0
        self._calls[function] = number + 1, form
        return number & (number + 1) == 0 and number.bit_length() % 2 == 0


class Entry(NamedTuple):
    """What a handle stands for.

    public: terms, for values of users one of them, 0; place: the rows whose ratings values belong
    to, one to each rating; None for other values.
    """

    fit: Fit
    public: Any
    values: Any
    place: Any = None


# with the kind that was made: a kind made from it may show other terms, or claim another's place
_HANDLES: WeakKeyDictionary[Handle, tuple[type[Handle], Entry]] = WeakKeyDictionary()
_NOTHING: Any = None, None
H = TypeVar("H", bound=Handle)


def handle_entry(handle: Any) -> Entry:
    """Return what a handle of the core stands for."""
    kind_and_entry = _HANDLES.get(handle, _NOTHING) if isinstance(handle, Handle) else _NOTHING
    if kind_and_entry[0] is not type(handle):
        raise PrivacyParameterError(
            f"a {type(handle).__name__} was made by hand: a BoundedSum is made by the functions of "
            "privacy.clipped_sums alone, which clip what they sum, and a PerUser by Users.map."
        )
    return kind_and_entry[1]


def make_handle(kind: type[H], *terms: Any) -> H:
    """Return a handle of this kind of `Entry` values."""
    handle = kind.__new__(kind)
    _HANDLES[handle] = kind, Entry(*terms)
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
            words = "this fit has ended, as something failed in it before: an error may say"
            words += " something about the rows, so nothing is released after one. Begin another."
            raise PrivacyParameterError(words)
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

    slots: Any = None  # numbers of these users among those of the block, where they are a few

    def __init__(self, R: Any, n_jobs: int | None, first: int = 0) -> None:
        self._R, self.n_jobs, self.first = _locked(R), n_jobs, first  # first: number among all
        self.indptr, self.indices, self.data = R.indptr, R.indices, R.data
        self.shape, self.nnz = R.shape, R.nnz
        self.n_users, self.n_items = R.shape

    __setattr__ = set_once

    # the ratings as a CSR array, whose attributes are the caller's
    R = property(lambda self: copy.copy(self._R))

    @cached_property
    def n_ratings(self) -> NDArray[Any]:
        """Number of each user's ratings."""
        return view_of(np.diff(self.indptr))

    @property
    def user(self) -> NDArray[np.int64]:
        """User of each rating; made anew, as it is as large as the ratings."""
        return np.repeat(np.arange(self.n_users), self.n_ratings)

    @cached_property
    def by_item(self) -> Any:
        """CSC pattern of the ratings, whose data are their positions in the rows."""
        at = np.arange(self.nnz, dtype=np.int32 if self.nnz < 2**31 else np.int64)
        places = at, self.indices, self.indptr
        return _locked(sparse.csr_matrix(places, shape=self.shape).tocsc())

    def turned(self) -> Rows:
        """Return the ratings with items as rows, for exact solvers."""
        return Rows(sparse.csr_array(self.R.T), self.n_jobs)

    def run(self, kernel: Callable[[int, int], Any]) -> None:
        """Call ``kernel(start, stop)`` on blocks of users, in threads."""
        run_blocks(kernel, self.indptr, self.n_jobs)

    def part(self, values: Any, slots: Any, of_users: bool) -> Any:
        """Return the part of a few users in values of users, or of ratings."""
        if of_users:
            return values[slots]
        ends = zip(self.indptr[slots], self.indptr[slots + 1], strict=True)
        return np.concatenate([values[:0], *(values[a:b] for a, b in ends)])

    def few(self, slots: Any) -> Rows:
        """Return a few users."""
        R = self.R[slots]  # scipy chooses types by size, and kernels compile by type
        R.indptr = R.indptr.astype(self.indptr.dtype, copy=False)
        R.indices = R.indices.astype(self.indices.dtype, copy=False)
        few = Rows(R, self.n_jobs, self.first)
        few.slots = slots
        return few


class Map(NamedTuple):
    """A map, to be called with the rows of a block.

    of_users: for each argument whether it is values of users, or of ratings; None: public.
    """

    function: Callable[..., Any]
    private: bool
    of_users: tuple[bool | None, ...]
    public: dict[str, Any]

    def __call__(self, rows: Rows, own: Any, *block: int, slots: Any = None) -> Any:
        """Return what it gives for all rows, or for a few; errors are shown by their kind alone.

        Their messages may hold ratings. block: first and last user, for functions that take them.
        """
        if slots is not None:
            given = zip(own, self.of_users, strict=True)
            own = [one if of is None else rows.part(one, slots, of) for one, of in given]
            rows = rows.few(slots)
        public, own = {name: view_of(one) for name, one in self.public.items()}, map(view_of, own)
        if not self.private:
            return self.function(rows, *block, *own, **public)
        try:
            with np.errstate(all="ignore"):  # in threads too
                return self.function(rows, *block, *own, **public)
        except Exception as error:
            kind = type(error).__name__
        raise PrivacyParameterError(
            f"function={self.function!r} raised {kind}: a map of a private fit must give a result "
            "whatever rows hold, also if there are none. Call it without privacy to see where it "
            "fails."
        )


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
            words = f"n_slots={n_slots!r} must be at least {R.shape[0]}, the number of rows: pass"
            raise PrivacyParameterError(f"{words} so many slots, as sums over all are exact.")
        terms = Terms(n_slots, R.shape[1], unit, neighbors, private, n_jobs)
        rows = each(R, _rows, n_jobs, getattr(R, "first", 0))
        _HANDLES[self] = Users, Entry(Fit(), terms, rows)

    @sealed
    def map(self, function: Callable[..., Any], *args: Any, **public: Any) -> Any:
        """Apply a function to every user's row.

        function: ``function(rows, *args, **public)`` with `Rows`; a `PerUser` among ``args`` comes
        as its array. It returns an array, or a tuple of arrays, with an entry or a row for each
        user or for each rating, and must be per user: see the module. ``*args``: `PerUser`,
        released values and public ones; ``**public``: released values and public ones.
        """
        fit, (mapped, own, alone) = handle_entry(self).fit, as_map(self, function, args, public)
        shown = mapped(*alone)
        like = [np.asarray(one) for one in _as_tuple(shown)]
        of_users = tuple(len(one) == 1 for one in like)
        if any(len(one) > 1 for one in like):
            raise _lengths_differ(function)
        like = [np.zeros((1, *one.shape[1:]), one.dtype) for one in like]
        form = of_users, tuple(one.shape[1:] for one in like)
        looks = self.private and fit.looks_at(function, form)
        made = each(reveal(self), _mapped, mapped, form, looks, *own)
        results = tuple(
            per_user(self, made[k], of, one)
            for k, (of, one) in enumerate(zip(of_users, like, strict=True))
        )
        return results if isinstance(shown, tuple) else results[0]

    @sealed
    def keep(self, function: Callable[..., Any], *args: Any, **public: Any) -> Users:
        """Return the users with some of their ratings, or other values of them.

        The function is as for `map`, and returns a CSR array with as many rows.
        """
        mapped, own, _ = as_map(self, function, args, public)
        kept = each(reveal(self), _kept, mapped, *own)
        return make_handle(Users, *handle_entry(self)[:2], kept)

    def without_privacy(self) -> Rows:
        """Return the rows, in a fit without privacy alone: exact solvers need them."""
        if handle_entry(self).public.private:
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


def _rows(R: Any, n_jobs: int | None, first: int = 0) -> Rows:
    """Return rows with one entry per item: norms are those of whole rows, not of their parts.

    A matrix that a map made may have a wrong flag that says so, and places that do not exist.
    """
    R = sparse.csr_array((R.data, R.indices, R.indptr), shape=R.shape)
    R.check_format()
    if not R.has_canonical_format:
        R = R.copy()
        R.sum_duplicates()
    return Rows(R, n_jobs, first)


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


def per_user(users: Users, values: Any, of_users: bool, like: Any = None) -> PerUser:
    """Return a handle of values of these users, or of their ratings; like: one of them, 0."""
    like = np.zeros((1, *values.shape[1:]), values.dtype) if like is None else like
    place = None if of_users else reveal(users)
    return make_handle(PerUser, handle_entry(users).fit, like, values, place)


def as_map(users: Users, function: Any, args: Any, public: Any) -> tuple[Map, list[Any], Any]:
    """Return a map, its arguments, and a row without ratings with those that belong to it."""
    own = [handle_values(users, one) for one in args]
    entries = [handle_entry(one) if isinstance(one, PerUser) else None for one in args]
    of_users = tuple(None if entry is None else entry.place is None for entry in entries)
    alone = [
        one if entry is None else entry.public[: entry.place is None]
        for one, entry in zip(own, entries, strict=True)
    ]
    row = Rows(sparse.csr_array((1, users.n_items)), 1)
    return Map(function, users.private, of_users, public), own, (row, alone)


def _as_tuple(made: Any) -> tuple[Any, ...]:
    return made if isinstance(made, tuple) else (made,)


def _lengths_differ(function: Any) -> PrivacyParameterError:
    return PrivacyParameterError(
        f"function={function!r} must give an entry or a row for each user, or for each rating."
    )


def _mapped(rows: Rows, mapped: Map, form: Any, looks: bool, *own: Any) -> tuple[Any, ...]:
    """Return the arrays that a map gives for the rows of a block, as many and as wide as public."""
    function, arrays = mapped.function, [np.asarray(one) for one in _as_tuple(mapped(rows, own))]
    of_users, widths = form
    lengths = [rows.n_users if of else rows.nnz for of in of_users]
    refuse_unless_alike(function, np.arange(len(arrays)), np.arange(len(lengths)))
    if [len(one) for one in arrays] != lengths:
        raise _lengths_differ(function)
    for one, width in zip(arrays, widths, strict=True):
        refuse_unless_alike(function, one[:0], np.empty((0, *width), one.dtype))
    if looks:
        slots = few_of(rows.n_users)
        again = _as_tuple(mapped(rows, own, slots=slots))
        for whole, of, few in zip(arrays, of_users, again, strict=True):
            refuse_unless_alike(function, rows.part(whole, slots, of), few)
    return tuple(arrays)


def _kept(rows: Rows, mapped: Map, *own: Any) -> Rows:
    """Return the ratings that a map keeps."""
    kept = _rows(mapped(rows, own), rows.n_jobs, rows.first)
    few = _rows(mapped(rows, own, slots=few_of(rows.n_users)), 1).R if mapped.private else None
    refuse_unless_kept(mapped.function, rows, kept.R, few)
    return kept


def refuse_unless_kept(function: Any, rows: Any, made: Any, few: Any) -> None:
    """Raise unless a function makes a matrix of all rows, and the same of a few rows alone."""
    if made.shape != rows.shape:
        raise PrivacyParameterError(
            f"function={function!r} must keep the shape of the rows: leave out ratings, not "
            "rows or columns."
        )
    whole = made[few_of(rows.shape[0])]
    for name in () if few is None else ("indptr", "indices", "data"):
        refuse_unless_alike(function, getattr(whole, name), getattr(few, name))


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
    if not alike(whole, few):
        raise PrivacyParameterError(
            f"function={function!r} gives users other values among all rows than among a few: each "
            "must depend on its user's row, and on released and public values, alone."
        )
