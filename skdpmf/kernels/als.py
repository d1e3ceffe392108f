"""Exact alternating least squares, and posteriors: a small positive definite system for each row.

Both halves of an iteration are the same kernel: rows of the users x items matrix in CSR against V,
then columns (CSC, or the transpose in CSR) against U. The Gram matrices of the ratings are summed
in register tiles and factored by a blocked Cholesky (`_gram`), or conjugate gradients go on until
rounding is all that is left (`conjugate_rows`); nothing is approximated.

Posteriors are mean-field ones, given factors that are themselves uncertain. y_ij ~ N(x_i . f_j,
s2), f_j ~ N(F_j, diag(v_j)), x_i ~ N(p_i, s2 ridge^-1). The best normal approximation of x_i's
posterior has

    A_i = sum_j (F_j F_j' + diag(v_j)) + ridge,   mean x_i: A_i x_i = sum_j y_ij F_j + ridge p_i,

covariance s2 A_i^-1, whose diagonal is kept. Y. J. Lim, Y. W. Teh, "Variational Bayesian approach
to movie rating prediction", KDD Cup and Workshop 2007.
"""

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from skdpmf.kernels.jit_and_threads import Array, is_small, jit, jit_fast, later, part, part_fast
from skdpmf.kernels.rows import row_blocks
from skdpmf.kernels.sums import truncated

_gram = later("_gram")
_vectors = later("_vectors")

# A system that is not numerically positive definite is solved again with a larger diagonal, each
# time by this factor; the last attempt adds more than the diagonal itself in either precision.
_JITTER_GROWTH = 100
_ATTEMPTS = 9

# From so many factors on conjugate gradients solve rows in single precision, to an error of eight
# units of rounding. A step takes as long as so many columns of a Gram matrix.
_MANY, _ENOUGH, _A_STEP = 64, 2.0**-20, 8

# Systems that are factored by turns: their Gram matrices stay in the second-level cache.
_MOST_SYSTEMS, _SYSTEM_BYTES = 4, 256 << 10


@part
def _truncate(array, grid):
    """Truncate towards zero to the grid, a power of two: both scalings are exact."""
    inverse = 1.0 / grid
    for c in range(array.shape[0]):
        array[c] = np.trunc(array[c] * inverse) * grid


@part
def _truncate_panel(panel, n, grid):
    lanes = _vectors.lanes_of(panel)
    for at in range(0, panel.shape[0], _vectors.slab_of(panel)):
        _truncate(panel[at : at + n * lanes], grid)


def _accumulate_items_plain(
    indptr, users, weights, targets, factors, grid, start, stop, out_gram, out_rhs
):
    lower = np.tril_indices(factors.shape[1])
    for j in range(start, stop):
        own = slice(indptr[j], indptr[j + 1])
        roots = np.sqrt(weights[own])
        z = truncated.function(roots[:, None] * factors.take(users[own], axis=0), grid)
        t = truncated.function(roots * targets[own], grid)
        out_gram[j] = (z.T @ z)[lower] + 0.0  # no negative zero
        out_rhs[j] = t @ z + 0.0


@jit(plain=_accumulate_items_plain)
def accumulate_items(
    indptr, users, weights, targets, factors, grid, start, stop, out_gram, out_rhs
):
    """Sufficient statistics of every item's regression on its users, exact on a grid.

    With z_ij = trunc(sqrt(w_ij) u_i) and t_ij = trunc(sqrt(w_ij) y_ij), truncated *towards zero*
    to multiples of `grid`: gram_j = sum_i z_ij z_ij^T and rhs_j = sum_i t_ij z_ij. Truncation
    never raises the norm of what sensitivities are stated for: the double sqrt(w_ij) u_i.

    indptr (n_items + 1,) integer: item j (a column in CSC) owns the positions indptr[j] to indptr[j
    + 1]; users (n_stored,) integer: user i of each position; weights, targets (n_stored,) float64:
    w_ij >= 0 and y_ij; factors (n_users, k) float64: rows u_i, C-contiguous; grid: a power of two,
    or 0 for no truncation (the non-private limit); out_gram (n_items, k (k + 1) / 2) float64: rows
    [start, stop) are overwritten with the packed lower triangles: element (c, d), d <= c, stands at
    c (c + 1) / 2 + d. Zeros for an item without ratings. out_rhs (n_items, k) float64: rows [start,
    stop) are overwritten.

    Notes
    -----
    Products and sums are exact, so that no order of the ratings can change a bit, as long as
    sum_i |z_ic z_id| and sum_i |t_i z_ic| stay below 2^53 grid^2: the caller's condition, a bound
    on the number of ratings times the squared norm. Without a grid the sums are rounded.
    """
    k = factors.shape[1]
    panel, gram = _vectors.new_panel(k, out_gram), _vectors.new_gram(k, out_gram)
    rhs = _vectors.scratch(gram.shape[1], out_gram)
    roots, t = np.empty(_vectors.PANEL_ROWS), np.empty(_vectors.PANEL_ROWS)
    for j in range(start, stop):
        gram[:] = 0.0
        rhs[:] = 0.0
        for first in range(indptr[j], indptr[j + 1], _vectors.PANEL_ROWS):
            n = min(_vectors.PANEL_ROWS, indptr[j + 1] - first)
            for p in range(n):
                roots[p] = np.sqrt(weights[first + p])
                t[p] = roots[p] * targets[first + p]
            _vectors.load_panel(factors, users[first : first + n], roots, n, panel)
            if grid > 0.0:
                _truncate_panel(panel, n, grid)
                _truncate(t[:n], grid)
            _vectors.add_panel(panel, t, n, gram, rhs)
        _vectors.pack_lower(gram, k, out_gram[j])
        for c in range(k):
            out_rhs[j, c] = rhs[c]


