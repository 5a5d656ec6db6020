"""Package web of mlflow-perf."""
