"""ChaCha20 as a random-access source (RFC 8439), and what is read straight off it.

The block function maps a 256-bit key and 128 bits of position (the words 12 to 15 of the state:
RFC 8439 calls them counter and nonce) to 64 bytes. Here the four position words are chosen
freely for each block, so that any value of a stream can be computed alone, by any thread, in any
order. Streams with different purposes have different keys (see `noise.stream_key`).

A batch of ``LANES`` blocks is computed together, one lane of a flat array for each: word ``w`` of
lane ``l`` stands at ``w * LANES + l``. The inner loop over lanes is what the compiler vectorises.

Source: Y. Nir, A. Langley, "ChaCha20 and Poly1305 for IETF Protocols", RFC 8439 (2018).
"""

from __future__ import annotations

import numpy as np

from skdpmf.kernels.jit_and_threads import jit, part

__all__ = ["LANES", "chacha", "chacha_block", "compiled", "join_words", "slot_words"]

# Exact bits are needed: no fastmath. One thread a call, so that results never depend on threads.
compiled, inlined = jit, part

LANES = 64

_MASK32 = np.int64(0xFFFFFFFF)
_S7, _S8, _S12, _S16 = np.uint32(7), np.uint32(8), np.uint32(12), np.uint32(16)
_S20, _S24, _S25 = np.uint32(20), np.uint32(24), np.uint32(25)
_S32 = np.uint64(32)
# "expand 32-byte k", the constant of the state's first row
_C0, _C1 = np.uint32(0x61707865), np.uint32(0x3320646E)
_C2, _C3 = np.uint32(0x79622D32), np.uint32(0x6B206574)


@inlined
def _quarter(x, lanes, a, b, c, d):  # type: ignore[no-untyped-def]
    """One quarter round on the words ``a, b, c, d`` of every lane, in place."""
    for lane in range(lanes):
        ia, ib, ic, id_ = a * lanes + lane, b * lanes + lane, c * lanes + lane, d * lanes + lane
        p, q, r, s = x[ia], x[ib], x[ic], x[id_]
        p = np.uint32(p + q)
        s = np.uint32(s ^ p)
        s = np.uint32(np.uint32(s << _S16) | np.uint32(s >> _S16))
        r = np.uint32(r + s)
        q = np.uint32(q ^ r)
        q = np.uint32(np.uint32(q << _S12) | np.uint32(q >> _S20))
        p = np.uint32(p + q)
        s = np.uint32(s ^ p)
        s = np.uint32(np.uint32(s << _S8) | np.uint32(s >> _S24))
        r = np.uint32(r + s)
        q = np.uint32(q ^ r)
        q = np.uint32(np.uint32(q << _S7) | np.uint32(q >> _S25))
        x[ia], x[ib], x[ic], x[id_] = p, q, r, s


@compiled
def chacha(key, lanes, words):  # type: ignore[no-untyped-def]
    """Compute so many blocks, and leave their positions as they are.

    key (8,) uint32: the key's little-endian words; words (20 * lanes,) uint32, word-major: 16 to
    19 of each lane hold the words 12 to 15 of its state, and 0 to 15 receive its block.
    """
    for lane in range(lanes):
        words[lane], words[lanes + lane] = _C0, _C1
        words[2 * lanes + lane], words[3 * lanes + lane] = _C2, _C3
        for word in range(8):
            words[(4 + word) * lanes + lane] = key[word]
    for i in range(4 * lanes):
        words[12 * lanes + i] = words[16 * lanes + i]
    for _ in range(10):
        for turn in range(2):
            for a in range(4):
                b, c, d = 4 + (a + turn) % 4, 8 + (a + 2 * turn) % 4, 12 + (a + 3 * turn) % 4
                _quarter(words, lanes, a, b, c, d)
    for lane in range(lanes):
        words[lane] = np.uint32(words[lane] + _C0)
        words[lanes + lane] = np.uint32(words[lanes + lane] + _C1)
        words[2 * lanes + lane] = np.uint32(words[2 * lanes + lane] + _C2)
        words[3 * lanes + lane] = np.uint32(words[3 * lanes + lane] + _C3)
        for word in range(8):
            at = (4 + word) * lanes + lane
            words[at] = np.uint32(words[at] + key[word])
    for i in range(4 * lanes):
        words[12 * lanes + i] = np.uint32(words[12 * lanes + i] + words[16 * lanes + i])


@compiled
def chacha_block(key, p0, p1, p2, p3, block):  # type: ignore[no-untyped-def]
    """Compute the block at the position words ``p0`` to ``p3`` into ``block`` (20 words)."""
    block[16], block[17] = np.uint32(p0), np.uint32(p1)
    block[18], block[19] = np.uint32(p2), np.uint32(p3)
    chacha(key, 1, block)


@inlined
def join_words(low, high):  # type: ignore[no-untyped-def]
    """Return the 64-bit word made of two 32-bit ones."""
    return np.uint64(np.uint64(high) << _S32) | np.uint64(low)


@compiled
def slot_words(key, indptr, indices, first_slot, start, stop, out):  # type: ignore[no-untyped-def]
    """Give each stored entry of rows [start, stop) the first 64 bits of its own block.

    The block of an entry stands at (item, slot) and nowhere else, so a value depends on the
    key, the slot and the item alone (``first_slot`` is the slot of row 0).
    """
    words = np.empty(20 * LANES, np.uint32)
    words[:] = 0
    row = start
    end = indptr[stop]
    entry = indptr[start]
    while entry < end:
        count = min(LANES, end - entry)
        for lane in range(count):
            while entry + lane >= indptr[row + 1]:
                row += 1
            item = np.int64(indices[entry + lane])
            slot = np.int64(first_slot + row)
            words[16 * LANES + lane] = np.uint32(item & _MASK32)
            words[17 * LANES + lane] = np.uint32((item >> 32) & _MASK32)
            words[18 * LANES + lane] = np.uint32(slot & _MASK32)
            words[19 * LANES + lane] = np.uint32((slot >> 32) & _MASK32)
        chacha(key, LANES, words)
        for lane in range(count):
            out[entry + lane] = join_words(words[lane], words[LANES + lane])
        entry += count
