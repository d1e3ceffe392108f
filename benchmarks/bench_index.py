"""An index of nearest neighbours for a large catalogue: its recall beside exact answers, and times.

Made-up factors of falling size and an item's number each, as `docs/benchmarks/speed.md` hands them
to `hnswlib`. One thread; processor seconds. Prints Markdown.

    python benchmarks/bench_index.py --items 1000000
"""

import time
from functools import partial

import numpy as np
from harness import parser, print_head, print_row, seconds_of
from memory import peak_gib

PARSER = parser(__doc__, items=100_000, rank=32, users=200, ef=[20, 50, 100, 200, 400, 1000])
clocked = partial(seconds_of, clock=time.process_time)


def main(arguments=None):
    import hnswlib

    options, rng = PARSER.parse_args(arguments), np.random.default_rng(0)
    size = (0.8 ** np.arange(options.rank) ** 0.7).astype(np.float32)
    V = np.zeros((options.items, options.rank + 2), np.float32)
    V[:, 0] = 0.5 * rng.standard_normal(options.items)
    V[:, 1:-1] = size * rng.standard_normal((options.items, options.rank), np.float32)
    users = 2.0 * size * rng.standard_normal((options.users, options.rank), np.float32)
    Q = np.pad(users, ((0, 0), (1, 1)), constant_values=((0, 0), (1, 0)))
    best, each = [], 1e3 / options.users
    exact = clocked(lambda: best.extend(set(np.argpartition(-V @ q, 10)[:10]) for q in Q)) * each
    squares = np.einsum("jk,jk->j", V, V)
    V[:, -1] = np.sqrt(squares.max() - squares)  # now all have one length
    index = hnswlib.Index("cosine", V.shape[1])
    index.init_index(options.items, ef_construction=100, M=16)
    made = clocked(index.add_items, V, num_threads=1)
    print(f"exact answers {exact:.2f} ms, index {made:.0f} s, peak {peak_gib():.2f} GiB\n")
    print_head("ef", "recall of the ten best", "ms an answer")
    for ef in options.ef:
        index.set_ef(ef)
        found = []
        answers = (index.knn_query(q, k=10, num_threads=1)[0][0] for q in Q)  # made when asked for
        took = clocked(found.extend, answers)
        hits = [len(own & set(one)) / 10 for own, one in zip(best, found, strict=True)]
        print_row(ef, f"{np.mean(hits):.3f}", f"{took * each:.2f}")


if __name__ == "__main__":
    main()
