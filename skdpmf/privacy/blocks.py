"""Values of blocks of users that are elsewhere: in the workers of a Dask cluster.

A fit's values are here, or they are `Blocks`: a Dask future for each block of consecutive users.
`skdpmf.privacy.users.each` calls a function with values, or in the workers with those of each
block, and `total` gives what it returned, or for blocks the sum. So a solver runs once, where the
curator is, and neither its key nor its plan leaves that process. What goes to workers is public or
released, but for the key of what is random about single rows; what they give to one another and
to the curator's process is values of users and exact sums, so that they are the curator's, too.

Blocks begin at multiples of `USERS_AT_ONCE` users: functions of some thousand rows may round by
where they are cut. Sums are exact, so that a model is the same to the bit whatever the blocks are.
A block that a worker loses is computed again by Dask, from what its values came from.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import itemgetter
from typing import Any

import numpy as np

from skdpmf.kernels.jit_and_threads import is_small, sized

_INLINE = 2**14  # bytes of public values that go with every task
_FAN_IN = 8  # sums that a task adds up


class Blocks:
    """Values of blocks of users.

    client: of the cluster; parts: a future for each block, or a value; ends: first user of each
    block, then the number of all; n_items: columns.
    """

    def __init__(self, client: Any, parts: list[Any], ends: Any, n_items: int) -> None:
        self.client, self.parts, self.ends = client, parts, ends
        self.shape = int(ends[-1]), n_items

    def _like(self, parts: list[Any]) -> Blocks:
        return Blocks(self.client, parts, self.ends, self.shape[1])

    def _submit(self, *args: Any) -> Any:
        return self.client.submit(_run, *args, pure=False)

    def each(self, function: Callable[..., Any], *args: Any) -> Blocks:
        """Return what a function gives in each block; of `Blocks` among args it gets the block's.

        Other args come as they are, through one worker, from which the others have them.
        """
        given = self, *args
        places = [k for k, one in enumerate(given) if isinstance(one, Blocks)]
        public: Any = tuple(None if k in places else one for k, one in enumerate(given))
        if sum(getattr(one, "nbytes", 0) for one in public) > _INLINE:
            public = self._submit(_same, True, public, ())
        own = zip(*(given[k].parts for k in places), strict=True)
        return self._like([self._submit(function, is_small(), public, places, *one) for one in own])

    def __getitem__(self, key: int) -> Blocks:
        return self.each(itemgetter(key))

    def total(self) -> Any:
        """Return the sum of arrays, or of tuples of arrays, over all blocks."""
        parts = self.parts
        while len(parts) > 1:
            groups = [parts[k : k + _FAN_IN] for k in range(0, len(parts), _FAN_IN)]
            parts = [
                self._submit(_added, True, [None] * len(own), range(len(own)), *own)
                for own in groups
            ]
        return self.gathered(parts)[0]

    def gathered(self, parts: list[Any] | None = None) -> list[Any]:
        """Return values of the blocks; an error of one of them is raised, without its frames."""
        made = self.client.gather(self.parts if parts is None else parts)
        for one in made:
            if isinstance(one, _Failed):
                raise one.error
        return list(made)

    def cut(self, values: Any) -> Blocks:
        """Return values of all users, which are public, in blocks."""
        return self._like([values[a:b] for a, b in zip(self.ends[:-1], self.ends[1:], strict=True)])

    @property
    def first(self) -> Blocks:
        """Number of each block's first user."""
        return self._like([int(first) for first in self.ends[:-1]])


class _Failed:
    """In the place of a result: Dask would log an error with the values that its task was given."""

    def __init__(self, error: BaseException) -> None:
        self.error = error.with_traceback(None)
        error.__context__ = error.__cause__ = None


def _run(function: Any, small: bool, public: Any, places: Any, *own: Any) -> Any:
    """Call a function with a block's values in their places, and public values in the others."""
    for one in (public, *own):
        if isinstance(one, _Failed):
            return one
    args = list(public)
    for place, value in zip(places, own, strict=True):
        args[place] = value
    try:
        with np.errstate(all="ignore"), sized(0 if small else 2**62):
            return function(*args)
    except Exception as error:
        return _Failed(error)


def _same(*values: Any) -> Any:
    return values


def _added(*parts: Any) -> Any:
    if isinstance(parts[0], tuple):
        return tuple(_added(*own) for own in zip(*parts, strict=True))
    total = parts[0].copy()
    for own in parts[1:]:
        total += own
    return total
