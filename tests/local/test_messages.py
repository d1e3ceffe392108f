"""Messages: both encodings there and back, and everything that must be refused."""

import base64
import dataclasses
import itertools
import json
import struct
import tracemalloc

import numpy as np
import pytest
from scipy import stats

from skdpmf.local import Announcement, ReleasedModel, messages
from skdpmf.local.messages import MessageError, Report
from skdpmf.privacy.sampler.noise import derived_key

from .common import PROTOCOL, make_aggregator, make_device

ID = "ffeeddccbbaa99887766554433221100"
FIRST = Announcement(PROTOCOL, 0, "statistics", 4.0, 3, (1, 5), 10.0, (0.1, 0.2, 0.7))
LATER = Announcement(
    *(PROTOCOL, 2, "residuals", 0.1, 3, (-0.5, 1 / 3), 0.1, (0.1, 0.2, 0.7)),
    np.array([0.1, -2.0, 1e-300]),
    np.array([1.0, 1e9, 0.5]),
)
LAST = dataclasses.replace(LATER, kind="covariance", head=np.array([0, 2]))
REPORT = Report(PROTOCOL, 1, ID, np.array([-(2**31), 0, 2**31 - 1, 7], np.int32))
MODEL = ReleasedModel(PROTOCOL, np.array([3.5, 0.1, -7e99]), 1 / 3, (1, 5), 4.0, (0, 12), True)
FACTORS = dataclasses.replace(
    MODEL,
    factor_items=np.array([0, 2]),
    factors=np.array([0.1, -100.0, 1e-300, 1 / 3]),
    factor_damping=0.1,
)
MESSAGES = [FIRST, LATER, LAST, REPORT, MODEL, FACTORS]
FIELDS = {
    Announcement: "protocol round kind epsilon n_items rating_range user_damping fractions "
    "item_means mass head version",
    Report: "protocol round report_id payload version",
    ReleasedModel: "protocol item_means user_damping rating_range epsilon n_reports significant "
    "factor_items factors factor_damping version",
}


def same(a, b):
    """Whether two messages agree in every bit and type of every field."""
    for name in FIELDS[type(a)].split():
        x, y = getattr(a, name), getattr(b, name)
        if isinstance(x, np.ndarray):
            assert x.dtype == y.dtype
            assert x.tobytes() == y.tobytes()
            assert not y.flags.writeable
        else:
            assert type(x) is type(y)
            assert x == y
    return True


@pytest.mark.parametrize("message", MESSAGES)
def test_both_encodings_lead_back(message):
    kind = type(message)
    assert set(FIELDS[kind].split()) == {f.name for f in dataclasses.fields(message)}
    there = [kind.from_bytes(message.to_bytes()), kind.from_json(message.to_json())]
    # and across
    there += [kind.from_json(there[0].to_json()), kind.from_bytes(there[1].to_bytes())]
    for other in there:
        assert same(message, other)
        assert message == other
        assert hash(message) == hash(other)


def test_equality_sees_every_value():
    changes = [
        dataclasses.replace(REPORT, round=2),
        dataclasses.replace(REPORT, report_id=PROTOCOL),
        dataclasses.replace(REPORT, payload=REPORT.payload + np.array([0, 1, 0, 0], np.int32)),
        FIRST,
    ]
    assert all(change != REPORT for change in changes)
    assert REPORT.to_bytes() != REPORT


def test_layout_of_a_report():
    # what a device in another language has to write
    header = (
        b'{"payload":{"dtype":"<i4","length":4},"protocol":"%b","report_id":"%b","round":1,'
        b'"type":"report"}' % (PROTOCOL.encode(), ID.encode())
    )
    values = struct.pack("<4i", -(2**31), 0, 2**31 - 1, 7)
    assert REPORT.to_bytes() == b"SKDPMF\x01\x00" + struct.pack("<I", len(header)) + header + values
    plain = json.loads(REPORT.to_json())
    assert base64.b64decode(plain["payload"]["base64"]) == values
    assert plain["version"] == 1


def test_arrays_are_copies():
    payload = np.zeros(4, np.int32)
    report = Report(PROTOCOL, 0, ID, payload)
    payload[0] = 9
    assert report.payload[0] == 0
    with pytest.raises(ValueError, match="read-only"):
        report.payload[0] = 1


