"""The logic of the page is that of `recommend`, and refuses what is no model file."""

import json
from uuid import UUID

import numpy as np
import pandas as pd
import pytest

from skdpmf import DPItemMeans, load_model
from tests.browser.common import FOLDER, in_node, needs_node
from tests.estimators import test_model_file
from tests.estimators.model_files import contents, forge, forge_header
from tests.estimators.test_model_file import BUDGET, MODELS, NEW, X, changed

pytestmark = needs_node

NEIGHBOURS = {"knn", "no covariance"}
SHOWN = sorted(MODELS.keys() - NEIGHBOURS)
fitted = test_model_file.fitted  # one of each kind, by name


def rows_of(name):
    """Ratings, or clicks (the page has no dislikes) of other weights than 1, and a row of none."""
    rows = np.concatenate([NEW, np.full((1, 12), np.nan)])
    return rows / 4 if MODELS[name].get_params().get("feedback") == "implicit" else rows


def as_lists(rows):
    return [[[int(j), row[j]] for j in np.flatnonzero(~np.isnan(row))] for row in rows]


def saved(models, folder, names=SHOWN):
    paths = [folder / f"{at}.skdpmf" for at, _ in enumerate(names)]
    for name, path in zip(names, paths, strict=True):
        models[name].save(path)
    return paths


def distance(said, items, scores):
    """The largest difference between the scores; infinite where other items are recommended."""
    if "error" in said:
        return np.inf
    largest = 0.0
    for pairs, row_items, row_scores in zip(said["lists"], items, scores, strict=True):
        left = row_items >= 0
        if [item for item, _ in pairs] != row_items[left].tolist():
            return np.inf
        gaps = [abs(pair[1] - score) for pair, score in zip(pairs, row_scores[left], strict=True)]
        largest = max([largest, *gaps])
    return largest


@pytest.fixture(scope="module")
def distances(fitted, tmp_path_factory):
    """A function that compares what a script says of all models with what Python says."""
    paths = saved(fitted, tmp_path_factory.mktemp("models"))
    files = [(path, as_lists(rows_of(name))) for name, path in zip(SHOWN, paths, strict=True)]
    lists = [fitted[name].recommend(rows_of(name), 5) for name in SHOWN]

    def compared(**script):
        said = zip(SHOWN, in_node(files, **script), lists, strict=True)
        return {name: distance(one, *expected) for name, one, expected in said}

    return compared


def test_recommendations_are_those_of_python(distances):
    """They agree to rounding, every kind of model but those of neighbours."""
    assert {
        name: gap for name, gap in distances().items() if not gap < 1e-6
    } == {}  # lists are float32


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("if (prior) {", "if (false) {"),
        ("TYPICAL_LOG_COUNT = 4.5", "TYPICAL_LOG_COUNT = 4.4"),
        ("rated.length * model.ratingRidge", "model.ratingRidge"),
        ("const weight = model.implicit ? value : 1;", "const weight = 1;"),
        ("target = model.implicit ? 1 : value", "target = value"),
        ("- offsets[j] - dot(known", "- dot(known"),
        ("each((j) => offsets[j] + own[j])", "own"),
        ("if (model.encoder) {", "if (false) {"),
        ("addTo(z, model.implicit ? value : 1, model.encoder", "addTo(z, 1, model.encoder"),
        ("addTo(z, model.implicit ? value : 1, model.encoder", "addTo(z, value, model.encoder"),
        ("MEANS * offsets[j] + ", ""),
        ("Math.max(added[j], 0)", "0"),
        ("(TASTES * (whole > 0 ? explained / whole : 1) ** POWER)", "TASTES"),
        ("Math.hypot(deviation, LEAST_SPREAD)", "LEAST_SPREAD"),
        ("unit + stated[j]);\n    const decide", "unit);\n    const decide"),
        ("- Math.sqrt((2 * byChance) / (n * (n - 1)))", ""),
        ("residuals[i] - usual", "residuals[i]"),
        ("v + RARE * usual", "v"),
        ("share * (a[j] - c) * (b[j] - d)", "share * a[j] * b[j]"),
        ("!this.ratings.has(j) && ", ""),
        ("pairs[place - 1][1] < score", "pairs[place - 1][1] > score"),
        ("const clipped = value === null ? null : Math.min(Math.max(value, low), high);",
         "const clipped = value;"),
        ("gram.set(model.ridge.subarray", "[].concat(model.ridge.subarray"),
        ("+= penalty;", "+= 2 * penalty;"),
        ("- Math.log(penalty), 0)", ", 0)"),
        (" - determinant / 2", ""),
        ("TASTE_PRIOR[m]", "1"),
        ("SURE + n / 2", "n / 2"),
    ],
)  # fmt: skip
def test_planted_bug_is_noticed(distances, tmp_path, right, wrong):
    source = (FOLDER / "model.js").read_text(encoding="utf-8")
    assert source.count(right) == 1
    script = tmp_path / "model.js"
    script.write_text(source.replace(right, wrong), encoding="utf-8")
    assert max(distances(script=script).values()) > 1e-5


