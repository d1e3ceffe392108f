"""Private alternating least squares from weighted, noised sufficient statistics.

Krichene, Jain, Song, Sundararajan, Thakurta, Zhang, "Multi-Task Differential Privacy Under
Distribution Skew" (ICML 2023), Algorithms 1 and 3; Chien et al., "Private Alternating Least
Squares" (ICML 2021) for the uniform and tail baselines.

Ratings are y = (r - middle) / quarter range, modelled as y_ij ~ o_i + phi_i . theta_j with

    phi_i = (a, x_i),  x_i = u_i min(1, 1/|u_i|),     b_j = a theta_j0,  v_j = theta_j,1..k

and a = 1, so that |phi_i|^2 <= 1 + a^2; without item means phi_i = x_i. First are released item
counts and means as in `residual_rounds`, and a start of the factors, the sum of x_i x_i' without
its diagonal, x_i = w_i e_i on the most popular items, |x_i| <= C: sensitivity C^2 (Frobenius).
Where the counts promise no factor, all that follows is more rounds of means. A round is, as in the
paper,

- user step, local and exact: (o_i, u_i) minimises sum_j (y_ij - b_j - o_i - u_i . v_j)^2 +
  damping o_i^2 + u_i' L u_i on all of the user's ratings;
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
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import linalg

from skdpmf.kernels.als import solve_rows
from skdpmf.mechanisms import common
from skdpmf.mechanisms.als import clicks
from skdpmf.mechanisms.als.item_update import ItemPosterior, lift
from skdpmf.mechanisms.als.loop import (
    FOLD_IN_RIDGE,
    START,
    TRAINING_RIDGE,
    AlternatingFit,
    RatingModel,
    Settings,
    head_release,
    plan_of,
)
from skdpmf.mechanisms.als.pooled import MEAN_ROUNDS
from skdpmf.mechanisms.common import unpack_lower
from skdpmf.mechanisms.item_means import joint_release as im
from skdpmf.mechanisms.item_means import residual_rounds as ir
from skdpmf.mechanisms.item_means.residual_rounds import CLIP, ITEM_DAMPING
from skdpmf.privacy import clipped_sums as sums
from skdpmf.privacy import other_sums
from skdpmf.privacy.budget import PrivacyBudget
from skdpmf.privacy.curator_release import Curator
from skdpmf.privacy.plan import Release, ReleasePlan
from skdpmf.privacy.users import Rows

COUNTS, MEANS, GRAM, RHS = ir.COUNTS, ir.RESIDUALS, "Gram matrices", "right-hand sides"
NOTES = (
    "Sums are in quarters of the rating range.",
    "The rank in use is chosen from the released item statistics, up to n_components: planned "
    "shapes are those of the full rank.",
)


def shares_of(first: tuple[str, ...], *others: str) -> dict[str, float]:
    """Return shares of mu^2: `common.SHARE` for the first and each of the others, else for RHS."""
    share = common.SHARE
    small = {**dict.fromkeys(first, share / len(first)), **dict.fromkeys(others, share)}
    return {**small, RHS: 1.0 - sum(small.values())}


SHARES = shares_of((COUNTS, MEANS), START, GRAM)
CLICK_SHARES = shares_of((clicks.COUNTS,), START, clicks.EVERYBODY, GRAM)


def make_plan(budget: PrivacyBudget, settings: Settings, n_items: int) -> ReleasePlan:
    """Plan the releases of a fit, which spend the whole budget, from public values alone."""
    x, bound, rounds = settings.vector, settings.phi_bound, settings.max_iter
    gram, rhs = (
        f"sum over users of w {what} for each item, every round" for what in (f"{x} {x}'", f"e {x}")
    )
    shape = n_items, settings.lead + settings.n_components
    vectors = common.planned_vectors(
        budget, RHS, rhs, *shape, bound=settings.clip * bound, count=rounds
    )
    later = common.planned_gram(budget, GRAM, gram, *shape, bound=bound, count=rounds), vectors
    if isinstance(settings, clicks.Settings):
        first = clicks.first_releases(budget, settings, n_items)
        return plan_of(budget, [*first, *later], CLICK_SHARES, clicks.NOTES)
    terms = ir.residual_releases(budget.neighbors, "l2", n_items)
    means = (Release(*one, count=MEAN_ROUNDS if one[0] == MEANS else 1) for one in terms)
    start = head_release(budget, n_items, "residual products", bound=CLIP)
    others = (replace(release, alternatives=(MEANS,)) for release in (start, *later))
    return ReleasePlan.from_shares(budget, [*means, *others], SHARES, notes=NOTES)


def fit(curator: Curator, settings: Settings, *, rounds: Iterable[int]) -> Any:
    """Make the plan's releases in their order and return the model they give."""
    kind: Any = _ClickFit if isinstance(settings, clicks.Settings) else _RatingFit
    return kind(curator, settings).run(rounds)


