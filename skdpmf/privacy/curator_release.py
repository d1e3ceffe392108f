"""The curator of a fit: holds its ratings, its plan and its noise, and releases bounded sums.

A solver gets `Curator.users`, maps over them, sums by `skdpmf.privacy.clipped_sums` and calls
`Curator.release`. That refuses, at runtime and whatever the ratings are, all that is not planned:
a name that the plan lacks, a release once more than planned, a sum of another kind or of a larger
bound, more values than planned, anything but a `BoundedSum`. Noise has the planned multiplier times
the planned sensitivity, both of them as they were when the curator was made, and the plan's cost
is checked against its budget then. What was released is in `record`, and the statement is made
from it.
"""

import copy
import math
import operator
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from skdpmf.exceptions import PrivacyParameterError
from skdpmf.privacy.clipped_sums import BoundedSum, PiecedSum
from skdpmf.privacy.plan import Release, ReleasePlan
from skdpmf.privacy.sampler.streams import Priorities
from skdpmf.privacy.users import (
    Handle,
    Rows,
    Users,
    handle_entry,
    per_user,
    reveal,
    sealed,
    set_once,
)

# Bounds are computed in two ways, which may differ so much; `calibrate_grid` adds 2^-40 to noise.
_ROUNDING = 1.0 + 2.0**-44


@dataclass(frozen=True)
class Released:
    """One release that was made, in public terms.

    `slot` is the planned release, `index` its number among those of that name, and `statistic` the
    name of the planned release whose statistic it was: the slot's own, or an alternative. The last
    two fields are those of the law that was drawn.
    """

    slot: str
    index: int
    statistic: str
    shape: tuple[int, ...]
    sensitivity: float
    noise_multiplier: float


class Curator:
    """Releases what a plan says, and nothing else; refuses a plan that costs more than its budget.

    R (n_users, n_items): the prepared ratings, here or in `Blocks`; noise: a `NoiseSource`;
    features: a row for each user; item_columns (n_items, d): public columns of the items, with
    d = 0 if there are none.
    """

    def __init__(
        self,
        R: Any,
        plan: ReleasePlan,
        noise: Any,
        n_jobs: int | None,
        features: NDArray[np.float64] | None = None,
        item_columns: NDArray[np.float64] | None = None,
    ) -> None:
        plan = copy.deepcopy(plan)
        if plan.epsilon > plan.budget.epsilon or plan.delta > plan.budget.delta:
            raise PrivacyParameterError(
                f"plan costs (epsilon, delta)=({plan.epsilon!r}, {plan.delta!r}), more than its "
                f"budget {plan.budget!r}: make it by ReleasePlan.from_shares, and change no noise "
                "multiplier afterwards."
            )
        self.__plan = plan
        self.__record: list[Released] = []
        self.__slots = {release.name: release for release in plan.releases}
        self.__noise, self.n_jobs = noise, n_jobs
        self.private, self.n_rows = plan.is_private, max(R.shape[0], 1)
        budget = plan.budget
        near: Any = {"unit": budget.unit, "neighbors": budget.neighbors, "private": self.private}
        self.users = Users(R, n_slots=self.n_rows, n_jobs=n_jobs, **near)
        self.features = None if features is None else per_user(self.users, features, True)
        nothing = np.empty((self.users.n_items, 0))
        self.item_columns = nothing if item_columns is None else item_columns

    __setattr__ = set_once

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError("a Curator is never pickled or copied: it holds the ratings of a fit.")

    @property
    def plan(self) -> ReleasePlan:
        """A copy of the plan."""
        return copy.deepcopy(self.__plan)

    @property
    def record(self) -> tuple[Released, ...]:
        """Return the releases that were made, in their order."""
        return tuple(self.__record)

    @property
    def releases(self) -> dict[str, Any]:
        """The planned releases by name; changing what is returned changes no noise."""
        return dict(copy.deepcopy(self.__slots))

    def deviation(self, name: str, statistic: str | None = None) -> float:
        """Return the standard deviation of a planned release's noise; 0 without privacy."""
        if not self.private:
            return 0.0
        slot: Any = self.__slots[name]
        kind = self.__slots[statistic or name]
        scale = float(slot.noise_multiplier * kind.sensitivity)
        return scale * (math.sqrt(2.0) if slot.kind == "pure" else 1.0)

    def release(
        self, name: str, total: BoundedSum, index: int = 0, *, statistic: str | None = None
    ) -> NDArray[np.float64]:
        """Release a bounded sum in a planned slot.

        index: number of the release among those of this name, below the planned count; statistic:
        name of the planned release whose statistic takes the slot: one of the slot's alternatives,
        at the slot's noise multiplier. None: the slot's own.
        """
        terms = self._planned(name, total, BoundedSum, index, statistic)
        return np.asarray(drawn(total, self.__noise, n_jobs=self.n_jobs, **terms))

    @contextmanager
    def release_pieces(
        self, name: str, total: PiecedSum, index: int = 0
    ) -> Iterator[Callable[[int, int], list[tuple[int, slice, Any]]]]:
        """Release a sum that is too large to hold; its noise is for the smaller of two bounds.

        The result's ``release(start, stop)`` of one of ``total.pieces`` returns matrix, entries and
        released values of the piece.
        """
        terms = self._planned(name, total, PiecedSum, index)
        with self.__noise.blocks(shape=total.shape, **terms) as stream:
            yield lambda start, stop: _drawn_piece(total, stream, start, stop)

    def _planned(
        self,
        name: str,
        total: BoundedSum | PiecedSum,
        wanted: type[Handle],
        index: int,
        statistic: str | None = None,
    ) -> dict[str, Any]:
        """Return the terms of a planned release, and record it; or refuse."""
        check = partial(_refuse_unless, name, index)
        what = f"was given a {type(total).__name__}"
        check(isinstance(total, wanted), what, "sum over users by skdpmf.privacy.clipped_sums")
        check(name in self.__slots, "is not planned", f"the plan has {list(self.__slots)}")
        slot, near = self.__slots[name], (self.__plan.budget.unit, self.__plan.budget.neighbors)
        name, index = slot.name, operator.index(index)  # equal to more things than they are
        check(0 <= index < slot.count, "is one too many", f"it is planned {slot.count} times")
        made = any((one.slot, one.index) == (name, index) for one in self.__record)
        check(not made, "was made before", "keep the first result")
        may = name, *slot.alternatives
        kind: Any = self.__slots.get(statistic or name)
        holds = kind is not None and kind.name in may
        check(holds, f"holds {statistic!r}", f"the slot may hold {may}")
        terms = release_terms(slot, kind, total, index, near, self.private)
        own = handle_entry(total).fit is handle_entry(self.users).fit
        check(own, "is a sum of another fit", "sum over the users of this curator")
        law = terms["sensitivity"], terms["noise_multiplier"]
        self.__record.append(Released(name, index, kind.name, reveal(total).shape, *law))
        return terms

    def slot_priorities(self, purpose: str) -> Callable[[Rows], NDArray[np.uint64]]:
        """Return what gives random priorities of ratings, keyed by the slots of their users.

        It knows the key of what is random about single rows, and not that of the noise.
        """
        return Priorities(self.__noise.row_key(), purpose)

    def initial_normals(self, shape: tuple[int, ...], name: str = "factors") -> NDArray[np.float64]:
        """Return public starting values, as `NoiseSource.initial_normals`."""
        return np.array(self.__noise.initial_normals(shape, name))


