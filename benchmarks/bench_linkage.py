"""Who joined, and what did she hide? Linkage without and with privacy.

docs/attacks.md tells the game, its two attacks and the bound on any attack. Eve has 50 suspects, of
whom one has joined between two releases and has in secret rated one of 50 rare films highest.
Against noise she averages ten fits without the newcomer. The table has the share of right answers,
in percent, with its standard error, of the better attack of the two:

    python benchmarks/bench_linkage.py
    python benchmarks/bench_linkage.py --data ml-1m.parquet --games 20

It takes about 20 seconds with made-up ratings.
"""

import math
from functools import partial

import numpy as np
import scipy.sparse as sp
from harness import SGD_SETTINGS, note, parser, print_head, print_row
from ratings import budget_of, training_of
from scipy.stats import norm

from skdpmf import AdaptiveWeightALS, CacheSGDFactorizer, DPItemMeans

HIGHEST = 5.0
N_REFERENCES = 10  # private fits that Eve averages to know the model without the newcomer
QUESTIONS = ("who, few known", "who, all known", "which film")
PARSER = parser(
    __doc__,
    data=None,
    shape=(1000, 200),
    n_components=8,
    n_jobs=1,
    choices=50,  # suspects, and films
    known=8,  # ratings on a public profile
    games=30,  # for each model
    epsilons=[0.5, 1.0, 4.0, 20.0],
)


class Game:
    """The people, what Eve knows of the suspects, and who joins with which film in each game."""

    def __init__(self, X, n_choices, n_known, n_games):
        rng = np.random.default_rng(0)
        counts = np.diff(X.indptr)
        eligible = np.flatnonzero((counts >= n_known) & (counts <= X.shape[1] - n_choices))
        suspects = rng.choice(eligible, n_choices, replace=False)
        self.suspects = X[suspects]
        self.rest = X[np.setdiff1d(np.arange(X.shape[0]), suspects)]
        self.n_ratings = np.bincount(self.rest.indices, minlength=X.shape[1])
        self.profiles = [self._profiles(n, rng) for n in (n_known, None)]
        by_rarity = np.argsort(self.n_ratings, kind="stable")
        self.rounds = []
        for who in rng.integers(n_choices, size=n_games):
            films = by_rarity[~np.isin(by_rarity, self.suspects[[who]].indices)][:n_choices]
            self.rounds.append((who, films, rng.integers(n_choices)))

    def _profiles(self, n, rng):
        """What Eve knows: n random ratings of each suspect; None: all, but not the hidden one."""
        matrix = sp.lil_array(self.suspects.shape)
        for i in range(matrix.shape[0]):
            row = self.suspects[[i]]
            chosen = rng.permutation(row.nnz)[:n]
            matrix[i, row.indices[chosen]] = row.data[chosen]
        return matrix.tocsr()

    def ratings(self, who=None, film=None):
        """All ratings, the newcomer's in the last row."""
        row = sp.lil_array((1, self.rest.shape[1]))
        if who is not None:
            row[[0]] = self.suspects[[who]]
            row[0, film] = HIGHEST
        return sp.vstack((self.rest, row), format="csr")

    def play(self, make, is_private):
        """Return which answers were right: attacks x questions x games."""
        n_references = N_REFERENCES if is_private else 1
        eve = Eve(self, [make(seed).fit(self.ratings()) for seed in range(n_references)])
        right = []
        for seed, (who, films, film) in enumerate(self.rounds):
            model = make(seed).fit(self.ratings(who, films[film]))
            answers = eve.by_items(model), eve.by_predictions(model, who)
            right.append(
                [
                    (few == who, everything == who, np.argmax(scores[films]) == film)
                    for few, everything, scores in answers
                ]
            )
        return np.moveaxis(right, 0, -1)