@pytest.mark.parametrize(
    ("message", "change", "words"),
    [
        (FIRST, {"protocol": "0" * 31}, "protocol='0+' must be 32 lower-case"),
        (FIRST, {"protocol": "0" * 32 + "\n"}, "protocol="),
        (FIRST, {"protocol": "G" * 32}, "protocol="),
        (FIRST, {"protocol": None}, "protocol=None"),
        (FIRST, {"round": 3}, "round=3 must be an integer in"),
        (FIRST, {"round": -1}, "round=-1"),
        (FIRST, {"round": 0.0}, r"round=0\.0"),
        (FIRST, {"round": False}, "round=False"),
        (FIRST, {"kind": "gradient"}, "kind='gradient'"),
        (FIRST, {"epsilon": 0.0}, "epsilon=0 must be > 0"),
        (FIRST, {"epsilon": 16.1}, "epsilon="),
        (FIRST, {"epsilon": float("nan")}, "epsilon=nan"),
        (FIRST, {"epsilon": "1"}, "epsilon='1'"),
        (FIRST, {"n_items": 0}, "n_items=0"),
        (FIRST, {"n_items": 2**23 - 1}, "n_items="),
        (FIRST, {"rating_range": (5, 1)}, "rating_range="),
        (FIRST, {"rating_range": (1, 2, 3)}, "rating_range="),
        (FIRST, {"rating_range": (1, 10**400)}, "rating_range="),
        (FIRST, {"rating_range": (1, [10**5000])}, "rating_range="),
        (FIRST, {"rating_range": (1, float("inf"))}, "rating_range="),
        (FIRST, {"user_damping": 0.0}, "user_damping="),
        (FIRST, {"user_damping": 10**400}, "user_damping="),
        (FIRST, {"fractions": ()}, "fractions="),
        (FIRST, {"fractions": (0.5, 0.4)}, "fractions="),
        (FIRST, {"fractions": (1.0, 0.0)}, "fractions="),
        (FIRST, {"fractions": (1.5, -0.5)}, "fractions="),
        (FIRST, {"fractions": (1 / 1001,) * 1001}, "fractions="),
        (FIRST, {"version": 2}, "version=2 must be 1"),
        (FIRST, {"version": True}, "version=True"),
        (FIRST, {"mass": np.ones(3)}, "belong to later rounds than 'statistics'"),
        (FIRST, {"head": np.array([0, 2])}, "head belongs to a round 'covariance' only"),
        (LATER, {"head": np.array([0, 2])}, "head belongs to a round 'covariance' only"),
        (LATER, {"kind": "covariance"}, "head of type NoneType"),
        (LAST, {"mass": None}, "mass of type NoneType"),
        (LAST, {"item_means": None}, "item_means of type NoneType"),
        (LAST, {"round": 1}, "round=1 of kind 'covariance' must be the last of several"),
        (LAST, {"round": 0, "fractions": (1.0,)}, "round=0 of kind 'covariance'"),
        (LAST, {"head": np.array([0, 2], np.int32)}, "head of dtype int32"),
        (LAST, {"head": np.array([0.0, 2.0])}, "head of dtype float64"),
        (LAST, {"head": np.array([2])}, "head has 1 values and must have 2 to 3"),
        (LAST, {"head": np.array([0, 1, 2, 3])}, "head has 4 values"),
        (LAST, {"head": np.array([0, 3])}, r"head must have ascending columns in \[0, 3\)"),
        (LAST, {"head": np.array([-1, 2])}, "head must have ascending"),
        (LAST, {"head": np.array([2, 0])}, "head must have ascending"),
        (LAST, {"head": np.array([1, 1])}, "head must have ascending"),
        (
            LAST,
            {
                "n_items": 500,
                "item_means": np.zeros(500),
                "mass": np.ones(500),
                "head": np.arange(401),
            },
            "head has 401 values and must have 2 to 400",
        ),
        (LATER, {"mass": None}, "mass of type NoneType"),
        (LATER, {"mass": np.ones(4)}, "mass has 4 values and must have 3"),
        (LATER, {"mass": np.zeros(3)}, "mass must have values in"),
        (LATER, {"mass": np.array([1.0, np.nan, 1.0])}, "mass has a value that is not finite"),
        (LATER, {"item_means": np.ones(3, np.float32)}, "item_means of dtype float32"),
        (LATER, {"item_means": np.full(3, 1e7)}, "item_means must have values in"),
        (LATER, {"item_means": np.full(3, np.inf)}, "not finite"),
        (REPORT, {"report_id": ID[:-1]}, "report_id="),
        (REPORT, {"round": 1000}, "round=1000"),
        (REPORT, {"payload": np.zeros(4)}, "payload of dtype float64"),
        (REPORT, {"payload": np.zeros(4, np.int64)}, "payload of dtype int64"),
        (REPORT, {"payload": np.zeros((2, 2), np.int32)}, "one dimension"),
        (REPORT, {"payload": np.zeros(0, np.int32)}, "one dimension"),
        (REPORT, {"payload": [1, 2]}, "payload of type list"),
        (MODEL, {"significant": 1}, "significant=1"),
        (MODEL, {"n_reports": (-1,)}, "n_reports=-1"),
        (MODEL, {"item_means": np.array([np.nan])}, "not finite"),
        (MODEL, {"user_damping": float("inf")}, "user_damping=inf"),
        (MODEL, {"factors": np.ones(3)}, "factors and factor_damping belong to factor_items"),
        (MODEL, {"factor_damping": 0.5}, "factor_damping="),
        (MODEL, {"factor_damping": float("nan")}, "factor_damping=nan"),
        (FACTORS, {"factor_items": None}, "belong to factor_items"),
        (FACTORS, {"factors": None}, "factors of type NoneType"),
        (FACTORS, {"factors": np.ones(3)}, "factors has 3 values"),
        (FACTORS, {"factors": np.ones((2, 2))}, "one dimension"),
        (FACTORS, {"factors": np.ones(4, np.float32)}, "factors of dtype float32"),
        (FACTORS, {"factors": np.array([0.0, np.nan])}, "not finite"),
        (FACTORS, {"factors": np.array([0.0, 101.0])}, "factors must have values in"),
        (FACTORS, {"factors": np.array([0.0, -101.0])}, "factors must have values in"),
        (FACTORS, {"factor_items": np.array([0])}, "factor_items has 1 values"),
        (FACTORS, {"factor_items": np.array([0, 1, 2, 3])}, "factor_items has 4 values"),
        (FACTORS, {"factor_items": np.array([1, 0])}, "factor_items must have ascending"),
        (FACTORS, {"factor_items": np.array([0, 3])}, "factor_items must have ascending"),
        (FACTORS, {"factor_items": np.array([0, 2], np.int32)}, "factor_items of dtype int32"),
        (FACTORS, {"factor_damping": 0.0}, "factor_damping=0.0"),
        (FACTORS, {"factor_damping": 1e-4}, "factor_damping=0.0001"),
        (FACTORS, {"factor_damping": 1e7}, "factor_damping="),
        (FACTORS, {"factor_damping": "1"}, "factor_damping='1'"),
    ],
)
def test_wrong_fields_are_refused(message, change, words):
    with pytest.raises(MessageError, match=words):
        dataclasses.replace(message, **change)


