"""One noisy Gram matrix of clicks: which items are chosen by the same users.

For user i with clicks S_i, n_i of them on a head H of m items, and x_i their 0/1 row there,

    y_i = (x_i - n_i q) / |x_i - n_i q|,   0 where x_i = n_i q,

q the share of each item of H in its clicks. The row is centred at what an average user with as many
clicks would have, and its length is 1, whatever anybody clicks. G = sum_i y_i y_i' is the target.

**What is released**, for adding or removing a user, and for replacing one:

- counts: sum_i ([j in S_i] / sqrt(|S_i|))_j. A user's part has norm 1 and entries >= 0, so that
  <x, x'> >= 0: sensitivity 1, replace sqrt(2). H, q and the typical number of clicks come from it.
- Gram: G, with H and q as released. |y y'|_F = |y|^2 <= 1, and <y y', z z'> = (y . z)^2 >= 0:
  sensitivity 1, replace sqrt(2), in Frobenius norm.

An empty row contributes 0 to both. The norms are enforced by `skdpmf.privacy.sums`, whatever the
maps below compute. **Theorem**: the releases are together mu-GDP with mu^2 = sum of 1 / z^2 over
both noise multipliers z, for which the plan is calibrated; all that follows is post-processing.

**Cleaning.** The noise off the diagonal has the deviation s = sd / sqrt(2), and as a matrix
eigenvalues up to 2 s sqrt(m) (Wigner's semicircle). With `EDGE` of that as e, each round takes the
released matrix with l_j on the diagonal (0 at first), keeps the eigenvalues above e, shrinks them,

    lambda <- sqrt(lambda^2 - e^2),   U diag(lambda) U' = L L',   l_j <- (L L')_jj,

and so fills the diagonal by what the other entries say of it. The items' own part is what is left
of the released diagonal, shrunk to its mean by moments. The result is G ~ L L' + diag(d). A ranking
needs popularity as well: an item-item model adds q q' times about the number of clicks.

The release is the item covariance of F. McSherry and I. Mironov, "Differentially private
recommender systems", KDD 2009, with rows of norm 1 in the place of clipped ones. The semicircle is
that of E. Wigner, "On the distribution of the roots of certain symmetric matrices", Annals of
Mathematics 67 (1958).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from skdpmf.privacy import sums
from skdpmf.privacy.budget import PrivacyBudget
from skdpmf.privacy.curator import Curator
from skdpmf.privacy.noise import exact_grid
from skdpmf.privacy.plan import Release, ReleasePlan
from skdpmf.privacy.sensitivity import count_sensitivity, gram_sensitivity
from skdpmf.privacy.users import Rows
from skdpmf.solvers._start import head_vectors, most_popular
from skdpmf.solvers.item_popularity import estimate_popularity
from skdpmf.solvers.item_posterior import unpack_lower

__all__ = ["N_ROUNDS", "CleanGram", "Settings", "clean_gram", "fit", "make_plan"]

N_ROUNDS = 6
EDGE = 0.85  # of the semicircle's: eigenvectors just inside it still hold more signal than harm
LEAST_OWN, MARGIN = 0.06, 1.02  # of an item's own part: of the mean diagonal, and over l_j
COUNTS, GRAM = "item counts", "Gram matrix of the head"


@dataclass(frozen=True)
class Settings:
    """Public settings: the items of the head, and the counts' share of mu^2."""

    n_head: int = 600
    counts_share: float = 0.06


class CleanGram(NamedTuple):
    """What is known of the head: G ~ loadings loadings' + diag(own), around popularity."""

    head: NDArray[np.int64]  # (m,), places in the catalogue
    popularity: NDArray[np.float64]  # (m,), q
    loadings: NDArray[np.float64]  # (m, r), L
    own: NDArray[np.float64]  # (m,), d
    counts: NDArray[np.float64]  # (n_items,), of all items, estimated from the released ones


