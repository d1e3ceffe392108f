"""
Local privacy: nobody is trusted
================================

A company that promises not to look may be hacked, sold or ordered to look. Under *local* privacy
there is nothing to look at: all that ever leaves a device is one randomised report. This page
follows the report from the device to an attacker, to the server, and back to the user.
"""

# %%
# What a device sends
# -------------------
# Ann and Bob have opposite tastes in twenty films, the hardest case to hide. The server announces
# the terms, and each device answers with one vector.

import numpy as np
import pandas as pd

from skdpmf import AdaptiveWeightALS, LocalDPGDDR, PrivacyBudget
from skdpmf.local import LocalAggregator, LocalDevice

EPSILON = 4.0
N_FILMS = 20
ann = range(10), [5, 4, 5, 4, 5, 1, 2, 1, 1, 2]  # films, stars
bob = range(10, 20), [1, 2, 1, 1, 2, 5, 4, 5, 4, 5]
terms = LocalAggregator(N_FILMS, (1.0, 5.0), EPSILON).announcement


def report(person):
    device = LocalDevice(*person, n_items=N_FILMS, rating_range=(1.0, 5.0), epsilon=EPSILON)
    return np.asarray(device.report(terms).payload, dtype=float)


report(ann)[:4].astype(int)  # nothing that resembles a rating

# %%
# What an attacker sees
# ---------------------
# The attacker catches one report and asks: Ann or Bob? Anybody can run devices with their ratings
# to learn what such reports look like. Epsilon bounds how often the answer is right, and a detail,
# such as whether Ann rated her first film, is nearly as hard to guess as a coin.

N_GUESSES = 300
learnt = [np.mean([report(person) for _ in range(N_GUESSES)], axis=0) for person in (ann, bob)]
direction, middle = learnt[0] - learnt[1], (learnt[0] + learnt[1]) / 2

from_ann, from_bob = (np.array([report(person) for _ in range(N_GUESSES)]) for person in (ann, bob))
like_ann, like_bob = ((sent - middle) @ direction for sent in (from_ann, from_bob))
right = {
    "did Ann rate film 0?": np.mean([from_ann[:, 0] > 0, from_bob[:, 0] < 0]),
    "Ann or Bob?": np.mean([like_ann > 0, like_bob < 0]),
    "no attacker is better than": 1 / (1 + np.exp(-EPSILON)),
}
pd.Series(right, name="right").map("{:.1%}".format).to_frame()

# %%
# What the server learns
# ----------------------
# In the sum of many reports most of the noise cancels: the server learns how well each film is
# liked, and no person. Each point is a film.

import matplotlib.pyplot as plt

from skdpmf.data import make_ratings
from skdpmf.evaluation import rmse, split_ratings

N_USERS, N_ITEMS = 20_000, 60
made_up = make_ratings(N_USERS, N_ITEMS, random_state=0, as_frame=True)
known, hidden = split_ratings(made_up.matrix, random_state=0)
model = LocalDPGDDR(PrivacyBudget(EPSILON)).fit(known)
exact = LocalDPGDDR(PrivacyBudget.nonprivate()).fit(known)

figure, axes = plt.subplots(figsize=(4.6, 4.2), layout="constrained")
axes.plot(exact.item_means_, model.item_means_, "o", alpha=0.7)
axes.axline((3.6, 3.6), slope=1, color="#666666", linewidth=1.5)
axes.set(xlabel="mean rating of a film", ylabel="as the server learns it")
axes.set_title("Devices are noisy, sums are not")
plt.show()

# %%
# What a user sees
# ----------------
# The device takes what the server has learnt, adds its owner's ratings and recommends.

model.set_output(recommend="pandas").recommend(known[:1], n=5)

# %%
# What it costs
# -------------
# A trusted server adds noise once, to the sum, instead of once on every device. Reports that
# predict worse than each user's own mean are not worth sending. :doc:`Devices and their server
# </auto_examples/local_devices>` shows reports on their way.

EPSILONS = [1, 2, 4, 8]
errors = {"nobody is trusted": [], "a server is trusted": []}
for epsilon in EPSILONS:
    local = LocalDPGDDR(PrivacyBudget(epsilon)).fit(known)
    # the same promise as the devices': for any two histories of a user
    central = AdaptiveWeightALS(PrivacyBudget(epsilon, 1e-5, neighbors="replace")).fit(known)
    for row, fit in zip(errors.values(), (local, central), strict=True):
        row.append(rmse(hidden, fit.predict_entries(known, hidden)))

X, Y = known.X, hidden.X
own_mean = X.sum(axis=1) / np.maximum(np.diff(X.indptr), 1)
baseline = rmse(Y.data, np.repeat(own_mean, np.diff(Y.indptr)))
errors = pd.DataFrame(errors, EPSILONS)

figure, axes = plt.subplots(layout="constrained")
for color, name in zip(("C0", "C1"), errors, strict=True):
    axes.plot(EPSILONS, errors[name], "o-", color=color)
    start = EPSILONS[0], errors[name].iloc[0]
    axes.annotate(name, start, (10, 4), textcoords="offset points", color=color)
axes.axhline(baseline, color="#666666", linewidth=1.5)
axes.annotate("each user's own mean", (EPSILONS[0], baseline), (10, 5), textcoords="offset points")
axes.set_xscale("log")
axes.set_xticks(EPSILONS, EPSILONS)
axes.minorticks_off()
axes.set(xlabel="epsilon", ylabel="error (RMSE, stars)")
axes.set_title("Trusting nobody costs accuracy")
plt.show()
