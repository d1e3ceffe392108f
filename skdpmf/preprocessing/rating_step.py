"""What the steps share: results in the container of the ratings, under every output setting."""

from typing import Any

import numpy as np
from sklearn import get_config

from skdpmf.estimators.contract.parameters import require


class RatingStep:
    """A base before scikit-learn's, which then must not wrap results: sparse ones stay sparse."""

    def set_output(self, *, transform: Any = None) -> Any:
        """Choose the container of dense results.

        Parameters
        ----------
        transform : {"default", "pandas", "polars"} or None, default=None
            What `transform` and `fit_transform` make of a dense X or a DataFrame; "default" are an
            array and a DataFrame of the same library. A RatingMatrix and sparse ratings stay what
            they are, as a table of all cells would take much more memory. None changes nothing.

        Returns
        -------
        estimator
            The step.

        Raises
        ------
        ValueError
            If `transform` is none of these.

        Examples
        --------
        >>> from skdpmf.data import make_ratings
        >>> from skdpmf.preprocessing import ContributionBounder
        >>> bounder, X = ContributionBounder().set_output(transform="pandas"), [[4.0, 9.0]]
        >>> bounder.fit_transform(X)
            x0   x1
        0  4.0  5.0
        >>> bounder.fit_transform(make_ratings(5, 3, random_state=0)).format
        'csr'
        """
        if transform is not None:
            rule = "'default', 'pandas' or 'polars'"
            holds = transform in ("default", "pandas", "polars")
            require(holds, "transform", transform, rule, "choose the container of dense results")
            config = getattr(self, "_sklearn_output_config", {})  # where clone looks for it
            self._sklearn_output_config = {**config, "transform": transform}
        return self

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()  # type: ignore[misc]
        tags.input_tags.sparse = tags.input_tags.allow_nan = True
        return tags

    def _container(self) -> str:
        """Return the setting that holds; `fit` asks first, so that nothing is spent in vain."""
        own = getattr(self, "_sklearn_output_config", {})
        kind = str(own.get("transform", get_config()["transform_output"]))
        if kind == "polars":
            import polars  # noqa: F401
        return kind

    def _as_asked(self, values: np.ndarray, X: Any, places: Any = slice(None)) -> Any:
        """Return dense results for X, of its columns at some places, in their container."""
        kind, is_pandas = self._container(), hasattr(X, "iloc")
        if kind == "default" and hasattr(X, "columns"):
            kind = "pandas" if is_pandas else "polars"
        if kind == "default":
            return values
        # names of any type: the next step must know the items
        names = np.asarray(X.columns)[places] if hasattr(X, "columns") else None
        names = self.get_feature_names_out() if names is None else names  # type: ignore[attr-defined]
        if kind == "pandas":
            import pandas as pd

            return pd.DataFrame(values, index=X.index if is_pandas else None, columns=names)
        import polars as pl

        return pl.DataFrame(values, schema=[str(name) for name in names], orient="row")


def dense_of(R: Any, dtype: Any) -> np.ndarray:
    """Return canonical ratings as an array, NaN where nothing is stored."""
    dense = np.full(R.shape, np.nan, dtype)
    dense[np.repeat(np.arange(R.shape[0]), np.diff(R.indptr)), R.indices] = R.data
    return dense
