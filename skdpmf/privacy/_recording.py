"""Recording of what leaves a fit, and replay of it: for tests and audits by the curator.

Three kinds of things leave: sums with noise (`ReleaseRecord`), devices' reports (`ReportRecord`)
and draws from a posterior (`DrawRecord`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skdpmf.exceptions import PrivacyParameterError

__all__ = [
    "DrawRecord",
    "Recorder",
    "Recording",
    "ReleaseRecord",
    "ReportRecord",
    "active_recorder",
    "record_releases",
    "recorded_draw",
    "recorded_reports",
]


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


@dataclass(frozen=True, eq=False)
class ReportRecord:
    """What devices put into one call of a randomiser, and what it sent.

    Attributes
    ----------
    mechanism : str
        As in the plan.
    randomiser : object
        What randomised: `skdpmf.privacy.local`.
    keys : ndarray of shape (n_devices, 8), uint32
        Those of the reports, which follow from them and the inputs.
    inputs : ndarray or csr_array of shape (n_devices, n_values)
        Exact values, as they are when the drawing begins.
    output : ndarray
        The reports, or their sum where only that is used.
    """

    mechanism: str
    randomiser: Any
    keys: NDArray[np.uint32] = field(repr=False)
    inputs: Any = field(repr=False)
    output: NDArray[Any] = field(repr=False)


@dataclass(frozen=True, eq=False)
class DrawRecord:
    """The density that a released draw comes from, in the notation of `skdpmf.privacy.posterior`.

    Attributes
    ----------
    name, index : str, int
        As for `ReleaseRecord`.
    targets : csr_array of shape (n_users, n_items)
        e_ij.
    weights : ndarray of shape (n_users,)
        w_i.
    inverse_temperature : float
        a.
    clip : float
        h + kappa: predictions are clipped to it.
    stds : tuple of float
        Of the prior of users' factors, items' factors and item biases (0: none).
    output : tuple of ndarray
        Item biases and factors that were drawn.
    """

    name: str
    index: int
    targets: Any = field(repr=False)
    weights: NDArray[np.float64] = field(repr=False)
    inverse_temperature: float
    clip: float
    stds: tuple[float, float, float]
    output: tuple[NDArray[np.float64], NDArray[np.float64]] = field(repr=False)


class Recording(list[ReleaseRecord]):
    """The releases of a `record_releases` block, in the order in which they were made.

    It also knows the keys that were made in the block, for replay only: they are neither shown nor
    pickled nor copied.

    Parameters
    ----------
    records : iterable of ReleaseRecord, default=()
        Releases to start with.

    Attributes
    ----------
    reports : list of ReportRecord
        What devices sent, in the order of the calls.
    draws : list of DrawRecord
        Draws from a posterior.
    alter : callable
        What an audit makes of exact and drawn values, to leave in place of these.
    """

    def __init__(self, records: Iterable[ReleaseRecord] = ()) -> None:
        super().__init__(records)
        self.reports: list[ReportRecord] = []
        self.draws: list[DrawRecord] = []
        self.alter: Callable[[Any, Any], Any] = lambda exact, drawn: drawn
        self._keys: list[bytes] = []

    def __reduce__(self) -> Any:
        return Recording, (list(self),)


class Recorder:
    """What a `record_releases` block does: it notes releases and keys, and replays earlier ones."""

    def __init__(self, replay: Iterable[ReleaseRecord] | None) -> None:
        self.recording = Recording()
        self._outputs = None if replay is None else {(r.name, r.index): r for r in replay}
        known = replay if isinstance(replay, Recording) else Recording()
        self._keys = iter(known._keys)
        self._reports = iter(known.reports)
        self._draws = {(r.name, r.index): r.output for r in known.draws}
        self._replays = isinstance(replay, Recording)

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

    def report(self, record: ReportRecord) -> NDArray[Any]:
        """Note reports; return the replayed call's, or their own."""
        self.recording.reports.append(record)
        if not self._replays:
            return record.output
        known = next(self._reports, None)
        if known is None or known.output.shape != record.output.shape:
            raise PrivacyParameterError(
                f"replay holds no reports like {record}: a replayed run must make the recorded "
                "run's calls. Record it with the same parameters."
            )
        return known.output.copy()

    def draw(self, record: DrawRecord) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Note a draw; return the replayed one, or its own."""
        self.recording.draws.append(record)
        biases, factors = self._draws.get((record.name, record.index), record.output)
        return biases.copy(), factors.copy()


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


def recorded_reports(
    mechanism: str,
    randomiser: Any,
    keys: NDArray[np.uint32],
    inputs: Any,
    output: NDArray[Any],
) -> NDArray[Any]:
    """Return the reports, or the replayed ones, and note what went into them.

    Parameters
    ----------
    mechanism : str
        As for `ReportRecord`, like the following.
    randomiser : object
        What randomises.
    keys : ndarray of shape (n_devices, 8), uint32
        Of the devices.
    inputs : ndarray or csr_array
        Exact values.
    output : ndarray
        The reports.

    Returns
    -------
    ndarray
        What is sent.
    """
    recorder = active_recorder()
    if recorder is None:
        return output
    return recorder.report(ReportRecord(mechanism, randomiser, keys, inputs, output))


def recorded_draw(**terms: Any) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return a draw, or the replayed one, and note the density that it comes from.

    Parameters
    ----------
    **terms
        Of `DrawRecord`, ``output`` among them.

    Returns
    -------
    tuple of ndarray
        Item biases and factors: what leaves.
    """
    recorder, record = active_recorder(), DrawRecord(**terms)
    return record.output if recorder is None else recorder.draw(record)


def diagonal_of_packed(length: int) -> NDArray[np.bool_]:
    """Return which places of a packed lower triangle (row-major) are on the diagonal."""
    order = (int(np.sqrt(8 * length + 1)) - 1) // 2
    diagonal = np.zeros(length, np.bool_)
    diagonal[np.cumsum(np.arange(1, order + 1)) - 1] = True
    return diagonal
