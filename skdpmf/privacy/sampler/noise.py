r"""All randomness that privacy rests on: keys, noise of releases, per-slot priorities.

**Guarantee.** A release of a statistic S with L2 sensitivity D at noise multiplier z returns
u (rint(S/u) + X) on a public grid of unit u, X having independent entries round(N(0, (sigma/u)^2)).
For an integer vector y

.. math:: y + \mathrm{round}(N) = \mathrm{round}(y + N),

so the release is a post-processing of the ideal Gaussian mechanism on the integers rint(S/u):
exactly (1/z)-GDP, with nothing added for floating point. `calibrate_grid` makes sigma large enough
to pay for the rounding of S. The sampler's law is proved to be within SAMPLER_ETA of the ideal,
relative, on every value outside a set of mass SAMPLER_TAU (``laws.py``), given that
ChaCha20 and BLAKE2b are pseudo-random; `skdpmf.privacy` adds that slack to epsilon and delta.

With ``noise="laplace"`` D is an l1 sensitivity, X has entries round(Laplace(0, scale/u)), and the
release is (1/z)-DP, pure, by the same argument (`calibrate_grid`). The sampler's law is
within LAPLACE_ETA, relative, of one at least as wide on every integer (``laws.py``): no delta,
and `PureRelease.noise_multiplier` takes 2 LAPLACE_ETA for each value off epsilon.

Not covered: the time that the sampler takes (a rejected attempt, 0.2 % of values, is slower).

**Streams.** A `NoiseSource` holds one 256-bit key. Each (purpose, name, index) has its own
ChaCha20 key, and value i of a stream is a function of that key and i alone, so results do not
depend on blocks or threads.

Sources: J. Dong, A. Roth, W. Su, "Gaussian differential privacy", JRSS B 84 (2022);
I. Mironov, "On significance of the least significant bits for differential privacy", CCS 2012.
"""

from __future__ import annotations

import math
import operator
import os
import threading
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
from numpy.typing import ArrayLike, NDArray

from skdpmf.exceptions import require_that
from skdpmf.kernels.jit_and_threads import in_threads
from skdpmf.privacy.sampler.cipher import KEY_BYTES, require_key, stream_key
from skdpmf.privacy.sampler.grid import Layout, Noise, release_grid
from skdpmf.privacy.sampler.laws import CHUNK, LAWS, add_grid_noise, scratch
from skdpmf.privacy.sampler.streams import Streams

Floats = NDArray[np.float64]

_BLOCK = 512 * CHUNK  # values a thread draws at a time
# `privacy.recording` sets it: keys and noise come from it where a test or an audit records fits
RECORDER: ContextVar[Any] = ContextVar("skdpmf_recorder", default=None)


def noise_source(key: bytes) -> NoiseSource:
    """Return the noise source of a fit that begins now."""
    recorder = RECORDER.get()
    return NoiseSource(key) if recorder is None else recorder.source(key)


def recorded_key(make: Callable[[], bytes]) -> bytes:
    """Make the key of a fit, or take the replayed one where a recording is active."""
    recorder = RECORDER.get()
    return make() if recorder is None else bytes(recorder.key(make))


def fresh_key() -> bytes:
    """Return a new 256-bit key from the operating system.

    Call it inside ``fit``, after any fork, and never keep the key with the model: who knows it can
    take the noise off.
    """
    return os.urandom(KEY_BYTES)


# draws the noise of values that begin at a place of the release: (values, start, n_jobs)
Draw = Callable[[Floats, int, int | None], Floats]


@dataclass(frozen=True)
class ReleaseTerms:
    """The facts about a release that are known before its statistic."""

    name: str
    index: int
    shape: tuple[int, ...]
    layout: str
    noise: str
    noise_scale: float
    sensitivity: float
    noise_multiplier: float


