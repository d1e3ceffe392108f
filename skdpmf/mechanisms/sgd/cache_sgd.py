"""Cache-efficient stochastic gradient descent: the non-private matrix factorisation.

Minimises, over standardised ratings z_ij = (r_ij - mean) / std,

    sum over ratings ij of (z_ij - b_i - c_j - <u_i, v_j>)^2 / 2
                           + alpha / 2 (|u_i|^2 + |v_j|^2 + b_i^2 + c_j^2)

by stochastic gradient steps of length eta_t = learning_rate * learning_rate_decay^t in round t, and
at most 1 / (8 alpha), beyond which the penalty would overshoot.

Without an alpha the penalties are those of the mean field (`skdpmf.mechanisms.als.variational` is
the same model by exact steps). With z_ij ~ N(b_i + c_j + <u_i, v_j>, s^2), priors b_i ~ N(0, t_b),
u_ic ~ N(0, p_c), v_jc ~ N(0, q_c), and independent posteriors, the expected squared error is

    (z_ij - b_i - c_j - <u_i, v_j>)^2 + sum over c of var(v_jc) u_ic^2 + var(u_ic) v_jc^2 + ... ,

so component c is penalised by var(v_jc) for each rating of a user, by var(u_ic) for each rating of
an item, and by s^2 / p_c and s^2 / q_c for each row. A row of n ratings has var(u_ic) = s^2 / (s^2
/ p_c + n q_c); for each rating there is the mean of that over all ratings. After each round p_c
and q_c become the mean second moments, weighted by ratings, and s^2 the mean expected squared
error. At first the components may explain all ratings, p_c q_c = 1 / k, and the penalties begin at
0 and are whole after the first rounds: full ones would hold factors down that have yet to be
found. Rounds end in a change of coordinates that makes the moments diagonal and equal, where the
independent posteriors fit best: all of them where there are k ratings for each row, else as many
fewer as there are, so that these changes take no longer than the rounds.

A component that stands still has, with users and items alike and x = p_c q_c N / (s^2 users), s_c =
x^1.5 / (1 + x) and a penalty of (1 + 2 x) / ((1 + x) x^0.5): it is of a strength s_c plus that in
the ratings, (1 + x) / x^0.5, and least at x = 1. Below, the more it shrinks the more it would have
to be. So once penalties are whole, components with x < 1 are left out.

The order of the steps is chosen for the caches (Liu, Wang, Smola 2015, sections 5.1-5.3 and
Algorithm 2): users come in batches whose factors fill about an L2 cache, and the ratings of a batch
are sorted by item, so that an item's row is fetched once a batch, and is then used for all of its
ratings there while the users' rows come from L2. The paper's tiers of popular items follow by
themselves: the more popular an item, the more ratings share one fetch.

Threads take batches from one queue. Two batches have no user in common, but share the items,
without locks (Niu et al. 2011, "Hogwild!"); each thread starts at another item, so that they
rarely meet. Batches that come from disk are read by one more thread while others are updated, also
those of the next round.
"""

from __future__ import annotations

import glob
import json
import os
from collections.abc import Callable, Generator, Iterable
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from skdpmf.data.files import replaced_file
from skdpmf.kernels.sgd import empty_factors, factor_width, update_batch
from skdpmf.mechanisms.sgd.rating_batches import Batch, Batches, Workers
from skdpmf.privacy.sampler.noise import NoiseSource
from skdpmf.privacy.sampler.streams import derived_key

# Guard: time, by the caches. One or two L2 caches of a current server core: batches half as large
# cut the runs of items short, which costs more than users' rows from L3. The biases of more than
# MOST_USERS would leave the L1 cache (also a row group of ParquetRatings).
CACHE_BYTES, MOST_USERS = 2_097_152, 4096

# Guard: |v_j| at the start, small beside the standardised ratings and large beside rounding; how
# many standard deviations an error counts at most, so that one absurd rating cannot blow up its
# item; the share of a factor that the penalty takes at most for each rating, as a group has up to
# 8; a round whose error is so many times that of the mean alone has diverged.
_START_NORM, _CLIP, _LARGEST_SHRINK, _DIVERGED = 0.2, 10.0, 0.125, 2.0

# the least variance, and share of a learning rate: what less changes, factors cannot hold
_LEAST = float(np.finfo(np.float32).eps)

# Tuned: the share of the rounds, of so many at least, until learned penalties are whole (more finds
# weaker factors in few ratings, and leaves fewer rounds to remove those that are noise).
_OPENING, _SHORT = 0.4, 30