class Eve:
    """Two attacks; each names two suspects, by few and by all known ratings, and scores films."""

    def __init__(self, game, before):
        self.game = game
        self.profiles = game.profiles
        self.predicted = [
            np.mean([m.decision_function(p) for m in before], 0) for p in self.profiles
        ]
        if hasattr(before[0], "item_means_"):
            self.item_means = np.mean([model.item_means_ for model in before], axis=0)
            self.directions = [self._direction(profile) for profile in self.profiles]

    def _direction(self, profile):
        """What each suspect would bring, of length 1: ratings less item means and own mean."""
        matrix = profile.tocoo()
        rest = matrix.data - self.item_means[matrix.col]
        own = np.bincount(matrix.row, rest) / (np.bincount(matrix.row) + 10.0)
        brought = np.zeros(matrix.shape)
        brought[matrix.row, matrix.col] = rest - own[matrix.row]
        return brought / np.linalg.norm(brought, axis=1, keepdims=True)

    def by_items(self, model):
        """Read what was added to the items' ratings, or, where it is kept, the newcomer's row."""
        if isinstance(model, CacheSGDFactorizer):
            row = model.user_factors_[-1] @ model.components_ + model.user_biases_[-1]
            seen = row + model.item_biases_ + model.intercept_
            distances = [
                np.sum((model.decision_function(profile) - seen) ** 2, axis=1)
                for profile in self.profiles
            ]
            return *(np.argmin(d) for d in distances), row
        added = (model.item_means_ - self.item_means) * (self.game.n_ratings + 1.0)
        return *(np.argmax(direction @ added) for direction in self.directions), added

    def by_predictions(self, model, who):
        """See whose known ratings the new model predicts better than the old one did."""
        suspects, moved = [], []
        for profile, old in zip(self.profiles, self.predicted, strict=True):
            new, ratings = model.decision_function(profile), profile.toarray()
            gains = ((ratings - old) ** 2 - (ratings - new) ** 2) * (ratings != 0.0)
            suspects.append(np.argmax(gains.sum(axis=1) / np.diff(profile.indptr)))
            moved.append(new - old)
        return *suspects, moved[1][who] * (self.game.n_ratings + 1.0)


def bound(epsilon, n_choices):
    """Return what no attack exceeds."""
    if epsilon == math.inf:
        return 1.0
    return norm.cdf(norm.ppf(1.0 / n_choices) + budget_of(epsilon).mu)


def share(right):
    """Return a share and its standard error, which is above 0 even if all answers are right."""
    smoothed = (right.sum() + 1.0) / (right.size + 2.0)
    return right.mean(), math.sqrt(smoothed * (1.0 - smoothed) / right.size)


def main(arguments=None):
    """Attack and print."""
    options = PARSER.parse_args(arguments)
    game = Game(training_of(options), options.choices, options.known, options.games)

    settings = {"n_components": options.n_components, "n_jobs": options.n_jobs}
    makers = {
        # always one seed, which Eve knows: with others her second attack finds nothing
        "CacheSGDFactorizer": lambda budget, seed: CacheSGDFactorizer(
            options.n_components, random_state=0, **SGD_SETTINGS
        ),
        "AdaptiveWeightALS": lambda budget, seed: AdaptiveWeightALS(
            budget, random_state=seed, **settings
        ),
        "DPItemMeans": lambda budget, seed: DPItemMeans(
            budget, random_state=seed, n_jobs=options.n_jobs
        ),
    }
    print_head("model", "epsilon", *QUESTIONS, "bound")
    for name, make in makers.items():
        epsilons = sorted(options.epsilons, reverse=True) * (name != "CacheSGDFactorizer")
        for epsilon in (math.inf, *epsilons):
            right = game.play(partial(make, budget_of(epsilon)), epsilon < math.inf)
            shares = [max(map(share, attacks)) for attacks in right.swapaxes(0, 1)]
            note(f"{name}, epsilon {epsilon:g}: {shares[1][0]:.0%}, {shares[2][0]:.0%}")
            shown = "none" if epsilon == math.inf else f"{epsilon:g}"
            cells = (f"{100 * mean:.1f} ± {100 * error:.1f}" for mean, error in shares)
            print_row(name, shown, *cells, f"{100 * bound(epsilon, options.choices):.1f}")
    print_row("guessing", "", *(f"{100 / options.choices:.1f}" for _ in QUESTIONS), "")


if __name__ == "__main__":
    main()
