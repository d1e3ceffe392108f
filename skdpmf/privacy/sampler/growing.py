r"""Growing sums: noise that refreshes share, so that their sum has little more than one of them.

Refresh t = 0, 1, ..., T - 1 of a stream brings a bounded sum x_t over its people, and what is of
use is the sum of x_0 to x_t. With c_k = binom(2k, k) / 4^k, the coefficients of (1 - x)^(-1/2), and
b_k = -c_k / (2k - 1), those of (1 - x)^(1/2), it computes

.. math:: q_t = x_t + \sum_{k \in A_t} b_{t-k} z_k, \qquad y_t = R_t + z_t,

with R_t being q_t on the grid and z_t fresh rounded noise of deviation s. y_t is released and z_t
stays secret. A_t are earlier refreshes: where it is all of them, y_0 + ... + y_t is the sum of x
with noise of deviation :math:`s \sqrt{c_0^2 + ... + c_t^2}`, as b undoes c.

**Theorem.** One person changes x_t by at most D (in the norm of the release, for the plan's
neighbours), is in one refresh, and s >= z D |c| with |c| the norm of (c_0, ..., c_{T-1}). Then all
releases of the stream together are (1/z)-GDP to this person, whatever A_t are, and however x_t, A_t
and the cohorts follow from earlier releases.

*Proof.* Fix neighbours that differ by a person of refresh r, and all y. As z_k = y_k - R_k, a
change of R_k changes z_k by its negative, and each place of R by itself obeys

.. math:: |\Delta R_t| \le |\Delta x_t| + \sum_{k \in A_t} \beta_{t-k} |\Delta R_k| + e,
   \qquad \beta_k = -b_k \ge 0,

with e for roundings; clamping q_t to a bound only makes it less. Only x_r differs, cohorts and maps
of other refreshes being functions of y and of other people. A_t can be taken to be all refreshes,
which makes the right side largest; it is solved by c, because :math:`1 - \sum \beta_k x^k` is
(1 - x)^(1/2): :math:`|\Delta R_t| \le c_{t-r} |\Delta x_r| + e (c_0 + ... + c_{t-r})`. Given what
was released before, refresh t is a Gaussian mechanism on R_t, and places that do not differ have
one law. By adaptive composition the whole is mu-GDP, :math:`\mu s` being the norm of all
:math:`\Delta R`, at most :math:`D |c| + e \sqrt{nT} \sum c_k` for the n values of a refresh. Where
cohorts are chosen adaptively, r is on every path the one place where the person is, and fully
adaptive composition (Smith and Thakurta) says the same. QED

*Roundings.* For each neighbour rint moves q_t by half a unit u, the division by u by another half,
the sum of x_t and the rest (below 2^51 units) by a quarter, and that of the rest by a quarter, as
it has at most 120 terms below 16 s (but for less than the mass that the sampler's tau is for), and
u >= s 2^-40: e = 3 u. The sum of c is at most :math:`2 \sqrt{T / \pi}`, so that a grid for 3 n T^2
values, which pays 2 u times their root, pays for it.

*What it takes.* Nobody is in two refreshes of a stream, and no state of a stream is used twice: the
ledger by person sees to both, and keeps the keys of the z_t. All refreshes of a stream have one
grid, made for twice the values and four times the rows of the first: a refresh that does not fit
begins a new stream. n is what the person's own refresh has: places of later items do not differ.
Whoever has the keys and all y has the exact sums.

Sources: S. Denisov et al., "Improved differential privacy for SGD via optimal private linear
operators on adaptive streams", NeurIPS 2022; H. Fichtenberger, M. Henzinger, J. Upadhyay,
"Constant matters: fine-grained error bound on differentially private continual observation", ICML
2023; A. Smith, A. Thakurta, arXiv 2210.17520.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from skdpmf.exceptions import PrivacyParameterError
from skdpmf.privacy.sampler.grid import Layout, ReleaseGrid, calibrate_grid, grid_of

__all__ = [
    "MOST_REFRESHES",
    "GrowingStream",
    "StreamSlot",
    "StreamState",
    "coefficients",
    "growth",
    "part_of_noise",
]

MOST_REFRESHES = 120  # of the proof's roundings
_REACH = 16.0  # deviations that carried noise may reach before it is clamped
_MORE_VALUES, _MORE_ROWS = 2, 4  # than the first refresh has


def coefficients(n: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return c_0 to c_{n-1} and b_0 to b_{n-1}."""
    k = np.arange(1.0, n)
    c = np.concatenate(([1.0], np.cumprod((2.0 * k - 1.0) / (2.0 * k))))
    return c, -c / (2.0 * np.arange(n) - 1.0)


