"""Recording of releases, and replay of recorded ones: for tests and audits by the curator."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skdpmf.exceptions import PrivacyParameterError

__all__ = ["Recorder", "Recording", "ReleaseRecord", "active_recorder", "record_releases"]


@dataclass(frozen=True, eq=False)
class ReleaseRecord:
    """One release as it was made: what went in, what was declared and what came out.

    The statistic is exact, hence as private as the data: a record stays with the curator.

    Attributes
    ----------
    name, index : str, int
        The release's name and its number among those of that name (the round, say).
    statistic : ndarray of float64
        The exact statistic before rounding and noise.
    sensitivity : float
        The declared L2 sensitivity (of the full symmetric matrix for layout "packed"), for Laplace
        noise l1.
    noise_multiplier : float
        Declared standard deviation, or scale of Laplace noise, over sensitivity.
    noise_scale : float
        What was drawn of it (of a diagonal entry for layout "packed").
    layout : {"full", "packed"}
        See `NoiseSource.release`.
    output : ndarray of float64
        The released values; 0 where a release in blocks left places out.
    noise : {"gaussian", "laplace"}
        See `NoiseSource.release`.
    """

    name: str
    index: int
    statistic: NDArray[np.float64] = field(repr=False)
    sensitivity: float
    noise_multiplier: float
    noise_scale: float
    layout: str
    output: NDArray[np.float64] = field(repr=False)
    noise: str = "gaussian"

    def distance(self, other: ReleaseRecord) -> float:
        """Return the distance of two records' statistics, in the norm of the sensitivity.

        Parameters
        ----------
        other : ReleaseRecord
            The same release on neighbouring data.

        Returns
        -------
        float
            l1 distance for Laplace noise, Frobenius distance of the full matrices for layout
            "packed", else Euclidean.
        """
        difference = self.statistic - other.statistic
        if self.noise == "laplace":
            return float(np.abs(difference).sum())
        squares = np.square(difference)
        if self.layout == "packed":
            squares *= np.where(diagonal_of_packed(squares.shape[-1]), 1.0, 2.0)
        return float(np.sqrt(squares.sum()))


class Recording(list[ReleaseRecord]):
    """The releases of a `record_releases` block, in the order in which they were made.

    It also knows the keys that were made in the block, for replay only: they are neither shown nor
    pickled nor copied.

    Parameters
    ----------
    records : iterable of ReleaseRecord, default=()
        Releases to start with.
    """

    def __init__(self, records: Iterable[ReleaseRecord] = ()) -> None:
        super().__init__(records)
        self._keys: list[bytes] = []

    def __reduce__(self) -> Any:
        return Recording, (list(self),)


class Recorder:
    """What a `record_releases` block does: it notes releases and keys, and replays earlier ones."""

    def __init__(self, replay: Iterable[ReleaseRecord] | None) -> None:
        self.recording = Recording()
        self._outputs = None if replay is None else {(r.name, r.index): r for r in replay}
        self._keys = iter(replay._keys if isinstance(replay, Recording) else ())

    def key(self, make: Callable[[], bytes]) -> bytes:
        """Return the next key of the replayed recording, or make one, and note it."""
        key = next(self._keys, None) or make()
        self.recording._keys.append(key)
        return key

    def replayed(self, name: str, index: int, shape: tuple[int, ...]) -> NDArray[np.float64] | None:
        """Return a copy of the recorded output, or None where nothing is replayed."""
        if self._outputs is None:
            return None
        record = self._outputs.get((name, index))
        if record is None or record.output.shape != shape:
            held = "nothing" if record is None else f"an output of shape {record.output.shape}"
            raise PrivacyParameterError(
                f"replay holds {held} for release {name!r}, index {index}, of shape {shape}: a "
                "replayed run must make the recorded run's releases. Record it with the same "
                "parameters."
            )
        return record.output.copy()


_ACTIVE: ContextVar[Recorder | None] = ContextVar("skdpmf_recorder", default=None)


def active_recorder() -> Recorder | None:
    """Return the innermost active recorder of this thread's context, if any."""
    return _ACTIVE.get()


@contextmanager
def record_releases(replay: Iterable[ReleaseRecord] | None = None) -> Iterator[Recording]:
    """Record every release made inside the block, and optionally replay an earlier recording.

    With ``replay`` each release returns the recorded output of the same (name, index) and draws no
    noise, and keys are those of the recording: everything before a release is then fixed (earlier
    outputs, per-slot subsets), and its statistics on neighbouring data may be compared with
    `ReleaseRecord.distance` to the declared sensitivity. This is how the tests check every
    sensitivity (method: "Re:cord-play", arXiv 2602.17454).

    For the curator: records hold exact statistics. The block sees releases made in its own
    context (its thread); of nested blocks the innermost records.

    Parameters
    ----------
    replay : iterable of ReleaseRecord, optional
        Usually a `Recording`. Default: nothing is replayed.

    Yields
    ------
    Recording
        A list of `ReleaseRecord`, filled as releases are made.

    Raises
    ------
    PrivacyParameterError
        When a release inside the block has no recorded output of its shape.

    Examples
    --------
    >>> import numpy as np
    >>> from skdpmf.privacy.noise import NoiseSource, record_releases
    >>> with record_releases() as records:
    ...     y = NoiseSource().release(
    ...         np.zeros(3), name="counts", sensitivity=1.0, noise_multiplier=2.0, bound=100.0
    ...     )
    >>> records[0].name, records[0].statistic.tolist(), bool((records[0].output == y).all())
    ('counts', [0.0, 0.0, 0.0], True)
    """
    recorder = Recorder(replay)
    token = _ACTIVE.set(recorder)
    try:
        yield recorder.recording
    finally:
        _ACTIVE.reset(token)


def diagonal_of_packed(length: int) -> NDArray[np.bool_]:
    """Return which places of a packed lower triangle (row-major) are on the diagonal."""
    order = (int(np.sqrt(8 * length + 1)) - 1) // 2
    diagonal = np.zeros(length, np.bool_)
    diagonal[np.cumsum(np.arange(1, order + 1)) - 1] = True
    return diagonal
