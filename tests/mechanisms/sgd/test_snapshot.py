"""A snapshot comes back as it was saved, or is refused; a crash leaves the last one."""

import io
import os
from pathlib import Path

import numpy as np
import pytest

from skdpmf.mechanisms.sgd.cache_sgd import Snapshot

PROGRESS = {"learning_rate": 0.1 + 0.2, "losses": [1 / 3, 1e-300], "done": 7, "squares": 0.1}


def arrays(seed=0):
    rng = np.random.default_rng(seed)
    return {
        "U": rng.normal(size=(5, 3)).astype(np.float32),
        "V": rng.normal(size=(4, 3)).astype(np.float32)[:, ::-1],
        "b": np.array([0.0, -0.0, np.nan, np.inf, 1e-45], np.float32),
    }


def zeros():
    return {name: np.zeros_like(array) for name, array in arrays().items()}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "fit.snapshot"


@pytest.mark.parametrize("kind", [str, Path])
def test_everything_comes_back_bit_for_bit(kind, path):
    Snapshot(kind(path), "this").save(PROGRESS, arrays())
    found = zeros()
    views = dict(found)
    assert Snapshot(kind(path), "this").load(found) == PROGRESS
    for name, array in arrays().items():
        assert found[name] is views[name]  # filled, not replaced
        assert found[name].tobytes() == array.tobytes()


@pytest.mark.parametrize(
    ("purpose", "change"),
    [
        ("that", {}),
        ("this", {"U": np.zeros((6, 3), np.float32)}),
        ("this", {"b": np.zeros((5, 1), np.float32)}),
    ],
)
def test_another_fit_is_refused(purpose, change, path):
    Snapshot(path, "this").save(PROGRESS, arrays())
    found = zeros() | change
    with pytest.raises(ValueError, match="a snapshot of another fit") as error:
        Snapshot(path, purpose).load(found)
    assert f"snapshots.path={os.fspath(path)!r}" in str(error.value)
    assert "delete the file" in str(error.value)
    assert not any(array.any() for array in found.values())


def saved(**content):
    file = io.BytesIO()
    np.savez(file, **content)
    return file.getvalue()


HEAD = np.array('{"purpose": "this"}')
WHOLE = saved(head=HEAD, **arrays())
AT = WHOLE.index(arrays()["U"].tobytes())
BROKEN = {
    "no numpy file": b"precious notes, no snapshot",
    "empty": b"",
    "half": WHOLE[: len(WHOLE) // 2],
    "altered": WHOLE[:AT] + bytes([WHOLE[AT] ^ 1]) + WHOLE[AT + 1 :],
    "lacks arrays": saved(head=HEAD, U=arrays()["U"]),
    "pickled": saved(head=np.array({"purpose": "this"}, object), **arrays()),
    "single array": b"\x93NUMPY" + saved(U=arrays()["U"]).partition(b"\x93NUMPY")[2],
    "head is a list": saved(head=np.array("[1, 2]"), **arrays()),
    "folder": None,
}


@pytest.mark.parametrize("content", BROKEN.values(), ids=BROKEN)
def test_what_is_no_snapshot_is_refused_and_stays(content, path):
    path.mkdir() if content is None else path.write_bytes(content)
    found = zeros()
    with pytest.raises(ValueError, match="holds no snapshot that can be read") as error:
        Snapshot(path, "this").load(found)
    assert f"snapshots.path={os.fspath(path)!r}" in str(error.value)
    assert "delete the file to start from the beginning" in str(error.value)
    assert not any(array.any() for array in found.values())
    assert content is None or path.read_bytes() == content


class Trap:
    """Touches a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def test_nothing_is_unpickled(path, tmp_path):
    """The file may be from a stranger."""
    sprung = tmp_path / "sprung"
    for name in ("head", "U"):
        traps = {name: np.array([Trap(sprung)], object)}
        path.write_bytes(saved(**{"head": HEAD, **arrays()} | traps))
        with pytest.raises(ValueError, match="holds no snapshot that can be read"):
            Snapshot(path, "this").load(zeros())
        assert not sprung.exists()


def test_it_is_on_disk_before_it_gets_the_name(path, monkeypatch):
    order = []
    fsync, replace = os.fsync, Path.replace
    monkeypatch.setattr(os, "fsync", lambda fd: (order.append("fsync"), fsync(fd))[1])
    monkeypatch.setattr(Path, "replace", lambda a, b: (order.append("replace"), replace(a, b))[1])
    Snapshot(path, "this").save(PROGRESS, arrays())
    assert order == ["fsync", "replace"]
