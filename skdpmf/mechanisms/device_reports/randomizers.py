r"""Randomisers of the local model: what leaves a device, and what the server makes of it.

A randomiser M is epsilon-DP in the local model if for any two inputs x, x' and every output y

.. math:: P(M(x) = y) \le e^\epsilon P(M(x') = y).

The input is all that a user puts into a report, and the neighbours are any two inputs ("replace"):
nobody has to be trusted. Users whose reports have the same epsilon are each protected by it,
whoever the others are; several reports of one user add up. Here every guarantee is pure and holds
for the code as it runs: outputs are integers, or floats on a public grid, and all probabilities
are rounded to the private side.

Each randomiser has ``report``, run by the device with a key of its own (`DeviceStreams`), and
``estimate``, run by the server on the sum of n reports: an unbiased estimate of the mean of their
inputs, whose values have a variance of at most ``variance`` / n.

====================  ====================================  ======================================
class                 input of a device                     squared error of the mean of n, in all
====================  ====================================  ======================================
`PrivUnit`            vector of length <= 1, D coordinates  D / (c^2 n)
`CoordinateSampling`  one of D values in [-1, 1]            (D (e+1)/(e-1))^2 / n
====================  ====================================  ======================================

with e = exp(epsilon) of one report.
"""

from __future__ import annotations

import decimal
import math
import os
import threading
from typing import Any, NoReturn

import numpy as np
from numpy.typing import ArrayLike, NDArray

from skdpmf.exceptions import PrivacyParameterError, require_that
from skdpmf.privacy.accounting import rounded_up
from skdpmf.privacy.recording import recorded_reports
from skdpmf.privacy.sampler.cipher import (
    MOST_LANES,
    blocks,
    chacha,
    join_words,
    require_key,
    stream_key,
)
from skdpmf.privacy.sampler.grid import as_float, require_number
from skdpmf.privacy.sampler.noise import fresh_key
from skdpmf.privacy.text import outward

Floats = NDArray[np.float64]
Keys = NDArray[np.uint32]

# Guard: an epsilon that hides little
MAX_EPSILON = 16.0  # of one draw

# Fixed: the last position word of a device's blocks. The rounded normals of its stream have 0 and 1
# there, so that no block serves two purposes.
COIN, _WORDS = np.int64(2 << 32), np.int64(3 << 32)


class DeviceStreams:
    """The keys of simulated devices, each of which is given out once.

    A device in the field draws its own key from its operating system. In a simulation the keys of
    all devices follow from one secret: that of a device is a function of the secret, of the
    report (name, index) and of the device's slot, so that what it draws depends neither on other
    devices nor on blocks or threads. Two reports must not share a stream, so the same
    (name, index, slot) is refused the second time.

    It is neither pickled nor copied, and refuses to work in a process forked from its own.

    key: 32 bytes from `fresh_key` or `derived_key`; None: a fresh key.
    """

    def __init__(self, key: bytes | None = None) -> None:
        self.__key = fresh_key() if key is None else require_key(key)
        self._process = os.getpid()
        self._given: dict[tuple[str, int], list[tuple[int, int]]] = {}
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return "DeviceStreams(key=<secret>)"

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError(
            "DeviceStreams are never pickled or copied: a copy would give the same keys out again. "
            "Make new ones where they are needed."
        )

    def keys(self, name: str, index: int, n_devices: int, *, first_slot: int = 0) -> Keys:
        """Return the keys of neighbouring slots for one report.

        name: what is reported; index: such as the round; n_devices: number of devices; first_slot:
        slot of the first one. Returns (n_devices, 8) uint32: chaCha20 keys, a row for each device.
        Raises PrivacyParameterError if one of them was given out before; RuntimeError: in a process
        forked from the one that made the object.
        """
        if os.getpid() != self._process:
            raise RuntimeError(
                "DeviceStreams were used in a process forked from their own: both would give the "
                "same keys out. Make them after the fork."
            )
        start, stop = first_slot, first_slot + n_devices
        with self._lock:
            given = self._given.setdefault((name, index), [])
            if any(max(start, a) < min(stop, b) for a, b in given):
                raise PrivacyParameterError(
                    f"name={name!r}, index={index!r} was given out before for a slot in "
                    f"[{start}, {stop}): two reports with one key show the data. Use another "
                    "index for another round, and keep the first result otherwise."
                )
            given.append((start, stop))
        out = np.empty((stop - start, 8), np.uint32)
        for row, slot in enumerate(range(start, stop)):
            out[row] = stream_key(self.__key, f"device {index}", name, slot)
        return out


