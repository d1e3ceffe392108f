"""Private ridge regression of many tasks from weighted, noised sufficient statistics.

W. Krichene, P. Jain, S. Song, M. Sundararajan, A. Thakurta, L. Zhang, "Multi-Task Differential
Privacy Under Distribution Skew" (ICML 2023), Algorithm 1. User j has features x_j, the tasks
Omega_j, and a target y_ij for each of them, in units of public bounds and clipped to them, so that
|x_j| <= 1 and abs(y_ij) <= 1. Task i's coefficients minimise

    sum_j w_ij (y_ij - <x_j, theta_i>)^2 + alpha |theta_i|^2,    sum_{i in Omega_j} w_ij^2 <= 1,

and are computed from three releases, each a sum over users of a function of the user's own
observations and of what was released before:

    N_i = sum_j 1 / sqrt(|Omega_j|),    A_i = sum_j w_ij x_j x_j',    b_i = sum_j w_ij y_ij x_j.

Sensitivities, all tasks stacked. Adding or removing user j moves (the sums
have the proofs for replacing him)

- N by the norm of |Omega_j| entries 1 / sqrt(|Omega_j|), which is 1;
- A by sqrt(sum_i w_ij^2 |x_j|^4) <= 1 in Frobenius norm;
- b by sqrt(sum_i w_ij^2 y_ij^2 |x_j|^2) <= 1.

All terms are truncated towards zero, which raises no norm.

Weights (the paper's section 4): adaptive ones are w_ij ~ N_i^-mu, scaled to the bound for every
user; the paper's bound on the excess risk of ridge regression is least at mu = 1/2, that of merely
convex losses at 1/4. The baselines keep k tasks of a user at w_ij = 1 / sqrt(k): random ones, or
those of least N_i ("tail").

Solving is post-processing. The noisy A_i is projected onto {A >= 2 t I}, t = sqrt(2 d) s being the
norm that its noise alone (standard deviation s on the diagonal, s / sqrt(2) off it) has in many
dimensions; the paper's Algorithm 1 projects onto {A >= 0}. An eigenvalue above 2 t is at most twice
the true one, one below may be nothing but noise, and is not divided by. Without noise t = 0.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from skdpmf.mechanisms import common
from skdpmf.mechanisms.common import unpack_lower
from skdpmf.privacy.budget import PrivacyBudget
from skdpmf.privacy.clipped_sums import item_scalars, scalars_bound, shrink_to_ball
from skdpmf.privacy.curator_release import Curator
from skdpmf.privacy.other_sums import item_grams
from skdpmf.privacy.plan import Release, ReleasePlan
from skdpmf.privacy.sampler.grid import exact_grid
from skdpmf.privacy.users import PerUser, Rows, Users

COUNTS, GRAM, RHS = "task counts", "Gram matrices", "right-hand sides"
NOTE = "Features are in units of max_norm, targets in units of max_value."


@dataclass(frozen=True)
class Settings:
    """Public settings; `skdpmf.private_multi_task_ridge` explains them."""

    max_norm: float
    max_value: float
    alpha: float
    weighting: str
    weight_exponent: float
    max_tasks_per_user: int | None

    @property
    def counts_tasks(self) -> bool:
        """Whether the weights depend on noisy counts."""
        return self.weighting == "tail" or (
            self.weighting == "adaptive" and self.weight_exponent > 0
        )


def make_plan(
    budget: PrivacyBudget, settings: Settings, n_tasks: int, n_features: int
) -> ReleasePlan:
    """Plan the releases, which spend the whole budget, from public values alone."""
    near: dict[str, Any] = {"neighbors": budget.neighbors, "unit": budget.unit}
    words, shape = "for each task, sum over its users of ", (n_tasks, n_features)
    counts = words + "1 / sqrt(number of the user's tasks)"
    releases = [
        Release(COUNTS, counts, (n_tasks,), scalars_bound(1.0, signed=False, **near)),
        common.planned_gram(budget, GRAM, words + "w x x'", *shape),
        common.planned_vectors(budget, RHS, words + "w y x", *shape, bound=1.0),
    ]
    releases = releases if settings.counts_tasks else releases[1:]
    own = common.SHARE if settings.counts_tasks else 0.0
    shares = {GRAM: (1.0 - own) / 2.0, RHS: (1.0 - own) / 2.0} | ({COUNTS: own} if own else {})
    return ReleasePlan.from_shares(budget, releases, shares, notes=(NOTE,))


def bounded(R: Any, features: Any, settings: Settings, *, clip: bool) -> tuple[Any, Any]:
    """Targets and features in units of their bounds; clipped to them, but without privacy."""
    with np.errstate(over="ignore", invalid="ignore"):  # rows may hold anything
        x, y = features / settings.max_norm, R.data / settings.max_value
        if clip:
            length = np.linalg.norm(x, axis=1)[:, None]
            x = np.where(np.isfinite(length), x * shrink_to_ball(length, 1.0), 0.0)
            y = np.clip(y, -1.0, 1.0)
    return sp.csr_array((y, R.indices, R.indptr), shape=R.shape), x


def fit(curator: Curator, settings: Settings) -> NDArray[np.float64]:
    """Make the plan's releases in their order and return theta, (n_tasks, n_features).

    The curator is of the targets and features from `bounded`. Theta is in their own units.
    """
    grid = exact_grid(curator.n_rows, 1.0) if curator.private else 0.0
    kept, weight = _weigh(curator, settings, grid)
    target, x = kept.map(_targets), curator.features
    assert x is not None
    gram, rhs = item_grams(kept, weight, target, x, gram_clip=1.0, clip=1.0, grid=grid)
    scale = curator.releases[GRAM].noise_scale
    A, b = curator.release(GRAM, gram), curator.release(RHS, rhs)
    floor, ridge = 2.0 * scale * np.sqrt(2.0 * b.shape[1]), settings.alpha / settings.max_norm**2
    return _solve(A, b, floor, ridge) * (settings.max_value / settings.max_norm)


def _weigh(curator: Curator, settings: Settings, grid: float) -> tuple[Users, PerUser]:
    """Users with the kept entries, and weights of these."""
    cap, everything = settings.max_tasks_per_user, curator.users
    tau = None if settings.weighting == "tail" else cap
    kept = everything.keep(common.subset, tau, curator.slot_priorities("subset"))
    counts = np.ones(everything.n_items)
    if settings.counts_tasks:
        weights = kept.map(common.count_weights, "l2")
        total = item_scalars(kept, weights, clip=1.0, grid=grid, signed=False)
        counts = curator.release(COUNTS, total)
    if settings.weighting == "adaptive":
        # below its noise a count says no more than that: the paper raises counts by the noise
        least = max(curator.deviation(COUNTS), 1e-12) if settings.counts_tasks else 1.0
        counts = np.maximum(counts, least)
    return common.bounded_weights(everything, kept, counts, settings, cap)


# Maps of `Users`: values of each user alone


def _targets(rows: Rows) -> NDArray[np.float64]:
    return np.asarray(rows.data)


def _solve(gram: Any, rhs: Any, floor: float, ridge: float) -> NDArray[np.float64]:
    """(P(A_i) + ridge I)^+ b_i, P raising eigenvalues to the floor."""
    values, vectors = np.linalg.eigh(unpack_lower(gram))
    values = np.maximum(values, floor) + ridge
    # without noise and ridge, directions without observations get no coefficient
    rounding = 1e-12 * values[:, -1:]
    inverse = np.divide(1.0, values, out=np.zeros_like(values), where=values > rounding)
    along = np.einsum("ide,id->ie", vectors, rhs)
    return np.asarray(np.einsum("ide,ie->id", vectors, inverse * along))
