r"""Matrix factorisation by gradients that devices report: the published protocols, simulated.

Objective, over the ratings r_ij of n users and m items with d factors:

.. math:: \frac{1}{n} \sum_i \sum_{j \in i} (r_{ij} - u_i \cdot v_j)^2 + \lambda_v |V|^2
    + \frac{1}{n} \sum_i n_i \lambda_u |u_i|^2.

V is public, u_i and r_i never leave user i's device. In each of exactly k rounds every device,
also one without ratings, sends one report, (epsilon / k)-DP in the local model, on its gradient

    X_i = [-2 (r_ij - u_i . v_j) u_il]_jl  (m x d, rows of items that it did not rate are 0),

from which the server estimates the mean over all n devices; then

    V   <- V - gamma_t (mean + 2 lambda_v V),
    u_i <- u_i - eta_t ((1 / n_i) sum_j -2 (r_ij - u_i . v_j) v_j + 2 lambda_u u_i)

on each device, with the new V; gamma_t = gamma / (t + 1)^decay and eta_t likewise, t = 0, ..., k-1.

- **Algorithm 1** (``projection_dim=None``): the device draws (s, l) uniformly from m x d before it
  looks at anything, and sends the sign of x = X_i[s, l], clipped to [-1, 1], by
  `CoordinateSampling`.
- **Algorithm 2** (``projection_dim=q``): the same for Phi X_i (q x d), with a public Phi of entries
  N(0, 1/q), the same in all rounds. The estimated mean B of Phi X_i is projected back once a
  round: "unbiased", Phi' B, or "pinv", Phi' (Phi Phi')^-1 B, as published. Over Phi, E[Phi' Phi] is
  the identity, while Phi' (Phi Phi')^-1 Phi is a projection on q of m dimensions, (q/m) I on
  average: the rest of a gradient is lost, however many devices there are. The variance of Phi' B
  for a fixed gradient is m / q times its square length, whatever n; and as Phi' Phi has
  eigenvalues up to (1 + sqrt(m/q))^2, "unbiased" diverges at step sizes where "pinv" does not.
- **PrivUnitG** (``method="privunit"``, not in the paper): the whole of X_i, shrunk to a length of
  at most 1, by `PrivUnit`. The error of each value does not grow with their number.

Each user's k reports compose to epsilon, whatever is sent to the devices in between. What a report
says of clipped gradients is unbiased; what is clipped is lost, so that ratings should be centred.
V and u_i stop at magnitude 1e50: a diverging fit stays finite.

Three departures from the paper: k rounds, not k + 1; V is updated once a round, not for every
user; and it leaves open how a user's gradient is normalised: here by 1 / n_i.

H. Shin, S. Kim, J. Shin, X. Xiao, "Privacy enhanced matrix factorization for recommendation with
local differential privacy", IEEE TKDE 30 (2018).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve

from skdpmf.kernels.jit_and_threads import run_blocks
from skdpmf.kernels.local_gradient import gradient_values, projected_gradient_values, step_users
from skdpmf.kernels.rows import predict_entries
from skdpmf.mechanisms.common import row_norms, rows_of
from skdpmf.mechanisms.device_reports.privunit import PrivUnit
from skdpmf.mechanisms.device_reports.randomizers import CoordinateSampling, DeviceStreams
from skdpmf.privacy.budget import PrivacyBudget
from skdpmf.privacy.clipped_sums import shrink_to_ball
from skdpmf.privacy.plan import ReleasePlan
from skdpmf.privacy.pure import PureRelease
from skdpmf.privacy.sampler.streams import initial_normals

Floats = NDArray[np.float64]

# reports
SIGNS, WHOLE = "gradient signs", "whole gradients"

# Fixed: the range of what a randomiser takes
CLIP = 1.0

# Guard: overflow, and memory
_LIMIT = 1e50  # powers that occur stay within the doubles
_BLOCK_ROWS = 256  # of Phi, in double precision


@dataclass(frozen=True)
class Settings:
    """Public settings of a fit.

    n_components: d; max_iter: k, in each of which every device reports once; step_size, user_step:
    gamma and eta at the first round; item_penalty, user_penalty: lambda_v and lambda_u; step_decay:
    power of t + 1 by which both steps fall; method: subject of a device's report; projection_dim: q
    of Algorithm 2, None for Algorithm 1, for "coordinate" only; back_projection: from q rows back
    to m.
    """

    n_components: int
    max_iter: int
    step_size: float
    user_step: float
    item_penalty: float
    user_penalty: float
    step_decay: float = 0.0
    method: Literal["coordinate", "privunit"] = "coordinate"
    projection_dim: int | None = None
    back_projection: Literal["unbiased", "pinv"] = "unbiased"


class Model(NamedTuple):
    """What a fit gives: r_ij ~ u_i . v_j.

    A new user's u minimises sum_j (r_j - u . v_j)^2 + n rating_ridge |u|^2.
    """

    factors: Floats  # V (n_items x d), released
    rating_ridge: float  # lambda_u
    user_factors: Floats  # U (n_users x d): each row stays on its device


def report_epsilon(epsilon: float, settings: Settings) -> float:
    """Return what one round may spend: epsilon / k, rounded so that k of it never exceed epsilon.

    epsilon: of a user, over all rounds; infinity for none.
    """
    shares = [1.0 / settings.max_iter] * settings.max_iter
    return float(min(part.epsilon for part in PrivacyBudget(epsilon).split(shares)))


def make_plan(budget: PrivacyBudget, settings: Settings, n_items: int) -> ReleasePlan:
    """Plan what a device sends in all rounds.

    budget: of a user, with neighbors="replace"; n_items: m. Raises PrivacyParameterError if a
    report's epsilon is outside what the randomiser takes; ValueError if "pinv" is asked for with
    more rows than items.
    """
    n_rows = settings.projection_dim or n_items
    if settings.back_projection == "pinv" and n_rows > n_items:
        raise ValueError(
            f"projection_dim={n_rows!r} must be at most the number of items, {n_items}, for "
            "back_projection='pinv', as Phi Phi' has no inverse else: lower it, or use 'unbiased'."
        )
    d, k = settings.n_components, settings.max_iter
    epsilon = report_epsilon(float(budget.epsilon), settings)
    if np.isfinite(epsilon):
        _randomiser(epsilon, settings, n_rows)  # refuses its limits
    name, what, mechanism, norm = SIGNS, "one value", "sampled sign", "magnitude of the value"
    if settings.method == "privunit":
        name, what, mechanism, norm = WHOLE, "all", "PrivUnitG", "l2 length"
    projected = "" if settings.projection_dim is None else "projected "
    statistic = f"{what} of a user's {projected}gradient, clipped"
    report = PureRelease(name, statistic, (n_rows, d), epsilon, mechanism, CLIP, norm, k)
    return ReleasePlan(budget, (report,), local=True)


def _randomiser(epsilon: float, settings: Settings, n_rows: int) -> Any:
    """Return what makes a report of this epsilon; n_rows is q of Algorithm 2, else m."""
    size = n_rows * settings.n_components
    if settings.method == "coordinate":
        return CoordinateSampling(epsilon, size)
    return PrivUnit(epsilon, size + 1)


def initial_factors(
    key: bytes, n_users: int, n_items: int, n_components: int, std: float
) -> tuple[Floats, Floats]:
    """Return independent normal U and V to start from, from public randomness.

    key: public; n_users, n_items, n_components: shapes; std: standard deviation of all values.
    Returns U, V (n_users, n_components) and (n_items, n_components) float64: starting values. Those
    of a user depend on the slot alone. For ratings that are not centred, start from their
    magnitudes: products of signed ones predict 0.
    """
    V = initial_normals(key, (n_items, n_components), "item factors")
    return std * initial_normals(key, (n_users, n_components), "user factors"), std * V


def projection_row(key: bytes, s: int, n_rows: int, n_items: int) -> NDArray[np.float32]:
    """Return row s of Phi: all that a device needs of it.

    key: public; s: row. Phi[s, j] is a function of the key, s, j and, by its scale, n_rows alone.
    n_rows, n_items: q and m. Returns (n_items,) float32: N(0, 1/q).
    """
    row = initial_normals(key, (n_items,), f"projection row {s}")
    return (row / np.sqrt(n_rows)).astype(np.float32)


class Projection:
    """Phi, and the way back.

    key: public, see `projection_row`; n_rows, n_items: q and m; back_projection: Phi' or Phi' (Phi
    Phi')^-1; n_jobs: threads that draw Phi, and do not change it. matrix (n_rows, n_items) float32:
    Phi, 4 q m bytes; "pinv" takes 8 q^2 more.
    """

    def __init__(
        self,
        key: bytes,
        n_rows: int,
        n_items: int,
        back_projection: Literal["unbiased", "pinv"],
        n_jobs: int | None = 1,
    ) -> None:
        self.matrix = np.empty((n_rows, n_items), np.float32)

        def draw(start: int, stop: int) -> None:
            for s in range(start, stop):
                self.matrix[s] = projection_row(key, s, n_rows, n_items)

        run_blocks(draw, np.arange(n_rows + 1), n_jobs)
        self._factor = cho_factor(self._gram()) if back_projection == "pinv" else None

    def project(self, gradient: Floats) -> Floats:
        """Return Phi G.

        gradient (n_items, d): G. Returns (n_rows, d) float64: the projection.
        """
        parts = (self.matrix[rows].astype(np.float64) @ gradient for rows in self._blocks())
        return np.concatenate(list(parts))

    def back(self, projected: Floats) -> Floats:
        """Return Phi' B or Phi' (Phi Phi')^-1 B.

        projected (n_rows, d): B. Returns (n_items, d) float64: the back-projection.
        """
        if self._factor is not None:
            projected = cho_solve(self._factor, projected)
        parts = (self.matrix[s].astype(np.float64).T @ projected[s] for s in self._blocks())
        return np.asarray(sum(parts))

    def _blocks(self) -> Iterable[slice]:
        n_rows = self.matrix.shape[0]
        return (slice(s, min(s + _BLOCK_ROWS, n_rows)) for s in range(0, n_rows, _BLOCK_ROWS))

    def _gram(self) -> Floats:
        """Return Phi Phi'."""
        n_rows, n_items = self.matrix.shape
        gram = np.zeros((n_rows, n_rows))
        for first in range(0, n_items, 4 * _BLOCK_ROWS):
            columns = self.matrix[:, first : first + 4 * _BLOCK_ROWS].astype(np.float64)
            gram += columns @ columns.T
        return gram


def fit(
    R: sp.csr_array,
    settings: Settings,
    epsilon: float,
    streams: DeviceStreams,
    *,
    initial: tuple[Floats, Floats],
    projection: Projection | None = None,
    rounds: Iterable[int],
    n_jobs: int | None,
) -> Model:
    """Run the protocol over the rows of R.

    R (csr_array of shape (n_users, n_items)): ratings, float64, one entry per user and item;
    centred by the caller, or not; epsilon: of a user, over all rounds. Infinity: the mean gradient
    is exact, unclipped and not reported at all; Algorithm 2 still projects it. initial: where to
    start, such as `initial_factors`; no function of the ratings; projection: of these settings;
    rounds: range(max_iter), possibly wrapped in a progress display. No more than max_iter are run.
    Result: of which only `factors` and `rating_ridge` may leave. Raises PrivacyParameterError if
    epsilon / max_iter is outside what the randomiser takes.
    """
    run = _Fit(R, settings, initial, projection, n_jobs)
    mean_gradient = run.estimator(epsilon, streams)
    for t, _ in zip(range(settings.max_iter), rounds, strict=False):
        run.step(mean_gradient(t), t)
    return Model(run.V, settings.user_penalty, run.U)


class _Fit:
    def __init__(
        self, R: Any, settings: Settings, initial: Any, projection: Projection | None, n_jobs: Any
    ) -> None:
        self.R, self.settings, self.n_jobs, self.projection = R, settings, n_jobs, projection
        self.U, self.V = (np.array(part, np.float64, order="C") for part in initial)
        self.n_users, self.n_items = R.shape

    def estimator(self, epsilon: float, streams: DeviceStreams) -> Any:
        """Return the function of t that estimates the mean of X_i over all devices."""
        each = report_epsilon(epsilon, self.settings)
        if np.isinf(each):
            return self.exact_mean
        n_rows = self.n_items if self.projection is None else self.projection.matrix.shape[0]
        made = _randomiser(each, self.settings, n_rows)
        mean: Any = self.sampled_mean if self.settings.method == "coordinate" else self.whole_mean
        return lambda t: mean(made, streams, t)

    def exact_mean(self, _: int) -> Floats:
        E = sp.csr_array((self._residuals(), self.R.indices, self.R.indptr), shape=self.R.shape)
        mean = np.asarray(E.T @ self.U * (-2.0 / self.n_users))
        if self.projection is None:
            return mean
        return self.projection.back(self.projection.project(mean))

    def sampled_mean(self, signs: CoordinateSampling, streams: DeviceStreams, t: int) -> Floats:
        """Algorithms 1 and 2: one sign from each device."""
        d, R = self.settings.n_components, self.R
        keys = streams.keys(SIGNS, t, self.n_users)
        chosen = signs.coordinates(keys)
        s, l = np.divmod(chosen, d)  # noqa: E741
        x = np.empty(self.n_users)

        def devices(start: int, stop: int) -> None:
            ratings = R.indptr, R.indices, R.data, self.U, self.V
            if self.projection is None:
                gradient_values(*ratings, s, l, start, stop, x)
            else:
                projected_gradient_values(*ratings, self.projection.matrix, s, l, start, stop, x)

        run_blocks(devices, R.indptr, self.n_jobs)
        sent = signs.report(keys, x)  # clips
        total = np.bincount(chosen, weights=sent, minlength=signs.n_coordinates)
        mean = signs.estimate(total, self.n_users).reshape(-1, d)
        return mean if self.projection is None else self.projection.back(mean)

    def whole_mean(self, randomiser: PrivUnit, streams: DeviceStreams, t: int) -> Floats:
        """PrivUnitG: a device's whole gradient."""
        R, d = self.R, self.settings.n_components
        row = rows_of(R)
        X = -2.0 * self._residuals()[:, np.newaxis] * self.U[row]
        with np.errstate(over="ignore", invalid="ignore"):  # too long is no reason to complain
            length = row_norms(row, np.sqrt(np.sum(X**2, axis=1)), self.n_users)
            X *= shrink_to_ball(length, CLIP)[row, np.newaxis]
        indices = (R.indices[:, np.newaxis] * np.int64(d) + np.arange(d)).ravel()
        keys, indptr = streams.keys(WHOLE, t, self.n_users), d * R.indptr.astype(np.int64)
        total = randomiser.sum_reports(keys, indptr, indices, X.ravel(), n_jobs=self.n_jobs)
        return np.asarray(randomiser.estimate(total, self.n_users)[:-1].reshape(self.n_items, d))

    def step(self, gradient: Floats, t: int) -> None:
        """Move V, once, then the users with the new V."""
        s, R = self.settings, self.R
        fall = (t + 1.0) ** -s.step_decay
        V = self.V - fall * s.step_size * (gradient + 2.0 * s.item_penalty * self.V)
        self.V = np.clip(V, -_LIMIT, _LIMIT)

        def users(start: int, stop: int) -> None:
            terms = fall * s.user_step, s.user_penalty, _LIMIT, start, stop
            step_users(R.indptr, R.indices, R.data, self.V, *terms, self.U)

        run_blocks(users, R.indptr, self.n_jobs)

    def _residuals(self) -> Floats:
        R, predicted = self.R, np.empty(self.R.nnz)

        def users(start: int, stop: int) -> None:
            predict_entries(R.indptr, R.indices, self.U, self.V, start, stop, predicted)

        run_blocks(users, R.indptr, self.n_jobs)
        return np.asarray(R.data - predicted)
