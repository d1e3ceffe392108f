"""Cache-efficient stochastic gradient descent, from memory or from disk: no privacy."""
