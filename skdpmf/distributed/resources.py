"""What a fit on blocks of users takes, in numbers and words."""

from dataclasses import dataclass

__all__ = ["FitResources"]


@dataclass(frozen=True)
class FitResources:
    """Estimates for a fit whose blocks of users are spread over workers.

    Attributes
    ----------
    n_workers : int
        Worker processes of one thread each.
    memory : float
        Bytes of each worker.
    n_requests : int
        Times that all workers hand in their sums and get what was released.
    bytes_up : float
        Most bytes that a worker sends at a request. It gets as many back at the next.
    bytes_in_all : float
        Bytes that the coordinator receives from all workers in all requests; it sends as many.
    seconds : float
        Resources of the whole fit, reading the ratings apart.

    Examples
    --------
    >>> from skdpmf.distributed.resources import FitResources
    >>> print(FitResources(4, 2e9, 30, 1e6, 1.2e8, 300.0))
    4 workers of 2 GB each; 30 requests of at most 1 MB a worker, 120 MB in all; about 5 minutes
    """

    n_workers: int
    memory: float
    n_requests: int
    bytes_up: float
    bytes_in_all: float
    seconds: float

    def __str__(self) -> str:
        return (
            f"{self.n_workers} workers of {_bytes(self.memory)} each; {self.n_requests} requests "
            f"of at most {_bytes(self.bytes_up)} a worker, {_bytes(self.bytes_in_all)} in all; "
            f"about {_time(self.seconds)}"
        )


def _bytes(n: float) -> str:
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if n < 1000.0 or unit == "TB":
            break
        n /= 1000.0
    return f"{n:.3g} {unit}"


def _time(seconds: float) -> str:
    for unit, length in (("days", 86400.0), ("hours", 3600.0), ("minutes", 60.0)):
        if seconds >= 2.0 * length:
            return f"{seconds / length:.2g} {unit}"
    return f"{seconds:.2g} seconds"
