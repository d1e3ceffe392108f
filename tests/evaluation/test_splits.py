"""Splits: a partition of the ratings, the right numbers, repeatable, uniform."""

from itertools import cycle

import numpy as np
import pandas as pd
import pytest
from scipy import sparse

from skdpmf.evaluation import leave_one_out, rolling_folds, split_ratings, split_table, split_users
from tests.matrices import dense


def random_ratings(seed=0, n_users=50, n_items=20):
    """Sparse ratings with stored zeros, an empty row and a row with one rating."""
    rng = np.random.default_rng(seed)
    known = rng.random((n_users, n_items)) < rng.uniform(0.1, 0.9, (n_users, 1))
    known[0] = False
    known[1] = np.arange(n_items) == 3
    rows, columns = np.nonzero(known)
    return sparse.csr_array((rng.integers(0, 6, rows.size), (rows, columns)), shape=known.shape)


def entries(X):
    """{(row, column): rating} of everything stored."""
    X = X.tocoo()
    found = dict(zip(zip(X.row.tolist(), X.col.tolist(), strict=True), X.data, strict=True))
    assert len(found) == X.nnz
    return found


# --- by rating


@pytest.mark.parametrize("test_size", [0.1, 0.5, 7])
def test_split_ratings_is_a_partition(test_size):
    X = random_ratings()
    train, test = split_ratings(X, test_size=test_size, random_state=0)
    assert train.shape == test.shape == X.shape
    assert not entries(train).keys() & entries(test).keys()
    assert entries(train) | entries(test) == entries(X)
    assert test.nnz == (7 if test_size == 7 else np.ceil(test_size * X.nnz))
    assert 0 in train.data  # a stored 0 is a rating and stays one
    assert train.has_canonical_format
    assert test.has_canonical_format


def test_split_ratings_reads_every_container_and_changes_none():
    X = random_ratings()
    before = X.copy()
    expected = [entries(part) for part in split_ratings(X, random_state=3)]
    for same in (X.tocsc(), sparse.coo_matrix(X), dense(X), pd.DataFrame(dense(X))):
        assert [entries(part) for part in split_ratings(same, random_state=3)] == expected
    assert (before != X).nnz == 0


def test_duplicates_never_stand_on_both_sides():
    rows, columns = np.repeat(np.arange(20), 2), np.zeros(40, dtype=int)
    X = sparse.coo_array((np.tile([1.0, 4.0], 20), (rows, columns)), shape=(20, 1))
    train, test = split_ratings(X, test_size=0.5, random_state=0)
    assert (train.nnz, test.nnz) == (10, 10)
    assert np.all(train.data == 2.5)


@pytest.mark.parametrize("test_size", [0.0, 1.0, -1, 10**6])
def test_split_ratings_refuses_test_size(test_size):
    with pytest.raises(ValueError, match=f"test_size.*{test_size}"):
        split_ratings(random_ratings(), test_size=test_size)


# --- by user


