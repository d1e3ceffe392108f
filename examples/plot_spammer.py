"""
Can a few users steer the model?
================================

Somebody wants a bad new film to be recommended, and opens accounts that give it five stars. Does
privacy stop this? It stops one account, whatever this account rates; it does not stop a hundred.
"""

# %%
# A bad new film
# --------------
# Among all films this one has the worst ratings. It is new: only five people have rated it so far.

import numpy as np

from skdpmf.data import make_ratings

made_up = make_ratings(1000, 200, random_state=0, as_frame=True)
titles = made_up.catalogue["title"]
ratings = made_up.matrix.X.toarray()
ratings[ratings == 0.0] = np.nan  # not rated

film = np.nanmean(ratings, axis=0).argmin()
ratings[np.flatnonzero(ratings[:, film] > 0.0)[5:], film] = np.nan
print(f"{titles[film]}: {ratings[ratings[:, film] > 0.0, film]}")

# %%
# The accounts
# ------------
# A *spammer* copies the ratings of real people, so that the accounts look like theirs, and adds
# five stars for the film. A *whale* has only one account, and gives one star to all other films.
# All attacks use the same hundred places of the matrix, and leave the others empty.

N_ACCOUNTS = [1, 10, 100]

rng = np.random.default_rng(0)
copies = ratings[rng.choice(len(ratings), max(N_ACCOUNTS))]
copies[:, film] = 5.0
whale = np.full((1, len(titles)), 1.0)
whale[0, film] = 5.0

attacks = {"nobody": copies[:0], "whale": whale}
attacks |= {f"{n} copies" if n > 1 else "1 copy": copies[:n] for n in N_ACCOUNTS}


def attacked(accounts):
    empty = np.full((max(N_ACCOUNTS) - len(accounts), len(titles)), np.nan)
    return np.vstack((ratings, accounts, empty))


# %%
# What the attacks gain
# ---------------------
# We watch the predictions for 200 people who do not know the film. A private fit is random, so the
# figures are means of several fits.

import pandas as pd

from skdpmf import DPItemMeans, PrivacyBudget

EPSILONS, N_FITS = [20.0, 4.0, 1.0], 12

strangers = ratings[np.isnan(ratings[:, film])][:200]
budgets = {"no privacy": PrivacyBudget.nonprivate()}
budgets |= {f"ε = {epsilon:g}": PrivacyBudget(epsilon, 1e-5) for epsilon in EPSILONS}
rows = []
for level, budget in budgets.items():
    for attack, accounts in attacks.items():
        for seed in range(N_FITS if level != "no privacy" else 1):
            model = DPItemMeans(budget, random_state=seed).fit(attacked(accounts))
            stars = model.predict(strangers).mean(axis=0)
            rows.append((level, attack, stars[film], 1 + np.sum(stars > stars[film])))
found = pd.DataFrame(rows, columns=["budget", "attack", "stars", "place"])
found = found.groupby(["attack", "budget"], sort=False)
found["place"].mean().unstack().round().astype(int)

# %%
# The table has the film's place among the 200. One account hardly moves it; a hundred lift it to
# the top under every budget. The predictions, in stars, rise by so much:

stars = found["stars"].mean().unstack()
rise = stars.iloc[1:] - stars.loc["nobody"]
rise.round(2)

# %%
import matplotlib.pyplot as plt

copies_alone = rise.drop("whale")
figure, axes = plt.subplots(layout="constrained")
for level, marker in zip(rise, "so^D", strict=False):
    (line,) = axes.plot(N_ACCOUNTS, copies_alone[level], marker + "-")
    place = (N_ACCOUNTS[-1], copies_alone[level].iloc[-1])
    look = {"va": "center", "color": line.get_color(), "xytext": (10, 0)}
    axes.annotate(level, place, textcoords="offset points", **look)
axes.set_xscale("log")
axes.set_xticks(N_ACCOUNTS, [f"{n}" for n in N_ACCOUNTS])
axes.minorticks_off()
axes.set_xlabel("accounts that copy real people")
axes.set_ylabel("the film rises by (stars)")
axes.set_title("One account does little, a hundred do all")
plt.show()

# %%
# What no account can do
# ----------------------
# Whatever one account rates, it raises the expected prediction by no more than a limit
# (:doc:`the formula </attacks>`). The smaller epsilon, the lower the limit; the price is that the
# prediction for so rare a film varies from fit to fit, without any attack.

spread = found["stars"].std().unstack().loc["nobody"].drop("no privacy")
mu = pd.Series({level: budgets[level].mu for level in spread.index})
one = pd.DataFrame({"whale": rise.loc["whale"], "1 copy": rise.loc["1 copy"]}).drop("no privacy")
one["limit"] = np.minimum(spread * np.sqrt(np.expm1(mu**2)), 4.0)
one["varies by itself by"] = spread
one.round(2)
