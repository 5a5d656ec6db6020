"""Time of the analysis: compare of many runs, a large workflow, right-sizing of a history.

`python -m benchmarks.analysis [RUNS]` creates an sqlite store and prints a table. Times are the
best of three; the floor of `compare` is MLflow's own search for the same runs.
"""

from __future__ import annotations

import sys
import tempfile
from functools import partial
from pathlib import Path

from benchmarks._timing import best_of
from mlflow import MlflowClient
from mlflow.entities import Metric, RunTag

from mlflow_perf.analysis.compare import compare
from mlflow_perf.analysis.rightsize import right_size
from mlflow_perf.analysis.workflow import build_workflow
from mlflow_perf.model.metrics import METRICS, RUN_METRICS
from mlflow_perf.tracking.perf_run import PerfRun
from mlflow_perf.tracking.search import find_runs

TARGET_SEC = 5.0


def log_runs(client: MlflowClient, experiment: str, count: int) -> list[str]:
    """Log runs of one node as the session does, and return their ids."""
    ids = []
    for i in range(count):
        run_id = client.create_run(experiment, run_name="train").info.run_id
        metrics = [Metric(m.key, float(i % 97 + 1), i, 0) for m in METRICS]
        metrics += [Metric(m.key, 1.0, i, 0) for m in RUN_METRICS]
        tags = [RunTag("mlflow_perf.component", "train"), RunTag("mlflow_perf.status", "FINISHED")]
        client.log_batch(run_id, metrics=metrics, tags=tags)
        client.set_terminated(run_id)
        ids.append(run_id)
    return ids


def steps(count: int) -> list[PerfRun]:
    """Return the steps of a workflow, each after the one before."""
    tags = [{"mlflow_perf.depends_on": f"s{i - 1}" if i else ""} for i in range(count)]
    return [
        PerfRun(f"s{i}", run_id=f"s{i}", component=f"s{i}", started=float(i), ended=i + 1.0, tags=t)
        for i, t in enumerate(tags)
    ]


def main(count: int) -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory() as folder:
        client = MlflowClient(f"sqlite:///{folder}/mlflow.db")
        import mlflow

        mlflow.set_tracking_uri(f"sqlite:///{folder}/mlflow.db")
        place = (Path(folder) / "artifacts").as_uri()
        ids = log_runs(client, client.create_experiment("bench", artifact_location=place), count)
        everywhere = [e.experiment_id for e in client.search_experiments()]
        floor = best_of(3, lambda: client.search_runs(everywhere, max_results=1000))
        print(f"{'search_runs of MLflow, 1 page (floor)':45} {floor:8.2f} s")
        for size in sorted({count // 10, count}):
            took = best_of(3, partial(compare, ids[:size]))
            print(f"{f'compare of {size} runs (target {TARGET_SEC:g} s)':45} {took:8.2f} s")
        history = find_runs("train", max_results=count, documents=False)
        took = best_of(3, lambda: right_size(history))
        print(f"{f'right size from {len(history)} runs in memory':45} {took:8.2f} s")
        parent = PerfRun("flow", name="flow")
        took = best_of(3, lambda: build_workflow(parent, steps(1000), now=0.0))
        print(f"{'workflow of 1000 steps in memory':45} {took:8.2f} s")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1000)
