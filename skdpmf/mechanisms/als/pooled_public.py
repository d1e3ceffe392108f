r"""`pooled` with public people: their exact model is where private releases start from.

People who agreed to it are outside of the guarantee: nothing of their rows needs noise, and all
that is computed of them is a public value. Every private release has the sensitivity that
`pooled` proves, as sums clip each user whatever numbers the maps are given.

1. *Counts*: posterior means of N_j from private and public people, by precision. What both choose
   to rate is one Gram matrix (`item_item`), which ranks lists, and starts factors; a model does not
   say what its people chose.
2. *The public model*: `variational` fits the public people, log N_j being a column, or a model of
   theirs is given, whose rows are not there any more: means of theta_j = (b_j, v_j), of b_j with
   the precision of so many ratings, and the mean variance of v_j, 1 / (P_j + 1 / tau).
3. *Means*: `residual_rounds` combines private residuals with the means of public people by
   precision, and learns the variance of their shift: how much further off than by noise and
   sampling they are. Where it is large, the fit goes on as `pooled`, with these counts and means.
4. *Rounds*: otherwise the posterior of `pooled` begins with what P_j and P_j y_j say of v_j, in its
   units: users' vectors x_i have the length 1 there, and those of the public model the mean square
   q of posterior means, of people who rate alike, so that v_j is times sqrt(q). Factors are the
   public model's, and more where private counts support them; their prior variance is q tau, or
   what `pooled` has, whichever is larger: tau is low where few people show little. All rounds
   then add to it as without public people.
5. *Users*: where public people show more of the same factors than the rounds do, what is thought of
   the variances of `pooled` is what the public model has, but for their error of sampling.

Where items have many public ratings and these show one factor at most, or rounds would show next to
nothing beside them, means are released in the place of gradients, and correct b_j of the public
model; all else of it stays. Where nobody shows factors, means are those of step 3.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.linalg import block_diag

from skdpmf.mechanisms.als import pooled, variational
from skdpmf.mechanisms.als import pooled_update as update
from skdpmf.mechanisms.gram import item_item as ng
from skdpmf.mechanisms.item_means import residual_rounds as ir
from skdpmf.mechanisms.item_means.popularity import estimate_popularity
from skdpmf.mechanisms.knowledge import PublicModel
from skdpmf.privacy.budget import PrivacyBudget
from skdpmf.privacy.curator_release import Curator
from skdpmf.privacy.frame import curator_of_public

Floats = NDArray[np.float64]

N_LEAD = pooled.N_LEAD

# Tuned: trust in public people. Share of the factors' errors that rounds must take off to be made
_LEAST_WORTH = 0.05


class PublicFit(pooled.PooledFit):
    """One fit beside public people: their rows, or a model of them."""

    public: Any
    beside: Any = None  # a fit of their rows
    mostly_private = True  # whether they show more of the factors than public people do

    def __init__(self, curator: Curator, settings: Any, public: Any) -> None:
        if isinstance(public, PublicModel):
            self.shown, self.public = public, ir.averages_of_model(public.known)
        else:
            exact = replace(settings, max_iter=pooled.EXACT_ROUNDS, alpha=1.0)
            plan = pooled.make_plan(PrivacyBudget.nonprivate(), exact, public.shape[1])
            given = public, plan, curator.n_jobs, curator.item_columns
            self.beside = variational.VariationalFit(curator_of_public(*given), exact)
            self.public = ir.public_averages(self.beside.R, settings.user_damping)
        super().__init__(curator, settings)

    def known_counts(self) -> tuple[Any, Any]:
        """Return popularity with its deviations, and what public people choose, with its worth."""
        if self.beside is None:
            return super().known_counts()
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
        if self.beside is not None:
            self.shown = self.learn()
        k = self.shown.factors.shape[1]
        n_ratings = self.n_ratings.sum() if self.beside is None else self.beside.R.nnz
        for t in range(pooled.MEAN_ROUNDS):
            self.averages.release(pooled.MEANS, t)
        leads = self.averages.public_lead
        self.n_known = k if leads else 0
        is_known = leads and n_ratings >= ir.KNOWN_WELL * self.n_items
        few = is_known and k < 2  # rounds of one factor would show no more than a sign
        self.rank = k if few else self.choose_rank()
        self.start(self.rank)
        same = leads and self.rank == k
        worth = float(not same) if few or not same or not k else self.worth_of_rounds()
        self.shows_means = worth < _LEAST_WORTH and is_known and k > 0
        self.mostly_private = worth > 0.5

    def learn(self) -> PublicModel:
        """Fit the public people."""
        beside, known = self.beside, self.public.knowledge()
        beside.log_column, beside.N = self.log_column, self.N
        m = beside.run(range(pooled.EXACT_ROUNDS))
        size = N_LEAD + beside.rank
        users = m.ridge[:size, :size], m.prior[: size + 1, :size]
        return PublicModel(known, m.item_means, m.columns[:, N_LEAD:size], m.item_ridge, *users)

    @property
    def n_ratings(self) -> Floats:
        """Ratings of each item by public people, as if each had rated as many."""
        counts = self.public.counts
        return np.asarray(counts * (counts.sum() / self.public.n_users))

    @property
    def noise(self) -> float:
        """Variance of a rating around the public model, in which that of users' factors is 1."""
        k = self.shown.factors.shape[1]
        return k / float(np.linalg.inv(self.shown.ridge)[-k:, -k:].trace())

    def worth_of_rounds(self) -> float:
        """Return the share of the factors' expected error that all rounds would take off."""
        k, noise = self.rank, self.curator.deviation(pooled.GRADIENTS)
        doubt = np.einsum("jaa->ja", self.posterior.covariance)[:, 1:]
        slope = update.CLIP_FACTOR * self.posterior.mass[:, None] / k
        gain = self.settings.max_iter * (slope / max(noise, 1e-9)) ** 2
        before, after = (float(np.sum(self.N @ e)) for e in (doubt, doubt / (1.0 + gain * doubt)))
        return 1.0 - after / before

    def model(self) -> pooled.PooledModel:
        """Release the users' moments; where no gradients were, take the public model."""
        m, a = self.shown, self.averages
        if not self.shows_means:
            return super().model()
        centre, known = float(np.average(m.means, weights=self.N)), m.known.precision
        means, prior = np.where(known > 0.0, m.means, centre), 1.0 / a.prior_variance
        trust = 1.0 / (1.0 + a.shifted * a.prior_variance * known)
        private = 1.0 / (1.0 + a.precision * a.sampling)
        b = trust * (known + prior) * means + (1.0 - trust) * prior * centre + private * a.shift
        b /= trust * known + private * a.precision + prior
        model = super().model()
        self.posterior.theta = np.column_stack((b, m.factors))
        ridge = m.ridge.copy()
        ridge[N_LEAD:, N_LEAD:] *= self.settings.alpha
        found = self.released(self.columns(), ridge, m.prior, m.doubts)
        return found._replace(knowledge=model.knowledge)

    def first_posterior(self, rank: int) -> update.PooledPosterior:
        """Return what public people, and private ones' means, show of so many factors.

        The precision of v_j is that of its doubt, as if users told as much of each direction. The
        mean field takes users' vectors as known, up to C: it has E xx' / s^2 where their means have
        (E xx' - C) / (s^2 + v_j' C v_j), by which its precision is too large.
        """
        posterior, m, k = super().first_posterior(rank), self.shown, self.n_known
        if not k:
            return posterior
        rated, V, doubts = m.known.precision > 0.0, m.factors, np.maximum(m.doubts, 1e-9)
        tau = np.mean(V[rated] ** 2, axis=0) + float(doubts[rated].mean())
        P = np.where(rated, np.maximum(1.0 / doubts - 1.0 / tau.mean(), 0.0), 0.0)[:, None]
        n = self.n_ratings / self.public.n_users
        seen = (n[:, None] * V).T @ V + float(n @ doubts) * np.eye(k)
        moment = np.eye(k) - self.noise * np.linalg.inv(seen + m.ridge[-k:, -k:])
        square, own = max(float(np.trace(moment)), update.LEAST_LENGTH**2), range(1, k + 1)
        P *= square / k * self.noise / (self.noise + float(tau @ (1.0 - np.diag(moment))))
        base = np.zeros_like(posterior.precision), np.zeros_like(posterior.shift)
        # features explain what is left of a prior's pull
        pull = np.where(rated[:, None], V / tau, 0.0) * (not self.curator.item_columns.shape[1])
        base[0][:, own, own], base[1][:, own] = P / square, (P * V + pull) / np.sqrt(square)
        posterior.base = base
        least = 1.0 / posterior.prior[:, own]
        posterior.prior[:, own] = 1.0 / np.maximum(square * tau, least)
        posterior.spread[:k, :k] = moment / square * (k / rank)
        posterior.solve()
        return posterior

    def first_users(self, guess: Floats) -> update.UserPrior:
        """Return the variances of the public model's users, over the factors of this fit.

        Logarithms of variances are means by precision with the guess without public people. The
        model's slopes are not used: those of few people are mostly chance.
        """
        m, first = self.shown, super().first_users(guess)
        if self.mostly_private or not m.ridge.size:
            return first
        V, weight = self.posterior.theta[:, 1:], self.posterior.mass[:, None]
        kept = np.linalg.lstsq(weight * V, weight * m.factors, rcond=None)[0]
        turn = block_diag(np.eye(N_LEAD), kept)
        noise = self.noise if self.rank else first.noise
        shown = noise * np.diag(turn @ np.linalg.inv(m.ridge) @ turn.T)
        error = 2.0 / self.public.n_users  # by sampling, of a variance's logarithm
        share = 1.0 / (1.0 + error / first.doubt**2)
        ratio = first.noise / np.diag(first.ridge) / shown
        ridge = np.diag(noise / (shown * ratio ** (1.0 - share)))
        return first._replace(ridge=ridge, noise=noise, doubt=float(np.sqrt(share * error)))


def fit(
    curator: Curator, settings: Any, public: Any, *, rounds: Iterable[int]
) -> pooled.PooledModel:
    """Make the plan's releases in their order and return the model.

    public: rows of public people, or a `PublicModel`.
    """
    return PublicFit(curator, settings, public).run(rounds)
