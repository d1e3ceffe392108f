"""Draw the pictures of docs/images whose figures are tables of the results pages.

    python benchmarks/plot_tables.py             # all of them, each for light and for dark pages
    python benchmarks/plot_tables.py hero clicks

A picture is drawn from the means in its page's first table with the named head, and from nothing
else.
"""

import argparse
import re
from pathlib import Path

from figures import LEVEL, epsilon_axis, heading, name_ends, panels, save
from render import TABLE, cells_of

DOCS = Path(__file__).resolve().parents[1] / "docs"
EPSILON = "epsilon"


def table_of(page, *head):
    """Cells of a page's first table whose head begins with the given cells, without the head."""
    text = (DOCS / "benchmarks" / page).read_text(encoding="utf-8")
    tables = map(cells_of, TABLE.findall(text))
    return next(table for table in tables if table[0][: len(head)] == [*head])


def number(cell):
    """Leading number of a cell such as "0.8763 ± 0.0012", None where there is none."""
    match = re.match(r"-?(?:\d*\.\d+|\d+|inf)", cell)
    return float(match.group()) if match else None


def curves_of(page, measure, n_names=1):
    """{name or names of a row: {epsilon: mean}} of a table with a column for each epsilon."""
    head, *rows = table_of(page, measure)
    epsilons = [float(cell.removeprefix(EPSILON)) for cell in head[n_names:]]
    return {
        row[0] if n_names == 1 else tuple(row[:n_names]): {
            epsilon: number(cell)
            for epsilon, cell in zip(epsilons, row[n_names:], strict=True)
            if number(cell) is not None
        }
        for row in rows
    }


def plot(axes, curve, name, **look):
    """Draw the finite places of a curve {x: y} below the curves that are there; return them."""
    finite = sorted(x for x in curve if x != float("inf"))
    look |= {"label": name, "zorder": 3.0 - 0.1 * len(axes.get_lines())}
    axes.plot(finite, [curve[x] for x in finite], **look)
    return finite


def hero():
    """Lists from ratings against epsilon, with public features and without, beside popularity."""
    found = curves_of("item-features.md", "Recall@20", n_names=2)
    figure, (axes,) = panels()
    plot(axes, found["AdaptiveWeightALS", "genres, years"], "ratings, genres\nand years")
    epsilons = plot(axes, found["AdaptiveWeightALS", "none"], "ratings alone")
    inf = float("inf")
    axes.axhline(found["AdaptiveWeightALS", "none"][inf], label="without privacy", **LEVEL)
    axes.axhline(found["most popular", ""][inf], label="most popular\nfilms", **LEVEL)
    axes.set_ylim(0.0, 0.44)
    axes.set_yticks([0.0, 0.1, 0.2, 0.3, 0.4])
    axes.yaxis.set_major_formatter("{x:.0%}")
    epsilon_axis(axes, epsilons)
    heading(
        axes,
        "From epsilon 0.5 on, private lists beat the most popular films",
        "Hidden favourites that are in a list of 20 (recall), MovieLens 1M",
    )
    name_ends(axes)
    return figure


def utility():
    """Errors of predicted ratings against epsilon."""
    head, *rows = table_of("utility.md", EPSILON, "DPItemMeans")
    curves = {
        name: {number(row[0]): number(row[head.index(name)]) for row in rows} for name in head[1:3]
    }
    figure, (axes,) = panels()
    plot(axes, curves["AdaptiveWeightALS"], "AdaptiveWeightALS")
    epsilons = plot(axes, curves["DPItemMeans"], "DPItemMeans")
    axes.axhline(curves["AdaptiveWeightALS"][float("inf")], label="no privacy", **LEVEL)
    epsilon_axis(axes, epsilons)
    heading(
        axes,
        "No worse than item means, and better with more budget",
        "Test RMSE in stars, lower is better, MovieLens 1M",
    )
    name_ends(axes)
    return figure


def clicks():
    """Lists from clicks against epsilon: the best model of each kind."""
    found = curves_of("clicks.md", "Recall@20")
    figure, (axes,) = panels()
    plot(axes, found["item-item"], "item-item model")
    plot(axes, found["pooled"], "AdaptiveWeightALS")
    plot(axes, found["AdaDPALS, exponent 0"], "best published\nsolver")
    popular = found["most popular"]
    epsilons = plot(axes, popular, "most popular\nitems", marker="None", **LEVEL)
    axes.set_ylim(bottom=0.1)
    epsilon_axis(axes, epsilons)
    heading(
        axes,
        "From clicks, the item-item model makes the best private lists",
        "Recall@20 of hidden clicks, higher is better, MovieLens 1M",
    )
    name_ends(axes)
    return figure


def multi_task():
    """Errors by popularity of a task: adaptive weights beside equal ones and sampling."""
    head, *rows = table_of("multi-task.md", EPSILON, "weights")
    names = {
        "mu = 0.5": "adaptive weights",
        "mu = 0": "equal weights",
        "tail, k = 10": "tail sampling",
        "uniform, k = 30": "uniform sampling",
    }
    found = {row[1]: list(map(number, row[2:-1])) for row in rows if row[0] == "5"}
    figure, (axes,) = panels()
    for method, name in names.items():
        plot(axes, dict(enumerate(found[method])), name)
    buckets = [cell.replace(" to ", "\nto ") for cell in head[2:-1]]
    axes.set_xticks(range(len(buckets)), buckets)
    axes.set_xlabel("observations of a task, in fifths of the tasks")
    axes.set_ylim(bottom=0.0)
    heading(
        axes,
        "Adaptive weights help rare tasks most",
        "Error of predictions in standard deviations of the truth, at epsilon 5",
    )
    name_ends(axes)
    return figure


PICTURES = {draw.__name__: draw for draw in (hero, utility, clicks, multi_task)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(PICTURES)}")
    parser.add_argument("--to", type=Path, default=DOCS / "images", help="folder")
    options = parser.parse_args()
    if unknown := set(options.names) - set(PICTURES):
        parser.error(f"no picture is named {', '.join(sorted(unknown))}")
    for name in options.names or PICTURES:
        save(PICTURES[name], options.to / f"{name}.png")


if __name__ == "__main__":
    main()
