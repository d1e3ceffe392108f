"""One noisy Gram matrix of clicks: which items are chosen by the same users, and lists from it.

For user i with clicks S_i, n_i of them on a head H of m items, and x_i their 0/1 row there,

    y_i = (x_i - n_i q) / |x_i - n_i q|,   0 where x_i = n_i q,

q the share of each item of H in its clicks. The row is centred at what an average user with as many
clicks would have, and its length is 1, whatever anybody clicks. G = sum_i y_i y_i' is the target.
n_i q is rounded down to one of `_N_CENTRES` multiples of q, so that G is a sum over pairs of a
user's clicks (`centred_products`), and a row that is nearly along q has a length below 1.

**What is released**, for adding or removing a user, and for replacing one:

- counts: sum_i ([j in S_i] / sqrt(|S_i|))_j. A user's part has norm 1 and entries >= 0, so that
  <x, x'> >= 0: sensitivity 1, replace sqrt(2). H, q and the typical number of clicks come from it.
- Gram: G, with H and q as released. |y y'|_F = |y|^2 <= 1, and <y y', z z'> = (y . z)^2 >= 0:
  sensitivity 1, replace sqrt(2), in Frobenius norm.

An empty row contributes 0 to both. The norms are enforced by `skdpmf.privacy.clipped_sums`,
whatever the maps below compute. **Theorem**: the releases are together mu-GDP with mu^2 = sum of 1
/ z^2 over both noise multipliers z, for which the plan is calibrated; all that follows is
post-processing. Where better counts are worth more than a Gram matrix, they are released once more
in its place.

**Head.** With N_j the released counts, the most popular first, t = n_users / sum_j N_j, which is
1 / sqrt(n_i) for the typical user, and s the deviation of the noise off the diagonal, the diagonal
is expected to be d_j = t N_j, and noise has eigenvalues up to 2 s sqrt(m) (Wigner's semicircle).
H is the largest set of most popular items with d_m / s >= `ITEM_SIGNAL` sqrt(D_m), where
D_m = (d_1 + ... + d_m) / (s sqrt(m)): a rarer item adds more noise than it shows.

Where the rest of the budget would still change counts of popular items (`popularity.is_known`),
better ones are worth more than a matrix with whatever tastes, and there is no head. Where nothing
else shows tastes (`fit`), a head of so many times `LIST` may have so many times the doubt.

**Cleaning.** With `EDGE` of the semicircle's end as e, each round takes the released matrix with
l_j on the diagonal (0 at first), keeps the eigenvalues above e, shrinks them,

    lambda <- sqrt(lambda^2 - e^2),   U diag(lambda) U' = L L',   l_j <- (L L')_jj,

and so fills the diagonal by what the other entries say of it. Rounds stay near leading vectors of
block iteration; then those of L, and no others, are found by Lanczos, once. The items' own part is
what is left of the released diagonal, shrunk to its mean by moments. The result is
G ~ L L' + diag(o).

**Tastes.** Where all choose by popularity alone, entry jl has the variance a_j a_l of chance,
a_j = d_j / sqrt(n_users), besides the noise's s^2. Divided by the root of (s + a_j) (s + a_l) its
variance is at most 1, so that eigenvalues of this matrix beyond 2 sqrt(m) are tastes. L has
`VECTORS_A_TASTE` eigenvectors for each of them, at most, and as many where there is none: without
tastes those just inside the edge hold nothing but noise; of few users one taste may go unseen.

**Item features.** With public columns D_j, less their mean by q, the centred Gram is taken to hold
f A A' as well, A_j = sqrt(d_j) D_j, d_j = t N_j as above for any item of the catalogue. Its share f
is the regression f' = <G, A A'> / |A A'|^2 off the diagonal of the head, of deviation
s_f = s sqrt(2) / |A A'|, shrunk to f = f'^3 / (f'^2 + s_f^2), or 0: features that show nothing have
next to no part. Cleaning is of what f A A' leaves, and L gets the columns sqrt(f) A_j, those of
items outside of the head among them. All of it follows from what is released anyway.

**Lists** are those of EASE. Popularity is put back, with a weight so large that it is known: with
Q the shares of *all* items, L_j = 0
outside of the head and o_j there as large as the counts let expect,

    P = (L L' + n_users^2 Q Q' + diag(o) + lambda I)^-1,   B = I - P diag(1 / diag P),   scores x B.

By Woodbury's identity P = D^-1 - W W' with D diagonal and W of the rank of L, plus one: lists are
linear in items. The score of item j is z . W_j / P_jj, z the sum of W over the user's
other clicks.

Without privacy L L' + diag(o) is the Gram matrix of raw clicks, by its `EXACT_RANK` leading
eigenvectors, by block iteration, without Q: then this is EASE.

**Refreshes.** A fit on other people may start from `GramKnowledge`: released values of earlier
fits. `skdpmf.mechanisms.knowledge` proves that such a fit is as private as the first. The counts of
all cohorts add up, and so do their Gram matrices; noises are independent, and their variances add
up too. Popularity is per user who could choose the item, E_j of them, so that a new item is not
taken for a rare one. Matrices of other heads or other centres have no sum. So a head stays, with
its q: an item that comes later has its place in lists by popularity alone. A refresh without a
head, or the first one where twice the head is in reach, chooses a new one; lists use the part of a
head, if any, that the cohorts so far support.

**Public people.** Clicks of n people who agreed to open use estimate the same matrices exactly, but
with the sampling error of few people, and cost nobody anything: what is released stays the same.
Popularity N_j, of variance v_j, has a gamma law, and public clicks are Poisson counts of it. For
the matrix let A be theirs, on a wide head of items so popular that two of them have `ITEM_SIGNAL`
joint clicks by chance, and M the expected one, per n_users rows. If rows were normal with
covariance M, errors of A would have the covariance M (x) M / n, and those of the release, on H,
that of noise s^2 and M (x) M / n_users. R is the release less the public people's matrix on H, in
units of A. The best linear estimate is

    C = A + W (K * (U' R U)) W',    M_HH = U diag(l) U',    W = M_.H U,
    K_ab = 1 / (n (s^2 + l_a l_b / n_users) + l_a l_b),

so that each pair of directions has its mean by precision: A where noise is large, and the release
where only A has errors. Entry jl has the variance (M_jj M_ll - sum_ab W_ja^2 K_ab W_lb^2) / n.
Cleaning is as above, of C over g_j g_l, in which the noise is nearly even. M is what it gives from
a first mixture, by the whole variances. Where people who agree differ from others, R and the
difference of counts vary more than that. The excess, if it is beyond its errors, is taken for one
more sampling error: n becomes `worth`, and public people unlike private ones count for little.

The release is the item covariance of F. McSherry and I. Mironov, "Differentially private
recommender systems", KDD 2009, with rows of norm 1 in the place of clipped ones; the lists are
those of H. Steck, "Embarrassingly shallow autoencoders for sparse data", WWW 2019. The semicircle
is that of E. Wigner, "On the distribution of the roots of certain symmetric matrices", Annals of
Mathematics 67 (1958).
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from skdpmf.kernels.covariance import pair_products
from skdpmf.kernels.rows import centre_rows
from skdpmf.mechanisms.common import (
    count_weights,
    leading_vectors,
    mean_by_precision,
    most_popular,
    planned_gram,
    share_of_features,
    strength_of,
    unpack_lower,
)
from skdpmf.mechanisms.gram.covariance_factors import LEAST_OWN, N_ROUNDS, largest
from skdpmf.mechanisms.item_means.joint_release import LEAST_LEVEL
from skdpmf.mechanisms.item_means.popularity import LIST, estimate_popularity, is_known
from skdpmf.privacy import clipped_sums as sums
from skdpmf.privacy.budget import PrivacyBudget, public_rows
from skdpmf.privacy.curator_release import Curator
from skdpmf.privacy.plan import Release, ReleasePlan
from skdpmf.privacy.sampler.grid import exact_grid
from skdpmf.privacy.users import PerUser, Rows, Users

Floats = NDArray[np.float64]

# Fixed: norm of a centre, s n |q|, at most, which the grid of the sums covers, and its values
MOST_CENTRE, _N_CENTRES = 4.0, 512
_STEP = MOST_CENTRE / _N_CENTRES

# Guard: memory and time of eigenvectors
BASIS = 32  # vectors beside those of tastes, of which rounds find leading ones
MOST_HEAD = 3000  # items: the matrix has 72 MB, and a dozen of it are worked on
EXACT_HEAD, EXACT_RANK = 6000, 1024
DENSE = 32  # with m^2 below so many times the clicks a dense matrix takes less time

# Guard: an order where there is no taste
TIE = 1e-3  # score of the most popular item for a user without clicks

# Tuned: counts against tastes. Users times strength, over the root of the number of items, from
# which counts have less than half of the budget
HALF_SHARE = 10.0

# Tuned: noise against tastes that are lost with it; shares, unless said
ITEM_SIGNAL = 0.25
EDGE = 0.85  # of the semicircle's: eigenvectors just inside it still hold more signal than harm
VECTORS_A_TASTE = 3

COUNTS, GRAM = "item counts", "Gram matrix of the head"


class GramSums(NamedTuple):
    """Released Gram matrices of all cohorts so far, added up."""

    head: NDArray[np.int64]  # (m,), places in the catalogue, ascending
    shares: Floats  # (m,), q
    packed: NDArray[np.float32]  # (m (m + 1) / 2,), lower triangle
    facts: Floats  # variance of the noise on the diagonal, rows of all cohorts

    @property
    def deviation(self) -> float:
        """Standard deviation of the noise on the diagonal."""
        return float(np.sqrt(self.facts[0]))

    @property
    def n_users(self) -> float:
        """Rows of all cohorts whose matrices are in the sum."""
        return float(self.facts[1])

    def fit(self, n_items: int) -> bool:
        """Whether they are of so many items, as a file should say."""
        m = self.head.size
        holds = tuple(part.shape for part in self) == ((m,), (m,), (m * (m + 1) // 2,), (2,))
        holds = holds and all((part >= 0).all() for part in (self.head, self.shares, self.facts))
        return holds and bool((np.diff(self.head) > 0).all() and (self.head < n_items).all())


# Fixed: shapes of nothing
NO_SUMS = GramSums(np.zeros(0, np.int64), np.zeros(0), np.zeros(0, np.float32), np.zeros(2))


class GramKnowledge(NamedTuple):
    """Released values of all fits so far, where the next one starts."""

    counts: Floats  # (n_items,), noisy
    exposure: Floats  # (n_items,), E_j: rows of fits in which the item was there
    variance: Floats  # (1,), of the noise on counts
    head: NDArray[np.int64]  # the parts of `GramSums`; empty: no head so far
    shares: Floats
    packed: NDArray[np.float32]
    facts: Floats

    @property
    def sums(self) -> GramSums:
        """The Gram matrices."""
        return GramSums(*self[3:])

    def with_items(self, n_new: int) -> "GramKnowledge":
        """Return it with items appended of which nothing is known."""
        counts, exposure = (np.pad(part, (0, n_new)) for part in self[:2])
        return self._replace(counts=counts, exposure=exposure)

    def fits(self, n_items: int) -> bool:
        """Whether it is of so many items, as a file should say."""
        holds = tuple(part.shape for part in self[:3]) == ((n_items,), (n_items,), (1,))
        holds = holds and all((part >= 0.0).all() for part in self[1:3])
        return holds and self.sums.fit(n_items)


class CleanGram(NamedTuple):
    """The cleaned Gram matrix: G ~ loadings loadings' + diag(own), around popularity."""

    head: NDArray[np.int64]  # (m,), places in the catalogue, ascending; empty: nothing is known
    loadings: Floats  # (m, r), L, the leading one first
    own: Floats  # (m,), o
    ridge: float  # lambda
    is_centred: bool  # whether popularity was taken off
    features: Floats | None = None  # (n_items, d), sqrt(f) A: what they add to G
    sums: GramSums | None = None  # what was released, with earlier cohorts
    tastes: int = 0  # beyond noise and chance


