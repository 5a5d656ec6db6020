"""Package readers of mlflow-perf."""
