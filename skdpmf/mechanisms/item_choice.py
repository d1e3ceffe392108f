r"""Weighted item counts, to choose items by: their weights and their sensitivity.

.. math:: N_j = \sum_i w_i\, e_{ij}, \qquad e_{ij} = 1 \text{ if user i rated item j, else } 0.

User i has n_i items, duplicates merged. The weight w_i depends on n_i alone, so that one user's
terms say nothing about another's:

- unit "user": :math:`w_i = n_i^{-1/2}` ("l2", for Gaussian noise) or :math:`w_i = n_i^{-1}`
  ("l1", for Laplace noise), 0 for an empty row;
- unit "rating": w_i = 1.

**Sensitivity**, with the norm over all items of the catalogue:

===================  =============  ==========================
unit                 "add-remove"   "replace"
===================  =============  ==========================
"user" and "rating"  1              l1: 2, l2: :math:`\sqrt 2`
===================  =============  ==========================

*Proof, one user.* The terms x_j = w_i e_ij have
:math:`|x|_2^2 = n_i w_i^2 = 1`, or :math:`|x|_1 = n_i w_i = 1`. Against the empty row that is the
distance. Against another row x', :math:`|x - x'|_1 \le |x|_1 + |x'|_1 = 2`, and
:math:`|x - x'|_2^2 = |x|^2 + |x'|^2 - 2 \langle x, x' \rangle \le 2`, as no term is negative.
Attained by users without common items. *One rating.* A cell that comes or goes changes one count
by 1. "Replace" empties a cell and fills one: two counts change by 1, or one by 1 twice, up and
down again. QED.

The bound on n_i is the catalogue: nothing has to be capped, and capping before (at unit "user")
changes no sensitivity, as a user's kept items are a function of that user's row and slot.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

_INSIDE = 1.0 - 2.0**-40  # rounded, the weights of a user must not exceed the bound


def item_count_weights(n_ratings: ArrayLike, *, norm: str = "l2") -> NDArray[np.float64]:
    """Return the weights w_i of users, from the numbers n_i of their items.

    They are lower than the formula by a factor 1 - 2^-40, against rounding.
    """
    n = np.asarray(n_ratings, dtype=np.float64)
    return np.where(n > 0.0, _INSIDE / np.maximum(n if norm == "l1" else np.sqrt(n), 1.0), 0.0)


def item_count_sensitivity(*, norm: str = "l2", neighbors: str = "add-remove") -> float:
    """Return the sensitivity of weighted item counts, as the module's docstring proves it."""
    if neighbors == "add-remove":
        return 1.0
    return 2.0 if norm == "l1" else math.sqrt(2.0)