class PublicClicks(NamedTuple):
    """What public people add."""

    counts: Floats  # (n_items,), as in the release of counts
    clicks: Any  # csr_array (n_people, n_items) of weights
    worth: float  # in people: fewer than they are, where they differ from the private ones
    excess: tuple[float, float] = (0.0, 0.0)  # what says so: weighted, and the sum of weights


class Lists(NamedTuple):
    """Item-item model: score of item j = offsets_j + z . decoder_j, z the sum of encoders."""

    offsets: Floats  # (n_items,)
    encoder: Floats  # (n_items, d), W
    decoder: Floats  # (n_items, d), W_j / P_jj
    scale: float  # root mean square over the head of the share of users who chose an item


def make_plan(budget: PrivacyBudget, n_items: int, n_rows: int | None = None) -> ReleasePlan:
    """Plan both releases, from public values alone; their noise spends the whole budget."""
    counts = sums.scalars_bound(1.0, signed=False, neighbors=budget.neighbors, unit=budget.unit)
    statistic = "sum over users of their clicks over the root of their number"
    releases = [
        Release(COUNTS, statistic, (n_items,), counts),
        gram_release(budget, n_items, GRAM, alternative=COUNTS),
    ]
    notes = [
        "The head is chosen from released counts: the planned shape is that of the largest one."
    ]
    # every list needs counts: they have up to a half, where noise hides most
    rows = n_items if n_rows is None else public_rows(n_rows)
    share = min(share_of_first(strength_of(budget), rows, n_items), 0.5)
    shares = {COUNTS: share, GRAM: 1.0 - share}
    return ReleasePlan.from_shares(budget, releases, shares, notes=notes)


