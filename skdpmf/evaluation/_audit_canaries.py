"""Attack 3: made-up users, each in the data of one fit or not, and guesses which."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import sparse
from sklearn.base import clone

from skdpmf.evaluation._audit_run import AuditCheck, AuditRun
from skdpmf.evaluation.audit_estimates import canary_epsilon
from skdpmf.privacy.sampler.noise import initial_normals

__all__ = ["guess_members"]

_VERDICT = 0.9995  # guesses are few: 1e-6 would want too many of them


def guess_members(run: AuditRun, n: int, confidence: float) -> tuple[AuditCheck, float]:
    """Return whether guesses from one model contradict the claim, and a lower limit of epsilon.

    run: the audit; n: canaries. Returns check: its verdict has a confidence of its own; limit: of
    epsilon, at the stated delta.
    """
    m = run.everybody.shape[1]
    normal = initial_normals(run.key, (n, m), "canaries")
    inside = initial_normals(run.key, (n,), "inside") > 0
    known = initial_normals(run.key, (n, m), "known") > 0
    values = np.where(normal > 0, run.high, run.low)
    model = clone(run.estimator).fit(
        sparse.vstack((run.everybody, _rows(values, known & inside[:, None])), format="csr")
    )
    # a canary in the data has drawn the model towards its ratings: predict half from half
    centre, agreement = (run.low + run.high) / 2.0, np.zeros(n)
    for half in (0, 1):
        told = known & (np.arange(m) % 2 == half)
        asked = sparse.csr_array(known & ~told)
        predicted = model.predict_entries(_rows(values, told), asked).toarray() - centre
        agreement += np.sum(predicted * (values - centre) * asked.toarray(), axis=1)
    order = np.argsort(agreement)
    guessed = max(n // 4, 1)
    right = int(inside[order[-guessed:]].sum() + (~inside[order[:guessed]]).sum())
    guesses = right, 2 * guessed, n, run.spent.delta
    limit = canary_epsilon(*guesses, confidence)
    text = f"{right} of {2 * guessed} guesses right, epsilon at least {limit:.3g}"
    holds = canary_epsilon(*guesses, _VERDICT) <= run.spent.epsilon
    return AuditCheck("canaries", holds, text), limit


def _rows(values: np.ndarray, mask: np.ndarray) -> Any:
    places = sparse.csr_array(mask)
    return sparse.csr_array((values[mask], places.indices, places.indptr), shape=mask.shape)
