"""
A search for settings that does not leak
========================================

Which penalty is right? ``GridSearchCV`` fits every candidate on several folds and takes the best:
on private ratings each fit spends, and the choice by exact scores leaks besides. `PrivateSearchCV`
releases the winner alone, for little more than the price of one fit.
"""

# %%
# A search within a budget
# ------------------------
# A secret random number of trials is run, each with a candidate drawn by chance; each is scored
# with noise; the best is released, and all else is forgotten. The plan says beforehand what a trial
# gets, without data.

import pandas as pd

from skdpmf import AdaptiveWeightALS, PrivacyBudget, privacy_spent
from skdpmf.data import make_ratings
from skdpmf.evaluation import PrivateSearchCV, rmse, split_ratings

N_USERS, N_ITEMS = 2000, 300
ALPHAS = [0.1, 0.3, 1.0, 3.0, 10.0]  # strengths of the penalty
known, hidden = split_ratings(make_ratings(N_USERS, N_ITEMS, random_state=0), random_state=0)

budget = PrivacyBudget(4.0, 1e-5)
search = PrivateSearchCV(AdaptiveWeightALS(budget), {"alpha": ALPHAS}, budget, n_trials=5)
plan = search.plan(n_items=N_ITEMS, n_rows=N_USERS)
print(plan)

# %%
search.fit(known)
print("chosen: ", search.best_params_)
print(f"spent:   epsilon {search.privacy_spent_.epsilon:.2f}")

# %%
# The price beside a stock search
# -------------------------------
# ``GridSearchCV`` with five folds makes 26 fits. If each of them had the whole budget, they would
# spend this much together, and its choice by exact scores has no epsilon at all.

fit = AdaptiveWeightALS(budget).fit(known)
n_fits = 5 * len(ALPHAS) + 1
prices = pd.Series(
    {
        "one trial": plan.one_trial,
        "the private search": search.privacy_spent_.epsilon,
        f"GridSearchCV, {n_fits} fits": privacy_spent([fit] * n_fits).epsilon,
    },
    name="epsilon",
)
prices.round(2).to_frame()

# %%
import matplotlib.pyplot as plt

figure, axes = plt.subplots(figsize=(6.4, 3.2), layout="constrained")
bars = axes.barh(prices.index, prices, color=["C3", "C0", "C1"])
axes.bar_label(bars, [f"{epsilon:.1f}" for epsilon in prices], padding=4)
axes.invert_yaxis()
axes.margins(x=0.15)
axes.grid(visible=False)
axes.set_xlabel("epsilon that is spent")
axes.set_title("A search for little more than a fit")
plt.show()

# %%
# Has it chosen well?
# -------------------
# Only made-up ratings may show the errors of all candidates. The first column has the whole
# budget, which somebody can use who knows the best penalty from elsewhere; the second has the
# budget of a trial.

errors = pd.DataFrame(
    {
        f"fit with epsilon {level.epsilon:.1f}": [
            rmse(
                hidden,
                AdaptiveWeightALS(level, alpha=alpha).fit(known).predict_entries(known, hidden),
            )
            for alpha in ALPHAS
        ]
        for level in (budget, plan.fit_budget)
    },
    pd.Index(ALPHAS, name="alpha"),
)
errors.round(3)

# %%
found = rmse(hidden, search.predict_entries(known, hidden))
print(f"The search has released a model with an error of {found:.3f}.")

# %%
# The step from the first column to the released model is the price of searching. So tune on
# public or made-up ratings if you can, and search privately if you must.
