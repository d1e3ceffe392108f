"""
What everybody knows of a film costs no privacy
===============================================

The genres of a film are known without anybody's ratings, so a private model may use them as they
are. They help most where the budget is small, and a new film, which nobody has rated, gets
predictions from the first day.
"""

# %%
# People with tastes for genres
# -----------------------------
# Here ratings are made up such that genres matter: each person likes each genre more or less.

import numpy as np
import pandas as pd
from scipy import sparse

from skdpmf import AdaptiveWeightALS, PrivacyBudget
from skdpmf.evaluation import rmse

N_USERS, N_ITEMS = 2000, 150
GENRES = ["Comedy", "Crime", "Drama", "Horror", "Western"]

rng = np.random.default_rng(0)
films = np.eye(5)[rng.integers(5, size=N_ITEMS)]  # a column for each genre
tastes = 0.6 * rng.normal(size=(N_USERS, 5))
quality = 0.3 * rng.normal(size=N_ITEMS) + films @ (0.3 * rng.normal(size=5))
noise = 0.7 * rng.normal(size=(N_USERS, N_ITEMS))
stars = np.clip(np.rint(3.3 + quality + tastes @ films.T + noise), 1, 5)

part = rng.random(stars.shape)
known, hidden = (sparse.csr_array(stars * chosen) for chosen in (part < 0.2, part > 0.9))
pd.DataFrame(tastes[:3], ["Ann", "Bob", "Cid"], GENRES).round(1)

# %%
# With and without genres
# -----------------------
# You fit twice at each budget, and ``item_features`` is the only difference. For a table of films
# of your own, `skdpmf.data.item_features` makes the columns, and :doc:`What is public
# </what-is-public>` says which facts qualify.

EPSILONS = [0.5, 1, 2, 4, 8]


def error(epsilon, features):
    # seeded, to repeat the figure; a real release leaves random_state alone
    budget = PrivacyBudget(epsilon, 1e-5)
    model = AdaptiveWeightALS(budget, item_features=features, random_state=0).fit(known)
    return rmse(hidden, model.predict_entries(known, hidden))


ways = {"without": None, "with genres": films}
errors = pd.DataFrame(
    {name: [error(epsilon, way) for epsilon in EPSILONS] for name, way in ways.items()}, EPSILONS
)
errors.rename_axis("epsilon").round(3)

# %%
import matplotlib.pyplot as plt

figure, axes = plt.subplots(layout="constrained")
for color, name in zip(("C1", "C0"), errors, strict=True):
    axes.plot(EPSILONS, errors[name], "o-", color=color)
    place = EPSILONS[0], errors[name].iloc[0]
    axes.annotate(name, place, (2, 10), textcoords="offset points", color=color)
axes.margins(y=0.15)
axes.set_xscale("log")
axes.set_xticks(EPSILONS, EPSILONS)
axes.minorticks_off()
axes.set(xlabel="epsilon", ylabel="error (RMSE, stars)")
axes.set_title("Genres help most at small budgets")
plt.show()

# %%
# Films that nobody has rated
# ---------------------------
# A new film of each genre comes out. ``with_items`` adds all five to the fitted model, without
# ratings and without budget. Who is recommended which?

budget = PrivacyBudget(4.0, 1e-5)
model = AdaptiveWeightALS(budget, item_features=films).fit(known)
grown = model.with_items(np.eye(5))

shape = N_USERS, N_ITEMS + 5
predicted = grown.predict(sparse.csr_array((known.data, known.indices, known.indptr), shape=shape))
new = pd.DataFrame(predicted[:, N_ITEMS:], columns=[f"a new {genre}" for genre in GENRES])
new.head(3).set_axis(["Ann", "Bob", "Cid"]).round(1)

# %%
together = np.corrcoef(tastes.ravel(), new.to_numpy().ravel())[0, 1]
print(f"Predictions follow the tastes of all users with a correlation of {together:.2f}.")
print(f"The guarantee holds if: {model.privacy_spent_.assumptions[-1]}")
