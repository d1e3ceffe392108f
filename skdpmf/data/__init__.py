"""Ratings in: validation, tables to matrices, files, Parquet folders, synthetic data, features."""

from typing import TYPE_CHECKING

from skdpmf._lazy import lazy_names

if TYPE_CHECKING:
    from .feature_columns import item_features
    from .labelled_rows import RatingMatrix
    from .loaders import read_items, read_ratings
    from .matrix import ratings_to_matrix
    from .parquet_ratings import ParquetRatings
    from .synthetic import make_ratings
    from .validation import validate_ratings

__all__ = ["ParquetRatings", "RatingMatrix", "item_features", "make_ratings", "ratings_to_matrix"]
__all__ += ["read_items", "read_ratings", "validate_ratings"]
__getattr__, __dir__ = lazy_names(
    __name__,
    *("feature_columns.item_features", "labelled_rows.RatingMatrix", "loaders.read_items"),
    *("loaders.read_ratings", "matrix.ratings_to_matrix", "parquet_ratings.ParquetRatings"),
    *("synthetic.make_ratings", "validation.validate_ratings"),
)
