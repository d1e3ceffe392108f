"""What each of the five papers reports, beside what comes out here: one command a paper.

    python benchmarks/reproduce.py krichene --data ml-1m.parquet --large
    python benchmarks/reproduce.py shin

Each prints one table: a claim, the paper's figure, ours under the paper's settings, and whether the
claim holds. A figure of the paper comes from its text, its authors' notebook or its abstract, and
none is read off a plot. A row "for scale" compares nothing. Ratings are those of --data (split 0 of
bench_utility.py), made up without it; --large adds made-up ratings of the size of MovieLens 10M.
docs/benchmarks/reproductions.md discusses the tables.
"""

from argparse import Namespace
from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import shin_rounds as figure9
from bench_covariance import PAPER_MU, PAPER_PARTS, PAPER_THETA
from bench_covariance import paper_shares as covariance_shares
from bench_sgd import timed_rates
from harness import parser, print_head, print_row
from published_recipe import RECIPES, accounting_rows
from ratings import DELTA, LARGE, budget_of, fits, own_mean_error, splits_of
from sgd_solvers import SOLVERS

from skdpmf import (
    DPALS,
    AdaptiveWeightALS,
    DPCovarianceRecommender,
    DPMFSampler,
    LocalDPGDDR,
    NoisyCovariance,
    Pooled,
    PosteriorDraw,
    PrivacyBudget,
)
from skdpmf.evaluation import rmse, split_ratings
from skdpmf.mechanisms.posterior_draw.guarantee import item_loss_bound, loss_bound
from skdpmf.privacy.accounting import gaussian_delta, gaussian_epsilon

HOLDS, PART, FAILS, SCALE = "holds", "in part", "does not hold", "for scale"


class Row(NamedTuple):
    """One claim of a paper."""

    claim: str
    paper: str
    here: str
    verdict: str


def judged(claim: str, paper: str, here: str, *met: bool) -> Row:
    """Return a row that holds if all conditions are met, and in part if some are."""
    return Row(claim, paper, here, HOLDS if all(met) else PART if any(met) else FAILS)


def ratings_of(options: Namespace) -> tuple[Any, Any]:
    """Training and test matrix."""
    return next(splits_of(options, options.shape))[1:]


class Set(NamedTuple):
    """Ratings, their scale, the words that name them in a claim, and the noise seeds."""

    X: Any
    Y: Any
    scale: tuple[float, float]
    where: str
    seeds: int


def sets_of(options: Namespace) -> Iterator[Set]:
    """Yield the ratings and, with --large, made-up ones of the size of MovieLens 10M, one seed."""
    yield Set(*ratings_of(options), (1.0, 5.0), "", options.seeds)
    if options.large:
        make, scale = LARGE["synth10m"]
        yield Set(*split_ratings(make(), random_state=0), scale, ", made up", 1)


def least_squares(data: Set, budget: PrivacyBudget, options: Namespace, **params: Any):
    given = AdaptiveWeightALS, budget, data.X, data.Y, options, data.seeds
    return fitted(*given, rating_range=data.scale, **params)


def fitted(
    kind: Any,
    budget: PrivacyBudget,
    X: Any,
    Y: Any,
    options: Namespace,
    seeds: int | None = None,
    **params: Any,
) -> tuple[float, Any]:
    """Test RMSE and the RMSE of five buckets of items, rarest first, means over the noise seeds."""
    cell = fits(kind, budget, X, Y, options, f"{kind.__name__}, {params}", seeds, **params)
    return cell.error, np.mean(cell.buckets, axis=0)


# The paper of Krichene et al. 2023

# RMSE on MovieLens 10M that their notebook prints, and gains in % of buckets 0, 1, 3 and 4 (text).
ALS_10M = 0.7772
GAINS = {0: 21.6, 1: 23.7, 3: 22.8, 4: 8.4}
SAMPLED = ("uniform sampling", "tail sampling")
EXPONENT = "weights, exponent 1/4"


def krichene(options: Namespace) -> Iterator[Row]:
    for data in sets_of(options):
        fit = partial(least_squares, data, options=options)
        yield from weights_of_least_squares(fit, data.where, options.epsilons)
    for claimed, noise, exact, as_large, with_mean, _ in accounting_rows():
        yield judged(
            f"epsilon of the published noise, s = {noise}",
            claimed,
            f"{exact} if no rating were above 1; {as_large} as they are; {with_mean} with the mean",
            float(with_mean) <= float(claimed),
        )


