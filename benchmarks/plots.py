"""Draw the pictures of docs/images, each for light and for dark pages.

    python benchmarks/plots.py               # all of them
    python benchmarks/plots.py hero clicks

A picture is drawn from the means in its page's first table with the named head or, where a page
has none, from the table of the last full run, and from nothing else. The drawing of the dask
example shows no figures.
"""

import json
import re
from pathlib import Path

from figures import LEVEL, epsilon_axis, heading, panel, save
from harness import parser
from render import RESULTS, TABLE, cells_of

DOCS = Path(__file__).resolve().parents[1] / "docs"
EPSILON, INF = "epsilon", float("inf")


def tables_of(page, *head):
    """Cells of a page's tables whose head begins with the given cells."""
    text = (DOCS / "benchmarks" / page).read_text(encoding="utf-8")
    tables = map(cells_of, TABLE.findall(text))
    return [table for table in tables if table[0][: len(head)] == [*head]]


def rows_of(entry):
    """The rows of the only table of an entry's last full run, each {column: text}."""
    path = RESULTS / "full" / f"{entry}.json"
    (table,) = json.loads(path.read_text(encoding="utf-8"))["tables"]
    return [dict(zip(table["columns"], row, strict=True)) for row in table["rows"]]


def number(cell):
    """Leading number of a cell such as "0.8763 ± 0.0012", None where there is none."""
    match = re.match(r"[+-]?(?:\d*\.\d+|\d+|inf)", cell.replace(",", ""))
    return float(match.group()) if match else None


def curves_of(page, measure, n_names=1):
    """{name or names of a row: {epsilon: mean}} of a table with a column for each epsilon."""
    head, *rows = tables_of(page, measure)[0]
    epsilons = [float(cell.removeprefix(EPSILON)) for cell in head[n_names:]]
    return {
        row[0] if n_names == 1 else tuple(row[:n_names]): {
            epsilon: number(cell)
            for epsilon, cell in zip(epsilons, row[n_names:], strict=True)
            if number(cell) is not None
        }
        for row in rows
    }


def columns_of(table):
    """{name: {first cell: mean}} of the columns of a table."""
    head, *rows = table
    return {
        name: {number(row[0]): number(row[place]) for row in rows}
        for place, name in enumerate(head)
    }


def plot(axes, curve, name, **look):
    """Draw the finite places of a curve {x: y} below the curves that are there; return them."""
    finite = sorted(x for x in curve if x != INF)
    look |= {"label": name, "zorder": 3.0 - 0.1 * len(axes.get_lines())}
    axes.plot(finite, [curve[x] for x in finite], **look)
    return finite


def against_epsilon(curves, levels, message, measure, adjust=lambda axes: None):
    """Return a picture of {name: {epsilon: value}} and of {name: value}."""
    figure, axes = panel()
    for name, curve in curves.items():
        epsilons = plot(axes, curve, name)
    for name, value in levels.items():
        if isinstance(value, dict):
            plot(axes, value, name, marker="None", **LEVEL)
        else:
            axes.axhline(value, label=name, **LEVEL)
    adjust(axes)
    epsilon_axis(axes, epsilons)
    heading(axes, message, measure)
    return figure


def hero():
    """Lists from ratings against epsilon, with public features and without, beside popularity."""
    found = curves_of("item-features.md", "Recall@20", n_names=2)
    plain = found["AdaptiveWeightALS", "none"]

    def adjust(axes):
        axes.set_ylim(0.0, 0.44)
        axes.set_yticks([0.0, 0.1, 0.2, 0.3, 0.4])
        axes.yaxis.set_major_formatter("{x:.0%}")

    return against_epsilon(
        {
            "ratings, genres\nand years": found["AdaptiveWeightALS", "genres, years"],
            "ratings alone": plain,
        },
        {"without privacy": plain[INF], "most popular\nfilms": found["most popular", ""][INF]},
        "From epsilon 1 on, private lists beat the most popular films",
        "Hidden favourites that are in a list of 20 (recall), MovieLens 1M",
        adjust,
    )


def utility():
    """Errors of predicted ratings against epsilon."""
    curves = columns_of(tables_of("utility.md", EPSILON, "DPItemMeans")[0])
    names = "AdaptiveWeightALS", "DPItemMeans"
    return against_epsilon(
        {name: curves[name] for name in names},
        {"no privacy": curves["AdaptiveWeightALS"][INF]},
        "No worse than item means, and better with more budget",
        "Test RMSE in stars, lower is better, MovieLens 1M",
    )


def clicks():
    """Lists from clicks against epsilon: the best model of each kind."""
    found = curves_of("clicks.md", "Recall@20")
    return against_epsilon(
        {
            "item-item model": found["item-item"],
            "AdaptiveWeightALS": found["pooled"],
            "best published\nsolver": found["AdaDPALS, exponent 0"],
        },
        {"most popular\nitems": found["most popular"]},
        "From clicks, the item-item model makes the best private lists",
        "Recall@20 of hidden clicks, higher is better, MovieLens 1M",
        lambda axes: axes.set_ylim(bottom=0.1),
    )


