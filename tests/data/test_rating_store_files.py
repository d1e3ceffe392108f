"""The folder of a rating store: complete or absent, whole or refused, and read by anybody."""

import gc
import json
import os
import pickle
import stat
import subprocess
import sys
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import sparse

from skdpmf.data import ParquetRatings, RatingStore, _store_chunks, _store_files
from skdpmf.exceptions import RatingStoreError
from tests.systems import needs_posix

NAN = float("nan")
SMALL = [[5.0, NAN, 0.0], [NAN, NAN, NAN], [1.0, 2.5, NAN], [NAN, 4.0, -3.0], [NAN, 1.0, NAN]]
FIELDS = ("items.bin", "indptr.bin", "users.bin", "ratings.bin")
FILES = (*FIELDS, "user_ids.i8", "item_ids.json", "manifest.json")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ratings"


def labelled(path, **options):
    """Write a store that has all kinds of files."""
    users, items = np.nonzero(~np.isnan(SMALL))
    columns = (users + 10, np.array(["a", "b", "c"])[items], np.array(SMALL)[users, items])
    return RatingStore.from_chunks(path, [columns], block_rows=2, **options)


def many(n_users=200, n_items=50, seed=0):
    rng = np.random.default_rng(seed)
    known = rng.random((n_users, n_items)) < 0.3
    return sparse.csr_array(np.where(known, rng.integers(1, 6, known.shape), 0).astype(float))


# Where it is written


def test_existing_paths_are_kept_unless_overwritten(path):
    first = labelled(path)
    with pytest.raises(FileExistsError, match="overwrite=True"):
        RatingStore.from_matrix(path, [[1.0]])
    assert first.to_matrix().shape == (4, 3)
    pickled = pickle.dumps(first)
    frame = pd.DataFrame([[2.0, 3.0]], columns=["a", "b"])
    second = RatingStore.from_matrix(path, frame, overwrite=True)
    assert second.to_matrix().toarray().tolist() == [[2.0, 3.0]]
    assert pickle.loads(pickled).fingerprint == second.fingerprint
    # Who has opened the old one goes on with the old one.
    first.verify()
    assert first.to_matrix().shape == (4, 3)
    assert first.user_ids.tolist() == [10, 12, 13, 14]
    assert os.listdir(path.parent) == ["ratings"]


def test_broken_stores_can_be_overwritten(path):
    RatingStore.from_matrix(path, SMALL)
    (path / "manifest.json").unlink()
    assert RatingStore.from_matrix(path, [[1.0]], overwrite=True).nnz == 1


def test_overwriting_never_deletes_what_is_no_store(path):
    path.write_text("mine")
    with pytest.raises(FileExistsError, match="it is a file"):
        RatingStore.from_matrix(path, SMALL, overwrite=True)
    assert path.read_text() == "mine"
    path.unlink()
    RatingStore.from_matrix(path, SMALL)
    (path / "thesis.tex").write_text("mine")
    with pytest.raises(FileExistsError, match=r"thesis\.tex"):
        RatingStore.from_matrix(path, [[1.0]], overwrite=True)
    assert RatingStore.open(path).nnz == 7
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        RatingStore.from_matrix(path.parent / "no" / "ratings", SMALL)


class Interruption(BaseException):
    """Neither an Exception nor anything else that somebody may catch on the way."""


@pytest.mark.parametrize("existing", [False, True])
def test_interrupted_write_leaves_nothing(path, monkeypatch, existing):
    monkeypatch.setattr(_store_chunks, "_PIECE", 10)
    if existing:
        RatingStore.from_matrix(path, SMALL)
    seen = []

    def chunks():
        yield np.arange(100), np.zeros(100, int), np.ones(100)
        seen.extend(p.name for p in path.parent.rglob("*.bin") if p.parent != path)
        raise Interruption

    with pytest.raises(Interruption):
        RatingStore.from_chunks(path, chunks(), overwrite=True)
    assert seen  # something had been written by then
    assert os.listdir(path.parent) == (["ratings"] if existing else [])
    if existing:
        assert RatingStore.open(path).nnz == 7


def test_failed_exchange_brings_the_old_store_back(path, monkeypatch):
    RatingStore.from_matrix(path, SMALL)
    rename = Path.rename

    def failing(self, target):
        if self.name == "store":
            raise OSError("no")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", failing)
    with pytest.raises(OSError, match="no"):
        RatingStore.from_matrix(path, [[1.0]], overwrite=True)
    assert os.listdir(path.parent) == ["ratings"]
    assert RatingStore.open(path).nnz == 7


