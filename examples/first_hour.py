"""
From a CSV to a served answer
=============================

You have a table of ratings, a table of films and a list of members. Thirty lines later there is a
private model that answers with titles, in a file, and a card for whoever answers for it. Items and
users have ids throughout, so you never count columns. :doc:`The guide </getting-started>` says
more of each step.
"""

# %%
# Three tables
# ------------
# They are made up here. Take files of your own in their place: ratings with the columns user,
# item, rating and, if you have it, time.

from skdpmf.data import make_ratings

made_up = make_ratings(1000, 60, random_state=0, as_frame=True)
made_up.ratings.to_csv("ratings.csv", index=False)
made_up.catalogue.to_csv("films.csv", index=False)
made_up.matrix.users.to_frame().to_csv("members.csv", index=False)

# %%
# Load and check
# --------------
# The films are the catalogue, which is public, and the members are declared: the model can reveal
# neither. It will be judged by the latest tenth of the ratings.

import pandas as pd

from skdpmf import AdaptiveWeightALS, PrivacyBudget
from skdpmf.data import ratings_to_matrix, read_ratings, validate_ratings
from skdpmf.evaluation import rmse, split_table

ratings, films = read_ratings("ratings.csv"), pd.read_csv("films.csv")
members = pd.read_csv("members.csv")["user"]
parts = split_table(ratings, by="time")
known, later = (ratings_to_matrix(part, users=members, items=films) for part in parts)
model = AdaptiveWeightALS(PrivacyBudget(epsilon=4.0, delta=1e-5))
print(validate_ratings(known, model))

# %%
# Train and judge
# ---------------
# The error is computed from private ratings: it is yours to see, and not to publish.

model.fit(known)
print(f"RMSE {rmse(later, model.predict_entries(known, later)):.2f} stars")

# %%
# Publish
# -------
# The file has the released model, its films and its statement. The card says the same in words.

from pathlib import Path

from skdpmf import PrivacyCard

card = PrivacyCard.of(model, model="Films that members like")
Path("card.md").write_text(card.to_markdown(), encoding="utf-8")
model.save("films.skdpmf")

# %%
# Serve
# -----
# The model remembers nobody. A visitor's own ratings come with the question: three films, five
# stars each.

from skdpmf import load_model

served = load_model("films.skdpmf").set_output(recommend="pandas")
visitor = dict.fromkeys(films["item"].head(3), 5.0)
answer = served.recommend(visitor, n=5)
answer[["rank", "title", "score"]].round(2)

# %%
# You can draw the same as a picture, for a page of your own. :doc:`A web service
# </auto_examples/serve_model>` gives such answers over HTTP.

import matplotlib.pyplot as plt

figure, axes = plt.subplots(figsize=(6.4, 3.4), layout="constrained")
axes.barh(answer["title"], answer["score"])
axes.invert_yaxis()
axes.grid(visible=False)
axes.set_xlabel("score")
axes.set_title("For somebody new", loc="left")
plt.show()
