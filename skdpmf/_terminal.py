"""What the programs of this package share: progress, and the baselines of a rating table."""

import sys
from typing import Any

import numpy as np

__all__ = ["Progress", "mean_predictions"]


class Progress:
    """scikit-learn callback that counts rounds on the terminal; it sees no data.

    Parameters
    ----------
    total : int
        Rounds that the fit will announce.
    """

    def __init__(self, total: int) -> None:
        self.total, self.done = total, 0

    def setup(self, estimator: Any, context: Any) -> None:
        """Start a fit."""
        self.done = 0

    def teardown(self, estimator: Any, context: Any) -> None:
        """End a fit."""
        print(file=sys.stderr)

    def on_fit_task_begin(self, estimator: Any, context: Any, **_: Any) -> None:
        """Begin a round: nothing to show."""

    def on_fit_task_end(self, estimator: Any, context: Any, **_: Any) -> None:
        """Show the round that ended."""
        if self.done < self.total:
            self.done += 1
            bar = "#" * (30 * self.done // self.total)
            print(f"\r  [{bar:<30}] round {self.done}/{self.total}", end="", file=sys.stderr)


def mean_predictions(X: Any, Y: Any) -> dict[str, np.ndarray]:
    """Predict Y's entries by means of the known ratings X, by name of the prediction."""
    n, total = np.diff(X.indptr), np.asarray(X.sum(axis=1)).ravel()
    mean = X.data.mean()
    own = np.where(n > 0, total / np.maximum(n, 1), mean)
    return {
        "global mean (exact, not private)": np.full(Y.nnz, mean),
        "each user's own mean (local, costs nothing)": np.repeat(own, np.diff(Y.indptr)),
    }
