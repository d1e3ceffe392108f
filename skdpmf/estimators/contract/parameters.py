"""Parameters of an estimator, their checks and its plan: the part that needs no scikit-learn."""

import copy
import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import wraps
from inspect import signature
from typing import Any, ClassVar

import numpy as np
from scipy import sparse

from skdpmf.data.feature_columns import check_item_features
from skdpmf.data.validation import as_rating_matrix, check_rating_range, is_finite, is_integer
from skdpmf.data.validation import require as require
from skdpmf.privacy.accounting import gaussian_epsilon
from skdpmf.privacy.budget import PrivacyBudget
from skdpmf.privacy.plan import ReleasePlan, pure_total
from skdpmf.privacy.recording import active_recorder
from skdpmf.privacy.text import WEAK, Parameters


def is_int(value: Any) -> bool:
    """Return whether a value is an integer, and no bool."""
    return is_integer(value, -math.inf)


def is_count(value: Any) -> bool:
    """Return whether a value is an integer >= 1."""
    return is_integer(value, 1)


def require_budget(budget: Any) -> None:
    """Raise unless `budget` is a PrivacyBudget of valid parameters."""
    if not isinstance(budget, PrivacyBudget):
        raise TypeError(
            f"budget={budget!r} must be a PrivacyBudget: pass PrivacyBudget(epsilon, delta), for "
            "example PrivacyBudget(1.0, 1e-5)."
        )
    budget.validate()


def require_random_state(random_state: Any) -> None:
    """Raise unless `random_state` is None or an integer >= 0."""
    holds = random_state is None or is_integer(random_state, 0)
    remedy = "None draws fresh randomness from the operating system; an integer repeats a fit"
    require(holds, "random_state", random_state, "None or an integer >= 0", remedy)


def check_items(items: Any, n_items: int, parameter: str = "items") -> np.ndarray:
    """Return column indices as a 1-D array of int64, or raise ValueError."""
    array = np.atleast_1d(np.asarray(items))
    if array.ndim != 1 or array.dtype.kind not in "iu" or array.size == 0:
        raise ValueError(
            f"{parameter}={items!r:.99} must be column indices, integers in one dimension, as the "
            "model knows no names: fit it with a RatingMatrix or DataFrame to name items by ids."
        )
    outside = (array < 0) | (array >= n_items)
    if outside.any():
        raise ValueError(
            f"{parameter} holds {array[outside][0]} and must hold indices from 0 to {n_items - 1}: "
            "pass columns of the X of fit."
        )
    return array.astype(np.int64)


def check_where(where: Any, shape: tuple[int, int]) -> Any:
    """Return a canonical CSR array of the stored positions of `where`, or raise ValueError."""
    if sparse.issparse(where) and where.format not in ("bsr", "dia"):
        where = where.tocoo()
        ones = np.ones(where.data.size)
        where = sparse.coo_array((ones, (where.row, where.col)), shape=where.shape)
    elif hasattr(where, "dtype") and where.dtype == bool:
        where = np.where(where, 1.0, np.nan)
    where = as_rating_matrix(where)
    if where.shape != shape:
        raise ValueError(
            f"where has shape {where.shape} and must have the shape of X, {shape}: store an entry "
            "at each position to predict."
        )
    return where


def check_count(value: Any, name: str) -> None:
    """Raise ValueError unless a number of items to return is an integer >= 1."""
    require(is_count(value), name, value, "an integer >= 1", "pass how many items to return")


class _Checked:
    """Checks of the parameters of these names, each of which may raise ValueError."""

    def _require(self, names: Any, holds: Any, rule: str, remedy: str = "use the default") -> None:
        for name in names:
            value = getattr(self, name)
            require(holds(value), name, value, rule, remedy)

    def _require_counts(self, *names: str, optional: bool = False) -> None:
        self._require(names, lambda n: is_count(n) or (optional and n is None), "an integer >= 1")

    def _require_positive(self, *names: str, optional: bool = False) -> None:
        names = tuple(n for n in names if not optional or getattr(self, n) is not None)
        self._require(names, lambda x: is_finite(x) and x > 0, "a finite number > 0")

    def _require_between(self, *names: str, least: float = 1e-6) -> None:
        rule = f"a number between {'1e-6' if least else '0'} and 1e6"
        self._require(names, lambda x: is_finite(x) and least <= x <= 1e6, rule)

    def _require_choice(self, name: str, choices: tuple[str, ...]) -> None:
        rule = " or ".join(map(repr, choices))
        self._require(
            (name,), choices.__contains__, rule, f"leave it out for the default, {choices[0]!r}"
        )

    def _require_switches(self, *names: str, remedy: str = "use the default") -> None:
        self._require(names, lambda x: isinstance(x, bool | np.bool_), "True or False", remedy)


