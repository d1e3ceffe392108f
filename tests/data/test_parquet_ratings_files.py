"""Parquet ratings that are not as they were written."""

import json
import os
import stat
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

from skdpmf.data import ParquetRatings, ratings_folder
from skdpmf.data import parquet_ratings as module
from skdpmf.data.ratings_folder import serialised, signed
from skdpmf.exceptions import RatingStoreError
from tests.systems import needs_posix

from .twins import SMALL

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


def claim_part(path, number, **changes):
    """Rewrite what a manifest says of one part, such that its own checksum is right."""
    file = path / "manifest.json"
    manifest = json.loads(file.read_bytes())
    for name, value in changes.items():
        manifest["parts"][number][module._Part._fields.index(name)] = value
    file.write_bytes(serialised(signed(manifest)))


def replace_part(path, number, user, item, rating):
    """Put another file in the place of a part and give its size and checksum in the manifest."""
    file = sorted(path.glob("*.parquet"))[number]
    columns = {
        "user": pa.array(user, pa.int64()),
        "item": pa.array(item, pa.int32()),
        "rating": pa.array(rating, pa.float32()),
    }
    pq.write_table(pa.table(columns), file)
    size, sha256 = module._size_and_digest(file)
    claim_part(path, number, size=size, sha256=sha256, n_ratings=len(user))
    return file


# Reading: what is not as it was written


@pytest.mark.parametrize("change", ["shorter", "longer", "empty", "missing", "folder"])
@pytest.mark.parametrize("number", [0, 2])
def test_files_of_another_size_are_refused_at_once(small, path, number, change):
    file = sorted(path.glob("*.parquet"))[number]
    content = file.read_bytes()
    file.unlink()
    if change == "folder":
        file.mkdir()
    elif change != "missing":
        file.write_bytes({"shorter": content[:-1], "longer": content + b"\0", "empty": b""}[change])
    for action in (lambda: ParquetRatings(path), small.check, small.read_rows):
        with pytest.raises(RatingStoreError, match=f"{file.name}.*write them anew"):
            action()


def test_every_altered_byte_is_found(small, path):
    file = path / "rows-000000000002.parquet"
    content = file.read_bytes()
    for at in range(len(content)):
        file.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
        for action in (small.verify, lambda: small.read_rows(1, 2)):
            with pytest.raises(RatingStoreError, match=f"{file.name}: its bytes do not match"):
                action()
    file.write_bytes(content)
    small.verify()
    assert small.read_rows(0, 1).nnz == 2  # a part by itself


def test_altered_labels_are_found(path):
    ratings = ParquetRatings.write(path, pd.DataFrame(SMALL, columns=["a", "b", "c"]))
    ratings.verify()
    file = path / "item_ids.json"
    content = file.read_bytes()
    file.write_bytes(content.replace(b"a", b"z"))
    for action in (ratings.verify, lambda: ParquetRatings(path).item_ids):
        with pytest.raises(RatingStoreError, match=r"item_ids\.json: its bytes do not match"):
            action()
    file.write_bytes(content[:-1])
    with pytest.raises(RatingStoreError, match=r"item_ids\.json: it has .* bytes; expected"):
        ParquetRatings(path)


def test_swapped_parts_are_refused_by_their_footers(path):
    # Two users with the same ratings: files of the same size.
    ratings = ParquetRatings.write(path, np.array([[1.0, 2.0], [1.0, 2.0]]), rows_per_part=1)
    first, second = sorted(path.glob("*.parquet"))
    assert first.stat().st_size == second.stat().st_size
    content = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(content)
    again = ParquetRatings(path)
    with pytest.raises(RatingStoreError, match=r"users outside of its rows, 0 to 0, who may"):
        again.check()
    again.check(0, 0)
    with pytest.raises(RatingStoreError, match="do not match their checksum"):
        ratings.read_rows(1)


def test_manifests_that_were_altered(small, path):
    file = path / "manifest.json"
    content = file.read_bytes()
    for at in range(len(content)):
        file.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
        with pytest.raises(RatingStoreError, match=r"manifest\.json"):
            ParquetRatings(path)
    file.unlink()
    with pytest.raises(RatingStoreError, match=r"manifest\.json: there is no such file"):
        ParquetRatings(path)


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"\xff\xfe\x00", b"{}", b"[]", b"17", b"null", b'"text"', b"[" * 100_000),
        b'{"format": "parquet", "version": 1}',
        b'{"format": "skdpmf.ParquetRatings"}',
        b'{"format": "skdpmf.ParquetRatings", "version": 2}',
    ],
    ids=lambda content: repr(content[:40]),
)
def test_manifests_that_are_none(small, path, content):
    (path / "manifest.json").write_bytes(content)
    with pytest.raises(RatingStoreError, match=r"manifest\.json"):
        ParquetRatings(path)


def test_other_versions_bytes_and_paths_are_refused(path, tmp_path, monkeypatch):
    with pytest.raises(FileNotFoundError, match=r"ParquetRatings\.write"):
        ParquetRatings(path)
    for version in (1, 3):
        with monkeypatch.context() as patch:
            patch.setattr(ratings_folder, "_VERSION", version)
            ParquetRatings.write(path, SMALL, overwrite=True)
        file = path / "manifest.json"
        file.write_bytes(file.read_bytes())
        with pytest.raises(RatingStoreError, match=rf"version {version};.*Update skdpmf"):
            ParquetRatings(path)
    ParquetRatings.write(path, SMALL, overwrite=True)
    file.write_text(json.dumps(json.loads(file.read_bytes()), indent=1))  # the same in meaning
    with pytest.raises(RatingStoreError, match="checksum"):
        ParquetRatings(path)


