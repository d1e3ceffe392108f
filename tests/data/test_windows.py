"""Parquet ratings, saved files and ledgers on Windows, whose ways are forced upon this system.

Windows opens no folders, and replaces nothing that is open.
"""

import os
import re
import shutil
from pathlib import Path

import pytest

from skdpmf import DPItemMeans, PrivacyBudget, PrivacyLedger
from skdpmf.books import ledger_file
from skdpmf.data import ParquetRatings, make_ratings
from skdpmf.data import files as _files

X = make_ratings(300, 20, random_state=0)
DENIED = "Access is denied"
REMEDY = f"{DENIED}: Windows replaces nothing that is open; close whatever reads it"


@pytest.fixture(autouse=True)
def windows(monkeypatch):
    """Take away what Windows lacks."""
    open_, is_folder = os.open, os.path.isdir

    def open_no_folder(path, *arguments, **options):
        if is_folder(path):
            raise PermissionError(13, DENIED, str(path))
        return open_(path, *arguments, **options)

    monkeypatch.setattr(os, "open", open_no_folder)
    monkeypatch.setattr(_files, "POSIX", False)
    # Python's own way to remove folders where they cannot be opened
    monkeypatch.setattr(shutil, "_use_fd_functions", False)


@pytest.fixture
def in_use(monkeypatch):
    """Refuse to move over a file or away a folder, as where one is open."""

    def denied(self, target):
        raise PermissionError(13, DENIED, str(self), None, str(target))

    def use():
        monkeypatch.setattr(Path, "rename", denied)
        monkeypatch.setattr(Path, "replace", denied)

    return use


def test_ratings_in_use_stay_and_the_error_says_so(tmp_path, in_use):
    pytest.importorskip("pyarrow")
    path = tmp_path / "ratings"
    ParquetRatings.write(path, X)
    in_use()
    with pytest.raises(PermissionError, match=re.escape(REMEDY)) as caught:
        ParquetRatings.write(path, X[:9], overwrite=True)
    assert caught.value.filename == str(path)
    assert os.listdir(tmp_path) == ["ratings"]
    assert (ParquetRatings(path).read_rows() != X).nnz == 0


def test_a_file_in_use_stays_and_the_error_says_so(tmp_path, in_use):
    path = tmp_path / "model"
    model = DPItemMeans(PrivacyBudget(4.0, 1e-5)).fit(X)
    model.save(path)
    before = path.read_bytes()
    in_use()
    with pytest.raises(PermissionError, match=re.escape(REMEDY)):
        model.save(path)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["model"]


def test_a_ledger_is_made(tmp_path, monkeypatch):
    made, make = [], ledger_file.make

    def make_there(path, terms):
        with monkeypatch.context() as patch:
            patch.setattr(_files, "POSIX", False)
            make(path, terms)
        made.append(path)

    monkeypatch.setattr(ledger_file, "make", make_there)
    ledger = PrivacyLedger(tmp_path / "ledger", PrivacyBudget(4.0, 1e-5))
    DPItemMeans(PrivacyBudget(1.0, 1e-6, ledger=ledger)).fit(X)
    assert made == [os.path.realpath(tmp_path / "ledger")]
    assert len(ledger.report().entries) == 1
