"""Langevin dynamics on the items with full, clipped, noised gradients: private at every step.

Ratings are y = (r - middle) / quarter range, modelled as

    y_ij ~ N(b_j + o_i + u_i . v_j, s2),    u_i ~ N(0, I),    v_j ~ N(0, diag(tau)).

Counts N_j and a few rounds of item means come first. They are the releases of `residual_rounds`,
where their sensitivities are proved. Where what is released promises no factor, all that follows
is released as residuals of that module too, at the planned noise multipliers: the fit is then that
of `DPItemMeans`. Else every step t is

- users, local: the posterior means (o_i, u_i) and the variances S_i of u_i, given the items, and

      x_i = u_i / scale, |x_i| <= 1,    phi_i = (a, x_i),    t_i = (phi_i, h S_i^1/2, g l_i),

  l_i being the root of the posterior mean of the user's mean squared residual;
- items, from two releases: with e_ij the residual and weights sum_j w_ij^2 <= 1 of every user,

      G = sum_i c_i (w_ij e_ij phi_i)_j + noise,    c_i = min(1, f_i C / (|w_i e_i| |phi_i|)),
      H = sum_i c'_i t_i t_i' + noise,    c'_i <= min(f_i, c_i),    c'_i |t_i|^2 <= f_i B^2.

**Sensitivities.** G is a sum over users of matrices of Frobenius norm C at most: C to adding or
removing a user, 2 C to replacing one. H is one of t t' of Frobenius norm B^2 at most: B^2, and
sqrt(2) B^2, as <t t', s s'> = (t . s)^2 >= 0. A user of influence f_i (1 unless there are personal
levels) changes all releases by f_i times that at most. This holds whatever the items, the scale and
t_i are, which follow from earlier releases and the user's own row. All releases are Gaussian, and
chosen adaptively: mu^2 is the sum of theirs, exactly, at every step and without any assumption
on convergence. What follows is post-processing.

Public people have exact means and counts, which those of private ones join by precision. If their
exact fit shows as many factors as private people do, and their means differ little, the factors are
theirs, and all steps go to the means.

**Items.** H shows, each weighed against what V and the counts let expect, the mean clip factor c, M
= E u u', S = E S_i and s2. So with K_j = c E sum_i w_ij

    m_j = v_j + scale G_j / K_j - S v_j

is the item's half of variational Bayes, but for noise of variance R_j = (scale noise / K_j)^2. The
last term counts the users' own uncertainty: without it factors that fit nothing but noise would
grow. The items move towards it by v_j's gain in a Kalman filter,

    X_j <- X_j + P_j / (P_j + R_j) (m_j - X_j),    P_j <- P_j R_j / (P_j + R_j),

slowly where noise is large and all the way where there is none, and v_j = X_j tau / (tau + P_j +
doubt_j), doubt_j the variance by sampling. tau is the most probable one: **factors that the budget
cannot learn, or that are not there, vanish**, and the constant coordinate a has the sums for
itself. b_j likewise, with the prior of `residual_rounds`. After a step the coordinates of u change
such that M + S = I, so that the ridge of users is s2, and V'V is diagonal. In the first steps tau
is a guess and V keeps the length at which a user's ratings know half of u_i: factors have to be
found before their size can be learnt. Half of the steps must show more than chance would
(`_Items.shows_factors`), or the other half releases residuals.

It is the Langevin diffusion of the clipped objective, preconditioned, at the temperature that the
noise sets: with preconditioner P constant and step eta, inverse temperature 1 / (sigma C sqrt(eta))
in time eta, so that mu = (inverse temperature) C sqrt(time).

Liu, Wang, Smola, "Fast differentially private matrix factorization" (RecSys 2015), for the model
and the dynamics; the guarantee at every step, the item means, weights and all learnt variances are
not theirs. Y. J. Lim, Y. W. Teh, "Variational Bayesian approach to movie rating prediction" (KDD
Cup and Workshop 2007), for the limit without privacy: the same model, whose posteriors of items
need no gradients there (`skdpmf.mechanisms.als.variational`). The variance of o_i is learnt too,
and an item that is not known well counts less in the fold-in.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skdpmf.mechanisms import common
from skdpmf.mechanisms.als import pooled
from skdpmf.mechanisms.als.item_update import kept_by
from skdpmf.mechanisms.als.loop import RatingModel
from skdpmf.mechanisms.als.pooled import MEAN_ROUNDS, SCALE, posteriors
from skdpmf.mechanisms.als.pooled_update import LEAST_LENGTH, exceeds_chance
from skdpmf.mechanisms.als.variational import VariationalFit
from skdpmf.mechanisms.common import unpack_lower
from skdpmf.mechanisms.item_means import residual_rounds as ir
from skdpmf.mechanisms.item_means.joint_release import (
    HALF_RELIABLE,
    KNOTS,
    LEAST_LEVEL,
    item_prior,
)
from skdpmf.mechanisms.item_means.joint_release import RATING_VARIANCE as NOISE
from skdpmf.mechanisms.item_means.residual_rounds import CLIP_DEVIATION as SURE
from skdpmf.mechanisms.item_means.residual_rounds import expected_clip_factor
from skdpmf.mechanisms.posterior_draw.guarantee import personal_scales, rounding_share
from skdpmf.privacy import clipped_sums as sums
from skdpmf.privacy import other_sums
from skdpmf.privacy.budget import PrivacyBudget
from skdpmf.privacy.clipped_sums import shrink_to_ball
from skdpmf.privacy.curator_release import Curator
from skdpmf.privacy.frame import curator_of_public
from skdpmf.privacy.plan import Release, ReleasePlan
from skdpmf.privacy.sampler.grid import exact_grid
from skdpmf.privacy.users import Rows

Floats = NDArray[np.float64]

# Tuned: bias against noise. a: small budgets go to the items' means
CONSTANT = 0.4
# C / |(a, 1)| at the least budgets, in quarter ranges: most contributions are clipped where noise
# is large; where it is small, the clip shortens users with large factors
CLIP = 0.25
MEAN_SQUARE = 0.25  # of x_i, as it is guessed

VARIANCE = NOISE / HALF_RELIABLE  # tau, as it is thought to be before it is seen

# Tuned: speed against noise. Share of the steps with a guess of tau, their drift, in units of P_j,
# and what a user's ratings know of u_i at the start
STARTING = 0.25

COUNTS, MEANS, MOMENTS, GRADIENTS = ir.COUNTS, ir.RESIDUALS, "second moments", "gradients"
NOTES = (
    "Sums are in quarters of the rating range.",
    "The rank in use is chosen from the released item counts, up to n_components.",
    "The guarantee holds at every step, whether or not the chain has converged.",
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
        """Coordinates of t_i."""
        return 2 * self.n_components + 2


def moment_bound() -> float:
    """Return B."""
    return float(np.hypot(CONSTANT, 1.0))


def gradient_clip(budget: PrivacyBudget) -> float:
    """Return C: the less noise, the larger; below 4 a, as the grid is for residuals up to C / a."""
    clip = min(CLIP * float(np.sqrt(1.0 + common.strength_of(budget))), 1.0)
    return clip * float(np.hypot(CONSTANT, 1.0))


def shares_of(budget: PrivacyBudget) -> dict[str, float]:
    """Return the shares of mu^2, all steps together."""
    others = dict.fromkeys((COUNTS, MOMENTS), common.SHARE)
    return common.with_means_and_rest(others, budget, MEANS, GRADIENTS)


def make_plan(budget: PrivacyBudget, settings: Settings, n_items: int) -> ReleasePlan:
    """Plan the releases of a fit, which spend the whole budget, from public values alone."""
    first = ir.residual_releases(budget.neighbors, "l2", n_items)
    more: dict[str, Any] = {"count": settings.max_iter, "alternatives": (MEANS,)}
    moments = "sum over users of c t t', every step"
    gradients = "sum over users of w e phi for each item, clipped per user, every step"
    shape, clip = (n_items, settings.n_components + 1), gradient_clip(budget)
    releases = [
        *(Release(*terms, count=MEAN_ROUNDS if terms[0] == MEANS else 1) for terms in first),
        common.planned_gram(budget, MOMENTS, moments, settings.width, bound=moment_bound(), **more),
        common.planned_vectors(budget, GRADIENTS, gradients, *shape, bound=clip, **more),
    ]
    return ReleasePlan.from_shares(budget, releases, shares_of(budget), notes=NOTES)


def fit(
    curator: Curator,
    settings: Settings,
    *,
    rounds: Iterable[int],
    influence: Floats | None = None,
    public: Any = None,
) -> RatingModel | pooled.PooledModel:
    """Make the plan's releases in their order and return the model they give.

    The curator is of ratings in quarter ranges from the middle of the scale. User i changes every
    release by at most f_i times its sensitivity, ``influence`` being f_i in [0, 1]; None: 1.
    Without privacy, and led by public people, whose rows ``public`` are, the model's columns are 1
    and V, and its prior is 0.
    """
    if not curator.private:
        return _Limit(curator, settings).run(rounds)
    run = _Fit(curator, settings, influence, public)
    averages, factors = run.averages, np.zeros((run.n_items, settings.n_components))
    averages.release(COUNTS)
    popularity = averages.log_popularity
    for t in range(MEAN_ROUNDS):
        averages.release(MEANS, t)
    rank = averages.choose_rank(min(settings.n_components, run.n_items))
    factored = rank and not run.is_led(rank)
    items = _Items(averages, rank, settings.alpha, run.clip) if factored else None
    for t in rounds:
        items = run.step(items, t)
    if items is not None:
        factors[:, : items.rank] = items.V
        return RatingModel(items.b, factors, settings.alpha * items.noise, popularity)
    if run.is_led(0):
        return run.beside.with_means(averages)
    return RatingModel(averages.mean, factors, settings.alpha * NOISE, popularity)


def personal_influence(levels: Floats, plan: ReleasePlan, n_rows: int) -> Floats:
    """Return f_i such that user i is protected with epsilon levels[i], at the plan's delta."""
    _, means, moments, gradients = plan.gaussian
    again = [
        replace(means, noise_multiplier=slot.noise_multiplier) for slot in (moments, gradients)
    ]
    rounding = max(
        rounding_share(release, max(n_rows, 1) * release.sensitivity)
        for release in (*plan.gaussian, *again)
    )
    epsilon, delta = plan.budget.epsilon, plan.budget.delta
    return personal_scales(levels, epsilon, delta, rounding=rounding, **plan.slack)


