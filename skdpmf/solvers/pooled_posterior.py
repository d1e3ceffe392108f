"""Item vectors from the noisy gradients of all rounds and one pooled Gram matrix a round.

Notation of `skdpmf.solvers.pooled_als`. A round measures, for every item j,

    G_j = M_j F (theta*_j - theta_j) + error,   cov(error) = rho_j I,
    rho_j = noise^2 + sampling + var(M_j) |F S_j^1/2|^2 / d,

S_j being the posterior covariance of theta_j so far: a popularity that is not well known measures
what is not known about theta_j badly. So h_j = G_j + M_j F theta_j measures M_j F theta*_j, and

    P_j = P_j + M_j^2 F'F / rho_j,   p_j = p_j + M_j F' h_j / rho_j,
    theta_j = (P_j + L)^-1 (p_j + L (line_j, 0)),

line_j linear in E log N_j, fitted with a weak prior while there are no factors. Before a round
what P_j and p_j tell about v_j given b_j is discounted by 0.92; the rest, about b_j alone, is kept.

Nothing here touches data: all of it is post-processing.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from skdpmf.solvers.item_residuals import item_prior

__all__ = ["PooledPosterior"]

_KEPT = 0.92  # of what is known about factors, a round
_LEAST_EIGENVALUE = 0.02  # of the factors' Gram matrix, relative to its trace
_ITEMS_AT_ONCE = 1024
_RESIDUAL_VARIANCE = 0.7  # of a rating around the model, in squared quarter ranges: a guess
_RARE_VARIANCE = 1.6  # popular items lead the estimate of the variance, and differ less
# Mean clip factor, before anything is released, and the deviation of what H / n is thought to be
# then; what older rounds tell of H is discounted.
_CLIP_FACTOR, _GRAM_DEVIATION, _GRAM_KEPT = 0.6, 0.15, 0.7


class PooledPosterior:
    """Gaussian posterior of all item vectors, at first of their means alone.

    Parameters
    ----------
    log_popularity, popularity : ndarray of shape (n_items,)
        E log N_j and E N_j.
    mass, mass_variance : ndarray of shape (n_items,)
        M_j and its variance.
    squares : ndarray of shape (n_items,)
        Expected sum of squared weights.
    item_variance, factor_variance : float
        Prior variances: L = diag(1 / item_variance, 1 / factor_variance, ...). The first one is a
        guess, until means are known.
    """

    unobserved: Any = 0.0  # what pairs without a click add to M_j

    def __init__(
        self,
        log_popularity: NDArray[np.float64],
        popularity: NDArray[np.float64],
        *,
        mass: NDArray[np.float64],
        mass_variance: NDArray[np.float64],
        squares: NDArray[np.float64],
        item_variance: float,
        factor_variance: float,
    ) -> None:
        n_items = mass.size
        centred = log_popularity - popularity @ log_popularity / popularity.sum()
        self.design = np.column_stack((np.ones(n_items), centred))
        self.popularity, self.mass, self.mass_variance = popularity, mass, mass_variance
        self.squares = squares
        self.guess = self.item_variance = item_variance
        self.factor_variance = factor_variance
        self.precision = np.full((n_items, 1, 1), 1e-9)
        self.shift = np.zeros((n_items, 1))
        self.line = np.zeros(n_items)
        self.theta = np.zeros((n_items, 1))
        self.covariance = np.full((n_items, 1, 1), item_variance)
        self.n_rounds = 0
        self._grams, self._gram_weight = np.zeros((1, 1)), 0.0

    def add_means(self, sums: NDArray[np.float64], slope: float, noise: float) -> None:
        """Add a round of item residuals, `slope` the mean clip factor."""
        gain, b = slope * self.mass, self.theta[:, 0]
        unknown = slope**2 * self.mass_variance * self.covariance[:, 0, 0]
        variance = np.maximum(noise**2 + _RESIDUAL_VARIANCE * self.squares + unknown, 1e-12)
        self.precision[:, 0, 0] += gain**2 / variance
        self.shift[:, 0] += gain / variance * (sums + gain * b)
        precision = self.precision[:, 0, 0]
        variance, self.line = item_prior(
            self.shift[:, 0] / precision, 1.0 / precision, self.design, self.guess
        )
        self.item_variance = _RARE_VARIANCE * variance
        self._solve()

    def grow(self, rank: int) -> None:
        """Add factors, of which nothing is known."""
        n_items, d = self.mass.size, rank + 1
        old, self.precision = self.precision, np.zeros((n_items, d, d))
        self.precision[:, :1, :1] = old
        self.shift = np.column_stack((self.shift, np.zeros((n_items, rank))))
        self.theta = np.column_stack((self.theta, np.zeros((n_items, rank))))
        old, self.covariance = self.covariance, np.zeros((n_items, d, d))
        self.covariance[:, :1, :1] = old
        self.covariance[:, range(1, d), range(1, d)] = self.factor_variance
        self._grams = np.zeros((d, d))

    def pooled_gram(self, gram: NDArray[np.float64], deviation: float, a: float) -> Any:
        """Posterior mean of H / n, from rounds with noise of this deviation, and a weak guess."""
        weight = 1.0 / max(deviation, 1e-9) ** 2
        self._grams = _GRAM_KEPT * self._grams + weight * gram
        self._gram_weight = _GRAM_KEPT * self._gram_weight + weight
        d = len(gram)
        guess = np.full(d, _CLIP_FACTOR / max(d - 1, 1))
        guess[0] = _CLIP_FACTOR * a**2
        sure = _GRAM_DEVIATION**-2.0
        return _positive((self._grams + sure * np.diag(guess)) / (self._gram_weight + sure))

    def add_gradients(
        self, gradients: NDArray[np.float64], gram: NDArray[np.float64], a: float, noise: float
    ) -> None:
        """Add a round: released G, and what is known of H / n."""
        F = gram.copy()
        F[:, 0] /= a
        d = len(F)
        self._discount()
        self.n_rounds += 1
        remembered = min(1.0 / (1.0 - _KEPT), self.n_rounds)
        unknown = np.einsum("ab,jbc,ac->j", F, self.covariance, F, optimize=True) / d
        variance = noise**2 + remembered * _RESIDUAL_VARIANCE * self.squares / max(d - 1, 1)
        variance = variance + self.mass_variance * unknown
        slope = self.mass + self.unobserved
        gain = slope / variance
        self.precision += (gain * slope)[:, None, None] * (F.T @ F)
        measured = gradients + self.mass[:, None] * (self.theta @ F.T)
        self.shift += gain[:, None] * (measured @ F)
        self._solve()

    def _discount(self) -> None:
        """Forget a part of what is known about factors, and nothing about the means alone."""
        P, p = self.precision, self.shift
        if P.shape[1] == 1:
            return
        cross = np.linalg.solve(P[:, 1:, 1:] + 1e-9 * np.eye(P.shape[1] - 1), P[:, 1:, :1])[:, :, 0]
        alone = np.maximum(P[:, 0, 0] - np.sum(cross * P[:, 1:, 0], axis=1), 0.0)
        shift = p[:, 0] - np.sum(cross * p[:, 1:], axis=1)
        P *= _KEPT
        p *= _KEPT
        P[:, 0, 0] += (1.0 - _KEPT) * alone
        p[:, 0] += (1.0 - _KEPT) * shift

    def prior_precision(self) -> NDArray[np.float64]:
        """Diagonal of L, of all items or of each."""
        prior = np.full(self.shift.shape[1], 1.0 / self.factor_variance)
        prior[0] = 1.0 / self.item_variance
        return prior

    def _solve(self) -> None:
        d = self.shift.shape[1]
        prior = np.broadcast_to(self.prior_precision(), self.shift.shape)
        pull = np.zeros_like(self.shift)
        pull[:, 0] = prior[:, 0] * self.line
        for start in range(0, len(pull), _ITEMS_AT_ONCE):
            part = slice(start, start + _ITEMS_AT_ONCE)
            self.covariance[part] = np.linalg.inv(
                self.precision[part] + prior[part, :, None] * np.eye(d)
            )
            right: Any = (self.shift + pull)[part, :, None]
            self.theta[part] = (self.covariance[part] @ right)[:, :, 0]


def _positive(gram: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the Gram matrix with the factors' eigenvalues, and the constant's, above 0."""
    gram = gram.copy()
    gram[0, 0] = max(gram[0, 0], 0.05)
    if len(gram) > 1:
        values, vectors = np.linalg.eigh(gram[1:, 1:])
        floor = _LEAST_EIGENVALUE * max(float(np.sum(values)), 1e-3)
        gram[1:, 1:] = (vectors * np.maximum(values, floor)) @ vectors.T
    return gram
