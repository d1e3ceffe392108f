r"""Audits in one run that read the noisy sums: whose canaries are in, and what that shows of mu.

Half of m made-up users are in the data. Whoever sees what one fit releases, and knows all other
rows and every canary, guesses r of them. For users' canary i let c_i be its part of the releases,
in units of their noise; by replay of the fit on that row alone c_i is known. The score is linear:
with y the releases without all other rows and without half of all canaries,

.. math:: (C C^T + 4 I)^{-1} C y,

the best linear estimate of who is in, at a variance of 1/4 each and standard normal noise.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.optimize import brentq
from scipy.special import ndtr, ndtri

from skdpmf.evaluation._audit_run import AuditCheck, AuditRun, failure, unpacked
from skdpmf.privacy.accounting import gaussian_epsilon
from skdpmf.privacy.sampler.noise import initial_normals

__all__ = ["canaries_in_sums", "gaussian_canary_epsilon", "guess_from_releases"]

_LEAST, _MOST = 1e-6, 20.0  # of mu
_VERDICT = 0.9999  # beside the other canaries' 0.9995, honest audits fail less than once in 1,000


def gaussian_canary_epsilon(
    n_right: int, n_guesses: int, n_canaries: int, delta: float, confidence: float
) -> float:
    r"""Return a lower confidence limit of epsilon from guesses in one run, if noise is Gaussian.

    n_right, n_guesses, n_canaries: v, r and m as for `canary_epsilon`; r is fixed beforehand;
    delta: at which the limit of mu is converted. Result: 0 if nothing can be said.

    Notes
    -----
    Let W of r guesses be right, :math:`T_i = P[W \ge i]` and :math:`\bar f(x) = \Phi(\Phi^{-1}(x)
    + \mu)`. For one canary the event "guessed in, and at least i of the others' guesses are right"
    has the probabilities :math:`\bar f(x)` at most and x if the canary is in and out, and so has
    "guessed out" with in and out exchanged. The mean over canaries and
    their coins, by concavity, is

    .. math:: E[W; W \ge i + 1] / m \le \bar f(E[r - W; W \ge i] / m).

    With :math:`E[W; W \ge i] = i T_i + \sum_{j > i} T_j` it reads, S being that sum,

    .. math:: (r - i) T_i \ge S_i + m \Phi(\Phi^{-1}(((i + 1) T_{i+1} + S_{i+1}) / m) - \mu).

    The right side does not fall in any T, so from :math:`T_v = 1 - confidence` and no more beyond
    v the least :math:`T_0` follows downwards. A mu for which it exceeds 1 is refuted.

    Source: S. Mahloujifar, L. Melis, K. Chaudhuri, "Auditing f-differential privacy in one run",
    ICML 2025, in sums r and h of these expectations.

    Examples
    --------
    >>> round(gaussian_canary_epsilon(120, 125, 500, 1e-5, 0.95), 1)
    4.2
    >>> gaussian_canary_epsilon(50, 100, 100, 1e-5, 0.95)
    0.0
    """
    level = 1.0 - confidence

    def excess(mu: float) -> float:
        return _least_total(level, n_right, n_guesses, n_canaries, mu) - 1.0

    if excess(_LEAST) <= 0.0:
        return 0.0
    if excess(_MOST) > 0.0:
        return gaussian_epsilon(_MOST, delta)
    return gaussian_epsilon(float(brentq(excess, _LEAST, _MOST, xtol=1e-6)), delta)


def _least_total(level: float, v: int, r: int, m: int, mu: float) -> float:
    """Return the least T_0 at T_v = level, or a T_i beyond 1."""
    tail, beyond = level, 0.0
    for i in range(v - 1, -1, -1):
        right = min(((i + 1) * tail + beyond) / m, 1.0)
        beyond += tail
        tail = max(tail, (beyond + m * float(ndtr(ndtri(right) - mu))) / (r - i))
        if tail > 1.0:
            break
    return tail


def canaries_in_sums(run: AuditRun, n: int, confidence: float) -> tuple[list[AuditCheck], float]:
    """Return whether guesses from the noisy sums contradict the claim, and a lower limit.

    run: the audit; n: canaries. Result: no check and NaN unless all releases are sums with Gaussian
    noise, and users the unit.
    """
    spent = run.spent
    gaussian = all(release.kind == "gaussian" for release in spent.releases)
    if not (run.records and gaussian) or run.estimator.budget.unit != "user":
        return [], math.nan
    name = "canaries in sums"
    try:
        right, guesses = guess_from_releases(run, n)
    except Exception as error:  # a fit whose releases follow from more than what is replayed
        return [AuditCheck(name, False, failure(error))], math.nan
    found = right, guesses, n, spent.delta
    limit = gaussian_canary_epsilon(*found, confidence)
    text = f"{right} of {guesses} guesses right, epsilon at least {limit:.3g}"
    holds = gaussian_canary_epsilon(*found, _VERDICT) <= spent.epsilon
    return [AuditCheck(name, holds, text)], limit


def guess_from_releases(run: AuditRun, n: int) -> tuple[int, int]:
    """Return how many guesses from the noisy sums of one fit are right, and of how many.

    run (AuditRun): the audit, of the unit "user" with sums; n: canaries, each in with
    probability 1/2, with half of the items and extreme ratings. Half of them are guessed, or a
    quarter beyond 200.
    """
    R, m = run.R, run.R.shape[1]
    normal = initial_normals(run.key, (n, m), "one run")
    inside = initial_normals(run.key, (n,), "one run, inside") > 0
    known = initial_normals(run.key, (n, m), "one run, known") > 0
    values = np.where(normal > 0, run.high, run.low)
    nobody = np.zeros(n, dtype=bool)
    nothing = sparse.csr_array(R.shape)

    def data(rows: Any, keep: NDArray[np.bool_]) -> Any:
        own = sparse.csr_array(np.where(known & keep[:, None], values, 0.0))
        return sparse.csr_array(sparse.vstack((rows, own), format="csr"))

    _, made = run.fit(data(R, inside))
    _, others = run.fit(data(R, nobody), made)
    _, empty = run.fit(data(nothing, nobody), made)
    zero = _in_noise(empty)
    parts = []
    for i in range(n):
        _, alone = run.fit(data(nothing, np.arange(n) == i), made)
        parts.append(sparse.csr_array((_in_noise(alone) - zero)[None]))
    C = sparse.csr_array(sparse.vstack(parts, format="csr"))
    y = _in_noise(made, "output") - _in_noise(others) - 0.5 * np.asarray(C.sum(axis=0)).ravel()
    score = np.linalg.solve((C @ C.T).toarray() + 4.0 * np.eye(n), C @ y)
    order, guessed = np.argsort(score), max(n // (4 if n <= 200 else 8), 1)
    right = inside[order[-guessed:]].sum() + (~inside[order[:guessed]]).sum()
    return int(right), 2 * guessed


def _in_noise(records: Any, what: str = "statistic") -> NDArray[np.float64]:
    """Return all sums over their noise, flat."""
    scaled = [(getattr(r, what) / (r.noise_scale or 1e-300), r.layout) for r in records]
    return np.concatenate([unpacked(*one) for one in scaled])
