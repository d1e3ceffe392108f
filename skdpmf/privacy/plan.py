"""The releases of a fit and their noise: fixed before the data is touched."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, ClassVar

from skdpmf.exceptions import require_that
from skdpmf.privacy import accounting as cost
from skdpmf.privacy.budget import PrivacyBudget, check_shares
from skdpmf.privacy.sampler.grid import as_float
from skdpmf.privacy.sampler.laws import SAMPLER_ETA, SAMPLER_TAU
from skdpmf.privacy.text import UNUSED, PrintedPlan

LARGEST = math.nextafter(math.inf, 0.0)


class Planned:
    """A planned release: `Release`, or a `PureRelease`. Its constructor leaves plain values."""

    kind: ClassVar[str]  # of guarantee
    name: str
    statistic: str
    shape: tuple[int, ...]
    sensitivity: float
    count: int
    alternatives: tuple[str, ...]

    @classmethod
    @abstractmethod
    def calibrated(
        cls, releases: tuple[Planned, ...], shares: Mapping[str, float], budget: PrivacyBudget
    ) -> Iterable[Planned]:
        """Return releases of this kind whose noise follows from their shares of a budget."""

    def _require(self, holds: bool, name: str, rule: str) -> None:
        require_that(holds, name, getattr(self, name), f"{rule} It is of release {self.name!r}.")

    def _settle(self, *texts: str) -> None:
        """Check what all releases have."""
        for name in texts:
            text = getattr(self, name)
            self._require(isinstance(text, str) and text != "", name, "a text, not empty.")
        names: Any = self.alternatives
        holds = not isinstance(names, str) and all(isinstance(one, str) for one in names)
        self._require(holds, "alternatives", "a tuple of names of releases.")
        lengths: Any = self.shape
        lengths = tuple(lengths) if isinstance(lengths, Iterable) else (-1,)
        holds = all(as_float(one) >= 0 and as_float(one) % 1 == 0 for one in lengths)
        self._require(holds, "shape", "a tuple of integers >= 0: the shape of what is released.")
        count = as_float(self.count)
        holds = 1.0 <= count < math.inf and count % 1.0 == 0.0
        self._require(holds, "count", "an integer >= 1: leave out what is not released.")
        object.__setattr__(self, "alternatives", tuple(names))
        object.__setattr__(self, "shape", tuple(map(int, lengths)))
        object.__setattr__(self, "count", int(self.count))
        self._settle_number("sensitivity", 5e-324, LARGEST)

    def _settle_number(self, name: str, least: float, most: float) -> None:
        value = as_float(getattr(self, name))
        rule = f"a number from {least:g} to {most:g}: take it from the proof of the statistic's "
        rule += "bound, and noise from ReleasePlan.from_shares."
        self._require(least <= value <= most, name, rule)
        object.__setattr__(self, name, value)


@dataclass(frozen=True)
class Release(Planned):
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
        self._settle("name", "statistic")
        self._settle_number("noise_multiplier", 0.0, LARGEST)
        rule = "'full' or 'packed': 'packed' for lower triangles of symmetric matrices."
        self._require(self.layout in ("full", "packed"), "layout", rule)

    @classmethod
    def calibrated(
        cls, releases: tuple[Any, ...], shares: Mapping[str, float], budget: PrivacyBudget
    ) -> Iterable[Release]:
        """Return the releases with multipliers sqrt(count / share) / mu of the budget."""
        rule = "> 0 for Gaussian noise: pass PrivacyBudget(epsilon, delta) with for example "
        rule += "delta=1e-5, well below 1 / number of users."
        require_that(not budget.is_private or budget.delta > 0.0, "delta", budget.delta, rule)
        largest = max(math.sqrt(shares[one.name] / one.count) for one in releases)
        slack = _slack(_most_values(releases), largest)
        mu = cost.gaussian_mu(budget.epsilon, budget.delta, **slack)
        if budget.ledger is not None:
            mu = min(mu, budget.mu)
        for one in releases:
            yield replace(one, noise_multiplier=math.sqrt(one.count / shares[one.name]) / mu)

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
    expected_rmse : dict of str to float, default=None
        Errors to expect, from public sizes, where an estimator's `plan` was asked; likewise.

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
    releases: tuple[Planned, ...]
    notes: tuple[str, ...] = ()
    condition: str = ""
    local: bool = False
    made: tuple[Planned, ...] = field(default=(), repr=False, compare=False)
    expected_rmse: dict[str, float] | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        # a copy, as it may change later; where it is charged is no part of a plan
        budget = self.budget.validate().without_ledger()
        object.__setattr__(self, "budget", budget)
        object.__setattr__(self, "releases", tuple(self.releases))
        object.__setattr__(self, "notes", tuple(self.notes))
        names = [release.name for release in self.releases]
        for release in self.releases:
            rule = f"among the planned releases {names!r}: plan them too."
            release._require({*release.alternatives} <= {*names}, "alternatives", rule)
        rule = "unique names, as noise is drawn by name: rename one, or raise count."
        require_that(len(set(names)) == len(names), "releases", names, rule)

    @classmethod
    def from_shares(
        cls,
        budget: PrivacyBudget,
        releases: Iterable[Planned],
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
        names = [release.name for release in releases]
        rule = f"a share for each of the releases {names!r}, once: add or drop shares."
        require_that(sorted(shares) == sorted(names), "shares", dict(shares), rule)
        by_name = dict(zip(shares, check_shares(list(shares.values())), strict=True))
        kind = next((type(one) for one in releases if one.kind != Release.kind), Release)
        plan = cls(budget, tuple(kind.calibrated(releases, by_name, budget)), tuple(notes))
        if budget.is_private and budget.ledger is None and plan.epsilon < 0.98 * budget.epsilon:
            plan = replace(plan, notes=(*plan.notes, UNUSED.format(plan, budget)))
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
    def gaussian(self) -> tuple[Release, ...]:
        """The releases with Gaussian noise; all others have pure epsilons."""
        own: Any = (release for release in self.releases if release.kind == Release.kind)
        return tuple(own)


def _slack(n_values: int, largest: float) -> dict[str, Any]:
    """Return the parameters of a `SamplerSlack` of our sampler."""
    return {"n_values": n_values, "eta": SAMPLER_ETA, "tau": SAMPLER_TAU, "largest": largest}


def _most_values(releases: tuple[Planned, ...]) -> int:
    """Values that get noise where each release holds the longest statistic that it may."""
    sizes = {release.name: math.prod(release.shape) for release in releases}
    return sum(
        max(sizes[name] for name in (release.name, *release.alternatives)) * release.count
        for release in releases
    )


def pure_total(releases: Iterable[Any]) -> float:
    """Return the sum of the pure releases' epsilons, rounded up; Gaussian ones count nothing."""
    return cost.sum_up((one.epsilon, one.count) for one in releases if one.kind != Release.kind)