def share_of_first(strength: float, n_rows: int, n_items: int, half: float = HALF_SHARE) -> float:
    """Return the share of counts or averages, without which the rest says nothing.

    Their relative error falls with the strength and with rows, and grows with the catalogue.
    """
    return half / (half + strength * n_rows / float(np.sqrt(n_items)))


def gram_release(budget: PrivacyBudget, n_items: int, name: str, *, alternative: str) -> Release:
    """Return the planned release of G, without noise yet."""
    m = min(MOST_HEAD, n_items)
    words = f"sum over users of y y', y the centred and normed row of the {m} most popular items"
    return planned_gram(budget, name, words, m, alternatives=(alternative,))


def fit(
    curator: Curator,
    *,
    rounds: Iterable[int] = range(N_ROUNDS),
    known: GramKnowledge | None = None,
    public: PublicClicks | None = None,
) -> tuple[Lists, GramKnowledge | None]:
    """Make both releases of clicks; return the lists that they give, and what the next fit knows.

    curator: of weights in (0, 1] of clicks, and of a plan of `make_plan`; rounds: of the cleaning,
    possibly wrapped in a progress display; known: released values of fits on other people; public:
    see `learn_public`. Without privacy nothing is kept.
    """
    users, grid = curator.users, exact_grid(curator.n_rows, 1.0)
    total = sums.item_scalars(users, users.map(count_weights), clip=1.0, grid=grid, signed=False)
    own, n_rows = curator.release(COUNTS, total), float(curator.n_rows)
    if not curator.private:
        curator.release(GRAM, total, statistic=COUNTS)
        popularity = estimate_popularity(own, 0.0).mean
        rows = users.without_privacy()
        return lists_of(exact_gram(rows, rows.data, rounds), popularity, curator.n_rows), None
    earlier, nothing = None if known is None else known.sums, np.zeros(own.size)
    before = known or GramKnowledge(nothing, nothing, np.zeros(1), *NO_SUMS)
    exposure, by_noise = before.exposure + n_rows, curator.deviation(COUNTS)

    def of_all_cohorts(own: Any, deviation: float) -> tuple[Any, ...]:
        """Counts, the deviation of their noise, the popularity and its deviations, its people."""
        counts = before.counts + own
        deviation = float(np.hypot(np.sqrt(before.variance[0]), deviation))
        found, here = estimate_popularity(counts, deviation), n_rows / exposure
        popularity, doubt, people = found.mean * here, np.sqrt(found.variance) * here, public
        if people is not None:
            given = (counts * here, deviation * here), (popularity, doubt), n_rows
            people, popularity, doubt = with_public_counts(people, *given)
        return counts, deviation, popularity, doubt, people

    counts, deviation, popularity, doubt, people = of_all_cohorts(own, by_noise)
    # variance that the other release would take away, were it one of counts
    gain = doubt * (deviation / np.hypot(deviation, curator.deviation(GRAM, COUNTS)))
    size = choose_head(popularity, n_rows, curator.deviation(GRAM), nothing)
    gain *= LIST / max(size, LIST)  # a matrix has as much to say as it has items
    terms = curator, users, users.map(_clicks), GRAM, popularity, gain
    clean = noisy_gram(*terms, rounds, known=earlier, public=people)
    held, n_users = clean.sums, float(exposure.max())
    if held is None:
        again = curator.release(GRAM, total, statistic=COUNTS)
        both = (own, by_noise), (again, curator.deviation(GRAM, COUNTS))
        counts, deviation, popularity, _, people = of_all_cohorts(*mean_by_precision(*both))
        if people is not None:
            scaled, columns = popularity * (n_users / n_rows), curator.item_columns
            clean = with_public_gram(people, scaled, n_users, columns, range(N_ROUNDS))
    else:
        n_users = held.n_users
    lists = lists_of(clean, popularity * (n_users / n_rows), n_users)
    return lists, GramKnowledge(counts, exposure, np.array([deviation**2]), *(held or NO_SUMS))


