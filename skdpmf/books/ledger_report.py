"""What a ledger shows: as text and as JSON."""

import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import ROUND_DOWN, Context
from typing import Any

from skdpmf.books import ledger_rules as rules
from skdpmf.books.ledger_rules import Amount
from skdpmf.exceptions import counted
from skdpmf.privacy.budget import PrivacyBudget
from skdpmf.privacy.text import Kept, field_lines, outward

_SHOWN = 20
_LONGEST: dict[type, int] = {str: 200, tuple: 16, list: 16}  # of a recorded parameter
_HEAD = ("entry", "time", "status", "estimator", "epsilon", "delta", "mu", "share", "remark")
_LEGEND = "mu: the cost of all Gaussian noise of the entry; share: of the limit, by the rule."


@dataclass(frozen=True)
class LedgerReport(Kept):
    """A ledger at one moment, from `PrivacyLedger.report`. It is the curator's.

    By person (``at_most``), ``amount`` is that of whoever has spent most; of the ``n_people`` who
    took part, ``n_spent`` have done so ``at_most`` times or have less than a thousandth of the
    limit left.
    """

    path: str
    limit: PrivacyBudget
    rule: str
    amount: Amount
    allowed: Amount
    entries: tuple[dict[str, Any], ...]
    at_most: int | None = None
    n_people: int = 0
    n_spent: int = 0

    @property
    def spent(self) -> float:
        """What is spent in the rule's number: mu^2, rho or epsilon."""
        return self.amount.number

    @property
    def left(self) -> float:
        """What is left in the rule's number; 0 where only the rounding of floats is."""
        left = (self.allowed - self.amount).number
        return left if left > 2.0**-49 * self.allowed.number else 0.0

    @property
    def epsilon(self) -> float:
        """Epsilon of what is spent at the limit's delta, rounded up.

        It holds if nothing more is ever spent, and that was fixed beforehand: whoever stops
        because of what came out has the limit's guarantee and no better one.
        """
        limit, delta = float(self.limit.epsilon), float(self.limit.delta)
        plans = [entry["releases"] for entry in self.entries]
        searches = [rules.SearchSpending(**p["search"]) for p in plans if "search" in p]
        order = rules.order_of(self.rule, limit, self.allowed)
        return min(rules.spent_epsilon(self.rule, self.amount, delta, searches, order), limit)

    def to_dict(self) -> dict[str, Any]:
        """Return plain dicts, lists, strings and numbers; infinite numbers are "inf".

        Result: the limit, the rule, what is spent, and the entries.
        """
        people = {name: getattr(self, name) for name in ("at_most", "n_people", "n_spent")}
        return {
            "path": self.path,
            "limit": recordable(self.limit),
            "rule": self.rule,
            **(people if self.at_most is not None else {}),
            "spent": self.spent,
            "left": self.left,
            "epsilon": self.epsilon,
            "entries": [dict(entry) for entry in self.entries],
        }

    def _in_short(self) -> str:
        limit = f"epsilon {self.limit.epsilon:g}, delta {self.limit.delta:g}"
        spent = "is spent" if self.at_most is None else "is spent by whoever spent most"
        return f"{self._share(self.spent):.1%} of {limit} {spent}; entries: {len(self.entries)}"

    def _share(self, number: float) -> float:
        whole = self.allowed.number
        return number / whole if whole else math.nan

    def __str__(self) -> str:
        name = rules.RULES[self.rule]
        counts = Counter(entry["status"] for entry in self.entries)
        lines = ["Privacy ledger", "", *field_lines("File", self.path)]
        lines += field_lines(
            "Limit",
            f"epsilon = {self.limit.epsilon:g}, delta = {self.limit.delta:g}, unit "
            f"{self.limit.unit}, neighbours {self.limit.neighbors}; rule {self.rule}: "
            f"{name} <= {self.allowed.number:.6g}{' to 15 digits' * (self.rule == 'basic')}.",
        )
        share = f"{100.0 * self._share(self.spent):.1f} %"
        spent = f"{name} = {self.spent:.6g} ({share}), or epsilon = {outward(self.epsilon)}"
        spent += f" at delta = {self.limit.delta:g}" if self.limit.delta else ""
        if self.at_most is not None:
            people = f"{self.n_people:,} took part, each in at most {counted(self.at_most, 'fit')}"
            people += f"; {self.n_spent:,} have nothing left. The limit is each person's."
            lines += field_lines("People", people)
            spent += " by whoever spent most"
        lines += field_lines("Spent", f"{spent}; left {name} = {self.left:.6g}.")
        states = ", ".join(f"{counts[s]} {s}" for s in ("done", "failed", "reserved") if counts[s])
        lines += field_lines("Entries", f"{states or 'none'}.")
        marks = Counter(mark for entry in self.entries for mark in _marks(entry))
        for mark in filter(marks.get, _REMARKS):
            lines += field_lines("Warning", f"{marks[mark]} of the fits {_REMARKS[mark]}")
        lines += field_lines("Columns", _LEGEND) if self.entries else []
        if len(self.entries) > _SHOWN:
            lines += ["", f"The last {_SHOWN}:"]
        return "\n".join([*lines, "", *self._table()]).rstrip()

    def _table(self) -> list[str]:
        """Return the last entries, aligned."""
        rows = [_HEAD] if self.entries else []
        for entry in self.entries[-_SHOWN:]:
            is_search = math.isinf(float(entry["mu"]))
            remarks = _marks(entry)
            if "people" in entry:
                people = counted(entry["people"], "person", "people")
                remarks += [people, f"{entry['left_out']:,} left out"]
            rows.append(
                (
                    str(entry["id"]),
                    entry["time"][:19].replace("T", " "),
                    entry["status"],
                    entry["estimator"] or "-",
                    outward(float(entry["epsilon"])),
                    f"{entry['delta']:.4g}",
                    "-" if is_search else f"{float(entry['mu']):.4g}",
                    f"{100 * self._share(entry['charge']):.1f} %",
                    ", ".join(remarks),
                )
            )
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        cells = ([c.ljust(w) for c, w in zip(row, widths, strict=True)] for row in rows)
        return ["  ".join(row).rstrip() for row in cells]


