"""The HTML report and the figures in it."""
