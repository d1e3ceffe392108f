"""Fits whose coordinator dies: the same model under the same seed, and a ledger charged once."""

import os

import joblib
import numpy as np
import pytest
from sklearn.base import clone

from skdpmf import AdaptiveWeightALS, DPItemMeans, LocalDPGDDR, PrivacyBudget, PrivacyLedger
from skdpmf.data import ParquetRatings
from skdpmf.distributed import fit_checkpoint
from skdpmf.distributed.checkpoint import CHECKPOINT_ASSUMPTION, ReleaseLog
from skdpmf.exceptions import CheckpointError
from skdpmf.privacy.recording import record_releases
from tests.systems import needs_posix

from .common import FITS, LITTLE, MUCH, ratings

RESUMED = (
    "pooled",
    "pooled, subset",
    "dpals",
    "every step",
    "covariance by user",
    "clicks",
    "local",
)
RESUMED += ("selector", "item means, Laplace")


def values_for(name):
    X = ratings(200)
    return (X > 3.5).astype(float) if name.startswith("clicks") else X


def die_in_a_child(fit, path, n_releases, *, after_append):
    """Run a fit in a forked process that exits at a release, as if the power had failed."""
    pid = os.fork()
    if pid == 0:
        made, append = [], ReleaseLog.append

        def mortal(self, *release):
            if len(made) == n_releases and not after_append:
                os._exit(7)
            append(self, *release)
            made.append(release)
            if len(made) == n_releases and after_append:
                os._exit(7)

        ReleaseLog.append = mortal
        try:
            with fit_checkpoint(path):
                fit()
        finally:
            os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7


@needs_posix
@pytest.mark.parametrize("name", RESUMED)
def test_a_fit_resumes_after_each_kind_of_crash(name, tmp_path):
    model, X = FITS[name], values_for(name)
    whole = clone(model).fit(X)
    path = tmp_path / "fit.ckpt"
    n = {"selector": 0, "item means, Laplace": 1}.get(name, 2)
    die_in_a_child(lambda: clone(model).fit(X), path, n, after_append=name in RESUMED[::2])
    assert path.exists()
    with fit_checkpoint(path):
        resumed = clone(model).fit(X)
    for attribute in ("item_means_", "components_", "counts_"):
        if hasattr(whole, attribute):
            np.testing.assert_array_equal(getattr(resumed, attribute), getattr(whole, attribute))
    assert CHECKPOINT_ASSUMPTION in resumed.privacy_spent_.assumptions
    assert not path.exists()


@needs_posix
def test_nothing_is_drawn_for_what_is_released(tmp_path, monkeypatch):
    """Without a seed the second process has another key: it must not touch the first values."""
    model = AdaptiveWeightALS(MUCH, n_components=2, max_iter=2)
    X, path = ratings(200), tmp_path / "fit.ckpt"
    die_in_a_child(lambda: clone(model).fit(X), path, 4, after_append=True)
    kept, append = [], ReleaseLog.append

    def note(self, *release):
        kept.extend(self.released if not kept else ())
        append(self, *release)

    monkeypatch.setattr(ReleaseLog, "append", note)
    with record_releases() as drawn, fit_checkpoint(path):
        clone(model).fit(X)
    known, new = ({tuple(r[:2]) for r in kept}, {(r.name, r.index) for r in drawn})
    assert len(known) == 4
    assert not known & new
    assert len(new) == sum(release.count for release in model.plan(40).releases) - 4


@needs_posix
def test_a_ledger_is_charged_once(tmp_path):
    X, path = ratings(200), tmp_path / "fit.ckpt"
    ledger, other = (
        PrivacyLedger(tmp_path / name, PrivacyBudget(9.0, 1e-5), allow_seeded=True)
        for name in ("ledger", "other")
    )
    model = clone(FITS["pooled"]).set_params(budget__ledger=ledger)
    whole = clone(FITS["pooled"]).set_params(budget__ledger=other).fit(X)
    die_in_a_child(lambda: clone(model).fit(X), path, 3, after_append=True)
    (entry,) = ledger.report().entries
    assert entry["status"] == "reserved"
    with fit_checkpoint(path):
        resumed = clone(model).fit(X)
    np.testing.assert_array_equal(resumed.item_means_, whole.item_means_)
    (entry,) = ledger.report().entries
    assert entry["status"] == "done"
    assert len(entry["resumed"]) == 1
    ledger.verify()
    assert CHECKPOINT_ASSUMPTION not in resumed.privacy_spent_.assumptions
    with pytest.raises(ValueError, match="must fit into what the ledger"):
        clone(model).fit(X)  # nothing is left: the crash was paid for, once


@needs_posix
def test_other_ratings_or_parameters_are_another_fit(tmp_path):
    X, path = ratings(200), tmp_path / "fit.ckpt"
    model = DPItemMeans(LITTLE, random_state=0)
    die_in_a_child(lambda: clone(model).fit(X), path, 1, after_append=True)
    other = X.copy()
    other.data[0] = 6.0 - other.data[0]
    for changed, values in ((model, other), (clone(model).set_params(user_damping=3.0), X)):
        with pytest.raises(CheckpointError, match="another"), fit_checkpoint(path):
            clone(changed).fit(values)
    with fit_checkpoint(path):
        clone(model).set_params(n_jobs=2).fit(X)  # threads change nothing


@needs_posix
def test_ratings_on_disk_and_processes_resume_as_well(tmp_path):
    pytest.importorskip("pyarrow")
    X, path = ratings(), tmp_path / "fit.ckpt"
    store = ParquetRatings.write(tmp_path / "store", X, rows_per_part=200)
    model, whole = FITS["pooled"], clone(FITS["pooled"]).fit(X)
    die_in_a_child(lambda: clone(model).fit(store), path, 5, after_append=True)
    with joblib.parallel_config(backend="loky", n_jobs=2), fit_checkpoint(path):
        resumed = clone(model).fit(store)
    np.testing.assert_array_equal(resumed.components_, whole.components_)


def test_what_cannot_be_resumed_is_refused_before_it_costs_anything(tmp_path):
    X, path = ratings(50), tmp_path / "fit.ckpt"
    exact = DPItemMeans(PrivacyBudget.nonprivate())
    with pytest.raises(ValueError, match="nothing but noisy sums"), fit_checkpoint(path):
        exact.fit(X)
    devices = LocalDPGDDR(PrivacyBudget(1.0))
    with pytest.raises(ValueError, match="must be an integer"), fit_checkpoint(path):
        devices.fit(X)
    assert not path.exists()


def test_a_fit_with_a_checkpoint_is_the_fit_without(tmp_path):
    X = ratings()
    for name in ("pooled", "covariance by rating"):
        whole = clone(FITS[name]).fit(X)
        with fit_checkpoint(tmp_path / "fit.ckpt"):
            model = clone(FITS[name]).fit(X)
        np.testing.assert_array_equal(model.components_, whole.components_)
