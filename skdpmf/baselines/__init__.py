"""Solvers without privacy, to compare with."""
