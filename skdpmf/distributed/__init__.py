"""One private fit in several processes, and one that survives its coordinator."""

from skdpmf.distributed.checkpoint import fit_checkpoint
from skdpmf.distributed.pool import Step, record_traffic
from skdpmf.distributed.resources import FitResources

__all__ = ["FitResources", "Step", "fit_checkpoint", "record_traffic"]
