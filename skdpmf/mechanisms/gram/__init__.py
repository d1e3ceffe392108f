"""Models of pairs of items: the noisy item covariance, and the noisy Gram matrix of clicks."""
