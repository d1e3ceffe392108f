"""A device: its budget over rounds, protocols and restarts, its randomness, its predictions."""

import copy
import json
import pickle
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from fractions import Fraction
from functools import reduce
from operator import add

import numpy as np
import pytest

from skdpmf.exceptions import PrivacyParameterError
from skdpmf.local import Announcement, LocalDevice, ReleasedModel
from skdpmf.local import device as device_module
from skdpmf.local.messages import MessageError
from skdpmf.mechanisms.device_reports.item_means import residual_rows, statistics_rows
from skdpmf.mechanisms.device_reports.privunit import PrivUnit
from skdpmf.privacy.sampler.cipher import stream_key

from .common import PROTOCOL, RANGE, key_of, make_device, ratings_of, replace

N_ITEMS = 5


def announce(number=0, *, epsilon=1.0, fractions=(1.0,), round=0, n_items=N_ITEMS, scale=RANGE):
    protocol = f"{number:032x}"
    return Announcement(protocol, round, "statistics", epsilon, n_items, scale, 10.0, fractions)


def residuals(number, means, mass, *, epsilon=1.0):
    return replace(announce(number, epsilon=epsilon), kind="residuals", item_means=means, mass=mass)


def restarted(device, user=0):
    state, ratings = json.loads(json.dumps(device.state())), ratings_of(0, N_ITEMS)
    return LocalDevice.from_state(state, *ratings, key=None if user is None else key_of(user))


# --- budget ------------------------------------------------------------------------------


def test_spends_exactly_its_budget_over_protocols_and_restarts():
    device = make_device(0, N_ITEMS, epsilon=3.0)
    for number in range(3):
        assert device.report(announce(number)) is not None
        device = restarted(device)
        assert device.spent == number + 1
    for again in (device, restarted(device), restarted(restarted(device))):
        with pytest.raises(PrivacyParameterError, match="must be at most 0"):
            again.report(announce(3))
        with pytest.raises(PrivacyParameterError, match="must be at most 0"):
            again.report(announce(4, epsilon=1e-3))
        assert again.spent == 3


def test_budget_is_compared_exactly():
    # in floats, ten times 0.1 is less than 1; of the doubles it is more
    assert reduce(add, [0.1] * 10) < 1.0 < 10 * Fraction(0.1)
    device = make_device(0, N_ITEMS, epsilon=1.0)
    for number in range(9):
        device.report(announce(number, epsilon=0.1))
        device = restarted(device)
    assert device.spent == 9 * Fraction(0.1)
    with pytest.raises(PrivacyParameterError, match=r"epsilon of this report=0\.1"):
        device.report(announce(9, epsilon=0.1))
    assert device.report(announce(10, epsilon=0.09)) is not None


def test_one_report_in_a_protocol_whatever_is_announced():
    device = make_device(0, N_ITEMS, epsilon=100.0)
    halves = announce(7, fractions=(0.5, 0.5))
    own = device.group(halves)
    assert device.report(replace(halves, round=1 - own)) is None
    assert device.spent == 0
    assert device.report(replace(halves, round=own)) is not None
    for again in (device, restarted(device)):
        assert again.report(replace(halves, round=1 - own)) is None
        # the same round, another epsilon, and shares that would put the device into another round
        shares = (1e-9, 1 - 1e-9) if own == 0 else (1 - 1e-9, 1e-9)
        moved = replace(halves, round=1 - own, fractions=shares)
        assert again.group(moved) == 1 - own
        for repeated in (
            replace(halves, round=own),
            replace(halves, round=own, epsilon=0.5),
            moved,
        ):
            with pytest.raises(PrivacyParameterError, match=f"was answered in round {own}"):
                again.report(repeated)
        assert again.spent == 1


def test_paid_before_anything_random_is_drawn(monkeypatch):
    device = make_device(0, N_ITEMS, epsilon=1.0)
    device.group(announce())
    seen = []

    def broken(*arguments):
        seen.append(device.spent)
        raise OSError("no randomness")

    with monkeypatch.context() as patched:
        patched.setattr(device_module, "report_key", broken)
        with pytest.raises(OSError, match="no randomness"):
            device.report(announce())
    assert seen == [1]
    for again in (device, restarted(device)):
        with pytest.raises(PrivacyParameterError):
            again.report(announce())


def test_refusals_cost_nothing():
    device = make_device(0, N_ITEMS, epsilon=4.0)
    for wrong in (
        announce(n_items=N_ITEMS + 1),
        announce(scale=(1.0, 4.0)),
        announce(epsilon=1e-9),  # too small for the grid
    ):
        with pytest.raises(PrivacyParameterError):
            device.report(wrong)
    with pytest.raises(PrivacyParameterError, match=r"n_items.*6"):
        device.group(announce(n_items=N_ITEMS + 1))
    for wrong in (None, announce().to_bytes(), "announcement"):
        with pytest.raises(MessageError, match="must be an Announcement"):
            device.report(wrong)
    assert device.spent == 0
    assert device.state()["answered"] == {}
    assert device.report(announce()) is not None


