r"""Alternating minimisation whose item step is weighted, clipped, noised gradient descent.

Krichene et al., "Multi-Task Differential Privacy Under Distribution Skew" (ICML 2023), Algorithms
2 and 3: DPSGD, and AdaDPSGD with weights by popularity, in full batches.

Model, weights and user step are those of `skdpmf.mechanisms.als.ratings` (notation there),
but for the users' ridge, L = alpha TRAINING_RIDGE rank I, as no Gram matrix gives a frame. A round
solves all users, x_i and o_i, and then takes n_inner_steps steps on the items' vectors with
the users held fixed. Each step makes one release, of all items' gradients together,

    G_j = sum_i c_i w_ij e_ij phi_i,    e_ij = y_ij - o_i - phi_i . theta_j,
    c_i = min(1, C sqrt(1 + a^2) / |(w_ij e_ij phi_i)_j|),

and step t moves theta_j <- theta_j + h_t / (K_j + L_j) * (G_j + noise - L_j (theta_j - prior_j)).

**Sensitivity.** User i's contribution to the stacked (G_j)_j is the one matrix
c_i (w_ij e_ij phi_i)_j, a function of i's row and slot, of earlier releases and of public
constants, and 0 for an empty row. By the choice of c_i its Frobenius norm,
c_i |phi_i| sqrt(sum_j (w_ij e_ij)^2), is at most C sqrt(1 + a^2), whatever the ratings, the weights
and theta are. So the L2 sensitivity of a step is `sum_sensitivity` (1, C sqrt(1 + a^2)): that bound
to adding or removing a user, twice that to replacing one. The weights' own bound,
sum_j w_ij^2 <= 1, is not needed for it. Truncation to the grid only shrinks factors. Steps are
Gaussian releases, chosen adaptively: the mu^2 of max_iter * n_inner_steps of them add up exactly.

**After the release** everything is a function of released values. K_j is the noisy popularity times
a public guess of the users' second moments, so that one h_t suits popular and rare items alike. L_j
is weight decay: with P_j the prior's precision, s the noise of the average gradient and v w_j the
sampling error of a unit of curvature, the posterior mean is the fixed point for
L_j = P_j (s^2 / K_j + v w_j). Steps fall like 2/t, the rule for strongly convex losses: in units of
K_j the last iterate then is the average of all steps' estimates theta_j + G_j / K_j in which late
ones count more, step t about t (Lacoste-Julien, Schmidt, Bach, arXiv 1212.2002).

Without privacy there is neither clip nor noise, K_j is the exact bound sum_i w_ij |phi_i|^2 on the
curvature, and h_t = 1: every step lowers the weighted loss, and enough of them reach the weighted
ridge regression that the sufficient statistics give.

Batches are full. Users sampled by Poisson's law would need an accountant of sampled Gaussian
releases, which `skdpmf.privacy` does not have; without amplification a sample only adds noise.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skdpmf.mechanisms.als import ratings
from skdpmf.mechanisms.als.loop import Weighted
from skdpmf.mechanisms.als.ratings import (
    CLIP,
    ITEM_STATISTICS,
    OFFSET,
    START,
    RatingModel,
)
from skdpmf.mechanisms.item_means import joint_release as im
from skdpmf.privacy import sums
from skdpmf.privacy.budget import PrivacyBudget
from skdpmf.privacy.curator import Curator
from skdpmf.privacy.plan import Release, ReleasePlan
from skdpmf.privacy.sensitivity import sum_sensitivity
from skdpmf.privacy.users import PerUser, Rows

__all__ = ["Settings", "fit", "make_plan", "product", "times_squares"]

STEP, LATE = 0.2, 2.0  # h_t = STEP / (1 + t STEP / LATE)
MEAN_CLIP, MEAN_SQUARE = 0.8, 0.2  # guesses of the means of c_i and of c_i |x_i|^2
# Ridge of u_i, times alpha: |x_i| <= 1 regularises, and the longer x_i the less noise in x_i . v_j.
TRAINING_RIDGE = 0.05
RESIDUAL_VARIANCE = 1.0  # v, in squared quarter ranges
GRADIENTS = "gradients"
SHARES = {ITEM_STATISTICS: 0.08, START: 0.08, GRADIENTS: 0.84}  # of the budget (of mu^2)


@dataclass(frozen=True)
class Settings(ratings.Settings):
    """Public settings of a fit; `skdpmf.AdaptiveWeightALS` explains them."""

    n_inner_steps: int


def make_plan(budget: PrivacyBudget, settings: Settings, n_items: int) -> ReleasePlan:
    """Plan the releases of a fit, which spend the whole budget, from public values alone."""
    near: dict[str, Any] = {"neighbors": budget.neighbors, "unit": budget.unit}
    gradients = Release(
        GRADIENTS,
        "sum over users of w e phi for each item, clipped per user, every inner step of every "
        "round",
        (n_items, settings.n_components + int(settings.item_means)),
        sum_sensitivity(1.0, CLIP * settings.phi_bound, **near),
        count=settings.max_iter * settings.n_inner_steps,
        alternatives=(ITEM_STATISTICS,),
    )
    releases = [*ratings.first_releases(budget, n_items), gradients]
    return ReleasePlan.from_shares(budget, releases, SHARES, notes=ratings.NOTES)


def fit(curator: Curator, settings: Settings, *, rounds: Iterable[int]) -> RatingModel:
    """Make the plan's releases in their order and return the model they give."""
    return _Fit(curator, settings).run(rounds)


