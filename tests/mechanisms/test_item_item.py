"""The noisy Gram matrix of clicks: plan, head, cleaning and lists."""

import numpy as np
import pytest
from scipy import sparse

from skdpmf import PrivacyBudget
from skdpmf.mechanisms.common import most_popular, share_of_features, unpack_lower
from skdpmf.mechanisms.gram import item_item as solver
from skdpmf.mechanisms.item_means.popularity import DOUBT, LIST, estimate_popularity
from skdpmf.privacy.budget import public_rows
from skdpmf.privacy.curator_release import Curator
from skdpmf.privacy.recording import Recorder, RecordingNoise
from skdpmf.privacy.sampler.streams import derived_key
from skdpmf.privacy.users import Rows
from tests.core.audit import users_of

N_USERS, N_ITEMS, SLOT = 120, 30, 5
LARGE = PrivacyBudget(20.0, 1e-5)  # so few users fill a head
SMALL = PrivacyBudget(0.5, 1e-5)


def clicks(seed=0, n_users=N_USERS, n_items=N_ITEMS):
    """Clicks of popular items and of users' own half of the catalogue; user SLOT has none."""
    rng = np.random.default_rng(seed)
    popularity = 0.6 / np.sqrt(1.0 + np.arange(n_items))
    taste = np.where(rng.random((n_users, 1)) < 0.5, [1.5, 0.5] * (n_items // 2), 1.0)
    X = (rng.random((n_users, n_items)) < popularity * taste).astype(float)
    X[SLOT] = 0.0
    return X


def run(X, budget):
    """Return the lists of one fit, and the records of its releases."""
    lists, _, records = cohort(X, budget, None)
    return lists, records


def cohort(X, budget, known, seed=0):
    """Return the lists of a fit that starts from knowledge, what it knows, and its records."""
    recorder = Recorder(None)
    noise = RecordingNoise(derived_key(seed, "test"), recorder)
    plan = solver.make_plan(budget, X.shape[1], X.shape[0])
    fitted = solver.fit(Curator(sparse.csr_array(X), plan, noise, 1), known=known)
    return *fitted, recorder.recording


def released_head(records):
    """Return the head, as everybody may know it from the releases."""
    counts, gram = records
    N = estimate_popularity(counts.output, counts.noise_scale).mean
    return most_popular(N, int(np.sqrt(2 * gram.statistic.size)))


def test_every_row_has_norm_one_before_it_is_clipped():
    """The clip of the sum changes nothing that the maps give."""
    X = clicks()
    X[6] = 1.0
    X[7], X[7, 0] = 0.0, 1.0
    records = run(X, LARGE)[1]
    trace = unpack_lower(records[1].statistic).trace()
    n_choosers = np.count_nonzero(X[:, released_head(records)].sum(axis=1))
    assert 0.99 * n_choosers < trace <= n_choosers


@pytest.mark.parametrize("n_rows", [None, 1, N_USERS, 10**6])
def test_plan_spends_the_budget_on_both_releases(n_rows):
    plan = solver.make_plan(LARGE, N_ITEMS, n_rows)
    shares = [plan.share(release) for release in plan.releases]
    assert sum(shares) == pytest.approx(1.0, abs=1e-6)
    rows = public_rows(n_rows) if n_rows else N_ITEMS
    part = 1.0 / (1.0 + LARGE.mu * rows / N_ITEMS**0.5 / solver.HALF_SHARE)
    assert shares[0] == pytest.approx(min(part, 0.5), rel=1e-6)
    assert [release.sensitivity for release in plan.releases] == [1.0, 1.0]
    assert plan.releases[1].shape == (N_ITEMS * (N_ITEMS + 1) // 2,)
    assert plan.releases[1].alternatives == (solver.COUNTS,)
    assert 19.9 < plan.epsilon <= 20.0
    budget = PrivacyBudget(8.0, 1e-5, neighbors="replace")
    replace = solver.make_plan(budget, N_ITEMS, n_rows)
    assert [release.sensitivity for release in replace.releases] == [np.sqrt(2.0)] * 2


def test_the_head_has_a_largest_size():
    shape = solver.make_plan(LARGE, 10**6, 10**6).releases[1].shape
    assert shape == (solver.MOST_HEAD * (solver.MOST_HEAD + 1) // 2,)
    N = np.full(4000, 1e6)
    assert solver.choose_head(N, 10**6, 1e-3, 0.01 * N) == solver.MOST_HEAD


def naive_head(N, n_users, deviation, doubt):
    """The docstring's rule, item by item."""
    t, s = n_users / max(N.sum(), n_users), deviation / np.sqrt(2.0)
    order = sorted(range(N.size), key=lambda j: -N[j])
    size, total = 0, 0.0
    for m, j in enumerate(order, start=1):
        total += t * N[j]
        if t * N[j] / s >= solver.ITEM_SIGNAL * np.sqrt(total / (s * np.sqrt(m))):
            size = m
    top = order[:LIST]
    return size if doubt[top].sum() <= DOUBT * N[top].sum() else 0


def test_head_is_that_of_the_formula():
    rng, sizes = np.random.default_rng(0), []
    for _ in range(400):
        n_users = int(10 ** rng.uniform(0, 5))
        N = rng.permutation(n_users * rng.random(rng.integers(1, 60)) ** rng.uniform(0.1, 9.0))
        deviation, doubt = 10 ** rng.uniform(-1, 3), N * 10 ** rng.uniform(-3.0, 0.0, N.size)
        sizes.append(solver.choose_head(N, n_users, deviation, doubt))
        assert sizes[-1] == naive_head(N, n_users, deviation, doubt)
    assert 40 < sizes.count(0) < 360
    assert len(set(sizes)) > 20


def test_a_head_of_many_items_may_have_more_doubt(monkeypatch):
    nothing, doubts = solver.CleanGram(np.empty(0, int), *np.empty((2, 0)), 1.0, True), []
    monkeypatch.setattr(
        solver, "noisy_gram", lambda *terms, **_: doubts.append(terms[5]) or nothing
    )
    for size in (LIST, 3 * LIST):
        monkeypatch.setattr(solver, "choose_head", lambda *_, size=size: size)
        run(clicks(), SMALL)
    np.testing.assert_allclose(doubts[0], 3.0 * doubts[1])


def test_counts_of_both_slots_are_combined_by_inverse_variance(monkeypatch):
    monkeypatch.setattr(solver, "share_of_first", lambda *_: 0.3)
    lists, (one, two) = run(clicks(), SMALL)
    assert one.statistic.shape == two.statistic.shape == (N_ITEMS,)
    np.testing.assert_array_equal(one.statistic, two.statistic)
    a, b = one.noise_scale**-2.0, two.noise_scale**-2.0
    assert b > 2.0 * a  # the second release is the better one
    N = estimate_popularity((a * one.output + b * two.output) / (a + b), (a + b) ** -0.5).mean
    typical = max(N.sum() / N_USERS, 1.0)
    np.testing.assert_allclose(lists.offsets, N * typical / N_USERS, rtol=1e-6)
    assert lists.encoder.shape == lists.decoder.shape == (N_ITEMS, 0)


def hostile_data():
    rng = np.random.default_rng(2)
    X = (rng.random((50, 6)) < 0.5).astype(float)
    unclicked = X.copy()
    unclicked[:, 2:5] = 0.0
    return {
        "empty": np.zeros((50, 6)),
        "one item": X[:, :1],
        "one user": X[:1] + 1.0,
        "items that nobody clicked": unclicked,
        "everything": np.ones((50, 6)),
        "light clicks": 1e-60 * X,
        "one click": np.eye(1, 6),
    }


@pytest.mark.parametrize("epsilon", [0.05, 1.0, 8.0, 50.0, np.inf])
@pytest.mark.parametrize("data", hostile_data())
def test_lists_are_finite_for_any_budget_and_data(data, epsilon):
    budget = PrivacyBudget(epsilon, 1e-5) if np.isfinite(epsilon) else PrivacyBudget.nonprivate()
    X = hostile_data()[data]
    lists, _ = run(X, budget)
    assert all(np.isfinite(part).all() for part in lists)
    assert lists.offsets.shape == X.shape[1:]
    assert lists.encoder.shape == lists.decoder.shape == (X.shape[1], lists.encoder.shape[1])
    assert (lists.offsets >= 0.0).all()
    assert lists.scale > 0.0


def scores(lists, X):
    """Scores without what each item adds to itself, and without offsets."""
    each = np.einsum("jd,jd->j", lists.encoder, lists.decoder)
    return X @ lists.encoder @ lists.decoder.T - X * each


def dense_scores(G, ridge, X):
    """EASE by one inverse."""
    P = np.linalg.inv(G + ridge * np.eye(len(G)))
    return X @ (np.eye(len(G)) - P / np.diag(P))


def test_rows_are_centred_and_of_length_one():
    X, head = clicks(), np.array([1, 4, 5, 9, 20])
    X[3] = 0.0
    q, grid = np.array([0.3, 0.1, 0.2, 0.25, 0.15]), 2.0**-20
    centres = solver._STEP * np.arange(solver._N_CENTRES)[:, None] * q / np.linalg.norm(q)
    rows = Rows(sparse.csr_array(X), 1)
    terms, number = solver.centred_rows(rows, rows.data, head, q, centres, grid)
    scaled = sparse.csr_array((terms, rows.indices, rows.indptr), X.shape).toarray()
    assert not np.delete(scaled, head, axis=1).any()
    found = scaled[:, head] - centres[number]
    x = X[:, head]
    y = x - x.sum(axis=1, keepdims=True) * q
    length = np.linalg.norm(y, axis=1, keepdims=True)
    sizes = np.hypot(np.linalg.norm(x, axis=1), np.linalg.norm(q) * x.sum(axis=1))
    usual = sizes < 0.9 * solver.MOST_CENTRE * length[:, 0]
    assert usual.mean() > 0.6
    expected = y / np.where(length > 0, length, 1.0)
    np.testing.assert_allclose(found[usual], expected[usual], atol=2.0 * solver._STEP)
    size = np.linalg.norm(found, axis=1)
    assert (size <= 1.0).all()
    assert (size[usual & x.any(axis=1)] > 1.0 - solver._STEP).all()


@pytest.mark.parametrize("is_centred", [True, False])
@pytest.mark.parametrize("rank", [0, 1, 5])
def test_lists_are_those_of_a_dense_inverse(rank, is_centred):
    rng = np.random.default_rng(rank)
    N, head = rng.uniform(1.0, 60.0, N_ITEMS), np.sort(rng.permutation(N_ITEMS)[:18])
    loadings, own = 4.0 * rng.normal(size=(18, rank)), rng.uniform(0.0, 30.0, 18)
    clean = solver.CleanGram(head, loadings, own, 7.5, is_centred)
    lists = solver.lists_of(clean, N, 200)
    X = rng.random((40, N_ITEMS)) * (rng.random((40, N_ITEMS)) < 0.4)
    if not rank:  # there is nothing but popularity
        assert lists.encoder.shape == (N_ITEMS, 0)
        assert (np.argsort(lists.offsets) == np.argsort(N)).all()
        return
    G = np.zeros((N_ITEMS, N_ITEMS))
    # an item outside of the head has the share of the head's diagonal that its count expects
    np.fill_diagonal(G, N / N[head].sum() * (own.sum() + np.sum(loadings**2)))
    G[np.ix_(head, head)] = loadings @ loadings.T + np.diag(own)
    if is_centred:
        Q = N / N.sum()
        G += 200**2 * np.outer(Q, Q)
    np.testing.assert_allclose(scores(lists, X), dense_scores(G, 7.5, X), rtol=1e-9, atol=1e-9)
    assert lists.offsets.max() == pytest.approx(solver.TIE)
    assert (np.argsort(lists.offsets) == np.argsort(N)).all()


def exact(users, rounds=()):
    rows = users.without_privacy()
    return solver.exact_gram(rows, rows.data, rounds)


def test_exact_gram_is_that_of_raw_clicks():
    X = clicks() * np.random.default_rng(0).uniform(0.1, 1.0, (N_USERS, N_ITEMS))
    X[:, 9] = 0.0
    rounds = iter(range(6))
    users = users_of(sparse.csr_array(X), private=False)
    clean = exact(users, rounds)
    assert clean.head.tolist() == [j for j in range(N_ITEMS) if j != 9]
    G = X[:, clean.head].T @ X[:, clean.head]
    np.testing.assert_allclose(clean.loadings @ clean.loadings.T + np.diag(clean.own), G, atol=1e-9)
    assert clean.own.max() < 1e-9
    assert not clean.is_centred
    assert next(rounds, None) is None


@pytest.mark.parametrize("dense", [0, 10**6])
def test_leading_vectors_are_those_of_the_dense_matrix(dense, monkeypatch):
    """What is left of the matrix is within two percent of the least, and lists follow from them."""
    for name, value in {"EXACT_RANK": 8, "DENSE": dense}.items():
        monkeypatch.setattr(solver, name, value)
    X = clicks(n_users=500) * np.random.default_rng(1).uniform(0.1, 1.0, (500, N_ITEMS))
    clean = exact(users_of(sparse.csr_array(X), private=False))
    G = X.T @ X
    found, least = clean.loadings @ clean.loadings.T, np.linalg.norm(np.linalg.eigvalsh(G)[:-8])
    assert least <= np.linalg.norm(G - found) < 1.02 * least
    np.testing.assert_allclose(clean.own + np.diag(found), np.diag(G), atol=1e-6)
    whole = solver.lists_of(clean, X.sum(axis=0), 500)
    dense_lists = dense_scores(found + np.diag(clean.own), clean.ridge, X)
    np.testing.assert_allclose(scores(whole, X), dense_lists, rtol=1e-7, atol=1e-7)


def test_cohorts_add_up_with_the_variances_of_their_noise():
    X = clicks(n_users=3 * 300)
    known, counts, grams, exact = None, [], [], []
    for t in range(3):
        _, known, (one, two) = cohort(X[300 * t : 300 * (t + 1)], LARGE, known, seed=t)
        counts.append(one.output)
        grams.append(two.output)
        exact.append(two.statistic)
    np.testing.assert_allclose(known.counts, sum(counts), rtol=1e-12)
    np.testing.assert_allclose(known.packed, sum(grams), rtol=1e-5, atol=1e-4)
    assert known.packed.dtype == np.float32
    assert known.variance[0] == pytest.approx(3.0 * one.noise_scale**2)
    assert known.facts.tolist() == pytest.approx([3.0 * two.noise_scale**2, 900.0])
    assert (known.exposure == 900.0).all()
    # noise of three releases, within a fifth of its deviation: off once in 1e6 times
    error = known.packed - sum(exact)
    m = known.head.size
    diagonal = np.cumsum(np.arange(1, m + 1)) - 1
    error[diagonal] /= np.sqrt(2.0)
    assert error.std() == pytest.approx(np.sqrt(known.facts[0] / 2.0), rel=0.2)


@pytest.mark.parametrize("edge", [0.42672114373024106, 0.7454248080083349])
def test_eigenvalues_within_the_edge_leave_no_loadings(edge):
    """The squares of these edges by numpy's power are larger than those by its product."""
    found = solver._loadings(np.array([-1.0, edge, 2.0 * edge]), np.eye(3), np.float64(edge))
    np.testing.assert_allclose(found, np.diag([0.0, 0.0, np.sqrt(np.sqrt(3.0) * edge)]), rtol=1e-12)


def test_the_first_head_stays_and_a_new_item_joins_popularity():
    X = clicks(n_users=1200)
    X[:, 3] = np.random.default_rng(5).random(1200) < 0.9  # new, and what most people choose
    old = np.delete(np.arange(N_ITEMS), 3)
    _, first, _ = cohort(X[:600, old], LARGE, None)
    lists, known, _ = cohort(X[600:][:, [*old, 3]], LARGE, first.with_items(1), seed=1)
    assert known.head.tolist() == first.head.tolist()
    assert np.array_equal(known.shares, first.shares)
    assert known.exposure.tolist() == [1200.0] * (N_ITEMS - 1) + [600.0]
    assert np.argmax(lists.offsets) == N_ITEMS - 1  # a half of the exposure is no half of users


def test_knowledge_of_other_items_does_not_fit():
    _, known, _ = cohort(clicks(), LARGE, None)
    assert known.fits(N_ITEMS)
    assert not known.fits(N_ITEMS + 1)
    assert known.with_items(1).fits(N_ITEMS + 1)
    assert not known._replace(packed=known.packed[1:]).fits(N_ITEMS)
    assert not known._replace(head=known.head + N_ITEMS).fits(N_ITEMS)
    assert not known._replace(facts=-known.facts).fits(N_ITEMS)


def noisy_low_rank(deviation, m=60, rank=3, seed=0):
    """A low-rank Gram matrix with an own part of each item, and it with noise as it is released."""
    rng = np.random.default_rng(seed)
    L = rng.normal(size=(m, rank)) * np.linspace(9.0, 5.0, rank)
    noise = np.tril(rng.normal(size=(m, m)), -1) / np.sqrt(2.0)
    noise += noise.T + np.diag(rng.normal(size=m))
    exact = L @ L.T + np.diag(rng.uniform(20.0, 60.0, m))
    return exact, L @ L.T, exact + deviation * noise


@pytest.mark.parametrize("deviation", [100.0, 30.0, 3.0])
def test_rounds_on_a_few_vectors_are_those_on_all(deviation):
    _, _, released = noisy_low_rank(deviation, m=200, rank=8)
    edge, filled, twin = solver.EDGE * 2.0 * deviation * np.sqrt(100.0), np.zeros(200), released
    for _ in range(solver.N_ROUNDS + 1):
        twin = twin - np.diag(np.diag(twin)) + np.diag(filled)
        values, vectors = np.linalg.eigh(twin)
        L = vectors * (np.maximum(values, edge) ** 2 - edge**2) ** 0.25
        filled = np.sum(L**2, axis=1)
    found = solver.clean_gram(released, deviation, range(solver.N_ROUNDS))[0]
    error = np.linalg.norm(found @ found.T - L @ L.T) / np.linalg.norm(L @ L.T)
    assert error < 0.02  # where noise is as large as the signal; 1e-4 where there is little


@pytest.mark.parametrize("deviation", [30.0, 3.0])
def test_lists_are_those_of_a_full_decomposition(deviation, monkeypatch):
    N, _, released = noisy_low_rank(deviation, m=500, rank=4)
    X, ranked = np.random.default_rng(1).random((50, 500)) < 0.05, []
    for largest in (
        solver.largest,
        lambda M, k: [a[..., : -k - 1 : -1] for a in np.linalg.eigh(M)],
    ):
        monkeypatch.setattr(solver, "largest", largest)
        L, own, _ = solver.clean_gram(released, deviation, range(solver.N_ROUNDS))
        clean = solver.CleanGram(np.arange(500), L, own, 9.0, True)
        ranked.append(np.argsort(scores(solver.lists_of(clean, N.diagonal(), 900), X))[:, -20:])
    np.testing.assert_array_equal(*ranked)


@pytest.mark.parametrize("noise", [0.0, 0.1, 3.0])
def test_neither_noise_nor_chance_is_a_taste(noise):
    """Gaussian matrices of such variances, with directions of twice the edge planted.

    Without noise the edge is tight: the largest eigenvalue is beyond it with probability .17
    (Tracy and Widom's law), by this seed not. Elsewhere variances are as little as half of their
    bound.
    """
    rng, m = np.random.default_rng(0), 300
    chance = 4.0 / (1.0 + np.arange(m)) ** 0.8
    deviation = noise + chance
    for n_tastes in (0, 1, 4):
        Z = np.tril(rng.normal(size=(m, m)))
        work = (Z + np.tril(Z, -1).T) * np.sqrt(noise**2 + np.outer(chance, chance))
        P = np.linalg.qr(rng.normal(size=(m, n_tastes)))[0] * np.sqrt(deviation)[:, None]
        work += 4.0 * np.sqrt(m) * P @ P.T
        vectors = np.linalg.eigh(work)[1][:, -60:]
        assert solver._count_tastes(work, vectors, deviation) == n_tastes


def choices(tastes, seed=0, n_users=4000, n_items=200):
    """Twelve clicks a user, by popularity and by tastes of these deviations."""
    rng = np.random.default_rng(seed)
    U, V = (rng.normal(size=(n, len(tastes))) for n in (n_users, n_items))
    appeal = (U * tastes) @ V.T - 0.7 * np.log1p(np.arange(n_items))
    ranks = np.argsort(np.argsort(-appeal - rng.gumbel(size=appeal.shape), axis=1), axis=1)
    return (ranks < 12).astype(float)


@pytest.mark.parametrize("epsilon", [2.0, 20.0])
def test_lists_have_few_vectors_without_tastes(monkeypatch, epsilon):
    """No more than for one taste, however many are beyond the edge; with tastes, more."""

    def size(tastes):
        """Vectors of tastes, without that of popularity."""
        return run(choices(tastes), PrivacyBudget(epsilon, 1e-5))[0].encoder.shape[1] - 1

    assert size([0.0]) == solver.VECTORS_A_TASTE < size([1.0, 1.0, 1.0])
    monkeypatch.setattr(solver, "VECTORS_A_TASTE", 1000)
    assert size([0.0]) > 8


def with_features(users, columns, budget=LARGE, seed=0):
    noise = RecordingNoise(derived_key(seed, "test"), Recorder(None))
    plan = solver.make_plan(budget, users.shape[1], users.shape[0])
    curator = Curator(sparse.csr_array(users), plan, noise, 1, item_columns=columns)
    return solver.fit(curator)[0]


def test_the_share_of_features_is_found_within_its_error():
    """Four of its errors, which the regression on symmetric noise has, hold once in 16,000."""
    rng = np.random.default_rng(0)
    A, deviation = rng.normal(size=(60, 4)), 3.0
    errors = []
    for seed in range(40):
        noise = np.random.default_rng(seed + 1).normal(0.0, deviation / np.sqrt(2.0), (60, 60))
        noise = np.triu(noise) + np.triu(noise, 1).T
        share, error = share_of_features(0.7 * A @ A.T + noise, A, deviation)
        errors.append((share - 0.7) / error)
    assert np.abs(errors).max() < 4.0
    assert 0.7 < np.std(errors) < 1.4
    assert share_of_features(noise, np.zeros((60, 4)), deviation) == (0.0, 0.0)


def test_features_that_are_zero_are_none():
    users = clicks(n_users=3000)
    without, zero = (with_features(users, columns) for columns in (None, np.zeros((N_ITEMS, 2))))
    np.testing.assert_allclose(scores(zero, users[:9]), scores(without, users[:9]), atol=1e-12)


def sampled(n_people, seed=3):
    """Clicks of public people, of the same law."""
    return sparse.csr_array(clicks(seed, n_people + SLOT + 1)[SLOT + 1 :])


def both(public, budget, X=None, seed=0):
    """Return the lists of a fit beside public people, and the records of its releases."""
    X = clicks(0, 600) if X is None else X
    recorder = Recorder(None)
    noise = RecordingNoise(derived_key(seed, "test"), recorder)
    plan = solver.make_plan(budget, N_ITEMS, X.shape[0])
    people = None if public is None else solver.learn_public(public)
    lists = solver.fit(Curator(sparse.csr_array(X), plan, noise, 1), public=people)[0]
    return lists, recorder.recording


def expected_gram(n_people=40_000):
    """The Gram matrix of a person, from many."""
    many = sampled(n_people, 9)
    N = np.asarray(many.sum(axis=0), dtype=float)
    head = np.arange(N_ITEMS)
    return head, N / N.sum() * 2.0, solver._public_gram(many, head, N) / n_people


def test_no_public_rows_change_nothing():
    without, with_none = both(None, LARGE), both(sparse.csr_array((4, N_ITEMS)), LARGE)
    for one, other in zip(without[0], with_none[0], strict=True):
        np.testing.assert_array_equal(one, other)


def test_rows_of_public_people_are_as_those_of_private_ones():
    """Up to the rounding of centres."""
    X = clicks(0, 300)
    records = both(None, LARGE, X)[1]
    head = released_head(records)
    N = estimate_popularity(records[0].output, records[0].noise_scale).mean
    exact = unpack_lower(records[1].statistic)
    np.testing.assert_allclose(
        solver._public_gram(sparse.csr_array(X), head, N), exact, atol=0.01 * exact.max()
    )


def test_infinite_noise_leaves_public_people_alone_and_none_the_release():
    """Without noise the release of many is far more exact than few people; with it, nothing is."""
    head, N, G = expected_gram()
    n_users, people = 1e7, solver.learn_public(sampled(600))
    N = N * n_users
    features, rounds = np.zeros((N_ITEMS, 0)), range(solver.N_ROUNDS)

    def matrix(private):
        clean = solver.with_public_gram(people, N, n_users, features, rounds, private)
        whole = clean.loadings @ clean.loadings.T + np.diag(clean.own)
        return clean.head, whole / n_users, clean.ridge

    alone, noisy = matrix(None), matrix((head, G * n_users, 1e6 * n_users))
    np.testing.assert_array_equal(alone[0], noisy[0])
    np.testing.assert_allclose(noisy[1], alone[1], atol=1e-3 * np.abs(alone[1]).max())
    assert alone[2] == noisy[2]
    exact = matrix((head, G * n_users, 1e-3))[1]
    L, own, _ = solver.clean_gram(G * n_users, 1e-3, rounds)
    private = (L @ L.T + np.diag(own)) / n_users
    far = [np.linalg.norm(found - private) for found in (exact, alone[1])]
    assert far[0] < 0.35 * far[1]


def test_both_together_are_nearer_than_either():
    head, N, G = expected_gram()
    n_users, rng = 3000.0, np.random.default_rng(0)
    off, features = ~np.eye(N_ITEMS, dtype=bool), np.zeros((N_ITEMS, 0))
    far, deviation = [], 6.0
    for seed in range(8):
        noise = np.tril(rng.normal(size=G.shape), -1)
        released = n_users * G + (noise + noise.T) * deviation / np.sqrt(2.0)
        people = solver.learn_public(sampled(600, seed))
        given = people, N * n_users, n_users, features, range(5)
        L = solver.clean_gram(released, deviation, range(5))[0]
        found = [L @ L.T]
        for private in (None, (head, released, deviation)):
            clean = solver.with_public_gram(*given, private)
            found.append(clean.loadings @ clean.loadings.T)
        far.append([np.linalg.norm((one - n_users * G)[off]) for one in found])
    private, public, joint = np.mean(far, axis=0)
    assert joint < 1.02 * min(private, public), (private, public, joint)


def test_people_who_are_unlike_others_count_for_little():
    """One learnt variance: fans of a few items are worth fewer, people of the same law are not."""
    X = clicks(0, 600)
    counts = np.asarray(X / np.sqrt(np.maximum(X.sum(axis=1), 1.0))[:, None]).sum(axis=0)
    terms = (counts, 1.0), (counts, np.full(N_ITEMS, 1.0)), 600.0
    like = [solver.with_public_counts(solver.learn_public(sampled(200, s)), *terms) for s in (1, 2)]
    assert min(people.worth for people, *_ in like) > 150.0
    fans = clicks(3, 200)
    fans[:, : N_ITEMS // 3] = 0.0
    unlike = solver.with_public_counts(solver.learn_public(sparse.csr_array(fans)), *terms)
    assert unlike[0].worth < 20.0
    np.testing.assert_allclose(unlike[1], counts, rtol=0.15)


def test_popularity_is_by_precision():
    """With large noise it is that of public people, of many without noise that of private ones."""
    N, public = np.linspace(50.0, 200.0, N_ITEMS), solver.learn_public(sampled(400))
    vague = solver.with_public_counts(public, (N, 1e9), (N, np.full(N_ITEMS, 1e9)), 1000.0)[1]
    own = public.counts * float(N @ public.counts) / float(public.counts @ public.counts)
    np.testing.assert_allclose(vague, own, rtol=1e-6)
    exact = (1e6 * N, 1e-3), (1e6 * N, np.full(N_ITEMS, 1e-3)), 1e9
    np.testing.assert_allclose(solver.with_public_counts(public, *exact)[1], 1e6 * N, rtol=1e-3)


@pytest.mark.parametrize("n_people", [1, 3, 40])
@pytest.mark.parametrize("epsilon", [0.01, 0.5, 50.0])
def test_few_public_people_give_finite_lists(n_people, epsilon):
    for own in (clicks(), np.zeros((N_USERS, N_ITEMS))):
        lists, _ = both(sampled(n_people), PrivacyBudget(epsilon, 1e-5), own)
        assert all(np.all(np.isfinite(part)) for part in lists)
