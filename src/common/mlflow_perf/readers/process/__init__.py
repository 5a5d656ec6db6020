"""Readers of the job's processes: their CPU time, memory and disk I/O."""
