"""Langevin dynamics does not overfit.

This is the shape of figure 6 of Liu, Wang and Smola (2015), without privacy: error per round of
stochastic gradient descent with a constant rate, and of stochastic gradient Langevin dynamics on
the posterior of the same kind of model.

SGD goes on to lower the training error, and after some rounds the test error rises: it needs a
penalty that fits the data, or to be stopped in time. Langevin dynamics burns in, in many more
rounds, and then walks around in the posterior: single draws stay as they are, and the average of
their predictions, better than any of them, goes on to improve:

    python benchmarks/bench_langevin_and_sgd.py --data ml-1m.parquet

It takes two to three minutes with MovieLens 1M.
"""

import sys

import numpy as np
import scipy.sparse as sp
from bench_utility import print_head, print_row, split_of, split_parser

from skdpmf import CacheSGDFactorizer
from skdpmf.mechanisms.posterior_draw.langevin import LangevinChain
from skdpmf.mechanisms.posterior_draw.target import Target
from skdpmf.privacy.sampler.noise import NoiseSource, derived_key

NOISE_STD = 0.8  # of a rating around its prediction, rating units
ITEM_STD = 0.3  # of an item's factors in the prior; a user's are of standard deviation 1
BIAS_STD = 0.5
DAMPING = 10.0  # fictitious ratings at the overall mean in a user's own mean
STEP_SIZE = 16.0  # coarse: the default, .5, is nearer the posterior and burns in 32 times as slowly
N_TRAINING = 100_000  # training ratings, a random sample, on which the error is measured


class Entries:
    """Some known ratings, and the errors of predictions for them."""

    def __init__(self, matrix, n=None):
        matrix = sp.coo_array(matrix)
        chosen = np.arange(matrix.nnz)
        if n is not None and n < matrix.nnz:
            chosen = np.sort(np.random.default_rng(0).choice(matrix.nnz, n, replace=False))
        self.rows, self.columns = matrix.row[chosen], matrix.col[chosen]
        self.ratings = matrix.data[chosen].astype(np.float64)
        low, high = matrix.data.min(), matrix.data.max()
        self.range = low, high

    def predictions(self, offsets, biases, U, V):
        """Return offsets[i] + biases[j] + u_i . v_j."""
        products = np.einsum("nk,nk->n", U[self.rows], V[self.columns])
        return offsets[self.rows] + biases[self.columns] + products

    def error(self, predictions):
        """Root mean squared error of predictions, clipped to the range of the ratings."""
        return float(np.sqrt(np.mean((self.ratings - np.clip(predictions, *self.range)) ** 2)))


def sgd_errors(X, sets, options, alpha):
    """Errors after every round, one row a round, of SGD with a constant rate."""
    model = CacheSGDFactorizer(
        options.n_components,
        max_iter=1,
        learning_rate=options.learning_rate,
        learning_rate_decay=1.0,
        alpha=alpha,
        random_state=0,
        warm_start=True,
    )
    errors = []
    for _ in range(options.rounds):
        model.fit(X)  # from where the last round ended
        part = (
            model.intercept_ + model.user_biases_,
            model.item_biases_,
            model.user_factors_,
            model.components_.T,
        )
        errors.append([entries.error(entries.predictions(*part)) for entries in sets])
    print(f"SGD, alpha {alpha:g}: test {errors[-1][1]:.4f}", file=sys.stderr)
    return np.array(errors)


def langevin_errors(X, sets, options):
    """Errors after every round of single draws, and of the average prediction after burn-in."""
    counts = np.diff(X.indptr)
    row = np.repeat(np.arange(len(counts)), counts)
    mean = X.data.mean()
    own = mean + np.bincount(row, X.data - mean, len(counts)) / (counts + DAMPING)
    target = Target(
        sp.csr_array((X.data - own[row], X.indices, X.indptr), shape=X.shape),
        weights=np.ones(X.shape[0]),
        inverse_temperature=1.0 / (2.0 * NOISE_STD**2),
        bound=np.inf,
        n_components=options.n_components,
        user_std=1.0,
        item_std=ITEM_STD,
        bias_std=BIAS_STD,
    )
    chain = LangevinChain(
        target,
        NoiseSource(derived_key(0)),
        max_weight=1.0,
        max_user_weight=float(counts.max()),
        step_size=STEP_SIZE,
    )
    totals, n_summed = [0.0 for _ in sets], 0
    draws, averages = [], []
    for t in range(options.rounds):
        chain.sweep(t)
        state = chain.state
        predictions = [e.predictions(own, state.item_bias, state.U, state.V) for e in sets]
        draws.append([e.error(p) for e, p in zip(sets, predictions, strict=True)])
        if t >= options.burn_in:
            n_summed += 1
            totals = [total + p for total, p in zip(totals, predictions, strict=True)]
            averages.append([e.error(s / n_summed) for e, s in zip(sets, totals, strict=True)])
    print(f"SGLD: a draw {draws[-1][1]:.4f}, the average {averages[-1][1]:.4f}", file=sys.stderr)
    return np.array(draws), np.array(averages)


def main(arguments=None):
    """Run both and print."""
    parser = split_parser(__doc__, shape=(2000, 300), n_components=16)
    parser.add_argument("--rounds", type=int, default=400)
    parser.add_argument("--burn-in", type=int, default=100)
    parser.add_argument("--learning-rate", type=float, default=0.03)
    parser.add_argument("--weak-penalty", type=float, default=0.005)
    options = parser.parse_args(arguments)
    X, Y = split_of(options)
    sets = [Entries(X, N_TRAINING), Entries(Y)]

    weak = sgd_errors(X, sets, options, options.weak_penalty)
    usual = sgd_errors(X, sets, options, 0.04)
    draws, averages = langevin_errors(X, sets, options)
    curves = [(0, weak), (0, usual), (0, draws), (options.burn_in, averages)]
    names = ["SGD weak", "SGD", "draw", "average"]
    print_head("round", *(f"{name} {side}" for name in names for side in ("train", "test")))
    for t in np.unique(np.geomspace(1, options.rounds, 40).astype(int)):
        pairs = (errors[t - 1 - first] if t > first else ("", "") for first, errors in curves)
        print_row(t, *(f"{x:.4f}" if x != "" else "" for pair in pairs for x in pair))


if __name__ == "__main__":
    main()
