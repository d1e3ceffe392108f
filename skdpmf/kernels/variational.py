"""Mean-field posteriors of rows, given factors that are themselves uncertain.

y_ij ~ N(x_i . f_j, s2), f_j ~ N(F_j, diag(v_j)), x_i ~ N(p_i, s2 ridge^-1). The best normal
approximation of x_i's posterior has

    A_i = sum_j (F_j F_j' + diag(v_j)) + ridge,   mean x_i: A_i x_i = sum_j y_ij F_j + ridge p_i,

covariance s2 A_i^-1, whose diagonal is kept. As in `skdpmf.kernels.als` both halves of an
iteration are this kernel. Y. J. Lim, Y. W. Teh, "Variational Bayesian approach to movie rating
prediction", KDD Cup and Workshop 2007.
"""

import numpy as np

from skdpmf.kernels.als import factored, systems
from skdpmf.kernels.jit_and_threads import jit, jit_fast, later, part

_gram = later("_gram")
_vectors = later("_vectors")


@part
def _add_variances(indices, variances, begin, end, total):
    """Put the sum of v_j over the positions [begin, end) into total; zeros without variances."""
    for c in range(total.shape[0]):
        total[c] = 0
    for p in range(begin, end if variances.shape[0] > 0 else begin):
        j = indices[p]
        for c in range(variances.shape[1]):
            total[c] += variances[j, c]


@part
def _inverse_diagonal(gram, k, inverse, unit, out):
    """Put the diagonal of the inverse of a factored gram into out: squared rows of U^-T."""
    width, lanes = gram.shape[1], _vectors.lanes_of(gram)
    for c in range(k):
        for r in range(width):
            unit[r] = 0
        unit[c] = 1
        total = 0.0
        for r in range(c, k):  # not `substitute_forward`: a tenth faster without its result
            y = unit[r] * inverse[r]
            total += y * y
            for j in range(r // lanes * lanes, width, lanes):
                column = _vectors.vload(gram, r * width + j)
                _vectors.vstore(unit, j, _vectors.vfma(-y, column, _vectors.vload(unit, j)))
        out[c] = total


@jit_fast
def _squared_errors(indices, values, F, begin, end, x):
    """Return sum (y_ij - x . F_j)^2 over the positions [begin, end)."""
    total = 0.0
    for p in range(begin, end):
        j, predicted = indices[p], 0.0
        for c in range(F.shape[1]):
            predicted += F[j, c] * x[c]
        total += (values[p] - predicted) ** 2
    return total


def _row_posteriors_plain(
    indptr,
    indices,
    values,
    factors,
    variances,
    ridge,
    priors,
    noise,
    start,
    stop,
    out,
    out_variances,
    out_losses,
):
    k = factors.shape[1]
    none = np.empty(0)
    for rows, products, D in systems(indptr, indices, values, none, factors, start, stop):
        bounds = indptr[rows.start : rows.stop + 1]
        n, row = len(products), np.repeat(np.arange(len(products)), np.diff(bounds))
        grams, doubts = products[:, :k, :k], np.zeros((n, k))
        if len(variances):
            own = variances[indices[bounds[0] : bounds[-1]]].T
            doubts = np.stack([np.bincount(row, column, n) for column in own], axis=1)
        grams[:, np.arange(k), np.arange(k)] += doubts
        rhs = products[:, :k, k] + np.matmul(ridge, priors[rows, :, None])[:, :, 0]
        squares = np.diagonal(grams, axis1=1, axis2=2)
        L, x, sound = factored(grams + ridge, rhs)
        spread = np.zeros_like(x)
        spread[sound] = noise * (np.linalg.inv(L[sound]) ** 2).sum(axis=1)
        x[~sound] = priors[rows][~sound]
        # E (y - x . f)^2 = (y - E x . F)^2 + sum_c (F_c^2 + v_c) var x_c + v_c (E x_c)^2
        errors = D[:, k] - np.einsum("ec,ec->e", D[:, :k], x[row])
        losses = (squares * spread + doubts * x**2).sum(axis=1) + np.bincount(row, errors**2, n)
        out[rows], out_variances[rows], out_losses[rows] = x, spread, np.where(sound, losses, 0)


@jit(plain=_row_posteriors_plain)
def row_posteriors(
    indptr,
    indices,
    values,
    factors,
    variances,
    ridge,
    priors,
    noise,
    start,
    stop,
    out,
    out_variances,
    out_losses,
):
    """Posterior mean, marginal variances and expected squared error of every row.

    indptr, indices, values: the rows, as in `solve_rows`, float64; factors, variances (n_columns,
    k) float64: F_j and v_j >= 0, C-contiguous; variances (0, k): all v_j are 0; ridge (k, k)
    float64: symmetric, positive definite; priors (n_rows, k) float64: p_i; noise: s2 > 0; out,
    out_variances (n_rows, k) float64: rows [start, stop) are overwritten by x_i and the diagonal of
    s2 A_i^-1; out_losses (n_rows,) float64: the posterior means of sum_j (y_ij - x_i . f_j)^2. A
    row whose system is not positive definite to working precision keeps its prior mean, with no
    variance and no loss.
    """
    _vectors.keep_small()
    k = factors.shape[1]
    panel, gram, rhs, x, inverse, floor = _gram.new_system(k, factors)
    doubts, squares = _vectors.scratch(k, factors), _vectors.scratch(k, factors)
    ratings = indices, values, doubts[:0]
    for i in range(start, stop):
        begin, end = indptr[i], indptr[i + 1]
        out_losses[i] = 0
        for c in range(k):
            out[i, c], out_variances[i, c] = priors[i, c], 0
        _gram.start_gram(ridge, 0.0, k, gram)
        for r in range(rhs.shape[0]):
            rhs[r] = 0
        for r in range(k):
            for c in range(k):
                rhs[r] += ridge[r, c] * priors[i, c]
        _gram.add_ratings(ratings, factors, begin, end, panel, gram, rhs)
        _add_variances(indices, variances, begin, end, doubts)
        for c in range(k):
            gram[c, c] += doubts[c]
            squares[c] = gram[c, c] - ridge[c, c]
        _gram.largest_and_floor(gram, k, _gram.rounding_of(k, gram), floor)
        if not _gram.cholesky(gram, k, floor, inverse, rhs, x):
            continue
        _gram.substitute_backward(gram, k, inverse, x)
        unsure = 0.0
        for c in range(k):  # loops, as they compile sooner than slices
            unsure += x[c] * 0  # anything not finite makes it NaN
        if unsure != 0:
            continue
        for c in range(k):
            out[i, c] = x[c]
        spread = out_variances[i]
        _inverse_diagonal(gram, k, inverse, rhs, spread)
        # E (y - x . f)^2 = (y - E x . F)^2 + sum_c (F_c^2 + v_c) var x_c + v_c (E x_c)^2
        loss = _squared_errors(indices, values, factors, begin, end, x)
        for c in range(k):
            spread[c] *= noise
            loss += squares[c] * spread[c] + doubts[c] * x[c] * x[c]
        out_losses[i] = loss
