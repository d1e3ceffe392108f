r"""L2 sensitivities of the sums over users that the solvers release.

Every statistic here is S = sum over users j of x_j, where x_j depends on user j's ratings, on what
was released before and on public constants only, and x_j = 0 for an empty record. The unit is the
user. So the L2 sensitivity, the largest distance of S on neighbours, is

- ``neighbors="add-remove"`` (one record against the empty one): sup |x|;
- ``neighbors="replace"`` (one record against any other): sup |x - x'|. It is sqrt(2) sup |x| where
  <x, x'> >= 0 always, up to 2 sup |x| elsewhere, and neither for some joint vectors.

Weights: user j gives the *distinct* item i the weight w_ij >= 0, and for every user
sum_i w_ij^2 <= ``weight_budget``, called beta. Merge duplicate (user, item) pairs before weighting:
contributions to one item add up linearly, and no bound on the weights' squares would hold.

Bounds on ratings, norms and weights must be public and enforced by clipping, never read off the
data. Released statistics of several items are stacked, so the norm runs over all items.

Sources: W. Krichene et al., "Multi-task differential privacy under distribution skew", ICML 2023,
Theorem 3.3 (Gram and right-hand sides); the forms for replace and for joint vectors are proved
below.
"""

import math
from typing import Any

from skdpmf.exceptions import PrivacyParameterError
from skdpmf.privacy.budget import check_relation
from skdpmf.privacy.sampler.grid import require_number


def count_sensitivity(
    weight_budget: float, *, neighbors: str = "add-remove", unit: str = "user"
) -> float:
    r"""Weighted item counts, N_i = sum_j w_ij: :math:`\sqrt\beta`, replace :math:`\sqrt{2\beta}`.

    Proof: x = (w_i)_i has norm at most sqrt(beta); all entries are >= 0, so <x, x'> >= 0. Attained
    by users with disjoint items. Plain counts of at most tau items a user have beta = tau; the
    number of non-empty users has beta = 1. weight_budget: beta.
    """
    beta = _check(unit, neighbors, weight_budget=weight_budget)[0]
    return math.sqrt(beta * _factor(neighbors, 2.0))


def sum_sensitivity(
    weight_budget: float, max_value: float, *, neighbors: str = "add-remove", unit: str = "user"
) -> float:
    r"""Weighted item sums, S_i = sum_j w_ij y_ij: :math:`Y\sqrt\beta`, replace twice that.

    The y_ij are numbers or vectors, such as those of right-hand sides, y_ij u_j with |u_j| <= G and
    Y = G max |y_ij|. Also a sum of vectors clipped to norm Y (beta = 1). Proof:
    |x|^2 = sum_i w_i^2 |y_i|^2 <= beta Y^2, attained with |y| = Y; the other user has y' = -y.
    weight_budget: beta; max_value: Y, bound on |y_ij|.
    """
    beta, Y = _check(unit, neighbors, weight_budget=weight_budget, max_value=max_value)
    return Y * math.sqrt(beta) * _factor(neighbors, 2.0)


def gram_sensitivity(
    weight_budget: float, max_norm: float, *, neighbors: str = "add-remove", unit: str = "user"
) -> float:
    r"""Gram matrices A_i = sum_j w_ij u_j u_j^T: :math:`G^2\sqrt\beta`, replace sqrt(2) that.

    The norm is Frobenius' of the full symmetric matrices, all items stacked: add noise by
    ``layout="packed"``. Proof: |x|^2 = sum_i w_i^2 |u|^4 <= beta G^4; and
    <x, x'> = sum_i w_i w'_i <u, u'>^2 >= 0. Attained by |u| = G, for replace with disjoint items.
    Also one sum of u u^T of clipped vectors (beta = 1), with or without its diagonal.
    weight_budget: beta; max_norm: G, bound on the norm of user vectors u_j.
    """
    beta, G = _check(unit, neighbors, weight_budget=weight_budget, max_norm=max_norm)
    return G * G * math.sqrt(beta * _factor(neighbors, 2.0))


