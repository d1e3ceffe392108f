"""Shared parts of several mechanisms: weights of ratings, factors to start from, work on items."""

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.sparse.linalg import LinearOperator, eigsh

from skdpmf.data.matrix import bound_contributions
from skdpmf.kernels.jit_and_threads import run_blocks
from skdpmf.kernels.rows import predict_entries, weigh_by_item
from skdpmf.privacy.budget import PrivacyBudget
from skdpmf.privacy.clipped_sums import HAIR, products_bound, vectors_bound
from skdpmf.privacy.plan import Release
from skdpmf.privacy.users import PerUser, Rows, Users

Floats = NDArray[np.float64]

# Fixed: a hair less than 1, so that rounding does not exceed a bound
INSIDE = 1.0 - HAIR

# Guard: largest mu, also without privacy, where shares mean nothing, and one over the smallest
_MOST_MU = 1e3

# Guard: vectors beyond the rank, and steps, of the block iteration; groups of users with about as
# many choices, for each power of e
_SPARE, _SWEEPS, _STEPS = 10, 2, 8.0
# items whose matrices are in memory at once
_ITEMS_AT_ONCE = 512

# Tuned: share of the budget (of mu^2) for a release that others build on
SHARE = 0.06

# Tuned: choices of an item that show its part in tastes, as chance has a law only beyond some;
# factors for a taste beyond chance, as many tastes again are too weak to be told from it
_ENOUGH_CHOICES, FACTORS_A_TASTE = 100.0, 2


def strength_of(budget: PrivacyBudget) -> float:
    """Gaussian DP's mu: about 1 at epsilon 4 and delta 1e-5."""
    return max(budget.mu, 1.0 / _MOST_MU) if budget.is_private else _MOST_MU


def with_means_and_rest(
    shares: dict[str, float], budget: PrivacyBudget, means: str, rest: str
) -> dict[str, float]:
    """Divide what these shares leave: small budgets are the items' means, others the gradients."""
    left = 1.0 - sum(shares.values())
    own = left * 2.0 * SHARE / (2.0 * SHARE + float(np.sqrt(strength_of(budget))))
    return {**shares, means: own, rest: left - own}


