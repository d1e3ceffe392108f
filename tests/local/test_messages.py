"""Messages: both encodings there and back, and everything that must be refused."""

import base64
import itertools
import json
import subprocess
import sys
import tracemalloc

import msgspec
import numpy as np
import pytest

from skdpmf.local import Announcement, ReleasedModel, messages
from skdpmf.local.messages import MessageError, Report, VersionError

from .common import PROTOCOL, replace

ID = "ffeeddccbbaa99887766554433221100"
FIRST = Announcement(PROTOCOL, 0, "statistics", 4.0, 3, (1, 5), 10.0, (0.1, 0.2, 0.7))
LATER = Announcement(
    *(PROTOCOL, 2, "residuals", 0.1, 3, (-0.5, 1 / 3), 0.1, (0.1, 0.2, 0.7)),
    np.array([0.1, -2.0, 1e-300]),
    np.array([1.0, 1e9, 0.5]),
)
REPORT = Report(PROTOCOL, 1, ID, np.array([-(2**31), 0, 2**31 - 1, 7], np.int32))
MODEL = ReleasedModel(
    PROTOCOL,
    np.array([3.5, 0.1, -7e99]),
    1 / 3,
    (1, 5),
    4.0,
    (0, 12),
    True,
    np.array([0.3, 1e9, 1e-9]),
)
MESSAGES = [FIRST, LATER, REPORT, MODEL]
FIELDS = {
    Announcement: "protocol round kind epsilon n_items rating_range user_damping fractions "
    "item_means mass n_devices version",
    Report: "protocol round report_id payload version",
    ReleasedModel: "protocol item_means user_damping rating_range epsilon n_reports significant "
    "popularity version",
}


def same(a, b):
    """Whether two messages agree in every bit and type of every field."""
    for name in FIELDS[type(a)].split():
        x, y = getattr(a, name), getattr(b, name)
        assert type(x) is type(y)
        if isinstance(x, np.ndarray):
            assert (x.dtype, x.tobytes(), y.flags.writeable) == (y.dtype, y.tobytes(), False)
        else:
            assert x == y
    return True


@pytest.mark.parametrize("message", MESSAGES)
def test_both_encodings_lead_back(message):
    kind = type(message)
    assert tuple(FIELDS[kind].split()) == kind.__struct_fields__
    there = [kind.from_bytes(message.to_bytes()), kind.from_json(message.to_json())]
    # and across
    there += [kind.from_json(there[0].to_json()), kind.from_bytes(there[1].to_bytes())]
    for other in there:
        assert same(message, other)
        assert message == other
        assert hash(message) == hash(other)


def test_layout_of_a_report():
    # what a device in another language has to write
    values = np.array([-(2**31), 0, 2**31 - 1, 7], "<i4").tobytes()
    fields = {"type": "report", "protocol": PROTOCOL, "round": 1, "report_id": ID}
    fields = {**fields, "payload": values, "version": 3}
    assert msgspec.msgpack.decode(REPORT.to_bytes()) == fields
    assert len(REPORT.to_bytes()) == 126 + len(values)
    plain = {**fields, "payload": base64.b64encode(values).decode()}
    assert json.loads(REPORT.to_json()) == plain
    shuffled = dict(sorted(fields.items()))
    assert Report.from_bytes(msgspec.msgpack.encode(shuffled)) == REPORT
    assert Report.from_json(json.dumps(plain, indent=2)) == REPORT


