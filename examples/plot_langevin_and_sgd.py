"""
Langevin dynamics does not overfit
==================================

Stochastic gradient descent goes on to fit its training ratings more closely, and after some rounds
it predicts others worse. Does the same happen to Langevin dynamics, which adds noise to such steps?
No: it walks around among likely models, and the average of their predictions stays good.
"""

# %%
# Gradient descent, round by round
# --------------------------------
# With ``warm_start`` each ``fit`` goes on where the last one ended. The penalty is weak: descent
# is free to overfit.

from skdpmf import CacheSGDFactorizer
from skdpmf.data import make_ratings
from skdpmf.evaluation import rmse, split_ratings

ROUNDS = [1, 2, 4, 8, 16, 32, 64, 128, 256]
N_COMPONENTS = 16

X, Y = split_ratings(make_ratings(2000, 300, random_state=0), random_state=0)


def errors(model):
    return {
        "training": rmse(X, model.predict_entries(X, X)),
        "hidden": rmse(Y, model.predict_entries(X, Y)),
    }


descent = CacheSGDFactorizer(
    N_COMPONENTS,
    learning_rate=0.03,
    learning_rate_decay=1.0,
    alpha=0.005,
    random_state=0,
    warm_start=True,
)
found, done = {}, 0
for n_rounds in ROUNDS:
    descent.set_params(max_iter=n_rounds - done).fit(X)
    found["gradient descent", n_rounds], done = errors(descent), n_rounds

# %%
# Langevin dynamics
# -----------------
# Without privacy, ``PosteriorDraw`` returns the last model of the walk, or the average of the last
# ``n_draws``: here of its second half.

from skdpmf import DPMFSampler, PosteriorDraw, PrivacyBudget


def langevin(n_rounds, n_draws):
    walk = PosteriorDraw(sampler="sgld", step_size=16.0, n_draws=n_draws)
    return DPMFSampler(
        PrivacyBudget.nonprivate(),
        guarantee=walk,
        n_components=N_COMPONENTS,
        max_iter=n_rounds,
        random_state=0,
    ).fit(X)


for n_rounds in ROUNDS:
    found["Langevin, one draw", n_rounds] = errors(langevin(n_rounds, 1))
    found["Langevin, average", n_rounds] = errors(langevin(n_rounds, (n_rounds + 1) // 2))

# %%
# Errors of both
# --------------
# On hidden ratings descent is best after two rounds and then gets worse and worse. A single draw
# stays as good as it was, and the average is better than any draw.

import pandas as pd

table = pd.DataFrame(found).T.unstack(level=0)
table["hidden"].round(3)

# %%
# On the ratings that they were trained on, descent has by far the smallest error:

table["training"].round(3)

# %%
import matplotlib.pyplot as plt

figure, axes = plt.subplots(layout="constrained")
for name, marker in zip(table["hidden"], "os^", strict=True):
    curve = table["hidden", name]
    (line,) = axes.plot(curve, marker + "-")
    look = {"va": "center", "color": line.get_color(), "xytext": (10, 0)}
    place = (curve.index[-1], curve.iloc[-1])
    axes.annotate(name, place, textcoords="offset points", **look)
axes.set_xscale("log", base=2)
axes.set_xlabel("rounds over the ratings")
axes.set_ylabel("error on hidden ratings (RMSE)")
axes.set_title("Only gradient descent overfits")
plt.show()
