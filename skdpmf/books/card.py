"""The privacy card: a statement with its curve and versions, for machines (JSON) and for people."""

from __future__ import annotations

import hashlib
import math
import platform
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from html import escape
from importlib.metadata import version
from importlib.resources import files
from string import Template
from typing import Any

from skdpmf.books.search import SearchStatement
from skdpmf.exceptions import PrivacyParameterError
from skdpmf.privacy.budget import PrivacyBudget
from skdpmf.privacy.plan import Release, ReleasePlan
from skdpmf.privacy.statement import PrivacyStatement
from skdpmf.privacy.text import Kept, load_json, outward, plain_values, table_lines

CARD_FORMAT = "skdpmf privacy card 1"
_DELTAS = (1e-4, 1e-5, 1e-6, 1e-7, 1e-8, 1e-9, 1e-10)
_CONFIRMED = "The conditions above hold, as far as I could check them."
_PACKAGES = ("skdpmf", "numpy", "scipy", "numba", "scikit-learn")


@dataclass(frozen=True)
class PrivacyCard(Kept):
    """What a data protection officer files: the statement, its curve and what made it.

    Parameters
    ----------
    model : str
        Estimator that was fitted, in words or as its repr; nothing that depends on the data.
    statement : PrivacyStatement
        Statement of its releases.
    versions : dict
        Version of Python and of each package that took part, by name.

    Examples
    --------
    >>> from skdpmf.privacy import ReleasePlan
    >>> from skdpmf.privacy.plan import Release
    >>> counts = Release("counts", "ratings per item", (100,), 10.0)
    >>> plan = ReleasePlan.from_shares(PrivacyBudget(1.0, 1e-5), [counts], {"counts": 1.0})
    >>> card = PrivacyCard.of(PrivacyStatement.from_plan(plan), model="item counts")
    >>> [(pair["delta"], round(pair["epsilon"], 2)) for pair in card.curve()][1]
    (1e-05, 1.0)
    >>> PrivacyCard.from_json(card.to_json()) == card
    True
    >>> card.to_dict()["model"], card.to_markdown().splitlines()[0]
    ('item counts', '# Privacy card')
    """

    model: str
    statement: PrivacyStatement
    versions: Mapping[str, str]

    @classmethod
    def of(cls, fitted: Any, *, model: str | None = None) -> PrivacyCard:
        """Return the card of a fitted estimator, or of a statement.

        Parameters
        ----------
        fitted : estimator or PrivacyStatement
            With ``privacy_spent_``, or the statement itself.
        model : str, default=None
            Name of what was fitted. None: the estimator's repr.

        Returns
        -------
        PrivacyCard

        Raises
        ------
        PrivacyParameterError
            If there is no statement.
        """
        statement = getattr(fitted, "privacy_spent_", fitted)
        if not isinstance(statement, PrivacyStatement):
            raise PrivacyParameterError(
                f"fitted={fitted!r} must have privacy_spent_: fit a private estimator first, or "
                "pass a PrivacyStatement."
            )
        name = model if model is not None else ("-" if statement is fitted else repr(fitted))
        packages = {"Python": platform.python_version()}
        packages |= {package: version(package) for package in _PACKAGES}
        return cls(name, statement, packages)

    def curve(self, deltas: Iterable[float] = _DELTAS) -> list[dict[str, Any]]:
        """Return the epsilon that holds at each delta: all at once, for the same releases.

        Parameters
        ----------
        deltas : iterable of float, default=1e-4 to 1e-10
            Each in (0, 1).

        Returns
        -------
        list of dict
            "delta" and "epsilon"; epsilon is infinite where the noise sampler's proof ends. A
            statement of pure releases, or of more than its releases, has one pair.
        """
        statement = self.statement
        gaussian = any(isinstance(release, Release) for release in statement.releases)
        if not (gaussian and statement.follows_from_releases):
            return [{"delta": float(statement.delta), "epsilon": statement.epsilon}]
        plan = ReleasePlan(PrivacyBudget.nonprivate(), statement.releases)
        pairs = []
        for delta in sorted({*map(float, deltas), float(statement.delta)} - {0.0}, reverse=True):
            epsilon = statement.epsilon
            if delta != statement.delta:
                epsilon = replace(plan, budget=PrivacyBudget(math.inf, delta)).epsilon
            pairs.append({"delta": delta, "epsilon": epsilon})
        return pairs

    def to_dict(self) -> dict[str, Any]:
        """Return plain dicts, lists, strings and numbers.

        Returns
        -------
        dict
            An infinite epsilon is "inf".
        """
        return {
            "format": CARD_FORMAT,
            "model": self.model,
            "statement": self.statement.to_dict(),
            "curve": plain_values(self.curve()),
            "versions": dict(self.versions),
        }

    @classmethod
    def from_json(cls, text: str) -> PrivacyCard:
        """Return the card that `to_json` wrote.

        Parameters
        ----------
        text : str
            JSON. The curve is computed anew, and must be the one that is written.

        Returns
        -------
        PrivacyCard

        Raises
        ------
        PrivacyParameterError
            If it is no card of this format, or its curve is not that of its releases.
        """
        plain = load_json(text)
        card = cls._from_dict(plain)
        if plain.get("curve") != card.to_dict()["curve"]:
            raise PrivacyParameterError(
                "curve must be that of the card's releases: it was altered; ask for the original."
            )
        return card

    @classmethod
    def _from_dict(cls, plain: Any) -> PrivacyCard:
        """Return the card of what `to_dict` returned; its curve is for readers."""
        if not isinstance(plain, dict) or plain.get("format") != CARD_FORMAT:
            rule = f"a card of format {CARD_FORMAT!r}"
            raise PrivacyParameterError(f"text must be {rule}: pass what to_json wrote.")
        try:
            kind = SearchStatement if "mean" in plain["statement"] else PrivacyStatement
            statement = kind.from_dict(plain["statement"])
            versions = {str(name): str(value) for name, value in plain["versions"].items()}
            return cls(str(plain["model"]), statement, versions)
        except (KeyError, AttributeError, TypeError) as error:
            words = f"text must hold all parts of a card ({error!r}): pass what to_json wrote."
            raise PrivacyParameterError(words) from error

    def __str__(self) -> str:
        return self.to_markdown()

    def _in_short(self) -> str:
        return f"{self.model}\n{self.statement.summary()}"

    def to_markdown(self) -> str:
        """Return the card as a page.

        Returns
        -------
        str
            Markdown.
        """
        statement = self.statement
        lines = ["# Privacy card", "", _code(" ".join(self.model.split())), ""]
        lines += ["| at delta | epsilon |", "| --- | --- |"]
        lines += [f"| {delta} | {epsilon} |" for delta, epsilon in self._printed_curve()]
        fence = _ticks(str(statement), 3)
        lines += ["", "All these guarantees hold.", "", f"{fence}text", str(statement), fence, ""]
        made = ", ".join(_escaped(f"{name} {value}") for name, value in self.versions.items())
        return "\n".join([*lines, f"Made with {made}.", ""])

    def to_html(self) -> str:
        """Return the card as a page to print, to sign and to file.

        Returns
        -------
        str
            HTML in one file, without scripts and without requests to elsewhere. The page has the
            SHA-256 checksum of `to_json`'s text in UTF-8.

        Examples
        --------
        >>> statement = PrivacyStatement(1.0, 0.0, "user", "add-remove", ())
        >>> page = PrivacyCard.of(statement, model="item <counts>").to_html()
        >>> "<title>Privacy card: item &lt;counts&gt;</title>" in page
        True
        """
        statement, private = self.statement, self.statement.is_private
        short = [line.partition(": ")[::2] for line in statement.summary().splitlines()]
        condition = f"The condition of the guarantee: {statement.condition}."
        conditions = (*((condition,) if statement.condition else ()), *statement.assumptions)
        not_covered = statement.not_covered if private else ()
        releases = [*statement._heading, *table_lines(statement.releases, statement._shares())]
        made = ", ".join(f"{name} {value}" for name, value in self.versions.items())
        page = files("skdpmf.books").joinpath("card.html").read_text(encoding="utf-8")
        return Template(page).substitute(
            model=escape(" ".join(self.model.split())),
            short=_fields(short),
            guarantee=_fields(statement._fields()),
            curve="".join(f"<tr><td>{d}</td><td>{e}</td></tr>" for d, e in self._printed_curve()),
            conditions=_section("Conditions to check", conditions if private else (), "checks"),
            releases=escape("\n".join(releases)),
            not_covered=_section("Not covered", not_covered),
            notes=_section("Notes", statement.notes),
            confirmed=f"<p>{_CONFIRMED}</p>" if private and conditions else "",
            made=escape(made),
            checksum=hashlib.sha256(self.to_json().encode()).hexdigest(),
        )

    def _printed_curve(self) -> list[tuple[str, str]]:
        return [(f"{pair['delta']:.4g}", outward(pair["epsilon"])) for pair in self.curve()]