class _Fit(ratings.RatingFit):
    settings: Settings

    def steps_of(self, t: int) -> range:
        """Numbers of the gradient releases of round t."""
        n = self.settings.n_inner_steps
        return range(t * n, (t + 1) * n)

    def spend_round_on_means(self, t: int) -> im.ItemMeans:
        for index in self.steps_of(t):
            means = self.release_item_means(GRADIENTS, index=index)
        return means

    def start(self, V: NDArray[np.float64]) -> None:
        self.lead = int(self.settings.item_means)  # coordinates of phi before x
        self.items = self._items(self.item_means, self.weighted, V)

    def item_half(self, t: int) -> None:
        weighted, items = self.weighted, self.items
        strength = TRAINING_RIDGE if self.private else ratings.TRAINING_RIDGE
        ridge = self.settings.alpha * strength * self.rank * np.eye(self.rank)
        offset, phi = self.user_half(items.theta, ridge)
        if not self.private:
            weight = weighted.users.map(times_squares, weighted.weight, phi)
            total = sums.item_scalars(weighted.users, weight, clip=1.0, grid=self.grid)
            items.curvature[:] = total.without_privacy()[:, None]
        for index in self.steps_of(t):
            gradient = self.gradient(weighted, items.theta, offset, phi)
            items.step(self.release(GRADIENTS, gradient, index))

    def learnt(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        theta = self.items.theta
        b = OFFSET * theta[:, 0] if self.lead else np.zeros(self.n_items)
        return b, theta[:, self.lead :] / np.sqrt(self.rank)

    def gradient(
        self,
        weighted: Weighted,
        theta: NDArray[np.float64],
        offset: PerUser,
        phi: PerUser,
    ) -> sums.BoundedSum:
        """G_j of the module's docstring."""
        residual = weighted.users.map(ratings.residuals_of, theta, offset, phi)
        terms = weighted.users.map(product, weighted.weight, residual)
        clip = CLIP * self.settings.phi_bound
        return sums.item_vectors(weighted.users, terms, phi, clip=clip, grid=self.grid)[0]

    def _items(self, means: im.ItemMeans, weighted: Weighted, V: NDArray[np.float64]) -> "_Items":
        s, rank, lead = self.settings, V.shape[1], int(self.settings.item_means)
        shape = (self.n_items, rank + lead)
        theta, prior = np.zeros(shape), np.zeros(shape)
        theta[:, lead:] = V
        # precision of theta: before all ratings, and given the item statistics
        before = np.full(shape, ratings.FACTOR_PRECISION * s.alpha)
        curvature = np.full(shape, MEAN_SQUARE / rank) * weighted.mass[:, None]
        if lead:
            theta[:, 0] = means.mean / OFFSET
            prior[:, 0] = (means.mean if self.private else means.prior_mean) / OFFSET
            before[:, 0] = OFFSET**2 / means.prior_variance
            curvature[:, 0] = MEAN_CLIP * OFFSET**2 * weighted.mass
        given = before.copy()
        if lead and self.private:
            given[:, 0] += OFFSET**2 / means.variance
        release = self.releases[GRADIENTS]
        noise = release.noise_scale / np.sqrt(release.count)
        decay = RESIDUAL_VARIANCE * weighted.typical[:, None] * before
        decay += given * noise**2 / curvature
        return _Items(theta, prior, curvature, decay, self.private)


def times_squares(rows: Rows, weight: Any, phi: Any) -> NDArray[np.float64]:
    """Weights times the users' squared norms."""
    return np.asarray(weight * np.sum(phi**2, axis=1)[rows.user])


def product(rows: Rows, weight: Any, residual: Any) -> NDArray[np.float64]:
    """Weights times residuals."""
    return np.asarray(weight * residual)


class _Items:
    """The items' vectors under noisy gradients: released values alone enter."""

    def __init__(
        self,
        theta: NDArray[np.float64],
        prior: NDArray[np.float64],
        curvature: NDArray[np.float64],
        decay: NDArray[np.float64],
        private: bool,
    ) -> None:
        self.theta, self.prior, self.curvature = theta, prior, curvature
        self.decay, self.private, self.n_steps = decay, private, 0

    def step(self, gradient: NDArray[np.float64]) -> None:
        """Move along a released gradient, with weight decay."""
        h = STEP / (1.0 + self.n_steps * STEP / LATE) if self.private else 1.0
        pull = gradient - self.decay * (self.theta - self.prior)
        self.theta = self.theta + h / (self.curvature + self.decay) * pull
        self.n_steps += 1
