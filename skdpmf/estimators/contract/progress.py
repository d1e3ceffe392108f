"""What a fit shows: its rounds to scikit-learn's callbacks (1.9 and later), what it spent after it.

Callbacks are told which round begins and ends, and nothing else: neither ratings nor anything
computed from them goes through this module, and their wish to stop early is not heard, because
the number of rounds is part of the plan that the privacy statement shows.
"""

import threading
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any
from weakref import WeakKeyDictionary

from sklearn.base import BaseEstimator
from sklearn.utils._pprint import _EstimatorPrettyPrinter

from skdpmf.privacy.statement import PrivacyStatement

try:
    from sklearn.callback import CallbackSupportMixin
    from sklearn.callback import with_callbacks as _with_callbacks
except ImportError:  # scikit-learn < 1.9

    class CallbackSupportMixin:  # type: ignore[no-redef]
        """Stand-in for scikit-learn's mixin: takes callbacks and never calls them."""

        def set_callbacks(self, *callbacks: Any) -> Any:
            """Ignore the callbacks: this scikit-learn has none (they came with 1.9).

            Parameters
            ----------
            *callbacks : object
                Ignored.

            Returns
            -------
            self : estimator
                The estimator itself.
            """
            return self

    def _with_callbacks(method: Callable) -> Callable:
        """Return the method as it is."""
        return method


_IN_USE: WeakKeyDictionary[Any, int] = WeakKeyDictionary()  # by the thread that fits it
_CHANGING = threading.Lock()


def one_at_a_time(fit: Callable) -> Callable:
    """Refuse to fit an object that another thread is fitting: the two results would be mixed."""

    @wraps(fit)
    def alone(self: Any, *args: Any, **kwargs: Any) -> Any:
        with _CHANGING:
            if _IN_USE.setdefault(self, threading.get_ident()) != threading.get_ident():
                name = type(self).__name__
                raise RuntimeError(
                    f"This {name} is being fitted by another thread, and one object holds one fit: "
                    "fit a copy in each thread, such as sklearn.base.clone(estimator)."
                )
        try:
            return fit(self, *args, **kwargs)
        finally:
            _IN_USE.pop(self, None)

    return alone


def with_callbacks(fit: Callable) -> Callable:
    """Frame a ``fit``: by scikit-learn's callbacks, and one at a time."""
    return one_at_a_time(_with_callbacks(fit))


class RoundsMixin(CallbackSupportMixin):
    """The rounds of a solver, announced to the callbacks that ``set_callbacks`` has set.

    ``fit`` is decorated by `with_callbacks` and frames its work by `_begin_rounds` and
    `_end_rounds`; the solver's loop is ``for t in self._rounds(n)``.
    """

    @property
    def _work_of_round(self) -> int:
        """Work for each cell, beside a round of least squares: a public number."""
        return 1

    def _n_rounds(self) -> int:
        """Most rounds that `fit` will announce; public, as it is read off the parameters."""
        return int(getattr(self, "max_iter", 0))

    def _begin_rounds(self) -> None:
        if hasattr(self, "_init_callback_context"):
            context = self._init_callback_context(max_subtasks=self._n_rounds())
            context.call_on_fit_task_begin(estimator=self)

    def _rounds(self) -> Iterator[int]:
        """Yield 0, ..., `_n_rounds()` - 1, and call back when each round begins and ends."""
        # A stand-alone solver test may loop without a fit around it: nobody listens then.
        fit_context = getattr(self, "_callback_fit_ctx", None)
        for t in range(self._n_rounds()):
            if fit_context is None:
                yield t
                continue
            context = fit_context.subcontext(task_name="round")
            context.call_on_fit_task_begin(estimator=self)
            yield t
            context.call_on_fit_task_end(estimator=self)

    def _end_rounds(self) -> None:
        if hasattr(self, "_callback_fit_ctx"):
            self._callback_fit_ctx.call_on_fit_task_end(estimator=self)


def work_of(estimator: Any, shape: tuple[int, int]) -> int:
    """Return the size of a fit that chooses plain or compiled forms: a public number."""
    if not isinstance(estimator, RoundsMixin):
        return shape[0] * shape[1]
    return shape[0] * shape[1] * estimator._n_rounds() * estimator._work_of_round


class _Shown(str):
    """A text without quotes."""

    __repr__ = str.__str__


_LONG = {"item_features", "public"}


def shown(value: Any) -> Any:
    """Return what stands for a table in a repr, which holds no values of it."""
    return _Shown(f"<{type(value).__name__} {value.shape}>") if hasattr(value, "shape") else value


class SpentDisplay:
    """A base before ``BaseEstimator``, of estimators with ``privacy_spent_``, which nobody sets.

    It shows a table of features by its size.
    """

    _statement: PrivacyStatement

    @property
    def privacy_spent_(self) -> PrivacyStatement:
        """The statement of `fit`; an AttributeError before it."""
        return self._statement

    def _shown(self) -> Any:
        """Return an estimator of this name and these parameters, features and rows shortened."""
        params: dict[str, Any] = self.get_params(deep=False)  # type: ignore[attr-defined]
        params |= {name: shown(params[name]) for name in _LONG & params.keys()}
        own = {name: getattr(type(self), name) for name in ("__init__", "__doc__", "__module__")}
        return type(type(self).__name__, (BaseEstimator,), own)(**params)

    def __repr__(self, N_CHAR_MAX: int = 700) -> str:
        """Return the call that makes it, as scikit-learn does."""
        return str(self._shown().__repr__(N_CHAR_MAX))

    def _get_params_html(self, *args: Any, **options: Any) -> Any:
        is_long = any(hasattr(getattr(self, name, None), "shape") for name in _LONG)
        shown: Any = self._shown() if is_long else super()
        return shown._get_params_html(*args, **options)

    def _repr_html_inner(self) -> str:
        return self._spent_html() + super()._repr_html_inner()  # type: ignore[misc]

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, str]:
        bundle: dict[str, str] = super()._repr_mimebundle_(**kwargs)  # type: ignore[misc]
        if "text/html" in bundle:
            bundle["text/html"] = self._spent_html() + bundle["text/html"]
        return bundle

    def _spent_html(self) -> str:
        statement: Any = getattr(self, "_statement", None)
        return "" if statement is None else statement._repr_html_()


def _pprint(printer: Any, estimator: Any, *where: Any) -> None:
    printer._pprint_estimator(estimator._shown(), *where)


# inside of a pipeline or search
_EstimatorPrettyPrinter._dispatch[SpentDisplay.__repr__] = _pprint
