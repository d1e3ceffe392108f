"""Steps of all rows' factors that leave their full conditionals invariant, for a Gibbs sampler.

Users and items are the same kernel: rows of the users x items matrix in CSR against V, then columns
(CSC) against U. The conditional of the quadratic loss is Gaussian and drawn from exactly. For the
loss with clipped predictions that draw is the proposal of a Metropolis step. Its tails are too
light: where many predictions are clipped nearly every proposal would be rejected, for ever. So an
elliptical slice step follows, which always moves, and is at its best where the other is not.

Below them are the exact steps of an Ornstein-Uhlenbeck process, which a Langevin sampler takes for
its noise and Gaussian prior.
"""

from typing import Any, NamedTuple

import numpy as np

from skdpmf.kernels.jit_and_threads import jit, jit_fast, later, part

_gram = later("_gram")
_vectors = later("_vectors")

# Rows of a table with one column for each rating of a row of R that has weight: predictions of
# three points less c_j, and c_j, e_ij, q_ij.
OLD, NEW, RAY, SHIFT, VALUE, WEIGHT = range(6)


class _Ratings(NamedTuple):
    """The other side's factors and all that belongs to a column or a position."""

    indices: Any
    values: Any
    column_bias: Any
    column_roots: Any
    factors: Any


class _Work(NamedTuple):
    """Scratch of one call; `rows`, `roots` and `targets` go with the rows of `panel`.

    `new`, `old` and `ray` are values of a row's factors, padded, and last of its bias.
    """

    panel: Any
    rows: Any
    roots: Any
    targets: Any
    gram: Any  # A, then its factor
    rhs: Any  # b
    border: Any  # the column of A that belongs to the row's own bias, without its last element
    reduced: Any  # the same in the Cholesky factor
    floor: Any
    inverse: Any
    new: Any
    old: Any
    ray: Any


@part
def _new_work(k, like):
    panel, roots, targets, rows = _gram.panel_of_ratings(k, like)
    gram = _vectors.new_gram(k, like)
    v = _vectors.scratch((5, gram.shape[1]), like)
    x = _vectors.scratch((3, gram.shape[1] + _vectors.lanes_of(like)), like)
    return _Work(panel, rows, roots, targets, gram, v[0], v[1], v[2], v[3], v[4], x[0], x[1], x[2])


@part
def _fill_panel(ratings, row_root, position, end, work):
    """Load the next ratings of positive weight; return their number and the next position.

    Ratings without weight take no place in the panel: they change the order of no sum.
    """
    with_bias = ratings.column_bias.shape[0] > 0
    n = 0
    while position < end and n < _vectors.PANEL_ROWS:
        j = ratings.indices[position]
        root = row_root * ratings.column_roots[j]
        if root > 0.0:
            target = ratings.values[position]
            if with_bias:
                target -= ratings.column_bias[j]
            work.rows[n] = j
            work.roots[n] = root
            work.targets[n] = root * target
            n += 1
        position += 1
    _vectors.load_panel(ratings.factors, work.rows, work.roots, n, work.panel)
    return n, position


@part
def _sum_ratings(ratings, row_root, begin, end, own_bias, prior_std, work):
    """Fill gram, rhs and border; return the bias's own elements of A and b."""
    work.gram[:] = 0.0
    work.rhs[:] = 0.0
    work.border[:] = 0.0
    k = ratings.factors.shape[1]
    for c in range(k):
        work.gram[c, c] = prior_std[c] ** -2.0
    corner, corner_rhs = prior_std[k] ** -2.0 if own_bias else 0.0, 0.0
    position = begin
    while position < end:
        n, position = _fill_panel(ratings, row_root, position, end, work)
        _vectors.add_panel(work.panel, work.targets, n, work.gram, work.rhs)
        if own_bias:
            _gram.add_rhs(work.panel, work.roots, n, work.border)
            for p in range(n):
                corner += work.roots[p] * work.roots[p]
                corner_rhs += work.roots[p] * work.targets[p]
    return corner, corner_rhs


