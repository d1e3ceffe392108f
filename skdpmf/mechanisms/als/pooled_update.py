"""Item vectors from the noisy gradients of all rounds and one pooled Gram matrix a round.

Notation of `skdpmf.mechanisms.als.pooled`. A round measures, for every item j,

    G_j = M_j F (theta*_j - theta_j) + error,   cov(error) = rho_j I,
    rho_j = noise^2 + sampling + var(M_j) |F S_j^1/2|^2 / d,

S_j being the posterior covariance of theta_j so far: a popularity that is not well known measures
what is not known about theta_j badly. So h_j = G_j + M_j F theta_j measures M_j F theta*_j, and

    P_j = P_j + M_j^2 F'F / rho_j,   p_j = p_j + M_j F' h_j / rho_j,
    theta_j = (P_j + L)^-1 (p_j + L (line_j, 0)),

line_j linear in E log N_j. With public item columns D_j, theta_j ~ N((line_j, 0) + B' D_j, L^-1),
the entries of B ~ N(0, L^-1), as without privacy. In units of L^-1/2, with C_j = (I + P_j)^-1,

    [sum_j D_j D_j' W_jc + I] B_c = sum_j D_j s_jc,   W_j = C_j P_j,   s_j = C_j p_j,

is solved coordinate by coordinate in the eigenvectors of the items' mean P_j, where the W_j are
nearly diagonal: all rounds measure all items in the same directions.

The posterior starts with what `residual_rounds` knows of the means, of sampling too where there are
factors. Before round t what P_j and p_j say about v_j given b_j is discounted by 1 - 1 / t, so that
round s has the weight s / t, and the rest, about b_j alone, is not.
A refresh adds what earlier fits say (`PooledKnowledge`), and does not discount it: other people's
sampling and noise are in it.

Nothing here touches data: all of it is post-processing.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigvalsh

from skdpmf.kernels.als import invert
from skdpmf.mechanisms.als.item_update import kept_by, lift
from skdpmf.mechanisms.common import in_slices
from skdpmf.mechanisms.gram.item_item import NO_SUMS, GramSums
from skdpmf.mechanisms.item_means.joint_release import KNOTS, geometric_mean, item_prior
from skdpmf.mechanisms.item_means.joint_release import RATING_VARIANCE as RESIDUAL_VARIANCE
from skdpmf.mechanisms.item_means.residual_rounds import CLIP_DEVIATION, CLIP_FACTOR
from skdpmf.mechanisms.knowledge import Knowledge

Floats = NDArray[np.float64]

# Guard: least eigenvalue of a Gram matrix, relative to the largest; length of a user's vector,
# where it is divided by; ratios of variances that are tried
_LEAST_OF_GRAM, LEAST_LENGTH = 1e-6, 0.1
_RATIOS = np.geomspace(0.02, 50.0, 100)


class PooledKnowledge(NamedTuple):
    """Released values of all fits so far, where a refresh starts, in the frame that fits share.

    The precision of what gradients showed of theta_j is s_j K + e_j E, E with a 1 for b_j alone:
    they measure all items in the same directions.
    """

    # the parts of `Knowledge`; clicks have no averages, and tastes in the place of the level
    counts: Floats
    exposure: Floats
    precision: Floats
    shift: Floats
    scalars: Floats
    factor_shift: Floats  # (n_items, k + 1) precision times mean
    factor_weights: Floats  # (n_items, 2) s_j, e_j
    factor_gram: Floats  # (k + 1, k + 1) K
    spread: Floats  # (k, k) second moment of users' unit vectors
    signal: Floats  # (1,) of all cohorts
    head: NDArray[np.int64]  # the parts of `GramSums`; empty: no lists so far
    shares: Floats
    packed: NDArray[np.float32]
    facts: Floats

    @property
    def averages(self) -> Knowledge:
        """The knowledge of the items' averages."""
        return Knowledge(*self[:5])

    @property
    def tastes(self) -> tuple[float, float]:
        """Precision of what clicks show of the share of tastes, and precision times share."""
        return float(self.scalars[1]), float(self.scalars[2])

    @property
    def choices(self) -> GramSums:
        """The Gram matrices of what is rated."""
        return GramSums(*self[10:])

    @property
    def rank(self) -> int:
        """Factors that earlier fits had."""
        return len(self.spread)

    def with_items(self, n_new: int) -> "PooledKnowledge":
        """Return it with items appended of which nothing is known."""
        rows = [np.pad(part, ((0, n_new), (0, 0))) for part in self[5:7]]
        parts: Any = (*self.averages.with_items(n_new), *rows, *self[7:])
        return PooledKnowledge(*parts)

    def fits(self, n_items: int) -> bool:
        """Whether it is of so many items, as a file should say."""
        d = self.spread.shape[-1] + 1
        shapes = (n_items, d), (n_items, 2), (d, d), (d - 1, d - 1), (1,)
        holds = tuple(part.shape for part in self[5:10]) == shapes and self.averages.fits(n_items)
        holds = holds and self.choices.fit(n_items)
        return holds and bool((self.factor_weights >= 0.0).all() and self.signal[0] >= 0.0)