def bernoulli_threshold(epsilon: float, probability: float = 0.5) -> int:
    """Return floor(2^64 e q / (1 - q + e q)), e = exp(epsilon), q = ``probability``.

    A coin that shows 1 iff a 64-bit word is below it has odds of at most e times those of q: the
    rounding is to the private side, in 60 decimal digits.
    """
    with decimal.localcontext(decimal.Context(prec=60)):
        q = decimal.Decimal(probability)
        odds = decimal.Decimal(epsilon).exp() * q / (1 - q)
        # four roundings of 1e-59 each are less than this
        share = odds / (1 + odds) * (1 - decimal.Decimal("1e-57"))
        return min(int(share * 2**64), 2**64 - 1)


def check_epsilon(epsilon: Any, largest: float = MAX_EPSILON) -> float:
    """Return epsilon as a float; raise if it is not in (0, largest]."""
    number = as_float(epsilon)
    rule = f"a number > 0 and <= {largest:g}: pass what may be spent."
    require_that(0.0 < number <= largest, "epsilon", epsilon, rule)
    return number


def check_integer(name: str, value: Any, largest: int = 2**53) -> int:
    """Return value as an int; raise if it is no integer in [1, largest]."""
    number = as_float(value)
    holds = 1 <= number <= largest and number == math.floor(number)
    require_that(holds, name, value, f"an integer in [1, {largest}]: pass the public number.")
    return int(number)


def check_keys(keys: Any) -> Keys:
    """Return keys, uint32 of shape (n, 8); raise if they are not."""
    array = np.asarray(keys)
    holds = array.dtype == np.uint32 and array.ndim == 2 and array.shape[1] == 8
    rule = "uint32 of shape (n_devices, 8): take them from DeviceStreams.keys."
    require_that(holds, "keys (dtype, shape)", (array.dtype, array.shape), rule)
    return np.ascontiguousarray(array)


