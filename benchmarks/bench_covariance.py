"""DPCovarianceRecommender: test RMSE against epsilon and against the number of users.

    python benchmarks/bench_covariance.py curve --data ml-1m.parquet
    python benchmarks/bench_covariance.py size

- curve: RMSE against epsilon (the paper's Figure 1) beside item means alone and AdaptiveWeightALS.
- size: the cost of privacy with 5,000 to 500,000 users at the paper's noise (its Figure 2).

Without a part both run. Ratings come from --data FILE or $SKDPMF_DATA/ml-1m.parquet, else they are
synthetic. Prints Markdown tables.
"""

import numpy as np
from harness import from_to, parser, print_head, print_row
from ratings import ALONE, DELTA, budget_of, fits, print_never_worse, print_set, splits_of

from skdpmf import DPCovarianceRecommender, PrivacyBudget
from skdpmf.data import make_ratings
from skdpmf.evaluation import split_ratings
from skdpmf.privacy.accounting import gaussian_epsilon

KINDS = [(unit, noise) for unit in ("rating", "user") for noise in ("gaussian", "laplace")]
# The paper's theta of global effects, item averages and covariance, parts of the whole theta.
PAPER_PARTS, PAPER_THETA = (0.02, 0.19, 0.79), 0.15
PAPER_MU = PAPER_THETA * float(np.linalg.norm(PAPER_PARTS))
VARIANTS = {
    "knn": {"predictor": "knn"},
    "knn, not cleaned": {"predictor": "knn", "covariance__clean": False},
    "not cleaned": {"covariance__clean": False},
    "paper's split": {"covariance__shares": "paper"},
}
VARIANT_EPSILONS = (0.25, 1.0, 4.0, 16.0, np.inf)
SIZE_ITEMS, SIZE_RATINGS = 500, 40
PARSER = parser(
    __doc__,
    data=None,
    epsilons=[0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, np.inf],
    seeds=5,
    minor_seeds=3,
    fresh_splits=[101, 102],
    sizes=[5_000, 20_000, 80_000, 200_000, 500_000],
    size_seeds=3,
    n_jobs=2,
)
PARSER.add_argument("part", nargs="?", choices=("all", "curve", "size"), default="all")


def paper_shares(noise):
    """The paper's parts: of epsilon, or of mu, whose squares add up."""
    parts = [part ** (2 if noise == "gaussian" else 1) for part in PAPER_PARTS]
    return tuple(part / sum(parts) for part in parts)


def means_shares(unit):
    """Item means alone."""
    overall = 0.005 if unit == "user" else 0.0
    return (overall, 1.0 - overall, 0.0)


def covariances(epsilon, kind, X, Y, options, seeds=None, **parameters):
    """Fits at one epsilon, and how many items the covariance of the last one covers."""
    unit, noise = kind
    if isinstance(parameters.get("covariance__shares"), str):
        parameters |= {"covariance__shares": paper_shares(noise)}
    parameters |= {"noise": noise}
    given = budget_of(epsilon, DELTA if noise == "gaussian" else 0.0, unit=unit), X, Y, options
    cell = fits(DPCovarianceRecommender, *given, f"{unit}, {parameters}", seeds, **parameters)
    return cell, cell.model.covariance_items_.size


def run_curve(options):
    for number, (name, X, Y) in enumerate(splits_of(options, (20_000, 300))):
        print_set(name, X, Y, options)
        for kind in KINDS if number == 0 else [kind for kind in KINDS if kind[1] == "gaussian"]:
            main_table(kind, X, Y, options, peer=number == 0 and kind == ("user", "gaussian"))
            if number == 0 and kind[1] == "gaussian":
                variant_table(kind, X, Y, options)


def main_table(kind, X, Y, options, *, peer):
    """One unit and noise with the defaults, beside item means alone."""
    unit, noise = kind
    theta = kind == ("rating", "gaussian")
    print(f"One {unit}, {noise} noise:\n")
    names = ["item means alone", *["AdaptiveWeightALS"] * peer, "covariance", *["theta"] * theta]
    print_head("epsilon", *names, "items covered", "rank")
    pairs = {}
    for epsilon in options.epsilons:
        shares = {"covariance__shares": means_shares(unit)}
        means, _ = covariances(epsilon, kind, X, Y, options, **shares)
        cell, covered = covariances(epsilon, kind, X, Y, options)
        row = [means]
        if peer:
            row.append(fits(ALONE, budget_of(epsilon), X, Y, options, "AdaptiveWeightALS"))
        row += [cell, *[paper_theta(epsilon)] * theta, f"{covered:,}"]
        print_row(f"{epsilon:g}", *row, from_to(cell.ranks))
        pairs[epsilon] = cell, means
    print()
    print_never_worse(pairs, f"one {unit}, {noise} noise")


def paper_theta(epsilon):
    """The paper's theta that has this epsilon by exact accounting of its three joint releases."""
    if not np.isfinite(epsilon):
        return ""
    return f"{PrivacyBudget(epsilon, DELTA).mu / np.linalg.norm(PAPER_PARTS):.3g}"


def variant_table(kind, X, Y, options):
    unit, noise = kind
    print(f"One {unit}, {noise} noise, {options.minor_seeds} noise seeds for the variants:\n")
    print_head("epsilon", *VARIANTS)
    for epsilon in (e for e in options.epsilons if e in VARIANT_EPSILONS):
        row = (
            covariances(epsilon, kind, X, Y, options, options.minor_seeds, **parameters)[0]
            for parameters in VARIANTS.values()
        )
        print_row(f"{epsilon:g}", *row)
    print()


def run_size(options):
    epsilon = gaussian_epsilon(PAPER_MU, DELTA)
    kind, n_users = ("rating", "gaussian"), max(options.sizes)
    print(
        f"Fixed noise: mu {PAPER_MU:.5f}, epsilon {epsilon:.4f}, delta {DELTA:g}, for "
        f"one rating; {SIZE_ITEMS} items, {SIZE_RATINGS} ratings a user, a tenth held out; "
        f"{options.size_seeds} noise seeds\n"
    )
    # the first rows of one draw: the same items in all sizes
    whole = make_ratings(n_users, SIZE_ITEMS, n_ratings=SIZE_RATINGS * n_users, random_state=0)
    variants = {
        "item means alone": {"covariance__shares": means_shares("rating")},
        "paper's split": {"covariance__shares": "paper"},
        "defaults": {},
    }
    names = [f"{name}, loss" for name in variants]
    print_head("users", "ratings", "RMSE without privacy", *names, "items covered", "seconds a fit")
    for n in sorted(options.sizes):
        X, Y = split_ratings(whole[:n], random_state=0)
        plain, _ = covariances(np.inf, kind, X, Y, options)
        cells = []
        for parameters in variants.values():
            cell, covered = covariances(
                epsilon, kind, X, Y, options, options.size_seeds, **parameters
            )
            cell.errors = [error - plain.error for error in cell.errors]
            cells.append(cell)
        row = *cells, f"{covered:,}", cells[-1].median_seconds
        print_row(f"{n:,}", f"{X.nnz:,}", f"{plain.error:.4f}", *row)
    print()


def main(arguments=None):
    options = PARSER.parse_args(arguments)
    if options.part in ("all", "curve"):
        run_curve(options)
    if options.part in ("all", "size"):
        run_size(options)


if __name__ == "__main__":
    main()