KILLED = """
import os, sys
from skdpmf.data import RatingStore
def chunks():
    yield [1, 2], [3, 4], [5.0, 6.0]
def die(*_):
    os._exit(9)
from skdpmf.data import _store_files
_store_files.Writer._write = die  # now all ratings are on disk, and no manifest
RatingStore.from_chunks(sys.argv[1], chunks(), n_items=9)
"""


def test_killed_write_leaves_no_store_that_opens(path):
    run = subprocess.run([sys.executable, "-c", KILLED, str(path)], check=False, timeout=300)
    assert run.returncode == 9
    assert not path.exists()
    left = [p for p in path.parent.rglob("*") if p.is_dir()]
    assert left
    for folder in left:
        with pytest.raises(RatingStoreError):
            RatingStore.open(folder)


@needs_posix
@pytest.mark.parametrize("kind", ["store", "parquet"])
def test_ratings_are_their_owners_alone(path, kind):
    if kind == "parquet":
        pytest.importorskip("pyarrow")
        ParquetRatings.write(path, labelled(path.parent / "source"))
    else:
        labelled(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert {stat.S_IMODE(file.stat().st_mode) for file in path.iterdir()} == {0o600}
    assert len(list(path.iterdir())) >= 4


@pytest.mark.parametrize("kind", ["store", "parquet"])
def test_forged_stores_are_refused(tmp_path, kind):
    """In a process of its own, so that a crash is a failure; right checksums, wrong content."""
    if kind == "parquet":
        pytest.importorskip("pyarrow")
    command = [sys.executable, "-m", "tests.data.forged_stores", str(tmp_path), kind]
    run = subprocess.run(command, check=False, timeout=500, capture_output=True, text=True)
    cases = run.stdout.splitlines()
    assert [case for case in cases if not case.endswith(" -> refused")] == []
    assert run.returncode == 0, run.stderr[-2000:]
    assert len(cases) > 300


# A file that is not as it was written is refused


def test_store_consists_of_the_known_files(path):
    labelled(path)
    assert sorted(os.listdir(path)) == sorted(FILES)
    sizes = {name: (path / name).stat().st_size for name in FIELDS}
    # 4 users, as the second row of SMALL has no ratings: 2 blocks of 3 and 2 runs, 7 ratings
    assert sizes == {"items.bin": 20, "indptr.bin": 56, "users.bin": 14, "ratings.bin": 28}


def test_bytes_on_disk_are_little_endian(path):
    RatingStore.from_matrix(path, [[NAN, 1.5], [NAN, 2.0]])
    assert (path / "items.bin").read_bytes() == b"\1\0\0\0"
    assert (path / "indptr.bin").read_bytes() == bytes(8) + b"\2" + bytes(7)
    assert (path / "users.bin").read_bytes() == b"\0\0\1\0"
    assert (path / "ratings.bin").read_bytes() == b"\0\0\xc0\x3f\0\0\0\x40"


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("change", ["shorter", "longer", "empty", "missing", "folder"])
def test_files_of_another_size_are_refused_at_once(path, name, change):
    labelled(path)
    file = path / name
    content = file.read_bytes()
    file.unlink()
    if change == "folder":
        file.mkdir()
    elif change != "missing":
        file.write_bytes({"shorter": content[:-1], "longer": content + b"\0", "empty": b""}[change])
    with pytest.raises(RatingStoreError, match="anew") as error:
        RatingStore.open(path)
    assert str(file) in str(error.value)
    if name != "manifest.json" and change == "shorter":
        assert f"has {len(content) - 1} bytes; expected {len(content)}." in str(error.value)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("bit", [1, 32, 128])
def test_every_altered_byte_is_found(path, name, bit):
    whole = labelled(path)
    whole.verify()
    file = path / name
    content = file.read_bytes()
    for at in range(len(content)):
        file.write_bytes(content[:at] + bytes([content[at] ^ bit]) + content[at + 1 :])
        if name == "manifest.json":
            with pytest.raises(RatingStoreError) as error:
                RatingStore.open(path)
        else:
            store = RatingStore.open(path)
            with pytest.raises(RatingStoreError) as error:
                store.verify()
            if name in FIELDS:
                with pytest.raises(RatingStoreError, match="block"):
                    list(store.blocks())
            else:
                list(store.blocks())
                with pytest.raises(RatingStoreError):
                    getattr(store, name.split(".")[0])
        assert str(file) in str(error.value)
    if name != "manifest.json":
        with pytest.raises(RatingStoreError):
            whole.verify()  # also of what has been read before
    file.write_bytes(content)
    whole.verify()


def test_only_the_altered_block_is_refused(path):
    X = many()
    RatingStore.from_matrix(path, X, block_rows=64)
    file = path / "ratings.bin"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    store = RatingStore.open(path)
    assert [store.read_block(k).start for k in range(3)] == [0, 64, 128]
    for _ in range(2):
        with pytest.raises(RatingStoreError, match=r"ratings\.bin: its bytes for block 3 "):
            store.read_block(3)


def test_blocks_in_each_others_place_are_refused(path):
    # Same sizes and the same bytes, in another order.
    RatingStore.from_matrix(path, [[1.0], [2.0]], block_rows=1)
    (path / "ratings.bin").write_bytes(np.array([2.0, 1.0], "<f4").tobytes())
    with pytest.raises(RatingStoreError, match="block 0"):
        RatingStore.open(path).to_matrix()


@pytest.mark.parametrize("name", FIELDS)
def test_files_cut_while_open_are_refused(path, name):
    store = labelled(path)
    list(store.blocks())
    os.truncate(path / name, 1)
    with pytest.raises(RatingStoreError, match=f"{name}: it ends at byte 1;"):
        list(store.blocks())


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\xfe\x00",
        b"{}",
        b"[]",
        b"17",
        b"null",
        b'"skdpmf.RatingStore"',
        b"[" * 100_000,
        b'{"format": "parquet", "version": 1}',
        b'{"format": "skdpmf.RatingStore"}',
        b'{"format": "skdpmf.RatingStore", "version": "1"}',
        b'{"format": "skdpmf.RatingStore", "version": 1}',
        b'{"format": "skdpmf.RatingStore", "version": 0}',
    ],
)
def test_foreign_manifests_are_refused(path, content):
    labelled(path)
    (path / "manifest.json").write_bytes(content)
    with pytest.raises(RatingStoreError, match=r"manifest\.json"):
        RatingStore.open(path)


