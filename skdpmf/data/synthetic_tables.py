"""Names, titles, genres and times for synthetic ratings."""

from typing import TYPE_CHECKING, Any

import numpy as np

from .labels import RatingMatrix

if TYPE_CHECKING:
    from sklearn.utils import Bunch

__all__ = ["with_names"]

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


def with_names(X: Any, truth: Any, rng: Any) -> "Bunch":
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
    titles = [
        f"{patterns[j].format(**{name: some[j] for name, some in drawn.items()})} ({years[j]})"
        for j in range(n_items)
    ]
    items = pd.Index([f"m{j}" for j in range(n_items)], name="item")
    users = pd.Index([f"u{i}" for i in range(n_users)], name="user")
    rows = np.repeat(np.arange(n_users), np.diff(X.indptr))
    arrived = rng.uniform(0.0, 1.0, n_users)
    stayed = rng.exponential(0.05, n_users)
    times = _START + _SECONDS * np.minimum(arrived[rows] + stayed[rows] * rng.random(X.nnz), 1.0)
    ratings = {"user": users.take(rows), "item": items.take(X.indices), "rating": X.data}
    labels = ["|".join(g for g, has in zip(genres, row, strict=True) if has) for row in own]
    return Bunch(
        ratings=pd.DataFrame(ratings).assign(timestamp=times.astype(np.int64)),
        catalogue=pd.DataFrame({"item": items, "title": titles, "genres": labels}),
        matrix=RatingMatrix(X, users, items, titles),
        rating_range=truth.rating_range,
        truth=truth,
    )