class BlockRelease:
    """A release that is made block by block; `NoiseSource.blocks` returns it.

    A place is one entry of the statistic, counted row by row (C order). Use it in a ``with``
    statement, or close it: that ends the release. Threads may share it. ``draw`` adds the noise.
    """

    def __init__(self, draw: Draw, terms: ReleaseTerms) -> None:
        self._draw = draw
        self._terms = terms
        self._size = math.prod(terms.shape)
        self._made: list[tuple[int, int]] = []
        self._lock = threading.Lock()
        self._closed = False

    def __repr__(self) -> str:
        return f"BlockRelease(name={self._terms.name!r}, index={self._terms.index})"

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError(
            "a BlockRelease is never pickled or copied: a copy would draw the same noise again. "
            "Share it among threads, not processes."
        )

    def __enter__(self) -> BlockRelease:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def release(self, start: int, values: ArrayLike) -> Floats:
        """Release the statistic's exact values (n,) at the places [start, start + n).

        The result is what `NoiseSource.release` would give there for the whole statistic, bit for
        bit. A place that was released before or does not exist is refused.
        """
        exact = np.asarray(values, dtype=np.float64, order="C")
        rule = "one-dimensional: pass a range of the flat statistic, reshape(-1)."
        require_that(exact.ndim == 1, "values of shape", exact.shape, rule)
        return self._release(operator.index(start), exact, 1)

    def _release(self, start: int, exact: Floats, n_jobs: int | None) -> Floats:
        """Return `release` of flat float64 values, drawn by several threads."""
        self._claim(start, start + exact.size)
        return self._draw(exact, start, n_jobs)

    def close(self) -> None:
        """End the release: what was not released stays unpublished."""
        with self._lock:
            self._closed = True

    def _claim(self, start: int, stop: int) -> None:
        """Note that the places [start, stop) are released now, and refuse them the second time."""
        name = f"{self._terms.name!r}, index {self._terms.index}"
        with self._lock:
            rule = f"open: release the blocks of {name} inside the with statement."
            require_that(not self._closed, "release", "closed", rule)
            rule = f"within the {self._size} values of {name}: pass the place of the first value."
            require_that(0 <= start <= stop <= self._size, "places", (start, stop), rule)
            rule = f"a range that {name} did not give before: each place has one noise, and may be "
            rule += "released once. Keep the first result."
            again = any(max(start, a) < min(stop, b) for a, b in self._made)
            require_that(not again, "places", (start, stop), rule)
            self._made.append((start, stop))


