r"""Expected error of a plan, from public sizes alone, before any fit.

Ratings, in quarter ranges, are thought to be b_j + o_i + sum_c u_ic v_jc + e_ij, all parts normal
and independent, of variances t (items), o (users), l_c (factors, each a share `decay` of the one
before; u_ic has variance 1) and s2. Item j has N_j of the ratings and user i n_i: they fall by rank
as if drawn without replacement with chances rank^-`popularity` and rank^-`activity`.

A release measures b_j with the variance of its noise, over expected counts squared, and of the
ratings that it samples. With the precision P_j of all releases E (b_j - b*_j)^2 = t / (1 + t P_j).

Factors and users learn from one another. A sum over users shows v_jc by the share q of u_ic that
is known: its noise counts 1 / q^2 and its sampling 1 / q times as much. With that precision J_jc

    R_jc = l_c J_jc / (1 + l_c J_jc),    Q_ic = x / (1 + x),  x = n_i l_c mean_j R_jc / s2

are the shares that are known of v_jc and u_ic, q the mean of Q, and a rating keeps l_c (1 - R Q) of
its factor's variance, which adds to s2. From R = q = 1 on this finds the largest fixed point, 0
where noise is too large: the state evolution of low-rank estimation (Y. Deshpande, A. Montanari,
"Information-theoretically optimal sparse PCA", ISIT 2014), with noise of its own for items.

The least error of all ranks up to the planned one counts, with item means alone among them: a fit's
choice by released counts is near it. Public people add their ratings to P and J. Left out are the
price of learning variances, popularity and the users' prior, what is lost before directions are
found, the ends of the scale, and public features. docs/benchmarks/expected.md shows how well it
holds.
"""

from functools import partial
from typing import Any, NamedTuple

import numpy as np

from skdpmf.mechanisms.device_reports import item_means as devices
from skdpmf.mechanisms.gram import covariance
from skdpmf.mechanisms.item_means import averages, baseline
from skdpmf.mechanisms.item_means import residual_rounds as ir
from skdpmf.mechanisms.item_means.joint_release import FOLD_IN_DAMPING
from skdpmf.privacy.pair_sensitivity import covariance_weights


class Ratings(NamedTuple):
    """Public sizes, and what is assumed: deviations are shares of the rating range.

    Defaults were chosen on MovieLens 1M: they are those of films that are rated by stars.
    """

    n_users: int
    n_items: int
    n_ratings: int
    residual: float = 0.195
    user: float = 0.11
    item: float = 0.13
    factors: float = 0.115
    popularity: float = 0.7
    activity: float = 0.6
    decay: float = 0.8


def expected_rmse(plan: Any, ratings: Ratings, n_public: int, terms: Any) -> dict[str, float]:
    """Return what to expect of a planned fit beside so many public people.

    terms: of `_Expected.planned`, a planner's ``_learnt``. Errors are shares of the rating range.
    """
    alone = _Expected(ratings)
    found = {"this plan": _Expected(ratings, n_public).planned(plan, *terms)}
    if n_public:
        found["without public people"] = alone.planned(plan, *terms)
    if terms[0]:
        means = baseline.make_plan(plan.budget, ratings.n_items)
        found["item means alone"] = alone.planned(means)
    found["each user's own mean"] = ((alone.loose + alone.item) * (1.0 + 1.0 / alone.length)) ** 0.5
    found["no privacy"] = alone.exact(terms[0])
    return {name: float(error / 4.0) for name, error in found.items()}


