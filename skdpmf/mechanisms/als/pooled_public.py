r"""`pooled` with public people: their exact model is where private releases start from.

Rows of people who agreed to it (`rows`) are outside of the guarantee: nothing of them needs noise,
and all that is computed of them is a public value. Every private release has the sensitivity that
`pooled` proves, as sums clip each user whatever numbers the maps are given.

1. *Counts*: posterior means of N_j from private and public people, by precision. What both choose
   to rate is one Gram matrix (`item_item`), which ranks lists, and starts factors.
2. *The public model*: `variational` fits the public people, log N_j being a column: posteriors
   N(y_j, diag(1 / (P_j + 1 / tau))) of theta_j = (b_j, v_j), their prior N(centre_j, diag(tau)).
3. *Means*: `residual_rounds` combines private residuals with the means of public people by
   precision, and learns the variance of their shift: how much further off than by noise and
   sampling they are. Where it is large, or private people support more factors than public ones
   show, the fit goes on as `pooled`, with these counts and means.
4. *Rounds*: otherwise the posterior of `pooled` begins with what P_j and P_j y_j say of v_j, in its
   units: users' vectors x_i have the length 1 there, and those of the public model the mean square
   q of their posterior means, so that v_j is times sqrt(q). Factors are those of the public model,
   and more where private counts support them; their prior variance is q tau, or what `pooled` has,
   whichever is larger: tau is low where few people show little. All rounds then add to it as
   without public people.
5. *Users*: the moments of `pooled` are the mean, by precision, of the released ones and of those of
   public people, whose variance by sampling is taken to be the same for all entries.

Where items have many public ratings and rounds would show next to nothing beside these, means are
released in the place of gradients, and correct b_j of the public model; all else of it stays.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from skdpmf.mechanisms.als import pooled, variational
from skdpmf.mechanisms.als import pooled_update as update
from skdpmf.mechanisms.common import mean_by_precision
from skdpmf.mechanisms.gram import item_item as ng
from skdpmf.mechanisms.item_means import residual_rounds as ir
from skdpmf.mechanisms.item_means.popularity import estimate_popularity
from skdpmf.privacy import clipped_sums as sums
from skdpmf.privacy.budget import PrivacyBudget
from skdpmf.privacy.curator_release import Curator
from skdpmf.privacy.frame import curator_of_public

Floats = NDArray[np.float64]

N_LEAD = pooled.N_LEAD

# Guard: rounds of the public model
_ROUNDS = 10

# Tuned: trust in public people. Share of the factors' errors that rounds must take off to be made;
# public ratings of an item, in the mean, by which its factors are known well
_LEAST_WORTH, _KNOWN_WELL = 0.05, 40.0


class PublicFit(pooled.PooledFit):
    """One fit beside public people."""

    public: Any
    shows_means = False  # whether rounds release means alone

    def __init__(self, curator: Curator, settings: Any, rows: Any) -> None:
        exact = replace(settings, max_iter=_ROUNDS)
        plan = pooled.make_plan(PrivacyBudget.nonprivate(), exact, rows.shape[1])
        given = rows, plan, curator.n_jobs, curator.item_columns
        self.beside = variational.VariationalFit(curator_of_public(*given), exact)
        self.public = ir.public_averages(self.beside.R, settings.user_damping)
        super().__init__(curator, settings)

    def known_counts(self) -> tuple[Any, Any]:
        """Return popularity with its deviations, and what public people choose, with its worth."""
        a, rows, n_rows = self.averages, self.beside.R, float(self.curator.n_rows)
        ones = np.ones(rows.nnz), rows.indices, rows.indptr
        people: Any = ng.learn_public(sparse.csr_array(ones, rows.shape))
        noise = float(np.sqrt(a.count_variance))
        found = estimate_popularity(a.private_counts, noise)
        given = (a.private_counts, noise), (found.mean, np.sqrt(found.variance)), n_rows
        people, *known = ng.with_public_counts(people, *given)
        return known, people

    def begin(self) -> None:
        """Fit the public model, release means, and see whether it is where factors start from."""
        beside = self.beside
        beside.log_column, beside.N = self.log_column, self.N
        beside.run(range(_ROUNDS))
        columns = beside.columns()
        beside.item_step(columns, *beside.user_step(columns))
        for t in range(pooled.MEAN_ROUNDS):
            self.averages.release(pooled.MEANS, t)
        if self.averages.public_lead and beside.rank >= self.choose_rank():
            self.n_known = beside.rank
        self.rank = self.choose_rank()
        self.start(self.rank)
        is_known = 0 < self.n_known == self.rank and beside.R.nnz >= _KNOWN_WELL * self.n_items
        self.shows_means = is_known and self.worth_of_rounds() < _LEAST_WORTH

    def worth_of_rounds(self) -> float:
        """Return the share of the factors' expected error that all rounds would take off."""
        k, noise = self.rank, self.curator.deviation(pooled.GRADIENTS)
        doubt = np.einsum("jaa->ja", self.posterior.covariance)[:, 1:]
        slope = update.CLIP_FACTOR * self.posterior.mass[:, None] / k
        gain = self.settings.max_iter * (slope / max(noise, 1e-9)) ** 2
        before, after = (float(np.sum(self.N @ e)) for e in (doubt, doubt / (1.0 + gain * doubt)))
        return 1.0 - after / before

    def round(self, t: int) -> None:
        """Release means in the place of gradients that would show next to nothing."""
        if not self.shows_means:
            super().round(t)
            return
        for name in (pooled.GRADIENTS, pooled.GRAM):
            self.averages.release(name, t)

    def model(self) -> pooled.PooledModel:
        """Release the users' moments; where no gradients were, fit users as public people are."""
        model, o, averages = super().model(), self.beside, self.averages
        if not self.shows_means:
            return model
        theta, variance, centre, tau = *self.own, o.centre[:, 0], o.tau[0]
        known, b = np.where(o.counts > 0, 1.0 / variance[:, 0] - 1.0 / tau, 0.0), theta[:, 0]
        trust = 1.0 / (1.0 + averages.shifted * averages.prior_variance * np.maximum(known, 0.0))
        own, other = np.where(o.counts > 0, b / variance[:, 0] - centre / tau, 0.0), averages.shift
        private = 1.0 / (1.0 + averages.precision * averages.sampling)
        variance[:, 0] = 1.0 / (trust * known + private * averages.precision + 1.0 / tau)
        theta[:, 0] = variance[:, 0] * (trust * own + private * other + centre / tau)
        o.posterior.theta, o.variance, self.posterior.theta = theta, variance, theta
        columns = o.columns()
        o.user_step(columns)
        ridge = o.user_ridge()
        ridge[N_LEAD:, N_LEAD:] *= self.settings.alpha
        doubt = o.variance[:, 1:].mean(axis=1)
        return self.released(columns, ridge, o.slopes, doubt)._replace(knowledge=model.knowledge)

    def first_posterior(self, rank: int) -> update.PooledPosterior:
        """Return what public people, and private ones' means, show of so many factors."""
        posterior, o, k = super().first_posterior(rank), self.beside, self.n_known
        if not k:
            return posterior
        Z = o.user_step(o.columns())[0][:, N_LEAD:]
        self.own = o.posterior.theta.copy(), o.variance.copy()
        moment = Z.T @ Z / self.public.n_users
        square, own = max(float(np.trace(moment)), 1e-3), range(1, k + 1)
        rated = (o.counts > 0)[:, None]
        P = np.where(rated, np.maximum(1.0 / o.variance - 1.0 / o.tau, 0.0), 0.0)[:, 1:]
        p = np.where(rated, o.posterior.theta / o.variance - o.centre / o.tau, 0.0)[:, 1:]
        base = np.zeros_like(posterior.precision), np.zeros_like(posterior.shift)
        base[0][:, own, own], base[1][:, own] = P / square, p / np.sqrt(square)
        posterior.base = base
        least = 1.0 / posterior.prior[:, own]
        posterior.prior[:, own] = 1.0 / np.maximum(square * o.tau[1:], least)
        posterior.spread[:k, :k] = moment / square * (k / rank)
        posterior.solve()
        return posterior

    def known_moments(self, released: Any, deviation: float, *given: Any) -> tuple[Any, float]:
        """Return the users' moments with those of public people, by precision."""
        if not self.n_known:
            return released, deviation
        rows = self.beside.R_users
        features = pooled.features_of(rows, given[-1])
        T = pooled.moment_vectors(rows, 0, rows.n_users, features, *given)
        T *= sums.shrink_to_ball(np.linalg.norm(T, axis=1), 1.0)[:, None]
        n, T2 = self.public.n_users, T**2
        mean = T.T @ T / n
        doubt = float(np.sqrt(np.mean(T2.T @ T2 / n - mean**2) / n))
        public = self.n_users * mean, self.n_users * max(doubt, 1e-9)
        return mean_by_precision((released, max(deviation, 1e-9)), public)


def fit(curator: Curator, settings: Any, rows: Any, *, rounds: Iterable[int]) -> pooled.PooledModel:
    """Make the plan's releases in their order and return the model; rows: of public people."""
    return PublicFit(curator, settings, rows).run(rounds)
