r"""`pooled` with public people: their exact model is where private releases start from.

Rows of people who agreed to it (`rows`) are outside of the guarantee: nothing of them needs noise,
and all that is computed of them is a public value. Every private release has the sensitivity that
`pooled` proves, as sums clip each user whatever numbers the maps are given.

1. *Counts*: posterior means of N_j from private and public people, by precision. With them, since
   log N_j is a column, `variational` fits the public people: posteriors N(y_j, diag(1 / (P_j + 1 /
   tau))) of theta_j = (b_j, v_j), their prior N(centre_j, diag(tau)), and the users' prior.
2. *Means*: the first residuals are those of `residual_rounds`, which combines them with the means
   of public people by precision, and learns the variance of their shift: how much further off than
   by noise and sampling they are. Where it is large, or where the private counts support more
   factors than public people show, the fit goes on as `pooled`, with these counts and means.
3. *Rounds*: with x_i the mean of u_i under the users' prior, phi_i = (a, g x_i), e_ij the residual,

       G_j = sum_i c_i w_ij e_ij phi_i,   E G_j = M_j (F (theta*_j - theta_j) + S v_j),

   theta_j in units of (1 / a, 1 / g); F is the mean of c_i phi_i phi_i' over ratings, and S that of
   c_i g^2 cov(u_i): what x_i has learnt of y_ij. Either is taken from public people, times the
   ratio of the mean clip factors, of which H shows that of private people. In the basis of F with
   eigenvalues l, a round has the variance noise^2 + r s2 c l sum_i w_ij^2, r rounds so far: their
   sampling is the same. a and g, of the planned norm, or means alone, are what would leave the
   smallest expected error of predictions if all rounds that are left had them.
4. *Users*: after every round the public people's z_i and their prior are found anew, with the items
   as they are then, and in the end that is the released prior.

theta_j is the mean of N(centre_j, tau), of what public people show and of all rounds, by precision.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skdpmf.mechanisms.als import pooled, variational
from skdpmf.mechanisms.als import pooled_update as update
from skdpmf.mechanisms.als.item_update import unpack_lower
from skdpmf.mechanisms.common import mean_by_precision, popularity_weights
from skdpmf.mechanisms.item_means import joint_release as im
from skdpmf.mechanisms.item_means import residual_rounds as ir
from skdpmf.privacy import clipped_sums as sums
from skdpmf.privacy.budget import PrivacyBudget
from skdpmf.privacy.curator_release import Curator
from skdpmf.privacy.frame import curator_of_public
from skdpmf.privacy.users import Rows

Floats = NDArray[np.float64]

N_LEAD = pooled.N_LEAD

# Guard: rounds of the public model; shares of factors in |phi|^2 that are tried
_ROUNDS = 10
_SHARES = np.linspace(0.05, 0.95, 19)

# Tuned: trust in public people. Variance of the means' shift, over that of items, beyond which they
# do not lead: fans of a genre have less; deviation of private people's mean clip factor from theirs
_MOST_SHIFT, _CLIP_DEVIATION = 0.06, 0.05


class PublicFit(pooled.PooledFit):
    """One fit beside public people."""

    is_led = False  # whether the public model leads, and not `pooled`
    public: Any
    posterior: Any

    def __init__(self, curator: Curator, settings: Any, rows: Any) -> None:
        exact = replace(settings, max_iter=_ROUNDS)
        plan = pooled.make_plan(PrivacyBudget.nonprivate(), exact, rows.shape[1])
        given = rows, plan, curator.n_jobs, curator.item_columns
        self.beside = variational.VariationalFit(curator_of_public(*given), exact)
        self.public = ir.public_averages(self.beside.R, settings.user_damping)
        super().__init__(curator, settings)

    def begin(self) -> None:
        """Fit the public model, release means, and see which model leads."""
        beside = self.beside
        beside.log_column, beside.N = self.log_column, self.N
        beside.run(range(_ROUNDS))
        columns = beside.columns()
        beside.item_step(columns, *beside.user_step(columns))
        self.averages.release(pooled.MEANS, 0)
        self.rank = self.choose_rank()
        self.is_led = 0 < beside.rank >= self.rank and self.averages.shifted < _MOST_SHIFT
        if not self.is_led:
            for t in range(1, pooled.MEAN_ROUNDS):
                self.averages.release(pooled.MEANS, t)
            self.start(self.rank)
            return
        self.rank = beside.rank
        self.posterior = PublicPosterior(self.averages, beside)
        size = float(np.sum(beside.user_step(columns)[0][:, N_LEAD:] ** 2))
        self.scale = (max(size, 1.0) / self.public.n_users) ** -0.5
        self.amplitudes = self.amplitudes_of(0.5)
        self.learn_users()
        for t in range(1, pooled.MEAN_ROUNDS):
            self.mean_round(pooled.MEANS, t)
        if self.gram is None:
            self.mean_round(pooled.RATED, 0)
        self.mean_round(pooled.START, 0)

    def amplitudes_of(self, share: float) -> Floats:
        """Return (a, g, ..., g) with this share of the planned norm's square for factors."""
        radius = float(np.hypot(1.0, self.constant))
        g = radius * share**0.5 * self.scale
        return np.append(radius * (1.0 - share) ** 0.5, np.full(self.rank, g))

    def learn_users(self) -> None:
        """Find public people's coefficients and their prior, and what gradients would see of them.

        The items are those of the posterior.
        """
        o, posterior = self.beside, self.posterior
        o.posterior.theta = posterior.theta.copy()
        o.variance = np.einsum("jaa->ja", posterior.covariance).copy()
        columns = self.columns()
        self.Z, self.spread = o.user_step(columns)
        self.terms = o.R.data - posterior.theta[o.R.indices, 0]
        self.terms -= np.sum(self.Z[o.R.user] * columns[o.R.indices], axis=1)
        self.measure()

    def measure(self) -> None:
        """Measure F, S and the clip factors, of gradients and of means, for these amplitudes."""
        R, (a, *g) = self.beside.R, self.amplitudes
        weight = popularity_weights(R, self.N, self.settings.weight_exponent)
        phi = with_constant(R, self.Z, a, g[0])[1]
        lengths = np.sqrt(np.bincount(R.user, (weight * self.terms) ** 2, R.n_users))
        radius, total = np.linalg.norm(self.amplitudes_of(0.0)), np.bincount(R.user, weight)
        norms = np.maximum(lengths * np.linalg.norm(phi, axis=1), 1e-12)
        c = np.minimum(1.0, pooled.CLIP * radius / norms)
        rated = R.n_ratings > 0
        self.clip_factor = float(c[rated].mean())
        self.mean_clip_factor = float(
            np.minimum(1.0, pooled.CLIP / np.maximum(lengths[rated], 1e-12)).mean()
        )
        total = c * np.pad(total, (0, R.n_users - total.size)) / weight.sum()
        self.slope = (phi * total[:, None]).T @ phi
        self.own = g[0] ** 2 * (total @ self.spread[:, N_LEAD:])

    def solved_users(self) -> tuple[Any, Any]:
        """Return (1, z_i) and phi_i of private users; they have the public people's prior."""
        columns, o, theta = self.columns(), self.beside, self.posterior.theta
        doubts = np.zeros_like(columns)
        doubts[:, N_LEAD:] = np.einsum("jaa->ja", self.posterior.covariance)[:, 1:]
        prior = o.user_ridge(), o.slopes, o.noise
        Z = self.users.map(posterior_means, theta[:, 0], columns, doubts, *prior)
        return self.users.map(with_constant, Z, *self.amplitudes[:2])

    def residuals_of(self, U: Any) -> Any:
        """Return w_ij e_ij of private users."""
        V = np.column_stack((self.posterior.theta[:, 0], self.columns()))
        return self.kept.map(pooled.weighted_residuals, self.weight, U, V)

    def known_clip_factor(self, released: float, deviation: float, public: float) -> float:
        """Return the mean clip factor of private people, by release and by public people."""
        both = (released, max(deviation, 1e-9)), (public, _CLIP_DEVIATION)
        return float(np.clip(mean_by_precision(*both)[0], 0.3, 1.0))

    def mean_round(self, name: str, index: int) -> None:
        """Release residuals of the model, which show the means."""
        terms, scale = self.residuals_of(self.solved_users()[0]), im.USER_WEIGHT * self.n_users
        total = self.averages.sums_of(terms, clip=pooled.CLIP, signed=True)
        released = self.release(name, total, index, statistic=pooled.MEANS)
        noise = self.curator.deviation(name, pooled.MEANS)
        c = self.known_clip_factor(released[-1] / scale, noise / scale, self.mean_clip_factor)
        self.posterior.add_means(released[:-1], c / pooled.CLIP, noise, self.beside.noise)
        self.learn_users()

    def round(self, t: int) -> None:
        """Release gradients, or means where these are worth more."""
        if not self.is_led:
            super().round(t)
            return
        share = self.best_share(self.settings.max_iter - t)
        if share is None:
            self.mean_round(pooled.GRADIENTS, t)
            self.mean_round(pooled.GRAM, t)
            return
        self.amplitudes = self.amplitudes_of(share)
        self.measure()
        radius, a = float(np.hypot(1.0, self.constant)), self.amplitudes[0]
        U, phi = self.solved_users()
        how: dict[str, Any] = {"clip": pooled.CLIP * radius, "grid": self.grid}
        G, clipped = sums.item_vectors(self.kept, self.residuals_of(U), phi, **how)
        H = sums.gram(self.kept, phi, clip=radius, weights=clipped, grid=self.grid)
        H, unit = unpack_lower(self.release(pooled.GRAM, H, t)), self.n_users * a**2
        noise = self.curator.deviation(pooled.GRAM) / unit
        c = self.known_clip_factor(H[0, 0] / unit, noise, self.clip_factor)
        ratio, noise = c / self.clip_factor, self.curator.deviation(pooled.GRADIENTS)
        gradients = self.release(pooled.GRADIENTS, G, t).copy()
        theta, M = self.posterior.theta / self.amplitudes, self.posterior.mass
        gradients[:, 1:] -= M[:, None] * theta[:, 1:] * (ratio * self.own)
        terms = self.amplitudes, noise, self.beside.noise * c
        self.posterior.add_rounds(gradients, ratio * self.slope, *terms)
        self.learn_users()

    def best_share(self, left: int) -> float | None:
        """Return the factors' share in phi for the rounds that are left; None: means alone."""
        posterior, noise, s2 = self.posterior, self.curator.deviation, self.beside.noise
        known = np.einsum("jaa->ja", posterior.covariance) ** -1.0
        worth = np.append(1.0, np.diag(self.beside.omega)[N_LEAD:])
        square, M, N = posterior.squares[:, None], posterior.mass[:, None], self.N

        def error(slope: Any, unit: Any, noise: float, s2: float) -> float:
            gain = left * (M * slope) ** 2 / (noise**2 + left * s2 * square * slope)
            return float(N @ ((1.0 / (known + gain / unit)) @ worth))

        c = self.mean_clip_factor
        slope = np.append(c, np.full(self.rank, 1e-9))
        clipped = pooled.CLIP * noise(pooled.GRADIENTS, pooled.MEANS)
        errors = [error(slope, 1.0, clipped, s2 * c)]
        F, c = np.diag(self.slope) / self.amplitudes**2, self.clip_factor
        for share in _SHARES:
            unit = self.amplitudes_of(share) ** 2
            errors.append(error(F * unit, unit, noise(pooled.GRADIENTS), s2 * c))
        best = int(np.argmin(errors))
        return None if best == 0 else float(_SHARES[best - 1])

    def model(self) -> pooled.PooledModel:
        """Release the users' moments, and take the users' prior from public people."""
        if not self.is_led:
            return super().model()
        columns, theta = self.columns(), self.posterior.theta
        ridge, size = self.beside.user_ridge(), columns.shape[1]
        prior = update.UserPrior(self.beside.slopes, ridge, self.beside.noise)
        features = self.users.map(pooled.features_of, columns)
        given = features, prior, theta[:, 0], columns
        for t in range(pooled.MOMENT_ROUNDS):
            moments = sums.products(
                self.users, pooled.moment_vectors, *given, clip=1.0, grid=self.grid
            )
            self.release(pooled.MOMENTS, moments, t)
        knowledge = self.posterior.knowledge(self.averages.knowledge(), self.signal, self.choices)
        ridge[N_LEAD:size, N_LEAD:size] *= self.settings.alpha
        doubt = np.einsum("jaa->ja", self.posterior.covariance)[:, 1:].mean(axis=1)
        model = self.released(columns, ridge, self.beside.slopes, doubt)
        return model._replace(knowledge=knowledge)


