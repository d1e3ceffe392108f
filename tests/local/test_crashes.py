"""Devices and an aggregator in processes of their own, over HTTP, with two crashes."""

import pytest

from tests.local.devices_over_http import EPSILON, outcome


@pytest.mark.slow
def test_two_crashes_lose_and_double_nothing(capfd):
    found = outcome(n_devices=90, n_processes=2)
    assert found["crashes"] == 2
    assert found["n_sent"] == found["n_counted"] == 90
    assert found["model"] == found["model without crashes"]
    assert found["largest spend"] == EPSILON
    assert found["refusals"] == 90  # of another server's announcement
    # the batch that was saved and not acknowledged
    assert found["refused"].keys() == {"duplicate"}
    assert 0 < found["refused"]["duplicate"] < 100
    assert capfd.readouterr() == ("", "")
