"""Recorders of operations and transfers, and how the session collects them from all processes."""
