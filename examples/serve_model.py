"""
A web service around a model file
=================================

The service has the released model and nothing else: no ratings, no users, no database. Users send
their own ratings with a question; the service uses them for this one answer, and neither keeps nor
logs them. ::

    python examples/serve_model.py films.skdpmf
    curl -d '{"ratings": {"m3": 5, "m17": 1}, "n": 3}' http://127.0.0.1:8000/recommend
    curl 'http://127.0.0.1:8000/similar?item=m3&n=3'
    curl http://127.0.0.1:8000/privacy

`POST /recommend` takes ``ratings`` and, if wanted, ``n``, ``exclude`` and ``candidates``. Ratings
of unknown items count for nothing, and ``unknown`` of the answer says how many these were. `GET
/similar` names the nearest items, and `GET /privacy` shows the spending of the model.

`Service` is a WSGI application, which the servers of the trade run as well (``gunicorn
"serve_model:open_service('films.skdpmf')"``). The server of the standard library, which this file
starts, is for trials and for the inside of a network.
"""

import argparse
import json
from pathlib import Path
from socketserver import ThreadingMixIn
from urllib.parse import parse_qs
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from skdpmf import load_model

LONGEST = 1 << 20  # of a question, in bytes
MOST = 100  # items of an answer


class QuestionError(Exception):
    """A question that cannot be answered: a status line and what to do."""

    def __init__(self, status, text):
        super().__init__(text)
        self.status = status


class Service:
    """Answers from a fitted model, as a WSGI application."""

    def __init__(self, model):
        self.model = model.set_output(recommend="pandas")
        # JSON has only texts as names: "7" is the item 7, where ids are integers
        self.ids = {str(item): item for item in model.catalogue_["item"]}
        self.routes = {
            ("POST", "/recommend"): self.recommend,
            ("GET", "/similar"): self.similar,
            ("GET", "/privacy"): self.privacy,
        }
        model.recommend({}, n=1)  # the first answer prepares the others

    def __call__(self, environ, start_response):
        try:
            status, answer = "200 OK", self.answer(environ)
        except QuestionError as error:
            status, answer = error.status, {"error": str(error)}
        except ValueError as error:  # of the package: it names the argument and the remedy
            status, answer = "400 Bad Request", {"error": str(error)}
        body = json.dumps(answer).encode()
        head = [("Content-Type", "application/json"), ("Content-Length", str(len(body)))]
        start_response(status, [*head, ("Cache-Control", "no-store")])
        return [body]

    def answer(self, environ):
        method, path = environ["REQUEST_METHOD"], environ.get("PATH_INFO", "/")
        if (method, path) in self.routes:
            return self.routes[method, path](environ)
        known = ", ".join(" ".join(route) for route in self.routes)
        raise QuestionError("404 Not Found", f"{method} {path} is none of {known}.")

    def recommend(self, environ):
        asked = question(environ)
        ratings = asked.get("ratings")
        if not isinstance(ratings, dict):
            raise QuestionError("400 Bad Request", "ratings must be an object, item: rating.")
        known = {self.ids[item]: value for item, value in ratings.items() if item in self.ids}
        options = {name: self.known(asked, name) for name in ("exclude", "candidates")}
        lists = self.model.recommend(known, n=number(asked.get("n", 10)), **options)
        return {"items": records(lists), "unknown": len(ratings) - len(known)}

    def similar(self, environ):
        asked = {name: values[-1] for name, values in parse_qs(environ["QUERY_STRING"]).items()}
        item = asked.get("item", "")
        if item not in self.ids:
            raise QuestionError("404 Not Found", f"item={item!r} is not in the catalogue.")
        lists = self.model.similar_items(self.ids[item], n=number(asked.get("n", 10)))
        return {"items": records(lists)}

    def privacy(self, environ):
        statement = self.model.privacy_spent_
        return {"short": statement.summary(), "full": str(statement)}

    def known(self, asked, name):
        """Return the ids of a list in a question, None if it has none."""
        items = asked.get(name)
        if items is None:
            return None
        if not isinstance(items, list):
            raise QuestionError("400 Bad Request", f"{name} must be a list of items.")
        found = [self.ids[str(item)] for item in items if str(item) in self.ids]
        if name == "candidates" and not found:
            raise QuestionError("400 Bad Request", "candidates must name an item of the catalogue.")
        return found


def question(environ):
    """Return the JSON object that was sent."""
    try:
        size = int(environ.get("CONTENT_LENGTH") or 0)
    except ValueError:
        size = -1
    if not 0 <= size <= LONGEST:
        raise QuestionError(
            "413 Content Too Large", f"Send at most {LONGEST} bytes, and their number."
        )
    try:
        asked = json.loads(environ["wsgi.input"].read(size))
    except (ValueError, RecursionError) as error:
        raise QuestionError("400 Bad Request", f"The question must be JSON: {error}.") from error
    if not isinstance(asked, dict):
        raise QuestionError(
            "400 Bad Request", 'The question must be an object: {"ratings": {...}}.'
        )
    return asked


def number(value):
    """Return how many items are wanted."""
    if isinstance(value, str) and value.isdigit():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MOST:
        raise QuestionError("400 Bad Request", f"n must be an integer from 1 to {MOST}.")
    return value


def records(lists):
    """Return the rows of a table of one list, as JSON has them."""
    wanted = [name for name in ("item", "title", "score", "rank") if name in lists]
    return [
        dict(zip(wanted, row, strict=True))
        for row in zip(*(lists[name].tolist() for name in wanted), strict=True)
    ]


class Server(ThreadingMixIn, WSGIServer):
    """A thread for each connection."""

    daemon_threads = True


class Silent(WSGIRequestHandler):
    """Nothing of a question is logged."""

    def log_message(self, *args):
        pass


def open_service(path):
    """Return the service of a model file."""
    return Service(load_model(path))


def main(arguments=None):
    """Serve until interrupted."""
    parser = argparse.ArgumentParser(description=__doc__.strip().partition("\n")[0])
    parser.add_argument("model", type=Path, help="file that model.save has written")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000, help="0: any that is free")
    options = parser.parse_args(arguments)
    service = open_service(options.model)
    with make_server(options.host, options.port, service, Server, Silent) as server:
        print(f"serving {options.model.name} at http://{options.host}:{server.server_port}")
        server.serve_forever()


if __name__ == "__main__":
    main()