class PooledPosterior:
    """Gaussian posterior of all item vectors, of whose factors nothing is known at first.

    ``averages`` know the items' popularity, weights and means; L = diag(1 / item_variance,
    1 / factor_variance, ...). ``known`` is of earlier fits, whose factors are the first.
    """

    unobserved: Any = 0.0  # what pairs without a click add to M_j
    # evidence of ratings on b_j by noise alone; `even`: variance over that with four samplings
    alone: Any = None

    def __init__(
        self, averages: Any, rank: int, factor_variance: float, known: PooledKnowledge | None = None
    ) -> None:
        curator, known_mean = averages.curator, averages.evidence
        P, p = averages.precision, averages.shift
        self.item_columns, self.n_jobs = curator.item_columns, curator.n_jobs
        self.mass, self.squares = averages.weights, averages.weights * averages.typical
        self.mass_variance = averages.mass_variance * (averages.weights / averages.mass) ** 2
        x, variance = known_mean[1] / known_mean[0], 1.0 / known_mean[0]
        variance, self.line = item_prior(
            x, variance + averages.sampling, averages.design, averages.prior_variance
        )
        prior = np.full((self.mass.size, rank + 1), 1.0 / factor_variance)
        prior[:, 0] = 1.0 / variance
        sampled = (rank > 0) * (1.0 - 1.0 / (1.0 + P * averages.sampling))
        self.start(prior, known, (known_mean[0] - sampled * P, known_mean[1] - sampled * p))
        self.alone, self.even = np.zeros((2, self.mass.size)), np.ones(self.mass.size)
        self.solve()

    def start(self, prior: Floats, known: PooledKnowledge | None, mean: Any = (0.0, 0.0)) -> None:
        """Begin with what is known; prior (n_items, d): diagonals of L; mean: evidence on b_j."""
        n_items, d = prior.shape
        self.prior, self.known_mean = prior, mean
        self.precision, self.shift = np.zeros((n_items, d, d)), np.zeros((n_items, d))
        self.precision[:, 0, 0], self.shift[:, 0] = mean
        self.theta, self.covariance = np.zeros((n_items, d)), np.zeros((n_items, d, d))
        self.spread = np.eye(d - 1) / max(d - 1, 1)  # second moment of x
        self.base: Any = None  # P_j and p_j of earlier fits
        if known is not None:
            n = known.rank
            self.base = unpacked_evidence(known, n_items, d)
            self.spread[:n, :n] = known.spread * n / max(d - 1, 1)
        self.n_rounds, self._grams, self._gram_weight = 0, np.zeros((d, d)), 0.0

    def pooled_gram(self, gram: Floats, deviation: float, a: float) -> Any:
        """Posterior mean of H / n, from rounds with noise of this deviation, and a weak guess."""
        weight = 1.0 / max(deviation, 1e-9) ** 2
        kept = kept_by(self.n_rounds + 1)
        self._grams = kept * self._grams + weight * gram
        self._gram_weight = kept * self._gram_weight + weight
        d = len(gram)
        guess = np.full(d, CLIP_FACTOR / (d - 1))
        guess[0] = CLIP_FACTOR * a**2
        sure = CLIP_DEVIATION**-2.0
        return _positive((self._grams + sure * np.diag(guess)) / (self._gram_weight + sure))

    def add_gradients(self, gradients: Floats, gram: Floats, a: float, noise: float) -> None:
        """Add a round: released G, and what is known of H / n."""
        F = gram.copy()
        F[:, 0] /= a
        d = len(F)
        self.n_rounds += 1
        slope, square = self.mass + self.unobserved, F.T @ F

        def add(part: slice) -> None:
            discount(self.precision[part], self.shift[part], kept_by(self.n_rounds))
            unknown = np.einsum("jbc,bc->j", self.covariance[part], square) / d
            sampling = 0.5 * (self.n_rounds + 1) * RESIDUAL_VARIANCE * self.squares[part] / (d - 1)
            doubt = noise**2 + self.mass_variance[part] * unknown
            variance = doubt + sampling
            gain = slope[part] / variance
            self.precision[part] += (gain * slope[part])[:, None, None] * square
            measured = gradients[part] + self.mass[part, None] * (self.theta[part] @ F.T)
            self.shift[part] += gain[:, None] * (measured @ F)
            if self.alone is None:
                return
            self.even[part] = variance / (doubt + 4.0 * sampling)
            first = slope[part] * F[0, 0]
            self.alone[:, part] += first / doubt * np.stack((first, measured[:, 0]))

        in_slices(add, len(self.shift), self.n_jobs)
        self.solve()
        self.spread = gram[1:, 1:] / np.trace(gram[1:, 1:])

    def shows_factors(self, own: Floats, known: Floats) -> bool:
        """Return whether the rounds so far show factors: more than noise and chance would.

        Where there are none, the evidence p_j on v_j, less what ``own`` ratings (n_items, k) add to
        it, has the covariance P_j. All rounds iterate on the same ratings, so that chance has up to
        twice its deviation in a direction (the semicircle's end), four times its variance. Users
        have coefficients for what ``known`` explains, (n_items, c), so that it is no factor. Twice
        the root of `exceeds_chance` is asked for.
        """
        P, p = self.precision[:, 1:, 1:], self.shift[:, 1:]
        p = p - np.einsum("jab,jb->ja", P, own) - self.precision[:, 1:, 0] * self.theta[:, :1]
        size = np.einsum("jaa->j", P)[:, None]
        root = np.sqrt(size)
        p -= size * known @ np.linalg.lstsq(root * known, p / root, rcond=None)[0]
        return exceeds_chance(p * np.sqrt(self.even)[:, None], P.sum(axis=0), size, 2.0)

    def knowledge(self, averages: Knowledge, signal: float, choices: Any = None) -> PooledKnowledge:
        """Return what a refresh starts from."""
        P, p = (part.copy() for part in self._evidence())
        P[:, 0, 0] -= self.known_mean[0]
        p[:, 0] -= self.known_mean[1]
        evidence = packed_evidence(P, p, self.theta)
        return knowledge_of(averages, evidence, self.spread, signal, choices)

    def _evidence(self) -> tuple[Floats, Floats]:
        """P_j and p_j of this fit and of earlier ones."""
        if self.base is None:
            return self.precision, self.shift
        return self.precision + self.base[0], self.shift + self.base[1]

    def solve(self) -> None:
        """Posterior means and covariances, by all that is known."""
        prior, centre = self.prior, np.zeros_like(self.shift)
        centre[:, 0] = self.line
        if self.item_columns.shape[1]:
            centre += self._explained(prior, centre)
        P, p, pull = *self._evidence(), prior * centre
        diagonal = np.arange(prior.shape[1])

        def solve(part: slice) -> None:
            turned = P[part].transpose(1, 2, 0).copy()
            turned[diagonal, diagonal] += prior[part].T
            invert(turned)
            self.covariance[part] = turned.transpose(2, 0, 1)
            right: Any = p[part] + pull[part]
            self.theta[part] = (self.covariance[part] @ right[:, :, None])[:, :, 0]

        in_slices(solve, len(self.shift), self.n_jobs, 64)  # which stay in the caches

    def _explained(self, prior: Any, centre: Any) -> Floats:
        """D_j B: what the item columns show of the item vectors beside their centre."""
        D, root = self.item_columns, np.sqrt(prior)
        P, p = self._evidence()
        p = (p - np.einsum("jab,jb->ja", P, centre)) / root
        P = P / root[:, :, None] / root[:, None, :]
        turn = np.linalg.eigh(P.mean(axis=0))[1]
        P = turn.T @ P @ turn
        C = np.linalg.inv(np.eye(len(turn)) + P)
        s, W = np.einsum("jab,jb->ja", C, p @ turn), 1.0 - np.einsum("jaa->ja", C)
        B = np.empty((D.shape[1], len(turn)))
        for c in range(len(turn)):
            gram = (D * W[:, c, None]).T @ D + np.eye(D.shape[1])
            B[:, c] = np.linalg.solve(gram, D.T @ s[:, c])
        return np.asarray(D @ B @ turn.T / root)


