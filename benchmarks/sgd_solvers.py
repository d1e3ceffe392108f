"""The solvers that `bench_sgd.py` compares, each behind the same few methods."""

import itertools
import os
import time
from typing import Any, NamedTuple

# NumPy and the solvers are imported where they are used, for the reason given in `bench_sgd`.

FIT_EPOCHS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 15, 18, 22, 27, 33, 40, 50, 60, 80)


class Factors(NamedTuple):
    """A model: mean + user_bias[i] + item_bias[j] + <U[i], V[j]>."""

    U: Any
    V: Any
    user_bias: Any
    item_bias: Any
    mean: float


def seconds_of(work):
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


class Refitted:
    """A solver whose fit cannot be gone on with: its curve is made of whole fits."""

    def curve(self, settings, most):
        for n in FIT_EPOCHS:
            if n <= most:
                self.fit(settings, n)
                yield n, self.model()


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

    name, needs, rates_ratings, most_threads = "ours", "skdpmf", True, os.cpu_count()
    grid = (
        {},
        {"learning_rate": 0.05, "alpha": 0.03},
        {"learning_rate": 0.1, "learning_rate_decay": 0.7, "alpha": 0.03},
    )

    def __init__(self, train):
        self.train = train

    def start(self, k, n_threads):
        self.k, self.n_threads = k, n_threads

    def curve(self, settings, most):
        """One round after the other: a warm fit at the next rate goes on as one fit does."""
        from skdpmf import CacheSGDFactorizer

        self.estimator = CacheSGDFactorizer(
            self.k, max_iter=1, warm_start=True, random_state=0, **settings
        )
        rate, decay = self.estimator.learning_rate, self.estimator.learning_rate_decay
        for n in range(1, most + 1):
            self.estimator.set_params(learning_rate=rate * decay ** (n - 1)).fit(self.train)
            yield n, self.model()

    def fit(self, settings, n_epochs, *callbacks):
        from skdpmf import CacheSGDFactorizer

        self.estimator = CacheSGDFactorizer(
            self.k, max_iter=n_epochs, n_jobs=self.n_threads, random_state=0, **settings
        )
        self.estimator.set_callbacks(*callbacks)
        return seconds_of(lambda: self.estimator.fit(self.train))

    def epochs(self, n):
        """Seconds of the rounds after the first, which prepares the batches."""
        times = RoundTimes()
        self.fit({}, n + 1, times)
        return times.ends[-1] - times.ends[0]

    def model(self):
        m = self.estimator
        tables = m.user_factors_, m.components_.T, m.user_biases_, m.item_biases_
        return Factors(*tables, m.intercept_)


class Cornac:
    """MF, backend "cpu"; its starting factors are drawn off its clock."""

    name, needs, rates_ratings, most_threads = "cornac", "cornac", True, os.cpu_count()
    grid = tuple(
        {"learning_rate": rate, "lambda_reg": penalty}
        for penalty, rate in itertools.product((0.03, 0.02, 0.05), (0.01, 0.005, 0.02))
    )

    def __init__(self, train):
        import numpy as np
        from cornac.data import Dataset

        users = np.repeat(np.arange(train.shape[0], dtype=np.int64), np.diff(train.indptr))
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

    def curve(self, settings, most):
        state = self.fresh()
        for n in range(1, most + 1):
            self.train(state, 1, **settings)  # Nothing but the factors is kept between epochs.
            yield n, state

    def fit(self, settings, n_epochs):
        from cornac.models import MF

        # From the curve's factors, as a seed would take all threads but one.
        start = dict(zip(("U", "V", "Bu", "Bi"), self.fresh(), strict=False))
        settings = {"k": self.k, "num_threads": self.n_threads, "init_params": start} | settings
        self.estimator = MF(max_iter=n_epochs, **settings)
        return seconds_of(lambda: self.estimator.fit(self.dataset))

    def model(self):
        fitted = self.estimator
        tables = fitted.u_factors, fitted.i_factors, fitted.u_biases, fitted.i_biases
        return Factors(*tables, float(fitted.global_mean))


class Surprise(Refitted):
    """SVD, which has one thread."""

    name, needs, rates_ratings, most_threads = "surprise", "surprise", True, 1
    grid = tuple(
        {"lr_all": rate, "reg_all": penalty}
        for penalty, rate in itertools.product((0.05, 0.03, 0.08), (0.01, 0.005, 0.02))
    )

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


