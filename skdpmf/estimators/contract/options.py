"""Parameters of one choice, such as a solver, nested in an estimator."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, ClassVar

from skdpmf.estimators.contract.parameters import require

__all__ = ["OptionParameters", "Options"]


class Options:
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
        >>> from skdpmf import Clicks
        >>> Clicks().get_params()
        {'unobserved_weight': 0.4}
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


class OptionParameters:
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
            if nested and home in self._options and not isinstance(value, Options):
                options = self._unfolded(home, value)
                if options is None:
                    raise ValueError(f"{name} must be a parameter, and {home}={value!r} has none.")
                params[home] = options
        return super().set_params(**params)  # type: ignore[misc]
