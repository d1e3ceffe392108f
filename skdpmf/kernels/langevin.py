"""Exact steps of an Ornstein-Uhlenbeck process: a Langevin sampler's noise and Gaussian prior."""

import numpy as np

from skdpmf.kernels.jit_and_threads import Array, jit


def diffusion(precision: Array, time: float) -> tuple[Array, Array]:
    r"""Return the decay and the scale with which :func:`diffuse_rows` diffuses for a time.

    The process dx = -(precision / 2) x dt + dW has N(0, 1 / precision) as its stationary law. After
    a time t it is at x - decay x + scale xi, xi standard normal, with

    .. math:: decay = 1 - e^{-precision t / 2},\quad scale^2 = (1 - e^{-precision t}) / precision,

    however long t is: two steps are one of their times' sum, in law.

    precision (k,) float64: positive; time: at least 0. Returns decay, scale (k,) float64: decay is
    1 - e^... and not e^... itself, which would be 1 in float32 for a short time.
    """
    decay = -np.expm1(-0.5 * time * precision)
    return decay, np.sqrt(-np.expm1(-time * precision) / precision)


def _diffuse_rows_plain(F, start, decay, scale, values, offsets):
    x = F[start : start + len(offsets), : len(decay)]
    x[:] = x + (scale * values[offsets[:, None] + np.arange(len(decay))] - decay * x)


@jit(plain=_diffuse_rows_plain)
def diffuse_rows(F, start, decay, scale, values, offsets):
    """Take a step of the process in every column of rows [start, start + n).

    Row start + i becomes x - decay x + scale xi, the k values xi being those of `values` from
    offsets[i] on.

    The change is computed in the precision of `values`, and added before anything is rounded to
    that of `F`. So a decay far below the rounding of x is not lost: with noise larger than
    rounding, the rounded result is right on average.

    F (n_rows, stride) float: factors, overwritten; columns from k on stay as they are; start: first
    row; decay, scale (k,) float: from `diffusion`, in the dtype of `values`; values: standard
    normals: one after the other for exact noise, or a table to read at random; offsets (n,) int64:
    where the k values of each row begin.
    """
    for i in range(offsets.shape[0]):
        first = offsets[i]
        for d in range(decay.shape[0]):
            x = F[start + i, d]
            F[start + i, d] = x + (scale[d] * values[first + d] - decay[d] * x)