WRONG = [
    (FIRST, "protocol", ["0" * 31, "0" * 32 + "\n", "G" * 32, None, 3]),
    (FIRST, "round", [3, 1000, -1, 0.0, False]),
    (FIRST, "kind", ["gradient", None]),
    (FIRST, "epsilon", [0.0, 16.1, float("nan"), "1", True]),
    (FIRST, "n_items", [0, 2**23 - 1, 3.0]),
    (FIRST, "rating_range", [(5, 1), (1, 2, 3), (1, 10**400), (1, [10**5000]), (1, float("inf"))]),
    (FIRST, "rating_range", [(1, float("nan")), (0, 1e-200), 5, None]),
    (FIRST, "user_damping", [0.0, 1e7, 10**400]),
    (FIRST, "fractions", [(), (0.5, 0.4), (1.0, 0.0), (1.5, -0.5), (1 / 1001,) * 1001, 1.0]),
    (FIRST, "version", [1, 2, 4, True, "3"]),
    (FIRST, "mass", [np.ones(3)]),
    (FIRST, "n_devices", [-1, 0.5, None]),
    (LATER, "mass", [None, [1.0], np.ones(4), np.zeros(3), np.array([1.0, np.nan, 1.0])]),
    (LATER, "item_means", [None, np.ones(3, np.float32), np.full(3, 1e7), np.full(3, np.inf)]),
    (REPORT, "report_id", [ID[:-1], None]),
    (REPORT, "round", [1000]),
    (REPORT, "payload", [np.zeros(4), np.zeros(4, np.int64), [1, 2], None]),
    (REPORT, "payload", [np.zeros((2, 2), np.int32), np.zeros(0, np.int32)]),
    (MODEL, "significant", [1, None]),
    (MODEL, "n_reports", [(-1,), (), (2**63,), (1.0,)]),
    (MODEL, "item_means", [np.array([np.nan]), np.zeros(0)]),
    (MODEL, "user_damping", [float("inf"), 0.0]),
    (MODEL, "popularity", [None, np.ones(2), np.array([1.0, 0.0, 1.0])]),
]


@pytest.mark.parametrize(
    ("message", "name", "value"),
    [(message, name, value) for message, name, values in WRONG for value in values],
)
def test_wrong_fields_are_refused(message, name, value):
    with pytest.raises(MessageError, match=name):
        replace(message, **{name: value})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda m: m.pop("round"), "required field `round`"),
        (lambda m: m.update(extra=1), "unknown field `extra`"),
        (lambda m: m.pop("version"), "the fields 'type' and 'version'"),
        (lambda m: m.pop("type"), "the fields 'type' and 'version'"),
        (lambda m: m.update(type="model"), "Invalid value 'model'"),
        (lambda m: m.update(round=float("nan")), "malformed"),
        (lambda m: m.update(payload=[1, 2]), "list must be an array"),
        (lambda m: m.update(payload="AAAAA==="), "no message of type Report"),
        (lambda m: m.update(payload="!" * 24), "no message of type Report"),
        (lambda m: m.update(payload="é" * 24), "no message of type Report"),
        (lambda m: m.update(payload={"more": 1}), "fields of its own"),
    ],
)
def test_broken_json_is_refused(change, words):
    plain = json.loads(REPORT.to_json())
    assert Report.from_json(json.dumps(plain)) == REPORT
    change(plain)
    with pytest.raises(MessageError, match=words):
        Report.from_json(json.dumps(plain))


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
    # also where another one is left out, which may be
    text = FIRST.to_json().replace('"mass":null', '"round":1')
    with pytest.raises(MessageError, match="twice"):
        Announcement.from_json(text)
    data, field = REPORT.to_bytes(), b"\xa5round\x01"
    with pytest.raises(MessageError, match="twice"):
        Report.from_bytes(bytes([data[0] + 1]) + data[1:] + field)


def test_another_version_is_told_apart():
    later = REPORT.to_bytes().replace(b"version\x03", b"version\x04")
    with pytest.raises(VersionError, match="version=4 must be 3"):
        Report.from_bytes(later)
    with pytest.raises(VersionError, match="version=1 must be 3"):
        Report.from_json('{"type":"report","version":1,"something":{"else":0}}')


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "no message of type Report"),
        (REPORT.to_bytes()[:11], "no message of type Report"),
        (b"SKDPMF\x01\x00" + REPORT.to_bytes(), "no message of type Report"),
        (b"\x91" * 100_000, "no message of type Report"),
        (REPORT.to_bytes() + b"\0", "trailing"),
        (REPORT.to_bytes()[:-1], "truncated"),
        (b"\xde\x00\x06" + REPORT.to_bytes()[1:], "twice"),
        (MODEL.to_bytes(), "Invalid value 'model'"),
        ("text", "type str must be bytes"),
        (None, "type NoneType"),
    ],
)
def test_broken_bytes_are_refused(data, words):
    with pytest.raises(MessageError, match=words):
        Report.from_bytes(data)


