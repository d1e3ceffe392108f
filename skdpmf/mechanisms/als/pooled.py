r"""Private factors from pooled gradients: every release of every round adds to one posterior.

Ratings are y = (r - middle) / quarter range, modelled as

    y_ij ~ b_j + o_i + s_i . g_j + u_i . v_j,      g_j = (b_j, 0.3 log N_j), both centred:

beside k factors every user has an offset o_i and two slopes s_i, on what is known of the items
anyway, which cost nothing. All of (o_i, s_i, u_i) is local: a ridge regression on all of the user's
ratings. The item step is

1. counts: N_j = sum_i 1/sqrt(n_i), and their empirical Bayes posterior;
2. means: a few rounds of weighted residuals and what they show of b_j. Both are the releases of
   `residual_rounds`, where their sensitivities are proved;
3. start: the leading eigenvectors of sum_i x_i x_i', without its diagonal, x_i = w_i e_i on the
   most popular items, e_ij = y_ij - b_j - o_i, |x_i| <= C. Weights w_ij ~ N_j^-exponent have
   sum_j w_ij^2 <= 1 for every user. Sensitivity C^2 (Frobenius). The first factors start from what
   users rate together, one more release: with a `list_share` the Gram matrix of `noisy_gram`, of
   which those loadings count that random choices would not have, and which ranks lists as well;
   without one, the directions of `common.co_rating_vectors`.
4. rounds: with x_i = u_i / |u_i|, phi_i = (a, x_i) and e_ij the residual of the model with x_i in
   the place of u_i,

       G_j = sum_i c_i w_ij e_ij phi_i,   c_i = min(1, C r / (|w_i e_i| |phi_i|)),  r^2 = 1 + a^2,
       H   = sum_i c_i phi_i phi_i',

   of sensitivities C r (all items stacked) and r^2 (Frobenius). A user's vector has learnt from
   the same rating that its residual is of: even where items have no factors, E e_ij x_i is not 0
   but the variance s2 of a rating times the derivative of x_i by y_ij (Stein's lemma),

       s2 (I - x_i x_i') A_i^-1 v_j / |u_i|,      A_i = sum_j v_j v_j' + ridge.

   So v_j would grow on noise. Most of the sum over users of it is taken off G_j, for a typical user
   whose items are drawn by popularity (`own_ratings`), which needs no release; s2 follows
   from the mean clip factor c, which H shows: c = C / |w_i e_i|. All of it would shrink v_j too
   far, as the vectors' length is 1 however little is known of a user.
5. users: sum_i t_i t_i', |t_i| <= 1, four times, of f_i = (log n_i, means of the item columns
   over the rated items), of the users' coefficients z_i = (o_i, s_i, u_i) and of their root mean
   squared residual. The regression of z_i on f_i is the prior mean of the fold-in: which items
   a user has rated is known before the ratings are. What the regression leaves of z_i z_i' is the
   prior's covariance, whose ratio to the residuals' mean square gives the ridge: a step of EM each
   time (`pooled_update.learnt_users`). For this z_i is not the posterior mean but a point as far
   from it as the posterior is wide, with signs by a hash of the row: the second moment of these
   points is the posterior's. Sensitivity 1, whatever z_i is.

All sensitivities are for adding or removing a user, by the sums' proofs also for
replacing one: each statistic is a sum over users of a vector (or of products of vectors) whose norm
is bounded whatever the ratings; all else is post-processing. Weights, counts, ranks and shares
follow from the budget and from released values.

Where the released counts promise no factor, the releases of steps 3 and 4 are replaced by more
residuals as in step 2, with their own sensitivity and the planned noise multiplier, on which alone
the cost depends. So are those of the second half of the rounds where neither choices show tastes
nor the first half factors (`PooledPosterior.shows_factors`). The item step is then that of
`DPItemMeans`. In the same way the counts take the
place of the lists' Gram matrix where they promise nothing of it: all that follows, lists by
popularity first, has their mean by precision with those of step 1. So lists come before step 2.

**The posterior.** In expectation G_j = M_j F (theta*_j - theta_j), theta_j = (b_j, v_j), with M_j
the expected sum of weights and F = H / n with its first column divided by a. So a round measures
theta*_j with the precision M_j^2 F'F / rho_j, rho_j the variance of noise, sampling and of what is
not known about N_j. All rounds add up. Since users' vectors move, the s-th of t rounds has the
weight s / t in what they say about v_j, and all count alike about b_j (v_j apart).

**A refresh** starts from `PooledKnowledge` of earlier fits, on other people: from their counts and
averages (`residual_rounds`), their posterior, and their factors, in the frame that all fits share.
Its signal adds up in squares to theirs, and a larger one adds factors, from what directions have
that the known factors have not; where it adds none, more residuals take the start's releases. The
Gram matrices of all cohorts add up; the users' moments are of this cohort alone.

Without privacy nothing of this is needed: `variational` has the limit.

The chain of weighted gradients is after W. Krichene et al., "Multi-Task Differential Privacy Under
Distribution Skew", ICML 2023; docs/decisions/0014-pooled.md says what differs.
"""

