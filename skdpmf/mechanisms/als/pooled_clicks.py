r"""Private factors of clicks from pooled gradients: every release of every round adds up.

Counts, weights w_ij (sum_j w_ij^2 <= 1 for every user, c_ij <= 1 the weight of a click) and the
choice of the rank are those of `skdpmf.mechanisms.als.clicks`, the posterior that of
`skdpmf.mechanisms.als.pooled`. A score starts from the item's popularity and has the loss

    sum over clicks of c_ij (1 - s_ij)^2 + a0 sum over all i, j of s_ij^2,   s_ij = b_j + u_i . v_j,

b_j = p_j / (p_j + a0) being its minimum without factors, p_j the share of users who clicked j by
the released counts. So factors show only how a user differs from the popularity. The rest is

1. start: the leading eigenvectors of sum_i y_i y_i', without its diagonal, y_i the user's
   (w_ij c_ij (1 - b_j))_j on the most popular items, |y_i| <= C. The multiple of q q' that fits the
   released moments best is taken off, q what is expected of y: popularity is in b already.
   Sensitivity C^2 (Frobenius).
2. rounds: users are solved exactly and locally, on all of their clicks; with x_i = u_i / |u_i|,
   phi_i = (a, x_i), theta_j = (b_j / a, v_j) and e_ij = 1 - phi_i . theta_j,

       G_j = sum_i f_i w_ij c_ij e_ij phi_i,   f_i = min(1, C r / (|w_i c_i e_i| |phi_i|)),
       H   = sum_i f_i phi_i phi_i',           r^2 = 1 + a^2,

   of sensitivities C r (all items stacked) and r^2 (Frobenius).

Both bounds hold whatever the clicks, weights and theta are: a user's part of each sum is a function
of the user's row, its slot, public constants and earlier releases, 0 for an empty row, and its norm
is clipped. They are for adding or removing a user, by the sums' proofs also for
replacing one. All else is post-processing. What unobserved pairs add to an item's gradient,
-a0 s_j H theta_j with s_j the typical weight of its clicks, takes every user's phi_i: it is made of
H as released, and only so. A user's vector has learnt from the same click that its residual is of:
where nobody has tastes, E e_ij x_i is not 0 but e_ij^2 times the derivative of x_i by the click,
and v_j would grow on it. As with ratings (`own_ratings`), most of it is taken off G_j.

**Item features.** With public columns D_j, less their mean by b, the fold-in has columns b_j D_j
for a user's tastes. Their variance is estimated from the moments of the start: these are expected
to hold f A A' / n, A_j = M_j (1 - b_j) D_j, and f is the regression's share less its error by
noise (`share_of_features`). Where it is 0 there are no tastes.

**A refresh** starts from `PooledKnowledge` of earlier fits, on other people: from their counts,
their posterior, and their factors, in the frame that all fits share. A larger signal adds factors,
from directions that the known ones have not; where it adds none, and there are no tastes to learn,
the release of the start goes to the counts. Shares f are averaged by their precision. Bounds
depend on none of these numbers (`skdpmf.mechanisms.knowledge`).

**The posterior.** In expectation G_j - a0 s_j H theta_j = (M_j + a0 s_j n) (H / n) (theta*_j -
theta_j), M_j the expected sum of weights: clickers of an item are taken to have the second moments
of all users, whose noise averages out, since this changes the size of a step and not where steps
end. v_ja is N(0, t_a b_j^2) a priori: affinities are relative to popularity. After each round t_a
is the posterior mean of v_ja^2 / b_j^2 over all items (a step of expectation maximisation): factors
that the releases do not show lose their variance.

**Public people** (rows of people who agreed to it) are outside of the guarantee: the exact model
below is fitted to their clicks, and what is made of it is a public value. No release depends on it
but through popularity, which is the mean, by precision, of both parts. A user's regression has
columns of both: the factors W of public people beside b and V, in the exact model's form, which it
is where V = 0. An item that no public person chose has the W_j that b_j and V_j let expect, by
regression on the other items, weighted by popularity. The model is by b alone, by b and V, by b and
W, or by all three: the one that ranks every other click of public people best, by discounted gain.
W has not seen who judges it: it is fitted to the other parts of public people, one in turn being
left out, and to all of them in the end.

**Without privacy** there is neither clip nor noise, nothing limits what is read off the clicks, and
none of the constants of private fits holds. With n_i the clicks of user i and N_j those on item j,

    sum over clicks of c_ij (1 - b_j - u_i . v_j)^2 + a0 sum over all i, j of (u_i . v_j)^2
      + alpha l (sum_i n_i |u_i|^2 + sum_j N_j |v_j|^2),

b_j as in `skdpmf.mechanisms.als.clicks`, is lowered by exact sweeps over users and items, which
start from the leading singular vectors of all clicks (`click_directions`). Penalties grow with the
clicks, so that one l serves dense and sparse catalogues, and any number of factors (S. Rendle et
al., "Revisiting the Performance of iALS on Item Recommendation Benchmarks", RecSys 2022, find the
same). Unless their number is given, `click_directions` counts the singular values that random
clicks would not have, leaves out that of popularity, and makes two factors for each of the others:
at least one factor, and at most `MOST_FACTORS`.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from skdpmf.kernels.als import solve_rows_weighted
from skdpmf.kernels.jit_and_threads import run_blocks
from skdpmf.mechanisms import common
from skdpmf.mechanisms.als import pooled
from skdpmf.mechanisms.als import pooled_update as update
from skdpmf.mechanisms.als.clicks import (
    COUNTS,
    NOTES,
    ClickFit,
    ClickModel,
    Settings,
    first_releases,
)
from skdpmf.mechanisms.als.loop import START, plan_of
from skdpmf.mechanisms.als.pooled import EXACT_ROUNDS, GRADIENTS, GRAM, weighted_residuals
from skdpmf.mechanisms.als.pooled_update import PooledKnowledge, packed_evidence
from skdpmf.mechanisms.common import unpack_lower
from skdpmf.mechanisms.gram import item_item as ng
from skdpmf.mechanisms.item_means.popularity import Popularity
from skdpmf.mechanisms.knowledge import Knowledge
from skdpmf.privacy.budget import PrivacyBudget
from skdpmf.privacy.curator_release import Curator
from skdpmf.privacy.frame import curator_of_public
from skdpmf.privacy.plan import ReleasePlan
from skdpmf.privacy.users import Rows

# Tuned: bias against noise. C, below a typical user's root mean squared residual, and a
CLIP, CONSTANT = 0.4, 0.5
# ridges, times alpha, of what a user's slope on b differs from 1 and of tastes for item features
# times their variance; and, times the rank as well, of u_i
SLOPE_RIDGE, FACTOR_RIDGE = 0.2, 0.05

# Tuned: bias against noise without privacy, where nothing above holds: l
CLICK_RIDGE = 0.06

# Guard: memory and time of factors without privacy
MOST_FACTORS = 128

# Tuned: time against bias. Parts of public people, each of which judges the factors of the others
PARTS = 5

# Tuned: share of the budget (of mu^2) for the start
START_SHARE = 0.15


def shares_of(budget: PrivacyBudget) -> dict[str, float]:
    """Return the shares of mu^2, all rounds together."""
    small = {START: START_SHARE, GRAM: common.SHARE / 2.0}
    return common.with_means_and_rest(small, budget, COUNTS, GRADIENTS)


def make_plan(budget: PrivacyBudget, settings: Settings, n_items: int) -> ReleasePlan:
    """Plan the releases of a fit, which spend the whole budget, from public values alone."""
    k, rounds, radius = settings.n_components, settings.max_iter, float(np.hypot(1.0, CONSTANT))
    counts, start, _ = first_releases(budget, settings, n_items, head_clip=CLIP)
    gradients = common.planned_vectors(
        *(budget, GRADIENTS, "sum over users of w c e phi for each item, every round"),
        *(n_items, k + 1),
        bound=CLIP * radius,
        count=rounds,
    )
    statistic = "sum over users of phi phi', every round"
    gram = common.planned_gram(budget, GRAM, statistic, k + 1, bound=radius, count=rounds)
    return plan_of(budget, [counts, start, gradients, gram], shares_of(budget), NOTES)


def fit(
    curator: Curator,
    settings: Settings,
    *,
    rounds: Iterable[int],
    known: PooledKnowledge | None = None,
    public: Any = None,
) -> ClickModel:
    """Make the plan's releases in their order and return the model they give.

    ``known`` is what earlier fits have released; public: clicks of public people.
    """
    run = _Fit(curator, settings, known)
    run.people = None if public is None else ng.learn_public(public)
    return run.run(rounds)


class _Fit(pooled.PooledRounds, ClickFit):
    people: Any = None  # what public people choose
    taste_variance = 0.0
    tastes = 0.0, 0.0  # precision of f in all cohorts, and precision times f

    def start(self) -> None:
        if not self.private:
            clicks, chosen = self.users.without_privacy().R, self.settings.chooses_rank
            self.factors = common.click_directions(clicks, self.rank, chosen)
            self.rank = self.factors.shape[1]
            return
        is_started = self.rank > self.n_known or self.curator.item_columns.shape[1] > 0
        if not is_started:
            self.count(START)
        if self.known is not None:
            self.tastes = self.known.tastes
        self.N, self.typical_ratings = self.popularity.mean, self.typical_weight**-2.0
        b = self.expected_scores()
        V = self.start_around(b) if is_started else np.zeros((self.n_items, self.rank))
        self.posterior = _Posterior(self, b, V)

    def by_all(self, own: Popularity, counts: Any, errors: Any) -> Popularity:
        if self.people is None:
            return own
        given = (counts, errors), (own.mean, np.sqrt(own.variance)), self.n_users
        _, mean, doubt = ng.with_public_counts(self.people, *given)
        # their number alone may drown in noise where their clicks do not
        found = mean.sum() * self.people.clicks.shape[0] / self.people.counts.sum()
        self.n_users = max(self.n_users, min(float(found), self.curator.n_rows))
        return Popularity(mean, np.log(mean), doubt**2)

    def expected_scores(self) -> NDArray[np.float64]:
        """B of items by their popularity alone."""
        share = np.minimum(self.popularity.mean / self.typical_weight / self.n_users, 1.0)
        return np.asarray(share / (share + self.settings.unobserved_weight))

    def item_half(self, t: int) -> None:
        if self.private:
            self.gradient_round(t, CLIP, CONSTANT)
        else:
            self.exact_round()

    def with_factors(self, V: NDArray[np.float64]) -> ClickModel:
        if not self.private:
            V[:, : self.rank] = self.factors
            return self.exact_model(self.factors.copy() if self.settings.chooses_rank else V)
        theta = self.posterior.theta
        values, vectors = np.linalg.eigh(self.rank * self.posterior.spread)
        b, V = CONSTANT * theta[:, 0], (theta[:, 1:] @ (vectors * np.sqrt(values))) @ vectors.T
        return self.folded(b, V) if self.people is None else self.beside_people(b, V)

    def exact_model(self, V: NDArray[np.float64], n_lead: int = 0) -> ClickModel:
        """The model without private fits' offsets, slopes and constant penalties."""
        everywhere = self.settings.unobserved_weight * (V.T @ V)
        penalty = self.settings.alpha * CLICK_RIDGE
        return ClickModel(self.offset, V, everywhere, rating_ridge=penalty, n_lead=n_lead)

    def beside_people(self, b: NDArray[np.float64], V: NDArray[np.float64]) -> ClickModel:
        """The model that predicts public people best of whom its factors W know nothing."""
        R, gains = self.people.clicks, np.zeros(4)
        part = np.arange(R.shape[0]) % PARTS
        for t in range(min(PARTS, R.shape[0])):
            own, others = (sparse.csr_array(R[part == t]), sparse.csr_array(R[part != t]))
            for k, model in enumerate(self.models(b, V, others)):
                gains[k] += self.gain_of(model, own)
        models = list(self.models(b, V, R))
        return models[int(np.argmax(gains[: len(models)]))]

    def models(self, b: Any, V: Any, clicks: Any) -> Iterator[ClickModel]:
        """By b, by V too, and by W of the clicks: without V and with it."""
        for k in (0, V.shape[1]):
            yield self.folded(b, V[:, :k])
        most = self.settings.n_components
        exact = replace(self.settings, n_components=MOST_FACTORS, chooses_rank=True)
        plan = make_plan(PrivacyBudget.nonprivate(), exact, self.n_items)
        given = clicks, plan, self.n_jobs, np.empty((self.n_items, 0))
        W: Any = _Fit(curator_of_public(*given), exact).run(range(EXACT_ROUNDS)).columns
        W = W[:, : W.shape[1] * (W.shape[1] > 1)]  # one alone is popularity
        if not W.shape[1] and clicks is self.people.clicks:
            return
        D = b[:, None] * self.tastes_around(b)
        lead = np.column_stack((b, D * np.sqrt(self.taste_variance)))
        chosen = np.bincount(clicks.indices, minlength=self.n_items)[:, None] > 0
        weight = chosen * np.sqrt(self.popularity.mean)[:, None]
        for F in (V[:, :0], V):
            own, zeros = np.column_stack((lead, F)), np.zeros((self.n_items, most - F.shape[1]))
            slopes = np.linalg.lstsq(weight * own, weight * W, rcond=None)[0]
            columns = np.column_stack((lead, np.where(chosen, W, own @ slopes), F, zeros))
            yield self.exact_model(columns, lead.shape[1] + W.shape[1])

    def gain_of(self, model: ClickModel, R: Any) -> float:
        """The discounted gain of every other click of public people, known by the others.

        It ranks the items that any of them chose: they may not have had the others to choose.
        """
        b, C, ridge = model[:3]
        hidden, user = np.arange(R.nnz) % 2 == 1, common.rows_of(R)
        centre = np.zeros(C.shape[1]) if model.prior is None else model.prior[1]
        penalty = np.maximum(np.bincount(user, ~hidden, R.shape[0]), 1.0) * model.rating_ridge
        X, target = np.empty((R.shape[0], C.shape[1])), (1.0 - b - C @ centre)[R.indices]
        given = R.indptr, R.indices, target, np.where(hidden, 0.0, R.data), C, ridge
        solve_rows_weighted(*given, penalty, 0, len(X), X)
        nobodys, gain = self.people.counts == 0.0, 0.0
        for i, z in enumerate(X + centre):
            own = slice(R.indptr[i], R.indptr[i + 1])
            items, asked, scores = R.indices[own], hidden[own], b + C @ z
            scores[nobodys] = scores[items[~asked]] = -np.inf
            better = np.searchsorted(np.sort(-scores), -scores[items[asked]])
            gain += float(np.sum(1.0 / np.log2(better + 2.0)))
        return gain

    def model(self) -> ClickModel:
        model = super().model()
        if self.people is not None and not self.rank:
            model = self.beside_people(self.expected_scores(), np.zeros((self.n_items, 0)))
        return model._replace(knowledge=self.knowledge()) if self.private else model

    def knowledge(self) -> PooledKnowledge:
        """Return what a refresh starts from."""
        nothing, scalars = np.zeros(self.n_items), np.array([self.count_variance, *self.tastes])
        own = Knowledge(self.counts.copy(), self.exposure.copy(), nothing, nothing, scalars)
        if self.rank:
            return self.posterior.knowledge(own, self.signal)
        evidence = packed_evidence(np.zeros((self.n_items, 1, 1)), *np.zeros((2, self.n_items, 1)))
        return update.knowledge_of(own, evidence, np.zeros((0, 0)), self.signal)

    def start_around(self, b: NDArray[np.float64]) -> NDArray[np.float64]:
        """Factors to start with: what clicks of popular items have in common beside popularity."""
        terms = self.weighted.map(_above, self.weight, b)
        noisy, head = self.release_start(self.weighted, terms, self.N, CLIP)
        expected, own = self.mass * (1.0 - b), np.tril_indices(head.size)
        product = expected[head][own[0]] * expected[head][own[1]] * (own[0] != own[1])
        noisy = noisy - (noisy @ product) / max(float(product @ product), 1e-300) * product
        deviation = self.curator.deviation(START)
        A = expected[head, None] * self.tastes_around(b)[head]
        scaled = unpack_lower(noisy) * self.n_users
        share, error = common.share_of_features(scaled, A, deviation * self.n_users)
        if error:
            precision, shift = np.array(self.tastes) + np.array([1.0, share]) / error**2
            share, error = shift / precision, precision**-0.5
            self.tastes = float(precision), float(shift)
        self.taste_variance = max(float(share - error), 0.0)
        V = common.head_directions(noisy, head, self.mass, self.rank, deviation)
        scale = np.sqrt(np.mean(V[head] ** 2))
        return np.asarray(V * (b / max(scale, 1e-300))[:, None])

    def tastes_around(self, b: NDArray[np.float64]) -> NDArray[np.float64]:
        """Item columns less their mean by popularity."""
        D = self.curator.item_columns
        return np.asarray(D - np.average(D, axis=0, weights=b))

    def user_half(self) -> tuple[Any, ...]:  # type: ignore[override]
        posterior, users = self.posterior, self.weighted
        b, V = CONSTANT * posterior.theta[:, 0], np.ascontiguousarray(posterior.theta[:, 1:])
        ridge, centre = self.everywhere(b, V, FACTOR_RIDGE * self.rank * np.eye(self.rank))
        phi = self.users.map(_solve_users, b, V, ridge, centre)
        terms = users.map(weighted_residuals, self.weight, phi, posterior.theta, of_clicks=True)
        return users, terms, phi, V, ridge

    def everywhere(self, b: Any, V: Any, penalty: Any) -> tuple[Any, Any]:
        """Matrix A and centre m: a0 sum_j (b_j + u . v_j)^2 + alpha u' penalty u is, but for a
        constant, (u - m)' A (u - m).
        """
        a0 = self.settings.unobserved_weight
        ridge = a0 * (V.T @ V) + self.settings.alpha * penalty
        return ridge, -np.linalg.solve(ridge, a0 * (V.T @ b))

    def folded(self, b: NDArray[np.float64], V: NDArray[np.float64]) -> ClickModel:
        """The model in which a user also has an offset and a slope on b."""
        D = b[:, None] * self.tastes_around(b) * (self.taste_variance > 0.0)
        k, rank, d = self.settings.n_components, V.shape[1], D.shape[1]
        columns = np.column_stack((np.ones(self.n_items), b, D, V))
        tastes = [SLOPE_RIDGE / max(self.taste_variance, 1e-3)] * d
        factors = [FACTOR_RIDGE * rank] * rank
        penalty = np.diag([1.0, SLOPE_RIDGE, *tastes, *factors])
        ridge, centre = self.everywhere(b, columns, penalty)
        # the plan's rank: columns of zeros, so that shapes do not show the rank
        size, full = 2 + d + rank, 2 + d + k
        out, whole = np.zeros((self.n_items, full)), np.eye(full)
        out[:, :size], whole[:size, :size] = columns, ridge
        prior = np.zeros((full + 1, full))
        prior[1, :size] = centre  # of the mean of the ones: 1 for users with clicks
        return ClickModel(b, out, whole, prior, n_lead=full - k)

    def exact_round(self) -> None:
        """Both halves without noise: a sweep of the loss of the module's docstring."""
        own, R = self.users.without_privacy(), self.kept.without_privacy()
        by_item = R.by_item
        item = np.repeat(np.arange(self.n_items), np.diff(by_item.indptr))
        target, weight = 1.0 - self.offset, R.data[by_item.data]
        X = self.half(own.indptr, own.indices, target[own.indices], own.data, self.factors)
        self.factors = self.half(by_item.indptr, by_item.indices, target[item], weight, X)

    def half(self, indptr: Any, indices: Any, target: Any, weight: Any, factors: Any) -> Any:
        """Ridge regressions of all rows on the factors of what clicks join them to.

        In single precision, in half the time, and turned until the term of all pairs is diagonal:
        the kernel does without Gram matrices then.
        """
        values, turn = np.linalg.eigh(factors.T @ factors)
        everywhere = np.diag(np.maximum(values, np.finfo(np.float32).eps * values[-1]))
        everywhere *= self.settings.unobserved_weight
        floats = target, weight, factors @ turn, everywhere, turn
        target, weight, factors, everywhere, turn = (np.asarray(x, np.float32, "C") for x in floats)
        penalty = (self.settings.alpha * CLICK_RIDGE * np.diff(indptr)).astype(np.float32)
        out = np.empty((len(indptr) - 1, factors.shape[1]), np.float32)
        given = indptr, indices, target, weight, factors, everywhere, penalty
        run_blocks(lambda a, b: solve_rows_weighted(*given, a, b, out), indptr, self.n_jobs)
        return out @ turn.T


