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
and theta are. So the L2 sensitivity of a step is `vectors_bound` (C sqrt(1 + a^2)): that bound
to adding or removing a user, twice that to replacing one. The weights' own bound,
sum_j w_ij^2 <= 1, is not needed for it. Truncation to the grid only shrinks factors. Steps are
Gaussian releases, chosen adaptively: the mu^2 of max_iter * n_inner_steps of them add up exactly.

**After the release** everything is a function of released values. K_j is the noisy popularity times
a public guess of the users' second moments, so that one h_t suits popular and rare items alike. L_j
is weight decay: with P_j the prior's precision, s the noise of the average gradient and v w_j the
sampling error of a unit of curvature, v = 1, the posterior mean is the fixed point for
L_j = P_j (s^2 / K_j + v w_j). Steps fall like 2/t, the rule for strongly convex losses: in units of
K_j the last iterate then is the average of all steps' estimates theta_j + G_j / K_j in which late
ones count more, step t about t (Lacoste-Julien, Schmidt, Bach, arXiv 1212.2002).

Without privacy there is neither clip nor noise, K_j is the exact bound sum_i w_ij |phi_i|^2 on the
curvature, and h_t = 1: every step lowers the weighted loss, and enough of them reach the weighted
ridge regression that the sufficient statistics give.

**Clicks.** Model, user step and first releases are those of `skdpmf.mechanisms.als.clicks`
(notation there). After the user step and the release of K, the Gram matrix of all users, a round
takes n_inner_steps steps with the users held fixed, each from one release of

    G_j = sum_i f_i w_ij c_ij e_ij x_i,     e_ij = 1 - b_j - x_i . v_j,
    f_i = min(1, C / |(w_ij c_ij e_ij x_i)_j|),

and moves v_j <- v_j + h_t B_j^-1 (G_j + noise - a0 s_j K v_j - L_j v_j). User i's part of the
stacked G_j is the matrix f_i (w_ij c_ij e_ij x_i)_j, whose norm is at most C by the choice of f_i,
whatever the clicks, the weights and v_j are. The gravity term a0 s_j K v_j has no other access to
the users than the released K. The curvature B_j is taken to be (M_j / n + a0 s_j) K + L_j I, M_j
the item's expected sum of weights and n the released number of users: as if those who click were
like all. L_j is weight decay towards 0, stronger for items whose scores are small anyway or whose
gradients are noisy. Without privacy B_j is an exact bound on the curvature.

Batches are full. Users sampled by Poisson's law would need an accountant of sampled Gaussian
releases, which `skdpmf.privacy` does not have; without amplification a sample only adds noise.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skdpmf.mechanisms.als import clicks, ratings
from skdpmf.mechanisms.als.loop import START, plan_of, shares_of
from skdpmf.mechanisms.als.ratings import ITEM_STATISTICS, OFFSET
from skdpmf.mechanisms.common import planned_vectors
from skdpmf.privacy import clipped_sums as sums
from skdpmf.privacy.budget import PrivacyBudget
from skdpmf.privacy.curator_release import Curator
from skdpmf.privacy.plan import ReleasePlan
from skdpmf.privacy.users import PerUser, Rows, Users

# Fixed: steps of strongly convex losses fall like LATE / t
LATE = 2.0

# Tuned: speed against noise. h_t = STEP / (1 + t STEP / LATE); of clicks STEP is 1
STEP = 0.2
# ridge of u_i, times alpha: |x_i| <= 1 regularises, and the longer x_i the less noise in x_i . v_j
TRAINING_RIDGE = 0.05
# clicks have a curvature in every direction, and a variance of v_j, relative to its squared score
# for everybody, divided by alpha
OTHER, FACTOR_VARIANCE = 0.2, 0.3

GRADIENTS = "gradients"
SHARES = shares_of(ITEM_STATISTICS, START, rest=GRADIENTS)
CLICK_SHARES = shares_of(clicks.COUNTS, START, clicks.EVERYBODY, rest=GRADIENTS)


@dataclass(frozen=True)
class Settings(ratings.Settings):
    """Public settings of a fit; `skdpmf.AdaptiveWeightALS` explains them."""

    n_inner_steps: int


def make_plan(budget: PrivacyBudget, settings: Any, n_items: int) -> ReleasePlan:
    """Plan the releases of a fit, which spend the whole budget, from public values alone."""
    by_clicks = isinstance(settings, clicks.Settings)
    loss: Any = clicks if by_clicks else ratings
    gradients = planned_vectors(
        budget,
        GRADIENTS,
        f"sum over users of w e {settings.vector} for each item, clipped per user, every inner "
        "step of every round",
        *(n_items, settings.lead + settings.n_components),
        bound=settings.clip * settings.phi_bound,
        count=settings.max_iter * settings.n_inner_steps,
    )
    releases = [*loss.first_releases(budget, settings, n_items), gradients]
    return plan_of(budget, releases, CLICK_SHARES if by_clicks else SHARES, loss.NOTES)


def fit(curator: Curator, settings: Any, *, rounds: Iterable[int]) -> Any:
    """Make the plan's releases in their order and return the model they give."""
    kind: Any = _ClickFit if isinstance(settings, clicks.Settings) else _RatingFit
    return kind(curator, settings).run(rounds)


