"""
A first private model
=====================

Can a recommender learn from people without giving any one of them away? This page fits one under
a budget of epsilon = 4, asks it for films, measures what privacy costs, and saves the model with
its statement. With two thousand people, privacy costs less than a tenth of a star.
"""

# %%
# Ratings
# -------
# The ratings are made up here, and so are the films. Your own table of users, items and ratings
# becomes such a matrix by ``ratings_to_matrix(table, items=films)``, and knows its titles too. A
# tenth of the ratings is hidden, to measure errors on.

from skdpmf.data import make_ratings
from skdpmf.evaluation import rmse, split_ratings

N_USERS, N_ITEMS = 2000, 300
made_up = make_ratings(N_USERS, N_ITEMS, random_state=0, as_frame=True)
known, hidden = split_ratings(made_up.matrix, random_state=0)

films = made_up.catalogue.set_index("item")
made_up.ratings.join(films, on="item").head()

# %%
# One model, one budget
# ---------------------
# The fit adds noise, so that the same model is nearly as likely to come out with or without any
# one person's ratings. Epsilon says how nearly: smaller is safer. :doc:`What is protected?
# </protection>` explains what the promise covers.

from skdpmf import AdaptiveWeightALS, PrivacyBudget

budget = PrivacyBudget(epsilon=4.0, delta=1e-5)
model = AdaptiveWeightALS(budget).set_output(recommend="pandas").fit(known)

user = known.users[0]
model.recommend(known.rows(user), n=5)

# %%
# Visitors are answered as well
# -----------------------------
# The model remembers nobody: members and visitors alike send their ratings with the question. Two
# visitors have rated the same six films, with opposite tastes, and get other predictions for the
# rest.

import pandas as pd

ann = dict(zip(films.index[:6], [5, 5, 5, 1, 1, 1], strict=True))
bob = dict(zip(films.index[:6], [1, 1, 1, 5, 5, 5], strict=True))
stars = pd.DataFrame(model.predict([ann, bob]).T, films["title"], ["Ann", "Bob"])
stars["difference"] = stars["Ann"] - stars["Bob"]
stars[6:].sort_values("difference", ascending=False).iloc[[0, 1, 2, -3, -2, -1]].round(2)

# %%
# The price of privacy
# --------------------
# The same model without privacy is the best that this method can do. One mean for each film needs
# fewer releases, and predicts worse.

from skdpmf import DPItemMeans


def error(estimator):
    return rmse(hidden, estimator.fit(known).predict_entries(known, hidden))


none = PrivacyBudget.nonprivate()
errors = {"epsilon = 4": [], "no privacy": []}
for name, level in zip(errors, (budget, none), strict=True):
    errors[name] = [error(DPItemMeans(level)), error(AdaptiveWeightALS(level))]
errors = pd.DataFrame(errors, ["film means", "factors"])
errors.round(3)

# %%
import matplotlib.pyplot as plt

figure, axes = plt.subplots(layout="constrained")
for place, (_, (private, exact)) in enumerate(errors.iterrows()):
    axes.plot([exact, private], [place, place], color="C3", zorder=1)
    axes.plot(exact, place, "s", color="C1", markersize=11)
    axes.plot(private, place, "o", color="C0", markersize=11)
axes.annotate("no privacy", (exact, 1), (0, 14), textcoords="offset points", ha="right")
axes.annotate("ε = 4", (private, 1), (0, 14), textcoords="offset points", ha="left")
axes.set_yticks([0, 1], errors.index)
axes.set_ylim(-0.6, 1.6)
axes.margins(x=0.25)
axes.set_xlabel("error on hidden ratings (RMSE, stars)")
axes.set_title(f"Privacy costs {private - exact:.2f} stars")
plt.show()

# %%
# A file with its statement
# -------------------------
# The file holds the released model, the films and the statement of what was spent: all that a
# service needs, and no ratings.

from skdpmf import load_model

model.save("films.skdpmf")
loaded = load_model("films.skdpmf")
print(loaded.privacy_spent_.summary())
