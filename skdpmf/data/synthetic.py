"""Synthetic ratings with a known truth."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import sparse

from .labelled_rows import RatingMatrix
from .validation import check_rating_range, is_finite, is_integer, require

if TYPE_CHECKING:
    from sklearn.utils import Bunch

_BLOCK_CELLS = 4_000_000  # users x items handled at once: bounds the memory, not the result

# The words and times of `as_frame` follow.
_GENRES = (
    *("Action", "Adventure", "Animation", "Comedy", "Crime", "Documentary", "Drama", "Fantasy"),
    *("Horror", "Musical", "Mystery", "Romance", "Sci-Fi", "Thriller", "War", "Western"),
)
_KINDS = (
    *("Silent", "Last", "Hidden", "Golden", "Broken", "Distant", "Crimson", "Frozen", "Burning"),
    *("Secret", "Lost", "Quiet", "Midnight", "Winter", "Summer", "Iron", "Paper", "Glass", "Wild"),
    *("Restless", "Second", "Blue", "Hollow", "Endless", "Stolen", "Painted", "Gentle", "Electric"),
)
_THINGS = (
    *("Harbour", "Garden", "River", "Letter", "Station", "Mirror", "Island", "Orchard", "Promise"),
    *("Witness", "Lighthouse", "Bridge", "Kitchen", "Detective", "Piano", "Horizon", "Stranger"),
    *("Carnival", "Mountain", "Train", "Sister", "Winter", "Machine", "Forest", "Journey", "Hotel"),
    *("Captain", "Shadow", "Violin", "Colony", "Market", "Dancer", "Storm", "Verdict", "Window"),
)
_PLACES = (
    *("Lisbon", "Cairo", "Bombay", "Vienna", "Havana", "Kyoto", "Dakar", "Oslo", "Naples", "Lima"),
    *("Tangier", "Odessa", "Galway", "Quebec", "Montana", "Samarkand"),
)
_PATTERNS = ("The {kind} {thing}", "{kind} {thing}", "The {thing} of {place}", "{thing} in {place}")
_PER_ITEM = 1.8  # genres, about
_CHANCE = 0.5  # of what decides on genres: the rest is the items' make
_FIRST, _LAST = 1950, 2000  # years
_START, _SECONDS = 1_577_836_800, 63_072_000  # of the times: two years from 2020 on


@dataclass(frozen=True)
class RatingTruth:
    """The model that `make_ratings` drew from.

    Attributes
    ----------
    mean : float
        Constant part, in rating units.
    user_bias : ndarray of shape (n_users,)
        Added to all ratings of a user, in rating units.
    item_bias : ndarray of shape (n_items,)
        Added to all ratings of an item, in rating units.
    user_factors : ndarray of shape (n_users, n_components)
        Taste of each user.
    item_factors : ndarray of shape (n_items, n_components)
        Make of each item; its product with a taste is in rating units.
    rating_range : (float, float)
        Ratings are clipped to it.

    Examples
    --------
    >>> X, truth = make_ratings(50, 20, random_state=0, return_truth=True)
    >>> truth.user_factors.shape, truth.item_bias.shape, truth.rating_range
    ((50, 5), (20,), (1.0, 5.0))
    """

    mean: float
    user_bias: Any
    item_bias: Any
    user_factors: Any
    item_factors: Any
    rating_range: tuple[float, float]

    def expected(self, users: Any, items: Any) -> Any:
        """Return the noise-free ratings of (user, item) pairs, clipped, not rounded.

        users, items (array-like of int, of equal or broadcastable shape): row and column numbers.
        ``truth.expected(np.arange(3)[:, None], np.arange(n_items))`` gives three full rows. Returns
        ratings (ndarray of the shape of `users` and `items`): ``mean + user_bias + item_bias +
        <user_factors, item_factors>`` of each pair. Raises IndexError if there is no such user or
        item; ValueError if the shapes do not match.

        Examples
        --------
        >>> X, truth = make_ratings(50, 20, random_state=0, return_truth=True)
        >>> truth.expected(np.arange(3)[:, None], np.arange(20)).shape
        (3, 20)
        """
        products = np.einsum("...k,...k", self.user_factors[users], self.item_factors[items])
        ratings = self.mean + self.user_bias[users] + self.item_bias[items] + products
        return np.clip(ratings, *self.rating_range)


def make_ratings(
    n_users: int = 1000,
    n_items: int = 200,
    *,
    density: float = 0.2,
    n_ratings: int | None = None,
    min_ratings_per_user: int = 1,
    n_components: int = 5,
    rating_range: tuple[float, float] = (1.0, 5.0),
    step: float | None = 1.0,
    mean: float | None = None,
    user_bias_std: float = 0.45,
    item_bias_std: float = 0.6,
    factor_std: float = 0.55,
    noise_std: float = 0.8,
    user_exponent: float = 0.6,
    item_exponent: float = 0.7,
    random_state: Any = None,
    return_truth: bool = False,
    as_frame: bool = False,
) -> Any:
    r"""Draw ratings from a low-rank model with biases, noise and power-law users and items.

    The rating of user i for item j is

    .. math:: r_{ij} = \mathrm{round}(\mathrm{clip}(m + b_i + c_j + u_i \cdot v_j + e_{ij}))

    with independent normal biases :math:`b_i, c_j`, factors :math:`u_i, v_j` and noise
    :math:`e_{ij}`. User i rates a number of items proportional to (rank of i)^-`user_exponent`,
    and picks them without replacement with chances proportional to (rank of j)^-`item_exponent`;
    ranks are random permutations. Which items a user rates does not depend on the ratings.

    The defaults resemble MovieLens 1M: mean 3.6, standard deviation 1.1.

    Parameters
    ----------
    n_users, n_items : int, default=1000, 200
        Shape of the matrix.
    density : float, default=0.2
        Share of the pairs that are rated, in (0, 1]. Not used if `n_ratings` is given.
    n_ratings : int, default=None
        Exact number of ratings. None: ``round(density * n_users * n_items)``, but at least
        `min_ratings_per_user` for each user.
    min_ratings_per_user : int, default=1
        Every user rates at least so many items. May be 0.
    n_components : int, default=5
        Rank of the factors. 0: biases only.
    rating_range : (float, float), default=(1.0, 5.0)
        Ratings are clipped to it.
    step : float or None, default=1.0
        Distance of the rating grid, which starts at the lower end of `rating_range` and must hit
        the upper end. None: ratings are continuous.
    mean : float, default=None
        The constant m. None: 65 % of the way from the lower to the upper end.
    user_bias_std, item_bias_std, factor_std, noise_std : float
        Standard deviations, in rating units, of b, c, the product of the factors, and e.
        Defaults 0.45, 0.6, 0.55, 0.8.
    user_exponent, item_exponent : float, default=0.6, 0.7
        Power laws of activity and popularity. 0: all alike.
    random_state : int, RandomState instance or None, default=None
        Determines the ratings.
    return_truth : bool, default=False
        Return the model as well.
    as_frame : bool, default=False
        Return the same ratings as tables, with names, titles, genres and times.

    Returns
    -------
    data : sklearn.utils.Bunch
        Only if `as_frame`, and then alone; as from `skdpmf.datasets.fetch_movielens`: ``ratings``,
        a DataFrame with user, item, rating and time; ``catalogue``, one with item, title and
        genres, which follow in part from the items' factors; ``matrix``, the `RatingMatrix` of
        both; ``rating_range``; and ``truth``.
    X : scipy.sparse.csr_array of shape (n_users, n_items)
        Exactly `n_ratings` ratings in float64, each pair at most once.
    truth : RatingTruth
        Only if `return_truth`.

    Raises
    ------
    ValueError
        If a parameter is out of its range, or `n_ratings` fits neither the matrix nor
        `min_ratings_per_user`.

    References
    ----------
    Weighted sampling without replacement by exponential keys: Efraimidis and Spirakis, "Weighted
    random sampling with a reservoir", Information Processing Letters 97 (2006).

    Examples
    --------
    >>> X, truth = make_ratings(50, 20, n_ratings=300, random_state=0, return_truth=True)
    >>> X.shape, X.nnz
    ((50, 20), 300)
    >>> truth.expected([0, 1], [3, 3]).shape
    (2,)

    Tables, as a shop has them:

    >>> data = make_ratings(50, 20, random_state=0, as_frame=True)
    >>> data.catalogue.loc[0].tolist()
    ['m0', 'Market in Galway (1997)', 'Drama|Musical|Action']
    >>> data.matrix
    RatingMatrix of 50 users x 20 items, 200 ratings
    """
    low, high = check_rating_range(rating_range)
    counts = (
        *(("n_users", n_users, 1), ("n_items", n_items, 1), ("n_components", n_components, 0)),
        *(("min_ratings_per_user", min_ratings_per_user, 0), ("n_ratings", n_ratings or 0, 0)),
    )
    for name, n, least in counts:
        require(is_integer(n, least), name, n, f"an integer >= {least}", "use the default")
    sizes = (
        *(("user_bias_std", user_bias_std), ("item_bias_std", item_bias_std)),
        *(("factor_std", factor_std), ("noise_std", noise_std)),
        *(("user_exponent", user_exponent), ("item_exponent", item_exponent)),
    )
    for name, size in sizes:
        holds = is_finite(size) and size >= 0
        require(holds, name, size, "a finite number >= 0", "use the default")
    rule = "a finite number, or None for 65 % of the range"
    require(mean is None or is_finite(mean), "mean", mean, rule, "use None")
    _check_step(step, low, high)
    n_ratings = _check_n_ratings(n_ratings, density, n_users, n_items, min_ratings_per_user)

    from sklearn.utils import check_random_state

    seed = check_random_state(random_state).randint(2**32, size=4, dtype=np.uint64)
    rng = np.random.default_rng(seed)
    # The product of two vectors of k entries with variance v has variance k v^2.
    entry_std = np.sqrt(factor_std / np.sqrt(n_components)) if n_components else 0.0
    truth = RatingTruth(
        mean=low + 0.65 * (high - low) if mean is None else float(mean),
        user_bias=rng.normal(0.0, user_bias_std, n_users),
        item_bias=rng.normal(0.0, item_bias_std, n_items),
        user_factors=rng.normal(0.0, entry_std, (n_users, n_components)),
        item_factors=rng.normal(0.0, entry_std, (n_items, n_components)),
        rating_range=(low, high),
    )
    activity = rng.permutation(np.arange(1.0, n_users + 1) ** -user_exponent)
    n_rated = _apportion(n_ratings, activity, min_ratings_per_user, n_items)
    popularity = rng.permutation(np.arange(1.0, n_items + 1) ** -item_exponent)
    indptr = np.concatenate(([0], np.cumsum(n_rated)))
    indices = np.empty(n_ratings, np.int32 if max(n_items, n_ratings) < 2**31 else np.int64)
    _choose_items(rng, popularity, indptr, indices)
    data = _draw_ratings(rng, truth, indptr, indices, noise_std, step)
    X = sparse.csr_array((data, indices, indptr.astype(indices.dtype)), shape=(n_users, n_items))
    if as_frame:  # names are of a stream of their own: the ratings stay the same
        return _with_names(X, truth, np.random.default_rng([*seed, 1]))
    return (X, truth) if return_truth else X


def _check_step(step: Any, low: float, high: float) -> None:
    if step is None:
        return
    rule = "a number > 0, or None for continuous ratings"
    require(is_finite(step) and step > 0, "step", step, rule, "use 1.0")
    n_steps = (high - low) / step
    holds = n_steps >= 0.5 and abs(n_steps - round(n_steps)) <= 1e-9 * n_steps
    rule = f"a divisor of the width of rating_range=({low}, {high})"
    require(holds, "step", step, rule, "change either, or pass step=None")


def _check_n_ratings(n_ratings: Any, density: Any, n_users: int, n_items: int, least: int) -> int:
    if n_ratings is None:
        holds = is_finite(density) and 0 < density <= 1
        require(holds, "density", density, "a number in (0, 1]", "use 0.2")
        n_ratings = max(round(density * n_users * n_items), least * n_users)
    if least > n_items or not least * n_users <= n_ratings <= n_users * n_items:
        raise ValueError(
            f"n_ratings={n_ratings} and min_ratings_per_user={least} must fit {n_users} users x "
            f"{n_items} items: min_ratings_per_user <= n_items, and n_ratings from "
            f"min_ratings_per_user * n_users = {least * n_users} to n_users * n_items = "
            f"{n_users * n_items}. Change n_ratings, density, min_ratings_per_user or the shape."
        )
    return int(n_ratings)


def _apportion(total: int, weights: Any, least: int, most: int) -> Any:
    """Split `total` into whole shares near proportional to `weights`, each in [least, most]."""
    low, high = 0.0, most / weights.min()
    for _ in range(100):
        middle = (low + high) / 2
        if np.clip(weights * middle, least, most).sum() < total:
            low = middle
        else:
            high = middle
    exact = np.clip(weights * low, least, most)
    shares = np.floor(exact).astype(np.int64)
    room = np.flatnonzero(shares < most)
    order = room[np.argsort((shares - exact)[room], kind="stable")]
    shares[order[: total - shares.sum()]] += 1
    return shares


def _choose_items(rng: Any, popularity: Any, indptr: Any, indices: Any) -> None:
    """Fill each row of `indices` with distinct items, chances proportional to `popularity`."""
    n_items = popularity.size
    scale = (1.0 / popularity).astype(np.float32)
    block = max(1, _BLOCK_CELLS // n_items)
    for start in range(0, indptr.size - 1, block):
        stop = min(start + block, indptr.size - 1)
        # The n smallest of Exp(1) / weight are a weighted sample without replacement.
        keys = rng.standard_exponential((stop - start, n_items), dtype=np.float32) * scale
        for row, key in zip(range(start, stop), keys, strict=True):
            n = indptr[row + 1] - indptr[row]
            chosen = np.argpartition(key, n)[:n] if n < n_items else np.arange(n_items)
            indices[indptr[row] : indptr[row + 1]] = np.sort(chosen)


def _draw_ratings(rng: Any, truth: Any, indptr: Any, indices: Any, noise: float, step: Any) -> Any:
    low, high = truth.rating_range
    data = rng.normal(0.0, noise, indices.size)
    users = np.repeat(np.arange(indptr.size - 1, dtype=indices.dtype), np.diff(indptr))
    for start in range(0, data.size, _BLOCK_CELLS):
        part = slice(start, start + _BLOCK_CELLS)
        u, i = users[part], indices[part]
        products = np.einsum("nk,nk->n", truth.user_factors[u], truth.item_factors[i])
        ratings = data[part] + truth.mean + truth.user_bias[u] + truth.item_bias[i] + products
        ratings = np.clip(ratings, low, high)
        if step is not None:
            ratings = np.minimum(low + step * np.rint((ratings - low) / step), high)
        data[part] = ratings
    return data


def _with_names(X: Any, truth: Any, rng: Any) -> "Bunch":
    """Return ratings as `skdpmf.datasets.fetch_movielens` does.

    X (csr_array of shape (n_users, n_items)): the ratings; truth (RatingTruth): what they were
    drawn from. Genres and years follow in part from the items' factors and biases, as of films.
    """
    import pandas as pd
    from sklearn.utils import Bunch

    n_users, n_items = X.shape
    make = np.column_stack((truth.item_factors, truth.item_bias))
    make = make / np.maximum(make.std(axis=0), 1e-12)
    genres = [_GENRES[g] for g in rng.permutation(len(_GENRES))]
    toward = make @ rng.normal(size=(make.shape[1], len(genres))) / np.sqrt(make.shape[1])
    scores = (1.0 - _CHANCE) * toward + _CHANCE * rng.normal(size=toward.shape)
    least = np.quantile(scores, 1.0 - _PER_ITEM / len(genres))
    own = (scores > least) | (scores == scores.max(axis=1, keepdims=True))
    # old films that are still rated are the better ones
    late = rng.beta(3.0, 1.5, n_items) - 0.1 * make[:, -1]
    years = np.clip(_FIRST + (_LAST - _FIRST) * late, _FIRST, _LAST).astype(int)
    words = {"kind": _KINDS, "thing": _THINGS, "place": _PLACES}
    drawn = {name: rng.choice(some, n_items) for name, some in words.items()}
    patterns = rng.choice(_PATTERNS, n_items)
    words_of = [{name: some[j] for name, some in drawn.items()} for j in range(n_items)]
    titles = [f"{patterns[j].format(**own)} ({years[j]})" for j, own in enumerate(words_of)]
    items = pd.Index([f"m{j}" for j in range(n_items)], name="item")
    users = pd.Index([f"u{i}" for i in range(n_users)], name="user")
    rows = np.repeat(np.arange(n_users), np.diff(X.indptr))
    arrived = rng.uniform(0.0, 1.0, n_users)
    stayed = rng.exponential(0.05, n_users)
    times = _START + _SECONDS * np.minimum(arrived[rows] + stayed[rows] * rng.random(X.nnz), 1.0)
    ratings = {"user": users.take(rows), "item": items.take(X.indices), "rating": X.data}
    labels = ["|".join(g for g, has in zip(genres, row, strict=True) if has) for row in own]
    return Bunch(
        ratings=pd.DataFrame(ratings).assign(time=times.astype(np.int64)),
        catalogue=pd.DataFrame({"item": items, "title": titles, "genres": labels}),
        matrix=RatingMatrix(X, users, items, titles),
        rating_range=truth.rating_range,
        truth=truth,
    )
