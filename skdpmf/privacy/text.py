"""Plans and statements in words, and as JSON: nothing here decides anything."""

import html
import json
import math
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, fields, replace
from typing import Any, ClassVar, Self

from skdpmf.exceptions import PrivacyParameterError, counted, require_that
from skdpmf.privacy.sampler.grid import as_float

WEAK = 10.0  # an epsilon above it promises little
_COMMON = (
    "All other settings, the rating range and the clipping bounds among them, were chosen without "
    "looking at these ratings.",
    "Each person has one row.",
)
_RANDOM_BITS = (
    "The random bits (operating system, BLAKE2b, ChaCha20) cannot be distinguished from true "
    "randomness."
)
STANDARD_ASSUMPTIONS = (
    "The items (columns) and the number of user slots (rows) were declared beforehand and are "
    "public; every item got noise in every release, rated or not.",
    *_COMMON,
    f"{_RANDOM_BITS} The distance of the sampler's law from the ideal Gaussian is bounded, and "
    "epsilon and delta include it.",
)
PURE_ASSUMPTIONS = (
    "The items (columns) and the number of user slots (rows) were declared beforehand and are "
    "public; every item is part of every release, rated or not.",
    *_COMMON,
    _RANDOM_BITS,
)
LOCAL_ASSUMPTIONS = (
    "Every device runs this protocol as stated and counts the epsilon of its reports; the reports "
    "of other protocols add to it. Fitting from a matrix only simulates the devices: the holder of "
    "the matrix has seen the ratings.",
    "The items (columns) were declared beforehand and are public; a device without ratings reports "
    "too. Nothing hides that a user takes part, when, and from where the report comes.",
    "A device sends its report at a time that was set beforehand: the draw takes the same time for "
    "any ratings, but preparing a long history takes a little longer.",
    *_COMMON,
    _RANDOM_BITS,
)
PERSONAL_ASSUMPTION = (
    "The users' privacy levels are public, and were chosen without looking at the ratings."
)
SEEDED_ASSUMPTION = (
    "Nobody who sees the model knows or guesses the seed: random_state was an integer, and all "
    "noise follows from it, the plan and the data. Publish nothing from a seeded fit."
)
UNUSED = (
    "The plan spends epsilon {0.epsilon:.3g} of {1.epsilon:g}: at delta {1.delta:g} the proof of "
    "the noise sampler goes no further, and a larger epsilon changes nothing."
)
SEEDED = "The noise came from a seed (random_state): publish nothing of this fit."
COHORT_ASSUMPTIONS = (
    "In the ledger of this fit every person has one id, the same in all fits.",
    "A row counts as empty where, by the ledger, its person has taken part as often as allowed or "
    "has too little left for this fit. That depends on this person's own fits alone. It is public "
    "that somebody was left, as there is no fit for nobody.",
)
UNDECLARED = {
    "users": "The number of user slots (rows) was read off the ratings and not declared: the noise "
    "and the model may show how many users there are.",
    "items": "The items (columns) were read off the ratings and not declared: the model shows that "
    "exactly these items have ratings.",
}
NOT_COVERED = (
    "Embeddings, predictions, recommendations and scores that the fitted model computes from rows: "
    "the output for a user's row depends on that row and is for that user alone.",
    "A choice among several fits by scores on private ratings, as a stock grid search makes it: "
    "every fit's epsilon counts, and the choice itself leaks as well.",
    "Other models, statistics or further fits from the same ratings: their spending adds up.",
    "Running time, memory, logs, errors and warnings: they are for the curator who runs the fit.",
    "General facts about people: the model shows them, also about a user who is not in the data.",
)
_PERSONAL = (
    "a user who declared level e <= epsilon is protected with epsilon e{delta}, whatever the "
    "number of the user's ratings; a higher level counts as epsilon. A user with level 0 has no "
    "influence on the outcome."
)
_AGAINST_READERS = (
    "anyone who sees the fitted model, whatever else they know and however much they compute."
)
_AGAINST_ALL = (
    "anyone who sees all that a user's device sends, the server that collects it among them, "
    "whatever else they know and however much they compute. No trusted server is needed."
)
_ROW, _RATING = "each user's whole row", "each single rating"
# how two neighbours differ, in the words of docs/protection.md
NEIGHBOR_WORDS = {
    ("user", "add-remove"): "one row emptied or filled",
    ("user", "replace"): "one row exchanged for any other",
    ("rating", "add-remove"): "one rating added or removed",
    ("rating", "replace"): "one rating exchanged for any other one: another value, another item, "
    "or another user's row",
}
_WHAT = {
    ("user", "add-remove"): f"{_ROW}: whether it has ratings at all, which items, and their values",
    ("user", "replace"): f"{_ROW}, which items and their values",
    ("rating", "add-remove"): f"{_RATING}: whether it exists, and its value",
    ("rating", "replace"): f"{_RATING}: whose it is, of which item, and its value",
}
_LESS = {"user": "", "rating": " A user's rating history as a whole is protected less."}
_PROTECTED = {
    (unit, neighbors): f"{what} (neighbours: {NEIGHBOR_WORDS[unit, neighbors]}).{_LESS[unit]}"
    for (unit, neighbors), what in _WHAT.items()
}

