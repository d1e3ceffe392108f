r"""Alternating minimisation for clicks whose item step is weighted, clipped, noised descent.

The model, the user step and the first releases are those of `skdpmf.mechanisms.als.clicks`
(notation there), the descent is that of `skdpmf.mechanisms.als.dpsgd`. After the user step and
the release of K, the Gram matrix of all users, a round takes n_inner_steps steps with the users
held fixed. Each makes one release, of all items' gradients together,

    G_j = sum_i f_i w_ij c_ij e_ij x_i,     e_ij = 1 - b_j - x_i . v_j,
    f_i = min(1, C / |(w_ij c_ij e_ij x_i)_j|),

and moves v_j <- v_j + h_t B_j^-1 (G_j + noise - a0 s_j K v_j - L_j v_j).

**Sensitivity.** User i's part of the stacked G_j is the matrix f_i (w_ij c_ij e_ij x_i)_j, whose
norm is at most C by the choice of f_i, whatever the clicks, the weights and v_j are. The gravity
term a0 s_j K v_j has no other access to the users than the released K.

**After the release** everything is a function of released values. The curvature B_j is taken to be
(M_j / n + a0 s_j) K + L_j I, M_j the item's expected sum of weights and n the released number of
users: as if those who click were like all. L_j is weight decay towards 0, stronger for items whose
scores are small anyway or whose gradients are noisy. Steps h_t fall like 2/t.

Without privacy there is neither clip nor noise, B_j is an exact bound on the curvature, and
h_t = 1: every step lowers the weighted loss, and enough of them reach the ridge regression of
`dpals_clicks`.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skdpmf.mechanisms.als.clicks import (
    CLIP,
    COUNTS,
    EVERYBODY,
    ITEM_RIDGE,
    START,
    ClickFit,
    ClickModel,
    Settings,
    first_releases,
    plan_of,
)
from skdpmf.mechanisms.als.dpsgd import product, times_squares
from skdpmf.privacy import sums
from skdpmf.privacy.budget import PrivacyBudget
from skdpmf.privacy.curator import Curator
from skdpmf.privacy.plan import Release, ReleasePlan
from skdpmf.privacy.sensitivity import sum_sensitivity
from skdpmf.privacy.users import PerUser

__all__ = ["fit", "make_plan"]

GRADIENTS = "gradients"
SHARES = {COUNTS: 0.06, START: 0.06, EVERYBODY: 0.04, GRADIENTS: 0.84}
STEP, LATE = 0.5, 2.0  # h_t = STEP / (1 + t STEP / LATE)
OTHER = 0.2  # curvature of every direction
FACTOR_VARIANCE = 0.3  # of v_j, relative to its squared score for everybody, divided by alpha


def make_plan(budget: PrivacyBudget, settings: Settings, n_items: int) -> ReleasePlan:
    """Plan the releases of a fit, which spend the whole budget, from public values alone."""
    near: dict[str, Any] = {"neighbors": budget.neighbors, "unit": budget.unit}
    gradients = Release(
        GRADIENTS,
        "sum over users of w e x for each item, clipped per user, every inner step of every round",
        (n_items, settings.n_components),
        sum_sensitivity(1.0, CLIP, **near),
        count=settings.max_iter * settings.n_inner_steps,
    )
    return plan_of(budget, [*first_releases(budget, settings, n_items), gradients], SHARES)


def fit(curator: Curator, settings: Settings, *, rounds: Iterable[int]) -> ClickModel:
    """Make the plan's releases in their order and return the model they give."""
    return _Fit(curator, settings).run(rounds)


class _Fit(ClickFit):
    def item_half(self, t: int) -> None:
        V, n_steps = self.factors, self.settings.n_inner_steps
        unobserved = self.settings.unobserved_weight * self.click_weight
        decay = self._decay(unobserved, V.shape[1])
        X = self.user_half(V)
        K = self.everybody(X, t)
        if self.private:
            like_all = K / np.trace(K)
            direction = np.linalg.inv(like_all + OTHER * np.eye(len(K)))
            size = 1.0 / (self.mass + unobserved * np.trace(K) + decay)
        else:
            weight = self.weighted.map(times_squares, self.weight, X)
            total = sums.item_scalars(self.weighted, weight, clip=1.0, grid=self.grid)
            own = total.without_privacy()
            direction = np.eye(len(K))
            size = 1.0 / (own + unobserved * np.linalg.eigvalsh(K)[-1] + decay)
        for step in range(t * n_steps, (t + 1) * n_steps):
            pull = self.release(GRADIENTS, self.gradient(V, X), step)
            pull = pull - unobserved[:, None] * (V @ K) - decay[:, None] * V
            h = STEP / (1.0 + step * STEP / LATE) if self.private else 1.0
            V = V + h * size[:, None] * (pull @ direction)
        self.factors = V

    def gradient(self, V: NDArray[np.float64], X: PerUser) -> sums.BoundedSum:
        """G_j of the module's docstring."""
        terms = self.weighted.map(product, self.weight, self.residuals(V, X))
        return sums.item_vectors(self.weighted, terms, X, clip=CLIP, grid=self.grid)[0]

    def _decay(self, unobserved: NDArray[np.float64], rank: int) -> NDArray[np.float64]:
        """L_j: the fixed point of all steps is the posterior mean."""
        exact = self.settings.alpha * ITEM_RIDGE * self.click_weight
        if not self.private:
            return exact
        release = self.releases[GRADIENTS]
        curvature = self.mass + unobserved * self.n_users  # the sum over all directions
        score = self.mass / curvature  # that fits everybody alike
        precision = self.settings.alpha * rank / (FACTOR_VARIANCE * score**2)
        noise = release.noise_scale**2 / release.count
        return np.asarray(exact + precision * noise * rank / curvature)
