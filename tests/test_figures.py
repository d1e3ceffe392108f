"""The look of the pages' pictures: few lines, and all of them named."""

import sys
from pathlib import Path

import pytest

pytest.importorskip("matplotlib")
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks"))  # scripts

from figures import THEMES
from plots import DOCS, PICTURES, rows_of


@pytest.mark.parametrize("name", PICTURES)
def test_picture_has_few_lines_and_all_of_them_named(name):
    axes = PICTURES[name]().axes[0]
    names = [line.get_label() for line in axes.get_lines()]
    assert len(names) <= 4
    assert set(names) <= {text.get_text() for text in axes.texts}
    assert all((DOCS / "images" / f"{name}{theme}.png").exists() for theme in THEMES)
    if name == "attacks-linkage":  # drawn from the results and from nothing else
        (line,) = (x for x in axes.get_lines() if x.get_label() == "DPItemMeans")
        rows = [row for row in rows_of("linkage") if row["model"] == "DPItemMeans"]
        assert {f"{x:g}": y for x, y in line.get_xydata()} == {
            row["epsilon"]: float(row["who, all known"].split(" ")[0])
            for row in rows
            if row["epsilon"] != "none"
        }
