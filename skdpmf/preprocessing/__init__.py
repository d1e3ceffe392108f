"""Steps in front of a recommender, as scikit-learn transformers: ratings in, ratings out."""

from skdpmf.preprocessing.bounder import ContributionBounder
from skdpmf.preprocessing.item_selector import DPItemSelector

__all__ = ["ContributionBounder", "DPItemSelector"]
