"""Accuracy against epsilon: one private draw, and private steps.

This is the shape of figure 7 of Liu, Wang and Smola (2015): test RMSE against epsilon at 16
factors.

- "One posterior draw" is the paper's mechanism: one draw from a posterior as hot as epsilon
  demands. Its guarantee holds if the chain has converged, which nobody can prove. Every draw is
  shown twice: at its epsilon by the bound that this package proves, and at its epsilon by the
  paper's theorem. The latter is 8 times as large: the proof gains a factor of 4, and another 2
  because only items' factors are released. The last draw is at the temperature of the ratings' own
  noise; a larger epsilon makes no colder draw.
- "Private at every step" is this package's default: the steps themselves are noisy, and
  (epsilon, delta) holds whether or not anything has converged.

Epsilon protects one user's whole history (add or remove one user):

    python benchmarks/bench_privacy_accuracy.py --data ml-1m.parquet

It takes about two minutes on two cores with MovieLens 1M, and one without data.
"""

import sys

from bench_utility import own_mean_error, print_head, print_row, split_of, split_parser

from skdpmf import DPMFSampler, PrivacyBudget
from skdpmf.evaluation import rmse
from skdpmf.mechanisms.posterior_draw.guarantee import item_loss_bound, loss_bound

DELTA = 1e-5  # of "every step"; the posterior draw needs none
# The paper's theorem says 4 a B of a draw that spends a B_V: 200 ratings a user, errors up to 4.
PAPER_FACTOR = 4.0 * loss_bound(200, 2.0, 0.0) / item_loss_bound(200, 2.0, 0.0)


def fit(X, Y, options, budget, **parameters):
    """Return the test RMSE and the epsilon that was spent."""
    model = DPMFSampler(
        budget,
        n_components=options.n_components,
        random_state=0,  # to repeat the figure; a real release leaves it alone
        n_jobs=options.n_jobs,
        **parameters,
    ).fit(X)
    error, spent = rmse(Y, model.predict_entries(X, Y)), model.privacy_spent_.epsilon
    print(
        f"{parameters.get('guarantee', 'every-step')}, epsilon {spent:.4g}: {error:.4f}",
        file=sys.stderr,
    )
    return error, spent


def main(arguments=None):
    """Fit and print."""
    parser = split_parser(__doc__, shape=(2000, 300), n_components=16)
    parser.add_argument(
        "--epsilons", type=float, nargs="+", default=[0.25, 0.5, 1, 2, 4, 8, 16, 32]
    )
    parser.add_argument(
        "--draw-epsilons", type=float, nargs="+", default=[4, 16, 64, 128, 256, 512, 1250]
    )
    parser.add_argument("--sweeps", type=int, default=None, help="of the posterior's chain")
    options = parser.parse_args(arguments)
    X, Y = split_of(options)
    posterior = {"guarantee": "posterior", "max_iter": options.sweeps}

    steps = [fit(X, Y, options, PrivacyBudget(e, DELTA))[::-1] for e in options.epsilons]
    draws = [fit(X, Y, options, PrivacyBudget(e), **posterior)[::-1] for e in options.draw_epsilons]
    limit, _ = fit(X, Y, options, PrivacyBudget.nonprivate())  # the steps without noise

    print_head("mechanism", "epsilon", "paper's epsilon", "test RMSE")
    for epsilon, error in steps:
        print_row("every step", f"{epsilon:g}", "", f"{error:.4f}")
    for epsilon, error in draws:
        print_row("draw", f"{epsilon:g}", f"{PAPER_FACTOR * epsilon:g}", f"{error:.4f}")
    print_row("no privacy", "inf", "", f"{limit:.4f}")
    print_row("own mean", "0", "", f"{own_mean_error(X, Y):.4f}")


if __name__ == "__main__":
    main()
