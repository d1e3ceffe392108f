"""The releases of a fit and their noise: fixed before the data is touched."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, ClassVar, cast

from skdpmf.exceptions import PrivacyParameterError
from skdpmf.privacy import accounting as cost
from skdpmf.privacy.budget import PrivacyBudget, check_shares
from skdpmf.privacy.sampler.grid import as_float
from skdpmf.privacy.sampler.laws import LAPLACE_ETA, SAMPLER_ETA, SAMPLER_TAU
from skdpmf.privacy.text import PrintedPlan

_LARGEST = math.nextafter(math.inf, 0.0)


@dataclass(frozen=True)
class Release:
    """One planned release with Gaussian noise, possibly repeated with fresh statistics.

    The name is unique in its plan, the statistic is in words, the shape that of the noised values
    of one repetition, and the count says how often it is released. The sensitivity is L2; for
    layout "packed", lower triangles of symmetric matrices on the last axis, it is Frobenius' of the
    full ones. The noise multiplier is standard deviation over sensitivity; 0 is no noise and no
    privacy. Alternatives are names of planned releases whose statistic may take the release's
    place, at its noise multiplier.
    """

    name: str
    statistic: str
    shape: tuple[int, ...]
    sensitivity: float
    noise_multiplier: float = 0.0
    count: int = 1
    layout: str = "full"
    # seeded noise does not depend on them
    alternatives: tuple[str, ...] = field(default=(), repr=False)
    kind: ClassVar[str] = "gaussian"  # of guarantee
    norm: ClassVar[str] = "l2"  # of the sensitivity

    def __post_init__(self) -> None:
        _settle(self, "name", "statistic")
        _settle_number(self, "sensitivity", 5e-324, _LARGEST, "finite and > 0")
        rule = "finite and >= 0, where 0 is no noise"
        _settle_number(self, "noise_multiplier", 0.0, _LARGEST, rule)
        if self.layout not in ("full", "packed"):
            raise PrivacyParameterError(
                f"layout={self.layout!r} of release {self.name!r} must be 'full' or 'packed': "
                "'packed' for lower triangles of symmetric matrices."
            )

    @property
    def noise_scale(self) -> float:
        """Standard deviation of the noise (of diagonal entries for layout "packed")."""
        return self.noise_multiplier * self.sensitivity

    @property
    def mu(self) -> float:
        """Gaussian DP parameter of all repetitions, sqrt(count) / noise_multiplier."""
        if self.noise_multiplier == 0.0:
            return math.inf
        return math.sqrt(self.count) / self.noise_multiplier

    @property
    def n_values(self) -> int:
        """Noised values of all repetitions."""
        return math.prod(self.shape) * self.count

    @property
    def event(self) -> cost.GaussianEvent:
        """Return the event of the release, for accounting."""
        return cost.GaussianEvent(self.noise_multiplier, self.count)


@dataclass(frozen=True)
class PureRelease:
    """One planned release with a pure epsilon: Laplace noise, or a draw from a posterior.

    Epsilon is that of one repetition, infinite without privacy; each spends it, also if only their
    mean is published. The sensitivity bounds what one unit of privacy contributes, and the norm
    says in words in which quantity, such as "l1" or "loss of a user". For mechanism "laplace" and
    norm "l1" the noise follows from epsilon; see `noise_multiplier`. The rest is as for `Release`.
    """

    name: str
    statistic: str
    shape: tuple[int, ...]
    epsilon: float
    mechanism: str
    sensitivity: float
    norm: str
    count: int = 1
    alternatives: tuple[str, ...] = field(default=(), repr=False)
    kind: ClassVar[str] = "pure"  # of guarantee
    layout: ClassVar[str] = "full"

    def __post_init__(self) -> None:
        _settle(self, "name", "statistic", "mechanism", "norm")
        _settle_number(self, "epsilon", 0.0, math.inf, ">= 0, or inf for no privacy")
        _settle_number(self, "sensitivity", 5e-324, _LARGEST, "finite and > 0")

    @property
    def is_laplace(self) -> bool:
        """Whether it is Laplace noise, for an l1 sensitivity."""
        return (self.mechanism, self.norm) == ("laplace", "l1")

    @property
    def noise_multiplier(self) -> float:
        """Scale of the Laplace noise over sensitivity, rounded up: 1 / (epsilon - slack).

        The slack is the sampler's, 2 LAPLACE_ETA for each value of one repetition. Infinite where
        epsilon does not exceed it; 0, no noise, where epsilon is infinite. Other mechanisms than
        Laplace noise have none: a `PrivacyParameterError`.
        """
        if not self.is_laplace:
            raise PrivacyParameterError(
                f"mechanism={self.mechanism!r} with norm={self.norm!r} of release {self.name!r} "
                "must be 'laplace' with 'l1' to have a noise multiplier: ask is_laplace first."
            )
        if math.isinf(self.epsilon):
            return 0.0
        slack = 2 * Fraction(LAPLACE_ETA) * math.prod(self.shape)
        left = Fraction(self.epsilon) - slack
        if left <= 0 or 1 / left > Fraction(_LARGEST):
            return math.inf
        return cost.float_up(1 / left)

    @property
    def noise_scale(self) -> float:
        """Scale of the Laplace noise; an error as for `noise_multiplier`."""
        return self.noise_multiplier * self.sensitivity

    @property
    def n_values(self) -> int:
        """Values of all repetitions that get Laplace noise; 0 for other mechanisms."""
        return math.prod(self.shape) * self.count if self.is_laplace else 0

    @property
    def event(self) -> cost.PureEvent:
        """Return the event of the release, for accounting."""
        return cost.PureEvent(self.epsilon, self.count, self.mechanism)


@dataclass(frozen=True)
class ReleasePlan(PrintedPlan):
    """All releases of a fit, fixed before the data is touched.

    Gaussian releases compose exactly, by mu^2. Pure ones add their epsilons, to each other and to
    the epsilon of the Gaussian part (basic composition); their squares never enter mu^2.

    Parameters
    ----------
    budget : PrivacyBudget
        Budget to be spent. Kept without its ledger.
    releases : tuple of Release or PureRelease
        In their order; names are unique.
    notes : tuple of str, default=()
        Public remarks.
    condition : str, default=""
        Conditions of the guarantee that no code checks, in words that follow "CONDITIONAL
        on"; empty for an unconditional one.
    local : bool, default=False
        Whether the releases are what each user's own device sends, so that no server is trusted.
    made : tuple of Release or PureRelease, default=()
        Releases of a fit, from its curator's record; no part of the plan itself.

    Raises
    ------
    PrivacyParameterError
        If the budget is invalid, or two releases have one name.

    Examples
    --------
    >>> releases = [Release("a", "sums", (9,), 1.0), Release("b", "Grams", (9,), 2.0, count=4)]
    >>> plan = ReleasePlan.from_shares(PrivacyBudget(1.0, 1e-5), releases, {"a": 0.2, "b": 0.8})
    >>> round(plan.releases[0].noise_multiplier, 4), 0.999 < plan.epsilon <= 1.0
    (8.3419, True)
    """

    budget: PrivacyBudget
    releases: tuple[Release | PureRelease, ...]
    notes: tuple[str, ...] = ()
    condition: str = ""
    local: bool = False
    made: tuple[Release | PureRelease, ...] = field(default=(), repr=False, compare=False)

    def __post_init__(self) -> None:
        # a copy, as it may change later; where it is charged is no part of a plan
        budget = self.budget.validate().without_ledger()
        object.__setattr__(self, "budget", budget)
        object.__setattr__(self, "releases", tuple(self.releases))
        object.__setattr__(self, "notes", tuple(self.notes))
        names = [release.name for release in self.releases]
        for release in self.releases:
            if not {*release.alternatives} <= {*names}:
                raise PrivacyParameterError(
                    f"alternatives={release.alternatives!r} of release {release.name!r} must be "
                    f"among the planned releases {names!r}: plan them too."
                )
        if len(set(names)) != len(names):
            raise PrivacyParameterError(
                f"releases={names!r} must have unique names: noise is drawn by name; rename, or "
                "raise count."
            )

    @classmethod
    def from_shares(
        cls,
        budget: PrivacyBudget,
        releases: Iterable[Release | PureRelease],
        shares: Mapping[str, float],
        *,
        notes: Iterable[str] = (),
    ) -> ReleasePlan:
        """Calibrate the noise of releases to their shares of the whole budget.

        Release i gets the noise multiplier sqrt(count_i / share_i) / mu, mu the largest Gaussian DP
        parameter whose guarantee, with the slack of the sampler over all noised values, is
        within the budget; with a ledger, `PrivacyBudget.mu` if that is less. Without privacy
        (epsilon infinite) it is 0.

        Releases with Laplace noise, if all are, get epsilon share_i * budget.epsilon / count_i
        instead, rounded down, and spend no delta.

        Parameters
        ----------
        budget : PrivacyBudget
            The budget; for Gaussian noise with delta > 0.
        releases : iterable of Release, or of PureRelease
            All Gaussian, or all Laplace noise. Their noise multipliers or epsilons are replaced.
        shares : mapping of str to float
            Share of mu^2, or of epsilon, by name, all repetitions together; positive, of sum 1.
        notes : iterable of str, default=()
            Public remarks.

        Returns
        -------
        ReleasePlan

        Raises
        ------
        PrivacyParameterError
            If the budget is invalid, or has delta = 0 for Gaussian noise, the sampler's slack alone
            exceeds it, names and shares do not match, or kinds are mixed.
        """
        releases = tuple(releases)
        budget.validate()
        if sorted(shares) != sorted(release.name for release in releases):
            raise PrivacyParameterError(
                f"shares={dict(shares)!r} must name each of the releases "
                f"{[release.name for release in releases]!r} once: add or drop shares."
            )
        by_name = dict(zip(shares, check_shares(list(shares.values())), strict=True))
        if any(isinstance(release, PureRelease) for release in releases):
            pure = _with_shares_of_epsilon(releases, by_name, budget.epsilon)
            return cls(budget, pure, tuple(notes))
        gaussian = cast(tuple[Release, ...], releases)
        if budget.is_private and budget.delta == 0.0:
            raise PrivacyParameterError(
                f"delta={budget.delta!r} must be > 0 for Gaussian noise: pass "
                "PrivacyBudget(epsilon, delta) with for example delta=1e-5, well below 1 / number "
                "of users."
            )
        largest = max(math.sqrt(by_name[release.name] / release.count) for release in gaussian)
        mu = cost.gaussian_mu(
            budget.epsilon, budget.delta, **_slack(_most_values(gaussian), largest)
        )
        if budget.ledger is not None:
            mu = min(mu, budget.mu)
        calibrated = tuple(
            replace(release, noise_multiplier=math.sqrt(release.count / by_name[release.name]) / mu)
            for release in gaussian
        )
        plan = cls(budget, calibrated, tuple(notes))
        if budget.is_private and budget.ledger is None and plan.epsilon < 0.98 * budget.epsilon:
            unused = (
                f"The plan spends epsilon {plan.epsilon:.3g} of {budget.epsilon:g}: at delta "
                f"{budget.delta:g} the proof of the noise sampler goes no further, and a larger "
                "epsilon changes nothing."
            )
            plan = replace(plan, notes=(*plan.notes, unused))
        return plan

    @property
    def is_private(self) -> bool:
        """Whether epsilon is finite."""
        return math.isfinite(self.epsilon)

    @property
    def mu(self) -> float:
        """Gaussian DP parameter of the Gaussian releases; 0 if there are none."""
        return cost.compose_gaussian(
            release.noise_multiplier / math.sqrt(release.count) for release in self.gaussian
        )

    @property
    def n_values(self) -> int:
        """Values of all releases that get Gaussian noise, at most: see ``alternatives``."""
        return _most_values(self.gaussian)

    @property
    def slack(self) -> dict[str, Any]:
        """Parameters of the `SamplerSlack` of all Gaussian releases."""
        largest = cost.largest_of((r.noise_multiplier for r in self.gaussian), self.mu)
        return _slack(self.n_values, largest)

    @property
    def epsilon(self) -> float:
        """Epsilon that the releases spend at `delta`, the sampler's slack included, rounded up."""
        if not self.gaussian:
            return self.pure
        gaussian = cost.gaussian_epsilon(self.mu, self.budget.delta, **self.slack)
        if math.isinf(gaussian + self.pure):
            return math.inf
        return cost.float_up(Fraction(gaussian) + Fraction(self.pure))

    @property
    def pure(self) -> float:
        """Sum of the pure releases' epsilons, rounded up."""
        return pure_total(self.releases)

    @property
    def delta(self) -> float:
        """Delta that the releases spend: the budget's, 0 without Gaussian releases."""
        return float(self.budget.delta) if self.gaussian else 0.0

    @property
    def events(self) -> tuple[cost.Event, ...]:
        """The releases as events, in their order."""
        return tuple(release.event for release in self.releases)

    @property
    def gaussian(self) -> tuple[Release, ...]:
        """The releases with Gaussian noise."""
        return tuple(release for release in self.releases if isinstance(release, Release))