def weights_of_least_squares(fit: Any, where: str, epsilons: list[float]) -> Iterator[Row]:
    """Published settings (`published_recipe.py`), our sensitivities and accounting."""
    if not where:
        error, _ = fit(budget_of(np.inf), solver=DPALS(), n_components=64, max_iter=15)
        yield Row("RMSE of ALS, not private, d = 64", f"{ALS_10M}", f"{error:.4f}", SCALE)
    for epsilon in epsilons:
        recipe, found = RECIPES[epsilon], {}
        for method in (*SAMPLED, EXPONENT):
            found[method] = fit(budget_of(epsilon), **recipe.params(method))
        own, *others = (found[method][0] for method in (EXPONENT, *SAMPLED))
        yield judged(
            f"AdaDPALS below uniform and tail sampling, epsilon {epsilon:g}{where}",
            "below both",
            f"{own:.4f}; {others[0]:.4f}, {others[1]:.4f}",
            *(own < other for other in others),
        )
        if epsilon == 1.0:
            tail, weighted = (found[method][1] for method in (SAMPLED[1], EXPONENT))
            gains = {b: 100.0 * (1.0 - weighted[b] / tail[b]) for b in GAINS}
            yield judged(
                f"its gain over tail sampling, %, items of bucket 0 (rarest), 1, 3 and 4{where}",
                ", ".join(map(str, GAINS.values())),
                ", ".join(f"{gain:.1f}" for gain in gains.values()),
                *(gains[b] >= GAINS[b] for b in GAINS),
            )


# The paper of Chien et al. 2021

LOSS, LARGEST = 6.0, 10.0  # %, up to this epsilon: their abstract


def chien(options: Namespace) -> Iterator[Row]:
    for data in sets_of(options):
        fit, where = partial(least_squares, data, options=options), data.where
        solvers = DPALS(), Pooled(list_share=None)
        base = min(fit(budget_of(np.inf), solver=solver)[0] for solver in solvers)
        yield Row(f"RMSE of ALS, not private{where}", f"{ALS_10M}", f"{base:.4f}", SCALE)
        for epsilon in options.epsilons:
            errors = [
                fit(budget_of(epsilon), solver=DPALS(weighting))[0]
                for weighting in ("uniform", "tail")
            ]
            losses = [100.0 * (error / base - 1.0) for error in errors]
            yield judged(
                f"loss of DPALS, uniform and tail sampling, epsilon {epsilon:g}{where}",
                f"about {LOSS:g} %",
                ", ".join(f"{loss:.1f} %" for loss in losses),
                *(loss < LOSS + 0.5 for loss in losses),
            )
        error, _ = fit(budget_of(LARGEST), solver=Pooled(list_share=None))
        loss = 100.0 * (error / base - 1.0)
        yield Row(f"loss of our default, epsilon {LARGEST:g}{where}", "", f"{loss:.1f} %", SCALE)


# The paper of Liu, Wang and Smola 2015

EPSILON, TAU, KAPPA = 250.0, 200, 1.0
TEMPERATURES = (0.07, 0.0025)
RATE, RATE_FACTORS, RATE_CORES = 8.5, 1024, 32  # million ratings a second