def test_manifest_of_the_same_meaning_in_other_bytes_is_refused(path):
    labelled(path)
    file = path / "manifest.json"
    file.write_text(json.dumps(json.loads(file.read_bytes()), indent=1))
    with pytest.raises(RatingStoreError, match="checksum"):
        RatingStore.open(path)


def test_newer_versions_are_refused(path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(_store_files, "_VERSION", 2)
        labelled(path).verify()
    with pytest.raises(RatingStoreError, match=r"version 2.*Update skdpmf"):
        RatingStore.open(path)


def test_paths_that_hold_no_store(path, tmp_path):
    with pytest.raises(FileNotFoundError, match="does not exist"):
        RatingStore.open(path)
    with pytest.raises(RatingStoreError, match=r"manifest\.json: there is no such file"):
        RatingStore.open(tmp_path)
    path.write_text("x")
    with pytest.raises(RatingStoreError, match=r"manifest\.json"):
        RatingStore.open(path)


# Reading


def test_fingerprint_identifies_the_content(path, tmp_path):
    store = RatingStore.from_matrix(path, SMALL, block_rows=2)
    assert RatingStore.open(path).fingerprint == store.fingerprint
    assert len(bytes.fromhex(store.fingerprint)) == 32
    other = np.array(SMALL)
    other[0, 0] = 4.0
    moved = np.array(SMALL)[:, [1, 0, 2]]
    for k, (X, block_rows, same) in enumerate(
        [(SMALL, 2, True), (SMALL, 3, False), (other, 2, False), (moved, 2, False)]
    ):
        again = RatingStore.from_matrix(tmp_path / str(k), X, block_rows=block_rows)
        assert (again.fingerprint == store.fingerprint) is same


def test_arrays_belong_to_the_caller(path):
    store = RatingStore.from_matrix(path, many(), block_rows=64)
    first = [np.copy(array) for array in store.read_block(1)[2:]]
    for array in store.read_block(1)[2:]:
        array[...] = 77
    for array, again in zip(first, store.read_block(1)[2:], strict=True):
        assert np.array_equal(array, again)
    store.verify()


def test_labels_cannot_be_written_to(path):
    store = labelled(path)
    for ids in (store.user_ids, store.item_ids):
        with pytest.raises(ValueError, match="read-only"):
            ids[0] = ids[1]


@pytest.mark.parametrize("index", [-1, 2, 10**30])
def test_index_of_no_block(path, index):
    with pytest.raises(IndexError, match=f"index={index} must be .* 0 to 1"):
        labelled(path).read_block(index)
    with pytest.raises(TypeError):
        labelled(path, overwrite=True).read_block(0.0)


@pytest.mark.parametrize(("first", "stop"), [(-1, 1), (0, 3), (1, 0)])
def test_ranges_of_no_blocks(path, first, stop):
    with pytest.raises(IndexError, match=f"first={first}, stop={stop} must be a range of blocks"):
        labelled(path).read_rows(first, stop)


def test_reads_that_return_less_than_asked_for_are_continued(path, monkeypatch):
    X = many()
    store = RatingStore.from_matrix(path, X, block_rows=64)
    preadv = os.preadv
    monkeypatch.setattr(os, "preadv", lambda fd, buffers, at: preadv(fd, [buffers[0][:1000]], at))
    assert (store.to_matrix() != X).nnz == 0


def test_threads_read_one_store(path):
    X = many(400)
    RatingStore.from_matrix(path, X, block_rows=16)
    store = RatingStore.open(path)
    expected = list(RatingStore.open(path).blocks())
    order = np.random.default_rng(0).integers(store.n_blocks, size=600).tolist()
    with ThreadPoolExecutor(8) as pool:
        for index, block in zip(order, pool.map(store.read_block, order), strict=True):
            assert block[:2] == expected[index][:2]
            for array, again in zip(block[2:], expected[index][2:], strict=True):
                assert np.array_equal(array, again)


def test_pickles_as_its_path(path, monkeypatch):
    monkeypatch.chdir(path.parent)
    labelled("ratings")
    store = RatingStore.open("ratings")
    assert store.path == path
    pickled = pickle.dumps(store)
    assert len(pickled) < 500
    monkeypatch.chdir("/")
    again = pickle.loads(pickled)
    assert again.fingerprint == store.fingerprint
    assert (again.to_matrix() != store.to_matrix()).nnz == 0
    assert repr(again) == (
        f"<RatingStore: 7 ratings of 4 users for 3 items in 2 blocks at {str(path)!r}>"
    )
    (path / "users.bin").unlink()
    with pytest.raises(RatingStoreError):
        pickle.loads(pickled)


@needs_posix
def test_read_only_folders_open(path):
    labelled(path)
    for file in path.iterdir():
        file.chmod(0o400)
    path.chmod(0o500)
    try:
        RatingStore.open(path).verify()
    finally:
        path.chmod(0o700)


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="needs /proc")
def test_files_close_with_the_store(path):
    labelled(path)
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    store = RatingStore.open(path)
    store.verify()
    assert len(os.listdir("/proc/self/fd")) == before + len(FILES) - 1
    del store
    os.truncate(path / "ratings.bin", 1)
    with pytest.raises(RatingStoreError):
        RatingStore.open(path)
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before