class _Limit(VariationalFit):
    """The fit without privacy: users have an offset and factors, and the prior mean 0."""

    n_lead = 1

    def __init__(self, curator: Curator, settings: Settings) -> None:
        by_popularity: dict[str, Any] = {"weighting": "adaptive", "weight_exponent": ir.EXPONENT}
        terms = vars(settings) | by_popularity
        super().__init__(curator, pooled.Settings(**terms, item_means=True))

    def directions(self, rank: int) -> Floats:
        return self.curator.initial_normals((self.n_items, rank))

    def columns(self) -> Floats:
        return np.column_stack((np.ones(self.n_items), self.posterior.theta[:, 1:]))

    def user_features(self, columns: Floats) -> Floats:
        return np.zeros((self.R_users.n_users, columns.shape[1] + 1))

    def with_means(self, averages: ir.ResidualAverages) -> pooled.PooledModel:
        """Return the model with other item means."""
        self.posterior.theta[:, 0] = averages.mean
        return self.model()._replace(log_popularity=averages.log_popularity)


class _Fit:
    def __init__(
        self, curator: Curator, settings: Settings, influence: Floats | None, public: Any = None
    ) -> None:
        shown: Any = None
        self.beside: Any = None
        if public is not None:
            plan = make_plan(PrivacyBudget.nonprivate(), settings, public.shape[1])
            of_public = curator_of_public(public, plan, curator.n_jobs, curator.item_columns)
            self.beside = _Limit(of_public, settings)
            self.beside.run(range(settings.max_iter))
            shown = ir.public_averages(self.beside.R, settings.user_damping)
        tau, priorities = settings.max_ratings_per_user, curator.slot_priorities("subset")
        self.curator, self.settings, self.influence = curator, settings, influence
        self.users = curator.users.keep(common.subset, tau, priorities)
        self.n_items = curator.users.n_items
        self.clip = gradient_clip(curator.plan.budget)
        # every truncated factor of a product has magnitude at most 4
        self.grid = exact_grid(curator.n_rows, 4.0)
        self.averages = ir.ResidualAverages(
            curator,
            self.users,
            norm="l2",
            damping=(ir.ITEM_DAMPING, settings.user_damping),
            grid=self.grid,
            influence=influence,
            public=shown,
        )

    def is_led(self, rank: int) -> bool:
        """Whether factors are those of public people, as private ones show no more of them."""
        known = 0 if self.beside is None else self.beside.rank
        return known >= max(rank, 1) and self.averages.public_lead

    def step(self, items: "_Items | None", t: int) -> "_Items | None":
        """Take a step and return the items, or None where there are no factors."""
        release, averages = self.curator.release, self.averages
        if items is None:
            averages.release(MOMENTS, t)
            averages.release(GRADIENTS, t)
            return None
        noise, deviation = (self.curator.deviation(name) for name in (GRADIENTS, MOMENTS))
        scale = items.scale()
        gradient, moments = self.user_sums(items, scale)
        G = release(GRADIENTS, gradient, t)[:, : items.rank + 1]
        H = unpack_lower(release(MOMENTS, moments, t)) / averages.n_users
        items.learn_users(H, scale, deviation / averages.n_users)
        items.step_means(G[:, 0], noise)
        starting = t < int(STARTING * self.settings.max_iter)
        items.step_factors(scale * G[:, 1:], scale * noise, starting=starting)
        items.turn()
        if t != (self.settings.max_iter - 1) // 2 or items.shows_factors():
            return items
        averages.precision, averages.shift = 1.0 / items.mean_P, items.mean_X / items.mean_P
        return None

    def user_sums(self, items: "_Items", scale: float) -> tuple[sums.BoundedSum, sums.BoundedSum]:
        """Sums of the clipped gradients and (packed) second moments, as wide as planned."""
        s, f = self.settings, self.influence
        terms, phi, T = self.users.map(
            _solve_users,
            self.averages.entry_weights,
            *(items.b, items.V, s.user_damping, s.alpha, items.noise),
            *(scale, s.width),
        )
        gradient, clipped = sums.item_vectors(
            self.users, terms, phi, clip=self.clip, grid=self.grid, influence=f
        )
        moments = sums.gram(
            self.users,
            T,
            clip=moment_bound(),
            grid=self.grid,
            weights=clipped,
            influence=f,
        )
        return other_sums.padded(gradient, (self.n_items, s.n_components + 1)), moments