class _RatingFit(AlternatingFit):
    def __init__(self, curator: Curator, settings: Settings) -> None:
        super().__init__(curator, settings)
        self.lead = settings.lead
        self.averages = ir.ResidualAverages(
            curator,
            self.kept,
            norm="l2",
            damping=(ITEM_DAMPING, settings.user_damping),
            grid=self.grid,
        )

    def begin(self) -> None:
        """Release counts and means, choose the rank, and start the factors."""
        averages, most = self.averages, min(self.settings.n_components, self.n_items)
        averages.release(COUNTS)
        for t in range(MEAN_ROUNDS):
            averages.release(MEANS, t)
        self.rank = averages.choose_rank(most) if self.private else most
        if not self.lead:  # nothing but factors is wanted
            self.rank = max(self.rank, 1)
        if self.rank:
            self.start()
        else:
            averages.release(START)

    def round(self, t: int) -> None:
        """Make the item step, or spend its budget on the means."""
        if self.rank:
            self.item_half(t)
            return
        for name in (GRAM, RHS):
            self.averages.release(name, t)

    def start(self) -> None:
        """Start the factors, and what is known of the items."""
        means, lead = self.averages, self.lead
        # least squares where factors N_j of an item's equation are uncertain: E N_j^2 / E N_j
        N = means.mass + means.mass_variance / means.mass
        self.weighted = self.weights_by(N, means.typical_weight)
        prior = np.zeros((self.n_items, lead + self.rank))
        precision = np.full(lead + self.rank, ITEM_DAMPING * self.settings.alpha)
        x, variance = means.measured
        if lead:
            t, prior[:, 0] = im.item_prior(x, variance, means.design, means.prior_variance)
            precision[0] = 1.0 / t
        noise = self.curator.deviation(RHS)
        self.posterior = ItemPosterior(prior, np.diag(precision), *self.weighted[2:], noise)
        self.theta = self.posterior.theta  # which moves in place
        self.theta[:, lead:] = self.start_factors()
        if lead:
            self.theta[:, 0] = means.mean
        if lead and self.private:
            self.posterior.observe(0, 1.0 / variance, x)
        self.spread = np.eye(self.rank) / self.rank  # second moment of x, of trace 1

    def start_factors(self) -> NDArray[np.float64]:
        """Leading eigenvectors of the head items' noisy second moments of residuals."""
        means, (users, weight, mass, _) = self.averages, self.weighted
        b = means.mean if self.lead else np.zeros(self.n_items)
        damping = self.settings.user_damping if self.lead else np.inf  # else there are no offsets
        offset = self.users.map(_offsets, b, damping)
        terms = users.map(_centred, weight, b, offset)
        released, head = self.release_start(users, terms, means.mass, CLIP)
        deviation = self.curator.deviation(START)
        return common.head_directions(released, head, mass, self.rank, deviation)

    def item_half(self, t: int) -> None:
        """Solve the users, release round t's sums, and learn from them."""
        ridge = self.settings.alpha * TRAINING_RIDGE * self.rank * np.eye(self.rank)
        damping = self.settings.user_damping if self.lead else None
        offset, phi = self.users.map(_solve_users, self.theta, ridge, damping, self.private)
        users, weight, *_ = self.weighted
        residual = users.map(residuals_of, self.theta, offset, phi)
        learn(self, self.posterior.update, users, weight, residual, phi, t)
        spread = self.posterior.pooled[self.lead :, self.lead :]
        self.spread = spread / np.trace(spread)

    def model(self) -> RatingModel:
        """Return the means alone at rank 0, or what was learnt.

        Its factors are in a frame where the users' second moment is the identity.
        """
        factors = np.zeros((self.n_items, self.settings.n_components))
        means = self.averages
        if self.rank == 0:
            return RatingModel(means.mean, factors, 1.0, means.log_popularity)
        values, vectors = np.linalg.eigh(self.spread)
        root = (vectors * np.sqrt(values)) @ vectors.T
        factors[:, : self.rank] = self.theta[:, self.lead :] @ root
        b = self.theta[:, 0] if self.lead else np.zeros(self.n_items)
        return RatingModel(b, factors, self.settings.alpha * FOLD_IN_RIDGE, means.log_popularity)


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
        precision = np.eye(d) * ITEM_DAMPING * s.alpha
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


# Maps of `Users`: values of each user alone


def _offsets(rows: Rows, b: Any, damping: float) -> NDArray[np.float64]:
    """Damped mean of each user's deviations from the items' means."""
    total = np.bincount(rows.user, weights=rows.data - b[rows.indices], minlength=rows.n_users)
    return np.asarray(total / (rows.n_ratings + damping))


def _centred(rows: Rows, weight: Any, b: Any, offset: Any) -> NDArray[np.float64]:
    """Weighted ratings less the items' means and the users' offsets."""
    return np.asarray(weight * (rows.data - b[rows.indices] - offset[rows.user]))


def _solve_users(
    rows: Rows, theta: Any, ridge: Any, damping: float | None, private: bool
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Offsets, 0 without a damping, and phi."""
    y, factors = rows.data, theta
    if damping is not None:
        y = y - theta[rows.indices, 0]
        factors = theta.copy()
        factors[:, 0] = 1.0
        damped = np.zeros((len(ridge) + 1, len(ridge) + 1))
        damped[0, 0], damped[1:, 1:] = damping, ridge
        ridge = damped
    Z = np.empty((rows.n_users, factors.shape[1]))
    given = rows.indptr, rows.indices, y, factors, ridge
    rows.run(lambda start, stop: solve_rows(*given, start, stop, Z))
    offset, u = np.zeros(rows.n_users), Z
    if damping is not None:
        offset, u = Z[:, 0].copy(), Z[:, 1:]
    if private:
        u *= sums.shrink_to_ball(np.linalg.norm(u, axis=1), 1.0)[:, None]
    if damping is not None:
        Z[:, 0] = 1.0
    return offset, Z


def residuals_of(rows: Rows, theta: Any, offset: Any, phi: Any) -> NDArray[np.float64]:
    """Ratings less their predictions."""
    residual = common.predictions(rows, phi, theta)
    np.subtract(rows.data - offset[rows.user], residual, out=residual)
    return residual