def noisy_gram(
    curator: Curator,
    users: Users,
    chosen: PerUser,
    name: str,
    popularity: Floats,
    doubt: Floats,
    rounds: Iterable[int] = range(N_ROUNDS),
    *,
    known: GramSums | None = None,
    public: PublicClicks | None = None,
) -> CleanGram:
    """Release G of private users under a planned name, and clean it with that of earlier cohorts.

    curator: whose plan has a `gram_release` of this name; users: their rows; chosen: how much each
    entry counts, 1 for a click; name: the release; popularity (n_items,): counts N > 0 in so many
    rows, from all that was released; doubt (n_items,): see `choose_head`; rounds: as for `fit`;
    known: in a refresh the sums of earlier cohorts, whose head and q these users get as well.
    Result: with an empty head, and without a release, where better counts are worth more.
    """
    deviation, n_users = curator.deviation(name), float(curator.n_rows)
    one, n_rows = deviation, n_users

    def supported(noise: float) -> NDArray[np.int64]:
        """Head for sums over cohorts like this one, with so much noise for each of them."""
        return most_popular(popularity, choose_head(popularity, n_rows, noise, doubt))

    nothing = CleanGram(np.empty(0, np.int64), np.empty((0, 0)), np.empty(0), 1.0, True)
    if known is not None and known.n_users < 2.0 * n_rows:
        # there is no head, or that of the first cohort, which may be for too few people
        fits = 2.0 * known.head.size >= max(supported(one / np.sqrt(2.0)).size, 1)
        known = known if fits else None
    if known is None:
        head = supported(one)
        if not head.size:
            list(rounds)
            return nothing
        q = popularity[head] / popularity[head].sum()
    else:
        head, q = known.head, known.shares
    grid = exact_grid(curator.n_rows, 2.0 * (MOST_CENTRE + 2.0))
    centres = _STEP * np.arange(_N_CENTRES)[:, None] * (q / np.linalg.norm(q))
    centres = np.rint(centres / grid) * grid
    terms, number = users.map(centred_rows, chosen, head, q, centres, grid)
    gram = sums.centred_products(users, terms, number, head, centres, clip=1.0, grid=grid)
    del terms
    packed = curator.release(name, gram)
    least = max(float(popularity.sum()), n_users)
    if known is not None:
        packed = packed + known.packed
        deviation, n_users = float(np.hypot(deviation, known.deviation)), n_users + known.n_users
    facts = np.array([deviation**2, n_users])
    held = GramSums(head, q, packed.astype(np.float32), facts)
    released, diagonal = unpack_lower(packed), popularity * (n_users / least)
    used = supported(deviation * n_rows / n_users)
    if not used.size:
        list(rounds)
        return nothing._replace(sums=held)
    if used.size < head.size:
        place = np.flatnonzero(np.isin(head, used))
        head, released = head[place], released[np.ix_(place, place)]
    if public is not None:
        given = popularity * (n_users / n_rows), n_users, curator.item_columns, rounds
        return with_public_gram(public, *given, (head, released, deviation))._replace(sums=held)
    features = _of_features(released, curator.item_columns, diagonal, head, deviation)
    chance = diagonal[head] / np.sqrt(n_users)
    loadings, own, tastes = clean_gram(released, deviation, rounds, features[head], chance)
    ridge = ridge_of(diagonal[head]) + deviation
    return CleanGram(head, loadings, own, ridge, True, features, held, tastes)


