"""The command line: what its words do, what it says of every mistake, and its exit codes."""

import csv
import hashlib
import io
import json
import os
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import skdpmf
from skdpmf import PrivacyCard, PrivacyLedger, load_model
from skdpmf.commands.cli import main
from skdpmf.data import make_ratings, ratings_to_matrix
from skdpmf.estimators.contract.model_file import load_description
from skdpmf.estimators.contract.recommend import hidden_fifth
from skdpmf.evaluation import catalogue_coverage_at_k, ndcg_at_k, novelty_at_k, recall_at_k, rmse
from skdpmf.evaluation.metrics import average_precision_at_k, reciprocal_rank_at_k
from skdpmf.privacy import PrivacyStatement
from skdpmf.privacy.text import SEEDED, UNDECLARED
from tests.matrices import matrix_to_ratings
from tests.systems import with_path

SMALL = ["--set", "n_components=2", "max_iter=1"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Ratings, titles and models, made once."""
    folder = tmp_path_factory.mktemp("cli")
    before = os.getcwd()
    os.chdir(folder)
    frame = matrix_to_ratings(make_ratings(80, 15, density=0.5, random_state=0))
    frame = frame.assign(user=frame["user"] + 100, item="i" + frame["item"].astype(str))
    items = [f"i{j}" for j in range(16)]  # one that nobody rated
    pd.DataFrame({"item": items, "title": [f"Été {i}" for i in items]}).to_csv("titles.csv")
    test = np.arange(len(frame)) % 5 == 0
    frame.to_csv("ratings.csv", index=False)
    frame[~test].to_csv("train.csv", index=False)
    frame[test].to_csv("test.csv", index=False)
    pd.Series(range(100, 190), name="user").to_csv("users.txt", index=False)
    frame[frame["rating"] > 3][["user", "item"]].to_csv("clicks.csv", index=False)
    fit = ["fit", "train.csv", "--epsilon", "4", "--seed", "0", *SMALL]
    assert main([*fit, "--items", "titles.csv", "--users", "80", "-o", "model"]) == 0
    assert main([*fit, "-o", "from_ratings"]) == 0
    clicks = ["fit", "clicks.csv", "--epsilon", "20", "--implicit", *SMALL]
    clicks += ["--estimator", "AdaptiveWeightALS"]
    assert main([*clicks, "-o", "clicks"]) == 0
    assert main(["ledger", "full", "create", "--epsilon", "1"]) == 0
    assert main(["fit", "train.csv", "--epsilon", "1", "--ledger", "full", *SMALL, "-o", "x"]) == 0
    yield folder
    os.chdir(before)


@pytest.fixture
def run(folder, capsys):
    """Run a command line; return its exit code, output and error output."""

    def run(*words):
        capsys.readouterr()
        try:
            code = main([str(word) for word in words])
        except SystemExit as stop:
            code = stop.code
        out, err = capsys.readouterr()
        return code, out, err

    return run


def matrix(path):
    frame = pd.read_csv(path)
    return ratings_to_matrix(frame, items=load_model("model").catalogue_["item"]).X


def test_reasons_are_those_of_explain(run):
    code, out, _ = run("recommend", "model", "ratings.csv", "--user", 103, 105, "-n", 2, "--why")
    assert code == 0
    lists = pd.read_csv(io.StringIO(out))
    model, X = load_model("model").set_output(recommend="pandas"), matrix("ratings.csv")
    for (user, listed), why in lists.groupby(["user", "item"])["why"]:
        code, out, _ = run("explain", "model", "ratings.csv", "--user", user, "--item", listed)
        table = pd.read_csv(io.StringIO(out))
        alone = model.explain(X[[user - 100]], listed)
        assert (code, {*table["why"]}, {*why}) == (0, {*alone["why"]}, {*alone["why"]})
        assert table["item"].tolist() == alone["item"].tolist()
        assert table["contribution"].to_numpy() == pytest.approx(alone["contribution"], abs=1e-4)


def test_refresh_goes_on_with_new_people_and_items(run):
    frame = pd.read_csv("ratings.csv")
    more = frame.assign(user=frame["user"] + 1000, item=frame["item"].replace("i3", "new"))
    more.to_csv("more.csv", index=False)
    words = ("--users", 80, "--people", "new")
    code, out, err = run("refresh", "model", "more.csv", "-o", "newer", *words)
    assert code == 0
    assert "with 80 users, 1 new item\n" in err
    assert "started from released values of earlier fits" in out
    assert out.count("NOT MET") == 1  # the new item is undeclared
    fresh = load_model("newer")
    assert fresh.catalogue_["item"].tolist() == [*(f"i{j}" for j in range(16)), "new"]
    assert fresh.catalogue_["title"].tolist()[-2:] == ["Été i15", "new"]
    titles = pd.DataFrame({"item": ["i3", "new"], "title": ["Old", "A new one"]})
    titles.to_csv("new_titles.csv")
    code, out, _ = run(
        *("refresh", "newer", "more.csv", "-o", "newer", "--overwrite", *words),
        *("--items", "new_titles.csv", "--epsilon", 1, "--format", "json"),
    )
    plain = json.loads(out)
    assert code == 0
    assert plain["n_new"] == 0
    assert plain["privacy"]["epsilon"] == pytest.approx(1.0, rel=1e-3)


def test_fit_writes_the_estimator_that_python_fits(run):
    code, out, err = run(
        *("fit", "train.csv", "--epsilon", 4, "--seed", 0, "--items", "titles.csv", "-o", "again"),
        *("--users", 80, "--set", "n_components=2", "--set", "max_iter=1"),
    )
    assert code == 0
    assert "Guarantee: differential privacy with epsilon = 4" in out
    assert out.endswith("wrote again\n")
    assert err == "skdpmf: fitting AdaptiveWeightALS to 80 users x 16 items\n"
    with open("again", "rb") as again, open("model", "rb") as model:
        assert again.read() == model.read()
    model = skdpmf.AdaptiveWeightALS(
        skdpmf.PrivacyBudget(4.0, 1e-5), n_components=2, max_iter=1, random_state=0
    ).fit(matrix("train.csv"))
    assert (load_model("again").components_ == model.components_).all()
    assert load_model("again").privacy_spent_ == model.privacy_spent_
    assert load_model("again").catalogue_["title"][3] == "Été i3"


def test_a_catalogue_off_the_ratings_is_told_and_stated(run):
    fit = ("fit", "train.csv", "--epsilon", 4, *SMALL, "-o", "again", "--overwrite")
    code, out, err = run(*fit)
    assert code == 0
    assert "exactly the 15 items of train.csv have ratings" in err
    assert "the number of users was read off train.csv, and rounded up to 96. Declare" in err
    unmet = (UNDECLARED["users"], UNDECLARED["items"])
    assert load_model("again").privacy_spent_.unmet == unmet
    assert out.count("NOT MET:") == run("show", "again")[1].count("NOT MET:") == 2
    assert load_model("model").privacy_spent_.unmet == (SEEDED,)
    for declared, left in (
        (("--users", 80), unmet[1:]),
        (("--users", "users.txt"), unmet[1:]),
        (("--items", "titles.csv"), unmet[:1]),
        (("--items", "titles.csv", "--users", 1000), ()),
    ):
        code, out, _ = run(*fit, *declared)
        assert load_model("again").privacy_spent_.unmet == left
        assert out.count("NOT MET:") == len(left)
    local = run(*fit[:4], "--estimator", "LocalDPGDDR", "-o", "again", "--overwrite")
    assert load_model("again").privacy_spent_.unmet == unmet[1:]
    fit = ("fit", "train.csv", "--estimator", "CacheSGDFactorizer", "-o", "again", "--overwrite")
    for code, _, err in (local, run(*fit)):
        assert code == 0
        assert "rounded up" not in err  # each row more would be one more report with noise
    assert load_model("again").privacy_spent_.assumptions == ()
    assert load_model("again").privacy_spent_.unmet == ()


def test_genres_of_the_catalogue_are_in_the_model(run):
    items, genres = [f"i{j}" for j in range(15)], ["Comedy|Drama", "", *["Drama"] * 13]
    pd.DataFrame({"item": items, "title": items, "genres": genres}).to_csv("genres.csv")
    fit = ("fit", "train.csv", "--epsilon", 4, *SMALL, "--items", "genres.csv")
    assert run(*fit, "--no-item-features", "-o", "genres")[0] == 0
    assert load_model("genres").catalogue_["genres"].tolist() == genres


def test_declared_users_are_rows(run):
    """80 users as 80 of a list of 90, or of 90 slots: the noise is that of 90 rows."""
    X = matrix("train.csv")
    X.resize((90, X.shape[1]))
    model = skdpmf.DPItemMeans(skdpmf.PrivacyBudget(4.0, 1e-5), random_state=0).fit(X)
    fit = ("fit", "train.csv", "--epsilon", 4, "--seed", 0, "--items", "titles.csv")
    for users in (90, "users.txt"):
        words = ("--estimator", "DPItemMeans", "--users", users, "-o", "again", "--overwrite")
        assert run(*fit, *words)[0] == 0
        assert (load_model("again").item_means_ == model.item_means_).all()


def test_ids_that_look_like_numbers_are_the_same_in_all_files(run):
    """They are integers in one file, and text beside others in a second, or too large."""
    for first in (1, 1_700_000_000_000_000_000):
        ids = [*range(first, first + 4)]
        table = pd.DataFrame({"user": np.repeat(ids, 3), "item": ids[:3] * 4, "rating": 4})
        table.to_csv("plain.csv", index=False)
        text = pd.Series([*map(str, ids), "007"])
        pd.DataFrame({"item": text, "title": text}).to_csv("text.csv", index=False)
        text.to_csv("text.txt", index=False, header=["id"])
        fit = ("fit", "plain.csv", "--epsilon", 4, "--estimator", "DPItemMeans", "--overwrite")
        code, _, err = run(*fit, "--items", "text.csv", "--users", "text.txt", "-o", "text")
        assert (code, err.splitlines()[0]) == (
            0,
            "skdpmf: text.txt declares 5 users, listed below its header 'id'",
        )
        assert load_model("text").catalogue_["item"].tolist() == text.tolist()
        code, out, _ = run("recommend", "text", "plain.csv", "--user", first)
        assert (code, len(out.splitlines())) == (0, 3)
        assert run("evaluate", "text", "plain.csv", "--held-out", "plain.csv")[0] == 0
        assert run(*fit, "-o", "ints")[0] == 0
        table.assign(item="007").to_csv("other.csv", index=False)
        pd.concat([table, pd.read_csv("other.csv", dtype=str)]).to_csv("mixed.csv", index=False)
        code, _, err = run("recommend", "ints", "mixed.csv")
        assert (code, "12 rows of mixed.csv are left out" in err) == (0, True)


def test_a_person_may_have_the_name_of_a_column(run):
    table = pd.DataFrame({"user": ["ann", "bob", "user"], "item": ["x", "y", "x"], "rating": 3})
    table.to_csv("named.csv", index=False)
    pd.Series(["user", "ann", "bob", "cyd"]).to_csv("names.txt", index=False, header=False)
    fit = ("fit", "named.csv", "--users", "names.txt", "--epsilon", 4, "-o", "named")
    code, _, err = run(*fit, "--estimator", "DPItemMeans", "--overwrite")
    said = "4 users, of whom its first line, 'user', is one: a header must be left out"
    assert (code, f"names.txt declares {said}\n" in err) == (0, True)


def test_columns_in_order_and_the_method_for_clicks(run):
    frame = pd.read_csv("clicks.csv")[["item", "user"]].assign(other="x")
    frame.to_csv("bare.csv", index=False, header=False)
    words = ("--implicit", "--columns", "item", "user", "-", "-o", "bare", "--overwrite")
    code, _, err = run("fit", "bare.csv", "--epsilon", 4, *words)
    assert (code, "fitting DPCovarianceRecommender to" in err) == (0, True)
    assert load_model("bare").feedback == "implicit"
    assert "Gram" in run("plan", "--items", 9, "--epsilon", 1, "--implicit")[1]


def test_rating_range_is_told_and_not_read(run):
    assert load_model("model").rating_range == (1.0, 5.0)
    _, _, err = run(
        *("fit", "train.csv", "--epsilon", 4, *SMALL, "--rating-range", 2, 4, "-o", "again"),
        "--overwrite",
    )
    X = matrix("train.csv")
    n = np.sum((X.data < 2) | (X.data > 4))
    assert f"note: ratings outside 2 to 4: {n} ({n / X.nnz:.0%}). fit clips them." in err
    assert load_model("again").rating_range == (2.0, 4.0)


@pytest.mark.parametrize(
    ("estimator", "more"),
    [
        ("DPItemMeans", ["--unit", "rating"]),
        (
            "DPCovarianceRecommender",
            ["--set", "covariance__shares=[0.2, 0.2, 0.6]", "predictor=knn"],
        ),
        (
            "DPMFSampler",
            ["--set", "guarantee=posterior", "max_iter=2", "guarantee__weight_cap=inf"],
        ),
        ("LocalDPGDDR", ["--set", "method=gradient", "method__projection_dim=None"]),
        ("AdaptiveWeightALS", ["--set", "alpha=2", "solver__weight_exponent=0.5", *SMALL[1:]]),
    ],
)
def test_every_estimator_and_its_parameters(run, estimator, more):
    words = ["train.csv", "--epsilon", 4, "--estimator", estimator, *more, "-o", "other"]
    assert run("fit", *words, "--overwrite")[0] == 0
    model = load_model("other")
    assert type(model).__name__ == estimator
    expected = {"covariance__shares": (0.2, 0.2, 0.6), "guarantee__weight_cap": np.inf, "alpha": 2}
    for name, value in expected.items():
        if f"{name}=" in " ".join(more):
            assert model.get_params()[name] == value
    code, out, _ = run("evaluate", "other", "train.csv")
    assert code == 0
    assert estimator in out


def test_recommend_is_the_models(run):
    code, out, err = run("recommend", "model", "train.csv", "--user", 117, 103, "-n", 3)
    assert (code, err) == (0, "")
    rows = list(csv.DictReader(io.StringIO(out)))
    X = matrix("train.csv")
    items, scores = load_model("model").recommend(X[[17, 3]], 3)
    assert [row["user"] for row in rows] == ["117"] * 3 + ["103"] * 3
    assert [row["rank"] for row in rows] == ["1", "2", "3"] * 2
    assert [row["item"] for row in rows] == [f"i{j}" for j in items.ravel()]
    assert [row["title"] for row in rows] == [f"Été i{j}" for j in items.ravel()]
    assert [row["score"] for row in rows] == [f"{score:.4f}" for score in scores.ravel()]
    _, out, _ = run("recommend", "model", "train.csv", "--format", "json", "-n", 2)
    lists = json.loads(out)
    assert [entry["user"] for entry in lists] == list(range(100, 180))
    assert lists[17]["items"][1] == {
        "item": f"i{items[0, 1]}",
        "title": f"Été i{items[0, 1]}",
        "score": scores[0, 1],
    }


def test_recommend_without_titles_and_with_all_seen(run):
    every = pd.DataFrame({"user": 1, "item": [f"i{j}" for j in range(15)], "rating": 3})
    pd.concat([every, every[:14].assign(user=2)]).to_csv("seen.csv", index=False)
    code, out, _ = run("recommend", "from_ratings", "seen.csv")
    rows = list(csv.DictReader(io.StringIO(out)))
    assert code == 0
    assert [list(row.values())[:3] for row in rows] == [["2", "1", "i14"]]


def test_unknown_items_are_left_out_aloud(run):
    frame = pd.read_csv("train.csv")
    pd.concat([frame, frame[:2].assign(item="new")]).to_csv("newer.csv", index=False)
    expected = run("recommend", "model", "train.csv")[1]
    code, out, err = run("recommend", "model", "newer.csv")
    assert (code, out) == (0, expected)
    assert err == (
        "skdpmf: note: 2 rows of newer.csv are left out, as they are not of items that the model "
        "knows.\n"
    )


def test_evaluate_hides_a_fifth(run):
    code, out, err = run("evaluate", "model", "ratings.csv")
    assert code == 0
    assert "--held-out" in err
    X = matrix("ratings.csv")
    errors, lists = out.split("\n\n")
    assert lists.startswith("Lists of 20 unseen items, against the held-out ratings above 3.5\n")
    lines = [line.split(maxsplit=1) for line in errors.splitlines()]
    assert lines[0][0] == "RMSE"
    assert [float(line[0]) for line in lines[2:]] == sorted(
        (float(line[0]) for line in lines[2:]), reverse=True
    )
    assert lines[-1][0] == f"{-load_model('model').score(X):.4f}"
    hidden = hidden_fifth(X)
    assert (
        lines[1][0] == f"{rmse(X.data[hidden], np.full(hidden.sum(), X.data[~hidden].mean())):.4f}"
    )


def slow_most_popular(known):
    """Each row's unseen columns, those with most entries first, ties by column; -1 for none."""
    stored = np.zeros(known.shape, bool)
    stored[known.nonzero()] = True
    order = np.argsort(-stored.sum(axis=0), kind="stable")
    lists = np.full(known.shape, -1)
    for row, seen in enumerate(stored):
        unseen = order[~seen[order]]
        lists[row, : unseen.size] = unseen
    return lists


def test_evaluate_measures_lists(run, monkeypatch):
    """All measures are those of the public functions; 3.5 is above three of five stars."""
    n_ranked = 4
    monkeypatch.setattr("skdpmf.commands.with_ratings.N_RANKED", n_ranked)
    code, out, _ = run("evaluate", "model", "train.csv", "--held-out", "test.csv")
    assert code == 0
    head, *lines = out.split("\n\n")[1].splitlines()[1:-2]
    columns = ["recall@4", "NDCG@4", "MAP@4", "MRR@4", "coverage", "novelty"]
    assert head.split() == columns
    known = matrix("train.csv")
    frame = pd.read_csv("test.csv")
    Y = ratings_to_matrix(
        frame[frame["rating"] >= 4],
        users=np.unique(pd.read_csv("train.csv")["user"]),
        items=load_model("model").catalogue_["item"],
    ).X
    model = load_model("model")
    lists = {
        "most popular items (exact, not private)": slow_most_popular(known)[:, :n_ranked],
        "AdaptiveWeightALS, epsilon 4": model.recommend(known, n_ranked)[0],
    }
    plain = json.loads(
        run("evaluate", "model", "train.csv", "--held-out", "test.csv", "--format", "json")[1]
    )["lists"]
    for line, entry, (name, ranked) in zip(lines, plain, lists.items(), strict=True):
        expected = [
            metric(Y, ranked, n_ranked)
            for metric in (recall_at_k, ndcg_at_k, average_precision_at_k, reciprocal_rank_at_k)
        ]
        expected.append(catalogue_coverage_at_k(16, ranked, n_ranked))
        expected.append(novelty_at_k(known, ranked, n_ranked))
        assert [*line.split(maxsplit=6)] == [*(f"{value:.4f}" for value in expected), name]
        assert entry.pop("of") == name
        assert entry == dict(zip([c.lower() for c in columns], expected, strict=True))


def test_evaluate_on_held_out_ratings(run):
    frame = pd.read_csv("test.csv")
    stranger = frame[:3].assign(user=9999)
    pd.concat([frame, stranger]).to_csv("strangers.csv", index=False)
    code, out, err = run("evaluate", "model", "train.csv", "--held-out", "strangers.csv")
    assert code == 0
    assert "3 rows of strangers.csv are left out, as they are not of users in train.csv" in err
    assert f"RMSE (lower is better) of {len(frame)} ratings: strangers.csv" in out
    users = np.unique(pd.read_csv("train.csv")["user"])
    Y = ratings_to_matrix(frame, users=users, items=load_model("model").catalogue_["item"]).X
    score = -load_model("model").score(matrix("train.csv"), Y)
    assert f"  {score:.4f}  AdaptiveWeightALS, epsilon 4\n" in out


def test_clicks(run):
    code, out, _ = run("evaluate", "clicks", "clicks.csv")
    assert code == 0
    title, head, *lines = out.splitlines()[:-2]
    assert title.startswith("Lists of 20 unseen items, against ")
    assert " clicks: a fifth of" in title
    assert head.split()[0] == "recall@20"
    # 15 items: whoever recommends 20 finds all
    assert [line.split()[0] for line in lines] == ["1.0000"] * 2
    code, out, _ = run("recommend", "clicks", "clicks.csv", "--user", 101, "-n", 1)
    assert code == 0
    frame = pd.read_csv("clicks.csv")
    frame.assign(rating=1.0).to_csv("weighted.csv", index=False)
    extra = frame[:1].assign(item="i14", user=101, rating=-1.0)  # no click
    pd.concat([frame.assign(rating=1.0), extra]).to_csv("denied.csv", index=False)
    for same in ("weighted.csv", "denied.csv"):
        assert run("recommend", "clicks", same, "--user", 101, "-n", 1)[1] == out


def test_show_writes_the_card(run):
    """It names the file and its checksum, and the versions that made the model."""
    with open("model", "rb") as file:
        checksum = hashlib.sha256(file.read()).hexdigest()
    assert run("show", "model", "-o", "card.json") == (0, "wrote card.json\n", "")
    card = PrivacyCard.from_json(Path("card.json").read_text(encoding="utf-8"))
    assert card.statement == load_model("model").privacy_spent_
    assert card.model.startswith(f"model, SHA-256 {checksum}: AdaptiveWeightALS(")
    assert card.versions == PrivacyCard.of(card.statement).versions
    for path, text in (("card.html", card.to_html()), ("a.MD", card.to_markdown())):
        assert run("show", "model", "--output", path)[0] == 0
        assert Path(path).read_bytes() == text.encode()
    page = Path("card.html").read_text(encoding="utf-8")
    assert hashlib.sha256(Path("card.json").read_bytes()).hexdigest() in page
    assert "card.html exists already" in run("show", "model", "-o", "card.html")[2]
    again = run("show", "model", "-o", "card.html", "--overwrite", "--format", "json")
    assert json.loads(again[1]) == {"wrote": "card.html"}


def test_ledger_holds_the_limit(run):
    assert run("ledger", "data.ledger", "create", "--epsilon", 2, "--rule", "gaussian")[0] == 0
    fit = ("fit", "train.csv", *SMALL, "--ledger", "data.ledger", "--epsilon")
    assert run(*fit, 1.5, "-o", "first")[0] == 0
    code, out, err = run(*fit, 1.5, "-o", "second")
    assert (code, out) == (3, "")
    assert "has left. Its limit is 2, of which 1.2" in err
    assert not os.path.exists("second")
    assert run(*fit, 1.2, "-o", "second")[0] == 0
    for words in ((), ("report",)):
        code, out, _ = run("ledger", "data.ledger", *words)
        assert code == 0
        assert "Entries:   2 done." in out
    assert run("ledger", "data.ledger", "verify") == (
        0,
        "data.ledger: 2 entries, each charged what its plan costs; the total is right\n",
        "",
    )
    assert PrivacyLedger("data.ledger").report().entries[0]["estimator"] == "AdaptiveWeightALS"
    assert load_model("second").budget.ledger is None


def test_ledger_by_person_charges_the_users_of_the_ratings(run):
    words = ("people", "create", "--epsilon", 1, "--at-most", 1)
    code, out, _ = run("ledger", *words)
    assert code == 0
    assert "0 took part, each in at most 1 fit;" in out
    frame = pd.read_csv("train.csv")
    for name, some in (("early", frame["user"] < 140), ("late", frame["user"] >= 130)):
        frame[some].to_csv(f"{name}.csv", index=False)
    fit = ("--users", "users.txt", "--items", "titles.csv", *SMALL, "--ledger", "people")
    for name in ("early", "late"):  # 90 declared users, most without a rating in either file
        assert run("fit", f"{name}.csv", "--epsilon", 1, *fit, "-o", f"{name}.model")[0] == 0
    entries = PrivacyLedger("people").report().entries
    assert [(entry["people"], entry["left_out"]) for entry in entries] == [(40, 0), (40, 10)]
    assert "each person takes part in at most 1" in run("show", "late.model")[1].replace(
        "\n  ", " "
    )
    code, _, err = run("fit", "early.csv", "--epsilon", 1, *fit, "-o", "third.model")
    assert (code, os.path.exists("third.model")) == (3, False)
    assert "for somebody in the rows" in err
    assert run("ledger", "people", "verify")[0] == 0


def test_progress_is_for_terminals(run, monkeypatch):
    words = ("fit", "train.csv", "--epsilon", 1, *SMALL, "-o", "p", "--overwrite")
    assert "] round" not in run(*words)[2]
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    err = run(*words)[2]
    if not hasattr(skdpmf.AdaptiveWeightALS, "_init_callback_context"):
        pytest.skip("this scikit-learn has no callbacks")
    assert "[##############################] round 1/1" in err


FIT = ("fit", "train.csv", "--epsilon", "1")
MISTAKES = [
    # wrong usage, with the code 2
    ((), 2, "the following arguments are required: COMMAND"),
    (("fit", "train.csv", "-o", "new"), 2, "--epsilon is needed: say how much a model may reveal"),
    ((*FIT, "-o", "new", "--set", "k"), 2, "'k' must be NAME=VALUE"),
    ((*FIT, "-o", "new", "--set", "k=3"), 2, "AdaptiveWeightALS has the parameters alpha, "),
    ((*FIT, "-o", "new", "--set", "random_state=3"), 2, "--set random_state: use --seed"),
    ((*FIT, "-o", "new", "--set", "budget=3"), 2, "--set budget: use --epsilon and --delta"),
    ((*FIT, "-o", "new", "--ledger", "full", "--seed", "1"), 2, "--seed: a ledger takes no fit"),
    (
        (*FIT, "-o", "new", "--estimator", "CacheSGDFactorizer"),
        2,
        "protects nobody, so leave it out",
    ),
    ((*FIT, "-o", "new", "--estimator", "DPItemMeans", "--implicit"), 2, "takes ratings, not clic"),
    (("recommend", "model", "train.csv", "-n", "0"), 2, "'0' must be a whole number from 1"),
    (("ledger", "new", "create"), 2, "create needs --epsilon, the most that may ever be spent"),
    # errors, with the code 1
    (("fit", "none.csv", "--epsilon", "1", "-o", "new"), 1, "none.csv does not exist: pass"),
    ((*FIT, "-o", "no/new"), 1, "no/new: there is no folder no; make it first."),
    ((*FIT, "-o", "folder", "--overwrite"), 1, "is no regular file, and only regular files are"),
    ((*FIT, "-o", "n" * 250), 1, "no file can be written here"),
    ((*FIT, "-o", "train.csv", "--overwrite"), 1, "train.csv is also the ratings file"),
    ((*FIT, "-o", "new", "--columns", "user=a", "item"), 2, "'item' must be NAME=VALUE"),
    ((*FIT, "-o", "new", "--columns", "user=who"), 1, "Name it by --columns user=NAME; for a file"),
    ((*FIT, "-o", "new", "--columns", "user"), 1, "--columns ['user'] has 1 name,"),
    ((*FIT, "-o", "new", "--sep", ";"), 1, "Pass --columns  to name them (and --sep , if"),
    ((*FIT, "-o", "model"), 1, "model exists already: choose another name, or pass --overwrite."),
    ((*FIT, "-o", "new", "--items", "few.csv"), 1, "few.csv does not have, such as ['i3',"),
    ((*FIT, "-o", "new", "--items", "twice.csv"), 1, "'i0' more than once: pass each id once"),
    ((*FIT, "-o", "new", "--items", "broken.csv"), 1, "take control characters, such as line"),
    ((*FIT, "-o", "new", "--rating-range", "5", "1"), 2, "--rating-range 5.0 1.0 must be a pair"),
    ((*FIT, "-o", "new", "--set", "alpha=much"), 2, "alpha='much' must be a finite number > 0"),
    ((*FIT, "-o", "new", "--ledger", "none"), 1, "Make one: skdpmf ledger none create --epsilon"),
    ((*FIT, "-o", "new", "--ledger", "titles.csv"), 1, "titles.csv"),
    (("fit", "clicks.csv", "--epsilon", "1", "-o", "new"), 1, "has no column of ratings"),
    (("fit", "none.csv", "--epsilon", "-1", "-o", "new"), 2, "--epsilon -1.0 must be a number > 0"),
    (("recommend", "none", "train.csv"), 1, "none: there is no such file. Make one: skdpmf fit"),
    (("recommend", "titles.csv", "train.csv"), 1, "no model file of skdpmf does"),
    (("recommend", "damaged", "train.csv"), 1, "it is damaged or incomplete"),
    (
        ("recommend", "model", "numbers.csv"),
        1,
        "with [7], and the model's catalogue with ['i0', 'i1'].",
    ),
    (("recommend", "model", "clicks.csv"), 1, "has no column of ratings: name it by"),
    (("recommend", "model", "train.csv", "--user", "5"), 1, "users names '5', which has no row"),
    (("evaluate", "model", "one.csv"), 1, "one.csv leaves nothing to evaluate"),
    (("show", "."), 1, "it is no regular file"),
    (("refresh", "model", "train.csv", "-o", "model"), 1, "model exists already"),
    (("refresh", "model", "train.csv", "-o", "new", "--epsilon", "-1"), 2, "--epsilon -1"),
    (("show", "model", "-o", "new.pdf"), 2, "--output new.pdf must end in .html, .md or .json"),
    (("ledger", "none"), 1, "none: there is no such ledger"),
    (("ledger", "full", "create", "--epsilon", "1"), 1, "full exists already"),
    ((*FIT, "-o", "new", "--users", "0"), 2, "'0' must be a whole number from 1"),
    ((*FIT, "-o", "new", "--users", "79"), 1, "--users 79 must be 80 at least, the number"),
    ((*FIT, "-o", "new", "--users", "few.txt"), 1, "of users that few.txt does not have, such as"),
    ((*FIT, "-o", "new", "--n-jobs", "0"), 2, "--n-jobs: '0' must be a whole number from 1"),
    ((*FIT, "-o", "new", "--rating-range", "7", "9"), 1, "7 9 must be the scale of the ratings"),
    (("fit", "zeros.csv", "--epsilon", "1", "-o", "new"), 1, "8 of them 0: pass the scale by --ra"),
    # too little left, with the code 3
    ((*FIT, "-o", "new", "--ledger", "full"), 3, "Nothing was charged."),
]


@pytest.fixture
def mistakes(folder):
    """The files that the mistakes need."""
    pd.DataFrame({"item": ["i0", "i1"], "title": ["a", "b"]}).to_csv("few.csv", index=False)
    items = [*(f"i{j}" for j in range(15)), "i0"]
    pd.DataFrame({"item": items, "title": "a"}).to_csv("twice.csv", index=False)
    pd.DataFrame({"item": items[:15], "title": "a\x1b[2J"}).to_csv("broken.csv", index=False)
    pd.DataFrame({"user": [1], "item": [7], "rating": [3]}).to_csv("numbers.csv", index=False)
    pd.DataFrame({"user": [1], "item": ["i1"], "rating": [3]}).to_csv("one.csv", index=False)
    pd.Series(range(100, 110), name="user").to_csv("few.txt", index=False)
    Path("folder").mkdir(exist_ok=True)
    zeros = pd.DataFrame({"user": np.arange(12) // 4, "item": np.arange(12) % 4, "rating": 0})
    zeros.loc[[0, 5, 6, 11], "rating"] = 4
    zeros.to_csv("zeros.csv", index=False)
    with open("model", "rb") as whole, open("damaged", "wb") as damaged:
        damaged.write(whole.read()[:-1])


@pytest.mark.parametrize(("words", "code", "said"), MISTAKES, ids=lambda value: str(value)[-60:])
def test_mistakes_are_explained(run, mistakes, words, code, said):
    found, out, err = run(*words)
    assert said in err
    assert (found, out) == (code, "")
    assert "Traceback" not in err
    if code != 2:
        assert err.splitlines()[-1].startswith("skdpmf: error: ")
        assert "\x1b" not in err
    assert not os.path.exists("new")


def test_mistakes_are_found_before_the_budget_is_spent(run, mistakes):
    entries = len(PrivacyLedger("full").report().entries)
    assert run("ledger", "wide", "create", "--epsilon", 100)[0] == 0
    for words, code, _ in MISTAKES:
        if words[:2] == FIT[:2] and "--ledger" not in words:
            assert run(*words, "--ledger", "wide")[0] == code
    assert PrivacyLedger("wide").report().entries == ()
    assert len(PrivacyLedger("full").report().entries) == entries


@pytest.mark.filterwarnings("default")
def test_warnings_interruptions_and_bugs(run, monkeypatch):
    happens = []

    def load(path):
        if happens:
            raise happens.pop()
        warnings.warn("mind the gap", UserWarning, stacklevel=2)
        return load_description(path)

    monkeypatch.setattr("skdpmf.estimators.contract.model_file.load_description", load)
    code, _, err = run("show", "model")
    assert (code, err) == (0, "skdpmf: warning: mind the gap\n")
    happens.append(KeyboardInterrupt())
    assert run("show", "model") == (130, "", "skdpmf: interrupted\n")
    happens.append(KeyError("a bug"))  # no mistake of the user: with its traceback
    with pytest.raises(KeyError):
        run("show", "model")


def test_a_reader_may_leave_early(folder, monkeypatch, capfd):
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as gone:
        monkeypatch.setattr(sys, "stdout", gone)
        assert main(["recommend", "model", "train.csv"]) == 1
    assert capfd.readouterr().err == ""


def test_help_and_version(run):
    code, out, _ = run("--version")
    assert (code, out) == (0, f"skdpmf {skdpmf.__version__}\n")
    assert "recommend items to users" in run("--help")[1]
    for command in ("fit", "refresh", "recommend", "evaluate", "plan", "show", "serve", "ledger"):
        assert command in run("--help")[1]
        code, out, _ = run(command, "--help")
        assert code == 0
        assert "None" not in out


def test_json_of_every_verb(run):
    fit = ("fit", "train.csv", "--epsilon", 4, *SMALL, "-o", "again", "--overwrite")

    def plain(*words):
        code, out, _ = run(*words, "--format", "json")
        assert code == 0
        return json.loads(out, parse_constant=lambda text: pytest.fail(f"{text} is no JSON"))

    fitted = plain(*fit)
    statement = load_model("again").privacy_spent_
    assert fitted.keys() == {"wrote", "estimator", "n_items", "privacy"}
    assert PrivacyStatement.from_dict(fitted["privacy"]) == statement
    assert plain("show", "again").keys() == {"model", "n_items", "privacy"}
    assert plain("show", "again")["privacy"] == fitted["privacy"]
    planned = plain("plan", "--epsilon", 4, "--items", 15, *SMALL)
    assert planned.keys() == {"estimator", "privacy"}
    names = {r["name"].split(": ")[0] for r in fitted["privacy"]["releases"]}
    assert names == {r["name"] for r in planned["privacy"]["releases"]}
    sgd = plain("plan", "--items", 15, "--estimator", "CacheSGDFactorizer")
    assert sgd["privacy"]["epsilon"] == "inf"
    for model, data, metric in (
        ("model", "train.csv", "rmse"),
        ("clicks", "clicks.csv", "recall@20"),
    ):
        evaluated = plain("evaluate", model, data)
        assert evaluated.keys() == {"metric", "n_held_out", "held_out", "values", "lists"}
        assert evaluated["metric"] == metric
        text = run("evaluate", model, data)[1]
        assert all(f"{value['value']:.4f}" in text for value in evaluated["values"])
        assert len(evaluated["lists"]) == 2
    assert plain("ledger", "full") == PrivacyLedger("full").report().to_dict()
    assert plain("ledger", "full", "verify") == {"path": "full", "n_entries": 1}
    created = plain("ledger", "plain", "create", "--epsilon", 1)
    assert created["limit"]["epsilon"] == 1.0


def test_a_spreadsheet_computes_nothing(run):
    every = [f"i{j}" for j in range(15)]
    titles = ["=1+1", "+1", "-1", "@x", "\t=1", "a=1", *every[6:]]
    table = pd.DataFrame({"item": ["=i0", *every[1:]], "title": [t.strip("\t") for t in titles]})
    ratings = pd.DataFrame({"user": ["=u", "v"], "item": "i14", "rating": 3})
    model = skdpmf.DPItemMeans(skdpmf.PrivacyBudget(4.0, 1e-5)).fit(np.ones((2, 15)))
    model.save("formulas", catalogue=table)
    ratings.to_csv("formulas.csv", index=False)
    code, out, _ = run("recommend", "formulas", "formulas.csv", "-n", 14)
    assert code == 0
    rows = list(csv.reader(io.StringIO(out)))[1:]
    assert {row[0] for row in rows} == {"'=u", "v"}
    assert {"'=1+1", "'+1", "'-1", "'@x", "a=1"} <= {row[3] for row in rows}
    assert {"'=i0", "i1"} <= {row[2] for row in rows}
    assert not any(cell.startswith(("=", "+", "-", "@")) for row in rows for cell in row[:4])
    plain = json.loads(run("recommend", "formulas", "formulas.csv", "--format", "json")[1])
    assert plain[0]["user"] == "=u"  # as it is


def test_ratings_from_the_standard_input():
    program = [sys.executable, "-m", "skdpmf", "recommend", "model", "-", "-n", "1"]
    environment = with_path(Path(skdpmf.__file__).parents[1])
    with open("train.csv", "rb") as file:
        run = subprocess.run(program, stdin=file, capture_output=True, text=True, env=environment)
    assert (run.returncode, run.stderr) == (0, "")
    assert len(run.stdout.splitlines()) == 81


def test_public_people_of_a_file(run):
    """Those of them who are in the ratings too are public, and the statement says how many."""
    ratings = pd.read_csv("train.csv")
    ratings[ratings["user"].isin(ratings["user"].unique()[:20])].to_csv("public.csv", index=False)
    fit = ("fit", "train.csv", "--epsilon", 4, *SMALL, "--items", "titles.csv", "--public")
    code, _, err = run(*fit, "public.csv", "-o", "public")
    assert code == 0, err
    assert "20 people of public.csv are public, 20 of them in train.csv too: they get no" in err
    assert "of 20 people are public" in " ".join(load_model("public").privacy_spent_.assumptions)
    pd.read_csv("public.csv").assign(item="no such").to_csv("strange.csv", index=False)
    pd.read_csv("public.csv")[["user"]].to_csv("ids.csv", index=False)
    for file, trouble in (("strange", "has no item that"), ("ids", "no column"), ("none", "exist")):
        code, _, err = run(*fit, f"{file}.csv", "-o", "more")
        assert code == 1
        assert f"--public {file}.csv must hold ratings of the people who agreed" in err
        assert trouble in err
    code, _, err = run(*fit, "public.csv", "-o", "public.csv", "--overwrite")
    assert "public.csv is also the public file" in err