def _fields(fields: Iterable[tuple[str, str]]) -> str:
    """Return names and texts in HTML; what is not met stands out."""
    rows = []
    for name, text in fields:
        alarm = name in ("NOT MET", "Warning") or text.startswith(("NOT MET", "nobody", "no pri"))
        mark = ' class="alarm"' if alarm else ""
        rows.append(f"<div{mark}><dt>{escape(name)}</dt><dd>{escape(text)}</dd></div>")
    return "".join(rows)


def _section(title: str, texts: Iterable[str], kind: str = "") -> str:
    """Return a titled list in HTML, nothing if it is empty."""
    items = "".join(f"<li>{escape(text)}</li>" for text in texts)
    return items and f'<section><h2>{title}</h2><ul class="{kind}">{items}</ul></section>'


def _ticks(text: str, least: int) -> str:
    """Return more backticks than stand side by side in the text: it cannot end what they open."""
    return "`" * max([least, *(len(run) + 1 for run in re.findall("`+", text))])


def _code(text: str) -> str:
    """Return one line as code. Blanks keep its own backticks apart from those around it."""
    ticks, blank = _ticks(text, 1), " " if "`" in text else ""
    return f"{ticks}{blank}{text}{blank}{ticks}"


def _escaped(text: str) -> str:
    """Return one line that Markdown, and HTML in it, show as it is."""
    return re.sub(r"([\\`*_\[\]<>|#&!~])", r"\\\1", " ".join(text.split()))