def test_the_genre_that_is_rated_high_is_that_of_explain(tmp_path):
    path, genre = tmp_path / "model", np.arange(12) // 4
    model = DPItemMeans(BUDGET, item_features=np.eye(3)[genre], random_state=0).fit(X)
    genres = ["Horror", "Drama|War", "Comedy"]
    model.save(path, catalogue={"item": range(12), "genres": [genres[g] for g in genre]})
    rows = [{0: 5.0, 1: 5.0, 2: 5.0}, {8: 5.0, 9: 5.0, 10: 5.0}, {0: 3.0}, {}]
    said = in_node([(path, [[[j, r] for j, r in row.items()] for row in rows])])[0]["reasons"]
    assert [reason["genre"] for reason in said] == ["Horror", "Comedy", None, None]
    loaded = load_model(path).set_output(recommend="pandas")
    asked = zip(rows[:3], (3, 11, 3), strict=True)
    words = [set(loaded.explain(row, item)["why"]) for row, item in asked]
    assert words[0] == {"you rated Horror high"}
    assert words[1] == {"you rated Comedy high"}
    assert not any("high" in text for text in words[2])


def test_similar_items_are_those_of_python(fitted, tmp_path):
    files = [(path, []) for path in saved(fitted, tmp_path)]
    some = 0
    for name, said in zip(SHOWN, in_node(files), strict=True):
        items, scores = fitted[name].similar_items(0, 5)
        pairs = [(j, s) for j, s in zip(items.tolist(), scores.tolist(), strict=True) if s > 0]
        assert [j for j, _ in said["similar"]] == [j for j, _ in pairs], name
        np.testing.assert_allclose([s for _, s in said["similar"]], [s for _, s in pairs], 1e-6)
        some += bool(pairs)
    assert some > 5


def test_items_to_begin_with_are_liked_and_unlike_one_another(tmp_path):
    """Of twins only one; the best one first."""
    path = tmp_path / "model"
    model = DPItemMeans(BUDGET, random_state=0).fit(X)
    model._item_model_ = model._item_model_._replace(offsets=np.linspace(5, 4, 12))
    model._ranking_ = None
    model.item_means_ = model._item_model_.offsets
    genres = [f"Genre {j // 3}" for j in range(12)]  # three of a kind each
    model.save(path, catalogue={"item": range(12), "genres": genres})
    plain = tmp_path / "plain"
    model.save(plain)
    said, without = in_node([(path, []), (plain, [])], n=3)
    assert said["genres"] == [[genre] for genre in genres]
    assert said["varied"] == [0, 3, 6]
    assert without["genres"] == [[]] * 12
    assert without["varied"] == [0, 1, 2]


def test_models_of_neighbours_are_refused(fitted, tmp_path):
    names = sorted(NEIGHBOURS)
    for said in in_node([(path, []) for path in saved(fitted, tmp_path, names)]):
        assert said["refused"]
        assert 'predictor="knn"' in said["error"]


def test_catalogue_is_shown(tmp_path):
    path = tmp_path / "model"
    model = DPItemMeans(BUDGET).fit(X)
    frame = pd.DataFrame({"item": range(7, 19), "title": [f"<b>Amélie ★ {j}" for j in range(12)]})
    expected = {
        "title": (frame, frame["title"].tolist()),
        "item": (frame[["item"]], [str(j) for j in frame["item"]]),
        "neither": (None, [f"item {j}" for j in range(12)]),
        "typed": (
            {"item": [2**60 + j if j % 2 else UUID(int=j) for j in range(11)] + [("a", 1)]},
            [str(2**60 + j if j % 2 else UUID(int=j)) for j in range(11)] + ['["a", 1]'],
        ),
    }
    for catalogue, titles in expected.values():
        model.save(path, catalogue=catalogue)
        said = in_node([(path, [])])[0]
        assert said["titles"] == titles


