"""Parts of all recommenders: one way from `fit` to a mechanism, and answers from its model.

Docstrings of estimators and of their methods share the texts below, and have their names in braces
where `filled` is to put them.

{X}
X : {array-like, DataFrame, sparse matrix} of shape (n_users, n_items)
    Known ratings of any users.
{fit X}
X : {array-like, DataFrame, sparse matrix} of shape (n_users, n_items)
    Ratings; also `ParquetRatings` or a `RatingMatrix`, whose users or items may not be
    declared: the ``privacy_spent_`` of a private estimator says so.
{y}
y : None, array-like of shape (n_users,) or matrix of shape (n_users, n_items)
    Held-out items or ratings of the same users. Only its kind is used, never its content:
    it decides what `predict` returns.
{self}
self : estimator
    The fitted estimator.
{fit errors}
ValueError
    If a parameter is invalid (checked before X is looked at), X is not a matrix of
    real numbers or holds an infinite one, or the shape of y does not fit X. What else the
    rows hold raises and warns nothing.
{errors}
sklearn.exceptions.NotFittedError
    Before `fit`.
ValueError
    If X is invalid or has other columns than in `fit`.
{rating_range}
rating_range : tuple of float, default=(1.0, 5.0)
    Public smallest and largest rating. Ratings outside are clipped.
{item_features}
item_features : {array-like, sparse matrix, DataFrame} of shape (n_items, d), default=None
    Public facts of the items, such as genres and years (`skdpmf.data.item_features`): a row for
    each column of X, in their order, or a DataFrame whose index are item ids, which X as a
    DataFrame or `RatingMatrix` names. They cost no budget if no rating, tag, review or count of
    these people is in them (docs/what-is-public.md).
{public}
public : {RatingMatrix, DataFrame, array-like, sparse matrix} of shape (n_people, n), default=None
    Ratings of people who agreed that theirs are public, beside those of X: a row for each, over the
    columns of X, or over any items where both name theirs. Also `ParquetRatings`, and for some
    estimators a model without privacy or its file. They enter without noise and cost nothing; a
    person whose id X has too is public, such as those of ``X.loc[ids]`` of a DataFrame. The
    guarantee is for all others, if whether a person is public does not depend on the ratings
    (docs/public-people.md).
{random_state, n_jobs}
random_state : int or None, default=None
    None: noise from a fresh 256-bit key of the operating system. An int makes a fit on the
    same data with the same parameters repeatable, and voids the guarantee against anyone
    who can guess it; other data or parameters get unrelated noise.
n_jobs : int or None, default=None
    Threads, as in joblib. Does not change the result.
{n_jobs}
n_jobs : int or None, default=None
    Threads, as in joblib. Does not change the result.
{components_}
components_ : ndarray of shape (n_components, n_items)
    Released item factors V.T, in rating units.
{n_components_}
n_components_ : int
    Factors in use: rows of ``components_`` that are not all zero.
{item_means_}
item_means_ : ndarray of shape (n_items,)
    Released m_j, in rating units: the prediction for a user without ratings.
{privacy_spent_}
privacy_spent_ : PrivacyStatement
    Releases with their noise, their cost and their assumptions.
{n_features_in_, feature_names_in_}
n_features_in_ : int
    Number of items.
feature_names_in_ : ndarray of shape (n_items,)
    Item names, if X had string column names.
{model}
>>> import numpy as np
>>> from skdpmf import DPItemMeans, PrivacyBudget
>>> X = np.array([[5.0, 1.0, np.nan], [4.0, np.nan, 3.0]])
>>> model = DPItemMeans(PrivacyBudget(4.0, 1e-5)).fit(X)
"""

import inspect
import re
from textwrap import indent
from typing import Any, TypeVar

_PLACE = re.compile(r"^( *)\{([\w, ]+)\}\n", flags=re.M)
_PARTS = re.split(r"^\{([\w, ]+)\}\n", inspect.cleandoc(__doc__ or "") + "\n", flags=re.M)
_SHARED = dict(zip(_PARTS[1::2], _PARTS[2::2], strict=True))

Documented = TypeVar("Documented", bound=Any)


def filled(documented: Documented) -> Documented:
    """Fill in what is shared, in the docstrings of a class and its methods, or of a function."""
    for one in (documented, *vars(documented).values()):
        if (one is documented or inspect.isfunction(one)) and one.__doc__:
            one.__doc__ = _PLACE.sub(lambda to: indent(_SHARED[to[2]], to[1]), one.__doc__)
    return documented
