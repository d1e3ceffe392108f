"""Langevin dynamics on the items with full, clipped, noised gradients: private at every step.

Ratings are y = (r - middle) / quarter range, modelled as y_ij ~ b_j + o_i + u_i . v_j, with
phi_i = (a, u_i), |u_i| <= 1. Item means b come from one private release; then every step t is

- users, local and exact: (o_i, u_i) minimises sum_j (y_ij - b_j - o_i - u_i . v_j)^2
  + damping o_i^2 + u_i' ridge u_i on all of the user's ratings, and |u_i| is clipped to 1;
- items, from two releases: with e_ij the residual and weights sum_j w_ij^2 <= 1 of every user,

      g_i[j] = w_ij e_ij phi_i,    c_i = min(1, f_i C / |g_i|_F),
      G = sum_i c_i g_i + sigma C N(0, I),    M ~ sum_i min(f_i, c_i) phi_i phi_i' + noise,
      v_j <- v_j + P_j (G_j - L_j v_j),    b_j likewise, from the first coordinate of G_j,

  where P_j and L_j are functions of released values only: M, and the item counts.

The sums have L2 sensitivity C and 1 + a^2 to adding or removing a user, twice and sqrt(2) times
that to replacing one, and f_i times that for a user of influence f_i, whatever V and b are. All
steps and the item statistics are Gaussian releases, chosen adaptively: mu^2 is the sum of theirs,
exactly, at every step and without any assumption on convergence. Any function of the iterates is
post-processing: what leaves is the average of the second half.

It is the Langevin diffusion of the clipped objective, preconditioned by P, at the temperature that
the noise sets: with P constant and step eta, inverse temperature 1 / (sigma C sqrt(eta)) in time
eta, so that mu = (inverse temperature) C sqrt(time).

Liu, Wang, Smola, "Fast differentially private matrix factorization" (RecSys 2015), for the model
and the dynamics; the guarantee at every step, the item means, weights, M, P and L are not theirs.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from skdpmf.kernels.als import solve_rows
from skdpmf.kernels.entries import predict_entries
from skdpmf.mechanisms.als.item_update import lift, unpack_lower
from skdpmf.mechanisms.common import expected_weights, popularity_weights, subset
from skdpmf.mechanisms.item_means import joint_release as im
from skdpmf.mechanisms.posterior_draw.guarantee import personal_scales, rounding_share
from skdpmf.privacy import sums
from skdpmf.privacy.budget import PrivacyBudget
from skdpmf.privacy.curator import Curator
from skdpmf.privacy.plan import Release, ReleasePlan
from skdpmf.privacy.sampler.noise import exact_grid
from skdpmf.privacy.sensitivity import gram_sensitivity, item_mean_sensitivity, sum_sensitivity
from skdpmf.privacy.sums import shrink_to_ball
from skdpmf.privacy.users import PerUser, Rows

__all__ = ["Model", "Settings", "fit", "make_plan", "personal_influence"]

OFFSET = 0.25  # a, the constant coordinate of phi
CLIP = 0.19  # C, below a typical user's root mean squared residual: most contributions are clipped
WEIGHT_EXPONENT = 0.25  # of the popularity in the weights w_ij
# Ridge of u_i, times alpha: weaker while training, where |u_i| <= 1 regularises as well.
TRAINING_RIDGE, FOLD_IN_RIDGE = 0.15, 2.0
STEP = 0.15  # share of the way to the optimum that an item's step goes
# L: times alpha, precision of v_j in the prior against the noise, and against the sampling error
NOISE_PRECISION, RATING_PRECISION = 4.0, 4.7
MEMORY = 0.7  # share of the second moments that a step keeps
FIRST_CLIP, FIRST_SQUARE = 0.5, 0.2  # mean c_i and c_i |u_i|^2 before the first step
FIRST_NORM = 0.012  # of the factors at the start

ITEM_STATISTICS, MOMENTS, GRADIENTS = (
    "item counts and means",
    "second moments",
    "gradients",
)
SHARES = {ITEM_STATISTICS: 0.12, MOMENTS: 0.03, GRADIENTS: 0.85}  # of the budget (of mu^2)
NOTES = (
    "Sums are in quarters of the rating range.",
    "The rank in use is chosen from the released item statistics, up to n_components.",
    "The guarantee holds at every step, whether or not the chain has converged; the model is the "
    "average of the second half of its steps.",
)


@dataclass(frozen=True)
class Settings:
    """Public settings of a fit; `skdpmf.DPMFSampler` explains them."""

    n_components: int
    max_ratings_per_user: int | None
    max_iter: int
    alpha: float
    user_damping: float

    @property
    def width(self) -> int:
        """Coordinates of phi."""
        return self.n_components + 1


class Model(NamedTuple):
    """Released model in quarter ranges: y_ij ~ b_j + o_i + u_i . v_j."""

    item_means: NDArray[np.float64]  # b
    factors: NDArray[np.float64]  # V (n_items x n_components)
    ridge: float  # of u_i in the fold-in


def make_plan(budget: PrivacyBudget, settings: Settings, n_items: int) -> ReleasePlan:
    """Plan the releases of a fit, from public values alone.

    budget: of unit "user", with delta > 0 unless it is not private. Result: the item statistics,
    and max_iter second moments and gradients, with noise that spends the whole budget. Raises
    PrivacyParameterError if the budget's unit is not "user", or its delta is 0.
    """
    near: dict[str, Any] = {"neighbors": budget.neighbors, "unit": budget.unit}
    means = item_mean_sensitivity(im.COUNT_WEIGHT, **near)
    d, rounds = settings.width, settings.max_iter
    releases = [
        Release(
            ITEM_STATISTICS,
            "sums over users of their damped item counts and clipped, centred ratings, and of the "
            "users themselves",
            (2, n_items + 1),
            float(np.hypot(means, np.sqrt(2.0) * im.USER_WEIGHT)),
        ),
        Release(
            MOMENTS,
            "sum over users of c phi phi', every step",
            (d * (d + 1) // 2,),
            gram_sensitivity(1.0, float(np.hypot(1.0, OFFSET)), **near),
            count=rounds,
            layout="packed",
            alternatives=(ITEM_STATISTICS,),
        ),
        Release(
            GRADIENTS,
            "sum over users of w e phi for each item, clipped per user, every step",
            (n_items, d),
            sum_sensitivity(1.0, CLIP, **near),
            count=rounds,
            alternatives=(ITEM_STATISTICS,),
        ),
    ]
    return ReleasePlan.from_shares(budget, releases, SHARES, notes=NOTES)


def fit(
    curator: Curator,
    settings: Settings,
    *,
    rounds: Iterable[int],
    influence: NDArray[np.float64] | None = None,
) -> Model:
    """Make the plan's releases in their order and return the model they give.

    curator: of ratings in quarter ranges from the middle of the scale, one entry per user and item,
    and of a plan of `make_plan` with the same settings; rounds: range(max_iter), possibly wrapped
    in a progress display; influence (n_users,): f_i in [0, 1]: user i changes every release by at
    most f_i times its sensitivity. None: 1.
    """
    run = _Fit(curator, settings, influence)
    means = run.means.release(ITEM_STATISTICS)
    rank, n_mean_rounds = run.choose_rank(means)
    rounds = iter(rounds)
    for t in islice(rounds, n_mean_rounds):
        means = run.means.release(MOMENTS, GRADIENTS, index=t)
    b, factors = means.mean, np.zeros((run.n_items, settings.n_components))
    if rank > 0:
        n_steps = settings.max_iter - n_mean_rounds
        b, factors[:, :rank] = run.descend(means, rank, rounds, n_steps)
    return Model(b, factors, settings.alpha * FOLD_IN_RIDGE)


def personal_influence(
    levels: NDArray[np.float64], plan: ReleasePlan, n_rows: int
) -> NDArray[np.float64]:
    """Return f_i such that user i is protected with epsilon levels[i], at the plan's delta.

    levels (n_users,): between 0 and the budget's epsilon; plan: from `make_plan`, private; n_rows:
    rows of R. Returns (n_users,): for `fit`.
    """
    means, moments, gradients = plan.gaussian
    again = [
        replace(means, noise_multiplier=slot.noise_multiplier) for slot in (moments, gradients)
    ]
    rounding = max(
        rounding_share(release, max(n_rows, 1) * release.sensitivity)
        for release in (*plan.gaussian, *again)
    )
    return personal_scales(
        levels,
        plan.budget.epsilon,
        plan.budget.delta,
        rounding=rounding,
        n_values=plan.n_values,
        eta=plan.eta,
        tau=plan.tau,
    )


class _Fit:
    def __init__(
        self, curator: Curator, settings: Settings, influence: NDArray[np.float64] | None
    ) -> None:
        tau, priorities = settings.max_ratings_per_user, curator.slot_priorities("subset")
        self.curator, self.settings = curator, settings
        self.users = curator.users.keep(subset, tau, priorities)
        self.n_items, self.private = curator.users.n_items, curator.private
        self.influence, self.releases = influence, curator.releases
        # every truncated factor of a product has magnitude at most 4
        self.grid = exact_grid(curator.n_rows, 4.0) if self.private else 0.0
        self.means = im.ItemMeanReleases(
            curator,
            self.users,
            ITEM_STATISTICS,
            damping=settings.user_damping,
            grid=self.grid,
            influence=influence,
        )

    def choose_rank(self, means: im.ItemMeans) -> tuple[int, int]:
        """Rank, and number of steps to spend on the means first."""
        most = min(self.settings.n_components, self.n_items)
        if not self.private:
            return most, 0
        return im.choose_rank(means, self.curator.plan.mu, most, self.settings.max_iter)

    def descend(
        self, means: im.ItemMeans, rank: int, steps: Iterable[int], n_steps: int
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Averages of b and V over the second half of the steps."""
        V = FIRST_NORM * self.curator.initial_normals((self.n_items, rank))
        chain = _Items(means, V, self.settings.alpha, self.gradient_noise(n_steps))
        weight = self.users.map(popularity_weights, means.mass, WEIGHT_EXPONENT)
        M = np.diag([FIRST_CLIP * OFFSET**2, *np.full(rank, FIRST_SQUARE / rank)])
        b, V, n_summed = np.zeros(self.n_items), np.zeros_like(chain.V), 0
        for done, t in enumerate(steps):
            gradient, moments = self.user_sums(chain.b, chain.V, weight, _spread(M))
            G = self.curator.release(GRADIENTS, gradient, t)[:, : rank + 1]
            latest = unpack_lower(self.curator.release(MOMENTS, moments, t))
            latest = latest[: rank + 1, : rank + 1] / means.n_users
            M = MEMORY * M + (1.0 - MEMORY) * _proper(latest)
            chain.step(G, M)
            if 2 * done + 1 >= n_steps:
                b, V, n_summed = b + chain.b, V + chain.V, n_summed + 1
        n_summed = max(n_summed, 1)
        # in the frame where the users' second moment is the identity the ridge is a number
        values, vectors = np.linalg.eigh(_spread(M))
        return b / n_summed, V @ (vectors * np.sqrt(values)) @ vectors.T / n_summed

    def gradient_noise(self, n_steps: int) -> float:
        """Standard deviation of the average of the steps' gradients."""
        scale = float(self.releases[GRADIENTS].noise_scale)
        return scale / float(np.sqrt(max(n_steps, 1)))

    def user_sums(
        self,
        b: NDArray[np.float64],
        V: NDArray[np.float64],
        weight: PerUser,
        spread: NDArray[np.float64],
    ) -> tuple[sums.BoundedSum, sums.BoundedSum]:
        """Sums of the clipped gradients and (packed) second moments, as wide as planned."""
        rank, s, f = V.shape[1], self.settings, self.influence
        factors = np.column_stack((np.ones(self.n_items), V))
        ridge = np.zeros((rank + 1, rank + 1))
        ridge[0, 0] = s.user_damping
        shrunk = 0.3 * np.eye(rank) / rank + 0.7 * spread
        ridge[1:, 1:] = s.alpha * TRAINING_RIDGE * np.linalg.inv(shrunk)
        terms, phi = self.users.map(_solve_users, weight, b, factors, ridge, self.private)
        gradient, clipped = sums.item_vectors(
            self.users, terms, phi, clip=CLIP, grid=self.grid, influence=f
        )
        if f is not None:
            clipped = self.users.map(_at_most, clipped, f)
        moments = sums.gram(
            self.users,
            phi,
            clip=float(np.hypot(1.0, OFFSET)),
            grid=self.grid,
            weights=clipped,
            influence=f,
        )
        d = s.width
        return sums.padded(gradient, (self.n_items, d)), sums.padded(moments, (d * (d + 1) // 2,))


def _solve_users(
    rows: Rows, weight: Any, b: Any, factors: Any, ridge: Any, private: bool
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Weighted residuals w_ij e_ij of the exact local solves, and phi."""
    y = rows.data - b[rows.indices]
    phi, residual = np.empty((rows.n_users, factors.shape[1])), np.empty(rows.nnz)

    def users(start: int, stop: int) -> None:
        solve_rows(rows.indptr, rows.indices, y, factors, ridge, start, stop, phi)
        if private:
            length = np.linalg.norm(phi[start:stop, 1:], axis=1)
            phi[start:stop, 1:] *= shrink_to_ball(length, 1.0)[:, None]
        predict_entries(rows.indptr, rows.indices, phi, factors, start, stop, residual)

    rows.run(users)
    phi[:, 0] = OFFSET
    return weight * (y - residual), phi


def _at_most(rows: Rows, values: Any, largest: Any) -> NDArray[np.float64]:
    return np.minimum(values, largest)


class _Items:
    """The item update of a step: b and V from released values alone.

    A step's gradient is about K_j (v*_j - v_j) + noise, K_j = mass_j M the item's curvature, in M's
    eigenvectors a number. The average of all gradients knows v*_j with variance (noise / K_j)^2:
    L_j is the prior's precision times that, in units of K_j, so that rare items are shrunk more.
    """

    def __init__(
        self, means: im.ItemMeans, V: NDArray[np.float64], alpha: float, noise: float
    ) -> None:
        self.mass, self.typical = expected_weights(
            means.mass, means.typical_weight, WEIGHT_EXPONENT
        )
        self.V, self.alpha, self.noise = V, alpha, noise
        self.b, self.prior = means.mean, means.mean
        # of b, given the item statistics; and before them
        self.variance = 1.0 / (1.0 / means.prior_variance + 1.0 / means.variance)
        self.prior_variance = means.prior_variance

    def step(self, G: NDArray[np.float64], M: NDArray[np.float64]) -> None:
        """Move b and V along the gradients G, M being the users' mean second moments of phi."""
        K = self.mass * M[0, 0] / OFFSET
        rating = im.RATING_VARIANCE * M[0, 0] / OFFSET * self.typical / self.prior_variance
        L = self.noise**2 / (K * self.variance) + rating
        self.b = self.b + STEP / (K + L) * (G[:, 0] - L * (self.b - self.prior))
        values, frame = np.linalg.eigh(M[1:, 1:])
        K = self.mass[:, None] * values
        L = NOISE_PRECISION * self.noise**2 / K + RATING_PRECISION * self.typical[:, None]
        L *= self.alpha
        self.V = self.V + (STEP / (K + L) * (G[:, 1:] @ frame - L * (self.V @ frame))) @ frame.T


def _spread(M: NDArray[np.float64]) -> NDArray[np.float64]:
    """Second moment of u, of trace 1."""
    return np.asarray(M[1:, 1:] / np.trace(M[1:, 1:]))


def _proper(noisy: NDArray[np.float64]) -> NDArray[np.float64]:
    """Second moments as they can be: noise may have made them negative, or larger than 1."""
    M = np.zeros_like(noisy)
    M[0, 0] = np.clip(noisy[0, 0], 0.1 * OFFSET**2, OFFSET**2)
    M[1:, 1:] = lift(noisy[1:, 1:])
    return M