def exceeds_chance(p: Floats, total: Floats, size: Floats, roots: float = 1.0) -> bool:
    """Return whether evidence p_j (k,) is more than noise: of covariance P_j, it is noise alone.

    total: sum_j P_j. Relative to it, sum_j p_j p_j' of noise has eigenvalues up to
    (1 + sqrt(k / m))^2 (V. Marchenko and L. Pastur, 1967), m the items that count as much,
    (sum_j |P_j|)^2 over sum_j |P_j|^2, where size_j = |P_j|.
    """
    doubt = np.sqrt(len(total) * np.sum(size**2)) / size.sum()
    return bool(eigvalsh(p.T @ p, total)[-1] > (1.0 + roots * doubt) ** 2)


def knowledge_of(
    averages: Knowledge, evidence: Any, spread: Any, signal: float, choices: GramSums | None = None
) -> PooledKnowledge:
    """Return the parts in one; evidence: `packed_evidence`."""
    parts: Any = (*averages, *evidence, spread.copy(), np.array([signal]), *(choices or NO_SUMS))
    return PooledKnowledge(*parts)


def discount(P: Floats, p: Floats, kept: float) -> None:
    """Keep a part of what is known about factors, and all about the means alone, in place."""
    if P.shape[1] == 1:
        return
    cross = np.linalg.solve(P[:, 1:, 1:] + 1e-9 * np.eye(P.shape[1] - 1), P[:, 1:, :1])[:, :, 0]
    alone = np.maximum(P[:, 0, 0] - np.sum(cross * P[:, 1:, 0], axis=1), 0.0)
    shift = p[:, 0] - np.sum(cross * p[:, 1:], axis=1)
    P *= kept
    p *= kept
    P[:, 0, 0] += (1.0 - kept) * alone
    p[:, 0] += (1.0 - kept) * shift


