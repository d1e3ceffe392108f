"""Parquet ratings that are not as they were written, or that another program wrote."""

import json
import os
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings

from skdpmf.data import ParquetRatings, ratings_folder
from skdpmf.data import parquet_ratings as module
from skdpmf.data.ratings_folder import serialised, signed
from skdpmf.exceptions import RatingStoreError
from tests.systems import needs_posix

from .twins import NAN, SMALL, rating_rows, rows_of

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ratings"


@pytest.fixture
def small(path):
    """Five users in three parts."""
    return ParquetRatings.write(path, SMALL, rows_per_part=2)


def put(file, user, item, rating, rating_type=None, **options):
    """Write a part by hand."""
    file.parent.mkdir(exist_ok=True)
    columns = {
        "user": pa.array(user, pa.int64()),
        "item": pa.array(item, pa.int32()),
        "rating": pa.array(rating, rating_type or pa.float32()),
    }
    pq.write_table(pa.table(columns), file, **options)


def claim(path, **changes):
    """Rewrite a manifest such that its own checksum is right."""
    file = path / "manifest.json"
    manifest = json.loads(file.read_bytes())
    for name, change in changes.items():
        manifest[name] = change(manifest[name])
    file.write_bytes(serialised(signed(manifest)))


def claim_part(path, number, **changes):
    """Rewrite what a manifest says of one part."""
    fields = module._Part._fields

    def change(parts):
        for name, value in changes.items():
            parts[number][fields.index(name)] = value
        return parts

    claim(path, parts=change)


def replace_part(path, number, *columns, **options):
    """Put another file in the place of a part and give its size and checksum in the manifest."""
    file = sorted(path.glob("*.parquet"))[number]
    put(file, *columns, **options)
    size, sha256 = module._size_and_digest(file)
    claim_part(path, number, size=size, sha256=sha256, n_ratings=len(columns[0]))
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
    for action in (lambda: ParquetRatings.open(path), small.check, small.read_rows):
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
    for action in (ratings.verify, lambda: ParquetRatings.open(path).item_ids):
        with pytest.raises(RatingStoreError, match=r"item_ids\.json: its bytes do not match"):
            action()
    file.write_bytes(content[:-1])
    with pytest.raises(RatingStoreError, match=r"item_ids\.json: it has .* bytes; expected"):
        ParquetRatings.open(path)


def test_swapped_parts_are_refused_by_their_footers(path):
    # Two users with the same ratings: files of the same size.
    ratings = ParquetRatings.write(path, np.array([[1.0, 2.0], [1.0, 2.0]]), rows_per_part=1)
    first, second = sorted(path.glob("*.parquet"))
    assert first.stat().st_size == second.stat().st_size
    content = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(content)
    again = ParquetRatings.open(path)
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
            ParquetRatings.open(path)
    file.unlink()
    with pytest.raises(RatingStoreError, match=r"manifest\.json: there is no such file"):
        ParquetRatings.open(path)


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
        ParquetRatings.open(path)


def test_other_versions_bytes_and_paths_are_refused(path, tmp_path, monkeypatch):
    with pytest.raises(FileNotFoundError, match=r"ParquetRatings\.write"):
        ParquetRatings.open(path)
    for version in (1, 3):
        with monkeypatch.context() as patch:
            patch.setattr(ratings_folder, "_VERSION", version)
            ParquetRatings.write(path, SMALL, overwrite=True)
        file = path / "manifest.json"
        file.write_bytes(file.read_bytes())
        with pytest.raises(RatingStoreError, match=rf"version {version};.*Update skdpmf"):
            ParquetRatings.open(path)
    ParquetRatings.write(path, SMALL, overwrite=True)
    file.write_text(json.dumps(json.loads(file.read_bytes()), indent=1))  # the same in meaning
    with pytest.raises(RatingStoreError, match="checksum"):
        ParquetRatings.open(path)


