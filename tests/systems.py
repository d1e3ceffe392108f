"""Systems that tests need."""

import os

import pytest

needs_posix = pytest.mark.skipif(
    os.name != "posix", reason="needs pipes, links, modes and signals as POSIX has them"
)
