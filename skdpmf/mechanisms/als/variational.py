"""The limit of `pooled` without privacy: a variational Bayesian item model, with nothing to tune.

Ratings y are in quarter ranges, and columns_j = (1, b_j, 0.3 log N_j, v_j) as in `pooled`:

    y_ij ~ N(b_j + z_i . columns_j, s2),    z_i = (o_i, s_i, u_i) ~ N(W' f_i, Omega),
    (b_j, v_j) ~ N(m_j, diag(tau)),

f_i = `pooled.user_features`: which items a user has rated is known before the ratings are. The
prior means m_j are linear in log N_j and public item columns for b_j, in the item columns for v_j.
Posteriors are normal with diagonal covariances (`skdpmf.kernels.als`). Rows of a table of
variances are nearly of one shape, so that sums over a row's ratings take the table of rank one
with the same sums of rows and columns, but for those of b_j and s_i. Both steps know that b_j
is in a column too: 1 + s_i multiplies it. Were it known there, each round would give some of b_j
to the slopes, and few people's means would fade. A round is

1. users: the posteriors of all z_i, given those of the items;
2. s2, W and Omega: what is most probable then; for s2 the mean expected squared error;
3. items: the mirror image, given those of the users;
4. m and tau;
5. a change of coordinates in which the u_i have the second moment I and the v_j a diagonal one: the
   model is the same, and the next round's diagonal covariances fit it better.

A fit starts with few factors, as many more would drown in their own doubt. Their number doubles
as long as posterior means have a share `_LIVELY` in each one's second moment. A factor with a
smaller share would only shrink from then on, and is left out.

The released model folds a user in by the ridge s2 Omega^-1 and, for each rated item, the mean of
its v_j's posterior variances: an item that is not known well counts less. An item's variances are
nearly equal, and their mean does as well as all of them (RMSE on MovieLens 1M within .0002).

Y. J. Lim and Y. W. Teh, "Variational Bayesian approach to movie rating prediction", KDD Cup and
Workshop 2007; C. M. Bishop, "Variational principal components", ICANN 1999 (variances of factors).
"""

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import block_diag

from skdpmf.data.feature_columns import like_others
from skdpmf.mechanisms.als import pooled
from skdpmf.mechanisms.als.pooled import without_known
from skdpmf.mechanisms.als.pooled_update import RESIDUAL_VARIANCE, PooledPosterior, knowledge_of
from skdpmf.mechanisms.item_means.joint_release import HALF_RELIABLE, PRIOR_VARIANCE
from skdpmf.mechanisms.item_means.residual_rounds import public_averages
from skdpmf.privacy.curator_release import Curator

make_plan = pooled.make_plan  # whose releases have no noise

# Guard: smallest variance that is divided by
_LEAST_VARIANCE = 1e-9

# Tuned: factors that are missed against chance. Share of posterior means in each factor's second
# moment above which there may be more of them, and in one below which it goes; variance of b_j, and
# of all v_j together, before the first round; factors to start with, and how many of choices
_LIVELY, _START_VARIANCE, _FIRST_RANK, _CHOICES = 0.02, 0.3, 8, 6


def fit(curator: Curator, settings: Any, *, rounds: Iterable[int]) -> pooled.PooledModel:
    """Return the model of ratings in quarter ranges from the middle of the scale.

    curator: of these ratings, one entry per user and item, and of a plan without privacy; rounds:
    range(max_iter), possibly wrapped in a progress display.
    """
    run = VariationalFit(curator, settings)
    model = run.run(rounds)
    if not run.R.nnz:
        return model
    own = public_averages(run.R, settings.user_damping).knowledge()
    nothing: Any = np.zeros((run.n_items, 1)), np.zeros((run.n_items, 2)), np.zeros((1, 1))
    return model._replace(knowledge=knowledge_of(own, nothing, np.zeros((0, 0)), 0.0))


