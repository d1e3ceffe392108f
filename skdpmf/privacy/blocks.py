"""Values of blocks of users that are elsewhere: in the workers of a Dask cluster.

A fit's values are here, or they are `Blocks`: a Dask future for each block of consecutive users.
`skdpmf.privacy.users.each` calls a function with values, or in the workers with those of each
block, and `total` gives what it returned, or for blocks the sum. So a solver runs once, where the
curator is, and neither its key nor its plan leaves that process. What goes to workers is public or
released, but for the key of what is random about single rows; what they give to one another and
to the curator's process is values of users and exact sums, so that they are the curator's, too.

Sums are exact, so that a model is the same to the bit whatever the blocks are. A block that a
worker loses is computed again by Dask, from what its values came from.
"""

from __future__ import annotations

import hashlib
import pickle
from collections import defaultdict
from collections.abc import Callable
from functools import cache, reduce
from operator import getitem
from pathlib import Path
from threading import Lock
from typing import Any
from uuid import uuid4

import numpy as np

from skdpmf.kernels.jit_and_threads import is_small, sized

_INLINE = 2**14  # bytes of public values that go with every task
_FAN_IN = 8  # sums that a task adds up
_LOCK = Lock()  # Dask's settings are those of all threads


class Blocks:
    """Values of blocks of users.

    client: of the cluster; parts: a future for each block, or a value; ends: first user of each
    block, then the number of all; n_items: columns; homes: for each block the workers that are
    asked first; none: whichever; pick: the place of the values where a part is a tuple.
    """

    def __init__(
        self, client: Any, parts: Any, ends: Any, n_items: int, homes: Any = (), pick: Any = ()
    ) -> None:
        self.client, self.parts, self.ends, self.homes = client, parts, ends, homes
        self.shape, self.pick = (int(ends[-1]), n_items), pick

    def like(self, parts: list[Any], pick: Any = ()) -> Blocks:
        """Return other values of the same blocks."""
        return Blocks(self.client, parts, self.ends, self.shape[1], self.homes, pick)

    def each(self, function: Callable[..., Any], *args: Any) -> Blocks:
        """Return what a function gives in each block; of `Blocks` among args it gets the block's.

        Other args come as they are; large ones through one worker, from which others have them.
        """
        from cloudpickle import dumps
        from dask import annotate, config

        given = self, *args
        own = [one.parts for one in given if isinstance(one, Blocks)]
        picks = [one.pick if isinstance(one, Blocks) else None for one in given]
        others = [one for one in args if not isinstance(one, Blocks)]
        public = dumps((code_version(), function, others))
        keys = [f"{function.__name__.strip('_')}-{uuid4().hex}" for _ in self.parts]
        # asked by Dask: its home, anybody where it has none or this has died
        homes = defaultdict(list, zip(keys, self.homes, strict=False)).__getitem__
        with _LOCK, config.set({"distributed.admin.large-graph-warning-threshold": "1GB"}):
            if len(public) > _INLINE:  # as a result, which Dask can make again, and no scatter
                public = self.client.submit(bytes, public, pure=False)
            how = {"given": public, "picks": picks, "small": is_small(), "key": keys}
            with annotate(workers=homes, allow_other_workers=True):
                return self.like(list(self.client.map(_run, *own, **how)))

    def __getitem__(self, key: int) -> Blocks:
        return self.like(self.parts, (*self.pick, key))

    def total(self) -> Any:
        """Return the sum of arrays, or of tuples of arrays, over all blocks."""
        parts = self.each(_itself).parts if self.pick else self.parts
        while len(parts) > 1:
            groups = [parts[k : k + _FAN_IN] for k in range(0, len(parts), _FAN_IN)]
            parts = Blocks(self.client, groups, self.ends, 0).each(_added).parts
        (made,) = self.client.gather(parts)
        if isinstance(made, _Failed):
            raise made.error
        return made

    def cut(self, values: Any) -> Blocks:
        """Return values of all users, which are public, in blocks."""
        return self.like([values[a:b] for a, b in zip(self.ends[:-1], self.ends[1:], strict=True)])

    @property
    def first(self) -> Blocks:
        """Number of each block's first user."""
        return self.like([int(first) for first in self.ends[:-1]])


@cache
def code_version() -> str:
    """Return what must be the same everywhere: skdpmf, to the byte, and the version of NumPy."""
    digest, package = hashlib.blake2b(digest_size=6), Path(__file__).parents[1]
    for path in sorted(package.rglob("*.py")):
        digest.update(path.relative_to(package).as_posix().encode() + path.read_bytes())
    return f"skdpmf {digest.hexdigest()} with NumPy {np.__version__}"


class _Failed:
    """In the place of a result: Dask would log an error with the values that its task was given."""

    def __init__(self, error: Exception) -> None:
        self.error = error.with_traceback(None)
        error.__context__ = error.__cause__ = None


def _run(*own: Any, given: bytes, picks: Any, small: bool) -> Any:
    """Call a function with values of a block and with public ones, as in the curator's process."""
    flat = [one for part in own for one in (part if isinstance(part, list) else [part])]
    failed = [one for one in flat if isinstance(one, _Failed)]
    if failed:
        return failed[0]
    try:
        version, function, public = pickle.loads(given)
        if version != code_version():
            raise RuntimeError(
                f"a worker runs {code_version()} and the curator's process {version}: what bounds "
                "rest on must be the same. Install one version everywhere."
            )
        values, rest = iter(own), iter(public)
        args = [
            next(rest) if pick is None else reduce(getitem, pick, next(values)) for pick in picks
        ]
        with np.errstate(all="ignore"), sized(0 if small else 2**62):
            return function(*args)
    except Exception as error:
        return _Failed(error)


def _itself(values: Any) -> Any:
    return values


def _added(parts: list[Any]) -> Any:
    if isinstance(parts[0], tuple):
        return tuple(_added(list(own)) for own in zip(*parts, strict=True))
    return sum(parts[1:], start=parts[0])