def multi_task():
    """Errors by popularity of a task: adaptive weights beside equal ones and sampling."""
    head, *rows = tables_of("multi-task.md", EPSILON, "weights")[0]
    names = {
        "mu = 0.5": "adaptive weights",
        "mu = 0": "equal weights",
        "tail, k = 10": "tail sampling",
        "uniform, k = 30": "uniform sampling",
    }
    found = {row[1]: list(map(number, row[2:-1])) for row in rows if row[0] == "5"}
    figure, axes = panel()
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
    return figure


def linkage():
    """How often Eve names the newcomer, against epsilon."""
    rows = [row for row in rows_of("linkage") if number(row["epsilon"]) is not None]
    curves = {
        model: {
            number(r["epsilon"]): number(r["who, all known"]) for r in rows if r["model"] == model
        }
        for model in ("DPItemMeans", "AdaptiveWeightALS")
    }
    curves["limit of\nany attack"] = {number(row["epsilon"]): number(row["bound"]) for row in rows}
    ticks = range(0, 101, 20)
    return against_epsilon(
        curves,
        {"guessing": 2.0},
        "Up to epsilon 4 nobody can say who joined",
        "Games in which the right one of 50 suspects is named; without privacy: 100 %",
        lambda axes: axes.set_yticks(ticks, [f"{tick} %" for tick in ticks]),
    )


def spammer():
    """How far k false accounts raise a film."""
    rows = [row for row in rows_of("spammer") if row["model"] == "AdaptiveWeightALS"]
    names = {"none": "no privacy", "20": "epsilon 20", "4": "epsilon 4", "1": "epsilon 1"}
    figure, axes = panel()
    for epsilon, name in names.items():
        rise = {
            number(row["attack"]): number(row["rise, stars"])
            for row in rows
            if row["epsilon"] == epsilon and row["attack"] != "whale"
        }
        accounts = plot(axes, rise, name)
    axes.set_xscale("log")
    axes.set_xticks(accounts, [f"{n:g}" for n in accounts])
    axes.minorticks_off()
    axes.set_xlabel("false accounts that copy real people and like the film")
    heading(
        axes,
        "Privacy stops one false account, but not a hundred",
        "Rise of a new film's predicted rating, in stars",
    )
    return figure


def covariance_curve():
    """Errors of a private covariance that protects a rating, or a user."""
    head = "covariance.md", EPSILON, "item means alone"
    rating = columns_of(tables_of(*head, "covariance")[0])
    user = columns_of(tables_of(*head, "AdaptiveWeightALS")[0])
    return against_epsilon(
        {"one rating\nprotected": rating["covariance"], "one user\nprotected": user["covariance"]},
        {
            "item means,\nno privacy": rating["item means alone"][INF],
            "no privacy": rating["covariance"][INF],
        },
        "Protecting a person costs more than protecting a rating",
        "Test RMSE in stars, lower is better, MovieLens 1M, Gaussian noise",
        lambda axes: axes.set_ylim(bottom=0.83),
    )


def local_curve():
    """What reports of devices gain over users' own means."""
    labels = "100,000\ndevices", "6,040 devices\n(MovieLens 1M)"
    tables = tables_of("local.md", EPSILON, "LocalDPGDDR")
    return against_epsilon(
        {
            label: columns_of(table)["against own mean"]
            for table, label in zip(tables, labels, strict=True)
        },
        {"user's\nown mean": 0.0},
        "Without a trusted server, privacy needs many devices",
        "Test RMSE above that of each user's own mean, in stars, lower is better",
    )


def expected():
    """How far off plans are, a point for each set and estimator at each epsilon."""
    figure, axes = panel()
    found = {"models with\nfactors": ([], [], 0.97), "item means": ([], [], 1.03)}
    for head, *rows in tables_of("expected.md", ""):
        for fits, plans in zip(rows, rows[len(rows) // 2 :], strict=False):
            xs, ys, move = found[[*found][fits[0] in ("DPItemMeans", "LocalDPGDDR")]]
            xs += [min(number(epsilon), 30.0) * move for epsilon in head[1:-1]]
            pairs = zip(map(number, fits[1:-1]), map(number, plans[1:-1]), strict=True)
            ys += [100.0 * (plan / fit - 1.0) for fit, plan in pairs]
    for name, (xs, ys, _) in found.items():
        axes.plot(xs, ys, label=name, linestyle="none", alpha=0.5)
    axes.axhline(0.0, label="as expected", **LEVEL)
    epsilon_axis(axes, [0.1, 0.5, 1.0, 4.0, 10.0, 30.0])
    axes.set(xticklabels=[0.1, 0.5, 1, 4, 10, "no privacy"], xlim=(0.08, 36.0))
    heading(axes, "Plans know the error of a fit within a few percent", "Expected RMSE, % off")
    return figure


PICTURES = {
    "hero": hero,
    "utility": utility,
    "clicks": clicks,
    "multi_task": multi_task,
    "attacks-linkage": linkage,
    "attacks-spammer": spammer,
    "covariance_curve": covariance_curve,
    "local_curve": local_curve,
    "expected": expected,
}
PARSER = parser(__doc__)
PARSER.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(PICTURES)}")
PARSER.add_argument("--to", type=Path, default=DOCS / "images", help="folder")


def main(arguments=None):
    options = PARSER.parse_args(arguments)
    if unknown := set(options.names) - set(PICTURES):
        PARSER.error(f"no picture is named {', '.join(sorted(unknown))}")
    for name in options.names or PICTURES:
        save(PICTURES[name], options.to / f"{name}.png")


if __name__ == "__main__":
    main()
