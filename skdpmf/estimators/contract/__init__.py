"""Parts of all recommenders: one way from `fit` to a mechanism, and answers from its model."""