@part
def _new_systems(first, n):
    """Return scratch of n systems like one with this Gram matrix: gram, rhs, x, inverse, floor."""
    n_rows, width = n * first.shape[0], n * first.shape[1]
    rhs, x = _vectors.scratch(width, first), _vectors.scratch(width, first)
    inverse, floor = _vectors.scratch(n_rows, first), _vectors.scratch(n_rows, first)
    return _vectors.scratch((n_rows, first.shape[1]), first), rhs, x, inverse, floor


@part
def _start_system(first_gram, row, jitter, penalties, pulls, gram, rhs):
    """Overwrite a row's system with what it has before any rating, and the jitter."""
    _gram.copy_gram(first_gram, gram)
    for c in range(pulls.shape[1]):
        extra = gram.dtype.type(jitter)
        if penalties.shape[0] > 0:
            extra += penalties[row, c % penalties.shape[1]]
        gram[c, c] += extra
        rhs[c] = pulls[row, c] if pulls.shape[0] > 0 else 0


@part
def _write_finite(x, width, rows, tries, jitters, n, out):
    """Write the solutions that are finite; rows to be tried again come first; return their number.

    rows, tries, jitters: of the n systems whose solutions are in x, `width` elements apart.
    """
    _gram.keep_small()
    left = 0
    for s in range(n):
        unsure = x[s * width] * 0
        for c in range(1, out.shape[1]):
            unsure += x[s * width + c] * 0
        if unsure == 0:  # anything not finite makes it NaN
            for c in range(out.shape[1]):  # compiles sooner than a slice
                out[rows[s], c] = x[s * width + c]
        elif tries[s] < _ATTEMPTS:
            rows[left], tries[left], jitters[left] = rows[s], tries[s], jitters[s]
            left += 1
    return left


def factored(grams: Array, rhs: Array) -> tuple[Array, Array, Array]:
    """Return L and the solutions of L L^T x = gram x = rhs, by LAPACK, and which of them are sound.

    A system is sound that is positive definite to working precision, with a finite solution. Its
    bits do not depend on the others. grams (n, k, k), rhs (n, k).
    """
    if rhs.size == 0:
        return grams, rhs, np.ones(len(rhs), np.bool_)
    try:
        L, x = np.linalg.cholesky(grams), np.linalg.solve(grams, rhs[:, :, None])[:, :, 0]
    except np.linalg.LinAlgError:
        if len(rhs) == 1:
            return grams, np.zeros_like(rhs), np.zeros(1, np.bool_)
        each = [factored(grams[i : i + 1], rhs[i : i + 1]) for i in range(len(rhs))]
        L, x, sound = (np.concatenate(parts) for parts in zip(*each, strict=True))
        return L, x, sound
    pivots, diagonal = (np.diagonal(A, axis1=1, axis2=2) for A in (L, grams))
    least = np.min(pivots**2 / diagonal, axis=1)
    return L, x, (least > rhs.shape[1] * np.finfo(rhs.dtype).eps) & np.isfinite(x).all(axis=1)