from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from skdpmf.kernels.als import row_posteriors, solve_rows
from skdpmf.kernels.jit_and_threads import run_blocks
from skdpmf.kernels.rows import hash_rows, predict_entries, weigh_residuals
from skdpmf.mechanisms import common
from skdpmf.mechanisms.als import loop
from skdpmf.mechanisms.als import pooled_update as update
from skdpmf.mechanisms.als.loop import HEAD, START, AlternatingFit, head_release
from skdpmf.mechanisms.common import unpack_lower
from skdpmf.mechanisms.gram import item_item as ng
from skdpmf.mechanisms.gram.item_item import Lists
from skdpmf.mechanisms.item_means import residual_rounds as ir
from skdpmf.mechanisms.item_means.joint_release import (
    FOLD_IN_DAMPING,
    HALF_RELIABLE,
    PRIOR_VARIANCE,
    SIGNAL_PER_FACTOR,
    reliability,
)
from skdpmf.mechanisms.item_means.residual_rounds import CLIP
from skdpmf.privacy import clipped_sums as sums
from skdpmf.privacy.budget import PrivacyBudget
from skdpmf.privacy.curator_release import Curator
from skdpmf.privacy.plan import Release, ReleasePlan
from skdpmf.privacy.users import Rows

# Fixed: by the format of model files: scale of log N_j as a column, log of a typical user's
# ratings, which is taken off, columns before the factors (1, b_j and log N_j)
LOG_SCALE, TYPICAL_LOG_COUNT, N_LEAD = 0.3, 4.5, 3

# Fixed: odd numbers of 64 bits without a pattern: digits of pi, e and the root of 2, in binary
_ODD = np.array([0x243F6A8885A308D3, 0xB7E151628AED2A6B, 0x6A09E667F3BCC909], np.uint64)

# Guard: time. Rounds without privacy, of ratings and of clicks
EXACT_ROUNDS = 10

# Tuned: bias against noise. Releases of means, and of users' moments
MEAN_ROUNDS = MOMENT_ROUNDS = 4
# share of what own ratings add to gradients that is taken off: all of it shrinks v_j too far
OWN_RATINGS = 0.6
# scale of t_i but for log n_i, whose clip shortens long ones, in quarter ranges
SCALE = 0.5

COUNTS, MEANS, LISTS, RATED, GRADIENTS, GRAM, MOMENTS = (
    ir.COUNTS,
    ir.RESIDUALS,
    "Gram matrix of what is rated",
    "co-ratings of the head",
    "gradients",
    "Gram matrix",
    "moments of users",
)
NOTES = (
    "Sums are in quarters of the rating range.",
    "The rank in use is chosen from the released item counts, up to n_components: planned shapes "
    "are those of the full rank.",
)


@dataclass(frozen=True)
class Settings(loop.Settings):
    """Public settings of a fit; `skdpmf.AdaptiveWeightALS` explains them."""

    list_share: float = 0.0  # of mu^2, for the Gram matrix of what is rated; 0: there is none
    fold_in_damping: float = FOLD_IN_DAMPING  # a guess of the ridge of o_i, which is learnt