def make_plan(budget: PrivacyBudget, settings: Settings, n_items: int) -> ReleasePlan:
    """Plan both releases, from public values alone; their noise spends the whole budget."""
    near: dict[str, Any] = {"neighbors": budget.neighbors, "unit": budget.unit}
    m = min(settings.n_head, n_items)
    releases = [
        Release(
            COUNTS,
            "sum over users of their clicks over the root of their number",
            (n_items,),
            count_sensitivity(1.0, **near),
        ),
        Release(
            GRAM,
            f"sum over users of y y', y the centred and normed row of the {m} most popular items",
            (m * (m + 1) // 2,),
            gram_sensitivity(1.0, 1.0, **near),
            layout="packed",
        ),
    ]
    share = settings.counts_share
    return ReleasePlan.from_shares(budget, releases, {COUNTS: share, GRAM: 1.0 - share})


def fit(
    curator: Curator, settings: Settings, *, rounds: Iterable[int] = range(N_ROUNDS)
) -> CleanGram:
    """Make both releases and clean the Gram matrix.

    Parameters
    ----------
    curator : Curator
        Of clicks (stored is clicked, whatever the value) and of a plan of `make_plan` with the same
        settings.
    settings : Settings
        Public settings.
    rounds : iterable of int
        Of the cleaning, possibly wrapped in a progress display.

    Returns
    -------
    CleanGram
    """
    users, grid = curator.users, exact_grid(curator.n_rows, 1.0)
    weights = users.map(_count_weights)
    counts = sums.item_scalars(users, weights, clip=1.0, grid=grid, signed=False)
    noisy = curator.release(COUNTS, counts)
    popularity = estimate_popularity(noisy, curator.deviation(COUNTS)).mean
    head = most_popular(popularity, min(settings.n_head, users.n_items))
    q = popularity[head] / popularity[head].sum()
    gram = sums.products(users, _centred, head, q, clip=1.0, grid=grid)
    released = unpack_lower(curator.release(GRAM, gram))
    loadings, own = clean_gram(released, curator.deviation(GRAM), rounds)
    return CleanGram(head, q, loadings, own, popularity)


def clean_gram(
    released: NDArray[np.float64], deviation: float, rounds: Iterable[int]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return L and d of a released Gram matrix.

    Parameters
    ----------
    released : ndarray of shape (m, m)
        Symmetric.
    deviation : float
        Standard deviation of the noise on the diagonal, sqrt(2) times that off it. 0: L L' is the
        matrix itself.
    rounds : iterable of int
        As for `fit`.

    Returns
    -------
    loadings, own : ndarray of shapes (m, r) and (m,)
    """
    m = len(released)
    diagonal = released.diagonal()
    edge = EDGE * 2.0 * deviation * np.sqrt(m / 2.0)
    filled = np.zeros(m) if deviation else diagonal
    for _ in rounds:
        values, vectors = np.linalg.eigh(released - np.diag(diagonal - filled))
        kept = values > edge
        loadings = vectors[:, kept] * (values[kept] ** 2 - edge**2) ** 0.25
        filled = np.sum(loadings**2, axis=1)
    if not deviation:
        return loadings, np.zeros(m)
    mean, spread = max(diagonal.mean(), 0.0), diagonal.var()
    trust = 1.0 - deviation**2 / max(spread, deviation**2)
    whole = np.maximum(mean + trust * (diagonal - mean), MARGIN * filled + LEAST_OWN * mean)
    return loadings, whole - filled


# What is computed for each user: maps of `Users`


def _count_weights(rows: Rows) -> NDArray[np.float64]:
    """1 / sqrt(n_i) for each of a user's clicks."""
    return np.repeat(1.0 / np.sqrt(np.maximum(rows.n_ratings, 1)), rows.n_ratings)


def _centred(rows: Rows, start: int, stop: int, head: Any, q: Any) -> NDArray[np.float64]:
    """y_i of the users [start, stop)."""
    x = head_vectors(rows, start, stop, np.ones(rows.nnz), head).toarray()
    y = x - x.sum(axis=1, keepdims=True) * q
    length = np.linalg.norm(y, axis=1, keepdims=True)
    return np.asarray(np.divide(y, length, out=np.zeros_like(y), where=length > 1e-9))
