"""Budget of each trial of a private search, beside as many fits that are all released.

The prices come from `SearchPlan` alone, without ratings. A cell has the epsilon of one fit and, in
brackets, its mu over that of a single fit with the whole budget: with half the mu a fit has twice
the noise.

    python benchmarks/bench_search_price.py
"""

import argparse
import math

from skdpmf.books.search import SearchPlan
from skdpmf.mechanisms.private_search import RandomTrials
from skdpmf.privacy import PrivacyBudget
from skdpmf.privacy.accounting import gaussian_epsilon

LAWS = ("geometric", "logarithmic", "poisson")


def trial(budget, law, mean, score_share):
    """What the fit of one trial may spend."""
    trials = RandomTrials.named(law, mean)
    return SearchPlan.make(budget, trials, bound=2.0, score_share=score_share).fit_budget


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epsilons", type=float, nargs="+", default=[1.0, 4.0])
    parser.add_argument("--delta", type=float, default=1e-5)
    parser.add_argument("--trials", type=float, nargs="+", default=[1, 2, 4, 10, 30, 100])
    parser.add_argument("--score-share", type=float, default=0.1)
    options = parser.parse_args()
    print("| epsilon | trials | " + " | ".join(LAWS) + " | all released |")
    print("|" + " --- |" * (len(LAWS) + 3))
    for epsilon in options.epsilons:
        budget = PrivacyBudget(epsilon, options.delta)
        for mean in options.trials:
            cells = []
            for law in LAWS:
                if mean == 1 and law != "geometric":  # a mean of 1 is one trial, always
                    cells.append("")
                    continue
                part = trial(budget, law, mean, options.score_share)
                cells.append(f"{part.epsilon:.3f} ({part.mu / budget.mu:.2f})")
            share = math.sqrt((1.0 - options.score_share) / mean)
            plain = gaussian_epsilon(share * budget.mu, options.delta)
            cells.append(f"{plain:.3f} ({share:.2f})")
            print(f"| {epsilon:g} | {mean:g} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
