"""Real jobs whose bottleneck is known, and what was recorded of them."""
