"""LocalDPGDDR: test RMSE against epsilon without a trusted server, and what forgers can do.

    python benchmarks/bench_local.py curve --data ml-1m.parquet
    python benchmarks/bench_local.py forgers

- curve: RMSE against epsilon on 100,000 synthetic users x 1,000 items and on the ratings of --data,
  beside each user's own mean, the same without privacy, and the baselines.
- forgers: how far devices that forge their reports move an item's mean, and devices that lie.

Without a part both run. Ratings come from --data FILE or $SKDPMF_DATA/ml-1m.parquet. Prints
Markdown tables.
"""

import numpy as np
from harness import data_path, from_to, parser, print_head, print_row
from ratings import budget_of, fits, own_mean_error, split
from scipy import sparse

from skdpmf import LocalDPGDDR
from skdpmf.data import make_ratings, read_ratings
from skdpmf.data.validation import as_rating_matrix, in_quarter_ranges
from skdpmf.evaluation import split_ratings
from skdpmf.mechanisms.device_reports import item_means as solver
from skdpmf.mechanisms.device_reports.privunit import GRID_BITS
from skdpmf.mechanisms.device_reports.protocol import Protocol, Settings, protocol_name, simulate
from skdpmf.privacy.sampler.streams import derived_key

RANGE = (1.0, 5.0)
FORGED_EPSILON = 4.0
N_FORGERS = (10, 50, 1000)
# Standard deviations of their largest values; None: as many as the server takes. 0: they only lie.
OTHERS = {
    "lie: they like this item, and rate no other": 0.0,
    "forge, as far as the server takes it": None,
    "forge, if nobody looks: 13 standard deviations": 13.0,
}
# Round in which the reports are sent, and signs of the values for count and overall mean.
ATTACKS = ((0, 0, 0), (0, 0, 1), (0, 1, 1), (0, -1, 0), (1, 0, 0))
EPSILONS = (0.1, 0.5, 1.0, 2.0, 4.0, 8.0)
MOST_LOST = 0.002  # against each user's own mean
# Standard deviations as in the method's description: the user's mean is at .97, items at .88
SYNTHETIC = {
    "n_users": 100_000,
    "n_items": 1000,
    "n_ratings": 7_000_000,
    "noise_std": 0.79,
    "user_bias_std": 0.42,
    "item_bias_std": 0.45,
    "factor_std": 0.42,
    "n_components": 8,
    "item_exponent": 0.8,
    "user_exponent": 0.5,
    "mean": 3.7,
    "random_state": 0,
}
BASELINES = {
    "items, sampled sign": {"randomizer": "coordinate"},
    "Algorithm 1, centred": {"method": "gradient", "randomizer": "coordinate"},
    "Algorithm 1": {
        "method": "gradient",
        "randomizer": "coordinate",
        "method__center": False,
        "method__step_size": 1e-5,
    },
    "gradient, PrivUnitG": {"method": "gradient"},
}
BASELINE_EPSILONS = (1.0, 8.0)
# Their noise costs hours to draw on more.
MOST_RESPONSES = 30_000_000  # values that PrivUnitG gradients send


PARSER = parser(__doc__, data=None, no_synthetic=False, epsilons=EPSILONS, seeds=2, n_jobs=2)
PARSER.add_argument("part", nargs="?", choices=("curve", "forgers"))


def reports(epsilon, X, Y, options, seeds=None, **parameters):
    """Fits at one epsilon."""
    given = LocalDPGDDR, budget_of(epsilon, 0.0), X, Y, options, f"LocalDPGDDR, {parameters}"
    return fits(*given, seeds, **parameters)


def curve_sets(options):
    """Yield a name, and training and test ratings."""
    if not options.no_synthetic:
        yield "Synthetic", *split_ratings(make_ratings(**SYNTHETIC), random_state=0)
    if (path := data_path(options)) is not None:
        yield path.stem, *split(read_ratings(path), 0)


