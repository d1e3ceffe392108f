"""One draw from a posterior as a release: its guarantee, its target and its samplers."""
