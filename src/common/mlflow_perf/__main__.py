"""`python -m mlflow_perf`: the command `mlflow-perf`."""

from mlflow_perf.cli import main

if __name__ == "__main__":
    main()
