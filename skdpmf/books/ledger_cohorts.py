r"""Cohorts: a ledger by person charges the persons in the rows of a fit, and nobody else.

Every person has the ledger's limit for life, and takes part in at most k fits (``at_most``). A fit
brings the ids of its rows. *Inclusion:* a person takes part in a fit of cost c = mu^2 if this
person took part in fewer than k fits before, and their costs and c add up to the limit at most.
Every other row counts as empty before anything is summed.

*Claim:* to each person, all that the fits of a ledger ever release is (epsilon, delta)-DP of the
limit, however plans, cohorts and other people's rows are chosen from what was released before.
Neighbours differ in all rows of this person, of all fits: rows emptied or filled, or for "replace"
other values in them.

*Proof.* Fix the person, and what was released before a fit. Nobody else's inclusion looks at this
person, so that the plan and all other rows are the same for both neighbours. The person's own row
is empty in both, and the fit has the same law, if the person is left out; else the fit is mu-GDP
between them. So fit t costs :math:`b_t \mu_t^2`, with :math:`b_t` 1 where the person takes part and
else 0. Both follow from earlier releases and from this person's participations, and inclusion holds
:math:`\sum_t b_t \mu_t^2` to the limit on every path: the condition of fully adaptive composition
(Smith and Thakurta; for accounts of single persons Feldman and Zrnic). For emptied rows take the
:math:`b_t` of the neighbour that has them. The sampler: values are counted where the person takes
part, at most n / k in a fit, n in all, which the limit sets aside (`skdpmf.books.ledger_rules`);
fits with :math:`b_t = 0` have one law, also as they are sampled. QED

The claim takes as public that a fit was made: it is refused where nobody in its rows is left.

*The file.* Persons are known by the first 16 bytes of BLAKE2b of their ids, keyed with a secret of
the file. A fit appends the sorted hashes of those who take part, in sixteen parts by their first
four bits, and no row ever changes: what a person has spent is computed from entries and parts, so
it cannot disagree with them. The digest of the total covers the digests of all parts.

Sources: A. Smith, A. Thakurta, "Fully adaptive composition for Gaussian differential privacy",
arXiv 2210.17520; V. Feldman, T. Zrnic, "Individual privacy accounting via a Renyi filter", NeurIPS
2021.
"""

import hashlib
import sqlite3
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from skdpmf.books.ledger_rules import Amount
from skdpmf.exceptions import PrivacyParameterError, require_that

WHOLE = 2**60  # the limit; what a fit costs of it is rounded up
_PARTS, _BITS = 16, np.uint64(60)
_REMEDY = "pass a RatingMatrix of ratings_to_matrix, or a DataFrame with users' ids as its index"


class People(NamedTuple):
    """Persons of a fit: halves of their hashes (2, n_people), ascending, and the row of each.

    ``n_rows`` are rows in all, ``kinds`` the types of the ids.
    """

    keys: NDArray[np.uint64]
    rows: NDArray[np.int64]
    n_rows: int
    kinds: str


def people_of(users: Any, secret: str) -> People:
    """Return the persons of rows by their ids, hashed with the secret; None is a slot of nobody.

    Raises PrivacyParameterError if there are no ids, they are neither integers nor strings, mere
    numbers of rows, or of one person twice.
    """
    rule = f"ids of the rows for a ledger with at_most: {_REMEDY}. Fit a step that takes no ids "
    rule += "by budget.without_ledger(), and count its spending elsewhere."
    require_that(users is not None, "users", users, rule)
    ids = users.tolist() if hasattr(users, "tolist") else list(users)
    keyed = hashlib.blake2b(digest_size=16, key=bytes.fromhex(secret))
    hashes, rows, kinds = [], [], set()
    for row, user in enumerate(ids):
        if user is None or (isinstance(user, float) and user != user):  # pandas makes None NaN
            continue
        if isinstance(user, str):
            kind, name = "str", b"s" + user.encode("utf-8", "surrogatepass")
        elif isinstance(user, int | np.integer) and not isinstance(user, bool):
            kind, name = "int", b"i%d" % int(user)
        else:
            raise PrivacyParameterError(
                f"users holds {user!r} in row {row}, which must be an integer or a string, so that "
                "one person has one id in all fits: convert the ids, and use None for empty slots."
            )
        one = keyed.copy()
        one.update(name)
        hashes.append(one.digest())
        rows.append(row)
        kinds.add(kind)
    if kinds == {"int"} and all(ids[row] == row for row in rows):
        raise PrivacyParameterError(
            f"users must be ids, and holds {rows[0]} to {rows[-1]}, the rows' numbers: {_REMEDY}, "
            "such as strings."
        )
    keys = np.frombuffer(b"".join(hashes), "<u8").reshape(-1, 2).T.astype(np.uint64, order="C")
    order = np.lexsort(keys[::-1])
    keys, places = keys[:, order], np.array(rows, np.int64)[order]
    twice = np.flatnonzero((keys[:, 1:] == keys[:, :-1]).all(axis=0))
    if twice.size:
        raise PrivacyParameterError(
            f"users holds {ids[places[twice[0]]]!r} in two rows, and every person must have one: "
            "join the rows of a person, as ratings_to_matrix does."
        )
    return People(keys, places, len(ids), " and ".join(sorted(kinds)))


