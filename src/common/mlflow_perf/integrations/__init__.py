"""Integrations: each module connects to one other library or system."""