def test_threads_share_one_budget():
    device = make_device(0, N_ITEMS, epsilon=5.0)

    def ask(number):
        with suppress(PrivacyParameterError):
            return device.report(announce(number))

    with ThreadPoolExecutor(12) as pool:
        got = list(pool.map(ask, range(12)))
    assert sum(report is not None for report in got) == 5
    assert device.spent == 5


def test_no_copies_and_no_forks(monkeypatch):
    device = make_device(0, N_ITEMS)
    for duplicate in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="never pickled or copied"):
            duplicate(device)
    monkeypatch.setattr(device_module.os, "getpid", lambda: -1)
    for ask in (device.report, device.group):
        with pytest.raises(RuntimeError, match="forked"):
            ask(announce())


@pytest.mark.parametrize("epsilon", [0.0, -1.0, float("nan"), float("inf"), "1", None, True])
def test_budget_must_be_a_number(epsilon):
    with pytest.raises(PrivacyParameterError, match="epsilon="):
        make_device(0, N_ITEMS, epsilon=epsilon)


# --- randomness --------------------------------------------------------------------------


def test_fresh_randomness_for_every_report():
    made = [
        LocalDevice([0], [3.0], n_items=N_ITEMS, rating_range=RANGE, epsilon=100.0)
        for _ in range(4)
    ]
    reports = [device.report(announce(number)) for device in made for number in range(4)]
    assert len({report.report_id for report in reports}) == 16
    assert len({report.payload.tobytes() for report in reports}) == 16
    # no single value is shared either
    values = np.concatenate([report.payload for report in reports])
    assert np.unique(values).size > values.size - 3


def test_a_key_gives_a_stream_for_each_protocol_and_round():
    halves = announce(1, fractions=(0.5, 0.5))
    device = make_device(0, N_ITEMS, epsilon=100.0)
    own = device.group(halves)
    report = device.report(replace(halves, round=own))
    assert make_device(0, N_ITEMS).report(replace(halves, round=own)) == report
    row = one_row(*ratings_of(0, N_ITEMS))
    x = statistics_rows(row, 10.0)
    randomiser = PrivUnit(1.0, halves.dimension)
    key = stream_key(key_of(0), "device", halves.protocol, own)
    np.testing.assert_array_equal(randomiser.report(key, x.indices, x.values), report.payload)
    wrong = stream_key(key_of(0), "device", halves.protocol, 1 - own)
    assert (randomiser.report(wrong, x.indices, x.values) != report.payload).any()
    others = [device.report(announce(number)) for number in (2, 3)]
    assert not np.intersect1d(others[0].payload, others[1].payload).size


def one_row(items, ratings):
    """Ratings in quarter ranges, as a dense row would give them."""
    from scipy import sparse

    order = np.argsort(items)
    values = (np.asarray(ratings, float)[order] - 3.0) / 1.0
    arrays = values, np.asarray(items)[order], np.array([0, len(items)])
    return sparse.csr_array(arrays, shape=(1, N_ITEMS))


def test_residual_round_reports_what_the_released_means_leave():
    means, mass = np.array([0.5, -0.25, 0.0, 1.0, -1.0]), np.array([9.0, 1.0, 4.0, 0.5, 2.0])
    asked = residuals(5, means, mass)
    report = make_device(0, N_ITEMS).report(asked)
    x = residual_rows(one_row(*ratings_of(0, N_ITEMS)), means, mass, 10.0)
    assert x.indices.size > 1
    key = stream_key(key_of(0), "device", asked.protocol, 0)
    expected = PrivUnit(1.0, N_ITEMS + 2).report(key, x.indices, x.values)
    np.testing.assert_array_equal(report.payload, expected)


def test_report_id_is_drawn_once_and_kept():
    device = make_device(0, N_ITEMS, epsilon=50.0, ratings=([], []))
    fresh = LocalDevice([0], [3.0], n_items=N_ITEMS, rating_range=RANGE, epsilon=9.0)
    for own in (device, fresh):
        thirds = announce(1, fractions=(0.3, 0.3, 0.4))
        group = own.group(thirds)
        assert [own.group(replace(thirds, round=k)) for k in range(3)] == [group] * 3
        again = restarted(own, None if own is fresh else 0)
        report = again.report(replace(thirds, round=group))
        assert report.report_id == own.state()["report_ids"][thirds.protocol]
        assert thirds.group_of(report.report_id) == group


def test_groups_do_not_depend_on_ratings():
    asked = [announce(number, fractions=(0.3, 0.3, 0.4)) for number in range(40)]
    rich = make_device(0, N_ITEMS, ratings=(range(N_ITEMS), [5.0] * N_ITEMS))
    poor = make_device(0, N_ITEMS, ratings=([], []))
    groups = [rich.group(a) for a in asked]
    assert groups == [poor.group(a) for a in asked]
    assert set(groups) == {0, 1, 2}
    fresh = [
        LocalDevice([0], [3.0], n_items=N_ITEMS, rating_range=RANGE, epsilon=1.0).group(asked[0])
        for _ in range(60)
    ]
    assert set(fresh) == {0, 1, 2}  # misses one of them with probability < 3 * 0.7^60 < 2e-9


# --- ratings stay where they are ---------------------------------------------------------


