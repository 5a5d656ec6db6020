"""Readers of the GPUs that the job may use, by maker."""