def liu(options: Namespace) -> Iterator[Row]:
    X, Y = ratings_of(options)
    own = own_mean_error(X, Y)
    yield Row("RMSE of each user's own mean, no release", "", f"{own:.4f}", SCALE)
    draw = partial(fitted, DPMFSampler, X=X, Y=Y, options=options, n_components=16)
    draw = partial(draw, max_iter=options.sweeps)
    exact, _ = draw(PrivacyBudget.nonprivate(), guarantee="posterior")
    yield Row("RMSE of one draw, not private", "", f"{exact:.4f}", SCALE)
    as_published = {"guarantee": PosteriorDraw(calibration="paper")}
    error, _ = draw(PrivacyBudget(EPSILON), **as_published)
    proved = EPSILON * item_loss_bound(TAU, 2.0, 0.0) / loss_bound(TAU, 2.0, 0.0) / 4.0
    yield judged(
        f"one draw at epsilon {EPSILON:g} by the paper's theorem (we prove {proved:g})",
        "good performance",
        f"{error:.4f}",
        error < (own + exact) / 2.0,  # nearer to no privacy than to no release
    )
    for zeta in TEMPERATURES:
        true = EPSILON / zeta
        colder, _ = draw(PrivacyBudget(true), **as_published)
        yield judged(
            f"epsilon by the same theorem of the chain that ran, temperature {zeta:g}",
            f"{EPSILON:g}",
            f"{true:,.0f} (a draw there: {colder:.4f})",
            true <= EPSILON,
        )
    for epsilon in (1.0, 4.0):
        error, _ = fitted(DPMFSampler, budget_of(epsilon), X, Y, options, n_components=16)
        claim = f"noise in each step, epsilon {epsilon:g}, our default"
        yield Row(claim, "", f"{error:.4f}", SCALE)
    yield from price_of_a_rating()
    wide = loss_bound(TAU, 2.5, KAPPA)  # Yahoo's ratings, scaled to 0..5
    yield judged(
        "epsilon on Yahoo's ratings, scaled to 0..5, bounded as if 1..5",
        f"{EPSILON:g}",
        f"{EPSILON * wide / loss_bound(TAU, 2.0, KAPPA):g}",
        wide <= loss_bound(TAU, 2.0, KAPPA),
    )
    ours = SOLVERS["ours"](X)
    ours.start(options.rate_factors, 1)
    (speed, _) = timed_rates({"ours": ours}, X.nnz, 3, 30.0)["ours"]
    yield judged(
        f"million ratings a second at k = {options.rate_factors:,}",
        f"{RATE} ({RATE_CORES} virtual cores)",
        f"{speed:.2g} (one core)",
        speed >= RATE / RATE_CORES,
    )


def price_of_a_rating() -> Iterator[Row]:
    """Epsilon of one rating under the paper's a = epsilon / 4B; proof in the mechanism's file."""
    a_bound = EPSILON / 4.0
    alike = 2.0 * a_bound / TAU  # one of tau exchanged, all ratings weigh the same
    first, second = a_bound, 2.0 * a_bound / 2.0  # weights 1 / m: add the first, or one more
    yield judged(
        f"epsilon of one rating at epsilon {EPSILON:g}",
        f"{EPSILON / TAU:g}",
        f"{alike:g} with equal weights, up to {max(first, second):g} with weights 1 / m",
        alike <= EPSILON / TAU,
        max(first, second) <= EPSILON / TAU,
    )


# The paper of McSherry and Mironov 2009

# Cinematch has 0.9525 where the mean of each film has 1.0540 (the organisers' figures).
CINEMATCH = 0.9525 / 1.0540
THEOREM_3 = 0.774  # the paper's epsilon of theta = .15, delta 1e-5 in three parts
ALPHA, DAMPING, CLAMP = 4.0, 20.0, 1.0


def mcsherry(options: Namespace) -> Iterator[Row]:
    X, Y = ratings_of(options)
    counts = np.bincount(X.indices, minlength=X.shape[1])
    sums = np.bincount(X.indices, X.data, minlength=X.shape[1])
    films = np.where(counts > 0, sums / np.maximum(counts, 1), X.data.mean())
    of_films = rmse(Y.data, films[Y.indices])
    goal = CINEMATCH * of_films
    yield Row("RMSE of the mean of each film", "1.0540", f"{of_films:.4f}", SCALE)
    yield Row("Cinematch, or as much below", "0.9525", f"{goal:.4f}", SCALE)
    fit = partial(fitted, DPCovarianceRecommender, X=X, Y=Y, options=options)
    plain, _ = fit(PrivacyBudget.nonprivate())
    theta_epsilon = gaussian_epsilon(PAPER_MU, DELTA)
    published = {"covariance": NoisyCovariance(shares=covariance_shares("gaussian"))}
    for predictor in ("knn", "svd"):
        budget = PrivacyBudget(theta_epsilon, DELTA, unit="rating")
        error, _ = fit(budget, predictor=predictor, **published)
        yield judged(
            f"{predictor}, one rating protected, theta = {PAPER_THETA:g}, below Cinematch",
            "below",
            f"{error:.4f} (svd, not private: {plain:.4f})",
            error < goal,
        )
    for epsilon in options.epsilons:
        budget = PrivacyBudget(epsilon, DELTA, unit="rating")
        error, _ = fit(budget, **published)
        claim = f"svd, one rating protected, epsilon {epsilon:g}, below Cinematch"
        yield judged(claim, "below", f"{error:.4f}", error < goal)
        error, _ = fit(budget_of(epsilon), **published)
        claim = f"svd, one user protected, epsilon {epsilon:g}"
        yield Row(claim, "", f"{error:.4f}", SCALE)
    yield from accounting_of_covariance(theta_epsilon)
    yield from sensitivity_of_covariance()


