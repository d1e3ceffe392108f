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
from numba import njit

__all__ = ["LANES", "chacha_block", "chacha_lanes", "compiled", "join_words", "slot_words"]

# Exact bits are needed: no fastmath. One thread a call, so that results never depend on threads.
compiled = njit(cache=True, nogil=True, error_model="numpy")

LANES = 64

_MASK32 = np.int64(0xFFFFFFFF)
_S7, _S8, _S12, _S16 = np.uint32(7), np.uint32(8), np.uint32(12), np.uint32(16)
_S20, _S24, _S25 = np.uint32(20), np.uint32(24), np.uint32(25)
_S32 = np.uint64(32)
# "expand 32-byte k", the constant of the state's first row
_C0, _C1 = np.uint32(0x61707865), np.uint32(0x3320646E)
_C2, _C3 = np.uint32(0x79622D32), np.uint32(0x6B206574)


@compiled
def _quarter_round(a, b, c, d):  # type: ignore[no-untyped-def]
    """One quarter round; every argument and result is a uint32."""
    a = np.uint32(a + b)
    d = np.uint32(d ^ a)
    d = np.uint32(np.uint32(d << _S16) | np.uint32(d >> _S16))
    c = np.uint32(c + d)
    b = np.uint32(b ^ c)
    b = np.uint32(np.uint32(b << _S12) | np.uint32(b >> _S20))
    a = np.uint32(a + b)
    d = np.uint32(d ^ a)
    d = np.uint32(np.uint32(d << _S8) | np.uint32(d >> _S24))
    c = np.uint32(c + d)
    b = np.uint32(b ^ c)
    b = np.uint32(np.uint32(b << _S7) | np.uint32(b >> _S25))
    return a, b, c, d


@compiled
def _quarter_lanes(x, lanes, a, b, c, d):  # type: ignore[no-untyped-def]
    """A quarter round on the words ``a, b, c, d`` of every lane, in place."""
    for lane in range(lanes):
        ia, ib, ic, id_ = a * lanes + lane, b * lanes + lane, c * lanes + lane, d * lanes + lane
        x[ia], x[ib], x[ic], x[id_] = _quarter_round(x[ia], x[ib], x[ic], x[id_])


def _chacha(lanes):  # type: ignore[no-untyped-def]
    """Return the function that computes so many blocks at once."""

    @compiled
    def blocks(key, position, out):  # type: ignore[no-untyped-def]
        """Compute the blocks.

        key (8,) uint32: the key's little-endian words; position (4 * lanes,) uint32: the words 12
        to 15 of each lane's state, word-major; out (16 * lanes,) uint32: the blocks' words,
        word-major.
        """
        for lane in range(lanes):
            out[lane], out[lanes + lane] = _C0, _C1
            out[2 * lanes + lane], out[3 * lanes + lane] = _C2, _C3
        for word in range(8):
            for lane in range(lanes):
                out[(4 + word) * lanes + lane] = key[word]
        for i in range(4 * lanes):
            out[12 * lanes + i] = np.uint32(position[i])
        for _ in range(10):
            # loops, as each call with constants would be compiled for itself
            for a in range(4):
                _quarter_lanes(out, lanes, a, 4 + a, 8 + a, 12 + a)
            for a in range(4):
                _quarter_lanes(out, lanes, a, 4 + (a + 1) % 4, 8 + (a + 2) % 4, 12 + (a + 3) % 4)
        for lane in range(lanes):
            out[lane] = np.uint32(out[lane] + _C0)
            out[lanes + lane] = np.uint32(out[lanes + lane] + _C1)
            out[2 * lanes + lane] = np.uint32(out[2 * lanes + lane] + _C2)
            out[3 * lanes + lane] = np.uint32(out[3 * lanes + lane] + _C3)
        for word in range(8):
            for lane in range(lanes):
                at = (4 + word) * lanes + lane
                out[at] = np.uint32(out[at] + key[word])
        for i in range(4 * lanes):
            out[12 * lanes + i] = np.uint32(out[12 * lanes + i] + np.uint32(position[i]))

    return blocks


chacha_lanes, _one_block = _chacha(LANES), _chacha(1)


@compiled
def chacha_block(key, p0, p1, p2, p3, out):  # type: ignore[no-untyped-def]
    """Compute one block into ``out`` (16 words) at position words ``p0`` to ``p3`` (integers)."""
    _one_block(key, (np.int64(p0), np.int64(p1), np.int64(p2), np.int64(p3)), out)


@compiled
def join_words(low, high):  # type: ignore[no-untyped-def]
    """Return the 64-bit word made of two 32-bit ones."""
    return np.uint64(np.uint64(high) << _S32) | np.uint64(low)


@compiled
def slot_words(key, indptr, indices, first_slot, start, stop, out):  # type: ignore[no-untyped-def]
    """Give each stored entry of rows [start, stop) the first 64 bits of its own block.

    The block of an entry stands at (item, slot) and nowhere else, so a value depends on the
    key, the slot and the item alone (``first_slot`` is the slot of row 0).
    """
    position = np.zeros(4 * LANES, np.uint32)
    words = np.empty(16 * LANES, np.uint32)
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
            position[lane] = np.uint32(item & _MASK32)
            position[LANES + lane] = np.uint32((item >> 32) & _MASK32)
            position[2 * LANES + lane] = np.uint32(slot & _MASK32)
            position[3 * LANES + lane] = np.uint32((slot >> 32) & _MASK32)
        chacha_lanes(key, position, words)
        for lane in range(count):
            out[entry + lane] = join_words(words[lane], words[LANES + lane])
        entry += count
