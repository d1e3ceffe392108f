"""Peak memory of this process, where the system says it; NaN, "not measured", where it does not."""

import math
import sys
from pathlib import Path

try:
    import resource
except ImportError:  # Windows
    resource = None


def peak_gib():
    """Return the peak resident memory, GiB; of Linux, where a parent's size counts as well."""
    if resource is None:
        return math.nan
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**30 if sys.platform == "darwin" else 2**20)  # bytes there, KiB elsewhere


def own_mb(name):
    """Return "VmRSS" or "VmHWM", now or at the peak, MB: Linux counts it anew with a program."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    except OSError:
        return math.nan
    return next(int(line.split()[1]) / 1e3 for line in lines if line.startswith(name))


def shown_size(value, digits=2, unit=""):
    """Return a size in words."""
    return "not measured" if math.isnan(value) else f"{value:.{digits}f}{unit}"
