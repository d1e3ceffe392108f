"""Private alternating least squares from weighted, noised sufficient statistics.

Krichene, Jain, Song, Sundararajan, Thakurta, Zhang, "Multi-Task Differential Privacy Under
Distribution Skew" (ICML 2023), Algorithms 1 and 3; Chien et al., "Private Alternating Least
Squares" (ICML 2021) for the uniform and tail baselines.

Model, weights, first releases and user step are those of `skdpmf.mechanisms.als.ratings`. A round
is, as in the paper, the user step and

- item step, from two releases with weights sum_j w_ij^2 <= 1 for every user,

      A_j = sum_i c_i w_ij phi_i phi_i',        sensitivity 1 + a^2 (Frobenius, all items stacked),
      g_j = sum_i c_i w_ij e_ij phi_i,          sensitivity C sqrt(1 + a^2),

  where e_ij = y_ij - o_i - phi_i . theta_j and ONE factor c_i <= 1 a user clips the user's whole
  contribution: |w_i e_i| |phi_i| c_i <= C sqrt(1 + a^2). In exact arithmetic and without clipping
  g_j is the paper's right-hand side less A_j theta_j, so theta_j + A_j^-1 g_j is the solution of
  its Algorithm 1; the residual form needs less noise, as residuals are smaller than ratings.

All use of the released values is post-processing. In the place of each A_j stands its share by
popularity of the pooled sum_j A_j, whose noise averages out: what an item's own A_j shows beyond it
gains nothing on any set. All rounds' releases are combined by least squares with forgetting.
Without noise each round is one exact weighted ALS sweep.

**Clicks.** Model, user step and first releases are those of `skdpmf.mechanisms.als.clicks`
(notation there). After the user step, a round releases K, the Gram matrix of all users, and for
every item

    A_j = sum_i f_i w_ij c_ij x_i x_i',     g_j = sum_i f_i w_ij c_ij e_ij x_i,
    e_ij = 1 - b_j - x_i . v_j,             f_i = min(1, C / (|(w_ij c_ij e_ij)_j| |x_i|)).

User i's part of the stacked A_j is f_i (w_ij c_ij x_i x_i')_j, of Frobenius norm
f_i |x_i|^2 sqrt(sum_j (w_ij c_ij)^2) <= 1. Of the stacked g_j it is f_i (w_ij c_ij e_ij x_i)_j, of
norm at most C by the choice of f_i, whatever the clicks, the weights and v_j are.

h_j = g_j + A_j v_j measures the right-hand side of the item's problem, and all rounds are combined
as in `skdpmf.mechanisms.als.item_update`, with A_j + a0 s_j K as the curvature in the place of A_j.
An item about which nothing is known but its popularity is taken to be clicked by average users: its
prior mean is the solution for A_j and h_j in proportion to its mass, from their sums over all
items, in which the noise averages out. Without privacy there is neither clip nor prior mean, and a
round is an exact sweep of weighted alternating least squares.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import linalg

from skdpmf.mechanisms.als import clicks, ratings
from skdpmf.mechanisms.als.item_update import ItemPosterior, lift, unpack_lower
from skdpmf.mechanisms.als.loop import START, plan_of, shares_of
from skdpmf.mechanisms.als.ratings import ITEM_STATISTICS, OFFSET, TRAINING_RIDGE
from skdpmf.mechanisms.common import planned_gram, planned_vectors
from skdpmf.privacy import other_sums
from skdpmf.privacy.budget import PrivacyBudget
from skdpmf.privacy.curator_release import Curator
from skdpmf.privacy.plan import ReleasePlan

GRAM, RHS = "Gram matrices", "right-hand sides"
SHARES = shares_of(ITEM_STATISTICS, START, GRAM, rest=RHS)
CLICK_SHARES = shares_of(clicks.COUNTS, START, clicks.EVERYBODY, GRAM, rest=RHS)


def make_plan(budget: PrivacyBudget, settings: ratings.Settings, n_items: int) -> ReleasePlan:
    """Plan the releases of a fit, which spend the whole budget, from public values alone."""
    by_clicks = isinstance(settings, clicks.Settings)
    loss: Any = clicks if by_clicks else ratings
    x, bound, rounds = settings.vector, settings.phi_bound, settings.max_iter
    gram, rhs = (
        f"sum over users of w {what} for each item, every round" for what in (f"{x} {x}'", f"e {x}")
    )
    shape = n_items, settings.lead + settings.n_components
    releases = [
        *loss.first_releases(budget, settings, n_items),
        planned_gram(budget, GRAM, gram, *shape, bound=bound, count=rounds),
        planned_vectors(budget, RHS, rhs, *shape, bound=settings.clip * bound, count=rounds),
    ]
    return plan_of(budget, releases, CLICK_SHARES if by_clicks else SHARES, loss.NOTES)


def fit(curator: Curator, settings: ratings.Settings, *, rounds: Iterable[int]) -> Any:
    """Make the plan's releases in their order and return the model they give."""
    kind: Any = _ClickFit if isinstance(settings, clicks.Settings) else _RatingFit
    return kind(curator, settings).run(rounds)