def test_statement_in_short(fitted, tmp_path):
    names = ["means", "svd", "items", "posterior", "no privacy", "sgd"]
    files = [(path, []) for path in saved(fitted, tmp_path, names)]
    means, svd, items, posterior, *open_models = (" ".join(a["statement"]) for a in in_node(files))
    assert "epsilon = 4 and delta = 0.00001: with one person's whole history or without" in means
    assert "no model was more than 54.6 times as likely, up to a probability of 0.00001." in means
    assert "guesses the seed" in means
    assert "one single rating" in svd
    assert "e to the 78" in svd, svd
    assert "with any other in its place, no report of a device was" in items
    assert "delta" not in items
    assert "on condition of the chain having converged; else nothing is promised" in posterior
    assert all(text.startswith("No privacy") for text in open_models)


def test_damage_is_refused(fitted, tmp_path):
    whole = saved(fitted, tmp_path, ["means"])[0].read_bytes()
    files = []
    for place in [*range(24), *range(24, len(whole), 61), len(whole) - 1]:
        for damaged in (
            whole[:place],
            whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :],
        ):
            files.append((tmp_path / f"{len(files)}.damaged", []))
            files[-1][0].write_bytes(damaged)
    assert len(files) > 100
    for said in in_node(files):
        assert said.get("refused"), said
    header, arrays = contents(tmp_path / "0.skdpmf")
    forge(tmp_path / "newer", {**header, "version": 3}, arrays)
    assert "Get a newer page" in in_node([(tmp_path / "newer", [])])[0]["error"]


SHARED = ("another class", "a list as class", "no parameters", "a range from high to low")
SHARED += ("a negative ridge", "implicit by a number", "no numbers", "no items", "an item too few")
SHARED += ("an item of neither kind", "a title that is none", "genres of fewer items")
SHARED += ("genres that are none", "no card", "another card", "no statement", "epsilon below 0")
SHARED += ("epsilon that is none", "delta as a text", "a unit of its own")
SHARED += ("notes that are numbers", "a flag that is a text")
HOSTILE = {name: test_model_file.HOSTILE[name] for name in SHARED} | {
    "a dunder as class": {"class": "__proto__"},
    "a range of texts": {"params.rating_range": ["1", "5"]},
    "another predictor": {"numbers.predictor": "toString"},
    "titles as a text": {"items.titles": "abcdefghijkl"},
    "components below 0": {"numbers.n_components": -1},
    "more components than factors": {"numbers.n_components": 99},
    "half a component": {"numbers.n_components": 0.5},
    "a condition that is none": {"card.statement.condition": {}},
}
ARRAYS = {
    "factors of fewer items": {"item_model.factors": np.ones((11, 1))},
    "flat factors": {"item_model.factors": np.ones(12)},
    "another ridge": {"item_model.ridge": np.eye(3)},
    "another prior": {"item_model.prior": np.ones((4, 4))},
    "no item": {"item_model.offsets": np.empty(0), "item_model.factors": np.ones((0, 1))},
    "offsets in single precision": {"item_model.offsets": np.ones(12, np.float32)},
    "whole offsets": {"item_model.offsets": np.ones(12, np.int64)},
    "too many factors": {
        "item_model.factors": np.ones((12, 1001)),
        "item_model.ridge": np.eye(1001),
    },
    "an encoder of fewer items": {
        "item_model.encoder": np.ones((11, 1)),
        "item_model.ridge": np.empty((0, 0)),
    },
    "an encoder beside a ridge": {"item_model.encoder": np.ones((12, 1))},
}


def read_by_page(arrays):
    """Names of the arrays that the page reads: it makes no refresh."""
    return [name for name in arrays if not name.startswith("knowledge.")]


def test_hostile_files_are_refused(fitted, tmp_path):
    path = saved(fitted, tmp_path, ["means"])[0]
    header, arrays = contents(path)
    files = {}
    for name, changes in HOSTILE.items():
        files[name] = tmp_path / name
        forge(files[name], changed(header, changes), arrays)
    for name, changes in ARRAYS.items():
        files[name] = tmp_path / name
        forge(files[name], header, {**arrays, **changes})
    for name in read_by_page(arrays):
        files[f"no {name}"] = tmp_path / f"no {name}"
        forge(files[f"no {name}"], header, {k: v for k, v in arrays.items() if k != name})
    for name, said in zip(files, in_node([(path, []) for path in files.values()]), strict=True):
        assert said.get("refused"), (name, said)