class VariationalFit(pooled.PooledFit):
    """One fit without privacy; ``n_lead`` columns come before the factors."""

    n_lead = pooled.N_LEAD

    def __init__(self, curator: Curator, settings: Any) -> None:
        super().__init__(curator, settings)
        self.R, self.R_users = self.kept.without_privacy(), self.users.without_privacy()
        self.counts, self.user_counts = (
            np.bincount(R.indices, minlength=self.n_items) for R in (self.R, self.R_users)
        )
        self.by_item = self.R.turned()
        self.overall = float(self.R.data.mean()) if self.R.nnz else 0.0
        self.slope = slice(1, min(self.n_lead, 2))  # s_i of b_j, where there is one

    def start(self, rank: int) -> None:
        """Begin with the means, and few factors; the first user step takes them as they are."""
        self.posterior, lead = PooledPosterior(self.averages, 0, 1.0), self.n_lead
        found, self.noise = self.directions(rank), RESIDUAL_VARIANCE
        chosen = found[:, : found.shape[1] - rank][:, :_CHOICES]
        self.spare = np.column_stack((chosen, found[:, chosen.shape[1] - rank :]))[:, :rank]
        self.rank, self.most = 0, self.spare.shape[1]
        self.variance, self.centre = np.zeros((2, self.n_items, 1))
        self.centre += self.overall
        slope = RESIDUAL_VARIANCE / HALF_RELIABLE
        self.omega: NDArray[Any] = np.diag([PRIOR_VARIANCE, slope, slope][:lead])
        self.slopes: NDArray[Any] = np.zeros((lead + 1, lead))
        self.tau = np.array([_START_VARIANCE])
        self.grow(_FIRST_RANK)

    def grow(self, rank: int) -> None:
        """Add factors up to this rank: directions that the others have not."""
        new = without_known(self.spare, self.posterior.theta[:, 1:], self.posterior.mass)
        self.resize(np.arange(self.rank), new[:, : min(rank, self.most) - self.rank])

    def resize(self, kept: NDArray[Any], new: NDArray[np.float64]) -> None:
        """Keep these factors and append new ones, (n_items, more)."""
        own, more = np.append(0, 1 + kept), new.shape[1]
        z = np.append(np.arange(self.n_lead), self.n_lead + kept)
        size = _START_VARIANCE / max(kept.size + more, 1)
        new = new * np.sqrt(size / np.maximum(np.mean(new**2, axis=0), 1e-12))
        self.posterior.theta = np.column_stack((self.posterior.theta[:, own], new))
        parts = self.variance, self.centre
        self.variance, self.centre = (np.pad(p[:, own], ((0, 0), (0, more))) for p in parts)
        self.omega = block_diag(self.omega[np.ix_(z, z)], np.eye(more))
        self.slopes = np.pad(self.slopes[np.ix_(np.append(0, 1 + z), z)], (0, more))
        self.tau, self.rank = np.append(self.tau[own], np.full(more, size)), kept.size + more

    def round(self, t: int) -> None:
        """Sweep, with more factors as long as all show something; those that show nothing go."""
        self.sweep()
        while self.rank < self.most and self.shown().min() > _LIVELY:
            self.grow(2 * self.rank)
            self.sweep()
        alive = np.flatnonzero(self.shown() > _LIVELY)
        if alive.size < self.rank:
            self.most = alive.size
            self.resize(alive, np.zeros((self.n_items, 0)))

    def shown(self) -> NDArray[np.float64]:
        """Share of each factor's second moment that the posterior means of rated items have."""
        rated = self.counts > 0
        squares, doubts = self.posterior.theta[rated, 1:] ** 2, self.variance[rated, 1:]
        return np.asarray(squares.sum(axis=0) / np.maximum((squares + doubts).sum(axis=0), 1e-300))

    def sweep(self) -> None:
        """Both halves, and what is learnt of their priors: nothing where nothing is rated."""
        if not self.R.nnz:
            return
        columns = self.columns()
        Z, spread = self.user_step(columns)
        self.item_step(columns, Z, spread)
        self.learn_items()
        self.turn(Z, spread)
        squares = (self.posterior.theta - self.centre) ** 2 + self.variance
        self.tau = np.maximum(squares[self.counts > 0].mean(axis=0), _LEAST_VARIANCE)

    def user_step(self, columns: NDArray[np.float64]) -> tuple[Any, Any]:
        """Posterior means and variances of z_i; learns s2, W and Omega."""
        R, b = self.R_users, self.posterior.theta[:, 0]
        features = self.user_features(columns)
        priors, variances = features @ self.slopes, np.zeros_like(columns)
        variances[:, self.n_lead :] = self.variance[:, 1:]
        # the coefficient is 1 + s_i here
        own = self.slope
        b = b - columns[:, own].sum(axis=1)
        priors[:, own] += 1.0
        variances[:, own] = self.variance[:, :1]
        Z, spread, losses = pooled.posteriors(
            *(R.indptr, R.indices, R.data - b[R.indices], columns, variances),
            *(self.user_ridge(), priors, self.noise, R.n_jobs, own.stop - 1),
        )
        known = R.n_ratings > 0
        n = max(int(np.count_nonzero(known)), 1)
        Z[:, own] -= 1.0
        doubt = (self.n_lead == 1) * (self.variance[:, 0] @ self.user_counts)
        self.noise = max(float(losses.sum() + doubt) / max(R.nnz, 1), _LEAST_VARIANCE)
        F, z = features[known], Z[known]
        self.slopes = np.linalg.solve(F.T @ F + np.eye(F.shape[1]), F.T @ z)
        z = z - F @ self.slopes
        second = z.T @ z + np.diag(spread[known].sum(axis=0))
        self.omega = second / n + _LEAST_VARIANCE * np.eye(z.shape[1])
        return Z, spread

    def user_features(self, columns: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return f_i."""
        return pooled.features_of(self.R_users, columns)

    def user_ridge(self) -> NDArray[np.float64]:
        """Penalty on z_i around its prior mean."""
        ridge = self.noise * np.linalg.inv(self.omega)
        return np.asarray(0.5 * (ridge + ridge.T))

    def item_step(self, columns: NDArray[np.float64], Z: Any, spread: Any) -> None:
        """Posterior means and variances of (b_j, v_j)."""
        R, lead, nothing = self.by_item, self.n_lead, np.zeros(len(Z))
        C, own = columns[:, :lead].copy(), self.slope
        C[:, own] -= self.posterior.theta[:, :1]
        values = pooled.left(R, nothing, C, Z[:, :lead])
        phi = np.column_stack((1.0 + Z[:, own].sum(axis=1), Z[:, lead:]))
        variances = np.column_stack((spread[:, own].sum(axis=1), spread[:, lead:]))
        theta, self.variance, _ = pooled.posteriors(
            *(R.indptr, R.indices, values, phi, variances, np.diag(self.noise / self.tau)),
            *(self.centre, self.noise, R.n_jobs),
        )
        self.posterior.theta = theta

    def learn_items(self) -> None:
        """Prior means of the items."""
        theta, rated, D = self.posterior.theta, self.counts > 0, self.curator.item_columns
        lead = np.column_stack((np.ones(self.n_items), self.log_column))
        for c in range(theta.shape[1]):
            design = np.column_stack((lead, D)) if c == 0 else D
            if design.shape[1]:
                # slopes ~ N(0, tau_c), but for the means' level
                weight = rated / (self.tau[c] + self.variance[:, c])
                ridge = np.full(design.shape[1], 1.0 / self.tau[c])
                ridge[: lead.shape[1] * (c == 0)] = _LEAST_VARIANCE
                gram = (design * weight[:, None]).T @ design + np.diag(ridge)
                slopes = np.linalg.solve(gram, design.T @ (weight * theta[:, c]))
                self.centre[:, c] = design @ slopes

    def turn(self, Z: Any, spread: Any) -> None:
        """Change the factors' coordinates: users' second moment I, items' a diagonal."""
        lead, known = self.n_lead, self.R_users.n_ratings > 0
        if self.rank == 0:
            return
        u, V = Z[known, lead:], self.posterior.theta[:, 1:]
        moment = (u.T @ u + np.diag(spread[known, lead:].sum(axis=0))) / np.count_nonzero(known)
        values, vectors = np.linalg.eigh(moment)
        root = (vectors * np.sqrt(np.maximum(values, _LEAST_VARIANCE))) @ vectors.T
        moment = root @ (V.T @ V + np.diag(self.variance[:, 1:].sum(axis=0))) @ root
        turn = root @ np.linalg.eigh(moment)[1][:, ::-1]
        self.posterior.theta[:, 1:] = V @ turn
        self.variance[:, 1:] = self.variance[:, 1:] @ turn**2
        self.centre[:, 1:] = self.centre[:, 1:] @ turn
        users = block_diag(np.eye(lead), np.linalg.inv(turn).T)
        features = block_diag(np.eye(lead + 1), turn)
        self.omega = users.T @ self.omega @ users
        self.slopes = np.linalg.solve(features, self.slopes) @ users

    def fill_unrated(self) -> None:
        """Let items that nobody has rated be like others of their features."""
        D, theta = self.curator.item_columns, self.posterior.theta
        counts, unrated = self.counts, self.counts == 0
        if not D.shape[1] or unrated.all():
            return
        table = np.column_stack((theta, self.log_column))
        known = D[~unrated], table[~unrated], counts[~unrated] ** 0.5
        table[unrated] = like_others(*known, D[unrated])
        self.posterior.theta, self.log_column = table[:, :-1], table[:, -1]

    def model(self) -> pooled.PooledModel:
        """Take the users' priors from the items as they are in the end."""
        self.fill_unrated()
        columns = self.columns()
        self.user_step(columns)
        doubt = self.variance[:, 1:].mean(axis=1) if self.rank else np.zeros(self.n_items)
        ridge = self.user_ridge()
        ridge[self.n_lead :, self.n_lead :] *= self.settings.alpha
        return self.released(columns, ridge, self.slopes, doubt)
