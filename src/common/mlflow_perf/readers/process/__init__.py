"""The job's processes: their CPU time, memory and I/O."""
