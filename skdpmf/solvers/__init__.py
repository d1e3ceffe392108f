"""One paper, one file: what is released at which noise, and the solver that does it."""
