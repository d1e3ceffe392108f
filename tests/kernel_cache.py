"""Compiled kernels that a fresh clone finds again; a pytest plugin (``-p tests.kernel_cache``).

numba keeps a kernel beside its file and asks whether this file has changed: its time of change
(before numba 0.68; its content since), the path where a folder is given, and never the files of
the functions that the kernel calls. With ``SKDPMF_KERNELS=folder`` the kernels of skdpmf stand in
``folder/KEY``, where KEY is made of the content of the package's sources, and of the versions of
Python, numba, llvmlite and numpy. Where nothing has changed, another clone finds them; where any
source has, or with other dependencies, all are compiled anew. POSIX only, for the lock.

Processes that tests start find them too: ``tests/site`` stands on their ``PYTHONPATH``.
"""

import hashlib
import os
import sys
from functools import cache
from pathlib import Path

import llvmlite
import numba
import numpy as np
from numba.core import caching

FOLDER = os.environ.get("SKDPMF_KERNELS")
SITE = str(Path(__file__).resolve().parent / "site")


@cache
def key(package):
    """A digest of the package's sources and of what compiles them."""
    versions = sys.version, numba.__version__, llvmlite.__version__, np.__version__
    digest = hashlib.sha256(repr(versions).encode())
    for path in sorted(package.rglob("*.py")):
        digest.update(repr((path.relative_to(package).as_posix(), path.read_bytes())).encode())
    return digest.hexdigest()[:16]


class Locator(caching._CacheLocator):
    """One folder for all kernels of one state of the package."""

    def __init__(self, function, package):
        self._line = function.__code__.co_firstlineno
        self._stamp = key(package)

    def get_cache_path(self):
        return str(Path(FOLDER, self._stamp))

    def get_source_stamp(self):
        return self._stamp

    def get_disambiguator(self):
        return str(self._line)

    @classmethod
    def from_function(cls, function, path):
        package = next((p for p in Path(path).resolve().parents if p.name == "skdpmf"), None)
        if package is None or not (package / "__init__.py").is_file():
            return None
        locator = cls(function, package)
        locator.ensure_cache_path()
        return locator


def save_alone(index, kernel, data, save=caching.IndexDataCacheFile.save):
    """numba's save, by one process at a time: two would give two kernels one name."""
    import fcntl

    with open(Path(FOLDER, "lock"), "wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        save(index, kernel, data)


if FOLDER:
    try:
        Path(FOLDER).mkdir(parents=True, exist_ok=True)
        Path(FOLDER, "lock").touch()
    except OSError:  # a home that cannot be written: kernels stay beside their files
        FOLDER = None
if FOLDER and caching.IndexDataCacheFile.save.__module__ == caching.__name__:  # not done before
    caching.IndexDataCacheFile.save = save_alone
    caching.CacheImpl._locator_classes = [Locator, *caching.CacheImpl._locator_classes]
if FOLDER:
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    if SITE not in paths:
        os.environ["PYTHONPATH"] = os.pathsep.join([SITE, *paths])