class _Expected:
    """Expected errors in quarter ranges; arrays are by item, or by user, of the same rank."""

    def __init__(self, ratings: Ratings, n_public: int = 0) -> None:
        r = self.ratings = ratings
        deviations = np.array([r.residual, r.user, r.item, r.factors])
        self.residual, self.user, self.item, self.taste = (4.0 * deviations) ** 2
        self.factors = self.taste * (1.0 - r.decay) * r.decay ** np.arange(32)
        self.loose = max(self.residual + self.taste, 1e-6)  # around means of items and users
        z = min(r.n_ratings, 0.999 * r.n_users * r.n_items)
        self.N, self.items = by_rank(z, r.n_users, r.n_items, r.popularity)
        self.n, users = by_rank(z, r.n_items, r.n_users, r.activity)
        # shares of the users, and of the ratings
        self.users, self.seen, self.length = users / r.n_users, users * self.n / z, z / r.n_users
        self.rated, self.public = self.items * self.N / z, n_public / r.n_users * self.N
        self.sampling: Any = 1.0 / self.N  # variance of a mean of ratings, over that of one

    def exact(self, rank: int) -> float:
        """Return the expected error without privacy."""
        self.sampling = 1.0 / self.N
        return self.error(1e12 * self.N, rank, 0.0 * self.N)

    def planned(self, plan: Any, rank: int = 0, *terms: float) -> float:
        """Return the expected error of a fit.

        rank: most factors, 0 for item means alone; terms: of gradients, which have the column a, a
        user's are clipped to C, |x_i|^2 has a mean, and all say as much as so many rounds on the
        last factors.
        """
        least = self.exact(rank)
        if not plan.budget.is_private:
            return least
        if plan.local:
            return max(self.of_devices(float(plan.budget.epsilon)), least)
        planned, pure = {one.name: one for one in plan.releases}, not plan.gaussian
        W, M, sampling = self.weighted(1.0 if pure else 2.0)
        # in l1, of which the mean magnitude counts, as the root mean square does in l2
        slope = min(1.0 / ir.CLIP, (0.8 if pure else 1.0) * self.loose**-0.5) * M
        first = planned.get(ir.RESIDUALS)
        if first is None:
            first, slope, sampling = planned[averages.STATISTICS], 0.5 * self.N, self.sampling
        self.sampling, unit = sampling, slope / first.sensitivity * (0.5 if pure else 1.0) ** 0.5
        again = [one for one in plan.releases if first.name in one.alternatives]
        shown, *more = (one.count * (unit / one.noise_multiplier) ** 2 for one in (first, *again))
        found = [self.error(shown + sum(more), rank)]
        if "gradients" in planned:
            one, (a, clip, square, rounds) = planned["gradients"], terms
            slope = min(1.0, clip * (self.loose * (a**2 + square)) ** -0.5) * M / one.noise_scale
            shown, noise = shown + one.count * (a * slope) ** 2, slope**-2 / (square * rounds)
            found += [self.error(shown, k, noise) for k in (1, 2, 4, 8, 16, 32) if k <= rank]
        if covariance.COVARIANCE in planned:
            pairs = self.of_pairs(planned[covariance.COVARIANCE], plan.budget.unit, W)
            found.append(self.error(shown, rank, pairs=pairs))
        return max(min(found), least)

    def weighted(self, power: float) -> tuple[Any, Any, Any]:
        """Return expected sums of weights, of counts and of means, and variances of the latter."""
        size = self.users @ self.n ** (1.0 - 1.0 / power)
        W = self.N * size / self.length
        raw = W**-ir.EXPONENT
        raw /= (self.rated @ raw**power) ** (1.0 / power)
        return W, W * raw, self.users @ self.n ** (1.0 - 2.0 / power) / size / W

    def of_pairs(self, release: Any, unit: str, W: Any) -> Any:
        """Return what loadings of the items in a column say of an item in a row, over l_c."""
        noise, root = ("laplace", 2.0) if release.kind == "pure" else ("gaussian", 0.5)
        weights = partial(covariance_weights, noise=noise, unit=unit)
        deviation = release.noise_scale * root**0.5
        mass, number = (np.repeat(part, self.items) for part in (W, self.N))
        counts = ir.RaterCounts(mass, number, self.ratings.n_users)
        head = covariance.head_items(counts, weights, deviation, self.ratings.n_items).size
        items = np.clip(head - np.cumsum(self.items) + self.items, 0, self.items)
        p = self.N * (items > 0) / max(items @ self.N, 1e-300)
        n = np.maximum(np.rint(self.n * (items @ self.N) / (self.items @ self.N)), 1.0)
        pairs, users = np.outer(p, p), self.ratings.n_users * self.users
        E, squares = (users @ (weights(n) ** power * n**2) * pairs for power in (1, 2))
        return E**2 / (deviation**2 + squares * self.loose**2) * items

    def of_devices(self, epsilon: float) -> float:
        """Return the expected error of item means, all of whose reports are of one round."""
        r, (W, _, self.sampling) = self.ratings, self.weighted(2.0)
        public = epsilon, r.n_items, r.n_users
        length = devices.statistics_length(devices.count_weight(*public))
        unit = r.n_items**0.5 / (length * devices.mean_noise(*public) * r.n_users)
        shown = (min(1.0 / ir.CLIP, (self.loose + self.item) ** -0.5) * W * unit) ** 2
        return self.error(shown)

    def error(self, shown: Any, rank: int = 0, noise: Any = np.inf, pairs: Any = 0.0) -> float:
        """Return the expected root mean squared error.

        shown: precisions of b_j by noise; noise: of v_jc, for one factor and q = 1; pairs: of
        `of_pairs`. Without either, public people alone know factors.
        """
        direct = 1.0 / (1.0 / np.maximum(shown, 1e-12) + self.loose * self.sampling)
        known = direct + self.public / self.loose + 1.0 / max(self.item, 1e-12)
        doubt = self.rated @ (1.0 / known)
        tastes, root = self.factors[:rank], self.users * self.n**0.5
        q, R, lost = np.ones(tastes.size), np.ones((self.N.size, tastes.size)), 0.0
        for _ in range(30):
            s2 = max(self.residual + lost, 1e-6)
            J = q / (np.outer(noise * q.size, 1.0 / q) + (s2 * self.sampling)[:, None])
            J += np.outer(self.public / s2, q) + np.dot(pairs, R) * tastes
            R = tastes * J / (1.0 + tastes * J)
            learnt = tastes * (self.rated @ R)
            x = np.outer(self.n, learnt) / (s2 + doubt)
            Q = x / (1.0 + x)
            q = np.maximum(root @ Q / root.sum(), 1e-9)
            lost = self.taste - learnt @ (self.seen @ Q)
        left = self.residual + doubt + self.taste - Q @ learnt
        d = FOLD_IN_DAMPING
        offset = (self.n * left + d * d * self.user) / (self.n + d) ** 2
        return float(np.sqrt(self.seen @ (left + offset)))


def by_rank(total: float, most: int, n: int, exponent: float) -> tuple[Any, Any]:
    """Return numbers up to `most`, by rank, and how many of n have each: `total` in all."""
    ends = np.unique(np.append(np.geomspace(1.0, n, 60).astype(int), n + 1))
    width, weight = np.diff(ends), (ends[:-1] * (ends[1:] - 1.0)) ** (-0.5 * exponent)
    low, high = -50.0, 50.0
    for _ in range(60):
        middle = (low + high) / 2.0
        numbers = -most * np.expm1(-np.exp(middle) * weight)
        low, high = (middle, high) if width @ numbers < total else (low, middle)
    return np.maximum(numbers, 1e-12), width
