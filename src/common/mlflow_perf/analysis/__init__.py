"""Package analysis of mlflow-perf."""
