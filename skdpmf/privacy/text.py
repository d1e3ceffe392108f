"""Layout of plans and statements as text, to be read aloud."""

import html
import math
import textwrap
from collections.abc import Iterable, Sequence
from typing import Any

_WIDTH = 88
_GAUSSIAN_HEAD = ("release", "values", "times", "L2 sens.", "noise mult.", "noise sd", "share")
_PURE_HEAD = ("release", "values", "times", "sensitivity", "epsilon", "noise scale", "share")
_GAUSSIAN_LEGEND = (
    "L2 sens.: how far one change moves the values at most, as a vector; noise sd: standard "
    "deviation of the noise; noise mult.: noise sd / L2 sens.; share: of what all releases spend."
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


def abridged(short: str) -> str:
    """Return the text for consoles of IPython: the short form, and how to see the long one."""
    return f"{short}\nIn full: print it."


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
    for release, share in zip(releases, shares, strict=True):
        first = (release.name, " x ".join(map(str, release.shape)) or "1", str(release.count))
        last = "-" if math.isnan(share) else f"{100.0 * share:.1f} %"
        statistic = "; or ".join((release.statistic, *release.alternatives))
        limit = f"{release.sensitivity:.4g}"
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
