"""One private fit in several processes, and one that survives its coordinator."""

from skdpmf._moved import names_of_before
from skdpmf.distributed.checkpoint import fit_checkpoint

__all__ = ["fit_checkpoint"]
__getattr__ = names_of_before(
    __name__,
    {
        "Step": "skdpmf.distributed.pool",
        "record_traffic": "skdpmf.distributed.pool",
        "FitResources": "skdpmf.distributed.resources",
    },
)
