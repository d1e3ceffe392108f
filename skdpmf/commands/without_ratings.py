"""The work of verbs that read no ratings, and what all verbs share; `cli` has their words.

Nothing here needs scikit-learn, and a verb imports what it needs.
"""

import argparse
import hashlib
import inspect
import json
import math
import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from skdpmf.commands.cli import in_options
from skdpmf.data.files import require_writable
from skdpmf.exceptions import counted
from skdpmf.privacy.budget import PrivacyBudget

if TYPE_CHECKING:
    from http.server import ThreadingHTTPServer

    from skdpmf.books.ledger import PrivacyLedger

_TAKEN = {  # parameters that have options of their own
    "budget": "--epsilon and --delta",
    "item_features": "--items",
    "public": "--public",
    "feedback": "--implicit",
    "n_jobs": "--n-jobs",
    "random_state": "--seed",
    "rating_range": "--rating-range",
}


def plan(options: argparse.Namespace) -> None:
    """Print what a fit would release."""
    from skdpmf.estimators.planners import planner_of
    from skdpmf.privacy.statement import PrivacyStatement

    with usage(options):
        planner = described(options, None, planner_of(options.estimator))
        planned = planner.plan(options.items, options.users)
    if options.format == "json":
        private = not isinstance(planned, PrivacyStatement)
        stated = PrivacyStatement.from_plan(planned) if private else planned
        print_json(estimator=options.estimator, privacy=stated.to_dict())
    else:
        print(planned)


def show(options: argparse.Namespace) -> None:
    """Print what a model file is, or write its privacy card."""
    if options.output is not None:
        _write_card(options)
        return
    from skdpmf.estimators.contract.model_file import load_description

    model = load_description(model_path(options))
    if options.format == "json":
        privacy = model.privacy_spent_.to_dict()
        print_json(model=repr(model), n_items=model.n_features_in_, privacy=privacy)
    else:
        print(f"{model!r}\n{counted(model.n_features_in_, 'item')}\n\n{model.privacy_spent_}")


def serve(options: argparse.Namespace) -> None:
    """Serve the page in the browser with a model, or write it to a folder."""
    import webbrowser

    from skdpmf.estimators.contract.model_file import load_description

    path = model_path(options)
    if getattr(load_description(path), "_predictor_", None) == "knn":
        raise ValueError(
            f"{path} predicts by neighbours (predictor='knn'), which the page cannot do: fit "
            "another estimator, or use predictor='svd'."
        )
    files = page_files(path.read_bytes())
    if options.write is not None:
        write_page(files, Path(options.write).expanduser(), options.overwrite)
        print(f"wrote {len(files)} files to {options.write}: publish them with any web server")
        return
    with page_server(files, options.port) as server:
        address = f"http://127.0.0.1:{server.server_port}/"
        print(f"{path} is open at {address}\nPress Ctrl+C to stop.", flush=True)
        if not options.no_open:  # beside the server, as a browser may not return before its end
            threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print()


def ledger(options: argparse.Namespace) -> None:
    """Make, print or verify a ledger."""
    from skdpmf.books.ledger import PrivacyLedger

    if options.action == "create":
        if options.epsilon is None:
            options.usage("create needs --epsilon, the most that may ever be spent")
        if Path(options.file).exists():
            raise ValueError(f"{options.file} exists already: choose another name.")
        delta = 1e-5 if options.delta is None else options.delta
        terms = {"unit": options.unit, "neighbors": options.neighbors}
        with usage(options):
            limit = PrivacyBudget(options.epsilon, delta, **terms)
            terms = {"rule": options.rule, "at_most": options.at_most}
            report = PrivacyLedger(options.file, limit, **terms).report()
    elif options.action == "verify":
        n = ledger_at(options.file).verify()
        count = counted(n, "entry", "entries, each")
        text = f"{options.file}: {count} charged what its plan costs; the total is right"
        print_json(path=options.file, n_entries=n) if options.format == "json" else print(text)
        return
    else:
        report = ledger_at(options.file).report()
    print(report.to_json() if options.format == "json" else report)


# Shared parts


def model_path(options: argparse.Namespace) -> Path:
    """Return the path of the model file."""
    path = Path(options.model).expanduser()
    if not path.exists():
        raise ValueError(f"{path}: there is no such file. Make one: skdpmf fit ... -o {path}")
    return path


def output_of(options: argparse.Namespace) -> Path:
    """Return the file to write: all that can be wrong is found before the budget is spent."""
    output = Path(options.output).expanduser()
    if output.exists() and not options.overwrite:
        raise ValueError(f"{output} exists already: choose another name, or pass --overwrite.")
    for name in ("ratings", "items", "users", "public", "ledger"):
        source = str(getattr(options, name, None))
        if output.exists() and os.path.exists(source) and output.samefile(source):
            raise ValueError(f"{output} is also the {name} file: choose another name.")
    require_writable(output)
    return output


def _write_card(options: argparse.Namespace) -> None:
    """Write the card of a model file, which names the file and its checksum."""
    from skdpmf.estimators.contract.model_file import card_of_file, load_description

    ending = Path(options.output).suffix.lower()
    writers = {".html": "to_html", ".md": "to_markdown", ".json": "to_json"}
    if ending not in writers:
        options.usage(
            f"--output {options.output} must end in .html, .md or .json: browsers print an .html "
            "file, also to PDF"
        )
    output, path = output_of(options), model_path(options)
    model = load_description(path)
    content = path.read_bytes()
    name = f"{Path(options.model).name}, SHA-256 {hashlib.sha256(content).hexdigest()}: {model!r}"
    output.write_bytes(getattr(card_of_file(path, name), writers[ending])().encode())
    print_json(wrote=str(output)) if options.format == "json" else print(f"wrote {output}")


