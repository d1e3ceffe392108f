"""Sensitivity of weighted item counts, against all neighbours of small catalogues."""

from itertools import product

import numpy as np
import pytest

from skdpmf.preprocessing.item_selector import item_count_sensitivity, item_count_weights

every_case = pytest.mark.parametrize(
    ("norm", "unit", "neighbors"),
    list(product(("l1", "l2"), ("user", "rating"), ("add-remove", "replace"))),
)


def terms(pattern, norm, unit):
    """One user's part of the counts, as the definition has it."""
    return pattern * (1.0 if unit == "rating" else item_count_weights(pattern.sum(), norm=norm))


@every_case
def test_no_neighbour_is_farther_and_one_is_as_far(norm, unit, neighbors):
    patterns = [np.array(p, float) for p in product((0, 1), repeat=6)]
    worst = 0.0
    for one, two in product(patterns, patterns):
        changed = np.abs(one - two).sum()
        if unit == "rating":
            near = changed == 1 if neighbors == "add-remove" else changed <= 2
        else:
            near = neighbors == "replace" or not two.any()
        if near:
            difference = terms(one, norm, unit) - terms(two, norm, unit)
            worst = max(worst, np.linalg.norm(difference, 1 if norm == "l1" else 2))
    bound = item_count_sensitivity(norm=norm, neighbors=neighbors)
    assert bound * (1.0 - 1e-9) <= worst <= bound


@pytest.mark.parametrize("norm", ["l1", "l2"])
def test_rounding_stays_inside(norm):
    n = np.arange(200_001)
    weights = item_count_weights(n, norm=norm)
    assert weights[0] == 0.0
    size = n * weights if norm == "l1" else n * weights * weights
    assert size.max() <= 1.0
    assert size[1:].min() > 1.0 - 1e-11
