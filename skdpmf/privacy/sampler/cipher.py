"""ChaCha20 as a random-access source (RFC 8439), and the keys of its streams.

The block function maps a 256-bit key and 128 bits of position (the words 12 to 15 of the state:
RFC 8439 calls them counter and nonce) to 64 bytes. Here the four position words are chosen
freely for each block, so that any value of a stream can be computed alone, by any thread, in any
order. Streams with different purposes have different keys (`stream_key`).

A batch of blocks is computed together, one lane of a flat array for each: word ``w`` of lane ``l``
stands at ``w * lanes + l``. Words 0 to 15 receive the block; 16 to 31 are the state that it is made
of: constant, key and position. The inner loop over lanes is what the compiler vectorises.

Either form gives the same bits: both are additions, shifts and exclusive ors of 32-bit words.

Source: Y. Nir, A. Langley, "ChaCha20 and Poly1305 for IETF Protocols", RFC 8439 (2018).
"""

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skdpmf.exceptions import require_that
from skdpmf.kernels.jit_and_threads import jit, part

LANES = 64
KEY_BYTES = 32
MOST_LANES = 1 << 13  # blocks that a plain form computes at once, to bound its memory

EXPAND = np.frombuffer(b"expand 32-byte k", "<u4").astype(np.uint32)  # the state's first row
_MASK32 = np.int64(0xFFFFFFFF)
_S7, _S8, _S12, _S16 = np.uint32(7), np.uint32(8), np.uint32(12), np.uint32(16)
_S20, _S24, _S25 = np.uint32(20), np.uint32(24), np.uint32(25)
_S32 = np.uint64(32)


@part
def _quarter(p, q, r, s):
    """Return the four words, or columns of words, after a quarter round."""
    p = np.uint32(p + q)
    s = s ^ p
    s = np.uint32(s << _S16 | s >> _S16)
    r = np.uint32(r + s)
    q = q ^ r
    q = np.uint32(q << _S12 | q >> _S20)
    p = np.uint32(p + q)
    s = s ^ p
    s = np.uint32(s << _S8 | s >> _S24)
    r = np.uint32(r + s)
    q = q ^ r
    q = np.uint32(q << _S7 | q >> _S25)
    return p, q, r, s


def _chacha_plain(words, lanes):
    """Compute the blocks by rounds of whole rows, which turn for the diagonals and back."""
    a, b, c, d = words[16 * lanes :].reshape(4, 4, lanes)
    ahead, across, back = [1, 2, 3, 0], [2, 3, 0, 1], [3, 0, 1, 2]
    for first, last in ((ahead, back), (back, ahead)) * 10:
        a, b, c, d = _quarter.function(a, b, c, d)
        b, c, d = b[first], c[across], d[last]
    words[: 16 * lanes] = np.concatenate((a, b, c, d)).ravel() + words[16 * lanes :]


@jit(plain=_chacha_plain)
def chacha(words, lanes):
    """Compute so many blocks from the states in ``words``, (32 * lanes,) uint32."""
    half = 16 * lanes
    for i in range(half):
        words[i] = words[half + i]
    for step in range(80):  # one loop, since nested ones take three times as long to compile
        first, turn = step & 3, step >> 2 & 1
        a, b = lanes * first, lanes * ((first + turn & 3) + 4)
        c, d = lanes * ((first + 2 * turn & 3) + 8), lanes * ((first + 3 * turn & 3) + 12)
        for i in range(lanes):
            p, q, r, s = _quarter(words[a + i], words[b + i], words[c + i], words[d + i])
            words[a + i], words[b + i], words[c + i], words[d + i] = p, q, r, s
    for i in range(half):
        words[i] += words[half + i]


@part
def set_position(words, lanes, lane, low, high):
    """Set the position of a lane's block, given as two integers of 64 bits."""
    at = 28 * lanes + lane
    words[at], words[at + lanes] = low & _MASK32, low >> 32 & _MASK32
    words[at + 2 * lanes], words[at + 3 * lanes] = high & _MASK32, high >> 32 & _MASK32


def states(key, lanes):
    """Return ``words`` for blocks of a key, or of a key for each lane, at position 0.

    A thread that computes blocks has words of its own. key (8,) or (lanes, 8) uint32: in
    little-endian order.
    """
    words = np.zeros((32, lanes), np.uint32)
    words[16:20], words[20:28] = EXPAND[:, np.newaxis], np.broadcast_to(key, (lanes, 8)).T
    return words.ravel()


def blocks(key, low, high, compute):
    """Return the blocks (16, n) at positions that are given as two (n,) int64 arrays.

    key: as for `states`; compute: `chacha`, or its plain form.
    """
    words = states(key, low.shape[0])
    words[28 * low.shape[0] :] = np.concatenate((low, low >> 32, high, high >> 32)) & _MASK32
    compute(words, low.shape[0])
    return words.reshape(32, -1)[:16]


@part
def join_words(low, high):
    """Return the 64-bit word made of two 32-bit ones."""
    return np.uint64(high) << _S32 | np.uint64(low)


def require_key(key: Any) -> bytes:
    """Return the key as bytes, or raise without showing it."""
    holds = isinstance(key, bytes | bytearray) and len(key) == KEY_BYTES
    rule = f"bytes, {KEY_BYTES} of them: make a key with fresh_key() or derived_key(seed, ...)."
    require_that(holds, "type of key", type(key).__name__, rule)
    return bytes(key)


def stream_key(key: bytes, purpose: str, name: str, index: int) -> NDArray[np.uint32]:
    """Return the ChaCha20 key of one stream: streams share neither key nor any block."""
    digest = hashlib.blake2b(key=key, digest_size=KEY_BYTES, person=b"skdpmf stream")
    for text in (purpose, name, str(int(index))):
        feed(digest, b"s", text.encode())
    return np.frombuffer(digest.digest(), dtype="<u4").astype(np.uint32)


def feed(digest: Any, kind: bytes, content: bytes) -> None:
    """Hash a part with its kind and length before it."""
    digest.update(kind + len(content).to_bytes(8, "little"))
    digest.update(content)
