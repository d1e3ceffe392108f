"""Peak memory in benchmarks: a size where the system says one, words where it does not."""

import ast
import importlib.util
import math
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"
POSIX_ONLY = {"fcntl", "grp", "pwd", "resource", "termios"}


def memory(monkeypatch, *missing):
    """Return the module, imported where some modules are missing."""
    for name in missing:
        monkeypatch.setitem(sys.modules, name, None)
    spec = importlib.util.spec_from_file_location("benchmark_memory", BENCHMARKS / "memory.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_sizes_where_the_system_knows_them(monkeypatch):
    pytest.importorskip("resource")
    found = memory(monkeypatch)
    before = found.peak_gib()
    assert 0.01 < before < 1000.0
    block = bytearray(int(2**30 * before) + 2**25)  # larger than all there was
    assert found.peak_gib() > before + 2**-6
    del block
    monkeypatch.setattr(sys, "platform", "darwin")  # which counts bytes
    assert found.peak_gib() < before


def test_words_where_it_does_not(monkeypatch):
    found = memory(monkeypatch, "resource")
    assert math.isnan(found.peak_gib())
    assert found.shown_size(found.peak_gib()) == "not measured"
    assert found.shown_size(1.234, unit=" GiB") == "1.23 GiB"
    assert found.verdict(1.0, 2.0, math.nan, 3.0) == "met in time, memory not measured"
    assert found.verdict(3.0, 2.0, math.nan, 3.0) == "MISSED"
    assert found.verdict(1.0, 2.0, 4.0, 3.0) == "MISSED"
    assert found.verdict(1.0, 2.0, 2.9, 3.0) == "met"
    monkeypatch.setattr(found, "Path", lambda name: Path(name + "-none"))
    assert math.isnan(found.own_mb("VmRSS"))


def test_no_benchmark_needs_posix_to_be_imported():
    importing = {}
    for path in BENCHMARKS.glob("*.py"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:  # not in functions or `try`
            names = [alias.name for alias in getattr(node, "names", [])]
            if isinstance(node, ast.Import) and POSIX_ONLY & {*names}:
                importing[path.name] = names
    assert importing == {}