def learn_public(clicks: Any) -> PublicClicks | None:
    """Return what public people add, from weights in (0, 1] of their clicks; None: nothing."""
    if not clicks.nnz:
        return None
    n = np.diff(clicks.indptr)
    counts: Any = np.bincount(clicks.indices, np.repeat(n, n) ** -0.5, clicks.shape[1])
    return PublicClicks(counts, clicks, float(clicks.shape[0]))


def with_public_counts(
    public: PublicClicks,
    released: tuple[Floats, Any],
    popularity: tuple[Floats, Floats],
    n_users: float,
) -> tuple[PublicClicks, Floats, Floats]:
    """Return public people with their worth, and the popularity by all, with its deviations.

    released: counts in so many rows, and the deviation of their noise; popularity: what they say,
    with its deviations.
    """
    (counts, noise), (N, doubt) = released, popularity
    own = public.counts * (n_users / public.clicks.shape[0])
    own = own * max(float(counts @ own) / float(own @ own), LEAST_LEVEL)
    t = n_users / max(float(own.sum()), n_users)
    variance = doubt**2 + t * N

    def by_all(worth: float) -> tuple[Floats, Floats]:
        exposure = worth / (n_users * t)
        rate = N / variance + exposure
        mean = (N**2 / variance + own * exposure) / rate
        return mean, np.sqrt(mean / rate)

    chance = t * by_all(public.worth)[0]
    public = _worth(public, counts - own, noise**2 + chance, n_users * chance)
    return public, *by_all(public.worth)


def _worth(public: PublicClicks, apart: Floats, variance: Floats, spread: Floats) -> PublicClicks:
    """Return public people with a worth by one more difference between them and private ones.

    variance: of the private part; spread: of one public person.
    """
    n = float(public.clicks.shape[0])
    weight = spread / (variance + spread / n) ** 2
    beyond = public.excess[0] + float(np.sum(weight * (apart**2 - variance - spread / n)))
    total = public.excess[1] + float(np.sum(weight * spread))
    # a garrote, whose threshold is one error sqrt(2 / total)
    shift = max(beyond / total - 2.0 / max(beyond, 1e-300), 0.0)
    return public._replace(worth=1.0 / (1.0 / n + shift), excess=(beyond, total))