def _call_of(value: Any, params: dict[str, Any]) -> str:
    """Return the call that makes a value of these parameters, without its defaults."""
    known = signature(type(value)).parameters
    changed = [f"{k}={v!r}" for k, v in params.items() if repr(v) != repr(known[k].default)]
    return f"{type(value).__name__}({', '.join(changed)})"


class Options(_Checked, Parameters):
    """Parameters of one choice. A subclass is a dataclass with a ``_check``.

    `get_params` and `set_params` of an estimator reach them as ``choice__parameter``; they are no
    estimators themselves.
    """

    def __repr__(self) -> str:
        """Return the call that makes them; defaults are left out."""
        return _call_of(self, self.get_params())

    def _check(self) -> None:
        """Raise ValueError for a parameter that is out of range."""


class OptionParameters(_Checked):
    """Parameters whose values are `Options`, or strings for those with their defaults."""

    _options: ClassVar[Mapping[str, Mapping[Any, Any]]] = {}
    """Shorthands of each such parameter and their classes, None where there are no options."""

    def _chosen(self, name: str) -> Any:
        """Return the options that a parameter names; None for a shorthand without any."""
        return self._unfolded(name, getattr(self, name))

    def _unfolded(self, name: str, value: Any) -> Any:
        if isinstance(value, Options):
            return value
        kind = self._options[name].get(value) if value is None or isinstance(value, str) else None
        return kind and kind()

    def _shorthand(self, name: str) -> str:
        """Return the string that stands for a parameter's choice."""
        value = getattr(self, name)
        if not isinstance(value, Options):
            return str(value)
        return next(key for key, kind in self._options[name].items() if type(value) is kind)

    def _settled(self, kind: Any, options: Any = None, **own: Any) -> Any:
        """Return settings of a kind: these, and parameters of the options and of this object."""
        known = {one.name: one.type for one in fields(kind)}
        for source in (options, self):  # what comes first counts
            own = {name: getattr(source, name) for name in known if hasattr(source, name)} | own
        for name in known.keys() & own.keys():
            plain = (each for each in (bool, int, float) if known[name] in (each, each | None))
            if own[name] is not None:  # no numpy numbers, which a repr shows as such
                own[name] = next(plain, lambda value: value)(own[name])
        return kind(**{name: own[name] for name in known if name in own})

    def _check_options(self) -> None:
        for name, kinds in self._options.items():
            value = getattr(self, name)
            names = [repr(key) for key in kinds]
            names += [kind.__name__ + "(...)" for kind in kinds.values() if kind]
            is_key = (value is None or isinstance(value, str)) and value in kinds
            holds = is_key or type(value) in [kind for kind in kinds.values() if kind]
            rule = f"{', '.join(names[:-1])} or {names[-1]}"
            require(holds, name, value, rule, f"leave it out for the default, {names[0]}")
            if isinstance(value, Options):
                value._check()

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the parameters by name.

        Parameters
        ----------
        deep : bool, default=True
            Whether those of options are among them, as ``choice__parameter``, those that a
            shorthand stands for too.

        Returns
        -------
        dict
            Names and values.

        Examples
        --------
        >>> from skdpmf import AdaptiveWeightALS, PrivacyBudget
        >>> AdaptiveWeightALS(PrivacyBudget(4.0, 1e-5)).get_params()["solver__list_share"]
        'auto'
        """
        params: dict[str, Any] = super().get_params(deep)  # type: ignore[misc]
        for home in self._options if deep else ():
            options = self._unfolded(home, params[home])
            if options is not None and isinstance(params[home], str):
                params |= {f"{home}__{name}": value for name, value in options.get_params().items()}
        return params

    def set_params(self, **params: Any) -> Any:
        """Set parameters, also of options: ``choice__parameter`` gives a shorthand its options.

        Options and budgets are values: what has a parameter set is replaced by a changed copy, and
        another estimator that was made with the same object keeps it.

        Parameters
        ----------
        **params : dict
            Names and values.

        Returns
        -------
        self : estimator
            The estimator itself.

        Raises
        ------
        ValueError
            If there is no parameter of that name.

        Examples
        --------
        >>> from skdpmf import AdaptiveWeightALS, PrivacyBudget
        >>> model = AdaptiveWeightALS(PrivacyBudget(4.0, 1e-5))
        >>> model.set_params(solver__list_share=None).solver
        Pooled(list_share=None)
        """
        for name in [*params]:
            home, nested, own = name.partition("__")
            value = params.get(home, getattr(self, home, None))
            if nested and home in self._options:
                options = self._unfolded(home, value)
                if options is None:
                    raise ValueError(f"{name} must be a parameter, and {home}={value!r} has none.")
                value = options
            if nested and isinstance(value, Options | PrivacyBudget):
                params[home] = copy.copy(value).set_params(**{own: params.pop(name)})
        return super().set_params(**params)  # type: ignore[misc]


@dataclass(repr=False, eq=False, kw_only=True)
class Planner(OptionParameters, ABC):
    """The base of an estimator that needs no scikit-learn: it has seen no ratings.

    The estimator is a subclass of it and of scikit-learn's bases; `alone` makes a class without
    them.
    """

    rating_range: tuple[float, float] = (1.0, 5.0)
    item_features: Any = None
    random_state: int | None = None
    n_jobs: int | None = None

    def __init_subclass__(cls, **options: Any) -> None:
        """Let errors of the constructor name the estimator, and not its planner."""
        super().__init_subclass__(**options)
        make: Any = cls.__init__
        is_planners = make.__qualname__.endswith("Planner.__init__")
        if not is_planners or cls.__name__.endswith("Planner"):
            return

        @wraps(make)
        def init(self: Any, *args: Any, **params: Any) -> None:
            try:
                make(self, *args, **params)
            except TypeError as error:
                what, names = str(error).partition("() ")[2], [*signature(cls).parameters]
                first = "PrivacyBudget(1.0, 1e-5) first, and " * (names[0] == "budget")
                remedy = f"pass {first}any of these by name: {', '.join(names)}"
                raise TypeError(f"{type(self).__name__}() {what}: {remedy}.") from None

        init.__qualname__ = f"{cls.__name__}.__init__"
        cls.__init__ = init  # type: ignore[method-assign]

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
        holds = self.n_jobs is None or (is_int(self.n_jobs) and self.n_jobs != 0)
        remedy = "pass the number of threads, or -1 for all cores"
        require(holds, "n_jobs", self.n_jobs, "None or an integer other than 0", remedy)
        require_random_state(self.random_state)
        self._check_options()


@dataclass(repr=False, eq=False)
class PrivatePlanner(Planner):
    """The same with a `budget`; a subclass has `_make_plan`."""

    budget: PrivacyBudget

    @abstractmethod
    def _make_plan(self, n_items: int, n_rows: int | None = None) -> ReleasePlan:
        """Plan for checked parameters."""

    @property
    def _implicit(self) -> bool:
        feedback = getattr(self, "feedback", "explicit")  # a parameter of those that take clicks
        return not isinstance(feedback, str) or feedback == "implicit"

    def _damping(self, default: float) -> float:
        own: Any = getattr(self, "user_damping", None)
        return default if own is None else float(own)

    @property
    def _value_range(self) -> Any:
        return (0.0, 1.0) if self._implicit else self.rating_range

    def _learnt(self) -> tuple[float, ...] | None:
        """Return the rank and more terms for `expected_error`; None: nothing is known of it."""
        return (int(getattr(self, "n_components", 0)),)

    def plan(
        self,
        n_items: int,
        n_rows: int | None = None,
        *,
        refreshes: int | None = None,
        n_ratings: int | None = None,
        assumed: Mapping[str, float] | None = None,
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
        n_ratings : int, default=None
            Number of ratings to expect the error for. None: 50 for each row, or a quarter of the
            items if these are fewer. No release depends on it.
        assumed : dict of str to float, default=None
            How ratings vary, where not as those of films that are rated by stars, the defaults. As
            shares of the rating range, standard deviations of "user" levels (.11), "item" levels
            (.13), "factors", which are tastes (.115), and the "residual" (.195). As exponents, how
            "popularity" of items (.7) and "activity" of users (.6) fall with the rank; each factor
            has the share "decay" (.8) of the variance of the one before.

        Returns
        -------
        ReleasePlan
            The releases. No data is touched and no budget is spent. With `n_rows` its
            ``expected_rmse`` has the test RMSE to expect, in units of ratings, of this plan, item
            means alone, each user's own mean, and without privacy; with `public` also without these
            people, who are thought to rate as all others do. It is None for clicks, and for
            mechanisms whose error has no formula: published solvers, posterior draws and reported
            gradients. docs/benchmarks/expected.md shows how well it holds.

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
        '12 fits on everybody cost each person epsilon ..., all together.'

        Its error can be expected before a fit:

        >>> plan = DPItemMeans(PrivacyBudget(1.0, 1e-5)).plan(3706, 6040, n_ratings=900_000)
        >>> {who: round(error, 2) for who, error in plan.expected_rmse.items()}
        {'this plan': 0.93, "each user's own mean": 1.05, 'no privacy': 0.91}
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
        terms = None if self._implicit else self._learnt()
        if terms is None or n_rows is None:
            return plan
        from skdpmf.estimators.planners.expected_error import Ratings, expected_rmse

        n = n_rows * min(50, -(-n_items // 4)) if n_ratings is None else n_ratings
        require(is_count(n), "n_ratings", n, "an integer >= 1", "pass how many you expect")
        known, given = Ratings._fields[3:], dict(assumed or {})
        holds = {*given} <= {*known} and all(is_finite(x) and x >= 0.0 for x in given.values())
        rule = f"numbers >= 0 by name, of {', '.join(known)}, decay below 1"
        holds = holds and given.get("decay", 0.0) < 1.0
        require(holds, "assumed", assumed, rule, "leave out what you do not know")
        public = getattr(self, "public", None)
        n_public = getattr(public, "shape", (0,))[0]
        if public is not None:
            from skdpmf.estimators.contract.public import exact_model, is_model

            if is_model(public):
                n_public = int(exact_model(public, self)._knowledge_.exposure.max())
        errors = expected_rmse(plan, Ratings(n_rows, n_items, n, **given), n_public, terms)
        width = self.rating_range[1] - self.rating_range[0]
        return replace(plan, expected_rmse={who: width * error for who, error in errors.items()})

    def _check_params(self) -> None:
        super()._check_params()
        require_budget(self.budget)
        public = getattr(self, "public", None)
        rule = "None for these options: no mechanism of theirs takes public rows"
        remedy = "use unit 'user' and AdaptiveWeightALS(solver='pooled'), DPItemMeans, "
        remedy += "DPMFSampler, DPCovarianceRecommender or LocalDPGDDR(method='items')"
        holds = public is None or getattr(self, "_takes_public", False)
        require(holds, "public", type(public), rule, remedy)


class _Alone(Parameters):
    """Methods that planners have from scikit-learn where they are estimators."""

    _statement: Any

    @property
    def privacy_spent_(self) -> Any:
        return self._statement

    def __repr__(self) -> str:
        """Return the call that makes it, which scikit-learn breaks into lines where it is long."""
        params = dict(sorted(self.get_params(deep=False).items()))
        call = _call_of(self, params)
        if len(call) <= 80:
            return call
        import skdpmf.estimators

        return repr(getattr(skdpmf.estimators, type(self).__name__)(**params))


def alone(planner: type[Planner]) -> type[Any]:
    """Return a planner as a class of its own, with the name of its estimator."""
    return type(planner.__name__.removesuffix("Planner"), (planner, _Alone), {})


def notes_of_a_year(plan: ReleasePlan, n: int) -> tuple[str, ...]:
    """Return what n such fits cost a person, as refreshes on new people and on everybody."""
    if not plan.is_private:
        return ()
    whole = n * pure_total(plan.releases)
    if plan.gaussian:
        slack = plan.slack | {"n_values": plan.n_values * n}
        slack["largest"] /= math.sqrt(n)
        whole += gaussian_epsilon(plan.mu * math.sqrt(n), plan.delta, **slack)
    return (
        f"{n} refreshes with each person in one cost each person epsilon {plan.epsilon:.3g}, once. "
        f"Sums over all of them have {math.sqrt(n):.2f} times the noise of one fit.",
        f"{n} fits on everybody cost each person epsilon {whole:.3g}, all together.",
    )


def ledger_record(estimator: Any, shape: tuple[int, int], features: Any) -> dict[str, Any]:
    """Return what a ledger notes of a fit."""
    params = estimator.get_params(deep=False)
    if features is not None:
        params["item_features"] = features.digest
    of_all = estimator.get_params().items()
    exact = (name.rpartition("__")[2].startswith("nonprivate_") and on for name, on in of_all)
    names = {"estimator": type(estimator).__name__, "params": params}
    return {**names, "shape": shape, "nonprivate": any(exact)}


def warn_of_budget(budget: PrivacyBudget, n_rows: int) -> None:
    """Warn of a weak epsilon, and of a delta above one over the number of rows, which is public.

    A replay warns of neither.
    """
    if not budget.is_private or active_recorder() is not None:
        return
    if budget.epsilon > WEAK:
        warnings.warn(
            f"epsilon={budget.epsilon:g} is weak, like any above {WEAK:g}: one person may make a "
            "model more than 20,000 times as likely. Pass a smaller one for a useful promise.",
            stacklevel=2,
        )
    if budget.delta * n_rows > 1.0:
        warnings.warn(
            f"delta={float(budget.delta):g} is above 1 / {n_rows}, one over the number of rows: a "
            "mechanism with such a delta may publish a whole row. Pass one well below, such as "
            f"{0.1 / n_rows:.1g}.",
            stacklevel=2,
        )
