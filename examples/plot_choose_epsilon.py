"""
How much epsilon? What it protects, and what it costs
=====================================================

Nobody can choose epsilon for you, but both sides of the choice can be seen before any private
rating is touched. For the made-up ratings of this page factors pay from an epsilon of 2 on, at
which the best attacker still guesses wrong in two of five cases.
"""

# %%
# What it protects
# ----------------
# Eve sees the model and everybody's ratings but Alice's, and wants to know whether Alice's are in
# it. A coin is right in 50 % of the cases; how much better does the model make her? This follows
# from the budget alone, whatever the ratings. For the Gaussian noise of these estimators Eve has
# to distinguish a normal variable of mean 0 from one of mean ``budget.mu``: her best guess is
# right with a chance of Phi(mu / 2). If she may be wrong about 1 % of the people who are not in
# the data, she finds at most Phi(Phi^-1(0.01) + mu) of those who are.

import pandas as pd
from scipy.stats import norm

from skdpmf import AdaptiveWeightALS, DPItemMeans, PrivacyBudget

EPSILONS = [0.5, 1, 2, 4, 8, 16]
DELTA = 1e-5  # well below 1 / number of users

mu = pd.Series({epsilon: PrivacyBudget(epsilon, DELTA).mu for epsilon in EPSILONS})
protection = pd.DataFrame(
    {"guesses right": norm.cdf(mu / 2), "finds": norm.cdf(norm.ppf(0.01) + mu)}, mu.index
)
protection.rename_axis("epsilon").map("{:.1%}".format)

# %%
# What it costs
# -------------
# The cost depends on the ratings, above all on how many people there are. Make up ratings with as
# many users and items as yours, or take public ones, fit at each epsilon, and score on ratings
# that no fit has seen.

from skdpmf.data import make_ratings
from skdpmf.evaluation import rmse, split_ratings

N_USERS, N_ITEMS = 2000, 300
known, hidden = split_ratings(make_ratings(N_USERS, N_ITEMS, random_state=0), random_state=0)

estimators = {"factors": AdaptiveWeightALS, "film means": DPItemMeans}
budgets = {epsilon: PrivacyBudget(epsilon, DELTA) for epsilon in EPSILONS}
budgets["none"] = PrivacyBudget.nonprivate()
fits = pd.DataFrame(  # seeded, to repeat the figure; a real release leaves random_state alone
    {
        name: {
            level: estimator(budget, random_state=0).fit(known) for level, budget in budgets.items()
        }
        for name, estimator in estimators.items()
    }
)
cost = fits.map(lambda fit: rmse(hidden, fit.predict_entries(known, hidden)))
cost.rename_axis("epsilon").round(3)

# %%
# Both sides in one picture
# -------------------------
# Look where the error becomes flat, and where factors begin to beat the mean of each film.

import matplotlib.pyplot as plt
from matplotlib.ticker import PercentFormatter

figure, (above, below) = plt.subplots(2, figsize=(5.6, 5.6), sharex=True, layout="constrained")
above.plot(EPSILONS, protection["guesses right"], "o-")
above.axhline(0.5, color="#666666", linewidth=1.5)
above.annotate("a coin", (EPSILONS[-1], 0.51), ha="right", color="#555555")
above.set(ylabel="Eve guesses right", ylim=(0.46, 1.04))
above.yaxis.set_major_formatter(PercentFormatter(1.0))
above.set_title("Less noise: more to guess, less error")

for color, name in zip(("C0", "C1"), cost, strict=True):
    below.plot(EPSILONS, cost[name][:-1], "o-", color=color)
    below.annotate(name, (EPSILONS[-1], cost[name].iloc[-2]), (8, -4), textcoords="offset points")
below.set_xscale("log")
below.set_xticks(EPSILONS, EPSILONS)
below.minorticks_off()
below.set(xlabel="epsilon", ylabel="error (RMSE, stars)")
plt.show()

# %%
# Do not draw the second curve from the ratings that you are going to protect: every fit spends,
# and a choice by exact errors leaks as well. Settle the first curve with the people who are to be
# protected, and accept the accuracy that follows. The private fits of this page have spent much
# more together than any one of them:

from skdpmf import privacy_spent

private = fits.loc[EPSILONS].to_numpy().ravel().tolist()
print(f"{len(private)} private fits together: epsilon {privacy_spent(private).epsilon:.1f}")
