"""What the programs of this package share: remarks, progress, doubts, baselines of a table."""

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

__all__ = ["Progress", "doubts", "mean_predictions", "remark"]

_DOUBTS = ("n_out_of_range", "all_rated", "large_delta")


def remark(text: str) -> None:
    """Write to the error output."""
    print(f"skdpmf: {text}", file=sys.stderr)


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


def doubts(X: Any, model: Any) -> list[str]:
    """Return what seems wrong with the ratings for a fit, before a budget is spent on it.

    More than half of them outside of the scale is no doubt but an error. All is for the curator.
    """
    from skdpmf.data import validate_ratings

    report = validate_ratings(X, model)
    if 2 * report.n_out_of_range > report.n_ratings:
        zeros = f", {report.n_zeros} of them 0" if report.n_zeros else ""
        low, high = model.rating_range
        raise ValueError(
            f"rating_range=({low:g}, {high:g}) must be the scale of the ratings, and "
            f"{report.n_out_of_range} of {report.n_ratings} lie outside{zeros}: pass the scale by "
            "--rating-range, and leave unknown ratings out. Nothing was spent."
        )
    problems = report.problems
    return [problems[name] for name in _DOUBTS if name in problems]


def mean_predictions(X: Any, Y: Any) -> "dict[str, np.ndarray]":
    """Predict Y's entries by means of the known ratings X, by name of the prediction."""
    import numpy as np

    n, total = np.diff(X.indptr), np.asarray(X.sum(axis=1)).ravel()
    mean = X.data.mean()
    own = np.where(n > 0, total / np.maximum(n, 1), mean)
    return {
        "global mean (exact, not private)": np.full(Y.nnz, mean),
        "each user's own mean (local, costs nothing)": np.repeat(own, np.diff(Y.indptr)),
    }
