"""The page of `skdpmf/commands/browser/` from Python: its logic in node, and its files by http."""

import json
import shutil
import subprocess
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.systems import served

FOLDER = Path(__file__).resolve().parents[2] / "skdpmf" / "commands" / "browser"
NODE = shutil.which("node")
needs_node = pytest.mark.skipif(NODE is None, reason="needs node")

# Reads {"files": [[path, rows], ...], "n": number} and writes for each file what the page says: a
# list of [item, score] for each row of [item, rating], the items near the first one, and others, or
# the error.
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
    const reasons = [];
    const lists = rows.map((row) => {
      visitor.ratings.clear();
      for (const [item, value] of row) visitor.rate(item, value);
      const list = visitor.recommend(n);
      reasons.push(visitor.reasons);
      return list;
    });
    const statement = describedStatement(model.statement);
    const choices = ratingChoices(model.low, model.high);
    const [similar, varied] = [visitor.similar(0, n), visitor.varied(n)];
    const { titles, genres } = model;
    return { lists, reasons, statement, titles, genres, choices, similar, varied };
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


@contextmanager
def served_folder(folder):
    """Serve the files of a folder by http; give the address, and the paths that are asked for."""
    asked = []

    class Handler(SimpleHTTPRequestHandler):
        def log_message(self, form, *args):
            asked.append(self.path)

    handler = partial(Handler, directory=str(folder))
    with served(ThreadingHTTPServer(("127.0.0.1", 0), handler)) as url:
        yield url, asked
