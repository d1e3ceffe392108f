"""One draw from a scaled posterior as a private model (Liu, Wang, Smola 2015).

Ratings are y = (r - middle) / quarter range, each user's less the own damped mean and clipped to
[-h, h], h = 2 half the range: e_ij. The target is `skdpmf.mechanisms.posterior_draw.gibbs.Target`
with the weights w_i = min(rho, B_i / (m_i L^2)) and the inverse temperature that the budget allows,
and at most that of the Gaussian model of ratings with standard deviation `rating_std`, a = 1 / (2
sd^2). One draw of the item factors leaves; `skdpmf.mechanisms.posterior_draw.guarantee` proves what
it spends.

Has a chain converged? This is for the curator: nothing of it may be released.

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

Source: Vehtari, Gelman, Simpson, Carpenter, Buerkner (2021). Rank-normalization, folding, and
localization: an improved R-hat for assessing convergence of MCMC. Bayesian Analysis 16(2).
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import fft, sparse, special

from skdpmf.data.matrix import bound_contributions
from skdpmf.exceptions import require_that
from skdpmf.kernels.rows import predict_entries
from skdpmf.mechanisms.als.loop import FOLD_IN_RIDGE
from skdpmf.mechanisms.common import rows_of
from skdpmf.mechanisms.posterior_draw.gibbs import GibbsChain, State, Target
from skdpmf.mechanisms.posterior_draw.guarantee import (
    inverse_temperature,
    item_loss_bound,
    loss_bound,
    posterior_epsilon,
    user_weights,
)
from skdpmf.privacy.budget import PrivacyBudget
from skdpmf.privacy.plan import ReleasePlan
from skdpmf.privacy.pure import PureRelease
from skdpmf.privacy.recording import recorded_draw
from skdpmf.privacy.sampler.noise import NoiseSource

if TYPE_CHECKING:
    from skdpmf.mechanisms.posterior_draw.langevin import LangevinChain

Floats = NDArray[np.float64]

DRAW = "item factors"

# Fixed: half the scale in its quarters, and by Vehtari et al., as above
HALF_RANGE = 2.0  # h
_DIAGNOSED_CHAINS = 4
MAX_RHAT, MIN_ESS = 1.01, 400.0
# Normal scores of ranks: G. Blom, Statistical Estimates and Transformed Beta-Variables, 1958
_BLOM = 0.375


@dataclass(frozen=True)
class Settings:
    """Public settings of a fit, in quarter ranges; `skdpmf.DPMFSampler` explains them."""

    n_components: int
    max_ratings_per_user: int
    weight_cap: float
    kappa: float
    max_iter: int
    sampler: str
    calibration: str
    item_bias: bool
    user_std: float
    item_std: float
    bias_std: float
    rating_std: float
    sample_precisions: bool
    step_size: float
    table_size: int | None
    n_draws: int
    alpha: float
    user_damping: float

    @property
    def loss_bound(self) -> float:
        """Bound B on a user's loss."""
        return loss_bound(self.max_ratings_per_user, HALF_RANGE, self.kappa)

    @property
    def bound(self) -> float:
        """Bound on what a user's loss can do to the released draw."""
        kind = loss_bound if self.item_bias else item_loss_bound
        return kind(self.max_ratings_per_user, HALF_RANGE, self.kappa)

    @property
    def coldest(self) -> float:
        """Inverse temperature at which the likelihood is that of ratings with rating_std."""
        return 1.0 / (2.0 * self.rating_std**2)

    def inverse_temperature(self, budget: PrivacyBudget) -> float:
        """Inverse temperature a: the budget's, at most that of the ratings' own variance."""
        if not budget.is_private:
            return self.coldest
        bound = self.loss_bound if self.calibration == "paper" else self.bound
        allowed = inverse_temperature(
            budget.epsilon, bound, neighbors=budget.neighbors, calibration=self.calibration
        )
        return min(self.coldest, allowed)


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


