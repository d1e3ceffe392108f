"""The entries of `run.py`: one for each published figure and table, and for each of our questions.

Figures of the five sources are here if this machine can make them again, on MovieLens 1M where
the source has a larger or closed set, or on made-up ratings. `RATINGS` in the arguments stands for
the file in $SKDPMF_DATA. An entry takes a minute or two in a quick run, whose numbers are rougher:
one seed, few settings, small sets. Those without a quick run are too large for one.
"""

import re
import shlex
from dataclasses import dataclass

RATINGS = "ml-1m.parquet"

KRICHENE = "Krichene et al. (2023)"
CHIEN = "Chien et al. (2021)"
LIU = "Liu, Wang, Smola (2015)"
MCSHERRY = "McSherry, Mironov (2009)"
SHIN = "Shin et al. (2018)"
OURS = ""

# Made-up ratings for the quick runs of Shin et al.'s figure, in its proportions.
SMALL = "--users 14000 --items 2700 --ratings 2000000 --rows 270 --n-jobs 1"


@dataclass(frozen=True)
class Entry:
    """One command, quick and full, and what it is for."""

    name: str
    paper: str  # OURS: a question of this project
    what: str
    page: str  # of docs/benchmarks, that discusses it
    script: str
    quick: str | None  # arguments; None: only in a full run
    full: str
    packages: tuple[str, ...] = ()  # that it imports beyond those of skdpmf
    program: tuple[str, ...] = ()  # any of these names

    @property
    def source(self):
        return f"{self.paper}, {self.what}" if self.paper else self.what

    def arguments(self, full):
        """Return the list of arguments, None where there is no such run."""
        text = self.full if full else self.quick
        return None if text is None else shlex.split(text)

    def command(self, full):
        """Return the line that a reader types, None where there is no such run."""
        text = self.full if full else self.quick
        return None if text is None else f"python {self.script} {text}".strip()

    def seeds(self, full):
        """Return the seeds of noise or, where only times come out, of made-up ratings."""
        found = re.search(r"--(?:size-)?seeds (\d+)", (self.full if full else self.quick) or "")
        return list(range(int(found[1]) if found else 1))


def _bench(name, paper, what, page, script, quick, full, **needs):
    return Entry(name, paper, what, page, f"benchmarks/{script}.py", quick, full, **needs)