def with_public_gram(
    public: PublicClicks,
    popularity: Floats,
    n_users: float,
    columns: Floats,
    rounds: Iterable[int],
    private: tuple[NDArray[np.int64], Floats, float] | None = None,
) -> CleanGram:
    """Return the cleaned Gram matrix by public people and, if there is one, by a release.

    popularity: counts in so many rows, by all; columns: item features; private: head, released
    matrix, and the deviation of its noise on the diagonal.
    """
    clicks, scale = public.clicks, n_users / public.clicks.shape[0]
    t = n_users / max(float(popularity.sum()), n_users)
    share = popularity / (t * n_users)
    enough = np.count_nonzero(public.worth * share**2 >= ITEM_SIGNAL)
    wide = most_popular(popularity, min(int(enough), MOST_HEAD))
    if private is not None:  # a refresh keeps the head of earlier counts
        wide = np.union1d(wide, private[0])
    if not wide.size:
        return CleanGram(wide, np.empty((0, 0)), np.empty(0), 1.0, True)
    A = _public_gram(clicks, wide, popularity) * scale
    d = popularity[wide] * (n_users / popularity[wide].sum())
    of_one = np.outer(d, d)
    C, variance, ridge = A.copy(), of_one / public.worth, np.inf
    F = np.zeros((popularity.size, 0))
    if private is not None:
        head, G, deviation = private
        place = np.flatnonzero(np.isin(wide, head))
        block = np.ix_(place, place)
        own = _public_gram(clicks, head, popularity) * scale
        whole = max(float(own.trace()), 1e-9 * n_users)
        level = min(max(float(G.trace()) / whole, LEAST_LEVEL), 1.0)  # empty rows add nothing
        unit = level * max(whole / max(float(A[place, place].sum()), 1e-9 * n_users), 1.0)
        R, noise = (G - level * own) / unit, (deviation / unit) ** 2 / 2.0
        chance = of_one[block] / n_users
        part = variance[block].sum() / (variance[block] + noise + chance).sum()
        C[block] += part * R
        variance[block] *= (1.0 - part) ** 2
        variance[block] += part**2 * (noise + chance)
        even = float(np.sqrt(2.0 * np.mean(variance)))
        F = _of_features(C, columns, popularity * t, wide, even)
        L, own, _ = _clean_uneven(C, variance, range(N_ROUNDS), F[wide])
        L = np.column_stack((L, F[wide]))
        M = L @ L.T + np.diag(own)
        values, U = np.linalg.eigh(M[block])
        W, spread = M[:, place] @ U, np.outer(values, values)
        R, chance = U.T @ R @ U, noise + spread / n_users
        once = np.tril(R, -1) + np.diag(R.diagonal() / np.sqrt(2.0))  # of twice the variance
        public = _worth(public, once, chance, np.tril(spread))
        K = 1.0 / (public.worth * chance + spread)
        C = A + W @ (K * R) @ W.T
        W = W**2 / np.maximum(M.diagonal(), 1e-300)[:, None]
        variance = np.maximum(1.0 - W @ K @ W.T, 1e-6) * of_one / public.worth
        ridge = (ridge_of(d[place]) + deviation) * level / unit
    ridge = min(ridge, n_users / public.worth)
    L, own, tastes = _clean_uneven(0.5 * (C + C.T), variance, rounds, F[wide])
    return CleanGram(wide, L, own, ridge, True, F, tastes=tastes)


def _clean_uneven(C: Floats, variance: Floats, rounds: Iterable[int], features: Floats) -> Any:
    """Return L, o and tastes of a matrix with noise of these variances off the diagonal."""
    g = np.sqrt(variance.mean(axis=1))
    g /= g.mean()
    square = np.outer(g, g)
    deviation = float(np.sqrt(2.0 * np.mean(variance / square**2)))
    L, own, tastes = clean_gram(C / square, deviation, rounds, features / g[:, None])
    return L * g[:, None], own * g**2, tastes


def _public_gram(clicks: Any, head: NDArray[np.int64], popularity: Floats) -> Floats:
    """Return G of public people, with centres that are not rounded."""
    q, x = popularity[head] / popularity[head].sum(), sparse.csr_array(clicks[:, head])
    n, squares = x.sum(axis=1), x.power(2).sum(axis=1)
    norms = squares - 2.0 * n * (x @ q) + n**2 * (q @ q)
    norms = np.sqrt(np.maximum(norms, squares / MOST_CENTRE**2))
    s = np.divide(1.0, norms, out=np.zeros(len(n)), where=norms > 0.0)
    y = sparse.csr_array(x.multiply(s[:, None]))
    cross = np.outer(y.T @ (s * n), q)
    squares = np.sum((s * n) ** 2) * np.outer(q, q)
    return np.asarray((y.T @ y).toarray() - cross - cross.T + squares)


