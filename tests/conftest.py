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
