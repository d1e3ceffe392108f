"""One trial of a private search: a fit, its exact score, its noisy score; and what is drawn from.

Scores are points of users, bounded so that one user moves their sum little; see
`skdpmf.books.search.score_sensitivity`.
"""

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
from scipy import sparse
from sklearn.model_selection import ParameterSampler

from skdpmf.books.search import SearchPlan
from skdpmf.data.bounding import keep_entries
from skdpmf.estimators.contract.parameters import require
from skdpmf.privacy.sampler.noise import exact_grid, truncate_to_grid
from skdpmf.privacy.sums import BoundedSum, user_scalars
from skdpmf.privacy.users import Rows, Users

__all__ = [
    "check_space",
    "check_template",
    "plan_of",
    "run_trial",
    "user_points",
    "without_content",
    "without_ratings",
]

_OWN = (
    "budget",
    "random_state",
    "rating_range",
    "feedback",
)  # set by the search, or one for all candidates


def run_trial(
    model: Any, train: Any, test: Any, y: Any, half: float, plan: SearchPlan
) -> tuple[Any, BoundedSum]:
    """Fit a candidate and return it with the sum of its users' points."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(train, y)
        predicted = model.predict_entries(train, test)
    budget, n_slots = plan.budget, max(test.shape[0], 1)
    users = Users(
        test,
        n_slots=n_slots,
        unit=budget.unit,
        neighbors=budget.neighbors,
        private=budget.is_private,
        n_jobs=None,
    )
    grid, norm = exact_grid(n_slots, half, degree=1), plan.score.norm
    points = users.map(_points, predicted, half)
    return model, user_scalars(users, points, clip=half, grid=grid, norm=norm)


def _points(rows: Rows, predicted: Any, half: float) -> np.ndarray:
    """Points of the users, as of `user_points`."""
    return user_points(predicted, rows.R, half)


def user_points(predicted: Any, held_out: Any, half: float) -> np.ndarray:
    """Return each user's points, B / 2 - mean of min(error^2, B) with B = 2 half.

    predicted (CSR of shape (n_users, n_items)): predictions at the positions of `held_out`;
    held_out (csr_array of the same shape): canonical ratings; half: B / 2. Returns (n_users,): in
    [-half, half], on a grid on which their sum is exact; 0 without held-out ratings. They are a
    function of the user's entries alone, to the bit. NaN counts as the largest error. Raises
    ValueError if there is not one prediction for each position.
    """
    predicted = sparse.csr_array(predicted)
    if not predicted.has_sorted_indices:
        predicted = predicted.sorted_indices()
    if predicted.shape != held_out.shape or predicted.nnz != held_out.nnz:
        raise ValueError(
            "predict_entries of the estimator must give one prediction for each stored position of "
            "`where`: a private search cannot score it."
        )
    largest = np.sqrt(2.0 * half)
    errors = np.clip(predicted.data - held_out.data, -largest, largest)
    losses = np.square(np.where(np.isnan(errors), largest, errors))
    counts = np.diff(held_out.indptr)
    rows = np.repeat(np.arange(counts.size), counts)
    sums = np.bincount(rows, weights=losses, minlength=counts.size)  # in the order of entries
    points = np.where(counts > 0, half - sums / np.maximum(counts, 1), 0.0)
    return truncate_to_grid(np.clip(points, -half, half), exact_grid(counts.size, half, degree=1))


def without_ratings(R: Any) -> Any:
    """Return an empty matrix of the shape of R."""
    return keep_entries(R, np.zeros(R.nnz, bool))


def without_content(y: Any) -> Any:
    """Return zeros of the length and type of a 1-D y, None for another one."""
    if y is None or sparse.issparse(y):
        return None
    y = np.asarray(y)
    return np.zeros(y.shape, y.dtype) if y.ndim == 1 else None


def plan_of(estimator: Any, shape: tuple[int | None, int]) -> Any:
    return estimator.plan(shape[1], shape[0])


def check_template(estimator: Any) -> dict[str, Any]:
    """Check the estimator of a search, and return its parameters."""
    known = estimator.get_params() if hasattr(estimator, "get_params") else {}
    methods = ("plan", "fit", "predict_entries")
    require(
        "budget" in known and all(hasattr(estimator, name) for name in methods),
        "estimator",
        estimator,
        "a private recommender: with the parameter budget and the methods plan, fit and "
        "predict_entries",
        "pass for example AdaptiveWeightALS(budget)",
    )
    require(
        known.get("feedback", "explicit") == "explicit",
        "estimator",
        estimator,
        "a recommender of ratings, as errors of ratings are compared",
        "use feedback='explicit'",
    )
    for name, value in known.items():
        holds = not (_is_exact(name) and value)
        rule = "False: the winner of a private search is private as a whole"
        require(holds, f"estimator's {name}", value, rule, "fit that estimator by itself for it")
    if getattr(estimator, "_skl_callbacks", None):
        raise ValueError(
            f"estimator={estimator!r} must have no callbacks: they would learn the number of "
            "trials, which must stay secret. Set none."
        )
    return known


def _is_exact(name: str) -> bool:
    """Whether a parameter asks for something outside of the guarantee."""
    return name.split("__")[-1].startswith("nonprivate_")


def check_space(space: Any, known: dict[str, Any]) -> None:
    """Check that candidates have parameters of the estimator, and none that the search sets."""
    spaces = [space] if isinstance(space, Mapping) else space
    try:
        names = [name for one in spaces for name in one]
        next(iter(ParameterSampler(space, 1, random_state=0)))
    except (TypeError, ValueError, AttributeError, StopIteration) as error:
        raise ValueError(
            f"param_distributions={space!r} must be a dict, or a list of dicts, from parameters "
            f"to lists or distributions ({error}): pass for example "
            '{"n_components": [8, 16]}.'
        ) from error
    for name in names:
        if name.split("__")[0] in _OWN:
            raise ValueError(
                f"param_distributions names {name!r}, which must be none of {_OWN}: the search "
                "sets budgets and randomness, and scores are comparable on one scale only."
            )
        if _is_exact(name):
            raise ValueError(
                f"param_distributions names {name!r}, which must be left out: it asks for exact "
                "statistics, and the winner of a private search is private as a whole. Fit the "
                "estimator by itself for them."
            )
        if name not in known:
            raise ValueError(
                f"param_distributions names {name!r}, which must be a parameter of the estimator: "
                f"choose among {sorted(known)}."
            )