def test_manifest_that_moves_a_border_is_refused_by_the_footers(small, path):
    claim_part(path, 0, n_rows=3)
    claim_part(path, 1, first_row=3, n_rows=1)
    ratings = ParquetRatings.open(path)
    ratings.check(0, 1)  # its users are within its new rows
    for action in (ratings.check, ratings.read_rows, lambda: ratings.check(1, 2)):
        with pytest.raises(RatingStoreError, match=r"000002\.parquet.*outside of its rows, 3 to 3"):
            action()


STRAY = ([2, 2, 4], [0, 1, 2], [1.0, 2.0, 3.0])  # the last user has ratings in the third part too


def test_user_in_two_parts_is_refused_by_the_footer(small, path):
    file = replace_part(path, 1, *STRAY)
    ratings = ParquetRatings.open(path)
    for action in (ratings.check, ratings.verify, lambda: ratings.read_rows(1, 2)):
        with pytest.raises(RatingStoreError, match="voids the privacy guarantee") as error:
            action()
        assert str(file) in str(error.value)


@pytest.mark.parametrize("user", [4, 1, -1, 2**40])
def test_user_in_two_parts_is_refused_by_the_content(small, path, monkeypatch, user):
    replace_part(path, 1, [2, user, 3], [0, 1, 2], [1.0, 2.0, 3.0])
    ratings = ParquetRatings.open(path)
    monkeypatch.setattr(module, "user_range", lambda *_: (2, 3))  # a footer that lies
    ratings.check(1, 2)
    with pytest.raises(RatingStoreError, match="voids the privacy guarantee"):
        ratings.read_rows(1, 2)


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        (([2, 3], [0, 3], [1.0, 2.0]), {}, "items outside of the columns, 0 to 2"),
        (([2, 3], [0, -1], [1.0, 2.0]), {}, "items outside of the columns"),
        (([2, 3], [0, 1], [1.0, np.inf]), {}, "infinite ratings"),
        (([2, None], [0, 1], [1.0, 2.0]), {}, "without user or item"),
        (([2, 3], [None, 1], [1.0, 2.0]), {}, "without user or item"),
    ],
)
def test_contents_that_are_refused(small, path, columns, options, message):
    file = replace_part(path, 1, *columns, **options)
    ratings = ParquetRatings.open(path)
    for action in (ratings.verify, lambda: ratings.read_rows(1, 2)):
        with pytest.raises(RatingStoreError, match=message) as error:
            action()
        assert str(file) in str(error.value)


