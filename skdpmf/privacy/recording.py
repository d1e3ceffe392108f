"""Recording of what leaves a fit, and replay of it: for tests and audits by the curator.

A fit that begins inside `record_releases` gets a `RecordingNoise` in the place of its noise source.
A solver cannot change later which one its curator has.

Three kinds of things leave: sums with noise (`ReleaseRecord`), devices' reports (`ReportRecord`)
and draws from a posterior (`DrawRecord`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skdpmf.exceptions import PrivacyParameterError
from skdpmf.privacy.sampler.noise import RECORDER, BlockRelease, NoiseSource, ReleaseTerms


@dataclass(frozen=True, eq=False)
class ReleaseRecord(ReleaseTerms):
    """One release as it was made: what went in, what was declared and what came out.

    The statistic is exact, before rounding and noise, hence as private as the data: a record stays
    with the curator. The output is 0 where a release in blocks left places out.
    """

    statistic: NDArray[np.float64] = field(repr=False)
    output: NDArray[np.float64] = field(repr=False)

    def distance(self, other: ReleaseRecord) -> float:
        """Return the distance to the same release on neighbouring data, in the sensitivity's norm.

        It is l1 for Laplace noise, Frobenius' of the full matrices for layout "packed", else
        Euclidean.
        """
        difference = self.statistic - other.statistic
        if self.noise == "laplace":
            return float(np.abs(difference).sum())
        squares = np.square(difference)
        if self.layout == "packed":
            order = int(np.sqrt(2 * squares.shape[-1]))
            squares *= 2.0
            squares[..., np.cumsum(np.arange(1, order + 1)) - 1] *= 0.5  # the diagonal
        return float(np.sqrt(squares.sum()))


@dataclass(frozen=True, eq=False)
class ReportRecord:
    """The devices' inputs of one call of a randomiser, and its reports.

    The mechanism's name is that of the plan, and the randomiser one of
    `skdpmf.mechanisms.device_reports.randomizers`. The reports follow from the keys (n_devices, 8)
    and the inputs (n_devices, n_values), dense or CSR: the exact values, as they are when the
    drawing begins. The output is the reports, or their sum where only that is used.
    """

    mechanism: str
    randomiser: Any
    keys: NDArray[np.uint32] = field(repr=False)
    inputs: Any = field(repr=False)
    output: NDArray[Any] = field(repr=False)


@dataclass(frozen=True, eq=False)
class DrawRecord:
    """The density of a released draw, in the notation of its guarantee in `posterior_draw`.

    targets (n_users, n_items): e_ij; weights (n_users,): w_i; inverse_temperature: a; clip:
    h + kappa, to which predictions are clipped; stds: prior standard deviations of users' factors,
    items' factors and item biases (0: none); output: item biases and factors that were drawn.
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

    `reports` and `draws` hold the other two kinds of records. A recording also knows the keys that
    were made in the block, for replay only: they are neither shown nor pickled nor copied.
    """

    def __init__(self, records: Iterable[ReleaseRecord] = ()) -> None:
        super().__init__(records)
        self.reports: list[ReportRecord] = []
        self.draws: list[DrawRecord] = []
        self._keys: list[bytes] = []

    def __reduce__(self) -> Any:
        return Recording, (list(self),)


class Recorder:
    """The recorder of a block: it notes releases and keys, and replays earlier ones."""

    def __init__(self, replay: Iterable[ReleaseRecord] | None) -> None:
        self.recording = Recording()
        self._outputs = None if replay is None else {(r.name, r.index): r for r in replay}
        known = replay if isinstance(replay, Recording) else Recording()
        self._keys = iter(known._keys)
        self._reports = iter(known.reports)
        self._draws = {(r.name, r.index): r.output for r in known.draws}
        self._replays = isinstance(replay, Recording)

    def output(self, exact: NDArray[np.float64], drawn: NDArray[np.float64]) -> Any:
        """Return what is released: the drawn values, but for an audit that overrides it."""
        return drawn

    def source(self, key: bytes) -> RecordingNoise:
        """Return the noise source of a fit."""
        return RecordingNoise(key, self)

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


class RecordingNoise(NoiseSource):
    """A noise source that notes what it releases; with a recording to replay it draws nothing."""

    def __init__(self, key: bytes, recorder: Recorder) -> None:
        super().__init__(key)
        self._recorder = recorder

    def blocks(self, **terms: Any) -> BlockRelease:
        """Begin a release in blocks, as `NoiseSource.blocks`, and note it."""
        return _RecordedBlocks(super().blocks(**terms), self._recorder)


class _RecordedBlocks(BlockRelease):
    """A release that a recorder gets when it ends."""

    def __init__(self, made: BlockRelease, recorder: Recorder) -> None:
        terms: ReleaseTerms = made._terms
        super().__init__(made._draw, terms)
        self._recorder = recorder
        replayed = recorder.replayed(terms.name, terms.index, terms.shape)
        self._replayed = None if replayed is None else replayed.reshape(-1)
        self._statistic, self._output = np.zeros(self._size), np.zeros(self._size)

    def _release(
        self, start: int, exact: NDArray[np.float64], n_jobs: int | None
    ) -> NDArray[np.float64]:
        stop = start + exact.size
        if self._replayed is None:
            output = super()._release(start, exact, n_jobs)
            output = self._recorder.output(exact, output)
        else:
            self._claim(start, stop)
            output = self._replayed[start:stop].copy()
        self._statistic[start:stop], self._output[start:stop] = exact, output
        return output

    def close(self) -> None:
        if self._closed:
            return
        super().close()
        shape = self._terms.shape
        record = ReleaseRecord(
            **vars(self._terms),
            statistic=self._statistic.reshape(shape),
            output=self._output.reshape(shape),
        )
        self._recorder.recording.append(record)


def active_recorder() -> Recorder | None:
    """Return the innermost active recorder of this thread's context, if any."""
    recorder: Recorder | None = RECORDER.get()
    return recorder


@contextmanager
def record_releases(
    replay: Iterable[ReleaseRecord] | None = None,
    recorded_by: Callable[[Iterable[ReleaseRecord] | None], Recorder] = Recorder,
) -> Iterator[Recording]:
    """Record every release of fits that begin in the block, or replay an earlier recording.

    With ``replay`` each release returns the recorded output of the same (name, index) and draws no
    noise, and keys are those of the recording: everything before a release is then fixed (earlier
    outputs, per-slot subsets), and its statistics on neighbouring data may be compared with
    `ReleaseRecord.distance` to the declared sensitivity. This is how the tests check every
    sensitivity (method: "Re:cord-play", arXiv 2602.17454).

    For the curator: records hold exact statistics. The block sees releases made in its own
    context (its thread); of nested blocks the innermost records. The list is filled as releases are
    made; one without a recorded output of its shape is refused.
    """
    recorder = recorded_by(replay)
    token = RECORDER.set(recorder)
    try:
        yield recorder.recording
    finally:
        RECORDER.reset(token)


def recorded_reports(
    mechanism: str, randomiser: Any, keys: NDArray[np.uint32], inputs: Any, output: NDArray[Any]
) -> NDArray[Any]:
    """Return the reports, or the replayed ones, and note what went into them."""
    recorder = active_recorder()
    if recorder is None:
        return output
    return recorder.report(ReportRecord(mechanism, randomiser, keys, inputs, output))


def recorded_draw(**terms: Any) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the draw that a `DrawRecord` of these terms has as output, or the replayed one."""
    recorder, record = active_recorder(), DrawRecord(**terms)
    return record.output if recorder is None else recorder.draw(record)
