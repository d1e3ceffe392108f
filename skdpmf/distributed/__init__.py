"""One fit on blocks of users in several processes."""