@part
def _propose(k, corner, corner_rhs, own_bias, z, work):
    """Put a draw of N(A^-1 b, A^-1) into work.new; return whether there is a finite one.

    With A = F^T F: F^-1 (F^-T b + z). The bias is the last coordinate, so that it comes first.
    """
    rounding = _gram.rounding_of(k + 1, work.gram)
    for c in range(k):
        work.floor[c] = rounding * work.gram[c, c]
    if not _gram.cholesky(work.gram, k, work.floor, work.inverse, work.rhs, work.new):
        return False
    bias = 0.0
    if own_bias:
        _gram.substitute_forward(work.gram, k, work.inverse, work.border, work.reduced)
        pivot, mean = corner, corner_rhs
        for c in range(k):
            pivot -= work.reduced[c] * work.reduced[c]
            mean -= work.reduced[c] * work.new[c]
        if not pivot > rounding * corner:
            return False
        bias = mean / pivot + z[k] / np.sqrt(pivot)
    for c in range(k):
        work.new[c] += z[c] - bias * work.reduced[c]
    _gram.substitute_backward(work.gram, k, work.inverse, work.new)
    total = bias * 0.0
    for c in range(k):
        total += work.new[c] * 0.0
    work.new[-1] = bias
    return total == 0.0  # anything not finite makes it NaN


@part
def _predict(ratings, row_root, begin, end, work, row):
    """Fill `row` with the ratings of positive weight and three predictions; return their number.

    The predictions are those of work.old, work.new and work.ray.
    """
    k = ratings.factors.shape[1]
    lanes = _vectors.lanes_of(work.new)
    whole = k // lanes * lanes
    with_bias = ratings.column_bias.shape[0] > 0
    n = 0
    for position in range(begin, end):
        j = ratings.indices[position]
        root = row_root * ratings.column_roots[j]
        if not root > 0.0:
            continue
        old, new, ray = _vectors.vzero(work.new), _vectors.vzero(work.new), _vectors.vzero(work.new)
        for c in range(0, whole, lanes):
            f = _vectors.vload(ratings.factors, j * k + c)
            old = _vectors.vfma(f, _vectors.vload(work.old, c), old)
            new = _vectors.vfma(f, _vectors.vload(work.new, c), new)
            ray = _vectors.vfma(f, _vectors.vload(work.ray, c), ray)
        row[OLD, n] = _vectors.vsum(old) + work.old[-1]
        row[NEW, n] = _vectors.vsum(new) + work.new[-1]
        row[RAY, n] = _vectors.vsum(ray) + work.ray[-1]
        for c in range(whole, k):
            row[OLD, n] += ratings.factors[j, c] * work.old[c]
            row[NEW, n] += ratings.factors[j, c] * work.new[c]
            row[RAY, n] += ratings.factors[j, c] * work.ray[c]
        row[SHIFT, n] = ratings.column_bias[j] if with_bias else 0.0
        row[VALUE, n] = ratings.values[position]
        row[WEIGHT, n] = root * root
        n += 1
    return n


@jit_fast
def _excess(row, which, n, bound):
    """D: half the sum of q ((e - clip(p))^2 - (e - p)^2)."""
    total = 0.0
    for s in range(n):
        p = row[which, s] + row[SHIFT, s]
        m = min(max(p, -bound), bound)
        total += row[WEIGHT, s] * (p - m) * (2.0 * row[VALUE, s] - p - m)
    return 0.5 * total


@jit_fast
def _loss(row, which, cosine, sine, n, bound):
    """Half the clipped loss where a turn by an angle leads from a prediction."""
    total = 0.0
    for s in range(n):
        p = cosine * row[which, s] + sine * row[RAY, s] + row[SHIFT, s]
        error = row[VALUE, s] - min(max(p, -bound), bound)
        total += row[WEIGHT, s] * error * error
    return 0.5 * total


@part
def _turn(row, which, n, bound, uniforms):
    """Return the angle of an elliptical slice step; 0 if all tries fail."""
    limit = _loss(row, which, 1.0, 0.0, n, bound) - np.log(uniforms[0])
    angle = 2.0 * np.pi * uniforms[1]
    low, high = angle - 2.0 * np.pi, angle
    for t in range(2, uniforms.shape[0]):
        if _loss(row, which, np.cos(angle), np.sin(angle), n, bound) < limit:
            return angle
        if angle < 0.0:
            low = angle
        else:
            high = angle
        angle = low + (high - low) * uniforms[t]
    return 0.0


