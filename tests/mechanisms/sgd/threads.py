"""What the tests of the workers and of the reader share."""

import os
import signal
import threading
from contextlib import contextmanager

import pytest

from skdpmf.kernels._vectors import set_flush_to_zero

needs_signals = pytest.mark.skipif(
    not hasattr(signal, "pthread_kill"), reason="the system sends no signals to threads"
)


class Planned(Exception):  # noqa: N818
    """Raised by the tests."""


def wait(event) -> None:
    assert event.wait(60), "an event that must happen did not"


def flush_state() -> int:
    """Return the flush bits of this thread."""
    before = set_flush_to_zero(True)
    set_flush_to_zero(before)
    return before


def affinity():
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None


def our_threads():
    """Return the threads of this package; those of joblib's processes end when they like."""
    return {thread for thread in threading.enumerate() if thread.name.startswith("skdpmf")}


@contextmanager
def nothing_left():
    """Check that no thread, pin or floating-point mode outlives the block."""
    before = our_threads(), affinity(), flush_state()
    yield
    assert (our_threads(), affinity(), flush_state()) == before


@contextmanager
def interrupts_of_main():
    """Interrupts of the main thread: `send` returns when the handler has raised one."""

    class Interrupts:
        n_wanted = 0

        def __init__(self):
            self.handled = threading.Semaphore(0)

        def handle(self, *_):
            if self.n_wanted:
                self.n_wanted -= 1
                self.handled.release()
                raise KeyboardInterrupt

        def send(self):
            # Python misses a signal just before a wait until the wait ends, so this sends more.
            # A task waits here: only an interruptible wait lets the test go on.
            self.n_wanted += 1
            for _ in range(600):
                signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
                if self.handled.acquire(timeout=0.1):
                    return
            raise AssertionError("the main thread was not interrupted")

    found = Interrupts()
    before = signal.signal(signal.SIGINT, found.handle)
    try:
        yield found
    finally:
        signal.signal(signal.SIGINT, before)