def packed_evidence(P: Floats, p: Floats, theta: Floats) -> tuple[Floats, Floats, Floats]:
    """Return evidence as `PooledKnowledge` has it; the posterior mean theta stays where it is."""
    K = P.mean(axis=0)
    first = K[0, 0]
    s = np.einsum("jab,ab->j", P, K) - P[:, 0, 0] * first
    s = np.maximum(s / max(float(np.sum(K**2)) - first**2, np.finfo(np.float64).tiny), 0.0)
    e = np.maximum(P[:, 0, 0] - s * first, 0.0)
    change = s[:, None, None] * K - P
    change[:, 0, 0] += e
    return p + np.einsum("jab,jb->ja", change, theta), np.column_stack((s, e)), K


def unpacked_evidence(known: PooledKnowledge, n_items: int, d: int) -> tuple[Floats, Floats]:
    """Return P_j and p_j of earlier fits, (n_items, d, d) and (n_items, d)."""
    size = len(known.factor_gram)
    P = known.factor_weights[:, 0, None, None] * known.factor_gram
    p = known.factor_shift.copy()
    P[:, 0, 0] += known.factor_weights[:, 1]
    precision, shift = np.zeros((n_items, d, d)), np.zeros((n_items, d))
    precision[:, :size, :size], shift[:, :size] = P, p
    return precision, shift


def _positive(gram: Floats) -> Floats:
    """Return the Gram matrix with the factors' eigenvalues, and the constant's, above 0."""
    gram = gram.copy()
    gram[0, 0] = max(gram[0, 0], LEAST_LENGTH**2)
    gram[1:, 1:] = lift(gram[1:, 1:])
    return gram