def growth(refreshes: int) -> float:
    """Return |c| of so many refreshes, rounded up; 1.0 for one.

    Examples
    --------
    >>> growth(1), round(growth(12) ** 2, 3)
    (1.0, 1.851)
    """
    if refreshes == 1:
        return 1.0
    c, _ = coefficients(refreshes)
    return float(np.sqrt(np.sum(c**2))) * (1.0 + 1e-12)


def part_of_noise(carried: int) -> float:
    """Return c_t of a refresh that carries so many: s c_t is what it adds to the sum's noise."""
    return float(coefficients(carried + 1)[0][carried])


class StreamState(NamedTuple):
    """Public: the stream of a fit, and how many refreshes of it were before."""

    mark: NDArray[np.int64]  # (2,), names the stream
    position: int


class StreamSlot(NamedTuple):
    """The noise of one planned release in all refreshes of a stream, fixed by the first."""

    sensitivity: float  # D |c|
    noise_multiplier: float
    layout: str
    most_values: int
    most_rows: int
    scale: float  # of the noise, with what pays for roundings
    bits: int

    @classmethod
    def of(cls, release: Any, n_rows: int) -> StreamSlot:
        """Return the slot of a planned release, in a first refresh of so many rows."""
        size, rows = _MORE_VALUES * math.prod(release.shape), _MORE_ROWS * max(n_rows, 1)
        terms = release.sensitivity, release.noise_multiplier
        bits, scale = calibrate_grid(
            3 * size * release.refreshes**2,
            sensitivity=terms[0],
            noise_multiplier=terms[1],
            bound=_bound(rows, *terms),
        )
        return cls(*terms, release.layout, size, rows, scale, bits)

    def takes(self, release: Any, n_rows: int) -> bool:
        """Whether a later refresh fits: its noise is the same, and it is not much larger."""
        terms = release.sensitivity, release.noise_multiplier, release.layout
        fits = math.prod(release.shape) <= self.most_values and n_rows <= self.most_rows
        return terms == self[:3] and fits

    @property
    def bound(self) -> float:
        """Public bound on the magnitude of q_t, to which it is clamped."""
        return _bound(self.most_rows, self.sensitivity, self.noise_multiplier)


def _bound(rows: int, sensitivity: float, noise_multiplier: float) -> float:
    # off the diagonal of triangles the grid is finer by sqrt(2)
    return 1.5 * sensitivity * (rows + _REACH * noise_multiplier)


class GrowingStream:
    """The secret of one refresh: its key, and those of the refreshes of its stream before it.

    Parameters
    ----------
    keys : sequence of bytes of length 32
        Key of each refresh so far, this one's last.
    slots : mapping of str to StreamSlot
        By name of the release.
    sizes : sequence of mappings
        Planned number of values by name, of each refresh so far.
    """

    def __init__(
        self,
        keys: Sequence[bytes],
        slots: Mapping[str, StreamSlot],
        sizes: Sequence[Mapping[str, int]],
    ) -> None:
        self.__keys, self._slots, self._sizes = tuple(keys), dict(slots), tuple(sizes)
        self.__taken = False

    def __repr__(self) -> str:
        return f"GrowingStream(refresh {len(self.__keys)}, keys=<secret>)"

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError("a GrowingStream is never pickled or copied: a copy would draw the same.")

    def __contains__(self, name: str) -> bool:
        return name in self._slots

    def take(self) -> bytes:
        """Return the key of this refresh, once: two noise sources would draw the same noise."""
        if self.__taken:
            raise PrivacyParameterError(
                "stream=GrowingStream was used before, and is for one noise source: reserve "
                "another fit in the ledger."
            )
        self.__taken = True
        return self.__keys[-1]

    def grid(
        self,
        name: str,
        shape: tuple[int, ...],
        layout: Layout,
        sensitivity: float,
        noise_multiplier: float,
    ) -> tuple[ReleaseGrid, float]:
        """Return grid and bound of a release; PrivacyParameterError for another than planned."""
        slot = self._slots[name]
        asked = sensitivity, noise_multiplier, layout
        if asked != slot[:3] or math.prod(shape) > slot.most_values:
            raise PrivacyParameterError(
                f"release {name!r} of shape {shape} has sensitivity, multiplier and layout "
                f"{asked}, and its stream holds at most {slot.most_values} values of {slot[:3]}: "
                "all refreshes of a stream have one noise. Reserve the fit with its plan."
            )
        return grid_of(slot.scale, slot.bits, shape, layout), slot.bound

    def earlier(self, name: str, carried: int) -> list[tuple[float, int, GrowingStream]]:
        """Return b, number of values and stream of the last `carried` refreshes, latest first."""
        _, b = coefficients(len(self.__keys))
        found = []
        for lag in range(1, min(carried, len(self.__keys) - 1) + 1):
            at = len(self.__keys) - 1 - lag
            own = GrowingStream(self.__keys[at : at + 1], self._slots, ())
            found.append((float(b[lag]), self._sizes[at][name], own))
        return found
