"""The solvers that `bench_sgd.py` compares, each behind the same few methods."""

import itertools
import os
import time
from importlib import import_module
from typing import Any, NamedTuple

from harness import seconds_of

# Solvers are imported where they are used: not all are installed.


class Factors(NamedTuple):
    """A model: mean + user_bias[i] + item_bias[j] + <U[i], V[j]>."""

    U: Any
    V: Any
    user_bias: Any
    item_bias: Any
    mean: float


SHAPES = {  # of MovieLens 1M and 10M, and Netflix: users, items, ratings
    "S": (6_040, 3_706, 1_000_000),
    "M": (69_878, 10_677, 10_000_000),
    "L": (480_189, 17_770, 60_000_000),
}


def missing(module):
    """Why what needs this module cannot run here; "" if it can."""
    try:
        if module:
            import_module(module)
    except ImportError as error:  # also of what is installed and does not fit the others
        return f"{type(error).__name__}: {str(error).partition(' (/')[0]}"
    return ""


def made(name):
    """Return ratings of a shape."""
    from skdpmf.data import make_ratings

    *shape, n = SHAPES[name]
    return make_ratings(*shape, n_ratings=n, item_exponent=1.0, random_state=0).astype("float32")


def rows_of(R):
    """Return the row of each stored entry."""
    import numpy as np

    return np.repeat(np.arange(R.shape[0]), np.diff(R.indptr))


def at_entries(Y, factors):
    """Predictions mean + b_i + c_j + <u_i, v_j> at the entries of Y."""
    import numpy as np

    row, item = rows_of(Y), Y.indices
    products = np.einsum("nk,nk->n", factors.U[row], factors.V[item], dtype=float)
    return factors.mean + factors.user_bias[row] + factors.item_bias[item] + products


class RoundTimes:
    """A callback of scikit-learn (1.9 and later) that notes when each round ends."""

    def __init__(self):
        self.ends = []

    def on_fit_task_end(self, estimator, context):
        if context.task_name == "round":
            self.ends.append(time.perf_counter())

    def ignore(self, estimator, context):
        pass

    setup = on_fit_task_begin = teardown = ignore


class Ours:
    """The one place that knows our estimator."""

    name, needs, most_threads = "ours", "skdpmf", os.cpu_count()

    def __init__(self, train):
        self.train = train

    def start(self, k, n_threads):
        self.k, self.n_threads = k, n_threads

    def epochs(self, n):
        """Seconds of the rounds after the first, which prepares the batches."""
        from skdpmf import CacheSGDFactorizer

        times = RoundTimes()
        settings = {"max_iter": n + 1, "n_jobs": self.n_threads, "random_state": 0}
        CacheSGDFactorizer(self.k, **settings).set_callbacks(times).fit(self.train)
        return times.ends[-1] - times.ends[0]


class Cornac:
    """MF, backend "cpu"; its starting factors are drawn off its clock."""

    name, needs, most_threads = "cornac", "cornac", os.cpu_count()

    def __init__(self, train):
        import numpy as np
        from cornac.data import Dataset

        users = rows_of(train)
        self.table = users, train.indices.astype(np.int64), train.data.astype(np.float32)
        self.shape = train.shape
        ids = (dict(zip(range(n), range(n), strict=True)) for n in train.shape)
        self.dataset = Dataset(*train.shape, *ids, self.table)

    def start(self, k, n_threads):
        self.k, self.n_threads = k, n_threads
        self.state = self.fresh()

    def fresh(self):
        import numpy as np

        rng = np.random.default_rng(0)
        tables = [rng.normal(0, 0.01, (n, self.k)).astype(np.float32) for n in self.shape]
        biases = [np.zeros(n, np.float32) for n in self.shape]
        return Factors(*tables, *biases, float(self.dataset.global_mean))

    def train(self, state, n, learning_rate=0.01, lambda_reg=0.02):
        from cornac.models.mf.backend_cpu import fit_sgd

        options = learning_rate, lambda_reg, state.mean, n, self.n_threads, True, False, False
        fit_sgd(*self.table, *state[:4], *options)

    def epochs(self, n):
        return seconds_of(lambda: self.train(self.state, n))

    def fit(self, settings, n_epochs):
        from cornac.models import MF

        # Given factors, as a seed would take all threads but one.
        start = dict(zip(("U", "V", "Bu", "Bi"), self.fresh(), strict=False))
        settings = {"k": self.k, "num_threads": self.n_threads, "init_params": start} | settings
        self.estimator = MF(max_iter=n_epochs, **settings)
        return seconds_of(lambda: self.estimator.fit(self.dataset))

    def model(self):
        fitted = self.estimator
        tables = fitted.u_factors, fitted.i_factors, fitted.u_biases, fitted.i_biases
        return Factors(*tables, float(fitted.global_mean))


class Surprise:
    """SVD, which has one thread."""

    name, needs, most_threads = "surprise", "surprise", 1

    def __init__(self, train):
        import gc

        from surprise import Trainset

        class Timed(Trainset):
            """Notes when the first epoch begins, after the factors have been drawn."""

            def all_ratings(self):
                self.begin = self.begin or time.perf_counter()
                return super().all_ratings()

        # One object for all uses of an item or a rating: as little memory as tuples allow.
        gc.disable()
        items = list(range(train.shape[1]))
        values = {value: float(value) for value in set(train.data.tolist())}
        by_user, ends = {}, train.indptr.tolist()
        for user, (start, stop) in enumerate(itertools.pairwise(ends)):
            chosen = [items[i] for i in train.indices[start:stop].tolist()]
            given = [values[value] for value in train.data[start:stop].tolist()]
            by_user[user] = list(zip(chosen, given, strict=True))
        gc.freeze()
        gc.enable()
        same = [{n: n for n in range(size)} for size in train.shape]
        self.trainset = Timed(by_user, {}, *train.shape, train.nnz, (1, 5), *same)
        self.trainset.begin = 0.0

    def start(self, k, n_threads):
        self.k = k

    def fit(self, settings, n_epochs):
        from surprise import SVD

        self.estimator = SVD(n_factors=self.k, n_epochs=n_epochs, random_state=0, **settings)
        return seconds_of(lambda: self.estimator.fit(self.trainset))

    def model(self):
        fitted = self.estimator
        return Factors(fitted.pu, fitted.qi, fitted.bu, fitted.bi, self.trainset.global_mean)

    def epochs(self, n):
        self.trainset.begin = 0.0
        self.fit({}, n)
        return time.perf_counter() - self.trainset.begin


SOLVERS = {solver.name: solver for solver in (Ours, Cornac, Surprise)}
