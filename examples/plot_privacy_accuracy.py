"""
Accuracy against epsilon: one private draw, and private steps
=============================================================

The shape of figure 7 of Liu, Wang and Smola (2015): test RMSE against epsilon at 16 factors.

- "One posterior draw" is the paper's mechanism: one draw from a posterior as hot as epsilon
  demands. Its guarantee holds if the chain has converged, which nobody can prove. Every draw is
  shown twice: at the epsilon that it spends by the bound that this package proves, and at what the
  paper's theorem says of the same draw. That is 8 times as much: the proof saves 4, and 2 more as
  only items' factors leave. The last draw is at the temperature of the ratings' own noise; a
  larger epsilon buys nothing colder.
- "Private at every step" is this package's default: the steps themselves are noisy, and
  (epsilon, delta) holds whether or not anything has converged.

Epsilon protects one user's whole history (add or remove one user)::

    python examples/plot_privacy_accuracy.py --data ml-1m.parquet

About two minutes on two cores with MovieLens 1M, one without data.
"""

import matplotlib.pyplot as plt
import numpy as np
from _ratings import (
    BLUE,
    GREY,
    ORANGE,
    STYLE,
    data_name,
    load,
    make_parser,
    note,
    own_means,
    print_table,
    save,
)

from skdpmf import DPMFSampler, PrivacyBudget
from skdpmf.evaluation import rmse
from skdpmf.privacy.posterior import item_loss_bound, loss_bound

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
    note(f"{parameters.get('guarantee', 'every-step')}, epsilon {spent:.4g}: {error:.4f}")
    return error, spent


def draw(steps, draws, limit, own_mean, options):
    """Plot (epsilon, error) pairs of both guarantees between the two limits."""
    figure, axes = plt.subplots(figsize=(8.0, 4.3))
    axes.plot(*np.transpose(steps), "o-", color=BLUE, label=f"private at every step, δ = {DELTA:g}")
    epsilons, errors = np.transpose(draws)
    axes.plot(epsilons, errors, "s-", color=ORANGE, label="one posterior draw, proved bound")
    label = "same draws, paper's accounting"
    axes.plot(PAPER_FACTOR * epsilons, errors, "s:", color=ORANGE, mfc="white", label=label)
    for level, text in ((limit, "no privacy"), (own_mean, "each user's own mean")):
        axes.axhline(level, color=GREY, linewidth=1.2, linestyle="--", zorder=0)
        axes.annotate(
            text,
            (0.0, level),
            xycoords=("axes fraction", "data"),
            xytext=(4, 3),
            textcoords="offset points",
            color=GREY,
        )
    axes.set_xscale("log")
    axes.margins(y=0.08)
    axes.set_xlabel("ε (one user's whole history, add or remove)")
    axes.set_ylabel("test RMSE (rating units)")
    axes.set_title(f"{data_name(options)}, {options.n_components} factors", loc="left")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.13), ncols=3)
    return figure


def main(arguments=None):
    """Fit, print and plot."""
    parser = make_parser(__doc__.strip(), "privacy_accuracy.png")
    parser.add_argument("--n-components", type=int, default=16)
    parser.add_argument(
        "--epsilons", type=float, nargs="+", default=[0.25, 0.5, 1, 2, 4, 8, 16, 32]
    )
    parser.add_argument(
        "--draw-epsilons", type=float, nargs="+", default=[4, 16, 64, 128, 256, 512, 1250]
    )
    parser.add_argument("--sweeps", type=int, default=None, help="of the posterior's chain")
    options = parser.parse_args(arguments)
    X, Y = load(options)
    posterior = {"guarantee": "posterior", "max_iter": options.sweeps}

    own_mean = rmse(Y.data, own_means(X, Y))
    steps = [fit(X, Y, options, PrivacyBudget(e, DELTA))[::-1] for e in options.epsilons]
    draws = [fit(X, Y, options, PrivacyBudget(e), **posterior)[::-1] for e in options.draw_epsilons]
    limit, _ = fit(X, Y, options, PrivacyBudget.nonprivate())  # the steps without noise

    rows = [("every step", float(epsilon), "", float(error)) for epsilon, error in steps]
    rows += [("draw", float(e), f"{PAPER_FACTOR * e:.4g}", float(error)) for e, error in draws]
    rows += [("no privacy", np.inf, "", limit), ("own mean", 0.0, "", own_mean)]
    print_table(("mechanism", "epsilon", "paper's epsilon", "test RMSE"), rows)
    with plt.rc_context(STYLE):
        save(draw(steps, draws, limit, own_mean, options), options.output)


if __name__ == "__main__":
    main()
