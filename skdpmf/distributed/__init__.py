"""One private fit in several processes, and one that survives its coordinator."""

from skdpmf.distributed._pool import Step, record_traffic
from skdpmf.distributed._resources import FitResources
from skdpmf.distributed.checkpoint import fit_checkpoint

__all__ = ["FitResources", "Step", "fit_checkpoint", "record_traffic"]
