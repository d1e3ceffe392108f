"""Fits beyond one process: a fit that survives its coordinator."""

from skdpmf.distributed.checkpoint import fit_checkpoint

__all__ = ["fit_checkpoint"]
