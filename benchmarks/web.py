"""How long the page `/perf` takes to list many runs, on sqlite and on PostgreSQL.

`python -m benchmarks.web [RUNS]` fills a store of its own and prints a table: the shortest of three
answers with its size, through MLflow's own app in this process, and what MLflow's own search takes
for 1,000 of the runs. Targets: a list of 1,000 runs with ten columns of parameters 1 s, and 2 s in
a store of 100,000 runs; no page above 2 MB. PostgreSQL needs Debian's package and `psycopg2`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks._timing import best_of

from mlflow_perf.model.metrics import METRICS, RUN_METRICS

TARGET_SEC, TARGET_LARGE_SEC = 1.0, 2.0
STEPS = 4  # of each workflow
PARAMS = 10
AT_ONCE = 5000


def fill(store: Any, experiment: str, count: int) -> None:
    """Write runs as the session logs them, one in five of them a workflow, straight into tables."""
    from mlflow.store.tracking.dbmodels import models
    from sqlalchemy import insert

    # A large store has the run's own metrics only, which the pages read; all of them take minutes.
    keys = ["duration_sec", *(m.key for m in RUN_METRICS)]
    keys += [m.key for m in METRICS if count <= AT_ONCE and m.key not in keys]
    parent, now = "", int(time.time() * 1000)
    for at in range(0, count, AT_ONCE):
        rows: dict[Any, list[dict[str, Any]]] = {
            table: [] for table in (models.SqlRun, models.SqlTag, models.SqlParam,
                                    models.SqlLatestMetric)
        }  # fmt: skip
        for i in range(at, min(count, at + AT_ONCE)):
            run_id, is_parent = uuid.uuid4().hex, i % (STEPS + 1) == 0
            parent = run_id if is_parent else parent
            start = now - (count - i) * 60_000
            rows[models.SqlRun].append(
                {"run_uuid": run_id, "name": f"run-{i}", "experiment_id": int(experiment),
                 "status": "FINISHED", "start_time": start, "end_time": start + 1,
                 "lifecycle_stage": "active", "user_id": "bench", "source_type": "LOCAL",
                 "artifact_uri": "/nowhere"}
            )  # fmt: skip
            tags = {
                "mlflow.runName": f"run-{i}",
                "mlflow_perf.bottleneck": "cpu",
                "mlflow_perf.advice": "One core busy of several: use more threads.",
            }
            own = {"mlflow_perf.component": f"train {i % 40}", "mlflow.parentRunId": parent}
            tags |= {"mlflow_perf.pipeline": "flow"} if is_parent else own
            params = {f"param_{n}": f"{i % (7 + n)}" for n in range(PARAMS)}
            metrics = {**dict.fromkeys(keys, i % 97), "auc": 1 / (1 + i % 89)}
            for table, values in ((models.SqlTag, tags), (models.SqlParam, params)):
                rows[table] += [
                    {"run_uuid": run_id, "key": k, "value": v} for k, v in values.items()
                ]
            rows[models.SqlLatestMetric] += [
                {"run_uuid": run_id, "key": k, "value": v, "timestamp": start, "step": 0,
                 "is_nan": False} for k, v in metrics.items()
            ]  # fmt: skip
        with store.ManagedSessionMaker() as session:
            for table, some in rows.items():
                session.execute(insert(table), some)


def measure(name: str, uri: str, count: int) -> None:
    """Print the rows of one kind of store."""
    from mlflow.entities import ViewType
    from mlflow.server import app, handlers
    from mlflow.server.constants import BACKEND_STORE_URI_ENV_VAR

    from mlflow_perf.web.app import register

    os.environ[BACKEND_STORE_URI_ENV_VAR] = uri
    handlers._tracking_store = None
    store: Any = handlers._get_tracking_store(uri, "/nowhere")
    experiment = store.create_experiment("bench")
    fill(store, experiment, count)
    register(app)
    client = app.test_client()
    columns = "&".join(f"col=params.param_{n}" for n in range(PARAMS))
    for label, path in (
        ("list", "/perf"),
        ("ten parameters", f"/perf?{columns}&col=run_duration_sec"),
        ("sorted by a metric", "/perf?sort=-run_cpu_hours"),
        ("sorted by auc", "/perf?sort=-metrics.auc"),
        ("sorted by a parameter", "/perf?sort=params.param_3"),
        ("filtered", "/perf?component=train+7&status=FINISHED"),
        ("a text", "/perf?q=run-9"),
        ("overview", "/perf/fleet?since=365d"),
        ("trend", "/perf/trend?component=train+7"),
        ("scatter plot", "/perf/scatter?x=params.param_1"),
    ):
        answer = client.get(path)
        assert answer.status_code == 200, answer.text[:500]
        took = best_of(3, partial(client.get, path))
        print(f"{name:10} {label:24} {took:6.2f} s  {len(answer.data) / 1e6:5.2f} MB", flush=True)
    search = best_of(
        3, lambda: store.search_runs([experiment], "", ViewType.ACTIVE_ONLY, 1000, [], None)
    )
    print(f"{name:10} {'MLflow search_runs':24} {search:6.2f} s")


@contextmanager
def postgres() -> Iterator[str | None]:
    """Run a PostgreSQL of its own on a socket; None where there is none."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if not found:
        yield None
        return
    prefix = ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []
    folder = Path(tempfile.mkdtemp(prefix="perf-pg-"))
    if prefix:
        shutil.chown(folder, "postgres")

    def run(*command: str) -> None:
        subprocess.run([*prefix, *command], check=True, capture_output=True, cwd="/")

    run(str(found[-1]), "-D", f"{folder}/data", "-U", "perf", "-A", "trust")
    control = [
        str(found[-1].parent / "pg_ctl"),
        "-D",
        f"{folder}/data",
        "-w",
        "-l",
        f"{folder}/log",
    ]
    run(*control, "-o", f"-k {folder} -c listen_addresses= -c fsync=off", "start")
    try:
        yield f"postgresql+psycopg2://perf@/postgres?host={folder}"
    finally:
        run(*control, "-m", "immediate", "stop")
        shutil.rmtree(folder, ignore_errors=True)


def main(count: int) -> None:
    """Print the table."""
    print(f"{count:,} runs, target {TARGET_SEC if count <= AT_ONCE else TARGET_LARGE_SEC:g} s")
    with tempfile.TemporaryDirectory() as folder:
        measure("sqlite", f"sqlite:///{folder}/mlflow.db", count)
    with postgres() as uri:
        if uri is None:
            print("PostgreSQL is not installed (Debian: postgresql)")
        else:
            measure("PostgreSQL", uri, count)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1000)
