"""Plots, exports and logging of a spans database."""