def rebuilt(message, change):
    """JSON of a message whose fields were changed behind its back."""
    plain = json.loads(message.to_json())
    change(plain)
    return json.dumps(plain)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda m: m.pop("round"), r"missing: \['round'\]"),
        (lambda m: m.update(extra=1), r"unknown: \['extra'\]"),
        (lambda m: m.pop("version"), "'version' is missing"),
        (lambda m: m.update(version=2), "version=2"),
        (lambda m: m.update(type="model"), "'type' must be 'report'"),
        (lambda m: m.update(round=float("nan")), "NaN must be finite"),
        (lambda m: m.pop("payload"), "payload of type NoneType"),
        (lambda m: m.update(payload=[1, 2]), "payload must be an object"),
        (lambda m: m["payload"].update(dtype="|O"), "dtype must be '<i4'"),
        (lambda m: m["payload"].update(dtype=">i4"), "dtype must be '<i4'"),
        (lambda m: m["payload"].update(length=3), "payload: "),
        (lambda m: m["payload"].update(length=-1), "length must be an integer"),
        (lambda m: m["payload"].update(length=4.0), "length must be an integer"),
        (lambda m: m["payload"].update(length=2**62), "must stand for"),
        (lambda m: m["payload"].update(base64="!" * 24), "base64"),
        (lambda m: m["payload"].update(base64="é" * 24), "base64"),
        (lambda m: m["payload"].update(base64=None), "base64"),
        (lambda m: m["payload"].update(more=1), "payload must be an object with"),
        (lambda m: m.update(payload=[[]] * 5000), "commas and brackets"),
    ],
)
def test_broken_json_is_refused(change, words):
    assert Report.from_json(rebuilt(REPORT, lambda m: None)) == REPORT
    with pytest.raises(MessageError, match=words):
        Report.from_json(rebuilt(REPORT, change))


