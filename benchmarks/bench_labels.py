"""Cost of ids and titles: the time of one user's answer, and a web service.

One user asks by `{item: rating}`, one thread, medians after a warm-up. The web service is that of
examples/serve_model.py, asked over loopback, a new connection each: how many answers it gives in a
second of its own processor time.

    python benchmarks/bench_labels.py
"""

import http.client
import json
import statistics
import sys
import threading
import time
from pathlib import Path
from wsgiref.simple_server import make_server

from harness import parser, print_head, print_row, seconds_of

from skdpmf import AdaptiveWeightALS, CacheSGDFactorizer, PrivacyBudget
from skdpmf.data import make_ratings

sys.path.append(str(Path(__file__).resolve().parents[1] / "examples"))
import serve_model

N_TRAINED, N_RATED, RANK = 3000, 20, 32
PARSER = parser(__doc__, items=20_000, repeats=300)


def answers_a_second(model, row, repeats):
    """Return how many answers a core gives, from the processor time of all threads but this."""
    service, body = serve_model.Service(model), json.dumps({"ratings": row})
    server = make_server("127.0.0.1", 0, service, serve_model.Server, serve_model.Silent)
    threading.Thread(target=server.serve_forever, daemon=True).start()

    def ask():
        connection = http.client.HTTPConnection("127.0.0.1", server.server_port)
        connection.request("POST", "/recommend", body)
        assert len(json.loads(connection.getresponse().read())["items"]) == 10
        connection.close()

    ask()
    begin = time.process_time() - time.thread_time()
    for _ in range(repeats):
        ask()
    seconds = time.process_time() - time.thread_time() - begin
    server.shutdown()
    server.server_close()
    return repeats / seconds


def main(arguments=None):
    options = PARSER.parse_args(arguments)
    shape = N_TRAINED, options.items
    made = make_ratings(
        *shape, n_ratings=60 * N_TRAINED, item_exponent=1.1, random_state=0, as_frame=True
    )
    row = {f"m{j}": 4.0 for j in range(1, N_RATED * 50, 50)}
    models = (
        AdaptiveWeightALS(
            PrivacyBudget.nonprivate(), n_components=RANK, max_iter=2, random_state=0
        ),
        CacheSGDFactorizer(RANK, max_iter=2, random_state=0),
    )
    print(f"One user with {N_RATED} ratings, {options.items:,} items, milliseconds\n")
    print_head("", "factors", "arrays", "table", "similar items", "answers a second")
    for model in models:
        model.fit(made.matrix)
        cells = []
        for output, ask in (
            ("default", lambda m=model: m.recommend(row)),
            ("pandas", lambda m=model: m.recommend(row)),
            ("pandas", lambda m=model: m.similar_items("m51")),
        ):
            model.set_output(recommend=output)
            ask()  # compiles
            times = [seconds_of(ask) for _ in range(options.repeats)]
            cells.append(1e3 * statistics.median(times))
        cells.append(answers_a_second(model, row, options.repeats))
        ranking = model._ranking_
        width = RANK + (0 if ranking is None else ranking.lists.factors.shape[1])
        print_row(type(model).__name__, width, *(f"{cell:.2f}" for cell in cells))


if __name__ == "__main__":
    main()
