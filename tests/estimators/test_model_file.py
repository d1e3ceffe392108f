"""Model files: what is saved is what is loaded, bit for bit; anything else is refused."""

import copy
import json
import math
import os
import sys
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save
from sklearn.exceptions import NotFittedError

from skdpmf import (
    AdaptiveWeightALS,
    CacheSGDFactorizer,
    DPCovarianceRecommender,
    DPItemMeans,
    DPMFSampler,
    GradientReports,
    LocalDPGDDR,
    NearestItems,
    Pooled,
    PosteriorDraw,
    PrivacyBudget,
    PrivacyLedger,
    Snapshots,
    load_model,
)
from skdpmf.data import ParquetRatings
from skdpmf.estimators.contract import model_file
from skdpmf.exceptions import ModelFileError
from skdpmf.privacy.plan import Release
from skdpmf.privacy.statement import PrivacyStatement
from tests.built import built
from tests.estimators.common import MeansSVD, public_estimators, ratings
from tests.estimators.model_files import forge, forge_header, saved, sealed
from tests.systems import needs_posix

X = ratings(60, 12)
LIKES = (X > 2).astype(float)
BUDGET = PrivacyBudget(4.0, 1e-5)
TINY, LARGE = PrivacyBudget(0.1, 1e-5), PrivacyBudget(50.0, 1e-5)
NONPRIVATE = PrivacyBudget.nonprivate()
RATING = PrivacyBudget(400.0, 1e-5, unit="rating")
SEEDED = {"random_state": 0}
WIDE = {"shares": (0.2, 0.2, 0.6), "clean": False, "n_components": 3}
FEATURES = {"item_features": np.random.default_rng(3).normal(size=(12, 3))}
MODELS = {
    **{
        f"{solver}, {feedback}": AdaptiveWeightALS(
            BUDGET, solver=solver, feedback=feedback, n_components=3, max_iter=2, **SEEDED
        )
        for solver in ("pooled", "dpals")
        for feedback in ("explicit", "implicit")
    },
    "lists": AdaptiveWeightALS(
        LARGE, n_components=3, max_iter=2, **SEEDED, solver=Pooled(list_share=0.6)
    ),
    "features": built(AdaptiveWeightALS, LARGE, n_components=3, max_iter=2, **FEATURES, **SEEDED),
    "features, clicks": built(AdaptiveWeightALS, LARGE, feedback="implicit", **FEATURES, **SEEDED),
    "features, item-item": DPCovarianceRecommender(
        LARGE, feedback="implicit", **FEATURES, **SEEDED
    ),
    "features, means": DPItemMeans(BUDGET, rating_range=(0.5, 5), **FEATURES, **SEEDED),
    "features, sgd": built(CacheSGDFactorizer, 3, max_iter=2, **FEATURES, **SEEDED),
    "no feature tells": DPItemMeans(BUDGET, item_features=np.ones((12, 2)), **SEEDED),
    "no privacy": AdaptiveWeightALS(NONPRIVATE, n_components=3, max_iter=2),
    # the noise of so few users leaves nothing of the factors of clicks
    "clicks, no privacy": AdaptiveWeightALS(
        NONPRIVATE, feedback="implicit", n_components=3, max_iter=2
    ),
    "item-item": built(DPCovarianceRecommender, LARGE, feedback="implicit", **SEEDED),
    "item-item, popularity": built(DPCovarianceRecommender, TINY, feedback="implicit", **SEEDED),
    "item-item, no privacy": DPCovarianceRecommender(NONPRIVATE, feedback="implicit"),
    "every step": built(DPMFSampler, BUDGET, n_components=2, max_iter=2, **SEEDED),
    "posterior": DPMFSampler(
        PrivacyBudget(4), guarantee=PosteriorDraw(weight_cap=np.inf), max_iter=2, **SEEDED
    ),
    "svd": built(DPCovarianceRecommender, RATING, **WIDE, **SEEDED),
    "knn": built(
        DPCovarianceRecommender, RATING, predictor=NearestItems(n_neighbors=3), **WIDE, **SEEDED
    ),
    "no covariance": built(
        DPCovarianceRecommender, PrivacyBudget(0.1, 1e-5), predictor="knn", **SEEDED
    ),
    "items": built(LocalDPGDDR, PrivacyBudget(4.0), n_components=2, **SEEDED),
    "gradient": built(LocalDPGDDR, PrivacyBudget(4.0), method="gradient", n_components=2, **SEEDED),
    "raw gradient": LocalDPGDDR(
        PrivacyBudget(4.0), method=GradientReports(center=False), n_components=2, **SEEDED
    ),
    "means": DPItemMeans(BUDGET, rating_range=(0.5, 5), **SEEDED),
    "sgd": built(CacheSGDFactorizer, 3, max_iter=2, **SEEDED),
    "sgd, no bias": built(CacheSGDFactorizer, 3, max_iter=2, fit_bias=False, **SEEDED),
}
NEW = ratings(20, 12, density=0.3, seed=1)