_REMARKS = {
    "seeded": "had noise from a seed, which hides nothing from anybody who guesses the seed.",
    "conditional": "had a guarantee with a condition, which no code checks.",
}


def _marks(entry: dict[str, Any]) -> list[str]:
    found = zip(_REMARKS, (entry.get("seeded"), entry["condition"]), strict=True)
    return [mark for mark, holds in found if holds]


def read_entry(row: Sequence[Any]) -> dict[str, Any]:
    """Return an entry as a report has it; raise ValueError or the like if it is none."""
    entry, time, status, main, record = row
    datetime.fromisoformat(time)
    if status not in ("reserved", "done", "failed"):
        raise ValueError(f"status {status!r}")
    facts = {"id": entry, "time": time, "status": status, "charge": Amount(int(main), 0).number}
    plain: dict[str, Any] = json.loads(record)
    rules.Spending.from_dict(plain["releases"])
    for name in ("epsilon", "delta", "mu"):
        float(plain[name])
    if not isinstance(plain["estimator"], str) or "condition" not in plain:
        raise ValueError("it is no record of an entry")
    return {**facts, **plain}


def rounded_down(x: float, digits: int = 6) -> float:
    """Return x to some digits, towards zero."""
    return float(Context(prec=digits, rounding=ROUND_DOWN).create_decimal(repr(x)))


def recordable(value: Any) -> Any:
    """Return what is recorded of a parameter; of arrays and other objects only the type."""
    if hasattr(value, "item") and getattr(value, "ndim", None) == 0:
        value = value.item()
    if isinstance(value, PrivacyBudget):
        return {k: recordable(v) for k, v in value.get_params().items() if k != "ledger"}
    if hasattr(value, "get_params"):
        return {type(value).__name__: {k: recordable(v) for k, v in value.get_params().items()}}
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if type(value) in _LONGEST and len(value) > _LONGEST[type(value)]:
        return f"<{type(value).__name__} of length {len(value)}>"
    if isinstance(value, tuple | list):
        return [recordable(v) for v in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return f"<{type(value).__name__}>"
