"""What an operator does to a stored log: scrub, seal, fork, destroy, bootstrap."""
