"""This process's place in its job: node, rank and launcher, and the cause of its end."""
