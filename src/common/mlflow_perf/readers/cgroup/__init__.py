"""The job's control groups: limits, pressure, throttling."""
