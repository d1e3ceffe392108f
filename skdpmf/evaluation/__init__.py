"""Metrics, splits, (user, item) -> rating, what fits have spent, private search and audits.

Everything here is the curator's: it reads exact ratings, and no figure that it returns is private.
But the winner of `PrivateSearchCV` is, and `privacy_spent` touches no data.
"""

from skdpmf.evaluation.audit import audit
from skdpmf.evaluation.displays import BudgetDisplay, PrivacyUtilityDisplay
from skdpmf.evaluation.metrics import (
    bootstrap_interval,
    by_popularity,
    catalogue_coverage_at_k,
    intra_list_diversity_at_k,
    ndcg_at_k,
    novelty_at_k,
    popularity,
    precision_at_k,
    recall_at_k,
    rmse,
)
from skdpmf.evaluation.private_search import PrivateSearchCV
from skdpmf.evaluation.regressor import RatingRegressor
from skdpmf.evaluation.scorers import recommender_scorer
from skdpmf.evaluation.spending import privacy_spent, recommender_of
from skdpmf.evaluation.splits import (
    leave_one_out,
    rolling_folds,
    split_ratings,
    split_table,
    split_users,
)

__all__ = ["BudgetDisplay", "PrivacyUtilityDisplay"]
__all__ += ["PrivateSearchCV", "RatingRegressor", "audit", "bootstrap_interval", "by_popularity"]
__all__ += ["catalogue_coverage_at_k", "intra_list_diversity_at_k", "leave_one_out", "ndcg_at_k"]
__all__ += ["novelty_at_k", "popularity", "precision_at_k", "privacy_spent", "recall_at_k"]
__all__ += ["recommender_of", "recommender_scorer", "rmse", "rolling_folds", "split_ratings"]
__all__ += ["split_table", "split_users"]
