"""A non-private recommender with the contract's methods: shrunk item means plus user offsets."""

import numpy as np
from scipy import sparse
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted, validate_data

from skdpmf.data.validation import as_rating_matrix


class MeansRecommender(BaseEstimator):
    """prediction(u, i) = m_i + mean_{j rated by u}(r_uj - m_j), shrunk by 1 / epsilon, clipped."""

    def __init__(self, budget=None, *, rating_range=(1.0, 5.0)):
        self.budget = budget
        self.rating_range = rating_range

    def _rows(self, X, *, reset=False):
        X = validate_data(
            self,
            X,
            accept_sparse=("csr", "csc", "coo"),
            ensure_all_finite="allow-nan",
            dtype=np.float64,
            reset=reset,
        )
        return as_rating_matrix(X, rating_range=self.rating_range)

    def _shrink(self):
        return 1.0 if self.budget is None else 1.0 / self.budget.epsilon

    def fit(self, X, y=None):
        R = self._rows(X, reset=True)
        centre = sum(self.rating_range or (0.0, 0.0)) / 2
        sums = np.bincount(R.indices, weights=R.data - centre, minlength=R.shape[1])
        counts = np.bincount(R.indices, minlength=R.shape[1])
        self.item_means_ = centre + sums / (counts + self._shrink())
        return self

    def _scores(self, X):
        check_is_fitted(self, "item_means_")
        R = self._rows(X)
        rows = np.repeat(np.arange(R.shape[0]), np.diff(R.indptr))
        residual = R.data - self.item_means_[R.indices]
        offset = np.bincount(rows, weights=residual, minlength=R.shape[0])
        return R, offset / (np.diff(R.indptr) + self._shrink())

    def predict_entries(self, X, where):
        _, offset = self._scores(X)
        where = sparse.csr_array(where)
        rows = np.repeat(np.arange(where.shape[0]), np.diff(where.indptr))
        data = self.item_means_[where.indices] + offset[rows]
        if self.rating_range is not None:
            data = np.clip(data, *self.rating_range)
        return sparse.csr_array((data, where.indices, where.indptr), shape=where.shape)

    def recommend(self, X, n=10, exclude_seen=True):
        R, offset = self._scores(X)
        scores = self.item_means_ + offset[:, None]
        if exclude_seen:
            scores[R.nonzero()] = -np.inf
        items = np.argsort(-scores, axis=1, kind="stable")[:, :n]
        scores = np.take_along_axis(scores, items, axis=1)
        return np.where(np.isneginf(scores), -1, items), scores
