"""The programs of this package share remarks, progress, doubts, baselines and list measures."""

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

N_RANKED = 20
POPULAR = "most popular items (exact, not private)"

_DOUBTS = ("n_out_of_range", "all_rated", "large_delta")


def remark(text: str) -> None:
    """Write to the error output."""
    print(f"skdpmf: {text}", file=sys.stderr)


class Progress:
    """Callback of scikit-learn that counts rounds on the terminal; it sees no data.

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


def found_features(items: Any) -> Any:
    """Return the features that a table of items gives by default; None where it gives none."""
    from skdpmf.data import item_features  # heavy

    try:
        return item_features(items)
    except ValueError:
        return None


def used_features(features: Any) -> str:
    """Say which facts of the items a fit uses."""
    kinds = sorted({"years" if "year" in name else name.split("=")[0] for name in features})
    return (
        f"using {features.shape[1]} public features of the items ({', '.join(kinds)}): they must "
        "be known without these ratings"
    )


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


def least_liked(rating_range: tuple[float, float]) -> float:
    """Return the rating above which an item is relevant to its user: 3.5 on a scale of 1 to 5."""
    low, high = rating_range
    return float(low + 0.625 * (high - low))


def liked_entries(Y: Any, rating_range: tuple[float, float]) -> Any:
    """Keep the ratings of Y whose items are relevant to their users."""
    from skdpmf.data.bounding import keep_entries

    return keep_entries(Y, Y.data > least_liked(rating_range))


def list_measures(X: Any, relevant: Any, ranked: "np.ndarray") -> dict[str, float]:
    """Measure lists of N_RANKED items, by name of the measure.

    A catalogue of fewer items makes shorter lists, whose measures are those of N_RANKED places.
    """
    from skdpmf.evaluation import (
        catalogue_coverage_at_k,
        ndcg_at_k,
        novelty_at_k,
        recall_at_k,
    )
    from skdpmf.evaluation.metrics import average_precision_at_k, reciprocal_rank_at_k

    k = ranked.shape[1]
    return {
        f"recall@{N_RANKED}": recall_at_k(relevant, ranked, k),
        f"NDCG@{N_RANKED}": ndcg_at_k(relevant, ranked, k),
        f"MAP@{N_RANKED}": average_precision_at_k(relevant, ranked, k),
        f"MRR@{N_RANKED}": reciprocal_rank_at_k(relevant, ranked, k),
        "coverage": catalogue_coverage_at_k(X.shape[1], ranked, k),
        "novelty": novelty_at_k(X, ranked, k),
    }
