"""Ratings in: validation, tables to matrices and back, files, a store on disk, synthetic data."""

from .bounding import bound_contributions
from .item_features import item_features
from .loaders import read_items, read_ratings
from .matrix import RatingMatrix, matrix_to_ratings, ratings_to_matrix
from .parquet_ratings import ParquetRatings
from .rating_store import RatingBlock, RatingStore
from .synthetic import RatingTruth, make_ratings
from .validation import RatingReport, as_rating_matrix, check_rating_range, validate_ratings

__all__ = [
    "ParquetRatings",
    "RatingBlock",
    "RatingMatrix",
    "RatingReport",
    "RatingStore",
    "RatingTruth",
    "as_rating_matrix",
    "bound_contributions",
    "check_rating_range",
    "item_features",
    "make_ratings",
    "matrix_to_ratings",
    "ratings_to_matrix",
    "read_items",
    "read_ratings",
    "validate_ratings",
]
