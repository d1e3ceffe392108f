"""Layout of plans and statements as text, to be read aloud."""

from __future__ import annotations

import math
import textwrap
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from skdpmf.privacy.plan import Release

__all__ = ["field_lines", "guarantee_lines", "list_lines", "table_lines"]

_WIDTH = 88


def guarantee_lines(epsilon: float, delta: float, mu: float) -> list[str]:
    if math.isinf(epsilon):
        return field_lines("Guarantee", "no privacy: epsilon is infinite and nothing hides a user.")
    text = f"differential privacy with epsilon = {_outward(epsilon)} and delta = {delta:.4g}"
    if mu > 0.0:
        text += f" (Gaussian, mu = {mu:.4g})"
    factor = f"{math.exp(epsilon):.3g}" if epsilon < 700.0 else "exp(epsilon)"
    lines = field_lines("Guarantee", text + ".")
    lines += field_lines(
        "In words",
        f"with or without one such change no outcome of the fit becomes more than {factor} times "
        f"as likely, up to a probability of {delta:.4g}.",
    )
    return lines


def _outward(epsilon: float) -> str:
    """Four digits, rounded up: a printed epsilon must not promise more than was proved."""
    if epsilon == 0.0:
        return "0"
    unit = 10.0 ** (math.floor(math.log10(epsilon)) - 3)
    return f"{math.ceil(epsilon / unit - 1e-6) * unit:.4g}"


def table_lines(releases: tuple[Release, ...], mu: float) -> list[str]:
    """Return aligned columns, each release's statistic on a line below it."""
    if not releases:
        return ["Nothing is released."]
    head = ("release", "values", "times", "L2 sens.", "noise mult.", "noise sd", "share")
    rows = [head] + [
        (
            release.name,
            " x ".join(map(str, release.shape)) or "1",
            str(release.count),
            f"{release.sensitivity:.4g}",
            f"{release.noise_multiplier:.4g}",
            f"{release.noise_scale:.4g}",
            "-" if math.isinf(mu) else f"{100.0 * (release.mu / mu) ** 2:.1f} %",
        )
        for release in releases
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for i, row in enumerate(rows):
        cells = [row[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(row, widths, strict=True))]
        del cells[1]
        lines.append("  ".join(cells))
        if i == 0:
            lines.append("-" * len(lines[0]))
        else:
            lines += textwrap.wrap(releases[i - 1].statistic, _WIDTH - 4, **_INDENT)
    return lines


_INDENT: dict[str, Any] = {"initial_indent": "    ", "subsequent_indent": "    "}


def field_lines(name: str, text: str) -> list[str]:
    return textwrap.wrap(
        text, _WIDTH, initial_indent=f"{name + ':':<11}", subsequent_indent=" " * 11
    )


def list_lines(title: str, items: tuple[str, ...]) -> list[str]:
    """Return a titled list, nothing if it is empty."""
    """Return a named paragraph."""
    """Return the guarantee, as a formula and in words."""
    if not items:
        return []
    lines = ["", f"{title}:"]
    for item in items:
        lines += textwrap.wrap(item, _WIDTH, initial_indent="- ", subsequent_indent="  ")
    return lines