class Model(NamedTuple):
    """Released model in quarter ranges: y_ij ~ b_j + o_i + u_i . v_j."""

    item_bias: Floats  # b
    factors: Floats  # V (n_items x n_components)
    ridge: float  # of u_i in the fold-in
    diagnostics: Diagnostics | None  # reads the data, and is no release


def make_plan(budget: PrivacyBudget, settings: Settings, n_items: int) -> ReleasePlan:
    """Plan the one release of a fit, from public values alone.

    budget: of unit "user"; its delta is not needed. Result: the draw, with the pure epsilon that it
    spends. Raises PrivacyParameterError if the budget's unit is not "user", or a private fit asks
    for more than one draw.
    """
    rule = "'user', for whose whole row the loss is bounded: pass PrivacyBudget(..., unit='user')."
    require_that(budget.unit == "user", "unit", budget.unit, rule)
    a = settings.inverse_temperature(budget)
    epsilon = np.inf
    if budget.is_private:
        epsilon = posterior_epsilon(a, settings.bound, neighbors=budget.neighbors)
    what = "item factors and biases" if settings.item_bias else "item factors, users' integrated"
    draw = PureRelease(
        DRAW,
        f"one draw from the posterior at inverse temperature {a:.6g}: {what}",
        (n_items, settings.n_components + int(settings.item_bias)),
        epsilon,
        "posterior sample",
        settings.bound,
        "loss of a user",
        count=settings.n_draws,
    )
    condition = "the chain having converged" if budget.is_private else ""
    return ReleasePlan(budget, (draw,), _notes(budget, settings), condition=condition)


def _notes(budget: PrivacyBudget, settings: Settings) -> tuple[str, ...]:
    notes = ["Losses are in squared quarters of the rating range."]
    if budget.is_private and settings.calibration == "paper":
        proved = settings.bound if budget.neighbors == "add-remove" else 2.0 * settings.bound
        loose = 4.0 * settings.loss_bound / proved
        notes.append(
            f"The paper's Theorem 1 says {loose:.4g} times the epsilon that is proved here: in its "
            "own accounting this draw spends that much."
        )
    if budget.is_private and settings.inverse_temperature(budget) == settings.coldest:
        notes.append(
            "The budget allows a colder posterior than the ratings' own variance (rating_std) "
            "gives: the rest of epsilon is not spent."
        )
    return tuple(notes)


def assumptions(settings: Settings) -> tuple[str, ...]:
    """Return what a private fit assumes beside the standard assumptions."""
    converged = (
        f"The chain has converged: {settings.max_iter} sweeps from the prior reach the posterior "
        "for every data set, not only this one. Nothing can prove this convergence, and delta does "
        "not include the difference."
    )
    if settings.sampler == "gibbs":
        return (converged,)
    return converged, "The chain's finite steps in single precision do not matter."


