"""The page of `browser/` from Python: its logic in node, the whole of it in headless Chromium."""

import contextlib
import json
import os
import select
import shutil
import subprocess
import sys
import threading
import time
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "skdpmf" / "browser"
NODE = shutil.which("node")
CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
needs_node = pytest.mark.skipif(NODE is None, reason="needs node")
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")

# Reads {"files": [[path, rows], ...], "n": number} and writes for each file what the page says: a
# list of [item, score] for each row of [item, rating], or the error.
_DRIVER = """
globalThis.crypto ??= require("node:crypto").webcrypto;
const { ModelError, readModel, Recommender, describedStatement, ratingChoices } =
  require(process.argv[1]);
const fs = require("node:fs");
const { files, n } = JSON.parse(fs.readFileSync(0, "utf8"));
async function said(path, rows) {
  try {
    const { buffer, byteOffset, length } = fs.readFileSync(path);
    const model = await readModel(buffer.slice(byteOffset, byteOffset + length));
    const visitor = new Recommender(model);
    const lists = rows.map((row) => {
      visitor.ratings.clear();
      for (const [item, value] of row) visitor.rate(item, value);
      return visitor.recommend(n);
    });
    const statement = describedStatement(model.statement);
    const choices = ratingChoices(model.low, model.high);
    return { lists, statement, titles: model.titles, choices };
  } catch (error) {
    return { error: error.message, refused: error instanceof ModelError };
  }
}
Promise.all(files.map(([path, rows]) => said(path, rows))).then((all) =>
  process.stdout.write(JSON.stringify(all)));
"""


def in_node(files, n=5, script=FOLDER / "model.js"):
    """What the page's logic says about files of models, a list of (path, rows)."""
    plain = {"files": [[str(path), rows] for path, rows in files], "n": n}
    done = subprocess.run(
        [NODE, "-e", _DRIVER, str(script)],
        input=json.dumps(plain).encode(),
        capture_output=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr.decode()
    return json.loads(done.stdout)


class Server:
    """The files of a folder by http, and the paths that were asked for."""

    def __init__(self, folder):
        self.asked = asked = []

        class Handler(SimpleHTTPRequestHandler):
            def log_message(self, form, *args):
                asked.append(self.path)

        self._server = ThreadingHTTPServer(
            ("127.0.0.1", 0), partial(Handler, directory=str(folder))
        )
        self.url = f"http://127.0.0.1:{self._server.server_port}/"
        self._thread = threading.Thread(target=self._server.serve_forever)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *error):
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


# Chromium reads its DevTools protocol from file 3 and writes to file 4.
_LAUNCHER = """
import fcntl, os, sys
ends = [fcntl.fcntl(int(end), fcntl.F_DUPFD, 10) for end in sys.argv[1:3]]
for end, file in zip(ends, (3, 4)):
    os.dup2(end, file)
os.execv(sys.argv[3], sys.argv[3:])
"""


class Browser:
    """Headless Chromium with one page, over a pipe: the standard library has no websocket.

    ``events`` are the messages that nobody asked for, as (method, params). OSError: it has ended.
    """

    def __init__(self, folder):
        flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run"]
        flags += ["--remote-debugging-pipe", f"--user-data-dir={folder}", "--disable-dev-shm-usage"]
        read, self._write = os.pipe()
        self._read, write = os.pipe()
        self._process = subprocess.Popen(
            [sys.executable, "-c", _LAUNCHER, str(read), str(write), CHROMIUM, *flags],
            pass_fds=(read, write),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(read)
        os.close(write)
        self.events, self._answers, self._rest, self._last = [], {}, b"", 0
        self._session = {}
        try:
            target = self.call("Target.createTarget", url="about:blank")["targetId"]
            attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
            self._session = {"sessionId": attached["sessionId"]}
            for domain in ("Page", "Runtime", "Network", "DOM"):
                self.call(f"{domain}.enable")
        except BaseException:
            self.__exit__()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self._session = {}
        try:
            with contextlib.suppress(OSError):  # it may have ended
                self.call("Browser.close")
                self._process.wait(10)
        finally:
            self._process.kill()
            self._process.wait()
            os.close(self._read)
            os.close(self._write)

    def call(self, method, **params):
        """Send a command and return its result."""
        self._last += 1
        message = {"id": self._last, "method": method, "params": params, **self._session}
        os.write(self._write, json.dumps(message).encode() + b"\0")
        end = time.monotonic() + 60
        while self._last not in self._answers:
            ready, _, _ = select.select([self._read], [], [], max(0, end - time.monotonic()))
            assert ready, f"no answer to {method}"
            piece = os.read(self._read, 1 << 16)
            if not piece:
                raise OSError("Chromium does not start, or has ended")
            *whole, self._rest = (self._rest + piece).split(b"\0")
            for text in whole:
                message = json.loads(text)
                if "id" in message:
                    self._answers[message["id"]] = message
                else:
                    self.events.append((message["method"], message["params"]))
        answer = self._answers.pop(self._last)
        assert "error" not in answer, (method, answer)
        return answer["result"]

    def run(self, script):
        """Return the value of an expression, or of its promise, on the page."""
        options = {"returnByValue": True, "awaitPromise": True}
        result = self.call("Runtime.evaluate", expression=script, **options)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def wait(self, condition):
        """Wait until an expression holds on the page."""
        end = time.monotonic() + 60
        while not self.run(condition):
            assert time.monotonic() < end, f"{condition} does not come: {self.text('body')}"
            time.sleep(0.02)

    def open(self, url):
        """Open a page and wait until its scripts have started."""
        self.events.clear()
        self.call("Page.navigate", url=url)
        self.wait(f"location.href === {json.dumps(url)} && document.readyState === 'complete'")

    def text(self, selector):
        """Return the visible text of an element."""
        return self.run(f"document.querySelector({json.dumps(selector)}).innerText")

    def choose_file(self, path):
        """Choose a file with the page's picker."""
        picker = self.call("Runtime.evaluate", expression="document.querySelector('#file')")
        handle = picker["result"]["objectId"]
        self.call("DOM.setFileInputFiles", files=[str(path)], objectId=handle)

    def named(self, method):
        """Return the parameters of all events of a kind."""
        return [params for name, params in self.events if name == method]
