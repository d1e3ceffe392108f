r"""The price of running a private mechanism a random number of times and releasing the best run.

**Mechanism.** Q is a private mechanism whose outputs have a total order (here: draw a candidate
independently of the data, fit it, score it with noise; the order is that of the noisy scores). K is
drawn from a public law, independently of the data, and stays secret. A runs Q independently K
times and releases the best output and nothing else. K known would cost K runs: a secret K of the
law below costs little more than one, however large its mean. Equal outputs may be distinguished by
an independent uniform X that each run draws beside its output; by symmetry the first of equal ones
is as good.

**Law of K.** Geometric: :math:`P[K=k] = \gamma (1-\gamma)^{k-1}` for k >= 1, of mean m = 1 / gamma.
(Other laws with such a price are in Papernot and Steinke; docs/decisions/0012-private-search.md
says why they are not offered.)

**Notation.** f(w) = E[w^K]; Q, Q' and A, A' are the laws on neighbours x, x'; q is the probability
under Q of an output below the released one (X making it continuous) and r = 1 - q of one above,
q', r' the same under Q'. Then A(y) = Q(y) E_X f'(q), with f'(q) proportional to
(gamma + (1 - gamma) r)^-2, and f'(q) <= f'(1) = m. As r and r' are probabilities of one event,
r' <= e^a r + delta_Q(a) for all a >= 0, delta_Q being the curve of Q: `gaussian_delta` for a mu-GDP
Q.

**Price.** f'(q) <= e^c f'(q') holds with c = 2 ln max(e^a, 1 + delta_Q(a) (m - 1)), for any a:
insert the bound of r' into gamma + (1 - gamma) r'. So for an event S

.. math:: A(S) - e^{\epsilon + c} A'(S) \le \sum_{y \in S} E_X f'(q) (Q(y) - e^\epsilon Q'(y))_+
          \le m\, \delta_Q(\epsilon):

A is (epsilon + c, m delta_Q(epsilon))-DP for every epsilon. This is Koskela, Redberg and Wang's
argument.

**Pure price.** If Q is epsilon-DP, r' <= e^epsilon r gives f'(q) <= e^(2 epsilon) f'(q'): A is
3 epsilon-DP (Liu and Talwar).

**Renyi divergence**, for a ledger. A mu-GDP Q is (lambda, lambda mu^2 / 2)-RDP for all lambda > 1,
and A has

.. math:: \epsilon'(\lambda) = \lambda\mu^2/2 + 2 \left((\hat\lambda - 1) \mu^2/2 +
          \ln(m) / \hat\lambda\right) + \ln(m) / (\lambda - 1)

for any lambda-hat >= 1 (Papernot and Steinke, Theorem 2); the best is sqrt(2 ln m) / mu, or 1. A
divergence grows with its order, so that a higher order's counts where it is less.

**Samplers** of finite precision, in a search with Gaussian noise; in a pure one they are part of
epsilon. The ideal A is (epsilon, delta)-DP. The code's runs draw N noise values each, near the
ideal's laws as `SamplerSlack` says: outside a set of mass tau, within a factor e^eta of it. Then
the code is (epsilon + 2 rho, e^rho (delta + m t') + m t)-DP, with x = N eta, t = N tau, t' the
t of `SamplerSlack` (the mass that the noise around x has in the bad set around x') and

.. math:: \rho = x + 2 (x + t (m - 1)).

*Proof.* Let Q, C be the laws of an ideal run and of one of the code's, G the outputs of a run
none of whose noise values, given x, is in the bad set, and r, s the probabilities under Q, C
of a better output. On G, C(y) <= e^x Q(y), and Q(y) <= e^x C(y); for any event E, C(E) <=
e^x Q(E) + t and Q(E) <= e^x C(E) + t, so gamma + (1 - gamma) s <= (e^x + t (m - 1))
(gamma + (1 - gamma) r), and the same with r and s exchanged. So f' at the two differs by at
most e^(rho - x), and the laws of the released output differ by at most e^rho on G, in both
directions. The released output is one of K runs', hence outside of G with probability m t at most
under the code, and outside of the G' of x' with probability m t' at most under the ideal. So for
an event S, as in `SamplerSlack`,

- code(S) <= m t + e^rho ideal(S and G), ideal(S and G) <= m t' + ideal(S and G'),
- ideal(S and G') <= e^epsilon ideal'(S and G') + delta, ideal'(S and G') <= e^rho code'(S).

QED. K itself is drawn exactly.

Both directions of add and remove are covered, as Q and Q' may change places everywhere.

**A ledger.** A pure search is one pure release to every rule, and to "basic" a search is its own
epsilon and delta. What follows is of the rule "zcdp" and searches with Gaussian noise.

**One order.** A limit rho of "zcdp" gives (epsilon, delta) by the Renyi divergence of a single
order: the alpha at which delta of Canonne, Kamath and Steinke, Proposition 12, is least,

.. math:: (1 + 2a)\rho + \ln\frac{a}{1 + a} = \epsilon, \qquad a = \alpha - 1.

The limit therefore also admits mechanisms that are no zCDP: what is needed is only that the
divergences of order alpha, in both directions, sum up to at most alpha rho on every path, however
the mechanisms are chosen (Feldman and Zrnic: a Renyi filter of a fixed order). A Gaussian plan has
alpha mu^2 / 2, a pure one at most alpha eps^2 / 2, hence the charges of the rule; a search has
what `renyi_divergence` says at alpha, and is charged that divided by alpha. All entries
must be charged at one order: `search_order` is a function of epsilon and rho as the file has them,
the same to the last bit on every machine.

**The sampler.** Let a search's trials noise at most N values each, from laws
Q near the ideal P outside of B, as in `skdpmf.books.ledger_rules`, where also Q*, h, mu_eta, T and
n are defined. m = E[K] is the mean number of trials. It is charged

.. math:: \alpha \rho_s = \epsilon'(\alpha; \mu + 2\mu_\eta\sqrt{N})
          + \frac{2\alpha - 1}{\alpha - 1} R, \qquad
          v = \left\lceil\frac{m (NT + t_N)}{2T}\right\rceil \text{ values of the } n,

with :math:`t_N = NT + \varphi(z)\mu\sqrt{N} + \Phi(z + \mu)`, and R the ratio of *Samplers*
for N, eta = 2T and tau = T. *Claim:* a ledger that admits searches so is (epsilon, delta)-DP too.

*Proof.* It is that of `skdpmf.books.ledger_rules` with these changes. Notation: C is a search as
it is sampled, D the same with all draws, in all trials, from Q*. C', D' are those on the neighbour.
G are the outcomes of a search for which no noise value of what is *released*, the best trial, is in
B, G' those from the neighbour's statistics.

1. A trial of D is (mu + 2 mu_eta sqrt N)-GDP (step 1 there), and K is independent of it: the
   divergence of D at alpha is at most the first term, whatever the base mechanism, in both
   directions. No bound on K is used.
2. Outside of B, Q/Q* = (1 - q) / (1 - p) is within e^{+-2T}; B has mass T at most under both. So
   Q is to Q* what a sampler is to the ideal law in *Samplers* with eta = 2T and tau = T, and
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

Sources: N. Papernot, T. Steinke, "Hyperparameter tuning with Renyi differential privacy", ICLR
2022; J. Liu, K. Talwar, "Private selection from private candidates", STOC 2019; A. Koskela,
R. Redberg, Y.-X. Wang, "Privacy profiles for private selection", ICML 2024; C. Canonne, G. Kamath,
T. Steinke, "The discrete Gaussian for differential privacy", NeurIPS 2020; V. Feldman, T. Zrnic,
"Individual privacy accounting via a Renyi filter", NeurIPS 2021; J. Whitehouse et al.,
"Fully-adaptive composition in differential privacy", ICML 2023.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import Context, Decimal, localcontext
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

from skdpmf.exceptions import require_that
from skdpmf.privacy import accounting as cost
from skdpmf.privacy.pure import pure_epsilon_to_mu
from skdpmf.privacy.sampler.cipher import require_key, stream_key
from skdpmf.privacy.sampler.grid import as_float
from skdpmf.privacy.sampler.laws import SAMPLER_ETA, SAMPLER_TAU

# Guard: what the price is proved for, and time
MOST_VALUES = 2**32  # noised values of one run, at most: a search is priced for so many
_PRICED = cost.SamplerSlack(MOST_VALUES, SAMPLER_ETA, SAMPLER_TAU)
_MOST_TRIALS = 1e6


@dataclass(frozen=True)
class RandomTrials:
    """The geometric law of the number of trials K; its mean is from 1, one trial, to 1e6."""

    mean: float

    def __post_init__(self) -> None:
        mean = as_float(self.mean)
        rule = "between 1 and 1e6, as the mean of their number: 10 is usual."
        require_that(1.0 <= mean <= _MOST_TRIALS, "n_trials", self.mean, rule)
        object.__setattr__(self, "mean", mean)

    @property
    def gamma(self) -> float:
        """Parameter of the law."""
        return 1.0 / self.mean

    @property
    def mean_bound(self) -> float:
        """E[K] of the law with this double as gamma, rounded up."""
        return 1.0 / self.gamma * (1.0 + 1e-12) if self.gamma < 1.0 else 1.0

    def draw(self, key: bytes) -> int:
        """Draw K, exactly, from a stream of its own of the search's key; it must stay secret.

        Each trial but the last is followed by another one with probability 1 - gamma, and gamma is
        a multiple of 2^-256, as is the uniform number that decides. It takes K steps.
        """
        limit, k = Fraction(self.gamma) * 2**256, 1
        while stream_integer(key, "trials", k) >= limit:
            k += 1
        return k


def stream_integer(key: bytes, name: str, index: int) -> int:
    """Return 256 random bits of a stream that serves the search itself: K, candidates, seeds."""
    words = stream_key(require_key(key), "selection", name, index)
    return int.from_bytes(words.astype("<u4").tobytes(), "little")


@lru_cache(maxsize=256)
def search_epsilon(
    run: float, delta: float, trials: RandomTrials, slack: cost.SamplerSlack = _PRICED
) -> float:
    """Return the epsilon that a search costs at a delta, rounded up.

    ``run`` is mu of one run, with delta = 0 its pure epsilon.
    """
    if math.isinf(run):
        return math.inf
    if delta == 0.0:
        return cost.float_up(Fraction(run) * (3 if trials.gamma < 1.0 else 1))
    ratio = slack_ratio(slack, trials)
    # SamplerSlack.delta is t + e^x t'
    target = delta * math.exp(-ratio) / cost.rounded_up(1.0)
    target -= cost.rounded_up(trials.mean_bound * slack.delta(run))
    epsilon = profile_epsilon(run, target, trials) if target > 0.0 else math.inf
    return cost.rounded_up(epsilon + 2.0 * ratio)


@lru_cache(maxsize=256)
def calibrated(
    epsilon: float, delta: float, trials: RandomTrials, slack: cost.SamplerSlack = _PRICED
) -> float:
    """Return the largest ``run`` whose `search_epsilon` is within (epsilon, delta)."""
    pure = delta == 0.0
    low, high, precision = (0.0, epsilon, 0.0) if pure else (1e-9 * min(epsilon, 1.0), 1.0, 1e-8)
    limit = epsilon if pure else epsilon * (1.0 - 1e-9)

    def met(run: float) -> bool:
        return search_epsilon(run, delta, trials, slack) <= limit

    rule = f"more than the slack of the sampler over {trials.mean:g} trials: raise the budget."
    require_that(met(low), "(epsilon, delta)", (epsilon, delta), rule)
    while met(high):
        low, high = high, 2.0 * high
    return cost.bisect(met, low, high, precision)


def profile_epsilon(mu: float, delta: float, trials: RandomTrials) -> float:
    """Return the epsilon of a search whose runs are mu-GDP, rounded up: *Price*."""
    share = min(delta / trials.mean_bound, math.nextafter(1.0, 0.0))
    epsilon, odds = cost.gaussian_epsilon(mu, share), trials.mean_bound - 1.0

    def met(a: float) -> bool:
        above = min(1.0, cost.gaussian_delta(mu, a) * (1.0 + cost.MARGIN))
        return a >= cost.rounded_up(math.log1p(above * odds))

    half = (
        cost.bisect(met, cost.rounded_up(2.0 * math.log(trials.mean_bound)), 0.0) if odds else 0.0
    )
    return cost.rounded_up(epsilon + cost.rounded_up(2.0 * half))


def renyi_divergence(mu: float, order: float, trials: RandomTrials) -> float:
    """Return epsilon'(order) of a search whose runs are mu-GDP, rounded up; in both directions."""
    log_mean = math.log(trials.mean_bound)

    def search(order: float) -> float:
        best = max(1.0, math.sqrt(2.0 * log_mean) / mu)  # lambda-hat
        constant = (best - 1.0) * mu * mu / 2.0 + log_mean / best
        return order * mu * mu / 2.0 + log_mean / (order - 1.0) + 2.0 * constant

    further = max(order, 1.0 + math.sqrt(2.0 * log_mean) / mu)
    # no term is negative, so that relative errors are all
    return cost.rounded_up(min(search(order), search(further)))


