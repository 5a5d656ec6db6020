"""Analyses of a spans database."""
