"""The loopback example with fewer devices: real processes, two crashes."""

import importlib
import re
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.mark.slow
def test_example_loses_and_doubles_nothing(capfd, monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLES)
    importlib.import_module("local_devices").main(["--devices", "90", "--processes", "2"])
    out, err = capfd.readouterr()
    for line in (
        "90 devices made 90 reports",
        "crashes: 2;",
        "counted once each: True",
        "same model as without crashes: True",
        "largest spend of a device: 4 of 4",
        "refused another server's announcement: 90",
        "recommended on device 0",
    ):
        assert line in out
    # the batch that was saved and not acknowledged
    assert re.search(r"refused by the aggregator: {'duplicate': [1-9][0-9]?}", out)
    assert err == ""
