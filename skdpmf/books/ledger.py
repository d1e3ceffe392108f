"""What is spent on one data set, by whatever estimator, process or search: `PrivacyLedger`."""

from __future__ import annotations

import json
import math
import os
import secrets
import sqlite3
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np

from skdpmf import exceptions as errors
from skdpmf.books import ledger_file
from skdpmf.books import ledger_rules as rules
from skdpmf.books.ledger_cohorts import Cohorts, People, people_of
from skdpmf.books.ledger_file import tampered
from skdpmf.books.ledger_report import LedgerReport, read_entry, recordable, rounded_down
from skdpmf.books.ledger_rules import Amount, Spending
from skdpmf.books.search import SearchPlan
from skdpmf.data.validation import is_integer
from skdpmf.exceptions import PrivacyParameterError, counted, require_that
from skdpmf.privacy.budget import BudgetKeeper, PrivacyBudget
from skdpmf.privacy.plan import ReleasePlan

_TOLERANCE = Fraction(10**9 + 1, 10**9)  # another version of a library may round otherwise
_ZCDP_MARGIN = 1e-7  # for the sampler of 10^9 values a part, which the rule charges


@dataclass(frozen=True, eq=False)
class Reservation:
    """An entry that counts as spent; as a context manager it records how the fit ended.

    By person, ``included`` (n_rows,) bool are the rows that take part.
    """

    ledger: PrivacyLedger
    id: int
    plan: ReleasePlan | SearchPlan
    included: Any = None

    def __enter__(self) -> Reservation:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        try:
            with self.ledger._transaction(write=True) as (connection, *_):
                query = "UPDATE entry SET status=? WHERE id=? AND status='reserved'"
                connection.execute(query, ("done" if kind is None else "failed", self.id))
        except errors.LedgerError as problem:  # it counts as spent all the same
            warnings.warn(f"entry {self.id} stays 'reserved': {problem}", stacklevel=2)


