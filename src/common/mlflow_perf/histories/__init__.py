"""The histories of other workflow systems as MLflow runs: Nextflow, Snakemake, Slurm."""

from __future__ import annotations

from mlflow_perf.histories.log_workflow import ImportedWorkflow, log_workflow
from mlflow_perf.histories.reading import read_histories

__all__ = ["ImportedWorkflow", "log_workflow", "read_histories"]
