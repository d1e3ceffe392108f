"""Record what fits release, and compare it with what another version of the code releases.

    python -m tests.core.record record FILE [CASE ...]    # with the one version
    python -m tests.core.record compare FILE [CASE ...]   # with the other one

Cases are those of `tests.core.cases` whose names begin with one of the words, or all. The second
run replays the first one's releases, so that all that comes before a release is equal, and shows
statistics before noise and models that differ.
"""

import argparse
import pickle
import sys
from pathlib import Path

import numpy as np

from skdpmf.privacy.recording import Recording, ReleaseRecord
from tests.core.cases import CASES, NEIGHBORS


def chosen(words):
    """Return the cases by name and relation."""
    return {
        f"{name}, {neighbors}": case._replace(neighbors=neighbors)
        for name, case in CASES.items()
        for neighbors in NEIGHBORS
        if not words or name.startswith(tuple(words))
    }


def recorded(cases):
    """Return what each case releases, its keys, and the arrays that it leaves, as plain objects."""
    found = {}
    for name, case in cases.items():
        model, records = case.fit()
        arrays = {k: v for k, v in vars(model).items() if isinstance(v, np.ndarray)}
        found[name] = [vars(record) for record in records], records._keys, arrays
    return found


def differences(name, case, old):
    """Return lines about what differs from an earlier recording."""
    records, keys, arrays = old
    earlier = Recording(ReleaseRecord(**fields) for fields in records)
    earlier._keys = list(keys)
    model, now = case.replayed(case.ratings, earlier)
    found = []
    for a, b in zip(earlier, now, strict=True):
        for field in ("name", "index", "layout", "noise"):
            if getattr(a, field) != getattr(b, field):
                found.append(f"{name}: {field} was {getattr(a, field)!r}: {b}")
        for field in ("sensitivity", "noise_multiplier"):
            if not np.isclose(getattr(a, field), getattr(b, field), rtol=1e-9, atol=0):
                found.append(f"{name}: {field} was {getattr(a, field)!r}: {b}")
        change = np.abs(a.statistic - b.statistic)
        if change.any():
            largest, share = change.max(), np.mean(change > 0)
            found.append(f"{name}: {share:.0%} of values differ, by up to {largest:.2g}: {b}")
    for attribute, value in arrays.items():
        if not np.array_equal(value, getattr(model, attribute)):
            found.append(f"{name}: {attribute} differs")
    return found


def main(arguments=None):
    """Run the command line; 1 if anything differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("action", choices=["record", "compare"])
    parser.add_argument("file", type=Path)
    parser.add_argument("case", nargs="*")
    options = parser.parse_args(arguments)
    cases = chosen(options.case)
    if options.action == "record":
        options.file.write_bytes(pickle.dumps(recorded(cases)))
        return 0
    found = []
    for name, old in pickle.loads(options.file.read_bytes()).items():
        if name in cases:
            try:
                found += differences(name, cases[name], old)
            except (AssertionError, ValueError) as error:  # other releases than before
                found.append(f"{name}: {error}")
    sys.stdout.write("\n".join([*found, f"{len(found)} differences", ""]))
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
