"""Package sinks of mlflow-perf."""
