"""Growing sums in a ledger by person: which refresh a fit is of its stream, and with which keys.

A ledger with ``refreshes`` keeps what the proof of `skdpmf.privacy.sampler.growing` asks for:
``at_most=1``, so that nobody is in two refreshes; at most so many refreshes a stream; no state that
is used twice. A fit goes on with the ledger's last stream if that one's last fit is done and is the
one whose model is refreshed, and if plan and rows fit its slots. Else it begins a new stream, which
is always private: after a fit that failed or died, whose values may have left, in the fits of
another model, and for another budget.

The key of a refresh is a hash of 16 random bytes, which its entry has, under the secret of the
file; so an old copy of the file does not draw the same noise again. Keys are the curator's: with
them and all models one has exact sums.
"""

from __future__ import annotations

import hashlib
import json
import math
import secrets
import sqlite3
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skdpmf.privacy.plan import ReleasePlan
from skdpmf.privacy.sampler.growing import GrowingStream, StreamSlot, StreamState

__all__ = ["next_refresh"]


def next_refresh(
    connection: sqlite3.Connection, plan: ReleasePlan, n_rows: int, after: StreamState | None
) -> tuple[dict[str, Any], GrowingStream, StreamState]:
    """Return what the entry of a fit says of its stream, and the stream's secret and state.

    plan: with growing releases; n_rows: of the fit; after: state of the fit that it refreshes.
    """
    planned = {release.name: release for release in plan.gaussian if release.refreshes > 1}
    sizes = {name: math.prod(release.shape) for name, release in planned.items()}
    nonces, slots, earlier = _last(connection)
    goes_on = (
        after is not None
        and 0 < len(nonces) < plan.refreshes
        and after.position + 1 == len(nonces)
        and np.array_equal(after.mark, _mark(nonces))
        and slots.keys() == planned.keys()
        and all(slots[name].takes(release, n_rows) for name, release in planned.items())
    )
    if not goes_on:
        nonces, earlier = [], []
        slots = {name: StreamSlot.of(release, n_rows) for name, release in planned.items()}
    nonces, earlier = [*nonces, secrets.token_hex(16)], [*earlier, sizes]
    query = "SELECT value FROM ledger WHERE name='secret'"
    secret = bytes.fromhex(connection.execute(query).fetchone()[0])
    keys = [hashlib.blake2b(n.encode(), key=secret, person=b"stream").digest()[:32] for n in nonces]
    facts = {"nonces": nonces, "slots": slots, "sizes": earlier}
    state = StreamState(_mark(nonces), len(nonces) - 1)
    return facts, GrowingStream(keys, slots, earlier), state


def _last(connection: sqlite3.Connection) -> tuple[list[str], dict[str, StreamSlot], list[Any]]:
    """Return nonces, slots and sizes of the last stream; nothing if its last fit is not done."""
    query = "SELECT status, record FROM entry ORDER BY id DESC"
    for status, record in connection.execute(query):
        facts = json.loads(record).get("stream")
        if facts is not None:
            if status != "done":
                break
            slots = {name: StreamSlot(*slot) for name, slot in facts["slots"].items()}
            return facts["nonces"], slots, facts["sizes"]
    return [], {}, []


def _mark(nonces: list[str]) -> NDArray[np.int64]:
    return np.frombuffer(bytes.fromhex(nonces[0]), "<i8").astype(np.int64)
