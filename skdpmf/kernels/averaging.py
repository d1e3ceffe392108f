"""Ridge regressions with and without further columns, averaged by what the row says of them.

A row's values are r ~ C x + D t + noise, D the further columns. The models are: t = 0, and
t ~ N(0, s^2 / l I) for some strengths l; s^2 is the noise's variance, x ~ N(0, s^2 ridge^-1) in
all of them. With s^2 ~ inverse gamma(a, a v), v a guess of s^2, the log evidence of a model for the
n values is, but for what all models share,

    -1/2 log(det A_D / l^d) - (a + n / 2) log(a v + q / 2),

A_D the Schur complement of the further columns in the system of the regression (1 without them),
and q the least value of |r - C x - D t|^2 + x' ridge x + l |t|^2. The result is the mean of the
models' solutions by evidence and prior weight: Bayesian model averaging (J. Hoeting et al.,
"Bayesian model averaging: a tutorial", Statistical Science 14, 1999). One factorisation of the
joint system for each strength gives all of it, as that without further columns is its first part.
"""

import numpy as np

from skdpmf.kernels.als import factored
from skdpmf.kernels.jit_and_threads import jit, later, part

_gram = later("_gram")
_vectors = later("_vectors")

# Users' tastes for item features: strengths and prior weights of the models, that without tastes
# first, and the guess of the noise's variance in squared quarter ranges. With these MovieLens 1M
# loses .001 of RMSE to 20 features that are nothing but noise.
TASTE_PENALTIES, TASTE_PRIOR = np.array([6.0, 24.0]), np.array([2.0, 1.0, 1.0])
TASTE_VARIANCE = 1.0

_SURE = 5.0  # a: half as many observations as the guess of s^2 counts for


# Copies and sums are written out: numpy's forms of them compile for seconds.
@part
def _solution(gram, k, inverse, rhs, work, x):
    """Put the solution of the first k unknowns of a factored system into x; return rhs . x."""
    for c in range(x.shape[0]):
        x[c], work[c] = 0.0, rhs[c] if c < k else 0.0
    _gram.solve_factored(gram, k, inverse, work, x)
    total = 0.0
    for c in range(k):
        total += rhs[c] * x[c]
    for c in range(k, x.shape[0]):
        x[c] = 0
    return total


@part
def _solve_models(base, rhs, n, squares, k, models, scratches, solutions, evidence):
    """Put solutions and log evidence of all models of a row; False if one is not definite."""
    (gram, work, x, inverse, floor), (strengths, prior, variance) = scratches, models
    width, half = solutions.shape[1], _SURE + 0.5 * n
    for m in range(strengths.shape[0]):
        for r in range(base.shape[0]):
            for c in range(base.shape[1]):
                gram[r, c] = base[r, c]
        for c in range(k, width):
            gram[c, c] += strengths[m]
        _gram.largest_and_floor(gram, width, _gram.rounding_of(width, gram), floor)
        if not _gram.cholesky(gram, width, floor, inverse, None, None):
            return False
        for model in range(0 if m == 0 else m + 1, m + 2):
            size = width if model > 0 else k
            left = squares - _solution(gram, size, inverse, rhs, work, x)
            for c in range(width):
                solutions[model, c] = x[c]
            evidence[model] = np.log(prior[model])
            evidence[model] -= half * np.log(_SURE * variance + 0.5 * max(left, 0.0))
        for c in range(k, width):
            evidence[m + 1] += np.log(inverse[c]) + 0.5 * np.log(strengths[m])
    return True


@part
def _average(solutions, evidence, out, weights):
    """Put the mean solution and the weights of a row; zeros if it is not finite."""
    top, total, unsure = evidence[0], 0.0, 0.0
    for m in range(1, evidence.shape[0]):
        top = max(top, evidence[m])
    for m in range(weights.shape[0]):
        weights[m] = np.exp(evidence[m] - top)
        total += weights[m]
    for m in range(weights.shape[0]):
        weights[m] /= total
        for c in range(out.shape[0]):
            out[c] += weights[m] * solutions[m, c]
    for c in range(out.shape[0]):
        unsure += out[c] * 0  # anything not finite makes it NaN
    if unsure != 0:
        for c in range(out.shape[0]):
            out[c] = 0
        for m in range(weights.shape[0]):
            weights[m] = 0


