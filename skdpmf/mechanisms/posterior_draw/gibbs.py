"""The scaled posterior that `skdpmf.DPMFSampler` draws from, and Metropolis-within-Gibbs draws.

    pi(U, V, c)  ~  exp(-a sum_i w_i sum_j (e_ij - clip(p_ij, -M, M))^2) p0(U, V, c),
    p_ij = u_i . v_j + c_j,

over the ratings ij, with p0 the untempered prior: u_id ~ N(0, 1 / user_precision_d),
v_jd ~ N(0, 1 / item_precision_d), c_j ~ N(0, bias_std^2), independent. The precisions are fixed,
or have Gamma(shape, rate) priors of their own and are sampled too.

A sweep draws every user's factors given the rest, then every item's factors together with its
bias, then the precisions where they are sampled. Given the other side, rows are independent; the
conditional of the quadratic loss is Gaussian,

    u_i ~ N(A^-1 b, A^-1),    A = diag(user_precision) + 2 a w_i sum_j v_j v_j^T,
                              b = 2 a w_i sum_j (e_ij - c_j) v_j,

and steps with it as the proposal make the sweep leave the *clipped* loss's density invariant
(kernel `sample_rows`): that density is the one a privacy guarantee can be stated for.
The precisions' conditionals are Gamma(shape + n / 2, rate + sum_i u_id^2 / 2), n counting all rows.

Sources: R. Salakhutdinov, A. Mnih, "Bayesian probabilistic matrix factorization using Markov chain
Monte Carlo", ICML 2008; Z. Liu, Y.-X. Wang, A. Smola, "Fast differentially private matrix
factorization", RecSys 2015; L. Tierney, "Markov chains for exploring posterior distributions",
Annals of Statistics 22 (1994), for the Metropolis step; I. Murray, R. P. Adams, D. J. C. MacKay,
"Elliptical slice sampling", AISTATS 2010.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaincinv

from skdpmf.kernels.gibbs import sample_rows
from skdpmf.kernels.jit_and_threads import run_blocks
from skdpmf.privacy.sampler.noise import NoiseSource

Array = NDArray[np.float64]

# Fixed: an exponential law, as the prior of sampled precisions with mean 1 / std^2
GAMMA_SHAPE = 1.0
_NONE, _NOTHING = np.empty(0), np.empty((0, 0))

# Guard: time of an elliptical slice step, in angles; if all fail, which is rare, it stays
_TRIES = 8


@dataclass(frozen=True)
class Target:
    """The density, up to its constant.

    Attributes
    ----------
    R : csr_array of shape (n_users, n_items)
        Residual targets e_ij, float64, at most one per user and item, columns ascending.
    weights : ndarray of shape (n_users,)
        w_i >= 0.
    inverse_temperature : float
        a >= 0.
    bound : float
        M > 0, the clip of predictions; inf for none.
    n_components : int
        k.
    user_std, item_std, bias_std : float
        Standard deviations of the prior; bias_std = 0: all c_j are 0.
    sample_precisions : bool
        Whether user_precision and item_precision are sampled, componentwise, with prior
        Gamma(GAMMA_SHAPE, rate GAMMA_SHAPE * std^2), or fixed at 1 / std^2.
    """

    R: Any
    weights: Array
    inverse_temperature: float
    bound: float
    n_components: int
    user_std: float
    item_std: float
    bias_std: float
    sample_precisions: bool = False


@dataclass
class State:
    """One point of the chain.

    Attributes
    ----------
    U : ndarray of shape (n_users, k)
        User factors.
    V : ndarray of shape (n_items, k)
        Item factors.
    item_bias : ndarray of shape (n_items,)
        c, zeros where bias_std is 0.
    user_precision, item_precision : ndarray of shape (k,)
        Precisions of the prior, per component.
    """

    U: Array
    V: Array
    item_bias: Array
    user_precision: Array
    item_precision: Array


def draw_precisions(x: Array, std: float, uniforms: Array) -> Any:
    """Draw the precisions of one side's prior given its factors, by inverse transform.

    Their conditionals are Gamma(GAMMA_SHAPE + n / 2, rate + sum_i x_id^2 / 2), n counting all rows.

    x (n_rows, k): U or V; std: 1 / std^2 is the prior's mean, as for `Target`; uniforms (k,): in
    (0, 1). Returns (k,): positive.
    """
    draw = gammaincinv(GAMMA_SHAPE + 0.5 * len(x), uniforms)
    return np.asarray(draw / (GAMMA_SHAPE * std**2 + 0.5 * np.sum(x * x, axis=0)))


class GibbsChain:
    """A Markov chain that leaves a target's density invariant, started from its prior.

    Factors and biases start as N(0, std^2); precisions that are sampled start at 1 / std^2.

    Parameters
    ----------
    target : Target
        The density.
    noise : NoiseSource
        Its `normals` and `uniforms` are all the randomness.
    name : str, default="gibbs"
        Name of the chain's streams: chains of different names on one source are independent.
    n_jobs : int or None, default=None
        Threads, as in joblib. Does not change the result.

    Attributes
    ----------
    state : State
        The current point, which the next sweep overwrites.
    n_proposed : int
        Number of Metropolis proposals so far: one for each row in every sweep.
    n_accepted : int
        How many of them were accepted. It depends on the ratings: for the curator alone.

    Examples
    --------
    >>> import scipy.sparse as sp
    >>> from skdpmf.privacy.sampler.streams import derived_key
    >>> R = sp.csr_array(np.array([[1.0, 0.0], [-1.0, 0.5]]))
    >>> target = Target(R, np.ones(2), 0.5, 2.0, 3, 1.0, 0.5, 0.5)
    >>> chain = GibbsChain(target, NoiseSource(derived_key(0)))
    >>> for t in range(5):
    ...     chain.sweep(t)
    >>> chain.state.U.shape, chain.state.V.shape, chain.n_proposed
    ((2, 3), (2, 3), 20)
    """

    def __init__(
        self, target: Target, noise: NoiseSource, *, name: str = "gibbs", n_jobs: int | None = None
    ) -> None:
        self.target, self._noise, self._name, self._n_jobs = target, noise, name, n_jobs
        (n_users, n_items), k = target.R.shape, target.n_components
        by_item = target.R.tocsc()
        self._by_user = target.R.indptr, target.R.indices, target.R.data
        self._by_item = by_item.indptr, by_item.indices, by_item.data
        self._roots = np.sqrt(2.0 * target.inverse_temperature * target.weights)
        self._ones = np.ones(n_items)
        self.n_accepted = self.n_proposed = 0
        self.state = State(
            target.user_std * self._normals("users' start", (n_users, k), 0),
            target.item_std * self._normals("items' start", (n_items, k), 0),
            target.bias_std * self._normals("biases' start", (n_items,), 0),
            np.full(k, target.user_std**-2.0),
            np.full(k, target.item_std**-2.0),
        )

    def sweep(self, t: int) -> None:
        """Replace the state by the next one.

        t: number of the sweep: the index of its randomness, another one for every sweep.
        """
        target, state = self.target, self.state
        biased = target.bias_std > 0.0
        item_std = np.append(state.item_precision**-0.5, target.bias_std)
        bias = state.item_bias if biased else _NONE
        (indptr, *given), user_std = self._by_user, state.user_precision**-0.5
        ratings = indptr, self._roots, (*given, bias, self._ones, state.V)
        self._half("users", t, ratings, user_std, (state.U, _NONE))
        indptr, *given = self._by_item
        ratings = indptr, self._ones, (*given, _NONE, self._roots, state.U)
        self._half("items", t, ratings, item_std if biased else item_std[:-1], (state.V, bias))
        if target.sample_precisions:
            state.user_precision = self._precisions("users", t, target.user_std, state.U)
            state.item_precision = self._precisions("items", t, target.item_std, state.V)

    def _half(self, side: str, t: int, ratings: Any, std: Array, out: tuple[Array, Array]) -> None:
        """One step of every row of one side."""
        n, d = len(out[0]), len(std)
        bound = float(self.target.bound)
        normals = self._normals(f"{side}' factors", (n, d), t)
        directions = uniforms = _NOTHING
        if bound < np.inf:
            directions = self._normals(f"{side}' directions", (n, d), t)
            uniforms = self._noise.uniforms((n, 3 + _TRIES), f"{self._name}: {side}' choices", t)
        draws = normals, directions, uniforms
        accepted = np.zeros(n, np.bool_)

        def work(start: int, stop: int) -> None:
            sample_rows(*ratings, std, bound, draws, start, stop, (*out, accepted))

        run_blocks(work, ratings[0], self._n_jobs)
        self.n_proposed += n
        self.n_accepted += int(np.count_nonzero(accepted))

    def _precisions(self, side: str, t: int, std: float, x: Array) -> Array:
        uniforms = self._noise.uniforms((x.shape[1],), f"{self._name}: {side}' precisions", t)
        return draw_precisions(x, std, uniforms)

    def _normals(self, purpose: str, shape: tuple[int, ...], index: int) -> Array:
        return self._noise.normals(shape, f"{self._name}: {purpose}", index)
