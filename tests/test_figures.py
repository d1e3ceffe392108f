"""The look of the pages' pictures: colours that can be read and told apart, names that fit."""

import sys
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

mpl = pytest.importorskip("matplotlib")
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks"))  # scripts

from figures import THEMES  # noqa: E402
from plots import DOCS, PICTURES, rows_of  # noqa: E402

# Linear RGB as people without red, green or blue cones see it (Machado et al. 2009, severity 1).
SIGHT = {
    "all cones": np.eye(3),
    "no red": [[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]],
    "no green": [[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]],
    "no blue": [[1.256, -0.077, -0.179], [-0.078, 0.931, 0.148], [0.005, 0.691, 0.304]],
}


def linear(colour):
    """Linear RGB of a colour, an array of 3."""
    rgb = np.array(mpl.colors.to_rgb(colour))
    return np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)


def contrast(one, other):
    """Contrast of two colours, as WCAG 2 defines it, from 1 to 21."""
    low, high = sorted(float(linear(c) @ [0.2126, 0.7152, 0.0722]) for c in (one, other))
    return (high + 0.05) / (low + 0.05)


def lab(rgb):
    """CIE L*a*b* of linear RGB under D65."""
    xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    found = np.cbrt(np.clip(xyz @ rgb, 1e-4, None) / xyz.sum(axis=1))
    return np.array([116 * found[1] - 16, 500 * (found[0] - found[1]), 200 * (found[1] - found[2])])


@pytest.mark.parametrize("theme", THEMES.values(), ids=["light", "dark"])
def test_colours_can_be_read_and_differ_for_everybody(theme):
    paper, colours = theme["axes.facecolor"], theme["axes.prop_cycle"].by_key()["color"]
    texts = [*colours, theme["text.color"], theme["axes.titlecolor"], theme["xtick.color"]]
    assert min(contrast(text, paper) for text in texts) >= 4.5
    assert contrast("#777777", "#ffffff") < 4.5  # a colour that fails
    for name, sight in SIGHT.items():
        seen = [lab(np.asarray(sight) @ linear(colour)) for colour in colours[:4]]
        least = min(np.linalg.norm(one - other) for one, other in combinations(seen, 2))
        assert least > 20, name


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
