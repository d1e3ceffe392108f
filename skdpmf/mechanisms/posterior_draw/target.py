"""The scaled posterior that `skdpmf.DPMFSampler` draws from, for any of its samplers.

    pi(U, V, c)  ~  exp(-a sum_i w_i sum_j (e_ij - clip(p_ij, -M, M))^2) p0(U, V, c),
    p_ij = u_i . v_j + c_j,

over the ratings ij, with p0 the untempered prior: u_id ~ N(0, 1 / user_precision_d),
v_jd ~ N(0, 1 / item_precision_d), c_j ~ N(0, bias_std^2), independent. The precisions are fixed,
or have Gamma(shape, rate) priors of their own and are sampled too.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaincinv

GAMMA_SHAPE = 1.0  # of the precisions' prior, where they are sampled; its mean is 1 / std^2


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
    weights: NDArray[np.float64]
    inverse_temperature: float
    bound: float
    n_components: int
    user_std: float
    item_std: float
    bias_std: float
    sample_precisions: bool = False

    def user_rate(self) -> float:
        """Rate of the Gamma prior of a user precision."""
        return GAMMA_SHAPE * self.user_std**2

    def item_rate(self) -> float:
        """Rate of the Gamma prior of an item precision."""
        return GAMMA_SHAPE * self.item_std**2


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

    U: NDArray[np.float64]
    V: NDArray[np.float64]
    item_bias: NDArray[np.float64]
    user_precision: NDArray[np.float64]
    item_precision: NDArray[np.float64]


def draw_precisions(x: NDArray[np.float64], rate: float, uniforms: NDArray[np.float64]) -> Any:
    """Draw the precisions of one side's prior given its factors, by inverse transform.

    Their conditionals are Gamma(GAMMA_SHAPE + n / 2, rate + sum_i x_id^2 / 2), n counting all rows.

    x (n_rows, k): U or V; rate: of the prior: `Target.user_rate` or `Target.item_rate`; uniforms
    (k,): in (0, 1). Returns (k,): positive.
    """
    draw = gammaincinv(GAMMA_SHAPE + 0.5 * len(x), uniforms)
    return np.asarray(draw / (rate + 0.5 * np.sum(x * x, axis=0)))
