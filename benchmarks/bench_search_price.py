"""Budget of each trial of a private search, beside as many fits that are all released.

The prices come from `SearchPlan` alone, without ratings. A cell has the epsilon of one fit and, in
brackets, its mu over that of a single fit with the whole budget: with half the mu a fit has twice
the noise.

    python benchmarks/bench_search_price.py
"""

import math

from harness import parser, print_head, print_row

from skdpmf.books.search import SearchPlan
from skdpmf.mechanisms.private_search import RandomTrials
from skdpmf.privacy import PrivacyBudget
from skdpmf.privacy.accounting import gaussian_epsilon

PARSER = parser(
    __doc__,
    epsilons=[1.0, 4.0],
    delta=1e-5,
    trials=[1.0, 2.0, 4.0, 10.0, 30.0, 100.0],
    score_share=0.1,
)


def trial(budget, mean, score_share):
    """What the fit of one trial may spend."""
    trials = RandomTrials(mean)
    return SearchPlan.make(budget, trials, bound=2.0, score_share=score_share).fit_budget


def main(arguments=None):
    options = PARSER.parse_args(arguments)
    print_head("epsilon", "trials", "one of a search", "all released")
    for epsilon in options.epsilons:
        budget = PrivacyBudget(epsilon, options.delta)
        for mean in options.trials:
            part = trial(budget, mean, options.score_share)
            cells = [f"{part.epsilon:.3f} ({part.mu / budget.mu:.2f})"]
            share = math.sqrt((1.0 - options.score_share) / mean)
            plain = gaussian_epsilon(share * budget.mu, options.delta)
            cells.append(f"{plain:.3f} ({share:.2f})")
            print_row(f"{epsilon:g}", f"{mean:g}", *cells)


if __name__ == "__main__":
    main()
