"""The GPUs that the job may use, by maker."""
