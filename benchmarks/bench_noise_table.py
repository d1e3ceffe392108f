"""How large a table of normals Langevin dynamics needs.

This is the shape of figure 4 of Liu, Wang and Smola (2015). Their sampler draws a table of normals
once and reads each row's noise from a random place in it. The table is fast, and gives no privacy:
given the table, there are finitely many outputs, so the package refuses it with a private budget.
Here, without privacy, tables of growing size are compared with exact noise.

The error hardly depends on the table, which therefore proves little. The law of the draws does: the
normals that lie side by side in a small table are the noise of the same components again and again,
whose factors become correlated. The correlation is measured on a chain without any ratings, which
should return its prior, in which all components are independent:

    python benchmarks/bench_noise_table.py --data ml-1m.parquet

It takes two minutes with MovieLens 1M.
"""

import statistics
import sys
import time

import numpy as np
import scipy.sparse as sp
from bench_utility import print_head, print_row, split_of, split_parser

from skdpmf import DPMFSampler, PosteriorDraw, PrivacyBudget
from skdpmf.evaluation import rmse
from skdpmf.mechanisms.posterior_draw.langevin import LangevinChain
from skdpmf.mechanisms.posterior_draw.target import Target
from skdpmf.privacy.sampler.noise import NoiseSource, derived_key

STEP_SIZE = 4.0  # coarse: the default, .5, needs eight times the rounds
N_PRIOR_USERS = 4000


def fits(X, Y, options, n_draws, **noise):
    """Return the test RMSE and the seconds of a fit, one of each a seed."""
    errors, seconds = [], []
    for seed in range(options.seeds):
        model = DPMFSampler(
            PrivacyBudget.nonprivate(),
            guarantee=PosteriorDraw(
                sampler="sgld",
                weight_cap=1.0,
                item_bias=True,
                step_size=STEP_SIZE,
                n_draws=n_draws,
                **noise,
            ),
            n_components=options.n_components,
            max_iter=options.rounds,
            random_state=seed,
            n_jobs=options.n_jobs,
        )
        begin = time.perf_counter()
        model.fit(X)
        seconds.append(time.perf_counter() - begin)
        errors.append(rmse(Y, model.predict_entries(X, Y)))
    print(
        f"{noise or 'exact'}, {n_draws} draws: {statistics.mean(errors):.4f}, {seconds[-1]:.1f} s",
        file=sys.stderr,
    )
    return errors, seconds


def largest_correlations(options, table_size):
    """Largest correlation of two components over the users of a chain without ratings, by seed."""
    n_users, k = N_PRIOR_USERS, options.n_components
    target = Target(
        sp.csr_array((n_users, 1), dtype=np.float64),
        weights=np.zeros(n_users),
        inverse_temperature=0.0,
        bound=np.inf,
        n_components=k,
        user_std=1.0,
        item_std=1.0,
        bias_std=0.0,
    )
    found = []
    for seed in range(options.seeds):
        chain = LangevinChain(
            target,
            NoiseSource(derived_key(seed)),
            max_weight=1.0,
            max_user_weight=1.0,
            table_size=table_size,
        )
        for t in range(options.rounds):
            chain.sweep(t)
        found.append(float(np.abs(np.corrcoef(chain.state.U.T) - np.eye(k)).max()))
    return found


def main(arguments=None):
    """Fit and print."""
    parser = split_parser(__doc__, shape=(2000, 300), n_components=16)
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--n-draws", type=int, default=150, help="of the average: last rounds")
    parser.add_argument("--powers", type=int, nargs="+", default=[4, 6, 8, 10, 12, 14, 16, 18, 20])
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args(arguments)
    X, Y = split_of(options)
    sizes = [2**power for power in options.powers]

    seconds, single, average, correlation = {}, {}, {}, {}
    for size in [*sizes, None]:  # None: exact noise
        noise = {} if size is None else {"noise": "table", "table_size": size}
        single[size], seconds[size] = fits(X, Y, options, 1, **noise)
        average[size], _ = fits(X, Y, options, options.n_draws, **noise)
        correlation[size] = largest_correlations(options, size)
    measured = single, average, correlation
    rows = []
    for label, size in [
        *zip([f"2^{p}" for p in options.powers], sizes, strict=True),
        ("exact", None),
    ]:
        cells = [f"{f(values[size]):.4f}" for values in measured for f in (np.mean, np.std)]
        rows.append((label, *cells, f"{statistics.median(seconds[size]):.2f}"))
    names = ("one draw", "sd", "average", "sd", "correlation", "sd")
    print_head("table", *names, "seconds a fit")
    for row in rows:
        print_row(*row)


if __name__ == "__main__":
    main()
