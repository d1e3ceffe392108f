"""Parameters of an estimator, their checks and its plan: the part that needs no scikit-learn."""

from abc import ABC, abstractmethod
from dataclasses import replace
from inspect import signature
from typing import Any

from skdpmf.data.feature_columns import check_item_features
from skdpmf.data.validation import check_rating_range
from skdpmf.estimators.contract.parameters import (
    OptionParameters,
    is_count,
    is_int,
    require,
    require_budget,
    require_random_state,
)
from skdpmf.estimators.contract.refreshed import notes_of_a_year
from skdpmf.privacy.budget import PrivacyBudget
from skdpmf.privacy.plan import ReleasePlan

__all__ = ["Planner", "PrivatePlanner", "alone"]


class Planner(OptionParameters, ABC):
    """The base of an estimator that needs no scikit-learn: it has seen no ratings.

    The estimator is a subclass of it and of scikit-learn's bases; `alone` makes a class without
    them.
    """

    rating_range: Any
    item_features: Any = None
    random_state: Any
    n_jobs: Any

    @abstractmethod
    def plan(self, n_items: int, n_rows: int | None = None) -> Any:
        """Tell what `fit` would release, from public numbers alone."""

    @property
    def _value_range(self) -> Any:
        """Public range of the values of X, and of predictions."""
        return self.rating_range

    def _check_params(self) -> None:
        """Check the parameters, before any data is touched or budget spent."""
        check_rating_range(self.rating_range)
        check_item_features(self.item_features)
        if self.n_jobs is not None and (not is_int(self.n_jobs) or self.n_jobs == 0):
            raise ValueError(
                f"n_jobs={self.n_jobs!r} must be None or an integer other than 0: the number of "
                "threads, -1 for all cores."
            )
        require_random_state(self.random_state)
        self._check_options()


class PrivatePlanner(Planner):
    """The same with a `budget`; a subclass has `_make_plan`."""

    budget: PrivacyBudget
    feedback: Any = "explicit"  # a parameter of those that take clicks too

    @abstractmethod
    def _make_plan(self, n_items: int, n_rows: int | None = None) -> ReleasePlan:
        """Plan for checked parameters."""

    @property
    def _implicit(self) -> bool:
        return not isinstance(self.feedback, str) or self.feedback == "implicit"

    @property
    def _value_range(self) -> Any:
        return (0.0, 1.0) if self._implicit else self.rating_range

    @property
    def _only_sums(self) -> bool:
        """Whether all that is released are sums over users, so that blocks of them may be apart."""
        return True

    def plan(
        self,
        n_items: int,
        n_rows: int | None = None,
        *,
        refreshes: int | None = None,
    ) -> ReleasePlan:
        """Tell what `fit` would release, with which noise, for which share of the budget.

        Parameters
        ----------
        n_items : int
            Size of the catalogue, the columns of X.
        n_rows : int, default=None
            Number of rows of X, where the plan depends on it.
        refreshes : int, default=None
            How often this is to be done, if the notes are to say what that costs each person: by
            `refresh`, on new people each time, and by `fit` on everybody each time.

        Returns
        -------
        ReleasePlan
            The releases. No data is touched and no budget is spent.

        Raises
        ------
        ValueError
            If a parameter is invalid, or the budget cannot be met.

        Examples
        --------
        >>> from skdpmf import DPItemMeans
        >>> plan = DPItemMeans(PrivacyBudget(4.0, 1e-5)).plan(n_items=40)
        >>> [release.name for release in plan.releases]
        ['global effects', 'item counts', 'item residuals']

        The notes say what a year costs:

        >>> plan = DPItemMeans(PrivacyBudget(1.0, 1e-5)).plan(n_items=40, refreshes=12)
        >>> plan.notes[-1]
        '12 fits on everybody: epsilon ... for each person, all together.'
        """
        self._check_params()
        require(is_count(n_items), "n_items", n_items, "an integer >= 1", "pass X.shape[1]")
        if n_rows is not None:
            require(is_count(n_rows), "n_rows", n_rows, "an integer >= 1", "pass X.shape[0]")
            n_rows = int(n_rows)
        plan = self._make_plan(int(n_items), n_rows)
        if refreshes is not None:
            remedy = "pass how many fits there are in a year"
            require(is_count(refreshes), "refreshes", refreshes, "an integer >= 1", remedy)
            plan = replace(plan, notes=(*plan.notes, *notes_of_a_year(plan, int(refreshes))))
        return plan

    def _check_params(self) -> None:
        super()._check_params()
        require_budget(self.budget)


class _Alone:
    """Methods that planners have from scikit-learn where they are estimators."""

    @classmethod
    def _get_param_names(cls) -> list[str]:
        return sorted(signature(cls).parameters)

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self._get_param_names()}

    def set_params(self, **params: Any) -> Any:
        for name in sorted(params, key=lambda name: "__" in name):
            home, _, own = name.partition("__")
            if own:
                getattr(self, home).set_params(**{own: params[name]})
            else:
                setattr(self, name, params[name])
        return self

    def __repr__(self) -> str:
        """Return the call that makes it, which scikit-learn breaks into lines where it is long."""
        name, params = type(self).__name__, self.get_params(deep=False)
        known = signature(type(self)).parameters
        changed = [name for name in params if repr(params[name]) != repr(known[name].default)]
        call = f"{name}({', '.join(f'{name}={params[name]!r}' for name in changed)})"
        if len(call) <= 80:
            return call
        import skdpmf.estimators

        return repr(getattr(skdpmf.estimators, name)(**params))


def alone(planner: type[Planner]) -> type[Any]:
    """Return a planner as a class of its own, with the name of its estimator."""
    return type(planner.__name__.removesuffix("Planner"), (planner, _Alone), {})
