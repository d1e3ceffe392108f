"""What displays share: matplotlib where it is needed, colours, curves, words about a guarantee."""

from __future__ import annotations

from typing import Any

from skdpmf.exceptions import MissingExtraError
from skdpmf.privacy.plan import ReleasePlan
from skdpmf.privacy.statement import PrivacyStatement

__all__ = [
    "BLUE",
    "COLOURS",
    "VERMILION",
    "axes_or_new",
    "draw_curve",
    "guarantee_words",
    "make_logarithmic",
    "pyplot",
]

# Okabe and Ito (2008), "Color universal design": seen apart with any kind of colour vision. Their
# yellow is too light for lines on white, and black is for limits.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")
BLUE, VERMILION = COLOURS[:2]
MARKERS = "osD^vP"  # beside the colours


def pyplot() -> Any:
    """Return `matplotlib.pyplot`, or raise a `MissingExtraError`."""
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise MissingExtraError(
            "plots need matplotlib, which is not installed: pip install 'skdpmf[plot]'."
        ) from error
    return plt


def axes_or_new(ax: Any, width: float = 6.4, height: float = 4.0) -> Any:
    """Return the axes, or those of a new figure of this size (inches)."""
    if ax is None:
        _, ax = pyplot().subplots(figsize=(width, height), layout="constrained")
    return ax


def draw_curve(ax: Any, x: Any, y: Any, spread: Any, label: Any, line: dict[str, Any]) -> Any:
    """Draw points with error bars, in the next colour and marker of the axes, or as told."""
    from matplotlib.cbook import normalize_kwargs
    from matplotlib.lines import Line2D

    n = len(ax.containers)  # curves before this one
    style = {
        "color": COLOURS[n % len(COLOURS)],
        "marker": MARKERS[n % len(MARKERS)],
        "capsize": 4.0,
        "label": label,
    }
    return ax.errorbar(x, y, yerr=spread, **{**style, **normalize_kwargs(line, Line2D)})


def make_logarithmic(ax: Any) -> None:
    """Give the axes a logarithmic x-axis with plain numbers, at 1, 2 and 5 where they have room."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    ax.set_xscale("log")
    low, high = ax.get_xlim()
    ax.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if high < 1e3 * low else (1.0,)))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ax.xaxis.set_minor_locator(NullLocator())


def guarantee_words(spent: ReleasePlan | PrivacyStatement) -> str:
    """Return what an epsilon is about, such as "one user, add-remove, delta = 1e-05"."""
    about = spent.budget if isinstance(spent, ReleasePlan) else spent
    words = [f"one {about.unit}", about.neighbors]
    words += [f"delta = {spent.delta:.4g}"] if spent.delta else []
    words += ["local"] if spent.local else []
    words += ["conditional"] if spent.condition else []
    return ", ".join(words)