def test_a_claimed_length_allocates_nothing():
    data = FIRST.to_bytes()
    at = data.index(b"\xa9fractions") + 10
    claims = [
        (Report, b"\xdf\xff\xff\xff\xff" + b"0" * 64),  # fields
        (Report, b"\x82\xa7version\x03\xa7payload\xc6\xff\xff\xff\xff"),  # values
        (Announcement, data[:at] + b"\xdd\x7f\xff\xff\xff" + data[at + 1 :]),  # fractions
    ]
    tracemalloc.start()
    for kind, claim in claims:
        with pytest.raises(MessageError):
            kind.from_bytes(claim)
    nested = REPORT.to_json().replace('"round":1', '"round":' + "[[]," * 5000 + "1" + "]" * 5000)
    with pytest.raises(MessageError):
        Report.from_json(nested)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1e6


def test_too_long_messages_are_refused_before_they_are_read(monkeypatch):
    monkeypatch.setattr(messages, "MAX_BYTES", 400)
    assert Report.from_bytes(REPORT.to_bytes()) == REPORT
    long = replace(REPORT, payload=np.zeros(100, np.int32))
    with pytest.raises(MessageError, match="bytes, and may have 400"):
        Report.from_bytes(long.to_bytes())
    with pytest.raises(MessageError, match="bytes, and may have 400"):
        Report.from_json(long.to_json())


def test_the_largest_messages_fit():
    # fields and arrays of the largest catalogue; its base64 as well
    assert messages.MAX_BYTES > 16 * (2**23 - 2) * 4 / 3 + 2**17
    shares = (0.0010000000000000001,) * 1000
    Announcement(PROTOCOL, 999, "statistics", 4.0, 3, (1, 5), 10.0, shares).to_bytes()
    model = replace(MODEL, n_reports=tuple([2**40] * 1000))
    assert ReleasedModel.from_bytes(model.to_bytes()) == model
    assert ReleasedModel.from_json(model.to_json()) == model


@pytest.mark.parametrize("message", MESSAGES)
def test_damaged_messages_raise_nothing_else(message):
    rng = np.random.default_rng(61)
    kind, data, text = type(message), message.to_bytes(), message.to_json()
    refused = 0
    for _ in range(400):
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
    assert refused > 1600


def test_group_is_the_published_hash():
    import hashlib

    for report_id in (ID, PROTOCOL, "0" * 32):
        text = bytes.fromhex(PROTOCOL) + bytes.fromhex(report_id)
        digest = hashlib.blake2b(text, digest_size=8, person=b"skdpmf group").digest()
        place = int.from_bytes(digest, "little") / 2**64
        expected = sum(place >= edge for edge in itertools.accumulate((0.1, 0.2)))
        assert FIRST.group_of(report_id) == expected


def test_repr_shows_no_arrays():
    shown = [repr(message) for message in (LATER, REPORT, MODEL)]
    for name in ("payload", "item_means", "popularity", "array"):
        assert not any(name in text for text in shown)
    assert "round=1" in shown[1]


WITHOUT = """
import sys
sys.modules["msgspec"] = None
from skdpmf import LocalDPGDDR, PrivacyBudget
from skdpmf.data import make_ratings
from skdpmf.exceptions import MissingExtraError
X = make_ratings(60, 8, random_state=0)
assert LocalDPGDDR(PrivacyBudget(4.0), random_state=0).fit(X).predict(X).shape
try:
    import skdpmf.local
except MissingExtraError as error:
    assert 'pip install "skdpmf[local]"' in str(error)
    print("missing")
"""


def test_without_msgspec_only_real_devices_are_missing():
    run = subprocess.run(
        [sys.executable, "-c", WITHOUT], capture_output=True, text=True, check=False
    )
    assert (run.stdout, run.stderr) == ("missing\n", "")
