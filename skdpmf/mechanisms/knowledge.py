"""What earlier fits have released, in the form in which the next fit starts from it.

A refresh is a fit on the rows of one cohort of people, and starts from released values of earlier
fits. It is as private as a fit without them:

**Theorem.** Fix what was released before, however it was chosen. For every row of the refresh each
of its releases has the sensitivity that the plan states, and the refresh is (epsilon, delta)-DP of
its budget.

*Proof.* A release is a sum over the cohort's users, each of whose terms
`skdpmf.privacy.clipped_sums` clips to the plan's bound by itself, whatever numbers (averages,
factors, weights) the map that computed the terms was given. Knowledge is such numbers: it follows
from earlier releases alone, and is the same for neighbours once these are fixed. So its value
changes which vector a user contributes, and not how long it may be. All that is made of the
released sums afterwards is post-processing of them and of knowledge. QED

**Over all refreshes.** Take a person whose rows are in the refreshes of a set S. Given all releases
before it, refresh t has the same law for both neighbours where t is not in S, and is mu_t-GDP where
it is. Plans, cohorts of others and knowledge may depend on earlier releases. By fully adaptive
composition the whole sequence is mu-GDP to this person, mu^2 >= sum of mu_t^2 over S on every path;
with one refresh a person that is the largest budget of a refresh (for pure epsilon: the sum of the
epsilons over S). That S and the sum stay within a limit is counted by a ledger by person
(`skdpmf.books.ledger_cohorts`), or assumed.

**Unit "rating".** `DPItemMeans` sums terms of single ratings, none of which depends on knowledge or
on another rating. So the theorem holds with "rating" for "row", and S has the refreshes that hold
the rating. That protects each rating and not a person, whose ratings may be in every refresh;
neighbours by "replace" exchange ratings of one refresh. No ledger counts ratings: a fit is charged
to all, as if each refresh held the same ratings.

*Noise* must be new in every refresh, or the difference of two months would show exact sums: fresh
keys are, and the key of a seeded refresh is a hash of the knowledge as well.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Knowledge(NamedTuple):
    """Released sums of all fits so far, in quarter ranges; sums of independent noise add up.

    Every array follows from released values and public ones.
    """

    counts: NDArray[np.float64]  # (n_items,) weighted numbers of ratings, noisy
    exposure: NDArray[np.float64]  # (n_items,) users with ratings while the item was there
    precision: NDArray[np.float64]  # (n_items,) of averages by noise alone: sums of 1 / variance
    shift: NDArray[np.float64]  # (n_items,) sums of mean / variance; unit "rating": of ratings
    scalars: NDArray[np.float64]  # variance of a count's noise; precision and shift of the level

    @property
    def count_variance(self) -> float:
        """Variance of the noise on counts."""
        return float(self.scalars[0])

    @property
    def n_items(self) -> int:
        """Items in the catalogue."""
        return len(self.counts)

    def with_items(self, n_new: int) -> "Knowledge":
        """Return it with items appended of which nothing is known."""
        grown = (np.concatenate((part, np.zeros(n_new))) for part in self[:-1])
        counts, exposure, precision, shift = grown
        return Knowledge(counts, exposure, precision, shift, self.scalars)

    def fits(self, n_items: int) -> bool:
        """Whether it is of so many items, as a file should say."""
        shapes = *((n_items,) for _ in self[:-1]), (3,)
        least = self.exposure, self.precision, self.scalars[:2]
        return tuple(part.shape for part in self) == shapes and all((p >= 0).all() for p in least)


class PublicModel(NamedTuple):
    """What a model of public people says of a fit's items, in quarter ranges."""

    known: Knowledge  # of exact sums, with a precision of 0 for items that the model lacks
    means: NDArray[np.float64]  # (n_items,), b
    factors: NDArray[np.float64]  # (n_items, k), for users' vectors of second moment I
    doubts: NDArray[np.float64]  # (n_items,), mean variance of an item's factors
    ridge: NDArray[np.float64]  # (d, d), the last k of the factors
    prior: NDArray[np.float64]  # (d + 1, d), of users as of `pooled`
