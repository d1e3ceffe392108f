"""Settings and fixtures shared by all tests."""

import os
import signal
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# No deadlines: the first example of a kernel includes its compilation, and with the JIT off every
# example is slow.
settings.register_profile("dev", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile(
    "ci", settings.get_profile("dev"), derandomize=True, database=None, print_blob=True
)
settings.load_profile("ci" if os.environ.get("CI") else "dev")


def pytest_addoption(parser):
    parser.addoption(
        "--cases",
        type=int,
        default=None,
        help="run at most so many cases of each parametrised test, evenly spaced; all where it is "
        "marked every_case",
    )
    parser.addoption(
        "--tier",
        choices=("first", "rest"),
        default=None,
        help="first: what `make test` runs, without tests marked slow, and one case of each "
        "parametrised test; rest: all others",
    )


def pytest_collection_modifyitems(config, items):
    tier, most = config.getoption("--tier"), config.getoption("--cases")
    kept = set(items) if most is None else evenly_spaced(items, most)
    if tier is not None:
        first = {item for item in evenly_spaced(items, 1) if not item.get_closest_marker("slow")}
        kept &= first if tier == "first" else set(items) - first
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = [item for item in items if item in kept]


def evenly_spaced(items, most):
    """At most so many cases of each parametrised test; all where it is marked every_case."""
    cases = {}
    for item in items:
        name = item.nodeid.partition("[")[0]
        cases.setdefault(name, []).append(item)
    kept = set()
    for own in cases.values():
        n = len(own)
        if n > most and own[0].get_closest_marker("every_case") is None:
            own = [own[(2 * k + 1) * n // (2 * most)] for k in range(most)]
        kept.update(own)
    return kept


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
