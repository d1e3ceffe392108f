"""
How large must a table of random numbers be?
============================================

Langevin dynamics needs a normal number for each step of each factor. Liu, Wang and Smola (2015)
draw a table of them once, and read it from random places. How large must it be? The error of the
predictions cannot answer: it is the same with sixteen numbers as with exact noise.
"""

# %%
# Tables of growing size
# ----------------------
# Without privacy, ``PosteriorDraw`` can read its noise from a table. (With a private budget it
# refuses to: whoever knows the table can distinguish the finitely many outputs for certain.)

import pandas as pd

from skdpmf import DPMFSampler, PosteriorDraw, PrivacyBudget
from skdpmf.data import make_ratings
from skdpmf.evaluation import rmse, split_ratings

N_ROUNDS, N_COMPONENTS = 60, 16
SIZES = [2**4, 2**6, 2**8, 2**10, 2**12, 2**14, 2**16]


def sampler(table_size):
    noise = {} if table_size is None else {"noise": "table", "table_size": table_size}
    return DPMFSampler(
        PrivacyBudget.nonprivate(),
        guarantee=PosteriorDraw(sampler="sgld", item_bias=False, step_size=4.0, **noise),
        n_components=N_COMPONENTS,
        max_iter=N_ROUNDS,
        random_state=0,
    )


X, Y = split_ratings(make_ratings(1000, 200, random_state=0), random_state=0)


def error(table_size):
    return rmse(Y, sampler(table_size).fit(X).predict_entries(X, Y))


# %%
# A sharper question
# ------------------
# Without ratings the chain has nothing to learn: it must return its prior, under which all factors
# are independent. We fit a catalogue of 4,000 items that nobody has rated but for a few, and take
# the largest correlation of any two factors.

import numpy as np

few = make_ratings(1, 4000, n_ratings=4, random_state=0)


def correlation(table_size):
    factors = sampler(table_size).fit(few).components_
    return np.abs(np.corrcoef(factors) - np.eye(N_COMPONENTS)).max()


sizes = [*SIZES, None]  # None: exact noise
results = pd.DataFrame(
    {
        "test error": [error(size) for size in sizes],
        "largest correlation": [correlation(size) for size in sizes],
    },
    index=pd.Index([*map(str, SIZES), "exact noise"], name="table"),
)
results.round(3)

# %%
# The error sees nothing. The correlation does: numbers that lie side by side in a small table are
# the noise of the same factors again and again. From some ten thousand numbers on, this test sees
# no difference from exact noise either; the default table has 2^18.

import matplotlib.pyplot as plt

found, exact = results["largest correlation"].iloc[:-1], results["largest correlation"].iloc[-1]
figure, axes = plt.subplots(layout="constrained")
axes.plot(SIZES, found, "o-")
axes.annotate("table", (SIZES[1], found.iloc[1]), (8, 8), textcoords="offset points", color="C0")
axes.axhline(exact, color="#666666", linestyle="--")
axes.annotate("exact noise", (SIZES[0], exact), (0, -18), textcoords="offset points")
axes.set_ylim(bottom=-0.04)
axes.set_xscale("log", base=2)
axes.set_xlabel("numbers in the table")
axes.set_ylabel("largest correlation of two factors")
axes.set_title("Small tables tie factors together")
plt.show()
