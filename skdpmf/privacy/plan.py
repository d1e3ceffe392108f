"""What a fit will release, with how much noise: fixed before the data is touched."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from skdpmf.exceptions import PrivacyParameterError
from skdpmf.privacy._text import guarantee_lines, list_lines, table_lines
from skdpmf.privacy.accounting import compose_gaussian, gaussian_epsilon, gaussian_mu
from skdpmf.privacy.budget import PrivacyBudget, check_shares
from skdpmf.privacy.noise import SAMPLER_ETA, SAMPLER_TAU

__all__ = ["Release", "ReleasePlan"]


@dataclass(frozen=True)
class Release:
    """One planned release with Gaussian noise, possibly repeated with fresh statistics.

    Parameters
    ----------
    name : str
        Unique in its plan.
    statistic : str
        What is released, in words.
    shape : tuple of int
        Shape of the noised values of one repetition.
    sensitivity : float
        L2 sensitivity.
    noise_multiplier : float, default=0.0
        Noise standard deviation over sensitivity; 0 is no noise and no privacy.
    count : int, default=1
        Times it is released, such as rounds.
    layout : {"full", "packed"}, default="full"
        As for `NoiseSource.release`: "packed" holds lower triangles of symmetric matrices on the
        last axis, the sensitivity is Frobenius' of the full ones.

    Raises
    ------
    PrivacyParameterError
        If a parameter is outside its range.

    Examples
    --------
    >>> release = Release("counts", "ratings per item", (100,), 10.0, noise_multiplier=2.0, count=4)
    >>> release.noise_scale, release.mu, release.n_values
    (20.0, 1.0, 400)
    """

    name: str
    statistic: str
    shape: tuple[int, ...]
    sensitivity: float
    noise_multiplier: float = 0.0
    count: int = 1
    layout: str = "full"

    def __post_init__(self) -> None:
        # plain numbers, so that a statement equals itself after a trip through JSON
        object.__setattr__(self, "shape", tuple(int(length) for length in self.shape))
        for name, value in (
            ("sensitivity", self.sensitivity),
            ("noise_multiplier", self.noise_multiplier),
        ):
            if not 0.0 <= value < math.inf or (name == "sensitivity" and value == 0.0):
                raise PrivacyParameterError(
                    f"{name}={value!r} of release {self.name!r} must be finite and > 0 (the noise "
                    "multiplier may be 0 for no noise): take it from skdpmf.privacy.sensitivity "
                    "and ReleasePlan.from_shares."
                )
            object.__setattr__(self, name, float(value))
        if isinstance(self.count, bool) or self.count < 1 or self.count != int(self.count):
            raise PrivacyParameterError(
                f"count={self.count!r} of release {self.name!r} must be an integer >= 1: leave out "
                "what is not released."
            )
        object.__setattr__(self, "count", int(self.count))
        if self.layout not in ("full", "packed"):
            raise PrivacyParameterError(
                f"layout={self.layout!r} of release {self.name!r} must be 'full' or 'packed': "
                "'packed' for lower triangles of symmetric matrices."
            )

    @property
    def norm(self) -> str:
        """Norm of the sensitivity."""
        return "l2"

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


@dataclass(frozen=True)
class ReleasePlan:
    """All releases of a fit, fixed before the data is touched.

    Parameters
    ----------
    budget : PrivacyBudget
        What may be spent.
    releases : tuple of Release
        In their order; names are unique.
    notes : tuple of str, default=()
        Public remarks.
    eta, tau : float
        Proven accuracy of the sampler, as for `with_sampler_slack`.

    Raises
    ------
    PrivacyParameterError
        If the budget is invalid, or two releases have one name.

    Examples
    --------
    >>> counts = Release("counts", "ratings per item", (100,), 10.0)
    >>> plan = ReleasePlan.from_shares(PrivacyBudget(1.0, 1e-5), [counts], {"counts": 1.0})
    >>> round(plan.releases[0].noise_multiplier, 4)
    3.7306
    >>> 0.999 < plan.epsilon <= 1.0
    True
    """

    budget: PrivacyBudget
    releases: tuple[Release, ...]
    notes: tuple[str, ...] = ()
    eta: float = SAMPLER_ETA
    tau: float = SAMPLER_TAU

    def __post_init__(self) -> None:
        budget = PrivacyBudget(**self.budget.validate().get_params())  # it may change later
        object.__setattr__(self, "budget", budget)
        object.__setattr__(self, "releases", tuple(self.releases))
        object.__setattr__(self, "notes", tuple(self.notes))
        names = [release.name for release in self.releases]
        if len(set(names)) != len(names):
            raise PrivacyParameterError(
                f"releases={names!r} must have unique names: noise is drawn by name; rename, or "
                "raise count."
            )

    @classmethod
    def from_shares(
        cls,
        budget: PrivacyBudget,
        releases: Iterable[Release],
        shares: Mapping[str, float],
        *,
        notes: Iterable[str] = (),
        eta: float = SAMPLER_ETA,
        tau: float = SAMPLER_TAU,
    ) -> ReleasePlan:
        """Calibrate the noise of releases to their shares of the whole budget.

        Release i gets the noise multiplier sqrt(count_i / share_i) / mu, mu the largest Gaussian DP
        parameter whose guarantee, with the slack of the sampler over all noised values, is
        within the budget. Without privacy (epsilon infinite) it is 0.

        Parameters
        ----------
        budget : PrivacyBudget
            The budget, with delta > 0.
        releases : iterable of Release
            Their noise multipliers are replaced.
        shares : mapping of str to float
            Share of mu^2 by name, all repetitions together; positive, of sum 1.
        notes : iterable of str, default=()
            Public remarks.
        eta, tau : float
            Proven accuracy of the sampler, as for `with_sampler_slack`.

        Returns
        -------
        ReleasePlan

        Raises
        ------
        PrivacyParameterError
            If the budget is invalid or has delta = 0, the sampler's slack alone exceeds it, or
            names and shares do not match.

        Examples
        --------
        >>> releases = [Release("a", "sums", (9,), 1.0), Release("b", "Grams", (9,), 2.0, count=4)]
        >>> plan = ReleasePlan.from_shares(PrivacyBudget(1.0, 1e-5), releases, {"a": 0.2, "b": 0.8})
        >>> [round(plan.share(release), 9) for release in plan.releases]
        [0.2, 0.8]
        """
        releases = tuple(releases)
        budget.validate()
        if sorted(shares) != sorted(release.name for release in releases):
            raise PrivacyParameterError(
                f"shares={dict(shares)!r} must name each of the releases "
                f"{[release.name for release in releases]!r} once: add or drop shares."
            )
        by_name = dict(zip(shares, check_shares(list(shares.values())), strict=True))
        if budget.is_private and budget.delta == 0.0:
            raise PrivacyParameterError(
                f"delta={budget.delta!r} must be > 0 for Gaussian noise: pass "
                "PrivacyBudget(epsilon, delta) with for example delta=1e-5, well below 1 / number "
                "of users."
            )
        n_values = sum(release.n_values for release in releases)
        mu = gaussian_mu(budget.epsilon, budget.delta, n_values=n_values, eta=eta, tau=tau)
        calibrated = tuple(
            replace(release, noise_multiplier=math.sqrt(release.count / by_name[release.name]) / mu)
            for release in releases
        )
        return cls(budget, calibrated, tuple(notes), eta, tau)

    @property
    def is_private(self) -> bool:
        """Whether epsilon is finite."""
        return math.isfinite(self.epsilon)

    @property
    def mu(self) -> float:
        """Gaussian DP parameter of all releases."""
        return compose_gaussian(
            release.noise_multiplier / math.sqrt(release.count) for release in self.releases
        )

    @property
    def n_values(self) -> int:
        """Noised values of all releases."""
        return sum(release.n_values for release in self.releases)

    @property
    def epsilon(self) -> float:
        """Epsilon that the releases spend at `delta`, the sampler's slack included."""
        if not self.releases:
            return 0.0
        return gaussian_epsilon(
            self.mu, self.budget.delta, n_values=self.n_values, eta=self.eta, tau=self.tau
        )

    @property
    def delta(self) -> float:
        """Delta that the releases spend: the budget's."""
        return float(self.budget.delta) if self.releases else 0.0

    def share(self, release: Release) -> float:
        """Return a release's share of mu^2, all its repetitions together.

        Parameters
        ----------
        release : Release
            Of this plan.

        Returns
        -------
        float
            NaN without privacy.

        Examples
        --------
        >>> plan = ReleasePlan(PrivacyBudget(9.0, 1e-5), (Release("a", "sums", (1,), 1.0, 1.0),))
        >>> plan.share(plan.releases[0])
        1.0
        """
        mu = self.mu
        return (release.mu / mu) ** 2 if math.isfinite(mu) else math.nan

    def __str__(self) -> str:
        lines = ["Planned releases", "", *guarantee_lines(self.epsilon, self.delta, self.mu)]
        lines += ["", *table_lines(self.releases, self.mu)]
        return "\n".join(lines + list_lines("Notes", self.notes))
