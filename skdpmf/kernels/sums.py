"""Exact sums over users for releases, and the norms that users are clipped by.

Terms are truncated towards zero to a public grid, which raises no norm; products and sums of such
terms are exact in float64, so that neither order nor blocks nor threads change a bit. What bounds
a user's contribution is the callers' part: `skdpmf.privacy.clipped_sums`.
"""

import numpy as np

from skdpmf.kernels.jit_and_threads import jit, part


@part
def _size(x, l1):
    return abs(x) if l1 else x * x


def _row_norms_plain(indptr, terms, l1, start, stop, out):
    # reduceat adds a row pairwise, its last 128 terms in 8 chains: a sum of positive terms, each of
    # which is rounded at most 20 + log2(n) times, is right to so many units of 2^-53.
    own, counts = terms[indptr[start] : indptr[stop]], np.diff(indptr[start : stop + 1])
    held, norms = np.flatnonzero(counts), out[start:stop]
    norms[:] = 0.0
    if len(held):
        first = (indptr[start:stop] - indptr[start])[held]
        norms[held] = np.add.reduceat(np.abs(own) if l1 else own * own, first)
    norms[:] = norms if l1 else np.sqrt(norms)


@jit(plain=_row_norms_plain)
def row_norms(indptr, terms, l1, start, stop, out):
    """Norm of every row of terms: l2, or l1.

    Sums of 256 terms are added up with compensation (Kahan): the relative error stays below 100
    units in the last place, 2^-46, however long a row is. A bound on the norm may count with that.

    indptr (n_rows + 1,) integer: row i owns the positions indptr[i] to indptr[i + 1]; terms
    (n_stored,) float64: values; l1: sum of magnitudes rather than root of the sum of squares; out
    (n_rows,) float64: rows [start, stop) are overwritten.
    """
    for i in range(start, stop):
        total, lost = 0.0, 0.0
        for first in range(indptr[i], indptr[i + 1], 256):
            last = min(first + 256, indptr[i + 1])
            a, b, c, d = 0.0, 0.0, 0.0, 0.0  # chains that do not wait for one another
            for p in range(first, last - 3, 4):
                a += _size(terms[p], l1)
                b += _size(terms[p + 1], l1)
                c += _size(terms[p + 2], l1)
                d += _size(terms[p + 3], l1)
            for p in range(first + (last - first) // 4 * 4, last):
                a += _size(terms[p], l1)
            part = (a + b) + (c + d) - lost
            grown = total + part
            lost = (grown - total) - part
            total = grown
        out[i] = total if l1 else np.sqrt(total)


def _accumulate_rhs_plain(indptr, indices, terms, scale, factors, grid, start, stop, out):
    own = slice(indptr[start], indptr[stop])
    rows = np.repeat(np.arange(start, stop), np.diff(indptr[start : stop + 1]))
    finite = np.isfinite(terms[own])
    items, rows = indices[own][finite].astype(np.intp), rows[finite]
    t = truncated.function(scale[rows] * terms[own][finite], grid)
    z = truncated.function(factors[start:stop].T, grid)
    for c in range(len(z)):
        out[:, c] += np.bincount(items, t * z[c, rows - start], len(out))


@jit(plain=_accumulate_rhs_plain)
def accumulate_rhs(indptr, indices, terms, scale, factors, grid, start, stop, out):
    """Add sum_i t_ij z_i over the rows i in [start, stop) of a CSR matrix to row j of `out`.

    t_ij = trunc(scale_i terms_ij) and z_i = trunc(u_i), both truncated *towards zero* to multiples
    of `grid`. So |z_i| sqrt(sum_j t_ij^2), the norm of what row i adds to all items together, is
    at most |u_i| scale_i sqrt(sum_j terms_ij^2): truncation never raises a sensitivity.

    indptr (n_rows + 1,) integer: row i owns the positions indptr[i] to indptr[i + 1]; indices
    (n_stored,) integer: item j of each position; terms (n_stored,) float64: such as weighted
    residuals. What is not finite counts as 0. scale (n_rows,) float64: such as clip factors, in [0,
    1]; factors (n_rows, k) float64: rows u_i; grid: a power of two, or 0 for no truncation (the
    non-private limit); out (n_items, k) float64: the sums are added to it.

    Notes
    -----
    Products and sums are exact, so that neither the order of the rows nor how they are shared out
    to calls (whose results are added) can change a bit, as long as sum_i |t_ij z_ic| stays below
    2^53 grid^2 for all items and columns: the caller's condition. Without a grid sums are rounded.
    """
    k = factors.shape[1]
    z = np.empty(k)
    for i in range(start, stop):
        for c in range(k):
            z[c] = truncated(factors[i, c], grid)
        for p in range(indptr[i], indptr[i + 1]):
            if not np.isfinite(terms[p]):
                continue
            j, t = indices[p], truncated(scale[i] * terms[p], grid)
            for c in range(k):
                out[j, c] += t * z[c]


@part
def truncated(x, grid):
    """Return x truncated towards zero to the grid, a power of two: both scalings are exact."""
    return np.trunc(x / grid) * grid if grid > 0.0 else x
