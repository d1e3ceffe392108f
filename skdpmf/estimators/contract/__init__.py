"""What all recommenders share: one way from `fit` to a mechanism, and answers from its model."""