def slack_ratio(slack: cost.SamplerSlack, trials: RandomTrials) -> float:
    """Return rho of *Samplers* for a slack of one run, rounded up."""
    x, t = slack.n_values * slack.eta, slack.n_values * slack.tau
    return cost.rounded_up(x + 2.0 * (x + t * (trials.mean_bound - 1.0)))


class SearchSpending(NamedTuple):
    """What of a search with Gaussian noise matters for a ledger; JSON keeps it exactly."""

    run: float  # mu of a trial
    mean: float  # number of trials
    n_values: int  # noised by a trial, at most
    eta: float  # of their sampler, at most, as tau
    tau: float

    @property
    def trials(self) -> RandomTrials:
        """The law of the number of trials."""
        return RandomTrials(self.mean)

    def scaled(self, factor: float) -> SearchSpending:
        """Return the same search at ``factor`` times its mu."""
        return self._replace(run=factor * self.run)

    def epsilon(self, delta: float) -> float:
        """Return the epsilon of the search alone, at this delta, rounded up."""
        return search_epsilon(self.run, delta, self.trials)

    def rho(self, order: float) -> float:
        """Return what it is charged at an order, rounded up."""
        sampler = 2.0 * pure_epsilon_to_mu(self.eta + 2.0 * self.tau) * math.sqrt(self.n_values)
        slack = cost.SamplerSlack(self.n_values, 2.0 * self.tau, self.tau)
        spent = renyi_divergence(self.run + sampler * (1.0 + 1e-9), order, self.trials)
        spent += (2.0 * order - 1.0) / (order - 1.0) * slack_ratio(slack, self.trials)
        return spent / order * (1.0 + 1e-12)

    @property
    def n_counted(self) -> int:
        """How many noised values it counts as."""
        tails = cost.SamplerSlack(self.n_values, 0.0, self.tau).delta(self.run)
        return math.ceil(self.trials.mean_bound * tails / (2.0 * self.tau) * (1.0 + 1e-6))


@lru_cache(maxsize=64)
def search_order(epsilon: float, rho: Fraction) -> float:
    """Return the order of a limit; in decimal arithmetic, the same to the bit everywhere."""
    with localcontext(Context(prec=50)):
        limit, most = Decimal(epsilon), Decimal(rho.numerator) / Decimal(rho.denominator)

        def below(a: float) -> bool:
            x = Decimal(a)
            return (1 + 2 * x) * most + (x / (1 + x)).ln() < limit

        return 1.0 + cost.bisect(below, 5e-324, 2.0**60)
