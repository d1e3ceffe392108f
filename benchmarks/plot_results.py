"""Draw the pictures of docs/images whose figures are results of full runs.

    python benchmarks/plot_results.py            # all of them, each for light and for dark pages
    python benchmarks/plot_results.py attacks-linkage

A picture is drawn from the tables in benchmarks/results/full or, where a run is long, from those of
its page, and from nothing else. The drawing of the dask example shows no figures.
"""

import argparse
import json

from figures import LEVEL, epsilon_axis, heading, name_ends, panels, save
from plot_tables import DOCS, number, plot, table_of
from render import RESULTS, TABLE, cells_of


def rows_of(entry):
    """The rows of the only table of an entry's last full run, each {column: text}."""
    path = RESULTS / "full" / f"{entry}.json"
    (table,) = json.loads(path.read_text(encoding="utf-8"))["tables"]
    return [dict(zip(table["columns"], row, strict=True)) for row in table["rows"]]


def linkage():
    """How often Eve names the newcomer, against epsilon."""
    rows = [row for row in rows_of("linkage") if number(row["epsilon"]) is not None]
    figure, (axes,) = panels()
    epsilons = []
    for model in "DPItemMeans", "AdaptiveWeightALS":
        own = {
            number(r["epsilon"]): number(r["who, all known"]) for r in rows if r["model"] == model
        }
        epsilons = plot(axes, own, model)
    limit = {number(row["epsilon"]): number(row["bound"]) for row in rows}
    plot(axes, limit, "limit of\nany attack")
    axes.axhline(2.0, label="guessing", **LEVEL)
    axes.set_yticks([0, 20, 40, 60, 80, 100], ["0 %", "20 %", "40 %", "60 %", "80 %", "100 %"])
    epsilon_axis(axes, epsilons)
    heading(
        axes,
        "Up to epsilon 4 nobody can say who joined",
        "Games in which the right one of 50 suspects is named; without privacy: 100 %",
    )
    name_ends(axes)
    return figure


def spammer():
    """How far k false accounts raise a film."""
    rows = [row for row in rows_of("spammer") if row["model"] == "AdaptiveWeightALS"]
    names = {"none": "no privacy", "20": "epsilon 20", "4": "epsilon 4", "1": "epsilon 1"}
    accounts = []
    figure, (axes,) = panels()
    for epsilon, name in names.items():
        rise = {
            number(row["attack"]): number(row["rise, stars"].lstrip("+"))
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
    name_ends(axes)
    return figure


def privacy_accuracy():
    """Private steps beside one private draw."""
    rows = rows_of("sampler-figure-7")
    found = {
        name: {
            number(row["epsilon"]): number(row["test RMSE"])
            for row in rows
            if row["mechanism"] == name
        }
        for name in ("every step", "draw", "own mean", "no privacy")
    }
    figure, (axes,) = panels()
    plot(axes, found["every step"], "private\nsteps")
    plot(axes, found["draw"], "one\nprivate draw")
    for name, label in {"own mean": "user's\nown mean", "no privacy": "no privacy"}.items():
        (level,) = found[name].values()
        axes.axhline(level, label=label, **LEVEL)
    axes.set_ylim(bottom=0.83)
    epsilon_axis(axes, [0.25, 1, 4, 16, 64, 256, 1250])
    heading(
        axes,
        "Private steps need a hundredth of the epsilon of a draw",
        "Test RMSE in stars, lower is better, MovieLens 1M, 16 factors",
    )
    name_ends(axes)
    return figure


def langevin_and_sgd():
    """Errors round by round."""
    rows = rows_of("sampler-figure-6")
    names = {
        "SGD weak": "SGD,\nweak penalty",
        "draw": "Langevin,\none draw",
        "SGD": "SGD,\ndefault penalty",
        "average": "Langevin,\naverage",
    }
    figure, (axes,) = panels()
    for name, label in names.items():
        curve = {number(r["round"]): number(r[f"{name} test"]) for r in rows if r[f"{name} test"]}
        plot(axes, curve, label, marker="None")
    axes.set_xscale("log")
    axes.set_xticks([1, 5, 20, 100, 400], ["1", "5", "20", "100", "400"])
    axes.minorticks_off()
    axes.set_xlim(1, 400)
    axes.set_ylim(0.84, 0.96)
    axes.set_xlabel("rounds over the ratings")
    heading(
        axes,
        "Averaged Langevin draws improve where SGD overfits",
        "Test RMSE in stars, lower is better, MovieLens 1M, no privacy",
    )
    name_ends(axes)
    return figure


def noise_table():
    """Correlation of factors that should be independent, against the size of the table."""
    rows = rows_of("sampler-figure-4")
    table = {
        2.0 ** int(r["table"][2:]): number(r["correlation"]) for r in rows if "^" in r["table"]
    }
    (exact,) = (number(row["correlation"]) for row in rows if row["table"] == "exact")
    figure, (axes,) = panels()
    sizes = plot(axes, table, "table")
    axes.axhline(exact, label="exact noise", **LEVEL)
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes[::2], [f"{size:,.0f}" for size in sizes[::2]])
    axes.set_ylim(bottom=-0.02)
    axes.set_xlabel("normal numbers in the table")
    heading(
        axes,
        "Small tables tie together what should be independent",
        "Largest correlation of two factors without ratings; the test RMSE hardly changes",
    )
    name_ends(axes)
    return figure


