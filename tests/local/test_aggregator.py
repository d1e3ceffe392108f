"""The aggregator: sums, refusals, rounds, crashes; and a fit by hand must agree with it."""

import copy
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from skdpmf.exceptions import PrivacyParameterError
from skdpmf.local import Announcement, LocalAggregator, ReleasedModel
from skdpmf.local import aggregator as aggregator_module
from skdpmf.local.messages import MessageError, Report
from skdpmf.mechanisms.device_reports.item_means import LocalItemMeans
from skdpmf.mechanisms.device_reports.privunit import GRID_BITS, PrivUnit
from skdpmf.mechanisms.device_reports.randomizers import shuffle_note

from .common import (
    PROTOCOL,
    RANGE,
    fit_by_hand,
    make_aggregator,
    make_devices,
    replace,
    run,
    sums_of,
)

N_ITEMS = 6
OTHER = "f" * 32
NORM = "impossible norm"


def possible(dimension, peak=0):
    """A made-up payload that is not refused, with one value of the largest magnitude."""
    payload = np.where(np.arange(dimension) % 2, 1, -1).astype(np.int32) << GRID_BITS
    payload[1] = peak or payload[1]
    return payload


# --- the same in value as a fit over all rows --------------------------------------------


@pytest.mark.parametrize("fractions", [(1.0,), (0.6, 0.4), (0.5, 0.2, 0.3)])
def test_devices_and_a_fit_over_all_rows_agree_bit_for_bit(fractions):
    n, epsilon, damping = 150, 8.0, 7.5
    aggregator = make_aggregator(
        N_ITEMS, epsilon=epsilon, fractions=fractions, user_damping=damping
    )
    run(aggregator, make_devices(n, N_ITEMS, epsilon=epsilon))
    sums, model = fit_by_hand(n, N_ITEMS, epsilon, fractions, damping)
    assert sums_of(aggregator) == sums
    released = aggregator.model()
    np.testing.assert_array_equal(released.item_means, 3.0 + 1.0 * model.item_means)
    assert released.user_damping == model.user_damping
    assert released.significant
    assert model.significant  # or later rounds would not show
    assert released.n_reports == tuple(n for n, _ in sums)
    assert sum(released.n_reports) == n
    assert (released.epsilon, released.rating_range) == (epsilon, RANGE)


# --- refusals ----------------------------------------------------------------------------


def altered(report, **changes):
    return replace(report, **changes)


def spoiled(report, at, value):
    payload = report.payload.copy()
    payload[at] = value
    return altered(report, payload=payload)


def test_wrong_reports_are_counted_and_have_no_influence():
    clean, dirty = make_aggregator(N_ITEMS), make_aggregator(N_ITEMS)
    expected = Counter()

    def refuse(report, reason):
        assert dirty.receive(report) is False
        expected[reason] += 1
        assert dirty.refused == expected

    for number in range(2):
        devices = make_devices(60, N_ITEMS)
        largest = PrivUnit(4.0, clean.announcement.dimension).limits.largest
        reports = [r for d in devices if (r := d.report(clean.announcement)) is not None]
        assert len(reports) > 10
        for report in reports:
            data = report.to_bytes()
            refuse(altered(report, protocol=OTHER), "wrong protocol")
            refuse(altered(report, round=1 - number), "wrong round")
            refuse(altered(report, round=17), "wrong round")
            refuse(altered(report, payload=report.payload[:-1]), "wrong length")
            refuse(
                altered(report, payload=np.append(report.payload, report.payload)), "wrong length"
            )
            for value in (largest + 1, -largest - 1, 2**31 - 1, -(2**31)):
                refuse(spoiled(report, -1, value), "out of range")
            # every value is possible, all of them together are not
            for value in (0, int(0.9 * largest)):
                refuse(altered(report, payload=np.full_like(report.payload, value)), NORM)
            refuse(data[:-1], "malformed")
            refuse(data + b"\0", "malformed")
            refuse(data.replace(b"version\x03", b"version\x02"), "wrong version")
            # a refused report does not use its id up
            assert clean.receive(report)
            assert dirty.receive(data)
            refuse(data, "duplicate")
            refuse(spoiled(report, 0, 0), "duplicate")
        for junk in (None, "text", 3, b"", clean.announcement, clean.announcement.to_bytes()):
            refuse(junk, "malformed")
        clean.close_round()
        dirty.close_round()
        refuse(reports[0], "wrong round")
    assert sums_of(clean) == sums_of(dirty)
    assert clean.model() == dirty.model()
    assert not clean.refused


