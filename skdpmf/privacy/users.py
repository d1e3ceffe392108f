"""The users of a fit, as a solver sees them: it maps over their rows and sums, and reads nothing.

`Users.map` calls a function with the rows and returns what it gives as a `PerUser`, which only
`skdpmf.privacy.sums` and other maps accept. So whatever a solver computes from ratings reaches a
release through a sum that clips every user's whole contribution. A map must be *per user*: row i
of its result depends on row i, on values released before and on public ones. No code can see this
from the function; tests change one row of every map of every default fit, and no other row of the
result may change.

Python forbids nobody to reach around this. `reveal`, the one way to the values, is imported by
`skdpmf.privacy.sums` alone, and a test reads the imports.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from skdpmf.exceptions import PrivacyParameterError
from skdpmf.kernels.jit_and_threads import run_blocks


def set_once(self: Any, name: str, value: Any) -> None:
    """Set an attribute that is not there yet, as what a bound rests on does not change later."""
    if name in vars(self):
        raise AttributeError(f"{name} of {self!r} is fixed: a fit changes nothing of it.")
    object.__setattr__(self, name, value)


class PerUser:
    """Values of users, an entry or a row for each user or for each rating: nobody reads them."""

    def __init__(self, values: NDArray[Any]) -> None:
        self.__values = values

    def __repr__(self) -> str:
        return "PerUser(<private>)"

    def _opaque(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise TypeError(
            "a PerUser holds private values of single users, which nobody reads: pass it to "
            "Users.map, or sum it by skdpmf.privacy.sums and release the sum."
        )

    __array__ = __iter__ = __getitem__ = __len__ = __bool__ = __float__ = _opaque
    __reduce_ex__ = _opaque


class Rows:
    """Rows of users, one entry per user and item, for the functions that `Users.map` calls."""

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


class Users:
    """Opaque handle of the users of one fit, and of some or all of their ratings.

    R (n_users, n_items): one entry per user and item; n_slots: public number of rows of the whole
    matrix, of which these may be a block; unit, neighbors: what the bounds of sums are about;
    private: whether sums are clipped. False is the limit without privacy.
    """

    def __init__(
        self, R: Any, *, n_slots: int, unit: str, neighbors: str, private: bool, n_jobs: int | None
    ) -> None:
        if not R.has_canonical_format:  # norms are those of whole rows, not of their parts
            R = R.copy()
            R.sum_duplicates()
        self.__rows = Rows(R, n_jobs)
        self.n_slots, self.n_items = n_slots, R.shape[1]
        self.unit, self.neighbors = unit, neighbors
        self.private, self.n_jobs = private, n_jobs

    __setattr__ = set_once

    def __repr__(self) -> str:
        return f"Users(n_slots={self.n_slots}, n_items={self.n_items})"

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError("Users are never pickled or copied: they hold the ratings of a fit.")

    def map(self, function: Callable[..., Any], *args: Any, **public: Any) -> Any:
        """Apply a function to every user's row.

        function: ``function(rows, *args, **public)`` with `Rows`; a `PerUser` among ``args`` comes
        as its array. It returns an array, or a tuple of arrays, with an entry or a row for each
        user or for each rating, and must be per user: see the module. ``*args``: `PerUser`,
        released values and public ones; ``**public``: released values and public ones.
        """
        result = function(self.__rows, *map(_values_of, args), **public)
        return tuple(map(PerUser, result)) if isinstance(result, tuple) else PerUser(result)

    def keep(self, function: Callable[..., Any], *args: Any, **public: Any) -> Users:
        """Return the users with some of their ratings, or other values of them.

        The function is as for `map`, and returns a CSR array with as many rows.
        """
        R = function(self.__rows, *map(_values_of, args), **public)
        if R.shape != (self.__rows.n_users, self.n_items):
            raise PrivacyParameterError(
                f"function={function!r} gave ratings of shape {R.shape} and must keep the shape "
                f"{(self.__rows.n_users, self.n_items)}: leave out ratings, not rows or columns."
            )
        return Users(
            R,
            n_slots=self.n_slots,
            unit=self.unit,
            neighbors=self.neighbors,
            private=self.private,
            n_jobs=self.n_jobs,
        )

    def without_privacy(self) -> Rows:
        """Return the rows, in a fit without privacy alone: exact solvers need them."""
        if self.private:
            raise PrivacyParameterError(
                "users are of a private fit, and their rows must not be read: map over them and "
                "release sums."
            )
        return self.__rows


def reveal(users: Users) -> Rows:
    """Return the rows of the users. For `skdpmf.privacy.sums` alone."""
    rows: Rows = vars(users)["_Users__rows"]
    return rows


def _values_of(argument: Any) -> Any:
    """Return the array of a `PerUser`, any other argument as it is."""
    return vars(argument)["_PerUser__values"] if isinstance(argument, PerUser) else argument
