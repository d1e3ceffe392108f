"""The random number of trials of a private search: its law, exactly drawn from a secret key."""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import Context, Decimal, localcontext
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from skdpmf.exceptions import PrivacyParameterError
from skdpmf.privacy.accounting import bisect
from skdpmf.privacy.sampler.grid import as_float
from skdpmf.privacy.sampler.noise import require_key, stream_key

__all__ = ["RandomTrials", "stream_integer"]

_SHAPES = {"geometric": 1.0, "logarithmic": 0.0, "poisson": math.inf}
_MOST_MEAN = 1e6
_LEAST_GAMMA = 1e-200
_WORD_BITS = 256


@dataclass(frozen=True)
class RandomTrials:
    """The law of a random number of trials K: truncated negative binomial, or Poisson.

    Parameters
    ----------
    shape : float
        eta > -1: 1 is geometric, 0 logarithmic; the smaller, the heavier the tail. Infinity is
        Poisson. See `skdpmf.mechanisms.private_search.best_of_runs`.
    mean : float
        E[K], from 1 to 1e6; for Poisson > 0. gamma follows from it, and 1 is K = 1.

    Raises
    ------
    PrivacyParameterError
        If a parameter is outside its range.

    Examples
    --------
    >>> RandomTrials(1.0, 10.0).gamma
    0.1
    >>> RandomTrials.named("geometric", 4).pmf([0, 1, 2])
    array([0.    , 0.25  , 0.1875])
    """

    shape: float
    mean: float

    def __post_init__(self) -> None:
        shape, mean = as_float(self.shape), as_float(self.mean)
        if not shape > -1.0:
            raise PrivacyParameterError(
                f"shape={self.shape!r} of the number of trials must be a number > -1, or inf for "
                "Poisson: 1 is the geometric law, 0 the logarithmic one."
            )
        low = 1.0 if math.isfinite(shape) else 5e-324
        if not low <= mean <= _MOST_MEAN:
            raise PrivacyParameterError(
                f"mean={self.mean!r} of the number of trials must be between 1 (Poisson: above 0) "
                f"and {_MOST_MEAN:g}: 10 is usual."
            )
        object.__setattr__(self, "shape", shape)
        object.__setattr__(self, "mean", mean)
        if self.gamma < _LEAST_GAMMA:
            raise PrivacyParameterError(
                f"shape={shape!r} with mean={mean!r} has a gamma below {_LEAST_GAMMA:g}, a tail "
                "too heavy to run: raise the shape, or lower the mean."
            )

    @classmethod
    def named(cls, law: str | float, mean: float) -> RandomTrials:
        """Return the law of this name and mean.

        law ({"geometric", "logarithmic", "poisson"} or float): name, or the shape eta; mean: E[K].
        Raises PrivacyParameterError if there is no law of that name, or the mean is outside its
        range.

        Examples
        --------
        >>> RandomTrials.named("poisson", 3)
        RandomTrials(shape=inf, mean=3.0)
        """
        if isinstance(law, str) and law not in _SHAPES:
            raise PrivacyParameterError(
                f"trials={law!r} must be one of {tuple(_SHAPES)} or a shape > -1: 'geometric' is "
                "the default."
            )
        return cls(_SHAPES[law] if isinstance(law, str) else law, mean)

    @property
    def is_poisson(self) -> bool:
        """Whether the law is Poisson, so that K may be 0."""
        return math.isinf(self.shape)

    @property
    def name(self) -> str:
        """The law in words."""
        names = {shape: name for name, shape in _SHAPES.items()}
        return names.get(self.shape, f"truncated negative binomial (shape {self.shape:g})")

    @cached_property
    def gamma(self) -> float:
        """Parameter of the law; 1 where K = 1, and for Poisson, which has none."""
        if self.is_poisson or self.mean == 1.0:
            return 1.0
        if self.shape == 1.0:
            return 1.0 / self.mean
        high = 1.0
        while _mean(self.shape, high) < self.mean and high < 500.0:
            high *= 2.0
        return math.exp(-bisect(lambda x: _mean(self.shape, x) <= self.mean, 0.0, high))

    @property
    def log_gamma(self) -> float:
        """The number -ln gamma, 0 for Poisson."""
        return -math.log(self.gamma)

    @property
    def mean_bound(self) -> float:
        """E[K] of the law with this double as gamma, rounded up."""
        mean = self.mean if self.is_poisson else _mean(self.shape, self.log_gamma)
        return mean * (1.0 + 1e-12) if mean != 1.0 else 1.0

    def pmf(self, k: ArrayLike) -> NDArray[np.float64]:
        """Return P[K = k].

        k: numbers of trials.

        Examples
        --------
        >>> float(RandomTrials(0.0, 10.0).pmf(range(2000)).sum().round(12))
        1.0
        """
        k = np.asarray(k, dtype=np.float64)
        if self.is_poisson:
            inside, least = special.xlogy(k, self.mean) - self.mean - special.gammaln(k + 1.0), 0
        elif self.gamma == 1.0:
            inside, least = np.where(k == 1.0, 0.0, -np.inf), 1
        else:
            least = 1
            shifted = np.maximum(k, 1.0) - 1.0
            rises = special.gammaln(shifted + 1.0 + self.shape) - special.gammaln(1.0 + self.shape)
            inside = math.log(float(self._first(60))) + shifted * math.log1p(-self.gamma)
            inside = inside + rises - special.gammaln(shifted + 2.0)
        return np.where(k >= least, np.exp(inside), 0.0)

    def draw(self, key: bytes) -> int:
        """Draw K, exactly, from a key's stream of its own; it must stay secret.

        Inversion: K is the first k whose P[K <= k] exceeds a uniform number, whose bits are drawn
        as far as they are needed to decide. It takes some K steps.

        key: the search's key. Result: the number of trials. The same key and law give the same.

        Examples
        --------
        >>> from skdpmf.privacy.sampler.noise import derived_key
        >>> RandomTrials(1.0, 1.0).draw(derived_key(0))
        1
        """
        if self.gamma == 1.0 and not self.is_poisson:
            return 1
        uniform, words = 0, 0
        while True:
            uniform = (uniform << _WORD_BITS) | stream_integer(key, "trials", words)
            words += 1
            found = self._inverse(uniform, words * _WORD_BITS)
            if found is not None:
                return found

    def _inverse(self, uniform: int, bits: int) -> int | None:
        """Return K for all numbers in [uniform, uniform + 1] / 2^bits; None if they differ."""
        digits = bits * 4 // 13  # 10^-digits is below 2^-bits
        with localcontext(Context(prec=digits + 40)):
            # k terms with k roundings each, of a relative 10^-(digits + 39): enough for k = 10^15
            error = Decimal(10) ** -(digits + 8)
            low = Decimal(uniform) / Decimal(2) ** bits
            high = Decimal(uniform + 1) / Decimal(2) ** bits
            k = 0 if self.is_poisson else 1
            term = self._first(digits + 40)
            total = term
            fails, shape = 1 - Decimal(self.gamma), Decimal(self.shape)
            while total + error <= low:
                k += 1
                ratio = Decimal(self.mean) if self.is_poisson else fails * (k - 1 + shape)
                term = term * ratio / k
                total += term
            return k if high <= total - error else None

    def _first(self, digits: int) -> Decimal:
        """P[K = 0] for Poisson, else P[K = 1], to this many digits."""
        with localcontext(Context(prec=digits + 20, Emin=-(10**6), Emax=10**6)) as context:
            if self.is_poisson:
                return (-Decimal(self.mean)).exp()
            gamma, shape = Decimal(self.gamma), Decimal(self.shape)
            if self.shape == 0.0:
                return (1 - gamma) / -gamma.ln()
            context.prec += max(0, -shape.adjusted())  # what the difference cancels
            return shape * (1 - gamma) / ((-shape * gamma.ln()).exp() - 1)


def stream_integer(key: bytes, name: str, index: int) -> int:
    """Return 256 random bits of a stream that serves the search itself: K, candidates, seeds.

    key: the search's key; name: what they are for; index: such as the number of the trial. Result:
    in [0, 2^256).

    Examples
    --------
    >>> from skdpmf.privacy.sampler.noise import derived_key
    >>> stream_integer(derived_key(0), "trials", 0).bit_length() <= 256
    True
    """
    words = stream_key(require_key(key), "selection", name, index)
    return int.from_bytes(words.astype("<u4").tobytes(), "little")


def _mean(shape: float, log_gamma: float) -> float:
    """E[K] of D(shape, exp(-log_gamma))."""
    if log_gamma == 0.0:
        return 1.0
    rest = math.expm1(log_gamma)  # (1 - gamma) / gamma
    if shape == 0.0:
        return rest / log_gamma
    return shape * rest / -math.expm1(-shape * log_gamma)
