"""`skdpmf serve`: the page with one model, by http to this machine alone, or as a folder."""

import http.client
import signal
import subprocess
import sys
from pathlib import Path
from urllib.request import urlopen

import pytest

from skdpmf import DPCovarianceRecommender, DPItemMeans, PrivacyBudget
from skdpmf.commands.cli import main
from skdpmf.commands.without_ratings import page_files, page_server
from skdpmf.data import make_ratings
from tests.browser.common import FOLDER
from tests.chromium import browser, needs_chromium, page
from tests.systems import needs_posix, served, with_path

CHECKOUT = Path(__file__).resolve().parents[2]
X = make_ratings(50, 20, density=0.4, random_state=0)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "films.skdpmf"
    DPItemMeans(PrivacyBudget(1.0, 1e-5)).fit(X).save(path)
    return path


@pytest.fixture(scope="module")
def port(model):
    server = page_server(page_files(model.read_bytes()), 0)
    with served(server):
        yield server.server_port


def ask(port, path, method="GET", **headers):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request(method, path, headers=headers)
    reply = connection.getresponse()
    return reply.status, reply.headers, reply.read()


def test_the_page_and_the_model_are_served_and_nothing_else(port, model):
    for path in FOLDER.iterdir():
        status, headers, content = ask(port, f"/{path.name}")
        assert (status, content) == (200, path.read_bytes())
        kind = {"html": "text/html", "css": "text/css", "js": "text/javascript"}[path.suffix[1:]]
        assert headers["Content-Type"] == f"{kind}; charset=utf-8"
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Content-Security-Policy"].startswith(
            "default-src 'none'; script-src 'self'"
        )
        assert headers["Content-Security-Policy"].endswith("frame-ancestors 'none'")
        assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
    assert ask(port, "/")[2] == ask(port, "/?model=model.skdpmf")[2] == ask(port, "/index.html")[2]
    assert ask(port, "/model.skdpmf")[2] == model.read_bytes()
    status, headers, content = ask(port, "/model.skdpmf", "HEAD")
    assert (status, content) == (200, b"")
    assert int(headers["Content-Length"]) == model.stat().st_size
    for path in ("/none", "/..", "/../demo.py", "//etc/passwd", "/%2e%2e/cli.py", "/films.skdpmf"):
        assert ask(port, path)[0] == 404
    assert ask(port, "/", "POST")[0] == 501


def test_other_names_of_this_machine_are_not_answered(port):
    """A page of elsewhere whose name leads here (DNS rebinding) reads nothing."""
    assert ask(port, "/model.skdpmf", Host="localhost:9")[0] == 200
    for host in ("evil.example", f"evil.example:{port}", "127.0.0.1.evil.example:80", ""):
        assert ask(port, "/model.skdpmf", Host=host)[0] == 421


@needs_chromium
def test_the_policy_of_the_header_lets_the_page_work(port):
    with browser() as chromium, page(chromium) as opened:
        opened.goto(f"http://127.0.0.1:{port}/")
        opened.wait_for_selector("#visitor")
        assert opened.said == []


@needs_posix
@pytest.mark.usefixtures("ctrl_c")  # a background job's children would not hear SIGINT
def test_as_a_program(model):
    words = [sys.executable, "-m", "skdpmf", "serve", str(model), "--port", "0", "--no-open"]
    environment = with_path(CHECKOUT)
    with subprocess.Popen(words, stdout=subprocess.PIPE, env=environment, text=True) as program:
        try:
            address = program.stdout.readline().split()[-1]
            with urlopen(f"{address}model.skdpmf", timeout=30) as reply:
                assert reply.read() == model.read_bytes()
        finally:
            program.send_signal(signal.SIGINT)
        assert program.wait(30) == 0


def test_a_folder_to_publish(model, tmp_path, capsys):
    folder = tmp_path / "site"
    assert main(["serve", str(model), "--write", str(folder)]) == 0
    names = {path.name for path in FOLDER.iterdir()}
    assert {path.name for path in folder.iterdir()} == {*names, "model.skdpmf"}
    assert (folder / "model.skdpmf").read_bytes() == model.read_bytes()
    assert main(["serve", str(model), "--write", str(folder)]) == 1
    assert "has index.html already: name a new one, or pass --overwrite" in capsys.readouterr().err
    assert main(["serve", str(model), "--write", str(folder), "--overwrite"]) == 0
    assert main(["serve", str(model), "--write", str(tmp_path / "no" / "site")]) == 1
    assert "make it first" in capsys.readouterr().err


def test_mistakes_are_explained(model, port, tmp_path, capsys):
    neighbours = tmp_path / "knn.skdpmf"
    DPCovarianceRecommender(PrivacyBudget(4.0, 1e-5)).set_params(predictor="knn").fit(X).save(
        neighbours
    )
    (tmp_path / "text").write_text("no model")
    mistakes = {
        (str(tmp_path / "none"),): "none: there is no such file. Make one: skdpmf fit",
        (str(tmp_path / "text"),): "no model file of skdpmf",
        (str(neighbours),): "predicts by neighbours (predictor='knn'), which the page cannot",
        (str(model), "--port", str(port)): f"--port {port} cannot be had (Address already in use)",
    }
    for words, said in mistakes.items():
        assert main(["serve", *words, "--no-open"]) == 1
        assert said in capsys.readouterr().err
    for wrong in ("65536", "-1", "http"):
        with pytest.raises(SystemExit):
            main(["serve", str(model), f"--port={wrong}"])