def run_curve(options):
    for name, X, Y in curve_sets(options):
        own = own_mean_error(X, Y)
        exact = reports(np.inf, X, Y, options)
        print(
            f"{name}: {X.shape[0]:,} users x {X.shape[1]:,} items, {X.nnz:,} training and "
            f"{Y.nnz:,} test ratings, {options.seeds} seeds. Each user's own mean {own:.4f}, "
            f"items without privacy {exact}.\n"
        )
        print_head("epsilon", "LocalDPGDDR", "against own mean", "rank", "s")
        for epsilon in options.epsilons:
            cell = reports(epsilon, X, Y, options)
            lost = cell.error - own
            words = f"{lost:+.4f}" + " (too much)" * (lost > MOST_LOST)
            print_row(f"{epsilon:g}", cell, words, from_to(cell.ranks), f"{cell.seconds[-1]:.1f}")
        print()
        print_head("baseline", *(f"epsilon {epsilon:g}" for epsilon in BASELINE_EPSILONS))
        for label, parameters in BASELINES.items():
            if label == "gradient, PrivUnitG" and np.prod(X.shape) > MOST_RESPONSES:
                continue
            row = (
                reports(epsilon, X, Y, options, 1, **parameters) for epsilon in BASELINE_EPSILONS
            )
            print_row(label, *row)
        print()


def run_forgers(options):
    R = in_quarter_ranges(as_rating_matrix(make_ratings(20_000, 200, random_state=0)), RANGE)
    n_rated = np.bincount(R.indices, minlength=R.shape[1])
    target = int(np.argsort(n_rated)[int(0.9 * R.shape[1])])
    print(
        f"{R.shape[0]:,} honest devices, {R.shape[1]} items, epsilon {FORGED_EPSILON:g}, "
        f"{options.seeds} seeds. Stars by which others raise the mean of an item that "
        f"{n_rated[target]:,} have rated.\n"
    )
    print_head("the others", *(f"{n:,} of them" for n in N_FORGERS))
    for name, largest in OTHERS.items():
        print_row(name, *rises(R, target, largest, options))
    print()


def rises(R, target, largest, options):
    """Return the rise of the item's mean for each number of others, by the best of the attacks."""
    for n in N_FORGERS:
        shifts = np.zeros((options.seeds, len(ATTACKS)))
        for seed in range(options.seeds):
            secret = derived_key(seed, "forgers")
            honest = attacked(R, target, secret, options)
            if largest == 0.0:
                likes = np.full(n, 2.0), np.full(n, target), np.arange(n + 1)
                liars = sparse.csr_array(likes, shape=(n, R.shape[1]))
                both = sparse.csr_array(sparse.vstack((R, liars)))
                shifts[seed] = attacked(both, target, secret, options) - honest
                continue
            for at, attack in enumerate(ATTACKS):
                forge = n, largest, *attack
                shifts[seed, at] = attacked(R, target, secret, options, forge) - honest
        yield f"{shifts.mean(axis=0).max():+.2f}"


def attacked(R, target, secret, options, forge=None):
    """Return the item's released mean."""
    n_devices, n_items = R.shape
    fractions = solver.fractions_of(solver.mean_noise(FORGED_EPSILON, n_items, n_devices))
    public = protocol_name(secret), FORGED_EPSILON, n_items, RANGE, 10.0, fractions, n_devices
    server = Protocol(Settings(*public))

    def join(name, number, sums):
        if forge is not None and number == forge[2]:  # who chooses the id, chooses the round
            send_forged(server, target, *forge)
        return sums

    threads = {"n_parts": 1, "n_jobs": options.n_jobs}
    model = simulate(server, R, secret, steps=(), total_of=join, **threads)
    return float(model.item_means[target])


def send_forged(server, target, n, largest, number, count, overall):
    """Send n reports of one round; they look like any, but for the values of the item."""
    randomiser, m, rng = server.randomiser, server.settings.n_items, np.random.default_rng(0)
    unit = 2**GRID_BITS
    peak = randomiser.limits.largest if largest is None else round(largest * unit)
    for at in range(n):
        if at % 2 == 0:  # every other has the same noise with the other sign
            noise = 0.8 * rng.standard_normal(randomiser.dimension)
        report = np.rint((-1) ** at * unit * noise).astype(np.int32)
        if server.round.kind == "statistics":
            report[m + 1 + target] = peak
            report[target], report[2 * m + 2] = count * peak, overall * peak
        else:
            report[target] = peak
        assert largest is not None or not randomiser.objection(report)
        server.add(report, 1)


def main(arguments=None):
    options = PARSER.parse_args(arguments)
    if options.part in (None, "curve"):
        run_curve(options)
    if options.part in (None, "forgers"):
        run_forgers(options)


if __name__ == "__main__":
    main()
