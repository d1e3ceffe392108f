"""Private alternating least squares for clicks, from weighted, noised sufficient statistics.

The model, the user step and the first releases are those of `skdpmf.mechanisms.als.clicks`
(notation there). After the user step, a round releases K, the Gram matrix of all users, and for
every item

    A_j = sum_i f_i w_ij c_ij x_i x_i',     g_j = sum_i f_i w_ij c_ij e_ij x_i,
    e_ij = 1 - b_j - x_i . v_j,             f_i = min(1, C / (|(w_ij c_ij e_ij)_j| |x_i|)).

**Sensitivity.** User i's part of the stacked A_j is f_i (w_ij c_ij x_i x_i')_j, of Frobenius norm
f_i |x_i|^2 sqrt(sum_j (w_ij c_ij)^2) <= 1. Of the stacked g_j it is f_i (w_ij c_ij e_ij x_i)_j, of
norm at most C by the choice of f_i, whatever the clicks, the weights and v_j are.

**After the release.** h_j = g_j + A_j v_j measures the right-hand side of the item's problem, and
all rounds are combined as in `skdpmf.mechanisms.als.item_update`, with A_j + a0 s_j K as the
curvature in the place of A_j. An item about which nothing is known but its popularity is taken to
be clicked by average users: its prior mean is the solution for A_j and h_j in proportion to its
mass, from their sums over all items, in which the noise averages out. Without privacy there is
neither clip nor prior mean, and a round is an exact sweep of weighted alternating least squares.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import linalg

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
from skdpmf.mechanisms.als.item_update import ItemPosterior, lift, unpack_lower
from skdpmf.privacy import sums
from skdpmf.privacy.budget import PrivacyBudget
from skdpmf.privacy.curator import Curator
from skdpmf.privacy.plan import Release, ReleasePlan
from skdpmf.privacy.sensitivity import gram_sensitivity, sum_sensitivity

__all__ = ["fit", "make_plan"]

GRAM, RHS = "Gram matrices", "right-hand sides"
SHARES = {COUNTS: 0.06, START: 0.06, EVERYBODY: 0.04, GRAM: 0.04, RHS: 0.8}
FACTOR_VARIANCE = 1.0  # of v_j around its prior mean, in squares of that, divided by alpha


def make_plan(budget: PrivacyBudget, settings: Settings, n_items: int) -> ReleasePlan:
    """Plan the releases of a fit, which spend the whole budget, from public values alone."""
    near: dict[str, Any] = {"neighbors": budget.neighbors, "unit": budget.unit}
    d, rounds = settings.n_components, settings.max_iter
    releases = [
        *first_releases(budget, settings, n_items),
        Release(
            GRAM,
            "sum over users of w x x' for each item, every round",
            (n_items, d * (d + 1) // 2),
            gram_sensitivity(1.0, 1.0, **near),
            count=rounds,
            layout="packed",
        ),
        Release(
            RHS,
            "sum over users of w e x for each item, every round",
            (n_items, d),
            sum_sensitivity(1.0, CLIP, **near),
            count=rounds,
        ),
    ]
    return plan_of(budget, releases, SHARES)


def fit(curator: Curator, settings: Settings, *, rounds: Iterable[int]) -> ClickModel:
    """Make the plan's releases in their order and return the model they give."""
    return _Fit(curator, settings).run(rounds)


class _Fit(ClickFit):
    def start(self) -> None:
        super().start()
        self.posterior = _Posterior(self, self.factors)

    def item_half(self, t: int) -> None:
        X = self.user_half(self.factors)
        K = self.everybody(X, t)
        residuals = self.residuals(self.factors, X)
        gram, rhs = sums.item_grams(
            *(self.weighted, self.weight, residuals, X), gram_clip=1.0, clip=CLIP, grid=self.grid
        )
        self.posterior.learn(self.release(GRAM, gram, t), self.release(RHS, rhs, t), K, self.n_jobs)
        self.factors = self.posterior.theta


class _Posterior(ItemPosterior):
    """The posterior of ratings, with the curvature and the prior mean of the module's docstring."""

    def __init__(self, run: ClickFit, V: NDArray[np.float64]) -> None:
        d, s = V.shape[1], run.settings
        releases = run.releases
        super().__init__(
            np.zeros(V.shape),
            np.eye(d) * ITEM_RIDGE * s.alpha,
            run.mass,
            run.click_weight,
            (releases[GRAM].noise_scale, releases[RHS].noise_scale),
        )
        self.unobserved = s.unobserved_weight * run.click_weight
        self.n_users, self.alpha, self.theta, self.K = run.n_users, s.alpha, V, np.eye(d)

    def learn(self, gram: Any, rhs: Any, K: NDArray[np.float64], n_jobs: int | None) -> None:
        """Take in one round's releases."""
        self.K = K
        if self.private:
            mass = self.mass.sum()
            pooled = lift(unpack_lower(gram.sum(axis=0) / mass))
            # clipped users count for less in A_j, and so do their unobserved items
            self.K = K * min(np.trace(pooled) * self.n_users / np.trace(K), 1.0)
            # of h_j = g_j + A_j v_j, with A_j = mass_j pooled: right in the sum over items
            average = (rhs.sum(axis=0) + pooled @ (self.mass @ self.theta)) / mass
            # (mass_j pooled + unobserved_j K)^-1 in the frame where both are diagonal
            values, frame = linalg.eigh(pooled, self.K)
            inverse = self.mass[:, None] / (np.outer(self.mass, values) + self.unobserved[:, None])
            self.prior = (inverse * (average @ frame)) @ frame.T
        self.update(gram, rhs, n_jobs)

    def _absorb(self, items: slice, A: Any, g: Any, spread: Any) -> None:
        h = g + np.einsum("jab,jb->ja", A, self.theta[items])
        C, L = A + self.unobserved[items, None, None] * self.K, self.prior_precision
        if self.private:
            Q = spread[:, None, None] * A + self.rhs_noise**2 * np.eye(len(self.K))
            gained = C @ np.linalg.solve(Q, np.concatenate((C, h[:, :, None]), axis=2))
            P, p = gained[:, :, :-1], gained[:, :, -1]
            prior = self.prior[items]
            variance = FACTOR_VARIANCE / self.alpha * np.mean(prior**2, axis=1) + 1e-12
            L, pull = np.eye(len(self.K)) / variance[:, None, None], prior / variance[:, None]
        else:
            P, p, pull = C / spread[:, None, None], h / spread[:, None], 0.0
        self.precision[items] = self.forgetting * self.precision[items] + P
        self.shift[items] = self.forgetting * self.shift[items] + p
        total, shift = self.precision[items] + L, self.shift[items] + pull
        self.theta[items] = np.linalg.solve(total, shift[:, :, None])[:, :, 0]
