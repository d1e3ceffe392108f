"""One private fit in several processes."""