def print_json(**parts: Any) -> None:
    """Print these parts as one JSON object."""
    print(json.dumps(parts, indent=1, allow_nan=False))


@contextmanager
def usage(options: argparse.Namespace) -> Iterator[None]:
    """A value that a parameter refuses is wrong usage."""
    try:
        yield
    except (TypeError, ValueError) as error:
        options.usage(in_options(str(error)))


def ledger_at(path: str) -> "PrivacyLedger":
    """Return the ledger of a file."""
    from skdpmf.books.ledger import PrivacyLedger

    if not Path(path).expanduser().exists():
        remedy = f"Make one: skdpmf ledger {path} create --epsilon E"
        raise ValueError(f"{path}: there is no such ledger. {remedy}")
    return PrivacyLedger(Path(path).expanduser())


def described(options: argparse.Namespace, book: Any, cls: Any) -> Any:
    """The unfitted estimator, or planner, that the options describe, its parameters checked."""
    kinds = ((home, kind) for home, of in cls._options.items() for kind in of.values() if kind)
    known = {*inspect.signature(cls).parameters}
    known |= {f"{home}__{name}" for home, kind in kinds for name in kind().get_params()}
    params = {"n_jobs": options.n_jobs, "rating_range": tuple(options.rating_range)}
    for name, value in options.set:
        if name in _TAKEN:
            options.usage(f"--set {name}: use {_TAKEN[name]}")
        if name not in known:
            names = ", ".join(sorted(known - _TAKEN.keys()))
            options.usage(f"--set {name}: {options.estimator} has the parameters {names}")
        params[name] = value
    if options.implicit:
        if "feedback" not in known:
            options.usage(f"--implicit: {options.estimator} takes ratings, not clicks")
        params["feedback"] = "implicit"
    params["random_state"] = getattr(options, "seed", None)
    if "budget" not in known:
        if options.epsilon is not None or book is not None:
            options.usage(f"--epsilon: {options.estimator} protects nobody, so leave it out")
        model = cls()
    elif options.epsilon is None:
        options.usage("--epsilon is needed: say how much a model may reveal, such as 1 (inf: all)")
    else:
        delta = options.delta
        if delta is None:
            pure = options.estimator == "LocalDPGDDR" or math.isinf(options.epsilon)
            delta = 0.0 if pure else 1e-5
        model = cls(PrivacyBudget(options.epsilon, delta, unit=options.unit, ledger=book))
    with usage(options):
        model.set_params(**params).plan(1)
    return model


# The page of the folder `browser` with one model: by http to this machine, or as a folder

_FOLDER = Path(__file__).parent / "browser"
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".skdpmf": "application/octet-stream",
}
_HEADERS = {
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
_HOSTS = ("127.0.0.1", "localhost")


def page_files(model: bytes) -> dict[str, bytes]:
    """Return the files of the page and a model's file, by name."""
    files = {path.name: path.read_bytes() for path in _FOLDER.iterdir() if path.suffix in _TYPES}
    return {**files, "model.skdpmf": model}


def write_page(files: dict[str, bytes], folder: Path, overwrite: bool = False) -> None:
    """Write the files to a folder, which is made if it is not there."""
    if not folder.parent.is_dir():
        raise ValueError(f"{folder}: there is no folder {folder.parent}; make it first.")
    taken = sorted(name for name in files if (folder / name).exists())
    if taken and not overwrite:
        raise ValueError(f"{folder} has {taken[0]} already: name a new one, or pass --overwrite.")
    folder.mkdir(exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)


def page_server(files: dict[str, bytes], port: int) -> "ThreadingHTTPServer":
    """Return a server of these files, on 127.0.0.1; port 0 is any that is free.

    Only requests to this machine by its own names are answered: with another name in ``Host``, a
    page of elsewhere could read the model of whoever visits it.
    """
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

    policy = re.search(rb'content="(default-src [^"]+)"', files["index.html"])
    assert policy
    headers = _HEADERS | {"Content-Security-Policy": f"{policy[1].decode()};frame-ancestors 'none'"}

    class Handler(BaseHTTPRequestHandler):
        server_version, sys_version = "skdpmf", ""

        def do_GET(self) -> None:
            name = urlsplit(self.path).path.removeprefix("/") or "index.html"
            content = files.get(name)
            if self.headers.get("Host", "").rpartition(":")[0] not in _HOSTS:
                self.send_error(421, "Ask for 127.0.0.1")
            elif content is None:
                self.send_error(404)
            else:
                self.send_response(200)
                self.send_header("Content-Type", _TYPES[Path(name).suffix])
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                if self.command == "GET":
                    self.wfile.write(content)

        def do_HEAD(self) -> None:
            self.do_GET()

        def end_headers(self) -> None:
            for header, value in headers.items():
                self.send_header(header, value)
            super().end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Nobody needs to know who has asked for what."""

    try:
        return ThreadingHTTPServer(("127.0.0.1", port), Handler)
    except OSError as error:
        raise ValueError(
            f"--port {port} cannot be had ({error.strerror}): stop what uses it, or pass another; "
            "--port 0 takes any that is free."
        ) from error