@pytest.fixture(scope="module")
def fitted():
    models = {}
    for name, model in MODELS.items():
        implicit = getattr(model, "feedback", "") == "implicit"
        models[name] = copy.deepcopy(model).fit(LIKES if implicit else X)
    return models


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.skdpmf"


def bits(value):
    """What must agree: dtype, shape and bytes."""
    array = np.asarray(value)
    return array.dtype.str, array.shape, array.tobytes() if array.dtype != object else list(array)


def answers(model, rows=NEW):
    """All that a model says."""
    known = np.where(np.arange(rows.shape[1]) % 2, rows, np.nan)
    return {
        "transform": bits(model.transform(rows)),
        "transform32": bits(model.transform(rows.astype(np.float32))),
        "predict": bits(model.predict(rows)),
        "decision": bits(model.decision_function(rows)),
        "entries": bits(model.predict_entries(known, rows).data),
        "recommend": [bits(part) for part in model.recommend(rows, 5)],
        "seen": [
            bits(part)
            for part in model.recommend(rows, 5, exclude_seen=False, candidates=[1, 4, 7])
        ],
        "similar": [bits(part) for part in model.similar_items(np.arange(12), 4)],
        "score": model.score(rows),
        "score at y": model.score(known, rows),
        "privacy": model.privacy_spent_,
        "names out": list(model.get_feature_names_out()),
    }


def test_all_estimators_are_tried():
    tried = {type(model) for model in MODELS.values()}
    assert tried == {type(model) for model in public_estimators()}
    assert {kind.__name__ for kind in tried} == set(model_file.CLASSES)


@pytest.mark.parametrize("name", MODELS)
def test_a_loaded_model_is_the_saved_one(name, fitted, path):
    model = fitted[name]
    model.save(path)
    loaded, described = load_model(path), model_file.load_description(path)
    assert repr(described) == repr(loaded)
    assert described.privacy_spent_ == loaded.privacy_spent_
    assert type(loaded) is type(model)
    assert answers(loaded) == answers(model)
    params = {**model.get_params(deep=False), "random_state": None, "item_features": None}
    assert loaded.get_params(deep=False) == params
    assert loaded.n_features_in_ == 12
    assert loaded.n_jobs is None
    # every fitted attribute but the users' of a model without privacy
    assert vars(loaded).keys() == vars(model).keys()
    for key, value in vars(model).items():
        if isinstance(value, np.ndarray) and not key.startswith(("user_", "item_features")):
            assert bits(getattr(loaded, key)) == bits(value), key
    before = path.read_bytes()
    loaded.save(path)
    assert path.read_bytes() == before


def test_covariances_were_released(fitted):
    """The cases would not test neighbours otherwise."""
    assert fitted["knn"].covariance_items_.size > 3
    assert fitted["no covariance"].covariance_items_.size == 0
    assert fitted["knn"].components_.any()


