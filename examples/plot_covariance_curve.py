"""
Protect a rating, or a person?
==============================

A private covariance of films needs noise for all that one unit of privacy can change: one rating,
or all ratings of one person. What does it cost to protect people? With 20,000 of them, epsilon =
0.5 for a rating is nearly as good as no privacy, and a person needs an epsilon of 4 for that.
"""

# %%
# Two units of privacy
# --------------------
# ``unit`` says what neighbouring data sets differ by. McSherry and Mironov (2009) protect one
# rating. A whole history changes much more, so that the same epsilon means more noise.

import pandas as pd

from skdpmf import DPCovarianceRecommender, NoisyCovariance, PrivacyBudget
from skdpmf.data import make_ratings
from skdpmf.evaluation import rmse, split_ratings

SHAPE, EPSILONS = (20_000, 300), [0.1, 0.5, 1.0, 2.0, 4.0, 16.0]

X, Y = split_ratings(make_ratings(*SHAPE, random_state=0), random_state=0)


def error(model):
    return rmse(Y, model.predict_entries(X, Y))


units = {"one rating": "rating", "one person": "user"}
errors, covered = pd.DataFrame(index=EPSILONS), pd.DataFrame(index=EPSILONS)
for name, unit in units.items():
    budgets = [PrivacyBudget(epsilon, 1e-5, unit=unit) for epsilon in EPSILONS]
    models = [DPCovarianceRecommender(budget, random_state=0).fit(X) for budget in budgets]
    errors[name] = [error(model) for model in models]
    covered[name] = [model.covariance_items_.size for model in models]
errors.rename_axis("epsilon").round(3)

# %%
# Films that the noise would hide
# -------------------------------
# A covariance of pure noise would make predictions worse than the films' means alone. So the
# estimator leaves out films with too few ratings for the noise; if too few are left, it measures
# the means once more instead. The covariance has so many of the 300 films:

covered.rename_axis("epsilon")

# %%
# Between two limits
# ------------------
# Without privacy, means of the films alone (a share of 0 for the covariance) are the worse limit,
# and the covariance of all films is the better.

none = PrivacyBudget.nonprivate()
means = NoisyCovariance(shares=(0.0, 1.0, 0.0))
limits = {
    "means, no privacy": error(DPCovarianceRecommender(none, covariance=means).fit(X)),
    "no privacy": error(DPCovarianceRecommender(none).fit(X)),
}
pd.Series(limits).round(3)

# %%
import matplotlib.pyplot as plt

figure, axes = plt.subplots(layout="constrained")
for name, marker, place in zip(units, "os", ((6, 10), (8, 4)), strict=True):
    (line,) = axes.plot(errors[name], marker + "-")
    look = {"color": line.get_color(), "textcoords": "offset points"}
    axes.annotate(name, (EPSILONS[1], errors[name].iloc[1]), place, **look)
for name, level in limits.items():
    axes.axhline(level, color="#666666", linestyle="--", linewidth=1.5)
    place = "top" if name == "no privacy" else "bottom"
    axes.text(EPSILONS[-1], level, name, va=place, ha="right", color="#666666")
axes.margins(y=0.12)
axes.set_xscale("log")
axes.set_xticks(EPSILONS, [f"{epsilon:g}" for epsilon in EPSILONS])
axes.minorticks_off()
axes.set_xlabel("ε")
axes.set_ylabel("error on hidden ratings (RMSE)")
axes.set_title("A person needs more noise than a rating")
plt.show()