def test_split_users_is_a_partition_with_the_right_targets():
    X = random_ratings()
    # a rating that names its user, so that rows are recognised after the split
    X.data = np.repeat(np.arange(X.shape[0]), np.diff(X.indptr)) * 100 + X.indices
    train, known, held_out = split_users(X, test_size=0.4, fold_in=0.8, random_state=0)
    assert train.shape[0] == 30
    assert known.shape == held_out.shape == (20, 20)
    values = [set(part.data) for part in (train, known, held_out)]
    assert set.union(*values) == set(X.data)
    assert sum(map(len, values)) == X.nnz
    for row in range(20):
        users = {*(known[[row]].data // 100), *(held_out[[row]].data // 100)}
        assert len(users) <= 1
        n = known[[row]].nnz + held_out[[row]].nnz
        assert held_out[[row]].nnz == int(0.2 * n)
    for part in (train, known):
        users = [part[[row]].data[0] // 100 for row in range(part.shape[0]) if part[[row]].nnz]
        assert len(users) > 10
        assert users == sorted(users)


def test_number_of_targets_is_that_of_the_published_split():
    # int(0.2 * n) of Liang et al., where int((1 - 0.8) * n) would lose one at each multiple of 5
    n = np.arange(1, 400)
    X = np.where(np.arange(n.max()) < n[:, None], 1.0, np.nan)
    X = np.concatenate([X, X])  # held out: one of each pair at least, on average
    _, known, held_out = split_users(X, test_size=0.9, fold_in=0.8, random_state=0)
    targets = np.diff(held_out.indptr)
    total = targets + np.diff(known.indptr)
    assert np.array_equal(targets, (0.2 * total).astype(int))
    assert np.isin(np.arange(5, 400, 5), total).mean() > 0.9


def test_targets_are_uniform_over_items():
    # 2000 users x 5 ratings, one target each: counts are Binomial(2000, 1/5), sd 17.9. Five sds on
    # five counts: a false alarm with probability 3e-6 over seeds, none at this one.
    _, _, held_out = split_users(np.ones((2001, 5)), test_size=2000, random_state=0)
    counts = np.bincount(held_out.indices, minlength=5)
    assert counts.sum() == 2000
    assert np.abs(counts - 400).max() < 90


@pytest.mark.parametrize("fold_in", [0.0, 1.0, 1.5, np.nan])
def test_split_users_refuses_fold_in(fold_in):
    with pytest.raises(ValueError, match=f"fold_in={fold_in} must be a share"):
        split_users(random_ratings(), fold_in=fold_in)


# --- one of each user


def test_leave_one_out_takes_one_rating_of_each_user_with_two():
    X = random_ratings()
    known, y = leave_one_out(X, random_state=0)
    assert known.shape == X.shape
    held_out = {(row, item) for row, item in enumerate(y.tolist()) if item >= 0}
    assert held_out == entries(X).keys() - entries(known).keys()
    assert entries(known).items() <= entries(X).items()
    assert np.array_equal(y >= 0, np.diff(X.indptr) >= 2)
    assert y[0] == y[1] == -1


def test_leave_one_out_is_uniform_and_repeats():
    # Binomial(3000, 1/3), sd 25.8: five sds on three counts, a false alarm in 2e-6 of the seeds
    _, y = leave_one_out(np.ones((3000, 3)), random_state=0)
    assert np.abs(np.bincount(y) - 1000).max() < 129
    assert np.array_equal(y, leave_one_out(np.ones((3000, 3)), random_state=0)[1])
    assert not np.array_equal(y, leave_one_out(np.ones((3000, 3)), random_state=1)[1])


# --- tables


@pytest.mark.parametrize("seed", [0, 7])
def test_split_table_is_the_published_split(seed):
    frame = pd.DataFrame({"user": range(500), "rating": 1.0}, index=range(1000, 1500))
    train, test = split_table(frame, random_state=seed)
    expected = np.random.default_rng(seed).random(500) < 0.1
    pd.testing.assert_frame_equal(test, frame[expected])
    pd.testing.assert_frame_equal(train, frame[~expected])
    as_array = split_table(frame.to_numpy(), random_state=seed)[1]
    assert np.array_equal(as_array, test.to_numpy())


@pytest.mark.parametrize("test_size", [0, 1.0, 5, np.nan])
def test_split_table_refuses_test_size(test_size):
    with pytest.raises(ValueError, match=f"test_size={test_size} must be a probability"):
        split_table(np.arange(10), test_size=test_size)


def _ratings_in_time(kind):
    rng = np.random.default_rng(0)
    columns = {"user": rng.integers(0, 9, 200), "time": rng.integers(0, 60, 200), "rating": 1.0}
    if kind == "pandas":
        return pd.DataFrame(columns)
    if kind == "Arrow":
        return pytest.importorskip("pyarrow").table({**columns, "rating": np.ones(200)})
    frame = pytest.importorskip("polars").DataFrame(columns)
    return frame.lazy() if kind == "lazy" else frame


@pytest.mark.parametrize("kind", ["pandas", "polars", "lazy", "Arrow"])
def test_split_by_time_of_all_and_of_each_user(kind):
    frame = _ratings_in_time(kind)
    known, test = split_table(frame, 0.2, by="time")
    assert len(known) + len(test) == 200
    assert max(known["time"]) < min(test["time"])
    assert 40 <= len(test) < 50  # rows of one time stay together
    known, test = (pd.DataFrame(part.to_dict()) for part in split_table(frame, 0.2, by="user-time"))
    for user in range(9):
        earlier, later = (part["time"][part["user"] == user] for part in (known, test))
        assert len(later) == int(0.2 * (len(earlier) + len(later)))
        assert earlier.max() <= later.min()


@pytest.mark.parametrize("kind", ["pandas", "lazy", "Arrow"])
def test_rolling_folds_test_what_is_later_than_what_they_train_on(kind):
    times = np.asarray(pd.DataFrame(_ratings_in_time("pandas"))["time"])
    folds, tested = rolling_folds(_ratings_in_time(kind), 3, test_size=0.15), []
    assert len(folds) == 3
    for train, test in folds:
        assert times[train].max() < times[test].min()
        assert sorted([*train, *test]) == np.flatnonzero(times <= times[test].max()).tolist()
        assert 20 <= len(test) <= 40  # 30, and rows of one time stay together
        tested += test.tolist()
    assert len(set(tested)) == len(tested)
    assert times[tested].max() == times.max()
    assert np.diff([len(train) for train, _ in folds]).min() > 0
    # one fold is the split by time
    ((train, test),) = rolling_folds(_ratings_in_time("pandas"), 1, test_size=0.2)
    known, later = split_table(_ratings_in_time("pandas"), 0.2, by="time")
    assert [train.tolist(), test.tolist()] == [known.index.tolist(), later.index.tolist()]


DAYS = pd.date_range("2021-01-01", "2024-12-31", periods=150).floor("s")
FORMATS = ["%Y-%m-%d", "%Y%m%d", "%Y/%m/%d %H:%M", "%Y-%m-%dT%H:%M:%SZ", "%Y", "%Y%m%d%H%M%S"]
BERLIN = DAYS.tz_localize("Europe/Berlin")


TIMES = [
    *(DAYS.strftime(form) for form in FORMATS),
    *(pd.Categorical(DAYS.strftime("%Y-%m-%d")), DAYS, BERLIN, BERLIN.astype(object)),
    *([day.date() for day in DAYS], DAYS.to_period("D")),
    *([day.isoformat() for day in BERLIN], np.arange(150.0), [*map(str, range(150))]),
]


@pytest.mark.parametrize(
    ("times", "name"), [*zip(TIMES, cycle(["time", "timestamp", "Date"]), strict=False)], ids=str
)
def test_times_are_ordered_whatever_they_are(times, name):
    frame = pd.DataFrame({"user": np.arange(150) % 50, name: times, "true": DAYS})
    known, later = split_table(frame, by="time")
    assert known["true"].max() < later["true"].min()


@pytest.mark.parametrize(
    ("times", "words"),
    [
        (["31.12.2020", "01.02.2021"], "'31.12.2020', which must be numbers, dates, or texts"),
        (["31122020", "01022021"], "'31122020', .* convert the column by pandas.to_datetime"),
        ([31122020, 1022021], "'31122020', .* which says what is day and month"),
        (["2021-01-01T00:00Z", "2021-01-02T00:00"], "with a time zone, .*give all of them a zone"),
        ([DAYS[0], BERLIN[0]], "with a time zone, .*give all of them a zone"),
        ([1, "2021-01-01"], "times such as '1'"),
        ([(1, 2), (3, 4)], "must be numbers, dates, or texts"),
        ([5, 5], "leaves nothing to learn from.*none is older"),
        ([], "frame has no rows"),
        ([5, None], r"'time' has no time in 1 row, the first of them row 1"),
    ],
)
def test_times_without_an_order_are_refused(times, words):
    frame = pd.DataFrame({"user": [1, 2][: len(times)], "time": times})
    with pytest.raises(ValueError, match=words):
        split_table(frame, by="time")
