"""Metrics against hand-computed cases, slow twins, scikit-learn's own and invariances."""

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose
from scipy import sparse
from sklearn.metrics import root_mean_squared_error

from skdpmf import evaluation as ev
from skdpmf.data.labelled_rows import RatingMatrix
from skdpmf.evaluation.metrics import (
    average_precision_at_k,
    reciprocal_rank_at_k,
)
from tests.matrices import csr

NAN = np.nan
FORMATS = [
    sparse.csr_matrix,
    sparse.csc_matrix,
    sparse.coo_matrix,
    sparse.csr_array,
    sparse.coo_array,
]
RANKING = [
    ev.recall_at_k,
    ev.ndcg_at_k,
    average_precision_at_k,
    reciprocal_rank_at_k,
    ev.precision_at_k,
]


def ratings_and_predictions(seed=0, shape=(30, 12)):
    rng = np.random.default_rng(seed)
    y_true = np.where(rng.random(shape) < 0.4, rng.integers(0, 6, shape), NAN).astype(float)
    return y_true, rng.normal(3.0, 1.0, shape)


@pytest.mark.parametrize("container", FORMATS)
def test_every_container_gives_the_same_error(container):
    metric, oracle = ev.rmse, root_mean_squared_error
    y_true, y_pred = ratings_and_predictions()
    known = ~np.isnan(y_true)
    expected = oracle(y_true[known], y_pred[known])
    at_known = csr(np.where(known, y_pred, NAN))
    assert_allclose(metric(y_true[known], y_pred[known]), expected, rtol=1e-14)
    assert_allclose(metric(y_true, y_pred), expected, rtol=1e-14)
    assert_allclose(metric(y_true.ravel(), y_pred.ravel()), expected, rtol=1e-14)
    assert_allclose(metric(pd.DataFrame(y_true), pd.DataFrame(y_pred)), expected, rtol=1e-14)
    assert_allclose(metric(container(csr(y_true)), y_pred), expected, rtol=1e-14)
    assert_allclose(metric(container(csr(y_true)), container(at_known)), expected, rtol=1e-14)
    assert_allclose(metric(y_true, container(at_known)), expected, rtol=1e-14)


def test_stored_zero_is_a_rating_and_unstored_is_unknown():
    y_true = sparse.csr_array((np.array([0.0]), ([0], [1])), shape=(1, 3))
    assert ev.rmse(y_true, [[9.0, 2.0, 9.0]]) == 2.0


@pytest.mark.parametrize(
    ("y_true", "y_pred", "message"),
    [
        ([1.0, 2.0], [1.0], r"y_pred has shape \(1,\) and y_true has shape \(2,\)"),
        ([NAN, NAN], [1.0, 2.0], "holds no known rating"),
        (sparse.csr_array((2, 2)), np.ones((2, 2)), "holds no known rating"),
        ([1.0, 2.0], [1.0, NAN], "1 of the 2 known entries.*row 0, column 1"),
        (csr([[1.0, 2.0]]), sparse.csr_array((1, 2)), "2 of the 2 known entries"),
        (csr([[1.0, 2.0, NAN]]), csr([[1.0, NAN, 3.0]]), "1 of the 2 known.*row 0, column 1"),
        (csr([[1.0, np.inf]]), [[1.0, 2.0]], "y_true holds infinite ratings, which must be"),
    ],
)
def test_error_metrics_refuse(y_true, y_pred, message):
    with pytest.raises(ValueError, match=message):
        ev.rmse(y_true, y_pred)


def slow_ranking(relevant, ranked, k):
    """All of RANKING with sets and loops; relevant: one set a user."""
    recall, ndcg, average, first, precision = [], [], [], [], []
    for targets, row in zip(relevant, ranked, strict=True):
        if not targets:
            continue
        found = [rank for rank, item in enumerate(row[:k]) if item in targets]
        reachable = min(k, len(targets))
        recall.append(len(found) / reachable)
        ndcg.append(
            sum(1 / np.log2(rank + 2) for rank in found)
            / sum(1 / np.log2(rank + 2) for rank in range(reachable))
        )
        average.append(
            sum(len(targets & set(row[: rank + 1])) / (rank + 1) for rank in found) / reachable
        )
        first.append(1 / (found[0] + 1) if found else 0.0)
        precision.append(len(found) / k)
    return [np.mean(values) for values in (recall, ndcg, average, first, precision)]


