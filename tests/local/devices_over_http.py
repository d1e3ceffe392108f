"""A play of real processes: devices, an aggregator behind HTTP, and its two crashes.

`LocalDevice` objects in a few processes send their randomised reports over HTTP on this machine to
a `LocalAggregator` in another process. The aggregator dies twice, at the two worst moments: after
it has saved reports but before it says so, and after it has received some but before they are
saved. It is started again from its file, and the devices send again what was not acknowledged. The
device processes lose everything but their saved state between the rounds.
"""

import argparse
import http.client
import json
import os
import struct
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, HTTPServer
from itertools import pairwise
from pathlib import Path

import numpy as np

from skdpmf.local import Announcement, LocalAggregator, LocalDevice, ReleasedModel

N_ITEMS, RATING_RANGE, EPSILON, FRACTIONS = 40, (1.0, 5.0), 4.0, (0.7, 0.3)
BATCH = 20  # reports of one request
PATIENCE = 60.0  # seconds
DIED = 9


# The aggregator's process


class Handler(BaseHTTPRequestHandler):
    """Answers devices; the aggregator, its file and its hour of death belong to the server."""

    def do_GET(self):
        aggregator = self.server.aggregator
        message = aggregator.announcement if self.path == "/announcement" else aggregator.model()
        self.answer(b"" if message is None else message.to_bytes())

    def do_POST(self):
        server, aggregator = self.server, self.server.aggregator
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path == "/close":
            current = aggregator.announcement
            if current is not None and current.round == int(body):  # else it was done before
                aggregator.close_round()
        else:
            accepted = sum(aggregator.receive(report) for report in unpacked(body))
            server.n_requests += 1
        if server.n_requests == server.die_at and server.die == "unsaved":
            os._exit(DIED)
        aggregator.save(server.file)  # nothing is acknowledged before this
        if server.n_requests == server.die_at and server.die == "unanswered":
            os._exit(DIED)
        counts = {"refused": dict(aggregator.refused), "n_reports": aggregator.n_reports}
        if self.path != "/close":
            counts["accepted"] = accepted
        self.answer(json.dumps(counts).encode())

    def answer(self, body):
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


def serve(options):
    file = options.folder / "aggregator"
    server = HTTPServer(("127.0.0.1", options.port), Handler)
    server.file, server.n_requests = file, 0
    server.die, server.die_at = options.die, options.die_at
    if file.exists():
        server.aggregator = LocalAggregator.load(file)
    else:
        server.aggregator = LocalAggregator(N_ITEMS, RATING_RANGE, EPSILON, fractions=FRACTIONS)
        server.aggregator.save(file)
    write(options.folder / "port", str(server.server_port))
    server.serve_forever()


def packed(reports):
    return b"".join(struct.pack("<I", len(report)) + report for report in reports)


def unpacked(body):
    reports, at = [], 0
    while at < len(body):
        (length,) = struct.unpack_from("<I", body, at)
        reports.append(body[at + 4 : at + 4 + length])
        at += 4 + length
    return reports


# A process with some of the devices


def ratings_of(user):
    """Made-up items and ratings of a user, and his mean apart."""
    world, own = np.random.default_rng(0), np.random.default_rng([1, user])
    liked = world.normal(0.0, 0.8, N_ITEMS)
    items = own.choice(N_ITEMS, own.integers(0, 25), replace=False)
    ratings = 3.5 + own.normal(0.0, 0.5) + liked[items] + own.normal(0.0, 0.8, items.size)
    return items, np.clip(np.round(ratings), *RATING_RANGE)


def work(options):
    first, stop = options.users
    name = f"{first}-{stop}"
    states = options.folder / f"states {name}"
    settings = {"n_items": N_ITEMS, "rating_range": RATING_RANGE, "epsilon": EPSILON}
    devices = [LocalDevice(*ratings_of(user), **settings) for user in range(first, stop)]
    sent, again = [], 0
    for number in range(len(FRACTIONS)):
        announcement = wait_for_round(options.folder, number)
        reports = []
        for device in devices:
            report = device.report(announcement)
            if report is not None:
                reports.append(report.to_bytes())
        # the spend is on disk before any report leaves
        write(states, json.dumps([device.state() for device in devices]))
        for at in range(0, len(reports), BATCH):
            again += send(options.folder, "/reports", packed(reports[at : at + BATCH]))[1]
        sent += reports
        # the program ends here, and starts again from what was saved
        saved = json.loads(states.read_text())
        own = [ratings_of(user) for user in range(first, stop)]
        devices = [LocalDevice.from_state(s, *r) for s, r in zip(saved, own, strict=True)]
        write(options.folder / f"done {name} {number}", "")
    # another server asks for as much again
    greedy = LocalAggregator(N_ITEMS, RATING_RANGE, EPSILON).announcement
    refusals = sum(refuses(device, greedy) for device in devices)
    write(options.folder / f"sent {name}", packed(sent))
    largest = max(float(device.spent) for device in devices)
    summary = {"refusals": refusals, "spent": largest, "again": again}
    write(options.folder / f"summary {name}", json.dumps(summary))