def systems(
    indptr: Array,
    indices: Array,
    values: Array,
    weights: Array,
    factors: Array,
    start: int,
    stop: int,
) -> Iterator[tuple[slice, Array, Array]]:
    """Yield blocks of the rows [start, stop): which, their products, their weighted columns.

    Columns are D = sqrt(w) (factors, values) of each rating, and a row's products D^T D hold its
    Gram matrix, and its right-hand side in the last column.
    """
    for rows, own, _ in row_blocks(indptr, start, stop):
        bounds = indptr[rows.start : rows.stop + 1]
        D = np.column_stack((factors[indices[own]], values[own]))
        if weights.size:
            D *= np.sqrt(weights[own])[:, None]
        products = np.empty((len(bounds) - 1, D.shape[1], D.shape[1]), D.dtype)
        for s, (a, b) in enumerate(pairwise((bounds - bounds[0]).tolist())):
            np.dot(D[a:b].T, D[a:b], out=products[s])
        yield rows, products, D


def _regress_rows_plain(
    indptr, indices, values, weights, factors, ridge, extra, pulls, noise, start, stop, results
):
    k, eye = factors.shape[1], np.eye(factors.shape[1], dtype=factors.dtype)
    out, spread, losses = results
    smallest = 4 * k * np.finfo(factors.dtype).eps
    for rows, products, D in systems(indptr, indices, values, weights, factors, start, stop):
        counts = np.diff(indptr[rows.start : rows.stop + 1])
        grams, rhs = products[:, :k, :k] + ridge, products[:, :k, k]
        if extra.size:
            grams += extra[rows, :, None] * eye
        if pulls.size:
            rhs = rhs + pulls[rows]
        L, x, sound = factored(grams, rhs)
        wanted = (counts > 0) | bool(pulls.size)
        for s in np.flatnonzero(wanted & ~sound):
            jitter = grams.dtype.type(0)
            for _ in range(_ATTEMPTS - 1):
                jitter = max(
                    jitter * _JITTER_GROWTH, smallest * (grams[s].diagonal().max() + jitter)
                )
                root, again, (found,) = factored(grams[s : s + 1] + jitter * eye, rhs[s : s + 1])
                if found:
                    L[s], x[s], sound[s] = root[0], again[0], True
                    break
        done = wanted & sound
        own = rows.start + np.flatnonzero(done)
        out[own] = x[done]
        if losses.size:
            row, variances = np.repeat(np.arange(len(x)), counts), np.zeros_like(x)
            variances[done] = noise * (np.linalg.inv(L[done]) ** 2).sum(axis=1)
            doubts = extra[rows] if extra.size else np.zeros_like(x)
            squares = np.diagonal(products, axis1=1, axis2=2)[:, :k] + doubts
            errors = D[:, k] - np.einsum("ec,ec->e", D[:, :k], x[row])
            expected = (squares * variances + doubts * x**2).sum(axis=1)
            expected += np.bincount(row, errors**2, len(x))
            spread[own], losses[own] = variances[done], expected[done]


@part_fast
def _loss_at(values, begin, end, x, right, pull, ridge, jitter):
    """Return sum (y_ij - x . F_j)^2 + x' D x over the positions [begin, end), D the doubts' sum.

    Since x solves (sum_j F_j F_j' + D + ridge + jitter I) x = right = sum_j y_ij F_j + pull, it is
    sum y_ij^2 - x . (right - 2 pull) - x' (ridge + jitter I) x: no pass over the factors.
    """
    total = 0.0
    for p in range(begin, end):
        total += values[p] * values[p]
    for c in range(ridge.shape[0]):
        row = right[c] - 2.0 * pull[c] + jitter * x[c]
        for d in range(ridge.shape[0]):
            row += ridge[c, d] * x[d]
        total -= row * x[c]
    return max(total, 0.0) if begin < end else 0.0


@part
def _write_posterior(row, loss, system, noise, unit, spread, losses):
    """Write the variances and the expected loss of a row whose system is solved, if finite.

    loss: `_loss_at`; system: the factored Gram matrix, `inverse`, and the diagonal of the Gram
    matrix without its ridge.
    """
    (gram, inverse, squares), k, lanes = system, spread.shape[1], _vectors.lanes_of(unit)
    # the diagonal of the inverse: squared rows of U^-T, of as many unit vectors as a vector has
    for first in range(0, k, lanes):
        for r in range(first * lanes, k * lanes):
            unit[r] = r // lanes == first + r % lanes
        total = _vectors.vzero(unit)
        for r in range(first, k):
            y = _vectors.vload(unit, r * lanes)
            y = _vectors.vfma(inverse[r], y, _vectors.vzero(unit))
            total = _vectors.vfma(y, y, total)
            for j in range(r + 1, k):
                z = _vectors.vload(unit, j * lanes)
                _vectors.vstore(unit, j * lanes, _vectors.vfma(-gram[r, j], y, z))
        _vectors.vstore(unit, first * lanes, total)
        for c in range(first, min(first + lanes, k)):
            spread[row, c] = noise * unit[first * lanes + c - first]
    for c in range(k):
        loss += squares[c] * spread[row, c]
    sound = loss * 0 == 0  # anything not finite makes it NaN
    losses[row] = loss if sound else 0.0
    for c in range(0 if sound else k):
        spread[row, c] = 0