class _RatingFit(ratings.RatingFit):
    def start(self, V: NDArray[np.float64]) -> None:
        (self.theta, prior, precision), means = self.priors(V), self.item_means
        noise = self.curator.deviation(RHS)
        self.posterior = ItemPosterior(prior, np.diag(precision), *self.weighted[2:], noise)
        self.posterior.theta = self.theta
        if self.lead and self.private:
            self.posterior.observe(0, OFFSET**2 / means.variance, means.raw_mean / OFFSET)
        self.spread = np.eye(self.rank) / self.rank  # second moment of x, of trace 1

    def item_half(self, t: int) -> None:
        posterior, (users, weight, *_) = self.posterior, self.weighted
        ridge = self.settings.alpha * TRAINING_RIDGE * self.rank * np.eye(self.rank)
        offset, phi = self.user_half(ridge)
        residual = users.map(ratings.residuals_of, self.theta, offset, phi)
        learn(self, posterior.update, users, weight, residual, phi, t)
        spread = posterior.pooled[self.lead :, self.lead :]
        self.spread = spread / np.trace(spread)

    def factors(self) -> NDArray[np.float64]:
        values, vectors = np.linalg.eigh(self.spread)
        root = (vectors * np.sqrt(values)) @ vectors.T
        return np.asarray(self.theta[:, self.lead :] @ root)


class _ClickFit(clicks.ClickFit):
    def start(self) -> None:
        super().start()
        self.posterior = _ClickPosterior(self)

    def item_half(self, t: int) -> None:
        posterior, X = self.posterior, self.user_half(self.factors)
        posterior.K = self.everybody(X, t)
        residuals = self.residuals(self.factors, X)
        learn(self, posterior.learn, self.weighted, self.weight, residuals, X, t)
        self.factors = posterior.theta


def learn(run: Any, update: Any, users: Any, weight: Any, residual: Any, phi: Any, t: int) -> None:
    """Release round t's sums of items, and update a posterior by them."""
    bound = run.settings.phi_bound
    gram, rhs = other_sums.item_grams(
        *(users, weight, residual, phi),
        gram_clip=bound * bound,
        clip=run.settings.clip * bound,
        grid=run.grid,
    )
    update(run.release(GRAM, gram, t), run.release(RHS, rhs, t), run.n_jobs)


class _ClickPosterior(ItemPosterior):
    """The posterior of ratings, with the curvature and the prior mean of the module's docstring."""

    def __init__(self, run: _ClickFit) -> None:
        s, V = run.settings, run.factors
        d, weight = V.shape[1], run.click_weight
        precision = np.eye(d) * clicks.ITEM_RIDGE * s.alpha
        super().__init__(np.zeros(V.shape), precision, run.mass, weight, run.curator.deviation(RHS))
        self.unobserved = s.unobserved_weight * weight
        self.n_users, self.alpha, self.theta, self.K = run.n_users, s.alpha, V, np.eye(d)

    def learn(self, gram: Any, rhs: Any, n_jobs: int | None) -> None:
        """Take in one round's releases; K is that of the round."""
        if self.private:
            mass = self.mass.sum()
            pooled = lift(unpack_lower(gram.sum(axis=0) / mass))
            # clipped users count for less in A_j, and so do their unobserved items
            self.K = self.K * min(np.trace(pooled) * self.n_users / np.trace(self.K), 1.0)
            # the mean of h_j = g_j + A_j v_j, with A_j = mass_j pooled, is right over all items
            average = (rhs.sum(axis=0) + pooled @ (self.mass @ self.theta)) / mass
            # (mass_j pooled + unobserved_j K)^-1 in the frame where both are diagonal
            values, frame = linalg.eigh(pooled, self.K)
            inverse = self.mass[:, None] / (np.outer(self.mass, values) + self.unobserved[:, None])
            self.prior = (inverse * (average @ frame)) @ frame.T
        self.update(gram, rhs, n_jobs)

    def _curvature(self, items: slice, A: Any) -> Any:
        return A + self.unobserved[items, None, None] * self.K

    def _prior(self, items: slice) -> tuple[Any, Any]:
        if not self.private:
            return super()._prior(items)
        prior = self.prior[items]
        # variance of v_j around its prior mean: that mean's own square
        variance = np.mean(prior**2, axis=1) / self.alpha + 1e-12
        return np.eye(len(self.K)) / variance[:, None, None], prior / variance[:, None]
