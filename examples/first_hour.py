"""
From a CSV to a served answer
=============================

Thirty lines take a table of ratings, a table of films and a list of members to a private model in a
file, a card for the files of whoever answers for it, and an answer with titles. Items and users
have ids here; no line counts columns. :doc:`The page </first-hour>` says more of each step. ::

    python examples/first_hour.py FOLDER

The folder has ``ratings.csv`` (user, item, rating, timestamp), ``films.csv`` (item, title) and
``members.csv`` (user). Without it the program makes up all three.
"""

import sys
import tempfile
from pathlib import Path

import pandas as pd

from skdpmf import AdaptiveWeightALS, PrivacyBudget, PrivacyCard, load_model
from skdpmf.data import make_ratings, ratings_to_matrix, read_ratings, validate_ratings
from skdpmf.evaluation import rmse, split_table


def make_tables(folder):
    """Write made-up tables of 1,000 members and 60 films."""
    made_up = make_ratings(1000, 60, random_state=0, as_frame=True)
    made_up.ratings.to_csv(folder / "ratings.csv", index=False)
    made_up.catalogue.to_csv(folder / "films.csv", index=False)
    made_up.matrix.users.to_frame().to_csv(folder / "members.csv", index=False)


def main(folder):
    """Load, check, train, judge, publish and serve."""
    ratings, films = read_ratings(folder / "ratings.csv"), pd.read_csv(folder / "films.csv")
    members = pd.read_csv(folder / "members.csv")["user"]
    parts = split_table(ratings, by="time")  # the model is judged by the latest ratings
    known, later = (ratings_to_matrix(part, users=members, items=films) for part in parts)
    model = AdaptiveWeightALS(PrivacyBudget(epsilon=4.0, delta=1e-5))
    print(validate_ratings(known, model))
    model.fit(known)
    print(f"RMSE {rmse(later, model.predict_entries(known, later)):.2f}")

    model.save(folder / "films.skdpmf")
    card = PrivacyCard.of(model, model="Films that members like")
    (folder / "card.md").write_text(card.to_markdown(), encoding="utf-8")

    served = load_model(folder / "films.skdpmf").set_output(recommend="pandas")
    visitor = dict.fromkeys(films["item"].head(3), 5.0)
    print(served.recommend(visitor, n=5)[["rank", "item", "title"]].to_string(index=False))
    return served


if __name__ == "__main__":
    if sys.argv[1:]:
        main(Path(sys.argv[1]))
    else:
        place = Path(tempfile.mkdtemp())
        make_tables(place)
        main(place)
