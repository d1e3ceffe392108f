"""The public projection of gradients, and its two ways back."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from skdpmf.mechanisms.device_reports import gradient as solver
from skdpmf.privacy.budget import PrivacyBudget
from skdpmf.privacy.sampler.streams import derived_key, initial_normals

PUBLIC = derived_key(3, "public")
WIDE, NARROW = 600, 60


def wide(back_projection):
    return solver.Projection(PUBLIC, NARROW, WIDE, back_projection)


def gradients():
    return initial_normals(derived_key(9, "gradients"), (WIDE, 200))


def test_the_ways_back_are_those_of_their_formulas():
    Phi = wide("unbiased").matrix.astype(np.float64)
    B, G = initial_normals(derived_key(8), (NARROW, 4)), gradients()
    np.testing.assert_allclose(wide("unbiased").back(B), Phi.T @ B, rtol=0, atol=1e-12)
    np.testing.assert_allclose(wide("pinv").back(B), np.linalg.pinv(Phi) @ B, rtol=0, atol=1e-12)
    for kind in ("unbiased", "pinv"):
        np.testing.assert_allclose(wide(kind).project(G), Phi @ G, rtol=0, atol=1e-11)


def test_large_projections_are_handled_in_blocks(monkeypatch):
    monkeypatch.setattr(solver, "_BLOCK_ROWS", 7)
    test_the_ways_back_are_those_of_their_formulas()


def test_phi_has_its_law_and_rows_of_their_own():
    """N(0, 1/q): a Kolmogorov-Smirnov test at 1e-4."""
    Phi = wide("unbiased").matrix
    assert Phi.dtype == np.float32
    assert stats.kstest(Phi.ravel() * math.sqrt(NARROW), "norm").pvalue > 1e-4
    assert len(np.unique(Phi.round(6), axis=0)) == NARROW
    # a function of the key, the row and the item: a device needs one row, whatever m is
    for s in (0, 17, 59):
        np.testing.assert_array_equal(solver.projection_row(PUBLIC, s, NARROW, 35), Phi[s, :35])
    threads = solver.Projection(PUBLIC, NARROW, WIDE, "unbiased", n_jobs=3).matrix
    np.testing.assert_array_equal(threads, Phi)
    other = solver.Projection(derived_key(4), NARROW, WIDE, "unbiased").matrix
    assert abs(np.corrcoef(Phi.ravel(), other.ravel())[0, 1]) < 5 / math.sqrt(Phi.size)


def test_pinv_needs_no_more_rows_than_items():
    budget, own = PrivacyBudget(4.0, neighbors="replace"), solver.Settings(2, 1, 0.1, 0.1, 0, 0)
    own = replace(own, projection_dim=9)
    assert solver.make_plan(budget, own, 8).releases[0].shape == (9, 2)
    with pytest.raises(ValueError, match=r"^projection_dim=9 must be at most .* 8, .*lower it"):
        solver.make_plan(budget, replace(own, back_projection="pinv"), 8)
