"""Package integrations of mlflow-perf."""
