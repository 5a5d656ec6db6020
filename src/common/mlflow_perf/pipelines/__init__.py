"""Run an azure-ai-ml pipeline on this machine, on a cluster or on Azure ML."""
