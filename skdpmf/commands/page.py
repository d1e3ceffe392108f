"""The page of the folder `browser` with one model: by http to this machine, or as a folder."""

import re
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

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
        raise ValueError(f"{folder} has a {taken[0]} already: name a new folder, or --overwrite.")
    folder.mkdir(exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)


def page_server(files: dict[str, bytes], port: int) -> ThreadingHTTPServer:
    """Return a server of these files, on 127.0.0.1; port 0 is any that is free.

    Only requests to this machine by its own names are answered: with another name in ``Host``, a
    page of elsewhere could read the model of whoever visits it.
    """
    policy = re.search(rb'content="(default-src [^"]+)"', files["index.html"])
    assert policy
    headers = {
        **_HEADERS,
        "Content-Security-Policy": f"{policy[1].decode()}; frame-ancestors 'none'",
    }

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
