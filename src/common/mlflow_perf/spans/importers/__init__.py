"""Package importers of mlflow_perf.spans: one small file per kind of source."""