@pytest.mark.parametrize("kind", ["index", "name", "matrix"])
def test_names_and_targets_are_kept(kind, path):
    names = [f"film {j} ★" for j in range(12)]
    frame = pd.DataFrame(X, columns=names)
    y = {"index": np.zeros(60, int), "name": np.array(names * 5), "matrix": X}[kind]
    model = AdaptiveWeightALS(BUDGET, n_components=2, max_iter=1).fit(frame, y)
    model.save(path)
    loaded = load_model(path)
    rows = frame[:9]
    assert bits(loaded.predict(rows)) == bits(model.predict(rows))
    assert loaded.score(rows, y[:9]) == model.score(rows, y[:9])
    assert list(loaded.feature_names_in_) == names
    assert loaded.feature_names_in_.dtype == model.feature_names_in_.dtype
    assert load_model(path).catalogue_["item"].tolist() == names
    with pytest.raises(ValueError, match="feature names"):
        loaded.predict(rows.rename(columns={names[0]: "another"}))


def test_catalogue_is_kept(fitted, path):
    model = fitted["means"]
    model.save(path)
    assert load_model(path).catalogue_.to_dict("list") == {"item": list(range(12))}
    for ids in (range(100, 112), [f"i{j}" for j in range(12)], np.arange(12) + 0.5):
        catalogue = pd.DataFrame({"item": ids, "title": [f"Amélie, {i}" for i in ids]})
        model.save(path, catalogue=catalogue)
        pd.testing.assert_frame_equal(load_model(path).catalogue_, catalogue)
        assert answers(load_model(path)) == answers(model)
        model.save(path, catalogue=catalogue[["item"]])
        pd.testing.assert_frame_equal(load_model(path).catalogue_, catalogue[["item"]])


@pytest.mark.parametrize(
    ("catalogue", "words"),
    [
        ({"item": [1]}, "1 values in 'item' and must have 12"),
        ({"item": range(12), "title": ["a"]}, "1 values in 'title' and must have 12"),
        ({"item": [math.nan] * 12}, "has nan, which must be a text, a number or"),
        ({"item": [True] * 12}, "has True, which must be a text"),
        ({"item": [None] * 12}, "has None, which must be a text"),
        ({"item": [frozenset()] * 12}, "tuple: write it as text"),
        ({"item": range(12), "title": ["a\nb"] * 12}, "take control characters"),
        ({"item": range(12), "title": [7] * 12}, "has 7, which must be a text"),
        ({"item": range(12), "genres": ["a"]}, "1 values in 'genres' and must have 12"),
        (
            {"item": range(12), "genres": [["a"]] * 12},
            r"catalogue\['genres'\] has .* must be a text",
        ),
        ({"title": ["a"] * 12}, "pass one of each for each column of X"),
        (3, "pass one of each for each column of X"),
    ],
)
def test_catalogue_must_fit(fitted, path, catalogue, words):
    with pytest.raises(ModelFileError, match=words):
        fitted["means"].save(path, catalogue=catalogue)
    assert not path.exists()


def test_catalogue_must_agree_with_the_names(path):
    names = [f"i{j}" for j in range(12)]
    model = DPItemMeans(BUDGET).fit(pd.DataFrame(X, columns=names))
    model.save(path, catalogue={"item": names, "title": names})
    assert load_model(path).catalogue_["title"].tolist() == names
    with pytest.raises(ModelFileError, match="as feature_names_in_"):
        model.save(path, catalogue={"item": names[::-1]})


def test_parameters_of_numpy_are_plain(path):
    budget = PrivacyBudget(np.float64(4.0), np.float32(1e-5))
    model = DPItemMeans(budget, rating_range=np.array([1, 5]), user_damping=np.int64(7)).fit(X)
    model.save(path)
    loaded = load_model(path)
    assert loaded.rating_range == (1, 5)
    assert (loaded.user_damping, type(loaded.user_damping)) == (7, int)
    assert loaded.budget == PrivacyBudget(4.0, float(np.float32(1e-5)))
    model.user_damping = object()
    with pytest.raises(ModelFileError, match="user_damping=<object"):
        model.save(path)


