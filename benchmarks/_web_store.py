"""Large stores for the benchmark of the page `/perf`, on sqlite and on PostgreSQL."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from mlflow_perf.model.metrics import METRICS, RUN_METRICS

EXPERIMENTS = 10
COMPONENTS = 40
PARAMS = 10
_STEPS = 4  # of each workflow
_AT_ONCE = 5000
# About as many as a run of one node has on a machine without GPUs.
_METRICS = [*(m.key for m in METRICS[:33]), *(m.key for m in RUN_METRICS[:12])]
_YEAR_MS = 365 * 86_400_000


def fill(uri: str, count: int) -> None:
    """Write runs as the session logs them straight into the tables; one in five is a workflow.

    A store that has such runs is left as it is.
    """
    from mlflow import MlflowClient
    from sqlalchemy import insert, text

    client = MlflowClient(uri)
    if client.get_experiment_by_name("bench 0") is not None:
        return
    experiments = [int(client.create_experiment(f"bench {i}")) for i in range(EXPERIMENTS)]
    store: Any = client._tracking_client.store
    chance, began = random.Random(1), time.time()
    for at in range(0, count, _AT_ONCE):
        rows = _make_rows(chance, range(at, min(count, at + _AT_ONCE)), count, experiments)
        with store.ManagedSessionMaker(read_only=False) as session:
            if uri.startswith("sqlite"):
                session.execute(text("PRAGMA cache_size = -1000000"))
            for table, some in rows.items():
                session.connection().execute(insert(table.__table__), some)
    if uri.startswith("postgresql"):
        with store.ManagedSessionMaker() as session:
            session.execute(text("ANALYZE"))
    print(f"{count:,} runs written in {time.time() - began:.0f} s", flush=True)


def _make_rows(
    chance: random.Random, numbers: range, count: int, experiments: list[int]
) -> dict[Any, list[dict[str, Any]]]:
    """Return the rows of some runs by table."""
    from mlflow.store.tracking.dbmodels import models

    tables = (models.SqlRun, models.SqlTag, models.SqlParam, models.SqlLatestMetric)
    rows: dict[Any, list[dict[str, Any]]] = {table: [] for table in tables}
    runs, tags, params, metrics = rows.values()
    now, parent = int(time.time() * 1000), ""
    for i in numbers:
        run_id, is_parent = uuid.UUID(int=chance.getrandbits(128)).hex, i % (_STEPS + 1) == 0
        parent = run_id if is_parent else parent
        start = now - (count - i) * (_YEAR_MS // count)
        status = "FAILED" if chance.random() < 0.05 else "FINISHED"
        runs.append(
            {"run_uuid": run_id, "name": f"run-{i}", "status": status, "start_time": start,
             "experiment_id": experiments[i // (_STEPS + 1) % EXPERIMENTS],
             "end_time": start + 60_000, "lifecycle_stage": "active", "user_id": "bench",
             "source_type": "LOCAL", "artifact_uri": "/nowhere"}
        )  # fmt: skip
        ours = {"bottleneck": "cpu", "advice": "One core busy of several: use more threads.",
                "status": status, "hostname": f"worker-{i % 50}", "interval": "1.0",
                "version": "0.2.0"}  # fmt: skip
        own = {f"mlflow_perf.{name}": text for name, text in ours.items()}
        own |= {"mlflow.runName": f"run-{i}", "mlflow.user": f"user {i % 7}",
                "mlflow.source.name": "train.py"}  # fmt: skip
        if is_parent:
            own = {"mlflow.runName": f"run-{i}", "mlflow_perf.pipeline": "flow"}
        else:
            own |= {"mlflow_perf.component": f"train {i % COMPONENTS}",
                    "mlflow.parentRunId": parent}  # fmt: skip
        held = chance.lognormvariate(0.0, 1.0)
        figures = {"run_cpu_hours": held, "run_unused_cpu_hours": held * chance.random(),
                   "run_cost": held * 0.04, "run_node_count": 1.0,
                   "run_duration_sec": 60 * held, "auc": chance.random()}  # fmt: skip
        figures = {"auc": 0.5} if is_parent else dict.fromkeys(_METRICS, i % 97 + 0.5) | figures
        tags += [{"run_uuid": run_id, "key": k, "value": v} for k, v in own.items()]
        params += [{"run_uuid": run_id, "key": f"param_{n}", "value": f"{i % (7 + n)}"}
                   for n in range(PARAMS)]  # fmt: skip
        metrics += [{"run_uuid": run_id, "key": k, "value": v, "timestamp": start, "step": 0,
                     "is_nan": False} for k, v in figures.items()]  # fmt: skip
    return rows


@contextmanager
def run_postgres() -> Iterator[str | None]:
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
    control = [str(found[-1].parent / "pg_ctl"), "-D", f"{folder}/data", "-w", "-l",
               f"{folder}/log"]  # fmt: skip
    run(*control, "-o", f"-k {folder} -c listen_addresses= -c fsync=off", "start")
    try:
        yield f"postgresql+psycopg2://perf@/postgres?host={folder}"
    finally:
        with suppress(subprocess.CalledProcessError):
            run(*control, "-m", "immediate", "stop")
        shutil.rmtree(folder, ignore_errors=True)