class NoiseSource(Streams):
    """The noise of one fit: a secret key, and releases each of which may be made once.

    Make it inside ``fit``, from a `fresh_key` (the default) or a `derived_key`, and let it go with
    it. It is neither pickled nor copied, and refuses to work in a process forked from its own: both
    would draw the same noise twice. The proof is the module's.
    """

    def __init__(self, key: bytes | None = None) -> None:
        self.__key = fresh_key() if key is None else require_key(key)
        self._process = os.getpid()
        self._made: set[tuple[str, int]] = set()
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return "NoiseSource(key=<secret>)"

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError(
            "a NoiseSource is never pickled or copied: a copy would draw the same noise again. "
            "Make a new one where it is needed."
        )

    def release(self, statistic: ArrayLike, *, n_jobs: int | None = 1, **terms: Any) -> Floats:
        """Release a statistic with exact rounded noise, Gaussian or Laplace, as the module says.

        `calibrate_grid` has the noise's scale and the unit.

        Layout "packed" is for symmetric matrices: the last axis holds the lower triangle row by
        row, k (k + 1) / 2 entries, and ``sensitivity`` is of the full matrices in Frobenius norm.
        Off-diagonal entries count twice there, so they are scaled by sqrt(2) before and unscaled
        after the noise: standard deviation noise_scale on the diagonal, noise_scale / sqrt(2) off
        it (the law of (Z + Z^T) / 2 off the diagonal, Z iid). For a stack of matrices, it is
        the norm of the stack.

        statistic: exact, of any shape: an order-independent sum (`truncate_to_grid`,
        `check_exact`). Entries beyond ``bound`` are clamped to it and non-finite ones count as 0,
        silently: what rows hold must not raise. **terms: of `blocks`. The release has the
        statistic's shape.
        """
        exact = np.asarray(statistic, dtype=np.float64, order="C")
        with self.blocks(shape=exact.shape, **terms) as whole:
            return whole._release(0, exact.reshape(-1), n_jobs).reshape(exact.shape)

    def blocks(
        self,
        *,
        name: str,
        index: int = 0,
        shape: tuple[int, ...],
        bound: float,
        layout: Layout = "full",
        noise: Noise = "gaussian",
        **scale: float,
    ) -> BlockRelease:
        """Begin a release whose statistic is too large to hold, to be made block by block.

        Every value is the one that `release` gives for the whole statistic. It counts as a whole:
        (name, index) is taken at once, and places that are never released are not published.

        name: what is released, as in the plan; index: number of the release among those of this
        name, such as the round; shape: of the whole statistic; **scale: sensitivity, the L2
        distance of the statistics of neighbouring data sets at most, l1 for Laplace noise, and
        noise_multiplier, the noise's deviation, or scale, over sensitivity; 0 is the statistic
        itself, without any privacy; bound: public bound on the magnitude of entries, such as
        n_rows * sensitivity; layout: "full" or "packed"; "full" for Laplace noise, also of
        triangles stored once; noise: "gaussian" or "laplace", which have streams of their own.
        """
        index = operator.index(index)
        shape = tuple(operator.index(length) for length in shape)
        rule = "lengths >= 0: pass the shape of the whole statistic."
        require_that(min(shape, default=0) >= 0, "shape", shape, rule)
        grid = release_grid(shape, bound=bound, layout=layout, noise=noise, **scale)
        self._claim(name, index)
        purpose, make_tables, law = LAWS[noise]
        key, tables = stream_key(self.__key, purpose, name, index), make_tables()

        def draw(exact: Floats, first: int, n_jobs: int | None) -> Floats:
            self._check_process()
            if grid.scale == 0.0:
                return exact.copy()
            out = np.empty_like(exact)

            def work(start: int, stop: int) -> None:
                units = grid.units, grid.order, float(bound)
                settings = *units, *scratch(key), grid.bits, *tables, law, first
                with np.errstate(over="ignore"):  # words wrap; only seen with the JIT off
                    add_grid_noise(exact, *settings, start, stop, out)

            starts = range(0, exact.size, _BLOCK)
            in_threads(work, [(s, min(s + _BLOCK, exact.size)) for s in starts], n_jobs)
            return out

        of_law = {name: float(number) for name, number in scale.items()}
        terms = ReleaseTerms(name, index, shape, layout, noise, grid.scale, **of_law)
        return BlockRelease(draw, terms)

    def stream(self, purpose: str, name: str = "", index: int = 0) -> NDArray[np.uint32]:
        """Return the key of a stream that no release draws from: it says nothing about noise."""
        self._check_process()
        rule = "none of a release: its noise is nobody's to read."
        require_that(purpose not in ("release", "laplace"), "purpose", purpose, rule)
        return stream_key(self.__key, purpose, name, index)

    def _claim(self, name: str, index: int) -> None:
        """Note that (name, index) is released now, and refuse it the second time."""
        self._check_process()
        holds = isinstance(name, str) and name
        require_that(holds, "name", name, "a non-empty str: name the release.")
        with self._lock:
            rule = f"with another index than {index!r}, which was released before by this source: "
            rule += "a second draw would spend budget that no plan counts. Use another index for "
            rule += "another round, and keep the first result otherwise."
            require_that((name, index) not in self._made, "name", name, rule)
            self._made.add((name, index))

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise RuntimeError(
                "a NoiseSource was used in a process forked from its own: both would draw the same "
                "noise. Make the source after the fork."
            )
