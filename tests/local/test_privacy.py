"""A black-box look at what leaves a device: no event is more than e^epsilon times as likely."""

import itertools

import numpy as np
import pytest
from msgspec.structs import replace
from scipy import sparse, stats

from skdpmf.local import Announcement
from skdpmf.mechanisms.device_reports.item_means import residual_rows, statistics_rows
from skdpmf.mechanisms.device_reports.privunit import privunit_parameters

from .common import RANGE, make_device

N_DEVICES = 800
FALSE_ALARM = 1e-6  # of each of the tests below, all pairs and events together
HISTORIES = {
    1: [([], []), ([0], [5.0]), ([0], [1.0])],
    2: [([], []), ([0, 1], [5.0, 1.0]), ([0, 1], [1.0, 5.0])],
}
MEANS, MASS = np.array([1.5, -1.5]), np.array([1.0, 1.0])


def announcements(number, n_items, epsilon, kind="residuals"):
    """Both rounds of a protocol, as they are published before the device decides on anything."""
    first = Announcement(
        f"{number:032x}", 0, "statistics", epsilon, n_items, RANGE, 1.0, (0.5, 0.5)
    )
    later = {"round": 1, "kind": kind, "item_means": MEANS[:n_items], "mass": MASS[:n_items]}
    return first, replace(first, **later)


def transcripts(history, n_items, epsilon, kind):
    """Rounds and reports of as many independent runs; a protocol run stands for a device."""
    device = make_device(1, n_items, epsilon=1e6, ratings=history)
    rounds, reports = np.empty(N_DEVICES, int), np.zeros((N_DEVICES, 2 * n_items + 4))
    for i in range(N_DEVICES):
        answers = [device.report(a) for a in announcements(i, n_items, epsilon, kind)]
        (rounds[i],) = (k for k, answer in enumerate(answers) if answer is not None)
        payload = answers[rounds[i]].payload
        reports[i, : payload.size] = payload
    return rounds, reports


def direction(history, n_items, kind):
    """The unit vector that a device turns its history into, and its length."""
    items, ratings = history
    arrays = (np.array(ratings) - 3.0), np.array(items, int), np.array([0, len(items)])
    row, damping = sparse.csr_array(arrays, shape=(1, n_items)), 1.0
    released = MEANS[:n_items], MASS[:n_items]
    if kind == "statistics":
        x, dimension = statistics_rows(row, damping), 2 * n_items + 4
    else:
        x, dimension = residual_rows(row, *released, damping), n_items + 2
    out = np.zeros(2 * n_items + 4)
    out[x.indices] = x.values
    out[dimension - 1] = np.sqrt(1.0 - x.values @ x.values)
    return out, dimension


def events(rounds, reports, histories, n_items, epsilon, kind):
    """Number each transcript's event: its round, and the sides of the half spaces of all histories.

    And, as a second partition, the round with the signs of the report's values.
    """
    sides, signs = rounds.copy(), rounds.copy()
    for history in histories:
        inside = np.zeros(rounds.size, bool)
        for number, of_round in enumerate(("statistics", kind)):
            x, dimension = direction(history, n_items, of_round)
            t, _, _, bits, _, _ = privunit_parameters(epsilon, dimension)
            here = rounds == number
            inside[here] = reports[here] @ x >= t * 2.0**bits
        sides = 2 * sides + inside
    for column in reports.T:
        signs = 2 * signs + (column > 0)
    return sides, signs


@pytest.mark.slow
@pytest.mark.parametrize(
    ("n_items", "kind", "epsilon"), [(1, "residuals", 2.0), (2, "residuals", 0.5)]
)
def test_no_event_tells_more_than_epsilon(n_items, kind, epsilon):
    histories = HISTORIES[n_items]
    found = [
        events(*transcripts(history, n_items, epsilon, kind), histories, n_items, epsilon, kind)
        for history in histories
    ]
    n_tests = 6 * (2**4 + 2 ** (2 * n_items + 5) + 1)
    odds, closest, size = np.exp(epsilon), -np.inf, 2 ** (2 * n_items + 5)
    for a, b in itertools.permutations(range(len(histories)), 2):
        codes = np.arange(size)
        bits = [codes >> (len(histories) - 1 - k) & 1 for k in (a, b)]
        # single events, and all those together that speak for a and against b
        for part, joint in ((0, [bits[0] > bits[1]]), (1, [])):
            x, y = (np.bincount(found[k][part], minlength=size) for k in (a, b))
            for event in [*np.eye(size, dtype=bool)[(x + y) > 0], *joint]:
                n_own, n_other = x[event].sum(), y[event].sum()
                # given their sum, n_own is binomial with at most odds / (1 + odds), nearly
                chance = stats.binom.sf(n_own - 1, n_own + n_other, odds / (1.0 + odds))
                assert chance > FALSE_ALARM / n_tests
                if min(n_own, n_other) > 30:
                    closest = max(closest, np.log(n_own / n_other))
    # nor is budget wasted: histories far apart come near the bound
    assert closest > 0.8 * epsilon


@pytest.mark.parametrize("n_items", [1, 2])
def test_round_says_nothing(n_items):
    sizes = []
    for history in HISTORIES[n_items]:
        device = make_device(1, n_items, ratings=history)
        groups = [device.group(announcements(i, n_items, 1.0)[0]) for i in range(N_DEVICES)]
        sizes.append(groups)
    assert sizes[0] == sizes[1] == sizes[2]
    assert FALSE_ALARM < stats.binom.cdf(sum(sizes[0]), N_DEVICES, 0.5) < 1 - FALSE_ALARM