def test_loaded_sgd_goes_on(fitted, path):
    fitted["sgd"].save(path)
    loaded = load_model(path)
    assert loaded.user_factors_.shape == (0, 3)
    assert loaded.partial_fit(X[:10]).user_factors_.shape == (10, 3)
    assert loaded.item_counts_.sum() == fitted["sgd"].item_counts_.sum() + np.sum(X[:10] > 0)
    warm = load_model(path).set_params(warm_start=True, random_state=0, max_iter=1).fit(X)
    assert warm.loss_curve_[0] < fitted["sgd"].loss_curve_[0]
    pytest.importorskip("pyarrow")
    store = ParquetRatings.write(path.parent / "store", X)
    with pytest.raises(ValueError, match="as a matrix to partial_fit"):
        load_model(path).set_params(warm_start=True).fit(store)


def test_file_holds_nothing_of_users_seed_or_machine(path, tmp_path):
    planted = X.copy()
    planted[:, 3] = 3.0 + np.arange(1, 61) / 9973  # 60 values that no computation gives back
    ledger = PrivacyLedger(tmp_path / "secret.ledger", BUDGET, allow_seeded=True)
    budget = PrivacyBudget(2.0, 1e-6, ledger=ledger)
    for model in (
        AdaptiveWeightALS(budget, n_components=2, max_iter=1, random_state=81549300),
        CacheSGDFactorizer(
            2, random_state=81549300, snapshots=Snapshots(path=tmp_path / "secret.part")
        ),
    ):
        model.fit(planted).save(path, catalogue={"item": range(12)})
        content = path.read_bytes()
        for value in planted[:, 3]:
            assert value.tobytes() not in content
            assert np.float32(value).tobytes() not in content
            assert repr(float(value)).encode() not in content
        for secret in (b"secret", b"81549300", str(tmp_path).encode()):
            assert secret not in content
        for key in ("user_factors_", "user_biases_"):
            assert key.encode() not in content
            assert all(row.tobytes() not in content for row in getattr(model, key, ()))
    # the same search does find what is there
    assert model.item_biases_.tobytes() in content
    assert repr(model.intercept_ * 1.0).strip("np.float64()").encode() in content
    loaded = load_model(path)
    assert loaded.random_state is loaded.snapshots is None


def test_only_whole_models_of_this_package_are_saved(fitted, path):
    with pytest.raises(NotFittedError):
        DPItemMeans(BUDGET).save(path)

    class AdaptiveWeightALS(DPItemMeans):  # of a known name, and another class
        pass

    for other in (MeansSVD().fit(X), AdaptiveWeightALS(BUDGET).fit(X)):
        with pytest.raises(ModelFileError, match="has no file format"):
            other.save(path)
    for name, value in (("components_", np.ones((3, 12))), ("item_means_", np.ones(12))):
        changed = copy.copy(fitted["pooled, explicit"])
        setattr(changed, name, value)
        with pytest.raises(ModelFileError, match="not what fit released"):
            changed.save(path)
    assert not path.exists()


def test_flipped_bytes_and_truncations_are_noticed(fitted, path):
    fitted["means"].save(path)
    content = path.read_bytes()
    for place in range(0, len(content), 5):
        flipped = bytearray(content)
        flipped[place] ^= 1 << place % 8
        for damaged in (flipped, content[:place]):
            path.write_bytes(damaged)
            with pytest.raises(ModelFileError, match=r"model\.skdpmf: "):
                load_model(path)
    for more in (b"\0", bytes(32), content):
        path.write_bytes(content + more)
        with pytest.raises(ModelFileError, match="checksum"):
            load_model(path)


def entry(**changes):
    return {"dtype": "F64", "shape": [1], "data_offsets": [0, 8], **changes}


