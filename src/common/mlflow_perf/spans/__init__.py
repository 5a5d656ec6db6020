"""Package spans of mlflow-perf."""