def fit(
    R: Any,
    settings: Settings,
    budget: PrivacyBudget,
    noise: NoiseSource,
    *,
    rounds: Iterable[int],
    levels: Floats | None = None,
    diagnosed: bool = False,
    n_jobs: int | None,
) -> Model:
    """Run a chain for a fixed number of sweeps and return its last point.

    R (CSR of shape (n_users, n_items)): ratings in quarter ranges from the middle of the scale, one
    entry per user and item; budget: as for `make_plan`; noise: all randomness; rounds:
    range(max_iter), possibly wrapped in a progress display; levels (n_users,): epsilon of each
    user, at most the budget's. None: the budget's. diagnosed: whether to run four more chains,
    and to diagnose the second half of their sweeps. They are others than the released one, because
    reading a chain may change how it goes on.
    """
    target = _target(R, settings, budget, noise, levels)
    released = _chain(target, settings, noise, "chain", n_jobs)
    names = [f"diagnosed chain {c}" for c in range(_DIAGNOSED_CHAINS if diagnosed else 0)]
    chains = [_chain(target, settings, noise, name, n_jobs) for name in names]
    quantities: list[Any] = []
    draws: list[Any] = []
    for t in rounds:
        for chain in (released, *chains):
            chain.sweep(t)
        if t >= settings.max_iter - settings.n_draws:
            state = released.state
            drawn = recorded_draw(
                name=DRAW,
                index=len(draws),
                targets=target.R,
                weights=target.weights,
                inverse_temperature=target.inverse_temperature,
                clip=target.bound,
                stds=(target.user_std, target.item_std, target.bias_std),
                output=(state.item_bias.copy(), state.V.copy()),
            )
            draws.append(drawn)
        if diagnosed and 2 * t >= settings.max_iter:
            quantities.append([chain_quantities(target, chain.state) for chain in chains])
    diagnostics = None
    if quantities:
        values = np.array([[list(q.values()) for q in sweep] for sweep in quantities])
        diagnostics = diagnose(quantities[0][0], values.transpose(1, 0, 2))
    ridge = settings.alpha * FOLD_IN_RIDGE / settings.user_std**2
    biases, factors = map(list, zip(*draws, strict=True))
    return Model(np.mean(biases, axis=0), _mean_factors(factors), ridge, diagnostics)


def _target(
    R: Any, settings: Settings, budget: PrivacyBudget, noise: NoiseSource, levels: Floats | None
) -> Target:
    most = settings.max_ratings_per_user
    R = bound_contributions(R, most, noise.slot_priorities("subset", R.indptr, R.indices))
    n, row = np.diff(R.indptr), rows_of(R)
    own_mean = np.bincount(row, weights=R.data, minlength=R.shape[0]) / (n + settings.user_damping)
    e = np.clip(R.data - own_mean[row], -HALF_RANGE, HALF_RANGE)
    epsilon = None if levels is None else budget.epsilon
    given: Any = {"max_weight": settings.weight_cap, "levels": levels, "epsilon": epsilon}
    weights = user_weights(n, most, HALF_RANGE, settings.kappa, **given)
    return Target(
        sparse.csr_array((e, R.indices, R.indptr), shape=R.shape),
        weights,
        settings.inverse_temperature(budget),
        HALF_RANGE + settings.kappa,
        settings.n_components,
        settings.user_std,
        settings.item_std,
        settings.bias_std if settings.item_bias else 0.0,
        settings.sample_precisions,
    )


def _chain(
    target: Target, settings: Settings, noise: NoiseSource, name: str, n_jobs: int | None
) -> "GibbsChain | LangevinChain":
    if settings.sampler == "gibbs":
        return GibbsChain(target, noise, name=name, n_jobs=n_jobs)
    tau = float(settings.max_ratings_per_user)
    # w_i <= min(rho, tau) and w_i m_i <= min(rho, 1) tau, from public values
    from skdpmf.mechanisms.posterior_draw.langevin import LangevinChain

    return LangevinChain(
        target,
        noise,
        max_weight=min(settings.weight_cap, tau),
        max_user_weight=min(settings.weight_cap, 1.0) * tau,
        step_size=settings.step_size,
        fixed_rounds=settings.max_iter // 3,
        table_size=settings.table_size,
        name=name,
    )


def _mean_factors(draws: list[Floats]) -> Floats:
    """Mean of the draws, each turned to the last one by the nearest rotation.

    The posterior does not know the frame of the factors, so that their plain mean would be 0.
    """
    last = draws[-1]
    total = last.copy()
    for V in draws[:-1]:
        left, _, right = np.linalg.svd(V.T @ last, full_matrices=False)
        total += V @ (left @ right)
    return total / len(draws)


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
    place = (rankdata(x.reshape(n, -1), axis=0) - _BLOM) / (n + 1.0 - 2.0 * _BLOM)
    return special.ndtri(place).reshape(x.shape)


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