TABLES = {
    "terabytes": entry(shape=[2**40]),
    "no memory at all, and a huge shape": entry(shape=[0, 2**62], data_offsets=[0, 0]),
    "a length of 70 bits": entry(shape=[2**70]),
    "a text as a length": entry(shape=["1"]),
    "three dimensions": entry(shape=[1, 1, 1]),
    "a dtype that NumPy has not": entry(dtype="BF16", shape=[4]),
    "objects": entry(dtype="|O8"),
    "an end beyond the file": entry(shape=[10**6], data_offsets=[0, 8 * 10**6]),
    "another's bytes": entry(shape=[5], data_offsets=[0, 40]),
    "a hole before it": entry(data_offsets=[8, 16]),
}


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_hostile_table_is_refused(fitted, path, table):
    """Before anything of its size is made."""
    text = json.dumps(saved(fitted["means"], path)[0])
    forge_header(path, text, {"item_model.offsets": table}, bytes(8))
    with pytest.raises(ModelFileError, match=r"does not (hold|fit together)"):
        load_model(path)


DESCRIPTIONS = {
    "deep lists": "[" * 100_000 + "]" * 100_000,
    "deep objects": '{"a":' * 100_000 + "1" + "}" * 100_000,
    "an integer of 10,000 digits": "9" * 10_000,
    "a control character": '{"a": "\\u001b[2J"}',
    "a control character in a key": '{"\\u0000": 1}',
    "a reversed text": '{"a": "\\u202etxt.exe"}',
    "half a character": '{"a": "\\ud800"}',
    "no object": "[]",
    "an unfinished object": '{"a": 1',
    "nothing": "",
    "no key": "{}",
}


@pytest.mark.parametrize("text", DESCRIPTIONS.values(), ids=DESCRIPTIONS)
def test_hostile_description_is_refused(path, text):
    with pytest.raises(ModelFileError, match=r"model\.skdpmf: "):
        load_model(forge(path, text, {"item_model.offsets": np.ones(1)}))


@given(st.binary(max_size=200), st.booleans())
def test_any_bytes_are_refused(tmp_path_factory, content, begin):
    path = tmp_path_factory.mktemp("any") / "file"
    start = len(content).to_bytes(8, "little") + model_file._BEGINNING
    path.write_bytes(sealed(start * begin + content + bytes(32)))
    with pytest.raises(ModelFileError):
        load_model(path)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_numbers_are_finite(fitted, path, value):
    model = copy.deepcopy(fitted["means"])
    header, arrays = saved(model, path)
    arrays["item_model.factors"] = np.full((12, 1), value)
    with pytest.raises(ModelFileError, match="not finite"):
        load_model(forge(path, header, arrays))
    path.unlink()
    model._item_model_ = model._item_model_._replace(item_ridge=np.full(12, value))
    with pytest.raises(ModelFileError, match=r"cannot be saved: .* not finite"):
        model.save(path)
    assert os.listdir(path.parent) == []


def test_newer_version_says_what_to_do(fitted, path):
    header, arrays = saved(fitted["means"], path)
    forge(path, {**header, "version": 3, "more": 1}, arrays)
    with pytest.raises(ModelFileError, match=r"version 3 .* reads 2\. Update skdpmf"):
        load_model(path)


