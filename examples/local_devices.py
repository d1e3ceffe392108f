"""
Devices and a server that crashes
=================================

Without a trusted server every device randomises its ratings, and sends the result once. Networks
lose answers and servers crash: does a report then get lost, or count twice? Neither happens: the
server knows a report that it has saved, and devices send again whatever was not acknowledged.
"""

# %%
# Four hundred devices
# --------------------
# Each has a person's ratings and an epsilon of 4 for life. Nobody else ever sees the ratings.

from skdpmf.data import make_ratings
from skdpmf.local import LocalAggregator, LocalDevice

N_USERS, N_ITEMS, EPSILON = 400, 40, 4.0
PUBLIC = {"n_items": N_ITEMS, "rating_range": (1.0, 5.0), "epsilon": EPSILON}

people = make_ratings(N_USERS, N_ITEMS, random_state=0, as_frame=True)
titles = people.catalogue["title"]
X = people.matrix.X
devices = [LocalDevice(X[[i]].indices, X[[i]].data, **PUBLIC) for i in range(N_USERS)]

# %%
# A server on this machine
# ------------------------
# It takes batches of reports, and its memory is a file. ``CRASHES`` says at which requests it dies,
# at the two worst moments: before it has saved a batch, and after it has saved it but before it
# has said so. In both cases the sender gets no answer.

import json
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

CRASHES = {4: "not saved", 9: "not answered"}
counted = []  # reports in the file after each request


class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        aggregator = LocalAggregator.load("aggregator")
        for report in json.loads(body):
            aggregator.receive(bytes.fromhex(report))
        crash = CRASHES.get(len(counted))
        if crash != "not saved":
            aggregator.save("aggregator")
        counted.append(sum(LocalAggregator.load("aggregator").n_reports))
        if crash is None:
            self.send_response(200)
            self.end_headers()

    def log_message(self, *words):
        pass


LocalAggregator(fractions=(0.7, 0.3), **PUBLIC).save("aggregator")
server = HTTPServer(("127.0.0.1", 0), Handler)
Thread(target=server.serve_forever, daemon=True).start()

# %%
# Devices send until they are answered
# ------------------------------------
# A report is made once, and paid from the device's epsilon. If it may have been lost, the same
# report is sent again: another one would spend again.

from http.client import HTTPConnection, HTTPException


def is_answered(batch):
    connection = HTTPConnection("127.0.0.1", server.server_port)
    try:
        connection.request("POST", "/", json.dumps([report.hex() for report in batch]))
        return connection.getresponse().status == 200
    except (ConnectionError, HTTPException):
        return False
    finally:
        connection.close()


n_reports, n_repeated = 0, 0
for _ in range(2):
    announcement = LocalAggregator.load("aggregator").announcement
    made = [device.report(announcement) for device in devices]
    reports = [report.to_bytes() for report in made if report is not None]
    n_reports += len(reports)
    for first in range(0, len(reports), 20):
        while not is_answered(reports[first : first + 20]):
            n_repeated += 1
    aggregator = LocalAggregator.load("aggregator")
    aggregator.close_round()
    aggregator.save("aggregator")
server.shutdown()
server.server_close()

print(f"{N_USERS} devices made {n_reports} reports; {n_repeated} batches were sent twice.")
print(f"counted in each round: {aggregator.n_reports}, refused: {dict(aggregator.refused)}")

# %%
# Every report counts once. The first batch that was repeated had been lost; the second was known,
# and the server refused its reports as duplicates.

import matplotlib.pyplot as plt

figure, axes = plt.subplots(layout="constrained")
axes.step(range(1, len(counted) + 1), counted, where="mid")
for place, words in CRASHES.items():
    axes.plot(place + 1, counted[place], "o", color="#D55E00")
    look = {"color": "#D55E00", "va": "top", "xytext": (8, -6)}
    axes.annotate(
        f"crash: {words}", (place + 1, counted[place]), textcoords="offset points", **look
    )
axes.set_xlabel("batches of reports that were sent")
axes.set_ylabel("reports that are counted")
axes.set_title("Two crashes lose and double nothing")
plt.show()

# %%
# Recommended on the device
# -------------------------
# The server publishes the model, and each device makes its own list. It has nothing left to spend:
# another server that asks for a report is refused.

import pandas as pd

items, stars = devices[0].recommend(aggregator.model(), n=3)
print(pd.DataFrame({"film": titles[items].to_numpy(), "stars": stars.round(2)}))

try:
    devices[0].report(LocalAggregator(**PUBLIC).announcement)
except ValueError as refusal:
    print(refusal)