class PooledModel(NamedTuple):
    """Released model in quarter ranges: y_ij ~ b_j + z_i . columns_j."""

    item_means: NDArray[np.float64]  # b
    columns: NDArray[np.float64]  # (n_items, N_LEAD + n_components)
    ridge: NDArray[np.float64]  # of z_i around its prior mean
    item_ridge: NDArray[np.float64]  # (n_items,): added to the ridge for each rated item
    prior: NDArray[np.float64]  # (d + 1, d): prior mean of z_i = user_features @ prior
    lists: Lists | None  # what people choose to rate
    log_popularity: NDArray[np.float64]  # (n_items,), but for a constant
    # a refresh starts from it, or, without privacy, a fit that takes the model as public
    knowledge: update.PooledKnowledge | None = None


def constant_weight(budget: PrivacyBudget) -> float:
    """Return a: the less noise, the smaller."""
    return float((1.0 + common.strength_of(budget)) ** -0.5)


def shares_of(budget: PrivacyBudget, list_share: float) -> dict[str, float]:
    """Return the shares of mu^2, all rounds together: of the budget and what lists take of it."""
    # the release of lists starts the first factors, else that of co-ratings
    first = (COUNTS,) if list_share else (COUNTS, RATED)
    small = dict.fromkeys((START, GRAM, MOMENTS), common.SHARE / 2.0)
    others = {**dict.fromkeys(first, common.SHARE), **small}
    shares = common.with_means_and_rest(others, budget, MEANS, GRADIENTS)
    shares = {name: (1.0 - list_share) * share for name, share in shares.items()}
    return {**shares, LISTS: list_share} if list_share else shares


def make_plan(budget: PrivacyBudget, settings: Any, n_items: int) -> ReleasePlan:
    """Plan the releases of a fit, which spend the whole budget, from public values alone."""
    k, rounds = settings.n_components, settings.max_iter
    radius = float(np.hypot(1.0, constant_weight(budget)))
    first = ir.residual_releases(budget.neighbors, "l2", n_items)
    again: dict[str, Any] = {"alternatives": (MEANS,)}
    releases = [
        *(Release(*terms, count=MEAN_ROUNDS if terms[0] == MEANS else 1) for terms in first),
        ng.gram_release(budget, n_items, LISTS, alternative=COUNTS)
        if settings.list_share
        else head_release(budget, n_items, "products of what is rated", RATED, **again),
        head_release(budget, n_items, "residual products", bound=CLIP, **again),
        common.planned_vectors(
            *(budget, GRADIENTS, "sum over users of w e phi for each item, every round"),
            *(n_items, k + 1),
            bound=CLIP * radius,
            count=rounds,
            **again,
        ),
        common.planned_gram(
            *(budget, GRAM, "sum over users of phi phi', every round", k + 1),
            bound=radius,
            count=rounds,
            **again,
        ),
        common.planned_gram(
            *(budget, MOMENTS),
            "sum over users of products of their coefficients and of what they rated",
            2 * (N_LEAD + k + 1),
            count=MOMENT_ROUNDS,
        ),
    ]
    shares = shares_of(budget, settings.list_share)
    return ReleasePlan.from_shares(budget, releases, shares, notes=NOTES)


def fit(
    curator: Curator,
    settings: Any,
    *,
    rounds: Iterable[int],
    known: update.PooledKnowledge | None = None,
) -> PooledModel:
    """Make the plan's releases in their order and return the model they give.

    ``known`` is what earlier fits have released.
    """
    return PooledFit(curator, settings, known).run(rounds)


