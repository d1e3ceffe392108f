"""
From ratings to a release that somebody can sign
================================================

Settings are chosen, a model is fitted, and somebody has to answer for it. This page does all of it
within one limit: a private search, a pipeline, an attack on the claim, and a card for the files.
"""

# %%
# One limit for search and fit
# ----------------------------
# The ledger keeps the limit of this data set. A search is one line in it, however many trials it
# draws; the rule "zcdp" takes searches with Gaussian noise beside fits.

import pandas as pd

from skdpmf import AdaptiveWeightALS, PrivacyBudget, PrivacyLedger
from skdpmf.data import make_ratings
from skdpmf.evaluation import PrivateSearchCV

N_USERS, N_ITEMS = 2000, 300
ratings = make_ratings(N_USERS, N_ITEMS, random_state=0, as_frame=True).matrix

ledger = PrivacyLedger("ratings.ledger", limit=PrivacyBudget(6.0, 1e-5), rule="zcdp")
budget = PrivacyBudget(1.8, 5e-6, ledger=ledger)
grid = {"solver__weight_exponent": [0.0, 0.25, 0.5]}
search = PrivateSearchCV(AdaptiveWeightALS(budget), grid, budget, n_trials=3).fit(ratings)
print(search.best_params_)

# %%
# The release
# -----------
# A pipeline bounds each user's contribution, keeps the films that are popular by noisy counts, and
# fits with the setting that was found.

from sklearn.pipeline import make_pipeline

from skdpmf.preprocessing import ContributionBounder, DPItemSelector

budget = PrivacyBudget(4.0, 5e-6, ledger=ledger)
counts, rest = budget.split([0.1, 0.9])
pipeline = make_pipeline(
    ContributionBounder(max_ratings_per_user=500),
    DPItemSelector(counts, n_items=0.8),
    AdaptiveWeightALS(rest).set_params(**search.best_params_),
).fit(ratings)

model = pipeline[-1].set_output(recommend="pandas")
model.recommend(pipeline[:-1].transform(ratings[:1]), n=5)

# %%
# The limit holds: a fit more is refused, before it sees a rating.

from skdpmf.exceptions import BudgetExceededError

try:
    AdaptiveWeightALS(budget).fit(ratings)
except BudgetExceededError as error:
    print(f"Refused; the largest that fits is epsilon {error.largest:.2f}.")
pd.DataFrame(ledger.report().entries)[["id", "status", "estimator", "epsilon"]].round(2)

# %%
# Attack the claim
# ----------------
# An audit fits the same estimator again and again, on neighbouring data, and measures how
# well it can distinguish them. It spends nothing here, because these ratings are made
# up. An attack that reaches more than is claimed would disprove the claim.

from skdpmf.evaluation import audit

claim = AdaptiveWeightALS(PrivacyBudget(4.0, 5e-6)).set_params(**search.best_params_)
report = audit(claim, ratings, n_neighbors=12, n_runs=20)
print(report)

# %%
import matplotlib.pyplot as plt

reached = {
    "claimed": report.epsilon,
    "by neighbours": report.epsilon_attained,
    "by repetition": report.epsilon_lower,
}
figure, axes = plt.subplots(figsize=(6.4, 3.2), layout="constrained")
bars = axes.barh(list(reached), reached.values(), color=["C3", "C0", "C0"])
axes.bar_label(bars, [f"{epsilon:.1f}" for epsilon in reached.values()], padding=4)
axes.invert_yaxis()
axes.margins(x=0.15)
axes.grid(visible=False)
axes.set_xlabel("epsilon")
axes.set_title("No attack disproves the claim")
plt.show()

# %%
# The card
# --------
# `PrivacyCard` lists what was released, with which noise, and under which conditions the guarantee
# holds. As Markdown it is for people, as JSON for programs.

from pathlib import Path

from skdpmf import PrivacyCard, privacy_spent

spent = privacy_spent([search, pipeline])
card = PrivacyCard.of(spent, model="items and factors of the pipeline")
Path("card.md").write_text(card.to_markdown(), encoding="utf-8")
Path("card.json").write_text(card.to_json(), encoding="utf-8")
print(spent.summary())