@part
def _move(ratings, root, begin, end, good, bound, chances, work, row):
    """Overwrite work.new with the row's next value; return whether the proposal was accepted."""
    n = _predict(ratings, root, begin, end, work, row)
    if good:
        ratio = _excess(row, OLD, n, bound) - _excess(row, NEW, n, bound)
        good = ratio >= 0.0 or chances[0] < np.exp(ratio)
    if not good:
        for c in range(work.new.shape[0]):
            work.new[c] = work.old[c]
    angle = _turn(row, NEW if good else OLD, n, bound, chances[1:])
    if angle != 0.0:
        for c in range(work.new.shape[0]):
            work.new[c] = np.cos(angle) * work.new[c] + np.sin(angle) * work.ray[c]
    return good


@jit
def sample_rows(indptr, row_roots, columns, prior_std, bound, draws, start, stop, results):
    """Take one step of every row's factors, with its bias if it has one, in a Gibbs sampler.

    Row i's conditional density, over its stored columns j, is proportional to

        exp(-sum_j q_ij (e_ij - clip(p_ij, -M, M))^2 / 2) N((x_i, b_i); 0, diag(prior_std)^2),
        p_ij = x_i . f_j + b_i + c_j,    q_ij = (row_roots_i column_roots_j)^2,

    and two steps leave it invariant. The first proposes a draw from the Gaussian that it is
    without the clip, and accepts it with probability min(1, exp(D(old) - D(new))), where
    2 D = sum_j q_ij ((e_ij - clip(p_ij))^2 - (e_ij - p_ij)^2). The second turns the value by a
    random angle towards a draw from the prior, shrinking the angle until the clipped loss is
    below a random level.

    indptr (n_rows + 1,) integer: row i owns the positions indptr[i] to indptr[i + 1]; columns
    (indices, values, column_bias, column_roots, factors): indices (n_stored,) integer: column j of
    each position; values (n_stored,) float64: e_ij; column_bias (n_columns,) or (0,) float64: c_j;
    an empty array means zeros; row_roots, column_roots (n_rows,) and (n_columns,) float64: square
    roots, >= 0, of the factors of q_ij. A rating with q_ij = 0 changes no bit. factors (n_columns,
    k) float64: rows f_j, C-contiguous; prior_std (k,) or (k + 1,) float64: standard deviations of
    x_i and, if rows have biases, b_i; bound: M > 0; inf: the density is Gaussian, and the step is a
    draw from it; draws (normals, directions, uniforms): normals (n_rows, len(prior_std)) float64:
    standard normals of the proposal; directions (float64 array of the same shape): standard normals
    of the second step; not read if `bound` is inf; uniforms (n_rows, 3 + n_tries) float64: in (0,
    1): to accept with, the level, the angle, and to shrink it; after n_tries the second step stays
    where it is. Not read if `bound` is inf. results (x, bias, accepted): x (n_rows, k) float64:
    x_i; rows [start, stop) are overwritten; bias (n_rows,) or (0,) float64: b_i, the same; empty:
    rows have no bias; accepted (n_rows,) bool: entries [start, stop) are overwritten: whether the
    first step's proposal was accepted.

    Notes
    -----
    Where the Gaussian's precision matrix is not positive definite to working precision, or the
    draw is not finite, the first step stays where it is.

    A row's result does not depend on how rows are shared out to calls.
    """
    ratings, (normals, directions, uniforms) = _Ratings(*columns), draws
    factors, (x, bias, accepted) = ratings.factors, results
    k = factors.shape[1]
    work = _new_work(k, factors)
    own_bias, clipped = bias.shape[0] > 0, bound < np.inf
    longest = 0
    if clipped:
        for i in range(start, stop):
            longest = max(longest, indptr[i + 1] - indptr[i])
    row = _vectors.scratch((6, longest), factors)
    for i in range(start, stop):
        begin, end, root = indptr[i], indptr[i + 1], row_roots[i]
        corner, corner_rhs = _sum_ratings(ratings, root, begin, end, own_bias, prior_std, work)
        good = _propose(k, corner, corner_rhs, own_bias, normals[i], work)
        for c in range(k):
            work.old[c] = x[i, c]
        if own_bias:
            work.old[-1] = bias[i]
        if clipped:
            for c in range(k):
                work.ray[c] = directions[i, c] * prior_std[c]
            if own_bias:
                work.ray[-1] = directions[i, k] * prior_std[k]
            good = _move(ratings, root, begin, end, good, bound, uniforms[i], work, row)
        accepted[i] = good
        if good or clipped:
            for c in range(k):
                x[i, c] = work.new[c]
            if own_bias:
                bias[i] = work.new[-1]


def diffusion(precision: Any, time: float) -> tuple[Any, Any]:
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