def device_words(keys: Any, n_words: int) -> NDArray[np.uint64]:
    """Return the first words of the keys' streams, shape (n, n_words)."""
    keys, n_blocks = check_keys(keys), -(-n_words // 8)
    devices, numbers = np.divmod(np.arange(keys.shape[0] * n_blocks), max(n_blocks, 1))
    out = np.empty((devices.shape[0], 8), np.uint64)
    with np.errstate(over="ignore"):
        for start in range(0, devices.shape[0], MOST_LANES):
            part = slice(start, start + MOST_LANES)
            position = numbers[part], np.full_like(numbers[part], _WORDS)
            words = blocks(keys[devices[part]], *position, chacha)
            out[part] = join_words.function(words[::2], words[1::2]).T
    return out.reshape(keys.shape[0], 8 * n_blocks)[:, :n_words]


class CoordinateSampling:
    r"""One coordinate of a device's values in [-1, 1], as a sign.

    The coordinate l is uniform and does not depend on the input. For its value x, clipped to
    [-1, 1], the sign is +1 with probability (1 + x / f) / 2, f = (e + 1)/(e - 1), else -1, with
    e = exp(epsilon). Any input and either sign have a probability in [1/(1+e), e/(1+e)], so the
    ratio of two is at most e. A 64-bit word is compared with a threshold that is clamped to these
    two, rounded inwards. D f sign at l, 0 elsewhere, is an unbiased estimator of all D values.

    epsilon: of one report, in (0, 16]; n_coordinates: D; factor: f, for the thresholds as rounded;
    variance: D f^2, which over n is that of each value of the mean of n reports.

    Sources: J. C. Duchi, M. I. Jordan, M. J. Wainwright, "Local privacy and statistical minimax
    rates", FOCS 2013; H. Shin, S. Kim, J. Shin, X. Xiao, "Privacy enhanced matrix factorization for
    recommendation with local differential privacy", TKDE 30 (2018).
    """

    def __init__(self, epsilon: float, n_coordinates: int) -> None:
        self.epsilon = check_epsilon(epsilon)
        self.n_coordinates = check_integer("n_coordinates", n_coordinates, 2**32)
        # P(+1) = 1/2 + swing / 2^64 at x = 1
        self._swing = bernoulli_threshold(self.epsilon) - 2**63
        require_that(self._swing >= 2**11, "epsilon", epsilon, "at least 2**-50: spend more.")
        self.factor = 2.0**63 / self._swing
        self.variance = self.n_coordinates * self.factor**2

    def coordinates(self, keys: Keys) -> NDArray[np.int64]:
        """Return the coordinate that each device reports, before it looks at its values.

        keys (n_devices, 8) uint32: a key for each device. Returns (n_devices,) int64: uniform in
        [0, n_coordinates), but for 2**-32.
        """
        words = device_words(keys, 2)[:, 0] >> np.uint64(32)
        chosen: NDArray[np.uint64] = (words * np.uint64(self.n_coordinates)) >> np.uint64(32)
        return chosen.astype(np.int64)

    def report(self, keys: Keys, values: ArrayLike) -> NDArray[np.int8]:
        """Return the sign that each device sends along with its coordinate.

        keys (n_devices, 8) uint32: those given to `coordinates`; values (array-like of float, shape
        (n_devices,)): each device's value at its coordinate; clipped to [-1, 1], NaN counts as 0.
        Returns (n_devices,) int8: +1 or -1.
        """
        word = device_words(keys, 2)[:, 1]
        x = np.nan_to_num(np.clip(np.asarray(values, np.float64), -1.0, 1.0), nan=0.0)
        # float64 has fewer digits than the swing, hence the clamp
        swing = np.uint64(self._swing)
        part = np.minimum((np.abs(x) * float(self._swing)).astype(np.uint64), swing)
        half = np.uint64(2**63)
        threshold = np.where(x < 0.0, half - part, half + part)
        sent = np.where(word < threshold, 1, -1).astype(np.int8)
        return recorded_reports("sampled sign", self, keys, x[:, np.newaxis], sent)

    def estimate(self, total: ArrayLike, n_devices: int) -> Floats:
        """Return the mean of all coordinates over the devices.

        total (array-like of int, shape (n_coordinates,)): sum of the signs reported for each
        coordinate; n_devices: number of reports, for all coordinates together. Returns
        (n_coordinates,) float64: the estimate.
        """
        scale = self.n_coordinates * self.factor / check_integer("n_devices", n_devices)
        return np.asarray(total, np.float64) * scale


def shuffled_epsilon(epsilon: float, n_devices: int, delta: float) -> float:
    r"""Return the central epsilon of n shuffled reports, each epsilon_0-DP in the local model.

    .. math:: \epsilon = \log(1 + A \frac{1 - e^{-\epsilon_0}}{1 + e^{-\epsilon_0 - \epsilon_1}}),
        \quad A = 8 \sqrt{e^{\epsilon_0} \log(4/\delta) / n} + 8 e^{\epsilon_0} / n,
        \quad \epsilon_1 = \log(1 + A),

    where epsilon_0 <= log(n / (16 log(4/delta))) and it is less than epsilon_0; else epsilon_0.
    The relation is replace. The shuffler must be trusted, and n counts the honest devices that
    send exactly one report into this shuffle, empty inputs too, all with the same
    randomiser given what was published before; nothing but the round goes along with a report.
    The deltas of several shuffles that a user reports in add up.

    epsilon: epsilon_0, >= 0 and finite; n_devices: n >= 1; delta: in [0, 1); 0 gives epsilon_0.
    Result: epsilon, rounded up.

    Source: V. Feldman, A. McMillan, K. Talwar, "Hiding among the clones: a simple and nearly
    optimal analysis of privacy amplification by shuffling", FOCS 2021.
    """
    remedy = "pass that of one report."
    local = require_number("epsilon", epsilon, positive=False, remedy=remedy)
    n, chance = check_integer("n_devices", n_devices), as_float(delta)
    rule = "in [0, 1): choose it far below 1 / n_devices."
    require_that(0.0 <= chance < 1.0, "delta", delta, rule)
    if chance == 0.0:
        return local
    log_term = rounded_up(math.log(4.0 / chance))
    if rounded_up(local) > math.log(n / (16 * log_term)):
        return local
    grown = math.exp(local)
    A = 8 * (math.sqrt(grown * log_term / n) + grown / n)
    share = -math.expm1(-local) / (1.0 + math.exp(-local) / (1.0 + A))
    return min(local, rounded_up(math.log1p(A * share)))


def shuffle_note(epsilon: float, n_devices: int, delta: float, n_reports: int = 1) -> str:
    """Say what shuffling would give, as a note for a statement.

    epsilon: of one report, in the local model; n_devices: reports in the smallest shuffle; delta:
    in [0, 1): what all shuffles may spend together; n_reports: shuffles in which a user takes part,
    one after the other: epsilons and deltas add up.
    """
    count = check_integer("n_reports", n_reports, 2**32)
    central = count * shuffled_epsilon(epsilon, n_devices, delta / count)
    central = rounded_up(central) if count > 1 else central
    each = "" if count == 1 else f" of each of {count} rounds"
    return (
        f"If shuffled: central epsilon = {outward(central)}, delta = {delta:.4g}, if the "
        f"{n_devices} reports{each} are all honest, and a trusted party removes their senders, "
        "order and ids. This is no part of the guarantee above."
    )