class PooledRounds(AlternatingFit):
    """The rounds of a fit, of ratings or of clicks: each loss has its own user step."""

    posterior: update.PooledPosterior
    n_users: float
    N: NDArray[np.float64]  # popularity
    typical_ratings: float  # of a user

    @abstractmethod
    def user_half(self) -> tuple[Any, ...]:
        """Solve the users, of whom nothing is known.

        Returns those of the item step, their w_ij e_ij and phi_i, V, and the ridge of u_i.
        """

    def gradient_round(self, t: int, clip: float, a: float) -> NDArray[np.float64]:
        """Release gradients and their Gram matrix; update the posterior. clip: C.

        Returns what own ratings still add to each v_j.
        """
        posterior, deviation, N = self.posterior, self.curator.deviation, self.N
        radius = float(np.hypot(1.0, a))
        users, terms, phi, V, ridge = self.user_half()
        G, clipped = sums.item_vectors(users, terms, phi, clip=clip * radius, grid=self.grid)
        del terms  # others may need its memory until this is released
        H = sums.gram(users, phi, clip=radius, weights=clipped, grid=self.grid)
        gram = unpack_lower(self.release(GRAM, H, t)) / self.n_users
        gram = posterior.pooled_gram(gram, deviation(GRAM) / self.n_users, a)
        factor = min(gram[0, 0] / a**2, 1.0)
        noise = (clip / factor) ** 2
        own = factor * update.own_ratings(V, N / N.sum(), self.typical_ratings, noise, ridge)
        gradients = self.release(GRADIENTS, G, t).copy()
        gradients[:, 1:] -= OWN_RATINGS * posterior.mass[:, None] * own
        posterior.add_gradients(gradients, gram, a, deviation(GRADIENTS))
        return np.asarray(np.linalg.solve(gram[1:, 1:], (1.0 - OWN_RATINGS) * own.T).T)