def _solve_users(
    rows: Rows,
    weight: Any,
    b: Any,
    V: Any,
    damping: float,
    alpha: float,
    noise: float,
    scale: float,
    width: int,
) -> tuple[Floats, Floats, Floats]:
    """Weighted residuals w_ij e_ij of the local solves; phi_i; t_i, zeros beyond the rank in use.

    The last coordinate of t_i is g l_i, and its spread begins in the middle.
    """
    n, k = rows.n_users, V.shape[1]
    factors, y = np.column_stack((np.ones(len(V)), V)), rows.data - b[rows.indices]
    ridge, none = np.diag([damping, *np.full(k, alpha * noise)]), np.zeros((n, k + 1))
    given = rows.indptr, rows.indices, y, factors, np.zeros_like(factors), ridge, none, noise
    Z, spread, losses = posteriors(*given, rows.n_jobs)
    x = Z[:, 1:] / scale
    x *= shrink_to_ball(np.linalg.norm(x, axis=1), 1.0)[:, None]
    phi = np.column_stack((np.full(n, CONSTANT), x))
    T = np.zeros((n, width))
    T[:, : k + 1] = phi
    # the squares of h S_i^1/2 add up to 1 at most
    T[:, width // 2 : width // 2 + k] = np.sqrt(spread[:, 1:] / k)
    T[:, -1] = SCALE * np.sqrt(losses / np.maximum(rows.n_ratings, 1))
    return weight * (y - common.predictions(rows, Z, factors)), phi, T


class _Items:
    """The items' half of a step: b, V and what is learnt of users, from released values alone.

    Attributes: b (n_items,); V, X, P (n_items, k): factors, what they were measured to be and the
    variance of its noise; tau (k,): their prior variances; noise: s2; M (k, k), S (k,): second
    moment of the users' posterior means, mean of their variances; clip_factor: c.
    """

    def __init__(self, averages: ir.ResidualAverages, rank: int, alpha: float, clip: float) -> None:
        self.averages, self.rank, self.alpha = averages, rank, alpha
        self.typical_ratings = averages.typical_weight**-2.0  # of a user
        self.popularity = averages.mass / averages.mass.sum()
        self.noise, self.first_clip_factor = NOISE, expected_clip_factor(clip / moment_bound())
        shape = len(averages.mass), rank
        length = np.sqrt(STARTING * NOISE / self.typical_ratings)
        self.V = averages.curator.initial_normals(shape) * length
        self.X, self.P = np.zeros(shape), np.full(shape, 1.0 / ir.NOTHING)
        self.tau = np.full(rank, VARIANCE)
        self.b, self.variance = averages.mean, averages.prior_variance
        self.mean_X, self.mean_P = averages.shift / averages.precision, 1.0 / averages.precision
        self.M, self.S = self.expected_moments()
        self._shown: dict[str, tuple[Any, float, int]] = {}

    def expected_moments(self) -> tuple[Floats, Floats]:
        """Return M and S of a typical user's ratings, for u ~ N(0, I)."""
        k, ridge = self.rank, self.alpha * self.noise
        gram = (self.V * self.popularity[:, None]).T @ self.V
        doubt = ridge * np.linalg.inv(self.typical_ratings * gram + ridge * np.eye(k))
        return np.eye(k) - doubt, np.diag(doubt).copy()

    def scale(self) -> float:
        """Return what u_i are divided by: u_i that vanish leave the clip to the constant."""
        length = float(np.sqrt(np.trace(self.expected_moments()[0])))
        return max(length, LEAST_LENGTH) / float(np.sqrt(MEAN_SQUARE))

    def learn_users(self, H: Floats, scale: float, deviation: float) -> None:
        """Learn c, M, S and s2 from H / n_users with noise of this deviation."""
        k, half = self.rank, len(H) // 2
        a, h, g = CONSTANT**2, 1.0 / k, SCALE**2
        c, first = self.first_clip_factor, self.expected_moments()
        self.clip_factor = c = float(
            np.clip(self._pooled("c", H[0, 0] / a, deviation / a, c, SURE), LEAST_LEVEL, 1.0)
        )
        inner, spread = scale**2 * H[1 : k + 1, 1 : k + 1], np.diag(H)[half : half + k] / h
        self.M = self._pooled("M", inner, scale**2 * deviation, c * first[0], c * SURE) / c
        S = self._pooled("S", spread, deviation / h, c * first[1], c * SURE) / c
        self.S = np.clip(S, 0.0, 2.0)
        given = H[-1, -1] / g, deviation / g, c * NOISE, c * SURE
        noise = self._pooled("s2", *given) / c
        self.noise = float(np.clip(noise, NOISE * KNOTS[0], NOISE * KNOTS[-1]))

    def _pooled(self, name: str, value: Any, deviation: float, guess: Any, sure: float) -> Any:
        """Posterior mean of a measurement and older ones, and of a guess of this deviation."""
        total, weight, step = self._shown.get(name, (0.0, 0.0, 1))
        own = max(deviation, 1e-9) ** -2.0
        kept = kept_by(step)
        total, weight = kept * total + own * value, kept * weight + own
        self._shown[name] = total, weight, step + 1
        return (total + sure**-2.0 * guess) / (weight + sure**-2.0)

    @property
    def doubt(self) -> Floats:
        """Variance of what is measured of an item by sampling."""
        return np.asarray(self.noise * self.averages.typical / self.averages.weights)

    def step_means(self, G: Floats, noise: float) -> None:
        """Move b along its gradients, with noise of this deviation."""
        averages, slope = self.averages, CONSTANT * self.clip_factor * self.averages.weights
        measured = self.b + G / slope
        self.mean_X, self.mean_P = _filtered(self.mean_X, self.mean_P, measured, noise / slope)
        doubt = self.mean_P + self.doubt
        guess = averages.prior_variance
        self.variance, line = item_prior(self.mean_X, doubt, averages.design, guess)
        self.b = line + self.variance / (self.variance + doubt) * (self.mean_X - line)

    def step_factors(self, G: Floats, noise: float, *, starting: bool) -> None:
        """Move V along its gradients in units of u, with noise of this deviation; learn tau."""
        K = (self.clip_factor * self.averages.weights)[:, None]
        measured = self.V + G / K - self.S * self.V
        P = (1.0 + STARTING) * self.P if starting else self.P
        self.X, self.P = _filtered(self.X, P, measured, noise / K)
        doubt = self.P + self.doubt[:, None]
        if not starting:
            self.tau = _prior_variances(self.X, doubt)
        self.V = self.X * self.tau / (self.tau + self.alpha * doubt)
        if starting:
            size = self.popularity @ self.V**2
            wanted = self.noise / self.typical_ratings
            self._multiply(np.diag(np.sqrt(wanted / np.maximum(size, 1e-30 * wanted))))

    def shows_factors(self) -> bool:
        """Return whether X shows more than noise and chance would, as `PooledPosterior` does.

        All steps iterate on the same ratings. In the leading direction chance has, of m items and n
        users, 2 + sqrt(m / n) times its deviation (`exceeds_chance`'s edge, without the diagonal).
        A user's offset, which is the same for all items, is no factor.
        """
        chance = (2.0 + np.sqrt(len(self.X) / self.averages.n_users)) ** 2
        evidence = 1.0 / (self.P + chance * self.doubt[:, None])
        total = evidence.sum(axis=0)
        p = evidence * (self.X - np.sum(evidence * self.X, axis=0) / total)
        return exceeds_chance(p, np.diag(total), evidence.sum(axis=1))

    def turn(self) -> None:
        """Change the coordinates of u such that M + S = I and V'V, by popularity, is diagonal."""
        omega = self.M + np.diag(self.S)
        values, vectors = np.linalg.eigh(0.5 * (omega + omega.T))
        root = (vectors * np.sqrt(np.clip(values, 0.5, 2.0))) @ vectors.T
        V = self.V @ root
        turn = root @ np.linalg.eigh((V * self.popularity[:, None]).T @ V)[1][:, ::-1]
        self._multiply(turn)
        self.tau = self.tau @ turn**2
        inverse = np.linalg.inv(turn)
        total, *more = self._shown["M"]
        self._shown["M"] = inverse @ total @ inverse.T, *more
        total, *more = self._shown["S"]
        self._shown["S"] = inverse**2 @ total, *more

    def _multiply(self, turn: Floats) -> None:
        self.V, self.X, self.P = self.V @ turn, self.X @ turn, self.P @ turn**2


def _filtered(X: Any, P: Any, measured: Any, noise: Any) -> tuple[Any, Any]:
    """Kalman filter of X, of variance P, by a measurement with noise of this deviation."""
    R = noise**2 + ir.NOTHING
    gain = P / (P + R)
    return X + gain * (measured - X), gain * R


def _prior_variances(X: Any, variance: Any) -> Floats:
    """Most probable tau of each column of X ~ N(0, tau + variance)."""
    best, found = np.full(X.shape[1], -np.inf), np.full(X.shape[1], VARIANCE)
    for t in VARIANCE * KNOTS:
        total = t + variance
        density = -0.5 * np.sum(X**2 / total + np.log(total), axis=0)
        density -= 0.5 * np.log(t / VARIANCE) ** 2
        found[density > best] = t
        best = np.maximum(best, density)
    return found
