"""Cache-efficient stochastic gradient descent: the non-private matrix factorisation.

Minimises, over standardised ratings z_ij = (r_ij - mean) / std,

    sum over ratings ij of (z_ij - b_i - c_j - <u_i, v_j>)^2 / 2
                           + alpha / 2 (|u_i|^2 + |v_j|^2 + b_i^2 + c_j^2)

by stochastic gradient steps of length eta_t = learning_rate * learning_rate_decay^t in round t, and
at most 1 / (8 alpha), beyond which the penalty would overshoot. If the penalty is learned, it has a
constant part too, ridge / 2 |u_i|^2 and so on, which shrinks users after their batch and items
after each round, and all of it is in units of the mean squared error of the round before.

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
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from skdpmf.data.files import replaced_file
from skdpmf.kernels.sgd import empty_factors, factor_width, update_batch
from skdpmf.mechanisms.sgd.rating_batches import Batch, Batches, Workers
from skdpmf.privacy.sampler.noise import NoiseSource
from skdpmf.privacy.sampler.streams import derived_key

# One or two L2 caches of a current server core. Batches half as large cut the runs of items short,
# which costs more than users' rows from L3: the kernel reads the next rows early.
CACHE_BYTES = 1 << 21
# The biases of more users would leave the L1 cache; also those of a row group of ParquetRatings.
MOST_USERS = 4096
# With fewer users an item's row, which comes from L3 or memory, would be used too seldom.
LEAST_USERS = 512
# With several threads at least so many batches for each, or the last one is waited for; more would
# cut the runs of items short (8 for each of 2 threads cost a third on a million ratings).
_BATCHES_PER_THREAD = 2
# |v_j| at the start: small beside the standardised ratings, large beside rounding.
_START_NORM = 0.2
# Errors count at most so many standard deviations: one absurd rating cannot blow up its item.
_CLIP = 10.0
# Share of a factor that the penalty takes at most for each rating: a group has up to 8 of them.
_LARGEST_SHRINK = 1.0 / 8.0
# The learned penalty, in units of the variance of the noise (measured on made-up ratings of 15
# shapes): of the noise's largest singular value; and for each user and item.
_SHARE_OF_NOISE, _RIDGE, _BIAS_RIDGE = 0.75, 3.0, 5.0
# Less noise is not believed: the penalty would vanish.
_LEAST_VARIANCE = 0.01
# A round whose root mean square error is so many times that of the mean alone has diverged.
_DIVERGED = 2.0
# The smallest rate that is tried is this share of the one asked for.
_SMALLEST_SHARE = 2.0**-20


@dataclass(frozen=True)
class Settings:
    """Parameters of the solver, as of the estimator."""

    n_components: int
    max_iter: int
    learning_rate: float
    learning_rate_decay: float
    alpha: float
    fit_bias: bool
    ridge: float = 0.0
    bias_ridge: float = 0.0
    learned: bool = False

    def learn(self, n_users: int, n_items: int, n_ratings: int) -> Settings:
        """Return the settings with a penalty for so many users and items that have ratings.

        Noise of variance 1 has singular values up to sqrt(n_users) + sqrt(n_items), in units in
        which a component that adds s^2 to the variance of a rating has s sqrt(n_ratings): the
        penalty removes the components below a share of the noise.
        """
        users, items = max(1, n_users) / max(1, n_ratings), max(1, n_items) / max(1, n_ratings)
        least = _SHARE_OF_NOISE * (users**0.5 + items**0.5)
        ridge = min(_RIDGE, least / (users * items) ** 0.5)
        # sqrt((alpha + ridge users) (alpha + ridge items)) = least
        half, middle = ridge * (users - items) / 2.0, ridge * (users + items) / 2.0
        alpha = max(0.0, (half**2 + least**2) ** 0.5 - middle)
        return replace(self, alpha=alpha, ridge=ridge, bias_ridge=_BIAS_RIDGE, learned=True)


@dataclass
class Factors:
    """The model in standardised units; U and user_bias have a spare row for each thread."""

    U: np.ndarray
    V: np.ndarray
    user_bias: np.ndarray
    item_bias: np.ndarray

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the arrays by name."""
        return dict(vars(self))


def noise_variance(loss: float) -> float:
    """Return the variance of the noise by the loss of a round, both in standardised units."""
    return min(1.0, max(_LEAST_VARIANCE, loss**2))


