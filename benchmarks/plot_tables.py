"""Draw the curves of a results page: error or recall against epsilon, from the page's own tables.

    python benchmarks/plot_tables.py docs/benchmarks/utility.md docs/images/utility.png
    python benchmarks/plot_tables.py docs/benchmarks/clicks.md docs/images/clicks.png

The first table with epsilons in a row or in a column is drawn, means alone; "inf" is a dashed line.
"""

import argparse
import re
from pathlib import Path

EPSILON = "epsilon"

TABLE = re.compile(r"(?:^\|.*\n)+", re.MULTILINE)


def cells_of(block):
    """Cells of one Markdown table, head first and without the line below it."""
    rows = [[cell.strip() for cell in line[1:-1].split("|")] for line in block.splitlines()]
    return [row for row in rows if not set("".join(row)) <= set("-: ")]


def tables(text):
    """Cells of each Markdown table of a text."""
    return map(cells_of, TABLE.findall(text))


def number(cell):
    """Leading number of a cell such as "0.8763 ± 0.0012", or None."""
    match = re.match(r"-?(?:\d*\.\d+|\d+|inf)", cell)
    return float(match.group()) if match else None


def curves_of(table):
    """{name: {epsilon: value}} and what is measured, or None where there are no epsilons."""
    head, rows = table[0], table[1:]
    if head[0] == EPSILON:
        names = [name for name in head[1:] if name and name not in ("rank", "seconds a fit")]
        columns = {name: head.index(name) for name in names}
        found = {
            name: {number(row[0]): number(row[c]) for row in rows} for name, c in columns.items()
        }
        return "test RMSE", found
    if all(cell.startswith(EPSILON) for cell in head[1:]):
        places = [float(cell.removeprefix(EPSILON)) for cell in head[1:]]
        return head[0], {r[0]: dict(zip(places, map(number, r[1:]), strict=True)) for r in rows}
    return None


def panels(n, size):
    """Return a figure of n axes, whose curves differ in colour or line, and in marker."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    from skdpmf.evaluation.displays import COLOURS, MARKERS

    figure, axes = plt.subplots(1, n, figsize=size, layout="constrained", squeeze=False)
    more = "<>*X"  # markers for a second turn of the colours
    looks = plt.cycler(color=COLOURS + COLOURS[: len(more)], marker=list(MARKERS + more))
    looks += plt.cycler(linestyle=["-"] * len(COLOURS) + ["-."] * len(more))
    for one in axes[0]:
        one.set_prop_cycle(looks)
        one.spines[["top", "right"]].set_visible(False)
        one.grid(color="#e4e4e4", linewidth=0.7)
    return figure, axes[0]


def draw(measured, curves, path):
    figure, (axes,) = panels(1, (8.5, 4.5))
    for index, (name, curve) in enumerate(curves.items()):
        known = {e: y for e, y in curve.items() if y is not None}
        finite = sorted(e for e in known if e != float("inf"))
        targets = name == "target"
        style = {"linestyle": "", "marker": "x", "color": "k"} if targets else {}
        (line,) = axes.plot(
            finite, [known[e] for e in finite], label=name, zorder=9 - index, **style
        )
        if float("inf") in known and not targets:
            axes.axhline(known[float("inf")], color=line.get_color(), linestyle="--", linewidth=0.7)
    axes.set(xscale="log", xlabel="epsilon (dashed: no privacy)", ylabel=measured)
    ticks = sorted({e for curve in curves.values() for e in curve if e != float("inf")})
    axes.set_xticks(ticks, [f"{e:g}" for e in ticks])
    axes.minorticks_off()
    axes.legend(fontsize="small", loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    figure.savefig(path, dpi=120)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("page", type=Path)
    parser.add_argument("image", type=Path)
    options = parser.parse_args()
    found = [curves for curves in map(curves_of, tables(options.page.read_text())) if curves]
    if not found:
        parser.exit(1, f"{options.page} has no table with epsilons\n")
    draw(*found[0], options.image)


if __name__ == "__main__":
    main()
