"""
A web service around a model file
=================================

The service has the released model and nothing else: no ratings, no users, no database. Users send
their own ratings with a question; the service uses them for this one answer, and neither keeps nor
logs them. The file is a complete service, and the page ends with its answers.
"""

# %%
# What it answers
# ---------------
# ``POST /recommend`` takes ``ratings`` and, if wanted, ``n``, ``exclude`` and ``candidates``.
# Ratings of unknown items count for nothing, and ``unknown`` says how many these were. ``GET
# /similar`` names the nearest items, and ``GET /privacy`` shows the spending of the model.
#
# `Service` is a WSGI application. An error of the package names the argument and the remedy, and
# goes to the user as it is; no answer may be kept by a cache.

import json
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


# %%
# What it accepts
# ---------------
# A question comes from anybody. It is bounded and checked before the model sees it.


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


# %%
# A server
# --------
# The servers of the trade run the application: ``gunicorn
# "serve_model:open_service('films.skdpmf')"``. The one of the standard library is for trials and
# for the inside of a network; ``python -c "import serve_model; serve_model.serve('films.skdpmf')"``
# starts it beside this file. It logs nothing of a question.


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


def serve(path, host="127.0.0.1", port=8000):
    """Serve a model file until interrupted; port 0 is any that is free."""
    with make_server(host, port, open_service(path), Server, Silent) as server:
        print(f"serving {path} at http://{host}:{server.server_port}")
        server.serve_forever()


# %%
# Questions and answers
# ---------------------
# A model is fitted and saved, as anywhere. Then the application is called as a server would call
# it, without a network. These lines do not run where the file is imported.

if __name__ == "__main__":
    from io import BytesIO

    import pandas as pd

    from skdpmf import AdaptiveWeightALS, PrivacyBudget
    from skdpmf.data import make_ratings

    films = make_ratings(1000, 60, random_state=0, as_frame=True)
    AdaptiveWeightALS(PrivacyBudget(4.0, 1e-5)).fit(films.matrix).save("films.skdpmf")
    service = open_service("films.skdpmf")

    def ask(method, path, query="", **body):
        sent = json.dumps(body).encode()
        environ = {"REQUEST_METHOD": method, "PATH_INFO": path, "QUERY_STRING": query}
        environ |= {"CONTENT_LENGTH": str(len(sent)), "wsgi.input": BytesIO(sent)}
        (answer,) = service(environ, lambda status, head: print(status))
        return json.loads(answer)

    answer = ask("POST", "/recommend", ratings={"m3": 5, "m17": 1, "no such film": 4}, n=3)
    print(json.dumps(answer, indent=2))

# %%
# The picture shows the films that are nearest to the one that the visitor liked:

if __name__ == "__main__":
    import matplotlib.pyplot as plt

    near = pd.DataFrame(ask("GET", "/similar", "item=m3&n=5")["items"])
    liked = films.catalogue.set_index("item").loc["m3", "title"]
    figure, axes = plt.subplots(figsize=(6.4, 3.4), layout="constrained")
    axes.barh(near["title"], near["score"])
    axes.invert_yaxis()
    axes.grid(visible=False)
    axes.set_xlabel("cosine of the released factors")
    axes.set_title(f"Near {liked}", loc="left")
    plt.show()

# %%
# This is what anybody may ask about the privacy of all this:

if __name__ == "__main__":
    print(ask("GET", "/privacy")["short"])