def test_hostile_encoders_and_lists_are_refused(fitted, tmp_path):
    """The changes that Python refuses too; the files themselves are read."""
    for at, (name, numbers, changes) in enumerate(test_model_file.FORGED_LISTS.values()):
        whole, path = saved(fitted, tmp_path, [name])[0], tmp_path / f"forged {at}"
        header, arrays = contents(whole)
        forge(path, *test_model_file.forged_lists(header, arrays, numbers, changes))
        sound, forged = in_node([(whole, []), (path, [])])
        assert "error" not in sound
        assert forged.get("refused"), (name, numbers, changes)


def test_forged_files_are_refused(fitted, tmp_path):
    """A right checksum, and what `save` would not write: one thing each."""
    header, arrays = contents(saved(fitted, tmp_path, ["means"])[0])
    content, table = b"", {}
    for name, array in arrays.items():
        ends = [len(content), len(content) + array.nbytes]
        kind = f"F{8 * array.itemsize}"
        table[name] = {"dtype": kind, "shape": list(array.shape), "data_offsets": ends}
        content += array.tobytes()
    end, sound = len(content), json.dumps(header)

    def with_extra(value):
        return f'{sound[:-1]},"extra":{value}}}'

    sounds = [(text, table, content) for text in (sound, with_extra("1"))]
    sounds += [(with_extra("[" * 12 + "]" * 12), table, content)]
    cases = {
        "no JSON": sound[:-1],
        "no object": "[]",
        "nothing": "null",
        "no text": 7,
        "a mark before it": f"\ufeff{sound}",
        "too deep": with_extra("[" * 13 + "]" * 13),
        "very deep": with_extra("[" * 100_000 + "]" * 100_000),
        "not a number": with_extra("NaN"),
        "infinity": with_extra("1e999"),
        "a control character": with_extra('"\\u001b[31m"'),
        "a mark of direction": with_extra('"\\u202e"'),
        "half a character": with_extra('"\\ud800"'),
        "such a key": with_extra('{"\\u0007":1}'),
    }
    forged = {name: (case, table, content) for name, case in cases.items()}
    forged["no table"] = sound, {}, content
    forged["no entry"] = sound, {**table, "more": None}, content
    for key, value in [
        *[("dtype", "object"), ("dtype", "__proto__"), ("dtype", 1), ("dtype", "F64")],
        *[("shape", []), ("shape", [1, 1, 0]), ("shape", [-1]), ("shape", [0.5])],
        *[("shape", [2**53]), ("shape", ["0"]), ("shape", 0), ("shape", [1])],
        *[("data_offsets", [end, end + 8]), ("data_offsets", [end]), ("data_offsets", None)],
    ]:
        entry = {"dtype": "F32", "shape": [0], "data_offsets": [end, end], key: value}
        entry |= {"shape": [1], "data_offsets": [end - 4, end + 4]} if value == "F64" else {}
        forged[f"{key} {value}"] = sound, {**table, "more": entry}, content
    forged |= {"too much": (sound, table, content + bytes(8))}
    forged |= {"too little": (sound, table, content[:-8])}
    for name in filter(lambda name: arrays[name].size, read_by_page(arrays)):
        start = table[name]["data_offsets"][0]
        spoilt = content[:start] + np.array([np.nan]).tobytes() + content[start + 8 :]
        forged[f"nan in {name}"] = sound, table, spoilt
    files = [
        (forge_header(tmp_path / f"forged {at}", *parts), [])
        for at, parts in enumerate([*sounds, *forged.values()])
    ]
    answers = in_node(files)
    assert not any("error" in said for said in answers[: len(sounds)])
    for name, said in zip(forged, answers[len(sounds) :], strict=True):
        assert said.get("refused"), (name, said)


def test_nothing_is_read_where_nothing_can_be_checked(fitted, tmp_path):
    """By http from elsewhere than localhost, browsers offer no digests."""
    script = tmp_path / "model.js"
    source = (FOLDER / "model.js").read_text(encoding="utf-8")
    script.write_text(source.replace("globalThis.crypto?.subtle", "undefined"), encoding="utf-8")
    said = in_node([(saved(fitted, tmp_path, ["means"])[0], [])], script=script)[0]
    assert said["refused"]
    assert "Open the page by https" in said["error"]
