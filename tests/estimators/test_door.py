"""The estimators' door: in how many files ratings are between `fit` and `components_`."""

import sys
from pathlib import Path

import pytest
from scipy import sparse

import skdpmf
import skdpmf as sk
from skdpmf.data import make_ratings
from skdpmf.privacy.users import Rows

PACKAGE = Path(skdpmf.__file__).parent
MOST_FILES = 18
BUDGET = sk.PrivacyBudget(8.0, 1e-5)
SMALL = {"n_components": 3, "max_iter": 2, "random_state": 0}
FITS = {
    "pooled": sk.AdaptiveWeightALS(BUDGET, **SMALL),
    "dpals": sk.AdaptiveWeightALS(BUDGET, solver="dpals", **SMALL),
    "clicks": sk.AdaptiveWeightALS(BUDGET, feedback="implicit", **SMALL),
    "covariance": sk.DPCovarianceRecommender(BUDGET, random_state=0),
    "item-item": sk.DPCovarianceRecommender(BUDGET, feedback="implicit", random_state=0),
    "means": sk.DPItemMeans(BUDGET, random_state=0),
    "every step": sk.DPMFSampler(BUDGET, **SMALL),
    "posterior": sk.DPMFSampler(BUDGET, guarantee="posterior", **SMALL),
    "local": sk.LocalDPGDDR(sk.PrivacyBudget(4.0), random_state=0),
    "sgd": sk.CacheSGDFactorizer(3, max_iter=2, random_state=0),
}


def ratings():
    return make_ratings(120, 20, random_state=0)


class Walk:
    """Functions of the package that a fit calls, and the files of those that get ratings."""

    def __init__(self, n_rows):
        self.n_rows, self.files, self.called = n_rows, set(), []

    def __call__(self, frame, event, arg):
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(str(PACKAGE)):
            return
        self.called.append(code.co_name)
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount + 1]
        given = [frame.f_locals.get(name) for name in names]
        given += [part for one in given if isinstance(one, tuple) for part in one]
        if not code.co_name.startswith("<") and any(map(self.are_ratings, given)):
            self.files.add(Path(code.co_filename).relative_to(PACKAGE).as_posix())

    def are_ratings(self, value):
        return isinstance(value, Rows) or (sparse.issparse(value) and self.n_rows in value.shape)


def walk(model, X):
    found = Walk(X.shape[0])
    before = sys.getprofile()
    sys.setprofile(found)
    try:
        model.fit(X)
    finally:
        sys.setprofile(before)
    return found


@pytest.mark.parametrize("name", FITS)
def test_ratings_are_in_few_files(name):
    found = walk(FITS[name], ratings())
    assert "estimators/contract/base.py" in found.files
    assert len(found.files) <= MOST_FILES, sorted(found.files)


@pytest.mark.parametrize("kept", [False, True])
def test_parameters_are_checked_once_and_a_fit_has_one_plan(kept, tmp_path):
    """One plan beside that of a single item, by which parameters are checked."""
    ledger = None
    if kept:
        ledger = sk.PrivacyLedger(tmp_path / "a.ledger", limit=BUDGET, allow_seeded=True)
    model = sk.DPItemMeans(sk.PrivacyBudget(4.0, 1e-5, ledger=ledger), random_state=0)
    called = walk(model, ratings()).called
    assert called.count("check_rating_range") - called.count("make_ratings") <= 2
    assert called.count("_check_options") == 1
    assert called.count("_make_plan") == 2