@pytest.mark.parametrize(
    "text",
    ["", "[]", "null", "{", '{"type":"report"}', "[" * 4000, '"\ud800"', b"{}", None, "9" * 5000],
)
def test_other_texts_are_refused(text):
    with pytest.raises(MessageError):
        Report.from_json(text)


def test_a_field_that_stands_twice_is_refused():
    text = REPORT.to_json().replace('"round":1', '"round":1,"round":2')
    with pytest.raises(MessageError, match="twice"):
        Report.from_json(text)


def framed(header, rest=b"", version=1, length=None):
    return struct.pack("<6sHI", b"SKDPMF", version, len(header) if length is None else length) + (
        header + rest
    )


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "too few"),
        (REPORT.to_bytes()[:11], "too few"),
        (b"X" + REPORT.to_bytes()[1:], "first bytes"),
        (framed(b"{}", version=2), "version=2"),
        (framed(b"{}", length=3), "a header of 3 bytes"),
        (framed(b"{}", length=2**32 - 1), "a header of 4294967295 bytes"),
        (framed(b" " * 70_000), "at most 65536"),
        (framed(b"\xff\xfe{\x00}\x00"), "no JSON"),
        (framed(b"[" * 60_000), "no JSON"),
        (REPORT.to_bytes() + b"\0", "17 bytes of arrays must be 16"),
        (REPORT.to_bytes()[:-1], "15 bytes of arrays must be 16"),
        (MODEL.to_bytes(), "'type' must be 'report'"),
        ("text", "type str must be bytes"),
        (None, "type NoneType"),
    ],
)
def test_broken_bytes_are_refused(data, words):
    with pytest.raises(MessageError, match=words):
        Report.from_bytes(data)


def test_a_claimed_length_allocates_nothing():
    header = b'{"type":"report","payload":{"dtype":"<i4","length":4611686018427387904}}'
    claims = [framed(header, b"0" * 64), framed(b"{}", b"0" * 64, length=2**31)]
    tracemalloc.start()
    for data in claims:
        with pytest.raises(MessageError):
            Report.from_bytes(data)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1e6


def test_too_long_messages_are_refused_before_they_are_read(monkeypatch):
    monkeypatch.setattr(messages, "MAX_BYTES", 400)
    assert Report.from_bytes(REPORT.to_bytes()) == REPORT
    long = dataclasses.replace(REPORT, payload=np.zeros(100, np.int32))
    with pytest.raises(MessageError, match="too many"):
        Report.from_bytes(long.to_bytes())
    with pytest.raises(MessageError, match="too many"):
        Report.from_json(long.to_json())


def test_the_largest_messages_fit():
    # header and arrays of the largest catalogue; its base64 as well
    assert messages.MAX_BYTES > 16 * (2**23 - 2) * 4 / 3 + 2**17
    many = tuple([2**40] * 1000)
    shares = (0.0010000000000000001,) * 1000
    Announcement(PROTOCOL, 999, "statistics", 4.0, 3, (1, 5), 10.0, shares).to_bytes()
    model = dataclasses.replace(MODEL, n_reports=many)
    assert ReleasedModel.from_bytes(model.to_bytes()) == model
    assert ReleasedModel.from_json(model.to_json()) == model


