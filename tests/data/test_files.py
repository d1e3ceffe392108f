"""Files that take another's place: its mode, what is refused, and a full disk."""

import errno
import os
import stat
from pathlib import Path

import numpy as np
import pytest

from skdpmf import DPItemMeans, PrivacyBudget
from skdpmf.data import ParquetRatings
from skdpmf.data import files as _files
from skdpmf.local import LocalAggregator
from skdpmf.mechanisms.sgd.cache_sgd import Snapshot
from tests.systems import needs_posix

X = np.array([[5.0, 1.0, np.nan], [4.0, np.nan, 3.0]])


def save_model(path):
    DPItemMeans(PrivacyBudget(4.0, 1e-5)).fit(X).save(path)


def save_snapshot(path):
    Snapshot(path, "a test").save({"round": 1}, {"U": np.ones(3)})


def save_aggregator(path):
    LocalAggregator(4, (1, 5), 8.0).save(path)


SAVE = pytest.mark.parametrize("save", [save_model, save_snapshot, save_aggregator])


@needs_posix
@SAVE
def test_what_is_no_regular_file_is_refused(tmp_path, save):
    (tmp_path / "target").write_bytes(b"kept")
    (tmp_path / "link").symlink_to("target")
    (tmp_path / "lost").symlink_to("nowhere")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    before = sorted(os.listdir(tmp_path))
    for name, what in {
        "link": "a symbolic link",
        "lost": "a symbolic link",
        "folder": "no regular file",
        "pipe": "no regular file",
    }.items():
        path = tmp_path / name
        with pytest.raises(FileExistsError, match=f"{name}' is {what}, and only regular files"):
            save(path)
    assert sorted(os.listdir(tmp_path)) == before
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "target").read_bytes() == b"kept"


@needs_posix
@SAVE
@pytest.mark.parametrize("mode", [0o600, 0o640, 0o664])
def test_the_mode_is_kept(tmp_path, save, mode):
    path = tmp_path / "file"
    path.touch()
    path.chmod(mode)
    save(path)
    assert path.stat().st_size > 0
    assert stat.S_IMODE(path.stat().st_mode) == mode


@needs_posix
@pytest.mark.parametrize(
    ("save", "mode"), [(save_model, 0o640), (save_snapshot, 0o600), (save_aggregator, 0o640)]
)
def test_the_mode_of_a_new_file(tmp_path, save, mode):
    """A snapshot holds users' factors; a model and an aggregator hold what is released."""
    before = os.umask(0o027)
    try:
        save(tmp_path / "file")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == mode


def write_parquet(path):
    pytest.importorskip("pyarrow")
    ParquetRatings.write(path, X)


@pytest.mark.parametrize("save", [save_model, save_snapshot, save_aggregator, write_parquet])
def test_a_full_disk_is_an_error_that_names_the_path(tmp_path, save, monkeypatch):
    path = tmp_path / "file"
    if save is not write_parquet:
        path.write_bytes(b"the last one")

    def full(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="make room, or choose a path on another disk") as caught:
        save(path)
    assert caught.value.errno == errno.ENOSPC
    assert caught.value.filename == str(path)
    assert [file.read_bytes() for file in tmp_path.iterdir()] == [b"the last one"] * (
        save is not write_parquet
    )


@needs_posix
def test_a_snapshot_is_not_read_from_a_pipe(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ValueError, match="it is no regular file"):
        Snapshot(Path(tmp_path / "pipe"), "a test").load({"U": np.ones(3)})


def test_a_killed_writers_part_is_no_hindrance(tmp_path):
    """Its name may come again: processes get the numbers of dead ones."""
    path = tmp_path / "file"
    for _ in range(2):
        with _files.replaced_file(path) as file:
            (part,) = tmp_path.glob("*.part")
            file.write(b"whole")
        part.write_bytes(b"half")
    assert path.read_bytes() == b"whole"
