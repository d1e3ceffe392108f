"""
To each their own epsilon: personal privacy levels
==================================================

Some people want more protection than the rest. Give everybody the smallest epsilon, and the model
is worse for all; leave the careful ones out, and it learns nothing from them. `DPMFSampler` keeps a
promise to each: its error lies between the errors of the two epsilons, and below the error of
leaving the careful ones out.
"""

# %%
# One epsilon for each user
# -------------------------
# Here a quarter of the users are careful. Levels are public, and must not depend on the ratings:
# "more protection for those who have rated this film" would reveal who has.

import numpy as np
import pandas as pd
from scipy.stats import norm

from skdpmf import DPMFSampler, PrivacyBudget
from skdpmf.data import make_ratings
from skdpmf.evaluation import rmse, split_ratings

STRICT, LOOSE = 1.0, 4.0  # epsilons
N_USERS, N_ITEMS = 2000, 300
SEEDS = range(2)
known, hidden = split_ratings(make_ratings(N_USERS, N_ITEMS, random_state=0), random_state=0)

place = np.random.default_rng(0).permutation(N_USERS) / N_USERS
levels = np.where(place < 0.25, STRICT, LOOSE)
model = DPMFSampler(PrivacyBudget(LOOSE, 1e-5)).fit(known, user_epsilon=levels)

# %%
# What is promised
# ----------------
# The noise is made for the largest level. A user of a smaller one gets less influence on every
# release, which the same noise hides better. The statement has the epsilon of each, and an
# attacker who knows everything else guesses at most so often right whether the user is there;
# a coin is right in half of the cases.

statement = model.privacy_spent_
mu = {level: PrivacyBudget(level, 1e-5).mu for level in (LOOSE, STRICT)}
promises = pd.DataFrame(
    {
        "epsilon": {level: statement.epsilon_for(level) for level in mu},
        "influence": {level: mu[level] / mu[LOOSE] for level in mu},
        "guessed right": {level: norm.cdf(mu[level] / 2) for level in mu},
    }
)
promises.loc[0.0] = statement.epsilon_for(0.0), 0.0, 0.5  # as if the user were not there
promises.rename_axis("level").round(2)

# %%
# What it costs
# -------------
# The share of careful users grows. They get their own level, or they are left out (level 0).

SHARES = [0.0, 0.25, 0.5, 0.75]


def error(share, level):
    """Return the error of all users when a share of them has the level, as mean over fits."""
    levels = np.where(place < share, level, LOOSE)
    errors = []
    for seed in SEEDS:  # to repeat the figure; a real release leaves random_state alone
        sampler = DPMFSampler(PrivacyBudget(LOOSE, 1e-5), random_state=seed)
        fitted = sampler.fit(known, user_epsilon=levels)
        errors.append(rmse(hidden, fitted.predict_entries(known, hidden)))
    return np.mean(errors)


costs = pd.DataFrame(
    {
        "their own level": [error(share, STRICT) for share in SHARES],
        "left out": [error(share, 0.0) for share in SHARES],
    },
    pd.Index(SHARES, name="careful users"),
)
everybody = error(1.0, STRICT)
costs.round(4)

# %%
import matplotlib.pyplot as plt
from matplotlib.ticker import PercentFormatter

figure, axes = plt.subplots(layout="constrained")
axes.axhline(everybody, color="#666666", linewidth=1.5)
looks = {"left out": ("C1", (-10, 4), "right"), "their own level": ("C0", (10, -12), "left")}
for way, (color, place, side) in looks.items():
    axes.plot(SHARES, costs[way], "o-", color=color)
    point = SHARES[-2], costs[way].iloc[-2]
    axes.annotate(way, point, place, textcoords="offset points", color=color, ha=side)
axes.annotate("epsilon 1 for all", (0, everybody), (0, 5), textcoords="offset points")
axes.xaxis.set_major_formatter(PercentFormatter(1.0))
axes.set(xlabel="careful users", ylabel="error of all (RMSE, stars)")
axes.set_title("A level of their own beats leaving out")
plt.show()

# %%
# A level limits the influence of a user's ratings on the shared model. Recommendations are made
# from this model and all of the user's own ratings, so careful users lose little themselves. The
# idea is that of Liu, Wang and Smola, "Fast Differentially Private Matrix Factorization", RecSys
# 2015; the guarantee at every step is this package's.