# Maps of `Users`: values of each user alone


def _above(rows: Rows, weight: Any, b: Any) -> NDArray[np.float64]:
    """Weighted clicks less what popularity expects."""
    return np.asarray(weight * (1.0 - b[rows.indices]))


def _solve_users(rows: Rows, b: Any, V: Any, ridge: Any, centre: Any) -> NDArray[np.float64]:
    """phi_i of the exact local solves on all of a user's clicks: s_ij = b_j + u_i . v_j."""
    X, none = np.empty((rows.n_users, V.shape[1])), np.empty(0)
    target = (1.0 - b - V @ centre)[rows.indices]
    given = rows.indptr, rows.indices, target, rows.data, V, ridge, none
    rows.run(lambda start, stop: solve_rows_weighted(*given, start, stop, X))
    X = X + centre
    X *= common.INSIDE / np.maximum(np.linalg.norm(X, axis=1), 1e-12)[:, None]
    return np.column_stack((np.full(rows.n_users, CONSTANT), X))


class _Posterior(update.PooledPosterior):
    """The posterior of ratings, plus the terms of unobserved pairs, around popularities."""

    def __init__(self, run: _Fit, b: NDArray[np.float64], V: NDArray[np.float64]) -> None:
        self.item_columns, self.n_jobs = np.empty((len(V), 0)), run.n_jobs
        N, variance = run.popularity.mean, run.popularity.variance
        self.mass, self.squares = run.mass, run.mass * run.click_weight
        self.mass_variance = variance * (run.mass / N) ** 2
        self.unobserved = run.settings.unobserved_weight * run.click_weight * run.n_users
        self.line = b / CONSTANT
        # of theta_j: what counts leave open of b_j, and relative affinities
        factors = np.maximum(b**2 / run.settings.alpha, 1e-12)
        own = np.column_stack((self.line**2 * (variance / N**2 + 1e-4), *V.shape[1] * [factors]))
        self.start(1.0 / own, run.known)
        if run.known is None:
            self.theta, self.covariance = (
                np.column_stack((self.line, V)),
                own[:, :, None] * np.eye(own.shape[1]),
            )
            return
        self.solve()
        n = run.n_known
        new = pooled.without_known(V, self.theta[:, 1 : n + 1], self.mass)
        self.theta[:, n + 1 :] = new[:, : V.shape[1] - n]

    def add_gradients(self, gradients: Any, gram: Any, a: float, noise: float) -> None:
        super().add_gradients(gradients, gram, 1.0, noise)  # theta_j has b_j / a
        squares = self.theta**2 + np.einsum("jaa->ja", self.covariance)
        self.prior[:, 1:] /= np.mean(squares * self.prior, axis=0)[1:]