def _of_features(
    released: Floats, D: Floats, diagonal: Floats, head: NDArray[np.int64], deviation: float
) -> Floats:
    """Return sqrt(f) A for all items, from the released matrix of the head."""
    A = np.sqrt(diagonal)[:, None] * (D - np.average(D, axis=0, weights=diagonal))
    share, error = share_of_features(released, A[head], deviation)
    trust = share**2 / max(share**2 + error**2, 1e-300)
    return np.asarray(np.sqrt(share * trust) * A)


def choose_head(popularity: Floats, n_users: float, deviation: float, doubt: Floats) -> int:
    """Return the number of most popular items that the head has; 0: better counts are worth more.

    deviation: of the noise on the diagonal; doubt (n_items,): deviations of the popularity,
    or what better counts would take of them.
    """
    if not is_known(popularity, doubt):
        return 0
    N = np.sort(popularity)[::-1][:MOST_HEAD]
    t = n_users / max(float(popularity.sum()), n_users)
    expected = N * t
    noise = deviation / np.sqrt(2.0)
    signal = np.cumsum(expected) / (noise * np.sqrt(np.arange(1.0, N.size + 1.0)))
    seen = np.flatnonzero(expected >= ITEM_SIGNAL * noise * np.sqrt(signal))
    return int(seen[-1]) + 1 if seen.size else 0


def clean_gram(
    released: Floats,
    deviation: float,
    rounds: Iterable[int],
    features: Floats | None = None,
    chance: Floats | float = 0.0,
) -> tuple[Floats, Floats, int]:
    """Return L, o and the number of tastes of a released Gram matrix.

    released (m, m): symmetric; deviation: standard deviation > 0 of the noise on the diagonal,
    sqrt(2) times that off it; rounds: as for `fit`; features (m, d): loadings that are known
    beforehand, and are no part of L; chance (m,): the a_j of the module's notes. Returns loadings,
    own (ndarrays of shapes (m, r) and (m,)), tastes.
    """
    m, diagonal = len(released), released.diagonal().copy()
    edge = EDGE * 2.0 * deviation * np.sqrt(m / 2.0)
    known = np.zeros((m, 0)) if features is None else features
    work = released - known @ known.T
    np.fill_diagonal(work, 0.0)
    basis = leading_vectors(work.__matmul__, diagonal, min(m, BASIS))[1]
    image = work @ basis
    for _ in rounds:  # near leading vectors: 1e-3 of the result
        Q = np.linalg.qr(np.column_stack((basis, image)))[0]
        product = work @ Q
        values, turn = np.linalg.eigh(Q.T @ product)
        r = min(BASIS + np.sum(values > edge / EDGE), values.size)
        values, basis, image = values[-r:], Q @ turn[:, -r:], product @ turn[:, -r:]
        filled = np.sum(_loadings(values, basis, edge) ** 2, axis=1)
        image += (filled - work.diagonal())[:, None] * basis
        np.fill_diagonal(work, filled)
    tastes = _count_tastes(work, basis, deviation / np.sqrt(2.0) + chance)
    values, vectors = largest(work, VECTORS_A_TASTE * max(tastes, 1))
    loadings = _loadings(values, vectors, edge)[:, values > edge]
    filled = np.sum(np.column_stack((loadings, known)) ** 2, axis=1)
    mean, spread = max(diagonal.mean(), 0.0), diagonal.var()
    trust = 1.0 - deviation**2 / max(spread, deviation**2)
    whole = np.maximum(mean + trust * (diagonal - mean), filled + LEAST_OWN * mean)
    return loadings, whole - filled, tastes


def _count_tastes(work: Floats, vectors: Any, deviation: Any) -> int:
    """Return how many directions near the span of vectors neither noise nor chance explains.

    deviation: s + a_j of the module's notes, for each item or the same for all.
    """
    root = np.reshape(np.sqrt(deviation), (-1, 1))
    near = np.column_stack((vectors / root, work @ (vectors / root**2) / root))
    Q = np.linalg.qr(near)[0] / root
    return int(np.sum(np.linalg.eigvalsh(Q.T @ work @ Q) > 2.0 * np.sqrt(len(work))))


def _loadings(values: Any, vectors: Any, edge: float) -> Floats:
    """Return loadings whose squares are the eigenvalues without what noise adds to them."""
    above = np.maximum(values - edge, 0.0)  # squares of two roundings could leave less than 0
    return np.asarray(vectors * np.sqrt(np.sqrt(above * (above + 2.0 * edge))))