def accounting_of_covariance(theta_epsilon: float) -> Iterator[Row]:
    yield judged(
        f"epsilon of theta = {PAPER_THETA:g}, delta {DELTA:g}",
        f"{THEOREM_3:g}",
        f"{theta_epsilon:.4f}",
        theta_epsilon <= THEOREM_3,
    )
    part = DELTA / len(PAPER_PARTS)
    theta = np.array(PAPER_PARTS) * PAPER_THETA
    formula = float(np.sqrt(2.0 * np.log(2.0 / part)) * theta.sum())
    if abs(formula - THEOREM_3) > 5e-4:
        raise AssertionError(f"Theorem 3 gives {formula:.4f}, not {THEOREM_3}")
    for epsilon in (1.0, 20.0):
        mu = epsilon / np.sqrt(2.0 * np.log(2.0 / DELTA))
        delta = gaussian_delta(mu, epsilon)
        yield judged(
            f"delta of the noise of Theorem 3 for epsilon {epsilon:g}",
            f"{DELTA:g}",
            f"{delta:.2g}",
            delta <= DELTA,
        )


def sensitivity_of_covariance() -> Iterator[Row]:
    """A user whose one rating moves her centred ratings further than Theorem 4 says."""
    limits = {1: ALPHA + CLAMP, 2: ALPHA**2 / (4.0 * DAMPING) + CLAMP**2}
    for norm, limit in limits.items():
        most = max(moved(n, norm) for n in range(1, 400))
        yield judged(
            f"how far one rating moves a user's centred ratings, l{norm} norm"
            + " squared" * (norm == 2),
            f"at most {limit:g}",
            f"{most:.3f} by films with released means 1 and 5",
            most <= limit + 1e-12,
        )


def moved(n_rated: int, norm: int) -> float:
    """Norm of the change by the last rating, of n others that lie as far below as they can."""
    means = np.append(np.full(n_rated, 5.0), 1.0)  # released means of films, clamped to the scale
    ratings = np.append(np.full(n_rated, 1.0), 5.0)

    def centred(n: int) -> np.ndarray:
        y = (ratings - means)[:n]
        own = (y.sum() + DAMPING * (1.0 - 5.0)) / (n + DAMPING)  # the least global effect
        return np.append(np.clip(y - own, -CLAMP, CLAMP), np.zeros(n_rated + 1 - n))

    change = np.abs(centred(n_rated + 1) - centred(n_rated))
    return float((change**norm).sum())


# The paper of Shin et al. 2018


VISIBLE = 0.001  # a difference of RMSE; noise alone makes some ten-thousandths