@needs_posix
def test_other_files_are_named_as_such(tmp_path, monkeypatch):
    path = tmp_path / "other"
    for content in (b"", b"PK\x03\x04", b"\x80\x04\x95 a pickle", save({"a": np.ones(1)})):
        path.write_bytes(content)
        with pytest.raises(ModelFileError, match="it begins with"):
            load_model(path)
    with pytest.raises(FileNotFoundError):
        load_model(tmp_path / "none")
    with pytest.raises(ModelFileError, match="no regular file"):
        load_model(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    monkeypatch.setattr(Path, "read_bytes", lambda _: pytest.fail("would be read for ever"))
    with pytest.raises(ModelFileError, match="no regular file"):
        load_model(tmp_path / "pipe")


RELEASE = PrivacyStatement(
    1.0, 1e-5, "user", "add-remove", (Release("a", "sums", (1,), 1.0, noise_multiplier=9.0),)
).to_dict()["releases"][0]
HOSTILE = {
    "another class": {"class": "Pipeline"},
    "a list as class": {"class": ["DPItemMeans"]},
    "an unknown parameter": {"params.__class__": "x"},
    "a parameter of the machine": {"params.n_jobs": 10**6},
    "a seed": {"params.random_state": 0},
    "a list in a list as parameter": {"params.user_damping": [[1]]},
    "no parameters": {"params": None},
    "a range from high to low": {"params.rating_range": [5, 1]},
    "a range without end": {"params.rating_range": [1, "inf"]},
    "no budget": {"params.budget": None},
    "a negative budget": {"params.budget.PrivacyBudget.epsilon": -1},
    "a ledger": {"params.budget.PrivacyBudget.ledger": "/tmp/x"},
    "no target kind": {"numbers.target_kind": "file"},
    "too many components": {"numbers.n_components": 99},
    "negative components": {"numbers.n_components": -1},
    "components as a number": {"numbers.n_components": 1.0},
    "a negative ridge": {"numbers.item_model.rating_ridge": -1.0},
    "another order": {"numbers.order": "K"},
    "no numbers": {"numbers": [1]},
    "implicit by a number": {"numbers.item_model.implicit": 1},
    "no items": {"items": None},
    "an item too few": {"items.ids": [1]},
    "an item of neither kind": {"items.ids": [True] * 12},
    "a name that is none": {"items.ids": [1] * 12, "items.are_names": True},
    "a title that is none": {"items.titles": [1] * 12},
    "genres of fewer items": {"items.genres": ["Drama"] * 11},
    "genres that are none": {"items.genres": [["Drama"]] * 12},
    "no card": {"card": None},
    "another card": {"card.format": "skdpmf privacy card 2"},
    "no statement": {"card.statement": None},
    "an unknown field": {"card.statement.__dict__": 1},
    "epsilon below 0": {"card.statement.epsilon": -1.0},
    "epsilon that is none": {"card.statement.epsilon": "nan"},
    "delta as a text": {"card.statement.delta": "0"},
    "a unit of its own": {"card.statement.unit": "nobody"},
    "notes that are numbers": {"card.statement.notes": [1]},
    "a flag that is a text": {"card.statement.seeded": "no"},
    "a release that is none": {"card.statement.releases": [1]},
    "a release twice": {"card.statement.releases": [RELEASE, RELEASE]},
    "another key": {"__class__": "x"},
}


def changed(header, changes):
    """A header with other values at dotted places."""
    header = copy.deepcopy(header)
    for place, value in changes.items():
        *outer, last = place.split(".", 1 if place.startswith("numbers.") else -1)
        target = header
        for key in outer:
            target = target[key]
        target[last] = value
    return header


@pytest.mark.parametrize("changes", HOSTILE.values(), ids=HOSTILE)
def test_hostile_header_is_refused(fitted, path, changes):
    header, arrays = saved(fitted["means"], path)
    forge(path, changed(header, changes), arrays)
    with pytest.raises(ModelFileError, match=r"model\.skdpmf: its (content|header)"):
        load_model(path)


def neighbours(**changes):
    parts = {"head": np.arange(3), "covariance": np.ones(6), "weights": np.ones(6), **changes}
    return {f"neighbor_model.{part}": array for part, array in parts.items()}


ARRAYS = {
    "factors of fewer items": ("knn", {"item_model.factors": np.ones((11, 4))}),
    "another ridge": ("knn", {"item_model.ridge": np.eye(3)}),
    "another prior": ("knn", {"item_model.prior": np.ones((4, 4))}),
    "no offsets": (
        "means",
        {"item_model.offsets": np.empty(0), "item_model.factors": np.ones((0, 1))},
    ),
    "offsets in single precision": ("means", {"item_model.offsets": np.ones(12, np.float32)}),
    "an array too many": ("means", {"__class__": np.ones(1)}),
    "an item beyond the last": ("knn", neighbours(head=np.array([1, 2, 12]))),
    "an item twice": ("knn", neighbours(head=np.array([1, 1, 3]))),
    "items that are fractions": ("knn", neighbours(head=np.arange(3.0))),
    "a covariance too short": ("knn", neighbours(covariance=np.ones(5))),
    "neighbours without weights": ("knn", {"neighbor_model.weights": np.empty(0)}),
    "fewer biases": ("sgd", {"item_biases": np.ones(11)}),
    "negative counts": ("sgd", {"item_counts": -np.ones(12, np.int64)}),
    "a square loss": ("sgd", {"loss_curve": np.ones((2, 2))}),
}


def forged_lists(header, arrays, numbers, changes):
    """A header and arrays with other ones of these names; None: without it."""

    def with_changes(values, changes):
        left = {key: value for key, value in values.items() if key not in changes}
        return {**left, **{key: value for key, value in changes.items() if value is not None}}

    forged = {**header, "numbers": with_changes(header["numbers"], numbers)}
    return forged, with_changes(arrays, changes)


LISTS = {f"ranking.lists.{part}": np.ones((12, 2), "f4") for part in ("factors", "encoder")}
LISTS["ranking.lists.offsets"] = np.ones(12)
LISTS["ranking.lists.ridge"] = np.empty((0, 0))
BESIDE = {"ranking.unit": 0.5}
FORGED_LISTS = {
    "an encoder of fewer items": ("item-item", {}, {"item_model.encoder": np.ones((11, 7))}),
    "a flat encoder": ("item-item", {}, {"item_model.encoder": np.ones(84)}),
    "an encoder with a ridge": ("item-item", {}, {"item_model.ridge": np.eye(7)}),
    "neither encoder nor ridge": ("item-item", {}, {"item_model.encoder": None}),
    "a unit without lists": ("clicks, no privacy", BESIDE, {}),
    "a unit and no list": ("lists", {}, dict.fromkeys(LISTS)),
    "a negative unit": ("lists", {"ranking.unit": -1.0}, {}),
    "popularity of none": ("means", {}, {"ranking.lists.offsets": np.zeros(12)}),
    "lists without offsets": ("lists", {}, {"ranking.lists.offsets": None}),
    "lists of fewer items": (
        "lists",
        {},
        {name: array[1:] for name, array in LISTS.items() if array.size},
    ),
    "lists of two widths": ("lists", {}, {"ranking.lists.encoder": np.ones((12, 3))}),
    "lists of a model of clicks": ("clicks, no privacy", BESIDE, LISTS),
}
# The page reads these models, as its formulas hold for them.
FORGED_CLASSES = {
    "lists without a unit": ("lists", {"ranking.unit": None}, {}),
    "an encoder with a prior": ("item-item", {}, {"item_model.prior": np.ones((8, 7))}),
    "an encoder of neighbours": (
        *("knn", {}),
        {"item_model.encoder": np.ones((12, 4)), "item_model.ridge": np.empty((0, 0))},
    ),
    "neighbours without an offset": (
        *("knn", {"n_components": 0}),
        {"item_model.factors": np.empty((12, 0)), "item_model.ridge": np.empty((0, 0))},
    ),
}


@pytest.mark.parametrize(
    ("name", "numbers", "changes"),
    [
        *((name, {}, changes) for name, changes in ARRAYS.values()),
        *(FORGED_LISTS | FORGED_CLASSES).values(),
    ],
    ids=[*ARRAYS, *FORGED_LISTS, *FORGED_CLASSES],
)
def test_forged_arrays_and_numbers_are_refused(fitted, path, name, numbers, changes):
    forge(path, *forged_lists(*saved(fitted[name], path), numbers, changes))
    with pytest.raises(ModelFileError, match="does not fit together"):
        load_model(path)


@pytest.mark.parametrize(
    "feedback", [None, "clicks", {"Clicks": {"weighting": "square"}}, {"Clicks": {"weighting": 2}}]
)
def test_options_that_predictions_follow_from_are_checked(fitted, path, feedback):
    header, arrays = saved(fitted["pooled, implicit"], path)
    forge(path, changed(header, {"params.feedback": feedback}), arrays)
    with pytest.raises(ModelFileError, match=r"(feedback|weighting)="):
        load_model(path)


def test_numbers_of_any_size_are_answered_from(fitted, path):
    """Solvers of LAPACK raise where a system is singular or not finite."""
    for name, array in (("knn", "neighbor_model.covariance"), ("means", "item_model.factors")):
        header, arrays = saved(fitted[name], path)
        own = arrays[array].astype(float)
        for value in (1e308, 1e100, -1e9):
            for at in (slice(None), *range(0, own.shape[0], 3)):
                changed_array = own.copy()
                changed_array[at] = value
                forge(path, header, {**arrays, array: changed_array.astype(arrays[array].dtype)})
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    model = load_model(path)
                    model.predict(NEW[:3])
                    model.explain(NEW[:3], [0, 1, 2])


def test_what_is_forged_and_fits_is_read(fitted, path):
    """The cases above are refused for what they change and nothing else."""
    for name, more in (("means", {}), ("knn", neighbours()), ("lists", LISTS)):
        header, arrays = saved(fitted[name], path)
        header = changed(header, {"card.statement.releases": [RELEASE]})
        forge(path, header, {**arrays, **more})
        assert load_model(path).recommend(NEW)[0].shape == (20, 10)


@pytest.mark.parametrize("name", ["knn", "sgd", "pooled, implicit", "item-item", "lists"])
def test_an_array_less_is_refused(fitted, path, name):
    header, arrays = saved(fitted[name], path)
    for missing in arrays.keys() - {"item_model.prior", "item_model.item_ridge"}:
        forge(path, header, {key: arrays[key] for key in arrays if key != missing})
        with pytest.raises(ModelFileError):
            load_model(path)


def places(value, place=()):
    """All places of a JSON value."""
    yield place
    if isinstance(value, dict | list):
        for key, part in value.items() if isinstance(value, dict) else enumerate(value):
            yield from places(part, (*place, key))


LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**64), 2**64),
    st.floats(),
    st.text(max_size=5),
    st.sampled_from(["inf", "nan", "__class__", "svd", "knn", "C", "user", "AdaptiveWeightALS"]),
)
VALUES = st.recursive(
    LEAVES, lambda part: st.lists(part, max_size=3) | st.dictionaries(st.text(), part, max_size=2)
)


