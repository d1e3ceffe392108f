r"""Noisy item averages and a noisy item covariance, released once, and the factors they give.

Ratings y are in quarter ranges from the middle of the scale. The steps are

1. global effects and item averages b_j: `item_means.averages`;
2. head: the items popular enough for their covariance to be seen through the noise, and without
   privacy the most popular ones, as others know little of one another;
3. centred rows: on the head's items, x_ij = clip(y_ij - b_j - o_i, -B, B), with the user's damped
   mean o_i = sum_j (y_ij - b_j) / (n_i + user_damping). It stays with the user;
4. one release of both Cov = sum_i w_i x_i x_i' and Wgt = sum_i w_i e_i e_i', e_ij = 1 for known
   ratings, w_i of `skdpmf.privacy.pair_sensitivity`;
5. cleaning, factors L and the noise level: `covariance_factors`. They define a normal law of a
   user's ratings, and predictions are its conditional means: a ridge regression for each user.

Steps 1 and 4 are the only ones that see ratings other than through released values. If step 2
finds no head, step 4 measures item averages once more instead.

F. McSherry, I. Mironov, "Differentially private recommender systems", KDD 2009, for the steps; the
sensitivities, the head, the averages at unit "user" and the cleaning by popularity are not theirs.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from skdpmf.kernels.jit_and_threads import in_threads
from skdpmf.mechanisms.common import most_popular, shows_tastes, strength_of, unpack_lower
from skdpmf.mechanisms.gram import covariance_factors as factors
from skdpmf.mechanisms.gram.item_item import (
    EXACT_HEAD,
    HALF_SHARE,
    CleanGram,
    Lists,
    choose_head,
    clean_gram,
    exact_gram,
    lists_of,
    ridge_of,
    share_of_first,
)
from skdpmf.mechanisms.item_means import averages as item_averages
from skdpmf.mechanisms.item_means import residual_rounds as ir
from skdpmf.mechanisms.item_means.joint_release import FIT_DAMPING, FOLD_IN_DAMPING
from skdpmf.mechanisms.item_means.popularity import estimate_popularity
from skdpmf.mechanisms.item_means.residual_rounds import (
    RESIDUALS,
    ROUNDS,
    RaterCounts,
    residual_shares,
)
from skdpmf.privacy.budget import PrivacyBudget, public_rows
from skdpmf.privacy.clipped_sums import PiecedSum
from skdpmf.privacy.curator_release import Curator
from skdpmf.privacy.frame import curator_of_public
from skdpmf.privacy.pair_sensitivity import (
    covariance_weights,
    pair_grid,
    pair_sensitivity,
    pair_sums,
)
from skdpmf.privacy.plan import ReleasePlan
from skdpmf.privacy.sampler.grid import exact_grid

Floats = NDArray[np.float64]

COVARIANCE = "item covariance"
# Fixed: units of ratings, parts of the release that a progress display counts, and the ridge
_RANGE = (-2.0, 2.0)  # of ratings, in quarter ranges
N_ROUNDS = 10
# without cleaning, the published one; squared quarters
RIDGE = 0.5

# Guard: a grid on which sums of doubles are exact
_COARSEST_GRID = 2.0**-32

# Tuned: what the covariance has of the budget, against the averages. t of the release (Cov, t Wgt),
# a power of two, or sums are not exact
WEIGHT_SCALE = 0.25
# "auto": as `HALF_SHARE` of clicks, which Gaussian noise and single ratings have
_HALF_SHARE = 100.0
_LEAST_SIGNAL, _LEAST_SHARE = 30.0, 0.3  # see head_items


@dataclass(frozen=True)
class Settings:
    """Public settings of a fit; `skdpmf.DPCovarianceRecommender` explains them."""

    noise: str
    n_components: int
    item_damping: float
    user_damping: float
    clamp: float
    clean: bool
    shares: tuple[float, float, float] | None  # None: "auto"

    @property
    def norm(self) -> str:
        """Norm of the sensitivities."""
        return "l2" if self.noise == "gaussian" else "l1"


class Model(NamedTuple):
    """Released model in quarter ranges: y_ij ~ b_j + o_i + z_i . L_j, z_i standard normal.

    A user's z_i and o_i have the penalties ridge |z_i|^2 and offset_ridge o_i^2.
    """

    item_means: Floats
    factors: Floats  # L (n_items x n_components)
    head: NDArray[np.int64]  # items of the covariance, ascending
    covariance: factors.ItemCovariance | None
    ridge: float = RIDGE
    offset_ridge: float = FOLD_IN_DAMPING
    noise: float = 0.0  # deviation of the noise off the diagonal of Cov
    log_popularity: Any = None  # (n_items,), but for a constant
    lists: Lists | None = None  # what people choose to rate


def make_plan(
    budget: PrivacyBudget, settings: Settings, n_items: int, n_rows: int | None = None
) -> ReleasePlan:
    """Plan the releases of a fit, from public values alone.

    budget: with delta > 0 for Gaussian noise, unless it is not private; n_rows: rows of X, of which
    `public_rows` counts. "auto" shares depend on it; more than two million rows need a coarser grid
    for exact sums. None: as many as items. Result: global effects, item averages
    and the covariance, with noise that spends the whole budget. Raises PrivacyParameterError if the
    budget cannot be planned for.
    """
    unit = _unit(budget)
    most, n_rows = min(n_items, EXACT_HEAD), public_rows(n_rows or n_items)
    grid = max(_COARSEST_GRID, pair_grid(n_rows, settings.clamp))
    sensitivity = pair_sensitivity(
        (unit, budget.neighbors),
        clamp=settings.clamp,
        damping=settings.user_damping,
        weight_scale=WEIGHT_SCALE,
        noise=settings.noise,
        n_items=most,
        centred_range=2.0 * (_RANGE[1] - _RANGE[0]),
        grid=grid,
    )
    statistic = (
        "sums over users of w x x' and w e e', x the clamped centred ratings and e the pattern; "
        "triangles"
    )
    shape = 2, most * (most + 1) // 2
    rounds = ROUNDS[settings.noise]
    releases: list[Any] = [
        item_averages.uncalibrated(settings.noise, *terms, rounds if terms[0] == RESIDUALS else 1)
        for terms in item_averages.average_releases(unit, budget.neighbors, settings.norm, n_items)
    ]
    covariance: Any = item_averages.uncalibrated(
        settings.noise, COVARIANCE, statistic, shape, sensitivity
    )
    packed = {"layout": "packed"} if settings.noise == "gaussian" else {}
    again = RESIDUALS if unit == "user" else item_averages.STATISTICS
    releases.append(replace(covariance, alternatives=(again,), **packed))
    shares = _shares(budget, settings, unit == "user", n_items, n_rows)
    shares = {name: share for name, share in shares.items() if share > 0.0}
    return ReleasePlan.from_shares(
        budget,
        [release for release in releases if release.name in shares],
        shares,
        notes=_notes(budget, settings, n_items, covers=COVARIANCE in shares),
    )


def fit(
    curator: Curator, settings: Settings, *, rounds: Iterable[int], public: Any = None
) -> Model:
    """Make the plan's releases in their order and return the model they give.

    curator: of ratings in quarter ranges from the middle of the scale, one entry per user and item,
    columns ascending, and of a plan of `make_plan` with the same settings; rounds: range(N_ROUNDS),
    possibly wrapped in a progress display; public: rows of public people, at unit "user".
    """
    return _Fit(curator, settings, public).model(rounds)


def head_items(
    popularity: RaterCounts, weights: Any, deviation: float, most: int
) -> NDArray[np.int64]:
    """Choose the items whose covariance can be seen through the noise, from released values.

    With c items of the head in a typical row, the entries of Wgt are about
    E_ij = n_users w(c + 1) c^2 N_i N_j / (sum_j N_j)^2. The head is the largest set of most popular
    items in which the norm of the least popular one's row of E is `_LEAST_SIGNAL` times the
    deviation.

    popularity: released; weights: w of numbers of ratings; deviation: standard deviation of the
    noise of an entry off the diagonal of Cov; most: most items. Result: columns, ascending; none if
    they hold less than `_LEAST_SHARE` of all ratings: then predictions gain less from their
    covariance than from better averages.
    """
    order = np.argsort(-popularity.mass, kind="stable")[:most]
    N = popularity.mass[order]
    c = np.cumsum(popularity.n_ratings[order]) / popularity.n_users
    total = popularity.n_users * weights(np.maximum(np.rint(c + 1.0), 1.0)) * c**2
    norms = total * N * np.sqrt(np.cumsum(N**2)) / np.cumsum(N) ** 2
    seen = np.flatnonzero(norms >= _LEAST_SIGNAL * deviation)
    size = int(seen[-1]) + 1 if seen.size else 0
    if np.sum(N[:size]) < _LEAST_SHARE * np.sum(popularity.mass):
        size = 0
    return np.sort(order[:size])


class _Fit:
    beside: Any = None  # a fit of public people
    shown: Any = None  # `ir.PublicAverages` of them
    averages: Any = None

    def __init__(self, curator: Curator, settings: Settings, public: Any = None) -> None:
        self.curator, self.settings, self.users = curator, settings, curator.users
        self.private, self.planned, self.n_jobs = curator.private, curator.releases, curator.n_jobs
        self.most = min(curator.users.n_items, EXACT_HEAD)
        self.unit = _unit(curator.plan.budget)
        if public is not None:
            plan = make_plan(PrivacyBudget.nonprivate(), settings, public.shape[1])
            self.beside = _Fit(
                curator_of_public(public, plan, self.n_jobs, curator.item_columns), settings
            )
            rows, self.most = self.beside.users.without_privacy(), self.beside.most
            self.shown = ir.public_averages(rows, FIT_DAMPING, settings.norm)

    def model(self, rounds: Iterable[int]) -> Model:
        if self.private:
            means, popularity, head, log = self.private_averages()
        else:
            rows = self.users.without_privacy()
            b, popularity = item_averages.plain_averages(rows, self.settings.item_damping)
            if self.settings.clean:
                b = item_averages.least_squares(rows, FIT_DAMPING)
            log = np.log(popularity.mass)
            G = float(rows.data.mean()) if rows.nnz else 0.0
            means = np.clip(item_averages.recentred(b, popularity.n_ratings, G), *_RANGE)
            head = most_popular(popularity.mass, self.most)
        n_items = self.users.n_items
        L = np.zeros((n_items, self.settings.n_components))
        given, noise = (means, popularity, head, rounds), 0.0
        if self.beside is not None and self.averages.public_lead:
            head, clean, mass, lists = self.with_public(*given)
        elif head.size == 0 or COVARIANCE not in self.planned:
            return Model(means, L, np.empty(0, np.int64), None, log_popularity=log)
        else:
            clean, mass, noise, lists = self.released_covariance(*given)
        k, cleaning = self.settings.n_components, self.settings.clean
        found = factors.leading_factors(clean, mass, k, cleaning=cleaning)
        L[head, : found.shape[1]] = found
        ridges = RIDGE, self.settings.user_damping
        if cleaning:
            number = popularity.n_ratings.sum() / popularity.n_users
            ridges = factors.noise_level(clean, found, mass, number, self.settings.user_damping)
        return Model(means, L, head, clean, *ridges, noise, log, lists)

    def private_averages(self) -> tuple[Any, RaterCounts, NDArray[np.int64], Any]:
        """Item means, popularity, head, and the logarithm of the popularity."""
        s, releases = self.settings, self.planned
        averages = item_averages.averages_for(
            self.unit,
            self.curator,
            self.users,
            norm=s.norm,
            damping=(s.item_damping, FIT_DAMPING),
            grid=exact_grid(self.curator.n_rows, 1.0, degree=1),
            **({} if self.shown is None else {"public": self.shown}),
        )
        self.averages, G = averages, None
        if item_averages.GLOBAL in releases:  # on its own
            measured = item_averages.measured_global_mean(self.curator, self.unit, s.norm)
            G = item_averages.pooled_level(measured, None, self.shown)[0]
        averages.release(item_averages.FIRST[self.unit])
        head = self.head(averages.popularity)
        for t in range(releases[RESIDUALS].count if RESIDUALS in releases else 0):
            averages.release(RESIDUALS, t)
        if head.size == 0 and COVARIANCE in releases:
            averages.release(COVARIANCE)
        if G is None and self.unit == "rating":
            G = averages.overall_mean
        means = averages.mean
        if G is not None:
            means = item_averages.recentred(means, averages.counts, G)
        return np.clip(means, *_RANGE), averages.popularity, head, averages.log_popularity

    def head(self, popularity: RaterCounts) -> NDArray[np.int64]:
        """Items of step 2."""
        if COVARIANCE not in self.planned:
            return np.empty(0, np.int64)
        if self.settings.shares is not None:
            return most_popular(popularity.mass, self.most)
        deviation = self.deviation(self.planned[COVARIANCE].sensitivity)
        return head_items(popularity, self.weights, deviation, self.most)

    def weights(self, n_ratings: NDArray[Any]) -> Floats:
        """Weights w of step 4."""
        return covariance_weights(n_ratings, self.settings.noise, self.unit)

    def deviation(self, sensitivity: float) -> float:
        """Standard deviation of the noise off the diagonal of Cov."""
        if not self.private:
            return 0.0
        scale = self.planned[COVARIANCE].noise_multiplier * sensitivity
        return float(scale * (np.sqrt(0.5) if self.settings.noise == "gaussian" else np.sqrt(2.0)))

    def released_covariance(
        self, means: Floats, popularity: RaterCounts, head: NDArray[np.int64], rounds: Iterable[int]
    ) -> tuple[factors.ItemCovariance, Floats, float, Lists | None]:
        """Steps 3 to 5, popularity of the head's items, deviation of the noise, and lists."""
        s = self.settings
        cov, wgt, noise = self.released_sums(means, head, rounds)
        mass = popularity.mass[head]
        lists = self.lists(wgt, head, popularity, noise[1])
        if not s.clean:
            return factors.divide_covariance(cov, wgt, noise=noise), mass, noise[0], lists
        number = popularity.n_ratings[head].sum() / popularity.n_users  # of a typical user
        typical = float(self.weights(np.maximum(np.rint([number]), 1.0))[0])
        clean = factors.clean_covariance(cov, wgt, mass, noise=noise, typical=typical)
        return clean, mass, noise[0], lists

    def released_sums(
        self, means: Floats, head: NDArray[np.int64], rounds: Iterable[int]
    ) -> tuple[NDArray[Any], NDArray[Any], tuple[float, float]]:
        """Cov and Wgt of steps 3 and 4, and the deviations of their noise."""
        s = self.settings
        total = pair_sums(
            self.users,
            head,
            means,
            value_range=_RANGE,
            clamp=s.clamp,
            damping=s.user_damping,
            weight_scale=WEIGHT_SCALE,
            noise=s.noise,
            n_pieces=4 * N_ROUNDS,
        )
        cov, wgt = self.noisy_sums(total, rounds)
        deviation = self.deviation(min(total.sensitivity, self.planned[COVARIANCE].sensitivity))
        return cov, wgt, (deviation, deviation / WEIGHT_SCALE)

    def with_public(
        self, means: Floats, popularity: RaterCounts, head: NDArray[np.int64], rounds: Iterable[int]
    ) -> tuple[NDArray[np.int64], factors.ItemCovariance, Floats, Lists | None]:
        """Return items, their covariance from private and public sums, popularity, and lists.

        head: that of private sums alone; if it is empty they were not released.
        """
        n, people, noise = popularity.n_users, self.shown.n_users, 1e-6
        wide = most_popular(popularity.mass, self.most)
        number = np.maximum(np.rint([popularity.n_ratings[wide].sum() / n + 1.0]), 1.0)
        own, other = (float(fit.weights(number)[0]) for fit in (self, self.beside))
        expected = popularity.n_ratings[wide] * np.sqrt(own / n)
        cov, wgt, _ = self.beside.released_sums(means, wide, range(N_ROUNDS))
        cov *= own / other  # in the weights of private people
        wgt *= own / other
        rated = self.beside.users.without_privacy().n_ratings.astype(np.float64)
        w = self.beside.weights(rated)
        typical = own / other * float(np.sum((w * rated) ** 2) / np.sum(w * rated**2))
        c = typical * float(cov.trace() / max(wgt.trace(), 1e-300)) ** 2
        both, mass, counted, sampled = wgt, popularity.mass[wide], people, 1.0
        if head.size:
            *private, deviations = self.released_sums(means, wide, rounds)
            given = cov, wgt, private, expected, c, deviations
            (both, share), mass, sampled = factors.with_private_sums(*given)
            counted, noise = people + share * n, share * deviations[1]
        all_counted = RaterCounts(*(part * (counted / n) for part in popularity))
        lists, none = self.lists(both, wide, all_counted, noise), (0.0, 0.0)
        if not self.settings.clean:
            return wide, factors.divide_covariance(cov, wgt, noise=none), mass, lists
        b = sampled * factors.likely_shrinkage(cov, wgt, c, typical)
        how: Any = {"noise": none, "typical": typical, "shrinkage": b}
        return wide, factors.clean_covariance(cov, wgt, mass, **how), mass, lists

    def lists(
        self, wgt: NDArray[Any], head: NDArray[np.int64], popularity: RaterCounts, noise: float
    ) -> Lists | None:
        """Lists from Wgt: what is left of it beyond popularity; None: nothing is seen.

        noise: the deviation off the diagonal. Units are those of `item_item`: counts over the root
        of a user's number, and a trace of one a user.
        """
        n_users = popularity.n_users
        number = max(float(popularity.n_ratings.sum()) / n_users, 1.0)
        N = popularity.n_ratings / np.sqrt(number)
        if not self.private:
            rows = self.users.without_privacy()
            if not shows_tastes(rows):
                return None
            known = estimate_popularity(N, 0.0).mean  # above 0, also of what nobody rated
            return lists_of(exact_gram(rows, np.ones(rows.nnz)), known, n_users)
        unit = wgt.trace() / (n_users * float(N[head].sum() / N.sum()))  # of a user, as released
        if unit <= 0.0:
            return None
        deviation = np.sqrt(2.0) * noise / unit
        size = choose_head(N, n_users, deviation, np.zeros(N.size))  # the matrix is there already
        place = most_popular(N[head], min(size, head.size))
        if not place.size:
            return None
        G, own = wgt[np.ix_(place, place)] / unit, N[head[place]]
        product = np.outer(own, own)
        others = ~np.eye(place.size, dtype=bool)
        G -= product * (np.sum((G * product)[others]) / max(np.sum(product[others] ** 2), 1e-300))
        chance = own * np.sqrt(n_users) / N.sum()
        L, diagonal, _ = clean_gram(G, deviation, range(N_ROUNDS), None, chance)
        ridge = ridge_of(own * (n_users / N.sum())) + deviation
        return lists_of(CleanGram(head[place], L, diagonal, ridge, True), N, n_users)

    def noisy_sums(
        self, total: PiecedSum, rounds: Iterable[int]
    ) -> tuple[NDArray[Any], NDArray[Any]]:
        """Cov and Wgt of step 4 as released."""
        released = np.empty(total.shape)
        with self.curator.release_pieces(COVARIANCE, total) as release:

            def block(start: int, stop: int) -> None:
                for matrix, entries, values in release(start, stop):
                    released[matrix, entries] = values / (WEIGHT_SCALE if matrix else 1.0)

            # all rounds take place, whatever the number of pieces
            cuts = np.linspace(0, len(total.pieces), N_ROUNDS + 1).astype(int)
            for t in rounds:
                in_threads(block, total.pieces[cuts[t] : cuts[t + 1]], self.n_jobs)
        return unpack_lower(released[0]), unpack_lower(released[1])


