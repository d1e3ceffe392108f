"""ChaCha20 against RFC 8439 and a twin on Python integers; per-slot words; in both forms."""

import numpy as np
import pytest

from skdpmf.mechanisms.device_reports.privunit import set_key
from skdpmf.privacy.sampler.cipher import LANES, blocks, chacha, set_position, states
from skdpmf.privacy.sampler.noise import NoiseSource
from skdpmf.privacy.sampler.streams import derived_key, slot_priorities

pytestmark = pytest.mark.usefixtures("form")


def twin_block(key, position):
    """The block function of RFC 8439, section 2.3, on Python integers."""
    mask = 0xFFFFFFFF
    start = [0x61707865, 0x3320646E, 0x79622D32, 0x6B206574, *map(int, key), *position]
    x = list(start)

    def rotate(value, n):
        return ((value << n) | (value >> (32 - n))) & mask

    def quarter(a, b, c, d):
        for i, j, k, n in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
            x[i] = (x[i] + x[j]) & mask
            x[k] = rotate(x[k] ^ x[i], n)

    for _ in range(10):
        for a in range(4):
            quarter(a, a + 4, a + 8, a + 12)
        for a in range(4):
            quarter(a, 4 + (a + 1) % 4, 8 + (a + 2) % 4, 12 + (a + 3) % 4)
    return [(u + v) & mask for u, v in zip(x, start, strict=True)]


def words(text):
    return np.frombuffer(bytes.fromhex(text), "<u4").astype(np.uint32)


ZERO, COUNTING = "00" * 32, bytes(range(32)).hex()
# RFC 8439, section 2.3.2 and appendix A.1, test vectors 1 and 2
VECTORS = [
    (
        COUNTING,
        [1, 0x09000000, 0x4A000000, 0],
        "10f1e7e4d13b5915500fdd1fa32071c4c7d1f4c733c068030422aa9ac3d46c4e"
        "d2826446079faa0914c2d705d98b02a2b5129cd1de164eb9cbd083e8a2503c4e",
    ),
    (
        ZERO,
        [0, 0, 0, 0],
        "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
        "da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586",
    ),
    (
        ZERO,
        [1, 0, 0, 0],
        "9f07e7be5551387a98ba977c732d080dcb0f29a048e3656912c6533e32ee7aed"
        "29b721769ce64e43d57133b074d839d531ed1f28510afb45ace10a1f4b794d6f",
    ),
]


@pytest.mark.parametrize(("key", "position", "block"), VECTORS)
def test_block_function_gives_the_vectors_of_the_rfc(key, position, block):
    out = states(words(key), 1)
    out[28:] = position
    chacha(out, 1)
    np.testing.assert_array_equal(out[:16], words(block))
    assert out[28:].tolist() == position
    assert twin_block(words(key), position) == out[:16].tolist()


@pytest.mark.parametrize("lanes", [1, 3, LANES, 700])
@pytest.mark.parametrize("own_keys", [False, True])
def test_lanes_are_the_blocks_of_their_keys_and_positions(lanes, own_keys):
    rng = np.random.RandomState(0)
    keys = rng.randint(2**32, size=(lanes if own_keys else 1, 8), dtype=np.uint64).astype("u4")
    low, high = rng.randint(-(2**63), 2**63 - 1, size=(2, lanes))
    out = blocks(keys if own_keys else keys[0], low, high, chacha)
    for lane in range(lanes)[:: 1 + lanes // 50]:
        position = [
            p >> by & 0xFFFFFFFF for p in map(int, (low[lane], high[lane])) for by in (0, 32)
        ]
        assert twin_block(keys[lane % len(keys)], position) == out[:, lane].tolist()


def test_compiled_states_are_those_of_numpy():
    key, out = words(COUNTING), np.zeros(32 * 5, np.uint32)
    set_key.function(out, 5, key)
    np.testing.assert_array_equal(out, states(key, 5))
    set_position.function(out, 5, 2, np.int64(1 << 40 | 7), np.int64(-1))
    assert out.reshape(32, 5)[28:, 2].tolist() == [7, 256, 2**32 - 1, 2**32 - 1]
    assert not out.reshape(32, 5)[28:, [0, 1, 3, 4]].any()


KEY = derived_key(3, "chacha tests")


def csr(rows):
    indptr = np.cumsum([0, *map(len, rows)])
    return indptr, np.array([item for row in rows for item in row], dtype=np.int32)


def test_a_priority_depends_on_slot_and_item_only():
    rng = np.random.RandomState(1)
    rows = [rng.choice(900, rng.choice([0, 1, 5, 64, 200]), replace=False) for _ in range(40)]
    base = slot_priorities(KEY, "trim", *csr(rows))
    changed = list(rows)
    changed[7] = np.arange(900)  # one user now has everything
    indptr, indices = csr(changed)
    other = slot_priorities(KEY, "trim", indptr, indices)
    before = csr(rows)[0]
    for slot in range(40):
        if slot != 7:
            np.testing.assert_array_equal(
                base[before[slot] : before[slot + 1]], other[indptr[slot] : indptr[slot + 1]]
            )
    table = dict(zip(indices[indptr[7] : indptr[8]], other[indptr[7] : indptr[8]], strict=True))
    assert [table[i] for i in rows[7]] == base[before[7] : before[8]].tolist()
    # a block of rows gives what the whole gives, and so does another index dtype
    block_indptr = indptr[5:11] - indptr[5]
    block = slot_priorities(
        KEY, "trim", block_indptr, indices[indptr[5] : indptr[10]].astype(np.int64), first_slot=5
    )
    np.testing.assert_array_equal(block, other[indptr[5] : indptr[10]])


def test_priorities_differ_between_slots_items_purposes_and_keys():
    rows = csr([np.arange(50)] * 50)
    draws = [
        slot_priorities(KEY, "trim", *rows),
        slot_priorities(KEY, "sample", *rows),
        slot_priorities(derived_key(4), "trim", *rows),
        slot_priorities(KEY, "trim", *rows, first_slot=50),
        slot_priorities(KEY, "trim", *rows, first_slot=2**32),
    ]
    assert np.unique(np.concatenate(draws)).size == 5 * 2500  # a repeat by chance: 4e-12
    source = NoiseSource(KEY)
    own = slot_priorities(source.row_key(), "trim", *rows)
    np.testing.assert_array_equal(own, source.slot_priorities("trim", *rows))


def test_priorities_choose_uniform_subsets():
    # 4,000 slots keep 3 of 10 items; each item's count is binomial(4,000, .3) (sd 29).
    # Seven sds in any of 10 or 45 counts: false alarm below 1e-9; the key is fixed besides.
    priorities = slot_priorities(KEY, "trim", *csr([np.arange(10)] * 4000)).reshape(-1, 10)
    kept = priorities <= np.sort(priorities, axis=1)[:, 2:3]
    assert (kept.sum(axis=1) == 3).all()
    counts = kept.sum(axis=0)
    assert np.abs(counts - 1200).max() < 7 * np.sqrt(4000 * 0.3 * 0.7)
    pairs = kept.astype(int).T @ kept.astype(int)
    p = 3 * 2 / (10 * 9)
    off = pairs[~np.eye(10, dtype=bool)]
    assert np.abs(off - 4000 * p).max() < 7 * np.sqrt(4000 * p * (1 - p))
