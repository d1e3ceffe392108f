"""Has a chain of the posterior sampler converged? For the curator: nothing here may be released.

Rank-normalised split R-hat and effective sample sizes (Vehtari et al. 2021) of quantities that
do not change when U and V are rotated together. Single entries of U and V are identified only
up to that rotation, and their R-hat means nothing.

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
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import fft, special

from skdpmf.kernels.entries import predict_entries
from skdpmf.mechanisms.posterior_draw.target import GAMMA_SHAPE, State, Target

__all__ = [
    "MAX_RHAT",
    "MIN_ESS",
    "Diagnostics",
    "bulk_ess",
    "chain_quantities",
    "public_pairs",
    "split_rhat",
    "summarise",
    "tail_ess",
]

MAX_RHAT = 1.01
MIN_ESS = 400.0
LOSS_QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)

_MIN_DRAWS = 4  # of a chain: halves of two draws have a variance
_ROWS = 10  # of the table that is shown

Array = NDArray[np.float64]


def split_rhat(draws: Any) -> Any:
    """R-hat: rank-normalised, of split chains, the larger of bulk and folded; 1 is best.

    The bulk's shows chains around different places, the folded one different widths.

    draws (array-like of shape (n_chains, n_draws) or (n_chains, n_draws, n_quantities)): of an odd
    number of draws the middle one is left out. Returns (float or ndarray of shape (n_quantities,)):
    NaN for a quantity with a value that is not finite or with one value only, for less than 4
    draws, and for a single chain. Infinite, or huge by rounding, where each chain stands still at
    its own place. Raises ValueError if `draws` has another number of dimensions.

    Examples
    --------
    >>> import numpy as np
    >>> from skdpmf.mechanisms.posterior_draw.chain_diagnostics import split_rhat
    >>> t = np.arange(200.0)
    >>> two_chains = np.stack([np.sin(t**2), np.sin(t**2) + 1.0])
    >>> bool(split_rhat(two_chains) > 1.2)
    True
    """
    return _for_each_quantity(draws, _rhat, min_chains=2)


def bulk_ess(draws: Any) -> Any:
    """Effective sample size of the rank-normalised split chains: how well the centre is known.

    draws (array-like of shape (n_chains, n_draws) or (n_chains, n_draws, n_quantities)): of an odd
    number of draws the middle one is left out. Returns (float or ndarray of shape (n_quantities,)):
    at most S log10(S), S the number of draws in all chains; S for a quantity with one value only;
    NaN with a value that is not finite or less than 4 draws. Raises ValueError if `draws` has
    another number of dimensions.

    Examples
    --------
    >>> import numpy as np
    >>> from skdpmf.mechanisms.posterior_draw.chain_diagnostics import bulk_ess
    >>> slow = np.sin(np.arange(200.0) / 30.0)
    >>> bool(bulk_ess(np.stack([slow, slow[::-1]])) < 20)
    True
    """
    return _for_each_quantity(draws, lambda x: _ess(_rank_normalise(_split(x))), min_chains=1)


def tail_ess(draws: Any) -> Any:
    """Effective sample size of the tails: the smaller one of the 5 % and the 95 % quantile.

    It is that of the indicators x <= q, q the quantile of all draws.

    draws (array-like of shape (n_chains, n_draws) or (n_chains, n_draws, n_quantities)): of an odd
    number of draws the middle one counts for the quantiles only. Returns (float or ndarray of shape
    (n_quantities,)): as `bulk_ess`. Raises ValueError if `draws` has another number of dimensions.

    Examples
    --------
    >>> import numpy as np
    >>> from skdpmf.mechanisms.posterior_draw.chain_diagnostics import tail_ess
    >>> tail_ess(np.zeros((4, 100)))
    400.0
    """
    return _for_each_quantity(draws, _tail_ess, min_chains=1)


def _for_each_quantity(
    draws: Any, statistic: Callable[[Array], Array], *, min_chains: int
) -> float | Array:
    """Apply a statistic of shape (n_chains, n_draws, n_quantities) where it is defined."""
    x = np.asarray(draws, dtype=np.float64)
    if x.ndim not in (2, 3):
        raise ValueError(
            f"draws of shape {x.shape} must have the shape (n_chains, n_draws) or (n_chains, "
            "n_draws, n_quantities). Pass draws[np.newaxis] for a single chain."
        )
    cube = x if x.ndim == 3 else x[:, :, np.newaxis]
    out = np.full(cube.shape[2], np.nan)
    finite = np.isfinite(cube).all(axis=(0, 1))
    if cube.shape[0] >= min_chains and cube.shape[1] >= _MIN_DRAWS and finite.any():
        out[finite] = statistic(cube[:, :, finite])
    return out if x.ndim == 3 else float(out[0])


def _split(x: Array) -> Array:
    half = x.shape[1] // 2
    return np.concatenate((x[:, :half], x[:, -half:]))


def _rank_normalise(x: Array) -> Array:
    from scipy.stats import rankdata  # heavy

    n = x.shape[0] * x.shape[1]
    rank = rankdata(x.reshape(n, -1), axis=0)
    return special.ndtri((rank - 0.375) / (n + 0.25)).reshape(x.shape)


def _rhat(x: Array) -> Array:
    x = _split(x)
    folded = np.abs(x - np.median(x, axis=(0, 1)))
    # two values at the same distance from their median fold into one: that says nothing, so NaN
    # of the folded draws gives way
    return np.fmax(_plain_rhat(_rank_normalise(x)), _plain_rhat(_rank_normalise(folded)))


def _plain_rhat(z: Array) -> Array:
    n = z.shape[1]
    within = z.var(axis=1, ddof=1).mean(axis=0)
    between = n * z.mean(axis=1).var(axis=0, ddof=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        rhat = np.sqrt((between / within + n - 1.0) / n)
    return np.where(np.ptp(z, axis=(0, 1)) > 0.0, rhat, np.nan)


def _tail_ess(x: Array) -> Array:
    n = x.shape[0] * x.shape[1]
    # x <= q holds for the same draws as x <= the last order statistic up to q: no interpolation,
    # whose rounding could move a draw across
    ranks = (n - 1) // 20, 19 * (n - 1) // 20
    ordered = np.partition(x.reshape(n, -1), ranks, axis=0)
    low, high = (_ess(_split((x <= ordered[r]).astype(np.float64))) for r in ranks)
    return np.minimum(low, high)


def _ess(z: Array) -> Array:
    m, n, n_quantities = z.shape
    covariance = _autocovariances(z).mean(axis=0)
    within = covariance[0] * n / (n - 1.0)
    total = covariance[0] + z.mean(axis=1).var(axis=0, ddof=1)
    constant = np.ptp(z, axis=(0, 1)) == 0.0
    rho = 1.0 - (within - covariance) / np.where(constant, 1.0, total)
    rho[0] = 1.0
    n_pairs = max((n - 3) // 2, 0) + 1
    even, odd = rho[0 : 2 * n_pairs : 2], rho[1 : 2 * n_pairs : 2]
    pair = even + odd
    ends = pair <= 0.0
    last = np.where(ends.any(axis=0), ends.argmax(axis=0), n_pairs - 1)
    before = np.arange(n_pairs)[:, np.newaxis] < last
    head = np.where(before, np.minimum.accumulate(pair, axis=0), 0.0).sum(axis=0)
    # of the pair that ends the sum, one term stays: it lowers the variance of an antithetic chain
    column = np.arange(n_quantities)
    rest = np.where(ends[last, column], np.maximum(even[last, column], 0.0), even[last, column])
    tau = np.maximum(2.0 * head + rest - 1.0, 1.0 / math.log10(m * n))
    return np.where(constant, float(m * n), m * n / tau)


def _autocovariances(z: Array) -> Array:
    """At lags 0 to n - 1 of axis 1, each divided by n."""
    n = z.shape[1]
    size = fft.next_fast_len(2 * n, real=True)
    spectrum = fft.rfft(z - z.mean(axis=1, keepdims=True), size, axis=1)
    return fft.irfft(np.abs(spectrum) ** 2, size, axis=1)[:, :n] / n


def public_pairs(n_users: int, n_items: int, n: int = 200) -> NDArray[np.int64]:
    """Fixed pairs of a user and an item, from the shape alone: rated or not plays no part.

    n: number of pairs; fewer if the matrix has fewer cells. Returns (min(n, n_users * n_items), 2):
    all different, evenly spread over users, items and the cells of the matrix.

    Examples
    --------
    >>> from skdpmf.mechanisms.posterior_draw.chain_diagnostics import public_pairs
    >>> public_pairs(6040, 3706, n=3).tolist()
    [[0, 0], [4559, 2113], [3078, 520]]
    """
    t = np.arange(min(n, n_users * n_items), dtype=np.int64)
    # Steps at the powers of the reciprocal plastic number spread over the square evenly. The
    # shift after each full cycle of (t mod n_users, t mod n_items) keeps all pairs different.
    cycle = math.lcm(n_users, n_items)
    users = t * _coprime_step(n_users, 0.7548776662466927)
    items = (t + t // max(cycle, 1)) * _coprime_step(n_items, 0.5698402909980532)
    return np.column_stack((users % max(n_users, 1), items % max(n_items, 1)))


def _coprime_step(n: int, fraction: float) -> int:
    step = max(round(fraction * n), 1)
    while math.gcd(step, n) > 1:
        step += 1
    return step


def chain_quantities(target: Target, state: State, pairs: Any) -> dict[str, float]:
    """What the chain is judged by: functions of the state that no rotation of U and V changes.

    With f_i = w_i sum_j (e_ij - clip(p_ij, -M, M))^2 the loss of user i:

    - "loss", sum_i f_i, and "loss quantile q" of the f_i over the users with ratings and
      w_i > 0; absent if there is no such user;
    - "|U|^2", "|V|^2", sums of squares, and "singular value 1", ... of V, at most k;
    - "log density", up to its constant, with all priors;
    - "log det user precision", "log det item precision", if the precisions are sampled;
    - "prediction i,j", p_ij = u_i . v_j + c_j, not clipped, for the given pairs.

    With precisions that differ between components only permutations and flips of signs leave the
    density as it is, and they leave all quantities as they are.

    target: what is sampled; state: the point of the chain, brought up to date if its noise is lazy;
    pairs (array-like of int, shape (n_pairs, 2)): user and item of each prediction; see
    `public_pairs`. Result: in an order that depends on the target and the pairs only. Not finite
    where the state is not.
    """
    U = np.ascontiguousarray(state.U, dtype=np.float64)
    V = np.ascontiguousarray(state.V, dtype=np.float64)
    pairs = np.asarray(pairs, dtype=np.int64).reshape(-1, 2)
    users, items = pairs.T
    # a chain that runs away is told by values that are not finite, not by warnings
    with np.errstate(all="ignore"):
        losses = _user_losses(target, U, V, state.item_bias)
        counted = losses[(target.weights > 0.0) & (np.diff(target.R.indptr) > 0)]
        found: dict[str, float] = {}
        if counted.size:
            found["loss"] = losses.sum()
            found |= {f"loss quantile {q:g}": np.quantile(counted, q) for q in LOSS_QUANTILES}
        found["|U|^2"], found["|V|^2"] = np.sum(U**2), np.sum(V**2)
        found |= {f"singular value {d + 1}": s for d, s in enumerate(_singular_values(V))}
        found["log density"] = _log_prior(target, state) - (
            target.inverse_temperature * losses.sum()
        )
        if target.sample_precisions:
            found["log det user precision"] = np.log(state.user_precision).sum()
            found["log det item precision"] = np.log(state.item_precision).sum()
        predictions = np.einsum("nd,nd->n", U[users], V[items]) + state.item_bias[items]
    found |= {f"prediction {i},{j}": p for (i, j), p in zip(pairs, predictions, strict=True)}
    return {name: float(value) for name, value in found.items()}


def _user_losses(target: Target, U: Array, V: Array, item_bias: Array) -> Array:
    R, n_users = target.R, U.shape[0]
    prediction = np.empty(R.indices.size)
    predict_entries(R.indptr, R.indices, U, V, 0, n_users, prediction)
    prediction += item_bias[R.indices]
    square = (R.data - np.clip(prediction, -target.bound, target.bound)) ** 2
    row = np.repeat(np.arange(n_users), np.diff(R.indptr))
    return target.weights * np.bincount(row, weights=square, minlength=n_users)


def _singular_values(V: Array) -> NDArray[Any]:
    if not np.isfinite(V).all():  # where LAPACK raises
        return np.full(min(V.shape), np.nan)
    return np.linalg.svd(V, compute_uv=False)


def _log_prior(target: Target, state: State) -> float:
    """Log-density of U, V, c and, where sampled, the precisions, up to a constant."""
    total = 0.0
    sides = (
        (state.U, state.user_precision, target.user_rate()),
        (state.V, state.item_precision, target.item_rate()),
    )
    for F, precision, rate in sides:
        total += 0.5 * F.shape[0] * np.log(precision).sum() - 0.5 * np.sum(F**2 @ precision)
        if target.sample_precisions:
            total += np.sum((GAMMA_SHAPE - 1.0) * np.log(precision) - rate * precision)
    if target.bias_std > 0.0:
        total -= 0.5 * np.sum((state.item_bias / target.bias_std) ** 2)
    return total


@dataclass(frozen=True, eq=False)
class Diagnostics:
    """How well chains of one target agree and mix. It reads the data and must not be published.

    Choose the number of sweeps before the fit: a chain that runs until it looks converged stops
    at a time that depends on the data, and what it releases is no longer covered. Nor does
    `converged` prove anything: no diagnostic bounds the distance to the posterior.

    Attributes
    ----------
    names : tuple of str
        The quantities.
    rhat, ess_bulk, ess_tail : ndarray of shape (n_quantities,)
        See `split_rhat`, `bulk_ess`, `tail_ess`.
    n_chains, n_draws : int
        Chains, and draws of each of them.
    """

    names: tuple[str, ...]
    rhat: Array
    ess_bulk: Array
    ess_tail: Array
    n_chains: int
    n_draws: int

    @property
    def converged(self) -> bool:
        """Whether R-hat < 1.01 and both ESS > 400 for all quantities; NaN does not pass.

        So a quantity that never changes does not pass either: it looks like a chain that is stuck.
        The largest of 200 R-hats exceeds 1.01 by chance until the ESS is about 1200 (independent
        draws, four chains, simulated): take more draws before blaming the chain.
        """
        return not self._fails().any()

    def _fails(self) -> NDArray[np.bool_]:
        ess = np.minimum(self.ess_bulk, self.ess_tail)
        return ~((self.rhat < MAX_RHAT) & (ess > MIN_ESS))

    def __str__(self) -> str:
        fails = self._fails()
        with np.errstate(divide="ignore"):
            badness = np.maximum(
                (self.rhat - 1.0) / (MAX_RHAT - 1.0),
                MIN_ESS / np.minimum(self.ess_bulk, self.ess_tail),
            )
        order = np.argsort(-np.where(np.isnan(badness), np.inf, badness), kind="stable")
        table = [("quantity", "R-hat", "bulk ESS", "tail ESS")]
        table += [
            (
                self.names[q],
                f"{self.rhat[q]:.4f}",
                f"{self.ess_bulk[q]:.0f}",
                f"{self.ess_tail[q]:.0f}",
            )
            for q in order[:_ROWS]
        ]
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        lines = [
            "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])])
            for row in table
        ]
        lines.insert(1, "-" * len(lines[0]))
        verdict = f"{fails.sum()} of {fails.size} fail" if fails.any() else f"all {fails.size} pass"
        return "\n".join(
            [
                f"Diagnostics of {self.n_chains} chains of {self.n_draws} draws",
                f"asked: R-hat < {MAX_RHAT:g} and ESS > {MIN_ESS:g}; {verdict}, worst first",
                "",
                *lines,
                *([f"... and {fails.size - _ROWS} more"] if fails.size > _ROWS else []),
                "",
                "This reads the data, is outside the guarantee and must not be published.",
            ]
        )


def summarise(names: Sequence[str], draws: Any) -> Diagnostics:
    """Diagnose all quantities of the chains of one target.

    names: of the quantities, such as the keys of `chain_quantities`; draws (array-like of shape
    (n_chains, n_draws, n_quantities)): their values, from chains with independent starts. Raises
    ValueError if `draws` has another shape, or no quantity.

    Examples
    --------
    >>> import numpy as np
    >>> from skdpmf.mechanisms.posterior_draw.chain_diagnostics import summarise
    >>> t = np.arange(1000.0)
    >>> draws = np.stack([np.sin(c + t**2) for c in range(4)])[:, :, np.newaxis]
    >>> summarise(["loss"], draws).converged
    True
    """
    names, x = tuple(names), np.asarray(draws, dtype=np.float64)
    if x.ndim != 3 or x.shape[2] != len(names) or not names:
        raise ValueError(
            f"draws of shape {x.shape} must have the shape (n_chains, n_draws, {len(names)}) for "
            f"{len(names)} names, and at least one. Stack one row of values for each name, draw "
            "and chain."
        )
    return Diagnostics(names, split_rhat(x), bulk_ess(x), tail_ess(x), x.shape[0], x.shape[1])