def _slack(n_values: int, largest: float) -> dict[str, Any]:
    """Return the parameters of a `SamplerSlack` of our sampler."""
    return {"n_values": n_values, "eta": SAMPLER_ETA, "tau": SAMPLER_TAU, "largest": largest}


def _most_values(releases: tuple[Release, ...]) -> int:
    """Values that get noise where each release holds the longest statistic that it may."""
    sizes = {release.name: math.prod(release.shape) for release in releases}
    return sum(
        max(sizes[name] for name in (release.name, *release.alternatives)) * release.count
        for release in releases
    )


def pure_total(releases: Iterable[Release | PureRelease]) -> float:
    """Return the sum of the pure releases' epsilons, rounded up; Gaussian ones count nothing."""
    return cost.sum_pure(
        [release.event for release in releases if isinstance(release, PureRelease)]
    )


def _with_shares_of_epsilon(
    releases: tuple[Release | PureRelease, ...], shares: Mapping[str, float], epsilon: float
) -> tuple[PureRelease, ...]:
    """Return Laplace releases whose epsilons add up to at most ``epsilon``, exactly."""
    laplace = [r for r in releases if isinstance(r, PureRelease) and r.is_laplace]
    if len(laplace) < len(releases):
        other = next(release for release in releases if release not in laplace)
        raise PrivacyParameterError(
            f"releases hold {other.name!r} beside or instead of Laplace noise: releases that share "
            "a budget must all be Release, or all PureRelease with mechanism='laplace' and "
            "norm='l1'. Split the budget, and join the plans' releases in a ReleasePlan."
        )
    if math.isinf(epsilon):
        return tuple(replace(release, epsilon=math.inf) for release in laplace)
    # floats may sum to 1 and be more than that
    total = max(Fraction(1), sum(map(Fraction, shares.values()), Fraction(0)))
    parts = []
    for release in laplace:
        exact = Fraction(shares[release.name]) / total * Fraction(epsilon) / release.count
        part = replace(release, epsilon=-cost.float_up(-exact))
        if math.isinf(part.noise_multiplier):
            raise PrivacyParameterError(
                f"epsilon={part.epsilon!r} of release {release.name!r} must exceed the slack of "
                f"the sampler for its {math.prod(release.shape)} values: raise the budget or its "
                "share, or release fewer values."
            )
        parts.append(part)
    return tuple(parts)