@pytest.mark.parametrize("message", MESSAGES)
def test_damaged_messages_raise_nothing_else(message):
    rng = np.random.default_rng(61)
    kind, data, text = type(message), message.to_bytes(), message.to_json()
    refused = 0
    for _ in range(600):
        damaged = bytearray(data)
        for at in rng.integers(0, len(data), rng.integers(1, 4)):
            damaged[at] ^= 1 << rng.integers(0, 8)
        letters = list(text)
        for at in rng.integers(0, len(text), rng.integers(1, 4)):
            letters[at] = chr(rng.integers(1, 0x250))
        cut = int(rng.integers(0, len(data)))
        for read, broken in (
            (kind.from_bytes, bytes(damaged)),
            (kind.from_bytes, data[:cut]),
            (kind.from_bytes, data[:cut] + data[cut + 1 :]),
            (kind.from_bytes, data[:cut] + bytes(damaged)),
            (kind.from_json, "".join(letters)),
            (kind.from_json, text[: int(rng.integers(0, len(text)))]),
        ):
            try:
                found = read(broken)
            except MessageError:
                refused += 1
            else:
                assert kind.from_bytes(found.to_bytes()) == found
    assert refused > 2400


@pytest.mark.parametrize("fractions", [(1.0,), (0.5, 0.5), (0.1, 0.2, 0.7), (1e-6, 1 - 1e-6)])
def test_groups_have_the_announced_sizes(fractions):
    announcement = dataclasses.replace(FIRST, fractions=fractions)
    n = 5000
    ids = [derived_key(62, str(i))[:16].hex() for i in range(n)]
    groups = np.bincount([announcement.group_of(i) for i in ids], minlength=len(fractions))
    assert groups.size == len(fractions)
    # false alarm of each: 1e-7
    for size, share in zip(groups, fractions, strict=True):
        assert stats.binom.sf(size - 1, n, share) > 5e-8
        assert stats.binom.cdf(size, n, share) > 5e-8
    # one and the same hash of public values in every round of a protocol; another in another
    later = dataclasses.replace(announcement, round=len(fractions) - 1, epsilon=1.0)
    assert [later.group_of(i) for i in ids] == [announcement.group_of(i) for i in ids]
    if fractions == (0.5, 0.5):
        other = dataclasses.replace(announcement, protocol=ID)
        differ = sum(other.group_of(i) != announcement.group_of(i) for i in ids)
        assert 0 < stats.binom.cdf(differ, n, 0.5) < 1 - 1e-7
        assert differ > 0.4 * n


def test_group_is_the_published_hash():
    import hashlib

    for report_id in (ID, PROTOCOL, "0" * 32):
        text = bytes.fromhex(PROTOCOL) + bytes.fromhex(report_id)
        digest = hashlib.blake2b(text, digest_size=8, person=b"skdpmf group").digest()
        place = int.from_bytes(digest, "little") / 2**64
        expected = sum(place >= edge for edge in itertools.accumulate((0.1, 0.2)))
        assert FIRST.group_of(report_id) == expected


def test_dimensions_of_reports():
    # with the dummy: 2m + 3, m + 1, and this with one for each pair and one for their scale
    assert [a.dimension for a in (FIRST, LATER, LAST)] == [10, 5, 4 + 2 + 1]


def test_factor_matrix_has_all_items():
    expected = [[0.1, -100.0], [0.0, 0.0], [1e-300, 1 / 3]]
    assert FACTORS.factor_matrix.tolist() == expected
    assert MODEL.factor_matrix.shape == (3, 0)
    # limits are those of the rating scale: 400 is a hundred quarters of 0 to 16
    wide = dataclasses.replace(
        FACTORS, rating_range=(0, 16), factors=np.array([400.0, 0.0]), factor_damping=16e6
    )
    assert wide.factor_matrix.shape == (3, 1)
    with pytest.raises(MessageError, match="factor_damping="):
        dataclasses.replace(wide, factor_damping=0.015)


def test_repr_shows_no_arrays():
    aggregator, device = make_aggregator(3), make_device(0, 3)
    report = device.report(dataclasses.replace(aggregator.announcement, fractions=(1.0,)))
    assert "payload" not in repr(report)
    assert "item_means" not in repr(LATER)
    assert "head" not in repr(LAST)
    assert "factors" not in repr(FACTORS)
    assert "factor_items" not in repr(FACTORS)
