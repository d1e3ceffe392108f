"""Plans and statements in words, and as dp-accounting's DpEvents: nothing here decides anything."""

import html
import math
import textwrap
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from skdpmf.exceptions import MissingExtraError, counted
from skdpmf.privacy.accounting import Event, GaussianEvent
from skdpmf.privacy.budget import NEIGHBOR_WORDS

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
SEEDED = "The noise came from a seed (random_state): publish nothing of this fit."
COHORT_ASSUMPTIONS = (
    "In the ledger of this fit every person has one id, the same in all fits.",
    "A row counts as empty where, by the ledger, its person has taken part as often as allowed or "
    "has too little left for this fit. That depends on this person's own fits alone. That somebody "
    "was left, without whom there is no fit, is public.",
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
_GAUSSIAN_LEGEND = (
    "L2 sens.: how far one change moves the values at most, as a vector; noise sd: standard "
    "deviation of the noise; noise mult.: noise sd / L2 sens.; share: of what all releases spend."
)
_OTHERS = (
    "or: what a release holds instead where noise would hide its own values. A statement then "
    "has both names, as in 'gradients: item residuals'."
)
_PURE_LEGEND = (
    "sensitivity: what one change does at most, in the measure named; epsilon: of one time; share: "
    "of what all releases spend."
)


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
        printer.text(f"{self._in_short()}\nIn full: print it.")


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
        f"Over all fits of the ledger: each person takes part in at most {at_most}, and all "
        f"together have epsilon {limit.epsilon:g} at delta {limit.delta:g} for this person."
    )


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
        return "\n".join([*lines, *list_lines("Notes", self.notes)])


class PrintedStatement(Printed):
    """A statement, as it is shown."""

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
        Strength: epsilon 4, delta 1e-05; below 1 is strong, above 10 is weak.
        Conditions: the 4 assumptions of the full statement must hold.
        Further releases: each one from the same ratings raises epsilon.
        Not covered: answers to single users, logs, and general facts about people.
        """
        if not self.is_private:
            return "Protected: nobody. Epsilon is infinite: the model may reveal single ratings."
        what = "each user's whole row of ratings" if self.unit == "user" else "each single rating"
        where = "the reports of each device" if self.local else "the released model"
        delta = f", delta {self.delta:.4g}" if self.delta > 0.0 else ""
        weak = "WEAK, " if self.epsilon > WEAK else ""
        conditions = f"the {len(self.assumptions)} assumptions of the full statement must hold."
        if self.condition:
            conditions = f"{self.condition}; without it nothing is promised."
        if self.unmet:
            conditions = f"NOT MET: {' '.join(self.unmet)}"
        return "\n".join(
            (
                f"Protected: {what}, in {where}.",
                f"Strength: {weak}epsilon {outward(self.epsilon)}{delta}; below 1 is strong, above "
                f"{WEAK:g} is weak.",
                f"Conditions: {conditions}",
                "Further releases: each one from the same ratings raises epsilon.",
                "Not covered: answers to single users, logs, and general facts about people.",
            )
        )

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


def to_dp_event(*events: Event) -> Any:
    """Return the events as one `dp_accounting.DpEvent`.

    Gaussian and Laplace events have one of their own. Any other pure mechanism becomes the
    randomized response of two buckets with its epsilon, which dominates it: what an accountant says
    of that holds for the mechanism. Events without noise become ``NonPrivateDpEvent``, several
    events a ``ComposedDpEvent``, and none a ``NoOpDpEvent``.
    """
    dp = _dp_event_module()
    converted = [_convert(dp, event) for event in events]
    if len(converted) == 1:
        return converted[0]
    return dp.ComposedDpEvent(converted) if converted else dp.NoOpDpEvent()


def _convert(dp: Any, event: Event) -> Any:
    if isinstance(event, GaussianEvent):
        if event.noise_multiplier == 0.0:
            return dp.NonPrivateDpEvent()
        single = dp.GaussianDpEvent(event.noise_multiplier)
    elif math.isinf(event.epsilon):
        return dp.NonPrivateDpEvent()
    elif event.epsilon == 0.0:
        return dp.NoOpDpEvent()
    elif event.mechanism == "laplace":
        single = dp.LaplaceDpEvent(1.0 / event.epsilon)
    else:
        ratio = math.exp(-event.epsilon)
        if ratio == 0.0:  # no double distinguishes such a mechanism from one without
            return dp.NonPrivateDpEvent()
        single = dp.RandomizedResponseDpEvent(2.0 * ratio / (1.0 + ratio), 2)
    return single if event.count == 1 else dp.SelfComposedDpEvent(single, event.count)


def _dp_event_module() -> Any:
    try:
        from dp_accounting import dp_event
    except ImportError as error:
        raise MissingExtraError(
            "DpEvents need dp-accounting, which is not installed: pip install 'skdpmf[accounting]'."
        ) from error
    return dp_event