def _solve_rows_averaged_plain(
    indptr, indices, values, columns, ridge, row_ridge, models, start, stop, out, weights
):
    strengths, prior, variance = models
    width, k = columns.shape[1], ridge.shape[0]
    sizes, d = [k] + [width] * strengths.size, width - k
    further, common = np.append(np.zeros(k), np.ones(d)), np.zeros((width, width))
    common[:k, :k] = ridge
    for i in range(start, stop):
        own = slice(indptr[i], indptr[i + 1])
        C, r = columns[indices[own]], values[own]
        out[i], weights[i] = 0, 0
        if C.size == 0:
            continue
        base, rhs = C.T @ C + common, C.T @ r
        if row_ridge.size:
            base += row_ridge[i] * np.diag(1.0 - further)
        systems = [base, *(base + np.diag(strength * further) for strength in strengths)]
        given = [(A[None, :n, :n], rhs[None, :n]) for A, n in zip(systems, sizes, strict=True)]
        found = [factored(*one) for one in given]
        if not all(sound for _, _, (sound,) in found):
            continue
        solutions, evidence = np.zeros((len(found), width)), np.log(prior)
        for m, (n, ((factor,), (x,), _)) in enumerate(zip(sizes, found, strict=True)):
            solutions[m, :n] = x
            least = _SURE * variance + 0.5 * max(r @ r - rhs[:n] @ x, 0.0)
            roots = np.log(factor.diagonal()[k:]).sum()
            evidence[m] -= (_SURE + 0.5 * r.size) * np.log(least) + roots
        evidence[1:] += 0.5 * d * np.log(strengths)
        chances = np.exp(evidence - evidence.max())
        chances /= chances.sum()
        if np.isfinite(chances @ solutions).all():
            out[i], weights[i] = chances @ solutions, chances


@jit(plain=_solve_rows_averaged_plain)
def solve_rows_averaged(
    indptr, indices, values, columns, ridge, row_ridge, models, start, stop, out, weights
):
    """Ridge regression of every row, with and without the last columns, averaged by evidence.

    indptr, indices, values: the rows, as in `solve_rows`, float64; columns (n_columns, k + d)
    float64: rows (C_j, D_j), C-contiguous; ridge (k, k) float64: penalty on x, symmetric; row_ridge
    (n_rows,) or (0,) float64: penalty >= 0 on each coefficient in x of a row; an empty array means
    none; models (strengths, prior, variance): strengths (m,) float64: penalties l > 0 on t; prior
    (m + 1,) float64: weights > 0 of the models: t = 0 first, then the strengths; variance: v > 0, a
    guess of the noise's variance; out (n_rows, k + d) float64: rows [start, stop) are overwritten
    by (x, t): zeros for a row without stored columns, or whose system is not positive definite to
    working precision; weights (n_rows, m + 1) float64: rows [start, stop) are overwritten by the
    models' weights, of sum 1; zeros where `out` is 0.
    """
    _gram.keep_small()
    width, k = columns.shape[1], ridge.shape[0]
    panel, base, rhs, x, inverse, floor = _gram.new_system(width, columns)
    gram, work = _vectors.new_gram(width, columns), _vectors.scratch(base.shape[1], columns)
    scratches = gram, work, x, inverse, floor
    n_models = models[1].shape[0]
    solutions = _vectors.scratch((n_models, width), columns)
    evidence, none = _vectors.scratch(n_models, columns), columns[0, :0]
    for i in range(start, stop):
        begin, end = indptr[i], indptr[i + 1]
        for c in range(width):
            out[i, c], rhs[c] = 0, 0
        for m in range(n_models):
            weights[i, m] = 0
        if begin == end or width == 0:
            continue
        _gram.start_gram(ridge, row_ridge[i] if row_ridge.shape[0] > 0 else 0.0, width, base)
        _gram.add_ratings((indices, values, none), columns, begin, end, panel, base, rhs)
        squares = 0.0
        for p in range(begin, end):
            squares += values[p] * values[p]
        given = k, models, scratches, solutions, evidence
        if _solve_models(base, rhs, end - begin, squares, *given):
            _average(solutions, evidence, out[i], weights[i])
