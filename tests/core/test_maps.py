"""Every map of every fit is per user: one row changed changes that row of the result only.

All functions that fits pass to `Users.map`, `Users.keep` and `sums.products` are noted with what
they were given, and called again with one user's row, and the entries that belong to it, changed.
"""

import ast
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from scipy import sparse

import skdpmf
from skdpmf.exceptions import PrivacyParameterError
from skdpmf.mechanisms.item_means import residual_rounds as item_residuals
from skdpmf.privacy import clipped_sums as sums
from skdpmf.privacy.users import PerUser, Rows, Users, handle_values, reveal
from tests.core.audit import SLOT
from tests.core.cases import CASES
from tests.house import MAPPING, passed_functions

pytestmark = pytest.mark.every_case
MOST_CALLS = 4  # of one function in one fit: the first ones and the last one


class Call(NamedTuple):
    """One call of a map, with what it was given."""

    kind: str
    function: Any
    rows: Rows
    args: tuple[Any, ...]
    private: tuple[bool, ...]  # which args are values of users
    public: dict[str, Any]


@pytest.fixture
def calls(monkeypatch):
    """Calls of fits in this test, by function."""
    found: dict[Any, list[Call]] = {}

    def noted(kind, users, function, args, public):
        values = tuple(handle_values(users, argument) for argument in args)
        private = tuple(isinstance(argument, PerUser) for argument in args)
        call = Call(kind, function, reveal(users), values, private, public)
        own = found.setdefault(function, [])
        del own[MOST_CALLS - 1 :]
        own.append(call)

    real_map, real_keep, real_products = Users.map, Users.keep, sums.products

    def map_(self, function, *args, **public):
        noted("map", self, function, args, public)
        return real_map(self, function, *args, **public)

    def keep(self, function, *args, **public):
        noted("keep", self, function, args, public)
        return real_keep(self, function, *args, **public)

    def products(users, function, *args, **terms):
        noted("products", users, function, args, {})
        return real_products(users, function, *args, **terms)

    monkeypatch.setattr(Users, "map", map_)
    monkeypatch.setattr(Users, "keep", keep)
    monkeypatch.setattr(sums, "products", products)
    return found


@pytest.mark.parametrize("name", CASES)
def test_maps_are_per_user(name, calls):
    CASES[name].fit()
    maps = [call for own in calls.values() for call in own]
    assert maps or name.startswith(("means of ratings", "covariance of r", "selector of r"))
    for call in maps:
        check(call)


def check(call):
    """Raise AssertionError if a row of the result depends on another row."""
    name, rng = call.function.__name__, np.random.default_rng(0)
    before = results(call)
    for user in (0, min(SLOT, call.rows.n_users - 1), call.rows.n_users - 1):
        for length in (None, 0, call.rows.n_items):
            changed = with_user(call, user, length, rng)
            with np.errstate(all="ignore"):
                after = results(changed)
            assert len(before) == len(after)
            for a, b in zip(before, after, strict=True):
                others = np.arange(call.rows.n_users) != user
                same = [x == y for x, y in zip(a, b, strict=True)]
                assert np.all(np.array(same)[others]), f"{name}: user {user} changes other rows"