def random_targets_and_ranking(seed, n_users=60, n_items=17, width=12):
    rng = np.random.default_rng(seed)
    targets = rng.random((n_users, n_items)) < rng.choice([0.0, 0.1, 0.5], (n_users, 1))
    ranked = np.argsort(rng.random((n_users, n_items)), axis=1)[:, :width]
    ranked[rng.random(n_users) < 0.3, width // 2 :] = -1
    return targets, ranked


@pytest.mark.parametrize("k", [1, 2, 5, 12])
@pytest.mark.parametrize("seed", [0, 1])
def test_ranking_equals_the_slow_twin(k, seed):
    targets, ranked = random_targets_and_ranking(seed)
    expected = slow_ranking([set(np.flatnonzero(row)) for row in targets], ranked, k)
    relevant = csr(np.where(targets, 3.0, NAN))
    got = [metric(relevant, ranked, k) for metric in RANKING]
    assert_allclose(got, expected, rtol=1e-13)


@pytest.mark.parametrize("metric", RANKING)
@pytest.mark.parametrize(
    ("relevant", "ranked", "k", "message"),
    [
        ([0, 1], [[0, 1], [1, 0]], 0, "k == 0, must be >= 1"),
        ([0, 1], [[0], [1]], 2, r"shape \(2, 1\) and must have 2 rows.*k=2 columns"),
        ([0, 1], [0, 1], 1, r"ranked of shape \(2,\).*first of the two results of recommend"),
        ([0, 1], [[0.0], [1.0]], 1, "dtype float64 must be a 2-D array of item indices"),
        ([0.0, 1.0], [[0], [1]], 1, "relevant of shape .* dtype float64"),
        ([-1, -1], [[0], [1]], 1, "no target for any of the 2 users"),
        (sparse.csr_array((2, 3)), [[0], [1]], 1, "no target for any of the 2 users"),
        (csr([[1.0, NAN]]), [[2]], 1, "ranked names item 2 and the catalogue has 2 items"),
        (csr([[1.0, 1.0]]), [[0, 0]], 2, "names an item twice in one row"),
    ],
)
def test_ranking_metrics_refuse(metric, relevant, ranked, k, message):
    with pytest.raises(ValueError, match=message):
        metric(relevant, ranked, k)


def slow_coverage(n_items, ranked, k):
    return len({item for row in ranked for item in row[:k] if item >= 0}) / n_items


def slow_novelty(counts, ranked, k, n_users):
    users = []
    for row in ranked:
        bits = [-np.log2(max(counts[item], 1) / n_users) for item in row[:k] if item >= 0]
        if bits:
            users.append(sum(bits) / len(bits))
    return sum(users) / len(users)


@pytest.mark.parametrize("k", [1, 2, 5, 12])
@pytest.mark.parametrize("seed", [0, 1])
def test_coverage_and_novelty_equal_their_slow_twins(k, seed):
    _, ranked = random_targets_and_ranking(seed)
    ranked = ranked[:6]  # few enough that some items stand in no list
    ranked[0] = -1
    counts = np.random.default_rng(seed).integers(0, 40, 17)
    got = ev.catalogue_coverage_at_k(17, ranked, k)
    assert 0 < got == pytest.approx(slow_coverage(17, ranked, k), rel=1e-15)
    got = ev.novelty_at_k(counts, ranked, k, n_users=40)
    assert 0 < got == pytest.approx(slow_novelty(counts, ranked, k, 40), rel=1e-13)


def slow_diversity(vectors, ranked, k):
    users = []
    for row in ranked:
        items = [item for item in row[:k] if item >= 0]
        distances = []
        for i, one in enumerate(items):
            for other in items[:i]:
                a, b = vectors[one], vectors[other]
                length = np.linalg.norm(a) * np.linalg.norm(b)
                distances.append(1.0 - (a @ b / length if length else 0.0))
        if distances:
            users.append(np.mean(distances))
    return np.mean(users)


@pytest.mark.parametrize("k", [2, 5, 12])
def test_diversity_equals_its_slow_twin(k):
    _, ranked = random_targets_and_ranking(3)
    ranked[0], ranked[1, 1:] = -1, -1  # no item, and one: both lists have no pair
    rng = np.random.default_rng(k)
    features = np.where(rng.random((17, 4)) < 0.5, 1.0, 0.0)
    for vectors in (features, rng.normal(size=(17, 3))):
        got = ev.intra_list_diversity_at_k(vectors, ranked, k)
        assert 0 < got == pytest.approx(slow_diversity(vectors, ranked, k), rel=1e-12)
        for same in (sparse.csr_array(vectors), pd.DataFrame(vectors), 7.0 * vectors):
            assert ev.intra_list_diversity_at_k(same, ranked, k) == pytest.approx(got, rel=1e-12)


def test_bounds_of_diversity():
    alike, apart = np.ones((3, 2)), np.eye(3)
    lists = [[0, 1, 2], [2, 0, -1]]
    assert ev.intra_list_diversity_at_k(alike, lists, 3) == pytest.approx(0.0, abs=1e-15)
    assert ev.intra_list_diversity_at_k(apart, lists, 3) == 1.0
    assert ev.intra_list_diversity_at_k([[1.0], [-1.0]], [[0, 1]], 2) == pytest.approx(2.0)
    for vectors, ranked, k, message in (
        (apart, lists, 1, "k == 1, must be >= 2"),
        (apart, [[0, -1]], 2, "two items for none of the 1 users"),
        (apart, [[0, 3]], 2, "names item 3 and the catalogue has 3 items"),
        (np.full((3, 1), NAN), lists, 2, "NaN"),
    ):
        with pytest.raises(ValueError, match=message):
            ev.intra_list_diversity_at_k(vectors, ranked, k)


def test_interval_is_of_draws_of_users():
    targets, ranked = random_targets_and_ranking(9)
    relevant = csr(np.where(targets, 1.0, NAN))
    got = ev.bootstrap_interval(
        ev.recall_at_k, relevant, ranked, k=5, n_resamples=99, confidence=0.8, random_state=3
    )
    rng, found = np.random.default_rng(3), []
    for _ in range(99):
        rows = rng.integers(60, size=60)
        found.append(slow_ranking([set(np.flatnonzero(targets[i])) for i in rows], ranked[rows], 5))
    assert_allclose(got, np.quantile([each[0] for each in found], [0.1, 0.9]), rtol=1e-12)
    assert got[0] < ev.recall_at_k(relevant, ranked, 5) < got[1]
    for same in (relevant.tocoo(), RatingMatrix(relevant), np.where(targets, 1.0, NAN)):
        again = ev.bootstrap_interval(ev.recall_at_k, same, ranked.tolist(), k=5, n_resamples=9)
        assert again == ev.bootstrap_interval(ev.recall_at_k, relevant, ranked, k=5, n_resamples=9)


def test_the_baseline_ranks_unseen_items_by_exact_counts():
    rng = np.random.default_rng(0)
    X, known = (csr(np.where(rng.random((n, 9)) < 0.4, 1.0, NAN)) for n in (40, 12))
    counts = (X.toarray() > 0).sum(axis=0)
    items, scores = ev.popularity(X, known, n=6)
    for row, own, score in zip(known.toarray(), items, scores, strict=True):
        left = sorted((j for j in range(9) if not row[j]), key=lambda j: (-counts[j], j))[:6]
        assert own.tolist() == left + [-1] * (6 - len(left))
        assert score.tolist() == [*counts[left], *[-np.inf] * (6 - len(left))]
    for same in (counts, X.toarray()[:, ::1] + np.where(X.toarray(), 0.0, NAN)):
        np.testing.assert_array_equal(ev.popularity(same, RatingMatrix(known), 6)[0], items)
    assert ev.popularity(X, known, 99)[0].shape == (12, 9)
    with pytest.raises(ValueError, match="has 8 items and X has 9 columns"):
        ev.popularity(counts[:8], known)
    with pytest.raises(ValueError, match="n == 0, must be >= 1"):
        ev.popularity(counts, known, 0)


def test_by_popularity_equals_column_slices():
    X_train, y_pred = ratings_and_predictions(2)
    y_true, _ = ratings_and_predictions(3)
    counts = (~np.isnan(X_train)).sum(axis=0)
    table = ev.by_popularity(X_train, y_true, y_pred, n_buckets=4)
    assert list(table.columns) == ["n_items", "min_count", "max_count", "n_ratings", "rmse"]
    order = np.argsort(counts, kind="stable").reshape(4, 3)
    for bucket, items in enumerate(order):
        row = table.loc[bucket]
        assert (row.n_items, row.min_count, row.max_count) == (
            3,
            counts[items].min(),
            counts[items].max(),
        )
        assert row.n_ratings == (~np.isnan(y_true[:, items])).sum()
        assert row.rmse == pytest.approx(ev.rmse(y_true[:, items], y_pred[:, items]), rel=1e-13)
    pooled = np.sqrt(np.average(table.rmse**2, weights=table.n_ratings))
    assert pooled == pytest.approx(ev.rmse(y_true, y_pred), rel=1e-13)
    from_counts = ev.by_popularity(counts, csr(y_true), y_pred, 4)
    pd.testing.assert_frame_equal(table, from_counts)
