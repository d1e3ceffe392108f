"""The web service of the examples, asked over loopback."""

import http.client
import importlib
import json
import sys
from pathlib import Path
from urllib.parse import quote
from wsgiref.simple_server import make_server
from wsgiref.validate import validator

import pandas as pd
import pytest

from skdpmf import CacheSGDFactorizer, load_model
from skdpmf.data import make_ratings
from tests.systems import served

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
DATA = make_ratings(200, 30, random_state=0, as_frame=True)


@pytest.fixture(scope="module")
def example():
    sys.path.insert(0, str(EXAMPLES))
    yield importlib.import_module("serve_model")
    sys.path.remove(str(EXAMPLES))


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("serve") / "films.skdpmf"
    CacheSGDFactorizer(4, random_state=0).fit(DATA.matrix).save(path)
    return path


@pytest.fixture(scope="module")
def ask(example, path):
    """A function that asks the running service: (status, answer)."""
    service = validator(example.open_service(path))
    server = make_server("127.0.0.1", 0, service, example.Server, example.Silent)
    with served(server):

        def send(method, target, body=None, **headers):
            connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=30)
            connection.request(method, target, body, headers)
            reply = connection.getresponse()
            answer = json.loads(reply.read())
            connection.close()
            return reply.status, answer

        yield send


def recommend(ask, **question):
    return ask("POST", "/recommend", json.dumps(question))


def test_answers_are_those_of_the_model(ask, path):
    model = load_model(path).set_output(recommend="pandas")
    ratings = {"m3": 5.0, "m17": 1.0, "m4": 2.0}
    status, answer = recommend(ask, ratings=ratings, n=4)
    assert status == 200
    expected = model.recommend(ratings, n=4).drop(columns="user")
    pd.testing.assert_frame_equal(pd.DataFrame(answer["items"])[list(expected)], expected)
    assert answer["unknown"] == 0
    titles = dict(zip(DATA.catalogue["item"], DATA.catalogue["title"], strict=True))
    assert all(titles[entry["item"]] == entry["title"] for entry in answer["items"])
    # what the service does not know counts for nothing
    more = {**ratings, "m999": 5.0, "": 1.0}
    assert recommend(ask, ratings=more, n=4) == (200, {**answer, "unknown": 2})
    best = [entry["item"] for entry in answer["items"]]
    _, without = recommend(ask, ratings=ratings, n=3, exclude=[best[0], "m999"])
    assert [entry["item"] for entry in without["items"]] == best[1:]
    _, some = recommend(ask, ratings=ratings, candidates=["m7", "m8", "m3"])
    assert {entry["item"] for entry in some["items"]} == {"m7", "m8"}
    _, nobody = recommend(ask, ratings={}, n=1)
    assert len(nobody["items"]) == 1
    status, near = ask("GET", "/similar?item=m3&n=2")
    assert status == 200
    assert [e["item"] for e in near["items"]] == model.similar_items("m3", 2)["item"].tolist()
    status, told = ask("GET", "/privacy")
    assert told == {"short": model.privacy_spent_.summary(), "full": str(model.privacy_spent_)}


@pytest.mark.parametrize(
    ("question", "status", "words"),
    [
        (("POST", "/recommend", "{"), 400, "must be JSON"),
        (("POST", "/recommend", b"\xff"), 400, "must be JSON"),
        (("POST", "/recommend", "{}"), 400, "ratings must be an object"),
        (("POST", "/recommend", '{"ratings": {"m1": "x"}}'), 400, "the rating 'x', which must be"),
        (("POST", "/recommend", '{"ratings": {"m1": NaN}}'), 400, "the rating nan, which must be"),
        (("POST", "/recommend", '{"ratings": {}, "n": 0}'), 400, "n must be an integer from 1"),
        (("POST", "/recommend", '{"ratings": {}, "exclude": "m1"}'), 400, "must be a list"),
        (("POST", "/recommend", '{"ratings": {}, "candidates": ["z"]}'), 400, "must name an item"),
        (("GET", "/similar?item=z"), 404, "item='z' is not in the catalogue"),
        (("GET", "/recommend"), 404, "GET /recommend is none of POST /recommend"),
        (("GET", f"/similar?item={quote('<script>')}"), 404, "<script>"),
    ],
)
def test_bad_questions_are_refused(ask, question, status, words):
    found, answer = ask(*question)
    assert found == status
    assert words in answer["error"]


def test_long_questions_are_refused_unread(ask, example):
    length = str((1 << 20) + 1)
    status, answer = ask("POST", "/recommend", "{}", **{"Content-Length": length})
    assert status == 413
    assert answer["error"].startswith("Send at most 1048576 bytes")
    for length in ("-1", "x"):
        with pytest.raises(example.QuestionError, match="Send at most"):
            example.question({"CONTENT_LENGTH": length})