ENTRIES = [
    # A paper's main claims beside ours, in one table each
    _bench(
        "reproduce-krichene",
        KRICHENE,
        "main claims: adaptive weights against sampling, and the epsilon of the noise",
        "reproductions.md",
        "reproduce",
        f"krichene --data {RATINGS} --epsilons 1 --seeds 1",
        f"krichene --data {RATINGS} --large --seeds 3",
    ),
    _bench(
        "reproduce-chien",
        CHIEN,
        "main claims: the loss by privacy, and the gain over private Frank-Wolfe",
        "reproductions.md",
        "reproduce",
        f"chien --data {RATINGS} --epsilons 10 --seeds 1",
        f"chien --data {RATINGS} --large --seeds 3",
    ),
    _bench(
        "reproduce-liu",
        LIU,
        "main claims: one draw at epsilon 250, its temperature, one rating, and the speed",
        "reproductions.md",
        "reproduce",
        f"liu --data {RATINGS} --seeds 1",
        f"liu --data {RATINGS} --seeds 3",
    ),
    _bench(
        "reproduce-mcsherry",
        MCSHERRY,
        "main claims: private kNN and SVD beside Cinematch, more users, and the sensitivities",
        "reproductions.md",
        "reproduce",
        f"mcsherry --data {RATINGS} --epsilons 4 --sizes 5000 20000 --seeds 1",
        f"mcsherry --data {RATINGS} --seeds 3",
    ),
    _bench(
        "reproduce-shin",
        SHIN,
        "main claims: the error falls with rounds of reports, and what comes back of a gradient",
        "reproductions.md",
        "reproduce",
        "shin --shape 14000 2700 --ratings 2000000 --rows 270 --seeds 1",
        "shin --seeds 1",
    ),
    # Krichene et al., and Chien et al., whose solver it refines
    _bench(
        "six-methods",
        KRICHENE,
        "RMSE of the six methods against epsilon, overall and by popularity (MovieLens 10M)",
        "six-methods.md",
        "bench_six_methods",
        f"--data {RATINGS} --epsilons 5 --seeds 1",
        f"--data {RATINGS} --seeds 3",
    ),
    _bench(
        "six-methods-10m",
        KRICHENE,
        "RMSE of the six methods, on made-up ratings of the size of MovieLens 10M",
        "six-methods.md",
        "bench_six_methods",
        None,
        "--data synth10m --seeds 1",
    ),
    _bench(
        "multi-task-synthetic",
        KRICHENE,
        "figures 3 and 4: the exponent of the weights and rare tasks, on made-up tasks",
        "multi-task.md",
        "bench_multi_task",
        "--epsilons-synthetic 1 --seeds 1",
        "--seeds 10",
    ),
    _bench(
        "multi-task-movielens",
        KRICHENE,
        "figures 3 and 4: the exponent of the weights and rare items",
        "multi-task.md",
        "bench_multi_task",
        f"--data {RATINGS} --no-synthetic --epsilons-ratings 1 --seeds 1",
        f"--data {RATINGS} --no-synthetic --seeds 10",
    ),
    _bench(
        "clicks-movielens",
        KRICHENE,
        "Recall@20 against epsilon (MovieLens 20M), on the clicks of MovieLens 1M",
        "clicks.md",
        "bench_clicks",
        f"--data {RATINGS} --epsilons 5 --seeds 1",
        f"--data {RATINGS} --seeds 5",
    ),
    _bench(
        "clicks-synthetic",
        KRICHENE,
        "Recall@20 against epsilon, on made-up clicks",
        "clicks.md",
        "bench_clicks",
        "--synthetic --epsilons 5 --seeds 1",
        "--synthetic --seeds 5",
    ),
    _bench(
        "lists",
        OURS,
        "Do lists from ratings hold what people like, and what do they cost the RMSE?",
        "lists.md",
        "bench_lists",
        f"--data {RATINGS} --epsilons 4 --seeds 1",
        f"--data {RATINGS} --seeds 3",
    ),
    _bench(
        "head",
        OURS,
        "When is the matrix of choices worth more than better counts?",
        "clicks.md",
        "bench_head",
        f"--data {RATINGS} --cuts 3 --seeds 1",
        f"--data {RATINGS} --seeds 2",
    ),
    _bench(
        "refresh",
        OURS,
        "A year of refreshes beside refits, a schedule and doing nothing",
        "refresh.md",
        "bench_refresh",
        f"--data {RATINGS} --months 4 --model DPItemMeans --seeds 1",
        f"--data {RATINGS} --seeds 1",
    ),
    _bench(
        "item-features",
        OURS,
        "Public features of items: their gain, useless ones, and items that nobody has rated",
        "item-features.md",
        "bench_item_features",
        f"--data {RATINGS} --parts cold --seeds 1",
        f"--data {RATINGS} --seeds 3",
    ),
    _bench(
        "clicks-20m",
        KRICHENE,
        "Recall@20 against epsilon, on made-up clicks of about the size of MovieLens 20M",
        "clicks.md",
        "bench_clicks",
        None,
        "--synthetic 20m --epsilons 1 5 20 --seeds 1 --held-out 2000",
    ),
    _bench(
        "qualitative",
        KRICHENE,
        "nearest films of popular and of rare films, top-20 lists beside those without privacy",
        "qualitative.md",
        "bench_neighbours",
        f"--data {RATINGS} --seeds 1",
        f"--data {RATINGS} --seeds 5",
    ),
    _bench(
        "recipe",
        KRICHENE,
        "the published settings for MovieLens 10M, and what their noise is worth",
        "peers.md",
        "bench_peers",
        f"--data {RATINGS} --tables recipe --seeds 1",
        f"--data {RATINGS} --tables recipe --seeds 5",
    ),
    _bench(
        "utility",
        CHIEN,
        "what private least squares lose (announced: about 6 % up to epsilon 10)",
        "utility.md",
        "bench_utility",
        f"--data {RATINGS} --no-synthetic --fresh-splits --epsilons 0.5 1 4 8 20 inf "
        "--methods DPItemMeans pooled --seeds 1",
        f"--data {RATINGS} --no-synthetic --seeds 5",
    ),
    # McSherry and Mironov
    _bench(
        "covariance-figure-1",
        MCSHERRY,
        "figure 1: RMSE against the privacy of one rating, and of one user",
        "covariance.md",
        "bench_covariance",
        f"curve --data {RATINGS} --fresh-splits --epsilons 1 4 --seeds 1 --minor-seeds 1 "
        "--n-jobs 1",
        f"curve --data {RATINGS} --seeds 5",
    ),
    _bench(
        "covariance-figure-2",
        MCSHERRY,
        "figure 2: the loss against the number of users",
        "covariance.md",
        "bench_covariance",
        "size --sizes 5000 20000 80000 --size-seeds 1 --n-jobs 1",
        "size --size-seeds 3",
    ),
    # Liu, Wang and Smola: privacy
    _bench(
        "sampler-figure-4",
        LIU,
        "figure 4: how large a table of normals must be",
        "sampler.md",
        "bench_noise_table",
        "--powers 4 8 12 16 --rounds 60 --n-draws 30 --seeds 1 --n-jobs 1",
        f"--data {RATINGS} --seeds 3",
    ),
    _bench(
        "sampler-figure-6",
        LIU,
        "figure 6: Langevin dynamics and SGD, round by round",
        "sampler.md",
        "bench_langevin_and_sgd",
        "--rounds 100 --burn-in 40 --n-jobs 1",
        f"--data {RATINGS}",
    ),
    _bench(
        "sampler-figure-7",
        LIU,
        "figure 7: RMSE against epsilon",
        "sampler.md",
        "bench_privacy_accuracy",
        "--epsilons 1 4 16 --draw-epsilons 16 256 1250 --n-jobs 1",
        f"--data {RATINGS}",
    ),
    # Liu, Wang and Smola: speed
    _bench(
        "sgd-table-2",
        LIU,
        "table 2: cache misses, simulated",
        "sgd.md",
        "cache_misses",
        "--sizes 256 --batches 1",
        "--batches 1",
        program=("valgrind",),
    ),
    _bench(
        "sgd-throughput",
        LIU,
        "ratings a second (8.5 million at k = 1024 on 32 virtual processors)",
        "sgd.md",
        "bench_sgd",
        "throughput --shapes S --sizes 16,128,1024 --threads 1 --repeats 2 --budget-seconds 4",
        "throughput",
        packages=("cornac", "surprise", "implicit"),
    ),
    # Shin et al.
    _bench(
        "local-figure-9",
        SHIN,
        "figure 9: RMSE against the number of rounds (MovieLens 20M), on made-up ratings",
        "local-figure9.md",
        "bench_local_figure9",
        f"figure {SMALL} --rounds 1 5 20",
        "figure",
    ),
    _bench(
        "local-figure-9-steps",
        SHIN,
        "figure 9 with larger steps of the items",
        "local-figure9.md",
        "bench_local_figure9",
        f"steps {SMALL} --rounds 5 20",
        "steps --rounds 5 20 50",
    ),
    _bench(
        "local-figure-9-time",
        SHIN,
        "figure 9: seconds of a round",
        "local-figure9.md",
        "bench_local_figure9",
        f"time {SMALL}",
        "time",
    ),
    # Questions of ours: accuracy
    _bench(
        "peers",
        OURS,
        "How good are other packages' predictions under the same protocol?",
        "peers.md",
        "bench_peers",
        f"--data {RATINGS} --tables ratings item-means --seeds 1",
        f"--data {RATINGS} --tables ratings item-means --seeds 5",
    ),
    _bench(
        "peers-clicks",
        OURS,
        "How good are other packages' recommendations from clicks under the same protocol?",
        "peers.md",
        "bench_peers",
        None,
        f"--data {RATINGS} --tables clicks --seeds 5",
    ),
    _bench(
        "utility-synthetic",
        OURS,
        "Is the private model ever worse than item means alone, on small made-up sets?",
        "utility.md",
        "bench_utility",
        "--epsilons 0.1 1 8 --seeds 1",
        "--seeds 8",
    ),
    _bench(
        "shapes",
        OURS,
        "Does more budget ever hurt, on ratings of many shapes?",
        "shapes.md",
        "bench_shapes",
        "--sets 500 factors --epsilons 1 20 inf --seeds 1",
        f"--data {RATINGS} --seeds 2",
    ),
    _bench(
        "utility-10m",
        OURS,
        "How good is it on made-up ratings of the size of MovieLens 10M?",
        "utility.md",
        "bench_utility",
        None,
        "--data synth10m --epsilons 1 4 8 20 inf --seeds 2 --n-jobs 2",
    ),
    _bench(
        "utility-jokes",
        OURS,
        "How good is it on a small dense catalogue?",
        "utility.md",
        "bench_utility",
        "--data jokes --epsilons 1 8 --seeds 1",
        "--data jokes --seeds 2 --n-jobs 2",
    ),
    _bench(
        "ablation",
        OURS,
        "What is each choice of the least squares worth?",
        "ablation.md",
        "bench_ablation",
        f"--data {RATINGS} --epsilons 4 --seeds 1",
        f"--data {RATINGS} --seeds 3",
    ),
    _bench(
        "sampler-every-step",
        OURS,
        "How good is the sampler that is private at every step?",
        "sampler.md",
        "bench_sampler",
        f"--data {RATINGS} --parts every-step --fresh-splits --epsilons 1 4 16 --seeds 1 "
        "--n-jobs 1",
        f"--data {RATINGS} --parts every-step speed --seeds 5",
    ),
    _bench(
        "sampler-posterior",
        OURS,
        "How good is one draw from the posterior?",
        "sampler.md",
        "bench_sampler",
        f"--data {RATINGS} --parts posterior --fresh-splits --posterior-epsilons 256 --seeds 1 "
        "--n-jobs 1",
        f"--data {RATINGS} --parts posterior --fresh-splits --seeds 5",
    ),
    _bench(
        "local-curve",
        OURS,
        "How good are recommendations without a trusted server?",
        "local.md",
        "bench_local",
        f"curve --data {RATINGS} --no-synthetic --epsilons 1 4 --seeds 1 --n-jobs 1",
        f"curve --data {RATINGS} --seeds 3",
    ),
    _bench(
        "linkage",
        OURS,
        "Does a new release show who joined, and what she hid?",
        "../attacks.md",
        "bench_linkage",
        "--games 10 --epsilons 1 20 --n-jobs 1",
        "--games 200",
    ),
    _bench(
        "spammer",
        OURS,
        "How far can a few users steer the model?",
        "../attacks.md",
        "bench_spammer",
        "--seeds 4 --n-jobs 1",
        "--seeds 40",
    ),
    # Questions of ours: speed and cost
    _bench(
        "sgd-time-to-rmse",
        OURS,
        "How long does SGD take to the peers' best error?",
        "sgd.md",
        "bench_sgd",
        "time-to-rmse --shapes S --sizes 16 --threads 1 --repeats 1 --most-epochs 20 "
        "--slacks 0.004 --budget-seconds 8",
        "time-to-rmse",
        packages=("cornac", "surprise"),
    ),
    _bench(
        "sgd-memory",
        OURS,
        "How much memory does SGD take?",
        "sgd.md",
        "bench_sgd",
        "memory --shapes S --sizes 32 --threads 1",
        "memory",
        packages=("cornac", "surprise", "implicit"),
    ),
    _bench(
        "sgd-disk",
        OURS,
        "How fast is SGD from disk, and does it survive a kill?",
        "sgd.md",
        "bench_sgd_disk",
        "--shape S --rounds 6 --repeats 1",
        "--rounds 5",
    ),
    _bench(
        "roofline",
        OURS,
        "What does the machine allow?",
        "sgd.md",
        "roofline",
        "--threads 1 --sizes 16,128",
        "",
    ),
    _bench(
        "sgld",
        OURS,
        "How fast are Langevin rounds beside rounds of SGD?",
        "sampler.md",
        "bench_sgld",
        "--shapes S --sizes 16,128 --repeats 3",
        f"--data {RATINGS}",
    ),
    _bench(
        "gibbs",
        OURS,
        "How fast are Gibbs sweeps beside myfm?",
        "sampler.md",
        "bench_gibbs",
        "--threads 1 --repeats 2 --sweeps 3",
        f"--data {RATINGS}",
        packages=("myfm",),
    ),
    _bench(
        "covariance-scale",
        OURS,
        "What does a covariance of the size of MovieLens 20M cost?",
        "covariance.md",
        "bench_covariance",
        None,
        f"scale --data {RATINGS}",
    ),
    _bench(
        "local-scale",
        OURS,
        "What does a simulation of all devices of MovieLens 20M cost?",
        "local.md",
        "bench_local",
        None,
        "scale",
    ),
    _bench(
        "fit",
        OURS,
        "How long does a large private fit take?",
        "speed.md",
        "bench_fit",
        "--users 20000 --items 3000 --ratings 2000000 --rank 16 --rounds 0 --n-jobs 1",
        "--rank 16 --rounds 0",
        packages=("implicit",),
    ),
    _bench(
        "first-minute",
        OURS,
        "How long do a first model, an answer and a command take in a new process?",
        "speed.md",
        "bench_first_minute",
        "--repeats 1",
        "",
    ),
    _bench(
        "als",
        OURS,
        "How long does one iteration of least squares take beside implicit?",
        "speed.md",
        "bench_als",
        "--threads 1 --sizes 16,64 --repeats 3",
        "",
        packages=("implicit",),
    ),
    _bench(
        "noise",
        OURS,
        "How fast is exact noise?",
        "speed.md",
        "bench_noise",
        "--items 5000 --threads 1 --ratings 2000000",
        "",
    ),
    _bench(
        "recommend",
        OURS,
        "How fast are recommendations beside implicit?",
        "speed.md",
        "bench_recommend",
        "--threads 1 --users 20000 --repeats 3",
        "",
        packages=("implicit",),
    ),
    _bench(
        "labels",
        OURS,
        "What do names cost: one user's answer by ids, a web service, the memory of ids?",
        "speed.md",
        "bench_labels",
        "--users 1000000",
        "",
    ),
    _bench(
        "distributed",
        OURS,
        "What does a fit over processes cost beside threads?",
        "distributed.md",
        "bench_distributed",
        "--users 20000 --items 3000 --ratings 2000000 --seeded",
        "--repeats 2 --seeded",
        packages=("distributed", "pyarrow"),
    ),
    _bench(
        "distributed-coordinator",
        OURS,
        "What does the coordinator take?",
        "distributed.md",
        "bench_distributed",
        "--coordinator",
        "--coordinator",
        packages=("distributed",),
    ),
    _bench(
        "ledger",
        OURS,
        "What does a charge to a ledger cost?",
        "ledger.md",
        "bench_ledger",
        "--entries 0 1000 --charges 60 --processes 4 --per-process 10 --repeats 2 "
        "--people 2000 --known 10000",
        "",
    ),
    _bench(
        "search-price",
        OURS,
        "What may each trial of a private search spend?",
        "ledger.md",
        "bench_search_price",
        "",
        "",
    ),
    _bench(
        "audit-times",
        OURS,
        "How long does an audit take?",
        "audit.md",
        "bench_audit",
        "times --only DPItemMeans 'LocalDPGDDR, sampled sign' 'LocalDPGDDR, Algorithm 2'",
        f"times --data {RATINGS}",
    ),
    _bench(
        "audit-alarms",
        OURS,
        "How often does an audit blame an honest estimator?",
        "audit.md",
        "bench_audit",
        "alarms --audits 12",
        "alarms --audits 480",
    ),
    _bench(
        "browser",
        OURS,
        "How long does a change take on the page in the browser?",
        "browser.md",
        "bench_browser",
        "--items 5000 --ratings 40",
        "",
        packages=("pytest", "playwright"),  # its helpers are those of the tests
        program=("chromium", "chromium-browser", "google-chrome"),
    ),
]