_WIDTH = 88
_GAUSSIAN_HEAD = ("release", "values", "times", "L2 sens.", "noise mult.", "noise sd", "share")
_PURE_HEAD = ("release", "values", "times", "sensitivity", "epsilon", "noise scale", "share")
_COLUMNS = "values: how many numbers a release has; times: how often it is made; "
_GAUSSIAN_LEGEND = (
    f"{_COLUMNS}L2 sens.: how far one change moves the values at most, as a vector; noise sd: "
    "standard deviation of the noise; noise mult.: noise sd / L2 sens.; share: of what is spent."
)
_OTHERS = (
    "or: what a release holds instead where noise would hide its own values. A statement then "
    "has both names, as in 'gradients: item residuals'."
)
_PURE_LEGEND = (
    f"{_COLUMNS}sensitivity: what one change does at most, in the measure named; epsilon: of one "
    "time; noise scale: that of Laplace noise, if any; share: of what is spent."
)


def assumed(plan: Any, seeded: bool, personal: bool) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the assumptions of a fit by a plan, and those that are known to fail."""
    first = [SEEDED_ASSUMPTION] if seeded else []
    first += [PERSONAL_ASSUMPTION] if personal else []
    standard: tuple[str, ...] = STANDARD_ASSUMPTIONS
    if plan.local:
        standard = LOCAL_ASSUMPTIONS
    elif plan.releases and not plan.gaussian:
        standard = PURE_ASSUMPTIONS
    return (*first, *standard), (SEEDED,) if seeded and plan.is_private else ()


def guarantee_lines(*terms: Any, local: bool = False) -> list[str]:
    """Return `guarantee_fields` as lines."""
    fields = guarantee_fields(*terms, local=local)
    return [line for field in fields for line in field_lines(*field)]


def guarantee_fields(
    epsilon: float,
    delta: float,
    mu: float,
    pure: float,
    condition: str = "",
    *,
    local: bool = False,
) -> list[tuple[str, str]]:
    """Return the guarantee as a formula and in words, each with its name before it.

    pure is the pure releases' epsilon.
    """
    if math.isinf(epsilon):
        return [("Guarantee", "no privacy: epsilon is infinite and nothing hides a user.")]
    text = "local " if local else ""
    text += f"differential privacy with epsilon = {outward(epsilon)}"
    text += f" and delta = {delta:.4g}" if delta > 0.0 else " (pure: delta = 0)"
    if mu > 0.0 and pure > 0.0:
        text += f" (Gaussian part mu = {mu:.4g}, pure part epsilon = {outward(pure)}; they add up)"
    elif mu > 0.0:
        text += f" (Gaussian, mu = {mu:.4g})"
    if condition:
        text = f"CONDITIONAL on {condition}: {text}"
    factor = f"{math.exp(epsilon):.3g}" if epsilon < 700.0 else "exp(epsilon)"
    outcome = "nothing that the device may send" if local else "no outcome of the fit"
    words = f"with or without one such change {outcome} becomes more than "
    words += f"{factor} times as likely"
    if delta > 0.0:
        words += f", up to a probability of {delta:.4g}"
    if condition:
        words += "; if the condition fails, nothing is promised"
    return [("Guarantee", f"{text}."), ("In words", f"{words}.")]


def folded(short: str, long: str) -> str:
    """Return HTML for notebooks: the short form, and the long one behind a click."""
    pre = '<pre style="white-space: pre-wrap">{}</pre>'
    short, long = pre.format(html.escape(short)), pre.format(html.escape(long))
    return f"{short}<details><summary>In full</summary>{long}</details>"


class Printed:
    """What notebooks and consoles of IPython show: the short form, ``_in_short``, and ``str``."""

    def _repr_html_(self: Any) -> str:
        return folded(self._in_short(), str(self))

    def _repr_pretty_(self: Any, printer: Any, cycle: bool) -> None:
        printer.text(f"{self._in_short()}\nPrint it to see all of it.")


class Kept(Printed):
    """The same, and all that it holds as JSON, by ``to_dict``.

    Examples
    --------
    >>> from skdpmf.privacy.statement import PrivacyStatement
    >>> PrivacyStatement(0.0, 0.0, "user", "add-remove", ()).to_json().splitlines()[1]
    '  "epsilon": 0.0,'
    """

    def to_json(self: Any) -> str:
        """Return `to_dict` as strict JSON.

        Returns
        -------
        str
            JSON object.
        """
        return json.dumps(self.to_dict(), indent=2, allow_nan=False)


def outward(epsilon: float) -> str:
    """Four digits, rounded up: a printed epsilon must not promise more than was proved."""
    if epsilon == 0.0 or math.isinf(epsilon):
        return f"{epsilon:g}"
    unit = 10.0 ** (math.floor(math.log10(epsilon)) - 3)
    return f"{math.ceil(epsilon / unit - 1e-6) * unit:.4g}"


Row = tuple[str, ...]


def table_lines(releases: Iterable[Any], shares: list[float]) -> list[str]:
    """Return a table of the Gaussian releases and one of the pure ones, as far as there are any."""
    gaussian: list[Row] = []
    pure: list[Row] = []
    release: Any
    others = False
    for release, share in zip(releases, shares, strict=True):
        first = (release.name, " x ".join(map(str, release.shape)) or "1", str(release.count))
        last = "-" if math.isnan(share) else f"{100.0 * share:.1f} %"
        statistic = "; or ".join((release.statistic, *release.alternatives))
        limit, others = f"{release.sensitivity:.4g}", others or bool(release.alternatives)
        if release.kind == "gaussian":
            scales = (f"{release.noise_multiplier:.4g}", f"{release.noise_scale:.4g}")
            gaussian.append((*first, limit, *scales, last, statistic))
        else:
            words = f"{statistic}; {release.mechanism}, sensitivity: {release.norm}"
            scale = f"{release.noise_scale:.4g}" if release.is_laplace else "-"
            pure.append((*first, limit, outward(release.epsilon), scale, last, words))
    head: Row = _PURE_HEAD
    if all(row[5] == "-" for row in pure):  # the column is there for Laplace noise only
        head, *pure = ((*cells[:5], *cells[6:]) for cells in (head, *pure))
    parts = (_GAUSSIAN_HEAD, gaussian, _GAUSSIAN_LEGEND), (head, pure, _PURE_LEGEND)
    tables = [
        [*_aligned(names, rows), *textwrap.wrap(f"({legend})", _WIDTH)]
        for names, rows, legend in parts
        if rows
    ]
    if others:
        tables[0] += textwrap.wrap(f"({_OTHERS})", _WIDTH)
    return [line for table in tables for line in ("", *table)][1:] or ["Nothing is released."]


def _aligned(head: Row, rows: list[Row]) -> list[str]:
    """Return aligned columns; a row's last cell, the statistic in words, goes on a line below it.

    It is beyond the cells of the head.
    """
    cells = [head, *(row[:-1] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines: list[str] = []
    for i, row in enumerate(cells):
        rest = [cell.rjust(w) for cell, w in zip(row[1:], widths[1:], strict=True)]
        lines.append("  ".join([row[0].ljust(widths[0]), *rest]))
        if i == 0:
            lines.append("-" * len(lines[0]))
        else:
            lines += textwrap.wrap(rows[i - 1][-1], _WIDTH - 4, **_INDENT)
    return lines


_INDENT: dict[str, Any] = {"initial_indent": "    ", "subsequent_indent": "    "}


def field_lines(name: str, text: str) -> list[str]:
    """Return a named paragraph."""
    return textwrap.wrap(
        text, _WIDTH, initial_indent=f"{name + ':':<11}", subsequent_indent=" " * 11
    )


def list_lines(title: str, items: tuple[str, ...]) -> list[str]:
    """Return a titled list, nothing if it is empty."""
    if not items:
        return []
    lines = ["", f"{title}:"]
    for item in items:
        lines += textwrap.wrap(item, _WIDTH, initial_indent="- ", subsequent_indent="  ")
    return lines


def release_shares(releases: Sequence[Any], epsilon: float, mu: float, pure: float) -> list[float]:
    """Return each release's share of what a plan spends; NaN without privacy.

    Epsilon and mu are the plan's, pure is the sum of its pure releases' epsilons.
    """
    if math.isinf(mu) or (pure > 0.0 and math.isinf(epsilon)):
        return [math.nan] * len(releases)
    unit = epsilon if epsilon > 0.0 else math.nan  # nothing spent has no shares
    left = max(0.0, 1.0 - pure / unit) if pure > 0.0 else 1.0
    return [
        (release.mu / mu) ** 2 * left
        if release.kind == "gaussian"
        else release.count * release.epsilon / unit
        for release in releases
    ]


def lifetime_note(limit: Any, at_most: int) -> str:
    """Return the note of a fit that a ledger by person was charged for."""
    return (
        f"Over all fits of the ledger each person takes part in at most {at_most}, and all of "
        f"them together have epsilon {limit.epsilon:g} at delta {limit.delta:g} for this person."
    )


class Parameters:
    """A base of dataclasses whose fields are parameters, as scikit-learn's estimators have them.

    Examples
    --------
    >>> from skdpmf import PrivacyBudget
    >>> PrivacyBudget(1.0).set_params(epsilon=2.0).get_params()["epsilon"]
    2.0
    """

    __dataclass_fields__: ClassVar[dict[str, Any]]

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the constructor's parameters, as scikit-learn's estimators do.

        Parameters
        ----------
        deep : bool, default=True
            Without effect: no parameter has parameters.

        Returns
        -------
        dict
            Values by name.
        """
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def set_params(self, **params: Any) -> Self:
        """Set parameters by name, of this very object: all who hold it see the change.

        Parameters
        ----------
        **params
            Parameters of the constructor.

        Returns
        -------
        self : object
            The object itself.

        Raises
        ------
        ValueError
            If there is no parameter of that name; then none is set.
        """
        known = self.get_params()
        for name, value in params.items():
            rule = f"a parameter of {type(self).__name__}: choose one of {', '.join(known)}."
            require_that(name in known, name, value, rule)
        for name, value in params.items():
            setattr(self, name, value)
        return self


