"""private_multi_task_ridge: ridge regressions of many tasks of unequal size, private by user."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from skdpmf.data.validation import as_rating_matrix, as_they_are
from skdpmf.estimators.contract import filled
from skdpmf.estimators.contract import parameters as check
from skdpmf.estimators.contract.parameters import warn_of_budget
from skdpmf.kernels.jit_and_threads import sized
from skdpmf.mechanisms import multi_task_ridge as solver
from skdpmf.privacy.budget import PrivacyBudget
from skdpmf.privacy.frame import framed
from skdpmf.privacy.plan import ReleasePlan
from skdpmf.privacy.statement import PrivacyStatement

_WEIGHTINGS = ("adaptive", "tail", "uniform")


@dataclass(frozen=True)
class MultiTaskRidge:
    """The release of `private_multi_task_ridge`.

    Attributes
    ----------
    coef : ndarray of shape (n_tasks, n_features)
        Coefficients theta_i: task i's prediction at features x is ``coef[i] @ x``.
    plan : ReleasePlan
        The releases as planned from public values.
    privacy_spent : PrivacyStatement
        Releases with their noise, their cost and their assumptions.
    """

    coef: np.ndarray
    plan: ReleasePlan
    privacy_spent: PrivacyStatement


@filled
def private_multi_task_ridge(
    X: Any,
    Y: Any,
    budget: PrivacyBudget,
    *,
    max_norm: float,
    max_value: float,
    alpha: float = 1.0,
    weighting: str = "adaptive",
    weight_exponent: float = 0.5,
    max_tasks_per_user: int | None = None,
    random_state: int | None = None,
    n_jobs: int | None = None,
) -> MultiTaskRidge:
    r"""Fit a ridge regression for each of many tasks, with differential privacy for whole users.

    User j contributes to some of the tasks, with features x_j and a target y_ij for each. Task i's
    coefficients minimise

    .. math:: \sum_j w_{ij} (y_{ij} - \langle x_j, \theta_i\rangle)^2 + \alpha |\theta_i|^2,
        \qquad \sum_i w_{ij}^2 \le 1 \text{ for every user } j.

    The weights share a user's influence among the user's tasks. Tasks with many users can do with
    less of it, so that rare ones suffer less from the noise. Released with noise are the
    task counts (where the weights need them), the weighted Gram matrices and the weighted
    right-hand sides; `skdpmf.mechanisms.multi_task_ridge` states and proves their sensitivities.

    Parameters
    ----------
    X : array-like of shape (n_users, n_features)
        Features of each user, the same for all of the user's tasks. No intercept is added: append
        a constant column for one. Vectors that are not finite count as 0.
    Y : {array-like, sparse matrix} of shape (n_users, n_tasks)
        Targets. Sparse: stored = observed, a stored 0 is the target 0. Dense: NaN = not observed.
        Several targets of one user for a task count as one, their mean.
    budget : PrivacyBudget
        Budget of the fit: epsilon, and delta > 0, for unit "user". With a ledger it is charged
        when the form of X and Y is checked, before anything is computed from them.
        ``PrivacyBudget.nonprivate()`` gives the exact weighted ridge regressions, without noise or
        clipping.
    max_norm : float
        Public bound on the Euclidean norm of a feature vector. Longer ones are shortened to it.
    max_value : float
        Public bound on the magnitude of a target. Others are clipped to it.
    alpha : float, default=1.0
        Penalty >= 0 on the coefficients. Mind that weights are at most 1, and about
        1 / sqrt(number of the user's tasks).
    weighting : {"adaptive", "tail", "uniform"}, default="adaptive"
        "adaptive": w_ij proportional to N_i^-weight_exponent, N_i the noisy count, scaled to the
        bound for every user. The baselines keep `max_tasks_per_user` tasks k of a user at weight
        1 / sqrt(k): "uniform" random ones, "tail" those of least noisy counts.
    weight_exponent : float, default=0.5
        Exponent mu >= 0 of the adaptive weights. 0 weighs all of a user's tasks alike, and then no
        counts are released. Unused by the baselines.
    max_tasks_per_user : int or None, default=None
        k: so many tasks of a user are kept, for "adaptive" random ones. None: all; the baselines
        need a number.
    {random_state, n_jobs}

    Returns
    -------
    MultiTaskRidge
        With ``coef``, ``plan`` and ``privacy_spent``.

    Raises
    ------
    TypeError
        If `budget` is not a PrivacyBudget.
    ValueError
        If another parameter is invalid or the budget cannot be planned for, or X and Y are no
        matrices of real numbers or do not fit together. What the rows hold raises and warns
        nothing.
    BudgetExceededError
        If the ledger has not enough left.

    See Also
    --------
    AdaptiveWeightALS : Learns the users' features as well, for ratings of items.

    Notes
    -----
    The numbers of rows and tasks are public. As in Algorithm 1 of the paper, but for the noise of
    Gram matrices (half the power off the diagonal, for the same guarantee), task counts (each user
    counts 1 / sqrt(number of the user's tasks) for a task, so that none need be dropped to bound
    their sensitivity), and the projection of noisy Gram matrices: eigenvalues are raised to twice
    the norm of the noise and not only to 0.

    References
    ----------
    W. Krichene, P. Jain, S. Song, M. Sundararajan, A. Thakurta, L. Zhang, "Multi-Task Differential
    Privacy Under Distribution Skew", ICML 2023.

    Examples
    --------
    >>> import numpy as np
    >>> from skdpmf import PrivacyBudget, private_multi_task_ridge
    >>> rng = np.random.default_rng(0)
    >>> X, theta = rng.uniform(-1, 1, (2000, 2)), np.array([[1.0, 0.5], [-0.5, 1.0]])
    >>> Y = X @ theta.T
    >>> Y[:1600, 1] = np.nan  # few users have the second task
    >>> fit = private_multi_task_ridge(
    ...     X, Y, PrivacyBudget(4.0, 1e-5), max_norm=1.5, max_value=1.5, random_state=0
    ... )
    >>> bool(abs(fit.coef - theta).max() < 0.3)
    True
    >>> [release.name for release in fit.plan.releases]
    ['task counts', 'Gram matrices', 'right-hand sides']
    """
    terms = max_norm, max_value, alpha, weighting, weight_exponent
    settings = _checked_settings(*terms, max_tasks_per_user)
    check.require_budget(budget)
    check.require_random_state(random_state)
    holds = n_jobs is None or (check.is_int(n_jobs) and n_jobs != 0)
    check.require(holds, "n_jobs", n_jobs, "None or an integer other than 0", "use the default")
    R, features = _observations(X, Y)
    shape, n_features = R.shape, features.shape[1]
    plan = solver.make_plan(budget, settings, shape[1], n_features)
    warn_of_budget(budget, shape[0])
    record = {
        "estimator": "private_multi_task_ridge",
        "params": {**vars(settings), "budget": budget},
        "shape": (*shape, n_features),
    }
    with framed(budget, plan, random_state, **record) as frame, sized(shape[0] * shape[1]):
        R, features = solver.bounded(R, features, settings, clip=plan.is_private)
        given = R, (as_they_are,), settings
        curator = frame.curator(*given, n_jobs=n_jobs, features=features)
        coef = solver.fit(curator, settings)
    return MultiTaskRidge(coef, plan, frame.statement())


def _checked_settings(
    max_norm: Any, max_value: Any, alpha: Any, weighting: Any, exponent: Any, cap: Any
) -> solver.Settings:
    for name, value in (("max_norm", max_norm), ("max_value", max_value)):
        holds = check.is_finite(value) and 1e-100 <= value <= 1e100
        remedy = "pass a public bound, which the data are clipped to"
        check.require(holds, name, value, "a number between 1e-100 and 1e100", remedy)
    for name, value in (("alpha", alpha), ("weight_exponent", exponent)):
        holds = check.is_finite(value) and value >= 0
        check.require(holds, name, value, "a finite number >= 0", "use the default")
    rule, remedy = "'adaptive', 'tail' or 'uniform'", "use 'adaptive' unless you compare baselines"
    check.require(weighting in _WEIGHTINGS, "weighting", weighting, rule, remedy)
    if cap is not None or weighting != "adaptive":
        rule = "an integer >= 1" if cap is not None else f"an integer for weighting={weighting!r}"
        remedy = "pass how many tasks of a user to keep"
        check.require(check.is_count(cap), "max_tasks_per_user", cap, rule, remedy)
    cap, bounds = None if cap is None else int(cap), (float(max_norm), float(max_value))
    return solver.Settings(*bounds, float(alpha), weighting, float(exponent), cap)


def _observations(X: Any, Y: Any) -> tuple[Any, np.ndarray]:
    """Check the shapes; one target a (user, task) pair, and features without infinities."""
    try:
        features = np.array(X, dtype=np.float64, order="C")
    except (TypeError, ValueError) as error:
        raise ValueError(f"X must be a dense matrix of real numbers: {error}") from error
    if features.ndim != 2 or not features.shape[1] or not np.all(np.shape(Y)):
        raise ValueError(
            f"X has shape {features.shape} and Y {np.shape(Y)}, and they must be matrices with a "
            "column: pass one row of features for each user."
        )
    features[~np.isfinite(features).all(axis=1)] = 0.0
    try:
        R = as_rating_matrix(Y)
    except ValueError as error:  # whose text calls it X
        raise ValueError(f"Y must be a matrix of real numbers, users x tasks: {error}") from error
    if len(features) != R.shape[0]:
        raise ValueError(
            f"X has {len(features)} rows and Y the shape {R.shape}: both must have one row for "
            "each user."
        )
    return R, features