def test_state_and_messages_but_for_the_payload_do_not_depend_on_ratings():
    histories = [([], []), ([0, 3], [1.5, 4.875]), (range(N_ITEMS), [5.0] * N_ITEMS)]
    shown = set()
    for history in histories:
        device = make_device(0, N_ITEMS, epsilon=2.0, ratings=history)
        text = [repr(device)]
        for number in range(3):
            try:
                report = device.report(announce(number, fractions=(0.5, 0.5)))
            except PrivacyParameterError as error:
                text.append(str(error))
            else:
                silent = report and replace(report, payload=np.zeros(1, np.int32))
                text.append(silent and silent.to_json())
            text.append(json.dumps(device.state()))
        shown.add(repr(text) + repr(device))
        for words in text:
            assert words is None or "4.875" not in words
    assert len(shown) == 1


def test_state_has_neither_ratings_nor_a_key():
    state = make_device(0, N_ITEMS, ratings=([3, 0], [4.875, 1.5])).state()
    assert set(state) == {
        *("version", "n_items", "rating_range", "epsilon", "spent", "answered", "report_ids")
    }
    assert key_of(0).hex() not in json.dumps(state)
    assert repr(list(key_of(0))) not in json.dumps(state)


@pytest.mark.parametrize(
    "change",
    [
        {"version": 2},
        {"spent": "-1"},
        {"spent": "1/0"},
        {"spent": None},
        {"answered": [1]},
        {"report_ids": None},
        {"epsilon": "4"},
        {"rating_range": None},
    ],
)
def test_broken_state_is_refused(change):
    state = make_device(0, N_ITEMS).state()
    assert LocalDevice.from_state(state, [], []).epsilon == 4.0
    with pytest.raises(PrivacyParameterError, match="must be what LocalDevice"):
        LocalDevice.from_state({**state, **change}, [], [])
    with pytest.raises(PrivacyParameterError, match="must be what LocalDevice"):
        LocalDevice.from_state({k: v for k, v in state.items() if k not in change}, [], [])


def test_ratings_are_merged_clipped_and_dropped():
    nan, inf = float("nan"), float("inf")
    messy = make_device(0, N_ITEMS, ratings=([2, 0, 2, 1, 9, -1, 3], [2, 99, 5, nan, 1, 1, inf]))
    clean = make_device(0, N_ITEMS, ratings=([0, 2], [5.0, 3.5]))
    assert clean.report(announce()) == messy.report(announce())


@pytest.mark.parametrize(
    ("items", "ratings"), [([0, 1], [1.0]), ([0.5], [1.0]), ([[0]], [[1.0]]), (["a"], [1.0])]
)
def test_ratings_that_are_no_ratings(items, ratings):
    with pytest.raises(ValueError, match="one for each of the ratings"):
        make_device(0, N_ITEMS, ratings=(items, ratings))


@pytest.mark.parametrize("n_items", [0, 1.5, True, 2**23, None])
def test_n_items_must_be_a_count(n_items):
    with pytest.raises(ValueError, match="n_items"):
        LocalDevice([], [], n_items=n_items, rating_range=RANGE, epsilon=1.0)


# --- predictions -------------------------------------------------------------------------

MEANS, POPULARITY = np.array([4.0, 3.0, 4.5, 3.0, 2.0]), np.array([1.0, 0.5, 2.0, 1.0, 3.0])
MODEL = ReleasedModel(PROTOCOL, MEANS, 2.0, RANGE, 4.0, (10,), True, POPULARITY)


def test_predictions_are_the_fold_in_of_the_own_ratings():
    device = make_device(0, N_ITEMS, ratings=([0, 3], [5.0, 4.5]))
    offset = ((5.0 - 4.0) + (4.5 - 3.0)) / (2 + 2.0)
    expected = np.minimum(MODEL.item_means + offset, 5.0)
    np.testing.assert_allclose(device.predict(MODEL, range(5)), expected, rtol=1e-15)
    assert device.predict(MODEL, []).size == 0
    items, scores = device.recommend(MODEL)
    assert items.tolist() == [2, 4, 1]
    # by `LocalDPGDDR` an own level ranks nothing, and means have half their weight
    ranked = np.log(POPULARITY / POPULARITY.max()) + 0.5 * MEANS
    np.testing.assert_allclose(scores, ranked[items])
    assert device.recommend(MODEL, 1)[0].tolist() == [2]
    assert device.recommend(MODEL, taste=0)[0].tolist() == [4, 2, 1]
    by_rating, scores = device.recommend(MODEL, taste=1)
    assert by_rating.tolist() == [2, 1, 4]
    np.testing.assert_allclose(scores, (MODEL.item_means + offset)[by_rating])
    with pytest.raises(ValueError, match="taste=2 must be None or a number from 0 to 1"):
        device.recommend(MODEL, taste=2)


def test_ties_go_to_the_smaller_column():
    flat = replace(MODEL, item_means=np.full(5, 3.5), popularity=np.ones(5))
    assert make_device(0, N_ITEMS, ratings=([1], [3.0])).recommend(flat, 3)[0].tolist() == [0, 2, 3]