def local_figure9():
    """Errors against rounds, with the devices' reports and without."""
    _, *rows = table_of("local-figure9.md", "k", "no reports")
    alone = {cells[0]: number(cells[1]) for cells in table_of("local-figure9.md", "predictor")[1:]}
    figure, (axes,) = panels()
    rounds = plot(axes, {number(row[0]): number(row[1]) for row in rows}, "without\nany report")
    plot(axes, {number(row[0]): number(row[2]) for row in rows}, "with the\nreports", linewidth=7)
    axes.axhline(alone["constant, the exact global mean"], label="one number\nfor all", **LEVEL)
    axes.axhline(alone["LocalDPGDDR, defaults, epsilon 0.1"], label="LocalDPGDDR", color="C2")
    axes.set_xscale("log")
    axes.set_xticks(rounds, [f"{k:g}" for k in rounds])
    axes.minorticks_off()
    axes.set_ylim(bottom=0.8)
    axes.set_xlabel("rounds, epsilon 0.1 over all of them")
    heading(
        axes,
        "The error falls as fast without any report",
        "Test RMSE in stars, lower is better, made-up ratings of the size of MovieLens 20M",
    )
    name_ends(axes)
    return figure


def columns_of(table):
    """{name: {first cell: mean}} of the cells of a table."""
    head, *rows = table
    return {
        name: {number(row[0].replace(",", "")): number(row[place]) for row in rows}
        for place, name in enumerate(head)
    }


def covariance_curve():
    """Errors of a private covariance that protects a rating, or a user."""
    rating = columns_of(table_of("covariance.md", "epsilon", "item means alone", "covariance"))
    user = columns_of(table_of("covariance.md", "epsilon", "item means alone", "AdaptiveWeightALS"))
    figure, (axes,) = panels()
    plot(axes, rating["covariance"], "one rating\nprotected")
    epsilons = plot(axes, user["covariance"], "one user\nprotected")
    inf = float("inf")
    axes.axhline(rating["item means alone"][inf], label="item means,\nno privacy", **LEVEL)
    axes.axhline(rating["covariance"][inf], label="no privacy", **LEVEL)
    axes.set_ylim(bottom=0.83)
    epsilon_axis(axes, epsilons)
    heading(
        axes,
        "Protecting a person costs more than protecting a rating",
        "Test RMSE in stars, lower is better, MovieLens 1M, Gaussian noise",
    )
    name_ends(axes)
    return figure


def covariance_size():
    """Loss by privacy against the number of users."""
    found = columns_of(table_of("covariance.md", "users", "ratings"))
    figure, (axes,) = panels()
    for name, label in {
        "item means alone, loss": "item means\nalone",
        "defaults, loss": "covariance",
    }.items():
        users = plot(axes, found[name], label)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xticks(users, [f"{n:,.0f}" for n in users])
    axes.set_ylim(0.0005, 0.15)
    axes.set_yticks([0.001, 0.01, 0.1], ["0.001", "0.01", "0.1"])
    axes.minorticks_off()
    axes.set_xlabel("users")
    heading(
        axes,
        "With more users privacy soon costs nothing",
        "Test RMSE above that without privacy; one rating protected, epsilon 0.42",
    )
    name_ends(axes)
    return figure


def local_curve():
    """What reports of devices gain over users' own means."""
    text = (DOCS / "benchmarks" / "local.md").read_text(encoding="utf-8")
    found = [cells_of(block) for block in TABLE.findall(text)]
    found = [table for table in found if table[0][:2] == ["epsilon", "LocalDPGDDR"]]
    figure, (axes,) = panels()
    for table, label in zip(
        found, ("100,000\ndevices", "6,040 devices\n(MovieLens 1M)"), strict=True
    ):
        epsilons = plot(axes, columns_of(table)["against own mean"], label)
    axes.axhline(0.0, label="user's\nown mean", **LEVEL)
    epsilon_axis(axes, epsilons)
    heading(
        axes,
        "Without a trusted server, privacy needs many devices",
        "Test RMSE above that of each user's own mean, in stars, lower is better",
    )
    name_ends(axes)
    return figure


def dask_cluster():
    """Thumbnail of the example: sums go up to the process that draws noise, models come down."""
    figure, (axes,) = panels(height=4.0, width=5.6)
    axes.set_axis_off()
    axes.set_xlim(0.0, 3.0)
    axes.set_ylim(0.0, 2.2)
    box = {"boxstyle": "round,pad=0.5", "facecolor": "none", "linewidth": 2.0}
    text = {"ha": "center", "va": "center", "fontsize": 15}
    axes.text(1.5, 1.8, "one process\ndraws all noise", bbox={**box, "edgecolor": "C0"}, **text)
    arrow = {"arrowstyle": "<->", "color": "C4", "linewidth": 2.0}
    for place in (0.5, 1.5, 2.5):
        axes.text(place, 0.3, "ratings", bbox={**box, "edgecolor": "C1"}, **text)
        top = 1.5 + 0.35 * (place - 1.5)
        axes.annotate("", (top, 1.52), (place, 0.52), arrowprops=arrow)
    axes.text(0.3, 1.1, "sums\nup", color="C1", **text)
    axes.text(2.75, 1.1, "noisy\nmodels\ndown", color="C0", **text)
    return figure


PICTURES = {
    "attacks-linkage": linkage,
    "attacks-spammer": spammer,
    "sampler-privacy-accuracy": privacy_accuracy,
    "sampler-langevin-and-sgd": langevin_and_sgd,
    "sampler-noise-table": noise_table,
    "local_figure9": local_figure9,
    "covariance_curve": covariance_curve,
    "covariance_size": covariance_size,
    "local_curve": local_curve,
    "dask_cluster": dask_cluster,
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(PICTURES)}")
    options = parser.parse_args()
    if unknown := set(options.names) - set(PICTURES):
        parser.error(f"no picture is named {', '.join(sorted(unknown))}")
    for name in options.names or PICTURES:
        save(PICTURES[name], DOCS / "images" / f"{name}.png")


if __name__ == "__main__":
    main()