class PooledFit(PooledRounds):
    """One fit."""

    public: Any = None  # `ir.PublicAverages`

    def __init__(
        self, curator: Curator, settings: Any, known: update.PooledKnowledge | None = None
    ) -> None:
        super().__init__(curator, settings)
        self.known, self.n_known = known, 0 if known is None else known.rank
        self.choices = None if known is None else known.choices  # Gram matrices so far
        self.mu *= np.sqrt(1.0 - settings.list_share)  # of what learns ratings
        self.constant = constant_weight(curator.plan.budget)
        self.averages = ir.ResidualAverages(
            curator,
            self.kept,
            norm="l2",
            damping=(ir.ITEM_DAMPING, settings.user_damping),
            grid=self.grid,
            exponent=settings.weight_exponent,
            known=None if known is None else known.averages,
            public=self.public,
        )
        self.averages.release(COUNTS)
        self.gram = self.gram_of_choices()
        self.n_users, self.weight = self.averages.n_users, self.averages.entry_weights
        self.log_column = LOG_SCALE * self.averages.design[:, 1]
        self.N, self.typical_ratings = self.averages.mass, self.averages.typical_weight**-2.0
        self.signal = 0.0  # of all cohorts so far: see `choose_rank`

    def begin(self) -> None:
        """Release the means, choose the rank, and start the factors."""
        for t in range(MEAN_ROUNDS):
            self.averages.release(MEANS, t)
        self.rank = self.choose_rank()
        self.start(self.rank)

    def round(self, t: int) -> None:
        """Make a round's releases: of gradients, or of means where there are no factors."""
        if not self.rank:
            for name in (GRADIENTS, GRAM):
                self.averages.release(name, t)
            self.posterior.theta[:, 0] = self.averages.mean
            return
        own = self.gradient_round(t, CLIP, self.constant)
        sure = not self.private or self.n_known or (self.gram is not None and self.gram.tastes)
        if sure or t != (self.settings.max_iter - 1) // 2:
            return
        if not self.posterior.shows_factors(own, self.columns()[:, :N_LEAD]):
            self.averages.precision += self.posterior.alone[0]
            self.averages.shift += self.posterior.alone[1]
            self.rank, self.posterior = 0, self.first_posterior(0)

    def choose_rank(self) -> int:
        """Factors that the released counts support at this budget.

        They follow from their signal (`joint_release.reliability`). Popularities are posterior
        means: those of counts that drown in noise are small. One factor alone is no more than a
        sign, as x_i has the norm 1. Less than two free directions gain less than the means lose.
        """
        most = min(self.settings.n_components, self.n_items)
        if not self.private:
            return most
        N, trust = self.N, reliability(self.typical_ratings)
        self.signal = self.mu * (N @ N) / N.sum() * trust
        if self.known is not None:
            self.signal = float(np.hypot(self.signal, self.known.signal[0]))
        free = float(np.sqrt(self.signal / SIGNAL_PER_FACTOR))
        return max(min(round(free) + 1, most) if free >= 2.0 else 0, self.n_known)

    def start(self, rank: int) -> None:
        """Start the factors: known ones, then directions of co-ratings and of second moments."""
        n_known = self.n_known
        if rank == n_known:
            if self.gram is None:
                self.averages.release(RATED)
            self.averages.release(START)
        self.posterior = self.first_posterior(rank)
        if rank > n_known:
            V = self.posterior.theta[:, 1 : n_known + 1]
            new = without_known(self.directions(rank), V, self.posterior.mass)
            self.posterior.theta[:, n_known + 1 :] = new[:, : rank - n_known]

    def first_posterior(self, rank: int) -> update.PooledPosterior:
        """Return what is known of so many factors before any round."""
        variance = PRIOR_VARIANCE / self.settings.alpha
        return update.PooledPosterior(self.averages, rank, variance, self.known)

    def directions(self, rank: int) -> NDArray[np.float64]:
        """Release what factors start from; return directions, (n_items, at least rank)."""
        N, mass = self.N, self.posterior.mass
        if self.gram is None:
            head = common.most_popular(N, HEAD)
            given: Any = {"clip": 1.0, "grid": self.grid}
            chosen = sums.products(self.kept, common.co_rating_vectors, head, N[head], **given)
            released = self.release(RATED, chosen)
            noise = self.n_users, self.curator.deviation(RATED)
            terms = released, head, N, mass, rank
            by_choice = common.co_rating_directions(*terms, *noise)
        else:
            loadings = self.telling_loadings(self.gram)[:, :rank]
            by_choice = common.spread_over_head(loadings, self.gram.head, mass)
        moments, head = self.release_start(self.kept, self.averages.residuals(), N, CLIP)
        by_rating = common.head_directions(moments, head, mass, rank, self.curator.deviation(START))
        return np.column_stack((by_choice, by_rating))

    def telling_loadings(self, gram: ng.CleanGram) -> NDArray[np.float64]:
        """Return the loadings that random choices would not have.

        Rows y of norm 1 and random directions give the head's m items eigenvalues up to
        2 sqrt(n_users / m) off the diagonal. Where there are no tastes, there are none.
        """
        loadings, n_users = gram.loadings, self.n_users
        if not self.private:
            return loadings
        if self.known is not None and gram.sums is not None:
            n_users = gram.sums.n_users
        chance = 2.0 * np.sqrt(n_users / max(len(loadings), 1))
        tells = np.sum(loadings**2, axis=0) > chance
        return loadings[:, tells & (gram.tastes > 0)]

    def gram_of_choices(self) -> ng.CleanGram | None:
        """Return the model of choices; where counts promise nothing, they are released again."""
        if not self.settings.list_share:
            return None
        if not self.private:
            rows = self.kept.without_privacy()
            return ng.exact_gram(rows, common.alike(rows, 1.0))
        chosen = self.kept.map(common.alike, 1.0)
        known, people = self.known_counts()
        given: Any = {"known": self.choices, "public": people}
        gram = ng.noisy_gram(self.curator, self.kept, chosen, LISTS, *known, **given)
        if gram.sums is None:
            self.averages.release_counts(LISTS)
            if people is not None:
                (popularity, _), people = self.known_counts()
                n_users, columns = float(self.curator.n_rows), self.curator.item_columns
                gram = ng.with_public_gram(people, popularity, n_users, columns, range(ng.N_ROUNDS))
        self.choices = gram.sums
        return gram

    def known_counts(self) -> tuple[Any, Any]:
        """Return popularity with its deviations, and public people's choices; None: nobody's."""
        return (self.averages.mass, np.sqrt(self.averages.mass_variance)), None

    def columns(self) -> NDArray[np.float64]:
        """Item columns of the users' regressions: 1, b, log N, V."""
        theta, N = self.posterior.theta, self.N
        centred = theta[:, 0] - N @ theta[:, 0] / N.sum()  # over ratings
        return np.column_stack((np.ones(self.n_items), centred, self.log_column, theta[:, 1:]))

    def _ridge(self, factors: Any) -> NDArray[np.float64]:
        size = N_LEAD + len(factors)
        ridge = np.zeros((size, size))
        ridge[0, 0] = self.settings.user_damping
        ridge[1, 1] = ridge[2, 2] = HALF_RELIABLE * (1.0 + HALF_RELIABLE / self.typical_ratings)
        ridge[N_LEAD:, N_LEAD:] = self.settings.alpha * factors
        return ridge

    def user_half(self) -> tuple[Any, ...]:
        columns, b = self.columns(), self.posterior.theta[:, 0]
        rank = self.rank
        ridge = self._ridge(loop.TRAINING_RIDGE * rank * np.eye(rank))
        U = self.users.map(solve_users, b, columns, ridge)
        U, phi = self.users.map(with_unit_factors, U, self.constant)
        terms = self.kept.map(weighted_residuals, self.weight, U, np.column_stack((b, columns)))
        return self.kept, terms, phi, columns[:, N_LEAD:], ridge[N_LEAD:, N_LEAD:]

    def model(self) -> PooledModel:
        """Rotate the factors so that their ridge is a number; release the users' moments."""
        rank, factors, posterior = self.rank, np.zeros((0, 0)), self.posterior
        averages = self.averages.knowledge()
        knowledge = posterior.knowledge(averages, self.signal, self.choices)
        if rank:
            values, vectors = np.linalg.eigh(rank * posterior.spread)
            V = posterior.theta[:, 1:]
            posterior.theta[:, 1:] = V @ (vectors * np.sqrt(values)) @ vectors.T
            factors = rank * np.eye(rank)
        # alpha multiplies the ridge in the end, once it is learnt
        columns, guess = self.columns(), self._ridge(factors / self.settings.alpha)
        guess[0, 0] = self.settings.fold_in_damping
        users = first = self.first_users(guess)
        b, features = self.posterior.theta[:, 0], self.users.map(features_of, columns)
        scales = moment_scales(len(guess))
        total = np.zeros((len(scales), len(scales)))
        for t in range(MOMENT_ROUNDS):
            moments = sums.products(
                *(self.users, moment_vectors, features, users, b, columns), clip=1.0, grid=self.grid
            )
            total += unpack_lower(self.release(MOMENTS, moments, t))
            # a mean of all rounds so far, as of stochastic approximations of EM
            released, deviation = total / (t + 1), self.curator.deviation(MOMENTS) / np.sqrt(t + 1)
            users = update.learnt_users(released, deviation, scales, first, self.n_users)
        users.ridge[N_LEAD:, N_LEAD:] *= self.settings.alpha
        model = self.released(columns, users.ridge, users.slopes, np.zeros(self.n_items))
        return model._replace(knowledge=knowledge)

    def first_users(self, guess: NDArray[np.float64]) -> update.UserPrior:
        """Return the users' prior where noise hides everything, given its ridge."""
        slopes = np.zeros((len(guess) + 1, len(guess)))
        return update.UserPrior(slopes, guess, update.RESIDUAL_VARIANCE)

    def released(self, columns: Any, ridge: Any, prior: Any, item_ridge: Any) -> PooledModel:
        """Return the model that `columns` and the rest belong to."""
        size = columns.shape[1]
        # the plan's rank: columns of zeros, so that shapes do not show the rank
        full = size - self.rank + self.settings.n_components
        out, penalty = np.zeros((self.n_items, full)), np.eye(full)
        whole = np.zeros((full + 1, full))
        out[:, :size], penalty[:size, :size], whole[: size + 1, :size] = columns, ridge, prior
        lists, rows = None, None if self.private else self.kept.without_privacy()
        if self.gram is not None and (rows is None or common.shows_tastes(rows)):
            own = float(self.curator.n_rows)
            n_users = own if self.gram.sums is None else self.gram.sums.n_users
            lists = ng.lists_of(self.gram, self.averages.mass * (n_users / own), n_users)
        means = self.posterior.theta[:, 0].copy()
        popularity = self.log_column / LOG_SCALE
        return PooledModel(means, out, penalty, item_ridge, whole, lists, popularity)


