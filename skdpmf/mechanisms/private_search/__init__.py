"""The best of a random number of private runs: what it costs, and how many there are."""
