"""Package pipelines of mlflow-perf."""
