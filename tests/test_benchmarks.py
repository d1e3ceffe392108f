"""The scripts that compare with peers, and with the model without privacy, on made-up ratings."""

import importlib
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import sparse

from skdpmf import AdaptiveWeightALS, PrivacyBudget
from skdpmf.data import make_ratings
from skdpmf.data.matrix import matrix_to_ratings
from skdpmf.evaluation import split_ratings
from skdpmf.mechanisms.als.dpals import GRAM, RHS, TRAINING_RIDGE
from skdpmf.privacy.accounting import gaussian_mu
from skdpmf.privacy.plan import Release, ReleasePlan
from tests.built import built

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"
PEERS = ("surprise", "cornac", "implicit", "diffprivlib", "tensorflow")


@pytest.fixture
def script(monkeypatch):
    """Import a script, as if no peer were installed and no ratings were at hand."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    monkeypatch.delenv("SKDPMF_DATA", raising=False)
    for name in PEERS:
        monkeypatch.setitem(sys.modules, name, None)
    return importlib.import_module


# Peers


@pytest.mark.parametrize("table", ["ratings", "recipe", "clicks", "item-means"])
def test_peers_table_is_made(table, script, capsys):
    bench, models = script("bench_peers"), script("peer_models")
    small = ["--synthetic", "--shape", "120", "40", "--seeds", "1", "--tables", table]
    bench.main([*small, "--epsilons", "4", "--click-epsilons", "4"])
    printed = capsys.readouterr().out
    rows = [line for line in printed.splitlines() if line.startswith("| ")]
    assert "nan" not in printed
    assert {"ratings": 1, "recipe": 2, "clicks": 3, "item-means": 1}[table] == printed.count("## ")
    if table in ("ratings", "clicks"):
        listed = models.RATINGS if table == "ratings" else models.CLICKS
        for model in listed:
            own = [row for row in rows if row.startswith(f"| {model.name} | {model.package} |")]
            assert len(own) == (1 if table == "ratings" else 2)
            # what cannot be imported has a row that says so, what protects nobody says that
            assert all(("not run: ModuleNotFoundError" in row) == bool(model.needs) for row in own)
            assert model.needs or all(("not private" in row) != model.private for row in own)
    if table == "item-means":
        assert sum("not run" in row for row in rows) == 1


def test_reason_of_an_import_error_names_no_folder(script, monkeypatch):
    models = script("peer_models")

    def fail(name):
        raise ImportError(f"cannot import name 'x' from '{name}' (/somewhere/{name}.so)")

    monkeypatch.setattr(models, "import_module", fail)
    assert models.missing(("a", "b")) == "ImportError: cannot import name 'x' from 'a'"


def entries(R):
    return set(zip(*(place.tolist() for place in R.nonzero()), strict=True))


def test_settings_are_chosen_without_the_test_part(script):
    bench = script("bench_peers")
    R = make_ratings(100, 30, density=0.5, random_state=0)
    X, Y = split_ratings(R, random_state=0)
    task = bench.rating_task(X, Y, (1.0, 5.0))
    inner, held_out = entries(task.choice.X), entries(task.choice.asked)
    assert not inner & held_out
    assert inner | held_out == entries(X)
    assert not (inner | held_out) & entries(Y)
    task = bench.click_task(R, 1)
    # rows of clicks differ: they tell the users apart
    rows = {
        part: [tuple(row) for row in matrix.toarray()]
        for part, matrix in {
            "inner": task.choice.X,
            "validation": task.choice.asked + task.choice.truth,
            "training": task.test.X,
            "test": task.test.asked + task.test.truth,
        }.items()
    }
    assert sorted(rows["inner"] + rows["validation"]) == sorted(rows["training"])
    assert not set(rows["training"]) & set(rows["test"])
    assert len(set(rows["training"])) == len(rows["training"])


@pytest.mark.parametrize("largest", [True, False])
def test_choice_takes_the_best_of_the_grid(largest, script):
    bench, models = script("bench_peers"), script("peer_models")
    grid = {"x": [3.0, -1.0, 7.0, 2.0]}
    model = models.Model("m", "p", lambda X, asked, x: x, grid)
    part = bench.Part(None, None, None)
    task = bench.Task(part, part, lambda truth, x: [-x, x], largest, {})
    assert bench.chosen_settings(task, model) == {"x": 7.0 if largest else -1.0}


def test_what_was_clicked_is_ranked_last(script):
    known = sparse.csr_array(np.array([[1.0, 0, 0, 1], [0, 0, 0, 0]]))
    ranked = script("peer_models").best_unseen([[9, 1, 2, 8], [1, 2, 3, 4]], known)
    assert ranked.tolist() == [[2, 1, 0, 3], [3, 2, 1, 0]]


def test_means_of_peers_predict_as_our_own_do(script):
    models = script("peer_models")
    X, Y = split_ratings(make_ratings(60, 20, density=0.5, random_state=0), random_state=0)
    model = models.DPItemMeans(PrivacyBudget.nonprivate()).fit(X)
    predicted = np.clip(models.with_means(model.item_means_, X, Y), 1.0, 5.0)
    np.testing.assert_allclose(predicted, model.predict_entries(X, Y).data, rtol=1e-12)


@pytest.fixture
def peer_models(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module("peer_models")


@pytest.mark.filterwarnings("ignore")  # the peers' own
def test_peers_predict_what_they_would_themselves(peer_models):
    surprise, cornac = pytest.importorskip("surprise"), pytest.importorskip("cornac.models")
    X, Y = split_ratings(make_ratings(60, 20, density=0.5, random_state=0), random_state=0)
    data, dataset = peer_models.Surprise(X).trainset, peer_models.Cornac(X).dataset
    places = list(zip(*Y.nonzero(), strict=True))
    data.ir = {item: [] for item in range(20)}
    for user, ratings in data.ur.items():
        for item, rating in ratings:
            data.ir[item].append((user, rating))
    svd = surprise.SVD(100, 5, random_state=0).fit(data)
    baseline = surprise.BaselineOnly(verbose=False).fit(data)
    pmf = cornac.PMF(k=4, max_iter=5, seed=0).fit(dataset)
    for ours, theirs in (
        (peer_models.surprise_svd(X, Y, n_epochs=5), [svd.estimate(u, i) for u, i in places]),
        (peer_models.surprise_baseline(X, Y), [baseline.estimate(u, i) for u, i in places]),
        (peer_models.cornac_pmf(X, Y, k=4, max_iter=5), [pmf.score(u, i) for u, i in places]),
    ):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5)


@pytest.mark.filterwarnings("ignore")
def test_peers_rank_what_they_would_themselves(peer_models):
    als, cornac = pytest.importorskip("implicit.cpu.als"), pytest.importorskip("cornac.models")
    R = (make_ratings(80, 30, density=0.5, random_state=0) > 3.5).astype(float)
    X, known = sparse.csr_matrix(R[:60]), sparse.csr_matrix(R[60:])
    fitted = als.AlternatingLeastSquares(8, num_threads=1, random_state=0)
    fitted.fit(X, show_progress=False)
    theirs = fitted.recommend(np.arange(20), known, N=5, recalculate_user=True)[0]
    ours = peer_models.implicit_als(X, known, factors=8)
    assert np.mean(ours[:, :5] == theirs) > 0.98  # in single precision ranks may swap
    # a user of the training part has the same clicks as a held-out one: EASE needs no fit for it
    ease = cornac.EASE(verbose=False).fit(peer_models.Cornac(X).dataset)
    ranked = peer_models.cornac_ease(X, X)
    for user in range(60):
        scores = np.asarray(ease.score(user)).ravel()
        scores[X.indices[X.indptr[user] : X.indptr[user + 1]]] = -np.inf
        assert ranked[user, 0] == np.argmax(scores)


# The published recipe: noise s of item statistics, by its authors' accountant and by ours. The
# figures were computed once with dp-accounting 0.6 and its orders, and in closed form.
NOISE = {1.0: (82.65, 75.97), 5.0: (24.04, 22.42), 20.0: (9.05, 8.58)}


def published_plan(recipe, mu):
    """The releases that are accounted, as a plan of ours: their shares follow from the noise."""
    releases = [
        Release("counts", "sums", (9,), 10.0),
        Release("mean", "sums", (2,), 1.0),
        Release("Gram", "sums", (9,), 10.0, count=recipe.max_iter),
        Release("sides", "sums", (9,), 10.0, count=recipe.max_iter),
    ]
    counts, mean = 100.0 / recipe.count_std**2 / mu**2, 2.0 / recipe.count_std**2 / mu**2
    rest = (1.0 - counts - mean) / 2.0
    shares = {"counts": counts, "mean": mean, "Gram": rest, "sides": rest}
    return releases, shares


@pytest.mark.parametrize("epsilon", NOISE)
def test_recipe_has_the_noise_of_its_accounting(epsilon, script):
    published = script("published_recipe")
    recipe, budget = published.RECIPES[epsilon], PrivacyBudget(epsilon, published.DELTA)
    theirs, exact = NOISE[epsilon]
    assert recipe.noise(published.published_mu(epsilon)) == pytest.approx(theirs, abs=0.005)
    mu = gaussian_mu(epsilon, published.DELTA)
    assert recipe.noise(mu) == pytest.approx(exact, abs=0.005)
    # the same from our plan's own calibration, and back from noise to epsilon
    plan = ReleasePlan.from_shares(budget, *published_plan(recipe, mu))
    counts, _, gram, sides = plan.releases
    assert counts.noise_scale == pytest.approx(recipe.count_std, rel=1e-6)
    assert 10.0 * gram.noise_multiplier == pytest.approx(exact, abs=0.005)
    assert sides.noise_multiplier == gram.noise_multiplier
    assert recipe.epsilon(recipe.noise(mu)) == pytest.approx(epsilon, rel=1e-6)


def test_recipe_promises_more_than_it_keeps(script):
    published = script("published_recipe")
    # proven elsewhere for a user whose ratings are all the lowest: 2.2, 11.9, 54.5 without a bound
    # on ratings, 3.1, 19.7, 127 with the mean's sensitivity as well
    worth = {1.0: (0.915, 2.2, 3.1), 5.0: (4.63, 11.9, 19.7), 20.0: (18.76, 54.5, 127.0)}
    for row, found in zip(published.accounting_rows(), worth.values(), strict=True):
        assert [float(cell) for cell in row[2:5]] == pytest.approx(found, rel=0.01)


@pytest.mark.parametrize("epsilon", NOISE)
def test_recipe_is_a_configuration_of_the_solver(epsilon, script):
    published = script("published_recipe")
    recipe, budget = published.RECIPES[epsilon], PrivacyBudget(epsilon, published.DELTA)
    d, users_penalty = recipe.n_components, {}
    for name in published.METHODS:
        params = recipe.params(name)
        plan = built(AdaptiveWeightALS, budget, **params).plan(500)
        releases = {release.name: release for release in plan.releases}
        assert releases[GRAM].shape == (500, d * (d + 1) // 2)
        assert releases[RHS].shape == (500, d)
        assert releases[GRAM].count == releases[RHS].count == recipe.max_iter
        assert 0.999 * epsilon < plan.epsilon <= epsilon
        # of |x|^2 in the unit ball
        users_penalty[name] = params["alpha"] * TRAINING_RIDGE * d
        assert (params["max_ratings_per_user"] == 100) == ("sampling" in name)
    expected = {1.0: (2.4, 1.6), 5.0: (10.0, 15.0), 20.0: (10.0, 10.0)}[epsilon]
    for name, found in users_penalty.items():
        assert found == pytest.approx(expected["weights" in name])


# Neighbours


def test_neighbours_are_compared(script, capsys, tmp_path):
    bench = script("bench_neighbours")
    frame = matrix_to_ratings(make_ratings(300, 60, density=0.4, factor_std=1.5, random_state=0))
    frame.to_csv(tmp_path / "ratings.csv", index=False)
    lines = [f"{item},Film {item},{'Drama|War' if item % 2 else 'Comedy'}" for item in range(60)]
    (tmp_path / "items.csv").write_text("\n".join(["item,title,genres", *lines]))
    files = ["--data", str(tmp_path / "ratings.csv"), "--items", str(tmp_path / "items.csv")]
    small = ["--seeds", "1", "--epsilons", "0.1", "50", "--exponents", "0"]
    bench.main([*files, *small])
    printed = capsys.readouterr().out
    assert printed.count("\n## ") == 5
    assert "nan" not in printed
    assert "| not private, another seed | 2 | 1.000" in printed  # nothing is drawn without noise
    assert "| epsilon 0.1, exponent 0 | 0 | no factors |" in printed
    assert "Film 59" in printed
    bench.main(["--shape", "200", "40", "--feedback", "explicit", *small])
    printed = capsys.readouterr().out
    assert printed.count("\n## ") == 4
    assert "Items go by their popularity" in printed


def slow_overlap(first, second):
    return [
        len({j for j in b if j >= 0} & set(a)) / len(b) for a, b in zip(first, second, strict=True)
    ]


def test_overlap_equals_its_slow_twin(script):
    overlap, rng = script("bench_neighbours").overlap, np.random.default_rng(0)
    first, second = (np.array([rng.permutation(15)[:6] for _ in range(200)]) for _ in range(2))
    for lists in (first, second):
        lists[rng.random(lists.shape) < 0.1] = -1  # no item is nobody's neighbour
    np.testing.assert_allclose(overlap(first, second), slow_overlap(first, second), rtol=1e-15)
    assert np.all(overlap(first[:, ::-1], second) == overlap(first, second))
    assert overlap(first, first) == pytest.approx((first >= 0).mean(axis=1))


def test_overlap_of_random_lists_is_what_chance_gives(script):
    overlap, rng = script("bench_neighbours").overlap, np.random.default_rng(0)
    first, second = (np.argsort(rng.random((4000, 40)), axis=1)[:, :10] for _ in range(2))
    # hypergeometric, sd .119 a row: six standard errors of the mean
    assert overlap(first, second).mean() == pytest.approx(0.25, abs=6 * 0.119 / np.sqrt(4000))


def test_cosine_neighbours_equal_their_slow_twin(script, monkeypatch):
    bench, rng = script("bench_neighbours"), np.random.default_rng(0)
    monkeypatch.setattr(bench, "ROWS_AT_ONCE", 7)
    V = rng.normal(size=(3, 20)) * rng.lognormal(size=20)
    V[:, 4] = 0.0
    found = bench.cosine_nearest(V, 18)
    for i in range(20):
        known = [j for j in range(20) if j not in (i, 4)]
        cosine = {j: V[:, i] @ V[:, j] / np.linalg.norm(V[:, j]) for j in known}
        expected = sorted(known, key=lambda j: -cosine[j])
        if i == 4:
            expected = [-1] * 18
        assert found[i].tolist() == expected
    some = np.zeros((2, 15))
    some[0, :3] = 1.0
    nearest = bench.cosine_nearest(some, 4)
    assert nearest[:3].tolist() == [[1, 2, -1, -1], [0, 2, -1, -1], [0, 1, -1, -1]]


def test_others_are_of_the_same_group(script):
    groups = np.array([0, 1, 0, 2, 1, 0, 1])
    partner = script("bench_neighbours").others(groups)
    assert sorted(partner) == list(range(7))
    assert np.all(groups[partner] == groups)
    assert np.flatnonzero(partner == np.arange(7)).tolist() == [3]  # alone


def test_no_factors_are_no_neighbours(script):
    bench = script("bench_neighbours")
    lists = [SimpleNamespace(rank=0), SimpleNamespace(rank=2)]
    assert bench.with_factors(lists) == lists[1:]
    assert bench.ranks(lists) == "0 to 2"
