"""`make demo`: the command line trains, measures, uses and explains a private recommender.

    python -m skdpmf.commands.demo [--data RATINGS] [--items TITLES] [--rating-range 1 5]

Without --data it makes ratings. The notes on the ratings and the accuracies are computed from
private ratings: they are the curator's to see, not part of what the guarantee covers.
"""

import argparse
import contextlib
import io
import sys
import tempfile
import textwrap
from pathlib import Path
from typing import Any

from skdpmf.commands import cli
from skdpmf.data import make_ratings, read_items, read_ratings
from skdpmf.estimators.contract.model_file import load_description
from skdpmf.evaluation import split_table


def main(arguments: list[str] | None = None) -> None:
    """Run the demonstration.

    arguments: command line; None: the process's own.
    """
    parser = argparse.ArgumentParser(prog="make demo", description=__doc__.splitlines()[0])
    parser.add_argument("--data", help="ratings: CSV, TSV, .dat, Parquet, MovieLens folder or zip")
    parser.add_argument("--items", help="the catalogue: ids and titles, in the same formats")
    words = "the scale of the ratings (1 5)"
    parser.add_argument("--rating-range", nargs=2, type=float, default=(1.0, 5.0), help=words)
    with tempfile.TemporaryDirectory() as folder:
        _show(parser.parse_args(arguments), Path(folder))


def _show(options: argparse.Namespace, folder: Path) -> None:
    files = "known.csv", "held-out.csv", "willing.csv", "private.skdpmf", "beside", "exact"
    known, held_out, willing, private, beside, exact = (str(folder / file) for file in files)
    terms = ["--rating-range", *map(str, options.rating_range)]
    if options.data is None:
        print("This demo makes up ratings of made-up films. DATA=ratings.csv takes your own.")
        made = make_ratings(4000, 400, density=0.15, random_state=0, as_frame=True)
        frame, options.items = made.ratings, str(folder / "items.csv")
        made.catalogue.to_csv(options.items, index=False)
        terms += ["--users", "4000"]
    else:
        frame = read_ratings(options.data)
    if options.items is not None:
        terms += ["--items", options.items]
    train, test = split_table(frame, test_size=0.1, random_state=0)
    agreed = train["user"].drop_duplicates().sample(frac=0.05, random_state=0)
    train.to_csv(known, index=False)
    train[train["user"].isin(agreed)].to_csv(willing, index=False)
    test[~test["user"].isin(agreed)].to_csv(held_out, index=False)

    with contextlib.redirect_stdout(io.StringIO()):  # the full statement
        _run("fit", known, "--epsilon", 1, *terms, "-o", private)
        _run("fit", known, "--epsilon", 1, *terms, "--public", willing, "-o", beside)
        _run("fit", known, "--epsilon", "inf", *terms, "-o", exact)
    print("\nErrors on a tenth of the ratings, held out (exact, so for their holder alone):")
    _run("evaluate", private, known, "--held-out", held_out)
    print("\nThe same where one user in twenty agreed that his ratings are public:")
    _run("evaluate", beside, known, "--held-out", held_out)
    print("\nThe same of a model without privacy:")
    _run("evaluate", exact, known, "--held-out", held_out)
    counts = train["user"].value_counts()
    user = counts.index[len(counts) // 2]
    titles: Any = {} if not options.items else read_items(options.items).set_index("item")["title"]
    best = train[train["user"] == user].nlargest(3, "rating")["item"]
    names = ", ".join(str(titles.get(item, item)) for item in best)
    print(f"\nUser {user} rated {names} highest, and the private model recommends:")
    _run("recommend", private, known, "--user", user, "-n", 5)
    print("\nWhat the private model promises:")
    for line in load_description(Path(private)).privacy_spent_.summary().splitlines():
        print(textwrap.fill(line, 96, subsequent_indent="  "))
    print("The command skdpmf show prints all of it, with each release and its noise.")


def _run(*words: Any) -> None:
    """Run the command line, and say on the error output what is run."""
    command = [str(word) for word in words]
    print("$ skdpmf", *(Path(word).name for word in command), file=sys.stderr, flush=True)
    if code := cli.main(command):
        sys.exit(code)


if __name__ == "__main__":
    main()