def _notes(budget: PrivacyBudget, settings: Settings, n_items: int, *, covers: bool) -> list[str]:
    """Public remarks of the plan."""
    notes = ["Sums are in quarters of the rating range."]
    most = min(n_items, EXACT_HEAD)
    if covers and _unit(budget) == "rating" and budget.is_private:
        notes.append(
            "The covariance's sensitivity holds for any item means; a fit uses the smaller one of "
            "its released means and items, with noise in proportion."
        )
    if covers and most < n_items:
        notes.append(
            f"Memory: the covariance covers at most the {most} items of the largest released "
            "counts; the others have their item means only."
        )
    if covers and settings.shares is None and budget.is_private:
        notes.append(
            "The covariance covers the items whose released counts can be seen through the noise, "
            f"and none if these hold less than {_LEAST_SHARE:.0%} of the ratings."
        )
    return notes


def _unit(budget: PrivacyBudget) -> str:
    """Unit whose statistics are used: without privacy those of the published main algorithm."""
    return budget.unit if budget.is_private else "rating"


def _shares(
    budget: PrivacyBudget, settings: Settings, by_user: bool, n_items: int, n_rows: int
) -> dict[str, float]:
    """Share of the budget by release."""
    overall, averages, covariance = settings.shares or (0.0, 0.0, 0.0)
    if settings.shares is None:
        laplace = settings.noise == "laplace"
        strength = budget.epsilon if laplace and budget.is_private else strength_of(budget)
        half = HALF_SHARE if _unit(budget) == "rating" and not laplace else _HALF_SHARE
        averages = share_of_first(strength, n_rows, n_items, half)
        # shares of epsilon are as roots of those of mu^2: where averages would have most of it, and
        # for users, two releases know less
        if laplace and (by_user or np.sqrt(averages) > 0.5):
            averages = 1.0
        covariance = 1.0 - averages
        overall = averages * item_averages.global_share(n_items) if by_user else 0.0
        averages -= overall
    by_kind = {item_averages.STATISTICS: averages}
    if by_user:
        by_kind = residual_shares(settings.noise, averages)
    return {item_averages.GLOBAL: overall, **by_kind, COVARIANCE: covariance}