class PublicPosterior(update.PooledPosterior):
    """Posterior of all item vectors, in the frame of the public model: E u u' = I."""

    def __init__(self, averages: Any, public: Any) -> None:
        self.n_jobs, rank = averages.curator.n_jobs, public.rank
        self.mass, self.squares = averages.weights, averages.weights * averages.typical
        self.mass_variance = averages.mass_variance * (averages.weights / averages.mass) ** 2
        self.centre, prior = public.centre, np.broadcast_to(1.0 / public.tau, public.centre.shape)
        rated = (public.counts > 0)[:, None]
        shown = np.where(rated, np.maximum(1.0 / public.variance - prior, 0.0), 0.0)
        mean = public.posterior.theta / public.variance - prior * self.centre
        trust = 1.0 / (1.0 + averages.shifted * averages.prior_variance * shown[:, 0])
        shown[:, 0] *= trust
        mean[:, 0] *= trust
        self.start(prior, None)
        self.base = shown[:, :, None] * np.eye(rank + 1), np.where(shown > 0.0, mean, 0.0)
        self._solve()

    def add_means(self, released: Floats, slope: float, noise: float, s2: float) -> None:
        """Add a round that shows means alone."""
        gain = slope * self.mass
        variance = noise**2 + s2 * self.squares * slope / pooled.CLIP
        self.precision[:, 0, 0] += gain**2 / variance
        self.shift[:, 0] += gain * (released + gain * self.theta[:, 0]) / variance
        self._solve()

    def add_rounds(
        self, released: Floats, F: Floats, unit: Floats, noise: float, s2: float
    ) -> None:
        """Add a round of gradients; theta_j are in units of 1 / unit, s2: times the clip factor."""
        self.n_rounds += 1
        values, basis = np.linalg.eigh(F)
        gain = self.mass[:, None] * np.maximum(values, 1e-9)
        spread = np.einsum("jbc,bc->j", self.covariance / np.outer(unit, unit), F @ F) / len(F)
        variance = noise**2 + (self.mass_variance * spread)[:, None]
        variance = variance + self.n_rounds * s2 * self.squares[:, None] * np.maximum(values, 1e-9)
        weight, turn = gain**2 / variance, basis / unit[:, None]
        shown = released @ basis / gain + (self.theta / unit) @ basis
        self.precision += np.einsum("ac,jc,bc->jab", turn, weight, turn)
        self.shift += (weight * shown) @ turn.T
        self._solve()

    def _solve(self) -> None:
        P, p = self._evidence()
        self.covariance: Any = np.linalg.inv(P + self.prior[:, :, None] * np.eye(P.shape[1]))
        right = p + self.prior * self.centre
        self.theta = np.einsum("jab,jb->ja", self.covariance, right)


# Maps of `Users`: values of each user alone


def posterior_means(
    rows: Rows, b: Any, columns: Any, doubts: Any, ridge: Any, slopes: Any, noise: float
) -> Floats:
    """Return the posterior means of z_i; doubts: variances of the columns."""
    priors = pooled.features_of(rows, columns) @ slopes
    left = rows.data - b[rows.indices]
    given = rows.indptr, rows.indices, left, columns, doubts, ridge, priors, noise, rows.n_jobs
    return pooled.posteriors(*given)[0]


def with_constant(rows: Rows, Z: Any, a: float, g: float) -> tuple[Any, Any]:
    """Return (1, z_i) and phi_i = (a, g u_i)."""
    n = len(Z)
    phi = np.column_stack((np.full(n, a), g * Z[:, N_LEAD:]))
    return np.column_stack((np.ones(n), Z)), phi


def fit(curator: Curator, settings: Any, rows: Any, *, rounds: Iterable[int]) -> pooled.PooledModel:
    """Make the plan's releases in their order and return the model; rows: of public people."""
    return PublicFit(curator, settings, rows).run(rounds)
