"""Readers of the job's control groups: limits, throttling, memory, pressure."""