@given(st.data())
def test_fuzzed_headers_are_refused_or_predict(fitted, tmp_path_factory, data):
    """What loads predicts and prints without error, whatever its header says."""
    path = tmp_path_factory.mktemp("fuzz") / "model"
    name = data.draw(st.sampled_from(["means", "knn", "sgd", "lists", "item-item"]))
    header, arrays = saved(fitted[name], path)
    for _ in range(data.draw(st.integers(1, 2))):
        place = data.draw(st.sampled_from([p for p in places(header) if p]))
        value, target = data.draw(VALUES), header
        for key in place[:-1]:
            target = target[key]
        target[place[-1]] = value
    try:
        forge(path, header, arrays)
    except UnicodeEncodeError:  # half a character is no text of JSON
        return
    try:
        model = load_model(path)
    except ModelFileError:
        return
    with warnings.catch_warnings():  # numbers that are no good may overflow
        warnings.simplefilter("ignore")
        for implicit in (False, True):
            rows = pd.DataFrame(LIKES[:5] if implicit else NEW[:5])
            rows.columns = getattr(model, "feature_names_in_", rows.columns)
            model.predict(rows)
            model.recommend(rows)
            model.transform(rows)
        assert "statement" in str(model.privacy_spent_)
        assert type(model).__name__ in repr(model)


def test_loading_opens_the_file_and_nothing_else(fitted, path):
    events, listening = [], []

    def listen(event, arguments):
        if listening:
            events.append((event, arguments))

    sys.addaudithook(listen)  # stays, and is silent afterwards
    for name in ("knn", "sgd", "posterior"):
        fitted[name].save(path)
        load_model(path)  # what is imported late is imported now
        listening.append(True)
        load_model(path)
        listening.clear()
    opened = [os.fspath(arguments[0]) for event, arguments in events if event == "open"]
    assert opened == [os.fspath(path)] * 3
    calls = {"exec", "compile", "import", "pickle.find_class", "subprocess.Popen", "os.system"}
    assert not calls & {event for event, _ in events}