def planned_gram(
    budget: PrivacyBudget, name: str, statistic: str, *shape: int, bound: float = 1.0, **more: Any
) -> Release:
    """Return a release of sums of v v', |v| <= bound, without noise yet; packed.

    shape: of what is stacked, and at last the size of v.
    """
    *stacked, d = shape
    near: dict[str, Any] = {"neighbors": budget.neighbors, "unit": budget.unit}
    sensitivity = products_bound(bound * bound, **near)
    packed = (*stacked, d * (d + 1) // 2)
    return Release(name, statistic, packed, sensitivity, layout="packed", **more)


def planned_vectors(
    budget: PrivacyBudget, name: str, statistic: str, *shape: int, bound: float, **more: Any
) -> Release:
    """Return a release of sums of arrays, clipped to this norm, without noise yet."""
    sensitivity = vectors_bound(bound, neighbors=budget.neighbors, unit=budget.unit)
    return Release(name, statistic, shape, sensitivity, **more)


def popularity_weights(R: Any, mass: Floats, exponent: float, norm: str = "l2") -> Floats:
    """Weights w_ij ~ mass_j^-exponent, of norm <= 1 for every user, aligned with R.data."""
    # less the user's largest, so that no power of the popularity leaves the doubles
    logs, out = -exponent * np.log(mass), np.empty(R.nnz)
    given = R.indptr, R.indices, logs, norm == "l1"
    run_blocks(
        lambda start, stop: weigh_by_item(*given, start, stop, out),
        R.indptr,
        getattr(R, "n_jobs", 1),
    )
    return out


def expected_weights(
    N: Floats, typical_weight: float, exponent: float, norm: str = "l2"
) -> tuple[Floats, Floats]:
    """Each item's expected sum of `popularity_weights` and typical weight, from popularity alone.

    norm_i ~ sqrt(n_i) * root mean square of raw over ratings; N_j ~ sum_i 1 / sqrt(n_i). In l1,
    n_i * the mean of raw, and sum_i 1 / n_i.
    """
    log_raw = -exponent * np.log(N)
    raw = np.exp(log_raw - log_raw.max())
    power = 1.0 if norm == "l1" else 2.0
    level = (np.sum(N * raw**power) / np.sum(N)) ** (1.0 / power)
    total = N * raw / level
    typical = np.clip(typical_weight * raw / level, 1e-12, 1.0)
    return np.maximum(total, 1e-12 * total.max()), typical


def count_weights(rows: Rows, norm: str = "l2") -> Floats:
    """Return 1 / sqrt(n_i), in l1 1 / n_i, for each of a user's entries: a map of `Users`."""
    n = np.maximum(rows.n_ratings, 1)
    return np.repeat(1.0 / (n if norm == "l1" else np.sqrt(n)), rows.n_ratings)


def row_norms(row: Any, values: Any, n_rows: int, norm: str = "l2") -> Floats:
    """Norm of each user's values."""
    if norm == "l1":
        return np.asarray(np.bincount(row, weights=np.abs(values), minlength=n_rows), np.float64)
    return np.asarray(np.sqrt(np.bincount(row, weights=values**2, minlength=n_rows)))


def predictions(rows: Rows, U: Floats, V: Floats) -> Floats:
    """Return u_i . v_j of each rating."""
    out, given = np.empty(rows.nnz), (rows.indptr, rows.indices, U, V)
    rows.run(lambda start, stop: predict_entries(*given, start, stop, out))
    return out


def rows_of(R: Any) -> NDArray[np.int64]:
    """User of each stored entry."""
    return np.repeat(np.arange(R.shape[0]), np.diff(R.indptr))


def rarest(rows: Rows, popularity: Floats, tau: int) -> Any:
    """Ratings of each user's tau rarest items."""
    return bound_contributions(rows.R, tau, popularity[rows.indices])


def bounded_weights(
    everything: Users, kept: Users, N: Floats, s: Any, cap: int | None
) -> tuple[Users, PerUser]:
    """Return users and weights with sum_j w_ij^2 <= 1 for each of them.

    kept: at most `cap` random entries of each of `everything`; N: noisy popularity; s: settings
    with ``weighting`` and ``weight_exponent``.
    """
    if s.weighting == "adaptive":
        return kept, kept.map(popularity_weights, N, s.weight_exponent)
    users = everything.keep(rarest, N, cap) if s.weighting == "tail" else kept
    # a hair inside: rounding must not exceed the bound
    return users, users.map(alike, INSIDE / np.sqrt(float(cap or 1)))


def alike(rows: Rows, weight: float) -> Floats:
    """One weight for all ratings."""
    return np.full(rows.nnz, weight)


def subset(rows: Rows, tau: int | None, priorities: Callable[[Rows], Any]) -> Any:
    """Return at most tau ratings of each user, those of least priority; None: all of them."""
    return rows.R if tau is None else bound_contributions(rows.R, tau, priorities(rows))


def head_vectors(rows: Rows, start: int, stop: int, terms: Floats, head: NDArray[np.int64]) -> Any:
    """Return the users' terms in the head as a sparse array of shape (stop - start, h)."""
    place = np.full(rows.n_items, -1)
    place[head] = np.arange(head.size)
    own = slice(rows.indptr[start], rows.indptr[stop])
    columns = place[rows.indices[own]]
    known = columns >= 0
    row = np.repeat(np.arange(stop - start), rows.n_ratings[start:stop])[known]
    return sp.csr_array((terms[own][known], (row, columns[known])), shape=(stop - start, head.size))


def head_directions(
    released: Floats, head: NDArray[np.int64], mass: Floats, rank: int, deviation: float
) -> Floats:
    """Return leading eigenvectors of the head items' noisy second moments.

    ``released`` is their noisy sum of x_i x_i', packed, whose diagonal is left out; ``mass`` an
    item's expected sum of weights. The factors, (n_items, rank), have the root mean square 0.3 in
    the head, and are 0 elsewhere.
    """
    values, vectors = _leading(released, rank)
    loading = vectors * np.sqrt(np.maximum(values, max(deviation, 1e-12)))
    return spread_over_head(loading, head, mass)


def co_rating_vectors(
    rows: Rows, start: int, stop: int, head: NDArray[np.int64], popularity: Floats
) -> Floats:
    """Return z_i of the users [start, stop), of shape (stop - start, h): directions of taste.

    Which items are rated by the same users is far less noisy than how: tastes show in it long
    before they show in residuals. For user i let e_i be the indicator of the rated items among the
    head, the most popular ones by released counts N, D = diag(N) on the head, and B an orthonormal
    basis of D^-1/2 (N, sqrt N, 1), which hold what popularity and activity explain. Released is

        sum_i z_i z_i',   z_i = x_i / |x_i|,   x_i = (I - B B') D^-1/2 e_i,   |z_i| <= 1,

    of sensitivity 1 (Frobenius) to adding or removing a user, as |z z'| = |z|^2; z_i is 0 without
    ratings in the head, and entries are truncated towards zero. All else is post-processing: of the
    eigenvectors, without the diagonal, those are used whose eigenvalues exceed what noise and
    chance give. If users rated items independently of each other, entries of z_i would be
    uncorrelated, of equal variance 1 / h, h the head's size (which D is for; as in correspondence
    analysis, but for the diagonal). So noise and chance are symmetric matrices of independent
    entries, with eigenvalues up to

        sqrt(2 h) sd   and   2 sqrt(n_users / h)   (Wigner's semicircle).

    Where nothing stands out, there are no directions.

    `popularity` holds N_j > 0 of the head's items.
    """
    n_head, n_users = len(head), stop - start
    rated = head_vectors(rows, start, stop, np.broadcast_to(1.0, rows.nnz), head)
    row, columns = rows_of(rated), rated.indices
    unit = popularity**-0.5
    powers = np.column_stack((popularity, np.sqrt(popularity), np.ones(n_head)))
    z = np.zeros((n_users, n_head))
    z[row, columns] = unit[columns]
    for b in np.linalg.qr(powers * unit[:, None])[0].T:
        # by user and not by matrix products, whose rounding could depend on other users
        along = np.bincount(row, weights=(b * unit)[columns], minlength=n_users)
        z -= along[:, None] * b
    size = np.sqrt(np.sum(z**2, axis=1))
    # nothing but rounding is left of a user who rated all of the head
    least = 1e-6 * unit.max()
    scale = np.where(size > least, INSIDE / np.maximum(size, least), 0.0)
    return np.asarray(z * scale[:, None])


def co_rating_directions(
    released: Floats,
    head: NDArray[np.int64],
    popularity: Floats,
    mass: Floats,
    most: int,
    n_users: float,
    deviation: float,
) -> Floats:
    """Item factors along the directions of `co_rating_vectors` that stand out.

    ``released`` is the noisy sum of z_i z_i', packed. Returns (n_items, at most `most`), of root
    mean square 0.3 in the head, 0 elsewhere.
    """
    chance = np.sqrt(2.0 * len(head) * deviation**2 + 4.0 * n_users / len(head))
    values, vectors = _leading(released, most, chance)
    return spread_over_head(vectors * np.sqrt(popularity[head, None] * values), head, mass)


def _leading(released: Floats, most: int, least: float = -np.inf) -> tuple[Any, Any]:
    """Eigenvalues above the least one, descending, and eigenvectors without the diagonal."""
    noisy = unpack_lower(released)
    np.fill_diagonal(noisy, 0.0)
    values, vectors = np.linalg.eigh(noisy)
    top = np.argsort(-values, kind="stable")[:most]
    top = top[values[top] > least]
    return values[top], vectors[:, top]


def click_directions(clicks: Any, most: int, chosen: bool = False) -> Floats:
    """Return leading singular vectors of all clicks, for fits without privacy.

    They are those of c_ij / sqrt(n_i N_j), n_i the clicks of user i and N_j those on item j, by
    block iteration from the most popular items on: the same clicks always give the same vectors.
    Random clicks of n users on m items, z in all, have one value near 1, their popularity, and
    others up to (sqrt(n) + sqrt(m)) / sqrt(z) (the edge of V. Marchenko and L. Pastur, 1967).

    There are ``most`` of them; if ``chosen`` fewer where chance would give most of them,
    `FACTORS_A_TASTE` for each value beyond it but the first. They are (n_items, k), times their
    singular values, of root mean square norm 1.
    """
    n = np.diff(clicks.indptr)
    N = np.bincount(clicks.indices, minlength=clicks.shape[1]).astype(np.float64)
    weight = np.repeat(np.maximum(n, 1) ** -0.5, n) * np.maximum(N, 1)[clicks.indices] ** -0.5
    scaled = sp.csr_array((clicks.data * weight, clicks.indices, clicks.indptr), clicks.shape)
    turned = sp.csr_array(scaled.T)
    size = min(most + _SPARE, clicks.shape[1])
    squares, vectors = leading_vectors(lambda block: turned @ (scaled @ block), N, size)
    values = np.sqrt(squares)
    if chosen:
        chance = np.sqrt(np.count_nonzero(n)) + np.sqrt(np.count_nonzero(N))
        chance *= np.linalg.norm(clicks.data) / max(clicks.nnz, 1)
        most = min(most, max(FACTORS_A_TASTE * (int(np.sum(values > chance)) - 1), 1))
    V = (vectors * values)[:, ::-1][:, :most]
    return np.asarray(V / max(np.sqrt(np.mean(np.sum(V**2, axis=1))), 1e-300))


def leading_vectors(
    product: Callable[[Floats], Floats], popularity: Floats, size: int
) -> tuple[Floats, Floats]:
    """Return leading eigenvalues of items' Gram matrix, ascending, and their vectors.

    product: of the matrix with a block of columns; popularity: of the items. By block iteration
    from the most popular items on, so that the same matrix always gives the same vectors.
    """
    basis = np.zeros((popularity.size, size))
    basis[most_popular(popularity, size), np.arange(size)] = 1.0
    for _ in range(_SWEEPS):  # so few need no QR between them
        basis = product(basis)
    basis = np.linalg.qr(basis)[0]
    values, turn = np.linalg.eigh(basis.T @ product(basis))
    return np.maximum(values, 0.0), basis @ turn


def share_of_features(noisy: Floats, loadings: Floats, deviation: float) -> tuple[float, float]:
    """Return f of G ~ f A A' + rest, by regression off the diagonal, and its error by noise.

    ``noisy`` (h, h) is G as released, ``loadings`` (h, d) are A; the deviation is of the noise on
    the diagonal, sqrt(2) times that off it.
    """
    K = loadings @ loadings.T
    np.fill_diagonal(K, 0.0)
    squares = float(np.sum(K**2))
    if squares == 0.0:
        return 0.0, 0.0
    return max(float(np.sum(noisy * K)) / squares, 0.0), deviation / float(np.sqrt(squares))


def mean_by_precision(one: tuple[Any, float], other: tuple[Any, float]) -> tuple[Any, float]:
    """Return the mean of two measurements with their noise's deviations, and its deviation."""
    (x, s), (y, t) = one, other
    a, b = s**-2.0, t**-2.0
    return (a * x + b * y) / (a + b), float((a + b) ** -0.5)


def most_popular(popularity: Floats, n_head: int) -> NDArray[np.int64]:
    """Return the places of the `n_head` most popular items, in their order."""
    return np.sort(np.argsort(-popularity, kind="stable")[:n_head])


def spread_over_head(loading: Any, head: Any, mass: Floats) -> Floats:
    """Return item factors from loadings in the head: of root mean square 0.3 there."""
    own, V = mass[head], np.zeros((len(mass), loading.shape[1]))
    if loading.size:
        loading = loading * (own / (own**2 + 0.3 * np.median(own) ** 2))[:, None]
        V[head] = 0.3 * loading / max(np.sqrt(np.mean(loading**2)), 1e-300)
    return V


def shows_tastes(rows: Rows) -> bool:
    """Return whether what people choose to rate is more than popularity and chance.

    Rows are centred at the mean of people with about as many choices, and have norm 1. If they are
    independent choices of m items by n people, their co-occurrence, divided by the root of its
    diagonal's products, has eigenvalues up to 2 sqrt(m / n) + m / n off the diagonal
    (V. Marchenko and L. Pastur, "Distribution of eigenvalues for some sets of random matrices",
    Mathematics of the USSR-Sbornik 1, 1967), and beyond it by more than two of its scales once in a
    hundred times (I. Johnstone, "On the distribution of the largest eigenvalue in principal
    components analysis", Annals of Statistics 29, 2001). Rare items have no such law: where there
    are no others tastes are taken for granted.
    """
    x = sp.csr_array((np.ones(rows.nnz), rows.indices, rows.indptr), shape=rows.shape)
    x = x[:, x.sum(axis=0) >= _ENOUGH_CHOICES]
    (n, m), number = x.shape, x.sum(axis=1)
    if m < 3:
        return True
    group = np.unique(np.floor(_STEPS * np.log(np.maximum(number, 1.0))), return_inverse=True)[1]
    members = sp.csr_array((np.ones(n), group, np.arange(n + 1)))
    M = (members.T @ x).toarray() / np.bincount(group)[:, None]
    norms = number - 2.0 * (x @ M.T)[np.arange(n), group] + np.sum(M**2, axis=1)[group]
    s = np.divide(1.0, norms, out=np.zeros(n), where=norms > 1e-9)
    weight = members.T @ s
    diagonal = x.T @ s - 2.0 * np.sum(M * (members.T @ (x * s[:, None])), axis=0) + weight @ M**2
    root = np.sqrt(np.maximum(diagonal, 1e-300))

    def product(v: Any) -> Any:
        u = v.ravel() / root
        left = s * (x @ u - (M @ u)[group])
        return (x.T @ left - M.T @ (members.T @ left)) / root - v.ravel()

    operator = LinearOperator((m, m), matvec=product, dtype=np.float64)
    largest = eigsh(operator, 1, which="LA", v0=np.ones(m), tol=1e-3, return_eigenvectors=False)
    a, b = np.sqrt(n - 1.0), np.sqrt(m)
    return bool(n + n * largest[0] > (a + b) ** 2 + 2.0 * (a + b) * np.cbrt(1.0 / a + 1.0 / b))


def in_slices(
    work: Callable[[slice], None], n_items: int, n_jobs: int | None, size: int = _ITEMS_AT_ONCE
) -> None:
    """Call ``work(part)`` on slices of the items, which any number of threads share out."""

    def run(start: int, stop: int) -> None:
        for t in range(start, stop):
            work(slice(t * size, (t + 1) * size))

    run_blocks(run, np.arange(-(-n_items // size) + 1), n_jobs)


def unpack_lower(packed: Any) -> NDArray[np.float64]:
    """Symmetric matrices from packed lower triangles (row by row, last axis)."""
    d = (int(np.sqrt(8 * packed.shape[-1] + 1)) - 1) // 2
    full = np.empty((*packed.shape[:-1], d, d))
    for i in range(d):  # without two indices for each entry
        row = packed[..., i * (i + 1) // 2 : (i + 1) * (i + 2) // 2]
        full[..., i, : i + 1] = full[..., : i + 1, i] = row
    return full
