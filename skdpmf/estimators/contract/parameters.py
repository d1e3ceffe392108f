"""Checks of parameters with one form of errors, and those that have parameters of their own."""

import copy
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from numbers import Integral, Real
from typing import Any, ClassVar

import numpy as np
from scipy import sparse

from skdpmf.data.validation import as_rating_matrix
from skdpmf.privacy.budget import PrivacyBudget

__all__ = [
    "OptionParameters",
    "Options",
    "check_count",
    "check_items",
    "check_where",
    "is_count",
    "is_finite",
    "is_int",
    "require",
    "require_budget",
    "require_random_state",
]


def is_int(value: Any) -> bool:
    """Return whether a value is an integer, and no bool."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def is_count(value: Any) -> bool:
    """Return whether a value is an integer >= 1."""
    return is_int(value) and int(value) >= 1


def is_finite(value: Any) -> bool:
    """Return whether a value is a finite real number, and no bool."""
    return not isinstance(value, bool) and isinstance(value, Real) and math.isfinite(float(value))


def require(holds: bool, name: str, value: Any, rule: str, remedy: str) -> None:
    """Raise ValueError, naming parameter, value, rule and remedy, unless the rule holds."""
    if not holds:
        raise ValueError(f"{name}={value!r} must be {rule}: {remedy}.")


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
    if random_state is not None and not (is_int(random_state) and random_state >= 0):
        raise ValueError(
            f"random_state={random_state!r} must be None or an integer >= 0. None draws fresh "
            "randomness from the operating system; an integer repeats a fit."
        )


def check_items(items: Any, n_items: int, parameter: str = "items") -> np.ndarray:
    """Return column indices as a 1-D array of int64, or raise ValueError."""
    array = np.atleast_1d(np.asarray(items))
    if array.ndim != 1 or array.dtype.kind not in "iu" or array.size == 0:
        raise ValueError(
            f"{parameter}={items!r:.99} must be column indices, integers in one dimension: the "
            "model knows no names. Fit it with a RatingMatrix or a DataFrame to name items by ids."
        )
    outside = (array < 0) | (array >= n_items)
    if outside.any():
        raise ValueError(
            f"{parameter} holds {array[outside][0]}; indices must lie in 0..{n_items - 1}, the "
            "columns of the X of fit."
        )
    return array.astype(np.int64)


def check_where(where: Any, shape: tuple[int, int]) -> Any:
    """Return a canonical CSR array of the stored positions of `where`, or raise ValueError."""
    is_sparse: Any = sparse.issparse(where)
    if is_sparse and where.format not in ("bsr", "dia"):
        where = where.tocoo()
        ones = np.ones(where.data.size)
        where = sparse.coo_array((ones, (where.row, where.col)), shape=where.shape)
    elif hasattr(where, "dtype") and where.dtype == bool:
        where = np.where(where, 1.0, np.nan)
    where = as_rating_matrix(where)
    if where.shape != shape:
        raise ValueError(
            f"where has shape {where.shape}; it must have the shape of X, {shape}: the positions "
            "to predict."
        )
    return where


def check_count(value: Any, name: str) -> None:
    """Raise ValueError unless a number of items to return is an integer >= 1."""
    require(is_count(value), name, value, "an integer >= 1", "how many items to return")


class _Checked:
    """Checks of the parameters of these names, each of which may raise ValueError."""

    def _require(
        self,
        names: Iterable[str],
        holds: Callable[[Any], bool],
        rule: str,
        remedy: str = "use the default",
    ) -> None:
        for name in names:
            value = getattr(self, name)
            require(holds(value), name, value, rule, remedy)

    def _require_counts(self, *names: str, optional: bool = False) -> None:
        self._require(names, lambda n: is_count(n) or (optional and n is None), "an integer >= 1")

    def _require_positive(self, *names: str) -> None:
        self._require(names, lambda x: is_finite(x) and x > 0, "a finite number > 0")

    def _require_between(self, *names: str, least: float = 1e-6) -> None:
        rule = f"a number between {'1e-6' if least else '0'} and 1e6"
        self._require(names, lambda x: is_finite(x) and least <= x <= 1e6, rule)

    def _require_choice(self, name: str, choices: tuple[str, ...]) -> None:
        rule = " or ".join(map(repr, choices))
        self._require((name,), choices.__contains__, rule, f"{choices[0]!r} is the default")

    def _require_switches(self, *names: str, remedy: str = "use the default") -> None:
        self._require(names, lambda x: isinstance(x, bool | np.bool_), "True or False", remedy)


class Options(_Checked):
    """Parameters of one choice. A subclass is a dataclass with a ``_check``.

    `get_params` and `set_params` of an estimator reach them as ``choice__parameter``; they are no
    estimators themselves.
    """

    __dataclass_fields__: ClassVar[dict[str, Any]]

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the parameters by name.

        Parameters
        ----------
        deep : bool, default=True
            Unused: no parameter has parameters.

        Returns
        -------
        dict
            Names and values.

        Examples
        --------
        >>> from skdpmf import Pooled
        >>> Pooled().get_params()
        {'list_share': 'auto', 'weight_exponent': None}
        """
        return {name: getattr(self, name) for name in _names_of(type(self))}

    def set_params(self, **params: Any) -> "Options":
        """Set parameters.

        Parameters
        ----------
        **params : dict
            Names and values.

        Returns
        -------
        self : Options
            The options themselves.

        Raises
        ------
        ValueError
            If there is no parameter of that name.

        Examples
        --------
        >>> from skdpmf import Clicks
        >>> Clicks().set_params(unobserved_weight=0.1)
        Clicks(unobserved_weight=0.1)
        """
        known = _names_of(type(self))
        for name, value in params.items():
            if name not in known:
                kind = type(self).__name__
                raise ValueError(f"{name!r} must be a parameter of {kind}: use one of {known}.")
            setattr(self, name, value)
        return self

    def __repr__(self) -> str:
        """Return the call that makes them; defaults are left out."""
        known = self.__dataclass_fields__
        changed = [
            f"{name}={value!r}"
            for name, value in self.get_params().items()
            if repr(value) != repr(known[name].default)
        ]
        return f"{type(self).__name__}({', '.join(changed)})"

    def _check(self) -> None:
        """Raise ValueError for a parameter that is out of range."""


