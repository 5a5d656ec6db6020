"""The stack sampler: which functions the threads of a process are in, and whether they compute."""