def _settle(release: Release | PureRelease, *texts: str) -> None:
    """Check what all releases have, and leave plain values, as those that JSON gives back."""
    name = release.name
    shape: Any = release.shape
    words: Any = release.alternatives
    lengths = tuple(shape) if isinstance(shape, Iterable) and not isinstance(shape, str) else (-1,)
    if not all(as_float(length) >= 0 and as_float(length) % 1 == 0 for length in lengths):
        raise PrivacyParameterError(
            f"shape={shape!r} of release {name!r} must be a tuple of integers >= 0: the shape of "
            "what is released."
        )
    if isinstance(words, str) or not all(isinstance(word, str) for word in words):
        raise PrivacyParameterError(
            f"alternatives={words!r} of release {name!r} must be a tuple of names of releases."
        )
    object.__setattr__(release, "shape", tuple(int(length) for length in lengths))
    object.__setattr__(release, "alternatives", tuple(words))
    count = cost.require_count(release.count, f" of release {name!r}")
    object.__setattr__(release, "count", count)
    for field_name in texts:
        text = getattr(release, field_name)
        if not isinstance(text, str) or not text:
            raise PrivacyParameterError(
                f"{field_name}={text!r} of release {name!r} must be a non-empty str: say it in "
                "words."
            )


def _settle_number(
    release: Release | PureRelease, name: str, least: float, most: float, rule: str
) -> None:
    """Check a number of a release, and leave it as a float."""
    value = getattr(release, name)
    if not least <= as_float(value) <= most:
        raise PrivacyParameterError(
            f"{name}={value!r} of release {release.name!r} must be a number {rule}: take it from "
            "the proof of the statistic's bound, and noise from ReleasePlan.from_shares."
        )
    object.__setattr__(release, name, float(value))
