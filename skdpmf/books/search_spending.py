r"""What a private search with Gaussian noise costs a ledger of the rule "zcdp".

(A pure search is one pure release to every rule. To "basic" it is its own epsilon and delta.)

**One order.** A limit rho of "zcdp" gives (epsilon, delta) by the Renyi divergence of a single
order: the alpha at which delta of Canonne, Kamath and Steinke, Proposition 12, is least,

.. math:: (1 + 2a)\rho + \ln\frac{a}{1 + a} = \epsilon, \qquad a = \alpha - 1.

The limit therefore also admits mechanisms that are no zCDP: what is needed is only that the
divergences of order alpha, in both directions, sum up to at most alpha rho on every path, however
the mechanisms are chosen (Feldman and Zrnic: a Renyi filter of a fixed order). A Gaussian plan has
alpha mu^2 / 2, a pure one at most alpha eps^2 / 2, hence the charges of the rule; a search has
what `renyi_selection_divergence` says at alpha, and is charged that divided by alpha. All entries
must be charged at one order: `search_order` is a function of epsilon and rho as the file has them,
the same to the last bit on every machine.

**The sampler.** Let a search's trials (and its second fit) noise at most N values each, from laws
Q near the ideal P outside of B, as in `_ledger_rules`, where also Q*, h, mu_eta, T and n are
defined. m = E[K] is the mean number of trials, plus 1 with a second fit. It is charged

.. math:: \alpha \rho_s = \epsilon'(\alpha; \mu + 2\mu_\eta\sqrt{N}, \mu_2 + 2\mu_\eta\sqrt{N})
          + \frac{2\alpha - 1}{\alpha - 1} R, \qquad
          v = \left\lceil\frac{m (NT + t_N)}{2T}\right\rceil \text{ values of the } n,

with :math:`t_N = NT + \varphi(z)\mu\sqrt{N} + \Phi(z + \mu)`, and R the ratio of `SelectionSlack`
for N, eta = 2T and tau = T. *Claim:* a ledger that admits searches so is (epsilon, delta)-DP too.

*Proof.* It is that of `_ledger_rules` with these changes. Notation: C is a search as it is sampled,
D the same with all draws, in all trials, from Q*. C', D' are those on the neighbour. G are the
outcomes of a search for which no noise value of what is *released* (the best trial, the second fit)
is in B, G' those from the neighbour's statistics.

1. A trial of D is (mu + 2 mu_eta sqrt N)-GDP (step 1 there), and K is independent of it: the
   divergence of D at alpha is at most the first term, whatever the base mechanism, in both
   directions. No bound on K is used.
2. Outside of B, Q/Q* = (1 - q) / (1 - p) is within e^{+-2T}; B has mass T at most under both. So
   Q is to Q* what a sampler is to the ideal law in `SelectionSlack` with eta = 2T and tau = T, and
   by the proof there, which needs no Gaussian law for it, C <= e^R D on G and D' <= e^R C' on G'.
   Let M be C restricted to G and G', a measure of mass below 1, M' the same of C':

   .. math:: \int M^\alpha M'^{1-\alpha} \le e^{\alpha R + (\alpha-1) R} \int D^\alpha D'^{1-\alpha}
             \le e^{(\alpha - 1) \alpha \rho_s}.

   Put M in the place of the search in the D of step 1 there. Filters and Proposition 12
   only integrate such terms, and hold for measures of mass below 1: for all x, y > 0

   .. math:: x - e^\epsilon y \le \frac{(1 - 1/\alpha)^\alpha}{\alpha - 1}
             e^{-(\alpha-1)\epsilon} x^\alpha y^{1-\alpha}.

   So D(S) <= e^epsilon D'(S) + delta_0.
3. Step 2 there is unchanged if A, too, has C in the place of the search: on T = S and G and G',
   it and M are the same.
4. In step 3 there, what a search adds to A(not G or not G') is the probability that C is outside
   of its G or G'. The best trial is one of K: this is at most m times that of one run, hence
   m (NT + e^h t_N) as there. By the choice of v it is at most e^h 2vT, and what n - v values leave
   of nT + t is at least 2vT.
5. In step 4 there, only the plans' draws are replaced: A already samples searches as the code does.
   QED.

With K = 0 (Poisson) what is released has one law on all data, and is in G and G' by definition.

Sources: V. Feldman, T. Zrnic, "Individual privacy accounting via a Renyi filter", NeurIPS 2021;
J. Whitehouse et al., "Fully-adaptive composition in differential privacy", ICML 2023; N. Papernot,
T. Steinke, "Hyperparameter tuning with Renyi differential privacy", ICLR 2022.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from decimal import Context, Decimal, localcontext
from fractions import Fraction
from functools import lru_cache
from typing import Any, NamedTuple

from skdpmf.mechanisms.private_search.best_of_runs import (
    MOST_VALUES,
    SelectionSlack,
    renyi_selection_divergence,
    selection_loss,
)
from skdpmf.mechanisms.private_search.number_of_trials import RandomTrials
from skdpmf.privacy.accounting import SamplerSlack, bisect, pure_epsilon_to_mu

__all__ = ["SearchSpending", "search_order"]

_FARTHEST = 2.0**60


class SearchSpending(NamedTuple):
    """What of a search with Gaussian noise matters for the account; JSON keeps it exactly."""

    run: float  # Gaussian DP parameter of a trial
    extra: float  # and of the second fit
    shape: float  # of the number of trials, as the mean
    mean: float
    n_values: int  # noised by a trial, or the second fit, at most
    eta: float  # of their sampler, at most, as tau
    tau: float

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> SearchSpending:
        """Return what `to_dict` wrote."""
        return cls(**{**plain, "shape": float(plain["shape"])})

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON can hold it."""
        return {**self._asdict(), "shape": "inf" if math.isinf(self.shape) else self.shape}

    @property
    def trials(self) -> RandomTrials:
        """The law of the number of trials."""
        return RandomTrials(self.shape, self.mean)

    def scaled(self, factor: float) -> SearchSpending:
        """Return the same search at ``factor`` times its mu."""
        return self._replace(run=factor * self.run, extra=factor * self.extra)

    def epsilon(self, delta: float) -> float:
        """Return the epsilon of the search alone, at this delta, rounded up."""
        slack = SelectionSlack(MOST_VALUES)
        loss = selection_loss(self.run, delta, self.trials, extra_mu=self.extra, slack=slack)
        return loss.epsilon

    def rho(self, order: float) -> float:
        """Return what it is charged at an order, rounded up."""
        sampler = 2.0 * pure_epsilon_to_mu(self.eta + 2.0 * self.tau) * math.sqrt(self.n_values)
        sampler *= 1.0 + 1e-9
        followed = self.extra > 0.0
        extra = self.extra + sampler if followed else 0.0
        trials = self.trials
        ratio = SelectionSlack(self.n_values, 2.0 * self.tau, self.tau).ratio(trials, followed)
        spent = renyi_selection_divergence(self.run + sampler, order, trials, extra_mu=extra)
        spent += (2.0 * order - 1.0) / (order - 1.0) * ratio
        return spent / order * (1.0 + 1e-12)

    @property
    def n_counted(self) -> int:
        """How many noised values it counts as."""
        runs = self.trials.mean_bound + (1.0 if self.extra > 0.0 else 0.0)
        tails = SamplerSlack(self.n_values, 0.0, self.tau).delta(math.hypot(self.run, self.extra))
        return math.ceil(runs * tails / (2.0 * self.tau) * (1.0 + 1e-6))


@lru_cache(maxsize=64)
def search_order(epsilon: float, rho: Fraction) -> float:
    """Return the order of a limit; in decimal arithmetic, the same to the bit everywhere."""
    with localcontext(Context(prec=50)):
        limit, most = Decimal(epsilon), Decimal(rho.numerator) / Decimal(rho.denominator)

        def below(a: float) -> bool:
            x = Decimal(a)
            return (1 + 2 * x) * most + (x / (1 + x)).ln() < limit

        low = high = 1.0
        while not below(low):
            low /= 2.0
        while below(high) and high < _FARTHEST:
            high *= 2.0
        return 1.0 + bisect(below, low, high)