def own_ratings(V: Floats, share: Floats, n_ratings: float, noise: float, ridge: Floats) -> Floats:
    """Return E y_ij x_i, (n_items, k), for ratings that are noise: what x_i has learnt of y_ij.

    x_i = u_i / |u_i|, of second moment I / k, u_i = A^-1 sum_j y_ij v_j with A = B + ridge and
    B = n_ratings sum_j share_j v_j v_j': a typical user, whose items are drawn by popularity. By
    Stein's lemma it is noise (I - x_i x_i') A^-1 v_j / |u_i|, with E u_i u_i' = A^-1 (B B / k +
    noise B) A^-1 in the place of u_i u_i'.
    """
    seen = n_ratings * (V * share[:, None]).T @ V
    inverse = np.linalg.inv(seen + ridge)
    moment = inverse @ (seen @ seen / len(seen) + noise * seen) @ inverse
    square = max(float(np.trace(moment)), LEAST_LENGTH**2)
    along = 0.5 * (moment @ inverse + inverse @ moment) / square
    return np.asarray(V @ (noise * (inverse - along) / np.sqrt(square)))


class UserPrior(NamedTuple):
    """Prior of users' coefficients: z_i ~ N(f_i slopes, noise ridge^-1)."""

    slopes: Floats  # (p, q)
    ridge: Floats  # (q, q)
    noise: float  # variance of a rating around the model
    doubt: float = 1.0  # deviation of the logarithm of a variance, as it is thought of


def learnt_users(
    released: Floats, deviation: float, scales: Floats, first: UserPrior, count: float
) -> UserPrior:
    """Return the prior from noisy second moments of (f_i, z_i, root mean squared residual).

    With the prior covariance and the noise in units of those of ``first``, each entry is a
    measurement with noise. Variances are thought to be 1 but for a factor of e or so
    (`likely_ratio`): people of one catalogue may differ in level ten times as much as those of
    another. Covariances are 0.

    ``released`` (p + q + 1, p + q + 1) are sums over ``count`` users of products, scaled by
    ``scales``; ``first``, without slopes and of a diagonal ridge, holds where noise hides all.
    """
    p, guess = len(released) - len(first.ridge) - 1, np.diag(first.ridge)
    slopes = noisy_regression(released[:p, :p], released[:p, p:-1], deviation)
    explained = slopes * (2.0 * released[:p, p:-1] - released[:p, :p] @ slopes)
    left = np.diag(released)[p:-1] - explained.sum(axis=0)
    unit = count * scales[p:-1] ** 2 * first.noise / guess
    doubts = np.full(left.size, first.doubt)
    ratio = np.array(list(map(likely_ratio, left / unit, deviation / unit, doubts)))
    unit = count * scales[-1] ** 2 * first.noise
    noise = likely_ratio(released[-1, -1] / unit, deviation / unit, first.doubt)
    slopes *= scales[:p, None] / scales[p:-1]
    return UserPrior(slopes, np.diag(noise * guess / ratio), first.noise * noise)


def likely_ratio(measured: float, error: float, doubt: float = 1.0) -> float:
    """Return a ratio > 0, of 1 but for a factor, from a measurement with an error of this size."""
    tried = np.append(_RATIOS, np.clip(measured, _RATIOS[0], _RATIOS[-1]))
    density = ((measured - tried) / max(error, 1e-9)) ** 2 + (np.log(tried) / doubt) ** 2
    return geometric_mean(tried, -0.5 * density)


def noisy_regression(gram: Any, cross: Any, noise: float) -> Floats:
    """Slopes (p, q) of a regression from noisy moments (p, p) and (p, q), shrunk as noise demands.

    In expectation cross = gram @ slopes. In the eigenbasis of the Gram matrix, with eigenvalues l,
    the entries of cross are N(0, t l^2 + noise^2) for slopes N(0, t), and the posterior mean of
    the slopes is l / (l^2 + noise^2 / t) times them. t is the most probable one of a few, 0 among
    them: slopes that drown in noise become 0.

    ``gram`` (p, p) and ``cross`` (p, q) are released moments of features, and of features and
    targets, ``noise`` the deviation of their noise. Without noise it is a plain regression.
    """
    values, vectors = np.linalg.eigh(gram)
    values = np.maximum(values, 0.0)
    seen, least = vectors.T @ cross, _LEAST_OF_GRAM * max(float(values.max()), 1e-100)

    def density(t: float) -> float:
        total = t * values[:, None] ** 2 + noise**2
        return -float(np.sum(seen**2 / total + np.log(total)))

    t = max((0.0, *KNOTS), key=density) if noise else 1.0
    return np.asarray((vectors * (t * values / (t * (values**2 + least**2) + noise**2))) @ seen)