class Implicit:
    """AlternatingLeastSquares: implicit feedback, a mark of speed only."""

    name, needs, rates_ratings, most_threads = "implicit", "implicit", False, os.cpu_count()

    def __init__(self, train):
        import scipy.sparse as sp

        self.by_user = sp.csr_matrix(train)
        self.by_item = self.by_user.T.tocsr()

    def start(self, k, n_threads):
        import numpy as np

        self.k, self.n_threads = k, n_threads
        rng = np.random.default_rng(0)
        self.factors = [rng.normal(0, 0.01, (n, k)).astype("f") for n in self.by_user.shape]

    def epochs(self, n):
        from implicit.cpu._als import least_squares_cg

        U, V = self.factors
        begin = time.perf_counter()
        for _ in range(n):
            least_squares_cg(self.by_user, U, V, 1.0, num_threads=self.n_threads)
            least_squares_cg(self.by_item, V, U, 1.0, num_threads=self.n_threads)
        return time.perf_counter() - begin

    def fit(self, settings, n_epochs):
        from implicit.cpu.als import AlternatingLeastSquares

        estimator = AlternatingLeastSquares(
            self.k, iterations=n_epochs, num_threads=self.n_threads, random_state=0, **settings
        )
        return seconds_of(lambda: estimator.fit(self.by_user, show_progress=False))


class Libmf(Refitted):
    """LIBMF (C++, AVX; no biases), which takes part if $LIBMF names its shared library.

    The library is built from the project's two source files, here of the package `libmf` on PyPI:
    g++ -O3 -march=native -DUSEAVX -std=c++11 -pthread -fPIC -shared mf.cpp -o libmf.so
    """

    name, rates_ratings, most_threads = "libmf", True, os.cpu_count()
    needs = "ctypes" if os.environ.get("LIBMF") else "$LIBMF"  # no module has this name
    grid = tuple(
        {"eta": rate, "lambda_p2": penalty, "lambda_q2": penalty}
        for penalty, rate in itertools.product((0.05, 0.03, 0.08), (0.1, 0.05, 0.2))
    )

    def __init__(self, train):
        import ctypes

        import numpy as np

        pointer, c_int, c_float = ctypes.c_void_p, ctypes.c_int, ctypes.c_float

        class Problem(ctypes.Structure):
            _fields_ = [("m", c_int), ("n", c_int), ("nnz", ctypes.c_longlong), ("R", pointer)]

        class Parameter(ctypes.Structure):
            _fields_ = [
                *((name, c_int) for name in ("fun", "k", "nr_threads", "nr_bins", "nr_iters")),
                *((f"lambda_{name}", c_float) for name in ("p1", "p2", "q1", "q2")),
                ("eta", c_float),
                *((name, ctypes.c_bool) for name in ("do_nmf", "quiet", "copy_data")),
            ]

        class Model(ctypes.Structure):
            _fields_ = [
                *((name, c_int) for name in ("fun", "m", "n", "k")),
                ("b", c_float),
                *((name, ctypes.POINTER(c_float)) for name in "PQ"),
            ]

        self.code = ctypes.CDLL(os.environ["LIBMF"])
        self.code.mf_get_default_param.restype = Parameter
        self.code.mf_train.argtypes = ctypes.POINTER(Problem), Parameter
        self.code.mf_train.restype = ctypes.POINTER(Model)
        self.nodes = np.empty(train.nnz, [("u", "i4"), ("v", "i4"), ("r", "f4")])
        self.nodes["u"] = np.repeat(np.arange(train.shape[0]), np.diff(train.indptr))
        self.nodes["v"], self.nodes["r"] = train.indices, train.data
        self.problem = Problem(*train.shape, train.nnz, self.nodes.ctypes.data)
        self.fitted = None

    def start(self, k, n_threads):
        self.k, self.n_threads = k, n_threads

    def fit(self, settings, n_epochs):
        import ctypes

        parameter = self.code.mf_get_default_param()
        fixed = {"k": self.k, "nr_threads": self.n_threads, "nr_iters": n_epochs, "quiet": True}
        for name, value in (fixed | settings).items():
            setattr(parameter, name, value)
        if self.fitted:
            self.code.mf_destroy_model(ctypes.byref(self.fitted))

        def train():
            self.fitted = self.code.mf_train(ctypes.byref(self.problem), parameter)

        return seconds_of(train)

    def epochs(self, n):
        """Seconds of the epochs after the first, which leaves out most factors."""
        return self.fit({}, n + 1) - self.fit({}, 1)

    def model(self):
        import numpy as np

        found = self.fitted.contents
        P, Q = (
            np.ctypeslib.as_array(table, (n, found.k))[:, : self.k].copy()
            for table, n in ((found.P, found.m), (found.Q, found.n))
        )
        biases = (np.zeros(len(table), np.float32) for table in (P, Q))
        return Factors(np.nan_to_num(P), np.nan_to_num(Q), *biases, 0.0)


SOLVERS = {solver.name: solver for solver in (Ours, Libmf, Cornac, Surprise, Implicit)}
