"""Has a chain of the posterior sampler converged? For the curator: nothing here may be released.

Rank-normalised split R-hat and effective sample size (Vehtari et al. 2021) of quantities that no
rotation of U and V changes. Single entries are identified only up to that rotation, and their R-hat
means nothing.

Split every chain in half, pool all draws x, and let z = Phi^-1((rank(x) - 3/8) / (S + 1/4)),
S = the number of pooled draws, ties with their mean rank. With m half-chains of n draws each,

    W = mean of the half-chains' variances,  B / n = variance of their means,
    R-hat = sqrt(((n - 1) / n W + B / n) / W), the larger one of x and of |x - median(x)|,
    ESS = m n / tau,  tau = -1 + 2 sum_t rho_t,  rho_t = 1 - (W - s_t) / ((n - 1) / n W + B / n),

s_t the mean autocovariance at lag t >= 0. The sum is cut where a pair (rho_2t, rho_2t+1) is first
not positive, and the pairs before it are made monotone (Geyer's initial monotone sequence).

References
----------
Vehtari, Gelman, Simpson, Carpenter, Buerkner (2021). Rank-normalization, folding, and
localization: an improved R-hat for assessing convergence of MCMC. Bayesian Analysis 16(2).
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import fft, special

from skdpmf.kernels.entries import predict_entries
from skdpmf.mechanisms.posterior_draw.gibbs import State, Target

MAX_RHAT, MIN_ESS = 1.01, 400.0


@dataclass(frozen=True, eq=False)
class Diagnostics:
    """How well chains of one target agree and mix. It reads the data and must not be published.

    Choose the number of sweeps before the fit: a chain that runs until it looks converged stops
    at a time that depends on the data, and what it releases is no longer covered. Nor does
    `converged` prove anything: no diagnostic bounds the distance to the posterior.

    names (tuple of str): quantities; rhat, ess (n_quantities,): split R-hat and effective sample
    size of each, NaN where a value is not finite or less than 4 draws are there, rhat also where
    all values are one.
    """

    names: tuple[str, ...]
    rhat: Any
    ess: Any

    @property
    def converged(self) -> bool:
        """Whether R-hat < 1.01 and ESS > 400 for all quantities; NaN does not pass.

        The largest of 200 R-hats exceeds 1.01 by chance until the ESS is about 1200 (independent
        draws, four chains, simulated): take more draws before blaming the chain.
        """
        return bool(((self.rhat < MAX_RHAT) & (self.ess > MIN_ESS)).all())


def diagnose(names: Any, draws: Any) -> Diagnostics:
    """Diagnose quantities of chains with independent starts.

    names: of the quantities; draws (n_chains >= 2, n_draws, n_quantities): their values.
    """
    rhat, ess = np.full((2, len(names)), np.nan)
    finite = np.isfinite(draws).all(axis=(0, 1))
    half = draws.shape[1] // 2
    if half >= 2 and finite.any():  # two draws have a variance
        x = np.concatenate((draws[:, :half, finite], draws[:, -half:, finite]))
        z, folded = _ranked(x), _ranked(np.abs(x - np.median(x, axis=(0, 1))))
        # two values as far from their median fold into one, whose NaN says nothing
        rhat[finite] = np.fmax(_rhat(z), _rhat(folded))
        ess[finite] = _effective_size(z)
    return Diagnostics(tuple(names), rhat, ess)


def _ranked(x: Any) -> Any:
    from scipy.stats import rankdata  # heavy

    n = x.shape[0] * x.shape[1]
    return special.ndtri((rankdata(x.reshape(n, -1), axis=0) - 0.375) / (n + 0.25)).reshape(x.shape)


def _rhat(z: Any) -> Any:
    n, within = z.shape[1], z.var(axis=1, ddof=1).mean(axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.sqrt((n - 1.0) / n + z.mean(axis=1).var(axis=0, ddof=1) / within)


def _effective_size(z: Any) -> Any:
    m, n = z.shape[:2]
    spectrum = np.abs(fft.rfft(z - z.mean(axis=1, keepdims=True), 2 * n, axis=1)) ** 2
    covariance = fft.irfft(spectrum, axis=1)[:, :n].mean(axis=0) / n
    total = covariance[0] + z.mean(axis=1).var(axis=0, ddof=1)
    with np.errstate(invalid="ignore"):
        rho = 1.0 - (covariance[0] * n / (n - 1.0) - covariance) / total
    rho[0] = 1.0
    pairs = rho[: n // 2 * 2].reshape(n // 2, 2, -1).sum(axis=1)
    before = np.logical_and.accumulate(pairs > 0.0, axis=0)
    tau = 2.0 * np.minimum.accumulate(pairs, axis=0).sum(axis=0, where=before) - 1.0
    return m * n / np.maximum(tau, 1.0 / math.log10(m * n))


def chain_quantities(target: Target, state: State) -> dict[str, float]:
    """What a chain is judged by, by name: functions that no rotation of U and V changes.

    - "loss": sum_i w_i sum_j (e_ij - clip(p_ij, -M, M))^2;
    - "|U|^2", "|V|^2", "|V'V|^2": sums of squares;
    - "prediction i,j": p_ij = u_i . v_j + c_j, not clipped, for up to 200 pairs that are spread
      over the matrix by its shape alone: rated or not plays no part.

    Names depend on the target alone. A chain that runs away is told by values that are not finite,
    not by warnings.
    """
    U = np.ascontiguousarray(state.U, dtype=np.float64)
    V = np.ascontiguousarray(state.V, dtype=np.float64)
    R, (n_users, n_items) = target.R, target.R.shape
    t = np.arange(min(200, n_users * n_items))
    users, items = t * n_users // max(t.size, 1), (t * math.sqrt(1.25) % 1.0 * n_items).astype(int)
    predicted, weights = np.empty(R.nnz), np.repeat(target.weights, np.diff(R.indptr))
    with np.errstate(all="ignore"):
        predict_entries(R.indptr, R.indices, U, V, 0, n_users, predicted)
        clipped = np.clip(predicted + state.item_bias[R.indices], -target.bound, target.bound)
        found = {"loss": weights @ (R.data - clipped) ** 2, "|U|^2": np.sum(U**2)}
        found |= {"|V|^2": np.sum(V**2), "|V'V|^2": np.sum((V.T @ V) ** 2)}
        pairs = np.einsum("nd,nd->n", U[users], V[items]) + state.item_bias[items]
    found |= {f"prediction {i},{j}": p for i, j, p in zip(users, items, pairs, strict=True)}
    return {name: float(value) for name, value in found.items()}