def batch_rows(n_users: int, n_components: int, n_threads: int, *, equal: bool = True) -> int:
    """Return how many users a batch has: what the caches hold, or fewer if threads need more.

    Each of several threads has the same number of batches, all of about the same size. If not
    `equal`, as for row groups on disk, which would nearly all be cut for it, that holds only where
    there are few batches.
    """
    rows = min(MOST_USERS, max(LEAST_USERS, CACHE_BYTES // (4 * factor_width(n_components))))
    if n_threads > 1:
        n_batches = max(_BATCHES_PER_THREAD, -(-n_users // (rows * n_threads)))
        if equal or n_batches == _BATCHES_PER_THREAD:
            rows = -(-n_users // (n_batches * n_threads))
    return max(1, rows)


def starting_factors(size: tuple[int, int], rank: int, n_threads: int, seed: int | None) -> Factors:
    """Return zeros for the users and small normal factors for the items."""
    n_users, n_items = size
    V = empty_factors(n_items, rank)
    source = NoiseSource(None if seed is None else derived_key(seed))
    V[:, :rank] = source.initial_normals((n_items, rank))
    V *= _START_NORM / np.sqrt(rank)
    return Factors(
        empty_factors(n_users + n_threads, rank),
        V,
        np.zeros(n_users + n_threads, np.float32),
        np.zeros(n_items, np.float32),
    )


@dataclass
class Descent:
    """A fit in progress: the factors, and how far it is.

    `start` returns new factors, again after divergence. If the snapshot holds progress, the fit
    goes on from there; without `snapshot_every`, in batches, there is one snapshot a round. Items
    with `earlier` ratings get the share of a learned ridge that is the new ratings' among all.

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
    earlier: Any = 0

    def __post_init__(self) -> None:
        self.every = self.snapshot_every or max(1, len(self.batches))
        self.factors = self.start()
        self.width = factor_width(self.settings.n_components)
        self.learning_rate = self.settings.learning_rate
        self.losses: list[float] = []
        self.done, self.squares = 0, 0.0  # batches of this round, and their squared errors
        self.waiting: Generator[Batch, None, None] | None = None
        counts = self.batches.item_counts
        self.share = (counts / np.maximum(1, counts + self.earlier)).astype(np.float32)
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
        while self.done < len(self.batches):
            n = min(self.every - self.done % self.every, len(self.batches) - self.done)
            self.squares += sum(self.workers.run(self.update, islice(self.waiting, n)))
            self.done += n
            if self.snapshot is not None and self.done < len(self.batches):
                self.save()
        if self.settings.learned:
            self.shrink(self.factors.V, self.factors.item_bias, self.share)
        loss = np.sqrt(self.squares / max(1, self.batches.nnz))
        self.done, self.squares = 0, 0.0
        if loss <= _DIVERGED * max(1.0, self.batches.spread) and np.isfinite(self.factors.V).all():
            self.losses.append(float(loss))
        else:
            self.restart()
        if self.snapshot is not None:
            self.save()

    def update(self, batch: Batch, worker: int) -> float:
        """Step through a batch, from another item on for each worker."""
        model, settings = self.factors, self.settings
        step, alpha = self.step(), self.penalty()[0]
        if step * alpha > _LARGEST_SHRINK:
            step = _LARGEST_SHRINK / alpha
        n_runs = len(batch.items)
        first = worker * n_runs // self.workers.n_threads
        squares = 0.0
        for begin, end in ((first, n_runs), (0, first)):
            squares += update_batch(
                *(model.U, model.user_bias, model.V, model.item_bias),
                batch.start,
                self.batches.shape[0] + worker,
                self.width,
                *(batch.items, batch.indptr, batch.users, batch.ratings),
                *(begin, end),
                step=step,
                bias_step=step if settings.fit_bias else 0.0,
                penalty=alpha,
                clip=_CLIP,
            )
        if settings.learned:
            own = slice(batch.start, batch.stop)
            self.shrink(model.U[own], model.user_bias[own], np.ones(1, np.float32))
        return squares

    def step(self) -> float:
        """Return the length of a step in this round."""
        return self.learning_rate * self.settings.learning_rate_decay ** len(self.losses)

    def penalty(self) -> tuple[float, float, float]:
        """Return alpha, the ridge and that of the biases in this round."""
        settings, variance = self.settings, 1.0
        if settings.learned and self.losses:
            variance = noise_variance(self.losses[-1])
        return variance * settings.alpha, variance * settings.ridge, variance * settings.bias_ridge

    def shrink(self, factors: np.ndarray, biases: np.ndarray, share: np.ndarray) -> None:
        """Take the step of a share of the constant part of the penalty."""
        _, ridge, bias_ridge = self.penalty()
        factors /= (1.0 + self.step() * ridge * share)[:, None]
        if self.settings.fit_bias:
            biases /= 1.0 + self.step() * bias_ridge * share

    def restart(self) -> None:
        """Start all over at half the learning rate."""
        self.learning_rate /= 2.0
        if self.learning_rate < _SMALLEST_SHARE * self.settings.learning_rate:
            raise FloatingPointError(
                f"learning_rate={self.settings.learning_rate!r} diverged, as did every half of it "
                f"down to {2 * self.learning_rate!r}: pass a smaller one, near the default of "
                "0.07; or, when going on from a fitted model, fit anew, as the ratings may be on "
                "another scale."
            )
        self.close()
        self.factors, self.losses = self.start(), []

    def close(self) -> None:
        """Let the reader end, wherever it is."""
        if self.waiting is not None:
            self.waiting.close()
            self.waiting = None

    def save(self) -> None:
        """Write a snapshot of the progress."""
        names = ("learning_rate", "losses", "done", "squares")
        assert self.snapshot is not None
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
            raise ValueError(
                f"snapshots.path={os.fspath(self.path)!r} holds no snapshot that can be read "
                f"({error}): delete the file to start from the beginning."
            ) from error
        shapes = {name: array.shape for name, array in arrays.items()}
        if progress.pop("purpose", None) != self.purpose or any(
            found[name].shape != shape for name, shape in shapes.items()
        ):
            raise ValueError(
                f"snapshots.path={os.fspath(self.path)!r} holds a snapshot of another fit, with "
                "other parameters (n_jobs among them) or ratings: delete the file to start from "
                "the beginning, or name another one."
            )
        for name, array in arrays.items():
            array[...] = found[name]
        return dict(progress)

    def clear(self) -> None:
        """Remove the file: the fit is complete. And what a killed process was writing."""
        for part in self.path.parent.glob(f"{glob.escape(self.path.name)}.*.part"):
            part.unlink(missing_ok=True)
        self.path.unlink(missing_ok=True)