def test_a_device_of_another_round_is_refused():
    aggregator = make_aggregator(N_ITEMS)
    current, payload = aggregator.announcement, possible(2 * N_ITEMS + 4)
    for number in range(40):
        report = Report(PROTOCOL, 0, f"{number:032x}", payload)
        assert aggregator.receive(report) == (current.group_of(report.report_id) == 0)
    assert aggregator.refused["wrong round"] + aggregator.n_reports[0] == 40
    assert min(aggregator.refused["wrong round"], aggregator.n_reports[0]) > 5


def test_an_id_counts_once_in_all_rounds(monkeypatch):
    aggregator = make_aggregator(N_ITEMS)
    monkeypatch.setattr(Announcement, "group_of", lambda self, report_id: self.round)
    for dimension, accepted in ((2 * N_ITEMS + 4, True), (2 * N_ITEMS + 4, False)):
        report = Report(PROTOCOL, aggregator.announcement.round, OTHER, possible(dimension))
        assert aggregator.receive(report) is accepted
    aggregator.close_round()
    assert not aggregator.receive(Report(PROTOCOL, 1, OTHER, possible(N_ITEMS + 2)))
    assert aggregator.refused["duplicate"] == 2


def test_values_at_the_bound_are_accepted_and_cannot_overflow(monkeypatch):
    assert PrivUnit(16.0, 2**24).limits.largest * aggregator_module.MAX_REPORTS < 2**63
    aggregator = make_aggregator(1, fractions=(1.0,))
    bound = PrivUnit(4.0, 6).limits.largest
    monkeypatch.setattr(aggregator_module, "MAX_REPORTS", 3)
    taken = [
        aggregator.receive(
            Report(PROTOCOL, 0, f"{i:032x}", possible(6, bound if i % 2 else -bound))
        )
        for i in range(5)
    ]
    assert taken == [True, True, True, False, False]
    assert aggregator.refused == {"too many": 2}
    assert aggregator._run.sum[1] == -bound


def most_extreme(announcement, signs, rng):
    """A payload of these signs that is as long as the limits let it be; of no sign, as short."""
    limits, dimension = PrivUnit(4.0, announcement.dimension).limits, announcement.dimension
    chosen = rng.choice(signs, dimension)
    square = 0.999 * limits.most
    if not chosen.any():
        chosen, square = np.ones(dimension), 1.001 * limits.least
    payload = chosen * np.sqrt(square / (chosen @ chosen)) * 2.0**GRID_BITS
    return np.clip(payload, -limits.largest, limits.largest).astype(np.int32)


@pytest.mark.parametrize("n", [1, 2, 50])
def test_dishonest_reports_break_nothing(n):
    # the most extreme reports that are not refused, in all rounds: finite numbers, and no warning
    rng = np.random.default_rng([65, n])
    for signs in ([-1], [1], [0], [-1, 0, 1]):
        aggregator = make_aggregator(N_ITEMS, fractions=(0.4, 0.3, 0.3))
        while (announcement := aggregator.announcement) is not None:
            taken = 0
            while taken < n:
                payload = most_extreme(announcement, signs, rng)
                name = rng.bytes(16).hex()
                taken += aggregator.receive(Report(PROTOCOL, announcement.round, name, payload))
            aggregator.close_round()
        model = aggregator.model()
        means = model.item_means
        assert (model.popularity > 0.0).all()
        assert ((means >= 1.0) & (means <= 5.0)).all()


