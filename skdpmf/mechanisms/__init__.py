"""Mechanisms, a folder a family: the releases, their noise, their models; `sgd` has no privacy."""