class PrintedBudget(Parameters):
    """A budget, as it is shown."""

    def __repr__(self: Any) -> str:
        shown = [f"epsilon={self.epsilon!r}", f"delta={self.delta!r}"]
        others = [(field, getattr(self, field.name)) for field in fields(self)[2:]]
        shown += [f"{field.name}={own!r}" for field, own in others if own != field.default]
        return f"PrivacyBudget({', '.join(shown)})"

    def _repr_html_(self: Any) -> str:
        return folded(repr(self), "\n".join(guarantee_lines(self.epsilon, self.delta, 0.0, 0.0)))


class PrintedPlan(Printed):
    """A plan, as it is shown."""

    def share(self: Any, release: Any) -> float:
        """Return a release's share of what is spent, all its repetitions together.

        A pure release has the share of its epsilon in the plan's. What is left belongs to the
        Gaussian releases, in proportion to their mu^2. All shares sum to 1.

        Parameters
        ----------
        release : Release or PureRelease
            Release of this plan; any other one is a ValueError.

        Returns
        -------
        float
            NaN without privacy.

        Examples
        --------
        >>> from skdpmf import DPItemMeans, PrivacyBudget
        >>> plan = DPItemMeans(PrivacyBudget(4.0, 1e-5)).plan(n_items=40)
        >>> round(sum(plan.share(release) for release in plan.releases), 9)
        1.0
        """
        return float(self._shares()[self.releases.index(release)])

    def _shares(self: Any) -> list[float]:
        return release_shares(self.releases, self.epsilon, self.mu, self.pure)

    def _in_short(self: Any) -> str:
        return f"{counted(len(self.releases), 'planned release')}, {self.budget!r}"

    def __str__(self: Any) -> str:
        total = self.epsilon, self.delta, self.mu, self.pure, self.condition
        lines = ["Planned releases", "", *guarantee_lines(*total, local=self.local)]
        lines += ["", *table_lines(self.releases, self._shares())]
        errors = ", ".join(f"{who} {e:#.3g}" for who, e in (self.expected_rmse or {}).items())
        title = "Expected RMSE, with 50 ratings a row as of films unless plan() was given others"
        lines += list_lines(title, (errors,) if errors else ())
        return "\n".join([*lines, *list_lines("Notes", self.notes)])


