"""Systems that tests need, and the environment of processes that they start."""

import os
import threading
from contextlib import contextmanager

import pytest

needs_posix = pytest.mark.skipif(
    os.name != "posix", reason="needs pipes, links, modes and signals as POSIX has them"
)


def with_path(folder):
    """Return the environment of a process that imports from this folder too."""
    paths = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


@contextmanager
def served(server):
    """Let a server answer from a thread of its own; give its address."""
    thread = threading.Thread(target=server.serve_forever)
    with server:
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/"
        finally:
            server.shutdown()
            thread.join()