class _RatingFit(ratings.RatingFit):
    def start(self, V: NDArray[np.float64]) -> None:
        _, _, mass, typical = self.weighted
        # precision of theta: before all ratings, and given the item statistics
        theta, prior, before = self.priors(V)
        given = before + np.zeros_like(theta)
        curvature = np.full(theta.shape, ratings.MEAN_SQUARE / self.rank) * mass[:, None]
        if self.lead:
            curvature[:, 0] = OFFSET**2 * mass
        if self.lead and self.private:
            prior[:, 0] = theta[:, 0]
            given[:, 0] += OFFSET**2 / self.item_means.variance
        noise = self.curator.deviation(GRADIENTS) / np.sqrt(self.releases[GRADIENTS].count)
        self.decay = typical[:, None] * before + given * noise**2 / curvature
        self.theta, self.prior, self.curvature, self.n_steps = theta, prior, curvature, 0

    def item_half(self, t: int) -> None:
        users, weight, *_ = self.weighted
        strength = TRAINING_RIDGE if self.private else ratings.TRAINING_RIDGE
        ridge = self.settings.alpha * strength * self.rank * np.eye(self.rank)
        offset, phi = self.user_half(ridge)
        if not self.private:
            self.curvature[:] = exact_curvature(users, weight, phi)[:, None]
        for index in steps_of(self.settings, t):
            residual = users.map(ratings.residuals_of, self.theta, offset, phi)
            pull = released_gradient(self, users, weight, residual, phi, index)
            pull = pull - self.decay * (self.theta - self.prior)
            h = STEP / (1.0 + self.n_steps * STEP / LATE) if self.private else 1.0
            self.theta = self.theta + h / (self.curvature + self.decay) * pull
            self.n_steps += 1

    def factors(self) -> NDArray[np.float64]:
        return np.asarray(self.theta[:, self.lead :] / np.sqrt(self.rank))


class _ClickFit(clicks.ClickFit):
    def item_half(self, t: int) -> None:
        V, users, weight = self.factors, self.weighted, self.weight
        unobserved = self.settings.unobserved_weight * self.click_weight
        decay, X = self._decay(unobserved), self.user_half(V)
        K = self.everybody(X, t)
        if self.private:
            direction = np.linalg.inv(K / np.trace(K) + OTHER * np.eye(len(K)))
            size = 1.0 / (self.mass + unobserved * np.trace(K) + decay)
        else:
            own, direction = exact_curvature(users, weight, X), np.eye(len(K))
            size = 1.0 / (own + unobserved * np.linalg.eigvalsh(K)[-1] + decay)
        for step in steps_of(self.settings, t):
            pull = released_gradient(self, users, weight, self.residuals(V, X), X, step)
            pull = pull - unobserved[:, None] * (V @ K) - decay[:, None] * V
            h = 1.0 / (1.0 + step / LATE) if self.private else 1.0
            V = V + h * size[:, None] * (pull @ direction)
        self.factors = V

    def _decay(self, unobserved: NDArray[np.float64]) -> NDArray[np.float64]:
        """L_j: the fixed point of all steps is the posterior mean."""
        s, rank = self.settings, self.rank
        exact = s.alpha * clicks.ITEM_RIDGE * self.click_weight
        if not self.private:
            return exact
        curvature = self.mass + unobserved * self.n_users  # the sum over all directions
        score = self.mass / curvature  # that fits everybody alike
        precision = s.alpha * rank / (FACTOR_VARIANCE * score**2)
        noise = self.curator.deviation(GRADIENTS) ** 2 / self.releases[GRADIENTS].count
        return np.asarray(exact + precision * noise * rank / curvature)


def steps_of(settings: Any, t: int) -> range:
    """Numbers of the gradient releases of round t."""
    n = settings.n_inner_steps
    return range(t * n, (t + 1) * n)


def exact_curvature(users: Users, weight: PerUser, phi: PerUser) -> NDArray[np.float64]:
    """Return sum_i w_ij |phi_i|^2 of every item, without privacy."""
    squares = users.map(times_squares, weight, phi)
    return sums.item_scalars(users, squares, clip=1.0, grid=0.0).without_privacy()


def released_gradient(
    run: Any, users: Users, weight: PerUser, residual: PerUser, phi: PerUser, index: int
) -> NDArray[np.float64]:
    """Release G_j of the module's docstring."""
    terms, s = users.map(product, weight, residual), run.settings
    bound = s.clip * s.phi_bound
    G = sums.item_vectors(users, terms, phi, clip=bound, grid=run.grid)[0]
    return np.asarray(run.release(GRADIENTS, G, index))


# Maps of `Users`: values of each user alone


def times_squares(rows: Rows, weight: Any, phi: Any) -> NDArray[np.float64]:
    """Weights times the users' squared norms."""
    return np.asarray(weight * np.sum(phi**2, axis=1)[rows.user])


def product(rows: Rows, weight: Any, residual: Any) -> NDArray[np.float64]:
    """Weights times residuals."""
    return np.asarray(weight * residual)
