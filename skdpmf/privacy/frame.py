"""The frame of a private fit: its plan is charged, people are left out, and one curator is made.

`framed` charges the ledger before anything is computed from the ratings. Its `Frame` makes one
curator, once: who wants another one pays again. It empties the rows of those who take no part,
calls the function that prepares the rows, draws the key of the noise, and states what was spent,
by the curator's record. A key comes from nowhere else: it is fresh, or with a seed a hash of the
seed, the plan, all that is public, and the prepared rows; the statement says which.

Two kinds of mechanism have guarantees of their own and get rows, once (`Frame.rows`): draws from a
posterior, and the devices of the local model.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from skdpmf.exceptions import PrivacyParameterError, require_that
from skdpmf.privacy.budget import PrivacyBudget
from skdpmf.privacy.curator_release import Curator
from skdpmf.privacy.plan import ReleasePlan
from skdpmf.privacy.sampler.noise import NoiseSource, fresh_key, noise_source, recorded_key
from skdpmf.privacy.sampler.streams import data_digest, derived_key
from skdpmf.privacy.statement import PrivacyStatement, as_made
from skdpmf.privacy.users import cut, each, few_of, refuse_unless_kept, set_once, total


@contextmanager
def framed(
    budget: PrivacyBudget,
    plan: ReleasePlan,
    random_state: int | None,
    *,
    public: Any = None,
    others: Any = None,
    **record: Any,
) -> Iterator[Frame]:
    """Charge a plan to the budget's ledger, if there is one, and frame a fit.

    public: prepared rows of people outside of the guarantee, fixed before the curator exists;
    others (n_rows,): rows of people who are none of these; None: all; record: what the ledger
    notes, and with a ledger by person ``users``, the ids of the rows, None for public people.
    """
    own, kind = plan.budget, (budget.unit, budget.neighbors)
    same = plan.local or (own.unit, own.neighbors) == kind  # devices have a relation of their own
    if not same or own.epsilon > budget.epsilon or own.delta > budget.delta:
        raise PrivacyParameterError(
            f"plan is for the budget {own!r} and must be for {budget!r}, which pays for it."
        )
    charge: Any = nullcontext()
    if budget.ledger is not None:
        charge = budget.ledger.reserve(plan, seeded=random_state is not None, **record)
    with charge as charged:
        included = getattr(charged, "included", None)
        if others is not None:  # nobody pays for a public person
            included = others if included is None else included & others
        frame = Frame(plan, random_state, included, public=_digest_of(public))
        try:
            yield frame
        finally:
            frame.close()


class Frame:
    """One charge: it pays for one curator, and for one statement.

    plan: what was charged; seed: random_state; included (n_rows,) bool: rows that take part, others
    count as empty; None: all; public: digest of public rows, the only ones that a curator is for.
    """

    def __init__(
        self,
        plan: ReleasePlan,
        seed: int | None,
        included: NDArray[np.bool_] | None = None,
        public: Any = None,
    ) -> None:
        self.__plan, self.seeded, self.__public = copy.deepcopy(plan), seed is not None, public
        self.__seed, self.__included = seed, included
        self.__state: dict[str, Any] = {}

    __setattr__ = set_once

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError("a Frame is never pickled or copied: it pays for one curator.")

    @property
    def plan(self) -> ReleasePlan:
        """A copy of the plan, as it was charged."""
        return copy.deepcopy(self.__plan)

    def close(self) -> None:
        """End it: no curator is made any more."""
        self.__state.setdefault("personal", False)

    def curator(
        self,
        R: Any,
        prepare: tuple[Any, ...],
        settings: Any,
        *,
        n_jobs: int | None = None,
        features: NDArray[np.float64] | None = None,
        item_columns: NDArray[np.float64] | None = None,
        public: Any = None,
        **more: Any,
    ) -> Curator:
        """Make the curator.

        R (n_users, n_items): canonical ratings, here or in `Blocks`; prepare: a function of rows,
        per user as for `Users.map`, and its other arguments, which are public; settings: all that
        the mechanism goes by, which its repr shows; n_jobs to item_columns as for `Curator`;
        public: the rows that the frame is for, which without privacy are rows as all others; more:
        ``levels`` (n_users,): public privacy levels, a row of level 0 counts as empty; ``known``:
        arrays of released values that the fit starts from.
        """
        rule = "False: devices report by themselves, and nobody curates their rows."
        require_that(not self.plan.local, "local", self.plan.local, rule)
        columns = [part for part in (features, item_columns) if part is not None]
        R, noise = self.rows(R, prepare, settings, public=public, columns=columns, **more)
        curator = Curator(R, self.__plan, noise, n_jobs, features, item_columns)
        self.__state["curator"] = curator
        return curator

    def rows(
        self,
        R: Any,
        prepare: tuple[Any, ...],
        settings: Any,
        *,
        draw: str = "noise",
        levels: NDArray[np.float64] | None = None,
        known: Iterable[NDArray[Any]] = (),
        public: Any = None,
        columns: Iterable[NDArray[Any]] = (),
    ) -> tuple[Any, Any]:
        """Return the prepared rows and a source of noise, or for ``draw="key"`` its key.

        For draws from a posterior, and for devices, whose own keys are made from the key.
        """
        if _digest_of(public) != self.__public:  # read before any private row was
            raise PrivacyParameterError("public rows of a fit must be those of its frame alone.")
        people = () if public is None else (public.indptr, public.indices, public.data)
        if self.__state:
            raise PrivacyParameterError(
                "a second curator for one charge would release everything twice at the price of "
                "once: begin another fit, which is charged for itself."
            )
        self.__state["personal"] = levels is not None
        for rows in (self.__included, None if levels is None else levels > 0.0):
            if rows is not None:
                R = each(R, with_rows, cut(R, rows))
        R = each(R, _prepared, self.plan.is_private, *prepare)
        text = f"{settings!r} {self.plan!r}"
        make: Callable[..., bytes] = fresh_key
        if self.__seed is not None:
            make = partial(derived_key, int(self.__seed), text, *columns, *people, *known)
            aligned = () if levels is None else (cut(R, levels),)
            digest = total(each(R, data_digest, getattr(R, "first", 0), *aligned))
            make = partial(make, np.array(R.shape), digest)
        key = recorded_key(make)
        if public is not None and not self.plan.is_private:
            R = sparse.csr_array(sparse.vstack([R, public]))
        return R, noise_source(key) if draw == "noise" else key

    def statement(self, notes: Iterable[str] | None = None, **more: Any) -> PrivacyStatement:
        """Return the statement, from the curator's record.

        notes: in the place of the plan's; more: texts for `PrivacyStatement.from_plan`.
        """
        made = as_made(self.__plan, getattr(self.__state.get("curator"), "record", ()))
        if notes is not None:
            made = replace(made, notes=tuple(notes))
        personal = self.__state.get("personal", False)
        return PrivacyStatement.from_plan(made, seeded=self.seeded, personal=personal, **more)


def curator_of_public(
    rows: Any, plan: ReleasePlan, n_jobs: int | None, item_columns: NDArray[np.float64]
) -> Curator:
    """Return a curator of public rows, whose plan is without privacy: what it sums is exact."""
    require_that(not plan.is_private, "plan", plan, "without privacy: no noise is due.")
    return Curator(rows, plan, NoiseSource(bytes(32)), n_jobs, None, item_columns)


def _digest_of(public: Any) -> list[int] | None:
    return None if public is None else data_digest(public).ravel().tolist()


def _prepared(R: Any, private: bool, function: Callable[..., Any], *public: Any) -> Any:
    """Return what a function makes of the rows; of a few rows alone it must make the same."""
    few = function(R[few_of(R.shape[0])], *public) if private else None  # before R could change
    made = function(R, *public)
    refuse_unless_kept(function, R, made, few)
    return made


def with_rows(R: Any, rows: NDArray[np.bool_]) -> Any:
    """Return the ratings with all but some rows emptied."""
    keep = np.repeat(rows, np.diff(R.indptr))
    indptr = np.concatenate(([0], np.cumsum(keep)))[R.indptr].astype(R.indptr.dtype)
    return sparse.csr_array((R.data[keep], R.indices[keep], indptr), shape=R.shape)
