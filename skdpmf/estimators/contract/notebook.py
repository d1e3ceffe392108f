"""Estimators in a notebook: what a fit has spent stands above scikit-learn's diagram."""

from typing import Any

__all__ = ["SpentDisplay"]


class SpentDisplay:
    """A base before ``BaseEstimator``, of estimators whose `fit` sets ``privacy_spent_``."""

    def _repr_html_inner(self) -> str:
        return self._spent_html() + super()._repr_html_inner()  # type: ignore[misc]

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, str]:
        bundle: dict[str, str] = super()._repr_mimebundle_(**kwargs)  # type: ignore[misc]
        if "text/html" in bundle:
            bundle["text/html"] = self._spent_html() + bundle["text/html"]
        return bundle

    def _spent_html(self) -> str:
        statement: Any = getattr(self, "privacy_spent_", None)
        return "" if statement is None else statement._repr_html_()