# Memory


def peak_memory(action):
    """Return the largest number of bytes that were allocated at one time while `action` ran."""
    gc.collect()
    tracemalloc.start()
    try:
        action()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_memory_is_bounded_by_blocks_and_pieces(path, monkeypatch):
    monkeypatch.setattr(_store_chunks, "_PIECE", 1 << 12)
    monkeypatch.setattr(_store_chunks, "_BUCKET_ROWS", 64)
    n_users, n_items, n_ratings = 2048, 300, 400_000

    def chunks():
        rng = np.random.default_rng(0)
        for size in [1000] * (n_ratings // 2000) + [n_ratings // 20] * 10:  # small and large
            codes = rng.integers(n_users * n_items, size=size, dtype=np.int32)
            yield codes // n_items, codes % n_items, np.ones(size, np.float32)

    def write():
        RatingStore.from_chunks(path, chunks(), n_items=n_items, block_rows=64)

    write()  # what is imported and cached on the first use is no part of the measurement
    path.rename(path.with_name("first"))
    # Less than a third of all records, at 16 bytes each.
    assert peak_memory(write) < 0.3 * 16 * n_ratings
    store = RatingStore.open(path)
    assert store.nnz > 250_000
    n_stored = sum(file.stat().st_size for file in path.glob("*.bin"))
    assert peak_memory(lambda: [None for _ in store.blocks()]) < 0.15 * n_stored
    assert peak_memory(store.verify) < 0.15 * n_stored
