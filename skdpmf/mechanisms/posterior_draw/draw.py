"""One draw from a scaled posterior as a private model (Liu, Wang, Smola 2015).

Ratings are y = (r - middle) / quarter range, each user's less the own damped mean and clipped to
[-h, h], h = 2 half the range: e_ij. The target is `skdpmf.mechanisms.posterior_draw.gibbs.Target`
with the weights w_i = min(rho, B_i / (m_i L^2)) and the inverse temperature that the budget allows,
and at most that of the Gaussian model of ratings with standard deviation `rating_std`, a = 1 / (2
sd^2). One draw of the item factors leaves; `skdpmf.mechanisms.posterior_draw.guarantee` proves what
it spends.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from skdpmf.data.matrix import bound_contributions
from skdpmf.exceptions import PrivacyParameterError
from skdpmf.mechanisms.common import rows_of
from skdpmf.mechanisms.posterior_draw.chain_diagnostics import (
    Diagnostics,
    chain_quantities,
    diagnose,
)
from skdpmf.mechanisms.posterior_draw.gibbs import GibbsChain, Target
from skdpmf.mechanisms.posterior_draw.guarantee import (
    inverse_temperature,
    item_loss_bound,
    loss_bound,
    posterior_epsilon,
    user_weights,
)
from skdpmf.privacy.budget import PrivacyBudget
from skdpmf.privacy.plan import PureRelease, ReleasePlan
from skdpmf.privacy.recording import recorded_draw
from skdpmf.privacy.sampler.noise import NoiseSource

if TYPE_CHECKING:
    from skdpmf.mechanisms.posterior_draw.langevin import LangevinChain

Floats = NDArray[np.float64]

HALF_RANGE = 2.0  # h, in quarter ranges
FOLD_IN_RIDGE = 2.0  # of u_i, times alpha, for users of standard deviation 1
DRAW = "item factors"
_DIAGNOSED_CHAINS = 4


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
        if self.item_bias:
            return self.loss_bound
        return item_loss_bound(self.max_ratings_per_user, HALF_RANGE, self.kappa)

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
    if budget.unit != "user":
        raise PrivacyParameterError(
            f"unit={budget.unit!r} must be 'user': the loss is bounded for a user's whole row. "
            "Pass PrivacyBudget(..., unit='user')."
        )
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
    quantities, biases, factors = [], [], []
    for t in rounds:
        for chain in (released, *chains):
            chain.sweep(t)
        if t >= settings.max_iter - settings.n_draws:
            state = released.state
            biases.append(state.item_bias.copy())
            factors.append(state.V.copy())
        if diagnosed and 2 * t >= settings.max_iter:
            quantities.append([chain_quantities(target, chain.state) for chain in chains])
    diagnostics = None
    if quantities:
        values = np.array([[list(q.values()) for q in sweep] for sweep in quantities])
        diagnostics = diagnose(quantities[0][0], values.transpose(1, 0, 2))
    ridge = settings.alpha * FOLD_IN_RIDGE / settings.user_std**2
    draws = [
        recorded_draw(
            name=DRAW,
            index=index,
            targets=target.R,
            weights=target.weights,
            inverse_temperature=target.inverse_temperature,
            clip=target.bound,
            stds=(target.user_std, target.item_std, target.bias_std),
            output=drawn,
        )
        for index, drawn in enumerate(zip(biases, factors, strict=True))
    ]
    biases, factors = map(list, zip(*draws, strict=True))
    return Model(np.mean(biases, axis=0), _mean_factors(factors), ridge, diagnostics)


def _target(
    R: Any, settings: Settings, budget: PrivacyBudget, noise: NoiseSource, levels: Floats | None
) -> Target:
    tau = settings.max_ratings_per_user
    if tau is not None:
        R = bound_contributions(R, tau, noise.slot_priorities("subset", R.indptr, R.indices))
    n, row = np.diff(R.indptr), rows_of(R)
    own_mean = np.bincount(row, weights=R.data, minlength=R.shape[0]) / (n + settings.user_damping)
    e = np.clip(R.data - own_mean[row], -HALF_RANGE, HALF_RANGE)
    most, epsilon = settings.max_ratings_per_user, None if levels is None else budget.epsilon
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
