"""Wall time, processor time and peak memory of a large fit, and how they grow.

Synthetic ratings shaped like MovieLens 10M by default, made in a process of their own and kept as
.npz in a cache folder. Every fit has a fresh process too, so that its peak resident memory is that
of the interpreter, the ratings and the fit alone. Kernels are compiled before the clock starts.

    python benchmarks/bench_fit.py --users 70000 --items 10700 --ratings 10000000
    python benchmarks/bench_fit.py --exact --users 16554 --items 10506 --ratings 90000
    python benchmarks/bench_fit.py --cluster --users 500000 --items 20000 --ratings 50000000
    python benchmarks/bench_fit.py --grow --users 20000 --items 4000 --ratings 1000000 --rank 16

--exact: ratings with a long tail, and fits without privacy with all defaults, lists included;
--exact --private: the same with privacy.
--cluster: the default fit of ratings on disk by threads of one process, and by as many processes.
--grow: what fits of one thread take where users, ratings, items or k double: the least of three.
"""

import argparse
import json
import sys
import time
from functools import partial
from operator import itemgetter

from harness import CACHE, in_child, note, parser, print_head, print_row
from memory import own_mb, peak_gib, shown_size

# This process stays small (no numpy): Linux counts a parent's size as the child's peak memory.

FORCED = "forced"  # private, with all factors, whatever the solver would say of them
USUAL, NOT_PRIVATE = "usual", "not private"
THREADS, CLUSTER = "threads", "cluster"
SPARING = {  # settings of Dask that docs/distributed.md explains
    "distributed.worker.profile.enabled": False,
    "distributed.admin.tick.interval": "500ms",
    "distributed.nanny.pre-spawn-environ": {"OMP_NUM_THREADS": 1, "OPENBLAS_NUM_THREADS": 1},
}
CLICKS = "DPCovarianceRecommender, clicks"
EXACT = "AdaptiveWeightALS", "DPCovarianceRecommender", CLICKS
SGD = "CacheSGDFactorizer"
GROWN = {  # factors of users, items, ratings and k
    "nothing": (1, 1, 1, 1),
    "users and ratings": (2, 1, 2, 1),
    "ratings": (1, 1, 2, 1),
    "items": (1, 2, 1, 1),
    "k": (1, 1, 1, 2),
}
PARSER = parser(
    __doc__,
    users=70_000,
    items=10_700,
    ratings=10_000_000,
    rank=32,
    rounds=3,  # 0: the default
    epsilon=4.0,
    n_jobs=2,
    exact=False,
    private=False,
    cluster=False,
    grow=False,
)
PARSER.add_argument("--task", help=argparse.SUPPRESS)


def timed(work):
    """Wall time, and processor time of all threads."""
    begin, used = time.perf_counter(), time.process_time()
    work()
    return {"seconds": time.perf_counter() - begin, "cpu": time.process_time() - used}


def generate(path, options):
    import scipy.sparse as sp

    from skdpmf.data import make_ratings

    tail = {"item_exponent": 1.0, "min_ratings_per_user": 2} if options.exact else {}
    shape = options.users, options.items
    X = make_ratings(*shape, n_ratings=options.ratings, random_state=0, **tail)
    partial = path.with_name("partial-" + path.name)
    sp.save_npz(partial, X, compressed=False)
    partial.rename(path)


def fit_ours(variant, path, options):
    import numpy as np
    import scipy.sparse as sp

    import skdpmf
    from skdpmf import AdaptiveWeightALS, Pooled, PrivacyBudget
    from skdpmf.data import make_ratings
    from skdpmf.mechanisms.als import pooled as pooled_als

    budget = PrivacyBudget(options.epsilon, 1e-5)
    if variant == NOT_PRIVATE:
        budget = PrivacyBudget.nonprivate()
    if variant == FORCED:
        pooled_als.PooledFit.choose_rank = lambda fit: fit.settings.n_components
    recommender = AdaptiveWeightALS(
        budget,
        solver=Pooled(list_share=None),
        n_components=options.rank,
        max_iter=options.rounds or None,
        n_jobs=options.n_jobs,
    )
    if variant in EXACT:
        kind, feedback = getattr(skdpmf, variant.split(",")[0]), ("explicit", "implicit")
        recommender = kind(
            budget if options.private else PrivacyBudget.nonprivate(),
            n_jobs=options.n_jobs,
            feedback=feedback[variant == CLICKS],
        )
    if variant == SGD:
        recommender = skdpmf.CacheSGDFactorizer(n_components=options.rank, n_jobs=options.n_jobs)
    recommender.fit(make_ratings(20_000, 400, n_ratings=200_000, random_state=0))
    X = sp.load_npz(path)
    loaded, again = peak_gib(), range(1 + 2 * options.grow)
    took = min((timed(lambda: recommender.fit(X)) for _ in again), key=itemgetter("cpu"))
    rank = int(np.any(recommender.components_ != 0, axis=1).sum())
    return {**took, "loaded": loaded, "peak": peak_gib(), "rank": rank}