@jit(plain=_regress_rows_plain)
def regress_rows(
    indptr, indices, values, weights, factors, ridge, extra, pulls, noise, start, stop, results
):
    """Solve `solve_rows_weighted`, or `row_posteriors` where these are asked for.

    indptr to ridge: as for `solve_rows_weighted`; extra (n_rows, k), (n_rows, 1) or (0, 1) float:
    added to the diagonal; pulls (n_rows, k) or (0, k) float: added to the right-hand sides, in
    which case rows without ratings are solved too; noise: variance of the ratings; start, stop: the
    rows; results: the outputs of `row_posteriors`, the last two without weights, or (0, k) and
    (0,): none. Rows without a solution are left as they are.
    """
    _gram.keep_small()
    k, ratings = factors.shape[1], (indices, values, weights)
    panel, first_gram = _gram.panel_of_ratings(k, factors), _vectors.new_gram(k, factors)
    _gram.start_gram(ridge, 0.0, k, first_gram)
    n_rows, width = first_gram.shape
    most = min(max(_SYSTEM_BYTES // max(first_gram.nbytes, 1), 1), _MOST_SYSTEMS)
    gram, rhs, x, inverse, floor = _new_systems(first_gram, most)
    squares, rights = _vectors.scratch(most * k, factors), _vectors.scratch(most * k, factors)
    unit = _vectors.scratch(k * _vectors.lanes_of(first_gram), factors)
    rounding, (out, spread, losses) = _gram.rounding_of(k, factors), results
    # Rows that wait for their solution, how often it was tried, and what was added for it.
    rows, tries = _vectors.scratch(most, np.int64), _vectors.scratch(most, np.int64)
    jitters, added = _vectors.scratch(most, np.float64), _vectors.scratch(most, np.float64)
    n = 0
    for i in range(start, stop):
        if k > 0 and (indptr[i] < indptr[i + 1] or pulls.shape[0] > 0):
            rows[n], tries[n], jitters[n] = i, 0, 0.0
            n += 1
        while n == most or (n > 0 and i + 1 == stop):
            for s in range(n):
                row, top = rows[s], s * n_rows
                own, b = gram[top : top + n_rows], rhs[s * width : (s + 1) * width]
                _start_system(first_gram, row, jitters[s], extra, pulls, own, b)
                _gram.add_ratings(ratings, factors, indptr[row], indptr[row + 1], panel, own, b)
                largest = _gram.largest_and_floor(own, k, rounding, floor[top:])
                tries[s], added[s] = tries[s] + 1, jitters[s]
                jitters[s] = max(jitters[s] * _JITTER_GROWTH, 4 * rounding * largest)
                for c in range(k):
                    squares[s * k + c], rights[s * k + c] = own[c, c] - ridge[c, c], b[c]
            filled = gram[: n * n_rows]
            _gram.cholesky(filled, k, floor, inverse, rhs, x)
            _gram.substitute_backward(filled, k, inverse, x)
            for s in range(n if losses.shape[0] > 0 else 0):
                row, top = rows[s], s * n_rows
                rated = values, indptr[row], indptr[row + 1], x[s * width :], rights[s * k :]
                loss = _loss_at(*rated, pulls[row], ridge, added[s])
                system = gram[top : top + n_rows], inverse[top:], squares[s * k :]
                _write_posterior(row, loss, system, noise, unit, spread, losses)
            n = _write_finite(x, width, rows, tries, jitters, n, out)


@part_fast
def _add_step(indices, values, weights, factors, begin, last, step, p, q):
    """Add sum w (v . p) v over positions [begin, last] to q; in the first step sum w r v."""
    k, zero = factors.shape[1], factors.dtype.type(0)
    for e in range(begin, last + 1, 4):  # four ratings share what is read of p and q
        f, g, h = min(e + 1, last), min(e + 2, last), min(e + 3, last)
        s, t, u, v = values[e], values[f], values[g], values[h]
        a, b, m, n = indices[e], indices[f], indices[g], indices[h]
        if step > 0:
            s = t = u = v = zero
            for c in range(k):
                s += factors[a, c] * p[c]
                t += factors[b, c] * p[c]
                u += factors[m, c] * p[c]
                v += factors[n, c] * p[c]
        if weights.shape[0] > 0:
            s, t, u, v = s * weights[e], t * weights[f], u * weights[g], v * weights[h]
        t, u, v = t if f > e else zero, u if g > f else zero, v if h > g else zero
        for c in range(k):
            q[c] += s * factors[a, c] + t * factors[b, c]
            q[c] += u * factors[m, c] + v * factors[n, c]


@jit_fast
def conjugate_rows(
    indptr, indices, values, weights, factors, diagonal, row_ridge, start, stop, out
):
    """Solve `solve_rows_weighted` for a diagonal ridge by conjugate gradients, or write NaN.

    With the row's ridge and penalty D as preconditioner, a system is the identity and what ratings
    add: few steps where penalties grow with ratings. Since A >= D, the error of x in the norm of D
    is at most the residual's in that of D^-1: steps end where this is `_ENOUGH` times the norm of
    x. A row is NaN as soon as the later half of its steps promises more time than Cholesky's way,
    n k^2 for n ratings and k^3 / 3, would take.
    """
    k, zero = factors.shape[1], factors.dtype.type(0)
    D, r, x, p, q, sizes = [np.empty(k + 1, factors.dtype) for _ in range(6)]
    for i in range(start, stop):
        last, size = indptr[i + 1] - 1, factors.dtype.type(np.inf)
        most = k / _A_STEP * (1 + k / (3 * max(last + 1 - indptr[i], 1)))
        for c in range(k):
            D[c], r[c], x[c], p[c] = diagonal[c], zero, zero, zero
            if row_ridge.shape[0] > 0:
                D[c] += row_ridge[i]
        for step in range(min(int(most), k) + 1):  # the first one finds the right-hand side
            for c in range(k):
                q[c] = D[c] * p[c]
            _add_step(indices, values, weights, factors, indptr[i], last, step, p, q)
            along, before, size, length = zero, size, zero, zero
            for c in range(k):
                along += p[c] * q[c]
            far = before / along if step > 0 else factors.dtype.type(-1)
            for c in range(k):
                x[c] += far * p[c]
                r[c] -= far * q[c]
                size += r[c] * r[c] / D[c]
                length += x[c] * x[c] * D[c]
            for c in range(k):
                p[c] = r[c] / D[c] + size / before * p[c]
            goal, sizes[step], half = length * factors.dtype.type(_ENOUGH**2), size, step // 2
            if not size > goal:
                break
            left = (step - half) * np.log(size / goal) if step > 1 else 0.0
            if left > (most - step) * np.log(sizes[half] / size):
                break
        for c in range(k):
            out[i, c] = x[c] if size <= goal else np.nan


def solve_rows_weighted(
    indptr: Array,
    indices: Array,
    values: Array,
    weights: Array,
    factors: Array,
    ridge: Array,
    row_ridge: Array,
    start: int,
    stop: int,
    out: Array,
) -> None:
    """Solve weighted ridge regressions of every row on the factors of its stored columns.

    ``(sum_j w_ij v_j v_j^T + ridge + row_ridge_i I) u_i = sum_j w_ij r_ij v_j``. Otherwise as
    `solve_rows`, of which this is the general form at the same speed.

    indptr, indices, values: the ratings, as in `solve_rows`; weights (n_stored,) or (0,) float:
    w_ij >= 0, aligned with `values`; an empty array means all ones; factors, ridge: as in
    `solve_rows`; row_ridge (n_rows,) or (0,) float: penalty >= 0 of each row, such as alpha times
    its number of ratings; an empty array means none; start, stop, out: as in `solve_rows`.
    """
    diagonal, shared = ridge.diagonal(), (indptr, indices, values, weights, factors)
    unsolved, none = np.ones(stop - start, np.bool_), np.empty((0, len(ridge)), factors.dtype)
    is_large = len(ridge) >= _MANY and factors.dtype == np.float32 and not is_small()
    if is_large and np.all(diagonal > 0) and np.all(ridge == np.diag(diagonal)):
        conjugate_rows(*shared, diagonal, row_ridge, start, stop, out)
        unsolved = np.isnan(out[start:stop, 0])
    ends = start + np.flatnonzero(np.diff(unsolved, prepend=False, append=False))
    for a, b in ends.reshape(-1, 2).tolist():
        out[a:b] = 0
        given = *shared, ridge, row_ridge[:, None], none, 1.0, a, b
        regress_rows(*given, (out, none, none[:, 0]))


def solve_rows(
    indptr: Array,
    indices: Array,
    values: Array,
    factors: Array,
    ridge: Array,
    start: int,
    stop: int,
    out: Array,
) -> None:
    """Exact ridge regression of every row on the factors of its stored columns.

    Row i of `out` minimises ``sum_j (r_ij - u . v_j)^2 + u^T ridge u`` over its stored columns j:
    ``(sum_j v_j v_j^T + ridge) u_i = sum_j r_ij v_j``, solved by Cholesky's method. All float
    arrays share one dtype, float32 or float64.

    indptr (n_rows + 1,) integer: row i owns the positions indptr[i] to indptr[i + 1]; indices
    (n_stored,) integer: column j of each position; values (n_stored,) float: r_ij; factors
    (n_columns, k) float: rows v_j, C-contiguous; ridge (k, k) float: symmetric, positive
    (semi)definite; its upper triangle is read. Usually alpha times the identity; with implicit
    feedback also the Gram matrix of all factors. out (n_rows, k) float: rows [start, stop) are
    overwritten: zeros for a row without stored columns.

    Notes
    -----
    A system that is not positive definite to working precision is solved with a multiple of the
    identity added, at first 4 k eps times its largest diagonal element; the result is finite. A
    row whose sums overflow or are NaN becomes zeros.

    A row's result does not depend on how rows are shared out to calls.
    """
    none = np.empty(0, factors.dtype)
    solve_rows_weighted(indptr, indices, values, none, factors, ridge, none, start, stop, out)


def row_posteriors(
    indptr: Array,
    indices: Array,
    values: Array,
    factors: Array,
    doubts: Array,
    ridge: Array,
    priors: Array,
    noise: float,
    start: int,
    stop: int,
    out: Array,
    out_variances: Array,
    out_losses: Array,
) -> None:
    """Posterior mean, marginal variances and expected squared error of every row.

    indptr, indices, values: the rows, as in `solve_rows`, float64; factors (n_columns, k) float64:
    F_j, C-contiguous; doubts (n_rows, k) float64: sum_j v_j over the row's columns; (0, k): all v_j
    are 0; ridge (k, k) float64: symmetric, positive definite; priors (n_rows, k) float64: p_i;
    noise: s2 > 0; out, out_variances (n_rows, k) float64: rows [start, stop) are overwritten by x_i
    and the diagonal of s2 A_i^-1; out_losses (n_rows,) float64: the posterior means of sum_j (y_ij
    - x_i . f_j)^2. A row without a finite solution keeps its prior mean, with no variance and no
    loss.
    """
    rows, ptr, none = slice(start, stop), indptr[start : stop + 1], np.empty(0)
    out[rows], out_variances[rows], out_losses[rows] = priors[rows], 0, 0
    # E (y - x . f)^2 = (y - E x . F)^2 + sum_c (F_c^2 + v_c) var x_c + v_c (E x_c)^2
    given = ptr, indices, values, none, factors, np.ascontiguousarray(ridge), doubts[rows]
    pulls = np.matmul(ridge, priors[rows, :, None])[:, :, 0]
    results = out[rows], out_variances[rows], out_losses[rows]
    regress_rows(*given, pulls, noise, 0, stop - start, results)


def _invert_plain(A):
    A[:] = np.linalg.inv(A.transpose(2, 0, 1)).transpose(1, 2, 0)


@jit_fast(plain=_invert_plain)
def invert(A):
    """Overwrite n positive definite matrices, (k, k, n) float64, with their inverses.

    By Gauss and Jordan without pivots: steps of all of them are operations on vectors.
    """
    k, share = A.shape[0], np.empty(A.shape[2])
    for p in range(k):
        for s in range(share.size):
            share[s], A[p, p, s] = 1.0 / A[p, p, s], 1.0
        for c in range(k):
            for s in range(share.size):
                A[p, c, s] *= share[s]
        for r in range(k):
            n = share.size if r != p else 0
            for s in range(n):
                share[s], A[r, p, s] = A[r, p, s], 0.0
            for c in range(k):
                for s in range(n):
                    A[r, c, s] -= share[s] * A[p, c, s]
