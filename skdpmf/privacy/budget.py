"""The privacy that a user chooses: `PrivacyBudget`, how it is compared, and how it is split."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, overload

from skdpmf.exceptions import require_that
from skdpmf.privacy.accounting import gaussian_mu
from skdpmf.privacy.sampler.grid import as_float
from skdpmf.privacy.text import PrintedBudget

UNITS = ("user", "rating")
NEIGHBORS = ("add-remove", "replace")
_SHARE_TOLERANCE = 1e-9
_LEAST, _MOST = 1e-300, 1e15  # finite epsilons and positive deltas that the accounting is made for


class BudgetKeeper:
    """A ledger, as a budget knows it: `PrivacyLedger` is one."""


@dataclass(unsafe_hash=True, repr=False)
class PrivacyBudget(PrintedBudget):
    r"""An (epsilon, delta) differential privacy budget, what it protects, and against which change.

    A mechanism M is within the budget if for all neighbouring data sets x, x' and all events S

    .. math:: P[M(x) \in S] \le e^\epsilon P[M(x') \in S] + \delta.

    Neighbours differ in one unit; the number of rows (slots) is public:

    - unit "user", a row of X. "add-remove": one row emptied or filled. "replace": one row exchanged
      for any other, the empty one among them;
    - unit "rating", a cell of X with its value, or without. "add-remove": one rating added or
      removed. "replace": one rating exchanged for any other one: another value, another item, or
      another user's row. That is a removal and an addition, each in any cell.

    Every sensitivity to single ratings is derived from this. To "replace" it is at most twice that
    to "add-remove", by the triangle inequality; less takes a proof that covers ratings which move
    to other items and rows. It is never less than that to "add-remove": a later step may see but
    half of an exchange.

    It follows scikit-learn's conventions, so that ``budget__epsilon`` is a parameter of every
    estimator with a budget: the constructor complains of nothing, and `validate`, called where the
    budget is used, does. A budget is a value: ``set_params(budget__epsilon=...)`` of an estimator
    gives it another budget, and changes nobody else's. `set_params` of the budget itself changes
    it, for everybody who holds it.

    Parameters
    ----------
    epsilon : float
        > 0, for one `unit` and the change that `neighbors` names; infinity is no privacy. Real
        numbers of any kind become floats; a finite epsilon is between 1e-300 and 1e15.
    delta : float, default=0.0
        In [0, 1). Gaussian noise needs delta > 0; choose it well below 1 / number of users.
    unit : {"user", "rating"}, default="user"
        Unit of protection: everything of a user, or one rating.
    neighbors : {"add-remove", "replace"}, default="add-remove"
        Neighbouring relation.
    ledger : PrivacyLedger, default=None
        Durable record of what is spent on a data set: a `fit` with this budget is charged there
        before it touches the ratings. Its unit and neighbouring relation must be the budget's.

    Notes
    -----
    Equality and hash are those of all parameters; do not change a budget that serves as a
    dictionary key.

    References
    ----------
    C. Dwork, A. Roth, "The algorithmic foundations of differential privacy", Foundations and Trends
    in Theoretical Computer Science 9 (2014), Definition 2.4.

    J. Dong, A. Roth, W. Su, "Gaussian differential privacy", JRSS B 84 (2022)
    (mu, and how it splits).

    Examples
    --------
    >>> budget = PrivacyBudget(1.0, 1e-5)
    >>> budget
    PrivacyBudget(epsilon=1.0, delta=1e-05)
    >>> round(budget.mu, 5)
    0.26805
    >>> [round(part.epsilon, 3) for part in budget.split([0.1, 0.9])]
    [0.285, 0.944]
    >>> PrivacyBudget.nonprivate().is_private, budget.without_ledger() == budget
    (False, True)
    >>> budget.set_params(epsilon=2.0).get_params()["epsilon"]
    2.0
    """

    epsilon: float
    delta: float = 0.0
    _: KW_ONLY
    unit: str = "user"
    neighbors: str = "add-remove"
    ledger: Any = None

    def __setattr__(self, name: str, value: Any) -> None:
        # Decimal, Fraction and numpy's numbers are kept as what all arithmetic is made with
        if name in ("epsilon", "delta") and type(value) not in (float, int):
            number = as_float(value)
            value = value if math.isnan(number) else number
        super().__setattr__(name, value)

    @classmethod
    def nonprivate(cls, *, unit: str = "user", neighbors: str = "add-remove") -> PrivacyBudget:
        """Return the budget without limit: epsilon infinite, delta 0, nothing is noised.

        Parameters
        ----------
        unit, neighbors : str
            As for the class.

        Returns
        -------
        PrivacyBudget
        """
        return cls(math.inf, 0.0, unit=unit, neighbors=neighbors)

    def validate(self) -> PrivacyBudget:
        """Check all parameters; called before a budget is used.

        Returns
        -------
        PrivacyBudget
            Self.

        Raises
        ------
        PrivacyParameterError
            Naming the parameter, its value, the rule and the remedy.

        Examples
        --------
        >>> PrivacyBudget(0.0).validate()
        Traceback (most recent call last):
        ...
        skdpmf.exceptions.PrivacyParameterError: epsilon=0.0 must be a number > 0, ...
        """
        epsilon, delta = as_float(self.epsilon), as_float(self.delta)
        rule = f"a number > 0, from {_LEAST:g} to {_MOST:g} or infinite: pass for example 1.0, or "
        rule += "PrivacyBudget.nonprivate() for no privacy."
        holds = _LEAST <= epsilon <= _MOST or epsilon == math.inf
        require_that(holds, "epsilon", self.epsilon, rule)
        rule = f"a number in [0, 1), and at least {_LEAST:g} if it is not 0: pass for example "
        rule += "1e-5, well below 1 / number of users."
        require_that(_LEAST <= delta < 1.0 or delta == 0.0, "delta", self.delta, rule)
        check_relation(self.unit, self.neighbors)
        if self.ledger is not None:
            rule = "None or a PrivacyLedger: pass PrivacyLedger(path, limit) with the limit of the "
            rule += "data set."
            require_that(isinstance(self.ledger, BudgetKeeper), "ledger", self.ledger, rule)
            for name in ("unit", "neighbors"):
                own, kept = getattr(self, name), getattr(self.ledger, name)
                rule = f"{kept!r}, that of ledger={self.ledger!r}: guarantees of different kinds "
                rule += f"do not add up. Pass {name}={kept!r}, or another ledger."
                require_that(own == kept, name, own, rule)
        return self

    def without_ledger(self) -> PrivacyBudget:
        """Return a copy that is charged nowhere.

        Returns
        -------
        PrivacyBudget
            With the same epsilon, delta, unit and neighbouring relation.
        """
        return replace(self, ledger=None)

    @property
    def is_private(self) -> bool:
        """Whether epsilon is finite."""
        self.validate()
        return math.isfinite(self.epsilon)

    @property
    def mu(self) -> float:
        """Gaussian DP parameter that the budget allows, rounded down; 0 for delta = 0.

        With a ledger it is a few millionths less: a ledger sets a part of delta aside for the
        sampler of all noised values to come.
        """
        self.validate()
        if self.ledger is not None and self.is_private and self.delta > 0.0:
            return float(self.ledger._mu_of(self.epsilon, self.delta))
        return gaussian_mu(self.epsilon, self.delta)

    @overload
    def split(self, shares: Mapping[str, float]) -> dict[str, PrivacyBudget]: ...

    @overload
    def split(self, shares: Sequence[float]) -> list[PrivacyBudget]: ...

    def split(
        self, shares: Mapping[str, float] | Sequence[float]
    ) -> dict[str, PrivacyBudget] | list[PrivacyBudget]:
        r"""Split into parts whose composition is the whole, and never more.

        With delta > 0 shares are of mu^2: part i has the same delta and the epsilon_i for which its
        Gaussian mu is sqrt(share_i) mu, rounded down. These (epsilon_i, delta) do not add up
        to (epsilon, delta) as pairs; as Gaussian mechanisms they compose to it,
        :math:`\sum_i \mu_i^2 \le \mu^2`. A step with a pure guarantee may spend
        ``mu_to_pure_epsilon(part.mu)``, not ``part.epsilon``. Each part pays for the slack of the
        finite-precision sampler (`SamplerSlack`) over its own values. Over all values and
        for the whole mu it is more, so that several parts leave room for it: what they spend, put
        together by `compose_statements`, is not above the whole, for as many as
        3 * 10^7 min(epsilon, 2) and 10^18 delta noised values. It is the whole to three
        millionths up to epsilon 10 and from delta 1e-7, elsewhere less nearly.

        With delta = 0 shares are of epsilon, and the parts' epsilons add up exactly, or to a
        rounding error below.

        With a ledger, and an epsilon and delta that it has left, all parts fit in, in any order,
        with Gaussian noise or by the pure epsilon above. Parts of a budget that gets its ledger
        afterwards fit into one of the rule "gaussian"; plans that were made without it may exceed
        its limit by what it sets aside, some millionths. What "zcdp" allows is less than the mu of
        the whole: shares are of that, and a pure step may spend ``part.mu``. By "basic" shares are
        of epsilon and of delta, which add up.

        Parameters
        ----------
        shares : sequence or mapping of float
            Positive, of sum 1 (to 1e-9).

        Returns
        -------
        list or dict of PrivacyBudget
            In the form of ``shares``.

        Raises
        ------
        PrivacyParameterError
            If shares are not positive or do not sum to 1, or one is too small to be written as an
            epsilon at this delta.

        Examples
        --------
        >>> PrivacyBudget(1.0).split({"means": 0.25, "factors": 0.75})["means"]
        PrivacyBudget(epsilon=0.25, delta=0.0)
        """
        from skdpmf.privacy.composition import split_budget  # no fit needs it

        parts = split_budget(self, list(shares.values() if isinstance(shares, Mapping) else shares))
        return dict(zip(shares, parts, strict=True)) if isinstance(shares, Mapping) else parts


def check_relation(unit: object, neighbors: object) -> None:
    """Raise unless the unit and the neighbouring relation are among `UNITS` and `NEIGHBORS`."""
    for name, value, choices in (("unit", unit, UNITS), ("neighbors", neighbors, NEIGHBORS)):
        holds = isinstance(value, str) and value in choices
        rule = f"one of {choices}: choose what the guarantee is about."
        require_that(holds, name, value, rule)


def check_shares(shares: Sequence[float]) -> list[float]:
    """Return positive shares of sum 1 (to 1e-9) as floats whose sum is not above 1; or raise."""
    for share in shares:
        rule = "a number > 0: leave out what gets nothing."
        require_that(as_float(share) > 0.0, "share", share, rule)
    total = math.fsum(shares)
    rule = f"numbers of sum 1, and their sum is {total!r}: divide them by it."
    require_that(abs(total - 1.0) <= _SHARE_TOLERANCE, "shares", list(shares), rule)
    return [float(share) / max(total, 1.0) for share in shares]


def public_rows(n_rows: int) -> int:
    """Return a number of rows as plans use it: up to the next with two binary digits.

    Where the number was declared nothing is to be hidden. Where it was not, a model and its card
    change with it at 2, 3, 4, 6, 8, 12, ... rows, and not at each single one. The result is below
    1.5 n_rows.
    """
    step = 1 << max(int(n_rows).bit_length() - 2, 0)
    return -(-int(n_rows) // step) * step