def _names_of(kind: Any) -> list[str]:
    return sorted(field.name for field in fields(kind))


class OptionParameters(_Checked):
    """Parameters whose values are `Options`, or strings for those with their defaults."""

    _options: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    """Shorthands of each such parameter and their classes, None where there are no options."""

    def _chosen(self, name: str) -> Any:
        """Return the options that a parameter names; None for a shorthand without any."""
        return self._unfolded(name, getattr(self, name))

    def _unfolded(self, name: str, value: Any) -> Any:
        if isinstance(value, Options):
            return value
        kinds: Mapping[Any, Any] = self._options[name]
        kind = kinds.get(value) if value is None or isinstance(value, str) else None
        return kind and kind()

    def _shorthand(self, name: str) -> str:
        """Return the string that stands for a parameter's choice."""
        value = getattr(self, name)
        if not isinstance(value, Options):
            return str(value)
        return next(key for key, kind in self._options[name].items() if type(value) is kind)

    def _check_options(self) -> None:
        for name, kinds in self._options.items():
            value = getattr(self, name)
            names = [repr(key) for key in kinds]
            names += [kind.__name__ + "(...)" for kind in kinds.values() if kind]
            is_key = (value is None or isinstance(value, str)) and value in kinds
            holds = is_key or type(value) in [kind for kind in kinds.values() if kind]
            rule = f"{', '.join(names[:-1])} or {names[-1]}"
            require(holds, name, value, rule, f"{names[0]} is the default")
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
            home, nested, _ = name.partition("__")
            value = params.get(home, getattr(self, home, None))
            if nested and isinstance(value, Options | PrivacyBudget):
                params[home] = copy.copy(value)
            elif nested and home in self._options:
                options = self._unfolded(home, value)
                if options is None:
                    raise ValueError(f"{name} must be a parameter, and {home}={value!r} has none.")
                params[home] = options
        return super().set_params(**params)  # type: ignore[misc]
