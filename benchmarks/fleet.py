"""The command `fleet` over 100,000 runs with known totals: `--uri STORE`, `--runs N`.

Without a store it makes one in SQLite in a temporary folder. A PostgreSQL store must be empty.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import sys
import tempfile
import time

from mlflow import MlflowClient

from mlflow_perf.analysis.fleet import add_rows, sum_fleet
from mlflow_perf.model.metrics import METRICS, RUN_METRICS
from mlflow_perf.tracking.bulk_runs import FinishedRun, write_runs
from mlflow_perf.tracking.fleet_sums import FIGURES, GROUPS

_AT_ONCE = 5000
# About as many as a run of one node has on a machine without GPUs; without the figures of a run.
_USUAL_METRICS = [*(one.key for one in METRICS[:33]), *(one.key for one in RUN_METRICS[5:12])]
_BOUND_SEC = 2.0


def fill(client: MlflowClient, count: int) -> dict[str, float]:
    """Write runs of ten experiments into a store and return the true totals."""
    chance = random.Random(1)
    totals = dict.fromkeys(("runs", "failed", *FIGURES), 0.0)
    experiments = [client.create_experiment(f"bench {i}") for i in range(10)]
    now = time.time()
    for at in range(0, count, _AT_ONCE):
        runs = []
        for i in range(at, min(count, at + _AT_ONCE)):
            status = "FAILED" if chance.random() < 0.1 else "FINISHED"
            held, used = chance.lognormvariate(0.0, 1.0), chance.random()
            figures = {"cpu_hours": held, "unused_cpu_hours": held * (1 - used)}
            if i % 4 == 0:
                figures |= {"gpu_hours": held / 8, "unused_gpu_hours": held / 16}
            if i % 2 == 0:
                figures |= {"cost": held * 0.04, "unused_cost": held * 0.04 * (1 - used)}
            metrics = dict.fromkeys(_USUAL_METRICS, 1.0)
            metrics |= {f"run_{name}": value for name, value in figures.items()}
            started = now - chance.random() * 86_400 * 365
            tags = {"mlflow_perf.component": f"component {i % 50}", "mlflow_perf.status": status}
            tags |= {f"mlflow_perf.other_{j}": "a text of some length" for j in range(8)}
            params = {f"param_{j}": str(i % 10) for j in range(5)}
            ended = started + 60
            run = FinishedRun(f"run {i}", status, started, ended, metrics, params, tags)
            runs.append(run)
            totals["runs"] += 1
            totals["failed"] += status == "FAILED"
            for name, value in figures.items():
                totals[name] += value
        write_runs(client, experiments[at // _AT_ONCE % 10], runs)
    return totals


def main() -> int:
    """Print the time of each grouping; return 1 if one is slow or its totals are wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--uri")
    parser.add_argument("--runs", type=int, default=100_000)
    options = parser.parse_args()
    missed = False
    with tempfile.TemporaryDirectory() as folder:
        uri = options.uri or f"sqlite:///{folder}/mlflow.db"
        client = MlflowClient(uri)
        client.search_experiments()
        os.environ["MLFLOW_TRACKING_URI"] = uri
        began = time.perf_counter()
        totals = fill(client, options.runs)
        print(f"{options.runs:,} runs written in {time.perf_counter() - began:.0f} s", flush=True)
        for by in GROUPS:
            began, cpu = time.perf_counter(), time.process_time()
            rows = sum_fleet(by)
            took, cpu = time.perf_counter() - began, time.process_time() - cpu
            whole = add_rows(rows).as_dict()
            right = all(math.isclose(whole[key], true) for key, true in totals.items())
            missed = missed or not right or took > _BOUND_SEC
            sums = "totals right" if right else "TOTALS WRONG"
            print(f"{by:11} {took:6.2f} s ({cpu:.2f} s CPU here), {len(rows)} groups, {sums}")
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