def fit_stored(variant, path, options):
    """Fit ratings on disk in threads, or in the workers of a Dask cluster."""
    from contextlib import nullcontext

    import dask
    import scipy.sparse as sp
    from distributed import Client

    from skdpmf import AdaptiveWeightALS, PrivacyBudget
    from skdpmf.data import ParquetRatings, make_ratings

    folder, model = path.with_suffix(""), AdaptiveWeightALS(PrivacyBudget(options.epsilon, 1e-5))
    small, client = folder.with_name("warm-up"), nullcontext()
    if variant == "write":
        ParquetRatings.write(folder, sp.load_npz(path))
        warm = make_ratings(20_000, 400, n_ratings=200_000, random_state=0)
        return str(ParquetRatings.write(small, warm, overwrite=True))
    if variant == CLUSTER:
        dask.config.set(SPARING)
        client = Client(n_workers=options.n_jobs, threads_per_worker=1, dashboard_address=None)
    else:
        model.set_params(n_jobs=options.n_jobs)
    model.set_params(random_state=0, max_iter=options.rounds or None)
    with client:
        model.fit(ParquetRatings(small))  # compiles, and loads what is compiled
        used, begin = used_by(client), time.perf_counter()
        model.fit(ParquetRatings(folder))
        seconds, after = time.perf_counter() - begin, used_by(client)
    parts = [
        [now[0] - was[0], now[1], now[2] - was[2]] for was, now in zip(used, after, strict=True)
    ]
    return {"seconds": seconds, "parts": parts, "sum": model.components_.sum()}


def used_by(client):
    """Processor seconds, peak GiB and GB received from others: of this process, and of workers."""

    def of_one(dask_worker=None):
        received = sum(one["total"] for one in getattr(dask_worker, "transfer_incoming_log", ()))
        return time.process_time(), own_mb("VmHWM") / 1.073741824e3, received / 1e9

    workers = client.run(of_one) if hasattr(client, "run") else {}
    return [of_one(), *workers.values()]


def compare_cluster(path, arguments):
    """Print what the same fit takes in threads and in a cluster: of each process, in GiB and GB."""
    if not path.with_suffix("").exists():
        in_child(__file__, "--task", "write", *arguments)
    print_head("fit", "process", "seconds", "CPU seconds", "peak GiB", "GB from others", "sum")
    for variant in (THREADS, CLUSTER):
        result = in_child(__file__, "--task", variant, *arguments)
        for number, (cpu, peak, received) in enumerate(result["parts"]):
            numbers = f"{result['seconds']:.1f}", f"{cpu:.1f}", f"{peak:.2f}", f"{received:.3f}"
            print_row(variant, f"worker {number}" if number else "fit", *numbers, result["sum"])


def print_growth(options, arguments):
    """Print processor seconds, in brackets their ratio to linear growth, and GiB at the peak."""
    sizes, first = (options.users, options.items, options.ratings, options.rank), {}
    names = "--users", "--items", "--ratings", "--rank"
    print_head("what doubles", "users, items, ratings, k", *(kinds := (USUAL, CLICKS, SGD)))
    for what, times in GROWN.items():
        now = [n * t for n, t in zip(sizes, times, strict=True)]
        given = [word for pair in zip(names, now, strict=True) for word in pair]
        given, cells = [*arguments, "--private", "--rounds", 0, "--n-jobs", 1, *given], []
        if not path_of(PARSER.parse_args([str(one) for one in given])).exists():
            in_child(__file__, "--task", "generate", *given)
        for kind in kinds:
            took = in_child(__file__, "--task", kind, *given)
            ratio = took["cpu"] / (first.setdefault(kind, took["cpu"]) * max(times))
            cells.append(f"{took['cpu']:.2f} ({ratio:.2f}), {took['peak']:.2f}")
        print_row(what, ", ".join(f"{n:,}" for n in now), *cells)


def path_of(options):
    kind = "-long-tail" if options.exact else ""
    return CACHE / f"{options.users}x{options.items}-{options.ratings}{kind}.npz"


TASKS = {"generate": generate}
TASKS |= {name: partial(fit_stored, name) for name in (THREADS, CLUSTER, "write")}


def print_fit(label, result):
    sizes = shown_size(result["peak"]), shown_size(result["loaded"])
    print_row(label, result["rank"], f"{result['seconds']:.1f}", f"{result['cpu']:.1f}", *sizes)


def main(arguments=None):
    options = PARSER.parse_args(arguments)
    path = path_of(options)
    if options.task:
        task = TASKS.get(options.task) or partial(fit_ours, options.task)
        print(json.dumps(task(path, options)))
        return
    arguments = sys.argv[1:] if arguments is None else arguments
    CACHE.mkdir(parents=True, exist_ok=True)
    if options.grow:
        print_growth(options, arguments)
        return
    if not path.exists():
        note(f"making {path}")
        in_child(__file__, "--task", "generate", *arguments)
    if options.cluster:
        compare_cluster(path, arguments)
        return
    print(
        f"{options.users:,} x {options.items:,}, {options.ratings:,} ratings, k = {options.rank}, "
        f"{options.rounds} rounds, {options.n_jobs} threads; GiB at the peak, and before the fit\n"
    )
    print_head("fit", "rank used", "seconds", "CPU seconds", "peak GiB", "before GiB")
    ours = f"AdaptiveWeightALS, epsilon {options.epsilon:g}"
    labels = {FORCED: f"{ours}, all factors forced", USUAL: ours}
    labels |= {NOT_PRIVATE: "AdaptiveWeightALS, not private"}
    if options.exact:
        law = f"epsilon {options.epsilon:g}" if options.private else "not private"
        labels = {variant: f"{variant}, {law}" for variant in EXACT}
    for variant, label in labels.items():
        if result := in_child(__file__, "--task", variant, *arguments):
            print_fit(label, result)
        else:
            sys.exit("the fit failed: see the error above")


if __name__ == "__main__":
    main()
