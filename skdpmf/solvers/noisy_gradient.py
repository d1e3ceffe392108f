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

from skdpmf.kernels._parallel import run_blocks
from skdpmf.kernels.als import accumulate_outer, solve_rows
from skdpmf.kernels.entries import predict_entries
from skdpmf.privacy.budget import PrivacyBudget
from skdpmf.privacy.noise import SAMPLER_ETA, SAMPLER_TAU, NoiseSource
from skdpmf.privacy.plan import Release, ReleasePlan
from skdpmf.privacy.posterior import personal_scales, rounding_share
from skdpmf.privacy.sensitivity import gram_sensitivity, item_mean_sensitivity, sum_sensitivity
from skdpmf.solvers import item_means as im
from skdpmf.solvers._releases import (
    PlannedReleases,
    choose_rank,
    expected_weights,
    popularity_weights,
    random_subset,
    rows_of,
    sum_products,
)
from skdpmf.solvers.item_posterior import lift, unpack_lower

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
    "Sums are in quarters of the rating range. The rank in use is chosen from the released item "
    "statistics, up to n_components: shapes are those of the full rank.",
    "Where they are weak, the first steps, or all, release the item statistics once more instead, "
    "at the planned noise multiplier.",
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

    Parameters
    ----------
    budget : PrivacyBudget
        Of unit "user", with delta > 0 unless it is not private.
    settings : Settings
        Public settings.
    n_items : int
        Size of the catalogue.

    Returns
    -------
    ReleasePlan
        The item statistics, and max_iter second moments and gradients, with noise that spends the
        whole budget.

    Raises
    ------
    PrivacyParameterError
        If the budget's unit is not "user", or its delta is 0.
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
        ),
        Release(
            GRADIENTS,
            "sum over users of w e phi for each item, clipped per user, every step",
            (n_items, d),
            sum_sensitivity(1.0, CLIP, **near),
            count=rounds,
        ),
    ]
    # Means in place of gradients may noise up to 4 times as many values as planned.
    slack = {"eta": 4.0 * SAMPLER_ETA, "tau": 4.0 * SAMPLER_TAU}
    return ReleasePlan.from_shares(budget, releases, SHARES, notes=NOTES, **slack)


def fit(
    R: Any,
    settings: Settings,
    plan: ReleasePlan,
    noise: NoiseSource,
    *,
    rounds: Iterable[int],
    influence: NDArray[np.float64] | None = None,
    n_jobs: int | None,
) -> Model:
    """Make the plan's releases in their order and return the model they give.

    Parameters
    ----------
    R : CSR of shape (n_users, n_items)
        Ratings in quarter ranges from the middle of the scale, one entry per user and item.
    settings : Settings
        Public settings.
    plan : ReleasePlan
        From `make_plan` with the same settings.
    noise : NoiseSource
        Draws all noise, and the users' random subsets.
    rounds : iterable of int
        range(max_iter), possibly wrapped in a progress display.
    influence : ndarray of shape (n_users,), default=None
        f_i in [0, 1]: user i changes every release by at most f_i times its sensitivity. None: 1.
    n_jobs : int or None
        Threads; does not change the result.

    Returns
    -------
    Model
    """
    run = _Fit(R, settings, plan, noise, influence, n_jobs)
    means = run.planned.release_item_means(ITEM_STATISTICS)
    rank, n_mean_rounds = run.choose_rank(means)
    rounds = iter(rounds)
    for t in islice(rounds, n_mean_rounds):
        means = run.planned.release_item_means(MOMENTS, GRADIENTS, index=t)
    b, factors = means.mean, np.zeros((R.shape[1], settings.n_components))
    if rank > 0:
        n_steps = settings.max_iter - n_mean_rounds
        b, factors[:, :rank] = run.descend(means, rank, rounds, n_steps)
    return Model(b, factors, settings.alpha * FOLD_IN_RIDGE)