def item_mean_sensitivity(
    count_scale: float,
    *,
    weight_budget: float = 1.0,
    max_ratio: float = math.inf,
    neighbors: str = "add-remove",
    unit: str = "user",
) -> float:
    r"""Counts and clipped sums in one release: (s w_i, c w_i e_i / C), stacked over items.

    e_i is the rating less the user's own mean (any function of the user's row), and one factor a
    user, c = min(1, C / |(w_i e_i)_i|), clips the second half to norm 1. With
    kappa = ``max_ratio``, a bound on abs(e_i) / C, and P^2 = min(1, kappa^2 beta), the largest
    squared norm of that half:

    - add-remove: :math:`\sqrt{s^2\beta + P^2}`, which is sqrt(1 + s^2) for beta = 1, kappa >= 1;
    - replace: :math:`\sqrt{2 (s^2\beta + P^2) + 2 P^2 \max(0, 1 - s^2/\kappa^2)}`, which is
      max(2, sqrt(2 (1 + s^2))) for beta = kappa = 1 and sqrt(4 + 2 s^2) for kappa infinite.

    Proof (replace): write x = (s w, p), with abs(p_i) <= kappa w_i and |p| <= P. On the common
    items let q = sum w_i w'_i; then <x, x'> >= s^2 q - min(P^2, kappa^2 q), and
    |x - x'|^2 <= 2 (s^2 beta + P^2) - 2 (s^2 q - min(P^2, kappa^2 q)). The bracket is least at
    q = P^2 / kappa^2 if kappa > s, else at q = 0. Attained: on common items of squared weight
    P^2 / kappa^2 the users have e = kappa C and -kappa C, the rest of their weights is on items of
    their own with e = 0.

    count_scale: s > 0, weight of the counts against the sums; weight_budget: beta, 1 for
    w = 1 / sqrt(number of the user's ratings); max_ratio: kappa > 0, which is public and matters
    for replace only, if at least 1 / sqrt(beta).
    """
    s, beta = _check(unit, neighbors, count_scale=count_scale, weight_budget=weight_budget)
    kappa = math.inf if max_ratio == math.inf else _require_positive("max_ratio", max_ratio)
    P2 = min(1.0, kappa * kappa * beta)
    alone = s * s * beta + P2
    if neighbors == "add-remove":
        return math.sqrt(alone)
    return math.sqrt(2.0 * alone + 2.0 * P2 * max(0.0, 1.0 - (s / kappa) ** 2))


def item_statistics_sensitivity(
    count_scale: float, *, norm: str = "l2", neighbors: str = "add-remove", unit: str = "user"
) -> float:
    r"""Counts and sums in one release: (s w_i, w_i v_i) with abs(v_i) <= 1, stacked over items.

    v_i = (clip(r_i, lo, hi) - (lo + hi)/2) / ((hi - lo)/2), a function of the one rating. Weights:
    unit "rating" w = 1; unit "user" w = 1/c ("l1") or 1/sqrt(c) ("l2") for c ratings.

    - l1: 1 + s; replace 2 (1 + s);
    - l2: :math:`\sqrt{1 + s^2}`; replace :math:`\max(2, \sqrt{2 (1 + s^2)})`.

    Proof: a cell changes the two entries of its item alone, whoever's it is, hence counts as a user
    with c = 1, and a cell that is emptied with one that is filled as one user for another. Of
    a user, the counts have norm s and the sums at most 1, in both norms; l1 distances are at most
    the sum of the norms, attained on disjoint items. For l2 and replace see
    `item_mean_sensitivity` with max_ratio = 1: 2 is attained by v = 1 against v = -1 on the same
    items. Sums that are clipped as a vector, or centred by user, may need more: that function has
    the value.

    count_scale: s > 0, weight of the counts against the sums; norm of the change: "l1" for Laplace
    noise, "l2" for Gaussian noise.
    """
    s = _require_positive("count_scale", count_scale)
    if norm not in ("l1", "l2"):
        raise PrivacyParameterError(
            f"norm={norm!r} must be one of ('l1', 'l2'): 'l1' for Laplace noise, 'l2' for Gaussian "
            "noise."
        )
    check_relation(unit, neighbors)
    if norm == "l1":
        return (1.0 + s) * (2.0 if neighbors == "replace" else 1.0)
    return item_mean_sensitivity(s, max_ratio=1.0, neighbors=neighbors)


def _factor(neighbors: str, replace: float) -> float:
    return replace if neighbors == "replace" else 1.0


def _check(unit: str, neighbors: str, **bounds: Any) -> list[float]:
    check_relation(unit, neighbors)
    if unit != "user":
        raise PrivacyParameterError(
            f"unit={unit!r} must be 'user': no sensitivity of this statistic is proved for one "
            "rating (whose change also moves the user's weights); use unit='user'."
        )
    return [_require_positive(name, value) for name, value in bounds.items()]


def _require_positive(name: str, value: Any) -> float:
    remedy = "pass the public bound that is enforced on every user."
    return require_number(name, value, positive=True, remedy=remedy)
