"""Parameters of DPCovarianceRecommender, and its plan."""

from dataclasses import dataclass
from typing import Any, ClassVar

from skdpmf.estimators.contract.parameters import Options, PrivatePlanner, is_finite, require
from skdpmf.estimators.planners import Clicks
from skdpmf.mechanisms.gram import covariance as solver
from skdpmf.mechanisms.gram import item_item as noisy_gram
from skdpmf.privacy.plan import ReleasePlan


@dataclass(repr=False)
class NearestItems(Options):
    """Predictions of `DPCovarianceRecommender` from a user's nearest items (``predictor="knn"``).

    Parameters
    ----------
    n_neighbors : int, default=50
        Most neighbours of an item.

    Examples
    --------
    >>> from skdpmf import DPCovarianceRecommender, NearestItems, PrivacyBudget
    >>> budget = PrivacyBudget(4.0, 1e-5)
    >>> DPCovarianceRecommender(budget, predictor=NearestItems(n_neighbors=20)).predictor
    NearestItems(n_neighbors=20)
    """

    n_neighbors: int = 50

    def _check(self) -> None:
        self._require_counts("n_neighbors")


@dataclass(repr=False)
class NoisyCovariance(Options):
    """How `DPCovarianceRecommender` releases and cleans the item covariance.

    Parameters
    ----------
    item_damping : float, default=2.5
        Fictitious ratings of every item: a guess, where there is noise, and as many at the mean of
        all without noise if not `clean`.
    clamp : float, default=1.0
        B, in quarters of the rating range (stars, on a scale from 1 to 5). The noise grows with
        its square.
    clean : bool, default=True
        Whether the covariance is shrunk to its average, its weights to what the items' popularity
        lets expect, eigenvalues within the noise are left out and the others shrunk, and the
        penalties of predictions, and of items without noise, follow from what is left. Costs no
        privacy. False: as published.
    shares : "auto" or tuple of 3 floats, default="auto"
        Shares of global effects, item means and covariance in the budget: of mu^2 for Gaussian
        noise, of epsilon for Laplace noise. "auto": chosen by the budget and the numbers of rows
        and items, and the covariance is restricted to the items that its noise does not hide; if
        there are too few, item means are released again instead. A tuple has the sum 1, with item
        means > 0, and is taken at its word.

    Examples
    --------
    >>> from skdpmf import DPCovarianceRecommender, NoisyCovariance, PrivacyBudget
    >>> published = NoisyCovariance(clean=False, shares=(0.02, 0.18, 0.8))
    >>> model = DPCovarianceRecommender(PrivacyBudget(4.0, 1e-5), covariance=published)
    >>> model.get_params()["covariance__clean"]
    False
    """

    item_damping: float = 2.5
    clamp: float = 1.0
    clean: bool = True
    shares: Any = "auto"

    def _check(self) -> None:
        self._require_between("item_damping", "clamp")
        self._require_switches("clean", remedy="use True")
        rule = "'auto' or three numbers >= 0 of sum 1 (global effects, item means, covariance), "
        rule += "the second > 0"
        require(_are_shares(self.shares), "shares", self.shares, rule, "use 'auto'")


@dataclass(repr=False, eq=False, kw_only=True)
class DPCovarianceRecommenderPlanner(PrivatePlanner):
    """Parameters of `DPCovarianceRecommender`, and its plan."""

    _options: ClassVar[dict[str, Any]] = {
        "feedback": {"explicit": None, "implicit": Clicks},
        "predictor": {"svd": None, "knn": NearestItems},
        "covariance": {"auto": NoisyCovariance},
    }

    public: Any = None
    feedback: Any = "explicit"
    noise: str = "gaussian"
    predictor: Any = "svd"
    covariance: Any = "auto"
    n_components: int = 20
    user_damping: float = 40.0

    def _make_plan(self, n_items: int, n_rows: int | None = None) -> ReleasePlan:
        if self._implicit:
            return noisy_gram.make_plan(self.budget, n_items, n_rows)
        return solver.make_plan(self.budget, self._settings(), n_items, n_rows)

    def _n_rounds(self) -> int:
        return noisy_gram.N_ROUNDS if self._implicit else solver.N_ROUNDS

    def _settings(self) -> solver.Settings:
        release, shares = self._chosen("covariance"), None
        if not isinstance(release.shares, str):
            overall, averages, covariance = (float(share) for share in release.shares)
            shares = overall, averages, covariance
        return self._settled(solver.Settings, release, shares=shares)

    @property
    def _takes_public(self) -> bool:
        return self._implicit or self.budget.unit == "user"

    def _check_params(self) -> None:
        super()._check_params()
        self._require_choice("noise", ("gaussian", "laplace"))
        remedy = "use 'gaussian', as clicks have no other noise"
        holds = not self._implicit or self.noise == "gaussian"
        require(holds, "noise", self.noise, "'gaussian' for feedback='implicit'", remedy)
        self._require_counts("n_components")
        self._require_between("user_damping")
        self._make_plan(1)  # refuses budgets it cannot plan for


def _are_shares(value: Any) -> bool:
    if isinstance(value, str):
        return value == "auto"
    try:
        shares = list(value)
    except TypeError:
        return False
    if len(shares) != 3 or not all(is_finite(share) and share >= 0.0 for share in shares):
        return False
    return shares[1] > 0.0 and abs(sum(shares) - 1.0) < 1e-9
