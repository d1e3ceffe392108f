"""
Who pays for privacy? Popular items, rare items
===============================================

Noise is as large for a film that thousands have rated as for one with a hundred. One error
for all films hides who pays: the rare ones. Weights move influence towards them, at a small cost
for the popular ones.
"""

# %%
# Popular and rare films
# ----------------------
# Real catalogues have few popular films and many rare ones, and so have these made-up ratings.
# `by_popularity` splits the errors of a prediction by how often a film is rated.

import numpy as np
import pandas as pd

from skdpmf import DPALS, AdaptiveWeightALS, PrivacyBudget
from skdpmf.data import make_ratings
from skdpmf.evaluation import by_popularity, split_ratings

N_USERS, N_ITEMS = 6000, 300
N_BUCKETS = 4
SEEDS = range(2)
ratings = make_ratings(N_USERS, N_ITEMS, density=0.1, item_exponent=1.2, random_state=0)
known, hidden = split_ratings(ratings, random_state=0)


def errors(budget, **settings):
    """Return the errors from rare to popular films, as means over fits."""
    tables = []
    for seed in SEEDS:  # to repeat the figure; a real release leaves random_state alone
        model = AdaptiveWeightALS(budget, random_state=seed, **settings).fit(known)
        predicted = model.predict_entries(known, hidden)
        tables.append(by_popularity(known, hidden, predicted, n_buckets=N_BUCKETS))
    counts = zip(tables[0]["min_count"], tables[0]["max_count"], strict=True)
    names = [f"{low}-{high}" for low, high in counts]
    return pd.Series(np.mean([table["rmse"] for table in tables], axis=0), names)


# %%
# The price of noise
# ------------------
# You fit the same model without privacy and at two epsilons. The columns say how many ratings the
# films of a bucket have; buckets have about as many hidden ratings. The figure has what noise adds.

levels = {
    "no privacy": PrivacyBudget.nonprivate(),
    "ε = 4": PrivacyBudget(4.0, 1e-5),
    "ε = 1": PrivacyBudget(1.0, 1e-5),
}
found = pd.DataFrame({name: errors(budget) for name, budget in levels.items()})
found.T.round(3)

# %%
import matplotlib.pyplot as plt


def draw(table, title, ylabel):
    axes = plt.figure(figsize=(6.4, 3.9), layout="constrained").subplots()
    for color, name in zip(("C3", "C0", "C1"), table, strict=True):
        axes.plot(range(len(table)), table[name], "o-", color=color)
        end = len(table) - 1, table[name].iloc[-1]
        axes.annotate(name, end, (10, -4), textcoords="offset points", color=color)
    axes.set_xticks(range(len(table)), table.index)
    axes.set(xlabel="ratings of the film", ylabel=ylabel)
    axes.set_title(title)
    plt.show()


price = found.sub(found["no privacy"], axis=0)
draw(price, "Rare films pay for privacy", "error from noise (stars)")

# %%
# Who gets the influence
# ----------------------
# A user has one unit of influence, however many films this user has rated. ``weight_exponent``
# divides it: a film with N ratings weighs N^-mu, so that a larger mu gives more to the rare ones.
# The counts N are noisy, and are paid for within the budget. The figure has the error less that of
# equal weights.

EXPONENTS = 0.0, 0.25, 0.5
budget = levels["ε = 4"]
influence = pd.DataFrame(
    {f"mu = {mu:g}": errors(budget, solver=DPALS(weight_exponent=mu)) for mu in EXPONENTS}
)
influence = influence.sub(influence["mu = 0"], axis=0)
draw(influence, "Weights help rare films", "error from weights (stars)")

# %%
# Which exponent is right depends on whose recommendations matter to you. A choice by these errors
# on private ratings would have to be paid for: see :doc:`a search that does not leak
# </auto_examples/plot_private_search>`. :doc:`The benchmarks </benchmarks/multi-task>` have the
# same on MovieLens 1M. The weights are those of Krichene et al., "Multi-Task Differential Privacy
# Under Distribution Skew", ICML 2023.
