"""Settings and fixtures shared by all tests."""

import itertools
import os
import secrets
import signal
from contextlib import contextmanager
from hashlib import shake_256
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from joblib.externals.loky import get_reusable_executor
from sklearn.utils import check_random_state

from skdpmf.books import ledger_file
from skdpmf.kernels.jit_and_threads import Kernel
from skdpmf.privacy.sampler import noise

# No deadlines: the first example of a kernel includes its compilation, and with the JIT off every
# example is slow.
settings.register_profile("dev", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile(
    "ci", settings.get_profile("dev"), derandomize=True, database=None, print_blob=True
)
settings.load_profile("ci" if os.environ.get("CI") else "dev")


class Chance:
    """Keys, secrets and seeds that no test sets, by the name of the test that asks for them.

    A run repeats, so that no commit fails by chance. Processes that tests start draw freely. It
    stands in for `os` where noise takes its keys.
    """

    def __init__(self, draw):
        self.draw, self.names, self.process = draw, None, os.getpid()

    def __getattr__(self, name):
        return getattr(os, name)

    @contextmanager
    def of(self, *name):
        """Draw for what has this name."""
        seeded = check_random_state(None)  # the one of all tests
        before = self.names, seeded.get_state()
        self.names = (f"{self.draw} {name} {i}".encode() for i in itertools.count())
        seeded.seed(int.from_bytes(self.urandom(4)))
        try:
            yield
        finally:
            self.names = before[0]
            seeded.set_state(before[1])

    def urandom(self, size=32):
        """Return the next bytes of the test that runs."""
        if self.names is None or os.getpid() != self.process:
            return os.urandom(size)
        return shake_256(next(self.names)).digest(size)


CHANCE = pytest.StashKey[Chance]()


def pytest_addoption(parser):
    parser.addoption(
        "--tier",
        choices=("first", "rest"),
        default=None,
        help="first: what `make test` runs, without tests marked slow, and one case of each "
        "parametrised test, all where it is marked every_case; rest: all others",
    )
    parser.addoption(
        "--draw",
        type=int,
        default=0,
        help="the keys and seeds that no test sets follow from this number and the test's name: "
        "many numbers measure how often a statistical test raises a false alarm",
    )


def pytest_configure(config):
    chance = config.stash[CHANCE] = noise.os = Chance(config.getoption("--draw"))
    secrets.token_bytes = chance.urandom


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item):
    with item.config.stash[CHANCE].of(item.nodeid):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef, request):
    """Give what tests share the same draws, whichever of them asks first."""
    if fixturedef.scope == "function":
        return (yield)
    with request.config.stash[CHANCE].of(
        fixturedef.baseid, fixturedef.argname, getattr(request, "param_index", 0)
    ):
        return (yield)


def pytest_collection_modifyitems(config, items):
    tier, cases = config.getoption("--tier"), {}
    if tier is None:
        return
    for item in items:
        cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    first = set()
    for own in cases.values():
        if own[0].get_closest_marker("every_case") is None:
            own = [own[len(own) // 2]]
        first |= {item for item in own if item.get_closest_marker("slow") is None}
    chosen = first if tier == "first" else set(items) - first
    config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
    items[:] = [item for item in items if item in chosen]


@pytest.fixture(scope="session", autouse=True)
def compiled_noise():
    """Hundreds of small fits draw sooner by it, with the same bits."""
    source = noise.NoiseSource()
    source.release(np.zeros(1), name="none", sensitivity=1.0, noise_multiplier=1.0, bound=1.0)


@pytest.fixture(scope="session", autouse=True)
def quick_ledgers():
    """No test pulls the plug, and a kill loses nothing that was written, on the disk or not."""
    ledger_file._SYNCHRONOUS = "OFF"


@pytest.fixture(scope="module")
def plain_where_small():
    """Small work takes plain forms, also where the process has compiled ones with the same bits."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Kernel, "_is_at_hand", lambda self: False)
        yield


@pytest.fixture(scope="session")
def ml1m_path() -> Path:
    """Path of ml-1m.parquet, which is never part of the project; skips where it is absent."""
    checkout = Path(__file__).resolve().parents[1]
    folder = Path(os.environ.get("SKDPMF_DATA") or checkout.parent / "shared" / "data")
    path = folder / "ml-1m.parquet"
    if not path.is_file():
        pytest.skip(f"no {path.name} in $SKDPMF_DATA or ../shared/data")
    return path


@pytest.fixture
def ctrl_c():
    """Python's own reaction to SIGINT: a background job of a shell starts with none."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(autouse=True, scope="module")
def fresh_processes():
    """Let no module find joblib's idle workers: one that leaves at that moment is waited for."""
    yield
    get_reusable_executor().shutdown(wait=True)
