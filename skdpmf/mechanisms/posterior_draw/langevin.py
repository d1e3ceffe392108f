"""Stochastic gradient Langevin dynamics for the posterior of `Target`, one rating at a time.

The diffusion  dx = 1/2 grad log pi(x) dt + dW  has pi as its stationary law. A round takes it on by
the time h, in alternating exact or nearly exact pieces:

- likelihood: for every rating ij once, in the order of the cache-sized batches of
  `CacheSGDFactorizer`, with its kernel,

      u_i += h a w_i e v_j,    v_j += h a w_i e u_i,    c_j += h_c a w_i e,

  e = e_ij - p_ij where |p_ij| < M and 0 beyond, as the clipped loss is flat there;
- noise and Gaussian prior: an Ornstein-Uhlenbeck process, whose steps are exact in law for any
  length of time.

Order. A round diffuses everything by h/2, goes through the ratings, and diffuses by h/2 again. Such
a symmetric splitting is wrong by O(h^2), a share (K h / 2)^2 / 3 of the variance of a row of
curvature K; diffusing only before, or only after, the ratings by O(h). What is left of order h is
the order of the ratings and the Euler step of each, a small part of h. Two half steps with nothing
between are one step, so that the second half costs nothing: it waits for the next round, and
*all* rows, rated or not, get it before anything is read (`LangevinChain.state`). Diffusing
items batch by batch, many times in a round, changed no figure: a user's ratings are one event.

Scales. u_i . v_j is invariant under u s, v / s; s is such that the curvatures of -log pi, bounded
for factors as large as under the prior by

    K_u = 2 a item_std^2 (sqrt(W_u) + sqrt(w k))^2 + 1 / user_std^2,   W_u >= w_i m_i,
    K_v = 2 a user_std^2 (sqrt(n_users w) + sqrt(w k))^2 + 1 / item_std^2,   w >= w_i,

become the same, K = sqrt(K_u K_v), and h = step_size / K; h_c = step_size / K_c for the biases with
K_c = 2 a n_users w + 1 / bias_std^2. (The brackets are the largest singular value of a random
matrix, by its Marchenko-Pastur edge.) All of it is public. What is so stiff contracts by
e^{-step_size / 2} in a round, most rows by far less: what a step size reaches in T rounds, half of
it reaches in 2 T.

Stability. A step is of one rating, so that K h may well be large; the law is then less exact.
Errors are clipped where h a w e would exceed 1/4. As h a w is a thousandth or so with thousands of
users, no error of a usual problem does, and the clip goes to infinity as the step goes to 0; but
Euler steps in a quartic potential would otherwise run off to infinity, sooner or later, on a tiny
problem.

Sources: M. Welling, Y. W. Teh, "Bayesian learning via stochastic gradient Langevin dynamics", ICML
2011; Z. Liu, Y.-X. Wang, A. Smola, "Fast differentially private matrix factorization", RecSys 2015,
sections 4-5, with the scale of its noise corrected; for symmetric orders, B. Leimkuhler, C.
Matthews, "Rational construction of stochastic numerical methods for molecular sampling", Applied
Mathematics Research eXpress 2013.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from skdpmf.kernels.gibbs import diffuse_rows, diffusion
from skdpmf.kernels.sgd import empty_factors, factor_width, update_batch
from skdpmf.mechanisms.posterior_draw.gibbs import State, Target, draw_precisions
from skdpmf.mechanisms.sgd.cache_sgd import batch_rows
from skdpmf.mechanisms.sgd.rating_batches import MatrixBatches, Scale, Workers
from skdpmf.privacy.frame import with_rows
from skdpmf.privacy.sampler.noise import NoiseSource

# Guard: time, and stability of Euler steps
# Rounds from one draw of the precisions to the next: all rows must be diffused before.
PRECISION_EVERY = 4
# A rating adds at most this share of a user's row to the item's, and the other way round.
_LARGEST_CHANGE = 0.25

Array = NDArray[Any]


class LangevinChain:
    """A Markov chain whose stationary law is near a target, started from its prior. One thread.

    Factors start as N(0, std^2); precisions that are sampled start at 1 / std^2. Users of weight 0
    have no influence on anything but their own rows.

    Parameters
    ----------
    target : Target
        The density.
    noise : NoiseSource
        Its `normals` and `uniforms` are all the randomness.
    max_weight : float
        Public bound of the weights, at least every w_i; only scales the steps.
    max_user_weight : float
        Public bound of w_i m_i for a user with m_i ratings; only scales the steps.
    step_size : float, default=0.5
        h K, see above: the smaller, the nearer the target and the more rounds are needed.
    fixed_rounds : int, default=500
        Rounds before sampled precisions are drawn for the first time. Those drawn while the factors
        do not fit anything yet make a component so small that it hardly comes back, though the
        target has it: to fit takes some 250 / step_size rounds.
    table_size : int, default=None
        Draw only so many normals (at least n_components), and read each row's from a random place
        among them. For speed, and not for privacy: given the table, what can come out is finite.
        2**18 of them fit an L2 cache. None: all noise is exact.
    name : str, default="sgld"
        Name of the chain's streams: chains of different names on one source are independent.

    Examples
    --------
    >>> import scipy.sparse as sp
    >>> from skdpmf.privacy.sampler.streams import derived_key
    >>> R = sp.csr_array(np.array([[1.0, 0.0], [-1.0, 0.5]]))
    >>> target = Target(R, np.ones(2), 0.5, 2.0, 3, 1.0, 0.5, 0.5)
    >>> chain = LangevinChain(
    ...     target, NoiseSource(derived_key(0)), max_weight=1.0, max_user_weight=2.0
    ... )
    >>> for t in range(5):
    ...     chain.sweep(t)
    >>> chain.state.U.shape, chain.state.V.shape
    ((2, 3), (2, 3))
    """

    def __init__(
        self,
        target: Target,
        noise: NoiseSource,
        *,
        max_weight: float,
        max_user_weight: float,
        step_size: float = 0.5,
        fixed_rounds: int = 500,
        table_size: int | None = None,
        name: str = "sgld",
    ) -> None:
        self.target, self._noise, self._name = target, noise, name
        (n_users, n_items), k = target.R.shape, target.n_components
        self._fixed_rounds, self._draws = fixed_rounds, 0
        self._table = None if table_size is None else self._drawn_table(table_size)

        stiff = 2.0 * target.inverse_temperature * max_weight
        user_edge = np.sqrt(max_user_weight / max_weight) + np.sqrt(k)
        item_edge = np.sqrt(n_users) + np.sqrt(k)
        user_curvature = stiff * (target.item_std * user_edge) ** 2 + target.user_std**-2.0
        item_curvature = stiff * (target.user_std * item_edge) ** 2 + target.item_std**-2.0
        #: s: the rows of `_U` are s u_i, those of `_V` v_j / s
        self._scale = (user_curvature / item_curvature) ** 0.25
        self.step = step_size / np.sqrt(user_curvature * item_curvature)
        with np.errstate(divide="ignore"):  # at a = 0
            self._clip = _LARGEST_CHANGE / np.float64(self.step * 0.5 * stiff)
        self._biased = target.bias_std > 0.0
        self.bias_step = 0.0
        if self._biased:
            self.bias_step = step_size / (stiff * n_users + target.bias_std**-2.0)

        # batches of consecutive users, of the ratings of those with any weight
        weighted = with_rows(target.R, target.weights > 0.0)
        with Workers(1) as workers:
            #: a batch's users, and rows that are diffused at a time: they stay in the L2 cache
            self._rows = batch_rows(n_users, k, 1)
            cut = (-1.0, 1.0), self._rows, workers, Scale(0.0, 1.0)
            self._batches = MatrixBatches(weighted, *cut)
        self._weights = np.append(target.weights, 0.0).astype(np.float32)
        #: diffusion that has not been done yet, as a share of a round's
        self._due = 0.0

        self._U, self._V = empty_factors(n_users + 1, k), empty_factors(n_items, k)
        self._item_bias = np.zeros(n_items, np.float32)
        self._U[:n_users, :k] = self._scale * target.user_std * self._normals((n_users, k))
        self._V[:, :k] = target.item_std / self._scale * self._normals((n_items, k))
        if self._biased:
            self._item_bias[:] = target.bias_std * self._normals((n_items,))
        self._user_precision = np.full(k, target.user_std**-2.0)
        self._item_precision = np.full(k, target.item_std**-2.0)

    @property
    def state(self) -> State:
        """The chain's current point, with all noise up to the present, in float64 copies.

        To draw what noise is due advances the chain's streams: a chain that is read goes on with
        other numbers than one that is not, with the same law.
        """
        self._diffuse_all(self._due)
        self._due = 0.0
        (n_users, _), k = self.target.R.shape, self.target.n_components
        return State(
            self._U[:n_users, :k].astype(np.float64) / self._scale,
            self._V[:, :k].astype(np.float64) * self._scale,
            self._item_bias.astype(np.float64),
            self._user_precision.copy(),
            self._item_precision.copy(),
        )

    def sweep(self, t: int) -> None:
        """Take one round: each rating once, and the time h of diffusion.

        t: number of the round; where the precisions are sampled, it is in every fourth of those
        that begin with number `fixed_rounds`.
        """
        target = self.target
        step, bias_step = (target.inverse_temperature * h for h in (self.step, self.bias_step))
        self._diffuse_all(self._due + 0.5)
        for batch in self._batches.read(0):
            update_batch(
                *(self._U, None, self._V, self._item_bias),
                *(batch.start, target.R.shape[0], factor_width(target.n_components)),
                *(batch.items, batch.indptr, batch.users, batch.ratings),
                *(0, len(batch.items)),
                *(step, bias_step, 0.0, self._clip),
                weights=self._weights,
                bound=None if np.isinf(target.bound) else target.bound,
            )
        self._due = 0.5
        drawn, rest = divmod(t - self._fixed_rounds, PRECISION_EVERY)
        if target.sample_precisions and drawn >= 0 and rest == 0:
            # given the factors, after all noise that is due under the old ones
            state, k = self.state, target.n_components
            self._user_precision = draw_precisions(state.U, target.user_std, self._uniforms(k))
            self._item_precision = draw_precisions(state.V, target.item_std, self._uniforms(k))

    def _diffuse_all(self, share: float) -> None:
        """Diffuse all rows for a share of a round's time."""
        if share > 0.0:
            users = self._U[:-1]  # the last one is the kernel's spare row
            time, scale = share * self.step, self._scale**2
            self._diffuse(users, self._user_precision / scale, time)
            self._diffuse(self._V, self._item_precision * scale, time)
            if self._biased:
                precision = np.full(1, self.target.bias_std**-2.0)
                self._diffuse(self._item_bias[:, np.newaxis], precision, share * self.bias_step)

    def _diffuse(self, F: Array, precision: Array, time: float) -> None:
        """Diffuse the rows of F."""
        dtype = np.float64 if self._table is None else np.float32
        decay, scale = (part.astype(dtype) for part in diffusion(precision, time))
        for start in range(0, len(F), self._rows):
            noise = self._noise_for(min(self._rows, len(F) - start), len(precision))
            diffuse_rows(F, start, decay, scale, *noise)

    def _noise_for(self, n_rows: int, k: int) -> tuple[Array, Array]:
        """Return normals, and where those of each row begin."""
        if self._table is None:
            return self._normals((n_rows * k,)), np.arange(n_rows) * k
        size = len(self._table) - self.target.n_components + 1
        return self._table, (self._uniforms(n_rows) * size).astype(np.int64)

    def _drawn_table(self, size: int) -> Array:
        """Return normals, of mean 0 and variance 1 exactly, with the first ones again at the end.

        The mean of a table is no noise: it would pull all factors the same way in every step. As
        it goes round, each column of a row meets every value as often.
        """
        values = self._normals((size,))
        values = (values - values.mean()) / values.std()
        return np.append(values, values[: self.target.n_components - 1]).astype(np.float32)

    def _normals(self, shape: tuple[int, ...]) -> Array:
        self._draws += 1
        return self._noise.normals(shape, self._name, self._draws)

    def _uniforms(self, n: int) -> Array:
        self._draws += 1
        return self._noise.uniforms((n,), self._name, self._draws)