def refuses(device, announcement):
    try:
        device.report(announcement)
    except ValueError:
        return True
    return False


def wait_for_round(folder, number):
    for _ in patiently():
        announcement = Announcement.from_bytes(send(folder, "/announcement")[0])
        if announcement.round == number:
            return announcement
    raise AssertionError("patiently() raises first")


def send(folder, path, body=None):
    """Send until there is an answer; return it and how often it was sent in vain."""
    for failures in patiently():
        try:
            port = (folder / "port").read_text()
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", body, 30) as reply:
                return reply.read(), failures
        except (OSError, urllib.error.URLError, http.client.HTTPException):
            continue
    raise AssertionError("patiently() raises first")


def patiently(pause=0.1):
    """Count from 0 with pauses, and give up after a while."""
    end, count = time.monotonic() + PATIENCE, 0
    while time.monotonic() < end:
        yield count
        count += 1
        time.sleep(pause)
    raise TimeoutError(f"nothing happened for {PATIENCE:.0f} s")


def write(path, content):
    """Replace a file as a whole."""
    part = path.with_name(f"{path.name}.part")
    part.write_bytes(content if isinstance(content, bytes) else content.encode())
    part.replace(path)


# The play


def start(folder, role, *arguments):
    command = [sys.executable, __file__, "--folder", str(folder), "--role", role, *arguments]
    return subprocess.Popen([*map(str, command)])


def play(folder, n_devices, n_processes):
    """Run all rounds; return the processes of the aggregator that died."""
    cuts = np.linspace(0, n_devices, n_processes + 1).astype(int)
    names = [f"{a}-{b}" for a, b in pairwise(cuts)]
    # requests after which an aggregator dies, counted from its own start
    fates = [("unanswered", 2), ("unsaved", 2), ("", 0)]
    died, server = 0, start(folder, "serve", "--die", fates[0][0], "--die-at", fates[0][1])
    workers = [start(folder, "work", "--users", a, b) for a, b in pairwise(cuts)]
    try:
        for number in range(len(FRACTIONS)):
            waiting = [folder / f"done {name} {number}" for name in names]
            for _ in patiently(0.05):
                if server.poll() is not None:
                    if server.returncode != DIED:
                        raise RuntimeError(f"the aggregator ended with {server.returncode}")
                    died += 1
                    port, (how, when) = (folder / "port").read_text(), fates[died]
                    server = start(
                        *(folder, "serve", "--port", port, "--die", how, "--die-at", when)
                    )
                if any(worker.poll() for worker in workers):
                    raise RuntimeError("a process of devices failed")
                if all(path.exists() for path in waiting):
                    break
            send(folder, "/close", str(number).encode())
        for worker in workers:
            if worker.wait(PATIENCE):
                raise RuntimeError("a process of devices failed")
        return died, names, ReleasedModel.from_bytes(send(folder, "/model")[0])
    finally:
        for process in (server, *workers):
            process.kill()
            process.wait()


def uninterrupted(model, batches):
    """The model of an aggregator without crashes, from the same reports."""
    twin = LocalAggregator(
        N_ITEMS, RATING_RANGE, EPSILON, fractions=FRACTIONS, protocol=model.protocol
    )
    for _ in FRACTIONS:
        for report in batches:
            twin.receive(report)  # those of other rounds are refused
        twin.close_round()
    return twin.model()


def outcome(n_devices, n_processes):
    """Play, and return what came of it."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        died, names, model = play(folder, n_devices, n_processes)
        sent = [r for n in names for r in unpacked((folder / f"sent {n}").read_bytes())]
        summaries = [json.loads((folder / f"summary {n}").read_text()) for n in names]
        refused = dict(LocalAggregator.load(folder / "aggregator").refused)
    return {
        "crashes": died,
        "n_sent": len(sent),
        "n_counted": sum(model.n_reports),
        "refused": refused,
        "model": model,
        "model without crashes": uninterrupted(model, sent),
        "largest spend": max(s["spent"] for s in summaries),
        "refusals": sum(s["refusals"] for s in summaries),
    }


def main():
    """Be one of the play's processes."""
    parser = argparse.ArgumentParser()
    for name, kind in (("role", str), ("folder", Path), ("die", str)):
        parser.add_argument(f"--{name}", type=kind)
    for name in ("port", "die-at"):
        parser.add_argument(f"--{name}", type=int, default=0)
    parser.add_argument("--users", type=int, nargs=2)
    options = parser.parse_args()
    {"serve": serve, "work": work}[options.role](options)


if __name__ == "__main__":
    main()