def shin(options: Namespace) -> Iterator[Row]:
    best = {name: min(errors) for name, errors in figure9.PUBLISHED.items()}
    level = figure9.MOVIELENS_SD
    for name, error in best.items():
        claim = f"best {name} RMSE, below the mean for everybody ({level}, MovieLens 20M)"
        yield Row(
            claim, f"{error:.3f}", "the paper's own figure", FAILS if error > level else HOLDS
        )
    case = figure9.make_case(options)
    Y, step = case.Y, figure9.SETTINGS.step_size
    mean = rmse(Y.data, np.full(Y.nnz, case.X.data.mean()))
    yield Row("RMSE of the mean for everybody", f"{level}", f"{mean:.4f}", SCALE)
    private = figure9.curve(case, options, figure9.EPSILON, step)
    silent = figure9.curve(case, options, np.inf, 0.0, reports=False)
    exact = figure9.curve(case, options, np.inf, figure9.EXACT_STEP)
    for k in options.rounds:
        yield judged(
            f"reports of {k} rounds lower the RMSE by {VISIBLE:g} or more, epsilon "
            f"{figure9.EPSILON:g}",
            "lower",
            f"{private[k]:.4f}, without any report {silent[k]:.4f}",
            private[k] <= silent[k] - VISIBLE,
        )
    last = options.rounds[-1]
    yield judged(
        f"private RMSE after {last} rounds, below the mean for everybody",
        f"{best['private']:.3f}",
        f"{private[last]:.4f}",
        private[last] < mean,
    )
    yield judged(
        f"RMSE after {last} rounds without privacy, below the mean for everybody",
        f"{best['non-private']:.3f}",
        f"{exact[last]:.4f}",
        exact[last] < mean,
    )
    for k in (1, last):
        yield judged(
            f"epsilon of the loop as printed (k + 1 rounds), k = {k}",
            f"{figure9.EPSILON:g}",
            f"{figure9.EPSILON * (k + 1) / k:.3g}",
            False,
        )
    yield what_comes_back(options)
    model = LocalDPGDDR(
        PrivacyBudget(figure9.EPSILON),
        rating_range=figure9.RATING_RANGE,
        random_state=options.seed,  # to repeat the table; a real fit leaves it alone
        n_jobs=options.n_jobs,
    ).fit(case.X)
    error = rmse(Y, model.predict_entries(case.X, Y))
    yield Row("RMSE of LocalDPGDDR, defaults, same epsilon", "", f"{error:.4f}", SCALE)


def what_comes_back(options: Namespace) -> Row:
    """The part of a vector that survives Phi and its pseudo-inverse (Corollary 2: nearly all)."""
    q, m = options.rows, options.items
    rng = np.random.default_rng(0)
    scale = min(1.0, 1500.0 / m)  # the share depends on q / m alone
    phi = rng.normal(size=(max(1, round(scale * q)), round(scale * m)))
    g = rng.normal(size=phi.shape[1])
    back = np.linalg.lstsq(phi, phi @ g, rcond=None)[0]
    kept = float(np.linalg.norm(back) / np.linalg.norm(g))
    claim = f"length of a gradient that comes back from q = {q:,} of m = {m:,} dimensions"
    return judged(claim, "about all", f"{kept:.2f}", kept > 0.9)


PAPERS = {"krichene": krichene, "chien": chien, "liu": liu, "mcsherry": mcsherry, "shin": shin}
EPSILONS = {"krichene": [1.0, 5.0, 20.0], "chien": [1.0, 5.0, 10.0], "mcsherry": [1.0, 4.0]}
MOVIELENS_20M = (138_493, 26_744)


PARSER = parser(
    __doc__,
    data=None,
    large=False,  # krichene, chien: and synth10m
    seeds=3,
    rate_factors=RATE_FACTORS,  # liu: k of the rate
    ratings=20_000_263,  # shin: made up
    rows=2_700,  # shin: q
    rounds=[1, 5, 20, 50],  # shin: k
    n_jobs=1,
)
PARSER.add_argument("paper", choices=PAPERS)
PARSER.add_argument("--shape", type=int, nargs=2, help="of made-up ratings: users, items")
PARSER.add_argument("--epsilons", type=float, nargs="+", help="krichene: of 1, 5, 20")
PARSER.add_argument("--sweeps", type=int, help="liu: of the chain")


def main(arguments: list[str] | None = None) -> None:
    options = PARSER.parse_args(arguments)
    options.shape = options.shape or (MOVIELENS_20M if options.paper == "shin" else (2000, 300))
    options.epsilons = options.epsilons or EPSILONS.get(options.paper, [])
    options.users, options.items = options.shape
    options.seed = 0
    rows = list(PAPERS[options.paper](options))
    print(f"{options.paper}: {options.seeds} noise seeds, delta {DELTA:g}\n")
    print_head("claim or check", "paper", "here", "verdict")
    for row in rows:
        print_row(*row)
    counts = {word: sum(row.verdict == word for row in rows) for word in (HOLDS, PART, FAILS)}
    print("\n" + ", ".join(f"{n} {word}" for word, n in counts.items() if n))


if __name__ == "__main__":
    main()
