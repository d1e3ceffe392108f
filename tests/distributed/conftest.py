"""Fixtures of the tests of checkpoints."""

import os

import pytest

from skdpmf.books import ledger_file


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """A kill loses nothing that was written, whether or not it is on the disk."""
    monkeypatch.setattr(ledger_file, "_SYNCHRONOUS", "OFF")
    monkeypatch.setattr(os, "fsync", lambda file: None)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "fit.ckpt"