def personal_influence(
    levels: NDArray[np.float64], plan: ReleasePlan, n_rows: int
) -> NDArray[np.float64]:
    """Return f_i such that user i is protected with epsilon levels[i], at the plan's delta.

    Parameters
    ----------
    levels : ndarray of shape (n_users,)
        Between 0 and the budget's epsilon.
    plan : ReleasePlan
        From `make_plan`, private.
    n_rows : int
        Rows of R.

    Returns
    -------
    ndarray of shape (n_users,)
        For `fit`.
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
        self,
        R: Any,
        settings: Settings,
        plan: ReleasePlan,
        noise: NoiseSource,
        influence: NDArray[np.float64] | None,
        n_jobs: int | None,
    ) -> None:
        R = random_subset(R, settings.max_ratings_per_user, noise)
        self.R, self.row = R, rows_of(R)
        self.settings, self.noise, self.n_jobs = settings, noise, n_jobs
        self.n_rows, self.n_items = R.shape
        self.private = plan.is_private
        self.influence = np.ones(self.n_rows) if influence is None else influence
        self.planned = PlannedReleases(
            R,
            plan,
            noise,
            ITEM_STATISTICS,
            damping=settings.user_damping,
            n_jobs=n_jobs,
            influence=influence,
        )

    def choose_rank(self, means: im.ItemMeans) -> tuple[int, int]:
        """Rank, and number of steps to spend on the means first."""
        most = min(self.settings.n_components, self.n_items)
        if not self.private:
            return most, 0
        return choose_rank(means, self.planned.mu, most, self.settings.max_iter)

    def descend(
        self, means: im.ItemMeans, rank: int, steps: Iterable[int], n_steps: int
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Averages of b and V over the second half of the steps."""
        V = FIRST_NORM * self.noise.initial_normals((self.n_items, rank))
        chain = _Items(means, V, self.settings.alpha, self.gradient_noise(n_steps))
        weight = popularity_weights(self.R, means.mass, WEIGHT_EXPONENT)
        M = np.diag([FIRST_CLIP * OFFSET**2, *np.full(rank, FIRST_SQUARE / rank)])
        b, V, n_summed = np.zeros(self.n_items), np.zeros_like(chain.V), 0
        for done, t in enumerate(steps):
            gradient, moments = self.user_sums(chain.b, chain.V, weight, _spread(M))
            G = self.planned.release(GRADIENTS, self._padded(gradient), t)[:, : rank + 1]
            latest = unpack_lower(self.planned.release(MOMENTS, moments, t))
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
        scale = float(self.planned.releases[GRADIENTS].noise_scale)
        return scale / float(np.sqrt(max(n_steps, 1)))

    def user_sums(
        self,
        b: NDArray[np.float64],
        V: NDArray[np.float64],
        weight: NDArray[np.float64],
        spread: NDArray[np.float64],
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Sums of the clipped gradients and (packed) second moments, exact in any order."""
        R, row, rank, s = self.R, self.row, V.shape[1], self.settings
        factors, y = np.column_stack((np.ones(self.n_items), V)), R.data - b[R.indices]
        ridge = np.zeros((rank + 1, rank + 1))
        ridge[0, 0] = s.user_damping
        shrunk = 0.3 * np.eye(rank) / rank + 0.7 * spread
        ridge[1:, 1:] = s.alpha * TRAINING_RIDGE * np.linalg.inv(shrunk)
        phi, residual = np.empty((self.n_rows, rank + 1)), np.empty(R.nnz)

        def users(start: int, stop: int) -> None:
            solve_rows(R.indptr, R.indices, y, factors, ridge, start, stop, phi)
            if self.private:
                length = np.linalg.norm(phi[start:stop, 1:], axis=1)
                phi[start:stop, 1:] *= im.shrink_to_ball(length, 1.0)[:, None]
            predict_entries(R.indptr, R.indices, phi, factors, start, stop, residual)

        run_blocks(users, R.indptr, self.n_jobs)
        phi[:, 0] = OFFSET
        e = weight * (y - residual)
        clip = (np.diff(R.indptr) > 0).astype(np.float64)
        if self.private:
            squares = np.bincount(row, weights=e**2, minlength=self.n_rows)
            norm = np.sqrt(squares) * np.linalg.norm(phi, axis=1)
            shrink = im.shrink_to_ball(norm, self.influence * CLIP)
            clip *= np.where(self.influence > 0.0, shrink, 0.0)  # not 0 / 0
        d = s.width
        moments = np.zeros(d * (d + 1) // 2)
        packed = moments[: (rank + 1) * (rank + 2) // 2]
        share = np.minimum(self.influence, clip)
        accumulate_outer(phi, share, self.planned.grid, 0, self.n_rows, packed)
        return sum_products(R, e, clip, phi, self.planned.grid, self.n_jobs), moments

    def _padded(self, gradient: NDArray[np.float64]) -> NDArray[np.float64]:
        """Zeros for the planned columns beyond the rank."""
        full = np.zeros((self.n_items, self.settings.width))
        full[:, : gradient.shape[1]] = gradient
        return full


class _Items:
    """The items' half of a step: b and V from released values alone.

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