def test_threads_lose_nothing():
    aggregator, devices = make_aggregator(N_ITEMS, fractions=(1.0,)), make_devices(60, N_ITEMS)
    data = [d.report(aggregator.announcement).to_bytes() for d in devices]
    with ThreadPoolExecutor(4) as pool:
        accepted = pool.map(lambda _: sum(map(aggregator.receive, data)), range(4))
    assert (sum(accepted), aggregator.refused) == (60, {"duplicate": 180})
    once = make_aggregator(N_ITEMS, fractions=(1.0,))
    run(once, make_devices(60, N_ITEMS))
    aggregator.close_round()
    assert sums_of(aggregator) == sums_of(once)


# --- rounds ------------------------------------------------------------------------------


def test_rounds_in_order():
    aggregator = make_aggregator(N_ITEMS, fractions=(0.5, 0.3, 0.2))
    with pytest.raises(RuntimeError, match="round 0 is open"):
        aggregator.model()
    devices, kinds = make_devices(80, N_ITEMS), []
    while (announcement := aggregator.announcement) is not None:
        kinds.append(announcement.kind)
        assert announcement.round == len(kinds) - 1
        assert announcement.protocol == PROTOCOL
        for device in devices:
            report = device.report(announcement)
            assert (report is not None) == (device.group(announcement) == announcement.round)
            if report is not None:
                assert aggregator.receive(report)
        following = aggregator.close_round()
        assert following is aggregator.announcement
    assert kinds == ["statistics", "residuals", "residuals"]
    assert all(device.spent == 4 for device in devices)  # each in exactly one round
    assert len(aggregator.n_reports) == 3
    assert sum(aggregator.n_reports) == 80
    with pytest.raises(RuntimeError, match="all rounds are closed"):
        aggregator.close_round()
    assert aggregator.model() == ReleasedModel.from_json(aggregator.model().to_json())


def test_epsilon_too_small_for_the_grid():
    with pytest.raises(PrivacyParameterError, match="must be larger for dimension"):
        LocalAggregator(10_000, RANGE, 1e-6)


# --- crashes -----------------------------------------------------------------------------


@pytest.mark.parametrize("public", [None, [[4.0, 1.0, *[np.nan] * 4]] * 9])
def test_restored_aggregator_goes_on_as_if_nothing_had_happened(public):
    settings = {"fractions": (0.5, 0.3, 0.2), "n_devices": 50, "public": public}
    plain, reports = run(make_aggregator(N_ITEMS, **settings), make_devices(50, N_ITEMS))
    restores = []

    def crash(aggregator):
        restores.append(1)
        again = LocalAggregator.restore(aggregator.snapshot())
        assert again.snapshot() == aggregator.snapshot()
        assert again.announcement == aggregator.announcement
        assert again.n_reports == aggregator.n_reports
        # what was sent before counts no second time, whether it was acknowledged or not
        for report in reports[: sum(again.n_reports)]:
            assert not again.receive(report)
        return LocalAggregator.restore(again.snapshot())

    broken, repeated = run(
        make_aggregator(N_ITEMS, **settings), make_devices(50, N_ITEMS), between=crash
    )
    assert len(restores) == 50
    assert repeated == reports
    assert sums_of(broken) == sums_of(plain)
    assert broken.model() == plain.model()
    assert broken.refused["duplicate"] + broken.refused["wrong round"] == 50 * 51 / 2
    finished = LocalAggregator.restore(plain.snapshot())
    assert finished.announcement is None
    assert finished.model() == plain.model()


def test_snapshot_keeps_the_announcement_word_for_word(monkeypatch):
    aggregator = make_aggregator(N_ITEMS)
    for device in make_devices(50, N_ITEMS):
        report = device.report(aggregator.announcement)
        if report is not None:
            aggregator.receive(report)
    announced = aggregator.close_round()
    data = aggregator.snapshot()
    # a machine that rounds differently must not announce something else in the same round
    real = LocalItemMeans.mass.fget
    monkeypatch.setattr(LocalItemMeans, "mass", property(lambda self: real(self) * (1 + 1e-12)))
    again = LocalAggregator.restore(data)
    assert (real(again._run.means) * (1 + 1e-12) != announced.mass).any()
    assert again.announcement == announced


