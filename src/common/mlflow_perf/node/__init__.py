"""This process's place in its job: node, rank, launcher, and what ended it."""
