"""One private fit in several processes, and one that survives its coordinator."""

from skdpmf.distributed.checkpoint import fit_checkpoint

__all__ = ["fit_checkpoint"]