def results(call):
    """Bits of each user's part of each result."""
    rows, width = call.rows, call.rows.n_users
    if call.kind == "products":
        ends = (0, width // 2), (width // 2, width)
        parts = [call.function(rows, *block, *call.args) for block in ends]
        stacked = sparse.vstack if sparse.issparse(parts[0]) else np.concatenate
        made = (stacked(parts),)
    else:
        made = call.function(rows, *call.args, **call.public)
        made = made if isinstance(made, tuple) else (made,)
    return [bits(one, rows) for one in made]


def bits(result, rows):
    """What belongs to each user, as bytes."""
    if sparse.issparse(result):
        R = sparse.csr_array(result)
        R.sort_indices()
        ends = zip(R.indptr[:-1], R.indptr[1:], strict=True)
        return [R.indices[a:b].tobytes() + R.data[a:b].tobytes() for a, b in ends]
    if len(result) == rows.n_users:
        return [row.tobytes() for row in result]
    assert len(result) == rows.nnz, f"a result of length {len(result)}"
    ends = zip(rows.indptr[:-1], rows.indptr[1:], strict=True)
    return [result[a:b].tobytes() for a, b in ends]


def with_user(call, user, length, rng):
    """The call with another row of the user, of the same length or of the given one."""
    rows, (start, stop) = call.rows, call.rows.indptr[user : user + 2]
    assert rows.nnz != rows.n_users, "alignment is ambiguous"
    n = stop - start if length is None else length
    columns = np.sort(rng.permutation(rows.n_items)[:n])
    values = rng.choice([-2.0, 0.5, 1.7, 1e6], n)

    def spliced(array, new):
        return np.concatenate((array[:start], new.astype(array.dtype), array[stop:]))

    indptr = rows.indptr.copy()
    indptr[user + 1 :] += n - (stop - start)
    data, indices = spliced(rows.data, values), spliced(rows.indices, columns)
    R = sparse.csr_array((data, indices, indptr), shape=rows.shape)
    args = []
    for argument, private in zip(call.args, call.private, strict=True):
        if private and len(argument) == rows.nnz:
            argument = spliced(argument, rng.normal(size=(n, *argument.shape[1:])))
        elif private and len(argument) == rows.n_users:
            argument = argument.copy()
            argument[user] = rng.normal(size=argument.shape[1:])
        args.append(argument)
    return call._replace(rows=Rows(R, None), args=tuple(args))


def test_every_map_of_the_package_is_called(calls):
    """What solvers and steps pass to maps, by their syntax trees, is what the fits called."""
    for case in CASES.values():
        case.fit()
    seen = {function.__name__ for function in calls}
    package, named = Path(skdpmf.__file__).parent, set()
    for path in package.rglob("*.py"):
        if MAPPING.match(path.relative_to(package).as_posix()):
            named |= passed_functions(ast.parse(path.read_text(encoding="utf-8")))
    assert len(named) > 20
    assert named <= seen


def less_the_mean_of_all(rows, weights, mean, damping):
    r = rows.data - rows.data.mean()
    return weights * r


def less_the_largest_of_all(rows, weights, mean, damping):
    return weights * rows.data / np.abs(rows.data).max()


def by_the_number_of_raters(rows, weights, mean, damping):
    return weights * rows.data / np.bincount(rows.indices, minlength=rows.n_items)[rows.indices]


def less_the_row_before(rows, weights, mean, damping):
    return weights * (rows.data - np.roll(rows.data, 1))


def a_random_batch(rows, weights, mean, damping):
    chosen = np.random.default_rng(0).permutation(np.flatnonzero(rows.n_ratings))[:80]
    return weights * np.isin(rows.user, chosen)


PLANTED = (
    less_the_mean_of_all,
    less_the_largest_of_all,
    by_the_number_of_raters,
    less_the_row_before,
    a_random_batch,
)


@pytest.mark.parametrize("planted", PLANTED, ids=lambda planted: planted.__name__)
def test_planted_maps_are_seen(planted, calls, monkeypatch):
    monkeypatch.setattr(item_residuals, "weighted_residuals", planted)
    # no row has a mean or a largest value
    found = r"gives users other values among all rows|raised (ValueError|RuntimeWarning)"
    with pytest.raises(PrivacyParameterError, match=found):
        CASES["als pooled"].fit()
    (call, *_) = calls[planted]
    with pytest.raises(AssertionError, match="changes other rows"):
        check(call)


def popular_ratings(rows):
    """The ratings of items that more than half of the users have rated."""
    popular = np.bincount(rows.indices, minlength=rows.n_items) > rows.n_users / 2
    kept = popular[rows.indices]
    ends = np.append(0, np.cumsum(kept))[rows.indptr]
    return sparse.csr_array((rows.data[kept], rows.indices[kept], ends), shape=rows.shape)


def test_a_planted_choice_of_ratings_is_seen(calls):
    CASES["als pooled"].fit()
    (call, *_) = next(own for own in calls.values() if own[0].kind == "keep")
    rows = call.rows
    planted = Call("keep", popular_ratings, _halved(rows), (), (), {})
    with pytest.raises(AssertionError, match="changes other rows"):
        check(planted)


def _halved(rows):
    """Exactly half of the users, and not user 0, have rated item 0: one more makes it popular."""
    R = rows.R.toarray()
    R[:, 0] = 0.0
    R[1 : 1 + rows.n_users // 2, 0] = 1.0
    return Rows(sparse.csr_array(R), None)