@dataclass(frozen=True)
class Cohorts:
    """All who took part so far, in one transaction, and the limit of each."""

    connection: sqlite3.Connection
    allowed: Amount
    at_most: int

    def admitted(self, keys: NDArray[np.uint64], cost: Amount) -> tuple[NDArray[np.bool_], Amount]:
        """Return who takes part in a fit, and what somebody who may has left at most."""
        times, spent = self.taken_part(keys)
        may = times < self.at_most
        values = self.allowed.second // self.at_most
        chosen = may & (spent <= WHOLE - self._share(cost.main)) & (cost.second <= values)
        most = WHOLE - int(spent[may].min(initial=WHOLE))
        return chosen, Amount(most * self.allowed.main // WHOLE, values)

    def taken_part(self, keys: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Return in how many fits each person took part, and what of `WHOLE` these cost."""
        account = np.zeros((2, keys.shape[1]), np.int64)
        for part, here in _slices(keys):
            for cost, _, known in self._read(part):
                account[:, here.start + _places(keys[:, here], known)] += [[1], [cost]]
        return account

    def add(self, entry: int, keys: NDArray[np.uint64]) -> None:
        """Append those who take part, in the transaction that makes their entry."""
        for part, here in _slices(keys):
            hashes = keys[:, here].astype("<u8").tobytes()
            values = (entry, part, _digest(hashes), hashes)
            self.connection.execute("INSERT INTO cohort VALUES (?, ?, ?, ?)", values)

    def summary(self) -> tuple[Amount, int, int]:
        """Return the most that a person has spent, how many took part, and how many are spent."""
        most = n_people = n_spent = 0
        for times, spent in self._accounts():
            most, n_people = max(most, int(spent.max())), n_people + len(spent)
            n_spent += int(((times >= self.at_most) | (spent > WHOLE - WHOLE // 1000)).sum())
        return Amount(-(-most * self.allowed.main // WHOLE), 0), n_people, n_spent

    def wrong(self, people: dict[int, int]) -> str:
        """Return what is wrong with the cohorts, or nothing; people: how many each entry says."""
        found: Counter[int] = Counter()
        for part in range(_PARTS):
            for _, entry, keys in self._read(part):
                found[entry] += keys.shape[1]
                twice = (keys[:, 1:] == keys[:, :-1]).all(axis=0).any()
                disorder = (np.lexsort(keys[::-1]) != np.arange(keys.shape[1])).any()
                if twice or disorder or (keys[0] >> _BITS != part).any():
                    return f"the cohort of entry {entry} is out of order"
        for entry in sorted(people.keys() | found.keys()):
            if people.get(entry, 0) != found[entry]:
                return f"entry {entry} has not as many people as it says"
        for times, spent in self._accounts():
            if times.max() > self.at_most or spent.max() > WHOLE:
                return "a person took part more often, or has spent more, than the limit allows"
        return ""

    def _accounts(self) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
        """Yield, a part at a time, in how many fits all persons took part, and what these cost."""
        for part in range(_PARTS):
            cohorts = list(self._read(part))
            if cohorts:
                keys = np.concatenate([known for *_, known in cohorts], axis=1)
                costs = np.repeat([cost for cost, *_ in cohorts], [k.shape[1] for *_, k in cohorts])
                order = np.lexsort(keys[::-1])
                keys, costs = keys[:, order], costs[order]
                first = np.flatnonzero(np.append(True, (keys[:, 1:] != keys[:, :-1]).any(axis=0)))
                yield np.diff(first, append=len(costs)), np.add.reduceat(costs, first)

    def _read(self, part: int) -> Iterator[tuple[int, int, NDArray[np.uint64]]]:
        """Yield cost, entry and hashes of all cohorts, of one part; ValueError if changed."""
        query = "SELECT entry, main, cohort.digest, hashes FROM cohort JOIN entry ON id = entry"
        query += " WHERE part=? ORDER BY entry"
        for entry, main, digest, hashes in self.connection.execute(query, (part,)):
            if _digest(hashes) != digest:
                raise ValueError(f"the cohort of entry {entry} was changed")
            keys = np.frombuffer(hashes, "<u8").astype(np.uint64, copy=False).reshape(2, -1)
            yield self._share(int(main)), entry, keys

    def _share(self, cost: int) -> int:
        """Return how much of `WHOLE` a cost is, rounded up."""
        return -(-cost * WHOLE // self.allowed.main)


def _slices(keys: NDArray[np.uint64]) -> Iterator[tuple[int, slice]]:
    """Yield the parts that have any of these hashes, and where these are."""
    bounds = np.searchsorted(keys[0] >> _BITS, np.arange(_PARTS + 1, dtype=np.uint64))
    for part in range(_PARTS):
        if bounds[part] < bounds[part + 1]:
            yield part, slice(int(bounds[part]), int(bounds[part + 1]))


def _places(keys: NDArray[np.uint64], known: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Return where among keys those are that are known; both (2, n), ascending."""
    at, last = np.searchsorted(keys[0], known[0]), keys.shape[1] - 1
    while True:
        here = np.minimum(at, last)
        same = (at <= last) & (keys[0, here] == known[0])
        other = same & (keys[1, here] != known[1])  # the first halves agree, the second do not
        if not other.any():
            return here[same]
        at = at + other


def _digest(hashes: bytes) -> str:
    return hashlib.blake2b(hashes, digest_size=16).hexdigest()
