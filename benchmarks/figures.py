"""Pictures of the pages: one drawing for light and for dark pages, lines named at their ends.

A picture has at most four lines, says one thing in its heading, and can be read 700 pixels wide.
"""

from itertools import pairwise
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

QUIET = "C4"  # the colour of what one compares with
LEVEL = {"color": QUIET, "linestyle": "--", "linewidth": 1.6}
GAP = 8.0  # points between a line's end and its name
FILL = 1.15  # heights of a name from one name to the next

_COMMON = {
    "figure.dpi": 100,
    "savefig.dpi": 200,  # twice 700 pixels
    "font.size": 11,
    "axes.titlesize": 13,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "axes.linewidth": 0.8,
    "xtick.minor.size": 0,
    "ytick.major.size": 0,
    "grid.linewidth": 0.8,
    "lines.linewidth": 2.4,
    "lines.markersize": 6.5,
}


def _theme(paper, ink, quiet, grid, colours):
    """Settings of one theme; `colours` are of the lines, before that of what is compared with."""
    rc = dict.fromkeys(("figure.facecolor", "axes.facecolor", "savefig.facecolor"), paper)
    rc |= dict.fromkeys(("text.color", "axes.titlecolor"), ink)
    rc |= dict.fromkeys(("axes.labelcolor", "xtick.color", "ytick.color", "axes.edgecolor"), quiet)
    markers = mpl.cycler(marker=[*"osD^", "None"])
    cycle = mpl.cycler(color=[*colours, quiet]) + markers
    return {**_COMMON, **rc, "grid.color": grid, "axes.prop_cycle": cycle}


# Blue, orange, green and purple, darker on white and lighter on black: each has a contrast of 4.5
# or more with its paper, as text needs, and they differ with any kind of colour vision.
THEMES = {
    "": _theme(
        "#ffffff", "#1f2328", "#59636e", "#e1e4e8", ("#0a57c2", "#c44e00", "#1b7f4b", "#8e2f7f")
    ),
    "-dark": _theme(
        "#14181e", "#e8eaed", "#a3acb6", "#2f353d", ("#58a6ff", "#ffa057", "#8be9c0", "#f7c0f0")
    ),
}


def panel():
    """Return a figure and its axes."""
    figure = Figure(figsize=(7.0, 4.0), layout="constrained")  # inches
    figure.get_layout_engine().set(w_pad=0.1, h_pad=0.1)
    return figure, figure.subplots()


def heading(axes, message, measure):
    """Put the message and, in small letters, the measure above the axes, and name the lines."""
    axes.set_title(message, pad=25.0)
    axes.annotate(
        measure,
        (0.0, 1.0),
        xytext=(0.0, 9.0),
        xycoords="axes fraction",
        textcoords="offset points",
        color=mpl.rcParams["axes.labelcolor"],
    )
    name_ends(axes)


def epsilon_axis(axes, epsilons):
    """Make the horizontal axis logarithmic in epsilon, from the first of them to the last."""
    axes.set_xscale("log")
    axes.set_xticks(epsilons, [f"{epsilon:g}" for epsilon in epsilons])
    axes.minorticks_off()
    axes.set_xlim(min(epsilons), max(epsilons))
    axes.set_xlabel("epsilon (smaller: more private)")
    for line in axes.get_lines():
        line.set_clip_on(False)  # markers at both ends are whole


def name_ends(axes):
    """Write each line's label at its right end, in its colour; names do not overlap."""
    lines = [line for line in axes.get_lines() if not line.get_label().startswith("_")]
    names = []
    for line in lines:
        look = {"va": "center", "color": line.get_color(), "annotation_clip": False}
        look |= {"xytext": (GAP, 0.0), "textcoords": "offset points"}
        transform = line.get_transform()
        names.append(
            axes.annotate(line.get_label(), line.get_xydata()[-1], xycoords=transform, **look)
        )
    figure = axes.figure
    figure.draw_without_rendering()  # the layout leaves room for the names
    boxes = [name.get_window_extent() for name in names]
    heights = [box.height * FILL for box in boxes]
    places = apart([(box.y0 + box.y1) / 2.0 for box in boxes], heights)
    for name, box, place in zip(names, boxes, places, strict=True):
        shift = (place - (box.y0 + box.y1) / 2.0) * 72.0 / figure.dpi
        name.set_position((GAP, shift))


def apart(places, heights):
    """Return places in the same order, near the given ones, where boxes of the heights fit."""
    order = sorted(range(len(places)), key=places.__getitem__)
    places = list(places)
    for _ in range(1000):
        moved = False
        for low, high in pairwise(order):
            lack = (heights[low] + heights[high]) / 2.0 - (places[high] - places[low])
            if lack > 1e-3:
                places[low] -= lack / 2.0
                places[high] += lack / 2.0
                moved = True
        if not moved:
            break
    return places


def save(draw, path):
    """Write the figure that draw() returns to `path` and, for dark pages, to "-dark" beside it."""
    path = Path(path)
    for suffix, theme in THEMES.items():
        with mpl.rc_context(theme):
            draw().savefig(path.with_stem(path.stem + suffix), metadata={"Software": None})
