"""The comparison with recorded statistics: equal code agrees, other code is seen."""

import pytest

from skdpmf.mechanisms.als import pooled as pooled_als
from skdpmf.mechanisms.item_means import residual_rounds as item_residuals
from tests.core import record


def test_two_runs_agree(tmp_path, capsys):
    file = tmp_path / "recorded"
    some = ["means of users", "tasks", "lists of clicks"]
    assert record.main(["record", str(file), *some]) == 0
    assert record.main(["compare", str(file)]) == 0
    assert capsys.readouterr().out == "0 differences\n"


def halved(rows, norm, *, real):
    return 0.5 * real(rows, norm)


@pytest.mark.parametrize("change", ["statistic", "model", "releases", "sensitivity"])
def test_another_version_is_seen(change, tmp_path, capsys, monkeypatch):
    file, name = str(tmp_path / "recorded"), "als pooled, rank 0"
    record.main(["record", file, name])
    real = item_residuals.count_weights
    match = {"statistic": "of values differ", "model": "item_means_ differs"}.get(change, "")
    if change == "statistic":
        monkeypatch.setattr(item_residuals, "count_weights", lambda *a: halved(*a, real=real))
    if change == "model":
        damping = item_residuals.ITEM_DAMPING
        monkeypatch.setattr(item_residuals, "ITEM_DAMPING", 2.0 * damping)
    if change == "releases":
        match = "must make the recorded run's releases"
        monkeypatch.setattr(pooled_als, "MEAN_ROUNDS", pooled_als.MEAN_ROUNDS + 1)
    if change == "sensitivity":
        match = "sensitivity was"
        monkeypatch.setattr(item_residuals.im, "USER_WEIGHT", 0.2)
    assert record.main(["compare", file, name]) == 1
    assert match in capsys.readouterr().out