def exact_gram(rows: Rows, chosen: Floats, rounds: Iterable[int] = ()) -> CleanGram:
    """Return the Gram matrix of raw clicks, without privacy; `chosen` is what each entry counts."""
    x = rows.R.copy()
    x.data = chosen
    counts = np.bincount(x.indices, weights=x.data, minlength=rows.n_items).astype(np.float64)
    head = most_popular(counts, min(int(np.count_nonzero(counts)), EXACT_HEAD))
    list(rounds)
    if not head.size:
        return CleanGram(head, np.empty((0, 0)), np.empty(0), 1.0, False)
    x = x[:, head]
    turned, m = sparse.csr_array(x.T), head.size
    diagonal: Any = np.bincount(x.indices, x.data**2, m)
    n = x.sum(axis=1)
    ridge = ridge_of(diagonal) * np.sqrt(n @ n / n.sum())
    G = _dense_gram(x) if DENSE * x.nnz > m * m else None
    product = (lambda block: turned @ (x @ block)) if G is None else G.__matmul__
    values, vectors = leading_vectors(product, diagonal, min(EXACT_RANK, m))
    loadings = (vectors * np.sqrt(values))[:, ::-1]
    own = np.maximum(diagonal - np.sum(loadings**2, axis=1), 0.0)
    return CleanGram(head, loadings, own, float(ridge), False)


def ridge_of(diagonal: Floats) -> float:
    """Return twice the geometric mean of what a click's item and its user, who has 1, have."""
    return 2.0 * float(np.sqrt(diagonal @ diagonal / diagonal.sum()))


def _dense_gram(x: Any) -> Floats:
    """Return x' x of clicks x <= 1 on the head: the work is that of pairs of a row's clicks."""
    x.sort_indices()
    unit = 2.0 ** (np.ceil(np.log2(x.shape[0] + 1.0)) - 61)
    return unpack_lower(pair_products(x, x.data, unit) * unit)


def lists_of(clean: CleanGram, popularity: Floats, n_users: float) -> Lists:
    """Return the EASE of a cleaned Gram matrix, for the whole catalogue.

    clean: of the head. Empty: lists are by popularity. popularity (n_items,): counts N > 0 of all
    items in so many rows; n_users: public number of rows.
    """
    n_items, N = popularity.size, popularity
    typical = max(float(N.sum()) / max(n_users, 1), 1.0)  # root of a user's number of clicks
    share = N * typical / max(n_users, 1)  # beyond 1 where users differ much: it keeps the order
    head = clean.head if clean.head.size else most_popular(N, min(n_items, 200))
    scale = float(np.sqrt(np.mean(np.minimum(share[head], 1.0) ** 2)))
    F = np.empty((n_items, 0)) if clean.features is None else clean.features
    if not clean.loadings.size and not F.size:
        return Lists(share, np.zeros((n_items, 0)), np.zeros((n_items, 0)), scale)
    r, centred = clean.loadings.shape[1], clean.is_centred
    # without privacy, L is 0 outside of the head
    rows, place = (np.arange(n_items), clean.head) if centred else (clean.head, slice(None))
    L = np.column_stack((np.zeros((rows.size, r)), F[rows], np.zeros((rows.size, int(centred)))))
    L[place, :r] = clean.loadings
    whole = clean.own + np.sum(L[place] ** 2, axis=1)
    own = N * (whole.sum() / N[clean.head].sum())
    own = np.maximum(own - np.sum(F**2, axis=1), LEAST_OWN * own)
    own[clean.head] = clean.own
    L[:, r + F.shape[1] :] = (n_users * (N / N.sum()))[rows, None]
    D = (own + clean.ridge)[rows]
    L /= np.sqrt(D)[:, None]
    squares, turn = np.linalg.eigh(L.T @ L)  # takes a tenth of L's decomposition
    U = L @ (turn / np.sqrt(1.0 + np.maximum(squares, 0.0)))[:, ::-1]
    U /= np.sqrt(D)[:, None]
    W, decoder = np.zeros((2, n_items, U.shape[1]))
    W[rows], decoder[rows] = U, U / (1.0 / D - np.sum(U**2, axis=1))[:, None]
    return Lists(TIE * share / share.max(), W, decoder, scale)


# Maps of `Users`: values of each user alone


def _clicks(rows: Rows) -> Floats:
    """Weights of the clicks."""
    return rows.data


def centred_rows(
    rows: Rows, chosen: Any, head: Any, q: Any, centres: Any, grid: float
) -> tuple[Floats, NDArray[np.int64]]:
    """Return s_i x_i and the number of the centre that is taken off: y_i is what they leave."""
    place, norm = np.full(rows.n_items, -1, np.int32), float(np.linalg.norm(q))
    place[head] = np.arange(len(head))
    out, number = np.empty(rows.nnz), np.empty(rows.n_users, np.int64)
    given = rows.indptr, rows.indices, chosen, place, q / norm, norm, _STEP, centres, grid
    rows.run(lambda start, stop: centre_rows(*given, MOST_CENTRE, start, stop, out, number))
    return out, number
