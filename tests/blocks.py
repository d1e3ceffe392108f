"""Blocks of work as small as in a large problem: many of each."""

from skdpmf.estimators.contract import neighbors, recommend
from skdpmf.mechanisms.gram import covariance_factors
from skdpmf.privacy import pair_sensitivity

SIZES = (
    (covariance_factors, "_DENSE", 8),
    (pair_sensitivity, "_BLOCK_ENTRIES", 50),
    (neighbors, "_TARGETS_AT_ONCE", 5),
    (recommend, "_FOLD_IN_ENTRIES", 7),
    (recommend, "_GEMM_SCORES", 36),
    (recommend, "_TASK_ROWS", 3),
)


def make_small(monkeypatch):
    for module, name, size in SIZES:
        monkeypatch.setattr(module, name, size)