@sealed
def drawn(total: BoundedSum, source: Any, /, **terms: Any) -> NDArray[np.float64]:
    """Return the released values of a sum."""
    return np.asarray(source.release(reveal(total), **terms))


@sealed
def _drawn_piece(total: PiecedSum, stream: Any, start: int, stop: int) -> Any:
    """Return matrix, entries and released values of each part of a piece."""
    return [
        (matrix, entries, stream.release(place, values))
        for matrix, entries, place, values in reveal(total).sums_of(start, stop)
    ]


def release_terms(
    slot: Any, kind: Any, total: Any, index: int, near: tuple[str, str], private: bool
) -> dict[str, Any]:
    """Return what noise a slot's release of this kind gets, or refuse the sum.

    It is for the planned sensitivity; of pairs for their own, which is smaller, and public.
    """
    check = partial(_refuse_unless, slot.name, index)
    public, shape = handle_entry(total).public, reveal(total).shape
    found = public.norm, public.layout, public.unit, public.neighbors
    wanted = slot.norm, kind.layout, *near
    what = f"is a sum of norm, layout, unit and neighbours {found}"
    check(found == wanted, what, f"planned is {wanted}")
    what, rule = f"has private={total.private!r}", f"the fit has private={private!r}"
    check(total.private == private, what, rule)
    what = f"changes by up to {total.sensitivity!r} with one {near[0]}"
    holds = not private or total.sensitivity <= kind.sensitivity * _ROUNDING
    check(holds, what, f"planned is {kind.sensitivity!r}")
    holds = len(shape) == len(kind.shape) and all(map(operator.le, shape, kind.shape))
    check(holds, f"has the shape {shape}", f"planned is at most {kind.shape}")
    own = total.sensitivity if isinstance(total, PiecedSum) else math.inf
    bound = min(kind.sensitivity, own)
    return {
        "name": slot.name,
        "index": index,
        "sensitivity": bound,
        "noise_multiplier": slot.noise_multiplier,
        "bound": total.n_slots * bound,
        "layout": total.layout,
        "noise": "gaussian" if slot.kind == Release.kind else "laplace",
    }


def _refuse_unless(name: str, index: int, holds: bool, what: str, rule: str) -> None:
    if not holds:
        raise PrivacyParameterError(
            f"release {name!r}, index {index}, {what}: {rule}. A fit may release what its plan "
            "says, and nothing else."
        )