def test_damaged_snapshots_are_refused():
    rng = np.random.default_rng(64)
    aggregator, _ = run(make_aggregator(2), make_devices(10, 2))
    data = aggregator.snapshot()
    for _ in range(200):
        damaged = bytearray(data)
        damaged[rng.integers(0, len(data))] ^= 1 << rng.integers(0, 8)
        for broken in (bytes(damaged), data[: rng.integers(0, len(data))], data + b"\0"):
            with pytest.raises(MessageError, match="no whole snapshot"):
                LocalAggregator.restore(broken)


def test_a_snapshot_has_ids_and_sums_and_no_reports():
    aggregator, reports = run(make_aggregator(N_ITEMS), make_devices(50, N_ITEMS))
    data = aggregator.snapshot()
    for report in reports:
        assert bytes.fromhex(report.report_id) in data
        assert report.payload.tobytes()[:12] not in data
    # a device more is an id more, whatever the size of the catalogue
    larger, _ = run(make_aggregator(N_ITEMS), make_devices(90, N_ITEMS))
    assert 0 <= len(larger.snapshot()) - len(data) - 40 * 18 < 8
    assert repr(aggregator) == repr(LocalAggregator.restore(data))
    assert not any(report.report_id in repr(aggregator) for report in reports)


def test_a_file_is_on_disk_before_a_report_is_acknowledged(tmp_path, monkeypatch):
    path, synced, real = tmp_path / "aggregator", [], aggregator_module.os.fsync
    aggregator, _ = run(make_aggregator(2), make_devices(20, 2))
    monkeypatch.setattr(aggregator_module.os, "fsync", lambda handle: synced.append(real(handle)))
    aggregator.save(str(path))
    assert len(synced) == 2  # the file and its folder
    assert LocalAggregator.load(path).snapshot() == aggregator.snapshot()


def test_aggregator_is_not_copied_by_accident():
    with pytest.raises(TypeError):
        copy.deepcopy(make_aggregator(2))


# --- public people -----------------------------------------------------------------------


def test_public_people_without_ratings_change_nothing():
    plain, _ = run(make_aggregator(N_ITEMS), make_devices(60, N_ITEMS))
    nobody = np.full((3, N_ITEMS), np.nan)
    for public in (nobody[:0], nobody):
        found, _ = run(make_aggregator(N_ITEMS, public=public), make_devices(60, N_ITEMS))
        assert found.snapshot() == plain.snapshot()
        assert found.model() == plain.model()
        assert found.statement() == plain.statement()


def test_the_statement_counts_public_people_and_their_form_is_checked():
    aggregator = make_aggregator(N_ITEMS, public=np.full((7, N_ITEMS), 4.0))
    assert "The ratings of 7 people are public" in str(aggregator.statement())
    for public, rule in (np.ones((2, 5)), "must have the 6"), (np.full((1, 6), np.inf), "finite"):
        with pytest.raises(ValueError, match=rule):
            make_aggregator(N_ITEMS, public=public)


# --- statement ---------------------------------------------------------------------------


def test_statement(monkeypatch):
    aggregator = make_aggregator(2, epsilon=0.5, fractions=(0.7, 0.3))
    assert not aggregator.statement(1e-2).notes  # nobody has reported yet
    run(aggregator, make_devices(100, 2, epsilon=0.5))
    statement = aggregator.statement()
    assert any("at a time that was set beforehand" in text for text in statement.assumptions)
    assert (statement.epsilon, statement.delta, statement.neighbors) == (0.5, 0.0, "replace")
    assert statement.local
    assert not statement.notes
    assert "No trusted server is needed" in " ".join(str(statement).split())
    smallest = min(aggregator.n_reports)
    assert smallest < max(aggregator.n_reports)
    assert aggregator.statement(1e-2).notes == (shuffle_note(0.5, smallest, 1e-2),)
    assert aggregator.statement(1e-2).epsilon == 0.5
    with pytest.raises(PrivacyParameterError, match="delta="):
        aggregator.statement(1.0)
    asked = []
    monkeypatch.setattr(
        aggregator_module, "shuffle_note", lambda *terms: asked.append(terms) or "a note"
    )
    assert aggregator.statement(1e-3).notes == ("a note",)
    assert asked == [(0.5, smallest, 1e-3)]