@dataclass(frozen=True)
class Settings:
    """Parameters of the solver, as of the estimator."""

    n_components: int
    max_iter: int
    learning_rate: float
    learning_rate_decay: float
    alpha: float | None  # None: learned
    fit_bias: bool


@dataclass
class Factors:
    """The model in standardised units; U and user_bias have a spare row for each thread.

    ``variances`` (2, 1 + k) are those of the priors of users and items, of the bias and of each
    factor; ``noise`` (0-d) is that of a rating.
    """

    U: np.ndarray
    V: np.ndarray
    user_bias: np.ndarray
    item_bias: np.ndarray
    variances: np.ndarray
    noise: np.ndarray

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the arrays by name."""
        return dict(vars(self))


def posterior_variances(noise: Any, variances: Any, counts: Any) -> np.ndarray:
    """Return the posterior variances, (2, 1 + k), each the mean over all ratings.

    counts: of users and of items, the numbers of ratings that rows have, and how many have each.
    """
    found = np.zeros_like(variances)
    for side, (n, rows) in enumerate(counts):
        information = n[:, None] * np.append(1.0, variances[1 - side, 1:])
        own = noise * variances[side] / (noise + information * variances[side])
        found[side] = n * rows @ own / max(1, n @ rows)
    return found


def moments(F: np.ndarray, counts: np.ndarray, *, crossed: bool = False) -> np.ndarray:
    """Return the sum over rows of the count times F_c^2, (k,), or F_c F_d, (k, k)."""
    total: Any = 0.0
    for start in range(0, len(F), MOST_USERS):
        own, n = (array[start : start + MOST_USERS].astype(np.float32) for array in (F, counts))
        total = total + ((own * n[:, None]).T @ own if crossed else n @ own**2).astype(np.float64)
    return np.asarray(total)


def batch_rows(n_users: int, n_components: int, n_threads: int, *, equal: bool = True) -> int:
    """Return how many users a batch has: what the caches hold, or fewer if threads need more.

    Each of several threads has the same number of batches, all of about the same size. If not
    `equal`, as for row groups on disk, which would nearly all be cut for it, that holds only where
    there are few batches.
    """
    rows = max(1, min(MOST_USERS, CACHE_BYTES // (4 * factor_width(n_components))))
    n_batches = -(-n_users // (rows * n_threads))
    if n_threads > 1 and (equal or n_batches == 1):
        rows = -(-n_users // (n_batches * n_threads))
    return rows


def starting_factors(size: tuple[int, int], rank: int, n_threads: int, seed: int | None) -> Factors:
    """Return zeros for the users and small normal factors for the items."""
    n_users, n_items = size[0] + n_threads, size[1]
    U, V = (empty_factors(n, rank) for n in (n_users, n_items))
    source = NoiseSource(None if seed is None else derived_key(seed))
    V[:, :rank] = source.initial_normals((n_items, rank))
    V *= _START_NORM / np.sqrt(rank)
    variances = np.full((2, 1 + rank), rank**-0.5)
    variances[:, 0] = 1.0
    b, c = (np.zeros(n, np.float32) for n in (n_users, n_items))
    return Factors(U, V, b, c, variances, np.ones(()))


@dataclass
class Descent:
    """A fit in progress: the factors, and how far it is.

    `start` returns new factors, again after divergence. If the snapshot holds progress, the fit
    goes on from there; without `snapshot_every`, in batches, there is one snapshot a round. Items
    with `earlier` ratings get the share of a learned ridge that is the new ratings' among all, and
    the variances stay as they are then.

    ``losses`` are root mean squares of the standardised errors in each round, each before its
    update; ``learning_rate`` is that of the first round: the one of the settings, or, after
    divergence, a half, a fourth ... of it.
    """

    batches: Batches
    settings: Settings
    start: Callable[[], Factors]
    workers: Workers
    snapshot: Snapshot | None = None
    snapshot_every: int | None = None
    earlier: Any = None

    def __post_init__(self) -> None:
        self.every = self.snapshot_every or max(1, len(self.batches))
        self.factors = self.start()
        self.width = factor_width(self.settings.n_components)
        self.learning_rate = self.settings.learning_rate
        self.losses: list[float] = []
        self.done, self.squares = 0, 0.0  # batches of this round, and their squared errors
        self.waiting: Generator[Batch, None, None] | None = None
        own = self.batches.item_counts
        earlier = 0 if self.earlier is None else self.earlier
        self.share = (own / np.maximum(1, own + earlier)).astype(np.float32)
        counts = self.batches.user_counts, own + earlier
        self.counts = [np.unique(n, return_counts=True) for n in counts]
        saved = self.snapshot.load(self.factors.arrays()) if self.snapshot else None
        for name, value in (saved or {}).items():
            setattr(self, name, value)

    def run(self, rounds: Iterable[int]) -> Descent:
        """Finish the rounds 0, ..., max_iter - 1 that an iterable yields; return the descent.

        Raises FloatingPointError if the fit diverges at any learning rate.
        """
        with closing(self):
            for t in rounds:
                while len(self.losses) <= t:
                    self.round()
        if self.snapshot is not None:
            self.snapshot.clear()
        return self

    def round(self) -> None:
        """Finish a round; if it diverged, start all over at half the learning rate."""
        if self.waiting is None:
            self.waiting = self.batches.read(self.done, self.settings.max_iter - len(self.losses))
        self.penalty, self.ridges = self.penalties()
        while self.done < len(self.batches):
            n = min(self.every - self.done % self.every, len(self.batches) - self.done)
            self.squares += sum(self.workers.run(self.update, islice(self.waiting, n)))
            self.done += n
            if self.done < len(self.batches):
                self.save()
        self.shrink(1, self.factors.V, self.factors.item_bias, self.share)
        loss = np.sqrt(self.squares / max(1, self.batches.nnz))
        self.done, self.squares = 0, 0.0
        if loss <= _DIVERGED * max(1.0, self.batches.spread) and np.isfinite(self.factors.V).all():
            self.losses.append(float(loss))
            if self.settings.alpha is None and self.earlier is None and loss > 0.0:
                self.learn()
        else:
            self.restart()
        self.save()

    def update(self, batch: Batch, worker: int) -> float:
        """Step through a batch, from another item on for each worker."""
        model = self.factors
        step = min(self.step(), _LARGEST_SHRINK / max(1e-300, float(np.max(self.penalty))))
        n_runs, squares = len(batch.items), 0.0
        first = worker * n_runs // self.workers.n_threads
        for begin, end in ((first, n_runs), (0, first)):
            squares += update_batch(
                *(model.U, model.user_bias, model.V, model.item_bias),
                *(batch.start, self.batches.shape[0] + worker, self.width),
                *(batch.items, batch.indptr, batch.users, batch.ratings),
                *(begin, end),
                *(step, step * self.settings.fit_bias, self.penalty, _CLIP),
            )
        own = slice(batch.start, batch.stop)
        self.shrink(0, model.U[own], model.user_bias[own], np.ones(1, np.float32))
        return squares

    def step(self) -> float:
        """Return the length of a step in this round."""
        return self.learning_rate * self.settings.learning_rate_decay ** len(self.losses)

    def penalties(self) -> tuple[Any, Any]:
        """Return this round's penalties for each rating, as for the kernel, and for each row."""
        settings, model = self.settings, self.factors
        if settings.alpha is not None:
            return settings.alpha, None
        share = 1.0 if self.earlier is not None else self.opened()
        doubts = posterior_variances(model.noise, model.variances, self.counts)
        ratings = np.zeros((2, self.width))
        ratings[:, : settings.n_components] = share * doubts[::-1, 1:]
        return ratings, share * model.noise / np.maximum(model.variances, _LEAST)

    def opened(self) -> float:
        """Return the share of the learned penalties that there is after the rounds so far."""
        return min(1.0, len(self.losses) / (_OPENING * max(_SHORT, self.settings.max_iter)))

    def shrink(self, side: int, factors: np.ndarray, biases: np.ndarray, share: np.ndarray) -> None:
        """Take the step of a share of the penalty for each row, of users (0) or items (1)."""
        if self.ridges is None:
            return
        ridges = (self.step() * self.ridges[side]).astype(np.float32)
        factors[:, : ridges.size - 1] /= 1.0 + share[:, None] * ridges[1:]
        if self.settings.fit_bias:
            biases /= 1.0 + share * ridges[0]

    def learn(self) -> None:
        """Learn the variances, in some of the rounds after a change of coordinates."""
        model, n, k = self.factors, max(1, self.batches.nnz), self.settings.n_components
        counts = self.batches.user_counts, self.batches.item_counts
        U, V = model.U[: len(counts[0]), :k], model.V[:, :k]
        sides = tuple(
            zip((U, V), (model.user_bias[: len(U)], model.item_bias), counts, strict=True)
        )
        every = -(-k * sum(self.batches.shape) // n)
        if len(self.losses) % every == 1 % every:
            users, items = (moments(F, own, crossed=True) / n for F, _, own in sides)
            values, vectors = np.linalg.eigh(users)
            root = (vectors * np.maximum(values, _LEAST) ** 0.5) @ vectors.T
            values, vectors = np.linalg.eigh(root @ items @ root)
            turn = root @ vectors[:, ::-1] / np.sqrt(np.sqrt(np.maximum(values[::-1], _LEAST**2)))
            V[:] = V @ turn.astype(np.float32)
            U[:] = U @ np.linalg.inv(turn).T.astype(np.float32)
        both = [np.append(moments(bias[:, None], own), moments(F, own)) for F, bias, own in sides]
        means = np.array(both) / n
        doubts = posterior_variances(model.noise, model.variances, self.counts)
        doubts[:, 0] *= self.settings.fit_bias
        model.variances[:] = means + doubts
        product, known = (np.prod(one[:, 1:], axis=0) for one in (model.variances, means))
        noise = self.losses[-1] ** 2 + doubts[:, 0].sum() + (product - known).sum()
        model.noise[()] = min(1.0, max(_LEAST, noise))
        rows = [np.count_nonzero(own) ** 0.5 for own in counts]
        lost = (product < model.noise * rows[0] * rows[1] / n) & (self.opened() == 1.0)
        for array in (U, V, model.variances[:, 1:]):
            array[:, lost] = 0.0

    def restart(self) -> None:
        """Start all over at half the learning rate."""
        self.learning_rate /= 2.0
        if self.learning_rate < _LEAST * self.settings.learning_rate:
            raise FloatingPointError(
                f"learning_rate={self.settings.learning_rate!r} diverged, as did every half of it "
                f"down to {2 * self.learning_rate!r}: pass a smaller one, near 0.07; or fit anew, "
                "if going on from a fitted model, as the ratings may be on another scale."
            )
        self.close()
        self.factors, self.losses = self.start(), []

    def close(self) -> None:
        """Let the reader end, wherever it is."""
        if self.waiting is not None:
            self.waiting.close()
            self.waiting = None

    def save(self) -> None:
        """Write a snapshot of the progress, if there is one."""
        names = ("learning_rate", "losses", "done", "squares")
        if self.snapshot is not None:
            self.snapshot.save({name: getattr(self, name) for name in names}, self.factors.arrays())


class Snapshot:
    """One file that holds the arrays and the progress of a fit.

    The purpose tells the fit's settings and ratings: a snapshot of another purpose is refused.
    """

    def __init__(self, path: Any, purpose: str) -> None:
        self.path = Path(path)
        self.purpose = purpose

    def save(self, progress: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        """Write a snapshot; a crash at any moment leaves the last one or this one."""
        head = json.dumps({"purpose": self.purpose, **progress})
        with replaced_file(self.path, mode=0o600) as file:  # it holds users' factors
            np.savez(file, head=np.array(head), **arrays)  # type: ignore[arg-type]

    def load(self, arrays: dict[str, np.ndarray]) -> dict[str, Any] | None:
        """Fill the arrays from the last snapshot and return its progress; None without one."""
        place = f"snapshots.path={os.fspath(self.path)!r}"
        if not self.path.exists():
            return None
        try:
            if not self.path.is_file():  # a pipe would never end
                raise ValueError("it is no regular file")
            # opened here: given a path, NumPy leaves a broken file open
            with self.path.open("rb") as file, np.load(file, allow_pickle=False) as saved:
                progress = dict(json.loads(str(saved["head"])))
                found = {name: saved[name] for name in arrays}
        except Exception as error:
            words = f"{place} holds no snapshot that can be read ({error}): delete the file to "
            raise ValueError(words + "start from the beginning.") from error
        alike = all(found[name].shape == array.shape for name, array in arrays.items())
        if progress.pop("purpose", None) != self.purpose or not alike:
            raise ValueError(
                f"{place} holds a snapshot of another fit, with other parameters (n_jobs among "
                "them) or ratings: delete the file to start anew, or pass another path."
            )
        for name, array in arrays.items():
            array[...] = found[name]
        return dict(progress)

    def clear(self) -> None:
        """Remove the file: the fit is complete. And what a killed process was writing."""
        for part in self.path.parent.glob(f"{glob.escape(self.path.name)}.*.part"):
            part.unlink(missing_ok=True)
        self.path.unlink(missing_ok=True)
