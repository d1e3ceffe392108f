"""
A month of releases against one limit
=====================================

A shop publishes a new recommender every week. Each release reveals a little about each customer,
and the releases add up. A ledger holds the limit of the month: every fit is charged before it reads
a rating, and the one that would go over the limit is refused.
"""

# %%
# The limit, and how it is divided
# --------------------------------
# The ledger is a file beside the ratings. ``split`` divides the limit into four weeks and a
# reserve. The parts make up the whole exactly, and each has far more than its share of epsilon.

import pandas as pd

from skdpmf import AdaptiveWeightALS, PrivacyBudget, PrivacyLedger

LIMIT = PrivacyBudget(4.0, 1e-5)  # of the month, for each customer
ledger = PrivacyLedger("shop.ledger", limit=LIMIT)

month = PrivacyBudget(LIMIT.epsilon, LIMIT.delta, ledger=ledger)
shares = {"week 1": 0.22, "week 2": 0.22, "week 3": 0.22, "week 4": 0.22, "reserve": 0.12}
parts = month.split(shares)
pd.DataFrame({"share": shares, "epsilon": {name: parts[name].epsilon for name in parts}}).round(2)

# %%
# Four weeks
# ----------
# Each week's release is a scikit-learn pipeline. `ContributionBounder` keeps at most so many
# ratings of each customer, which costs nothing; `DPItemSelector` keeps the items that are popular
# by noisy counts; `AdaptiveWeightALS` learns from these. The two that spend share the week's part.

from sklearn.pipeline import make_pipeline

from skdpmf.data import make_ratings, ratings_to_matrix
from skdpmf.preprocessing import ContributionBounder, DPItemSelector

N_USERS, N_ITEMS = 2000, 300
shop = make_ratings(N_USERS, N_ITEMS, random_state=0, as_frame=True)
shop.ratings["week"] = pd.qcut(shop.ratings["time"], 4, labels=[1, 2, 3, 4]).astype(int)

weeks = []
for week in range(1, 5):
    so_far = shop.ratings[shop.ratings["week"] <= week].drop(columns="week")
    matrix = ratings_to_matrix(so_far, users=shop.matrix.users, items=shop.catalogue)
    counts, rest = parts[f"week {week}"].split([0.1, 0.9])
    model = make_pipeline(
        ContributionBounder(max_ratings_per_user=300),
        DPItemSelector(counts, n_items=0.8),
        AdaptiveWeightALS(rest),
    ).fit(matrix)
    weeks.append({"week": week, "ratings": matrix.nnz, "spent so far": ledger.report().epsilon})
pd.DataFrame(weeks).set_index("week").round(2)

# %%
# In week 4 the shop recommends to a customer:

recommender = model[-1].set_output(recommend="pandas")
recommender.recommend(model[:-1].transform(matrix[:1]), n=5)

# %%
# Where the month's budget went
# -----------------------------
# The picture is drawn without a look at the ratings.

import matplotlib.pyplot as plt

from skdpmf.evaluation import BudgetDisplay

display = BudgetDisplay.from_ledger(ledger)
display.ax_.set_title("Eight releases, and what is left", loc="left")
plt.show()

# %%
# One more is refused
# -------------------
# Somebody asks for a fit with more than the reserve. The ledger refuses before the fit has seen a
# rating, and names the largest budget that still fits. That one is granted, and the ledger is full.

from skdpmf.exceptions import BudgetExceededError

try:
    AdaptiveWeightALS(PrivacyBudget(2.0, LIMIT.delta, ledger=ledger)).fit(matrix)
except BudgetExceededError as error:
    print(f"Refused; the largest that fits is epsilon {error.largest:.2f}.")
    largest = PrivacyBudget(error.largest, LIMIT.delta, ledger=ledger)

AdaptiveWeightALS(largest).fit(matrix)
report = ledger.report()
print(f"Granted. {report.left / report.allowed.number:.0%} of the limit is left.")
pd.DataFrame(report.entries)[["id", "status", "estimator", "epsilon"]].round(2)
