"""Numba kernels: arrays in, arrays out. No randomness, no budget, no exceptions."""
