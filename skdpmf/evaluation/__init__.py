"""Metrics, splits, (user, item) -> rating, what fits have spent, private search and audits.

Everything here is the curator's: it reads exact ratings, and no figure that it returns is private.
But the winner of `PrivateSearchCV` is, and `privacy_spent` touches no data.
"""

from skdpmf.evaluation.audit import AuditReport, audit
from skdpmf.evaluation.audit_display import AuditDisplay
from skdpmf.evaluation.budget_display import BudgetDisplay
from skdpmf.evaluation.convergence_display import ConvergenceDisplay
from skdpmf.evaluation.metrics import (
    average_precision_at_k,
    by_popularity,
    catalogue_coverage_at_k,
    hit_rate_at_k,
    mae,
    ndcg_at_k,
    novelty_at_k,
    popularity_buckets,
    recall_at_k,
    reciprocal_rank_at_k,
    rmse,
)
from skdpmf.evaluation.popularity_display import PopularityDisplay
from skdpmf.evaluation.privacy_utility_display import PrivacyUtilityDisplay
from skdpmf.evaluation.private_search import PrivateSearchCV
from skdpmf.evaluation.regressor import RatingRegressor
from skdpmf.evaluation.scorers import (
    average_precision_scorer,
    hit_rate_scorer,
    ndcg_scorer,
    recall_scorer,
    reciprocal_rank_scorer,
    rmse_scorer,
)
from skdpmf.evaluation.spending import privacy_spent
from skdpmf.evaluation.splits import leave_one_out, split_ratings, split_table, split_users

__all__ = [
    "AuditDisplay",
    "AuditReport",
    "BudgetDisplay",
    "ConvergenceDisplay",
    "PopularityDisplay",
    "PrivacyUtilityDisplay",
    "PrivateSearchCV",
    "RatingRegressor",
    "audit",
    "average_precision_at_k",
    "average_precision_scorer",
    "by_popularity",
    "catalogue_coverage_at_k",
    "hit_rate_at_k",
    "hit_rate_scorer",
    "leave_one_out",
    "mae",
    "ndcg_at_k",
    "ndcg_scorer",
    "novelty_at_k",
    "popularity_buckets",
    "privacy_spent",
    "recall_at_k",
    "recall_scorer",
    "reciprocal_rank_at_k",
    "reciprocal_rank_scorer",
    "rmse",
    "rmse_scorer",
    "split_ratings",
    "split_table",
    "split_users",
]
