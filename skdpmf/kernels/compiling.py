"""What a process says when it compiles, and what else happens meanwhile."""

import gc
import logging
import warnings
from functools import cache
from typing import Any

from numba.core import event


@cache
def announce() -> None:
    """Listen to numba, once per process."""
    event.register("numba:compile", _Announcer())


@cache
def warn_of_folder() -> None:
    """Say once per process that compiled code is not kept."""
    warnings.warn(
        "compiled code cannot be kept, as no folder for it can be written: each process "
        "compiles anew. Set NUMBA_CACHE_DIR to a folder that can be written.",
        RuntimeWarning,
        stacklevel=3,
    )


@cache
def _say() -> None:
    words = "compiling for this machine, once: this takes up to half a minute"
    logging.getLogger("skdpmf").warning(words)


class _Announcer(event.Listener):
    """Says once that something is compiled, as it takes seconds.

    No garbage is collected meanwhile: each search of all objects takes a sixth of a second.
    """

    def __init__(self) -> None:
        self._collected: list[bool] = []  # before each compilation under way

    def on_start(self, event: Any) -> None:
        """Collect no garbage."""
        if event.data["dispatcher"].py_func.__module__.startswith("skdpmf."):
            _say()
        self._collected.append(gc.isenabled())
        gc.disable()

    def on_end(self, event: Any) -> None:
        """Collect garbage again if it was collected before."""
        if self._collected.pop():
            gc.enable()
