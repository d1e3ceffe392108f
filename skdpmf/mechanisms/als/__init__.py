"""Alternating least squares of ratings and clicks: pooled (the default) and DPALS."""