class PrintedStatement(Kept):
    """A statement, as it is shown, and kept.

    Examples
    --------
    >>> from skdpmf.privacy.pure import PureRelease
    >>> from skdpmf.privacy.statement import PrivacyStatement
    >>> draw = PureRelease("draw", "V", (3,), 2.0, "posterior sample", 1.0, "loss of a user")
    >>> statement = PrivacyStatement(2.0, 0.0, "user", "replace", (draw,), personal=True)
    >>> statement.epsilon_for(0.5), statement.epsilon_for(10.0)
    (0.5, 2.0)
    >>> statement == PrivacyStatement.from_json(statement.to_json())
    True
    >>> statement == PrivacyStatement.from_dict(statement.to_dict())
    True
    >>> PrivacyStatement(0.0, 0.0, "user", "add-remove", ()).to_dp_events()
    []
    >>> statement.with_undeclared(["items"]).unmet[0][:43]
    'The items (columns) were read off the ratin'
    """

    _title: ClassVar[str] = "Privacy statement"
    _heading: ClassVar[tuple[str, ...]] = ()  # lines above the table of releases

    def _fields(self: Any) -> list[tuple[str, str]]:
        """Return the named paragraphs: what must be read first, and the guarantee."""
        fields = []
        if self.is_private:
            fields += [
                ("Protected", _PROTECTED[self.unit, self.neighbors]),
                ("Against", _AGAINST_ALL if self.local else _AGAINST_READERS),
            ]
        fields += [("NOT MET", text) for text in self.unmet]
        terms = self.epsilon, self.delta, *self._parts(), self.condition
        fields += guarantee_fields(*terms, local=self.local)
        if self.personal and self.is_private:
            delta = " (same delta)" if self.delta > 0.0 else ""
            fields += [("Personal", _PERSONAL.format(delta=delta))]
        return fields

    def _parts(self: Any) -> tuple[float, float]:
        """Return mu of Gaussian releases and epsilon of pure ones; zeros if there is more."""
        return (self.mu, self.pure) if self.follows_from_releases else (0.0, 0.0)

    def _shares(self: Any) -> list[float]:
        """Return each release's share of what was spent; NaN if there is more."""
        if not self.follows_from_releases:
            return [math.nan] * len(self.releases)
        return release_shares(self.releases, self.epsilon, *self._parts())

    def summary(self: Any) -> str:
        """Return the short form: five lines for the person who decides about the release.

        Returns
        -------
        str
            Five lines: what is protected, how well, on which conditions, and what is outside.
            The long form is ``str(statement)``.

        Examples
        --------
        >>> from skdpmf import DPItemMeans, PrivacyBudget
        >>> from skdpmf.data import make_ratings
        >>> model = DPItemMeans(PrivacyBudget(4.0, 1e-5)).fit(make_ratings(50, 9, random_state=0))
        >>> print(model.privacy_spent_.summary())
        Protected: each user's whole row of ratings, in the released model.
        Strength: epsilon 4, delta 1e-05. An epsilon below 1 is strong, and one above 10 is weak.
        Conditions: the 4 assumptions in the full statement must hold.
        Further releases: each one from the same ratings adds to epsilon.
        Not covered: answers to single users, logs, and general facts about people.
        """
        if not self.is_private:
            return "Protected: nobody. Epsilon is infinite: the model may reveal single ratings."
        what = "each user's whole row of ratings" if self.unit == "user" else "each single rating"
        where = "the reports of each device" if self.local else "the released model"
        delta = f", delta {self.delta:.4g}" if self.delta > 0.0 else ""
        weak = "WEAK, " if self.epsilon > WEAK else ""
        conditions = f"the {len(self.assumptions)} assumptions in the full statement must hold."
        if self.condition:
            conditions = f"{self.condition}; without it nothing is promised."
        if self.unmet:
            conditions = f"NOT MET: {' '.join(self.unmet)}"
        return "\n".join(
            (
                f"Protected: {what}, in {where}.",
                f"Strength: {weak}epsilon {outward(self.epsilon)}{delta}. An epsilon below 1 is "
                f"strong, and one above {WEAK:g} is weak.",
                f"Conditions: {conditions}",
                "Further releases: each one from the same ratings adds to epsilon.",
                "Not covered: answers to single users, logs, and general facts about people.",
            )
        )

    def with_undeclared(self: Any, names: Iterable[str]) -> Any:
        """Return the statement of a fit for which some things were read off the ratings.

        Parameters
        ----------
        names : iterable of {"users", "items"}
            Names that were not declared, as `RatingMatrix.undeclared` has them.

        Returns
        -------
        PrivacyStatement
            With a sentence for each in ``unmet``, but where nothing depends on it: without privacy,
            and for the users' number where devices report, which is no secret there.
        """
        found = [name for name in names if not (self.local and name == "users")]
        new = [UNDECLARED[name] for name in found if self.is_private]
        return replace(self, unmet=tuple(dict.fromkeys((*self.unmet, *new))))

    def epsilon_for(self: Any, level: float) -> float:
        """Return the epsilon of a user who declared this privacy level, at the same delta.

        It depends on the level alone, never on how much the user rated.

        Parameters
        ----------
        level : float
            >= 0; what the fit was given for the user.

        Returns
        -------
        float
            The level, at most `epsilon`; infinite where the fit is not private.

        Raises
        ------
        PrivacyParameterError
            If the fit was given no levels, or the level is not a number >= 0.
        """
        rule = "True to ask for one user: this fit had no levels, and its epsilon is everybody's."
        require_that(self.personal, "personal", self.personal, rule)
        number = as_float(level)
        rule = "a number >= 0: pass the epsilon that the user declared."
        require_that(number >= 0.0, "level", level, rule)
        return float(min(number, self.epsilon)) if self.is_private else math.inf

    def to_dp_events(self: Any) -> list[Any]:
        """Return the releases as `dp_accounting.DpEvent` objects, one each.

        Returns
        -------
        list of dp_accounting.DpEvent
            In the order of the releases.

        Raises
        ------
        MissingExtraError
            If dp-accounting is not installed.
        """
        from skdpmf.privacy.pure import to_dp_event

        return [to_dp_event(release) for release in self.releases]

    def to_dict(self: Any) -> dict[str, Any]:
        """Return plain dicts, lists, strings and numbers; an infinite epsilon is "inf".

        Each release says in "kind" whether it is "gaussian" or "pure"; those with Laplace noise
        have a "noise_scale" as well.

        Returns
        -------
        dict
            Fields by name.
        """
        releases = [_release_to_dict(release) for release in self.releases]
        return plain_values({**asdict(self), "releases": releases})

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Any:
        """Return the statement that `to_dict` wrote.

        Parameters
        ----------
        plain : mapping
            From `to_dict`.

        Returns
        -------
        PrivacyStatement

        Raises
        ------
        PrivacyParameterError
            If a field is missing, unknown or invalid.
        """
        rule = "a mapping: pass what to_dict or to_json wrote."
        require_that(isinstance(plain, Mapping), "plain", plain, rule)
        try:
            fields: dict[str, Any] = {
                k: tuple(v) if isinstance(v, list) else v for k, v in plain.items()
            }
            # infinities are words in JSON
            fields |= {k: float(v) for k, v in fields.items() if k == "epsilon" or v == "inf"}
            fields["releases"] = tuple(_release_from_dict(r) for r in fields["releases"])
            return cls(**fields)
        except PrivacyParameterError:
            raise
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise PrivacyParameterError(
                f"plain={sorted(map(str, plain))!r} must hold the fields of a PrivacyStatement "
                f"({error}): pass what to_dict or to_json wrote."
            ) from error

    @classmethod
    def from_json(cls, text: str) -> Any:
        """Return the statement that `to_json` wrote.

        Parameters
        ----------
        text : str
            JSON.

        Returns
        -------
        PrivacyStatement

        Raises
        ------
        PrivacyParameterError
            If a field is missing, unknown or invalid.
        """
        return cls.from_dict(load_json(text))

    def _check_fields(self: Any) -> None:
        """Raise unless the fields are of the types that they have."""
        for name in ("assumptions", "not_covered", "notes", "unmet"):
            texts = getattr(self, name)
            holds = isinstance(texts, tuple) and all(isinstance(text, str) for text in texts)
            self._require(holds, name, "a tuple of texts")
        self._require(isinstance(self.condition, str), "condition", "a text")
        for name in ("seeded", "personal", "local"):
            self._require(isinstance(getattr(self, name), bool), name, "True or False")

    def _require(self, holds: bool, name: str, rule: str) -> None:
        rule += " in a privacy statement: take it from privacy_spent_, or ask for the original."
        require_that(holds, name, getattr(self, name), rule)

    def _in_short(self: Any) -> str:
        return str(self.summary())

    def __str__(self: Any) -> str:
        lines = [self._title, ""]
        lines += [line for field in self._fields() for line in field_lines(*field)]
        if self.releases or self.is_private:
            lines += ["", *self._heading, *table_lines(self.releases, self._shares())]
        lines += list_lines("Notes", self.notes)
        if self.is_private:
            lines += list_lines("The guarantee holds only if", self.assumptions)
            lines += list_lines("Not covered", self.not_covered)
        return "\n".join(lines)


