"""
What 5 % who agree are worth
============================

Nearly every service has people who agreed that their ratings are used openly: staff, a panel,
members who ticked a box. Their rows need no noise. How far do a few of them get, and what do the
protected rows of all others add?
"""

# %%
# One person in twenty agrees
# ---------------------------
# The ratings are made up. Rows of the panel go to the parameter ``public``; those of everybody else
# are protected as before, and a tenth of these people's ratings is hidden to measure the error.

import numpy as np
import pandas as pd
from scipy import sparse

from skdpmf import AdaptiveWeightALS, PrivacyBudget
from skdpmf.data import make_ratings
from skdpmf.evaluation import rmse

X = make_ratings(3000, 100, density=0.2, random_state=0).tocoo()
is_hidden = np.random.default_rng(0).random(X.nnz) < 0.1
known, hidden = (
    sparse.csr_array((X.data[part], (X.row[part], X.col[part])), X.shape)
    for part in (~is_hidden, is_hidden)
)
panel, others, test = known[:150], known[150:], hidden[150:]

# %%
# Alone, and together
# -------------------
# The panel alone gives a model without any noise, of few people. All others alone give one of many
# people, with noise. ``public=panel`` combines both by their precision. Errors are means of three
# fits, whose noise differs.

EPSILONS = [0.25, 0.5, 1, 2, 4]


def error(epsilon, rows, **params):
    # seeded, to repeat the figure; a real release leaves random_state alone
    budget = PrivacyBudget(epsilon, 1e-5)
    fits = (AdaptiveWeightALS(budget, random_state=t, **params).fit(rows) for t in range(3))
    return np.mean([rmse(test, model.predict_entries(others, test)) for model in fits])


exact = AdaptiveWeightALS(PrivacyBudget.nonprivate()).fit(panel)
errors = pd.DataFrame(
    {
        "5 % alone": rmse(test, exact.predict_entries(others, test)),
        "95 % alone": [error(epsilon, others) for epsilon in EPSILONS],
        "together": [error(epsilon, others, public=panel) for epsilon in EPSILONS],
    },
    EPSILONS,
)
errors.rename_axis("epsilon").round(3)

# %%
import matplotlib.pyplot as plt

figure, axes = plt.subplots(layout="constrained")
for color, name in zip(("C2", "C1", "C0"), errors, strict=True):
    axes.plot(EPSILONS, errors[name], "--" if name == "5 % alone" else "o-", color=color)
    place = EPSILONS[-1], errors[name].iloc[-1]
    axes.annotate(name, place, (6, 0), textcoords="offset points", color=color, va="center")
axes.margins(x=0.2)
axes.set_xscale("log")
axes.set_xticks(EPSILONS, EPSILONS)
axes.minorticks_off()
axes.set(xlabel="epsilon", ylabel="error (RMSE, stars)")
axes.set_title("Few who agree help most where epsilon is small")
plt.show()

# %%
# Where epsilon is large, others know more than the panel: beyond epsilon 1 the fit learns factors
# from them alone, and the panel adds next to nothing, or takes a little away.
#
# What it rests on
# ----------------
# The people of the panel get no protection at all, and must have agreed to that. For all others the
# guarantee is the same, under one more condition (:doc:`People who said yes </public-people>`):

model = AdaptiveWeightALS(PrivacyBudget(1.0, 1e-5), public=panel).fit(others)
print(next(text for text in model.privacy_spent_.assumptions if "people are public" in text))
