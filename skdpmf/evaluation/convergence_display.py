"""A picture of how well the chains of a posterior sampler agree and mix."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from skdpmf.evaluation._plotting import BLUE, VERMILION, axes_or_new, make_logarithmic

__all__ = ["ConvergenceDisplay"]

_NAMED = 3  # of the quantities that fail, in the legend
_RANGE = 1e-4, 1e2  # of R-hat - 1, as shown


class ConvergenceDisplay:
    """Picture of R-hat against effective sample size, a point for each quantity of the chains.

    Quantities that pass are circles, below and right of the limits; those that fail are crosses.
    The legend names the worst. Like the diagnostics, it reads the ratings and must not be
    published; and it proves nothing, as no diagnostic bounds the distance to the posterior.

    Parameters
    ----------
    names : sequence of str
        Names of the quantities.
    rhat, ess : array-like of shape (n_names,)
        Split R-hat, and effective sample size, the smaller one of bulk and tails. What is not
        finite fails; NaN has no point, R-hat - 1 is shown from 1e-4 to 100.
    max_rhat, min_ess : float, default=1.01, 400.0
        Limits, of Vehtari et al. (2021).

    Attributes
    ----------
    fails : ndarray of bool, shape (n_names,)
        Which quantities do not have R-hat below and an effective sample size above the limit.
    ax_ : matplotlib axes
        After `plot`.
    figure_ : matplotlib figure
        After `plot`.
    passing_, failing_ : matplotlib Line2D
        The points, after `plot`.

    Raises
    ------
    ValueError
        If there are not as many of each as names.

    References
    ----------
    Vehtari, Gelman, Simpson, Carpenter, Buerkner (2021). Rank-normalization, folding, and
    localization: an improved R-hat for assessing convergence of MCMC. Bayesian Analysis 16(2).

    Examples
    --------
    >>> from skdpmf.evaluation.convergence_display import ConvergenceDisplay
    >>> display = ConvergenceDisplay(["loss", "|V|^2"], [1.002, 1.3], [900.0, 12.0])
    >>> display.fails
    array([False,  True])
    >>> display.plot()  # doctest: +SKIP
    >>> from skdpmf import DPMFSampler, PosteriorDraw, PrivacyBudget
    >>> from skdpmf.data import make_ratings
    >>> draw = PosteriorDraw(nonprivate_diagnostics=True)
    >>> sampler = DPMFSampler(PrivacyBudget(16.0), guarantee=draw, max_iter=60)
    >>> sampler = sampler.fit(make_ratings(60, 10, random_state=0))
    >>> ConvergenceDisplay.from_estimator(sampler)  # doctest: +SKIP
    """

    def __init__(
        self,
        names: Sequence[str],
        rhat: Any,
        ess: Any,
        *,
        max_rhat: float = 1.01,
        min_ess: float = 400.0,
    ) -> None:
        self.names = list(names)
        self.rhat = np.asarray(rhat, dtype=np.float64)
        self.ess = np.asarray(ess, dtype=np.float64)
        self.max_rhat = max_rhat
        self.min_ess = min_ess
        for argument, values in (("rhat", self.rhat), ("ess", self.ess)):
            if values.shape != (len(self.names),):
                raise ValueError(
                    f"{argument} of shape {values.shape} must have one value for each of the "
                    f"{len(self.names)} names: pass those of the same diagnostics."
                )
        self.fails = ~((self.rhat < max_rhat) & (self.ess > min_ess))

    @classmethod
    def from_estimator(cls, estimator: Any, *, ax: Any = None, **points: Any) -> ConvergenceDisplay:
        """Plot the diagnostics of a fitted `DPMFSampler`.

        Parameters
        ----------
        estimator : DPMFSampler
            Fitted with ``guarantee=PosteriorDraw(nonprivate_diagnostics=True)``.
        ax : matplotlib axes, default=None
            Where to. None: a new figure.
        **points
            As for ``ax.plot``.

        Returns
        -------
        ConvergenceDisplay
            With its plot.

        Raises
        ------
        MissingExtraError
            If matplotlib is not installed.
        ValueError
            If the estimator has no diagnostics.
        """
        found = getattr(estimator, "nonprivate_diagnostics_", None)
        if found is None:
            raise ValueError(
                f"estimator of type {type(estimator).__name__} must have nonprivate_diagnostics_: "
                "fit a DPMFSampler(budget, guarantee=PosteriorDraw(nonprivate_diagnostics=True))."
            )
        ess = np.minimum(found.ess_bulk, found.ess_tail)
        return cls(found.names, found.rhat, ess).plot(ax, **points)

    def plot(self, ax: Any = None, **points: Any) -> ConvergenceDisplay:
        """Draw the picture.

        Parameters
        ----------
        ax : matplotlib axes, default=None
            Where to. None: a new figure.
        **points
            For both kinds of points, as for ``ax.plot``.

        Returns
        -------
        ConvergenceDisplay
            Self.

        Raises
        ------
        MissingExtraError
            If matplotlib is not installed.
        """
        self.ax_ = ax = axes_or_new(ax)
        self.figure_ = ax.figure
        above, fails = np.clip(self.rhat - 1.0, *_RANGE), self.fails
        with np.errstate(divide="ignore"):
            badness = np.fmax((self.rhat - 1.0) / (self.max_rhat - 1.0), self.min_ess / self.ess)
        badness[np.isnan(self.rhat) | np.isnan(self.ess)] = np.inf
        worst = [self.names[q] for q in np.argsort(-badness, kind="stable") if fails[q]]
        named = ", ".join(worst[:_NAMED]) + (", ..." if len(worst) > _NAMED else "")
        (self.passing_,) = ax.plot(
            self.ess[~fails],
            above[~fails],
            **{"marker": "o", "linestyle": "", "color": BLUE, **points},
            label=f"{(~fails).sum()} pass",
        )
        (self.failing_,) = ax.plot(
            self.ess[fails],
            above[fails],
            **{"marker": "x", "linestyle": "", "color": VERMILION, **points},
            label=f"{fails.sum()} fail: {named}" if worst else "0 fail",
        )
        asked = f"asked: R-hat < {self.max_rhat:g}, ESS > {self.min_ess:g}"
        ax.axhline(self.max_rhat - 1.0, color="black", linestyle="--", linewidth=1.0, label=asked)
        ax.axvline(self.min_ess, color="black", linestyle="--", linewidth=1.0)
        ax.set(yscale="log", xlabel="effective sample size (draws)", ylabel="R-hat - 1")
        make_logarithmic(ax)
        low, high = 0.5 * _RANGE[0], np.nanmax([*above, self.max_rhat - 1.0])
        ax.set_ylim(low, high * (high / low) ** 0.4)  # with room for the legend above the points
        ax.set_title(
            f"Convergence: {fails.sum()} of {fails.size} quantities fail\n"
            "reads the ratings: not to be published",
            loc="left",
            fontsize="medium",
        )
        ax.legend(loc="upper left")
        return self