def without_known(
    directions: NDArray[np.float64], V: NDArray[np.float64], mass: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return what known factors V (n_items, k) leave of directions (n_items, d), the most first.

    Projections and norms have the items' weights; a direction keeps its norm.
    """
    if not V.shape[1]:
        return directions
    weighted = V * mass[:, None]
    rest = directions - V @ np.linalg.lstsq(weighted.T @ V, weighted.T @ directions, rcond=None)[0]
    before, after = (np.sqrt(np.maximum(mass @ part**2, 1e-300)) for part in (directions, rest))
    order = np.argsort(-after, kind="stable")
    return np.asarray((rest * (before / after))[:, order])


# Maps of `Users`: values of each user alone


def solve_users(rows: Rows, b: Any, columns: Any, ridge: Any) -> NDArray[np.float64]:
    """Return z_i, the ridge regression of y_i - b on the columns."""
    Z = np.empty((rows.n_users, columns.shape[1]))

    def solve(start: int, stop: int) -> None:
        indptr = rows.indptr[start : stop + 1]
        own = slice(indptr[0], indptr[-1])
        y = np.take(b, rows.indices[own], mode="clip")  # mode "raise" makes a copy
        np.subtract(rows.data[own], y, out=y)
        given = indptr - indptr[0], rows.indices[own], y, columns, ridge
        solve_rows(*given, 0, stop - start, Z[start:stop])

    rows.run(solve)
    return Z


def left(rows: Rows, b: Any, Z: Any, columns: Any) -> NDArray[np.float64]:
    """Ratings less their predictions b_j + z_i . columns_j."""
    left = np.empty(rows.nnz)
    U, V = np.column_stack((np.ones(rows.n_users), Z)), np.column_stack((b, columns))

    def subtract(start: int, stop: int) -> None:
        own = slice(rows.indptr[start], rows.indptr[stop])
        predict_entries(rows.indptr, rows.indices, U, V, start, stop, left)
        np.subtract(rows.data[own], left[own], out=left[own])

    rows.run(subtract)
    return left


def with_unit_factors(rows: Rows, Z: Any, constant: float) -> tuple[Any, Any]:
    """Return (1, z_i) with x_i, of norm 1 (a hair less), in the place of u_i; phi_i = (a, x_i)."""
    n, size = Z.shape
    U, phi = np.empty((n, 1 + size)), np.empty((n, 1 + size - N_LEAD))

    def scale(start: int, stop: int) -> None:
        block = slice(start, stop)
        x = Z[block, N_LEAD:]
        norm = np.maximum(np.linalg.norm(x, axis=1), update.LEAST_LENGTH)
        x = x * (common.INSIDE / norm[:, None])
        U[block, 0], U[block, 1 : 1 + N_LEAD], U[block, 1 + N_LEAD :] = 1.0, Z[block, :N_LEAD], x
        phi[block, 0], phi[block, 1:] = constant, x

    rows.run(scale)
    return U, phi


def weighted_residuals(
    rows: Rows, weight: Any, U: Any, V: Any, *, of_clicks: bool = False
) -> NDArray[np.float64]:
    """Return w_ij e_ij, abs(e_ij) <= 4: ratings, or 1 for clicks, less U_i . V_j."""
    out, norms = np.empty(rows.nnz), np.empty(rows.n_users)
    target = np.ones(rows.nnz) if of_clicks else rows.data
    given = rows.indptr, rows.indices, target, weight, U, V, 4.0
    rows.run(lambda start, stop: weigh_residuals(*given, start, stop, out, norms))
    return out


def features_of(rows: Rows, columns: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return `user_features` of the users."""
    return user_features(rows.indptr, rows.indices, columns, rows.n_jobs)


def posteriors(
    indptr: Any,
    indices: Any,
    values: Any,
    factors: Any,
    variances: Any,
    ridge: Any,
    priors: Any,
    noise: float,
    n_jobs: int | None,
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Call `row_posteriors` in threads; variances: of the factors, by one shape for all rows.

    v_jc ~ (sum_c v_jc) (sum_j v_jc) / sum v: one product per rating in the place of k.
    """
    n, k = indptr.size - 1, factors.shape[1]
    x, spread, losses = np.empty((n, k)), np.empty((n, k)), np.empty(n)
    y, F = np.ascontiguousarray(values), np.ascontiguousarray(factors)
    size, shape = variances.sum(axis=1, keepdims=True), variances.sum(axis=0)
    doubts = _sums_of_rated(indptr, indices, size, n_jobs) * (shape / max(shape.sum(), 1e-300))
    given = y, F, doubts, ridge, priors

    def solve(start: int, stop: int) -> None:
        row_posteriors(indptr, indices, *given, noise, start, stop, x, spread, losses)

    run_blocks(solve, indptr, n_jobs)
    return x, spread, losses


def moment_scales(size: int) -> NDArray[np.float64]:
    """Return the scales of t_i for `size` coefficients."""
    return np.array([LOG_SCALE, *((2 * size + 1) * [SCALE])])


def moment_vectors(
    rows: Rows, start: int, stop: int, features: Any, users: update.UserPrior, b: Any, columns: Any
) -> NDArray[np.float64]:
    """Return t_i of the users [start, stop) before it is clipped; zeros without ratings."""
    own, block = slice(rows.indptr[start], rows.indptr[stop]), slice(start, stop)
    f, n, size = features[block], rows.n_ratings[block], columns.shape[1]
    indptr, indices = rows.indptr[start : stop + 1] - rows.indptr[start], rows.indices[own]
    (Z, spread), losses = np.empty((2, len(n), size)), np.empty(len(n))
    y, sure, means = rows.data[own] - b[indices], np.empty((0, size)), f @ users.slopes
    results = 0, len(n), Z, spread, losses
    row_posteriors(indptr, indices, y, columns, sure, users.ridge, means, users.noise, *results)
    Z += row_signs(rows, size, start, stop) * np.sqrt(spread)
    T = np.column_stack((f, Z, np.sqrt(losses / np.maximum(n, 1))))
    return np.asarray(T * moment_scales(size) * (n[:, None] > 0))


def row_signs(rows: Rows, size: int, start: int, stop: int) -> NDArray[np.float64]:
    """Return +-1, (stop - start, size): by a public hash of the row, so that no order matters."""
    total = np.zeros(stop - start, np.uint64)
    hash_rows(rows.indptr, rows.indices, rows.data.view(np.uint64), _ODD, start, stop, total)
    key = total * _ODD[1]
    key ^= key >> np.uint64(29)
    bits = (key * _ODD[2])[:, None] >> (np.arange(size, dtype=np.uint64) % np.uint64(64))
    return np.where(bits & np.uint64(1), 1.0, -1.0)


def user_features(indptr: Any, indices: Any, columns: Any, n_jobs: Any = 1) -> NDArray[np.float64]:
    """Return f_i: log n_i less a typical one, and the means of the columns over the rated items.

    They are (n_users, d + 1), zeros for a user without ratings.
    """
    n = np.diff(indptr)
    means = _sums_of_rated(indptr, indices, columns, n_jobs) / np.maximum(n, 1)[:, None]
    return np.column_stack((np.where(n > 0, np.log1p(n) - TYPICAL_LOG_COUNT, 0.0), means))


def _sums_of_rated(indptr: Any, indices: Any, table: Any, n_jobs: Any) -> NDArray[np.float64]:
    """Return sums of the rows of a table (n_items, c) over each user's items, (n_users, c)."""
    sums = np.empty((len(indptr) - 1, table.shape[1]))

    def add(start: int, stop: int) -> None:
        own, part = indptr[start : stop + 1] - indptr[start], indices[indptr[start] : indptr[stop]]
        ones = sparse.csr_array((np.ones(len(part)), part, own), (stop - start, len(table)))
        sums[start:stop] = ones @ table

    run_blocks(add, indptr, n_jobs)
    return sums
