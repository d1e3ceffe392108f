"""Item vectors from the noisy Gram matrices and right-hand sides of all rounds.

Round t releases, for every item j (notation of `skdpmf.mechanisms.als.dpals`),

    A_j + E_j  and  g_j + xi_j,
    g_j = A_j (theta*_j - theta_j) + zeta_j,   cov(zeta_j) ~ v w_j A_j,

where E_j and xi_j are the known Gaussian noise, theta*_j the item's least-squares vector and zeta_j
the sampling error. Hence h_j = g_j + A_j theta_j is a measurement A_j theta*_j + error with
covariance Q_j = s^2 I + v w_j A_j, and the measurements of all rounds combine to the posterior

    P_j = gamma P_j + A_j Q_j^-1 A_j,   p_j = gamma p_j + A_j Q_j^-1 h_j,   gamma = 1 - 1 / t,
    theta_j = (P_j + L)^-1 (p_j + L prior_j).

Old rounds refer to older user vectors: the s-th of t has the weight s / t. Rounds share users,
hence zeta_j: v is the sum of these weights, (t + 1) / 2. Without noise gamma = 0, v = 1 and
theta_j = (A_j + v w_j L)^-1 (A_j theta_j + g_j + v w_j L prior_j): one exact ridge regression.

Nothing here touches data: all of it is post-processing.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from skdpmf.mechanisms.common import in_slices, unpack_lower

# Guard: least eigenvalue of a pooled Gram matrix, relative to its trace
_LEAST_EIGENVALUE = 0.02


class ItemPosterior:
    """Gaussian posterior of all item vectors, from prior_j (n_items, d) and L (d, d).

    ``mass`` is the expected sum of weights of an item, sum_i c_i w_ij, up to a common factor,
    ``weight`` the typical weight w_j of a rating; ``noise`` is the standard deviation of the
    right-hand sides' noise, 0 without privacy.
    """

    def __init__(
        self,
        prior_mean: NDArray[np.float64],
        prior_precision: NDArray[np.float64],
        mass: NDArray[np.float64],
        weight: NDArray[np.float64],
        noise: float,
    ) -> None:
        n_items, d = prior_mean.shape
        self.prior_precision, self.mass, self.weight = prior_precision, mass, weight
        self.noise, self.private = noise, noise > 0
        self.pull = prior_mean @ prior_precision
        self.precision = np.zeros((n_items, d, d))
        self.shift = np.zeros((n_items, d))
        self.n_rounds = 0
        self.theta = prior_mean.copy()
        self.pooled = np.eye(d)

    def observe(self, item: Any, precision: Any, mean: Any) -> None:
        """Add independent knowledge of one coordinate of every item: it counts as a round."""
        self.n_rounds += 1
        self.precision[:, item, item] += precision
        self.shift[:, item] += precision * mean

    def update(self, gram: Any, rhs: Any, n_jobs: int | None = None) -> None:
        """Take in one round's releases.

        gram (n_items, d * (d + 1) / 2): packed lower triangles of the noisy A_j; rhs (n_items, d):
        noisy g_j.
        """
        self.n_rounds += 1
        self.pooled = lift(unpack_lower(gram.sum(axis=0) / self.mass.sum()))
        n_rounds = self.n_rounds if self.private else 1
        kept, spread = kept_by(n_rounds), 0.5 * (n_rounds + 1) * self.weight

        def absorb(items: slice) -> None:
            A = self.mass[items, None, None] * self.pooled
            A = A if self.private else unpack_lower(gram[items])
            v, h = spread[items, None], rhs[items] + np.einsum("jab,jb->ja", A, self.theta[items])
            C, (L, pull) = self._curvature(items, A), self._prior(items)
            if self.private:
                Q = v[:, None] * A + self.noise**2 * np.eye(A.shape[1])
                gained = C @ np.linalg.solve(Q, np.concatenate((C, h[:, :, None]), axis=2))
                P, p = gained[:, :, :-1], gained[:, :, -1]
            else:
                P, p = C / v[:, None], h / v
            self.precision[items] = kept * self.precision[items] + P
            self.shift[items] = kept * self.shift[items] + p
            pulled = (self.shift[items] + pull)[:, :, None]
            self.theta[items] = np.linalg.solve(self.precision[items] + L, pulled)[:, :, 0]

        in_slices(absorb, len(self.mass), n_jobs)

    def _curvature(self, items: slice, A: Any) -> Any:
        """What h_j measures is this times theta*_j: A_j, unless a loss adds to it."""
        return A

    def _prior(self, items: slice) -> tuple[Any, Any]:
        """Return L, and L times the prior mean."""
        return self.prior_precision, self.pull[items]


def kept_by(n_rounds: int) -> float:
    """Return what the last of so many rounds keeps of older ones: the s-th weighs s / n_rounds."""
    return 1.0 - 1.0 / n_rounds


def lift(matrix: Any) -> NDArray[np.float64]:
    """Raise eigenvalues to a small share of the trace: noise may have made them negative."""
    values, vectors = np.linalg.eigh(matrix)
    floor = _LEAST_EIGENVALUE * max(values.sum(), 1e-6)
    return np.asarray((vectors * np.maximum(values, floor)) @ vectors.T)
