"""Parameters of CacheSGDFactorizer, and its plan."""

import math
import os
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar

from skdpmf.estimators.contract.parameters import Options, Planner, is_count, is_finite, require
from skdpmf.privacy.statement import PrivacyStatement

_NOTE = (
    "CacheSGDFactorizer protects nobody: it adds no noise, and nothing bounds what its model "
    "reveals. The fitted object holds factors and biases of the training users, and its item "
    "factors depend on single ratings."
)
_NOTHING: Any = dict.fromkeys(("releases", "assumptions", "not_covered"), ())
_UNIT: Any = {"unit": "user", "neighbors": "add-remove", "notes": (_NOTE,)}
NO_PRIVACY = PrivacyStatement(epsilon=math.inf, delta=0.0, **_UNIT, **_NOTHING)


@dataclass(repr=False)
class Snapshots(Options):
    """Snapshots of a fit of `CacheSGDFactorizer` in progress.

    Parameters
    ----------
    path : str or path-like
        The file. If it exists when `fit` starts, the fit goes on from it; it is removed when the
        fit is complete.
    every : int or None, default=None
        Batches between two snapshots: row groups of `ParquetRatings`, or, where the factors of one
        do not fit the cache and for a matrix, fewer users (4096 at most). None: one snapshot a
        round.

    Examples
    --------
    >>> from skdpmf import CacheSGDFactorizer, Snapshots
    >>> CacheSGDFactorizer(snapshots=Snapshots("fit.snapshot", every=100)).snapshots.every
    100
    """

    path: Any = None
    every: int | None = None

    def _check(self) -> None:
        is_path = isinstance(self.path, str | os.PathLike)
        require(is_path, "path", self.path, "a path", "pass that of a file")
        self._require(("every",), lambda n: n is None or is_count(n), "None or an integer >= 1")


@dataclass(repr=False, eq=False)
class CacheSGDFactorizerPlanner(Planner):
    """Parameters of `CacheSGDFactorizer`, and its plan."""

    _options: ClassVar[dict[Any, Any]] = {"snapshots": {None: Snapshots}}

    n_components: int = 32
    _: KW_ONLY
    max_iter: int = 30
    learning_rate: float = 0.07
    learning_rate_decay: float | None = None
    alpha: float | None = None
    fit_bias: bool = True
    snapshots: Any = None
    warm_start: bool = False

    def plan(self, n_items: int, n_rows: int | None = None) -> PrivacyStatement:
        """Tell that `fit` protects nothing.

        Parameters
        ----------
        n_items : int
            Size of the catalogue, the columns of X.
        n_rows : int, default=None
            Number of rows of X.

        Returns
        -------
        PrivacyStatement
            Its epsilon is infinite. The same as ``privacy_spent_``.

        Examples
        --------
        >>> from skdpmf import CacheSGDFactorizer
        >>> CacheSGDFactorizer(8).plan(n_items=40).epsilon
        inf
        """
        return NO_PRIVACY

    def _check_params(self) -> None:
        super()._check_params()
        self._require_counts("n_components", "max_iter")
        self._require_positive("learning_rate")
        rate, rule = self.learning_rate_decay, "None or a number in (0, 1]"
        holds = rate is None or (is_finite(rate) and 0 < rate <= 1)
        require(holds, "learning_rate_decay", rate, rule, "use 1 to keep the rate")
        rule = "None or a finite number >= 0"
        self._require(("alpha",), lambda x: x is None or (is_finite(x) and x >= 0), rule)
        self._require_switches("fit_bias", "warm_start")