def test_manifest_that_moves_a_border_is_refused_by_the_footers(small, path):
    claim_part(path, 0, n_rows=3)
    claim_part(path, 1, first_row=3, n_rows=1)
    ratings = ParquetRatings(path)
    ratings.check(0, 1)  # its users are within its new rows
    for action in (ratings.check, lambda: ratings.check(1, 2)):
        with pytest.raises(RatingStoreError, match=r"000002\.parquet.*outside of its rows, 3 to 3"):
            action()
    with pytest.raises(RatingStoreError, match="it has 1 row groups; expected 2"):
        ratings.read_rows()


STRAY = ([2, 2, 4], [0, 1, 2], [1.0, 2.0, 3.0])  # the last user has ratings in the third part too


def test_user_in_two_parts_is_refused_by_the_footer(small, path):
    file = replace_part(path, 1, *STRAY)
    ratings = ParquetRatings(path)
    for action in (ratings.check, ratings.verify, lambda: ratings.read_rows(1, 2)):
        with pytest.raises(RatingStoreError, match="voids the privacy guarantee") as error:
            action()
        assert str(file) in str(error.value)


@pytest.mark.parametrize("user", [4, 1, -1, 2**40])
def test_user_in_two_parts_is_refused_by_the_content(small, path, monkeypatch, user):
    replace_part(path, 1, [2, user, 3], [0, 1, 2], [1.0, 2.0, 3.0])
    ratings = ParquetRatings(path)
    monkeypatch.setattr(module, "user_range", lambda *_: (2, 3))  # a footer that lies
    ratings.check(1, 2)
    with pytest.raises(RatingStoreError, match="voids the privacy guarantee"):
        ratings.read_rows(1, 2)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (([2, 3], [0, 3], [1.0, 2.0]), "items outside of the columns, 0 to 2"),
        (([2, 3], [0, -1], [1.0, 2.0]), "items outside of the columns"),
        (([2, 3], [0, 1], [1.0, np.inf]), "infinite ratings"),
        (([2, None], [0, 1], [1.0, 2.0]), "without user or item"),
        (([2, 3], [None, 1], [1.0, 2.0]), "without user or item"),
    ],
)
def test_contents_that_are_refused(small, path, columns, message):
    file = replace_part(path, 1, *columns)
    ratings = ParquetRatings(path)
    for action in (ratings.verify, lambda: ratings.read_rows(1, 2)):
        with pytest.raises(RatingStoreError, match=message) as error:
            action()
        assert str(file) in str(error.value)


# Changes while the folder is in use, right checksums of wrong content, and processes that end


def test_files_that_change_between_two_looks_at_their_row_groups(small, path):
    """The checksum of a file that has not changed is compared once; nothing is mapped."""
    file, seen = path / "rows-000000000002.parquet", {}
    content = file.read_bytes()
    groups = small._row_groups(1, seen)
    assert next(groups)[0] == 2
    groups.close()
    os.utime(file, ns=(0, 0))
    seen[file.name] = file.stat().st_ino, 0
    assert len(list(small._row_groups(1, seen))) == 1
    file.write_bytes(content[:-9] + b"123456789")
    with pytest.raises(RatingStoreError, match="do not match their checksum"):
        list(small._row_groups(1, seen))
    os.utime(file, ns=(0, 0))  # and even if it seems unchanged, it is an error
    with pytest.raises(RatingStoreError, match="no Parquet file that can be read"):
        list(small._row_groups(1, seen))
    file.write_bytes(content[:20])
    with pytest.raises(RatingStoreError, match=f"{file.name}: it has 20 bytes; expected"):
        list(small._row_groups(1, seen))


def test_a_file_that_is_cut_while_it_is_read_does_no_harm(small, path):
    groups = small._row_groups(0, {})
    file = path / "rows-000000000000.parquet"
    next(groups)  # its bytes are in memory from here on
    os.truncate(file, 4)
    assert list(groups) == []
    with pytest.raises(RatingStoreError, match="it has 4 bytes; expected"):
        next(small._row_groups(0, {}))


def test_forged_ratings_are_refused(tmp_path):
    """In a process of its own, so that a crash is a failure; right checksums, wrong content."""
    command = [sys.executable, "-m", "tests.data.forged_ratings", str(tmp_path)]
    run = subprocess.run(command, check=False, timeout=500, capture_output=True, text=True)
    cases = run.stdout.splitlines()
    assert [case for case in cases if not case.endswith(" -> refused")] == []
    assert run.returncode == 0, run.stderr[-2000:]
    assert len(cases) > 300


KILLED = """
import os, sys, numpy
from skdpmf.data import ParquetRatings, parquet_ratings
parquet_ratings.store.write_file = lambda *_: os._exit(9)  # no manifest
ParquetRatings.write(sys.argv[1], numpy.ones((1, 2)))
"""


def test_killed_write_leaves_no_folder_that_opens(path):
    run = subprocess.run([sys.executable, "-c", KILLED, str(path)], check=False, timeout=300)
    assert run.returncode == 9
    assert not path.exists()
    left = [p for p in path.parent.rglob("*") if p.is_dir()]
    assert left
    for folder in left:
        with pytest.raises(RatingStoreError):
            ParquetRatings(folder)


@needs_posix
def test_ratings_are_their_owners_alone(path):
    """And who may only read them reads them."""
    ratings = ParquetRatings.write(path, pd.DataFrame(SMALL, columns=["a", "b", "c"]))
    assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert {stat.S_IMODE(file.stat().st_mode) for file in path.iterdir()} == {0o600}
    for file in path.iterdir():
        file.chmod(0o400)
    path.chmod(0o500)
    try:
        ratings.verify()
    finally:
        path.chmod(0o700)