class PrivacyLedger(BudgetKeeper):
    r"""A durable record of all that is spent on one data set, with a limit that holds.

    One SQLite file a data set. Pass it on in the budget, ``PrivacyBudget(epsilon, delta,
    ledger=ledger)``: every private `fit` then reserves what its plan costs, in one atomic
    transaction, before it looks at the ratings, or raises `BudgetExceededError`. What is reserved
    is spent, also if the fit fails or the process dies: nothing is ever given back. Copies of an
    estimator (``clone``, searches, pickles, threads, processes, joblib's backends) share it.

    All that is admitted is together (epsilon, delta)-DP, however budgets and methods are chosen
    from earlier outcomes. For that a ledger adds by one rule, fixed when it is made:

    ========  =======================  =================================  ====================
    rule      Gaussian releases        pure releases                      limit
    ========  =======================  =================================  ====================
    gaussian  mu^2                     (2 Phi^-1(e^eps / (1 + e^eps)))^2  mu(epsilon, delta)^2
    zcdp      rho = mu^2 / 2           eps^2 / 2                          rho(epsilon, delta)
    basic     epsilon, delta of plan   eps                                epsilon, and delta
    ========  =======================  =================================  ====================

    A `PrivateSearchCV` is one entry, however many trials it draws: by "basic" its epsilon and
    delta, by "zcdp" its Renyi divergence at the order at which the limit holds, over that order,
    mostly more than a fit of that epsilon is charged. "gaussian" takes pure searches only.

    With ``at_most`` it is a ledger *by person*: the limit is each person's for life, and a fit
    charges the persons in its rows only, so that disjoint cohorts of users each get all of it. X
    must have ids: a `RatingMatrix`, ratings on disk with ids, or a DataFrame whose index they are.
    A person who took part that often, or has too little left for a fit, counts as an empty row in
    it; that depends on this person's own fits alone (proof: `skdpmf.books.ledger_cohorts`). The
    file then knows who took part, by keyed hashes.

    "gaussian" is exact for Gaussian releases; "zcdp" is better for many small pure ones; "basic" is
    for pure ones within a pure limit, and its limit holds to 15 digits: three times 0.1 fits into
    0.3. The imperfection of the sampler is part of the charges and the limit (a thousandth of delta
    at most is set aside for it). All else is rounded to the private side.

    Parameters
    ----------
    path : str or path-like
        The file, on a local disk; "~" is the home folder. Made, for its owner alone to read, if it
        does not exist and `limit` is given.
    limit : PrivacyBudget, default=None
        The most that may be spent, of finite epsilon; its unit and neighbouring relation are the
        ledger's. None opens an existing ledger; else it must be what the ledger was made with.
    rule : {"gaussian", "zcdp", "basic"}, default=None
        The rule of composition. None: that of an existing ledger; of a new one "gaussian", or
        "basic" where the limit has delta = 0, as the others allow nothing then.
    at_most : int, default=None
        Most fits that one person takes part in. A number makes a ledger by person, of unit "user"
        and rule "gaussian". None: as an existing ledger has it; a new one is not by person.
    allow_seeded : bool, default=False
        Whether fits with ``random_state=int`` are admitted. They are charged and marked; whoever
        guesses the seed sees through their noise.
    user : str, default=None
        Who spends, for the record. None records nobody.

    Raises
    ------
    PrivacyParameterError
        If there is no such ledger and no limit, a parameter is invalid, or the ledger was made with
        another limit, rule or ``at_most``.
    LedgerError
        If the file cannot be opened, or is not a ledger: damaged, cut short, empty.

    See Also
    --------
    PrivacyBudget : A budget takes a ledger.

    Notes
    -----
    ``allow_seeded`` and ``user`` belong to this object and its copies, not to the file. A pickle
    holds the path and opens nothing: a model that was fitted with a ledger can be loaded where the
    file is not. Estimators without a budget do not know of ledgers.

    A ledger by person charges every id in the rows, also that of an empty row; None is a slot of
    nobody. Each fit counts: a private step of a pipeline and the model after it are two, a stock
    search has one for each candidate and fold. A fit is refused if nobody in its rows is left; so
    a fit that was made shows that somebody was. Private searches and functions that take no ids are
    refused.

    The record holds plans, parameters, shapes, times and process ids, and nothing of the ratings;
    it is the curator's, and is itself not part of any release. An older copy of the file put in its
    place forgets what was spent since: keep backups from being used so.

    In a search pass ``error_score="raise"``, so that it ends where the budget does;
    scikit-learn's default goes on to candidates that still fit. The choice of a stock search is by
    exact scores and not private, whatever its fits spent.

    References
    ----------
    A. Smith, A. Thakurta, "Fully adaptive composition for Gaussian differential privacy", arXiv
    2210.17520 ("gaussian").

    V. Feldman, T. Zrnic, "Individual privacy accounting via a Renyi filter", NeurIPS 2021 (by
    person).

    J. Whitehouse et al., "Fully-adaptive composition in differential privacy", ICML 2023 ("zcdp").

    R. Rogers et al., "Privacy odometers and filters", NeurIPS 2016 ("basic").

    Examples
    --------
    >>> import tempfile, pathlib
    >>> from skdpmf.privacy import ReleasePlan
    >>> from skdpmf.privacy.plan import Release
    >>> path = pathlib.Path(tempfile.mkdtemp(), "ratings.ledger")
    >>> ledger = PrivacyLedger(path, PrivacyBudget(1.0, 1e-5))
    >>> half, other = PrivacyBudget(1.0, 1e-5, ledger=ledger).split([0.5, 0.5])
    >>> sums = Release("sums", "ratings per item", (100,), 10.0)
    >>> plan = ReleasePlan.from_shares(half, [sums], {"sums": 1.0})
    >>> for _ in range(2):
    ...     with ledger.reserve(plan):
    ...         pass  # look at the data and release
    >>> ledger.reserve(plan)
    Traceback (most recent call last):
    ...
    skdpmf.exceptions.BudgetExceededError: epsilon=0.684... must fit into what ... has left. ...
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        limit: PrivacyBudget | None = None,
        *,
        rule: str | None = None,
        at_most: int | None = None,
        allow_seeded: bool = False,
        user: str | None = None,
    ) -> None:
        self._path = ledger_file.checked_path(path)
        self._allow_seeded = bool(allow_seeded)
        self._user = None if user is None else str(user)
        remedy = f"one of {tuple(rules.RULES)}: leave it out if in doubt."
        require_that(rule is None or rule in rules.RULES, "rule", rule, remedy)
        limit, most = _checked_limit(limit, rule), _checked_at_most(at_most, limit, rule)
        self._open(limit, rule, most)

    @property
    def path(self) -> str:
        """Absolute path of the file."""
        return self._path

    @property
    def limit(self) -> PrivacyBudget:
        """The most that may be spent."""
        return self._limit

    @property
    def rule(self) -> str:
        """The rule of composition."""
        return self._rule

    @property
    def at_most(self) -> int | None:
        """Most fits that one person takes part in; None: not by person."""
        return self._at_most

    @property
    def unit(self) -> str:
        """What is protected, as for `PrivacyBudget`."""
        return self._limit.unit

    @property
    def neighbors(self) -> str:
        """Neighbouring relation, as for `PrivacyBudget`."""
        return self._limit.neighbors

    def reserve(
        self,
        plan: ReleasePlan | SearchPlan,
        *,
        estimator: str = "",
        params: Mapping[str, Any] | None = None,
        shape: Sequence[int] | None = None,
        seeded: bool = False,
        nonprivate: bool = False,
        note: str = "",
        users: Any = None,
    ) -> Reservation:
        """Charge a plan, before any value of the data is touched.

        The cost follows from the plan's releases by the ledger's rule. When this returns, the
        entry is on the disk and counts.

        Parameters
        ----------
        plan : ReleasePlan or SearchPlan
            Plan of the releases.
        estimator : str, default=""
            Name of what releases it.
        params : mapping, default=None
            Its parameters. Only numbers, strings, bools, None, budgets, and tuples or lists of at
            most 16 of them are recorded; of all else the type.
        shape : sequence of int, default=None
            Shape of the ratings, which is public.
        seeded : bool, default=False
            Whether the noise follows from a seed.
        nonprivate : bool, default=False
            Whether something exact is kept beside what the plan releases.
        note : str, default=""
            Anything else for the record. Nothing of the data belongs there.
        users : array-like of shape (n_rows,), default=None
            For a ledger by person the id of each row's person, an integer or a string; None for a
            slot of nobody. ``included`` of the result says which rows take part: all others must
            count as empty.

        Returns
        -------
        Reservation
            A context manager: the entry becomes "done" where its block ends, and "failed" where it
            raises. It is spent in any case.

        Raises
        ------
        BudgetExceededError
            If it does not fit (by person: for nobody in the rows); the message says what would.
            Nothing is charged.
        PrivacyParameterError
            If the plan's unit or neighbouring relation is another, the plan cannot be charged by
            the rule, or it is not private, or seeded and this is not allowed. By person, if it is a
            search, or users are not the id of one person each.
        LedgerError
            If the file cannot be written. Nothing may be released then.

        Examples
        --------
        >>> import tempfile, pathlib
        >>> from skdpmf.privacy.pure import PureRelease
        >>> path = pathlib.Path(tempfile.mkdtemp(), "ratings.ledger")
        >>> ledger = PrivacyLedger(path, PrivacyBudget(1.0))
        >>> draw = PureRelease("draw", "V", (3,), 0.25, "posterior sample", 1.0, "loss of a user")
        >>> with ledger.reserve(ReleasePlan(PrivacyBudget(0.25), (draw,)), note="a trial") as entry:
        ...     entry.id
        1
        >>> ledger.report().spent
        0.25
        """
        spending = plan.spending if isinstance(plan, SearchPlan) else Spending.of(plan)
        self._check_admissible(plan, spending, nonprivate, seeded)
        people = self._people(plan, shape, users)
        cost = self._charge(spending)
        facts = {
            "process": os.getpid(),
            "user": self._user,
            "estimator": str(estimator),
            "params": {str(k): recordable(v) for k, v in (params or {}).items()},
            "shape": None if shape is None else [int(n) for n in shape],
            "epsilon": recordable(plan.epsilon),
            "delta": plan.delta,
            "mu": recordable(plan.mu),
            "seeded": bool(seeded),
            "condition": plan.condition,
            "local": plan.local,
            "note": str(note),
            "releases": spending.to_dict(),
        }
        left, chosen, other_ids = self._allowed, None, ""
        with self._transaction(write=True) as (connection, spent, entries):
            total, entry = spent + cost, entries + 1
            if people is None:
                left = self._allowed - spent
                admitted = cost.within(left)
            else:
                cohorts = self._cohorts(connection)
                chosen, left = cohorts.admitted(people.keys, cost)
                admitted, other_ids = bool(chosen.any()), self._other_ids(connection, people)
                counts = int(chosen.sum()), int((~chosen).sum())
                facts |= {"people": counts[0], "left_out": counts[1], "ids": people.kinds}
            if admitted and not other_ids:
                record = json.dumps(facts, allow_nan=False)
                row = (entry, _now(), str(cost.main), str(cost.second), record)
                connection.execute("INSERT INTO entry VALUES (?, ?, 'reserved', ?, ?, ?)", row)
                if people is not None:
                    cohorts.add(entry, people.keys[:, chosen])
                ledger_file.write_total(connection, entry, total.main, total.second)
        if other_ids:
            raise PrivacyParameterError(other_ids)
        if not admitted:
            raise self._exceeded(plan, spending, cost, left)
        included = None
        if people is not None:
            included = np.zeros(people.n_rows, bool)
            included[people.rows[chosen]] = True
        return Reservation(self, entry, plan, included)

    def report(self) -> LedgerReport:
        """Return what was spent, what is left, and every entry.

        Returns
        -------
        LedgerReport
            To print, or as JSON (``to_json()``); pandas makes a table of its ``entries``.

        Raises
        ------
        LedgerError
            If the file cannot be read.

        Examples
        --------
        >>> import tempfile, pathlib
        >>> path = pathlib.Path(tempfile.mkdtemp(), "ratings.ledger")
        >>> PrivacyLedger(path, PrivacyBudget(1.0, 1e-5)).report().entries
        ()
        """
        with self._transaction() as (connection, spent, _):
            rows = connection.execute("SELECT id, time, status, main, record FROM entry").fetchall()
            entries = tuple(map(read_entry, rows))
            n_people = n_spent = 0
            if self._at_most is not None:
                spent, n_people, n_spent = self._cohorts(connection).summary()
        terms = self._path, self._limit, self._rule, spent, self._allowed, entries
        return LedgerReport(*terms, self._at_most, n_people, n_spent)

    def verify(self) -> int:
        """Check the file: every entry against its plan, and the total against the entries.

        Returns
        -------
        int
            Number of entries.

        Raises
        ------
        LedgerError
            If anything disagrees, or the file is damaged.

        Examples
        --------
        >>> import tempfile, pathlib
        >>> path = pathlib.Path(tempfile.mkdtemp(), "ratings.ledger")
        >>> PrivacyLedger(path, PrivacyBudget(1.0, 1e-5)).verify()
        0
        """
        with self._transaction() as (connection, spent, entries):
            wrong = self._wrong(connection, spent)
            if wrong:
                raise tampered(self._path, wrong)
        return entries

    # mu of a fit with a budget, and the epsilon whose mu it is, or a rounding error less
    _mu_of = staticmethod(rules.mu_beside_a_ledger)
    _epsilon_of = staticmethod(rules.epsilon_beside_a_ledger)

    def _mu_of_parts(self, epsilon: float, delta: float) -> float:
        """Return the mu of parts that are charged one by one."""
        mu = rules.mu_beside_a_ledger(epsilon, delta)
        if self.rule == "zcdp":
            mu = min(mu, math.sqrt(2.0 * rules.limit_of("zcdp", epsilon, delta).number))
            mu *= 1.0 - _ZCDP_MARGIN
        return mu

    def __sklearn_clone__(self) -> PrivacyLedger:
        return self

    __copy__ = __sklearn_clone__

    def __deepcopy__(self, memo: dict[int, Any]) -> PrivacyLedger:
        return self

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PrivacyLedger) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    def __repr__(self) -> str:
        names = ("allow_seeded", "user")
        own = [f", {k}={v!r}" for k, v in zip(names, self._key[2:], strict=True) if v]
        return f"PrivacyLedger({self._path!r}{''.join(own)})"

    def _repr_html_(self) -> str:
        return self.report()._repr_html_()

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        self.report()._repr_pretty_(printer, cycle)

    @property
    def _key(self) -> tuple[Any, ...]:
        return self._path, self._identity, self._allow_seeded, self._user

    @property
    def _order(self) -> float | None:
        return rules.order_of(self._rule, float(self._limit.epsilon), self._allowed)

    def _charge(self, spending: Spending) -> Amount:
        """Return what is charged."""
        return rules.charge(self._rule, spending, self._order)

    def _wrong(self, connection: sqlite3.Connection, spent: Amount) -> str:
        """Return what is wrong with the file, or nothing; spent: its total."""
        damage: str = connection.execute("PRAGMA integrity_check").fetchone()[0]
        if damage != "ok":
            return damage
        query = "SELECT id, time, status, main, record, second FROM entry ORDER BY id"
        total, people = Amount(0, 0), {}
        for number, (*row, second) in enumerate(connection.execute(query), start=1):
            if row[0] != number:
                return f"entry {number} is missing"
            facts, cost = read_entry(row), Amount(int(row[3]), int(second))
            people[number] = facts.get("people", 0)
            expected = self._charge(Spending.from_dict(facts["releases"]))
            if not expected.within(cost.scaled(_TOLERANCE)):
                return f"entry {number} is charged less than its plan costs"
            total += cost
        if total != spent:
            return ledger_file.NO_SUM
        if self._at_most is not None:
            return self._cohorts(connection).wrong(people)
        return "" if spent.within(self._allowed) else "more is spent than the limit allows"

    def _people(self, plan: ReleasePlan | SearchPlan, shape: Any, users: Any) -> People | None:
        """Return the persons of the rows, whom a ledger by person charges."""
        if self._at_most is None:
            if users is not None:
                raise PrivacyParameterError(
                    f"users must be None for {self._path!r}, which is not by person: leave them "
                    "out, or make a ledger with at_most."
                )
            return None
        if isinstance(plan, SearchPlan):
            raise PrivacyParameterError(
                f"at_most={self._at_most} of {self._path!r} must be None for a private search, "
                "whose entry has no people of its own: pass budget.without_ledger()."
            )
        with self._transaction() as (connection, *_):
            query = "SELECT value FROM ledger WHERE name='secret'"
            secret = connection.execute(query).fetchone()[0]
        people = people_of(users, secret)
        if shape is not None and people.n_rows != shape[0]:
            words = f"users has {people.n_rows} ids, and must have {shape[0]}: pass one for a row."
            raise PrivacyParameterError(words)
        return people

    def _cohorts(self, connection: sqlite3.Connection) -> Cohorts:
        assert self._at_most is not None
        return Cohorts(connection, self._allowed, self._at_most)

    def _other_ids(self, connection: sqlite3.Connection, people: People) -> str:
        """Return what is wrong if earlier ids had other types, so that nobody would be known."""
        first = connection.execute("SELECT record FROM entry WHERE id=1").fetchone()
        known = people.kinds if first is None else json.loads(first[0])["ids"]
        if people.kinds in ("", known):
            return ""
        return (
            f"users holds ids of type {people.kinds}, and must hold {known}, as earlier fits of "
            f"{self._path!r} did: convert them, so that one person has the same id in all fits."
        )

    def _open(self, limit: PrivacyBudget | None, rule: str | None, at_most: int | None) -> None:
        """Read the terms, or make the file, and hold both against what was asked for."""
        if not os.path.exists(self._path):
            if limit is None:
                raise PrivacyParameterError(
                    f"limit=None must be a PrivacyBudget to make a new ledger, as there is none at "
                    f"path={self._path!r}: pass the limit of this data set, or the path of its "
                    "ledger."
                )
            rule = rule or ("gaussian" if limit.delta else "basic")
            ledger_file.make(self._path, _terms_of(limit, rule, at_most))
        if not os.path.isfile(self._path):
            raise tampered(self._path, "it is a folder, a pipe or a device")
        with ledger_file.transaction(self._path) as connection:
            stored = dict(connection.execute("SELECT name, value FROM ledger").fetchall())
            self._identity, self._rule = stored["identity"], stored["rule"]
            self._at_most = int(stored["at_most"]) if "at_most" in stored else None
            self._allowed = Amount(int(stored["main"]), int(stored["second"]))
            kind = {name: stored[name] for name in ("unit", "neighbors")}
            self._limit = PrivacyBudget(float(stored["epsilon"]), float(stored["delta"]), **kind)
            _checked_limit(self._limit, self._rule)
            if self._rule not in rules.RULES:
                raise tampered(self._path, f"its rule is {self._rule!r:.99}")
        for name, asked, remedy in (
            ("limit", limit, ", or make another ledger for another data set"),
            ("rule", rule, ". The rule of a data set cannot change"),
            ("at_most", at_most, ", or make another ledger for other people"),
        ):
            kept = getattr(self, name)
            words = f"{kept!r}, with which {self._path!r} was made: leave it out{remedy}."
            require_that(asked is None or asked == kept, name, asked, words)

    def _check_admissible(
        self, plan: ReleasePlan | SearchPlan, spending: Spending, nonprivate: bool, seeded: bool
    ) -> None:
        for name in ("unit", "neighbors"):
            asked, kept = getattr(plan.budget, name), getattr(self, name)
            words = f"{kept!r} in a plan for {self._path!r}: guarantees of two kinds do not add "
            words += f"up. Make a ledger with {name}={asked!r}, or pass a budget without ledger."
            words += " (Each device keeps count of its own reports.)" if plan.local else ""
            require_that(asked == kept, name, asked, words)
        if nonprivate or not spending.is_private:
            what = "nonprivate=True must be False" if spending.is_private else ""
            raise PrivacyParameterError(
                f"{what or 'epsilon=inf must be finite'} for a data set with a ledger: a release "
                "without noise spends everything. Pass a finite epsilon and ask for no "
                "nonprivate_* extras, or pass a budget without ledger, which no limit holds for."
            )
        words = "False for a data set with a ledger: noise from a seed (random_state=int) hides "
        words += "nothing from anybody who guesses it. Pass random_state=None, or open "
        words += f"{self._path!r} with allow_seeded=True."
        require_that(not seeded or self._allow_seeded, "seeded", bool(seeded), words)

    def _exceeded(
        self, plan: ReleasePlan | SearchPlan, spending: Spending, asked: Amount, left: Amount
    ) -> errors.BudgetExceededError:
        """Return the error that says what was asked, what is left and what would fit."""
        at = f" at delta={plan.delta:g}" if plan.delta else ""
        fits = rules.largest_fit(self._rule, spending, left, self._order)
        most = 0.0 if fits is None else float(fits.epsilon)
        largest = rounded_down(most)
        fitted = f"the largest such request that fits is epsilon={largest!r}{at}"
        remedy, where = fitted if largest else "no such request fits", "has left"

        def parts(i: int) -> tuple[str, str]:
            asks, has = (partial(amount.text, self._rule) for amount in (asked, left))
            return rules.apart(lambda n: asks(n)[i], lambda n: has(n)[i], 6, 60)

        if self._at_most is not None:
            n_fits = counted(self._at_most, "fit")
            where += f" for somebody in the rows (each takes part in at most {n_fits}, and a "
            where += "private step of a pipeline, or a fit of a search, is one)"
        costs, remains = map(" and ".join, zip(*map(parts, (0, 1)), strict=True))
        needs, fitting = rules.apart(
            lambda n: f"{plan.epsilon:.{n}g}", lambda n: f"{rounded_down(most, n):.{n}g}", 3, 17
        )
        error = errors.BudgetExceededError(
            f"epsilon={needs}{at} must fit into what the ledger {self._path!r} {where}. "
            f"Its limit is {self._limit.epsilon:g}, of which {fitting} is left for such a request: "
            f"{remedy}. (This one costs {costs}; {remains} are left.) Nothing was charged."
        )
        error.largest = largest
        return error

    @contextmanager
    def _transaction(self, write: bool = False) -> Iterator[tuple[sqlite3.Connection, Amount, int]]:
        """Run one transaction on the ledger that was opened, and no other in its place.

        It yields the connection, what is spent, and the number of entries.
        """
        with ledger_file.transaction(self._path, self._identity, write=write) as connection:
            total = connection.execute("SELECT entries, main, second FROM total").fetchone()
            entries, main, second = map(int, total)
            yield connection, Amount(main, second), entries


def _terms_of(limit: PrivacyBudget, rule: str, at_most: int | None) -> dict[str, str]:
    """Return the terms of a new ledger, as its file has them."""
    epsilon, delta = float(limit.epsilon), float(limit.delta)
    allowed = rules.limit_of(rule, epsilon, delta)
    terms = {"epsilon": repr(epsilon), "delta": repr(delta), "unit": limit.unit}
    terms |= {"neighbors": limit.neighbors, "rule": rule}
    terms |= {"main": str(allowed.main), "second": str(allowed.second)}
    if at_most is not None:
        terms |= {"at_most": str(at_most), "secret": secrets.token_hex(32)}
    return terms | {"identity": secrets.token_hex(16), "made": _now()}


def _checked_limit(limit: PrivacyBudget | None, rule: str | None) -> PrivacyBudget | None:
    if limit is None:
        return None
    holds = isinstance(limit, PrivacyBudget) and limit.ledger is None and limit.is_private
    words = "a PrivacyBudget with a finite epsilon and no ledger of its own, the most that may be "
    words += "spent: pass for example PrivacyBudget(4.0, 1e-5)."
    require_that(holds, "limit", limit, words)
    words = "'basic' for a limit with delta=0, as the other rules then allow nothing: leave the "
    words += "rule out, or pass a delta such as 1e-5."
    require_that(rule in (None, "basic") or limit.delta > 0.0, "rule", rule, words)
    return limit


def _checked_at_most(at_most: Any, limit: PrivacyBudget | None, rule: str | None) -> int | None:
    if at_most is None:
        return None
    words = "None or an integer >= 1: pass in how many fits one person may take part."
    require_that(is_integer(at_most, 1), "at_most", at_most, words)
    words = f"None for limit={limit!r} and rule={rule!r}: a ledger by person has unit 'user' and "
    words += "rule 'gaussian', which needs a delta such as 1e-5."
    holds = not limit or (limit.unit == "user" and limit.delta > 0.0)
    require_that(holds and rule in (None, "gaussian"), "at_most", at_most, words)
    return int(at_most)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
