"""
One noisy bit a round: what do the devices really learn?
========================================================

In a protocol of Shin, Kim, Shin and Xiao (2018) no server is trusted: in every round each device
sends one random bit about its gradient. The more rounds, the smaller the error of the
recommendations. Is this the work of the bits? No: without any bit the error falls as well.
"""

# %%
# The protocol
# ------------
# The server keeps item factors V, and each device its ratings and its user factors u. In a round
# a device picks a random entry of its gradient for V and sends its sign, which is wrong with a
# probability of nearly one half. The server moves V by the mean of all bits, and every device moves
# its own u. With epsilon = 0.1 over k rounds, each bit has epsilon / k.

import numpy as np

from skdpmf.data import make_ratings
from skdpmf.evaluation import rmse, split_ratings

N_USERS, N_ITEMS, N_COMPONENTS = 2000, 300, 15
EPSILON = 0.1

X, Y = split_ratings(make_ratings(N_USERS, N_ITEMS, random_state=0), random_state=0)
ratings = X.toarray()
rated = ratings > 0.0
n_rated = rated.sum(axis=1, keepdims=True)


def protocol(n_rounds, step):
    rng = np.random.default_rng(0)
    U = np.abs(rng.normal(0.0, 0.3, (N_USERS, N_COMPONENTS)))
    V = np.abs(rng.normal(0.0, 0.3, (N_ITEMS, N_COMPONENTS)))
    contrast = np.tanh(EPSILON / n_rounds / 2.0)  # P(the sign is right) - P(it is wrong)
    for _ in range(n_rounds):
        errors = rated * (ratings - U @ V.T) / n_rated
        item = rng.integers(N_ITEMS, size=N_USERS)
        factor = rng.integers(N_COMPONENTS, size=N_USERS)
        users = np.arange(N_USERS)
        entry = np.clip(2.0 * errors[users, item] * U[users, factor], -1.0, 1.0)
        bits = np.where(rng.random(N_USERS) < 0.5 + 0.5 * contrast * entry, 1.0, -1.0)
        sums = np.zeros_like(V)
        np.add.at(sums, (item, factor), bits)
        U += 0.06 * errors @ V
        V += step * sums * V.size / (N_USERS * contrast)
    return rmse(Y.data, (U @ V.T)[Y.nonzero()])


# %%
# More rounds, smaller errors
# ---------------------------
# The step is small, because the mean of so noisy bits is nearly all noise. With a step of 0 the
# server does not use the bits at all.

import pandas as pd

ROUNDS = [1, 2, 5, 10, 20, 50]
errors = pd.DataFrame(
    {
        "with the bits": [protocol(k, step=1e-5) for k in ROUNDS],
        "without any bit": [protocol(k, step=0.0) for k in ROUNDS],
    },
    index=pd.Index(ROUNDS, name="rounds"),
)
errors.round(3)

# %%
# Both columns fall alike, and at last the noise of the bits does harm. The error falls because the
# factors begin near 0: each device finds out at home, from its own ratings, that ratings are not.
#
# Two simple rivals
# -----------------
# One number for everybody needs no rounds at all. ``LocalDPGDDR`` spends the whole epsilon of each
# device on one report, leaves out what does not rise above the noise, and uses a user's own mean,
# which never leaves the device.

from skdpmf import LocalDPGDDR, PrivacyBudget

constant = rmse(Y.data, np.full(Y.nnz, X.data.mean()))
model = LocalDPGDDR(PrivacyBudget(EPSILON), random_state=0).fit(X)
report = rmse(Y, model.predict_entries(X, Y))
print(f"the mean rating for everybody: {constant:.3f}, LocalDPGDDR: {report:.3f}")

# %%
import matplotlib.pyplot as plt

figure, axes = plt.subplots(layout="constrained")
axes.plot(errors["without any bit"], linewidth=9.0, alpha=0.4)
axes.plot(errors["with the bits"], "o-")
names = "without any bit (band)\nand with the bits (points)"
axes.annotate(names, (ROUNDS[1], errors.iloc[1, 0]), (16, 4), textcoords="offset points")
for name, level in {"one number for all": constant, "LocalDPGDDR": report}.items():
    axes.axhline(level, color="#666666", linestyle="--")
    place = "bottom" if level == constant else "top"
    axes.text(ROUNDS[0], level, name, va=place, color="#666666")
axes.margins(y=0.12)
axes.set_xscale("log")
axes.set_xticks(ROUNDS, [f"{k}" for k in ROUNDS])
axes.minorticks_off()
axes.set_xlabel("rounds, ε = 0.1 over all of them")
axes.set_ylabel("error on hidden ratings (RMSE)")
axes.set_title("The error falls without any bit")
plt.show()