@pytest.mark.parametrize("action", ["check", "read_rows"])
@pytest.mark.parametrize(("first", "stop"), [(-1, 2), (0, 4), (2, 1)])
def test_ranges_of_no_parts(small, action, first, stop):
    with pytest.raises(IndexError, match=f"first={first}, stop={stop} must be a range of parts"):
        getattr(small, action)(first, stop)


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
import os, sys
from skdpmf.data import ParquetRatings, parquet_ratings
parquet_ratings.write_file = lambda *_: os._exit(9)  # all ratings are on disk, and no manifest
ParquetRatings.write(sys.argv[1], [([1, 2], [3, 4], [5.0, 6.0])], n_items=9)
"""


def test_killed_write_leaves_no_folder_that_opens(path):
    run = subprocess.run([sys.executable, "-c", KILLED, str(path)], check=False, timeout=300)
    assert run.returncode == 9
    assert not path.exists()
    left = [p for p in path.parent.rglob("*") if p.is_dir()]
    assert left
    for folder in left:
        with pytest.raises(RatingStoreError):
            ParquetRatings.open(folder)


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


# Folders that another program has written


def test_adopted_files_are_used_as_they_are(path):
    # Out of order, with a pair rated twice, an unknown rating, a missing one, and other columns.
    put(path / "b.parquet", [5, 3, 3, 3], [1, 2, 0, 2], [4.0, 0.1, 2.0, 0.3], pa.float64())
    put(path / "a.parquet", [0, 1, 1], [2, 0, 1], [NAN, 1.0, None])
    put(path / "empty.parquet", [], [], [])
    (path / "_SUCCESS").touch()
    ratings = ParquetRatings.adopt(path, (7, 3))
    assert (ratings.shape, ratings.nnz, ratings.n_parts) == ((7, 3), 7, 2)
    R = ratings.read_rows()
    assert rows_of(R) == [{}, {0: 1.0}, {}, {0: 2.0, 2: 0.2}, {}, {1: 4.0}, {}]
    again = ParquetRatings.open(path)
    assert again.fingerprint == ratings.fingerprint
    again.verify()
    assert rows_of(again.read_rows(1)) == rows_of(R[3:])
    with pytest.raises(FileExistsError, match=r"manifest\.json exists already"):
        ParquetRatings.adopt(path, (7, 3))


@settings(max_examples=30)
@given(
    entries=st.lists(
        st.tuples(st.integers(0, 7), st.integers(0, 3), st.integers(1, 9)), min_size=1
    ),
    cuts=st.sets(st.integers(1, 7), max_size=3),
    group=st.integers(1, 5),
)
def test_adopted_files_equal_the_twin(entries, cuts, group):
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_PIECE", 3)
        path = Path(folder) / "p"
        for start, stop in zip([0, *sorted(cuts)], [*sorted(cuts), 8], strict=True):
            part = [entry for entry in entries if start <= entry[0] < stop]
            put(path / f"{start}.parquet", *zip(*part, strict=True) if part else ([], [], []),
                rating_type=pa.float64(), row_group_size=group)  # fmt: skip
        ratings = ParquetRatings.adopt(path, (8, 4))
        assert rows_of(ratings.read_rows()) == rating_rows(entries, (8, 4))


@pytest.mark.parametrize("users", [[1, 2], [2, 9], [0, 1, 3]])
def test_files_that_may_share_a_user_are_not_adopted(path, users):
    put(path / "a.parquet", [0, 2], [0, 0], [1.0, 1.0])
    put(path / "b.parquet", users, [1] * len(users), [1.0] * len(users))
    with pytest.raises(RatingStoreError, match="share a range of users") as error:
        ParquetRatings.adopt(path, (10, 3))
    assert str(path / "a.parquet") in str(error.value)
    assert str(path / "b.parquet") in str(error.value)
    assert sorted(os.listdir(path)) == ["a.parquet", "b.parquet"]


@pytest.mark.parametrize(
    ("columns", "options", "shape", "message"),
    [
        (([0, 2], [0, 1], [1.0, 2.0]), {}, (2, 3), "users outside of these rows"),
        (([-1, 1], [0, 1], [1.0, 2.0]), {}, (2, 3), "users outside of these rows"),
        (([0, 1], [0, 3], [1.0, 2.0]), {}, (2, 3), "items outside of the columns, 0 to 2"),
        (([0, 1], [0, 1], [1.0, -np.inf]), {}, (2, 3), "infinite ratings"),
        (([0, 1], [0, 1], [1, 2]), {"rating_type": pa.int32()}, (2, 3), "'rating' is int32"),
        (([0], [0], [1.0]), {"write_statistics": False}, (2, 3), "write statistics"),
        (([], [], []), {}, (2, 3), "hold no ratings"),
    ],
)
def test_files_that_are_not_adopted(path, columns, options, shape, message):
    put(path / "a.parquet", *columns, **options)
    with pytest.raises(RatingStoreError, match=message):
        ParquetRatings.adopt(path, shape)
    assert os.listdir(path) == ["a.parquet"]


def test_files_of_other_kinds_are_not_adopted(path):
    path.mkdir()
    file = path / "a.parquet"
    file.write_text("user,item,rating")
    with pytest.raises(RatingStoreError, match=r"a\.parquet: it is no Parquet file"):
        ParquetRatings.adopt(path, (2, 2))
    pd.DataFrame({"user": ["a"], "item": [1], "rating": [1.0]}).to_parquet(file)
    with pytest.raises(RatingStoreError, match=r"'user' is .*string; expected int32 or int64"):
        ParquetRatings.adopt(path, (2, 2))
    pd.DataFrame({"user": [1], "rating": [1.0]}).to_parquet(file)
    with pytest.raises(RatingStoreError, match=r"'item' is missing or there twice"):
        ParquetRatings.adopt(path, (2, 2))
