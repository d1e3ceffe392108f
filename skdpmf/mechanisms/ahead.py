"""The kernels that take longest to compile before a first private model, by two processes at once.

One process compiles one kernel at a time, as numba has a lock. The two processes compile different
kernels, and numba's cache on disk hands those of the helper to the other. Only `skdpmf.demo` does
so: a library starts no processes behind its user's back. A helper that fails costs only time.
"""

import gc
import os
import subprocess
import sys

__all__ = ["finish", "start"]

_LONGEST = 120  # seconds; after that it is quicker to compile without a helper


def start() -> subprocess.Popen[bytes] | None:
    """Start the helper; None where it has no processor of its own, or no process can be made."""
    if (os.cpu_count() or 1) == 1:
        return None
    quiet = subprocess.DEVNULL
    try:
        return subprocess.Popen(
            [sys.executable, "-m", "skdpmf.mechanisms.ahead"],
            stdin=quiet,
            stdout=quiet,
            stderr=quiet,
        )
    except OSError:
        return None


def finish(helper: subprocess.Popen[bytes] | None) -> None:
    """Compile the kernels of this process, and wait for the helper's.

    A compiler keeps nearly all that it makes, so that searching for waste takes 7 % of its time.
    """
    if helper is None:
        return
    gc.disable()
    compile_noise()
    compile_sums()
    gc.enable()
    try:
        helper.wait(_LONGEST)
    except subprocess.TimeoutExpired:
        helper.kill()
        helper.wait()


# Tiny calls with the types of a fit: the kernels are compiled for these. Imports wait until the
# helper has been started.


def compile_noise() -> None:
    """Compile the noise of a release."""
    import numpy as np

    from skdpmf.privacy.sampler.noise import NoiseSource

    NoiseSource().release(
        np.zeros(1), name="none", sensitivity=1.0, noise_multiplier=1.0, bound=1.0
    )


def compile_sums() -> None:
    """Compile the sums over users, and what they are of."""
    import numpy as np

    from skdpmf.kernels.centring import centre_rows
    from skdpmf.kernels.entries import weigh_residuals
    from skdpmf.kernels.rows import centred_residuals, hash_rows, mean_rows, weigh_by_item
    from skdpmf.kernels.sums import accumulate_pairs, accumulate_rhs, row_norms

    one, row = np.ones((1, 1)), (np.array([0, 1], np.int32), np.zeros(1, np.int32), np.ones(1))
    count, pattern = np.zeros(1, np.int64), row[:2]
    items = row[0], np.zeros(1, np.uint16), row[2], row[2], *pattern, pattern[1]
    accumulate_pairs(*items, 1.0, 0, 1, count, count.copy())
    centre_rows(*row, pattern[1], row[2], 1.0, 1.0, one, 0.0, 1.0, 0, 1, np.empty(1), count)
    hash_rows(*pattern, np.zeros(1, np.uint64), np.ones(3, np.uint64), 0, 1, np.zeros(1, np.uint64))
    mean_rows(*pattern, one, 0, 1, np.empty((2, 2))[:, 1:])
    weigh_by_item(*pattern, row[2], False, 0, 1, np.empty(1))
    centred_residuals(*row, row[2], row[2], 1.0, 0, 1, np.empty(1))
    for kind in (np.int32, np.int64):
        row_norms(row[0].astype(kind), row[2], False, 0, 1, np.empty(1))
    weigh_residuals(*row, np.ones(1), one, one, 1.0, 0, 1, np.empty(1), np.empty(1))
    accumulate_rhs(*row, np.ones(1), one, 1.0, 0, 1, one.copy())


def compile_rows() -> None:
    """Compile the ridge regressions of users and their posteriors."""
    import numpy as np

    from skdpmf.kernels.als import solve_rows
    from skdpmf.kernels.variational import row_posteriors

    one, row = np.ones((1, 1)), (np.array([0, 1], np.int32), np.zeros(1, np.int32), np.ones(1))
    solve_rows(*row, one, one, 0, 1, one.copy())
    row_posteriors(*row, one, one, one, one, 1.0, 0, 1, one.copy(), one.copy(), np.empty(1))


if __name__ == "__main__":
    gc.disable()
    compile_rows()
