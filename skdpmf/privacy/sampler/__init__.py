"""Exact noise: public grids, integer laws, and keyed noise of releases."""
