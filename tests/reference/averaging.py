"""Ridge regressions with and without further columns, one after the other, and their mean."""

import numpy as np


def averaged_row(C, r, ridge, strengths, prior, variance, sure=5.0):
    """The mean solution of one row of the models with t = 0 and each strength, and the weights."""
    k, width = len(ridge), C.shape[1]
    solutions, evidence = np.zeros((len(prior), width)), np.empty(len(prior))
    if len(r) == 0:
        return np.zeros(width), np.zeros(len(prior))
    for m, strength in enumerate([None, *strengths]):
        d = k if strength is None else width
        penalty = np.zeros((d, d))
        penalty[:k, :k] = ridge
        penalty[range(k, d), range(k, d)] = strength or 0.0
        # the marginal law of r given s^2 is N(0, s^2 (I + C penalty^-1 C'))
        K = np.eye(len(r)) + C[:, :d] @ np.linalg.solve(penalty, C[:, :d].T)
        left = r @ np.linalg.solve(K, r)
        evidence[m] = np.log(prior[m]) - 0.5 * np.linalg.slogdet(K)[1]
        evidence[m] -= (sure + len(r) / 2) * np.log(sure * variance + left / 2)
        solutions[m, :d] = np.linalg.solve(penalty, C[:, :d].T @ np.linalg.solve(K, r))
    weights = np.exp(evidence - evidence.max())
    weights /= weights.sum()
    return weights @ solutions, weights