def plain_values(value: Any) -> Any:
    """Return what strict JSON can hold: tuples as lists, infinity as "inf"."""
    if isinstance(value, dict):
        return {key: plain_values(part) for key, part in value.items()}
    if isinstance(value, tuple | list):
        return [plain_values(part) for part in value]
    return "inf" if value == math.inf else value


def load_json(text: Any) -> Any:
    """Return what a text of JSON holds, or raise an error that names `text`."""
    try:
        return json.loads(text)
    except (TypeError, ValueError) as error:
        raise PrivacyParameterError(
            f"text={text!r:.99} must be JSON ({error}): pass what to_json wrote."
        ) from error


def _release_to_dict(release: Any) -> dict[str, Any]:
    plain: dict[str, Any] = {"kind": release.kind, **asdict(release)}
    if getattr(release, "is_laplace", False):
        plain["noise_scale"] = release.noise_scale
    return plain


def _release_from_dict(plain: Mapping[str, Any]) -> Any:
    fields: dict[str, Any] = dict(plain)
    fields.pop("noise_scale", None)  # follows from epsilon
    if fields.get("epsilon") == "inf":
        fields["epsilon"] = math.inf
    from skdpmf.privacy.plan import Release
    from skdpmf.privacy.pure import PureRelease

    kinds: dict[Any, Any] = {"gaussian": Release, "pure": PureRelease}
    kind = fields.pop("kind", None)
    rule = f"in {sorted(kinds)} for each of the releases: pass what to_dict or to_json wrote."
    require_that(isinstance(kind, str) and kind in kinds, "kind", kind, rule)
    return kinds[kind](**fields)
