"""Systems that tests need, and the environment of processes that they start."""

import os

import pytest

needs_posix = pytest.mark.skipif(
    os.name != "posix", reason="needs pipes, links, modes and signals as POSIX has them"
)


def with_path(folder):
    """Return the environment of a process that imports from this folder too."""
    paths = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
