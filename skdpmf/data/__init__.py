"""Ratings in: validation, tables to matrices, files, a store on disk, synthetic data, features."""

from skdpmf._moved import names_of_before

from .item_features import item_features
from .loaders import read_ratings
from .matrix import ratings_to_matrix
from .parquet_ratings import ParquetRatings
from .rating_store import RatingStore
from .synthetic import make_ratings
from .validation import validate_ratings

__all__ = [
    "ParquetRatings",
    "RatingStore",
    "item_features",
    "make_ratings",
    "ratings_to_matrix",
    "read_ratings",
    "validate_ratings",
]
__getattr__ = names_of_before(
    __name__,
    {
        "RatingBlock": "skdpmf.data.rating_store",
        "RatingReport": "skdpmf.data.validation",
        "as_rating_matrix": "skdpmf.data.validation",
        "check_rating_range": "skdpmf.data.validation",
        "RatingTruth": "skdpmf.data.synthetic",
        "bound_contributions": "skdpmf.data.bounding",
        "RatingMatrix": "skdpmf.data.matrix",
        "matrix_to_ratings": "skdpmf.data.matrix",
        "read_items": "skdpmf.data.loaders",
    },
)
